"""The loops' view of a stream: rows, from a source with a resumable position, and a sink of predictions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NotRequired, Self, TypedDict

from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.chunk import BadRow, Chunk, MessageColumns, Row

#: Where a source or sink goes on, as plain JSON (dicts, lists, strings, numbers). Only the source itself reads inside.
Position = Mapping[str, Any]

#: How messages about a checkpoint that does not fit end.
START_AFRESH = "or give another checkpoint folder to start from scratch"


class StreamError(Exception):
    """A stream cannot be read, written or resumed.

    The message names the stream and the place, and says what to do.
    """


class DeadLetter(TypedDict):
    """A row that was refused, as it is written for somebody to look at."""

    row: int
    """Number of rows of the source before this one."""
    place: str
    kind: str
    """Short name of the reason; refused rows are counted by it."""
    reason: str
    time: str
    """Time of the refusal in UTC, in ISO 8601."""
    bytes: int
    """Length of the row in bytes."""
    raw: str
    """The row, or its first 128 KiB."""
    encoding: str
    """Encoding of ``raw``: ``"utf-8"``, ``"base64"``, or ``"repr"`` for a row of Python objects."""


class Prediction(TypedDict):
    """The model's prediction of a row, made before the row is learned.

    Further fields are the columns and messages that predictions keep of their rows, and what ``computed_fields`` add.
    """

    row: int
    """Number of rows of the source before this one; with labels from another stream, number of messages of both."""
    y_pred: Any
    """The prediction; None if the model does not predict yet."""
    y_true: Any
    """The label; None if the row has none, or it has not come yet."""
    probability: float | None
    """The probability of ``y_pred``; None if the model gives none."""
    model: NotRequired[int]
    """Version of a model that is replaced while the loop runs: the number of rows that it had seen."""
    key: NotRequired[str]
    """The key by which a label from another stream will find the row."""


#: What goes into a sink: the fields of a prediction or a dead letter, by name.
Record = Mapping[str, Any]


class Closeable:
    """Something that a ``with`` statement closes at its end."""

    def close(self) -> None:
        """Release the file or connection."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Source(Closeable):
    """A stream of rows that can be resumed: the base of all sources.

    A source of your own derives from it, and gives `name`, `read`, `position` and `seek`; all else has a default here.

    A stream is read once. `position` is always the position *after* the rows that were read last. A process that saves it
    together with the model that learned those rows, and later passes it to `seek` of a new source, sees every row exactly once.

    A row that cannot be read, although the next one can, is given as a `BadRow`. A `StreamError` is for a stream that cannot
    continue.
    """

    name: str
    """Name of the stream in messages (a path, a URL)."""
    columns: Sequence[str] = ()
    """Names of the columns, label included, if the format is a table and its first row was read; else none."""
    has_names: bool = True
    """Whether features have names, and not numbers alone."""
    weight: str | None = None
    """Name of the column of weights; None if rows have none."""
    may_block: bool = False
    """Whether the next row may have to be waited for, as of a pipe or a topic."""
    is_endless: bool = False
    """Whether the stream never ends."""
    has_messages: bool = False
    """Whether rows are messages, which have a key and a time of their own (`Chunk.event`, `Chunk.messages`)."""
    start_can_change: bool = False
    """Whether where the stream begins depends on when it is opened, as of a topic: that is saved before the first row."""

    def read(self, most: int) -> Chunk | None:
        """Return the next rows that are at hand, up to ``most``.

        There are none if no row came within a fraction of a second. None means that the stream has ended or was stopped.
        """
        raise NotImplementedError

    @property
    def position(self) -> Position:
        """Where the next row is."""
        raise NotImplementedError

    def seek(self, position: Position) -> None:
        """Continue at ``position``; only before the first row was read. Never skips rows silently.

        Raises
        ------
        StreamError
            The position is of another stream, or the stream no longer holds the rows after it.
        RuntimeError
            Rows were read already.
        """
        raise NotImplementedError

    def _foreign_position_error(self, position: Position) -> StreamError:
        text = f"the checkpoint is of another kind of stream ({short_repr(dict(position))}). Give that stream, {START_AFRESH}"
        return StreamError(f"{self.name}: {text}")

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns (`Chunk.passthrough_columns`), and return the names of all that they copy.

        Only before the first row was read; raise a StreamError if the stream cannot. By default, the columns are those of the
        features, and the chunk is made with these names (`passthrough_names`).
        """
        self.passthrough_names = list(names)
        return self.passthrough_names

    passthrough_names: Sequence[str] = ()
    """The columns that `request_passthrough` has asked for."""

    def prepare_for_join(self) -> None:
        """Be read as one of two streams of a `JoinedSource`.

        An endless stream gives an empty chunk then only where it has read all that there is, and then at once. Raise a
        StreamError if the stream cannot be joined.
        """

    def on_checkpoint(self) -> None:
        """Take note that a checkpoint holds the present `position`."""

    def reads_from(self, place: object) -> bool:  # noqa: ARG002
        """Return whether what is written to a sink, or to a place of checkpoints, would be read here as rows."""
        return False

    def lag(self) -> dict[Any, int] | None:
        """Return how many rows are waiting to be read, by part of the stream; None if that is not known."""
        return None

    def stop(self) -> None:
        """End a wait for rows, from a signal handler or another thread. Rows that have come may still be given."""

    def __iter__(self) -> Iterator[Row | BadRow]:
        """Give the rows one by one; `position` is after the one that was given last."""
        while (chunk := self.read(1)) is not None:
            if len(chunk):
                yield chunk.row(0)


class Sink(Closeable):
    """Takes predictions or dead letters: the base of all sinks."""

    name: str
    """Name of the sink in messages (a path, a URL)."""
    accepts_messages: bool = False
    """Whether the messages of a topic's rows are to come with their predictions."""
    hint: str = ""
    """Advice that would make it quicker, in words; empty if nothing is known."""

    def write(self, record: Record) -> None:
        """Write a prediction or a dead letter; raise a StreamError if that fails."""
        raise NotImplementedError

    def write_many(self, columns: Mapping[str, Sequence[Any]], messages: MessageColumns | None = None) -> None:  # noqa: ARG002
        """Write predictions whose fields are columns, each with the message of its row, if the sink takes messages."""
        for values in zip(*columns.values(), strict=True):
            self.write(dict(zip(columns, values, strict=True)))

    def flush(self) -> Position:
        """Make all records durable, and return the position to save in a checkpoint; raise a StreamError if that fails."""
        raise NotImplementedError

    def seek(self, position: Position) -> None:
        """Drop the records after ``position``, if the medium can: a file can, a topic cannot.

        Raises
        ------
        StreamError
            The position is of another sink, or the records before it are gone or changed.
        """


class WrappedSource(Source):
    """A source whose chunks a function changes. All else is asked of the source."""

    def __init__(self, source: Source, change: Callable[[Chunk], Chunk], weight: str | None = None) -> None:
        self._source, self._change = source, change
        self.name: str = source.name
        self.weight: str | None = source.weight if weight is None else weight
        self.has_names: bool = source.has_names
        self.may_block: bool = source.may_block
        self.is_endless: bool = source.is_endless
        self.has_messages: bool = source.has_messages
        self.start_can_change: bool = source.start_can_change

    def read(self, most: int) -> Chunk | None:
        chunk = self._source.read(most)
        return self._change(chunk) if chunk else chunk

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        return self._source.columns

    @property
    def position(self) -> Position:
        return self._source.position

    def seek(self, position: Position) -> None:
        self._source.seek(position)

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        return self._source.request_passthrough(names)

    def prepare_for_join(self) -> None:
        self._source.prepare_for_join()

    def on_checkpoint(self) -> None:
        self._source.on_checkpoint()

    def reads_from(self, place: object) -> bool:
        return self._source.reads_from(place)

    def lag(self) -> dict[Any, int] | None:
        return self._source.lag()

    def stop(self) -> None:
        self._source.stop()

    def close(self) -> None:
        self._source.close()
