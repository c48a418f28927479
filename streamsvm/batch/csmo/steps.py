"""Steps of conjugate SMO on the working set, compiled.

``gradient`` is that of the smooth part of the problem (see `streamsvm.batch.problem`), Kb - t. A variable that rises changes the
objective by ``gradient + rise`` a unit, one that falls by minus ``gradient + fall``; ``rise`` is infinite at the upper bound,
``fall`` minus infinite at the lower one.

Torres-Barrán, Alaíz and Dorronsoro (2021) call beta what the previous direction is multiplied with; so do these functions.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from streamsvm.batch.csmo.column_cache import Slots, find
from streamsvm.batch.csmo.columns import Rows, column
from streamsvm.kernels import FAST, GIVEN, Kernel

__all__ = ["CONVERGED", "RUNNING", "STALLED", "WANTED", "WorkingSet", "slopes", "steps"]

RUNNING, CONVERGED, STALLED, WANTED = 0, 1, 2, 3

_CHUNK = 512  # rows that a sweep takes at once
_TAU = 1e-12  # the least curvature, as in LIBSVM
_NEGLIGIBLE = 1e-14  # components of a direction, of which the pair's are 1; most are less a dozen steps after their pair
_SNAP = 1.0 + 1e-12  # a step that ends so close before a bound or kink ends on it
_ALL_BUT_SIGN = np.int32(2**31 - 1)


class WorkingSet(NamedTuple):
    """The variables that steps change. All arrays [n]."""

    b: np.ndarray
    gradient: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    kink: np.ndarray
    rise: np.ndarray  # float32, to choose pairs; computed in float64 for the chosen pair
    fall: np.ndarray
    diagonal: np.ndarray  # float32, of the Gram matrix
    ascent: np.ndarray  # float32 scratch: gradient + rise minus a constant since the last sweep, or gains
    descent: np.ndarray  # float32 scratch: gradient + fall minus that constant
    direction: np.ndarray  # zero but for the coordinates in ``support``
    image: np.ndarray  # K direction, where conjugate steps need it; finite
    support: np.ndarray  # int64
    listed: np.ndarray  # bool: whether a coordinate is in ``support``


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _rise(b: float, upper: float, kink: float, epsilon: float) -> float:
    if b >= upper:
        return np.inf
    return epsilon if b >= kink else -epsilon


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _fall(b: float, lower: float, kink: float, epsilon: float) -> float:
    if b <= lower:
        return -np.inf
    return epsilon if b > kink else -epsilon


@njit(cache=True, nogil=True, error_model="numpy")
def slopes(a: WorkingSet, epsilon: float) -> tuple[int, int]:
    """Set ``rise`` and ``fall`` of all rows, and return the most violating pair: the row that gains most by rising, and the one
    that gains most by falling, -1 if none can. By how much they violate optimality is the gap.
    """
    b, gradient, lower, upper, kink, rises, falls = a.b, a.gradient, a.lower, a.upper, a.kink, a.rise, a.fall
    i = j = -1
    least, most = np.inf, -np.inf
    for k in range(len(b)):
        rise, fall = _rise(b[k], upper[k], kink[k], epsilon), _fall(b[k], lower[k], kink[k], epsilon)
        rises[k], falls[k] = rise, fall
        if gradient[k] + rise < least:
            i, least = k, gradient[k] + rise
        if gradient[k] + fall > most:
            j, most = k, gradient[k] + fall
    return i, j


# A sweep takes the rows chunk by chunk, so that each loop finds in the cache what the loop before it wrote. A minimum of floats
# is not vectorised, one of integers is: floats are compared by their bits, which have the same order once all bits but the sign
# are inverted for negative numbers. Indices are unsigned, since a signed one may be negative; a slice would count a reference.


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", forceinline=True)
def _advance(
    begin: int,
    end: int,
    columns: np.ndarray,
    at_i: int,
    at_j: int,
    beta: float,
    image: np.ndarray,
    step: float,
    gradient: np.ndarray,
    rise: np.ndarray,
    fall: np.ndarray,
    origin: float,
    ascent: np.ndarray,
    descent: np.ndarray,
    keep_image: bool,
) -> None:
    """Advance gradient, ascent and descent of a chunk by a step along e_i - e_j, whose columns begin at ``at_i`` and ``at_j``.

    With ``keep_image``, which is a constant where this is inlined, the step is along e_i - e_j + beta direction, whose image
    replaces that of the direction.
    """
    of_i, of_j = np.uint64(at_i), np.uint64(at_j)
    for k in range(np.uint64(begin), np.uint64(end)):
        q = np.float64(columns[of_i + k] - columns[of_j + k])
        if keep_image:
            q += beta * image[k]
            image[k] = q
        g = gradient[k] + step * q
        gradient[k] = g
        h = np.float32(g - origin)
        ascent[k] = h + rise[k]
        descent[k] = h + fall[k]


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _extremes(begin: int, end: int, low: np.ndarray, high: np.ndarray) -> tuple[np.int32, np.int32]:
    """Return the least of ``low`` and the largest of ``high`` in a chunk, both given and returned as bits."""
    least, most = _ALL_BUT_SIGN, -_ALL_BUT_SIGN
    for k in range(np.uint64(begin), np.uint64(end)):
        u, v = low[k], high[k]
        least = min(least, u ^ ((u >> np.int32(31)) & _ALL_BUT_SIGN))
        most = max(most, v ^ ((v >> np.int32(31)) & _ALL_BUT_SIGN))
    return least, most


@njit(cache=True, nogil=True, error_model="numpy")
def _sweep(
    columns: np.ndarray,
    at_i: int,
    at_j: int,
    beta: float,
    image: np.ndarray,
    step: float,
    gradient: np.ndarray,
    rise: np.ndarray,
    fall: np.ndarray,
    origin: float,
    ascent: np.ndarray,
    descent: np.ndarray,
    extremes: np.ndarray,
    keep_image: bool,
) -> int:
    """Add step K direction to the gradient; return the first row of the next pair.

    Writes the least ascent and the largest descent into ``extremes`` float32 [2].
    """
    n, low, high = len(gradient), ascent.view(np.int32), descent.view(np.int32)
    least, most, at = _ALL_BUT_SIGN, -_ALL_BUT_SIGN, 0
    for begin in range(0, n, _CHUNK):
        end = min(begin + _CHUNK, n)
        if keep_image:
            _advance(begin, end, columns, at_i, at_j, beta, image, step, gradient, rise, fall, origin, ascent, descent, True)
        else:
            _advance(begin, end, columns, at_i, at_j, beta, image, step, gradient, rise, fall, origin, ascent, descent, False)
        u, v = _extremes(begin, end, low, high)
        most = max(most, v)
        if u < least:
            least, at = u, begin
    bits = extremes.view(np.int32)
    bits[0] = least ^ ((least >> np.int32(31)) & _ALL_BUT_SIGN)
    bits[1] = most ^ ((most >> np.int32(31)) & _ALL_BUT_SIGN)
    for k in range(at, n):
        if ascent[k] == extremes[0]:
            return k
    return at


@njit(cache=True, nogil=True, fastmath=FAST, error_model="numpy", forceinline=True)
def _gains(
    begin: int,
    end: int,
    descent: np.ndarray,
    columns: np.ndarray,
    at_i: int,
    diagonal: np.ndarray,
    diagonal_i: np.float32,
    least: np.float32,
    image: np.ndarray,
    image_i: float,
    inverse: float,
    out: np.ndarray,
) -> None:
    """Write into ``out`` twice what an unclipped step of each row of a chunk with row i would gain.

    This is the second-order selection of Fan, Chen and Lin (2005), with the curvature of the conjugate direction that the pair
    would lead to. The source has the curvature of the pair alone (``inverse`` = 0), which takes 10 to 25 % more steps.
    """
    # A curvature that float32 cannot tell from 0 is that of nearly equal rows: their gain would be noise.
    floor, start = max(diagonal_i * np.float32(2.0**-22), np.float32(_TAU)), np.uint64(at_i)
    for k in range(np.uint64(begin), np.uint64(end)):
        g = descent[k] - least
        g = g if g > np.float32(0.0) else np.float32(0.0)
        curvature = (diagonal_i + diagonal[k]) - np.float32(2.0) * columns[start + k]
        difference = image_i - image[k]
        curvature -= np.float32(inverse * (difference * difference))
        curvature = curvature if curvature > floor else floor
        out[k] = g * g / curvature


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _largest(begin: int, end: int, bits: np.ndarray) -> np.int32:
    """Return the largest of a chunk of positive floats, given and returned as bits, which have their order."""
    most = np.int32(0)
    for k in range(np.uint64(begin), np.uint64(end)):
        most = max(most, bits[k])
    return most


@njit(cache=True, nogil=True, error_model="numpy")
def _partner(
    descent: np.ndarray,
    columns: np.ndarray,
    at_i: int,
    diagonal: np.ndarray,
    i: int,
    least: float,
    image: np.ndarray,
    inverse: float,
    gains: np.ndarray,
) -> int:
    """Return the second row of the pair whose first row is i, -1 if no row violates optimality with it."""
    n, bits, diagonal_i = len(descent), gains.view(np.int32), diagonal[i]
    descent[i] = -np.inf  # until the next sweep, so that no row is paired with itself
    most, at = np.int32(0), 0
    for begin in range(0, n, _CHUNK):
        end = min(begin + _CHUNK, n)
        _gains(begin, end, descent, columns, at_i, diagonal, diagonal_i, np.float32(least), image, image[i], inverse, gains)
        found = _largest(begin, end, bits)
        if found > most:
            most, at = found, begin
    if most == 0:
        return -1
    for k in range(at, n):
        if bits[k] == most:
            return k
    return -1


@njit(cache=True, nogil=True, error_model="numpy")
def _point(direction: np.ndarray, support: np.ndarray, listed: np.ndarray, length: int, beta: float, i: int, j: int) -> int:
    """Replace the direction by e_i - e_j + beta direction; return the length of its support."""
    size = 0
    for t in range(length):
        k = support[t]
        direction[k] *= beta
        if abs(direction[k]) > _NEGLIGIBLE:
            support[size] = k
            size += 1
        else:
            direction[k] = 0.0
            listed[k] = False
    for k in (i, j):
        if not listed[k]:
            listed[k] = True
            support[size] = k
            size += 1
    direction[i] += 1.0
    direction[j] -= 1.0
    return size


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def _target(b: float, d: float, lower: float, upper: float, kink: float) -> float:
    """Return where a coordinate has to stop: at a bound, or at its kink, where the objective bends."""
    if d > 0.0:
        return kink if b < kink else upper
    return kink if b > kink else lower


@njit(cache=True, nogil=True, error_model="numpy")
def _room(
    b: np.ndarray, lower: np.ndarray, upper: np.ndarray, kink: np.ndarray, direction: np.ndarray, support: np.ndarray, length: int
) -> float:
    """Return the largest step before a coordinate of the support has to stop."""
    room = np.inf
    for t in range(length):
        k = support[t]
        d = direction[k]
        if d != 0.0:
            room = min(room, (_target(b[k], d, lower[k], upper[k], kink[k]) - b[k]) / d)
    return room


@njit(cache=True, nogil=True, error_model="numpy")
def _walk(
    b: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    kink: np.ndarray,
    rise: np.ndarray,
    fall: np.ndarray,
    direction: np.ndarray,
    support: np.ndarray,
    length: int,
    step: float,
    epsilon: float,
) -> bool:
    """Add step direction to b, exactly onto the bounds and kinks that are reached; return whether anything moved."""
    moved = False
    for t in range(length):
        k = support[t]
        d, old = direction[k], b[k]
        if d == 0.0:
            continue
        target = _target(old, d, lower[k], upper[k], kink[k])
        reached = target - old <= step * _SNAP * d if d > 0.0 else target - old >= step * _SNAP * d
        new = target if reached else old + step * d
        b[k] = new
        moved = moved or new != old
        rise[k], fall[k] = _rise(new, upper[k], kink[k], epsilon), _fall(new, lower[k], kink[k], epsilon)
    return moved


@njit(cache=True, nogil=True, error_model="numpy")
def steps(
    a: WorkingSet, slots: Slots, rows: Rows, kernel: Kernel, epsilon: float, tol: float, conjugate: bool, limit: int
) -> tuple[int, int]:
    """Do at most ``limit`` steps; return why they ended, and how many they were.

    `CONVERGED`: no pair violates optimality by ``tol``. `STALLED`: float64 has no smaller step. `WANTED`: the slot that was used
    last waits for its column, which is not computed here; steps go on once it is there. The first step is one of plain
    SMO, as the working set may have changed since the last direction. A step costs O(n), and O(n d) for each of its two columns
    that is not cached.
    """
    # Local names, since each access to a field of a tuple counts a reference, atomically: in a loop over few numbers, most of its
    # time.
    b, gradient, lower, upper, kink, rise, fall = a.b, a.gradient, a.lower, a.upper, a.kink, a.rise, a.fall
    diagonal, ascent, descent, extremes = a.diagonal, a.ascent, a.descent, np.empty(2, np.float32)
    direction, image, support, listed = a.direction, a.image, a.support, a.listed
    columns, slot_of, owner, newer, older = slots.buffer, slots.slot_of, slots.owner, slots.newer, slots.older
    n, length, curvature, follow = len(b), 0, 0.0, False
    direction[:] = 0.0
    listed[:] = False
    i, j = slopes(a, epsilon)
    if i < 0 or j < 0:
        return CONVERGED, 0
    origin = gradient[i]
    for k in range(n):
        ascent[k] = np.float32(gradient[k] - origin) + rise[k]
        descent[k] = np.float32(gradient[k] - origin) + fall[k]
    extremes[0], extremes[1] = ascent[i], descent[j]
    for done in range(limit):
        if extremes[1] - extremes[0] < 1.001 * tol:
            i, j = slopes(a, epsilon)
            violation = (
                gradient[j] + _fall(b[j], lower[j], kink[j], epsilon) - gradient[i] - _rise(b[i], upper[i], kink[i], epsilon)
            )
            if violation < tol:
                return CONVERGED, done
        slot, found = find(slot_of, owner, newer, older, i)
        at_i = n * slot
        if not found:
            if kernel.kind == GIVEN:
                return WANTED, done
            column(rows, rows, i, kernel, columns[at_i : at_i + n])
        ascent_i = gradient[i] + _rise(b[i], upper[i], kink[i], epsilon)
        inverse = 1.0 / curvature if follow else 0.0
        j = _partner(descent, columns, at_i, diagonal, i, ascent_i - origin, image, inverse, ascent)
        if j < 0:  # violations that are left are below the resolution of float32
            return STALLED, done
        slot, found = find(slot_of, owner, newer, older, j)
        at_j = n * slot
        if not found:
            if kernel.kind == GIVEN:
                return WANTED, done
            column(rows, rows, j, kernel, columns[at_j : at_j + n])
        gain = (gradient[j] + _fall(b[j], lower[j], kink[j], epsilon)) - ascent_i
        image_ij = image[i] - image[j]
        beta = -image_ij * inverse
        plain = np.float64(columns[at_i + i]) + np.float64(columns[at_j + j]) - 2.0 * np.float64(columns[at_i + j])
        curvature = max(plain + beta * image_ij, _TAU)
        length = _point(direction, support, listed, length, beta, i, j)
        room, step = _room(b, lower, upper, kink, direction, support, length), gain / curvature
        if room <= 0.0:  # by rounding alone: along the pair there is room
            beta, curvature = 0.0, max(plain, _TAU)
            length = _point(direction, support, listed, length, beta, i, j)
            room, step = _room(b, lower, upper, kink, direction, support, length), gain / curvature
        clipped = room <= step * _SNAP
        step = min(room, step)
        if not gain > 0.0 or not _walk(b, lower, upper, kink, rise, fall, direction, support, length, step, epsilon):
            return STALLED, done
        origin, follow = ascent_i, conjugate and not clipped
        i = _sweep(
            columns, at_i, at_j, beta, image, step, gradient, rise, fall, origin, ascent, descent, extremes, follow or beta != 0.0
        )
    return RUNNING, limit
