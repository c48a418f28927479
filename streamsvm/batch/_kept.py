"""Fitted models to plain values and back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, clone, is_classifier

from streamsvm.batch._interrupts import is_interrupt
from streamsvm.kernels import KERNELS, Kernel
from streamsvm.learners._inputs import check_one_of, checked_kernel

__all__ = ["Kept", "own"]


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
