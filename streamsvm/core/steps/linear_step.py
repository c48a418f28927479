"""The rule of the linear learners, compiled: coordinate ascent in the dual, taken on the weights themselves.

A row is given by the columns of its features, int64 [k], which may be -1 (no column) or repeat (hashed), and their values,
float32 [k]. Every step takes O(k).
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LARGEST_NORM
from streamsvm.core.memory.slots import scan_row
from streamsvm.core.memory.weights import weight_views
from streamsvm.core.steps.iterates import (
    PROBABILITY,
    add_to_iterates,
    compute_probability,
    compute_shortfall,
    compute_smoothing_rate,
    finish_step,
    get_common_state,
    select_iterate,
    track_iterate,
)
from streamsvm.core.steps.rule import get_rule_state

STATE = np.dtype([("C", "f8"), ("fit_intercept", "f8")])


@compiled
def _lay_out(block: np.ndarray, columns: np.ndarray, values: np.ndarray) -> tuple[int, float]:
    # As `scan_row`: the number of features that are not zero, and the squared norm; -1 where that is too large or not finite.
    v = weight_views(block)
    n, rising, last = 0, True, -1
    for k in range(len(columns)):
        j = columns[k]
        if j < 0 or values[k] == np.float32(0.0):
            continue
        if v.marks[j]:
            v.row[j] += values[k]
            continue
        v.marks[j] = 1
        v.row[j] = values[k]
        v.active[n] = j
        n += 1
        rising = rising and j > last
        last = j
    if not rising:  # sums must not depend on the order of a row's keys
        v.active[:n].sort()
    norm = 0.0
    for k in range(n):
        j = v.active[k]
        v.marks[j] = 0
        norm += np.float64(v.row[j]) * np.float64(v.row[j])
    return (n if norm < LARGEST_NORM else -1), norm


@compiled
def _row_products(block: np.ndarray, n: int) -> tuple[float, float]:
    # Of the current row, which has n features that are not zero, with the two rows of coefficients.
    v = weight_views(block)
    a = b = 0.0
    for k in range(n):
        j = v.active[k]
        x = np.float64(v.row[j])
        a += x * v.weights[0, j]
        b += x * v.weights[1, j]
    return a, b


@compiled(inline=True)
def _bounded_step(step: float, limit: float) -> float:
    return min(max(step, -limit), limit)


@compiled(noinline=True)
def _learn_row(block: np.ndarray, n: int, norm: float, target: float, weight: float) -> None:
    v, c, s = weight_views(block), get_common_state(block), get_rule_state(block, STATE)
    c["t"] += 1
    a, b = _row_products(block, n)
    f = c["scale"] * a + v.biases[0]
    rate = compute_smoothing_rate(c)
    track_iterate(c, 0, f, target, rate)
    track_iterate(c, 1, c["average_v"] * b + c["average_u"] * a + v.biases[1], target, rate)
    missing, curvature = compute_shortfall(c, f, target), norm + s["fit_intercept"]
    if missing != 0.0 and curvature > 0.0:
        step = _bounded_step(missing / curvature, s["C"] * weight)
        for k in range(n):
            j = v.active[k]
            add_to_iterates(c, v.weights[0], v.weights[1], j, step * np.float64(v.row[j]))
        v.biases[0] += step * s["fit_intercept"]
    finish_step(c, v.weights, v.biases, 2, v.header[0]["used"])


@compiled
def _decide_row(block: np.ndarray, n: int, what: int) -> float:
    v, c = weight_views(block), get_common_state(block)
    iterate = select_iterate(c, what)
    a, b = _row_products(block, n)
    f = (c["average_v"] * b + c["average_u"] * a if iterate else c["scale"] * a) + v.biases[iterate]
    return compute_probability(c, iterate, f) if what == PROBABILITY else f


@compiled
def learn_one(block: np.ndarray, columns: np.ndarray, values: np.ndarray, target: float, weight: float) -> bool:
    """Learn a row; whether it was not refused as not finite or too large."""
    n, norm = _lay_out(block, columns, values)
    if n >= 0:
        _learn_row(block, n, norm, target, weight)
    return n >= 0


@compiled
def learn_full_row(block: np.ndarray, target: float, weight: float) -> bool:
    """`learn_one` of a row that has all features, which are in ``row``."""
    v = weight_views(block)
    n, norm = scan_row(v.row, v.header[0]["used"], v.active)
    if n >= 0:
        _learn_row(block, n, norm, target, weight)
    return n >= 0


@compiled
def compute_output(block: np.ndarray, columns: np.ndarray, values: np.ndarray, what: int) -> float:
    """The decision value of a row, or the probability of the positive label; ``what`` as in `iterates`. NaN where a row would be
    refused.
    """
    n = _lay_out(block, columns, values)[0]
    return _decide_row(block, n, what) if n >= 0 else np.nan


@compiled
def compute_full_output(block: np.ndarray, what: int) -> float:
    """`compute_output` for a row that has all features, which are in ``row``."""
    v = weight_views(block)
    n = scan_row(v.row, v.header[0]["used"], v.active)[0]
    return _decide_row(block, n, what) if n >= 0 else np.nan


@compiled(fastmath=FAST)
def _dense_products(row: np.ndarray, weights: np.ndarray, used: int) -> tuple[float, float]:
    a = b = 0.0
    for j in range(used):
        x = np.float64(row[j])
        a += x * weights[0, j]
        b += x * weights[1, j]
    return a, b


@compiled
def compute_dense_scores(block: np.ndarray, row: np.ndarray) -> tuple[float, float]:
    """The decision values of a row that has all features, float32 [used or more], by the last and by the average iterate."""
    v, c = weight_views(block), get_common_state(block)
    a, b = _dense_products(row, v.weights, v.header[0]["used"])
    return c["scale"] * a + v.biases[0], c["average_v"] * b + c["average_u"] * a + v.biases[1]


@compiled
def learn_dense_row(block: np.ndarray, row: np.ndarray, norm: float, f: float, target: float, weight: float) -> None:
    """Learn a row that has all features, of squared norm ``norm``, whose decision value by the last iterate is f.

    This is for ensembles: recent errors and probabilities are not followed, as nobody asks for those of an expert.
    """
    v, c, s = weight_views(block), get_common_state(block), get_rule_state(block, STATE)
    used = v.header[0]["used"]
    c["t"] += 1
    missing, curvature = compute_shortfall(c, f, target), norm + s["fit_intercept"]
    if missing != 0.0 and curvature > 0.0:
        step = _bounded_step(missing / curvature, s["C"] * weight)
        for j in range(used):
            add_to_iterates(c, v.weights[0], v.weights[1], j, step * np.float64(row[j]))
        v.biases[0] += step * s["fit_intercept"]
    finish_step(c, v.weights, v.biases, 2, used)


@compiled
def learn_rows(block: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> None:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        learn_one(block, columns, X[i], targets[i], weights[i])


@compiled
def compute_outputs(block: np.ndarray, X: np.ndarray, columns: np.ndarray, what: int, out: np.ndarray) -> None:
    """`compute_output` for each row of X float32 [n, features], into float64 [n, 1]."""
    for i in range(X.shape[0]):
        out[i, 0] = compute_output(block, columns, X[i], what)


@compiled
def find_refused_row(block: np.ndarray, X: np.ndarray, columns: np.ndarray) -> int:
    """The number of the first row of X that `learn_one` would refuse, or -1."""
    for i in range(X.shape[0]):
        if _lay_out(block, columns, X[i])[0] < 0:
            return i
    return -1
