"""``streamsvm learn``, ``merge`` and ``compile``: learn a stream, with checkpoints, predictions and progress.

With ``--scope partition``, ``learn`` is a worker of a consumer group, with a model for each of its partitions.
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
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.cli.arguments import Reporter, as_usage_error, logs_json, select_job_flags
from streamsvm.cli.job import LearnJob, PredictJob
from streamsvm.cli.outputs import check_differs_from_learner, check_may_overwrite
from streamsvm.cli.parsing import LEARNERS
from streamsvm.cli.progress import SECONDS_BETWEEN_LINES, ProgressDisplay, progress_to_json
from streamsvm.cli.streams import (
    interruptible,
    load_newest,
    open_checkpoint_store,
    open_job_sink,
    open_streams,
    parse_labels,
    read_start_position,
    serve_metrics,
    stop_on_signals,
    warn_of_learned_rows,
)
from streamsvm.cli.tables import combine_table_options
from streamsvm.core.compiling.ahead_of_time import compile_ahead, list_components
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.machine_code import describe_status, is_available
from streamsvm.core.warning import warn
from streamsvm.files.messages import format_count, format_names
from streamsvm.stream import DelayedLearningLoop, LearningLoop, Source, StreamError
from streamsvm.stream.checkpoint import Checkpoint, Checkpoints
from streamsvm.stream.endpoints import Position
from streamsvm.stream.merging import CheckpointMerger, MergeResult
from streamsvm.stream.open import open_worker
from streamsvm.stream.prediction_fields import make_conformal_fields
from streamsvm.stream.rows import find_learner, split_pipeline
from streamsvm.stream.schema.schema_inference import infer_schema
from streamsvm.stream.schema.source_sample import SourceSample, sample_files, sample_pipe, sample_topic
from streamsvm.stream.stream_loop import StreamLoop
from streamsvm.stream.tables import TableParser
from streamsvm.stream.tables.column_kinds import DROP, DURATION, QUANTITY
from streamsvm.stream.tables.table_schema import TableOptions, TableSchema, format_flags, format_schema


def run_learn(arguments: argparse.Namespace) -> bool:
    """Run ``streamsvm learn`` with the parsed ``arguments``. Return whether the run was interrupted (Ctrl-C or SIGTERM)."""
    job = LearnJob(**select_job_flags(LearnJob, arguments))
    return learn_partitions(job) if job.scope == "partition" else learn_stream(job)


def learn_stream(job: LearnJob) -> bool:
    """Learn one model from the stream of a job, with predictions and checkpoints. Return whether the run was interrupted."""
    with contextlib.ExitStack() as stack:
        checkpoints = None
        if job.checkpoint is not None:
            sources = [job.source_name] if job.label_stream is None else [job.source_name, job.label_stream.place]
            store = open_checkpoint_store(job.checkpoint, job.trusted, job.retention, sources=sources, group=job.group)
            checkpoints = stack.enter_context(store)
        with warnings.catch_warnings(action="ignore"):  # the loop will repeat these warnings
            saved = None if checkpoints is None else checkpoints.newest()
        start_position: Position | None = None
        if checkpoints is not None and saved is not None and saved.is_start:
            start_position = saved.get_position(checkpoints.path)
            saved = None
        start = None
        if saved is None and job.start_from is not None:
            saved = start = load_newest(job.start_from, job.trusted)
            check_differs_from_learner({"--to": str(job.to), "--on-error": job.on_error}, start)
        job, kept_model = job.continue_from(saved)
        table = combine_table_options(job.table_flags, job.text_format, job.row_label, saved)
        if start_position is None and saved is None and checkpoints is not None and job.text_format is None:
            # Saved before the first row arrives, so that a run that is killed while it waits loses no rows.
            start_position = read_start_position(job, table)
            if start_position is not None:
                checkpoints.save_start(start_position)
        if start is not None:
            warn_of_learned_rows(job, table, start)
        sample = schema = None
        if saved is None and (sample := _sample_source(job, table, start_position)) is not None:
            if sample.byte_stream is not None:
                stack.callback(sample.byte_stream.close)
            job, table, schema = _infer_schema(job, sample)
        max_features = None if saved is None else getattr(find_learner(saved.model), "max_features", None)
        model = job.make_model(table.encoder, schema, max_features) if kept_model is None else kept_model
        source, sink, on_error = stack.enter_context(open_streams(job, table, checkpoints=checkpoints, sample=sample))
        display = stack.enter_context(ProgressDisplay(job.reporter))
        loop = (LearningLoop if job.label_stream is None else partial(DelayedLearningLoop, delayed=job.label_stream.buffer))(
            source,
            None if model is kept_model else model,
            sink=sink,
            checkpoints=checkpoints,
            on_progress=display.show_progress,
            on_error=on_error,
            passthrough=job.passthrough,
            computed_fields=list(filter(None, [make_conformal_fields(model)])),
            start_from=start or job.start_from,
            flags=job.kept_flags,
            **job.make_score_parameters(),
            **job.loop_limits,
        )
        display.attach_loop(loop)
        loop.watch_gaps()
        text = f"continuing after row {loop.rows:,}" if loop.rows else "starting"
        text += f" with the model of {job.checkpoint if start is None else job.start_from}" * (job.start_from is not None)
        display.report_event(text, event="start", rows=loop.rows, source=source.name)
        compile_ahead([job.compile_target], show_progress=display.show_compilation)
        with serve_metrics(job, loop), stop_on_signals(loop.stop):
            progress = loop.run(job.max_rows)
    last_step = split_pipeline(loop.model)[1]
    if missing := [label for label in getattr(last_step, "costs", {}) if label not in getattr(last_step, "labels", [label])]:
        names = format_names(missing, 5)
        warn(f"{source.name}: no row has had the label {names}, whose cost or threshold was given. Is its name right?")
    if job.label_stream is None and progress.rows and not progress.learned and not progress.interrupted:
        raise StreamError(f"{source.name}: none of {progress.rows:,} rows had a label: nothing was learned. Is its name right?")
    if job.reporter.shows_text and sys.stderr is not None and sys.stderr.isatty():
        print(escape_unprintable(_suggest_next_step(job, progress.interrupted)), file=sys.stderr)
    return progress.interrupted


def _sample_source(job: LearnJob, table: TableOptions, start_position: Position | None) -> SourceSample | None:
    """Read the first rows of a job's source, to infer the types of its columns; wait for the first row if necessary. A topic is
    read with the options of ``table`` from ``start_position``, or with None from where the job's flags begin. Return None if the
    source cannot be opened, or is LIBSVM text, which needs no schema.
    """

    def may_wait_for(name: str) -> bool:
        if job.metrics_port is not None:  # metrics must be served while the run waits, so the schema is not inferred
            return False
        job.reporter.report_event(f"waiting for the first row of {name}", "waiting")
        return True

    if job.text_format == "libsvm":
        return None
    if job.text_format is None:
        position = start_position if start_position is None or job.label_stream is None else start_position.get("rows")
        options = {"label": job.label, "start": job.start, "stop_at_end": job.stop_at_end, **table.source}
        dropped = TableParser(job.table_flags.get("columns", "")).columns_of_kind(DROP)
        return sample_topic(job.source_name, may_wait_for, position, dropped, **options)
    sample = sample_files(job.source, job.text_format)
    if sample is not None or job.text_format not in ("csv", "jsonl"):
        return sample
    return sample_pipe(job.source_name, job.text_format, may_wait_for)


def _infer_schema(job: LearnJob, sample: SourceSample) -> tuple[LearnJob, TableOptions, TableSchema]:
    """Infer the kinds of the columns from a sample of the first rows, and print them. Return the job (as a regression if the
    label is numeric), the options of reading the table, and its schema.

    Raises CommandError if the rows allow two readings, no column is left to learn from, or the user wants to decide (``--ask``).
    """
    result = infer_schema(
        sample,
        job.row_label,
        job.table_flags,
        regression=job.regression,
        non_feature_columns=job.non_feature_columns,
        rows_may_fail=job.on_error != "stop",
        asks_user=job.ask,
    )
    if job.row_label is None and job.label in [column.name for column in result.columns if column.kind != "dropped"]:
        remedy = f"leave --labels out, or do not learn this column: {format_flags({'columns': {job.label: DROP}})}"
        raise CommandError(f"{sample.name}: each row contains its label, {job.label!r}: {remedy}")
    if result.columns and job.reporter.shows_text:
        table = format_schema(sample.name, result.n_rows, result.columns, format_flags)
        print(escape_unprintable(table, newlines=True), file=sys.stderr)
    if result.problem is not None:
        raise CommandError(result.problem.format_error(sample.name, format_flags, "--regression"))
    flags = format_flags(result.new_options)
    if result.is_target:
        kind = job.table_flags.get("columns", {}).get(job.row_label, "")
        try:
            job, flags = replace(job, regression=True), f"--regression {flags}".strip()
        except UsageError as error:  # a flag is about labels
            if kind.startswith((QUANTITY, DURATION)):
                raise UsageError(f"--columns {job.label}:{kind} is a number to predict: {error}") from None
    if flags:
        text = f"read with {escape_unprintable(flags)} (other flags read it otherwise, and --ask stops here)"
        job.reporter.report_event(text, event="reading", flags=escape_unprintable(flags))
    schema = result.make_schema(sample.name, job.row_label, job.regression)
    return job, combine_table_options(result.options, job.text_format, job.row_label), schema


def _suggest_next_step(job: LearnJob, interrupted: bool) -> str:
    """Return a sentence for the end of a run of ``learn``: how to save, continue or use the model."""
    if job.checkpoint is None:
        return "the model was not saved: give --checkpoint FOLDER to keep it"
    if interrupted:
        return "run the same command again to continue from here"
    return f"to predict other rows: streamsvm predict SOURCE --model {shlex.quote(str(job.checkpoint))} --to -"


def learn_partitions(job: LearnJob) -> bool:
    """Learn a model for each partition that the consumer group assigns to this worker. Return whether it was interrupted."""
    table = combine_table_options(job.table_flags, job.text_format, job.label)

    def make_loop(source: Source, checkpoints: Checkpoints, **options: Any) -> LearningLoop:
        saved = checkpoints.newest()
        start = None if saved is not None or job.start_from is None else load_newest(job.start_from, job.trusted)
        _seek_after(start, source)
        full, kept_model = job.continue_from(None if saved is not None and saved.is_start else saved or start)
        model = full.make_model(encoder=table.encoder) if kept_model is None else kept_model
        options |= {"computed_fields": list(filter(None, [make_conformal_fields(model)])), "flags": full.kept_flags}
        options |= {"checkpoints": checkpoints, "start_from": start, **full.make_score_parameters()}
        return LearningLoop(source, None if model is kept_model else model, **options)

    compile_ahead([job.compile_target])
    return run_worker(job, table, job.label, make_loop)


def _seek_after(merged: Checkpoint | None, source: Source) -> None:
    """Continue the ``source`` of a partition after the rows that a ``merged`` model, if there is one, has learned of it."""
    positions, here = merged and merged.header.get("positions"), source.position
    for position in positions if isinstance(positions, list) else ():
        if isinstance(position, dict) and all(position.get(name) == here[name] for name in ("topic", "partition")):
            source.seek({**position, "partitions": here["partitions"]})


def run_worker(job: LearnJob | PredictJob, table: TableOptions, label: str | None, make_loop: Callable[..., StreamLoop]) -> bool:
    """Process the rows of each partition that the consumer group assigns to this worker by a loop of its own. Return whether it
    was interrupted. ``make_loop`` creates a loop from its source and further keyword arguments; ``label`` and ``table`` say how
    rows are read.
    """

    def make_partition_loop(source: Any, checkpoints: Checkpoints) -> StreamLoop:
        def open_output(flag: str, place: str | None) -> Any:
            if place is None or place in ("stop", "skip"):
                return place
            if place != "-" and "://" not in place:
                path = Path(place).with_stem(f"{Path(place).stem}-{source.position['partition']}")
                check_may_overwrite(flag, path, job.overwrite)
                place = str(path)
            return open_job_sink(job, place, checkpoints)

        outputs = {"sink": open_output("--to", job.to), "on_error": open_output("--on-error", job.on_error)}
        source = parse_labels(source, table.encoder, label, job.weight)
        return make_loop(source, checkpoints=checkpoints, passthrough=job.passthrough, **outputs, **job.loop_limits)

    options = {"label": label, "start": job.start, "group": job.group, "folder": job.checkpoint, "trusted": job.trusted}
    options |= {"stop_at_end": job.stop_at_end, "message_columns": table.source.get("message_columns", ())}
    options |= dict(getattr(job, "retention", ()))
    with contextlib.closing(open_worker(job.source_name, make_loop=make_partition_loop, **options)) as worker:
        fields = {"event": "start", "source": job.source_name, "group": job.group}
        logging.getLogger("streamsvm").info("a worker of the group %s begins", job.group, extra={"fields": fields})
        last_report, loops = time.perf_counter(), dict[int, StreamLoop]()

        def show_progress_if_due(_: Any) -> None:
            nonlocal last_report, loops
            loops = worker.loops or loops
            if time.perf_counter() - last_report >= SECONDS_BETWEEN_LINES[job.reporter.quiet]:
                last_report = time.perf_counter()
                _show_progress(job.reporter, worker.rows, worker.loops, "progress")

        with serve_metrics(job, worker), stop_on_signals(worker.stop):
            worker.run(job.max_rows, show_progress_if_due)
        _show_progress(job.reporter, worker.rows, loops, "end")
        return bool(worker.state == "stopped")


def _show_progress(reporter: Reporter, rows: int, loops: dict[int, StreamLoop], event: str) -> None:
    """Report the progress of a worker that has a loop for each partition: its number of ``rows``, and rows and scores of each
    of the ``loops`` (by partition). Written as text or JSON; ``event`` is ``"end"`` for the last report.
    """
    progress = {number: loop.progress for number, loop in loops.items()}
    if not reporter.shows_text:
        partitions = {str(number): progress_to_json(report, with_tables=True) for number, report in progress.items()}
        if reporter.quiet:
            print(json.dumps({"event": event, "rows": rows, "partitions": partitions}, allow_nan=False), flush=True)
        else:
            reporter.report_event(f"{rows:,} rows", event, rows=rows, partitions=partitions)
        return
    max_scores = None if event == "end" else 1
    parts = [
        f"partition {number}: {report.rows:,}"
        + "".join(f", {score.name} {score.value:.4f}" for score in report.scores[:max_scores] if math.isfinite(score.value))
        for number, report in progress.items()
    ]
    reporter.report_event("; ".join([f"{rows:,} rows" + " in all" * (event == "end"), *parts]), event)


def run_merge(arguments: argparse.Namespace) -> bool:
    """Run ``streamsvm merge``: merge the newest models of several folders or topics to one model. Return whether it was
    interrupted.
    """
    reporter, stopped = Reporter(arguments.quiet, logs_json(arguments)), threading.Event()
    options = arguments.trusted, arguments.retention
    with contextlib.ExitStack() as stack:
        checkpoints = stack.enter_context(open_checkpoint_store(arguments.into, *options, sources=["merged"]))
        merger = stack.enter_context(contextlib.closing(CheckpointMerger(arguments.sources, checkpoints, arguments.trusted)))
        if arguments.every is None:
            with interruptible():
                merged = merger.merge_if_changed()
            if merged is None:
                raise CommandError(f"{', '.join(map(str, arguments.sources))}: there is no model to merge yet")
            _show_merged(merged, reporter)
            return False
        with stop_on_signals(stopped.set):
            while not stopped.is_set():
                if (merged := merger.merge_if_changed()) is not None:
                    _show_merged(merged, reporter)
                stopped.wait(arguments.every)
    return True


def _show_merged(merged: MergeResult, reporter: Reporter) -> None:
    """Report a new merged model: its number of learned rows, and the number of models that were merged."""
    if reporter.quiet:
        print(json.dumps({"event": "merged", "rows": merged.rows, "parts": merged.parts}), flush=True)
    text = f"{format_count(merged.rows, 'row')} of {format_count(len(merged.parts), 'model')} merged"
    reporter.report_event(text, "merged", rows=merged.rows, parts=merged.parts)


def run_compile(arguments: argparse.Namespace) -> bool:
    """Run ``streamsvm compile``: compile the functions of estimators in advance. Return False, for "not interrupted"."""
    uses = arguments.names or [name for name in list_components() if name.split()[0] in {*LEARNERS, "sources"}]

    def show_progress(n_done: int, n_functions: int, name: str) -> None:
        if sys.stderr is None:
            return
        with contextlib.suppress(OSError):  # standard error may be closed
            line_end = "\033[K\r" if sys.stderr.isatty() else "\n"
            print(f"compiling {n_done + 1} of {n_functions}: {name}", end=line_end, file=sys.stderr)

    with as_usage_error(""):
        compiled = compile_ahead(uses, show_progress=show_progress)
    text = describe_status() if is_available() or INTERPRETED else "nothing is left to compile"
    print(f"compiled {compiled} functions" if compiled else text)
    return False
