"""Feature names to columns, inside a fixed number of columns."""

from __future__ import annotations

import operator
import re
import struct
import zlib
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import Any, NoReturn

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, PLAIN_TYPES, Overflow, to_plain
from streamsvm.files.container import check_hash_collisions
from streamsvm.files.messages import short_repr

#: The policies for a new feature name when every column has one.
OVERFLOW_POLICIES = ("raise", "hash", "ignore")

#: What can be done where a feature has no column left.
ROOM_ADVICE = "Raise max_features, or choose overflow='hash' or overflow='ignore'"

#: The most characters of a name or a label: a model never forgets one, so its length is bounded too.
LONGEST_NAME = 1024


class FeatureSpace:
    """Gives each feature name a column, in the order in which learning meets them (sorted within a row), up to ``max_features``.

    A feature that a row does not have counts as 0. Rows to predict add no columns: a name that was never learned is ignored.
    Memory is bounded whatever names arrive: ``overflow`` says whether learning a new name, when every column has one, is a
    ValueError (``"raise"``), is put into one of the columns (``"hash"``: the CRC-32 of its text; values that meet in a column add
    up), or is left out (``"ignore"``). Rows are float32, or float64 where a model scales them, as their differences may be small
    beside their size.

    >>> space = FeatureSpace(max_features=2, overflow="ignore")
    >>> row = np.zeros(2, np.float32)
    >>> space.fill_row(row, {"a": 1.5, "b": 2, "c": 3.0}, learn=True)
    True
    >>> row, space.names
    (array([1.5, 2. ], dtype=float32), ['a', 'b'])
    """

    def __init__(self, max_features: int, overflow: Overflow, dtype: Any = np.float32) -> None:
        self.max_features = max_features
        self.overflow = overflow
        self._dtype = np.dtype(dtype)
        self._code = "d" if self._dtype == np.float64 else "f"
        self._cell: Any = np.zeros(1, self._dtype)
        self._pack_one: Callable[..., None] = struct.Struct(self._code).pack_into
        self._columns: dict[Hashable, int] = {}
        #: The columns of the table whose rows were learned, in its order; None if it is the natural one, or rows have none.
        self.order: list[Hashable] | None = None
        self._noted: Any = None  # the columns that were noted last
        # Made when a row has all known names and no other, for the names known then.
        self._pick: Callable[[Mapping[Hashable, Any]], Any] | None = None
        self._pack: Callable[..., None] = struct.pack_into

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def names(self) -> list[Hashable]:
        """The feature name of each column."""
        return list(self._columns)

    def fill_row(self, row: np.ndarray, x: Mapping[Any, Any], learn: bool) -> bool:
        """Write the features ``x`` into ``row`` [columns]; whether a new name got a column.

        New names get one if they are to ``learn``. Where the row has no room for all names then, it is not written. O(features
        of x), or O(row) where the names of ``x`` are not all known names and no other. Whether numbers are finite is left to
        the reader of the row (`raise_for_row` names the feature).

        It is a ValueError if a value is not a number, ``x`` has a name that is too long, or, when learning with
        ``overflow="raise"``, more names than columns. No name has got a column then.
        """
        if self.try_fill_row(row, x):
            return False
        if not isinstance(x, Mapping):
            raise _no_row(x)
        new = learn and not x.keys() <= self._columns.keys()
        if new:
            self._admit_names(x)
        columns = self._columns
        if new and len(columns) > len(row):
            return True
        row[:] = 0.0
        try:
            for name, value in x.items():
                column = self._column_of(name)
                self._pack_one(self._cell, 0, value)
                if column is None:
                    # While there are free columns, learning would give it one: it has no hashed column yet.
                    if self.overflow != "hash" or len(columns) < self.max_features:
                        continue
                    column = self._hashed_column(name)
                row[column] += self._cell[0]
        except (struct.error, TypeError, OverflowError):
            self.raise_for_row(x)
        return new

    def try_fill_row(self, row: np.ndarray, x: Mapping[Any, Any]) -> bool:
        """Write ``x`` into ``row`` if it has all known names, at least two, and no other; whether it has.

        This is the common case: one C call reads the values and one writes them.
        """
        # Of plain dicts only: a Counter or a defaultdict would invent the names that it does not have.
        if x.__class__ is not dict or len(x) != len(self._columns):
            return False
        if self._pick is None:
            if len(x) < 2:  # itemgetter of one name gives a bare value instead of a tuple
                return False
            self._pack = struct.Struct(f"{len(x)}{self._code}").pack_into
            self._pick = operator.itemgetter(*self._columns)
        try:
            self._pack(row, 0, *self._pick(x))
        except KeyError:
            return False
        except (struct.error, TypeError, OverflowError):
            self.raise_for_row(x)
        return True

    def make_sparse_row(self, x: Mapping[Any, Any], learn: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return a row as columns int64 [k] and values float32 [k]. O(k).

        A column may repeat where names are hashed, and is -1 where a name has none. The errors are those of `fill_row`; as there,
        whether numbers are finite is left to the reader.
        """
        if x.__class__ is not dict and not isinstance(x, Mapping):
            raise _no_row(x)
        values = np.empty(len(x), np.float32)
        try:
            struct.pack_into(f"{len(x)}f", values.data, 0, *x.values())
        except (struct.error, TypeError, OverflowError):
            self.raise_for_row(x)
        known = self._columns
        try:
            return np.fromiter(map(known.__getitem__, x), np.int64, len(x)), values
        except KeyError:
            if learn:
                self._admit_names({name: value for name, value in x.items() if self._column_of(name) is None})
            return np.array(self._known_columns(x), np.int64), values

    def find_columns(self, names: Iterable[Hashable], learn: bool) -> np.ndarray:
        """Return the column of each name, int64 [names], -1 for a name without one, for all rows of a frame."""
        names = list(names)
        if learn and not set(names) <= self._columns.keys():
            self._admit_names(dict.fromkeys(names, 0.0))
        return np.array(self._known_columns(names), np.int64)

    def _known_columns(self, names: Iterable[Hashable]) -> list[int]:
        columns = self._columns
        if self.overflow == "hash" and len(columns) == self.max_features:
            return [columns[name] if name in columns else self._hashed_column(name) for name in names]
        return [-1 if (column := self._column_of(name)) is None else column for name in names]

    def _column_of(self, name: Hashable) -> int | None:
        column = self._columns.get(name)
        # Some that equal a plain name, as those of an enumeration, have another hash.
        return column if column is not None or type(name) in PLAIN_TYPES else self._columns.get(_plain_name(name))

    def check_names(self, x: Mapping[Any, Any]) -> None:
        """Raise the ValueError that learning ``x`` would raise because of a new name, without giving it a column."""
        if not x.keys() <= self._columns.keys():
            self._new_names(x)

    def remember_order(self, names: Sequence[Hashable]) -> None:
        """Note the order of a table's columns, among which features are or are made of: the first one that is not natural.

        Memory stays bounded: of a table with more columns than twice the features that there may be, nothing is noted.
        """
        if self.order is not None or names is self._noted or len(names) > 2 * self.max_features:
            return
        self._noted = names
        if not all(type(name) is int for name in names):
            order = [_plain_name(name) for name in names]
            if order != sorted(order, key=make_natural_key) and not _has_faults(order):
                self.order = order

    def forget_names(self, known: int) -> None:
        """Forget all names but the first ``known``, as the rows with the others were refused."""
        if known < len(self._columns):
            self._columns = {name: column for name, column in self._columns.items() if column < known}
            self._pick = None

    def _admit_names(self, x: Mapping[Any, Any]) -> None:
        # All or nothing: a row that is refused must leave no name behind.
        for name in self._new_names(x):
            self._columns[name] = len(self._columns)
            self._pick = None

    def _new_names(self, x: Mapping[Any, Any]) -> list[Hashable]:
        # The names that get a column, in its order; the others are ignored or hashed.
        # Sorted, so that columns, and with them the order of every sum, do not depend on the order of a row's keys.
        new = _sorted_names([name for each in x if (name := _plain_name(each)) not in self._columns])
        room = self.max_features - len(self._columns)
        if len(new) > room:
            if self.overflow == "raise":
                raise ValueError(
                    f"feature {short_repr(new[room])} has no column left: max_features={self.max_features} names are known. "
                    f"{ROOM_ADVICE}"
                )
            new = new[:room]
        if not new:
            return new
        admitted = set(new)
        for name, value in x.items():
            length = len(name) if isinstance(name, str | bytes) else len(repr(name))
            if length > LONGEST_NAME:
                raise ValueError(f"feature {short_repr(name)} has a name of {length:,} characters, more than {LONGEST_NAME:,}")
            try:
                self._pack_one(self._cell, 0, value)
            except (struct.error, TypeError, OverflowError):
                self.raise_for_row(x)
            if not abs(self._cell[0]) <= LARGEST_FLOAT32 and _plain_name(name) in admitted:  # others are known, or ignored
                self.raise_for_row(x)
        return new

    def _hashed_column(self, name: Hashable) -> int:
        # Not hash(): Python salts that of strings anew in every process.
        text = name if isinstance(name, str) else repr(name)
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % self.max_features

    def raise_for_row(self, x: Mapping[Any, Any]) -> NoReturn:
        """Raise a ValueError that names the first feature of ``x`` which is no finite float32, or calls the row too large."""
        for name, value in x.items():
            try:
                self._pack_one(self._cell, 0, value)
            except (OverflowError, struct.error, TypeError) as error:
                if isinstance(error, OverflowError) or isinstance(value, int):  # a struct.error from Python 3.14 on
                    raise ValueError(f"feature {short_repr(name)} is {short_repr(value)}: {FINITE_ADVICE}") from None
                raise ValueError(
                    f"feature {short_repr(name)} is {short_repr(value)}, a {type(value).__name__}: features must be numbers. "
                    "If it is a name, encode it (streamsvm.stream.tables.TableEncoder, --columns NAME:category). If it marks a "
                    "missing value, say so (missing=, --missing TEXT). A run that goes on from a checkpoint reads columns as "
                    "before: fix the value, or leave its row out (--on-error skip)"
                ) from None
            if not abs(self._cell[0]) <= LARGEST_FLOAT32:
                raise ValueError(f"feature {short_repr(name)} is {short_repr(value)}: {FINITE_ADVICE}")
        raise ValueError("the row is too large: its squared norm would not be finite in float32. Scale the features")

    def restore(self, names: Iterable[Hashable]) -> None:
        """Restore the `names` of another space into a new one; a ValueError if they are too many, or one stands twice."""
        names = list(names)
        check_hash_collisions(names)
        columns = {name: column for column, name in enumerate(names)}
        if len(columns) > self.max_features or len(columns) < len(names):
            raise ValueError(f"{len(columns)} feature names, or one of them twice, for {self.max_features} columns")
        self._columns = columns
        self._pick = None

    def restore_order(self, order: list[Hashable] | None) -> None:
        """Restore the `order` of another space; a ValueError if it is none."""
        if order is not None:
            if not isinstance(order, list):
                raise ValueError(f"the order of columns is no list: {short_repr(order)}")
            check_hash_collisions(order)
            if len(order) > 2 * self.max_features or _has_faults(order):
                raise ValueError(f"the order of {len(order)} columns is none, for {self.max_features} features")
        self.order, self._noted = order, None


def make_natural_key(name: Hashable) -> tuple[Any, ...]:
    """Return what sorts names in their natural order: numbers first, and of texts f2 before f10.

    >>> sorted(["f10", "f2", 3, "f", "f02"], key=make_natural_key)
    [3, 'f', 'f2', 'f02', 'f10']
    """
    if isinstance(name, int | float):
        return 0, name
    if not isinstance(name, str):
        return 2, type(name).__name__, repr(name)
    parts = _DIGITS.split(name)  # texts and digits in turn
    parts[1::2] = map(int, parts[1::2])
    return 1, parts, len(name), name


_DIGITS = re.compile("([0-9]+)")


def _has_faults(names: Sequence[Hashable]) -> bool:
    # Names that no features have: one twice, or one too long.
    return len(set(names)) < len(names) or any(len(n if isinstance(n, str | bytes) else repr(n)) > LONGEST_NAME for n in names)


#: The end of the message on a value that is not finite in float32.
FINITE_ADVICE = (
    "features must be finite float32 numbers. Impute it (river.preprocessing.StatImputer) or leave it out (a missing feature "
    "counts as 0)"
)


def _plain_name(name: Hashable) -> Hashable:
    if type(name) in PLAIN_TYPES:
        return name
    try:
        found: Hashable = to_plain(name)
    except ValueError as error:
        raise ValueError(f"the name of a feature, {error}") from None
    return found


def _sorted_names(names: list[Hashable]) -> list[Hashable]:
    try:
        return sorted(names)  # type: ignore[type-var]
    except TypeError:
        return sorted(names, key=lambda name: (type(name).__name__, repr(name)))


def _no_row(x: object) -> ValueError:
    kind = "None: a row without features is {}" if x is None else f"a {type(x).__name__}"
    return ValueError(f"a row must be a mapping of feature names to numbers, not {kind}")
