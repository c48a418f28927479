"""Opens sources and sinks by name: a path, ``-``, a URL, or several files as one source."""

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

_WILDCARDS = frozenset("*?[")


def list_source_files(spec: str | Sequence[str]) -> list[str]:
    """Return the paths of the files of a source, sorted by name. ``spec`` is a folder, a pattern such as ``data/*.csv``, or a
    list of files, folders and patterns.

    In a folder, these are the files with a known suffix whose names do not begin with ``.`` or ``_``. Empty files and duplicates
    are left out. The result is empty for a plain path, ``-`` or a URL. Raises a StreamError if a folder or pattern has no files.
    """
    if not isinstance(spec, str):
        files = _remove_duplicates(path for name in spec for path in list_source_files(name) or [name])
        if missing := [path for path in files if not Path(path).is_file()]:
            raise StreamError(f"{missing[0]} is not a file: several sources are files, folders or patterns")
        return files
    if "://" in spec or spec == "-":
        return []
    path = Path(spec)
    if path.is_dir():
        candidates = [file for file in sorted(path.iterdir()) if file.name[0] not in "._" and _is_filled(file)]
        if not (files := [str(file) for file in candidates if _get_suffix(file.name) in _FORMAT_BY_SUFFIX]):
            raise StreamError(f"{spec} is a folder without a file of rows. Name the files by a pattern: '{path}/*.txt'")
        return files
    if not _WILDCARDS & {*spec} or path.exists():
        return []
    matches = sorted(glob.glob(spec, recursive=True))  # noqa: PTH207 - as a shell
    if not (files := _remove_duplicates(file for file in matches if _is_filled(Path(file)))):
        raise StreamError(f"{spec}: no file matches this pattern")
    return files


def _remove_duplicates(paths: Iterable[str]) -> list[str]:
    """Return ``paths`` without those that are the same file as an earlier one, for example by a symbolic link."""
    return list({os.path.realpath(path): path for path in reversed([*paths])}.values())[::-1]


def _is_filled(path: Path) -> bool:
    try:
        return path.is_file() and path.stat().st_size > 0
    except OSError:
        return False


class FilesSource(Source):
    """The rows of several files of one format, one file after the other. ``open_file`` opens the source of each path.

    All files must have the same columns, in any order. The column ``label`` may be missing if ``open_file`` allows that. The
    position is the one within the current file, with the number of finished files and a digest of their sizes and of their first
    and last 64 KiB. A run resumes only if these have not changed; further files may have been added. Raises a StreamError if the
    first file cannot be opened; while you iterate, also if another file cannot be opened, or has other columns.
    """

    def __init__(self, name: str, paths: Sequence[str], open_file: Callable[[str], Source], label: str | None = None) -> None:
        self._paths, self._open_file, self._label = list(paths), open_file, label
        self.name: str = name
        self._n_done = 0  # number of finished files
        self._digest = ""  # of the finished files
        self._stopped = False
        self._columns: set[str] | None = None  # the columns that all files must have, without the label
        self._source = open_file(paths[0])
        self.has_names: bool = self._source.has_names

    @property
    def columns(self) -> Sequence[str]:  # type: ignore[override]
        return self._source.columns

    def read(self, max_rows: int) -> Chunk | None:
        while True:
            size = _file_size(self._paths[self._n_done])  # before reading, because bytes that are appended later may be missed
            chunk = self._source.read(max_rows)
            if chunk is not None:
                self._check_columns()
                return chunk
            if self._stopped or self._n_done + 1 == len(self._paths):
                return None
            self._check_columns()
            self._digest = digest_file_ends(self._paths[self._n_done], size, f"{self._digest}:{size}:")
            self._n_done += 1
            self._open_next()

    def _open_next(self) -> None:
        self._source.close()
        self._source = self._open_file(self._paths[self._n_done])
        if self._stopped:
            self._source.stop()
        if self.passthrough_names:
            self._source.request_passthrough(self.passthrough_names)

    def _check_columns(self) -> None:
        columns = {*self._source.columns} - {self._label}
        if self._columns is None:
            self._columns = columns
        elif columns != self._columns and self._source.columns:
            name = min(columns ^ self._columns)
            files = self._paths[self._n_done], self._paths[0]
            has_it, lacks_it = files if name in columns else files[::-1]
            raise StreamError(
                f"{has_it} has a column {name!r}, and {lacks_it} does not: files of one source must have the same columns"
            )

    @property
    def position(self) -> Position:
        """The position of the next row in this source of several files, as a dict: the position within the current file, the
        number of files that were read completely, and a digest of these files.
        """
        return {**self._source.position, "files_done": self._n_done, "files_digest": self._digest}

    def seek(self, position: Position) -> None:
        """Continue at ``position``, the saved `position` of an earlier source of the same files. Raise a StreamError if one of
        the files that were read completely before it is missing or has changed.
        """
        file_position = dict(position)
        try:
            n_done, digest = validate_count("files_done", file_position.pop("files_done")), file_position.pop("files_digest")
        except (KeyError, ValueError):
            raise self._foreign_position_error(position) from None
        if n_done:
            if n_done >= len(self._paths):
                raise StreamError(
                    f"{self.name}: there are {len(self._paths)} files, and the checkpoint is within file {n_done + 1}. "
                    f"Give all of them, {START_AFRESH}"
                )
            self._source.read(1)
            self._check_columns()
            for path in self._paths[:n_done]:
                size = _file_size(path)
                self._digest = digest_file_ends(path, size, f"{self._digest}:{size}:")
            if self._digest != digest:
                raise StreamError(
                    f"{self.name}: the files before {self._paths[n_done]} are not those of the checkpoint: one is gone, "
                    f"changed or new. Put them back, {START_AFRESH}"
                )
            self._n_done = n_done
            self._open_next()
        self._source.seek(file_position)

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Request that `read` also returns the columns ``names`` of all files unchanged, so that they can be copied into
        predictions. Return the names; raise a StreamError if the current file lacks a column.
        """
        super().request_passthrough(names)
        return self._source.request_passthrough(names)

    def stop(self) -> None:
        """End a wait of `read` for rows, from a signal handler or another thread, and do not open any further file."""
        self._stopped = True
        self._source.stop()

    def close(self) -> None:
        """Close the file that is currently read."""
        self._source.close()


def _file_size(path: str) -> int:
    try:
        return Path(path).stat().st_size
    except OSError as error:
        raise StreamError(f"{path}: {error.strerror or error}") from error


_FORMAT_BY_SUFFIX = (
    {".csv": "csv"}
    | dict.fromkeys((".jsonl", ".ndjson", ".json"), "jsonl")
    | dict.fromkeys((".libsvm", ".svm", ".t"), "libsvm")
    | {".parquet": "parquet"}
    | dict.fromkeys((".arrow", ".feather"), "arrow")
)
_COMPRESSED = (".gz", ".bz2", ".zst")
_ARCHIVES = (".zip", ".tar", ".tgz", ".tbz2", ".7z", ".rar", ".xz")
_SPREADSHEETS = (".xls", ".xlsx", ".ods")
_TEXT_SOURCES: dict[str, type[TextSource]] = {"csv": CSVSource, "jsonl": JSONLinesSource, "libsvm": LIBSVMSource}
_FORMATS = (*_TEXT_SOURCES, *KINDS)


def detect_format(spec: str | Sequence[str], format: str | None = None) -> str | None:  # noqa: A002
    """Return the format of a file, of several files, or of standard input (``"csv"``, ``"jsonl"``, ``"libsvm"``, ``"parquet"``,
    ``"arrow"``): ``format`` if it is given, else by the file suffix. None if ``spec`` is a URL.

    Raises a StreamError if the format is unknown, or if files have several formats.

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
        return None
    if format is None:
        format = _FORMAT_BY_SUFFIX.get(_get_suffix(spec))  # noqa: A001
    if format not in _FORMATS:
        if (suffix := _get_suffix(spec)) in _ARCHIVES:
            raise StreamError(f"{spec}: files that end in {suffix} are not read. Unpack it, and name what was in it")
        if suffix in _SPREADSHEETS:
            raise StreamError(f"{spec}: spreadsheets are not read. Save it as CSV")
        raise StreamError(
            f"{spec}: what is its format? A name may end in {', '.join(_FORMAT_BY_SUFFIX)}; otherwise name the format: "
            f"{', '.join(_FORMATS)}. A topic of Kafka is kafka://HOST:PORT/TOPIC"
        )
    return format


def format_source_name(spec: str | Sequence[str]) -> str:
    """Return the name of a source for messages: the path or URL itself, or the first of several paths and the number of the
    others.

    >>> format_source_name("-"), format_source_name(["a.csv", "b.csv", "c.csv"])
    ('-', 'a.csv and 2 more')
    """
    return spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more"


def _get_suffix(name: str) -> str:
    path = PurePath(name.lower())
    return PurePath(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


class FileOptions(TextParserOptions, total=False):
    """Options of reading a file: further arguments of its source."""

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
    """Open a source of rows by its name: the path of a file, ``"-"`` for standard input, or a URL such as
    ``kafka://host:9092/topic``; or several files as one source.

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
        Consumer group for a stream with a URL, as its package defines it. Its offsets follow the checkpoints. None uses no group.
    options
        Options of the connection to a stream with a URL, as its package defines them.
    weight
        Name of the column with the weight of each row, as in `WeightedSource`. None: rows have no weights.
    stream
        An open stream of the bytes of a text; ``spec`` is then only its name. None opens ``spec``.
    **reading
        How to read a file: further parameters of `CSVSource`, `JSONLinesSource` or `ArrowSource`, such as ``columns="id:drop"``.

    Raises
    ------
    StreamError
        The source cannot be opened, or an option does not apply to it.
    """
    location: str | list[str] = fspath(spec) if isinstance(spec, str | PathLike) else [fspath(path) for path in spec]
    if weight is not None:
        columns = parse_columns(reading.get("columns", ""))
        if weight == label or columns.get(weight) == DROP:
            raise StreamError(f"{location}: column {weight!r} cannot hold the weight: it is the label, or dropped")
        if OTHER_COLUMNS in columns:
            reading["columns"] = {weight: NUMBER, **columns}
    kind, files, name = detect_format(location, format), list_source_files(location), format_source_name(location)
    if kind is not None and start is not None:
        raise StreamError(f"{name} is read from its first row: to begin at {start} is for streams with a URL")
    if kind is not None and group is not None:
        raise StreamError(f"{name} is a file, and a group (here {group!r}) is one of consumers of a topic: leave it out")
    file_options: dict[str, Any] = {option: value for option, value in reading.items() if value}
    if unknown := file_options.keys() - OPTIONS_BY_FORMAT.get(kind or "", ()):
        hint = "" if unknown - {*PARSER_OPTIONS} else ". Put a streamsvm.stream.tables.TableEncoder in front of the model instead"
        raise StreamError(f"{name}: {min(unknown)} does not apply to a {kind or 'stream with a URL'}{hint}")
    if kind == "csv" or kind in KINDS:
        file_options["label_needed"] = label_needed
    source: Source
    if kind is None:
        arguments = {"label": label, "stop_at_end": stop_at_end, "start": start, "options": options}
        arguments |= {} if group is None else {"group": group}
        source = _find_plugin("streamsvm.sources", name).load()(name, **arguments)
    elif files:
        source = FilesSource(name, files, lambda path: _open_file(path, kind, label, file_options), label)
    else:
        source = _open_file(name if stream is None else stream, kind, label, file_options)
    if weight is None:
        return source
    try:
        return WeightedSource(source, weight)
    except StreamError:
        source.close()
        raise


def _open_file(path: str | ByteStream, kind: str, label: str | None, options: Mapping[str, Any]) -> Source:
    if kind not in KINDS:
        return _TEXT_SOURCES[kind](path, label, **options)
    if str(path) == "-":
        raise StreamError(f"{kind} cannot be read from standard input: give a file")
    return ArrowSource(str(path), label, kind=kind, **options)


def open_sink(spec: str, *, options: Mapping[str, Any] | None = None) -> Sink:
    """Open a sink for predictions by its name: a path, ``"-"`` for standard output, or a URL with a scheme that a package has
    registered, such as ``kafka://``. ``options`` are those of the connection to the URL.

    Raises
    ------
    StreamError
        The sink cannot be opened.
    """
    if "://" in spec:
        return _find_plugin("streamsvm.sinks", spec).load()(spec, options=options)
    return FileSink(spec)


def open_worker(spec: str, **arguments: Any) -> Any:
    """Open a worker of a Kafka consumer group. It reads the stream at the URL ``spec``, and learns a separate model for each
    partition that is assigned to it. ``arguments`` are those of ``open_worker`` in the package that has registered the URL's
    scheme.

    The worker has ``run(max_rows, on_rows)``, ``stop()``, ``close()``, ``rows`` and ``loops``. Raises a StreamError if the
    package lacks this function.
    """
    return _open_by_package("open_worker", spec, "has no partitions that workers could share: give a topic", arguments)


def open_checkpoints(spec: str, **arguments: Any) -> Checkpoints:
    """Open a checkpoint store at the URL ``spec``, such as a Kafka topic, that other processes can follow to get the newest
    model. ``arguments`` are those of ``open_checkpoints`` in the package that has registered the URL's scheme.

    It replaces a `CheckpointFolder`, and can commit the offsets of a ``group`` and the messages of a sink (`try_open_sink`)
    together with a checkpoint.
    """
    store: Checkpoints = _open_by_package("open_checkpoints", spec, "takes no checkpoints: give a folder, or a topic", arguments)
    return store


def open_models(spec: str, **arguments: Any) -> Any:
    """Open a reader of the newest model in a checkpoint store at the URL ``spec``, such as a Kafka topic. ``arguments`` are those
    of ``open_models`` in the package that has registered the URL's scheme.

    It replaces a `FollowedFolder`, and has ``read()``, which returns the newest `Checkpoint`, and ``close()``.
    """
    return _open_by_package("open_models", spec, "holds no models: give a file or folder, or a topic", arguments)


def _open_by_package(function: str, spec: str, lacks: str, arguments: Mapping[str, Any]) -> Any:
    """Call ``function`` (its name) of the package that has registered the scheme of the URL ``spec``, with the URL and the
    ``arguments``, and return its result. If the package lacks this function, raise a StreamError with the text ``lacks``.
    """
    opener = getattr(import_module(_find_plugin("streamsvm.sources", spec).module), function, None) if "://" in spec else None
    if opener is None:
        raise StreamError(f"{spec} {lacks}, kafka://host:port/topic")
    return opener(spec, **arguments)


def _find_plugin(group: str, url: str) -> EntryPoint:
    """Return the entry point in ``group`` (such as ``streamsvm.sinks``) of the package for a URL's scheme. Raise a StreamError if
    no installed package has registered the scheme.
    """
    scheme = url.partition("://")[0]
    plugins = entry_points(group=group, name=scheme)
    if not plugins:
        schemes = ", ".join(sorted(f"{entry.name}://" for entry in entry_points(group=group)))
        raise StreamError(f"{url}: no installed package knows {scheme}://. Known are paths, - and {schemes}")
    plugin = next(iter(plugins))
    try:
        plugin.load()
    except MissingPackageError:
        raise  # with the name of the package to install
    except ImportError as error:
        raise StreamError(f"{url}: the package that knows {scheme}:// cannot be imported: {error}") from error
    return plugin
