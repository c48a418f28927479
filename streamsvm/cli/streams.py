"""The source, the stream of labels and the sink of a command, and the signals that end it in order."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import queue
import signal
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from streamsvm.cli import CommandError, UsageError
from streamsvm.cli.logs import say
from streamsvm.cli.parsing import parse_positive
from streamsvm.cli.tables import Table
from streamsvm.stream import (
    BadRow,
    CheckpointFolder,
    DelayedLabels,
    JoinedSource,
    Row,
    Rows,
    Sink,
    Source,
    StreamError,
    open_sink,
    open_source,
)
from streamsvm.stream.checkpoint import Checkpoints
from streamsvm.stream.open import format_of, open_checkpoints
from streamsvm.stream.rows import WrappedSource

_ONLY_WITH_LABELS = ("key", "time", "max_age", "max_pending", "max_pending_bytes", "expired")


def labels_format(arguments: argparse.Namespace) -> str | None:
    """Return the format of the stream of labels, from its name or else from ``--format``; None for a URL."""
    try:
        return format_of(arguments.labels)
    except StreamError:
        return format_of(arguments.labels, arguments.format)


def delayed_of(arguments: argparse.Namespace, text_format: str | None) -> DelayedLabels | None:
    """Return the buffer that the flags ask for; None where labels come with their rows.

    Raises
    ------
    UsageError
        Flags are missing, exclude each other, or are out of their range.
    """
    if arguments.labels is None:
        if given := [name for name in _ONLY_WITH_LABELS if getattr(arguments, name) is not None]:
            raise UsageError(
                f"--{given[0].replace('_', '-')} is about labels from another stream, and there is no --labels STREAM"
            )
        return None
    if arguments.key is None:
        raise UsageError("--labels needs --key NAME: by which column or field do labels find their row?")
    if arguments.key in (arguments.time, arguments.label) or arguments.time == arguments.label:
        raise UsageError("--key, --time and --label must be three columns or fields")
    if "libsvm" in (text_format, labels_format(arguments)):
        raise UsageError("--labels means nothing for LIBSVM text, which has no column for a key")
    if arguments.labels == arguments.source == "-":
        raise UsageError("--labels - and SOURCE - both want standard input: give a file for one")
    if ":" in (start := arguments.start or "") and start.partition(":")[0].isdecimal():
        raise UsageError(f"--from {start} is about the offsets of one topic: with --labels, say earliest, latest or a time")
    if arguments.expired == "dead-letter" and arguments.on_error in ("stop", "skip"):
        raise UsageError("--expired dead-letter needs a place for them: --on-error PATH, or kafka://host:port/topic")
    policy, equals, text = (arguments.expired or "drop").partition("=")
    how: dict[str, Any] = {"expired": policy}
    limits = {"max_age": arguments.max_age, "max_rows": arguments.max_pending, "max_bytes": arguments.max_pending_bytes}
    how |= {name: limit for name, limit in limits.items() if limit is not None}
    if arguments.max_age == math.inf:
        how["max_age"] = None
    try:
        negative = parse_positive(text, text_format) if equals else None
        return DelayedLabels(**how, negative=negative)
    except ValueError as error:
        text = str(error).replace("max_rows", "--max-pending").replace("max_bytes", "--max-pending-bytes")
        raise UsageError(text.replace("max_age", "--max-age").replace("expired", "--expired", 1)) from None


def joined_tables(arguments: argparse.Namespace, table: Table) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the options with which rows and labels are read, so that both have their key and time, and keys stay as written."""
    columns = [name for name in (arguments.key, arguments.time) if name is not None]
    rows, formats = dict(table.source), (format_of(arguments.source, arguments.format), labels_format(arguments))
    if rows.get("features"):
        rows["features"] = [*rows["features"], *(name for name in columns if name not in rows["features"])]
    rows["drop"] = [name for name in rows.get("drop", ()) if name not in columns]
    known = ("encoding", "delimiter") if formats[1] == "csv" else ("encoding",) if formats[1] == "jsonl" else ()
    labels = {name: rows[name] for name in known if name in rows}
    for options, kind in zip((rows, labels), formats, strict=True):
        if kind == "csv":
            others = [name for name in options.get("categorical", ()) if name != arguments.key]
            options["categorical"] = [*others, arguments.key]
    return rows, labels


class WithoutKey(WrappedSource):
    """A source whose rows lose the columns that are no features, for a model that has learned with labels from another stream.

    Parameters
    ----------
    source
        The source; all else is asked of it.
    names
        The columns: the key, and perhaps the event time.
    """

    def __init__(self, source: Any, names: Iterable[str]) -> None:
        super().__init__(source)
        self._names = frozenset(names)

    def _changed(self, rows: Sequence[Row | BadRow] | Rows) -> Sequence[Row | BadRow] | Rows:
        if isinstance(rows, Rows):
            kept = [column for column, name in enumerate(rows.names) if name not in self._names]
            return Rows(tuple(rows.names[column] for column in kept), rows.X[:, kept], rows.y)
        return [row if isinstance(row, BadRow) else self._without(row) for row in rows]

    def _without(self, row: Row) -> Row:
        return Row({name: value for name, value in row.x.items() if name not in self._names}, row.y)


def without_key(source: Any, saved: Any) -> Any:
    """Return a source as the model of a checkpoint needs it: without the key and time by which its rows were joined."""
    position = saved.header.get("position")
    found = [position.get(name) for name in ("key", "time")] if isinstance(position, Mapping) else []
    names = [name for name in found if isinstance(name, str)]
    return WithoutKey(source, names) if names else source


def looked_at(arguments: argparse.Namespace, table: Table) -> Table:
    """Return how a first look sees a table: a key and a time are no features."""
    if arguments.labels is None:
        return table
    columns = [name for name in (arguments.key, arguments.time) if name is not None]
    encoder = dict(table.encoder)
    return table._replace(encoder=encoder | {"drop": list(dict.fromkeys([*encoder.get("drop", ()), *columns]))})


logger: logging.Logger = logging.getLogger("streamsvm")

_SECONDS_TO_STOP = 1.0


@contextlib.contextmanager
def open_streams(
    arguments: argparse.Namespace, table: Table, usual_label: str | None = None, checkpoints: Any = None
) -> Iterator[tuple[Source, Any, str | Sink]]:
    """Open the source, the sink, None if none is named, and what ``--on-error`` names by a URL; close all at the end.

    ``usual_label`` is the name of the label where ``--label`` is not given; a source may do without it. What ``checkpoints`` can
    commit by themselves, predictions and the offsets of a group, is theirs.
    """
    with contextlib.ExitStack() as stack:
        how: dict[str, Any] = {"format": arguments.format, "stop_at_end": arguments.stop_at_end, "start": arguments.start}
        how |= {"group": None if getattr(checkpoints, "group", None) else getattr(arguments, "group", None)}
        how |= {"label": usual_label, "label_needed": False} if arguments.label is None else {"label": arguments.label}
        if (labels := getattr(arguments, "labels", None)) is None:
            source = open_source(arguments.source, **how, **options_of(arguments, arguments.source), **table.source)
            stack.callback(source.close)
        else:
            source = _joined(arguments, labels, table, how, stack)

        def opened(spec: str) -> Sink:
            sink_of = getattr(checkpoints, "sink_of", None)
            sink = None if sink_of is None else sink_of(spec, **options_of(arguments, spec))
            if sink is None:
                sink = open_sink(spec, **options_of(arguments, spec))
            stack.callback(sink.close)
            return sink

        sink = None if arguments.to is None else opened(arguments.to)
        letters = arguments.on_error
        yield source, sink, opened(letters) if "://" in letters else letters


def open_place(arguments: argparse.Namespace) -> Checkpoints:
    """Open where ``--checkpoint`` says that the checkpoints of a learner are: a folder, or a topic."""
    place = arguments.checkpoint
    if isinstance(place, Path):
        return CheckpointFolder(place, arguments.trusted)
    sources = [source for source in (arguments.source, arguments.labels) if source is not None]
    how = {"sources": sources, "group": arguments.group, "trusted": arguments.trusted}
    opened: Checkpoints = open_checkpoints(place, **how, **options_of(arguments, place))
    return opened


def _joined(
    arguments: argparse.Namespace, labels: str, table: Table, how: dict[str, Any], stack: contextlib.ExitStack
) -> JoinedSource:
    """Open rows and labels, which the stack closes."""
    reading, found = joined_tables(arguments, table), []
    own = {"format": arguments.format, "label_needed": False}, {"format": labels_format(arguments)}
    for spec, options, columns in zip((arguments.source, labels), own, reading, strict=True):
        start = arguments.start if "://" in spec else None
        source = open_source(spec, **(how | options | {"start": start}), **options_of(arguments, spec), **columns)
        stack.callback(source.close)
        found.append(source)
    return JoinedSource(*found, key=arguments.key, time=arguments.time)


@contextlib.contextmanager
def monitored(arguments: argparse.Namespace, loop: Any) -> Iterator[None]:
    """Serve the metrics of a loop where a port is given."""
    if arguments.metrics_port is None:
        yield
        return
    from streamsvm.stream.monitor import Monitor, MonitorError  # noqa: PLC0415 - starts a server of HTTP, which few runs need

    try:
        monitor = Monitor(loop, arguments.metrics_port, arguments.metrics_host)
    except MonitorError as error:
        raise CommandError(f"--metrics-port: {error}") from error
    with monitor:
        url = f"http://{arguments.metrics_host}:{monitor.port}/"
        say(arguments, f"metrics, and a page, at {url}", "metrics", url=url)
        yield


def options_of(arguments: argparse.Namespace, spec: str) -> dict[str, Any]:
    """Return what a ``--config`` file says of connections with this scheme."""
    return {"options": arguments.options.get(spec.partition("://")[0], {})} if "://" in spec else {}


@contextlib.contextmanager
def stopping(stop: Callable[[], None]) -> Iterator[None]:
    """Let the first Ctrl-C or SIGTERM call ``stop``, which ends the work in order; a second one ends it at once.

    Where the end takes longer than a second, as it does while a learner is compiled, the user is told of the second one.
    """
    pressed: queue.SimpleQueue[bool] = queue.SimpleQueue()  # in which a signal may put something while another one does
    ended = threading.Event()

    def tell() -> None:
        if pressed.get() and not ended.wait(_SECONDS_TO_STOP):
            logger.warning("streamsvm: stopping after the step that is running; press Ctrl-C again to stop now")

    def handle(number: int, frame: object) -> None:  # noqa: ARG001
        stop()
        signal.signal(number, signal.default_int_handler)
        pressed.put(True)

    threading.Thread(target=tell, daemon=True).start()  # not in the handler, which may interrupt the start of another thread
    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        ended.set()
        pressed.put(False)
        for number, handler in before.items():
            signal.signal(number, handler)
