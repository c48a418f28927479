"""Vectors as whole numbers of 16 or 8 bits, with a unit and a middle for each feature, and coefficients that make up for it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from streamsvm.edge.operations import compute_kernel_values
from streamsvm.edge.program import ExportError, Program
from streamsvm.edge.step import MAX_NUMBERS_AT_ONCE, Step, dequantise_vectors

_LEAST_UNIT = 1e-19  # whose square float has, and which makes of no row of up to 1e18 a number that it has not
_TYPES = {16: np.int16, 8: np.int8}
_MOST_REFITTED = 5000  # vectors whose coefficients are fitted: a matrix of kernel values has 200 MB then
_RIDGE = 1e-9  # of the diagonal: vectors that were rounded to the same numbers share what they have to make up for
_MOST_LOST = 0.1  # of the norm: up to there, 1 % of labels change, or numbers by less than a tenth of their deviation


def quantise_program(program: Program, bits: int) -> Program:
    """Return a program whose vectors are whole numbers of few bits, times a unit for each feature.

    The unit of a feature is its largest size in the vectors, divided by 32,767 or 127. Of a Gaussian kernel it is half the range
    of the feature, divided by the same, and numbers count from the middle of the range. The coefficients are then fitted so that
    the sum of the kernel values is the nearest one to what it was, in the space of the kernel. Vectors of trees and of random
    Fourier features stay as they are. Rows that vote as neighbours have 16 bits at least, because no coefficient makes up for
    their rounding.

    Parameters
    ----------
    program
        Program of a model, from `make_program`; it is not changed.
    bits
        Bits of a number: 32, 16 or 8.

    Raises
    ------
    ExportError
        There is no such number of bits, or the sums of a kernel lose their shape: more than a tenth of their norm in the space of
        the kernel.

    Notes
    -----
    O(m^2 (m + features)) for m vectors. Coefficients of a sigmoid kernel, which is no product in a space, and of more than 5,000
    vectors stay as they are.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.convert import make_program
    >>> model = BSGDClassifier(budget=10)
    >>> for value in range(10):
    ...     model.learn_one({"a": value}, value > 4)
    >>> program = make_program(model)
    >>> quantise_program(program, bits=8).nbytes < program.nbytes
    True
    """
    if bits not in (32, *_TYPES):
        raise ExportError(f"bits must be 32, 16 or 8, not {bits!r}")
    made = _refitted_program(program, round_vectors(program, bits))
    _refuse_lossy(program, made, bits)
    return made


def round_vectors(program: Program, bits: int) -> Program:
    """Return a program with rounded vectors, and coefficients as they were: as many bytes as `quantise_program` gives it."""
    return program.with_steps(
        step if bits == 32 or step.op not in ("kernel", "neighbours") else _rounded_step(step, bits) for step in program.steps
    )


def _rounded_step(step: Step, bits: int) -> Step:
    bits, given = bits if step.op == "kernel" else 16, step.arrays["vectors"]
    if given.dtype.kind == "i" and 8 * given.itemsize <= bits:
        return step
    vectors, arrays = dequantise_vectors(step), dict(step.arrays)
    if len(vectors) and step.options.get("kind") == "rbf":  # of a product, that of the middle would have to be added
        arrays["center"] = (0.5 * vectors.min(axis=0) + 0.5 * vectors.max(axis=0)).astype(np.float32).astype(np.float64)
        vectors = vectors - arrays["center"]
    unit = np.abs(vectors).max(axis=0, initial=0.0) / (2 ** (bits - 1) - 1)
    unit[unit < _LEAST_UNIT] = 1.0  # of a feature that is the same in all vectors, or as good as that
    numbers = np.rint(vectors / unit).astype(_TYPES[bits])
    return replace(step, arrays={**arrays, "vectors": numbers, "scale": unit})


class _Sums:
    """The sums of a kernel's values, by the ``linear`` step with the number ``number``, in a program and in another one."""

    def __init__(self, program: Program, other: Program, number: int) -> None:
        before, after = (some.steps[number - 1].arrays["weights"] for some in (program, other))
        self.step, self.moved = (some.steps[program.steps[number - 1].inputs[0] - 1] for some in (program, other))
        self.weights, self.others = before, after
        self.vectors, self.moved_vectors = dequantise_vectors(self.step), dequantise_vectors(self.moved)

    def changes(self, X: np.ndarray) -> np.ndarray:
        """Return what the sums at rows X [n, width] lack of what they were, float64 [n, outputs]."""
        return _step_values(self.step, self.vectors, self.weights, X) - _step_values(
            self.moved, self.moved_vectors, self.others, X
        )

    def norms(self) -> np.ndarray:
        """Return how far the sums are from what they were in the space of the kernel, float64 [outputs], rounding included."""
        squares = (self.weights * self.changes(self.vectors).T).sum(axis=1)
        squares -= (self.others * self.changes(self.moved_vectors).T).sum(axis=1)
        sizes = np.abs(self.weights).sum(axis=1) + np.abs(self.others).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(squares, 0.0) + np.finfo(np.float64).eps * np.square(sizes)))


def _step_values(step: Step, vectors: np.ndarray, weights: np.ndarray, X: np.ndarray) -> np.ndarray:
    values, size = np.empty((len(X), len(weights))), max(MAX_NUMBERS_AT_ONCE // max(len(vectors), 1), 1)
    for begin in range(0, len(X), size):
        values[begin : begin + size] = compute_kernel_values(step, vectors, X[begin : begin + size]) @ weights.T
    return values


def _moved_sums(program: Program, other: Program) -> Iterator[tuple[int, _Sums]]:
    """Give the sums of kernels whose vectors have moved, with the numbers of their values."""
    for number, reader in enumerate(program.steps, 1):
        place = reader.inputs[0] - 1
        if reader.op == "linear" and place >= 0 and program.steps[place].op == "kernel":
            found = _Sums(program, other, number)
            if (found.vectors != found.moved_vectors).any():
                yield number, found


def _refitted_program(program: Program, made: Program) -> Program:
    """Return a program with other coefficients, by which its sums are the projections of what they were.

    The changes of the sums at the moved vectors are what the changes of the coefficients have to make up for: what is left is
    orthogonal to the kernels at all moved vectors.
    """
    steps = list(made.steps)
    for number, sums in _moved_sums(program, made):
        if sums.step.options["kind"] == "sigmoid" or len(sums.vectors) > _MOST_REFITTED:
            continue
        G = compute_kernel_values(sums.moved, sums.moved_vectors, sums.moved_vectors)
        G[np.diag_indices(len(G))] *= 1.0 + _RIDGE
        G[np.diag_indices(len(G))] += np.finfo(np.float64).tiny  # of a vector of zeros in a product
        more = np.linalg.solve(G, sums.changes(sums.moved_vectors))
        weights = np.ascontiguousarray(sums.weights + more.T)
        steps[number - 1] = replace(steps[number - 1], arrays={**steps[number - 1].arrays, "weights": weights})
    return made.with_steps(steps)


def _refuse_lossy(program: Program, made: Program, bits: int) -> None:
    """Raise an ExportError if the sums of a kernel are others than they were; a sigmoid kernel has no norm that would tell."""
    for _, sums in _moved_sums(program, made):
        before = (sums.weights * _step_values(sums.step, sums.vectors, sums.weights, sums.vectors).T).sum()
        lost = math.sqrt(np.square(sums.norms()).sum() / max(float(before), np.finfo(np.float64).tiny))
        if sums.step.options["kind"] != "sigmoid" and lost > _MOST_LOST:
            share, more = 100.0 * min(lost, 1.0), 16 if bits == 8 else 32
            raise ExportError(
                f"vectors of {bits} bits would lose {share:.0f}% of a kernel's sums, as they do where a value of "
                f"a feature is far from all others: ask for {more} bits, or learn with scaling"
            )
