"""Experts of an ensemble, compiled: kernel machines, linear learners, least squares on landmarks, the last label and target.

`streamsvm.core.steps.ensemble` describes these functions. Each expert's store is a part of the block of the ensemble.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.ensemble import STATE, ensemble_views
from streamsvm.core.memory.landmarks import landmark_views
from streamsvm.core.memory.slots import clear_vectors, scan_row
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps import landmarks, least_squares, linear_step, rescale
from streamsvm.core.steps.coordinate_ascent import detect_drift
from streamsvm.core.steps.ensemble import MAX_ROW_WEIGHT, NEW_DAMPING, NEW_SCALE
from streamsvm.core.steps.iterates import EPSILON_INSENSITIVE, PRIOR_ROWS, get_common_state, reset_state
from streamsvm.core.steps.rule import call_learn, get_rule_state
from streamsvm.core.steps.stack import MAX_FADING_WEIGHT, clip_prediction, compute_robust_weight, predict_class
from streamsvm.core.steps.step import compute_scores

_DEVIATIONS, _MIN_VARIANCE = 3.0, 0.01  # of the drift detector that resets an expert: see `detect_drift`
_TRANSITION_DECAY = 0.998  # the counts of labels after a label are multiplied by this when it occurs again


# Kernel machines --------------------------------------------------------------------------------------------------------------


@compiled
def predict_kernel_machine(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Compute the predictions of a kernel machine, a member of an ensemble, for the current row: one by its last, one by its
    average iterate. They are stored in the ensemble's memory ``block``; ``store`` is the machine's own memory, ``expert`` its
    index. Always returns 0.

    If the machine corrects another expert, it predicts that expert's residual, which is added to the prediction of that expert.
    """
    v, s = ensemble_views(block), views(store)
    h, first, corrected_input = s.header[0], v.experts[expert]["first_input"], v.experts[expert]["base_input"]
    for j in range(h["used"]):
        s.rows[0, j] = np.float32(v.scaled[j] * (1.0 - v.damping[0, j]))
    n_active, norm = scan_row(s.rows[0], h["used"], s.active[0])
    compute_scores(store, n_active, norm)
    s.cache[0]["scored"] = 1
    base = clip_prediction(v.inputs[0, corrected_input]) if corrected_input > 0 else 0.0
    for k in range(v.header[0]["n_outputs"]):
        v.inputs[k, first], v.inputs[k, first + 1] = s.scores[2 * k] + base, s.scores[2 * k + 1] + base
    return 0


@compiled
def update_kernel_machine(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:
    """Train a kernel machine, a member of an ensemble, on the current row or, if it corrects another member, on the residual of
    that one. It is reset first if its errors show a concept drift. ``block`` is the ensemble's memory, ``store`` the machine's
    own, ``expert`` its index. Always returns 0.
    """
    v = ensemble_views(block)
    e = v.experts[expert]
    first, corrected_input = e["first_input"], e["base_input"]
    if e["resets"] != 0:
        if get_common_state(block)["loss"] == EPSILON_INSENSITIVE:
            error = min(abs(target - v.inputs[0, first]), 1.0)
        else:
            error = 1.0 if predict_class(v.inputs, v.header[0]["n_outputs"], first) != label else 0.0
        if detect_drift(v.drifts[expert], error, _DEVIATIONS, _MIN_VARIANCE):
            get_rule_state(block, STATE)["resets"] += 1
            clear_vectors(store)
            reset_state(get_common_state(store))
    call_learn(e["rule"], store, target - (clip_prediction(v.inputs[0, corrected_input]) if corrected_input > 0 else 0.0), weight)
    return 0


@compiled
def rescale_kernel_machine(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:
    """Convert the support vectors of a kernel machine, a member of an ensemble, and update its kernel width gamma, after the
    factors that features are multiplied with have changed (``event`` is `NEW_DAMPING`, which also follows a new scale). Other
    events are ignored. Always returns 0.
    """
    if event != NEW_DAMPING:
        return 0
    v, s, scaling = ensemble_views(block), views(store), get_rule_state(block, STATE)["scaling"] != 0
    h = s.header[0]
    h["gamma"] = v.experts[expert]["width"] * rescale.compute_gamma(v.moments, v.spread, h["used"], scaling, v.damping)
    s.cache[0]["valid"] = 0
    if scaling:
        h["largest_norm"] = rescale.rescale_vectors(s.vectors, s.norms, h["n_support"], h["used"], v.ratio, v.shift)
    return 0


# Linear learners --------------------------------------------------------------------------------------------------------------


@compiled(inline=True)
def _get_output_share(n_outputs: int) -> float:
    """Return the factor of decision values of an ensemble's member: 1 for a single output, and 0.5 for several (one against the
    rest), because such values differ by twice their margin.
    """
    return 1.0 if n_outputs == 1 else 0.5


@compiled
def predict_linear(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Compute the predictions of a linear learner, a member of an ensemble, for the current row: for each output one by its
    last, one by its average iterate. They are stored in the ensemble's memory ``block``; ``store`` is the learner's own memory,
    ``expert`` its index. Always returns 0.
    """
    v = ensemble_views(block)
    h, first = v.header[0], v.experts[expert]["first_input"]
    share, size = _get_output_share(h["n_outputs"]), len(store) // h["outputs"]
    for k in range(h["n_outputs"]):
        last, average = linear_step.compute_dense_scores(store[k * size : (k + 1) * size], v.scaled)
        v.inputs[k, first], v.inputs[k, first + 1] = share * last, share * average
    return 0


@compiled
def update_linear(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:
    """Train a linear learner, a member of an ensemble, on the current row: with its ``target`` or, with several classes, one
    against the rest (1 for the output of class ``label``, -1 for the others). ``block`` is the ensemble's memory, ``store`` the
    learner's own, ``expert`` its index. Always returns 0.
    """
    v, norm = ensemble_views(block), 0.0
    h, first = v.header[0], v.experts[expert]["first_input"]
    share, size, n_outputs = _get_output_share(h["n_outputs"]), len(store) // h["outputs"], h["n_outputs"]
    for j in range(h["used"]):
        norm += np.float64(v.scaled[j]) * np.float64(v.scaled[j])
    for k in range(n_outputs):
        output_target = target if n_outputs == 1 else (1.0 if k == label else -1.0)
        output_store = store[k * size : (k + 1) * size]
        linear_step.learn_dense_row(output_store, v.scaled, norm, v.inputs[k, first] / share, output_target, weight)
    return 0


# Least squares on landmarks ---------------------------------------------------------------------------------------------------


@compiled
def predict_landmarks(block: np.ndarray, store: np.ndarray, expert: int) -> int:
    """Compute two predictions of a kernel least squares model, a member of an ensemble, for the current row: with and without
    fast corrections (weights that follow recent errors). They are stored in the ensemble's memory ``block``; ``store`` is the
    model's own memory, ``expert`` its index. Always returns 0.
    """
    v, s = ensemble_views(block), landmark_views(store)
    n_outputs, first = v.header[0]["n_outputs"], v.experts[expert]["first_input"]
    for j in range(s.header[0]["used"]):
        s.rows[0, j] = v.scaled[j]
    landmarks.compute_scores(store)
    share = _get_output_share(n_outputs)
    for k in range(n_outputs):
        v.inputs[k, first], v.inputs[k, first + 1] = share * s.scores[2 * k], share * s.scores[2 * k + 1]
    return 0


@compiled
def update_landmarks(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:  # noqa: ARG001
    """Train a kernel least squares model, a member of an ensemble, on the current row. In regression, a row with a large error
    gets a smaller weight (Huber loss). ``block`` is the ensemble's memory, ``store`` the model's own, ``expert`` its index.
    Always returns 0.
    """
    v = ensemble_views(block)
    e = v.experts[expert]
    uncorrected = e["first_input"] + 1
    weight = min(weight, MAX_ROW_WEIGHT)
    if get_common_state(block)["loss"] == EPSILON_INSENSITIVE:
        weight *= compute_robust_weight(abs(target - v.inputs[0, uncorrected]), v.errors[uncorrected])
    call_learn(e["rule"], store, target, weight)
    return 0


@compiled
def rescale_landmarks(block: np.ndarray, store: np.ndarray, expert: int, event: int) -> int:
    """Adapt a kernel least squares model, a member of an ensemble, to rows that are standardised differently (``event``
    `NEW_SCALE`): convert its landmarks (stored rows) and its buffer of first rows, and update its kernel width gamma. Does
    nothing for other events, or once the buffer is full. Always returns 0.

    Once the window of first rows is full, the normal equations depend on the landmarks and gamma, so that neither may change.
    """
    v, s, state = ensemble_views(block), landmark_views(store), get_rule_state(store, least_squares.STATE)
    if event != NEW_SCALE or state["is_full"]:
        return 0
    h, scaling = s.header[0], get_rule_state(block, STATE)["scaling"] != 0
    h["gamma"] = v.experts[expert]["width"] * rescale.compute_gamma(v.moments, v.spread, h["used"], scaling, v.damping[:0])
    s.cache[0]["valid"] = 0
    if scaling:
        h["largest_norm"] = rescale.rescale_vectors(s.vectors, s.norms, h["n_support"], h["used"], v.ratio, v.shift)
        rescale.rescale_rows(s.window, state["n_stored"], h["used"], v.ratio, v.shift)
    return 0


# The last label, and the last target ------------------------------------------------------------------------------------------


@compiled
def predict_from_last_label(
    follows: np.ndarray, counts: np.ndarray, rows: float, last: int, n_outputs: int, out: np.ndarray
) -> None:
    """Predict the next label of a stream from the index ``last`` of the last one (-1: none yet), into ``out`` float64
    [n_outputs, 2]: column 0 marks the output of the last label, column 1 has log odds. ``follows`` [last, next] counts
    transitions between labels, ``counts`` labels, ``rows`` all rows.
    """
    for k in range(n_outputs):
        out[k, 0] = 0.0 if last < 0 else 2.0 * last - 1.0 if n_outputs == 1 else (0.5 if last == k else -0.5)
        out[k, 1] = 0.0
    followed = len(follows)
    if last < 0 or last >= followed:
        return
    labels, total = max(n_outputs, 2), PRIOR_ROWS
    for k in range(min(labels, followed)):
        total += follows[last, k]
    negative = 0.0
    for k in range(labels):
        share = counts[k] if n_outputs > 1 else counts[0] if k == 1 else max(rows - counts[0], 0.0)
        often = follows[last, k] if k < followed else 0.0
        odds = math.log((often + PRIOR_ROWS * (share + 0.5) / (rows + 0.5 * labels)) / total * labels)
        if n_outputs > 1:
            out[k, 1] = odds
        elif k == 0:
            negative = odds
        else:
            out[0, 1] = odds - negative


@compiled
def predict_last_label(block: np.ndarray, store: np.ndarray, expert: int) -> int:  # noqa: ARG001
    """Predict the label of the current row from that of the previous row, by counts of the labels that followed each label. Two
    values per output are stored in the ensemble's memory ``block``, for its member with the index ``expert``. Always returns 0.
    """
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    first, n_outputs = v.experts[expert]["first_input"], v.header[0]["n_outputs"]
    predict_from_last_label(v.transitions, v.counts, s["rows"], s["last"], n_outputs, v.inputs[:, first : first + 2])
    return 0


@compiled
def update_last_label(block: np.ndarray, store: np.ndarray, expert: int, target: float, label: int, weight: float) -> int:  # noqa: ARG001
    """Train the member of an ensemble that predicts a row's label from the previous one: count that class index ``label``
    followed the last label, and store it as the last one. Earlier counts after the same label decay. The counts are in the
    ensemble's memory ``block``. Always returns 0.
    """
    v, s = ensemble_views(block), get_rule_state(block, STATE)
    last, n = s["last"], v.header[0]["transition_labels"]
    if 0 <= last < n:
        for k in range(n):
            v.transitions[last, k] *= _TRANSITION_DECAY
        if label < n:
            v.transitions[last, label] += min(weight, MAX_FADING_WEIGHT)
    s["last"] = label
    return 0


@compiled
def predict_last_target(block: np.ndarray, store: np.ndarray, expert: int) -> int:  # noqa: ARG001
    """Predict that the regression target of the current row is that of the previous row. The prediction is stored in the
    ensemble's memory ``block``, for its member with the index ``expert``. Always returns 0.
    """
    v = ensemble_views(block)
    v.inputs[0, v.experts[expert]["first_input"]] = get_rule_state(block, STATE)["last_target"]
    return 0
