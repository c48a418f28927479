"""The Stoptron: a perceptron that stops."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
from numba import njit

from streamsvm.learners.baseline import Baseline
from streamsvm.learners.compiled.step import LEARNED, REFUSED, add_support_vector, end, fill, observe
from streamsvm.memory.support_vectors import views

__all__ = ["Stoptron"]

STATE = np.dtype([])  # nothing of its own


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, y: float, weight: float) -> int:
    """A mistake becomes a support vector while there is room."""
    norm, own = observe(block, y)
    if norm < 0.0:
        return REFUSED
    v = views(block)
    if own > 0.0 and y * v.scores[0] <= 0.0:
        h = v.header[0]
        if h["n_support"] < h["budget"]:
            add_support_vector(block, upkeep, norm, weight, 0, -1, y * weight)
    end(block)
    return LEARNED


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, upkeep: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        learn_one(block, upkeep, targets[i], weights[i])
    return X.shape[0]


class Stoptron(Baseline):
    """A kernel perceptron that stops learning when its budget is full.

    Parameters
    ----------
    budget
        Support vectors that are kept.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.

    References
    ----------
    Orabona, F., Keshet, J., Caputo, B. (2009). Bounded kernel-based online learning. JMLR 10, section 5. O(B d) a row.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import Stoptron

    >>> model = preprocessing.StandardScaler() | Stoptron(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 75.79%
    """

    _rule: ClassVar[ModuleType] = sys.modules[__name__]

    def __init__(
        self,
        budget: int = 100,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
    ) -> None:
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow)
