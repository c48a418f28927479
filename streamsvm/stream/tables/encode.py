"""The features of many rows of a table: those of `TableEncoder.transform_one`, to the bit."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Collection, Hashable, Mapping
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
    columns: Columns, table: Table, first: int, end: int, learned: np.ndarray | None, known: Collection[Hashable] | None
) -> Encoded:
    """Encode rows from one number on, up to another, or to one that must be encoded by itself.

    Parameters
    ----------
    columns
        The encoder's; its ``numbers`` are written by ``learn``.
    table
        The rows.
    first, end
        Numbers of the first row, and of the one after the last.
    learned
        Whether each of these rows is to be learned, bool [end - first]: a row that brings something new, or a feature that is not
        ``known``, must be encoded by itself then. None: rows are predicted only.
    known
        The features that the learner knows. None: all.
    """
    encoding = _Encoding(columns, end - first, learned is not None, None if known is None else set(known))
    there = {name: values for name, values in zip(table.names, table.columns, strict=True) if not columns.reading.drops(name)}
    encoding.make_room(there)
    for name, values in there.items():
        encoding.add(name, values[first:end])
    encoding.add_absent(set(table.names))
    n = encoding.n
    names = encoding.names()
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
        X[rows[has], places[:n][has]] = 1.0
    for place, numbers in encoding.others.items():
        X[:, place] = numbers[:n]

    def learn() -> None:
        columns.numbers.update({name: (int(count), float(mean)) for name, (count, mean) in means.items()})

    present = np.zeros(n, bool)
    for values in table.columns:
        if present.all():
            break
        some = values[first : first + n]
        present |= ~np.isnan(some) if isinstance(some, np.ndarray) else np.array([each is not None for each in some], bool)
    return Encoded(X, names, n - int(present.sum()), learn)


class _Encoding:
    """The features of rows, column by column, up to the first row that must be encoded by itself."""

    def __init__(self, columns: Columns, n: int, learns: bool, known: set[Hashable] | None) -> None:
        self.columns, self.n, self._learns, self._known = columns, n, learns, known
        #: Of each column of numbers, the values.
        self.numbers: dict[Hashable, np.ndarray] = {}
        self._indicators: dict[Hashable, int] = {}  # the place of each feature that is 1 in some rows
        #: Places of features that are 1, one in each row, -1 for none.
        self.ones: list[np.ndarray] = []
        self._waves: list[tuple[str, np.ndarray]] = []
        self._pending: list[np.ndarray] = []
        self._is_full = False  # whether rows with columns that were not learned may be refused

    def make_room(self, names: Collection[Hashable]) -> None:
        """See whether there is room for the columns of some names."""
        n_columns = len({*self.columns.numbers, *self.columns.features, *names})
        self._is_full = n_columns > self.columns.max_columns

    def names(self) -> list[Hashable]:
        """Return the names of all features, in the order of their places."""
        first = len(self.numbers)
        self.ones = [np.where(places >= 0, places + first, -1) for places in self._pending]
        self.others = {first + len(self._indicators) + k: values for k, (_, values) in enumerate(self._waves)}
        return [*self.numbers, *self._indicators, *(name for name, _ in self._waves)]

    def _is_known(self, feature: Hashable) -> bool:
        return self._known is None or feature in self._known

    def _cut(self, rows: np.ndarray, always: bool = False) -> None:
        """End before the first of some rows, given as bool [rows], where rows are learned, or always."""
        rows = rows[: self.n]
        if (self._learns or always) and rows.any():
            self.n = int(np.argmax(rows))

    def add(self, name: Hashable, values: Values) -> None:
        """Encode the values of a column."""
        values = values[: self.n]
        if self.columns.reading.category_of(name):
            self._add_names(name, values)
        else:
            self._add_numbers(name, values)

    def add_absent(self, there: Collection[Hashable]) -> None:
        """Encode the columns that were learned, and are not there."""
        for name in self.columns.numbers:
            if name not in there:
                self._add_numbers(name, np.full(self.n, np.nan))
        for name in self.columns.features:
            if name not in there:
                self._add_names(name, [None] * self.n)

    def _add_numbers(self, name: Hashable, given: Values) -> None:
        columns, known = self.columns, self._is_known(name)
        is_new, values = name not in columns.numbers, columns.reading.column(name, given)
        if is_new and not self._learns and isinstance(values, list) and not columns.reading.date_of(name):  # texts are left out
            values = [None if isinstance(value, str | bytes) else value for value in values]
        numbers, n = as_numbers(values)
        self.n = min(self.n, n)
        missing = np.isnan(numbers)
        wrong = ~missing & ~(np.abs(numbers) <= _LARGEST)
        if wrong.any():  # is refused
            self.n = min(self.n, int(np.argmax(wrong)))
        if is_new:
            self._cut(~missing, self._is_full)
        elif known:
            self.numbers[name] = numbers
        else:
            self._cut(np.ones(n, bool) if columns.when_missing != "drop" else ~missing)
        if columns.when_missing == "indicator" and missing.any() and not is_new:
            if self._is_known(feature := f"{name} is missing"):
                self._pending.append(np.where(missing, self._place(feature), -1))
            else:
                self._cut(missing)
        if columns.reading.date_of(name) and not missing.all():
            for cycle in columns.cycles:
                pairs = [(0.0, 0.0) if value != value else cyclic(value, cycle) for value in numbers[: self.n].tolist()]
                for part, wave in zip(("sin", "cos"), zip(*pairs, strict=True), strict=False):
                    if self._is_known(feature := f"{name} {cycle} {part}"):
                        self._waves.append((feature, np.array(wave)))
                    else:
                        self._cut(~missing)

    def _add_names(self, name: Hashable, given: Values) -> None:
        columns, n = self.columns, len(given)
        known = columns.features.get(name)
        features: dict[Any, str | None] = {}
        new: set[Any] = set()
        keys, texts = _names_in(given, columns.reading, name)
        if len(keys) < n:  # a value has no name: its row is refused
            self.n, n = min(self.n, len(keys)), len(keys)
        for key, found in texts.items():
            text = None if found is None else columns.name_of(name, found)
            feature = None if text is None or known is None else known.get(text)
            if text is not None and feature is None:
                if known is None:
                    new.add(key)
                elif len(known) >= columns.max_values or len(f"{name}={text}") > LONGEST_FEATURE:
                    feature = columns.bucket_of(name, text)
                else:
                    new.add(key)
            if text is None and columns.when_missing == "indicator" and known is not None:
                feature = f"{name} is missing"
            if feature is not None and not self._is_known(feature):
                new.add(key)
                feature = None
            features[key] = feature
        if new:
            self._cut(np.fromiter((key in new for key in keys), bool, n), self._is_full and known is None)
        places = {key: -1 if feature is None else self._place(feature) for key, feature in features.items()}
        self._pending.append(np.fromiter(map(places.__getitem__, keys), np.int64, n))

    def _place(self, feature: Hashable) -> int:
        return self._indicators.setdefault(feature, len(self._indicators))


def _names_in(values: Values, reading: Reading, column: Hashable) -> tuple[list[Any], dict[Any, str | None]]:
    """Return what tells the values of a column apart, up to one that has no name, and the name of each, None if it is missing."""
    given: list[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    kinds = set(map(type, given)) - {type(None)}
    if len(kinds) <= 1 and kinds <= _TOLD_APART:
        read = reading.cell_reader(column)
        return given, {value: read(value) for value in dict.fromkeys(given)}
    names = reading.column(column, given)
    names = names[: next((i for i, name in enumerate(names) if not isinstance(name, str | None)), len(names))]
    return list(names), dict(zip(names, names, strict=True))


#: Values of one of these types are equal only if their names are: 1, True and 1.0 are equal, and so are some times.
_TOLD_APART = {str, int, bool, float}
