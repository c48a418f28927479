"""``streamsvm learn``: learn a stream, with checkpoints, predictions and progress.

With ``--scope partition`` it is a worker of a group, with a model for each of its partitions.
"""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import math
import shlex
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from streamsvm.cli import UsageError, printable
from streamsvm.cli.first_look import FirstRow, drawn, look, unanswered
from streamsvm.cli.logs import say, says_json
from streamsvm.cli.parsing import learner_and_settings, make_drift, make_metric, make_model, parse_classes, parse_positive
from streamsvm.cli.progress import Display
from streamsvm.cli.streams import delayed_of, looked_at, monitored, open_place, open_streams, options_of, stopping
from streamsvm.cli.tables import Table, table_of
from streamsvm.core.compiling.ahead import compile_ahead
from streamsvm.stream import CheckpointFolder, DelayedLearningLoop, LearningLoop, Source, StreamError
from streamsvm.stream.open import format_of, open_worker

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


def run(arguments: argparse.Namespace) -> bool:
    """Learn the source. Return whether the run was interrupted."""
    text_format = format_of(arguments.source, arguments.format)
    check_group(arguments)
    if arguments.label is None and text_format != "libsvm":
        raise UsageError("--label NAME: which column or key holds the label?")
    scale = arguments.scale or ("none" if text_format == "libsvm" else "standard")
    regression = arguments.regression
    if regression and (flag := "--positive" if arguments.positive else "--labels-are" if arguments.labels_are else None):
        raise UsageError(f"{flag} is about labels, and --regression predicts a number: leave one out")
    scaled_targets = regression and arguments.scale != "none"  # unlike features, they stay as sparse as they are
    if arguments.bound is not None and scale == "none" and not scaled_targets:
        why = "" if arguments.scale else f" of {text_format} text unless --scale standard asks for it"
        raise UsageError(f"--bound {arguments.bound:g} bounds scaled values, and nothing is scaled{why}: leave it out")
    how = {"text": arguments.learner, "regression": regression}
    learner = make_model(**how)  # a mistake there is said before any file is opened
    positive = parse_positive(arguments.positive, text_format)
    classes = parse_classes(arguments.labels_are, text_format)
    most = getattr(learner, "max_classes", len(classes or ()))
    if classes is not None and len(classes) > most:
        raise UsageError(
            f"--labels-are: {len(classes)} classes are declared, and the model has max_classes={most}; see --learner"
        )
    metric_name = arguments.metric or ("MAE" if regression else "Accuracy")
    metric = make_metric(metric_name, arguments.window, positive, regression)
    delayed = delayed_of(arguments, text_format)
    drift = make_drift(arguments.drift, arguments.on_drift, regression)

    def new_model(table: Table) -> Any:
        scaling = {"scale": scale == "standard", "scale_targets": scaled_targets, "deviations": arguments.bound}
        return make_model(**how, **scaling, encoder=table.encoder)

    same: dict[str, Any] = {"positive": positive, "classes": classes}
    same |= {name: getattr(arguments, name) for name in ("window", "error_limit", "error_share")} | arguments.checkpoint_every
    if arguments.scope == "partition":
        table = table_of(arguments, text_format, None)

        def new_loop(source: Source, folder: CheckpointFolder) -> LearningLoop:
            metric = make_metric(metric_name, arguments.window, positive, regression)
            drift = make_drift(arguments.drift, arguments.on_drift, regression)
            own = {"checkpoints": folder, "on_error": arguments.on_error, "drift": drift}
            return LearningLoop(source, new_model(table), metric, **own, **same)

        compile_ahead([_use(arguments)])
        return learn_partitions(arguments, new_loop)
    with contextlib.ExitStack() as stack:
        checkpoints = None
        if arguments.checkpoint is not None:
            checkpoints = open_place(arguments)
            stack.callback(checkpoints.close)
        with warnings.catch_warnings(action="ignore"):  # the loop warns of the same
            saved = None if checkpoints is None else checkpoints.newest()
        table = table_of(arguments, text_format, saved)
        # Once something was learned, the table is as it was; of LIBSVM text all is known.
        rows_may_fail = arguments.on_error != "stop"
        looked = saved is not None or text_format == "libsvm" or _look(arguments, text_format, table, rows_may_fail)
        model = new_model(table)
        source, sink, on_error = stack.enter_context(open_streams(arguments, table, checkpoints=checkpoints))
        display = stack.enter_context(Display(arguments.quiet, says_json(arguments)))
        label = arguments.label if arguments.labels is None else None  # else not in these rows
        make_loop = LearningLoop if delayed is None else partial(DelayedLearningLoop, delayed=delayed)
        loop = make_loop(
            source if looked else FirstRow(source, label, table, display.table, rows_may_fail),
            model,
            metric,
            sink=sink,
            checkpoints=checkpoints,
            on_progress=display.show,
            on_error=on_error,
            drift=drift,
            **same,
        )
        display.say(
            f"continuing after row {loop.rows:,}" if loop.rows else "starting",
            event="start",
            rows=loop.rows,
            source=source.name,
        )
        compile_ahead([_use(arguments)], say=display.compiling)
        with monitored(arguments, loop), stopping(loop.stop):
            end = loop.run(arguments.max_rows)
    if delayed is None and end.rows and not end.learned and not end.interrupted:
        raise StreamError(f"{source.name}: none of {end.rows:,} rows had a label, so nothing was learned. Is its name right?")
    if not (arguments.quiet or says_json(arguments)) and sys.stderr is not None and sys.stderr.isatty():
        print(printable(_next_step(arguments, end.interrupted)), file=sys.stderr)
    return end.interrupted


def _use(arguments: argparse.Namespace) -> str:
    """Return what has to be compiled, by the name that `compile_ahead` knows."""
    name = learner_and_settings(arguments.learner)[0]
    return f"{name} regression" if arguments.regression else name


def _next_step(arguments: argparse.Namespace, interrupted: bool) -> str:
    """Return what the user may want to do after a run."""
    if arguments.checkpoint is None:
        return "the model was not saved: give --checkpoint FOLDER to keep it"
    if interrupted:
        return "run the same command again to continue from here"
    return f"to predict other rows: streamsvm predict SOURCE --model {shlex.quote(str(arguments.checkpoint))} --to -"


def _look(arguments: argparse.Namespace, text_format: str | None, table: Table, rows_may_fail: bool) -> bool:
    """Show what each column is taken for; CommandError if one cannot be learned as it is. Return whether rows could be seen."""
    label = arguments.label if arguments.labels is None else None  # not in these rows
    n_rows, columns = look(arguments.source, text_format, label, looked_at(arguments, table), arguments.regression, rows_may_fail)
    if columns and not (arguments.quiet or says_json(arguments)):
        print(printable(drawn(arguments.source, n_rows, columns), newlines=True), file=sys.stderr)
    if (error := unanswered(arguments.source, columns, table, rows_may_fail)) is not None:
        raise error
    return n_rows > 0
