"""Stacks of experts, votes and the best expert, and the choice among the three, compiled.

Each expert has inputs to the stacks, its decision values, for each output of the model: ``inputs`` is float64 [outputs, m], of
which input 0 is the constant and input 1 the outcome of the votes. A stack is logistic regression on them by Newton's method with
a fading memory (see `newton`). With several outputs they share its weights w: output k has the log odds w . inputs[k], up to a
number for all, and a row is learned as the inputs of its class less those of the others, weighed by their probabilities: that is
the gradient of the softmax loss. There are two stacks: one of short memory, which soon is where the stream has gone, and one of
long memory and a stronger ridge towards equal weights, for where following does not pay. Their log odds are averaged; each has
the share exp(-its fading log loss). Votes weigh each expert's input by exp(-rate times its fading mistakes). As their outcome is
bounded, a stack can say that labels are wrong now and then, whatever the decision values are. Answers are classes: 0 and 1 of
one output, else the number of an output. By an input, values that are nearly equal are a tie, whose answer is the first class:
neighbours often are as many for one label as for another, and rounding must not choose, which differs where a model is exported.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.steps.newton import ROWS_OF_INVERSE, add_row, invert, logistic, pull

#: The three that a model chooses from.
STACK, VOTES, BEST = 0, 1, 2
#: The input that is the outcome of the votes, and the first one of an expert.
VOTED, FIRST_INPUT = 1, 2
#: The most rows that one counts as in fading sums, whatever its weight.
MOST_ROWS = 10.0
#: The factor by which rows fade in each stack, and its ridge.
MEMORIES, RIDGES = (1.0 - 1.0 / 1000.0, 1.0 - 1.0 / 3000.0), (1.0, 10.0)
#: A stack has the share exp(-rate times its fading loss), and so an expert by its fading mistakes in the votes.
RATE, VOTING_RATE = 1.0, 0.1

#: Values of an input that differ by no more are equal to its answer.
ALIKE = 2.0**-16

_LARGEST_INPUT = 3.0
_LARGEST = 10.0  # size of a decision value, in standard deviations of the target
_BEND = 1.5  # mean absolute errors up to which a row counts in full
_LEAST_CURVATURE = 0.02
_LEAST_LIKELIHOOD = 1e-6
_WINDOW = 1000.0  # rows of recent errors
_LARGEST_SHARE = 0.1  # of one row in them


@compiled(inline=True)
def _clipped_value(value: float) -> float:
    return min(max(value, -_LARGEST_INPUT), _LARGEST_INPUT)


@compiled(inline=True)
def bounded(value: float) -> float:
    """A decision value of a target, bounded."""
    return min(max(value, -_LARGEST), _LARGEST)


@compiled
def vote_of_numbers(inputs: np.ndarray, mistakes: np.ndarray, end: int) -> float:
    """The mean of the inputs of experts up to ``end``, bounded, which are weighed by exp(-rate times their fading errors)."""
    fewest, total, voted = mistakes[FIRST_INPUT:end].min(), 0.0, 0.0
    for m in range(FIRST_INPUT, end):
        share = math.exp(-VOTING_RATE * (mistakes[m] - fewest))
        total += share
        voted += share * bounded(inputs[m])
    return voted / total


@compiled(inline=True)
def robust_weight(error: float, mean_error: float) -> float:
    """The weight of a row that is missed by ``error``, where ``mean_error`` is the mean absolute error; that row is in it."""
    return 1.0 if error <= _BEND * mean_error else _BEND * mean_error / error


@compiled(inline=True)
def share_of(weight: float, rate: float) -> float:
    """The share of a row in a recent error, in which a row of weight 1 has the share ``rate``."""
    return min(weight * rate, max(rate, _LARGEST_SHARE))


@compiled
def stack_scores(
    inputs: np.ndarray, live: int, weights: np.ndarray, losses: np.ndarray, odds: np.ndarray, scores: np.ndarray
) -> int:
    """Compute the log odds of each output in use by each stack into ``odds``, and the average into ``scores``; the answer."""
    least, total = losses.min(), 0.0
    for k in range(live):
        scores[k] = f = g = 0.0
        for m in range(weights.shape[1]):  # both stacks at once
            z = _clipped_value(inputs[k, m])
            f += weights[0, m] * z
            g += weights[1, m] * z
        odds[0, k], odds[1, k] = f, g
    for i in range(len(weights)):
        share = math.exp(RATE * (least - losses[i]))
        total += share
        for k in range(live):
            scores[k] += share * odds[i, k]
    best = 0
    for k in range(live):
        scores[k] /= total
        if scores[k] > scores[best]:
            best = k
    return best if live > 1 else int(scores[0] > 0.0)


@compiled
def answer(inputs: np.ndarray, live: int, m: int) -> int:
    """The answer by one input: the first class whose value is the largest, or nearly."""
    if live == 1:
        return int(inputs[0, m] > ALIKE)
    largest = inputs[0, m]
    for k in range(1, live):
        largest = max(largest, inputs[k, m])
    best = 0
    while inputs[best, m] < largest - ALIKE:
        best += 1
    return best


@compiled
def vote(inputs: np.ndarray, live: int, mistakes: np.ndarray) -> int:
    """Fill in the outcome of the votes, input `VOTED`; the answer with most of them.

    The outcome is the share of the votes that an output has; of one output the share for it less that against it.
    """
    fewest, total = mistakes[FIRST_INPUT:].min(), 0.0
    for k in range(live):
        inputs[k, VOTED] = 0.0
    for m in range(FIRST_INPUT, len(mistakes)):
        weight = math.exp(-VOTING_RATE * (mistakes[m] - fewest))
        total += weight
        chosen = answer(inputs, live, m)
        if live == 1:
            inputs[0, VOTED] += weight if chosen else -weight
        else:
            inputs[chosen, VOTED] += weight
    for k in range(live):
        inputs[k, VOTED] /= total
    return answer(inputs, live, VOTED)


@compiled
def learn_answers(
    inputs: np.ndarray, live: int, label: int, weight: float, t: int, errors: np.ndarray, mistakes: np.ndarray
) -> None:
    """Update the recent error of each input and its fading mistakes; row number t, from 1 on, has the answer ``label``.

    A row counts as so many as it weighs, within bounds.
    """
    rate = share_of(weight, 1.0 / min(t + 1.0, _WINDOW))
    for m in range(FIRST_INPUT, len(errors)):
        wrong = 1.0 if answer(inputs, live, m) != label else 0.0
        errors[m] += rate * (wrong - errors[m])
        mistakes[m] = mistakes[m] * (1.0 - 1.0 / _WINDOW) + min(weight, MOST_ROWS) * wrong


@compiled
def choose(answers: np.ndarray, label: int, weight: float, t: int, errors: np.ndarray) -> int:
    """Update the recent errors of the stacks, the votes and the best expert, and choose: the stacks, unless another's error is
    less by more than chance. A row counts as so many as it weighs, within bounds.
    """
    rate = 1.0 / min(t + 1.0, _WINDOW)
    for i in range(3):
        errors[i] += share_of(weight, rate) * ((1.0 if answers[i] != label else 0.0) - errors[i])
    chosen = STACK
    for i in range(1, 3):
        error = errors[chosen]
        if errors[i] < error - 0.5 * math.sqrt(max(error * (1.0 - error), 1e-4) * rate):
            chosen = i
    return chosen


@compiled
def learn_stack(
    inputs: np.ndarray,
    live: int,
    label: int,
    weight: float,
    t: int,
    i: int,
    odds: np.ndarray,
    losses: np.ndarray,
    weights: np.ndarray,
    curvatures: np.ndarray,
    inverses: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Let stack number i learn the inputs of row number t, whose answer is ``label``.

    ``odds`` are its log odds, of which those of several outputs become probabilities; ``rows`` float64 [2, m] is scratch.
    """
    n, z, scores, w, curvature, inverse = weights.shape[1], rows[0], odds[i], weights[i], curvatures[i], inverses[i]
    weight = min(weight, MOST_ROWS + _LARGEST_SHARE * min(float(t), _WINDOW))  # experts that learn it change their minds at once
    memory, ridge = MEMORIES[i], RIDGES[i]
    if live == 1:
        p = logistic(scores[0])
        missing = label - p
        for m in range(n):
            z[m] = _clipped_value(inputs[0, m])
    else:
        p = softmax(scores, live)[label]
        missing = 1.0 - p
        for m in range(n):
            z[m] = 0.0
        for k in range(live):
            share = 1.0 if k == label else -scores[k] / max(1.0 - p, 1e-12)
            for m in range(n):
                z[m] += share * _clipped_value(inputs[k, m])
    likelihood = 1.0 - p if live == 1 and label == 0 else p
    losses[i] = losses[i] * (1.0 - 1.0 / _WINDOW) - min(weight, MOST_ROWS) * math.log(max(likelihood, _LEAST_LIKELIHOOD))
    h = max(p * (1.0 - p), _LEAST_CURVATURE)
    add_row(curvature, inverse, z, n, weight * h, memory, ridge, rows[1])
    for m in range(n):
        w[m] += weight * missing * rows[1, m]
    if (t + 8 + 16 * i) % ROWS_OF_INVERSE == 0:  # in turn, with those of experts, too
        invert(curvature, inverse, n, rows)
        first_weights(z)
        pull(inverse, w, z, n, ROWS_OF_INVERSE * (1.0 - memory) * ridge, rows[1])


@compiled
def first_weights(weights: np.ndarray) -> None:
    """Fill in the weights before the first row: all experts' inputs count alike, and twice their mean is the log odds."""
    for m in range(len(weights)):
        weights[m] = 2.0 / (len(weights) - FIRST_INPUT) if m >= FIRST_INPUT else 0.0


@compiled
def softmax(scores: np.ndarray, live: int) -> np.ndarray:
    """Turn log odds into probabilities, in place; they are returned, too."""
    largest, total = scores[0], 0.0
    for k in range(1, live):
        largest = max(largest, scores[k])
    for k in range(live):
        scores[k] = math.exp(max(scores[k] - largest, -30.0))
        total += scores[k]
    for k in range(live):
        scores[k] /= total
    return scores
