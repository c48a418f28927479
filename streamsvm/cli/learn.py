"""``streamsvm learn``: learn a stream, with checkpoints, predictions and progress."""
# ruff: noqa: T201

from __future__ import annotations

import argparse
import contextlib
import shlex
import sys
import warnings
from functools import partial
from typing import Any

from streamsvm.cli import UsageError, printable
from streamsvm.cli.first_look import FirstRow, drawn, look, unanswered
from streamsvm.cli.group import check_group, learn_partitions
from streamsvm.cli.labels import delayed_of, looked_at
from streamsvm.cli.logs import says_json
from streamsvm.cli.parsing import make_drift, make_metric, make_model, parse_classes, parse_positive
from streamsvm.cli.progress import Display
from streamsvm.cli.streams import monitored, open_place, open_streams, stopping
from streamsvm.cli.tables import Table, table_of
from streamsvm.core.compiling.ahead import compile_ahead
from streamsvm.stream import CheckpointFolder, DelayedLearningLoop, LearningLoop, Source, StreamError
from streamsvm.stream.open import format_of

__all__ = ["run"]


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
    how = {"learner": arguments.model, "budget": arguments.budget, "settings": arguments.set, "regression": regression}
    learner = make_model(**how)  # a mistake there is said before any file is opened
    positive = parse_positive(arguments.positive, text_format)
    classes = parse_classes(arguments.labels_are, text_format)
    most = getattr(learner, "max_classes", len(classes or ()))
    if classes is not None and len(classes) > most:
        raise UsageError(f"--labels-are: {len(classes)} classes are declared, and the model has max_classes={most}; see --set")
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
    return f"{arguments.model} regression" if arguments.regression else str(arguments.model)


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
