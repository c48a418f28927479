"""Compiled steps of conjugate SMO on a working set whose kernel matrix is in memory.

``gradient`` is the gradient Kb - t of the smooth part of the problem (see `streamsvm.batch.problem`). The remaining part has the
slope ``rise`` where a variable is raised, infinite at its upper bound, and ``fall`` where it is lowered, minus infinity at its
lower bound. The *ascent* of a variable is gradient + rise, its *descent* gradient + fall. The steps hold only ascents and
descents, minus a constant near the two that determine the gap, in float32 if that is precise enough, because a loop over the rows
takes as long as it takes to move these arrays.

As in Torres-Barrán, Alaíz and Dorronsoro (2021), beta is the factor of the previous direction in the next one.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

RUNNING, CONVERGED, STALLED = 0, 1, 2

CHUNK_ROWS = 256  # rows that each loop processes at a time, so that it finds the results of the previous loop in the cache
MAX_SPREAD = 5e4  # float32 is precise enough if the spread of the slopes is at most this times the tolerance
_MIN_CURVATURE = 1e-12  # tau of LIBSVM
_NEGLIGIBLE = 1e-9  # drop smaller components of the conjugate direction (its pair has 1): they decay within a dozen steps
_SNAP_FACTOR = 1.0 + 1e-12  # a step that would end this close to a bound or kink ends on it
_ALL_BUT_SIGN = np.int32(2**31 - 1)


class WorkingSet(NamedTuple):
    """The variables of the steps, with their gradient and bounds. All arrays [n], float64 unless noted."""

    b: np.ndarray
    gradient: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    diagonal: np.ndarray  # float32: of the kernel matrix


class Scratch(NamedTuple):
    """Memory for steps on n rows; the type of the first three arrays, float32 or float64, is the precision of the steps."""

    ascent: np.ndarray
    descent: np.ndarray
    image: np.ndarray  # K times the direction, if steps are conjugate; finite in any case
    gains: np.ndarray  # float32 [at least CHUNK_ROWS]
    direction: np.ndarray  # float64, zero except for the coordinates in ``support``
    support: np.ndarray  # int64
    listed: np.ndarray  # bool: whether a coordinate is in ``support``

    @classmethod
    def allocate(cls, n: int, dtype: Any) -> Scratch:
        """Return work arrays for SMO steps on ``n`` variables. ``dtype``, float32 or float64, is the precision of the slopes."""
        return cls(
            np.empty(n, dtype), np.empty(n, dtype), np.zeros(n, dtype), np.empty(CHUNK_ROWS, np.float32),
            np.zeros(n), np.empty(n, np.int64), np.zeros(n, bool),
        )  # fmt: skip


@compiled(nogil=True, forceinline=True)
def get_rise(b: float, upper: float, kink: float, epsilon: float) -> float:
    """Return the slope of the term epsilon |b - kink| of the dual objective when the variable ``b`` is raised: -epsilon if b is
    below ``kink``, otherwise epsilon. Return infinity if b is at its bound ``upper``, so that it cannot be raised.
    """
    if b >= upper:
        return np.inf
    return epsilon if b >= kink else -epsilon


@compiled(nogil=True, forceinline=True)
def get_fall(b: float, lower: float, kink: float, epsilon: float) -> float:
    """Return the slope of the term epsilon |b - kink| of the dual objective at the variable ``b``, when it is lowered: epsilon if
    b is above ``kink``, otherwise -epsilon. Return -infinity if b is at its bound ``lower``, so that it cannot be lowered.
    """
    if b <= lower:
        return -np.inf
    return epsilon if b > kink else -epsilon


@compiled(nogil=True)
def write_slopes(a: WorkingSet, epsilon: float, origin: float, ascent: np.ndarray, descent: np.ndarray) -> tuple[float, float]:
    """Write the slopes of the dual objective at the solution ``a`` into ``ascent`` [n] (when each variable is raised) and
    ``descent`` [n] (when it is lowered), both minus the constant ``origin``. Return the smallest ascent and the largest descent,
    without subtracting ``origin``.

    The point is optimal if the descent is not larger; otherwise, their difference is the gap: the violation of the worst pair.
    """
    b, gradient, lower, upper, kink = a.b, a.gradient, a.lower, a.upper, a.kink
    least, most = np.inf, -np.inf
    for k in range(len(b)):
        up = gradient[k] + get_rise(b[k], upper[k], kink[k], epsilon)
        down = gradient[k] + get_fall(b[k], lower[k], kink[k], epsilon)
        ascent[k], descent[k] = up - origin, down - origin
        least, most = min(least, up), max(most, down)
    return least, most


# LLVM vectorises the minimum of integers, but not of floats. So floats are compared by their bits, which sort like the floats
# once all bits but the sign are inverted for negative numbers. Indices are unsigned, because signed ones could be negative, which
# takes a test. A slice would count a reference.


@compiled(nogil=True, fastmath=FAST, forceinline=True)
def _advance_chunk(
    first: int,
    last: int,
    columns: np.ndarray,
    at_i: int,
    at_j: int,
    beta: Any,
    image: np.ndarray,
    step: Any,
    ascent: np.ndarray,
    descent: np.ndarray,
    updates_image: bool,
) -> None:
    """Update the slopes of the variables ``first`` to ``last`` (exclusive), ``ascent`` and ``descent``, after an SMO ``step``
    that raises a variable i and lowers a variable j. ``columns`` is the flat kernel matrix, where the columns of i and j start at
    ``at_i`` and ``at_j``.

    If ``updates_image``, a constant where this is inlined, the step is along e_i - e_j + beta direction, and ``image`` becomes
    the image of this new direction.
    """
    of_i, of_j = np.uint64(at_i), np.uint64(at_j)
    for k in range(np.uint64(first), np.uint64(last)):
        q = columns[of_i + k] - columns[of_j + k]
        if updates_image:
            p = q + beta * image[k]
            image[k] = p
            change = step * p
        else:
            change = step * q
        ascent[k] += change
        descent[k] += change


@compiled(nogil=True, forceinline=True)
def _find_chunk_extremes(first: int, last: int, ascent: np.ndarray, descent: np.ndarray) -> tuple[np.int32, np.int32]:
    """Return the smallest ``ascent`` (slope when a variable is raised) and the largest ``descent`` (slope when it is lowered) of
    the variables ``first`` to ``last`` (exclusive). Both are encoded as int32, which compare like the float32 numbers;
    `_bits_to_float` decodes them.
    """
    least, most = _ALL_BUT_SIGN, -_ALL_BUT_SIGN
    for k in range(np.uint64(first), np.uint64(last)):
        u, v = np.float32(ascent[k]).view(np.int32), np.float32(descent[k]).view(np.int32)
        least = min(least, u ^ ((u >> np.int32(31)) & _ALL_BUT_SIGN))
        most = max(most, v ^ ((v >> np.int32(31)) & _ALL_BUT_SIGN))
    return least, most


@compiled(nogil=True, forceinline=True)
def _sweep_slopes(
    columns: np.ndarray,
    at_i: int,
    at_j: int,
    beta: Any,
    image: np.ndarray,
    step: Any,
    ascent: np.ndarray,
    descent: np.ndarray,
    updates_image: bool,
) -> tuple[np.int32, np.int32, int]:
    """Update the slopes ``ascent`` and ``descent`` of all variables after an SMO ``step`` that raises a variable i and lowers a
    variable j. ``columns`` is the flat kernel matrix, where their columns start at ``at_i`` and ``at_j``. Return the smallest
    ascent and the largest descent (encoded as int32), and the start of the first chunk of variables with that ascent.

    The step may be along a conjugate direction: it includes ``beta`` times the previous direction.
    """
    least, most, at, n = _ALL_BUT_SIGN, -_ALL_BUT_SIGN, 0, len(ascent)
    for first in range(0, n, CHUNK_ROWS):
        last = min(first + CHUNK_ROWS, n)
        if updates_image:  # np.bool_ instead of literals, for which Numba would compile two versions
            _advance_chunk(first, last, columns, at_i, at_j, beta, image, step, ascent, descent, np.bool_(True))
        else:
            _advance_chunk(first, last, columns, at_i, at_j, beta, image, step, ascent, descent, np.bool_(False))
        u, v = _find_chunk_extremes(first, last, ascent, descent)
        most = max(most, v)
        if u < least:
            least, at = u, first
    return least, most, at


@compiled(nogil=True, fastmath=FAST, forceinline=True)
def _write_chunk_gains(
    first: int,
    last: int,
    descent: np.ndarray,
    columns: np.ndarray,
    at_i: int,
    diagonal: np.ndarray,
    diagonal_i: np.float32,
    least: Any,
    image: np.ndarray,
    image_i: Any,
    inverse: Any,
    out: np.ndarray,
) -> None:
    """Estimate for the variables ``first`` to ``last`` (exclusive) how much an SMO step on each of them and a fixed variable i
    would decrease the objective, without bounds. Write twice these decreases into ``out``. ``columns`` is the flat kernel matrix,
    where the column of i starts at ``at_i``.

    This is the second-order selection of Fan, Chen and Lin (2005), but with the curvature of the conjugate direction that the
    pair would lead to. With that of the pair alone (``inverse`` = 0), as in the paper, 10 to 25 % more steps are needed.
    """
    # A smaller curvature, which float32 cannot tell from 0, comes from nearly equal rows, whose gain would be noise.
    floor, column, start = max(diagonal_i * np.float32(2.0**-22), np.float32(_MIN_CURVATURE)), np.uint64(at_i), np.uint64(first)
    for k in range(start, np.uint64(last)):
        g = np.float32(descent[k] - least)
        g = g if g > np.float32(0.0) else np.float32(0.0)
        curvature = (diagonal_i + diagonal[k]) - np.float32(2.0) * columns[column + k]
        difference = image_i - image[k]
        curvature -= np.float32(inverse * (difference * difference))
        curvature = curvature if curvature > floor else floor
        out[k - start] = g * g / curvature


@compiled(nogil=True, forceinline=True)
def _find_largest_bits(n: int, bits: np.ndarray) -> np.int32:
    """Return the largest of the first ``n`` positive float32 numbers, given and returned as their bits (int32), which have the
    same order as the numbers.
    """
    most = np.int32(0)
    for k in range(np.uint64(n)):
        most = max(most, bits[k])
    return most


@compiled(nogil=True, forceinline=True)
def _find_bits(bits: np.ndarray, value: np.int32) -> int:
    """Return the first position of ``value`` in ``bits`` int32. It must be present, otherwise the loop reads beyond the array."""
    k = 0
    while bits[k] != value:
        k += 1
    return k


@compiled(nogil=True, forceinline=True)
def _find_best_partner(
    descent: np.ndarray,
    columns: np.ndarray,
    at_i: int,
    diagonal: np.ndarray,
    i: int,
    least: Any,
    image: np.ndarray,
    inverse: Any,
    gains: np.ndarray,
) -> int:
    """Find the variable j with which an SMO step on the pair (j, ``i``) decreases the objective most, and return its position; -1
    if no pair decreases it. ``descent`` [n] are the slopes when a variable is lowered, and ``columns`` is the flat kernel matrix,
    where the column of i starts at ``at_i``.
    """
    diagonal_i, image_i, n, bits = diagonal[i], image[i], len(descent), gains.view(np.int32)
    most, j = np.int32(0), -1
    for first in range(0, n, CHUNK_ROWS):
        last = min(first + CHUNK_ROWS, n)
        _write_chunk_gains(first, last, descent, columns, at_i, diagonal, diagonal_i, least, image, image_i, inverse, gains)
        largest = _find_largest_bits(last - first, bits)
        if largest > most:
            most, j = largest, first + _find_bits(bits, largest)
    return j


@compiled(nogil=True)
def _update_direction(a: WorkingSet, s: Scratch, length: int, beta: float, i: int, j: int) -> tuple[int, float]:
    """Compute the next search direction: ``beta`` times the previous one, plus 1 at variable ``i`` and minus 1 at variable ``j``
    (conjugate directions). It is stored in ``s``; ``length`` counts its nonzero components before. Return their new number, and
    the largest step before a variable reaches a bound or kink.
    """
    b, lower, upper, kink, direction, support, listed = a.b, a.lower, a.upper, a.kink, s.direction, s.support, s.listed
    size, max_step, dropped = 0, np.inf, 0.0
    for t in range(length):
        k = support[t]
        d = direction[k] * beta
        direction[k] = d
        if abs(d) > _NEGLIGIBLE:
            support[size] = k
            size += 1
            if k not in (i, j):
                max_step = min(max_step, (_find_stop(b[k], d, lower[k], upper[k], kink[k]) - b[k]) / d)
        else:
            dropped += d
            direction[k] = 0.0
            listed[k] = False
    direction[i] += 1.0 + dropped  # so that the components sum to 0
    direction[j] -= 1.0
    for k in (i, j):
        if not listed[k]:
            listed[k] = True
            support[size] = k
            size += 1
        d = direction[k]
        if d != 0.0:
            max_step = min(max_step, (_find_stop(b[k], d, lower[k], upper[k], kink[k]) - b[k]) / d)
    return size, max_step


@compiled(nogil=True, forceinline=True)
def _find_stop(b: float, d: float, lower: float, upper: float, kink: float) -> float:
    """Return the next value where the variable ``b`` must stop when it moves in the direction of the sign of ``d``: its bound, or
    the ``kink`` where the slope of the objective jumps.
    """
    if d > 0.0:
        return kink if b < kink else upper
    return kink if b > kink else lower


@compiled(nogil=True)
def _move_along_direction(a: WorkingSet, s: Scratch, length: int, step: float, epsilon: float) -> bool:
    """Move the variables of ``a`` by ``step`` times the search direction in ``s``, exactly onto bounds and kinks (jumps of the
    objective's slope) that they reach, and correct the slopes there. ``length`` is the number of nonzero components. Return
    whether a variable changed.

    The ascents and descents of coordinates that reach or leave a bound or kink change by the jump of the slope there.
    """
    b, lower, upper, kink = a.b, a.lower, a.upper, a.kink
    direction, support, ascent, descent = s.direction, s.support, s.ascent, s.descent
    moved = False
    for t in range(length):
        k = support[t]
        d, old = direction[k], b[k]
        if d == 0.0:
            continue
        target = _find_stop(old, d, lower[k], upper[k], kink[k])
        reached = target - old <= step * _SNAP_FACTOR * d if d > 0.0 else target - old >= step * _SNAP_FACTOR * d
        new = target if reached else old + step * d
        if new == old:
            continue
        b[k], moved = new, True
        if new != target and old != kink[k] and lower[k] < old < upper[k]:  # rounding may also reach the target
            continue
        rise, fall = get_rise(old, upper[k], kink[k], epsilon), get_fall(old, lower[k], kink[k], epsilon)
        new_rise, new_fall = get_rise(new, upper[k], kink[k], epsilon), get_fall(new, lower[k], kink[k], epsilon)
        if rise != new_rise or fall != new_fall:
            gradient = np.float64(ascent[k]) - rise if rise < np.inf else np.float64(descent[k]) - fall
            ascent[k], descent[k] = gradient + new_rise, gradient + new_fall
    return moved


@compiled(nogil=True, forceinline=True)
def _find_first_with_bits(values: np.ndarray, first: int, bits: np.int32) -> int:
    """Return the first position in ``values``, from position ``first`` on, of the number that ``bits`` encodes (an int32 from
    `_find_chunk_extremes`). Return ``first`` if it does not occur.
    """
    bits = bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN)
    for k in range(first, len(values)):
        if np.float32(values[k]).view(np.int32) == bits:
            return k
    return first


@compiled(nogil=True, forceinline=True)
def _find_largest(values: np.ndarray) -> int:
    """Return the position of the largest of the ``values``; the first one if it occurs several times."""
    j = 0
    for k in range(len(values)):
        if values[k] > values[j]:
            j = k
    return j


@compiled(nogil=True, noinline=True)
def run_steps(
    a: WorkingSet, s: Scratch, columns: np.ndarray, epsilon: float, tol: float, conjugate: bool, limit: int
) -> tuple[int, int]:
    """Run at most ``limit`` SMO steps (each changes a pair of variables) on the solution ``a``, until the gap (violation of the
    optimality conditions) is below ``tol``. ``columns`` is the flat float32 kernel matrix, ``s`` are work arrays, and
    ``conjugate`` requests conjugate directions. Return the status and the number of steps.

    The status is `CONVERGED` if no pair violates optimality by ``tol``, `STALLED` if no step is possible in this precision, and
    otherwise `RUNNING`. The first step is one of plain SMO. The gradient is updated at the end only. O(n) for each step.
    """
    least, most = write_slopes(a, epsilon, 0.0, s.ascent, s.descent)
    if not most - least >= tol:
        return CONVERGED, 0
    origin = 0.5 * (least + most)
    s.direction[:] = 0.0
    s.listed[:] = False
    write_slopes(a, epsilon, origin, s.ascent, s.descent)
    status, n_steps = _run_step_loop(a, s, columns, epsilon, tol, conjugate, limit)
    b, gradient, lower, upper, kink, ascent, descent = a.b, a.gradient, a.lower, a.upper, a.kink, s.ascent, s.descent
    for k in range(len(b)):
        rise = get_rise(b[k], upper[k], kink[k], epsilon)
        if rise < np.inf:
            gradient[k] = origin + (np.float64(ascent[k]) - rise)
        else:
            gradient[k] = origin + (np.float64(descent[k]) - get_fall(b[k], lower[k], kink[k], epsilon))
    return status, n_steps


@compiled(nogil=True)
def _run_step_loop(
    a: WorkingSet, s: Scratch, columns: np.ndarray, epsilon: float, tol: float, conjugate: bool, limit: int
) -> tuple[int, int]:
    """Run at most ``limit`` SMO steps (each changes a pair of variables) on the solution ``a``, until the gap (violation of the
    optimality conditions) is below ``tol``. Return the status and the number of steps. Unlike `run_steps`, it does not update the
    gradient; the parameters are the same.
    """
    # Fields become local names, because each access to a field of a tuple counts a reference, atomically: that would take most of
    # the time for few rows.
    ascent, descent, image, gains, diagonal = s.ascent, s.descent, s.image, s.gains, a.diagonal
    precision, n = ascent.dtype.type, len(ascent)
    curvature: Any = 0.0
    length, next_is_conjugate = 0, False
    low, at = _ALL_BUT_SIGN, 0
    for first in range(0, n, CHUNK_ROWS):
        u, _ = _find_chunk_extremes(first, min(first + CHUNK_ROWS, n), ascent, descent)
        if u < low:
            low, at = u, first
    i = _find_first_with_bits(ascent, at, low)
    most = np.float64(descent[_find_largest(descent)])
    n_steps, status = 0, RUNNING
    while n_steps < limit:
        if not most - np.float64(ascent[i]) >= tol:
            status = CONVERGED
            break
        at_i, least, inverse = n * i, ascent[i], 1.0 / curvature if next_is_conjugate else 0.0
        descent_i, descent[i] = descent[i], -np.inf  # so that no row is paired with itself
        j = _find_best_partner(descent, columns, at_i, diagonal, i, least, image, precision(inverse), gains)
        descent[i] = descent_i
        if j < 0:
            status = STALLED
            break
        at_j = n * j
        gain = np.float64(descent[j]) - np.float64(least)
        image_ij = np.float64(image[i]) - np.float64(image[j])
        beta = -image_ij * inverse
        pair_curvature = np.float64(columns[at_i + i]) + np.float64(columns[at_j + j]) - 2.0 * np.float64(columns[at_i + j])
        curvature = max(pair_curvature + beta * image_ij, _MIN_CURVATURE)
        length, max_step = _update_direction(a, s, length, beta, i, j)
        if max_step <= 0.0:  # by rounding; a step along the pair alone is possible
            beta, curvature = 0.0, max(pair_curvature, _MIN_CURVATURE)
            length, max_step = _update_direction(a, s, length, beta, i, j)
        step = gain / curvature
        is_clipped = max_step <= step * _SNAP_FACTOR
        step = min(max_step, step)
        if not gain > 0.0 or not _move_along_direction(a, s, length, step, epsilon):
            status = STALLED
            break
        next_is_conjugate = conjugate and not is_clipped
        low, high, at = _sweep_slopes(
            columns, at_i, at_j, precision(beta), image, precision(step), ascent, descent, next_is_conjugate or beta != 0.0
        )
        i, most = _find_first_with_bits(ascent, at, low), _bits_to_float(high)
        n_steps += 1
    return status, n_steps


@compiled(nogil=True, forceinline=True)
def _bits_to_float(bits: np.int32) -> float:
    """Decode an int32 from `_find_chunk_extremes`, which encodes a float32 number so that integers compare like the numbers, and
    return the number as float64.
    """
    return np.float64(np.int32(bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN)).view(np.float32))
