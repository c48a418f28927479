"""What a stream is to the learning loop: a source of labelled rows with a resumable position, and a sink of predictions."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

__all__ = ["Position", "Prediction", "Row", "Sink", "Source", "StreamError"]

#: Where a source stands, as plain JSON (dicts, lists, strings, numbers). Only the source itself reads inside.
Position = Mapping[str, Any]


class StreamError(Exception):
    """A stream cannot be read, written or resumed. The message names the stream, the place and the way out."""


class Row(NamedTuple):
    """One row of a stream: its features, and its label or None where the stream has none for it."""

    x: dict[Hashable, Any]
    y: Any = None


class Prediction(NamedTuple):
    """What the model said of a row before it learned it."""

    row: int
    """Rows of the source before this one."""
    y_pred: Any
    y_true: Any
    probability: float | None
    """Of ``y_pred``; None where the model gives none."""


@runtime_checkable
class Source(Protocol):
    """A stream of rows that can be resumed.

    A stream is read once: iterating anew goes on where the last iteration was left. `position` is always that *after* the row
    that was given last: a process which stores it together with what it learned from that row, and later hands it to `seek` of
    a new source, sees every row exactly once.
    """

    @property
    def name(self) -> str:
        """What a person calls the stream (a path, a URL). For messages."""
        ...

    @property
    def place(self) -> str:
        """Where a person finds the row that was given last: the stream, and the line, offset or number there. For messages."""
        ...

    def seek(self, position: Position) -> None:
        """Continue after ``position``; before the first row only.

        Raises
        ------
        StreamError
            The position is of another stream, or the stream no longer holds what follows it. Never skips rows silently.
        """
        ...

    def __iter__(self) -> Iterator[Row]: ...

    @property
    def position(self) -> Position: ...

    def stop(self) -> None:
        """End a wait for rows that are not there yet; rows that are there may still be given.

        Called from a signal handler or another thread.
        """
        ...

    def close(self) -> None: ...


@runtime_checkable
class Sink(Protocol):
    """Where predictions go. `flush` makes all that was written durable; it is called before every checkpoint."""

    @property
    def name(self) -> str: ...

    def write(self, prediction: Prediction) -> None: ...

    def flush(self) -> Position:
        """Make what was written durable and tell where the sink stands (stored in the checkpoint)."""
        ...

    def seek(self, position: Position) -> None:
        """Drop what was written after ``position``, where the medium can (a file can, a topic cannot).

        Raises
        ------
        StreamError
            The position is of another sink, or what was written before it is not there any more.
        """
        ...

    def close(self) -> None: ...
