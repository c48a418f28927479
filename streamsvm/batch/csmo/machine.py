"""The fit of kernel machines by conjugate SMO."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Number
from typing import Any, ClassVar, Self

import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import _safe_indexing, check_array, check_consistent_length, column_or_1d
from sklearn.utils.validation import _num_samples, check_is_fitted

from streamsvm.batch.csmo.precomputed import PrecomputedRows, call_kernel_function
from streamsvm.batch.csmo.solver import (
    DualSolution,
    SolverOptions,
    allocate_buffer,
    allocate_gram,
    is_small,
    solve_problem,
    solve_small_machines,
)
from streamsvm.batch.csmo.state import GramCache, Problem, choose_row_form, compute_gram_rows, make_problem
from streamsvm.batch.kernel_machine import KernelMachine, SettledTest, TrainingData, check_coefficients, has_type_and_shape
from streamsvm.batch.problem import RowGroups, check_bounds
from streamsvm.core.checks import check_one_of, parameter
from streamsvm.core.kernels import LARGEST_KERNEL, LINEAR, MACHINE_KERNELS, PRECOMPUTED, Kernel
from streamsvm.core.threads import Workers, allow_stop, limit_blas_threads, resolve_n_jobs
from streamsvm.core.warning import warn

_NO_BOUND = 1e10  # what an infinite C counts as
_VALUES = 4_000_000  # kernel values of a prediction that are given at a time
_LARGEST_GAMMA = 1e37
_NO_KERNEL = Kernel(-1, 1.0, 0.0, 1)


@dataclass
class SharedFitData:
    """The parts that fits to the same rows and weights share: of one machine also the problem."""

    rows: Any = None
    groups: RowGroups | None = None
    problem: Problem | None = None
    gram: GramCache | None = None
    several: bool = False  # whether there are several such fits, for which kernel values are kept


@dataclass
class DualFit:
    """The machines of one fit, and what they have in common."""

    training: TrainingData
    labels: np.ndarray  # int64 [n]: the class of each row
    machines: np.ndarray  # int64 [machines, 2]: the classes of negative and of positive coefficients
    C: np.ndarray  # float64 [n]: the bound of each row
    start: np.ndarray | None  # float64 [n]: coefficients to begin with, of the only machine
    kernel: Kernel
    epsilon: float | None
    share: float
    options: SolverOptions
    shared: SharedFitData

    def __post_init__(self) -> None:
        self.coefficients: np.ndarray = np.zeros((len(self.machines), len(self.C)))
        self.begun: dict[int, DualSolution] = {}
        self._counted_labels = self.labels[self.training.used_rows]

    @cached_property
    def largest(self) -> int:
        """The largest number of rows of a machine."""
        counts, (first, second) = np.bincount(self._counted_labels, minlength=2), self.machines.T
        return int((counts[second] + np.where(first != second, counts[first], 0)).max())

    def solve_small_machines(self) -> None:
        """Solve all machines at once where each has few rows, whose kernel values are there."""
        rows, targets = self.shared.rows, self.training.targets
        small = (
            isinstance(rows, PrecomputedRows)
            and rows.contiguous_matrix is not None
            and is_small(self.largest, self.options.megabytes)
        )
        if self.start is None and small:
            targets = np.zeros(len(self.C)) if targets is None else targets
            self.begun = solve_small_machines(
                rows.contiguous_matrix, rows.which, self.C, self.labels, targets, self.machines,
                self.epsilon, self.share, self.options, self.coefficients,
            )  # fmt: skip

    def solve(self, k: int, buffer: np.ndarray, workers: Workers) -> DualSolution:
        """Solve machine number k, from where it was begun; write its coefficients."""
        (first, second), counted, shared = self.machines[k], self.training.used_rows, self.shared
        which = counted[(self._counted_labels == first) | (self._counted_labels == second)]
        C, targets = self.C[which], self.training.targets
        positive = None if first == second else self.labels[which] == second
        groups = shared.groups
        if groups is None:
            groups = RowGroups(shared.rows, which, None if targets is None else targets[which], workers.for_each)
        bounds, total = groups.compute_bounds(C, positive), self.share * float(C.sum())
        problem = shared.problem and shared.problem._replace(**bounds._asdict(), total=total)
        if problem is None:
            few = is_small(len(groups), self.options.megabytes)
            problem = make_problem(groups, bounds, self.kernel, self.epsilon, total, few)
        if len(self.machines) == 1:
            if shared.several and shared.gram is None:
                shared.gram = allocate_gram(len(groups), self.options.megabytes)
            shared.groups, shared.problem = groups, problem
        done = self.begun[k].n_iter if k in self.begun else 0
        point = self.coefficients[k] if done else self.start
        start = None if point is None else groups.sum_values(point[which])
        solution = solve_problem(problem, start, self.options, buffer, workers, done, shared.gram)
        self.coefficients[k, which] = groups.split_coefficients(solution.b, C, positive)
        return solution


@dataclass(eq=False, repr=False, kw_only=True)
class CSMO(KernelMachine):
    """The fit that the estimators share: one machine for each pair of classes, or one.

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
          be indexed. A fit calls it once, with all rows as both; predictions call it with the support vectors as the k rows.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the support vectors among the rows; of a classifier, class by class.
    support_vectors_ : float64 [n_support, features]
        The support vectors; a CSR matrix if X was sparse. If the kernel is a function, they are rows of X; with
        ``kernel="precomputed"``, the array is empty, [0, 0].
    n_support_ : int32 [1 or classes]
        Number of support vectors; of a classifier, of each class.
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
        A parameter is out of its range, or X, y or a weight cannot be learned. The message says which one.
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
    """Gap at which the fit ends: the amount by which the worst pair of dual coefficients may still violate the optimality
    conditions. In regression it is in the units of y, so raise it if y is in the thousands: 1e-3 is then very strict.
    """
    cache_size: float = parameter(default=200, above=0.0)
    """Maximum memory for values of the Gram matrix, in megabytes (2^20 bytes). There is always room for two columns. The
    machines of all pairs of classes take turns with one cache. If the kernel is a function, its whole Gram matrix in float64 is
    beside the cache.
    """
    conjugate: bool = True
    """Whether the steps follow conjugate directions, which takes fewer steps if C is large. False gives plain SMO."""
    shrinking: bool = True
    """Whether rows that seem to have reached their bound leave the working set until the end."""
    max_iter: int = parameter(default=-1, least=-1, integer=True)
    """Maximum number of steps of each machine; -1 sets no limit."""
    verbose: bool = False
    """Whether to show progress on standard error."""
    n_jobs: int | None = None
    """Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. The results do not depend on it."""

    _kernels: ClassVar[Mapping[str, int]] = MACHINE_KERNELS

    #: The sum of the dual coefficients, as a part of that of their bounds.
    _sum_share = 0.0

    # Attributes as scikit-learn has them --------------------------------------------------------------------------------------

    @property
    def _value_sign(self) -> float:
        """The factor from the machines' values to scikit-learn's: of a pair of several classes, its first is positive."""
        return 1.0

    def _match_sparsity(self, values: np.ndarray) -> Any:
        """Return values in the form of the support vectors: a CSR array if they are sparse."""
        return sparse.csr_array(values) if self._predictor is not None and sparse.issparse(self.support_vectors_) else values

    @property
    def _gamma(self) -> float:
        """The number that ``gamma`` stands for, which code written for scikit-learn reads here: no public attribute has it."""
        return self._kernel.gamma

    @property
    def dual_coef_(self) -> Any:
        """The coefficients of the support vectors, float64 [machines, n_support]; a CSR array if X was sparse."""
        return self._match_sparsity(self._coefficients)

    @property
    def intercept_(self) -> np.ndarray:
        """The intercept of each machine, float64 [machines]."""
        return self._value_sign * self._intercepts

    @property
    def coef_(self) -> Any:
        """The weights of the features, float64 [machines, features]; with ``kernel="linear"`` only."""
        if self._kernel.kind != LINEAR:
            raise AttributeError("coef_ exists only with kernel='linear'")
        coef = self._match_sparsity(self._value_sign * (self._coefficients @ self.support_vectors_))
        (coef.data if sparse.issparse(coef) else coef).flags.writeable = False  # to change it would change no prediction
        return coef

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.pairwise = self.kernel == "precomputed"
        tags.input_tags.sparse = self.kernel != "precomputed"
        return tags

    # Fits -------------------------------------------------------------------------------------------------------------------

    def fit(self, X: Any, y: Any, sample_weight: Any = None, dual_coef_init: Any = None) -> Self:
        """Fit the model to all rows. A fit that raises a ValueError leaves the model as it was.

        Parameters
        ----------
        X
            Rows to learn: an array or sparse matrix [n, features]; with ``kernel="precomputed"``, the Gram matrix [n, n]; if
            the kernel is a function, anything that it accepts, such as a list.
        y
            Labels or targets [n].
        sample_weight
            Weight of each row [n]. Rows whose weight is 0 or less are left out. None gives every row weight 1.
        dual_coef_init
            Dual coefficients to start from, y_i alpha_i or b_i, float64 [n]; for at most two classes. They are clipped to the
            bounds, and those of the sign that outweighs the other are scaled down until the sum is zero. None starts from 0.

        Returns
        -------
        The fitted estimator. The errors are those that the class names.
        """
        return self._fit_machines(X, y, sample_weight, dual_coef_init)

    def _fit_machines(
        self, X: Any, y: Any, sample_weight: Any, dual_coef_init: Any = None, shared: SharedFitData | None = None
    ) -> Self:
        with self._rollback_on_error():
            self._check_parameters([self.C])
            training = self._prepare_training(X, y, sample_weight)
            solutions = self._solve_dual(training, dual_coef_init, shared or SharedFitData())
            interrupted = any(solution.interrupted for solution in solutions)
            self.objective_ = sum(solution.objective for solution in solutions)
            difference = sum(solution.objective + solution.primal for solution in solutions)
            self.duality_gap_: float = max(difference, 0.0)  # it may round
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
        """Add what probabilities need to the solution."""

    def _solve_dual(self, training: TrainingData, dual_coef_init: Any, shared: SharedFitData) -> list[DualSolution]:
        n, counted = len(training.weights), training.used_rows
        labels, machines = self._assign_machines(training)
        start = _check_dual_start(dual_coef_init, n, len(machines))
        C = _make_finite(self.C) * training.weights
        check_bounds(C[counted])
        limit = sys.maxsize if self.max_iter < 0 else int(self.max_iter)
        options = SolverOptions(
            float(self.tol), self.conjugate, self.shrinking, limit, bool(self.verbose), float(self.cache_size)
        )
        with limit_blas_threads():
            if shared.rows is None:
                shared.rows = self._solver_rows(training)
            fit = DualFit(training, labels, machines, C, start, self._kernel, self._epsilon, self._sum_share, options, shared)
            fit.solve_small_machines()
            solutions = self._solve_parts(fit)
        n_iter = [solution.n_iter for solution in solutions]
        self.n_iter_: np.ndarray | int = n_iter[0] if training.labels is None else np.array(n_iter)
        support = self._order_support(np.flatnonzero(fit.coefficients.any(axis=0)), training)
        self._set_solution(training.X, fit.coefficients, np.array([solution.bias for solution in solutions]), support)
        return solutions

    def _solve_parts(self, fit: DualFit) -> list[DualSolution]:
        """Return the solutions of all machines of a fit; after an interrupt also of those never begun.

        Threads have a machine each where there are several, and else share the loops of the one.
        """
        solutions, parts = dict(fit.begun), len(fit.machines)
        left = [k for k in range(parts) if k not in solutions or not solutions[k].has_ended(fit.options)]
        if not left:
            return list(solutions.values())
        threads, stop = resolve_n_jobs(self.n_jobs), threading.Event()
        inside = threads if parts == 1 else 1
        buffers = threading.local()

        def solve_one(k: int) -> None:
            if not stop.is_set():
                if not hasattr(buffers, "own"):
                    buffers.own = allocate_buffer(self.cache_size, fit.largest)
                with Workers(inside) as workers:
                    solutions[k] = fit.solve(k, buffers.own, workers)
                if solutions[k].interrupted:
                    stop.set()

        with Workers(min(threads, parts)) as outside:
            try:
                with allow_stop(stop):
                    outside.for_each(solve_one, left, stop)
            except KeyboardInterrupt:
                if not solutions:
                    raise
                number, solution = solutions.popitem()
                solutions[number] = solution._replace(interrupted=True)
        some = next(iter(solutions.values()))
        never = some._replace(bias=0.0, n_iter=0, gap=np.inf, objective=0.0, primal=np.inf, interrupted=True)
        return [solutions.get(k, never) for k in range(parts)]

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        resolve_n_jobs(self.n_jobs)
        super()._check_parameters(map(_make_finite, Cs))
        if not callable(self.kernel):  # a function may be given, too
            check_one_of("kernel", self.kernel, self._kernels)

    def _check_weights(self, sample_weight: Any, X: Any) -> np.ndarray:
        # scikit-learn's own check refuses weights that are all 0, in words that its tests of SVC do not expect.
        n = _num_samples(X)
        if sample_weight is None:
            return np.ones(n)
        given = np.full(n, sample_weight) if isinstance(sample_weight, Number) else sample_weight
        weights = check_array(given, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weights.shape != (n,):
            raise ValueError(f"sample_weight must be {n} numbers, one a row of X: its shape is {weights.shape}")
        if (negative := int((weights < 0.0).sum())) and (weights > 0.0).any():
            warn(f"{negative} of {len(weights)} rows have a sample_weight below 0: they are left out, as if it were 0")
        return np.maximum(weights, 0.0)

    def _check_training_rows(self, X: Any, y: Any) -> tuple[Any, Any]:
        if callable(self.kernel):  # only the function knows what rows are
            check_consistent_length(X, y)
            if _num_samples(X) == 0:
                raise ValueError("X has no rows: there is nothing to learn")
            y = None if y is None else column_or_1d(y, warn=True)
        else:
            if self.kernel == "precomputed" and sparse.issparse(X):
                raise TypeError("Sparse precomputed Gram matrices are not supported: give an array")
            X, y = super()._check_training_rows(X, y)
            if self.kernel == "precomputed" and X.shape[0] != X.shape[1]:
                raise ValueError(f"a precomputed Gram matrix has as many columns as rows, and X has the shape {X.shape}")
        self.shape_fit_: tuple[int, ...] = tuple(X.shape) if hasattr(X, "shape") else (_num_samples(X),)
        return X, y

    def _make_kernel(self, X: Any, weights: np.ndarray) -> Kernel:
        if callable(self.kernel) or self.kernel == "precomputed":
            return Kernel(PRECOMPUTED, 1.0, 0.0, 1)
        found = super()._make_kernel(X, weights)
        if found.kind != LINEAR and found.gamma > _LARGEST_GAMMA:
            raise ValueError(f"gamma is {found.gamma:.3g}, which steps in float32 cannot take: scale the features")
        return found

    def _solver_rows(self, training: TrainingData) -> Any:
        """Return all rows in the form in which the solver takes them."""
        X, n = training.X, len(training.weights)
        if callable(self.kernel):
            return PrecomputedRows.from_matrix(call_kernel_function(self.kernel, X, X, (n, n)))
        if self._kernel.kind == PRECOMPUTED:
            return PrecomputedRows.from_matrix(X)
        counted, targets = training.used_rows, training.targets
        few = is_small(len(counted), self.cache_size)
        rows = choose_row_form(X, self._kernel, few)
        if not few:
            return rows
        groups, places = RowGroups(rows, counted, None if targets is None else targets[counted]), np.zeros(n, np.int64)
        places[counted] = groups.group_of_row
        return PrecomputedRows(compute_gram_rows(groups.take_rows(), self._kernel).matrix, places)

    def _assign_machines(self, training: TrainingData) -> tuple[np.ndarray, np.ndarray]:
        """Return the class of each row, int64 [n], and of each machine those of its negative and its positive coefficients.

        The latter are int64 [machines, 2]. Of regression they are one: its rows may have both.
        """
        return np.zeros(len(training.weights), np.int64), np.zeros((1, 2), np.int64)

    def _order_support(self, support: np.ndarray, training: TrainingData) -> np.ndarray:  # noqa: ARG002
        """Return the numbers of the support vectors in the order in which the model has them; set ``n_support_``."""
        self.n_support_: np.ndarray = np.array([len(support)], np.int32)
        return support

    def _take_support_vectors(self, X: Any) -> Any:
        self._kernel_function = self.kernel if callable(self.kernel) else None
        if self._kernel.kind == PRECOMPUTED:
            return np.empty((0, 0)) if self._kernel_function is None else _safe_indexing(X, self.support_)
        return super()._take_support_vectors(X)

    def _prepare_predictor(self) -> None:
        if self._kernel.kind == PRECOMPUTED:
            self._predictor = None
        else:
            super()._prepare_predictor()

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _check_rows(self, X: Any) -> Any:
        check_is_fitted(self)
        return super()._check_rows(X) if self._kernel.kind != PRECOMPUTED or self._kernel_function is None else X

    def _compute_decisions(self, X: Any, find_settled: SettledTest | None = None) -> np.ndarray:
        if self._kernel.kind != PRECOMPUTED:
            return super()._compute_decisions(X, find_settled)
        n, m = _num_samples(X), len(self.support_)
        out = np.tile(self._intercepts, (n, 1))
        size = max(_VALUES // max(m, 1), 1)
        for begin in range(0, n if m else 0, size):
            end = min(begin + size, n)
            chunk = X if end - begin == n else _safe_indexing(X, np.arange(begin, end))
            if self._kernel_function is None:
                K = chunk[:, self.support_]
            else:
                K = call_kernel_function(self._kernel_function, chunk, self.support_vectors_, (end - begin, m))
            out[begin:end] += K @ self._coefficients.T
        return out

    # Saved models -----------------------------------------------------------------------------------------------------------

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        if state.get("_kernel", _NO_KERNEL).kind != PRECOMPUTED:
            super()._check_saved(state, machines)
            return
        check_coefficients(state, machines)
        support = state["support_"]
        whole = (
            has_type_and_shape(support, np.int32, (len(support),))
            and ((support >= 0) & (support < state["n_features_in_"])).all()
        )
        if state["_kernel_function"] is None and not whole:
            raise ValueError("the saved model is corrupt: it has support vectors that are not among its rows")


def _make_finite(C: float) -> float:
    return _NO_BOUND if float("inf") == C else C


def _check_dual_start(start: Any, n: int, machines: int) -> np.ndarray | None:
    if start is None:
        return None
    if machines > 1:
        raise ValueError("dual_coef_init is for two classes")
    start = np.asarray(start, np.float64)
    if start.shape != (n,) or not np.isfinite(start).all():
        raise ValueError(f"dual_coef_init must be {n} finite numbers, one a row of X")
    return start
