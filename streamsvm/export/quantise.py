"""Quantises programs: vectors become 16- or 8-bit integers, and coefficients are refitted to the rounded vectors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from streamsvm.edge.operations import compute_kernel_values
from streamsvm.edge.program import ExportError, Program
from streamsvm.edge.step import MAX_NUMBERS_AT_ONCE, Step, dequantise_vectors

_MIN_SCALE = 1e-19  # a smaller one has a square below float32's range, or makes rows of up to 1e18 overflow
_DTYPES = {16: np.int16, 8: np.int8}
_MAX_REFITTED_VECTORS = 5000  # the kernel matrix of the refit has 200 MB then
_RIDGE = 1e-9  # relative to the diagonal: vectors that are rounded to the same integers share a correction
_MAX_LOSS = 0.1  # of the norm: up to here, 1 % of labels change, or numbers by less than a tenth of their standard deviation


def quantise_program(program: Program, bits: int) -> Program:
    """Return a copy of a program (an exported model) whose support vectors are integers of 16 or 8 ``bits``, multiplied by a
    scale per feature. The coefficients are refitted, so that predictions change as little as possible. 32 bits change nothing.

    The scale of a feature is the largest absolute value in the vectors, divided by 32,767 or 127. For a Gaussian kernel, the
    integers count from the middle of the feature's range, and the scale is half the range, divided by the same. The coefficients
    are then refitted, so that the kernel expansion is as close as possible to the original one in the space of the kernel.
    Vectors of trees and of random Fourier features are not quantised. Rows that vote as nearest neighbours have at least 16
    bits, because they have no coefficients that could make up for their rounding.

    Parameters
    ----------
    program
        Program of a model, from `make_program`; it is not changed.
    bits
        Bits of a number: 32, 16 or 8.

    Raises
    ------
    ExportError
        ``bits`` has another value, or a kernel expansion changes by more than a tenth of its norm in the space of the kernel.

    Notes
    -----
    O(m^2 (m + features)) for m vectors. The coefficients are not refitted for a sigmoid kernel, which is not positive definite,
    and for more than 5,000 vectors.

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
    if bits not in (32, *_DTYPES):
        raise ExportError(f"bits must be 32, 16 or 8, not {bits!r}")
    refitted = _refit_coefficients(program, round_vectors(program, bits))
    _check_loss(program, refitted, bits)
    return refitted


def round_vectors(program: Program, bits: int) -> Program:
    """Return a copy of a program (an exported model) whose support vectors are rounded to integers of 16 or 8 ``bits``, with
    unchanged coefficients. It is a quick way to find out how large the more accurate result of `quantise_program` will be.
    """
    return program.with_steps(
        step if bits == 32 or step.op not in ("kernel", "neighbours") else _round_step(step, bits) for step in program.steps
    )


def _round_step(step: Step, bits: int) -> Step:
    """Return a copy of a step (an operation of an exported model) whose vectors, such as support vectors, are rounded to integers
    with a scale per feature. The integers have 16 or 8 ``bits``, and those of nearest neighbours always 16. A step whose vectors
    are already integers of at most this size is returned unchanged.
    """
    bits, stored = bits if step.op == "kernel" else 16, step.arrays["vectors"]
    if stored.dtype.kind == "i" and 8 * stored.itemsize <= bits:
        return step
    vectors, arrays = dequantise_vectors(step), dict(step.arrays)
    # A Gaussian kernel ignores a shift of rows and vectors. For kernels of products, a center would need a correction term.
    if len(vectors) and step.options.get("kind") == "rbf":
        arrays["center"] = (0.5 * vectors.min(axis=0) + 0.5 * vectors.max(axis=0)).astype(np.float32).astype(np.float64)
        vectors = vectors - arrays["center"]
    scale = np.abs(vectors).max(axis=0, initial=0.0) / (2 ** (bits - 1) - 1)
    scale[scale < _MIN_SCALE] = 1.0  # the feature is (nearly) the same in all vectors
    integers = np.rint(vectors / scale).astype(_DTYPES[bits])
    return replace(step, arrays={**arrays, "vectors": integers, "scale": scale})


class _ExpansionPair:
    """A kernel expansion (the ``linear`` step with the value ``number``, and its kernel) in a program and in a changed one."""

    def __init__(self, program: Program, changed: Program, number: int) -> None:
        self.weights, self.new_weights = (p.steps[number - 1].arrays["weights"] for p in (program, changed))
        self.kernel, self.new_kernel = (p.steps[program.steps[number - 1].inputs[0] - 1] for p in (program, changed))
        self.vectors, self.new_vectors = dequantise_vectors(self.kernel), dequantise_vectors(self.new_kernel)

    def compute_differences(self, X: np.ndarray) -> np.ndarray:
        """Return the original kernel expansion (sum of kernel values times coefficients) minus the changed one at each row of X
        [n, features], float64 [n, outputs].
        """
        return _evaluate_expansion(self.kernel, self.vectors, self.weights, X) - _evaluate_expansion(
            self.new_kernel, self.new_vectors, self.new_weights, X
        )

    def compute_norms(self) -> np.ndarray:
        """Return the norm of the difference between the original and the changed kernel expansion (sum of kernel values times
        coefficients) in the kernel's Hilbert space, float64 [outputs]. It includes a bound on its rounding error.
        """
        squares = (self.weights * self.compute_differences(self.vectors).T).sum(axis=1)
        squares -= (self.new_weights * self.compute_differences(self.new_vectors).T).sum(axis=1)
        sizes = np.abs(self.weights).sum(axis=1) + np.abs(self.new_weights).sum(axis=1)
        return np.asarray(np.sqrt(np.maximum(squares, 0.0) + np.finfo(np.float64).eps * np.square(sizes)))


def _evaluate_expansion(kernel: Step, vectors: np.ndarray, weights: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Evaluate a kernel expansion, the sum of kernel values with ``vectors`` [m, features] times ``weights`` [outputs, m], at
    rows X [n, features]. ``kernel`` is the step with the kernel's parameters. Returns float64 [n, outputs], without biases.
    """
    values, chunk_rows = np.empty((len(X), len(weights))), max(MAX_NUMBERS_AT_ONCE // max(len(vectors), 1), 1)
    for start in range(0, len(X), chunk_rows):
        chunk = slice(start, start + chunk_rows)
        values[chunk] = compute_kernel_values(kernel, vectors, X[chunk]) @ weights.T
    return values


def _iter_changed_expansions(program: Program, changed: Program) -> Iterator[tuple[int, _ExpansionPair]]:
    """Compare two versions of an exported model, and yield the kernel expansions (sums of kernel values times coefficients)
    whose support vectors differ: pairs of the index of the expansion's output and an object with both versions.
    """
    for number, reader in enumerate(program.steps, 1):
        input_step = reader.inputs[0] - 1
        if reader.op == "linear" and input_step >= 0 and program.steps[input_step].op == "kernel":
            pair = _ExpansionPair(program, changed, number)
            if (pair.vectors != pair.new_vectors).any():
                yield number, pair


def _refit_coefficients(program: Program, rounded: Program) -> Program:
    """Return a copy of ``rounded``, an exported model with rounded support vectors, whose coefficients are refitted: each kernel
    expansion becomes the orthogonal projection of the one in ``program``, the original, in the kernel's Hilbert space.

    The differences at the rounded vectors determine the corrections of the coefficients. What remains of the difference is
    orthogonal to the kernel functions of all rounded vectors.
    """
    steps = list(rounded.steps)
    for number, pair in _iter_changed_expansions(program, rounded):
        if pair.kernel.options["kind"] == "sigmoid" or len(pair.vectors) > _MAX_REFITTED_VECTORS:
            continue
        G = compute_kernel_values(pair.new_kernel, pair.new_vectors, pair.new_vectors)
        G[np.diag_indices(len(G))] *= 1.0 + _RIDGE
        G[np.diag_indices(len(G))] += np.finfo(np.float64).tiny  # a zero vector has a zero row in a kernel of products
        corrections = np.linalg.solve(G, pair.compute_differences(pair.new_vectors))
        weights = np.ascontiguousarray(pair.weights + corrections.T)
        steps[number - 1] = replace(steps[number - 1], arrays={**steps[number - 1].arrays, "weights": weights})
    return rounded.with_steps(steps)


def _check_loss(program: Program, quantised: Program, bits: int) -> None:
    """Raise ExportError if quantisation to this number of ``bits`` has changed an exported model too much: one of its sums of
    kernel values differs by more than a tenth of its norm (in the kernel's Hilbert space). A sigmoid kernel is not checked.
    """
    for _, pair in _iter_changed_expansions(program, quantised):
        before = (pair.weights * _evaluate_expansion(pair.kernel, pair.vectors, pair.weights, pair.vectors).T).sum()
        loss = math.sqrt(np.square(pair.compute_norms()).sum() / max(float(before), np.finfo(np.float64).tiny))
        if pair.kernel.options["kind"] != "sigmoid" and loss > _MAX_LOSS:
            percent, more_bits = 100.0 * min(loss, 1.0), 16 if bits == 8 else 32
            raise ExportError(
                f"vectors of {bits} bits would lose {percent:.0f}% of a kernel's sums, as they do where a value of "
                f"a feature is far from all others: ask for {more_bits} bits, or learn with scaling"
            )
