"""Nystroem online gradient descent."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.checks import check_number, parameter
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LARGEST_GAMMA, LEAST_SELF_KERNEL, self_kernel
from streamsvm.core.memory.slots import append, kernel_row_of
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.rule import rule, state_of
from streamsvm.core.steps.step import Row
from streamsvm.learners.baseline import Baseline, add_bounded
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

STATE = np.dtype([("rank", "i8"), ("eta0", "f8"), ("gamma", "f8")])

_LEAST_EIGENVALUE = 1e-6  # over the largest


@compiled
def _invert_gram(block: np.ndarray) -> None:
    # Once the landmarks are there, and again while gamma="scale" is finding gamma.
    v, s = views(block), state_of(block, STATE)
    h = v.header[0]
    n = h["n_support"]
    K = np.empty((n, n))
    for i in range(n):
        kernel_row_of(block, i)
        for j in range(n):
            K[i, j] = v.kernel_rows[2, j]
        K[i, i] = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
    values, vectors = np.linalg.eigh(0.5 * (K + K.T))
    G = np.zeros((n, n))
    for k in range(n - min(s["rank"], n), n):
        if values[k] > max(_LEAST_EIGENVALUE * values[n - 1], LEAST_SELF_KERNEL):
            for i in range(n):
                for j in range(n):
                    G[i, j] += vectors[i, k] * vectors[j, k] / values[k]
    v.gram[:n, :n] = G
    s["gamma"] = h["gamma"]


@compiled
def _forget_inverse(block: np.ndarray) -> None:
    state_of(block, STATE)["gamma"] = 0.0


@rule(STATE, rescaled=_forget_inverse, learned={"gamma": (0.0, LARGEST_GAMMA)})
def step(block: np.ndarray, row: Row) -> None:
    """A landmark while there is room; then a gradient step inside the span of the landmarks.

    With z = M k(x), M'M = G the inverse of the landmarks' Gram matrix of the given rank, the linear step w += eta y z is
    a += eta y G k(x) for the coefficients a = M'w of the landmarks.
    """
    v, s = views(block), state_of(block, STATE)
    h = v.header[0]
    size = s["eta0"] * row.weight * row.target if row.target * v.scores[0] < 1.0 else 0.0
    n = h["n_support"]
    if n < h["budget"]:
        if row.self_kernel >= LEAST_SELF_KERNEL:
            add_bounded(block, append(block, v.rows[0], row.norm, row.weight), size)
    elif size != 0.0:
        if s["gamma"] != h["gamma"]:
            _invert_gram(block)
        for i in range(n):
            total = 0.0
            for j in range(n):
                total += v.gram[i, j] * np.float64(v.kernel_rows[0, j])
            add_bounded(block, i, size * total)


@learner
class NOGD(Baseline, MergeableExpansion):
    """Online gradient descent on Nystroem features.

    The first rows become landmarks, and the model stays in their span. If ``gamma="scale"`` changes after the landmarks are
    complete, each row inside the margin recomputes the features, in O(B^3). The coefficients of the landmarks stay, and are used
    with the new kernel.

    Parameters
    ----------
    budget
        The number of landmarks.

    References
    ----------
    Lu, J., Hoi, S., Wang, J., Zhao, P., Liu, Z. (2016). Large scale online kernel learning. JMLR 17, algorithm 3. A row inside
    the margin costs O(B^2), and the inverse takes a memory of B^2 numbers.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import NOGD

    >>> model = preprocessing.StandardScaler() | NOGD(budget=100, gamma=1.0)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.89
    """

    eta0: float = parameter(default=0.1, above=0.0, high=1e15)
    rank: int | None = None
    """The number of dimensions of the features, at most ``budget``. None: a fifth of ``budget``."""

    _rule = step
    _needs_gram = True

    def _rule_state(self) -> dict[str, Any]:
        if self.rank is not None:
            check_number("rank", self.rank, 1, inclusive=True, high=self.budget, integer=True)
        rank = max(self.budget // 5, 1) if self.rank is None else self.rank
        return {"eta0": self.eta0, "rank": rank, "gamma": 0.0}
