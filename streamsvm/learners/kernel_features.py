"""Reference algorithms: online gradient descent on explicit kernel features, random Fourier (FOGD) or Nystroem (NOGD)."""

from __future__ import annotations

import math
from dataclasses import field
from typing import Any, NoReturn

import numpy as np

from streamsvm.core.checks import KernelName, check_number, parameter
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FOURIER, LARGEST_GAMMA, LEAST_SELF_KERNEL, compute_self_kernel
from streamsvm.core.memory.slots import append_vector, compute_slot_kernels, next_random
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import get_common_state
from streamsvm.core.steps.rule import get_rule_state, rule
from streamsvm.core.steps.step import CurrentRow
from streamsvm.learners.budgeted_classifier import ReferenceClassifier, add_clipped
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

_FOGD_STATE = np.dtype([("drawn", "i8"), ("eta0", "f8")])

_TO_UNIT = 2.0**-53  # from 53 random bits to [0, 1)


@compiled
def _draw_frequencies(block: np.ndarray) -> None:
    """Draw random Fourier frequencies, standard normal numbers, for the feature columns that are new since the last call, and
    store them in ``block``, the learner's memory (one uint8 array). A frequency depends only on the seed, the column and its own
    index.
    """
    v, s, seed = views(block), get_rule_state(block, _FOGD_STATE), get_common_state(block)["random"]
    h = v.header[0]
    for column in range(s["drawn"], h["used"]):
        for i in range(h["n_support"]):
            place = np.uint64(2) * (np.uint64(column) * np.uint64(2**31) + np.uint64(i))
            first = next_random(next_random(seed ^ place) + place)
            second = next_random(next_random(seed ^ (place + np.uint64(1))) + place)
            radius = math.sqrt(-2.0 * math.log((np.float64(first >> np.uint64(11)) + 1.0) * _TO_UNIT))
            value = np.float32(radius * math.cos(2.0 * math.pi * np.float64(second >> np.uint64(11)) * _TO_UNIT))
            v.vectors[column, i] = value
            v.norms[i] = np.float32(np.float64(v.norms[i]) + np.float64(value) * np.float64(value))
            h["largest_norm"] = max(h["largest_norm"], np.float64(v.norms[i]))
        v.cache[0]["valid"] = 0
        s["drawn"] += 1


@rule(_FOGD_STATE, ranges={"drawn": (0, 2**31)}, prepare=_draw_frequencies)
def fogd_step(block: np.ndarray, row: CurrentRow) -> None:
    """Take one gradient step for one row on the weights of its random Fourier features (cosines and sines), if the row is inside
    the margin. ``block`` is the learner's memory (one uint8 array), which contains these features and is changed in place;
    ``row`` has the row's target and weight.
    """
    v, s = views(block), get_rule_state(block, _FOGD_STATE)
    if row.target * v.scores[0] < 1.0:
        m = v.header[0]["n_support"]
        size = s["eta0"] * row.weight * row.target / m
        for i in range(m):
            v.coefficients[0, i] += size * np.float64(v.kernel_rows[0, i])
            v.coefficients[1, i] += size * np.float64(v.kernel_rows[1, i])


@learner
class FOGD(ReferenceClassifier):
    """Online gradient descent on random Fourier features of the Gaussian kernel.

    Parameters
    ----------
    budget
        The number of frequencies, m. Each has a cosine and a sine feature. They replace support vectors.

    References
    ----------
    Lu, J., Hoi, S., Wang, J., Zhao, P., Liu, Z. (2016). Large scale online kernel learning. JMLR 17, algorithm 2, on the
    features of Rahimi, A., Recht, B. (2007), Random features for large-scale kernel machines. A row takes O(m d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import FOGD

    >>> model = preprocessing.StandardScaler() | FOGD(budget=100, gamma=1.0, seed=0)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.88
    """

    kernel: KernelName = field(default="rbf", init=False)
    degree: int = field(default=3, init=False)
    coef0: float = field(default=0.0, init=False)
    eta0: float = parameter(default=1.0, above=0.0, high=1e15)
    seed: int | None = None

    _rule = fogd_step
    _changeable = ReferenceClassifier._changeable - {"budget"}

    def __post_init__(self) -> None:
        super().__post_init__()
        header, views = self._store.views.header, self._store.views
        header["n_support"] = header["next_stamp"] = self.budget
        views.stamps[: self.budget] = np.arange(self.budget)

    @property
    def _kernel_kind(self) -> int:
        """The integer code that tells compiled code that this model has random Fourier features instead of a kernel."""
        return FOURIER

    def start_from(self, *_: Any, **__: Any) -> NoReturn:
        """Raise a ValueError: this model has random Fourier frequencies, so it cannot start from the support vectors of another
        model.
        """
        raise ValueError("FOGD has random frequencies: it cannot start from support vectors")

    def set_coefficients(self, *_: Any, **__: Any) -> NoReturn:
        """Raise a ValueError: the coefficients of this model belong to random Fourier frequencies, and cannot be set to those of
        support vectors.
        """
        raise ValueError("FOGD has coefficients of random frequencies: they cannot be set to those of support vectors")

    @property
    def coefficients(self) -> np.ndarray:
        """The weights of the m cosine features (row 0) and of the m sine features (row 1), float64 [2, m]."""
        return self._store.coefficients.copy()


_NOGD_STATE = np.dtype([("rank", "i8"), ("eta0", "f8"), ("gamma", "f8")])

_MIN_EIGENVALUE_RATIO = 1e-6  # smaller eigenvalues, relative to the largest one, are dropped


@compiled
def _invert_gram(block: np.ndarray) -> None:
    """Compute the pseudo-inverse of the Gram matrix of the landmarks (support vectors that no longer change), and store it in
    ``block``, the learner's memory (one uint8 array). This is needed once all landmarks have been chosen, and again when the
    estimate of gamma has changed.
    """
    v, s = views(block), get_rule_state(block, _NOGD_STATE)
    h = v.header[0]
    n = h["n_support"]
    K = np.empty((n, n))
    for i in range(n):
        compute_slot_kernels(block, i)
        for j in range(n):
            K[i, j] = v.kernel_rows[2, j]
        K[i, i] = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
    values, vectors = np.linalg.eigh(0.5 * (K + K.T))
    G = np.zeros((n, n))
    for k in range(n - min(s["rank"], n), n):
        if values[k] > max(_MIN_EIGENVALUE_RATIO * values[n - 1], LEAST_SELF_KERNEL):
            for i in range(n):
                for j in range(n):
                    G[i, j] += vectors[i, k] * vectors[j, k] / values[k]
    v.gram[:n, :n] = G
    s["gamma"] = h["gamma"]


@compiled
def _forget_inverse(block: np.ndarray) -> None:
    """Mark the inverse of the Gram matrix in ``block``, the learner's memory (one uint8 array), as outdated. The next learning
    step that needs it computes it again.
    """
    get_rule_state(block, _NOGD_STATE)["gamma"] = 0.0


@rule(_NOGD_STATE, on_rescale=_forget_inverse, ranges={"gamma": (0.0, LARGEST_GAMMA)})
def nogd_step(block: np.ndarray, row: CurrentRow) -> None:
    """Learn one row by NOGD. While there are fewer than ``budget`` landmarks, add it as a landmark; after that, take a gradient
    step on the landmarks' coefficients if the row is inside the margin. ``block`` is the learner's memory (one uint8 array),
    which contains the row's features and is changed in place; ``row`` has its target and weight.

    Let G = M'M be the inverse of the landmarks' Gram matrix, of the chosen rank, and z = M k(x) the features of x. Then the
    linear step w += eta y z is a += eta y G k(x) for the coefficients a = M'w of the landmarks.
    """
    v, s = views(block), get_rule_state(block, _NOGD_STATE)
    h = v.header[0]
    size = s["eta0"] * row.weight * row.target if row.target * v.scores[0] < 1.0 else 0.0
    n = h["n_support"]
    if n < h["budget"]:
        if row.self_kernel >= LEAST_SELF_KERNEL:
            add_clipped(block, append_vector(block, v.rows[0], row.norm, row.weight), size)
    elif size != 0.0:
        if s["gamma"] != h["gamma"]:
            _invert_gram(block)
        for i in range(n):
            total = 0.0
            for j in range(n):
                total += v.gram[i, j] * np.float64(v.kernel_rows[0, j])
            add_clipped(block, i, size * total)


@learner
class NOGD(ReferenceClassifier, MergeableExpansion):
    """Online gradient descent on Nystroem features.

    The first rows become landmarks, and the model stays in their span. If ``gamma="scale"`` changes after the landmarks are
    complete, each row inside the margin recomputes the features, in O(B^3). The coefficients of the landmarks do not change.

    Parameters
    ----------
    budget
        The number of landmarks.

    References
    ----------
    Lu, J., Hoi, S., Wang, J., Zhao, P., Liu, Z. (2016). Large scale online kernel learning. JMLR 17, algorithm 3. A row inside
    the margin takes O(B^2), and the inverse a memory of B^2 numbers.

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

    _rule = nogd_step
    _changeable = ReferenceClassifier._changeable - {"budget"}
    _needs_gram = True

    def _make_rule_state(self) -> dict[str, Any]:
        """Return the initial state of NOGD in the model's memory, as a dict of field name to value: the step size, the rank of
        the Nystroem features, and 0 for the gamma of an inverse that is not computed yet. Raise a ValueError if ``rank`` is not
        from 1 to ``budget``.
        """
        if self.rank is not None:
            check_number("rank", self.rank, 1, inclusive=True, high=self.budget, integer=True)
        rank = max(self.budget // 5, 1) if self.rank is None else self.rank
        return {"eta0": self.eta0, "rank": rank, "gamma": 0.0}
