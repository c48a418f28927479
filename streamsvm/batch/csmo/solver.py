"""Conjugate SMO with shrinking: steps in float32 on the working set, and checks of the solution in float64.

While most coefficients are still to be found, columns of the kernel matrix are used once or twice, and cost more than the steps.
So the variables that violate optimality most are solved for together, on their own small matrix, by the same steps; then the
gradient of all rows takes all changes at once (`block_phase`). Where few rows are left that matter, single steps on cached
columns win.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from streamsvm.batch.csmo.columns import ColumnCache, Slots, cost
from streamsvm.batch.csmo.finish import finish
from streamsvm.batch.csmo.state import PAUSE, Problem, State, feasible, first_point
from streamsvm.batch.csmo.steps import RUNNING, STALLED, WANTED, Workers
from streamsvm.batch.csmo.sweeps import WorkingSet
from streamsvm.core.threads import stop_if_asked

_BLOCK = 1024  # variables of a block, of which half are the worst violators of all
_FEW = 3000  # rows in the working set that are too few for blocks
_SEEN = 0.6  # of the worst violators were in a block before: columns that are kept begin to pay
_PART = 0.1  # of the gap to which a block is solved
_STEPS = 20  # for each variable of a block, at most
_SHRINK_BLOCKS = 2  # blocks


class Options(NamedTuple):
    """Parameters of the estimators that say how to solve a problem."""

    tol: float
    conjugate: bool
    shrinking: bool
    max_iter: int
    verbose: bool


def block_phase(state: State, options: Options, look: Callable[[], None] = lambda: None) -> None:
    """Solve block after block until most of the worst violators have been in one before.

    O(n d m) a block in which m coefficients change. A block's matrix lies in the memory of the columns' cache, which is empty.
    """
    p, n, (tol, conjugate, shrinking, max_iter, verbose) = state.problem, len(state.b), options
    if state.tiles is None or n <= _FEW:
        return
    size = min(_BLOCK, math.isqrt(len(state.cache.buffer)))
    before, seen, number = np.arange(0), np.zeros(n, bool), 0
    while len(state.which) > _FEW and state.n_iter < max_iter:
        stop_if_asked()
        look()
        rises, falls = state.derivatives()
        least, most = rises.min(), falls.max()
        gap, worst = most - least, _violators(rises, falls, size // 2)
        if gap <= tol or np.mean(seen[state.which[worst]]) > _SEEN:
            break
        which = _block(worst, np.isfinite(rises) & np.isfinite(falls), _places(before, state.which), size)
        seen[state.which[which]] = True
        a, goal = state.working, max(_PART * gap, tol)
        block = WorkingSet(*(array[which] for array in a))
        start, m = block.b.copy(), len(which)
        ring = np.arange(m + 1, dtype=np.int32)
        slot_of, owner = ring[:-1].copy(), ring[:-1].copy()
        columns = Slots(state.cache.buffer, slot_of, owner, np.roll(ring, 1), np.roll(ring, -1))
        state.fill_gram(state.which[which], columns.buffer[: m * m].reshape(m, m))
        done = state.workers.steps(
            block, columns, state.rows, p.kernel, p.epsilon, goal, conjugate,
            min(_STEPS * m, max_iter - state.n_iter),
        )[1]  # fmt: skip
        number += 1
        changed = np.flatnonzero(block.b != start)
        if not len(changed):
            break
        gradient, b = a.gradient.copy(), a.b.copy()
        b[which] = block.b
        state.add((block.b - start)[changed], state.which[which[changed]], state.which, gradient)
        state.working, state.n_iter = a._replace(b=b, gradient=gradient), state.n_iter + done
        before = state.which[which]
        if verbose:
            sys.stderr.write(
                f"block {number}: gap {gap:.3g}, {state.n_iter:,} steps, {len(state.which):,} rows in the working set\n"
            )
        if shrinking and number % _SHRINK_BLOCKS == 0:
            state.shrink()


def _places(rows: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return where those of the ``rows`` that are still in the working set ``which``, ascending, lie in it."""
    places = np.searchsorted(which, rows)
    places[places == len(which)] = 0
    return places[which[places] == rows]


def _violators(rises: np.ndarray, falls: np.ndarray, n: int) -> np.ndarray:
    """Return the variables that violate optimality most, half of them by rising and half by falling, int64 ascending."""
    least, most, each = rises.min(), falls.max(), n // 2
    up, down = np.argpartition(rises, each)[:each], np.argpartition(-falls, each)[:each]
    return np.unique(np.concatenate([up[rises[up] < most], down[falls[down] > least]]))


def _block(worst: np.ndarray, free: np.ndarray, before: np.ndarray, size: int) -> np.ndarray:
    """Return the variables of the next block, int64 ascending: the worst, and of the block before the free ones first."""
    old = np.setdiff1d(before, worst)
    old = np.concatenate([old[free[old]], old[~free[old]]])[: size - len(worst)]
    return np.sort(np.concatenate([worst, old]))


_MEGABYTE = 2**20
_MEGABYTES_AN_OPERATION = 4.0  # of a kernel value: columns that are soon computed again are not worth more memory
_SHRINK_EVERY = 1000  # steps
_CHECKS = 100  # at most so many checks in float64, each followed by more steps, before a tolerance is given up


class Solution(NamedTuple):
    """A solution: ``objective`` is that of the dual, which is minimised, and ``primal`` that of the primal."""

    b: np.ndarray
    bias: float
    gap: float
    objective: float
    primal: float
    n_iter: int
    interrupted: bool


def column_buffer(megabytes: float, n: int) -> np.ndarray:
    """Return memory for columns of up to n values. The operating system provides it only as columns are written."""
    return np.empty(ColumnCache.values(int(megabytes * _MEGABYTE), n), np.float32)


def solve(
    problem: Problem,
    start: np.ndarray | None,
    options: Options,
    buffer: np.ndarray,
    workers: Workers | None = None,
    look: Callable[[], None] = lambda: None,
) -> Solution:
    """Solve a problem from coefficients ``start`` float64 [n], or from the first point, with a cache in a `column_buffer`.

    O(n) a step, and O(n d) for each new column. An interrupt, or `stop_if_asked`, ends it with the point so far. ``look`` is
    called now and then.
    """
    n = len(problem.lower)
    limit = int(_MEGABYTES_AN_OPERATION * cost(problem.rows) * _MEGABYTE)
    b = first_point(problem) if start is None else feasible(problem, start)
    state = State(problem, b, buffer[: ColumnCache.values(limit, n)], workers)
    checks, gap, interrupted = 0, np.inf, False
    max_iter = options.max_iter if options.max_iter >= 0 else sys.maxsize
    goal, since = options.tol, 0
    try:
        block_phase(state, options._replace(max_iter=max_iter), look)
        while True:
            stop_if_asked()
            look()
            m = len(state.which)
            pause = max(int(PAUSE / (m * cost(state.rows))), 50)
            status, done = state.workers.steps(
                state.working, state.cache.slots, state.rows, problem.kernel, problem.epsilon, goal, options.conjugate,
                min(max(_SHRINK_EVERY, 2_000_000 // m), pause, max_iter - state.n_iter),
            )  # fmt: skip
            state.n_iter, since = state.n_iter + done, since + done
            if status == WANTED:
                state.provide_column()
                status = RUNNING
            elif options.verbose:
                sys.stderr.write(f"{state.n_iter:,} steps, {m:,} of {n:,} rows in the working set\n")
            if status == RUNNING and state.n_iter < max_iter:
                if options.shrinking and since >= _SHRINK_EVERY:
                    since = 0
                    state.shrink()
                continue
            state.unshrink()
            before, gap, checks = gap, state.check(), checks + 1
            stuck = checks == _CHECKS or (status == STALLED and gap > 0.5 * before)
            if gap <= options.tol or state.n_iter >= max_iter or stuck:
                break
            goal = 0.9 * options.tol  # few steps are left, for which float32 is exact enough: one more check should do
            if options.shrinking:
                state.shrink()
        if gap <= options.tol:
            gap = finish(state, gap)
    except KeyboardInterrupt:
        interrupted = True
        state.unshrink()
        gap = state.check()
    state.unshrink()
    return _solution(problem, state, gap, interrupted)


def _solution(p: Problem, state: State, gap: float, interrupted: bool) -> Solution:
    a = state.working
    rises, falls = state.derivatives()
    free = rises == falls
    if free.any():
        bias = -float(rises[free].mean())
    else:
        ends = [end for end in (float(rises.min()), float(falls.max())) if math.isfinite(end)]
        bias = -sum(ends) / len(ends)
    square = 0.5 * float(a.b @ (a.gradient + p.targets))
    objective = square - float(a.b @ p.targets) + p.epsilon * float(np.abs(a.b - p.kink).sum())
    residual = -(a.gradient + bias)  # target minus decision value
    margin = p.epsilon
    if p.classification:
        margin = -1.0
        objective -= float((p.upper - p.lower).sum())
    loss = p.upper @ np.maximum(residual - margin, 0.0) - p.lower @ np.maximum(-residual - margin, 0.0)
    return Solution(a.b, bias, gap, objective, square + float(loss) + bias * p.total, state.n_iter, interrupted)
