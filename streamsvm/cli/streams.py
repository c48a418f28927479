"""The source and the sink of a command, and the signals that end it in order."""

from __future__ import annotations

import argparse
import contextlib
import logging
import queue
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from streamsvm.cli import CommandError
from streamsvm.cli.labels import joined_tables, labels_format
from streamsvm.cli.progress import say
from streamsvm.cli.tables import Table
from streamsvm.stream import CheckpointFolder, JoinedSource, Sink, Source, open_sink, open_source
from streamsvm.stream.checkpoint import Checkpoints
from streamsvm.stream.open import open_checkpoints

__all__ = ["monitored", "open_place", "open_streams", "options_of", "stopping"]

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
