"""Losses, options and solutions of the linear solvers, and their files in a work folder."""

from __future__ import annotations

import json
import os
import zlib
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.files.container import ModelFileError, pack_container, unpack_container
from streamsvm.linear.block_file import Block, BlockFile
from streamsvm.linear.block_writer import add_path_to_errors


def save_state(path: Path, values: dict[str, Any], w: np.ndarray) -> None:
    """Save the state of a fit to the file ``path``: ``values`` as JSON and the weights ``w`` float64 [n]. The file is replaced
    atomically, so a crash leaves the old or the new one.
    """
    data = pack_container({"w": w}, {"facts": json.dumps(values)})
    partial = path.with_name(f"{path.name}.partial")
    with add_path_to_errors("the state of a fit was saved", partial):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def load_state(path: Path, problem: dict[str, Any], size: int) -> tuple[dict[str, Any], np.ndarray] | None:
    """Load the state of a fit from the file ``path``: a dictionary of values, and the weights, float64 [size]. Return None if the
    file is missing or corrupt, or if it was saved for a fit with another description ``problem`` (such as its rows, loss and
    options) or number of weights.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        container = unpack_container(data)
        w, values = container.arrays["w"], json.loads(container.strings["facts"])
    except (ModelFileError, ValueError, KeyError, RecursionError):
        return None
    if w.dtype != np.float64 or w.shape != (size,):
        return None
    if not isinstance(values, dict) or values.get("problem") != problem or not np.isfinite(w).all():
        return None
    return values, w.copy()


class LinearLoss(NamedTuple):
    """The loss function, and the constant feature of all rows."""

    regression: bool
    squared: bool
    epsilon: float
    constant: float  # value of the constant feature; 0 without an intercept
    positive: float  # in classification, the label whose target is +1
    C_positive: float  # C of the positive class for rows of weight 1; in regression, both are equal
    C_negative: float


def read_loss(values: list[Any]) -> LinearLoss:
    """Return the loss function from a list of its parameters in a state file. Raise a ValueError or TypeError if the list is
    corrupt.
    """
    regression, squared, *numbers = values
    epsilon, constant, positive, C_positive, C_negative = map(float, numbers)
    return LinearLoss(bool(regression), bool(squared), epsilon, constant, positive, C_positive, C_negative)


@compiled(inline=True)
def encode_target(label: float, loss: LinearLoss) -> float:
    """Return the number that the solver uses for a label: +1 for the positive class and -1 for the other one; in regression, the
    label itself.
    """
    return label if loss.regression else 1.0 if label == loss.positive else -1.0


@compiled(inline=True)
def get_weight(block: Block, i: int) -> float:
    """Return the weight of row ``i`` of ``block`` (arrays of some training rows), which is 1 if its rows have no weights."""
    return block.weights[i] if len(block.weights) else 1.0


@compiled(inline=True)
def compute_bounds(target: float, weight: float, loss: LinearLoss) -> tuple[float, float, float]:
    """Return the lower and the upper bound of a row's dual coefficient, and the curvature that a squared loss adds to the dual
    objective (0 otherwise). ``target`` and ``weight`` are those of the row.
    """
    C = weight * (loss.C_positive if target > 0.0 else loss.C_negative)
    bound, d = (np.inf, 0.5 / C) if loss.squared else (C, 0.0)
    if loss.regression:
        return -bound, bound, d
    return (0.0, bound, d) if target > 0.0 else (-bound, 0.0, d)


@compiled(inline=True)
def compute_cost(target: float, weight: float, f: float, loss: LinearLoss) -> float:
    """Return the contribution of a row to the primal objective: its ``weight`` times C times its loss. The loss follows from the
    row's ``target`` and decision value ``f``.
    """
    C = weight * (loss.C_positive if target > 0.0 else loss.C_negative)
    error = max(abs(target - f) - loss.epsilon, 0.0) if loss.regression else max(1.0 - target * f, 0.0)
    return C * error * error if loss.squared else C * error


@compiled(inline=True)
def is_free(b: float, lower: float, upper: float, loss: LinearLoss) -> bool:
    """Return whether the dual coefficient ``b`` of a row is free, that is, strictly between its bounds ``lower`` and ``upper``.

    In regression, 0 is a bound, too, because b is the difference of two non-negative variables.
    """
    return lower < b < upper and (b != 0.0 or not loss.regression)


class LinearOptions(NamedTuple):
    """The options of a solver."""

    tol: float  # duality gap, relative to the primal objective, that ends the fit
    max_iter: int  # maximum number of passes, each with as many steps as there are rows
    working_set_block_bytes: int
    verbose: bool


class Pass(NamedTuple):
    """A pass over rows, in the ``history_`` of a fitted machine."""

    kind: str
    """The kind of the pass. ``"all"``: a step for every row. ``"working set"``: steps for the free rows only. ``"gap"``: a
    measurement of the duality gap. ``"newton"``: a trial step of Newton's method.
    """
    rows: int
    """Number of rows that were updated or measured."""
    free: int
    """Number of rows whose coefficients were free afterwards; with Newton's method, number of rows with a positive loss."""
    C: float
    """C of the stage, times the weight of the positive class."""
    primal: float
    """The primal objective. For a pass over all rows, it is an estimate from before its steps; NaN if it is unknown."""
    dual: float
    """The dual objective."""
    seconds: float
    """Seconds since the fit began."""


class LinearSolution(NamedTuple):
    """The result of a solver."""

    w: np.ndarray  # float64 [features + 1]
    primal: float
    dual: float
    passes: float  # steps, in units of the number of rows
    history: list[Pass]


def save_solution(folder: Path, file: BlockFile, loss: LinearLoss, options: LinearOptions, solution: LinearSolution) -> None:
    """Save a solution in ``folder``, so that a later fit with the same rows, loss and options can load it instead of solving the
    problem again.
    """
    values = {"problem": _describe_problem(file, loss, options), **solution._asdict()}
    save_state(_make_solution_path(folder, file, loss, options), values, values.pop("w"))


def load_solution(folder: Path, file: BlockFile, loss: LinearLoss, options: LinearOptions) -> LinearSolution | None:
    """Load the solution that an earlier fit with the same rows, loss and options saved in ``folder``. Return None if it is
    missing or corrupt.
    """
    problem = _describe_problem(file, loss, options)
    saved = load_state(_make_solution_path(folder, file, loss, options), problem, file.shape[1] + 1)
    if saved is None:
        return None
    values, w = saved
    try:
        primal, dual, passes = (float(values[name]) for name in ("primal", "dual", "passes"))
        return LinearSolution(w, primal, dual, passes, [Pass(*fields) for fields in values["history"]])
    except (KeyError, TypeError, ValueError):
        return None


def remove_stale_solutions(folder: Path, file: BlockFile) -> None:
    """Remove the solutions in ``folder`` that were saved for other rows than those of ``file``."""
    for path in folder.glob("solution-*"):
        if not path.name.startswith(_make_path_prefix(file)):
            path.unlink()


def _describe_problem(file: BlockFile, loss: LinearLoss, options: LinearOptions) -> dict[str, object]:
    return {"rows": file.signature, "loss": list(loss), "tol": options.tol, "max_iter": options.max_iter}


def _make_solution_path(folder: Path, file: BlockFile, loss: LinearLoss, options: LinearOptions) -> Path:
    problem = json.dumps([loss, options.tol, options.max_iter])
    return folder / f"{_make_path_prefix(file)}{zlib.crc32(problem.encode()):08x}"


def _make_path_prefix(file: BlockFile) -> str:
    return f"solution-{zlib.crc32(json.dumps(file.signature).encode()):08x}-"
