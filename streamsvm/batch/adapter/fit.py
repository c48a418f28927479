"""One fit of an adapter's model: how the model is asked, what it must be able to do, and its saved state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streamsvm.batch.kernel_machine import KernelMachine
from streamsvm.core.sklearn_base import canonical
from streamsvm.learners.labels import as_array

__all__ = ["Fit", "check_classifier", "check_shape", "codes", "decisions", "follows_conventions", "predictions"]

_LARGEST_WHOLE = 2.0**53


class Fit(NamedTuple):
    """A fitted model and how its rows are scaled."""

    model: Any
    mean: np.ndarray
    """float64 [features when it was fitted]."""
    scale: np.ndarray
    """float64 [features when it was fitted]."""
    classes: list[Any]
    """The adapter's labels in the order of the model's ``classes_``; none for a regressor."""
    log_factor: float
    """Logarithm of the factor that turns decision values into log odds."""

    def scaled(self, rows: np.ndarray) -> np.ndarray:
        """Return rows [n, features now] as the model takes them, float64 [n, features when it was fitted]."""
        return (rows[:, : len(self.mean)] - self.mean) / self.scale

    @classmethod
    def restored(cls, saved: Any, kind: type, known: int) -> Fit:
        """Return a fit from its values, for an adapter of a kind of model that knows so many features.

        Raises
        ------
        ValueError
            The values are corrupt.
        """
        model, mean, scale, classes, log_factor = saved
        if type(model) is not kind:
            raise ValueError(f"the saved adapter is corrupt: it has a fitted {type(model).__name__} and its model is another")
        if isinstance(model, KernelMachine):
            check_is_fitted(model)
        for values in (mean, scale):
            if not isinstance(values, np.ndarray) or values.dtype != np.float64 or not np.isfinite(values).all():
                raise ValueError("the saved adapter is corrupt: its mean or scale is no array of finite numbers")
        if not (scale > 0.0).all():
            raise ValueError("the saved adapter is corrupt: its scale is not above 0")
        n = mean.size
        if not (mean.shape == scale.shape == (n,) and getattr(model, "n_features_in_", n) == n <= known):
            raise ValueError(f"the saved adapter is corrupt: its model of {n} features does not fit {known} feature names")
        return cls(model, canonical(mean), canonical(scale), classes, log_factor)


def follows_conventions(kind: Callable[[Any], bool], model: Any) -> bool:
    """Whether a model has scikit-learn's conventions and is of a kind, ``is_classifier`` or ``is_regressor``."""
    return not isinstance(model, type) and hasattr(model, "__sklearn_tags__") and hasattr(model, "get_params") and kind(model)


def check_classifier(model: Any) -> None:
    """Raise a ValueError where a classifier, or one inside it, does not give a value for each class."""
    if not (hasattr(model, "predict_proba") or hasattr(model, "decision_function")):
        raise ValueError(f"model must have predict_proba or decision_function; {type(model).__name__} has neither")
    for name, value in model.get_params(deep=True).items():
        if name.rpartition("__")[2] == "decision_function_shape" and value != "ovr":
            raise ValueError(f"model must have {name}='ovr': a decision value for each class, not for each pair")


def check_shape(model: Any, values: np.ndarray, classes: int) -> None:
    """Raise a ValueError where decision values are neither [n, classes] nor, of two classes, [n]."""
    if values.shape[1:] != (classes,) and not (values.ndim == 1 and classes == 2):
        raise ValueError(
            f"{type(model).__name__} gives decision values of shape {list(values.shape)} for {len(values)} rows of {classes} "
            "classes: a value for each class is needed"
        )


def codes(labels: list[Any]) -> np.ndarray | None:
    """Return 0, 1, ... where scikit-learn refuses the labels: of several or strange types, or not whole numbers; else None."""
    values = as_array(labels)
    whole = values.dtype.kind != "f" or ((values == np.rint(values)) & (np.abs(values) <= _LARGEST_WHOLE)).all()
    return np.arange(len(labels)) if values.dtype == object or not whole else None


def predictions(model: Any, rows: np.ndarray) -> np.ndarray:
    """Return a model's labels or values [n] for finite rows float64 [n, features]; streamsvm's models need no further check."""
    return model._predictions(model._decide(rows)) if isinstance(model, KernelMachine) else model.predict(rows)


def decisions(model: Any, rows: np.ndarray) -> np.ndarray:
    """Return a classifier's decision values [n] or [n, classes] for rows as in `predictions`."""
    return model._scores(model._decide(rows)) if isinstance(model, KernelMachine) else model.decision_function(rows)
