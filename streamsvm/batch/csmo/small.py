"""Small problems, whose kernel values in float64 are all there: a machine, or all those of one fit, in one compiled call.

With many classes there are hundreds of them, of some dozen rows each, which take less time than calls do.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.precomputed import gather_submatrix
from streamsvm.batch.csmo.steps import CHUNK, CONVERGED, SPREAD, Scratch, WorkingSet, run_steps, slope_downwards, slope_upwards
from streamsvm.batch.problem import distribute_coefficients
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

RIDGE = 1e-10  # of the mean self-kernel: of the solutions of equations that depend on each other, it takes one nearby
_STEP, _CUBE, _SQUARE, _LINEAR = 200, 0.1, 20.0, 2.0  # of the time of a step, its fixed part, and four times that of equations
_LANES = 16  # variables of a problem are a multiple of it, so that loops over them have no rest that is not SIMD code
PART = 0.1  # of the gap to which a block of variables is solved, or a small problem in float32


class SmallOptions(NamedTuple):
    """Options of the solver for small problems."""

    tol: float
    goal: float  # the gap at which steps end
    conjugate: bool
    max_iter: int
    most_free: int  # variables between their bounds, at most, whose last digits are solved for


@compiled(nogil=True)
def solve_machines(
    K: np.ndarray,
    places: np.ndarray,
    C: np.ndarray,
    labels: np.ndarray,
    targets: np.ndarray,
    machines: np.ndarray,
    epsilon: float,
    classification: bool,
    share: float,
    options: SmallOptions,
    coefficients: np.ndarray,
    found: np.ndarray,
) -> None:
    """Solve machines, int64 [machines, 2] of two classes each, one after the other.

    The n rows have places in K, int64 [n], the same where they are equal, and bounds C, 0 where they do not count. Rows of the
    first class of a machine may have negative coefficients, and those of its second class positive ones. Coefficients are written
    into ``coefficients`` [machines, n], and what `solve_small` returns into ``found`` [machines, 5].
    """
    N, classes = len(K), labels.max() + 1
    bounds, row_of, rows, sums = np.zeros((classes, N)), np.zeros((classes, N), np.int64), np.zeros(classes), np.zeros(classes)
    which, wanted, b_of = np.empty(N, np.int64), np.zeros(N), np.zeros(N)
    for i in range(len(places)):
        if C[i] > 0.0:
            label, g = labels[i], places[i]
            wanted[g], row_of[label, g] = targets[i], i
            bounds[label, g] += C[i]
            rows[label] += 1.0
            sums[label] += share * C[i]
    for p in range(len(machines)):
        first, second, m = machines[p, 0], machines[p, 1], 0
        for g in range(N):
            if bounds[first, g] > 0.0 or bounds[second, g] > 0.0:
                which[m] = g
                m += 1
        some, lowest, highest, values = which[:m], 0.0 - bounds[first], bounds[second], K
        lower, upper, total, several = lowest[some], highest[some], sums[first], rows[first] > m
        if first != second:
            total, several = total + sums[second], rows[first] + rows[second] > m
        if m < N:
            values = np.empty((m, m))
            gather_submatrix(K, some, some, values)
        b = np.empty(m)
        write_first_point(upper, total, b)
        found[p] = solve_small(values, b, wanted[some], lower, upper, lower + upper, epsilon, classification, total, options)
        if several:
            b_of[some] = b
            distribute_coefficients(places, C, labels, first, second, b_of, lowest, highest, coefficients[p])
            continue
        for k in range(m):
            label = second if upper[k] > 0.0 else first
            coefficients[p, row_of[label, some[k]]] = b[k]


@compiled(nogil=True)
def write_first_point(upper: np.ndarray, total: float, out: np.ndarray) -> None:
    """Write variables, float64 [n], whose sum is the total: from the first on, they are at their upper bound."""
    left = total
    for k in range(len(upper)):
        out[k] = min(max(left, 0.0), upper[k])
        left -= upper[k]


@compiled(nogil=True, noinline=True)
def solve_small(
    K: np.ndarray,
    b: np.ndarray,
    targets: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    kink: np.ndarray,
    epsilon: float,
    classification: bool,
    total: float,
    options: SmallOptions,
) -> tuple[float, float, float, float, float]:
    """Solve a problem by one run of steps from ``b``, which follows, and to the last digits if that converges.

    Return the intercept, the gap, the dual and the primal objective, and the number of steps. K float64 [n, n].
    """
    n, size, done, since = len(b), -(-len(b) // _LANES) * _LANES, 0, 0
    wide, diagonal, free = np.zeros((5, size)), np.zeros(size, np.float32), np.empty(n, np.int64)
    wide[0, :n], wide[2, :n], wide[3, :n], wide[4, :n] = b, lower, upper, kink
    padded = WorkingSet(wide[0], wide[1], wide[2], wide[3], wide[4], diagonal)  # with variables that cannot move
    a = WorkingSet(wide[0][:n], wide[1][:n], lower, upper, kink, diagonal)
    gap, spread, m = recompute_slopes(K, a, targets, epsilon, free)
    if gap > options.goal:
        columns = np.zeros(n * size, np.float32)
        for i in range(n):
            for j in range(np.uint64(n)):
                columns[i * size + j] = K[i, j]
            diagonal[i] = K[i, i]
        limit = min(max(1000, 2_000_000 // n), options.max_iter)
        support, listed, gains = np.empty(size, np.int64), np.zeros(size, np.bool_), np.empty(CHUNK, np.float32)
        few, more = np.zeros((3, size), np.float32), np.zeros((3, size))
        single = Scratch(few[0], few[1], few[2], gains, np.zeros(size), support, listed)
        double = Scratch(more[0], more[1], more[2], gains, np.zeros(size), support, listed)
        while gap > options.goal and done < limit:
            goal = max(options.goal, PART * gap)
            if spread < SPREAD * goal:
                status, some = run_steps(padded, single, columns, epsilon, goal, options.conjugate, limit - done)
            else:
                status, some = run_steps(padded, double, columns, epsilon, goal, options.conjugate, limit - done)
            wide[1, n:] = 0.0
            done += some
            gap, spread, m = recompute_slopes(K, a, targets, epsilon, free)
            since += some
            due = gap <= options.goal or since * (_STEP + n) > _CUBE * m**3 + _SQUARE * m * m + _LINEAR * n * m
            if 1 < m <= options.most_free and due:
                gap, since = solve_free_variables(K, a, epsilon, free[:m], gap), 0
            if status != CONVERGED or some == 0:
                break
    b[:] = a.b
    bias, objective, primal = compute_objectives(a, targets, epsilon, classification, total)
    return bias, max(gap, 0.0), objective, primal, np.float64(done)


@compiled(nogil=True)
def solve_free_variables(K: np.ndarray, a: WorkingSet, epsilon: float, free: np.ndarray, gap: float) -> float:
    """Solve for the variables that lie between their bounds, in float64; return the gap then.

    Conditions of optimality are linear equations for them, if all others stay where they are. The solution is kept where the
    variables stay between their bounds, and objective and gap are smaller. K float64 [n, n] are the kernel values of all, and
    ``free`` int64 [m] has the places of these. The gradient must be that of float64. O(n m + m^3).
    """
    m = len(free)
    equations, right, change = np.empty((m - 1, m - 1)), np.empty(m), np.empty(m)
    _write_equations(K, a, epsilon, free, equations, right)
    change[:-1] = right[:-1] - right[-1]
    if not _solve_equations(equations, change[:-1]):
        return gap
    change[-1] = -change[:-1].sum()
    b, gradient = a.b.copy(), a.gradient.copy()
    found = _move_free(K, a, epsilon, free, change, right)
    if not found < gap:
        a.b[:], a.gradient[:] = b, gradient
        return gap
    return found


@compiled(nogil=True, fastmath=FAST)
def _solve_equations(A: np.ndarray, x: np.ndarray) -> bool:
    """Solve A x = b, where A is symmetric: b becomes x. Return whether A is positive definite.

    A is read on and above the diagonal, and destroyed.
    """
    size, flat, one = np.uint64(len(x)), A.ravel(), np.uint64(1)
    for k in range(size):  # a row of the Cholesky factor, whose diagonal is inverted: short sums would take longer
        if not A[k, k] > 0.0:
            return False
        A[k, k] = 1.0 / np.sqrt(A[k, k])
        for j in range(k + one, size):
            flat[k * size + j] *= A[k, k]
        x[k] *= A[k, k]
        for i in range(k + one, size):
            factor = flat[k * size + i]
            x[i] -= factor * x[k]
            for j in range(i, size):
                flat[i * size + j] -= factor * flat[k * size + j]
    for t in range(size):
        last = size - one - t
        for j in range(last + one, size):
            x[last] -= flat[last * size + j] * x[j]
        x[last] *= A[last, last]
    return True


@compiled(nogil=True)
def recompute_slopes(
    K: np.ndarray, a: WorkingSet, targets: np.ndarray, epsilon: float, free: np.ndarray
) -> tuple[float, float, int]:
    """Compute the gradient anew, from kernel values float64 [n, n]; return the gap, and the largest difference of two slopes.

    The third is the number of variables between their bounds: their places are in the first so many of ``free`` then.
    """
    b, gradient, lower, upper, kink, n = a.b, a.gradient, a.lower, a.upper, a.kink, len(a.b)
    for k in range(n):
        gradient[k] = -targets[k]
    for j in range(n):
        if b[j] != 0.0:
            _add_row(K, j, b[j], gradient)
    low_rise, high_rise, low_fall, high_fall, m = np.inf, -np.inf, np.inf, -np.inf, 0
    for k in range(n):
        rise = gradient[k] + slope_upwards(b[k], upper[k], kink[k], epsilon)
        fall = gradient[k] + slope_downwards(b[k], lower[k], kink[k], epsilon)
        low_rise, high_fall = min(low_rise, rise), max(high_fall, fall)
        if rise < np.inf:
            high_rise = max(high_rise, rise)
        if fall > -np.inf:
            low_fall = min(low_fall, fall)
        if rise == fall:
            free[m] = k
            m += 1
    return high_fall - low_rise, max(high_rise - low_rise, high_fall - low_fall), m


@compiled(nogil=True, forceinline=True)
def _add_row(K: np.ndarray, j: int, factor: float, out: np.ndarray) -> None:
    for k in range(np.uint64(len(out))):
        out[k] += factor * K[j, k]


@compiled(nogil=True)
def _write_equations(
    K: np.ndarray, a: WorkingSet, epsilon: float, free: np.ndarray, equations: np.ndarray, right: np.ndarray
) -> None:
    """Write minus the slopes of m free variables, [m], and the equations of all but the last, which takes what these leave it."""
    b, gradient, upper, kink, m, trace, last = a.b, a.gradient, a.upper, a.kink, len(free), 0.0, free[-1]
    for i in range(m):
        k = free[i]
        right[i] = -(gradient[k] + slope_upwards(b[k], upper[k], kink[k], epsilon))
        trace += K[k, k]
    for i in range(m - 1):
        k = free[i]
        for j in range(i, m - 1):
            equations[i, j] = K[k, free[j]] - K[k, last] - K[last, free[j]] + K[last, last]
        equations[i, i] += RIDGE * trace / m


@compiled(nogil=True)
def _move_free(K: np.ndarray, a: WorkingSet, epsilon: float, free: np.ndarray, change: np.ndarray, right: np.ndarray) -> float:
    """Add the change to free variables, and to the gradient of all; return the gap, infinite where they may not move so."""
    b, lower, upper, kink, gradient, rises = a.b, a.lower, a.upper, a.kink, a.gradient, 0.0
    for i in range(len(free)):
        k = free[i]
        moved = b[k] + change[i]
        if not (lower[k] < moved < upper[k] and (moved > kink[k]) == (b[k] > kink[k])):
            return np.inf
        rises -= change[i] * right[i]
    if rises > 0.0:  # of a kernel like the sigmoid, it may be a maximum
        return np.inf
    for i in range(len(free)):
        b[free[i]] += change[i]
        _add_row(K, free[i], change[i], gradient)
    least, most = np.inf, -np.inf
    for k in range(len(b)):
        least = min(least, gradient[k] + slope_upwards(b[k], upper[k], kink[k], epsilon))
        most = max(most, gradient[k] + slope_downwards(b[k], lower[k], kink[k], epsilon))
    return most - least


@compiled(nogil=True)
def compute_objectives(
    a: WorkingSet, targets: np.ndarray, epsilon: float, classification: bool, total: float
) -> tuple[float, float, float]:
    """Return the intercept, and the dual and the primal objective."""
    b, gradient, lower, upper, kink = a.b, a.gradient, a.lower, a.upper, a.kink
    least, most, free, slopes, square, linear, bends, widths = np.inf, -np.inf, 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(len(b)):
        rise = gradient[k] + slope_upwards(b[k], upper[k], kink[k], epsilon)
        fall = gradient[k] + slope_downwards(b[k], lower[k], kink[k], epsilon)
        least, most = min(least, rise), max(most, fall)
        if rise == fall:
            free, slopes = free + 1, slopes + rise
        square += 0.5 * b[k] * (gradient[k] + targets[k])
        linear += b[k] * targets[k]
        bends += abs(b[k] - kink[k])
        widths += upper[k] - lower[k]
    if free:
        bias = -slopes / free
    elif least < np.inf and most > -np.inf:
        bias = -0.5 * (least + most)
    else:
        bias = -least if least < np.inf else -most
    margin, loss = -1.0 if classification else epsilon, 0.0
    for k in range(len(b)):
        residual = -(gradient[k] + bias)  # target minus decision value
        loss += upper[k] * max(residual - margin, 0.0) - lower[k] * max(-residual - margin, 0.0)
    objective = square - linear + epsilon * bends - (widths if classification else 0.0)
    return bias, objective, square + loss + bias * total
