"""Saved linear machines: what is checked before one is made of them."""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.memory.features import OVERFLOW
from streamsvm.linear.solvers.solution import Pass
from streamsvm.linear.sources.names import StreamNames

__all__ = ["check_fitted"]

_KINDS = frozenset({"all", "working set", "gap", "newton"})


def check_fitted(state: dict[str, Any], classifier: bool) -> None:
    """Raise a ValueError where the saved attributes of a fitted machine do not fit together."""
    w, intercept, n = state["coef_"], state["intercept_"], state["n_features_in_"]
    if type(n) is not int or not _finite(w, (1, n) if classifier else (n,)) or not _finite(intercept, (1,)):
        raise ValueError("the saved model is corrupt: its coefficients are not finite numbers, one a feature")
    if classifier:
        classes = state["classes_"]
        if not isinstance(classes, np.ndarray) or classes.shape != (2,) or len(set(classes.tolist())) != 2:
            raise ValueError("the saved model is corrupt: its classes are not two different labels")
    for name in ("n_samples_fit_", "n_iter_"):
        if type(state[name]) is not int or not 0 <= state[name] < 2**63:
            raise ValueError(f"the saved model is corrupt: {name} is no count")
    if not isinstance(state["history_"], list) or not all(map(_is_pass, state["history_"])):
        raise ValueError("the saved model is corrupt: its history is none of passes")
    names = state["stream_names_"]
    if not isinstance(names, StreamNames) or not _is_good(names, n):
        raise ValueError("the saved model is corrupt: the names of its columns do not fit its coefficients")


def _finite(array: Any, shape: tuple[int, ...]) -> bool:
    return isinstance(array, np.ndarray) and array.dtype == np.float64 and array.shape == shape and bool(np.isfinite(array).all())


def _is_pass(found: Any) -> bool:
    return (
        isinstance(found, Pass)
        and found.kind in _KINDS
        and all(isinstance(value, int | float | np.integer | np.floating) for value in found[1:])
    )


def _is_good(saved: StreamNames, n: int) -> bool:
    names, room = saved.names, saved.max_features
    return (
        (names is None or (isinstance(names, list) and len(names) == len(set(names)) == n))
        and (saved.first is None or (type(saved.first) is int and saved.first in (0, 1)))
        and (room is None or (type(room) is int and n <= room < 2**31))
        and saved.overflow in OVERFLOW
        and type(saved.text_labels) is bool
    )
