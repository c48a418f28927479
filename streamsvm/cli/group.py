"""``streamsvm learn --scope partition``: a worker of a group, with a model for each of its partitions."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from streamsvm.cli import UsageError
from streamsvm.cli.logs import say, says_json
from streamsvm.cli.streams import monitored, options_of, stopping
from streamsvm.stream import CheckpointFolder, LearningLoop, Source
from streamsvm.stream.open import open_worker

__all__ = ["check_group", "learn_partitions"]

_SECONDS = {False: 5.0, True: 1.0}  # between two lines, by whether it is quiet


def check_group(arguments: argparse.Namespace) -> None:
    """Raise a UsageError where the flags of a group do not fit together."""
    if arguments.scope == "global":
        return
    for flag, value in (("--group NAME", arguments.group), ("--checkpoint DIR", arguments.checkpoint)):
        if value is None:
            raise UsageError(f"--scope partition needs {flag}, which all workers share")
    if not isinstance(arguments.checkpoint, Path):
        raise UsageError(
            f"--scope partition keeps its models in a folder that all workers share: --checkpoint {arguments.checkpoint} is none"
        )
    for flag, value in (("--to", arguments.to), ("--labels", arguments.labels)):
        if value is not None:
            raise UsageError(f"{flag} is of one model, and --scope partition has one for each partition: leave it out")
    if arguments.on_error not in ("stop", "skip"):
        raise UsageError("--scope partition takes --on-error stop or skip: workers cannot write dead letters to one place")


def learn_partitions(arguments: argparse.Namespace, make_loop: Callable[[Source, CheckpointFolder], LearningLoop]) -> bool:
    """Learn the partitions that the group gives to this worker. Return whether the run was interrupted."""
    with contextlib.ExitStack() as stack:
        worker = open_worker(
            arguments.source,
            label=arguments.label,
            start=arguments.start,
            group=arguments.group,
            folder=arguments.checkpoint,
            make_loop=make_loop,
            stop_at_end=arguments.stop_at_end,
            trusted=arguments.trusted,
            **options_of(arguments, arguments.source),
        )
        stack.callback(worker.close)
        told = {"event": "start", "source": arguments.source, "group": arguments.group}
        logging.getLogger("streamsvm").info("a worker of the group %s begins", arguments.group, extra={"fields": told})
        interrupted = False

        def stop() -> None:
            nonlocal interrupted
            interrupted = True
            worker.stop()

        last = time.perf_counter()
        loops: dict[int, LearningLoop] = {}

        def show(_: Any) -> None:
            nonlocal last, loops
            loops = worker.loops or loops
            if time.perf_counter() - last >= _SECONDS[arguments.quiet]:
                last = time.perf_counter()
                _show(arguments, worker.rows, worker.loops, "progress")

        with monitored(arguments, worker), stopping(stop):
            worker.run(arguments.max_rows, show)
        _show(arguments, worker.rows, loops, "end")
    return interrupted


def _show(arguments: argparse.Namespace, rows: int, loops: dict[int, LearningLoop], event: str) -> None:
    found = {number: loop.progress for number, loop in loops.items()}
    if arguments.quiet or says_json(arguments):
        partitions = {
            str(number): {
                "rows": each.rows,
                "learned": each.learned,
                "metric_name": each.metric_name,
                "metric": each.metric if math.isfinite(each.metric) else None,
                "refused": dict(each.refused),
            }
            | ({} if each.drifts is None else {"drifts": each.drifts})
            for number, each in found.items()
        }
        if arguments.quiet:
            print(json.dumps({"event": event, "rows": rows, "partitions": partitions}, allow_nan=False), flush=True)
        else:
            say(arguments, f"{rows:,} rows", event, rows=rows, partitions=partitions)
        return
    parts = [
        f"partition {number}: {each.rows:,}" + (f", {each.metric_name} {each.metric:.4f}" if math.isfinite(each.metric) else "")
        for number, each in found.items()
    ]
    say(arguments, "; ".join([f"{rows:,} rows" + " in all" * (event == "end"), *parts]), event)
