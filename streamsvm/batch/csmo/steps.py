"""Steps of conjugate SMO on the working set, compiled, and the threads that do them. Results do not depend on how many there are.

``gradient`` is that of the smooth part of the problem (see `streamsvm.batch.problem`), Kb - t. A variable that rises changes the
objective by ``gradient + rise`` a unit, one that falls by minus ``gradient + fall``; ``rise`` is infinite at the upper bound,
``fall`` minus infinite at the lower one.

Torres-Barrán, Alaíz and Dorronsoro (2021) call beta what the previous direction is multiplied with; so do these functions.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Event
from typing import Any, TypeVar

import numpy as np

from streamsvm.batch.csmo.columns import SPARSE, Rows, Slots, find, part_of_column, sparse_column
from streamsvm.batch.csmo.sweeps import (
    COLUMN,
    FOUND,
    PARTNER,
    PARTS,
    SWEEP,
    TAU,
    Team,
    WorkingSet,
    best_partner,
    bounds_of,
    call,
    claim,
    finish,
    help_with_steps,
    present,
    sweep,
    wait,
)
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import GIVEN, Kernel

RUNNING, CONVERGED, STALLED, WANTED = 0, 1, 2, 3

_NEGLIGIBLE = 1e-14  # components of a direction, of which the pair's are 1; most are less a dozen steps after their pair
_SNAP = 1.0 + 1e-12  # a step that ends so close before a bound or kink ends on it
_ALL_BUT_SIGN = np.int32(2**31 - 1)


@compiled(nogil=True, forceinline=True)
def _rise(b: float, upper: float, kink: float, epsilon: float) -> float:
    if b >= upper:
        return np.inf
    return epsilon if b >= kink else -epsilon


@compiled(nogil=True, forceinline=True)
def _fall(b: float, lower: float, kink: float, epsilon: float) -> float:
    if b <= lower:
        return -np.inf
    return epsilon if b > kink else -epsilon


@compiled(nogil=True)
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


@compiled(nogil=True)
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


@compiled(nogil=True, forceinline=True)
def _target(b: float, d: float, lower: float, upper: float, kink: float) -> float:
    """Return where a coordinate has to stop: at a bound, or at its kink, where the objective bends."""
    if d > 0.0:
        return kink if b < kink else upper
    return kink if b > kink else lower


@compiled(nogil=True)
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


@compiled(nogil=True)
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


@compiled(nogil=True, forceinline=True)
def _first(values: np.ndarray, begin: int, value: np.float32) -> int:
    """Return the first row from ``begin`` on that has the value."""
    for k in range(begin, len(values)):
        if values[k] == value:
            return k
    return begin


@compiled(nogil=True, forceinline=True)
def _float(bits: int) -> np.float32:
    """Return the float whose bits were inverted to have the order of integers."""
    return np.int32(bits ^ ((bits >> 31) & _ALL_BUT_SIGN)).view(np.float32)


@compiled(nogil=True)
def _share_column(words: np.ndarray, threads: int, at: int, i: int, rows: Rows, kernel: Kernel, out: np.ndarray) -> None:
    """Write column i, whose place begins ``at`` a value of the buffer; that of sparse rows alone."""
    if rows.kind == SPARSE:
        sparse_column(rows, rows, i, kernel, out)
        return
    number = call(words, threads, COLUMN, at, i, False)
    for part in range(threads):
        if claim(words, part, number):
            begin, end = bounds_of(part, threads, len(out))
            part_of_column(rows, rows, i, kernel, begin, end, out)
            finish(words, part, number)
    wait(words, number)


@compiled(nogil=True)
def steps(
    a: WorkingSet,
    slots: Slots,
    rows: Rows,
    kernel: Kernel,
    epsilon: float,
    tol: float,
    conjugate: bool,
    limit: int,
    team: Team,
) -> tuple[int, int]:
    """Do at most ``limit`` steps; return why they ended, and how many they were.

    `CONVERGED`: no pair violates optimality by ``tol``. `STALLED`: float64 has no smaller step. `WANTED`: the slot that was used
    last waits for its column, which is not computed here; steps go on once it is there. The first step is one of plain
    SMO, as the working set may have changed since the last direction. A step costs O(n), and O(n d) for each of its two columns
    that is not cached; the ``team`` shares these loops over rows.
    """
    # Local names, since each access to a field of a tuple counts a reference, atomically: in a loop over few numbers, most of its
    # time.
    b, gradient, lower, upper, kink, rise, fall = a.b, a.gradient, a.lower, a.upper, a.kink, a.rise, a.fall
    diagonal, ascent, descent, extremes = a.diagonal, a.ascent, a.descent, np.empty(2, np.float32)
    direction, image, support, listed = a.direction, a.image, a.support, a.listed
    columns, slot_of, owner, newer, older = slots.buffer, slots.slot_of, slots.owner, slots.newer, slots.older
    words, numbers = team.words, team.numbers
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
        threads = present(words)
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
            _share_column(words, threads, at_i, i, rows, kernel, columns[at_i : at_i + n])
        ascent_i = gradient[i] + _rise(b[i], upper[i], kink[i], epsilon)
        inverse = 1.0 / curvature if follow else 0.0
        descent[i] = -np.inf  # until the next sweep, so that no row is paired with itself
        numbers[0], numbers[1] = ascent_i - origin, inverse
        number = call(words, threads, PARTNER, at_i, i, False)
        for part in range(threads):
            if claim(words, part, number):
                begin, end = bounds_of(part, threads, n)
                words[PARTS + part, FOUND], words[PARTS + part, FOUND + 2] = best_partner(
                    begin, end, descent, columns, at_i, diagonal, i, ascent_i - origin, image, inverse, ascent
                )
                finish(words, part, number)
        wait(words, number)
        best, at = np.int64(0), np.int64(0)
        for row in range(PARTS, PARTS + threads):
            if words[row, FOUND] > best:
                best, at = words[row, FOUND], words[row, FOUND + 2]
        if best == 0:  # violations that are left are below the resolution of float32
            return STALLED, done
        j = _first(ascent, at, _float(best))
        slot, found = find(slot_of, owner, newer, older, j)
        at_j = n * slot
        if not found:
            if kernel.kind == GIVEN:
                return WANTED, done
            _share_column(words, threads, at_j, j, rows, kernel, columns[at_j : at_j + n])
        gain = (gradient[j] + _fall(b[j], lower[j], kink[j], epsilon)) - ascent_i
        image_ij = image[i] - image[j]
        beta = -image_ij * inverse
        plain = np.float64(columns[at_i + i]) + np.float64(columns[at_j + j]) - 2.0 * np.float64(columns[at_i + j])
        curvature = max(plain + beta * image_ij, TAU)
        length = _point(direction, support, listed, length, beta, i, j)
        room, step = _room(b, lower, upper, kink, direction, support, length), gain / curvature
        if room <= 0.0:  # by rounding alone: along the pair there is room
            beta, curvature = 0.0, max(plain, TAU)
            length = _point(direction, support, listed, length, beta, i, j)
            room, step = _room(b, lower, upper, kink, direction, support, length), gain / curvature
        clipped = room <= step * _SNAP
        step = min(room, step)
        if not gain > 0.0 or not _walk(b, lower, upper, kink, rise, fall, direction, support, length, step, epsilon):
            return STALLED, done
        origin, follow = ascent_i, conjugate and not clipped
        keep_image = follow or beta != 0.0
        numbers[0], numbers[1], numbers[2] = beta, step, origin
        number = call(words, threads, SWEEP, at_i, at_j, keep_image)
        for part in range(threads):
            if claim(words, part, number):
                begin, end = bounds_of(part, threads, n)
                words[PARTS + part, FOUND], words[PARTS + part, FOUND + 1], words[PARTS + part, FOUND + 2] = sweep(
                    begin, end, columns, at_i, at_j, beta, image, step, gradient, rise, fall, origin, ascent, descent, keep_image
                )
                finish(words, part, number)
        wait(words, number)
        least, most, at = words[PARTS, FOUND], words[PARTS, FOUND + 1], words[PARTS, FOUND + 2]
        for row in range(PARTS + 1, PARTS + threads):
            most = max(most, words[row, FOUND + 1])
            if words[row, FOUND] < least:
                least, at = words[row, FOUND], words[row, FOUND + 2]
        extremes[0], extremes[1] = _float(least), _float(most)
        i = _first(ascent, at, extremes[0])
    return RUNNING, limit


_ENOUGH = 4000  # rows in the working set that are worth a second thread: a loop over fewer ends before another thread sees it
_LONGEST_PAUSE = 32  # calls of steps without helpers, after one in which they were put aside

T = TypeVar("T")


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Threads, with that which calls them."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._team = Team.of(threads)
        self._alone = Team.of(1)  # steps write to its words: not to be shared with another fit that runs at the same time
        self._pause, self._calls_alone = 1, 0
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def each(self, do: Callable[[T], Any], items: Iterable[T], stop: Event | None = None) -> None:
        """Call ``do`` for each item. After an exception ``stop`` is set, no call begins, and all have ended."""
        if self._pool is None:
            for item in items:
                do(item)
            return
        futures = [self._pool.submit(copy_context().run, do, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            if stop is not None:
                stop.set()
            raise
        finally:
            _end(futures)

    def steps(
        self, a: WorkingSet, slots: Slots, rows: Rows, kernel: Kernel, epsilon: float, tol: float, conjugate: bool, limit: int
    ) -> tuple[int, int]:
        """Do steps, as `steps` does, with all threads where there are enough rows and processors are idle."""
        # Given kernel values come from the interpreter; and words that are exchanged need compiled code.
        pool = self._pool
        few = len(a.b) < _ENOUGH or kernel.kind == GIVEN or INTERPRETED
        if pool is None or few or self._calls_alone > 0:
            self._calls_alone = max(self._calls_alone - (not few), 0)
            return steps(a, slots, rows, kernel, epsilon, tol, conjugate, limit, self._alone)
        futures: list[Future[None]] = []
        team = self._team
        try:
            team.left = False
            for part in range(1, self.threads):
                helper = pool.submit(help_with_steps, part, team, a, slots, rows, kernel)
                futures.append(helper)  # one by one, as an interrupt may come
            result = steps(a, slots, rows, kernel, epsilon, tol, conjugate, limit, team)
            # Where other programs take the processors, waiting for helpers costs more than they do.
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if team.left else 1
            self._calls_alone = self._pause if team.left else 0
            return result
        finally:
            team.left = True
            _end(futures)


def _end(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.cancel()
    concurrent.futures.wait(futures)
