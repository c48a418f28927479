"""Batch models as an adapter uses them: what they must have, what they are given for labels, and what they are asked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from streamsvm.batch.kernel_machine import KernelMachine

__all__ = ["as_array", "check_classifier", "check_width", "codes", "decisions", "follows_conventions", "predictions"]

_LARGEST_WHOLE = 2.0**53


def follows_conventions(kind: Callable[[Any], bool], model: Any) -> bool:
    """Whether a model has scikit-learn's conventions and is of a kind, as ``is_classifier`` tells it."""
    return not isinstance(model, type) and hasattr(model, "__sklearn_tags__") and hasattr(model, "get_params") and kind(model)


def check_classifier(model: Any) -> None:
    """Raise a ValueError where a classifier, or one inside of it, does not give a value for each class."""
    if not (hasattr(model, "predict_proba") or hasattr(model, "decision_function")):
        raise ValueError(f"model must have predict_proba or decision_function; {type(model).__name__} has neither")
    for name, value in model.get_params(deep=True).items():
        if name.rpartition("__")[2] == "decision_function_shape" and value != "ovr":
            raise ValueError(f"model must have {name}='ovr': a decision value for each class, not for each pair")


def check_width(model: Any, values: np.ndarray, classes: int) -> None:
    """Raise a ValueError where decision values are neither [n, classes] nor, of two classes, [n]."""
    if values.shape[1:] != (classes,) and not (values.ndim == 1 and classes == 2):
        raise ValueError(
            f"{type(model).__name__} gives decision values of shape {list(values.shape)} for {len(values)} rows of {classes} "
            "classes: a value for each class is needed"
        )


def as_array(labels: list[Any]) -> np.ndarray:
    """An array that gives labels back as they are: numpy would turn labels of two kinds into one kind, and tuples into rows."""
    if len({type(label) for label in labels}) == 1 and isinstance(labels[0], bool | int | float | str):
        values = np.array(labels)
        if values.tolist() == labels:
            return values
    values = np.empty(len(labels), object)
    values[:] = labels
    return values


def codes(labels: list[Any]) -> np.ndarray | None:
    """0, 1, ... where scikit-learn does not take the labels as they are: of several or strange types, or not whole; else None."""
    values = as_array(labels)
    whole = values.dtype.kind != "f" or ((values == np.rint(values)) & (np.abs(values) <= _LARGEST_WHOLE)).all()
    return np.arange(len(labels)) if values.dtype == object or not whole else None


def predictions(model: Any, rows: np.ndarray) -> np.ndarray:
    """Labels or numbers [n] for rows that are checked, float64 [n, features]: streamsvm's own need no second look at them."""
    return model._predictions(model._values(rows)) if isinstance(model, KernelMachine) else model.predict(rows)


def decisions(model: Any, rows: np.ndarray) -> np.ndarray:
    """Decision values of a classifier [n] or [n, classes], for rows as in `predictions`."""
    return model._scores(model._values(rows)) if isinstance(model, KernelMachine) else model.decision_function(rows)
