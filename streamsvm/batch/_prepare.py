"""From what users hand to an estimator to the rows and bounds of a problem."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from scipy import sparse

from streamsvm.batch._solver import Problem
from streamsvm.batch.columns import SPARSE_COST, Kernel, Rows, diagonal, pack, same_rows, store_dense, store_sparse, subset
from streamsvm.kernels import KERNELS, RBF
from streamsvm.learners._inputs import check_number, check_one_of

__all__ = ["Groups", "check_parameters", "feasible", "gamma_of", "store", "training_rows"]

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


def _canonical(X: Any) -> Any:
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def store(X: Any, dtype: Any, *, dense: bool) -> Rows:
    """X, an array or CSR [n, d], as dense rows or as sparse ones."""
    if dense:
        return store_dense(X.toarray() if sparse.issparse(X) else X, dtype)
    return store_sparse(_canonical(X), dtype)


def training_rows(X: Any, kernel: Kernel) -> tuple[Rows, Rows]:
    """X in float32 and in float64, in the form whose columns are quickest.

    Raises
    ------
    ValueError
        Values that are so large that float32 has no kernel values for them.
    """
    if sparse.issparse(X):
        X = _canonical(X)
        n, d = X.shape
        if d * n <= min(SPARSE_COST * X.nnz, _LARGEST_DENSE):
            X = X.toarray()
    largest = np.abs(X.data if sparse.issparse(X) else X).max(initial=0.0)
    packed = None if sparse.issparse(X) or kernel.kind != RBF else pack(X, kernel.gamma)
    if packed is None and not sparse.issparse(X) and kernel.kind == RBF:
        X = X - 0.5 * (X.min(axis=0) + X.max(axis=0))  # distances stay, and float32 has its digits for them
    rows = packed or tuple(store(X, kind, dense=not sparse.issparse(X)) for kind in (np.float32, np.float64))
    norms = np.empty(X.shape[0])
    diagonal(rows[1], kernel, norms)
    if not (largest < _LARGEST_VALUE and np.abs(norms).max() < _LARGEST_KERNEL):
        raise ValueError("X has values that are too large for this kernel: scale its features")
    return rows[0], rows[1]


class Groups:
    """Equal rows as one, of either class (classification) or of one target (regression).

    Parameters
    ----------
    rows, exact_rows
        n rows in float32 and float64.
    C
        Bound of each row, float64 [n], above 0.
    targets
        Of regression float64 [n], or None.
    positive
        Of classification: which rows are of the positive class, bool [n], or None.
    """

    def __init__(
        self,
        rows: Rows,
        exact_rows: Rows,
        C: np.ndarray,
        *,
        targets: np.ndarray | None = None,
        positive: np.ndarray | None = None,
        epsilon: float = 1.0,
        kernel: Kernel,
    ) -> None:
        self.C, self.positive = C, positive
        self.of = same_rows(exact_rows, targets)
        m = int(self.of.max()) + 1
        #: A row of each group.
        self.first = np.empty(m, np.int64)
        self.first[self.of] = np.arange(len(C))
        rise, fall = (C, C) if positive is None else (C * positive, C * ~positive)
        upper, lower = np.bincount(self.of, rise, m), -np.bincount(self.of, fall, m)
        kink = np.zeros(m) if positive is None else upper + lower
        t = np.zeros(m) if targets is None else targets[self.first]
        self.problem = Problem(
            subset(rows, self.first), subset(exact_rows, self.first), kernel, t, epsilon, lower, upper, kink, positive is not None
        )

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


@njit(cache=True, error_model="numpy")
def _hand_out(of: np.ndarray, bounds: np.ndarray, amounts: np.ndarray, shares: np.ndarray) -> None:
    # To as few rows as can be: each of a group is given its bound until nothing is left. Destroys ``amounts``.
    least = 1e-12 * amounts  # what rounding leaves
    for i in range(len(of)):
        share = min(bounds[i], amounts[of[i]])
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
