"""Programs of committees: their experts, and what combines them, as they stand."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.steps import kinds, label_answers, regression_stack, second_order, stack, target_answers
from streamsvm.core.steps.stack import FIRST_INPUT
from streamsvm.edge.program import Answer, Program
from streamsvm.export.learners import add_expansion, add_landmarks, add_scale, add_weights, labels_of
from streamsvm.learners.committee import states
from streamsvm.learners.svm import SVMClassifier

__all__ = ["add_committee"]

_BOTH = (0, 1)


def add_committee(program: Program, model: Any, value: int) -> Answer:
    """Add the steps of a committee to a program, whose ``value`` has its features; return the answer."""
    v, own, live = model._store.views, model._own[0], model._outputs
    value = program.add("fill", value, single=True)
    if model.scale_in_use is not None:
        value = add_scale(program, value, *model.scale_in_use)
    said = [
        _add_expert(program, value, model, number, expert, stores)
        for number, (expert, stores) in enumerate(zip(model._team, model._store.stores, strict=True))
    ]
    joined = program.add("join", *said)
    corrects = np.full(len(v.errors) - FIRST_INPUT, -1, np.int64)
    for _, _, _, first, _, corrected in v.experts.tolist():
        if corrected:
            corrects[first - FIRST_INPUT : first + 2 - FIRST_INPUT] = corrected - FIRST_INPUT
    labelled = isinstance(model, SVMClassifier)
    rate, voting = (stack.RATE, stack.VOTING_RATE) if labelled else (regression_stack.RATE, regression_stack.RATE)
    options: dict[str, Any] = {"of": "labels" if labelled else "numbers", "outputs": live}
    prior = label_answers.prior_of(float(model._common[0]["t"])) if labelled else 0.0
    if labelled:
        options |= {"prior": prior, "share": float((v.counts[0] + 1.0) / (own["rows"] + 2.0))}
    mistakes = v.mistakes[FIRST_INPUT:]
    value = program.add(
        "experts",
        joined,
        weights=v.weights.copy(),
        shares=np.exp(rate * (v.losses.min() - v.losses)),
        votes=np.exp(voting * (mistakes.min() - mistakes)),
        corrects=corrects,
        best=int(np.argmin(v.errors[FIRST_INPUT:])),
        follows=int(own["choice"]),
        **options,
    )
    if labelled:
        odds: dict[str, Any] = {"kind": "log odds", "prior": prior}
        if live > 1:
            odds["shares"] = ((v.counts[:live] + 1.0) / (own["rows"] + live)).tolist()
        labels = labels_of(model)
        return Answer("class", value, value, labels, odds=odds if len(labels) > 1 else None)
    moments = v.target_moments[0]
    spread = np.array([[target_answers.spread_of(moments)]])
    value = program.add("linear", value, weights=spread, biases=moments[1:2].copy())
    return Answer("number", value, value)


def _add_expert(program: Program, value: int, model: Any, number: int, expert: Any, stores: list[Any]) -> int:
    """Add what an expert says: its outputs by the last iterate, then by the average if it has one."""
    v, live, kind = model._store.views, model._outputs, expert.kind
    half = 1.0 if live == 1 else 0.5  # one against the rest: two outputs differ by twice their decision value
    if kind in (kinds.LAST_LABEL, kinds.LAST_TARGET):
        said = _last(model, kind)
        return program.add("linear", value, weights=np.zeros((live, program.widths[value])), biases=said)
    if kind <= kinds.DESCENT:
        value = add_expansion(program, value, stores[0], states(stores[0], kind)[0][0], _BOTH)
    elif kind == kinds.LANDMARKS:
        value = add_landmarks(program, value, stores[0], _BOTH, half)
    elif kind == kinds.LINEAR:
        used = stores[:live]
        value = add_weights(program, value, used, [states(store, kind)[0][0] for store in used], _BOTH, half)
    else:
        return _add_newton(program, value, model, kind, int(v.experts[number, 4]))
    # Those of an output come one after the other, and are wanted iterate by iterate.
    order = np.arange(2 * live).reshape(live, 2).T.ravel()
    return program.add("select", value, columns=order) if live > 1 else value


def _last(model: Any, kind: int) -> np.ndarray:
    own, live = model._own[0], model._outputs
    if kind == kinds.LAST_TARGET:
        return np.array([float(own["last_target"])])
    last = int(own["last"])
    if last < 0:
        return np.zeros(live)
    return np.array([2.0 * last - 1.0]) if live == 1 else np.where(np.arange(live) == last, 0.5, -0.5)


def _add_newton(program: Program, value: int, model: Any, kind: int, number: int) -> int:
    v, live = model._store.views, model._outputs
    side, used = int(v.header[0]["side"]), int(v.header[0]["used"])
    features = min(used, side - 1)
    functions = 1
    if kind == kinds.ADDITIVE:
        functions = min(int(model._own[0]["functions"]), second_order.functions_of(side, used))
    if features < used:
        value = program.add("select", value, columns=np.arange(features))
    value = program.add("clip", value, bound=second_order.NEWTON_REACH)
    if functions > 1:
        value = program.add("bend", value, knot=second_order.KNOT, functions=functions)
    weights = v.newton_weights[number, :live, : 1 + functions * features]
    return program.add("linear", value, weights=weights[:, 1:], biases=weights[:, 0].copy())
