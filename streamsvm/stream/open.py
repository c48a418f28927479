"""Opens sources and sinks by name: a path, ``-``, a URL, or several files as one source."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Unpack

from streamsvm.core.memory.features import make_natural_sort_key
from streamsvm.core.warning import warn
from streamsvm.files.messages import MissingPackageError
from streamsvm.stream.arrow import KINDS, ArrowSource
from streamsvm.stream.checkpoint import Checkpoints
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.endpoints import Sink, Source, StreamError
from streamsvm.stream.file_names import detect_format, find_other_files, format_source_name, list_source_files, read_partition
from streamsvm.stream.files_source import FilesSource
from streamsvm.stream.json_objects import JSONLinesSource
from streamsvm.stream.libsvm_source import LIBSVMSource
from streamsvm.stream.lines import ByteStream
from streamsvm.stream.sinks import FileSink
from streamsvm.stream.sources import TextSource
from streamsvm.stream.tables.column_kinds import DROP, NUMBER, OTHER_COLUMNS, parse_columns
from streamsvm.stream.tables.table_parser import TableParser, TextParserOptions
from streamsvm.stream.tables.table_schema import OPTIONS_BY_FORMAT, PARSER_OPTIONS
from streamsvm.stream.weights import WeightedSource

_TEXT_SOURCES: dict[str, type[TextSource]] = {"csv": CSVSource, "jsonl": JSONLinesSource, "libsvm": LIBSVMSource}


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
    message_columns: Sequence[str] = (),
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
        Where to begin in a stream with a URL, as its package defines it; ``"earliest"`` is the first row of any stream. A run
        whose checkpoint is of another stream begins there, too, and keeps the model. None begins at the first row, and makes such
        a checkpoint an error.
    group
        Consumer group for a stream with a URL, as its package defines it. Its offsets follow the checkpoints. None uses no group.
    options
        Options of the connection to a stream with a URL, as its package defines them.
    weight
        Name of the column with the weight of each row, as in `WeightedSource`. None: rows have no weights.
    stream
        An open stream of the bytes of a text; ``spec`` is then only its name. None opens ``spec``.
    message_columns
        Parts of each message of a stream with a URL that become columns of its row, as its package defines them: for Kafka
        ``["key", "timestamp", "header.NAME"]``.
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
    if kind is not None and start not in (None, "earliest"):
        raise StreamError(f"{name} is read from its first row (earliest): to begin at {start} is for streams with a URL")
    if kind is not None and group is not None:
        raise StreamError(f"{name} is a file, and a group (--group {group}) is one of consumers of a topic: leave it out")
    file_options: dict[str, Any] = {option: value for option, value in reading.items() if value}
    if unknown := file_options.keys() - OPTIONS_BY_FORMAT.get(kind or "", ()):
        hint = "" if unknown - {*PARSER_OPTIONS} else ". Put a streamsvm.stream.tables.TableEncoder in front of the model instead"
        raise StreamError(f"{name}: {min(unknown)} does not apply to a {kind or 'stream with a URL'}{hint}")
    if kind == "csv" or kind in KINDS:
        file_options["label_needed"] = label_needed
    source: Source
    if kind is None:
        arguments: dict[str, Any] = {"label": label, "stop_at_end": stop_at_end, "start": start, "options": options}
        arguments |= {name: value for name, value in (("group", group), ("message_columns", message_columns)) if value}
        source = _find_plugin("streamsvm.sources", name).load()(name, **arguments)
    elif files or (stream is None and read_partition(name) and Path(name).is_file()):
        files = files or [name]
        source = _open_files(name, files, kind, label, file_options)
        if files == location and files == sorted(files) != sorted(files, key=make_natural_sort_key):
            warn(f"{name}: the files are not in the order of the numbers in their names. Quote the pattern, or sort the list")
        if Path(name).is_dir() and (pattern := find_other_files(name, files)):
            warn(f"{name}: files in ordinary subfolders are not read. To read all, give the pattern {pattern}")
    else:
        source = _open_file(name if stream is None else stream, kind, label, file_options)
    source.start = start
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


def _open_files(name: str, paths: list[str], kind: str, label: str | None, options: Mapping[str, Any]) -> FilesSource:
    """Open several files as one source. Columns whose values are in the names of folders, such as ``region=north``, have kinds
    among the ``options``, too.
    """
    if label in read_partition(paths[0]):
        raise StreamError(f"{name}: the label {label!r} is in the names of folders: write it into the rows, and mix the labels")
    parser = TableParser(**{option: value for option, value in options.items() if option in PARSER_OPTIONS})

    def open_file(path: str, columns_needed: bool) -> Source:
        kinds = {column: text for column, text in parser.columns.items() if column not in read_partition(path)}
        more: dict[str, Any] = {"columns_needed": columns_needed} if "label_needed" in options else {}
        return _open_file(path, kind, label, {**options, **more, **({"columns": kinds} if parser.columns else {})})

    def read_values(path: str) -> dict[Hashable, Any]:
        return {} if kind == "libsvm" else parser.parse_row(read_partition(path).items())

    return FilesSource(name, paths, open_file, label, read_values)


def open_sink(spec: str, *, options: Mapping[str, Any] | None = None, rotate: str | None = None) -> Sink:
    """Open a sink for predictions by its name: a path, ``"-"`` for standard output, or a URL with a scheme that a package has
    registered, such as ``kafka://``. ``options`` are those of the connection to the URL, and ``rotate`` is that of `FileSink`.

    Raises
    ------
    StreamError
        The sink cannot be opened, or ``rotate`` is given for something other than a file.
    """
    if "://" in spec and rotate is None:
        return _find_plugin("streamsvm.sinks", spec).load()(spec, options=options)
    return FileSink(spec, rotate)


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
