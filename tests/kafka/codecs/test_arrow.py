"""Arrow streams of many rows a message."""

import math
import struct
import time
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest

from refused import raises
from row_tables import float32_table, same, stream
from streamsvm.stream.tables.chunk import Row, Table
from streamsvm_kafka import ArrowCodec
from streamsvm_kafka.codecs import MAX_TABLE_BYTES


def twin(batch, label):
    """Rows of a batch, a cell at a time."""
    names = tuple(name for name in batch.schema.names if name != label)
    rows = batch.to_pylist()
    columns = []
    for name in names:
        cells, kind = [row[name] for row in rows], batch.schema.field(name).type
        if not (pa.types.is_dictionary(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)):
            cells = np.array([math.nan if cell is None else np.float32(cell) for cell in cells], np.float32)
        columns.append(cells)
    y = [row[label] for row in rows] if label in batch.schema.names else []
    y = [None if label != label else label for label in y]
    return Table(names, columns, y if any(label is not None for label in y) else None)


numbers = [
    *(pa.array([0, None, 1, np.iinfo(name).max], getattr(pa, name)()) for name in ("int8", "uint8", "int16", "uint16", "int32")),
    pa.array([2**53 + 1, None, -(2**63), 2**40 + 2**16 + 1], pa.int64()),
    pa.array([2**64 - 1, None, 2**63, 1], pa.uint64()),
    pa.array(np.array([0.5, -2, np.inf, np.nan], np.float16)),
    pa.array([0.5, None, math.nan, -3.25], pa.float32()),
    pa.array([0.1, None, 2.0**200, 1e-300], pa.float64()),
    pa.array([Decimal("1.25"), None, Decimal("-3.50"), Decimal(0)], pa.decimal128(10, 2)),
    pa.array([Decimal("1.25"), None, Decimal("-3.50"), Decimal(0)], pa.decimal256(50, 2)),
    pa.array([True, None, False, True]),
    pa.nulls(4),
]


@pytest.mark.parametrize("column", numbers, ids=lambda column: str(column.type))
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # by the twin
def test_arrow_columns_of_numbers(column, compression):
    batch = pa.record_batch({"a": column, "y": [0, 1, None, 1], "b": column})
    assert same(ArrowCodec("y").decode_rows(stream(batch, compression=compression)), twin(batch, "y"))


@pytest.mark.parametrize(
    "labels",
    [
        pa.array(["a", None, "b", "a"]),
        pa.array(["a", None, "b", "ä" * 50], pa.large_string()),
        pa.array(["a", None, "b", "a"]).dictionary_encode(),
        pa.DictionaryArray.from_arrays(pa.array([0, None, 2, 1], pa.uint64()), pa.array(["a", None, "b"])),
        pa.DictionaryArray.from_arrays(pa.array([0, None, 2, 1], pa.int8()), pa.array([10, None, 2**60])),
        pa.DictionaryArray.from_arrays(pa.array([1, None, 0, 1], pa.int8()), pa.array([True, False])),
        *[pa.array([2**53 + 1, None, -1, 2**63 - 1]), pa.array([2**64 - 1, 0, 1, 2], pa.uint64())],
        *[pa.array([True, None, False, True]), pa.array([0.5, None, math.nan, 1.0]), pa.nulls(4)],
    ],
    ids=lambda column: str(column.type),
)
def test_arrow_labels_and_features_of_their_types(labels):
    batch = pa.record_batch({"a": [1.0, 2.0, None, 4.0], "y": labels, "b": labels})
    decoded = ArrowCodec("y").decode_rows(stream(batch))
    assert same(decoded, twin(batch, "y"))
    assert [type(column) for column in decoded.columns] == [type(column) for column in twin(batch, "y").columns]
    assert [type(label) for label in decoded.y or ()] == [type(label) for label in twin(batch, "y").y or ()]


def test_arrow_streams_of_several_or_zero_batches():
    codec = ArrowCodec("y")
    batch = pa.record_batch({"a": [1.0, None], "y": ["a", "b"]})
    decoded = codec.decode_rows(stream(batch, batch.slice(1), batch.slice(2)))
    assert same(decoded, float32_table(("a",), [[1], [np.nan], [np.nan]], ["a", "b", "b"]))
    assert same(codec.decode_rows(stream(schema=batch.schema)), float32_table(("a",), np.empty((0, 1))))
    without_features = codec.decode_rows(stream(pa.record_batch({"y": pa.nulls(3)})))
    assert [without_features.row(i) for i in range(len(without_features))] == [Row({}, None)] * 3


def test_arrow_columns_may_change():
    codec = ArrowCodec("y")
    for i in range(40):
        batch = pa.record_batch({f"a{i}": [1.0, 2.0], "y": [0, 1]} if i % 2 else {"b": [i, None]})
        for _ in range(2):
            assert same(codec.decode_rows(stream(batch)), twin(batch, "y"))


def test_arrow_of_a_stream_without_an_end():
    batch = pa.record_batch({"a": [1.0], "y": [0]})
    value = stream(batch)
    assert same(ArrowCodec("y").decode_rows(value[:-8]), twin(batch, "y"))


def test_a_long_text_of_a_dictionary_is_held_once():
    texts = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int8)), pa.array(["a" * 100_000]))
    decoded = ArrowCodec("y").decode_rows(stream(pa.record_batch({"a": texts, "y": texts})))
    for values in (decoded.y, *decoded.columns):
        assert values[0] is values[-1]


def test_arrow_of_dictionaries_that_grow_or_are_replaced():
    first, second = (pa.record_batch({"y": pa.array(labels).dictionary_encode()}) for labels in (["a"], ["a", "b"]))
    for deltas in False, True:
        assert ArrowCodec("y").decode_rows(stream(first, second, emit_dictionary_deltas=deltas)).y == ["a", "a", "b"]


BOMBS = {
    "zeros": lambda: stream(pa.record_batch({"a": np.zeros(20_000_000)}), compression="zstd"),
    "nothing": lambda: stream(pa.record_batch({"a": pa.nulls(2**27)})),
    "no columns": lambda: stream(pa.record_batch({"y": pa.nulls(2**27)})),
    "bits": lambda: stream(pa.record_batch({"a": pa.nulls(2**24, pa.bool_())})),
    "entries": lambda: stream(
        pa.record_batch({"y": pa.DictionaryArray.from_arrays([0], pa.array(np.zeros(2**22, np.int8)))}), compression="zstd"
    ),
    "text": lambda: stream(pa.record_batch({"y": ["a" * (1 << 25)]}), compression="lz4"),
    "many texts": lambda: stream(pa.record_batch({"a": [""] * 500_000}), compression="lz4"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_arrow_refuses_messages_that_decode_to_too_much_memory(name):
    value = BOMBS[name]()
    assert len(value) <= MAX_TABLE_BYTES
    n_allocated = pa.default_memory_pool().bytes_allocated()
    raises("more than 64 MiB when it is decoded", ArrowCodec("y").decode_rows, value)
    assert pa.default_memory_pool().bytes_allocated() == n_allocated


def test_texts_of_many_batches_are_counted_together():
    batches = [pa.record_batch({"a": ["a" * (1 << 22)]})] * 4
    raises("more than 64 MiB when it is decoded", ArrowCodec("y").decode_rows, stream(*batches, compression="lz4"))


def test_two_columns_with_one_name():
    twice = pa.RecordBatch.from_arrays([pa.array([1.0]), pa.array([2.0])], ["abc", "abc"])
    raises("two columns have the name 'abc'", ArrowCodec("y").decode_rows, stream(twice))


def test_texts_that_are_views():
    labels = pa.array(["a", None, "b" * 20], pa.string_view())
    decoded = ArrowCodec("y").decode_rows(stream(pa.record_batch({"a": labels, "y": labels})))
    assert (decoded.columns, decoded.y) == ([["a", None, "b" * 20]], ["a", None, "b" * 20])


def test_a_dictionary_of_many_batches_is_read_once(monkeypatch):
    labels = [pa.array(["a", "b"]), pa.array(["a", "b", "c"]), pa.array(["c", "b", "a"])]
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_stream(
        sink, pa.schema([("a", pa.float64()), ("y", pa.dictionary(pa.int8(), pa.string()))]), options=options
    ) as s:
        for dictionary in labels:
            for _ in range(50):
                column = pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), dictionary)
                s.write_batch(pa.record_batch({"a": [1.0, 2.0, 3.0], "y": column}))
    codec, read = ArrowCodec("y"), []
    objects = codec._to_python_objects
    monkeypatch.setattr(codec, "_to_python_objects", lambda column: read.append(column) or objects(column))
    assert codec.decode_rows(sink.getvalue().to_pybytes()).y == ["b", None, "a"] * 100 + ["b", None, "c"] * 50
    assert len(read) == 3


@pytest.mark.parametrize("kind", [pa.decimal32, pa.decimal64, pa.decimal128, pa.decimal256])
@pytest.mark.parametrize("name", ["a", "y"])
def test_a_decimal_of_an_absurd_scale_is_refused(kind, name):
    message = stream(pa.record_batch({name: pa.array([Decimal("1.125"), None], kind(5, 3))}))
    at = message.index(struct.pack("<i", 3))
    assert message[:at].count(struct.pack("<i", 5)) == 1  # the precision stands before the scale
    for scale in (77, 500, 12_255_235, 2**31 - 1, -77, -(2**31)):  # pyarrow's cast would end the process
        raises("scale", ArrowCodec("y").decode_rows, message[:at] + struct.pack("<i", scale) + message[at + 4 :])


def test_many_columns_take_time_in_proportion():
    def seconds(n):
        message = stream(pa.record_batch({f"c{i}": [1.0] for i in range(n)}))
        began = time.process_time()
        decoded = ArrowCodec("y").decode_rows(message)
        assert (len(decoded), len(decoded.names)) == (1, n)
        return time.process_time() - began

    few, many = (min(seconds(n) for _ in range(3)) for n in (1000, 8000))
    assert many < 32.0 * few  # 64 times as long, where the schema's types are listed for each column
