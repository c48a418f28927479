"""Rows of messages, of which some hold many: what the sources of a topic and of a partition share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import Any

from streamsvm.stream.delayed.joined import FUTURE_SECONDS
from streamsvm.stream.endpoints import START_AFRESH, Source, StreamError
from streamsvm.stream.tables.chunk import BadRow, Chunk, Message, MessageColumns, Row, Table
from streamsvm_kafka.clients.messages import Messages
from streamsvm_kafka.codecs import Codec, TableCodec

#: The most bytes of the headers that name the place of a message, but for the topic.
_BYTES_OF_PLACE = 150
#: Headers, in lower case, that name the format of a value: a prediction has another one.
_FORMAT_HEADERS = frozenset(("content-type", "contenttype", "content_type", "codec"))


class MessageChunk(Chunk):
    """The rows of messages with one row each."""

    def __init__(self, source: MessageSource, messages: Messages) -> None:
        self._source, self._messages = source, messages
        self._decoded: dict[int, tuple[Row | BadRow, list[Any]]] = {}  # rows that were asked for, and what is kept of each
        self._table: Table | None = None
        self._was_asked = False  # for the table: whatever becomes known then, it has all rows

    def __len__(self) -> int:
        return len(self._messages)

    def row(self, i: int) -> Row | BadRow:
        return self._read_message(i)[0]

    def _read_message(self, i: int) -> tuple[Row | BadRow, list[Any]]:
        if (found := self._decoded.get(i)) is not None:
            return found
        names = self._source.kept_names
        value: Any = self._messages.values[i]
        try:
            found = self._source.codec.decode_kept(value, names)
        except ValueError as error:
            found = BadRow(self.place(i), value, str(error)), [None] * len(names)
        self._decoded[i] = found
        return found

    def table(self, known: Sequence[Hashable]) -> Table | None:
        if not self._was_asked:
            self._was_asked = True
            self._table = self._source.codec.decode_many(*self._messages.texts, known)
            if self._table is None:
                self._table = Table.of_rows([self.row(i) for i in range(len(self))])
        return self._table

    def where(self, i: int) -> tuple[int, int]:
        """Return the partition and the offset of the message of row number ``i``."""
        return self._messages.partition_of(i), int(self._messages.offsets[i])

    def place(self, i: int) -> str:
        partition, offset = self.where(i)
        return f"{self._source.name}: message at partition {partition}, offset {offset}"

    def raw(self, i: int) -> bytes | None:
        return self._messages.values[i]

    def kept(self, first: int, end: int) -> list[Sequence[Any]]:
        messages, names = self._messages[first:end], self._source.kept_names
        rows = [self._read_message(i)[1] for i in range(first, end)] if names else []
        return [*([row[j] for row in rows] for j in range(len(names))), messages.partition_list, messages.offsets.tolist()]

    def messages(self, first: int, end: int) -> MessageColumns:
        """Return key, time and headers of the messages of rows.

        A header that says in which format the message is, and a time that is more than an hour ahead, are left out: a prediction
        is JSON, and a broker may refuse such a time. Further headers name the message: ``source-topic``, ``source-partition`` and
        ``source-offset``.
        """
        messages, latest = self._messages[first:end], 1000 * (time.time() + FUTURE_SECONDS)
        times = [moment if 0 <= moment <= latest else None for moment in messages.times.tolist()]
        places = zip(messages.partition_list, messages.offsets.tolist(), strict=True)
        topic = ("source-topic", self._source.topic.encode())
        headers = [
            [topic, ("source-partition", b"%d" % partition), ("source-offset", b"%d" % offset)] for partition, offset in places
        ]
        largest = len(self._source.topic) + _BYTES_OF_PLACE
        if messages.headers is not None:
            own = [
                [(name, value or b"") for name, value in each if name.lower() not in _FORMAT_HEADERS] for each in messages.headers
            ]
            headers = [[*each, *more] for each, more in zip(own, headers, strict=True)]
            largest += max(Message(None, None, each).size for each in own)
        keys: list[bytes | None] = [None] * len(messages) if messages.keys is None else messages.keys
        largest += 0 if messages.keys is None else max(len(key or b"") for key in keys)
        return MessageColumns(keys, times, headers, largest)

    def event(self, i: int) -> tuple[str | bytes | None, float | None]:
        moment, keys = float(self._messages.times[i]) / 1000, self._messages.keys
        key: str | bytes | None = None if keys is None else keys[i]
        with contextlib.suppress(UnicodeDecodeError):  # as bytes then
            key = key.decode() if isinstance(key, bytes) else key
        return key, None if moment < 0 else moment


class MessagePart(MessageChunk):
    """Rows of one message that has many: those from one number to before another.

    ``rows`` are all of them, and ``columns`` what is kept of these, as `TableCodec.decode_rows_kept` gives it. A message that
    cannot be decoded has a ``reason``, and counts as one row.
    """

    def __init__(
        self, source: MessageSource, message: Messages, rows: Table, columns: list[Any], first: int, most: int, reason: str = ""
    ) -> None:
        super().__init__(source, message)
        self._rows, self._columns, self._first, self._reason = rows, columns, first, reason
        #: Number of rows of the message that were given with these.
        self.end: int = min(first + most, len(rows))
        #: Whether it has no further ones.
        self.is_last: bool = self.end == len(rows)

    def following(self, most: int) -> MessagePart:
        """Return the next rows of the message."""
        return MessagePart(self._source, self._messages, self._rows, self._columns, self.end, most)

    def __len__(self) -> int:
        return self.end - self._first

    def row(self, i: int) -> Row | BadRow:
        if self._reason:
            return BadRow(self.place(i), self._messages.values[0], self._reason)
        return self._rows.row(self._first + i)

    def table(self, known: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        if self._table is None:
            part, y = slice(self._first, self.end), self._rows.y
            columns = [values[part] for values in self._rows.columns]
            self._table = replace(self._rows, columns=columns, y=None if y is None else y[part])
        return self._table

    def where(self, i: int) -> tuple[int, int]:  # noqa: ARG002
        return super().where(0)

    def place(self, i: int) -> str:
        return f"{super().place(0)}, row {self._first + i:,} of it"

    def raw(self, i: int) -> bytes | None:  # noqa: ARG002
        return None

    def kept(self, first: int, end: int) -> list[Sequence[Any]]:
        n, (partition, offset), within = end - first, self.where(0), range(self._first + first, self._first + end)
        columns = [[None] * n if column is None else column.slice(within.start, n).to_pylist() for column in self._columns]
        return [*columns, [partition] * n, [offset] * n, within]

    def messages(self, first: int, end: int) -> MessageColumns:
        n, one = end - first, super().messages(0, 1)
        return MessageColumns([*one.keys] * n, [*one.timestamps] * n, [*one.headers] * n, one.largest)

    def event(self, i: int) -> tuple[str | bytes | None, float | None]:  # noqa: ARG002
        return super().event(0)


class MessageSource(Source):
    """The rows of messages, by a codec.

    Of a codec with many rows a message, one message is open at a time, and its rows are given in parts.
    """

    has_messages = True
    begins_when_opened = True

    def __init__(self, name: str, topic: str, codec: Codec) -> None:
        self.name: str = name
        self.topic: str = topic
        self.codec: Codec = codec
        self.has_names: bool = codec.has_names
        self._many = isinstance(codec, TableCodec)  # rows a message
        self._part: MessagePart | None = None  # of the open message, the rows that were given last
        self._skip: dict[int, tuple[int, int]] = {}  # of a partition: the offset of a message, and rows of it that were learned

    def _take_messages(self, most: int) -> Messages | None:
        """Return the next messages that are at hand, and are not null; None at the end."""
        raise NotImplementedError

    def read(self, most: int) -> Chunk | None:
        if self._part is not None:
            found = self._part.following(most)
        elif (messages := self._take_messages(1 if self._many else most)) is None:
            return None
        elif not isinstance(self.codec, TableCodec) or not len(messages):
            return MessageChunk(self, messages)
        else:
            found = self._opened_message(self.codec, messages, most)
        self._part = None if found.is_last else found
        return found

    def _opened_message(self, codec: TableCodec, messages: Messages, most: int) -> MessagePart:
        message = messages[0]
        value: Any = message.value
        # The message may be gone (compaction, a tombstone): the one that comes in its place is new.
        offset, skip = self._skip.pop(message.partition, (-1, 0))
        skip = skip if offset == message.offset else 0
        try:
            rows, columns = codec.decode_rows_kept(value, self.kept_names)
            if skip > len(rows):
                raise ValueError(f"it has {len(rows)} rows, and the checkpoint has learned {skip} of them")
        except ValueError as error:
            one = Table((), [], [None], odd=[0])
            return MessagePart(self, messages, one, [None] * len(self.kept_names), 0, 1, str(error))
        return MessagePart(self, messages, rows, columns, skip, most)

    def _check_many(self) -> None:
        """Raise a StreamError where a checkpoint stands within a message of many rows, and those here have one."""
        if not self._many:
            raise StreamError(f"{self.name}: the checkpoint is of messages with many rows: give that codec, {START_AFRESH}")

    def keep(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns, and the place of each row: partition and offset of its message, and its number within that.

        Raise a StreamError if columns are asked for, and the codec has rows without names.
        """
        if names and not self.has_names:
            raise StreamError(
                f"{self.name}: column {names[0]!r} cannot be kept: codec={self.codec.name} has numbers without names. "
                "Predictions have partition and offset of the message"
            )
        return [*super().keep(names), "partition", "offset", *["within"] * self._many]
