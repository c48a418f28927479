"""The kernel perceptron, without a budget."""

from __future__ import annotations

import numpy as np

from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.rule import rule
from streamsvm.core.steps.step import Row, add_support_vector
from streamsvm.learners.baseline import Reference
from streamsvm.learners.estimator import learner


@rule()
def step(block: np.ndarray, row: Row) -> None:
    """A mistake becomes a support vector, with its label as coefficient."""
    if row.self_kernel > 0.0 and row.target * views(block).scores[0] <= 0.0:
        add_support_vector(block, row, row.target * row.weight)


@learner
class KernelPerceptron(Reference):
    """The kernel perceptron: each mistake becomes a support vector.

    It has no budget maintenance: use it as a reference for learners that have one.

    References
    ----------
    Freund, Y., Schapire, R. (1999). Large margin classification using the perceptron algorithm. Machine Learning 37. A row
    costs O(n d) with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelPerceptron

    >>> model = preprocessing.StandardScaler() | KernelPerceptron(budget=2000)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 1)
    0.8
    """

    _rule = step
