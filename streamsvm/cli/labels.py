"""Flags about labels that come later, from another stream, and what is made of them."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from streamsvm.cli import UsageError
from streamsvm.cli.parsing import parse_positive
from streamsvm.cli.tables import Table
from streamsvm.stream import BadRow, DelayedLabels, Row, Rows, StreamError
from streamsvm.stream.batches import WrappedSource
from streamsvm.stream.open import format_of

__all__ = ["delayed_of", "joined_tables", "labels_format", "looked_at", "without_key"]

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
