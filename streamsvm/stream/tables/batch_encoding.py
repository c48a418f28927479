"""Encodes many rows of a table at once, with the same features, to the bit, as `TableEncoder.transform_one`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Sequence
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.compiling.functions import compiled
from streamsvm.files.category_names import compute_column_seed, compute_name_key, normalize_name
from streamsvm.files.characters import Characters
from streamsvm.stream.tables.chunk import MIN_BATCH_ROWS, Table, Values, to_float_prefix
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, TEXT
from streamsvm.stream.tables.column_state import ColumnState
from streamsvm.stream.tables.dates import encode_cycle
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.target_encoding import MAX_WEIGHT
from streamsvm.stream.tables.text_encoding import TextEncoding


class NumericColumn(NamedTuple):
    """The parsed values of a numeric or date column."""

    values: np.ndarray
    """float64 [rows], NaN for missing."""
    invalid_rows: np.ndarray
    """Ascending indices of the rows with other values, which learners refuse."""
    text_rows: np.ndarray
    """Those of them whose value is a text."""


class CategoryColumn(NamedTuple):
    """The parsed values of a categorical column."""

    codes: np.ndarray
    """Index of each row's category in ``categories``, int64 [rows]."""
    categories: list[str | None]
    """The distinct categories; None stands for missing."""
    invalid_rows: np.ndarray
    """Ascending indices of the rows whose value cannot be a category."""
    keys: np.ndarray
    """The key of each category in the target encoding, uint32; 0 for missing."""
    codes_by_name: dict[str, list[int]]
    """The codes of each normalised name: several spellings may have the same one."""


class ParsedTable:
    """The columns of a table as parsed for an encoder with this ``state``, which encodes them in batches of rows."""

    def __init__(self, table: Table, state: ColumnState) -> None:
        self.table: Table = table
        self._state, parser = state, state.parser
        self.numeric_columns: dict[Hashable, NumericColumn] = {}
        self.category_columns: dict[Hashable, CategoryColumn] = {}
        #: The parsed values of each column of texts; None if a text is missing.
        self.text_columns: dict[Hashable, list[str | None]] = {}
        for name, values in zip(table.names, table.columns, strict=True):
            if parser.get_kind(name) == CATEGORY:
                self.category_columns[name] = _parse_categories(values, parser, name)
            elif parser.get_kind(name) == TEXT:
                self.text_columns[name] = list(parser.parse_column(name, values))
            elif parser.get_kind(name) != DROP:
                self.numeric_columns[name] = _check_numbers(parser.parse_column(name, values))
        #: Whether each row has at least one value.
        self.has_value: np.ndarray = np.zeros(len(table), bool)
        for values in table.columns:
            if self.has_value.all():
                break
            self.has_value |= (
                ~np.isnan(values) if isinstance(values, np.ndarray) else np.array([value is not None for value in values], bool)
            )

    def encode_batch(
        self,
        first: int,
        stop: int,
        is_learned: np.ndarray | None,
        features: Collection[Hashable] | None,
        y: Sequence[Any] = (),
        weights: np.ndarray | None = None,
    ) -> EncodedBatch:
        """Encode rows ``first`` to ``stop - 1`` of this table as a matrix of features, float64 [rows, features], each row as
        `TableEncoder.transform_one` would. The batch ends early, before the first row that must be encoded on its own, such as
        one with a new category or an invalid value.

        ``is_learned``, bool [stop - first], is a mask of the rows that will be learned; None: rows are only predicted. A row that
        will be learned must be encoded singly if it has a new column, a new category, or a feature that is not among the
        learner's ``features`` (None: any feature may be used). ``y`` are the labels of the rows and ``weights`` their weights,
        float64, for the target encoding, which is not learned without them. ``update_encoder`` of the result changes the state.
        """
        state = self._state
        batch = _BatchEncoding(state, self, first, stop, is_learned is not None, None if features is None else set(features))
        learn_labels = batch.add_encodings_of_labels(self, is_learned, y, weights)
        n = batch.n
        names = [*map(state.get_feature, batch.numbers), *batch.indicators, *(feature for feature, _ in batch.columns)]
        if len(set(names)) < len(names):  # a column has the name of another column's feature
            n = 0
        X = np.zeros((n, len(names)))
        means: dict[Hashable, tuple[int, float]] = {}
        mask = np.zeros(n, bool) if is_learned is None else is_learned[:n]
        for i, (name, column) in enumerate(batch.numbers.items()):
            numbers, filled = np.ascontiguousarray(column[:n]), np.empty(n)
            means[name] = fill_means(numbers, mask, *state.means[name], filled)
            X[:, i] = np.where(np.isnan(numbers), 0.0, numbers) if state.when_missing == "drop" else filled
        rows = np.arange(n)
        for indices in batch.indicator_indices:
            has_indicator = indices[:n] >= 0
            X[rows[has_indicator], indices[:n][has_indicator] + len(batch.numbers)] = 1.0
        for i, (_, numbers) in enumerate(batch.columns, len(batch.numbers) + len(batch.indicators)):
            X[:, i] = numbers[:n]

        def update_encoder() -> None:
            state.forget_cells()
            state.means.update({name: (int(count), float(mean)) for name, (count, mean) in means.items()})
            for name in batch.numbers:
                if state.parser.get_kind(name) == DATE:
                    dates = batch.numbers[name][:n][mask]
                    first, last = np.fmin.reduce(dates, initial=np.inf), np.fmax.reduce(dates, initial=-np.inf)
                    state.extend_date_range(name, float(first), float(last))
            if n:
                learn_labels()

        return EncodedBatch(X, names, int(np.count_nonzero(~self.has_value[first : first + n])), update_encoder)


def _check_numbers(values: Values) -> NumericColumn:
    """Convert the values of a numeric column to float64, with NaN for missing and invalid ones. Returns the numbers, the indices
    of the rows with an invalid value (not a number, or too large for float32), and the indices of those among them with a text.
    """
    numbers, n = to_float_prefix(values)
    if n == len(values):
        is_large = np.abs(numbers) > LARGEST_FLOAT32
        return NumericColumn(numbers, np.flatnonzero(is_large) if is_large.any() else _NO_ROWS, _NO_ROWS)
    valid_numbers, invalid_rows, text_rows = np.full(len(values), np.nan), [], []
    for i, value in enumerate(values):
        number, is_number = to_float_prefix([value])
        if is_number and not abs(number[0]) > LARGEST_FLOAT32:
            valid_numbers[i] = number[0]
            continue
        invalid_rows.append(i)
        if isinstance(value, str | bytes):
            text_rows.append(i)
    return NumericColumn(valid_numbers, np.array(invalid_rows, np.int64), np.array(text_rows, np.int64))


def _parse_categories(values: Values, parser: TableParser, column: Hashable) -> CategoryColumn:
    """Convert the values of a categorical column to integer codes. The result has the code of each row, the list of distinct
    categories, the invalid rows, and the integer key of each category in the target encoding. ``parser`` parses each distinct
    value only once.
    """
    cells: list[Any] = values.tolist() if isinstance(values, np.ndarray) else values
    types = set(map(type, cells)) - {type(None)}
    rows: Sequence[Any]
    if len(types) <= 1 and types <= _UNAMBIGUOUS_TYPES:
        parse_value, rows = parser.get_value_parser(column), cells
        texts = {value: parse_value(value) for value in dict.fromkeys(cells)}
    else:
        rows = [text if isinstance(text, str | None) else _INVALID for text in parser.parse_column(column, cells)]
        texts = dict(zip(rows, rows, strict=True))
    codes = dict(zip(texts, range(len(texts)), strict=True))
    row_codes = np.fromiter(map(codes.__getitem__, rows), np.int64, len(rows))
    invalid_rows = np.flatnonzero(row_codes == codes[_INVALID]) if _INVALID in codes else _NO_ROWS
    categories = [None if text is _INVALID else text for text in texts.values()]
    codes_by_name: dict[str, list[int]] = {}
    for code, text in enumerate(categories):
        if text is not None:
            codes_by_name.setdefault(normalize_name(text), []).append(code)
    keys, seed = np.zeros(len(categories), np.uint32), compute_column_seed(column)
    for name, name_codes in codes_by_name.items():
        keys[name_codes] = compute_name_key(seed, name)
    return CategoryColumn(row_codes, categories, invalid_rows, keys, codes_by_name)


_NO_ROWS = np.empty(0, np.int64)
_MAX_CHARACTERS = 2**18  # of all texts that are learned together: up to 80 MB are needed to undo this
#: Values of one of these types are equal only if their categories are. Across types, 1, True and 1.0 are equal.
_UNAMBIGUOUS_TYPES = {str, int, bool, float}
_INVALID: Any = object()


class EncodedBatch(NamedTuple):
    """The features of a batch of rows."""

    X: np.ndarray
    """float64 [rows, features]; 0 if a row does not have the feature."""
    names: list[Hashable]
    n_empty: int
    """Number of rows without any value."""
    update_encoder: Callable[[], None]
    """Let the encoder learn the rows."""


@compiled
def fill_means(values: Any, is_learned: Any, count: int, mean: float, out: Any) -> Any:
    """Copy ``values`` to ``out``, both float64 [n], and replace each NaN by the mean of the numbers before it. The mean starts as
    that of ``count`` earlier numbers, and is updated with the rows in the mask ``is_learned``. Returns the final count and mean.
    """
    for i in range(values.shape[0]):
        if np.isnan(values[i]):
            out[i] = mean
        else:
            out[i] = values[i]
            if is_learned[i]:
                mean += (values[i] - mean) / (count + 1)
                count += 1
    return count, mean


class _BatchEncoding:
    """The features of a batch, collected by column; the batch ends before the first row that must be encoded singly."""

    def __init__(
        self, state: ColumnState, table: ParsedTable, first: int, stop: int, learns: bool, features: set[Hashable] | None
    ) -> None:
        self.state, self._learns, self._features = state, learns, features
        #: Index of the first row in the table.
        self.first: int = first
        #: Number of rows.
        self.n: int = stop - first
        #: The values of each numeric column.
        self.numbers: dict[Hashable, np.ndarray] = {}
        #: The index of each indicator feature, which is 1 in some rows.
        self.indicators: dict[Hashable, int] = {}
        #: Arrays with the index of each row's indicator, -1 if it has none.
        self.indicator_indices: list[np.ndarray] = []
        #: The features with other numbers, such as cycles and target encodings, and their values.
        self.columns: list[tuple[Hashable, np.ndarray]] = []
        #: The encoding of each learned column of texts.
        self.text_encodings: dict[Hashable, TextEncoding] = {}
        #: For each categorical column, the key of each row's category if it is target encoded, otherwise 0.
        self.target_keys: dict[Hashable, np.ndarray] = {}
        #: For each column that is a key, the key of each row's category.
        self.recalled_keys: dict[Hashable, np.ndarray] = {}
        columns = {*state.columns, *table.numeric_columns, *table.category_columns, *table.text_columns}
        self._may_exceed_columns = len(columns) > state.max_columns  # then rows with new columns may be refused
        missing = np.full(self.n, np.nan)
        for name, numeric_column in table.numeric_columns.items():
            self._add_numeric_column(name, numeric_column)
        for name, category_column in table.category_columns.items():
            self._cut_before_rows(category_column.invalid_rows)
            self._add_codes(name, category_column.codes[first : first + self.n], category_column)
        for name in {**state.texts, **table.text_columns}:
            texts = table.text_columns.get(name)
            self._add_texts(name, [None] * self.n if texts is None else texts[self.first : self.first + self.n])
        for name in state.means:
            if name not in table.table.names:
                self._add_numbers(name, missing[: self.n])
        only_missing = CategoryColumn(_NO_ROWS, [None], _NO_ROWS, np.zeros(1, np.uint32), {})
        for name in state.categories:
            if name not in table.table.names:
                self._add_codes(name, np.zeros(self.n, np.int64), only_missing)

    def add_encodings_of_labels(
        self, table: ParsedTable, is_learned: np.ndarray | None, y: Sequence[Any], weights: np.ndarray | None
    ) -> Callable[[], None]:
        """Add the target encodings of categories, and the features of texts, each row as of before its own label in ``y`` is
        learned. Returns a function that learns the labels of this batch.
        """
        if (encoding := self.state.target_encoding) is None:
            return lambda: None
        suffixes, codes = encoding.suffixes, np.full(self.n, np.nan)
        if is_learned is not None and len(y):
            codes, self.n = encoding.get_label_codes(y, is_learned[: self.n])
        requests = (self.target_keys, self.recalled_keys) if suffixes else ({}, {})
        for request, kinds in zip(requests, (suffixes, encoding.memory_suffixes), strict=True):
            for name, keys in request.items():
                if not all(self.is_usable(f"{name}~{kind}") for kind in kinds):
                    self.cut_before(keys != 0)
        n, stop = self.n, self.first + self.n
        codes, w = codes[:n], np.ones(n) if weights is None else np.minimum(weights[:n], MAX_WEIGHT, dtype=np.float64)
        no_keys, categories = np.zeros((n, 0), np.uint32), table.category_columns.values() if self.state.buckets is None else ()
        row_keys = np.column_stack([no_keys, *(column.keys[column.codes[self.first : stop]] for column in categories)])
        row_keys.sort(axis=1)
        encoded, recalled = (np.column_stack([no_keys, *(keys[:n] for keys in request.values())]) for request in requests)
        values, targets = encoding.encode_rows(row_keys, encoded, recalled, codes, w)
        columns = [*zip(encoding.make_names(*requests), values.T, strict=True)]
        texts: list[tuple[TextEncoding, Characters]] = []
        for name, text_encoding in self.text_encodings.items():
            characters = Characters.from_texts([text or "" for text in table.text_columns[name][self.first : stop]])
            texts.append((text_encoding, characters))
            values = text_encoding.encode_rows(characters, encoding, targets, w)
            columns += zip(text_encoding.make_names(name, encoding), values.T, strict=True)
        self.columns += [(feature, numbers) for feature, numbers in columns if self.is_usable(feature)]

        def learn_labels() -> None:
            encoding.learn_rows(row_keys, codes, w)
            for text_encoding, characters in texts:
                text_encoding.learn_rows(characters, encoding, targets, w)

        return learn_labels

    def is_usable(self, feature: Hashable) -> bool:
        """Return whether a feature may be part of this batch: it is one of the learner's features, or any feature is allowed."""
        return self._features is None or feature in self._features

    def cut_before(self, mask: np.ndarray, always: bool = False) -> None:
        """End this batch before the first row that is True in ``mask``, bool [rows], because this row must be encoded on its own.
        If the rows are only predicted, nothing is changed, unless ``always`` is set.
        """
        mask = mask[: self.n]
        if (self._learns or always) and mask.any():
            self.n = int(np.argmax(mask))

    def _cut_before_rows(self, rows: np.ndarray) -> None:
        """End this batch before the first of ``rows``, which are ascending row indices in the table. Those that lie before the
        start of the batch are ignored.
        """
        i = np.searchsorted(rows, self.first)
        if i < len(rows):
            self.n = min(self.n, int(rows[i]) - self.first)

    def _add_numeric_column(self, name: Hashable, column: NumericColumn) -> None:
        """Add the features of a numeric or date column to this batch, which ends before the first row with an invalid value."""
        # When only predicted, a column that was never learned may contain texts, which are ignored.
        ignores_texts = name not in self.state.means and not self._learns and self.state.parser.get_kind(name) != DATE
        self._cut_before_rows(np.setdiff1d(column.invalid_rows, column.text_rows) if ignores_texts else column.invalid_rows)
        self._add_numbers(name, column.values[self.first : self.first + self.n])

    def _add_numbers(self, name: Hashable, numbers: np.ndarray) -> None:
        """Add the features of a numeric or date column to this batch: the ``numbers``, float64 [rows] (NaN: missing). Depending
        on the encoder's options, also add indicators of missing values, and sine and cosine of the time of day, week or year.
        """
        state, is_new = self.state, name not in self.state.means
        is_missing = np.isnan(numbers)
        if is_new:
            self.cut_before(~is_missing, self._may_exceed_columns)
        elif self.is_usable(state.get_feature(name)):
            self.numbers[name] = numbers
        else:
            self.cut_before(np.ones(len(numbers), bool) if state.when_missing != "drop" else ~is_missing)
        if not is_new:
            self._add_missing_indicator(name, is_missing)
        if not is_missing.all():
            for cycle in state.cycles.get(name, ()):
                pairs = [(0.0, 0.0) if value != value else encode_cycle(value, cycle) for value in numbers[: self.n].tolist()]
                for part, values in zip(("sin", "cos"), zip(*pairs, strict=True), strict=False):
                    if self.is_usable(feature := f"{name} {cycle} {part}"):
                        self.columns.append((feature, np.array(values)))
                    else:
                        self.cut_before(~is_missing)

    def _add_missing_indicator(self, name: Hashable, is_missing: np.ndarray) -> None:
        """Add the indicator of a column's missing values, if the encoder has them; ``is_missing``, bool [rows], is its mask."""
        if self.state.when_missing == "indicator" and is_missing.any():
            if self.is_usable(feature := f"{self.state.get_feature(name)} is missing"):
                self.indicator_indices.append(np.where(is_missing, self._add_indicator(feature), -1))
            else:
                self.cut_before(is_missing)

    def _add_texts(self, name: Hashable, texts: Sequence[str | None]) -> None:
        """Add the features of a column of texts (None: missing) to this batch, which ends before the first row with an invalid
        value. If it learns, it has at most 262,144 characters, divided by the number of such columns, or 8 rows.
        """
        self.cut_before(np.array([not isinstance(text, str | None) for text in texts], bool), always=True)
        texts = texts[: self.n]
        state, is_missing, is_learned = self.state, np.array([text is None for text in texts], bool), name in self.state.texts
        if not is_learned or not all(map(self.is_usable, TextEncoding.make_names(name, state.target_encoding))):
            self.cut_before(~is_missing, self._may_exceed_columns and not is_learned)
        if is_learned:
            self._add_missing_indicator(name, is_missing)
            if not is_missing.all():
                self.text_encodings[name] = state.texts[name]
        if self._learns:
            n_characters = np.cumsum([len(text or "") for text in texts])
            limit = _MAX_CHARACTERS // max(len(state.texts), 1)
            self.n = min(self.n, max(int(np.searchsorted(n_characters, limit)), MIN_BATCH_ROWS))

    def _add_codes(self, name: Hashable, codes: np.ndarray, column: CategoryColumn) -> None:
        """Add the features of a categorical column to this batch: one-hot, hashed and target-encoded ones. ``codes``, int64
        [rows], has the category of each row, as an index into ``column.categories``.
        """
        state, categories = self.state, column.categories
        learned = state.categories.get(name)
        n_categories = len(categories)
        indices, is_new, keys = np.full(n_categories, -1), np.zeros(n_categories, bool), np.zeros(n_categories, np.uint32)
        if learned is not None and state.buckets is None and state.is_full(name):
            keys = column.keys.copy()  # all are target encoded, except the few with a feature of their own
            codes_to_check = [code for text in learned for code in column.codes_by_name.get(text, ())]
            codes_to_check += [code for code, text in enumerate(categories) if text is None]
        else:
            codes_to_check = np.flatnonzero(np.bincount(codes, minlength=n_categories)).tolist()
        for code in codes_to_check:
            feature: str | None = None
            if (text := categories[code]) is not None:
                category = state.encode_category(name, text)
                feature, is_new[code] = category.feature, not category.is_settled
                keys[code] = column.keys[code] if category.has_target_encoding else 0
            elif state.when_missing == "indicator" and learned is not None:
                feature = f"{state.get_feature(name)} is missing"
            if feature and self.is_usable(feature):
                indices[code] = self._add_indicator(feature)
            elif feature:
                is_new[code] = True
        if is_new.any():
            self.cut_before(is_new[codes], self._may_exceed_columns and learned is None)
        if (indices >= 0).any():
            self.indicator_indices.append(indices[codes])
        if keys.any():
            self.target_keys[name] = keys[codes]
        if name in state.keys and column.keys[codes].any():
            self.recalled_keys[name] = column.keys[codes]
        if name == state.key_feature:
            self.columns.append((name, np.where(column.keys == 0, np.nan, column.keys)[codes]))

    def _add_indicator(self, feature: Hashable) -> int:
        """Return the index that a 0-1 feature has among those of this batch. A feature that is not there yet is added."""
        return self.indicators.setdefault(feature, len(self.indicators))
