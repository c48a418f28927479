"""The scale of a committee's rows, compiled: it follows the stream, and stored vectors follow it.

A row is given as it is, and learned as so many deviations from the mean of each feature, bounded. The scale in use lags behind
the running one until it is off by some percent: then all stored vectors are brought to the new one, as if they had come today.
Gamma is one over the sum of the features' variances, so that it follows, too.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.kernels import LARGEST_GAMMA
from streamsvm.learners.compiled import least_squares
from streamsvm.learners.compiled.landmarks import finish
from streamsvm.learners.compiled.least_squares import fade
from streamsvm.learners.compiled.rule import state_of
from streamsvm.memory.committee import committee_views
from streamsvm.memory.landmarks import landmark_views
from streamsvm.memory.moments import learn_value
from streamsvm.memory.support_vectors import views

__all__ = ["BOUND", "learn_moments", "move_landmarks", "move_vectors", "scale_moved", "scale_row"]

#: Deviations from the mean to which a value is bounded.
BOUND = np.float32(8.0)

_REACH = 30.0  # deviations to which it is bounded in mean and variance: those of a feature that is rarely not 0 must not vanish
_HORIZON = 10_000.0  # rows that mean and variance remember
_OFF = 0.05  # by which a scale in use may be off
_EVERY_ROW, _EVERY = 64, 16  # first rows after each of which that is looked at, and rows between later looks
_LEAST_VARIANCE = 1e-13  # over the squared mean: what float32 makes of a constant
_TINY = 1e-60
_GAMMA_OFF = 0.1  # by which gamma moves before the normal equations are of another kernel
_OLD_ROWS = 0.1  # what rows count that came before


@njit(cache=True, error_model="numpy")
def learn_moments(block: np.ndarray) -> None:
    """Learn the mean and the variance of each feature from the row at hand."""
    v = committee_views(block)
    for j in range(v.header[0]["used"]):
        learn_value(v.moments[j], v.first[j], np.float64(v.rows[0, j]), _REACH, _HORIZON)


@njit(cache=True, error_model="numpy", inline="always")
def _spread(moments: np.ndarray) -> float:
    # The standard deviation of a feature, 0 where it is constant.
    if moments[0] == 0.0:
        return 0.0
    variance = moments[2] / moments[0]
    return math.sqrt(variance) if variance > _LEAST_VARIANCE * moments[1] * moments[1] + _TINY else 0.0


@njit(cache=True, error_model="numpy")
def scale_moved(block: np.ndarray, scaling: bool, t: int) -> bool:
    """Whether the running scale has left the one in use, after row number t.

    Then it comes into use, and ``ratio`` and ``shift`` lead from the old one to it. Without scaling gamma alone follows.
    """
    v = committee_views(block)
    if t > _EVERY_ROW and t % _EVERY != 0:
        return False
    used = v.header[0]["used"]
    moved = False
    for j in range(used):
        spread, before = _spread(v.moments[j]), v.spread[j]
        if abs(spread - before) > _OFF * before or (scaling and abs(v.moments[j, 1] - v.location[j]) > 2.0 * _OFF * spread):
            moved = True
    if not moved:
        return False
    for j in range(used):
        spread, location, before = _spread(v.moments[j]), v.moments[j, 1], v.spread[j]
        v.ratio[j], v.shift[j] = 1.0, 0.0
        if scaling:
            v.ratio[j] = v.shift[j] = 0.0
            if spread > 0.0:
                v.ratio[j] = before / spread
                v.shift[j] = (v.location[j] - location) / spread
            v.location[j] = location
        v.spread[j] = spread
    return True


@njit(cache=True, error_model="numpy")
def scale_row(block: np.ndarray, scaling: bool) -> None:
    """Fill in ``rows[1]``: the row at hand, by the scale in use where there is scaling."""
    v = committee_views(block)
    for j in range(v.header[0]["used"]):
        value = v.rows[0, j]
        if scaling:
            value = np.float32(0.0)
            if v.spread[j] > 0.0:
                value = np.float32((np.float64(v.rows[0, j]) - v.location[j]) / v.spread[j])
            value = min(max(value, -BOUND), BOUND)
        v.rows[1, j] = value


@njit(cache=True, error_model="numpy")
def gamma_of(block: np.ndarray, scaling: bool) -> float:
    """One over the sum of the variances of scaled rows, or of rows as they are."""
    v = committee_views(block)
    total = 0.0
    for j in range(v.header[0]["used"]):
        total += (1.0 if v.spread[j] > 0.0 else 0.0) if scaling else v.spread[j] * v.spread[j]
    return min(1.0 / total, 1e-3 * LARGEST_GAMMA) if total > 0.0 else 1.0


@njit(cache=True, error_model="numpy")
def move_vectors(block: np.ndarray, store: np.ndarray, gamma: float, scaling: bool) -> None:
    """Bring the support vectors of an expert's store, a part of the block, to the new scale, and set its gamma. O(B d)."""
    s = views(store)
    h = s.header[0]
    h["gamma"] = gamma
    s.cache[0] = 0
    if scaling:
        h["largest_norm"] = _move(block, s.vectors, s.norms, h["n_support"])


@njit(cache=True, error_model="numpy")
def move_landmarks(block: np.ndarray, store: np.ndarray, gamma: float, scaling: bool) -> int:
    """Bring the landmarks and the rows that a store holds to the new scale, and set its gamma; 0. O((m + W) d) for W rows.

    The normal equations stay, as distances between rows are nearly what they were. But where gamma has moved by more than a
    tenth, all rows so far count a tenth.
    """
    v, s, own = committee_views(block), landmark_views(store), state_of(store, least_squares.STATE)
    h = s.header[0]
    faded = own["started"] != 0 and abs(gamma - h["gamma"]) > _GAMMA_OFF * h["gamma"]
    if faded:
        finish(store)
    h["gamma"] = gamma
    s.cache[0] = 0
    if scaling:
        h["largest_norm"] = _move(block, s.vectors, s.norms, h["n_support"])
        held = own["max_swaps"] if own["started"] else own["held"]
        for i in range(held):
            for j in range(h["used"]):
                value = s.window[i, j] * np.float32(v.ratio[j]) + np.float32(v.shift[j])
                s.window[i, j] = min(max(value, -BOUND), BOUND)
    if faded:
        fade(store, _OLD_ROWS)
    return 0


@njit(cache=True, error_model="numpy")
def _move(block: np.ndarray, vectors: np.ndarray, norms: np.ndarray, n: int) -> float:
    # Bring n vectors to the new scale; the largest of their squared norms.
    v, largest = committee_views(block), 0.0
    for i in range(n):
        norms[i] = np.float32(0.0)
    for j in range(v.header[0]["used"]):
        ratio, shift = np.float32(v.ratio[j]), np.float32(v.shift[j])
        for i in range(n):
            value = min(max(vectors[j, i] * ratio + shift, -BOUND), BOUND)
            vectors[j, i] = value
            norms[i] += value * value
    for i in range(n):
        largest = max(largest, np.float64(norms[i]))
    return largest
