"""The fit of kernel machines by conjugate SMO."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any, Self

import numpy as np
from sklearn.base import is_classifier
from sklearn.exceptions import ConvergenceWarning

from streamsvm._warnings import warn
from streamsvm.batch.csmo.problem import problem_of, quickest_form
from streamsvm.batch.csmo.solver import Options, Solution, column_buffer, solve
from streamsvm.batch.kernel_machine import KernelMachine, Training
from streamsvm.batch.problem import Groups, check_bounds
from streamsvm.checks import parameter

__all__ = ["CSMO"]


@dataclass(eq=False, repr=False, kw_only=True)
class CSMO(KernelMachine):
    """The fit that `CSMOClassifier` and `CSMORegressor` share: one machine for each pair of classes, or one for regression."""

    tol: float = parameter(default=1e-3, above=0.0)
    cache_size: float = parameter(default=200, above=0.0)
    conjugate: bool = True
    shrinking: bool = True
    max_iter: int = parameter(default=-1, least=-1, integer=True)
    verbose: bool = False

    def fit(self, X: Any, y: Any, sample_weight: Any = None, dual_coef_init: Any = None) -> Self:
        """Learn from all rows. A fit that raises a ValueError leaves the model as it was.

        Parameters
        ----------
        X
            Array or sparse matrix [n, features].
        y
            Labels or targets [n].
        sample_weight
            Numbers of at least 0, [n]; None: all 1.
        dual_coef_init
            Dual coefficients to start from, y_i alpha_i or b_i, float64 [n]; for at most two classes. They are clipped to the
            bounds, and those of the sign that outweighs the other are scaled to make the sum zero. None: 0.

        Returns
        -------
        The estimator.

        Raises
        ------
        ValueError
            A parameter is out of its range, or X, y or a weight cannot be learned.
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
        self._check_parameters([self.C])
        training = self._training(X, y, sample_weight)
        n, counted = len(training.weights), training.counted
        machines = _machines(training)
        start = _checked_start(dual_coef_init, n, len(machines))
        C = self.C * training.weights
        check_bounds(C[counted])
        rows = quickest_form(training.X, self._kernel)
        options = Options(float(self.tol), self.conjugate, self.shrinking, int(self.max_iter), bool(self.verbose))
        buffer = column_buffer(self.cache_size, max(len(which) for which, _ in machines))
        coefficients, solutions = np.zeros((len(machines), n)), []
        for k, (which, positive) in enumerate(machines):
            groups = Groups(rows, which, None if training.targets is None else training.targets[which])
            problem = problem_of(groups, groups.bounds(C[which], positive), self._kernel, self._epsilon)
            solution = solve(problem, None if start is None else groups.sums(start[which]), options, buffer)
            solutions.append(solution)
            coefficients[k, which] = groups.coefficients(solution.b, C[which], positive)
            if solution.interrupted:
                never_begun = solution._replace(bias=0.0, n_iter=0, gap=np.inf, objective=0.0, primal=np.inf)
                solutions.extend([never_begun] * (len(machines) - len(solutions)))
                break
        n_iter = [solution.n_iter for solution in solutions]
        self.n_iter_ = np.array(n_iter) if is_classifier(self) else n_iter[0]
        support = self._ordered(np.flatnonzero(coefficients.any(axis=0)), training)
        self._set_solution(training.X, coefficients, np.array([solution.bias for solution in solutions]), support)
        return solutions

    def _ordered(self, support: np.ndarray, training: Training) -> np.ndarray:  # noqa: ARG002
        """Return the numbers of the support vectors in the order in which the model has them."""
        return support


def _machines(training: Training) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Return the rows of each machine, int64 [m], and which of them are of its positive class, bool [m]; None: regression."""
    counted = training.counted
    if training.labels is None:
        return [(counted, None)]
    machines: list[tuple[np.ndarray, np.ndarray | None]] = []
    labels = training.labels[counted]
    for first, second in combinations(range(int(labels.max()) + 1), 2):
        either = np.flatnonzero((labels == first) | (labels == second))
        machines.append((counted[either], labels[either] == second))
    return machines


def _checked_start(start: Any, n: int, machines: int) -> np.ndarray | None:
    if start is None:
        return None
    if machines > 1:
        raise ValueError("dual_coef_init is for two classes")
    start = np.asarray(start, np.float64)
    if start.shape != (n,) or not np.isfinite(start).all():
        raise ValueError(f"dual_coef_init must be {n} finite numbers, one a row of X")
    return start
