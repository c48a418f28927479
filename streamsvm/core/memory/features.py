"""Maps feature names to a limited number of columns, and writes rows as arrays."""

from __future__ import annotations

import math
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

#: Policies for a new feature name when all columns are taken.
OVERFLOW_POLICIES = ("raise", "hash", "ignore")

#: Advice in the error about a feature when all columns are taken.
ROOM_ADVICE = "Raise max_features, or choose overflow='hash' or overflow='ignore'"

#: Maximum number of characters of a name or a label, which bounds a model's memory, because it keeps all names.
LONGEST_NAME = 1024

_DOUBLE = struct.Struct("d")
_MAX_COLUMNS_PER_VALUE = 8  # a row with fewer values is written value by value


class FeatureSpace:
    """Maps feature names to columns, in the order of their first occurrence (sorted within a row), up to ``max_features``.

    A feature that is missing in a row counts as 0. Rows to predict add no columns: unknown names are ignored. ``overflow`` is the
    policy for learning a new name when all columns are taken, so that memory stays bounded: ``"raise"`` a ValueError, ``"hash"``
    the name to one of the columns (by the CRC-32 of its text; values in the same column are added), or ``"ignore"`` it. Rows are
    float32, or float64 if the model scales them, because the differences of large values may be small.

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
        #: Column order of the table whose rows were learned; None if it is the natural order, or rows did not come from a table.
        self.order: list[Hashable] | None = None
        self._last_order: Any = None  # the argument of the last call of `remember_order`
        # Created for the present names by `try_fill_row`, and discarded when a name is added.
        self._pick: Callable[[Mapping[Hashable, Any]], Any] | None = None
        self._pack: Callable[..., None] = struct.pack_into
        # Created by `_try_fill_known`, and discarded likewise.
        self._zeros: dict[Hashable, float] | None = None
        self._packer: struct.Struct = struct.Struct("")

    def __len__(self) -> int:
        return len(self._columns)

    @property
    def names(self) -> list[Hashable]:
        """The names of the features that have a column, as a list in the order of the columns."""
        return list(self._columns)

    def fill_row(self, row: np.ndarray, x: Mapping[Any, Any], learn: bool) -> bool:
        """Write the values of ``x``, a dict of feature name to number, into the array ``row`` [columns], with 0 for missing
        features. With ``learn``, new names get a column, else they are ignored. Returns whether new names got a column.

        If ``row`` is too short for all names then, it is not written. Numbers that are not finite are not detected (call
        `raise_for_row` for an error that names the feature). O(features of x) if the names of ``x`` are exactly the known names,
        else O(row).

        Raises ValueError if a value is not a number or a name is too long, or if no column is left with ``overflow="raise"``. No
        name gets a column then.
        """
        if self.try_fill_row(row, x):
            return False
        if x.__class__ is dict and self._try_fill_known(row, x):
            return False
        if not isinstance(x, Mapping):
            raise _invalid_row_error(x)
        has_new_names = learn and not x.keys() <= self._columns.keys()
        if has_new_names:
            self._add_names(x)
        columns = self._columns
        if has_new_names and len(columns) > len(row):
            return True
        row[:] = 0.0
        try:
            for name, value in x.items():
                column = self._find_column(name)
                self._pack_one(self._cell, 0, value)
                if column is None:
                    # Names are hashed only when no column is left: before that, learning would add a column.
                    if self.overflow != "hash" or len(columns) < self.max_features:
                        continue
                    column = self._hashed_column(name)
                row[column] += self._cell[0]
        except (struct.error, TypeError, OverflowError):
            self.raise_for_row(x)
        return has_new_names

    def try_fill_row(self, row: np.ndarray, x: Mapping[Any, Any]) -> bool:
        """Write the values of ``x``, a dict of feature name to number, into the array ``row`` [columns]. This is a fast path for
        a dict whose names are exactly the known ones (at least two). Returns False, and writes nothing, for any other ``x``;
        then `fill_row` is to be called.

        This is the fast path for the common case: one C call reads the values and one writes them.
        """
        # Only plain dicts: a Counter or a defaultdict would return values for missing names.
        if x.__class__ is not dict or len(x) != len(self._columns):
            return False
        if self._pick is None:
            if len(x) < 2:  # itemgetter of a single name does not return a tuple
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

    def _try_fill_known(self, row: np.ndarray, x: dict[Any, Any]) -> bool:
        """Write the values of ``x``, a dict of feature name to number, into the array ``row`` [columns], with 0 for missing
        features. This is a fast path for a dict of known names, at least an eighth of all. Returns False, and writes nothing, for
        any other ``x``.
        """
        n, zeros = len(self._columns), self._zeros
        if n > _MAX_COLUMNS_PER_VALUE * len(x):
            return False
        if zeros is None or self._packer.size != row.nbytes:
            zeros = self._zeros = dict.fromkeys(self._columns, 0.0)
            self._packer = struct.Struct(f"{n}{self._code}{row.nbytes - n * row.itemsize}x")  # x is a zero byte
        values = zeros | x
        if len(values) > n:
            return False
        try:
            self._packer.pack_into(row.data, 0, *values.values())
        except (struct.error, TypeError, OverflowError):
            self.raise_for_row(x)
        row += 0.0  # turns -0.0 into 0.0
        return True

    def make_sparse_row(self, x: Mapping[Any, Any], learn: bool) -> tuple[np.ndarray, np.ndarray]:
        """Convert the row ``x``, a dict of k feature names to numbers, to arrays of column indices, int64 [k], and values,
        float32 [k]. With ``learn``, new names get a column; otherwise the index of an unknown name is -1. O(k).

        Indices may repeat if names are hashed. The errors are those of `fill_row`. Numbers that are not finite are not detected.
        """
        if x.__class__ is not dict and not isinstance(x, Mapping):
            raise _invalid_row_error(x)
        values = np.empty(len(x), np.float32)
        try:
            struct.pack_into(f"{len(x)}f", values.data, 0, *x.values())
        except (struct.error, TypeError, OverflowError):
            self.raise_for_row(x)
        columns = self._columns
        try:
            return np.fromiter(map(columns.__getitem__, x), np.int64, len(x)), values
        except KeyError:
            if learn:
                self._add_names({name: value for name, value in x.items() if self._find_column(name) is None})
            return np.array(self._list_columns(x), np.int64), values

    def find_columns(self, names: Iterable[Hashable], learn: bool) -> np.ndarray:
        """Return the column index of each of ``names``, the column names of a frame: int64 [names], with -1 for names without a
        column. With ``learn``, new names get a column.
        """
        names = list(names)
        if learn and not set(names) <= self._columns.keys():
            self._add_names(dict.fromkeys(names, 0.0))
        return np.array(self._list_columns(names), np.int64)

    def _list_columns(self, names: Iterable[Hashable]) -> list[int]:
        """Return the column index of each of ``names`` (feature names) as a list. An unknown name has the index -1. If all
        columns are taken and ``overflow`` is ``"hash"``, it has the column that a hash of the name selects.
        """
        columns = self._columns
        if self.overflow == "hash" and len(columns) == self.max_features:
            return [columns[name] if name in columns else self._hashed_column(name) for name in names]
        return [-1 if (column := self._find_column(name)) is None else column for name in names]

    def _find_column(self, name: Hashable) -> int | None:
        """Return the column index of a feature ``name``; None if it has no column."""
        column = self._columns.get(name)
        # Some objects that equal a plain name, such as members of an enumeration, have another hash.
        return column if column is not None or type(name) in PLAIN_TYPES else self._columns.get(_to_plain_name(name))

    def check_names(self, x: Mapping[Any, Any]) -> None:
        """Raise ValueError if the row ``x`` (dict of feature name to number) has a new name that cannot get a column: because
        the name is too long, or because there would be more than ``max_features`` names. Nothing is changed.
        """
        if not x.keys() <= self._columns.keys():
            self._check_new_names(x)

    def remember_order(self, names: Sequence[Hashable]) -> None:
        """Remember ``names``, the column order of the table that rows come from, for exported models. Only the first order that
        differs from the natural order of names (f2 before f10) is kept.

        Tables with more than ``2 * max_features`` columns are ignored, so that memory stays bounded.
        """
        if self.order is not None or names is self._last_order or len(names) > 2 * self.max_features:
            return
        self._last_order = names
        if not all(type(name) is int for name in names):
            order = [_to_plain_name(name) for name in names]
            if order != sorted(order, key=make_natural_sort_key) and not _are_invalid_names(order):
                self.order = order

    def forget_names(self, n_known: int) -> None:
        """Remove the columns of all feature names except the first ``n_known``. It undoes the addition of names by rows that the
        learner then refused.
        """
        if n_known < len(self._columns):
            self._columns = {name: column for name, column in self._columns.items() if column < n_known}
            self._pick = self._zeros = None

    def _add_names(self, x: Mapping[Any, Any]) -> None:
        """Give each new feature name of the row ``x`` a column, as far as the limit ``max_features`` allows. Raises ValueError,
        and adds no name, if a name or a value is invalid, or if there are too many names and ``overflow`` is ``"raise"``.
        """
        for name in self._check_new_names(x):
            self._columns[name] = len(self._columns)
            self._pick = self._zeros = None

    def _check_new_names(self, x: Mapping[Any, Any]) -> list[Hashable]:
        """Return the feature names of the row ``x`` that are new and can get a column, sorted. Raises ValueError if a name is too
        long, a value is invalid, or there are too many names and ``overflow`` is ``"raise"``.

        They are sorted, so that columns, and with them the order of sums, do not depend on the order of a row's keys. Names that
        exceed ``max_features`` are left out if they are ignored or hashed.
        """
        new = _sort_names([plain for name in x if (plain := _to_plain_name(name)) not in self._columns])
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
            if not abs(self._cell[0]) <= LARGEST_FLOAT32 and _to_plain_name(name) in admitted:
                self.raise_for_row(x)
        return new

    def _hashed_column(self, name: Hashable) -> int:
        """Return the column index that a feature ``name`` shares with others when all columns are taken: the CRC-32 of its text
        modulo ``max_features``. Python's ``hash`` of strings differs between processes.
        """
        text = name if isinstance(name, str) else repr(name)
        return zlib.crc32(text.encode("utf-8", "surrogatepass")) % self.max_features

    @staticmethod
    def raise_for_row(x: Mapping[Any, Any], row: int | None = None) -> NoReturn:
        """Raise the ValueError that explains why the row ``x`` is invalid. The message names the first feature whose value is
        not a finite float32 number or, if all are finite, the squared norm of the row, which is too large. It begins with the
        number ``row``, if there is one.
        """
        place = "" if row is None else f"row {row}: "
        for name, value in x.items():
            try:
                number = _DOUBLE.unpack(_DOUBLE.pack(value))[0]
            except (OverflowError, struct.error, TypeError) as error:
                if not (isinstance(error, OverflowError) or isinstance(value, int)):  # a struct.error from Python 3.14 on
                    problem = f"{short_repr(value)}, a {type(value).__name__}: features must be numbers"
                    raise ValueError(
                        f"{place}feature {short_repr(name)} is {problem}. If it is a name, encode it "
                        "(streamsvm.stream.tables.TableEncoder, --columns NAME:category). If it marks a missing value, say so "
                        "(missing=, --missing TEXT). A run that resumes from a checkpoint reads columns as before: fix the "
                        "value, or leave its row out (--on-error skip)"
                    ) from None
                number = math.inf
            if not abs(number) <= LARGEST_FLOAT32:
                raise ValueError(f"{place}feature {short_repr(name)} is {short_repr(value)}: {FINITE_ADVICE}")
        raise ValueError(f"{place}the row is too large: its squared norm would not be finite in float32. Scale the features")

    @classmethod
    def raise_for_numbers(cls, numbers: np.ndarray, names: Iterable[Hashable], row: int) -> NoReturn:
        """Raise the ValueError of `raise_for_row` about ``numbers``, the values of the features ``names`` in the row ``row``."""
        cls.raise_for_row(dict(zip(names, numbers.tolist(), strict=True)), row)

    def restore(self, names: Iterable[Hashable]) -> None:
        """Replace all feature names by ``names``, the saved `names` of another feature space, in the order of columns. Raises
        ValueError if there are more than ``max_features``, or one is repeated.
        """
        names = list(names)
        check_hash_collisions(names)
        columns = {name: column for column, name in enumerate(names)}
        if len(columns) > self.max_features or len(columns) < len(names):
            raise ValueError(f"{len(names)} feature names for {self.max_features} columns, or a repeated name")
        self._columns = columns
        self._pick = self._zeros = None

    def restore_order(self, order: list[Hashable] | None) -> None:
        """Replace the remembered order of columns (that of the tables that rows came from) by ``order``, a list of names or
        None, read from a saved model. Raises ValueError if it is not a list of distinct names, or is too long.
        """
        if order is not None:
            if not isinstance(order, list):
                raise ValueError(f"the order of columns is not a list: {short_repr(order)}")
            check_hash_collisions(order)
            if len(order) > 2 * self.max_features or _are_invalid_names(order):
                raise ValueError(f"the order of {len(order)} columns is invalid for {self.max_features} features")
        self.order, self._last_order = order, None


def make_natural_sort_key(name: Hashable) -> tuple[Any, ...]:
    """Return a sort key for a feature ``name``, for natural order: numbers before texts, and digits in texts compared as numbers,
    so that f2 comes before f10.

    >>> sorted(["f10", "f2", 3, "f", "f02"], key=make_natural_sort_key)
    [3, 'f', 'f2', 'f02', 'f10']
    """
    if isinstance(name, int | float):
        return 0, name
    if not isinstance(name, str):
        return 2, type(name).__name__, repr(name)
    parts = _DIGITS.split(name)  # alternates between text and digits
    parts[1::2] = ((len(number), number) for number in (digits.lstrip("0") for digits in parts[1::2]))  # int has a limit
    return 1, parts, len(name), name


_DIGITS = re.compile("([0-9]+)")


def _are_invalid_names(names: Sequence[Hashable]) -> bool:
    """Return whether one of ``names`` is repeated, or longer than 1,024 characters."""
    return len(set(names)) < len(names) or any(len(n if isinstance(n, str | bytes) else repr(n)) > LONGEST_NAME for n in names)


#: End of the error message about a value that is not finite in float32.
FINITE_ADVICE = (
    "features must be finite float32 numbers. Impute it (river.preprocessing.StatImputer) or leave it out (a missing feature "
    "counts as 0)"
)


def _to_plain_name(name: Hashable) -> Hashable:
    """Convert a feature ``name`` to a plain Python object (such as a numpy scalar to an int), so that it can be saved. Raises
    ValueError for types that cannot be converted.
    """
    if type(name) in PLAIN_TYPES:
        return name
    try:
        plain: Hashable = to_plain(name)
    except ValueError as error:
        raise ValueError(f"the name of a feature, {error}") from None
    return plain


def _sort_names(names: list[Hashable]) -> list[Hashable]:
    """Return feature names sorted by ``<`` or, if their types cannot be compared, by type name and repr."""
    try:
        return sorted(names)  # type: ignore[type-var]
    except TypeError:
        return sorted(names, key=lambda name: (type(name).__name__, repr(name)))


def _invalid_row_error(x: object) -> ValueError:
    """Return the ValueError for ``x``, a row that is not a mapping of feature names to numbers; the caller raises it."""
    kind = "None: a row without features is {}" if x is None else f"a {type(x).__name__}"
    return ValueError(f"a row must be a mapping of feature names to numbers, not {kind}")
