"""Rows of tables as features: numbers, names, dates and missing values."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from river import base

from streamsvm.core.checks import validate_weight
from streamsvm.core.frames import to_columns, to_frame
from streamsvm.core.transformers import Units, import_standard_scaler, merge_transformers
from streamsvm.files.category_names import compute_column_seed, compute_name_key
from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.batch_encoding import Encoded, ParsedTable, encode
from streamsvm.stream.tables.chunk import Table, process_rows, to_float_prefix
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, ColumnKinds
from streamsvm.stream.tables.column_state import STORED_NAMES, ColumnState
from streamsvm.stream.tables.model import TableModel, add_row_number, validate_weights
from streamsvm.stream.tables.table_parser import Names, TableParser, validate_names
from streamsvm.stream.tables.target_encoding import MOST_LABELS, TargetEncoding
from streamsvm.stream.tables.values import CYCLES, encode_cycle

WhenMissing = Literal["mean", "indicator", "drop"]

_MAX_ROWS_TOGETHER = 4096  # of a frame that are encoded together


class TableEncoder(base.MiniBatchTransformer):
    """A transformer that turns the rows of a table into features; it is saved with the learner behind it.

    - A **number** is scaled (see ``scaler``).
    - A **category** is one-hot: ``city`` with the value Paris becomes the feature ``city=Paris``, which is 1. The first
      ``max_values`` values of a column get a feature each, once they are learned for the second time.
    - All other values have **statistics** of the labels of earlier rows. With two labels, ``city~yes`` is by
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
        As in `TableParser`: the kind of each column, such as ``"id:drop,city:category"``. All other columns hold numbers.
    when_missing
        What to do about a missing value of a column that was learned before: ``"mean"`` puts in the running mean of a number,
        ``"indicator"`` also adds a feature such as ``age is missing``, which is 1, and ``"drop"`` leaves out its feature in that
        row, which counts as 0.
    cycles
        The cycles in which dates are placed: ``"day"``, ``"week"``, ``"year"``, one or several. Each gives two features, sine
        and cosine.
    scaler
        The transformer for numbers and dates: None for none, ``"standard"`` for river's StandardScaler, and any other
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
        columns: ColumnKinds = "",
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
        self._parser = TableParser(columns, missing=missing, decimal=decimal)
        self.columns: dict[str, str] = self._parser.columns
        self.missing: list[str] = self._parser.missing
        self.decimal: str | None = decimal
        self.when_missing: WhenMissing = when_missing
        self.cycles: list[str] = validate_names("cycles", cycles)
        self.scaler: Literal["standard"] | base.Transformer | None = scaler
        self.max_values: int | None = max_values
        self.buckets: int | None = buckets
        self.max_columns: int = max_columns
        if when_missing not in get_args(WhenMissing):
            raise ValueError(f"when_missing must be one of {', '.join(get_args(WhenMissing))}, not {short_repr(when_missing)}")
        if unknown := [cycle for cycle in self.cycles if cycle not in CYCLES]:
            raise ValueError(f"cycles must be of {', '.join(CYCLES)}, not {short_repr(unknown[0])}")
        for name, least in (("max_values", 0), ("buckets", 1), ("max_columns", 1)):
            value = getattr(self, name)
            if (value is not None or name == "max_columns") and (type(value) is not int or value < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, not {short_repr(value)}")
        if len(self.categories) > max_columns:
            raise ValueError(f"{len(self.categories)} columns of categories are more than max_columns={max_columns}")
        if not (scaler is None or scaler == "standard" or isinstance(scaler, base.Transformer)):
            raise ValueError(f"scaler must be 'standard', None or a transformer of river, not {short_repr(scaler)}")
        self._scaler: Any = import_standard_scaler()() if scaler == "standard" else scaler and scaler.clone()
        self._state = ColumnState(self._parser, when_missing, self.cycles, max_values, buckets, max_columns)
        self._read: ParsedTable | None = None

    @property
    def _supervised(self) -> bool:  # river gives the labels to such a transformer
        return self._state.target_encoding is not None

    def __or__(self, other: Any) -> TableModel:
        """Return a pipeline of this encoder and the next step."""
        return TableModel(self, other)

    @property
    def categories(self) -> list[str]:
        """The columns of categories."""
        return self._parser.columns_of_kind(CATEGORY)

    @property
    def dates(self) -> list[str]:
        """The columns of dates."""
        return self._parser.columns_of_kind(DATE)

    @property
    def learned_columns(self) -> list[Hashable]:
        """The columns that were learned, those with numbers first."""
        return self._state.names

    @property
    def column_state(self) -> ColumnState:
        """The means, features and statistics that were learned of the columns."""
        return self._state

    @property
    def target_encoding(self) -> TargetEncoding | None:
        """The statistics of the labels of each name; None where names share buckets."""
        return self._state.target_encoding

    def drops(self, column: Hashable) -> bool:
        """Return whether a column is left out."""
        return self._parser.get_kind(column) == DROP

    def compute_max_features(self, usual: int, n_columns: int = 0) -> int:
        """Return the ``max_features`` with which a learner has room for all features of a table.

        ``usual`` is the learner's own, which is room for numbers and dates; ``n_columns`` are the columns of the table, if known.
        """
        features_of_names = self._state.max_values + (MOST_LABELS if self.buckets is None else self.buckets)
        made = len(self.categories) * features_of_names + 2 * len(self.dates) * len(self.cycles)
        return max(usual, n_columns) * (2 if self.when_missing == "indicator" else 1) + made

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
        numbers, names = self._state.split_row(x, True)
        if validate_weight(w) == 0.0:
            return
        self._state.learn(numbers, names, y, w)
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
        state = self._state
        numbers, names = state.split_row(x, False)
        means = state.means
        # Scalers of river note each name that they meet, so they meet only those that were learned.
        known = {name: value for name, value in numbers.items() if name in means}
        absent = [name for name in means if name not in numbers] if self.when_missing != "drop" else []
        centred = hasattr(self._scaler, "means")  # by a mean that may be bounded, which is 0 afterwards
        if not centred:
            known.update({name: means[name][1] for name in absent})
        features: dict[Hashable, Any] = dict(known if self._scaler is None else self._scaler.transform_one(known))
        # A column that was not learned has no scale; what knows labels transforms a row before it learns it.
        is_first = state.target_encoding is not None and self._scaler is None
        for name in (*numbers, *absent):
            features.setdefault(name, numbers.get(name, 0.0) if is_first else 0.0)
        self._add_names(names, features)
        if self.cycles:
            for name in self.dates:
                if name in numbers:
                    for cycle in self.cycles:
                        features[f"{name} {cycle} sin"], features[f"{name} {cycle} cos"] = encode_cycle(numbers[name], cycle)
        if self.when_missing == "indicator":
            for name in (*means, *state.categories):
                if name not in numbers and name not in names:
                    features[f"{name} is missing"] = 1.0
        return features

    def _add_names(self, names: Mapping[Hashable, str], features: dict[Hashable, Any]) -> None:
        state, keys = self._state, {}
        for name, text in names.items():
            feature, has_target_encoding = state.encode_name(name, text)
            if feature:
                features[feature] = 1.0
            if has_target_encoding:
                keys[name] = compute_name_key(compute_column_seed(name), text)
        if keys and state.target_encoding is not None and (suffixes := state.target_encoding.suffixes):
            for name, statistics in zip(keys, state.target_encoding.encode_names(list(keys.values())).tolist(), strict=True):
                features.update({f"{name}~{suffix}": value for suffix, value in zip(suffixes, statistics, strict=True)})

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

        There is no scaler. `streamsvm.stream.tables.batch_encoding.encode` describes the parameters and which rows are left out.
        """
        if self._read is None or self._read.table is not table:  # the parts of a table come one after the other
            self._read = ParsedTable(table, self._parser)
        return encode(self._state, self._read, first, end, learned, known, y, weights)

    def learn_many(self, X: Any, y: Any = None, w: Any = None) -> None:
        """Learn the rows of a frame, one after the other, as `learn_one` does, with their labels and weights.

        The message of a ValueError begins with the number of the row. The rows before it were learned.
        """
        names, columns, frame = to_columns(X)
        table, n = Table(tuple(names), columns), len(frame)
        labels: list[Any] = [None] * n if y is None else list(y)
        weights = validate_weights(w, labels, n)

        def learn_many(first: int, end: int) -> int:
            if self._scaler is not None:
                return 0
            all_rows = np.ones(end - first, bool)
            encoded = self.encode(table, first, end, all_rows, None, labels[first:end], weights[first:end])
            encoded.learn()
            return len(encoded.X)

        def learn_one(i: int) -> None:
            with add_row_number(i):
                self.learn_one(table.row(i).x, labels[i], float(weights[i]))

        process_rows(0, n, _MAX_ROWS_TOGETHER, learn_many, learn_one)

    def transform_many(self, X: Any) -> Any:
        """Return the features of the rows of a frame, as a frame of the same kind.

        A feature that a row does not have is 0, as it is for learners. Errors are those of `transform_one`, and begin with the
        number of the row.
        """
        names, columns, like = to_columns(X)
        table, n = Table(tuple(names), columns), len(like)
        features = self._encoded_table(table, n) if self._scaler is None else self._transformed_table(table, n)
        if n and not features:  # a frame of some kinds has no rows without a column
            candidates = itertools.chain(
                self._state.means, *(filter(None, values.values()) for values in self._state.categories.values()), names
            )
            features = dict.fromkeys(itertools.islice(candidates, 1), np.zeros(n))
        return to_frame(np.column_stack(list(features.values())) if features else np.zeros((n, 0)), features, like)

    def _encoded_table(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        encoded = self.encode(table, 0, n, None, None)
        if (done := len(encoded.X)) < n:
            with add_row_number(done):
                self.transform_one(table.row(done).x)
            return self._transformed_table(table, n)  # one column is called as a feature of another, or the like
        read, new = self._parser, {}
        for name, values in zip(table.names, table.columns, strict=True):
            if name not in self._state.means and read.get_kind(name) not in (DROP, CATEGORY):
                numbers, _ = to_float_prefix(read.parse_column(name, values))
                if (numbers == numbers).any():
                    new[name] = np.zeros(n) if self._state.target_encoding is None else np.where(np.isnan(numbers), 0.0, numbers)
        return dict(zip(encoded.names, encoded.X.T, strict=True)) | new

    def _transformed_table(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        columns: dict[Hashable, np.ndarray] = {}
        for i in range(n):
            with add_row_number(i):
                for name, value in self.transform_one(table.row(i).x).items():
                    columns.setdefault(name, np.zeros(n))[i] = value
        return columns

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
            A parameter differs, or the columns or values of all encoders together exceed a limit. This encoder stays as it
            was.
        """
        encoders = [self, *others]
        for name, value in self.__dict__.items():
            different = [other for other in others if not name.startswith("_") and getattr(other, name) != value]
            if different and name != "scaler":
                raise ValueError(f"encoders with {name}={value!r} and {getattr(different[0], name)!r} cannot be merged")
        merged = self._state.merged([other._state for other in others])
        units: list[Units] = [{}] * len(encoders)
        if any(encoder._scaler is not None for encoder in encoders):
            units = merge_transformers(self._scaler, [other._scaler for other in others])
        vars(self._state).update(merged)
        return units

    def __getstate__(self) -> dict[str, Any]:
        learned = {stored: getattr(self._state, name) for stored, name in STORED_NAMES.items()}
        return {name: value for name, value in self.__dict__.items() if name not in ("_parser", "_read", "_state")} | learned

    def __setstate__(self, state: dict[str, Any]) -> None:
        parameters = {name: value for name, value in state.items() if not name.startswith("_")}
        self.__init__(**parameters | {"scaler": None})  # type: ignore[misc] # a scaler that has learned is not cloned
        self.scaler, self._scaler = state["scaler"], state["_scaler"]
        vars(self._state).update({name: state[stored] for stored, name in STORED_NAMES.items()})

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {}
        yield {"when_missing": "drop", "scaler": "standard"}
