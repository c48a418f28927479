"""A stack of experts, votes and the best expert, and the choice among the three, compiled.

Each expert has inputs to the stack, its decision values, for each output of the model: ``inputs`` is float64 [outputs, m], of
which input 0 is the constant and input 1 the outcome of the votes. The stack is logistic regression on them by Newton's method
with a fading memory (see `newton`). With several outputs they share its weights w: output k has the log odds w . inputs[k], up to
a number for all, and a row is learned as the inputs of its class less those of the others, weighed by their probabilities: that
is the gradient of the softmax loss. Votes weigh each expert's input by exp(-rate times its fading mistakes). As their outcome is
bounded, the stack can say that labels are wrong now and then, whatever the decision values are. Answers are classes: 0 and 1 of
one output, else the number of an output.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.learners.compiled.newton import ROWS_OF_INVERSE, add_row, invert, logistic, pull

__all__ = [
    "BEST",
    "FIRST_INPUT",
    "MEMORY",
    "RIDGE",
    "STACK",
    "VOTED",
    "VOTES",
    "answer",
    "choose",
    "first_weights",
    "learn_answers",
    "learn_stack",
    "softmax",
    "stack_scores",
    "vote",
]

#: The three that a model chooses from.
STACK, VOTES, BEST = 0, 1, 2
#: The input that is the outcome of the votes, and the first one of an expert.
VOTED, FIRST_INPUT = 1, 2
#: The factor by which rows fade in the stack, and its ridge.
MEMORY, RIDGE = 1.0 - 1.0 / 3000.0, 1.0

_LARGEST_INPUT = 3.0
_LEAST_CURVATURE = 0.02
_LEARNING_RATE = 0.1  # of votes
_WINDOW = 1000.0  # rows of recent errors


@njit(cache=True, error_model="numpy", inline="always")
def _clipped(value: float) -> float:
    return min(max(value, -_LARGEST_INPUT), _LARGEST_INPUT)


@njit(cache=True, error_model="numpy")
def stack_scores(inputs: np.ndarray, live: int, weights: np.ndarray, scores: np.ndarray) -> int:
    """Compute the log odds of each output in use into ``scores``; the stack's answer."""
    best = 0
    for k in range(live):
        total = 0.0
        for m in range(len(weights)):
            total += weights[m] * _clipped(inputs[k, m])
        scores[k] = total
        if total > scores[best]:
            best = k
    return best if live > 1 else int(scores[0] > 0.0)


@njit(cache=True, error_model="numpy")
def answer(inputs: np.ndarray, live: int, m: int) -> int:
    """The answer by one input."""
    if live == 1:
        return int(inputs[0, m] > 0.0)
    best = 0
    for k in range(live):
        if inputs[k, m] > inputs[best, m]:
            best = k
    return best


@njit(cache=True, error_model="numpy")
def vote(inputs: np.ndarray, live: int, mistakes: np.ndarray) -> int:
    """Fill in the outcome of the votes, input `VOTED`; the answer with most of them.

    The outcome is the share of the votes that an output has; of one output the share for it less that against it.
    """
    fewest, total = mistakes[FIRST_INPUT:].min(), 0.0
    for k in range(live):
        inputs[k, VOTED] = 0.0
    for m in range(FIRST_INPUT, len(mistakes)):
        weight = math.exp(-_LEARNING_RATE * (mistakes[m] - fewest))
        total += weight
        chosen = answer(inputs, live, m)
        if live == 1:
            inputs[0, VOTED] += weight if chosen else -weight
        else:
            inputs[chosen, VOTED] += weight
    for k in range(live):
        inputs[k, VOTED] /= total
    return answer(inputs, live, VOTED)


@njit(cache=True, error_model="numpy")
def learn_answers(inputs: np.ndarray, live: int, label: int, t: int, errors: np.ndarray, mistakes: np.ndarray) -> None:
    """Update the recent error of each input and its fading mistakes; row number t, from 1 on, has the answer ``label``."""
    rate = 1.0 / min(t + 1.0, _WINDOW)
    for m in range(FIRST_INPUT, len(errors)):
        wrong = 1.0 if answer(inputs, live, m) != label else 0.0
        errors[m] += rate * (wrong - errors[m])
        mistakes[m] = mistakes[m] * (1.0 - 1.0 / _WINDOW) + wrong


@njit(cache=True, error_model="numpy")
def choose(answers: np.ndarray, label: int, t: int, errors: np.ndarray) -> int:
    """Update the recent errors of the stack, the votes and the best expert, and choose: the stack, unless another one's error is
    less by more than chance.
    """
    rate = 1.0 / min(t + 1.0, _WINDOW)
    for i in range(3):
        errors[i] += rate * ((1.0 if answers[i] != label else 0.0) - errors[i])
    chosen = STACK
    for i in range(1, 3):
        error = errors[chosen]
        if errors[i] < error - 0.5 * math.sqrt(max(error * (1.0 - error), 1e-4) * rate):
            chosen = i
    return chosen


@njit(cache=True, error_model="numpy")
def learn_stack(
    inputs: np.ndarray,
    live: int,
    label: int,
    weight: float,
    t: int,
    scores: np.ndarray,
    weights: np.ndarray,
    curvature: np.ndarray,
    inverse: np.ndarray,
    rows: np.ndarray,
) -> None:
    """Learn the inputs of a row whose answer is ``label``.

    ``scores`` are its log odds, of which those of several outputs become probabilities; ``rows`` float64 [2, m] is scratch.
    """
    n, z = len(weights), rows[0]
    if live == 1:
        p = logistic(scores[0])
        missing = label - p
        for m in range(n):
            z[m] = _clipped(inputs[0, m])
    else:
        p = softmax(scores, live)[label]
        missing = 1.0 - p
        for m in range(n):
            z[m] = 0.0
        for k in range(live):
            share = 1.0 if k == label else -scores[k] / max(1.0 - p, 1e-12)
            for m in range(n):
                z[m] += share * _clipped(inputs[k, m])
    h = max(p * (1.0 - p), _LEAST_CURVATURE)
    add_row(curvature, inverse, z, n, weight * h, MEMORY, RIDGE, rows[1])
    for m in range(n):
        weights[m] += weight * missing * rows[1, m]
    if t % ROWS_OF_INVERSE == 0:
        invert(curvature, inverse, n)
        first_weights(z)
        pull(inverse, weights, z, n, ROWS_OF_INVERSE * (1.0 - MEMORY) * RIDGE, rows[1])


@njit(cache=True, error_model="numpy")
def first_weights(weights: np.ndarray) -> None:
    """Fill in the weights before the first row: all experts' inputs count alike, and twice their mean is the log odds."""
    for m in range(len(weights)):
        weights[m] = 2.0 / (len(weights) - FIRST_INPUT) if m >= FIRST_INPUT else 0.0


@njit(cache=True, error_model="numpy")
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
