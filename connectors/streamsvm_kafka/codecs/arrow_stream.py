"""The memory that an Arrow stream asks for, read from its metadata before Arrow reads it.

Arrow checks that a stream is well formed, not what it costs: a buffer may say that it is 2^40 bytes long when it is decompressed,
a batch that it has 2^40 rows of nothing, and a schema may name one long text, or one nested type, a million times. The layouts
are those of Arrow's ``Message.fbs`` and ``Schema.fbs``, in FlatBuffers.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from streamsvm.files.messages import shown

MAX_COLUMNS = 1 << 14
MAX_SCHEMA_BYTES = 1 << 20
MAX_PARTS = 1024  # batches, and dictionaries, of a message
MAX_TEXTS, MAX_TEXT_BYTES = 1 << 16, 4 << 20  # of names and annotations: one text may be named many times

_CONTINUES = b"\xff\xff\xff\xff"
_SCHEMA, _DICTIONARY, _BATCH = 1, 2, 3
_VERSION_5 = 4
_BYTE, _SHORT, _UNSIGNED_SHORT, _INT, _UNSIGNED, _LONG = (struct.Struct(f"<{code}") for code in "BhHiIq")
#: Names of types by their numbers in ``Schema.fbs``: those that a row may have, and the usual ones that it may not.
_TYPES = {1: "null", 2: "int", 3: "float", 4: "binary", 5: "text", 6: "bool", 7: "decimal", 8: "date", 9: "time", 10: "timestamp"}
_TYPES |= {12: "list", 13: "struct", 14: "union", 16: "list", 17: "map", 20: "text", 21: "list", 24: "string_view"}


class Column(NamedTuple):
    """A column of a schema."""

    name: str
    type: str
    extension: str  # the name of its extension type, or an empty text


class Survey(NamedTuple):
    """The memory that a stream asks for, and its schema."""

    schema: bytes  # the metadata of the schema
    rows: int  # of all batches
    entries: int  # of all dictionaries
    size: int  # bytes of all bodies after decompression


class _Table:
    """A table of a FlatBuffer. Reading beyond its bytes raises struct.error."""

    def __init__(self, data: bytes, at: int) -> None:
        self._data, self._at = data, at
        self._fields = at - _number_at(_INT, data, at)
        self._size = _number_at(_UNSIGNED_SHORT, data, self._fields)

    def _where(self, field: int) -> int:
        """Where a field is; 0 if the table does not have it."""
        place = 4 + 2 * field
        offset = _number_at(_UNSIGNED_SHORT, self._data, self._fields + place) if place + 2 <= self._size else 0
        return offset and self._at + offset

    def number(self, field: int, kind: struct.Struct) -> int:
        at = self._where(field)
        return _number_at(kind, self._data, at) if at else 0

    def table(self, field: int) -> _Table | None:
        at = self._where(field)
        return _Table(self._data, at + _number_at(_UNSIGNED, self._data, at)) if at else None

    def vector(self, field: int) -> tuple[int, int]:
        """Where the items of a vector begin, and how many they are."""
        at = self._where(field)
        if not at:
            return 0, 0
        at += _number_at(_UNSIGNED, self._data, at)
        return at + 4, _number_at(_UNSIGNED, self._data, at)

    def tables(self, field: int) -> Iterator[_Table]:
        begin, count = self.vector(field)
        for at in range(begin, begin + 4 * count, 4):
            yield _Table(self._data, at + _number_at(_UNSIGNED, self._data, at))

    def text(self, field: int) -> bytes:
        begin, count = self.vector(field)
        return self._data[begin : begin + count]


class _Texts:
    """Counts names and annotations."""

    def __init__(self) -> None:
        self._count = self._bytes = 0

    def counted(self, text: bytes) -> bytes:
        self._count, self._bytes = self._count + 1, self._bytes + len(text)
        if self._count > MAX_TEXTS or self._bytes > MAX_TEXT_BYTES:
            raise ValueError("its names and annotations are too many or too long")
        return text

    def annotations(self, table: _Table, field: int) -> dict[bytes, bytes]:
        return {self.counted(each.text(0)): self.counted(each.text(1)) for each in table.tables(field)}


def survey_stream(value: bytes) -> Survey:
    """Return what a stream asks for.

    A ValueError says that it is no stream that has a schema first, and then batches and dictionaries; a struct.error that it ends
    too early, or points beyond its end.
    """
    schema: bytes | None = None
    rows = entries = size = 0
    texts = _Texts()
    for number, (metadata, body) in enumerate(_stream_parts(value)):
        if number > MAX_PARTS:
            raise ValueError(f"it has more than {MAX_PARTS} batches: make them larger")
        message = _root_table(metadata)
        if message.number(0, _SHORT) != _VERSION_5:
            raise ValueError("its metadata are of a version before Arrow 1.0")
        kind, header = message.number(1, _BYTE), message.table(2)
        texts.annotations(message, 4)
        if (kind == _SCHEMA) != (schema is None) or kind not in (_SCHEMA, _DICTIONARY, _BATCH) or header is None:
            raise ValueError("it must have one schema, and then batches")
        if kind == _SCHEMA:
            if len(metadata) > MAX_SCHEMA_BYTES:
                raise ValueError(f"its schema has {len(metadata)} bytes, more than {MAX_SCHEMA_BYTES}: send fewer columns")
            schema = metadata
            continue
        if kind == _DICTIONARY:
            if header.number(2, _BYTE):
                raise ValueError("a dictionary comes in parts (a delta): write the message with a writer of its own")
            header = header.table(1) or header
        count = header.number(0, _LONG)
        if count < 0:
            raise ValueError(f"a batch of {count} rows")
        rows, entries = (rows + count, entries) if kind == _BATCH else (rows, entries + count)
        size += _unpacked_size(header, metadata, value, *body)
    if schema is None:
        raise ValueError("it is empty")
    return Survey(schema, rows, entries, size)


def columns_of(schema: bytes) -> list[Column]:
    """Return the columns that a schema has, from its metadata; struct.error if these point beyond their end.

    A ValueError says that there are too many, one holds others, or two have one name.
    """
    header = _root_table(schema).table(2)
    if header is None or header.vector(1)[1] > MAX_COLUMNS:
        raise ValueError(f"it has no columns, or more than {MAX_COLUMNS}")
    texts = _Texts()
    texts.annotations(header, 2)
    columns: dict[str, Column] = {}
    for field in header.tables(1):
        name = texts.counted(field.text(0)).decode()
        annotations = texts.annotations(field, 6)
        number = field.number(2, _BYTE)
        kind = _TYPES.get(number, f"number {number}")
        if field.vector(5)[1]:
            raise ValueError(f"column {shown(name)} holds others ({kind}): drop it, or send what it holds as columns")
        extension = annotations.get(b"ARROW:extension:name", b"").decode()
        if name in columns:
            raise ValueError(f"two columns have the name {shown(name)}")
        columns[name] = Column(name, kind, extension)
    return list(columns.values())


def _stream_parts(value: bytes) -> Iterator[tuple[bytes, tuple[int, int]]]:
    """The metadata of each message of the stream, and where its body begins and ends."""
    at = 0
    while at < len(value):
        if value[at : at + 4] != _CONTINUES:
            raise ValueError("it is damaged, or written by Arrow before 0.15")
        length = _number_at(_INT, value, at + 4)
        if length == 0:
            if at + 8 < len(value):
                raise ValueError(f"{len(value) - at - 8} bytes follow its end: send one stream a message")
            return
        at += 8
        if not 0 < length <= len(value) - at:
            raise ValueError("it ends too early")
        metadata = value[at : at + length]
        begin = at + length
        at = begin + _root_table(metadata).number(3, _LONG)
        if not begin <= at <= len(value):
            raise ValueError("it ends too early")
        yield metadata, (begin, at)


def _unpacked_size(batch: _Table, metadata: bytes, value: bytes, begin: int, end: int) -> int:
    """Bytes of the body of a batch after decompression."""
    if batch.table(3) is None:
        return end - begin
    first, count = batch.vector(2)
    buffers = np.frombuffer(metadata[first : first + 16 * count], "<i8").reshape(-1, 2).tolist()
    size = 0
    for offset, length in buffers:
        if length == 0:
            continue
        if offset < 0 or length < 8 or begin + offset + length > end:
            raise ValueError("a buffer lies outside its batch")
        unpacked = _number_at(_LONG, value, begin + offset)  # before the compressed bytes; -1: they are not compressed
        if unpacked < -1:
            raise ValueError(f"a buffer of {unpacked} bytes")
        size += length if unpacked == -1 else unpacked
    return size


def _root_table(metadata: bytes) -> _Table:
    return _Table(metadata, _number_at(_UNSIGNED, metadata, 0))


def _number_at(kind: struct.Struct, data: bytes, at: int) -> int:
    if at < 0:  # struct counts from the end
        raise struct.error("it points beyond its beginning")
    number: int = kind.unpack_from(data, at)[0]
    return number
