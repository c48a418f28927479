"""How well probabilities rank the rows of the positive label before others: exactly, or of a whole stream by counts in bins.

A bin holds scores that are nearly equal on the scale ``asinh(log(p / (1 - p)))``. Around 1/2, it is linear in p. Near 0 it goes
by the logarithm of p, and near 1 by that of 1 - p: so it tells apart the scores of a rare label, of which all may be below .001,
and those of models that are far too sure. It reaches from the smallest number above 0 to the largest one below 1; 0 and 1 have
bins of their own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsvm.core.saved import Resumable

#: Bins of the scale. Those of 0 and 1 are the first and the last.
BINS = 16_384


def _bin_place(p: float) -> float:
    return math.asinh(math.log(p) - math.log1p(-p))


_LOWEST, _HIGHEST = _bin_place(5e-324), _bin_place(1.0 - 2.0**-53)
_BINS_PER_UNIT = (BINS - 2) / (_HIGHEST - _LOWEST)


def clean_probabilities(p: np.ndarray) -> np.ndarray:
    """Return probabilities between 0 and 1: what is beyond is bounded, and NaN says nothing, as 0 does."""
    return np.clip(np.where(np.isnan(p), 0.0, p), 0.0, 1.0)


def roc_auc(counts: np.ndarray) -> float:
    """Return the share of pairs, of a positive row and another one, in which the positive one has the higher score.

    ``counts`` are numbers of rows [2, scores], of ascending scores: those of other labels, and positive ones. Ties count half
    (Hanley and McNeil 1982, The meaning and use of the area under a ROC curve).

    >>> roc_auc(np.array([[1, 1, 0], [0, 1, 1]]))
    0.875
    """
    others, positives = np.asarray(counts, np.float64)
    pairs = others.sum() * positives.sum()
    below = np.cumsum(others) - 0.5 * others
    return float(positives @ below / pairs) if pairs else math.nan


def average_precision(counts: np.ndarray) -> float:
    """Return the mean, over positive rows, of the share of positive ones among all rows with the same or a higher score.

    ``counts`` are as of `roc_auc`.

    >>> average_precision(np.array([[1, 1, 0], [0, 1, 1]]))
    0.8333333333333333
    """
    others, positives = np.asarray(counts, np.float64)[:, ::-1]
    right = np.cumsum(positives)
    rows = right + np.cumsum(others)
    mask = positives > 0.0
    return float(positives[mask] @ (right[mask] / rows[mask]) / right[-1]) if mask.any() else math.nan


def evaluate_thresholds(counts: np.ndarray, thresholds: Sequence[float]) -> list[tuple[float, int, float, float, float]]:
    """Return what predicting the positive label from each threshold on gives, and from the one with the best F1.

    Each is the threshold, the number of rows that are predicted so, precision, recall, and F1. ``counts`` are those of a
    `RankCounts`: of the bin that a threshold lies in, all rows count as above it. Empty without a positive row.

    >>> counts = RankCounts()
    >>> counts.add_many(np.array([False, True, False, True]), np.array([0.1, 0.3, 0.4, 0.9]))
    >>> for p, *found in evaluate_thresholds(counts.counts, [0.2, 0.5]):
    ...     print(round(p, 2), *(round(each, 2) for each in found))
    0.2 3 0.67 1.0 0.8
    0.3 3 0.67 1.0 0.8
    0.5 1 1.0 0.5 0.67
    """
    above, lines = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1], []
    rows, right = above.sum(axis=0), above[1]
    if not right[0]:
        return []
    f1 = 2.0 * right / (rows + right[0])
    best = int(np.where(counts.any(axis=0), f1, -1.0).argmax())
    places = [(p, 1 + int((_bin_place(p) - _LOWEST) * _BINS_PER_UNIT)) for p in thresholds]
    for p, place in sorted([*places, (_lowest_of(best), best)]):
        n, hits = int(rows[place]), int(right[place])
        lines.append((p, n, hits / n if n else 0.0, hits / int(right[0]), float(f1[place])))
    return lines


def _lowest_of(place: int) -> float:
    if place in (0, BINS - 1):
        return float(place > 0)
    odds = math.sinh(_LOWEST + (place - 1) / _BINS_PER_UNIT)
    return math.exp(odds) / (1.0 + math.exp(odds)) if odds < 0.0 else 1.0 / (1.0 + math.exp(-odds))


def count_exactly(positive: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Return how often each score is there, of other labels and of the positive one, as `roc_auc` takes it."""
    if not len(p):
        return np.zeros((2, 0), np.int64)
    order = np.argsort(p)
    ends = np.flatnonzero(np.append(np.diff(p[order]) > 0.0, True))  # of equal scores
    positives = np.diff(np.cumsum(positive[order])[ends], prepend=0)
    return np.array([np.diff(ends, prepend=-1) - positives, positives])


class RankCounts(Resumable):
    """The rows of a stream by their score, in bins: int64 [2, `BINS`], which is 256 KB.

    Of a stream of P positive rows and N others, of which a bin holds P_b and N_b, the area under the ROC curve is that of the
    exact scores, up to the pairs within bins, which count half instead of 0 or 1. So it differs by at most ``sum(P_b N_b) / (2 P
    N)``. A bin is .0007 wide on the scale of this module (in p, .0002 around 1/2; of p near 0, a share of .0007 log(1 / p)). Let
    the scores of either label have a density of at most d there: as the sum is at most .0007 d, the area differs by at most
    .00036 d. And as the scores in one bin are in nearly any order, the difference is far smaller in fact.

    Average precision takes the rows of a bin for ties. The precision at a positive row of it differs by at most ``(P_b + N_b) /
    (R_b + 1)`` from that at its end, where R_b rows are in higher bins, and average precision by the mean of that over positive
    rows.

    >>> counts = RankCounts()
    >>> counts.add_many(np.array([False, True, False, True]), np.array([1e-9, 2e-9, 3e-9, 0.5]))
    >>> roc_auc(counts.counts)
    0.75
    """

    def __init__(self) -> None:
        self.counts: np.ndarray = np.zeros((2, BINS), np.int64)

    def add_many(self, positive: np.ndarray, p: np.ndarray) -> None:
        """Count rows, bool [n], with scores from 0 to 1, float64 [n]."""
        with np.errstate(divide="ignore"):
            place = np.arcsinh(np.log(p) - np.log1p(-p))
        inner = np.clip((np.clip(place, _LOWEST, _HIGHEST) - _LOWEST) * _BINS_PER_UNIT, 0, BINS - 3).astype(np.int64) + 1
        np.add.at(self.counts, (positive.astype(np.intp), np.where(p == 0.0, 0, np.where(p == 1.0, BINS - 1, inner))), 1)

    @property
    def state(self) -> dict[str, Any]:
        """The state that a checkpoint saves: the bins that are not empty, those of other labels first, and their counts."""
        counts = self.counts.reshape(-1)
        places = np.flatnonzero(counts)
        return {"bins": places.astype(np.int64), "counts": counts[places]}

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`; an error if it is none."""
        counts = np.zeros_like(self.counts)
        counts.reshape(-1)[state["bins"]] = state["counts"]
        self.counts = counts
