"""What estimators with scikit-learn's conventions share: checks, class weights, seeds, interrupts, pickles."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets

from streamsvm.checks import check_number, check_one_of
from streamsvm.kernels import KERNELS, Kernel, checked_kernel

__all__ = ["Kept", "check_targets", "class_weights", "is_interrupt", "labels_of", "own", "seed_of"]

_SMALLEST_TARGET, _LARGEST_TARGET = 1e-20, 1e20  # beyond them products of gradients leave float32


class Kept(BaseEstimator):  # type: ignore[misc]
    """An estimator whose fitted arrays are checked when they are read back: compiled code relies on how they fit together."""

    def __getstate__(self) -> Any:
        state = dict(super().__getstate__())
        state.pop("_rows", None)  # the support vectors once more
        if "_kernel" in state:
            state["_kernel"] = tuple(state["_kernel"])
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = {name: own(value) for name, value in state.items()}
        if strange := [name for name in state if name == "_rows" or hasattr(type(self), name)]:
            raise ValueError(f"the model was kept with an attribute {strange[0]!r}, which is not one that a model keeps")
        if "_kernel" in state:
            state["_kernel"] = _kernel(*state["_kernel"])
        if "support_vectors_" in state:
            _check(state, self._n_machines(_classes(state.get("classes_"))) if is_classifier(self) else 1)
        super().__setstate__(state)
        if "support_vectors_" in state:
            self._store_rows()

    def _models(self, Cs: Iterable[float]) -> list[Self]:
        # As many as there are values of C, none of them fitted.
        Cs = list(Cs) if np.iterable(Cs) else []
        if not Cs:
            raise ValueError("Cs must be numbers, at least one, each a C")
        return [clone(self).set_params(C=C) for C in Cs]

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        # Whatever happens before the end leaves the model as it was.
        kept = dict(self.__dict__)
        try:
            yield
        except BaseException as error:
            self.__dict__.clear()
            self.__dict__.update(kept)
            if is_interrupt(error):
                raise KeyboardInterrupt from None
            raise

    def _n_machines(self, classes: int) -> int:
        """How many machines a classifier has for so many classes."""
        raise NotImplementedError

    def _store_rows(self) -> None:
        """Set what predictions need once for all."""
        raise NotImplementedError


def own(value: Any) -> Any:
    """The value; an array with numpy's own dtype object, not the copy that pickle makes, so that it is kept as the same bytes."""
    return value.view(np.dtype(value.dtype.str)) if isinstance(value, np.ndarray) and value.dtype != object else value


def _kernel(kind: int, gamma: float, coef0: float, degree: int) -> Kernel:
    try:
        check_one_of("kernel", kind, KERNELS.values())
        return checked_kernel(next(name for name, code in KERNELS.items() if code == kind), gamma, degree, coef0)
    except ValueError as error:
        raise ValueError(f"the model was kept with a kernel that there is not: {error}") from None


def _classes(classes: Any) -> int:
    if not isinstance(classes, np.ndarray) or classes.ndim != 1 or not len(set(classes.tolist())) == len(classes) >= 2:
        raise ValueError("the model was kept with classes that are not two or more")
    return len(classes)


def _check(state: dict[str, Any], machines: int) -> None:
    vectors, *others = (state[name] for name in ("support_vectors_", "dual_coef_", "intercept_"))
    values = _values(vectors) if sparse.issparse(vectors) and vectors.format == "csr" else vectors
    fits = all(
        isinstance(array, np.ndarray) and array.dtype == np.float64 and np.isfinite(array).all() for array in (values, *others)
    )
    n = len(state["support_"])
    shapes = [array.shape for array in (vectors, *others)] if fits else []
    if shapes != [(n, state["n_features_in_"]), (machines, n), (machines,)] or "_kernel" not in state:
        raise ValueError("the model was kept with support vectors and coefficients that do not fit together")


def _values(X: Any) -> Any:
    # Of a CSR matrix whose indices lead nowhere else.
    (n, d), values, indices, starts = X.shape, X.data, X.indices, X.indptr
    if (
        not all(isinstance(array, np.ndarray) and array.ndim == 1 for array in (values, indices, starts))
        or not indices.dtype.kind == starts.dtype.kind == "i"
        or not (len(starts) == n + 1 and starts[0] == 0 and starts[-1] == len(indices) == len(values))
        or (starts[1:] < starts[:-1]).any()
        or ((indices < 0) | (indices >= d)).any()
    ):
        raise ValueError("the model was kept with sparse support vectors that are no CSR matrix")
    return values


def check_targets(y: np.ndarray) -> None:
    """ValueError where targets float64 [n] are so large or small that products of gradients leave float32."""
    largest = np.abs(y).max()
    if not (largest == 0.0 or _SMALLEST_TARGET <= largest <= _LARGEST_TARGET):
        raise ValueError(f"y has values up to {largest:g}, out of {_SMALLEST_TARGET:g} to {_LARGEST_TARGET:g}: scale the targets")


def seed_of(random_state: Any) -> int:
    """The parameter ``random_state`` as a seed: itself where it is a number; ValueError where it is none of scikit-learn's."""
    generator = check_random_state(random_state)
    return int(random_state) if isinstance(random_state, int | np.integer) else int(generator.randint(2**31))


def labels_of(y: Any, counted: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The classes, and for each row the number of its own, int64 [n]; each must be among the rows that are ``counted``.

    Raises
    ------
    ValueError
        Fewer than two classes, or targets that are none.
    """
    check_classification_targets(y)
    classes, labels = np.unique(y, return_inverse=True)
    if len(classes) < 2:
        raise ValueError(f"y has one class only, {classes.tolist()[0]!r}: there is nothing to tell apart")
    present = np.bincount(labels[counted], minlength=len(classes)) > 0
    if not present.all():
        raise ValueError(f"class {classes[~present].tolist()[0]!r} has no row whose sample_weight is above 0")
    return classes, labels


def class_weights(
    given: dict[Any, float] | str | None, classes: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """The parameter ``class_weight`` as numbers, float64 [classes]."""
    if given is None:
        return np.ones(len(classes))
    if isinstance(given, str):
        if given != "balanced":
            raise ValueError(f"class_weight must be a dictionary, 'balanced' or None, not {given!r}")
        return weights.sum() / (len(classes) * np.bincount(labels, weights, len(classes)))
    known = set(classes.tolist())
    if known - set(given) and (unknown := set(given) - known):  # some of a fold of cross-validation may be missing
        raise ValueError(f"class_weight has labels that y has not: {sorted(unknown, key=str)}")
    for label, weight in given.items():
        check_number(f"class_weight[{label!r}]", weight, 0.0)
    return np.array([float(given.get(label, 1.0)) for label in classes.tolist()])


def is_interrupt(error: BaseException | None) -> bool:
    """Whether the user asked to stop. Where that happens as a compiled function returns, Python says SystemError, of which one
    may be the cause of another.
    """
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)
