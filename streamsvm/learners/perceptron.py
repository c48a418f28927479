"""The kernel perceptron, without a budget."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import numpy as np
from numba import njit

from streamsvm.budget import Refusal
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.compiled.step import FULL, LEARNED, REFUSED, add_support_vector, end, fill, observe
from streamsvm.memory.support_vectors import views

__all__ = ["KernelPerceptron"]

STATE = np.dtype([])  # nothing of its own


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, y: float, weight: float) -> int:
    """Each mistake becomes a support vector, with its label as coefficient."""
    norm, own = observe(block, y)
    if norm < 0.0:
        return REFUSED
    v = views(block)
    mistake = own > 0.0 and y * v.scores[0] <= 0.0
    if mistake and add_support_vector(block, upkeep, norm, weight, 0, -1, y * weight) == FULL:
        return FULL
    end(block)
    return LEARNED


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, upkeep: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        if learn_one(block, upkeep, targets[i], weights[i]) == FULL:
            return i
    return X.shape[0]


class KernelPerceptron(Baseline):
    """The kernel perceptron: each mistake becomes a support vector. It knows no budget: a reference.

    Parameters
    ----------
    budget
        The most support vectors that there is room for. One more raises a RuntimeError, and leaves the model as it was.
    averaging
        Rows that the average of the iterates remembers; 0, as in the paper: no average. Predictions follow the average, or the
        last iterate where that has made fewer errors over the last 1,000 rows.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.

    References
    ----------
    Freund, Y., Schapire, R. (1999). Large margin classification using the perceptron algorithm. Machine Learning 37. O(n d) a row
    with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelPerceptron

    >>> model = preprocessing.StandardScaler() | KernelPerceptron(budget=2000)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 84.62%
    """

    _rule: ClassVar[ModuleType] = sys.modules[__name__]

    def __init__(
        self,
        budget: int = 10_000,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        averaging: int = 0,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
    ) -> None:
        self.averaging = averaging
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow, strategy=Refusal(), averaging=averaging)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 4000}
