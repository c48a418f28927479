"""Kernel machines that are fitted to all rows at once: their parameters, predictions and saved state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import RegressorMixin, is_classifier, is_outlier_detector, is_regressor
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamsvm.batch.distillation import to_budget
from streamsvm.batch.kernel_sums import FEW, KernelSums
from streamsvm.core.checks import MachineGamma, MachineKernel, check_number, check_one_of, check_parameters, parameter
from streamsvm.core.kernels import KERNELS, LARGEST_KERNEL, POLY, SIGMOID, Kernel
from streamsvm.core.sklearn_base import SklearnClassifier, SklearnEstimator, check_targets, is_finite_array
from streamsvm.core.threads import Workers, limit_blas_threads, resolve_n_jobs
from streamsvm.learners.budgeted import BudgetedEstimator

_NO_FIT = "the saved model is corrupt: its support vectors and coefficients do not fit together"
_NO_CSR = "the saved model is corrupt: its sparse support vectors are no CSR matrix"
_CSR = {"csr_array": sparse.csr_array, "csr_matrix": sparse.csr_matrix}
_WITH_COEF0 = (POLY, SIGMOID)  # kernels; that of others is 0

#: Says which rows' predictions are settled, bool [n], by decision values and how far they may be off, float64 [n, machines].
SettledTest = Callable[[np.ndarray, np.ndarray], np.ndarray]


class TrainingData(NamedTuple):
    """The n rows of a fit, checked."""

    X: Any  # array or CSR matrix, float64 [n, features]; for a function as the kernel, rows of any form
    y: Any
    weights: np.ndarray  # float64 [n]: of the rows, times those of their classes
    counted: np.ndarray  # int64: numbers of the rows whose weight is above 0
    labels: np.ndarray | None = None  # Classification: index of each row's class, int64 [n]
    targets: np.ndarray | None = None  # Regression: float64 [n]


@dataclass(eq=False, repr=False)
class KernelMachine(SklearnEstimator):
    """An expansion over support vectors for each of one or more machines: classifiers of several classes have several.

    Fits set ``_kernel``, ``support_``, ``support_vectors_``, ``_coefficients`` float64 [machines, n_support], ``_intercepts``
    [machines], and ``_predictor``: what predictions read, which is computed from these and not saved. A machine whose decision
    values are another function of its support vectors overrides `_prepare_predictor` and `_compute_decisions`.
    """

    C: float = 1.0
    """Upper bound of the sizes of the dual coefficients, above 0; it is multiplied by the weight of the row, and in
    classification by that of its class. A larger C fits the rows more closely. `CSMOClassifier` and `CSMORegressor` count
    infinity as 1e10.
    """
    _: KW_ONLY
    kernel: MachineKernel = "rbf"
    """Kernel of a row x and a support vector s: ``"rbf"``, exp(-gamma |x - s|^2); ``"linear"``, x.s; ``"poly"``,
    (gamma x.s + coef0)^degree.
    """
    gamma: MachineGamma = "scale"
    """Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
    features' variances about their common mean, in which rows count by their weights. ``"auto"`` is one over the number of
    features. With the Gaussian kernel, a larger gamma makes the model follow the rows in more detail.
    """
    degree: int = parameter(default=3, least=0, high=100, integer=True)
    """Degree of the kernel ``"poly"``, from 0 to 100. Other kernels ignore it."""
    coef0: float = parameter(default=0.0, least=0.0)
    """Constant term of the kernel ``"poly"``, at least 0. Other kernels ignore it."""

    #: The kernels that there are, by their names.
    _kernels: ClassVar[Mapping[str, int]] = KERNELS
    #: Whether decision values are kernel values with the support vectors times ``dual_coef_``, plus the intercept.
    _is_expansion = True

    @property
    def dual_coef_(self) -> Any:
        """The coefficients of the support vectors, float64 [machines, n_support]."""
        return self._coefficients

    @property
    def intercept_(self) -> np.ndarray:
        """The intercept of each machine, float64 [machines]."""
        return self._intercepts

    def to_budget(self, budget: int | None = None, X: Any = None, **parameters: Any) -> BudgetedEstimator:
        """Return a budgeted learner that decides like this machine and continues learning on a stream.

        The budget is a number of support vectors, or with ``loss=0.2`` it is the smallest that costs about 0.2 % of the
        decisions. The parameters are those of `streamsvm.batch.to_budget`.
        """
        return to_budget(self, budget, X, **parameters)

    # Fits -------------------------------------------------------------------------------------------------------------------

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        """Raise a ValueError that names a parameter which is out of its range."""
        check_parameters(self)
        for C in Cs:
            check_number("C", C, 0.0)
        if isinstance(self.gamma, str):
            check_one_of("gamma", self.gamma, ("scale", "auto"))
        else:
            check_number("gamma", self.gamma, 0.0, inclusive=True)

    def _prepare_training(self, X: Any, y: Any, sample_weight: Any) -> TrainingData:
        """Return the checked rows, labels or targets, and weights; set the kernel."""
        X, y = self._check_training_rows(X, y)
        weights = self._check_weights(sample_weight, X)
        counted = np.flatnonzero(weights > 0.0)
        if not len(counted):
            raise ValueError(
                "Invalid input - all samples have zero or negative weights: give at least one row a sample_weight above 0"
            )
        self._kernel = self._make_kernel(X, weights)
        return self._add_targets(TrainingData(X, y, weights, counted))

    def _add_targets(self, training: TrainingData) -> TrainingData:
        """Return the rows of a fit with class numbers and class weights, or with regression targets."""
        return training

    def _check_weights(self, sample_weight: Any, X: Any) -> np.ndarray:
        """Return the weights of rows, at least 0, float64 [n]."""
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)

    def _check_training_rows(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Return rows to learn and their labels or targets, checked."""
        how: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "accept_large_sparse": True}
        if (
            is_finite_array(X)
            and type(y) is np.ndarray
            and y.shape == (len(X),)
            and y.dtype.kind in "biuf"
            and np.isfinite(y).all()
        ):
            self.n_features_in_: int = X.shape[1]
            self.__dict__.pop("feature_names_in_", None)
            return X, y
        if is_outlier_detector(self):
            return validate_data(self, X, **how), None
        return validate_data(self, X, y, y_numeric=is_regressor(self), **how)

    def _make_kernel(self, X: Any, weights: np.ndarray) -> Kernel:
        """Return the kernel for rows of such weights."""
        kind = self._kernels[str(self.kernel)]
        if kind == POLY and self.degree == 0:
            return Kernel(POLY, 0.0, 1.0, 1)  # 1 everywhere, in a form that compiled code takes: there powers are at least 1
        coef0 = float(self.coef0) if kind in _WITH_COEF0 else 0.0
        return Kernel(kind, _resolve_gamma(self.gamma, X, weights), coef0, max(int(self.degree), 1))

    @property
    def _epsilon(self) -> float | None:
        """The error that costs nothing; None for a classifier."""
        return None

    def _set_solution(self, X: Any, coefficients: np.ndarray, intercepts: np.ndarray, support: np.ndarray) -> None:
        """Take coefficients of all rows, float64 [machines, n], and the numbers of the support vectors among them."""
        self.support_: np.ndarray = support.astype(np.int32)
        self._coefficients = np.ascontiguousarray(coefficients[:, self.support_])
        self._intercepts = np.asarray(intercepts, np.float64)
        self.support_vectors_: Any = self._take_support_vectors(X)
        self._prepare_predictor()

    def _take_support_vectors(self, X: Any) -> Any:
        return X[self.support_]

    def _prepare_predictor(self) -> None:
        """Set ``_predictor``: the support vectors as predictions take them."""
        self._predictor: Any = KernelSums(self.support_vectors_, self._coefficients, self._kernel)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _compute_decisions(self, X: Any, settled: SettledTest | None = None) -> np.ndarray:
        """Return the machines' decision values, float64 [n, machines].

        Where ``settled`` says that a row's prediction is settled by rough values, they may be these, from float32. Predictions
        are those of exact values to the last bit, which depends on the rows beside a row.
        """
        out = np.empty((X.shape[0], len(self._intercepts)))
        size, least = self._predictor.choose_chunk_rows(X), 1e-10 * np.abs(self._coefficients).sum(axis=1)

        def decide(begin: int) -> None:
            chunk, values = X[begin : begin + size], out[begin : begin + size]
            found = None if settled is None else self._predictor.compute_float32(chunk)
            if settled is not None and found is not None:
                values[:] = found[0] + self._intercepts
                doubtful = np.flatnonzero(~settled(values, found[1]))
                values[doubtful] = self._predictor.compute_exact(chunk[doubtful]) + self._intercepts
                if settled(values[doubtful], np.broadcast_to(least, (len(doubtful), len(least)))).all():
                    return
            values[:] = self._predictor.compute_exact(chunk) + self._intercepts  # where a row is at the boundary, to the last bit

        with limit_blas_threads() if X.shape[0] > FEW else nullcontext():  # which takes longer than a few rows
            self._run_chunks(decide, range(0, X.shape[0], size))
        return out

    def _run_chunks(self, decide: Callable[[int], None], begins: range) -> None:
        """Call a function for the begin of each chunk of rows, in threads if the machine has some."""
        threads = min(resolve_n_jobs(getattr(self, "n_jobs", None)), len(begins))
        if threads > 1:
            with Workers(threads) as workers:
                workers.for_each(decide, begins)
            return
        for begin in begins:
            decide(begin)

    # Saved models -----------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_predictor", None)
        if "_kernel" in state:
            state["_kernel"] = tuple(state["_kernel"])
        vectors: Any = state.get("support_vectors_")
        if sparse.issparse(vectors) and vectors.format == "csr":  # as what a file can hold
            state["support_vectors_"] = type(vectors).__name__, vectors.shape, vectors.data, vectors.indices, vectors.indptr
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_predictor" in state:
            raise ValueError("the saved model is corrupt: it has the attribute '_predictor', which is never saved")
        state = dict(state)
        fitted = "support_vectors_" in state
        try:
            if "_kernel" in state:
                state["_kernel"] = _check_saved_kernel(self._kernels, *state["_kernel"])
            if fitted and isinstance(state["support_vectors_"], tuple):
                state["support_vectors_"] = _rebuild_csr(*state["support_vectors_"])
            if fitted:
                machines = self._count_machines(_count_saved_classes(state.get("classes_"))) if is_classifier(self) else 1
                self._check_saved(state, machines)
        except (KeyError, TypeError) as error:  # a part is missing, or of another type
            raise ValueError(f"the saved model is corrupt: {error!r}") from None
        super().__setstate__(state)
        if fitted:
            self._prepare_predictor()

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        """Raise a ValueError where the arrays of a saved solution do not fit together: compiled code relies on it."""
        check_coefficients(state, machines)
        shape = state.get("shape_fit_", (1,))
        if not (isinstance(shape, tuple) and shape and all(type(size) is int for size in shape)):
            raise ValueError(_NO_FIT)
        vectors, n = state["support_vectors_"], len(state["support_"])
        values = vectors
        if sparse.issparse(vectors) and vectors.format == "csr":  # of `_rebuild_csr`
            values = _check_csr_values(vectors.shape, vectors.data, vectors.indices, vectors.indptr)
        whole = has_type_and_shape(values, np.float64, getattr(values, "shape", ())) and np.isfinite(values).all()
        if not whole or vectors.shape != (n, state["n_features_in_"]) or "_kernel" not in state:
            raise ValueError(_NO_FIT)

    def _count_machines(self, classes: int) -> int:
        """Return the number of machines that a classifier of so many classes has."""
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(SklearnClassifier):
    """The conventions of a classifier, with one machine for two classes, else one for each class against all others.

    Attributes
    ----------
    classes_ : [classes]
        The labels, sorted.
    """

    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    """Weights of the classes, by which C is multiplied. A dictionary maps labels to weights; labels that it lacks have weight
    1. ``"balanced"`` is n / (classes * rows of the class), in which rows count by their weights. None gives every class weight
    1. Use ``"balanced"`` when one class is rare.
    """

    #: Whether machines vote where there are three or more classes: scores are then not linear in their decision values.
    _uses_votes = False

    def _add_targets(self, training: TrainingData) -> TrainingData:
        labels = self._index_classes(training.y, training.counted)
        self.class_weight_: np.ndarray = self._class_weights(labels, training.weights)
        return training._replace(labels=labels, weights=training.weights * self.class_weight_[labels])

    def _count_machines(self, classes: int) -> int:
        return 1 if classes == 2 else classes

    def _predict_checked(self, X: Any) -> np.ndarray:
        return self._predict_from_decisions(self._compute_decisions(X, self._find_settled))

    def _find_settled(self, f: np.ndarray, error: np.ndarray) -> np.ndarray:
        """Return whether no decision values within the errors give another label, bool [n]; see `SettledTest`."""
        if f.shape[1] == 1:
            return is_sign_settled(f, error)
        best = f.argmax(axis=1)[:, np.newaxis]
        low, high = np.take_along_axis(f - error, best, axis=1), f + error
        np.put_along_axis(high, best, -np.inf, axis=1)
        return low[:, 0] > high.max(axis=1)

    def _compute_scores(self, f: np.ndarray) -> np.ndarray:
        return f[:, 0] if len(self.classes_) == 2 else f

    def _compute_class_values(self, f: np.ndarray) -> np.ndarray:
        """Return a value for each of three or more classes, float64 [n, classes], linear in the machines' decision values."""
        return f

    def _compute_soft_votes(self, f: np.ndarray) -> np.ndarray:
        """Return a continuous value for each class whose largest is that of the class predicted, where ``_uses_votes``."""
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRegressor(RegressorMixin):  # type: ignore[misc]
    """The conventions of a regressor with the epsilon-insensitive loss; it has one machine."""

    epsilon: float = parameter(default=0.1, least=0.0)
    """Largest error that costs nothing, in the units of y; at least 0. A larger epsilon gives fewer support vectors."""

    def _add_targets(self, training: TrainingData) -> TrainingData:
        targets = training.y.astype(np.float64)
        check_targets(targets)
        return training._replace(targets=targets)

    @property
    def _epsilon(self) -> float:
        return float(self.epsilon)

    def _predict_from_decisions(self, f: np.ndarray) -> np.ndarray:
        return f[:, 0]


def predict_finite_rows(model: Any, rows: np.ndarray) -> np.ndarray:
    """Return the labels or values [n] that any fitted model predicts for finite rows float64 [n, features].

    A `KernelMachine` does not check them again, which takes most of the time of one row.
    """
    return model._predict_checked(rows) if isinstance(model, KernelMachine) else model.predict(rows)


def compute_decision_values(model: Any, rows: np.ndarray) -> np.ndarray:
    """Return the decision values [n] or [n, classes] of any fitted classifier for rows as in `predict_finite_rows`."""
    return (
        model._compute_scores(model._compute_decisions(rows))
        if isinstance(model, KernelMachine)
        else model.decision_function(rows)
    )


def is_sign_settled(f: np.ndarray, error: np.ndarray) -> np.ndarray:
    """Return where no decision value within the errors has another sign, bool [n]; see `SettledTest`."""
    return (np.abs(f) > error).all(axis=1)


def _resolve_gamma(gamma: MachineGamma, X: Any, weights: np.ndarray) -> float:
    """Return the number that ``gamma`` stands for, as in scikit-learn's SVC; rows count by their weights."""
    if gamma == "auto":
        return 1.0 / X.shape[1]
    if gamma != "scale":
        return float(gamma)
    relative = weights / weights.sum() / X.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):  # rows that are too large are refused later
        mean = float((X.T @ relative).sum())
        if sparse.issparse(X):
            variance = float((X.multiply(X).T @ relative).sum()) - mean * mean
        else:
            variance = float(np.square(X - mean).sum(axis=1) @ relative)
    return 1.0 / (X.shape[1] * variance) if variance > 1e-15 * mean * mean else 1.0


def _check_saved_kernel(kernels: Mapping[str, int], kind: int, gamma: float, coef0: float, degree: int) -> Kernel:
    try:
        check_one_of("kernel", kind, kernels.values())
        check_number("gamma", gamma, 0.0, inclusive=True)
        check_number("degree", degree, 1, inclusive=True, high=100, integer=True)
        low, high = (-LARGEST_KERNEL, LARGEST_KERNEL) if kind in _WITH_COEF0 else (0.0, 0.0)
        check_number("coef0", coef0, low, inclusive=True, high=high)
        return Kernel(int(kind), float(gamma), float(coef0), int(degree))
    except ValueError as error:
        raise ValueError(f"the saved model is corrupt: {error}") from None


def _count_saved_classes(classes: Any) -> int:
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or not len(set(classes.tolist())) == len(classes) >= 2:
        raise ValueError("the saved model is corrupt: its classes are not two or more different labels")
    return len(classes)


def check_coefficients(state: dict[str, Any], machines: int) -> None:
    """Raise a ValueError where saved coefficients are not those of so many machines and their support vectors."""
    for name, shape in {"_coefficients": (machines, len(state["support_"])), "_intercepts": (machines,)}.items():
        if not has_type_and_shape(state[name], np.float64, shape) or not np.isfinite(state[name]).all():
            raise ValueError(_NO_FIT)


def has_type_and_shape(value: Any, dtype: Any, shape: tuple[int, ...]) -> bool:
    """Whether a value of a saved state is an array of a type and shape."""
    return isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape


def _rebuild_csr(kind: Any, shape: Any, values: Any, indices: Any, starts: Any) -> Any:
    """Return the CSR array or matrix that a saved model took apart; raise a ValueError where it is none."""
    whole = type(shape) is tuple and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if kind not in _CSR or not whole:
        raise ValueError(_NO_CSR)
    return _CSR[kind]((_check_csr_values(shape, values, indices, starts), indices, starts), shape=shape)


def _check_csr_values(shape: tuple[int, int], values: Any, indices: Any, starts: Any) -> Any:
    """Return the values of a CSR matrix; raise a ValueError where its indices lead out of its arrays."""
    n, d = shape
    if (
        not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in (values, indices, starts))
        or not indices.dtype.kind == starts.dtype.kind == "i"
        or not (len(starts) == n + 1 and starts[0] == 0 and starts[-1] == len(indices) == len(values))
        or (starts[1:] < starts[:-1]).any()
        or ((indices < 0) | (indices >= d)).any()
    ):
        raise ValueError(_NO_CSR)
    return values
