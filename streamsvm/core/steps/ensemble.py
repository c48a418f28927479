"""A row through an ensemble of experts, compiled: experts predict it, their predictions are combined, and all learn it.

How predictions are combined depends on the target: see `label_predictions` and `target_predictions`, each of which has three
functions that are called by address.

Each expert has up to three functions, which are called by address, too. All take the block of the ensemble, the part of it with
the expert's stores, and its number.

- ``predict`` writes the expert's predictions of the current row into ``inputs``, its inputs to the stacks.
- ``update`` learns the current row, given its target, the number of its label, and its weight.
- ``rescale`` follows an event: `NEW_FEATURES`, `NEW_SCALE`, `NEW_DAMPING` or `REVIEW_DUE`. It returns 1 if it has changed by how
  much less features count, and 0 otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import BLOCK_TYPE, compiled, get_address, make_caller
from streamsvm.core.kernels import LARGEST_NORM
from streamsvm.core.memory.ensemble import STATE, EnsembleStore, ensemble_views
from streamsvm.core.steps import rescale
from streamsvm.core.steps.iterates import get_common_state
from streamsvm.core.steps.rule import LEARN_SIGNATURE, LEARNED, OUTPUT_SIGNATURE, REFUSED, call_learn, call_output, get_rule_state
from streamsvm.core.steps.step import rows_differ

#: Events: there are new features; another scale is in use; kernel machines have another scale, or features count more or less for
#: them; it is time to review by how much features count.
NEW_FEATURES, NEW_SCALE, NEW_DAMPING, REVIEW_DUE = map(np.int64, range(4))

ROWS_BETWEEN_REVIEWS = 16

#: The largest weight of a row in least squares and in methods of second order.
MAX_ROW_WEIGHT = 1e4

_PREDICT = f"{BLOCK_TYPE} {BLOCK_TYPE} i8"
_UPDATE = f"{BLOCK_TYPE} {BLOCK_TYPE} i8 f8 i8 f8"
_RESCALE = f"{BLOCK_TYPE} {BLOCK_TYPE} i8 i8"
_call_predict, _call_update, _call_rescale, _call_predict_row = (
    make_caller(of, "i8") for of in (_PREDICT, _UPDATE, _RESCALE, BLOCK_TYPE)
)


class ExpertFunctions(NamedTuple):
    """The compiled functions of an expert; None: it has no such function. ``rule`` is that of a learner, for ``update``."""

    predict: Any
    update: Any = None
    rescale: Any = None
    rule: Any = None


def link_functions(store: EnsembleStore, experts: Iterable[ExpertFunctions], answers: Any) -> None:
    """Compile the functions of experts, or load them, and put their addresses into a store. ``answers`` is the module that
    combines their predictions.
    """
    for entry, functions in zip(store.views.experts, experts, strict=True):
        signatures = _PREDICT, _UPDATE, _RESCALE, LEARN_SIGNATURE
        for name, function, signature in zip(functions._fields, functions, signatures, strict=True):
            entry[name] = 0 if function is None else get_address(function, signature, "i8")
    calls = store.views.calls[0]
    calls["predict_row"] = get_address(answers.predict_row, BLOCK_TYPE, "i8")
    calls["learn_row"] = get_address(answers.learn_row, LEARN_SIGNATURE, "i8")
    calls["compute_output"] = get_address(answers.compute_output, OUTPUT_SIGNATURE, "f8")


@compiled(inline=True)
def _store_of(block: np.ndarray, expert: int) -> np.ndarray:
    e = ensemble_views(block).experts[expert]
    return block[e["begin"] : e["end"]]


@compiled(inline=True)
def predict_experts(block: np.ndarray) -> None:
    """Fill ``inputs`` with the predictions of all experts for the current row, once."""
    v = ensemble_views(block)
    h = v.header[0]
    used, n_outputs = h["used"], h["n_outputs"]
    if v.cache[0]["valid"] != 0 and not rows_differ(v.unscaled[0], v.unscaled[1], used):
        return
    if get_rule_state(block, STATE)["scaling"] != 0:
        rescale.scale_row(v.unscaled[0], v.scaled, v.location, v.spread, used)
    else:
        for j in range(used):
            v.scaled[j] = np.float32(v.unscaled[0, j])
    for k in range(n_outputs):
        v.inputs[k, 0] = 1.0 if n_outputs == 1 else 0.0
    for e in range(h["experts"]):
        _call_predict(v.experts[e]["predict"], block, _store_of(block, e), e)
    for j in range(used):
        v.unscaled[1, j] = v.unscaled[0, j]
    v.cache[0]["valid"] = 1


@compiled(noinline=True)
def _rescale_experts(block: np.ndarray, event: int) -> bool:
    # Let experts follow an event; whether features count more or less than before.
    v, changes = ensemble_views(block), 0
    for e in range(v.header[0]["experts"]):
        if v.experts[e]["rescale"] != 0:
            changes += _call_rescale(v.experts[e]["rescale"], block, _store_of(block, e), e, event)
    return changes > 0


@compiled(inline=True)
def _follow_scale(block: np.ndarray) -> None:
    # Let the scale in use follow the current row, which is about to be learned.
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    scaling, used, t = s["scaling"] != 0, v.header[0]["used"], get_common_state(block)["t"]
    if s["features"] != used:
        s["features"], v.cache[0]["valid"] = used, 0
        _rescale_experts(block, NEW_FEATURES)
    rescale.update_moments(v.moments, v.first, v.unscaled[0], used, rescale.MOMENT_CLIP)
    if rescale.update_scale(v.moments, v.location, v.spread, v.ratio, v.shift, used, scaling, True, t):
        _rescale_experts(block, NEW_SCALE)
        for j in range(used):
            v.shift[j] *= 1.0 - v.damping[0, j]
        _rescale_experts(block, NEW_DAMPING)
        v.cache[0]["valid"] = 0
    if scaling and t % ROWS_BETWEEN_REVIEWS == 0 and _rescale_experts(block, REVIEW_DUE):
        _rescale_experts(block, NEW_DAMPING)
        v.cache[0]["valid"] = 0


@compiled(noinline=True)
def update_experts(block: np.ndarray, target: float, label: int, weight: float) -> None:
    """Let all experts learn the current row: its target, or for several outputs its label."""
    v = ensemble_views(block)
    for e in range(v.header[0]["experts"]):
        if v.experts[e]["update"] != 0:
            _call_update(v.experts[e]["update"], block, _store_of(block, e), e, target, label, weight)


@compiled
def learn_one(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the current row, of a target, of -1 or 1, or of the number of a class; `LEARNED`, or `REFUSED` where it is not finite
    or too large. Nothing has changed then.
    """
    v = ensemble_views(block)
    if _is_refused(block):
        return REFUSED
    get_common_state(block)["t"] += 1
    _follow_scale(block)
    cache = v.cache[0]
    if cache["valid"] == 0 or cache["answered"] == 0 or rows_differ(v.unscaled[0], v.unscaled[1], v.header[0]["used"]):
        _call_predict_row(v.calls[0]["predict_row"], block)
    call_learn(v.calls[0]["learn_row"], block, target, weight)
    cache["valid"] = cache["answered"] = 0
    return LEARNED


@compiled
def compute_output(block: np.ndarray, what: int) -> float:
    """Return the output ``what`` for the current row; NaN for a row that is not finite or too large."""
    v = ensemble_views(block)
    if _is_refused(block):
        return np.nan
    _call_predict_row(v.calls[0]["predict_row"], block)
    v.cache[0]["answered"] = 1
    return call_output(v.calls[0]["compute_output"], block, what)


@compiled
def _is_refused(block: np.ndarray) -> bool:
    # Whether the current row is not finite or too large.
    v = ensemble_views(block)
    used = v.header[0]["used"]
    if get_rule_state(block, STATE)["scaling"] != 0:
        return rescale.is_too_large(v.unscaled[0], used)
    norm = 0.0
    for j in range(used):
        norm += v.unscaled[0, j] * v.unscaled[0, j]
    return not norm < LARGEST_NORM
