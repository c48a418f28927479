"""Metrics of predicted probabilities in bounded memory: ROC AUC, average precision, log loss, Brier score, and calibration."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from decimal import ROUND_FLOOR, Context
from typing import Any, ClassVar

import numpy as np

from streamsvm.stream.scores.base import Baselines, ProbabilityColumns, Score, ScoreView, TableScore, format_score
from streamsvm.stream.scores.ranks import (
    BINS,
    RankCounts,
    average_precision,
    clean_probabilities,
    count_exactly,
    evaluate_thresholds,
    roc_auc,
)
from streamsvm.stream.scores.river_score import LabelFrequencyBaseline

_ROUNDED_DOWN = Context(prec=4, rounding=ROUND_FLOOR)  # a shown threshold must not exceed the probabilities that it includes
_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class ProbabilityScore(Score):
    """Base class of metrics of probabilities. NaN counts as 0. Without a ``positive`` label, True and 1 are positive."""

    uses_predicted_labels: bool = False
    accepts_positive_label: bool = True
    parameters: ClassVar[Mapping[str, Any]]
    """Parameters for the repr, which also distinguish it from that of river's metric with the same name."""

    def __init__(self, window: int, positive: Hashable = None) -> None:
        self.name: str = type(self).__name__
        self.window: int = window
        self._positive = positive
        self._rows = 0
        self._last: deque[float] = deque(maxlen=window)  # the last rows' probabilities, or losses
        self.metric: Any = ScoreView(self.name, lambda: self.value)
        self.windowed: Any = ScoreView(self.name, lambda: self.windowed_value)

    def __repr__(self) -> str:
        return format_score(self.name, self.parameters, self.window, self._positive)

    @property
    def has_rows(self) -> bool:  # type: ignore[override]
        return self._rows > 0

    def _positive_probability(self, probabilities: Mapping[Any, Any]) -> Any:
        """Return the predicted probability of the positive label from ``probabilities``, a mapping from label to probability: a
        number, or an array for many rows. 0 if the positive label is not in the mapping.
        """
        return probabilities.get(True if self._positive is None else self._positive, 0.0)

    def _are_positive(self, ys: Sequence[Any]) -> list[bool]:
        """Return for each label in ``ys`` whether it is the positive one."""
        positive = True if self._positive is None else self._positive
        return [y == positive for y in ys]


class RankScore(ProbabilityScore):
    """Base class of metrics of the ranking of rows by the positive label's probability.

    The windowed value is exact. The value over all rows is exact for up to ``window`` rows, and then computed from binned counts
    (`RankCounts`).
    """

    is_binary: bool = True
    parameters: ClassVar[Mapping[str, Any]] = {"bins": BINS}
    _saved_attributes = ("_rows", "_last", "_last_positive", "_ranks")

    @staticmethod
    def _compute_score(counts: np.ndarray) -> float:  # noqa: ARG004
        """Return the value of this ranking metric from counts of rows. ``counts``, [2, scores], has the numbers of negative rows
        (first) and of positive rows (second) with each distinct score, by ascending score. NaN for metrics that are tables.
        """
        return math.nan

    def __init__(self, window: int, positive: Hashable = None) -> None:
        super().__init__(window, positive)
        self._ranks = RankCounts()
        self._last_positive: deque[bool] = deque(maxlen=window)

    def update_many(self, ys: Sequence[Any], predicted: ProbabilityColumns) -> None:
        if not predicted:
            return
        positive = np.array(self._are_positive(ys), bool)
        p = clean_probabilities(np.broadcast_to(self._positive_probability(predicted), len(ys)))
        self._ranks.add_many(positive, p)
        self._rows += len(ys)
        self._last_positive.extend(positive.tolist())
        self._last.extend(p.tolist())

    @property
    def value(self) -> float:  # type: ignore[override]
        return self.windowed_value if self._rows == len(self._last) else self._compute_score(self._ranks.counts)

    @property
    def windowed_value(self) -> float:  # type: ignore[override]
        probabilities, positive = list(self._last), list(self._last_positive)
        n = min(len(probabilities), len(positive))  # they may differ while another thread adds rows
        is_positive = np.array(positive[len(positive) - n :], bool)
        p = np.array(probabilities[len(probabilities) - n :], np.float64)
        return self._compute_score(count_exactly(is_positive, p))


class ROCAUC(RankScore):
    """The area under the ROC curve: the probability that a positive row is ranked above a negative one.

    >>> score = ROCAUC(window=2)
    >>> score.update_many([False, True, False, True], {True: np.array([0.1, 0.3, 0.4, 0.9])})
    >>> score.value, score.windowed_value
    (0.75, 1.0)
    """

    @staticmethod
    def _compute_score(counts: np.ndarray) -> float:
        return roc_auc(counts)

    def compute_baselines(self, is_windowed: bool) -> Baselines:  # noqa: ARG002
        return (("rows in any order", 0.5),)


class AveragePrecision(RankScore):
    """Average precision: the mean precision at the positive rows, which is the area under the precision-recall curve.

    >>> score = AveragePrecision(window=2)
    >>> score.update_many([False, True, False, True], {True: np.array([0.1, 0.3, 0.4, 0.9])})
    >>> round(score.value, 3), score.windowed_value
    (0.833, 1.0)
    """

    @staticmethod
    def _compute_score(counts: np.ndarray) -> float:
        return average_precision(counts)

    def compute_baselines(self, is_windowed: bool) -> Baselines:
        counts = np.bincount(list(self._last_positive), minlength=2) if is_windowed else self._ranks.counts.sum(axis=1)
        negatives, positives = counts.tolist()
        return (("rows in any order", positives / (positives + negatives)),) if positives else ()


class Thresholds(RankScore):
    """A table of precision, recall and F1 for several thresholds of the positive label's probability, and for the best F1.

    It has no windowed value.

    >>> score = Thresholds(window=2)
    >>> score.update_many([False, True, False, True], {True: np.array([0.1, 0.3, 0.4, 0.9])})
    >>> [row[:2] for row in score.table[3:7]]
    [['0.2', 3], ['0.2998 (best F1)', 3], ['0.3', 3], ['0.4', 2]]
    """

    @property
    def table(self) -> list[list[Any]]:  # type: ignore[override]
        rows = evaluate_thresholds(self._ranks.counts, _THRESHOLDS)
        names = [f"{p:g}" if p in _THRESHOLDS else f"{float(_ROUNDED_DOWN.create_decimal(p)):g} (best F1)" for p, *_ in rows]
        return [
            ["probability from", "predicted", "precision", "recall", "F1"],
            *([name, *row[1:]] for name, row in zip(names, rows, strict=True)),
        ]


class LossScore(ProbabilityScore):
    """Base class of metrics that are the mean loss of the rows' probabilities. Without a ``positive`` label, it is multiclass."""

    _saved_attributes = ("_rows", "_last", "_total", "_is_multiclass", "_shares", "_last_shares")
    _newer_attributes = frozenset({"_last_shares"})
    _loss_unit: float = 1.0
    """The factor that turns the mean loss into the value of the metric."""

    def __init__(self, window: int, positive: Hashable = None) -> None:
        super().__init__(window, positive)
        self._total = 0.0
        self._is_multiclass = False  # whether there have been more than two labels
        self._shares = LabelFrequencyBaseline()
        self._last_shares: deque[float] = deque(maxlen=window)  # losses of this baseline

    @staticmethod
    def _compute_losses(p: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Return the loss of each row, float64 [rows], such as its log loss. ``p`` is the probability that was predicted for the
        row's true label, and ``squares`` the sum of the squared probabilities of all labels; both are float64 [rows].
        """
        raise NotImplementedError

    def update_many(self, ys: Sequence[Any], predicted: ProbabilityColumns) -> None:
        if not predicted:
            return
        if self._positive is None:
            columns = np.array([clean_probabilities(column) for column in predicted.values()])
            column_indices = {label: i for i, label in enumerate(predicted)}
            true_columns = np.array([column_indices.get(y, -1) for y in ys], np.intp)
            p = np.where(true_columns < 0, 0.0, columns[true_columns, np.arange(len(ys))])
            squares = np.zeros(len(ys))
            for column in columns:  # in this order, the sum does not depend on the number of rows
                squares += column * column
            self._is_multiclass |= len(predicted) > 2
        else:
            p = clean_probabilities(np.broadcast_to(self._positive_probability(predicted), len(ys)))
            ys = self._are_positive(ys)
            p = np.where(ys, p, 1.0 - p)
            squares = p * p + (1.0 - p) * (1.0 - p)
        losses = self._compute_losses(p, squares)
        # A cumulative sum adds in order, so that the result does not depend on how rows are divided into calls.
        self._total = float(np.cumsum(np.concatenate(([self._total], losses)))[-1])
        self._rows += len(ys)
        self._last.extend(losses.tolist())
        self._last_shares.extend(self._shares.add_many(ys, self._compute_losses))

    @property
    def value(self) -> float:  # type: ignore[override]
        return self._loss_unit * self._total / self._rows if self._rows else math.nan

    @property
    def windowed_value(self) -> float:  # type: ignore[override]
        losses = list(self._last)
        return self._loss_unit * math.fsum(losses) / len(losses) if losses else math.nan

    def compute_baselines(self, is_windowed: bool) -> Baselines:
        total, n, losses = self._shares.loss, self._rows, list(self._last_shares)
        if is_windowed:  # a run of an earlier version had not kept the losses
            total, n = math.fsum(losses), len(losses) if len(losses) == len(self._last) else 0
        return (("the labels' shares so far", self._loss_unit * total / n),) if n else ()


#: Smaller probabilities are replaced by this in log loss, as in scikit-learn.
_MIN_PROBABILITY = 2.0**-52


class LogLoss(LossScore):
    """Log loss: the mean of -log(p), where p is the probability of the true label, at least 2**-52.

    >>> score = LogLoss(window=1)
    >>> p = np.array([0.5, 0.25, 0.25])
    >>> score.update_many(["b", "a", "c"], {"a": p, "b": p, "c": 1.0 - 2.0 * p})
    >>> round(score.value, 3), round(score.windowed_value, 3)
    (0.924, 0.693)
    """

    parameters: ClassVar[Mapping[str, Any]] = {"least": _MIN_PROBABILITY}

    @staticmethod
    def _compute_losses(p: np.ndarray, squares: np.ndarray) -> np.ndarray:  # noqa: ARG004
        # NumPy's logarithm may differ in the last bit, depending on the number of rows.
        return -np.array(list(map(math.log, np.maximum(p, _MIN_PROBABILITY).tolist())))


class BrierScore(LossScore):
    """The mean squared error of probabilities (Brier 1950, Verification of forecasts expressed in terms of probability).

    The error of a row is the sum over labels of the squared difference between the probability and 1 (for the true label) or 0;
    for two labels it is half of this, as in scikit-learn.

    >>> score = BrierScore(window=1)
    >>> p = np.array([0.5, 0.25])
    >>> score.update_many([True, False], {False: 1.0 - p, True: p})
    >>> score.value, score.windowed_value
    (0.15625, 0.0625)
    """

    parameters: ClassVar[Mapping[str, Any]] = {}

    @staticmethod
    def _compute_losses(p: np.ndarray, squares: np.ndarray) -> np.ndarray:
        return np.maximum(squares - p * p, 0.0) + (1.0 - p) * (1.0 - p)

    @property
    def _loss_unit(self) -> float:  # type: ignore[override]
        return 1.0 if self._is_multiclass else 0.5


#: The metrics of probabilities by name.
PROBABILITY_SCORES: dict[str, type[ProbabilityScore]] = {
    kind.__name__: kind for kind in (ROCAUC, AveragePrecision, LogLoss, BrierScore, Thresholds)
}


_N_BINS = 10
_UNITS = 2**20  # probabilities are summed as integers in this unit, so that the sum does not depend on the order


class Calibration(TableScore):
    """A reliability diagram as a table: how often the most probable label is right, in ten bins of its probability.

    ``expected`` is the mean probability in a bin. For a calibrated model, it equals the share that is right, except for chance
    (Niculescu-Mizil and Caruana 2005, Predicting good probabilities with supervised learning, section 4). NaN counts as 0.

    >>> score = Calibration(window=10)
    >>> score.update_many(["ham", "ham", "spam"], {"ham": [0.95, 0.7, 0.6], "spam": [0.05, 0.3, 0.4]})
    >>> for name, *numbers in score.table[1:]:
    ...     print([name, *(round(number, 2) for number in numbers)])
    ['0.6 to 0.7', 0.6, 0.0, 1]
    ['0.7 to 0.8', 0.7, 1.0, 1]
    ['0.9 to 1', 0.95, 1.0, 1]
    ['all', 0.75, 0.67, 3]
    """

    uses_predicted_labels: bool = False
    _saved_attributes = ("_sums",)

    def __init__(self, window: int) -> None:
        super().__init__(window)
        # For each bin: number of rows, sum of their probabilities in units, and number of correct rows.
        self._sums = np.zeros((3, _N_BINS), np.int64)

    def update_many(self, ys: Sequence[Any], predicted: ProbabilityColumns) -> None:
        if not predicted:
            return
        labels = list(predicted)
        p = np.nan_to_num(np.clip(np.array(list(predicted.values()), np.float64), 0.0, 1.0), nan=0.0)
        best = p.argmax(axis=0)
        highest = p[best, np.arange(p.shape[1])]
        is_right = np.fromiter((labels[i] == y for i, y in zip(best.tolist(), ys, strict=True)), bool, len(ys))
        bins = np.minimum((highest * _N_BINS + 1e-9).astype(np.int64), _N_BINS - 1)
        for sums, weights in zip(self._sums, (None, np.rint(highest * _UNITS), is_right), strict=True):
            sums += np.bincount(bins, weights, _N_BINS).astype(np.int64)

    @property
    def has_rows(self) -> bool:  # type: ignore[override]
        return bool(self._sums[0].any())

    @property
    def table(self) -> list[list[Any]]:  # type: ignore[override]
        table: list[list[Any]] = [["probability", "expected", "right", "rows"]]
        for i, (n_rows, units, n_right) in enumerate(self._sums.T.tolist()):
            if n_rows:
                name = f"{i / _N_BINS:g} to {(i + 1) / _N_BINS:g}"
                table.append([name, units / _UNITS / n_rows, n_right / n_rows, n_rows])
        n_rows, units, n_right = self._sums.sum(axis=1).tolist()
        return [*table, ["all", units / _UNITS / n_rows, n_right / n_rows, n_rows]] if n_rows else table
