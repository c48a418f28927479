"""The problem as conjugate SMO takes it: rows in the form whose columns are computed quickest."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.batch.csmo.columns import Rows, best_dense, csr_without_zeros, diagonal, pack, single, store_dense, store_sparse
from streamsvm.batch.given import GivenRows
from streamsvm.batch.problem import Bounds, Groups
from streamsvm.core.kernels import LARGEST_FEATURE, LARGEST_KERNEL, RBF, Kernel

__all__ = ["Problem", "feasible", "first_point", "problem_of", "quickest_form"]

_LARGEST_DENSE = 1e8  # values of a sparse matrix that may be made dense
_GIVEN_COST = 200  # a kernel value that compiled code does not compute is taken to cost as much as that of so many features


class Problem(NamedTuple):
    """The dual of `streamsvm.batch.problem`. Arrays float64 [n]; ``rows`` in float32, ``exact_rows`` in float64.

    Where kernel values are ``given``, rows have no features.
    """

    rows: Rows
    exact_rows: Rows
    given: GivenRows | None
    kernel: Kernel
    targets: np.ndarray
    epsilon: float
    classification: bool
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    total: float  # of all variables


def problem_of(groups: Groups, bounds: Bounds, kernel: Kernel, epsilon: float | None, total: float = 0.0) -> Problem:
    """Return the problem of some groups: regression with ``epsilon``, classification with None; ``total`` is the variables' sum.

    Raises
    ------
    ValueError
        X has values so large that float32 cannot hold the kernel values.
    """
    X = groups.rows()
    given = X if isinstance(X, GivenRows) else None
    rows, exact = _training_rows(X, kernel) if given is None else _no_features(len(given))
    linear = 1.0 if epsilon is None else epsilon
    return Problem(rows, exact, given, kernel, groups.targets, linear, epsilon is None, *bounds, total)


def quickest_form(X: Any, kernel: Kernel) -> Any:
    """Return X as an array or as CSR without duplicates: columns of sparse rows may be quicker from dense rows or from bits."""
    if not sparse.issparse(X):  # or values are given
        return X
    X = csr_without_zeros(X)
    if X.shape[0] * X.shape[1] > _LARGEST_DENSE:
        return X
    two_valued = kernel.kind == RBF and X.nnz > 0 and (X.data == X.data[0]).all()
    return X.toarray() if two_valued or best_dense(X) else X


def _training_rows(X: Any, kernel: Kernel) -> tuple[Rows, Rows]:
    """Return X in float32 and in float64, as bits where that is possible. Destroys a dense X."""
    dense, n, values = not sparse.issparse(X), X.shape[0], X.data if sparse.issparse(X) else X
    largest = max(values.max(initial=0.0), -values.min(initial=0.0))
    packed = pack(X, kernel.gamma) if dense and kernel.kind == RBF else None
    if packed is not None:
        rows, exact = packed
    else:
        if dense and kernel.kind == RBF:
            X -= 0.5 * (X.min(axis=0) + X.max(axis=0))  # distances stay the same, and float32 has more digits for them
        exact = store_dense(X, np.float64) if dense else store_sparse(X, np.float64)
        del X, values  # the float32 copy may take their memory
        rows = single(exact)
    self_kernels = np.ones(n)
    if kernel.kind != RBF:
        diagonal(exact, kernel, self_kernels)
    if not (largest < LARGEST_FEATURE and np.abs(self_kernels).max() < LARGEST_KERNEL):
        raise ValueError("X has values that are too large for this kernel: scale its features")
    return rows, exact


def _no_features(n: int) -> tuple[Rows, Rows]:
    """Return n rows without features, in float32 and in float64, whose columns are worth their place in the cache."""
    rows = store_dense(np.empty((n, 0)), np.float64)._replace(features=_GIVEN_COST)
    return single(rows), rows


def first_point(problem: Problem) -> np.ndarray:
    """Return variables, float64 [n], whose sum is the total: from the first on, they are at their upper bound."""
    upper = problem.upper
    return np.clip(problem.total - (np.cumsum(upper) - upper), 0.0, upper)


def feasible(problem: Problem, b: np.ndarray) -> np.ndarray:
    """Return ``b`` float64 [n] clipped to the bounds, the larger of its two signs scaled down so that its sum is the total."""
    b = np.clip(b, problem.lower, problem.upper)
    excess = b.sum() - problem.total
    side = b > 0.0 if excess > 0.0 else b < 0.0
    if side.any():
        b[side] *= 1.0 - excess / b[side].sum()
    return b
