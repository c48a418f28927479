"""What users hand to a learner, checked: parameters, weights, frames and labels."""

from __future__ import annotations

import math
import secrets
from collections.abc import Hashable
from typing import Any, NamedTuple, NoReturn, cast

import narwhals.stable.v2 as nw
import numpy as np
from river.utils import dataframe

from streamsvm.block import LARGEST_WEIGHT
from streamsvm.budget import Maintenance, Merge, Projection, Removal
from streamsvm.kernels import KERNELS, Kernel

__all__ = [
    "Batch",
    "as_batch",
    "as_matrix",
    "check_number",
    "check_one_of",
    "checked_kernel",
    "checked_target",
    "checked_weight",
    "random_state",
    "strategy_for",
]

_LARGEST_TARGET = 1e30


def check_one_of(name: str, value: object, choices: Any) -> None:
    """Raise a ValueError that names a parameter whose value is not among the choices."""
    if value not in tuple(choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}")


def check_number(
    name: str, value: object, low: float, *, inclusive: bool = False, high: float = math.inf, integer: bool = False
) -> None:
    """Raise a ValueError that names a parameter which is not a finite number in the range."""
    number = value.item() if isinstance(value, np.generic) else value
    if (
        isinstance(number, bool)
        or not isinstance(number, int if integer else int | float)
        or not (number >= low if inclusive else number > low)
        or not (number < math.inf and number <= high)
    ):
        bound = f"{'at least' if inclusive else 'above'} {low:g}"
        bound += f" and at most {high:g}" if high < math.inf else ""
        raise ValueError(f"{name} must be {'an integer' if integer else 'a finite number'} {bound}, not {value!r}")


def checked_kernel(kernel: object, gamma: float, degree: int, coef0: float) -> Kernel:
    """A kernel by its name and parameters; a ValueError names one that is out of its range."""
    check_one_of("kernel", kernel, KERNELS)
    check_number("gamma", gamma, 0.0)
    check_number("degree", degree, 1, inclusive=True, high=100, integer=True)
    check_number("coef0", coef0, 0.0, inclusive=True)
    return Kernel(KERNELS[str(kernel)], float(gamma), float(coef0), int(degree))


def checked_weight(w: float) -> float:
    """A row's weight as the float that compiled code takes; refused with a ValueError where it is not a number of at least 0."""
    check_number("w", w, 0.0, inclusive=True, high=LARGEST_WEIGHT)
    return float(w)


def checked_target(y: float) -> float:
    """A row's target as the float that compiled code takes; refused with a ValueError where it is not a finite number."""
    number = y.item() if isinstance(y, np.generic) else y
    if not isinstance(number, int | float) or not -_LARGEST_TARGET <= number <= _LARGEST_TARGET:
        raise ValueError(f"target {y!r} is not a finite number: leave rows without one out of learning")
    return float(number)


def _checked_weights(w: Any, n: int) -> np.ndarray:
    given = np.asarray(w)
    if given.dtype.kind not in "fiub":
        raise ValueError(f"w must be numbers, not {w!r}")
    given = given.astype(np.float64)
    if given.shape not in ((), (n,)):
        raise ValueError(f"w must be a number or {n} of them, as X has {n} rows; it is an array of shape {given.shape}")
    if not ((given >= 0.0) & (given <= LARGEST_WEIGHT)).all():
        raise ValueError(f"w must be finite numbers of at least 0 and at most {LARGEST_WEIGHT:g}")
    return np.ascontiguousarray(np.broadcast_to(given, (n,)))


def random_state(seed: int | None) -> int:
    """The 64 bits that a learner's random numbers start from."""
    if seed is not None and (isinstance(seed, bool) or not isinstance(seed, int | np.integer)):
        raise ValueError(f"seed must be an integer or None, not {seed!r}")
    return secrets.randbits(64) if seed is None else int(seed) % 2**64


def strategy_for(kernel: str, maintenance: Maintenance | None) -> Maintenance:
    """The strategy given, or what suits the kernel where that is None."""
    if not isinstance(maintenance, Merge | Removal | Projection | None):
        raise ValueError(f"maintenance must be a Merge, Removal or Projection (of streamsvm) or None, not {maintenance!r}")
    if isinstance(maintenance, Merge) and kernel != "rbf":
        raise ValueError(f"Merge needs kernel='rbf'; with kernel={kernel!r} use Projection() or Removal()")
    return maintenance or (Merge() if kernel == "rbf" else Projection())


def as_matrix(X: Any) -> tuple[np.ndarray, list[Hashable], Any]:
    """X as float32 [n, features], its feature names, and the narwhals frame that answers are made like (None for an array)."""
    frame = None
    if isinstance(X, np.ma.MaskedArray):
        raise ValueError("X is a masked array: fill in what is masked (X.filled) or leave those rows out")
    if isinstance(X, np.ndarray):
        if X.ndim != 2 or X.dtype.kind not in "fiub":
            raise ValueError(f"X must be a 2-D array of numbers, not {X.ndim}-D of {X.dtype}")
        values, names = X, cast("list[Hashable]", list(range(X.shape[1])))
    else:
        try:
            frame = dataframe.into_frame(X)
        except TypeError:
            raise ValueError(f"X must be an eager frame or a 2-D numpy array, not {type(X).__name__}") from None
        for name, dtype in frame.schema.items():
            if not (dtype.is_numeric() or dtype == nw.Boolean):
                raise ValueError(f"feature {name!r} is of type {dtype}: features must be numbers")
        values, names = dataframe.to_numpy(frame), cast("list[Hashable]", list(frame.columns))
    with np.errstate(over="ignore"):  # what does not fit float32 becomes infinite and is refused by name
        # Writable, as compiled code knows no other: what is not is copied.
        return np.require(values, np.float32, ["C", "W"]), names, frame


class Batch(NamedTuple):
    """Rows to learn together. Those of weight 0 are left out: nothing of them is looked at."""

    matrix: np.ndarray
    """float32 [n, features]."""
    names: list[Hashable]
    """Of the features."""
    y: list[Any]
    """Labels or targets of the n rows."""
    weights: np.ndarray
    """float64 [n], above 0."""
    numbers: np.ndarray
    """int64 [n]: which rows of what was given they are."""
    n_given: int
    """Rows that were given."""

    def complain(self, row: int, error: ValueError) -> NoReturn:
        """Raise the error with the number that the row had in what was given."""
        raise ValueError(f"row {self.numbers[row]}: {error}") from None


def as_batch(X: Any, y: Any, w: Any) -> Batch:
    """What ``learn_many`` was given, checked but for the labels or targets themselves."""
    matrix, names, _ = as_matrix(X)
    y = _as_list(y, len(matrix))
    weights = _checked_weights(w, len(matrix))
    numbers, given = np.flatnonzero(weights), len(matrix)
    if len(numbers) < given:
        matrix, weights, y = matrix[numbers], weights[numbers], [y[i] for i in numbers.tolist()]
    return Batch(matrix, names, y, weights, numbers, given)


def _as_list(y: Any, n: int) -> list[Any]:
    if hasattr(y, "columns") or getattr(y, "ndim", 1) != 1 or isinstance(y, str | bytes):
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}")
    try:
        values = y.tolist() if hasattr(y, "tolist") else y.to_list() if hasattr(y, "to_list") else list(y)
    except TypeError:
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}") from None
    if len(values) != n:
        raise ValueError(f"X has {n} rows, y {len(values)}")
    return cast("list[Any]", values)
