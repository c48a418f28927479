"""A source that merges a stream of rows and a stream of their labels by event time."""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from streamsvm.core.checks import finite_or_none, validate_mapping
from streamsvm.files.messages import short_repr
from streamsvm.stream.continuation import seek_or_begin
from streamsvm.stream.delayed.events import (
    MAX_ROW_BYTES,
    ArrivedLabel,
    PendingLabel,
    pack_row,
    parse_event_time,
    unpack_row,
    validate_key,
    validate_label,
)
from streamsvm.stream.endpoints import KEEP_MODEL, ForeignPositionError, Position, Source, StreamError
from streamsvm.stream.prediction_fields import to_json_columns
from streamsvm.stream.rows import RowError
from streamsvm.stream.tables.chunk import BadRow, Chunk, Message, MessageColumns, Row

#: Upper limit of `compute_clock_slack`: messages further ahead of this machine's clock are invalid.
MAX_SLACK_SECONDS = 3600.0
#: Lower limit of `compute_clock_slack`: unsynchronised clocks may differ by some seconds.
MIN_SLACK_SECONDS = 10.0
_POLL_INTERVAL_SECONDS = 0.01  # pause before a stream without new messages is read again
_SIDES = ("rows", "labels")


def compute_clock_slack(max_age: float | None) -> float:
    """Return how far, in seconds, the event time of a message may jump ahead before its clock counts as wrong: a quarter of
    ``max_age``, but at least 10 s and at most an hour. ``max_age`` is how many seconds rows and labels wait for each other; None:
    without limit.

    So entries that are expired by a wrong clock have waited for at least three quarters of ``max_age``.

    >>> compute_clock_slack(1800.0), compute_clock_slack(86_400.0), compute_clock_slack(None), compute_clock_slack(1.0)
    (450.0, 3600.0, 3600.0, 10.0)
    """
    return MAX_SLACK_SECONDS if max_age is None else min(MAX_SLACK_SECONDS, max(MIN_SLACK_SECONDS, max_age / 4))


class JoinedSource(Source):
    """A source that merges the rows of one stream and the labels of another by event time.

    It is the source of a `DelayedLearningLoop`. A row is returned as ``Row(x, PendingLabel(key, time, ...))``, a label as
    ``Row({}, ArrivedLabel(key, time, y))``. Of the next messages of the two streams, the older one comes first, and the row if
    both have the same time. A message that is older than its predecessor in the stream gets the predecessor's time. A message
    that is far ahead of both its predecessor and its successor gets the successor's time, so that one wrong clock does not expire
    anything. Far means more than a quarter of ``max_age``, between 10 s and an hour. The order therefore depends only on the
    streams, and a resumed run reads the same messages in the same order. At most two messages of each stream are buffered;
    endless streams and pipes are not read ahead.

    If one of the streams ends first, the rest of the other follows. Messages appended later are read by the next run, once both
    have ended. If an endless stream (a topic) has no more messages, the other continues without it. Which rows come before which
    labels then depends on the moment, and may differ after a restart.

    Keys are texts or integers: 7, 7.0 and "7" are the same key. Times are seconds since 1970 or dates in ISO 8601. A `BadRow` is
    returned for a message whose key or time is missing or invalid, or whose time is far ahead of this machine's clock; for a row
    that contains its label; for a label that is null; and for a row of more than 1 MiB.

    Parameters
    ----------
    rows
        Source of the rows, opened with the name of the label. The rows must not contain it.
    labels
        Source of the labels: rows with a label, a key and a time. Other fields are ignored.
    key
        Name of the column or field that joins rows and labels. A Kafka message without this field is joined by its own key.
    time
        Name of the column or field with the event time. None uses the timestamps of Kafka messages.
    max_age
        Maximum waiting time of rows in seconds, as in `DelayedLabels`.

    Raises
    ------
    StreamError
        ``time`` is None, and the messages have no timestamps.

    Examples
    --------
    >>> from streamsvm.stream import IterableSource
    >>> rows = IterableSource([({"id": 1, "t": 0.0, "a": 1.5}, None), ({"id": 2, "t": 5.0, "a": 2.5}, None)], "rows")
    >>> labels = IterableSource([({"id": 1, "t": 4.0}, True)], "labels")
    >>> for x, y in JoinedSource(rows, labels, key="id", time="t"):
    ...     print(x, y[:2])
    {'a': 1.5} ('1', 0.0)
    {} ('1', 4.0)
    {'a': 2.5} ('2', 5.0)
    """

    def __init__(
        self, rows: Source, labels: Source, *, key: str, time: str | None = None, max_age: float | None = 86_400.0
    ) -> None:
        self._sources = rows, labels
        self._key, self._time, self._slack = key, time, compute_clock_slack(max_age)
        self.name: str = f"{rows.name} with labels from {labels.name}"
        self.has_messages: bool = True
        self.may_block: bool = any(source.may_block for source in self._sources)
        self.is_endless: bool = any(source.is_endless for source in self._sources)
        self.start_can_change: bool = any(source.start_can_change for source in self._sources)
        self.start: str | None = rows.start or labels.start
        for source in self._sources:
            if source.weight is not None:
                raise StreamError(f"{source.name}: rows that wait for their labels have no weights: leave the weight out")
            if time is None and not source.has_messages:
                raise StreamError(f"{source.name}: rows have no event time: name its column, --labels 'STREAM?key=ID&time=AT'")
            source.prepare_for_join()
        # For each stream: messages read ahead, time of the last returned message, whether it has ended, and when to poll again.
        self._buffers: list[deque[BufferedMessage]] = [deque(), deque()]
        self._last_times = [-math.inf, -math.inf]
        self._has_ended = [False, False]
        self._next_polls = [0.0, 0.0]
        self._passthrough_names: list[str] | None = None  # None: nothing is copied into predictions
        self._stopping = threading.Event()

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Request that columns of the rows, given by name, are copied into the predictions. Returns the names of all columns that
        will be copied. Messages with labels have None in these columns.
        """
        self._passthrough_names = self._sources[0].request_passthrough(names)
        return self._passthrough_names

    def skip_columns(self, names: Sequence[str]) -> None:
        """Leave columns of the stream of rows out, but not the key and the event time."""
        self._sources[0].skip_columns([name for name in names if name not in (self._key, self._time)])

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        """Names of the columns of the stream of rows; empty as long as they are unknown, which may be until the first row."""
        return self._sources[0].columns

    @property
    def position(self) -> Position:
        """The current position in the stream of rows and in that of labels, for a checkpoint. It includes the messages that were
        already read, but not yet returned.
        """
        rows, labels = (source.position for source in self._sources)
        return ({"table": rows["table"]} if "table" in rows else {}) | {
            "label": labels.get("label"),
            "key": self._key,
            "time": self._time,
            "rows": dict(rows),
            "labels": dict(labels),
            "times": list(map(finite_or_none, self._last_times)),
            "ended": list(self._has_ended),
            "read_ahead": [[message.saved for message in buffer] for buffer in self._buffers],
        }

    def seek(self, position: Position) -> None:
        """Continue reading both streams at a saved ``position``. Raises StreamError if it was saved with another key or time
        column, or by a source without a stream of labels, or is corrupt.
        """
        if {"key", "time", "rows", "labels", "times", "ended", "read_ahead"} - position.keys():
            raise ForeignPositionError(f"{self.name}: the checkpoint was learned without labels from another stream")
        for name, column in (("key", self._key), ("time", self._time)):
            if position[name] != column:
                text = f"the checkpoint was learned with {name}={short_repr(position[name])}, not {column!r}"
                raise StreamError(f"{self.name}: {text}. Ask for the same, {KEEP_MODEL}")
        try:
            positions = [validate_mapping(name, position[name]) for name in _SIDES]
            has_ended = [bool(position["ended"][side]) for side in (0, 1)]
            times = [-math.inf if (seconds := position["times"][side]) is None else parse_event_time(seconds) for side in (0, 1)]
            buffers = [deque(BufferedMessage.load(side, message) for message in position["read_ahead"][side]) for side in (0, 1)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"{self.name}: the position of the checkpoint is corrupt ({error}). Give another, {KEEP_MODEL}"
            raise StreamError(text) from None
        for source, source_position in zip(self._sources, positions, strict=True):
            seek_or_begin(source, source_position, None)
        self._last_times, self._buffers = times, buffers
        # If both streams had ended, a new pass reads the messages that were appended since.
        is_within_pass = not all(has_ended) or any(buffers)
        for side, source in enumerate(self._sources):
            self._has_ended[side] = is_within_pass and has_ended[side] and not source.is_endless

    def read(self, max_rows: int) -> Chunk | None:  # noqa: ARG002
        """Return a chunk with one message: the next row or the next label, whichever has the earlier event time. Returns an empty
        chunk if no message is available yet, and None when both streams have ended. ``max_rows`` is ignored.
        """
        for side in (0, 1):
            if (chunk := self._read_ahead(side)) is not None:
                return chunk
        candidates = [(buffer[0].time, side) for side, buffer in enumerate(self._buffers) if buffer]
        if self._stopping.is_set() or (not candidates and all(self._has_ended)):
            return None
        if not candidates:
            time.sleep(_POLL_INTERVAL_SECONDS)
            return Chunk([], str)
        event_time, side = min(candidates)
        self._last_times[side] = event_time
        return self._buffers[side].popleft().to_chunk()

    def _read_ahead(self, side: int) -> Chunk | None:
        """Read the next message of the stream of rows (``side`` 0) or of labels (``side`` 1) into its buffer, and also the one
        after it, if the time of the next one is far ahead and may be wrong. Returns None, or else a chunk that `read` must return
        first: an empty one, or one with an unreadable row.
        """
        source = self._sources[side]
        while not self._has_ended[side] and not self._stopping.is_set() and self._is_next_needed(side):
            if self._next_polls[side] and time.monotonic() < self._next_polls[side]:
                return None
            chunk = source.read(1)
            self._next_polls[side] = 0.0
            if chunk is None:
                self._has_ended[side] = not self._stopping.is_set()
            elif not len(chunk) and source.is_endless:
                self._next_polls[side] = time.monotonic() + _POLL_INTERVAL_SECONDS
            elif not len(chunk) or isinstance(row := chunk.row(0), BadRow):
                return chunk
            else:
                try:
                    message = self._parse_message(side, chunk, *row)
                except ValueError as error:
                    place, raw = chunk.place(0), chunk.raw(0)
                    columns = [[None]] * len(self._passthrough_names or ())
                    return Chunk([BadRow.from_error(place, raw, error)], chunk.place, chunk.raw, passthrough_columns=columns)
                buffer = self._buffers[side]
                if buffer and buffer[0].time > message.time + self._slack:
                    buffer[0] = buffer[0].with_time(max(message.time, self._last_times[side]))
                buffer.append(message.with_time(max(message.time, buffer[0].time if buffer else self._last_times[side])))
        return None

    def _is_next_needed(self, side: int) -> bool:
        """Return whether another message of the stream of rows (``side`` 0) or of labels (``side`` 1) must be read now. That is
        so if no message is buffered, or if the time of the only buffered one is so far ahead that its clock may be wrong.
        """
        buffer, source = self._buffers[side], self._sources[side]
        if len(buffer) != 1:
            return not buffer
        return not (source.may_block or source.is_endless) and buffer[0].time > self._last_times[side] + self._slack

    def _parse_message(self, side: int, chunk: Chunk, x: Any, y: Any) -> BufferedMessage:
        """Parse the key and the event time of a message. ``chunk`` has the message as its only row, with the features ``x`` and
        the label ``y``; ``side`` is 0 in the stream of rows, and 1 in that of labels. Raises RowError if the message is invalid.
        """
        if not isinstance(x, Mapping):
            raise RowError("malformed", f"a row must be a mapping of names to values, not {short_repr(x)}")
        if side == 0 and y is not None:
            raise RowError("label", "the row contains its label, and labels come from another stream: leave --labels out")
        raw = chunk.raw(0)
        if raw is not None and len(raw) > MAX_ROW_BYTES:
            raise RowError("too long", f"the row has {len(raw):,} bytes; one that waits may have {MAX_ROW_BYTES:,}")
        x = dict(x)
        passthrough: list[Any] = []
        messages = None
        if self._passthrough_names is not None and side == 0:
            passthrough = [values[0] for values in to_json_columns(self._passthrough_names, chunk.passthrough_columns(0, 1))]
            messages = chunk.messages(0, 1)
        message_key, message_time = chunk.get_key_and_time(0)
        own_key = x.pop(self._key, None)
        key = validate_key(message_key if own_key is None else own_key)
        event_time = parse_event_time(message_time if self._time is None else x.pop(self._time, None), time.time() + self._slack)
        if side == 1:
            passthrough = [None] * len(self._passthrough_names or ())
            label = ArrivedLabel(key, event_time, validate_label(y))
            return BufferedMessage({}, label, chunk.place(0), raw, passthrough, None)
        message = None if messages is None else messages[0]
        return BufferedMessage(x, PendingLabel(key, event_time, pack_row(x)), chunk.place(0), raw, passthrough, message)

    def lag(self) -> dict[Any, int] | None:
        """Return the number of messages that were not read yet, by stream and partition, such as ``"rows 0"``; None if a stream
        does not know it.
        """
        lags: dict[Any, int] = {}
        for name, source in zip(_SIDES, self._sources, strict=True):
            if (lag := source.lag()) is None:
                return None
            lags |= {f"{name} {partition}": count for partition, count in lag.items()}
        return lags

    @property
    def is_connected(self) -> bool:  # type: ignore[override]
        """Whether rows and labels can arrive: False while no broker responds for one of the two streams."""
        return all(source.is_connected for source in self._sources)

    @property
    def event_time(self) -> float | None:  # type: ignore[override]
        """Event time of the newest row or label that was read, in seconds since 1970; None before the first one."""
        return finite_or_none(max(self._last_times))

    def on_checkpoint(self) -> None:
        """Notify the streams of rows and labels that a checkpoint with their position was written."""
        for source in self._sources:
            source.on_checkpoint()

    def reads_from(self, output: object) -> bool:
        """Return whether the stream of rows or that of labels reads the topic or file that ``output`` writes to: a loop would
        then read its own predictions.
        """
        return any(source.reads_from(output) for source in self._sources)

    def stop(self) -> None:
        """End a `read` that waits for messages, and all later ones. May be called by another thread."""
        self._stopping.set()
        for source in self._sources:
            source.stop()

    def close(self) -> None:
        """Close the stream of rows and the stream of labels."""
        for source in self._sources:
            source.close()


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A message that was read ahead of its turn."""

    x: dict[Any, Any]
    y: PendingLabel | ArrivedLabel
    place: str
    raw: bytes | None
    passthrough: list[Any]
    """The values of the row's passthrough columns."""
    message: Message | None
    """The Kafka message, for the message with the prediction."""

    @property
    def time(self) -> float:
        """Event time of this message, in seconds since 1970."""
        return self.y.time

    def with_time(self, event_time: float) -> BufferedMessage:
        """Return this message with another event time, in seconds since 1970."""
        return self if event_time == self.time else replace(self, y=self.y._replace(time=event_time))

    def to_chunk(self) -> Chunk:
        """Return a chunk with this message as its only row."""
        message, messages = self.message, None
        if message is not None:
            messages = MessageColumns([message.key], [message.timestamp], [message.headers], message.size)
        columns = [[value] for value in self.passthrough]
        return Chunk(
            [Row(self.x, self.y)], lambda _: self.place, lambda _: self.raw, passthrough_columns=columns, messages=messages
        )

    @property
    def saved(self) -> dict[str, Any]:
        """Plain values of this message for a checkpoint. Bytes become text (Latin-1)."""
        key, event_time, content = self.y if isinstance(self.y, ArrivedLabel) else (self.y.key, self.y.time, self.y.packed)
        message = None
        if self.message is not None:
            headers = [[name, value.decode("latin-1")] for name, value in self.message.headers]
            message = [_decode(self.message.key), self.message.timestamp, headers]
        origin = {"place": self.place, "raw": _decode(self.raw), "copies": self.passthrough, "message": message}
        return {"key": key, "time": event_time, "content": content} | origin

    @classmethod
    def load(cls, side: int, saved: Mapping[str, Any]) -> BufferedMessage:
        """Return a message from its saved values (those of the property `saved`), read from a checkpoint. ``side`` is 0 for a row
        and 1 for a label. Invalid values raise an error.
        """
        key, event_time, message = validate_key(saved["key"]), parse_event_time(saved["time"]), None
        if saved["message"] is not None:
            message_key, timestamp, headers = saved["message"]
            headers = [(name, value.encode("latin-1")) for name, value in headers]
            message = Message(_encode(message_key), timestamp, headers)
        origin = str(saved["place"]), _encode(saved["raw"]), list(saved["copies"]), message
        if side == 1:
            return cls({}, ArrivedLabel(key, event_time, validate_label(saved["content"])), *origin)
        return cls(unpack_row(saved["content"]), PendingLabel(key, event_time, saved["content"]), *origin)


def _decode(data: bytes | None) -> str | None:
    """Convert bytes to text that JSON can hold, one character for each byte (Latin-1). None stays None."""
    return None if data is None else data.decode("latin-1")


def _encode(text: str | None) -> bytes | None:
    """Convert text from `_decode` back to bytes. None stays None."""
    return None if text is None else text.encode("latin-1")
