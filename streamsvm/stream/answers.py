"""What predictions say beside the label: all probabilities, an interval, or whatever a function makes of a model and a row."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.stream.rows import steps_of


class ExtraFields(NamedTuple):
    """Further fields of each prediction."""

    fields: tuple[str, ...]
    """Their names."""
    of: Callable[[Any, Any], Sequence[Any]]
    """Returns their values, of the model and a row as it came, before the row is learned."""


#: The probabilities of all labels, by label.
PROBABILITIES = ExtraFields(
    ("probabilities",), lambda model, x: [{str(label): float(p) for label, p in model.predict_proba_one(x).items()}]
)


def calibrated_answer(model: Any) -> ExtraFields | None:
    """Return what a model is sure of, if it is a conformal one: the ends of an interval, or the labels of a set; else None."""
    last = steps_of(model)[1]
    if hasattr(last, "predict_interval_one"):
        return ExtraFields(
            ("low", "high"), lambda model, x: [_finite_or_none(end) for end in _said_by_last(model, x, "predict_interval_one")]
        )
    if hasattr(last, "predict_set_one"):
        return ExtraFields(("labels",), lambda model, x: [_said_by_last(model, x, "predict_set_one")])
    return None


def _said_by_last(model: Any, x: Any, method: str) -> Any:
    """Return what a method of the last step says of a row."""
    steps, last = steps_of(model)
    for step in steps:
        x = step.transform_one(x)
    return getattr(last, method)(x)


def _finite_or_none(value: float) -> float | None:
    return value if math.isfinite(value) else None


def probabilities_of(each: Mapping[Any, Sequence[float]], labels: Sequence[Any]) -> list[float | None]:
    """Return the probability of the label that each row is given, of the probabilities of all labels; None where it has none.

    >>> probabilities_of({"ham": [0.9, 0.4], "spam": [0.1, 0.6]}, ["ham", "ham"])
    [0.9, 0.4]
    """
    return [float(each[label][i]) if label in each else None for i, label in enumerate(labels)]


def without_unsure(labels: Sequence[Any], probabilities: Sequence[float | None] | None, least: float) -> tuple[list[Any], int]:
    """Return labels with None for those that are less probable than ``least``, and how many these are.

    >>> without_unsure(["ham", "ham"], [0.9, 0.4], 0.8)
    (['ham', None], 1)
    """
    found = [None if p is not None and p < least else label for label, p in zip(labels, probabilities or (), strict=True)]
    return found, sum(label is not None for label in labels) - sum(label is not None for label in found)
