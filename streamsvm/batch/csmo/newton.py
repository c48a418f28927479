"""Newton steps of the exact solver: linear equations for all variables between their bounds at once.

SMO steps soon find which variables end between their bounds. If C is large, they then converge slowly, although these variables
are few and their equations can be solved quickly.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from scipy.linalg import LinAlgError, cho_factor, cho_solve

from streamsvm.batch.csmo.small import RIDGE
from streamsvm.batch.csmo.state import SolverState
from streamsvm.batch.csmo.steps import WorkingSet
from streamsvm.batch.csmo.values import compute_kernel_values
from streamsvm.core.threads import raise_if_stopped

_MAX_EQUATIONS = 3000
_MEMORY_SHARE = 0.2  # of the memory for the cache that the matrix of the equations may take in addition
_MAX_STOPS = 50  # variables that may reach a bound in one Newton step
_SOLVED_TOGETHER = 32  # columns of the inverse that are solved for at a time, for the variables that may reach a bound next
_BOUNDED_SHARE = 0.25  # bounded variables that may move, relative to the number of free ones
_VIOLATION_SHARE = 0.5  # a bounded variable moves only if its violation exceeds this share of the largest one
_MAX_GAP_FACTOR = 300.0  # Newton steps begin when the gap is below this times the tolerance
_MAX_EXACT_STEPS = 200
_RIDGE_SHARE = 0.1  # of the tolerance: the largest error of slopes that the ridge may cause
# Operations of SMO steps that take as long as a Newton step for m variables, for each m^3 and m^2.
_OPERATIONS_PER_CUBE, _OPERATIONS_PER_SQUARE = 1 / 40, 30.0
# A Newton step is due after SMO steps have taken this share of its time; the share doubles each time that it fails.
_PATIENCE = 0.25


class NewtonSteps:
    """Decides when a Newton step between SMO steps is worth its time, and runs it."""

    def __init__(self, tol: float) -> None:
        self._tol, self._patience = tol, _PATIENCE
        self.spent: float = 0.0  # operations of the SMO steps since the last Newton step

    def run_if_due(self, state: SolverState) -> None:
        """Run a Newton step on the solver's current solution if it will probably save time: the SMO steps (steps on pairs of
        variables) since the last Newton step took long enough, the solution is near the optimum, and few variables are strictly
        between their bounds.
        """
        rises, falls, gap = state.compute_slopes()
        m = int(np.count_nonzero(rises == falls))
        cost = self._patience * (_OPERATIONS_PER_CUBE * m**3 + _OPERATIONS_PER_SQUARE * m**2)
        if gap > _MAX_GAP_FACTOR * self._tol or not 2 <= m <= _find_max_equations(state) or self.spent < cost:
            return
        self.spent = 0.0
        run_newton_step(state, _RIDGE_SHARE * self._tol, is_exact=state.is_float64)
        self._patience = _PATIENCE if state.compute_slopes()[2] < 0.5 * gap else 2.0 * self._patience


def _find_max_equations(state: SolverState) -> int:
    """Return the largest number of variables for which a Newton step may store the matrix of its equations, given the solver's
    memory limit.
    """
    return min(_MAX_EQUATIONS, math.isqrt(int(_MEMORY_SHARE * state.memory) // 8))


def run_newton_step(state: SolverState, slope_error: float, is_exact: bool) -> bool:
    """Run a Newton step of the dual problem on all variables strictly between their bounds and a few at a bound. Update the
    solver's ``state`` if the step lowers the objective, and return whether it does. ``slope_error`` is the tolerance of the
    slopes; if ``is_exact``, the gradient is updated in float64.

    The slopes at the solution are 0 up to ``slope_error``. If ``is_exact``, the gradient is updated in float64. O(m^3) for m
    variables, plus O(m^2) for each that reaches a bound, and O(n m d).
    """
    a, movable = state.working, _find_movable_variables(state)
    K = compute_kernel_matrix(state, state.which[movable.which])
    change = _solve_newton_equations(K, state, movable, slope_error)
    gradient, add_change = a.gradient.copy(), state.add_change_exactly if is_exact else state.add_change
    add_change(change, state.which[movable.which], state.which, gradient)
    # The objective may rise if rounding errors dominate the equations.
    is_better = bool(change @ (movable.slopes + 0.5 * (gradient - a.gradient)[movable.which]) < 0.0)
    if is_better:
        state.working = a._replace(b=_apply_change(a, movable, change), gradient=gradient)
    return is_better


def run_exact_steps(state: SolverState, gap: float, tol: float) -> float:
    """Run Newton steps in float64 on the solver's ``state`` until the gap (the violation of the optimality conditions, now
    ``gap``) is at most ``tol``, or a step does not lower the objective. Return the remaining gap. It is used when float32 is too
    inaccurate.

    All rows must be in the working set. O(n m d + m^3) for each step that moves m of n variables.
    """
    state.working = state.working._replace(gradient=state.compute_exact_gradient(state.which))
    for _ in range(_MAX_EXACT_STEPS):
        raise_if_stopped()
        rises, falls, _ = state.compute_slopes()
        m = np.count_nonzero(rises == falls)
        if gap <= tol or not 2 <= m <= _find_max_equations(state) or not run_newton_step(state, 0.0, is_exact=True):
            break
        gap = state.compute_slopes()[2]
    return state.check_gap()


def _solve_newton_equations(K: np.ndarray, state: SolverState, movable: _MovableVariables, slope_error: float) -> np.ndarray:
    """Return the changes of the m ``movable`` variables in a Newton step, float64 [m], or zeros if their kernel matrix ``K`` [m,
    m] is not positive definite. A ridge is added to K, which is overwritten; ``slope_error`` is the error of the slopes that the
    ridge may cause.
    """
    K[np.diag_indices(len(K))] += RIDGE * K.diagonal().mean() + slope_error / state.problem.largest_bound
    try:
        change = _minimise_model(cho_factor(K.T, lower=True, overwrite_a=True, check_finite=False), movable)
    except LinAlgError:  # the kernel is not positive definite
        return np.zeros(len(K))
    return change if np.isfinite(change).all() else np.zeros(len(K))


def _apply_change(a: WorkingSet, movable: _MovableVariables, change: np.ndarray) -> np.ndarray:
    """Return the dual variables of the solution ``a``, float64 [n], after ``change`` [m] has been added to the m ``movable``
    ones. Variables that reach a bound, or a kink (where the slope of the objective jumps), are set exactly to it.
    """
    b = a.b.copy()
    b[movable.which] += change
    raised = movable.which[(change > 0.0) & (change == movable.max_change)]
    lowered = movable.which[(change < 0.0) & (change == movable.min_change)]
    b[raised] = np.where(a.b < a.kink, a.kink, a.upper)[raised]
    b[lowered] = np.where(a.b > a.kink, a.kink, a.lower)[lowered]
    return b


class _MovableVariables(NamedTuple):
    """m variables that a Newton step may move, and how far they are from the next bound or kink. Arrays [m], float64."""

    which: np.ndarray  # int64: their positions
    slopes: np.ndarray
    min_change: np.ndarray  # at most 0
    max_change: np.ndarray  # at least 0


def _find_movable_variables(state: SolverState) -> _MovableVariables:
    """Return the variables that the next Newton step may change, with their slopes and limits: all free ones (strictly between
    their bounds), and those at a bound or kink (a jump of the objective's slope) that violate the optimality conditions most.
    """
    a, (rises, falls, _) = state.working, state.compute_slopes()
    is_free = rises == falls
    middle, n_free = float(np.median(rises[is_free])), int(np.count_nonzero(is_free))
    n_bounded = min(int(_BOUNDED_SHARE * n_free), _find_max_equations(state) - n_free)
    to_rise, to_fall = np.where(is_free, 0.0, middle - rises), np.where(is_free, 0.0, falls - middle)
    violation = np.maximum(to_rise, to_fall)
    threshold = max(_VIOLATION_SHARE * violation.max(), np.partition(violation, -n_bounded - 1)[-n_bounded - 1], 0.0)
    rising, falling = to_rise > threshold, to_fall > threshold
    which = np.flatnonzero(is_free | rising | falling)
    b, kink = a.b[which], a.kink[which]
    min_change = np.where(b > kink, kink, a.lower[which]) - b
    max_change = np.where(b < kink, kink, a.upper[which]) - b
    min_change[rising[which]] = max_change[falling[which]] = 0.0
    return _MovableVariables(which, np.where(falling, falls, rises)[which], min_change, max_change)


def _minimise_model(factor: tuple[np.ndarray, bool], movable: _MovableVariables) -> np.ndarray:
    """Return changes of the m ``movable`` variables, float64 [m], with sum 0, that minimise the quadratic model of the dual
    objective within the limits of each variable. The search stops early, short of the minimum, if too many variables reach a
    limit. ``factor`` is the Cholesky factor of the Hessian.

    When a variable reaches its largest or smallest change, it stays there, and the other variables continue. With the Hessian H
    and the gradient g, each direction d minimises d'Hd / 2 + g'd subject to 1'd = 0, and is 0 for variables that stay: d = -z -
    Pμ, with z = H^-1 g and P = H^-1 B. The columns of B are 1, and the unit vectors of the variables that stay.
    """
    m = len(movable.which)
    max_stops = min(_MAX_STOPS, m - 1)
    x, stopped, is_unsolved = np.zeros(m), np.empty(max_stops, np.int64), np.ones(m, bool)
    inverse: dict[int, np.ndarray] = {}  # the columns of H^-1 that have been solved for
    z = cho_solve(factor, movable.slopes, check_finite=False)
    P, BP = np.empty((m, max_stops + 1), order="F"), np.empty((max_stops + 1, max_stops + 1))
    P[:, 0] = cho_solve(factor, np.ones(m), check_finite=False)
    for k in range(max_stops + 1):
        BP[0, k] = BP[k, 0] = P[:, k].sum()
        BP[1 : k + 1, k] = BP[k, 1 : k + 1] = P[stopped[:k], k]
        d = -z - P[:, : k + 1] @ np.linalg.solve(BP[: k + 1, : k + 1], np.append(-z.sum(), -z[stopped[:k]]))
        d[stopped[:k]] = 0.0
        moving = np.flatnonzero(d)
        d[moving] -= d.sum() / max(len(moving), 1)  # the sum is not 0 because of rounding errors
        moving = np.flatnonzero(d)
        steps = (np.where(d > 0.0, movable.max_change, movable.min_change) - x)[moving] / d[moving]
        step = min(max(steps.min(initial=1.0), 0.0), 1.0)
        x += step * d
        z += step * d
        if step == 1.0 or k == max_stops:
            break
        i = moving[steps.argmin()]
        x[i] = movable.max_change[i] if d[i] > 0.0 else movable.min_change[i]
        stopped[k] = i
        if is_unsolved[i]:
            is_unsolved[i], candidates = False, moving[np.argsort(steps)]
            solved = np.append(i, candidates[is_unsolved[candidates]][: _SOLVED_TOGETHER - 1])
            units, is_unsolved[solved] = np.zeros((m, len(solved)), order="F"), False
            units[solved, np.arange(len(solved))] = 1.0
            columns = cho_solve(factor, units, overwrite_b=True, check_finite=False)
            inverse |= dict(zip(solved.tolist(), columns.T, strict=True))
        P[:, k + 1] = inverse[int(i)]
    return x


def compute_kernel_matrix(state: SolverState, which: np.ndarray) -> np.ndarray:
    """Return the kernel values of training rows with each other, float64 [m, m], for the rows at the positions ``which`` int64
    [m].
    """
    p = state.problem
    if p.precomputed is not None:
        return p.precomputed.gather_values(which, which)
    rows = p.rows[which]
    return compute_kernel_values(rows, rows, p.kernel)
