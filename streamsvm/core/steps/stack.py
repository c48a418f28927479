"""Stacks of experts, votes and the best expert, and the choice among the three, compiled: what labels and targets share.

Each expert has inputs to the stacks, its decision values, for each output of the model: ``inputs`` is float64 [outputs, m], of
which input 0 is the constant and input 1 the outcome of the votes. There are two stacks: one of short memory, which soon is where
the stream has gone, and one of long memory and a stronger ridge towards equal weights, for where following does not pay. What
they say is averaged; each has the share exp(-rate times its fading loss). Votes weigh each expert's input by exp(-rate times its
fading mistakes).

Answers are classes: 0 and 1 of one output, else the number of an output; or targets. By an input, values that are nearly equal
are a tie, whose answer is the first class: neighbours often are as many for one label as for another, and rounding must not
choose, which differs where a model is exported.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.ensemble import ensemble_views
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, get_common_state
from streamsvm.core.steps.newton import ROWS_PER_INVERSE, add_to_curvature, apply_ridge, invert_curvature

#: The three that a model chooses from.
STACK, VOTES, BEST = 0, 1, 2
#: The input that is the outcome of the votes, and the first one of an expert.
VOTE_INPUT, FIRST_INPUT = 1, 2
#: The most rows that one counts as in fading sums, whatever its weight.
MAX_ROW_COUNT = 10.0
#: Rows of recent errors, and the largest share of one row in them.
ERROR_WINDOW, MAX_SHARE = 1000.0, 0.1
#: An expert has the share exp(-rate times its fading mistakes) in the votes.
VOTING_RATE = 0.1

#: Values of an input that differ by no more are equal to its answer.
TIE_TOLERANCE = 2.0**-16

_MEMORIES = (1.0 - 1.0 / 1000.0, 1.0 - 1.0 / 3000.0)  # the factor by which rows fade in each stack
_LARGEST = 10.0  # size of a decision value, in standard deviations of the target
_BEND = 1.5  # mean absolute errors up to which a row counts in full


@compiled(inline=True)
def clip_prediction(value: float) -> float:
    """A decision value of a target, bounded."""
    return min(max(value, -_LARGEST), _LARGEST)


@compiled
def average_votes(inputs: np.ndarray, mistakes: np.ndarray, end: int) -> float:
    """The mean of the inputs of experts up to ``end``, bounded, which are weighed by exp(-rate times their fading errors)."""
    fewest, total, voted = mistakes[FIRST_INPUT:end].min(), 0.0, 0.0
    for m in range(FIRST_INPUT, end):
        share = math.exp(-VOTING_RATE * (mistakes[m] - fewest))
        total += share
        voted += share * clip_prediction(inputs[m])
    return voted / total


@compiled(inline=True)
def compute_robust_weight(error: float, mean_error: float) -> float:
    """The weight of a row that is missed by ``error``, where ``mean_error`` is the mean absolute error; that row is in it."""
    return 1.0 if error <= _BEND * mean_error else _BEND * mean_error / error


@compiled(inline=True)
def compute_share(weight: float, rate: float) -> float:
    """The share of a row in a recent error, in which a row of weight 1 has the share ``rate``."""
    return min(weight * rate, max(rate, MAX_SHARE))


@compiled
def find_best_input(errors: np.ndarray, end: int) -> int:
    """The input of an expert, of those up to ``end``, with the least recent error."""
    best = FIRST_INPUT
    for m in range(FIRST_INPUT + 1, end):
        if errors[m] < errors[best]:
            best = m
    return best


@compiled
def predict_class(inputs: np.ndarray, n_outputs: int, m: int) -> int:
    """The answer by one input: the first class whose value is the largest, or nearly."""
    if n_outputs == 1:
        return int(inputs[0, m] > TIE_TOLERANCE)
    largest = inputs[0, m]
    for k in range(1, n_outputs):
        largest = max(largest, inputs[k, m])
    best = 0
    while inputs[best, m] < largest - TIE_TOLERANCE:
        best += 1
    return best


@compiled(inline=True)
def _error_of(target: float, number: float, label: int, numbers: bool) -> float:
    return abs(target - number) if numbers else (1.0 if label != target else 0.0)


@compiled
def update_errors(block: np.ndarray, target: float, weight: float) -> None:
    """Update the recent error of each input, and its fading mistakes, by the row's target or the number of its class.

    A row counts as so many as it weighs, within bounds.
    """
    v, c = ensemble_views(block), get_common_state(block)
    n_outputs, numbers = v.header[0]["n_outputs"], c["loss"] == EPSILON_INSENSITIVE
    rate, counted = compute_share(weight, 1.0 / min(c["t"] + 1.0, ERROR_WINDOW)), min(weight, MAX_ROW_COUNT)
    for m in range(FIRST_INPUT, v.header[0]["inputs"]):
        error = _error_of(target, v.inputs[0, m], 0 if numbers else predict_class(v.inputs, n_outputs, m), numbers)
        v.errors[m] += rate * (error - v.errors[m])
        v.mistakes[m] = v.mistakes[m] * (1.0 - 1.0 / ERROR_WINDOW) + counted * error


@compiled
def choose_combination(block: np.ndarray, target: float, weight: float) -> int:
    """Update the recent errors of the stacks, the votes and the best expert, and choose: the stacks, unless another's error is
    less by more than chance. A row counts as so many as it weighs, within bounds.
    """
    v, c = ensemble_views(block), get_common_state(block)
    errors, numbers = v.choice_errors, c["loss"] == EPSILON_INSENSITIVE
    rate = 1.0 / min(c["t"] + 1.0, ERROR_WINDOW)
    for i in range(3):
        errors[i] += compute_share(weight, rate) * (_error_of(target, v.numbers[i], v.answers[i], numbers) - errors[i])
    chosen = STACK
    for i in range(1, 3):
        error = errors[chosen]
        limit = error * (1.0 - 0.5 * math.sqrt(rate))
        if not numbers:
            limit = error - 0.5 * math.sqrt(max(error * (1.0 - error), 1e-4) * rate)
        if errors[i] < limit:
            chosen = i
    return chosen


@compiled
def update_stack(block: np.ndarray, i: int, row: np.ndarray, h: float, size: float, ridge: float, total: float) -> None:
    """Let stack number i learn a row of inputs [m], by a step of Newton's method; see `newton`.

    ``h`` is the second derivative of the loss of the row, and ``size`` minus the first one; ``total`` as in
    `fill_initial_weights`.
    """
    v, t, n, memory = ensemble_views(block), get_common_state(block)["t"], len(row), _MEMORIES[i]
    w, curvature, inverse, rows = v.weights[i], v.curvatures[i], v.inverses[i], v.row_inputs
    add_to_curvature(curvature, inverse, row, n, h, memory, ridge, rows[1])
    for m in range(n):
        w[m] += size * rows[1, m]
    if (t + 8 + 16 * i) % ROWS_PER_INVERSE == 0:  # in turn, with those of experts, too
        invert_curvature(curvature, inverse, n, rows)
        fill_initial_weights(rows[0], total)
        apply_ridge(inverse, w, rows[0], n, ROWS_PER_INVERSE * (1.0 - memory) * ridge, rows[1])


@compiled
def fill_initial_weights(weights: np.ndarray, total: float) -> None:
    """Fill in the weights before the first row, whose sum is ``total``: all experts' inputs count alike."""
    for m in range(len(weights)):
        weights[m] = total / (len(weights) - FIRST_INPUT) if m >= FIRST_INPUT else 0.0


@compiled
def softmax(scores: np.ndarray, n_outputs: int) -> np.ndarray:
    """Turn log odds into probabilities, in place; they are returned, too."""
    largest, total = scores[0], 0.0
    for k in range(1, n_outputs):
        largest = max(largest, scores[k])
    for k in range(n_outputs):
        scores[k] = math.exp(max(scores[k] - largest, -30.0))
        total += scores[k]
    for k in range(n_outputs):
        scores[k] /= total
    return scores
