"""Dual coordinate ascent over a batch, compiled: passes in which each row keeps its own coefficient."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamsvm.budget.dispatch import maintain
from streamsvm.learners.compiled.bsca import STATE, find_stamp, keep_row, next_stamp
from streamsvm.learners.compiled.iterates import EPSILON_INSENSITIVE, OWN_BEGIN, common
from streamsvm.learners.compiled.step import add_support_vector, draw, end, fill, observe, raise_coefficient
from streamsvm.memory.block import record
from streamsvm.memory.slots import append, scan_row
from streamsvm.memory.support_vectors import views

__all__ = ["expand", "learn_epoch"]

_LEAST = 1e-12  # step over the coefficient: less is what rounding leaves to a bound


@njit(cache=True, error_model="numpy")
def learn_epoch(
    block: np.ndarray,
    upkeep: np.ndarray,
    X: np.ndarray,
    columns: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    order: np.ndarray,
    coefficients: np.ndarray,
    stamps: np.ndarray,
    merges: bool,
) -> int:
    """One step along the coordinate of each row of ``order`` int64 [m], rows of X float32 [n, features].

    ``coefficients`` float64 [n, outputs] are those of the rows, ``stamps`` int64 [n] those of the support vectors that they have
    become, -1 where they have become none: a row whose support vector has been merged since becomes one once more. ``merges``:
    whether the weights of merged rows add up. Returns how many rows were stepped.
    """
    stepped = 0
    for i in order:
        fill(block, X, columns, i)
        norm, own = observe(block, targets[i])
        rising, falling, step = _step(block, own, targets[i], weights[i], coefficients[i])
        if step != 0.0:
            stepped += 1
            coefficients[i, rising] += step
            if falling >= 0:
                coefficients[i, falling] -= step
            slot = find_stamp(block, stamps[i])
            if slot >= 0:
                raise_coefficient(block, slot, rising, falling, step)
            else:
                merged = stamps[i] >= 0 and merges  # what stands for the row has its weight already
                weight = 0.0 if merged else weights[i]
                stamps[i] = next_stamp(block)
                add_support_vector(block, upkeep, norm, weight, rising, falling, step)
        keep_row(block, targets[i], weights[i], stamps[i])
        end(block)
    return stepped


@njit(cache=True, error_model="numpy")
def _step(block: np.ndarray, own: float, target: float, weight: float, coefficients: np.ndarray) -> tuple[int, int, float]:
    # The output that rises, the one that falls (-1: none), and by how much. The dual objective along a coordinate is quadratic:
    # its best place is found, and gone over by the relaxation.
    v, c, s = views(block), common(block), record(block, OWN_BEGIN, STATE)
    limit = s["C"] * weight
    if own <= 0.0:
        return 0, -1, 0.0
    if v.header[0]["live"] > 2:
        return _step_between(block, 2.0 * own, int(target), 0.5 * limit, coefficients)
    f, a = v.scores[0], coefficients[0]
    if c["loss"] == EPSILON_INSENSITIVE:
        best = a + (target - f) / own
        best = max(best - c["epsilon"] / own, 0.0) + min(best + c["epsilon"] / own, 0.0)
        low, high = -limit, limit
    else:
        best = a + target * (1.0 - target * f) / own
        low, high = min(target * limit, 0.0), max(target * limit, 0.0)
    place = a + s["relaxation"] * (best - a)
    if c["loss"] == EPSILON_INSENSITIVE and s["relaxation"] > 1.0 and place * best <= 0.0:
        place = 0.0  # beyond the kink it is steeper
    step = min(max(place, low), high) - a
    return 0, -1, step if abs(best - a) * own > s["tol"] and abs(step) > _LEAST * max(abs(a), abs(a + step)) else 0.0


@njit(cache=True, error_model="numpy")
def _step_between(
    block: np.ndarray, curvature: float, own: int, limit: float, coefficients: np.ndarray
) -> tuple[int, int, float]:
    # The sum of a row's coefficients stays 0, that of its class is at most the limit, all others are at most 0: of those that can
    # rise the one that gains most, against the one that gains most by falling (Keerthi et al. 2008).
    v, s = views(block), record(block, OWN_BEGIN, STATE)
    rising = falling = -1
    most, least, room, largest = -np.inf, np.inf, 0.0, 0.0
    for k in range(v.header[0]["live"] // 2):
        gain = (1.0 if k == own else 0.0) - v.scores[2 * k]
        space = limit - coefficients[k] if k == own else -coefficients[k]
        if space > 0.0 and gain > most:
            rising, most, room = k, gain, space
        if gain < least:
            falling, least = k, gain
        largest = max(largest, abs(coefficients[k]))
    if rising < 0 or rising == falling or most - least <= s["tol"]:
        return 0, -1, 0.0
    step = min(s["relaxation"] * (most - least) / curvature, room)
    return rising, falling, step if step > _LEAST * max(largest, step) else 0.0


@njit(cache=True, error_model="numpy")
def expand(
    block: np.ndarray, upkeep: np.ndarray, X: np.ndarray, columns: np.ndarray, weights: np.ndarray, coefficients: np.ndarray
) -> None:
    """Put the rows of X float32 [n, features], with ``coefficients`` float64 [n, outputs], into an empty store."""
    v = views(block)
    h = v.header[0]
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        slot = append(block, v.rows[0], scan_row(v.rows[0], h["used"], v.active[0])[1], weights[i])
        for k in range(coefficients.shape[1]):
            raise_coefficient(block, slot, k, -1, coefficients[i, k])
        if h["n_support"] > h["budget"]:
            common(block)["n_merges"] += maintain(block, upkeep, draw(block))
