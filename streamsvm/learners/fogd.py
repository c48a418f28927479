"""Fourier online gradient descent."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from streamsvm.core.checks import KernelName, parameter
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FOURIER
from streamsvm.core.memory.slots import next_random
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.rule import rule, state_of
from streamsvm.core.steps.step import Row
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.estimator import learner

STATE = np.dtype([("drawn", "i8"), ("eta0", "f8")])

_TO_UNIT = 2.0**-53


@compiled
def _draw_frequencies(block: np.ndarray) -> None:
    # Those of new features: standard normal numbers (Box and Muller) that depend on nothing but the seed and the place.
    v, s, seed = views(block), state_of(block, STATE), common(block)["random"]
    h = v.header[0]
    for column in range(s["drawn"], h["used"]):
        for i in range(h["n_support"]):
            place = np.uint64(2) * (np.uint64(column) * np.uint64(2**31) + np.uint64(i))
            first = next_random(next_random(seed ^ place) + place)
            second = next_random(next_random(seed ^ (place + np.uint64(1))) + place)
            radius = math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * _TO_UNIT))
            value = np.float32(radius * math.cos(2.0 * math.pi * np.float64(second >> np.uint64(11)) * _TO_UNIT))
            v.vectors[column, i] = value
            v.norms[i] = np.float32(np.float64(v.norms[i]) + np.float64(value) * np.float64(value))
            h["largest_norm"] = max(h["largest_norm"], np.float64(v.norms[i]))
        v.cache[0] = 0
        s["drawn"] += 1


@rule(STATE, learned={"drawn": (0, 2**31)}, prepare=_draw_frequencies)
def step(block: np.ndarray, row: Row) -> None:
    """A gradient step on the weights of z = [cos(w_i x), sin(w_i x)] / sqrt(m): a += eta y [cos, sin] / m."""
    v, s = views(block), state_of(block, STATE)
    if row.target * v.scores[0] < 1.0:
        m = v.header[0]["n_support"]
        size = s["eta0"] * row.weight * row.target / m
        for i in range(m):
            v.coefficients[0, i] += size * np.float64(v.kernel_rows[0, i])
            v.coefficients[1, i] += size * np.float64(v.kernel_rows[1, i])


@learner
class FOGD(Baseline):
    """Online gradient descent on random Fourier features of the Gaussian kernel.

    Parameters
    ----------
    budget
        The number of frequencies, m. Each gives a cosine and a sine. They take the place of support vectors.

    References
    ----------
    Lu, J., Hoi, S., Wang, J., Zhao, P., Liu, Z. (2016). Large scale online kernel learning. JMLR 17, algorithm 2, on the
    features of Rahimi, A., Recht, B. (2007), Random features for large-scale kernel machines. A row costs O(m d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import FOGD

    >>> model = preprocessing.StandardScaler() | FOGD(budget=100, gamma=1.0, seed=0)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.88
    """

    kernel: KernelName = field(default="rbf", init=False)
    degree: int = field(default=3, init=False)
    coef0: float = field(default=0.0, init=False)
    eta0: float = parameter(default=1.0, above=0.0, high=1e15)
    seed: int | None = None

    _rule = step

    def __post_init__(self) -> None:
        super().__post_init__()
        header, views = self._store.views.header, self._store.views
        header["n_support"] = header["next_stamp"] = self.budget
        views.stamps[: self.budget] = np.arange(self.budget)

    @property
    def _kernel_kind(self) -> int:
        return FOURIER

    def start_from(self, *_: Any, **__: Any) -> NoReturn:
        """Raise a ValueError: this model draws its frequencies, and cannot start from given vectors."""
        raise ValueError("FOGD draws its frequencies: it cannot start from given vectors")

    def set_coefficients(self, *_: Any, **__: Any) -> NoReturn:
        """Raise a ValueError: the coefficients belong to frequencies, and not to support vectors."""
        raise ValueError("FOGD has coefficients of frequencies: it cannot take those of support vectors")

    @property
    def coefficients(self) -> np.ndarray:
        """The coefficients of the cosines and of the sines, float64 [2, m]."""
        return self._store.coefficients.copy()
