"""One row through an ensemble of experts, compiled: experts predict, their predictions are combined, and all learn the row.

Predictions are combined by three functions of `label_predictions` or `target_predictions`, which are called by address.

Each expert has up to three functions, which are called by address, too. Their arguments begin with the block of the ensemble, the
part of it with the expert's stores, and the expert's index.

- ``predict`` writes the expert's predictions of the current row into ``inputs``, its inputs to the stacks.
- ``update`` learns the current row, given its target, its class index, and its weight.
- ``rescale`` handles an event: `NEW_FEATURES`, `NEW_SCALE`, `NEW_DAMPING`, `REVIEW_DUE` or `CHECK_REPEATS`. It returns 1 if it
  has changed the damping of features, or the row repeats the stored ones (for `CHECK_REPEATS`), and 0 otherwise.
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

#: Events: the model has new features; a new scale of rows is in use; the scale or the damping of features has changed for kernel
#: machines; it is time to review the damping of features; a row is learned that may repeat the last ones.
NEW_FEATURES, NEW_SCALE, NEW_DAMPING, REVIEW_DUE, CHECK_REPEATS = map(np.int64, range(5))

#: Rows between two events `REVIEW_DUE`.
ROWS_BETWEEN_REVIEWS = 16

#: The largest weight of a row in least squares and second-order methods; larger weights are clipped.
MAX_ROW_WEIGHT = 1e4

_PREDICT = f"{BLOCK_TYPE} {BLOCK_TYPE} i8"
_UPDATE = f"{BLOCK_TYPE} {BLOCK_TYPE} i8 f8 i8 f8"
_RESCALE = f"{BLOCK_TYPE} {BLOCK_TYPE} i8 i8"
_call_predict, _call_update, _call_rescale = (make_caller(signature, "i8") for signature in (_PREDICT, _UPDATE, _RESCALE))
_call_predict_row = make_caller(BLOCK_TYPE, "i8")


class ExpertFunctions(NamedTuple):
    """The compiled functions of an expert, or None. ``rule`` is its learner's function for a row, which ``update`` calls."""

    predict: Any
    update: Any = None
    rescale: Any = None
    rule: Any = None


def link_functions(store: EnsembleStore, experts: Iterable[ExpertFunctions], combiner: Any) -> None:
    """Load or compile the functions of all ``experts`` (members) of an ensemble, and write their memory addresses into the
    ensemble's memory ``store``, through which compiled code calls them. ``combiner`` is the module that combines the
    predictions: `label_predictions` in classification, `target_predictions` in regression.
    """
    for entry, functions in zip(store.views.experts, experts, strict=True):
        signatures = _PREDICT, _UPDATE, _RESCALE, LEARN_SIGNATURE
        for name, function, signature in zip(functions._fields, functions, signatures, strict=True):
            entry[name] = 0 if function is None else get_address(function, signature, "i8")
    calls = store.views.calls[0]
    calls["predict_row"] = get_address(combiner.predict_row, BLOCK_TYPE, "i8")
    calls["learn_row"] = get_address(combiner.learn_row, LEARN_SIGNATURE, "i8")
    calls["compute_output"] = get_address(combiner.compute_output, OUTPUT_SIGNATURE, "f8")


@compiled(inline=True)
def _get_store(block: np.ndarray, expert: int) -> np.ndarray:
    """Return the part of the ensemble's memory ``block`` (uint8 [bytes]) that belongs to the member with the index ``expert``,
    as a view.
    """
    e = ensemble_views(block).experts[expert]
    return block[e["begin"] : e["end"]]


@compiled(inline=True)
def predict_experts(block: np.ndarray) -> None:
    """Compute the predictions of all members of the ensemble for the current row, and store them in ``block``, the ensemble's
    memory. Nothing is computed if they are still valid: if the row equals the last one, and the model is unchanged.
    """
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
        _call_predict(v.experts[e]["predict"], block, _get_store(block, e), e)
    for j in range(used):
        v.unscaled[1, j] = v.unscaled[0, j]
    v.cache[0]["valid"] = 1


@compiled(noinline=True)
def _rescale_experts(block: np.ndarray, event: int) -> bool:
    """Call the ``rescale`` functions of all members of the ensemble with the constant ``event``: new features, rows standardised
    differently, changed damping, or a review of damping. Damping consists of factors that weaken irrelevant features. Returns
    True if a member has changed it, or has found the row equal to its stored rows (`CHECK_REPEATS`).
    """
    v, n_changes = ensemble_views(block), 0
    for e in range(v.header[0]["experts"]):
        if v.experts[e]["rescale"] != 0:
            n_changes += _call_rescale(v.experts[e]["rescale"], block, _get_store(block, e), e, event)
    return n_changes > 0


@compiled(inline=True)
def _update_scale(block: np.ndarray) -> None:
    """Update the running mean and deviation of each feature with the ensemble's current row, before it is learned. If there are
    new features, or rows are standardised differently from now on, all members of the ensemble are adapted. ``block`` is its
    memory.
    """
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    scaling, used, t = s["scaling"] != 0, v.header[0]["used"], get_common_state(block)["t"]
    if s["features"] != used:
        s["features"], v.cache[0]["valid"] = used, 0
        _rescale_experts(block, NEW_FEATURES)
    # A sensor that stands still tells nothing of the scale of rows, which would shrink to nothing.
    v.cache[0]["repeats"] = _rescale_experts(block, CHECK_REPEATS)
    if v.cache[0]["repeats"] == 0:
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
    """Train all members of an ensemble on the current row. ``target`` is the regression target or -1 or 1, ``label`` the class
    index, ``weight`` the row's sample weight; ``block`` is the ensemble's memory with the row in it.
    """
    v = ensemble_views(block)
    for e in range(v.header[0]["experts"]):
        if v.experts[e]["update"] != 0:
            _call_update(v.experts[e]["update"], block, _get_store(block, e), e, target, label, weight)


@compiled
def learn_one(block: np.ndarray, target: float, weight: float) -> int:
    """Train the ensemble in ``block`` on its current row. ``target`` is a regression target, -1 or 1, or a class index. Returns
    the constant `LEARNED`, or `REFUSED` for a row that is not finite or too large, which leaves the model unchanged.
    """
    v = ensemble_views(block)
    if _is_refused(block):
        return REFUSED
    get_common_state(block)["t"] += 1
    _update_scale(block)
    cache = v.cache[0]
    if cache["valid"] == 0 or cache["answered"] == 0 or rows_differ(v.unscaled[0], v.unscaled[1], v.header[0]["used"]):
        _call_predict_row(v.calls[0]["predict_row"], block)
    call_learn(v.calls[0]["learn_row"], block, target, weight)
    cache["valid"] = cache["answered"] = 0
    return LEARNED


@compiled
def compute_output(block: np.ndarray, output_kind: int) -> float:
    """Return the ensemble's prediction for the current row: a decision value, a regression target, or a probability, as the
    constant ``output_kind`` requests; with three or more classes, the index of the predicted class. NaN if the row is not finite
    or too large.
    """
    v = ensemble_views(block)
    if _is_refused(block):
        return np.nan
    _call_predict_row(v.calls[0]["predict_row"], block)
    v.cache[0]["answered"] = 1
    return call_output(v.calls[0]["compute_output"], block, output_kind)


@compiled
def _is_refused(block: np.ndarray) -> bool:
    """Return whether the ensemble refuses to learn the current row, which is in its memory ``block``: because a value is not
    finite in float32 or, if rows are not standardised, because the squared norm is too large.
    """
    v = ensemble_views(block)
    used = v.header[0]["used"]
    if get_rule_state(block, STATE)["scaling"] != 0:
        return rescale.is_too_large(v.unscaled[0], used)
    norm = 0.0
    for j in range(used):
        norm += v.unscaled[0, j] * v.unscaled[0, j]
    return not norm < LARGEST_NORM
