"""Which files a command may write: none that it reads, and none that streamsvm did not write, unless ``--overwrite`` says so."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from streamsvm.cli import UsageError
from streamsvm.stream.open import list_source_files

_BYTES = 4096
_NO_SINK = frozenset({".parquet", ".arrow", ".feather", ".avro"})  # formats of sources alone
#: How predictions and dead letters begin, as CSV and as JSON lines.
_RECORD_PATTERN = re.compile(rb'row,(?:y_pred|place),|\{"row": \d+, "(?:y_pred|place)": ')

#: Exported models and pictures name their writer at one of their ends: ONNX as its producer, JSON and programs as their format.
EXPORT_PATTERN: re.Pattern[bytes] = re.compile(
    rb'(?s)\x08.\x12\x09streamsvm|.*(?:written by streamsvm|"format":"streamsvm program"|"format":"streamsvm","kind":"program")'
)


def check_outputs(
    sinks: Mapping[str, str | None],
    source: str | list[str],
    labels: str | None,
    folders: Mapping[str, Path | str | None],
    *,
    quiet: bool,
    overwrite: bool,
) -> None:
    """Raise a UsageError if two outputs would mix, or one would overwrite an input or a file that others wrote.

    ``sinks`` and ``folders`` are by their flags; the place of ``labels`` is an input like the source.
    """
    streams = [option if sink == "-" else "" for option, sink in sinks.items()] + ["--quiet" if quiet else ""]
    if len(wanted := list(filter(None, streams))) > 1:
        raise UsageError(
            f"{' and '.join(option + ' -' * (option in sinks) for option in wanted)} both write to standard output: leave one out"
        )
    several = list_source_files(source)
    files: dict[str, Any] = {"SOURCE": None if several else source, "--labels": labels, **sinks}
    inputs = [option for option, name in files.items() if name == "-" and option not in sinks]
    for option, sink in sinks.items():
        if sink is None or sink == "-":
            continue
        if "://" in sink:  # by another address of its cluster, it is found out when all is open
            for other, name in {**files, **folders}.items():
                if other not in sinks and sink.partition("?")[0] == str(name).partition("?")[0]:
                    raise UsageError(
                        f"{option} {sink} is {other}, and this run would read there what it writes: name another one"
                    )
            continue
        if inputs and _is_standard_input(sink):
            raise UsageError(f"{option} {sink} would overwrite {inputs[0]}, which is standard input: name another file")
        for other, name in files.items():
            if other != option and name is not None and _is_same_file(sink, name):
                raise UsageError(f"{option} {sink} would overwrite {other}: name another file")
        if several and _may_be_read(sink, several, [source] if isinstance(source, str) else source):
            raise UsageError(f"{option} {sink} would be one of the files of SOURCE: name another file")
        for other, name in folders.items():
            if isinstance(name, Path) and (_is_same_file(sink, str(name)) or name.absolute() in Path(sink).absolute().parents):
                raise UsageError(f"{option} {sink} would write into {other} {name}: name another file")
        if Path(sink).suffix.lower() in _NO_SINK:
            raise UsageError(f"{option} {sink}: what is written is CSV or JSON lines: name a .csv or .jsonl file")
        if not overwrite:
            _check_may_overwrite(option, Path(sink), _RECORD_PATTERN)


def _may_be_read(sink: str, files: Iterable[str], places: Iterable[str]) -> bool:
    """Whether a file is one of several that are read, or may be when their folders or patterns are looked up again."""
    path = Path(sink).absolute()
    paths = (Path(place).absolute() for place in places)
    return any(_is_same_file(sink, file) for file in files) or any(
        path.parent == place_path if place_path.is_dir() else fnmatch(str(path), str(place_path)) for place_path in paths
    )


def check_output_files(option: str, paths: Iterable[Path], inputs: Mapping[str, Path | str | None], overwrite: bool) -> None:
    """Raise a UsageError where files that are made of a model would overwrite an input, or files that others wrote.

    ``inputs`` are the model and other files that are read, by their names in messages.
    """
    for path in paths:
        for name, read in inputs.items():
            if isinstance(read, Path) and (_is_same_file(str(path), str(read)) or read.absolute() in path.absolute().parents):
                raise UsageError(f"{option} {path} would overwrite {name}, or write into it: name another file")
        if not overwrite:
            _check_may_overwrite(option, path, EXPORT_PATTERN)


def may_overwrite(path: Path, ours: re.Pattern[bytes] = EXPORT_PATTERN) -> bool:
    """Return whether a file may be overwritten: it does not exist, is empty, or was written by an earlier run.

    A folder is refused later, and a pipe or device loses nothing.
    """
    if not path.is_file():
        return True
    with path.open("rb") as file:
        ends = file.read(_BYTES)
        file.seek(max(file.seek(0, os.SEEK_END) - _BYTES, 0))
        ends += file.read()
    return not ends or ours.match(ends) is not None


def _check_may_overwrite(option: str, path: Path, ours: re.Pattern[bytes]) -> None:
    if not may_overwrite(path, ours):
        raise UsageError(f"{option} {path} exists, and streamsvm did not write it: name another file, or give --overwrite")


def _is_standard_input(path: str) -> bool:
    try:
        return os.path.samestat(os.fstat(sys.stdin.fileno()), os.stat(path))  # noqa: PTH116 - as fstat gives it
    except (OSError, ValueError, AttributeError):  # closed, no file, or not there yet
        return False


def _is_same_file(one: str, other: str) -> bool:
    first, second = Path(one), Path(other)
    return first.absolute() == second.absolute() or (first.exists() and second.exists() and first.samefile(second))
