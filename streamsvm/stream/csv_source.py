"""Rows of CSV text."""

from __future__ import annotations

import contextlib
import csv
import itertools
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from streamsvm.core.text_rows import read_cells
from streamsvm.files.messages import short_repr
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.lines import MAX_LINE_BYTES, ByteStream
from streamsvm.stream.rows import parse_label
from streamsvm.stream.sources import MAX_ROW_LINES, LinesChunk, TextSource, describe_decoding_error
from streamsvm.stream.tables.chunk import BadRow, CachedTextParser, Chunk, Row, Table, UnparsedRows, Values, concatenate_rows
from streamsvm.stream.tables.column_kinds import DATE, DROP
from streamsvm.stream.tables.table_parser import TextParserOptions
from streamsvm.stream.tables.values import parse_number

#: Delimiters by which lines can be split, and encodings in which every byte is a letter or which can be cut anywhere.
_DELIMITERS = ",;\t|"
_ENCODINGS = ("utf-8", "iso8859-1", "cp1252", "ascii")
_FEW_TEXTS = 8  # in a column of numbers: from this number on, it becomes a column of texts


class CSVSource(TextSource):
    r"""Rows of a CSV file whose first line names the columns.

    A cell that is a number becomes a float, and an empty cell is a missing feature. Other text stays text, which a learner
    refuses and a `streamsvm.stream.tables.TableEncoder` in front of it encodes. `TextSource` describes how a source resumes.

    Parameters
    ----------
    path
        Path of the file, which may end with ``.gz``; a FIFO; ``"-"`` for standard input; or a stream of bytes.
    label
        Name of the column of labels or targets. None if the rows have none.
    delimiter
        Character between two cells, such as ``";"``.
    label_needed
        Whether a file without the column ``label`` is an error. If not, its rows have no label.
    **parser_options
        How columns and the text are read, as in `TextSource`.

    Raises
    ------
    StreamError
        The file cannot be opened or, while you iterate, read; the encoding does not exist; or ``delimiter`` is not one
        character.
    ValueError
        A parameter of ``parser_options`` is invalid.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.csv")
    >>> _ = path.write_text("a,b,y\n1,2,true\n3,,false\n")
    >>> with CSVSource(path, label="y") as source:
    ...     list(source)
    [Row(x={'a': 1.0, 'b': 2.0}, y=True), Row(x={'a': 3.0}, y=False)]
    >>> _ = path.write_text("id;zip;since;y\nq1;01234;1970-01-02;1\n")
    >>> with CSVSource(path, label="y", delimiter=";", columns="id:drop,zip:category,since:date") as source:
    ...     list(source)
    [Row(x={'zip': '01234', 'since': 86400.0}, y=1)]
    """

    def __init__(
        self,
        path: str | Path | ByteStream,
        label: str | None = None,
        *,
        delimiter: str = ",",
        label_needed: bool = True,
        **parser_options: Unpack[TextParserOptions],
    ) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise StreamError(f"{path}: delimiter must be one character, such as ';', and not {delimiter!r}")
        super().__init__(path, label, **parser_options)
        self._delimiter, self._label_needed = delimiter, label_needed
        if delimiter != ",":
            self._options["delimiter"] = delimiter

    _names: list[str]
    _at: int  # of the label
    _features: list[str]
    _longest_name = b""
    _before: LinesChunk | None = None  # the chunk before the current one
    _has_warned = False
    _has_long_rows = False  # some have had several lines
    _cells_of: _Cells

    def _begin_rows(self) -> None:
        lines = self._next_lines(1)
        if not lines and not self._reader.stream.stopped:
            raise StreamError(f"{self.name} is empty: its first line must name the columns")
        if lines and len(lines[0]) > MAX_LINE_BYTES:
            raise self._header_error(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            header, n, names = self._first_row(lines)
            header.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise self._header_error(describe_decoding_error(self._encoding, error)) from None
        except ValueError as error:
            if "new-line character" in str(error):
                text = r"lines end with a carriage return alone. Convert it: tr '\r' '\n' < old.csv > new.csv"
                raise self._header_error(text) from None
            raise self._header_error(str(error)) from None
        self._names = [name.strip() for name in names]
        if any("\0" in name for name in self._names):
            raise self._header_error(r"it has NUL bytes. Remove them: tr -d '\0' < old.csv > new.csv")
        problem = self._parser.find_column_problem(self._names, self._label if self._label_needed else None)
        if problem and n:
            mark = next((mark for mark in ";\t|" if len(self._names) == 1 and mark in self._names[0]), None)
            hint = "" if mark is None else f". Is {mark!r} the delimiter?"
            if 2 * sum(isinstance(_cell_value(name), float) for name in self._names) >= len(self._names) > 1:
                hint = ". Is its first line a row? Put a line with names before it"
            raise self._header_error(problem + hint)
        if n and (missing := [name for name in self.passthrough_names if name not in self._names]):
            raise self._header_error(f"there is no column {missing[0]!r} to pass through. It has: {', '.join(self._names)}")
        self._longest_name = max(self._names, key=len, default="").encode(self._encoding, "replace")
        self._at = self._names.index(self._label) if self._label in self._names else -1
        self._features = [name for i, name in enumerate(self._names) if i != self._at]
        self.columns: Sequence[str] = list(self._names)
        self._cells_of = _Cells(self)
        if n:
            self._consume([header], n)

    def _header_error(self, message: str) -> StreamError:
        return StreamError(f"{self.name}, line 1: {message}")

    def _first_row(self, lines: list[bytes]) -> tuple[bytes, int, list[str]]:
        """Return the bytes of the row that begins with the first line, its number of lines, and its cells; 0 if stopped in it.

        A ValueError says why it cannot be read.
        """
        size = n = 0

        def texts() -> Iterator[str]:
            nonlocal size, n
            available = lines
            while available:
                for line in available:
                    n, size = n + 1, size + len(line)
                    if n > MAX_ROW_LINES or size > MAX_LINE_BYTES:
                        raise csv.Error(
                            f"a row has over {MAX_ROW_LINES:,} lines or {MAX_LINE_BYTES:,} bytes: is a quote not closed?"
                        )
                    yield line.decode(self._encoding, errors="replace")
                available = self._reader.lines(MAX_ROW_LINES, size)

        try:
            cells: list[str] = next(self._reader_of(texts()), [])
        except csv.Error as error:
            if self._reader.stream.stopped:
                return b"", 0, []
            raise ValueError(str(error)) from None
        return self._reader.peek(size), n, cells

    def _reader_of(self, texts: Iterable[str]) -> Any:
        return csv.reader(texts, strict=True, delimiter=self._delimiter, skipinitialspace=True)

    def _has_row(self, line: bytes) -> bool:
        return bool(line.rstrip(b"\r\n"))

    def _chunk_of(self, lines: list[bytes]) -> tuple[Chunk | None, list[bytes], int]:
        chunk, place = self._good_rows(lines), f"{self.name}, line {self._line + 1:,}"
        if not len(chunk):  # the row has several lines, which are not all available, or its first line is at fault
            try:
                row, n, _ = self._first_row(lines)
            except ValueError as error:
                return self._bad_chunk(BadRow(place, lines[0], str(error))), lines[:1], 1
            if not n:
                return None, [], 0
            chunk = LinesChunk(self, [row], self._line + 1)
            if isinstance(bad := chunk.row(0), BadRow):  # perhaps its first line opened a quote by mistake
                return self._bad_chunk(BadRow(place, lines[0], bad.reason)), lines[:1], 1
            self._has_long_rows = True
        n = chunk.line_of(len(chunk)) - chunk.line_of(0) if self._has_long_rows else len(chunk)
        if n > len(chunk) and not self._has_warned:
            self._warn_of_rows_within(chunk)
        self._before = chunk
        return chunk, chunk.lines, n

    def _good_rows(self, lines: list[bytes]) -> LinesChunk:
        """Return the rows that lines begin with, up to one of several lines that are not all there, or that cannot be read."""
        chunk = self._lines_chunk(self._joined(lines) if self._has_long_rows else lines)
        if not self._has_long_rows and len(chunk) < len(lines) and self._has_row(lines[len(chunk)]):
            self._has_long_rows = True
            chunk = self._lines_chunk(self._joined(lines))
        if not self._has_long_rows or not any(map(_has_lines, chunk.lines)):
            return chunk
        table = chunk.table(())
        for i in range(len(chunk)) if table is None else table.unparsed_rows:
            if _has_lines(chunk.lines[i]) and isinstance(chunk.row(i), BadRow):
                return self._lines_chunk(chunk.lines[:i])
        return chunk

    def _joined(self, lines: list[bytes]) -> list[bytes]:
        """Return rows that may have several lines, up to one whose lines are not all there or are no row."""
        rows: list[bytes] = []
        i = 0
        while i < len(lines):
            row = lines[i]
            if not i or row.count(b'"') % 2:  # a quote may be left open without that, which only ends the rows before it
                if not (n := self._n_lines_of_row(lines, i)):
                    break
                row = b"".join(lines[i : i + n])
                i += n - 1
            rows.append(row)
            i += 1
        return rows

    def _n_lines_of_row(self, lines: list[bytes], first: int) -> int:
        """Return the number of lines of a row; 0 if some are missing, or if several are no row."""
        texts = (lines[i].decode(self._encoding, errors="replace") for i in range(first, min(first + MAX_ROW_LINES, len(lines))))
        reader = self._reader_of(texts)
        try:
            cells: list[str] = next(reader, [])
        except csv.Error:
            return int(self.is_row(lines[first]))
        n: int = reader.line_num
        fits = len(cells) == len(self._names) and sum(map(len, lines[first : first + n])) <= MAX_LINE_BYTES
        return n if n == 1 or (fits and not self._is_header(cells)) else 0

    def _bad_chunk(self, row: BadRow) -> Chunk:
        return Chunk([row], lambda _: row.place, lambda _: row.raw, passthrough_columns=[[None]] * len(self.passthrough_names))

    def _warn_of_rows_within(self, chunk: LinesChunk) -> None:
        """Warn once where a cell of several lines has one that looks like a row: perhaps a quote was not closed."""
        for i, row in enumerate(chunk.lines):
            of_width = []
            for line in row.removesuffix(b"\n").split(b"\n")[1:-1] if _has_lines(row) else ():
                with contextlib.suppress(ValueError):
                    cells = self.cells_of(line.decode(self._encoding, errors="replace"))
                    if len(cells) == len(self._names):
                        of_width.append(cells)
            numbers = self._numbers_before(chunk, i) if of_width else []
            if numbers and any(all(isinstance(_cell_value(cells[at]), float) for at in numbers) for cells in of_width):
                self._has_warned = True
                warnings.warn(
                    f"{self.name}, lines {chunk.line_of(i):,} to {chunk.line_of(i + 1) - 1:,}: a cell in quotes has a line that "
                    "looks like a row. If it is one, a quote before it is not closed",
                    stacklevel=2,
                )
                return

    def _numbers_before(self, chunk: LinesChunk, i: int) -> list[int]:
        """Return which columns have numbers in the last row that can be read before row number ``i`` of a chunk."""
        before = self._before
        earlier = () if before is None else map(before.read_row, reversed(range(len(before))))
        rows = itertools.chain(map(chunk.read_row, reversed(range(i))), earlier)
        x: dict[Any, Any] = next((row.x for row in rows if isinstance(row, Row)), {})
        return [
            self._names.index(name)
            for name, value in x.items()
            if isinstance(value, float) and self._parser.get_kind(name) != DATE  # which were text
        ]

    def _is_header(self, cells: Sequence[str]) -> bool:
        return cells[0].strip() == self._names[0] and [cell.strip() for cell in cells] == self._names

    def _problem_with(self, cells: Sequence[str]) -> str:
        if len(cells) == len(self._names):
            return "the line that names the columns stands here again"
        return f"{len(cells)} cells for {len(self._names)} columns: {short_repr(','.join(cells))}"

    def _row_of(self, cells: list[str], is_plain: bool) -> Row:
        y = self.label_of(cells.pop(self._at) if self._at >= 0 else "")
        reads = float if is_plain else parse_number  # float takes more for numbers than is plain
        if self._reads:
            return Row(self._parser.parse_row(zip(self._features, cells, strict=True), reads), y)
        x: dict[Any, Any]
        try:
            x = dict(zip(self._features, map(reads, cells), strict=True))
        except ValueError:
            x = {name: _cell_value(cell) for name, cell in zip(self._features, cells, strict=True) if cell.strip()}
        return Row(x, y)

    def _lines_chunk(self, lines: list[bytes]) -> LinesChunk:
        if len(self._names) == 1:  # an empty line, which is no row, looks like an empty cell
            lines = list(itertools.takewhile(self._has_row, lines))
        text = b"".join(lines)
        are_usual = self._encoding in _ENCODINGS and self._delimiter in _DELIMITERS and text.count(b"\r") == text.count(b"\r\n")
        if are_usual and len(lines) > 1 and max(map(len, lines)) <= csv.field_size_limit():
            return self._cells_of.read(lines, self._line + 1)
        return super()._lines_chunk(list(itertools.takewhile(self.is_row, lines)))

    def is_row(self, line: bytes) -> bool:
        """Whether a line is a row by itself, though it may be one that cannot be read."""
        if b'"' not in line:
            return self._has_row(line)
        try:
            self.cells_of(line.decode(self._encoding, errors="replace"))
        except ValueError as error:
            return "unexpected end" not in str(error)
        return True

    def names_columns(self, line: bytes) -> bool:
        """Whether a line is one that names the columns."""
        try:
            return self._is_header(self.cells_of(line.decode(self._encoding)))
        except ValueError:
            return False

    def label_of(self, text: str) -> Any:
        """Return the label of a cell."""
        y = self._parser.parse_label(text) if self._reads else text
        return None if y is None else parse_label(y)

    def cells_of(self, line: str) -> list[str]:
        """Return the cells of a line, a row by itself."""
        text = line.removesuffix("\n").removesuffix("\r")
        if '"' not in text and "\r" not in text and len(text) <= csv.field_size_limit():
            return [cell.lstrip(" ") for cell in text.split(self._delimiter)]
        try:
            return next(self._reader_of([line]), [])
        except csv.Error as error:
            raise ValueError(str(error)) from None

    def _parse_passthrough(self, line: str) -> Sequence[Any]:
        cells = self.cells_of(line)
        return (
            [cells[self._names.index(name)] or None for name in self.passthrough_names]
            if len(cells) == len(self._names) and not self._is_header(cells)
            else [None] * len(self.passthrough_names)
        )

    def _parse_line(self, line: str) -> Row:
        cells = self.cells_of(line)
        if len(cells) != len(self._names) or self._is_header(cells):
            raise ValueError(self._problem_with(cells))
        return self._row_of(cells, "_" not in line and line.isascii())


class _Cells:
    """Reads lines of CSV text to columns.

    A column holds numbers until some of its cells are texts; then these are read one by one, each once as long as it is
    remembered.
    """

    def __init__(self, source: CSVSource) -> None:
        self._source, parser = source, source._parser
        self._label = CachedTextParser(lambda text: source.label_of(self._text_of(text)))
        self._texts: dict[int, CachedTextParser] = {}  # by the place of a column
        self._dropped = {i for i, name in enumerate(source._names) if i != source._at and parser.get_kind(name) == DROP}
        for i, name in enumerate(source._names):
            if i != source._at and i not in self._dropped and not parser.has_plain_numbers(name):
                self._add_text(i)
        self._plan_columns()

    def _add_text(self, place: int) -> None:
        source = self._source
        read = source._parser.get_value_parser(source._names[place]) if source._reads else _cell_or_none
        self._texts[place] = CachedTextParser(lambda text: read(self._text_of(text)))

    def _text_of(self, cell: str | bytes) -> str:
        return cell if isinstance(cell, str) else cell.decode(self._source._encoding)

    def _plan_columns(self) -> None:
        source, n = self._source, len(self._source._names)
        self._columns, self._places = np.full(n, -1), np.full(n, -1)
        kept = {source._names.index(name) for name in source.passthrough_names}
        numbers = [i for i in range(n) if i not in self._dropped and i not in self._texts and i != source._at]
        texts = sorted({*self._texts, *kept, *([source._at] if source._at >= 0 else [])})
        self._columns[numbers], self._places[texts] = np.arange(len(numbers)), np.arange(len(texts))
        self._n_numbers, self._n_texts = len(numbers), len(texts)
        self._features = [i for i in range(n) if i not in self._dropped and i != source._at]

    def read(self, lines: list[bytes], first: int) -> LinesChunk:
        """Return the lines up to one that is not a row by itself. ``first`` is the number of the first line."""
        source, n, (data, begins, ends) = self._source, len(lines), concatenate_rows(lines)
        may_be_names = source._longest_name in data
        again = {i for i, line in enumerate(lines) if source.names_columns(line)} if may_be_names else set()
        X, places = np.empty((n, self._n_numbers)), np.zeros((n, self._n_texts, 2), np.int64)
        rows, bits = np.frombuffer(data, np.uint8), X.view(np.uint64)
        odd, failed, i = UnparsedRows(n), Counter[int](), 0
        while True:
            i, cell = read_cells(rows, begins, ends, i, ord(source._delimiter), self._columns, self._places, X, bits, places)
            if i == n:
                break
            if cell >= 0 and self._columns[cell] >= 0 and cell not in self._texts:
                failed[int(cell)] += 1
                if failed[int(cell)] >= _FEW_TEXTS:
                    self._add_text(int(cell))
                    self._plan_columns()
                    return self.read(lines, first)
            if not source.is_row(lines[i]):  # the end of one, or its beginning, or none
                n = i
                break
            X[i], places[i] = np.nan, 0
            odd.add(i)
            i += 1
        for i in again:
            if i < n:
                odd.add(i)
        return self._chunk_of(lines[:n], first, data, X[:n], places[:n], odd)

    def _chunk_of(
        self, lines: list[bytes], first: int, data: bytes, X: np.ndarray, places: np.ndarray, odd: UnparsedRows
    ) -> LinesChunk:
        source = self._source
        try:
            text: Any = data.decode(source._encoding)
        except UnicodeDecodeError:
            text = data
            for i, line in enumerate(lines):
                try:
                    line.decode(source._encoding)
                except UnicodeDecodeError:
                    odd.add(i)
                    places[i] = 0
        text = text if len(text) == len(data) else data  # where a letter is a byte, texts are cut out of the text

        def texts_of(cell: int) -> list[Any]:
            return list(map(text.__getitem__, map(slice, *places[:, self._places[cell]].T.tolist())))

        columns: list[Values] = []
        for cell in self._features:
            name = source._names[cell]
            if (
                cell in self._texts
                and (dates := source._parser.parse_iso_dates(name, map(self._text_of, texts_of(cell)))) is not None
            ):
                columns.append(dates)
            elif cell in self._texts:
                columns.append(self._texts[cell].parse_texts(texts_of(cell), odd))
            else:
                numbers = X[:, self._columns[cell]]
                columns.append(source._parser.parse_column(source._names[cell], numbers) if source._reads else numbers)
        y = self._label.parse_texts(texts_of(source._at), odd) if source._at >= 0 else None
        names = tuple(source._names[cell] for cell in self._features)
        kept = [
            [self._text_of(text) or None for text in texts_of(source._names.index(name))] for name in source.passthrough_names
        ]
        for i in odd.rows if kept else ():
            for values, value in zip(kept, source.read_passthrough(lines[i]), strict=True):
                values[i] = value
        return LinesChunk(source, lines, first, Table(names, columns, y, None, odd.rows), kept)


def _has_lines(row: bytes) -> bool:
    return b"\n" in row[:-1]


def _cell_value(text: str) -> float | str:
    try:
        return parse_number(text)
    except ValueError:
        return text


def _cell_or_none(text: str) -> float | str | None:
    if not text.strip():
        return None
    value = _cell_value(text)
    if value != value:
        raise ValueError("NaN is no missing value here")
    return value
