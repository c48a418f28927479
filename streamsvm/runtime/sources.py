"""Sources of rows: CSV, JSON lines and LIBSVM text (plain, gzip, or standard input), and any iterable."""

from __future__ import annotations

import csv
import functools
import gzip
import hashlib
import json
import os
import sys
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

from streamsvm.runtime.endpoints import Position, Row, StreamError

__all__ = ["FORMATS", "CSVSource", "IterableSource", "JSONLinesSource", "LIBSVMSource", "TextSource", "parse_label"]

# A line is held in memory whole, so its length is bounded.
_LONGEST_LINE = 16 * 2**20
# A stream is recognised by a digest of as many bytes of its beginning as were read, up to this many.
_HEAD = 4096


@functools.lru_cache(maxsize=1024)
def parse_label(text: str) -> Any:
    """The label that a cell of text holds: True, False, an int or float where it is one, None where it is empty, else the text.

    Examples
    --------
    >>> [parse_label(text) for text in ("true", "-1", "1.0", "spam", "")]
    [True, -1, 1, 'spam', None]
    """
    text = text.strip()
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if not text:
        return None
    try:
        number = float(text)
    except ValueError:
        return text
    return int(number) if number.is_integer() else number


def _shown(line: object) -> str:
    text = repr(line)
    return text if len(text) <= 80 else f"{text[:77]}..."


class TextSource:
    """A source over lines of UTF-8 text.

    Its position is the offset, in bytes of the uncompressed stream, of what follows the last row. A plain file is resumed there
    at once; gzip and standard input are read forward to it (so the same stream must be piped in again).

    Parameters
    ----------
    path
        A file, ``.gz`` for gzip; ``"-"`` for standard input.
    label
        Name of the label; None where the rows have none.

    Raises
    ------
    StreamError
        The file cannot be opened; while iterating: a line is malformed (the message names its number), too long or not UTF-8.
    """

    def __init__(self, path: str | Path, label: str | None = None) -> None:
        self.name = "standard input" if str(path) == "-" else str(path)
        self._label = label
        self._offset = 0
        self._line = 0
        self._rows = 0
        self._head = b""  # the first bytes of the stream
        self._ahead: bytes | None = None  # those of them that were not given out as lines yet; None before the first read
        try:
            if str(path) == "-":
                self._file: BinaryIO = sys.stdin.buffer
            elif str(path).endswith(".gz"):
                self._file = gzip.open(path, "rb")  # type: ignore[assignment]  # noqa: SIM115
            else:
                self._file = Path(path).open("rb")  # noqa: SIM115
        except OSError as error:
            raise StreamError(f"{self.name}: {error.strerror or error}") from error

    def __iter__(self) -> Iterator[Row]:
        raise AssertionError("a format brings its own rows")

    @property
    def position(self) -> Position:
        """Where the stream continues after the last row: offset, line, rows, and a digest of its beginning."""
        head = self._head[: self._offset]
        return {
            "offset": self._offset,
            "line": self._line,
            "rows": self._rows,
            "head": len(head),
            "sha256": hashlib.sha256(head).hexdigest(),
        }

    def seek(self, position: Position) -> None:
        """Continue after ``position``.

        Raises
        ------
        StreamError
            The position is not of a text stream, the stream begins otherwise than that of the position, or it ends before it.
        """
        try:
            offset, line, rows, head = (int(position[key]) for key in ("offset", "line", "rows", "head"))
            digest = position["sha256"]
        except (KeyError, TypeError, ValueError):
            raise StreamError(f"{self.name}: the checkpoint is of another kind of stream ({_shown(dict(position))})") from None
        self._read_head(_HEAD)
        if hashlib.sha256(self._head[:head]).hexdigest() != digest:
            raise StreamError(
                f"{self.name} is not the stream of the checkpoint: its first {head} bytes differ. "
                "Give the same stream, or another checkpoint folder to start afresh"
            )
        self._ahead = self._head  # the header of a table is in it, or follows it
        self._begin()
        if offset > self._offset:  # else it is the position before the first row
            self._skip_to(offset)
            self._offset, self._line, self._rows = offset, line, rows

    def stop(self) -> None:
        """Nothing to do: a file does not wait."""

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        if self._file is not sys.stdin.buffer:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        # What comes before the first row, if anything.
        pass

    def _read_head(self, size: int) -> None:
        # The beginning, kept in memory: standard input cannot be read twice.
        while len(self._head) < size:
            part = self._file.read(size - len(self._head))
            if not part:
                return
            self._head += part

    def _skip_to(self, offset: int) -> None:
        beyond = max(offset, len(self._head))  # what is left of the beginning in memory comes first
        if self._file.seekable():
            reached = self._file.seek(beyond)  # gzip stops at its end, a plain file goes on beyond
            if not self.name.endswith(".gz"):
                reached = min(reached, self._file.seek(0, os.SEEK_END))
                self._file.seek(beyond)
        else:
            reached = max(len(self._head), self._offset)  # what was read: the head, and a header longer than that
            while reached < beyond and (part := self._file.read(min(beyond - reached, 2**20))):
                reached += len(part)
        if reached < offset:
            raise StreamError(
                f"{self.name} ends at byte {reached:,}, before byte {offset:,} where the checkpoint stands: "
                "it was cut off, or it is another stream"
            )
        self._ahead = self._head[offset:]

    def _read_line(self) -> bytes:
        if self._ahead is None:  # the first read: through the head, so that positions can be told apart
            self._read_head(_HEAD)
            self._ahead = self._head
        if self._ahead:
            line, newline, rest = self._ahead.partition(b"\n")
            if newline:
                self._ahead = rest
                return line + newline
            self._ahead = b""
            return line + self._file.readline(_LONGEST_LINE + 1)
        return self._file.readline(_LONGEST_LINE + 1)

    def _lines(self) -> Iterator[str]:
        # Counts a line before it is given out: when a row is complete, the offset is that after its last line.
        while True:
            try:
                line = self._read_line()
            except (OSError, EOFError) as error:
                raise StreamError(f"{self.name}, after line {self._line}: {error}") from error
            if not line:
                return
            self._line += 1
            if len(line) > _LONGEST_LINE:
                raise self._error(f"the line is longer than {_LONGEST_LINE:,} bytes")
            self._offset += len(line)
            try:
                yield line.decode("utf-8-sig" if self._line == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise self._error(f"not UTF-8: {error.reason} at byte {error.start} of the line") from None

    def _error(self, message: str) -> StreamError:
        return StreamError(f"{self.name}, line {self._line}: {message}")


class CSVSource(TextSource):
    r"""Rows of a CSV file whose first line names the columns.

    Cells become floats; an empty cell is a missing feature; other text stays text, for a learner to refuse or a pipeline to
    encode. See `TextSource`.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.csv")
    >>> _ = path.write_text("a,b,y\n1,2,true\n3,,false\n")
    >>> with CSVSource(path, label="y") as source:
    ...     list(source)
    [Row(x={'a': 1.0, 'b': 2.0}, y=True), Row(x={'a': 3.0}, y=False)]
    """

    _reader: Any = None

    def _begin(self) -> None:
        self._reader = csv.reader(self._lines(), strict=True)
        try:
            names = next(self._reader, None)
        except csv.Error as error:
            raise self._error(str(error)) from None
        if names is None:
            raise StreamError(f"{self.name} is empty: its first line must name the columns")
        if len(set(names)) < len(names):
            raise self._error("two columns have one name")
        if self._label is not None and self._label not in names:
            raise StreamError(f"{self.name} has no column {self._label!r} for the label. It has: {', '.join(names)}")
        self._names: list[str] = names

    def __iter__(self) -> Iterator[Row]:
        if self._reader is None:
            self._begin()
        names, width = self._names, len(self._names)
        at = names.index(self._label) if self._label is not None else -1
        features = [name for i, name in enumerate(names) if i != at]
        while True:
            try:
                cells = next(self._reader, None)
            except csv.Error as error:
                raise self._error(str(error)) from None
            if cells is None:
                return
            if len(cells) != width:
                if not cells:
                    continue  # an empty line
                raise self._error(f"{len(cells)} cells for {width} columns: {_shown(','.join(cells))}")
            y = parse_label(cells.pop(at)) if at >= 0 else None
            try:
                x: dict[Hashable, Any] = dict(zip(features, map(float, cells), strict=True))
            except ValueError:
                x = {name: _cell(cell) for name, cell in zip(features, cells, strict=True) if cell.strip()}
            self._rows += 1
            yield Row(x, y)


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


class JSONLinesSource(TextSource):
    """Rows that are one JSON object a line. A null is a missing feature. See `TextSource`."""

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines():
            if line.isspace():
                continue
            try:
                x = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise self._error(f"not JSON ({error}): {_shown(line)}") from None
            if not isinstance(x, dict):
                raise self._error(f"not a JSON object: {_shown(line)}")
            y = x.pop(self._label, None) if self._label is not None else None
            self._rows += 1
            yield Row({name: value for name, value in x.items() if value is not None}, y)


class LIBSVMSource(TextSource):
    """Rows in the text format of LIBSVM, ``label index:value ...``. Features are called by their index. See `TextSource`."""

    def __iter__(self) -> Iterator[Row]:
        for line in self._lines():
            label, *cells = line.partition("#")[0].split() or [""]
            if not label and not cells:
                continue
            x: dict[Hashable, Any] = {}
            try:
                for cell in cells:
                    index, _, value = cell.partition(":")
                    x[int(index)] = float(value)
            except ValueError:
                raise self._error(f"{_shown(cell)} is not index:value") from None
            if len(x) < len(cells):
                raise self._error("an index comes twice")
            if ":" in label:
                raise self._error(f"the line must begin with a label, not {_shown(label)}")
            self._rows += 1
            yield Row(x, parse_label(label))


class IterableSource:
    """Rows of any iterable of ``(x, y)``, such as river's datasets. To resume, give an iterable that starts from the beginning.

    Examples
    --------
    >>> source = IterableSource([({"a": 1.0}, True), ({"a": 2.0}, False)])
    >>> source.seek({"rows": 1})
    >>> list(source)
    [Row(x={'a': 2.0}, y=False)]
    """

    def __init__(self, rows: Iterable[tuple[dict[Hashable, Any], Any]], name: str = "iterable") -> None:
        self.name = name
        self._iterator = iter(rows)
        self._rows = 0

    def __iter__(self) -> Iterator[Row]:
        for x, y in self._iterator:
            self._rows += 1
            yield Row(x, y)

    @property
    def position(self) -> Position:
        """How many rows were read."""
        return {"rows": self._rows}

    def seek(self, position: Position) -> None:
        """Skip the rows of a position; StreamError where there are not as many, or it is of another kind of stream."""
        if set(position) != {"rows"}:
            raise StreamError(f"{self.name}: the checkpoint is of another kind of stream ({_shown(dict(position))})")
        for rows in range(int(position["rows"])):
            if next(self._iterator, None) is None:
                raise StreamError(f"{self.name} has only {rows:,} rows; the checkpoint stands after {position['rows']:,}")
        self._rows = int(position["rows"])

    def stop(self) -> None:
        """Nothing to do: the iterable waits or does not."""

    def close(self) -> None:
        """Nothing to close."""


#: Name of a format to its source.
FORMATS: dict[str, type[TextSource]] = {"csv": CSVSource, "jsonl": JSONLinesSource, "libsvm": LIBSVMSource}
