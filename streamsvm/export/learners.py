"""Adds the steps of online learners, and of the experts of ensembles, to programs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from streamsvm.core.kernels import FOURIER, KERNELS
from streamsvm.core.memory.forest import COUNTS, EQUALITY, FEATURE, LEFT, RESIDUAL, SECOND_LABEL, TARGET, TREES
from streamsvm.core.memory.neighbours import N_NEAREST
from streamsvm.core.steps import label_predictions, second_order, stack, target_predictions
from streamsvm.core.steps.experts import predict_from_last_label
from streamsvm.core.steps.forest import MIN_LABEL_SHARE
from streamsvm.core.steps.neighbours import (
    DISTANCE_OFFSET,
    DISTANCE_POWER,
    MAX_DIFFERENCE,
    MIN_WEIGHT_CLASSIFICATION,
    MIN_WEIGHT_REGRESSION,
    compute_factors,
)
from streamsvm.core.steps.rescale import MAX_SCALED_VALUE
from streamsvm.core.steps.stack import FIRST_INPUT
from streamsvm.edge.calibration import LogOddsCalibration, MarginCalibration
from streamsvm.edge.ensembles import MAX_EXPERT_TARGET
from streamsvm.edge.program import Answer, ExportError, Program
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.learners.experts import (
    ForestExpert,
    KernelMachineExpert,
    LandmarkExpert,
    LastLabelExpert,
    LastTargetExpert,
    NeighboursExpert,
    RegressionForestExpert,
    SecondOrderExpert,
    read_common,
)
from streamsvm.learners.kernel_rls import KernelRLS
from streamsvm.learners.linear import LinearEstimator
from streamsvm.learners.one_class import OneClassBSGD
from streamsvm.learners.svm import SVMClassifier

_KERNEL_NAMES = {number: name for name, number in KERNELS.items()}
_LAST, _AVERAGE = 0, 1  # the last and the averaged iterate of a learner's coefficients
_BOTH_ITERATES = (_LAST, _AVERAGE)


def add_learner(program: Program, model: OnlineEstimator, value: int) -> Answer:
    """Append the operations of ``model``, an online learner that is not an ensemble, to a program (an exported model as a list of
    numpy operations). ``value`` is the index of the operation output that holds the features. Returns the prediction rule
    (`Answer`).

    Raises ExportError if the learner cannot be exported.
    """
    iterates = (_AVERAGE if model.follows_average else _LAST,)
    value = program.add("impute", value, float32=model._dtype is np.float32)
    if isinstance(model, BudgetedEstimator):
        if model.scale_in_use is not None:
            value = add_scale(program, value, *model.scale_in_use)
        value = add_expansion(program, value, model._store, model._common[0], iterates)
    elif isinstance(model, KernelRLS):
        value = add_landmarks(program, value, model._store, iterates)
    elif isinstance(model, LinearEstimator):
        value = add_weights(program, value, [model._store], [model._common[0]], iterates)
    else:
        raise ExportError(f"a {type(model).__name__} cannot be exported")
    return _make_answer(model, value, iterates[0])


def _make_answer(model: Any, value: int, iterate: int) -> Answer:
    """Return the prediction rule of an exported online learner: its kind (label, number or anomaly score), labels and
    calibration. ``value`` is the index of the decision values in the program. ``iterate`` is 0 if they use the last
    coefficients, and 1 for averaged ones.
    """
    common = model._common[0]
    if isinstance(model, OnlineClassifier):
        labels = list_labels(model)
        factor = math.exp(common["slope"][iterate]) / max(float(common["size"][iterate]), 1.0)
        calibration = MarginCalibration(factor, 2.0 / (float(common["t"]) + 3.0))
        return Answer("class", value, value, labels, calibration=calibration if len(labels) > 1 else None)
    if isinstance(model, OneClassBSGD):
        center, size = model._recent_center_and_size()
        return Answer("anomaly", value, value, center=center, size=size)
    return Answer("number", value, value)


def list_labels(model: OnlineClassifier) -> tuple[Any, ...]:
    """Return the labels of an online classifier in the order of its decision values, as a tuple; with two labels, positive
    decision values mean the second one. A classifier that has learned a single label has only this one.
    """
    labels = model._labels
    if labels.class_labels:
        return tuple(labels.class_labels)
    pair = labels.decode(-1.0), labels.decode(1.0)
    return pair if pair[0] != pair[1] else pair[:1]


def add_scale(program: Program, value: int, location: np.ndarray, spread: np.ndarray) -> int:
    """Append an operation (x - location) / spread, clipped to the learners' limit, to a program (an exported model). It scales
    the operation output with the index ``value``, which holds the features. Returns the index of its own output.
    """
    return program.add("scale", value, location=location, spread=spread, bound=float(MAX_SCALED_VALUE))


def add_kernel(program: Program, value: int, store: Any) -> int:
    """Append an operation that computes kernel values between a row and a learner's support vectors, or random Fourier features
    of the row, to a program (an exported model). ``store`` is the learner's memory, and ``value`` the index of the operation
    output with the row. Returns the index of the new output.
    """
    h = store.views.header[0]
    if h["kernel"] == FOURIER:
        return program.add("fourier", value, vectors=store.vectors, factor=math.sqrt(2.0 * float(h["gamma"])))
    kernel = {"kind": _KERNEL_NAMES[int(h["kernel"])], "gamma": float(h["gamma"]), "coef0": float(h["coef0"])}
    return program.add("kernel", value, vectors=store.vectors, degree=max(int(h["degree"]), 1), **kernel)


def add_expansion(program: Program, value: int, store: Any, common: Any, iterates: tuple[int, ...]) -> int:
    """Append the decision values of a kernel machine, sums of kernel values times coefficients, to a program (an exported
    model). ``store`` and ``common`` are the learner's memory. ``value`` is the index of the output with the features.
    ``iterates`` selects last (0) or averaged (1) coefficients. Returns the index of the decision values.

    The decision values are ordered by output, and within an output by ``iterates``.
    """
    v, n = store.views, store.n_support
    kernels = add_kernel(program, value, store)
    if v.header[0]["kernel"] == FOURIER:
        weights = np.concatenate(v.coefficients[:2, :n])[None]
        return program.add("linear", kernels, weights=weights, biases=np.zeros(1))
    weights, biases = _stack_iterates(common, v.coefficients[: store.n_outputs, :n], v.biases[: store.n_outputs], iterates)
    return program.add("linear", kernels, weights=weights, biases=biases)


def _stack_iterates(
    common: Any, rows: np.ndarray, biases: np.ndarray, iterates: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray]:
    """Return a learner's coefficients, [outputs * iterates, vectors], and biases, for export. They are computed from the stored
    ``rows`` and ``biases``, where last and averaged ones alternate, with the factors in ``common``. ``iterates`` selects them: 0
    for last, 1 for averaged.
    """
    last = common["scale"] * rows[::2]
    average = common["average_v"] * rows[1::2] + common["average_u"] * rows[::2]
    coefficients = last, average
    weights = np.stack([coefficients[i] for i in iterates], axis=1).reshape(len(iterates) * len(last), rows.shape[1])
    return weights, np.stack([biases[i::2] for i in iterates], axis=1).ravel()


def add_landmarks(program: Program, value: int, store: Any, iterates: tuple[int, ...], factor: float = 1.0) -> int:
    """Append the decision values of a learner with landmarks (fixed vectors that approximate a kernel), times ``factor``, to a
    program (an exported model). ``store`` is its memory, and ``value`` the index of the output with the features. ``iterates``
    selects last (0) or averaged (1) weights. Returns the index of the decision values.

    The weights of the last iterate include the fast corrections; those of the average do not.
    """
    v, n = store.views, store.n_support + 1
    slow = v.weights[: store.n_outputs, :n]
    weights_by_iterate = slow + v.corrections[: store.n_outputs, :n], slow
    weights = factor * np.stack([weights_by_iterate[i] for i in iterates], axis=1).reshape(len(iterates) * store.n_outputs, n)
    kernels = add_kernel(program, value, store)
    return program.add("linear", kernels, weights=weights[:, 1:], biases=weights[:, 0].copy())


def add_weights(
    program: Program, value: int, stores: list[Any], commons: list[Any], iterates: tuple[int, ...], factor: float = 1.0
) -> int:
    """Append the decision values of linear models, times ``factor``, to a program (an exported model). ``stores`` and
    ``commons`` are their memories, one per output; ``value`` is the index of the output with the features. ``iterates`` selects
    last (0) or averaged (1) weights. Returns the index of the decision values.
    """
    stacked = [
        _stack_iterates(common, store.views.weights[:, : store.used], store.views.biases, iterates)
        for store, common in zip(stores, commons, strict=True)
    ]
    weights, biases = (factor * np.concatenate(arrays) for arrays in zip(*stacked, strict=True))
    return program.add("linear", value, weights=weights, biases=biases)


def add_neighbours(program: Program, value: int, labels: int, arrays: Mapping[str, np.ndarray], **options: Any) -> int:
    """Append a weighted k-nearest-neighbours prediction to a program (an exported model). It compares the features, the
    operation output with the index ``value``, with stored rows: ``arrays`` are their ``vectors``, ``targets`` and ``weights``,
    and the ``feature_weights``. ``labels`` is the number of labels, 0 for regression. Returns the index of the predictions.

    The predictions are a number from -1 to 1 for two labels, one for each of more labels, or the mean target for regression.
    ``options`` are those of the step that differ from those of an ensemble.
    """
    usual = {"neighbours": N_NEAREST, "max_difference": MAX_DIFFERENCE, "offset": DISTANCE_OFFSET, "power": DISTANCE_POWER}
    value = program.add("neighbours", value, **arrays, labels=labels, **{**usual, **options})
    if not labels:
        return value
    twice = 2.0 * np.eye(labels)[1 if labels == 2 else 0 :]
    return program.add("linear", value, weights=twice, biases=np.full(len(twice), -1.0))


# Ensembles --------------------------------------------------------------------------------------------------------------------


def add_ensemble(program: Program, model: Any, value: int) -> Answer:
    """Append the operations of ``model``, an ensemble of online learners, to a program (an exported model as a list of numpy
    operations). ``value`` is the index of the operation output that holds the features. Returns the prediction rule (`Answer`).
    """
    v, record, n_outputs = model._store.views, model._rule_record[0], model._n_outputs
    value = imputed = program.add("impute", value, float32=model._dtype is np.float32)
    if model.scale_in_use is not None:
        value = add_scale(program, value, *model.scale_in_use)
    damped = _add_damping(program, value, v.damping)
    shifted = _add_forest_shift(program, imputed, model)
    corrects = np.full(len(v.errors) - FIRST_INPUT, -1, np.int64)
    for first, base in v.experts[["first_input", "base_input"]].tolist():
        if base:
            corrects[first - FIRST_INPUT : first + 2 - FIRST_INPUT] = base - FIRST_INPUT
    is_classifier = isinstance(model, SVMClassifier)
    outputs: list[int] = []
    for number, (expert, stores) in enumerate(zip(model._expert_specs, model._store.stores, strict=True)):
        features = shifted if isinstance(expert, ForestExpert) else damped if isinstance(expert, KernelMachineExpert) else value
        if isinstance(expert, RegressionForestExpert):
            outputs.append(_add_regression_forest(program, features, outputs, corrects, model, stores[0]))
        else:
            outputs.append(_add_expert(program, features, model, number, expert, stores))
    joined = program.add("concat", *outputs)
    options: dict[str, Any] = {"task": "classification" if is_classifier else "regression", "outputs": n_outputs}
    prior = _as_python(label_predictions.compute_prior_weight)(float(model._common[0]["t"])) if is_classifier else 0.0
    if is_classifier:
        options |= {"prior": prior, "share": min(float((v.counts[0] + 1.0) / (record["rows"] + 2.0)), 1.0)}
    value = program.add(
        "experts",
        joined,
        weights=v.weights.copy(),
        shares=np.exp(model._combiner.LOSS_RATE * (v.losses.min() - v.losses)),
        votes=_compute_votes(v.mistakes[FIRST_INPUT:]),
        corrects=corrects,
        best=int(np.argmin(v.errors[FIRST_INPUT:])),
        follows=int(record["choice"]),
        **options,
    )
    if is_classifier:
        shares = ((v.counts[:n_outputs] + 1.0) / (record["rows"] + n_outputs)).tolist() if n_outputs > 1 else ()
        labels, calibration = list_labels(model), LogOddsCalibration(prior, tuple(shares))
        return Answer("class", value, value, labels, calibration=calibration if len(labels) > 1 else None)
    moments = v.target_moments[0]
    spread = np.array([[target_predictions.compute_deviation(moments)]])
    value = program.add("linear", value, weights=spread, biases=moments[1:2].copy())
    return Answer("number", value, value)


def _as_python(function: Any) -> Any:
    """Return the plain Python function inside a function that numba compiles, because a single call is faster than loading
    machine code. Other functions are returned unchanged.
    """
    return getattr(function, "py_func", function)


def _add_expert(program: Program, value: int, model: Any, number: int, expert: Any, stores: list[Any]) -> int:
    """Append the prediction of one ensemble member to a program (an exported model). ``expert`` describes the member, ``number``
    is its index in the ensemble, and ``stores`` are its memories. ``value`` is the index of the operation output with the
    features. Returns the index of the member's outputs.
    """
    n_outputs = model._n_outputs
    half = 1.0 if n_outputs == 1 else 0.5  # in one-vs-rest, two outputs differ by twice their decision value
    if isinstance(expert, LastLabelExpert):
        return _add_constants(program, value, _predict_from_last_label(model))
    if isinstance(expert, LastTargetExpert):
        return _add_constants(program, value, _read_last_target(model))
    if isinstance(expert, NeighboursExpert):
        return _add_instance_memory(program, value, model, stores[0])
    if isinstance(expert, ForestExpert):
        return _add_classification_forest(program, value, model, stores[0])
    if isinstance(expert, SecondOrderExpert):
        return _add_second_order(program, value, model, model._store.views.experts[number])
    if isinstance(expert, KernelMachineExpert):
        value = add_expansion(program, value, stores[0], read_common(stores[0]), _BOTH_ITERATES)
    elif isinstance(expert, LandmarkExpert):
        value = add_landmarks(program, value, stores[0], _BOTH_ITERATES, half)
    else:
        used = list(stores)[:n_outputs]
        value = add_weights(program, value, used, list(map(read_common, used)), _BOTH_ITERATES, half)
    # They are ordered by output, then iterate. An ensemble expects them by iterate, then output.
    order = np.arange(2 * n_outputs).reshape(n_outputs, 2).T.ravel()
    return program.add("select", value, columns=order) if n_outputs > 1 else value


def _add_constants(program: Program, value: int, numbers: np.ndarray) -> int:
    """Append an operation to a program (an exported model) whose output is ``numbers``, float64 [m], for every row. ``value`` is
    the index of any earlier output. Returns the index of the new one.
    """
    return program.add("linear", value, weights=np.zeros((len(numbers), program.widths[value])), biases=numbers)


def _read_last_target(model: Any) -> np.ndarray:
    """Return the constant prediction of the ensemble member that repeats the target of the last learned row, float64 [1]. Unit:
    standard deviations from the mean target.
    """
    return np.array([float(model._rule_record[0]["last_target"])])


def _predict_from_last_label(model: Any) -> np.ndarray:
    """Return the current outputs of the ensemble member that predicts the next label from the last one, by how often each label
    followed it, float64 [2 * outputs]. They do not depend on the features.
    """
    record, views, n_outputs = model._rule_record[0], model._store.views, model._n_outputs
    out = np.zeros((n_outputs, 2))
    arguments = views.transitions, views.counts, float(record["rows"]), int(record["last"]), n_outputs, out
    _as_python(predict_from_last_label)(*arguments)
    return out.T.ravel()


def _add_instance_memory(program: Program, value: int, model: Any, store: Any) -> int:
    """Append the prediction of an ensemble's k-nearest-neighbours member, which stores recent rows, to a program (an exported
    model). ``store`` is the member's memory, and ``value`` the index of the operation output with the features. Returns the
    index of the predictions.
    """
    views, n_outputs = model._store.views, model._n_outputs
    h, n = store.views.header[0], store.n_rows
    width, is_classifier = int(h["row_width"]), isinstance(model, SVMClassifier)
    if n == 0:
        return _add_constants(program, value, np.zeros(n_outputs))
    if width < program.widths[value]:
        value = program.add("select", value, columns=np.arange(width))
    vectors, spread = store.vectors, views.spread[:width]
    if model.scale_in_use is None:  # distances are in standard deviations; centring keeps them exact in float32
        location = vectors.mean(axis=0, dtype=np.float64)
        value = program.add("scale", value, location=location, spread=spread.copy(), bound=None)
        centred = vectors.astype(np.float64) - location
        vectors = np.divide(centred, spread, out=np.zeros_like(centred), where=spread > 0.0).astype(np.float32)
    units = (spread > 0.0).astype(np.float32)
    factors = np.empty((2, width), np.float32)
    classification, regression = (MIN_WEIGHT_CLASSIFICATION, views.damping[0]), (MIN_WEIGHT_REGRESSION, views.damping[0, :0])
    min_weight, damping = classification if is_classifier else regression
    n_informative = float(h["n_informative"])
    _as_python(compute_factors)(store.views.relevance, units, width, n_informative, min_weight, damping, factors)
    feature_weights, labels = factors[0].astype(np.float64), max(n_outputs, 2) if is_classifier else 0
    arrays = {"targets": store.views.targets[:n].astype(np.float64), "weights": store.views.weights[:n].copy()}
    return add_neighbours(program, value, labels, {"vectors": vectors, "feature_weights": feature_weights, **arrays})


def _add_damping(program: Program, value: int, damping: np.ndarray) -> int:
    """Append an operation that shrinks each feature by a learned factor to a program (an exported model): 1 - ``damping[0]``,
    float64 [columns]. ``value`` is the index of the operation output with the features. Returns the index of the shrunk
    features.

    The shrunk features are those of kernel machines. Without damping, ``value`` itself is returned.
    """
    if not damping.any():
        return value
    factors = 1.0 - damping[0, : program.widths[value]]
    return program.add("scale", value, location=np.zeros(len(factors)), spread=1.0 / factors, bound=None)


def _add_forest_shift(program: Program, value: int, model: Any) -> int:
    """Append an operation that subtracts a constant from each feature to a program (an exported model), as the ensemble's forest
    does so that float32 thresholds are precise. ``value`` is the index of the operation output with the features. Returns the
    index of the shifted features.

    Without a forest, or if its anchors are all 0, ``value`` itself is returned.
    """
    for expert, stores in zip(model._expert_specs, model._store.stores, strict=True):
        if isinstance(expert, ForestExpert) and stores[0].views.anchors.any():
            width, forest_anchors = program.widths[value], stores[0].views.anchors
            forest_anchors = forest_anchors[int(stores[0].views.header["extra_columns"][0]) :]
            anchors = np.zeros(width)
            anchors[: len(forest_anchors)] = forest_anchors[:width]
            return program.add("scale", value, location=anchors, spread=np.ones(width), bound=None)
    return value


def _add_classification_forest(program: Program, value: int, model: Any, store: Any) -> int:
    """Append the outputs of an ensemble's classification forest to a program (an exported model): decision values from the
    labels' shares of the votes, and from the logarithms of these shares. ``store`` is the forest's memory, and ``value`` the
    index of the operation output with the features. Returns the index of both.
    """
    n_outputs = model._n_outputs
    if store.n_learned == 0:
        return _add_constants(program, value, np.zeros(2 * n_outputs))
    trees = [store.get_tree(number) for number in range(TREES)]
    value = add_forest(program, value, trees, store.views.votes, max(n_outputs, 2))
    logarithms = program.add("log", value, least=MIN_LABEL_SHARE)
    if n_outputs == 1:
        weights, bias = np.array([[-0.5, 0.5]]), np.zeros(1)
    else:
        weights, bias = np.eye(n_outputs), np.ones(n_outputs)
    shares = program.add("linear", value, weights=2.0 * weights, biases=-bias)
    return program.add("concat", shares, program.add("linear", logarithms, weights=0.5 * weights, biases=bias))


def _add_regression_forest(program: Program, value: int, outputs: list[int], corrects: np.ndarray, model: Any, store: Any) -> int:
    """Append the two predictions of an ensemble's regression forest to a program (an exported model): of the target itself, and
    of the combined other members' ``outputs`` plus the residual that the forest expects. ``store`` is the forest's memory, and
    ``value`` the index of the features. Returns the index of both.

    ``value`` is the index of the features, and ``outputs`` are those of the outputs of the experts before the forest. For each
    number of these experts, ``corrects`` has the index of the number that it corrects, or -1.
    """
    v, joined = model._store.views, program.add("concat", *outputs)
    n = program.widths[joined]
    clipped = program.add("clip", joined, bound=MAX_EXPERT_TARGET)
    add_corrected = np.hstack([np.eye(n), (corrects[:n, None] == np.arange(n)).astype(np.float64)])
    corrected = program.add("linear", program.add("concat", joined, clipped), weights=add_corrected, biases=np.zeros(n))
    predictions = program.add("clip", corrected, bound=MAX_EXPERT_TARGET)
    votes = _compute_votes(v.mistakes[FIRST_INPUT : FIRST_INPUT + n])
    shares = 0.5 * votes / votes.sum()
    shares[np.argmin(v.errors[FIRST_INPUT : FIRST_INPUT + n])] += 0.5
    base = program.add("linear", predictions, weights=shares[None], biases=np.zeros(1))
    constants = _read_last_target(model), np.array([float(store.views.header[0]["last_residual"])])
    last_target, last_residual = (_add_constants(program, value, numbers) for numbers in constants)
    row = program.add("concat", last_target, base, last_residual, value)
    trees = [store.get_tree(number) for number in range(TREES)]
    target, residual = (add_forest(program, row, trees[kind::2], store.views.votes[kind::2], 0) for kind in (TARGET, RESIDUAL))
    corrected_base = program.add("concat", base, residual)
    return program.add("concat", target, program.add("linear", corrected_base, weights=np.ones((1, 2)), biases=np.zeros(1)))


def _compute_votes(mistakes: np.ndarray) -> np.ndarray:
    """Return the voting weight of each member of an ensemble, float64 [members]. The best member has 1, and others exponentially
    less, the more ``mistakes`` (a decayed count of errors, float64 [members]) they have made.
    """
    votes: np.ndarray = np.exp(stack.VOTING_RATE * (mistakes.min() - mistakes))
    return votes


def add_forest(program: Program, value: int, trees: list[Any], votes: np.ndarray, labels: int) -> int:
    """Append decision trees to a program (an exported model), which predict each label's share of the votes, or for regression
    (``labels`` 0) the mean of the reached leaves. ``votes`` are weights of the trees; features are the operation output with the
    index ``value``. Returns the index of the predictions.

    ``trees`` come from `ForestStore.get_tree`. ``labels`` is the number of labels.
    """
    roots = np.cumsum([0, *(len(links) for links, _, _ in trees)])
    links, thresholds, leaves = (np.concatenate(arrays) for arrays in zip(*trees, strict=True))
    is_leaf = thresholds == np.inf
    leaf_index, start = np.cumsum(is_leaf) - 1, np.repeat(roots[:-1], np.diff(roots))
    if labels:
        counts = leaves[is_leaf, COUNTS]
        leaf_arrays = {
            "targets": leaves[is_leaf, : SECOND_LABEL + 1],
            "counts": np.column_stack([counts & 255, counts >> 8]).astype(np.int8),
        }
    else:
        leaf_arrays = {"means": leaves[is_leaf].view(np.float32)[:, 0].copy()}
    return program.add(
        "forest",
        value,
        roots=roots[:-1].astype(np.int32),
        left=np.where(is_leaf, -1, (links & LEFT) + start).astype(np.int16),
        feature=np.where(is_leaf, leaf_index, links >> FEATURE & 0x3FFF).astype(np.int16),
        equal=np.where(is_leaf, 0, links >> EQUALITY).astype(np.int8),
        thresholds=np.where(is_leaf, 0.0, thresholds).astype(np.float32),
        votes=votes.copy(),
        **leaf_arrays,
        labels=labels,
    )


def _add_second_order(program: Program, value: int, model: Any, entry: Any) -> int:
    """Append the outputs of an ensemble member with linear weights, learned by Newton steps, to a program (an exported model).
    ``entry`` is the member's record in the ensemble's memory, and ``value`` the index of the operation output with the features.
    Returns the index of the member's outputs.
    """
    v, n_outputs = model._store.views, model._n_outputs
    side, used = int(v.header[0]["side"]), int(v.header[0]["used"])
    features = min(used, side - 1)
    functions = 1
    if entry["additive"]:
        functions = min(int(model._rule_record[0]["functions"]), _as_python(second_order.count_functions)(side, used))
    if features < used:
        value = program.add("select", value, columns=np.arange(features))
    value = program.add("clip", value, bound=second_order.FEATURE_CLIP)
    if functions > 1:
        value = program.add("hinges", value, knot=second_order.KNOT, functions=functions)
    weights = v.newton_weights[entry["number"], :n_outputs, : 1 + functions * features]
    return program.add("linear", value, weights=weights[:, 1:], biases=weights[:, 0].copy())
