"""The rule of budgeted stochastic coordinate ascent in the dual, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamsvm.budget.maintenance import kernel_row_of, scan_row
from streamsvm.kernels import self_kernel
from streamsvm.learners._online import (
    FULL,
    HINGE,
    LEARNED,
    OWN_BEGIN,
    REFUSED,
    add_support_vector,
    begin,
    common,
    draw,
    end,
    fill,
    largest,
    margins,
    raise_coefficient,
    violation,
    watch,
)
from streamsvm.store import record, views

__all__ = ["STATE", "learn_many", "learn_one"]

STATE = np.dtype([("reprocess", "i8"), ("replay_steps", "i8"), ("C", "f8"), ("relaxation", "f8"), ("tol", "f8")])

# A support vector that was merged stands for several rows, each of which may have a coefficient of C.
_LARGEST_SHARE = 8.0


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, tables: np.ndarray, target: float, weight: float) -> int:
    """A step along the coordinate of the row at hand, and along those of some of the last rows."""
    n_active, norm = begin(block)
    if n_active < 0:
        return REFUSED
    v, c, s = views(block), common(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    margins(block, n_active, norm)
    rising, falling, missing = violation(block, target)
    watch(block, target)
    step = _step(block, norm, missing, falling, weight)
    stamp = h["next_stamp"] if step != 0.0 else np.int64(-1)
    if step != 0.0:
        if add_support_vector(block, tables, norm, rising, falling, step) == FULL:
            return FULL
        if c["loss"] == HINGE:
            for _ in range(s["reprocess"]):
                _reprocess(block)
    length = h["window"]
    if length > 0:
        place = (c["t"] - 1) % length
        for j in range(h["used"]):
            v.window[place, j] = v.rows[0, j]
        v.window_targets[place], v.window_stamps[place] = target, stamp
        for _ in range(s["replay_steps"]):
            _replay(block, tables, np.int64(draw(block) % np.uint64(min(c["t"], length))))
    end(block)
    return LEARNED


@njit(cache=True, error_model="numpy")
def _step(block: np.ndarray, norm: float, missing: float, falling: int, weight: float) -> float:
    # Qaadan et al. (2019), algorithm 2, with the y_i that it leaves out, and alpha_i = 0 for a row that comes again as well.
    v, s = views(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    curvature = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    limit = s["C"] * weight
    if falling >= 0:  # two outputs move: the margin changes twice as fast
        curvature, limit = 2.0 * curvature, 0.5 * limit
    if abs(missing) <= s["tol"] or curvature <= 0.0:
        return 0.0
    return min(max(s["relaxation"] * missing / curvature, -limit), limit)


@njit(cache=True, error_model="numpy")
def _replay(block: np.ndarray, tables: np.ndarray, place: int) -> None:
    # A row of the window again. While it is a support vector of its own, that is stepped; else it comes as another.
    v = views(block)
    h = v.header[0]
    for j in range(h["used"]):
        v.rows[0, j] = v.window[place, j]
    n_active, norm = scan_row(v.rows[0], h["used"], v.active[0])
    if n_active < 0:
        return
    margins(block, n_active, norm)
    rising, falling, missing = violation(block, v.window_targets[place])
    step = _step(block, norm, missing, falling, 1.0)
    if step == 0.0:
        return
    for slot in range(h["n_support"]):
        if v.stamps[slot] == v.window_stamps[place]:
            raise_coefficient(block, slot, rising, falling, step)
            return
    v.window_stamps[place] = h["next_stamp"]
    add_support_vector(block, tables, norm, rising, falling, step)


@njit(cache=True, error_model="numpy")
def _reprocess(block: np.ndarray) -> None:
    # A step along the coordinate of a random support vector, whose class is that of its coefficient, as in LASVM (Bordes et al.
    # 2005); upwards only, since a merged vector no longer tells which of its rows have overshot.
    v, c, s = views(block), common(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    n, live = h["n_support"], h["live"]
    slot = np.int64(draw(block) % np.uint64(n))
    kernel_row_of(block, slot)
    own = rival = 0
    for k in range(0, live, 2):
        total = 0.0
        for i in range(n):
            total += np.float64(v.kernel_rows[2, i]) * v.coefficients[k, i]
        v.scores[k] = c["scale"] * total
        if v.coefficients[k, slot] > v.coefficients[2 * own, slot]:
            own = k // 2
    curvature = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[slot]))
    coefficient = c["scale"] * v.coefficients[2 * own, slot]
    limit = _LARGEST_SHARE * s["C"]
    if live == 2:
        sign = 1.0 if coefficient > 0.0 else -1.0
        rival, missing = -1, 1.0 - sign * v.scores[0]
    else:
        rival, sign = largest(v.scores, 0, live, own), 1.0
        missing = 1.0 - (v.scores[2 * own] - v.scores[2 * rival])
        curvature, limit = 2.0 * curvature, 0.5 * limit
    step = min(missing / curvature, limit - abs(coefficient)) if curvature > 0.0 else 0.0
    if step > 0.0:
        raise_coefficient(block, slot, own, rival, sign * step)


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, tables: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        if learn_one(block, tables, targets[i], weights[i]) == FULL:
            return i
    return X.shape[0]
