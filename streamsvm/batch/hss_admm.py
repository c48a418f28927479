"""Support vector machines of very many rows: ADMM on a compressed kernel matrix."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import sparse
from sklearn.base import ClassifierMixin, RegressorMixin, clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamsvm.batch._admm import ADMMOptions, ADMMSolution, admm
from streamsvm.batch._prepare import Bounds, Groups, check_bounds, check_kernel, class_weights, labels_of
from streamsvm.batch._solver import Options
from streamsvm.batch.machine import KernelMachine, column_buffer, solve_exactly
from streamsvm.hss import HSSMatrix
from streamsvm.learners._inputs import check_number, check_one_of

__all__ = ["HSSADMMClassifier", "HSSADMMRegressor"]

_FIRST_BETA = 10.0  # times the largest value on the diagonal; from there it follows the residuals
_PAPER_STEPS = 11  # its loop runs from 0 to 10
_LARGEST_DENSE = 1e9  # values
_OFFSET_ROWS = 256  # of which a difference's mean is taken
_POLISH = Options(tol=1e-3, conjugate=True, shrinking=True, max_iter=-1, verbose=False)
_POLISH_MEGABYTES = 200.0


class _Part(NamedTuple):
    """What one machine learns from the rows that count."""

    weights: np.ndarray
    """float64 [n]: of their bounds."""
    positive: np.ndarray | None
    """bool [n]: which are on its positive side; None: regression."""


class HSSADMM(KernelMachine):
    """What the classifier and the regressor share."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn from all rows. What is refused with a ValueError leaves the model as it was.

        Parameters
        ----------
        X
            Array or sparse matrix [n, features]; a sparse one is made dense.
        y
            Labels or targets [n].
        sample_weight
            Numbers of at least 0, [n]; None: all 1.
        """
        return self._fit_path([self], X, y, [self.C], sample_weight)[0]

    def fit_path(self, X: Any, y: Any, Cs: Sequence[float], sample_weight: Any = None) -> list[Self]:
        """Models with each of ``Cs`` in place of C. They share one compression, and each factorisation."""
        models = [clone(self).set_params(C=C) for C in Cs]
        if not models:
            raise ValueError("Cs must name at least one C")
        return self._fit_path(models, X, y, list(Cs), sample_weight)

    def _fit_path(self, models: list[Self], X: Any, y: Any, Cs: list[float], sample_weight: Any) -> list[Self]:
        # Fit each of the models with its C.
        first = models[0]
        with first._as_it_was_if_refused():
            first._check(Cs)
            regression = isinstance(first, RegressorMixin)
            X, y = validate_data(
                first, X, y, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, y_numeric=regression
            )
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            counted = first._begin(X, weights)
            targets, parts = first._parts(y, weights, counted)
            for C in Cs:
                check_bounds(C * np.concatenate([part.weights for part in parts]))
            groups = Groups(_dense(X), counted, targets)
            K = first._compressed(groups)
        units = [groups.bounds(*part) for part in parts]
        bounds = [Bounds(*(C * side for side in unit)) for C in Cs for unit in units]
        together = Bounds(*(np.column_stack(sides) for sides in zip(*bounds, strict=True)))
        solution = admm(
            K, groups.targets, 1.0 if first._width is None else first._width, together, first._admm_options(len(groups), K)
        )
        bias, interrupted = solution.bias, solution.interrupted
        if first._width is not None:
            bias = bias + _offsets(K, solution.b, together)
        for k, (model, C) in enumerate(zip(models, Cs, strict=True)):
            model.__dict__.update(first.__dict__ if model is not first else {})
            model.C = C
            coefficients, columns = np.zeros((len(parts), len(weights))), range(k * len(parts), (k + 1) * len(parts))
            intercepts = bias[list(columns)]
            for machine, (part, column) in enumerate(zip(parts, columns, strict=True)):
                b = solution.b[:, column]
                if self.polish and not interrupted:
                    buffer = column_buffer(_POLISH_MEGABYTES, len(groups))
                    exact = solve_exactly(groups, bounds[column], first._kernel, first._width, b, _POLISH, buffer)
                    b, intercepts[machine], interrupted = exact.b, exact.bias, exact.interrupted
                coefficients[machine, counted] = groups.coefficients(b, C * part.weights, part.positive)
            model._keep(X, coefficients, intercepts, np.flatnonzero(coefficients.any(axis=0)))
            model._report(K, solution, list(columns))
        if interrupted:
            raise KeyboardInterrupt
        primal, dual = solution.primal.max(), solution.dual.max()
        if first.beta != "paper" and max(primal, dual) > first.tol:
            warnings.warn(
                f"{type(first).__name__} ended with relative residuals of {primal:.1e} and {dual:.1e}, above tol={first.tol:g}, "
                f"after {solution.n_iter.max()} iterations: raise max_iter or tol",
                ConvergenceWarning,
                stacklevel=3,
            )
        return models

    def _check(self, Cs: Sequence[float]) -> None:
        for C in Cs:
            check_number("C", C, 0.0)
        check_kernel(self)
        if isinstance(self.beta, str):
            check_one_of("beta", self.beta, ("balanced", "paper"))
        else:
            check_number("beta", self.beta, 0.0)
        check_number("relaxation", self.relaxation, 0.0)
        if self.relaxation >= 2.0:
            raise ValueError(f"relaxation must be below 2, not {self.relaxation!r}")
        check_number("tol", self.tol, 0.0, inclusive=True)
        check_number("max_iter", self.max_iter, 1, inclusive=True, integer=True)

    @property
    def _width(self) -> float | None:
        # Of the band of errors that cost nothing; None of classification.
        return None

    def _parts(self, y: Any, weights: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray | None, list[_Part]]:
        # The targets of rows that count, and what the machines learn of them.
        raise NotImplementedError

    def _compressed(self, groups: Groups) -> HSSMatrix:
        kernel = self._kernel
        return HSSMatrix.compress(
            groups.rows(),
            kernel=self.kernel,
            gamma=kernel.gamma,
            degree=kernel.degree,
            coef0=kernel.coef0,
            rel_tol=self.rel_tol,
            abs_tol=self.abs_tol,
            max_rank=self.max_rank,
            n_neighbors=self.n_neighbors,
            leaf_size=self.leaf_size,
            zero_sum=True,
            memory_limit=self.memory_limit,
            seed=self.random_state,
            verbose=bool(self.verbose),
        )

    def _admm_options(self, n: int, K: HSSMatrix) -> ADMMOptions:
        if self.beta == "paper":
            beta = 1e2 if n < 10**5 else 1e3 if n < 10**6 else 1e4
            return ADMMOptions(beta, False, 1.0, 0.0, _PAPER_STEPS, bool(self.verbose))
        balance = self.beta == "balanced"
        beta = _FIRST_BETA * K.largest_diagonal if balance else float(self.beta)
        return ADMMOptions(beta, balance, float(self.relaxation), float(self.tol), int(self.max_iter), bool(self.verbose))

    def _report(self, K: HSSMatrix, solution: ADMMSolution, columns: list[int]) -> None:
        self.n_iter_ = int(solution.n_iter[columns].max())
        self.beta_ = solution.beta
        self.primal_residual_ = float(solution.primal[columns].max())
        self.dual_residual_ = float(solution.dual[columns].max())
        self.compression_error_ = K.error
        self.ranks_ = K.ranks
        self.compressed_nbytes_ = K.nbytes


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
    rel_tol, abs_tol, max_rank, n_neighbors, leaf_size, memory_limit
        Of the compression, see `streamsvm.hss.HSSMatrix.compress`; its errors are those for coefficients whose sum is zero.
    beta
        Of the augmented Lagrangian: a number above 0; ``"balanced"``: it follows the residuals, for which the matrix is
        factorised a few times more; ``"paper"``: as in the source, 100 (1,000; 10,000) for fewer than 10^5 (10^6; more) rows,
        eleven iterations without relaxation, and no look at residuals.
    relaxation
        Over-relaxation, above 0 and below 2. For any such value and any ``beta`` this converges: the compressed matrix has no
        negative eigenvalue.
    tol
        Relative residuals, primal and dual, at which it ends.
    max_iter
        Iterations, at most.
    polish
        Whether conjugate SMO goes on from there, with the exact kernel, to the exact solution (``tol`` 1e-3).
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
    n_iter_ : int
    beta_ : float
        The last one.
    primal_residual_, dual_residual_ : float
        Relative, at the end.
    compression_error_ : float
        An estimate of |(K - K~) V| / |K V|, see `streamsvm.hss.HSSMatrix`.
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
        Residuals are above ``tol`` after ``max_iter`` iterations.
    RuntimeWarning
        The compression's error is above its tolerance.

    Notes
    -----
    O(n (m + r) (m + c + d)) for the compression and O(n (m + r)) an iteration, for leaves of m rows, ranks of r and c columns
    that are looked at. A fit that is interrupted (Ctrl-C) while it iterates sets the attributes to the last iterate, then raises
    KeyboardInterrupt.

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
    >>> [f"{model.score(X, y):.2f}" for model in models]
    ['0.95', '0.98', '0.99']
    """

    def __init__(
        self,
        C: float = 1.0,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        degree: int = 3,
        coef0: float = 0.0,
        rel_tol: float = 0.1,
        abs_tol: float = 0.0,
        max_rank: int = 1000,
        n_neighbors: int = 64,
        leaf_size: int = 256,
        beta: float | str = "balanced",
        relaxation: float = 1.6,
        tol: float = 1e-2,
        max_iter: int = 200,
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

    def _parts(self, y: Any, weights: np.ndarray, counted: np.ndarray) -> tuple[None, list[_Part]]:
        self.classes_, labels = labels_of(y, counted)
        own = weights * class_weights(self.class_weight, self.classes_, labels, weights)[labels]
        positive = [1] if len(self.classes_) == 2 else range(len(self.classes_))
        return None, [_Part(own[counted], labels[counted] == k) for k in positive]

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

    def predict(self, X: Any) -> np.ndarray:
        """Labels [n]."""
        return self._predictions(self._decisions(X))

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
        As in `HSSADMMClassifier`. Where errors are to be small beside the targets' deviation, ``rel_tol`` and ``tol`` must be.
    memory_limit, random_state, verbose
        As in `HSSADMMClassifier`.

    Attributes
    ----------
    support_, support_vectors_, n_iter_, beta_, primal_residual_, dual_residual_, compression_error_, ranks_, compressed_nbytes_
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
    >>> model = HSSADMMRegressor(C=10.0, epsilon=0.05, rel_tol=0.01).fit(X, np.sin(X[:, 0]))
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
        rel_tol: float = 0.1,
        abs_tol: float = 0.0,
        max_rank: int = 1000,
        n_neighbors: int = 64,
        leaf_size: int = 256,
        beta: float | str = "balanced",
        relaxation: float = 1.6,
        tol: float = 1e-2,
        max_iter: int = 200,
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

    @property
    def _width(self) -> float:
        check_number("epsilon", self.epsilon, 0.0, inclusive=True)
        return float(self.epsilon)

    def _parts(self, y: Any, weights: np.ndarray, counted: np.ndarray) -> tuple[np.ndarray, list[_Part]]:
        return y[counted].astype(np.float64), [_Part(weights[counted], None)]

    def predict(self, X: Any) -> np.ndarray:
        """Values, float64 [n]."""
        return self._predictions(self._decisions(X))

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        return f[:, 0]


def _dense(X: Any) -> np.ndarray:
    if not sparse.issparse(X):
        return X
    if X.shape[0] * X.shape[1] > _LARGEST_DENSE:
        raise ValueError(f"a sparse X of shape {X.shape} is too large to be made dense: project its features to fewer")
    return np.asarray(X.toarray())


def _offsets(K: HSSMatrix, b: np.ndarray, bounds: Bounds) -> np.ndarray:
    # By how much less the exact expansions say than the compressed ones, in the mean: predictions are made with the former. Of
    # rows at the margin, where there are any.
    offsets, products = np.empty(b.shape[1]), K @ b
    for k in range(b.shape[1]):
        of = b[:, k]
        rows = np.flatnonzero((of > bounds.lower[:, k]) & (of < bounds.upper[:, k]) & (of != bounds.kink[:, k]))
        if not len(rows):
            rows = np.arange(len(of))
        rows = rows[:: -(-len(rows) // _OFFSET_ROWS)]
        offsets[k] = float((products[rows, k] - K.exact_product(rows, of)).mean())
    return offsets
