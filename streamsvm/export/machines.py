"""Converts fitted batch and linear machines, which are scikit-learn estimators, to programs."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import is_classifier, is_outlier_detector
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from streamsvm.batch.kernel_machine import KernelMachine
from streamsvm.core.checks import to_python_scalar
from streamsvm.core.kernels import KERNELS, SIGMOID
from streamsvm.edge.program import Answer, Column, ExportError, Program
from streamsvm.linear.fit import OutOfCoreLinear

_KERNEL_NAMES = {number: name for name, number in KERNELS.items()} | {SIGMOID: "sigmoid"}


def make_machine_program(model: Any) -> Program:
    """Convert ``model``, a fitted batch or linear SVM with the interface of scikit-learn, to a program (a list of numpy
    operations that predict). Raises ExportError if it is not fitted, or its kernel is not supported.
    """
    try:
        check_is_fitted(model)
    except NotFittedError:
        raise ExportError("it has not learned yet: there is nothing to predict by") from None
    if isinstance(model, KernelMachine) and model._kernel.kind not in _KERNEL_NAMES:
        raise ExportError(f"a {type(model).__name__} with kernel={model.kernel!r:.80} cannot be exported: named kernels can")
    names = getattr(model, "feature_names_in_", None)
    names = list(range(model.n_features_in_)) if names is None else [str(name) for name in names]
    program = Program([Column(name, name) for name in names])
    value = program.add("impute", 0, float32=False)
    if isinstance(model, KernelMachine):
        value = _add_expansion(program, value, model)
    elif isinstance(model, OutOfCoreLinear):
        weights, biases = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
        value = program.add("linear", value, weights=weights.astype(np.float64), biases=biases.astype(np.float64))
    else:
        raise ExportError(f"a {type(model).__name__} cannot be exported")
    program.answer = _make_answer(program, model, value)
    return program


def _add_expansion(program: Program, value: int, model: KernelMachine) -> int:
    """Append the kernel expansion of a fitted SVM, or its trees with an expansion in each leaf, to a program (an exported model
    as a list of numpy operations). Features are the operation output with the index ``value``. Returns the index of the decision
    values.
    """
    kernel = model._kernel
    vectors = model.support_vectors_
    vectors = vectors.toarray() if sparse.issparse(vectors) else np.ascontiguousarray(vectors)
    kernel_arguments: dict[str, Any] = {
        "vectors": vectors,
        "kind": _KERNEL_NAMES[kernel.kind],
        "gamma": float(kernel.gamma),
        "coef0": float(kernel.coef0),
        "degree": int(kernel.degree),
    }
    if model._is_expansion:
        value = program.add("kernel", value, **kernel_arguments)
        return program.add("linear", value, weights=model._coefficients, biases=model._intercepts)
    value = program.add("trees", value, **kernel_arguments, **model._forest._asdict())
    return program.add("linear", value, weights=np.eye(len(model._intercepts)), biases=model._intercepts)


def _make_answer(program: Program, model: Any, value: int) -> Answer:
    """Return the prediction rule of an exported SVM (label, number, or outlier as -1 and 1), whose decision values have the index
    ``value`` in the program. For a one-vs-one classifier, operations that count votes are appended.
    """
    if is_outlier_detector(model):
        return Answer("class", value, value, (-1, 1), at_zero=1)
    if not is_classifier(model):
        return Answer("number", value, value)
    labels = tuple(map(to_python_scalar, model.classes_))
    classes = len(labels)
    if classes == 2 or not getattr(model, "_uses_votes", False):
        return Answer("class", value, value, labels)
    votes = program.add("votes", value, classes=classes)
    scores = program.add("pair_scores", value, classes=classes)
    if model.decision_function_shape == "ovo":
        negative = -np.eye(program.widths[value])
        value = program.add("linear", value, weights=negative, biases=np.zeros(len(negative)))
        return Answer("class", value, votes, labels)
    return Answer("class", scores, scores if model.break_ties else votes, labels)
