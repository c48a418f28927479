"""All codecs: rows round-trip, invalid rows and messages are refused, and random bytes raise only ValueError."""

import dataclasses
import math
import random
import struct

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from refused import raises
from row_tables import float32_table, float32s, hostile_seeds, mutated, npy, same, stream, tables
from streamsvm.stream.endpoints import Row
from streamsvm.stream.tables.chunk import concatenate_rows
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, NpyCodec
from streamsvm_kafka.codecs import MAX_MESSAGE_BYTES, MAX_TABLE_BYTES, TableCodec
from streamsvm_kafka.codecs.protocol import rows_to_table

JSON, FLOAT32, NPY, ARROW = JSONCodec("y"), Float32Codec(2), NpyCodec(2), ArrowCodec("y")

finite = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(
    st.dictionaries(st.text(min_size=1).filter(lambda name: name != "y"), finite | st.booleans() | st.text()),
    st.integers(-5, 5),
    st.lists(finite, min_size=2, max_size=2),
    st.none() | finite,
)
def test_rows_round_trip(x, y, features, label):
    assert JSON.decode(JSON.encode(Row(x, y))) == Row(x, y)
    row = Row(dict(enumerate(features)), label)
    assert FLOAT32.decode(FLOAT32.encode(row)) == row


@given(tables, st.sampled_from([None, "abc", (True, False, None), (1, -(2**62), None), (0.5, 2.0), (None,)]))
def test_tables_round_trip(table, labels):
    y = labels and [labels[i % len(labels)] for i in range(len(table))]
    rows = float32_table(tuple(f"x{j}" for j in range(table.shape[1])), table, y)
    decoded = ARROW.decode_rows(ARROW.encode_rows(rows))
    assert same(decoded, dataclasses.replace(rows, y=None) if y and all(label is None for label in y) else rows)
    codec, y = NpyCodec(table.shape[1]), [None, 0, -7, 0.5, 3.0, 2.0**70][: len(table)]
    rows = float32_table(tuple(range(table.shape[1])), table, None if y == [None] else y)
    assert same(codec.decode_rows(codec.encode_rows(rows)), rows)


TIMES = pa.timestamp("s"), pa.duration("s")
NOT_READ = [
    *[(JSON, b"", "not JSON"), (JSON, b'{"a": 1', "not JSON")],
    *[(JSON, b"\xff\xfe", "not JSON"), (JSON, b"[" * 100_000, "not JSON"), (JSON, b"3", "got 3")],
    *[(JSON, b"null", "got None")],
    (JSON, b"\0\0\0\0\7\x02\x04", "with schema 7 of a registry: if that is not JSON, use codec=registry"),
    *[
        (JSON, b"\0", "not JSON"),
        (JSON, b'{"a": NaN, "b": }', "not JSON"),
        (JSON, b'{"a": {"$numberInt": "x"}}', "extended JSON"),
    ],
    (JSON, b'{"a": 1, "y": 1, "a" : "10:00"}', "two values have the name 'a'"),
    (JSON, b'{"b": {"c": 1, "c": 1}}', "two values have the name 'c'"),
    (JSON, b" " * (MAX_MESSAGE_BYTES + 1), f"{MAX_MESSAGE_BYTES + 1} bytes"),
    *((FLOAT32, bytes(size), f"{size} bytes; 2 features and a label as float32 take 12") for size in (0, 8, 11, 13, 24)),
    (NPY, b"", "EOF: reading magic string"),
    (NPY, b"\x93NUMPY\x04\x00\x10\x00", "not an array in NumPy's format"),
    (NPY, b"\x93NUMPY\x02\x00\xff\xff\xff\xff", "expected 4294967295 bytes got 0"),
    (NPY, npy(np.zeros(3)), "two dimensions"),
    (NPY, npy(np.zeros((1, 4))), "an array of 4 columns; 2 features and a label are 3"),
    (NPY, npy(np.array([[{}, 1, 2]], object), allow_pickle=True), r"of type '\|O'"),
    (NPY, npy(np.zeros((2, 3)))[:-1], "47 bytes behind the header; 2 rows of 3 numbers"),
    (NPY, npy(np.zeros((2, 3))).replace(b"(2, 3), }    ", b"(2, 3), 'x': 1, }"[:13]), "not an array in NumPy's format"),
    (NPY, npy(np.zeros((2, 3))).replace(b"'descr'", b"'shape'"), "does not contain the correct keys"),
    (NPY, bytes(MAX_TABLE_BYTES + 1), f"{MAX_TABLE_BYTES + 1} bytes; a message of many rows may have {MAX_TABLE_BYTES}"),
    (NpyCodec(1), npy(np.zeros((2_000_000, 2), np.int8)), "more than 64 MiB when it is decoded .2000000 rows of 2 features"),
    (ARROW, b"", "not an Arrow stream"),
    (ARROW, b"ARROW1\0\0", "an Arrow file; a message is an Arrow stream"),
    (ARROW, b"\xff\xff\xff\xff\xff\xff\xff\x7f", "not an Arrow stream"),
    (ARROW, stream(pa.record_batch({"a": [1.0]}))[:-40], "not an Arrow stream"),
    (ARROW, 2 * stream(pa.record_batch({"a": [1.0]})), "bytes follow its end: send one stream a message"),
    (ARROW, bytes(MAX_TABLE_BYTES + 1), f"a message of many rows may have {MAX_TABLE_BYTES}"),
    (ARROW, stream(pa.record_batch({"a": pa.array([0], pa.date32())})), "'a' is of type .date32.*: drop the column"),
    *((ARROW, stream(pa.record_batch({"a": pa.array([0], kind)})), "'a' is of type") for kind in TIMES),
    (ARROW, stream(pa.record_batch({"a": [[1.0]]})), "'a' is of type 'list<.*: drop the column"),
    (ARROW, stream(pa.record_batch({"y": [[1.0]]})), "'y' is of type 'list<.*: send text, numbers or booleans"),
    (ARROW, stream(pa.record_batch({"y": pa.array([0], pa.timestamp("s"))})), "'y' is of type 'timestamp.*: send text"),
    (ARROW, stream(pa.record_batch({"a": pa.array([0], pa.bool8())})), "'a' is of an extension type"),
    (ARROW, stream(pa.record_batch({"a": pa.RunEndEncodedArray.from_arrays([1], [1.0])})), "'a' is of type 'run_end_encoded"),
]


@pytest.mark.parametrize(("codec", "value", "reason"), NOT_READ, ids=lambda item: item if isinstance(item, str) else "")
def test_invalid_messages_are_refused(codec, value, reason):
    with pytest.raises(ValueError, match=reason):
        codec.decode_rows(value) if isinstance(codec, TableCodec) else codec.decode(value)


def one(name, y=None):
    return float32_table((name,), [[0]], None if y is None else [y])


@pytest.mark.parametrize(
    ("codec", "row", "reason"),
    [
        (JSON, Row({"y": 1}, 1), "of the label and of a feature"),
        (JSONCodec(None), Row({"a": 1}, 1), "no name for it"),
        (JSON, Row({0: 1}, 1), "cannot be written as JSON"),
        (FLOAT32, Row({2: 1.0}), "feature 2 is not one of 0 to 1"),
        (FLOAT32, Row({}, 2**24 + 1), "label 16777217 is not a number that float32 holds exactly"),
        (FLOAT32, Row({0: "hot"}), "cannot be written as float32"),
        (FLOAT32, Row({0: 1e300}), "cannot be written as float32"),
        (NPY, one(2), "feature 2 is not one of 0 to 1"),
        (NPY, one(0, "a"), "label 'a' is not a number"),
        (NPY, one(0, 2**24 + 1), "label 16777217 is not a number that float32 holds exactly"),
        (NPY, one(0, math.nan), "label nan"),
        (NPY, one(0, 10**400), "label 0x"),
        (ARROW, one(0), "feature 0: the name of an Arrow column is a text"),
        (ARROW, one("y", 1), "'y' is the name of the label and of a feature"),
        (ARROW, float32_table(("a",), [[0], [0]], [1, "a"]), "the labels cannot be written"),
        (ArrowCodec(None), one("a", 1), "no name for them"),
    ],
)
def test_unencodable_rows_are_refused(codec, row, reason):
    with pytest.raises(ValueError, match=reason):
        codec.encode_rows(row) if isinstance(codec, TableCodec) else codec.encode(row)


@pytest.mark.parametrize("value", ["x", None, math.nan, 1e39, 10**400, 1j])
def test_tables_refuse_values_beyond_float32(value):
    raises("feature 'a' is .*: a table takes only numbers that fit float32", rows_to_table, [Row({"a": value})])


@given(st.binary(max_size=200))
def test_random_bytes_raise_only_value_error(value):
    for codec in (JSON, FLOAT32):
        try:
            row = codec.decode(value)
        except ValueError:
            continue
        assert isinstance(row, Row)


def test_hostile_messages_are_rows_or_a_value_error():
    draw, rounds = random.Random(7), 400
    for codec, seeds in zip((ARROW, NpyCodec(3)), hostile_seeds(), strict=True):
        refused = 0
        for _ in range(rounds):
            try:
                value, names = mutated(draw.choice(seeds), draw), "abcdefyz" if codec.has_names else ""
                rows, kept = codec.decode_rows_with_columns(value, names)
            except ValueError:
                refused += 1
                continue
            assert {column.dtype for column in rows.columns if not isinstance(column, list)} <= {np.dtype(np.float32)}
            assert [len(column) for column in rows.columns] == [len(rows)] * len(rows.names)
            assert rows.y is None or len(rows.y) == len(rows)
            assert {len(column.to_pylist()) for column in kept if column is not None} <= {len(rows)}
        assert 0 < refused < rounds


# JSON and float32


def test_json_without_a_label_or_a_feature():
    assert JSON.decode(b'{"a": 1}') == JSON.decode(b'{"a": 1, "y": null}') == Row({"a": 1}, None)
    assert JSONCodec(None).decode(b'{"a": 1, "y": 2}') == Row({"a": 1, "y": 2}, None)
    assert JSON.decode(b'{"a": null, "b": 0, "y": 0}') == Row({"b": 0}, 0)


def test_json_writes_numpy_numbers():
    assert JSON.encode(Row({"a": np.float32(0.5)}, np.int64(1))) == b'{"a":0.5,"y":1}'


def test_float32_reads_numpy_rows():
    decoded = {label: FLOAT32.decode(np.array([1.5, -2, label], "<f4").tobytes()) for label in (1, 0.5, math.inf)}
    assert decoded == {label: Row({0: 1.5, 1: -2.0}, label) for label in (1, 0.5, math.inf)}
    assert isinstance(decoded[1].y, int)
    assert FLOAT32.decode(np.array([1.5, -2, np.nan], "<f4").tobytes()).y is None


def test_a_packed_nan_is_a_missing_feature():
    assert FLOAT32.encode(Row({1: 2.0}, 1)) == struct.pack("<3f", math.nan, 2, 1)
    assert FLOAT32.decode(FLOAT32.encode(Row({1: 2.0}, 1))) == Row({1: 2.0}, 1)
    assert Float32Codec(3).decode(struct.pack("<4f", math.nan, math.inf, -math.inf, 1)) == Row({1: math.inf, 2: -math.inf}, 1)


@given(hnp.arrays("<f4", st.tuples(st.integers(1, 5), st.just(3)), elements=float32s))
def test_a_poll_of_packed_rows_is_its_rows(table):
    values = [row.tobytes() for row in table]
    rows = FLOAT32.decode_batch(*concatenate_rows(values), range(2))
    assert [rows.row(i) for i in range(len(values))] == [FLOAT32.decode(value) for value in values]
    assert {column.dtype for column in rows.columns} == {np.dtype(np.float32)}


def test_batch_with_a_message_of_invalid_length_is_not_decoded():
    for values in ([bytes(8), bytes(7), bytes(9)], [bytes(16)]):
        assert Float32Codec(1).decode_batch(*concatenate_rows(values), [0]) is None


@pytest.mark.parametrize("n_features", [0, -1, MAX_MESSAGE_BYTES // 4])
def test_float32_refuses_sizes(n_features):
    raises("n_features must be", Float32Codec, n_features)


def test_objects_within_json_are_columns_by_their_path():
    codec = JSONCodec("after.y")
    event = b'{"op": "c", "after": {"a": 1, "y": true, "at": {"x": 2.5, "z": null}}, "before": null}'
    expected = Row({"op": "c", "after.a": 1, "after.at.x": 2.5}, True)
    assert codec.decode(event) == expected
    kept = ["op", "after.at.x", "after.y", "after.at", "before", "b"]
    assert codec.decode_with_fields(event, kept) == (expected, ["c", 2.5, True, {"x": 2.5, "z": None}, None, None])
    with pytest.raises(ValueError, match=r"two values have the path 'a\.b'"):
        codec.decode(b'{"a": {"b": 1}, "a.b": 2}')
    assert codec.decode(b'{"a": {"b": [1]}}').x == {"a.b": [1]}
