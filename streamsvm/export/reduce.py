"""Programs made smaller: fewer vectors, until the tables in C have no more than so many bytes."""

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
from streamsvm.export.c.text import names_bytes
from streamsvm.export.c.writer import count_table_bytes
from streamsvm.export.quantise import quantise_program, round_vectors

_SHRINKING = "kernel", "neighbours"
_PLACES = "scale", "center"  # of vectors that are whole numbers
_ROWS_A_VECTOR, _LEAST_ROWS, _MOST_ROWS = 20, 5000, 20_000  # of least squares


class Reduction(NamedTuple):
    """A program that was made smaller, and what that cost."""

    program: Program
    n_vectors: tuple[int, int]
    """Number of vectors before and after."""
    table_bytes: int
    """Bytes of the tables in C."""
    label_agreement: float | None
    """Share of the given rows whose label is the same as before; None without rows or labels."""
    rmse: float | None
    """Root mean square difference of the decision values on the given rows; None without rows."""

    def __str__(self) -> str:
        before, after = self.n_vectors
        text = f"{after:,} of {before:,} vectors, {self.table_bytes:,} bytes of tables"
        if self.rmse is not None:
            text += f"; decision values differ by {self.rmse:.3g} (root mean square)"
        if self.label_agreement is not None:
            text += f", {100.0 * self.label_agreement:.2f}% of the rows have the same label"
        return text


def reduce_program(
    program: Program, max_bytes: int, X: Any = None, *, bits: int = 32, passes: int = 40, seed: int = 0
) -> Reduction:
    """Make a program small enough that its tables in C take at most ``max_bytes``.

    It chooses vectors that are far from each other, those of large coefficients first, moves them so that decision values on
    rows stay as they were, fits their coefficients by least squares, and rounds the vectors to ``bits`` (`quantise_program`).
    Rows near the boundary count most. The kernels of an ensemble lose the same share of their vectors each, and its memory the
    same share of the rows that vote as nearest neighbours, by chance; or where more rows of X keep their label so, all of them,
    and votes as they do on average. Trees that would take more than half of the bytes always vote as they do on average. A
    program that is small enough stays as it is.

    Parameters
    ----------
    program
        Program of a model, from `make_program`; it is not changed.
    max_bytes
        Maximum bytes of the constant tables, as `write_c` counts them; names and code do not count.
    X
        Rows like those to predict, [n, columns], without labels. They are used on top of the vectors and rows between them, and
        to measure what the reduction costs.
    bits
        Bits of the vectors, as in `quantise_program`.
    passes
        Maximum number of passes over the rows in which the vectors of a Gaussian kernel are moved.
    seed
        Seed of the choice of vectors and rows.

    Returns
    -------
    Reduction

    Raises
    ------
    ExportError
        A single vector is too much, or the program has vectors whose number is fixed (those of trees, random Fourier features
        or a sigmoid kernel).
    ValueError
        X has another number of columns.

    Notes
    -----
    A pass costs O(r B (B + d)) for B vectors that stay and r = 20 B rows, at least 5,000: 2 seconds for B = 100 and 22
    features.

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
    >>> found = reduce_program(make_program(model), 200)
    >>> found.table_bytes <= 200, found.n_vectors[1] < found.n_vectors[0]
    (True, True)
    """
    rows = None if X is None else Predictor(program)._read_matrix(X)
    given = program
    if count_table_bytes(round_vectors(program, bits)) > max_bytes:
        without = _forgetful_program(program, "forest")
        if 2 * (count_table_bytes(program) - count_table_bytes(without)) > max_bytes:  # trees take over half of it
            given = without
    if count_table_bytes(round_vectors(given, bits)) <= max_bytes:
        small = given if bits == 32 else quantise_program(given, bits)
    else:
        how = max_bytes, rows, bits, passes
        remembers = rows is not None and len(rows) and any(step.op == "neighbours" for step in given.steps)
        ways = [given, _forgetful_program(given)] if remembers else [given]
        tried = [_fitting_program(way, *how, np.random.default_rng(seed)) for way in ways]
        small = min(tried, key=lambda found: _worse_by(*_cost_of(program, found, rows)))
    counts = tuple(sum(len(step.arrays["vectors"]) for step in some.steps if step.op in _SHRINKING) for some in (program, small))
    found = Reduction(small, (counts[0], counts[1]), count_table_bytes(small), *_cost_of(program, small, rows))
    if counts[1] < counts[0] or given is not program:
        small.metadata = {**program.metadata, "made smaller": str(found)}
    return found


def _worse_by(same: float | None, difference: float | None) -> tuple[float, float]:
    return -(same or 0.0), difference or 0.0


def _cost_of(program: Program, small: Program, rows: np.ndarray | None) -> tuple[float | None, float | None]:
    if rows is None or not len(rows):
        return None, None
    before, after = Predictor(program), Predictor(small)
    difference = np.asarray(before.decision_function_many(rows) - after.decision_function_many(rows))
    same = float((before.predict_many(rows) == after.predict_many(rows)).mean()) if before.kind == "class" else None
    return same, float(np.sqrt(np.square(difference).mean()))


def _fitting_program(
    program: Program, max_bytes: int, rows: np.ndarray | None, bits: int, passes: int, rng: np.random.Generator
) -> Program:
    for step in program.steps:
        if step.op in ("trees", "fourier") or (step.op == "kernel" and step.options["kind"] not in KERNELS):
            of = f"a {step.options['kind']} kernel" if step.op == "kernel" else f"a step {step.op!r}"
            raise ExportError(f"a model with {of} cannot be made smaller: learn it with another kernel, or a smaller budget")
    most = max((len(step.arrays["vectors"]) for step in program.steps if step.op in _SHRINKING), default=0)
    low, high = 0, most  # of the step with the most vectors: low are too few to ask, high too many
    while high - low > 1:
        middle = (low + high) // 2
        fits = count_table_bytes(round_vectors(_cut_program(program, middle, most), bits)) <= max_bytes
        low, high = (middle, high) if fits else (low, middle)
    if low == 0:
        least = count_table_bytes(round_vectors(_cut_program(program, min(most, 1), most), bits))
        what = "with one vector" if most else "without a support vector"
        names = f" ({of_names:,} of them for names)" if (of_names := names_bytes(program)) else ""
        raise ExportError(f"{what} its tables have {least:,} bytes{names}, more than max_bytes={max_bytes:,}: allow as many")
    return _replaced_vectors(_remembering_program(program, low, most, rng), low, most, rows, bits, passes, rng)


def _remembering_program(program: Program, vectors: int, most: int, rng: np.random.Generator | None = None) -> Program:
    """Return a program of which fewer rows vote as neighbours: the first ones, or any."""
    steps = []
    for step in program.steps:
        arrays = step.arrays
        if step.op == "neighbours":
            n, count = len(arrays["vectors"]), _count_kept(step, vectors, most)
            kept = np.arange(count) if rng is None else np.sort(rng.permutation(n)[:count])
            arrays = {**arrays, **{name: arrays[name][kept] for name in ("vectors", "targets", "weights")}}
        steps.append(replace(step, arrays=arrays))
    return program.with_steps(steps)


def _forgetful_program(program: Program, what: str = "neighbours") -> Program:
    """Return a program in which the mean vote of all rows stands for that of neighbours, or the mean of leaves for a forest."""
    steps, widths = [], program.widths
    for step, width in zip(program.steps, widths[1:], strict=True):
        if step.op == what:
            targets, weights = _told_by(step)
            each = targets[:, None] == np.arange(width) if step.options["labels"] else targets[:, None]
            arrays = {"weights": np.zeros((width, widths[step.inputs[0]])), "biases": weights @ each / weights.sum()}
            step = Step("linear", step.inputs, arrays, {})
        steps.append(step)
    return program.with_steps(steps)


def _told_by(step: Step) -> tuple[np.ndarray, np.ndarray]:
    """Return the targets that rows or leaves tell of, and what each weighs."""
    a = step.arrays
    if "means" in a:
        return a["means"].astype(np.float64), np.ones(len(a["means"]))
    weights = a["weights" if step.op == "neighbours" else "counts"]
    return a["targets"].astype(np.float64).ravel(), weights.astype(np.float64).ravel()


def _count_kept(step: Step, vectors: int, most: int) -> int:
    """Return how many vectors a step keeps where that with the most keeps ``vectors`` of ``most``."""
    return math.ceil(len(step.arrays["vectors"]) * vectors / most) if most else 0


def _cut_program(program: Program, vectors: int, most: int) -> Program:
    """Return a program with as many vectors as the one sought, whichever they are."""
    program = _remembering_program(program, vectors, most)
    kept = {
        number: np.arange(_count_kept(step, vectors, most)) for number, step in enumerate(program.steps, 1) if step.op == "kernel"
    }
    new = {number: dequantise_vectors(program.steps[number - 1])[some] for number, some in kept.items()}
    return _with_vectors(
        program, new, {i: step.arrays["weights"][:, kept[step.inputs[0]]] for i, step in _kernel_readers(program)}
    )


def _kernel_readers(program: Program) -> list[tuple[int, Step]]:
    """Return the steps that read kernel values, which are all ``linear``, with the numbers of their values."""
    kernels = {number for number, step in enumerate(program.steps, 1) if step.op == "kernel"}
    found = [(number, step) for number, step in enumerate(program.steps, 1) if kernels.intersection(step.inputs)]
    if any(step.op != "linear" for _, step in found):
        raise ExportError("a model with a step that reads kernel values, and is no sum, cannot be made smaller")
    return found


def _with_vectors(program: Program, vectors: dict[int, np.ndarray], weights: dict[int, np.ndarray]) -> Program:
    """Return a program with other vectors and weights, by the numbers of the values."""
    steps = []
    for number, step in enumerate(program.steps, 1):
        arrays = {name: array for name, array in step.arrays.items() if name not in _PLACES or number not in vectors}
        for name, given in (("vectors", vectors), ("weights", weights)):
            if number in given:
                arrays[name] = np.ascontiguousarray(given[number])
        steps.append(replace(step, arrays=arrays))
    return program.with_steps(steps)


def _replaced_vectors(
    program: Program, vectors: int, most: int, rows: np.ndarray | None, bits: int, passes: int, rng: np.random.Generator
) -> Program:
    readers, new, problems = _kernel_readers(program), {}, {}
    for number, step in enumerate(program.steps, 1):
        count = _count_kept(step, vectors, most) if step.op == "kernel" else 0
        if count:
            given = _rows_of_step(program, step, rows, count, rng)
            problems[number] = _least_squares_of(
                program, number, given, [reader for _, reader in readers if reader.inputs == (number,)]
            )
            new[number] = _moved_step(step, problems[number], readers, number, count, passes, rng)
    weights = {i: step.arrays["weights"] for i, step in readers}
    for number, problem in problems.items():
        solved, begin = problem.solve_coefficients(new[number]).T, 0
        for i, reader in readers:
            if reader.inputs == (number,):
                weights[i] = solved[begin : begin + len(reader.arrays["biases"])]
                begin += len(weights[i])
    return quantise_program(_with_vectors(program, new, weights), bits)


def _rows_of_step(program: Program, step: Step, rows: np.ndarray | None, count: int, rng: np.random.Generator) -> np.ndarray:
    """Return rows in the space of a step's vectors, float32: the vectors, rows between them, and as many of those given.

    Rows that are given may be of one kind, while vectors are of all.
    """
    needed = min(max(_ROWS_A_VECTOR * count, _LEAST_ROWS), _MOST_ROWS)
    own = dequantise_vectors(step).astype(np.float32)
    parts = [own] if len(own) <= needed else []
    if rows is not None and len(rows):
        given = rows if 2 * len(rows) <= needed else rows[np.sort(rng.permutation(len(rows))[: needed // 2])]
        number = step.inputs[0]
        before = program.with_steps(program.steps[:number])
        before.answer = program.answer._replace(decision=number, choice=number)
        parts.append(run_program(before, given)[0].astype(np.float32))
    between = max(needed - sum(map(len, parts)), len(own))
    return np.concatenate([*parts, interpolate_rows(own, between, rng)])


def _least_squares_of(program: Program, number: int, rows: np.ndarray, readers: list[Step]) -> ReducedSet:
    step = program.steps[number - 1]
    weights, biases = (np.concatenate([reader.arrays[name] for reader in readers]) for name in ("weights", "biases"))
    o = step.options
    kernel = Kernel(KERNELS[o["kind"]], o["gamma"], o["coef0"], o["degree"])
    targets = compute_kernel_values(step, dequantise_vectors(step), rows.astype(np.float64)) @ weights.T
    counts = np.ones(len(rows))
    if program.answer.kind == "class" and any(reader is program.steps[program.answer.choice - 1] for reader in readers):
        f = targets + biases
        ordered = np.sort(f, axis=1)
        counts = 1.0 / (1.0 + np.square(f[:, 0] if f.shape[1] == 1 else ordered[:, -1] - ordered[:, -2]))
    return ReducedSet(kernel, rows, targets, counts)


def _moved_step(
    step: Step,
    problem: ReducedSet,
    readers: list[tuple[int, Step]],
    number: int,
    count: int,
    passes: int,
    rng: np.random.Generator,
) -> np.ndarray:
    S = dequantise_vectors(step)
    sizes = np.max([np.abs(reader.arrays["weights"]).max(axis=0) for _, reader in readers if reader.inputs == (number,)], axis=0)
    chosen = choose_vectors(problem.kernel, S, sizes, count, rng)
    if not len(chosen):
        chosen = np.arange(min(count, 1))  # all coefficients are 0
    return problem.move_vectors(S[chosen], passes).astype(np.float32)
