"""What one fit of an adapter has brought, and what is checked of it when it is read back."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streamsvm.batch.kernel_machine import KernelMachine
from streamsvm.sklearn_base import own

__all__ = ["Fit", "restored"]


class Fit(NamedTuple):
    """What one fit has brought."""

    model: Any
    mean: np.ndarray
    """Of the features when it was fitted, float64 [features]."""
    scale: np.ndarray
    """float64 [features]."""
    classes: list[Any]
    """Labels, in the order of the model's ``classes_``; none of a regressor."""
    log_factor: float
    """Of the decision values, for probabilities."""


def restored(kept: Any, kind: type, known: int) -> Fit:
    """A fit from the plain values it was kept as, of a model of a kind, where ``known`` features are known.

    Raises
    ------
    ValueError
        They are not what a fit brings.
    """
    model, mean, scale, classes, log_factor = kept
    if type(model) is not kind:
        raise ValueError(f"the adapter was kept with a {type(model).__name__}, its model is another")
    if isinstance(model, KernelMachine):
        check_is_fitted(model)
    for values in (mean, scale):
        if not isinstance(values, np.ndarray) or values.dtype != np.float64 or not np.isfinite(values).all():
            raise ValueError("the adapter was kept with a mean or scale that is no array of finite numbers")
    if not (scale > 0.0).all():
        raise ValueError("the adapter was kept with a scale that is not above 0")
    n = mean.size
    if not (mean.shape == scale.shape == (n,) and getattr(model, "n_features_in_", n) == n <= known):
        raise ValueError(f"the adapter was kept with a model of {n} features that does not fit what it knows")
    return Fit(model, own(mean), own(scale), classes, log_factor)
