"""Metrics of river over all rows of a stream and over the last ones, and baselines for them."""

from __future__ import annotations

import copy
import math
import operator
from collections import Counter, deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

import numpy as np
from river import utils

from streamsvm.core.saved import Resumable
from streamsvm.files.river_metrics import metrics
from streamsvm.stream.rows import MAX_LABELS
from streamsvm.stream.scores.base import POSITIVE_LABEL_HINT, Baselines, Score, format_score


class LabelFrequencyBaseline(Resumable):
    """A baseline for losses of probabilities: each row is predicted by the frequencies of the labels before it.

    Each label counts one row more (Laplace's rule of succession), including the label to be predicted, so that no probability is
    0. After 4,096 distinct labels, all further ones are counted together.

    >>> shares = LabelFrequencyBaseline()
    >>> _ = shares.add_many(["a", "a", "b"], lambda p, squares: 1.0 - p)
    >>> round(shares.loss, 3)  # of 1/2, 2/3 and 1/4
    1.583
    """

    _saved_attributes = ("_counts", "_rows", "_squares", "loss")

    def __init__(self) -> None:
        self._counts: Counter[Any] = Counter()
        self._rows, self._squares = 0, 0.0  # sum of squared counts
        self.loss: float = 0.0

    def add_many(self, ys: Sequence[Any], compute_losses: Callable[[np.ndarray, np.ndarray], np.ndarray]) -> list[float]:
        """Update this baseline with the labels ``ys``: it predicts each row by the frequencies of all earlier labels.
        ``compute_losses`` computes the losses that are added: it takes the probabilities of the true labels and the sums of all
        squared probabilities, each float64 [rows]. Returns them.
        """
        if not len(ys):
            return []
        counts, n_labels = self._counts, len(self._counts)
        for y in ys if not counts.keys() >= set(ys) else ():
            if y not in counts:
                counts[y if len(counts) < MAX_LABELS else None] = 0
        indices = {y: index for index, y in enumerate(counts)}
        further_index = indices.get(None, -1)
        codes = np.array([indices.get(y, further_index) for y in ys], np.intp)
        # The number of earlier rows with the label of each row: in earlier calls, and in this one.
        earlier_counts = np.array(list(counts.values()), np.int64)
        order = np.argsort(codes, kind="stable")
        new_counts = np.bincount(codes, minlength=len(earlier_counts))
        n_earlier = np.empty(len(ys), np.int64)
        n_earlier[order] = np.arange(len(ys)) - np.repeat(np.cumsum(new_counts) - new_counts, new_counts)
        n_earlier += earlier_counts[codes]
        n = self._rows + np.arange(len(ys))
        k = np.maximum(n_labels + np.cumsum((n_earlier == 0) & (codes >= n_labels)), 2)
        squares = np.cumsum(np.concatenate(([self._squares], 2.0 * n_earlier + 1.0)))
        total = (n + k).astype(np.float64)
        losses = compute_losses((n_earlier + 1) / total, (squares[:-1] + (2 * n + k)) / (total * total))
        self.loss = float(np.cumsum(np.concatenate(([self.loss], losses)))[-1])
        self._rows, self._squares = self._rows + len(ys), float(squares[-1])
        # Counter.update would add the counts.
        dict.update(counts, zip(tuple(counts), (earlier_counts + new_counts).tolist(), strict=True))
        return losses.tolist()


#: Regression metrics with baselines.
BASELINE_METRICS: tuple[Any, ...] = (metrics.MAE, metrics.MSE, metrics.RMSE, metrics.R2)


class TargetBaselines(Resumable):
    """Two baselines for regression: each target is predicted by the mean of those before it, and by the last one before it.

    The first target is not predicted.

    >>> baselines = TargetBaselines()
    >>> for y in (1.0, 3.0, 5.0):
    ...     baselines.update(y)
    >>> baselines.compute_values(metrics.MAE())
    (('the mean so far', 2.5), ('the last target', 2.0))
    """

    _saved_attributes = ("_rows", "_mean", "_last", "_spread", "_absolute", "_squared")

    def __init__(self) -> None:
        self._rows, self._mean, self._last = 0, 0.0, 0.0
        self._spread = 0.0  # sum of squared differences from the mean
        self._absolute, self._squared = [0.0, 0.0], [0.0, 0.0]  # sums of the errors of both baselines

    def update(self, y: float) -> None:
        """Update both baselines with the target ``y`` of the next row. One predicts the mean of the earlier targets, the other
        the last target. First their errors for this row are added, then the target is added to the mean.
        """
        y = float(y)
        self._rows += 1
        error = y - self._mean
        if self._rows > 1:
            for i, baseline_error in enumerate((error, y - self._last)):
                self._absolute[i] += abs(baseline_error)
                self._squared[i] += baseline_error * baseline_error
        self._mean += error / self._rows
        self._spread += error * (y - self._mean)
        self._last = y

    @classmethod
    def of_rows(cls, y: np.ndarray) -> TargetBaselines:
        """Return the baselines of rows with the targets ``y``, float64 [rows]. It is faster than updating new ones row by row.

        >>> TargetBaselines.of_rows(np.array([1.0, 3.0, 5.0])).compute_values(metrics.MAE())
        (('the mean so far', 2.5), ('the last target', 2.0))
        """
        baselines, n = cls(), len(y)
        with np.errstate(over="ignore", invalid="ignore"):
            errors = np.empty((2, max(n - 1, 0)))
            np.subtract(y[1:], (y.cumsum() / np.arange(1, n + 1))[:-1], out=errors[0])
            np.subtract(y[1:], y[:-1], out=errors[1])
            centred = y - y.sum() / max(n, 1)
            baselines._rows, baselines._spread = n, float(centred @ centred)
            baselines._absolute = [float(np.abs(error).sum()) for error in errors]
            baselines._squared = [float(error @ error) for error in errors]
        return baselines

    def compute_values(self, metric: Any) -> Baselines:
        """Return how well both baselines predict, as pairs of a name and a value. The value is measured by a river metric of the
        same type as ``metric``. Empty unless that is MAE, MSE, RMSE or R2, and unless there are at least two rows.
        """
        kind, n = type(metric), self._rows - 1
        if kind not in BASELINE_METRICS or n < 1 or (kind is metrics.R2 and not self._spread):
            return ()
        values = []
        for name, absolute, squared in zip(("the mean so far", "the last target"), self._absolute, self._squared, strict=True):
            value = absolute / n if kind is metrics.MAE else squared / n
            value = math.sqrt(value) if kind is metrics.RMSE else 1.0 - squared / self._spread if kind is metrics.R2 else value
            values.append((name, value))
        return tuple(values)


_HINTS = {False: "try Accuracy, F1, ROCAUC or LogLoss", True: "try MAE, RMSE or R2"}


class RiverScore(Score):
    """A metric of river over all rows, and over the last ``window`` of them.

    river's binary metrics take True as the positive label, and silently ignore other labels. Here they get True for the label
    ``positive``, and False for all others. Without one, True and 1 are positive.

    A row that leaves the window is subtracted from the sums. For regression errors, this accumulates rounding errors, so the
    windowed metric is recomputed each time all rows of the window have been replaced.

    Raises ValueError if the metric is not for ``regression`` or not for classification, whichever is needed, or is not a number.
    """

    _saved_attributes = ("metric", "windowed", "_rows_to_reset", "_n_repeats", "_n_followers", "key_score")
    _newer_attributes = frozenset({"_n_repeats", "_n_followers", "key_score"})

    def __init__(self, metric: Any, window: int, positive: Hashable = None, regression: bool = False) -> None:
        if isinstance(metric, type):
            raise ValueError(f"the metric must be an instance, such as {metric.__name__}(), not the class")
        kind = type(metric)
        self.name: str = kind.__name__
        expected = metrics.base.RegressionMetric if regression else metrics.base.ClassificationMetric
        if not isinstance(metric, expected):
            raise ValueError(
                f"{self.name} is not a metric of river for {'regressors' if regression else 'classifiers'}; {_HINTS[regression]}"
            )
        if getattr(metric, "pos_val", True) != True:  # noqa: E712
            raise ValueError(f"{self.name}: river's pos_val works for True only; leave it out, {POSITIVE_LABEL_HINT}")
        self.is_binary: bool = isinstance(metric, metrics.base.BinaryMetric)
        self.accepts_positive_label: bool = self.is_binary
        self._positive: Hashable = positive if self.is_binary else None
        # The confusion matrix is not a parameter, but state.
        parameters = {name: value for name, value in metric._get_params().items() if name not in ("cm", "pos_val")}
        # Formatted before the first row, because some metrics count in their parameters.
        self._repr = format_score(self.name, parameters, window, self._positive)
        # Whether the state of the metric is only a confusion matrix.
        count_methods = {metrics.base.ClassificationMetric.update, metrics.base.BinaryMetric.update}
        self._is_matrix_metric: bool = (
            not regression and kind.update in count_methods and type(getattr(metric, "cm", None)) is metrics.ConfusionMatrix
        )
        try:
            metric.get()
            make_window: Any = CountedWindow if self._is_matrix_metric else utils.Rolling
            windowed = make_window(kind, window_size=window, **parameters)
        except (NotImplementedError, TypeError):
            raise ValueError(f"{self.name} does not give one number over any window of rows; {_HINTS[regression]}") from None
        self.metric: Any = metric
        self.window: int = window
        self.windowed: Any = windowed
        self._parameters = parameters
        self._rows_to_reset = window if regression else 0  # rows until the windowed metric is recomputed
        self._regression, self._is_accuracy = regression, isinstance(metric, metrics.Accuracy)
        self._targets: deque[float] = deque(maxlen=window)  # of the rows in the window of a regression
        self._n_repeats = self._n_followers = 0  # rows with the label of the row before, and rows with a row before
        self.uses_predicted_labels: bool = regression or metric.requires_labels  # type: ignore[union-attr]
        self.key_score: Score | None = copy.deepcopy(self) if self.uses_predicted_labels else None

    def __repr__(self) -> str:
        return self._repr

    def resume(self, state: Any) -> None:
        if self._is_matrix_metric:
            matrix = copy.deepcopy(state["metric"].cm)
            if vars(matrix).keys() != vars(self.metric.cm).keys():
                raise ValueError("the confusion matrix of a saved score is incomplete")
            # A crafted count may be no number: adding to it raises an error here, and not in the next row.
            count_pairs(matrix, {(y, label): 1 for y, row in matrix.data.items() for label in row}, 1)
        super().resume(state)
        if self._regression:
            self._targets.extend(y for (y, _), _ in self.windowed.window)

    def resize_window(self, state: Any) -> Any:
        if self._is_matrix_metric:  # `CountedWindow` drops the oldest rows
            return state
        for arguments, _ in state["windowed"].window:
            self.windowed.update(*arguments)
        state = state | {"windowed": self.windowed, "rows_to_reset": self._rows_to_reset}
        if self.key_score is not None and "key_score" in state:
            state["key_score"] = self.key_score.resize_window(state["key_score"])
        return state

    def update_many(self, ys: Sequence[Any], predicted: Any) -> None:
        if not self.uses_predicted_labels:
            labels, columns = list(predicted), [column.tolist() for column in predicted.values()]
            predicted = [dict(zip(labels, row, strict=True)) for row in zip(*columns, strict=True)] or [None] * len(ys)
        if None in predicted:
            rows = [(y, prediction) for y, prediction in zip(ys, predicted, strict=True) if prediction is not None]
            ys, predicted = [y for y, _ in rows], [prediction for _, prediction in rows]
        if self.is_binary:
            positive = True if self._positive is None else self._positive
            if self.uses_predicted_labels:
                predicted = [prediction == positive for prediction in predicted]
            else:
                probabilities = [prediction.get(positive, 0.0) for prediction in predicted]
                predicted = [{True: p, False: 1.0 - p} for p in probabilities]
            ys = [y == positive for y in ys]
        if self._is_matrix_metric:
            pairs = Counter(zip(ys, predicted, strict=True))
            count_pairs(self.metric.cm, pairs, 1)
            self._n_followers += len(ys) - bool(ys and not len(self.windowed))
            self._n_repeats += self.windowed.update_many(ys, predicted, pairs)
            return
        if self._regression:
            self._targets.extend(ys)
        for y, prediction in zip(ys, predicted, strict=True):
            self.metric.update(y, prediction)
            self.windowed.update(y, prediction)
            if self._regression:
                self._rows_to_reset -= 1
                if self._rows_to_reset == 0:  # recompute the windowed metric, so that rounding errors do not accumulate
                    self._rows_to_reset, rows = self.window, self.windowed.window
                    self.windowed = utils.Rolling(type(self.metric), window_size=self.window, **self.metric._get_params())
                    for arguments, _ in rows:
                        self.windowed.update(*arguments)

    @property
    def has_rows(self) -> bool:  # type: ignore[override]
        return len(self.windowed if self._is_matrix_metric else self.windowed.window) > 0

    @property
    def value(self) -> float:  # type: ignore[override]
        return _get_value(self.metric)

    @property
    def windowed_value(self) -> float:  # type: ignore[override]
        return _get_value(self.windowed)

    def compute_baselines(self, is_windowed: bool) -> Baselines:
        """Return the value of this metric for a baseline that always predicts the positive label, or without one the most
        frequent label: a pair of a text, such as ``"always 'no'"``, and the value. For accuracy, another baseline predicts the
        label of the row before; if earlier labels were not counted, as in a checkpoint of an earlier version, it is left out.
        Empty unless the metric can be computed from a confusion matrix, or is one of `BASELINE_METRICS`, in the window.
        """
        if is_windowed and type(self.metric) in BASELINE_METRICS:
            return TargetBaselines.of_rows(np.fromiter(self._targets.copy(), np.float64)).compute_values(self.metric)
        if not (self._is_matrix_metric and len(self.windowed)):
            return ()
        matrix, n_repeats, n_followers = self.metric.cm, self._n_repeats, self._n_followers
        if is_windowed:
            matrix, n_repeats, n_followers = self.windowed.cm, self.windowed.n_repeats, len(self.windowed) - 1
        rows = list(matrix.sum_row.items())
        label, n_right = (True, 0.0) if self.is_binary else max(rows, key=lambda item: item[1])
        predicted = self._positive if self.is_binary else label
        name = f"always {'the positive label' if self.is_binary and predicted is None else repr(predicted)}"
        if self._is_accuracy:  # which is needed often
            has_previous = n_followers == matrix.total_weight - 1 > 0
            value = name, n_right / matrix.total_weight
            return (value, ("the previous label", n_repeats / n_followers)) if has_previous else (value,)
        baseline = type(self.metric)(**self._parameters)
        count_pairs(baseline.cm, {(y, label): int(count) for y, count in rows if count}, 1)
        return ((name, _get_value(baseline)),)


def _get_value(metric: Any) -> float:
    """Return the current value of a river metric as a float; NaN if it is undefined."""
    try:
        value = metric.get()
        return float(value.real if isinstance(value, complex) else value)  # complex: the root of a negative rounding error
    except (ArithmeticError, ValueError):
        return math.nan


class CountedWindow(Resumable):
    """A windowed metric of the class ``kind`` whose state is only a confusion matrix ``cm``, as by river's ``utils.Rolling``.

    The labels of the window are in two queues: unlike a queue of pairs, they cost Python's garbage collector no time.

    >>> from river import metrics
    >>> windowed = CountedWindow(metrics.Accuracy, window_size=2)
    >>> _ = windowed.update_many([1], [0], {(1, 0): 1})
    >>> _ = windowed.update_many([1, 0], [1, 0], {(1, 1): 1, (0, 0): 1})
    >>> windowed
    Accuracy: 100.00%
    """

    def __init__(self, kind: Any, window_size: int, **parameters: Any) -> None:
        self._metric, self._size = kind(**parameters), window_size
        self.n_repeats: int = 0
        """`count_repeats` of the labels in the window."""
        self._ys: deque[Any] = deque(maxlen=window_size)
        self._predicted: deque[Any] = deque(maxlen=window_size)

    def __repr__(self) -> str:
        return repr(self._metric)

    def __len__(self) -> int:
        return len(self._ys)

    @property
    def cm(self) -> Any:
        """The confusion matrix of the rows in the window."""
        return self._metric.cm

    def update_many(self, ys: Sequence[Any], predicted: Sequence[Any], pairs: Mapping[tuple[Any, Any], int]) -> int:
        """Add rows, with their true labels ``ys`` and their predicted labels, to the window of the last rows, and remove the
        oldest rows from it. ``pairs`` has the number of added rows with each pair of true and predicted label. Returns
        the number of added rows with the label of the row before.
        """
        count_pairs(self._metric.cm, pairs, 1)
        n_evicted = max(len(self._ys) + len(ys) - self._size, 0)
        oldest = zip(chain(self._ys, ys), chain(self._predicted, predicted), strict=True)
        count_pairs(self._metric.cm, Counter(islice(oldest, n_evicted)), -1)
        n_repeats = count_repeats([self._ys[-1], *ys] if self._ys else ys)
        self.n_repeats += n_repeats - (count_repeats(list(islice(chain(self._ys, ys), n_evicted + 1))) if n_evicted else 0)
        self._ys.extend(ys)
        self._predicted.extend(predicted)
        return n_repeats

    def get(self) -> float:
        """Return the value of the metric over the rows in the window."""
        value: float = self._metric.get()
        return value

    @property
    def state(self) -> dict[str, Any]:
        """The true and predicted labels of the rows in the window, for a checkpoint; the metric is recomputed from these."""
        return {"y_true": list(self._ys), "y_pred": list(self._predicted)}

    def resume(self, state: Any) -> None:
        """Fill this empty window from a saved `state`."""
        self.update_many(ys := state["y_true"], predicted := state["y_pred"], Counter(zip(ys, predicted, strict=True)))


def count_pairs(matrix: Any, pairs: Mapping[tuple[Any, Any], int], sign: int) -> None:
    """Add counts of rows to a confusion matrix of river. ``pairs`` has the number of rows by true and predicted label; they are
    added for ``sign`` 1, and subtracted for -1.
    """
    for (y, predicted), count in pairs.items():
        weight = float(sign * count)
        matrix.n_samples += sign * count
        matrix.data[y][predicted] += weight
        matrix.total_weight += weight
        matrix.sum_row[y] += weight
        matrix.sum_col[predicted] += weight
        if y == predicted:
            matrix._total_true_positives += weight


def count_repeats(labels: Sequence[Any]) -> int:
    """Return the number of labels that equal the one before.

    >>> count_repeats(["a", "b", "b"])
    1
    """
    return sum(map(operator.eq, labels[1:], labels))
