"""``streamsvm learn``: learn a stream, with checkpoints, predictions and progress."""

from __future__ import annotations

import argparse
import contextlib

from streamsvm.cli import UsageError
from streamsvm.cli.parsing import make_metric, make_model, parse_positive
from streamsvm.cli.progress import Display
from streamsvm.cli.streams import open_streams, stopping
from streamsvm.runtime import CheckpointFolder, LearningLoop, StreamError
from streamsvm.runtime.open import format_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> bool:
    """Learn the source. Return whether the run was interrupted."""
    text_format = format_of(arguments.source, arguments.format)
    if arguments.label is None and text_format != "libsvm":
        raise UsageError("--label NAME: which column or key holds the label?")
    scale = arguments.scale or ("none" if text_format == "libsvm" else "standard")
    model = make_model(arguments.model, arguments.budget, arguments.set, scale == "standard")
    positive = parse_positive(arguments.positive, text_format)
    metric = make_metric(arguments.metric, arguments.window, positive)
    with contextlib.ExitStack() as stack:
        checkpoints = None if arguments.checkpoint is None else stack.enter_context(CheckpointFolder(arguments.checkpoint))
        display = stack.enter_context(Display(arguments.quiet))
        display.say("starting (the first run on a machine compiles for some seconds)")
        source, sink = stack.enter_context(open_streams(arguments))
        loop = LearningLoop(
            source,
            model,
            metric,
            positive=positive,
            sink=sink,
            checkpoints=checkpoints,
            checkpoint_every=arguments.checkpoint_every,
            window=arguments.window,
            on_progress=display.show,
        )
        if loop.rows:
            display.say(f"going on after row {loop.rows:,}")
        with stopping(loop.stop):
            end = loop.run(arguments.max_rows)
    if end.rows and not end.learned and not end.interrupted:
        raise StreamError(f"{source.name}: none of {end.rows:,} rows had a label, so nothing was learned. Is its name right?")
    return end.interrupted
