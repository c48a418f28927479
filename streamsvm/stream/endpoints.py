"""The loops' view of a stream: rows, from a source with a resumable position, and a sink of predictions."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final, overload, runtime_checkable

import numpy as np

#: Where a source or sink goes on, as plain JSON (dicts, lists, strings, numbers). Only the source itself reads inside.
Position = Mapping[str, Any]

#: How messages about a checkpoint that does not fit end.
START_AFRESH = "or give another checkpoint folder to start from scratch"


class StreamError(Exception):
    """A stream cannot be read, written or resumed.

    The message names the stream and the place, and says what to do.
    """


class Row(NamedTuple):
    """One row of a stream: its features, and its label, or None if it has none."""

    x: dict[Hashable, Any]
    y: Any = None


class Weighted(NamedTuple):
    """A label with the weight of its row, in the place of the label."""

    y: Any
    w: float


@final
@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a table of numbers, which all have the same columns.

    Examples
    --------
    >>> rows = Rows(("age", "height"), np.array([[31, 1.5], [40, np.nan]], np.float32), [True, None])
    >>> rows.row(1)
    Row(x={'age': 40.0}, y=None)
    """

    names: tuple[Hashable, ...]
    """Names of the columns."""
    X: np.ndarray
    """The numbers, float32 [n, columns]. NaN means that the row does not have the feature."""
    y: Sequence[Any] | None
    """The n labels, in which None means that the row has none. None if no row has a label."""

    def row(self, i: int) -> Row:
        """Return row number ``i``."""
        values = self.X[i].tolist()
        x = {name: value for name, value in zip(self.names, values, strict=True) if not math.isnan(value)}
        return Row(x, None if self.y is None else self.y[i])

    def __len__(self) -> int:
        return len(self.X)

    def part(self, first: int, end: int) -> Rows:
        """Return the rows from ``first`` to before ``end``."""
        return Rows(self.names, self.X[first:end], None if self.y is None else self.y[first:end])


@final
class BadRow(NamedTuple):
    """A row that its source cannot read, although it can read the next one."""

    place: str
    """The stream, and the line, offset or number of the row in it."""
    raw: bytes | None
    """The bytes of the row; None if the stream has none."""
    reason: str


class DeadLetter(NamedTuple):
    """A row that was refused, as it is written for somebody to look at."""

    row: int
    """Number of rows of the source before this one."""
    place: str
    kind: str
    """Short name for the kind of reason, by which refused rows are counted."""
    reason: str
    time: str
    """Time of the refusal in UTC, in ISO 8601."""
    bytes: int
    """Length of the row in bytes."""
    raw: str
    """The row, or its first 128 KiB."""
    encoding: str
    """Encoding of ``raw``: ``"utf-8"``, ``"base64"``, or ``"repr"`` for a row of Python objects."""


class Prediction(NamedTuple):
    """The model's prediction of a row, made before the row is learned.

    What predictions keep of their rows are further fields, also of the next two kinds of record: ``_asdict()`` has all of them.
    """

    row: int
    """Number of rows of the source before this one."""
    y_pred: Any
    """The prediction; None if the model does not predict yet."""
    y_true: Any
    probability: float | None
    """The probability of ``y_pred``; None if the model gives none."""


class VersionedPrediction(NamedTuple):
    """A prediction of a loop whose model is replaced while it runs."""

    row: int
    """This field and the next three are as in `Prediction`."""
    y_pred: Any
    y_true: Any
    probability: float | None
    model: int
    """Version of the model: the number of rows that it had seen."""


class JoinedPrediction(NamedTuple):
    """A prediction of a row whose label comes from another stream, written when the row comes."""

    row: int
    """Number of rows and labels of both streams before this one."""
    y_pred: Any
    """As in `Prediction`."""
    y_true: Any
    """None, unless the label came before its row."""
    probability: float | None
    key: str
    """The key by which the label will find the row."""


class Message(NamedTuple):
    """What the prediction of a topic's row keeps of the row's message, if it goes to a topic too."""

    key: bytes | None
    """None if the message has none."""
    timestamp: int | None
    """Milliseconds since 1970; None if the message has no time."""
    headers: list[tuple[str, bytes]]

    @property
    def size(self) -> int:
        """Number of bytes of key and headers, with 16 more for each header."""
        return len(self.key or b"") + sum(len(name.encode()) + len(value) + 16 for name, value in self.headers)


@final
@dataclass(frozen=True, slots=True)
class MessageColumns(Sequence[Message]):
    """Key, time and headers that predictions keep of the messages of their rows, in columns."""

    keys: Sequence[bytes | None]
    timestamps: Sequence[int | None]
    headers: Sequence[list[tuple[str, bytes]]]
    largest: int
    """No message has a larger `size`."""

    @classmethod
    def of(cls, messages: Sequence[Message]) -> MessageColumns:
        """Return messages, of which there is at least one, in columns."""
        keys, timestamps, headers = zip(*messages, strict=True)
        return cls(keys, timestamps, headers, max(message.size for message in messages))

    def __len__(self) -> int:
        return len(self.keys)

    @overload
    def __getitem__(self, i: int) -> Message: ...
    @overload
    def __getitem__(self, i: slice) -> MessageColumns: ...
    def __getitem__(self, i: int | slice) -> Message | MessageColumns:
        if isinstance(i, slice):
            return MessageColumns(self.keys[i], self.timestamps[i], self.headers[i], self.largest)
        return Message(self.keys[i], self.timestamps[i], self.headers[i])


#: What goes into a sink.
Record = Prediction | VersionedPrediction | JoinedPrediction | DeadLetter


@runtime_checkable
class Source(Protocol):
    """A stream of rows that can be resumed: the protocol of all sources.

    A stream is read once; a second iteration continues the first one. `position` is always the position *after* the row that
    was given last. A process that saves it together with the model that learned that row, and later passes it to `seek` of a
    new source, sees every row exactly once.

    A row that cannot be read, although the next one can, is given as a `BadRow`. A `StreamError` is for a stream that cannot
    continue. A source may have two more members: ``raw``, the bytes of the row that was given last, which are written as a dead
    letter if the row is refused; and ``saved()``, which is called when a checkpoint holds its position.
    """

    @property
    def name(self) -> str:
        """Name of the stream in messages (a path, a URL)."""

    @property
    def place(self) -> str:
        """The row that was given last, for messages: the stream, and the line, offset or number in it."""

    @property
    def position(self) -> Position:
        """Where the next row is."""

    def seek(self, position: Position) -> None:
        """Continue at ``position``; only before the first row was read. Never skips rows silently.

        Raises
        ------
        StreamError
            The position is of another stream, or the stream no longer holds the rows after it.
        RuntimeError
            Rows were read already.
        """

    def __iter__(self) -> Iterator[Row | BadRow]: ...

    def stop(self) -> None:
        """End a wait for rows that have not come yet. Rows that have come may still be given.

        It can be called from a signal handler or another thread.
        """

    def close(self) -> None:
        """Release the file or connection."""


class BatchSource(Source, Protocol):
    """A source that can give several rows together, which takes less time than one by one."""

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        """Return the next rows, at least one and up to ``most``.

        There are none if no row came within a fraction of a second. None means that the stream has ended or was stopped.
        Afterwards, `position` is after these rows, and an iteration continues there.
        """

    def place_of(self, i: int) -> str:
        """Row number ``i`` of those that were taken last, for messages, as in `place`."""

    def raw_of(self, i: int) -> bytes | None:
        """The bytes of row number ``i`` of those that were taken last; None if there are none."""


@runtime_checkable
class Sink(Protocol):
    """Takes predictions or dead letters: the protocol of all sinks.

    A sink may have ``write_many(kind, columns)``, which takes less time than a `write` for each of ``map(kind, *columns)``. A
    sink with ``takes_messages = True`` finds the `Message` of a topic's row in the attribute ``message`` of its prediction.
    """

    @property
    def name(self) -> str:
        """Name of the sink in messages (a path, a URL)."""

    def write(self, record: Record) -> None:
        """Write a prediction or a dead letter; raise a StreamError if that fails."""

    def flush(self) -> Position:
        """Make all records durable, and return the position to save in a checkpoint.

        Raise a StreamError if that fails.
        """

    def seek(self, position: Position) -> None:
        """Drop the records after ``position``, if the medium can: a file can, a topic cannot.

        Raises
        ------
        StreamError
            The position is of another sink, or the records before it are gone or changed.
        """

    def close(self) -> None:
        """Release the file or connection."""


class RawRows(Sequence[Row | BadRow]):
    """Rows that are read one by one as they are asked for, or one after the other with fewer checks.

    ``read`` reads the row with a number of ``rows``, from the first to before the last. ``read_pairs`` gives the features and the
    label of each row from one number to another, and ends early before one that needs a closer look. Values of features may be no
    numbers. ``read_numbers``, if there is one, returns rows from one number to another that have no features but those of some
    names: a matrix, float64 [rows, names], in which NaN means that a row does not have the feature, and the labels; or None where
    one has others.
    """

    def __init__(
        self,
        read: Callable[[int], Row | BadRow],
        read_pairs: Callable[[int, int], Iterator[tuple[Any, Any]]],
        rows: tuple[int, int],
        read_numbers: Callable[[int, int, Sequence[Hashable]], tuple[np.ndarray, list[Any]] | None] | None = None,
    ) -> None:
        self._read, self._read_pairs, self._rows, self._read_numbers = read, read_pairs, rows, read_numbers

    def __len__(self) -> int:
        return self._rows[1] - self._rows[0]

    @overload
    def __getitem__(self, i: int) -> Row | BadRow: ...
    @overload
    def __getitem__(self, i: slice) -> RawRows: ...
    def __getitem__(self, i: int | slice) -> Row | BadRow | RawRows:
        numbers = range(*self._rows)[i]
        if isinstance(numbers, int):
            return self._read(numbers)
        return RawRows(self._read, self._read_pairs, (numbers.start, numbers.stop), self._read_numbers)

    def numbers(self, names: Sequence[Hashable]) -> tuple[np.ndarray, list[Any]] | None:
        """Return the features of all rows, float64 [rows, names], NaN if missing, and labels; None if they are not read so."""
        return None if self._read_numbers is None else self._read_numbers(*self._rows, names)

    def pairs(self) -> Iterator[tuple[Any, Any]]:
        """Give the features and the label of each row, up to one that must be looked at by itself."""
        return self._read_pairs(*self._rows)


class OneByOne:
    """The `BatchSource` of a source that only iterates."""

    def __init__(self, source: Source) -> None:
        self._source, self._iterator = source, iter(source)

    def take(self, most: int) -> list[Row | BadRow] | None:  # noqa: ARG002
        row = next(self._iterator, None)
        return None if row is None else [row]

    def place_of(self, i: int) -> str:  # noqa: ARG002
        return self._source.place

    def raw_of(self, i: int) -> bytes | None:  # noqa: ARG002
        return getattr(self._source, "raw", None)


def batches_of(source: Source) -> BatchSource:
    """Return what gives the rows at hand of a source: itself, if it can."""
    found: Any = source if hasattr(source, "take") else OneByOne(source)
    return found


class WrappedSource:
    """A source with other rows: those that a class below this one makes of them. All else is asked of the source."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._batches: BatchSource | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._source, name)

    def take(self, most: int) -> Sequence[Row | BadRow] | Rows | None:
        if self._batches is None:
            self._batches = batches_of(self._source)
        rows = self._batches.take(most)
        return self._changed(rows) if rows else rows

    def _changed(self, rows: Sequence[Row | BadRow] | Rows) -> Sequence[Row | BadRow] | Rows:
        """Return what becomes of rows, of which there is at least one."""
        raise NotImplementedError

    def place_of(self, i: int) -> str:
        place: str = self._source.place if self._batches is None else self._batches.place_of(i)
        return place

    def raw_of(self, i: int) -> bytes | None:
        return None if self._batches is None else self._batches.raw_of(i)
