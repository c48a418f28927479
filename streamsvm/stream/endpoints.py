"""What loops read and write: the base classes of sources and sinks, and the records of predictions and dead letters."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, NotRequired, Self, TypedDict

from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.chunk import BadRow, Chunk, MessageColumns, Row

#: Where a source or sink continues, as plain JSON (dicts, lists, strings, numbers). Only the source itself interprets it.
Position = Mapping[str, Any]

#: End of messages about a checkpoint that this run cannot continue: the flag that keeps its model.
KEEP_MODEL = "or continue with its model in another checkpoint folder: --start-from STATE --checkpoint FOLDER (start_from=...)"


class StreamError(Exception):
    """A stream cannot be read, written or resumed.

    The message names the stream and the place, and says what to do.
    """


class ForeignPositionError(StreamError):
    """A position is of another stream, so that a run can only begin this one.

    The stream is unchanged, and still at its first row.
    """


class SinkLockedError(StreamError):
    """Another process is writing to the file of a sink."""


class DeadLetter(TypedDict):
    """A refused row, with the reason: the record that a sink of dead letters writes."""

    row: int
    """Number of rows of the source before this one."""
    place: str
    """The stream, and the line, offset or number of the row in it."""
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

    There may be more fields: passthrough columns, partition and offset of a message, and ``computed_fields``.
    """

    row: int
    """Number of rows of the source before this one; with labels from another stream, number of messages of both."""
    y_pred: Any
    """The prediction; None if the model does not predict yet."""
    y_true: Any
    """The label; None if the row has none, or if it has not arrived yet."""
    probability: float | None
    """The probability of ``y_pred``; None if the model gives none."""
    model: NotRequired[int]
    """Version of a model that is replaced while the loop runs: the number of rows that it had seen."""
    key: NotRequired[str]
    """The key of the row, for its label from another stream."""


#: What goes into a sink: the fields of a prediction or a dead letter, by name.
Record = Mapping[str, Any]


class Closeable:
    """An object that a ``with`` statement closes at its end."""

    def close(self) -> None:
        """Release the file or connection of this object."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Source(Closeable):
    """A stream of rows that can be resumed: the base of all sources.

    A source of your own derives from it, and defines `name`, `read`, `position` and `seek`. All other methods and attributes
    have defaults.

    A stream is read once. `position` is always the position *after* the rows that were read last. A process that saves it
    together with the model that learned those rows, and later passes it to `seek` of a new source, sees every row exactly once.

    If a single row is unreadable, `read` returns a `BadRow` in its place. A `StreamError` means that the stream cannot continue.
    """

    name: str
    """Name of the stream in messages (a path, a URL)."""
    columns: Sequence[str] = ()
    """Names of the columns of a table, including the label; empty for other formats, and before the first row was read."""
    has_names: bool = True
    """Whether features have names; False if they are only numbered."""
    weight: str | None = None
    """Name of the column of weights; None if rows have no weights."""
    may_block: bool = False
    """Whether `read` may have to wait for the next row, as with a pipe or a topic."""
    is_endless: bool = False
    """Whether the stream never ends."""
    has_messages: bool = False
    """Whether rows are messages with a key and a timestamp (`Chunk.get_key_and_time`, `Chunk.messages`)."""
    start_can_change: bool = False
    """Whether the first row depends on the time of opening, as with a topic. Loops then save the start before they read a row."""
    is_connected: bool = True
    """Whether rows can arrive: False while no broker of a topic responds. You can read it from any thread."""
    event_time: float | None = None
    """Time of the newest row that was read, in seconds since 1970; None if rows have no time."""
    start: str | None = None
    """Where the user wants to begin, such as ``"earliest"``. A run whose checkpoint is of another stream then begins there, and
    keeps the model; with None, that is an error."""

    def read(self, max_rows: int) -> Chunk | None:
        """Return the next available rows as a chunk, at most ``max_rows``. It is empty if no row has arrived within a fraction of
        a second. Return None if the stream has ended or was stopped.
        """
        raise NotImplementedError

    @property
    def position(self) -> Position:
        """The position of the next row in this stream, as a dict that can be saved as JSON and passed to `seek` later."""
        raise NotImplementedError

    def seek(self, position: Position) -> None:
        """Continue this stream at ``position``, the saved `position` of an earlier source. Call it before the first row is read.
        It raises an error rather than skip missing rows.

        Raises
        ------
        ForeignPositionError
            The position is of another stream.
        StreamError
            The stream no longer holds the rows after the position.
        RuntimeError
            Rows were read already.
        """
        raise NotImplementedError

    def _foreign_position_error(self, position: Position) -> ForeignPositionError:
        return ForeignPositionError(f"{self.name}: the checkpoint is of another kind of stream ({short_repr(dict(position))})")

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Request that `read` also copies the columns ``names`` into ``passthrough_columns`` of its chunks, unchanged, to write
        them with predictions. Return the names of all columns that will be copied; a source may add some, such as the offset.

        Call it before the first row is read. Raise a StreamError if the stream has no such column. By default, the columns are
        features, and `read` passes `passthrough_names` to its chunks.
        """
        if names and not self.has_names:
            raise StreamError(f"{self.name}: column {names[0]!r} cannot be passed through: the rows are numbers without names")
        self.passthrough_names = list(names)
        return self.passthrough_names

    passthrough_names: Sequence[str] = ()
    """The columns that were requested by `request_passthrough`."""

    def skip_columns(self, names: Sequence[str]) -> None:
        """Leave the columns ``names`` out of all rows. A source of JSON messages then ignores objects and arrays with these
        names. By default, do nothing: the model ignores the columns.
        """

    def prepare_for_join(self) -> None:
        """Prepare this stream to be joined with another one, where one stream has the rows and the other their labels
        (`JoinedSource`). Raise a StreamError if this stream cannot be joined.

        From then on, an endless stream returns an empty chunk only after it has read all available rows, and without waiting.
        """

    def on_checkpoint(self) -> None:
        """React to a new checkpoint at the current `position`, for example by committing offsets to Kafka. By default, do
        nothing.
        """

    def reads_from(self, output: object) -> bool:  # noqa: ARG002
        """Return whether this stream reads the file or topic to which ``output``, a sink or a checkpoint store, writes."""
        return False

    def lag(self) -> dict[Any, int] | None:
        """Return the number of unread rows (the consumer lag) of each partition of this stream; None if it is unknown."""
        return None

    def stop(self) -> None:
        """End a wait of `read` for rows, from a signal handler or another thread. `read` may still return rows that arrived."""

    def __iter__(self) -> Iterator[Row | BadRow]:
        """Yield the rows one by one; `position` is after the row that was yielded last."""
        while (chunk := self.read(1)) is not None:
            if len(chunk):
                yield chunk.row(0)


class Sink(Closeable):
    """A destination of predictions or dead letters: the base of all sinks."""

    name: str
    """Name of the sink in messages (a path, a URL)."""
    accepts_messages: bool = False
    """Whether `write_many` is to receive the messages of the rows, if they come from a topic."""
    hint: str = ""
    """Advice for the user on how to make the sink faster; empty if none is needed."""
    has_header: bool = False
    """Whether all records must have the same fields, which the sink has named once, as in CSV."""

    def write(self, record: Record) -> None:
        """Write one record (the fields of a prediction or a dead letter, by name); raise a StreamError if that fails. By default,
        call `write_many`; a sink defines one of the two.
        """
        self.write_many({name: [value] for name, value in record.items()})

    def write_many(self, columns: Mapping[str, Sequence[Any]], messages: MessageColumns | None = None) -> None:  # noqa: ARG002
        """Write n predictions: ``columns`` has a sequence of n values for each field, by name. ``messages`` are the Kafka
        messages from which the rows came; they are passed only to a sink whose ``accepts_messages`` is True.
        """
        for values in zip(*columns.values(), strict=True):
            self.write(dict(zip(columns, values, strict=True)))

    def flush(self) -> Position:
        """Make all written records durable, and return the position after them, a dict for `seek`, to save in a checkpoint. Raise
        a StreamError if that fails.
        """
        raise NotImplementedError

    def owns(self, position: Position) -> bool:  # noqa: ARG002
        """Return whether ``position``, from a checkpoint, is of this sink. If not, a run that continues begins this one."""
        return True

    def begin(self, row: int) -> None:
        """Prepare to write records from ``row`` on, in a run that has written to another sink before. By default, do nothing."""

    def seek(self, position: Position) -> None:
        """Delete the records after ``position`` (a result of `flush`), so that a resumed run does not write them twice. A sink
        that cannot delete, such as a topic, leaves them.

        Raises
        ------
        StreamError
            The position is of another sink, or the records before it are gone or changed.
        """


class WrappedSource(Source):
    """A source that applies a function to each non-empty chunk of another source, and otherwise behaves like that source."""

    def __init__(self, source: Source, change_chunk: Callable[[Chunk], Chunk], weight: str | None = None) -> None:
        self._source, self._change_chunk = source, change_chunk
        attributes = ("name", "has_names", "may_block", "is_endless", "has_messages", "start_can_change", "start")
        methods = ("seek", "request_passthrough", "prepare_for_join", "on_checkpoint", "reads_from", "lag", "stop", "close")
        for name in attributes + methods:
            setattr(self, name, getattr(source, name))
        self.weight: str | None = source.weight if weight is None else weight

    def read(self, max_rows: int) -> Chunk | None:
        chunk = self._source.read(max_rows)
        return self._change_chunk(chunk) if chunk else chunk

    # These change while the source is read.
    columns: Any = property(attrgetter("_source.columns"))
    position: Any = property(attrgetter("_source.position"))
    is_connected: Any = property(attrgetter("_source.is_connected"))
    event_time: Any = property(attrgetter("_source.event_time"))

    def skip_columns(self, names: Sequence[str]) -> None:
        self._source.skip_columns([name for name in names if name != self.weight])
