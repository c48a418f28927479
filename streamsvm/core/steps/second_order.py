"""Experts of second order in an ensemble, compiled: Newton's method on features or functions of them.

That is logistic regression of labels, and recursive least squares of targets, of which a row that is missed by far counts less.
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import dot
from streamsvm.core.memory.ensemble import STATE, ensemble_views
from streamsvm.core.steps.ensemble import MAX_ROW_WEIGHT, NEW_FEATURES
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, get_common_state
from streamsvm.core.steps.newton import (
    MIN_CURVATURE,
    ROWS_PER_INVERSE,
    add_to_curvature,
    apply_ridge,
    clipped_sigmoid,
    invert_curvature,
)
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import compute_robust_weight, softmax

#: The ridge of the experts.
NEWTON_RIDGE = 1.0
#: Deviations from the mean to which features are bounded, and where the functions of one bend: a fifth of a normal distribution
#: lies beyond.
FEATURE_CLIP, KNOT = 5.0, 0.8

_REACH = np.float32(FEATURE_CLIP)


@compiled(inline=True)
def count_functions(side: int, used: int) -> int:
    """Return how many functions of each of so many features there are, for which there is room in a matrix of this side."""
    room = (side - 1) // max(used, 1)
    return 4 if room >= 4 else 2 if room >= 2 else 1


@compiled(inline=True)
def _fill_row(block: np.ndarray, expert: int) -> int:
    # Fill ``squares[0]`` with the current row as an expert of second order takes it, 1 first; its length.
    v = ensemble_views(block)
    h, z = v.header[0], v.squares[0]
    functions = 1
    if v.experts[expert]["additive"]:
        functions = min(get_rule_state(block, STATE)["functions"], count_functions(h["side"], h["used"]))
    features = min(h["used"], h["side"] - 1)
    z[0] = 1.0
    for j in range(features):
        x = np.float64(min(max(v.scaled[j], -_REACH), _REACH))
        place = 1 + functions * j
        z[place] = x
        if functions > 1:
            z[place + 1] = abs(x) - KNOT
        if functions > 2:
            z[place + 2], z[place + 3] = max(x - KNOT, 0.0), max(-x - KNOT, 0.0)
    return 1 + functions * features


@compiled
def predict_second_order(block: np.ndarray, store: np.ndarray, expert: int) -> int:  # noqa: ARG001
    """Predict by an expert of second order."""
    v, n = ensemble_views(block), _fill_row(block, expert)
    e = v.experts[expert]
    for k in range(v.header[0]["n_outputs"]):
        v.inputs[k, e["first_input"]] = dot(v.newton_weights[e["number"], k, :n], v.squares[0])
    return 0


@compiled
def reset_functions(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:  # noqa: ARG001
    """Let the additive expert begin anew where there are so many features that each can have fewer functions."""
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    functions = count_functions(v.header[0]["side"], v.header[0]["used"])
    if event != NEW_FEATURES or functions == s["functions"]:
        return 0
    s["functions"], number = functions, v.experts[expert]["number"]
    curvature, inverse = v.newton_curvatures[number], v.newton_inverses[number]
    for j in range(len(curvature)):
        for k in range(len(curvature)):
            curvature[j, k] = inverse[j, k] = 0.0
        curvature[j, j], inverse[j, j] = NEWTON_RIDGE, 1.0 / NEWTON_RIDGE
        for k in range(v.header[0]["n_outputs"]):
            v.newton_weights[number, k, j] = 0.0
    return 0


@compiled
def update_second_order(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:  # noqa: ARG001
    """Learn the current row. The expert's recent error has it already.

    Several outputs share the curvature of the one that is least sure.
    """
    v = ensemble_views(block)
    e, n_outputs, weight = v.experts[expert], v.header[0]["n_outputs"], min(weight, MAX_ROW_WEIGHT)
    place, number = e["first_input"], e["number"]
    n, z, direction, h = _fill_row(block, expert), v.squares[0], v.squares[1], MIN_CURVATURE
    for k in range(n_outputs):
        v.scores[k] = v.inputs[k, place]
    if get_common_state(block)["loss"] == EPSILON_INSENSITIVE:
        missing = target - v.scores[0]
        h = weight * compute_robust_weight(abs(missing), v.errors[place])
        v.scores[0] = h * missing
    else:
        if n_outputs == 1:
            v.scores[0] = clipped_sigmoid(v.scores[0])
        else:
            softmax(v.scores, n_outputs)
        for k in range(n_outputs):
            p, goal = v.scores[k], float(label) if n_outputs == 1 else (1.0 if k == label else 0.0)
            h = max(h, p * (1.0 - p))
            v.scores[k] = weight * (goal - p)
        h *= weight
    add_to_curvature(v.newton_curvatures[number], v.newton_inverses[number], z, n, h, e["memory"], NEWTON_RIDGE, direction)
    for k in range(n_outputs):
        for j in range(n):
            v.newton_weights[number, k, j] += v.scores[k] * direction[j]
    _renew_inverse(block, expert, n)
    return 0


@compiled
def _renew_inverse(block: np.ndarray, expert: int, n: int) -> None:
    # Compute the inverse anew now and then, experts in turn, and let the ridge have its effect, not with the same row.
    v = ensemble_views(block)
    number, memory, z = v.experts[expert]["number"], v.experts[expert]["memory"], v.squares[0]
    place = (get_common_state(block)["t"] + 16 * number) % ROWS_PER_INVERSE
    if place == 0:
        invert_curvature(v.newton_curvatures[number], v.newton_inverses[number], n, v.squares)
    elif place == ROWS_PER_INVERSE // 2:
        for j in range(n):
            z[j] = 0.0
        for k in range(v.header[0]["n_outputs"]):
            force = ROWS_PER_INVERSE * (1.0 - memory) * NEWTON_RIDGE
            apply_ridge(v.newton_inverses[number], v.newton_weights[number, k], z, n, force, v.squares[1])
