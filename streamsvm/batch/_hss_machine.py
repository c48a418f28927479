"""What the machines by ADMM on a compressed kernel matrix share."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.base import clone, is_regressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamsvm.batch._admm import ADMMOptions, ADMMSolution, admm
from streamsvm.batch._prepare import Bounds, Groups, check_bounds, check_kernel, problem_of
from streamsvm.batch._solver import Options
from streamsvm.batch.machine import KernelMachine, column_buffer, solve_exactly
from streamsvm.hss import HSSMatrix
from streamsvm.learners._inputs import check_number, check_one_of

__all__ = ["HSSADMM", "Part"]

_FIRST_BETA = 5.0  # times the largest value on the diagonal; from there it follows the residuals
_PAPER_STEPS = 11  # its loop runs from 0 to 10
_LARGEST_DENSE = 1e9  # values
_DIFFERENCE_ROWS = 256
_TOLERANCES = (0.3, 0.1, 0.03, 0.01, 0.003)  # of the compression where it finds its own
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
        self.bias, self.beta, self.primal, self.dual = (np.zeros(problems) for _ in range(4))
        self.n_iter = np.zeros(problems, np.int64)
        self.mean, self.deviation = np.zeros(problems), np.zeros(problems)
        """Of what the compressed expansions say more than the exact ones, with which predictions are made, at the margin."""
        self.compressed: dict[int, HSSMatrix] = {}
        """The matrix with which each was found."""
        self.interrupted = False

    def put(self, which: np.ndarray, K: HSSMatrix, solution: ADMMSolution, bounds: Bounds) -> None:
        self.b[:, which], self.multipliers[:, which] = solution.b, solution.multipliers
        self.bias[which], self.beta[which] = solution.bias, solution.beta
        self.primal[which], self.dual[which] = solution.primal, solution.dual
        self.n_iter[which] += solution.n_iter
        self.mean[which], self.deviation[which] = _differences(K, solution.b, bounds)
        self.compressed.update(dict.fromkeys(which.tolist(), K))
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
        """Models with each of ``Cs`` in place of C. They share one compression, and each factorisation."""
        models = [clone(self).set_params(C=C) for C in Cs]
        if not models:
            raise ValueError("Cs must name at least one C")
        return models[0]._fit_path(models, X, y, list(Cs), sample_weight)

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
            groups = Groups(_dense(X), counted, targets)
            K = self._compressed(groups)
            units = [groups.bounds(*part) for part in parts]
            bounds = [Bounds(*(C * side for side in unit)) for C in Cs for unit in units]
            found = self._solved(K, groups, Bounds(*(np.column_stack(sides) for sides in zip(*bounds, strict=True))))
            interrupted = found.interrupted
            if self._width is not None:
                found.bias += found.mean
            if self.polish and not interrupted:
                interrupted = self._polished(groups, bounds, found)
            for k, (model, C) in enumerate(zip(models, Cs, strict=True)):
                model.__dict__.update(self.__dict__ if model is not self else {})
                model.C = C
                coefficients, columns = np.zeros((len(parts), len(weights))), np.arange(k * len(parts), (k + 1) * len(parts))
                for machine, (part, column) in enumerate(zip(parts, columns, strict=True)):
                    coefficients[machine, counted] = groups.coefficients(found.b[:, column], C * part.weights, part.positive)
                model._keep(X, coefficients, found.bias[columns], np.flatnonzero(coefficients.any(axis=0)))
                model._report(found, columns)
        if interrupted:
            raise KeyboardInterrupt
        primal, dual = found.primal.max(), found.dual.max()
        if self.beta != "paper" and max(primal, dual) > self.tol:
            warnings.warn(
                f"{type(self).__name__} ended with relative residuals of {primal:.1e} and {dual:.1e}, above tol={self.tol:g}, "
                f"after {found.n_iter.max()} iterations: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        return models

    def _check(self, Cs: Sequence[float]) -> None:
        for C in Cs:
            check_number("C", C, 0.0)
        check_kernel(self)
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
        # With a closer compression for those whose values ask for one, where ranks are so small that it costs little.
        width, unit = (1.0, 1.0) if self._width is None else (self._width, max(self._width, 0.1 * float(groups.targets.std())))
        found = _Found(*bounds.lower.shape)
        asking, start, beta = np.arange(bounds.lower.shape[1]), None, None
        for tighter in (*self._tolerances[1:], None):
            own = Bounds(*(side[:, asking] for side in bounds))
            solution = admm(K, groups.targets, width, own, self._admm_options(len(groups), K, beta), start)
            found.put(asking, K, solution, own)
            asking = np.flatnonzero(found.deviation > _ENOUGH * unit)
            enough = not len(asking) or K.ranks.max(initial=0) > _LOW_RANK * self.leaf_size
            if tighter is None or enough or solution.interrupted:
                break
            K = K.closer(tighter, self.abs_tol)
            start, beta = (found.b[:, asking], found.multipliers[:, asking]), solution.beta
        return found

    def _polished(self, groups: Groups, bounds: list[Bounds], found: _Found) -> bool:
        # Whether the user asked to stop.
        problem = problem_of(groups, bounds[0], self._kernel, self._width)
        buffer = column_buffer(_POLISH_MEGABYTES, len(groups))
        for column, own in enumerate(bounds):
            exact = solve_exactly(replace(problem, **own._asdict()), found.b[:, column], _POLISH, buffer)
            found.b[:, column], found.bias[column] = exact.b, exact.bias
            if exact.interrupted:
                return True
        return False

    def _compressed(self, groups: Groups) -> HSSMatrix:
        kernel = self._kernel
        return HSSMatrix.compress(
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
            seed=self.random_state,
            verbose=bool(self.verbose),
        )

    def _admm_options(self, n: int, K: HSSMatrix, beta: float | None) -> ADMMOptions:
        # ``beta``: where another run ended, if there was one.
        if self.beta == "paper":
            return ADMMOptions(1e2 if n < 10**5 else 1e3 if n < 10**6 else 1e4, False, 1.0, 0.0, _PAPER_STEPS, bool(self.verbose))
        balance = self.beta == "balanced"
        if beta is None:
            beta = _FIRST_BETA * K.largest_diagonal if balance else float(self.beta)
        return ADMMOptions(beta, balance, float(self.relaxation), float(self.tol), int(self.max_iter), bool(self.verbose))

    def _report(self, found: _Found, columns: np.ndarray) -> None:
        K = found.compressed[int(columns[found.deviation[columns].argmax()])]
        self.n_iter_ = int(found.n_iter[columns].max())
        self.beta_ = float(found.beta[columns].max())
        self.primal_residual_ = float(found.primal[columns].max())
        self.dual_residual_ = float(found.dual[columns].max())
        self.compression_error_ = K.error
        self.value_error_ = float(found.deviation[columns].max())
        self.ranks_ = K.ranks
        self.compressed_nbytes_ = K.nbytes


def _dense(X: Any) -> np.ndarray:
    if not sparse.issparse(X):
        return X
    if X.shape[0] * X.shape[1] > _LARGEST_DENSE:
        raise ValueError(f"a sparse X of shape {X.shape} is too large to be made dense: project its features to fewer")
    return np.asarray(X.toarray())


def _differences(K: HSSMatrix, b: np.ndarray, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    # Mean and deviation of what K~ b is more than K b, of rows at the margin where there are any.
    mean, deviation, products = np.empty(b.shape[1]), np.empty(b.shape[1]), K @ b
    for k in range(b.shape[1]):
        of = b[:, k]
        rows = np.flatnonzero((of > bounds.lower[:, k]) & (of < bounds.upper[:, k]) & (of != bounds.kink[:, k]))
        if not len(rows):
            rows = np.arange(len(of))
        rows = rows[:: -(-len(rows) // _DIFFERENCE_ROWS)]
        difference = products[rows, k] - K.exact_product(rows, of)
        mean[k], deviation[k] = difference.mean(), difference.std()
    return mean, deviation
