"""Rows of a stream that were read together: as columns, and as rows where somebody needs them."""

from __future__ import annotations

import contextlib
import copy
import math
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self, final, overload

import numpy as np


def is_null(value: Any) -> bool:
    """Whether a value is a NaN, or what else frames have in empty cells: NaT, or the NA of pandas."""
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):  # of pandas' NA, which is neither equal nor unequal; of an array; of sNaN
        return type(value).__name__ == "NAType"


class Row(NamedTuple):
    """One row of a stream: its features, and its label, or None if it has none."""

    x: dict[Hashable, Any]
    y: Any = None


class WeightedLabel(NamedTuple):
    """A label with the weight of its row, in the place of the label."""

    y: Any
    w: float


@final
class BadRow(NamedTuple):
    """A row that its source cannot read, although it can read the next one."""

    place: str
    """The stream, and the line, offset or number of the row in it."""
    raw: bytes | None
    """The bytes of the row; None if the stream has none."""
    reason: str


class Message(NamedTuple):
    """The facts that the prediction of a topic's row keeps of the row's message, if it goes to a topic too."""

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


#: The values of a column: numbers [n] of any width, in which NaN is missing; or n objects, in which None is missing.
Values = np.ndarray | list[Any]


@final
@dataclass(frozen=True, slots=True)
class Table:
    """Rows in columns.

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
    """The n labels, in which None means that the row has none. None if no row has a label."""
    weights: np.ndarray | None = None
    """The weight of each row, float64 [n]; None if they have none."""
    unparsed_rows: Sequence[int] = field(default=())
    """The numbers of the rows that are not in the columns, ascending: they must be read one by one."""
    rows_with_nulls: Sequence[int] = field(default=())
    """The numbers of the rows that have a value which is None or NaN, and not just none: learners refuse these."""

    def __len__(self) -> int:
        return len(self.columns[0]) if self.columns else len(self.y or ())

    def row(self, i: int) -> Row:
        """Return row number ``i``, without the values that are missing."""
        x = {}
        for name, values in zip(self.names, self.columns, strict=True):
            value = values[i].item() if isinstance(values, np.ndarray) else values[i]
            if value is not None and not is_null(value):
                x[name] = value
        y = None if self.y is None else self.y[i]
        return Row(x, y if self.weights is None or y is None else WeightedLabel(y, float(self.weights[i])))

    def get_column(self, name: Hashable) -> Values | None:
        """Return the values of a column; None if the table does not have it."""
        return self.columns[self.names.index(name)] if name in self.names else None

    def drop_columns(self, names: Iterable[Hashable]) -> Table:
        """Return the rows without some columns."""
        left_out = set(names)
        if left_out.isdisjoint(self.names):
            return self
        kept = [place for place, name in enumerate(self.names) if name not in left_out]
        return replace(self, names=tuple(self.names[place] for place in kept), columns=[self.columns[place] for place in kept])

    @classmethod
    def from_rows(cls, rows: Sequence[Row | BadRow]) -> Table | None:
        """Return rows as a table; None if they have more columns than it would be worth."""
        n = len(rows)
        odd = [i for i, row in enumerate(rows) if type(row) is BadRow or not isinstance(row[0], Mapping)]
        readable = [Row({}) if i in set(odd) else row for i, row in enumerate(rows)] if odd else rows
        xs: list[Any] = [row[0] for row in readable]
        names = dict.fromkeys(name for x in xs for name in x)
        cells = sum(map(len, xs))
        if n * len(names) > _SPARSE * cells + _FEW_CELLS:
            return None
        columns: list[Any] = [[x.get(name) for x in xs] for name in names]
        absent = n * len(names) - cells
        blank = (
            [i for i, x in enumerate(xs) if any(value is None or _is_nan(value) for value in x.values())]
            if sum(value is None for values in columns for value in values) > absent or any(map(_has_nan, columns))
            else []
        )
        ys: list[Any] = [row[1] for row in readable]
        weights = None
        if any(type(y) is WeightedLabel for y in ys):
            weights = np.array([y.w if type(y) is WeightedLabel else 1.0 for y in ys])
            ys = [y.y if type(y) is WeightedLabel else y for y in ys]
        return cls(tuple(names), columns, ys, weights, odd, blank)


def _has_nan(values: list[Any]) -> bool:
    return any(issubclass(kind, float | np.floating) for kind in set(map(type, values))) and any(map(_is_nan, values))


def _is_nan(value: Any) -> bool:
    return isinstance(value, float | np.floating) and bool(value != value)


_SPARSE, _FEW_CELLS = 8, 4096  # a table may have this many times the cells of its rows, plus a constant


class _Change(NamedTuple):
    row: Callable[[Row], Row]
    table: Callable[[Table], Table]
    names: frozenset[Hashable]


class Chunk:
    """Rows that a source has read together.

    A subclass reads its rows lazily: it overrides `read_row` and `parse_table`, and whatever else its rows have.

    Parameters
    ----------
    rows
        The rows, or a `Table` of them. The one is made of the other when it is needed.
    place
        Function that returns the stream, and the line, offset or number of a row in it, for messages, by its number in the chunk.
    raw
        Function that returns the bytes of a row, which go into its dead letter. None: there are none.
    passthrough_names
        Features that are copied into predictions: the ``passthrough_names`` of the source.
    passthrough_columns
        The values that are copied into predictions, if they are not among the features: a sequence of n values for each field.
    messages
        Key, time and headers of each row. None: the rows are no messages.
    """

    _rows: Sequence[Row | BadRow] | None = None
    _passthrough_columns: Sequence[Sequence[Any]] | None = None
    _message_columns: MessageColumns | None = None
    _has_table: bool = False  # also when there can be none
    _table: Table | None = None
    _changes: tuple[_Change, ...] = ()
    _before: Table | None = None  # the table to which the changes were made,
    _changed: Table | None = None  # and the one with them

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
        """Return row number ``i``."""
        row = self.read_row(i)
        for change in self._changes:
            if type(row) is BadRow:
                break
            try:
                row = change.row(row)
            except ValueError as error:
                row = BadRow(self.place(i), self.raw(i), str(error))
        return row

    def table(self, known: Sequence[Hashable]) -> Table | None:
        """Return all rows in columns; None if they are rows only.

        ``known`` are the features that the model knows, if it takes numbers alone: a format without a header looks for these.
        """
        if not self._changes:
            return self.read_table(known)
        names = [*known, *(name for change in self._changes for name in change.names)] if known else known
        if (table := self.read_table(names)) is None:
            return None
        if table is not self._before:
            self._before = table
            for change in self._changes:
                table = change.table(table)
            self._changed = table
        return self._changed

    def read_row(self, i: int) -> Row | BadRow:
        """Read row number ``i``, before any change."""
        if self._rows is not None:
            return self._rows[i]
        table: Any = self._table
        return table.row(i)

    def read_table(self, known: Sequence[Hashable]) -> Table | None:
        """Read all rows in columns, before any change; as `table`."""
        if self._has_table:
            return self._table
        self._has_table = True
        if self._rows is None:
            self._table = self.parse_table(known)
        if self._table is None:
            if self._rows is None:
                self._rows = [self.read_row(i) for i in range(len(self))]
            self._table = Table.from_rows(self._rows)
        return self._table

    def parse_table(self, known: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Parse all rows in one call, if the format can; None where many of them have to be read one by one."""
        return None

    def place(self, i: int) -> str:
        """Return the stream, and the line, offset or number of row number ``i`` in it, for messages."""
        return self._place(i)

    def raw(self, i: int) -> bytes | None:
        """Return the bytes of row number ``i``, which go into its dead letter; None if there are none."""
        return None if self._raw is None else self._raw(i)

    def passthrough_columns(self, first: int, end: int) -> list[Sequence[Any]]:
        """Return the columns that `Source.request_passthrough` asked for, of rows ``first`` to ``end - 1``: one list for each."""
        if self._passthrough_columns is not None:
            return [values[first:end] for values in self._passthrough_columns]
        rows = [self.read_row(i)[0] for i in range(first, end)]
        return [[x.get(name) if isinstance(x, Mapping) else None for x in rows] for name in self._passthrough_names]

    def messages(self, first: int, end: int) -> MessageColumns | None:
        """Return the messages of the rows ``first`` to ``end - 1``; None if the stream has none."""
        return None if self._message_columns is None else self._message_columns[first:end]

    def get_key_and_time(self, i: int) -> tuple[str | bytes | None, float | None]:  # noqa: ARG002
        """Return the key of the message of row number ``i``, and its time in seconds since 1970; None where it is missing."""
        return None, None

    def with_change(self, row: Callable[[Row], Row], table: Callable[[Table], Table], names: Iterable[Hashable] = ()) -> Self:
        """Return the chunk with a change to its rows, and the same change to its table.

        A ValueError of ``row`` refuses the row. ``names`` are columns that a table must have for the change, whether the model
        knows them or not.
        """
        made = copy.copy(self)
        made._changes, made._before = (*self._changes, _Change(row, table, frozenset(names))), None
        return made


def drop_columns(chunk: Chunk, names: Iterable[Hashable]) -> Chunk:
    """Return a chunk without some columns, which are no features."""
    left_out = frozenset(names)

    def change_row(row: Row) -> Row:
        x, y = row
        return Row({name: value for name, value in x.items() if name not in left_out}, y) if isinstance(x, Mapping) else row

    return chunk.with_change(change_row, lambda table: table.drop_columns(left_out), left_out)


#: Fewer rows are taken one by one: a call for several costs more.
MIN_ROWS_TOGETHER = 8
_ROWS_AFTER_ONE = 32  # rows that are tried together after one that was taken alone


def process_rows(
    begin: int, end: int, most: int, take_many: Callable[[int, int], int], take_one: Callable[[int], object]
) -> None:
    """Take the rows from ``begin`` to before ``end`` in their order: up to ``most`` in one call, the others one by one.

    ``take_many(first, stop)`` takes rows from the first one on, up to one that must be taken alone, and returns their number.
    If it returns -1, it has taken none, and is called again for half of them.
    """
    size = most
    while begin < end:
        stop = min(begin + size, end)
        taken = take_many(begin, stop) if stop - begin >= MIN_ROWS_TOGETHER else 0
        if taken < 0:
            size = (stop - begin) // 2
            continue
        begin += taken
        # A row that had to be taken alone is often followed by others: few rows are tried after it.
        size = min(4 * size, most) if begin == stop else max(2 * taken, _ROWS_AFTER_ONE)
        if begin < stop:
            take_one(begin)
            begin += 1


def to_float_prefix(values: Values) -> tuple[np.ndarray, int]:
    """Return the values of a column as float64, NaN if missing, up to the first one that is no number; and how many there are.

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
    except OverflowError:  # of a whole number
        n = next(i for i, value in enumerate(values[:n]) if isinstance(value, int) and abs(value) > _LARGEST_WHOLE)
        return np.array(values[:n], np.float64), n


_NUMBERS = (int, float, np.floating, np.integer, np.bool_, type(None))
_LARGEST_WHOLE = int(math.ldexp(1.0, 1023))


_MOST_TEXTS, _LONG = 4096, 256  # that are remembered, and bytes of one that is not
_FEW = 32  # that may all be new, and come again
_ODD_SHARE, _FEW_ODD = 8, 16  # one in 8 rows may be odd, and 16 more


class UnparsedRows:
    """The numbers of rows that were not read, in their order."""

    def __init__(self, n: int) -> None:
        self._most = n // _ODD_SHARE + _FEW_ODD
        self._rows: set[int] = set()

    def add(self, row: int) -> None:
        """Add a row."""
        self._rows.add(row)

    def are_many(self, row: int) -> bool:
        """Add a row, and return whether there are too many now: then all rows are better read one by one."""
        self._rows.add(row)
        return len(self._rows) > self._most

    @property
    def rows(self) -> list[int]:
        """The rows."""
        return sorted(self._rows)


class CachedTextParser:
    """Reads the values of texts, and caches them.

    ``read`` returns the value of a text. Where it raises a ValueError, the row is odd.
    """

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self._cache: dict[Any, Any] = {}

    def of(self, texts: list[Any], odd: UnparsedRows) -> list[Any]:
        """Return the value of each text, None of an odd row."""
        cache = self._cache
        new = set(texts) - cache.keys()
        if not new:
            return list(map(cache.__getitem__, texts))
        if len(new) > max(len(texts) // 2, _FEW):  # they will hardly come again
            with contextlib.suppress(ValueError):
                return list(map(self._read, texts))
        if len(cache) + len(new) > _MOST_TEXTS:
            self._cache = cache = {}
            new = set(texts)
        for text in new:
            try:
                cache[text] = self._read(text)
            except ValueError:
                for row in (i for i, other in enumerate(texts) if other == text):
                    odd.add(row)
        values = list(map(cache.get, texts))
        for text in new:
            if len(text) > _LONG:
                cache.pop(text, None)
        return values


def concatenate_rows(rows: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return rows behind each other: their bytes, and int64 [rows] where each begins and ends."""
    ends = np.fromiter(map(len, rows), np.int64, len(rows)).cumsum()
    return b"".join(rows), np.concatenate([[0], ends[:-1]]), ends
