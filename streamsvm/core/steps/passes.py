"""Dual coordinate ascent over a batch, compiled: passes in which each row has a coefficient of its own."""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.coordinate_ascent import STATE, find_stamp, next_stamp, save_row
from streamsvm.core.steps.decisions import fill_row
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, common
from streamsvm.core.steps.rule import state_of
from streamsvm.core.steps.step import Row, add_support_vector, add_to_coefficient, begin_row, end_row, observe

__all__ = ["learn_epoch"]

_LEAST = 1e-12  # a smaller step, relative to the coefficient, is what rounding leaves to a bound


@compiled
def learn_epoch(
    block: np.ndarray,
    X: np.ndarray,
    columns: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    order: np.ndarray,
    coefficients: np.ndarray,
    stamps: np.ndarray,
    merges: bool,
) -> int:
    """Step along the coordinate of each row of ``order`` int64 [m], rows of X float32 [n, features]; how many were stepped.

    ``coefficients`` float64 [n, outputs] are those of the rows. ``stamps`` int64 [n] are those of the support vectors that the
    rows have become, -1 for none: a row whose support vector has been merged since becomes one once more. ``merges``: whether
    maintenance adds up the weights of rows.
    """
    stepped = 0
    for i in order:
        fill_row(block, X, columns, i)
        n_active, norm, _ = begin_row(block)
        row = observe(block, n_active, norm, targets[i], weights[i])
        rising, falling, step = _step(block, row, coefficients[i])
        if step != 0.0:
            stepped += 1
            coefficients[i, rising] += step
            if falling >= 0:
                coefficients[i, falling] -= step
            slot = find_stamp(block, stamps[i])
            if slot >= 0:
                add_to_coefficient(block, slot, step, rising, falling)
            else:
                merged = stamps[i] >= 0 and merges  # the merged vector has the row's weight already
                weight = 0.0 if merged else weights[i]
                stamps[i] = next_stamp(block)
                add_support_vector(block, Row(row.target, weight, norm, row.self_kernel), step, rising, falling)
        save_row(block, targets[i], weights[i], stamps[i])
        end_row(block)
    return stepped


@compiled
def _step(block: np.ndarray, row: Row, coefficients: np.ndarray) -> tuple[int, int, float]:
    # The output that rises, the one that falls (-1: none), and by how much. The dual objective along a coordinate is quadratic:
    # the step goes to its maximum, and beyond it by the relaxation.
    v, c, s = views(block), common(block), state_of(block, STATE)
    diagonal, target, limit = row.self_kernel, row.target, s["C"] * row.weight
    if diagonal <= 0.0:
        return 0, -1, 0.0
    if v.header[0]["live"] > 2:
        return _step_between(block, 2.0 * diagonal, int(target), 0.5 * limit, coefficients)
    f, a = v.scores[0], coefficients[0]
    if c["loss"] == EPSILON_INSENSITIVE:
        best = a + (target - f) / diagonal
        best = max(best - c["epsilon"] / diagonal, 0.0) + min(best + c["epsilon"] / diagonal, 0.0)
        low, high = -limit, limit
    else:
        best = a + target * (1.0 - target * f) / diagonal
        low, high = min(target * limit, 0.0), max(target * limit, 0.0)
    place = a + s["relaxation"] * (best - a)
    if c["loss"] == EPSILON_INSENSITIVE and s["relaxation"] > 1.0 and place * best <= 0.0:
        place = 0.0  # beyond the kink it is steeper
    step = min(max(place, low), high) - a
    return 0, -1, step if abs(best - a) * diagonal > s["tol"] and abs(step) > _LEAST * max(abs(a), abs(a + step)) else 0.0


@compiled
def _step_between(
    block: np.ndarray, curvature: float, label: int, limit: float, coefficients: np.ndarray
) -> tuple[int, int, float]:
    # The sum of a row's coefficients stays 0, that of its class is at most the limit, all others are at most 0: of those that can
    # rise the one that gains most, against the one that gains most by falling (Keerthi et al. 2008).
    v, s = views(block), state_of(block, STATE)
    rising = falling = -1
    most, least, room, largest = -np.inf, np.inf, 0.0, 0.0
    for k in range(v.header[0]["live"] // 2):
        gain = (1.0 if k == label else 0.0) - v.scores[2 * k]
        space = limit - coefficients[k] if k == label else -coefficients[k]
        if space > 0.0 and gain > most:
            rising, most, room = k, gain, space
        if gain < least:
            falling, least = k, gain
        largest = max(largest, abs(coefficients[k]))
    if rising < 0 or rising == falling or most - least <= s["tol"]:
        return 0, -1, 0.0
    step = min(s["relaxation"] * (most - least) / curvature, room)
    return rising, falling, step if step > _LEAST * max(largest, step) else 0.0
