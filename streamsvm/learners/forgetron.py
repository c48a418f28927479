"""The self-tuned Forgetron."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.slots import append, kernel_row_of, remove
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.rule import FITTED, rule, state_of
from streamsvm.core.steps.step import Row, add_to_coefficient
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.estimator import learner
from streamsvm.learners.mergeable import Part
from streamsvm.learners.merging import MergeableExpansion

STATE = np.dtype([("mistakes", "i8"), ("damage", "f8"), ("fitted", "i8")])

_TOLERANCE = 15.0 / 32.0  # the damage that a mistake allows


@compiled
def _forget_oldest(block: np.ndarray) -> None:
    v, c, s = views(block), common(block), state_of(block, STATE)
    n = v.header[0]["n_support"]
    oldest = 0
    for i in range(1, n):
        if v.stamps[i] < v.stamps[oldest]:
            oldest = i
    kernel_row_of(block, oldest)
    f = 0.0
    for i in range(n):
        f += np.float64(v.kernel_rows[2, i]) * v.coefficients[0, i]
    coefficient = c["scale"] * v.coefficients[0, oldest]
    sigma = abs(coefficient)
    margin = c["scale"] * f if coefficient > 0.0 else -c["scale"] * f
    # The largest phi in (0, 1] for which the damage, phi^2 (sigma^2 - 2 sigma margin) + 2 phi sigma, is within what is left.
    square = sigma * (sigma - 2.0 * margin)
    left = _TOLERANCE * s["mistakes"] - s["damage"]
    phi = 1.0
    if square + 2.0 * sigma > left:
        if abs(square) < 1e-12 * sigma:
            phi = left / (2.0 * sigma)
        else:
            phi = (np.sqrt(max(sigma * sigma + square * left, 0.0)) - sigma) / square
        phi = min(max(phi, 1e-9), 1.0)
    s["damage"] += phi * phi * square + 2.0 * phi * sigma
    c["scale"] *= phi
    remove(block, oldest)


@rule(STATE, learned={"mistakes": (0, 2**62), "damage": (-1e100, 1e100), **FITTED})
def step(block: np.ndarray, row: Row) -> None:
    """A mistake becomes a support vector; where that is one too many, all shrink and the oldest goes."""
    v, s = views(block), state_of(block, STATE)
    h = v.header[0]
    if row.self_kernel > 0.0 and row.target * v.scores[0] <= 0.0:
        s["mistakes"] += 1
        add_to_coefficient(block, append(block, v.rows[0], row.norm, row.weight), row.target * row.weight)
        if h["n_support"] > h["budget"]:
            _forget_oldest(block)


@learner
class Forgetron(Baseline, MergeableExpansion):
    """The self-tuned Forgetron: a kernel perceptron that shrinks and then forgets old rows.

    When the budget is full, it shrinks all coefficients by as little as its mistake bound allows, and then removes the oldest
    support vector.

    References
    ----------
    Dekel, O., Shalev-Shwartz, S., Singer, Y. (2008). The Forgetron: a kernel-based perceptron on a budget. SIAM Journal on
    Computing 37, figure 3. A row costs O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import Forgetron

    >>> model = preprocessing.StandardScaler() | Forgetron(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.77
    """

    _rule = step

    def _take_parts(self, parts: Sequence[Part], rows: tuple[Any, ...] | None) -> None:
        super()._take_parts(parts, rows)
        for name in ("mistakes", "damage"):  # the damage stays within what the mistakes of all allow
            self._own[name] = sum(part.model._own[name][0] for part in parts)
