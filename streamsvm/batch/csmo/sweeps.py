"""The loops of a step over all rows, a few microseconds each, and the threads that share them.

Python's own threads take longer to wake up than such a loop takes. So for as long as a call of compiled steps lasts, helpers run
a compiled function without the interpreter's lock. They watch a number that the leader raises when there is a loop to share; it
is cut into as many parts as there are threads, and a part belongs to whoever claims it first. A helper that the operating system
has put aside claims nothing, and the leader does its part. `streamsvm.batch.csmo.steps` describes the names.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.columns import Rows, Slots, part_of_column
from streamsvm.core.compiling.functions import Intrinsic, compiled
from streamsvm.core.kernels import FAST, Kernel

#: Rows of words: the loop's, and the first of the parts'.
LOOP, PARTS = 0, 1
#: Columns of the loop's words: its number, whether helpers shall leave, what it is, its integers, and its first float.
_NUMBER, _LEFT, KIND, FIRST, SECOND, FLAG, FLOATS = 0, 1, 2, 3, 4, 5, 6
#: Columns of a part's words: the last loop in which it was claimed, that in which it was done, and the first with what was found.
_CLAIMED, _DONE, FOUND = 0, 1, 2

_LINE = 16  # words of two cache lines: threads that write to one line slow each other down
_ALIGNED = 64  # rows: parts begin at multiples, so that a row is computed alike in parts of any length
_LONG = 200_000  # looks at a number: the best part of a millisecond, in which a helper that runs has done its part
_PATIENCE = 10**7  # looks at a number before a helper leaves: some hundredths of a second


class Team(NamedTuple):
    """Memory that a leader and its helpers share; ``left``: whether helpers shall leave, or have left."""

    words: np.ndarray  # int64 [1 + threads, 16]: the loop's words, and those of each part
    numbers: np.ndarray  # float64 [3]: the loop's floats, in the memory of its words, so that one line of the cache has all

    @classmethod
    def of(cls, threads: int) -> Team:
        words = np.zeros((PARTS + threads, _LINE), np.int64)
        return cls(words, words[LOOP, FLOATS : FLOATS + 3].view(np.float64))

    @property
    def left(self) -> bool:
        return bool(self.words[LOOP, _LEFT])

    @left.setter
    def left(self, value: bool) -> None:
        self.words[LOOP, _LEFT] = value


# Words that threads share: one reads what another has written, and what that one wrote before.
_load = Intrinsic(lambda codegen: codegen.load_word)
_store = Intrinsic(lambda codegen: codegen.store_word)
_exchange = Intrinsic(lambda codegen: codegen.exchange_word)


@compiled(nogil=True, forceinline=True)
def bounds_of(part: int, threads: int, n: int) -> tuple[int, int]:
    """Return the rows, from and to, of a part of n rows."""
    size = (n + threads * _ALIGNED - 1) // (threads * _ALIGNED) * _ALIGNED
    return min(part * size, n), min((part + 1) * size, n)


@compiled(nogil=True, forceinline=True)
def call(words: np.ndarray, threads: int, kind: int, first: int, second: int, flag: bool) -> int:
    """Describe a loop, let helpers begin with it, and return its number. The leader does."""
    if threads == 1:
        return -1
    number = words[LOOP, _NUMBER] + 1
    words[LOOP, KIND], words[LOOP, FIRST], words[LOOP, SECOND], words[LOOP, FLAG] = kind, first, second, flag
    _store(words, LOOP, _NUMBER, number)
    return number


@compiled(nogil=True, forceinline=True)
def claim(words: np.ndarray, part: int, number: int) -> bool:
    """Return whether a part of a loop is the caller's to do: nobody has claimed it, and the loop is not over.

    Without a number the caller is alone.
    """
    if number < 0:
        return True
    row = PARTS + part
    if _load(words, row, _CLAIMED) != number - 1:  # an exchange would take the line from the cache of who works on the part
        return False
    return _exchange(words, row, _CLAIMED, number - 1, number)


@compiled(nogil=True, forceinline=True)
def finish(words: np.ndarray, part: int, number: int) -> None:
    """Tell that a part is done."""
    if number >= 0:
        _store(words, PARTS + part, _DONE, number)


@compiled(nogil=True, forceinline=True)
def present(words: np.ndarray) -> int:
    """Return how many threads there are: the leader alone where helpers have left."""
    return 1 if words[LOOP, _LEFT] != 0 else len(words) - PARTS


@compiled(nogil=True, forceinline=True)
def wait(words: np.ndarray, number: int) -> None:
    """Wait until all parts of a loop are done. Where a helper was put aside in the middle of one, let all helpers leave."""
    if number < 0:
        return
    looks = 0
    for row in range(PARTS, len(words)):
        while _load(words, row, _DONE) != number:
            looks += 1
    if looks > _LONG:
        _store(words, LOOP, _LEFT, 1)


@compiled(nogil=True)
def wait_for_call(words: np.ndarray, last: int) -> int:
    """Return the number of the next loop after number ``last`` once the leader calls; -1 if the helper shall leave."""
    for _ in range(_PATIENCE):
        number = _load(words, LOOP, _NUMBER)
        if number != last:
            return number
        if _load(words, LOOP, _LEFT):
            break
    return -1


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
