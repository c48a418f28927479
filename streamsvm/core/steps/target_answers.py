"""The answers of a committee that predicts targets, compiled: those of the stacks, the votes and the best expert.

Experts learn targets in standard deviations from the mean, both of them running ones and with that target, bounded by `BOUND` of
them; answers are brought back to the target's own scale.

Inputs are as in `stack`, of one output: a constant, the outcome of the votes, and the decision values of the experts, ``inputs``
float64 [m]. A stack is recursive least squares on them with a fading memory. As predictions are judged by their absolute error, a
row counts less where a stack is wrong by more than 1.5 times the mean absolute error: the loss is that of Huber, whose scale
follows the stream. There are two stacks, of short and of long memory, whose predictions are averaged; each has the share
exp(-rate times its fading absolute errors). The outcome of the votes is such an average of the experts.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.committee import STACKS, STATE, committee_views
from streamsvm.core.memory.moments import follow_value
from streamsvm.core.steps.committee import LARGEST_WEIGHT, ask, learn_experts
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.newton import ROWS_OF_INVERSE, add_row, dot, invert, pull
from streamsvm.core.steps.rule import state_of
from streamsvm.core.steps.stack import (
    BEST,
    FIRST_INPUT,
    MOST_ROWS,
    STACK,
    VOTED,
    VOTES,
    bounded,
    robust_weight,
    share_of,
    vote_of_numbers,
)

#: Deviations from the mean to which a target is bounded.
BOUND = 8.0
#: The factor by which rows fade in each stack, and its ridge.
MEMORIES, RIDGES = (1.0 - 1.0 / 1000.0, 1.0 - 1.0 / 3000.0), (3.0, 30.0)
#: The rate of stacks, as that of votes.
RATE = 0.1

_HORIZON = 10_000.0  # rows that mean and variance remember
_WINDOW = 1000.0  # rows of recent errors


@compiled
def answer(
    inputs: np.ndarray,
    weights: np.ndarray,
    losses: np.ndarray,
    errors: np.ndarray,
    mistakes: np.ndarray,
    values: np.ndarray,
    answers: np.ndarray,
) -> None:
    """Bound the inputs of experts, and compute that of the votes, the ``values`` of the stacks float64 [stacks, 1] and the three
    ``answers`` float64 [3].
    """
    best = FIRST_INPUT
    for m in range(FIRST_INPUT, len(inputs)):
        inputs[m] = bounded(inputs[m])
        if errors[m] < errors[best]:
            best = m
    inputs[VOTED] = vote_of_numbers(inputs, mistakes, len(inputs))
    least, total, stacked = losses.min(), 0.0, 0.0
    for i in range(len(weights)):
        values[i, 0] = bounded(dot(weights[i], inputs, len(inputs)))
        share = math.exp(-RATE * (losses[i] - least))
        total += share
        stacked += share * values[i, 0]
    answers[STACK], answers[VOTES], answers[BEST] = stacked / total, inputs[VOTED], inputs[best]


@compiled
def learn_errors(inputs: np.ndarray, target: float, weight: float, t: int, errors: np.ndarray, mistakes: np.ndarray) -> None:
    """Update the recent absolute error of each input, and the fading sum of them, by row number t, from 1 on.

    A row counts as so many as it weighs, within bounds.
    """
    rate, counted = share_of(weight, 1.0 / min(t + 1.0, _WINDOW)), min(weight, MOST_ROWS)
    for m in range(FIRST_INPUT, len(errors)):
        error = abs(target - inputs[m])
        errors[m] += rate * (error - errors[m])
        mistakes[m] = mistakes[m] * (1.0 - 1.0 / _WINDOW) + counted * error


@compiled
def choose(answers: np.ndarray, target: float, weight: float, t: int, errors: np.ndarray) -> int:
    """Update the recent absolute errors of the stacks, the votes and the best expert, and choose: the stacks, unless another's is
    less by more than chance. A row counts as so many as it weighs, within bounds.
    """
    rate = 1.0 / min(t + 1.0, _WINDOW)
    for i in range(3):
        errors[i] += share_of(weight, rate) * (abs(target - answers[i]) - errors[i])
    chosen = STACK
    for i in range(1, 3):
        if errors[i] < errors[chosen] * (1.0 - 0.5 * math.sqrt(rate)):
            chosen = i
    return chosen


@compiled
def learn_stack(
    inputs: np.ndarray,
    target: float,
    weight: float,
    t: int,
    i: int,
    mean_error: float,
    values: np.ndarray,
    losses: np.ndarray,
    weights: np.ndarray,
    curvatures: np.ndarray,
    inverses: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Let stack number i learn the inputs of row number t.

    ``mean_error`` is the mean absolute error of the stacks; ``rows`` float64 [2, m] is scratch.
    """
    n, w, curvature, inverse = weights.shape[1], weights[i], curvatures[i], inverses[i]
    memory, ridge = MEMORIES[i], RIDGES[i]
    missing = target - values[i, 0]
    losses[i] = losses[i] * (1.0 - 1.0 / _WINDOW) + abs(missing)
    h = weight * robust_weight(abs(missing), mean_error)
    add_row(curvature, inverse, inputs, n, h, memory, ridge, rows[1])
    for m in range(n):
        w[m] += h * missing * rows[1, m]
    if (t + 8 + 16 * i) % ROWS_OF_INVERSE == 0:  # in turn, with those of experts, too
        invert(curvature, inverse, n, rows)
        first_weights(rows[0])
        pull(inverse, w, rows[0], n, ROWS_OF_INVERSE * (1.0 - memory) * ridge, rows[1])


@compiled
def first_weights(weights: np.ndarray) -> None:
    """Fill in the weights before the first row: the mean of the experts' inputs."""
    for m in range(len(weights)):
        weights[m] = 1.0 / (len(weights) - FIRST_INPUT) if m >= FIRST_INPUT else 0.0


@compiled
def spread_of(moments: np.ndarray) -> float:
    """The standard deviation of targets, from their moments; 0 where they are constant."""
    return math.sqrt(moments[2] / moments[0]) if moments[0] > 0.0 else 0.0


@compiled
def _scaled_target(moments: np.ndarray, target: float) -> float:
    spread = spread_of(moments)
    return min(max((target - moments[1]) / spread, -BOUND), BOUND) if spread > 0.0 else 0.0


@compiled
def consult(block: np.ndarray) -> int:
    """Compute the three answers to the row at hand; 0."""
    v = committee_views(block)
    ask(block)
    answer(v.at_hand[0], v.weights, v.losses, v.errors, v.mistakes, v.odds, v.numbers)
    return 0


@compiled
def learn(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the target of the row at hand, to which there are answers; 0."""
    v, s, t = committee_views(block), state_of(block, STATE), common(block)["t"]
    follow_value(v.target_moments[0], v.target_first[0], target, BOUND, _HORIZON, True)
    scaled = _scaled_target(v.target_moments[0], target)
    learn_errors(v.at_hand[0], scaled, weight, t, v.errors, v.mistakes)
    s["choice"] = choose(v.numbers, scaled, weight, t, v.choice_errors)
    bounded, mean_error = min(weight, LARGEST_WEIGHT), v.choice_errors[STACK]
    inputs, values = v.at_hand[0], v.odds
    for i in range(STACKS):
        learn_stack(
            inputs, scaled, bounded, t, i, mean_error, values, v.losses, v.weights, v.curvatures, v.inverses, v.row_inputs
        )
    learn_experts(block, scaled, 0, weight)
    s["last_target"] = scaled
    return 0


@compiled
def decide(block: np.ndarray, what: int) -> float:  # noqa: ARG001 - there is one question
    """Return the target that is predicted of the row at hand, to which there are answers."""
    v = committee_views(block)
    moments = v.target_moments[0]
    return moments[1] + spread_of(moments) * v.numbers[state_of(block, STATE)["choice"]]
