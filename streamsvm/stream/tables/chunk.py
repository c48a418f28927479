"""Chunks of a stream: rows that were read together, available as a table of columns and as single rows."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, final, overload

import numpy as np


def is_null(value: Any) -> bool:
    """Return whether a value means "missing" in data frames: NaN, NaT, or the NA of pandas. False for None."""
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):  # raised by NA, arrays and signalling NaN
        return type(value).__name__ == "NAType"


class Row(NamedTuple):
    """One row of a stream: its features, and its label; None if it is unlabelled."""

    x: dict[Hashable, Any]
    y: Any = None


class WeightedLabel(NamedTuple):
    """A label with the weight of its row; it takes the place of the label in a `Row`."""

    y: Any
    w: float


@final
class BadRow(NamedTuple):
    """A row that its source cannot parse; the next one can still be read."""

    place: str
    """Where the row is, for messages: the stream, and the line, offset or row number in it."""
    raw: bytes | None
    """The bytes of the row; None if the source does not have them."""
    reason: str
    """Why it cannot be parsed."""
    kind: str = "malformed"
    """Short name of the reason; refused rows are counted by it."""

    @classmethod
    def from_error(cls, place: str, raw: bytes | None, error: ValueError) -> BadRow:
        """Return the bad row for an ``error``; a ``RowError`` names the kind of its reason."""
        return cls(place, raw, str(error), getattr(error, "kind", "malformed"))


class Message(NamedTuple):
    """Key, timestamp and headers of a Kafka message, which are passed on to the message with its row's prediction."""

    key: bytes | None
    timestamp: int | None
    """Milliseconds since 1970."""
    headers: list[tuple[str, bytes]]

    @property
    def size(self) -> int:
        """Size of the key and the headers of this Kafka message in bytes, plus 16 bytes of overhead for each header."""
        return len(self.key or b"") + sum(len(name.encode()) + len(value) + 16 for name, value in self.headers)


@final
@dataclass(frozen=True, slots=True)
class MessageColumns(Sequence[Message]):
    """A sequence of `Message`, stored as columns."""

    keys: Sequence[bytes | None]
    timestamps: Sequence[int | None]
    headers: Sequence[list[tuple[str, bytes]]]
    largest: int
    """An upper bound of the `size` of each message."""

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


#: The values of a column: a numeric array [n] of any width, with NaN for missing; or a list of n objects, with None for missing.
Values = np.ndarray | list[Any]


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Rows as columns, with their labels and weights.

    Examples
    --------
    >>> table = Table(("age", "city"), [np.array([31, np.nan]), ["Oslo", None]], [True, None])
    >>> table.row(0), table.row(1)
    (Row(x={'age': 31.0, 'city': 'Oslo'}, y=True), Row(x={}, y=None))
    """

    names: tuple[Hashable, ...]
    """Names of the columns."""
    columns: list[Values]
    """The values of each column."""
    y: list[Any] | None = None
    """The n labels, with None for unlabelled rows. None if no row has a label."""
    weights: np.ndarray | None = None
    """The weight of each row, float64 [n]; None if rows have no weights."""
    unparsed_rows: Sequence[int] = field(default=())
    """Ascending indices of the rows that are not in the columns, and must be read singly."""
    rows_with_nulls: Sequence[int] = field(default=())
    """Indices of the rows with an explicit None or NaN, which learners refuse, unlike a missing feature."""

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else len(self.y or ())

    def row(self, i: int) -> Row:
        """Return row ``i`` of this table as features and label. Features whose value is missing are left out."""
        x = {}
        for name, values in zip(self.names, self.columns, strict=True):
            value = values[i].item() if isinstance(values, np.ndarray) else values[i]
            if value is not None and not is_null(value):
                x[name] = value
        y = None if self.y is None else self.y[i]
        return Row(x, y if self.weights is None or y is None else WeightedLabel(y, float(self.weights[i])))

    def get_column(self, name: Hashable) -> Values | None:
        """Return the values of the column called ``name``; None if the table does not have it."""
        return self.columns[self.names.index(name)] if name in self.names else None

    def drop_columns(self, names: Iterable[Hashable]) -> Table:
        """Return this table without the columns called ``names``; unknown names are ignored."""
        dropped = set(names)
        if dropped.isdisjoint(self.names):
            return self
        kept = {name: values for name, values in zip(self.names, self.columns, strict=True) if name not in dropped}
        return replace(self, names=tuple(kept), columns=list(kept.values()))

    @classmethod
    def from_rows(cls, rows: Sequence[Row | BadRow]) -> Table | None:
        """Convert rows (features by name, with labels) to a table with a column for each feature. Returns None if most of its
        cells would be empty, because rows have different features. Bad rows become empty ones, listed in ``unparsed_rows``.
        """
        n = len(rows)
        unparsed_rows = [i for i, row in enumerate(rows) if type(row) is BadRow or not isinstance(row[0], Mapping)]
        parsed_rows = [Row({}) if i in set(unparsed_rows) else row for i, row in enumerate(rows)] if unparsed_rows else rows
        xs: list[Any] = [row[0] for row in parsed_rows]
        names = dict.fromkeys(name for x in xs for name in x)
        n_values = sum(map(len, xs))
        if n * len(names) > _MAX_CELLS_PER_VALUE * n_values + _MAX_EXTRA_CELLS:
            return None
        columns: list[Any] = [[x.get(name) for x in xs] for name in names]
        n_missing = n * len(names) - n_values
        rows_with_nulls: list[int] = []
        if sum(value is None for values in columns for value in values) > n_missing or any(map(_has_nan, columns)):
            rows_with_nulls = [i for i, x in enumerate(xs) if any(value is None or _is_nan(value) for value in x.values())]
        ys: list[Any] = [row[1] for row in parsed_rows]
        weights = None
        if any(type(y) is WeightedLabel for y in ys):
            weights = np.array([y.w if type(y) is WeightedLabel else 1.0 for y in ys])
            ys = [y.y if type(y) is WeightedLabel else y for y in ys]
        return cls(tuple(names), columns, ys, weights, unparsed_rows, rows_with_nulls)


def _has_nan(values: list[Any]) -> bool:
    """Return whether one of the values in a list is a float NaN."""
    return any(issubclass(kind, float | np.floating) for kind in set(map(type, values))) and any(map(_is_nan, values))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(value != value)


_MAX_CELLS_PER_VALUE, _MAX_EXTRA_CELLS = 8, 4096  # cells of a table: at most this many per value of its rows, plus a constant


class _ChunkChange(NamedTuple):
    """A change of the rows of a chunk: the functions that change a row and a table, and the columns that these need."""

    row: Callable[[Row], Row]
    table: Callable[[Table], Table]
    names: frozenset[Hashable]


class Chunk:
    """Rows that a source has read together, available singly and as a `Table`.

    A subclass can parse its rows lazily: it overrides `read_row` and `parse_table`, and other methods if needed.

    Parameters
    ----------
    rows
        The rows, or a `Table` of them. The other form is made when it is needed.
    place
        Function that returns where a row is, for messages: the stream, and the line, offset or row number in it. Its argument is
        the index of the row in the chunk.
    raw
        Function that returns the bytes of a row, for its dead letter. None: there are no bytes.
    passthrough_names
        Features that are copied into predictions: the ``passthrough_names`` of the source.
    passthrough_columns
        The values that are copied into predictions, if they are not among the features: a sequence of n values for each field.
    messages
        Key, timestamp and headers of each row. None: the rows are not from Kafka.
    """

    _rows: Sequence[Row | BadRow] | None = None
    _passthrough_columns: Sequence[Sequence[Any]] | None = None
    _message_columns: MessageColumns | None = None
    _has_table: bool = False  # whether `_table` is final, which may be None
    _table: Table | None = None
    _changes: tuple[_ChunkChange, ...] = ()
    _peeked_rows: dict[int, Row | BadRow] | None = None  # rows that were read before their turn
    _unchanged_table: Table | None = None  # the table to which the changes were applied last,
    _changed_table: Table | None = None  # and their result

    def __init__(
        self,
        rows: Sequence[Row | BadRow] | Table,
        place: Callable[[int], str],
        raw: Callable[[int], bytes | None] | None = None,
        *,
        passthrough_names: Sequence[str] = (),
        passthrough_columns: Sequence[Sequence[Any]] | None = None,
        messages: MessageColumns | None = None,
    ) -> None:
        self._n = len(rows)
        if isinstance(rows, Table):
            self._table, self._has_table = rows, True
        else:
            self._rows = rows
        self._place, self._raw, self._message_columns = place, raw, messages
        self._passthrough_names, self._passthrough_columns = passthrough_names, passthrough_columns

    def __len__(self) -> int:
        return self._n

    def row(self, i: int) -> Row | BadRow:
        """Return row ``i`` of this chunk: features and label, or a `BadRow` with the reason if it cannot be parsed."""
        if self._peeked_rows and i in self._peeked_rows:
            return self._peeked_rows.pop(i)
        row = self.read_row(i)
        for change in self._changes:
            if type(row) is BadRow:
                break
            try:
                row = change.row(row)
            except ValueError as error:
                row = BadRow.from_error(self.place(i), self.raw(i), error)
        return row

    def peek_row(self, i: int) -> Row | BadRow:
        """Return row ``i`` of this chunk, and keep it for the next call of `row`, so that it is parsed only once."""
        self._peeked_rows = self._peeked_rows or {}
        self._peeked_rows[i] = self.row(i)
        return self._peeked_rows[i]

    def table(self, features: Sequence[Hashable]) -> Table | None:
        """Return all rows of this chunk as a table, or None if they can only be read one by one. ``features`` are the feature
        names of the model: formats without a header read only these columns. If it is empty, all columns are read.
        """
        if not self._changes:
            return self.read_table(features)
        names = [*features, *(name for change in self._changes for name in change.names)] if features else features
        if (table := self.read_table(names)) is None:
            return None
        if table is not self._unchanged_table:
            self._unchanged_table = table
            for change in self._changes:
                table = change.table(table)
            self._changed_table = table
        return self._changed_table

    def read_row(self, i: int) -> Row | BadRow:
        """Return row ``i`` of this chunk as the source has it, without the changes that were added by `with_change`. A row that
        cannot be parsed is returned as a `BadRow`.
        """
        if self._rows is not None:
            return self._rows[i]
        table: Any = self._table
        return table.row(i)

    def read_table(self, features: Sequence[Hashable]) -> Table | None:
        """Return all rows of this chunk as a table, without the changes that were added by `with_change`; None if the rows can
        only be read one by one. ``features`` are the feature names of the model; empty: all columns.
        """
        if self._has_table:
            return self._table
        self._has_table = True
        if self._rows is None:
            self._table = self.parse_table(features)
        if self._table is None:
            if self._rows is None:
                self._rows = [self.read_row(i) for i in range(len(self))]
            self._table = Table.from_rows(self._rows)
        return self._table

    def parse_table(self, features: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Parse all rows of this chunk into a table in one call; subclasses implement this for their format. Returns None if the
        format does not support it, or if too many rows cannot be parsed in this way. ``features`` are the feature names of the
        model; empty: all columns.
        """
        return None

    def place(self, i: int) -> str:
        """Return a text for messages that says where row ``i`` of this chunk is in the stream: its name, and the line, offset or
        row number.
        """
        return self._place(i)

    def raw(self, i: int) -> bytes | None:
        """Return the original bytes of row ``i``, to be written to the dead letters if the row is refused; None if the source
        does not keep them.
        """
        return None if self._raw is None else self._raw(i)

    def passthrough_columns(self, start: int, stop: int) -> list[Sequence[Any]]:
        """Return the values of rows ``start`` to ``stop - 1`` that are copied into their predictions: one sequence for each
        column that was requested by `Source.request_passthrough`.
        """
        if self._passthrough_columns is not None:
            return [values[start:stop] for values in self._passthrough_columns]
        rows = [self.read_row(i)[0] for i in range(start, stop)]
        return [[x.get(name) if isinstance(x, Mapping) else None for x in rows] for name in self._passthrough_names]

    def messages(self, first: int, stop: int) -> MessageColumns | None:
        """Return key, timestamp and headers of the Kafka messages of rows ``first`` to ``stop - 1``; None if the rows are not
        from Kafka.
        """
        return None if self._message_columns is None else self._message_columns[first:stop]

    def get_key_and_time(self, i: int) -> tuple[str | bytes | None, float | None]:  # noqa: ARG002
        """Return the key and the timestamp (in seconds since 1970) of the message that has row ``i``. The source may have
        neither: then the result is ``(None, None)``.
        """
        return None, None

    def with_change(
        self, change_row: Callable[[Row], Row], change_table: Callable[[Table], Table], names: Iterable[Hashable] = ()
    ) -> Self:
        """Return a copy of this chunk whose rows are changed when they are read, such as by leaving out columns. ``change_row``
        makes the change to a single row, and ``change_table`` the same change to a table. If ``change_row`` raises ValueError,
        the row is refused.

        ``names`` are the columns that the change needs, even if the model does not know them.
        """
        changed = copy.copy(self)
        changed._changes = (*self._changes, _ChunkChange(change_row, change_table, frozenset(names)))
        changed._unchanged_table = None
        return changed


def drop_columns(chunk: Chunk, names: Iterable[Hashable]) -> Chunk:
    """Return a copy of the chunk whose rows lack the columns called ``names``."""
    dropped = frozenset(names)

    def change_row(row: Row) -> Row:
        x, y = row
        return Row({name: value for name, value in x.items() if name not in dropped}, y) if isinstance(x, Mapping) else row

    return chunk.with_change(change_row, lambda table: table.drop_columns(dropped), dropped)


#: Minimum number of rows in a batch: processing fewer rows singly is faster.
MIN_BATCH_ROWS = 8
_ROWS_AFTER_SINGLE = 32  # rows of the first batch after a row that was processed singly


def process_rows(
    start: int, stop: int, max_rows: int, process_batch: Callable[[int, int], int], process_one: Callable[[int], object]
) -> None:
    """Process rows ``start`` to ``stop - 1`` in order, in batches where possible. ``process_batch(first, end)`` processes up to
    ``max_rows`` rows, and returns how many: fewer than all if the next row must be processed singly. ``process_one(row)`` then
    does that.

    If ``process_batch`` returns -1, it has processed no row, and is called again for half of them.
    """
    size = max_rows
    while start < stop:
        batch_end = min(start + size, stop)
        n_processed = process_batch(start, batch_end) if batch_end - start >= MIN_BATCH_ROWS else 0
        if n_processed < 0:
            size = (batch_end - start) // 2
            continue
        start += n_processed
        # Rows that must be processed singly often come in groups: the next batch is small.
        size = min(4 * size, max_rows) if start == batch_end else max(2 * n_processed, _ROWS_AFTER_SINGLE)
        if start < batch_end:
            process_one(start)
            start += 1


def to_float_prefix(values: Values) -> tuple[np.ndarray, int]:
    """Convert the values of a column to float64, with NaN for missing, up to the first one that is not a number. Returns an array
    with these numbers, and their count.

    >>> to_float_prefix([1, True, None, "two", 3])
    (array([ 1.,  1., nan]), 3)
    """
    if isinstance(values, np.ndarray):
        return values.astype(np.float64, copy=False), len(values)
    n = len(values)
    if not all(issubclass(kind, _NUMBERS) for kind in set(map(type, values))):
        n = next(i for i, value in enumerate(values) if not isinstance(value, _NUMBERS))
    try:
        return np.array(values[:n], np.float64), n
    except OverflowError:  # a whole number exceeds float64
        n = next(i for i, value in enumerate(values[:n]) if isinstance(value, int) and abs(value) > _MAX_INTEGER)
        return np.array(values[:n], np.float64), n


_NUMBERS = (int, float, np.floating, np.integer, np.bool_, type(None))
_MAX_INTEGER = int(math.ldexp(1.0, 1023))


_MAX_CACHED_TEXTS, _MAX_CACHED_BYTES = 4096, 256  # texts in a cache; bytes of a text in it
_MIN_DISTINCT_TEXTS = 32  # a chunk with fewer new texts is always cached
_ROWS_PER_UNPARSED, _EXTRA_UNPARSED = 8, 16  # limit of unparsed rows: one in 8 rows, and 16 more


class UnparsedRows:
    """Collects the indices of rows that a parser of many rows left out, up to a limit."""

    def __init__(self, n: int) -> None:
        self._limit = n // _ROWS_PER_UNPARSED + _EXTRA_UNPARSED
        self._rows: set[int] = set()

    def add(self, row: int) -> bool:
        """Add the index of a row that could not be parsed. Returns True if there are now more of these than the limit, because
        parsing all rows one by one is faster then.
        """
        self._rows.add(row)
        return len(self._rows) > self._limit

    @property
    def rows(self) -> list[int]:
        """The collected row indices in ascending order."""
        return sorted(self._rows)


class CachedTextParser:
    """Parses lists of texts with many repetitions, and caches the parsed values.

    ``parse`` converts one text; if it raises ValueError, the row of the text is unparsed.
    """

    def __init__(self, parse: Callable[[Any], Any]) -> None:
        self._parse = parse
        self._cache: dict[Any, Any] = {}

    def parse_texts(self, texts: list[Any], unparsed_rows: UnparsedRows) -> list[Any]:
        """Parse texts, and return their values in order. A text that cannot be parsed has the value None, and its index is added
        to ``unparsed_rows``. Frequent texts are cached.
        """
        cache = self._cache
        new = set(texts) - cache.keys()
        if not new:
            return list(map(cache.__getitem__, texts))
        if len(new) > max(len(texts) // 2, _MIN_DISTINCT_TEXTS):  # they are unlikely to be repeated
            with contextlib.suppress(ValueError):
                return list(map(self._parse, texts))
        if len(cache) + len(new) > _MAX_CACHED_TEXTS:
            self._cache = cache = {}
            new = set(texts)
        for text in new:
            try:
                cache[text] = self._parse(text)
            except ValueError:
                for row in (i for i, row_text in enumerate(texts) if row_text == text):
                    unparsed_rows.add(row)
        values = list(map(cache.get, texts))
        for text in new:
            if len(text) > _MAX_CACHED_BYTES:
                cache.pop(text, None)
        return values


def concatenate_rows(rows: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Join rows of bytes into one bytes object. Returns it, and two int64 arrays [rows] with the offsets of the beginning and the
    end of each row.
    """
    ends = np.fromiter(map(len, rows), np.int64, len(rows)).cumsum()
    return b"".join(rows), np.concatenate([[0], ends[:-1]]), ends
