"""The randomised budget perceptron."""

from __future__ import annotations

import numpy as np

from streamsvm.core.memory.slots import remove
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.rule import FITTED, rule
from streamsvm.core.steps.step import Row, add_support_vector, random_slot
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

STATE = np.dtype([("fitted", "i8")])


@rule(STATE, learned=FITTED)
def step(block: np.ndarray, row: Row) -> None:
    """A mistake becomes a support vector, in the place of a random one where the store is full."""
    v = views(block)
    h = v.header[0]
    if row.self_kernel > 0.0 and row.target * v.scores[0] <= 0.0:
        if h["n_support"] == h["budget"]:
            remove(block, random_slot(block))
        add_support_vector(block, row, row.target * row.weight)


@learner
class RBP(Baseline, MergeableExpansion):
    """The randomised budget perceptron: a new support vector replaces a random one.

    It does so once the budget is full.

    References
    ----------
    Cavallanti, G., Cesa-Bianchi, N., Gentile, C. (2007). Tracking the best hyperplane with a simple budget perceptron. Machine
    Learning 69. A row costs O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import RBP

    >>> model = preprocessing.StandardScaler() | RBP(budget=100, seed=0)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.76
    """

    seed: int | None = None

    _rule = step
