"""The exact support vector classifier and regressor, solved by conjugate SMO, and class probabilities by Platt scaling."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, Any, Self, TypeVar

import numpy as np
from scipy.special import expit
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.utils.metaestimators import _safe_split
from sklearn.utils.validation import check_is_fitted

from streamsvm.batch.csmo.dual_fit import SharedFitData
from streamsvm.batch.csmo.machine import CSMO
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor, TrainingData, has_type_and_shape
from streamsvm.core.checks import DecisionShape, parameter
from streamsvm.core.docstrings import complete_docstring
from streamsvm.core.kernels import PRECOMPUTED

if TYPE_CHECKING:
    _Method = TypeVar("_Method", bound=Callable[..., Any])

    def available_if(check: Callable[[Any], bool]) -> Callable[[_Method], _Method]: ...  # noqa: D103
else:
    from sklearn.utils.metaestimators import available_if

_FULL_VOTE_MARGIN = 0.5  # a decision value of a pair from which its soft vote is a full vote


def _has_probabilities(model: Any) -> bool:
    """Return True if the classifier ``model`` has ``probability=True``. Otherwise, raise an AttributeError, so that the model has
    no method `predict_proba`, as scikit-learn's SVC.
    """
    if not model.probability or model.probability == "deprecated":  # SVC's default, which users may pass on
        raise AttributeError("probabilities are available only with probability=True")
    return True


class _PathCSMO(CSMO):
    """The exact solvers with a parameter C; the one-class machine has none."""

    def fit_path(self, X: Any, y: Any, Cs: Sequence[float], sample_weight: Any = None) -> list[Self]:
        """Fit a copy of this estimator to the rows X for each value of C in ``Cs``, and return the fitted copies in this order.
        They equal those of separate fits, but take less time. The other arguments are those of `fit`.

        Rows, labels or targets, and weights are as in `fit`. With two classes, or in regression, the fits share the kernel values
        of up to 2,000 rows, if the cache has room for twice the Gram matrix (at most 32 MB). More rows begin with blocks, which
        share little. This estimator itself does not change. If you interrupt the fit, no models are returned.
        """
        models, shared = self._make_models(Cs), SharedFitData(is_path=True)
        for model in models:
            model._fit_machines(X, y, sample_weight, shared=shared)
        return models


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class CSMOClassifier(KernelClassifier, _PathCSMO):
    """A support vector classifier, solved exactly by conjugate SMO.

    Use it in place of scikit-learn's SVC, whose parameters and attributes it has. Above 50,000 rows, see `HierarchicalSVC`.

    The fit minimises 1/2 sum_ij y_i y_j alpha_i alpha_j k(x_i, x_j) - sum_i alpha_i over alpha, subject to
    0 <= alpha_i <= C w_i and sum_i y_i alpha_i = 0, where w_i is the weight of row i. With more than two classes, there is one
    machine for each pair of classes, and the machines vote.

    Attributes
    ----------
    dual_coef_ : float64 [classes - 1, n_support]
        Coefficients of the support vectors; a CSR array if X was sparse. With two classes, they are y_i alpha_i, where y_i = 1
        for ``classes_[1]``. With more, the layout is LIBSVM's: each support vector has its coefficients against the other
        classes, in their order, and they are positive in pairs whose first class is its own. This array, ``coef_`` and
        ``intercept_`` are computed when you read them, so changing them changes no prediction.
    intercept_ : float64 [machines]
        One intercept for two classes, otherwise one for each pair of classes, with the first class of the pair on the positive
        side.
    class_weight_ : float64 [classes]
        The weight of each class.
    n_iter_ : int64 [machines]
        Number of steps of each machine.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of range, or X, y or a weight is invalid. The message says which one. From `predict`:
        ``break_ties`` is True and ``decision_function_shape`` is ``"ovo"``.

    Notes
    -----
    A step costs O(n), plus O(n d) for each new column of the kernel matrix. The solution is checked in float64 before it is
    accepted; the steps continue if float32 was not accurate enough, if necessary in float64 only. Equal rows share one variable.
    Up to 500 rows have their whole Gram matrix in float64, if it fits into the cache, which the machines of all pairs of classes
    share. They are solved to the last digits once the steps have found which variables are at their bounds.

    In addition to X, a fit needs memory for the cache, 40 bytes for each value of X (90 for each non-zero value of a sparse
    matrix), a few hundred bytes for each row, and 1 MB for tiles; for large C, also a fifth of the cache for Newton steps. With
    precomputed kernel values, it needs the cache and 32 MB, and for a kernel function its Gram matrix.

    With more than 2,000 rows, a fit begins with blocks: all variables between their bounds, and 512 that violate optimality. A
    block is solved on its own small kernel matrix, and then the gradients of all rows are updated by matrix products. Once a
    quarter of the remaining rows are between their bounds and their columns fit into the cache, the fit continues with single
    steps, and Newton steps for up to m = 3,000 variables, O(m^3), from time to time. Rows far from the mean, measured by gamma,
    have kernel values in float64; if these are more than a twentieth, all rows have.

    Unlike SVC, this class merges equal rows, predicts both sparse and dense rows whichever it was fitted to, and warns of
    negative weights. ``"balanced"`` and ``gamma="scale"`` count rows by their weights.

    Probabilities need five more fits, each to four fifths of the rows. Each pair of classes has a sigmoid, fitted to the decision
    values of held-out rows [^4]. With more than two classes, the probabilities are those that agree best with all pairs [^5].
    `predict` does not use them: if two classes are about equally probable, it may return the slightly less probable one.

    With two classes, the threads share the computation of kernel values, and one thread makes the steps. With more classes, each
    thread fits one machine at a time, with a cache of its own.

    If you interrupt a fit (Ctrl-C), it sets the attributes to the last iterate, then raises KeyboardInterrupt. If you interrupt
    the fits for probabilities, or a fit to so few rows that all machines are solved in one call, the model does not change.

    References
    ----------
    [^1]: Torres-Barrán, A., Alaíz, C. M., Dorronsoro, J. R. (2021). Faster SVM training via conjugate SMO. Pattern Recognition
        111. Equations 17 to 23.
    [^2]: Fan, R.-E., Chen, P.-H., Lin, C.-J. (2005). Working set selection using second order information for training support
        vector machines. JMLR 6.
    [^3]: Joachims, T. (1999). Making large-scale SVM learning practical. In: Advances in kernel methods, MIT Press (the
        blocks).
    [^4]: Platt, J. (1999). Probabilistic outputs for support vector machines and comparisons to regularized likelihood methods.
        In: Advances in large margin classifiers, MIT Press.
    [^5]: Wu, T.-F., Lin, C.-J., Weng, R. C. (2004). Probability estimates for multi-class classification by pairwise coupling.
        JMLR 5.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.batch import CSMOClassifier

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> model = CSMOClassifier(C=10.0).fit(X, y)
    >>> print(f"{model.score(X, y):.2f}")
    0.99
    """

    decision_function_shape: DecisionShape = parameter(default="ovr", choices=("ovr", "ovo"))
    """The form of `decision_function` for three or more classes. ``"ovr"``: one value for each class, which is the number of
    its votes plus less than half a vote for the decision values of its pairs. ``"ovo"``: the decision value of each pair of
    classes, in the order (0, 1), (0, 2), ..., (1, 2), ...; it is positive for the first class of the pair.
    """
    break_ties: bool = False
    """How `predict` decides between classes with equally many votes: True selects the one with the largest value of
    `decision_function`, False the first one. True requires ``decision_function_shape="ovr"``.
    """
    probability: bool = False
    """Whether to fit the probabilities for `predict_proba` and `predict_log_proba`, which takes five more fits. These methods
    exist only if it is True.
    """
    random_state: Any = None
    """Seed of the folds that ``probability=True`` holds out, as in scikit-learn. Nothing else is random."""

    _uses_votes = True

    @property
    def _value_sign(self) -> float:  # type: ignore[override]
        """The factor, 1 or -1, between our decision values and scikit-learn's. It is 1 for two classes and -1 for more, because
        scikit-learn's values are then positive for the first class of a pair, and ours for the second.
        """
        return 1.0 if len(self.classes_) == 2 else -1.0

    @property
    def dual_coef_(self) -> Any:
        """The coefficients of the support vectors, float64 [classes - 1, n_support].

        They are a CSR array if X was sparse.
        """
        if len(self.classes_) == 2:
            return self._match_sparsity(self._coefficients)
        class_of_vector = np.repeat(np.arange(len(self.classes_)), self.n_support_)
        dual = np.zeros((len(self.classes_) - 1, len(class_of_vector)))
        for pair, (first, second) in zip(self._coefficients, combinations(range(len(self.classes_)), 2), strict=True):
            dual[second - 1, class_of_vector == first] = -pair[class_of_vector == first]
            dual[first, class_of_vector == second] = -pair[class_of_vector == second]
        return self._match_sparsity(dual)

    @available_if(_has_probabilities)
    def predict_proba(self, X: Any) -> np.ndarray:
        """Return the probability of each class for the rows X, float64 [n, classes], in the order of ``classes_``. Available with
        ``probability=True`` only.

        The errors are those of `predict`, and a NotFittedError if the model was fitted with ``probability=False``.
        """
        check_is_fitted(self)
        if self._sigmoids is None:
            raise NotFittedError("predict_proba is not available when fitted with probability=False: fit again")
        return compute_class_probabilities(self._compute_decisions(self._check_rows(X)), self._sigmoids, len(self.classes_))

    @available_if(_has_probabilities)
    def predict_log_proba(self, X: Any) -> np.ndarray:
        """Return the logarithms of the probabilities that `predict_proba` returns for the rows X, float64 [n, classes]."""
        return np.log(self.predict_proba(X))

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise ValueError("break_ties must be False if decision_function_shape is 'ovo': ties are between classes")
        return super().predict(X)

    def _fit_probabilities(self, training: TrainingData, interrupted: bool) -> None:
        """If ``probability`` is True, fit the sigmoids that turn decision values into probabilities, on held-out rows of the
        ``training`` data. Does nothing if ``interrupted``: the user has stopped the fit of the SVMs.
        """
        self._sigmoids: np.ndarray | None = None
        if hasattr(self, "predict_proba") and not interrupted:
            machine = clone(self).set_params(probability=False, class_weight=None)  # training.weights include class weights
            if self._kernel.kind != PRECOMPUTED:
                machine.set_params(gamma=self._kernel.gamma)
            weights = training.weights / self.class_weight_[training.labels]
            self._sigmoids = fit_sigmoids(machine, training, weights, self.random_state)

    def _assign_machines(self, training: TrainingData) -> tuple[np.ndarray, np.ndarray]:
        """Return the class index of each training row, int64 [n], and the two class indices of each binary machine (an SVM for
        one pair of classes), int64 [machines, 2].
        """
        return training.labels, np.array(list(combinations(range(len(self.classes_)), 2)))  # type: ignore[return-value]

    def _order_support(self, support: np.ndarray, training: TrainingData) -> np.ndarray:
        """Return the positions ``support`` of the support vectors among the training rows, sorted by class. Sets ``n_support_``,
        the number of support vectors of each class.
        """
        labels = training.labels[support]  # type: ignore[index]
        self.n_support_: np.ndarray = np.bincount(labels, minlength=len(self.classes_)).astype(np.int32)
        return support[np.argsort(labels, kind="stable")]

    def _count_machines(self, classes: int) -> int:
        """Return the number of binary machines (SVMs for one pair of classes each) for this number of classes."""
        return classes * (classes - 1) // 2

    def _compute_class_values(self, f: np.ndarray) -> np.ndarray:
        """Convert the decision values ``f`` [n, pairs] of all pairs of classes to one value for each class, float64 [n, classes],
        by least squares: differences of class values approximate the decision values.
        """
        # A pair's decision value estimates the difference of two class values. These are the least squares solution.
        return self._sum_pair_values(f) / len(self.classes_)

    def _sum_pair_values(self, f: np.ndarray) -> np.ndarray:
        """Return the sum of each class's pairwise decision values, float64 [n, classes]. ``f`` [n, pairs] has a column for each
        pair, which counts positively for its second class and negatively for its first.
        """
        sums = np.zeros((len(f), len(self.classes_)))
        for k, (first, second) in enumerate(combinations(range(len(self.classes_)), 2)):
            sums[:, second] += f[:, k]
            sums[:, first] -= f[:, k]
        return sums

    def _count_votes(self, is_second: np.ndarray) -> np.ndarray:
        """Return the number of votes of each class, float64 [n, classes]. ``is_second`` bool [n, pairs] is True where a pair of
        classes votes for its second class, and False where it votes for its first.
        """
        return 0.5 * (self._sum_pair_values(np.where(is_second, 1.0, -1.0)) + len(self.classes_) - 1)

    def _compute_soft_votes(self, f: np.ndarray) -> np.ndarray:
        """Return a continuous version of the votes of each class, float64 [n, classes], from pairwise decision values ``f`` [n,
        pairs]: a pair with a small decision value gives only a fraction of a vote.
        """
        # Pairs with small decision values give a fraction of a vote. A class with all votes is 1 above the next one.
        return 0.5 * len(self.classes_) * self._compute_class_values(np.clip(f / _FULL_VOTE_MARGIN, -1.0, 1.0))

    def _compute_scores(self, f: np.ndarray) -> np.ndarray:
        """Convert the decision values ``f`` [n, machines] of the binary machines (one for each pair of classes) to those of
        `decision_function`: [n] for two classes, otherwise one for each pair or for each class, as ``decision_function_shape``
        says.
        """
        if len(self.classes_) == 2:
            return f[:, 0]
        return -f if self.decision_function_shape == "ovo" else self._compute_class_scores(f)

    def _compute_class_scores(self, f: np.ndarray) -> np.ndarray:
        """Return a score for each class, float64 [n, classes], from pairwise decision values ``f`` [n, pairs]: its number of
        votes plus a term between -1/2 and 1/2 that grows with its decision values and breaks ties.
        """
        sums = self._sum_pair_values(f)
        return self._count_votes(f > 0.0) + sums / (3.0 * (np.abs(sums) + 1.0))

    def _predict_from_decisions(self, f: np.ndarray) -> np.ndarray:
        """Return the labels [n] for the decision values ``f`` [n, machines] of the binary machines (one for each pair of
        classes): with more than two classes, those with the most votes.
        """
        if len(self.classes_) == 2:
            return super()._predict_from_decisions(f)
        # As in LIBSVM, a pair with the decision value 0 votes for one class here, and for the other one in the scores.
        scores = self._compute_class_scores(f) if self.break_ties else self._count_votes(f >= 0.0)
        return self.classes_[scores.argmax(axis=1)]

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        """Raise a ValueError if the ``state`` (saved attributes) of a classifier is corrupt: its arrays do not match its number
        of ``machines``, or its counts of support vectors do not match its classes.
        """
        super()._check_saved(state, machines)
        counts, shape = state["n_support_"], (len(state["classes_"]),)
        if not has_type_and_shape(counts, np.int32, shape) or (counts < 0).any() or counts.sum() != len(state["support_"]):
            raise ValueError("the saved model is corrupt: its counts of support vectors do not match its classes")


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class CSMORegressor(KernelRegressor, _PathCSMO):
    """Support vector regression with the epsilon-insensitive loss, solved exactly by conjugate SMO.

    Use it in place of scikit-learn's SVR. Above 50,000 rows, see `HierarchicalSVR`.

    The fit minimises 1/2 sum_ij b_i b_j k(x_i, x_j) - sum_i y_i b_i + epsilon sum_i |b_i| over b, subject to |b_i| <= C w_i and
    sum_i b_i = 0, where w_i is the weight of row i. Each row has one signed variable in place of the usual two.

    Notes
    -----
    Cost, memory, threads and interrupts (Ctrl-C) are described in `CSMOClassifier`, together with the references.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import CSMORegressor

    >>> X = np.linspace(-3.0, 3.0, 200)[:, np.newaxis]
    >>> model = CSMORegressor(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """


_MAX_FOLDS = 5
_MIN_PROBABILITY = 1e-7  # of a class of a pair, as in LIBSVM
_MAX_SYSTEM_VALUES = 1_000_000  # numbers in the systems of equations that are solved at a time


def fit_sigmoids(machine: Any, training: TrainingData, weights: np.ndarray, random_state: Any) -> np.ndarray:
    """Fit Platt's sigmoid for each pair of classes, which turns decision values into probabilities, by cross-validation of the
    classifier ``machine`` on the ``training`` rows. ``weights`` [n] are the rows' weights, and ``random_state`` seeds the folds.
    Return slopes and intercepts, float64 [pairs, 2].

    Clones of ``machine`` are fitted to all folds but one, with the weights in ``training``, which include class weights. The
    sigmoids use the rows' own ``weights``. The folds are stratified by class, and random.
    """
    used_rows, labels = training.used_rows, training.labels[training.used_rows]  # type: ignore[index]
    sizes = np.bincount(labels)
    if sizes.min() < 2:
        raise ValueError("probability=True needs at least two rows of each class with a sample_weight above 0")
    f = np.empty((len(labels), len(sizes) * (len(sizes) - 1) // 2))
    folds = StratifiedKFold(min(_MAX_FOLDS, int(sizes.min())), shuffle=True, random_state=random_state)
    for train, test in folds.split(labels, labels):
        train_rows, _ = _safe_split(machine, training.X, None, used_rows[train])
        test_rows, _ = _safe_split(machine, training.X, None, used_rows[test], used_rows[train])
        model = clone(machine).fit(train_rows, labels[train], training.weights[used_rows[train]])
        f[test] = model._compute_decisions(test_rows)
    sigmoids = []
    for values, (first, second) in zip(f.T, combinations(range(len(sizes)), 2), strict=True):
        in_pair = np.flatnonzero((labels == first) | (labels == second))
        sigmoids.append(_fit_platt_sigmoid(values[in_pair], labels[in_pair] == second, weights[used_rows[in_pair]]))
    return np.array(sigmoids)


def _fit_platt_sigmoid(f: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> tuple[float, float]:
    """Return slope and intercept of Platt's sigmoid, which turns the decision values ``f`` float64 [n] of a pair of classes into
    the probability of its second class: a weighted logistic regression on smoothed labels. ``positive`` bool [n] marks rows of
    the second class.
    """
    ones, zeros = weights[positive].sum(), weights[~positive].sum()
    targets = np.where(positive, (ones + 1.0) / (ones + 2.0), 1.0 / (zeros + 2.0))
    scale = np.abs(f).max() or 1.0
    fit = LogisticRegression(C=np.inf, tol=1e-8, max_iter=1000).fit(
        np.tile(f / scale, 2)[:, np.newaxis],
        np.repeat([1, 0], len(f)),
        np.concatenate([weights * targets, weights * (1.0 - targets)]),
    )
    return float(fit.coef_[0, 0]) / scale, float(fit.intercept_[0])


def compute_class_probabilities(f: np.ndarray, sigmoids: np.ndarray, classes: int) -> np.ndarray:
    """Convert the decision values ``f`` of all pairs of classes, float64 [n, pairs], to the probability of each class, float64
    [n, classes]. ``sigmoids`` [pairs, 2] are slopes and intercepts from `fit_sigmoids`.
    """
    second = np.clip(expit(f * sigmoids[:, 0] + sigmoids[:, 1]), _MIN_PROBABILITY, 1.0 - _MIN_PROBABILITY)
    if classes == 2:
        return np.hstack([1.0 - second, second])
    size = max(_MAX_SYSTEM_VALUES // (classes + 1) ** 2, 1)
    return np.concatenate([_couple_pair_probabilities(second[start : start + size], classes) for start in range(0, len(f), size)])


def _couple_pair_probabilities(second: np.ndarray, classes: int) -> np.ndarray:
    """Return the probability of each class, float64 [n, classes], that agrees best with ``second`` [n, pairs], the probability of
    the second class of each pair (pairwise coupling).

    They minimise sum_ij (r_ji p_i - r_ij p_j)^2 subject to sum_i p_i = 1, where r_ij is the probability of class i among i and j:
    the second method of Wu, Lin and Weng (2004).
    """
    r = np.zeros((len(second), classes, classes))
    i, j = np.triu_indices(classes, 1)
    r[:, j, i], r[:, i, j] = second, 1.0 - second
    system = np.ones((len(second), classes + 1, classes + 1))  # the last unknown is the multiplier of the sum
    system[:, -1, -1] = 0.0
    system[:, :-1, :-1] = -r * r.swapaxes(1, 2)
    system[:, range(classes), range(classes)] = np.square(r).sum(axis=1)
    p = np.maximum(np.linalg.solve(system, np.eye(classes + 1)[-1])[:, :-1], 0.0)
    return p / p.sum(axis=1, keepdims=True)
