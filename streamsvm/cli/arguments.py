"""Flags that several commands share, parsers of their values, and reports on standard error."""

from __future__ import annotations

import argparse
import contextlib
import logging
import math
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from streamsvm.cli import CommandError, UsageError, escape_unprintable
from streamsvm.files.messages import split_names


@contextlib.contextmanager
def as_usage_error(flag: str, kinds: tuple[type[Exception], ...] = (ValueError,)) -> Iterator[None]:
    """Within a ``with`` block, convert errors of the classes ``kinds`` to a UsageError (the command line is invalid) whose
    message begins with ``flag``, such as ``--columns``.
    """
    try:
        yield
    except kinds as error:
        raise UsageError(f"{flag}{error}") from None


@contextlib.contextmanager
def as_command_error(action: str, *kinds: type[Exception]) -> Iterator[None]:
    """Within a ``with`` block, convert errors of the classes ``kinds`` to a CommandError (the command failed) whose message
    begins with ``action``.
    """
    try:
        yield
    except kinds as error:
        raise CommandError(f"{action}{error}") from error


def parse_path_or_url(text: str) -> Path | str:
    """Return the value of a command-line flag unchanged if it is a URL (contains ``://``), otherwise as a `Path`."""
    return text if "://" in text else Path(text)


def parse_every(text: str) -> dict[str, Any]:
    """Parse the value of ``--checkpoint-every``: a number of rows such as ``10000``, or a time such as ``5s``. Return it as a
    dict of keyword arguments for the learning loop, such as ``{"checkpoint_every": 10000}``.
    """
    if text.isdecimal():
        return {"checkpoint_every": parse_count(text)}
    # The default, 1s, is parsed at once: a signal during an import would print a traceback here.
    return {"checkpoint_every": None, "checkpoint_seconds": 1.0 if text == "1s" else _parse_seconds(text)}


def _make_number_parser(
    requirement: str, is_valid: Callable[[Any], bool], convert: Callable[[str], Any] = float
) -> Callable[[str], Any]:
    """Return an argparse type: a function that converts a text by ``convert``, and raises an error with the text ``requirement``
    (such as "a number of seconds") unless ``is_valid(number)``.
    """

    def parse_number(text: str) -> Any:
        with contextlib.suppress(ValueError):
            if is_valid(number := convert(text)):
                return number
        raise argparse.ArgumentTypeError(f"must be {requirement}, not {text}")

    return parse_number


def _parse_digits(text: str) -> int:
    """Convert a text of decimal digits to an int. Raise a ValueError for any other text, also with a sign or underscores."""
    return int(text if text.isdecimal() else "")


def _parse_duration(text: str) -> float:
    from streamsvm.stream.tables.quantities import parse_duration_or_unit  # noqa: PLC0415 - --help must be quick

    return parse_duration_or_unit(text)


def _parse_rows_or_time(text: str) -> float:
    """Parse a number of rows, to an int, or a time in ISO 8601 (UTC without a time zone), to seconds since 1970, a float."""
    from streamsvm.stream.tables.dates import parse_iso_time  # noqa: PLC0415 - --help must be quick

    return int(text) if text.isdecimal() else parse_iso_time(text)


_MOMENT = "a number of rows, or a time such as 2026-03-01T12:00"
parse_moment: Callable[[str], Any] = _make_number_parser(_MOMENT, lambda _: True, _parse_rows_or_time)
_parse_day = _make_number_parser("DAY, or a duration such as 12h", lambda seconds: seconds > 0.0, _parse_duration)
_parse_seconds = _make_number_parser("a number of rows, such as 10000, or a time, such as 5s", lambda s: s > 0.0, _parse_duration)
parse_count: Callable[[str], int] = _make_number_parser("a whole number of at least 1", lambda number: number >= 1, int)
parse_period: Callable[[str], float] = _make_number_parser(
    "a number of seconds above 0", lambda number: 0.0 < number <= threading.TIMEOUT_MAX
)
parse_port: Callable[[str], int] = _make_number_parser(
    "a port from 0 (any that is free) to 65535", lambda number: number < 2**16, _parse_digits
)
parse_non_negative: Callable[[str], int] = _make_number_parser("a whole number", lambda _: True, _parse_digits)
parse_share: Callable[[str], float] = _make_number_parser("a number from 0 to 1", lambda number: 0.0 <= number <= 1.0)
parse_level: Callable[[str], float] = _make_number_parser("a number between 0 and 1, such as .9", lambda level: 0.0 < level < 1.0)
parse_bound: Callable[[str], float] = _make_number_parser(
    "a number of at least 2, or 0", lambda number: number == 0.0 or 2.0 <= number < math.inf
)


def add_table_flags(group: Any) -> None:
    """Add to an argparse ``group`` the flags that describe the columns of a table, such as ``--columns`` and ``--missing``."""
    text = (
        "what columns hold, as NAME:KIND, with commas between them; KIND is drop (ignored, as ids), category (names, such as "
        "cities: a feature for each where they are few, else what the labels say of each), key (devices or customers: a "
        "category whose last and recent labels are remembered), text (messages or titles: what the labels say of their words), "
        "date (ISO 8601, as seconds), "
        "date=%%d.%%m.%%Y (in that format; of numbers the unit, as date=ms), quantity (numbers with limits, units or flags, as "
        "'quantity=<5|kg'), duration (1:30:00, as seconds) or number. Others are numbers, or with *:drop at the end ignored; "
        "key, timestamp and header.NAME are also those of a topic's messages, for rows without a field of this name"
    )
    group.add_argument("--columns", action="append", metavar="NAME:KIND,...", help=text)
    text = (
        "also add the time of day, day of the week or day of the year of each date, or of one column (at:day), as sine and "
        "cosine; none leaves them out. By default, dates with times of day get day,week"
    )
    group.add_argument("--cycles", metavar="day,week,year", help=text)
    text = "values that mean missing, as an empty cell does"
    group.add_argument("--missing", metavar="NA,-", help=text)
    text = "for a missing value: its mean so far (the default), that and a feature that says so, or no feature, which counts as 0"
    group.add_argument("--when-missing", choices=["mean", "indicator", "drop"], help=text)
    text = (
        "the decimal mark of numbers that are written for people, with marks between groups of three digits, a currency or a "
        "percent sign, such as 1,200.50 or 1.209,28 (default: plain numbers, with a point)"
    )
    group.add_argument("--decimal", choices=[".", ","], help=text)
    group.add_argument("--delimiter", metavar="C", help="the character between CSV cells (default: a comma; write tab for a tab)")
    group.add_argument("--encoding", metavar="NAME", help="the encoding of text (default: utf-8), such as latin-1 or cp1252")


def parse_names(text: str) -> list[str]:
    """Split a flag's list of names at its commas; names in double quotes may contain commas. UsageError for invalid quotes."""
    with as_usage_error(""):
        return split_names(text)


class StoreOneOrMany(argparse.Action):
    """Stores one value as a text, and several values as a list."""

    def __call__(self, parser: object, namespace: argparse.Namespace, values: Any, option: object = None) -> None:  # noqa: ARG002
        setattr(namespace, self.dest, values[0] if len(values) == 1 else values)


def select_job_flags(kind: type[Any], arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the parsed command-line ``arguments`` that are also fields of ``kind``, a dataclass that describes a run (a
    `StreamJob`), as a dict by name.
    """
    names = kind.__dataclass_fields__  # importing dataclasses.fields takes a hundredth of a second
    return {name: getattr(arguments, name) for name in names if hasattr(arguments, name)}


def add_run_flags(group: Any, checkpoint_help: str, metavar: str = "DIR") -> None:
    """Add the flags about checkpoints, the metrics server and the maximum number of rows to an argparse ``group``.
    ``checkpoint_help`` and ``metavar`` are the help text and the placeholder of ``--checkpoint``.
    """
    group.add_argument("--checkpoint", type=parse_path_or_url, metavar=metavar, help=checkpoint_help)
    text = "how often to write a checkpoint, in rows, such as 10000, or a time, such as 5s (default: %(default)s)"
    group.add_argument("--checkpoint-every", type=parse_every, default="1s", metavar="N|Ns", help=text)
    text = "serve Prometheus metrics, health checks and a page with curves on this port during the run"
    group.add_argument("--metrics-port", type=parse_port, metavar="N", help=text)
    text = "the address to serve them on (default: %(default)s; use 0.0.0.0 in a container)"
    group.add_argument("--metrics-host", default="127.0.0.1", metavar="HOST", help=text)
    text = "names with a dot by which they may be asked for, such as learner.example.org (addresses and names without one may)"
    group.add_argument("--metrics-names", type=parse_names, default=[], metavar="NAME,...", help=text)
    group.add_argument("--max-rows", type=parse_count, metavar="N", help="stop after this many rows")


def add_retention_flags(group: Any) -> None:
    """Add the flags ``--keep-checkpoints`` and ``--keep-every`` to an argparse ``group``, as pairs of a parameter's name and its
    value in ``retention``.
    """
    options: Any = {"dest": "retention", "action": "append", "default": []}
    text = "how many of the newest checkpoints to keep (default: as before; at first 2 in a folder, 1 in a topic)"
    group.add_argument("--keep-checkpoints", type=lambda value: ("keep", parse_count(value)), metavar="N", help=text, **options)
    text = "also keep the newest checkpoint of each DAY (UTC), or of each period such as 12h (default: as before; inf: no longer)"
    group.add_argument("--keep-every", type=lambda value: ("keep_every", _parse_day(value)), metavar="DAY", help=text, **options)


def add_trusted_flag(group: Any, contents: str) -> None:
    """Add the flag ``--trusted``, which permits loading the user's own classes, to an argparse ``group``. Its help text begins
    with ``contents``, the kind of file that may contain such classes.
    """
    text = (
        f"{contents} may contain your own classes and functions. Use it only for files that you wrote yourself: loading can then "
        "run any code that is in the file. Without this flag, loading runs no code"
    )
    group.add_argument("--trusted", action="store_true", help=text)


def add_model_argument(command: Any, name: str = "path", **options: Any) -> None:
    """Add a positional argument ``name`` to the argparse parser ``command``: the path or URL of a saved model or checkpoint.
    ``options`` are further keyword arguments of ``add_argument``.
    """
    text = (
        "a saved model, a checkpoint, or a folder or topic of checkpoints, as for predict --model. The environment may hold "
        "options of the connection, such as STREAMSVM_KAFKA_SECURITY_PROTOCOL"
    )
    command.add_argument(name, type=parse_path_or_url, help=text, **({"metavar": "PLACE"} | options))


def add_label_flags(command: Any) -> None:
    """Add flags to the argparse parser ``command`` that tell where the labels of rows are (``--label`` names a column, and
    ``--labels`` a separate stream of labels), and the format of the rows.
    """
    text = "the column or key that holds the label (default: the one that was learned)"
    command.add_argument("--label", metavar="NAME", help=text)
    command.add_argument("--labels", metavar="STREAM?key=NAME", help="labels that are not in the rows, as of learn")
    add_format_flag(command)


def add_format_flag(group: Any) -> None:
    """Add the flag ``--format``, which names the format of the rows, to an argparse ``group``."""
    formats = ["csv", "jsonl", "libsvm", "parquet", "arrow"]
    group.add_argument("--format", choices=formats, help="the format of the rows, if the name of their source does not show it")


def add_overwrite_flag(group: Any) -> None:
    """Add the flag ``--overwrite`` to an argparse ``group``: it permits overwriting files that streamsvm did not write."""
    text = "overwrite files that streamsvm did not write, too (files of its earlier runs are written anew, or continued)"
    group.add_argument("--overwrite", action="store_true", help=text)


def add_stream_arguments(command: argparse.ArgumentParser, label: str, sink_required: bool) -> None:
    """Add the arguments that describe the source of rows and the output of predictions (``--to``) to an argparse parser.
    ``label`` is the help text of ``--label``, and ``sink_required`` makes ``--to`` mandatory.
    """
    streams = command.add_argument_group("source and predictions")
    text = (
        "a path (CSV, JSON lines or LIBSVM text, each also as .gz, .bz2 or .zst; Parquet, Arrow), - for standard input, or "
        "kafka://host:port/topic. Several files, a folder, or a pattern in quotes ('data/*.csv') are read as one"
    )
    streams.add_argument("source", metavar="SOURCE", nargs="+", action=StoreOneOrMany, help=text)
    streams.add_argument("--label", metavar="NAME", help=label)
    text = (
        "where predictions go: a path (CSV if it ends in .csv, otherwise JSON lines), - for JSON lines on standard output, "
        "or kafka://host:port/topic"
    )
    streams.add_argument("--to", metavar="SINK", required=sink_required, help=text)
    streams.add_argument("--rotate", metavar="SIZE|DAY", help="number the files of --to and --on-error after 1GB, DAY, or 12h")
    add_overwrite_flag(streams)
    text = (
        "columns to copy from each row into its prediction, as they came, to join the two. Predictions of a topic's rows always "
        "have partition and offset, and in a topic the key, time and headers of the row's message"
    )
    streams.add_argument("--passthrough", type=parse_names, default=[], metavar="id,ts", help=text)
    add_format_flag(streams)
    text = (
        "where to begin in a topic: earliest (the default), latest, a time such as 2026-03-01T12:00:00Z, or PARTITION:OFFSET; in "
        "files: earliest. A run that continues from a checkpoint uses it only if the checkpoint is of another topic or file, or "
        "the topic no longer has the rows that come next; it keeps the model"
    )
    streams.add_argument("--from", dest="start", metavar="WHERE", help=text)
    text = "stop at the end that the topic has when the run starts, instead of waiting for more rows"
    streams.add_argument("--stop-at-end", action="store_true", help=text)
    streams.add_argument("--quiet", action="store_true", help="print progress as JSON lines on standard output, and nothing else")
    add_log_flags(streams)


def add_log_flags(group: Any) -> None:
    """Add the flags ``--log-format`` and ``--log-level``, about the lines on standard error, to an argparse ``group``."""
    text = (
        "the format of standard error: text (the default), or json, which logs warnings, errors, checkpoints, progress and "
        "messages of connections as one object per line"
    )
    group.add_argument("--log-format", choices=["text", "json"], default="text", help=text)
    text = "the lowest level to log with --log-format json (default: info)"
    group.add_argument("--log-level", choices=["debug", "info", "warning", "error"], help=text)


def add_error_flags(command: argparse.ArgumentParser, labels: bool) -> None:
    """Add the flags about invalid rows, such as ``--on-error``, to the argparse parser ``command``. With ``labels``, also add
    ``--labels-are``, the list of valid labels.
    """
    errors = command.add_argument_group("rows that cannot be used")
    if labels:
        text = "the labels to expect; a row with any other label is refused (default: any label of the same type as the first)"
        errors.add_argument("--labels-are", metavar="A,B,C", help=text)
    text = (
        "what to do with a row that cannot be read, predicted or learned: stop (the default), skip it, or write it and "
        "the reason to a path or kafka://host:port/topic and continue"
    )
    errors.add_argument("--on-error", default="stop", metavar="stop|skip|SINK", help=text)
    text = (
        "what to do when columns have changed during the run: warn (the default), or stop before the changed rows are processed"
    )
    errors.add_argument("--on-schema", choices=["warn", "stop"], default="warn", help=text)
    text = "stop when more rows than this are refused (default: no limit)"
    errors.add_argument("--error-limit", type=parse_non_negative, metavar="N", help=text)
    text = "stop when more than this share of about the last 1,000 rows is refused, once 100 were (default: %(default)s)"
    errors.add_argument("--error-share", type=parse_share, default=0.5, metavar="S", help=text)


def add_decision_flags(group: Any, learns: bool, positive_help: str = "") -> None:
    """Add the flags ``--threshold`` and ``--costs``, which change how labels are predicted, to an argparse ``group``. For a
    command that ``learns``, also add ``--interval``, and let ``--threshold`` be a metric; for others, ``--positive``.
    """
    tuned = ", or a metric, such as f1, balanced or mcc, for which it is tuned row by row" if learns else ""
    text = f"predict the --positive label from this probability on (default: where it is the most probable one){tuned}"
    group.add_argument("--threshold", metavar="P|METRIC" if learns else "P", help=text)
    text = "what it costs to miss a row of a label, against 1 of others: the label with the least expected cost is predicted"
    group.add_argument("--costs", metavar="LABEL=N,...", help=text)
    if not learns:
        group.add_argument("--positive", metavar="LABEL", help="the label of --threshold" + positive_help)
    else:
        text = (
            "also learn how sure predictions are: an interval (low and high) that holds the number of this share of the rows, "
            "such as .9; of labels a set of them (labels)"
        )
        group.add_argument("--interval", type=parse_level, metavar="LEVEL", help=text)


# ruff: noqa: T201


logger: logging.Logger = logging.getLogger("streamsvm")


@contextlib.contextmanager
def configure_logs(arguments: argparse.Namespace) -> Iterator[None]:
    """During a ``with`` block, write log records as JSON lines to standard error, if ``--log-format json`` is given."""
    if not logs_json(arguments):
        if getattr(arguments, "log_level", None) is not None:
            raise UsageError("--log-level is about lines of JSON: give --log-format json, too")
        yield
        return
    from streamsvm.stream.logs import log_as_json  # noqa: PLC0415 - --help must be quick

    with log_as_json(sys.stderr, arguments.log_level or "info"):
        yield


def logs_json(arguments: argparse.Namespace) -> bool:
    """Return whether the parsed ``arguments`` contain ``--log-format json``: standard error then has JSON lines."""
    return getattr(arguments, "log_format", "text") == "json"


class Reporter(NamedTuple):
    """Reports the progress of a command on standard error."""

    quiet: bool
    """Whether standard output has JSON lines, and standard error has no text."""
    json: bool
    """Whether standard error has JSON lines."""

    @property
    def shows_text(self) -> bool:
        """Whether this reporter writes plain text to standard error: neither ``--quiet`` nor ``--log-format json`` is set."""
        return not (self.quiet or self.json)

    def report_event(self, text: str, event: str, **fields: Any) -> None:
        """Report an event on standard error: as a JSON line with ``event`` and ``fields`` if `json`, else as ``text`` unless
        `quiet`.
        """
        if self.json:
            logger.info("%s", text, extra={"fields": {"event": event, **fields}})
        elif not self.quiet and sys.stderr is not None:
            print(escape_unprintable(text), file=sys.stderr, flush=True)
