"""Makes programs smaller: fewer vectors (reduced sets), so that the tables of the exported C fit a number of bytes."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from streamsvm.batch.reduced_set import ReducedSet, choose_vectors, interpolate_rows
from streamsvm.core.kernels import KERNELS, Kernel
from streamsvm.edge.operations import compute_kernel_values
from streamsvm.edge.predictor import Predictor
from streamsvm.edge.program import ExportError, Program, run_program
from streamsvm.edge.step import Step, dequantise_vectors
from streamsvm.export.c.text import count_category_bytes
from streamsvm.export.c.writer import count_table_bytes
from streamsvm.export.compare import Comparison, compare_programs
from streamsvm.export.quantise import quantise_program, round_vectors

_SHRINKABLE = "kernel", "neighbours"  # operations whose number of vectors can be reduced
_QUANTISATION = "scale", "center"  # arrays that only quantised vectors have
_ROWS_PER_VECTOR, _MIN_ROWS, _MAX_ROWS = 20, 5000, 20_000  # rows for least squares


class Reduction(NamedTuple):
    """A program that was made smaller, and the loss of accuracy."""

    program: Program
    n_vectors: tuple[int, int]
    """Number of vectors before and after."""
    table_bytes: int
    """Bytes of the tables in C."""
    comparison: Comparison | None
    """The differences of the predictions for the rows X; None without rows."""

    def __str__(self) -> str:
        before, after = self.n_vectors
        text = f"{after:,} of {before:,} vectors, {self.table_bytes:,} bytes of tables"
        return text if self.comparison is None else f"{text}; {self.comparison}"


def reduce_program(
    program: Program, max_bytes: int, X: Any = None, *, bits: int = 32, passes: int = 40, seed: int = 0
) -> Reduction:
    """Make an exported model small enough that its constant tables in C take at most ``max_bytes``: with fewer support vectors,
    rounded to ``bits`` and refitted to predict as before, and if necessary simpler members of an ensemble. Returns the smaller
    program with its size and loss of accuracy.

    It chooses vectors that are far from each other, starting with large coefficients. It moves them so that the decision values
    on rows change as little as possible, fits the coefficients by least squares, and rounds the vectors to ``bits``
    (`quantise_program`). Rows near the decision boundary have the largest weights. All kernels of an ensemble lose the same share
    of their vectors, and its nearest neighbours the same share of their rows, chosen at random. A forest that would take more
    than half of the bytes is replaced by its mean vote. A program that is small enough is not changed.

    Parameters
    ----------
    program
        Program of a model, from `make_program`; it is not changed.
    max_bytes
        Maximum bytes of the constant tables, as `write_c` counts them, without names and code.
    X
        Rows like those to predict, [n, columns], without labels. They are used in addition to the vectors and rows between them,
        and to measure the loss of accuracy.
    bits
        Bits of the vectors, as in `quantise_program`.
    passes
        Maximum number of passes over the rows to move the vectors of a Gaussian kernel.
    seed
        Seed for the choice of vectors and rows.

    Returns
    -------
    Reduction

    Raises
    ------
    ExportError
        Even a single vector exceeds ``max_bytes``, or the number of vectors cannot be reduced (those of trees, random Fourier
        features or a sigmoid kernel).
    ValueError
        X has another number of columns.

    Notes
    -----
    A pass costs O(r B (B + d)) for B remaining vectors and r = 20 B rows, at least 5,000: 2 seconds for B = 100 and 22 features.

    References
    ----------
    Reduced sets, as in `streamsvm.batch.to_budget`.

    Examples
    --------
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.export.convert import make_program
    >>> model = BSGDClassifier(budget=100, gamma=4.0, seed=0)
    >>> for value in range(300):
    ...     model.learn_one({"a": value % 20}, value % 20 > 10)
    >>> reduction = reduce_program(make_program(model), 200)
    >>> reduction.table_bytes <= 200, reduction.n_vectors[1] < reduction.n_vectors[0]
    (True, True)
    """
    rows = None if X is None or not len(matrix := Predictor(program)._read_matrix(X)) else matrix
    candidate = program
    if count_table_bytes(round_vectors(program, bits)) > max_bytes:
        without_forest = _replace_forests_by_mean_vote(program)
        if 2 * (count_table_bytes(program) - count_table_bytes(without_forest)) > max_bytes:
            candidate = without_forest
    if count_table_bytes(round_vectors(candidate, bits)) <= max_bytes:
        small = candidate if bits == 32 else quantise_program(candidate, bits)
    else:
        small = _reduce_vectors(candidate, max_bytes, rows, bits, passes, np.random.default_rng(seed))
    before, after = (sum(len(step.arrays["vectors"]) for step in p.steps if step.op in _SHRINKABLE) for p in (program, small))
    comparison = None if rows is None else compare_programs(program, small, rows)
    reduction = Reduction(small, (before, after), count_table_bytes(small), comparison)
    if after < before or candidate is not program:
        small.metadata = {**program.metadata, "made smaller": str(reduction)}
    return reduction


def _reduce_vectors(
    program: Program, max_bytes: int, rows: np.ndarray | None, bits: int, passes: int, rng: np.random.Generator
) -> Program:
    """Return a copy of an exported model with fewer support vectors: as many as fit into ``max_bytes`` of tables in C, with
    integers of ``bits``. They are refitted in ``passes`` to predict as the original, also on ``rows``. Raises ExportError if not
    even one vector fits, or the kernel is not supported.
    """
    for step in program.steps:
        if step.op in ("trees", "fourier") or (step.op == "kernel" and step.options["kind"] not in KERNELS):
            part = f"a {step.options['kind']} kernel" if step.op == "kernel" else f"a step {step.op!r}"
            raise ExportError(f"a model with {part} cannot be made smaller: learn it with another kernel, or a smaller budget")
    largest = max((len(step.arrays["vectors"]) for step in program.steps if step.op in _SHRINKABLE), default=0)
    low, high = 0, largest  # bisection over the vectors of the largest step: ``low`` fit, ``high`` do not
    while high - low > 1:
        middle = (low + high) // 2
        fits = count_table_bytes(round_vectors(_truncate_vectors(program, middle, largest), bits)) <= max_bytes
        low, high = (middle, high) if fits else (low, middle)
    if low == 0:
        nbytes = count_table_bytes(round_vectors(_truncate_vectors(program, min(largest, 1), largest), bits))
        problem = "with one vector" if largest else "without a support vector"
        n_bytes = count_category_bytes(program) + program.text_nbytes
        names = f" ({n_bytes:,} of them for names and texts)" if n_bytes else ""
        problem = f"{problem} its tables have {nbytes:,} bytes{names}, more than max_bytes={max_bytes:,}"
        raise ExportError(f"{problem}: allow {nbytes} (--max-bytes {nbytes})")
    program = _sample_neighbours(program, low, largest, rng)
    return _fit_fewer_vectors(program, low, largest, rows, bits, passes, rng)


def _sample_neighbours(program: Program, n_vectors: int, largest: int, rng: np.random.Generator | None = None) -> Program:
    """Return a copy of an exported model whose k-nearest-neighbours members store fewer rows: the share ``n_vectors`` /
    ``largest`` of them, drawn by ``rng``, or without it the first ones.
    """
    steps = []
    for step in program.steps:
        arrays = step.arrays
        if step.op == "neighbours":
            n, count = len(arrays["vectors"]), _count_remaining(step, n_vectors, largest)
            sample = np.arange(count) if rng is None else np.sort(rng.permutation(n)[:count])
            arrays = {**arrays, **{name: arrays[name][sample] for name in ("vectors", "targets", "weights")}}
        steps.append(replace(step, arrays=arrays))
    return program.with_steps(steps)


def _replace_forests_by_mean_vote(program: Program) -> Program:
    """Return a copy of an exported model whose forests are replaced by a constant, the mean of the targets of all their leaves,
    which needs almost no memory.
    """
    steps, widths = [], program.widths
    for step, width in zip(program.steps, widths[1:], strict=True):
        if step.op == "forest":
            if "means" in step.arrays:
                votes = step.arrays["means"].astype(np.float64).mean(keepdims=True)
            else:
                counts = step.arrays["counts"].astype(np.float64).ravel()
                votes = counts @ (step.arrays["targets"].ravel()[:, None] == np.arange(width)) / counts.sum()
            step = Step("linear", step.inputs, {"weights": np.zeros((width, widths[step.inputs[0]])), "biases": votes}, {})
        steps.append(step)
    return program.with_steps(steps)


def _count_remaining(step: Step, n_vectors: int, largest: int) -> int:
    """Return how many vectors remain in a step (an operation) of an exported model when the model is reduced to the share
    ``n_vectors`` / ``largest`` of its vectors, rounded up.
    """
    return math.ceil(len(step.arrays["vectors"]) * n_vectors / largest) if largest else 0


def _truncate_vectors(program: Program, n_vectors: int, largest: int) -> Program:
    """Return a copy of an exported model with only the first support vectors of each kernel, the share ``n_vectors`` /
    ``largest``. Its predictions are useless: it only serves to measure how large the model is when it is reduced to this share.
    """
    program = _sample_neighbours(program, n_vectors, largest)
    counts = {i: _count_remaining(step, n_vectors, largest) for i, step in enumerate(program.steps, 1) if step.op == "kernel"}
    vectors = {i: dequantise_vectors(program.steps[i - 1])[:count] for i, count in counts.items()}
    weights = {i: step.arrays["weights"][:, : counts[step.inputs[0]]] for i, step in _find_kernel_readers(program)}
    return _with_vectors(program, vectors, weights)


def _find_kernel_readers(program: Program) -> list[tuple[int, Step]]:
    """Return the operations of an exported model that read kernel values and sum them up with coefficients, as pairs of the index
    of their output and the step. Raises ExportError if kernel values are read by another kind of operation.
    """
    kernels = {number for number, step in enumerate(program.steps, 1) if step.op == "kernel"}
    readers = [(number, step) for number, step in enumerate(program.steps, 1) if kernels.intersection(step.inputs)]
    if any(step.op != "linear" for _, step in readers):
        raise ExportError("a model whose kernel values are not summed up cannot be made smaller")
    return readers


def _with_vectors(program: Program, vectors: dict[int, np.ndarray], weights: dict[int, np.ndarray]) -> Program:
    """Return a copy of an exported model with the support vectors and weights (coefficients) of some operations replaced.
    ``vectors`` and ``weights`` are dicts from the number of an operation, from 1, to its new array.
    """
    steps = []
    for number, step in enumerate(program.steps, 1):
        arrays = {name: array for name, array in step.arrays.items() if name not in _QUANTISATION or number not in vectors}
        for name, replacements in (("vectors", vectors), ("weights", weights)):
            if number in replacements:
                arrays[name] = np.ascontiguousarray(replacements[number])
        steps.append(replace(step, arrays=arrays))
    return program.with_steps(steps)


def _fit_fewer_vectors(
    program: Program, n_vectors: int, largest: int, rows: np.ndarray | None, bits: int, passes: int, rng: np.random.Generator
) -> Program:
    """Return a copy of an exported model with fewer support vectors, the share ``n_vectors`` / ``largest`` of each kernel,
    quantised to ``bits``. They are fitted to the original's decision values on ``rows`` and points drawn by ``rng``, in at most
    ``passes`` over these.
    """
    readers, vectors, problems = _find_kernel_readers(program), {}, {}
    for number, step in enumerate(program.steps, 1):
        count = _count_remaining(step, n_vectors, largest) if step.op == "kernel" else 0
        if count:
            fit_rows = _collect_fit_rows(program, step, rows, count, rng)
            own_readers = [reader for _, reader in readers if reader.inputs == (number,)]
            problems[number] = _make_least_squares(program, number, fit_rows, own_readers)
            vectors[number] = _choose_and_move_vectors(step, problems[number], own_readers, count, passes, rng)
    weights = {i: step.arrays["weights"] for i, step in readers}
    for number, problem in problems.items():
        solution, start = problem.solve_coefficients(vectors[number]).T, 0
        for i, reader in readers:
            if reader.inputs == (number,):
                weights[i] = solution[start : start + len(reader.arrays["biases"])]
                start += len(weights[i])
    return quantise_program(_with_vectors(program, vectors, weights), bits)


def _collect_fit_rows(program: Program, step: Step, X: np.ndarray | None, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows for fitting ``count`` new support vectors of the kernel ``step``, about 20 per vector, float32 [n, features]:
    the old vectors, points between them, and a sample of the user's rows X (at most half of all).

    X alone would not do: it may contain rows of one kind only, while the vectors come from all kinds.
    """
    n_rows = min(max(_ROWS_PER_VECTOR * count, _MIN_ROWS), _MAX_ROWS)
    vectors = dequantise_vectors(step).astype(np.float32)
    parts = [vectors] if len(vectors) <= n_rows else []
    if X is not None:
        sample = X if 2 * len(X) <= n_rows else X[np.sort(rng.permutation(len(X))[: n_rows // 2])]
        number = step.inputs[0]
        prefix = program.with_steps(program.steps[:number])
        prefix.answer = program.answer._replace(decision=number, choice=number)
        parts.append(run_program(prefix, sample)[0].astype(np.float32))
    n_between = max(n_rows - sum(map(len, parts)), len(vectors))
    return np.concatenate([*parts, interpolate_rows(vectors, n_between, rng)])


def _make_least_squares(program: Program, number: int, rows: np.ndarray, readers: list[Step]) -> ReducedSet:
    """Return the least-squares problem of replacing the support vectors of a kernel (step ``number`` of an exported model, from
    1) by fewer ones. The weighted sums of its kernel values, which the steps ``readers`` compute, should stay the same at
    ``rows``; rows near the decision boundary count more.
    """
    step = program.steps[number - 1]
    weights, biases = (np.concatenate([reader.arrays[name] for reader in readers]) for name in ("weights", "biases"))
    o = step.options
    kernel = Kernel(KERNELS[o["kind"]], o["gamma"], o["coef0"], o["degree"])
    targets = compute_kernel_values(step, dequantise_vectors(step), rows.astype(np.float64)) @ weights.T
    row_weights = np.ones(len(rows))
    if program.answer.kind == "class" and any(reader is program.steps[program.answer.choice - 1] for reader in readers):
        f = targets + biases
        ordered = np.sort(f, axis=1)
        margins = f[:, 0] if f.shape[1] == 1 else ordered[:, -1] - ordered[:, -2]
        row_weights = 1.0 / (1.0 + np.square(margins))
    return ReducedSet(kernel, rows, targets, row_weights)


def _choose_and_move_vectors(
    step: Step, problem: ReducedSet, readers: list[Step], count: int, passes: int, rng: np.random.Generator
) -> np.ndarray:
    """Return ``count`` new support vectors for a kernel, float32 [count, features]. ``rng`` draws them from those of ``step``,
    preferring large coefficients (in ``readers``) and distant vectors. Then they are moved, in at most ``passes``, to reduce the
    error of the least-squares ``problem``.
    """
    vectors = dequantise_vectors(step)
    sizes = np.max([np.abs(reader.arrays["weights"]).max(axis=0) for reader in readers], axis=0)
    chosen = choose_vectors(problem.kernel, vectors, sizes, count, rng)
    if not len(chosen):
        chosen = np.arange(min(count, 1))  # all coefficients are 0
    return problem.move_vectors(vectors[chosen], passes).astype(np.float32)
