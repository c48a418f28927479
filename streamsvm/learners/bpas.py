"""Budget passive-aggressive learning, the simple variant."""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.checks import parameter
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LEAST_SELF_KERNEL, self_kernel
from streamsvm.core.memory.slots import remove
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.rule import FITTED, rule, state_of
from streamsvm.core.steps.step import Row, add_support_vector
from streamsvm.learners.baseline import LARGEST, Baseline
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

STATE = np.dtype([("C", "f8"), ("fitted", "i8")])


@compiled
def _replace_vector(block: np.ndarray, diagonal: float) -> float:
    # Remove the support vector whose contribution is nearest to a multiple of the row at hand; that multiple. It is no longer
    # than the contribution: it could be where a polynomial kernel is clipped, and then is no kernel.
    v, c = views(block), common(block)
    h = v.header[0]
    best, least, multiple = 0, np.inf, 0.0
    for i in range(h["n_support"]):
        a, k = c["scale"] * v.coefficients[0, i], np.float64(v.kernel_rows[0, i])
        square = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        loss = a * a * max(square - k * k / diagonal, 0.0)
        if loss < least:
            bound = math.sqrt(square / diagonal)
            best, least, multiple = i, loss, a * min(max(k / diagonal, -bound), bound)
    remove(block, best)
    return multiple


@rule(STATE, learned=FITTED)
def step(block: np.ndarray, row: Row) -> None:
    """A passive-aggressive step; where the store is full, the support vector goes that the new one replaces at the least loss."""
    v, s = views(block), state_of(block, STATE)
    h = v.header[0]
    loss = 1.0 - row.target * v.scores[0]
    if loss > 0.0 and row.self_kernel >= LEAST_SELF_KERNEL:
        coefficient = row.target * min(s["C"] * row.weight, loss / row.self_kernel)
        if h["n_support"] == h["budget"]:
            coefficient = min(max(coefficient + _replace_vector(block, row.self_kernel), -LARGEST), LARGEST)
        add_support_vector(block, row, coefficient)


@learner
class BPAS(Baseline, MergeableExpansion):
    """Budget passive-aggressive learning, the simple variant (BPA-S).

    When the budget is full, the support vector whose contribution the new one replaces best is removed, and projected onto the
    new one.

    References
    ----------
    Wang, Z., Vucetic, S. (2010). Online passive-aggressive algorithms on a budget. AISTATS, BPA-S. A row costs O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import BPAS

    >>> model = preprocessing.StandardScaler() | BPAS(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.86
    """

    C: float = parameter(default=1.0, above=0.0, high=1e15)
    """The largest step of a row; the weight of the row multiplies it."""

    _rule = step
