"""Stacking of experts, voting, and choosing the best expert, compiled: what classification and regression share.

Each expert has inputs to the stacks, its decision values, for each output of the model: ``inputs`` is float64 [outputs, m]. Input
0 is the constant 1, and input 1 the result of the vote. There are two stacks: one with a short memory, which adapts quickly to
drift, and one with a long memory and a stronger ridge towards equal weights, for stationary streams. Their predictions are
averaged, each with the weight exp(-rate times its fading loss). In the vote, each expert's input has the weight exp(-rate times
its fading mistakes).

Predictions are class indices (0 and 1 for one output, otherwise the index of the output), or targets. Values of an input that are
nearly equal are a tie, which the first class wins: nearest neighbours often have as many votes for two labels, and rounding
errors must not decide, because exported models round differently.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.ensemble import ensemble_views
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, get_common_state
from streamsvm.core.steps.newton import ROWS_PER_INVERSE, add_to_curvature, apply_ridge, invert_curvature

#: The three ways to combine experts: the stacks, the vote, or the best expert.
STACK, VOTES, BEST = 0, 1, 2
#: The input with the result of the vote, and the first input of an expert.
VOTE_INPUT, FIRST_INPUT = 1, 2
#: The largest weight of a row in fading sums.
MAX_FADING_WEIGHT = 10.0
#: The window of recent errors in rows, and the largest share of one row in them.
ERROR_WINDOW, MAX_SHARE = 1000.0, 0.1
#: The rate of the vote: an expert has the weight exp(-rate times its fading mistakes).
VOTING_RATE = 0.1

#: Values of an input are tied if they differ by at most this.
TIE_TOLERANCE = 2.0**-16

_FORGETTING_FACTORS = (1.0 - 1.0 / 1000.0, 1.0 - 1.0 / 3000.0)  # of the two stacks, per row
_MAX_PREDICTION = 10.0  # in standard deviations of the target
_HUBER_BEND = 1.5  # rows with a larger error, in mean absolute errors, have a smaller weight


@compiled(inline=True)
def clip_prediction(value: float) -> float:
    """Clip a predicted target, in standard deviations of the target, to [-10, 10]."""
    return min(max(value, -_MAX_PREDICTION), _MAX_PREDICTION)


@compiled
def average_votes(inputs: np.ndarray, mistakes: np.ndarray, n_inputs: int) -> float:
    """Return the weighted mean of the clipped targets that the members of an ensemble predict: ``inputs`` from the first
    member's up to index ``n_inputs``. A weight decreases exponentially with the member's recent errors in ``mistakes``.
    """
    min_mistakes, total, weighted_sum = mistakes[FIRST_INPUT:n_inputs].min(), 0.0, 0.0
    for m in range(FIRST_INPUT, n_inputs):
        share = math.exp(-VOTING_RATE * (mistakes[m] - min_mistakes))
        total += share
        weighted_sum += share * clip_prediction(inputs[m])
    return weighted_sum / total


@compiled(inline=True)
def compute_robust_weight(error: float, mean_error: float) -> float:
    """Return the weight of a row in a robust regression (Huber loss): 1 if its absolute ``error`` is at most 1.5 times
    ``mean_error``, otherwise decreasing as 1 / error.
    """
    return 1.0 if error <= _HUBER_BEND * mean_error else _HUBER_BEND * mean_error / error


@compiled(inline=True)
def compute_share(weight: float, rate: float) -> float:
    """Return the weight of a new row in an exponentially smoothed error: ``rate`` times the row's sample ``weight``, but at most
    0.1, or ``rate`` if that is larger.
    """
    return min(weight * rate, max(rate, MAX_SHARE))


@compiled
def find_best_input(errors: np.ndarray, n_inputs: int) -> int:
    """Return the index of the ensemble's prediction with the smallest recent error in ``errors`` [n_inputs or more]. The first
    two items are left out, because they belong to no member of the ensemble.
    """
    best = FIRST_INPUT
    for m in range(FIRST_INPUT + 1, n_inputs):
        if errors[m] < errors[best]:
            best = m
    return best


@compiled
def predict_class(inputs: np.ndarray, n_outputs: int, m: int) -> int:
    """Return the class index that column ``m`` of ``inputs`` [outputs, columns] predicts: decision values of one member of an
    ensemble. It is the class with the largest value, the first of nearly equal ones; with a single output, 1 if the value is
    above 0, else 0.
    """
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
def _compute_error(target: float, prediction: float, label: int, regression: bool) -> float:
    """Return the error of a prediction: in ``regression``, the absolute difference of ``target`` and ``prediction``; otherwise 0
    if the predicted class ``label`` equals the class ``target``, and 1 if not.
    """
    return abs(target - prediction) if regression else (1.0 if label != target else 0.0)


@compiled
def update_errors(block: np.ndarray, target: float, weight: float) -> None:
    """Update the recent errors of the predictions of all members of an ensemble with the current row: ``target`` is its true
    target or class index, ``weight`` its sample weight. ``block`` is the ensemble's memory.

    The row's weight multiplies its share, within limits.
    """
    v, c = ensemble_views(block), get_common_state(block)
    n_outputs, regression = v.header[0]["n_outputs"], c["loss"] == EPSILON_INSENSITIVE
    rate, fading_weight = compute_share(weight, 1.0 / min(c["t"] + 1.0, ERROR_WINDOW)), min(weight, MAX_FADING_WEIGHT)
    for m in range(FIRST_INPUT, v.header[0]["inputs"]):
        error = _compute_error(target, v.inputs[0, m], 0 if regression else predict_class(v.inputs, n_outputs, m), regression)
        v.errors[m] += rate * (error - v.errors[m])
        v.mistakes[m] = v.mistakes[m] * (1.0 - 1.0 / ERROR_WINDOW) + fading_weight * error


@compiled
def choose_combination(block: np.ndarray, target: float, weight: float) -> int:
    """Return the constant of the best way to combine an ensemble's members: `STACK` (a regression), unless `VOTES` (weighted
    vote) or `BEST` (best member) has a smaller recent error by more than chance. The errors are first updated with the current
    row's ``target`` and ``weight``.
    """
    v, c = ensemble_views(block), get_common_state(block)
    errors, regression = v.choice_errors, c["loss"] == EPSILON_INSENSITIVE
    rate = 1.0 / min(c["t"] + 1.0, ERROR_WINDOW)
    for i in range(3):
        errors[i] += compute_share(weight, rate) * (_compute_error(target, v.numbers[i], v.answers[i], regression) - errors[i])
    chosen = STACK
    for i in range(1, 3):
        error = errors[chosen]
        limit = error * (1.0 - 0.5 * math.sqrt(rate))
        if not regression:
            limit = error - 0.5 * math.sqrt(max(error * (1.0 - error), 1e-4) * rate)
        if errors[i] < limit:
            chosen = i
    return chosen


@compiled
def update_stack(block: np.ndarray, i: int, row: np.ndarray, h: float, step_size: float, ridge: float, total: float) -> None:
    """Update the weights of a stack, a regression that combines the predictions of an ensemble's members, by one Newton step.
    ``i`` is its number, ``row`` float64 [m] the members' predictions, ``h`` the second derivative of the row's loss, and
    ``step_size`` minus the first.

    ``total`` is the sum of the initial weights, which the ``ridge`` draws the weights towards.
    """
    v, t, n, forgetting_factor = ensemble_views(block), get_common_state(block)["t"], len(row), _FORGETTING_FACTORS[i]
    w, curvature, inverse, rows = v.weights[i], v.curvatures[i], v.inverses[i], v.row_inputs
    add_to_curvature(curvature, inverse, row, n, h, forgetting_factor, ridge, rows[1])
    for m in range(n):
        w[m] += step_size * rows[1, m]
    if (t + 8 + 16 * i) % ROWS_PER_INVERSE == 0:  # on other rows than the other inverses
        invert_curvature(curvature, inverse, n, rows)
        fill_initial_weights(rows[0], total)
        apply_ridge(inverse, w, rows[0], n, ROWS_PER_INVERSE * (1.0 - forgetting_factor) * ridge, rows[1])


@compiled
def fill_initial_weights(weights: np.ndarray, total: float) -> None:
    """Fill ``weights`` with the initial values for a stack (a regression that combines the predictions of an ensemble's
    members): equal numbers with the sum ``total`` for these predictions, and 0 for the first two items.
    """
    for m in range(len(weights)):
        weights[m] = total / (len(weights) - FIRST_INPUT) if m >= FIRST_INPUT else 0.0


@compiled
def softmax(scores: np.ndarray, n_outputs: int) -> np.ndarray:
    """Convert the log odds in the first ``n_outputs`` values of ``scores`` to probabilities by a softmax, in place; return
    ``scores``.
    """
    largest, total = scores[0], 0.0
    for k in range(1, n_outputs):
        largest = max(largest, scores[k])
    for k in range(n_outputs):
        scores[k] = math.exp(max(scores[k] - largest, -30.0))
        total += scores[k]
    for k in range(n_outputs):
        scores[k] /= total
    return scores
