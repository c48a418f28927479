"""Rows of messages with one row or many: what the sources of a topic and of a partition share."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from streamsvm.stream.delayed.joined import FUTURE_SECONDS
from streamsvm.stream.endpoints import START_AFRESH, Source, StreamError
from streamsvm.stream.tables.chunk import BadRow, Chunk, Message, MessageColumns, Row, Table
from streamsvm_kafka.clients.messages import Messages, TopicMessage
from streamsvm_kafka.codecs import MessageCodec, TableCodec

#: The most bytes of the headers that name the place of a message, but for the topic.
_BYTES_OF_PLACE = 150
#: Headers, in lower case, that name the format of a value: a prediction has another one.
_FORMAT_HEADERS = frozenset(("content-type", "contenttype", "content_type", "codec"))


class MessageChunk(Chunk):
    """Rows of messages: one of each, or some of the many of one message.

    Those of one message are ``rows`` with the numbers ``within`` it, and ``copies`` has what predictions copy of them.
    """

    def __init__(
        self,
        source: MessageSource,
        messages: Messages,
        within: range | None = None,
        rows: Table | list[Row | BadRow] | None = None,
        copies: Sequence[Sequence[Any]] | None = None,
    ) -> None:
        if rows is not None:
            super().__init__(rows, self.place, passthrough_columns=copies)
        self._source, self._messages, self._within = source, messages, within
        self._decoded: dict[int, tuple[Row | BadRow, list[Any]]] = {}  # rows that were read, and the copies of each

    def __len__(self) -> int:
        return len(self._messages if self._within is None else self._within)

    def read_row(self, i: int) -> Row | BadRow:
        return self._read_message(i)[0] if self._within is None else super().read_row(i)

    def _read_message(self, i: int) -> tuple[Row | BadRow, list[Any]]:
        if (decoded := self._decoded.get(i)) is not None:
            return decoded
        names = self._source.passthrough_names
        value: Any = self._messages.values[i]
        try:
            decoded = self._source.codec.decode_with_fields(value, names)
        except ValueError as error:
            decoded = BadRow(self.place(i), value, str(error)), [None] * len(names)
        self._decoded[i] = decoded
        return decoded

    def parse_table(self, known: Sequence[Hashable]) -> Table | None:
        return self._source.codec.decode_batch(*self._messages.joined_values, known)

    def place(self, i: int) -> str:
        row = "" if self._within is None else f", row {self._within[i]:,} of it"
        return f"{self._source.place_of(self._message_of(i))}{row}"

    def raw(self, i: int) -> bytes | None:
        return self._messages.values[i] if self._within is None else None

    def _message_of(self, i: int) -> TopicMessage:
        return self._messages[i if self._within is None else 0]

    def _messages_of(self, first: int, end: int) -> Messages:
        return (
            self._messages[first:end] if self._within is None else self._messages.select_messages(np.zeros(end - first, np.int64))
        )

    def passthrough_columns(self, first: int, end: int) -> list[Sequence[Any]]:
        messages, names = self._messages_of(first, end), self._source.passthrough_names
        place: list[Sequence[Any]] = [messages.partition_list, messages.offsets.tolist()]
        if self._within is not None:
            return [*super().passthrough_columns(first, end), *place, self._within[first:end]]
        rows = [self._read_message(i)[1] for i in range(first, end)] if names else []
        return [*([row[j] for row in rows] for j in range(len(names))), *place]

    def messages(self, first: int, end: int) -> MessageColumns:
        """Return key, time and headers of the messages of rows.

        A header that says in which format the message is, and a time that is more than an hour ahead, are left out: a prediction
        is JSON, and a broker may refuse such a time. Further headers name the message: ``source-topic``, ``source-partition`` and
        ``source-offset``.
        """
        messages, latest = self._messages_of(first, end), 1000 * (time.time() + FUTURE_SECONDS)
        times = [moment if 0 <= moment <= latest else None for moment in messages.timestamps.tolist()]
        places = zip(messages.partition_list, messages.offsets.tolist(), strict=True)
        topic = ("source-topic", self._source.topic.encode())
        headers = [
            [topic, ("source-partition", b"%d" % partition), ("source-offset", b"%d" % offset)] for partition, offset in places
        ]
        largest = len(self._source.topic) + _BYTES_OF_PLACE
        if messages.headers is not None:
            own = [
                [(name, value or b"") for name, value in pairs if name.lower() not in _FORMAT_HEADERS]
                for pairs in messages.headers
            ]
            headers = [[*pairs, *place] for pairs, place in zip(own, headers, strict=True)]
            largest += max(Message(None, None, pairs).size for pairs in own)
        keys: list[bytes | None] = [None] * len(messages) if messages.keys is None else messages.keys
        largest += 0 if messages.keys is None else max(len(key or b"") for key in keys)
        return MessageColumns(keys, times, headers, largest)

    def get_key_and_time(self, i: int) -> tuple[str | bytes | None, float | None]:
        message = self._message_of(i)
        moment = message.timestamp / 1000
        key: str | bytes | None = message.key
        with contextlib.suppress(UnicodeDecodeError):  # as bytes then
            key = key.decode() if isinstance(key, bytes) else key
        return key, None if moment < 0 else moment


@dataclass
class OpenMessage:
    """A message with many rows, which are read in parts."""

    message: Messages
    """The message alone."""
    rows: Table
    columns: list[Any]
    """What predictions copy of the rows, as `TableCodec.decode_rows_with_columns` returns it."""
    n_read: int
    """Number of rows that were returned."""

    @property
    def place(self) -> tuple[int, int]:
        """The partition and the offset."""
        return self.message[0][:2]

    def take(self, source: MessageSource, most: int) -> MessageChunk:
        """Return the next rows, up to ``most``."""
        first, end = self.n_read, min(self.n_read + most, len(self.rows))
        self.n_read, n, y = end, end - first, self.rows.y
        part = replace(self.rows, columns=[values[first:end] for values in self.rows.columns], y=y and y[first:end])
        copies = [[None] * n if column is None else column.slice(first, n).to_pylist() for column in self.columns]
        return MessageChunk(source, self.message, range(first, end), part, copies)


class MessageSource(Source):
    """The rows of messages, by a codec.

    If the codec has many rows a message, one message is open at a time, and its rows are read in parts.
    """

    has_messages = True
    start_can_change = True

    def __init__(self, name: str, topic: str, codec: MessageCodec) -> None:
        self.name: str = name
        self.topic: str = topic
        self.codec: MessageCodec = codec
        self.has_names: bool = codec.has_names
        self._has_tables = isinstance(codec, TableCodec)  # rows a message
        self._open: OpenMessage | None = None
        self._skip: dict[int, tuple[int, int]] = {}  # of a partition: the offset of a message, and rows of it that were learned

    def place_of(self, message: TopicMessage) -> str:
        """Return where a message is, in words."""
        return f"{self.name}: message at partition {message.partition}, offset {message.offset}"

    def _take_messages(self, most: int) -> Messages | None:
        """Return the next available messages that are not null; None at the end."""
        raise NotImplementedError

    def read(self, max_rows: int) -> Chunk | None:
        if self._open is None:
            if (messages := self._take_messages(1 if self._has_tables else max_rows)) is None:
                return None
            if not isinstance(self.codec, TableCodec) or not len(messages):
                return MessageChunk(self, messages)
            try:
                self._open = self._opened_message(self.codec, messages)
            except ValueError as error:
                bad = BadRow(self.place_of(messages[0]), messages.values[0], str(error))
                return MessageChunk(self, messages, range(1), [bad], [[None]] * len(self.passthrough_names))
        chunk = self._open.take(self, max_rows)
        if self._open.n_read == len(self._open.rows):
            self._open = None
        return chunk

    def _opened_message(self, codec: TableCodec, messages: Messages) -> OpenMessage:
        message = messages[0]
        value: Any = message.value
        # The message may be gone (compaction, a tombstone): the one that comes in its place is new.
        offset, skip = self._skip.pop(message.partition, (-1, 0))
        skip = skip if offset == message.offset else 0
        rows, columns = codec.decode_rows_with_columns(value, self.passthrough_names)
        if skip > len(rows):
            raise ValueError(f"it has {len(rows)} rows, and the checkpoint has learned {skip} of them")
        return OpenMessage(messages, rows, columns, skip)

    def _check_many(self) -> None:
        """Raise a StreamError where a checkpoint stands within a message of many rows, and those here have one."""
        if not self._has_tables:
            raise StreamError(f"{self.name}: the checkpoint is of messages with many rows: give that codec, {START_AFRESH}")

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns, and the place of each row: partition and offset of its message, and its number within that.

        Raise a StreamError if columns are requested, and the codec has rows without names.
        """
        if names and not self.has_names:
            raise StreamError(
                f"{self.name}: column {names[0]!r} cannot be passed through: codec={self.codec.name} has numbers without names. "
                "Predictions have partition and offset of the message"
            )
        return [*super().request_passthrough(names), "partition", "offset", *["within"] * self._has_tables]
