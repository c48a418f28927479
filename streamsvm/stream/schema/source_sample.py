"""The first rows of a source, which can be looked at again and again before any of them is learned."""

from __future__ import annotations

import contextlib
import itertools
import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from streamsvm.stream import Chunk, Row, Source, StreamError, open_source
from streamsvm.stream.endpoints import Position
from streamsvm.stream.lines import MAX_LINE_BYTES, BytesInMemory, ByteStream
from streamsvm.stream.open import format_source_name, list_source_files
from streamsvm.stream.tables import TableParser

#: Rows that are looked at, and for how long the next one is waited for once there is one.
SAMPLE_ROWS, SAMPLE_WAIT_SECONDS = 200, 2.0
_BYTES = 2**22  # of a file, by which its encoding is told
_PART = 2**18  # bytes at the end of a file


class SourceSample(NamedTuple):
    """The first rows of a source, or all of them."""

    name: str
    """Name of the source in messages."""
    format: str | None
    """As of `detect_format`."""
    open_rows: Callable[..., Source]
    """Opens them, with the parameters ``label``, ``weight`` and those of the reading of `open_source`."""
    text: bytes = b""
    """The first bytes, where the source is a text."""
    stream: ByteStream | None = None
    """A function that gives the bytes of a pipe, the first ones too."""
    position: Position | None = None
    """Where they begin, if the source would begin elsewhere when it is opened later."""
    open_later_parts: Callable[..., Iterator[Source]] | None = None
    """Opens the middle and the end of a long file, after a position, as ``open_rows``."""


def sample_files(place: str | list[str], text_format: str | None) -> SourceSample | None:
    """Return the rows of a file or of several; None where there is none."""
    first = (list_source_files(place) or [str(place)])[0]
    if text_format is None or place == "-" or not Path(first).is_file():
        return None
    text = b""
    if text_format == "csv":
        # Errors are said where its rows are read.
        with contextlib.suppress(StreamError), contextlib.closing(ByteStream(first)) as stream:
            text = stream.peek(_BYTES, 0, _BYTES, 0.0, bool)
    opened = partial(open_source, place, format=text_format)
    later = _LATER.get(text_format) if place == first else None
    return SourceSample(
        format_source_name(place), text_format, opened, text, open_later_parts=later and partial(later, first, opened, text)
    )


def sample_pipe(path: str, text_format: str, wait_on: Callable[[str], bool]) -> SourceSample:
    """Return the first rows of a pipe, CSV or JSON lines.

    One is waited for, unless ``wait_on``, which is called with the name of the source where none comes for a while, says no. A
    StreamError says that the pipe cannot be opened or read.
    """
    stream = ByteStream(path)
    try:
        least = 2 if text_format == "csv" else 1
        data = stream.peek(SAMPLE_ROWS + 1, least, MAX_LINE_BYTES, SAMPLE_WAIT_SECONDS, partial(wait_on, stream.name))
    except BaseException:
        stream.close()
        raise

    def opened(**how: Any) -> Source:
        return open_source(path, format=text_format, stream=BytesInMemory(stream.name, data), **how)

    return SourceSample(stream.name, text_format, opened, data, stream)


def sample_topic(url: str, wait_on: Callable[[str], bool], position: Position | None = None, **how: Any) -> SourceSample | None:
    """Return the first rows of a stream with a URL, after a position if one is given, as `sample_pipe`.

    It is read by a source of its own, which is opened with the parameters ``how`` of `open_source`. None where rows are numbers
    without names.
    """
    rows: list[Row] = []
    with open_source(url, label_needed=False, **how) as source:
        if not source.has_names:
            return None
        if position is not None:
            source.seek(position)
        position = source.position
        came, end = False, time.monotonic() + SAMPLE_WAIT_SECONDS
        while len(rows) < SAMPLE_ROWS and (chunk := source.read(SAMPLE_ROWS - len(rows))) is not None:
            rows += [row for row in map(chunk.row, range(len(chunk))) if isinstance(row, Row)]
            if len(chunk) and not came:
                came, end = True, time.monotonic() + SAMPLE_WAIT_SECONDS
            elif time.monotonic() >= end:
                if came or not wait_on(source.name):
                    break
                end = math.inf
    return sample_rows(source.name, len(rows), rows.__getitem__)._replace(position=position)


def sample_rows(name: str, n: int, row: Callable[[int], Row]) -> SourceSample:
    """Return ``n`` rows in memory; ``row`` returns one by its number."""
    return SourceSample(name, None, partial(_MemorySource, name, n, row))


class _MemorySource(Source):
    """Rows in memory, read as columns of a table; without labels if none is requested."""

    def __init__(self, name: str, n: int, row: Callable[[int], Row], label: str | None, **parser_options: Any) -> None:
        self.name: str = name
        self._n, self._row, self._label, self._parser = n, row, label, TableParser(**parser_options)
        self._next = 0

    def read(self, most: int) -> Chunk | None:
        first, end = self._next, min(self._next + most, self._n)
        self._next = end
        rows = [self._read_row(*self._row(i)) for i in range(first, end)]
        return Chunk(rows, lambda i: f"{self.name}, row {first + i + 1:,}") if rows else None

    def _read_row(self, x: dict[Any, Any], y: Any) -> Row:
        y = None if self._label is None else y
        return Row(self._parser.parse_row(x.items()), self._parser.parse_label(y)) if self._parser.options else Row(x, y)

    @property
    def position(self) -> Position:
        return {"rows": self._next}

    def seek(self, position: Position) -> None:
        self._next = int(position["rows"])


def _later_lines(path: str, opened: Callable[..., Source], text: bytes, after: Position, **how: Any) -> Iterator[Source]:
    """Open lines in the middle and at the end of a file, with the line before them that names their columns, if one does.

    Where a line has one quote of a pair, as those of a cell of several lines do, nothing tells which lines are rows.
    """
    head = text[: text.find(b"\n") + 1]
    end, size = after["offset"], Path(path).stat().st_size
    with contextlib.closing(ByteStream(path)) as stream:
        for begin in (size // 2, size - _PART) if stream.can_skip_to(size) else ():
            if begin <= end:
                continue
            stream.seek(begin)
            data = stream.read()
            end = begin + len(data)
            lines = head + data[data.find(b"\n") + 1 : data.rfind(b"\n") + 1]
            if not (text and any(line.count(b'"') % 2 for line in lines.split(b"\n"))):
                yield opened(stream=BytesInMemory(path, lines), **how)


def _later_groups(path: str, opened: Callable[..., Source], _: bytes, after: Position, **how: Any) -> Iterator[Source]:
    """Open a Parquet file at its row groups in the middle and at the end."""
    from pyarrow import parquet  # noqa: PLC0415 - of an extra

    metadata = parquet.read_metadata(path)
    n = metadata.num_row_groups
    sizes = [metadata.row_group(group).num_rows for group in range(n)]
    first = list(itertools.accumulate(sizes, initial=0))
    for group in sorted({n // 2, n - 1}):
        if first[group] >= after["rows"]:
            source = opened(**how)
            source.seek({**after, "rows": first[group]})
            yield source


_LATER: dict[str, Callable[..., Iterator[Source]]] = {"csv": _later_lines, "jsonl": _later_lines, "parquet": _later_groups}
