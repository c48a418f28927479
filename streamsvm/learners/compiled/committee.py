"""A row through a committee of experts, compiled: each expert is a rule over its own part of the block.

An expert is a learner of the library, whose compiled step runs over a store inside the block, or something small that stands
here. To add a kind is to add its inputs to the stack (`_fill_inputs`) and how it learns a row (`_learn_expert`).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit, types

from streamsvm.learners.bsgd import step as descent
from streamsvm.learners.compiled import linear_step
from streamsvm.learners.compiled.coordinate_ascent import step as ascent
from streamsvm.learners.compiled.drift import drifts
from streamsvm.learners.compiled.iterates import AVERAGE, LAST, PROBABILITY, common, restart
from streamsvm.learners.compiled.newton import ROWS_OF_INVERSE, add_row, dot, invert, logistic, pull
from streamsvm.learners.compiled.rescale import gamma_of, learn_moments, move_vectors, scale_moved, scale_row
from streamsvm.learners.compiled.rule import LEARNED, REFUSED, state_of
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
from streamsvm.learners.compiled.step import compute_scores
from streamsvm.memory.calls import BLOCK, address_of, caller
from streamsvm.memory.committee import CommitteeStore, committee_views
from streamsvm.memory.slots import clear, scan_row
from streamsvm.memory.support_vectors import views
from streamsvm.memory.weights import weight_views

__all__ = [
    "ADDITIVE",
    "ASCENT",
    "DESCENT",
    "LAST_LABEL",
    "LINEAR",
    "NEWTON",
    "NEWTON_RIDGE",
    "RESETTING",
    "SLOW_NEWTON",
    "STATE",
    "connect",
    "decide",
    "decide_many",
    "first_refused",
    "learn_many",
    "learn_one",
    "refused",
]

#: The state of a committee, beside what all learners have.
STATE = np.dtype(
    [
        ("scaling", "i8"),
        ("choice", "i8"),  # what predictions follow: a number of `stack`
        ("last", "i8"),  # the last row's class; of one output 0 or 1; -1 before there was one
        ("functions", "i8"),  # of each feature, that the additive expert takes; 0 before there are features
        ("resets", "i8"),  # of experts, as the stream drifted
    ]
)

#: Kinds of experts: coordinate ascent in the dual, the same reset where the stream drifts, gradient descent, a linear learner of
#: first order, one of second order with a shorter and a longer memory, a sum of functions of one feature each, of second order
#: too, and the last label.
ASCENT, RESETTING, DESCENT, LINEAR, NEWTON, SLOW_NEWTON, ADDITIVE, LAST_LABEL = range(8)

#: The ridge of the experts of second order.
NEWTON_RIDGE = 1.0

# Places in `calls`, and how what is there is called: the rules, and what both predictions and learning need.
_ASCEND, _DESCEND, _KERNEL_INPUTS, _CONSULT = range(4)
_RULE = (BLOCK, types.float64, types.float64)
_INPUTS = (BLOCK, BLOCK, types.int64)
_call_rule, _call_inputs, _call_block = (caller(of, types.int64) for of in (_RULE, _INPUTS, (BLOCK,)))
_PRIOR_ROWS = 2.0
_TINY_STEP = 2.0**-40  # by which the answer that is chosen leads
_NEWTON_REACH = np.float32(5.0)
_KNOT = 0.8  # deviations from the mean where the functions of a feature bend: a fifth of a normal distribution lies beyond
_LEAST_CURVATURE = 0.02
_LARGEST_WEIGHT = 1e4  # of a row in what is of second order


@njit(cache=True, error_model="numpy", inline="always")
def _memory(kind: int) -> float:
    return 1.0 - 1e-4 if kind == SLOW_NEWTON else 1.0 - 1e-3


@njit(cache=True, error_model="numpy", inline="always")
def _part(block: np.ndarray, expert: int, k: int) -> np.ndarray:
    # The store of an expert, or of its output k.
    e = committee_views(block).experts[expert]
    begin = e[1] + k * e[2]
    return block[begin : begin + e[2]]


# Inputs to the stack -------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def _kernel_inputs(block: np.ndarray, store: np.ndarray, first: int) -> int:
    v, s = committee_views(block), views(store)
    h = s.header[0]
    for j in range(h["used"]):
        s.rows[0, j] = v.rows[1, j]
    n_active, norm = scan_row(s.rows[0], h["used"], s.active[0])
    compute_scores(store, n_active, norm)
    for k in range(v.header[0]["live"]):
        v.at_hand[k, first], v.at_hand[k, first + 1] = s.scores[2 * k], s.scores[2 * k + 1]
    return 0


@njit(cache=True, error_model="numpy", inline="always")
def _linear_inputs(block: np.ndarray, expert: int, first: int) -> None:
    v = committee_views(block)
    live, used = v.header[0]["live"], v.header[0]["used"]
    half = 1.0 if live == 1 else 0.5  # one against the rest: two outputs differ by twice their decision value
    for k in range(live):
        store = _part(block, expert, k)
        w = weight_views(store)
        for j in range(used):
            w.row[j] = v.rows[1, j]
        v.at_hand[k, first] = half * linear_step.decide_packed(store, LAST)
        v.at_hand[k, first + 1] = half * linear_step.decide_packed(store, AVERAGE)


@njit(cache=True, error_model="numpy", inline="always")
def _newton_row(block: np.ndarray, kind: int) -> int:
    # The row at hand as an expert of second order takes it, 1 first; its length.
    v = committee_views(block)
    h, z = v.header[0], v.squares[0]
    functions = state_of(block, STATE)["functions"] if kind == ADDITIVE else 1
    features = min(h["used"], h["side"] - 1)
    z[0] = 1.0
    for j in range(features):
        x = np.float64(min(max(v.rows[1, j], -_NEWTON_REACH), _NEWTON_REACH))
        place = 1 + functions * j
        z[place] = x
        if functions > 1:
            z[place + 1] = abs(x) - _KNOT
        if functions > 2:
            z[place + 2], z[place + 3] = max(x - _KNOT, 0.0), max(-x - _KNOT, 0.0)
    return 1 + functions * features


@njit(cache=True, error_model="numpy", inline="always")
def _functions(block: np.ndarray) -> int:
    # So many of each feature that there is room for them.
    h = committee_views(block).header[0]
    room = (h["side"] - 1) // max(h["used"], 1)
    return 4 if room >= 4 else 2 if room >= 2 else 1


@njit(cache=True, error_model="numpy")
def _count_functions(block: np.ndarray) -> None:
    # Where features have come, and each can have fewer functions, the additive expert begins anew.
    v, s = committee_views(block), state_of(block, STATE)
    functions = _functions(block)
    if functions == s["functions"]:
        return
    s["functions"] = functions
    for e in range(v.header[0]["experts"]):
        if v.experts[e, 0] == ADDITIVE:
            number = v.experts[e, 4]
            curvature, inverse = v.newton_curvatures[number], v.newton_inverses[number]
            for j in range(len(curvature)):
                for k in range(len(curvature)):
                    curvature[j, k] = inverse[j, k] = 0.0
                curvature[j, j], inverse[j, j] = NEWTON_RIDGE, 1.0 / NEWTON_RIDGE
                for k in range(v.header[0]["live"]):
                    v.newton_weights[number, k, j] = 0.0


@njit(cache=True, error_model="numpy", inline="always")
def _fill_inputs(block: np.ndarray) -> None:
    v = committee_views(block)
    h = v.header[0]
    live = h["live"]
    for k in range(live):
        v.at_hand[k, 0] = 1.0 if live == 1 else 0.0
    for e in range(h["experts"]):
        kind, first = v.experts[e, 0], v.experts[e, 3]
        if kind <= DESCENT:
            _call_inputs(v.calls[_KERNEL_INPUTS], block, _part(block, e, 0), first)
        elif kind == LINEAR:
            _linear_inputs(block, e, first)
        elif kind == LAST_LABEL:
            last = state_of(block, STATE)["last"]
            for k in range(live):
                v.at_hand[k, first] = 0.0 if last < 0 else 2.0 * last - 1.0 if live == 1 else (0.5 if last == k else -0.5)
        else:
            n = _newton_row(block, kind)
            for k in range(live):
                v.at_hand[k, first] = dot(v.newton_weights[v.experts[e, 4], k], v.squares[0], n)


@njit(cache=True, error_model="numpy", inline="always")
def _differ(a: np.ndarray, b: np.ndarray, n: int) -> bool:
    different = 0
    for j in range(n):
        different += a[j] != b[j]
    return different > 0


@njit(cache=True, error_model="numpy")
def _consult(block: np.ndarray) -> int:
    # Answers and the stack's log odds of the row at hand; experts are asked once where it is predicted and then learned.
    v = committee_views(block)
    h = v.header[0]
    used, live = h["used"], h["live"]
    if v.cache[0] == 0 or _differ(v.rows[0], v.rows[2], used):
        scale_row(block, state_of(block, STATE)["scaling"] != 0)
        _fill_inputs(block)
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0] = 1
    v.answers[VOTES] = vote(v.at_hand, live, v.mistakes)
    best = FIRST_INPUT
    for m in range(FIRST_INPUT + 1, h["inputs"]):
        if v.errors[m] < v.errors[best]:
            best = m
    v.answers[BEST] = answer(v.at_hand, live, best)
    v.answers[STACK] = stack_scores(v.at_hand, live, v.weights, v.scores)
    return 0


def connect(store: CommitteeStore, drifting: bool) -> None:
    """Compile what the experts need, or load it, and put the addresses into a store; ``drifting``: whether one descends."""
    calls = store.views.calls
    calls[_ASCEND] = address_of(ascent.learn_one, _RULE, types.int64)
    if drifting:
        calls[_DESCEND] = address_of(descent.learn_one, _RULE, types.int64)
    calls[_KERNEL_INPUTS] = address_of(_kernel_inputs, _INPUTS, types.int64)
    calls[_CONSULT] = address_of(_consult, (BLOCK,), types.int64)


# Learning ------------------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy", inline="always")
def _rescale(block: np.ndarray, scaling: bool) -> None:
    v = committee_views(block)
    gamma = gamma_of(block, scaling)
    for e in range(v.header[0]["experts"]):
        if v.experts[e, 0] <= DESCENT:
            store = _part(block, e, 0)
            move_vectors(block, store, v.widths[e] * gamma, scaling)
    v.cache[0] = 0


@njit(cache=True, error_model="numpy", inline="always")
def _learn_newton(block: np.ndarray, expert: int, label: int, weight: float) -> None:
    # Logistic regression; several outputs share the curvature of the one that is least sure.
    v = committee_views(block)
    kind, number, live = v.experts[expert, 0], v.experts[expert, 4], v.header[0]["live"]
    memory, n, z, direction = _memory(kind), _newton_row(block, kind), v.squares[0], v.squares[1]
    curvature, inverse, weights = v.newton_curvatures[number], v.newton_inverses[number], v.newton_weights[number]
    place = v.experts[expert, 3]
    for k in range(live):
        v.scores[k] = v.at_hand[k, place]
    if live == 1:
        v.scores[0] = logistic(v.scores[0])
    else:
        softmax(v.scores, live)
    h = _LEAST_CURVATURE
    for k in range(live):
        h = max(h, v.scores[k] * (1.0 - v.scores[k]))
    add_row(curvature, inverse, z, n, weight * h, memory, NEWTON_RIDGE, direction)
    for k in range(live):
        goal = float(label) if live == 1 else (1.0 if k == label else 0.0)
        size = weight * (goal - v.scores[k])
        for j in range(n):
            weights[k, j] += size * direction[j]
    if (common(block)["t"] + 16 * number) % ROWS_OF_INVERSE == 0:  # in turn
        invert(curvature, inverse, n)
        for j in range(n):
            z[j] = 0.0
        for k in range(live):
            pull(inverse, weights[k], z, n, ROWS_OF_INVERSE * (1.0 - memory) * NEWTON_RIDGE, direction)


@njit(cache=True, error_model="numpy", inline="always")
def _learn_expert(block: np.ndarray, e: int, target: float, label: int, weight: float) -> None:
    v = committee_views(block)
    kind, live = v.experts[e, 0], v.header[0]["live"]
    if kind == DESCENT:
        _call_rule(v.calls[_DESCEND], _part(block, e, 0), target, weight)
    elif kind <= RESETTING:
        store = _part(block, e, 0)
        if kind == RESETTING:
            error = 1.0 if answer(v.at_hand, live, v.experts[e, 3]) != label else 0.0
            if drifts(v.drifts[e], error):
                state_of(block, STATE)["resets"] += 1
                clear(store)
                restart(common(store))
        _call_rule(v.calls[_ASCEND], store, target, weight)
    elif kind == LINEAR:
        for k in range(live):
            sign = target if live == 1 else (1.0 if k == label else -1.0)
            linear_step.learn_packed(_part(block, e, k), sign, weight)
    elif kind != LAST_LABEL:
        _learn_newton(block, e, label, min(weight, _LARGEST_WEIGHT))


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
    _count_functions(block)
    learn_moments(block)
    if scale_moved(block, scaling, t):
        _rescale(block, scaling)
    _call_block(v.calls[_CONSULT], block)
    label = int(target > 0.0) if live == 1 else int(target)
    learn_answers(v.at_hand, live, label, t, v.errors, v.mistakes)
    s["choice"] = choose(v.answers, label, t, v.choice_errors)
    bounded = min(weight, _LARGEST_WEIGHT)
    learn_stack(v.at_hand, live, label, bounded, t, v.scores, v.weights, v.curvature, v.inverse, v.row_inputs)
    for e in range(v.header[0]["experts"]):
        _learn_expert(block, e, target, label, weight)
    s["last"] = label
    v.cache[0] = 0
    return LEARNED


# Predictions ---------------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def decide(block: np.ndarray, what: int) -> float:
    """Answer ``what`` is asked of the row at hand; NaN for a row that is not finite or too large.

    The answer is the decision value, in log odds, or the `PROBABILITY` of the positive label. With several outputs, it is the
    number of the best one, and the values of all are in ``scores``. Where the stack is not what predictions follow, and does not
    agree with it, the two answers are taken for equally probable.
    """
    v = committee_views(block)
    live = v.header[0]["live"]
    if refused(block):
        return np.nan
    _call_block(v.calls[_CONSULT], block)
    chosen = v.answers[state_of(block, STATE)["choice"]]
    prior = _PRIOR_ROWS / (float(common(block)["t"]) + _PRIOR_ROWS + 1.0)
    if live == 1:
        f = v.scores[0]
        if chosen != int(f > 0.0):
            f = _TINY_STEP if chosen else -_TINY_STEP
        p = logistic(f)
        p += prior * (0.5 - p)
        return p if what == PROBABILITY else math.log(p / (1.0 - p))
    best = v.answers[STACK]
    if chosen != best:
        v.scores[chosen] = v.scores[best]
    v.scores[chosen] += _TINY_STEP
    if what == PROBABILITY:
        softmax(v.scores, live)
        for k in range(live):
            v.scores[k] += prior * (1.0 / live - v.scores[k])
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
def learn_many(block: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> int:
    """Learn the rows of X float32 [n, features], one after the other; how many were learned."""
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        learn_one(block, targets[i], weights[i])
    return X.shape[0]
