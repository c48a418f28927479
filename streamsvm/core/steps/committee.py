"""A row through a committee of experts, compiled: experts are asked, what combines them answers, and all learn.

How experts are combined depends on what is predicted: see `label_answers` and `target_answers`, each of which has three functions
that are called by address.

An expert is a learner of the library, whose compiled step runs over a store inside the block, or something small. To add a kind
is to add its number to `streamsvm.core.memory.committee`, its inputs to the stack (`connect`, or `_fill_inputs`), how it learns a
row (`_learn_expert`), and what it does when the scale moves (`_rescale_experts`). An expert of targets may correct another one:
it learns by how much that misses the target, and its inputs are sums of both. Experts that begin anew at a drift have a detector:
an error over the last rows that is above the one over many, by more than chance.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import BLOCK, address_of, caller, compiled
from streamsvm.core.kernels import LARGEST_NORM
from streamsvm.core.memory.committee import (
    ADDITIVE,
    ASCENT,
    FOREST,
    KINDS,
    LANDMARKS,
    LAST_LABEL,
    LAST_TARGET,
    LINEAR,
    MOST_DAMPED,
    NEIGHBOURS,
    NEWTON,
    RESETTING,
    STATE,
    CommitteeStore,
    committee_views,
)
from streamsvm.core.memory.landmarks import landmark_views
from streamsvm.core.memory.neighbours import MOST_COLUMNS, neighbour_views
from streamsvm.core.memory.slots import clear, scan_row
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps import forest, forest_of_numbers, kernel_rls, least_squares, linear_step, neighbours, rescale
from streamsvm.core.steps.coordinate_ascent import step as ascent
from streamsvm.core.steps.drift import drifts
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, common, restart
from streamsvm.core.steps.newton import dot
from streamsvm.core.steps.rule import DECIDE, LEARNED, REFUSED, RULE, call_decide, call_rule, state_of
from streamsvm.core.steps.second_order import count_functions, learn_row, newton_row
from streamsvm.core.steps.stack import MOST_ROWS, answer, bounded, robust_weight
from streamsvm.core.steps.step import compute_scores, differ

_DEVIATIONS, _LEAST_VARIANCE = 3.0, 0.01  # of the chart by which an expert begins anew: see `drifts`
_FADING = 0.998  # of what followed a label, each time that something follows it
_PRIOR_ROWS = 2.0  # that the frequencies of labels count as, where one follows another
_TELLING = 0.01  # the relevance of the first feature from which on it is taken at its word
_DAMPED_OFF, _EVERY = 0.05, 16  # by which what a feature counts may be off, and rows between looks at that
_MOST_OF_NUMBERS = 0.8  # of damping, where targets are numbers
_REACHED = 0.1  # of the largest relevance: where targets are labels, damping is none from that on, and most below minus that
_RISE, _HORIZON = 0.5, 10_000.0  # the share of what it lacks by which damping rises with a row: that over the rows so far

#: The largest weight that a row has in what is of second order.
LARGEST_WEIGHT = 1e4

# Places in `calls`: what a kind of experts does where it is asked, where the scale moves and where it learns, from three times
# its number on; then what combines experts. And how what is there is called.
_SAY, _ADAPT, _TEACH = range(3)
_CONSULT, _LEARN, _DECIDE = range(3 * KINDS, 3 * KINDS + 3)
_INPUTS = f"{BLOCK} {BLOCK} i8"
_MOVE = f"{BLOCK} {BLOCK} f8 b1"
_ROWS = f"{BLOCK} {BLOCK} i8 f8 f8"
_call_inputs, _call_move, _call_rows, _call_block = (caller(of, "i8") for of in (_INPUTS, _MOVE, _ROWS, BLOCK))


@compiled(inline=True)
def _expert_part(block: np.ndarray, expert: int, k: int) -> np.ndarray:
    # The store of an expert, or of its output k.
    e = committee_views(block).experts[expert]
    begin = e[1] + k * e[2]
    return block[begin : begin + e[2]]


@compiled
def _kernel_inputs(block: np.ndarray, store: np.ndarray, first: int) -> int:
    v, s = committee_views(block), views(store)
    h = s.header[0]
    for j in range(h["used"]):
        s.rows[0, j] = np.float32(v.scaled[j] * (1.0 - v.damping[0, j]))
    n_active, norm = scan_row(s.rows[0], h["used"], s.active[0])
    compute_scores(store, n_active, norm)
    s.cache[0]["scored"] = 1
    for k in range(v.header[0]["live"]):
        v.at_hand[k, first], v.at_hand[k, first + 1] = s.scores[2 * k], s.scores[2 * k + 1]
    return 0


@compiled
def _landmark_inputs(block: np.ndarray, store: np.ndarray, first: int) -> int:
    v, s = committee_views(block), landmark_views(store)
    for j in range(s.header[0]["used"]):
        s.rows[0, j] = v.scaled[j]
    kernel_rls.ask(store)
    live = v.header[0]["live"]
    half = 1.0 if live == 1 else 0.5  # one against the rest: two outputs differ by twice their decision value
    for k in range(live):
        v.at_hand[k, first], v.at_hand[k, first + 1] = half * s.scores[2 * k], half * s.scores[2 * k + 1]
    return 0


@compiled(inline=True)
def _linear_inputs(block: np.ndarray, expert: int, first: int) -> None:
    v = committee_views(block)
    live = v.header[0]["live"]
    half = 1.0 if live == 1 else 0.5  # one against the rest: two outputs differ by twice their decision value
    for k in range(live):
        last, average = linear_step.decide_dense(_expert_part(block, expert, k), v.scaled)
        v.at_hand[k, first], v.at_hand[k, first + 1] = half * last, half * average


@compiled
def say_last(follows: np.ndarray, counts: np.ndarray, rows: float, last: int, live: int, out: np.ndarray) -> None:
    """Compute what the last label says of the next one, of each output two numbers, into ``out`` float64 [live, 2].

    They are which label it was, and the log odds of what followed it before, over equal shares. ``last`` is -1 before the first
    row. O(live).
    """
    for k in range(live):
        out[k, 0] = 0.0 if last < 0 else 2.0 * last - 1.0 if live == 1 else (0.5 if last == k else -0.5)
        out[k, 1] = 0.0
    followed = len(follows)
    if last < 0 or last >= followed:
        return
    labels, total = max(live, 2), _PRIOR_ROWS
    for k in range(min(labels, followed)):
        total += follows[last, k]
    negative = 0.0
    for k in range(labels):
        share = counts[k] if live > 1 else counts[0] if k == 1 else max(rows - counts[0], 0.0)
        often = follows[last, k] if k < followed else 0.0
        odds = math.log((often + _PRIOR_ROWS * (share + 0.5) / (rows + 0.5 * labels)) / total * labels)
        if live > 1:
            out[k, 1] = odds
        elif k == 0:
            negative = odds
        else:
            out[0, 1] = odds - negative


@compiled
def follow_label(block: np.ndarray, label: int, weight: float) -> None:
    """Count which label follows which, and keep the last one."""
    v, s = committee_views(block), state_of(block, STATE)
    last, n = s["last"], v.header[0]["followed"]
    if 0 <= last < n:
        for k in range(n):
            v.follows[last, k] *= _FADING
        if label < n:
            v.follows[last, label] += min(weight, MOST_ROWS)
    s["last"] = label


@compiled(inline=True)
def _fill_inputs(block: np.ndarray) -> None:
    v = committee_views(block)
    h = v.header[0]
    live = h["live"]
    for k in range(live):
        v.at_hand[k, 0] = 1.0 if live == 1 else 0.0
    for e in range(h["experts"]):
        kind, first = v.experts[e, 0], v.experts[e, 3]
        if v.calls[3 * kind + _SAY] != 0:
            _call_inputs(v.calls[3 * kind + _SAY], block, _expert_part(block, e, 0), first)
        elif kind == LINEAR:
            _linear_inputs(block, e, first)
        elif kind == LAST_LABEL:
            s = state_of(block, STATE)
            say_last(v.follows, v.counts, s["rows"], s["last"], live, v.at_hand[:, first : first + 2])
        elif kind == LAST_TARGET:
            v.at_hand[0, first] = state_of(block, STATE)["last_target"]
        else:
            n = newton_row(block, kind)
            for k in range(live):
                v.at_hand[k, first] = dot(v.newton_weights[v.experts[e, 4], k], v.squares[0], n)
        if v.experts[e, 5] > 0:
            for m in range(first, first + 2):
                v.at_hand[0, m] += bounded(v.at_hand[0, v.experts[e, 5]])


@compiled(inline=True)
def ask(block: np.ndarray) -> None:
    """Fill ``at_hand`` with the decision values of all experts for the row at hand, once."""
    v = committee_views(block)
    used = v.header[0]["used"]
    if v.cache[0]["valid"] == 0 or differ(v.given[0], v.given[1], used):
        if state_of(block, STATE)["scaling"] != 0:
            rescale.scale_row(v.given[0], v.scaled, v.location, v.spread, used)
        else:
            for j in range(used):
                v.scaled[j] = np.float32(v.given[0, j])
        _fill_inputs(block)
        for j in range(used):
            v.given[1, j] = v.given[0, j]
        v.cache[0]["valid"] = 1


def connect(store: CommitteeStore, kinds: Collection[int], answers: Any) -> None:
    """Compile what a row needs where the experts are of these kinds, or load it, and put the addresses into a store.

    ``answers`` is the module that combines them.
    """
    calls, trees = store.views.calls, forest_of_numbers if store.views.header[0]["targets"] else forest
    machine = {_SAY: (_kernel_inputs, _INPUTS), _TEACH: (ascent.learn_one, RULE)}
    landmarks = {_SAY: (_landmark_inputs, _INPUTS), _ADAPT: (_move_landmarks, _MOVE), _TEACH: (kernel_rls.learn_one, RULE)}
    rows = {_SAY: (neighbours.say, _INPUTS), _ADAPT: (neighbours.adapt, _INPUTS), _TEACH: (neighbours.learn_one, _ROWS)}
    grown = {_SAY: (trees.say, _INPUTS), _ADAPT: (forest.adapt, _INPUTS), _TEACH: (trees.learn_one, _ROWS)}
    of_kinds = {ASCENT: machine, RESETTING: machine, LANDMARKS: landmarks, NEIGHBOURS: rows, FOREST: grown}
    for kind in sorted(of_kinds.keys() & kinds):
        for what, (function, arguments) in of_kinds[kind].items():
            calls[3 * kind + what] = address_of(function, arguments, "i8")
    calls[_CONSULT] = address_of(answers.consult, BLOCK, "i8")
    calls[_LEARN] = address_of(answers.learn, RULE, "i8")
    calls[_DECIDE] = address_of(answers.decide, DECIDE, "f8")


@compiled(inline=True)
def _rescale_experts(block: np.ndarray, scaling: bool) -> None:
    # Bring what the experts hold to the scale that has come into use.
    v = committee_views(block)
    used = v.header[0]["used"]
    gamma = rescale.gamma_of(v.moments, v.spread, used, scaling, v.damping[:0])
    for e in range(v.header[0]["experts"]):
        if v.experts[e, 0] == LANDMARKS:
            _call_move(v.calls[3 * LANDMARKS + _ADAPT], block, _expert_part(block, e, 0), v.widths[e] * gamma, scaling)
        elif v.experts[e, 0] == NEIGHBOURS and scaling:
            _call_inputs(v.calls[3 * NEIGHBOURS + _ADAPT], block, _expert_part(block, e, 0), neighbours.MOVED)
        elif v.experts[e, 0] == FOREST:
            _call_inputs(v.calls[3 * FOREST + _ADAPT], block, _expert_part(block, e, 0), neighbours.MOVED)
    for j in range(used):
        v.shift[j] *= 1.0 - v.damping[0, j]
    _move_kernels(block, scaling)


@compiled
def _move_kernels(block: np.ndarray, scaling: bool) -> None:
    # Bring what the kernel machines hold to what has come into use.
    v = committee_views(block)
    gamma = rescale.gamma_of(v.moments, v.spread, v.header[0]["used"], scaling, v.damping)
    for e in range(v.header[0]["experts"]):
        if v.experts[e, 0] <= RESETTING:
            s = views(_expert_part(block, e, 0))
            h = s.header[0]
            h["gamma"] = v.widths[e] * gamma
            s.cache[0]["valid"] = 0
            if scaling:
                h["largest_norm"] = rescale.move_vectors(s.vectors, s.norms, h["n_support"], h["used"], v.ratio, v.shift)
    v.cache[0]["valid"] = 0


@compiled(inline=True)
def _damping_of(relevance: float, largest: float, numbers: bool) -> float:
    # Where targets are numbers, by how far the relevance is below the largest one. Where they are labels, what is not relevant to
    # them is below 0: a row that is near though it differs there is nearer in what is relevant.
    below = largest - relevance if numbers else (_REACHED * largest - relevance) / (2.0 * _REACHED)
    return (_MOST_OF_NUMBERS if numbers else MOST_DAMPED) * (min(max(below, 0.0), largest) / max(largest, _TELLING))


@compiled
def _follow_relevance(block: np.ndarray, memory: np.ndarray) -> None:
    # Let features count by what the memory of rows has learned of them. Where targets are labels, one that was relevant goes on
    # to count for a while: concepts come back. Where there are more than the memory takes, all count in full.
    v, s = committee_views(block), neighbour_views(memory)
    used, largest, moved = v.header[0]["used"], 0.0, False
    numbers, t = common(block)["loss"] == EPSILON_INSENSITIVE, np.float64(common(block)["t"])
    if s.header[0]["told"] <= neighbours.FIRST_TOLD:
        return
    for j in range(used if used <= MOST_COLUMNS else 0):
        largest = max(largest, s.relevance[j])
    rate = min(_RISE * _EVERY / min(t, _HORIZON), 1.0)
    for j in range(used):
        sought, before = _damping_of(s.relevance[j], largest, numbers), v.damping[1, j]
        v.damping[1, j] = before + rate * (sought - before) if sought > before and not numbers else sought
        moved = moved or abs(v.damping[1, j] - v.damping[0, j]) > _DAMPED_OFF
    if not moved:
        return
    for j in range(used):
        damping = v.damping[1, j]
        v.ratio[j], v.shift[j] = (1.0 - damping) / (1.0 - v.damping[0, j]), 0.0
        v.damping[0, j] = damping
    _move_kernels(block, True)


@compiled
def _move_landmarks(block: np.ndarray, store: np.ndarray, gamma: float, scaling: bool) -> int:
    # Bring landmarks, and the rows that a store holds, to the scale in use, and compute all anew. Once rows are gathered, the
    # normal equations are of the kernel with these landmarks: these stay where they are, and so does gamma, as behind a scaler.
    v, s, own = committee_views(block), landmark_views(store), state_of(store, least_squares.STATE)
    h = s.header[0]
    if own["started"]:
        return 0
    h["gamma"] = gamma
    s.cache[0]["valid"] = 0
    if scaling:
        h["largest_norm"] = rescale.move_vectors(s.vectors, s.norms, h["n_support"], h["used"], v.ratio, v.shift)
        rescale.move_rows(s.window, own["held"], h["used"], v.ratio, v.shift)
    return 0


@compiled(inline=True)
def follow_scale(block: np.ndarray) -> None:
    """Let the scale in use follow the row at hand, which is about to be learned."""
    scaling = state_of(block, STATE)["scaling"] != 0
    count_functions(block)
    v = committee_views(block)
    used, t = v.header[0]["used"], common(block)["t"]
    for e in range(v.header[0]["experts"]):
        if v.experts[e, 0] == NEIGHBOURS and neighbour_views(_expert_part(block, e, 0)).header[0]["laid"] < min(
            used, MOST_COLUMNS
        ):
            _call_inputs(v.calls[3 * NEIGHBOURS + _ADAPT], block, _expert_part(block, e, 0), neighbours.GROWN)
            v.cache[0]["valid"] = 0
    rescale.learn_moments(v.moments, v.first, v.given[0], used, rescale.REACH)
    if rescale.scale_moved(v.moments, v.location, v.spread, v.ratio, v.shift, used, scaling, True, t):
        _rescale_experts(block, scaling)
    if scaling and t % _EVERY == 0:
        for e in range(v.header[0]["experts"]):
            if v.experts[e, 0] == NEIGHBOURS:
                _follow_relevance(block, _expert_part(block, e, 0))


@compiled(apart=True)
def learn_experts(block: np.ndarray, target: float, label: int, weight: float) -> None:
    """Let all experts learn the row at hand: its target, or for several outputs its label."""
    for e in range(committee_views(block).header[0]["experts"]):
        _learn_expert(block, e, target, label, weight)


@compiled(inline=True)
def _learn_expert(block: np.ndarray, e: int, target: float, label: int, weight: float) -> None:
    v = committee_views(block)
    kind, live, first = v.experts[e, 0], v.header[0]["live"], v.experts[e, 3]
    numbers = common(block)["loss"] == EPSILON_INSENSITIVE
    part = target - (bounded(v.at_hand[0, v.experts[e, 5]]) if v.experts[e, 5] > 0 else 0.0)
    if kind <= RESETTING:
        store = _expert_part(block, e, 0)
        if kind == RESETTING:
            if numbers:
                error = min(abs(target - v.at_hand[0, first]), 1.0)
            else:
                error = 1.0 if answer(v.at_hand, live, first) != label else 0.0
            if drifts(v.drifts[e], error, _DEVIATIONS, _LEAST_VARIANCE):
                state_of(block, STATE)["resets"] += 1
                clear(store)
                restart(common(store))
        call_rule(v.calls[3 * kind + _TEACH], store, part, weight)
    elif kind == LINEAR:
        norm, half = 0.0, 1.0 if live == 1 else 0.5  # as in `_linear_inputs`
        for j in range(v.header[0]["used"]):
            norm += np.float64(v.scaled[j]) * np.float64(v.scaled[j])
        for k in range(live):
            sign = part if live == 1 else (1.0 if k == label else -1.0)
            linear_step.learn_dense(_expert_part(block, e, k), v.scaled, norm, v.at_hand[k, first] / half, sign, weight)
    elif kind == LANDMARKS:
        weight = min(weight, LARGEST_WEIGHT)
        if numbers:
            weight *= robust_weight(abs(target - v.at_hand[0, first + 1]), v.errors[first + 1])
        call_rule(v.calls[3 * kind + _TEACH], _expert_part(block, e, 0), part, weight)
    elif kind >= NEIGHBOURS:
        wanted = target if numbers else float(label)
        _call_rows(v.calls[3 * kind + _TEACH], block, _expert_part(block, e, 0), first, wanted, weight)
    elif NEWTON <= kind <= ADDITIVE:
        learn_row(block, e, target, label, min(weight, LARGEST_WEIGHT), numbers)


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
    if v.cache[0]["valid"] == 0 or v.cache[0]["answered"] == 0 or differ(v.given[0], v.given[1], v.header[0]["used"]):
        _call_block(v.calls[_CONSULT], block)
    call_rule(v.calls[_LEARN], block, target, weight)
    v.cache[0]["valid"] = v.cache[0]["answered"] = 0
    return LEARNED


@compiled
def decide(block: np.ndarray, what: int) -> float:
    """Answer ``what`` is asked of the row at hand; NaN for a row that is not finite or too large."""
    v = committee_views(block)
    if refused(block):
        return np.nan
    _call_block(v.calls[_CONSULT], block)
    v.cache[0]["answered"] = 1
    return call_decide(v.calls[_DECIDE], block, what)


@compiled
def refused(block: np.ndarray) -> bool:
    """Whether the row at hand is not finite or too large."""
    v = committee_views(block)
    used = v.header[0]["used"]
    if state_of(block, STATE)["scaling"] != 0:
        return rescale.too_large(v.given[0], used)
    norm = 0.0
    for j in range(used):
        norm += v.given[0, j] * v.given[0, j]
    return not norm < LARGEST_NORM
