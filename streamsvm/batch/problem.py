"""The dual problem of a kernel machine, in one signed variable a row, for classification and regression alike:

    min 1/2 b'Kb - t'b + sum_i epsilon |b_i - kink_i|,    lower_i <= b_i <= upper_i,    sum_i b_i = 0.

Regression: t are the targets, and the kinks are 0. Classification: b_i = y_i alpha_i, t = 0, epsilon = 1 and the kink is the
bound that is not 0, so that the last term is C - alpha_i. Equal rows are one variable; the kink of equal rows of both classes is
between their bounds.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from streamsvm.batch.csmo.precomputed import PrecomputedRows
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.threads import ForEach, call_for_each

_COPIED = 1000  # rows that are copied at a time
_HASHED = 100_000  # values whose hash is taken at a time


class Bounds(NamedTuple):
    """The bounds of m variables, and where the objective bends: float64 [m] each."""

    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray


def check_bounds(C: np.ndarray) -> None:
    """Raise a ValueError where C times a row's weight is no bound."""
    if not (C.min() > 0.0 and C.max() < np.inf):
        raise ValueError("C times the rows' weights is 0 or infinite in float64: scale C, sample_weight or class_weight")


class RowGroups:
    """Groups of equal rows, of any class (classification) or of one target (regression): each is one variable of the problem.

    Grouped are the n rows ``which`` of X, an array float64 [N, d], CSR without duplicates, or rows whose kernel values are given;
    ``targets`` is None for classification. ``row_of_group`` int64 [m] has a row of each group, ``group_of_row`` int64 [n] the
    group of each row.
    ``each`` is the loop in which threads may share what is done with rows.
    """

    def __init__(self, X: Any, which: np.ndarray, targets: np.ndarray | None = None, each: ForEach = call_for_each) -> None:
        self._X = X[which] if len(which) < X.shape[0] else X
        self.each: ForEach = each
        self.group_of_row: np.ndarray = (
            self._X.group_equal_rows() if isinstance(self._X, PrecomputedRows) else group_equal_rows(self._X, targets, each)
        )
        self.row_of_group: np.ndarray = np.empty(int(self.group_of_row.max()) + 1, np.int64)
        self.row_of_group[self.group_of_row] = np.arange(len(which))
        self.targets: np.ndarray = np.zeros(len(self)) if targets is None else targets[self.row_of_group]

    def __len__(self) -> int:
        return len(self.row_of_group)

    def take_rows(self) -> Any:
        """Return a row of each group, [m, d]: a copy of a dense X (each sparse row is a group)."""
        if not isinstance(self._X, np.ndarray):
            return self._X[self.row_of_group] if isinstance(self._X, PrecomputedRows) else self._X
        X = np.empty((len(self), self._X.shape[1]))

        def copy(begin: int) -> None:
            X[begin : begin + _COPIED] = self._X[self.row_of_group[begin : begin + _COPIED]]

        self.each(copy, range(0, len(self), _COPIED))
        return X

    def sum_values(self, values: np.ndarray) -> np.ndarray:
        """Return the sums of values float64 [n] in each group, float64 [m]."""
        return np.bincount(self.group_of_row, values, len(self))

    def compute_bounds(self, C: np.ndarray, positive: np.ndarray | None = None) -> Bounds:
        """Return the bounds of the groups, from those of the rows, float64 [n], above 0.

        ``positive``, bool [n], tells which rows are of the positive class; None: regression.
        """
        if positive is None:
            upper = self.sum_values(C)
            return Bounds(-upper, upper, np.zeros(len(self)))
        lower, upper = -self.sum_values(C * ~positive), self.sum_values(C * positive)
        return Bounds(lower, upper, lower + upper)

    def split_coefficients(self, b: np.ndarray, C: np.ndarray, positive: np.ndarray | None = None) -> np.ndarray:
        """Return the rows' dual coefficients, float64 [n], from those of the groups, ``b`` [m]. Else as `compute_bounds`."""
        if len(self) == len(C):  # all rows differ
            return b[self.group_of_row]
        labels, out = np.zeros(len(C), np.int64) if positive is None else positive.astype(np.int64), np.zeros(len(C))
        lower, upper, _ = self.compute_bounds(C, positive)
        distribute_coefficients(
            self.group_of_row, C, labels, 0, int(positive is not None), np.ascontiguousarray(b), lower, upper, out
        )
        return out


@compiled(nogil=True)
def distribute_coefficients(
    group: np.ndarray,
    C: np.ndarray,
    labels: np.ndarray,
    first: int,
    second: int,
    b: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add each group's coefficient to those of as few of its rows as can be, row by row up to its bound, float64 [n].

    Rows of class ``second`` take what is positive of it, and rows of class ``first`` what is negative; these are one class in
    regression. Else, of equal rows, all of one class are at their bound.
    """
    rising, falling = np.empty(len(b)), np.empty(len(b))
    for g in range(len(b)):
        if first == second:
            rising[g], falling[g] = max(b[g], 0.0), max(-b[g], 0.0)
        elif b[g] >= lower[g] + upper[g]:
            rising[g], falling[g] = upper[g], upper[g] - b[g]
        else:
            rising[g], falling[g] = b[g] - lower[g], -lower[g]
    for label, sign, amounts in ((second, 1.0, rising), (first, -1.0, falling)):
        rounding = 1e-12 * amounts
        for i in range(len(group)):
            if labels[i] == label and C[i] > 0.0:
                g = group[i]
                share = C[i] if C[i] <= amounts[g] + rounding[g] else amounts[g]
                if share > rounding[g]:
                    out[i] += sign * share
                    amounts[g] -= share


def group_equal_rows(X: Any, values: np.ndarray | None = None, each: ForEach = call_for_each) -> np.ndarray:
    """Number the groups of equal rows of X, float64 [n, d] or CSR; return the number of each row's group, int64 [n], from 0.

    Rows are equal if all their bits are, and those of their ``values`` float64 [n] where these are given. The numbers do not
    depend on the order of the rows. Each row that is no array is a group. Equal rows may get different numbers if a different row
    has the same hash. O(n (d + log n)).
    """
    if not isinstance(X, np.ndarray):
        return np.arange(X.shape[0])
    factors = _make_hash_factors(X.shape[1] + 1)
    bits, hashes = X.view(np.uint64), np.zeros(len(X), np.uint64)
    if values is not None:
        _add_hashes(values.view(np.uint64)[:, np.newaxis], factors[-1:], hashes)
    size = max(_HASHED // max(X.shape[1], 1), 1)

    def add_hashes(begin: int) -> None:
        some = np.require(bits[begin : begin + size], requirements=["C", "W"])  # other forms would be compiled anew
        _add_hashes(some, factors[:-1], hashes[begin : begin + size])

    each(add_hashes, range(0, len(X), size))
    order = np.argsort(hashes, kind="stable")
    new, hashes = np.ones(len(order), bool), hashes[order]
    new[1:] = hashes[1:] != hashes[:-1]
    alike = np.flatnonzero(~new)

    def compare(begin: int) -> None:
        some = alike[begin : begin + size]
        rows, others = order[some], order[some - 1]
        new[some] |= (bits[rows] != bits[others]).any(axis=1)
        if values is not None:
            new[some] |= values[rows] != values[others]

    each(compare, range(0, len(alike), size))
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(new) - 1
    return groups


@functools.lru_cache(maxsize=8)
def _make_hash_factors(n: int) -> np.ndarray:
    """Return odd numbers at random, uint64 [n]."""
    return np.random.default_rng(0).integers(0, 2**63, n, dtype=np.uint64) | np.uint64(1)


@compiled(nogil=True)
def _add_hashes(bits: np.ndarray, factors: np.ndarray, hashes: np.ndarray) -> None:
    """Add the sums of 64-bit words [n, d] times ``factors`` [d], whose low bits depend on the high ones of a word, too."""
    for i in range(len(bits)):
        total = hashes[i]
        for j in range(len(factors)):
            word = bits[i, j]
            total += (word ^ (word >> np.uint64(32))) * factors[j]  # of short numbers, all bits are high ones
        hashes[i] = total
