"""Support vector machines by conjugate SMO, with scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streamsvm._options import DecisionShape
from streamsvm.batch.csmo.machine import CSMO, Part
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor, Training
from streamsvm.checks import parameter

__all__ = ["CSMOClassifier", "CSMORegressor"]

_SURE = 0.5  # the decision value of a pair from which on its soft vote is a whole one


@dataclass(eq=False, repr=False, kw_only=True)
class CSMOClassifier(KernelClassifier, CSMO):
    """A support vector classifier, solved exactly by conjugate SMO.

    min over alpha of 1/2 sum_ij y_i y_j alpha_i alpha_j k(x_i, x_j) - sum_i alpha_i, where 0 <= alpha_i <= C w_i and
    sum_i y_i alpha_i = 0. More than two classes have one machine for each pair of them, which vote. It stands in for
    scikit-learn's SVC, whose parameters and attributes it has, but for ``probability``.

    Parameters
    ----------
    C
        The bound of a dual coefficient, before it is multiplied by the weights of its row and class; infinity counts as 1e10.
    kernel
        ``"rbf"``: exp(-gamma |x - s|^2); ``"linear"``: x.s; ``"poly"``: (gamma x.s + coef0)^degree; ``"sigmoid"``:
        tanh(gamma x.s + coef0). ``"precomputed"``: X is the Gram matrix [n, n], and to predict the kernel values with the rows of
        the fit, [m, n]. Or a function of m and of k rows, of any form that can be indexed, which returns their kernel values
        [m, k]; predictions ask it for those with the support vectors.
    gamma
        At least 0; ``"scale"``: one over the sum of the features' variances about their common mean, in which rows count by
        their weights; ``"auto"``: one over the number of features.
    degree, coef0
        Of the kernels above. With a coef0 below 0, and for the sigmoid, the problem may have several local minima: the fit ends
        in one of them, as LIBSVM's does.
    class_weight
        A dictionary from labels to weights, 1 for labels it does not have, or ``"balanced"``: n / (classes * rows of the class),
        where rows count by their weights.
    decision_function_shape
        Of three and more classes. ``"ovr"``: a value for each class, its votes in the pairs plus less than half a vote for their
        decision values. ``"ovo"``: the decision values of the pairs, (0, 1), (0, 2), ..., (1, 2), ..., positive for the first.
    break_ties
        Whether the class of the largest value wins where votes are equal; else the first of them does.
    random_state
        Ignored, as nothing is random: code that was written for SVC may give it.
    tol
        The gap at which the fit ends: by how much the most violating pair may violate the optimality conditions.
    cache_size
        Megabytes (2^20 bytes), at most, for columns of the Gram matrix; at least two columns. With few features only 4 megabytes
        for each of them and 16 more are used: columns that are soon computed again are not worth more memory. The machines of all
        pairs of classes use one cache in turn. A function is asked for the whole Gram matrix, once, if that takes no more in
        float64; else for columns.
    conjugate
        Whether steps follow conjugate directions; False: plain SMO.
    shrinking
        Whether rows that seem to have reached their bound leave the working set until the end.
    max_iter
        Steps of each machine, at most; -1: no limit.
    verbose
        Whether progress is shown on standard error.
    n_jobs
        Threads: None is 1, -1 one for each processor, -2 one less, and so on. Results do not depend on it.

    Attributes
    ----------
    classes_ : [classes]
    support_ : int32 [n_support]
        Numbers of the support vectors among the rows, class by class.
    support_vectors_ : float64 [n_support, features]
        An array, or CSR where X was sparse; with a function as the kernel rows of X; with a Gram matrix [0, 0].
    n_support_ : int32 [classes]
    dual_coef_ : float64 [classes - 1, n_support]
        Of two classes y_i alpha_i, where y_i = 1 for ``classes_[1]``. Of more, LIBSVM's layout: a support vector of a class has
        its coefficients against the other classes, in their order; positive in pairs whose first class is its own. A CSR array
        where X was sparse. This, ``coef_`` and ``intercept_`` are computed when they are read: a change changes no prediction.
    coef_ : float64 [machines, features]
        Of the linear kernel; a CSR array where X was sparse.
    intercept_ : float64 [machines]
        One for two classes, else one for each pair, whose first class is positive.
    class_weight_ : float64 [classes]
    n_iter_ : int64 [machines]
    fit_status_ : int
        0, or 1 where the gap is above ``tol``.
    shape_fit_ : tuple
        Of X.
    gap_ : float
        The gap of the worst machine, in float64.
    duality_gap_ : float
        The primal minus the dual objective, summed over machines. This and the next are exact to about six digits, since bounded
        variables enter with float32 kernel values.
    objective_ : float
        The dual objective, which is minimised, summed over machines.

    Raises
    ------
    ValueError
        When fitted: a parameter is out of its range, or X, y or a weight cannot be learned; the message says which. When it
        predicts: ``break_ties`` with ``decision_function_shape="ovo"``.
    TypeError
        A Gram matrix is sparse.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol``. The attributes are those of the last iterate, which is the best one: each step lowers the
        objective.
    UserWarning
        The fit takes long, and another machine would do it in about a tenth of the time so far.

    Notes
    -----
    A step costs O(n), and O(n d) for columns that are not cached; columns are float32. Before it is accepted, a solution is
    checked in float64, and steps go on from there where float32 was not exact enough. Equal rows are one variable. Features of
    two values each are compared bit by bit. Memory beside X: the cache, 24 bytes a value (of a sparse matrix 80 a value that is
    not zero), and a few hundred a row. Where kernel values are given: the cache, 32 MB for a part of them, and a function's Gram
    matrix where it is asked for the whole.

    With the Gaussian kernel, a fit of more than 3,000 dense rows begins with blocks of up to 1,024 variables, which are solved on
    their own, until most of those that violate optimality have been in one: products of blocks take a quarter of the time of
    columns, which are worth keeping only where they are used again.

    Other than SVC, it merges equal rows, predicts sparse and dense rows alike, and refuses weights below 0; ``"balanced"`` and
    ``gamma="scale"`` count rows by their weights.

    Threads share the rows of a column, of a step's two loops over the working set, of a gradient that is computed anew, and of a
    prediction. Of three and more classes they have a machine each instead, each thread with a cache of its own. One thread alone
    chooses, clips and follows directions, drops rows from the working set and moves the columns that stay, computes columns of
    sparse rows, and makes steps on fewer than 4,000 rows; with kernel values that are given it does all but restores. Where
    other programs take the processors, steps go on without the threads that are put aside.

    A fit that is interrupted (Ctrl-C) sets the attributes to the last iterate, then raises KeyboardInterrupt.

    References
    ----------
    [^1]: Torres-Barrán, A., Alaíz, C. M., Dorronsoro, J. R. (2021). Faster SVM training via conjugate SMO. Pattern
        Recognition 111. Equations 17 to 23.
    [^2]: Fan, R.-E., Chen, P.-H., Lin, C.-J. (2005). Working set selection using second order information for training support
        vector machines. JMLR 6.
    [^3]: Joachims, T. (1999). Making large-scale SVM learning practical. In: Advances in kernel methods, MIT Press (the blocks).

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

    _others = "OutOfCoreLinearSVC", "HierarchicalSVC"

    decision_function_shape: DecisionShape = parameter(default="ovr", choices=("ovr", "ovo"))
    break_ties: bool = False
    random_state: Any = None

    _votes = True

    @property
    def _sign(self) -> float:
        return 1.0 if len(self.classes_) == 2 else -1.0

    @property
    def dual_coef_(self) -> Any:
        """The coefficients of the support vectors, float64 [classes - 1, n_support]; a CSR array where X was sparse."""
        if len(self.classes_) == 2:
            return self._as_rows(self._coefficients)
        of_class = np.repeat(np.arange(len(self.classes_)), self.n_support_)
        dual = np.zeros((len(self.classes_) - 1, len(of_class)))
        for pair, (first, second) in zip(self._coefficients, combinations(range(len(self.classes_)), 2), strict=True):
            dual[second - 1, of_class == first] = -pair[of_class == first]
            dual[first, of_class == second] = -pair[of_class == second]
        return self._as_rows(dual)

    def predict(self, X: Any) -> np.ndarray:
        check_is_fitted(self)
        if self.break_ties and self.decision_function_shape == "ovo":
            raise ValueError("break_ties must be False where decision_function_shape is 'ovo': ties are between classes")
        return super().predict(X)

    def _parts(self, training: Training) -> list[Part]:
        parts, counted = [], training.counted
        labels = training.labels[counted]  # type: ignore[index]
        for first, second in combinations(range(len(self.classes_)), 2):
            either = np.flatnonzero((labels == first) | (labels == second))
            parts.append(Part(counted[either], labels[either] == second))
        return parts

    def _ordered(self, support: np.ndarray, training: Training) -> np.ndarray:
        labels = training.labels[support]  # type: ignore[index]
        self.n_support_: np.ndarray = np.bincount(labels, minlength=len(self.classes_)).astype(np.int32)
        return support[np.argsort(labels, kind="stable")]

    def _n_machines(self, classes: int) -> int:
        return classes * (classes - 1) // 2

    def _class_values(self, f: np.ndarray) -> np.ndarray:
        # A pair's decision value is the difference of the values of its classes; these come closest to it where pairs disagree.
        return self._sums(f) / len(self.classes_)

    def _sums(self, f: np.ndarray) -> np.ndarray:
        """Return the sum of each class's decision values in its pairs, float64 [n, classes]."""
        sums = np.zeros((len(f), len(self.classes_)))
        for k, (first, second) in enumerate(combinations(range(len(self.classes_)), 2)):
            sums[:, second] += f[:, k]
            sums[:, first] -= f[:, k]
        return sums

    def _votes_of(self, second: np.ndarray) -> np.ndarray:
        """Return the votes of each class, float64 [n, classes], where pairs vote for their ``second`` class or their first."""
        return 0.5 * (self._sums(np.where(second, 1.0, -1.0)) + len(self.classes_) - 1)

    def _soft_votes(self, f: np.ndarray) -> np.ndarray:
        # Votes, but of a pair that is not sure only a part. The class of all votes is 1 above the next one.
        return 0.5 * len(self.classes_) * self._class_values(np.clip(f / _SURE, -1.0, 1.0))

    def _scores(self, f: np.ndarray) -> np.ndarray:
        if len(self.classes_) == 2:
            return f[:, 0]
        return -f if self.decision_function_shape == "ovo" else self._class_scores(f)

    def _class_scores(self, f: np.ndarray) -> np.ndarray:
        sums = self._sums(f)
        return self._votes_of(f > 0.0) + sums / (3.0 * (np.abs(sums) + 1.0))

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        if len(self.classes_) == 2:
            return super()._predictions(f)
        # A pair that is undecided votes as LIBSVM has it, for one class here and for the other one in the scores.
        scores = self._class_scores(f) if self.break_ties else self._votes_of(f >= 0.0)
        return self.classes_[scores.argmax(axis=1)]

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        super()._check_saved(state, machines)
        counts, classes = state["n_support_"], len(state["classes_"])
        if (
            not isinstance(counts, np.ndarray)
            or counts.dtype != np.int32
            or counts.shape != (classes,)
            or (counts < 0).any()
            or counts.sum() != len(state["support_"])
        ):
            raise ValueError("the saved model is corrupt: its counts of support vectors do not fit its classes")


@dataclass(eq=False, repr=False, kw_only=True)
class CSMORegressor(KernelRegressor, CSMO):
    """Support vector regression with the epsilon-insensitive loss, solved exactly by conjugate SMO.

    min over b of 1/2 sum_ij b_i b_j k(x_i, x_j) - sum_i y_i b_i + epsilon sum_i |b_i|, where |b_i| <= C w_i and sum_i b_i = 0:
    one signed variable a row in place of the usual two. It stands in for scikit-learn's SVR.

    Parameters
    ----------
    C
        The bound of a dual coefficient, before it is multiplied by the weight of its row.
    epsilon
        Errors up to this cost nothing.
    kernel, gamma, degree, coef0, tol, cache_size, conjugate, shrinking, max_iter, verbose, n_jobs
        As in `CSMOClassifier`. ``tol`` is in the units of y: 1e-3 is a lot to ask for where y is in the thousands.

    Attributes
    ----------
    support_, support_vectors_, coef_, fit_status_, shape_fit_, gap_, duality_gap_, objective_
        As in `CSMOClassifier`.
    n_support_ : int32 [1]
    dual_coef_ : float64 [1, n_support]
        b_i; a CSR array where X was sparse.
    intercept_ : float64 [1]
    n_iter_ : int

    Raises
    ------
    ValueError
        As `CSMOClassifier`.

    Warns
    -----
    ConvergenceWarning
        As `CSMOClassifier`; cost, memory, interruption and references are the same as well.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import CSMORegressor

    >>> X = np.linspace(-3.0, 3.0, 200)[:, np.newaxis]
    >>> model = CSMORegressor(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """

    _others = "OutOfCoreLinearSVR", "HierarchicalSVR"
