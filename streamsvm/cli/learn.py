"""``streamsvm learn``, ``merge`` and ``compile``: learn a stream, with checkpoints, predictions and progress.

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
import threading
import time
import warnings
from functools import partial
from typing import Any

from river import base

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import Reporter, as_usage_error, logs_json, select_job_flags
from streamsvm.cli.job import LearnJob
from streamsvm.cli.parsing import LEARNERS
from streamsvm.cli.progress import ProgressDisplay, scores_to_json
from streamsvm.cli.streams import (
    interruptible,
    open_checkpoint_store,
    open_streams,
    read_start_position,
    serve_metrics,
    stop_on_signals,
)
from streamsvm.cli.tables import combine_table_options
from streamsvm.core.checks import finite_or_none
from streamsvm.core.compiling.ahead_of_time import compile_ahead, list_components
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.machine_code import describe_status, is_available
from streamsvm.core.warning import warn
from streamsvm.stream import CheckpointError, CheckpointFolder, DelayedLearningLoop, LearningLoop, StreamError, WeightedSource
from streamsvm.stream.endpoints import Position
from streamsvm.stream.merging import CheckpointMerger, MergeResult
from streamsvm.stream.open import open_worker
from streamsvm.stream.prediction_fields import make_conformal_fields
from streamsvm.stream.rows import find_learner, format_names, split_pipeline
from streamsvm.stream.schema.schema_inference import infer_schema
from streamsvm.stream.schema.source_sample import SourceSample, sample_files, sample_pipe, sample_topic
from streamsvm.stream.tables.table_schema import TableOptions, TableSchema, format_flags, format_schema

_SECONDS = {False: 5.0, True: 1.0}  # between two lines, by whether it is quiet


def run_learn(arguments: argparse.Namespace) -> bool:
    """Learn the source. Return whether the run was interrupted."""
    job = LearnJob(**select_job_flags(LearnJob, arguments))
    return learn_partitions(job) if job.scope == "partition" else learn(job)


def learn(job: LearnJob) -> bool:
    """Learn one model. Return whether the run was interrupted."""
    with contextlib.ExitStack() as stack:
        checkpoints = None
        if job.checkpoint is not None:
            sources = [job.name] if job.label_stream is None else [job.name, job.label_stream.place]
            how = {"sources": sources, "group": job.group}
            checkpoints = stack.enter_context(open_checkpoint_store(job.checkpoint, job.trusted, **how))
        with warnings.catch_warnings(action="ignore"):  # the loop warns of the same
            saved = None if checkpoints is None else checkpoints.newest()
        begins: Position | None = None
        if checkpoints is not None and saved is not None and saved.is_start:
            begins = saved.get_position(checkpoints.path)
            saved = None
        table = combine_table_options(job.table_flags, job.text_format, job.label, saved)
        if begins is None and saved is None and checkpoints is not None and job.text_format is None:
            # Saved before the first row arrives: a run that is killed while it waits loses no row.
            begins = read_start_position(job, table)
            if begins is not None:
                checkpoints.save_start(begins)
        beginning = schema = None
        if saved is not None:
            job = job.as_regression() if isinstance(find_learner(saved.model), base.Regressor) and not job.regression else job
        elif (beginning := _beginning_of(job, begins)) is not None:
            if beginning.byte_stream is not None:
                stack.callback(beginning.byte_stream.close)
            job, table, schema = _look_first(job, beginning)
        room = None if saved is None else getattr(find_learner(saved.model), "max_features", None)
        model = job.make_model(encoder=table.encoder, schema=schema, room=room)
        source, sink, on_error = stack.enter_context(open_streams(job, table, checkpoints=checkpoints, beginning=beginning))
        display = stack.enter_context(ProgressDisplay(job.reporter))
        loop = (LearningLoop if job.label_stream is None else partial(DelayedLearningLoop, delayed=job.label_stream.buffer))(
            source,
            model,
            sink=sink,
            checkpoints=checkpoints,
            on_progress=display.show_progress,
            on_error=on_error,
            passthrough=job.passthrough,
            computed_fields=list(filter(None, [make_conformal_fields(model)])),
            **job.make_score(),
            **job.loop_limits,
        )
        display.attach_loop(loop)
        display.report_event(
            f"continuing after row {loop.rows:,}" if loop.rows else "starting",
            event="start",
            rows=loop.rows,
            source=source.name,
        )
        compile_ahead([job.compile_target], show_progress=display.show_compilation)
        with serve_metrics(job, loop), stop_on_signals(loop.stop):
            end = loop.run(job.max_rows)
    decides = split_pipeline(loop.model)[1]
    if missing := [label for label in getattr(decides, "costs", {}) if label not in getattr(decides, "labels", [label])]:
        warn(
            f"{source.name}: no row has had the label {format_names(missing, 5)}, whose cost or threshold was given. Is its name "
            "right?"
        )
    if job.label_stream is None and end.rows and not end.learned and not end.interrupted:
        raise StreamError(f"{source.name}: none of {end.rows:,} rows had a label, so nothing was learned. Is its name right?")
    if job.reporter.shows_text and sys.stderr is not None and sys.stderr.isatty():
        print(escape_unprintable(_next_step(job, end.interrupted)), file=sys.stderr)
    return end.interrupted


def _beginning_of(job: LearnJob, begins: Position | None) -> SourceSample | None:
    """Return the first rows of a source, and wait for them; None if its columns need no look, or it cannot be opened.

    Those of a stream with a URL come after the position where it ``begins``, if one is given.
    """

    def wait_on(name: str) -> bool:
        if job.metrics_port is not None:  # which are to be served meanwhile
            return False
        job.reporter.report_event(f"waiting for the first row of {name}", "waiting")
        return True

    if job.text_format == "libsvm":
        return None
    if job.text_format is None:
        how = {"label": job.label, "start": job.start, "stop_at_end": job.stop_at_end}
        position = begins if begins is None or job.label_stream is None else begins.get("rows")
        return sample_topic(job.name, wait_on, position, **how)
    if (found := sample_files(job.source, job.text_format)) is not None or job.text_format not in ("csv", "jsonl"):
        return found
    return sample_pipe(job.name, job.text_format, wait_on)


def _look_first(job: LearnJob, beginning: SourceSample) -> tuple[LearnJob, TableOptions, TableSchema]:
    """Guess the kind of each column from the first rows, and show it. Return the job, the options of the table, and its reading.

    Raises CommandError if the rows do not decide between two readings, no column is left to learn from, or the user wants to be
    asked (``--ask``).
    """
    label = job.label if job.label_stream is None else None  # which rows have
    seen = infer_schema(
        beginning,
        label,
        job.table_flags,
        regression=job.regression,
        non_feature_columns=job.non_feature_columns,
        rows_may_fail=job.on_error != "stop",
        asks_user=job.ask,
    )
    if seen.columns and job.reporter.shows_text:
        table = format_schema(beginning.name, seen.n_rows, seen.columns, format_flags)
        print(escape_unprintable(table, newlines=True), file=sys.stderr)
    if seen.problem is not None:
        raise CommandError(seen.format_error(beginning.name, format_flags, "--regression"))
    flags = format_flags(seen.new_options)
    if seen.is_target:
        with contextlib.suppress(UsageError):  # a flag is about labels
            job, flags = job.as_regression(), f"--regression {flags}".strip()
    if flags:
        text = f"read with {escape_unprintable(flags)} (other flags read it otherwise, and --ask stops here)"
        job.reporter.report_event(text, event="reading", flags=escape_unprintable(flags))
    schema = seen.make_schema(beginning.name, label, job.regression)
    return job, combine_table_options(seen.options, job.text_format, job.label), schema


def _next_step(job: LearnJob, interrupted: bool) -> str:
    if job.checkpoint is None:
        return "the model was not saved: give --checkpoint FOLDER to keep it"
    if interrupted:
        return "run the same command again to continue from here"
    return f"to predict other rows: streamsvm predict SOURCE --model {shlex.quote(str(job.checkpoint))} --to -"


def learn_partitions(job: LearnJob) -> bool:
    """Learn the partitions that the group gives to this worker. Return whether the run was interrupted."""
    encoder = combine_table_options(job.table_flags, job.text_format, job.label).encoder

    def new_loop(source: Any, folder: CheckpointFolder) -> LearningLoop:
        source = source if job.weight is None else WeightedSource(source, job.weight)
        how: dict[str, Any] = {"checkpoints": folder, "on_error": job.on_error} | job.make_score()
        return LearningLoop(source, job.make_model(encoder=encoder), **how, **job.loop_limits)

    compile_ahead([job.compile_target])
    with contextlib.ExitStack() as stack:
        worker = open_worker(
            job.name,
            label=job.label,
            start=job.start,
            group=job.group,
            folder=job.checkpoint,
            make_loop=new_loop,
            stop_at_end=job.stop_at_end,
            trusted=job.trusted,
        )
        stack.callback(worker.close)
        told = {"event": "start", "source": job.name, "group": job.group}
        logging.getLogger("streamsvm").info("a worker of the group %s begins", job.group, extra={"fields": told})
        interrupted = False

        def stop() -> None:
            nonlocal interrupted
            interrupted = True
            worker.stop()

        last = time.perf_counter()
        loops: dict[int, LearningLoop] = {}

        def show_loops(_: Any) -> None:
            nonlocal last, loops
            loops = worker.loops or loops
            if time.perf_counter() - last >= _SECONDS[job.reporter.quiet]:
                last = time.perf_counter()
                _show_rows(job.reporter, worker.rows, worker.loops, "progress")

        with serve_metrics(job, worker), stop_on_signals(stop):
            worker.run(job.max_rows, show_loops)
        _show_rows(job.reporter, worker.rows, loops, "end")
    return interrupted


def _show_rows(reporter: Reporter, rows: int, loops: dict[int, LearningLoop], event: str) -> None:
    progress = {number: loop.progress for number, loop in loops.items()}
    if not reporter.shows_text:
        partitions = {
            str(number): {
                "rows": report.rows,
                "learned": report.learned,
                "metric_name": report.metric_name,
                "metric": finite_or_none(report.metric),
                "scores": scores_to_json(report.scores),
                "refused": dict(report.refused),
            }
            | ({} if report.drifts is None else {"drifts": report.drifts})
            for number, report in progress.items()
        }
        if reporter.quiet:
            print(json.dumps({"event": event, "rows": rows, "partitions": partitions}, allow_nan=False), flush=True)
        else:
            reporter.report_event(f"{rows:,} rows", event, rows=rows, partitions=partitions)
        return
    most = None if event == "end" else 1
    parts = [
        f"partition {number}: {report.rows:,}"
        + "".join(f", {score.name} {score.value:.4f}" for score in report.scores[:most] if math.isfinite(score.value))
        for number, report in progress.items()
    ]
    reporter.report_event("; ".join([f"{rows:,} rows" + " in all" * (event == "end"), *parts]), event)


def run_merge(arguments: argparse.Namespace) -> bool:
    """Merge the models once, or with ``every`` until the user ends it. Return whether the run was interrupted before its end."""
    for folder in arguments.sources:
        if not folder.is_dir():
            raise CommandError(f"{folder} is not a folder of checkpoints: name one that a learner writes")
    reporter = Reporter(arguments.quiet, logs_json(arguments))
    checkpoints = open_checkpoint_store(arguments.into, arguments.trusted, sources=["merged"])
    try:
        merger, stopped = CheckpointMerger(arguments.sources, checkpoints, arguments.trusted), threading.Event()
        if arguments.every is None:
            with interruptible():
                merged = merger.step()
            if merged is None:
                raise CommandError(f"{', '.join(map(str, arguments.sources))}: there is no model yet that could be merged")
            _show_merged(merged, reporter)
            return False
        with stop_on_signals(stopped.set):
            while not stopped.is_set():
                if (merged := merger.step()) is not None:
                    _show_merged(merged, reporter)
                stopped.wait(arguments.every)
    except CheckpointError as error:
        hint = "BSGDClassifier or BSCAClassifier, their regressors, or a linear learner"
        raise CommandError(str(error).replace(hint, f"{hint} (--learner bsgd, bsca or linear)")) from error
    finally:
        checkpoints.close()
    return True


def _show_merged(merged: MergeResult, reporter: Reporter) -> None:
    if reporter.quiet:
        print(json.dumps({"event": "merged", "rows": merged.rows, "parts": merged.parts}), flush=True)
    n = len(merged.parts)
    text = f"{merged.rows:,} rows of {n} model{'s' * (n != 1)} merged"
    reporter.report_event(text, "merged", rows=merged.rows, parts=merged.parts)


def run_compile(arguments: argparse.Namespace) -> bool:
    """Compile the functions of estimators, and print how many. Return False: it was not interrupted."""
    uses = arguments.names or [name for name in list_components() if name.split()[0] in {*LEARNERS, "sources"}]

    def say(done: int, functions: int, name: str) -> None:
        if sys.stderr is None:
            return
        with contextlib.suppress(OSError):  # nobody has to read it
            end = "\033[K\r" if sys.stderr.isatty() else "\n"
            print(f"compiling {done + 1} of {functions}: {name}", end=end, file=sys.stderr)

    with as_usage_error(""):
        compiled = compile_ahead(uses, show_progress=say)
    if compiled:
        print(f"compiled {compiled} functions")
    else:
        print(describe_status() if is_available() or INTERPRETED else "nothing is left to compile")
    return False
