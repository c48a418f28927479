"""Budgeted stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from streamsvm._options import LearningRate
from streamsvm.budget import Removal, Strategy
from streamsvm.checks import check_decay, parameter
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.classifier import BudgetedClassifier
from streamsvm.learners.compiled.iterates import ONE_CLASS, common
from streamsvm.learners.compiled.rule import FITTED, rule, state_of
from streamsvm.learners.compiled.step import Row, add_support_vector, violation
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion
from streamsvm.learners.regressor import OnlineRegressor
from streamsvm.memory.support_vectors import views

__all__ = ["SCHEDULES", "BSGDClassifier", "BSGDRegressor", "Descent"]

PEGASOS, CONSTANT, FLOOR, CAPPED = 0, 1, 2, 3
#: Learning rates by name.
SCHEDULES = {"pegasos": PEGASOS, "constant": CONSTANT, "floor": FLOOR, "capped": CAPPED}

STATE = np.dtype([("schedule", "i8"), ("fit_intercept", "i8"), ("l2", "f8"), ("eta0", "f8"), ("fitted", "i8")])


@rule(STATE, learned=FITTED)
def step(block: np.ndarray, row: Row) -> None:
    """One step down the regularised loss (Wang, Crammer and Vucetic 2012, algorithm 1)."""
    v, c, s = views(block), common(block), state_of(block, STATE)
    live = v.header[0]["live"]
    rising, falling, missing = violation(block, row.target)
    eta = 1.0 / (s["l2"] * c["t"])
    if s["schedule"] == CONSTANT:
        eta = s["eta0"]
    elif s["schedule"] == FLOOR:
        eta = max(eta, s["eta0"])
    elif s["schedule"] == CAPPED:
        eta = min(eta, s["eta0"])
    shrink = 1.0 - s["l2"] * eta
    if shrink > 0.0:  # it is 0 in Pegasos' first step, when there is nothing to shrink
        c["scale"] *= shrink
    if c["loss"] == ONE_CLASS:  # the intercept is minus the threshold: driven up, not regularised
        v.biases[0] -= eta * s["l2"]
    elif shrink > 0.0 and s["fit_intercept"]:  # an intercept that is not fitted, as after distillation, stays
        for k in range(0, live, 2):
            v.biases[k] *= shrink
    if missing != 0.0:
        size = eta * row.weight if missing > 0.0 else -eta * row.weight
        if falling >= 0:  # two outputs move, so that for two classes each moves by half
            size *= 0.5
        if row.self_kernel > 0.0:
            add_support_vector(block, row, size, rising, falling)
        if s["fit_intercept"]:
            v.biases[2 * rising] += size
            if falling >= 0:
                v.biases[2 * falling] -= size


class Descent(BudgetedEstimator):
    """A model that learns by steps down the gradient."""

    _rule = step

    l2: float
    eta0: float = 1.0
    fit_intercept = False

    @property
    def learning_rate(self) -> LearningRate:
        """The schedule of the steps."""
        return "pegasos"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.learning_rate in ("constant", "floor"):
            check_decay(self.eta0, self.l2)

    def _rule_state(self) -> dict[str, Any]:
        return {"schedule": SCHEDULES[self.learning_rate], "fit_intercept": self.fit_intercept, "l2": self.l2, "eta0": self.eta0}


@learner
class BSGDClassifier(BudgetedClassifier, Descent, MergeableExpansion):
    """A kernel support vector machine that learns row by row within a budget of support vectors.

    Stochastic gradient descent on the primal of the SVM with hinge loss. A row inside the margin becomes a support vector; when
    there is one too many, two are merged into one. Memory is allocated once and never grows.

    Parameters
    ----------
    budget
        The most support vectors, B.
    kernel
        ``"rbf"``: exp(-gamma |x - s|^2); ``"linear"``: x.s; ``"poly"``: (gamma x.s + coef0)^degree.
    gamma
        Kernel parameter for rows as the kernel takes them, a number above 0, or ``"scale"``: one over the sum of the features'
        variances (scikit-learn's "scale", for features of equal mean and variance). With ``scaling="auto"`` that is one over the
        number of features; without, it is found from the first 500 rows, updated with each of them and fixed from then on.
    l2
        The papers' lambda, 1 / (n C) for n rows and the C of other SVMs. Over 10,000 rows, all values from 1e-3 down to 1e-7 (C
        from .1 to 1000) are within .7 points of the best in the mean of 17 streams; that of 1e-2 is so smooth that it loses 5.
    maintenance
        What keeps the model within its budget: `Merge`, `Removal` or `Projection`. None: ``Merge("lookup-wd")`` for the Gaussian
        kernel, ``Projection()`` for the others, which cannot merge.
    learning_rate
        The step eta at row t: ``"capped"``: 1 / (l2 t), eta0 at most, which is eta0 for the first 1 / (l2 eta0) rows;
        ``"constant"``: eta0, which keeps following a stream that drifts; ``"pegasos"``: 1 / (l2 t), the paper's, whose first
        steps are so long that one pass leaves the result to chance where l2 is small; ``"floor"``: the larger of the two.
    eta0
        See ``learning_rate``.
    averaging
        Rows that the average of the iterates remembers; 0: no average. The last iterate jumps about, most of all for a small
        ``l2``; its average does not, but lags on a drifting stream. Predictions follow the one of the two that has made fewer
        errors over the last 1,000 rows or so.
    class_weight
        What the weights of rows are multiplied by: a mapping of label to weight, 1 for labels that are not in it; or
        ``"balanced"``: n / (k n_c) for a row of class c, as in scikit-learn, where k classes and n rows have come so far, and n_c
        of class c (each and one more, so that the first rows weigh about 1), at most 100. None: all classes weigh the same.
    fit_intercept
        Whether a constant is added to the kernel expansion (regularised like it).
    degree, coef0
        Of the polynomial kernel.
    scaling
        ``"auto"``: no scaler need stand before the model. The kernel takes rows in standard deviations from the location of each
        feature, bounded to 8 of these. Both follow the last 10,000 rows or so, whatever absurd values are among them; when they
        have moved by some percent, all support vectors are brought to the new scale, so that a row of yesterday is compared by
        the scale of today. A feature counts from the row on in which it varies. None: the kernel takes rows as they are.
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
    scale_in_use : ScaleInUse or None
        The location and spread of each feature; ``scale_in_use.undo(support_vectors)`` has the units of the rows.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    Notes
    -----
    A row costs O(B d) for d features (O(B z) for sparse rows with z values, and O(d) for the scale), a merge as much again plus B
    table look-ups. A scale that comes into use costs O(B d). The location of a feature whose mean is within two deviations of 0
    is 0 for the Gaussian kernel, which only looks at differences of rows: sparse rows stay sparse.

    The decision value is taken before the coefficients shrink, as in Pegasos; the first step's factor 1 - 1/t = 0 meets an empty
    model. The average is exponential with a polynomial start. Its coefficients live on the same support vectors, and a merge
    projects both on the new one.

    References
    ----------
    [^1]: Wang, Z., Crammer, K., Vucetic, S. (2012). Breaking the curse of kernelization: budgeted stochastic gradient descent for
        large-scale SVM training. JMLR 13.
    [^2]: Glasmachers, T., Qaadan, S. (2018). Speeding up budgeted stochastic gradient descent SVM training with precomputed
        golden section search. Errata: see ``streamsvm.budget.merge_table``.
    [^3]: Shamir, O., Zhang, T. (2013). Stochastic gradient descent for non-smooth optimization: convergence results and optimal
        averaging schemes. ICML.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm import BSGDClassifier

    >>> model = preprocessing.StandardScaler() | BSGDClassifier(budget=100)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 88.68%
    """

    l2: float = parameter(default=1e-4, least=1e-15, high=1e9)
    maintenance: Strategy | None = None
    learning_rate: LearningRate = parameter(default="capped", choices=SCHEDULES)
    eta0: float = parameter(default=1.0, above=0.0, high=1e15)
    averaging: int = 2000
    fit_intercept: bool = parameter(default=False, boolean=True)
    max_classes: int = 10
    seed: int | None = None

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "fit_intercept": True}
        yield {"budget": 20, "maintenance": Removal("random"), "learning_rate": "floor"}
        yield {"budget": 20, "scaling": None}


@learner
class BSGDRegressor(OnlineRegressor, Descent, MergeableExpansion):
    """A kernel support vector regression that learns row by row within a budget of support vectors.

    Stochastic gradient descent on the epsilon-insensitive loss, otherwise as `BSGDClassifier`. Targets should be about 0 and
    about 1 in size: wrap the model in ``streamsvm.preprocessing.BoundedTargetScaler``.

    Parameters
    ----------
    budget, kernel, gamma, l2, maintenance, learning_rate, eta0, fit_intercept, degree, coef0
        As in `BSGDClassifier`, but the learning rate is "capped": Pegasos' first steps of 1 / l2 would predict numbers as large.
    scaling, max_features, overflow, seed
        As in `BSGDClassifier`.
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
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import BSGDRegressor
    >>> from streamsvm.preprocessing import BoundedScaler, BoundedTargetScaler

    >>> model = BoundedScaler() | BoundedTargetScaler(BSGDRegressor(budget=100))
    >>> evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())
    MAE: 0.298312
    """

    epsilon: float = parameter(default=0.1, least=0.0, high=1e15)
    l2: float = parameter(default=1e-4, least=1e-15, high=1e9)
    maintenance: Strategy | None = None
    learning_rate: LearningRate = parameter(default="capped", choices=SCHEDULES)
    eta0: float = parameter(default=0.1, above=0.0, high=1e15)
    averaging: int = 2000
    fit_intercept: bool = parameter(default=True, boolean=True)
    seed: int | None = None

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "kernel": "linear", "fit_intercept": False, "learning_rate": "floor", "eta0": 0.1}
