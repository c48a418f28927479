"""The parser of Kafka records against a slow reference implementation, for valid records and for arbitrary bytes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamsvm.core.records import KEY, MIN_RECORD_BYTES, VALUE, find_fields

INT64 = st.integers(-(2**63), 2**63 - 1)


def number(value):
    """Encode a zigzag varint."""
    value = 2 * value if value >= 0 else -2 * value - 1
    out = []
    while value > 127:
        out.append(value % 128 + 128)
        value //= 128
    return bytes([*out, value])


def field(value):
    return number(-1) if value is None else number(len(value)) + value


def record(time, offset, key, value, headers=(), attributes=0):
    rest = b"".join(field(name) + field(content) for name, content in headers)
    body = bytes([attributes]) + number(time) + number(offset) + field(key) + field(value) + number(len(headers)) + rest
    return number(len(body)) + body


class WrongError(Exception):
    """The records are invalid."""


class Twin:
    def __init__(self, data, at):
        self.data, self.at = data, at

    def byte(self):
        if self.at >= len(self.data):
            raise WrongError
        self.at += 1
        return self.data[self.at - 1]

    def number(self):
        value = 0
        for i in range(10):
            byte = self.byte()
            value += byte % 128 * 128**i
            if byte < 128:
                break
        else:
            raise WrongError
        if value >= 2**64:
            raise WrongError
        return -(value + 1) // 2 if value % 2 else value // 2

    def field(self):
        size = self.number()
        start = self.at
        if size < -1:
            raise WrongError
        for _ in range(size):
            self.byte()
        return start, size

    def record(self):
        """The fields of a record, and its size."""
        size = self.number()
        stop = self.at + size
        if size < 0 or self.byte() > 127:
            raise WrongError
        fields = [self.number(), self.number(), *self.field(), *self.field(), self.number()]
        if fields[-1] < 0 or self.at > stop or (fields[-1] == 0 and self.at != stop) or stop > len(self.data):
            raise WrongError
        self.at = stop
        return fields, size


def twin(data, at, n):
    reader = Twin(data, at)
    try:
        records_read = [reader.record() for _ in range(n)]
    except WrongError:
        return -1, None
    if reader.at != len(data):
        return -1, None
    return sum(size for _, size in records_read), [fields for fields, _ in records_read]


def check(data, at, n, behind=b""):
    """Compare the parser with the reference implementation and return its results. Bytes after the data must have no effect."""
    columns = np.full((n, 7), 99, np.int64)
    size = int(find_fields(np.frombuffer(data + behind, np.uint8)[: len(data)], at, columns))
    expected, fields = twin(data, at, n)
    assert size == expected
    if fields is None:
        return None
    assert columns.tolist() == fields
    return columns


blobs = st.none() | st.binary(max_size=200)
records = st.builds(
    record, INT64, INT64, blobs, blobs, st.lists(st.tuples(st.binary(max_size=5), blobs), max_size=2), st.integers(0, 130)
)


@given(st.lists(records, max_size=6), st.binary(max_size=3), st.integers(-1, 1))
def test_records_equal_reference_parser(parts, before, more):
    check(before + b"".join(parts), len(before), max(len(parts) + more, 0))


@given(st.lists(st.tuples(INT64, INT64, blobs, blobs), min_size=1, max_size=6))
def test_fields_are_found(fields_of_records):
    data = b"".join(record(*fields) for fields in fields_of_records)
    columns = check(data, 0, len(fields_of_records))
    for row, (time, offset, *written) in zip(columns.tolist(), fields_of_records, strict=True):
        assert row[:2] == [time, offset]
        assert row[-1] == 0
        for at, content in zip((KEY, VALUE), written, strict=True):
            assert (None if row[at + 1] < 0 else data[row[at] : row[at] + row[at + 1]]) == content


@given(
    st.lists(records, min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 10**6), st.sampled_from([0, 1, 2, 3, 127, 128, 253, 254, 255])), min_size=1, max_size=3),
)
def test_records_with_changed_bytes(parts, changes):
    data = bytearray(b"".join(parts))
    for at, byte in changes:
        data[at % len(data)] = byte
    check(bytes(data), 0, len(parts))


@given(st.binary(max_size=60), st.integers(0, 8))
def test_arbitrary_bytes(data, n):
    check(data, 0, n)


@pytest.mark.parametrize("cut", range(1, 12))
def test_truncated_record(cut):
    data = record(-5, 2**40, b"k", b"value")
    assert check(data, 0, 1) is not None
    assert check(data[:-cut], 0, 1, behind=data[-cut:]) is None


@pytest.mark.parametrize(
    "data",
    [
        b"\xff" * 9 + b"\x01" + bytes(6),  # a record of -2**63 bytes
        b"\xfe" + b"\xff" * 8 + b"\x01" + bytes(6),  # of 2**63 - 1
        b"\x0c" + bytes(4) + b"\xfe" + b"\xff" * 8 + b"\x01",  # a key of as many
        record(0, 0, b"", b"").replace(bytes(6), b"\0\0\0\0\3\0"),  # a value of -2
        record(0, 0, None, None)[:-1] + b"\1",  # -1 headers
        b"\x1e\0" + b"\x80" * 9 + b"\x02" + bytes(4),  # a timestamp beyond 64 bits
        b"\x20\0" + b"\x80" * 10 + b"\x00" + bytes(4),  # in eleven bytes
        record(0, 0, None, None, attributes=128),
        record(0, 0, None, b"value") + b"\0",
    ],
)
def test_invalid_records_are_refused(data):
    assert check(data, 0, 1) is None


def test_longest_varint():
    ((time, *_),) = check(b"\x1e\0" + b"\x80" * 9 + b"\x01" + bytes(4), 0, 1)
    assert time == 2**62


def test_shortest_record():
    assert len(record(0, 0, None, None)) == MIN_RECORD_BYTES
    assert check(b"", 0, 0).shape == (0, 7)
