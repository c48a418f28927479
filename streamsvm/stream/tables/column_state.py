"""The learned state of a `TableEncoder`: means of numeric columns, features of categories, and target encoding."""

from __future__ import annotations

import itertools
import math
import re
import zlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import is_
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, to_python_scalar
from streamsvm.files.category_names import compute_column_seed, compute_name_key, normalize_name, normalize_spelling
from streamsvm.files.characters import MAX_TEXT_LENGTH, Characters
from streamsvm.files.messages import format_count, short_repr
from streamsvm.stream.tables.chunk import Values
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, TEXT
from streamsvm.stream.tables.dates import format_date
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.target_encoding import MAX_WEIGHT, TargetEncoding
from streamsvm.stream.tables.text_encoding import TextEncoding
from streamsvm.stream.tables.value_checks import to_finite_number
from streamsvm.stream.tables.values import flatten_row

#: Maximum length of a feature name. A longer category has no feature of its own, because names are never forgotten.
MAX_FEATURE_LENGTH = 1024
#: The learned attributes of a `ColumnState`, by their names in the saved state of an encoder.
STORED_NAMES = {"_means": "means", "_categories": "categories", "_statistics": "target_encoding"}
STORED_NAMES |= {"_quoted": "quoted", "_date_ranges": "date_ranges", "_texts": "texts"}
#: Default number of one-hot categories of a column: with hash buckets, target encoding of labels, and of regression targets.
_MAX_VALUES_WITH_BUCKETS, _MAX_VALUES_OF_CLASSIFIERS, _MAX_VALUES_OF_REGRESSORS = 64, 6, 32
_INDICATOR_THRESHOLD = 0.5  # a 0-1 feature counts as 1 above this, in a support vector that was merged from several rows
_MAX_CODE_LENGTH = 8  # digits of a code for which other numbers of leading zeros are tried
_MIN_SHARE_BEYOND = 0.25  # of the range of learned dates: nearer dates are usual in a stream, and cost no accuracy


#: A row whose values all have these types is recognised if it comes again.
_IMMUTABLE_TYPES = {str, int, float, bool, type(None)}
_CELL_TYPES = {str, int, float}  # equal values of these types are the same category
_MAX_CELLS, _MAX_CELL_LENGTH = 64, 64  # cells of a column whose encoding is remembered, and their characters


class Category(NamedTuple):
    """A category of a row, and how it is encoded."""

    name: str
    key: int
    """Its key in the target encoding."""
    feature: str | None
    """The name of its one-hot or hashed feature; None or ``""`` if it has neither."""
    has_target_encoding: bool
    is_settled: bool
    """Whether learning this category changes neither its encoding nor that of others."""


@dataclass(slots=True)
class ParsedRow:
    """A row of a table by the kinds of its columns. Missing values are left out."""

    numbers: dict[Hashable, float]
    """Numbers by column; dates are seconds since 1970."""
    names: dict[Hashable, Category]
    """Categories by column."""
    texts: dict[Hashable, Characters]
    """Texts by column."""
    features: dict[Hashable, Any] | None = None
    """The encoded row, once it is known."""
    memory: Mapping[Hashable, Any] = field(default_factory=dict)
    """The features with the memory of keys as of an earlier time; those that are not here are as of now."""
    cells: tuple[tuple[Any, ...], tuple[Any, ...]] = ((), ())
    """The columns and the values that were parsed."""

    @property
    def values(self) -> dict[Hashable, float | str]:
        """The numbers, the names of the categories, and the texts in lower case, by column."""
        texts = {column: str(text.codes.tobytes(), "utf-32-le", "surrogatepass") for column, text in self.texts.items()}
        return {**self.numbers, **{column: category.name for column, category in self.names.items()}, **texts}


class ColumnState:
    """The columns that an encoder has learned: running means, one-hot features of categories, and their target encoding.

    Parameters are those of `TableEncoder`.
    """

    def __init__(
        self,
        parser: TableParser,
        when_missing: str,
        cycles: list[str],
        max_values: int | None,
        buckets: int | None,
        max_columns: int,
    ) -> None:
        self.parser: TableParser = parser
        self.when_missing: str = when_missing
        #: The cycles of each column of dates.
        self.cycles: dict[Hashable, list[str]] = {name: [] for name in parser.columns_of_kind(DATE)}
        for column, _, cycle in (text.rpartition(":") for text in cycles):
            for name in [column] if column else self.cycles:
                self.cycles[name].append(cycle)
        self.buckets: int | None = buckets
        self.max_columns: int = max_columns
        self._max_values = max_values
        #: The categorical columns whose memory is a feature, too.
        self.keys: frozenset[Hashable] = frozenset(parser.keys)
        #: The column among them whose key, a number, is passed to the learner, because it has small models of each key.
        self.key_feature: str | None = None
        #: Number of values and running mean of each learned numeric or date column.
        self.means: dict[Hashable, tuple[int, float]] = {}
        #: First and last date of each learned column of dates, in seconds since 1970. Models of older versions have no ranges.
        self.date_ranges: dict[Hashable, tuple[float, float]] = {}
        #: For each learned categorical column, the one-hot feature of each category; empty if it does not have one yet.
        self.categories: dict[Hashable, dict[str, str]] = {}
        #: For each learned column of numbers whose name looks like a derived feature, such as ``city=Oslo`` beside the category
        #: ``city``: its feature, which is the name in quotes. Models of older versions have no quoted names.
        self.quoted: dict[Hashable, str] = {}
        #: The encoding of each learned column of texts. Models of older versions have none.
        self.texts: dict[Hashable, TextEncoding] = {}
        names_and_texts = [*parser.columns_of_kind(CATEGORY), *parser.columns_of_kind(TEXT)]
        derived = [f"{re.escape(column)}[=~#]" for column in names_and_texts]
        derived += [f"{re.escape(str(column))} ({'|'.join(names)}) (sin|cos)$" for column, names in self.cycles.items() if names]
        derived += [".* is missing$"] if when_missing == "indicator" else []
        self._derived_feature = re.compile("|".join(['"', *derived]), re.DOTALL) if derived else None
        self._last_row: ParsedRow | None = None  # as of the state that has not changed since
        # For each categorical column, the settled categories of its cells; empty for columns of texts.
        self._known_cells: dict[Hashable, dict[Any, Category]] = {name: {} for name in names_and_texts}
        is_needed = (buckets is None and parser.columns_of_kind(CATEGORY)) or parser.columns_of_kind(TEXT)
        #: The target encoding of the categories, and the labels of texts; None if the encoder does not need labels.
        self.target_encoding: TargetEncoding | None = TargetEncoding(bool(self.keys)) if is_needed else None

    @property
    def columns(self) -> list[Hashable]:
        """Names of the columns that were learned so far, numbers and dates first, then categories and texts."""
        return [*self.means, *self.categories, *self.texts]

    @property
    def frequent_columns(self) -> list[Hashable]:
        """Names of the learned columns, without numeric ones that are missing in more than half of the rows."""
        n_rows = max((count for count, _ in self.means.values()), default=0)
        return [*(name for name, (count, _) in self.means.items() if 2 * count >= n_rows), *self.categories, *self.texts]

    def get_feature(self, column: Hashable) -> Hashable:
        """Return the feature with the numbers of a column: the name of the column, in double quotes if the encoder could derive a
        feature with this name from another column.
        """
        if column in self.means or column in self.categories or self._derived_feature is None:
            return self.quoted.get(column, column)
        is_derived = isinstance(column, str) and self._derived_feature.match(column)
        return '"{}"'.format(str(column).replace('"', '""')) if is_derived else column

    @property
    def max_values(self) -> int:
        """Maximum number of categories of a column that get a one-hot feature of their own. The default is different for hashing,
        for target encoding of labels, and for that of regression targets.
        """
        if self._max_values is not None:
            return self._max_values
        if self.buckets is not None or self.target_encoding is None:
            return _MAX_VALUES_WITH_BUCKETS
        return _MAX_VALUES_OF_CLASSIFIERS if self.target_encoding.is_regression is False else _MAX_VALUES_OF_REGRESSORS

    def is_full(self, column: Hashable) -> bool:
        """Return whether a learned categorical column already has the maximum number of one-hot encoded categories."""
        values = self.categories[column]
        return len(values) > self.max_values if self.buckets is None else len(values) >= self.max_values

    def has_target_encoding(self, column: Hashable, feature: str | None) -> bool:
        """Return whether a category of the column is target encoded. ``feature`` is the name of its one-hot feature; None or
        empty if it has none of its own. With target encoding, this is so for all categories in a regression, and in a
        classification for those without a one-hot feature, once the column has its maximum of these.
        """
        if self.buckets is not None or self.target_encoding is None:
            return False
        return bool(self.target_encoding.is_regression) or not (feature or not self.is_full(column))

    def propose_feature(self, column: Hashable, text: str) -> str | None:
        """Return the name of the one-hot feature that the category ``text`` would get if it was learned now. Returns None if it
        already has one, or if the column has its maximum. Returns ``""`` if the category is only remembered now, and gets its
        feature when it comes again.

        With hash buckets, a category gets its feature on the first occurrence.
        """
        values = self.categories[column]
        feature = values.get(text)
        if feature or len(values) > self.max_values:
            return None
        name = f"{column}={text}"
        if len(name) > MAX_FEATURE_LENGTH or any(name in features.values() for features in self.categories.values()):
            name = ""
        if self.buckets is not None:
            return name or None if feature is None and len(values) < self.max_values else None
        return "" if feature is None else name or None

    def encode_category(self, column: Hashable, text: str) -> Category:
        """Return the category of a column that a value with this ``text`` has, and how it is encoded."""
        name = self.resolve_name(column, text)
        key = compute_name_key(compute_column_seed(column), name)
        if (values := self.categories.get(column)) is None:
            return Category(name, key, None, False, False)
        feature, is_settled = values.get(name), self.propose_feature(column, name) is None
        if feature is None and self.buckets is not None and is_settled:
            feature = f"{column}#{zlib.crc32(name.encode('utf-8', 'surrogatepass')) % self.buckets}"
        return Category(name, key, feature, self.has_target_encoding(column, feature), is_settled)

    def resolve_name(self, column: Hashable, text: str) -> str:
        """Return the spelling of a category that is used for look-ups: ``text`` unchanged if this spelling was learned, and
        otherwise its normalised form.
        """
        return text if text in self.categories.get(column, ()) else normalize_name(text)

    def find_unknown_names(self, column: Hashable, values: Values) -> dict[str, int]:
        """Return the number of occurrences of each category among these values of a categorical column that was never learned.
        The dict is empty if unknown categories share features by hashing, because they then cannot be told from learned ones.
        """
        learned = self.categories.get(column)
        if learned is None or (self.buckets is not None and self.is_full(column)):
            return {}
        cells = values.tolist() if isinstance(values, np.ndarray) else values
        parse_value, counts = self.parser.get_value_parser(column), Counter[str]()
        is_text = set(map(type, cells)) <= {str, type(None)}  # values of other types may be equal, and have different texts
        for cell, n in Counter(cells).items() if is_text else ((cell, 1) for cell in cells):
            if (text := parse_value(cell)) is not None:
                counts[self.resolve_name(column, text)] += n
        unknown = {name: n for name, n in counts.items() if name not in learned}
        if self.buckets is not None or not unknown:
            return unknown
        is_known = self._have_target_encoding(column, list(unknown))
        return {name: n for (name, n), is_known_name in zip(unknown.items(), is_known, strict=True) if not is_known_name}

    def find_similar_name(self, column: Hashable, name: str) -> str | None:
        """Return a learned category of a column that differs from ``name`` only in upper and lower case, in blanks or in leading
        zeros; otherwise None.
        """
        learned, spelling = self.categories.get(column, {}), normalize_spelling(name)
        similar = next((text for text in learned if normalize_spelling(text) == spelling), None)
        if similar is None and self.buckets is None:  # the target encoding knows only hashes
            variants = [spelling, *(change(" ".join(name.split())) for change in (str.upper, str.title, str.capitalize, str))]
            variants += [name.zfill(width) for width in range(2, _MAX_CODE_LENGTH)] * name.isdecimal()
            is_known = self._have_target_encoding(column, variants)
            return next(itertools.compress(variants, is_known), None)
        return similar

    def _have_target_encoding(self, column: Hashable, names: Sequence[str]) -> list[bool]:
        """Return for each of these categories of a column whether its target encoding was learned."""
        seed, encoding = compute_column_seed(column), self.target_encoding
        return [] if encoding is None else encoding.contains([compute_name_key(seed, name) for name in names]).tolist()

    def split_row(self, x: Mapping[Any, Any], learns: bool) -> ParsedRow:
        """Parse a row, a dict from column to value. If the row is not to be learned (``learns``), texts in unknown columns of
        numbers are ignored.

        Raises
        ------
        ValueError
            A value is not of the kind of its column, or there are more columns than ``max_columns``.
        """
        is_complete = x.__class__ is dict  # and no text is ignored
        if is_complete and (last := self._last_row) is not None and len(x) == len(last.cells[0]):
            # Values that are equal may be different categories, such as 1 and True.
            is_last = all(map(is_, x, last.cells[0])) and all(map(is_, x.values(), last.cells[1]))
            if is_last:
                return last
        if not isinstance(x, Mapping):
            raise ValueError(
                f"a row must be a mapping of columns to values, not a {type(x).__name__}"
                + ": give x.to_dict()" * hasattr(x, "to_dict")
            )
        numbers: dict[Hashable, float] = {}
        names: dict[Hashable, Category] = {}
        texts: dict[Hashable, Characters] = {}
        parser, means, known_cells = self.parser, self.means, self._known_cells
        for name, value in x.items():
            if name in known_cells:
                category = known_cells[name].get(value) if value.__class__ in _CELL_TYPES else None
                if category is None and (text := parser.get_value_parser(name)(value)) is not None:
                    if parser.get_kind(name) == TEXT:
                        texts[name] = Characters.from_texts([text])
                        continue
                    category = self._find_category(name, value, text)
                if category is not None:
                    names[name] = category
            elif (number := parser.get_value_parser(name)(value)) is not None:
                if type(number) is dict:
                    return self.split_row(flatten_row(x, dropped=parser.columns_of_kind(DROP)), learns)
                if type(number) is not float or not -LARGEST_FLOAT32 <= number <= LARGEST_FLOAT32:
                    if not (learns or name in means or parser.get_kind(name) == DATE) and isinstance(number, str | bytes):
                        is_complete = False
                        continue
                    number = to_finite_number(name, number, parser, means.get(name, (0, 0.0))[0])
                numbers[name] = number
        n_columns = len(means) + len(self.categories) + len(self.texts)
        if n_columns + len(numbers) + len(names) + len(texts) > self.max_columns:
            learned = {*means, *self.categories, *self.texts}
            new = [name for name in (*numbers, *names, *texts) if name not in learned]
            if n_columns + len(new) > self.max_columns:
                reason = f"{n_columns:,} are known, and max_columns={self.max_columns:,}"
                raise ValueError(f"feature {short_repr(new[0])} exceeds the limit of columns: {reason}")
        row = ParsedRow(numbers, names, texts)
        if is_complete and _IMMUTABLE_TYPES.issuperset(map(type, x.values())):
            row.cells, self._last_row = (tuple(x), tuple(x.values())), row
        return row

    def _find_category(self, column: Hashable, cell: Any, text: str) -> Category:
        """Return how the category with this ``text`` is encoded. It is remembered for equal cells of the column unless
        learning can change it.
        """
        category = self.encode_category(column, text)
        is_final = category.is_settled and (category.feature or self.is_full(column))
        if is_final and cell.__class__ in _CELL_TYPES and len(str(cell)) <= _MAX_CELL_LENGTH:
            if len(categories := self._known_cells[column]) >= _MAX_CELLS:
                categories.clear()
            categories[cell] = category
        return category

    def forget_cells(self) -> None:
        """Forget the cells that were parsed, because this state changes otherwise than by `learn_row`."""
        self._last_row = None
        for cells in self._known_cells.values():
            cells.clear()

    def learn_row(self, row: ParsedRow, y: Any, w: float) -> None:
        """Update this state with a row that `split_row` has parsed: running means with its numbers, and the known categories with
        its names. The target encoding is updated with the label ``y`` and its weight ``w``; None: the row has no label.
        """
        self._last_row = None
        means, names, target_encoding = self.means, row.names, self.target_encoding
        for name in row.texts:
            if name not in self.texts:
                self.texts[to_python_scalar(name)] = TextEncoding()
        if target_encoding is not None and y is not None:
            was_regression = target_encoding.is_regression
            keys = [category.key for category in names.values()] if self.buckets is None else []
            target = target_encoding.learn_row(keys, y, w)
            for name, text in row.texts.items():
                self.texts[name].learn_rows(text, target_encoding, np.array([target]), np.array([min(w, MAX_WEIGHT)]))
            if target_encoding.is_regression is not was_regression:  # other categories have features of their own
                self.forget_cells()
                names = {name: category._replace(is_settled=False) for name, category in names.items()}
        for name, value in row.numbers.items():
            if name not in means:
                name = to_python_scalar(name)
                if (feature := self.get_feature(name)) != name:
                    self.quoted[name] = str(feature)
            count, mean = means.get(name, (0, 0.0))
            means[name] = count + 1, mean + (value - mean) / (count + 1)
        for column in self.cycles:
            if column in row.numbers:
                self.extend_date_range(column, row.numbers[column], row.numbers[column])
        for name, category in names.items():
            if not category.is_settled:
                values = self.categories.setdefault(to_python_scalar(name), {})
                if (feature := self.propose_feature(name, category.name)) is not None:
                    values[category.name] = feature

    def extend_date_range(self, column: Hashable, first: float, last: float) -> None:
        """Extend the range of learned dates of a column to those from ``first`` to ``last``. An empty range changes nothing."""
        if first <= last:
            old_first, old_last = self.date_ranges.get(column, (first, last))
            self.date_ranges[column] = min(old_first, first), max(old_last, last)

    def measure_dates_beyond(self, column: Hashable, values: Values) -> tuple[int, float]:
        """Return how many of these dates lie outside the range of the column's learned dates, by more than a quarter of it, and
        the largest distance from the range in seconds.
        """
        first, last = self.date_ranges.get(column, (0.0, 0.0))
        if first == last:  # no dates, or no effect on predictions
            return 0, 0.0
        dates = np.array([date for date in self.parser.parse_column(column, values) if isinstance(date, float)], np.float64)
        distances = np.maximum(first - dates, dates - last)
        distances = distances[distances > _MIN_SHARE_BEYOND * (last - first)]
        return len(distances), float(distances.max(initial=0.0))

    def restore_attributes(self, learned: Mapping[str, Any]) -> None:
        """Set the learned attributes to those of a saved encoder, by attribute name. Raises ValueError if they are corrupt."""
        have_types = [*map(type, learned.values())] == [type(getattr(self, name)) for name in learned]
        vars(self).update(learned)
        texts = itertools.chain(self.quoted.values(), *(pair for values in self.categories.values() for pair in values.items()))
        limit, ranges = LARGEST_FLOAT32, self.date_ranges.values()
        ascending = [numbers for n, mean in self.means.values() for numbers in ((1, n, 2**62), (-limit, mean, limit))]
        ascending += [numbers for first, last in ranges for numbers in ((-limit, first, last), (first, last, limit))]
        numbers = np.array([(0.0, 0.0, 0.0), *ascending])
        have_types = have_types and {*map(type, texts)} <= {str} and {*map(type, self.texts.values())} <= {TextEncoding}
        have_types = have_types and getattr(self.target_encoding, "has_memory", False) is bool(self.keys)
        if not (have_types and numbers.dtype == float and (np.diff(numbers) >= 0.0).all()):
            raise ValueError("the table encoder is corrupt: its means, dates, categories or texts are invalid")

    def merge_attributes(self, others: Sequence[ColumnState]) -> dict[str, Any]:
        """Merge the means, the one-hot categories and the target encoding of this state and of ``others``, as if all their rows
        had been learned by one encoder. Returns them as a dict by attribute name. Raises ValueError if there are too many columns
        or categories.
        """
        means: dict[Hashable, tuple[int, float]] = {}
        categories: dict[Hashable, dict[str, str]] = {}
        for state in (self, *others):
            for column, (count, mean) in state.means.items():
                n, merged_mean = means.get(column, (0, 0.0))
                means[column] = n + count, merged_mean + (mean - merged_mean) * (count / (n + count))
            for column, values in state.categories.items():
                merged = categories.setdefault(column, {})
                merged.update({text: feature or merged.get(text, "") for text, feature in values.items()})
        for column, values in categories.items():
            if self.buckets is None:  # the target encoding has the other categories
                categories[column] = dict(itertools.islice(values.items(), self.max_values + 1))
            elif len(values) > self.max_values:  # a category could be hashed in one encoder, and one-hot in another
                text = f"column {short_repr(column)} has {len(values)} values in all of the encoders together"
                raise ValueError(f"{text}, more than max_values={self.max_values}: learn with a larger one")
        text_columns = dict.fromkeys(column for state in (self, *others) for column in state.texts)
        if (n_columns := len({**means, **categories, **text_columns})) > self.max_columns:
            raise ValueError(f"the encoders have {n_columns} columns, more than max_columns={self.max_columns}")
        target_encoding, texts = self.target_encoding, {}
        if target_encoding is not None:
            labels = [state.target_encoding for state in (self, *others) if state.target_encoding]
            target_encoding = target_encoding.merge_with(labels[1:])
            for column in text_columns:
                parts = [(state.texts.get(column), label) for state, label in zip((self, *others), labels, strict=True)]
                texts[column] = TextEncoding.merge([(text, label) for text, label in parts if text is not None], target_encoding)
        quoted = {column: feature for state in (self, *others) for column, feature in state.quoted.items()}
        ranges: dict[Hashable, tuple[float, float]] = {}
        for column, (first, last) in (item for state in (self, *others) for item in state.date_ranges.items()):
            old_first, old_last = ranges.get(column, (first, last))
            ranges[column] = min(old_first, first), max(old_last, last)
        learned = {"means": means, "categories": categories, "target_encoding": target_encoding, "texts": texts}
        return {**learned, "quoted": quoted, "date_ranges": ranges}

    @property
    def phases(self) -> dict[str, tuple[Hashable, str, str]]:
        """The column, the cycle and the part (``"sin"`` or ``"cos"``) of each feature with the phase of a date."""
        cycles = [(column, cycle) for column, names in self.cycles.items() for cycle in names]
        return {f"{column} {cycle} {part}": (column, cycle, part) for column, cycle in cycles for part in ("sin", "cos")}

    def map_features_to_columns(self) -> dict[str, Hashable]:
        """Return a dict from the name of each derived feature, such as ``"city=Paris"`` or ``"age is missing"``, to its column.
        Features with plain numbers are left out, because they are named like their column. Those with the memory of a key belong
        to a part of their column, such as ``"device (memory)"``.
        """
        columns: dict[str, Hashable] = {feature: column for column, feature in self.quoted.items()}
        columns |= {f"{self.get_feature(column)} is missing": column for column in self.columns}
        columns |= {feature: column for feature, (column, _, _) in self.phases.items()}
        encoding = self.target_encoding
        for column in self.texts:
            names = TextEncoding.make_names(column, self.target_encoding)  # there were minima as long as there were two labels
            columns |= dict.fromkeys([*names, *(re.sub("max$", "min", name) for name in names)], column)
        for column, features in self.categories.items():
            names = [] if encoding is None else encoding.make_names([column], ())
            columns |= dict.fromkeys([*features.values(), *names], column)
            names = [] if encoding is None else encoding.make_names((), self.keys & {column})
            columns |= dict.fromkeys(names, f"{column} (memory)")
            columns |= {f"{column}#{bucket}": column for bucket in range(self.buckets or 0)}
        return columns

    def decode_features(self, features: Mapping[Any, Any]) -> dict[Any, Any]:
        """Convert a dict of features, such as that of a support vector, back to a dict of the table's columns, as far as
        possible. A category without a one-hot feature becomes the text ``another``, followed by its target encoding, and a text
        becomes its number of words, with the scaled mean of their scores.
        """
        values: dict[Any, Any] = {}
        suffixes = [] if self.target_encoding is None else self.target_encoding.suffixes
        for column in self.means:
            feature = self.get_feature(column)
            is_missing = features.get(f"{feature} is missing", 0.0) > _INDICATOR_THRESHOLD
            value = values[column] = None if is_missing else features.get(feature)
            if value is not None and self.parser.get_kind(column) == DATE:
                values[column] = format_date(60.0 * round(value / 60.0))  # to the minute, the precision of a model in float32
        for column, learned in self.categories.items():
            indicators = {text: features.get(feature, 0.0) for text, feature in learned.items() if feature}
            name = max(indicators, key=lambda text: indicators[text], default=None)
            if name is None or indicators[name] < _INDICATOR_THRESHOLD:
                name = "another" + _format_odds({suffix: features.get(f"{column}~{suffix}", 0.0) for suffix in suffixes})
            values[column] = name
        for column in self.texts:
            means = {suffix: features.get(f"{column}~{suffix} words mean", 0.0) for suffix in suffixes}
            n_words = round(math.expm1(min(features.get(f"{column}~words", 0.0), math.log1p(MAX_TEXT_LENGTH))))
            values[column] = format_count(n_words, "word") + _format_odds(means)
        return values


def _format_odds(odds: Mapping[str, float]) -> str:
    """Return the largest log odds, or mean target, of a category or text with its suffix, such as `` (spam +1.2)``; empty if all
    are 0.
    """
    strongest = max(odds, key=lambda suffix: abs(odds[suffix]), default="")
    return f" ({strongest} {odds[strongest]:+.2g})".replace("( ", "(") if odds and odds[strongest] else ""
