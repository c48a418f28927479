"""Small problems with their Gram matrix in float64: one machine, or all machines of a fit, are solved in one compiled call.

A fit with many classes has hundreds of such machines with some dozen rows each, and solving one takes less time than a call.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.precomputed import gather_submatrix
from streamsvm.batch.csmo.steps import CHUNK_ROWS, CONVERGED, MAX_SPREAD, Scratch, WorkingSet, get_fall, get_rise, run_steps
from streamsvm.batch.problem import distribute_coefficients
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

RIDGE = 1e-10  # added to the diagonal, relative to its mean: for singular equations, it selects one of the solutions
# Time estimates that decide when the free variables are solved for: that of a step is _STEP_TIME + n, that of the equations for m
# of n variables _CUBE_TIME m^3 + _SQUARE_TIME m^2 + _LINEAR_TIME n m.
_STEP_TIME, _CUBE_TIME, _SQUARE_TIME, _LINEAR_TIME = 200, 0.1, 20.0, 2.0
_SIMD_LANES = 16  # the number of variables is padded to a multiple of it, so that loops need no scalar remainder
GAP_SHARE = 0.1  # a block, or a small problem in float32, is solved until this share of its first gap remains


class SmallOptions(NamedTuple):
    """Options of the solver for small problems."""

    tol: float
    goal: float  # the steps end when the gap is at most this
    conjugate: bool
    max_iter: int
    max_free: int  # the largest number of variables between their bounds that are solved for to the last digits


@compiled(nogil=True)
def solve_machines(
    K: np.ndarray,
    matrix_rows: np.ndarray,
    C: np.ndarray,
    labels: np.ndarray,
    targets: np.ndarray,
    machines: np.ndarray,
    epsilon: float,
    classification: bool,
    share: float,
    options: SmallOptions,
    coefficients: np.ndarray,
    results: np.ndarray,
) -> None:
    """Solve the dual problems of several binary SVMs, each for one pair of classes, one after the other in compiled code. ``K``
    is the Gram matrix, and ``C``, ``labels`` and ``targets`` [n] belong to the rows. ``machines`` [machines, 2] are the pairs of
    class indices. Writes the dual coefficients into ``coefficients`` float64 [machines, n].

    K float64 [N, N] is the Gram matrix; ``matrix_rows`` int64 [n] are the positions of the n rows in it, equal for equal rows. C
    are the rows' bounds, 0 for unused rows, ``labels`` int64 [n] their classes, and ``machines`` int64 [machines, 2] the two
    classes of each machine: rows of the first may have negative coefficients, rows of the second positive ones. ``share`` is the
    sum of the coefficients relative to that of the bounds. Writes the values that `solve_small` returns into ``results``
    [machines, 5].
    """
    N, classes = len(K), labels.max() + 1
    bounds, row_of, rows, sums = np.zeros((classes, N)), np.zeros((classes, N), np.int64), np.zeros(classes), np.zeros(classes)
    which, group_targets, group_b = np.empty(N, np.int64), np.zeros(N), np.zeros(N)
    for i in range(len(matrix_rows)):
        if C[i] > 0.0:
            label, g = labels[i], matrix_rows[i]
            group_targets[g], row_of[label, g] = targets[i], i
            bounds[label, g] += C[i]
            rows[label] += 1.0
            sums[label] += share * C[i]
    for p in range(len(machines)):
        first, second, m = machines[p, 0], machines[p, 1], 0
        for g in range(N):
            if bounds[first, g] > 0.0 or bounds[second, g] > 0.0:
                which[m] = g
                m += 1
        groups, lowest, highest, values = which[:m], 0.0 - bounds[first], bounds[second], K
        lower, upper, total, has_equal_rows = lowest[groups], highest[groups], sums[first], rows[first] > m
        if first != second:
            total, has_equal_rows = total + sums[second], rows[first] + rows[second] > m
        if m < N:
            values = np.empty((m, m))
            gather_submatrix(K, groups, groups, values)
        b = np.empty(m)
        write_first_point(upper, total, b)
        results[p] = solve_small(
            values, b, group_targets[groups], lower, upper, lower + upper, epsilon, classification, total, options
        )
        if has_equal_rows:
            group_b[groups] = b
            distribute_coefficients(matrix_rows, C, labels, first, second, group_b, lowest, highest, coefficients[p])
            continue
        for k in range(m):
            label = second if upper[k] > 0.0 else first
            coefficients[p, row_of[label, groups[k]]] = b[k]


@compiled(nogil=True)
def write_first_point(upper: np.ndarray, total: float, out: np.ndarray) -> None:
    """Write a feasible start for n dual variables into ``out`` float64 [n]: values between 0 and ``upper`` float64 [n] with the
    sum ``total``. The first variables are at their upper bound, the next one takes the remainder, and all others are 0.
    """
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
    """Solve the dual problem of an SVM with its Gram matrix K float64 [n, n], starting from the variables ``b`` float64 [n],
    which become the solution; bounds are ``lower`` and ``upper`` [n]. Returns intercept, gap (violation of the optimality
    conditions), dual objective, primal objective and number of steps.

    Once the steps converge, the free variables are solved for to the last digits.
    """
    n, size, n_steps, n_since = len(b), -(-len(b) // _SIMD_LANES) * _SIMD_LANES, 0, 0
    wide, diagonal, free = np.zeros((5, size)), np.zeros(size, np.float32), np.empty(n, np.int64)
    wide[0, :n], wide[2, :n], wide[3, :n], wide[4, :n] = b, lower, upper, kink
    padded = WorkingSet(wide[0], wide[1], wide[2], wide[3], wide[4], diagonal)  # the padding has bounds of 0, and cannot move
    a = WorkingSet(wide[0][:n], wide[1][:n], lower, upper, kink, diagonal)
    gap, spread, m = recompute_slopes(K, a, targets, epsilon, free)
    if gap > options.goal:
        columns = np.zeros(n * size, np.float32)
        for i in range(n):
            for j in range(np.uint64(n)):
                columns[i * size + j] = K[i, j]
            diagonal[i] = K[i, i]
        limit = min(max(1000, 2_000_000 // n), options.max_iter)
        support, listed, gains = np.empty(size, np.int64), np.zeros(size, np.bool_), np.empty(CHUNK_ROWS, np.float32)
        few, more = np.zeros((3, size), np.float32), np.zeros((3, size))
        single = Scratch(few[0], few[1], few[2], gains, np.zeros(size), support, listed)
        double = Scratch(more[0], more[1], more[2], gains, np.zeros(size), support, listed)
        while gap > options.goal and n_steps < limit:
            goal = max(options.goal, GAP_SHARE * gap)
            if spread < MAX_SPREAD * goal:
                status, n_new = run_steps(padded, single, columns, epsilon, goal, options.conjugate, limit - n_steps)
            else:
                status, n_new = run_steps(padded, double, columns, epsilon, goal, options.conjugate, limit - n_steps)
            wide[1, n:] = 0.0
            n_steps += n_new
            gap, spread, m = recompute_slopes(K, a, targets, epsilon, free)
            n_since += n_new
            cost = _CUBE_TIME * m**3 + _SQUARE_TIME * m * m + _LINEAR_TIME * n * m
            is_due = gap <= options.goal or n_since * (_STEP_TIME + n) > cost
            if 1 < m <= options.max_free and is_due:
                gap, n_since = solve_free_variables(K, a, epsilon, free[:m], gap), 0
            if status != CONVERGED or n_new == 0:
                break
    b[:] = a.b
    bias, objective, primal = compute_objectives(a, targets, epsilon, classification, total)
    return bias, max(gap, 0.0), objective, primal, np.float64(n_steps)


@compiled(nogil=True)
def solve_free_variables(K: np.ndarray, a: WorkingSet, epsilon: float, free: np.ndarray, gap: float) -> float:
    """Solve the optimality conditions of the dual problem exactly for the ``free`` variables (positions of those strictly between
    their bounds) with all others fixed, and update the solution ``a`` if that is better. Return the gap (violation of the
    conditions) of the result, or the previous one, ``gap``, if ``a`` did not change.

    If all other variables stay, the optimality conditions are linear equations. Their solution is accepted if the variables stay
    between their bounds, and objective and gap decrease. K float64 [n, n] is the Gram matrix, ``free`` int64 [m] the positions of
    these variables. The gradient must have been computed in float64. O(n m + m^3).
    """
    m = len(free)
    equations, rhs, change = np.empty((m - 1, m - 1)), np.empty(m), np.empty(m)
    _write_equations(K, a, epsilon, free, equations, rhs)
    change[:-1] = rhs[:-1] - rhs[-1]
    if not _solve_equations(equations, change[:-1]):
        return gap
    change[-1] = -change[:-1].sum()
    b, gradient = a.b.copy(), a.gradient.copy()
    new_gap = _move_free_variables(K, a, epsilon, free, change, rhs)
    if not new_gap < gap:
        a.b[:], a.gradient[:] = b, gradient
        return gap
    return new_gap


@compiled(nogil=True, fastmath=FAST)
def _solve_equations(A: np.ndarray, x: np.ndarray) -> bool:
    """Solve the linear equations A x = b in place by a Cholesky factorisation, for a symmetric matrix A [n, n]. ``x`` [n] holds b
    before and the solution after. Return False if A is not positive definite.

    Only the upper triangle of A is read; it is overwritten.
    """
    size, flat, one = np.uint64(len(x)), A.ravel(), np.uint64(1)
    for k in range(size):  # row by row of the Cholesky factor, with inverted diagonal: dot products would be too short for SIMD
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
    """Recompute the gradient of the dual problem in the solution ``a`` from the Gram matrix K float64 [n, n]. Write the positions
    of the free variables (strictly between their bounds) into ``free``. Return the gap (violation of the optimality conditions),
    the largest difference of two slopes, and the number of free variables.

    The m positions of free variables are written into ``free[:m]``.
    """
    b, gradient, lower, upper, kink, n = a.b, a.gradient, a.lower, a.upper, a.kink, len(a.b)
    for k in range(n):
        gradient[k] = -targets[k]
    for j in range(n):
        if b[j] != 0.0:
            _add_row(K, j, b[j], gradient)
    low_rise, high_rise, low_fall, high_fall, m = np.inf, -np.inf, np.inf, -np.inf, 0
    for k in range(n):
        rise = gradient[k] + get_rise(b[k], upper[k], kink[k], epsilon)
        fall = gradient[k] + get_fall(b[k], lower[k], kink[k], epsilon)
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
    """Add ``factor`` times row ``j`` of the matrix K to the vector ``out``."""
    for k in range(np.uint64(len(out))):
        out[k] += factor * K[j, k]


@compiled(nogil=True)
def _write_equations(K: np.ndarray, a: WorkingSet, epsilon: float, free: np.ndarray, matrix: np.ndarray, rhs: np.ndarray) -> None:
    """Write the linear equations of a Newton step for the m ``free`` variables (strictly between their bounds) of the solution
    ``a``: the matrix into ``matrix`` [m - 1, m - 1], and minus the slopes of all m variables into ``rhs`` [m]. There are m -
    1 equations, because the sum of the changes is 0.
    """
    b, gradient, upper, kink, m, trace, last = a.b, a.gradient, a.upper, a.kink, len(free), 0.0, free[-1]
    for i in range(m):
        k = free[i]
        rhs[i] = -(gradient[k] + get_rise(b[k], upper[k], kink[k], epsilon))
        trace += K[k, k]
    for i in range(m - 1):
        k = free[i]
        for j in range(i, m - 1):
            matrix[i, j] = K[k, free[j]] - K[k, last] - K[last, free[j]] + K[last, last]
        matrix[i, i] += RIDGE * trace / m


@compiled(nogil=True)
def _move_free_variables(
    K: np.ndarray, a: WorkingSet, epsilon: float, free: np.ndarray, change: np.ndarray, rhs: np.ndarray
) -> float:
    """Add ``change`` [m] to the m ``free`` variables (positions) of the solution ``a``, and update its gradient. Return the new
    gap (violation of the optimality conditions); if a variable would leave its interval or the objective would rise, change
    nothing and return infinity.
    """
    b, lower, upper, kink, gradient, rises = a.b, a.lower, a.upper, a.kink, a.gradient, 0.0
    for i in range(len(free)):
        k = free[i]
        moved = b[k] + change[i]
        if not (lower[k] < moved < upper[k] and (moved > kink[k]) == (b[k] > kink[k])):
            return np.inf
        rises -= change[i] * rhs[i]
    if rises > 0.0:  # for an indefinite kernel, as the sigmoid, the solution may be a maximum
        return np.inf
    for i in range(len(free)):
        b[free[i]] += change[i]
        _add_row(K, free[i], change[i], gradient)
    least, most = np.inf, -np.inf
    for k in range(len(b)):
        least = min(least, gradient[k] + get_rise(b[k], upper[k], kink[k], epsilon))
        most = max(most, gradient[k] + get_fall(b[k], lower[k], kink[k], epsilon))
    return most - least


@compiled(nogil=True)
def compute_objectives(
    a: WorkingSet, targets: np.ndarray, epsilon: float, classification: bool, total: float
) -> tuple[float, float, float]:
    """Return the intercept, the dual objective and the primal objective of an SVM at the solution ``a``. ``targets`` [n] and
    ``epsilon`` are those of regression (``classification`` is False); for classification, the targets are 0. ``total`` is the sum
    that the dual variables must have.
    """
    b, gradient, lower, upper, kink = a.b, a.gradient, a.lower, a.upper, a.kink
    least, most, free, slopes, square, linear, bends, widths = np.inf, -np.inf, 0, 0.0, 0.0, 0.0, 0.0, 0.0
    for k in range(len(b)):
        rise = gradient[k] + get_rise(b[k], upper[k], kink[k], epsilon)
        fall = gradient[k] + get_fall(b[k], lower[k], kink[k], epsilon)
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
