"""A step of a program: its arrays and numbers, and what all checks of them are made of."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Numbers of a value that are computed at once, in about so many bytes times 8.
MAX_NUMBERS_AT_ONCE = 2**21

MAX_CLASSES = 2**12
_LARGEST_FLOAT = sys.float_info.max


class ExportError(ValueError):
    """A program cannot be made of a model, read from a file, or written in a form.

    The message says why, and what to do.
    """


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a program.

    Parameters
    ----------
    op
        Name of the operation.
    inputs
        Numbers of the values that it uses.
    arrays, options
        Its arrays and its numbers, by name.
    """

    op: str
    inputs: tuple[int, ...]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether a value of a file is a finite number in a range."""
    # Comparisons, since an int that no float holds cannot be asked whether it is finite.
    return type(value) in (int, float) and -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT and low <= value <= high


def read_array(step: Step, name: str, shape: tuple[int, ...], kinds: str = "f") -> np.ndarray:
    """Return an array of a step; -1 in the shape is any length."""
    array = step.arrays[name]
    if array.dtype.kind not in kinds or array.ndim != len(shape):
        raise ExportError(f"{name} of a step {step.op!r} is {array.dtype} with {array.ndim} dimensions")
    if any(wanted not in (-1, length) for wanted, length in zip(shape, array.shape, strict=True)):
        raise ExportError(f"{name} of a step {step.op!r} has the shape {array.shape}, which does not fit")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ExportError(f"{name} of a step {step.op!r} are not finite")
    return array


def read_option(step: Step, name: str, low: float = -math.inf, high: float = math.inf, whole: bool = False) -> Any:
    """Return an option of a step, a number in a range."""
    value = step.options[name]
    if not is_number(value, low, high) or (whole and type(value) is not int):
        raise ExportError(f"{name} of a step {step.op!r} is out of its range")
    return value


def check_vectors(step: Step, width: int) -> int:
    """Return the number of a step's vectors."""
    vectors = read_array(step, "vectors", (-1, width), "fi")
    if vectors.dtype.kind == "i":
        read_array(step, "scale", (width,))
    if "center" in step.arrays:
        read_array(step, "center", (width,))
        if step.op != "kernel" or step.options["kind"] != "rbf" or "scale" not in step.arrays:
            raise ExportError(f"a step {step.op!r} has a center, which only whole numbers in a Gaussian kernel have")
    return len(vectors)


def dequantise_vectors(step: Step) -> np.ndarray:
    """Return the vectors of a step in their units, float64 [m, width]."""
    vectors = step.arrays["vectors"].astype(np.float64)
    if "scale" in step.arrays:
        vectors *= step.arrays["scale"]
    return vectors + step.arrays["center"] if "center" in step.arrays else vectors
