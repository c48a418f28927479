"""Finds the files of a source, in their order, and the format of a file by its name."""

from __future__ import annotations

import contextlib
import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path, PurePath
from urllib.parse import unquote

from streamsvm.core.memory.features import make_natural_sort_key
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.lines import ByteStream

_WILDCARDS = frozenset("*?[")
_FORMAT_BY_SUFFIX = (
    dict.fromkeys((".csv", ".tsv", ".tab", ".psv"), "csv")
    | dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl")
    | dict.fromkeys((".libsvm", ".svm", ".t"), "libsvm")
    | {".parquet": "parquet"}
    | dict.fromkeys((".arrow", ".feather"), "arrow")
)
#: Patterns of names in the folder of a table whose files also hold rows of earlier versions.
_TABLE_LOGS = {"_delta_log": "a Delta", ".hoodie": "a Hudi"}
_TABLE_LOGS |= dict.fromkeys(("metadata/version-hint.text", "metadata/*.metadata.json"), "an Iceberg")
_PARTITION = re.compile(r"[A-Za-z_][^=/]*=")
_COPY_MARK = re.compile(r"(?: ?\([0-9]+\)| - Copy| copy)?(\.[^./]+)(?:\.(?:gz|bz2|zst))?$", re.IGNORECASE)
_COMPRESSED = (".gz", ".bz2", ".zst")
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".7z", ".rar", ".xz")
_SPREADSHEETS = (".xls", ".xlsx", ".ods")
_FORMATS = ("csv", "jsonl", "libsvm", "parquet", "arrow")


def list_source_files(spec: str | Sequence[str]) -> list[str]:
    """Return the paths of the files of a source. ``spec`` is a folder, a pattern such as ``data/*.csv``, or a list of files,
    folders and patterns. The files of a folder or a pattern are in natural order (``month-2`` before ``month-10``).

    In a folder, these are the files with a known suffix whose names do not begin with ``.`` or ``_``, also in subfolders such as
    ``region=north``. Empty files and duplicates are left out. The result is empty for a plain path, ``-`` or a URL. Raises a
    StreamError if a folder or pattern has no files, or files that repeat rows of others.
    """
    if not isinstance(spec, str):
        files = _remove_duplicates(path for name in spec for path in list_source_files(name) or [name])
        if missing := [path for path in files if not Path(path).is_file()]:
            raise StreamError(f"{missing[0]} is not a file: several sources are files, folders or patterns")
        _check_copies(files)
        return files
    if "://" in spec or spec == "-":
        return []
    path = Path(spec)
    if path.is_dir():
        candidates = [file for file in _iter_folder(path) if file.name[0] not in "._" and _is_filled(file)]
        if not (files := [str(file) for file in candidates if get_suffix(file.name) in _FORMAT_BY_SUFFIX]):
            advice = find_other_files(spec, []) or f"'{path}/*.txt' --format csv"
            advice += " (only subfolders such as region=north are read)" * any(map(Path.is_dir, path.iterdir()))
            raise StreamError(f"{spec} is a folder without a file of rows. Give a pattern and format: {advice}")
    elif not _WILDCARDS & {*spec} or path.exists():
        return []
    else:
        matches = sorted(glob.glob(spec, recursive=True))  # noqa: PTH207 - as a shell
        if not (files := _remove_duplicates(file for file in matches if _is_filled(Path(file)))):
            raise StreamError(f"{spec}: no file matches this pattern")
    for folder in {parent for file in files for parent in Path(file).parents}:
        if kind := next((kind for pattern, kind in _TABLE_LOGS.items() if any(folder.glob(pattern))), ""):
            text = f"{folder} is {kind} table, and its files have rows that were deleted or replaced"
            raise StreamError(f"{text}. Export its current version, or list the files of that version")
    files = sorted(files, key=make_natural_sort_key)
    _check_copies(files)
    return files


def find_other_files(folder: str, files: Sequence[str]) -> str:
    """Return a quoted pattern of the ``files`` of a folder and of others in its subfolders, whose suffix is one of theirs. Empty
    if there are no others; without ``files``, any suffix of a format counts.
    """
    suffixes = {*map(get_suffix, files)} or _FORMAT_BY_SUFFIX
    for file in (*Path(folder).glob("[!._]*/[!._]*"), *Path(folder).glob("[!._]*/[!._]*/[!._]*")):
        if get_suffix(file.name) in suffixes and str(file) not in files:
            return f"'{Path(folder)}/**/*{file.suffix}'"
    return ""


def read_partition(path: str) -> dict[str, str]:
    """Return the columns whose values are in the names of a file's folders, as text by column name. A missing value is empty.

    >>> read_partition("t/year=2024/region=Nord%2FOst/part-0.parquet")
    {'year': '2024', 'region': 'Nord/Ost'}
    """
    pairs = [unquote(part).partition("=") for part in PurePath(path).parent.parts if _PARTITION.match(part)]
    return {name: "" if value == "__HIVE_DEFAULT_PARTITION__" else value for name, _, value in pairs}


def _iter_folder(folder: Path) -> Iterator[Path]:
    """Yield the files in a folder, and in its subfolders whose names hold the value of a column, such as ``region=north``."""
    for path in folder.iterdir():
        yield from _iter_folder(path) if _PARTITION.match(path.name) and path.is_dir() else [path]


def _check_copies(paths: Sequence[str]) -> None:
    """Raise a StreamError if one of the files is a copy of another, such as ``x.csv.gz`` or ``x (1).csv`` beside ``x.csv``."""
    paths_by_name: dict[str, str] = {}
    for path in paths:
        if (original := paths_by_name.setdefault(_COPY_MARK.sub(r"\1", path), path)) != path:
            start, other_start = _read_start(path), _read_start(original)
            n = min(len(start), len(other_start))
            if n and start[:n] == other_start[:n]:
                raise StreamError(f"{original} and {path} have the same rows: remove one, or name the other files by a pattern")


def _read_start(path: str) -> bytes:
    """Return the first bytes of a file, decompressed if its name has the suffix of a compression."""
    if PurePath(path.lower()).suffix not in _COMPRESSED:
        with Path(path).open("rb") as file:
            return file.read(2**18)
    with contextlib.closing(ByteStream(path)) as stream:
        return stream.read() or b""


def _remove_duplicates(paths: Iterable[str]) -> list[str]:
    """Return ``paths`` without those that are the same file as an earlier one, for example by a symbolic link."""
    return list({os.path.realpath(path): path for path in reversed([*paths])}.values())[::-1]


def _is_filled(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


def detect_format(spec: str | Sequence[str], format: str | None = None) -> str | None:  # noqa: A002
    """Return the format of a file, of several files, or of standard input (``"csv"``, ``"jsonl"``, ``"libsvm"``, ``"parquet"``,
    ``"arrow"``): ``format`` if it is given, else by the file suffix. None if ``spec`` is a URL.

    Raises a StreamError if the format is unknown, if it is given for a URL, or if files have several formats.

    >>> detect_format("rows.csv.gz"), detect_format("-", "libsvm"), detect_format("kafka://host:9092/topic")
    ('csv', 'libsvm', None)
    """
    if files := list_source_files(spec):
        formats = {detect_format(path, format): path for path in files}
        if len(formats) > 1:
            first, second = list(formats.values())[:2]
            raise StreamError(f"{first} and {second} have two formats: name those of one by a pattern, such as 'data/*.csv'")
        return next(iter(formats))
    if not isinstance(spec, str):
        raise StreamError("the list of files is empty")
    if "://" in spec:
        if format is not None:
            raise StreamError(f"{spec}: --format {format} is of files, and the URL of a topic names a codec: leave it out")
        return None
    if format is None:
        format = _FORMAT_BY_SUFFIX.get(get_suffix(spec))  # noqa: A001
    if format not in _FORMATS:
        if (suffix := get_suffix(spec)) in _ARCHIVES:
            raise StreamError(f"{spec}: files that end in {suffix} are not read. Unpack it, and name what was in it")
        if suffix in _SPREADSHEETS:
            raise StreamError(f"{spec}: spreadsheets are not read. Save it as CSV")
        raise StreamError(
            f"{spec}: what is its format? A name may end in {', '.join(_FORMAT_BY_SUFFIX)}; for another name, give --format csv, "
            f"{', '.join(_FORMATS[1:-1])} or {_FORMATS[-1]} (format=...). A topic of Kafka is kafka://HOST:PORT/TOPIC"
        )
    return format


def format_source_name(spec: str | Sequence[str]) -> str:
    """Return the name of a source for messages: the path or URL itself, or the first of several paths and the number of the
    others.

    >>> format_source_name("-"), format_source_name(["a.csv", "b.csv", "c.csv"])
    ('-', 'a.csv and 2 more')
    """
    return spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more"


def get_suffix(name: str) -> str:
    """Return the suffix of a file name in lower case, such as ``.csv``, without that of its compression."""
    path = PurePath(name.lower())
    return PurePath(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix
