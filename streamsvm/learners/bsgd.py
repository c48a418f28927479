"""Budgeted stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from streamsvm.budget import Maintenance, Removal, strategy_for
from streamsvm.checks import check_number, check_one_of
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.classifier import BudgetedClassifier
from streamsvm.learners.compiled import bsgd
from streamsvm.learners.regressor import BudgetedRegressor

__all__ = ["BSGDClassifier", "BSGDRegressor", "Descent"]

_SCHEDULES = {"pegasos": bsgd.PEGASOS, "constant": bsgd.CONSTANT, "floor": bsgd.FLOOR, "capped": bsgd.CAPPED}


class Descent(BudgetedEstimator):
    """The parameters of the rule."""

    _rule: ClassVar[ModuleType] = bsgd

    def _check_descent(self, l2: float, learning_rate: str, eta0: float, fit_intercept: bool) -> None:
        self.l2 = l2
        self.learning_rate = learning_rate
        self.eta0 = eta0
        self.fit_intercept = fit_intercept
        check_number("l2", l2, 1e-15, inclusive=True, high=1e9)
        check_one_of("learning_rate", learning_rate, _SCHEDULES)
        check_number("eta0", eta0, 0.0, high=1e15)
        if learning_rate in ("constant", "floor") and l2 * eta0 >= 1.0:
            raise ValueError(f"eta0 * l2 must be below 1, or a step forgets everything: {eta0!r} * {l2!r}")
        if not isinstance(fit_intercept, bool | np.bool_):
            raise ValueError(f"fit_intercept must be True or False, not {fit_intercept!r}")

    def _set_descent(self) -> None:
        own = self._own
        own["schedule"], own["intercept"] = _SCHEDULES[self.learning_rate], self.fit_intercept
        own["l2"], own["eta0"] = self.l2, self.eta0


class BSGDClassifier(Descent, BudgetedClassifier):
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
        ``"floor"``: the larger of the two, which keeps following a stream that drifts; ``"capped"``: the smaller of the two.
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
    max_classes
        Labels that there is room for. Two classes share one output; from the third label on, each has its own (the loss is then
        that of Crammer and Singer), on the same support vectors.
    max_features
        Feature names that there is room for.
    overflow
        What happens to further names: ``"raise"``, ``"hash"`` them into the columns there are, or ``"ignore"`` them.
    seed
        Of the random choices (of ``Removal("random")``; nothing else here is random).

    Attributes
    ----------
    support_vectors : float32 [n_support, features seen]
    coefficients : float64 [outputs, n_support]
    n_support, n_merges, n_learned, nbytes : int
    intercept : float64 [outputs]
    effective_gamma : float

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
        golden section search. Errata: see `streamsvm.budget.merge_table`.
    [^3]: Shamir, O., Zhang, T. (2013). Stochastic gradient descent for non-smooth optimization: convergence results and optimal
        averaging schemes. ICML.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm import BSGDClassifier

    >>> model = preprocessing.StandardScaler() | BSGDClassifier(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 88.06%
    """

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
        max_classes: int = 10,
        max_features: int = 256,
        overflow: str = "raise",
        seed: int | None = None,
    ) -> None:
        self.maintenance = maintenance
        self.averaging = averaging
        self.max_classes = max_classes
        self.seed = seed
        self._check_descent(l2, learning_rate, eta0, fit_intercept)
        super().__init__(
            budget,
            kernel,
            gamma,
            degree,
            coef0,
            max_features,
            overflow,
            strategy=strategy_for(kernel, maintenance),
            averaging=averaging,
            seed=seed,
            max_classes=max_classes,
        )
        self._set_descent()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "fit_intercept": True}
        yield {"budget": 20, "maintenance": Removal("random"), "learning_rate": "floor"}


class BSGDRegressor(Descent, BudgetedRegressor):
    """A kernel support vector regression that learns row by row within a budget of support vectors.

    Stochastic gradient descent on the epsilon-insensitive loss, otherwise as `BSGDClassifier`. Targets should be about 0 and
    about 1 in size: wrap the model in ``river.preprocessing.TargetStandardScaler``.

    Parameters
    ----------
    budget, kernel, gamma, l2, maintenance, learning_rate, eta0, fit_intercept, degree, coef0, max_features, overflow, seed
        As in `BSGDClassifier`.
        But for the learning rate: Pegasos' first steps of 1 / l2 would lead to predictions of that size.
    epsilon
        Error that costs nothing.
    averaging
        Rows that the average of the iterates remembers; 0: no average. Predictions follow the average, or the last iterate where
        that has a smaller absolute error over the last 1,000 rows.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    References
    ----------
    Wang, Z., Crammer, K., Vucetic, S. (2012), algorithm 1, with the loss of Smola, A., Schoelkopf, B. (2004), A tutorial on
    support vector regression. O(B d) a row.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm import BSGDRegressor

    >>> model = preprocessing.StandardScaler() | preprocessing.TargetStandardScaler(BSGDRegressor(budget=100))
    >>> evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())
    MAE: 0.296166
    """

    def __init__(
        self,
        budget: int = 100,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        l2: float = 1e-4,
        epsilon: float = 0.1,
        maintenance: Maintenance | None = None,
        learning_rate: str = "capped",
        eta0: float = 0.1,
        averaging: int = 2000,
        fit_intercept: bool = True,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
        seed: int | None = None,
    ) -> None:
        self.maintenance = maintenance
        self.averaging = averaging
        self.seed = seed
        self._check_descent(l2, learning_rate, eta0, fit_intercept)
        super().__init__(
            budget,
            kernel,
            gamma,
            degree,
            coef0,
            max_features,
            overflow,
            strategy=strategy_for(kernel, maintenance),
            averaging=averaging,
            seed=seed,
            epsilon=epsilon,
        )
        self._set_descent()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "fit_intercept": False, "learning_rate": "floor", "eta0": 0.1}
