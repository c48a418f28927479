"""A metric of river over all rows of a stream and over the last ones, of many rows at once where it is counts; and its curve."""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, islice, product
from typing import Any, NamedTuple

from river import metrics, utils

from streamsvm.core.warning import warn
from streamsvm.files.messages import shown
from streamsvm.stream.checkpoint import CheckpointError


class CountedWindow:
    """A metric over the last rows: river's ``utils.Rolling`` for metrics that are a confusion matrix ``cm`` and nothing else.

    The labels of the last rows are held in two queues, which Python's garbage collector has not to look through as it has through
    a queue of pairs.

    Examples
    --------
    >>> from river import metrics
    >>> windowed = CountedWindow(metrics.Accuracy(), size=2)
    >>> windowed.update(1, 0)
    >>> windowed.update_many([1, 0], [1, 0], {(1, 1): 1, (0, 0): 1})
    >>> windowed
    Accuracy: 100.00%
    """

    def __init__(self, metric: Any, size: int) -> None:
        self._metric, self._size = metric, size
        self._ys: deque[Any] = deque(maxlen=size)
        self._predicted: deque[Any] = deque(maxlen=size)

    def __repr__(self) -> str:
        return repr(self._metric)

    def __len__(self) -> int:
        return len(self._ys)

    def update(self, y: Any, predicted: Any) -> None:
        """Count a row: its label, and the one that was predicted."""
        if len(self._ys) == self._size:
            self._metric.revert(self._ys[0], self._predicted[0])
        self._metric.update(y, predicted)
        self._ys.append(y)
        self._predicted.append(predicted)

    def update_many(self, ys: Sequence[Any], predicted: Sequence[Any], pairs: Mapping[tuple[Any, Any], int]) -> None:
        """Count rows as `update` does one after the other; ``pairs`` are how often each pair of labels is among them."""
        count(self._metric.cm, pairs, 1)
        leaving = max(len(self._ys) + len(ys) - self._size, 0)
        gone = zip(chain(self._ys, ys), chain(self._predicted, predicted), strict=True)
        count(self._metric.cm, Counter(islice(gone, leaving)), -1)
        self._ys.extend(ys)
        self._predicted.extend(predicted)

    def get(self) -> float:
        """Return the metric."""
        value: float = self._metric.get()
        return value

    @property
    def columns(self) -> list[list[Any]]:
        """The labels of the last rows, and those that were predicted."""
        return [list(self._ys), list(self._predicted)]


def count(matrix: Any, pairs: Mapping[tuple[Any, Any], int], sign: int) -> None:
    """Change a confusion matrix of river as its ``update``, or with sign -1 its ``revert``, by counted pairs; sums are whole."""
    for (y, predicted), times in pairs.items():
        weight = float(sign * times)
        matrix.n_samples += sign * times
        matrix.data[y][predicted] += weight
        matrix.total_weight += weight
        matrix.sum_row[y] += weight
        matrix.sum_col[predicted] += weight
        if y == predicted:
            matrix._total_true_positives += weight


_NAME_IT = "name the positive label with --positive LABEL, or LearningLoop(positive=...)"
_TRY = {False: "try Accuracy, F1, ROCAUC or LogLoss", True: "try MAE, RMSE or R2"}


class ScoreError(ValueError):
    """A metric cannot count the labels of a stream."""


class Score:
    """A metric over all rows, and over the last ``window`` of them.

    river's binary metrics count True as the positive label, and silently count nothing if the labels are others. Here they are
    given True for the label ``positive``, and False for all others.

    A row that leaves the last rows is taken from their sums. Of errors of regressors rounding leaves something there, so these
    sums are made anew each time that all of the last rows are others.

    Without a ``positive`` label, True and 1 are positive, False, 0 and -1 negative, and other labels are refused. ``multiclass``
    says whether there may be more than two labels, ``regression`` whether they are numbers to predict. A ValueError says that
    the metric is for the other kind of models, or not one number, or has no positive label.
    """

    def __init__(
        self, metric: Any, window: int, positive: Hashable = None, multiclass: bool = False, regression: bool = False
    ) -> None:
        if window < 1:
            raise ValueError(f"window must be at least 1, not {window}")
        if isinstance(metric, type):
            raise ValueError(f"the metric must be an instance, such as {metric.__name__}(), not the class")
        kind = type(metric)
        self.name: str = kind.__name__
        wanted = metrics.base.RegressionMetric if regression else metrics.base.ClassificationMetric
        if not isinstance(metric, wanted):
            raise ValueError(
                f"{self.name} is not a metric of river for {'regressors' if regression else 'classifiers'}; {_TRY[regression]}"
            )
        if getattr(metric, "pos_val", True) != True:  # noqa: E712
            raise ValueError(f"{self.name}: river's pos_val works for True only; leave it out, {_NAME_IT}")
        if positive is not None and not isinstance(metric, metrics.base.BinaryMetric):
            raise ValueError(f"{self.name} treats all labels alike, there is no positive one to name")
        # Without the confusion matrix: it is state.
        parameters = {name: value for name, value in metric._get_params().items() if name not in ("cm", "pos_val")}
        facts = parameters | {"window": window} | ({} if positive is None else {"positive": positive})
        # Taken before the first row, for some metrics count in their parameters.
        self._described = f"{self.name}({', '.join(f'{name}={value!r}' for name, value in facts.items())})"
        # Whether a metric is counts in a confusion matrix and nothing else.
        counting = {metrics.base.ClassificationMetric.update, metrics.base.BinaryMetric.update}
        self._counts: bool = (
            not regression and kind.update in counting and type(getattr(metric, "cm", None)) is metrics.ConfusionMatrix
        )
        try:
            metric.get()
            windowed = CountedWindow(kind(**parameters), window) if self._counts else _rolling(kind, window, parameters)
        except (NotImplementedError, TypeError):
            raise ValueError(f"{self.name} does not give one number over any window of rows; {_TRY[regression]}") from None
        self.metric = metric
        self.window: int = window
        self.windowed: Any = windowed
        self._parameters = parameters
        self._rows_anew = window if regression else 0  # until the windowed metric is made anew
        self._regression = regression
        self.wants_labels: bool = regression or metric.requires_labels  # type: ignore[union-attr]
        self.binary: bool = isinstance(metric, metrics.base.BinaryMetric)
        self._positive, self._multiclass = positive, multiclass
        self._seen: set[Any] = set()

    def __repr__(self) -> str:
        """The metric, its parameters, window and positive label: equal for scores that may continue each other."""
        return self._described

    def update(self, y: Any, predicted: Any) -> None:
        """Count a row: its label, and the predicted label, or the probabilities if the metric needs them.

        None and {}, from a model that does not predict yet, are not counted: as in river's evaluate.
        """
        if predicted is None or predicted == {}:
            return
        if self.binary:
            positive = True if self._positive is None else self._positive
            if self.wants_labels:
                predicted = predicted == positive
            else:
                probability = predicted.get(positive, 0.0)
                predicted = {True: probability, False: 1.0 - probability}
            y = y == positive
        self.metric.update(y, predicted)
        self.windowed.update(y, predicted)
        if self._regression:
            self._rows_anew -= 1
            if self._rows_anew == 0:
                self._rows_anew = self.window
                last = [arguments for arguments, _ in self.windowed.window]
                self.windowed = _rolling(type(self.metric), self.window, self.metric._get_params())
                for arguments in last:
                    self.windowed.update(*arguments)

    def update_many(self, ys: Sequence[Any], predicted: Sequence[Any]) -> None:
        """Count rows as `update` does one after the other, those without a label (None) left out."""
        if None in ys:
            labelled = [i for i, y in enumerate(ys) if y is not None]
            ys, predicted = [ys[i] for i in labelled], [predicted[i] for i in labelled]
        if not self._counts or None in predicted:
            for y, prediction in zip(ys, predicted, strict=True):
                self.update(y, prediction)
            return
        if self.binary:
            positive = True if self._positive is None else self._positive
            ys, predicted = [y == positive for y in ys], [prediction == positive for prediction in predicted]
        pairs = Counter(zip(ys, predicted, strict=True))
        count(self.metric.cm, pairs, 1)  # type: ignore[union-attr]
        self.windowed.update_many(ys, predicted, pairs)

    def admit(self, y: Any) -> None:
        """Raise a ScoreError where a label cannot be counted; called where the score is `binary`, before `update`.

        Then which label is positive is not known, or there are two others (a warning if there may be more than two).
        """
        if y in self._seen:
            return
        if self._positive is None:
            if y not in (0, 1, -1):
                raise ScoreError(
                    f"{self.name} counts one label as positive, and which one is not known: is it {y!r}, or the other? "
                    f"So {_NAME_IT}"
                )
        elif len(self._seen) == 1 and self._positive not in (*self._seen, y):
            seen = " and ".join(map(repr, (*self._seen, y)))
            doubt = f"no label so far is {self._positive!r}, which was named as the positive one: there are {seen}"
            if not self._multiclass:  # there will be no third one
                raise ScoreError(doubt)
            warn(f"{doubt}. {self.name} says nothing until it comes")
        self._seen.add(y)

    def admitted(self, labels: Iterable[Any]) -> None:
        """Know labels that were admitted in an earlier run."""
        if self.binary:
            self._seen.update(labels)

    @property
    def counted(self) -> bool:
        """Whether a row was counted."""
        return len(self.windowed if self._counts else self.windowed.window) > 0

    @property
    def state(self) -> tuple[Any, Any, int]:
        """The state that a checkpoint saves: the metric, the windowed one, and the rows until that is made anew.

        Of a windowed metric that is counts, only the labels and predictions are saved: a deque of pairs takes long.
        """
        return self.metric, self.windowed.columns if self._counts else self.windowed, self._rows_anew

    def resume(self, metric: Any, windowed: Any, rows_anew: Any) -> None:
        """Go on from a saved `state`; CheckpointError if it is none of such a score."""
        kind = type(self.metric)
        whole = type(metric) is kind and type(rows_anew) is int and 0 <= rows_anew <= self.window
        found: Any
        if self._counts:
            found = self._counted(windowed) if whole else None
        else:
            found = windowed if type(windowed) is utils.Rolling and type(windowed.obj) is kind else None
        if not whole or found is None or not (_is_usable(metric) and _is_usable(found)):
            raise CheckpointError(f"the checkpoint's {self.name} is not what was written: give another folder")
        self.metric, self.windowed, self._rows_anew = metric, found, rows_anew

    def _counted(self, columns: Any) -> CountedWindow | None:
        # The windowed metric of labels and predictions; None if they are none.
        try:
            if type(columns) is not list or not all(type(column) is list and len(column) <= self.window for column in columns):
                return None
            windowed = CountedWindow(type(self.metric)(**self._parameters), self.window)
            ys, predicted = columns
            windowed.update_many(ys, predicted, Counter(zip(ys, predicted, strict=True)))
        except (TypeError, ValueError):
            return None
        return windowed

    @property
    def value(self) -> float:
        """The metric over all rows; NaN if it has no value."""
        return _number(self.metric)

    @property
    def majority(self) -> tuple[Any, float] | None:
        """The commonest label and its share of the rows, which is the accuracy of always predicting it; None of other metrics."""
        if not isinstance(self.metric, metrics.Accuracy) or not self.metric.cm.total_weight:
            return None
        label, count = max(self.metric.cm.sum_row.items(), key=lambda item: item[1])
        return label, count / self.metric.cm.total_weight

    @property
    def windowed_value(self) -> float:
        """The metric over the last rows; NaN if it has no value."""
        return _number(self.windowed)


def _rolling(kind: Any, window: int, parameters: Mapping[str, Any]) -> Any:
    return utils.Rolling(kind, window_size=window, **parameters)


def _is_usable(metric: Any) -> bool:
    """Whether a metric that was read can count and be asked: river finds out late that a number of it is none."""
    probe = copy.deepcopy(metric)
    try:
        _number(probe)
        if isinstance(probe, utils.Rolling):
            if type(probe.window) is not deque or type(probe.window_size) is not int:
                return False
            for arguments, options in list(probe.window):
                probe.update(*arguments, **options)
        elif isinstance(matrix := getattr(probe, "cm", None), metrics.ConfusionMatrix):
            labels = [*matrix.classes, 0]
            for pair in product(labels, labels):
                matrix.update(*pair)  # type: ignore[no-untyped-call]
            sum(matrix.sum_row.values())
        _number(probe)
    except (AttributeError, LookupError, TypeError, ValueError):
        return False
    return True


def _number(metric: Any) -> float:
    try:
        value = metric.get()
        return float(value.real if isinstance(value, complex) else value)  # the root of a sum that rounding has made negative
    except (ArithmeticError, ValueError):
        return math.nan


_MOST_POINTS = 200
_LONGEST_NAME = 100
_LARGEST = 1e300  # a picture has no room for larger ones
_DIGITS = 6  # a picture shows fewer, and the last digits of some metrics depend on the order of their sums


class CurvePoint(NamedTuple):
    """The scores after some number of rows, to six digits.

    A score is NaN if there is no value, or one beyond 1e300.
    """

    rows: int
    metric: float
    windowed: float


class LearningCurve:
    """A metric over the rows of a stream, at a bounded number of points.

    There is a point every ``every`` rows. When there are 200 points, every second one is dropped, and ``every`` doubles. The
    points therefore depend on the number of rows alone, and memory and time do not grow with the stream: n rows cost 100 log2(n
    / 100) readings of the metric.

    Parameters
    ----------
    metric
        Name of the metric; its first 100 characters are kept.
    window
        Number of rows of the windowed metric.

    Attributes
    ----------
    metric, window
        As given.
    every : int
        Number of rows between two points; a power of two.
    points : list of CurvePoint
        The points, in the order of rows; fewer than 200.

    Examples
    --------
    >>> curve = LearningCurve("Accuracy", window=1000)
    >>> for rows in range(1, 1001):
    ...     if rows == curve.next_after(rows - 1):
    ...         curve.add(rows, 1 - 1 / rows, 1.0)
    >>> curve.every, len(curve.points), curve.points[-1]
    (8, 125, CurvePoint(rows=1000, metric=0.999, windowed=1.0))
    """

    def __init__(self, metric: str, window: int) -> None:
        self.metric: str = metric[:_LONGEST_NAME]
        self.window: int = window
        self.every: int = 1
        self.points: list[CurvePoint] = []

    def __repr__(self) -> str:
        return f"LearningCurve({self.metric!r}, window={self.window}): {len(self.points)} points, one every {self.every:,} rows"

    def next_after(self, rows: int) -> int:
        """Return the number of rows at which the next point is due."""
        return (rows // self.every + 1) * self.every

    def add(self, rows: int, metric: float, windowed: float) -> None:
        """Add the point that is due after this number of rows."""
        self.points.append(CurvePoint(rows, _rounded(metric), _rounded(windowed)))
        if len(self.points) == _MOST_POINTS:
            self.every *= 2
            self.points = [point for point in self.points if point.rows % self.every == 0]

    @property
    def state(self) -> dict[str, Any]:
        """The curve as JSON, for the header of a checkpoint."""
        points = [[point.rows, *(x if math.isfinite(x) else None for x in point[1:])] for point in self.points]
        return {"metric": self.metric, "window": self.window, "every": self.every, "points": points}

    @classmethod
    def of(cls, state: Any, rows: Any) -> LearningCurve:
        """Make the curve of a saved `state` after this number of rows, neither of which is trusted.

        A ValueError names the value that is not one of a curve.
        """
        if not isinstance(state, dict) or state.keys() != {"metric", "window", "every", "points"}:
            raise _corrupt(shown(state))
        metric, window, every, points = (state[name] for name in ("metric", "window", "every", "points"))
        named = type(metric) is str and len(metric) <= _LONGEST_NAME
        if not (named and _is_count(window) and _is_count(every) and every.bit_count() == 1):
            raise _corrupt(f"it is of {shown(metric)}, {shown(window)}, every {shown(every)} rows")
        if type(points) is not list or len(points) >= _MOST_POINTS:
            raise _corrupt(f"its points are {shown(points)}")
        if type(rows) is not int:
            raise _corrupt(f"it is of {shown(rows)} rows")
        curve, before = cls(metric, window), 0
        curve.every = every
        for point in points:
            if not (type(point) is list and len(point) == 3 and _is_count(point[0]) and all(map(_is_value, point[1:]))):
                raise _corrupt(f"{shown(point)} is no point")
            if not before < point[0] <= rows or point[0] % every:
                raise _corrupt(f"a point at row {point[0]}, after one at {before}, every {every} of {rows}")
            before = point[0]
            curve.points.append(CurvePoint(before, *(math.nan if x is None else float(x) for x in point[1:])))
        return curve


def _corrupt(reason: str) -> ValueError:
    return ValueError(f"the learning curve is corrupt: {reason}")


def _rounded(value: float) -> float:
    return float(f"{value:.{_DIGITS}g}") if abs(value) <= _LARGEST else math.nan


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 < value < 2**63


def _is_value(value: Any) -> bool:
    return value is None or (type(value) in (int, float) and abs(value) <= _LARGEST)
