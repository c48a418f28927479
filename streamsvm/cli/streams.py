"""The source, the stream of labels and the sink of a job, and what signals do while it runs."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.cli import ENDING_SIGNALS, CommandError, escape_unprintable, exit_at_once, set_signal_handlers
from streamsvm.cli.arguments import as_command_error
from streamsvm.cli.job import LabelStream, LearnJob, StreamJob
from streamsvm.cli.tables import combine_table_options, read_saved_label
from streamsvm.stream import (
    CheckpointError,
    CheckpointFolder,
    JoinedSource,
    Sink,
    Source,
    StreamError,
    WeightedSource,
    open_sink,
    open_source,
)
from streamsvm.stream.checkpoint import Checkpoint, Checkpoints, check_has_model, read_newest
from streamsvm.stream.columns import ColumnMonitor
from streamsvm.stream.endpoints import Position, WrappedSource
from streamsvm.stream.open import detect_format, open_checkpoints, open_models
from streamsvm.stream.rows import ValidatingPipeline, get_learned_columns
from streamsvm.stream.schema.source_sample import SourceSample
from streamsvm.stream.tables import TableParser
from streamsvm.stream.tables.chunk import BadRow, Row, drop_columns
from streamsvm.stream.tables.chunk import Table as Columns
from streamsvm.stream.tables.column_kinds import CATEGORY, DROP, NUMBER, OTHER_COLUMNS
from streamsvm.stream.tables.table_schema import TableOptions

logger: logging.Logger = logging.getLogger("streamsvm")

_SECONDS_TO_STOP = 1.0


def drop_missing_marks(source: Source, missing: Sequence[str], weight: str | None = None) -> Source:
    """Return a source without labels and weights that are marks of missing values, where it is not read as a table."""
    label = TableParser(missing=missing).parse_label

    def change_row(row: Row) -> Row:
        x, y = row
        if weight in x and label(x[weight]) is None:
            x = {name: value for name, value in x.items() if name != weight}
        return Row(x, label(y))

    def change_table(table: Columns) -> Columns:
        columns = list(table.columns)
        for i, values in enumerate(columns):
            if table.names[i] == weight:
                if isinstance(values, np.ndarray):
                    columns[i] = np.array(list(map(label, values.tolist())), np.float64)
                else:
                    columns[i] = list(map(label, values))
        return replace(table, columns=columns, y=None if table.y is None else list(map(label, table.y)))

    return WrappedSource(source, lambda chunk: chunk.with_change(change_row, change_table)) if missing else source


def drop_unlearned_columns(source: Source, saved: Checkpoint) -> Source:
    """Drop the columns of a source that the model of a checkpoint did not learn: join key, event time and weight."""
    position = saved.header.get("position")
    keys = [position.get(name) for name in ("key", "time")] if isinstance(position, Mapping) else []
    names = [name for name in (*keys, saved.header.get("weight")) if isinstance(name, str)]
    return WrappedSource(source, lambda chunk: drop_columns(chunk, names)) if names else source


@contextlib.contextmanager
def open_streams(
    job: StreamJob,
    table: TableOptions,
    usual_label: str | None = None,
    checkpoints: Checkpoints | None = None,
    beginning: SourceSample | None = None,
) -> Iterator[tuple[Source, Any, str | Sink]]:
    """Open the source, the sink, None if none is named, and what ``--on-error`` names by a URL; close all at the end.

    ``usual_label`` is the name of the label where ``--label`` is not given; a source may do without it. What ``checkpoints`` can
    commit by themselves, predictions and the offsets of a group, is theirs. ``beginning`` has the rows that were looked at.
    """
    with contextlib.ExitStack() as stack:
        committed = checkpoints is not None and checkpoints.group
        more: dict[str, Any] = {"group": job.group} if isinstance(job, LearnJob) and not committed else {}
        more |= {"label": usual_label, "label_needed": False} if job.label is None else {}
        source = _source_of(job, table, stack, beginning, **more)

        def opened(spec: str) -> Sink:
            sink = None if checkpoints is None else checkpoints.try_open_sink(spec)
            return stack.enter_context(open_sink(spec) if sink is None else sink)

        sink = None if job.to is None else opened(job.to)
        if sink is not None and sink.hint:
            job.reporter.report_event(sink.hint, "hint")
        yield source, sink, opened(job.on_error) if "://" in job.on_error else job.on_error


def read_start_position(job: StreamJob, table: TableOptions) -> Position | None:
    """Return where the source begins; None if that does not depend on when it is opened."""
    with contextlib.ExitStack() as stack:
        source = _source_of(job, table, stack, None)
        return source.position if source.start_can_change else None


def _source_of(
    job: StreamJob, table: TableOptions, stack: contextlib.ExitStack, beginning: SourceSample | None, **more: Any
) -> Source:
    how: dict[str, Any] = {"format": job.text_format, "stop_at_end": job.stop_at_end, "start": job.start, "label": job.label}
    how |= more
    if job.label_stream is not None:
        return _open_joined(job, job.label_stream, table, how, stack, beginning)
    weight = job.weight
    read_as_table = None if job.text_format is None else weight
    how |= table.source | {"weight": read_as_table}
    source = stack.enter_context(_open_beginning(job.source, beginning, **how))
    if job.text_format is None:
        source = drop_missing_marks(source, table.encoder.get("missing", ()), weight)
        source = source if weight is None else WeightedSource(source, weight)
    return source


def _open_beginning(place: str | list[str], beginning: SourceSample | None, **how: Any) -> Source:
    """Open a source that begins where its first rows were looked at."""
    if beginning is None:
        return open_source(place, **how)
    source = open_source(place, stream=beginning.byte_stream, **how)
    if beginning.start_position is not None:
        source.seek(beginning.start_position)
    return source


def _open_joined(
    job: StreamJob,
    labels: LabelStream,
    table: TableOptions,
    how: dict[str, Any],
    stack: contextlib.ExitStack,
    beginning: SourceSample | None,
) -> Source:
    # Both have their key and time, and keys stay as they are written.
    rows, formats = dict(table.source), (job.text_format, labels.format)
    kinds = {name: kind for name, kind in rows.get("columns", {}).items() if kind != DROP or name not in labels.columns}
    rows["columns"] = {**dict.fromkeys(labels.columns, NUMBER), **kinds} if OTHER_COLUMNS in kinds else kinds
    known = {"csv": ("encoding", "delimiter", "decimal"), "jsonl": ("encoding",)}.get(labels.format or "", ())
    reading = rows, {name: rows[name] for name in known if name in rows}
    for options, kind in zip(reading, formats, strict=True):
        if kind == "csv":
            options["columns"] = {**options.get("columns", {}), labels.key: CATEGORY}
    found: list[Source] = []
    own: tuple[dict[str, Any], ...] = ({"label_needed": False}, {})
    for place, kind, options, more in zip((job.source, labels.place), formats, reading, own, strict=True):
        is_file = "://" not in place
        each = {name: None if is_file and name in ("start", "group") else value for name, value in how.items()}
        begin = None if found else beginning
        each |= {"format": kind} | more | options
        source = stack.enter_context(_open_beginning(place, begin, **each))
        found.append(drop_missing_marks(source, table.encoder.get("missing", ()) if found else ()))
    return JoinedSource(*found, key=labels.key, time=labels.time, max_age=labels.buffer.max_age)


@contextlib.contextmanager
def serve_metrics(job: StreamJob, loop: Any) -> Iterator[None]:
    """Serve the metrics of a loop where a port is given."""
    if job.metrics_port is None:
        yield
        return
    from streamsvm.stream.monitor import Monitor, MonitorError  # noqa: PLC0415 - starts a server of HTTP, which few runs need

    with as_command_error("--metrics-port: ", MonitorError):
        monitor = Monitor(loop, job.metrics_port, job.metrics_host, job.metrics_names)
    with monitor:
        url = f"http://{job.metrics_host}:{monitor.port}/"
        job.reporter.report_event(f"metrics, and a page, at {url}", "metrics", url=url)
        yield


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM call ``stop``, which ends the work in order; a second one ends it at once.

    If the end takes longer than a second, as while a learner is compiled, a hint says to press again. After the work, a signal
    raises KeyboardInterrupt, so that all files and connections are closed.
    """
    pressed: queue.SimpleQueue[bool] = queue.SimpleQueue()  # a signal may arrive while another one is handled
    ended = threading.Event()

    def hint_if_slow() -> None:
        if pressed.get() and not ended.wait(_SECONDS_TO_STOP):
            logger.warning("streamsvm: stopping after the step that is running; press Ctrl-C again to stop now")

    def first(number: int, frame: object) -> None:  # noqa: ARG001
        stop()
        set_signal_handlers(signal.default_int_handler)
        pressed.put(True)

    # Not started in the handler, which may interrupt the start of another thread.
    threading.Thread(target=hint_if_slow, daemon=True).start()
    before = set_signal_handlers(first)
    try:
        yield
    finally:
        ended.set()
        pressed.put(False)
        for number, handler in before.items():
            signal.signal(number, signal.default_int_handler if handler is exit_at_once else handler)


def open_checkpoint_store(place: Path | str, trusted: bool, **how: Any) -> Checkpoints:
    """Open where checkpoints are written: a folder, or a topic, with the parameters of `open_checkpoints`."""
    return CheckpointFolder(place, trusted) if isinstance(place, Path) else open_checkpoints(place, trusted=trusted, **how)


def load_newest(place: Path | str, trusted: bool) -> Checkpoint:
    """Read a file, or the newest checkpoint of a folder or a topic. Raises CheckpointError or StreamError if it is missing."""
    if isinstance(place, Path):
        try:
            found = read_newest(place, trusted)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_if_table(place)}") from error
        if found.is_start:
            check_has_model(place, found)
        return found
    with contextlib.closing(open_models(place, trusted=trusted)) as models:
        checkpoint: Checkpoint = models.read()
    return checkpoint


def _if_table(place: Path) -> str:
    """Return what to do where a table stands in the place of a model; "" where none does."""
    try:
        kind = detect_format(str(place)) if place.is_file() else None
    except StreamError:
        return ""
    return f". By its name, it is a table ({kind}): the model goes in its place" if kind else ""


def iter_first_rows(place: str, checkpoint: Checkpoint, most: int) -> Iterator[Row]:
    """Give the first rows of a table, read as ``predict`` reads it; a CommandError where one cannot be read."""
    columns = ColumnMonitor(get_learned_columns(checkpoint.model), ValidatingPipeline(checkpoint.model, learns=False).encoder)
    with open_source_for_model(StreamJob(source=place), checkpoint) as source:
        for row in itertools.islice(source, most):
            if isinstance(row, BadRow):
                raise CommandError(f"{row.place}: {row.reason}")
            columns.add_row(row.x)
            yield row
    print_unfamiliar_columns(columns)


def print_unfamiliar_columns(columns: ColumnMonitor) -> None:
    """Say on standard error what rows have that their model has not met."""
    for sentence in columns.messages:
        print(escape_unprintable(sentence), file=sys.stderr)  # noqa: T201


@contextlib.contextmanager
def open_source_for_model(job: StreamJob, saved: Checkpoint) -> Iterator[Source]:
    """Open a source as the model of a checkpoint needs it, with the labels that it has learned, or those of ``--label``."""
    table = combine_table_options(job.table_flags, job.text_format, job.label, saved, predict=True)
    usual_label = None if job.text_format == "libsvm" else read_saved_label(saved)
    with open_streams(job, table, usual_label) as (source, _, _):
        yield source if job.label_stream is not None else drop_unlearned_columns(source, saved)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM raise KeyboardInterrupt where the command has something to undo: files or processes of its own."""
    before = [number for number in ENDING_SIGNALS if signal.getsignal(number) is exit_at_once]
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in before:
            signal.signal(number, exit_at_once)
