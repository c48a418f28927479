"""Budgeted stochastic gradient descent."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from streamsvm.budget import Maintenance, Merge, Projection, Removal
from streamsvm.features import OVERFLOW, FeatureSpace
from streamsvm.kernels import KERNELS, RBF
from streamsvm.learners import _bsgd
from streamsvm.learners.base import BudgetedClassifier, check_number, check_one_of
from streamsvm.store import SupportVectorStore

__all__ = ["BSGDClassifier"]

_SCHEDULES = {"pegasos": _bsgd.PEGASOS, "constant": _bsgd.CONSTANT, "floor": _bsgd.FLOOR}


class BSGDClassifier(BudgetedClassifier):
    """A kernel support vector machine that learns row by row within a budget of support vectors.

    Stochastic gradient descent on the primal of the SVM with hinge loss. A row inside the margin becomes a support vector; when
    there is one too many, two are merged into one. Memory is allocated once and never grows.

    Parameters
    ----------
    budget
        Support vectors that are kept, B.
    kernel
        ``"rbf"``: exp(-gamma |x - s|^2); ``"linear"``: x.s; ``"poly"``: (gamma x.s + coef0)^degree.
    gamma
        Kernel parameter, a number above 0, or ``"scale"``: one over the sum of the features' variances over the first 500 rows
        (scikit-learn's "scale", for features of equal mean and variance), updated with each of those rows and fixed from then on.
    l2
        The papers' lambda, 1 / (n C) for n rows and the C of other SVMs.
    maintenance
        What keeps the model within its budget: `Merge`, `Removal` or `Projection`. None: ``Merge("lookup-wd")`` for the Gaussian
        kernel, ``Projection()`` for the others, which cannot merge.
    learning_rate
        The step eta at row t: ``"pegasos"``: 1 / (l2 t), for a stream that does not change; ``"constant"``: eta0;
        ``"floor"``: the larger of the two, which keeps following a stream that drifts.
    eta0
        See ``learning_rate``.
    averaging
        Rows that the average of the iterates remembers; 0: no average. The last iterate jumps about, most of all for a small
        ``l2``; its average does not, but lags on a drifting stream. Predictions follow the one of the two that has made fewer
        errors over the last 1,000 rows or so.
    fit_intercept
        Whether a constant is added to the kernel expansion (regularised like it).
    degree, coef0
        Of the polynomial kernel.
    max_features
        Feature names that there is room for.
    overflow
        What happens to further names: ``"raise"``, ``"hash"`` them into the columns there are, or ``"ignore"`` them.
    seed
        Of the random choices (of ``Removal("random")``; nothing else here is random).

    Attributes
    ----------
    support_vectors : float32 [n_support, features seen]
    coefficients : float64 [1, n_support]
    n_support, n_merges, n_learned, nbytes : int
    effective_gamma, intercept : float

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    Notes
    -----
    A row costs O(B d) for d features (O(B z) for sparse rows with z values), a merge as much again plus B table look-ups.

    The decision value is taken before the coefficients shrink, as in Pegasos; the first step's factor 1 - 1/t = 0 meets an empty
    model. The average is exponential with a polynomial start. Its coefficients live on the same support vectors, and a merge
    projects both on the new one.

    References
    ----------
    [^1]: Wang, Z., Crammer, K., Vucetic, S. (2012). Breaking the curse of kernelization: budgeted stochastic gradient descent for
        large-scale SVM training. JMLR 13.
    [^2]: Glasmachers, T., Qaadan, S. (2018). Speeding up budgeted stochastic gradient descent SVM training with precomputed
        golden section search. Errata: see `streamsvm.budget.table`.
    [^3]: Shamir, O., Zhang, T. (2013). Stochastic gradient descent for non-smooth optimization: convergence results and optimal
        averaging schemes. ICML.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm import BSGDClassifier

    >>> model = preprocessing.StandardScaler() | BSGDClassifier(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 88.04%
    """

    _rule: ClassVar[ModuleType] = _bsgd

    def __init__(
        self,
        budget: int = 100,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        l2: float = 1e-4,
        maintenance: Maintenance | None = None,
        learning_rate: str = "pegasos",
        eta0: float = 1.0,
        averaging: int = 2000,
        fit_intercept: bool = False,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
        seed: int | None = None,
    ) -> None:
        self.budget = budget
        self.kernel = kernel
        self.gamma = gamma
        self.l2 = l2
        self.maintenance = maintenance
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.averaging = averaging
        self.fit_intercept = fit_intercept
        self.degree = degree
        self.coef0 = coef0
        self.max_features = max_features
        self.overflow = overflow
        self.seed = seed
        self._check_parameters()
        strategy = maintenance or (Merge() if kernel == "rbf" else Projection())
        store = SupportVectorStore(budget, max_features, outputs=2, gram=isinstance(strategy, Projection))
        header = store.views.header
        header["kernel"], header["degree"], header["coef0"] = KERNELS[kernel], degree, coef0
        header["gamma"] = 1.0 if gamma == "scale" else gamma
        self._allocate(store, FeatureSpace(max_features, overflow))
        state = self._state
        state["maintenance"], state["schedule"] = strategy.code, _SCHEDULES[learning_rate]
        state["l2"], state["eta0"], state["horizon"] = l2, eta0, averaging
        state["intercept"], state["gamma_rows"] = fit_intercept, 0 if gamma == "scale" else -1
        state["scale"] = state["average_v"] = 1.0
        state["random"] = secrets.randbits(64) if seed is None else int(seed) % 2**64

    def _check_parameters(self) -> None:
        check_one_of("kernel", self.kernel, KERNELS)
        if self.gamma != "scale":
            if isinstance(self.gamma, str):
                raise ValueError(f"gamma must be 'scale' or a number above 0, not {self.gamma!r}")
            check_number("gamma", self.gamma, 0.0, high=1e15)
        check_number("l2", self.l2, 1e-15, inclusive=True, high=1e9)
        check_one_of("learning_rate", self.learning_rate, _SCHEDULES)
        check_number("eta0", self.eta0, 0.0, high=1e15)
        if self.learning_rate != "pegasos" and self.l2 * self.eta0 >= 1.0:
            raise ValueError(f"eta0 * l2 must be below 1, or a step forgets everything: {self.eta0!r} * {self.l2!r}")
        check_number("averaging", self.averaging, 0, inclusive=True, high=2**53, integer=True)
        check_number("degree", self.degree, 1, inclusive=True, high=100, integer=True)
        if not isinstance(self.fit_intercept, bool | np.bool_):
            raise ValueError(f"fit_intercept must be True or False, not {self.fit_intercept!r}")
        check_number("coef0", self.coef0, -1e6, high=1e6)
        if self.seed is not None and (isinstance(self.seed, bool) or not isinstance(self.seed, int | np.integer)):
            raise ValueError(f"seed must be an integer or None, not {self.seed!r}")
        check_one_of("overflow", self.overflow, OVERFLOW)
        if not isinstance(self.maintenance, Merge | Removal | Projection | None):
            raise ValueError(
                f"maintenance must be a Merge, Removal or Projection (of streamsvm) or None, not {self.maintenance!r}"
            )
        if isinstance(self.maintenance, Merge) and KERNELS[self.kernel] != RBF:
            raise ValueError(f"Merge needs kernel='rbf'; with kernel={self.kernel!r} use Projection() or Removal()")

    @property
    def _state(self) -> np.ndarray:
        return self._block[_bsgd.STATE_BEGIN : _bsgd.STATE_END].view(_bsgd.STATE)

    def _check_state(self, state: np.void, fresh: np.void) -> None:
        for field in ("maintenance", "schedule", "intercept", "l2", "eta0", "horizon"):
            if state[field] != fresh[field]:
                raise ValueError(f"the model was kept with {field} {state[field]}, its parameters ask for {fresh[field]}")
        gamma_given = fresh["gamma_rows"] == -1
        ranges = {
            "t": (0, 2**62),
            "n_merges": (0, 2**62),
            "gamma_rows": (-1, -1) if gamma_given else (0, _bsgd.GAMMA_ROWS),
            "deviation": (0.0, 1e100),
            "scale": (1e-10, 1.0),
            "average_v": (1e-10, 1.0),
            "average_u": (0.0, 1.0),
            "bias": (-1e100, 1e100),
            "error": (0.0, 1.0),
            "slope": (-50.0, 50.0),
            "curvature": (0.0, 100.0),
        }
        for field, (low, high) in ranges.items():
            if not np.all((state[field] >= low) & (state[field] <= high)):
                raise ValueError(f"the model was kept with {field} {state[field]}, which no learning leads to")
        if gamma_given and self.effective_gamma != self.gamma:
            raise ValueError(f"the model was kept with gamma {self.effective_gamma}, its parameters ask for {self.gamma}")

    @property
    def _mutable_attributes(self) -> set[str]:
        return set()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "fit_intercept": True}
        yield {"budget": 20, "maintenance": Removal("random"), "learning_rate": "floor"}

    @property
    def coefficients(self) -> np.ndarray:
        """float64 [1, n_support]: of the output that predictions follow."""
        s, (u, v) = self._state[0], self._store.coefficients
        return (s["average_v"] * v + s["average_u"] * u if self.averaged else s["scale"] * u)[None, :]

    @property
    def averaged(self) -> bool:
        """Whether predictions follow the average of the iterates now, or the last one."""
        s = self._state[0]
        return bool(self.averaging > 0 and s["error"][1] <= s["error"][0])

    @property
    def intercept(self) -> float:
        """The constant of the output that predictions follow; 0 without ``fit_intercept``."""
        return float(self._state[0]["bias"][int(self.averaged)])

    @property
    def effective_gamma(self) -> float:
        """The gamma in use: the one given, or what ``"scale"`` has found."""
        return float(self._store.views.header[0]["gamma"])

    @property
    def n_merges(self) -> int:
        """Merges so far."""
        return int(self._state[0]["n_merges"])

    @property
    def n_learned(self) -> int:
        """Rows learned so far (those of weight 0 do not count)."""
        return int(self._state[0]["t"])
