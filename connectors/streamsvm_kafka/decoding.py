"""Rows of messages, of which some hold many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from streamsvm.stream.endpoints import BadRow, RawRows, Row, Rows
from streamsvm_kafka.codecs import Codec, JSONCodec, PackedCodec, TableCodec
from streamsvm_kafka.codecs.names import check_headers


class Decoder:
    """The rows of messages, by a codec.

    Of a codec with many rows a message, one message is open at a time, and its rows are given in parts.

    Parameters
    ----------
    name
        The stream in messages.
    codec
        Decodes a message.

    Attributes
    ----------
    many : bool
        Whether a message holds many rows.
    """

    def __init__(self, name: str, codec: Codec) -> None:
        self._name, self._codec = name, codec
        self.many: bool = isinstance(codec, TableCodec)
        self._table: Any = codec if self.many else None
        self._packed = codec if isinstance(codec, PackedCodec) else None
        self._records: Sequence[Any] = ()  # of the rows that were given last
        self._rows: Rows | None = None  # of the open message
        self._next = self._first = 0  # of its rows: the next one, and the first of those given last

    @property
    def record(self) -> Any:
        """The message of the row that was given last; None before."""
        return self._records[-1] if self._records else None

    @property
    def open_rows(self) -> int:
        """Rows that were given of a message that has more; 0 if there is none."""
        return 0 if self._rows is None else self._next

    def decode(self, records: Sequence[Any]) -> Sequence[Row | BadRow] | Rows:
        """Return the rows of messages with one row each."""
        self._records = records
        codec, many = self._codec, len(records) > 1 and not any(record.headers for record in records)
        if many and self._packed is not None:
            rows = self._packed.decode_values([record.value for record in records])
            if rows is not None:
                return rows

        def read(i: int) -> Row | BadRow:
            record = records[i]
            try:
                if record.headers:
                    check_headers(record.headers, codec)
                return codec.decode(record.value)
            except ValueError as error:
                return BadRow(self.place_of(i), record.value, str(error))

        if not (many and isinstance(codec, JSONCodec)):
            return [read(i) for i in range(len(records))]
        pairs = codec.decode_pairs
        return RawRows(read, lambda first, end: pairs([record.value for record in records[first:end]]), (0, len(records)))

    def open(self, record: Any, skip: int, most: int) -> Sequence[BadRow] | Rows:
        """Return the first rows of a message with many, after ``skip`` of them; see `more`."""
        self._records, self._first, self._rows = [record], 0, None
        try:
            if record.headers:
                check_headers(record.headers, self._codec)
            rows = self._table.decode_rows(record.value)
            if skip > len(rows):
                raise ValueError(f"it has {len(rows)} rows, and the checkpoint has learned {skip} of them")
        except ValueError as error:
            return [BadRow(self.place_of(0), record.value, str(error))]
        self._rows, self._next = rows, skip
        return self.more(most)

    def more(self, most: int) -> Rows:
        """Return the next rows of the open message, which is closed with its last ones."""
        if (rows := self._rows) is None:
            raise RuntimeError(f"{self._name}: no message is open")
        self._first, self._next = self._next, min(self._next + most, len(rows))
        part = rows.part(self._first, self._next)
        if self._next == len(rows):
            self._rows = None
        return part

    def place_of(self, i: int) -> str:
        """The partition, and the offset of the message of a row of those that were given last."""
        if not self._records:
            return f"{self._name}: before its first message"
        record = self._records[0 if self.many else i]
        row = f", row {self._first + i:,} of it" if self.many else ""
        return f"{self._name}: message at partition {record.partition}, offset {record.offset}{row}"

    def raw_of(self, i: int) -> bytes | None:
        """The bytes of the message of a row of those that were given last; None of one with many rows."""
        if not self._records or self.many:
            return None
        value: bytes = self._records[i].value
        return value
