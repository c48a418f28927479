"""The rule of budgeted stochastic coordinate ascent in the dual, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamsvm.kernels import self_kernel
from streamsvm.learners.compiled.iterates import HINGE, OWN_BEGIN, common
from streamsvm.learners.compiled.step import (
    LEARNED,
    REFUSED,
    add_support_vector,
    dots,
    draw,
    end,
    fill,
    largest,
    margins,
    observe,
    raise_coefficient,
    violation,
)
from streamsvm.memory.block import record
from streamsvm.memory.slots import kernel_row_of, scan_row
from streamsvm.memory.support_vectors import views

__all__ = ["STATE", "find_stamp", "keep_row", "learn_many", "learn_one", "next_stamp"]

STATE = np.dtype([("reprocess", "i8"), ("replay_steps", "i8"), ("C", "f8"), ("relaxation", "f8"), ("tol", "f8")])


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, target: float, weight: float) -> int:
    """A step along the coordinate of the row at hand, and along those of some of the last rows."""
    norm, own = observe(block, target)
    if norm < 0.0:
        return REFUSED
    c, s = common(block), record(block, OWN_BEGIN, STATE)
    rising, falling, missing = violation(block, target)
    step = _step(block, own, missing, falling, weight)
    stamp = next_stamp(block) if step != 0.0 else np.int64(-1)
    if step != 0.0:
        add_support_vector(block, upkeep, norm, weight, rising, falling, step)
        if c["loss"] == HINGE:
            for _ in range(s["reprocess"]):
                _reprocess(block)
    keep_row(block, target, weight, stamp)
    length = views(block).header[0]["window"]
    for _ in range(s["replay_steps"] if length > 0 else 0):
        _replay(block, upkeep, np.int64(draw(block) % np.uint64(min(c["t"], length))))
    end(block)
    return LEARNED


@njit(cache=True, error_model="numpy")
def _step(block: np.ndarray, own: float, missing: float, falling: int, weight: float) -> float:
    # Qaadan et al. (2019), algorithm 2, with the y_i that it leaves out, and alpha_i = 0 for a row that comes again as well.
    s = record(block, OWN_BEGIN, STATE)
    curvature, limit = own, s["C"] * weight
    if falling >= 0:  # two outputs move: the margin changes twice as fast
        curvature, limit = 2.0 * curvature, 0.5 * limit
    if abs(missing) <= s["tol"] or curvature <= 0.0:
        return 0.0
    return min(max(s["relaxation"] * missing / curvature, -limit), limit)


@njit(cache=True, error_model="numpy")
def keep_row(block: np.ndarray, target: float, weight: float, stamp: int) -> None:
    """Put the row at hand, the last of ``t``, into the window where there is one, with the stamp of its support vector or -1."""
    v, c = views(block), common(block)
    h = v.header[0]
    if h["window"] > 0:
        place = (c["t"] - 1) % h["window"]
        for j in range(h["used"]):
            v.window[place, j] = v.rows[0, j]
        v.window_targets[place], v.window_weights[place], v.window_stamps[place] = target, weight, stamp


@njit(cache=True, error_model="numpy")
def next_stamp(block: np.ndarray) -> int:
    """What the next support vector will be stamped with."""
    return views(block).header[0]["next_stamp"]


@njit(cache=True, error_model="numpy")
def find_stamp(block: np.ndarray, stamp: int) -> int:
    """The slot of the support vector with this stamp, or -1 where it has been merged."""
    v = views(block)
    for slot in range(v.header[0]["n_support"] if stamp >= 0 else 0):
        if v.stamps[slot] == stamp:
            return slot
    return -1


@njit(cache=True, error_model="numpy")
def _replay(block: np.ndarray, upkeep: np.ndarray, place: int) -> None:
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
    weight = v.window_weights[place]
    own = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    step = _step(block, own, missing, falling, weight)
    if step == 0.0:
        return
    slot = find_stamp(block, v.window_stamps[place])
    if slot >= 0:
        v.weights[slot] += np.float32(weight)
        raise_coefficient(block, slot, rising, falling, step)
    else:
        v.window_stamps[place] = h["next_stamp"]
        add_support_vector(block, upkeep, norm, weight, rising, falling, step)


@njit(cache=True, error_model="numpy")
def _reprocess(block: np.ndarray) -> None:
    # A step along the coordinate of a random support vector, whose class is that of its coefficient, as in LASVM (Bordes et al.
    # 2005); upwards only, since a merged vector no longer tells which of its rows have overshot. It stands for all of them, and
    # so may have C times their weight.
    v, c, s = views(block), common(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    n, live = h["n_support"], h["live"]
    slot = np.int64(draw(block) % np.uint64(n))
    kernel_row_of(block, slot)
    own = rival = 0
    for k in range(0, live, 2):
        v.scores[k] = c["scale"] * dots(v.kernel_rows[2], v.coefficients[k], v.coefficients[k], n)[0]
        if v.coefficients[k, slot] > v.coefficients[2 * own, slot]:
            own = k // 2
    curvature = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[slot]))
    coefficient = c["scale"] * v.coefficients[2 * own, slot]
    limit = s["C"] * np.float64(v.weights[slot])
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
    block: np.ndarray, upkeep: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        learn_one(block, upkeep, targets[i], weights[i])
    return X.shape[0]
