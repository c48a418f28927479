"""Ranking metrics of probabilities (ROC AUC, average precision), exactly, or for a whole stream by counts in bins.

Bins have equal width on the scale ``asinh(log(p / (1 - p)))``, which is linear in p around 1/2, and logarithmic in p near 0 and
in 1 - p near 1. So the bins distinguish the probabilities of a rare label, which may all be below .001, and those of
overconfident models. They cover all floats between 0 and 1; 0 and 1 have separate bins.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsvm.core.saved import Resumable

#: Number of bins. The first is for 0, and the last for 1.
BINS = 16_384


def _to_scale(p: float) -> float:
    """Return ``asinh(log(p / (1 - p)))`` for a probability between 0 and 1. Bins of equal width in this value distinguish
    probabilities near 0 and near 1 well.
    """
    return math.asinh(math.log(p) - math.log1p(-p))


_LOWEST, _HIGHEST = _to_scale(5e-324), _to_scale(1.0 - 2.0**-53)
_BINS_PER_UNIT = (BINS - 2) / (_HIGHEST - _LOWEST)


def clean_probabilities(p: np.ndarray) -> np.ndarray:
    """Clip probabilities to [0, 1]; NaN becomes 0."""
    return np.clip(np.where(np.isnan(p), 0.0, p), 0.0, 1.0)


def roc_auc(counts: np.ndarray) -> float:
    """Return the area under the ROC curve. ``counts``, [2, scores], has the numbers of negative rows (first) and of positive rows
    (second) with each distinct score, by ascending score. NaN if there are no positive or no negative rows.

    Ties count half (Hanley and McNeil 1982, The meaning and use of the area under a ROC curve).

    >>> roc_auc(np.array([[1, 1, 0], [0, 1, 1]]))
    0.875
    """
    negatives, positives = np.asarray(counts, np.float64)
    n_pairs = negatives.sum() * positives.sum()
    below = np.cumsum(negatives) - 0.5 * negatives
    return float(positives @ below / n_pairs) if n_pairs else math.nan


def average_precision(counts: np.ndarray) -> float:
    """Return the average precision of a ranking. ``counts``, [2, scores], has the numbers of negative rows (first) and of
    positive rows (second) with each distinct score, by ascending score. NaN if there are no positive rows.

    >>> average_precision(np.array([[1, 1, 0], [0, 1, 1]]))
    0.8333333333333333
    """
    negatives, positives = np.asarray(counts, np.float64)[:, ::-1]
    n_true = np.cumsum(positives)
    n_predicted = n_true + np.cumsum(negatives)
    mask = positives > 0.0
    return float(positives[mask] @ (n_true[mask] / n_predicted[mask]) / n_true[-1]) if mask.any() else math.nan


def evaluate_thresholds(counts: np.ndarray, thresholds: Sequence[float]) -> list[tuple[float, int, float, float, float]]:
    """Compute precision, recall and F1 if all rows with at least a threshold's probability are predicted as positive: for each of
    ``thresholds``, and for the one with the best F1. ``counts``, int64 [2, bins], has the numbers of negative and of positive
    rows by binned probability.

    Returns tuples of threshold, number of rows predicted as positive, precision, recall, and F1, by ascending threshold; empty
    without a positive row. ``counts`` are those of a `RankCounts`: all rows in the bin of a threshold count as above it.

    >>> counts = RankCounts()
    >>> counts.add_many(np.array([False, True, False, True]), np.array([0.1, 0.3, 0.4, 0.9]))
    >>> for p, *values in evaluate_thresholds(counts.counts, [0.2, 0.5]):
    ...     print(round(p, 2), *(round(value, 2) for value in values))
    0.2 3 0.67 1.0 0.8
    0.3 3 0.67 1.0 0.8
    0.5 1 1.0 0.5 0.67
    """
    above, rows = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1], []
    n_predicted, n_true = above.sum(axis=0), above[1]
    if not n_true[0]:
        return []
    f1 = 2.0 * n_true / (n_predicted + n_true[0])
    best = int(np.where(counts.any(axis=0), f1, -1.0).argmax())
    bins = [(p, 1 + int((_to_scale(p) - _LOWEST) * _BINS_PER_UNIT)) for p in thresholds]
    for p, bin_index in sorted([*bins, (_lowest_probability(best), best)]):
        n, n_hits = int(n_predicted[bin_index]), int(n_true[bin_index])
        rows.append((p, n, n_hits / n if n else 0.0, n_hits / int(n_true[0]), float(f1[bin_index])))
    return rows


def _lowest_probability(bin_index: int) -> float:
    """Return the lowest probability that belongs to a bin of the histogram in `RankCounts`. ``bin_index`` is between 0 (only p =
    0) and 16,383 (only p = 1).
    """
    if bin_index in (0, BINS - 1):
        return float(bin_index > 0)
    log_odds = math.sinh(_LOWEST + (bin_index - 1) / _BINS_PER_UNIT)
    return math.exp(log_odds) / (1.0 + math.exp(log_odds)) if log_odds < 0.0 else 1.0 / (1.0 + math.exp(-log_odds))


def count_exactly(positive: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Count the rows with each distinct score: returns the numbers of negative and of positive rows by ascending score, int64 [2,
    scores]. ``positive``, bool [n], says which rows are positive, and ``p``, float64 [n], are their scores.
    """
    if not len(p):
        return np.zeros((2, 0), np.int64)
    order = np.argsort(p)
    last_of_score = np.flatnonzero(np.append(np.diff(p[order]) > 0.0, True))
    positives = np.diff(np.cumsum(positive[order])[last_of_score], prepend=0)
    return np.array([np.diff(last_of_score, prepend=-1) - positives, positives])


class RankCounts(Resumable):
    """Counts of negative and positive rows by binned score: int64 [2, `BINS`], 256 KB.

    Pairs within a bin count half instead of 0 or 1. With P_b of P positive and N_b of N negative rows in bin b, the area under
    the ROC curve therefore differs from the exact one by at most ``sum(P_b N_b) / (2 P N)``. A bin has width .0007 on the scale
    of this module (in p, .0002 around 1/2, and the fraction .0007 log(1 / p) of p near 0). If the scores of one label have a
    density of at most d on this scale, the sum is at most .0007 d, and the difference at most .00036 d. It is far smaller in
    practice, because the order within a bin is nearly random.

    Average precision treats the rows of a bin as ties. The precision at a positive row then differs by at most ``(P_b + N_b) /
    (R_b + 1)``, where R_b rows are in higher bins, and average precision by the mean of this over positive rows.

    >>> counts = RankCounts()
    >>> counts.add_many(np.array([False, True, False, True]), np.array([1e-9, 2e-9, 3e-9, 0.5]))
    >>> roc_auc(counts.counts)
    0.75
    """

    def __init__(self) -> None:
        self.counts: np.ndarray = np.zeros((2, BINS), np.int64)

    def add_many(self, positive: np.ndarray, p: np.ndarray) -> None:
        """Count n rows: ``positive``, bool [n], says which are positive, and ``p``, float64 [n], are their probabilities."""
        with np.errstate(divide="ignore"):
            scaled = np.arcsinh(np.log(p) - np.log1p(-p))
        inner = np.clip((np.clip(scaled, _LOWEST, _HIGHEST) - _LOWEST) * _BINS_PER_UNIT, 0, BINS - 3).astype(np.int64) + 1
        np.add.at(self.counts, (positive.astype(np.intp), np.where(p == 0.0, 0, np.where(p == 1.0, BINS - 1, inner))), 1)

    @property
    def state(self) -> dict[str, Any]:
        """The counts of rows as a dict for a checkpoint: the indices of the non-empty bins of the histogram, and the number of
        rows in each.
        """
        counts = self.counts.reshape(-1)
        indices = np.flatnonzero(counts)
        return {"bins": indices.astype(np.int64), "counts": counts[indices]}

    def resume(self, state: Any) -> None:
        """Set the counts from a saved `state`. Raises an error if it is invalid."""
        counts = np.zeros_like(self.counts)
        counts.reshape(-1)[state["bins"]] = state["counts"]
        self.counts = counts
