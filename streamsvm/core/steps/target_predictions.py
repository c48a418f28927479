"""The answers of an ensemble that predicts targets, compiled: those of the stacks, the votes and the best expert.

Experts learn targets in standard deviations from the mean, both of them running ones and with that target, bounded by
`TARGET_CLIP` of them; answers are brought back to the target's own scale.

A stack is recursive least squares on the inputs with a fading memory (see `stack`, and `newton`). As predictions are judged by
their absolute error, a row counts less where a stack is wrong by more than 1.5 times the mean absolute error: the loss is that of
Huber, whose scale follows the stream. Predictions are averaged by the absolute errors. The outcome of the votes is such an
average of the experts.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import dot
from streamsvm.core.memory.ensemble import STACKS, STATE, ensemble_views
from streamsvm.core.memory.moments import learn_stream_value
from streamsvm.core.steps import stack
from streamsvm.core.steps.ensemble import MAX_ROW_WEIGHT, predict_experts, update_experts
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import BEST, FIRST_INPUT, STACK, VOTE_INPUT, VOTES, clip_prediction

#: Deviations from the mean to which a target is bounded.
TARGET_CLIP = 8.0
#: The ridge of each stack, and the rate by which its share falls with its loss, as that of votes.
RIDGES, LOSS_RATE = (3.0, 30.0), 0.1
#: The sum of a stack's weights before the first row: it is the mean of the experts' inputs.
INITIAL_WEIGHT_SUM = 1.0

_HORIZON = 10_000.0  # rows that mean and variance remember


@compiled
def combine_predictions(block: np.ndarray) -> None:
    """Bound the inputs of experts, and compute that of the votes, the values of the stacks and the three answers."""
    v = ensemble_views(block)
    inputs, losses, n = v.inputs[0], v.losses, v.header[0]["inputs"]
    for m in range(FIRST_INPUT, n):
        inputs[m] = clip_prediction(inputs[m])
    inputs[VOTE_INPUT] = stack.average_votes(inputs, v.mistakes, n)
    least, total, stacked = losses.min(), 0.0, 0.0
    for i in range(STACKS):
        v.odds[i, 0] = clip_prediction(dot(v.weights[i], inputs))
        share = math.exp(-LOSS_RATE * (losses[i] - least))
        total += share
        stacked += share * v.odds[i, 0]
    best = stack.find_best_input(v.errors, n)
    v.numbers[STACK], v.numbers[VOTES], v.numbers[BEST] = stacked / total, inputs[VOTE_INPUT], inputs[best]


@compiled
def learn_stack(block: np.ndarray, target: float, weight: float, i: int) -> None:
    """Let stack number i learn the inputs, whose target is in deviations from the mean."""
    v = ensemble_views(block)
    missing = target - v.odds[i, 0]
    v.losses[i] = v.losses[i] * (1.0 - 1.0 / stack.ERROR_WINDOW) + abs(missing)
    h = weight * stack.compute_robust_weight(abs(missing), v.choice_errors[STACK])
    stack.update_stack(block, i, v.inputs[0], h, h * missing, RIDGES[i], INITIAL_WEIGHT_SUM)


@compiled
def compute_deviation(moments: np.ndarray) -> float:
    """The standard deviation of targets, from their moments; 0 where they are constant."""
    return math.sqrt(moments[2] / moments[0]) if moments[0] > 0.0 else 0.0


@compiled
def predict_row(block: np.ndarray) -> int:
    """Compute the three answers to the current row; 0."""
    predict_experts(block)
    combine_predictions(block)
    return 0


@compiled
def learn_row(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the target of the current row, to which there are answers; 0."""
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    moments = v.target_moments[0]
    learn_stream_value(moments, v.target_first[0], target, TARGET_CLIP, _HORIZON, True)
    spread = compute_deviation(moments)
    scaled = min(max((target - moments[1]) / spread, -TARGET_CLIP), TARGET_CLIP) if spread > 0.0 else 0.0
    stack.update_errors(block, scaled, weight)
    s["choice"] = stack.choose_combination(block, scaled, weight)
    for i in range(STACKS):
        learn_stack(block, scaled, min(weight, MAX_ROW_WEIGHT), i)
    update_experts(block, scaled, 0, weight)
    s["last_target"] = scaled
    return 0


@compiled
def compute_output(block: np.ndarray, what: int) -> float:  # noqa: ARG001 - there is one question
    """Return the target that is predicted of the current row, to which there are answers."""
    v = ensemble_views(block)
    moments = v.target_moments[0]
    return moments[1] + compute_deviation(moments) * v.numbers[get_rule_state(block, STATE)["choice"]]
