"""Budgeted stochastic gradient descent."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamsvm.core.budget import Removal, Strategy
from streamsvm.core.checks import LearningRate, check_decay, parameter
from streamsvm.core.steps.descent import CAPPED, CONSTANT, FLOOR, PEGASOS, step
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.classifier import BudgetedClassifier
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion
from streamsvm.learners.regressor import OnlineRegressor

#: Learning rates by name.
SCHEDULES = {"pegasos": PEGASOS, "constant": CONSTANT, "floor": FLOOR, "capped": CAPPED}


class Descent(BudgetedEstimator):
    """A model that learns by steps down the gradient."""

    _rule = step

    l2: float
    eta0: float = 1.0
    fit_intercept = False

    @property
    def learning_rate(self) -> LearningRate:
        """The schedule of the step size; `BSGDClassifier` describes the choices."""
        return "pegasos"

    def _check_parameters(self) -> None:
        super()._check_parameters()
        if self.learning_rate in ("constant", "floor"):
            check_decay(self.eta0, self.l2)

    def _rule_state(self) -> dict[str, Any]:
        return {"schedule": SCHEDULES[self.learning_rate], "fit_intercept": self.fit_intercept, "l2": self.l2, "eta0": self.eta0}


@learner
class BSGDClassifier(BudgetedClassifier, Descent, MergeableExpansion):
    """A kernel SVM that learns row by row by gradient descent, within a budget of support vectors.

    It minimises the hinge loss of a support vector machine by stochastic gradient descent on the primal. A row inside the
    margin becomes a support vector. When there is one support vector too many, two are merged into one. Memory is allocated
    when the model is made, and never grows.

    Parameters
    ----------
    budget
        The maximum number of support vectors, B. A larger budget can represent a more detailed boundary; memory and the
        time of a row grow with it.
    kernel
        The kernel of a row x and a support vector s: ``"rbf"`` is exp(-gamma |x - s|^2), ``"linear"`` is x.s, and ``"poly"`` is
        (gamma x.s + coef0)^degree.
    gamma
        The kernel parameter: a number above 0, or ``"scale"``. It applies to rows after scaling. The larger it is, the narrower
        a Gaussian kernel is; the linear kernel ignores it. ``"scale"`` is one over the sum of the features' variances
        (scikit-learn's "scale", for features of equal mean and variance). With ``scaling="auto"`` that is one over the number
        of features. Without scaling it is estimated from the first 500 rows, updated with each of them and fixed from then on.
    degree
        The degree of the polynomial kernel, from 1 to 100. The other kernels ignore it.
    coef0
        The constant of the polynomial kernel, at least 0. The other kernels ignore it.
    max_features
        The maximum number of feature names. Memory for all of them is allocated when the model is made.
    overflow
        What to do with a new feature name when there is no room left: ``"raise"`` a ValueError, ``"hash"`` the name into one of
        the columns in use (values that share a column are added up), or ``"ignore"`` the feature.
    scaling
        ``"auto"`` scales rows inside the model, so that you need no scaler in front of it. The kernel then sees each value as a
        number of standard deviations from the location of the feature (its mean, or 0), bounded to 8. Location and standard
        deviation follow about the last 10,000 rows, even if absurd values are among them. When they have moved by a few per
        cent, all support vectors move to the new scale too, so that yesterday's rows are compared on today's scale. A
        feature counts from the first row in which it varies. None leaves rows as they are.
    class_weight
        The factors by which the weights of rows are multiplied: a mapping of label to factor (1 for labels that are not in it),
        ``"balanced"``, or None for a factor of 1. ``"balanced"`` gives a row of class c the factor n / (k n_c), as in
        scikit-learn, but at most 100. Here k is the number of classes so far, n the number of rows so far, and n_c the number
        of rows of class c. Each class counts one row more than it has had, so that the first rows weigh about 1. Use it when a
        rare class matters as much as a frequent one.
    l2
        The strength of regularisation, above 0: the papers' lambda, which is 1 / (n C) for n rows and the C of other SVMs.
        Smaller values fit the rows more closely. Over 10,000 rows, all values from 1e-3 down to 1e-7 (C from .1 to 1000) are
        within .7 points of the best accuracy, on average over 17 streams. With 1e-2, the model is so smooth that it loses 5
        points.
    maintenance
        The strategy that keeps the model within its budget: `Merge`, `Removal`, `Projection`, or a `Strategy` of your own. None
        is ``Merge("lookup-wd")`` for the Gaussian kernel and ``Projection()`` for the others, which cannot merge.
    learning_rate
        The schedule of the step size eta at row t:

        - ``"capped"``: 1 / (l2 t), but at most eta0. It is eta0 for the first 1 / (l2 eta0) rows, and shrinks after that.
        - ``"constant"``: eta0 throughout, which keeps following a stream that drifts.
        - ``"pegasos"``: 1 / (l2 t), as in the paper. The first steps are so long that the result of one pass is left to chance
          if l2 is small.
        - ``"floor"``: 1 / (l2 t), but at least eta0.
    eta0
        The step size that ``learning_rate`` refers to, above 0. ``"pegasos"`` ignores it. For ``"constant"`` and ``"floor"``,
        ``eta0 * l2`` must be below 1.
    averaging
        The number of rows that the average of the iterates remembers; 0 turns averaging off. The last iterate jumps about, most
        of all if ``l2`` is small. The average is steadier, but lags on a stream that drifts. Predictions follow whichever of
        the two has made fewer errors over the last 1,000 rows or so.
    fit_intercept
        Whether to add a constant to the kernel expansion. It is regularised like the expansion.
    max_classes
        The maximum number of labels. Two classes share one output. With three or more labels, each class has an
        output of its own, on the same support vectors, and the loss is that of Crammer and Singer.
    seed
        Seed of the random choices, for repeatable runs. Here only ``Removal("random")`` makes any.

    Attributes
    ----------
    support_vectors : float32 [n_support, features seen]
        A copy of the support vectors, as the kernel sees them, with columns in the order of ``feature_names``.
    coefficients : float64 [outputs, n_support]
        The coefficients of the support vectors, in the iterate that predictions follow.
    intercept : float64 [outputs]
        The constant of each output; 0 without ``fit_intercept``.
    n_support, n_merges, n_learned, nbytes : int
        How many support vectors the model has now, how often it has merged two of them, how many rows it has learned, and how
        many bytes it takes.
    effective_gamma : float
        The gamma in use: the number that you gave, or the current value of ``"scale"``.
    scale_in_use : ScaleInUse or None
        The location and spread of each feature. ``scale_in_use.undo(support_vectors)`` returns the support vectors in the units
        of the rows.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    Notes
    -----
    A row costs O(B d) for d features. For sparse rows with z values that is O(B z), and O(d) for the scale. A merge costs as
    much again, plus B table look-ups. Changing the scale costs O(B d). The Gaussian kernel only looks at differences between
    rows, so if the mean of a feature is within two standard deviations of 0, its location is set to 0: sparse rows stay sparse.

    The decision value of a row is computed before the coefficients shrink, as in Pegasos. The factor of the first step, 1 - 1/t
    = 0, meets an empty model. The average is exponential with a polynomial start. Its coefficients belong to the same support
    vectors, and a merge projects both iterates onto the new one.

    References
    ----------
    [^1]: Wang, Z., Crammer, K., Vucetic, S. (2012). Breaking the curse of kernelization: budgeted stochastic gradient descent
        for large-scale SVM training. JMLR 13.
    [^2]: Glasmachers, T., Qaadan, S. (2018). Speeding up budgeted stochastic gradient descent SVM training with precomputed
        golden section search. Errata: see ``streamsvm.core.budget.merge_table``.
    [^3]: Shamir, O., Zhang, T. (2013). Stochastic gradient descent for non-smooth optimization: convergence results and optimal
        averaging schemes. ICML.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm import BSGDClassifier

    >>> model = preprocessing.StandardScaler() | BSGDClassifier(budget=100)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.89
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
    """Kernel support vector regression that learns row by row by gradient descent, within a budget.

    It minimises the epsilon-insensitive loss by stochastic gradient descent. A row whose prediction is off by more than
    ``epsilon`` becomes a support vector. When there is one support vector too many, two are merged into one. Memory is
    allocated when the model is made, and never grows.

    Targets should be about 0, and about 1 in size: wrap the model in `streamsvm.learners.preprocessing.BoundedTargetScaler`.

    Parameters
    ----------
    budget
        The maximum number of support vectors, B. A larger budget can represent a more detailed function; memory and the
        time of a row grow with it.
    kernel
        The kernel of a row x and a support vector s: ``"rbf"`` is exp(-gamma |x - s|^2), ``"linear"`` is x.s, and ``"poly"`` is
        (gamma x.s + coef0)^degree.
    gamma
        The kernel parameter: a number above 0, or ``"scale"``. It applies to rows after scaling. The larger it is, the narrower
        a Gaussian kernel is; the linear kernel ignores it. ``"scale"`` is one over the sum of the features' variances. With
        ``scaling="auto"`` that is one over the number of features. Without scaling it is estimated from the first 500 rows,
        updated with each of them and fixed from then on.
    degree
        The degree of the polynomial kernel, from 1 to 100. The other kernels ignore it.
    coef0
        The constant of the polynomial kernel, at least 0. The other kernels ignore it.
    max_features
        The maximum number of feature names. Memory for all of them is allocated when the model is made.
    overflow
        What to do with a new feature name when there is no room left: ``"raise"`` a ValueError, ``"hash"`` the name into one of
        the columns in use (values that share a column are added up), or ``"ignore"`` the feature.
    scaling
        ``"auto"`` scales rows inside the model, so that you need no scaler for features in front of it. The kernel then sees
        each value as a number of standard deviations from the location of the feature (its mean, or 0), bounded to 8. The scale
        follows about the last 10,000 rows, and the support vectors follow the scale: see `BSGDClassifier`. None leaves rows as
        they are. Targets are not scaled in either case.
    epsilon
        The largest error that costs nothing, at least 0. The model learns nothing from rows that it predicts within epsilon.
        Raise it for noisy targets and fewer support vectors.
    l2
        The strength of regularisation, above 0: the papers' lambda, which is 1 / (n C) for n rows and the C of other SVMs.
        Smaller values fit the rows more closely.
    maintenance
        The strategy that keeps the model within its budget: `Merge`, `Removal`, `Projection`, or a `Strategy` of your own. None
        is ``Merge("lookup-wd")`` for the Gaussian kernel and ``Projection()`` for the others, which cannot merge.
    learning_rate
        The schedule of the step size eta at row t:

        - ``"capped"``: 1 / (l2 t), but at most eta0. It is eta0 for the first 1 / (l2 eta0) rows, and shrinks after that.
        - ``"constant"``: eta0 throughout, which keeps following a stream that drifts.
        - ``"pegasos"``: 1 / (l2 t), as in the paper. Its first steps are about 1 / l2 long, and so are the first predictions.
        - ``"floor"``: 1 / (l2 t), but at least eta0.
    eta0
        The step size that ``learning_rate`` refers to, above 0. ``"pegasos"`` ignores it. For ``"constant"`` and ``"floor"``,
        ``eta0 * l2`` must be below 1.
    averaging
        The number of rows that the average of the iterates remembers; 0 turns averaging off. Predictions follow the average, or
        the last iterate if that has a smaller absolute error over the last 1,000 rows.
    fit_intercept
        Whether to add a constant to the kernel expansion. It is regularised like the expansion.
    seed
        Seed of the random choices, for repeatable runs. Here only ``Removal("random")`` makes any.

    Attributes
    ----------
    support_vectors, coefficients, intercept, n_support, n_merges, n_learned, nbytes, effective_gamma, scale_in_use
        As in `BSGDClassifier`.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    References
    ----------
    Wang, Z., Crammer, K., Vucetic, S. (2012), algorithm 1, with the loss of Smola, A., Schoelkopf, B. (2004), A tutorial on
    support vector regression. A row costs O(B d).

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm import BSGDRegressor
    >>> from streamsvm.learners.preprocessing import BoundedScaler, BoundedTargetScaler

    >>> model = BoundedScaler() | BoundedTargetScaler(BSGDRegressor(budget=100))
    >>> round(evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE()).get(), 1)
    0.3
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
