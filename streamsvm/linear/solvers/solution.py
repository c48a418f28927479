"""Options and solutions of the linear solvers, and solutions that are saved in a work folder."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamsvm.linear.files.block_file import BlockFile
from streamsvm.linear.solvers import state
from streamsvm.linear.solvers.loss import Loss

__all__ = ["Options", "Pass", "Solution", "load_solution", "remove_stale_solutions", "save_solution"]


class Options(NamedTuple):
    """The options of a solver."""

    tol: float  # duality gap, relative to the primal objective, at which it ends
    max_iter: int  # passes, of as many steps as there are rows, at most
    working_set_bytes: int  # size of a block of the working set
    verbose: bool


class Pass(NamedTuple):
    """A pass over rows, in the ``history_`` of a fitted machine."""

    kind: str
    """What the pass did. ``"all"``: it stepped every row. ``"working set"``: it stepped the free rows. ``"gap"``: it measured
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


class Solution(NamedTuple):
    """The result of a solver."""

    w: np.ndarray  # float64 [features + 1]
    primal: float
    dual: float
    passes: float  # steps, in units of the number of rows
    history: list[Pass]


def save_solution(folder: Path, file: BlockFile, loss: Loss, options: Options, solution: Solution) -> None:
    """Save a solution for the next fit that asks for the same."""
    facts = {"problem": _problem(file, loss, options), **solution._asdict()}
    state.save(_path(folder, file, loss, options), facts, facts.pop("w"))


def load_solution(folder: Path, file: BlockFile, loss: Loss, options: Options) -> Solution | None:
    """Return the saved solution of the same problem; None where there is none or it is corrupt."""
    found = state.load(_path(folder, file, loss, options), _problem(file, loss, options), file.shape[1] + 1)
    if found is None:
        return None
    facts, w = found
    try:
        primal, dual, passes = (float(facts[name]) for name in ("primal", "dual", "passes"))
        return Solution(w, primal, dual, passes, [Pass(*values) for values in facts["history"]])
    except (KeyError, TypeError, ValueError):
        return None


def remove_stale_solutions(folder: Path, file: BlockFile) -> None:
    """Remove the saved solutions of problems with other rows."""
    for path in folder.glob("solution-*"):
        if not path.name.startswith(_prefix(file)):
            path.unlink()


def _problem(file: BlockFile, loss: Loss, options: Options) -> dict[str, object]:
    return {"rows": file.signature, "loss": list(loss), "tol": options.tol, "max_iter": options.max_iter}


def _path(folder: Path, file: BlockFile, loss: Loss, options: Options) -> Path:
    problem = json.dumps([loss, options.tol, options.max_iter])
    return folder / f"{_prefix(file)}{zlib.crc32(problem.encode()):08x}"


def _prefix(file: BlockFile) -> str:
    return f"solution-{zlib.crc32(json.dumps(file.signature).encode()):08x}-"
