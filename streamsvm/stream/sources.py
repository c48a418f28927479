"""Sources of rows: what all text shares (plain, gzip, or standard input), and any iterable."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from streamsvm.core.checks import checked_count
from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import START_AFRESH, Position, Source, StreamError
from streamsvm.stream.lines import LONGEST_LINE, ByteStream, LineReader, checked_encoding, hex_digest
from streamsvm.stream.tables.chunk import BadRow, Chunk, Row, RowsChunk
from streamsvm.stream.tables.reading import Reading, ReadingOptions, TextOptions

_MOST_SINGLY = 1024
_MOST_BLANK = 2**16  # bytes of blank lines and comments that are held
MOST_LINES = 1000  # of a row of CSV: where a quote is not closed, so many are read before it is given up


class TableSource(Source):
    """A source whose rows have columns, read with `Reading`; it remembers the label and how columns are read."""

    _begun = False

    def __init__(self, label: str | None, reading: ReadingOptions) -> None:
        self._label = label
        self._reading = Reading(**reading)
        self._options = self._reading.options  # where columns are not read as usual

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
            then, now = (", ".join(f"{k}={v!r}" for k, v in each.items()) or "no options" for each in (table, self._options))
            raise StreamError(
                f"{self.name}: the checkpoint was learned from columns read with {then}, not with {now}. "
                f"Ask for the same, {START_AFRESH}"
            )


class TextSource(TableSource):
    """The base of all sources that read lines of text.

    A row is given as soon as its line has come, those of a file many at a time, and `stop` ends a wait for the next one. A line
    that is malformed, too long or not in the encoding is given as a `BadRow`.

    The position is an offset in bytes of the uncompressed stream, with digests of the stream's first bytes and of those before
    the offset. You can append rows to a file between two runs, but the rows that were learned must not change. A plain file is
    resumed immediately. Gzip and standard input are read from the beginning again, so pipe in the same stream.

    Parameters
    ----------
    path
        Path of the file, which may end with ``.gz``; a FIFO; ``"-"`` for standard input; or a stream of bytes.
    label
        Name of the label. None if the rows have none.
    **reading
        How columns are read: ``features``, ``drop``, ``categorical``, ``dates``, ``missing`` and ``decimal``, as in
        `streamsvm.stream.tables.Reading`. Without any of these, rows are as the format has them (with ``missing="nan"``, NaN is
        missing, too). Also ``encoding``, that of the text, such as ``"latin-1"``; by default ``"utf-8"``. A line must end with
        the byte of a newline.

    Raises
    ------
    StreamError
        The file cannot be opened or, while you iterate, read; or the encoding does not exist.
    ValueError
        A column is requested in two ways that exclude each other.
    """

    def __init__(self, path: str | Path | ByteStream, label: str | None = None, **reading: Unpack[TextOptions]) -> None:
        encoding = reading.pop("encoding", "utf-8")
        super().__init__(label, reading)
        self._encoding = checked_encoding(encoding)
        self._reads = bool(self._options)
        if self._encoding != "utf-8":
            self._options["encoding"] = self._encoding
        self._reader = LineReader(path)
        self.name: str = self._reader.name
        self._line = 0  # number of the line that was read last
        self._rows = self._row_line = 0  # rows given, and number of the line on which the last one ended
        self._most_lines = self._most_bytes = math.inf  # the last line, and the last offset, of a row of several lines
        self._fault = ""  # of the line that was read last
        self._is_plain = True  # whether the lines since it was set have only what Python and we read as the same numbers
        self._cut: bytes | None = None  # the beginning of a row that was too long to hold
        self._all: Iterator[Row | BadRow | None] | None = None  # rows, one after the other
        self._kept: Sequence[Any] = ()  # what is copied of the row that was given last
        self._singly = 1  # rows that are read one after the other before many are tried again
        self._ended = False
        self.waits: bool = self._reader.stream.is_pipe

    def read(self, most: int) -> Chunk | None:
        """Return the next rows that are at hand, as `Source.read`."""
        if most > 1 and not self._ended and (lines := self._lines_at_hand(most)):
            self._singly, self._begun = 1, True
            self._reader.give(lines.lines)
            self._line = self._row_line = self._line + len(lines)
            self._rows += len(lines)
            return lines
        if self._all is None:
            self._all = self._given_rows()
        rows: list[Row | BadRow] = []
        numbers: list[int] = []
        raws: list[bytes] = []
        kept: list[Sequence[Any]] = []
        most, self._singly = min(most, self._singly), min(2 * self._singly, _MOST_SINGLY)
        for row in self._all:
            if row is not None:
                rows.append(row)
                numbers.append(self._line)
                raws.append(self._raw_row)
                kept.append([None] * len(self.kept_names) if isinstance(row, BadRow) else self._kept)
            if row is None or len(rows) >= most or not self._reader.has_line:
                break
        else:
            self._ended = True
            if not rows:
                return None
        return RowsChunk(rows, lambda i: f"{self.name}, line {numbers[i]:,}", raws, self.kept_names, kept)

    def _given_rows(self) -> Iterator[Row | BadRow | None]:
        """Give the rows, and None now and then between them where many lines have none."""
        for line in self._text_lines():
            try:
                row = None if self._fault else self._parse_line(line)
            except ValueError as error:
                yield self._bad_row(str(error))
                continue
            if row is not None:
                if self.kept_names:
                    self._kept = self._copied_columns(line)
                self._row_given()
                yield row
            elif self._fault:
                yield self._bad_row("")
            elif self._are_many_blank():
                yield None

    def _lines_at_hand(self, most: int) -> LinesChunk | None:  # noqa: ARG002
        """Return the next lines that are at hand, if each is known to be one row, or one that cannot be read."""
        return None

    def row_of(self, line: bytes, place: str) -> Row | BadRow:
        """Return the row of a line that is one."""
        try:
            if (row := self._parse_line(line.decode(self._encoding))) is not None:
                return row
            reason = "no row"
        except UnicodeDecodeError as error:
            reason = _not_text(self._encoding, error)
        except ValueError as error:
            reason = str(error)
        return BadRow(place, line, reason)

    def kept_of(self, line: bytes) -> Sequence[Any]:
        """Return what is copied of the row of a line."""
        try:
            return self._copied_columns(line.decode(self._encoding))
        except ValueError:
            return [None] * len(self.kept_names)

    def _copied_columns(self, line: str) -> Sequence[Any]:
        """Return the columns of a line that `keep` has asked for, as they came."""
        raise NotImplementedError

    def _parse_line(self, line: str) -> Row | None:
        """Return the row of a line, None if it has none; ValueError says why it cannot be read."""
        raise NotImplementedError

    @property
    def _line_place(self) -> str:
        return f"{self.name}, line {self._line:,}"

    @property
    def _raw_row(self) -> bytes:
        return self._reader.row if self._cut is None else self._cut

    @property
    def position(self) -> Position:
        """Where the next row is.

        It has the offset, line and rows after the last row, digests of the bytes before it, the label, and how columns are
        read.
        """
        reader = self._reader
        return self._columns_read | {
            "offset": reader.mark,
            "line": self._row_line,
            "rows": self._rows,
            "head": hex_digest(reader.head(reader.mark)),
            "tail": hex_digest(reader.before_mark()),
            "label": self._label,
        }

    def seek(self, position: Position) -> None:
        """Continue at ``position``, as `Source.seek`.

        Another label, columns that are read in another way, and bytes that have changed before it are a StreamError, too.
        """
        self._check_new()
        try:
            offset, line, rows = (checked_count(key, position[key]) for key in ("offset", "line", "rows"))
            head, tail, _ = (position[key] for key in ("head", "tail", "label"))
            if not rows <= line <= offset + 1:
                raise ValueError(f"{rows} rows in {line} lines")
        except (KeyError, ValueError):
            raise self._unlike_error(position) from None
        self._check_columns(position)
        if hex_digest(self._reader.head(offset)) != head:
            raise StreamError(
                f"{self.name} is not the stream of the checkpoint: its first bytes differ. Give that stream, {START_AFRESH}"
            )
        if offset == 0:
            return
        self._begun = True
        self._begin_rows()
        self._reader.skip_to(offset)
        last = self._reader.before_mark()
        if hex_digest(last) != tail:
            raise StreamError(
                f"{self.name} was changed before byte {offset:,}, up to which the checkpoint has learned it. "
                f"Put it back, {START_AFRESH}"
            )
        if not last.endswith(b"\n") and self._reader.readline().strip():  # the last row had no newline then
            raise StreamError(
                f"{self.name}, line {line:,}: the line has grown since it was learned, for it had no newline at its end. "
                f"Put one where the row ends, {START_AFRESH}"
            )
        self._line = self._row_line = line
        self._rows = rows

    def stop(self) -> None:
        """End a wait for rows. The beginning of an incomplete row is left for the next run."""
        self._reader.stream.stop()

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        self._reader.stream.close()

    def _begin_rows(self) -> None:
        """Read the lines before the first row, if the format has any."""

    def _are_many_blank(self) -> bool:
        # After a line without a row. The position stays behind the last row, but is not held through any number of such lines.
        # Empty lines are passed together, but for the last one before the position moves: wherever chunks end, it moves there.
        reader = self._reader
        self._line += reader.skip_blank(reader.mark + _MOST_BLANK - reader.offset)
        if reader.offset - reader.mark <= _MOST_BLANK:
            return False
        self._row_line = self._line
        reader.set_mark()
        return True

    def _row_given(self) -> None:
        self._rows += 1
        self._row_line = self._line
        self._reader.set_mark()

    def _text_lines(self) -> Iterator[str]:
        self._begun = True
        encoding = self._encoding
        while line := self._reader.readline():
            self._line += 1
            if len(line) > LONGEST_LINE:
                self._fault = f"the line is longer than {LONGEST_LINE:,} bytes"
                self._cut = self._reader.skip_line()
                if self._most_lines < math.inf:
                    raise csv.Error(self._fault)
                yield "\n"
                continue
            try:
                text = line.decode("utf-8-sig" if self._line == 1 and encoding == "utf-8" else encoding)
            except UnicodeDecodeError as error:
                self._fault = _not_text(encoding, error)
                text = line.decode(encoding, errors="replace")
            if "_" in text or not text.isascii():
                self._is_plain = False
            if self._line > self._most_lines or self._reader.offset > self._most_bytes:
                raise csv.Error(f"a row has over {MOST_LINES:,} lines or {LONGEST_LINE:,} bytes: is a quote not closed?")
            yield text

    def _bad_row(self, reason: str) -> BadRow:
        reason, self._fault = self._fault or reason, ""
        self._row_given()
        bad = BadRow(self._line_place, self._raw_row, reason)
        self._cut = None
        return bad

    def _error_here(self, message: str) -> StreamError:
        return StreamError(f"{self._line_place}: {message}")


def _not_text(encoding: str, error: UnicodeDecodeError) -> str:
    return (
        f"not {encoding.upper()}: {error.reason} at byte {error.start} of the line. Fix it, or give the encoding, "
        "such as latin-1 or cp1252"
    )


class LinesChunk(Chunk):
    """Lines that are a row each, read by their source one by one as they are asked for."""

    def __init__(self, source: TextSource, lines: list[bytes], first: int) -> None:
        self.lines: list[bytes] = lines
        self._source, self._first = source, first

    def __len__(self) -> int:
        return len(self.lines)

    def row(self, i: int) -> Row | BadRow:
        return self._source.row_of(self.lines[i], self.place(i))

    def place(self, i: int) -> str:
        return f"{self._source.name}, line {self._first + i:,}"

    def raw(self, i: int) -> bytes:
        return self.lines[i]

    def kept(self, first: int, end: int) -> list[Sequence[Any]]:
        if not self._source.kept_names:
            return []
        found = [self._source.kept_of(line) for line in self.lines[first:end]]
        return [list(column) for column in zip(*found, strict=True)]


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
        given = next(self._iterator, _END)
        if given is _END:
            return None
        self._rows += 1
        place = f"{self.name}, row {self._rows:,}"
        try:
            x, y = given
            row: Row | BadRow = Row(x, y)
        except (TypeError, ValueError):
            row = BadRow(place, None, f"a row must be a pair (x, y), not {shown(given)}")
        return RowsChunk([row], lambda i: place, names=self.kept_names)  # noqa: ARG005

    @property
    def position(self) -> Position:
        """Where the next row is: the number of rows that were read."""
        return {"rows": self._rows}

    def seek(self, position: Position) -> None:
        """Skip the rows before ``position``, as `Source.seek`; a StreamError says that there are fewer."""
        if self._rows:
            raise RuntimeError(f"{self.name}: rows were read already. Make the source anew to continue at a position")
        try:
            (wanted,) = (checked_count(key, position[key]) for key in {"rows", *position})
        except (KeyError, ValueError):
            raise self._unlike_error(position) from None
        for rows in range(wanted):
            if next(self._iterator, None) is None:
                raise StreamError(f"{self.name} has only {rows:,} rows; the checkpoint has learned {wanted:,}")
        self._rows = wanted


_END: Any = object()
