"""Opens the sources, sinks and checkpoints of a job, and handles signals while it runs."""

from __future__ import annotations

import contextlib
import logging
import math
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from streamsvm.cli import ENDING_SIGNALS, CommandError, escape_unprintable, exit_at_once, set_signal_handlers
from streamsvm.cli.arguments import as_command_error
from streamsvm.cli.job import LabelStream, LearnJob, StreamJob
from streamsvm.cli.tables import combine_table_options, read_saved_label
from streamsvm.stream import CheckpointFolder, JoinedSource, Sink, Source, StreamError, WeightedSource, open_sink, open_source
from streamsvm.stream.checkpoint import Checkpoint, CheckpointError, Checkpoints, find_saved
from streamsvm.stream.continuation import report_change
from streamsvm.stream.delayed.events import ArrivedLabel, PendingLabel
from streamsvm.stream.endpoints import Position, WrappedSource
from streamsvm.stream.file_names import detect_format
from streamsvm.stream.open import open_checkpoints
from streamsvm.stream.prediction import open_followed
from streamsvm.stream.rows import ValidatingPipeline, get_learned_columns, get_learned_labels, split_pipeline
from streamsvm.stream.schema.source_sample import SourceSample, sample_files
from streamsvm.stream.tables import TableParser
from streamsvm.stream.tables.chunk import BadRow, Row, drop_columns
from streamsvm.stream.tables.chunk import Table as Columns
from streamsvm.stream.tables.column_kinds import CATEGORY, DROP, NUMBER, OTHER_COLUMNS
from streamsvm.stream.tables.column_monitor import ColumnMonitor
from streamsvm.stream.tables.table_schema import TableOptions, make_label_options
from streamsvm.stream.tables.values import parse_number

logger: logging.Logger = logging.getLogger("streamsvm")

_SECONDS_TO_STOP = 1.0


def parse_labels(source: Source, options: Mapping[str, Any], label: str | None, weight: str | None = None) -> Source:
    """Wrap a source that has no parser, so that its labels are parsed by the ``options`` of a table: texts such as "NA" that mean
    missing, and the kind of the column ``label``. The column ``weight``, if it is not None, has the weights of the rows. Return
    the new source.
    """
    parser = TableParser(**make_label_options(options, label))

    def change_row(row: Row) -> Row:
        return Row(row.x, parser.parse_label(row.y))

    def change_table(table: Columns) -> Columns:
        return replace(table, y=None if table.y is None else list(map(parser.parse_label, table.y)))

    if parser.options:
        source = WrappedSource(source, lambda chunk: chunk.with_change(change_row, change_table))
    return source if weight is None else WeightedSource(source, weight, parser.missing)


def adapt_source(source: Source, saved: Checkpoint) -> Source:
    """Wrap a source for the model of ``saved``: columns that were not features when it was learned (the join key, the event time
    and the sample weight) are left out, and numbers in text, such as ``"1.5"`` in JSON, are numbers if the model has no
    transformers. Return the new source.
    """
    position = saved.get_facts("position")
    names = [name for name in (position.get("key"), position.get("time"), saved.header.get("weight")) if isinstance(name, str)]
    source = WrappedSource(source, lambda chunk: drop_columns(chunk, names)) if names else source
    if not source.has_names or split_pipeline(saved.model)[0]:
        return source

    def parse_text(value: Any) -> Any:
        with contextlib.suppress(ValueError):
            return number if isinstance(value, str) and math.isfinite(number := parse_number(value)) else value
        return value

    def change_row(row: Row) -> Row:
        return Row({name: parse_text(value) for name, value in row.x.items()}, row.y)

    def change_table(table: Columns) -> Columns:
        columns = [list(map(parse_text, values)) if isinstance(values, list) else values for values in table.columns]
        return replace(table, columns=columns)

    return WrappedSource(source, lambda chunk: chunk.with_change(change_row, change_table))


@contextlib.contextmanager
def open_streams(
    job: StreamJob,
    table: TableOptions,
    default_label: str | None = None,
    checkpoints: Checkpoints | None = None,
    sample: SourceSample | None = None,
) -> Iterator[tuple[Source, Any, str | Sink]]:
    """Within a ``with`` block, provide three things for a job: its open source of rows, its sink of predictions (None without
    ``--to``), and what to do with invalid rows (the value of ``--on-error``, or the sink that it names). ``sample`` are first
    rows that were already read.

    ``default_label`` is the name of the label without ``--label``; the source need not have it. If ``checkpoints`` can write to
    a sink, or commit the offsets of a group, they do it instead.
    """
    with contextlib.ExitStack() as stack:
        commits_group = checkpoints is not None and checkpoints.group
        options: dict[str, Any] = {"group": job.group} if isinstance(job, LearnJob) and not commits_group else {}
        options |= {"label": default_label, "label_needed": False} if job.label is None else {}
        source = _open_job_source(job, table, stack, sample, **options)
        places = [job.to, None if job.on_error in ("stop", "skip") else job.on_error]
        sink, letters = (p if p is None else stack.enter_context(open_job_sink(job, p, checkpoints)) for p in places)
        if sink is not None and sink.hint:
            job.reporter.report_event(sink.hint, "hint")
        yield source, sink, job.on_error if letters is None else letters


def open_job_sink(job: StreamJob, place: str, checkpoints: Checkpoints | None) -> Sink:
    """Open the sink ``place`` of a job, which ``checkpoints`` write to if they can. A file is rotated as the job's flags say."""
    sink = None if checkpoints is None else checkpoints.try_open_sink(place)
    rotate = None if place == "-" or "://" in place else job.rotate
    return open_sink(place, rotate=rotate) if sink is None else sink


def read_start_position(job: StreamJob, table: TableOptions) -> Position | None:
    """Return the position where a job's source would begin to read now, such as the offsets of a Kafka topic. Return None for
    files. ``table`` has the options of reading a table.
    """
    with contextlib.ExitStack() as stack:
        source = _open_job_source(job, table, stack, None)
        return source.position if source.start_can_change else None


def warn_of_learned_rows(job: LearnJob, table: TableOptions, saved: Checkpoint) -> None:
    """Report it if a job starts from ``saved``, a checkpoint of its own source, without ``--from``: rows are then learned again.
    ``table`` has the options of reading them. A pipe, which can be read only once, is not examined.
    """
    if job.start is None and (job.text_format is None or sample_files(job.source, job.text_format) is not None):
        with contextlib.ExitStack() as stack, contextlib.suppress(StreamError):
            _open_job_source(job, table, stack, None).seek(saved.get_facts("position"))
            place = "with its folder" if isinstance(job.start_from, Path) and job.start_from.is_file() else job.start_from
            text = f"{job.start_from} has learned rows of this stream, and they are learned again. To continue after them, give "
            text += f"--checkpoint {place} instead" + ", or --from latest, a time or PARTITION:OFFSET" * (job.text_format is None)
            report_change(job.source_name, "source", text, saved.header.get("rows"))


def _open_job_source(
    job: StreamJob, table: TableOptions, stack: contextlib.ExitStack, sample: SourceSample | None, **options: Any
) -> Source:
    """Open a job's source of rows with the ``table`` and other options, joined with the stream of ``--labels`` if the job has
    one. ``sample`` are first rows that were already read, or None. ``stack`` closes the source later.
    """
    options = {"format": job.text_format, "stop_at_end": job.stop_at_end, "start": job.start, "label": job.label} | options
    if job.label_stream is not None:
        return _open_joined_source(job, job.label_stream, table, options, stack, sample)
    options |= table.source | {"weight": None if job.text_format is None else job.weight}
    source = stack.enter_context(_open_after_sample(job.source, sample, **options))
    return source if job.text_format is not None else parse_labels(source, table.encoder, options["label"], job.weight)


def _open_after_sample(place: str | list[str], sample: SourceSample | None, **options: Any) -> Source:
    """Open the source ``place`` with ``options``. If its first rows were already read as a ``sample``, to infer the schema, the
    source still yields them, even if it is a pipe.
    """
    if sample is None:
        return open_source(place, **options)
    source = open_source(place, stream=sample.byte_stream, **options)
    if sample.start_position is not None:
        source.seek(sample.start_position)
    return source


def _open_joined_source(
    job: StreamJob,
    labels: LabelStream,
    table: TableOptions,
    options: dict[str, Any],
    stack: contextlib.ExitStack,
    sample: SourceSample | None,
) -> Source:
    """Open a job's streams of rows and of ``labels`` as one source that joins them by key. ``table`` and ``options`` say how to
    read them, ``sample`` are first rows that were already read, and ``stack`` closes both streams later.
    """
    # Columns of join key and event time are kept even if other columns are dropped; keys of CSV files remain texts.
    row_options, formats = dict(table.source), (job.text_format, labels.format)
    kinds = {name: kind for name, kind in row_options.get("columns", {}).items() if kind != DROP or name not in labels.columns}
    row_options["columns"] = {**dict.fromkeys(labels.columns, NUMBER), **kinds} if OTHER_COLUMNS in kinds else kinds
    names = {"csv": ("encoding", "delimiter", "decimal"), "jsonl": ("encoding",)}.get(labels.format or "", ())
    table_options = row_options, {name: row_options[name] for name in names if name in row_options}
    for stream_options, text_format in zip(table_options, formats, strict=True):
        if text_format == "csv":
            stream_options["columns"] = {**stream_options.get("columns", {}), labels.key: CATEGORY}
    sources: list[Source] = []
    # A column of the rows with the name of the label is not read as the label if it was dropped.
    rows_label = None if table.columns.get(options["label"]) == DROP else options["label"]
    label_options: tuple[dict[str, Any], ...] = ({"label_needed": False, "label": rows_label}, {})
    for place, text_format, stream_options, more in zip(
        (job.source, labels.place), formats, table_options, label_options, strict=True
    ):
        is_file = "://" not in place
        arguments = {name: None if is_file and name == "group" else value for name, value in options.items()}
        arguments |= {"format": text_format} | more | stream_options
        source = stack.enter_context(_open_after_sample(place, None if sources else sample, **arguments))
        sources.append(parse_labels(source, {"missing": table.encoder.get("missing", ())} if sources else {}, None))
    return JoinedSource(*sources, key=labels.key, time=labels.time, max_age=labels.buffer.max_age)


@contextlib.contextmanager
def serve_metrics(job: StreamJob, loop: Any) -> Iterator[None]:
    """During a ``with`` block, serve the metrics of a ``loop`` over HTTP, if the job has the flag ``--metrics-port``."""
    if job.metrics_port is None:
        yield
        return
    from streamsvm.stream.monitor import Monitor, MonitorError  # noqa: PLC0415 - imports an HTTP server, which few runs need

    with as_command_error("--metrics-port: ", MonitorError):
        monitor = Monitor(loop, job.metrics_port, job.metrics_host, job.metrics_names)
    with monitor:
        url = f"http://{job.metrics_host}:{monitor.port}/"
        job.reporter.report_event(f"metrics, and a page, at {url}", "metrics", url=url)
        yield


@contextlib.contextmanager
def stop_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """During a ``with`` block, let the first Ctrl-C or SIGTERM call ``stop``, which should end the block soon, and a second one
    interrupt it at once.

    If the block does not end within a second, for example while a learner is compiled, a hint asks to press again. After the
    block, a signal raises KeyboardInterrupt, so that all files and connections are closed.
    """
    signals: queue.SimpleQueue[bool] = queue.SimpleQueue()  # reentrant: a signal may arrive while another one is handled
    has_ended = threading.Event()

    def hint_if_slow() -> None:
        if signals.get() and not has_ended.wait(_SECONDS_TO_STOP):
            logger.warning("streamsvm: stopping after the step that is running; press Ctrl-C again to stop now")

    def handle_first_signal(number: int, frame: object) -> None:  # noqa: ARG001
        stop()
        set_signal_handlers(signal.default_int_handler)
        signals.put(True)

    # Not started in the handler, which may interrupt the start of another thread.
    threading.Thread(target=hint_if_slow, daemon=True).start()
    earlier_handlers = set_signal_handlers(handle_first_signal)
    try:
        yield
    finally:
        has_ended.set()
        signals.put(False)  # ends the thread
        for number, handler in earlier_handlers.items():
            signal.signal(number, signal.default_int_handler if handler is exit_at_once else handler)


def open_checkpoint_store(
    place: Path | str, trusted: bool, retention: Iterable[tuple[str, Any]] = (), **parameters: Any
) -> Checkpoints:
    """Open the place where checkpoints are written and read: a folder (a `Path`) or a Kafka topic (a URL, with further
    ``parameters`` of the connection). Checkpoints may contain the user's own classes only if ``trusted``. ``retention`` are the
    parsed flags of `add_retention_flags`.
    """
    if isinstance(place, Path):
        return CheckpointFolder(place, trusted, **dict(retention))
    return open_checkpoints(place, trusted=trusted, **dict(retention), **parameters)


def load_newest(place: Path | str, trusted: bool, at: float | None = None) -> Checkpoint:
    """Load a model file, or the newest checkpoint of a folder or topic (a URL), or that of `find_saved` with ``at``. It may
    contain the user's own classes only if ``trusted``. Raise a CheckpointError or StreamError if that fails.
    """
    with contextlib.closing(open_followed(place, trusted)) as models:
        try:
            return models.read() if at is None else find_saved(place, models.history(), at).load(trusted)
        except CheckpointError as error:
            raise CheckpointError(f"{error}{_hint_at_table(place)}") from error


def _hint_at_table(place: Path | str) -> str:
    """Return a text for an error if ``place``, which should be a model, has the file name of a table of rows; otherwise ""."""
    try:
        table_format = detect_format(str(place)) if Path(place).is_file() else None
    except StreamError:
        return ""
    return f". By its name, it is a table ({table_format}): give the path of a model here" if table_format else ""


def read_first_rows(job: StreamJob, checkpoint: Checkpoint, max_rows: int) -> list[Row | BadRow]:
    """Read the first ``max_rows`` rows of a job's source with the columns that the checkpoint's model has learned. Labels of
    ``--labels`` are joined with their rows by key.
    """
    rows: list[Any] = []
    labels: dict[str, Any] = {}
    unlabelled_keys: set[str] = set()
    with open_source_for_model(job, checkpoint) as source:
        for row in source:
            y = None if isinstance(row, BadRow) else row.y
            if isinstance(y, ArrivedLabel):
                labels.setdefault(y.key, y.y)
                unlabelled_keys.discard(y.key)
            elif len(rows) < max_rows:
                rows.append(row)
                unlabelled_keys |= {y.key} - labels.keys() if isinstance(y, PendingLabel) else set()
            if len(rows) == max_rows and not unlabelled_keys:
                break
    return [row._replace(y=labels.get(row.y.key)) if isinstance(getattr(row, "y", None), PendingLabel) else row for row in rows]


def iter_first_rows(job: StreamJob, checkpoint: Checkpoint, max_rows: int) -> Iterator[Row]:
    """Yield the rows of `read_first_rows`. Raise a CommandError at a row that cannot be read.

    At the end, warnings about columns that the checkpoint's model does not know are printed.
    """
    model: Any = checkpoint.model
    encoder = ValidatingPipeline(model, learns=False).table_encoder
    columns = ColumnMonitor(get_learned_columns(model), encoder, labels=get_learned_labels(model))
    for row in read_first_rows(job, checkpoint, max_rows):
        if isinstance(row, BadRow):
            raise CommandError(f"{row.place}: {row.reason}")
        columns.add_row(row.x)
        columns.add_labels([row.y])
        yield row
    print_messages(columns.messages)


def print_messages(messages: Iterable[str]) -> None:
    """Print messages about a run on standard error, such as those about columns that the model does not know."""
    for message in messages:
        print(escape_unprintable(message), file=sys.stderr)  # noqa: T201


@contextlib.contextmanager
def open_source_for_model(job: StreamJob, saved: Checkpoint) -> Iterator[Source]:
    """Within a ``with`` block, provide the open source of a job, whose rows are read as the model of the checkpoint ``saved`` has
    learned them. The job's flag ``--label`` overrides the checkpoint's label.
    """
    table = combine_table_options(job.table_flags, job.text_format, job.label, saved, predict=True)
    default_label = None if job.text_format == "libsvm" else read_saved_label(saved)
    with open_streams(job, table, default_label) as (source, _, _):
        yield source if job.label_stream is not None else adapt_source(source, saved)


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """During a ``with`` block that must clean up its files or processes, let Ctrl-C and SIGTERM raise KeyboardInterrupt."""
    numbers = [number for number in ENDING_SIGNALS if signal.getsignal(number) is exit_at_once]
    for number in numbers:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number in numbers:
            signal.signal(number, exit_at_once)
