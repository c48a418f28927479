"""What the linear solvers are asked for and what they find."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamsvm.linear.files.block_file import BlockFile
from streamsvm.linear.solvers import state
from streamsvm.linear.solvers.sweep import Loss

__all__ = ["Options", "Pass", "Solution", "forget", "recall", "remember"]


class Options(NamedTuple):
    """``tol``: of the gap, relative to the primal objective; ``max_iter``: passes over as many rows as there are."""

    tol: float
    max_iter: int
    undecided_bytes: int
    verbose: bool


class Pass(NamedTuple):
    """What a pass over rows did."""

    kind: str
    """``"all"``: every row got a step; ``"undecided"``: those that were; ``"measured"``: none, the gap was; ``"newton"``: all of
    them together made one step.
    """
    rows: int
    undecided: int
    """Rows at no bound after it; of a Newton step, that cost something."""
    C: float
    """Of the stage, times the weight of the positive class."""
    primal: float
    """The objective, of steps for all rows an estimate from before them; NaN: unknown."""
    dual: float
    seconds: float
    """Since the fit began."""


class Solution(NamedTuple):
    """What was found; ``passes``: over as many rows as there are."""

    w: np.ndarray
    """float64 [features + 1]"""
    primal: float
    dual: float
    passes: float
    history: list[Pass]


def remember(folder: Path, file: BlockFile, loss: Loss, options: Options, solution: Solution) -> None:
    """Keep a solution for who asks for the same again."""
    facts = {"problem": _problem(file, loss, options), **solution._asdict()}
    state.save(_path(folder, file, loss, options), facts, facts.pop("w"))


def recall(folder: Path, file: BlockFile, loss: Loss, options: Options) -> Solution | None:
    """What was kept of the same problem; None: nothing."""
    kept = state.load(_path(folder, file, loss, options), _problem(file, loss, options), file.shape[1] + 1)
    if kept is None:
        return None
    facts, w = kept
    try:
        primal, dual, passes = (float(facts[name]) for name in ("primal", "dual", "passes"))
        return Solution(w, primal, dual, passes, [Pass(*of) for of in facts["history"]])
    except (KeyError, TypeError, ValueError):
        return None


def _problem(file: BlockFile, loss: Loss, options: Options) -> dict[str, object]:
    return {"rows": file.signature, "loss": list(loss), "tol": options.tol, "max_iter": options.max_iter}


def _path(folder: Path, file: BlockFile, loss: Loss, options: Options) -> Path:
    problem = json.dumps([loss, options.tol, options.max_iter])
    return folder / f"{_prefix(file)}{zlib.crc32(problem.encode()):08x}"


def _prefix(file: BlockFile) -> str:
    return f"found-{zlib.crc32(json.dumps(file.signature).encode()):08x}-"


def forget(folder: Path, file: BlockFile) -> None:
    """Remove what was kept of problems with other rows."""
    for path in folder.glob("found-*"):
        if not path.name.startswith(_prefix(file)):
            path.unlink()
