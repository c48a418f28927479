"""Checks of output files: a command must not overwrite its inputs, or, without ``--overwrite``, files of other programs."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from streamsvm.cli import UsageError
from streamsvm.stream.checkpoint import Checkpoint
from streamsvm.stream.file_names import list_source_files
from streamsvm.stream.sinks import RECORD_PATTERN, holds_position

_CHECKED_BYTES = 4096  # at both ends of a file
_READ_ONLY_SUFFIXES = frozenset({".parquet", ".arrow", ".feather", ".avro"})  # formats that sinks do not support
#: Matches the ends of exported models and pictures, which name streamsvm: ONNX as its producer, JSON and programs as format.
EXPORT_PATTERN: re.Pattern[bytes] = re.compile(
    rb'(?s)\x08.\x12\x09streamsvm|.*(?:written by streamsvm|"format":"streamsvm program"|"format":"streamsvm","kind":"program")'
)


def check_outputs(job: Any, labels: str | None) -> None:
    """Raise a UsageError if two outputs of a job (a `StreamJob`) would go to one place, or if an output would overwrite an input,
    or (unless ``--overwrite``) a file that streamsvm did not write. ``labels`` is the place of a separate stream of labels.
    """
    sinks: dict[str, str | None] = {"--to": job.to, "--on-error": None if job.on_error in ("stop", "skip") else job.on_error}
    folders, source = {"--checkpoint": job.checkpoint, "--model": getattr(job, "model", None)}, job.source
    streams = [option if sink == "-" else "" for option, sink in sinks.items()] + ["--quiet" if job.quiet else ""]
    if len(to_stdout := list(filter(None, streams))) > 1:
        raise UsageError(
            f"{' and '.join(flag + ' -' * (flag in sinks) for flag in to_stdout)} both write to standard output: leave one out"
        )
    source_files = list_source_files(source)
    files: dict[str, Any] = {"SOURCE": None if source_files else source, "--labels": labels, **sinks}
    inputs = [option for option, name in files.items() if name == "-" and option not in sinks]
    for option, sink in sinks.items():
        if sink is None or sink == "-":
            continue
        if "://" in sink:  # equal topics at different addresses are detected when they are open
            for flag, name in {**files, **folders}.items():
                if flag not in sinks and sink.partition("?")[0] == str(name).partition("?")[0]:
                    raise UsageError(f"{option} {sink} is {flag}, and this run would read there what it writes: name another one")
            continue
        if inputs and _is_standard_input(sink):
            raise UsageError(f"{option} {sink} would overwrite {inputs[0]}, which is standard input: name another file")
        for flag, name in files.items():
            if flag != option and name is not None and _is_same_file(sink, name):
                raise UsageError(f"{option} {sink} would overwrite {flag}: name another file")
        if source_files and _may_be_read(sink, source_files, [source] if isinstance(source, str) else source):
            raise UsageError(f"{option} {sink} would be one of the files of SOURCE: name another file")
        for flag, name in folders.items():
            if isinstance(name, Path) and (_is_same_file(sink, str(name)) or name.absolute() in Path(sink).absolute().parents):
                raise UsageError(f"{option} {sink} would write into {flag} {name}: name another file")
        if Path(sink).suffix.lower() in _READ_ONLY_SUFFIXES:
            raise UsageError(f"{option} {sink}: predictions are written as CSV or JSON lines: name a .csv or .jsonl file")
        check_may_overwrite(option, Path(sink), job.overwrite)


def _may_be_read(sink: str, files: Iterable[str], places: Iterable[str]) -> bool:
    """Return whether a command would read its own output file ``sink``, because it is one of the input ``files``, or in one of
    the folders, or matches one of the patterns, that the user gave as ``places``.
    """
    path = Path(sink).absolute()
    paths = (Path(place).absolute() for place in places)
    return any(_is_same_file(sink, file) for file in files) or any(
        path.parent == place_path if place_path.is_dir() else fnmatch(str(path), str(place_path)) for place_path in paths
    )


def check_output_files(option: str, paths: Iterable[Path], inputs: Mapping[str, Path | str | None], overwrite: bool) -> None:
    """Raise a UsageError if one of ``paths``, the files that the flag ``option`` is about to write, is among the ``inputs``
    (files by name in messages), or if it exists and streamsvm did not write it (unless ``overwrite``).
    """
    for path in paths:
        for name, input_path in inputs.items():
            if isinstance(input_path, Path) and (
                _is_same_file(str(path), str(input_path)) or input_path.absolute() in path.absolute().parents
            ):
                raise UsageError(f"{option} {path} would overwrite {name}, or write into it: name another file")
        check_may_overwrite(option, path, overwrite, EXPORT_PATTERN)


def may_overwrite(path: Path, own_pattern: re.Pattern[bytes] = EXPORT_PATTERN) -> bool:
    """Return whether a file may be overwritten: it does not exist, is empty, or its first or last bytes match ``own_pattern``, so
    that streamsvm has written it.

    This is also true for a folder, which is refused later, and for a pipe or device, which has no content to lose.
    """
    if not path.is_file():
        return True
    with path.open("rb") as file:
        ends = file.read(_CHECKED_BYTES)
        file.seek(max(file.seek(0, os.SEEK_END) - _CHECKED_BYTES, 0))
        ends += file.read()
    return not ends or own_pattern.match(ends) is not None


def check_may_overwrite(option: str, path: Path, overwrite: bool, own_pattern: re.Pattern[bytes] = RECORD_PATTERN) -> None:
    """Raise a UsageError, which begins with the flag ``option``, if ``path`` exists and streamsvm did not write it, unless
    ``overwrite``.
    """
    if not overwrite and not may_overwrite(path, own_pattern):
        raise UsageError(f"{option} {path} exists, and streamsvm did not write it: name another file, or give --overwrite")


def check_differs_from_learner(sinks: Mapping[str, str], checkpoint: Checkpoint) -> None:
    """Raise a UsageError if one of ``sinks``, the outputs of a command by flag, is a file to which the learner of a checkpoint
    has written predictions or refused rows, and which it will continue.
    """
    for position in (checkpoint.get_facts("sink"), checkpoint.get_facts("refused", "dead_letters")):
        name, offset, tail = position.get("name"), position.get("offset"), position.get("tail_digest", "")
        for flag, sink in sinks.items():
            path = Path(sink)
            if name == path.resolve().name and path.is_file() and isinstance(offset, int) and holds_position(path, offset, tail):
                raise UsageError(f"{flag} {sink} is where the learner of this model writes, too: name another file")


def _is_standard_input(path: str) -> bool:
    """Return whether ``path`` is the file that the shell has redirected standard input from (``< path``)."""
    try:
        return os.path.samestat(os.fstat(sys.stdin.fileno()), os.stat(path))  # noqa: PTH116 - comparable with fstat
    except (OSError, ValueError, AttributeError):  # standard input is closed or not a file, or the path does not exist
        return False


def _is_same_file(first_name: str, second_name: str) -> bool:
    """Return whether two paths name the same file, also through links or relative paths."""
    first, second = Path(first_name), Path(second_name)
    return first.absolute() == second.absolute() or (first.exists() and second.exists() and first.samefile(second))
