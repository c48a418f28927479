"""The first phase of a fit of dense rows: decomposition into blocks of many variables, with products by tiles.

While most coefficients are still to be found, columns of the kernel matrix are used once or twice, and cost more than the steps.
So the variables that violate optimality most are solved for together, on their own small matrix, by the same steps; then the
gradient of all rows takes all changes at once. Where few rows are left that matter, single steps on cached columns win.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np

from streamsvm.batch.csmo.column_cache import Slots
from streamsvm.batch.csmo.state import State
from streamsvm.batch.csmo.sweeps import WorkingSet
from streamsvm.core.stopping import stop_if_asked

__all__ = ["block_phase"]

_BLOCK = 1024  # variables of a block, of which half are the worst violators of all
_FEW = 3000  # rows in the working set that are too few for blocks
_SEEN = 0.6  # of the worst violators were in a block before: columns that are kept begin to pay
_PART = 0.1  # of the gap to which a block is solved
_STEPS = 20  # for each variable of a block, at most
_SHRINK_EVERY = 2  # blocks


def block_phase(
    state: State,
    tol: float,
    conjugate: bool,
    shrinking: bool,
    max_iter: int,
    verbose: bool,
    look: Callable[[], None] = lambda: None,
) -> None:
    """Solve block after block until most of the worst violators have been in one before.

    O(n d m) a block in which m coefficients change. A block's matrix lies in the memory of the columns' cache, which is empty.
    """
    p, n = state.problem, len(state.b)
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
        if shrinking and number % _SHRINK_EVERY == 0:
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
