"""Rows of tables as features: numbers, names, dates and missing values."""

from __future__ import annotations

import contextlib
import itertools
import math
import shlex
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np
from river import base

from streamsvm.core.frames import as_columns, as_frame
from streamsvm.core.transformers import Units, merge_transformers, standard_scaler
from streamsvm.files.messages import quoted, shown
from streamsvm.stream.tables.chunk import Table, Values, as_numbers
from streamsvm.stream.tables.encode import LONGEST_FEATURE, Columns, Encoded, ReadTable, encode
from streamsvm.stream.tables.reading import Dates, Names, Reading, as_names
from streamsvm.stream.tables.values import CYCLES, cyclic

if TYPE_CHECKING:
    from river import preprocessing

WhenMissing = Literal["mean", "indicator", "drop"]

_NO_SCALER = "scaler must be 'standard', None or a transformer of river, not {}"
_FEW_ROWS, _MANY_ROWS = 64, 4096  # of a frame that are encoded together
_KNOWN = 20  # values of a column of numbers, from which on it is one
_LARGEST = 3.4028234663852886e38  # of float32


class TableEncoder(base.MiniBatchTransformer):
    """A transformer that turns the rows of a table into features; it is saved with the learner behind it.

    - A **number** is scaled (see ``scaler``).
    - A **category** is one-hot: ``city`` with the value Paris becomes the feature ``city=Paris``, which is 1. The first
      ``max_values`` values of a column that are learned get a feature each. All others share the ``buckets`` features
      ``city#0``, ``city#1``, ..., by a hash of their text. As long as there is room, a value that was never learned has no
      feature.
    - A **date** becomes seconds since 1970, a number like others. With ``cycles``, it also becomes its place in the day, the
      week or the year.
    - A **missing** value (None, NaN, empty text, or what ``missing`` says) counts as the running mean of a number, and as none of
      the values of a category. ``when_missing`` has other choices.

    Learners of this library scale what comes, and leave features that are 0 or 1 as they are. For other models, give a
    ``scaler``, which has the numbers alone: put none behind the encoder, which would scale the names, too.
    ``max_columns``, ``max_values`` and 1,024 characters a name bound its memory, whatever arrives. The ``max_features`` of the
    learner must leave room for ``max_values + buckets`` features of each categorical column. A row is checked before anything
    is learned from it, and a row that is refused leaves nothing behind.

    Parameters
    ----------
    categorical, dates, features, drop, missing, decimal
        As in `Reading`. A column that is not named holds numbers.
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
        The most values of a categorical column that have a feature each, at least 0.
    buckets
        The number of features that all other values of a column share, at least 1.
    max_columns
        The maximum number of columns.

    Raises
    ------
    ValueError
        A parameter is out of its range, or names a column twice.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> encoder = TableEncoder(categorical="city", dates="since")
    >>> encoder.learn_one({"city": "Paris", "since": "1970-01-02", "age": 31})
    >>> encoder.transform_one({"city": "Paris", "since": "1970-01-03", "age": "40"})
    {'since': 172800.0, 'age': 40.0, 'city=Paris': 1.0}
    >>> encoder.transform_one({"city": "Paris", "age": "forty"})
    Traceback (most recent call last):
        ...
    ValueError: feature 'age' is 'forty', a text. ...
    >>> model = TableEncoder(categorical="city") | BSGDClassifier(budget=10)
    >>> for city, y in [("Paris", True), ("Oslo", False)] * 20:
    ...     model.learn_one({"city": city}, y)
    >>> model.predict_one({"city": "Oslo"})
    False
    """

    def __init__(
        self,
        *,
        categorical: Names = (),
        dates: Dates = (),
        features: Names | None = None,
        drop: Names = (),
        missing: Names = (),
        decimal: str | None = None,
        when_missing: WhenMissing = "mean",
        cycles: Names = (),
        scaler: Literal["standard"] | base.Transformer | None = None,
        max_values: int = 64,
        buckets: int = 32,
        max_columns: int = 1024,
    ) -> None:
        columns: dict[str, Any] = {"features": features, "drop": drop, "categorical": categorical, "dates": dates}
        self._reading = Reading(**columns, missing=missing, decimal=decimal)
        read = self._reading
        self.categorical: list[str] = read.categorical
        self.dates: dict[str, str | None] = read.dates
        self.features: list[str] | None = read.features
        self.drop: list[str] = read.drop
        self.missing: list[str] = read.missing
        self.decimal: str | None = read.decimal
        self.when_missing: WhenMissing = when_missing
        self.cycles: list[str] = as_names("cycles", cycles)
        self.scaler: Literal["standard"] | base.Transformer | None = scaler
        self.max_values: int = max_values
        self.buckets: int = buckets
        self.max_columns: int = max_columns
        if when_missing not in get_args(WhenMissing):
            raise ValueError(f"when_missing must be one of {', '.join(get_args(WhenMissing))}, not {shown(when_missing)}")
        if unknown := [cycle for cycle in self.cycles if cycle not in CYCLES]:
            raise ValueError(f"cycles must be of {', '.join(CYCLES)}, not {shown(unknown[0])}")
        for name, least in (("max_values", 0), ("buckets", 1), ("max_columns", 1)):
            value = getattr(self, name)
            if type(value) is not int or value < least:
                raise ValueError(f"{name} must be a whole number of at least {least}, not {shown(value)}")
        if len(self.categorical) > max_columns:
            raise ValueError(f"{len(self.categorical)} categorical columns are more than max_columns={max_columns}")
        if not _is_scaler(scaler):
            raise ValueError(_NO_SCALER.format(shown(scaler)))
        self._scaler: Any = standard_scaler()() if scaler == "standard" else scaler and scaler.clone()
        #: Rows and mean of each column of numbers that was learned, and the feature of each value of each categorical one.
        self._numbers: dict[Hashable, tuple[int, float]] = {}
        self._features: dict[Hashable, dict[str, str]] = {}
        self._read: ReadTable | None = None

    @property
    def columns(self) -> list[Hashable]:
        """The columns that were learned, those with numbers first."""
        return [*self._numbers, *self._features]

    @property
    def learned_scaler(self) -> Any:
        """The scaler that has learned the columns of numbers and dates; None if there is none."""
        return self._scaler

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        """Learn the columns, values and scales of a row.

        Raises
        ------
        ValueError
            A value is not of the kind of its column, or there are more columns than ``max_columns``. Then nothing is learned.
        """
        numbers, names = self._split(x, True)
        for name, value in numbers.items():
            if name not in self._numbers and isinstance(name, np.generic):
                name = name.item()
            count, mean = self._numbers.get(name, (0, 0.0))
            self._numbers[name] = count + 1, mean + (value - mean) / (count + 1)
        for name, text in names.items():
            known = self._features.setdefault(name.item() if isinstance(name, np.generic) else name, {})
            if text not in known and len(known) < self.max_values and len(feature := f"{name}={text}") <= LONGEST_FEATURE:
                known[text] = feature
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
        numbers, names = self._split(x, False)
        # Scalers of river note each name that they meet, so they meet only those that were learned.
        known = {name: value for name, value in numbers.items() if name in self._numbers}
        absent = [name for name in self._numbers if name not in numbers] if self.when_missing != "drop" else []
        centred = hasattr(self._scaler, "means")  # by a mean that may be bounded, which is 0 afterwards
        if not centred:
            known.update({name: self._numbers[name][1] for name in absent})
        features: dict[Hashable, Any] = dict(known if self._scaler is None else self._scaler.transform_one(known))
        for name in (*numbers, *absent):  # that were not learned count as others that learners do not know
            features.setdefault(name, 0.0)
        for name, text in names.items():
            values = self._features.get(name)
            if values is None:
                continue
            if text in values:
                features[values[text]] = 1.0
            elif len(values) >= self.max_values or len(f"{name}={text}") > LONGEST_FEATURE:
                features[self._known.bucket_of(name, text)] = 1.0
        if self.cycles:
            for name in self.dates:
                if name in numbers:
                    for cycle in self.cycles:
                        features[f"{name} {cycle} sin"], features[f"{name} {cycle} cos"] = cyclic(numbers[name], cycle)
        if self.when_missing == "indicator":
            for name in (*self._numbers, *self._features):
                if name not in numbers and name not in names:
                    features[f"{name} is missing"] = 1.0
        return features

    @property
    def _known(self) -> Columns:
        how = self.when_missing, self.cycles, self.max_values, self.buckets, self.max_columns
        return Columns(self._reading, self._numbers, self._features, *how)

    def encode(
        self, table: Table, first: int, end: int, learned: np.ndarray | None, known: Collection[Hashable] | None
    ) -> Encoded:
        """Return the features of many rows before they are learned, as `transform_one` gives them, for a loop over a stream.

        There is no scaler. ``streamsvm.stream.tables.encode.encode`` describes the parameters, and which rows are left out.
        """
        if self._read is None or self._read.table is not table:  # the parts of a table come one after the other
            self._read = ReadTable(table, self._reading)
        return encode(self._known, self._read, first, end, learned, known)

    def n_unknown(self, column: Hashable, values: Values) -> int:
        """Return how many values of a column are names without a feature, and without a share in one of many names."""
        known = self._features.get(column)
        if known is None or len(known) >= self.max_values:
            return 0
        read, columns = self._reading.cell_reader(column), self._known
        texts = Counter(map(read, values.tolist() if isinstance(values, np.ndarray) else values))
        return sum(n for text, n in texts.items() if text is not None and columns.name_of(column, text) not in known)

    def learn_many(self, X: Any) -> None:
        """Learn the rows of a frame, one after the other, as `learn_one` does.

        The message of a ValueError begins with the number of the row. The rows before it were learned.
        """
        names, columns, frame = as_columns(X)
        table, first, n, most = Table(tuple(names), columns), 0, len(frame), _FEW_ROWS
        learned = np.ones(_MANY_ROWS, bool)
        while first < n:
            if self._scaler is None:
                end = min(first + most, n)
                encoded = self.encode(table, first, end, learned[: end - first], None)
                encoded.learn()
                first += len(encoded.X)
                # After a row that brings something new, there may be others: few rows are tried first.
                most = min(4 * most, _MANY_ROWS) if first == end else _FEW_ROWS
            if self._scaler is not None or first < end:
                with _in_row(first):
                    self.learn_one(table.row(first).x)
                first += 1

    def transform_many(self, X: Any) -> Any:
        """Return the features of the rows of a frame, as a frame of the same kind.

        A feature that a row does not have is 0, as it is for learners. Errors are those of `transform_one`, and begin with the
        number of the row.
        """
        names, columns, like = as_columns(X)
        table, n = Table(tuple(names), columns), len(like)
        found = self._encoded(table, n) if self._scaler is None else self._transformed(table, n)
        if n and not found:  # a frame of some kinds has no rows without a column
            known = itertools.chain(self._numbers, *(values.values() for values in self._features.values()), names)
            found = dict.fromkeys(itertools.islice(known, 1), np.zeros(n))
        return as_frame(np.column_stack(list(found.values())) if found else np.zeros((n, 0)), found, like)

    def _encoded(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        encoded = self.encode(table, 0, n, None, None)
        if (done := len(encoded.X)) < n:
            with _in_row(done):
                self.transform_one(table.row(done).x)
            return self._transformed(table, n)  # one column is called as a feature of another, or the like
        read, new = self._reading, []
        for name, values in zip(table.names, table.columns, strict=True):
            if name not in self._numbers and not (read.drops(name) or read.category_of(name)):
                numbers, _ = as_numbers(read.column(name, values))
                new += [name] if (numbers == numbers).any() else []
        return dict(zip(encoded.names, encoded.X.T, strict=True)) | dict.fromkeys(new, np.zeros(n))

    def _transformed(self, table: Table, n: int) -> dict[Hashable, np.ndarray]:
        found: dict[Hashable, np.ndarray] = {}
        for i in range(n):
            with _in_row(i):
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
                features.setdefault(column, {}).update(values)
        for column, values in features.items():  # what is hashed in one would be a feature in the others
            if len(values) > self.max_values:
                raise ValueError(
                    f"column {shown(column)} has {len(values)} values in all of the encoders together, more than "
                    f"max_values={self.max_values}: learn with a larger one"
                )
        if len(numbers) + len(features) > self.max_columns:
            raise ValueError(
                f"the encoders have {len(numbers) + len(features)} columns, more than max_columns={self.max_columns}"
            )
        units: list[Units] = [{}] * len(encoders)
        if any(encoder._scaler is not None for encoder in encoders):
            units = merge_transformers(self._scaler, [other._scaler for other in others])
        self._numbers, self._features = numbers, features
        return units

    def _split(self, x: Mapping[Any, Any], learns: bool) -> tuple[dict[Hashable, float], dict[Hashable, str]]:
        # Numbers (with dates) and names of a row, checked. What is to be transformed may have texts in columns that never came.
        if not isinstance(x, Mapping):
            raise ValueError(f"a row must be a mapping of columns to values, not a {type(x).__name__}")
        numbers: dict[Hashable, float] = {}
        names: dict[Hashable, str] = {}
        for name, value in self._reading.row(x.items()).items():
            if self._reading.category_of(name):
                names[name] = self._known.name_of(name, value)
                continue
            if type(value) is not float:
                if not (learns or name in self._numbers or self._reading.date_of(name)) and isinstance(value, str | bytes):
                    continue
                value = self._number(name, value)
            if not -_LARGEST <= value <= _LARGEST:
                raise ValueError(
                    f"feature {shown(name)} is {value}, which is no finite float32 number. {self._advice(name, value)}"
                )
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

    def _number(self, name: Hashable, value: Any) -> float:
        try:
            if not isinstance(value, str | bytes):
                return float(value)
        except OverflowError:
            return math.inf
        except (TypeError, ValueError):
            pass
        kind = "a text" if isinstance(value, str) else f"a {type(value).__name__}"
        raise ValueError(f"feature {shown(name)} is {shown(value)}, {kind}. {self._advice(name, value)}")

    def _advice(self, name: Hashable, value: Any) -> str:
        if self._reading.date_of(name):
            form = self.dates[str(name)] or "ISO 8601"
            return f"It is not a date in the format of that column ({form}): fix it, or give its format"
        if (known := self._numbers.get(name, (0, 0.0))[0]) >= _KNOWN:  # too late for another kind of column
            return f"The {known:,} values learned before are numbers: fix this one, or leave its row out"
        text = isinstance(value, str)
        return (
            (
                f"If the column holds names: {_asked('categorical', name)}. If it holds dates: {_asked('dates', name)}. "
                if text
                else ""
            )
            + f"If it marks a missing value: {_asked('missing', value if text else str(value))}. "
            + f"To leave out the column: {_asked('drop', name)}"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_reading", "_read")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Made anew and checked: the state may come from a file. A scaler is not cloned: that may take for ever.
        scaler, learned = state["scaler"], state["_scaler"]
        if not _is_scaler(scaler):
            raise ValueError(_NO_SCALER.format(shown(scaler)))
        made = TableEncoder(**{name: value for name, value in state.items() if not name.startswith("_")} | {"scaler": None})
        made.scaler = scaler
        numbers, features = state["_numbers"], state["_features"]
        if len(numbers) + len(features) > made.max_columns or any(len(values) > made.max_values for values in features.values()):
            raise ValueError("the encoder has more columns or values than its parameters allow")
        for count, mean in numbers.values():
            if type(count) is not int or count < 1 or type(mean) is not float or not math.isfinite(mean):
                raise ValueError(f"a column has the mean {shown(mean)} of {shown(count)} rows")
        for name, values in features.items():
            if any(feature != f"{name}={text}" or len(feature) > LONGEST_FEATURE for text, feature in values.items()):
                raise ValueError(f"the values of column {shown(name)} are not those of their features")
        if learned.__class__ is not (standard_scaler() if scaler == "standard" else scaler.__class__):
            raise ValueError("the encoder and its scaler do not fit")
        if scaler == "standard":
            _check_scaler(learned)
        self.__dict__.update(made.__dict__, **{name: state[name] for name in ("_scaler", "_numbers", "_features")})

    @classmethod
    def _unit_test_params(cls) -> Any:
        yield {}
        yield {"when_missing": "drop", "scaler": "standard"}


def _asked(option: str, value: Hashable) -> str:
    """Return an option as an argument and, in brackets, as a flag."""
    kind = {"drop": "drop", "categorical": "category", "dates": "date"}.get(option)
    flag, text = (option, str(value)) if kind is None else ("columns", f"{quoted(str(value))}:{kind}")
    return f"{option}={shown(value)} (--{flag} {shlex.quote(text)})"


def _is_scaler(scaler: object) -> bool:
    return scaler is None or scaler == "standard" or isinstance(scaler, base.Transformer)


def _check_scaler(scaler: preprocessing.StandardScaler) -> None:
    """Raise a ValueError where a StandardScaler of river has numbers that no finite rows give."""
    if scaler.with_std is not True or scaler.window_size is not None:
        raise ValueError("the scaler of the encoder has other parameters than it was made with")
    counts, means, variances = scaler.counts, scaler.means, scaler.vars
    if type(counts) is not Counter or not _is_of_floats(means) or not _is_of_floats(variances):
        raise ValueError("the scaler of the encoder has no counts, means or variances")
    if not counts.keys() == means.keys() == variances.keys():
        raise ValueError("the scaler of the encoder has means or variances of other columns than counts")
    for name, count in counts.items():
        mean, variance = means[name], variances[name]
        finite = all(type(value) is float and math.isfinite(value) for value in (mean, variance))
        if type(count) is not int or count < 1 or not finite or variance < 0.0:
            raise ValueError(
                f"the scaler of column {shown(name)} has the mean {shown(mean)} and the variance {shown(variance)} "
                f"of {shown(count)} rows"
            )


def _is_of_floats(values: object) -> bool:
    return type(values) is defaultdict and values.default_factory is float


@contextlib.contextmanager
def _in_row(i: int) -> Iterator[None]:
    """Let an error say which row of a frame it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"row {i}: {error}") from None
