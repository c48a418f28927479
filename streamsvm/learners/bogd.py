"""Bounded online gradient descent."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
from numba import njit

from streamsvm.checks import check_number
from streamsvm.learners.baseline import LARGEST, Baseline
from streamsvm.learners.compiled.iterates import OWN_BEGIN, common
from streamsvm.learners.compiled.step import LEARNED, REFUSED, add_support_vector, draw, end, fill, observe
from streamsvm.memory.block import record
from streamsvm.memory.slots import remove
from streamsvm.memory.support_vectors import views

__all__ = ["BOGD"]

STATE = np.dtype([("l2", "f8"), ("eta0", "f8")])


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, y: float, weight: float) -> int:
    """A gradient step; where the store is full, a random support vector goes and the others grow for it."""
    norm, own = observe(block, y)
    if norm < 0.0:
        return REFUSED
    v, c, s = views(block), common(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    f = v.scores[0]
    c["scale"] *= 1.0 - s["eta0"] * s["l2"]
    if own > 0.0 and y * f < 1.0:
        n = h["budget"]
        if h["n_support"] == n:
            remove(block, np.int64(draw(block) % np.uint64(n)))
            limit = LARGEST / c["scale"]  # a support vector may, though it hardly will, be kept for ever, and grows each time
            for i in range(n - 1):
                v.coefficients[0, i] = min(max(v.coefficients[0, i] * n / (n - 1.0), -limit), limit)
        add_support_vector(block, upkeep, norm, weight, 0, -1, s["eta0"] * weight * y)
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


class BOGD(Baseline):
    """Bounded online gradient descent: a random support vector goes, and the others grow so that the model stays the same on
    average.

    Parameters
    ----------
    budget
        Support vectors that are kept.
    eta0
        The step.
    l2
        Regularisation.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.
    seed
        Of the random choices.

    References
    ----------
    Zhao, P., Wang, J., Wu, P., Jin, R., Hoi, S. (2012). Fast bounded online gradient descent algorithms for scalable kernel-based
    online learning. ICML, uniform sampling. O(B d) a row.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import BOGD

    >>> model = preprocessing.StandardScaler() | BOGD(budget=100, seed=0)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 62.25%
    """

    _rule: ClassVar[ModuleType] = sys.modules[__name__]

    def __init__(
        self,
        budget: int = 100,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        eta0: float = 0.1,
        l2: float = 0.01,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
        seed: int | None = None,
    ) -> None:
        self.eta0 = eta0
        self.l2 = l2
        check_number("eta0", eta0, 0.0, high=1e15)
        check_number("l2", l2, 0.0, inclusive=True, high=1e9)
        if eta0 * l2 >= 1.0:
            raise ValueError(f"eta0 * l2 must be below 1, or a step forgets everything: {eta0!r} * {l2!r}")
        self.seed = seed
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow, seed=seed)
        self._own["eta0"], self._own["l2"] = eta0, l2
