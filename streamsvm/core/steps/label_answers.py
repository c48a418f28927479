"""The answers of a committee that predicts labels, compiled: those of the stacks, the votes and the best expert."""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.committee import STACKS, STATE, committee_views
from streamsvm.core.steps.committee import LARGEST_WEIGHT, ask, follow_label, learn_experts
from streamsvm.core.steps.iterates import PROBABILITY, common
from streamsvm.core.steps.newton import logistic
from streamsvm.core.steps.rule import state_of
from streamsvm.core.steps.stack import (
    BEST,
    FIRST_INPUT,
    STACK,
    VOTES,
    answer,
    choose,
    learn_answers,
    learn_stack,
    softmax,
    stack_scores,
    vote,
)

_PRIOR_ROWS = 2.0  # that the frequencies of the classes count as in a probability
_FIRST_ROWS = 5.0  # at so many, they still have half of it
_ABOVE_HALF = 0.5 + 2.0**-52
_TINY_STEP = 2.0**-40  # by which the answer that is chosen leads


@compiled
def consult(block: np.ndarray) -> int:
    """Compute the three answers to the row at hand, and the stacks' log odds; 0."""
    v = committee_views(block)
    h = v.header[0]
    live = h["live"]
    ask(block)
    v.answers[VOTES] = vote(v.at_hand, live, v.mistakes)
    best = FIRST_INPUT
    for m in range(FIRST_INPUT + 1, h["inputs"]):
        if v.errors[m] < v.errors[best]:
            best = m
    v.answers[BEST] = answer(v.at_hand, live, best)
    v.answers[STACK] = stack_scores(v.at_hand, live, v.weights, v.losses, v.odds, v.scores)
    return 0


@compiled
def learn(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the row at hand, to which there are answers: -1 or 1, or the number of a class; 0."""
    v, s, t = committee_views(block), state_of(block, STATE), common(block)["t"]
    live = v.header[0]["live"]
    label = int(target > 0.0) if live == 1 else int(target)
    bounded = min(weight, LARGEST_WEIGHT)
    learn_answers(v.at_hand, live, label, bounded, t, v.errors, v.mistakes)
    s["choice"] = choose(v.answers, label, bounded, t, v.choice_errors)
    for i in range(STACKS):
        learn_stack(v.at_hand, live, label, bounded, t, i, v.odds, v.losses, v.weights, v.curvatures, v.inverses, v.row_inputs)
    learn_experts(block, target, label, weight)
    follow_label(block, label, weight)
    s["rows"] += bounded
    v.counts[label if live > 1 else 0] += bounded if live > 1 else bounded * label
    return 0


@compiled(inline=True)
def prior_of(t: float) -> float:
    """The weight of the frequencies of the classes in a probability, after t rows."""
    return max(_PRIOR_ROWS / (t + _PRIOR_ROWS + 1.0), 1.0 / (1.0 + (t / _FIRST_ROWS) ** 2))


@compiled
def decide(block: np.ndarray, what: int) -> float:
    """Answer ``what`` is asked of the row at hand, to which there are answers.

    The answer is the decision value, in log odds, or the `PROBABILITY` of the positive label. With several outputs, it is the
    number of the best one, and the values of all are in ``scores``. Where the stacks are not what predictions follow, and do not
    agree with it, the two answers are taken for equally probable. Probabilities begin at the frequencies of the classes, of which
    each has one row before the first.
    """
    v = committee_views(block)
    live = v.header[0]["live"]
    chosen = v.answers[state_of(block, STATE)["choice"]]
    t, rows = float(common(block)["t"]), state_of(block, STATE)["rows"]
    prior = prior_of(t)
    if live == 1:
        p = logistic(v.scores[0]) if chosen == v.answers[STACK] else 0.5
        p += prior * ((v.counts[0] + 1.0) / (rows + 2.0) - p)
        p = max(p, _ABOVE_HALF) if chosen else min(p, 0.5)
        return p if what == PROBABILITY else math.log(p / (1.0 - p))
    best = v.answers[STACK]
    if chosen != best:
        v.scores[chosen] = v.scores[best]
    v.scores[chosen] += _TINY_STEP
    if what == PROBABILITY:
        softmax(v.scores, live)
        largest = 0.0
        for k in range(live):
            v.scores[k] += prior * ((v.counts[k] + 1.0) / (rows + live) - v.scores[k])
            if k != chosen:
                largest = max(largest, v.scores[k])
        if v.scores[chosen] <= largest:  # make the one that is chosen lead, and the sum 1 again
            missing = largest * (1.0 + _TINY_STEP) - v.scores[chosen]
            v.scores[chosen] += missing
            for k in range(live):
                v.scores[k] /= 1.0 + missing
    return float(chosen)
