"""What the machines by ADMM on a compressed kernel matrix share."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.base import is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamsvm._warnings import warn
from streamsvm.batch.csmo.solver import Options
from streamsvm.batch.hss_admm.accuracy import compared
from streamsvm.batch.hss_admm.iteration import GAP, ADMMOptions, ADMMSolution, admm
from streamsvm.batch.kernel_machine import KernelMachine, column_buffer, solve_exactly
from streamsvm.batch.problem import Bounds, Groups, check_bounds, check_kernel, problem_of
from streamsvm.checks import check_number, check_one_of
from streamsvm.hss import HSSMatrix
from streamsvm.kernels import LARGEST_KERNEL
from streamsvm.sklearn_base import seed_of

__all__ = ["HSSADMM", "Part"]

_FIRST_BETA = 5.0  # times the largest value on the diagonal; from there it follows the residuals
_PAPER_STEPS = 11  # its loop runs from 0 to 10
_LARGEST_DENSE = 1e9  # values
_TOLERANCES = (0.3, 0.1, 0.03, 0.01, 0.003, 0.001)  # of the compression where it finds its own
_SHARE = 4  # of the iterations that are left, for a compression that may have to be closer
_TOO_MUCH = 1.0  # of the margin: with more, it is tried whatever it costs
_ENOUGH = 0.3  # of the margin: by how much values may differ from exact ones
_LOW_RANK = 0.5  # of a leaf's rows
_POLISH = Options(tol=1e-3, conjugate=True, shrinking=True, max_iter=-1, verbose=False)
_POLISH_MEGABYTES = 200.0


class Part(NamedTuple):
    """What one machine learns from the rows that count."""

    weights: np.ndarray
    """float64 [n]: of their bounds."""
    positive: np.ndarray | None
    """bool [n]: which are on its positive side; None: regression."""


class _Found:
    """What was found for each of some problems: a column of ``b``, or a number."""

    def __init__(self, n: int, problems: int) -> None:
        self.b, self.multipliers = np.zeros((n, problems)), np.zeros((n, problems))
        self.bias, self.beta, self.primal, self.dual, self.gap = (np.zeros(problems) for _ in range(5))
        self.n_iter = np.zeros(problems, np.int64)
        self.residual = np.full(problems, np.inf)
        """What is to be at most ``tol``."""
        self.polish_gap = np.zeros(problems)
        self.shift, self.off = np.zeros(problems), np.zeros(problems)
        """What exact expansions, with which predictions are made, want added to the bias, and what they differ by then."""
        self.compressions: dict[int, tuple[float, np.ndarray, int]] = {}
        """Of the matrix with which each was found: error, ranks and bytes."""
        self.unit = 1.0
        """The margin, or what counts as one."""
        self.interrupted = False

    def put(self, which: np.ndarray, K: HSSMatrix, solution: ADMMSolution, comparison: tuple[np.ndarray, np.ndarray]) -> None:
        self.b[:, which], self.multipliers[:, which] = solution.b, solution.multipliers
        self.bias[which], self.beta[which] = solution.bias, solution.beta
        self.primal[which], self.dual[which], self.gap[which] = solution.primal, solution.dual, solution.gap
        self.residual[which] = solution.residual
        self.shift[which], self.off[which] = comparison
        self.compressions.update(dict.fromkeys(which.tolist(), (K.error, K.ranks, K.nbytes)))
        self.n_iter[which] += solution.n_iter
        self.interrupted = solution.interrupted


class HSSADMM(KernelMachine):
    """What the classifier and the regressor share."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from all rows. What is refused with a ValueError leaves the model as it was.

        Parameters
        ----------
        X
            Array or sparse matrix [n, features]; a sparse one is made dense.
        y
            Labels or targets [n].
        sample_weight
            Numbers of at least 0, [n]; None: all 1.
        """
        return self._fit_path([self], X, y, [self.C], sample_weight)[0]

    def fit_path(self, X: Any, y: Any, Cs: Sequence[float], sample_weight: Any = None) -> list[Self]:
        """Models for several values of C. They share one compression, or a closer one where values ask for it, and
        factorisations: iterations go on until the last of them has ended, with a beta that follows the slowest.

        Parameters
        ----------
        X, y, sample_weight
            As of `fit`.
        Cs
            Numbers above 0.

        Returns
        -------
        list
            A fitted model with each of ``Cs`` in place of C. This one stays as it was. An interrupt leaves none.
        """
        models = self._models(Cs)
        return models[0]._fit_path(models, X, y, [model.C for model in models], sample_weight)

    def _fit_path(self, models: list[Self], X: Any, y: Any, Cs: list[float], sample_weight: Any) -> list[Self]:
        # Fit each of the models, of which this is the first one, with its C.
        with self._all_or_nothing():
            self._check(Cs)
            X, y = validate_data(
                self, X, y, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, y_numeric=is_regressor(self)
            )
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            counted = self._begin(X, weights)
            targets, parts = self._parts(y, weights, counted)
            for C in Cs:
                check_bounds(C * np.concatenate([part.weights for part in parts]))
            groups = Groups(self._dense(X), counted, targets)
            K = self._compressed(groups)
            units = [groups.bounds(*part) for part in parts]
            bounds = [Bounds(*(C * side for side in unit)) for C in Cs for unit in units]
            found = self._solved(K, groups, Bounds(*(np.column_stack(sides) for sides in zip(*bounds, strict=True))))
            interrupted = found.interrupted
            if self.beta != "paper":
                found.bias += found.shift
            if self.polish and not interrupted:
                interrupted = self._polished(groups, bounds, found)
            parameters = self.get_params(deep=False)
            fitted = {name: value for name, value in self.__dict__.items() if name not in parameters}
            for k, (model, C) in enumerate(zip(models, Cs, strict=True)):
                if model is not self:
                    model.__dict__.update(deepcopy(fitted))
                coefficients, columns = np.zeros((len(parts), len(weights))), np.arange(k * len(parts), (k + 1) * len(parts))
                for machine, (part, column) in enumerate(zip(parts, columns, strict=True)):
                    coefficients[machine, counted] = groups.coefficients(found.b[:, column], C * part.weights, part.positive)
                model._keep(X, coefficients, found.bias[columns], np.flatnonzero(coefficients.any(axis=0)))
                model._report(found, columns)
        if interrupted:
            raise KeyboardInterrupt
        self._warn(found, Cs)
        return models

    def _warn(self, found: _Found, Cs: list[float]) -> None:
        of = np.repeat(Cs, len(found.bias) // len(Cs))
        if self.polish:
            worst = int(found.polish_gap.argmax())
            if (gap := found.polish_gap[worst]) > _POLISH.tol:
                message = f"the polish for C={of[worst]:g} ended with a gap of {gap:.3g}, above {_POLISH.tol:g}"
                warn(f"{message}: scale the features", ConvergenceWarning)
            return
        if self.beta == "paper":
            return
        worst = int(found.residual.argmax())
        if found.residual[worst] > self.tol:
            warn(
                f"{type(self).__name__} ended for C={of[worst]:g} after {found.n_iter[worst]} iterations with relative residuals "
                f"of {found.primal[worst]:.1e} and {found.dual[worst]:.1e}, above tol={self.tol:g}, or a gap of "
                f"{found.gap[worst]:.1e}, above {GAP * self.tol:g}: raise max_iter or tol",
                ConvergenceWarning,
            )
        worst = int(found.off.argmax())
        if self.rel_tol == "auto" and found.off[worst] > _TOO_MUCH * found.unit:
            message = f"values of the model for C={of[worst]:g} differ from exact ones by {found.off[worst]:.2g}"
            warn(f"{message}, as the matrix is compressed: lower rel_tol, or polish", ConvergenceWarning)

    def _check(self, Cs: Sequence[float]) -> None:
        for C in Cs:
            check_number("C", C, 0.0)
        check_kernel(self)
        if self.memory_limit is not None:
            check_number("memory_limit", self.memory_limit, 0.0)
        if isinstance(self.rel_tol, str):
            check_one_of("rel_tol", self.rel_tol, ("auto",))
        if isinstance(self.beta, str):
            check_one_of("beta", self.beta, ("balanced", "paper"))
        else:
            check_number("beta", self.beta, 0.0)
        check_number("relaxation", self.relaxation, 0.0)
        if self.relaxation >= 2.0:
            raise ValueError(f"relaxation must be below 2, not {self.relaxation!r}")
        check_number("tol", self.tol, 0.0, inclusive=True)
        check_number("max_iter", self.max_iter, 1, inclusive=True, integer=True)

    @property
    def _width(self) -> float | None:
        # Of the band of errors that cost nothing; None of classification.
        return None

    def _parts(self, y: Any, weights: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray | None, list[Part]]:
        # The targets of rows that count, and what the machines learn of them.
        raise NotImplementedError

    @property
    def _tolerances(self) -> tuple[float, ...]:
        if self.rel_tol != "auto":
            return (self.rel_tol,)
        return _TOLERANCES[:1] if self.beta == "paper" else _TOLERANCES

    def _solved(self, K: HSSMatrix, groups: Groups, bounds: Bounds) -> _Found:
        # With a closer compression for those whose values ask for one: if they are far off, or if it costs little.
        width = 1.0 if self._width is None else self._width
        found = _Found(*bounds.lower.shape)
        found.unit = 1.0 if self._width is None else max(self._width, 0.1 * float(groups.targets.std()))
        asking, start, beta, closer = np.arange(bounds.lower.shape[1]), None, None, list(self._tolerances[1:])
        try:
            while left := int(self.max_iter - found.n_iter[asking].max()):
                own = Bounds(*(side[:, asking] for side in bounds))
                # On a compression that is to be replaced, it need not go on to the end.
                options = self._admm_options(len(groups), K, beta, -(-left // _SHARE) if closer else left)
                solution = admm(K, groups.targets, width, own, options, start)
                regression = self._width is not None
                comparison = compared(K, groups.targets, solution.b, solution.bias, own, width, regression=regression)
                found.put(asking, K, solution, comparison)
                enough = _TOO_MUCH if K.ranks.max(initial=0) > _LOW_RANK * self.leaf_size else _ENOUGH
                far, slow = found.off > enough * found.unit, found.residual > self.tol
                if solution.interrupted or self.beta == "paper" or not (slow.any() or (far.any() and closer)):
                    break
                if far.any() and closer:
                    K = K.closer(closer.pop(0), self.abs_tol)
                    if not K.reached:
                        closer = []  # nor will a smaller one be
                    asking = np.flatnonzero(far | slow)
                else:
                    asking, closer = np.flatnonzero(slow), []
                start, beta = (found.b[:, asking], found.multipliers[:, asking]), solution.beta
        except KeyboardInterrupt:
            if not found.n_iter.all():
                raise
            found.interrupted = True  # while the next ones were prepared: those before are kept
        return found

    def _polished(self, groups: Groups, bounds: list[Bounds], found: _Found) -> bool:
        # Whether the user asked to stop.
        problem = problem_of(groups, bounds[0], self._kernel, self._width)
        buffer = column_buffer(_POLISH_MEGABYTES, len(groups))
        for column, own in enumerate(bounds):
            options = replace(_POLISH, verbose=bool(self.verbose))
            exact = solve_exactly(replace(problem, **own._asdict()), found.b[:, column], options, buffer)
            found.b[:, column], found.bias[column], found.polish_gap[column] = exact.b, exact.bias, exact.gap
            if exact.interrupted:
                return True
        return False

    def _compressed(self, groups: Groups) -> HSSMatrix:
        kernel = self._kernel
        K = HSSMatrix.compress(
            groups.rows(),
            kernel=self.kernel,
            gamma=kernel.gamma,
            degree=kernel.degree,
            coef0=kernel.coef0,
            rel_tol=self._tolerances[0],
            abs_tol=self.abs_tol,
            max_rank=self.max_rank,
            n_neighbors=self.n_neighbors,
            leaf_size=self.leaf_size,
            zero_sum=True,
            memory_limit=self.memory_limit,
            seed=seed_of(self.random_state),
            verbose=bool(self.verbose),
        )
        if not K.largest_diagonal < LARGEST_KERNEL:
            raise ValueError("X has values that are too large for this kernel: scale its features")
        return K

    def _dense(self, X: Any) -> np.ndarray:
        if not sparse.issparse(X):
            return X
        values = float(X.shape[0]) * X.shape[1]
        if self.memory_limit is not None and 8.0 * values > self.memory_limit:
            raise ValueError(f"memory_limit={self.memory_limit:,.0f} bytes, and a sparse X takes {8.0 * values:,.0f} as an array")
        if values > _LARGEST_DENSE:
            raise ValueError(f"a sparse X of shape {X.shape} is too large to be made dense: project its features to fewer")
        return np.asarray(X.toarray())

    def _admm_options(self, n: int, K: HSSMatrix, beta: float | None, max_iter: int) -> ADMMOptions:
        # ``beta``: where another run ended, if there was one.
        if self.beta == "paper":
            return ADMMOptions(1e2 if n < 10**5 else 1e3 if n < 10**6 else 1e4, False, 1.0, 0.0, _PAPER_STEPS, bool(self.verbose))
        balance = self.beta == "balanced"
        if beta is None:
            beta = _FIRST_BETA * (K.largest_diagonal or 1.0) if balance else float(self.beta)
        return ADMMOptions(beta, balance, float(self.relaxation), float(self.tol), max_iter, bool(self.verbose))

    def _report(self, found: _Found, columns: np.ndarray) -> None:
        worst = int(columns[found.off[columns].argmax()])
        self.n_iter_ = int(found.n_iter[columns].max())
        self.beta_ = float(found.beta[columns].max())
        self.primal_residual_ = float(found.primal[columns].max())
        self.dual_residual_ = float(found.dual[columns].max())
        self.gap_ = float(found.gap[columns].max())
        self.value_error_ = float(found.off[worst])
        self.compression_error_, self.ranks_, self.compressed_nbytes_ = found.compressions[worst]
