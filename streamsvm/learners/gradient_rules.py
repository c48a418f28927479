"""Reference algorithms: kernel online gradient descent (NORMA, Pegasos, BOGD) and passive-aggressive learning (BPAS)."""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.checks import LearningRate, check_decay, parameter
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LEAST_SELF_KERNEL, compute_self_kernel
from streamsvm.core.memory.slots import remove_vector
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import get_common_state
from streamsvm.core.steps.rule import FITTED_RANGE, get_rule_state, rule
from streamsvm.core.steps.step import CurrentRow, add_support_vector, draw_slot
from streamsvm.learners.bsgd import Descent
from streamsvm.learners.budgeted_classifier import MAX_COEFFICIENT, ReferenceClassifier, UnbudgetedClassifier
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion


@learner
class KernelOGD(UnbudgetedClassifier, Descent):
    """Online gradient descent in the kernel's space (NORMA).

    Each row inside the margin becomes a support vector, and all coefficients shrink with each row. Without budget maintenance, it
    is a reference for learners that have it.

    References
    ----------
    Kivinen, J., Smola, A., Williamson, R. (2004). Online learning with kernels. IEEE Transactions on Signal Processing 52. A
    row takes O(n d) with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelOGD

    >>> model = preprocessing.StandardScaler() | KernelOGD(budget=5000)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.85
    """

    eta0: float = parameter(default=0.1, above=0.0, high=1e15)
    l2: float = parameter(default=0.01, least=1e-15, high=1e9)

    @property
    def learning_rate(self) -> LearningRate:
        return "constant"


@learner
class KernelPegasos(UnbudgetedClassifier, Descent):
    """Kernel Pegasos: `BSGDClassifier` without budget maintenance and averaging, as a reference for learners that have both.

    References
    ----------
    Shalev-Shwartz, S., Singer, Y., Srebro, N., Cotter, A. (2011). Pegasos: primal estimated sub-gradient solver for SVM.
    Mathematical Programming 127, figure 3. A row takes O(n d) with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelPegasos

    >>> model = preprocessing.StandardScaler() | KernelPegasos(budget=5000)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.86
    """

    l2: float = parameter(default=1e-4, least=1e-15, high=1e9)


_BOGD_STATE = np.dtype([("l2", "f8"), ("eta0", "f8"), ("fitted", "i8")])


@rule(_BOGD_STATE, ranges=FITTED_RANGE)
def bogd_step(block: np.ndarray, row: CurrentRow) -> None:
    """Take one gradient step of the BOGD algorithm for one row. If the budget is full, first remove a random support vector, and
    enlarge the other coefficients to make up for it. ``block`` is the learner's memory (one uint8 array), which contains the
    row's features and is changed in place; ``row`` has its target, its weight and its kernel value with itself.
    """
    v, c, s = views(block), get_common_state(block), get_rule_state(block, _BOGD_STATE)
    h = v.header[0]
    f, n = v.scores[0], h["budget"]
    c["scale"] *= 1.0 - s["eta0"] * s["l2"]
    if row.self_kernel > 0.0 and row.target * f < 1.0:
        if h["n_support"] == n:
            remove_vector(block, draw_slot(block))
            limit = MAX_COEFFICIENT / c["scale"]  # because a support vector that survives for long is enlarged many times
            for i in range(n - 1):
                v.coefficients[0, i] = min(max(v.coefficients[0, i] * n / (n - 1.0), -limit), limit)
        add_support_vector(block, row, s["eta0"] * row.weight * row.target)


@learner
class BOGD(ReferenceClassifier, MergeableExpansion):
    """Bounded online gradient descent: a random support vector is removed when the budget is full.

    The other coefficients are enlarged, so that the expected model does not change.

    References
    ----------
    Zhao, P., Wang, J., Wu, P., Jin, R., Hoi, S. (2012). Fast bounded online gradient descent algorithms for scalable
    kernel-based online learning. ICML, uniform sampling. A row takes O(B d).

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

    _rule = bogd_step

    def _check_parameters(self) -> None:
        super()._check_parameters()
        check_decay(self.eta0, self.l2)


_BPAS_STATE = np.dtype([("C", "f8"), ("fitted", "i8")])


@compiled
def _replace_vector(block: np.ndarray, diagonal: float) -> float:
    """Remove the support vector that a multiple of the current row can replace best. Return this multiple, which the caller adds
    to the row's coefficient. ``block`` is the learner's memory (one uint8 array), which contains the row's kernel values;
    ``diagonal`` is the row's kernel value with itself.

    The multiple is bounded by the length of the contribution, which a clipped polynomial kernel (not positive definite) could
    exceed.
    """
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    best, least, multiple = 0, np.inf, 0.0
    for i in range(h["n_support"]):
        a, k = c["scale"] * v.coefficients[0, i], np.float64(v.kernel_rows[0, i])
        square = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        loss = a * a * max(square - k * k / diagonal, 0.0)
        if loss < least:
            bound = math.sqrt(square / diagonal)
            best, least, multiple = i, loss, a * min(max(k / diagonal, -bound), bound)
    remove_vector(block, best)
    return multiple


@rule(_BPAS_STATE, ranges=FITTED_RANGE)
def bpas_step(block: np.ndarray, row: CurrentRow) -> None:
    """Take one passive-aggressive step (BPA-S) for one row: add it as a support vector if it is inside the margin, in place of
    another one if the budget is full. ``block`` is the learner's memory (one uint8 array), which contains the row's features and
    is changed in place; ``row`` has its target, its weight and its kernel value with itself.
    """
    v, s = views(block), get_rule_state(block, _BPAS_STATE)
    h = v.header[0]
    loss = 1.0 - row.target * v.scores[0]
    if loss > 0.0 and row.self_kernel >= LEAST_SELF_KERNEL:
        coefficient = row.target * min(s["C"] * row.weight, loss / row.self_kernel)
        if h["n_support"] == h["budget"]:
            coefficient = min(max(coefficient + _replace_vector(block, row.self_kernel), -MAX_COEFFICIENT), MAX_COEFFICIENT)
        add_support_vector(block, row, coefficient)


@learner
class BPAS(ReferenceClassifier, MergeableExpansion):
    """Budget passive-aggressive learning, the simple variant (BPA-S).

    When the budget is full, the support vector that the new one represents best is removed, and projected onto the new one.

    References
    ----------
    Wang, Z., Vucetic, S. (2010). Online passive-aggressive algorithms on a budget. AISTATS, BPA-S. A row takes O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import BPAS

    >>> model = preprocessing.StandardScaler() | BPAS(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.86
    """

    C: float = parameter(default=1.0, above=0.0, high=1e15)
    """The maximum step of a row, which is multiplied by the weight of the row."""

    _rule = bpas_step
