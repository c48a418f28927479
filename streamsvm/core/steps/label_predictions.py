"""Predictions of an ensemble of classifiers, compiled: those of the stacks, of the vote and of the best expert.

A stack is logistic regression on the experts' inputs by Newton's method with a fading memory (see `stack` and `newton`). Several
outputs share the weights w of a stack: output k has the log odds w . inputs[k], up to a constant for all outputs. A row is
learned as the inputs of its class less those of the other classes, weighted by their probabilities: this is the gradient of the
softmax loss. The log odds of the stacks are averaged, weighted by their log losses. Since the result of the vote is bounded, a
stack can learn that labels are sometimes wrong, however large the decision values are.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.ensemble import N_STACKS, STATE, ensemble_views
from streamsvm.core.steps import stack
from streamsvm.core.steps.ensemble import MAX_ROW_WEIGHT, predict_experts, update_experts
from streamsvm.core.steps.iterates import ABOVE_HALF, PRIOR_ROWS, PROBABILITY, get_common_state
from streamsvm.core.steps.newton import MIN_CURVATURE, compute_sigmoid
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.stack import BEST, FIRST_INPUT, MAX_FADING_WEIGHT, STACK, VOTE_INPUT, VOTES, predict_class, softmax

#: The ridge of each stack, and the decay rate of its weight with its loss.
RIDGES, LOSS_RATE = (1.0, 10.0), 1.0
#: The sum of a stack's weights before the first row: twice the mean of the experts' inputs is the log odds.
INITIAL_WEIGHT_SUM = 2.0

_MAX_INPUT = 3.0
_MIN_LIKELIHOOD = 1e-6
_HALF_PRIOR_ROWS = 5.0  # after this number of rows, class frequencies still have half of the weight in probabilities
_TIE_BREAK = 2.0**-40  # the score or probability of the predicted label exceeds the others by this


@compiled(inline=True)
def _clip_input(value: float) -> float:
    """Clip a decision value of an ensemble's member to [-3, 3], as an input of the stack (the regression that combines the
    members).
    """
    return min(max(value, -_MAX_INPUT), _MAX_INPUT)


@compiled
def _compute_stack_scores(block: np.ndarray) -> int:
    """Combine the experts' (members') decision values for the current row by two logistic regressions and their weighted mean,
    per output. The log odds are stored in the ensemble's memory ``block``. Returns the class index that the mean predicts.
    """
    v = ensemble_views(block)
    n_outputs, inputs, weights, losses, odds, scores = v.header[0]["n_outputs"], v.inputs, v.weights, v.losses, v.odds, v.scores
    min_loss, total = losses.min(), 0.0
    for k in range(n_outputs):
        scores[k] = f = g = 0.0
        for m in range(weights.shape[1]):  # both stacks in one loop
            z = _clip_input(inputs[k, m])
            f += weights[0, m] * z
            g += weights[1, m] * z
        odds[0, k], odds[1, k] = f, g
    for i in range(len(weights)):
        share = math.exp(LOSS_RATE * (min_loss - losses[i]))
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
def _compute_vote(block: np.ndarray) -> int:
    """Return the class index with most votes of the ensemble's members for the current row. A vote's weight falls with the
    member's recent mistakes. The shares of the votes are stored in the ensemble's memory ``block``.

    It is the share of the votes of each output; with a single output, the share for the positive label less that against it.
    """
    v = ensemble_views(block)
    n_outputs, inputs, mistakes = v.header[0]["n_outputs"], v.inputs, v.mistakes
    min_mistakes, total = mistakes[FIRST_INPUT:].min(), 0.0
    for k in range(n_outputs):
        inputs[k, VOTE_INPUT] = 0.0
    for m in range(FIRST_INPUT, len(mistakes)):
        weight = math.exp(-stack.VOTING_RATE * (mistakes[m] - min_mistakes))
        total += weight
        label = predict_class(inputs, n_outputs, m)
        if n_outputs == 1:
            inputs[0, VOTE_INPUT] += weight if label else -weight
        else:
            inputs[label, VOTE_INPUT] += weight
    for k in range(n_outputs):
        inputs[k, VOTE_INPUT] /= total
    return predict_class(inputs, n_outputs, VOTE_INPUT)


@compiled
def combine_predictions(block: np.ndarray) -> None:
    """Combine the class predictions of an ensemble's members for the current row in three ways: stacked logistic regression,
    weighted vote, best member. The three class indices and the log odds are stored in ``block``, the ensemble's memory.
    """
    v = ensemble_views(block)
    h = v.header[0]
    v.answers[VOTES] = _compute_vote(block)
    v.answers[BEST] = predict_class(v.inputs, h["n_outputs"], stack.find_best_input(v.errors, h["inputs"]))
    v.answers[STACK] = _compute_stack_scores(block)


@compiled
def learn_stack(block: np.ndarray, label: int, weight: float, i: int) -> None:
    """Train one of the two logistic regressions that combine the experts' (members') predictions, that with the index ``i``, on
    the current row with class index ``label`` and sample ``weight``. ``block`` is the ensemble's memory.

    With several outputs, its log odds in ``odds`` become probabilities.
    """
    v, t = ensemble_views(block), float(get_common_state(block)["t"])
    h, inputs, z, scores = v.header[0], v.inputs, v.row_inputs[0], v.odds[i]
    n, n_outputs = h["inputs"], h["n_outputs"]
    # The inputs of experts change as soon as they learn the row.
    weight = min(weight, MAX_FADING_WEIGHT + stack.MAX_SHARE * min(t, stack.ERROR_WINDOW))
    if n_outputs == 1:
        p = compute_sigmoid(scores[0])
        residual = label - p
        for m in range(n):
            z[m] = _clip_input(inputs[0, m])
    else:
        p = softmax(scores, n_outputs)[label]
        residual = 1.0 - p
        for m in range(n):
            z[m] = 0.0
        for k in range(n_outputs):
            share = 1.0 if k == label else -scores[k] / max(1.0 - p, 1e-12)
            for m in range(n):
                z[m] += share * _clip_input(inputs[k, m])
    likelihood = 1.0 - p if n_outputs == 1 and label == 0 else p
    loss = min(weight, MAX_FADING_WEIGHT) * math.log(max(likelihood, _MIN_LIKELIHOOD))
    v.losses[i] = v.losses[i] * (1.0 - 1.0 / stack.ERROR_WINDOW) - loss
    curvature = weight * max(p * (1.0 - p), MIN_CURVATURE)
    stack.update_stack(block, i, z, curvature, weight * residual, RIDGES[i], INITIAL_WEIGHT_SUM)


@compiled
def predict_row(block: np.ndarray) -> int:
    """Predict the class of the current row of the ensemble in ``block`` (its memory): compute the predictions of all members,
    and combine them in three ways. The results are stored in ``block``; `compute_output` reads them. Always returns 0.
    """
    predict_experts(block)
    combine_predictions(block)
    return 0


@compiled
def learn_row(block: np.ndarray, target: float, weight: float) -> int:
    """Train an ensemble of classifiers on the current row, after `predict_row`: update the recent errors, the regressions that
    combine its members, and all members. ``target`` is -1 or 1, or a class index; ``block`` is the ensemble's memory. Always
    returns 0.
    """
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    n_outputs = v.header[0]["n_outputs"]
    label = int(target > 0.0) if n_outputs == 1 else int(target)
    clipped_weight = min(weight, MAX_ROW_WEIGHT)
    stack.update_errors(block, float(label), clipped_weight)
    s["choice"] = stack.choose_combination(block, float(label), clipped_weight)
    for i in range(N_STACKS):
        learn_stack(block, label, clipped_weight, i)
    update_experts(block, target, label, weight)
    s["rows"] += clipped_weight
    v.counts[label if n_outputs > 1 else 0] += clipped_weight if n_outputs > 1 else clipped_weight * label
    return 0


@compiled(inline=True)
def compute_prior_weight(t: float) -> float:
    """Return the weight, from 1 down to 0, that the class frequencies have in an ensemble's probabilities after t rows."""
    return max(PRIOR_ROWS / (t + PRIOR_ROWS + 1.0), 1.0 / (1.0 + (t / _HALF_PRIOR_ROWS) ** 2))


@compiled
def compute_output(block: np.ndarray, output_kind: int) -> float:
    """Return an ensemble's result for the current row, after `predict_row`: the log odds, or with ``output_kind`` `PROBABILITY`
    the probability, of the positive label. With three or more classes, it returns the predicted class index, and stores the
    values of all classes in ``block``, the ensemble's memory.

    If predictions do not follow the stacks, and the stacks predict another class, the two classes get equal probabilities.
    Probabilities start at the class frequencies, with one row per class before the first row.
    """
    v = ensemble_views(block)
    n_outputs = v.header[0]["n_outputs"]
    chosen = v.answers[get_rule_state(block, STATE)["choice"]]
    t, rows = float(get_common_state(block)["t"]), get_rule_state(block, STATE)["rows"]
    prior = compute_prior_weight(t)
    if n_outputs == 1:
        p = compute_sigmoid(v.scores[0]) if chosen == v.answers[STACK] else 0.5
        p += prior * ((v.counts[0] + 1.0) / (rows + 2.0) - p)
        p = max(p, ABOVE_HALF) if chosen else min(p, 0.5)
        return p if output_kind == PROBABILITY else math.log(p / (1.0 - p))
    best = v.answers[STACK]
    if chosen != best:
        v.scores[chosen] = v.scores[best]
    v.scores[chosen] += _TIE_BREAK
    if output_kind == PROBABILITY:
        softmax(v.scores, n_outputs)
        largest = 0.0
        for k in range(n_outputs):
            v.scores[k] += prior * ((v.counts[k] + 1.0) / (rows + n_outputs) - v.scores[k])
            if k != chosen:
                largest = max(largest, v.scores[k])
        if v.scores[chosen] <= largest:  # let the predicted class have the largest probability, and the sum be 1 again
            increase = largest * (1.0 + _TIE_BREAK) - v.scores[chosen]
            v.scores[chosen] += increase
            for k in range(n_outputs):
                v.scores[k] /= 1.0 + increase
    return float(chosen)
