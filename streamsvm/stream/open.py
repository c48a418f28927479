"""Sources and sinks by their names on a command line: a path, ``-``, or a URL."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from os import PathLike, fspath
from pathlib import PurePath
from typing import Any, Unpack

from streamsvm.files.messages import MissingPackageError
from streamsvm.stream.arrow import KINDS, ArrowSource
from streamsvm.stream.byte_streams import ByteStream
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.endpoints import Sink, Source, StreamError
from streamsvm.stream.files_source import FilesSource, files_of
from streamsvm.stream.json_source import JSONLinesSource
from streamsvm.stream.libsvm_source import LIBSVMSource
from streamsvm.stream.sinks import FileSink
from streamsvm.stream.sources import TextSource
from streamsvm.stream.tables.reading import ReadingOptions, TextOptions, as_names
from streamsvm.stream.weights import WeightedSource

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


def format_of(spec: str | Sequence[str], format: str | None = None) -> str | None:  # noqa: A002
    """The format of files or a text stream, from ``format`` or else from the suffix; None for a URL.

    A StreamError says that neither names one, or that files have several.

    >>> format_of("rows.csv.gz"), format_of("-", "libsvm"), format_of("kafka://host:9092/topic")
    ('csv', 'libsvm', None)
    """
    if files := source_files(spec):
        formats = {format_of(path, format): path for path in files}
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


def source_files(spec: str | Sequence[str]) -> list[str]:
    """The files of a source of several, as `files_of`: of a folder those with a suffix of a format."""
    return files_of(spec, lambda name: _suffix_of(name) in _SUFFIXES)


def name_of(spec: str | Sequence[str]) -> str:
    """The name of a source in messages.

    >>> name_of("-"), name_of(["a.csv", "b.csv", "c.csv"])
    ('-', 'a.csv and 2 more')
    """
    return spec if isinstance(spec, str) else f"{spec[0]} and {len(spec) - 1} more"


def _as_texts(spec: str | PathLike[str] | Sequence[str | PathLike[str]]) -> str | list[str]:
    return fspath(spec) if isinstance(spec, str | PathLike) else [fspath(each) for each in spec]


def _suffix_of(name: str) -> str:
    path = PurePath(name.lower())
    return PurePath(path.stem).suffix if path.suffix in _PACKED else path.suffix


class FileOptions(TextOptions, total=False):
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
        How to read a file: further parameters of `CSVSource`, `JSONLinesSource` or `ArrowSource`, such as ``drop="id"``.

    Raises
    ------
    StreamError
        The source cannot be opened, or cannot be read in that way.
    """
    spec = _as_texts(spec)
    if weight is not None:
        if weight == label or weight in as_names("drop", reading.get("drop", ())):
            raise StreamError(f"{spec}: column {weight!r} cannot hold the weight: it is the label, or dropped")
        if reading.get("features"):
            reading["features"] = [*as_names("features", reading["features"] or ()), weight]
        how: dict[str, Any] = {"label": label, "format": format, "stop_at_end": stop_at_end, "label_needed": label_needed}
        how |= {"start": start, "group": group, "options": options, "stream": stream}
        opened = open_source(spec, **how, **reading)
        try:
            return WeightedSource(opened, weight)
        except StreamError:
            opened.close()
            raise
    kind, files = format_of(spec, format), source_files(spec)
    spec = name_of(spec)
    if kind is not None and start is not None:
        raise StreamError(f"{spec} is read from its first row: to begin at {start} is for streams with a URL")
    if kind is not None and group is not None:
        raise StreamError(f"{spec} is a file, and a group (here {group!r}) is one of consumers of a topic: leave it out")
    given: dict[str, Any] = {name: value for name, value in reading.items() if value}
    columns = ReadingOptions.__annotations__.keys()
    known = {"csv": columns | {"delimiter", "encoding"}, "jsonl": columns | {"encoding"}, "parquet": columns, "arrow": columns}
    if unknown := given.keys() - known.get(kind or "", set()):
        hint = "" if unknown - columns else ". Put a streamsvm.stream.tables.TableEncoder in front of the model instead"
        raise StreamError(f"{spec}: {min(unknown)} means nothing for a {kind or 'stream with a URL'}{hint}")
    if files:
        each: dict[str, Any] = {"label": label, "format": kind, "label_needed": label_needed, **reading}
        return FilesSource(spec, files, lambda path: open_source(path, **each), label)
    if kind == "csv" or kind in KINDS:
        given["label_needed"] = label_needed
    if kind in KINDS:
        if spec == "-":
            raise StreamError(f"{kind} cannot be read from standard input: give a file")
        return ArrowSource(spec, label, kind=kind, **given)
    if kind is None:
        how = {"label": label, "stop_at_end": stop_at_end, "start": start, "options": options}
        how |= {} if group is None else {"group": group}
        return _find_plugin("streamsvm.sources", spec)(spec, **how)
    return _TEXTS[kind](spec if stream is None else stream, label, **given)


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
        return _find_plugin("streamsvm.sinks", spec)(spec, options=options)
    return FileSink(spec)


def open_worker(spec: str, **how: Any) -> Any:
    """Open a worker of a group that shares the partitions of the stream with a URL, each with a model of its own.

    It has ``run(max_rows, on_rows)``, ``stop()``, ``close()``, ``rows`` and ``loops``. The arguments are those of the function
    of this name in the package that knows the scheme, beside its ``open_source``; a StreamError says that it has none.
    """
    return _beside_flags("open_worker", spec, "has no partitions that workers could share: give a topic", how)


def open_checkpoints(spec: str, **how: Any) -> Any:
    """Open the stream with a URL as a place for checkpoints, where another process may follow them; as `open_worker`.

    It stands where a `CheckpointFolder` does, and has ``group``, whose offsets it commits, and ``sink_of(url, options)``, a sink
    whose messages count from the next checkpoint on, or None.
    """
    return _beside_flags("open_checkpoints", spec, "takes no checkpoints: give a folder, or a topic", how)


def open_models(spec: str, **how: Any) -> Any:
    """Open the stream with a URL that holds checkpoints, to read the newest model and follow it; as `open_worker`.

    It stands where a `FollowedFolder` does, and has ``read()``, which returns the newest `Checkpoint`, and ``close()``.
    """
    return _beside_flags("open_models", spec, "holds no models: give a file or folder, or a topic", how)


def _beside_flags(name: str, spec: str, lacks: str, how: Mapping[str, Any]) -> Any:
    opened = _find_plugin("streamsvm.sources", spec) if "://" in spec else None
    opener = getattr(sys.modules.get((opened.__module__ if opened else "").partition(".")[0]), name, None)
    if opener is None:
        raise StreamError(f"{spec} {lacks}, kafka://host:port/topic")
    return opener(spec, **how)


def _find_plugin(group: str, url: str) -> Any:
    scheme = url.partition("://")[0]
    found = entry_points(group=group, name=scheme)
    if not found:
        known = ", ".join(sorted(f"{entry.name}://" for entry in entry_points(group=group)))
        raise StreamError(f"{url}: no installed package knows {scheme}://. Known are paths, - and {known}")
    try:
        return next(iter(found)).load()
    except MissingPackageError:
        raise  # it says what to install
    except ImportError as error:
        raise StreamError(f"{url}: the package that knows {scheme}:// cannot be imported: {error}") from error
