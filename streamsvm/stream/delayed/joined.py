"""Two streams, of rows and of their labels, as one source: read in the order of their event times."""

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
from streamsvm.stream.delayed.events import (
    MOST_ROW_BYTES,
    ArrivedLabel,
    PendingLabel,
    pack_row,
    parse_event_time,
    unpack_row,
    validate_key,
    validate_label,
)
from streamsvm.stream.endpoints import START_AFRESH, Position, Source, StreamError
from streamsvm.stream.prediction_fields import to_json_columns
from streamsvm.stream.rows import RowError
from streamsvm.stream.tables.chunk import BadRow, Chunk, Message, MessageColumns, Row

#: A message may be this far ahead of this machine's clock, or less where rows wait for a shorter time (`compute_clock_slack`).
FUTURE_SECONDS = 3600.0
#: Clocks of machines that nobody sets right differ by some seconds, which no limit may refuse.
SKEW_SECONDS = 10.0
_PAUSE_SECONDS = 0.01  # between two looks at a stream that is silent
_SIDES = ("rows", "labels")


def compute_clock_slack(max_age: float | None) -> float:
    """Return the seconds by which a message may be ahead of a clock: a quarter of ``max_age``, within 10 s and an hour.

    Whatever such a message makes expire has waited for three quarters of that time.

    >>> compute_clock_slack(1800.0), compute_clock_slack(86_400.0), compute_clock_slack(None), compute_clock_slack(1.0)
    (450.0, 3600.0, 3600.0, 10.0)
    """
    return FUTURE_SECONDS if max_age is None else min(FUTURE_SECONDS, max(SKEW_SECONDS, max_age / 4))


class JoinedSource(Source):
    """The rows of one stream and the labels of another as one source, merged by event time.

    It is the source of a `DelayedLearningLoop`. A row is returned as ``Row(x, PendingLabel(key, time, ...))``, a label as
    ``Row({}, ArrivedLabel(key, time, y))``. Of the next messages of the two streams, the older one comes first, and the row if
    both have the same time. A message that is older than the one before it in its stream counts as if it had that one's time.
    A message that is far ahead of both the one before it and the one after it counts as if it had the latter's time: one wrong
    clock makes nothing expire. Far is more than a quarter of ``max_age`` (10 s to an hour). No endless stream or pipe is read
    ahead. The order therefore depends on the streams alone, and a run that resumes reads the same rows in the same order. No
    more than two messages of each stream are held.

    If one of the streams ends first, the rest of the other follows. Messages appended later are read by the next run, once both
    have ended. If an endless stream (a topic) has nothing more to read, the other continues without it. Which rows come before
    which labels then depends on the moment, and may differ after a restart.

    Keys are texts or whole numbers: 7, 7.0 and "7" are one key. Times are seconds since 1970 or dates in ISO 8601. A `BadRow`
    is returned for a message whose key or time is missing or invalid, or whose time is as far ahead of this machine's clock; for
    a row that contains its label; for a label that is null; and for a row of more than 1 MiB.

    Parameters
    ----------
    rows
        Source of the rows, opened with the name of the label, which the rows must not have.
    labels
        Source of the labels: rows with a label, a key and a time. Other fields are ignored.
    key
        Name of the column or field that joins them. A Kafka message without this field is joined by its own key.
    time
        Name of the column or field with the event time. None uses the time of the messages (of Kafka).
    max_age
        Seconds for which rows wait, as in `DelayedLabels`.

    Raises
    ------
    StreamError
        ``time`` is None, and the messages have no time of their own.

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
        self._key, self._time, self._ahead = key, time, compute_clock_slack(max_age)
        self.name: str = f"{rows.name} with labels from {labels.name}"
        self.has_messages: bool = True
        self.may_block: bool = any(source.may_block for source in self._sources)
        self.is_endless: bool = any(source.is_endless for source in self._sources)
        self.start_can_change: bool = any(source.start_can_change for source in self._sources)
        for source in self._sources:
            if source.weight is not None:
                raise StreamError(f"{source.name}: rows that wait for their labels have no weights: leave the weight out")
            if time is None and not source.has_messages:
                raise StreamError(f"{source.name}: its rows have no event time of their own. Name the column: time=NAME")
            source.prepare_for_join()
        self._held: list[deque[BufferedMessage]] = [deque(), deque()]  # of each stream, the messages that were read ahead
        self._times = [-math.inf, -math.inf]  # of each stream, that of the message that was returned last
        self._ended = [False, False]
        self._looks = [0.0, 0.0]  # when a silent stream is asked again
        self._keep: list[str] | None = None  # what is copied of rows; None: nothing
        self._stopping = threading.Event()

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns of rows, as `Source.request_passthrough`; of a label, each is None."""
        self._keep = self._sources[0].request_passthrough(names)
        return self._keep

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        """The columns of the rows."""
        return self._sources[0].columns

    @property
    def position(self) -> Position:
        """The positions of both streams, and the messages that were read ahead."""
        rows, labels = (source.position for source in self._sources)
        return ({"table": rows["table"]} if "table" in rows else {}) | {
            "label": labels.get("label"),
            "key": self._key,
            "time": self._time,
            "rows": dict(rows),
            "labels": dict(labels),
            "times": list(map(finite_or_none, self._times)),
            "ended": list(self._ended),
            "read_ahead": [[message.saved for message in held] for held in self._held],
        }

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`; another key or time is an error, too."""
        if {"key", "time", "rows", "labels", "times", "ended", "read_ahead"} - position.keys():
            raise StreamError(
                f"{self.name}: the checkpoint was learned without labels from another stream: leave --labels out, {START_AFRESH}"
            )
        for name, now in (("key", self._key), ("time", self._time)):
            if position[name] != now:
                raise StreamError(
                    f"{self.name}: the checkpoint was learned with {name}={short_repr(position[name])}, not {now!r}. "
                    f"Ask for the same, {START_AFRESH}"
                )
        try:
            places = [validate_mapping(name, position[name]) for name in _SIDES]
            ended = [bool(position["ended"][side]) for side in (0, 1)]
            times = [-math.inf if (moment := position["times"][side]) is None else parse_event_time(moment) for side in (0, 1)]
            held = [deque(BufferedMessage.load(side, message) for message in position["read_ahead"][side]) for side in (0, 1)]
        except (LookupError, TypeError, ValueError, AttributeError) as error:
            text = f"{self.name}: the position of the checkpoint is corrupt ({error}): give another folder"
            raise StreamError(text) from None
        for source, place in zip(self._sources, places, strict=True):
            source.seek(place)
        self._times, self._held = times, held
        # Once both had ended, a new pass reads what has come since.
        in_a_pass = not all(ended) or any(held)
        for side, source in enumerate(self._sources):
            self._ended[side] = in_a_pass and ended[side] and not source.is_endless

    def read(self, max_rows: int) -> Chunk | None:  # noqa: ARG002
        """Return the next row or label of either stream; none if both have nothing more for the moment, None at the end."""
        for side in (0, 1):
            if (chunk := self._look_ahead(side)) is not None:
                return chunk
        waiting = [(held[0].time, side) for side, held in enumerate(self._held) if held]
        if self._stopping.is_set() or (not waiting and all(self._ended)):
            return None
        if not waiting:
            time.sleep(_PAUSE_SECONDS)
            return Chunk([], str)
        moment, side = min(waiting)
        self._times[side] = moment
        return self._held[side].popleft().as_chunk()

    def _look_ahead(self, side: int) -> Chunk | None:
        """Read messages of a stream until its next one is known; return a chunk without rows, or with one that cannot be used."""
        source = self._sources[side]
        while not self._ended[side] and not self._stopping.is_set() and self._is_next_needed(side):
            if self._looks[side] and time.monotonic() < self._looks[side]:
                return None
            chunk = source.read(1)
            self._looks[side] = 0.0
            if chunk is None:
                self._ended[side] = not self._stopping.is_set()
            elif not len(chunk) and source.is_endless:
                self._looks[side] = time.monotonic() + _PAUSE_SECONDS
            elif not len(chunk) or isinstance(row := chunk.row(0), BadRow):
                return chunk
            else:
                try:
                    new = self._keyed_row(side, chunk, *row)
                except ValueError as error:
                    place, raw = chunk.place(0), chunk.raw(0)
                    copies = [[None]] * len(self._keep or ())
                    return Chunk([BadRow(place, raw, str(error))], chunk.place, chunk.raw, passthrough_columns=copies)
                held = self._held[side]
                if held and held[0].time > new.time + self._ahead:
                    held[0] = held[0].with_time(max(new.time, self._times[side]))
                held.append(new.with_time(max(new.time, held[0].time if held else self._times[side])))
        return None

    def _is_next_needed(self, side: int) -> bool:
        """Whether another message must be read: none is held, or one that is far ahead, about which the next one decides."""
        held, source = self._held[side], self._sources[side]
        if len(held) != 1:
            return not held
        return not (source.may_block or source.is_endless) and held[0].time > self._times[side] + self._ahead

    def _keyed_row(self, side: int, chunk: Chunk, x: Any, y: Any) -> BufferedMessage:
        if not isinstance(x, Mapping):
            raise RowError("malformed", f"a row must be a mapping of names to values, not {short_repr(x)}")
        if side == 0 and y is not None:
            raise RowError("label", "the row has its label inside, and labels come from another stream: leave --labels out")
        raw = chunk.raw(0)
        if raw is not None and len(raw) > MOST_ROW_BYTES:
            raise RowError("too long", f"the row has {len(raw):,} bytes; one that waits may have {MOST_ROW_BYTES:,}")
        x = dict(x)
        copies: list[Any] = []
        messages = None
        if self._keep is not None and side == 0:
            copies = [values[0] for values in to_json_columns(self._keep, chunk.passthrough_columns(0, 1))]
            messages = chunk.messages(0, 1)
        message_key, message_time = chunk.get_key_and_time(0)
        own_key = x.pop(self._key, None)
        key = validate_key(message_key if own_key is None else own_key)
        moment = parse_event_time(message_time if self._time is None else x.pop(self._time, None), time.time() + self._ahead)
        if side == 1:
            copies = [None] * len(self._keep or ())
            return BufferedMessage({}, ArrivedLabel(key, moment, validate_label(y)), chunk.place(0), raw, copies, None)
        message = None if messages is None else messages[0]
        return BufferedMessage(x, PendingLabel(key, moment, pack_row(x)), chunk.place(0), raw, copies, message)

    def lag(self) -> dict[Any, int] | None:
        """Return how many messages are waiting to be read, by stream and partition; None if the streams do not tell."""
        lags: dict[Any, int] = {}
        for name, source in zip(_SIDES, self._sources, strict=True):
            if (lag := source.lag()) is None:
                return None
            lags |= {f"{name} {partition}": count for partition, count in lag.items()}
        return lags

    def on_checkpoint(self) -> None:
        """Tell both streams that a checkpoint holds the position."""
        for source in self._sources:
            source.on_checkpoint()

    def reads_from(self, output: object) -> bool:
        """Return whether what is written there would be read as rows or labels."""
        return any(source.reads_from(output) for source in self._sources)

    def stop(self) -> None:
        """End a wait for messages of either stream."""
        self._stopping.set()
        for source in self._sources:
            source.stop()

    def close(self) -> None:
        """Close both streams."""
        for source in self._sources:
            source.close()


@dataclass(frozen=True, slots=True)
class BufferedMessage:
    """A message that was read ahead."""

    x: dict[Any, Any]
    y: PendingLabel | ArrivedLabel
    place: str
    raw: bytes | None
    copies: list[Any]
    """The values that a prediction gets of the row."""
    message: Message | None

    @property
    def time(self) -> float:
        """The event time."""
        return self.y.time

    def with_time(self, moment: float) -> BufferedMessage:
        """Return the message with another event time."""
        return self if moment == self.time else replace(self, y=self.y._replace(time=moment))

    def as_chunk(self) -> Chunk:
        """Return a chunk of the one row."""
        message, messages = self.message, None
        if message is not None:
            messages = MessageColumns([message.key], [message.timestamp], [message.headers], message.size)
        copies = [[value] for value in self.copies]
        return Chunk(
            [Row(self.x, self.y)], lambda _: self.place, lambda _: self.raw, passthrough_columns=copies, messages=messages
        )

    @property
    def saved(self) -> dict[str, Any]:
        """The message as a checkpoint holds it: bytes are texts of as many characters."""
        key, moment, content = self.y if isinstance(self.y, ArrivedLabel) else (self.y.key, self.y.time, self.y.packed)
        message = None
        if self.message is not None:
            headers = [[name, value.decode("latin-1")] for name, value in self.message.headers]
            message = [_as_text(self.message.key), self.message.timestamp, headers]
        where = {"place": self.place, "raw": _as_text(self.raw), "copies": self.copies, "message": message}
        return {"key": key, "time": moment, "content": content} | where

    @classmethod
    def load(cls, side: int, saved: Mapping[str, Any]) -> BufferedMessage:
        """Return the message that a checkpoint holds of one of the streams; raise an error if it is invalid."""
        key, moment, message = validate_key(saved["key"]), parse_event_time(saved["time"]), None
        if saved["message"] is not None:
            message_key, timestamp, headers = saved["message"]
            headers = [(name, value.encode("latin-1")) for name, value in headers]
            message = Message(_as_bytes(message_key), timestamp, headers)
        where = str(saved["place"]), _as_bytes(saved["raw"]), list(saved["copies"]), message
        if side == 1:
            return cls({}, ArrivedLabel(key, moment, validate_label(saved["content"])), *where)
        return cls(unpack_row(saved["content"]), PendingLabel(key, moment, saved["content"]), *where)


def _as_text(data: bytes | None) -> str | None:
    return None if data is None else data.decode("latin-1")


def _as_bytes(text: str | None) -> bytes | None:
    return None if text is None else text.encode("latin-1")
