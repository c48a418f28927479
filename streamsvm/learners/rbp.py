"""The randomised budget perceptron."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
from numba import njit

from streamsvm.learners.baseline import Baseline
from streamsvm.learners.compiled.step import LEARNED, REFUSED, add_support_vector, draw, end, fill, observe
from streamsvm.memory.slots import remove
from streamsvm.memory.support_vectors import views

__all__ = ["RBP"]

STATE = np.dtype([])  # nothing of its own


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, y: float, weight: float) -> int:
    """A mistake becomes a support vector, in the place of a random one where the store is full."""
    norm, own = observe(block, y)
    if norm < 0.0:
        return REFUSED
    v = views(block)
    if own > 0.0 and y * v.scores[0] <= 0.0:
        h = v.header[0]
        if h["n_support"] == h["budget"]:
            remove(block, np.int64(draw(block) % np.uint64(h["budget"])))
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


class RBP(Baseline):
    """The randomised budget perceptron: a new support vector takes the place of a random one.

    Parameters
    ----------
    budget
        Support vectors that are kept.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.
    seed
        Of the random choices.

    References
    ----------
    Cavallanti, G., Cesa-Bianchi, N., Gentile, C. (2007). Tracking the best hyperplane with a simple budget perceptron. Machine
    Learning 69. O(B d) a row.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import RBP

    >>> model = preprocessing.StandardScaler() | RBP(budget=100, seed=0)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 76.53%
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
        seed: int | None = None,
    ) -> None:
        self.seed = seed
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow, seed=seed)
