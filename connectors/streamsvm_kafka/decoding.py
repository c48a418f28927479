"""Decodes the messages of a topic to chunks of rows, for the sources of a topic and of a partition."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamsvm.stream.delayed.joined import MAX_SLACK_SECONDS
from streamsvm.stream.endpoints import KEEP_MODEL, Source, StreamError
from streamsvm.stream.tables.chunk import BadRow, Chunk, Message, MessageColumns, Row, Table
from streamsvm.stream.tables.column_kinds import MESSAGE_COLUMN
from streamsvm_kafka.clients.messages import Messages, TopicMessage
from streamsvm_kafka.codecs import MessageCodec, TableCodec

#: Maximum size of the headers ``source-...`` of a prediction, without the name of the topic.
_SOURCE_HEADERS_BYTES = 150
#: Headers (in lower case) that name the format of a value. They are not copied to a prediction, which is JSON.
_FORMAT_HEADERS = frozenset(("content-type", "contenttype", "content_type", "codec"))


class MessageChunk(Chunk):
    """A chunk with one row for each of several messages, or with some of the many rows of a single message.

    In the latter case, ``messages`` repeat it for each row, ``rows`` are the decoded rows, ``within`` their numbers within the
    message, and ``copies`` their passthrough columns.
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
        self._decoded: dict[int, tuple[Row | BadRow, list[Any]]] = {}  # rows so far, with their passthrough columns

    def __len__(self) -> int:
        return len(self._messages)

    def read_row(self, i: int) -> Row | BadRow:
        return self._decode_message(i)[0] if self._within is None else super().read_row(i)

    def _decode_message(self, i: int) -> tuple[Row | BadRow, list[Any]]:
        """Decode message ``i`` of this chunk of messages with one row each. Return the row, or a `BadRow` with the reason if the
        message is invalid, and a list of the values of the fields that are copied into predictions.
        """
        if (decoded := self._decoded.get(i)) is not None:
            return decoded
        names = self._source.passthrough_names
        value: Any = self._messages.values[i]
        try:
            decoded = self._source.codec.decode_with_fields(value, names)
            if names or self._source.message_columns:
                decoded = self._source.add_message_parts(*decoded, self._messages[i])
        except ValueError as error:
            decoded = BadRow(self.place(i), value, str(error)), [None] * len(names)
        self._decoded[i] = decoded
        return decoded

    def parse_table(self, features: Sequence[Hashable]) -> Table | None:
        table = self._source.codec.decode_batch(*self._messages.joined_values, features)
        if table is None or not {*table.names}.isdisjoint(self._source.message_columns):
            return None  # only `read_row` keeps the value of a field with this name
        return self._source.add_message_columns(table, self._messages)

    def place(self, i: int) -> str:
        row = "" if self._within is None else f", row {self._within[i]:,} of it"
        return f"{self._source.describe_place(self._messages[i])}{row}"

    def raw(self, i: int) -> bytes | None:
        return self._messages.values[i] if self._within is None else None

    def passthrough_columns(self, start: int, stop: int) -> list[Sequence[Any]]:
        messages, names = self._messages[start:stop], self._source.passthrough_names
        origin: list[Sequence[Any]] = [messages.partition_list, messages.offsets.tolist()]
        if self._within is not None:
            return [*super().passthrough_columns(start, stop), *origin, self._within[start:stop]]
        rows = [self._decode_message(i)[1] for i in range(start, stop)] if names else []
        return [*([row[j] for row in rows] for j in range(len(names))), *origin]

    def messages(self, start: int, stop: int) -> MessageColumns:
        """Return the keys, timestamps and headers for Kafka messages with predictions of this chunk's rows ``start`` to before
        ``stop``. They are copied from the messages that contain these rows.

        Two things are left out: headers that name the format of the value, because a prediction is JSON; and a timestamp more
        than an hour ahead, because a broker may refuse it. Three headers are added that identify the message:
        ``source-topic``, ``source-partition`` and ``source-offset``.
        """
        messages, latest_time = self._messages[start:stop], 1000 * (time.time() + MAX_SLACK_SECONDS)
        times = [timestamp if 0 <= timestamp <= latest_time else None for timestamp in messages.timestamps.tolist()]
        origins = zip(messages.partition_list, messages.offsets.tolist(), strict=True)
        topic = ("source-topic", self._source.topic.encode())
        headers = [[topic, ("source-partition", b"%d" % p), ("source-offset", b"%d" % offset)] for p, offset in origins]
        max_bytes = len(self._source.topic) + _SOURCE_HEADERS_BYTES
        if messages.headers is not None:
            copied = [
                [(name, value or b"") for name, value in pairs if name.lower() not in _FORMAT_HEADERS]
                for pairs in messages.headers
            ]
            headers = [[*pairs, *added] for pairs, added in zip(copied, headers, strict=True)]
            max_bytes += max(Message(None, None, pairs).size for pairs in copied)
        keys: list[bytes | None] = [None] * len(messages) if messages.keys is None else messages.keys
        max_bytes += 0 if messages.keys is None else max(len(key or b"") for key in keys)
        return MessageColumns(keys, times, headers, max_bytes)

    def get_key_and_time(self, i: int) -> tuple[str | bytes | None, float | None]:
        message = self._messages[i]
        key: str | bytes | None = message.key
        with contextlib.suppress(UnicodeDecodeError):  # the key stays bytes
            key = key.decode() if isinstance(key, bytes) else key
        return key, self._source.read_part("timestamp", message)


@dataclass
class PartlyReadMessage:
    """A decoded message with many rows, which are read in several chunks."""

    message: Messages
    """The message, as a sequence of length 1."""
    rows: Table
    columns: list[Any]
    """The passthrough columns of the rows, as `TableCodec.decode_rows_with_columns` returns them."""
    n_read: int
    """Number of rows that were read."""

    @property
    def partition_and_offset(self) -> tuple[int, int]:
        """The partition and the offset of this Kafka message, which identify it in its topic."""
        return self.message[0][:2]

    def read_chunk(self, source: MessageSource, max_rows: int) -> MessageChunk:
        """Return a chunk of the next rows of this message, at most ``max_rows``, and count them as read. ``source`` is the stream
        that the chunk belongs to.
        """
        start, stop = self.n_read, min(self.n_read + max_rows, len(self.rows))
        self.n_read, n, y = stop, stop - start, self.rows.y
        part = replace(self.rows, columns=[values[start:stop] for values in self.rows.columns], y=y and y[start:stop])
        copies = [
            [source.read_part(name, self.message[0])] * n if column is None else column.slice(start, n).to_pylist()
            for name, column in zip(source.passthrough_names, self.columns, strict=True)
        ]
        return MessageChunk(source, self.message.repeat(n), range(start, stop), part, copies)


class MessageSource(Source):
    """Base of sources whose rows are decoded from messages by a codec.

    If messages have many rows, one message at a time is decoded, and its rows are read in several chunks.
    """

    has_messages = True
    start_can_change = True
    event_time: float | None = None

    def __init__(self, name: str, topic: str, codec: MessageCodec) -> None:
        self.name: str = name
        self.topic: str = topic
        self.codec: MessageCodec = codec
        self.has_names: bool = codec.has_names
        self._has_tables = isinstance(codec, TableCodec)  # many rows in each message
        self._partly_read: PartlyReadMessage | None = None
        self.set_message_columns(())
        # By partition: the offset of the message within which a checkpoint was written, and the number of its learned rows.
        self._rows_to_skip: dict[int, tuple[int, int]] = {}

    def skip_columns(self, names: Sequence[str]) -> None:
        self.codec.dropped_fields = frozenset(names)

    def _corrupt_position_error(self, details: str) -> StreamError:
        """Return the StreamError for an invalid position in a checkpoint; the text ``details`` follows after "the checkpoint is
        corrupt".
        """
        return StreamError(f"{self.name}: the checkpoint is corrupt{details}. Give another, {KEEP_MODEL}")

    def set_message_columns(self, names: Any) -> None:
        """Make parts of each message columns of its row: its ``key``, its ``timestamp`` or a ``header.NAME``, also with
        ``message.`` in front. Raise a StreamError if ``names`` are not a list of these, or the rows are numbers without names.
        """
        self.message_columns: tuple[str, ...] = tuple(map(str, names if isinstance(names, list | tuple) else [names]))
        self._saved_columns = {"message_columns": [*self.message_columns]} if self.message_columns else {}
        for name in self.message_columns:
            if MESSAGE_COLUMN.fullmatch(name) is None or not self.has_names:
                raise StreamError(f"{self.name}: {name!r} is not key, timestamp or header.NAME of messages with named fields")

    def read_part(self, name: str, message: TopicMessage) -> Any:
        """Return the part of a Kafka message that the column ``name`` stands for: its key or a header as text, or its timestamp
        in seconds since 1970. None if the message lacks it, or the column is another one.
        """
        part, header = match.groups() if (match := MESSAGE_COLUMN.fullmatch(name)) else (None, None)
        if part == "timestamp":
            return None if message.timestamp < 0 else message.timestamp / 1000
        value = message.key if part == "key" else dict(message.headers).get(header or "")
        return None if part is None or value is None else value.decode(errors="backslashreplace")

    def add_message_parts(self, row: Row, copies: list[Any], message: TopicMessage) -> tuple[Row, list[Any]]:
        """Return a row with the columns that are parts of its Kafka message, and ``copies``, the values of its passthrough
        columns, with these parts. A field of the row with the same name has precedence.
        """
        parts = {name: self.read_part(name, message) for name in self.message_columns if name not in row.x}
        row = row._replace(x={**row.x, **{name: part for name, part in parts.items() if part is not None}})
        pairs = zip(self.passthrough_names, copies, strict=True)
        return row, [self.read_part(name, message) if copy is None else copy for name, copy in pairs]

    def add_message_columns(self, table: Table, messages: Messages) -> Table:
        """Return a table of rows with the columns that are parts of their Kafka ``messages``, one for each row. A column of the
        table with the same name has precedence.
        """
        for name in self.message_columns:
            values = [self.read_part(name, message) for message in messages]
            if name not in table.names and any(value is not None for value in values):
                table = replace(table, names=(*table.names, name), columns=[*table.columns, values])
        return table

    def describe_place(self, message: TopicMessage) -> str:
        """Return a text with the stream's name, and the partition and offset of a message, for error messages."""
        return f"{self.name}: message at partition {message.partition}, offset {message.offset}"

    def _next_messages(self, max_messages: int) -> Messages | None:
        """Return up to ``max_messages`` of the next Kafka messages to decode; messages with null values are left out. The result
        is empty if no message has arrived yet, and None at the end of the stream.
        """
        raise NotImplementedError

    def read(self, max_rows: int) -> Chunk | None:
        if self._partly_read is None:
            if (messages := self._next_messages(1 if self._has_tables else max_rows)) is None:
                return None
            if len(messages) and (newest := int(messages.timestamps.max())) >= 0:  # negative if no message has a time
                self.event_time = max(self.event_time or 0.0, newest / 1000)
            if not isinstance(self.codec, TableCodec) or not len(messages):
                return MessageChunk(self, messages)
            try:
                self._partly_read = self._decode_table(self.codec, messages)
            except ValueError as error:
                bad = BadRow(self.describe_place(messages[0]), messages.values[0], str(error))
                return MessageChunk(self, messages, range(1), [bad], [[None]] * len(self.passthrough_names))
        chunk = self._partly_read.read_chunk(self, max_rows)
        if self._partly_read.n_read == len(self._partly_read.rows):
            self._partly_read = None
        return chunk

    def _decode_table(self, codec: TableCodec, messages: Messages) -> PartlyReadMessage:
        """Decode a Kafka message that contains many rows, the only one in ``messages``. Return an object from which its rows are
        read; it skips rows that were already learned before the checkpoint. Raise a ValueError if the message is invalid.
        """
        message = messages[0]
        value: Any = message.value
        # Compaction may have removed the message of the checkpoint: then this is a later one, and no row of it was learned.
        offset, n_learned = self._rows_to_skip.pop(message.partition, (-1, 0))
        n_learned = n_learned if offset == message.offset else 0
        rows, columns = codec.decode_rows_with_columns(value, self.passthrough_names)
        rows = self.add_message_columns(rows, messages.repeat(len(rows)))
        if n_learned > len(rows):
            raise ValueError(f"it has {len(rows)} rows, and the checkpoint has learned {n_learned} of them")
        return PartlyReadMessage(messages, rows, columns, n_learned)

    def _check_has_tables(self) -> None:
        """Raise a StreamError if messages of this source have one row each. It is called if the source continues at a checkpoint
        that was written in the middle of a message with many rows.
        """
        if not self._has_tables:
            raise StreamError(f"{self.name}: the checkpoint is of messages with many rows: give that codec, {KEEP_MODEL}")

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Choose the columns ``names`` of the rows to be copied into predictions. The partition and offset of the message are
        also copied, and the row's number in a message of many rows. Return the names of all copied fields.

        Raise a StreamError if columns are requested from a codec without names.
        """
        return [*super().request_passthrough(names), "partition", "offset", *["within"] * self._has_tables]
