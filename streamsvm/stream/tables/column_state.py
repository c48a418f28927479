"""The columns that an encoder of tables has learned, and what their values become."""

from __future__ import annotations

import itertools
import math
import zlib
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32, to_python_scalar
from streamsvm.files.category_names import compute_column_seed, compute_name_key, normalize_name
from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.chunk import Values
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.table_schema import format_arguments, format_flags
from streamsvm.stream.tables.target_encoding import TargetEncoding
from streamsvm.stream.tables.values import format_date

#: A longer text of a category is hashed: names of features are never forgotten.
LONGEST_FEATURE = 1024
#: The learned attributes of a `ColumnState`, by their names in the saved state of an encoder.
STORED_NAMES = {"_means": "means", "_categories": "categories", "_statistics": "target_encoding"}
#: Values of a column that have a feature each, if nothing else is asked for: beside buckets, log odds, and means of targets.
_MOST_BESIDE_BUCKETS, _MOST_BESIDE_ODDS, _MOST_BESIDE_MEANS = 64, 6, 32
_IS_ON = 0.5  # of a feature that is 0 or 1, in a support vector between two rows
_MIN_ROWS_OF_NUMBERS = 20  # values of a column of numbers, from which on another kind is not proposed for it


class ColumnState:
    """The means of numbers and the features and statistics of categories that an encoder has learned.

    The parameters are those of `TableEncoder`.
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
        self.cycles: list[str] = cycles
        self.buckets: int | None = buckets
        self.max_columns: int = max_columns
        self._max_values = max_values
        #: Rows and mean of each column of numbers that was learned.
        self.means: dict[Hashable, tuple[int, float]] = {}
        #: The feature of each value of each column of categories that was learned; empty for a value that has none yet.
        self.categories: dict[Hashable, dict[str, str]] = {}
        #: The statistics of the labels of each name; None where names share buckets.
        self.target_encoding: TargetEncoding | None = (
            TargetEncoding() if buckets is None and parser.columns_of_kind(CATEGORY) else None
        )

    @property
    def names(self) -> list[Hashable]:
        """The columns that were learned, those with numbers first."""
        return [*self.means, *self.categories]

    @property
    def frequent_columns(self) -> list[Hashable]:
        """The learned columns of categories, and those of numbers that at least half of the rows had."""
        most = max((count for count, _ in self.means.values()), default=0)
        return [*(name for name, (count, _) in self.means.items() if 2 * count >= most), *self.categories]

    @property
    def max_values(self) -> int:
        """The most values of a column of categories that have a feature each."""
        if self._max_values is not None:
            return self._max_values
        if self.target_encoding is None:
            return _MOST_BESIDE_BUCKETS
        return _MOST_BESIDE_ODDS if self.target_encoding.is_regression is False else _MOST_BESIDE_MEANS

    def is_full(self, column: Hashable) -> bool:
        """Return whether a learned column has more values than get a feature each."""
        values = self.categories[column]
        return len(values) >= self.max_values if self.target_encoding is None else len(values) > self.max_values

    def has_target_encoding(self, column: Hashable, feature: str | None) -> bool:
        """Return whether a name in a learned column is also encoded by its statistic, if it has this feature."""
        if self.target_encoding is None:
            return False
        return bool(self.target_encoding.is_regression) or not (feature or not self.is_full(column))

    def propose_feature(self, column: Hashable, text: str) -> str | None:
        """Return the feature to create for a value that is learned: "" on its first occurrence, None if it gets none."""
        values = self.categories[column]
        feature = values.get(text)
        if feature or len(values) > self.max_values:
            return None
        name = f"{column}={text}"
        if len(name) > LONGEST_FEATURE:
            name = ""
        if self.target_encoding is None:
            return name or None if feature is None and len(values) < self.max_values else None
        return "" if feature is None else name or None

    def encode_name(self, column: Hashable, text: str) -> tuple[str | None, bool]:
        """Return the feature that is 1 for a name, None if it has none, and whether its statistic is encoded, too."""
        values = self.categories.get(column)
        if values is None:
            return None, False
        feature = values.get(text)
        if feature is None and self.target_encoding is None and self.propose_feature(column, text) is None:
            feature = f"{column}#{zlib.crc32(text.encode('utf-8', 'surrogatepass')) % (self.buckets or 1)}"
        return feature, self.has_target_encoding(column, feature)

    def name_of(self, column: Hashable, text: str) -> str:
        """Return the name that a text is in a column: as it was learned, or as all formats have it."""
        return text if text in self.categories.get(column, ()) else normalize_name(text)

    def count_unknown_names(self, column: Hashable, values: Values) -> int:
        """Return how many values of a column are names that were never learned, as far as that is known."""
        learned = self.categories.get(column)
        if learned is None or (self.target_encoding is None and self.is_full(column)):
            return 0
        cells = values.tolist() if isinstance(values, np.ndarray) else values
        texts = Counter(map(self.parser.get_value_parser(column), cells))
        counts = {self.name_of(column, text): n for text, n in texts.items() if text is not None}
        unknown = {name: n for name, n in counts.items() if name not in learned}
        if self.target_encoding is None or not unknown:
            return sum(unknown.values())
        has_target_encoding = self.target_encoding.contains(
            [compute_name_key(compute_column_seed(column), text) for text in unknown]
        )
        return sum(n for n, is_learned in zip(unknown.values(), has_target_encoding.tolist(), strict=True) if not is_learned)

    def split_row(self, x: Mapping[Any, Any], learns: bool) -> tuple[dict[Hashable, float], dict[Hashable, str]]:
        """Return the numbers, dates among them, and the names of a row.

        A row that is not learned may have texts in columns that were never learned.

        Raises
        ------
        ValueError
            A value is not of the kind of its column, or there are more columns than ``max_columns``.
        """
        if not isinstance(x, Mapping):
            raise ValueError(
                f"a row must be a mapping of columns to values, not a {type(x).__name__}"
                + ": give x.to_dict()" * hasattr(x, "to_dict")
            )
        numbers: dict[Hashable, float] = {}
        names: dict[Hashable, str] = {}
        parser = self.parser
        for name, value in parser.parse_row(x.items()).items():
            if parser.get_kind(name) == CATEGORY:
                names[name] = self.name_of(name, value)
                continue
            if type(value) is not float:
                if not (learns or name in self.means or parser.get_kind(name) == DATE) and isinstance(value, str | bytes):
                    continue
                value = self._checked_number(name, value)
            elif not -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32:
                value = self._checked_number(name, value)
            numbers[name] = value
        n_columns = len(self.means) + len(self.categories)
        if n_columns + len(numbers) + len(names) > self.max_columns:
            new = [name for name in (*numbers, *names) if name not in self.means and name not in self.categories]
            if n_columns + len(new) > self.max_columns:
                raise ValueError(
                    f"feature {short_repr(new[0])} is one column too many: {n_columns:,} are known, "
                    f"and max_columns={self.max_columns:,}"
                )
        return numbers, names

    def learn(self, numbers: Mapping[Hashable, float], names: Mapping[Hashable, str], y: Any, w: float) -> None:
        """Learn the numbers and names of a row, and its label by a weight."""
        if self.target_encoding is not None and y is not None:
            self.target_encoding.learn_row(
                [compute_name_key(compute_column_seed(name), text) for name, text in names.items()], y, w
            )
        for name, value in numbers.items():
            column = to_python_scalar(name)
            count, mean = self.means.get(column, (0, 0.0))
            self.means[column] = count + 1, mean + (value - mean) / (count + 1)
        for name, text in names.items():
            values = self.categories.setdefault(to_python_scalar(name), {})
            if (feature := self.propose_feature(name, text)) is not None:
                values[text] = feature

    def merged(self, others: Sequence[ColumnState]) -> dict[str, Any]:
        """Return the `learned` attributes of the rows of this state and others together; ValueError if they exceed a limit."""
        means: dict[Hashable, tuple[int, float]] = {}
        categories: dict[Hashable, dict[str, str]] = {}
        for state in (self, *others):
            for column, (count, mean) in state.means.items():
                n, before = means.get(column, (0, 0.0))
                means[column] = n + count, before + (mean - before) * (count / (n + count))
            for column, values in state.categories.items():
                merged = categories.setdefault(column, {})
                merged.update({text: feature or merged.get(text, "") for text, feature in values.items()})
        for column, values in categories.items():
            if self.target_encoding is not None:  # other values have statistics
                categories[column] = dict(itertools.islice(values.items(), self.max_values + 1))
            elif len(values) > self.max_values:  # a value could be hashed in one encoder and a feature in another
                raise ValueError(
                    f"column {short_repr(column)} has {len(values)} values in all of the encoders together, more than "
                    f"max_values={self.max_values}: learn with a larger one"
                )
        if (n_columns := len(means) + len(categories)) > self.max_columns:
            raise ValueError(f"the encoders have {n_columns} columns, more than max_columns={self.max_columns}")
        target_encoding = self.target_encoding
        if target_encoding is not None:
            target_encoding = target_encoding.merge_with([state.target_encoding for state in others if state.target_encoding])
        return {"means": means, "categories": categories, "target_encoding": target_encoding}

    def map_features_to_columns(self) -> dict[str, Hashable]:
        """Return the column of each feature that is made of one, except numbers, which are called as their columns are."""
        dates = self.parser.columns_of_kind(DATE)
        columns: dict[str, Hashable] = {f"{column} is missing": column for column in self.names}
        columns |= {f"{column} {cycle} {part}": column for column in dates for cycle in self.cycles for part in ("sin", "cos")}
        suffixes = () if self.target_encoding is None else self.target_encoding.suffixes
        for column, features in self.categories.items():
            columns |= dict.fromkeys(features.values(), column) | {f"{column}~{suffix}": column for suffix in suffixes}
            columns |= {f"{column}#{bucket}": column for bucket in range(self.buckets or 0)}
        return columns

    def decode_features(self, features: Mapping[Any, Any]) -> dict[Any, Any]:
        """Return the values of columns that became features, as far as these tell."""
        values: dict[Any, Any] = {}
        suffixes = [] if self.target_encoding is None else self.target_encoding.suffixes
        for column in self.means:
            is_null = features.get(f"{column} is missing", 0.0) > _IS_ON
            value = values[column] = None if is_null else features.get(column)
            if value is not None and self.parser.get_kind(column) == DATE:
                values[column] = format_date(60.0 * round(value / 60.0))  # to the minute, as far as a model knows it
        for column, learned in self.categories.items():
            sizes = {text: features.get(feature, 0.0) for text, feature in learned.items() if feature}
            name = max(sizes, key=lambda text: sizes[text], default=None)
            if name is None or sizes[name] < _IS_ON:
                odds = {suffix: features.get(f"{column}~{suffix}", 0.0) for suffix in suffixes}
                most = max(odds, key=lambda suffix: abs(odds[suffix]), default=None)
                name = "another" if most is None or not odds[most] else f"another ({most} {odds[most]:+.2g})".replace("( ", "(")
            values[column] = name
        return values

    def _checked_number(self, name: Hashable, value: Any) -> float:
        """Return a value of a column as a number; a ValueError names the remedy where it is not finite."""
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            number = float(value)
        except OverflowError:
            number = math.inf
        except (TypeError, ValueError):
            kind = "a text" if isinstance(value, str) else f"a {type(value).__name__}"
            raise ValueError(
                f"feature {short_repr(name)} is {short_repr(value)}, {kind}. {self._advice_for(name, value)}"
            ) from None
        if not -LARGEST_FLOAT32 <= number <= LARGEST_FLOAT32:
            advice = self._advice_for(name, number)
            raise ValueError(f"feature {short_repr(name)} is {number}, which is no finite float32 number. {advice}")
        return number

    def _advice_for(self, name: Hashable, value: Any) -> str:
        parser, learned = self.parser, self.means.get(name, (0, 0.0))[0]
        is_known, is_text = learned >= _MIN_ROWS_OF_NUMBERS, isinstance(value, str)
        missing = _option_words({"missing": [str(value)]})
        if is_known or parser.get_kind(name) == DATE:  # too late for another kind of column
            said = f"The {learned:,} values learned before are numbers: fix this one"
            if parser.get_kind(name) == DATE:
                said = f"It is not a date in the format of that column ({parser.get_date_format(name) or 'ISO 8601'}): fix it"
            said += ", or leave its row out" if is_known else ", or give its format"
            if isinstance(value, str | float):
                said += f". If it marks a missing value, make it empty; a run from scratch can be told {missing}"
            return said
        kinds = {kind: _option_words({"columns": {str(name): kind}}) for kind in (CATEGORY, DATE, DROP)}
        of_text = f"If the column holds names: {kinds[CATEGORY]}. If it holds dates: {kinds[DATE]}. "
        said = f"{of_text * is_text}If it marks a missing value: {missing}. To leave out the column: {kinds[DROP]}"
        return f"{said}. A run that goes on from a checkpoint reads columns as before: fix the value, or leave its row out"


def _option_words(options: Mapping[str, Any]) -> str:
    """Return options as arguments and, in brackets, as flags."""
    return f"{format_arguments(options)} ({format_flags(options)})"
