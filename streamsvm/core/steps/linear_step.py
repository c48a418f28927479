"""The update rule of linear learners, compiled: dual coordinate ascent on the weights themselves.

A row is given by the columns of its features, int64 [k], which may be -1 (unknown feature) or repeat (hashed features), and their
values, float32 [k]. Every step takes O(k).
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
def _scatter_row(block: np.ndarray, columns: np.ndarray, values: np.ndarray) -> tuple[int, float]:
    """Write a sparse row (``values`` at indices ``columns``, int64 and -1 to ignore) into ``block``, a linear model's memory, as
    its current row. Values of repeated columns are added. Returns a tuple: number of non-zero features (-1 if the row is not
    finite or too large), squared norm.
    """
    v = weight_views(block)
    n, is_sorted, previous = 0, True, -1
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
        is_sorted = is_sorted and j > previous
        previous = j
    if not is_sorted:  # sums must not depend on the order of a row's features
        v.active[:n].sort()
    norm = 0.0
    for k in range(n):
        j = v.active[k]
        v.marks[j] = 0
        norm += np.float64(v.row[j]) * np.float64(v.row[j])
    return (n if norm < LARGEST_NORM else -1), norm


@compiled
def _compute_row_products(block: np.ndarray, n: int) -> tuple[float, float]:
    """Return two dot products of a linear model's current row, in its memory ``block``: with the two weight vectors from which
    its last and its average iterate are computed. ``n`` is the row's number of non-zero features.
    """
    v = weight_views(block)
    a = b = 0.0
    for k in range(n):
        j = v.active[k]
        x = np.float64(v.row[j])
        a += x * v.weights[0, j]
        b += x * v.weights[1, j]
    return a, b


@compiled(inline=True)
def _clip_step(step: float, limit: float) -> float:
    """Clip a step to [-limit, limit]."""
    return min(max(step, -limit), limit)


@compiled(noinline=True)
def _learn_row(block: np.ndarray, n: int, norm: float, target: float, weight: float) -> None:
    """Train a linear model on the current row in its memory ``block`` by a clipped dual coordinate step. ``n`` is the row's
    number of non-zero features, ``norm`` its squared norm, ``target`` -1, 1 or a regression target, ``weight`` its sample
    weight.
    """
    v, c, s = weight_views(block), get_common_state(block), get_rule_state(block, STATE)
    c["t"] += 1
    a, b = _compute_row_products(block, n)
    f = c["scale"] * a + v.biases[0]
    rate = compute_smoothing_rate(c)
    track_iterate(c, 0, f, target, rate)
    track_iterate(c, 1, c["average_v"] * b + c["average_u"] * a + v.biases[1], target, rate)
    shortfall, curvature = compute_shortfall(c, f, target), norm + s["fit_intercept"]
    if shortfall != 0.0 and curvature > 0.0:
        step = _clip_step(shortfall / curvature, s["C"] * weight)
        for k in range(n):
            j = v.active[k]
            add_to_iterates(c, v.weights[0], v.weights[1], j, step * np.float64(v.row[j]))
        v.biases[0] += step * s["fit_intercept"]
    finish_step(c, v.weights, v.biases, 2, v.header[0]["used"])


@compiled
def _compute_row_output(block: np.ndarray, n: int, output_kind: int) -> float:
    """Return a linear model's decision value or probability for the current row, which has n non-zero features. ``output_kind``
    is one of the constants `LAST_ITERATE`, `AVERAGE_ITERATE`, `DECISION` and `PROBABILITY`.
    """
    v, c = weight_views(block), get_common_state(block)
    iterate = select_iterate(c, output_kind)
    a, b = _compute_row_products(block, n)
    f = (c["average_v"] * b + c["average_u"] * a if iterate else c["scale"] * a) + v.biases[iterate]
    return compute_probability(c, iterate, f) if output_kind == PROBABILITY else f


@compiled
def learn_one(block: np.ndarray, columns: np.ndarray, values: np.ndarray, target: float, weight: float) -> bool:
    """Train a linear model on a sparse row with ``values`` float32 [k] at column indices ``columns`` int64 [k] (-1: ignored).
    Returns False, and changes nothing, if the row is not finite or too large. ``block`` is the model's memory; ``target`` is -1,
    1 or a regression target.
    """
    n, norm = _scatter_row(block, columns, values)
    if n >= 0:
        _learn_row(block, n, norm, target, weight)
    return n >= 0


@compiled
def learn_full_row(block: np.ndarray, target: float, weight: float) -> bool:
    """Train a linear model on the dense row that the caller has written into its memory ``block``. Returns False, and changes
    nothing, if the row is not finite or too large. ``target`` is -1, 1 or a regression target, ``weight`` the sample weight.
    """
    v = weight_views(block)
    n, norm = scan_row(v.row, v.header[0]["used"], v.active)
    if n >= 0:
        _learn_row(block, n, norm, target, weight)
    return n >= 0


@compiled
def compute_output(block: np.ndarray, columns: np.ndarray, values: np.ndarray, output_kind: int) -> float:
    """Return a linear model's output for a sparse row with ``values`` float32 [k] at column indices ``columns`` int64 [k]: its
    decision value or the probability of the positive label, as the constant ``output_kind`` requests. NaN if the row is not
    finite or too large. ``block`` is the model's memory.
    """
    n = _scatter_row(block, columns, values)[0]
    return _compute_row_output(block, n, output_kind) if n >= 0 else np.nan


@compiled
def compute_full_output(block: np.ndarray, output_kind: int) -> float:
    """Return a linear model's output for the dense row that the caller has written into its memory ``block``: its decision value
    or the probability of the positive label, as the constant ``output_kind`` requests. NaN if the row is not finite or too
    large.
    """
    v = weight_views(block)
    n = scan_row(v.row, v.header[0]["used"], v.active)[0]
    return _compute_row_output(block, n, output_kind) if n >= 0 else np.nan


@compiled(fastmath=FAST)
def _compute_dense_products(row: np.ndarray, weights: np.ndarray, used: int) -> tuple[float, float]:
    """Return two dot products of the first ``used`` values of a dense ``row`` with the two rows of ``weights`` float64 [2, used
    or more], from which a linear model's last and average iterate are computed.
    """
    a = b = 0.0
    for j in range(used):
        x = np.float64(row[j])
        a += x * weights[0, j]
        b += x * weights[1, j]
    return a, b


@compiled
def compute_dense_scores(block: np.ndarray, row: np.ndarray) -> tuple[float, float]:
    """Return a linear model's two decision values, by its last and by its average iterate, for a dense row float32 [used or
    more]. ``block`` is the model's memory.
    """
    v, c = weight_views(block), get_common_state(block)
    a, b = _compute_dense_products(row, v.weights, v.header[0]["used"])
    return c["scale"] * a + v.biases[0], c["average_v"] * b + c["average_u"] * a + v.biases[1]


@compiled
def learn_dense_row(block: np.ndarray, row: np.ndarray, norm: float, f: float, target: float, weight: float) -> None:
    """Train a linear model, a member of an ensemble, on a dense ``row``. ``norm`` is its squared norm, ``f`` its decision value
    by the last iterate, ``target`` -1, 1 or a regression target. ``block`` is the model's memory.

    Recent errors and probabilities are not updated, because experts of an ensemble do not need them.
    """
    v, c, s = weight_views(block), get_common_state(block), get_rule_state(block, STATE)
    used = v.header[0]["used"]
    c["t"] += 1
    shortfall, curvature = compute_shortfall(c, f, target), norm + s["fit_intercept"]
    if shortfall != 0.0 and curvature > 0.0:
        step = _clip_step(shortfall / curvature, s["C"] * weight)
        for j in range(used):
            add_to_iterates(c, v.weights[0], v.weights[1], j, step * np.float64(row[j]))
        v.biases[0] += step * s["fit_intercept"]
    finish_step(c, v.weights, v.biases, 2, used)


@compiled
def learn_rows(block: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> None:
    """Update a linear model with each row of X float32 [n, features] in sequence. ``columns`` int64 [features] maps the features
    of X to the model's columns (-1: ignored); ``targets`` and ``weights`` are float64 [n]. Invalid rows are skipped.
    """
    for i in range(X.shape[0]):
        learn_one(block, columns, X[i], targets[i], weights[i])


@compiled
def compute_outputs(block: np.ndarray, X: np.ndarray, columns: np.ndarray, output_kind: int, out: np.ndarray) -> None:
    """Compute a linear model's output for each row of X float32 [n, features] into ``out`` float64 [n, 1]: the decision value or
    the probability of the positive label, as the constant ``output_kind`` requests; NaN for invalid rows. ``columns`` maps
    features of X to the model's columns.
    """
    for i in range(X.shape[0]):
        out[i, 0] = compute_output(block, columns, X[i], output_kind)


@compiled
def find_refused_row(block: np.ndarray, X: np.ndarray, columns: np.ndarray) -> int:
    """Return the index of the first row of X float32 [n, features] that `learn_one` would refuse because it is not finite or too
    large; -1 if all rows are valid. ``columns`` maps features to the linear model's columns.
    """
    for i in range(X.shape[0]):
        if _scatter_row(block, columns, X[i])[0] < 0:
            return i
    return -1
