"""Predictions of an ensemble of regressors, compiled: those of the stacks, of the vote and of the best expert.

Experts learn targets in standard deviations from the mean (running ones, which include the target), clipped to `TARGET_CLIP`.
Predictions are converted back to the unit of the target.

A stack is recursive least squares on the experts' inputs with a fading memory (see `stack` and `newton`). Because predictions are
judged by their absolute error, a row has a smaller weight if the error of a stack exceeds 1.5 times the mean absolute error: this
is the Huber loss, with a scale that follows the stream. Predictions of the stacks are averaged, weighted by their absolute
errors. The result of the vote is a weighted average of the experts.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import dot
from streamsvm.core.memory.ensemble import N_STACKS, STATE, ensemble_views
from streamsvm.core.memory.moments import learn_stream_value
from streamsvm.core.steps import stack
from streamsvm.core.steps.ensemble import MAX_ROW_WEIGHT, predict_experts, update_experts
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import BEST, FIRST_INPUT, STACK, VOTE_INPUT, VOTES, clip_prediction

#: Targets are clipped to this number of standard deviations from the mean.
TARGET_CLIP = 8.0
#: The ridge of each stack, and the decay rate of its weight with its loss.
RIDGES, LOSS_RATE = (3.0, 30.0), 0.1
#: The sum of a stack's weights before the first row: it predicts the mean of the experts' inputs.
INITIAL_WEIGHT_SUM = 1.0

_MOMENT_WINDOW = 10_000.0  # of the running mean and variance, in rows
#: The moments of targets do not learn the target of a repeated row if it is within the first number of standard deviations from
#: the mean, and within the second one from the last target.
_MAX_REPEATED_TARGET, _MAX_STEP_OF_REPEATS = 3.0, 0.02


@compiled
def combine_predictions(block: np.ndarray) -> None:
    """Combine the targets that an ensemble's members predict for the current row in three ways: stacked regression, weighted
    vote, best member. Predictions are clipped first. The three results are stored in ``block``, the ensemble's memory.
    """
    v = ensemble_views(block)
    inputs, losses, n_inputs = v.inputs[0], v.losses, v.header[0]["inputs"]
    for m in range(FIRST_INPUT, n_inputs):
        inputs[m] = clip_prediction(inputs[m])
    inputs[VOTE_INPUT] = stack.average_votes(inputs, v.mistakes, n_inputs)
    min_loss, total, weighted_sum = losses.min(), 0.0, 0.0
    for i in range(N_STACKS):
        v.odds[i, 0] = clip_prediction(dot(v.weights[i], inputs))
        share = math.exp(-LOSS_RATE * (losses[i] - min_loss))
        total += share
        weighted_sum += share * v.odds[i, 0]
    best = stack.find_best_input(v.errors, n_inputs)
    v.numbers[STACK], v.numbers[VOTES], v.numbers[BEST] = weighted_sum / total, inputs[VOTE_INPUT], inputs[best]


@compiled
def learn_stack(block: np.ndarray, target: float, weight: float, i: int) -> None:
    """Train one of the two least squares regressions that combine the experts' (members') predictions, that with the index
    ``i``, on the current row: ``target`` is in standard deviations from the mean, ``weight`` its sample weight. ``block`` is the
    ensemble's memory.
    """
    v = ensemble_views(block)
    residual = target - v.odds[i, 0]
    v.losses[i] = v.losses[i] * (1.0 - 1.0 / stack.ERROR_WINDOW) + abs(residual)
    h = weight * stack.compute_robust_weight(abs(residual), v.choice_errors[STACK])
    stack.update_stack(block, i, v.inputs[0], h, h * residual, RIDGES[i], INITIAL_WEIGHT_SUM)


@compiled
def compute_deviation(moments: np.ndarray) -> float:
    """Return the standard deviation of the targets learned so far, from their running ``moments`` (weight, mean, sum of squared
    deviations); 0 before the first target.
    """
    return math.sqrt(moments[2] / moments[0]) if moments[0] > 0.0 else 0.0


@compiled(inline=True)
def _scale_target(moments: np.ndarray, target: float) -> float:
    """Return ``target`` in standard deviations from the mean, clipped, from the running ``moments`` of targets; 0 if they were
    all equal.
    """
    deviation = compute_deviation(moments)
    return min(max((target - moments[1]) / deviation, -TARGET_CLIP), TARGET_CLIP) if deviation > 0.0 else 0.0


@compiled
def predict_row(block: np.ndarray) -> int:
    """Predict the target of the current row of the ensemble in ``block`` (its memory): compute the predictions of all members,
    and combine them in three ways. The results are stored in ``block``; `compute_output` reads them. Always returns 0.
    """
    predict_experts(block)
    combine_predictions(block)
    return 0


@compiled
def learn_row(block: np.ndarray, target: float, weight: float) -> int:
    """Train an ensemble of regressors on the current row, after `predict_row`: update the mean and deviation of targets, the
    recent errors, the regressions that combine its members, and all members. ``block`` is the ensemble's memory. Always returns
    0.
    """
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    moments = v.target_moments[0]
    scaled = _scale_target(moments, target)
    is_usual = abs(scaled) <= _MAX_REPEATED_TARGET and abs(scaled - s["last_target"]) <= _MAX_STEP_OF_REPEATS
    if v.cache[0]["repeats"] == 0 or not is_usual:
        learn_stream_value(moments, v.target_first[0], target, TARGET_CLIP, _MOMENT_WINDOW, True)
        scaled = _scale_target(moments, target)
    stack.update_errors(block, scaled, weight)
    s["choice"] = stack.choose_combination(block, scaled, weight)
    for i in range(N_STACKS):
        learn_stack(block, scaled, min(weight, MAX_ROW_WEIGHT), i)
    update_experts(block, scaled, 0, weight)
    s["last_target"] = scaled
    return 0


@compiled
def compute_output(block: np.ndarray, output_kind: int) -> float:  # noqa: ARG001 - regressors have one output
    """Return an ensemble's predicted target for the current row, in the target's own unit, after `predict_row`. ``output_kind``
    has no effect.
    """
    v = ensemble_views(block)
    moments = v.target_moments[0]
    return moments[1] + compute_deviation(moments) * v.numbers[get_rule_state(block, STATE)["choice"]]
