"""The transformer that encodes rows of tables as features: numbers, categories, dates and missing values."""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from river import base

from streamsvm.core.checks import validate_weight
from streamsvm.core.frames import check_weights, list_labels, to_columns, to_frame
from streamsvm.core.mutation import Mutable
from streamsvm.core.transformers import Units, import_standard_scaler, merge_transformers
from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.batch_encoding import ParsedTable
from streamsvm.stream.tables.chunk import Table, process_rows, to_float_prefix
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, TEXT, ColumnKinds, parse_columns, select_different_kinds
from streamsvm.stream.tables.column_state import STORED_NAMES, ColumnState, ParsedRow
from streamsvm.stream.tables.dates import CYCLES, encode_cycle
from streamsvm.stream.tables.model import TableModel, add_row_number
from streamsvm.stream.tables.table_parser import Names, TableParser, validate_names
from streamsvm.stream.tables.target_encoding import MAX_LABELS, MAX_TEXT_LABELS, TargetEncoding
from streamsvm.stream.tables.text_encoding import MAX_TEXT_COLUMNS, TextEncoding

WhenMissing = Literal["mean", "indicator", "drop"]

_MAX_BATCH_ROWS = 4096  # rows of a frame that are encoded at once


class TableEncoder(Mutable, base.MiniBatchTransformer):
    """A transformer that encodes the rows of a table as features; it is saved with the learner behind it.

    - A **number** is scaled (see ``scaler``).
    - A **category** is one-hot encoded: ``city`` with the value Paris becomes the feature ``city=Paris``, which is 1. The first
      ``max_values`` categories of a column get a feature each, once they are learned for the second time.
    - All other categories are **target encoded** by the labels of earlier rows. With two labels, ``city~yes`` is the log odds of
      the label in this category minus those in all rows; with more labels, each of the first 8 has a feature. In a
      regression, all categories have ``city~``, the mean target of the category minus that of all rows, in standard deviations.
    - A **key** is a category that tells the device, customer or shop of a row. In addition, the last label of its rows is a
      feature (``device~last yes`` is 1 or 0), the exponential mean of its labels, with the rate 0.1 (``device~recent yes``),
      and log(1 + rows), of at most 100 rows, called ``device~rows``. In a regression, ``device~last`` and ``device~recent`` are
      targets (with a ``scaler``, in standard deviations from the mean of all targets). An unknown key has the means of all rows.
    - With ``buckets``, no labels are needed: the first ``max_values`` categories get a feature each as they come, and all others
      share the features ``city#0``, ``city#1``, ..., by a hash of their text.
    - A **text**, such as a message or a title, becomes its number of words, called ``body~words``, and 4 features for each of the
      first 20 labels, or 6 with two labels or in a regression, such as ``body~spam words mean``: scaled mean and maximum (and
      minimum, if there are 6) of the log odds of its words and pairs of words, and of its sequences of 4 characters.
    - A **date** becomes seconds since 1970, a number like others. With ``cycles``, it also becomes its phase in the day, the
      week or the year.
    - A **missing** value (None, NaN, empty text, or a marker in ``missing``) of a number is replaced by the running mean, and a
      missing category has no feature. ``when_missing`` has other choices.

    A column of numbers that is called like a derived feature of another column (``city=Paris``) keeps a feature of its own,
    whose name is in double quotes.

    Learners of this library scale their features, and leave 0-1 features as they are. For other models, set ``scaler``, which
    gets only the numbers. Do not put a scaler behind the encoder: it would scale categories, too.
    ``max_columns``, ``max_values``, 65,536 target-encoded categories and 1,024 characters for the name of a feature limit the
    memory. A row is checked before anything is learned from it: a row that is refused has no effect.

    Parameters
    ----------
    columns, missing, decimal
        As in `TableParser`: the kind of each column, such as ``"id:drop,city:category"``. All other columns hold numbers.
    keys
        Names of columns that are keys, one or several: the same as ``"device:key"`` in ``columns``.
    when_missing
        How to encode a missing value of a learned column: ``"mean"`` replaces a number by the running mean, ``"indicator"`` also
        adds a feature such as ``age is missing``, which is 1, and ``"drop"`` omits the feature in that row, so that it counts as
        0.
    cycles
        Cycles for the phase of dates: ``"day"``, ``"week"``, ``"year"``, one or several; or with the name of a column, as in
        ``"at:day"``. Each adds two features, sine and cosine.
    scaler
        Transformer for numbers and dates: ``"standard"`` for river's StandardScaler, or another transformer of river. None: no
        scaling.
    max_values
        Maximum number of one-hot categories of a column, at least 0. None: 6, or 32 in a regression, or 64 with ``buckets``.
    buckets
        Number of hashed features that all other categories of a column share, at least 1. None: they are target encoded.
    max_columns
        Maximum number of columns.

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
    >>> encoder = TableEncoder(keys="device")
    >>> for device, y in [("a7", "on"), ("b2", "off"), ("a7", "on")]:
    ...     encoder.learn_one({"device": device}, y)
    >>> encoder.transform_one({"device": "b2"})
    {'device~last on': 0.0, 'device~recent on': 0.4499..., 'device~rows': 0.6931...}
    """

    _changeable = frozenset({"max_columns"})

    def __init__(
        self,
        columns: ColumnKinds = "",
        *,
        keys: Names = (),
        missing: Names = (),
        decimal: str | None = None,
        when_missing: WhenMissing = "mean",
        cycles: Names = (),
        scaler: Literal["standard"] | base.Transformer | None = None,
        max_values: int | None = None,
        buckets: int | None = None,
        max_columns: int = 1024,
    ) -> None:
        self._parser = TableParser(parse_columns(columns, validate_names("keys", keys)), missing=missing, decimal=decimal)
        self.columns: dict[str, str] = self._parser.columns
        self.keys: list[str] = self._parser.keys
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
        for column, _, cycle in (text.rpartition(":") for text in self.cycles):
            if cycle not in CYCLES or column not in ("", *self.dates):
                problem = f"not {short_repr(cycle)}" if cycle not in CYCLES else f"and {short_repr(column)} is no column of dates"
                raise ValueError(f"cycles must be of {', '.join(CYCLES)}, {problem}")
        for name, least in (("max_values", 0), ("buckets", 1), ("max_columns", 1)):
            value = getattr(self, name)
            if (value is not None or name == "max_columns") and (type(value) is not int or value < least):
                raise ValueError(f"{name} must be a whole number of at least {least}, not {short_repr(value)}")
        if self.keys and buckets is not None:
            raise ValueError(f"buckets={buckets}: a key remembers labels, for which buckets have no place: leave buckets out")
        if len(self.categories) > max_columns:
            raise ValueError(f"columns have {len(self.categories)} categories, more than max_columns={max_columns}: drop some")
        if (n_texts := len(self._parser.columns_of_kind(TEXT))) > MAX_TEXT_COLUMNS:
            raise ValueError(f"columns have {n_texts} texts of 4 MiB or more each, and {MAX_TEXT_COLUMNS} are allowed: drop some")
        if not (scaler is None or scaler == "standard" or isinstance(scaler, base.Transformer)):
            raise ValueError(f"scaler must be 'standard', None or a transformer of river, not {short_repr(scaler)}")
        self._scaler: Any = import_standard_scaler()() if scaler == "standard" else scaler and scaler.clone()
        self._state = ColumnState(self._parser, when_missing, self.cycles, max_values, buckets, max_columns)
        self._parsed: ParsedTable | None = None

    @property
    def _supervised(self) -> bool:  # river passes labels to a transformer only if this is true
        return self._state.target_encoding is not None

    def __or__(self, other: Any) -> TableModel:
        """Return a pipeline of this encoder and a learner."""
        return TableModel(self, other)

    @property
    def categories(self) -> list[str]:
        """Names of the columns that are declared as categorical."""
        return self._parser.columns_of_kind(CATEGORY)

    @property
    def dates(self) -> list[str]:
        """Names of the columns that are declared as dates."""
        return self._parser.columns_of_kind(DATE)

    @property
    def dropped_columns(self) -> list[str]:
        """Names of the columns that are declared to be ignored."""
        return self._parser.columns_of_kind(DROP)

    @property
    def learned_columns(self) -> list[Hashable]:
        """Names of the columns that were learned so far, numbers and dates first, then categories and texts."""
        return self._state.columns

    @property
    def column_state(self) -> ColumnState:
        """Learned state of the columns: the running means of numbers, one-hot features of categories, and
        their target encoding.
        """
        return self._state

    def find_key_labels(self, features: Mapping[Hashable, Any], key: Hashable = None) -> list[Any]:
        """Return the last label or target of the column ``key`` (None: the first key) before each row, from the encoded
        ``features``: numbers of one row, or arrays [rows], by name. For an unknown key, it is the most frequent label or the
        mean; for a missing one, None. Empty without keys, or before there are two labels.
        """
        encoding = self.target_encoding
        names = [] if encoding is None else encoding.make_names((), self.keys[:1] if key is None else [key])
        if encoding is None or not names or names[0] not in features:
            return []
        memory = self._scale_memory({name: features[name] for name in names}, True)
        memories = np.array([*memory.values()]).reshape(len(names), -1)
        last, recent = np.split(memories[:-1], 2)
        scores = encoding.split_scores((last + 0.5 * recent - 0.75).T)  # of two labels, the sign decides
        labels = last[0] if encoding.is_regression else np.array([*scores], object)[np.argmax([*scores.values()], axis=0)]
        return np.where(memories.any(axis=0), labels, np.array(None)).tolist()

    @property
    def target_encoding(self) -> TargetEncoding | None:
        """The learned target encoding of the categories. None if other categories are hashed (``buckets``), or if there are no
        categorical columns.
        """
        return self._state.target_encoding

    def drops(self, column: Hashable) -> bool:
        """Return whether a column, or the object that it is in, is declared to be ignored."""
        return DROP in (self._parser.get_kind(column), self._parser.columns.get(str(column).split(".")[0]))

    def compute_max_features(self, default: int, n_columns: int = 0) -> int:
        """Return a value for a learner's parameter ``max_features`` that is large enough for all features of a table. ``default``
        is the learner's default, enough for numbers and dates; ``n_columns`` is the number of columns of the table (0: unknown).
        """
        features_per_column = self._state.max_values + (MAX_LABELS if self.buckets is None else self.buckets)
        n_derived = len(self.categories) * features_per_column + 2 * sum(map(len, self._state.cycles.values()))
        n_derived += len(self._parser.columns_of_kind(TEXT)) * (1 + 4 * MAX_TEXT_LABELS) + len(self.keys) * (1 + 4 * MAX_LABELS)
        return max(default, n_columns) * (2 if self.when_missing == "indicator" else 1) + n_derived

    @property
    def learned_scaler(self) -> Any:
        """The fitted scaler of numbers and dates; None if the encoder was created without one."""
        return self._scaler

    def learn_one(self, x: Mapping[Any, Any], y: Any = None, w: float = 1.0) -> None:
        """Update the encoder with a row (value by column): running means, categories, scaler, and the target encoding with the
        label ``y`` (None: unlabelled) of weight ``w``. Nothing is learned if the row is invalid, or if the weight is 0.

        Raises
        ------
        ValueError
            A value is not of the kind of its column, or there are more columns than ``max_columns``. Then nothing is learned.
        """
        row = self._state.split_row(x, True)
        if validate_weight(w) == 0.0:
            return
        self._state.learn_row(row, y, w)
        if self._scaler is not None:
            self._scaler.learn_one(row.numbers)

    def transform_one(self, x: Mapping[Any, Any]) -> dict[Hashable, Any]:
        """Return the features of a row as a dict from feature to value, such as ``{"age": 31.0, "city=Paris": 1.0}``. The row
        (value by column) is not learned.

        Raises
        ------
        ValueError
            A value is not of the kind of its column (the message names the column, with advice), or there are more columns than
            ``max_columns``.
        """
        row = self._state.split_row(x, False)
        if row.features is None or self._scaler is not None:
            row.features = self._transform_row(row)
        return row.features.copy()

    def _transform_row(self, row: ParsedRow) -> dict[Hashable, Any]:
        """Return the features of a parsed row as a dict from feature to value."""
        state, numbers, names, features = self._state, row.numbers, row.names, self._transform_numbers(row.numbers)
        if state.quoted or not features.keys() <= state.means.keys():
            features = {state.get_feature(name): value for name, value in features.items()}
        self._add_categories(row, features)
        for name, text in row.texts.items():
            if name in state.texts and (labels := state.target_encoding) is not None:
                values = state.texts[name].encode_rows(text, labels)[0].tolist()
                features.update(zip(TextEncoding.make_names(name, labels), values, strict=True))
        for name, cycles in state.cycles.items():
            for cycle in cycles if name in numbers else ():
                features[f"{name} {cycle} sin"], features[f"{name} {cycle} cos"] = encode_cycle(numbers[name], cycle)
        for column in state.columns if self.when_missing == "indicator" else ():
            if column not in numbers and column not in names and column not in row.texts:
                features[f"{state.get_feature(column)} is missing"] = 1.0
        return features

    def _transform_numbers(self, numbers: Mapping[Hashable, float]) -> dict[Hashable, Any]:
        """Return the scaled numbers of a row as a dict by column, with means for missing ones."""
        means = self._state.means
        if self._scaler is None and numbers.keys() == means.keys():
            return dict(numbers)
        # Scalers of river store each name that they see, so they see only learned columns.
        learned_numbers = {name: value for name, value in numbers.items() if name in means}
        missing = [name for name in means if name not in numbers] if self.when_missing != "drop" else []
        is_centred = hasattr(self._scaler, "means")  # then the mean becomes 0, and the scaler may bound it differently
        if not is_centred:
            learned_numbers.update({name: means[name][1] for name in missing})
        scaled = learned_numbers if self._scaler is None else self._scaler.transform_one(learned_numbers)
        features: dict[Hashable, Any] = dict(scaled)
        # A new column has no scale. With a target encoding, a row is transformed before it is learned, so it may be new.
        keeps_new = self._state.target_encoding is not None and self._scaler is None
        for name in (*numbers, *missing):
            features.setdefault(name, numbers.get(name, 0.0) if keeps_new else 0.0)
        return features

    def _add_categories(self, row: ParsedRow, features: dict[Hashable, Any]) -> None:
        """Add the one-hot, hashed and target-encoded features of a row's categories, and the memory of its keys, to the dict
        ``features``.
        """
        target_encoding, keys, recalled = self._state.target_encoding, {}, {}
        for name, category in row.names.items():
            if category.feature:
                features[category.feature] = 1.0
            if category.has_target_encoding:
                keys[name] = category.key
            if name in self._state.keys:
                recalled[name] = category.key
            if name == self._state.key_feature:
                features[name] = float(category.key)
        if (keys or recalled) and target_encoding is not None and target_encoding.suffixes:
            encodings = target_encoding.encode_row(list(keys.values()), list(recalled.values())).tolist()
            features.update(zip(target_encoding.make_names(keys, recalled), encodings, strict=True))
        features.update(row.memory)
        self._scale_memory(features)

    def _scale_memory(self, features: dict[Hashable, Any], is_inverse: bool = False) -> dict[Hashable, Any]:
        """If numbers are scaled, replace the targets that are the memory of keys, among the ``features`` of a row, by their
        standard deviations from the mean of all targets, or the inverse. Returns the features.
        """
        encoding = self._state.target_encoding
        if self._scaler is not None and encoding is not None and encoding.is_regression:
            mean, deviation = encoding.target_scale
            for name in {f"{key}~{kind}" for key in self.keys for kind in ("last", "recent")} & features.keys():
                features[name] = features[name] * deviation + mean if is_inverse else (features[name] - mean) / deviation
        return features

    def pass_key(self, column: str) -> None:
        """Pass the key of the rows in a ``column`` to the learner, as a number and under the name of the column. A `TableModel`
        does so for a `streamsvm.learners.keyed.KeyedClassifier` or ``KeyedRegressor``.
        """
        self._key_feature = self._state.key_feature = column

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> TableEncoder:
        """Return an untrained copy as river's ``clone``, which passes the key of the same column."""
        encoder = super().clone(new_params, include_attributes)
        if self._state.key_feature is not None:
            encoder.pass_key(self._state.key_feature)
        return encoder

    def get_memory(self, x: Mapping[Any, Any]) -> dict[Hashable, Any]:
        """Return the features of a row with the memory of its keys, by name: a part of those that `transform_one` returns, not
        scaled.
        """
        encoding, features = self._state.target_encoding, self._scale_memory(self.transform_one(x) if self.keys else {}, True)
        names = [] if encoding is None else encoding.make_names([], self.keys)
        return {name: features[name] for name in names if name in features}

    def set_memory(self, x: Mapping[Any, Any], memory: Mapping[Hashable, Any]) -> None:
        """Encode this row (the same dict, unchanged) with the features of ``memory``, which `get_memory` returned when the row
        was predicted, until another row is encoded or learned.
        """
        self._state.split_row(x, False).memory = memory

    def parse_table(self, table: Table) -> ParsedTable:
        """Parse a table. The result encodes its rows in batches, each as `transform_one` would. The encoder must not have a
        scaler.
        """
        if self._parsed is None or self._parsed.table is not table:  # batches of one table come in a row
            self._parsed = ParsedTable(table, self._state)
        return self._parsed

    def learn_many(self, X: Any, y: Any = None, w: Any = None) -> None:
        """Update the encoder with the rows of a frame [n, columns], in order, as `learn_one` would. ``y`` are the n labels (None:
        unlabelled), and ``w`` the weights (None: all 1).

        The message of a ValueError begins with the index of the row; the rows before it were learned.
        """
        names, columns, frame = to_columns(X)
        table, n = Table(tuple(names), columns), len(frame)
        labels: list[Any] = [None] * n if y is None else list_labels(y, n)
        weights = check_weights(1.0 if w is None else w, n)

        def learn_batch(first: int, stop: int) -> int:
            if self._scaler is not None:
                return 0
            w = weights[first:stop]
            batch = self.parse_table(table).encode_batch(first, stop, w > 0.0, None, labels[first:stop], w)
            batch.update_encoder()
            return len(batch.X)

        def learn_one(i: int) -> None:
            with add_row_number(i):
                self.learn_one(table.row(i).x, labels[i], float(weights[i]))

        process_rows(0, n, _MAX_BATCH_ROWS, learn_batch, learn_one)

    def transform_many(self, X: Any) -> Any:
        """Return the features of the rows of a frame [n, columns], as a frame [n, features] of the same library. A feature that a
        row does not have is 0. Rows are not learned. Errors are those of `transform_one`, and begin with the index of the row.
        """
        names, columns, frame = to_columns(X)
        return self.transform_table(Table(tuple(names), columns), frame)

    def transform_table(self, table: Table, frame: Any) -> Any:
        """Return the features of the rows of a frame, as `transform_many` does. ``table`` has its columns."""
        n = len(frame)
        features = self._transform_table(table, n) if self._scaler is None else self._transform_singly(table, n)
        if n and not features:  # some kinds of frames cannot have rows without a column
            one_hot = (filter(None, values.values()) for values in self._state.categories.values())
            candidates = itertools.chain(self._state.means, *one_hot, table.names)
            features = dict.fromkeys(itertools.islice(candidates, 1), np.zeros(n))
        return to_frame(np.column_stack(list(features.values())) if features else np.zeros((n, 0)), features, frame)

    def _transform_table(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        """Encode the ``n`` rows of a table in batches, and return a dict from feature to its values, float64 [n]. Only for
        encoders without a scaler.
        """
        batch = self.parse_table(table).encode_batch(0, n, None, None)
        if (n_encoded := len(batch.X)) < n:
            with add_row_number(n_encoded):
                self.transform_one(table.row(n_encoded).x)
            return self._transform_singly(table, n)  # such as when a column has the name of another column's feature
        parser, new_columns, get_feature = self._parser, {}, self._state.get_feature
        for name, values in zip(table.names, table.columns, strict=True):
            if name not in self._state.means and parser.get_kind(name) not in (DROP, CATEGORY, TEXT):
                numbers, _ = to_float_prefix(parser.parse_column(name, values))
                if (numbers == numbers).any():
                    keeps_new = self._state.target_encoding is not None
                    new_columns[get_feature(name)] = np.where(np.isnan(numbers), 0.0, numbers) if keeps_new else np.zeros(n)
        return dict(zip(batch.names, batch.X.T, strict=True)) | new_columns

    def _transform_singly(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        """Encode the ``n`` rows of a table one by one, and return a dict from feature to its values, float64 [n]. This is slower
        than `_transform_table`, but works for every encoder.
        """
        columns: dict[Hashable, np.ndarray] = {}
        for i in range(n):
            with add_row_number(i):
                for name, value in self.transform_one(table.row(i).x).items():
                    columns.setdefault(name, np.zeros(n))[i] = value
        return columns

    def merge_with(self, *others: TableEncoder) -> list[Units]:
        """Merge the state of other encoders into this one, as if it had learned all of their rows. Returns a dict for each
        encoder, this one first, that tells how values scaled by it are converted to the scale after the merge.

        Parameters
        ----------
        *others
            Encoders with the same parameters. They are not changed.

        Returns
        -------
        list of Units
            For this encoder before the merge, and for each of the others: how to convert values that it has scaled to the units
            of the result.

        Raises
        ------
        ValueError
            A parameter differs, or the columns or categories of all encoders together exceed a limit. Then this encoder is
            unchanged.
        """
        encoders = [self, *others]
        for name, value in self.__dict__.items():
            different = [other for other in others if not name.startswith("_") and getattr(other, name) != value]
            if different and name != "scaler":
                values: tuple[Any, ...] = (value, getattr(different[0], name))
                values = select_different_kinds(*values) if name == "columns" else values
                raise ValueError(f"encoders with {name}={values[0]!r} and {values[1]!r} cannot be merged")
        merged = self._state.merge_attributes([other._state for other in others])
        units: list[Units] = [{}] * len(encoders)
        if any(encoder._scaler is not None for encoder in encoders):
            units = merge_transformers(self._scaler, [other._scaler for other in others])
        vars(self._state).update(merged)
        self._state.forget_cells()
        return units

    def __getstate__(self) -> dict[str, Any]:
        learned = {stored: getattr(self._state, name) for stored, name in STORED_NAMES.items()}
        learned = {name: value for name, value in learned.items() if value or name not in ("_quoted", "_date_ranges", "_texts")}
        own = {name: value for name, value in self.__dict__.items() if name not in ("_parser", "_parsed", "_state", "keys")}
        return own | learned

    def __setstate__(self, state: dict[str, Any]) -> None:
        parameters = {name: value for name, value in state.items() if not name.startswith("_")}
        self.__init__(**parameters)  # type: ignore[misc]
        if type(state["_scaler"]) is not type(self._scaler):
            raise ValueError(f"the table encoder is corrupt: its learned scaler is {short_repr(state['_scaler'])}")
        self._scaler = state["_scaler"]  # this one is reset
        if "_key_feature" in state:
            self.pass_key(state["_key_feature"])
        self._state.restore_attributes({name: state[stored] for stored, name in STORED_NAMES.items() if stored in state})

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {}
        yield {"when_missing": "drop", "scaler": "standard"}
