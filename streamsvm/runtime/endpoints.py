"""The learning loop's view of a stream: a source of labelled rows with a resumable position, and a sink of predictions."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final, runtime_checkable

import numpy as np

__all__ = [
    "START_AFRESH",
    "BadRow",
    "BatchSource",
    "DeadLetter",
    "JoinedPrediction",
    "Position",
    "Prediction",
    "Record",
    "Row",
    "Rows",
    "Sink",
    "Source",
    "StreamError",
    "VersionedPrediction",
]

#: Where a source or sink goes on, as plain JSON (dicts, lists, strings, numbers). Only the source itself reads inside.
Position = Mapping[str, Any]

#: How messages about a checkpoint that does not fit end.
START_AFRESH = "or give another checkpoint folder to start afresh"


class StreamError(Exception):
    """A stream cannot be read, written or resumed. The message names the stream, the place and the remedy."""


class Row(NamedTuple):
    """One row of a stream: its features, and its label or None if the stream has none for it."""

    x: dict[Hashable, Any]
    y: Any = None


@final
@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table: numbers of the same features.

    Examples
    --------
    >>> rows = Rows(("age", "height"), np.array([[31, 1.5], [40, np.nan]], np.float32), [True, None])
    >>> rows.row(1)
    Row(x={'age': 40.0}, y=None)
    """

    names: tuple[Hashable, ...]
    """Of the columns."""
    X: np.ndarray
    """float32 [n, columns]; NaN: the row does not have the feature."""
    y: Sequence[Any] | None
    """n labels, None: the row has none; None: no row has one."""

    def row(self, i: int) -> Row:
        """The row with the number ``i``."""
        values = self.X[i].tolist()
        x = {name: value for name, value in zip(self.names, values, strict=True) if not math.isnan(value)}
        return Row(x, None if self.y is None else self.y[i])

    def __len__(self) -> int:
        return len(self.X)

    def part(self, first: int, end: int) -> Rows:
        """The rows from ``first`` to ``end``."""
        return Rows(self.names, self.X[first:end], None if self.y is None else self.y[first:end])


@final
class BadRow(NamedTuple):
    """A row that its source cannot read, while it can read the next."""

    place: str
    """The stream, and the line, offset or number there."""
    raw: bytes | None
    """Its bytes; None if the stream has none."""
    reason: str


class DeadLetter(NamedTuple):
    """A row that was refused, as it is written for somebody to look at."""

    row: int
    """Rows of the source before this one."""
    place: str
    kind: str
    """A short name for reasons alike, by which refused rows are counted."""
    reason: str
    time: str
    """UTC, as in ISO 8601."""
    bytes: int
    """The length of the row."""
    raw: str
    """The row, or its first 128 KiB."""
    encoding: str
    """Of ``raw``: ``"utf-8"``, ``"base64"``, or ``"repr"`` of a row of Python objects."""


class Prediction(NamedTuple):
    """The model's prediction of a row before the row is learned."""

    row: int
    """Rows of the source before this one."""
    y_pred: Any
    """None if the model does not predict yet."""
    y_true: Any
    probability: float | None
    """Of ``y_pred``; None if the model gives none."""


class VersionedPrediction(NamedTuple):
    """A prediction of a loop whose model is replaced while it runs."""

    row: int
    """As those of `Prediction`."""
    y_pred: Any
    y_true: Any
    probability: float | None
    model: int
    """The version of the model: rows that it had seen."""


class JoinedPrediction(NamedTuple):
    """A prediction of a row whose label comes from another stream, written when the row comes."""

    row: int
    """Rows and labels of both streams before this one."""
    y_pred: Any
    """As those of `Prediction`."""
    y_true: Any
    """None, unless the label came before its row."""
    probability: float | None
    key: str
    """By which the label will find the row."""


#: What goes into a sink.
Record = Prediction | VersionedPrediction | JoinedPrediction | DeadLetter


@runtime_checkable
class Source(Protocol):
    """A stream of rows that can be resumed.

    A stream is read once: iterating anew continues the last iteration. `position` is always that *after* the row that was given
    last: a process that saves it together with the model that learned that row, and later hands it to `seek` of
    a new source, sees every row exactly once.

    A row that cannot be read, where the next one can, is given as a `BadRow`; a `StreamError` is for a stream that cannot go on.
    A source may have ``raw``, the bytes of the row that was given last: they are written as a dead letter if the row is refused;
    and ``saved()``, which is called when a checkpoint holds its position.
    """

    @property
    def name(self) -> str:
        """The stream in messages (a path, a URL)."""

    @property
    def place(self) -> str:
        """The row that was given last in messages: the stream, and the line, offset or number there."""

    @property
    def position(self) -> Position:
        """Where the next row is."""

    def seek(self, position: Position) -> None:
        """Continue at ``position``; only before the first row was read. Never skips rows silently.

        Raises
        ------
        StreamError
            The position is of another stream, or the stream no longer holds what follows it.
        RuntimeError
            Rows were read already.
        """

    def __iter__(self) -> Iterator[Row | BadRow]: ...

    def stop(self) -> None:
        """End a wait for rows that have not come yet; rows that have may still be given.

        Called from a signal handler or another thread.
        """

    def close(self) -> None:
        """Release the file or connection."""


class BatchSource(Source, Protocol):
    """A source that gives the rows that are at hand together, which takes less time than one by one."""

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows, at least one and up to ``most``; none if none came within a fraction of a second.

        None: the stream has ended, or was stopped. `position` is after these rows then, and iterating goes on there.
        """

    def place_of(self, i: int) -> str:
        """A row of those that were taken last in messages, as `place`."""

    def raw_of(self, i: int) -> bytes | None:
        """The bytes of a row of those that were taken last; None if there are none."""


@runtime_checkable
class Sink(Protocol):
    """Takes predictions, or dead letters.

    A sink may have ``write_many(kind, columns)``, which takes less time than `write` for each of ``map(kind, *columns)``.
    """

    @property
    def name(self) -> str:
        """The sink in messages (a path, a URL)."""

    def write(self, record: Record) -> None:
        """Write a prediction or a dead letter; StreamError if it cannot be written."""

    def flush(self) -> Position:
        """Make all that was written durable and return the position to be saved in a checkpoint; StreamError if that fails."""

    def seek(self, position: Position) -> None:
        """Drop what was written after ``position``, if the medium can (a file can, a topic cannot).

        Raises
        ------
        StreamError
            The position is of another sink, or what was written before it is gone or changed.
        """

    def close(self) -> None:
        """Release the file or connection."""
