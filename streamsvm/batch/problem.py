"""The dual problem of a kernel machine, in one signed variable a row, for classification and regression alike:

    min 1/2 b'Kb - t'b + sum_i epsilon |b_i - kink_i|,    lower_i <= b_i <= upper_i,    sum_i b_i = 0.

Regression: t are the targets, and the kinks are 0. Classification: b_i = y_i alpha_i, t = 0, epsilon = 1 and the kink is the
bound that is not 0, so that the last term is C - alpha_i. Equal rows are one variable; the kink of equal rows of both classes is
between their bounds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.batch.csmo.columns import same_rows
from streamsvm.batch.csmo.given import GivenRows
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.threads import Each, each_alone

_COPIED = 1000  # rows that are copied at a time


class Bounds(NamedTuple):
    """The bounds of m variables, and where the objective bends: float64 [m] each."""

    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray


def check_bounds(C: np.ndarray) -> None:
    """Raise a ValueError where C times a row's weight is no bound."""
    if not (C.min() > 0.0 and C.max() < np.inf):
        raise ValueError("C times the rows' weights is 0 or infinite in float64: scale C, sample_weight or class_weight")


class Groups:
    """Groups of equal rows, of any class (classification) or of one target (regression): each is one variable of the problem.

    Grouped are the n rows ``which`` of X, an array float64 [N, d], CSR without duplicates, or rows whose kernel values are given;
    ``targets`` is None for classification. ``first`` int64 [m] has a row of each group, ``places`` int64 [n] each row's group.
    ``each`` is the loop in which threads may share what is done with rows.
    """

    def __init__(self, X: Any, which: np.ndarray, targets: np.ndarray | None = None, each: Each = each_alone) -> None:
        self._X = X[which] if len(which) < X.shape[0] else X
        self.each: Each = each
        self.places: np.ndarray = self._X.same_rows() if isinstance(self._X, GivenRows) else same_rows(self._X, targets, each)
        self.first: np.ndarray = np.empty(int(self.places.max()) + 1, np.int64)
        self.first[self.places] = np.arange(len(which))
        self.targets: np.ndarray = np.zeros(len(self)) if targets is None else targets[self.first]

    def __len__(self) -> int:
        return len(self.first)

    def rows(self) -> Any:
        """Return a row of each group, [m, d]: a copy of a dense X (each sparse row is a group)."""
        if not isinstance(self._X, np.ndarray):
            return self._X[self.first] if isinstance(self._X, GivenRows) else self._X
        X = np.empty((len(self), self._X.shape[1]))

        def copy(begin: int) -> None:
            X[begin : begin + _COPIED] = self._X[self.first[begin : begin + _COPIED]]

        self.each(copy, range(0, len(self), _COPIED))
        return X

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of values float64 [n] in each group, float64 [m]."""
        return np.bincount(self.places, values, len(self))

    def bounds(self, C: np.ndarray, positive: np.ndarray | None = None) -> Bounds:
        """Return the bounds of the groups, from those of the rows, float64 [n], above 0.

        ``positive``, bool [n], tells which rows are of the positive class; None: regression.
        """
        if positive is None:
            upper = self.sums(C)
            return Bounds(-upper, upper, np.zeros(len(self)))
        lower, upper = -self.sums(C * ~positive), self.sums(C * positive)
        return Bounds(lower, upper, lower + upper)

    def coefficients(self, b: np.ndarray, C: np.ndarray, positive: np.ndarray | None = None) -> np.ndarray:
        """Return the rows' dual coefficients, float64 [n], from those of the groups, ``b`` [m]. The rest is as in `bounds`."""
        if len(self) == len(C):  # all rows differ
            return b[self.places]
        if positive is None:
            shares = np.zeros(len(C))
            _hand_out(self.places, C, np.abs(b), shares)
            return shares * np.sign(b)[self.places]
        # Of equal rows, all of one class are at their bound.
        lower, upper, kink = self.bounds(C, positive)
        rising, falling = np.zeros(len(C)), np.zeros(len(C))
        _hand_out(self.places, C * positive, np.where(b >= kink, upper, b - lower), rising)
        _hand_out(self.places, C * ~positive, np.where(b >= kink, upper - b, -lower), falling)
        return rising - falling


@compiled(nogil=True)
def _hand_out(group: np.ndarray, bounds: np.ndarray, amounts: np.ndarray, shares: np.ndarray) -> None:
    """Distribute each group's amount over as few of its rows as can be: row by row up to its bound. Destroys ``amounts``."""
    rounding = 1e-12 * amounts
    for i in range(len(group)):
        share = bounds[i] if bounds[i] <= amounts[group[i]] + rounding[group[i]] else amounts[group[i]]
        if share > rounding[group[i]]:
            shares[i] = share
            amounts[group[i]] -= share
