"""The Projectron and the Projectron++."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
from numba import njit

from streamsvm.budget.maintenance import append, kernel_row_of
from streamsvm.kernels import self_kernel
from streamsvm.learners._inputs import check_number
from streamsvm.learners._online import (
    LEARNED,
    OWN_BEGIN,
    REFUSED,
    end,
    fill,
    observe,
    raise_coefficient,
)
from streamsvm.learners.baseline import Baseline
from streamsvm.store import record, views

__all__ = ["Projectron", "ProjectronPP"]

STATE = np.dtype([("margin_steps", "i8"), ("eta", "f8"), ("gamma", "f8")])

# A row nearer than this (squared, over its own squared norm) to the span of the support vectors is projected whatever eta is:
# with it, the inverse of their Gram matrix would be of no use.
_LEAST_DISTANCE = 1e-5
_RIDGE = 1e-7  # of the size of float32's rounding


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, tables: np.ndarray, y: float, weight: float) -> int:  # noqa: ARG001
    """A mistake is projected onto the support vectors, or where it is far from their span becomes one."""
    norm, own = observe(block, y)
    if norm < 0.0:
        return REFUSED
    v, s = views(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    f = v.scores[0]
    n = h["n_support"]
    mistake = y * f <= 0.0
    if own > 0.0 and (mistake or (s["margin_steps"] and y * f < 1.0)):
        if s["gamma"] != h["gamma"]:  # which "scale" is still finding
            _invert(block)
        along, squared = _project(block), 0.0
        for i in range(n):
            squared += np.float64(v.kernel_rows[0, i]) * along[i]
        distance = math.sqrt(max(own - squared, 0.0))
        if mistake:
            step = weight * y
            if n < h["budget"] and distance > s["eta"] and distance * distance > _LEAST_DISTANCE * own:
                _grow(block, along, distance * distance)
                raise_coefficient(block, append(block, v.rows[0], norm, weight), 0, -1, step)
                end(block)
                return LEARNED
        else:
            loss = 1.0 - y * f
            step = 0.0
            if loss * s["eta"] >= distance and squared > 0.0:
                step = weight * y * min(loss / squared, 2.0 * (loss - distance / s["eta"]) / squared, 1.0)
        if step != 0.0:
            for i in range(n):
                raise_coefficient(block, i, 0, -1, step * along[i])
    end(block)
    return LEARNED


@njit(cache=True, error_model="numpy")
def _project(block: np.ndarray) -> np.ndarray:
    # Coefficients of the row's projection onto the support vectors, K^-1 k: in the last row of gram, which K^-1 does not reach.
    v = views(block)
    n = v.header[0]["n_support"]
    along = v.gram[v.gram.shape[0] - 1]
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += v.gram[i, j] * np.float64(v.kernel_rows[0, j])
        along[i] = total
    return along


@njit(cache=True, error_model="numpy")
def _grow(block: np.ndarray, along: np.ndarray, squared: float) -> None:
    # The inverse with the row at hand as one more row and column, by the block inverse.
    v = views(block)
    n = v.header[0]["n_support"]
    for i in range(n):
        for j in range(n):
            v.gram[i, j] += along[i] * along[j] / squared
    for i in range(n):
        v.gram[i, n] = v.gram[n, i] = -along[i] / squared
    v.gram[n, n] = 1.0 / squared


@njit(cache=True, error_model="numpy")
def _invert(block: np.ndarray) -> None:
    # K^-1 from the start: while gamma="scale" is finding gamma, the kernel is another one at each row.
    v, s = views(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    n = h["n_support"]
    if n > 0:
        K = np.empty((n, n))
        for i in range(n):
            kernel_row_of(block, i)
            for j in range(n):
                K[i, j] = v.kernel_rows[2, j]
            K[i, i] = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
            K[i, i] *= 1.0 + _RIDGE
        v.gram[:n, :n] = np.linalg.inv(K)
    s["gamma"] = h["gamma"]


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, tables: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        learn_one(block, tables, targets[i], weights[i])
    return X.shape[0]


class Projectron(Baseline):
    """A kernel perceptron whose mistakes are projected onto its support vectors.

    A mistake becomes a support vector only where it is farther than ``eta`` from the span of those there are, and there is room.

    Parameters
    ----------
    budget
        Support vectors that are kept.
    eta
        Distance (not squared) in feature space up to which a mistake is projected. At most 1 for the Gaussian kernel.
    averaging
        Rows that the average of the iterates remembers; 0, as in the paper: no average. Predictions follow the average, or the
        last iterate where that has made fewer errors over the last 1,000 rows.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.

    References
    ----------
    Orabona, F., Keshet, J., Caputo, B. (2009). Bounded kernel-based online learning. JMLR 10, algorithm 2. A mistake costs
    O(B^2), and B^2 numbers of memory hold the inverse Gram matrix.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import Projectron

    >>> model = preprocessing.StandardScaler() | Projectron(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 84.51%
    """

    _rule: ClassVar[ModuleType] = sys.modules[__name__]
    _own_ranges: ClassVar[dict[str, tuple[float, float]]] = {"gamma": (0.0, 1e15)}
    _margin_steps = False

    def __init__(
        self,
        budget: int = 100,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        averaging: int = 0,
        eta: float = 0.1,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
    ) -> None:
        self.eta = eta
        check_number("eta", eta, 0.0, high=1e15)
        self.averaging = averaging
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow, averaging=averaging, gram=True)
        self._own["eta"], self._own["margin_steps"], self._own["gamma"] = eta, self._margin_steps, self.effective_gamma


class ProjectronPP(Projectron):
    """The Projectron++: a `Projectron` that also learns rows on the right side within the margin, where they can be projected.

    Parameters
    ----------
    budget
        Support vectors that are kept.
    eta
        Distance (not squared) in feature space up to which a mistake is projected.
    averaging
        Rows that the average of the iterates remembers; 0, as in the paper: no average. Predictions follow the average, or the
        last iterate where that has made fewer errors over the last 1,000 rows.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.

    References
    ----------
    Orabona, F., Keshet, J., Caputo, B. (2009). Bounded kernel-based online learning. JMLR 10, algorithm 3.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import ProjectronPP

    >>> model = preprocessing.StandardScaler() | ProjectronPP(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 86.81%
    """

    _margin_steps = True
