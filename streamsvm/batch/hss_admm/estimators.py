"""Support vector machines of very many rows: ADMM on a compressed kernel matrix."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin

from streamsvm.batch.hss_admm.machine import HSSADMM, Part
from streamsvm.checks import check_number
from streamsvm.sklearn_base import check_targets, class_weights, labels_of

__all__ = ["HSSADMMClassifier", "HSSADMMRegressor"]


class HSSADMMClassifier(ClassifierMixin, HSSADMM):  # type: ignore[misc]
    """A support vector classifier for very many rows: ADMM on a compressed kernel matrix.

    The problem is that of `CSMOClassifier`, and so are the predictions: with the exact kernel. Only while the coefficients are
    looked for, the kernel matrix is replaced by a compressed one, which is factorised once for all iterations and all values of
    C. Time and memory are about linear in the number of rows, where the rows have few features (or lie as if they had). For some
    ten thousand rows `CSMOClassifier` is often quicker. More than two classes are told apart by a machine for each; they share
    the compression.

    Parameters
    ----------
    C
        The largest coefficient, times a row's weight and that of its class.
    kernel, gamma, degree, coef0, class_weight
        As in `CSMOClassifier`.
    rel_tol
        Error that the compression may have, see `streamsvm.hss.HSSMatrix.compress`, for coefficients whose sum is zero.
        ``"auto"``: 0.3, then 0.1, 0.03 and so on to 0.001 for models whose values differ from exact ones by more than 0.3 of the
        margin, as long as ranks are below half a leaf, or by more than the margin whatever the ranks. What is left above the
        margin is told with a warning. With ``beta="paper"`` it stays at 0.3.
    abs_tol, max_rank, n_neighbors, leaf_size, memory_limit
        Of the compression. The limit is of a compressed matrix and its factorisation; 8 bytes a row for each of some ten columns
        of every machine and C come on top, and while a closer matrix is made, the one before.
    beta
        Of the augmented Lagrangian: a number above 0; ``"balanced"``: it follows the residuals, for which the matrix is
        factorised a few times more; ``"paper"``: as in the source, 100 (1,000; 10,000) for fewer than 10^5 (10^6; more) rows,
        eleven iterations without relaxation, and no look at residuals.
    relaxation
        Over-relaxation, above 0 and below 2. For any such value and any ``beta`` this converges, if slowly where they are far
        off: the compressed matrix has no negative eigenvalue but those of rounding.
    tol
        Relative residuals, primal and dual, at which it ends, if the duality gap is at most ten times that of the objective, or
        once that of what a constant would cost; all of the problem with the compressed matrix.
    max_iter
        Iterations, at most, on all compressions together.
    polish
        Whether conjugate SMO goes on from there, with the exact kernel, to the exact solution, as `CSMOClassifier` with ``tol``
        1e-3. Attributes of the iterations are of those before.
    random_state
        Of what the compression chooses at random; None: another choice each time.
    verbose
        Whether progress is shown on standard error.

    Attributes
    ----------
    classes_ : [classes]
    support_ : int32 [n_support]
    support_vectors_ : float64 [n_support, features]
    dual_coef_ : float64 [machines, n_support]
        y_i alpha_i; one machine for two classes, else one for each class.
    intercept_ : float64 [machines]
        Where rows cost clearly less with exact values for it, that of those.
    n_iter_ : int
    beta_ : float
        The last one.
    primal_residual_, dual_residual_, gap_ : float
        Relative, at the end.
    compression_error_ : float
        An estimate of |(K - K~) V| / |K V|, see `streamsvm.hss.HSSMatrix`.
    value_error_ : float
        By how much the compressed expansion's values are off from the exact ones, root mean square, over 256 rows at the margin
        or over 256 random ones, whichever is more; of the latter, values beyond twice the margin count as there.
    ranks_ : int64 [levels, 2]
    compressed_nbytes_ : int

    Raises
    ------
    ValueError
        A parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small; the message says
        which, and what would do.

    Warns
    -----
    ConvergenceWarning
        Residuals or the gap are above what they may be after ``max_iter`` iterations, or with the polish its gap is above 1e-3;
        with ``rel_tol="auto"``, values differ from exact ones by more than the margin.
    RuntimeWarning
        The compression's error is above its tolerance.

    Notes
    -----
    O(n (m + r) (m + c + d)) for the compression and O(n (m + r)) an iteration, for leaves of m rows, ranks of r and c columns
    that are looked at. A fit that is interrupted (Ctrl-C) while it iterates sets the attributes to the last iterate, then raises
    KeyboardInterrupt; before that, it leaves the model as it was.

    References
    ----------
    Cipolla, S., Gondzio, J. (2021). Training very large scale nonlinear SVMs using alternating direction method of multipliers
    coupled with the hierarchically semi-separable kernel approximations. Algorithms 2 and 3; the latter writes x_k where q_k is
    meant, and its bias has the opposite sign of the one that its decision function adds.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.batch import HSSADMMClassifier

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> models = HSSADMMClassifier(gamma=0.03).fit_path(X, y, [0.1, 1.0, 10.0])
    >>> [model.C for model in models], all(model.score(X, y) > 0.94 for model in models)
    ([0.1, 1.0, 10.0], True)
    """

    def __init__(
        self,
        C: float = 1.0,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        rel_tol: float | str = "auto",
        abs_tol: float = 0.0,
        max_rank: int = 1000,
        n_neighbors: int = 64,
        leaf_size: int = 256,
        beta: float | str = "balanced",
        relaxation: float = 1.6,
        tol: float = 1e-2,
        max_iter: int = 2000,
        polish: bool = False,
        class_weight: dict[Any, float] | str | None = None,
        memory_limit: float | None = None,
        random_state: int | None = 0,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.rel_tol = rel_tol
        self.abs_tol = abs_tol
        self.max_rank = max_rank
        self.n_neighbors = n_neighbors
        self.leaf_size = leaf_size
        self.beta = beta
        self.relaxation = relaxation
        self.tol = tol
        self.max_iter = max_iter
        self.polish = polish
        self.class_weight = class_weight
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def _parts(self, y: Any, weights: np.ndarray, counted: np.ndarray) -> tuple[None, list[Part]]:
        self.classes_, labels = labels_of(y, counted)
        own = weights * class_weights(self.class_weight, self.classes_, labels, weights)[labels]
        positive = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        return None, [Part(own[counted], labels[counted] == k) for k in positive]

    def _n_machines(self, classes: int) -> int:
        return 1 if classes == 2 else classes

    def decision_function(self, X: Any) -> np.ndarray:
        """Distances from the boundary, in units of the margin: float64 [n], positive for ``classes_[1]``. With more than two
        classes float64 [n, classes]: those of each class from all others.
        """
        return self._scores(self._decisions(X))

    def _scores(self, f: np.ndarray) -> np.ndarray:
        return f[:, 0] if len(self.classes_) == 2 else f

    def _class_values(self, f: np.ndarray) -> np.ndarray:
        return f

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        return self.classes_[(f[:, 0] > 0.0).astype(np.int64) if len(self.classes_) == 2 else f.argmax(axis=1)]


class HSSADMMRegressor(RegressorMixin, HSSADMM):  # type: ignore[misc]
    """Support vector regression for very many rows: ADMM on a compressed kernel matrix.

    The problem and the predictions are those of `CSMORegressor`; the rest is as in `HSSADMMClassifier`.

    Parameters
    ----------
    C
        The largest coefficient, times a row's weight.
    epsilon
        Errors up to this cost nothing.
    kernel, gamma, degree, coef0, rel_tol, abs_tol, max_rank, n_neighbors, leaf_size, beta, relaxation, tol, max_iter, polish
        As in `HSSADMMClassifier`. With ``rel_tol="auto"``, the margin is epsilon or a tenth of the targets'
        deviation.
    memory_limit, random_state, verbose
        As in `HSSADMMClassifier`.

    Attributes
    ----------
    support_, support_vectors_, n_iter_, beta_, primal_residual_, dual_residual_, gap_
        As in `HSSADMMClassifier`.
    compression_error_, value_error_, ranks_, compressed_nbytes_
        As in `HSSADMMClassifier`.
    dual_coef_ : float64 [1, n_support]
    intercept_ : float64 [1]
        The mean difference between the exact expansion and the compressed one, over rows at the margin, is taken out of it.

    Raises
    ------
    ValueError
        As `HSSADMMClassifier`.

    References
    ----------
    As in `HSSADMMClassifier`.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import HSSADMMRegressor

    >>> X = np.linspace(-3.0, 3.0, 2000)[:, np.newaxis]
    >>> model = HSSADMMRegressor(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
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
        rel_tol: float | str = "auto",
        abs_tol: float = 0.0,
        max_rank: int = 1000,
        n_neighbors: int = 64,
        leaf_size: int = 256,
        beta: float | str = "balanced",
        relaxation: float = 1.6,
        tol: float = 1e-2,
        max_iter: int = 2000,
        polish: bool = False,
        memory_limit: float | None = None,
        random_state: int | None = 0,
        verbose: bool = False,
    ) -> None:
        self.C = C
        self.epsilon = epsilon
        self.kernel = kernel
        self.gamma = gamma
        self.degree = degree
        self.coef0 = coef0
        self.rel_tol = rel_tol
        self.abs_tol = abs_tol
        self.max_rank = max_rank
        self.n_neighbors = n_neighbors
        self.leaf_size = leaf_size
        self.beta = beta
        self.relaxation = relaxation
        self.tol = tol
        self.max_iter = max_iter
        self.polish = polish
        self.memory_limit = memory_limit
        self.random_state = random_state
        self.verbose = verbose

    def _check(self, Cs: Sequence[float]) -> None:
        super()._check(Cs)
        check_number("epsilon", self.epsilon, 0.0, inclusive=True)

    @property
    def _width(self) -> float:
        return float(self.epsilon)

    def _parts(self, y: Any, weights: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, list[Part]]:
        check_targets(y.astype(np.float64))
        return y[counted].astype(np.float64), [Part(weights[counted], None)]
