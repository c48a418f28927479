"""A metric of river over all rows of a stream and over the last ones; metrics that are counts, of many rows at once."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import chain, islice
from typing import Any

from river import metrics, utils

from streamsvm.core.warning import warn
from streamsvm.stream.checkpoint import CheckpointError


class CountedWindow:
    """A metric over the last rows: river's ``utils.Rolling`` for metrics that are counts.

    The labels of the last rows are held in two queues, which Python's garbage collector has not to look through as it has through
    a queue of pairs.

    Parameters
    ----------
    metric
        A metric of river that is a confusion matrix, its ``cm``, and nothing else. It has counted nothing.
    size
        The most rows.

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

    Parameters
    ----------
    metric
        A river metric that is one number: for classifiers, or for regressors.
    window
        Rows of the windowed metric.
    positive
        The label that a binary metric counts as positive. None: True and 1 are positive, False, 0 and -1 negative, and other
        labels are refused.
    multiclass
        Whether there may be more than two labels.
    regression
        Whether the labels are numbers to predict.

    Raises
    ------
    ValueError
        The metric is for the other kind of models, or not one number, or has no positive label.
    ScoreError
        From `admit`: which label is positive is not known, or there are two others (a warning if there may be more than two).
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
        """Raise a ScoreError where a label cannot be counted. Called where it is `binary`, before `update`."""
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
        if not whole or found is None:
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


def _number(metric: Any) -> float:
    try:
        value = metric.get()
        return float(value.real if isinstance(value, complex) else value)  # the root of a sum that rounding has made negative
    except (ArithmeticError, ValueError):
        return math.nan
