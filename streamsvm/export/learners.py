"""Programs of the online learners."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.kernels import FOURIER, LINEAR, POLY, RBF
from streamsvm.core.steps.rescale import BOUND
from streamsvm.edge.program import Answer, Program, ProgramError
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.estimator import OnlineEstimator
from streamsvm.learners.kernel_rls import KernelRLS
from streamsvm.learners.linear import LinearEstimator
from streamsvm.learners.one_class import OneClassBSGD

__all__ = ["add_expansion", "add_kernel", "add_landmarks", "add_learner", "add_scale", "add_weights", "labels_of"]

_KERNELS = {RBF: "rbf", LINEAR: "linear", POLY: "poly"}
_LAST, _AVERAGE = 0, 1


def add_learner(program: Program, model: OnlineEstimator, value: int) -> Answer:
    """Add the steps of a learner that is no committee to a program, whose ``value`` has its features; return the answer.

    Raises
    ------
    ProgramError
        The learner is of a kind that has no program.
    """
    iterates = (_AVERAGE if model.averaged else _LAST,)
    value = program.add("fill", value, single=True)
    if isinstance(model, BudgetedEstimator):
        if model.scale_in_use is not None:
            value = add_scale(program, value, *model.scale_in_use)
        value = add_expansion(program, value, model._store, model._common[0], iterates)
    elif isinstance(model, KernelRLS):
        value = add_landmarks(program, value, model._store, iterates)
    elif isinstance(model, LinearEstimator):
        value = add_weights(program, value, [model._store], [model._common[0]], iterates)
    else:
        raise ProgramError(f"a {type(model).__name__} has no form that predicts without streamsvm")
    return _answer(model, value, iterates[0])


def _answer(model: Any, value: int, iterate: int) -> Answer:
    common = model._common[0]
    if isinstance(model, OnlineClassifier):
        labels = labels_of(model)
        factor = math.exp(common["slope"][iterate]) / max(float(common["size"][iterate]), 1.0)
        odds = {"kind": "margin", "factor": factor, "prior": 2.0 / (float(common["t"]) + 3.0)}
        return Answer("class", value, value, labels, odds=odds if len(labels) > 1 else None)
    if isinstance(model, OneClassBSGD):
        center, size = model._usual()
        return Answer("anomaly", value, value, center=center, size=size)
    return Answer("number", value, value)


def labels_of(model: OnlineClassifier) -> tuple[Any, ...]:
    """Return the labels of a classifier in the order of its decision values; the one label that it may give while it has one."""
    labels = model._labels
    if labels.many:
        return tuple(labels.many)
    pair = labels.of(-1.0), labels.of(1.0)
    return pair if pair[0] != pair[1] else pair[:1]


def add_scale(program: Program, value: int, location: np.ndarray, spread: np.ndarray) -> int:
    """Add the scale that a learner keeps itself, of the columns in use."""
    return program.add("scale", value, location=location, spread=spread, bound=float(BOUND))


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
    weights, biases = _iterates(common, v.coefficients[: store.live, :n], v.biases[: store.live], iterates)
    return program.add("linear", kernels, weights=weights, biases=biases)


def _iterates(common: Any, rows: np.ndarray, biases: np.ndarray, which: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Return the coefficients and biases of iterates, those of an output one after the other."""
    last = common["scale"] * rows[::2]
    average = common["average_v"] * rows[1::2] + common["average_u"] * rows[::2]
    both = last, average
    weights = np.stack([both[iterate] for iterate in which], axis=1).reshape(len(which) * len(last), rows.shape[1])
    return weights, np.stack([biases[iterate::2] for iterate in which], axis=1).ravel()


def add_landmarks(program: Program, value: int, store: Any, iterates: tuple[int, ...], factor: float = 1.0) -> int:
    """Add the decision values of landmarks, times a factor, as `add_expansion` does: the last iterate has the corrections."""
    v, n = store.views, store.n_support + 1
    slow = v.weights[: store.live, :n]
    both = slow + v.corrections[: store.live, :n], slow
    weights = factor * np.stack([both[iterate] for iterate in iterates], axis=1).reshape(len(iterates) * store.live, n)
    kernels = add_kernel(program, value, store)
    return program.add("linear", kernels, weights=weights[:, 1:], biases=weights[:, 0].copy())


def add_weights(
    program: Program, value: int, stores: list[Any], commons: list[Any], iterates: tuple[int, ...], factor: float = 1.0
) -> int:
    """Add the decision values of linear machines, one for each output, times a factor, as `add_expansion` does."""
    parts = [
        _iterates(common, store.views.weights[:, : store.used], store.views.biases, iterates)
        for store, common in zip(stores, commons, strict=True)
    ]
    weights, biases = (factor * np.concatenate(some) for some in zip(*parts, strict=True))
    return program.add("linear", value, weights=weights, biases=biases)
