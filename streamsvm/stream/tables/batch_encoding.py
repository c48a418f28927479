"""The features of many rows of a table: those of `TableEncoder.transform_one`, to the bit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.compiling.functions import compiled
from streamsvm.files.category_names import compute_column_seed, compute_name_key, normalize_name
from streamsvm.stream.tables.chunk import Table, Values, to_float_prefix
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP
from streamsvm.stream.tables.column_state import ColumnState
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.target_encoding import TargetEncoding
from streamsvm.stream.tables.values import encode_cycle


class NumericColumn(NamedTuple):
    """The values of a column of numbers."""

    values: np.ndarray
    """float64 [rows], NaN where a row has none."""
    wrong: np.ndarray
    """The numbers of the rows with another value, which learners refuse, in their order."""
    texts: np.ndarray
    """Those of them whose value is a text."""


class CategoryColumn(NamedTuple):
    """The values of a column of names."""

    codes: np.ndarray
    """The place of each row's name in ``texts``, int64 [rows]."""
    texts: list[str | None]
    """The names; None is a missing one."""
    wrong: np.ndarray
    """The sorted numbers of the rows whose value cannot be a name."""
    keys: np.ndarray
    """The key of each of the ``texts`` in the statistics, uint32; 0 for a missing one."""
    places: dict[str, list[int]]
    """The places in ``texts`` of each name, as all formats have it."""


class ParsedTable:
    """The columns of a table as an encoder reads them, before it encodes rows of it."""

    def __init__(self, table: Table, parser: TableParser) -> None:
        self.table = table
        self.numbers: dict[Hashable, NumericColumn] = {}
        self.names: dict[Hashable, CategoryColumn] = {}
        for name, values in zip(table.names, table.columns, strict=True):
            if parser.get_kind(name) == CATEGORY:
                self.names[name] = _names_of(values, parser, name)
            elif parser.get_kind(name) != DROP:
                self.numbers[name] = _numbers_of(parser.parse_column(name, values))
        self.has_value: np.ndarray = np.zeros(len(table), bool)
        for values in table.columns:
            if self.has_value.all():
                break
            self.has_value |= (
                ~np.isnan(values) if isinstance(values, np.ndarray) else np.array([value is not None for value in values], bool)
            )


def _numbers_of(values: Values) -> NumericColumn:
    numbers, n = to_float_prefix(values)
    if n == len(values):
        large = np.abs(numbers) > LARGEST_FLOAT32
        return NumericColumn(numbers, np.flatnonzero(large), _NONE) if large.any() else NumericColumn(numbers, _NONE, _NONE)
    numbers_by_row, wrong, texts = np.full(len(values), np.nan), [], []
    for i, value in enumerate(values):
        number, is_number = to_float_prefix([value])
        if is_number and not abs(number[0]) > LARGEST_FLOAT32:
            numbers_by_row[i] = number[0]
            continue
        wrong.append(i)
        if isinstance(value, str | bytes):
            texts.append(i)
    return NumericColumn(numbers_by_row, np.array(wrong, np.int64), np.array(texts, np.int64))


def _names_of(values: Values, parser: TableParser, column: Hashable) -> CategoryColumn:
    cells: list[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    kinds = set(map(type, cells)) - {type(None)}
    rows: Sequence[Any]
    if len(kinds) <= 1 and kinds <= _TOLD_APART:
        read, rows = parser.get_value_parser(column), cells
        texts = {value: read(value) for value in dict.fromkeys(cells)}
    else:
        rows = [key if isinstance(key, str | None) else _NO_NAME for key in parser.parse_column(column, cells)]
        texts = dict(zip(rows, rows, strict=True))
    codes = dict(zip(texts, range(len(texts)), strict=True))
    row_codes = np.fromiter(map(codes.__getitem__, rows), np.int64, len(rows))
    wrong = np.flatnonzero(row_codes == codes[_NO_NAME]) if _NO_NAME in codes else _NONE
    names = [None if text is _NO_NAME else text for text in texts.values()]
    places: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if name is not None:
            places.setdefault(normalize_name(name), []).append(place)
    keys, seed = np.zeros(len(names), np.uint32), compute_column_seed(column)
    for name, alike in places.items():
        keys[alike] = compute_name_key(seed, name)
    return CategoryColumn(row_codes, names, wrong, keys, places)


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
    columns: ColumnState,
    table: ParsedTable,
    first: int,
    end: int,
    learned: np.ndarray | None,
    known: Collection[Hashable] | None,
    y: Sequence[Any] = (),
    weights: np.ndarray | None = None,
) -> Encoded:
    """Encode rows of a table from number ``first`` on, up to ``end``, or to one that must be encoded by itself.

    The ``columns`` are the encoder's, whose ``numbers`` and ``statistics`` are written by ``learn``. ``learned``, bool [end -
    first], says whether each of these rows is to be learned: one that brings something new, or a feature that the learner does
    not have among the ``known`` (None: it has all), must be encoded by itself then. None: rows are predicted only. ``y`` are the
    labels of the rows and ``weights`` float64 theirs, for statistics; without them, none are learned.
    """
    encoding = _BatchEncoding(columns, table, first, end, learned is not None, None if known is None else set(known))
    counting = (
        None
        if columns.target_encoding is None
        else _BatchTargetEncoding(columns.target_encoding, encoding, table, learned, y, weights)
    )
    n = encoding.n
    names = [*encoding.numbers, *encoding.indicators, *encoding.waves, *([] if counting is None else counting.names)]
    if len(set(names)) < len(names):  # a column is called as a feature of another
        n = 0
    X = np.zeros((n, len(names)))
    means: dict[Hashable, tuple[int, float]] = {}
    mask = np.zeros(n, bool) if learned is None else learned[:n]
    for place, (name, column) in enumerate(encoding.numbers.items()):
        numbers, filled = np.ascontiguousarray(column[:n]), np.empty(n)
        means[name] = fill_means(numbers, mask, *columns.means[name], filled)
        X[:, place] = np.where(np.isnan(numbers), 0.0, numbers) if columns.when_missing == "drop" else filled
    rows = np.arange(n)
    for places in encoding.ones:
        has = places[:n] >= 0
        X[rows[has], places[:n][has] + len(encoding.numbers)] = 1.0
    for place, numbers in enumerate(encoding.waves.values(), len(encoding.numbers) + len(encoding.indicators)):
        X[:, place] = numbers[:n]
    if counting is not None and counting.names:
        X[:, len(names) - len(counting.names) :] = counting.values[:n]

    def learn() -> None:
        columns.means.update({name: (int(count), float(mean)) for name, (count, mean) in means.items()})
        if counting is not None:
            counting.learn(n)

    return Encoded(X, names, int(np.count_nonzero(~table.has_value[first : first + n])), learn)


class _BatchTargetEncoding:
    """The statistics of the names of rows, each before its label is counted, and the labels to count."""

    def __init__(
        self,
        statistics: TargetEncoding,
        encoding: _BatchEncoding,
        table: ParsedTable,
        learned: np.ndarray | None,
        y: Sequence[Any],
        weights: np.ndarray | None,
    ) -> None:
        self._statistics, suffixes = statistics, statistics.suffixes
        self._y = np.full(encoding.n, np.nan)
        if learned is not None and len(y):
            self._y, encoding.n = statistics.get_label_codes(y, learned[: encoding.n])
        asked = {name: keys for name, keys in encoding.asked.items() if suffixes}
        for name, keys in asked.items():
            if not all(encoding.is_known(f"{name}~{suffix}") for suffix in suffixes):
                encoding.cut(keys != 0)
        n = encoding.n
        self._w = np.ones(n) if weights is None else np.ascontiguousarray(weights[:n], np.float64)
        keys_of_rows = [names.keys[names.codes[encoding.first : encoding.first + n]] for names in table.names.values()]
        self._named = np.sort(np.column_stack(keys_of_rows) if keys_of_rows else np.zeros((n, 0), np.uint32), axis=1)
        wanted = np.column_stack([keys[:n] for keys in asked.values()]) if asked else np.zeros((n, 0), np.uint32)
        values, encoding.n = statistics.encode_rows(self._named, np.ascontiguousarray(wanted), self._y[:n], self._w)
        features = [f"{name}~{suffix}" for name in asked for suffix in suffixes]
        places = [place for place, feature in enumerate(features) if encoding.is_known(feature)]
        #: The features, and their values, float64 [rows, features].
        self.names: list[Hashable] = [features[place] for place in places]
        self.values: np.ndarray = values.reshape(n, len(features))[:, places]

    def learn(self, n: int) -> None:
        """Count the labels of the first rows."""
        self._statistics.learn_rows(self._named[:n], self._y[:n], self._w[:n])


class _BatchEncoding:
    """The features of rows, column by column, up to the first row that must be encoded by itself."""

    def __init__(
        self, columns: ColumnState, table: ParsedTable, first: int, end: int, learns: bool, known: set[Hashable] | None
    ) -> None:
        self._columns, self._learns, self._known = columns, learns, known
        #: Number of the first row in the table.
        self.first: int = first
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
        #: Of each column of names, the key of each row's name, if that has statistics, else 0.
        self.asked: dict[Hashable, np.ndarray] = {}
        # Whether rows with columns that were not learned may be refused.
        self._is_full = len({*columns.means, *columns.categories, *table.numbers, *table.names}) > columns.max_columns
        nothing = np.full(self.n, np.nan)
        for name, numbers in table.numbers.items():
            self._add_numbers(name, numbers)
        for name, names in table.names.items():
            self._add_names(name, names)
        for name in columns.means:
            if name not in table.table.names:
                self._add_values(name, nothing[: self.n])
        for name in columns.categories:
            if name not in table.table.names:
                self._add_codes(
                    name, np.zeros(self.n, np.int64), CategoryColumn(_NONE, [None], _NONE, np.zeros(1, np.uint32), {})
                )

    def is_known(self, feature: Hashable) -> bool:
        """Whether the learner knows a feature."""
        return self._known is None or feature in self._known

    def cut(self, rows: np.ndarray, always: bool = False) -> None:
        """End before the first of some rows, given as bool [rows], where rows are learned, or always."""
        rows = rows[: self.n]
        if (self._learns or always) and rows.any():
            self.n = int(np.argmax(rows))

    def _cut_at(self, rows: np.ndarray) -> None:
        """End before the first of some rows of the table, given by their numbers in their order."""
        at = np.searchsorted(rows, self.first)
        if at < len(rows):
            self.n = min(self.n, int(rows[at]) - self.first)

    def _add_numbers(self, name: Hashable, numbers: NumericColumn) -> None:
        is_left_out = name not in self._columns.means and not self._learns and self._columns.parser.get_kind(name) != DATE
        self._cut_at(np.setdiff1d(numbers.wrong, numbers.texts) if is_left_out else numbers.wrong)
        self._add_values(name, numbers.values[self.first : self.first + self.n])

    def _add_values(self, name: Hashable, numbers: np.ndarray) -> None:
        columns, known, is_new = self._columns, self.is_known(name), name not in self._columns.means
        missing = np.isnan(numbers)
        if is_new:
            self.cut(~missing, self._is_full)
        elif known:
            self.numbers[name] = numbers
        else:
            self.cut(np.ones(len(numbers), bool) if columns.when_missing != "drop" else ~missing)
        if columns.when_missing == "indicator" and missing.any() and not is_new:
            if self.is_known(feature := f"{name} is missing"):
                self.ones.append(np.where(missing, self._place_of(feature), -1))
            else:
                self.cut(missing)
        if columns.parser.get_kind(name) == DATE and not missing.all():
            for cycle in columns.cycles:
                pairs = [(0.0, 0.0) if value != value else encode_cycle(value, cycle) for value in numbers[: self.n].tolist()]
                for part, wave in zip(("sin", "cos"), zip(*pairs, strict=True), strict=False):
                    if self.is_known(feature := f"{name} {cycle} {part}"):
                        self.waves[feature] = np.array(wave)
                    else:
                        self.cut(~missing)

    def _add_names(self, name: Hashable, names: CategoryColumn) -> None:
        self._cut_at(names.wrong)
        self._add_codes(name, names.codes[self.first : self.first + self.n], names)

    def _add_codes(self, name: Hashable, codes: np.ndarray, names: CategoryColumn) -> None:
        columns, texts = self._columns, names.texts
        known = columns.categories.get(name)
        places, is_new, asked = np.full(len(texts), -1), np.zeros(len(texts), bool), np.zeros(len(texts), np.uint32)
        if known is not None and columns.target_encoding is not None and columns.is_full(name):
            asked = names.keys.copy()  # all but those that have a feature, which are few
            rest = [code for text in known for code in names.places.get(text, ())]
            rest += [code for code, text in enumerate(texts) if text is None]
        else:
            rest = np.flatnonzero(np.bincount(codes, minlength=len(texts))).tolist()
        for code in rest:
            text = None if (spelling := texts[code]) is None else columns.name_of(name, spelling)
            feature: str | None = None
            if text is not None:
                feature, has_target_encoding = columns.encode_name(name, text)
                is_new[code] = known is None or columns.propose_feature(name, text) is not None
                asked[code] = names.keys[code] if has_target_encoding else 0
            elif columns.when_missing == "indicator" and known is not None:
                feature = f"{name} is missing"
            if feature and self.is_known(feature):
                places[code] = self._place_of(feature)
            elif feature:
                is_new[code] = True
        if is_new.any():
            self.cut(is_new[codes], self._is_full and known is None)
        if (places >= 0).any():
            self.ones.append(places[codes])
        if asked.any():
            self.asked[name] = asked[codes]

    def _place_of(self, feature: Hashable) -> int:
        return self.indicators.setdefault(feature, len(self.indicators))
