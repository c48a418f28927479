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
  a table whose columns are numbers, but for the label
    streamsvm learn rows.csv --label y
  with an id, two columns of names, a date, and NA where there is no value
    streamsvm learn people.csv --label income --drop id --categorical job,city --dates since --missing NA
  German Excel, with checkpoints from which the same command goes on; then predictions by the same reading
    streamsvm learn kunden.csv --label y --delimiter ';' --encoding cp1252 --checkpoint state
    streamsvm predict neue.csv --model state --to -
  another learner and metric, all flags from a file
    streamsvm learn rows.parquet --label y --model linear --metric ROCAUC --config flags.toml
  an endless topic, and what comes through a pipe
    streamsvm learn kafka://localhost:9092/rows --label y --checkpoint state
    tail -f rows.jsonl | streamsvm learn - --format jsonl --label y --to -
"""


def add_table_flags(group: Any) -> None:
    """Add the flags that say what the columns of a table are."""
    text = "columns to learn from, with commas between them (default: all but the label)"
    group.add_argument("--features", metavar="A,B", help=text)
    group.add_argument("--drop", metavar="A,B", help="columns to leave out, such as ids")
    text = "columns of names, such as cities: a feature for each of the first 64 values, 32 hashed ones for all others"
    group.add_argument("--categorical", metavar="A,B", help=text)
    text = "columns of dates, as seconds; ISO 8601, or written as the format says, such as since=%%d.%%m.%%Y"
    group.add_argument("--dates", metavar="A[=FORMAT],B", help=text)
    text = "also the place of each date in the day, week or year, as sine and cosine"
    group.add_argument("--cycles", metavar="day,week,year", help=text)
    text = "texts and numbers that mean that there is no value, as an empty cell does (--missing=-,NA if a dash comes first)"
    group.add_argument("--missing", metavar="NA,-", help=text)
    text = "where there is no value, drop the feature from that row (default), take its mean so far, or add a feature for it"
    group.add_argument("--when-missing", choices=["drop", "mean", "indicator"], help=text)
    group.add_argument("--decimal", choices=[".", ","], help="the decimal mark of numbers (default: a point)")
    group.add_argument("--delimiter", metavar="C", help="between two cells of CSV (default: a comma; tab for a tab)")
    group.add_argument("--encoding", metavar="NAME", help="of text (default: utf-8), such as latin-1 or cp1252")


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
