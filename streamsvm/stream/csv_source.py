"""Reads rows of CSV text."""

from __future__ import annotations

import contextlib
import csv
import itertools
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

from streamsvm.core.warning import warn
from streamsvm.files.messages import short_repr, suggest_name
from streamsvm.stream.csv_columns import CSVColumnReader, parse_cell
from streamsvm.stream.csv_dialect import are_rows, complete_names, have_column_of_numbers, read_separator
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.file_names import get_suffix
from streamsvm.stream.lines import MAX_LINE_BYTES, ByteStream
from streamsvm.stream.rows import parse_label
from streamsvm.stream.sources import MAX_ROW_LINES, SILENCE_SECONDS, LinesChunk, TextSource, describe_decoding_error
from streamsvm.stream.tables.chunk import BadRow, Chunk, Row
from streamsvm.stream.tables.table_parser import TextParserOptions
from streamsvm.stream.tables.values import parse_number

#: The compiled reader splits lines by these delimiters, and in these encodings.
_COMPILED_DELIMITERS = ",;\t|"
_MAX_TITLE_LINES = 20  # a header after fewer lines, such as a title or comments, is pointed out
_COMPILED_ENCODINGS = ("utf-8", "iso8859-1", "cp1252", "ascii")


class CSVSource(TextSource):
    r"""Rows of a CSV file whose first line names the columns.

    A cell with a number becomes a float, and an empty cell is a missing feature. Other cells stay text, which a learner refuses
    unless a `streamsvm.stream.tables.TableEncoder` in front of it encodes them. `TextSource` describes how a source resumes.

    Parameters
    ----------
    path
        Path of the file, which may end with ``.gz``; a FIFO; ``"-"`` for standard input; or a stream of bytes.
    label
        Name of the column of labels or targets. None if the rows have none.
    delimiter
        Character between two cells, such as ``";"``. None: a tab if the path ends with ``.tsv`` or ``.tab``, a bar for
        ``.psv``, else a comma.
    label_needed
        Whether a file without the column ``label`` is an error. If not, its rows have no label.
    columns_needed
        Whether a file that lacks one of ``columns`` is an error. If not, its rows miss it.
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
        delimiter: str | None = None,
        label_needed: bool = True,
        columns_needed: bool = True,
        **parser_options: Unpack[TextParserOptions],
    ) -> None:
        delimiter = delimiter or {".tsv": "\t", ".tab": "\t", ".psv": "|"}.get(get_suffix(str(path)), ",")
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise StreamError(f"{path}: delimiter must be one character, such as ';', and not {delimiter!r}")
        super().__init__(path, label, **parser_options)
        self._delimiter, self._label_needed, self._columns_needed = delimiter, label_needed, columns_needed
        if delimiter != ",":
            self._options["delimiter"] = delimiter

    _names: Sequence[str] = ()
    _label_index: int  # position of the label among the columns; -1 without a label
    _features: list[str]
    _name_set: frozenset[str]
    _longest_name = b""
    _has_warned = False
    _has_multiline_rows = False  # whether a row with several lines was read
    _column_reader: CSVColumnReader

    def _read_header(self) -> None:
        while (lines := self._next_lines(1)) and not self._has_row(lines[0]):
            self._consume_lines(lines, 1)
        if lines and (delimiter := read_separator(lines[0])):
            self._delimiter = delimiter
            self._consume_lines(lines, 1)
            lines = self._next_lines(1)
        if not lines and not self._reader.stream.stopped:
            raise StreamError(f"{self.name} is empty: its first line must name the columns")
        if lines and len(lines[0]) > MAX_LINE_BYTES:
            raise self._header_error(f"the line is longer than {MAX_LINE_BYTES:,} bytes")
        try:
            header, n, names = self._read_first_row(lines)
            header.decode(self._encoding)
        except UnicodeDecodeError as error:
            raise self._header_error(describe_decoding_error(self._encoding, error)) from None
        except ValueError as error:
            if "new-line character" in str(error):
                text = r"lines end with a carriage return alone. Convert it: tr '\r' '\n' < old.csv > new.csv"
                raise self._header_error(text) from None
            raise self._header_error(str(error)) from None
        if any("\0" in name for name in names):
            raise self._header_error(r"it has NUL bytes. Remove them: tr -d '\0' < old.csv > new.csv")
        row = b"".join(self._reader.peek_lines(1, len(header))[:1]).decode(self._encoding, errors="replace") if n else ""
        cells: list[str] = []
        with contextlib.suppress(ValueError):
            cells = self.split_cells(row)
        names = [name.strip() for name in names]
        self._names = complete_names(names, header.decode(self._encoding), cells, row, self._delimiter)
        label = self._label if self._label_needed else None
        problem = self._parser.find_column_problem(self._names, label, columns_needed=self._columns_needed)
        if problem and n:
            mark = next((mark for mark in ";\t|,^:" if len(self._names) == 1 and mark in self._names[0]), None)
            hint = "" if mark is None else f". Is {mark!r} the delimiter (--delimiter {mark!r})?"
            if 2 * sum(isinstance(parse_cell(name), float) for name in self._names) >= len(self._names) > 1:
                hint = ". Is its first line a row? Put a line with names before it"
            lines = [] if self._label in self._names else self._reader.peek_lines(_MAX_TITLE_LINES)
            for i, line in enumerate(lines, self._line + 1):
                cells = line.decode(self._encoding, "replace").split(self._delimiter)
                if self._label in [cell.strip('" \r\n') for cell in cells]:
                    hint = f". Line {i} names it. Leave out the lines before it: tail -n +{i} < old.csv > new.csv"
            raise self._header_error(problem + hint)
        if n and (missing := [name for name in self.passthrough_names if name not in self._names]):
            columns = f"{', '.join(self._names)}{suggest_name(missing[0], self._names)}"
            raise self._header_error(f"there is no column {missing[0]!r} to pass through. It has: {columns}")
        self._longest_name = max(self._names, key=len, default="").encode(self._encoding, "replace")
        self._label_index = self._names.index(self._label) if self._label in self._names else -1
        self._name_set = frozenset(self._names)
        self._features = [name for i, name in enumerate(self._names) if i != self._label_index]
        self.columns: Sequence[str] = list(self._names)
        self._column_reader = CSVColumnReader(self)
        if n:
            self._consume_lines([header], n)

    def _header_error(self, message: str) -> StreamError:
        return StreamError(f"{self.name}, line {self._line + 1}: {message}")

    def _read_first_row(self, lines: list[bytes]) -> tuple[bytes, int, list[str]]:
        """Parse the row that begins with the first of ``lines``, and read further lines if a quoted cell contains newlines.
        Return the row's bytes, its number of lines, and its cells. The number is 0 if `stop` was called before the row was
        complete. Raise a ValueError if the row is unreadable.
        """
        size = 0

        def decode_lines() -> Iterator[str]:
            nonlocal size
            available, n = lines, 0
            while available:
                for line in available:
                    n, size = n + 1, size + len(line)
                    if n > MAX_ROW_LINES or size > MAX_LINE_BYTES:
                        text = f"a row has over {MAX_ROW_LINES:,} lines or {MAX_LINE_BYTES:,} bytes: is a quote not closed?"
                        raise csv.Error(text)
                    yield line.decode(self._encoding, errors="replace")
                available = self._reader.peek_lines(MAX_ROW_LINES, size, SILENCE_SECONDS if self._rows else None)

        cells, n, problem = self._parse_row(decode_lines())
        if cells is None and self._reader.stream.stopped:
            return b"", 0, []
        if n > 1 and self._quotes_are_text(self._reader.peek_lines(min(n, MAX_ROW_LINES)), self._line + 1, cells):
            return lines[0], 1, []
        if cells is None:
            raise ValueError(problem)
        return self._reader.peek(size), n, cells

    def _quotes_are_text(self, lines: Sequence[bytes], first_line: int, cells: Sequence[str] | None) -> bool:
        """Return whether each of ``lines`` is a row, although a quote joins them to one row with these ``cells``, or to an
        unreadable one (None). Warn once of lines that are or may be rows. ``first_line`` is the number of the first one.
        """
        n, is_tab, delimiter = len(self._names), self._delimiter == "\t", self._delimiter.encode(self._encoding)
        has_n_cells = [line.count(delimiter) + 1 == n for line in lines]
        needs_warning = cells is not None and not self._has_warned and any(has_n_cells[1:-1])
        if (cells is None and not is_tab) or not (all(has_n_cells) or needs_warning):
            return False
        texts = [line.decode(self._encoding, errors="replace").rstrip("\r\n") for line in lines]
        rows = [text.split(self._delimiter) for text in texts]
        may_be_text = are_rows(rows, n, compares_kinds=not is_tab)
        is_text = may_be_text and (is_tab or (len(rows) > 2 and n > 2))
        message = "a quote joins lines that are rows: it is taken as part of the text" if is_text else ""
        if cells is not None and not is_text:
            candidates = [rows] if may_be_text else [[[cell.lstrip() for cell in row], cells] for row in rows[1:-1]]
            if any(are_rows(candidate, n, compares_kinds=True) and have_column_of_numbers(candidate) for candidate in candidates):
                message = "a cell in quotes has a line that looks like a row. If it is one, a quote before it is not closed"
        if message and not self._has_warned:
            self._has_warned = True
            warn(f"{self.name}, lines {first_line:,} to {first_line + len(lines) - 1:,}: {message}")
        return is_text

    def _parse_row(self, texts: Iterable[str]) -> tuple[list[str] | None, int, str]:
        """Parse the row at the beginning of ``texts`` (decoded lines). Return its cells (None if it is unreadable), the number of
        lines that were read, and the reason why it is unreadable.
        """
        reader = csv.reader(texts, strict=True, delimiter=self._delimiter, skipinitialspace=True)
        try:
            return next(reader, []), reader.line_num, ""
        except csv.Error as error:
            return None, reader.line_num, str(error)

    def _has_row(self, line: bytes) -> bool:
        return bool(line.rstrip(b"\r\n"))

    def _make_chunk(self, lines: list[bytes]) -> tuple[Chunk | None, list[bytes], int]:
        chunk, place = self._read_valid_rows(lines), f"{self.name}, line {self._line + 1:,}"
        if not len(chunk):  # more lines must be read for the row, or its first line is invalid
            try:
                row, n, _ = self._read_first_row(lines)
            except ValueError as error:
                return self._make_bad_chunk(BadRow(place, lines[0], str(error))), lines[:1], 1
            if not n:
                return None, [], 0
            chunk = LinesChunk(self, [row], self._line + 1)
            if isinstance(bad := chunk.row(0), BadRow):  # perhaps its first line has an unclosed quote
                return self._make_bad_chunk(BadRow(place, lines[0], bad.reason)), lines[:1], 1
            self._has_multiline_rows = True
        n = chunk.get_line_number(len(chunk)) - chunk.get_line_number(0) if self._has_multiline_rows else len(chunk)
        return chunk, chunk.lines, n

    def _read_valid_rows(self, lines: list[bytes]) -> LinesChunk:
        """Parse ``lines`` into a chunk (rows read together). A row has several lines if a quoted cell contains newlines; the
        chunk ends before a row of several lines that is unreadable, or that ``lines`` end within.
        """
        chunk = self._make_lines_chunk(self._join_lines(lines) if self._has_multiline_rows else lines)
        if not self._has_multiline_rows and len(chunk) < len(lines) and self._has_row(lines[len(chunk)]):
            self._has_multiline_rows = True
            chunk = self._make_lines_chunk(self._join_lines(lines))
        if not self._has_multiline_rows or not any(map(_has_several_lines, chunk.lines)):
            return chunk
        table = chunk.table(())
        for i in range(len(chunk)) if table is None else table.unparsed_rows:
            if _has_several_lines(chunk.lines[i]) and isinstance(chunk.row(i), BadRow):
                return self._make_lines_chunk(chunk.lines[:i])
        return chunk

    def _join_lines(self, lines: list[bytes]) -> list[bytes]:
        """Join the lines that belong to one row, because a quoted cell has newlines. Return one item per row; the list ends
        before a row that is unreadable or incomplete.
        """
        rows: list[bytes] = []
        i = 0
        while i < len(lines):
            row = lines[i]
            if not i or row.count(b'"') % 2:  # if an even number leaves a quote open, the compiled reader stops there
                if not (n := self._count_row_lines(lines, i)):
                    break
                row = b"".join(lines[i : i + n]) if n > 1 else lines[i]
                i += n - 1
            rows.append(row)
            i += 1
        return rows

    def _count_row_lines(self, lines: list[bytes], first: int) -> int:
        """Return the number of lines of the row that begins at ``lines[first]``; 0 if it continues after the last line, or is
        unreadable. If its quotes are part of the text, mark it as a `_TextRow`.
        """
        texts = (lines[i].decode(self._encoding, errors="replace") for i in range(first, min(first + MAX_ROW_LINES, len(lines))))
        cells, n, problem = self._parse_row(texts)
        is_open = "unexpected end" in problem and n < MAX_ROW_LINES
        if n > 1 and not is_open and self._quotes_are_text(lines[first : first + n], self._line + 1 + first, cells):
            lines[first] = _TextRow(lines[first])
            return 1
        if cells is None:
            return int(self.is_complete_row(lines[first]))
        fits = len(cells) == len(self._names) and sum(map(len, lines[first : first + n])) <= MAX_LINE_BYTES
        return n if n == 1 or (fits and not self._is_header(cells)) else 0

    def _make_bad_chunk(self, row: BadRow) -> Chunk:
        """Return a chunk (rows read together) that contains only ``row``, an unreadable row."""
        return Chunk([row], lambda _: row.place, lambda _: row.raw, passthrough_columns=[[None]] * len(self.passthrough_names))

    def _is_header(self, cells: Sequence[str]) -> bool:
        """Return whether the cells of a row repeat the header, the names of all columns. Raise a StreamError if they have another
        order, as those of an appended file.
        """
        if (first := cells[0].strip("\ufeff \t\r\n")) not in self._name_set:
            return False
        names = [first, *(cell.strip() for cell in cells[1:])]
        if names != self._names and len(names) > 1 and sorted(names) == sorted(self._names):
            text = f"a line names the columns in another order, {short_repr(','.join(names))}"
            raise StreamError(f"{self.name}: {text}. Split the file before this line, and give both parts")
        return names == self._names

    def _make_row(self, cells: list[str], is_plain: bool) -> Row:
        """Convert the cells of a CSV line to a row with features and label. ``is_plain`` means that the line is ASCII without
        underscores, so that float() parses its numbers correctly.
        """
        y = self.parse_label_cell(cells.pop(self._label_index) if self._label_index >= 0 else "")
        parse = float if is_plain else parse_number  # float() accepts some texts that are no plain numbers
        if self._uses_parser:
            return Row(self._parser.parse_row(zip(self._features, cells, strict=True), parse), y)
        x: dict[Any, Any]
        try:
            x = dict(zip(self._features, map(parse, cells), strict=True))
        except ValueError:
            x = {name: parse_cell(cell) for name, cell in zip(self._features, cells, strict=True) if cell.strip()}
        return Row(x, y)

    def _make_lines_chunk(self, lines: list[bytes]) -> LinesChunk:
        if len(self._names) == 1:  # a blank line, which is not a row, looks like an empty cell
            lines = list(itertools.takewhile(self._has_row, lines))
        text = b"".join(lines)
        is_usual = self._encoding in _COMPILED_ENCODINGS and self._delimiter in _COMPILED_DELIMITERS
        is_usual = is_usual and text.count(b"\r") == text.count(b"\r\n")
        if is_usual and len(lines) > 1 and max(map(len, lines)) <= csv.field_size_limit():
            return self._column_reader.read(lines, self._line + 1)
        return super()._make_lines_chunk(list(itertools.takewhile(self.is_complete_row, lines)))

    def is_complete_row(self, line: bytes) -> bool:
        """Return whether ``line`` is a complete row (valid or not). It is not if it is blank, or if a quoted cell continues on
        the next line.
        """
        if b'"' not in line or isinstance(line, _TextRow):
            return self._has_row(line)
        _, _, problem = self._parse_row([line.decode(self._encoding, errors="replace")])
        return "unexpected end" not in problem

    def is_special_line(self, line: bytes) -> bool:
        """Return whether a line begins with a byte order mark, as in joined files, or repeats the header, the names of all
        columns; False if it is unreadable.
        """
        try:
            return line.startswith(b"\xef\xbb\xbf") or self._is_header(self.split_cells(line.decode(self._encoding)))
        except ValueError:
            return False

    def parse_label_cell(self, text: str) -> Any:
        """Parse the text of a label's cell to a bool, number or text, as this source's options say; None if it is missing."""
        y = self._parser.parse_label(text) if self._uses_parser else text
        return parse_label(y) if isinstance(y, str) else y

    def split_cells(self, line: str) -> list[str]:
        """Split a CSV line into its cells; raise a ValueError if its quotes are malformed."""
        text = line.removesuffix("\n").removesuffix("\r")
        if '"' not in text and "\r" not in text and len(text) <= csv.field_size_limit():
            return [cell.lstrip(" ") for cell in text.split(self._delimiter)]
        cells, _, problem = self._parse_row([line])
        if cells is None:
            raise ValueError(problem)
        return cells

    def _split_row(self, line: str) -> list[str]:
        """Split a complete row into its cells. If a quote in it is not closed, quotes are part of the text. Raise a ValueError if
        the quotes are malformed.
        """
        try:
            return self.split_cells(line)
        except ValueError as error:
            cells = line.removesuffix("\n").removesuffix("\r").split(self._delimiter)
            if "unexpected end" not in str(error) or len(cells) != len(self._names):
                raise
            return cells

    def _parse_passthrough(self, line: str) -> Sequence[Any]:
        cells = self._split_row(line)
        if len(cells) != len(self._names) or self._is_header(cells):
            return [None] * len(self.passthrough_names)
        return [cells[self._names.index(name)] or None for name in self.passthrough_names]

    def _parse_line(self, line: str) -> Row:
        cells = self._split_row(line)
        if len(cells) != len(self._names):
            raise ValueError(f"{len(cells)} cells for {len(self._names)} columns: {short_repr(','.join(cells))}")
        if self._is_header(cells):
            raise ValueError("the line that names the columns stands here again")
        return self._make_row(cells, "_" not in line and line.isascii())


class _TextRow(bytes):
    """A row of one line, with a quote that is part of the text and would join it to the next line."""


def _has_several_lines(row: bytes) -> bool:
    """Return whether the bytes of a CSV row contain a newline other than the one at the end."""
    return b"\n" in row[:-1]
