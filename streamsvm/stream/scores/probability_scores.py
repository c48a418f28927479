"""Scores of probabilities, in bounded memory: ROC AUC and average precision of the positive label, log loss and Brier score."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from decimal import ROUND_FLOOR, Context
from typing import Any, ClassVar

import numpy as np

from streamsvm.stream.scores.base import ProbabilityColumns, Score, ScoreView, TableScore, format_score
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

_DIGITS = Context(prec=4, rounding=ROUND_FLOOR)  # of a threshold, which must not be above rows that it is of
_THRESHOLDS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)


class ProbabilityScore(Score):
    """The base of scores of probabilities, of which NaN counts as 0. Without a ``positive`` label, True and 1 are positive."""

    uses_predicted_labels: bool = False
    accepts_positive_label: bool = True
    parameters: ClassVar[Mapping[str, Any]]
    """The parameters in its repr, beside window and positive label. The repr differs from that of river's metric of that name."""

    def __init__(self, window: int, positive: Hashable = None) -> None:
        self.name: str = type(self).__name__
        self.window: int = window
        self._positive = positive
        self._rows = 0
        self._last: deque[float] = deque(maxlen=window)  # what the score of each of the last rows is of
        self.metric: Any = ScoreView(self.name, lambda: self.value)
        self.windowed: Any = ScoreView(self.name, lambda: self.windowed_value)

    def __repr__(self) -> str:
        return format_score(self.name, self.parameters, self.window, self._positive)

    @property
    def has_rows(self) -> bool:
        return self._rows > 0

    def _of_positive(self, probabilities: Mapping[Any, Any]) -> Any:
        """Return the probability of the positive label: a number, or a column."""
        return probabilities.get(True if self._positive is None else self._positive, 0.0)

    def _are_positive(self, ys: Sequence[Any]) -> list[bool]:
        positive = True if self._positive is None else self._positive
        return [y == positive for y in ys]


class RankScore(ProbabilityScore):
    """The base of scores of how the positive label's probability ranks rows.

    Of the last rows, the probabilities are kept, and it is exact; so is that of all rows while there are no more than these. Then
    it is of counts in bins (`RankCounts`).
    """

    binary: bool = True
    parameters: ClassVar[Mapping[str, Any]] = {"bins": BINS}
    _saved_attributes = ("_rows", "_last", "_last_positive", "_ranks")

    @staticmethod
    def _score_of(counts: np.ndarray) -> float:  # noqa: ARG004
        """Return the score of rows that are counted by their probability; NaN where it is no number."""
        return math.nan

    def __init__(self, window: int, positive: Hashable = None) -> None:
        super().__init__(window, positive)
        self._ranks = RankCounts()
        self._last_positive: deque[bool] = deque(maxlen=window)

    def update_many(self, ys: Sequence[Any], predicted: ProbabilityColumns) -> None:
        if not predicted:
            return
        positive = np.array(self._are_positive(ys), bool)
        p = clean_probabilities(np.broadcast_to(self._of_positive(predicted), len(ys)))
        self._ranks.add_many(positive, p)
        self._rows += len(ys)
        self._last_positive.extend(positive.tolist())
        self._last.extend(p.tolist())

    @property
    def value(self) -> float:
        return self.windowed_value if self._rows <= self.window else self._score_of(self._ranks.counts)

    @property
    def windowed_value(self) -> float:
        # Of equal lengths, too, while another thread adds rows.
        p, positive = list(self._last), list(self._last_positive)
        n = min(len(p), len(positive))
        of_positive, chances = np.array(positive[len(positive) - n :], bool), np.array(p[len(p) - n :], np.float64)
        return self._score_of(count_exactly(of_positive, chances))


class ROCAUC(RankScore):
    """The area under the ROC curve: how often a positive row has a higher probability than another one.

    >>> score = ROCAUC(window=2)
    >>> score.update_many([False, True, False, True], {True: np.array([0.1, 0.3, 0.4, 0.9])})
    >>> score.value, score.windowed_value
    (0.75, 1.0)
    """

    @staticmethod
    def _score_of(counts: np.ndarray) -> float:
        return roc_auc(counts)

    @property
    def baselines(self) -> tuple[tuple[str, float], ...]:
        return (("rows in any order", 0.5),)


class AveragePrecision(RankScore):
    """The mean precision over positive rows, from those with the highest probability on: the area under the curve of precision.

    >>> score = AveragePrecision(window=2)
    >>> score.update_many([False, True, False, True], {True: np.array([0.1, 0.3, 0.4, 0.9])})
    >>> round(score.value, 3), score.windowed_value
    (0.833, 1.0)
    """

    @staticmethod
    def _score_of(counts: np.ndarray) -> float:
        return average_precision(counts)

    @property
    def baselines(self) -> tuple[tuple[str, float], ...]:
        others, positives = self._ranks.counts.sum(axis=1).tolist()
        return (("rows in any order", positives / (positives + others)),) if positives else ()


class Thresholds(RankScore):
    """A table of what predicting the positive label from some thresholds on would give, with the one of the best F1.

    It is no number, and has no last rows.

    >>> score = Thresholds(window=2)
    >>> score.update_many([False, True, False, True], {True: np.array([0.1, 0.3, 0.4, 0.9])})
    >>> [row[:2] for row in score.table[3:7]]
    [['0.2', 3], ['0.2998 (best F1)', 3], ['0.3', 3], ['0.4', 2]]
    """

    @property
    def table(self) -> list[list[Any]]:
        lines = evaluate_thresholds(self._ranks.counts, _THRESHOLDS)
        names = [f"{p:g}" if p in _THRESHOLDS else f"{float(_DIGITS.create_decimal(p)):g} (best F1)" for p, *_ in lines]
        return [
            ["probability from", "predicted", "precision", "recall", "F1"],
            *([name, *line[1:]] for name, line in zip(names, lines, strict=True)),
        ]


class LossScore(ProbabilityScore):
    """The base of scores that are the mean of a loss of each row, which depends on the probabilities of its labels.

    Without a ``positive`` label, there may be any number of labels.
    """

    _saved_attributes = ("_rows", "_last", "_total", "_is_multiclass", "_shares")

    def __init__(self, window: int, positive: Hashable = None) -> None:
        super().__init__(window, positive)
        self._total = 0.0
        self._is_multiclass = False  # whether there were more than two labels
        self._shares = LabelFrequencyBaseline()

    @staticmethod
    def _losses_of(p: np.ndarray, squares: np.ndarray) -> np.ndarray:
        """Return the loss of each row by the probability of its label, and the sum of the squares of all probabilities."""
        raise NotImplementedError

    def update_many(self, ys: Sequence[Any], predicted: ProbabilityColumns) -> None:
        if not predicted:
            return
        if self._positive is None:
            columns = np.array([clean_probabilities(column) for column in predicted.values()])
            places = {label: place for place, label in enumerate(predicted)}
            places_of = np.array([places.get(y, -1) for y in ys], np.intp)
            p = np.where(places_of < 0, 0.0, columns[places_of, np.arange(len(ys))])
            squares = np.zeros(len(ys))
            for column in columns:  # one after the other: the sum does not depend on how rows come together
                squares += column * column
            self._is_multiclass |= len(predicted) > 2
        else:
            p = clean_probabilities(np.broadcast_to(self._of_positive(predicted), len(ys)))
            ys = self._are_positive(ys)
            p = np.where(ys, p, 1.0 - p)
            squares = p * p + (1.0 - p) * (1.0 - p)
        losses = self._losses_of(p, squares)
        # A cumulative sum adds one after the other: it does not depend on how rows come together.
        self._total = float(np.cumsum(np.concatenate(([self._total], losses)))[-1])
        self._rows += len(ys)
        self._last.extend(losses.tolist())
        self._shares.add_many(ys, self._losses_of)

    @property
    def _loss_unit(self) -> float:
        """The factor of a sum of losses."""
        return 1.0

    @property
    def value(self) -> float:
        return self._loss_unit * self._total / self._rows if self._rows else math.nan

    @property
    def windowed_value(self) -> float:
        last = list(self._last)
        return self._loss_unit * math.fsum(last) / len(last) if last else math.nan

    @property
    def baselines(self) -> tuple[tuple[str, float], ...]:
        return (("the labels' shares so far", self._loss_unit * self._shares.loss / self._rows),) if self._rows else ()


#: The least probability that log loss counts, as scikit-learn's does.
_LEAST = 2.0**-52


class LogLoss(LossScore):
    """The mean of -log(p), where p is the probability of the true label, at least 2**-52.

    >>> score = LogLoss(window=1)
    >>> p = np.array([0.5, 0.25, 0.25])
    >>> score.update_many(["b", "a", "c"], {"a": p, "b": p, "c": 1.0 - 2.0 * p})
    >>> round(score.value, 3), round(score.windowed_value, 3)
    (0.924, 0.693)
    """

    parameters: ClassVar[Mapping[str, Any]] = {"least": _LEAST}

    @staticmethod
    def _losses_of(p: np.ndarray, squares: np.ndarray) -> np.ndarray:  # noqa: ARG004
        # By the logarithm of Python: that of numpy may differ in the last bit, by how many rows come together.
        return -np.array(list(map(math.log, np.maximum(p, _LEAST).tolist())))


class BrierScore(LossScore):
    """The mean squared error of probabilities (Brier 1950, Verification of forecasts expressed in terms of probability).

    It is the sum over labels of the squared difference between the probability and 1, of the true label, or 0, of others. Of two
    labels, which have the same difference, it is that of one: the half, as in scikit-learn.

    >>> score = BrierScore(window=1)
    >>> p = np.array([0.5, 0.25])
    >>> score.update_many([True, False], {False: 1.0 - p, True: p})
    >>> score.value, score.windowed_value
    (0.15625, 0.0625)
    """

    parameters: ClassVar[Mapping[str, Any]] = {}

    @staticmethod
    def _losses_of(p: np.ndarray, squares: np.ndarray) -> np.ndarray:
        return np.maximum(squares - p * p, 0.0) + (1.0 - p) * (1.0 - p)

    @property
    def _loss_unit(self) -> float:
        return 1.0 if self._is_multiclass else 0.5


#: The scores of probabilities by name.
PROBABILITY_SCORES: dict[str, type[ProbabilityScore]] = {
    kind.__name__: kind for kind in (ROCAUC, AveragePrecision, LogLoss, BrierScore, Thresholds)
}


_BINS = 10
_UNITS = 2**20  # of a probability: whole numbers, so that a sum does not depend on the order of its parts


class Calibration(TableScore):
    """How often the most probable label is right, by its probability, in ten bins: expected is the mean probability there.

    Of a calibrated model, both are equal but for chance (Niculescu-Mizil and Caruana 2005, Predicting good probabilities with
    supervised learning, section 4: reliability diagrams). A probability that is NaN counts as 0.

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
        # Of each bin: rows, the sum of their probabilities in units, and rows whose label is right.
        self._sums = np.zeros((3, _BINS), np.int64)

    def update_many(self, ys: Sequence[Any], predicted: ProbabilityColumns) -> None:
        if not predicted:
            return
        labels = list(predicted)
        p = np.nan_to_num(np.clip(np.array(list(predicted.values()), np.float64), 0.0, 1.0), nan=0.0)
        best = p.argmax(axis=0)
        highest = p[best, np.arange(p.shape[1])]
        right = np.fromiter((labels[i] == y for i, y in zip(best.tolist(), ys, strict=True)), bool, len(ys))
        bins = np.minimum((highest * _BINS + 1e-9).astype(np.int64), _BINS - 1)
        for sums, weights in zip(self._sums, (None, np.rint(highest * _UNITS), right), strict=True):
            sums += np.bincount(bins, weights, _BINS).astype(np.int64)

    @property
    def has_rows(self) -> bool:
        return bool(self._sums[0].any())

    @property
    def table(self) -> list[list[Any]]:
        table: list[list[Any]] = [["probability", "expected", "right", "rows"]]
        for number, (rows, of_all, right) in enumerate(self._sums.T.tolist()):
            if rows:
                name = f"{number / _BINS:g} to {(number + 1) / _BINS:g}"
                table.append([name, of_all / _UNITS / rows, right / rows, rows])
        rows, of_all, right = self._sums.sum(axis=1).tolist()
        return [*table, ["all", of_all / _UNITS / rows, right / rows, rows]] if rows else table
