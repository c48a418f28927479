"""Support vector machines by conjugate SMO, with scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from streamsvm.batch.csmo.machine import CSMO, Part
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor, Training
from streamsvm.core.checks import DecisionShape, parameter

_SURE = 0.5  # the decision value of a pair from which on its soft vote is a whole one


@dataclass(eq=False, repr=False, kw_only=True)
class CSMOClassifier(KernelClassifier, CSMO):
    """A support vector classifier, solved exactly by conjugate SMO.

    Use it in place of scikit-learn's SVC, whose parameters and attributes it has, except for ``probability``. Above 50,000
    rows, see `HierarchicalSVC`.

    The fit minimises 1/2 sum_ij y_i y_j alpha_i alpha_j k(x_i, x_j) - sum_i alpha_i over alpha, subject to
    0 <= alpha_i <= C w_i and sum_i y_i alpha_i = 0, where w_i is the weight of row i. With more than two classes, there is one
    machine for each pair of classes, and the machines vote.

    Parameters
    ----------
    C
        Upper bound of the dual coefficients, above 0; it is multiplied by the weights of the row and its class. A larger C fits
        the rows more closely. Infinity counts as 1e10.
    kernel
        Kernel of a row x and a support vector s:

        - ``"rbf"``: exp(-gamma |x - s|^2)
        - ``"linear"``: x.s
        - ``"poly"``: (gamma x.s + coef0)^degree
        - ``"sigmoid"``: tanh(gamma x.s + coef0)
        - ``"precomputed"``: X is the Gram matrix [n, n]. To predict, pass the kernel values with the rows of the fit, [m, n].
        - A function that takes m rows and k rows, and returns their kernel values [m, k]. The rows may be of any type that can
          be indexed. Predictions call it with the support vectors as the k rows.
    gamma
        Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
        features' variances about their common mean, in which rows count by their weights. ``"auto"`` is one over the number of
        features. With the Gaussian kernel, a larger gamma makes the boundary follow the rows in more detail.
    degree
        Degree of the kernel ``"poly"``, from 0 to 100. Other kernels ignore it.
    coef0
        Constant term of the kernels ``"poly"`` and ``"sigmoid"``. With a value below 0, and always with ``"sigmoid"``, the
        problem may have several local minima. The fit then ends in one of them, as LIBSVM's does.
    tol
        Gap at which the fit ends: the amount by which the worst pair of dual coefficients may still violate the optimality
        conditions.
    cache_size
        Maximum memory for columns of the Gram matrix, in megabytes (2^20 bytes). There is always room for two columns. With few
        features, the fit uses at most 16 megabytes and 4 more for each feature, because columns that are cheap to compute again
        are not worth more memory. The machines of all pairs of classes take turns with one cache. If the kernel is a function
        whose whole Gram matrix in float64 fits into the cache, the function is called once, for all of it; otherwise, it is
        called for columns.
    conjugate
        Whether the steps follow conjugate directions, which takes fewer steps if C is large. False gives plain SMO.
    shrinking
        Whether rows that seem to have reached their bound leave the working set until the end.
    max_iter
        Maximum number of steps of each machine; -1 sets no limit.
    verbose
        Whether to show progress on standard error.
    n_jobs
        Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. The results do not depend on it.
    class_weight
        Weights of the classes, by which C is multiplied. A dictionary maps labels to weights; labels that it lacks have weight
        1. ``"balanced"`` is n / (classes * rows of the class), in which rows count by their weights. None gives every class
        weight 1. Use ``"balanced"`` when one class is rare.
    decision_function_shape
        What `decision_function` returns for three or more classes. ``"ovr"``: one value for each class, which is the number of
        its votes plus less than half a vote for the decision values of its pairs. ``"ovo"``: the decision value of each pair of
        classes, in the order (0, 1), (0, 2), ..., (1, 2), ...; it is positive for the first class of the pair.
    break_ties
        Which of several classes with equally many votes `predict` returns: the one with the largest value of
        `decision_function` if True, the first one if False. True needs ``decision_function_shape="ovr"``.
    random_state
        Ignored, because nothing is random. It is accepted so that code written for SVC keeps working.

    Attributes
    ----------
    classes_ : [classes]
        The labels, sorted.
    support_ : int32 [n_support]
        Indices of the support vectors among the rows, class by class.
    support_vectors_ : float64 [n_support, features]
        The support vectors; a CSR matrix if X was sparse. If the kernel is a function, they are rows of X; with
        ``kernel="precomputed"``, the array is empty, [0, 0].
    n_support_ : int32 [classes]
        Number of support vectors of each class.
    dual_coef_ : float64 [classes - 1, n_support]
        Coefficients of the support vectors; a CSR array if X was sparse. With two classes, they are y_i alpha_i, where y_i = 1
        for ``classes_[1]``. With more, the layout is LIBSVM's: each support vector has its coefficients against the other
        classes, in their order, and they are positive in pairs whose first class is its own. This array, ``coef_`` and
        ``intercept_`` are computed when you read them, so changing them changes no prediction.
    coef_ : float64 [machines, features]
        Weights of the features, with ``kernel="linear"`` only; a CSR array if X was sparse.
    intercept_ : float64 [machines]
        One intercept for two classes, otherwise one for each pair of classes, with the first class of the pair on the positive
        side.
    class_weight_ : float64 [classes]
        The weight of each class.
    n_iter_ : int64 [machines]
        Number of steps of each machine.
    fit_status_ : int
        0 if the fit converged, 1 if the gap is above ``tol``.
    shape_fit_ : tuple
        Shape of the X that was fitted.
    gap_ : float
        The gap of the worst machine, computed in float64.
    duality_gap_ : float
        The primal minus the dual objective, summed over the machines. This value and ``objective_`` are exact to about six
        digits, because bounded variables enter with float32 kernel values.
    objective_ : float
        The dual objective, which the fit minimises, summed over the machines.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of its range, or X, y or a weight cannot be learned. The message says which one. From
        `predict`: ``break_ties`` is True and ``decision_function_shape`` is ``"ovo"``.
    TypeError
        The Gram matrix is sparse.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` at the end. The attributes are those of the last iterate, which is the best one, because each
        step lowers the objective.
    UserWarning
        The fit is taking long, and another machine would need about a tenth of the time spent so far.

    Notes
    -----
    A step costs O(n), plus O(n d) for each column that is not in the cache. Columns are float32. The solution is checked in
    float64 before it is accepted, and the steps continue if float32 was not exact enough. Equal rows share one variable.
    Features with two different values are compared bit by bit. On top of X, a fit needs the cache, 24 bytes for each value of X
    (80 for each non-zero value of a sparse matrix), and a few hundred bytes for each row. If kernel values are given, it needs
    the cache, 32 MB for a part of the values, and the Gram matrix of a function that is called for all of it.

    With the Gaussian kernel and more than 3,000 dense rows, a fit begins with blocks of up to 1,024 variables. Each block is
    solved by itself, until most of the variables that violate optimality have been in a block. The products of a block take a
    quarter of the time of columns, which are worth keeping only if they are used again.

    Unlike SVC, this class merges equal rows, predicts both sparse and dense rows whichever it was fitted to, and refuses
    negative weights. ``"balanced"`` and ``gamma="scale"`` count rows by their weights.

    For two classes, the threads share the rows of a column, the two loops of a step over the working set, a gradient that is
    computed from scratch, and a prediction. For three or more classes, each thread instead fits one machine at a time, with a
    cache of its own. A single thread chooses, clips and follows directions, removes rows from the working set and moves the
    columns that stay, computes columns of sparse rows, and makes the steps on fewer than 4,000 rows; if kernel values are
    given, it does everything except restoring the gradient. If other programs occupy the processors, the steps continue without
    the threads that have to wait.

    If you interrupt a fit (Ctrl-C), it sets the attributes to the last iterate, then raises KeyboardInterrupt.

    References
    ----------
    [^1]: Torres-Barrán, A., Alaíz, C. M., Dorronsoro, J. R. (2021). Faster SVM training via conjugate SMO. Pattern Recognition
        111. Equations 17 to 23.
    [^2]: Fan, R.-E., Chen, P.-H., Lin, C.-J. (2005). Working set selection using second order information for training support
        vector machines. JMLR 6.
    [^3]: Joachims, T. (1999). Making large-scale SVM learning practical. In: Advances in kernel methods, MIT Press (the
        blocks).

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
        """The coefficients of the support vectors, float64 [classes - 1, n_support].

        They are a CSR array if X was sparse.
        """
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

    Use it in place of scikit-learn's SVR. Above 50,000 rows, see `HierarchicalSVR`.

    The fit minimises 1/2 sum_ij b_i b_j k(x_i, x_j) - sum_i y_i b_i + epsilon sum_i |b_i| over b, subject to |b_i| <= C w_i and
    sum_i b_i = 0, where w_i is the weight of row i. Each row has one signed variable in place of the usual two.

    Parameters
    ----------
    C
        Upper bound of the dual coefficients' sizes, above 0; it is multiplied by the weight of the row. A larger C fits the
        rows more closely. Infinity counts as 1e10.
    kernel
        Kernel of a row x and a support vector s:

        - ``"rbf"``: exp(-gamma |x - s|^2)
        - ``"linear"``: x.s
        - ``"poly"``: (gamma x.s + coef0)^degree
        - ``"sigmoid"``: tanh(gamma x.s + coef0)
        - ``"precomputed"``: X is the Gram matrix [n, n]. To predict, pass the kernel values with the rows of the fit, [m, n].
        - A function that takes m rows and k rows, and returns their kernel values [m, k]. The rows may be of any type that can
          be indexed. Predictions call it with the support vectors as the k rows.
    gamma
        Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
        features' variances about their common mean, in which rows count by their weights. ``"auto"`` is one over the number of
        features. With the Gaussian kernel, a larger gamma makes the curve follow the rows in more detail.
    degree
        Degree of the kernel ``"poly"``, from 0 to 100. Other kernels ignore it.
    coef0
        Constant term of the kernels ``"poly"`` and ``"sigmoid"``. With a value below 0, and always with ``"sigmoid"``, the
        problem may have several local minima. The fit then ends in one of them, as LIBSVM's does.
    tol
        Gap at which the fit ends: the amount by which the worst pair of dual coefficients may still violate the optimality
        conditions. It is in the units of y, so raise it if y is in the thousands: 1e-3 is then very strict.
    cache_size
        Maximum memory for columns of the Gram matrix, in megabytes (2^20 bytes). There is always room for two columns. With few
        features, the fit uses at most 16 megabytes and 4 more for each feature, because columns that are cheap to compute again
        are not worth more memory. If the kernel is a function whose whole Gram matrix in float64 fits into the cache, the
        function is called once, for all of it; otherwise, it is called for columns.
    conjugate
        Whether the steps follow conjugate directions, which takes fewer steps if C is large. False gives plain SMO.
    shrinking
        Whether rows that seem to have reached their bound leave the working set until the end.
    max_iter
        Maximum number of steps; -1 sets no limit.
    verbose
        Whether to show progress on standard error.
    n_jobs
        Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. The results do not depend on it.
    epsilon
        Largest error that costs nothing, in the units of y; at least 0. A larger epsilon gives fewer support vectors.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the support vectors among the rows.
    support_vectors_ : float64 [n_support, features]
        The support vectors; a CSR matrix if X was sparse. If the kernel is a function, they are rows of X; with
        ``kernel="precomputed"``, the array is empty, [0, 0].
    n_support_ : int32 [1]
        Number of support vectors.
    dual_coef_ : float64 [1, n_support]
        Coefficients b_i of the support vectors; a CSR array if X was sparse.
    coef_ : float64 [1, features]
        Weights of the features, with ``kernel="linear"`` only; a CSR array if X was sparse.
    intercept_ : float64 [1]
        The intercept.
    n_iter_ : int
        Number of steps.
    fit_status_ : int
        0 if the fit converged, 1 if the gap is above ``tol``.
    shape_fit_ : tuple
        Shape of the X that was fitted.
    gap_ : float
        The gap, computed in float64.
    duality_gap_ : float
        The primal minus the dual objective. This value and ``objective_`` are exact to about six digits, because bounded
        variables enter with float32 kernel values.
    objective_ : float
        The dual objective, which the fit minimises.

    Raises
    ------
    ValueError
        A parameter is out of its range, or X, y or a weight cannot be learned. The message says which one.
    TypeError
        The Gram matrix is sparse.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` at the end. The attributes are those of the last iterate, which is the best one, because each
        step lowers the objective.
    UserWarning
        The fit is taking long, and another machine would need about a tenth of the time spent so far.

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

    _others = "OutOfCoreLinearSVR", "HierarchicalSVR"
