"""Bounded online gradient descent."""

from __future__ import annotations

import numpy as np

from streamsvm.core.checks import check_decay, parameter
from streamsvm.core.memory.slots import remove
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.rule import FITTED, rule, state_of
from streamsvm.core.steps.step import Row, add_support_vector, random_slot
from streamsvm.learners.baseline import LARGEST, Baseline
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

STATE = np.dtype([("l2", "f8"), ("eta0", "f8"), ("fitted", "i8")])


@rule(STATE, learned=FITTED)
def step(block: np.ndarray, row: Row) -> None:
    """A gradient step; where the store is full, a random support vector goes and the others grow for it."""
    v, c, s = views(block), common(block), state_of(block, STATE)
    h = v.header[0]
    f, n = v.scores[0], h["budget"]
    c["scale"] *= 1.0 - s["eta0"] * s["l2"]
    if row.self_kernel > 0.0 and row.target * f < 1.0:
        if h["n_support"] == n:
            remove(block, random_slot(block))
            limit = LARGEST / c["scale"]  # a support vector that survives for long grows each time
            for i in range(n - 1):
                v.coefficients[0, i] = min(max(v.coefficients[0, i] * n / (n - 1.0), -limit), limit)
        add_support_vector(block, row, s["eta0"] * row.weight * row.target)


@learner
class BOGD(Baseline, MergeableExpansion):
    """Bounded online gradient descent: a random support vector is removed when the budget is full.

    The coefficients of the others grow to make up for it, so that the model stays the same on average.

    References
    ----------
    Zhao, P., Wang, J., Wu, P., Jin, R., Hoi, S. (2012). Fast bounded online gradient descent algorithms for scalable
    kernel-based online learning. ICML, uniform sampling. A row costs O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import BOGD

    >>> model = preprocessing.StandardScaler() | BOGD(budget=100, seed=0)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 1)
    0.6
    """

    eta0: float = parameter(default=0.1, above=0.0, high=1e15)
    l2: float = parameter(default=0.01, least=0.0, high=1e9)
    """The strength of regularisation."""
    seed: int | None = None

    _rule = step

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_decay(self.eta0, self.l2)
