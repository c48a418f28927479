"""The answers of an ensemble that predicts labels, compiled: those of the stacks, the votes and the best expert.

A stack is logistic regression on the inputs by Newton's method with a fading memory (see `stack`, and `newton`). With several
outputs they share its weights w: output k has the log odds w . inputs[k], up to a number for all, and a row is learned as the
inputs of its class less those of the others, weighed by their probabilities: that is the gradient of the softmax loss. Log odds
are averaged by the log losses. As the outcome of the votes is bounded, a stack can say that labels are wrong now and then,
whatever the decision values are.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.ensemble import STACKS, STATE, ensemble_views
from streamsvm.core.steps import stack
from streamsvm.core.steps.ensemble import MAX_ROW_WEIGHT, predict_experts, update_experts
from streamsvm.core.steps.iterates import ABOVE_HALF, PRIOR_ROWS, PROBABILITY, get_common_state
from streamsvm.core.steps.newton import MIN_CURVATURE, clipped_sigmoid
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import BEST, FIRST_INPUT, MAX_ROW_COUNT, STACK, VOTE_INPUT, VOTES, predict_class, softmax

#: The ridge of each stack, and the rate by which its share falls with its loss.
RIDGES, LOSS_RATE = (1.0, 10.0), 1.0
#: The sum of a stack's weights before the first row: twice the mean of the experts' inputs is the log odds.
INITIAL_WEIGHT_SUM = 2.0

_LARGEST_INPUT = 3.0
_LEAST_LIKELIHOOD = 1e-6
_FIRST_ROWS = 5.0  # at so many, they still have half of it
_TINY_STEP = 2.0**-40  # by which the answer that is chosen leads


@compiled(inline=True)
def _clipped_value(value: float) -> float:
    return min(max(value, -_LARGEST_INPUT), _LARGEST_INPUT)


@compiled
def _stack_scores(block: np.ndarray) -> int:
    # The log odds of each output in use by each stack into ``odds``, and the average into ``scores``; the answer.
    v = ensemble_views(block)
    n_outputs, inputs, weights, losses, odds, scores = v.header[0]["n_outputs"], v.inputs, v.weights, v.losses, v.odds, v.scores
    least, total = losses.min(), 0.0
    for k in range(n_outputs):
        scores[k] = f = g = 0.0
        for m in range(weights.shape[1]):  # both stacks at once
            z = _clipped_value(inputs[k, m])
            f += weights[0, m] * z
            g += weights[1, m] * z
        odds[0, k], odds[1, k] = f, g
    for i in range(len(weights)):
        share = math.exp(LOSS_RATE * (least - losses[i]))
        total += share
        for k in range(n_outputs):
            scores[k] += share * odds[i, k]
    best = 0
    for k in range(n_outputs):
        scores[k] /= total
        if scores[k] > scores[best]:
            best = k
    return best if n_outputs > 1 else int(scores[0] > 0.0)


@compiled
def _vote(block: np.ndarray) -> int:
    # Fill in the outcome of the votes: the share that an output has; of one output the share for it less that against it. The
    # answer with most of them.
    v = ensemble_views(block)
    n_outputs, inputs, mistakes = v.header[0]["n_outputs"], v.inputs, v.mistakes
    fewest, total = mistakes[FIRST_INPUT:].min(), 0.0
    for k in range(n_outputs):
        inputs[k, VOTE_INPUT] = 0.0
    for m in range(FIRST_INPUT, len(mistakes)):
        weight = math.exp(-stack.VOTING_RATE * (mistakes[m] - fewest))
        total += weight
        chosen = predict_class(inputs, n_outputs, m)
        if n_outputs == 1:
            inputs[0, VOTE_INPUT] += weight if chosen else -weight
        else:
            inputs[chosen, VOTE_INPUT] += weight
    for k in range(n_outputs):
        inputs[k, VOTE_INPUT] /= total
    return predict_class(inputs, n_outputs, VOTE_INPUT)


@compiled
def combine_predictions(block: np.ndarray) -> None:
    """Compute the three answers by the inputs of experts, and the stacks' log odds."""
    v = ensemble_views(block)
    h = v.header[0]
    v.answers[VOTES] = _vote(block)
    v.answers[BEST] = predict_class(v.inputs, h["n_outputs"], stack.find_best_input(v.errors, h["inputs"]))
    v.answers[STACK] = _stack_scores(block)


@compiled
def learn_stack(block: np.ndarray, label: int, weight: float, i: int) -> None:
    """Let stack number i learn the inputs, whose answer is ``label``. Its log odds of several outputs become probabilities."""
    v, t = ensemble_views(block), float(get_common_state(block)["t"])
    h, inputs, z, scores = v.header[0], v.inputs, v.row_inputs[0], v.odds[i]
    n, n_outputs = h["inputs"], h["n_outputs"]
    weight = min(weight, MAX_ROW_COUNT + stack.MAX_SHARE * min(t, stack.ERROR_WINDOW))  # experts that learn it change at once
    if n_outputs == 1:
        p = clipped_sigmoid(scores[0])
        missing = label - p
        for m in range(n):
            z[m] = _clipped_value(inputs[0, m])
    else:
        p = softmax(scores, n_outputs)[label]
        missing = 1.0 - p
        for m in range(n):
            z[m] = 0.0
        for k in range(n_outputs):
            share = 1.0 if k == label else -scores[k] / max(1.0 - p, 1e-12)
            for m in range(n):
                z[m] += share * _clipped_value(inputs[k, m])
    likelihood = 1.0 - p if n_outputs == 1 and label == 0 else p
    loss = min(weight, MAX_ROW_COUNT) * math.log(max(likelihood, _LEAST_LIKELIHOOD))
    v.losses[i] = v.losses[i] * (1.0 - 1.0 / stack.ERROR_WINDOW) - loss
    curvature = weight * max(p * (1.0 - p), MIN_CURVATURE)
    stack.update_stack(block, i, z, curvature, weight * missing, RIDGES[i], INITIAL_WEIGHT_SUM)


@compiled
def predict_row(block: np.ndarray) -> int:
    """Compute the three answers to the current row, and the stacks' log odds; 0."""
    predict_experts(block)
    combine_predictions(block)
    return 0


@compiled
def learn_row(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the current row, to which there are answers: -1 or 1, or the number of a class; 0."""
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    n_outputs = v.header[0]["n_outputs"]
    label = int(target > 0.0) if n_outputs == 1 else int(target)
    bounded = min(weight, MAX_ROW_WEIGHT)
    stack.update_errors(block, float(label), bounded)
    s["choice"] = stack.choose_combination(block, float(label), bounded)
    for i in range(STACKS):
        learn_stack(block, label, bounded, i)
    update_experts(block, target, label, weight)
    s["rows"] += bounded
    v.counts[label if n_outputs > 1 else 0] += bounded if n_outputs > 1 else bounded * label
    return 0


@compiled(inline=True)
def compute_prior_weight(t: float) -> float:
    """The weight of the frequencies of the classes in a probability, after t rows."""
    return max(PRIOR_ROWS / (t + PRIOR_ROWS + 1.0), 1.0 / (1.0 + (t / _FIRST_ROWS) ** 2))


@compiled
def compute_output(block: np.ndarray, what: int) -> float:
    """Return the output ``what`` for the current row, to which there are answers.

    The answer is the decision value, in log odds, or the `PROBABILITY` of the positive label. With several outputs, it is the
    number of the best one, and the values of all are in ``scores``. Where the stacks are not what predictions follow, and do not
    agree with it, the two answers are taken for equally probable. Probabilities begin at the frequencies of the classes, of which
    each has one row before the first.
    """
    v = ensemble_views(block)
    n_outputs = v.header[0]["n_outputs"]
    chosen = v.answers[get_rule_state(block, STATE)["choice"]]
    t, rows = float(get_common_state(block)["t"]), get_rule_state(block, STATE)["rows"]
    prior = compute_prior_weight(t)
    if n_outputs == 1:
        p = clipped_sigmoid(v.scores[0]) if chosen == v.answers[STACK] else 0.5
        p += prior * ((v.counts[0] + 1.0) / (rows + 2.0) - p)
        p = max(p, ABOVE_HALF) if chosen else min(p, 0.5)
        return p if what == PROBABILITY else math.log(p / (1.0 - p))
    best = v.answers[STACK]
    if chosen != best:
        v.scores[chosen] = v.scores[best]
    v.scores[chosen] += _TINY_STEP
    if what == PROBABILITY:
        softmax(v.scores, n_outputs)
        largest = 0.0
        for k in range(n_outputs):
            v.scores[k] += prior * ((v.counts[k] + 1.0) / (rows + n_outputs) - v.scores[k])
            if k != chosen:
                largest = max(largest, v.scores[k])
        if v.scores[chosen] <= largest:  # make the one that is chosen lead, and the sum 1 again
            missing = largest * (1.0 + _TINY_STEP) - v.scores[chosen]
            v.scores[chosen] += missing
            for k in range(n_outputs):
                v.scores[k] /= 1.0 + missing
    return float(chosen)
