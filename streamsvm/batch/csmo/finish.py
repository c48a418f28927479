"""The last digits of a small problem's solution, which do not depend on the steps that led to it."""

from __future__ import annotations

import numpy as np

from streamsvm.batch.csmo.newton import RIDGE, kernel_matrix
from streamsvm.batch.csmo.state import State

_ROWS = 500  # of a small problem
_FREE = 150  # variables between their bounds, for which the equations are solved


def finish(state: State, gap: float) -> float:
    """Solve for the variables that lie between their bounds, in float64, where the problem is small; return the gap then.

    Conditions of optimality are linear equations for them, if all others stay where they are. The solution is kept where the
    variables stay between their bounds, and objective and gap are smaller. All rows must be in the working set. For m of n
    variables, O(n m d + m^3).
    """
    a, n = state.working, len(state.b)
    rises, falls, _ = state.derivatives()
    free = np.flatnonzero(rises == falls)
    m = len(free)
    if n > _ROWS or not 0 < m <= _FREE:
        return gap
    slopes = state.exact_gradient(free) + (rises - a.gradient)[free]
    equations = np.ones((m + 1, m + 1))  # with the intercept, for the sum
    equations[:m, :m], equations[m, m] = kernel_matrix(state, free), 0.0
    equations[range(m), range(m)] += RIDGE * equations[:m, :m].diagonal().mean()
    try:
        change = np.linalg.solve(equations, np.append(-slopes, 0.0))[:m]
    except np.linalg.LinAlgError:
        return gap
    b = a.b.copy()
    b[free] += change
    inside = (b > a.lower) & (b < a.upper) & ((b > a.kink) == (a.b > a.kink))
    if not inside[free].all() or slopes @ change > 0.0:  # of a kernel like the sigmoid, it may be a maximum
        return gap
    gradient = a.gradient.copy()
    state.add(change, free, np.arange(n), gradient)
    state.working = a._replace(b=b, gradient=gradient)
    found = state.check()
    if found < gap:
        return found
    state.working = a
    return gap
