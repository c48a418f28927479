"""Vectors as whole numbers of 16 or 8 bits, with a unit for each feature."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from streamsvm.edge.program import Program, ProgramError
from streamsvm.edge.steps import Step, vectors_of

_LEAST_UNIT = 1e-19  # whose square float has, and which makes of no row of up to 1e18 a number that it has not
_TYPES = {16: np.int16, 8: np.int8}


def quantised(program: Program, bits: int | None = None, error: float | None = None) -> Program:
    """Return a program whose vectors are whole numbers of few bits, times a unit for each feature.

    Everything else stays as it was. The unit of a feature is its largest size in the vectors, divided by 32,767 or 127.

    Parameters
    ----------
    program
        Program of a model, from `program_of`; it is not changed.
    bits
        Bits of a number: 32, 16 or 8. None uses the fewest whose `error_bound` is at most ``error``.
    error
        Largest change of a decision value that is allowed. None allows any.

    Raises
    ------
    ProgramError
        Neither ``bits`` nor ``error`` is given, the error is not a number of at least 0, or that many bits cannot keep to it.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.describe import program_of
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(10):
    ...     model.learn_one({"a": value}, value > 4)
    >>> program = program_of(model)
    >>> quantised(program, bits=8).nbytes < program.nbytes
    True
    """
    if bits is None and error is None:
        raise ProgramError("say how exact vectors must be: bits=32, 16 or 8, or error=, the largest change of a decision value")
    if error is not None and not error >= 0.0:
        raise ProgramError(f"error must be a number of at least 0, not {error!r}")
    if bits not in (None, 32, *_TYPES):
        raise ProgramError(f"bits must be 32, 16 or 8, not {bits!r}")
    found = math.inf
    for candidate in (8, 16, 32) if bits is None else (bits,):
        made = _of_bits(program, candidate)
        found = error_bound(program, made)
        if error is None or found <= error:
            return made
    raise ProgramError(
        f"with vectors of {bits} bits a decision value may change by up to {found:.3g}, more than error={error:g}: allow more, "
        "or ask for more bits"
    )


def _of_bits(program: Program, bits: int) -> Program:
    return program.with_steps(
        step if bits == 32 or "vectors" not in step.arrays else _rounded(step, bits) for step in program.steps
    )


def _rounded(step: Step, bits: int) -> Step:
    vectors = vectors_of(step)
    unit = np.abs(vectors).max(axis=0, initial=0.0) / (2 ** (bits - 1) - 1)
    unit[unit < _LEAST_UNIT] = 1.0  # of a feature that is 0 in all vectors, or as good as that
    numbers = np.rint(vectors / unit).astype(_TYPES[bits])
    return replace(step, arrays={**step.arrays, "vectors": numbers, "unit": unit})


def error_bound(program: Program, other: Program) -> float:
    """Return a bound on how much the decision values of two programs with different vectors differ.

    The programs must differ in their vectors alone. The gradient of the Gaussian kernel is at most sqrt(2 gamma / e), so its
    value changes by at most that times the distance by which a vector has moved. A sum of kernel values changes by at most the
    sum of these changes times the sizes of the coefficients, and so on up to the decision value. For other kernels the bound is
    infinite, unless no vector has moved, because rows may be of any length. It is also infinite if a committee combines its
    experts, if decision values count votes, and if the nearest rows vote, because others may become the nearest.
    """
    changes = [np.zeros(len(program.columns))]
    for step, moved, width in zip(program.steps, other.steps, program.widths[1:], strict=True):
        changes.append(_change(step, moved, np.concatenate([changes[number] for number in step.of]), width))
    return float(changes[program.answer.decision].max(initial=0.0))


def _change(step: Step, moved: Step, taken: np.ndarray, width: int) -> np.ndarray:
    """Return by how much each number of a step's value changes at most, where those that it takes change by ``taken``."""
    way = np.sqrt(np.square(vectors_of(step) - vectors_of(moved)).sum(axis=1)) if "vectors" in step.arrays else np.zeros(0)
    if not way.any() and not taken.any():
        return np.zeros(width)
    if np.isfinite(taken).all():
        if step.do == "kernel" and step.options["kind"] == "rbf" and not taken.any():
            return np.minimum(math.sqrt(2.0 * step.options["gamma"] / math.e) * way, 1.0)
        if step.do == "linear":
            return np.asarray(np.abs(step.arrays["weights"]) @ taken)
        if step.do in ("select", "join"):
            return taken[step.arrays["columns"]] if step.do == "select" else taken
    return np.full(width, math.inf)
