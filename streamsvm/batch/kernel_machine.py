"""The base of all kernel machines that are fitted to all rows at once: parameters, predictions and saved state."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import RegressorMixin, is_classifier, is_outlier_detector, is_regressor
from sklearn.utils.validation import _check_sample_weight

from streamsvm.batch.distillation import to_budget
from streamsvm.batch.kernel_sums import KernelSums
from streamsvm.core.checks import MachineGamma, MachineKernel, check_number, check_one_of, check_parameters, parameter
from streamsvm.core.kernels import KERNELS, LARGEST_KERNEL, POLY, SIGMOID, Kernel
from streamsvm.core.sklearn_base import SklearnClassifier, SklearnEstimator, check_targets, is_finite_array, validate_rows
from streamsvm.core.threads import Workers, limit_blas_threads, resolve_n_jobs
from streamsvm.learners.budgeted import BudgetedEstimator

_NO_FIT = "the saved model is corrupt: its support vectors and coefficients do not fit together"
_NO_CSR = "the saved model is corrupt: its sparse support vectors are not a valid CSR matrix"
_CSR_CLASSES = {"csr_array": sparse.csr_array, "csr_matrix": sparse.csr_matrix}
_KERNELS_WITH_COEF0 = (POLY, SIGMOID)  # the others ignore coef0
_MAX_FEW_ROWS = 32  # predictions of up to this many rows take less time than to limit the threads of BLAS


class TrainingData(NamedTuple):
    """The n checked rows of a fit, with their labels or targets and weights."""

    X: Any  # array or CSR matrix, float64 [n, features]; rows of any type if the kernel is a function
    y: Any
    weights: np.ndarray  # float64 [n]: the weight of each row times the weight of its class
    used_rows: np.ndarray  # int64: positions of the rows whose weight is above 0
    labels: np.ndarray | None = None  # Classification: index of each row's class, int64 [n]
    targets: np.ndarray | None = None  # Regression: float64 [n]


@dataclass(eq=False, repr=False)
class KernelMachine(SklearnEstimator):
    """One or more kernel expansions over shared support vectors: with more than two classes, there are several machines.

    Fits set ``_kernel``, ``support_``, ``support_vectors_``, ``_coefficients`` float64 [machines, n_support], ``_intercepts``
    [machines], and ``_predictor``, which computes decision values; it is made from the others and not saved. Subclasses whose
    decision values are not such expansions override `_prepare_predictor` and `_compute_decisions`.
    """

    C: float = 1.0
    """Upper bound of the absolute values of the dual coefficients, above 0; it is multiplied by the weight of the row, and in
    classification by that of its class. A larger C fits the rows more closely. `CSMOClassifier` and `CSMORegressor` treat
    infinity as 1e10.
    """
    _: KW_ONLY
    kernel: MachineKernel = "rbf"
    """Kernel of a row x and a support vector s: ``"rbf"``, exp(-gamma |x - s|^2); ``"linear"``, x.s; ``"poly"``,
    (gamma x.s + coef0)^degree.
    """
    gamma: MachineGamma = "scale"
    """Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
    features' variances about their common mean, where rows count by their weights. ``"auto"`` is one over the number of
    features. With the Gaussian kernel, a larger gamma makes the model follow the rows in more detail.
    """
    degree: int = parameter(default=3, least=0, high=100, integer=True)
    """Degree of the kernel ``"poly"``, from 0 to 100. Other kernels ignore it."""
    coef0: float = parameter(default=0.0, least=0.0)
    """Constant term of the kernel ``"poly"``, at least 0. Other kernels ignore it."""

    #: The supported kernels: their numbers by name.
    _kernels: ClassVar[Mapping[str, int]] = KERNELS
    #: Whether decision values are kernel values with the support vectors times ``dual_coef_``, plus the intercept.
    _is_expansion = True

    @property
    def dual_coef_(self) -> Any:
        """The coefficients of the support vectors in the decision values, float64 [machines, n_support]. There is one binary
        machine for a regressor or two classes, and several for more classes.
        """
        return self._coefficients

    @property
    def intercept_(self) -> np.ndarray:
        """The intercept of each binary machine, float64 [machines], which is added to its sum of kernel values. There is one
        machine for a regressor or two classes, and several for more classes.
        """
        return self._intercepts

    def to_budget(self, budget: int | None = None, X: Any = None, **parameters: Any) -> BudgetedEstimator:
        """Compress this fitted machine to a learner with at most ``budget`` support vectors, which makes nearly the same
        predictions and can continue to learn from a stream. ``X`` are rows to fit it to; without them, it is fitted to the
        support vectors. Returns the learner.

        With ``loss=0.2`` in place of ``budget``, the smallest budget is searched for which changes at most about 0.2 % of the
        predictions. The parameters are those of `streamsvm.batch.to_budget`.
        """
        return to_budget(self, budget, X, **parameters)

    # Fits -------------------------------------------------------------------------------------------------------------------

    def _check_parameters(self, Cs: Iterable[float]) -> None:
        """Raise a ValueError that names the parameter if a parameter of this estimator, or a value of C in ``Cs``, is out of its
        range.
        """
        check_parameters(self)
        for C in Cs:
            check_number("C", C, 0.0)
        if isinstance(self.gamma, str):
            check_one_of("gamma", self.gamma, ("scale", "auto"))
        else:
            check_number("gamma", self.gamma, 0.0, inclusive=True)

    def _prepare_training(self, X: Any, y: Any, sample_weight: Any) -> TrainingData:
        """Check the rows X, the labels or targets y and the weights of a fit, and return them as `TrainingData`, which also lists
        the rows of positive weight. Sets the kernel. Raise a ValueError if they are invalid or all weights are 0.
        """
        X, y = self._check_training_rows(X, y)
        weights = self._check_weights(sample_weight, X)
        used_rows = np.flatnonzero(weights > 0.0)
        if not len(used_rows):
            raise ValueError(
                "Invalid input - all samples have zero or negative weights: give at least one row a sample_weight above 0"
            )
        self._kernel = self._make_kernel(X, weights)
        return self._add_targets(TrainingData(X, y, weights, used_rows))

    def _add_targets(self, training: TrainingData) -> TrainingData:
        """Return the training data with class indices and class weights for classifiers, or with float targets for regressors.
        Other estimators return it unchanged.
        """
        return training

    def _check_weights(self, sample_weight: Any, X: Any) -> np.ndarray:
        """Return the weights of the rows X as float64 [n], after a check. ``sample_weight`` may be an array [n], one number, or
        None for a weight of 1 in each row. Raise a ValueError if a weight is negative or not finite.
        """
        return _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)

    def _check_training_rows(self, X: Any, y: Any) -> tuple[Any, Any]:
        """Check the rows X and their labels or targets y, and return both as arrays, X float64 or CSR. For outlier detectors, y
        is ignored and None is returned for it.
        """
        options: dict[str, Any] = {"accept_sparse": "csr", "dtype": np.float64, "accept_large_sparse": True}
        is_valid_y = type(y) is np.ndarray and y.dtype.kind in "biuf" and np.isfinite(y).all()
        if is_valid_y and is_finite_array(X) and y.shape == (len(X),):  # scikit-learn's checks take longer
            self.n_features_in_: int = X.shape[1]
            self.__dict__.pop("feature_names_in_", None)
            return X, y
        if is_outlier_detector(self):
            return validate_rows(self, X, **options), None
        return validate_rows(self, X, y, y_numeric=is_regressor(self), **options)

    def _make_kernel(self, X: Any, weights: np.ndarray) -> Kernel:
        """Return the kernel with its numeric parameters. ``gamma="scale"`` depends on the variance of the rows X, where rows
        count by their weights.
        """
        kind = self._kernels[str(self.kernel)]
        if kind == POLY and self.degree == 0:
            return Kernel(POLY, 0.0, 1.0, 1)  # equal to 1 everywhere; compiled code needs a degree of at least 1
        coef0 = float(self.coef0) if kind in _KERNELS_WITH_COEF0 else 0.0
        return Kernel(kind, _resolve_gamma(self.gamma, X, weights), coef0, max(int(self.degree), 1))

    @property
    def _epsilon(self) -> float | None:
        """The epsilon of the regression loss (errors up to it cost nothing); None for classifiers."""
        return None

    def _set_solution(self, X: Any, coefficients: np.ndarray, intercepts: np.ndarray, support: np.ndarray) -> None:
        """Set the fitted attributes: support vectors, their coefficients, and intercepts. ``coefficients`` float64 [machines, n]
        are those of all training rows X, ``support`` the positions of the support vectors among these.
        """
        self.support_: np.ndarray = support.astype(np.int32)
        self._coefficients = np.ascontiguousarray(coefficients[:, self.support_])
        self._intercepts = np.asarray(intercepts, np.float64)
        self.support_vectors_: Any = self._take_support_vectors(X)
        self._prepare_predictor()

    def _take_support_vectors(self, X: Any) -> Any:
        """Return the rows of X at the positions ``support_``, which are the support vectors."""
        return X[self.support_]

    def _prepare_predictor(self) -> None:
        """Set ``_predictor``, the object that computes decision values: sums over the support vectors of kernel values times
        coefficients.
        """
        self._predictor: Any = KernelSums(self.support_vectors_, self._coefficients, self._kernel)

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_predictor")

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _compute_decisions(self, X: Any) -> np.ndarray:
        """Return the decision values for rows X, float64 [n, machines], with a column for each binary machine (one for a
        regressor or two classes).
        """
        out, size = np.empty((X.shape[0], len(self._intercepts))), self._predictor.choose_chunk_rows(X)

        def decide_chunk(start: int) -> None:
            """Write the decision values of the chunk of rows that begins at row ``start`` into the output array."""
            out[start : start + size] = self._predictor.compute(X[start : start + size]) + self._intercepts

        with limit_blas_threads() if X.shape[0] > _MAX_FEW_ROWS else nullcontext():
            self._run_chunks(decide_chunk, range(0, X.shape[0], size))
        return out

    def _run_chunks(self, decide_chunk: Callable[[int], None], starts: range) -> None:
        """Call ``decide_chunk`` with the first row of each chunk in ``starts``, in ``n_jobs`` threads if this estimator has that
        parameter, otherwise one after the other.
        """
        threads = min(resolve_n_jobs(getattr(self, "n_jobs", None)), len(starts))
        if threads > 1:
            with Workers(threads) as workers:
                workers.for_each(decide_chunk, starts)
            return
        for start in starts:
            decide_chunk(start)

    # Saved models -----------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_predictor", None)
        if "_kernel" in state:
            state["_kernel"] = tuple(state["_kernel"])
        vectors: Any = state.get("support_vectors_")
        if sparse.issparse(vectors) and vectors.format == "csr":  # files hold arrays and tuples, but no sparse matrices
            state["support_vectors_"] = type(vectors).__name__, vectors.shape, vectors.data, vectors.indices, vectors.indptr
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_predictor" in state:
            raise ValueError("the saved model is corrupt: it has the attribute '_predictor', which is never saved")
        state = dict(state)
        is_fitted = "support_vectors_" in state
        try:
            if "_kernel" in state:
                state["_kernel"] = _check_saved_kernel(self._kernels, *state["_kernel"])
            if is_fitted and isinstance(state["support_vectors_"], tuple):
                state["support_vectors_"] = _rebuild_csr(*state["support_vectors_"])
            if is_fitted:
                machines = self._count_machines(_count_saved_classes(state.get("classes_"))) if is_classifier(self) else 1
                self._check_saved(state, machines)
        except (KeyError, TypeError) as error:  # a part is missing, or has another type
            raise ValueError(f"the saved model is corrupt: {error!r}") from None
        super().__setstate__(state)
        if is_fitted:
            self._prepare_predictor()

    def _check_saved(self, state: dict[str, Any], machines: int) -> None:
        """Raise a ValueError if the ``state`` of a saved model is corrupt: arrays have wrong types, shapes or values, or do not
        match the number of ``machines``. Compiled code would not notice it.
        """
        check_coefficients(state, machines)
        shape = state.get("shape_fit_", (1,))
        if not (isinstance(shape, tuple) and shape and all(type(size) is int for size in shape)):
            raise ValueError(_NO_FIT)
        vectors, n = state["support_vectors_"], len(state["support_"])
        values = vectors
        if sparse.issparse(vectors) and vectors.format == "csr":  # from `_rebuild_csr`
            values = _check_csr_values(vectors.shape, vectors.data, vectors.indices, vectors.indptr)
        is_valid = has_type_and_shape(values, np.float64, getattr(values, "shape", ())) and np.isfinite(values).all()
        if not is_valid or vectors.shape != (n, state["n_features_in_"]) or "_kernel" not in state:
            raise ValueError(_NO_FIT)

    def _count_machines(self, classes: int) -> int:
        """Return the number of binary machines that a classifier with this number of ``classes`` consists of. Subclasses define
        it.
        """
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(SklearnClassifier):
    """Mixin of classifiers: two classes have one machine; with more, each class has a machine against all others.

    Attributes
    ----------
    classes_ : [classes]
        The labels, sorted.
    """

    class_weight: dict[Any, float] | Literal["balanced"] | None = None
    """Factors of C for the classes. A dictionary maps labels to weights; missing labels have weight 1.
    ``"balanced"`` is n / (classes * rows of the class), where rows count by their weights. None gives every class weight 1. Use
    ``"balanced"`` if one class is rare.
    """

    #: Whether pairs of classes vote if there are three or more: class scores are then not linear in the decision values.
    _uses_votes = False

    def _add_targets(self, training: TrainingData) -> TrainingData:
        """Return the training data with a class index for each row, and with weights multiplied by the weight of the class. Sets
        ``classes_`` and ``class_weight_``.
        """
        labels = self._index_classes(training.y, training.used_rows)
        self.class_weight_: np.ndarray = self._compute_class_weights(labels, training.weights)
        return training._replace(labels=labels, weights=training.weights * self.class_weight_[labels])

    def _count_machines(self, classes: int) -> int:
        """Return the number of binary machines for this number of classes: 1 for two classes, and otherwise one for each class
        against all others.
        """
        return 1 if classes == 2 else classes

    def _compute_scores(self, f: np.ndarray) -> np.ndarray:
        """Convert decision values ``f`` [n, machines], with a column for each class (one for two classes), to the result of
        `decision_function`: [n] for two classes, otherwise [n, classes].
        """
        return f[:, 0] if len(self.classes_) == 2 else f

    def _compute_class_values(self, f: np.ndarray) -> np.ndarray:
        """Convert decision values ``f`` [n, machines] of three or more classes to one value for each class, float64 [n, classes].
        Here, there is one machine for each class, so ``f`` is returned unchanged; other classifiers override it.
        """
        return f

    def _compute_soft_votes(self, f: np.ndarray) -> np.ndarray:
        """Return a continuous score for each class, float64 [n, classes], from the decision values ``f`` of all pairs of classes.
        It is largest for the predicted class. Only classifiers whose pairs of classes vote define it.
        """
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRegressor(RegressorMixin):  # type: ignore[misc]
    """Mixin of regressors with the epsilon-insensitive loss, which have one machine."""

    epsilon: float = parameter(default=0.1, least=0.0)
    """Largest error without a loss, in the units of y; at least 0. A larger epsilon gives fewer support vectors."""

    def _add_targets(self, training: TrainingData) -> TrainingData:
        """Return the training data with its targets as float64 [n]. Raise a ValueError if a target is too large or too small for
        the solver.
        """
        targets = training.y.astype(np.float64)
        check_targets(targets)
        return training._replace(targets=targets)

    @property
    def _epsilon(self) -> float:
        """The epsilon of the regression loss: errors up to it, in the units of y, cost nothing."""
        return float(self.epsilon)

    def _predict_from_decisions(self, f: np.ndarray) -> np.ndarray:
        """Return the predicted targets [n] for decision values ``f`` [n, 1], which are the same numbers."""
        return f[:, 0]


def predict_finite_rows(model: Any, rows: np.ndarray) -> np.ndarray:
    """Return the labels or targets [n] that a fitted model predicts for rows float64 [n, features], which must be finite. A
    `KernelMachine` skips its validation of the rows, which saves time.

    This validation takes most of the time of a single row.
    """
    return model._predict_checked(rows) if isinstance(model, KernelMachine) else model.predict(rows)


def compute_decision_values(model: Any, rows: np.ndarray) -> np.ndarray:
    """Return the decision values of a fitted classifier for rows float64 [n, features], which must be finite: [n] for two
    classes, otherwise [n, classes]. A `KernelMachine` skips its validation of the rows.
    """
    if isinstance(model, KernelMachine):
        return model._compute_scores(model._compute_decisions(rows))
    return model.decision_function(rows)


def _resolve_gamma(gamma: MachineGamma, X: Any, weights: np.ndarray) -> float:
    """Return the numeric value of the parameter ``gamma``, which may be a number, "auto" or "scale", for rows X. As in
    scikit-learn's SVC, except that the variance for "scale" weighs the rows by ``weights``.
    """
    if gamma == "auto":
        return 1.0 / X.shape[1]
    if gamma != "scale":
        return float(gamma)
    relative = weights / weights.sum() / X.shape[1]
    with np.errstate(over="ignore", invalid="ignore"):  # the solver refuses rows that are too large
        mean = float((X.T @ relative).sum())
        if sparse.issparse(X):
            variance = float((X.multiply(X).T @ relative).sum()) - mean * mean
        else:
            variance = float(np.square(X - mean).sum(axis=1) @ relative)
    return 1.0 / (X.shape[1] * variance) if variance > 1e-15 * mean * mean else 1.0


def _check_saved_kernel(kernels: Mapping[str, int], kind: int, gamma: float, coef0: float, degree: int) -> Kernel:
    """Return the kernel of a saved model, from its code ``kind`` and its parameters. Raise a ValueError if the code is not among
    ``kernels``, or a parameter is out of range.
    """
    try:
        check_one_of("kernel", kind, kernels.values())
        check_number("gamma", gamma, 0.0, inclusive=True)
        check_number("degree", degree, 1, inclusive=True, high=100, integer=True)
        low, high = (-LARGEST_KERNEL, LARGEST_KERNEL) if kind in _KERNELS_WITH_COEF0 else (0.0, 0.0)
        check_number("coef0", coef0, low, inclusive=True, high=high)
        return Kernel(int(kind), float(gamma), float(coef0), int(degree))
    except ValueError as error:
        raise ValueError(f"the saved model is corrupt: {error}") from None


def _count_saved_classes(classes: Any) -> int:
    """Return the number of classes of a saved classifier, whose labels are ``classes``. Raise a ValueError unless these are an
    array of two or more different labels.
    """
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or not len(set(classes.tolist())) == len(classes) >= 2:
        raise ValueError("the saved model is corrupt: its classes are not two or more different labels")
    return len(classes)


def check_coefficients(state: dict[str, Any], machines: int) -> None:
    """Raise a ValueError if the coefficients or intercepts in the ``state`` of a saved model are not finite, or their shapes do
    not match the number of ``machines`` and of support vectors.
    """
    for name, shape in {"_coefficients": (machines, len(state["support_"])), "_intercepts": (machines,)}.items():
        if not has_type_and_shape(state[name], np.float64, shape) or not np.isfinite(state[name]).all():
            raise ValueError(_NO_FIT)


def has_type_and_shape(value: Any, dtype: Any, shape: tuple[int, ...]) -> bool:
    """Return whether ``value``, a part of a saved model, is an array with this type and shape."""
    return isinstance(value, np.ndarray) and value.dtype == dtype and value.shape == shape


def _rebuild_csr(kind: Any, shape: Any, values: Any, indices: Any, starts: Any) -> Any:
    """Return the sparse matrix of a saved model, from the class name ``kind``, its shape and its three arrays (``indptr`` is
    ``starts``). Raise a ValueError if they do not match each other.
    """
    is_shape = type(shape) is tuple and len(shape) == 2 and all(type(n) is int and 0 <= n < 2**63 for n in shape)
    if kind not in _CSR_CLASSES or not is_shape:
        raise ValueError(_NO_CSR)
    return _CSR_CLASSES[kind]((_check_csr_values(shape, values, indices, starts), indices, starts), shape=shape)


def _check_csr_values(shape: tuple[int, int], values: Any, indices: Any, starts: Any) -> Any:
    """Return the ``values`` of a CSR matrix with this shape. Raise a ValueError if its ``indices`` are out of range, or
    ``starts`` (``indptr``) does not match the arrays.
    """
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
