"""Stochastic coordinate ascent in the dual, compiled: the budgeted rule, its window of rows that it learns again, and passes."""

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
        ("one_pass", "i8"),  # whether steps are bounded by `compute_step_limit`, or by C alone
        ("fitted", "i8"),
        ("forgotten", "i8"),  # rows learned before the stream drifted last; `COMMON` counts those since then
        ("drifts", "f8", 3),  # the chart of `detect_drift`
    ]
)
#: Fields of it that learning changes.
_LEARNED: dict[str, FieldRange] = {**FITTED_RANGE, "forgotten": (0, 2**62), "drifts": (0.0, (2.0**62, 1.0, 1.0))}

_LONGEST, _SHORTEST = 2.0, 0.1  # the bound where labels are clean, and where they are most noisy
_CAUTION = 50.0  # by how much it falls with the average's advantage, from row _ROWS_OF_CAUTION on
_ROWS_OF_CAUTION = 4000.0
_MASS = 3000.0  # C times the number of rows so far counts as this at least
_DEVIATIONS, _LEAST_VARIANCE = 4.0, 0.03  # of the chart by which a single pass forgets: see `detect_drift`
_HELD = 0.5  # of all coefficients, where it forgets


_FAST, _SLOW = 0.02, 0.002  # rates of the two means
_LEAST_ROWS = 200


@compiled(inline=True)
def detect_drift(state: np.ndarray, error: float, deviations: float, least_variance: float) -> bool:
    """Update a control chart by the error of a row, from 0 to 1; whether the stream has drifted. The chart then begins anew.

    It is that of Gama et al. (2004), Learning with drift detection, with fading means (Ross et al. 2012, Exponentially weighted
    moving average charts for detecting concept drift).

    ``state`` is float64 [3]: rows since the last drift, and the fast and the slow mean of their errors. The stream has drifted
    where the fast mean is more than so many ``deviations`` above the slow one. Rare errors count as if the variance of one were
    ``least_variance``.
    """
    state[0] += 1.0
    first = 1.0 / state[0]
    state[1] += max(first, _FAST) * (error - state[1])
    state[2] += max(first, _SLOW) * (error - state[2])
    slow = state[2]
    deviation = math.sqrt(max(slow * (1.0 - slow), least_variance) * _FAST / 2.0)
    if state[0] <= _LEAST_ROWS or state[1] <= slow + deviations * deviation:
        return False
    state[0] = state[1] = state[2] = 0.0
    return True


@compiled(inline=True)
def compute_step_limit(block: np.ndarray, diagonal: float) -> float:
    """The largest coefficient that a row of weight 1 may be given when it is learned: C, or what suits a single pass.

    In one pass a step that was too long is not taken back, and one that was too short is not repeated. The average iterate errs
    less than the last one where steps follow noise: the more so, the smaller they must be. A C so small that the rows so far
    could hardly move the model counts as more. Both bounds are those of the row's own decision value, by its self-kernel
    ``diagonal``; that of numbers which are predicted worse than by 1 is as much larger.
    """
    c, s = get_common_state(block), get_rule_state(block, STATE)
    if s["one_pass"] == 0:
        return s["C"]
    t = float(c["t"])
    last, average, longest = c["error"][0], c["error"][1], _LONGEST
    if average < last:  # measured in the deviation that chance gives to an error rate; errors of numbers in themselves
        advantage = (last - average) / max(math.sqrt(last), last)
        longest = max(longest * math.exp(-_CAUTION * min(t / _ROWS_OF_CAUTION, 1.0) * advantage), _SHORTEST)
    longest *= max(last, 1.0)
    return min(longest / diagonal, max(s["C"], _MASS / (t * diagonal)))


@compiled(inline=True)
def _clipped_step(block: np.ndarray, diagonal: float, missing: float, falling: int, weight: float) -> float:
    # Qaadan et al. (2019), algorithm 2, with the y_i that it leaves out, and alpha_i = 0 for a row that comes again as well.
    s = get_rule_state(block, STATE)
    if abs(missing) <= s["tol"] or diagonal <= 0.0:
        return 0.0
    curvature, limit = diagonal, compute_step_limit(block, diagonal) * weight
    if falling >= 0:  # two outputs move: the margin changes twice as fast
        curvature, limit = 2.0 * curvature, 0.5 * limit
    return min(max(s["relaxation"] * missing / curvature, -limit), limit)


@compiled(inline=True)
def save_to_window(block: np.ndarray, target: float, weight: float, stamp: int) -> None:
    """Save the current row, the last of ``t``, in the window if there is one, with the stamp of its support vector or -1."""
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    if h["window"] > 0:
        place, scaled = (c["t"] - 1) % h["window"], h["scaled"] > 0
        for j in range(h["used"]):
            v.window[place, j] = v.unscaled[j] if scaled else np.float64(v.rows[0, j])
        v.window_targets[place], v.window_weights[place], v.window_stamps[place] = target, weight, stamp


@compiled(inline=True)
def find_slot(block: np.ndarray, stamp: int) -> int:
    """The slot of the support vector with this stamp, or -1 where it has been merged or removed."""
    v = views(block)
    for slot in range(v.header[0]["n_support"] if stamp >= 0 else 0):
        if v.stamps[slot] == stamp:
            return slot
    return -1


@compiled(inline=True)
def _replay_rows(block: np.ndarray, place: int) -> None:
    # Learn a row of the window again. While its own support vector exists, that is stepped; else the row becomes another.
    v = views(block)
    h = v.header[0]
    for j in range(h["used"]):
        if h["scaled"] > 0:
            v.unscaled[j] = v.window[place, j]
        else:
            v.rows[0, j] = np.float32(v.window[place, j])
    n_active, norm = scale_current_row(block)
    if n_active < 0:
        return
    compute_last_scores(block, n_active, norm)
    target, weight = v.window_targets[place], v.window_weights[place]
    rising, falling, missing = compute_violation(block, target)
    diagonal = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    size = _clipped_step(block, diagonal, missing, falling, weight)
    if size == 0.0:
        return
    slot = find_slot(block, v.window_stamps[place])
    if slot >= 0:
        v.weights[slot] += np.float32(weight)
        add_to_coefficient(block, slot, size, rising, falling)
    else:
        v.window_stamps[place] = h["next_stamp"]
        add_support_vector(block, CurrentRow(target, weight, norm, diagonal), size, rising, falling)


@compiled(inline=True)
def _reprocess_vectors(block: np.ndarray) -> None:
    # A step along the coordinate of a random support vector, whose class is that of its coefficient, as in LASVM (Bordes et al.
    # 2005). Upwards only, since a merged vector no longer tells which of its rows have overshot. It stands for all of them, and
    # so its coefficient may be as large for each of them as for a row.
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
        rival, missing = -1, 1.0 - sign * v.scores[0]
    else:
        rival, sign = find_best_output(v.scores, LAST_ITERATE, n_scores, label), 1.0
        missing = 1.0 - (v.scores[2 * label] - v.scores[2 * rival])
        curvature, limit = 2.0 * curvature, 0.5 * limit
    size = min(missing / curvature, limit - abs(coefficient))
    if size > 0.0:
        add_to_coefficient(block, slot, sign * size, label, rival)


@compiled(inline=True)
def _forget(block: np.ndarray) -> None:
    # Half of what was learned stays, as a start: its vectors stand for no rows any more, so that nothing raises them again, and
    # the smallest are merged first. All else begins anew: the average, and what depends on the number of rows so far.
    v, c, s = views(block), get_common_state(block), get_rule_state(block, STATE)
    h = v.header[0]
    factor, rows, merges = _HELD * c["scale"], c["t"], c["n_merges"]
    for k in range(0, h["n_outputs"], 2):
        for i in range(h["n_support"]):
            v.coefficients[k, i] *= factor
        v.biases[k] *= _HELD
        v.scores[k] *= _HELD
    for i in range(h["n_support"]):
        v.weights[i] = np.float32(0.0)
    reset_state(c)  # the first average is the last iterate
    c["t"], c["n_merges"] = 1, merges
    s["forgotten"] += rows - 1


@rule(STATE, ranges=_LEARNED)
def step(block: np.ndarray, row: CurrentRow) -> None:
    """A step along the coordinate of the current row, and along those of some of the last rows."""
    c, s = get_common_state(block), get_rule_state(block, STATE)
    rising, falling, missing = compute_violation(block, row.target)
    if s["one_pass"] != 0 and row.weight == 1.0:  # errors come in waves after a row that weighs much
        error = min(abs(missing), 1.0)
        if c["loss"] == HINGE:
            error = 1.0 if abs(missing) > 1.0 else 0.0
        if detect_drift(s["drifts"], error, _DEVIATIONS, _LEAST_VARIANCE):
            _forget(block)
            rising, falling, missing = compute_violation(block, row.target)
    size = _clipped_step(block, row.self_kernel, missing, falling, row.weight)
    h = views(block).header[0]
    stamp = h["next_stamp"] if size != 0.0 else np.int64(-1)
    if size != 0.0:
        add_support_vector(block, row, size, rising, falling)
        if c["loss"] == HINGE:
            for _ in range(s["reprocess"]):
                _reprocess_vectors(block)
    save_to_window(block, row.target, row.weight, stamp)
    for _ in range(s["replay_steps"] if h["window"] > 0 else 0):
        _replay_rows(block, np.int64(draw_bits(block) % np.uint64(min(c["t"], h["window"]))))


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
        set_current_row(block, X, columns, i)
        n_active, norm, _ = begin_row(block)
        row = score_row(block, n_active, norm, targets[i], weights[i])
        rising, falling, step = _ascent_step(block, row, coefficients[i])
        if step != 0.0:
            stepped += 1
            coefficients[i, rising] += step
            if falling >= 0:
                coefficients[i, falling] -= step
            slot = find_slot(block, stamps[i])
            if slot >= 0:
                add_to_coefficient(block, slot, step, rising, falling)
            else:
                merged = stamps[i] >= 0 and merges  # the merged vector has the row's weight already
                weight = 0.0 if merged else weights[i]
                stamps[i] = views(block).header[0]["next_stamp"]
                add_support_vector(block, CurrentRow(row.target, weight, norm, row.self_kernel), step, rising, falling)
        save_to_window(block, targets[i], weights[i], stamps[i])
        end_row(block)
    return stepped


@compiled
def _ascent_step(block: np.ndarray, row: CurrentRow, coefficients: np.ndarray) -> tuple[int, int, float]:
    # The output that rises, the one that falls (-1: none), and by how much. The dual objective along a coordinate is quadratic:
    # the step goes to its maximum, and beyond it by the relaxation.
    v, c, s = views(block), get_common_state(block), get_rule_state(block, STATE)
    diagonal, target, limit = row.self_kernel, row.target, s["C"] * row.weight
    if diagonal <= 0.0:
        return 0, -1, 0.0
    if v.header[0]["n_outputs"] > 2:
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
    v, s = views(block), get_rule_state(block, STATE)
    rising = falling = -1
    most, least, room, largest = -np.inf, np.inf, 0.0, 0.0
    for k in range(v.header[0]["n_outputs"] // 2):
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
