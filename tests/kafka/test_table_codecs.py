"""Codecs of many rows, and of many messages at once."""

import contextlib
import io
import math
import random
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from kafka import KafkaConsumer, TopicPartition

from patience import until
from row_tables import float32s, hostile_seeds, mutated, npy, same, tables
from streamsvm.stream.endpoints import Row, Rows
from streamsvm_kafka import ArrowCodec, Float32Codec, JSONCodec, NpyCodec, publish
from streamsvm_kafka.codecs import MAX_TABLE_BYTES, PackedCodec, TableCodec, table_of


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
        (Rows((0,), np.zeros((1, 1), np.float32), ["a"]), "label 'a' is not a number"),
        (Rows((0,), np.zeros((1, 1), np.float32), [2**24 + 1]), "label 16777217 is not a number that float32 holds exactly"),
        (Rows((0,), np.zeros((1, 1), np.float32), [math.nan]), "label nan"),
        (Rows((0,), np.zeros((1, 1), np.float32), [10**400]), "label 0x"),
    ],
)
def test_npy_refuses_to_write(rows, reason):
    with pytest.raises(ValueError, match=reason):
        NpyCodec(2).encode_rows(rows)


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


def test_hostile_messages_are_rows_or_a_value_error():
    draw, rounds = random.Random(7), 400
    for codec, seeds in zip((ArrowCodec("y"), NpyCodec(3)), hostile_seeds(), strict=True):
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
    values = []

    def both():
        values.extend(record.value for records in consumer.poll(200).values() for record in records)
        return len(values) == 2

    with contextlib.closing(KafkaConsumer(**embedded.client, bootstrap_servers=embedded.bootstrap)) as consumer:
        consumer.assign([partition := TopicPartition("rows", 0)])
        consumer.seek(partition, 0)
        until(both)
    found = [ArrowCodec("y").decode_rows(value) for value in values]
    assert [table.names for table in found] == [("a",), ("a", "b")]
    assert [table.row(i) for table in found for i in range(len(table.X))] == rows


def test_publishing_many_rows_a_message_that_has_one():
    with pytest.raises(ValueError, match="codec json has one row a message"):
        publish([], "localhost:1", "rows", JSONCodec("y"), rows_per_message=2)
    with pytest.raises(ValueError, match="rows_per_message must be at least 1, got 0"):
        publish([], "localhost:1", "rows", ArrowCodec("y"), rows_per_message=0)
