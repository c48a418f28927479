"""Support vector machines by conjugate SMO, with scikit-learn's conventions."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamsvm.batch.csmo.solver import Solution
from streamsvm.batch.kernel_machine import CSMO, column_buffer
from streamsvm.batch.problem import Groups, check_bounds, quickest_form
from streamsvm.checks import check_number
from streamsvm.sklearn_base import check_targets, class_weights, labels_of

__all__ = ["CSMOClassifier", "CSMORegressor"]


class CSMOClassifier(ClassifierMixin, CSMO):  # type: ignore[misc]
    """A support vector classifier, solved exactly by conjugate SMO.

    min over alpha of 1/2 sum_ij y_i y_j alpha_i alpha_j k(x_i, x_j) - sum_i alpha_i, where 0 <= alpha_i <= C w_i and
    sum_i y_i alpha_i = 0. More than two classes are told apart by one machine for each pair of them.

    Parameters
    ----------
    C
        The largest coefficient, times a row's weight and that of its class.
    kernel
        ``"rbf"``: exp(-gamma |x - s|^2); ``"linear"``: x.s; ``"poly"``: (gamma x.s + coef0)^degree.
    gamma
        A number above 0; ``"scale"``: one over the sum of the features' variances about their common mean, in which rows count by
        their weights; ``"auto"``: one over the number of features.
    degree, coef0
        Of the polynomial kernel.
    tol
        By how much the pair of rows that violates the conditions of optimality most may do so at the end.
    cache_size
        The largest number of megabytes (2^20 bytes) for columns of the kernel matrix. Where rows have few features, 4 for each of
        them and 16 more are all that is used: what is soon computed again is not worth fresh memory. One cache serves the
        machines of all pairs of classes in turn. It always has room for two columns.
    class_weight
        A dictionary from labels to weights, 1 for those it does not have, or ``"balanced"``: n / (classes * rows of the class),
        where rows count by their weights.
    conjugate
        Whether steps follow conjugate directions; else this is plain SMO.
    shrinking
        Whether rows that seem to have reached their bound are left out until the end.
    max_iter
        The largest number of steps for each machine; -1: no limit.
    verbose
        Whether progress is told on standard error.

    Attributes
    ----------
    classes_ : [classes]
    support_ : int32 [n_support]
        Numbers of the support vectors among the rows, class by class.
    support_vectors_ : float64 [n_support, features]
        An array, or CSR where X was sparse.
    n_support_ : int32 [classes]
    dual_coef_ : float64 [machines, n_support]
        y_i alpha_i, where y_i = 1 for the later class of a pair; 0 where a support vector is of neither. Pairs are in the order
        (0, 1), (0, 2), ..., (1, 2), ...
    intercept_ : float64 [machines]
    n_iter_ : int64 [machines]
    gap_ : float
        The largest violation of optimality, in float64.
    duality_gap_ : float
        The primal objective less the dual one, summed over machines. This and the next are to about six digits: rows at their
        bounds enter with float32's kernel values.
    objective_ : float
        What is minimised, summed over machines.

    Raises
    ------
    ValueError
        A parameter is out of its range, or X, y or a weight cannot be learned; the message says which.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol``, with the gap. The attributes are those of the last iterate, which is the best one: each step
        lowers the objective.

    Notes
    -----
    A step costs O(n) and, for columns that are not in the cache, O(n d); columns are float32. Before it is accepted, a solution
    is checked in float64, and stepped on from there where float32 was not enough. Rows that are equal are solved as one. Features
    of two values each are compared bit by bit. Memory beside X: the cache, 20 bytes for each value (80 for each one that is not
    zero, where few are), and a few hundred for each row.

    A fit that is interrupted (Ctrl-C) sets the attributes to the last iterate, then raises KeyboardInterrupt.

    References
    ----------
    [^1]: Torres-Barrán, A., Alaíz, C. M., Dorronsoro, J. R. (2021). Faster SVM training via conjugate SMO. Pattern
        Recognition 111. Equations 17 to 23.
    [^2]: Fan, R.-E., Chen, P.-H., Lin, C.-J. (2005). Working set selection using second order information for training support
        vector machines. JMLR 6.

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

    def __init__(
        self,
        C: float = 1.0,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        cache_size: float = 200,
        class_weight: dict[Any, float] | str | None = None,
        conjugate: bool = True,
        shrinking: bool = True,
        max_iter: int = -1,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.cache_size = cache_size
        self.class_weight = class_weight
        self.conjugate = conjugate
        self.shrinking = shrinking
        self.max_iter = max_iter
        self.verbose = verbose

    def _fit(self, X: Any, y: Any, sample_weight: Any, dual_coef_init: Any) -> list[Solution]:
        self._check()
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counted = self._begin(X, weights)
        self.classes_, labels = labels_of(y, counted)
        if dual_coef_init is not None and len(self.classes_) > 2:
            raise ValueError("dual_coef_init is for two classes")
        start = self._start(dual_coef_init, len(labels), counted)
        C = self.C * (weights * class_weights(self.class_weight, self.classes_, labels, weights)[labels])[counted]
        check_bounds(C)
        rows, labels_counted = quickest_form(X, self._kernel), labels[counted]
        buffer = column_buffer(self.cache_size, int(np.sort(np.bincount(labels_counted))[-2:].sum()))
        pairs = list(combinations(range(len(self.classes_)), 2))
        coefficients, solutions = np.zeros((len(pairs), len(labels))), []
        for k, (first, second) in enumerate(pairs):
            either = np.flatnonzero((labels_counted == first) | (labels_counted == second))
            groups, positive = Groups(rows, counted[either]), labels_counted[either] == second
            bounds = groups.bounds(C[either], positive)
            solutions.append(self._solve(groups, bounds, None, None if start is None else start[either], buffer))
            coefficients[k, counted[either]] = groups.coefficients(solutions[-1].b, C[either], positive)
            if solutions[-1].interrupted:
                never_begun = solutions[-1]._replace(bias=0.0, n_iter=0, gap=np.inf, objective=0.0, primal=np.inf)
                solutions.extend([never_begun] * (len(pairs) - len(solutions)))
                break
        self.n_iter_ = np.array([solution.n_iter for solution in solutions])
        support = np.flatnonzero(coefficients.any(axis=0))
        self.n_support_ = np.bincount(labels[support], minlength=len(self.classes_)).astype(np.int32)
        support = support[np.argsort(labels[support], kind="stable")]
        self._keep(X, coefficients, np.array([solution.bias for solution in solutions]), support)
        return solutions

    def _n_machines(self, classes: int) -> int:
        return classes * (classes - 1) // 2

    def _class_values(self, f: np.ndarray) -> np.ndarray:
        # A pair's value is the difference of its two classes; so it is with these, where the pairs agree.
        values = np.zeros((len(f), len(self.classes_)))
        for k, (first, second) in enumerate(combinations(range(len(self.classes_)), 2)):
            values[:, second] += f[:, k] / len(self.classes_)
            values[:, first] -= f[:, k] / len(self.classes_)
        return values

    def decision_function(self, X: Any) -> np.ndarray:
        """Distances from the boundary, in units of the margin: float64 [n], positive for ``classes_[1]``. With more than two
        classes float64 [n, classes]: the votes of the pairs, and less than half a vote for how sure they are.
        """
        return self._scores(self._decisions(X))

    def _scores(self, f: np.ndarray) -> np.ndarray:
        if len(self.classes_) == 2:
            return f[:, 0]
        votes, sums = (np.zeros((len(f), len(self.classes_))) for _ in range(2))
        for k, (first, second) in enumerate(combinations(range(len(self.classes_)), 2)):
            votes[:, second] += f[:, k] > 0.0
            votes[:, first] += f[:, k] <= 0.0
            sums[:, second] += f[:, k]
            sums[:, first] -= f[:, k]
        return votes + sums / (3.0 * (np.abs(sums) + 1.0))

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        scores = self._scores(f)
        return self.classes_[(scores > 0.0).astype(np.int64) if scores.ndim == 1 else scores.argmax(axis=1)]


class CSMORegressor(RegressorMixin, CSMO):  # type: ignore[misc]
    """Support vector regression with the epsilon-insensitive loss, solved exactly by conjugate SMO.

    min over b of 1/2 sum_ij b_i b_j k(x_i, x_j) - sum_i y_i b_i + epsilon sum_i |b_i|, where |b_i| <= C w_i and sum_i b_i = 0:
    one signed variable a row in place of the usual two.

    Parameters
    ----------
    C
        The largest coefficient, times a row's weight.
    epsilon
        Errors up to this cost nothing.
    kernel, gamma, degree, coef0, tol, cache_size, conjugate, shrinking, max_iter, verbose
        As in `CSMOClassifier`.

    Attributes
    ----------
    support_ : int32 [n_support]
    support_vectors_ : float64 [n_support, features]
    dual_coef_ : float64 [1, n_support]
        b_i.
    intercept_ : float64 [1]
    n_iter_ : int
    gap_, duality_gap_, objective_ : float
        As in `CSMOClassifier`.

    Raises
    ------
    ValueError
        A parameter is out of its range, or X, y or a weight cannot be learned; the message says which.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol``.

    Notes
    -----
    Cost, memory and interruption as in `CSMOClassifier`. The gap is in the units of y: a ``tol`` of 1e-3 is a lot to ask for
    where y is in the thousands.

    References
    ----------
    As in `CSMOClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import CSMORegressor

    >>> X = np.linspace(-3.0, 3.0, 200)[:, np.newaxis]
    >>> model = CSMORegressor(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """

    def __init__(
        self,
        C: float = 1.0,
        epsilon: float = 0.1,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        tol: float = 1e-3,
        cache_size: float = 200,
        conjugate: bool = True,
        shrinking: bool = True,
        max_iter: int = -1,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.epsilon = epsilon
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.tol = tol
        self.cache_size = cache_size
        self.conjugate = conjugate
        self.shrinking = shrinking
        self.max_iter = max_iter
        self.verbose = verbose

    def _fit(self, X: Any, y: Any, sample_weight: Any, dual_coef_init: Any) -> list[Solution]:
        self._check()
        check_number("epsilon", self.epsilon, 0.0, inclusive=True)
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, y_numeric=True)
        y = y.astype(np.float64)
        check_targets(y)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counted = self._begin(X, weights)
        start = self._start(dual_coef_init, len(y), counted)
        C, groups = self.C * weights[counted], Groups(quickest_form(X, self._kernel), counted, y[counted])
        check_bounds(C)
        solution = self._solve(groups, groups.bounds(C), float(self.epsilon), start, column_buffer(self.cache_size, len(counted)))
        self.n_iter_ = solution.n_iter
        coefficients = np.zeros((1, len(y)))
        coefficients[0, counted] = groups.coefficients(solution.b, C)
        self._keep(X, coefficients, np.array([solution.bias]), np.flatnonzero(coefficients[0]))
        return [solution]
