"""Fitted models to plain values and back."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator

from streamsvm.batch.columns import Kernel
from streamsvm.kernels import KERNELS

__all__ = ["Kept", "own"]


class Kept(BaseEstimator):  # type: ignore[misc]
    """An estimator whose fitted arrays are checked when they are read back: compiled code relies on how they fit together."""

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        if "_kernel" in state:
            state["_kernel"] = tuple(state["_kernel"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {name: own(value) for name, value in state.items()}
        if strange := [name for name in state if hasattr(type(self), name)]:
            raise ValueError(f"the model was kept with an attribute {strange[0]!r}, which is not one that a model keeps")
        if "_kernel" in state:
            state["_kernel"] = _kernel(*state["_kernel"])
        if "support_vectors_" in state:
            _check(state)
        super().__setstate__(state)


def own(value: Any) -> Any:
    """The value; an array with numpy's own dtype object, not the copy that pickle makes, so that it is kept as the same bytes."""
    return value.view(np.dtype(value.dtype.str)) if isinstance(value, np.ndarray) and value.dtype != object else value


def _kernel(kind: int, gamma: float, coef0: float, degree: int) -> Kernel:
    if kind not in KERNELS.values() or not np.isfinite([gamma, coef0]).all() or not degree >= 1:
        raise ValueError("the model was kept with a kernel that there is not")
    return Kernel(int(kind), float(gamma), float(coef0), int(degree))


def _check(state: dict[str, Any]) -> None:
    vectors, coefficients, intercept = (state[name] for name in ("support_vectors_", "dual_coef_", "intercept_"))
    dense = [coefficients, intercept] if sparse.issparse(vectors) else [vectors, coefficients, intercept]
    fits = all(isinstance(array, np.ndarray) and array.dtype == np.float64 for array in dense)
    fits = fits and (coefficients.ndim, intercept.ndim) == (2, 1) and len(coefficients) == len(intercept)
    if not fits or vectors.shape != (coefficients.shape[1], state["n_features_in_"]) or "_kernel" not in state:
        raise ValueError("the model was kept with support vectors and coefficients that do not fit together")
