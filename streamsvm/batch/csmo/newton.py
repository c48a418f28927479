"""Newton steps: all variables between their bounds at once, by linear equations.

Steps along pairs soon find which variables end between their bounds. Where C is large, they then take long: the valley is long,
but these variables are few, and their equations cost little.
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

_MOST = 3000  # variables whose equations are solved
_MEMORY = 0.2  # of that of the cache, which their matrix may take, too
_STOPS = 50  # variables that may reach a bound in one Newton step
_TOGETHER = 32  # of those that may be next
_SHARE = 0.25  # of the variables between bounds: so many of the others may move, too
_WORST = 0.5  # of the worst violation, above which one of them does
_NEAR = 300.0  # times the tolerance, which the gap has to be below
_ROUNDS = 200  # of steps in float64, at most
_BLUR = 0.1  # of the tolerance, by which the ridge may blur slopes
_CUBE, _SQUARE = 1 / 40, 30.0  # operations of steps along pairs that take as long, for each m^3 and m^2 of m variables
_PATIENCE = 0.25  # of the time of a Newton step, which others take before it is due; doubled each time that it fails


class NewtonSteps:
    """Newton steps among others, where they are worth their time."""

    def __init__(self, tol: float) -> None:
        self._tol, self._patience = tol, _PATIENCE
        self.spent: float = 0.0  # operations of the steps in between

    def run_if_due(self, state: SolverState) -> None:
        """Do a Newton step if it is due after other steps."""
        rises, falls, gap = state.compute_slopes()
        free = int(np.count_nonzero(rises == falls))
        wait = self._patience * (_CUBE * free**3 + _SQUARE * free**2)
        if gap > _NEAR * self._tol or not 2 <= free <= _find_max_equations(state) or self.spent < wait:
            return
        self.spent = 0.0
        run_newton_step(state, _BLUR * self._tol, exactly=state.is_float64)
        self._patience = _PATIENCE if state.compute_slopes()[2] < 0.5 * gap else 2.0 * self._patience


def _find_max_equations(state: SolverState) -> int:
    """Return of how many variables the equations may be."""
    return min(_MOST, math.isqrt(int(_MEMORY * state.memory) // 8))


def run_newton_step(state: SolverState, blur: float, exactly: bool) -> bool:
    """Move variables between their bounds, and some others, to the minimum or towards it; return whether that gains anything.

    Slopes at the minimum are 0 to ``blur``; ``exactly``: gradients take the changes in float64. For m variables, O(m^3), O(m^2)
    for each that reaches a bound, and O(n m d).
    """
    a, room = state.working, _find_movable_variables(state)
    change = _solve_newton_equations(compute_kernel_matrix(state, state.which[room.which]), state, room, blur)
    gradient, add = a.gradient.copy(), state.add_change_exactly if exactly else state.add_change
    add(change, state.which[room.which], state.which, gradient)
    gains = bool(change @ (room.slopes + 0.5 * (gradient - a.gradient)[room.which]) < 0.0)  # else rounding decides the equations
    if gains:
        state.working = a._replace(b=_apply_change(a, room, change), gradient=gradient)
    return gains


def run_exact_steps(state: SolverState, gap: float, tol: float) -> float:
    """Do Newton steps in float64 alone, where float32 does not suffice, as long as they gain; return the gap then.

    All rows must be in the working set. For m of n variables that move, O(n m d + m^3) a step.
    """
    state.working = state.working._replace(gradient=state.exact_gradient(state.which))
    for _ in range(_ROUNDS):
        raise_if_stopped()
        rises, falls, _ = state.compute_slopes()
        free = np.count_nonzero(rises == falls)
        if gap <= tol or not 2 <= free <= _find_max_equations(state) or not run_newton_step(state, 0.0, exactly=True):
            break
        gap = state.compute_slopes()[2]
    return state.check_gap()


def _solve_newton_equations(M: np.ndarray, state: SolverState, room: _MovableVariables, blur: float) -> np.ndarray:
    """Return the changes of the variables that may move, float64 [m]; 0 where there are none. Destroys their kernel matrix M."""
    M[np.diag_indices(len(M))] += RIDGE * M.diagonal().mean() + blur / state.problem.largest_bound
    try:
        change = _minimise_model(cho_factor(M.T, lower=True, overwrite_a=True, check_finite=False), room)
    except LinAlgError:  # the kernel is not positive definite
        return np.zeros(len(M))
    return change if np.isfinite(change).all() else np.zeros(len(M))


def _apply_change(a: WorkingSet, room: _MovableVariables, change: np.ndarray) -> np.ndarray:
    """Return the variables after the change, exactly on the bounds and kinks that they reach."""
    b = a.b.copy()
    b[room.which] += change
    risen = room.which[(change > 0.0) & (change == room.up)]
    fallen = room.which[(change < 0.0) & (change == room.down)]
    b[risen] = np.where(a.b < a.kink, a.kink, a.upper)[risen]
    b[fallen] = np.where(a.b > a.kink, a.kink, a.lower)[fallen]
    return b


class _MovableVariables(NamedTuple):
    """m variables that may move: their places, their slopes float64 [m], and by how much they may change, float64 [m]."""

    which: np.ndarray
    slopes: np.ndarray
    down: np.ndarray
    up: np.ndarray


def _find_movable_variables(state: SolverState) -> _MovableVariables:
    """Return the variables between their bounds, and those at a bound or kink that violate optimality most."""
    a, (rises, falls, _) = state.working, state.compute_slopes()
    free = rises == falls
    middle, some = float(np.median(rises[free])), int(np.count_nonzero(free))
    most = min(int(_SHARE * some), _find_max_equations(state) - some)
    to_rise, to_fall = np.where(free, 0.0, middle - rises), np.where(free, 0.0, falls - middle)
    violation = np.maximum(to_rise, to_fall)
    least = max(_WORST * violation.max(), np.partition(violation, -most - 1)[-most - 1], 0.0)
    rising, falling = to_rise > least, to_fall > least
    which = np.flatnonzero(free | rising | falling)
    b, kink = a.b[which], a.kink[which]
    down = np.where(b > kink, kink, a.lower[which]) - b
    up = np.where(b < kink, kink, a.upper[which]) - b
    down[rising[which]] = up[falling[which]] = 0.0
    return _MovableVariables(which, np.where(falling, falls, rises)[which], down, up)


def _minimise_model(factor: tuple[np.ndarray, bool], room: _MovableVariables) -> np.ndarray:
    """Return the changes of m variables, float64 [m], whose sum is 0: down to the minimum of the quadratic model.

    Where a variable reaches the end of its room on the way, it stays there, and the way goes on without it. ``factor`` is the
    Cholesky factor of the Hessian H. With the gradient g, each direction d minimises d'Hd / 2 + g'd where 1'd = 0, and d is 0 in
    variables that stay: d = -z - Pμ, with z = H^-1 g and P = H^-1 B. The columns of B are 1, and the units of these variables.
    """
    m = len(room.which)
    most = min(_STOPS, m - 1)
    x, stopped, absent = np.zeros(m), np.empty(most, np.int64), np.ones(m, bool)
    inverse: dict[int, np.ndarray] = {}  # columns of H^-1, which are solved for together
    z = cho_solve(factor, room.slopes, check_finite=False)
    P, BP = np.empty((m, most + 1), order="F"), np.empty((most + 1, most + 1))
    P[:, 0] = cho_solve(factor, np.ones(m), check_finite=False)
    for k in range(most + 1):
        BP[0, k] = BP[k, 0] = P[:, k].sum()
        BP[1 : k + 1, k] = BP[k, 1 : k + 1] = P[stopped[:k], k]
        d = -z - P[:, : k + 1] @ np.linalg.solve(BP[: k + 1, : k + 1], np.append(-z.sum(), -z[stopped[:k]]))
        d[stopped[:k]] = 0.0
        moves = np.flatnonzero(d)
        d[moves] -= d.sum() / max(len(moves), 1)  # it rounds
        moves = np.flatnonzero(d)
        steps = (np.where(d > 0.0, room.up, room.down) - x)[moves] / d[moves]
        step = min(max(steps.min(initial=1.0), 0.0), 1.0)
        x += step * d
        z += step * d
        if step == 1.0 or k == most:
            break
        i = moves[steps.argmin()]
        x[i] = room.up[i] if d[i] > 0.0 else room.down[i]
        stopped[k] = i
        if absent[i]:
            absent[i], others = False, moves[np.argsort(steps)]
            some = np.append(i, others[absent[others]][: _TOGETHER - 1])
            units, absent[some] = np.zeros((m, len(some)), order="F"), False
            units[some, np.arange(len(some))] = 1.0
            columns = cho_solve(factor, units, overwrite_b=True, check_finite=False)
            inverse |= dict(zip(some.tolist(), columns.T, strict=True))
        P[:, k + 1] = inverse[int(i)]
    return x


def compute_kernel_matrix(state: SolverState, which: np.ndarray) -> np.ndarray:
    """Return the kernel values of some rows with each other, float64 [m, m]."""
    p = state.problem
    if p.precomputed is not None:
        return p.precomputed.gather_values(which, which)
    rows = p.rows[which]
    return compute_kernel_values(rows, rows, p.kernel)
