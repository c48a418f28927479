"""From what users hand to an estimator to the rows and bounds of a problem."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from scipy import sparse

from streamsvm.batch.csmo.columns import Rows, best_dense, diagonal, pack, same_rows, single, store_dense, store_sparse
from streamsvm.batch.csmo.solver import Problem
from streamsvm.checks import check_one_of
from streamsvm.kernels import LARGEST_FEATURE, LARGEST_KERNEL, RBF, Kernel, checked_kernel

__all__ = [
    "Bounds",
    "Groups",
    "check_bounds",
    "check_kernel",
    "feasible",
    "gamma_of",
    "problem_of",
    "quickest_form",
    "store",
]

_LARGEST_DENSE = 1e8  # values


def check_kernel(estimator: Any) -> None:
    """Raise a ValueError that names a parameter of the kernel which is out of its range."""
    gamma = estimator.gamma
    if isinstance(gamma, str):
        check_one_of("gamma", gamma, ("scale", "auto"))
        gamma = 1.0
    checked_kernel(estimator.kernel, gamma, estimator.degree, estimator.coef0)


def check_bounds(C: np.ndarray) -> None:
    """Raise a ValueError where C times a row's weight is no bound."""
    if not (C.min() > 0.0 and C.max() < np.inf):
        raise ValueError("C times the rows' weights is 0 or infinite in float64: scale C, sample_weight or class_weight")


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


def quickest_form(X: Any, kernel: Kernel) -> Any:
    """X, as an array or as CSR without duplicates: kernel values of sparse rows may come quicker from dense ones or from bits."""
    X = _canonical(X)
    if not sparse.issparse(X) or X.shape[0] * X.shape[1] > _LARGEST_DENSE:
        return X
    two_valued = kernel.kind == RBF and X.nnz > 0 and (X.data == X.data[0]).all()
    return X.toarray() if two_valued or best_dense(X) else X


def store(X: Any, dtype: Any, *, dense: bool) -> Rows:
    """X, an array or CSR [n, d], as dense rows or as sparse ones."""
    if dense:
        return store_dense(X.toarray() if sparse.issparse(X) else X, dtype)
    return store_sparse(_canonical(X), dtype)


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
    if not (largest < LARGEST_FEATURE and np.abs(norms).max() < LARGEST_KERNEL):
        raise ValueError("X has values that are too large for this kernel: scale its features")
    return rows, exact


class Bounds(NamedTuple):
    """Of the coefficients of groups, float64 [m] each; ``kink``: where the objective bends."""

    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray


class Groups:
    """Equal rows as one, of any class (classification) or of one target (regression).

    Parameters
    ----------
    X
        Array float64 [N, d], or CSR without duplicates.
    which
        Numbers of the n rows of X in question, int64 [n].
    targets
        Of regression float64 [n], or None.

    Attributes
    ----------
    targets : float64 [m]
        Of the groups; of classification 0.
    """

    def __init__(self, X: Any, which: np.ndarray, targets: np.ndarray | None = None) -> None:
        self._X = X[which] if len(which) < X.shape[0] else X
        self._of = same_rows(self._X, targets)
        m = int(self._of.max()) + 1
        self._first = np.empty(m, np.int64)  # a row of each group
        self._first[self._of] = np.arange(len(which))
        self.targets = np.zeros(m) if targets is None else targets[self._first]

    def __len__(self) -> int:
        return len(self._first)

    def rows(self) -> Any:
        """Of each group one, a copy [m, d] (sparse ones are all their own)."""
        return self._X if sparse.issparse(self._X) else self._X[self._first]

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Of float64 [n] in each group, [m]."""
        return np.bincount(self._of, values, len(self))

    def bounds(self, C: np.ndarray, positive: np.ndarray | None = None) -> Bounds:
        """From those of the rows, float64 [n], above 0, and of classification which are of the positive class, bool [n]."""
        if positive is None:
            upper = self.sums(C)
            return Bounds(-upper, upper, np.zeros(len(self)))
        lower, upper = -self.sums(C * ~positive), self.sums(C * positive)
        return Bounds(lower, upper, lower + upper)

    def coefficients(self, b: np.ndarray, C: np.ndarray, positive: np.ndarray | None = None) -> np.ndarray:
        """The rows' own share in their groups' coefficients ``b``: y_i alpha_i, or alpha_i - alpha_i^* of regression."""
        if positive is None:
            shares = np.zeros(len(C))
            _hand_out(self._of, C, np.abs(b), shares)
            return shares * np.sign(b)[self._of]
        # Of equal rows, those of one class are all at their bound.
        lower, upper, kink = self.bounds(C, positive)
        rising, falling = np.zeros(len(C)), np.zeros(len(C))
        _hand_out(self._of, C * positive, np.where(b >= kink, upper, b - lower), rising)
        _hand_out(self._of, C * ~positive, np.where(b >= kink, upper - b, -lower), falling)
        return rising - falling


def problem_of(groups: Groups, bounds: Bounds, kernel: Kernel, epsilon: float | None) -> Problem:
    """What `solve` takes, of regression with its epsilon, of classification with None.

    Raises
    ------
    ValueError
        Values that are so large that float32 has no kernel values for them.
    """
    rows, exact = _training_rows(groups.rows(), kernel)
    return Problem(rows, exact, kernel, groups.targets, 1.0 if epsilon is None else epsilon, *bounds, epsilon is None)


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
