"""``streamsvm predict``: predict the rows of a stream with the model of a checkpoint."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
from pathlib import Path
from typing import Any

from streamsvm.cli import UsageError
from streamsvm.cli.logs import say, says_json
from streamsvm.cli.streams import monitored, open_streams, options_of, stopping, without_key
from streamsvm.cli.tables import label_of, table_of
from streamsvm.stream import CheckpointFolder, Predicted, PredictionLoop
from streamsvm.stream.checkpoint import Checkpoint, read_model
from streamsvm.stream.following import FollowedFolder
from streamsvm.stream.open import format_of, open_models


def run(arguments: argparse.Namespace) -> bool:
    """Predict the source. Return whether the run was interrupted."""
    if arguments.checkpoint is not None and not isinstance(arguments.checkpoint, Path):
        raise UsageError(f"--checkpoint {arguments.checkpoint}: the position of predictions takes a folder")
    with contextlib.ExitStack() as stack:
        models = _models(arguments, stack)
        saved = read_model(arguments.model, arguments.trusted) if models is None else _first(models, arguments)
        if saved is None:
            return True
        follow = models if arguments.follow else None
        text_format = format_of(arguments.source, arguments.format)
        table = table_of(arguments, text_format, saved, predict=True)
        usual_label = None if text_format == "libsvm" else label_of(saved)
        checkpoints = None if arguments.checkpoint is None else stack.enter_context(CheckpointFolder(arguments.checkpoint))
        source, sink, on_error = stack.enter_context(open_streams(arguments, table, usual_label))
        loop = PredictionLoop(
            without_key(source, saved),
            saved.model,
            sink,
            follow=follow,
            version=saved.header["rows"] if follow is not None else 0,
            checkpoints=checkpoints,
            **arguments.checkpoint_every,
            on_error=on_error,
            error_limit=arguments.error_limit,
            error_share=arguments.error_share,
        )
        before = loop.predicted
        if loop.rows or says_json(arguments):
            text = f"continuing after row {loop.rows:,}" if loop.rows else "starting"
            which = {"version": loop.version} if follow is not None else {}
            say(arguments, text, "start", rows=loop.rows, source=source.name, **which)
        with monitored(arguments, loop), stopping(loop.stop):
            end = loop.run(arguments.max_rows)
    _show(end, before, arguments)
    return end.interrupted


def _models(arguments: argparse.Namespace, stack: contextlib.ExitStack) -> Any:
    """Return what gives the models, where these are in a topic or are to be followed; else None."""
    place = arguments.model
    if not isinstance(place, Path):
        how = {"source": arguments.source, "trusted": arguments.trusted}
        models = open_models(place, **how, **options_of(arguments, place))
        stack.callback(models.close)
        return models
    if not arguments.follow:
        return None
    if place.exists() and not place.is_dir():
        raise UsageError(f"--follow: --model {place} must be a folder or topic of checkpoints, which a learner writes")
    return FollowedFolder(place, arguments.trusted)


def _first(models: Any, arguments: argparse.Namespace) -> Checkpoint | None:
    """Return the newest model; of models that are followed as soon as there is one, or None if the user does not want to wait."""
    if not arguments.follow:
        newest: Checkpoint = models.read()
        return newest
    if isinstance(models, FollowedFolder) and not CheckpointFolder.signature(models.path):
        say(arguments, f"waiting for the first checkpoint in {models.path}", "waiting")
    with stopping(models.stop):
        first: Checkpoint | None = models.wait()
    return first


def _show(end: Predicted, before: int, arguments: argparse.Namespace) -> None:
    facts = {"rows": end.rows, "predicted": end.predicted, "refused": dict(end.refused), "interrupted": end.interrupted}
    if arguments.quiet:
        print(json.dumps({"event": "end", **facts}))
        if not says_json(arguments):
            return
    counted = "".join(f"  {count:,} {kind}" for kind, count in end.refused.items())
    refused = f"  {sum(end.refused.values()):,} refused{counted}" if counted else ""
    now = f", {end.predicted - before:,} of them in this run" if before else ""
    say(arguments, f"{end.predicted:,} row{'s' * (end.predicted != 1)} predicted{now}{refused}", "end", **facts)
