"""Losses, options and solutions of the linear solvers, and what of them is saved in a work folder or in machines."""

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
from streamsvm.linear.block_writer import explained_errors


def save_state(path: Path, facts: dict[str, Any], w: np.ndarray) -> None:
    """Replace a saved state by facts, which JSON can hold, and w float64 [n]. The earlier one stays whole until this one is."""
    data = pack_container({"w": w}, {"facts": json.dumps(facts)})
    partial = path.with_name(f"{path.name}.partial")
    with explained_errors("the state of a fit was saved", partial):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def load_state(path: Path, problem: dict[str, Any], size: int) -> tuple[dict[str, Any], np.ndarray] | None:
    """Return the saved facts and w float64 [size]; None where there are none, or they are of another problem or corrupt."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        container = unpack_container(found)
        w, facts = container.arrays["w"], json.loads(container.strings["facts"])
    except (ModelFileError, ValueError, KeyError, RecursionError):
        return None
    if w.dtype != np.float64 or w.shape != (size,):
        return None
    if not isinstance(facts, dict) or facts.get("problem") != problem or not np.isfinite(w).all():
        return None
    return facts, w.copy()


class LinearLoss(NamedTuple):
    """The loss of rows, and the constant feature that all of them have."""

    regression: bool
    squared: bool
    epsilon: float
    constant: float  # value of the constant feature; 0: there is no intercept
    positive: float  # of classification: the label that stands for the target +1
    C_positive: float  # C of the rows of the positive class, of weight 1; in regression both are the same
    C_negative: float


def loss_of(values: list[Any]) -> LinearLoss:
    """Return a saved loss from a list, which may hold anything; ValueError or TypeError where it is corrupt."""
    regression, squared, *numbers = values
    epsilon, constant, positive, C_positive, C_negative = map(float, numbers)
    return LinearLoss(bool(regression), bool(squared), epsilon, constant, positive, C_positive, C_negative)


@compiled(inline=True)
def target_of(label: float, loss: LinearLoss) -> float:
    """Return the target that a label stands for."""
    return label if loss.regression else 1.0 if label == loss.positive else -1.0


@compiled(inline=True)
def weight_of(block: Block, i: int) -> float:
    """Return the weight of a row."""
    return block.weights[i] if len(block.weights) else 1.0


@compiled(inline=True)
def bounds(target: float, weight: float, loss: LinearLoss) -> tuple[float, float, float]:
    """Return the lower and the upper bound of a row's coefficient, and its curvature d in the dual objective."""
    C = weight * (loss.C_positive if target > 0.0 else loss.C_negative)
    end, d = (np.inf, 0.5 / C) if loss.squared else (C, 0.0)
    if loss.regression:
        return -end, end, d
    return (0.0, end, d) if target > 0.0 else (-end, 0.0, d)


@compiled(inline=True)
def cost(target: float, weight: float, f: float, loss: LinearLoss) -> float:
    """Return the cost of a row whose decision value is f."""
    C = weight * (loss.C_positive if target > 0.0 else loss.C_negative)
    error = max(abs(target - f) - loss.epsilon, 0.0) if loss.regression else max(1.0 - target * f, 0.0)
    return C * error * error if loss.squared else C * error


@compiled(inline=True)
def is_free(b: float, lower: float, upper: float, loss: LinearLoss) -> bool:
    """Tell whether a coefficient is at no bound. In regression 0 is one: of the two variables whose difference b is."""
    return lower < b < upper and (b != 0.0 or not loss.regression)


class LinearOptions(NamedTuple):
    """The options of a solver."""

    tol: float  # duality gap, relative to the primal objective, at which it ends
    max_iter: int  # passes, of as many steps as there are rows, at most
    working_set_bytes: int  # size of a block of the working set
    verbose: bool


class Pass(NamedTuple):
    """A pass over rows, in the ``history_`` of a fitted machine."""

    kind: str
    """The kind of the pass. ``"all"``: it stepped every row. ``"working set"``: it stepped the free rows. ``"gap"``: it measured
    the duality gap. ``"newton"``: it tried a step of Newton's method.
    """
    rows: int
    """Number of rows that were stepped or measured."""
    free: int
    """Number of rows whose coefficients were free afterwards; with Newton's method, number of rows that cost something."""
    C: float
    """C of the stage, times the weight of the positive class."""
    primal: float
    """The primal objective. For a pass over all rows, it is an estimate from before its steps; NaN if it is not known."""
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
    """Save a solution for the next fit that asks for the same."""
    facts = {"problem": _problem_facts(file, loss, options), **solution._asdict()}
    save_state(_solution_path(folder, file, loss, options), facts, facts.pop("w"))


def load_solution(folder: Path, file: BlockFile, loss: LinearLoss, options: LinearOptions) -> LinearSolution | None:
    """Return the saved solution of the same problem; None where there is none or it is corrupt."""
    found = load_state(_solution_path(folder, file, loss, options), _problem_facts(file, loss, options), file.shape[1] + 1)
    if found is None:
        return None
    facts, w = found
    try:
        primal, dual, passes = (float(facts[name]) for name in ("primal", "dual", "passes"))
        return LinearSolution(w, primal, dual, passes, [Pass(*values) for values in facts["history"]])
    except (KeyError, TypeError, ValueError):
        return None


def remove_stale_solutions(folder: Path, file: BlockFile) -> None:
    """Remove the saved solutions of problems with other rows."""
    for path in folder.glob("solution-*"):
        if not path.name.startswith(_path_prefix(file)):
            path.unlink()


def _problem_facts(file: BlockFile, loss: LinearLoss, options: LinearOptions) -> dict[str, object]:
    return {"rows": file.signature, "loss": list(loss), "tol": options.tol, "max_iter": options.max_iter}


def _solution_path(folder: Path, file: BlockFile, loss: LinearLoss, options: LinearOptions) -> Path:
    problem = json.dumps([loss, options.tol, options.max_iter])
    return folder / f"{_path_prefix(file)}{zlib.crc32(problem.encode()):08x}"


def _path_prefix(file: BlockFile) -> str:
    return f"solution-{zlib.crc32(json.dumps(file.signature).encode()):08x}-"
