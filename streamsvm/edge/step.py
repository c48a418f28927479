"""One step of a program, and the checks of its arrays and options that all operations share."""

from __future__ import annotations

import math
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

#: Rows are computed in chunks of at most this many float64 numbers, about 16 MB.
MAX_NUMBERS_AT_ONCE = 2**21

MAX_CLASSES = 2**12
_MAX_FLOAT = sys.float_info.max


class ExportError(ValueError):
    """A model cannot be exported, or an exported model cannot be read.

    The message names the reason and the remedy.
    """


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a program: an operation, its inputs and its constants.

    Parameters
    ----------
    op
        Name of the operation.
    inputs
        Indices of the values that it reads. Value 0 is the input row, value i is the output of step i - 1.
    arrays, options
        Constant arrays and scalar options of the operation, by name.
    """

    op: str
    inputs: tuple[int, ...]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether a value that was read from a file is a finite int or float (not a bool) from ``low`` to ``high``."""
    # math.isfinite raises OverflowError for an int above the largest float, so compare instead.
    return type(value) in (int, float) and -_MAX_FLOAT <= value <= _MAX_FLOAT and low <= value <= high


def read_array(step: Step, name: str, shape: tuple[int, ...], kinds: str = "f") -> np.ndarray:
    """Return the array ``name`` of a step (an operation of an exported model). Raises ExportError if its dtype kind is not one of
    the characters in ``kinds``, it does not have this ``shape``, or it contains a number that is not finite.

    A length of -1 in ``shape`` accepts any length.
    """
    array = step.arrays[name]
    if array.dtype.kind not in kinds or array.ndim != len(shape):
        raise ExportError(f"{name} of a step {step.op!r} is {array.dtype} with {array.ndim} dimensions, which is invalid")
    if any(expected not in (-1, length) for expected, length in zip(shape, array.shape, strict=True)):
        raise ExportError(f"{name} of a step {step.op!r} has the shape {array.shape}, which does not fit")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ExportError(f"{name} of a step {step.op!r} are not finite")
    return array


def read_option(step: Step, name: str, low: float = -math.inf, high: float = math.inf, is_int: bool = False) -> Any:
    """Return the numeric option ``name`` of a step (an operation of an exported model). Raises ExportError if it is not a finite
    number between ``low`` and ``high``, or with ``is_int`` is not an int.
    """
    value = step.options[name]
    if not is_number(value, low, high) or (is_int and type(value) is not int):
        raise ExportError(f"{name} of a step {step.op!r} is out of its range")
    return value


def check_vectors(step: Step, width: int) -> int:
    """Validate the array of vectors (such as support vectors) that a step, an operation of an exported model, contains: they must
    have ``width`` features. Returns the number of vectors.

    Raises ExportError if the vectors, or the scale and center of quantised ones, are invalid.
    """
    vectors = read_array(step, "vectors", (-1, width), "fi")
    if vectors.dtype.kind == "i" or "scale" in step.arrays:
        read_array(step, "scale", (width,))
    if "center" in step.arrays:
        read_array(step, "center", (width,))
        if step.op != "kernel" or step.options["kind"] != "rbf" or "scale" not in step.arrays:
            raise ExportError(f"a step {step.op!r} has a center, which only quantised vectors of a Gaussian kernel have")
    return len(vectors)


def dequantise_vectors(step: Step) -> np.ndarray:
    """Return the vectors of a step (an operation of an exported model), such as support vectors, as float64 [m, features].
    Quantised (integer) vectors are multiplied by their scale and shifted by their center, back to the units of the input rows.
    """
    vectors = step.arrays["vectors"].astype(np.float64)
    if "scale" in step.arrays:
        vectors *= step.arrays["scale"]
    return vectors + step.arrays["center"] if "center" in step.arrays else vectors
