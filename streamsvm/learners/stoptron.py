"""The Stoptron: a perceptron that stops."""

from __future__ import annotations

import numpy as np

from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.rule import FITTED, rule
from streamsvm.core.steps.step import Row, add_support_vector
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

STATE = np.dtype([("fitted", "i8")])


@rule(STATE, learned=FITTED)
def step(block: np.ndarray, row: Row) -> None:
    """A mistake becomes a support vector while there is room."""
    v = views(block)
    h = v.header[0]
    if row.self_kernel > 0.0 and row.target * v.scores[0] <= 0.0 and h["n_support"] < h["budget"]:
        add_support_vector(block, row, row.target * row.weight)


@learner
class Stoptron(Baseline, MergeableExpansion):
    """A kernel perceptron that stops learning when its budget is full.

    References
    ----------
    Orabona, F., Keshet, J., Caputo, B. (2009). Bounded kernel-based online learning. JMLR 10, section 5. A row costs O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import Stoptron

    >>> model = preprocessing.StandardScaler() | Stoptron(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.81
    """

    _rule = step
