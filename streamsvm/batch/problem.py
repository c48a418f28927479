"""The dual problem of kernel machines, with one signed variable for each row, for classification and regression alike:

    min 1/2 b'Kb - t'b + sum_i epsilon |b_i - kink_i|,    lower_i <= b_i <= upper_i,    sum_i b_i = 0.

In regression, t are the targets, and the kinks are 0. In classification, b_i = y_i alpha_i, t = 0, epsilon = 1, and the kink is
the nonzero bound, so that the last term is C - alpha_i. Equal rows share one variable. If equal rows belong to both classes, the
kink lies between the bounds.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np

from streamsvm.batch.csmo.precomputed import PrecomputedRows
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.threads import ForEach, call_for_each

_COPIED_ROWS = 1000  # rows that are copied at a time
_HASHED_VALUES = 100_000  # values that are hashed at a time


class Bounds(NamedTuple):
    """The bounds of m variables and their kinks, where the slope of the objective jumps: float64 [m] each."""

    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray


def check_bounds(C: np.ndarray) -> None:
    """Raise a ValueError if an upper bound in ``C``, float64 [n] (the parameter C times the weight of a row), is 0 or
    infinite.
    """
    if not (C.min() > 0.0 and C.max() < np.inf):
        raise ValueError("C times the rows' weights is 0 or infinite in float64: scale C, sample_weight or class_weight")


class RowGroups:
    """Groups of equal rows (in regression, with equal targets): each group is one variable of the dual problem.

    The rows are those at the positions ``which`` int64 [n] of X: an array float64 [N, d], a CSR matrix without duplicate entries,
    or `PrecomputedRows`. Classification has no ``targets``. ``row_of_group`` int64 [m] is the position of one row of each
    group, ``group_of_row`` int64 [n] the group of each row. ``for_each`` runs loops over the rows, perhaps in several threads.
    """

    def __init__(self, X: Any, which: np.ndarray, targets: np.ndarray | None = None, for_each: ForEach = call_for_each) -> None:
        self._X = X[which] if len(which) < X.shape[0] else X
        self.for_each: ForEach = for_each
        precomputed = isinstance(self._X, PrecomputedRows)
        groups = self._X.group_equal_rows() if precomputed else group_equal_rows(self._X, targets, for_each)
        self.group_of_row: np.ndarray = groups
        self.row_of_group: np.ndarray = np.empty(int(self.group_of_row.max()) + 1, np.int64)
        self.row_of_group[self.group_of_row] = np.arange(len(which))
        self.targets: np.ndarray = np.zeros(len(self)) if targets is None else targets[self.row_of_group]

    def __len__(self) -> int:
        return len(self.row_of_group)

    def take_rows(self) -> Any:
        """Return one row of each of the m groups of equal rows, [m, d], as a copy if X is dense. In a sparse X, each row is a
        group of its own.
        """
        if not isinstance(self._X, np.ndarray):
            return self._X[self.row_of_group] if isinstance(self._X, PrecomputedRows) else self._X
        X = np.empty((len(self), self._X.shape[1]))

        def copy_rows(start: int) -> None:
            """Copy one row of each group, for the chunk of groups that begins at group ``start``, into the output array."""
            X[start : start + _COPIED_ROWS] = self._X[self.row_of_group[start : start + _COPIED_ROWS]]

        self.for_each(copy_rows, range(0, len(self), _COPIED_ROWS))
        return X

    def sum_values(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of ``values`` float64 [n], one for each row, over the rows of each group, float64 [m]."""
        return np.bincount(self.group_of_row, values, len(self))

    def compute_bounds(self, C: np.ndarray, positive: np.ndarray | None = None) -> Bounds:
        """Return the lower and upper bounds of the dual variable of each group of equal rows, and its kink (where the slope of
        the objective jumps), float64 [m] each. ``C`` float64 [n] are the upper bounds of the single rows. ``positive`` bool [n]
        marks rows of the positive class; None means regression.

        ``C`` is above 0.
        """
        if positive is None:
            upper = self.sum_values(C)
            return Bounds(-upper, upper, np.zeros(len(self)))
        lower, upper = -self.sum_values(C * ~positive), self.sum_values(C * positive)
        return Bounds(lower, upper, lower + upper)

    def split_coefficients(self, b: np.ndarray, C: np.ndarray, positive: np.ndarray | None = None) -> np.ndarray:
        """Split the dual coefficient of each group of equal rows, ``b`` [m], among the rows of the group, and return the rows'
        coefficients, float64 [n], within their bounds ``C`` [n]. ``positive`` is as in `compute_bounds`.
        """
        if len(self) == len(C):  # all rows differ
            return b[self.group_of_row]
        labels, out = np.zeros(len(C), np.int64) if positive is None else positive.astype(np.int64), np.zeros(len(C))
        lower, upper, _ = self.compute_bounds(C, positive)
        second, b = int(positive is not None), np.ascontiguousarray(b)
        distribute_coefficients(self.group_of_row, C, labels, 0, second, b, lower, upper, out)
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
    """Split the dual coefficient of each group of equal rows, ``b`` [m], among its rows: each row in turn gets as much as its
    bound ``C`` [n] allows. The results are added to ``out`` float64 [n]; ``group`` [n] is the group of each row.

    The fewest possible rows get a coefficient. In classification, rows of class ``second`` get positive coefficients, and rows of
    class ``first`` negative ones; if a group has rows of both classes, all rows of one class are at their bound. In regression,
    ``first`` and ``second`` are equal.
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


def group_equal_rows(X: Any, values: np.ndarray | None = None, for_each: ForEach = call_for_each) -> np.ndarray:
    """Find equal rows of X, and return the number of the group of equal rows that each row belongs to, int64 [n], counted from 0.
    Rows must also agree in ``values`` float64 [n], if these are passed.

    X is an array float64 [n, d]; in any other form, each row is a group of its own. Rows are equal if all their bits are equal,
    and so are their ``values`` float64 [n], if given. The numbers do not depend on the order of the rows. Equal rows may end
    up in different groups if a different row has the same hash. O(n (d + log n)).
    """
    if not isinstance(X, np.ndarray):
        return np.arange(X.shape[0])
    factors = _make_hash_factors(X.shape[1] + 1)
    bits, hashes = X.view(np.uint64), np.zeros(len(X), np.uint64)
    if values is not None:
        _add_hashes(values.view(np.uint64)[:, np.newaxis], factors[-1:], hashes)
    size = max(_HASHED_VALUES // max(X.shape[1], 1), 1)

    def add_hashes(start: int) -> None:
        """Compute the hash of each row in the chunk that begins at row ``start``, and add it to the array of hashes."""
        chunk = np.require(bits[start : start + size], requirements=["C", "W"])  # another layout would need another compilation
        _add_hashes(chunk, factors[:-1], hashes[start : start + size])

    for_each(add_hashes, range(0, len(X), size))
    order = np.argsort(hashes, kind="stable")
    is_new, hashes = np.ones(len(order), bool), hashes[order]
    is_new[1:] = hashes[1:] != hashes[:-1]
    repeated = np.flatnonzero(~is_new)

    def compare_rows(start: int) -> None:
        """Compare rows with the same hash: mark each row in the chunk that begins at position ``start`` of the sorted rows that
        differs from the row before it.
        """
        chunk = repeated[start : start + size]
        rows, previous = order[chunk], order[chunk - 1]
        is_new[chunk] |= (bits[rows] != bits[previous]).any(axis=1)
        if values is not None:
            is_new[chunk] |= values[rows] != values[previous]

    for_each(compare_rows, range(0, len(repeated), size))
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(is_new) - 1
    return groups


@functools.lru_cache(maxsize=8)
def _make_hash_factors(n: int) -> np.ndarray:
    """Return n random odd numbers, uint64, as factors of the row hash. They are the same in each call."""
    return np.random.default_rng(0).integers(0, 2**63, n, dtype=np.uint64) | np.uint64(1)


@compiled(nogil=True)
def _add_hashes(bits: np.ndarray, factors: np.ndarray, hashes: np.ndarray) -> None:
    """Add a hash of each row of ``bits`` uint64 [n, d] to ``hashes`` uint64 [n]: the sum of its mixed words times ``factors``
    [d].
    """
    for i in range(len(bits)):
        total = hashes[i]
        for j in range(len(factors)):
            word = bits[i, j]
            total += (word ^ (word >> np.uint64(32))) * factors[j]  # many floats differ in their high bits only
        hashes[i] = total
