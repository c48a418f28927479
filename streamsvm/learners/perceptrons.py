"""Reference algorithms: kernel perceptrons with a budget (RBP, Stoptron, Forgetron), and without."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.slots import append_vector, compute_slot_kernels, remove_vector
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import get_common_state
from streamsvm.core.steps.rule import FITTED_RANGE, get_rule_state, rule
from streamsvm.core.steps.step import CurrentRow, add_support_vector, add_to_coefficient, draw_slot
from streamsvm.learners.budgeted_classifier import ReferenceClassifier, UnbudgetedClassifier
from streamsvm.learners.estimator import learner
from streamsvm.learners.mergeable import MergeSource
from streamsvm.learners.merging import MergeableExpansion

_FITTED_STATE = np.dtype([("fitted", "i8")])


@rule(_FITTED_STATE, ranges=FITTED_RANGE)
def rbp_step(block: np.ndarray, row: CurrentRow) -> None:
    """Learn one row by the randomised budget perceptron: if the row is misclassified, add it as a support vector, in place of a
    random one if the budget is full. ``block`` is the learner's memory (one uint8 array), which contains the row's features and
    is changed in place; ``row`` has its target, its weight and its kernel value with itself.
    """
    v = views(block)
    h = v.header[0]
    if row.self_kernel > 0.0 and row.target * v.scores[0] <= 0.0:
        if h["n_support"] == h["budget"]:
            remove_vector(block, draw_slot(block))
        add_support_vector(block, row, row.target * row.weight)


@learner
class RBP(ReferenceClassifier, MergeableExpansion):
    """The randomised budget perceptron: once the budget is full, a new support vector replaces a random one.

    References
    ----------
    Cavallanti, G., Cesa-Bianchi, N., Gentile, C. (2007). Tracking the best hyperplane with a simple budget perceptron. Machine
    Learning 69. A row takes O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import RBP

    >>> model = preprocessing.StandardScaler() | RBP(budget=100, seed=0)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.76
    """

    seed: int | None = None

    _rule = rbp_step


@rule(_FITTED_STATE, ranges=FITTED_RANGE)
def stoptron_step(block: np.ndarray, row: CurrentRow) -> None:
    """Learn one row by the Stoptron: if the row is misclassified, and the budget is not full yet, add it as a support vector.
    ``block`` is the learner's memory (one uint8 array), which contains the row's features and is changed in place; ``row`` has
    its target, its weight and its kernel value with itself.
    """
    v = views(block)
    h = v.header[0]
    if row.self_kernel > 0.0 and row.target * v.scores[0] <= 0.0 and h["n_support"] < h["budget"]:
        add_support_vector(block, row, row.target * row.weight)


@learner
class Stoptron(ReferenceClassifier, MergeableExpansion):
    """A kernel perceptron that stops learning when its budget is full.

    References
    ----------
    Orabona, F., Keshet, J., Caputo, B. (2009). Bounded kernel-based online learning. JMLR 10, section 5. A row takes O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import Stoptron

    >>> model = preprocessing.StandardScaler() | Stoptron(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.81
    """

    _rule = stoptron_step


@rule()
def kernel_perceptron_step(block: np.ndarray, row: CurrentRow) -> None:
    """Learn one row by the kernel perceptron: if the row is misclassified, add it as a support vector. ``block`` is the learner's
    memory (one uint8 array), which contains the row's features and is changed in place; ``row`` has its target, its weight and
    its kernel value with itself.
    """
    if row.self_kernel > 0.0 and row.target * views(block).scores[0] <= 0.0:
        add_support_vector(block, row, row.target * row.weight)


@learner
class KernelPerceptron(UnbudgetedClassifier):
    """The kernel perceptron: each misclassified row becomes a support vector.

    It has no budget maintenance: use it as a reference for learners that have one.

    References
    ----------
    Freund, Y., Schapire, R. (1999). Large margin classification using the perceptron algorithm. Machine Learning 37. A row
    takes O(n d) with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelPerceptron

    >>> model = preprocessing.StandardScaler() | KernelPerceptron(budget=2000)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 1)
    0.8
    """

    _rule = kernel_perceptron_step


_FORGETRON_STATE = np.dtype([("mistakes", "i8"), ("damage", "f8"), ("fitted", "i8")])

_DAMAGE_PER_MISTAKE = 15.0 / 32.0  # the total damage may be at most this times the number of mistakes


@compiled
def _forget_oldest(block: np.ndarray) -> None:
    """Remove the oldest support vector of a Forgetron, a perceptron with a fixed budget. All coefficients are shrunk before, as
    little as the algorithm's bound on the number of mistakes allows. ``block`` is the learner's memory (one uint8 array), which
    is changed in place.
    """
    v, c, s = views(block), get_common_state(block), get_rule_state(block, _FORGETRON_STATE)
    n = v.header[0]["n_support"]
    oldest = 0
    for i in range(1, n):
        if v.stamps[i] < v.stamps[oldest]:
            oldest = i
    compute_slot_kernels(block, oldest)
    f = 0.0
    for i in range(n):
        f += np.float64(v.kernel_rows[2, i]) * v.coefficients[0, i]
    coefficient = c["scale"] * v.coefficients[0, oldest]
    sigma = abs(coefficient)
    margin = c["scale"] * f if coefficient > 0.0 else -c["scale"] * f
    # Find the largest phi in (0, 1] whose damage, phi^2 (sigma^2 - 2 sigma margin) + 2 phi sigma, is within the limit.
    square = sigma * (sigma - 2.0 * margin)
    limit = _DAMAGE_PER_MISTAKE * s["mistakes"] - s["damage"]
    phi = 1.0
    if square + 2.0 * sigma > limit:
        if abs(square) < 1e-12 * sigma:
            phi = limit / (2.0 * sigma)
        else:
            phi = (np.sqrt(max(sigma * sigma + square * limit, 0.0)) - sigma) / square
        phi = min(max(phi, 1e-9), 1.0)
    s["damage"] += phi * phi * square + 2.0 * phi * sigma
    c["scale"] *= phi
    remove_vector(block, oldest)


@rule(_FORGETRON_STATE, ranges={"mistakes": (0, 2**62), "damage": (-1e100, 1e100), **FITTED_RANGE})
def forgetron_step(block: np.ndarray, row: CurrentRow) -> None:
    """Learn one row by the Forgetron: if the row is misclassified, add it as a support vector; if that exceeds the budget, shrink
    all coefficients and remove the oldest one. ``block`` is the learner's memory (one uint8 array), which contains the row's
    features and is changed in place; ``row`` has its target, its weight and its kernel value with itself.
    """
    v, s = views(block), get_rule_state(block, _FORGETRON_STATE)
    h = v.header[0]
    if row.self_kernel > 0.0 and row.target * v.scores[0] <= 0.0:
        s["mistakes"] += 1
        add_to_coefficient(block, append_vector(block, v.rows[0], row.norm, row.weight), row.target * row.weight)
        if h["n_support"] > h["budget"]:
            _forget_oldest(block)


@learner
class Forgetron(ReferenceClassifier, MergeableExpansion):
    """The self-tuned Forgetron: a kernel perceptron that shrinks its coefficients and removes the oldest support vector.

    It does so when the budget is full. It shrinks the coefficients as little as its mistake bound allows.

    References
    ----------
    Dekel, O., Shalev-Shwartz, S., Singer, Y. (2008). The Forgetron: a kernel-based perceptron on a budget. SIAM Journal on
    Computing 37, figure 3. A row takes O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import Forgetron

    >>> model = preprocessing.StandardScaler() | Forgetron(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.77
    """

    _rule = forgetron_step

    def _merge_sources(self, parts: Sequence[MergeSource], rows: tuple[Any, ...] | None) -> None:
        """Compute the learned state of this new Forgetron by merging the trained models in ``parts``: their support vectors, and
        the sums of the counters of their mistake bounds. ``rows`` are extra rows ``(X, y)`` or ``(X, y, w)`` to fit the result
        to, or None.
        """
        super()._merge_sources(parts, rows)
        for name in ("mistakes", "damage"):  # the sum of damages stays within the limit for the sum of mistakes
            self._rule_record[name] = sum(part.model._rule_record[name][0] for part in parts)
