"""Stochastic dual coordinate ascent on a budget (BSCA), compiled: the update rule, its replay window, and passes over rows."""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import compute_self_kernel
from streamsvm.core.memory.slots import compute_slot_kernels
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.decisions import set_current_row
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, HINGE, LAST_ITERATE, get_common_state, reset_state
from streamsvm.core.steps.rescale import scale_current_row
from streamsvm.core.steps.rule import FITTED_RANGE, FieldRange, get_rule_state, rule
from streamsvm.core.steps.step import (
    FIRST_OUTPUT,
    CurrentRow,
    add_support_vector,
    add_to_coefficient,
    begin_row,
    compute_dot_products,
    compute_last_scores,
    compute_violation,
    draw_bits,
    draw_slot,
    end_row,
    find_best_output,
    score_row,
)

STATE = np.dtype(
    [
        ("reprocess", "i8"),
        ("replay_steps", "i8"),
        ("C", "f8"),
        ("relaxation", "f8"),
        ("tol", "f8"),
        ("one_pass", "i8"),  # whether steps are limited by `compute_step_limit`, or by C alone
        ("fitted", "i8"),
        ("forgotten", "i8"),  # rows learned before the last concept drift; `COMMON_STATE` counts the rows since then
        ("drifts", "f8", 3),  # state of `detect_drift`
    ]
)
#: The fields of `STATE` that learning changes.
_LEARNED: dict[str, FieldRange] = {**FITTED_RANGE, "forgotten": (0, 2**62), "drifts": (0.0, (2.0**62, 1.0, 1.0))}

_MAX_LIMIT, _MIN_LIMIT = 2.0, 0.1  # the step limit for clean labels, and for very noisy ones
_LIMIT_DECAY = 50.0  # decay of the limit with the average iterate's advantage, in full from row _LIMIT_DECAY_ROWS on
_LIMIT_DECAY_ROWS = 4000.0
_MIN_TOTAL_C = 3000.0  # a smaller C times the number of rows counts as this
_DEVIATIONS, _MIN_VARIANCE = 4.0, 0.03  # of the drift detector of single passes: see `detect_drift`
_KEPT_SHARE = 0.5  # coefficients are multiplied by this after a drift
_FAST_RATE, _SLOW_RATE = 0.02, 0.002  # smoothing rates of the two error means of the drift detector
_MIN_ROWS = 200  # between two drifts


@compiled(inline=True)
def detect_drift(state: np.ndarray, error: float, deviations: float, min_variance: float) -> bool:
    """Update a concept drift detector with a row's prediction ``error`` (0 to 1); return True, and reset the detector, if recent
    errors exceed earlier ones by more than ``deviations`` standard deviations. ``state`` float64 [3] is the detector: rows since
    the last drift, fast and slow mean of errors. ``min_variance`` is a lower bound of an error's variance.

    This is the chart of Gama et al. (2004), Learning with drift detection, with exponentially weighted means (Ross et al. 2012,
    Exponentially weighted moving average charts for detecting concept drift). The lower bound of the variance is for rare errors.
    """
    state[0] += 1.0
    first = 1.0 / state[0]
    state[1] += max(first, _FAST_RATE) * (error - state[1])
    state[2] += max(first, _SLOW_RATE) * (error - state[2])
    slow = state[2]
    deviation = math.sqrt(max(slow * (1.0 - slow), min_variance) * _FAST_RATE / 2.0)
    if state[0] <= _MIN_ROWS or state[1] <= slow + deviations * deviation:
        return False
    state[0] = state[1] = state[2] = 0.0
    return True


@compiled(inline=True)
def compute_step_limit(block: np.ndarray, diagonal: float) -> float:
    """Return the largest coefficient that a learning step may give a new row of weight 1: the hyperparameter C, or in a single
    pass over the data a limit that is smaller for noisy labels. ``block`` is the model's memory (one byte array), ``diagonal``
    the kernel value of the row with itself.

    In a single pass, a step that was too long is not undone, and one that was too short is not repeated. If steps follow noise,
    the average iterate has a smaller error than the last one; the larger its advantage, the smaller is the limit. If C is so
    small that the rows so far could hardly change the model, the limit is raised. Both bounds refer to the row's own decision
    value, by its self-kernel ``diagonal``. In regression with a mean error above 1, the limit grows in proportion to the error.
    """
    c, s = get_common_state(block), get_rule_state(block, STATE)
    if s["one_pass"] == 0:
        return s["C"]
    t = float(c["t"])
    last, average, limit = c["error"][0], c["error"][1], _MAX_LIMIT
    if average < last:  # in standard deviations of an error rate; regression errors are relative
        advantage = (last - average) / max(math.sqrt(last), last)
        limit = max(limit * math.exp(-_LIMIT_DECAY * min(t / _LIMIT_DECAY_ROWS, 1.0) * advantage), _MIN_LIMIT)
    limit *= max(last, 1.0)
    return min(limit / diagonal, max(s["C"], _MIN_TOTAL_C / (t * diagonal)))


@compiled(inline=True)
def _compute_clipped_step(block: np.ndarray, diagonal: float, violation: float, falling: int, weight: float) -> float:
    """Return how much to change the current row's coefficient: a dual coordinate step from the margin ``violation`` and the
    kernel value ``diagonal`` of the row with itself. It is clipped in proportion to the row's ``weight``, and 0 for a violation
    within the tolerance. ``falling`` is the index of an output to lower along with it, -1 for no such output.

    This is algorithm 2 of Qaadan et al. (2019), with the factor y_i that it omits, and with alpha_i = 0 even for a repeated row.
    """
    s = get_rule_state(block, STATE)
    if abs(violation) <= s["tol"] or diagonal <= 0.0:
        return 0.0
    curvature, limit = diagonal, compute_step_limit(block, diagonal) * weight
    if falling >= 0:  # two outputs move: the margin changes twice as fast
        curvature, limit = 2.0 * curvature, 0.5 * limit
    return min(max(s["relaxation"] * violation / curvature, -limit), limit)


@compiled(inline=True)
def save_to_window(block: np.ndarray, target: float, weight: float, stamp: int) -> None:
    """Copy the current row, with its target and weight, over the oldest of the past rows that the model in ``block`` stores to
    learn them again; do nothing if the model stores no rows. ``stamp`` identifies the support vector that was made from the row
    (-1 if the row was not made one).
    """
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    if h["window"] > 0:
        position, scaled = (c["t"] - 1) % h["window"], h["scaled"] > 0
        for j in range(h["used"]):
            v.window[position, j] = v.unscaled[j] if scaled else np.float64(v.rows[0, j])
        v.window_targets[position], v.window_weights[position], v.window_stamps[position] = target, weight, stamp


@compiled(inline=True)
def find_slot(block: np.ndarray, stamp: int) -> int:
    """Return the slot (the index in the model's arrays) of the support vector that has the identification number ``stamp``, or -1
    if it was merged or removed, or ``stamp`` is -1.
    """
    v = views(block)
    for slot in range(v.header[0]["n_support"] if stamp >= 0 else 0):
        if v.stamps[slot] == stamp:
            return slot
    return -1


@compiled(inline=True)
def _replay_row(block: np.ndarray, position: int) -> None:
    """Learn one of the stored past rows again by a dual coordinate step: that at index ``position`` of the ring buffer in
    ``block``, the model's memory. A row that is not finite after standardisation is skipped.

    The step changes the coefficient of the row's own support vector if it still exists; otherwise the row becomes a new one.
    """
    v = views(block)
    h = v.header[0]
    for j in range(h["used"]):
        if h["scaled"] > 0:
            v.unscaled[j] = v.window[position, j]
        else:
            v.rows[0, j] = np.float32(v.window[position, j])
    n_active, norm = scale_current_row(block)
    if n_active < 0:
        return
    compute_last_scores(block, n_active, norm)
    target, weight = v.window_targets[position], v.window_weights[position]
    rising, falling, violation = compute_violation(block, target)
    diagonal = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    step_size = _compute_clipped_step(block, diagonal, violation, falling, weight)
    if step_size == 0.0:
        return
    slot = find_slot(block, v.window_stamps[position])
    if slot >= 0:
        v.weights[slot] += np.float32(weight)
        add_to_coefficient(block, slot, step_size, rising, falling)
    else:
        v.window_stamps[position] = h["next_stamp"]
        add_support_vector(block, CurrentRow(target, weight, norm, diagonal), step_size, rising, falling)


@compiled(inline=True)
def _reprocess_vector(block: np.ndarray) -> None:
    """Raise the coefficient of a random support vector by a dual coordinate step, as LASVM's "reprocess" (Bordes et al. 2005).
    Its class label is derived from its coefficients. ``block`` is the model's memory, changed in place.

    Coefficients only grow in magnitude, because a merged vector does not know which of its rows have overshot. It stands for all
    of them, so the limit of a single row is multiplied by their number.
    """
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    n, n_scores = h["n_support"], h["n_outputs"]
    slot = draw_slot(block)
    compute_slot_kernels(block, slot)
    label = rival = FIRST_OUTPUT
    for k in range(0, n_scores, 2):
        v.scores[k] = c["scale"] * compute_dot_products(v.kernel_rows[2], v.coefficients[k], v.coefficients[k], n)[0]
        if v.coefficients[k, slot] > v.coefficients[2 * label, slot]:
            label = k // 2
    curvature = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[slot]))
    if curvature <= 0.0:
        return
    coefficient = c["scale"] * v.coefficients[2 * label, slot]
    limit = compute_step_limit(block, curvature) * np.float64(v.weights[slot])
    if n_scores == 2:
        sign = 1.0 if coefficient > 0.0 else -1.0
        rival, violation = -1, 1.0 - sign * v.scores[0]
    else:
        rival, sign = find_best_output(v.scores, LAST_ITERATE, n_scores, label), 1.0
        violation = 1.0 - (v.scores[2 * label] - v.scores[2 * rival])
        curvature, limit = 2.0 * curvature, 0.5 * limit
    step_size = min(violation / curvature, limit - abs(coefficient))
    if step_size > 0.0:
        add_to_coefficient(block, slot, sign * step_size, label, rival)


@compiled(inline=True)
def _reset_after_drift(block: np.ndarray) -> None:
    """Adapt the model in ``block`` to a concept drift: halve all coefficients, set the weights of all support vectors to 0, and
    restart the average iterate, the recent errors and the count of rows.

    Support vectors no longer stand for rows (weight 0), so that reprocessing never raises them, and the smallest are merged
    first.
    """
    v, c, s = views(block), get_common_state(block), get_rule_state(block, STATE)
    h = v.header[0]
    factor, n_rows, n_merges = _KEPT_SHARE * c["scale"], c["t"], c["n_merges"]
    for k in range(0, h["n_outputs"], 2):
        for i in range(h["n_support"]):
            v.coefficients[k, i] *= factor
        v.biases[k] *= _KEPT_SHARE
        v.scores[k] *= _KEPT_SHARE
    for i in range(h["n_support"]):
        v.weights[i] = np.float32(0.0)
    reset_state(c)  # the first average is the last iterate
    c["t"], c["n_merges"] = 1, n_merges
    s["forgotten"] += n_rows - 1


@rule(STATE, ranges=_LEARNED)
def step(block: np.ndarray, row: CurrentRow) -> None:
    """Learn the current ``row`` of the model in ``block`` by dual coordinate ascent on a budget (BSCA): one coordinate step on
    the row, then on random support vectors, then on random past rows that the model stores. In a single pass over the data, a
    detected concept drift halves all coefficients.
    """
    c, s = get_common_state(block), get_rule_state(block, STATE)
    rising, falling, violation = compute_violation(block, row.target)
    if s["one_pass"] != 0 and row.weight == 1.0:  # a row of large weight causes errors in the next rows
        error = min(abs(violation), 1.0)
        if c["loss"] == HINGE:
            error = 1.0 if abs(violation) > 1.0 else 0.0
        if detect_drift(s["drifts"], error, _DEVIATIONS, _MIN_VARIANCE):
            _reset_after_drift(block)
            rising, falling, violation = compute_violation(block, row.target)
    step_size = _compute_clipped_step(block, row.self_kernel, violation, falling, row.weight)
    h = views(block).header[0]
    stamp = h["next_stamp"] if step_size != 0.0 else np.int64(-1)
    if step_size != 0.0:
        add_support_vector(block, row, step_size, rising, falling)
        if c["loss"] == HINGE:
            for _ in range(s["reprocess"]):
                _reprocess_vector(block)
    save_to_window(block, row.target, row.weight, stamp)
    for _ in range(s["replay_steps"] if h["window"] > 0 else 0):
        _replay_row(block, np.int64(draw_bits(block) % np.uint64(min(c["t"], h["window"]))))


_MIN_RELATIVE_STEP = 1e-12  # smaller steps, relative to the coefficient, are rounding errors at a bound


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
    """Make one pass of dual coordinate ascent over the rows of X in ``order``, an array of row indices. Returns the number of
    rows whose coefficient changed. The model in ``block`` is updated in place, as are the rows' ``coefficients`` and ``stamps``
    (numbers of their support vectors).

    X is float32 [n, features], ``coefficients`` float64 [n, outputs], and ``stamps`` int64 [n], -1 for a row without a support
    vector. A row whose support vector was merged becomes a new one. ``merges``: whether budget maintenance adds up the weights of
    merged rows.
    """
    n_steps = 0
    for i in order:
        set_current_row(block, X, columns, i)
        n_active, norm, _ = begin_row(block)
        row = score_row(block, n_active, norm, targets[i], weights[i])
        rising, falling, step = _compute_ascent_step(block, row, coefficients[i])
        if step != 0.0:
            n_steps += 1
            coefficients[i, rising] += step
            if falling >= 0:
                coefficients[i, falling] -= step
            slot = find_slot(block, stamps[i])
            if slot >= 0:
                add_to_coefficient(block, slot, step, rising, falling)
            else:
                merged = stamps[i] >= 0 and merges  # the weight of the row is already in the merged vector
                weight = 0.0 if merged else weights[i]
                stamps[i] = views(block).header[0]["next_stamp"]
                add_support_vector(block, CurrentRow(row.target, weight, norm, row.self_kernel), step, rising, falling)
        save_to_window(block, targets[i], weights[i], stamps[i])
        end_row(block)
    return n_steps


@compiled
def _compute_ascent_step(block: np.ndarray, row: CurrentRow, coefficients: np.ndarray) -> tuple[int, int, float]:
    """Return a dual coordinate step on the current ``row`` as a tuple: output whose coefficient is raised, output whose
    coefficient is lowered (-1 if only one changes), and size of the change (0 if the optimum is nearer than the tolerance).
    ``coefficients`` float64 [outputs] are the row's present ones; ``block`` is the model's memory.

    The dual objective is quadratic along a coordinate: the step goes to its maximum, and beyond it by the relaxation factor.
    """
    v, c, s = views(block), get_common_state(block), get_rule_state(block, STATE)
    diagonal, target, limit = row.self_kernel, row.target, s["C"] * row.weight
    if diagonal <= 0.0:
        return 0, -1, 0.0
    if v.header[0]["n_outputs"] > 2:
        return _compute_multiclass_step(block, 2.0 * diagonal, int(target), 0.5 * limit, coefficients)
    f, a = v.scores[0], coefficients[0]
    if c["loss"] == EPSILON_INSENSITIVE:
        best = a + (target - f) / diagonal
        best = max(best - c["epsilon"] / diagonal, 0.0) + min(best + c["epsilon"] / diagonal, 0.0)
        low, high = -limit, limit
    else:
        best = a + target * (1.0 - target * f) / diagonal
        low, high = min(target * limit, 0.0), max(target * limit, 0.0)
    relaxed = a + s["relaxation"] * (best - a)
    if c["loss"] == EPSILON_INSENSITIVE and s["relaxation"] > 1.0 and relaxed * best <= 0.0:
        relaxed = 0.0  # the objective is steeper beyond its kink at 0
    step = min(max(relaxed, low), high) - a
    is_relevant = abs(best - a) * diagonal > s["tol"] and abs(step) > _MIN_RELATIVE_STEP * max(abs(a), abs(a + step))
    return 0, -1, step if is_relevant else 0.0


@compiled
def _compute_multiclass_step(
    block: np.ndarray, curvature: float, label: int, limit: float, coefficients: np.ndarray
) -> tuple[int, int, float]:
    """Return a dual coordinate step on the current row for three or more classes (Keerthi et al. 2008) as a tuple: class whose
    coefficient is raised, class whose coefficient is lowered, and size of the change; (0, -1, 0.0) if no step gains enough.
    ``label`` is the row's class; ``coefficients`` float64 [outputs] are its present ones, at most ``limit`` for its class.

    A row's coefficients sum to 0; that of its class is at most the limit, and all others are at most 0. The step is between the
    output that gains most by rising, among those that can rise, and the output that gains most by falling.
    """
    v, s = views(block), get_rule_state(block, STATE)
    rising = falling = -1
    max_gain, min_gain, room, largest = -np.inf, np.inf, 0.0, 0.0
    for k in range(v.header[0]["n_outputs"] // 2):
        gain = (1.0 if k == label else 0.0) - v.scores[2 * k]
        space = limit - coefficients[k] if k == label else -coefficients[k]
        if space > 0.0 and gain > max_gain:
            rising, max_gain, room = k, gain, space
        if gain < min_gain:
            falling, min_gain = k, gain
        largest = max(largest, abs(coefficients[k]))
    if rising < 0 or rising == falling or max_gain - min_gain <= s["tol"]:
        return 0, -1, 0.0
    step = min(s["relaxation"] * (max_gain - min_gain) / curvature, room)
    return rising, falling, step if step > _MIN_RELATIVE_STEP * max(largest, step) else 0.0
