"""Samples the first rows of a file, pipe, topic or frame, for schema inference; learning reads the same rows again."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from streamsvm.stream import Chunk, Row, Source, StreamError, open_source
from streamsvm.stream.csv_dialect import read_separator
from streamsvm.stream.endpoints import Position
from streamsvm.stream.file_names import format_source_name, list_source_files
from streamsvm.stream.lines import MAX_LINE_BYTES, BytesInMemory, ByteStream
from streamsvm.stream.object_lines import ObjectLines
from streamsvm.stream.tables import TableParser

#: Maximum number of rows in a sample, and seconds to wait for the next row after the first one has come.
SAMPLE_ROWS, SAMPLE_WAIT_SECONDS = 200, 2.0
_HEAD_BYTES = 2**22  # bytes of a file from which its encoding is detected
_TAIL_BYTES = 2**18  # bytes at the end of a file that are sampled, too


class SourceSample(NamedTuple):
    """The first rows of a source, or all of them, which can be opened repeatedly."""

    name: str
    """Name of the source in messages."""
    format: str | None
    """Format of the file, as `detect_format` returns it; None for topics and rows in memory."""
    open_rows: Callable[..., Source]
    """Open the sampled rows as a source. It takes the keyword arguments ``label``, ``weight`` and those of `TableParser`."""
    head: bytes = b""
    """The first bytes of a text source."""
    byte_stream: ByteStream | None = None
    """The opened pipe, which still yields the sampled bytes."""
    start_position: Position | None = None
    """Position of the first sampled row; None if the source starts there anyway when it is opened again."""
    open_later_parts: Callable[..., Iterator[Source]] | None = None
    """Open parts in the middle and at the end of a long file, beyond a position; takes the same arguments as ``open_rows``."""


def sample_files(place: str | list[str], text_format: str | None) -> SourceSample | None:
    """Return a sample of the first rows of a file, a folder or several files (``place``), for schema inference. ``text_format``
    is the detected file format. Returns None if the file does not exist, is standard input, or has an unknown format.
    """
    first = (list_source_files(place) or [str(place)])[0]
    if text_format is None or place == "-" or not Path(first).is_file():
        return None
    head = b""
    if text_format == "csv":
        # An unreadable file is reported when its rows are read.
        with contextlib.suppress(StreamError), contextlib.closing(ByteStream(first)) as stream:
            head = stream.peek(_HEAD_BYTES, 0, _HEAD_BYTES, 0.0, bool)
    open_rows = partial(open_source, place, format=text_format)
    open_parts = _OPENERS.get(text_format) if place == first else None
    open_later_parts = open_parts and partial(open_parts, first, open_rows, head)
    return SourceSample(format_source_name(place), text_format, open_rows, head, open_later_parts=open_later_parts)


def sample_pipe(path: str, text_format: str, wait_on: Callable[[str], bool]) -> SourceSample:
    """Return a sample of the first rows of a pipe with CSV or JSON lines, for schema inference. The rows stay available for
    learning. If no row comes for 2 s, ``wait_on`` is called with the source's name, and returns whether to keep waiting.

    Raises StreamError if the pipe cannot be opened or read.
    """
    stream = ByteStream(path)
    stream = ObjectLines(stream) if text_format == "jsonl" else stream
    try:
        min_lines = 2 if text_format == "csv" else 1
        data = stream.peek(SAMPLE_ROWS + 1, min_lines, MAX_LINE_BYTES, SAMPLE_WAIT_SECONDS, partial(wait_on, stream.name))
    except BaseException:
        stream.close()
        raise

    def open_rows(**options: Any) -> Source:
        return open_source(path, format=text_format, stream=BytesInMemory(stream.name, data), **options)

    return SourceSample(stream.name, text_format, open_rows, data, stream)


def sample_topic(
    url: str, wait_on: Callable[[str], bool], position: Position | None = None, dropped: Sequence[str] = (), **options: Any
) -> SourceSample | None:
    """Read up to 200 rows of a stream, such as a Kafka topic, for schema inference, starting at ``position`` (None: the default
    start). If no row comes for 2 s, ``wait_on`` is called with the source's name, and returns whether to keep waiting. Returns
    None if the rows are numbers without column names.

    The sample is read by a separate source, opened by `open_source` with ``options``, without the columns ``dropped``.
    """
    rows: list[Row] = []
    with open_source(url, label_needed=False, **options) as source:
        if not source.has_names:
            return None
        source.skip_columns(dropped)
        if position is not None:
            source.seek(position)
        position = source.position
        has_first_row, deadline = False, time.monotonic() + SAMPLE_WAIT_SECONDS
        while len(rows) < SAMPLE_ROWS and (chunk := source.read(SAMPLE_ROWS - len(rows))) is not None:
            rows += [row for row in map(chunk.row, range(len(chunk))) if isinstance(row, Row)]
            if len(chunk) and not has_first_row:
                has_first_row, deadline = True, time.monotonic() + SAMPLE_WAIT_SECONDS
            elif time.monotonic() >= deadline:
                if has_first_row or not wait_on(source.name):
                    break
                deadline = math.inf
    return sample_rows(source.name, len(rows), rows.__getitem__)._replace(start_position=position)


def sample_rows(name: str, n_rows: int, get_row: Callable[[int], Row]) -> SourceSample:
    """Return a sample of rows in memory, for schema inference. ``get_row`` is a function that returns a row by its index, from 0
    to ``n_rows - 1``; ``name`` is the source's name in messages.
    """
    return SourceSample(name, None, partial(_MemorySource, name, n_rows, get_row))


class _MemorySource(Source):
    """A source of rows in memory, parsed as a table. Without a label column, its rows have no labels."""

    def __init__(self, name: str, n_rows: int, get_row: Callable[[int], Row], label: str | None, **parser_options: Any) -> None:
        self.name: str = name
        self._n_rows, self._get_row, self._label = n_rows, get_row, label
        self._parser = TableParser(**parser_options, label=label)
        self._next = 0

    def read(self, max_rows: int) -> Chunk | None:
        start, stop = self._next, min(self._next + max_rows, self._n_rows)
        self._next = stop
        rows = [self._parse_row(*self._get_row(i)) for i in range(start, stop)]
        return Chunk(rows, lambda i: f"{self.name}, row {start + i + 1:,}") if rows else None

    def _parse_row(self, x: dict[Any, Any], y: Any) -> Row:
        """Parse the values ``x`` and the label ``y`` of a row with the options of this source, and return them as a `Row`.
        Without a label column, the row gets no label.
        """
        y = None if self._label is None else y
        return Row(self._parser.parse_row(x.items()), self._parser.parse_label(y)) if self._parser.options else Row(x, y)

    @property
    def position(self) -> Position:
        return {"rows": self._next}

    def seek(self, position: Position) -> None:
        self._next = int(position["rows"])


def _open_lines(path: str, open_rows: Callable[..., Source], head: bytes, start: Position, **options: Any) -> Iterator[Source]:
    """Yield up to two sources that read lines in the middle and at the end of a CSV or JSON lines file, if they lie after
    ``start``. ``head`` has the first bytes of a CSV file; its header is put before the lines. ``open_rows`` makes a source of a
    stream of bytes and ``options``.

    Parts with an unpaired quote are skipped: a cell may span lines there, so that it is unclear where rows begin. The same holds
    for JSON whose objects span lines.
    """
    head = head.lstrip(b"\r\n")
    header = head[: head.find(b"\n", head.find(b"\n") + 1 if read_separator(head) else 0) + 1]
    read_bytes, size = start["offset"], Path(path).stat().st_size
    with contextlib.closing(ByteStream(path)) as stream:
        for offset in (size // 2, size - _TAIL_BYTES) if stream.read() and stream.can_skip_to(size) else ():
            if offset <= read_bytes:
                continue
            stream.seek(offset)
            data = stream.read() or b""
            read_bytes = offset + len(data)
            lines = header + data[data.find(b"\n") + 1 : data.rfind(b"\n") + 1]
            if head:
                is_clear = not any(line.count(b'"') % 2 for line in lines.split(b"\n"))
            else:
                is_clear = lines.count(b"\n{") >= lines.count(b"\n") - 1
            if is_clear:
                yield open_rows(stream=BytesInMemory(path, lines), **options)


def _open_row_groups(path: str, open_rows: Callable[..., Source], _: bytes, start: Position, **options: Any) -> Iterator[Source]:
    """Yield up to two sources that read a Parquet file from a later place: from a row group in the middle, and from the last one,
    if they lie after ``start``. ``open_rows`` opens the file as a source with ``options``. The third parameter is unused.
    """
    from pyarrow import parquet  # noqa: PLC0415 - an optional dependency

    metadata = parquet.read_metadata(path)
    n = metadata.num_row_groups
    sizes = [metadata.row_group(group).num_rows for group in range(n)]
    first_rows = list(itertools.accumulate(sizes, initial=0))
    for group in sorted({n // 2, n - 1}):
        if first_rows[group] >= start["rows"]:
            source = open_rows(**options)
            source.seek({**start, "rows": first_rows[group]})
            yield source


_OPENERS: dict[str, Callable[..., Iterator[Source]]] = {"csv": _open_lines, "jsonl": _open_lines, "parquet": _open_row_groups}
