"""Explanations of a learner's decision: the features that moved it, and the nearest rows that the learner knows."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np

from streamsvm.core.checks import check_number
from streamsvm.core.explaining import Examples, Explanation, find_nearest_examples, make_explanation
from streamsvm.core.steps import iterates
from streamsvm.files.messages import short_repr

_ROUNDING = 2e-6  # of a number that is kept in float32 as what it differs from a mean


def explain(
    model: Any, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None, groups: Mapping[Any, Hashable] | None, label: Any
) -> Explanation:
    """Explain the decision of a learner for a row; see `OnlineEstimator.explain_one`."""
    if not model.feature_names:
        raise ValueError("the model has learned nothing yet: there is no decision to explain")
    scale = getattr(model, "scale_in_use", None)
    if typical is not None:
        base = _row_and_answer(model, typical)[0]
    else:
        base = np.zeros(len(model._used_row)) if scale is None else scale.location
    row, chosen = _row_and_answer(model, x)
    prediction, place = _explained_label(model, chosen, label)

    def decide(rows: np.ndarray) -> np.ndarray:
        found = np.empty((len(rows), 1 if model._outputs == 1 else model._outputs + 1))
        columns = np.arange(rows.shape[1])
        model._decide_matrix(np.require(rows, model._dtype, ["C", "W"]), columns, model._find_output_code("auto"), found)
        return found[:, 1 + place] if model._outputs > 1 else found[:, 0] if place else -found[:, 0]

    names, given = _names_and_values(model, x)
    return make_explanation(prediction, decide, row, base.astype(model._dtype), names, groups or {}, given)


def find_examples(model: Any, x: Mapping[Any, Any], n: int) -> Examples:
    """Find the rows that a learner knows and that are nearest to a row; see `OnlineEstimator.examples_one`."""
    check_number("n", n, 1, inclusive=True, integer=True)
    if not model.feature_names:
        raise ValueError("the model stores no rows that could be examples: it has learned nothing yet")
    rows, distances, of, what = model._find_known_rows(x)
    d, scale = rows.shape[1], getattr(model, "scale_in_use", None)
    given = np.asarray(rows, np.float64)
    if scale is not None:
        moved = given * scale.spread[:d]
        given = moved + scale.location[:d]
        given[np.abs(given) < _ROUNDING * np.abs(moved)] = 0.0
    labels = _labels_of(model)
    targets = [labels[int(i)] for i in of] if labels else of.tolist()
    seen = [label for label in labels if label in model._labels.targets]
    return find_nearest_examples(_names_and_values(model, x)[0][:d], given, distances, targets, seen, n, what)


def _names_and_values(model: Any, x: Mapping[Any, Any]) -> tuple[list[Hashable], dict[Hashable, Any]]:
    """Return the name of each feature, and its value in a row; where names are hashed, those that share a column in the row."""
    names: list[Hashable] = list(model.feature_names)
    if model.overflow != "hash" or len(names) < model.max_features:
        return names, {name: x.get(name, 0.0) for name in names}
    sharing: dict[int, list[Any]] = {}
    for name, column in zip(x, model._features.find_columns(x, False).tolist(), strict=True):
        sharing.setdefault(column, []).append(name)
    for column, found in sharing.items():
        names[column] = found[0] if len(found) == 1 else ", ".join(map(str, found))
    return names, {names[column]: float(sum(x[name] for name in found)) for column, found in sharing.items()}


def _row_and_answer(model: Any, x: Mapping[Any, Any]) -> tuple[np.ndarray, float]:
    """Return a row as the model reads it, [features], and what it answers."""
    chosen = model._decide_row(x, iterates.DECISION)  # or says what is wrong with it
    model._features.fill_row(model._row, x, False)
    return model._used_row.copy(), chosen


def _explained_label(model: Any, chosen: float, label: Any) -> tuple[Any, int]:
    """Return a label, or what is predicted, and the number of its decision value: of two, 1 is that of the positive one."""
    labels, known = getattr(model, "_labels", None), _labels_of(model)
    if label is not None and label not in known:
        raise ValueError(f"the model has no label {short_repr(label)} to explain")
    if label is not None:
        return label, known.index(label)
    if labels is None:
        return (chosen if hasattr(model, "predict_one") else None), 1
    return labels.decode(chosen), int(chosen) if labels.class_labels else int(chosen > 0.0)


def _labels_of(model: Any) -> list[Any]:
    """Return the labels of a model in the order of their numbers: of two, the negative one first; of numbers none."""
    labels = getattr(model, "_labels", None)
    return [] if labels is None else labels.class_labels or [labels.decode(-1.0), labels.decode(1.0)]


def find_vector_labels(coefficients: np.ndarray, labelled: bool) -> np.ndarray:
    """Return the number of the label that each support vector speaks for, by coefficients [outputs, m]; without labels None."""
    if not labelled:
        return np.full(coefficients.shape[1], None)
    return np.argmax(coefficients, 0) if len(coefficients) > 1 else coefficients[0] > 0.0
