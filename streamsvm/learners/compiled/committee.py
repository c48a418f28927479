"""A row through a committee of experts, compiled: experts are asked, the stack answers, and all learn."""

from __future__ import annotations

import math
from collections.abc import Collection

import numpy as np
from numba import njit, types

from streamsvm.learners.compiled.experts import LARGEST_WEIGHT, connect_experts, fill_inputs, learn_expert, rescale
from streamsvm.learners.compiled.iterates import PROBABILITY, common
from streamsvm.learners.compiled.kinds import STATE
from streamsvm.learners.compiled.newton import logistic
from streamsvm.learners.compiled.rescale import learn_moments, scale_moved, scale_row
from streamsvm.learners.compiled.rule import LEARNED, REFUSED, call_rule, many_rows, state_of
from streamsvm.learners.compiled.second_order import count_functions
from streamsvm.learners.compiled.stack import (
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
from streamsvm.memory.calls import BLOCK, address_of, caller
from streamsvm.memory.committee import STACKS, CommitteeStore, committee_views
from streamsvm.memory.slots import scan_row

__all__ = ["connect", "decide", "decide_many", "first_refused", "learn_many", "learn_one", "refused"]

_CONSULT = 7  # its place in `calls`, of which the first are the experts'
_call_block = caller((BLOCK,), types.int64)
_PRIOR_ROWS = 2.0  # that the frequencies of the classes count as in a probability
_FIRST_ROWS = 5.0  # at so many, they still have half of it
_ABOVE_HALF = 0.5 + 2.0**-52
_TINY_STEP = 2.0**-40  # by which the answer that is chosen leads


@njit(cache=True, error_model="numpy", inline="always")
def _differ(a: np.ndarray, b: np.ndarray, n: int) -> bool:
    different = 0
    for j in range(n):
        different += a[j] != b[j]
    return different > 0


@njit(cache=True, error_model="numpy")
def _consult(block: np.ndarray) -> int:
    # Answers and the stacks' log odds of the row at hand; experts are asked once where it is predicted and then learned.
    v = committee_views(block)
    h = v.header[0]
    used, live = h["used"], h["live"]
    if v.cache[0] == 0 or _differ(v.rows[0], v.rows[2], used):
        scale_row(block, state_of(block, STATE)["scaling"] != 0)
        fill_inputs(block)
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0] = 1
    v.answers[VOTES] = vote(v.at_hand, live, v.mistakes)
    best = FIRST_INPUT
    for m in range(FIRST_INPUT + 1, h["inputs"]):
        if v.errors[m] < v.errors[best]:
            best = m
    v.answers[BEST] = answer(v.at_hand, live, best)
    v.answers[STACK] = stack_scores(v.at_hand, live, v.weights, v.losses, v.odds, v.scores)
    return 0


def connect(store: CommitteeStore, kinds: Collection[int]) -> None:
    """Compile what a row needs where the experts are of these kinds, or load it, and put the addresses into a store."""
    calls = store.views.calls
    connect_experts(calls, kinds)
    calls[_CONSULT] = address_of(_consult, (BLOCK,), types.int64)


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the row at hand, of a target -1 or 1 or the number of a class; `LEARNED`, or `REFUSED` where it is not finite or too
    large. Nothing has changed then.
    """
    v, c, s = committee_views(block), common(block), state_of(block, STATE)
    live = v.header[0]["live"]
    if refused(block):
        return REFUSED
    c["t"] += 1
    t, scaling = c["t"], s["scaling"] != 0
    count_functions(block)
    learn_moments(block)
    if scale_moved(block, scaling, t):
        rescale(block, scaling)
    _call_block(v.calls[_CONSULT], block)
    label = int(target > 0.0) if live == 1 else int(target)
    bounded = min(weight, LARGEST_WEIGHT)
    learn_answers(v.at_hand, live, label, bounded, t, v.errors, v.mistakes)
    s["choice"] = choose(v.answers, label, bounded, t, v.choice_errors)
    for i in range(STACKS):
        learn_stack(v.at_hand, live, label, bounded, t, i, v.odds, v.losses, v.weights, v.curvatures, v.inverses, v.row_inputs)
    for e in range(v.header[0]["experts"]):
        learn_expert(block, e, target, label, weight)
    s["last"] = label
    s["rows"] += bounded
    v.counts[label if live > 1 else 0] += bounded if live > 1 else bounded * label
    v.cache[0] = 0
    return LEARNED


# Predictions ---------------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy", inline="always")
def _lead(scores: np.ndarray, live: int, chosen: int, largest: float) -> None:
    # Where another class is as probable as the one that is chosen, make this one lead, and the sum 1 again.
    if scores[chosen] <= largest:
        missing = largest * (1.0 + _TINY_STEP) - scores[chosen]
        scores[chosen] += missing
        for k in range(live):
            scores[k] /= 1.0 + missing


@njit(cache=True, error_model="numpy")
def decide(block: np.ndarray, what: int) -> float:
    """Answer ``what`` is asked of the row at hand; NaN for a row that is not finite or too large.

    The answer is the decision value, in log odds, or the `PROBABILITY` of the positive label. With several outputs, it is the
    number of the best one, and the values of all are in ``scores``. Where the stacks are not what predictions follow, and do not
    agree with it, the two answers are taken for equally probable. Probabilities begin at the frequencies of the classes, of which
    each has one row before the first.
    """
    v = committee_views(block)
    live = v.header[0]["live"]
    if refused(block):
        return np.nan
    _call_block(v.calls[_CONSULT], block)
    chosen = v.answers[state_of(block, STATE)["choice"]]
    t, rows = float(common(block)["t"]), state_of(block, STATE)["rows"]
    prior = max(_PRIOR_ROWS / (t + _PRIOR_ROWS + 1.0), 1.0 / (1.0 + (t / _FIRST_ROWS) ** 2))
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
        _lead(v.scores, live, chosen, largest)
    return float(chosen)


@njit(cache=True, error_model="numpy")
def fill_row(block: np.ndarray, X: np.ndarray, columns: np.ndarray, i: int) -> None:
    """Make row i of X the row at hand. Its features have the columns ``columns`` int64 [features]; -1: none."""
    v = committee_views(block)
    row = v.rows[0]
    row[: v.header[0]["used"]] = np.float32(0.0)
    for j in range(X.shape[1]):
        if columns[j] >= 0:
            row[columns[j]] += X[i, j]


@njit(cache=True, error_model="numpy")
def refused(block: np.ndarray) -> bool:
    """Whether the row at hand is not finite or too large."""
    v = committee_views(block)
    return scan_row(v.rows[0], v.header[0]["used"], v.active)[0] < 0


@njit(cache=True, error_model="numpy")
def first_refused(block: np.ndarray, X: np.ndarray, columns: np.ndarray) -> int:
    """The number of the first row of X that `learn_one` would refuse, or -1."""
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        if refused(block):
            return i
    return -1


@njit(cache=True, error_model="numpy")
def decide_many(block: np.ndarray, X: np.ndarray, columns: np.ndarray, what: int, out: np.ndarray) -> None:
    """`decide` for each row of X float32 [n, features], into ``out`` float64 [n, 1].

    With several outputs ``out`` is float64 [n, outputs + 1]: the number of the best one, then the values of all.
    """
    v = committee_views(block)
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        out[i, 0] = decide(block, what)
        for k in range(1, out.shape[1]):
            out[i, k] = v.scores[k - 1]


@njit(cache=True, error_model="numpy")
def _learn_rows(
    address: int, block: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        call_rule(address, block, targets[i], weights[i])
    return X.shape[0]


#: Learns the rows of X, one after the other, as `Rule.learn_many`.
learn_many = many_rows(learn_one, _learn_rows)
