"""Reference algorithms: the Projectron and the Projectron++, kernel perceptrons that project misclassified rows."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.checks import parameter
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LARGEST_GAMMA, LEAST_SELF_KERNEL, compute_self_kernel
from streamsvm.core.memory.block import LARGEST_COEFFICIENT
from streamsvm.core.memory.slots import append_vector, compute_slot_kernels, remove_vector, scan_row
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.rule import get_rule_state, rule
from streamsvm.core.steps.step import CurrentRow, compute_scores
from streamsvm.learners.budgeted_classifier import ReferenceClassifier, add_clipped
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

STATE = np.dtype([("margin_steps", "i8"), ("eta", "f8"), ("gamma", "f8")])

# A row is always projected if its squared distance to the span of the support vectors, relative to k(x, x), is smaller than this:
# as a support vector, it would make the Gram matrix nearly singular.
_MIN_SQUARED_DISTANCE = 1e-5
_MAX_INVERSE = 1e7  # maximum diagonal of the inverse: 1 over the squared distance of a support vector to the span of the others


@compiled(fastmath=FAST)
def _project_row(block: np.ndarray, kernels: np.ndarray, diagonal: float, n: int) -> float:
    """Project a row, in the kernel's feature space, onto the span of the first ``n`` support vectors, and return the squared
    length of the projection (at most 1, because the row is normalised). ``kernels`` [n] are the row's kernel values with these
    vectors, and ``diagonal`` is that with itself. ``block``, the learner's memory, receives the projection's coefficients.

    All vectors are normalised to length 1. The array ``gram`` has K^-1 and, where K^-1 does not reach, the coefficients K^-1 k of
    the projection (last row) and 1 over the lengths of the support vectors (last column).
    """
    gram = views(block).gram
    last = gram.shape[0] - 1
    along, cosines, unit = gram[last], np.empty(n), 1.0 / math.sqrt(diagonal)
    for i in range(n):
        cosines[i] = min(max(kernels[i] * unit * gram[i, last], -1.0), 1.0)
    share = 0.0
    for i in range(n):
        total = 0.0
        for j in range(n):
            total += gram[i, j] * cosines[j]
        along[i] = total
        share += total * cosines[i]
    return share


@compiled
def _grow_store(block: np.ndarray, share: float, diagonal: float, n: int) -> bool:
    """Extend the inverse Gram matrix from ``n`` to n + 1 support vectors, by the row that was projected last. ``block`` is the
    learner's memory (one uint8 array), which contains the matrix. ``share`` is the squared length of the row's projection, and
    ``diagonal`` its kernel value with itself. Returns False, without a change, if the vectors would be nearly linearly dependent.
    """
    gram = views(block).gram
    last = gram.shape[0] - 1
    along, squared = gram[last], 1.0 - share
    if squared <= _MIN_SQUARED_DISTANCE:
        return False
    for i in range(n):
        if gram[i, i] + along[i] * along[i] / squared > _MAX_INVERSE:
            return False
    for i in range(n):
        for j in range(n):
            gram[i, j] += along[i] * along[j] / squared
    for i in range(n):
        gram[i, n] = gram[n, i] = -along[i] / squared
    gram[n, n], gram[n, last] = 1.0 / squared, 1.0 / math.sqrt(diagonal)
    return True


@compiled
def _invert_gram(block: np.ndarray) -> None:
    """Compute the inverse of the Gram matrix of the support vectors, and store it in ``block``, the learner's memory (one uint8
    array). This is needed when gamma or the feature scaling has changed.

    Support vectors that are now in the span of earlier ones are projected onto those.
    """
    v, s = views(block), get_rule_state(block, STATE)
    h = v.header[0]
    along, n = v.gram[v.gram.shape[0] - 1], 0
    while n < h["n_support"]:
        compute_slot_kernels(block, n)
        diagonal = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[n]))
        share = _project_row(block, v.kernel_rows[2], diagonal, n) if diagonal >= LEAST_SELF_KERNEL else 0.0
        if diagonal >= LEAST_SELF_KERNEL and _grow_store(block, share, diagonal, n):
            n += 1
            continue
        for i in range(n if diagonal >= LEAST_SELF_KERNEL else 0):
            factor = along[i] * math.sqrt(diagonal) * v.gram[i, -1]
            for k in range(h["n_outputs"]):
                a = v.coefficients[k, i] + factor * v.coefficients[k, n]
                v.coefficients[k, i] = min(max(a, -LARGEST_COEFFICIENT), LARGEST_COEFFICIENT)
        remove_vector(block, n)
    s["gamma"] = h["gamma"]


@compiled
def _forget_inverse(block: np.ndarray) -> None:
    """Mark the inverse of the Gram matrix in ``block``, the learner's memory (one uint8 array), as outdated. The next learning
    step that needs it computes it again.
    """
    get_rule_state(block, STATE)["gamma"] = 0.0


@rule(STATE, on_rescale=_forget_inverse, ranges={"gamma": (0.0, LARGEST_GAMMA)})
def step(block: np.ndarray, row: CurrentRow) -> None:
    """Learn one misclassified row by the Projectron: replace it by its projection onto the span of the support vectors, or add it
    as a support vector if it is far from the span. ``block`` is the learner's memory (one uint8 array), which contains the row's
    features and is changed in place; ``row`` has its target, its weight and its kernel value with itself.
    """
    v, s = views(block), get_rule_state(block, STATE)
    h = v.header[0]
    y, diagonal, f = row.target, row.self_kernel, v.scores[0]
    mistake = y * f <= 0.0
    if diagonal < LEAST_SELF_KERNEL or not (mistake or (s["margin_steps"] and y * f < 1.0)):
        return
    if s["gamma"] != h["gamma"]:  # while gamma="scale" is estimated
        _invert_gram(block)
        compute_scores(block, *scan_row(v.rows[0], h["used"], v.active[0]))
    n = h["n_support"]
    along = v.gram[v.gram.shape[0] - 1]
    share = _project_row(block, v.kernel_rows[0], diagonal, n)
    squared, distance = diagonal * share, math.sqrt(diagonal * max(1.0 - share, 0.0))
    size = 0.0
    if mistake:
        size = row.weight * y
        if n < h["budget"] and distance > s["eta"] and _grow_store(block, share, diagonal, n):
            add_clipped(block, append_vector(block, v.rows[0], row.norm, row.weight), size)
            return
    elif squared > 0.0:
        loss = 1.0 - y * f
        size = row.weight * y * min(max(2.0 * (loss - distance / s["eta"]), 0.0) / squared, loss / squared, 1.0)
    if size != 0.0:
        for i in range(n):
            add_clipped(block, i, size * along[i] * math.sqrt(diagonal) * v.gram[i, -1])


@learner
class Projectron(ReferenceClassifier, MergeableExpansion):
    """A kernel perceptron that projects misclassified rows onto its support vectors.

    A misclassified row only becomes a support vector if its distance to the span of the support vectors is above ``eta``, and the
    budget is not full. While ``gamma="scale"`` is estimated, support vectors that are in the span of older ones are projected
    onto those.

    References
    ----------
    Orabona, F., Keshet, J., Caputo, B. (2009). Bounded kernel-based online learning. JMLR 10, algorithm 2. A
    misclassified row takes O(B^2), and the inverse Gram matrix a memory of B^2 numbers.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import Projectron

    >>> model = preprocessing.StandardScaler() | Projectron(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.85
    """

    averaging: int = 0
    eta: float = parameter(default=0.1, above=0.0, high=1e15)
    """The distance in feature space (not squared) up to which a misclassified row is projected. With the Gaussian kernel,
    distances are at most 1.
    """

    _rule = step
    _needs_gram = True
    _margin_steps = False

    def _make_rule_state(self) -> dict[str, Any]:
        """Return the initial state of the Projectron in the model's memory, as a dict of field name to value: the distance
        ``eta``, and whether correctly classified rows inside the margin are learned, too.
        """
        return {"eta": self.eta, "margin_steps": self._margin_steps}


@learner
class ProjectronPP(Projectron):
    """The Projectron++: a `Projectron` that also learns correctly classified rows inside the margin, if it can project them.

    References
    ----------
    Orabona, F., Keshet, J., Caputo, B. (2009). Bounded kernel-based online learning. JMLR 10, algorithm 3.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import ProjectronPP

    >>> model = preprocessing.StandardScaler() | ProjectronPP(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.87
    """

    _margin_steps = True
