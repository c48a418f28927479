"""Arguments that several commands have."""

from __future__ import annotations

import argparse
from typing import Any

from streamsvm.cli.values import count, every, place, port, seconds, share, whole

__all__ = ["add_errors", "add_labels", "add_logs", "add_run", "add_streams", "add_trusted"]


def add_run(group: Any, checkpoint_help: str, metavar: str = "DIR") -> None:
    """Add the flags about checkpoints, metrics and the end of a run."""
    group.add_argument("--checkpoint", type=place, metavar=metavar, help=checkpoint_help)
    text = "rows between checkpoints, such as 10000, or seconds between them, such as 5s (default: %(default)s)"
    group.add_argument("--checkpoint-every", type=every, default="1s", metavar="N|Ns", help=text)
    text = "serve metrics for Prometheus, checks of health and a page at this port, as long as the run goes on"
    group.add_argument("--metrics-port", type=port, metavar="N", help=text)
    text = "the address to serve them at (default: %(default)s; 0.0.0.0 in a container)"
    group.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help=text)
    group.add_argument("--max-rows", type=count, metavar="N", help="stop after so many rows of this run")


def add_trusted(group: Any, what: str) -> None:
    """Add the flag that says that a file is trusted."""
    text = (
        f"{what} may hold classes and functions of your own. Only for a file that is from you: loading it can then run anything "
        "that its writer wants; without this flag it can run nothing"
    )
    group.add_argument("--trusted", action="store_true", help=text)


def add_streams(command: argparse.ArgumentParser, label: str, sink_required: bool) -> None:
    """Add the arguments of a command that reads a source and writes predictions."""
    streams = command.add_argument_group("source and predictions")
    streams.add_argument(
        "source",
        metavar="SOURCE",
        nargs="?",
        help="a path (CSV, JSON lines or LIBSVM text, each also as .gz; Parquet, Arrow), - for standard input, or "
        "kafka://host:port/topic",
    )
    streams.add_argument("--label", metavar="NAME", help=label)
    streams.add_argument(
        "--to",
        metavar="SINK",
        required=sink_required,
        help="where predictions go: a path (CSV where it ends in .csv, else JSON lines), - for JSON lines on standard output, or "
        "kafka://host:port/topic",
    )
    formats = ["csv", "jsonl", "libsvm", "parquet", "arrow"]
    streams.add_argument("--format", choices=formats, help="of SOURCE, if its name does not say it")
    text = (
        "where to begin in a topic: earliest (the default), latest, a time such as 2026-03-01T12:00:00Z, or PARTITION:OFFSET; "
        "with a checkpoint only where the topic no longer holds what follows it: the model is kept"
    )
    streams.add_argument("--from", dest="start", metavar="WHERE", help=text)
    streams.add_argument("--stop-at-end", action="store_true", help="end where the topic ended at the start")
    streams.add_argument("--quiet", action="store_true", help="progress as JSON lines on standard output, nothing else")
    add_logs(streams)
    text = (
        "flags from a file, such as: label = 'y'; those given here win. Its table [kafka] has options of the connection, such as "
        "security_protocol, which are also taken from the environment: STREAMSVM_KAFKA_SECURITY_PROTOCOL"
    )
    streams.add_argument("--config", metavar="F.toml", help=text)


def add_logs(group: Any) -> None:
    """Add the flags about the lines on standard error."""
    text = (
        "of standard error: text (the default), or json: one object a line with time, level, logger, message and fields, for "
        "warnings, errors, checkpoints, progress and what connections tell"
    )
    group.add_argument("--log-format", choices=["text", "json"], default="text", help=text)
    text = "the least that is told in lines of JSON (default: info)"
    group.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help=text)


def add_labels(group: Any) -> None:
    """Add the flags about labels that come later than their rows."""
    text = (
        "where labels come from, if they are not in the rows: a path or kafka://host:port/topic. Each row is predicted when it "
        "comes; when its label does, that prediction is scored and the row is learned"
    )
    group.add_argument("--labels", metavar="STREAM", help=text)
    group.add_argument("--key", metavar="NAME", help="the column or field by which labels find their row")
    text = (
        "the column or field of the event time, seconds since 1970 or ISO 8601, in whose order both streams are read and which "
        "each must have (default: the time of the messages of Kafka)"
    )
    group.add_argument("--time", metavar="NAME", help=text)
    text = "seconds of event time that a row waits for its label (default: 86400; inf: no limit)"
    group.add_argument("--max-age", type=seconds, metavar="S", help=text)
    group.add_argument("--max-pending", type=count, metavar="N", help="the most rows that wait (default: 100000)")
    group.add_argument("--max-pending-bytes", type=count, metavar="N", help="the most bytes that they take (default: 134217728)")
    text = "what becomes of a row whose label does not come in time (default: drop); with a label, it is learned with that one"
    group.add_argument("--expired", metavar="drop|dead-letter|negative=LABEL", help=text)


def add_errors(command: argparse.ArgumentParser, labels: bool) -> None:
    """Add the flags about rows that cannot be used, with that which declares the ``labels``."""
    errors = command.add_argument_group("rows that cannot be used")
    if labels:
        text = "the labels that rows may have; any other is an error of its row (default: any of the type of the first)"
        errors.add_argument("--labels-are", metavar="A,B,C", help=text)
    errors.add_argument(
        "--on-error",
        default="stop",
        metavar="stop|skip|SINK",
        help="for a row that cannot be read, predicted or learned: stop (the default), skip it, or write it with the reason to a "
        "path or kafka://host:port/topic and go on",
    )
    errors.add_argument("--error-limit", type=whole, metavar="N", help="the most rows that may be refused (default: no limit)")
    errors.add_argument(
        "--error-share",
        type=share,
        default=0.5,
        metavar="S",
        help="the most of about the last 1,000 rows that may be refused, once 100 were (default: %(default)s)",
    )
