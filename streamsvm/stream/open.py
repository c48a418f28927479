"""Sources and sinks by their names on a command line: a path, ``-``, a URL, or several files one after the other."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from os import PathLike, fspath
from pathlib import Path, PurePath
from typing import Any, Unpack

from streamsvm.core.checks import validate_count
from streamsvm.files.messages import MissingPackageError
from streamsvm.stream.arrow import KINDS, ArrowSource
from streamsvm.stream.checkpoint import Checkpoints
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.endpoints import START_AFRESH, Position, Sink, Source, StreamError
from streamsvm.stream.json_objects import JSONLinesSource
from streamsvm.stream.lines import ByteStream, digest_file_ends
from streamsvm.stream.sinks import FileSink
from streamsvm.stream.sources import LIBSVMSource, TextSource
from streamsvm.stream.tables.chunk import Chunk
from streamsvm.stream.tables.column_kinds import DROP, NUMBER, OTHER_COLUMNS, parse_columns
from streamsvm.stream.tables.table_parser import TextParserOptions
from streamsvm.stream.tables.table_schema import OPTIONS_BY_FORMAT, PARSER_OPTIONS
from streamsvm.stream.weights import WeightedSource

_PATTERN = frozenset("*?[")


def list_source_files(spec: str | Sequence[str]) -> list[str]:
    """Return the files that a folder or a pattern such as ``data/*.csv`` names, sorted by name, or each of several names.

    Of a folder, they are those with a suffix of a format whose names begin with neither ``.`` nor ``_``. Empty files are left
    out, and each file is read once. There are none for a name that is neither. A StreamError says that there are no such files.
    """
    if not isinstance(spec, str):
        files = _distinct_paths(path for each in spec for path in list_source_files(each) or [each])
        if others := [path for path in files if not Path(path).is_file()]:
            raise StreamError(f"{others[0]} is no file: several sources are files, folders or patterns")
        return files
    if "://" in spec or spec == "-":
        return []
    path = Path(spec)
    if path.is_dir():
        found = [each for each in sorted(path.iterdir()) if each.name[0] not in "._" and _has_bytes(each)]
        if not (files := [str(each) for each in found if _suffix_of(each.name) in _SUFFIXES]):
            raise StreamError(f"{spec} is a folder without a file of rows. Name the files by a pattern: '{path}/*.txt'")
        return files
    if not _PATTERN & {*spec} or path.exists():
        return []
    if not (files := _distinct_paths(each for each in sorted(glob.glob(spec, recursive=True)) if _has_bytes(Path(each)))):  # noqa: PTH207 - as a shell
        raise StreamError(f"{spec}: there is no such file")
    return files


def _distinct_paths(paths: Iterable[str]) -> list[str]:
    """Return paths without those that lead to a file which is there already, as links do."""
    return list({os.path.realpath(path): path for path in reversed([*paths])}.values())[::-1]


def _has_bytes(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


class FilesSource(Source):
    """The rows of several files of one format, one file after the other, each of which ``opened`` opens.

    The columns of tables must be the same, in any order; some files may lack that of the ``label`` where ``opened`` allows it.
    The position is that within a file, with the number of files before it and a digest of their sizes, first and last 64 KiB. A
    run resumes only if these are there as they were; files may come after them. A StreamError says that the first file cannot be
    opened; while you iterate, that another one cannot, or has other columns.
    """

    def __init__(self, name: str, paths: Sequence[str], opened: Callable[[str], Source], label: str | None = None) -> None:
        self._paths, self._opened, self._label = list(paths), opened, label
        self.name: str = name
        self._done = 0  # files
        self._digest = ""  # of these
        self._stopped = False
        self._known: set[str] | None = None  # the columns of all files
        self._source = opened(paths[0])
        self.has_names: bool = self._source.has_names

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        return self._source.columns

    def read(self, max_rows: int) -> Chunk | None:
        while True:
            size = _file_size(self._paths[self._done])  # before it is read: what is appended then may not be
            chunk = self._source.read(max_rows)
            if chunk is not None:
                self._check_columns()
                return chunk
            if self._stopped or self._done + 1 == len(self._paths):
                return None
            self._check_columns()
            self._digest = digest_file_ends(self._paths[self._done], size, f"{self._digest}:{size}:")
            self._done += 1
            self._open_next()

    def _open_next(self) -> None:
        self._source.close()
        self._source = self._opened(self._paths[self._done])
        if self._stopped:
            self._source.stop()
        if self.passthrough_names:
            self._source.request_passthrough(self.passthrough_names)

    def _check_columns(self) -> None:
        columns = {*self._source.columns} - {self._label}
        if self._known is None:
            self._known = columns
        elif columns != self._known and self._source.columns:
            other = min(columns ^ self._known)
            where = self._paths[self._done], self._paths[0]
            has, lacks = where if other in columns else where[::-1]
            raise StreamError(
                f"{has} has a column {other!r}, which {lacks} has not: files that are read as one have equal columns"
            )

    @property
    def position(self) -> Position:
        """Where the next row is: the position within the file at hand, and the number and a digest of those before it."""
        return {**self._source.position, "files_done": self._done, "files_digest": self._digest}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`; files before it that are gone, changed or new are errors."""
        within = dict(position)
        try:
            done, before = validate_count("files_done", within.pop("files_done")), within.pop("files_digest")
        except (KeyError, ValueError):
            raise self._foreign_position_error(position) from None
        if done:
            if done >= len(self._paths):
                raise StreamError(
                    f"{self.name}: there are {len(self._paths)} files, and the checkpoint is within file {done + 1}. "
                    f"Give all of them, {START_AFRESH}"
                )
            self._source.read(1)
            self._check_columns()
            for path in self._paths[:done]:
                size = _file_size(path)
                self._digest = digest_file_ends(path, size, f"{self._digest}:{size}:")
            if self._digest != before:
                raise StreamError(
                    f"{self.name}: the files before {self._paths[done]} are not those {done} of the checkpoint: one is gone, "
                    f"changed or new. Put them back, {START_AFRESH}"
                )
            self._done = done
            self._open_next()
        self._source.seek(within)

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Have chunks copy columns, as `Source.request_passthrough`."""
        super().request_passthrough(names)
        return self._source.request_passthrough(names)

    def stop(self) -> None:
        """End before the next row."""
        self._stopped = True
        self._source.stop()

    def close(self) -> None:
        """Close the file at hand."""
        self._source.close()


def _file_size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise StreamError(f"{path}: {error.strerror or error}") from error


_SUFFIXES = (
    {".csv": "csv"}
    | dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl")
    | dict.fromkeys((".libsvm", ".svm", ".t"), "libsvm")
    | {".parquet": "parquet"}
    | dict.fromkeys((".arrow", ".feather"), "arrow")
)
_PACKED = (".gz", ".bz2", ".zst")
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".7z", ".rar", ".xz")
_SPREADSHEETS = (".xls", ".xlsx", ".ods")
_TEXTS: dict[str, type[TextSource]] = {"csv": CSVSource, "jsonl": JSONLinesSource, "libsvm": LIBSVMSource}
_FORMATS = (*_TEXTS, *KINDS)


def detect_format(spec: str | Sequence[str], format: str | None = None) -> str | None:  # noqa: A002
    """The format of files or a text stream, from ``format`` or else from the suffix; None for a URL.

    A StreamError says that neither names one, or that files have several.

    >>> detect_format("rows.csv.gz"), detect_format("-", "libsvm"), detect_format("kafka://host:9092/topic")
    ('csv', 'libsvm', None)
    """
    if files := list_source_files(spec):
        formats = {detect_format(path, format): path for path in files}
        if len(formats) > 1:
            one, other = list(formats.values())[:2]
            raise StreamError(f"{one} and {other} have two formats: name those of one by a pattern, such as 'data/*.csv'")
        return next(iter(formats))
    if not isinstance(spec, str):
        raise StreamError("no file is named")
    if "://" in spec:
        return None
    if format is None:
        format = _SUFFIXES.get(_suffix_of(spec))  # noqa: A001
    if format not in _FORMATS:
        if (suffix := _suffix_of(spec)) in _ARCHIVES:
            raise StreamError(f"{spec}: files that end in {suffix} are not read. Unpack it, and name what was in it")
        if suffix in _SPREADSHEETS:
            raise StreamError(f"{spec}: spreadsheets are not read. Save it as CSV")
        raise StreamError(
            f"{spec}: what is its format? A name may end in {', '.join(_SUFFIXES)}; otherwise name the format: "
            f"{', '.join(_FORMATS)}. A topic of Kafka is kafka://HOST:PORT/TOPIC"
        )
    return format


def format_source_name(spec: str | Sequence[str]) -> str:
    """The name of a source in messages.

    >>> format_source_name("-"), format_source_name(["a.csv", "b.csv", "c.csv"])
    ('-', 'a.csv and 2 more')
    """
    return spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more"


def _suffix_of(name: str) -> str:
    path = PurePath(name.lower())
    return PurePath(path.stem).suffix if path.suffix in _PACKED else path.suffix


class FileOptions(TextParserOptions, total=False):
    """How a file is read: the further arguments of its source."""

    delimiter: str


def open_source(
    spec: str | PathLike[str] | Sequence[str | PathLike[str]],
    *,
    label: str | None = None,
    format: str | None = None,  # noqa: A002
    stop_at_end: bool = False,
    label_needed: bool = True,
    start: str | None = None,
    group: str | None = None,
    options: Mapping[str, Any] | None = None,
    weight: str | None = None,
    stream: ByteStream | None = None,
    **reading: Unpack[FileOptions],
) -> Source:
    """Open a source by its name: a path, ``"-"``, or a URL; or several files as one source.

    Parameters
    ----------
    spec
        A path, ``"-"`` for standard input, or a URL whose scheme a package has registered, such as ``kafka://``. Or several files
        that are read one after the other, as one source: a folder, a pattern such as ``"data/*.csv"``, or a list of these.
    label
        Name of the label. In LIBSVM text, the label comes first and has no name.
    format
        ``"csv"``, ``"jsonl"``, ``"libsvm"``, ``"parquet"`` or ``"arrow"``. None goes by the suffix of the path.
    stop_at_end
        Whether to end an endless stream at the row that was its last one when it was opened.
    label_needed
        Whether a table (CSV, Parquet, Arrow) without a column of the label is an error. If not, its rows have no label.
    start
        Where to begin in a stream with a URL, as its package defines it. None begins at the first row.
    group
        Group whose offsets follow the checkpoints of a stream with a URL, as its package defines it. None uses no group.
    options
        Options of the connection to a stream with a URL, as its package defines them.
    weight
        Name of the column with the weight of each row, as in `WeightedSource`. None: rows have no weights.
    stream
        The bytes of a text, where they are open already or in memory: then ``spec`` only names it. None opens ``spec``.
    **reading
        How to read a file: further parameters of `CSVSource`, `JSONLinesSource` or `ArrowSource`, such as ``columns="id:drop"``.

    Raises
    ------
    StreamError
        The source cannot be opened, or cannot be read in that way.
    """
    place: str | list[str] = fspath(spec) if isinstance(spec, str | PathLike) else [fspath(each) for each in spec]
    if weight is not None:
        columns = parse_columns(reading.get("columns", ""))
        if weight == label or columns.get(weight) == DROP:
            raise StreamError(f"{place}: column {weight!r} cannot hold the weight: it is the label, or dropped")
        if OTHER_COLUMNS in columns:
            reading["columns"] = {weight: NUMBER, **columns}
    kind, files, name = detect_format(place, format), list_source_files(place), format_source_name(place)
    if kind is not None and start is not None:
        raise StreamError(f"{name} is read from its first row: to begin at {start} is for streams with a URL")
    if kind is not None and group is not None:
        raise StreamError(f"{name} is a file, and a group (here {group!r}) is one of consumers of a topic: leave it out")
    given: dict[str, Any] = {option: value for option, value in reading.items() if value}
    if unknown := given.keys() - OPTIONS_BY_FORMAT.get(kind or "", ()):
        hint = "" if unknown - {*PARSER_OPTIONS} else ". Put a streamsvm.stream.tables.TableEncoder in front of the model instead"
        raise StreamError(f"{name}: {min(unknown)} means nothing for a {kind or 'stream with a URL'}{hint}")
    if kind == "csv" or kind in KINDS:
        given["label_needed"] = label_needed
    opened: Source
    if kind is None:
        how = {"label": label, "stop_at_end": stop_at_end, "start": start, "options": options}
        how |= {} if group is None else {"group": group}
        opened = _find_plugin("streamsvm.sources", name).load()(name, **how)
    elif files:
        opened = FilesSource(name, files, lambda path: _open_file(path, kind, label, given), label)
    else:
        opened = _open_file(name if stream is None else stream, kind, label, given)
    if weight is None:
        return opened
    try:
        return WeightedSource(opened, weight)
    except StreamError:
        opened.close()
        raise


def _open_file(place: str | ByteStream, kind: str, label: str | None, given: Mapping[str, Any]) -> Source:
    if kind not in KINDS:
        return _TEXTS[kind](place, label, **given)
    if str(place) == "-":
        raise StreamError(f"{kind} cannot be read from standard input: give a file")
    return ArrowSource(str(place), label, kind=kind, **given)


def open_sink(spec: str, *, options: Mapping[str, Any] | None = None) -> Sink:
    """Open a sink by its name: a path, ``"-"`` for standard output, or a URL.

    The scheme of the URL must be one that a package has registered, such as ``kafka://``. ``options`` are those of the
    connection, as the package defines them.

    Raises
    ------
    StreamError
        The sink cannot be opened.
    """
    if "://" in spec:
        return _find_plugin("streamsvm.sinks", spec).load()(spec, options=options)
    return FileSink(spec)


def open_worker(spec: str, **how: Any) -> Any:
    """Open a worker of a group that shares the partitions of the stream with a URL, each with a model of its own.

    It has ``run(max_rows, on_rows)``, ``stop()``, ``close()``, ``rows`` and ``loops``. The arguments are those of the function
    of this name in the package that knows the scheme, beside its ``open_source``; a StreamError says that it has none.
    """
    return _open_by_package("open_worker", spec, "has no partitions that workers could share: give a topic", how)


def open_checkpoints(spec: str, **how: Any) -> Checkpoints:
    """Open the stream with a URL as a place for checkpoints, where another process may follow them; as `open_worker`.

    It stands where a `CheckpointFolder` does, and has ``group``, whose offsets it commits, and ``try_open_sink(url, options)``,
    a sink whose messages count from the next checkpoint on, or None.
    """
    opened: Checkpoints = _open_by_package("open_checkpoints", spec, "takes no checkpoints: give a folder, or a topic", how)
    return opened


def open_models(spec: str, **how: Any) -> Any:
    """Open the stream with a URL that holds checkpoints, to read the newest model and follow it; as `open_worker`.

    It stands where a `FollowedFolder` does, and has ``read()``, which returns the newest `Checkpoint`, and ``close()``.
    """
    return _open_by_package("open_models", spec, "holds no models: give a file or folder, or a topic", how)


def _open_by_package(function: str, spec: str, lacks: str, how: Mapping[str, Any]) -> Any:
    """Call a function of the package that knows the scheme of a URL; raise a StreamError if it has none of this name."""
    opener = getattr(import_module(_find_plugin("streamsvm.sources", spec).module), function, None) if "://" in spec else None
    if opener is None:
        raise StreamError(f"{spec} {lacks}, kafka://host:port/topic")
    return opener(spec, **how)


def _find_plugin(group: str, url: str) -> EntryPoint:
    """Return the entry point of a scheme, which can be loaded; raise a StreamError if no package has registered it."""
    scheme = url.partition("://")[0]
    plugins = entry_points(group=group, name=scheme)
    if not plugins:
        known = ", ".join(sorted(f"{entry.name}://" for entry in entry_points(group=group)))
        raise StreamError(f"{url}: no installed package knows {scheme}://. Known are paths, - and {known}")
    plugin = next(iter(plugins))
    try:
        plugin.load()
    except MissingPackageError:
        raise  # it says what to install
    except ImportError as error:
        raise StreamError(f"{url}: the package that knows {scheme}:// cannot be imported: {error}") from error
    return plugin
