"""What the exact kernel machines share: prediction, and the way to a budgeted learner."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import check_is_fitted, validate_data

from streamsvm._warnings import warn
from streamsvm.batch.csmo.column_cache import ColumnCache
from streamsvm.batch.csmo.columns import Rows, cost
from streamsvm.batch.csmo.solver import Options, Problem, Solution, add_expansions, solve
from streamsvm.batch.distillation import to_budget
from streamsvm.batch.problem import Bounds, Groups, check_kernel, feasible, gamma_of, problem_of, store
from streamsvm.checks import check_number
from streamsvm.kernels import KERNELS, Kernel
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.sklearn_base import Kept

__all__ = ["CSMO", "KernelMachine", "column_buffer", "solve_exactly"]

_MEGABYTE = 2**20
_WORTH = 4.0  # megabytes for each operation of a kernel value: what is soon computed again is not worth fresh memory
_ROWS_AT_ONCE = 4096  # of a prediction


class KernelMachine(Kept):
    """A fitted one has ``support_vectors_``, ``dual_coef_`` [machines, n_support], ``intercept_`` and ``_kernel``; and ``_rows``,
    the support vectors as compiled code takes them, which is set with them and not kept.
    """

    support_vectors_: Any
    _rows: Rows

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _decisions(self, X: Any) -> np.ndarray:
        # float64 [n, machines]
        check_is_fitted(self)
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, reset=False)
        return self._values(X)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_rows")

    def _store_rows(self) -> None:
        dense = not sparse.issparse(self.support_vectors_)
        self._rows = store(self.support_vectors_, np.float64, dense=dense)
        if dense:
            self.support_vectors_ = self._rows.dense.T  # of the same memory

    def _values(self, X: Any) -> np.ndarray:
        """float64 [n, machines], of rows float64 [n, features] that are checked: finite, an array or CSR."""
        out = np.tile(self.intercept_, (X.shape[0], 1))
        dense = not sparse.issparse(self.support_vectors_)
        if not dense and not sparse.issparse(X):
            X = sparse.csr_array(X)
        for begin in range(0, X.shape[0], _ROWS_AT_ONCE):
            part = store(X[begin : begin + _ROWS_AT_ONCE], np.float64, dense=dense)
            end = min(begin + _ROWS_AT_ONCE, X.shape[0])
            add_expansions(self._rows, self.dual_coef_, part, np.arange(end - begin), self._kernel, out[begin:end])
        return out

    def _begin(self, X: Any, weights: np.ndarray) -> np.ndarray:
        # The kernel, and which rows count.
        counted = np.flatnonzero(weights > 0.0)
        if not len(counted):
            raise ValueError("sample_weight is zero for all rows: there is nothing to learn")
        self._kernel = Kernel(KERNELS[self.kernel], gamma_of(self.gamma, X, weights), float(self.coef0), int(self.degree))
        return counted

    def _keep(self, X: Any, coefficients: np.ndarray, intercepts: np.ndarray, support: np.ndarray) -> None:
        # From the coefficients of all rows, float64 [machines, n], and the numbers of those that have one.
        self.support_ = support.astype(np.int32)
        self.support_vectors_ = X[self.support_]
        self._store_rows()
        self.dual_coef_ = np.ascontiguousarray(coefficients[:, self.support_])
        self.intercept_ = np.asarray(intercepts, np.float64)

    def predict(self, X: Any) -> np.ndarray:
        """Labels [n], or of a regressor values, float64 [n], of the rows of X, an array or sparse matrix [n, features]."""
        return self._predictions(self._decisions(X))

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        """Labels or values [n], from those of the machines, float64 [n, machines]."""
        return f[:, 0]

    def _scores(self, f: np.ndarray) -> np.ndarray:
        """Of a classifier: what ``decision_function`` says."""
        raise NotImplementedError

    def _class_values(self, f: np.ndarray) -> np.ndarray:
        """Of a classifier with more than two classes: a value for each, float64 [n, classes], linear in the machines' values."""
        raise NotImplementedError

    def to_budget(self, budget: int, X: Any = None, **parameters: Any) -> BudgetedEstimator:
        """A budgeted learner that decides alike and goes on learning: `streamsvm.batch.to_budget`."""
        return to_budget(self, budget, X, **parameters)


class CSMO(KernelMachine):
    """What the classifier and the regressor by conjugate SMO share."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None, dual_coef_init: Any = None) -> Self:
        """Learn from all rows. What is refused with a ValueError leaves the model as it was.

        Parameters
        ----------
        X
            Array or sparse matrix [n, features].
        y
            Labels or targets [n].
        sample_weight
            Numbers of at least 0, [n]; None: all 1.
        dual_coef_init
            Where to start from, y_i alpha_i or b_i, float64 [n]; of classes, two. Clipped to the bounds, and the larger side
            scaled to make the sum zero.
        """
        with self._all_or_nothing():
            solutions = self._fit(X, y, sample_weight, dual_coef_init)
            self.objective_ = sum(solution.objective for solution in solutions)
            self.duality_gap_ = sum(solution.objective + solution.primal for solution in solutions)
            self.gap_ = max(solution.gap for solution in solutions)
        if any(solution.interrupted for solution in solutions):
            raise KeyboardInterrupt
        if self.gap_ > self.tol:
            warn(
                f"{type(self).__name__} ended with a gap of {self.gap_:.3g}, above tol={self.tol:g}, after "
                f"{np.sum(self.n_iter_)} iterations: scale the features, or raise max_iter or tol",
                ConvergenceWarning,
            )
        return self

    def _fit(self, X: Any, y: Any, sample_weight: Any, dual_coef_init: Any) -> list[Solution]:
        raise NotImplementedError

    def _check(self) -> None:
        check_number("C", self.C, 0.0)
        check_kernel(self)
        check_number("tol", self.tol, 0.0)
        check_number("cache_size", self.cache_size, 0.0)
        check_number("max_iter", self.max_iter, -1, inclusive=True, integer=True)

    def _solve(
        self, groups: Groups, bounds: Bounds, epsilon: float | None, start: np.ndarray | None, buffer: np.ndarray
    ) -> Solution:
        options = Options(float(self.tol), self.conjugate, self.shrinking, int(self.max_iter), bool(self.verbose))
        problem = problem_of(groups, bounds, self._kernel, epsilon)
        return solve_exactly(problem, None if start is None else groups.sums(start), options, buffer)

    def _start(self, start: Any, n: int, counted: np.ndarray) -> np.ndarray | None:
        if start is None:
            return None
        start = np.asarray(start, np.float64)
        if start.shape != (n,) or not np.isfinite(start).all():
            raise ValueError(f"dual_coef_init must be {n} finite numbers, one a row of X")
        return start[counted]


def solve_exactly(p: Problem, start: np.ndarray | None, options: Options, buffer: np.ndarray) -> Solution:
    """Conjugate SMO from coefficients ``start``, float64 [n], with room for columns from `column_buffer`."""
    b = np.zeros(len(p.lower)) if start is None else feasible(p, start)
    worth = int(_WORTH * cost(p.rows) * _MEGABYTE)
    return solve(p, b, options, buffer[: ColumnCache.values(worth, len(b))])


def column_buffer(megabytes: float, n: int) -> np.ndarray:
    """Room for columns of up to n rows. The operating system gives memory only as columns are written."""
    return np.empty(ColumnCache.values(int(megabytes * _MEGABYTE), n), np.float32)
