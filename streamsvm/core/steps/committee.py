"""A row through a committee of experts, compiled: experts are asked, what combines them answers, and all learn.

How experts are combined depends on what is predicted: see `label_answers` and `target_answers`, each of which has three functions
that are called by address.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import numpy as np

from streamsvm.core.compiling.calls import BLOCK, address_of, caller
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.committee import CommitteeStore, committee_views
from streamsvm.core.memory.slots import scan_row
from streamsvm.core.steps.decisions import lay_out
from streamsvm.core.steps.experts import connect_experts, follow_scale
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.rule import LEARNED, REFUSED, RULE, call_rule, many_rows

__all__ = ["connect", "decide", "decide_many", "first_refused", "learn_many", "learn_one", "refused"]

# Places in `calls`, of which the first are the experts', and how what is there is called.
_CONSULT, _LEARN, _DECIDE = 7, 8, 9
_WHAT = f"{BLOCK} i8"
_call_consult, _call_decide = caller(BLOCK, "i8"), caller(_WHAT, "f8")


def connect(store: CommitteeStore, kinds: Collection[int], answers: Any) -> None:
    """Compile what a row needs where the experts are of these kinds, or load it, and put the addresses into a store.

    ``answers`` is the module that combines them.
    """
    calls = store.views.calls
    connect_experts(calls, kinds)
    calls[_CONSULT] = address_of(answers.consult, BLOCK, "i8")
    calls[_LEARN] = address_of(answers.learn, RULE, "i8")
    calls[_DECIDE] = address_of(answers.decide, _WHAT, "f8")


@compiled
def learn_one(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the row at hand, of a target, of -1 or 1, or of the number of a class; `LEARNED`, or `REFUSED` where it is not finite
    or too large. Nothing has changed then.
    """
    v = committee_views(block)
    if refused(block):
        return REFUSED
    common(block)["t"] += 1
    follow_scale(block)
    _call_consult(v.calls[_CONSULT], block)
    call_rule(v.calls[_LEARN], block, target, weight)
    v.cache[0] = 0
    return LEARNED


@compiled
def decide(block: np.ndarray, what: int) -> float:
    """Answer ``what`` is asked of the row at hand; NaN for a row that is not finite or too large."""
    v = committee_views(block)
    if refused(block):
        return np.nan
    _call_consult(v.calls[_CONSULT], block)
    answer: float = _call_decide(v.calls[_DECIDE], block, what)
    return answer


@compiled
def fill_row(block: np.ndarray, X: np.ndarray, columns: np.ndarray, i: int) -> None:
    """Make row i of X the row at hand. Its features have the columns ``columns`` int64 [features]; -1: none."""
    v = committee_views(block)
    lay_out(v.rows[0], v.header[0]["used"], X, columns, i)


@compiled
def refused(block: np.ndarray) -> bool:
    """Whether the row at hand is not finite or too large."""
    v = committee_views(block)
    return scan_row(v.rows[0], v.header[0]["used"], v.active)[0] < 0


@compiled
def first_refused(block: np.ndarray, X: np.ndarray, columns: np.ndarray) -> int:
    """The number of the first row of X that `learn_one` would refuse, or -1."""
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        if refused(block):
            return i
    return -1


@compiled
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


@compiled
def _learn_rows(
    address: int, block: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    for i in range(X.shape[0]):
        fill_row(block, X, columns, i)
        call_rule(address, block, targets[i], weights[i])
    return X.shape[0]


#: Learns the rows of X, one after the other, as `Rule.learn_many`.
learn_many: Callable[..., int] = many_rows(learn_one, _learn_rows)
