"""Sources of rows: what all text shares (plain, gzip, or standard input), LIBSVM text, and any iterable."""

from __future__ import annotations

import codecs
import contextlib
import itertools
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from streamsvm.core.checks import validate_count
from streamsvm.core.text_rows import read_pairs
from streamsvm.files.messages import short_repr
from streamsvm.stream.endpoints import START_AFRESH, Position, Source, StreamError
from streamsvm.stream.lines import MAX_LINE_BYTES, ByteStream, LineReader, hex_digest, normalize_encoding
from streamsvm.stream.rows import parse_libsvm_label
from streamsvm.stream.tables.chunk import BadRow, CachedTextParser, Chunk, Row, Table, UnparsedRows, concatenate_rows
from streamsvm.stream.tables.table_parser import ParserOptions, TableParser, TextParserOptions
from streamsvm.stream.tables.values import parse_number

MAX_ROW_LINES = 1000  # of a row of CSV: a quote that is not closed within them is an error


class TableSource(Source):
    """A source whose rows have columns, read with `TableParser`; it remembers the label and how columns are read."""

    _begun = False

    def __init__(self, label: str | None, parser_options: ParserOptions) -> None:
        self._label = label
        self._parser = TableParser(**parser_options)
        self._options = self._parser.options  # where columns are not read as usual

    @property
    def _columns_read(self) -> dict[str, Any]:
        return {"table": self._options} if self._options else {}

    def _check_new(self) -> None:
        if self._begun:
            raise RuntimeError(f"{self.name}: rows were read already. To continue at a position, open a new source")

    def _check_columns(self, position: Position) -> None:
        """Raise a StreamError where a position is that of rows with another label, or read in another way."""
        if (label := position["label"]) != self._label:
            raise StreamError(
                f"{self.name}: the checkpoint was learned with the label {label!r}, not {self._label!r}. "
                f"Ask for the same, {START_AFRESH}"
            )
        if (table := position.get("table", {})) != self._options:
            both = table, self._options
            then, now = (", ".join(f"{k}={v!r}" for k, v in options.items()) or "no options" for options in both)
            raise StreamError(
                f"{self.name}: the checkpoint was learned from columns read with {then}, not with {now}. "
                f"Ask for the same, {START_AFRESH}"
            )


class TextSource(TableSource):
    """The base of all sources that read lines of text.

    A row is returned as soon as its line has arrived, those of a file many at a time, and `stop` ends a wait for the next one. A
    line that is malformed, too long or not in the encoding is returned as a `BadRow`.

    The position is an offset in bytes of the uncompressed stream, with digests of the stream's first bytes and of those before
    the offset. You can append rows to a file between two runs, but the rows that were learned must not change. A plain file is
    resumed immediately. Gzip and standard input are read from the beginning again, so pipe in the same stream.

    Parameters
    ----------
    path
        Path of the file, which may end with ``.gz``; a FIFO; ``"-"`` for standard input; or a stream of bytes.
    label
        Name of the label. None if the rows have none.
    **parser_options
        How columns are read: ``columns``, ``missing`` and ``decimal``, as in `streamsvm.stream.tables.TableParser`. Without any
        of these, rows are as the format has them (with ``missing="nan"``, NaN is missing, too). Also ``encoding``, that of the
        text, such as ``"latin-1"``; by default ``"utf-8"``. A line must end with the byte of a newline.

    Raises
    ------
    StreamError
        The file cannot be opened or, while you iterate, read; or the encoding does not exist.
    ValueError
        A parameter of ``parser_options`` is invalid.
    """

    def __init__(
        self, path: str | Path | ByteStream, label: str | None = None, **parser_options: Unpack[TextParserOptions]
    ) -> None:
        encoding = parser_options.pop("encoding", "utf-8")
        super().__init__(label, parser_options)
        self._encoding = normalize_encoding(encoding)
        self._reads = bool(self._options)
        if self._encoding != "utf-8":
            self._options["encoding"] = self._encoding
        self._reader = LineReader(path)
        self.name: str = self._reader.name
        self._line = self._rows = 0  # lines and rows that were returned
        self._ended = False
        self.may_block: bool = self._reader.stream.is_pipe

    def read(self, most: int) -> Chunk | None:
        """Return the next available rows, as `Source.read`."""
        self._begin()
        lines = [] if self._ended else self._next_lines(most)
        if lines and lines[-1][-1:] != b"\n" and len(lines[-1]) <= MAX_LINE_BYTES and not self._has_row(lines[-1]):
            lines.pop()  # the beginning of a row may be appended to it later
        if not lines:
            self._ended = True
            return None
        n_blank = next((i for i, line in enumerate(lines) if len(line) > MAX_LINE_BYTES or self._has_row(line)), len(lines))
        if n_blank:
            self._consume(lines[:n_blank], n_blank)
        if n_blank == len(lines):
            return Chunk([], str)
        chunk, taken, n_lines = self._chunk_of(lines[n_blank:])
        if chunk is None:  # stopped within a row
            return None
        self._consume(taken, n_lines)
        self._rows += len(chunk)
        return chunk

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._begin_rows()

    def _next_lines(self, most: int) -> list[bytes]:
        lines = self._reader.lines(most)
        if lines and not self._reader.offset and self._encoding == "utf-8" and lines[0].startswith(codecs.BOM_UTF8):
            self._reader.consume([codecs.BOM_UTF8])
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        return lines

    def _consume(self, lines: list[bytes], n_lines: int) -> None:
        self._reader.consume(lines)
        self._line += n_lines

    def _has_row(self, line: bytes) -> bool:
        """Whether a line has something of a row."""
        if b"!" <= line[:1] <= b"~":
            return True
        with contextlib.suppress(UnicodeDecodeError):
            return bool(line.decode(self._encoding).strip())
        return True

    def _chunk_of(self, lines: list[bytes]) -> tuple[Chunk | None, list[bytes], int]:
        """Return rows that begin with the first line, their bytes, and how many lines they take; None if stopped within a row."""
        n = next((i for i, line in enumerate(lines) if i and not self._has_row(line)), len(lines))
        return self._lines_chunk(lines[:n]), lines[:n], n

    def _lines_chunk(self, lines: list[bytes]) -> LinesChunk:
        """Return lines that are a row each, or that cannot be read."""
        return LinesChunk(self, lines, self._line + 1)

    def row_of(self, line: bytes, place: str) -> Row | BadRow:
        """Return the row of a line that is one."""
        if len(line) > MAX_LINE_BYTES:
            return BadRow(place, line, f"the line is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            return self._parse_line(line.decode(self._encoding))
        except UnicodeDecodeError as error:
            reason = describe_decoding_error(self._encoding, error)
        except ValueError as error:
            reason = str(error)
        return BadRow(place, line, reason)

    def table_of(self, lines: list[bytes], known: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Return lines as a table, as `Chunk.table`; None where many of them have to be read one by one."""
        return None

    def read_passthrough(self, line: bytes) -> Sequence[Any]:
        """Return what is copied of the row of a line."""
        try:
            return self._parse_passthrough(line.decode(self._encoding))
        except ValueError:
            return [None] * len(self.passthrough_names)

    def _parse_passthrough(self, line: str) -> Sequence[Any]:
        """Return the columns of a line that `request_passthrough` has requested, unchanged."""
        raise NotImplementedError

    def _parse_line(self, line: str) -> Row:
        """Return the row of a line; ValueError says why it cannot be read."""
        raise NotImplementedError

    @property
    def position(self) -> Position:
        """Where the next row is.

        It has the offset, and the numbers of lines and rows before it, digests of the bytes before it, the label, and how columns
        are read.
        """
        reader = self._reader
        return self._columns_read | {
            "offset": reader.offset,
            "line": self._line,
            "rows": self._rows,
            "head_digest": hex_digest(reader.head(reader.offset)),
            "tail_digest": hex_digest(reader.last_bytes),
            "label": self._label,
        }

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`.

        Another label, columns that are read in another way, and bytes that have changed before it are a StreamError, too.
        """
        self._check_new()
        try:
            offset, line, rows = (validate_count(key, position[key]) for key in ("offset", "line", "rows"))
            head, tail, _ = (position[key] for key in ("head_digest", "tail_digest", "label"))
            if not rows <= line <= offset + 1:
                raise ValueError(f"{rows} rows in {line} lines")
        except (KeyError, ValueError):
            raise self._foreign_position_error(position) from None
        self._check_columns(position)
        if hex_digest(self._reader.head(offset)) != head:
            raise StreamError(
                f"{self.name} is not the stream of the checkpoint: its first bytes differ. Give that stream, {START_AFRESH}"
            )
        if offset == 0:
            return
        self._begin()
        self._reader.skip_to(offset)
        last = self._reader.last_bytes
        if hex_digest(last) != tail:
            raise StreamError(
                f"{self.name} was changed before byte {offset:,}, up to which the checkpoint has learned it. "
                f"Put it back, {START_AFRESH}"
            )
        if not last.endswith(b"\n") and (rest := self._reader.lines(1)):  # the last row had no newline then
            if rest[0].strip():
                raise StreamError(
                    f"{self.name}, line {line:,}: the line has grown since it was learned, for it had no newline at its end. "
                    f"Put one where the row ends, {START_AFRESH}"
                )
            self._reader.consume(rest)
        self._line = line
        self._rows = rows

    def stop(self) -> None:
        """End a wait for rows. The beginning of an incomplete row is left for the next run."""
        self._reader.stream.stop()

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        self._reader.stream.close()

    def _begin_rows(self) -> None:
        """Read the lines before the first row, if the format has any."""


def describe_decoding_error(encoding: str, error: UnicodeDecodeError) -> str:
    """Say that a line is not in an encoding."""
    return (
        f"not {encoding.upper()}: {error.reason} at byte {error.start} of the line. Fix it, or give the encoding, "
        "such as latin-1 or cp1252"
    )


class LinesChunk(Chunk):
    """Lines of text that are a row each, or several that are one, and are parsed by their source lazily.

    A source that has parsed them already passes their ``table``, and the ``passthrough_columns`` for predictions.
    """

    def __init__(
        self,
        source: TextSource,
        lines: list[bytes],
        first: int,
        table: Table | None = None,
        passthrough_columns: list[list[Any]] | None = None,
    ) -> None:
        self.lines: list[bytes] = lines
        self._source, self._first, self._passthrough_columns = source, first, passthrough_columns
        self._has_table, self._table = table is not None, table
        self._numbers: list[int] = []  # of the first line of each row, and of the line behind the rows
        self._known: list[Hashable] = []  # the features that the model knew when the table was read

    def __len__(self) -> int:
        return len(self.lines)

    def read_row(self, i: int) -> Row | BadRow:
        return self._source.row_of(self.lines[i], self.place(i)) if self._rows is None else self._rows[i]

    def read_table(self, known: Sequence[Hashable]) -> Table | None:
        if self._has_table and self._rows is None and not self._source.has_names:  # more columns are found once they are known
            self._has_table = self._known == list(known)
        return super().read_table(known)

    def parse_table(self, known: Sequence[Hashable]) -> Table | None:
        self._known = list(known)
        return self._source.table_of(self.lines, known)

    def place(self, i: int) -> str:
        return f"{self._source.name}, line {self.line_of(i):,}"

    def line_of(self, i: int) -> int:
        """Return the number of the first line of row number ``i``; of the line behind the rows if that is their number."""
        if not self._numbers:
            counts = [line.count(b"\n") + (line[-1:] != b"\n") for line in self.lines]
            self._numbers = list(itertools.accumulate(counts, initial=self._first))
        return self._numbers[i]

    def raw(self, i: int) -> bytes:
        return self.lines[i]

    def passthrough_columns(self, first: int, end: int) -> list[Sequence[Any]]:
        if self._passthrough_columns is not None:
            return super().passthrough_columns(first, end)
        if not self._source.passthrough_names:
            return []
        rows = [self._source.read_passthrough(line) for line in self.lines[first:end]]
        return [list(column) for column in zip(*rows, strict=True)]


class LIBSVMSource(TextSource):
    """Rows of LIBSVM text, ``label index:value ...``, one on each line.

    Features are named by their index. The label comes first in the line and has no name, so ``label`` is ignored. `TextSource`
    describes the parameters.
    """

    def __init__(self, path: str | Path | ByteStream, label: str | None = None) -> None:  # noqa: ARG002
        super().__init__(path)

    has_names = False

    def request_passthrough(self, names: Sequence[str]) -> list[str]:
        """Raise a StreamError if columns are to be copied: LIBSVM text has none but numbers."""
        if names := list(names):
            raise StreamError(
                f"{self.name}: column {names[0]!r} cannot be passed through: LIBSVM text has numbers without names only"
            )
        return super().request_passthrough(names)

    def _has_row(self, line: bytes) -> bool:
        if b"!" <= line[:1] <= b"~" and line[:1] != b"#":
            return True
        with contextlib.suppress(UnicodeDecodeError):
            return bool(line.decode().partition("#")[0].strip())
        return True

    def table_of(self, lines: list[bytes], known: Sequence[Hashable]) -> Table | None:
        """Return lines as a table of the features that are ``known``; a row with others is odd."""
        names: list[Any] = [name for name in known if type(name) is int and 0 <= name < _LARGEST_INDEX]
        if not names:
            return None
        n, (data, begins, ends) = len(lines), concatenate_rows(lines)
        columns = np.full(max(names) + 1, -1)
        columns[names] = np.arange(len(names))
        X, labels, odd = np.empty((n, len(names))), np.zeros((n, 2), np.int64), UnparsedRows(n)
        i, rows = 0, np.frombuffer(data, np.uint8)
        while (i := read_pairs(rows, begins, ends, i, columns, X, X.view(np.uint64), labels)) < n:
            X[i], labels[i] = np.nan, 0
            if odd.add_and_check_limit(i):
                return None
            i += 1
        texts = [data[begin:end] for begin, end in labels.tolist()]
        return Table(tuple(names), list(X.T), _LIBSVM_LABELS.parse_texts(texts, odd), None, odd.rows)

    def _parse_line(self, line: str) -> Row:
        if (row := parse_libsvm_line(line)) is None:
            raise ValueError("no row")
        return row


def parse_libsvm_line(line: str) -> Row | None:
    """Return the row of a line of LIBSVM text, None if it has none; ValueError says why it cannot be read."""
    label, *cells = line.partition("#")[0].split() or [""]
    if not label and not cells:
        return None
    x: dict[Hashable, Any] = {}
    strict = "_" in line or not line.isascii()  # Python reads some of that as numbers
    for cell in cells:
        index, _, value = cell.partition(":")
        try:
            if strict:
                parse_number(index)
            x[int(index)] = parse_number(value) if strict else float(value)
        except ValueError:
            raise ValueError(f"{short_repr(cell)} is not index:value") from None
    if len(x) < len(cells):
        raise ValueError("an index comes twice")
    if ":" in label:
        raise ValueError(f"the line must begin with a label, not {short_repr(label)}")
    return Row(x, parse_libsvm_label(label))


def _label_of(text: bytes) -> Any:
    (label,) = text.decode().split()
    return parse_libsvm_label(label)


_LARGEST_INDEX = 1 << 24
_LIBSVM_LABELS = CachedTextParser(_label_of)


class IterableSource(Source):
    """Rows of any iterable of ``(x, y)``, such as a river dataset.

    To resume, pass an iterable that starts from the beginning.

    Parameters
    ----------
    rows
        Pairs of features by name, and a label or None.
    name
        Name of the stream in messages.

    Examples
    --------
    >>> source = IterableSource([({"a": 1.0}, True), ({"a": 2.0}, False)])
    >>> source.seek({"rows": 1})
    >>> list(source)
    [Row(x={'a': 2.0}, y=False)]
    """

    def __init__(self, rows: Iterable[tuple[dict[Any, Any], Any]], name: str = "iterable") -> None:
        self.name = name
        self._iterator = iter(rows)
        self._rows = 0

    def read(self, most: int) -> Chunk | None:  # noqa: ARG002 - what comes next may have to be waited for
        pair = next(self._iterator, _END)
        if pair is _END:
            return None
        self._rows += 1
        place = f"{self.name}, row {self._rows:,}"
        try:
            x, y = pair
            row: Row | BadRow = Row(x, y)
        except (TypeError, ValueError):
            row = BadRow(place, None, f"a row must be a pair (x, y), not {short_repr(pair)}")
        return Chunk([row], lambda i: place, passthrough_names=self.passthrough_names)  # noqa: ARG005

    @property
    def position(self) -> Position:
        """Where the next row is: the number of rows that were read."""
        return {"rows": self._rows}

    def seek(self, position: Position) -> None:
        """Skip the rows before ``position``, as `Source.seek`; raise a StreamError if there are fewer."""
        if self._rows:
            raise RuntimeError(f"{self.name}: rows were read already. To continue at a position, make a new source")
        try:
            (wanted,) = (validate_count(key, position[key]) for key in {"rows", *position})
        except (KeyError, ValueError):
            raise self._foreign_position_error(position) from None
        for rows in range(wanted):
            if next(self._iterator, None) is None:
                raise StreamError(f"{self.name} has only {rows:,} rows; the checkpoint has learned {wanted:,}")
        self._rows = wanted


_END: Any = object()
