"""Budget passive-aggressive learning, the simple variant."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
from numba import njit

from streamsvm.checks import check_number
from streamsvm.kernels import LEAST_SELF_KERNEL, self_kernel
from streamsvm.learners.baseline import LARGEST, Baseline
from streamsvm.learners.compiled.iterates import OWN_BEGIN, common
from streamsvm.learners.compiled.step import LEARNED, REFUSED, add_support_vector, end, fill, observe
from streamsvm.memory.block import record
from streamsvm.memory.slots import remove
from streamsvm.memory.support_vectors import views

__all__ = ["BPAS"]

STATE = np.dtype([("C", "f8")])


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, y: float, weight: float) -> int:
    """A passive-aggressive step; where the store is full, the support vector goes that the new one replaces at the least loss."""
    norm, own = observe(block, y)
    if norm < 0.0:
        return REFUSED
    v, s = views(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    loss = 1.0 - y * v.scores[0]
    if loss > 0.0 and own >= LEAST_SELF_KERNEL:
        coefficient = y * min(s["C"] * weight, loss / own)
        if h["n_support"] == h["budget"]:
            coefficient = min(max(coefficient + _replace(block, own), -LARGEST), LARGEST)
        add_support_vector(block, upkeep, norm, weight, 0, -1, coefficient)
    end(block)
    return LEARNED


@njit(cache=True, error_model="numpy")
def _replace(block: np.ndarray, own: float) -> float:
    # Take out the support vector whose part of the model is nearest to a multiple of the row at hand; that multiple, which is no
    # longer than the part. It would be where a polynomial kernel is bounded, and then no kernel.
    v, c = views(block), common(block)
    h = v.header[0]
    best, least, multiple = 0, np.inf, 0.0
    for i in range(h["n_support"]):
        a, k = c["scale"] * v.coefficients[0, i], np.float64(v.kernel_rows[0, i])
        square = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        loss = a * a * max(square - k * k / own, 0.0)
        if loss < least:
            bound = math.sqrt(square / own)
            best, least, multiple = i, loss, a * min(max(k / own, -bound), bound)
    remove(block, best)
    return multiple


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, upkeep: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        learn_one(block, upkeep, targets[i], weights[i])
    return X.shape[0]


class BPAS(Baseline):
    """Budget passive-aggressive learning, the simple variant: a support vector that goes is projected onto the new one.

    Parameters
    ----------
    budget
        Support vectors that are kept.
    C
        The largest step of a row. A row's weight multiplies it.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.

    References
    ----------
    Wang, Z., Vucetic, S. (2010). Online passive-aggressive algorithms on a budget. AISTATS, BPA-S. O(B d) a row.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import BPAS

    >>> model = preprocessing.StandardScaler() | BPAS(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 86.02%
    """

    _rule: ClassVar[ModuleType] = sys.modules[__name__]

    def __init__(
        self,
        budget: int = 100,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        C: float = 1.0,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
    ) -> None:
        self.C = C
        check_number("C", C, 0.0, high=1e15)
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow)
        self._own["C"] = C
