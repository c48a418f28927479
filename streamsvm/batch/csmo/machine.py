"""The base of the exact solvers: support vector machines fitted by conjugate SMO."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from numbers import Number
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing, check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import _num_samples, check_is_fitted

from streamsvm.batch.csmo.dual_fit import DualFit, SharedFitData
from streamsvm.batch.csmo.precomputed import PrecomputedRows, call_kernel_function
from streamsvm.batch.csmo.solver import (
    MachineSolution,
    SolverOptions,
    allocate_buffer,
    is_small,
)
from streamsvm.batch.csmo.state import choose_row_form, compute_gram_rows
from streamsvm.batch.kernel_machine import KernelMachine, TrainingData, check_coefficients, has_type_and_shape
from streamsvm.batch.problem import RowGroups, check_bounds
from streamsvm.core.checks import check_one_of, parameter
from streamsvm.core.kernels import LARGEST_KERNEL, LINEAR, MACHINE_KERNELS, PRECOMPUTED, Kernel
from streamsvm.core.threads import Workers, allow_stop, limit_blas_threads, resolve_n_jobs
from streamsvm.core.warning import warn

_INFINITE_C = 1e10  # replaces an infinite C
_MAX_KERNEL_VALUES = 4_000_000  # precomputed kernel values of one chunk of a prediction
_MAX_GAMMA = 1e37  # float32 has no room for larger ones
_MISSING_KERNEL = Kernel(-1, 1.0, 0.0, 1)


@dataclass(eq=False, repr=False, kw_only=True)
class CSMO(KernelMachine):
    """The base of the estimators that are solved by conjugate SMO: one machine for each pair of classes, or a single one.

    Parameters
    ----------
    kernel
        Kernel of a row x and a support vector s:

        - ``"rbf"``: exp(-gamma |x - s|^2)
        - ``"linear"``: x.s
        - ``"poly"``: (gamma x.s + coef0)^degree
        - ``"sigmoid"``: tanh(gamma x.s + coef0)
        - ``"precomputed"``: X is the Gram matrix [n, n]. To predict, pass the kernel values with the rows of the fit, [m, n].
        - A function that takes m rows and k rows, and returns their kernel values [m, k]. The rows may be of any type that can
          be indexed. A fit calls it once, with all rows on both sides; predictions call it with the support vectors as the k
          rows.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the support vectors among the rows; classifiers list them class by class.
    support_vectors_ : float64 [n_support, features]
        The support vectors; a CSR matrix if X was sparse. If the kernel is a function, they are rows of X; with
        ``kernel="precomputed"``, the array is empty, [0, 0].
    n_support_ : int32 [1 or classes]
        Number of support vectors; for classifiers, of each class.
    dual_coef_ : float64 [1, n_support]
        Coefficients b_i or alpha_i of the support vectors; a CSR array if X was sparse.
    coef_ : float64 [machines, features]
        Weights of the features, with ``kernel="linear"`` only; a CSR array if X was sparse.
    intercept_ : float64 [1]
        The intercept of the decision values.
    n_iter_ : int
        Number of steps.
    fit_status_ : int
        0 if the fit converged, 1 if the gap is above ``tol``.
    shape_fit_ : tuple
        Shape of the X that was fitted.
    gap_ : float
        The gap of the worst machine, computed in float64.
    duality_gap_ : float
        The primal minus the dual objective, summed over the machines. This value and ``objective_`` are exact to about six
        digits of the objective if C is at most 1, five at 1,000, and three at 10,000, because bounded variables enter with
        float32 kernel values.
    objective_ : float
        The dual objective, which the fit minimises, summed over the machines.

    Raises
    ------
    ValueError
        A parameter is out of range, or X, y or a weight is invalid. The message says which one.
    TypeError
        The Gram matrix is sparse.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` at the end. The attributes are those of the last iterate.
    UserWarning
        A weight is negative.
    """

    coef0: float = parameter(default=0.0, least=-LARGEST_KERNEL, high=LARGEST_KERNEL)
    """Constant term of the kernels ``"poly"`` and ``"sigmoid"``. With a value below 0, and always with ``"sigmoid"``, the
    problem may have several local minima. The fit then ends in one of them, as LIBSVM's does.
    """
    tol: float = parameter(default=1e-3, above=0.0)
    """Largest gap of a converged fit: how much the worst pair of dual coefficients may still violate the optimality conditions.
    In regression it is in the units of y, so raise it if y is in the thousands: 1e-3 is then very strict.
    """
    cache_size: float = parameter(default=200, above=0.0)
    """Maximum memory for values of the Gram matrix, in megabytes (2^20 bytes), but at least two columns. The machines of all
    pairs of classes use the same cache one after the other. If the kernel is a function, its whole Gram matrix in float64 needs
    memory in addition to the cache.
    """
    conjugate: bool = True
    """Whether the steps follow conjugate directions, which takes fewer steps if C is large. False gives plain SMO."""
    shrinking: bool = True
    """Whether rows that seem to have reached their bound leave the working set until the final check."""
    max_iter: int = parameter(default=-1, least=-1, integer=True)
    """Maximum number of steps of each machine; -1 sets no limit."""
    verbose: bool = False
    """Whether to show progress on standard error."""
    n_jobs: int | None = None
    """Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. Results do not depend on it."""

    _kernels: ClassVar[Mapping[str, int]] = MACHINE_KERNELS

    #: The sum of the dual coefficients, relative to the sum of their bounds.
    _sum_share = 0.0

    # Attributes as scikit-learn has them --------------------------------------------------------------------------------------

    #: The factor, 1 or -1, between our decision values, intercepts and coefficients and those with scikit-learn's signs.
    _value_sign = 1.0

    def _match_sparsity(self, values: np.ndarray) -> Any:
        """Return ``values`` as a CSR array if the model's support vectors are sparse, and otherwise unchanged, as scikit-learn
        does.
        """
        return sparse.csr_array(values) if self._predictor is not None and sparse.issparse(self.support_vectors_) else values

    @property
    def _gamma(self) -> float:
        """The numeric value of the parameter ``gamma``, which may be a text such as "scale". Code written for scikit-learn reads
        this private attribute.
        """
        return self._kernel.gamma

    @property
    def dual_coef_(self) -> Any:
        """The coefficients of the support vectors in the decision values, float64 [machines, n_support]; a CSR array if X was
        sparse. There is one machine, or for three or more classes one for each pair.
        """
        return self._match_sparsity(self._coefficients)

    @property
    def intercept_(self) -> np.ndarray:
        """The intercept of each machine, float64 [machines], which is added to its sum of kernel values. There is one machine, or
        for three or more classes one for each pair.
        """
        return self._value_sign * self._intercepts

    @property
    def coef_(self) -> Any:
        """The weights of the features in the decision values, float64 [machines, features]. Raises an AttributeError unless
        ``kernel="linear"``.
        """
        if self._kernel.kind != LINEAR:
            raise AttributeError("coef_ exists only with kernel='linear'")
        coef = self._match_sparsity(self._value_sign * (self._coefficients @ self.support_vectors_))
        (coef.data if sparse.issparse(coef) else coef).flags.writeable = False  # changing it would not change predictions
        return coef

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.input_tags.sparse = self.kernel != "precomputed"
        return tags

    # Fits -------------------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None, dual_coef_init: Any = None) -> Self:
        """Fit the model to all rows X with labels or targets y, and return it. A ValueError leaves the model unchanged.

        Parameters
        ----------
        X
            Rows to learn: an array or sparse matrix [n, features]; with ``kernel="precomputed"``, the Gram matrix [n, n]; if
            the kernel is a function, anything that it accepts, such as a list.
        y
            Labels or targets [n].
        sample_weight
            Weight of each row [n]. Rows with a weight of 0 or less are left out. None gives every row weight 1.
        dual_coef_init
            Dual coefficients to start from, y_i alpha_i or b_i, float64 [n]; for at most two classes. They are clipped to the
            bounds, and then the positive or the negative ones are scaled down until the sum is zero. None starts from 0.

        Returns
        -------
        The fitted estimator. The errors are listed in the class.
        """
        return self._fit_machines(X, y, sample_weight, dual_coef_init)

    def _fit_machines(
        self, X: Any, y: Any, sample_weight: Any, dual_coef_init: Any = None, shared: SharedFitData | None = None
    ) -> Self:
        """Fit the SVMs of this estimator (one for each pair of classes) to the rows X, set all fitted attributes, and return the
        estimator. ``shared`` holds data that fits of the same rows share; the other arguments are those of `fit`. If the user
        interrupts, the solution reached so far is set, and KeyboardInterrupt is raised.
        """
        with self._rollback_on_error():
            self._check_parameters([self.C])
            training = self._prepare_training(X, y, sample_weight)
            solutions = self._solve_dual(training, dual_coef_init, shared or SharedFitData())
            interrupted = any(solution.interrupted for solution in solutions)
            self.objective_ = sum(solution.objective for solution in solutions)
            difference = sum(solution.objective + solution.primal for solution in solutions)
            self.duality_gap_: float = max(difference, 0.0)  # rounding may make it negative
            self.gap_: float = max(solution.gap for solution in solutions)
            self.fit_status_: int = int(self.gap_ > self.tol)
            self._fit_probabilities(training, interrupted)
        if interrupted:
            raise KeyboardInterrupt
        if self.fit_status_:
            limit = "" if self.max_iter < 0 else "max_iter or "
            warn(
                f"Solver terminated early (max_iter={self.max_iter}).  Consider pre-processing your data with StandardScaler or "
                f"MinMaxScaler. Or raise {limit}tol: {type(self).__name__} ended with a gap of {self.gap_:.3g}, above "
                f"tol={self.tol:g}, after {np.sum(self.n_iter_)} iterations",
                ConvergenceWarning,
            )
        return self

    def _fit_probabilities(self, training: TrainingData, interrupted: bool) -> None:
        """Fit the function that turns decision values into probabilities. Does nothing here; classifiers with probabilities
        override it.
        """

    def _solve_dual(self, training: TrainingData, dual_coef_init: Any, shared: SharedFitData) -> list[MachineSolution]:
        """Solve the dual problems of all SVMs of this estimator (one for each pair of classes) for the ``training`` data; set the
        fitted attributes, such as the support vectors, and return the solutions. ``dual_coef_init`` is that of `fit`.
        """
        n, used_rows = len(training.weights), training.used_rows
        labels, machines = self._assign_machines(training)
        start = _check_dual_start(dual_coef_init, n, len(machines))
        C = _make_finite(self.C) * training.weights
        check_bounds(C[used_rows])
        limit = sys.maxsize if self.max_iter < 0 else int(self.max_iter)
        options = SolverOptions(
            float(self.tol), self.conjugate, self.shrinking, limit, bool(self.verbose), float(self.cache_size)
        )
        with limit_blas_threads():
            if shared.rows is None:
                shared.rows = self._make_solver_rows(training)
            fit = DualFit(training, labels, machines, C, start, self._kernel, self._epsilon, self._sum_share, options, shared)
            fit.solve_small_machines()
            solutions = self._solve_machines(fit)
        n_iter = [solution.n_iter for solution in solutions]
        self.n_iter_: np.ndarray | int = n_iter[0] if training.labels is None else np.array(n_iter)
        support = self._order_support(np.flatnonzero(fit.coefficients.any(axis=0)), training)
        self._set_solution(training.X, fit.coefficients, np.array([solution.bias for solution in solutions]), support)
        return solutions

    def _solve_machines(self, fit: DualFit) -> list[MachineSolution]:
        """Solve the dual problems of all SVMs of a fit (one for each pair of classes), in ``n_jobs`` threads, and return the
        solutions in order. After an interrupt, those that were not solved have empty solutions.

        Each thread solves one machine at a time; if there is only one machine, all threads share its loops.
        """
        solutions, n_machines = dict(fit.first_solutions), len(fit.machines)
        unsolved = [k for k in range(n_machines) if k not in solutions or not solutions[k].has_ended(fit.options)]
        if not unsolved:
            return list(solutions.values())
        threads, stop = resolve_n_jobs(self.n_jobs), threading.Event()
        inner_threads = threads if n_machines == 1 else 1
        thread_data = threading.local()

        def solve_one(k: int) -> None:
            """Solve the dual problem of SVM number ``k`` of the fit in the current thread, unless the fit was stopped."""
            if not stop.is_set():
                if not hasattr(thread_data, "buffer"):
                    thread_data.buffer = allocate_buffer(self.cache_size, fit.max_rows)
                with Workers(inner_threads) as workers:
                    solutions[k] = fit.solve_machine(k, thread_data.buffer, workers)
                if solutions[k].interrupted:
                    stop.set()

        with Workers(min(threads, n_machines)) as outer_workers:
            try:
                with allow_stop(stop):
                    outer_workers.for_each(solve_one, unsolved, stop)
            except KeyboardInterrupt:
                if not solutions:
                    raise
                k, solution = solutions.popitem()
                solutions[k] = solution._replace(interrupted=True)
        solution = next(iter(solutions.values()))
        empty = solution._replace(bias=0.0, n_iter=0, gap=np.inf, objective=0.0, primal=np.inf, interrupted=True)
        return [solutions.get(k, empty) for k in range(n_machines)]

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        resolve_n_jobs(self.n_jobs)
        super()._check_parameters(map(_make_finite, Cs))
        if not callable(self.kernel):
            check_one_of("kernel", self.kernel, self._kernels)

    def _check_weights(self, sample_weight: Any, X: Any) -> np.ndarray:
        """Check the weights ``sample_weight`` (None, a number, or [n]) for the rows X, and return them as float64 [n]. Negative
        weights become 0, with a warning. Raise a ValueError if the shape is wrong or a value is not finite.
        """
        # scikit-learn's own check raises other messages for weights that are all 0 than its tests of SVC expect.
        n = _num_samples(X)
        if sample_weight is None:
            return np.ones(n)
        weights = np.full(n, sample_weight) if isinstance(sample_weight, Number) else sample_weight
        weights = check_array(weights, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weights.shape != (n,):
            raise ValueError(f"sample_weight must be {n} numbers, one for each row of X: its shape is {weights.shape}")
        if (n_negative := int((weights < 0.0).sum())) and (weights > 0.0).any():
            warn(f"{n_negative} of {len(weights)} rows have a negative sample_weight: they are left out, as if it were 0")
        return np.maximum(weights, 0.0)

    def _check_training_rows(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Check the rows X and their labels or targets y as the kernel requires, and return both. Sets ``shape_fit_``. Raise a
        ValueError or TypeError if they are invalid, such as a Gram matrix that is not square.
        """
        if callable(self.kernel):  # rows may have any type that the function accepts
            check_consistent_length(X, y)
            if _num_samples(X) == 0:
                raise ValueError("X has no rows: there is nothing to learn")
            y = None if y is None else column_or_1d(y, warn=True)
        else:
            if self.kernel == "precomputed" and sparse.issparse(X):
                raise TypeError("Sparse precomputed Gram matrices are not supported: give an array")
            X, y = super()._check_training_rows(X, y)
            if self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
                raise ValueError(f"a precomputed Gram matrix must be square, but X has the shape {X.shape}")
        self.shape_fit_: tuple[int, ...] = tuple(X.shape) if hasattr(X, "shape") else (_num_samples(X),)
        return X, y

    def _make_kernel(self, X: Any, weights: np.ndarray) -> Kernel:
        """Return the kernel with its numeric parameters; ``gamma="scale"`` depends on X and the weights. Raise a ValueError if
        gamma is too large for float32.
        """
        if callable(self.kernel) or self.kernel == "precomputed":
            return Kernel(PRECOMPUTED, 1.0, 0.0, 1)
        kernel = super()._make_kernel(X, weights)
        if kernel.kind != LINEAR and kernel.gamma > _MAX_GAMMA:
            raise ValueError(f"gamma is {kernel.gamma:.3g}, which is too large for float32: scale the features")
        return kernel

    def _make_solver_rows(self, training: TrainingData) -> Any:
        """Return the training rows in the form that computes kernel values fastest: a dense array, a CSR matrix, or a Gram matrix
        (`PrecomputedRows`) for precomputed kernels and few rows.
        """
        X, n = training.X, len(training.weights)
        if callable(self.kernel):
            return PrecomputedRows.from_matrix(call_kernel_function(self.kernel, X, X, (n, n)))
        if self._kernel.kind == PRECOMPUTED:
            return PrecomputedRows.from_matrix(X)
        used_rows, targets = training.used_rows, training.targets
        is_small_problem = is_small(len(used_rows), self.cache_size)
        rows = choose_row_form(X, self._kernel, is_small_problem)
        if not is_small_problem:
            return rows
        groups = RowGroups(rows, used_rows, None if targets is None else targets[used_rows])
        matrix_rows = np.zeros(n, np.int64)
        matrix_rows[used_rows] = groups.group_of_row
        return PrecomputedRows(compute_gram_rows(groups.take_rows(), self._kernel).matrix, matrix_rows)

    def _assign_machines(self, training: TrainingData) -> tuple[np.ndarray, np.ndarray]:
        """Return the class index of each training row, int64 [n], and for each machine the indices of its negative and its
        positive class, int64 [machines, 2].

        Rows of a machine's first class get negative coefficients, rows of its second class positive ones. In regression, all rows
        have class 0, which is both classes of the only machine.
        """
        return np.zeros(len(training.weights), np.int64), np.zeros((1, 2), np.int64)

    def _order_support(self, support: np.ndarray, training: TrainingData) -> np.ndarray:  # noqa: ARG002
        """Return the positions ``support`` of the support vectors among the training rows, sorted for the attribute ``support_``.
        Sets ``n_support_``, their number.
        """
        self.n_support_: np.ndarray = np.array([len(support)], np.int32)
        return support

    def _take_support_vectors(self, X: Any) -> Any:
        """Return the rows of X that are support vectors. For a precomputed kernel, return an empty array, because predictions
        need only their positions.
        """
        self._kernel_function = self.kernel if callable(self.kernel) else None
        if self._kernel.kind == PRECOMPUTED:
            return np.empty((0, 0)) if self._kernel_function is None else _safe_indexing(X, self.support_)
        return super()._take_support_vectors(X)

    def _prepare_predictor(self) -> None:
        """Set ``_predictor``, the object that computes decision values from the support vectors. Precomputed kernels and kernel
        functions need no object (None).
        """
        if self._kernel.kind == PRECOMPUTED:
            self._predictor = None
        else:
            super()._prepare_predictor()

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _check_rows(self, X: Any) -> Any:
        """Check rows X to predict, and return them as an array or CSR matrix. For a kernel function, X is returned unchecked.
        Raise an error if the model is not fitted, or X is invalid.
        """
        check_is_fitted(self)
        return super()._check_rows(X) if self._kernel.kind != PRECOMPUTED or self._kernel_function is None else X

    def _compute_decisions(self, X: Any) -> np.ndarray:
        """Return the decision values of all SVMs of this estimator (one for each pair of classes) for the rows X, float64 [n,
        machines]. For a precomputed kernel, X contains kernel values with all training rows.
        """
        if self._kernel.kind != PRECOMPUTED:
            return super()._compute_decisions(X)
        n, m = _num_samples(X), len(self.support_)
        out = np.tile(self._intercepts, (n, 1))
        size = max(_MAX_KERNEL_VALUES // max(m, 1), 1)
        for start in range(0, n if m else 0, size):
            stop = min(start + size, n)
            chunk = X if stop - start == n else _safe_indexing(X, np.arange(start, stop))
            if self._kernel_function is None:
                K = chunk[:, self.support_]
            else:
                K = call_kernel_function(self._kernel_function, chunk, self.support_vectors_, (stop - start, m))
            out[start:stop] += K @ self._coefficients.T
        return out

    # Saved models -----------------------------------------------------------------------------------------------------------

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        """Raise a ValueError if the ``state`` (saved attributes) of a model is corrupt: its coefficients do not match its number
        of ``machines``, or its support vectors are out of range.
        """
        if state.get("_kernel", _MISSING_KERNEL).kind != PRECOMPUTED:
            super()._check_saved(state, machines)
            return
        check_coefficients(state, machines)
        support = state["support_"]
        is_valid = has_type_and_shape(support, np.int32, (len(support),))
        is_valid = is_valid and ((support >= 0) & (support < state["n_features_in_"])).all()
        if state["_kernel_function"] is None and not is_valid:
            raise ValueError("the saved model is corrupt: its support vectors are not among its rows")


def _make_finite(C: float) -> float:
    """Return ``C``; if it is infinite, return 1e10 in its place."""
    return _INFINITE_C if float("inf") == C else C


def _check_dual_start(start: Any, n: int, machines: int) -> np.ndarray | None:
    """Return the initial dual coefficients ``start`` (the parameter ``dual_coef_init``) as float64 [n], or None if there are
    none. Raise a ValueError if they are not n finite numbers, or the fit has several machines.
    """
    if start is None:
        return None
    if machines > 1:
        raise ValueError("dual_coef_init is for two classes")
    start = np.asarray(start, np.float64)
    if start.shape != (n,) or not np.isfinite(start).all():
        raise ValueError(f"dual_coef_init must be {n} finite numbers, one for each row of X")
    return start
