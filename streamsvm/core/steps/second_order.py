"""Second-order experts of an ensemble, compiled: Newton's method on features, or on functions of single features.

They are logistic regression for labels, and recursive least squares for targets, with a smaller weight of rows with a large
error.
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
    compute_sigmoid,
    invert_curvature,
)
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import compute_robust_weight, softmax

#: The ridge of second-order experts.
NEWTON_RIDGE = 1.0
#: Features are clipped to this number of standard deviations. The functions of a feature have kinks at +-`KNOT` deviations; a
#: fifth of a normal distribution lies beyond.
FEATURE_CLIP, KNOT = 5.0, 0.8

_FEATURE_CLIP = np.float32(FEATURE_CLIP)


@compiled(inline=True)
def count_functions(side: int, used: int) -> int:
    """Return how many functions of each feature (1, 2 or 4) the additive model of an ensemble can use as regressors: the feature
    itself, and piecewise linear functions of it. ``side`` is the number of rows of its curvature matrix, ``used`` the number of
    features.
    """
    max_functions = (side - 1) // max(used, 1)
    return 4 if max_functions >= 4 else 2 if max_functions >= 2 else 1


@compiled(inline=True)
def _fill_regressors(block: np.ndarray, expert: int) -> int:
    """Compute the regressors of a member of an ensemble that learns by Newton's method, for the current row, and return their
    number: the constant 1, and each clipped feature or, in the additive model, functions of it. They are stored in the
    ensemble's memory ``block``.
    """
    v = ensemble_views(block)
    h, z = v.header[0], v.squares[0]
    functions = 1
    if v.experts[expert]["additive"]:
        functions = min(get_rule_state(block, STATE)["functions"], count_functions(h["side"], h["used"]))
    features = min(h["used"], h["side"] - 1)
    z[0] = 1.0
    for j in range(features):
        x = np.float64(min(max(v.scaled[j], -_FEATURE_CLIP), _FEATURE_CLIP))
        position = 1 + functions * j
        z[position] = x
        if functions > 1:
            z[position + 1] = abs(x) - KNOT
        if functions > 2:
            z[position + 2], z[position + 3] = max(x - KNOT, 0.0), max(-x - KNOT, 0.0)
    return 1 + functions * features


@compiled
def predict_second_order(block: np.ndarray, store: np.ndarray, expert: int) -> int:  # noqa: ARG001
    """Predict the current row with a member of an ensemble that learns by Newton's method (logistic regression or least
    squares). Its decision value for each output is stored in the ensemble's memory ``block``; ``expert`` is its index. Always
    returns 0.
    """
    v, n = ensemble_views(block), _fill_regressors(block, expert)
    e = v.experts[expert]
    for k in range(v.header[0]["n_outputs"]):
        v.inputs[k, e["first_input"]] = dot(v.newton_weights[e["number"], k, :n], v.squares[0])
    return 0


@compiled
def reset_functions(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:  # noqa: ARG001
    """Reset the additive model of an ensemble (Newton's method on functions of single features) to its initial state, if new
    features leave room for fewer functions per feature. This only happens if ``event`` is `NEW_FEATURES`. ``block`` is the
    ensemble's memory, ``expert`` the model's index. Always returns 0.
    """
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
    """Train a member of an ensemble on the current row by one Newton step: on the logistic loss (class index ``label``), or in
    regression on the squared loss (``target``). ``block`` is the ensemble's memory, ``expert`` the member's index. Always
    returns 0.

    The recent error of the expert contains the row already. Several outputs share one curvature, that of the output with the
    least certain prediction.
    """
    v = ensemble_views(block)
    e, n_outputs, weight = v.experts[expert], v.header[0]["n_outputs"], min(weight, MAX_ROW_WEIGHT)
    input_index, number = e["first_input"], e["number"]
    n, z, direction, h = _fill_regressors(block, expert), v.squares[0], v.squares[1], MIN_CURVATURE
    for k in range(n_outputs):
        v.scores[k] = v.inputs[k, input_index]
    if get_common_state(block)["loss"] == EPSILON_INSENSITIVE:
        residual = target - v.scores[0]
        h = weight * compute_robust_weight(abs(residual), v.errors[input_index])
        v.scores[0] = h * residual
    else:
        if n_outputs == 1:
            v.scores[0] = compute_sigmoid(v.scores[0])
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
    _refresh_inverse(block, expert, n)
    return 0


@compiled
def _refresh_inverse(block: np.ndarray, expert: int, n: int) -> None:
    """Every 64 rows, compute the inverse curvature matrix of a member of an ensemble anew; every 64 rows, at another time, draw
    its n weights towards 0 by the ridge penalty. For other rows, do nothing. ``block`` is the ensemble's memory, ``expert`` the
    member's index.
    """
    v = ensemble_views(block)
    number, forgetting_factor, z = v.experts[expert]["number"], v.experts[expert]["memory"], v.squares[0]
    phase = (get_common_state(block)["t"] + 16 * number) % ROWS_PER_INVERSE
    if phase == 0:
        invert_curvature(v.newton_curvatures[number], v.newton_inverses[number], n, v.squares)
    elif phase == ROWS_PER_INVERSE // 2:
        for j in range(n):
            z[j] = 0.0
        for k in range(v.header[0]["n_outputs"]):
            force = ROWS_PER_INVERSE * (1.0 - forgetting_factor) * NEWTON_RIDGE
            apply_ridge(v.newton_inverses[number], v.newton_weights[number, k], z, n, force, v.squares[1])
