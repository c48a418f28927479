"""Flags about tables, the examples of ``--help``, and flags from a file of TOML."""

from __future__ import annotations

import argparse
import csv
import io
import tomllib
from collections.abc import Iterable, Mapping
from importlib.metadata import entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsvm.cli import UsageError

__all__ = ["EXAMPLES", "add_table_flags", "expanded", "names", "written"]

EXAMPLES = """\
examples:
  a table of numbers, with the label in column y
    streamsvm learn rows.csv --label y
  a table with an id, two columns of names, a date, and NA for missing values
    streamsvm learn people.csv --label income --drop id --categorical job,city --dates since --missing NA
  a CSV from a German Excel, with checkpoints to continue from; then predictions for a file like it
    streamsvm learn kunden.csv --label y --delimiter ';' --encoding cp1252 --checkpoint state
    streamsvm predict neue.csv --model state --to -
  another model and metric, and more flags from a file
    streamsvm learn rows.parquet --label y --model linear --metric ROCAUC --config flags.toml
  an endless topic, and a pipe
    streamsvm learn kafka://localhost:9092/rows --label y --checkpoint state
    tail -f rows.jsonl | streamsvm learn - --format jsonl --label y --to -
"""


def add_table_flags(group: Any) -> None:
    """Add the flags that say what the columns of a table are."""
    text = "the columns to learn from, separated by commas (default: all but the label)"
    group.add_argument("--features", metavar="A,B", help=text)
    group.add_argument("--drop", metavar="A,B", help="columns to ignore, such as ids")
    text = "columns of names, such as cities: the first 64 values get a feature each, all others share 32 hashed features"
    group.add_argument("--categorical", metavar="A,B", help=text)
    text = "columns of dates, which become seconds; in ISO 8601, or in the format that you give, such as since=%%d.%%m.%%Y"
    group.add_argument("--dates", metavar="A[=FORMAT],B", help=text)
    text = "also add the time of day, day of the week or day of the year of each date, as sine and cosine"
    group.add_argument("--cycles", metavar="day,week,year", help=text)
    text = "values that mean missing, as an empty cell does (write --missing=-,NA if a dash comes first)"
    group.add_argument("--missing", metavar="NA,-", help=text)
    text = "for a missing value: drop the feature from that row (the default), use its mean so far, or add a feature that says so"
    group.add_argument("--when-missing", choices=["drop", "mean", "indicator"], help=text)
    group.add_argument("--decimal", choices=[".", ","], help="the decimal separator (default: a point)")
    group.add_argument("--delimiter", metavar="C", help="the character between CSV cells (default: a comma; write tab for a tab)")
    group.add_argument("--encoding", metavar="NAME", help="the encoding of text (default: utf-8), such as latin-1 or cp1252")


def names(text: str) -> list[str]:
    """Return the names of a list with commas; one that has a comma itself stands in quotes.

    Examples
    --------
    >>> names('age, "last, first",job')
    ['age', 'last, first', 'job']
    """
    return [name for name in next(csv.reader([text], skipinitialspace=True), []) if name]


def written(values: Iterable[str]) -> str:
    """Return a list of names as `names` reads it.

    Examples
    --------
    >>> written(["age", "last, first"])
    'age,"last, first"'
    """
    line = io.StringIO()
    csv.writer(line, lineterminator="").writerow(values)
    return line.getvalue()


class Config(NamedTuple):
    """The contents of a ``--config`` file."""

    words: list[str]
    """The command line, with the flags of the file before its own, which so win."""
    source: str | None = None
    options: Mapping[str, Mapping[str, Any]] = MappingProxyType({})
    """Of connections, by the scheme of their URLs."""


def expanded(commands: Mapping[str, argparse.ArgumentParser], words: list[str]) -> Config:
    """Return a command line with what its ``--config`` file says.

    The file is TOML, a key a flag: ``label = "y"``, ``drop = ["id", "ts"]``, ``quiet = true``, ``set = {gamma = 0.5}``. Keys in a
    table ``[learn]`` or ``[predict]`` are for that command; above them, what only the other command knows is ignored. A table
    ``[kafka]`` holds options of the connections with that scheme.

    Raises
    ------
    UsageError
        The file cannot be read, or has a key that is no flag.
    """
    if not words or words[0] not in commands:
        return Config(words)
    finder = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    finder.add_argument("--config")
    try:
        path = finder.parse_known_args(words)[0].config
    except SystemExit:  # without a name; the parser of the command says so
        path = None
    if path is None:
        return Config(words)
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"--config {path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:  # of decoding, or of numbers of thousands of digits
        raise UsageError(f"--config {path}: not TOML: {error}") from None
    command = words[0]
    flags = {name: set(parser._option_string_actions) for name, parser in commands.items()}
    schemes = {entry.name for entry in entry_points(group="streamsvm.sources")}
    options = {key: value for key, value in found.items() if key in schemes}
    shared = {key: value for key, value in found.items() if key not in commands and key not in schemes}
    sections = {name: found[name] for name in commands if name in found}
    before: list[str] = []
    source: str | None = None
    for name, table in (sections | options).items():
        if not isinstance(table, dict):
            raise UsageError(f"--config {path}: {name} must be a table, [{name}]")
    by_command: list[tuple[str | None, Any]] = [(None, shared), *sections.items()]
    for where, values in by_command:
        for key, value in values.items():
            flag = f"--{key.replace('_', '-')}"
            known = [name for name in ([where] if where else commands) if flag in flags[name] and key != "config"]
            if key == "source" and isinstance(value, str):
                source = value if where in (None, command) else source
            elif not known or flag == "--help":
                raise UsageError(f"--config {path}: {key} is no flag of {where or 'learn or predict'}")
            elif command in known:
                before += _words(path, flag, value)
    return Config([command, *before, *words[1:]], source, options)


def _words(path: str, flag: str, value: Any) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, dict):  # of KEY=VALUE
        value = [name if item == "" else f"{name}={item}" for name, item in value.items()]
    if isinstance(value, list) and flag == "--set":
        return [f"{flag}={item}" for item in value]
    if isinstance(value, list):
        value = written(map(str, value))
    if not isinstance(value, str | int | float):
        raise UsageError(f"--config {path}: {flag[2:]} cannot be {value!r}")
    return [f"{flag}={value}"]
