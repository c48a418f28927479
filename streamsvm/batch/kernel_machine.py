"""Kernel machines that are fitted to all rows at once: their parameters, predictions and saved state."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from scipy import sparse
from sklearn.base import RegressorMixin, is_classifier, is_regressor
from sklearn.utils.validation import _check_sample_weight, validate_data

from streamsvm._options import KernelName, MachineGamma
from streamsvm.batch.csmo.columns import store
from streamsvm.batch.csmo.solver import add_expansions
from streamsvm.batch.distillation import to_budget
from streamsvm.checks import check_number, check_one_of, check_parameters, parameter
from streamsvm.kernels import KERNELS, Kernel, checked_kernel
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.sklearn_base import SklearnClassifier, SklearnEstimator, check_targets

__all__ = ["KernelClassifier", "KernelMachine", "KernelRegressor", "Training"]

_CHUNK = 4096  # rows of a prediction


class Training(NamedTuple):
    """The n rows of a fit, checked."""

    X: Any
    """Array or CSR matrix, float64 [n, features]."""
    y: np.ndarray
    weights: np.ndarray
    """float64 [n]: of the rows, times those of their classes."""
    counted: np.ndarray
    """int64: numbers of the rows whose weight is above 0."""
    labels: np.ndarray | None = None
    """Classification: index of each row's class, int64 [n]."""
    targets: np.ndarray | None = None
    """Regression: float64 [n]."""


@dataclass(eq=False, repr=False)
class KernelMachine(SklearnEstimator):
    """An expansion over support vectors for each of one or more machines: classifiers of several classes have several.

    Fits set ``_kernel``, ``support_``, ``support_vectors_``, ``dual_coef_`` [machines, n_support], ``intercept_`` [machines], and
    ``_rows``: the support vectors as compiled code takes them, which is not saved.
    """

    C: float = parameter(default=1.0, above=0.0)
    _: KW_ONLY
    kernel: KernelName = parameter(default="rbf", choices=KERNELS)
    gamma: MachineGamma = "scale"
    degree: int = parameter(default=3, least=1, high=100, integer=True)
    coef0: float = parameter(default=0.0, least=0.0)

    def to_budget(self, budget: int, X: Any = None, **parameters: Any) -> BudgetedEstimator:
        """Return a budgeted learner that decides alike and goes on learning; the parameters are those of `to_budget`."""
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
            check_number("gamma", self.gamma, 0.0)

    def _training(self, X: Any, y: Any, sample_weight: Any) -> Training:
        """Check rows, labels or targets, and weights; set the kernel."""
        X, y = validate_data(
            self, X, y, accept_sparse="csr", dtype=np.float64, accept_large_sparse=True, y_numeric=is_regressor(self)
        )
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        counted = np.flatnonzero(weights > 0.0)
        if not len(counted):
            raise ValueError("sample_weight is zero for all rows: there is nothing to learn")
        self._kernel = Kernel(KERNELS[self.kernel], _gamma_of(self.gamma, X, weights), float(self.coef0), int(self.degree))
        return Training(X, y, weights, counted)

    @property
    def _epsilon(self) -> float | None:
        """The error that costs nothing; None for a classifier."""
        return None

    def _set_solution(self, X: Any, coefficients: np.ndarray, intercepts: np.ndarray, support: np.ndarray) -> None:
        """Take coefficients of all rows, float64 [machines, n], and the numbers of the support vectors among them."""
        self.support_ = support.astype(np.int32)
        self.support_vectors_ = X[self.support_]
        self._store_rows()
        self.dual_coef_ = np.ascontiguousarray(coefficients[:, self.support_])
        self.intercept_ = np.asarray(intercepts, np.float64)

    def _store_rows(self) -> None:
        dense = not sparse.issparse(self.support_vectors_)
        self._rows = store(self.support_vectors_, dense=dense)
        if dense:
            self.support_vectors_ = self._rows.dense.T  # shares the memory

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_rows")

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _decide(self, X: Any) -> np.ndarray:
        """Return the machines' decision values, float64 [n, machines]."""
        out = np.tile(self.intercept_, (X.shape[0], 1))
        dense = not sparse.issparse(self.support_vectors_)
        if not dense and not sparse.issparse(X):
            X = sparse.csr_array(X)
        for begin in range(0, X.shape[0], _CHUNK):
            end = min(begin + _CHUNK, X.shape[0])
            chunk = store(X[begin:end], dense=dense)
            add_expansions(self._rows, self.dual_coef_, chunk, np.arange(end - begin), self._kernel, out[begin:end])
        return out

    # Saved models -----------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_rows", None)
        if "_kernel" in state:
            state["_kernel"] = tuple(state["_kernel"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "_rows" in state:
            raise ValueError("the saved model is corrupt: it has the attribute '_rows', which is never saved")
        state = dict(state)
        if "_kernel" in state:
            state["_kernel"] = _checked_saved_kernel(*state["_kernel"])
        fitted = "support_vectors_" in state
        if fitted:
            machines = self._n_machines(_n_classes(state.get("classes_"))) if is_classifier(self) else 1
            _check_solution(state, machines)
        super().__setstate__(state)
        if fitted:
            self._store_rows()

    def _n_machines(self, classes: int) -> int:
        """Return the number of machines that a classifier of so many classes has."""
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelClassifier(SklearnClassifier):
    """The conventions of a classifier, with one machine for two classes, else one for each class against all others."""

    class_weight: dict[Any, float] | Literal["balanced"] | None = None

    #: Whether machines vote where there are three or more classes: scores are then not linear in their decision values.
    _votes = False

    def _training(self, X: Any, y: Any, sample_weight: Any) -> Training:
        training: Training = super()._training(X, y, sample_weight)
        labels = self._number_classes(training.y, training.counted)
        weights = training.weights
        weights = weights * self._class_weights(labels, weights)[labels]
        return training._replace(labels=labels, weights=weights)

    def _n_machines(self, classes: int) -> int:
        return 1 if classes == 2 else classes

    def _scores(self, f: np.ndarray) -> np.ndarray:
        return f[:, 0] if len(self.classes_) == 2 else f

    def _class_values(self, f: np.ndarray) -> np.ndarray:
        """Return a value for each of three or more classes, float64 [n, classes], linear in the machines' decision values."""
        return f

    def _soft_votes(self, f: np.ndarray) -> np.ndarray:
        """Return a continuous value for each class whose largest is that of the class predicted, where ``_votes``."""
        raise NotImplementedError


@dataclass(eq=False, repr=False, kw_only=True)
class KernelRegressor(RegressorMixin):  # type: ignore[misc]
    """The conventions of a regressor with the epsilon-insensitive loss; it has one machine."""

    epsilon: float = parameter(default=0.1, least=0.0)

    def _training(self, X: Any, y: Any, sample_weight: Any) -> Training:
        training: Training = super()._training(X, y, sample_weight)
        targets = training.y.astype(np.float64)
        check_targets(targets)
        return training._replace(targets=targets)

    @property
    def _epsilon(self) -> float:
        return float(self.epsilon)

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        return f[:, 0]


def _gamma_of(gamma: MachineGamma, X: Any, weights: np.ndarray) -> float:
    """Return the number that ``gamma`` stands for, as in scikit-learn's SVC; rows count by their weights."""
    if gamma == "auto":
        return 1.0 / X.shape[1]
    if gamma != "scale":
        return float(gamma)
    relative = weights / weights.sum() / X.shape[1]
    mean = float((X.T @ relative).sum())
    if sparse.issparse(X):
        variance = float((X.multiply(X).T @ relative).sum()) - mean * mean
    else:
        variance = float(np.square(X - mean).sum(axis=1) @ relative)
    return 1.0 / (X.shape[1] * variance) if variance > 1e-15 * mean * mean else 1.0


def _checked_saved_kernel(kind: int, gamma: float, coef0: float, degree: int) -> Kernel:
    try:
        check_one_of("kernel", kind, KERNELS.values())
        return checked_kernel(next(name for name, code in KERNELS.items() if code == kind), gamma, degree, coef0)
    except ValueError as error:
        raise ValueError(f"the saved model is corrupt: {error}") from None


def _n_classes(classes: Any) -> int:
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or not len(set(classes.tolist())) == len(classes) >= 2:
        raise ValueError("the saved model is corrupt: its classes are not two or more different labels")
    return len(classes)


def _check_solution(state: dict[str, Any], machines: int) -> None:
    """Raise a ValueError where saved arrays do not fit together: compiled code relies on it."""
    vectors, *others = (state[name] for name in ("support_vectors_", "dual_coef_", "intercept_"))
    values = _checked_values(vectors) if sparse.issparse(vectors) and vectors.format == "csr" else vectors
    finite = all(
        isinstance(array, np.ndarray) and array.dtype == np.float64 and np.isfinite(array).all() for array in (values, *others)
    )
    n = len(state["support_"])
    shapes = [array.shape for array in (vectors, *others)] if finite else []
    if shapes != [(n, state["n_features_in_"]), (machines, n), (machines,)] or "_kernel" not in state:
        raise ValueError("the saved model is corrupt: its support vectors and coefficients do not fit together")


def _checked_values(X: Any) -> Any:
    """Return the values of a CSR matrix; raise a ValueError where its indices lead out of its arrays."""
    (n, d), values, indices, starts = X.shape, X.data, X.indices, X.indptr
    if (
        not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in (values, indices, starts))
        or not indices.dtype.kind == starts.dtype.kind == "i"
        or not (len(starts) == n + 1 and starts[0] == 0 and starts[-1] == len(indices) == len(values))
        or (starts[1:] < starts[:-1]).any()
        or ((indices < 0) | (indices >= d)).any()
    ):
        raise ValueError("the saved model is corrupt: its sparse support vectors are no CSR matrix")
    return values
