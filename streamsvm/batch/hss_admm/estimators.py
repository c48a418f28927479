"""A support vector classifier of the kernel matrix in compressed form, by ADMM."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.exceptions import ConvergenceWarning

from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm.iteration import GAP_FACTOR, ADMMOptions, ADMMSolution, find_max_residual, measure_errors, run_admm
from streamsvm.batch.kernel_machine import KernelClassifier
from streamsvm.batch.path_machine import PathMachine
from streamsvm.batch.problem import Bounds, RowGroups
from streamsvm.core.checks import KernelName, check_number, check_one_of, parameter
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.kernels import KERNELS, LARGEST_KERNEL
from streamsvm.core.sklearn_base import draw_seed
from streamsvm.core.threads import limit_blas_threads
from streamsvm.core.warning import warn

_FIRST_BETA = 5.0  # times the largest self-kernel; later it is adapted to the residuals
_PAPER_ITERATIONS = 11  # the paper's loop runs from 0 to 10
_MAX_VALUE_ERROR = 0.3  # of decision values, in margins; larger errors cause a warning


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class HSSADMMClassifier(KernelClassifier, PathMachine):
    """A support vector classifier by ADMM on a compressed kernel matrix, after Cipolla and Gondzio (2021).

    Use it to reproduce that paper. `CSMOClassifier` is exact, and faster up to 50,000 rows; above, `HierarchicalSVC` is faster
    and more accurate. The method suits narrow kernels, whose values are almost 0 beyond a row's neighbours.

    The kernel matrix is compressed and factorised once, for all iterations, and with `fit_path` for all values of C. The problem
    is that of `CSMOClassifier`, except that with more than two classes there is one machine for each class against all others.
    The coefficients are fitted with the compressed matrix, but predictions use the exact kernel: ``value_error_`` is the
    resulting difference of decision values, and there is a warning if it is large. Time and memory are about linear in the number
    of rows, as long as the rows have few features, or lie as if they had few.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the support vectors among the rows.
    support_vectors_ : float64 [n_support, features]
        The support vectors.
    dual_coef_ : float64 [machines, n_support]
        Coefficients y_i alpha_i; one machine for two classes, otherwise one for each class.
    intercept_ : float64 [machines]
        The intercept of each machine.
    n_iter_ : int
        Number of iterations.
    beta_ : float
        The last penalty.
    primal_residual_, dual_residual_, gap_ : float
        Relative residuals and relative duality gap of the compressed problem at the end; the largest of all machines.
    compression_error_ : float
        An estimate of |(K - K~) V| / |K V|; see `streamsvm.batch.hss.HSSMatrix`.
    value_error_ : float
        The difference of decision values between the compressed matrix and the exact kernel, in units of the margin: the root
        mean square over 256 random rows or 256 support vectors, whichever is larger. Values are clipped at twice the margin.
    ranks_ : int64 [levels, 2]
        The smallest and the largest rank of each level of the tree.
    compressed_nbytes_ : int
        Bytes of the compressed matrix.

    Warns
    -----
    ConvergenceWarning
        The residuals or the gap are above the tolerance after ``max_iter`` iterations, or ``value_error_`` is above 0.3: the
        model differs from the one that the parameters describe.
    RuntimeWarning
        The error of the compression is above its tolerance.

    Notes
    -----
    With leaves of m rows, ranks of r and c sampled columns, the compression costs O(n (m + r) (m + c + d)), the factorisation
    O(n (m + r)^2), and an iteration O(n (m + r)). A prediction costs as many kernel values as there are support vectors.

    If you interrupt a fit (Ctrl-C) once it iterates, it sets the attributes to the last iterate, then raises KeyboardInterrupt.
    An interrupt before that leaves the model unchanged.

    References
    ----------
    Cipolla, S., Gondzio, J. (2021). Training very large scale nonlinear SVMs using alternating direction method of multipliers
    coupled with the hierarchically semi-separable kernel approximations. Algorithms 2 and 3. Errata: algorithm 3 writes x_k
    where it means q_k, and its bias has the opposite sign of the one that its decision function adds.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.batch import HSSADMMClassifier

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> models = HSSADMMClassifier(gamma=0.03, rel_tol=0.01).fit_path(X, y, [0.1, 1.0, 10.0])
    >>> [model.C for model in models], all(model.score(X, y) > 0.94 for model in models)
    ([0.1, 1.0, 10.0], True)
    """

    kernel: KernelName = parameter(default="rbf", choices=KERNELS)
    rel_tol: float = 0.3
    """Tolerated relative error of the compression for coefficients with the sum zero (see
    `streamsvm.batch.hss.HSSMatrix.compress`). A broad kernel needs a smaller one: a warning says so.
    """
    abs_tol: float = 0.0
    """Tolerated absolute error of the compression; the looser of the two tolerances counts."""
    max_rank: int = parameter(default=1000, least=1, integer=True)
    """Maximum number of rows of a skeleton, at least 1. A higher rank is more accurate, and costs more."""
    n_neighbors: int = parameter(default=64, least=4, integer=True)
    """Approximate number of nearest neighbours used to choose skeletons, at least 4."""
    leaf_size: int = parameter(default=256, least=2, integer=True)
    """Maximum number of rows of a leaf, at least 2."""
    beta: float | str = "balanced"
    """Penalty of the augmented Lagrangian: a fixed number above 0; ``"balanced"``, which adapts it to the residuals, and
    factorises the matrix a few more times; or ``"paper"``, which does the same as the paper: 100 for fewer than 10^5 rows, 1,000
    for fewer than 10^6, and 10,000 for more; eleven iterations from 0 without relaxation; residuals are ignored.
    """
    relaxation: float = parameter(default=1.6, above=0.0)
    """Over-relaxation of ADMM, above 0 and below 2. The fit converges for any such value and any ``beta``, although slowly for
    unsuitable ones, because the compressed matrix has no negative eigenvalues apart from rounding.
    """
    tol: float = parameter(default=1e-2, least=0.0)
    """Largest relative primal and dual residuals of a converged fit, provided that the duality gap is at most ten times as large,
    relative to the objective.
    """
    max_iter: int = parameter(default=2000, least=1, integer=True)
    """Maximum number of iterations."""

    def _fit_models(self, models: list[Self], X: Any, y: Any, sample_weight: Any) -> list[Self]:
        """Fit several models that differ only in their C to the same rows, with one compressed kernel matrix, and return them. If
        the user interrupts, the last iterate is kept, and KeyboardInterrupt is raised.
        """
        Cs = [model.C for model in models]
        with self._rollback_on_error(), limit_blas_threads():  # the products are too small for several threads
            prepared = self._prepare_path(Cs, X, y, sample_weight)
            groups, unit_bounds = prepared.groups, prepared.unit_bounds
            K = self._compress_rows(groups)
            sides = ([C * unit[side] for C in Cs for unit in unit_bounds] for side in range(3))
            solution = run_admm(K, Bounds(*map(np.column_stack, sides)), self._make_admm_options(K))
            errors = measure_errors(K, solution.b, solution.bias)
            self._copy_fit_to(models)
            for number, (model, C) in enumerate(zip(models, Cs, strict=True)):
                columns = slice(number * len(unit_bounds), (number + 1) * len(unit_bounds))
                coefficients = prepared.expand_coefficients(solution.b[:, columns].T, C)
                model._set_solution(
                    prepared.training.X, coefficients, solution.bias[columns], np.flatnonzero(coefficients.any(axis=0))
                )
                model._set_results(K, solution, errors, columns)
        if solution.interrupted:
            raise KeyboardInterrupt
        self._warn_if_inexact(models)
        return models

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        super()._check_parameters(Cs)
        if isinstance(self.beta, str):
            check_one_of("beta", self.beta, ("balanced", "paper"))
        else:
            check_number("beta", self.beta, 0.0)
        if self.relaxation >= 2.0:
            raise ValueError(f"relaxation must be below 2, not {self.relaxation!r}")

    def _compress_rows(self, groups: RowGroups) -> HSSMatrix:
        """Compress the kernel matrix of one row from each group of equal rows, and return it. Raise a ValueError if its values
        are too large.
        """
        _, gamma, coef0, degree = self._kernel
        names = ("rel_tol", "abs_tol", "max_rank", "n_neighbors", "leaf_size")
        options: dict[str, Any] = {name: getattr(self, name) for name in names}
        options |= {"zero_sum": True, "seed": draw_seed(self.random_state), "verbose": bool(self.verbose)}
        K = HSSMatrix.compress(groups.take_rows(), kernel=self.kernel, gamma=gamma, degree=degree, coef0=coef0, **options)
        if not K.largest_diagonal < LARGEST_KERNEL:
            raise ValueError("X has values that are too large for this kernel: scale its features")
        return K

    def _make_admm_options(self, K: HSSMatrix) -> ADMMOptions:
        """Return the options of the ADMM solver, such as its penalty, tolerance and maximum number of iterations, from the
        parameters of this estimator and the compressed kernel matrix K.
        """
        verbose, n = bool(self.verbose), K.shape[0]
        if self.beta == "paper":
            return ADMMOptions(1e2 if n < 10**5 else 1e3 if n < 10**6 else 1e4, False, 1.0, 0.0, _PAPER_ITERATIONS, verbose)
        balance = self.beta == "balanced"
        beta = _FIRST_BETA * (K.largest_diagonal or 1.0) if balance else float(self.beta)
        return ADMMOptions(beta, balance, float(self.relaxation), float(self.tol), int(self.max_iter), verbose)

    def _set_results(self, K: HSSMatrix, solution: ADMMSolution, errors: np.ndarray, columns: slice) -> None:
        """Set the fitted attributes about convergence and compression, such as ``n_iter_`` and ``gap_``. ``solution`` and
        ``errors`` contain a column for each problem of a fit with several C; the slice ``columns`` selects those of this model.
        """
        self.n_iter_: int = int(solution.n_iter[columns].max())
        self.beta_: float = solution.beta
        self.primal_residual_: float = float(solution.primal[columns].max())
        self.dual_residual_: float = float(solution.dual[columns].max())
        self.gap_: float = float(solution.gap[columns].max())
        self.value_error_: float = float(errors[columns].max())
        self.compression_error_: float = K.error
        self.ranks_: np.ndarray = K.ranks
        self.compressed_nbytes_: int = K.nbytes

    def _warn_if_inexact(self, models: list[Self]) -> None:
        """Issue a ConvergenceWarning about the worst of the ``models`` if its ADMM residuals or duality gap are above the
        tolerance, or its decision values differ too much between compressed and exact kernel matrix.
        """
        worst = max(models, key=lambda model: find_max_residual(model.primal_residual_, model.dual_residual_, model.gap_))
        if self.beta != "paper" and find_max_residual(worst.primal_residual_, worst.dual_residual_, worst.gap_) > self.tol:
            warn(
                f"{type(self).__name__} ended for C={worst.C:g} after {worst.n_iter_} iterations with relative residuals of "
                f"{worst.primal_residual_:.1e} and {worst.dual_residual_:.1e}, above tol={self.tol:g}, or a gap of "
                f"{worst.gap_:.1e}, above {GAP_FACTOR * self.tol:g}: raise max_iter or tol, or use {self._exact_class_name}",
                ConvergenceWarning,
            )
        worst = max(models, key=lambda model: model.value_error_)
        if worst.value_error_ > _MAX_VALUE_ERROR:
            warn(
                f"decision values of the model for C={worst.C:g} are {worst.value_error_:.2g} margins from those of the "
                f"compressed matrix that it was trained with: lower rel_tol={self.rel_tol:g}, or use {self._exact_class_name}",
                ConvergenceWarning,
            )
