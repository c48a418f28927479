"""``streamsvm inspect``: show the header of a checkpoint and the figures of its model, and draw what it has learned."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
import sys
from pathlib import Path

from streamsvm.cli import CommandError, UsageError, printable
from streamsvm.cli.outputs import check_written
from streamsvm.cli.streams import unwinding
from streamsvm.edge.program import ProgramError
from streamsvm.export import plots
from streamsvm.export.describe import program_of
from streamsvm.stream import LearningCurve
from streamsvm.stream.checkpoint import Checkpoint, read_newest
from streamsvm.stream.open import open_models
from streamsvm.stream.rows import learner_of

_FIGURES = ["budget", "n_support", "n_merges", "n_learned", "nbytes", "effective_gamma", "averaged", "labels", "feature_names"]


def run(arguments: argparse.Namespace) -> None:
    """Print a checkpoint's facts, one a line, and draw its learning curve and boundary where ``plot`` says.

    Raises
    ------
    UsageError
        No picture can be written there.
    CommandError
        There is nothing to draw.
    """
    if arguments.plot is not None:
        check_written("--plot", [arguments.plot], {"the model": arguments.path}, arguments.overwrite)
        _check(arguments.plot)
    checkpoint = newest(arguments.path, arguments.trusted)
    learner, header = learner_of(checkpoint.model), checkpoint.header
    curve, corrupt = None, ""
    if "curve" in header:
        try:
            curve = LearningCurve.of(header["curve"], header.get("rows"))
        except ValueError as error:
            corrupt = str(error)
    facts = header | {name: getattr(learner, name) for name in _FIGURES if hasattr(learner, name)}
    try:
        program = program_of(checkpoint.model)
        facts["export"] = {"columns": len(program.columns), "bytes": program.nbytes, "steps": [step.do for step in program.steps]}
    except ProgramError as error:
        facts["export"] = str(error)
    experts = [report._asdict() for report in getattr(learner, "experts", [])]
    if experts:
        del facts["averaged"]  # each expert has two outputs, and both are asked
        facts |= {"effort": learner.effort, "follows": learner.follows, "experts": experts}
    if arguments.json:
        print(json.dumps(facts, default=str, sort_keys=True))
    else:
        if "curve" in header:
            facts["curve"] = corrupt if curve is None else f"{len(curve.points)} points, one every {curve.every:,} rows"
        if isinstance(facts["export"], dict):
            facts["export"] = "{bytes:,} bytes of numbers, from rows of {columns:,} numbers".format(**facts["export"])
        if experts:
            lines = ("{weight:7.3f} of {name}, {output}; error {error:.3f}".format(**report) for report in experts)
            facts["experts"] = "\n".join(lines)
        facts = {printable(str(name)): value for name, value in facts.items()}
        width = max(map(len, facts)) + 2
        for name, value in facts.items():
            text = f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else printable(str(value), True)
            print(f"{name:<{width}}" + text.replace("\n", "\n" + " " * width))
    if arguments.plot is None:
        return
    if corrupt:
        raise CommandError(f"--plot: {corrupt}")
    try:
        with unwinding():
            left_out = plots.draw(arguments.plot, checkpoint.model, curve)
    except plots.DrawingError as error:
        raise CommandError(f"--plot: {error}") from None
    # Standard output may be JSON for scripts.
    print(printable(f"drawn: {arguments.plot}{''.join(f' ({reason})' for reason in left_out)}"), file=sys.stderr)


def newest(place: Path | str, trusted: bool) -> Checkpoint:
    """Read a file, or the newest checkpoint of a folder or a topic; CheckpointError or StreamError where there is none."""
    if isinstance(place, Path):
        return read_newest(place, trusted)
    with contextlib.closing(open_models(place, trusted=trusted)) as models:
        found: Checkpoint = models.read()
    return found


def _check(plot: Path) -> None:
    try:
        plots.check_path(plot)
    except plots.DrawingError as error:
        raise UsageError(f"--plot: {error}") from None
