"""Codecs of many rows, and of many messages at once."""

import io
import math
import random
import struct
from decimal import Decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kafka import KafkaConsumer

from streamsvm.runtime.endpoints import Row, Rows
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, NpyCodec, publish
from streamsvm_kafka.codecs import MAX_TABLE_BYTES, PackedCodec, TableCodec, arrow_stream
from streamsvm_kafka.codecs.tables import table_of

float32s = st.floats(width=32, allow_nan=True)
tables = hnp.arrays("<f4", hnp.array_shapes(min_dims=2, max_dims=2, min_side=1, max_side=6), elements=float32s)


def stream(*batches, schema=None, **options):
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema or batches[0].schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return sink.getvalue().to_pybytes()


def npy(array, **how):
    file = io.BytesIO()
    np.save(file, array, **how)
    return file.getvalue()


def same(one, other):
    return one.names == other.names and np.array_equal(one.X, other.X, equal_nan=True) and one.y == other.y


def twin(batch, label):
    """Rows of a batch, a cell at a time."""
    names = tuple(name for name in batch.schema.names if name != label)
    rows = batch.to_pylist()
    X = [[math.nan if row[name] is None else np.float32(row[name]) for name in names] for row in rows]
    y = [row[label] for row in rows] if label in batch.schema.names else []
    y = [None if label != label else label for label in y]
    return Rows(names, np.array(X, np.float32), y if any(label is not None for label in y) else None)


def test_the_kinds_of_codecs():
    assert isinstance(Float32Codec(2), PackedCodec)
    assert isinstance(NpyCodec(2), TableCodec)
    assert isinstance(ArrowCodec("y"), TableCodec)
    assert not isinstance(ArrowCodec("y"), PackedCodec)


# One packed row a message


@given(hnp.arrays("<f4", st.tuples(st.integers(1, 5), st.just(4)), elements=float32s))
def test_a_poll_of_packed_rows_is_its_rows(table):
    codec = Float32Codec(3)
    values = [row.tobytes() for row in table]
    rows = codec.decode_values(values)
    assert [rows.row(i) for i in range(len(values))] == [codec.decode(value) for value in values]
    assert rows.X.dtype == np.float32


def test_a_poll_with_a_message_of_another_length_is_none():
    codec = Float32Codec(1)
    assert codec.decode_values([bytes(8), bytes(7), bytes(9)]) is None
    assert codec.decode_values([bytes(16)]) is None


def test_a_packed_nan_is_a_missing_feature():
    assert Float32Codec(3).decode(struct.pack("<4f", math.nan, math.inf, -math.inf, 1)) == Row({1: math.inf, 2: -math.inf}, 1)


# Arrays


@given(tables)
def test_npy_gives_back_what_was_written(table):
    codec = NpyCodec(table.shape[1])
    labels = [None, 0, -7, 0.5, 3.0, 2.0**70][: len(table)]
    rows = Rows(tuple(range(table.shape[1])), table, None if labels == [None] else labels)
    assert same(codec.decode_rows(codec.encode_rows(rows)), rows)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8", "f2", "i1", "u1", "<i2", ">i4", "<u4", "<i8", ">u8", "?"])
def test_npy_of_every_type(dtype, order):
    table = np.array([[0, 1, 1], [1, 0, 0]]).astype(dtype, order=order)
    rows = NpyCodec(2).decode_rows(npy(table))
    assert same(rows, Rows((0, 1), np.array([[0, 1], [1, 0]], np.float32), [1, 0]))
    assert rows.X.flags.c_contiguous


@pytest.mark.parametrize("version", [(1, 0), (2, 0), (3, 0)])
def test_npy_of_every_version(version):
    file = io.BytesIO()
    np.lib.format.write_array(file, np.ones((2, 2)), version=version)
    assert len(NpyCodec(1).decode_rows(file.getvalue()).X) == 2


def test_npy_of_other_writers():
    header = b"""{"shape": (1,2), "descr": "<f4", 'fortran_order':False}\n"""
    value = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header + struct.pack("<2f", 0.5, 1)
    assert same(NpyCodec(1).decode_rows(value), Rows((0,), np.array([[0.5]], np.float32), [1]))


def test_npy_labels():
    table = np.array([[0, np.nan], [0, 2**53 + 2.0], [0, 0.25]])
    assert NpyCodec(1).decode_rows(npy(table)).y == [None, 2**53 + 2, 0.25]
    assert NpyCodec(1).decode_rows(npy(table[:1])).y is None
    assert NpyCodec(1).decode_rows(npy(table[:0])).y is None
    assert NpyCodec(1).decode_rows(npy(np.array([[0, 2**64 - 1]], np.uint64))).y == [2**64 - 1]


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "does not begin with its mark"),
        (b"\x93NUMPY", "its version"),
        (b"\x93NUMPY\x04\x00\x10\x00", "its version"),
        (b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "header of 4294967295 bytes"),
        (npy(np.zeros(3)), "two dimensions"),
        (npy(np.zeros((1, 3, 1))), "two dimensions"),
        (npy(np.zeros((1, 4))), "an array of 4 columns; 2 features and a label are 3"),
        (npy(np.array([[{}, 1, 2]], object), allow_pickle=True), "of type '|O'"),
        (npy(np.array([["a", "b", "c"]])), "of type"),
        (npy(np.zeros((1, 3), complex)), "of type"),
        (npy(np.zeros((1, 3), "M8[s]")), "of type"),
        (npy(np.zeros((1, 3), [("a", "f4")])), "does not give descr"),
        (npy(np.zeros((2, 3)))[:-1], "47 bytes behind the header; 2 rows of 3 numbers"),
        (npy(np.zeros((2, 3))) + b"0", "49 bytes behind the header"),
        (npy(np.zeros((2, 3))).replace(b"(2, 3), }    ", b"(2, 3), 'x': 1, }"[:13]), "does not give descr"),
        (npy(np.zeros((2, 3))).replace(b"'descr'", b"'shape'"), "does not give descr"),
        (bytes(MAX_TABLE_BYTES + 1), f"{MAX_TABLE_BYTES + 1} bytes; a message of many rows may have {MAX_TABLE_BYTES}"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_npy_refuses(value, reason):
    with pytest.raises(ValueError, match=reason.replace("|", r"\|")):
        NpyCodec(2).decode_rows(value)


def test_npy_refuses_many_small_numbers():
    with pytest.raises(ValueError, match="more than 64 MiB when it is decoded .2000000 rows of 2 features"):
        NpyCodec(1).decode_rows(npy(np.zeros((2_000_000, 2), np.int8)))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (Rows((2,), np.zeros((1, 1), np.float32), None), "feature 2 is not one of 0 to 1"),
        (Rows(("a",), np.zeros((1, 1), np.float32), None), "feature 'a' is not one of 0 to 1"),
        (Rows((0,), np.zeros((1, 1), np.float32), ["a"]), "label 'a' is no number"),
        (Rows((0,), np.zeros((1, 1), np.float32), [2**24 + 1]), "label 16777217 is no number that float32 holds exactly"),
        (Rows((0,), np.zeros((1, 1), np.float32), [math.nan]), "label nan"),
        (Rows((0,), np.zeros((1, 1), np.float32), [10**400]), "label 0x"),
    ],
)
def test_npy_refuses_to_write(rows, reason):
    with pytest.raises(ValueError, match=reason):
        NpyCodec(2).encode_rows(rows)


# Arrow


@given(tables, st.sampled_from([None, "abc", (True, False, None), (1, -(2**62), None), (0.5, 2.0), (None,)]))
def test_arrow_gives_back_what_was_written(table, labels):
    codec = ArrowCodec("y")
    y = labels and [labels[i % len(labels)] for i in range(len(table))]
    rows = Rows(tuple(f"x{j}" for j in range(table.shape[1])), table, y)
    found = codec.decode_rows(codec.encode_rows(rows))
    assert same(found, rows._replace(y=None) if y and all(label is None for label in y) else rows)
    assert found.X.flags.c_contiguous


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
        pa.array([2**53 + 1, None, -1, 2**63 - 1]),
        pa.array([2**64 - 1, 0, 1, 2], pa.uint64()),
        pa.array([True, None, False, True]),
        pa.array([0.5, None, math.nan, 1.0]),
        pa.nulls(4),
    ],
    ids=lambda column: str(column.type),
)
def test_arrow_labels(labels):
    batch = pa.record_batch({"a": [1.0, 2.0, None, 4.0], "y": labels})
    found = ArrowCodec("y").decode_rows(stream(batch))
    assert same(found, twin(batch, "y"))
    assert [type(label) for label in found.y or ()] == [type(label) for label in twin(batch, "y").y or ()]


def test_arrow_of_several_batches_and_none():
    codec = ArrowCodec("y")
    batch = pa.record_batch({"a": [1.0, None], "y": ["a", "b"]})
    found = codec.decode_rows(stream(batch, batch.slice(1), batch.slice(2)))
    assert same(found, Rows(("a",), np.array([[1], [np.nan], [np.nan]], np.float32), ["a", "b", "b"]))
    empty = codec.decode_rows(stream(schema=batch.schema))
    assert (empty.names, empty.X.shape, empty.y) == (("a",), (0, 1), None)


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


def test_a_long_label_of_a_dictionary_is_held_once():
    labels = pa.DictionaryArray.from_arrays(pa.array(np.zeros(10_000, np.int8)), pa.array(["a" * 100_000]))
    y = ArrowCodec("y").decode_rows(stream(pa.record_batch({"a": pa.nulls(10_000, pa.bool_()), "y": labels}))).y
    assert y[0] is y[-1]


@pytest.mark.parametrize(
    ("columns", "reason"),
    [
        ({"a": ["x"]}, "'a' holds text, and features are numbers: drop the column"),
        ({"a": pa.array(["x"]).dictionary_encode()}, "'a' has a dictionary, and is a feature"),
        ({"a": pa.array([0], pa.date32())}, "'a' is of type date, and features are numbers: drop the column"),
        ({"a": pa.array([0], pa.timestamp("s"))}, "'a' is of type timestamp"),
        ({"a": pa.array([0], pa.duration("s"))}, "'a' is of type number 18"),
        ({"a": [b"x"]}, "'a' is of type binary"),
        ({"a": [[1.0]]}, "'a' holds others .list.: drop it"),
        ({"a": [{"b": 1.0}]}, "'a' holds others .struct."),
        ({"y": [[1.0]]}, "'y' holds others"),
        ({"y": pa.array([0], pa.timestamp("s"))}, "'y' of the label is of type timestamp: send text"),
        ({"y": pa.array(["x"], pa.string_view())}, "'y' of the label is of type string_view"),
        ({"a": pa.array([0], pa.bool8())}, "extension type 'arrow.bool8'"),
        ({"a": pa.RunEndEncodedArray.from_arrays([1], [1.0])}, "'a' holds others"),
    ],
)
def test_arrow_refuses_columns(columns, reason):
    with pytest.raises(ValueError, match=reason):
        ArrowCodec("y").decode_rows(stream(pa.record_batch(columns)))


def test_arrow_refuses_two_columns_of_one_name():
    batch = pa.RecordBatch.from_arrays([pa.array([1.0]), pa.array([2.0])], names=["a", "a"])
    with pytest.raises(ValueError, match="two columns have the name 'a'"):
        ArrowCodec("y").decode_rows(stream(batch))


def test_arrow_refuses_a_dictionary_in_parts():
    first, second = (pa.record_batch({"y": pa.array(labels).dictionary_encode()}) for labels in (["a"], ["a", "b"]))
    with pytest.raises(ValueError, match="in parts"):
        ArrowCodec("y").decode_rows(stream(first, second, emit_dictionary_deltas=True))
    assert ArrowCodec("y").decode_rows(stream(first, second)).y == ["a", "a", "b"]


BOMBS = {
    "zeros": lambda: stream(pa.record_batch({"a": np.zeros(20_000_000)}), compression="zstd"),
    "nothing": lambda: stream(pa.record_batch({"a": pa.nulls(2**27)})),
    "no columns": lambda: stream(pa.record_batch({"y": pa.nulls(2**27)})),
    "bits": lambda: stream(pa.record_batch({"a": pa.nulls(2**24, pa.bool_())})),
    "entries": lambda: stream(
        pa.record_batch({"y": pa.DictionaryArray.from_arrays([0], pa.array(np.zeros(2**22, np.int8)))}), compression="zstd"
    ),
    "text": lambda: stream(pa.record_batch({"y": ["a" * (1 << 25)]}), compression="lz4"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_arrow_refuses_what_grows(name):
    value = BOMBS[name]()
    assert len(value) <= MAX_TABLE_BYTES
    held = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(ValueError, match="more than 64 MiB when it is decoded"):
        ArrowCodec("y").decode_rows(value)
    assert pa.default_memory_pool().bytes_allocated() == held


def test_arrow_refuses_a_buffer_that_says_it_is_long():
    value = bytearray(stream(pa.record_batch({"a": np.zeros(1000)}), compression="zstd"))
    at = value.index(struct.pack("<q", 8000))
    value[at : at + 8] = struct.pack("<q", 2**40)
    with pytest.raises(ValueError, match="more than 64 MiB when it is decoded .1000 rows"):
        ArrowCodec("y").decode_rows(bytes(value))


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (b"", "it is empty"),
        (b"ARROW1\0\0", "an Arrow file; a message is an Arrow stream"),
        (b'{"a": 1}', "damaged, or written by Arrow before 0.15"),
        (b"\xff\xff\xff\xff\xff\xff\xff\x7f", "ends too early"),
        (b"\xff\xff\xff\xff", "not an Arrow stream"),
        (stream(pa.record_batch({"a": [1.0]}))[:-40], "ends too early"),
        (stream(pa.record_batch({"a": [1.0]}), metadata_version=pa.ipc.MetadataVersion.V4), "before Arrow 1.0"),
        (bytes(MAX_TABLE_BYTES + 1), f"a message of many rows may have {MAX_TABLE_BYTES}"),
        (stream(*[pa.record_batch({"a": [1.0]})] * 1100), "more than 1024 batches"),
        (stream(pa.record_batch({"a" * 2_000_000: [1.0]})), "its schema has"),
        (stream(pa.record_batch({f"{j}": [1.0] for j in range(2**14 + 1)})), "its schema has|more than 16384"),
    ],
    ids=lambda item: item if isinstance(item, str) else "",
)
def test_arrow_refuses(value, reason):
    with pytest.raises(ValueError, match=reason):
        ArrowCodec("y").decode_rows(value)


def test_names_that_are_named_many_times_are_counted(monkeypatch):
    monkeypatch.setattr(arrow_stream, "MAX_TEXT_BYTES", 100)
    with pytest.raises(ValueError, match="names and annotations are too many or too long"):
        ArrowCodec("y").decode_rows(stream(pa.record_batch({"a" * 60: [1.0], "b" * 60: [1.0]})))


@pytest.mark.parametrize(
    ("rows", "reason"),
    [
        (Rows((0,), np.zeros((1, 1), np.float32), None), "feature 0: the name of an Arrow column is a text"),
        (Rows(("y",), np.zeros((1, 1), np.float32), [1]), "'y' is the name of the label and of a feature"),
        (Rows(("a",), np.zeros((2, 1), np.float32), [1, "a"]), "the labels cannot be written"),
    ],
)
def test_arrow_refuses_to_write(rows, reason):
    with pytest.raises(ValueError, match=reason):
        ArrowCodec("y").encode_rows(rows)
    with pytest.raises(ValueError, match="no name for them"):
        ArrowCodec(None).encode_rows(Rows(("a",), np.zeros((1, 1), np.float32), [1]))


# Both


def test_one_row_a_message():
    codec = ArrowCodec("y")
    assert codec.decode(codec.encode(Row({"a": 1.5}, "b"))) == Row({"a": 1.5}, "b")
    with pytest.raises(ValueError, match="holds 2 rows; here each row needs a message"):
        NpyCodec(1).decode(npy(np.zeros((2, 2))))


@pytest.mark.parametrize("value", ["x", None, math.nan, 1e39, 10**400, 1j])
def test_a_table_holds_numbers(value):
    with pytest.raises(ValueError, match="feature 'a' is .*: only numbers that float32 can hold go into a table"):
        table_of([Row({"a": value})])


def mutated(value, draw):
    """A message with a few bytes, numbers or lengths changed."""
    value = bytearray(value)
    for _ in range(draw.choice([1, 1, 2, 4])):
        at, number = draw.randrange(len(value) - 8), draw.choice([0, 1, -1, 7, 64, 2**30, 2**31 - 1])
        kind = draw.randrange(5)
        if kind == 0:
            value[at] = draw.randrange(256)
        elif kind == 1:
            value[at & ~3 : (at & ~3) + 4] = struct.pack("<i", number)
        elif kind == 2:
            value[at & ~7 : (at & ~7) + 8] = struct.pack("<q", number << draw.choice([0, 20, 32]))
        elif kind == 3:
            value[at:at] = value[draw.randrange(len(value)) :][:16]
        else:
            del value[max(at, 16) :]
        if len(value) < 32:
            break
    return bytes(value)


def hostile_seeds():
    columns = {
        "a": pa.array([0.5, None, 2.0] * 8, pa.float32()),
        "b": pa.array([1, None, 3] * 8),
        "c": pa.array([True, None] * 12),
    }
    columns |= {"d": pa.array([Decimal("1.5")] * 24), "e": pa.nulls(24), "y": pa.array(["x", "y", None] * 8)}
    batch = pa.record_batch(columns)
    coded = pa.record_batch(columns | {"y": columns["y"].dictionary_encode()})
    arrays = [npy(np.arange(80.0).reshape(20, 4)), npy(np.asfortranarray(np.arange(80, dtype=">i2").reshape(20, 4)))]
    streams = [stream(batch, batch), stream(coded), stream(batch, compression="zstd"), stream(coded, compression="lz4")]
    return [(ArrowCodec("y"), streams), (NpyCodec(3), arrays)]


def test_hostile_messages_are_rows_or_a_value_error():
    draw, rounds = random.Random(7), 400
    for codec, seeds in hostile_seeds():
        refused = 0
        for _ in range(rounds):
            try:
                rows = codec.decode_rows(mutated(draw.choice(seeds), draw))
            except ValueError:
                refused += 1
                continue
            assert rows.X.dtype == np.float32
            assert rows.X.shape[1] == len(rows.names)
            assert rows.y is None or len(rows.y) == len(rows.X)
        assert 0 < refused < rounds


def test_publishing_many_rows_a_message(embedded):
    rows = [Row({"a": float(i)} | ({"b": 2.0} if i == 4 else {}), i % 2 or None) for i in range(5)]
    where = {"client": embedded.client, "partition": 0}
    assert publish(rows, embedded.bootstrap, "rows", ArrowCodec("y"), rows_per_message=3, **where) == 5
    consumer = KafkaConsumer("rows", **where["client"], bootstrap_servers=embedded.bootstrap, auto_offset_reset="earliest")
    values = []
    while len(values) < 2:
        values += [record.value for records in consumer.poll(200).values() for record in records]
    consumer.close()
    found = [ArrowCodec("y").decode_rows(value) for value in values]
    assert [table.names for table in found] == [("a",), ("a", "b")]
    assert [table.row(i) for table in found for i in range(len(table.X))] == rows


def test_publishing_many_rows_a_message_that_has_one():
    with pytest.raises(ValueError, match="codec json has one row a message"):
        publish([], "localhost:1", "rows", JSONCodec("y"), rows_per_message=2)
    with pytest.raises(ValueError, match="rows_per_message must be at least 1, got 0"):
        publish([], "localhost:1", "rows", ArrowCodec("y"), rows_per_message=0)
