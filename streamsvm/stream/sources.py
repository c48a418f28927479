"""The base classes of sources of tables and of text, and the source of iterables."""

from __future__ import annotations

import codecs
import contextlib
import itertools
from collections.abc import Hashable, Iterable, Sequence
from pathlib import Path
from typing import Any, Unpack

from streamsvm.core.checks import validate_count
from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr
from streamsvm.stream.continuation import describe_label, report_change
from streamsvm.stream.endpoints import KEEP_MODEL, ForeignPositionError, Position, Source, StreamError
from streamsvm.stream.lines import MAX_LINE_BYTES, ByteStream, LineReader, decode_windows, hex_digest, normalize_encoding
from streamsvm.stream.tables.chunk import BadRow, Chunk, Row, Table
from streamsvm.stream.tables.table_parser import ParserOptions, TableParser, TextParserOptions

#: A pipe that sends nothing for this long is silent: the loop may then write a checkpoint.
SILENCE_SECONDS = 0.2
MAX_ROW_LINES = 1000  # of one CSV row: a quote that is not closed within them is an error


class TableSource(Source):
    """The base of sources whose rows have columns. Its position holds the label and the options of its `TableParser`."""

    _has_started = False

    def __init__(self, label: str | None, parser_options: ParserOptions) -> None:
        self._label = label
        self._parser = TableParser(**parser_options, label=label)
        self._options = self._parser.options  # those that differ from the defaults

    @property
    def _parser_position(self) -> dict[str, Any]:
        """The part of this source's `position` that describes the parser, as a dict of its options that differ from the defaults;
        empty if all are the defaults.
        """
        return {"table": self._options} if self._options else {}

    def _check_not_started(self) -> None:
        if self._has_started:
            raise RuntimeError(f"{self.name}: rows were read already. To continue at a position, open a new source")

    def _check_columns(self, position: Position) -> None:
        """Raise a StreamError if ``position``, of an earlier source, was saved with another label or other parser options than
        this source has.
        """
        if (label := position["label"]) != self._label:
            raise StreamError(f"{self.name}: {describe_label(label, self._label)}")
        if not isinstance(table := position.get("table", {}), dict):
            raise self._foreign_position_error(position)
        if table != self._options:
            then, now = (", ".join(f"{k}={v!r}" for k, v in x.items()) or "no options" for x in (table, self._options))
            text = f"the checkpoint was learned from columns read with {then}, not with {now}"
            if table.get("columns") != self._options.get("columns"):
                raise StreamError(f"{self.name}: {text}. Ask for the same, {KEEP_MODEL}")
            report_change(self.name, "table", text)


class TextSource(TableSource):
    """The base of all sources that read lines of text.

    A row is returned as soon as its line has arrived. The rows of a file are returned in large chunks. `stop` ends a wait for the
    next row. A line that is malformed, too long or not in the encoding is returned as a `BadRow`.

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

    _has_other_encoding = False  # whether a line was not in the encoding

    def __init__(
        self, path: str | Path | ByteStream, label: str | None = None, **parser_options: Unpack[TextParserOptions]
    ) -> None:
        encoding = parser_options.pop("encoding", "utf-8")
        super().__init__(label, parser_options)
        self._encoding = normalize_encoding(encoding)
        self._uses_parser = bool(self._options)
        if self._encoding != "utf-8":
            self._options["encoding"] = self._encoding
        self._reader = LineReader(path)
        self.name: str = self._reader.name
        self._line = self._rows = 0  # number of lines and rows that were returned
        self._ended = False
        self.may_block: bool = self._reader.stream.is_pipe

    def read(self, max_rows: int) -> Chunk | None:
        """Return the next available rows as a chunk, at most ``max_rows``; None if the stream has ended or was stopped. The chunk
        is empty if a pipe has no complete row for 0.2 s.
        """
        self._start_reading()
        try:
            return self._read_chunk(max_rows)
        except TimeoutError:
            return Chunk([], str)

    def _read_chunk(self, max_rows: int) -> Chunk | None:
        """Return the next chunk, as `read` does. Raise a TimeoutError, with nothing consumed, if a pipe is silent."""
        lines = [] if self._ended else self._next_lines(max_rows, SILENCE_SECONDS)
        if lines and lines[-1][-1:] != b"\n" and len(lines[-1]) <= MAX_LINE_BYTES and not self._has_row(lines[-1]):
            lines.pop()  # a row may be appended to this unfinished line later
        if not lines:
            self._ended = True
            return None
        n_blank = next((i for i, line in enumerate(lines) if len(line) > MAX_LINE_BYTES or self._has_row(line)), len(lines))
        if n_blank:
            self._consume_lines(lines[:n_blank], n_blank)
        if n_blank == len(lines):
            return Chunk([], str)
        chunk, chunk_lines, n_lines = self._make_chunk(lines[n_blank:])
        if chunk is None:  # stopped within a row
            return None
        self._consume_lines(chunk_lines, n_lines)
        self._rows += len(chunk)
        return chunk

    def _start_reading(self) -> None:
        """Read the header of the text, unless that was done already. Call it before the first row or `seek`."""
        if not self._has_started:
            self._has_started = True
            self._read_header()

    def _next_lines(self, max_lines: int, seconds: float | None = None) -> list[bytes]:
        """Return the next lines of the text as bytes, at most ``max_lines``, without consuming them. Skip a byte order mark at
        the start of the stream. Raise a TimeoutError if a pipe is silent for ``seconds`` (None: wait without a limit).
        """
        lines = self._reader.peek_lines(max_lines, 0, seconds)
        if lines and not self._reader.offset and self._encoding == "utf-8" and lines[0].startswith(codecs.BOM_UTF8):
            self._reader.consume_lines([codecs.BOM_UTF8])
            lines[0] = lines[0].removeprefix(codecs.BOM_UTF8)
        return lines

    def _consume_lines(self, lines: list[bytes], n_lines: int) -> None:
        """Advance past ``lines``, and add ``n_lines`` to the line count. ``n_lines`` is larger than ``len(lines)`` if an item of
        ``lines`` is a row of several lines.
        """
        self._reader.consume_lines(lines)
        self._line += n_lines

    def _has_row(self, line: bytes) -> bool:
        """Return whether a line contains a row, that is, is not blank."""
        if b"!" <= line[:1] <= b"~":
            return True
        with contextlib.suppress(UnicodeDecodeError):
            return bool(line.decode(self._encoding).strip())
        return True

    def _make_chunk(self, lines: list[bytes]) -> tuple[Chunk | None, list[bytes], int]:
        """Parse ``lines`` up to the next blank one. Return a chunk (rows read together), the bytes of its rows, and their number
        of lines. The chunk is None if `stop` was called before the first row was complete.
        """
        n = next((i for i, line in enumerate(lines) if i and not self._has_row(line)), len(lines))
        return self._make_lines_chunk(lines[:n]), lines[:n], n

    def _make_lines_chunk(self, lines: list[bytes]) -> LinesChunk:
        """Return a chunk of rows, one for each of ``lines``. They are parsed later, when they are needed."""
        return LinesChunk(self, lines, self._line + 1)

    def parse_row(self, line: bytes, place: str) -> Row | BadRow:
        """Parse a line into a row of features and label. If it is unreadable, return a BadRow with the reason and ``place``
        (stream and line number).
        """
        if len(line) > MAX_LINE_BYTES:
            return BadRow(place, line, f"the line is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            return self._parse_line(self._decode_line(line, place))
        except UnicodeDecodeError as error:
            reason = describe_decoding_error(self._encoding, error)
        except ValueError as error:
            reason = str(error)
        return BadRow(place, line, reason)

    def _decode_line(self, line: bytes, place: str = "") -> str:
        """Return a line as text, without a byte order mark. A line of another encoding in a UTF-8 text, such as one of an
        appended file, is decoded as cp1252, with one warning that names its ``place``. Raise a UnicodeDecodeError if that yields
        no plausible text.
        """
        try:
            return line.decode(self._encoding).removeprefix("\ufeff")
        except UnicodeDecodeError:
            if self._encoding != "utf-8" or (text := decode_windows(line)) is None:
                raise
        if place and not self._has_other_encoding:
            self._has_other_encoding = True
            warn(f"{place}: not UTF-8, so this line is read as cp1252 (Windows), and others that are not UTF-8, too")
        return text

    def parse_table(self, lines: list[bytes], known_features: Sequence[Hashable]) -> Table | None:  # noqa: ARG002
        """Parse lines into a table with one column per feature; None if many of them must be parsed one by one.
        ``known_features`` are the features that the model knows.
        """
        return None

    def read_passthrough(self, line: bytes) -> Sequence[Any]:
        """Return the values of the requested passthrough columns (copied into predictions) in a line; None for each if the line
        is unreadable.
        """
        try:
            return self._parse_passthrough(self._decode_line(line))
        except ValueError:
            return [None] * len(self.passthrough_names)

    def _parse_passthrough(self, line: str) -> Sequence[Any]:
        """Return the values of the columns `passthrough_names` in a decoded line, as they are written in the text."""
        raise NotImplementedError

    def _parse_line(self, line: str) -> Row:
        """Parse a decoded line into a row of features and label; raise a ValueError with the reason if it is unreadable."""
        raise NotImplementedError

    @property
    def line_name(self) -> str:
        """Word for a line in messages, such as "line"."""
        return self._reader.stream.line_name

    @property
    def position(self) -> Position:
        """The position of the next row in the text, as a dict that can be saved and passed to `seek` later.

        It holds the offset in bytes, the number of lines and rows before it, digests of the bytes before it, the label, and the
        parser options.
        """
        reader = self._reader
        return self._parser_position | {
            "offset": reader.offset,
            "line": self._line,
            "rows": self._rows,
            "head_digest": hex_digest(reader.read_head(reader.offset)),
            "tail_digest": hex_digest(reader.last_bytes),
            "label": self._label,
        }

    def seek(self, position: Position) -> None:
        """Continue at ``position``, the saved `position` of an earlier source of the same text. Call it before the first row is
        read.

        Also raises a StreamError if the label, the parser options, or the bytes before the position have changed.
        """
        self._check_not_started()
        try:
            offset, line, rows = (validate_count(key, position[key]) for key in ("offset", "line", "rows"))
            head, tail, _ = (position[key] for key in ("head_digest", "tail_digest", "label"))
            if not rows <= line <= offset + 1:
                raise ValueError(f"{rows} rows in {line} lines")
        except (KeyError, ValueError):
            raise self._foreign_position_error(position) from None
        self._check_columns(position)
        if hex_digest(self._reader.read_head(offset)) != head:
            raise ForeignPositionError(f"{self.name}: it is not the stream of the checkpoint, for its first bytes differ")
        if offset == 0:
            return
        self._start_reading()
        self._reader.skip_to(offset)
        last = self._reader.last_bytes
        if hex_digest(last) != tail:
            text = f"{self.name} was changed before byte {offset:,}, up to which the checkpoint has learned it"
            raise StreamError(f"{text}. Put it back, {KEEP_MODEL}")
        if not last.endswith(b"\n") and (rest := self._reader.peek_lines(1)):  # the last row had no newline when it was learned
            if rest[0].strip():
                text = "the line has grown since it was learned, for it had no newline at its end"
                raise StreamError(f"{self.name}, line {line:,}: {text}. Put one where the row ends, {KEEP_MODEL}")
            self._reader.consume_lines(rest)
        self._line = line
        self._rows = rows

    def stop(self) -> None:
        """End a wait of `read` for rows, from a signal handler or another thread. An incomplete row is not returned."""
        self._reader.stream.stop()

    def close(self) -> None:
        """Close the file of this source. Standard input stays open."""
        self._reader.stream.close()

    def _read_header(self) -> None:
        """Read the lines before the first row. By default, do nothing, because the format has no header."""


def describe_decoding_error(encoding: str, error: UnicodeDecodeError) -> str:
    """Return a message for the user: a line is not valid text in ``encoding``, with reason and offset of ``error``."""
    return (
        f"not {encoding.upper()}: {error.reason} at byte {error.start} of the line. Fix it, or give the encoding, "
        "such as --encoding cp1252 (encoding=...)"
    )


class LinesChunk(Chunk):
    """Rows of text, each with its bytes, that their source parses when they are needed.

    A row may have several lines. ``first_line`` is the number of the first line. A source that has parsed the rows already passes
    their ``table`` and ``passthrough_columns``.
    """

    def __init__(
        self,
        source: TextSource,
        lines: list[bytes],
        first_line: int,
        table: Table | None = None,
        passthrough_columns: list[list[Any]] | None = None,
    ) -> None:
        self.lines: list[bytes] = lines
        self._source, self._first_line, self._passthrough_columns = source, first_line, passthrough_columns
        self._has_table, self._table = table is not None, table
        self._line_numbers: list[int] = []  # number of the first line of each row, and of the line after the last row
        self._known_features: list[Hashable] = []  # the features that the model knew when the table was parsed

    def __len__(self) -> int:
        return len(self.lines)

    def read_row(self, i: int) -> Row | BadRow:
        return self._source.parse_row(self.lines[i], self.place(i)) if self._rows is None else self._rows[i]

    def read_table(self, known_features: Sequence[Hashable]) -> Table | None:
        if self._has_table and self._rows is None and not self._source.has_names:  # LIBSVM tables have known features only
            self._has_table = self._known_features == list(known_features)
        return super().read_table(known_features)

    def parse_table(self, known_features: Sequence[Hashable]) -> Table | None:
        self._known_features = list(known_features)
        return self._source.parse_table(self.lines, known_features)

    def place(self, i: int) -> str:
        return f"{self._source.name}, {self._source.line_name} {self.get_line_number(i):,}"

    def get_line_number(self, i: int) -> int:
        """Return the number of the first line of row ``i`` in the whole text. For ``i == len(self)``, it is the number of the
        line after the chunk.
        """
        if not self._line_numbers:
            counts = [line.count(b"\n") + (line[-1:] != b"\n") for line in self.lines]
            self._line_numbers = list(itertools.accumulate(counts, initial=self._first_line))
        return self._line_numbers[i]

    def raw(self, i: int) -> bytes:
        return self.lines[i]

    def passthrough_columns(self, start: int, stop: int) -> list[Sequence[Any]]:
        if self._passthrough_columns is not None:
            return super().passthrough_columns(start, stop)
        if not self._source.passthrough_names:
            return []
        rows = [self._source.read_passthrough(line) for line in self.lines[start:stop]]
        return [list(column) for column in zip(*rows, strict=True)]


class IterableSource(Source):
    """Rows of an iterable of ``(x, y)``, such as a river dataset.

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

    def read(self, max_rows: int) -> Chunk | None:  # noqa: ARG002 - one row, because the iterable may block
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
        """The position of the next row: a dict with the number of rows that were read from the iterable."""
        return {"rows": self._rows}

    def seek(self, position: Position) -> None:
        """Skip the rows of the iterable that come before ``position``, the saved `position` of an earlier source. Raise a
        StreamError if there are fewer rows.
        """
        if self._rows:
            raise RuntimeError(f"{self.name}: rows were read already. To continue at a position, make a new source")
        try:
            (n_rows,) = (validate_count(key, position[key]) for key in {"rows", *position})
        except (KeyError, ValueError):
            raise self._foreign_position_error(position) from None
        for rows in range(n_rows):
            if next(self._iterator, None) is None:
                raise StreamError(f"{self.name} has only {rows:,} rows; the checkpoint has learned {n_rows:,}")
        self._rows = n_rows


_END: Any = object()
