"""Steps of conjugate SMO on a working set whose kernel matrix is in memory, compiled.

``gradient`` is that of the smooth part of the problem (see `streamsvm.batch.problem`), Kb - t. A variable that rises changes the
objective by its *ascent* a unit, gradient + rise, one that falls by minus its *descent*, gradient + fall; ``rise`` is infinite at
the upper bound, ``fall`` minus infinite at the lower one. Steps hold ascents and descents only, minus a constant near the two
that decide the gap, in float32 where that is precise enough: a loop over the rows takes as long as it takes to move these arrays.

Torres-Barrán, Alaíz and Dorronsoro (2021) call beta what the previous direction is multiplied with; so do these functions.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

RUNNING, CONVERGED, STALLED = 0, 1, 2

CHUNK = 256  # rows that a loop takes at once: each loop finds in the cache what the loop before it wrote
SPREAD = 5e4  # times the tolerance: in float32, slopes of this spread are exact to a part of it
_TAU = 1e-12  # the least curvature, as in LIBSVM
_NEGLIGIBLE = 1e-9  # components of a direction, of which the pair's are 1; most are less a dozen steps after their pair
_SNAP = 1.0 + 1e-12  # a step that ends so close before a bound or kink ends on it
_ALL_BUT_SIGN = np.int32(2**31 - 1)


class WorkingSet(NamedTuple):
    """The variables that steps change, and what they need to know of them. All arrays [n]."""

    b: np.ndarray
    gradient: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    diagonal: np.ndarray  # float32, of the kernel matrix


class Scratch(NamedTuple):
    """Memory of steps on n rows; the type of the first three, float32 or float64, is the precision of the steps."""

    ascent: np.ndarray
    descent: np.ndarray
    image: np.ndarray  # K direction, where conjugate steps need it; finite
    gains: np.ndarray  # float32 [at least a chunk]
    direction: np.ndarray  # float64, zero but for the coordinates in ``support``
    support: np.ndarray  # int64
    listed: np.ndarray  # bool: whether a coordinate is in ``support``

    @classmethod
    def allocate(cls, n: int, dtype: Any) -> Scratch:
        return cls(
            np.empty(n, dtype), np.empty(n, dtype), np.zeros(n, dtype), np.empty(CHUNK, np.float32),
            np.zeros(n), np.empty(n, np.int64), np.zeros(n, bool),
        )  # fmt: skip


@compiled(nogil=True, forceinline=True)
def slope_upwards(b: float, upper: float, kink: float, epsilon: float) -> float:
    """Return the slope of the rest of the objective where a variable rises: infinite at its upper bound."""
    if b >= upper:
        return np.inf
    return epsilon if b >= kink else -epsilon


@compiled(nogil=True, forceinline=True)
def slope_downwards(b: float, lower: float, kink: float, epsilon: float) -> float:
    """Return the slope of the rest of the objective where a variable falls, minus infinity at its lower bound."""
    if b <= lower:
        return -np.inf
    return epsilon if b > kink else -epsilon


@compiled(nogil=True)
def write_slopes(a: WorkingSet, epsilon: float, origin: float, ascent: np.ndarray, descent: np.ndarray) -> tuple[float, float]:
    """Write the ascent and the descent of all rows, minus ``origin``; return the least ascent and the largest descent.

    The first minus the second is by how much the worst pair violates optimality, if it is below 0.
    """
    b, gradient, lower, upper, kink = a.b, a.gradient, a.lower, a.upper, a.kink
    least, most = np.inf, -np.inf
    for k in range(len(b)):
        up = gradient[k] + slope_upwards(b[k], upper[k], kink[k], epsilon)
        down = gradient[k] + slope_downwards(b[k], lower[k], kink[k], epsilon)
        ascent[k], descent[k] = up - origin, down - origin
        least, most = min(least, up), max(most, down)
    return least, most


# A minimum of floats is not vectorised, one of integers is: floats are compared by their bits, which have the same order once all
# bits but the sign are inverted for negative numbers. Indices are unsigned, since a signed one may be negative; a slice would
# count a reference.


@compiled(nogil=True, fastmath=FAST, forceinline=True)
def _advance_chunk(
    begin: int,
    end: int,
    columns: np.ndarray,
    at_i: int,
    at_j: int,
    beta: Any,
    image: np.ndarray,
    step: Any,
    ascent: np.ndarray,
    descent: np.ndarray,
    keep_image: bool,
) -> None:
    """Advance ascent and descent of a chunk by a step along e_i - e_j, whose columns begin at ``at_i`` and ``at_j``.

    With ``keep_image``, which is a constant where this is inlined, the step is along e_i - e_j + beta direction, whose image
    replaces that of the direction.
    """
    of_i, of_j = np.uint64(at_i), np.uint64(at_j)
    for k in range(np.uint64(begin), np.uint64(end)):
        q = columns[of_i + k] - columns[of_j + k]
        if keep_image:
            p = q + beta * image[k]
            image[k] = p
            change = step * p
        else:
            change = step * q
        ascent[k] += change
        descent[k] += change


@compiled(nogil=True, forceinline=True)
def _find_chunk_extremes(begin: int, end: int, ascent: np.ndarray, descent: np.ndarray) -> tuple[np.int32, np.int32]:
    """Return the least ascent and the largest descent of a chunk, as bits of float32."""
    least, most = _ALL_BUT_SIGN, -_ALL_BUT_SIGN
    for k in range(np.uint64(begin), np.uint64(end)):
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
    keep_image: bool,
) -> tuple[np.int32, np.int32, int]:
    """Add step K direction to all ascents and descents.

    Return the least ascent and the largest descent, as bits, and the begin of the chunk with the first row of that ascent.
    """
    least, most, at, n = _ALL_BUT_SIGN, -_ALL_BUT_SIGN, 0, len(ascent)
    for first in range(0, n, CHUNK):
        last = min(first + CHUNK, n)
        if keep_image:  # the flags are no literals of Python, which would be compiled one by one
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
    begin: int,
    end: int,
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
    """Write into ``out`` twice what an unclipped step of each row of a chunk with row i would gain.

    This is the second-order selection of Fan, Chen and Lin (2005), with the curvature of the conjugate direction that the pair
    would lead to. The source has the curvature of the pair alone (``inverse`` = 0), which takes 10 to 25 % more steps.
    """
    # A curvature that float32 cannot tell from 0 is that of nearly equal rows: their gain would be noise.
    floor, start, first = max(diagonal_i * np.float32(2.0**-22), np.float32(_TAU)), np.uint64(at_i), np.uint64(begin)
    for k in range(first, np.uint64(end)):
        g = np.float32(descent[k] - least)
        g = g if g > np.float32(0.0) else np.float32(0.0)
        curvature = (diagonal_i + diagonal[k]) - np.float32(2.0) * columns[start + k]
        difference = image_i - image[k]
        curvature -= np.float32(inverse * (difference * difference))
        curvature = curvature if curvature > floor else floor
        out[k - first] = g * g / curvature


@compiled(nogil=True, forceinline=True)
def _find_largest_bits(n: int, bits: np.ndarray) -> np.int32:
    """Return the largest of n positive floats, given and returned as bits, which have their order."""
    most = np.int32(0)
    for k in range(np.uint64(n)):
        most = max(most, bits[k])
    return most


@compiled(nogil=True, forceinline=True)
def _find_bits(bits: np.ndarray, value: np.int32) -> int:
    """Return the first place of a value that is there."""
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
    """Return the first row of those whose pair with row i gains most; -1 if none gains."""
    diagonal_i, image_i, n, bits = diagonal[i], image[i], len(descent), gains.view(np.int32)
    most, j = np.int32(0), -1
    for first in range(0, n, CHUNK):
        last = min(first + CHUNK, n)
        _write_chunk_gains(first, last, descent, columns, at_i, diagonal, diagonal_i, least, image, image_i, inverse, gains)
        found = _find_largest_bits(last - first, bits)
        if found > most:
            most, j = found, first + _find_bits(bits, found)
    return j


@compiled(nogil=True)
def _update_direction(a: WorkingSet, s: Scratch, length: int, beta: float, i: int, j: int) -> tuple[int, float]:
    """Replace the direction by e_i - e_j + beta direction; return the length of its support, and the largest step.

    That is the largest before a coordinate of the support has to stop.
    """
    b, lower, upper, kink, direction, support, listed = a.b, a.lower, a.upper, a.kink, s.direction, s.support, s.listed
    size, room, dropped = 0, np.inf, 0.0
    for t in range(length):
        k = support[t]
        d = direction[k] * beta
        direction[k] = d
        if abs(d) > _NEGLIGIBLE:
            support[size] = k
            size += 1
            if k not in (i, j):
                room = min(room, (_find_stop(b[k], d, lower[k], upper[k], kink[k]) - b[k]) / d)
        else:
            dropped += d
            direction[k] = 0.0
            listed[k] = False
    direction[i] += 1.0 + dropped  # the components add up to 0
    direction[j] -= 1.0
    for k in (i, j):
        if not listed[k]:
            listed[k] = True
            support[size] = k
            size += 1
        d = direction[k]
        if d != 0.0:
            room = min(room, (_find_stop(b[k], d, lower[k], upper[k], kink[k]) - b[k]) / d)
    return size, room


@compiled(nogil=True, forceinline=True)
def _find_stop(b: float, d: float, lower: float, upper: float, kink: float) -> float:
    """Return where a coordinate has to stop: at a bound, or at its kink, where the objective bends."""
    if d > 0.0:
        return kink if b < kink else upper
    return kink if b > kink else lower


@compiled(nogil=True)
def _move_along_direction(a: WorkingSet, s: Scratch, length: int, step: float, epsilon: float) -> bool:
    """Add step direction to b, exactly onto the bounds and kinks that are reached; return whether anything moved.

    The slopes of coordinates that reach or leave one change by what the objective bends there.
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
        reached = target - old <= step * _SNAP * d if d > 0.0 else target - old >= step * _SNAP * d
        new = target if reached else old + step * d
        if new == old:
            continue
        b[k], moved = new, True
        if new != target and old != kink[k] and lower[k] < old < upper[k]:  # rounding may get there, too
            continue
        rise, fall = slope_upwards(old, upper[k], kink[k], epsilon), slope_downwards(old, lower[k], kink[k], epsilon)
        new_rise, new_fall = slope_upwards(new, upper[k], kink[k], epsilon), slope_downwards(new, lower[k], kink[k], epsilon)
        if rise != new_rise or fall != new_fall:
            gradient = np.float64(ascent[k]) - rise if rise < np.inf else np.float64(descent[k]) - fall
            ascent[k], descent[k] = gradient + new_rise, gradient + new_fall
    return moved


@compiled(nogil=True, forceinline=True)
def _find_first_with_bits(values: np.ndarray, begin: int, bits: np.int32) -> int:
    """Return the first row from ``begin`` on whose value has the bits, in float32."""
    bits = bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN)
    for k in range(begin, len(values)):
        if np.float32(values[k]).view(np.int32) == bits:
            return k
    return begin


@compiled(nogil=True, forceinline=True)
def _find_largest(values: np.ndarray) -> int:
    """Return the row of the largest value."""
    j = 0
    for k in range(len(values)):
        if values[k] > values[j]:
            j = k
    return j


@compiled(nogil=True, noinline=True)
def run_steps(
    a: WorkingSet, s: Scratch, columns: np.ndarray, epsilon: float, tol: float, conjugate: bool, limit: int
) -> tuple[int, int]:
    """Do at most ``limit`` steps; return why they ended, and their number. ``columns`` float32 [n n] is the kernel matrix.

    `CONVERGED`: no pair violates optimality by ``tol``. `STALLED`: there is no smaller step in this precision. The first is one
    of plain SMO. The gradient is brought up to date at the end. A step costs O(n).
    """
    least, most = write_slopes(a, epsilon, 0.0, s.ascent, s.descent)
    if not most - least >= tol:
        return CONVERGED, 0
    origin = 0.5 * (least + most)
    s.direction[:] = 0.0
    s.listed[:] = False
    write_slopes(a, epsilon, origin, s.ascent, s.descent)
    status, done = _run_step_loop(a, s, columns, epsilon, tol, conjugate, limit)
    b, gradient, lower, upper, kink, ascent, descent = a.b, a.gradient, a.lower, a.upper, a.kink, s.ascent, s.descent
    for k in range(len(b)):
        rise = slope_upwards(b[k], upper[k], kink[k], epsilon)
        if rise < np.inf:
            gradient[k] = origin + (np.float64(ascent[k]) - rise)
        else:
            gradient[k] = origin + (np.float64(descent[k]) - slope_downwards(b[k], lower[k], kink[k], epsilon))
    return status, done


@compiled(nogil=True)
def _run_step_loop(
    a: WorkingSet, s: Scratch, columns: np.ndarray, epsilon: float, tol: float, conjugate: bool, limit: int
) -> tuple[int, int]:
    # Local names, since each access to a field of a tuple counts a reference, atomically: in a loop over few numbers, most of its
    # time.
    ascent, descent, image, gains, diagonal = s.ascent, s.descent, s.image, s.gains, a.diagonal
    precision, n = ascent.dtype.type, len(ascent)
    curvature: Any = 0.0
    length, follow = 0, False
    low, at = _ALL_BUT_SIGN, 0
    for first in range(0, n, CHUNK):
        u, _ = _find_chunk_extremes(first, min(first + CHUNK, n), ascent, descent)
        if u < low:
            low, at = u, first
    i = _find_first_with_bits(ascent, at, low)
    most = np.float64(descent[_find_largest(descent)])
    done, status = 0, RUNNING
    while done < limit:
        if not most - np.float64(ascent[i]) >= tol:
            status = CONVERGED
            break
        at_i, least, inverse = n * i, ascent[i], 1.0 / curvature if follow else 0.0
        own, descent[i] = descent[i], -np.inf  # no row is paired with itself
        j = _find_best_partner(descent, columns, at_i, diagonal, i, least, image, precision(inverse), gains)
        descent[i] = own
        if j < 0:
            status = STALLED
            break
        at_j = n * j
        gain = np.float64(descent[j]) - np.float64(least)
        image_ij = np.float64(image[i]) - np.float64(image[j])
        beta = -image_ij * inverse
        plain = np.float64(columns[at_i + i]) + np.float64(columns[at_j + j]) - 2.0 * np.float64(columns[at_i + j])
        curvature = max(plain + beta * image_ij, _TAU)
        length, room = _update_direction(a, s, length, beta, i, j)
        if room <= 0.0:  # by rounding alone: along the pair there is room
            beta, curvature = 0.0, max(plain, _TAU)
            length, room = _update_direction(a, s, length, beta, i, j)
        step = gain / curvature
        clipped = room <= step * _SNAP
        step = min(room, step)
        if not gain > 0.0 or not _move_along_direction(a, s, length, step, epsilon):
            status = STALLED
            break
        follow = conjugate and not clipped
        low, high, at = _sweep_slopes(
            columns, at_i, at_j, precision(beta), image, precision(step), ascent, descent, follow or beta != 0.0
        )
        i, most = _find_first_with_bits(ascent, at, low), _bits_to_float(high)
        done += 1
    return status, done


@compiled(nogil=True, forceinline=True)
def _bits_to_float(bits: np.int32) -> float:
    return np.float64(np.int32(bits ^ ((bits >> np.int32(31)) & _ALL_BUT_SIGN)).view(np.float32))
