"""A step of a program, and the width of its value, once its arrays and options are checked."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

MOST_CLASSES = 2**12
_LARGEST_FLOAT = sys.float_info.max


class ProgramError(ValueError):
    """A program cannot be made of a model, read from a file, or written in a form.

    The message says why, and what to do.
    """


@dataclass(frozen=True, eq=False)
class Step:
    """A step of a program.

    Parameters
    ----------
    do
        Name of the step.
    of
        Numbers of the values that it uses.
    arrays, options
        Its arrays and its numbers, by name.
    """

    do: str
    of: tuple[int, ...]
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)


def is_number(value: Any, low: float = -math.inf, high: float = math.inf) -> bool:
    """Return whether a value of a file is a finite number in a range."""
    # Comparisons, since an int that no float holds cannot be asked whether it is finite.
    return type(value) in (int, float) and -_LARGEST_FLOAT <= value <= _LARGEST_FLOAT and low <= value <= high


def width_of(step: Step, width: int) -> int:
    """Return the width of a step's value, where the values that it takes have ``width`` numbers together.

    Raises
    ------
    ProgramError
        There is no such step, or its arrays and options are not those that it needs.
    """
    if step.do not in _WIDTHS:
        raise ProgramError(f"it has the step {step.do!r:.40}, which this version does not know: upgrade streamsvm")
    try:
        return _WIDTHS[step.do](step, width)
    except (KeyError, TypeError, AttributeError, IndexError) as error:
        raise ProgramError(f"a step {step.do!r} has not the arrays and options that it needs ({error!r})") from None


def _numbers(step: Step, name: str, shape: tuple[int, ...], kinds: str = "f") -> np.ndarray:
    """Return an array of a step; -1 in the shape is any length."""
    array = step.arrays[name]
    if array.dtype.kind not in kinds or array.ndim != len(shape):
        raise ProgramError(f"{name} of a step {step.do!r} is {array.dtype} with {array.ndim} dimensions")
    if any(wanted not in (-1, length) for wanted, length in zip(shape, array.shape, strict=True)):
        raise ProgramError(f"{name} of a step {step.do!r} has the shape {array.shape}, which does not fit")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ProgramError(f"{name} of a step {step.do!r} are not finite")
    return array


def _option(step: Step, name: str, low: float = -math.inf, high: float = math.inf, whole: bool = False) -> Any:
    value = step.options[name]
    if not is_number(value, low, high) or (whole and type(value) is not int):
        raise ProgramError(f"{name} of a step {step.do!r} is out of its range")
    return value


def _same(step: Step, width: int) -> int:  # noqa: ARG001
    return width


def _fill(step: Step, width: int) -> int:
    if type(step.options["single"]) is not bool:
        raise ProgramError("a step 'fill' has no true or false")
    return width


def _scale(step: Step, width: int) -> int:
    _numbers(step, "location", (width,))
    if (_numbers(step, "spread", (width,)) < 0.0).any():
        raise ProgramError("a spread is below 0")
    if step.options["bound"] is not None:
        _option(step, "bound", 0.0)
    return width


def _select(step: Step, width: int) -> int:
    columns = _numbers(step, "columns", (-1,), "i")
    if len(columns) and not (columns.min() >= 0 and columns.max() < width):
        raise ProgramError("a step 'select' takes columns that are not there")
    return len(columns)


def _clip(step: Step, width: int) -> int:
    _option(step, "bound", 0.0)
    return width


def _bend(step: Step, width: int) -> int:
    _option(step, "knot", 0.0)
    if step.options["functions"] not in (2, 4):
        raise ProgramError("a step 'bend' has 2 or 4 functions")
    return int(step.options["functions"]) * width


def _vectors(step: Step, width: int) -> int:
    vectors = _numbers(step, "vectors", (-1, width), "fi")
    if vectors.dtype.kind == "i":
        _numbers(step, "unit", (width,))
    return len(vectors)


def _kernel(step: Step, width: int) -> int:
    kind = step.options["kind"]
    if kind not in ("rbf", "linear", "poly", "sigmoid"):
        raise ProgramError(f"it has a kernel of the kind {kind!r}, which this version does not know: upgrade streamsvm")
    _option(step, "gamma", 0.0)
    _option(step, "coef0")
    _option(step, "degree", 1, 100, whole=True)
    return _vectors(step, width)


def _trees(step: Step, width: int) -> int:
    vectors = _kernel(step, width)
    right, cut = _numbers(step, "right", (-1,), "i"), _numbers(step, "cut", (-1,), "i")
    thresholds, roots = _numbers(step, "thresholds", (-1,)), _numbers(step, "roots", (-1,), "i")
    _numbers(step, "axes", (len(thresholds), width))
    starts, rows = _numbers(step, "starts", (-1,), "i"), _numbers(step, "rows", (-1,), "i")
    weights = _numbers(step, "weights", (-1, len(rows)))
    inner, nodes = right >= 0, len(right)
    # Trees that overlap, leaves of several trees, and leaves with one vector many times would take the square of their size.
    ends = np.append(roots[1:], nodes)[np.searchsorted(roots, np.arange(nodes), "right") - 1] if len(roots) else roots
    good = (
        len(cut) == nodes > 0
        and len(starts) > 1
        and len(roots) > 0
        and roots[0] == 0
        and roots[-1] < nodes
        and (roots[1:] > roots[:-1]).all()
        and ((right == -1) | ((right > np.arange(nodes) + 1) & (right < ends))).all()  # so that each walk goes on and ends
        and ((cut >= 0) & (cut < np.where(inner, len(thresholds), len(starts) - 1))).all()
        and starts[0] == 0
        and starts[-1] == len(rows)
        and ((starts[1:] >= starts[:-1]) & (starts[1:] - starts[:-1] <= vectors)).all()
        and len(np.unique(cut[~inner])) == np.count_nonzero(~inner)
        and ((rows >= 0) & (rows < vectors)).all()
    )
    if not good:
        raise ProgramError("the trees of a step 'trees' do not fit together")
    return len(weights)


def _fourier(step: Step, width: int) -> int:
    _option(step, "factor")
    return 2 * _vectors(step, width)


def _linear(step: Step, width: int) -> int:
    weights = _numbers(step, "weights", (-1, width))
    _numbers(step, "biases", (len(weights),))
    return len(weights)


def _pairs(step: Step, width: int) -> int:
    classes = _option(step, "classes", 2, MOST_CLASSES, whole=True)
    if width != classes * (classes - 1) // 2:
        raise ProgramError(f"a step {step.do!r} has {width} pairs of {classes} classes")
    return int(classes)


def _experts(step: Step, width: int) -> int:
    inputs, outputs = len(step.arrays["votes"]), _option(step, "outputs", 1, MOST_CLASSES, whole=True)
    if not inputs or width != inputs * outputs:
        raise ProgramError(f"a step 'experts' has {width} numbers of {inputs} experts")
    stacks = len(_numbers(step, "weights", (-1, inputs + 2)))
    shares, votes = _numbers(step, "shares", (stacks,)), _numbers(step, "votes", (inputs,))
    corrects = _numbers(step, "corrects", (inputs,), "i")
    if not stacks or (shares < 0.0).any() or (votes < 0.0).any() or not (shares.sum() > 0.0 and votes.sum() > 0.0):
        raise ProgramError("shares of a step 'experts' are below 0, or all 0")
    if not ((corrects >= -1) & (corrects < np.arange(inputs))).all():
        raise ProgramError("a step 'experts' has one that corrects none before it")
    _option(step, "best", 0, inputs - 1, whole=True)
    _option(step, "follows", 0, 2, whole=True)
    if step.options["of"] not in ("labels", "numbers") or (step.options["of"] == "numbers" and outputs != 1):
        raise ProgramError("a step 'experts' is of labels, or of one number")
    for name in ("prior", "share") if step.options["of"] == "labels" else ():
        _option(step, name, 0.0, 1.0)
    return int(outputs)


_WIDTHS: Mapping[str, Callable[[Step, int], int]] = {
    "fill": _fill,
    "scale": _scale,
    "select": _select,
    "clip": _clip,
    "bend": _bend,
    "kernel": _kernel,
    "fourier": _fourier,
    "trees": _trees,
    "linear": _linear,
    "join": _same,
    "votes": _pairs,
    "pair_scores": _pairs,
    "experts": _experts,
}
