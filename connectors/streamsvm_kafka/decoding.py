"""Rows of messages, of which some hold many: what the sources of a topic and of a partition share."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from streamsvm.stream.delayed.joined import FUTURE_SECONDS
from streamsvm.stream.endpoints import BadRow, Message, MessageColumns, RawRows, Row, Rows, StreamError
from streamsvm.stream.tables.values import at_path
from streamsvm_kafka.clients.messages import NO_MESSAGES, Messages, TopicMessage
from streamsvm_kafka.codecs import Codec, JSONCodec, PackedCodec, TableCodec, check_headers
from streamsvm_kafka.codecs.names import names_format

#: The most bytes of the headers that name the place of a message, but for the topic.
_BYTES_OF_PLACE = 150


class MessageSource:
    """The rows of messages, by a codec.

    Of a codec with many rows a message, one message is open at a time, and its rows are given in parts.
    """

    def __init__(self, name: str, topic: str, codec: Codec) -> None:
        self.name: str = name
        self._topic = topic
        self._codec = codec
        self._many = isinstance(codec, TableCodec)  # rows a message
        self._table: Any = codec if self._many else None
        self._packed = codec if isinstance(codec, PackedCodec) else None
        self._messages: Messages = NO_MESSAGES  # of the rows that were given last
        self._rows: Rows | None = None  # of the open message
        self._next = self._first = 0  # of its rows: the next one, and the first of those given last
        self._keep: list[str] = []  # columns to copy, and of an open message with many rows each of these
        self._columns: list[Any] = []
        self._skip: dict[int, tuple[int, int]] = {}  # of a partition: the offset of a message, and rows of it that were learned

    @property
    def place(self) -> str:
        """The stream, and the partition and offset of the message that was given last."""
        return self.place_of(-1)

    @property
    def raw(self) -> bytes | None:
        """The bytes of the message that was given last; None if it had many rows."""
        return self.raw_of(-1)

    @property
    def has_names(self) -> bool:
        """Whether the columns of rows have names."""
        return hasattr(self._codec, "label")

    @property
    def _label(self) -> str | None:
        return getattr(self._codec, "label", None)

    @property
    def _within(self) -> int:
        """Rows that were given of a message that has more; 0 if there is none."""
        return 0 if self._rows is None else self._next

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows, as `BatchSource.take` does.

        They are those of the messages that are at hand, or of one message with many rows.
        """
        raise NotImplementedError

    def _decode(self, messages: Messages, most: int) -> Sequence[Row | BadRow] | Rows:
        """Return the rows of messages with one row each, or the first ones of one message with many, which stays open."""
        self._messages = messages
        if self._many:
            return self._open(messages[0], most)
        codec, plain = self._codec, len(messages) > 1 and messages.headers is None
        if plain and self._packed is not None:
            rows = self._packed.decode_values(messages.texts_of(0, len(messages)))
            if rows is not None:
                return rows

        def read(i: int) -> Row | BadRow:
            value: Any = messages.values[i]
            try:
                if messages.headers is not None and messages.headers[i]:
                    check_headers(messages.headers[i], codec)
                return codec.decode(value)
            except ValueError as error:
                return BadRow(self.place_of(i), value, str(error))

        if not (plain and isinstance(codec, JSONCodec)):
            return [read(i) for i in range(len(messages))]
        return RawRows(
            read,
            lambda first, end: codec.decode_pairs(messages.texts_of(first, end)),
            (0, len(messages)),
            lambda first, end, names: codec.decode_numbers(*messages[first:end].texts, names),
        )

    def _open(self, message: TopicMessage, most: int) -> Sequence[BadRow] | Rows:
        self._first, self._rows = 0, None
        value: Any = message.value
        # The message may be gone (compaction, a tombstone): the one that comes in its place is new.
        offset, skip = self._skip.pop(message.partition, (-1, 0))
        skip = skip if offset == message.offset else 0
        try:
            if message.headers:
                check_headers(message.headers, self._codec)
            rows = self._table.decode_rows(value)
            if self._keep:
                self._columns = self._table.columns_of(value, self._keep)
            if skip > len(rows):
                raise ValueError(f"it has {len(rows)} rows, and the checkpoint has learned {skip} of them")
        except ValueError as error:
            return [BadRow(self.place_of(0), value, str(error))]
        self._next = skip
        return self._more(rows, most)

    def _more(self, rows: Rows, most: int) -> Rows:
        """Return the next rows of the open message, which is closed with its last ones."""
        self._first, self._next = self._next, min(self._next + most, len(rows))
        self._rows = rows if self._next < len(rows) else None
        return rows.part(self._first, self._next)

    def keep(self, names: Iterable[str]) -> list[str]:
        """Have `kept_of` copy these columns, as `Source` describes, and return their names and those of the message's place.

        Raise a StreamError if there are any, and the codec has rows without names.
        """
        self._keep = list(names)
        if self._keep and not hasattr(self._codec, "columns_of" if self._many else "label"):
            raise StreamError(
                f"{self.name}: column {self._keep[0]!r} cannot be kept: codec={self._codec.name} has numbers without names. "
                "Predictions have partition and offset of the message"
            )
        return [*self._keep, "partition", "offset", *["within"] * self._many]

    def kept_of(self, i: int) -> list[Any]:
        """The columns to copy of row number ``i`` of those that were taken last, and the partition and offset of its message.

        Of a message with many rows, also the number of its rows before this one.
        """
        if self._many:
            within = self._first + i
            columns = [None if column is None else column[within].as_py() for column in self._columns] if self._keep else []
            return [*columns, *self._place(0), within]
        if not self._keep:
            return self._place(i)
        fields = self._fields_of(self._messages.texts_of(i, i + 1)[0])
        return [*(at_path(fields, name) for name in self._keep), *self._place(i)]

    def _place(self, i: int) -> list[int]:
        return [self._messages.partition_of(i), int(self._messages.offsets[i])]

    def _fields_of(self, value: bytes) -> dict[Any, Any]:
        """Return features and label of a message, or if it is JSON, its fields as they came."""
        if isinstance(self._codec, JSONCodec):
            return self._codec.fields(value)
        x, y = self._codec.decode(value)
        return x | {self._label: y}

    def kept_columns(self, first: int, end: int) -> list[Sequence[int]]:
        """`kept_of` of the rows from one number to before another, in columns, where no columns are to be copied."""
        if self._many:
            n, (partition, offset) = end - first, self._place(0)
            return [[partition] * n, [offset] * n, range(self._first + first, self._first + end)]
        messages = self._messages[first:end]
        return [messages.partition_list, messages.offsets.tolist()]

    def message_of(self, i: int) -> Message:
        """The key, time and headers of the message of row number ``i`` of those that were taken last.

        A header that says in which format the message is, and a time that is more than an hour ahead, are left out: a prediction
        is JSON, and a broker may refuse such a time. Further headers name the message: ``source-topic``, ``source-partition`` and
        ``source-offset``.
        """
        return self.messages_of(i, i + 1)[0]

    def messages_of(self, first: int, end: int) -> MessageColumns:
        """`message_of` of the rows from one number to before another."""
        n, messages = end - first, self._messages[:1] if self._many else self._messages[first:end]
        latest = 1000 * (time.time() + FUTURE_SECONDS)
        times = [moment if 0 <= moment <= latest else None for moment in messages.times.tolist()]
        places = zip(messages.partition_list, messages.offsets.tolist(), strict=True)
        topic = ("source-topic", self._topic.encode())
        headers = [
            [topic, ("source-partition", b"%d" % partition), ("source-offset", b"%d" % offset)] for partition, offset in places
        ]
        largest = len(self._topic) + _BYTES_OF_PLACE
        if messages.headers is not None:
            own = [[(name, value or b"") for name, value in each if not names_format(name)] for each in messages.headers]
            headers = [[*each, *more] for each, more in zip(own, headers, strict=True)]
            largest += max(Message(None, None, each).size for each in own)
        keys: list[bytes | None] = [None] * len(messages) if messages.keys is None else messages.keys
        largest += 0 if messages.keys is None else max(len(key or b"") for key in keys)
        if self._many:
            keys, times, headers = keys * n, times * n, headers * n
        return MessageColumns(keys, times, headers, largest)

    def place_of(self, i: int) -> str:
        """The partition and offset of the message of row number ``i`` of those that were taken last."""
        if not self._messages:
            return f"{self.name}: before its first message"
        row = f", row {self._first + i:,} of it" if self._many else ""
        partition, offset = self._place(0 if self._many else i)
        return f"{self.name}: message at partition {partition}, offset {offset}{row}"

    def raw_of(self, i: int) -> bytes | None:
        """The bytes of the message of row number ``i`` of those that were taken last.

        None if the message has many rows.
        """
        if not self._messages or self._many:
            return None
        return self._messages.values[i]

    def __iter__(self) -> Iterator[Row | BadRow]:
        while (rows := self.take(1)) is not None:
            yield from [rows.row(i) for i in range(len(rows))] if isinstance(rows, Rows) else rows
