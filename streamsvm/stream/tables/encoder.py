"""Rows of tables as features: numbers, names, dates and missing values."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from river import base

from streamsvm.core.checks import LARGEST_FLOAT32, as_python, checked_weight
from streamsvm.core.frames import as_columns, as_frame
from streamsvm.core.transformers import Units, merge_transformers, standard_scaler
from streamsvm.files.category_names import key_of, seed_of
from streamsvm.files.messages import shown
from streamsvm.stream.tables.advice import number_in
from streamsvm.stream.tables.chunk import Table, Values, as_numbers, take_rows
from streamsvm.stream.tables.encode import LONGEST_FEATURE, ColumnState, Encoded, ReadTable, encode
from streamsvm.stream.tables.kinds import CATEGORY, DATE, DROP, Columns
from streamsvm.stream.tables.model import TableModel, checked_weights, in_row
from streamsvm.stream.tables.reading import Names, Reading, as_names
from streamsvm.stream.tables.scaler import check_scaler, is_scaler
from streamsvm.stream.tables.statistics import MOST_LABELS, NameStatistics
from streamsvm.stream.tables.values import CYCLES, cyclic_pair

WhenMissing = Literal["mean", "indicator", "drop"]

_NO_SCALER = "scaler must be 'standard', None or a transformer of river, not {}"
_MAX_ROWS_TOGETHER = 4096  # of a frame that are encoded together
#: Values of a column that have a feature each, if nothing else is asked for: beside buckets, log odds, and means of targets.
_MOST_BESIDE_BUCKETS, _MOST_BESIDE_ODDS, _MOST_BESIDE_MEANS = 64, 6, 32


class TableEncoder(base.MiniBatchTransformer):
    """A transformer that turns the rows of a table into features; it is saved with the learner behind it.

    - A **number** is scaled (see ``scaler``).
    - A **category** is one-hot: ``city`` with the value Paris becomes the feature ``city=Paris``, which is 1. The first
      ``max_values`` values of a column get a feature each, once they are learned for the second time.
    - All other values have **statistics**: what the labels of the rows before say of them. With two labels, ``city~yes`` is by
      how much the log odds of the label are above those of all rows; with more, each of the first 8 has one. Where numbers are
      predicted, all values have ``city~``, which is how far their mean is from the mean of all.
    - With ``buckets``, names need no labels: the first ``max_values`` values get a feature each as they come, and all others
      share the features ``city#0``, ``city#1``, ..., by a hash of their text.
    - A **date** becomes seconds since 1970, a number like others. With ``cycles``, it also becomes its place in the day, the
      week or the year.
    - A **missing** value (None, NaN, empty text, or what ``missing`` says) counts as the running mean of a number, and as none of
      the values of a category. ``when_missing`` has other choices.

    Learners of this library scale what comes, and leave features that are 0 or 1 as they are. For other models, give a
    ``scaler``, which has the numbers alone: put none behind the encoder, which would scale the names, too.
    ``max_columns``, ``max_values``, 65,536 names with statistics and 1,024 characters a name bound its memory, whatever arrives.
    A row is checked before anything is learned from it, and a row that is refused leaves nothing behind.

    Parameters
    ----------
    columns, missing, decimal
        As in `Reading`: the kind of each column, such as ``"id:drop,city:category"``. A column that is not named holds numbers.
    when_missing
        What to do about a missing value of a column that was learned before: ``"mean"`` puts in the running mean of a number,
        ``"indicator"`` also adds a feature such as ``age is missing``, which is 1, and ``"drop"`` leaves out its feature in that
        row, which counts as 0.
    cycles
        The cycles in which dates are placed: ``"day"``, ``"week"``, ``"year"``, one or several. Each gives two features, sine
        and cosine.
    scaler
        The transformer for numbers and dates: None is no scaler, ``"standard"`` is river's StandardScaler, and any other
        transformer of river is possible.
    max_values
        The most values of a categorical column that have a feature each, at least 0. None: 6, 32 where numbers are predicted, and
        64 with ``buckets``.
    buckets
        The number of features that all other values of a column share, at least 1. None: they have statistics.
    max_columns
        The maximum number of columns.

    Raises
    ------
    ValueError
        A parameter is invalid.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> encoder = TableEncoder("city:category,since:date")
    >>> for _ in range(2):
    ...     encoder.learn_one({"city": "Paris", "since": "1970-01-02", "age": 31})
    >>> encoder.transform_one({"city": "Paris", "since": "1970-01-03", "age": "40"})
    {'since': 172800.0, 'age': 40.0, 'city=Paris': 1.0}
    >>> encoder.transform_one({"city": "Paris", "age": "forty"})
    Traceback (most recent call last):
        ...
    ValueError: feature 'age' is 'forty', a text. ...
    >>> model = TableEncoder("city:category") | BSGDClassifier(budget=10)
    >>> for city, y in [("Paris", True), ("Oslo", False)] * 20:
    ...     model.learn_one({"city": city}, y)
    >>> model.predict_one({"city": "Oslo"})
    False
    """

    def __init__(
        self,
        columns: Columns = "",
        *,
        missing: Names = (),
        decimal: str | None = None,
        when_missing: WhenMissing = "mean",
        cycles: Names = (),
        scaler: Literal["standard"] | base.Transformer | None = None,
        max_values: int | None = None,
        buckets: int | None = None,
        max_columns: int = 1024,
    ) -> None:
        self._reading = Reading(columns, missing=missing, decimal=decimal)
        self.columns: dict[str, str] = self._reading.columns
        self.missing: list[str] = self._reading.missing
        self.decimal: str | None = decimal
        self.when_missing: WhenMissing = when_missing
        self.cycles: list[str] = as_names("cycles", cycles)
        self.scaler: Literal["standard"] | base.Transformer | None = scaler
        self.max_values: int | None = max_values
        self.buckets: int | None = buckets
        self.max_columns: int = max_columns
        if when_missing not in get_args(WhenMissing):
            raise ValueError(f"when_missing must be one of {', '.join(get_args(WhenMissing))}, not {shown(when_missing)}")
        if unknown := [cycle for cycle in self.cycles if cycle not in CYCLES]:
            raise ValueError(f"cycles must be of {', '.join(CYCLES)}, not {shown(unknown[0])}")
        for name, least in (("max_values", 0), ("buckets", 1), ("max_columns", 1)):
            value = getattr(self, name)
            if (value is not None or name == "max_columns") and (type(value) is not int or value < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, not {shown(value)}")
        if len(self.categories) > max_columns:
            raise ValueError(f"{len(self.categories)} columns of categories are more than max_columns={max_columns}")
        if not is_scaler(scaler):
            raise ValueError(_NO_SCALER.format(shown(scaler)))
        self._scaler: Any = standard_scaler()() if scaler == "standard" else scaler and scaler.clone()
        #: Rows and mean of each column of numbers that was learned, and the feature of each value of each categorical one.
        self._numbers: dict[Hashable, tuple[int, float]] = {}
        self._features: dict[Hashable, dict[str, str]] = {}
        knows_labels = buckets is None and bool(self.categories)
        self._statistics: NameStatistics | None = NameStatistics() if knows_labels else None
        self._read: ReadTable | None = None

    @property
    def _supervised(self) -> bool:  # river gives the labels to such a transformer
        return self._statistics is not None

    def __or__(self, other: Any) -> TableModel:
        """Return a pipeline of this encoder and what comes behind it."""
        return TableModel(self, other)

    @property
    def categories(self) -> list[str]:
        """The columns of categories."""
        return self._reading.named(CATEGORY)

    @property
    def dates(self) -> list[str]:
        """The columns of dates."""
        return self._reading.named(DATE)

    @property
    def dropped(self) -> list[str]:
        """The columns that are named to be left out."""
        return self._reading.named(DROP)

    @property
    def learned_columns(self) -> list[Hashable]:
        """The columns that were learned, those with numbers first."""
        return [*self._numbers, *self._features]

    @property
    def most_made_features(self) -> int:
        """The most features that names and cycles can become."""
        names = self._known.max_values + (MOST_LABELS if self.buckets is None else self.buckets)
        return len(self.categories) * names + 2 * len(self.dates) * len(self.cycles)

    @property
    def statistics(self) -> NameStatistics | None:
        """The statistics of the labels of each name; None where names share buckets."""
        return self._statistics

    @property
    def learned_scaler(self) -> Any:
        """The scaler that has learned the columns of numbers and dates; None if there is none."""
        return self._scaler

    def learn_one(self, x: Mapping[Any, Any], y: Any = None, w: float = 1.0) -> None:
        """Learn the columns, values and scales of a row, and what its label, by a weight, says of its names.

        Of a row of weight 0 nothing is learned.

        Raises
        ------
        ValueError
            A value is not of the kind of its column, or there are more columns than ``max_columns``. Then nothing is learned.
        """
        numbers, names = self._split_row(x, True)
        if checked_weight(w) == 0.0:
            return
        if self._statistics is not None and y is not None:
            self._statistics.learn([key_of(seed_of(name), text) for name, text in names.items()], y, w)
        for name, value in numbers.items():
            name = as_python(name)
            count, mean = self._numbers.get(name, (0, 0.0))
            self._numbers[name] = count + 1, mean + (value - mean) / (count + 1)
        known = self._known
        for name, text in names.items():
            values = self._features.setdefault(as_python(name), {})
            if (feature := known.new_feature(name, text)) is not None:
                values[text] = feature
        if self._scaler is not None:
            self._scaler.learn_one(numbers)

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Hashable, Any]:
        """Return the features of a row.

        Raises
        ------
        ValueError
            A value is not of the kind of its column (the message names the column and says what would help), or as in
            `learn_one`.
        """
        numbers, names = self._split_row(x, False)
        # Scalers of river note each name that they meet, so they meet only those that were learned.
        known = {name: value for name, value in numbers.items() if name in self._numbers}
        absent = [name for name in self._numbers if name not in numbers] if self.when_missing != "drop" else []
        centred = hasattr(self._scaler, "means")  # by a mean that may be bounded, which is 0 afterwards
        if not centred:
            known.update({name: self._numbers[name][1] for name in absent})
        features: dict[Hashable, Any] = dict(known if self._scaler is None else self._scaler.transform_one(known))
        # A column that was not learned has no scale; what knows labels transforms a row before it learns it.
        is_first = self._statistics is not None and self._scaler is None
        for name in (*numbers, *absent):
            features.setdefault(name, numbers.get(name, 0.0) if is_first else 0.0)
        self._add_names(names, features)
        if self.cycles:
            for name in self.dates:
                if name in numbers:
                    for cycle in self.cycles:
                        features[f"{name} {cycle} sin"], features[f"{name} {cycle} cos"] = cyclic_pair(numbers[name], cycle)
        if self.when_missing == "indicator":
            for name in (*self._numbers, *self._features):
                if name not in numbers and name not in names:
                    features[f"{name} is missing"] = 1.0
        return features

    def _add_names(self, names: Mapping[Hashable, str], features: dict[Hashable, Any]) -> None:
        known, asked = self._known, {}
        for name, text in names.items():
            values = self._features.get(name)
            if values is None:
                continue
            feature = values.get(text)
            if feature is None and known.statistics is None and known.new_feature(name, text) is None:
                feature = known.bucket_of(name, text)
            if feature:
                features[feature] = 1.0
            if known.asks(name, feature):
                asked[name] = key_of(seed_of(name), text)
        if asked and known.statistics is not None and (suffixes := known.statistics.suffixes):
            for name, values_of in zip(asked, known.statistics.of(list(asked.values())).tolist(), strict=True):
                features.update({f"{name}~{suffix}": value for suffix, value in zip(suffixes, values_of, strict=True)})

    @property
    def _known(self) -> ColumnState:
        most = self.max_values
        if most is None and self._statistics is None:
            most = _MOST_BESIDE_BUCKETS
        elif most is None and self._statistics is not None:
            most = _MOST_BESIDE_ODDS if self._statistics.of_numbers is False else _MOST_BESIDE_MEANS
        how = self.when_missing, self.cycles, most or 0, self.buckets, self.max_columns, self._statistics
        return ColumnState(self._reading, self._numbers, self._features, *how)

    def encode(
        self,
        table: Table,
        first: int,
        end: int,
        learned: np.ndarray | None,
        known: Collection[Hashable] | None,
        y: Sequence[Any] = (),
        weights: np.ndarray | None = None,
    ) -> Encoded:
        """Return the features of many rows before they are learned, as `transform_one` gives them, for a loop over a stream.

        There is no scaler. ``streamsvm.stream.tables.encode.encode`` describes the parameters, and which rows are left out.
        """
        if self._read is None or self._read.table is not table:  # the parts of a table come one after the other
            self._read = ReadTable(table, self._reading)
        return encode(self._known, self._read, first, end, learned, known, y, weights)

    def n_unknown(self, column: Hashable, values: Values) -> int:
        """Return how many values of a column are names that were never learned, as far as that is known."""
        known, columns = self._features.get(column), self._known
        if known is None or (columns.statistics is None and columns.is_full(column)):
            return 0
        read = self._reading.reader(column)
        texts = Counter(map(read, values.tolist() if isinstance(values, np.ndarray) else values))
        unknown = {
            columns.name_of(column, text): n
            for text, n in texts.items()
            if text is not None and columns.name_of(column, text) not in known
        }
        if columns.statistics is None or not unknown:
            return sum(unknown.values())
        learned = columns.statistics.knows([key_of(seed_of(column), text) for text in unknown])
        return sum(n for n, is_learned in zip(unknown.values(), learned.tolist(), strict=True) if not is_learned)

    def learn_many(self, X: Any, y: Any = None, w: Any = None) -> None:
        """Learn the rows of a frame, one after the other, as `learn_one` does, with their labels and weights.

        The message of a ValueError begins with the number of the row. The rows before it were learned.
        """
        names, columns, frame = as_columns(X)
        table, n = Table(tuple(names), columns), len(frame)
        labels: list[Any] = [None] * n if y is None else list(y)
        weights = checked_weights(w, labels, n)

        def learn_many(first: int, end: int) -> int:
            if self._scaler is not None:
                return 0
            all_rows = np.ones(end - first, bool)
            encoded = self.encode(table, first, end, all_rows, None, labels[first:end], weights[first:end])
            encoded.learn()
            return len(encoded.X)

        def learn_one(i: int) -> None:
            with in_row(i):
                self.learn_one(table.row(i).x, labels[i], float(weights[i]))

        take_rows(0, n, _MAX_ROWS_TOGETHER, learn_many, learn_one)

    def transform_many(self, X: Any) -> Any:
        """Return the features of the rows of a frame, as a frame of the same kind.

        A feature that a row does not have is 0, as it is for learners. Errors are those of `transform_one`, and begin with the
        number of the row.
        """
        names, columns, like = as_columns(X)
        table, n = Table(tuple(names), columns), len(like)
        found = self._encoded_table(table, n) if self._scaler is None else self._transformed_table(table, n)
        if n and not found:  # a frame of some kinds has no rows without a column
            known = itertools.chain(self._numbers, *(filter(None, values.values()) for values in self._features.values()), names)
            found = dict.fromkeys(itertools.islice(known, 1), np.zeros(n))
        return as_frame(np.column_stack(list(found.values())) if found else np.zeros((n, 0)), found, like)

    def _encoded_table(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        encoded = self.encode(table, 0, n, None, None)
        if (done := len(encoded.X)) < n:
            with in_row(done):
                self.transform_one(table.row(done).x)
            return self._transformed_table(table, n)  # one column is called as a feature of another, or the like
        read, new = self._reading, {}
        for name, values in zip(table.names, table.columns, strict=True):
            if name not in self._numbers and read.kind_of(name) not in (DROP, CATEGORY):
                numbers, _ = as_numbers(read.column(name, values))
                if (numbers == numbers).any():
                    new[name] = np.zeros(n) if self._statistics is None else np.where(np.isnan(numbers), 0.0, numbers)
        return dict(zip(encoded.names, encoded.X.T, strict=True)) | new

    def _transformed_table(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        found: dict[Hashable, np.ndarray] = {}
        for i in range(n):
            with in_row(i):
                for name, value in self.transform_one(table.row(i).x).items():
                    found.setdefault(name, np.zeros(n))[i] = value
        return found

    def merge_with(self, *others: TableEncoder) -> list[Units]:
        """Merge other encoders into this one.

        It becomes the encoder of all the rows that any of them has learned.

        Parameters
        ----------
        *others
            Encoders with the same parameters. They stay as they are.

        Returns
        -------
        list of Units
            For this encoder as it was, and for each other: how to bring what it has scaled into the units of the result.

        Raises
        ------
        ValueError
            A parameter differs, or there is no room for the columns or the values of all encoders. This encoder stays as it
            was.
        """
        encoders = [self, *others]
        for name, value in self.__dict__.items():
            different = [other for other in others if not name.startswith("_") and getattr(other, name) != value]
            if different and name != "scaler":
                raise ValueError(f"encoders with {name}={value!r} and {getattr(different[0], name)!r} cannot be merged")
        numbers: dict[Hashable, tuple[int, float]] = {}
        features: dict[Hashable, dict[str, str]] = {}
        for encoder in encoders:
            for column, (count, mean) in encoder._numbers.items():
                n, before = numbers.get(column, (0, 0.0))
                numbers[column] = n + count, before + (mean - before) * (count / (n + count))
            for column, values in encoder._features.items():
                known = features.setdefault(column, {})
                known.update({text: feature or known.get(text, "") for text, feature in values.items()})
        for column, values in features.items():
            if self._statistics is not None:  # others have statistics
                features[column] = dict(itertools.islice(values.items(), self._known.max_values + 1))
            elif len(values) > self._known.max_values:  # what is hashed in one would be a feature in the others
                raise ValueError(
                    f"column {shown(column)} has {len(values)} values in all of the encoders together, more than "
                    f"max_values={self._known.max_values}: learn with a larger one"
                )
        if len(numbers) + len(features) > self.max_columns:
            raise ValueError(
                f"the encoders have {len(numbers) + len(features)} columns, more than max_columns={self.max_columns}"
            )
        statistics = None
        if self._statistics is not None:
            statistics = self._statistics.merged([other._statistics for other in others if other._statistics is not None])
        units: list[Units] = [{}] * len(encoders)
        if any(encoder._scaler is not None for encoder in encoders):
            units = merge_transformers(self._scaler, [other._scaler for other in others])
        self._numbers, self._features, self._statistics = numbers, features, statistics
        return units

    def _split_row(self, x: Mapping[Any, Any], learns: bool) -> tuple[dict[Hashable, float], dict[Hashable, str]]:
        # Numbers (with dates) and names of a row, checked. What is to be transformed may have texts in columns that never came.
        if not isinstance(x, Mapping):
            raise ValueError(
                f"a row must be a mapping of columns to values, not a {type(x).__name__}"
                + ": give x.to_dict()" * hasattr(x, "to_dict")
            )
        numbers: dict[Hashable, float] = {}
        names: dict[Hashable, str] = {}
        for name, value in self._reading.row(x.items()).items():
            if self._reading.kind_of(name) == CATEGORY:
                names[name] = self._known.name_of(name, value)
                continue
            if type(value) is not float:
                if not (learns or name in self._numbers or self._reading.kind_of(name) == DATE) and isinstance(
                    value, str | bytes
                ):
                    continue
                value = number_in(value, name, self._reading, self._numbers.get(name, (0, 0.0))[0])
            elif not -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32:
                number_in(value, name, self._reading, self._numbers.get(name, (0, 0.0))[0])
            numbers[name] = value
        n_columns = len(self._numbers) + len(self._features)
        if n_columns + len(numbers) + len(names) > self.max_columns:
            new = [name for name in (*numbers, *names) if name not in self._numbers and name not in self._features]
            if n_columns + len(new) > self.max_columns:
                raise ValueError(
                    f"feature {shown(new[0])} is one column too many: {n_columns:,} are known, "
                    f"and max_columns={self.max_columns:,}"
                )
        return numbers, names

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_reading", "_read")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Made anew and checked: the state may come from a file. A scaler is not cloned: that may take for ever.
        scaler, learned = state["scaler"], state["_scaler"]
        if not is_scaler(scaler):
            raise ValueError(_NO_SCALER.format(shown(scaler)))
        made = TableEncoder(**{name: value for name, value in state.items() if not name.startswith("_")} | {"scaler": None})
        made.scaler = scaler
        numbers, features, statistics = state["_numbers"], state["_features"], state["_statistics"]
        if type(statistics) is not type(made._statistics):
            raise ValueError("the encoder and its statistics do not fit")
        made._statistics = statistics
        most = made._known.max_values + (statistics is not None)
        if len(numbers) + len(features) > made.max_columns or any(len(values) > most for values in features.values()):
            raise ValueError("the encoder has more columns or values than its parameters allow")
        for count, mean in numbers.values():
            if type(count) is not int or count < 1 or type(mean) is not float or not math.isfinite(mean):
                raise ValueError(f"a column has the mean {shown(mean)} of {shown(count)} rows")
        for name, values in features.items():
            if any(
                not (feature == f"{name}={text}" and len(feature) <= LONGEST_FEATURE) and (feature != "" or statistics is None)
                for text, feature in values.items()
            ):
                raise ValueError(f"the values of column {shown(name)} are not those of their features")
        if learned.__class__ is not (standard_scaler() if scaler == "standard" else scaler.__class__):
            raise ValueError("the encoder and its scaler do not fit")
        if scaler == "standard":
            check_scaler(learned)
        self.__dict__.update(made.__dict__, **{name: state[name] for name in ("_scaler", "_numbers", "_features")})

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {}
        yield {"when_missing": "drop", "scaler": "standard"}
