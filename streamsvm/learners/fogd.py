"""Fourier online gradient descent."""

from __future__ import annotations

import math
import sys
from types import ModuleType
from typing import ClassVar

import numpy as np
from numba import njit

from streamsvm.checks import check_number, random_state
from streamsvm.kernels import FOURIER
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.compiled.iterates import OWN_BEGIN
from streamsvm.learners.compiled.step import LEARNED, REFUSED, begin, fill, margins, watch
from streamsvm.memory.block import record
from streamsvm.memory.slots import next_random
from streamsvm.memory.support_vectors import views

__all__ = ["FOGD"]

STATE = np.dtype([("drawn", "i8"), ("seed", "u8"), ("eta0", "f8")])

_TO_UNIT = 2.0**-53


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, y: float, weight: float) -> int:  # noqa: ARG001
    """A gradient step on the weights of z = [cos(w_i x), sin(w_i x)] / sqrt(m): a += eta y [cos, sin] / m."""
    n_active, norm = begin(block)
    if n_active < 0:
        return REFUSED
    v, s = views(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    while s["drawn"] < h["used"]:
        _draw(block, s["drawn"])
        s["drawn"] += 1
    margins(block, n_active, norm)
    f = v.scores[0]
    watch(block, y)
    if y * f < 1.0:
        m = h["n_support"]
        step = s["eta0"] * weight * y / m
        for i in range(m):
            v.coefficients[0, i] += step * np.float64(v.kernel_rows[0, i])
            v.coefficients[1, i] += step * np.float64(v.kernel_rows[1, i])
    return LEARNED


@njit(cache=True, error_model="numpy")
def _draw(block: np.ndarray, column: int) -> None:
    # The frequencies of one feature: standard normal numbers that depend on nothing but the seed and the places (Box and Muller).
    v, s = views(block), record(block, OWN_BEGIN, STATE)
    h = v.header[0]
    for i in range(h["n_support"]):
        place = np.uint64(2) * (np.uint64(column) * np.uint64(2**31) + np.uint64(i))
        first = next_random(next_random(s["seed"] ^ place) + place)
        second = next_random(next_random(s["seed"] ^ (place + np.uint64(1))) + place)
        radius = math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * _TO_UNIT))
        value = np.float32(radius * math.cos(2.0 * math.pi * np.float64(second >> np.uint64(11)) * _TO_UNIT))
        v.vectors[column, i] = value
        v.norms[i] = np.float32(np.float64(v.norms[i]) + np.float64(value) * np.float64(value))
        h["largest_norm"] = max(h["largest_norm"], np.float64(v.norms[i]))
    v.cache[0] = 0


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, upkeep: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        learn_one(block, upkeep, targets[i], weights[i])
    return X.shape[0]


class FOGD(Baseline):
    """Online gradient descent on random Fourier features of the Gaussian kernel.

    Parameters
    ----------
    budget
        Frequencies m; each gives a cosine and a sine. They take the places of support vectors.
    gamma
        Of exp(-gamma |x - s|^2), as in `BSGDClassifier`.
    eta0
        The step.
    max_features, overflow
        As in `BSGDClassifier`.
    seed
        Of the frequencies.

    References
    ----------
    Lu, J., Hoi, S., Wang, J., Zhao, P., Liu, Z. (2016). Large scale online kernel learning. JMLR 17, algorithm 2, on the features
    of Rahimi, A., Recht, B. (2007), Random features for large-scale kernel machines. O(m d) a row.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import FOGD

    >>> model = preprocessing.StandardScaler() | FOGD(budget=100, gamma=1.0, seed=0)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 88.32%
    """

    _rule: ClassVar[ModuleType] = sys.modules[__name__]
    _own_ranges: ClassVar[dict[str, tuple[float, float]]] = {"drawn": (0, 2**31), "seed": (0, 2**64 - 1)}

    def __init__(
        self,
        budget: int = 100,
        gamma: float | str = "scale",
        eta0: float = 1.0,
        max_features: int = 256,
        overflow: str = "raise",
        seed: int | None = None,
    ) -> None:
        self.eta0 = eta0
        self.seed = seed
        check_number("eta0", eta0, 0.0, high=1e15)
        super().__init__(budget, "rbf", gamma, 3, 0.0, max_features, overflow)
        self._own["eta0"], self._own["seed"] = eta0, random_state(seed)
        header, views = self._store.views.header, self._store.views
        header["kernel"], header["n_support"], header["next_stamp"] = FOURIER, budget, budget
        views.stamps[:budget] = np.arange(budget)

    @property
    def coefficients(self) -> np.ndarray:
        """float64 [2, m]: of the cosines, and of the sines."""
        return self._store.coefficients.copy()
