"""``streamsvm predict``: predict the rows of a stream with the model of a checkpoint."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from streamsvm.cli.streams import open_streams, stopping
from streamsvm.cli.tables import table_of
from streamsvm.runtime import CheckpointFolder, Predicted, PredictionLoop
from streamsvm.runtime.checkpoint import read_model
from streamsvm.runtime.open import format_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> bool:
    """Predict the source. Return whether the run was interrupted."""
    saved = read_model(arguments.model, arguments.trusted)
    table = table_of(arguments, format_of(arguments.source, arguments.format), saved, predict=True)
    with contextlib.ExitStack() as stack:
        checkpoints = None if arguments.checkpoint is None else stack.enter_context(CheckpointFolder(arguments.checkpoint))
        source, sink = stack.enter_context(open_streams(arguments, table))
        loop = PredictionLoop(
            source,
            saved.model,
            sink,
            checkpoints=checkpoints,
            checkpoint_every=arguments.checkpoint_every,
            on_error=arguments.on_error,
            error_limit=arguments.error_limit,
            error_share=arguments.error_share,
        )
        if loop.rows and not arguments.quiet:
            print(f"going on after row {loop.rows:,}", file=sys.stderr)
        with stopping(loop.stop):
            end = loop.run(arguments.max_rows)
    _show(end, arguments.quiet)
    return end.interrupted


def _show(end: Predicted, quiet: bool) -> None:
    if quiet:
        facts = {"event": "end", "rows": end.rows, "predicted": end.predicted, "refused": dict(end.refused)}
        print(json.dumps(facts | {"interrupted": end.interrupted}))
        return
    counted = "".join(f"  {count:,} {kind}" for kind, count in end.refused.items())
    refused = f"  {sum(end.refused.values()):,} refused{counted}" if counted else ""
    print(f"{end.predicted:,} rows predicted{refused}", file=sys.stderr)
