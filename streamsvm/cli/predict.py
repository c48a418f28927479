"""``streamsvm predict``: predict the rows of a stream with the model of a checkpoint."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
import sys

from streamsvm.cli import UsageError
from streamsvm.cli.labels import without_key
from streamsvm.cli.streams import monitored, open_streams, stopping
from streamsvm.cli.tables import label_of, table_of
from streamsvm.runtime import CheckpointFolder, Predicted, PredictionLoop
from streamsvm.runtime.checkpoint import Checkpoint, read_model
from streamsvm.runtime.following import FollowedFolder
from streamsvm.runtime.open import format_of

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> bool:
    """Predict the source. Return whether the run was interrupted."""
    follow = None
    if arguments.follow:
        if not arguments.model.is_dir():
            raise UsageError(f"--follow: --model {arguments.model} must be a folder of checkpoints, which a learner writes")
        follow = FollowedFolder(arguments.model, arguments.trusted)
        if (found := _first(follow, arguments.quiet)) is None:
            return True
        saved = found
    else:
        saved = read_model(arguments.model, arguments.trusted)
    text_format = format_of(arguments.source, arguments.format)
    table = table_of(arguments, text_format, saved, predict=True)
    usual_label = None if text_format == "libsvm" else label_of(saved)
    with contextlib.ExitStack() as stack:
        checkpoints = None if arguments.checkpoint is None else stack.enter_context(CheckpointFolder(arguments.checkpoint))
        source, sink, on_error = stack.enter_context(open_streams(arguments, table, usual_label))
        loop = PredictionLoop(
            without_key(source, saved),
            saved.model,
            sink,
            follow=follow,
            version=saved.header["rows"] if follow is not None else 0,
            checkpoints=checkpoints,
            checkpoint_every=arguments.checkpoint_every,
            on_error=on_error,
            error_limit=arguments.error_limit,
            error_share=arguments.error_share,
        )
        before = loop.predicted
        if loop.rows and not arguments.quiet:
            print(f"going on after row {loop.rows:,}", file=sys.stderr)
        with monitored(arguments, loop), stopping(loop.stop):
            end = loop.run(arguments.max_rows)
    _show(end, before, arguments.quiet)
    return end.interrupted


def _first(follow: FollowedFolder, quiet: bool) -> Checkpoint | None:
    """Return the first model of a folder, as soon as there is one; None if the user does not want to wait."""
    if not (quiet or CheckpointFolder.signature(follow.path)):
        print(f"waiting for the first checkpoint in {follow.path}", file=sys.stderr)
    with stopping(follow.stop):
        return follow.wait()


def _show(end: Predicted, before: int, quiet: bool) -> None:
    if quiet:
        facts = {"event": "end", "rows": end.rows, "predicted": end.predicted, "refused": dict(end.refused)}
        print(json.dumps(facts | {"interrupted": end.interrupted}))
        return
    counted = "".join(f"  {count:,} {kind}" for kind, count in end.refused.items())
    refused = f"  {sum(end.refused.values()):,} refused{counted}" if counted else ""
    now = f", {end.predicted - before:,} of them in this run" if before else ""
    print(f"{end.predicted:,} row{'s' * (end.predicted != 1)} predicted{now}{refused}", file=sys.stderr)
