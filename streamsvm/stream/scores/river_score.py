"""A metric of river over all rows of a stream and the last ones, of many at once where it is counts, and what guesses give."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from river import utils

from streamsvm.core.saved import Resumable
from streamsvm.files.river_metrics import metrics
from streamsvm.stream.rows import MAX_LABELS
from streamsvm.stream.scores.base import POSITIVE_LABEL_HINT, Score, format_score


class LabelFrequencyBaseline(Resumable):
    """The loss of a guess: before each row, the shares of the labels that have come are the probabilities of its label.

    Each label counts as one row more (Laplace's rule of succession), also the one that is to come, so that none has the
    probability 0. Of 4,096 labels on, further ones are one.

    >>> shares = LabelFrequencyBaseline()
    >>> shares.add_many(["a", "a", "b"], lambda p, squares: 1.0 - p)
    >>> round(shares.loss, 3)  # of 1/2, 2/3 and 1/4
    1.583
    """

    _saved_attributes = ("_counts", "_rows", "_squares", "loss")

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()
        self._rows, self._squares = 0, 0.0  # the sum of the squares of the counts
        self.loss: float = 0.0

    def add_many(self, ys: Sequence[Any], losses_of: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> None:
        """Count rows by their labels.

        ``losses_of`` returns losses by the probability of the label, and the sum of the squares of all probabilities.
        """
        if not len(ys):
            return
        counts, n_labels = self._counts, len(self._counts)
        for y in ys if not counts.keys() >= set(ys) else ():
            if y not in counts:
                counts[y if len(counts) < MAX_LABELS else None] = 0
        numbers = {y: number for number, y in enumerate(counts)}
        beyond = numbers.get(None, -1)
        codes = np.array([numbers.get(y, beyond) for y in ys], np.intp)
        # How often the label of each row was there before: in earlier calls, and in this one.
        before = np.array(list(counts.values()), np.int64)
        order = np.argsort(codes, kind="stable")
        of_each = np.bincount(codes, minlength=len(before))
        times = np.empty(len(ys), np.int64)
        times[order] = np.arange(len(ys)) - np.repeat(np.cumsum(of_each) - of_each, of_each)
        times += before[codes]
        n = self._rows + np.arange(len(ys))
        k = np.maximum(n_labels + np.cumsum((times == 0) & (codes >= n_labels)), 2)
        squares = np.cumsum(np.concatenate(([self._squares], 2.0 * times + 1.0)))
        total = (n + k).astype(np.float64)
        losses = losses_of((times + 1) / total, (squares[:-1] + (2 * n + k)) / (total * total))
        self.loss = float(np.cumsum(np.concatenate(([self.loss], losses)))[-1])
        self._rows, self._squares = self._rows + len(ys), float(squares[-1])
        dict.update(counts, zip(tuple(counts), (before + of_each).tolist(), strict=True))  # Counter.update would add


#: The metrics for which there is a guess.
BASELINE_METRICS: tuple[Any, ...] = (metrics.MAE, metrics.MSE, metrics.RMSE, metrics.R2)


class TargetBaselines(Resumable):
    """The errors of two guesses of each target but the first: the mean of those before it, and the one before it.

    >>> guesses = TargetBaselines()
    >>> for y in (1.0, 3.0, 5.0):
    ...     guesses.update(y)
    >>> guesses.of(metrics.MAE())
    (('the mean so far', 2.5), ('the last target', 2.0))
    """

    _saved_attributes = ("_rows", "_mean", "_last", "_spread", "_absolute", "_squared")

    def __init__(self) -> None:
        self._rows, self._mean, self._last = 0, 0.0, 0.0
        self._spread = 0.0  # the sum of squared differences from the mean
        self._absolute, self._squared = [0.0, 0.0], [0.0, 0.0]  # errors of both guesses

    def update(self, y: float) -> None:
        """Guess a target, and then know it."""
        y = float(y)
        self._rows += 1
        error = y - self._mean
        if self._rows > 1:
            for guess, wrong in enumerate((error, y - self._last)):
                self._absolute[guess] += abs(wrong)
                self._squared[guess] += wrong * wrong
        self._mean += error / self._rows
        self._spread += error * (y - self._mean)
        self._last = y

    def of(self, metric: Any) -> tuple[tuple[str, float], ...]:
        """Return what a metric of river is of both guesses, which are named; nothing where it is none of `BASELINE_METRICS`."""
        kind, n = type(metric), self._rows - 1
        if kind not in BASELINE_METRICS or n < 1 or (kind is metrics.R2 and not self._spread):
            return ()
        errors = []
        for name, absolute, squared in zip(("the mean so far", "the last target"), self._absolute, self._squared, strict=True):
            value = absolute / n if kind is metrics.MAE else squared / n
            value = math.sqrt(value) if kind is metrics.RMSE else 1.0 - squared / self._spread if kind is metrics.R2 else value
            errors.append((name, value))
        return tuple(errors)


_TRY = {False: "try Accuracy, F1, ROCAUC or LogLoss", True: "try MAE, RMSE or R2"}


class RiverScore(Score):
    """A metric of river over all rows, and over the last ``window`` of them.

    river's binary metrics count True as the positive label, and silently count nothing if the labels are others. Here they are
    given True for the label ``positive``, and False for all others. Without one, True and 1 are positive.

    A row that leaves the last rows is taken from their sums. Of errors of regressors rounding leaves something there, so these
    sums are made anew each time that all of the last rows are others.

    ``regression`` says whether labels are numbers to predict. A ValueError says that the metric is for the other kind of models,
    or not one number.
    """

    _saved_attributes = ("metric", "windowed", "_rows_to_reset")

    def __init__(self, metric: Any, window: int, positive: Hashable = None, regression: bool = False) -> None:
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
            raise ValueError(f"{self.name}: river's pos_val works for True only; leave it out, {POSITIVE_LABEL_HINT}")
        self.binary: bool = isinstance(metric, metrics.base.BinaryMetric)
        self.accepts_positive_label: bool = self.binary
        self._positive: Hashable = positive if self.binary else None
        # Without the confusion matrix: it is state.
        parameters = {name: value for name, value in metric._get_params().items() if name not in ("cm", "pos_val")}
        # Taken before the first row, for some metrics count in their parameters.
        self._described = format_score(self.name, parameters, window, self._positive)
        # Whether a metric is counts in a confusion matrix and nothing else.
        counting = {metrics.base.ClassificationMetric.update, metrics.base.BinaryMetric.update}
        self._counts: bool = (
            not regression and kind.update in counting and type(getattr(metric, "cm", None)) is metrics.ConfusionMatrix
        )
        try:
            metric.get()
            windowed = CountedWindow(kind(**parameters), window) if self._counts else _rolling_metric(kind, window, parameters)
        except (NotImplementedError, TypeError):
            raise ValueError(f"{self.name} does not give one number over any window of rows; {_TRY[regression]}") from None
        self.metric: Any = metric
        self.window: int = window
        self.windowed: Any = windowed
        self._parameters = parameters
        self._rows_to_reset = window if regression else 0  # until the windowed metric is made anew
        self._regression = regression
        self.uses_predicted_labels: bool = regression or metric.requires_labels  # type: ignore[union-attr]

    def __repr__(self) -> str:
        return self._described

    def update_many(self, ys: Sequence[Any], predicted: Any) -> None:
        if not self.uses_predicted_labels:
            labels, columns = list(predicted), [column.tolist() for column in predicted.values()]
            predicted = [dict(zip(labels, row, strict=True)) for row in zip(*columns, strict=True)] or [None] * len(ys)
        if None in predicted:
            rows = [(y, prediction) for y, prediction in zip(ys, predicted, strict=True) if prediction is not None]
            ys, predicted = [y for y, _ in rows], [prediction for _, prediction in rows]
        if self.binary:
            positive = True if self._positive is None else self._positive
            if self.uses_predicted_labels:
                predicted = [prediction == positive for prediction in predicted]
            else:
                chances = [prediction.get(positive, 0.0) for prediction in predicted]
                predicted = [{True: chance, False: 1.0 - chance} for chance in chances]
            ys = [y == positive for y in ys]
        if self._counts:
            pairs = Counter(zip(ys, predicted, strict=True))
            count_pairs(self.metric.cm, pairs, 1)
            self.windowed.update_many(ys, predicted, pairs)
            return
        for y, prediction in zip(ys, predicted, strict=True):
            self.metric.update(y, prediction)
            self.windowed.update(y, prediction)
            if self._regression:
                self._reset_when_due()

    def _reset_when_due(self) -> None:
        """Make the windowed metric of errors anew, each time that all of the last rows are others."""
        self._rows_to_reset -= 1
        if self._rows_to_reset == 0:
            self._rows_to_reset = self.window
            last = [arguments for arguments, _ in self.windowed.window]
            self.windowed = _rolling_metric(type(self.metric), self.window, self.metric._get_params())
            for arguments in last:
                self.windowed.update(*arguments)

    @property
    def has_rows(self) -> bool:
        return len(self.windowed if self._counts else self.windowed.window) > 0

    @property
    def value(self) -> float:
        return _number_of(self.metric)

    @property
    def windowed_value(self) -> float:
        return _number_of(self.windowed)

    @property
    def majority(self) -> tuple[Any, float] | None:
        if not isinstance(self.metric, metrics.Accuracy) or not self.metric.cm.total_weight:
            return None
        label, times = _commonest_label(self.metric.cm)
        return label, times / self.metric.cm.total_weight

    @property
    def baselines(self) -> tuple[tuple[str, float], ...]:
        """The metric of always predicting the positive label, or without one the commonest; of metrics that are counts."""
        if not (self._counts and self.metric.cm.total_weight):
            return ()
        label = True if self.binary else _commonest_label(self.metric.cm)[0]
        guessing = type(self.metric)(**self._parameters)
        rows = list(self.metric.cm.sum_row.items())
        count_pairs(guessing.cm, {(y, label): int(times) for y, times in rows if times}, 1)
        named = "the positive label" if self.binary and self._positive is None else repr(self._positive if self.binary else label)
        return ((f"always {named}", _number_of(guessing)),)


def _commonest_label(matrix: Any) -> tuple[Any, float]:
    commonest: tuple[Any, float] = max(list(matrix.sum_row.items()), key=lambda item: item[1])
    return commonest


def _rolling_metric(kind: Any, window: int, parameters: Mapping[str, Any]) -> Any:
    return utils.Rolling(kind, window_size=window, **parameters)


def _number_of(metric: Any) -> float:
    try:
        value = metric.get()
        return float(value.real if isinstance(value, complex) else value)  # the root of a sum that rounding has made negative
    except (ArithmeticError, ValueError):
        return math.nan


class CountedWindow(Resumable):
    """A metric over the last rows: river's ``utils.Rolling`` for metrics that are a confusion matrix ``cm`` and nothing else.

    The labels of the last rows are held in two queues, which Python's garbage collector has not to look through as it has through
    a queue of pairs.

    >>> from river import metrics
    >>> windowed = CountedWindow(metrics.Accuracy(), size=2)
    >>> windowed.update_many([1], [0], {(1, 0): 1})
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

    def update_many(self, ys: Sequence[Any], predicted: Sequence[Any], pairs: Mapping[tuple[Any, Any], int]) -> None:
        """Count rows by their labels, and those that were predicted; ``pairs`` has how often each pair is among them."""
        count_pairs(self._metric.cm, pairs, 1)
        leaving = max(len(self._ys) + len(ys) - self._size, 0)
        gone = zip(chain(self._ys, ys), chain(self._predicted, predicted), strict=True)
        count_pairs(self._metric.cm, Counter(islice(gone, leaving)), -1)
        self._ys.extend(ys)
        self._predicted.extend(predicted)

    def get(self) -> float:
        """Return the metric."""
        value: float = self._metric.get()
        return value

    @property
    def state(self) -> dict[str, Any]:
        """The labels of the last rows, and those that were predicted: the metric is counted of them."""
        return {"y_true": list(self._ys), "y_pred": list(self._predicted)}

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`, without a row before."""
        self.update_many(ys := state["y_true"], predicted := state["y_pred"], Counter(zip(ys, predicted, strict=True)))


def count_pairs(matrix: Any, pairs: Mapping[tuple[Any, Any], int], sign: int) -> None:
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
