"""The loops of a step over all rows, which threads share.

See `streamsvm.batch.csmo.steps` for the names.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.column_cache import Slots
from streamsvm.batch.csmo.columns import Rows, part_of_column
from streamsvm.batch.csmo.team import FIRST, FLAG, FOUND, KIND, LOOP, PARTS, SECOND, Team, bounds_of, claim, finish, wait_for_call
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, Kernel

SWEEP, PARTNER, COLUMN = 0, 1, 2

_CHUNK = 512  # rows that a sweep takes at once
TAU = 1e-12  # the least curvature, as in LIBSVM
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


# A sweep takes the rows chunk by chunk, so that each loop finds in the cache what the loop before it wrote. A minimum of floats
# is not vectorised, one of integers is: floats are compared by their bits, which have the same order once all bits but the sign
# are inverted for negative numbers. Indices are unsigned, since a signed one may be negative; a slice would count a reference.


@compiled(nogil=True, fastmath=FAST, forceinline=True)
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


@compiled(nogil=True, forceinline=True)
def _extremes(begin: int, end: int, low: np.ndarray, high: np.ndarray) -> tuple[np.int32, np.int32]:
    """Return the least of ``low`` and the largest of ``high`` in a chunk, both given and returned as bits."""
    least, most = _ALL_BUT_SIGN, -_ALL_BUT_SIGN
    for k in range(np.uint64(begin), np.uint64(end)):
        u, v = low[k], high[k]
        least = min(least, u ^ ((u >> np.int32(31)) & _ALL_BUT_SIGN))
        most = max(most, v ^ ((v >> np.int32(31)) & _ALL_BUT_SIGN))
    return least, most


@compiled(nogil=True)
def sweep(
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
) -> tuple[np.int32, np.int32, int]:
    """Add step K direction to the gradient of some rows.

    Return the least ascent and the largest descent, as bits, and the begin of the chunk with the first row of that ascent.
    """
    low, high = ascent.view(np.int32), descent.view(np.int32)
    least, most, at = _ALL_BUT_SIGN, -_ALL_BUT_SIGN, begin
    for first in range(begin, end, _CHUNK):
        last = min(first + _CHUNK, end)
        if keep_image:  # the flags are no literals of Python, which would be compiled one by one
            _advance(
                first, last, columns, at_i, at_j, beta, image, step, gradient, rise, fall, origin, ascent, descent,
                np.bool_(True),
            )  # fmt: skip
        else:
            _advance(
                first, last, columns, at_i, at_j, beta, image, step, gradient, rise, fall, origin, ascent, descent,
                np.bool_(False),
            )  # fmt: skip
        u, v = _extremes(first, last, low, high)
        most = max(most, v)
        if u < least:
            least, at = u, first
    return least, most, at


@compiled(nogil=True, fastmath=FAST, forceinline=True)
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
    floor, start = max(diagonal_i * np.float32(2.0**-22), np.float32(TAU)), np.uint64(at_i)
    for k in range(np.uint64(begin), np.uint64(end)):
        g = descent[k] - least
        g = g if g > np.float32(0.0) else np.float32(0.0)
        curvature = (diagonal_i + diagonal[k]) - np.float32(2.0) * columns[start + k]
        difference = image_i - image[k]
        curvature -= np.float32(inverse * (difference * difference))
        curvature = curvature if curvature > floor else floor
        out[k] = g * g / curvature


@compiled(nogil=True, forceinline=True)
def _largest(begin: int, end: int, bits: np.ndarray) -> np.int32:
    """Return the largest of a chunk of positive floats, given and returned as bits, which have their order."""
    most = np.int32(0)
    for k in range(np.uint64(begin), np.uint64(end)):
        most = max(most, bits[k])
    return most


@compiled(nogil=True)
def best_partner(
    begin: int,
    end: int,
    descent: np.ndarray,
    columns: np.ndarray,
    at_i: int,
    diagonal: np.ndarray,
    i: int,
    least: float,
    image: np.ndarray,
    inverse: float,
    gains: np.ndarray,
) -> tuple[np.int32, int]:
    """Return the largest gain of a pair of row i with some rows, as bits, and the begin of the chunk with the first such row."""
    bits, diagonal_i, image_i = gains.view(np.int32), diagonal[i], image[i]
    most, at = np.int32(0), begin
    for first in range(begin, end, _CHUNK):
        last = min(first + _CHUNK, end)
        _gains(first, last, descent, columns, at_i, diagonal, diagonal_i, np.float32(least), image, image_i, inverse, gains)
        found = _largest(first, last, bits)
        if found > most:
            most, at = found, first
    return most, at


@compiled(nogil=True)
def help_with_steps(own: int, team: Team, a: WorkingSet, slots: Slots, rows: Rows, kernel: Kernel) -> None:
    """Do the own part of the loops of steps on these arrays, until the team's helpers shall leave."""
    words, numbers, columns, number = team.words, team.numbers, slots.buffer, np.int64(-1)
    image, gradient, rise, fall, ascent, descent, diagonal = a.image, a.gradient, a.rise, a.fall, a.ascent, a.descent, a.diagonal
    n = len(gradient)
    begin, end = bounds_of(own, len(words) - PARTS, n)
    while True:
        number = wait_for_call(words, number)
        if number < 0:
            return
        if not claim(words, own, number):
            continue
        kind, first, second, row = words[LOOP, KIND], words[LOOP, FIRST], words[LOOP, SECOND], PARTS + own
        if kind == SWEEP:
            words[row, FOUND], words[row, FOUND + 1], words[row, FOUND + 2] = sweep(
                begin, end, columns, first, second, numbers[0], image, numbers[1], gradient, rise, fall, numbers[2],
                ascent, descent, words[LOOP, FLAG] != 0,
            )  # fmt: skip
        elif kind == PARTNER:
            words[row, FOUND], words[row, FOUND + 2] = best_partner(
                begin, end, descent, columns, first, diagonal, second, numbers[0], image, numbers[1], ascent
            )
        else:
            part_of_column(rows, rows, second, kernel, begin, end, columns[first : first + n])
        finish(words, own, number)
