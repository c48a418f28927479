"""Explanations of a learner's decision: the contributions of features, and the nearest stored rows as examples."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.checks import check_number
from streamsvm.core.explaining import Examples, Explanation, Groups, find_nearest_examples, make_explanation
from streamsvm.core.steps import iterates
from streamsvm.files.messages import short_repr

_ROUNDING = 2e-6  # relative error of a deviation from a mean that is stored in float32


class KnownRows(NamedTuple):
    """The rows that a model stores, and their distances to one row."""

    rows: np.ndarray
    """[m, features], scaled as in the model."""
    distances: np.ndarray
    """float64 [m]."""
    targets: np.ndarray
    """[m]: the index of each row's label, its target in regression, or None in models without either."""
    kind: str
    """``"rows"`` or ``"support vectors"``."""


def explain(model: Any, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None, groups: Groups, label: Any) -> Explanation:
    """Return the contribution of each feature to the decision of the online learner ``model`` for the row ``x``, compared with
    the row ``typical``. ``groups`` maps features to groups that are counted together, and ``label`` is the label whose decision
    is explained; each can be None. Raises a ValueError if the model has learned nothing, or lacks the label.
    """
    if not model.feature_names:
        raise ValueError("the model has learned nothing yet: there is no decision to explain")
    scale = getattr(model, "scale_in_use", None)
    if typical is not None:
        base = _read_row(model, typical)[0]
    else:
        base = np.zeros(len(model._used_row)) if scale is None else scale.location
    row, decision = _read_row(model, x)
    prediction, index = _choose_label(model, decision, label)

    def decide(rows: np.ndarray) -> np.ndarray:
        values = np.empty((len(rows), 1 if model._n_outputs == 1 else model._n_outputs + 1))
        matrix = np.require(rows, model._dtype, ["C", "W"])
        model._compute_matrix_outputs(matrix, np.arange(rows.shape[1]), model._find_output_code("auto"), values)
        return values[:, 1 + index] if model._n_outputs > 1 else values[:, 0] if index else -values[:, 0]

    names, values = _get_names_and_values(model, x)
    return make_explanation(prediction, decide, row, base.astype(model._dtype), names, groups or {}, values)


def find_examples(model: Any, x: Mapping[Any, Any], n: int) -> Examples:
    """Return the rows or support vectors that an online learner ``model`` stores and that are nearest to the row ``x``: at most
    ``n`` of each label. Raises a ValueError if it has learned nothing or stores no rows.
    """
    check_number("n", n, 1, inclusive=True, integer=True)
    if not model.feature_names:
        raise ValueError("the model stores no rows that could be examples: it has learned nothing yet")
    stored = model._find_known_rows(x)
    d, scale = stored.rows.shape[1], getattr(model, "scale_in_use", None)
    rows = np.asarray(stored.rows, np.float64)
    if scale is not None:
        deviations = rows * scale.spread[:d]
        rows = deviations + scale.location[:d]
        rows[np.abs(rows) < _ROUNDING * np.abs(deviations)] = 0.0
    labels = _list_labels(model)
    targets = [labels[int(index)] for index in stored.targets] if labels else stored.targets.tolist()
    seen_labels = [label for label in labels if label in model._labels.targets]
    names = _get_names_and_values(model, x)[0][:d]
    return find_nearest_examples(names, rows, stored.distances, targets, seen_labels, n, stored.kind)


def _get_names_and_values(model: Any, x: Mapping[Any, Any]) -> tuple[list[Hashable], dict[Hashable, Any]]:
    """Return a list with a name for each feature column of ``model``, and a dict of these names to the values of the row ``x``.
    If several features share a column (hashing), their names are joined to one, and their values added.
    """
    names: list[Hashable] = list(model.feature_names)
    if model.overflow != "hash" or len(names) < model.max_features:
        return names, {name: x.get(name, 0.0) for name in names}
    names_by_column: dict[int, list[Any]] = {}
    for name, column in zip(x, model._features.find_columns(x, False).tolist(), strict=True):
        names_by_column.setdefault(column, []).append(name)
    for column, shared in names_by_column.items():
        names[column] = shared[0] if len(shared) == 1 else ", ".join(map(str, shared))
    return names, {names[column]: float(sum(x[name] for name in shared)) for column, shared in names_by_column.items()}


def _read_row(model: Any, x: Mapping[Any, Any]) -> tuple[np.ndarray, float]:
    """Return the row ``x`` as an array [features] with the columns of ``model``, and the model's decision value for it. Raise a
    ValueError if the row is invalid.
    """
    decision = model._compute_output(x, iterates.DECISION)
    model._features.fill_row(model._row, x, False)
    return model._used_row.copy(), decision


def _choose_label(model: Any, decision: float, label: Any) -> tuple[Any, int]:
    """Return the label whose decision is to be explained, and its index (0 and 1 for the negative and the positive one of two).
    It is ``label``, or by default (None) the label that ``model`` predicts with the decision value ``decision``. For a regressor,
    return the prediction and 1.
    """
    encoder, labels = getattr(model, "_labels", None), _list_labels(model)
    if label is not None and label not in labels:
        raise ValueError(f"the model has no label {short_repr(label)} to explain")
    if label is not None:
        return label, labels.index(label)
    if encoder is None:
        return (decision if hasattr(model, "predict_one") else None), 1
    return encoder.decode(decision), int(decision) if encoder.class_labels else int(decision > 0.0)


def _list_labels(model: Any) -> list[Any]:
    """Return the labels of ``model`` as a list in the order of their indices (the negative one of two labels first). It is empty
    for models without labels, such as regressors.
    """
    encoder = getattr(model, "_labels", None)
    return [] if encoder is None else encoder.class_labels or [encoder.decode(-1.0), encoder.decode(1.0)]


def find_vector_labels(coefficients: np.ndarray, has_labels: bool) -> np.ndarray:
    """Return the label index of each of m support vectors, an array [m]: the output with its largest coefficient in
    ``coefficients`` [outputs, m], or with one output 0 or 1 by the sign. For models without labels (``has_labels=False``), it is
    an array of None.
    """
    if not has_labels:
        return np.full(coefficients.shape[1], None)
    return np.argmax(coefficients, 0) if len(coefficients) > 1 else coefficients[0] > 0.0
