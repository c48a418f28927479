"""Programs of the online learners, and of the experts of ensembles."""

from __future__ import annotations

import math
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
    BudgetedMachine,
    Forest,
    Landmarks,
    LastLabel,
    LastTarget,
    Neighbours,
    NumberForest,
    SecondOrder,
    read_common,
)
from streamsvm.learners.kernel_rls import KernelRLS
from streamsvm.learners.linear import LinearEstimator
from streamsvm.learners.one_class import OneClassBSGD
from streamsvm.learners.svm import SVMClassifier

_KERNELS = {number: name for name, number in KERNELS.items()}
_LAST, _AVERAGE = 0, 1


def add_learner(program: Program, model: OnlineEstimator, value: int) -> Answer:
    """Add the steps of a learner that is no ensemble to a program, whose ``value`` has its features; return the answer.

    It is an ExportError if the learner is of a kind that has no program.
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
        raise ExportError(f"a {type(model).__name__} has no form that predicts without streamsvm")
    return _answer_of(model, value, iterates[0])


def _answer_of(model: Any, value: int, iterate: int) -> Answer:
    common = model._common[0]
    if isinstance(model, OnlineClassifier):
        labels = list_labels(model)
        factor = math.exp(common["slope"][iterate]) / max(float(common["size"][iterate]), 1.0)
        odds = MarginCalibration(factor, 2.0 / (float(common["t"]) + 3.0))
        return Answer("class", value, value, labels, calibration=odds if len(labels) > 1 else None)
    if isinstance(model, OneClassBSGD):
        center, size = model._recent_center_and_size()
        return Answer("anomaly", value, value, center=center, size=size)
    return Answer("number", value, value)


def list_labels(model: OnlineClassifier) -> tuple[Any, ...]:
    """Return the labels of a classifier in the order of its decision values; the one label that it may give while it has one."""
    labels = model._labels
    if labels.class_labels:
        return tuple(labels.class_labels)
    pair = labels.decode(-1.0), labels.decode(1.0)
    return pair if pair[0] != pair[1] else pair[:1]


def add_scale(program: Program, value: int, location: np.ndarray, spread: np.ndarray) -> int:
    """Add the scale that a learner keeps itself, of the columns in use."""
    return program.add("scale", value, location=location, spread=spread, bound=float(MAX_SCALED_VALUE))


def add_kernel(program: Program, value: int, store: Any) -> int:
    """Add the kernel values with the vectors of a store."""
    h = store.views.header[0]
    if h["kernel"] == FOURIER:
        return program.add("fourier", value, vectors=store.vectors, factor=math.sqrt(2.0 * float(h["gamma"])))
    kernel = {"kind": _KERNELS[int(h["kernel"])], "gamma": float(h["gamma"]), "coef0": float(h["coef0"])}
    return program.add("kernel", value, vectors=store.vectors, degree=max(int(h["degree"]), 1), **kernel)


def add_expansion(program: Program, value: int, store: Any, common: Any, iterates: tuple[int, ...]) -> int:
    """Add the decision values of a store of support vectors: of each output those by the iterates asked for."""
    v, n = store.views, store.n_support
    kernels = add_kernel(program, value, store)
    if v.header[0]["kernel"] == FOURIER:
        weights = np.concatenate(v.coefficients[:2, :n])[None]
        return program.add("linear", kernels, weights=weights, biases=np.zeros(1))
    weights, biases = _stacked_iterates(common, v.coefficients[: store.n_outputs, :n], v.biases[: store.n_outputs], iterates)
    return program.add("linear", kernels, weights=weights, biases=biases)


def _stacked_iterates(common: Any, rows: np.ndarray, biases: np.ndarray, which: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients and biases of iterates, those of an output one after the other."""
    last = common["scale"] * rows[::2]
    average = common["average_v"] * rows[1::2] + common["average_u"] * rows[::2]
    both = last, average
    weights = np.stack([both[iterate] for iterate in which], axis=1).reshape(len(which) * len(last), rows.shape[1])
    return weights, np.stack([biases[iterate::2] for iterate in which], axis=1).ravel()


def add_landmarks(program: Program, value: int, store: Any, iterates: tuple[int, ...], factor: float = 1.0) -> int:
    """Add the decision values of landmarks, times a factor, as `add_expansion` does: the last iterate has the corrections."""
    v, n = store.views, store.n_support + 1
    slow = v.weights[: store.n_outputs, :n]
    both = slow + v.corrections[: store.n_outputs, :n], slow
    weights = factor * np.stack([both[iterate] for iterate in iterates], axis=1).reshape(len(iterates) * store.n_outputs, n)
    kernels = add_kernel(program, value, store)
    return program.add("linear", kernels, weights=weights[:, 1:], biases=weights[:, 0].copy())


def add_weights(
    program: Program, value: int, stores: list[Any], commons: list[Any], iterates: tuple[int, ...], factor: float = 1.0
) -> int:
    """Add the decision values of linear machines, one for each output, times a factor, as `add_expansion` does."""
    parts = [
        _stacked_iterates(common, store.views.weights[:, : store.used], store.views.biases, iterates)
        for store, common in zip(stores, commons, strict=True)
    ]
    weights, biases = (factor * np.concatenate(some) for some in zip(*parts, strict=True))
    return program.add("linear", value, weights=weights, biases=biases)


def add_neighbours(
    program: Program,
    value: int,
    vectors: np.ndarray,
    relevance: np.ndarray,
    targets: np.ndarray,
    weights: np.ndarray,
    labels: int,
    *,
    neighbours: int = N_NEAREST,
    reach: float = MAX_DIFFERENCE,
    offset: float = DISTANCE_OFFSET,
    power: int = DISTANCE_POWER,
) -> int:
    """Add what the nearest of stored rows say: of two labels one number from -1 to 1, of more a number for each, or the mean."""
    arrays = {"vectors": vectors, "feature_weights": relevance, "targets": targets, "weights": weights}
    options = {"labels": labels, "neighbours": neighbours, "max_difference": reach, "offset": offset, "power": power}
    value = program.add("neighbours", value, **arrays, **options)
    if not labels:
        return value
    twice = 2.0 * np.eye(labels)[1 if labels == 2 else 0 :]
    return program.add("linear", value, weights=twice, biases=np.full(len(twice), -1.0))


_BOTH = (0, 1)


def _in_python(function: Any) -> Any:
    """Return a compiled function as one of Python: it is called once, and machine code would have to be loaded, or compiled."""
    return getattr(function, "py_func", function)


def add_ensemble(program: Program, model: Any, value: int) -> Answer:
    """Add the steps of an ensemble to a program, whose ``value`` has its features; return the answer."""
    v, own, live = model._store.views, model._rule_record[0], model._outputs
    value = filled = program.add("impute", value, float32=model._dtype is np.float32)
    if model.scale_in_use is not None:
        value = add_scale(program, value, *model.scale_in_use)
    damped = _add_damping(program, value, v.damping)
    anchored = _add_anchors(program, filled, model)
    corrects = np.full(len(v.errors) - FIRST_INPUT, -1, np.int64)
    for first, corrected in v.experts[["first_input", "base_input"]].tolist():
        if corrected:
            corrects[first - FIRST_INPUT : first + 2 - FIRST_INPUT] = corrected - FIRST_INPUT
    labelled = isinstance(model, SVMClassifier)
    said: list[int] = []
    for number, (expert, stores) in enumerate(zip(model._expert_specs, model._store.stores, strict=True)):
        given = anchored if isinstance(expert, Forest) else damped if isinstance(expert, BudgetedMachine) else value
        if isinstance(expert, NumberForest):
            said.append(_add_forest_of_numbers(program, given, said, corrects, model, stores[0]))
        else:
            said.append(_add_expert(program, given, model, number, expert, stores))
    joined = program.add("concat", *said)
    options: dict[str, Any] = {"task": "classification" if labelled else "regression", "outputs": live}
    prior = _in_python(label_predictions.compute_prior_weight)(float(model._common[0]["t"])) if labelled else 0.0
    if labelled:
        options |= {"prior": prior, "share": min(float((v.counts[0] + 1.0) / (own["rows"] + 2.0)), 1.0)}
    value = program.add(
        "experts",
        joined,
        weights=v.weights.copy(),
        shares=np.exp(model._combiner.LOSS_RATE * (v.losses.min() - v.losses)),
        votes=_votes_of(v.mistakes[FIRST_INPUT:]),
        corrects=corrects,
        best=int(np.argmin(v.errors[FIRST_INPUT:])),
        follows=int(own["choice"]),
        **options,
    )
    if labelled:
        shares = ((v.counts[:live] + 1.0) / (own["rows"] + live)).tolist() if live > 1 else ()
        odds = LogOddsCalibration(prior, tuple(shares))
        labels = list_labels(model)
        return Answer("class", value, value, labels, calibration=odds if len(labels) > 1 else None)
    moments = v.target_moments[0]
    spread = np.array([[target_predictions.compute_deviation(moments)]])
    value = program.add("linear", value, weights=spread, biases=moments[1:2].copy())
    return Answer("number", value, value)


def _add_expert(program: Program, value: int, model: Any, number: int, expert: Any, stores: list[Any]) -> int:
    """Add what an expert says: its outputs by the last iterate, then by the average if it has one."""
    live = model._outputs
    half = 1.0 if live == 1 else 0.5  # one against the rest: two outputs differ by twice their decision value
    if isinstance(expert, LastLabel):
        return _add_numbers(program, value, _last_label(model))
    if isinstance(expert, LastTarget):
        return _add_numbers(program, value, _last_target(model))
    if isinstance(expert, Neighbours):
        return _add_memory(program, value, model, stores[0])
    if isinstance(expert, Forest):
        return _add_forest(program, value, model, stores[0])
    if isinstance(expert, SecondOrder):
        return _add_newton(program, value, model, model._store.views.experts[number])
    if isinstance(expert, BudgetedMachine):
        value = add_expansion(program, value, stores[0], read_common(stores[0]), _BOTH)
    elif isinstance(expert, Landmarks):
        value = add_landmarks(program, value, stores[0], _BOTH, half)
    else:
        used = list(stores)[:live]
        value = add_weights(program, value, used, list(map(read_common, used)), _BOTH, half)
    # Those of an output come one after the other, and are wanted iterate by iterate.
    order = np.arange(2 * live).reshape(live, 2).T.ravel()
    return program.add("select", value, columns=order) if live > 1 else value


def _add_numbers(program: Program, value: int, numbers: np.ndarray) -> int:
    """Add numbers that are the same for all rows."""
    return program.add("linear", value, weights=np.zeros((len(numbers), program.widths[value])), biases=numbers)


def _last_target(model: Any) -> np.ndarray:
    """Return the last target in deviations from the mean, as an expert predicts it."""
    return np.array([float(model._rule_record[0]["last_target"])])


def _last_label(model: Any) -> np.ndarray:
    """Return what the last label says of the next row."""
    own, views, live = model._rule_record[0], model._store.views, model._outputs
    said = np.zeros((live, 2))
    _in_python(predict_from_last_label)(views.transitions, views.counts, float(own["rows"]), int(own["last"]), live, said)
    return said.T.ravel()


def _add_memory(program: Program, value: int, model: Any, store: Any) -> int:
    """Add what the nearest of the rows say that an expert remembers."""
    views, live = model._store.views, model._outputs
    h, n = store.views.header[0], store.n_rows
    laid, labelled = int(h["row_width"]), isinstance(model, SVMClassifier)
    if n == 0:
        return _add_numbers(program, value, np.zeros(live))
    if laid < program.widths[value]:
        value = program.add("select", value, columns=np.arange(laid))
    vectors, spread = store.vectors, views.spread[:laid]
    if model.scale_in_use is None:  # a distance is in deviations all the same, from the mean so that float32 has them
        location = vectors.mean(axis=0, dtype=np.float64)
        value = program.add("scale", value, location=location, spread=spread.copy(), bound=None)
        away = vectors.astype(np.float64) - location
        vectors = np.divide(away, spread, out=np.zeros_like(away), where=spread > 0.0).astype(np.float32)
    units = (spread > 0.0).astype(np.float32)
    factors = np.empty((2, laid), np.float32)
    least, damping = (MIN_WEIGHT_CLASSIFICATION, views.damping[0]) if labelled else (MIN_WEIGHT_REGRESSION, views.damping[0, :0])
    _in_python(compute_factors)(store.views.relevance, units, laid, float(h["n_informative"]), least, damping, factors)
    relevance, labels = factors[0].astype(np.float64), max(live, 2) if labelled else 0
    targets, weights = store.views.targets[:n].astype(np.float64), store.views.weights[:n].copy()
    return add_neighbours(program, value, vectors, relevance, targets, weights, labels)


def _add_damping(program: Program, value: int, damping: np.ndarray) -> int:
    """Add what makes features count less for kernel machines, float64 [2, columns], if any does."""
    if not damping.any():
        return value
    counts = 1.0 - damping[0, : program.widths[value]]
    return program.add("scale", value, location=np.zeros(len(counts)), spread=1.0 / counts, bound=None)


def _add_anchors(program: Program, value: int, model: Any) -> int:
    """Add what a forest takes off the features, if there is one and it takes off anything."""
    for expert, stores in zip(model._expert_specs, model._store.stores, strict=True):
        if isinstance(expert, Forest) and stores[0].views.anchors.any():
            used, given = program.widths[value], stores[0].views.anchors[int(stores[0].views.header["extra_columns"][0]) :]
            anchors = np.zeros(used)
            anchors[: len(given)] = given[:used]
            return program.add("scale", value, location=anchors, spread=np.ones(used), bound=None)
    return value


def _add_forest(program: Program, value: int, model: Any, store: Any) -> int:
    """Add what a forest says, whose features ``value`` has: of each output the share of its votes, then their logarithms."""
    live = model._outputs
    if store.n_learned == 0:
        return _add_numbers(program, value, np.zeros(2 * live))
    value = add_forest(program, value, [store.get_tree(number) for number in range(TREES)], store.views.votes, max(live, 2))
    logarithms = program.add("log", value, least=MIN_LABEL_SHARE)
    if live == 1:
        weights, bias = np.array([[-0.5, 0.5]]), np.zeros(1)
    else:
        weights, bias = np.eye(live), np.ones(live)
    shares = program.add("linear", value, weights=2.0 * weights, biases=-bias)
    return program.add("concat", shares, program.add("linear", logarithms, weights=0.5 * weights, biases=bias))


def _add_forest_of_numbers(program: Program, value: int, said: list[int], corrects: np.ndarray, model: Any, store: Any) -> int:
    """Add what a forest says of numbers, whose features ``value`` has: the target, and what the experts before ``said`` and miss.

    ``corrects`` has which of their numbers each of them corrects, or -1.
    """
    v, joined = model._store.views, program.add("concat", *said)
    n = program.widths[joined]
    clipped = program.add("clip", joined, bound=MAX_EXPERT_TARGET)
    both = np.hstack([np.eye(n), (corrects[:n, None] == np.arange(n)).astype(np.float64)])
    corrected = program.add("linear", program.add("concat", joined, clipped), weights=both, biases=np.zeros(n))
    inputs = program.add("clip", corrected, bound=MAX_EXPERT_TARGET)
    votes = _votes_of(v.mistakes[FIRST_INPUT : FIRST_INPUT + n])
    shares = 0.5 * votes / votes.sum()
    shares[np.argmin(v.errors[FIRST_INPUT : FIRST_INPUT + n])] += 0.5
    base = program.add("linear", inputs, weights=shares[None], biases=np.zeros(1))
    said_last = _last_target(model), np.array([float(store.views.header[0]["last_residual"])])
    last, missed = (_add_numbers(program, value, numbers) for numbers in said_last)
    row, trees = program.add("concat", last, base, missed, value), [store.get_tree(number) for number in range(TREES)]
    target, missing = (add_forest(program, row, trees[kind::2], store.views.votes[kind::2], 0) for kind in (TARGET, RESIDUAL))
    return program.add(
        "concat", target, program.add("linear", program.add("concat", base, missing), weights=np.ones((1, 2)), biases=np.zeros(1))
    )


def _votes_of(mistakes: np.ndarray) -> np.ndarray:
    """Return the votes of experts' numbers, by their fading mistakes, float64 [n] each."""
    votes: np.ndarray = np.exp(stack.VOTING_RATE * (mistakes.min() - mistakes))
    return votes


def add_forest(program: Program, value: int, trees: list[Any], votes: np.ndarray, labels: int) -> int:
    """Add the shares of labels in the votes of trees, each of which is given as `ForestStore.tree` gives it; or where ``labels``
    is 0, the mean of leaves.
    """
    roots = np.cumsum([0, *(len(links) for links, _, _ in trees)])
    links, thresholds, leaves = (np.concatenate(parts) for parts in zip(*trees, strict=True))
    leaf = thresholds == np.inf
    number, begin = np.cumsum(leaf) - 1, np.repeat(roots[:-1], np.diff(roots))
    if labels:
        counts = leaves[leaf, COUNTS]
        told = {
            "targets": leaves[leaf, : SECOND_LABEL + 1],
            "counts": np.column_stack([counts & 255, counts >> 8]).astype(np.int8),
        }
    else:
        told = {"means": leaves[leaf].view(np.float32)[:, 0].copy()}
    return program.add(
        "forest",
        value,
        roots=roots[:-1].astype(np.int32),
        left=np.where(leaf, -1, (links & LEFT) + begin).astype(np.int16),
        feature=np.where(leaf, number, links >> FEATURE & 0x3FFF).astype(np.int16),
        equal=np.where(leaf, 0, links >> EQUALITY).astype(np.int8),
        thresholds=np.where(leaf, 0.0, thresholds).astype(np.float32),
        votes=votes.copy(),
        **told,
        labels=labels,
    )


def _add_newton(program: Program, value: int, model: Any, entry: Any) -> int:
    v, live = model._store.views, model._outputs
    side, used = int(v.header[0]["side"]), int(v.header[0]["used"])
    features = min(used, side - 1)
    functions = 1
    if entry["additive"]:
        functions = min(int(model._rule_record[0]["functions"]), _in_python(second_order.count_functions)(side, used))
    if features < used:
        value = program.add("select", value, columns=np.arange(features))
    value = program.add("clip", value, bound=second_order.FEATURE_CLIP)
    if functions > 1:
        value = program.add("hinges", value, knot=second_order.KNOT, functions=functions)
    weights = v.newton_weights[entry["number"], :live, : 1 + functions * features]
    return program.add("linear", value, weights=weights[:, 1:], biases=weights[:, 0].copy())
