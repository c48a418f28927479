"""From what users hand to an estimator to the rows and bounds of a problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from scipy import sparse

from streamsvm.batch._solver import Problem
from streamsvm.batch.columns import Kernel, Rows, best_dense, diagonal, pack, same_rows, single, store_dense, store_sparse
from streamsvm.kernels import KERNELS, RBF
from streamsvm.learners._inputs import check_number, check_one_of

__all__ = ["Groups", "canonical", "check_parameters", "feasible", "gamma_of", "store"]

_LARGEST_KERNEL = 1e30
_LARGEST_VALUE = 1e15
_LARGEST_DENSE = 1e8  # values


def check_parameters(estimator: Any) -> None:
    """Raise a ValueError that names a parameter which is out of its range."""
    check_number("C", estimator.C, 0.0)
    check_one_of("kernel", estimator.kernel, KERNELS)
    if isinstance(estimator.gamma, str):
        check_one_of("gamma", estimator.gamma, ("scale", "auto"))
    else:
        check_number("gamma", estimator.gamma, 0.0)
    check_number("degree", estimator.degree, 1, inclusive=True, high=100, integer=True)
    check_number("coef0", estimator.coef0, 0.0, inclusive=True)
    check_number("tol", estimator.tol, 0.0)
    check_number("cache_size", estimator.cache_size, 0.0)
    check_number("max_iter", estimator.max_iter, -1, inclusive=True, integer=True)


def gamma_of(gamma: float | str, X: Any, weights: np.ndarray) -> float:
    """The number that ``gamma`` stands for, as in scikit-learn's SVC; rows count by their weights."""
    if gamma == "auto":
        return 1.0 / X.shape[1]
    if gamma != "scale":
        return float(gamma)
    share = weights / weights.sum() / X.shape[1]
    mean = float((X.T @ share).sum())
    if sparse.issparse(X):
        variance = float((X.multiply(X).T @ share).sum()) - mean * mean
    else:
        variance = float(np.square(X - mean).sum(axis=1) @ share)
    return 1.0 / (X.shape[1] * variance) if variance > 1e-15 * mean * mean else 1.0


def canonical(X: Any) -> Any:
    """X itself, or if it is sparse a CSR array of its own: no duplicates, no zeros.

    Raises
    ------
    ValueError
        A sparse X of more features than indices can tell apart.
    """
    if not sparse.issparse(X):
        return X
    if X.shape[1] >= 2**31:
        raise ValueError(f"X has {X.shape[1]:,} features, and 2^31 or more are too many: hash them into fewer")
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def store(X: Any, dtype: Any, *, dense: bool) -> Rows:
    """X, an array or CSR [n, d], as dense rows or as sparse ones."""
    if dense:
        return store_dense(X.toarray() if sparse.issparse(X) else X, dtype)
    return store_sparse(canonical(X), dtype)


def _training_rows(X: Any, kernel: Kernel) -> tuple[Rows, Rows]:
    # X in float32 and in float64, in the form whose columns are quickest. Destroys a dense X.
    dense, n, values = not sparse.issparse(X), X.shape[0], X.data if sparse.issparse(X) else X
    largest = max(values.max(initial=0.0), -values.min(initial=0.0))
    packed = pack(X, kernel.gamma) if dense and kernel.kind == RBF else None
    if packed is not None:
        rows, exact = packed
    else:
        if dense and kernel.kind == RBF:
            X -= 0.5 * (X.min(axis=0) + X.max(axis=0))  # distances stay, and float32 has its digits for them
        exact = store_dense(X, np.float64) if dense else store_sparse(X, np.float64)
        del X, values  # before there is one copy more
        rows = single(exact)
    norms = np.empty(n)
    diagonal(exact, kernel, norms)
    if not (largest < _LARGEST_VALUE and np.abs(norms).max() < _LARGEST_KERNEL):
        raise ValueError("X has values that are too large for this kernel: scale its features")
    return rows, exact


class Groups:
    """Equal rows as one, of either class (classification) or of one target (regression).

    Parameters
    ----------
    X
        Array float64 [N, d], or CSR from `canonical`.
    which
        Numbers of the n rows of X in question, int64 [n].
    C
        Bound of each row, float64 [n], above 0.
    targets
        Of regression float64 [n], or None.
    positive
        Of classification: which rows are of the positive class, bool [n], or None.

    Raises
    ------
    ValueError
        Values that are so large that float32 has no kernel values for them.
    """

    def __init__(
        self,
        X: Any,
        which: np.ndarray,
        C: np.ndarray,
        *,
        targets: np.ndarray | None = None,
        positive: np.ndarray | None = None,
        epsilon: float = 1.0,
        kernel: Kernel,
    ) -> None:
        if len(which) < X.shape[0]:
            X = X[which]
        if sparse.issparse(X) and _quicker_dense(X, kernel):
            X = X.toarray()
        self.C, self.positive = C, positive
        self.of = same_rows(X, targets)
        m = int(self.of.max()) + 1
        first = np.empty(m, np.int64)  # a row of each group
        first[self.of] = np.arange(len(C))
        rise, fall = (C, C) if positive is None else (C * positive, C * ~positive)
        upper, lower = np.bincount(self.of, rise, m), -np.bincount(self.of, fall, m)
        kink = np.zeros(m) if positive is None else upper + lower
        t = np.zeros(m) if targets is None else targets[first]
        rows, exact = _training_rows(X if sparse.issparse(X) else X[first], kernel)
        self.problem = Problem(rows, exact, kernel, t, epsilon, lower, upper, kink, positive is not None)

    def coefficients(self, b: np.ndarray) -> np.ndarray:
        """The rows' own share in their groups' coefficients ``b``: y_i alpha_i, or alpha_i - alpha_i^* of regression."""
        p = self.problem
        if self.positive is None:
            shares = np.zeros(len(self.C))
            _hand_out(self.of, self.C, np.abs(b), shares)
            return shares * np.sign(b)[self.of]
        # Of equal rows, those of one class are all at their bound.
        above = b >= p.kink
        rising, falling = np.zeros(len(self.C)), np.zeros(len(self.C))
        _hand_out(self.of, self.C * self.positive, np.where(above, p.upper, b - p.lower), rising)
        _hand_out(self.of, self.C * ~self.positive, np.where(above, p.upper - b, -p.lower), falling)
        return rising - falling


def _quicker_dense(X: Any, kernel: Kernel) -> bool:
    two_valued = kernel.kind == RBF and X.nnz > 0 and bool((X.data == X.data[0]).all())
    return bool(X.shape[0] * X.shape[1] <= _LARGEST_DENSE) and (two_valued or best_dense(X))


@njit(cache=True, error_model="numpy")
def _hand_out(of: np.ndarray, bounds: np.ndarray, amounts: np.ndarray, shares: np.ndarray) -> None:
    # To as few rows as can be: each of a group is given its bound until nothing is left. Destroys ``amounts``.
    least = 1e-12 * amounts  # what rounding leaves
    for i in range(len(of)):
        share = bounds[i] if bounds[i] <= amounts[of[i]] + least[of[i]] else amounts[of[i]]
        if share > least[of[i]]:
            shares[i] = share
            amounts[of[i]] -= share


def feasible(problem: Problem, b: np.ndarray) -> np.ndarray:
    """``b`` within the bounds, and its sum zero: the larger of its two sides is scaled down."""
    b = np.clip(b, problem.lower, problem.upper)
    excess = b.sum()
    side = b > 0.0 if excess > 0.0 else b < 0.0
    if side.any():
        b[side] *= 1.0 - excess / b[side].sum()
    return b
