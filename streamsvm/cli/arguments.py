"""Arguments that several commands have."""

from __future__ import annotations

import argparse
from typing import Any

from streamsvm.cli.values import count, every, place, port, seconds, share, whole

__all__ = ["add_errors", "add_labels", "add_logs", "add_run", "add_streams", "add_trusted"]


def add_run(group: Any, checkpoint_help: str, metavar: str = "DIR") -> None:
    """Add the flags about checkpoints, metrics and the end of a run."""
    group.add_argument("--checkpoint", type=place, metavar=metavar, help=checkpoint_help)
    text = "how often to write a checkpoint, in rows, such as 10000, or in seconds, such as 5s (default: %(default)s)"
    group.add_argument("--checkpoint-every", type=every, default="1s", metavar="N|Ns", help=text)
    text = "serve Prometheus metrics, health checks and a page with curves on this port during the run"
    group.add_argument("--metrics-port", type=port, metavar="N", help=text)
    text = "the address to serve them on (default: %(default)s; use 0.0.0.0 in a container)"
    group.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help=text)
    group.add_argument("--max-rows", type=count, metavar="N", help="stop after this many rows")


def add_trusted(group: Any, what: str) -> None:
    """Add the flag that says that a file is trusted."""
    text = (
        f"{what} may contain your own classes and functions. Use it only for files that you wrote yourself: loading can then run "
        "any code that is in the file. Without this flag, loading runs no code"
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
        help="where predictions go: a path (CSV if it ends in .csv, otherwise JSON lines), - for JSON lines on standard output, "
        "or kafka://host:port/topic",
    )
    formats = ["csv", "jsonl", "libsvm", "parquet", "arrow"]
    streams.add_argument("--format", choices=formats, help="the format of SOURCE, if its name does not show it")
    text = (
        "where to begin in a topic: earliest (the default), latest, a time such as 2026-03-01T12:00:00Z, or PARTITION:OFFSET. A "
        "run that continues from a checkpoint uses it only if the topic no longer has the rows that come next"
    )
    streams.add_argument("--from", dest="start", metavar="WHERE", help=text)
    text = "stop at the end that the topic has when the run starts, instead of waiting for more rows"
    streams.add_argument("--stop-at-end", action="store_true", help=text)
    streams.add_argument("--quiet", action="store_true", help="print progress as JSON lines on standard output, and nothing else")
    add_logs(streams)
    text = (
        "read flags from a file, with lines such as: label = 'y'. Flags on the command line override it. A table [kafka] holds "
        "options of the connection, such as security_protocol; the environment may hold them, too, as "
        "STREAMSVM_KAFKA_SECURITY_PROTOCOL"
    )
    streams.add_argument("--config", metavar="F.toml", help=text)


def add_logs(group: Any) -> None:
    """Add the flags about the lines on standard error."""
    text = (
        "the format of standard error: text (the default), or json, which logs warnings, errors, checkpoints, progress and "
        "messages of connections as one object per line"
    )
    group.add_argument("--log-format", choices=["text", "json"], default="text", help=text)
    text = "the lowest level to log with --log-format json (default: info)"
    group.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help=text)


def add_labels(group: Any) -> None:
    """Add the flags about labels that come later than their rows."""
    text = (
        "where labels come from, if they are not in the rows: a path or kafka://host:port/topic. Each row is predicted when it "
        "arrives; when its label arrives, that prediction is scored and the row is learned"
    )
    group.add_argument("--labels", metavar="STREAM", help=text)
    group.add_argument("--key", metavar="NAME", help="the column or field that joins each label to its row")
    text = (
        "the column or field with the event time, in seconds since 1970 or ISO 8601. Both streams must have it and are read in "
        "its order (default: the time of each Kafka message)"
    )
    group.add_argument("--time", metavar="NAME", help=text)
    text = "how long a row waits for its label, in seconds of event time (default: 86400; inf: no limit)"
    group.add_argument("--max-age", type=seconds, metavar="S", help=text)
    group.add_argument("--max-pending", type=count, metavar="N", help="how many rows may wait (default: 100000)")
    group.add_argument("--max-pending-bytes", type=count, metavar="N", help="how many bytes they may take (default: 134217728)")
    text = "what to do with a row whose label does not arrive in time (default: drop); negative=LABEL learns it with that label"
    group.add_argument("--expired", metavar="drop|dead-letter|negative=LABEL", help=text)


def add_errors(command: argparse.ArgumentParser, labels: bool) -> None:
    """Add the flags about rows that cannot be used, with that which declares the ``labels``."""
    errors = command.add_argument_group("rows that cannot be used")
    if labels:
        text = "the labels to expect; a row with any other label is refused (default: any label of the same type as the first)"
        errors.add_argument("--labels-are", metavar="A,B,C", help=text)
    errors.add_argument(
        "--on-error",
        default="stop",
        metavar="stop|skip|SINK",
        help="what to do with a row that cannot be read, predicted or learned: stop (the default), skip it, or write it and "
        "the reason to a path or kafka://host:port/topic and continue",
    )
    text = "stop when more rows than this are refused (default: no limit)"
    errors.add_argument("--error-limit", type=whole, metavar="N", help=text)
    errors.add_argument(
        "--error-share",
        type=share,
        default=0.5,
        metavar="S",
        help="stop when more than this share of about the last 1,000 rows is refused, once 100 were (default: %(default)s)",
    )
