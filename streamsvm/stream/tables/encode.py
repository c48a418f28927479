"""The features of many rows of a table: those of `TableEncoder.transform_one`, to the bit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.stream.tables.chunk import Table, Values, as_numbers
from streamsvm.stream.tables.reading import Reading
from streamsvm.stream.tables.values import cyclic, spelling

#: A longer text of a category is hashed: names of features are never forgotten.
LONGEST_FEATURE = 1024
_LARGEST = 3.4028234663852886e38  # of float32


class Columns(NamedTuple):
    """What an encoder knows of its columns, and how it encodes them."""

    reading: Reading
    numbers: dict[Hashable, tuple[int, float]]
    """Rows and mean of each column of numbers that was learned."""
    features: Mapping[Hashable, Mapping[str, str]]
    """The feature of each value of each column of names that was learned."""
    when_missing: str
    cycles: list[str]
    max_values: int
    buckets: int
    max_columns: int

    def name_of(self, column: Hashable, text: str) -> str:
        """Return the name that a text is in a column: as it was learned, or as all formats have it."""
        return text if text in self.features.get(column, ()) else spelling(text)

    def bucket_of(self, name: Hashable, text: str) -> str:
        """Return the feature that a text shares with others of its column."""
        return f"{name}#{zlib.crc32(text.encode('utf-8', 'surrogatepass')) % self.buckets}"


class Numbers(NamedTuple):
    """The values of a column of numbers."""

    values: np.ndarray
    """float64 [rows], NaN where a row has none."""
    wrong: np.ndarray
    """The numbers of the rows with another value, which learners refuse, in their order."""
    texts: np.ndarray
    """Those of them whose value is a text."""


class Names(NamedTuple):
    """The values of a column of names."""

    codes: np.ndarray
    """The place of each row's name in ``texts``, int64 [rows]."""
    texts: list[str | None]
    """The names; None is a missing one."""
    wrong: np.ndarray
    """The numbers of the rows whose value is no name, in their order."""


class ReadTable:
    """The columns of a table as an encoder reads them, before it encodes rows of it."""

    def __init__(self, table: Table, reading: Reading) -> None:
        self.table = table
        self.numbers: dict[Hashable, Numbers] = {}
        self.names: dict[Hashable, Names] = {}
        for name, values in zip(table.names, table.columns, strict=True):
            if reading.category_of(name):
                self.names[name] = _names_of(values, reading, name)
            elif not reading.drops(name):
                self.numbers[name] = _numbers_of(reading.column(name, values))
        self.has_value: np.ndarray = np.zeros(len(table), bool)
        for values in table.columns:
            if self.has_value.all():
                break
            self.has_value |= (
                ~np.isnan(values) if isinstance(values, np.ndarray) else np.array([each is not None for each in values], bool)
            )


def _numbers_of(values: Values) -> Numbers:
    numbers, n = as_numbers(values)
    if n == len(values):
        large = np.abs(numbers) > _LARGEST
        return Numbers(numbers, np.flatnonzero(large), _NONE) if large.any() else Numbers(numbers, _NONE, _NONE)
    found, wrong, texts = np.full(len(values), np.nan), [], []
    for i, value in enumerate(values):
        number, is_number = as_numbers([value])
        if is_number and not abs(number[0]) > _LARGEST:
            found[i] = number[0]
            continue
        wrong.append(i)
        if isinstance(value, str | bytes):
            texts.append(i)
    return Numbers(found, np.array(wrong, np.int64), np.array(texts, np.int64))


def _names_of(values: Values, reading: Reading, column: Hashable) -> Names:
    given: list[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    kinds = set(map(type, given)) - {type(None)}
    keys: Sequence[Any]
    if len(kinds) <= 1 and kinds <= _TOLD_APART:
        read, keys = reading.cell_reader(column), given
        texts = {value: read(value) for value in dict.fromkeys(given)}
    else:
        keys = [key if isinstance(key, str | None) else _NO_NAME for key in reading.column(column, given)]
        texts = dict(zip(keys, keys, strict=True))
    codes = dict(zip(texts, range(len(texts)), strict=True))
    found = np.fromiter(map(codes.__getitem__, keys), np.int64, len(keys))
    wrong = np.flatnonzero(found == codes[_NO_NAME]) if _NO_NAME in codes else _NONE
    return Names(found, [None if text is _NO_NAME else text for text in texts.values()], wrong)


_NONE = np.empty(0, np.int64)
#: Values of one of these types are equal only if their names are: 1, True and 1.0 are equal, and so are some times.
_TOLD_APART = {str, int, bool, float}
_NO_NAME: Any = object()


class Encoded(NamedTuple):
    """Features of rows."""

    X: np.ndarray
    """float64 [rows, features]: 0 where a row does not have the feature."""
    names: list[Hashable]
    empty: int
    """The number of rows without any value."""
    learn: Callable[[], None]
    """Has the encoder learn the rows."""


@compiled
def fill_means(values: Any, learned: Any, count: int, mean: float, out: Any) -> Any:
    """Write values float64 [n], and for those that are missing the mean of those learned before them, into ``out``.

    ``learned``, bool [n], says which rows are learned. Returns the number of values that were learned, and their mean.
    """
    for i in range(values.shape[0]):
        if np.isnan(values[i]):
            out[i] = mean
        else:
            out[i] = values[i]
            if learned[i]:
                mean += (values[i] - mean) / (count + 1)
                count += 1
    return count, mean


def encode(
    columns: Columns, table: ReadTable, first: int, end: int, learned: np.ndarray | None, known: Collection[Hashable] | None
) -> Encoded:
    """Encode rows from one number on, up to another, or to one that must be encoded by itself.

    Parameters
    ----------
    columns
        The encoder's; its ``numbers`` are written by ``learn``.
    table
        The rows, as this encoder reads them.
    first, end
        Numbers of the first row, and of the one after the last.
    learned
        Whether each of these rows is to be learned, bool [end - first]: a row that brings something new, or a feature that is not
        ``known``, must be encoded by itself then. None: rows are predicted only.
    known
        The features that the learner knows. None: all.
    """
    encoding = _Encoding(columns, table, first, end, learned is not None, None if known is None else set(known))
    n = encoding.n
    names = [*encoding.numbers, *encoding.indicators, *encoding.waves]
    if len(set(names)) < len(names):  # a column is called as a feature of another
        n = 0
    X = np.zeros((n, len(names)))
    means: dict[Hashable, tuple[int, float]] = {}
    mask = np.zeros(n, bool) if learned is None else learned[:n]
    for place, (name, given) in enumerate(encoding.numbers.items()):
        numbers, filled = np.ascontiguousarray(given[:n]), np.empty(n)
        means[name] = fill_means(numbers, mask, *columns.numbers[name], filled)
        X[:, place] = np.where(np.isnan(numbers), 0.0, numbers) if columns.when_missing == "drop" else filled
    rows = np.arange(n)
    for places in encoding.ones:
        has = places[:n] >= 0
        X[rows[has], places[:n][has] + len(encoding.numbers)] = 1.0
    for place, numbers in enumerate(encoding.waves.values(), len(names) - len(encoding.waves)):
        X[:, place] = numbers[:n]

    def learn() -> None:
        columns.numbers.update({name: (int(count), float(mean)) for name, (count, mean) in means.items()})

    return Encoded(X, names, int(np.count_nonzero(~table.has_value[first : first + n])), learn)


class _Encoding:
    """The features of rows, column by column, up to the first row that must be encoded by itself."""

    def __init__(
        self, columns: Columns, table: ReadTable, first: int, end: int, learns: bool, known: set[Hashable] | None
    ) -> None:
        self._columns, self._first, self._learns, self._known = columns, first, learns, known
        #: Number of rows.
        self.n: int = end - first
        #: Of each column of numbers, the values.
        self.numbers: dict[Hashable, np.ndarray] = {}
        #: The place of each feature that is 1 in some rows.
        self.indicators: dict[Hashable, int] = {}
        #: Such places, one in each row, -1 for none.
        self.ones: list[np.ndarray] = []
        #: The values of features of cycles.
        self.waves: dict[Hashable, np.ndarray] = {}
        # Whether rows with columns that were not learned may be refused.
        self._is_full = len({*columns.numbers, *columns.features, *table.numbers, *table.names}) > columns.max_columns
        nothing = np.full(self.n, np.nan)
        for name, numbers in table.numbers.items():
            self._add_numbers(name, numbers)
        for name, names in table.names.items():
            self._add_names(name, names)
        for name in columns.numbers:
            if name not in table.table.names:
                self._add_values(name, nothing[: self.n])
        for name in columns.features:
            if name not in table.table.names:
                self._add_codes(name, np.zeros(self.n, np.int64), [None])

    def _is_known(self, feature: Hashable) -> bool:
        return self._known is None or feature in self._known

    def _cut(self, rows: np.ndarray, always: bool = False) -> None:
        """End before the first of some rows, given as bool [rows], where rows are learned, or always."""
        rows = rows[: self.n]
        if (self._learns or always) and rows.any():
            self.n = int(np.argmax(rows))

    def _cut_at(self, rows: np.ndarray) -> None:
        """End before the first of some rows of the table, given by their numbers in their order."""
        at = np.searchsorted(rows, self._first)
        if at < len(rows):
            self.n = min(self.n, int(rows[at]) - self._first)

    def _add_numbers(self, name: Hashable, numbers: Numbers) -> None:
        is_left_out = name not in self._columns.numbers and not self._learns and not self._columns.reading.date_of(name)
        self._cut_at(np.setdiff1d(numbers.wrong, numbers.texts) if is_left_out else numbers.wrong)
        self._add_values(name, numbers.values[self._first : self._first + self.n])

    def _add_values(self, name: Hashable, numbers: np.ndarray) -> None:
        columns, known, is_new = self._columns, self._is_known(name), name not in self._columns.numbers
        missing = np.isnan(numbers)
        if is_new:
            self._cut(~missing, self._is_full)
        elif known:
            self.numbers[name] = numbers
        else:
            self._cut(np.ones(len(numbers), bool) if columns.when_missing != "drop" else ~missing)
        if columns.when_missing == "indicator" and missing.any() and not is_new:
            if self._is_known(feature := f"{name} is missing"):
                self.ones.append(np.where(missing, self._place(feature), -1))
            else:
                self._cut(missing)
        if columns.reading.date_of(name) and not missing.all():
            for cycle in columns.cycles:
                pairs = [(0.0, 0.0) if value != value else cyclic(value, cycle) for value in numbers[: self.n].tolist()]
                for part, wave in zip(("sin", "cos"), zip(*pairs, strict=True), strict=False):
                    if self._is_known(feature := f"{name} {cycle} {part}"):
                        self.waves[feature] = np.array(wave)
                    else:
                        self._cut(~missing)

    def _add_names(self, name: Hashable, names: Names) -> None:
        self._cut_at(names.wrong)
        self._add_codes(name, names.codes[self._first : self._first + self.n], names.texts)

    def _add_codes(self, name: Hashable, codes: np.ndarray, texts: list[str | None]) -> None:
        columns = self._columns
        known = columns.features.get(name)
        places, is_new = np.full(len(texts), -1), np.zeros(len(texts), bool)
        for code in np.flatnonzero(np.bincount(codes, minlength=len(texts))).tolist():
            text = None if (found := texts[code]) is None else columns.name_of(name, found)
            feature = None if text is None or known is None else known.get(text)
            if text is not None and feature is None:
                if known is None:
                    is_new[code] = True
                elif len(known) >= columns.max_values or len(f"{name}={text}") > LONGEST_FEATURE:
                    feature = columns.bucket_of(name, text)
                else:
                    is_new[code] = True
            if text is None and columns.when_missing == "indicator" and known is not None:
                feature = f"{name} is missing"
            if feature is not None and self._is_known(feature):
                places[code] = self._place(feature)
            elif feature is not None:
                is_new[code] = True
        if is_new.any():
            self._cut(is_new[codes], self._is_full and known is None)
        self.ones.append(places[codes])

    def _place(self, feature: Hashable) -> int:
        return self.indicators.setdefault(feature, len(self.indicators))
