"""The functions in which decision values are linear: the kernel values of support vectors, or features themselves."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.kernels import kernel_matrix

__all__ = ["Features", "SupportVectors", "basis_of", "kernel_of"]


def kernel_of(model: Any) -> tuple[int, float, float, int]:
    """Return what `kernel_matrix` needs to know of the kernel of a model with support vectors."""
    h = model._store.views.header[0]
    return h["kernel"], h["gamma"], h["coef0"], h["degree"]


class SupportVectors(NamedTuple):
    """The kernel values of support vectors. The intercept stays as it is."""

    model: Any
    vectors: np.ndarray
    """float64 [B, features]."""
    coefficients: np.ndarray
    """float64 [outputs, B], of the model now."""
    intercept: np.ndarray
    """float64 [outputs]."""

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return float64 [n, B] of rows float32 [n, features] as they are given."""
        scale = self.model.scale_in_use
        return kernel_matrix(*kernel_of(self.model), X.astype(np.float64) if scale is None else scale.of(X), self.vectors)

    def penalty(self) -> np.ndarray:
        """Return the matrix of |f|^2, float64 [B, B]."""
        return kernel_matrix(*kernel_of(self.model), self.vectors, self.vectors)

    def set(self, coefficients: np.ndarray) -> None:
        """Give the model other coefficients."""
        self.model.set_coefficients(coefficients, self.intercept)


class Features(NamedTuple):
    """The features of a linear model, and 1 for the intercept where one is fitted."""

    model: Any
    coefficients: np.ndarray
    """float64 [1, B], of the model now."""
    intercept: float
    """A constant that is not fitted."""

    def values(self, X: np.ndarray) -> np.ndarray:
        """Return float64 [n, B] of rows float32 [n, features]."""
        return np.hstack([X.astype(np.float64), np.ones((len(X), self.coefficients.shape[1] - X.shape[1]))])

    def penalty(self) -> np.ndarray:
        """Return the matrix of |w|^2, float64 [B, B]; the intercept is a weight, as in the learner."""
        return np.eye(self.coefficients.shape[1])

    def set(self, coefficients: np.ndarray) -> None:
        """Give the model other weights."""
        weights, fitted = np.split(coefficients[0], [self.model._store.used])
        self.model.set_coefficients(weights, float(fitted[0]) if len(fitted) else self.intercept)


def basis_of(model: Any) -> SupportVectors | Features:
    """Return that of a model with support vectors, or of a linear one."""
    if hasattr(model, "support_vectors"):
        return SupportVectors(model, model.support_vectors.astype(np.float64), model.coefficients, model.intercept)
    if model.fit_intercept:
        return Features(model, np.append(model.coefficients, model.intercept)[None], 0.0)
    return Features(model, model.coefficients[None], model.intercept)
