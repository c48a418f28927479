"""Rows of CSV text."""

from __future__ import annotations

import csv
import warnings
from collections.abc import Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import BadRow, RawRows, Row, StreamError
from streamsvm.stream.lines import LONGEST_LINE
from streamsvm.stream.rows import parse_label
from streamsvm.stream.sources import MOST_LINES, TextSource
from streamsvm.stream.tables.reading import TextOptions
from streamsvm.stream.tables.values import number
from streamsvm.stream.text_numbers import CellNumbers, laid_out

#: Those of which lines can be split.
_DELIMITERS = ",;\t|"


class CSVSource(TextSource):
    r"""Rows of a CSV file whose first line names the columns.

    A cell that is a number becomes a float, and an empty cell is a missing feature. Other text stays text, which a learner
    refuses and a `streamsvm.stream.tables.TableEncoder` in front of it encodes. `TextSource` describes how a source resumes.

    Parameters
    ----------
    path
        Path of the file, which may end with ``.gz``; a FIFO; or ``"-"`` for standard input.
    label
        Name of the column of labels or targets. None if the rows have none.
    delimiter
        Character between two cells, such as ``";"``.
    label_needed
        Whether a file without the column ``label`` is an error. If not, its rows have no label.
    **reading
        How columns and the text are read, as in `TextSource`.

    Raises
    ------
    StreamError
        The file cannot be opened or, while you iterate, read; the encoding does not exist; or ``delimiter`` is not one
        character.
    ValueError
        A column is requested in two ways that exclude each other.

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp(), "rows.csv")
    >>> _ = path.write_text("a,b,y\n1,2,true\n3,,false\n")
    >>> with CSVSource(path, label="y") as source:
    ...     list(source)
    [Row(x={'a': 1.0, 'b': 2.0}, y=True), Row(x={'a': 3.0}, y=False)]
    >>> _ = path.write_text("id;zip;since;y\nq1;01234;1970-01-02;1\n")
    >>> with CSVSource(path, label="y", delimiter=";", drop="id", categorical="zip", dates="since") as source:
    ...     list(source)
    [Row(x={'zip': '01234', 'since': 86400.0}, y=1)]
    """

    def __init__(
        self,
        path: str | Path,
        label: str | None = None,
        *,
        delimiter: str = ",",
        label_needed: bool = True,
        **reading: Unpack[TextOptions],
    ) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise StreamError(f"{path}: delimiter must be one character, such as ';', and not {delimiter!r}")
        super().__init__(path, label, **reading)
        self._delimiter, self._label_needed = delimiter, label_needed
        if delimiter != ",":
            self._options["delimiter"] = delimiter

    _table: Any = None
    _names: list[str]
    _at: int  # of the label
    _features: list[str]
    _first_line = _first_offset = 0  # of the row at hand
    _last: dict[Any, Any]  # the row before it
    _has_warned = False
    _numbers: tuple[list[Hashable], CellNumbers] | None = None  # names of features, and what reads rows with these

    def _begin(self) -> None:
        self._last = {}
        self._table = self._reader_of_rows()
        names = self._cells()
        if self._fault:
            raise self._error(self._fault)
        if names is None and not self._reader.stopped:
            raise StreamError(f"{self.name} is empty: its first line must name the columns")
        self._names = [name.strip() for name in names or ()]
        problem = self._reading.problem(self._names, self._label if self._label_needed else None)
        if problem and names is not None:
            mark = next((mark for mark in ";\t|" if len(self._names) == 1 and mark in self._names[0]), None)
            raise self._error(problem if mark is None else f"{problem}. Is {mark!r} the delimiter?")
        if names is not None and (missing := [name for name in self._keep if name not in self._names]):
            raise self._error(f"there is no column {missing[0]!r} to keep. It has: {', '.join(self._names)}")
        self._reader.header = self._reader.offset
        self._at = self._names.index(self._label) if self._label in self._names else -1
        self._features = [name for i, name in enumerate(self._names) if i != self._at]

    @property
    def columns(self) -> list[str]:
        """The names of the columns, in their order; empty before the first row was read."""
        return [] if self._table is None else list(self._names)

    def _reader_of_rows(self) -> Any:
        return csv.reader(self._lines(), strict=True, delimiter=self._delimiter, skipinitialspace=True)

    def _cells(self) -> list[str] | None:
        self._first_line, self._first_offset = self._line + 1, self._reader.offset
        self._most_lines, self._most_bytes = self._line + MOST_LINES, self._first_offset + LONGEST_LINE
        self._is_plain = True
        try:
            return next(self._table, None)
        except csv.Error as error:
            if self._reader.stopped:  # in the middle of a row of several lines
                return None
            self._fault = self._fault or str(error)
            return []

    def _warn_of_rows_within(self, width: int) -> None:
        # Warn once where a cell of several lines has one that looks like a row: perhaps a quote was not closed.
        dates = self._reading.dates  # floats that were text
        numbers = [name for name, value in self._last.items() if isinstance(value, float) and name not in dates]
        if self._has_warned or not numbers:
            return
        end, line = self._reader.offset, self._line
        self._reader.rewind(self._first_offset)
        self._reader.readline()
        try:
            for _ in range(self._first_line, line - 1):
                text = self._reader.readline().decode(self._encoding, errors="replace")
                cells = next(csv.reader([text], delimiter=self._delimiter, skipinitialspace=True), [])
                if len(cells) == width:
                    x = dict(zip(self._names, cells, strict=True))
                    self._has_warned = self._has_warned or all(isinstance(_cell(x[name]), float) for name in numbers)
        except csv.Error:
            pass
        finally:
            self._reader.rewind(end)
        if self._has_warned:
            warnings.warn(
                f"{self.name}, lines {self._first_line:,} to {line:,}: a cell in quotes has a line that looks like a row. If it "
                "is one, a quote before it is not closed",
                stacklevel=2,
            )

    def _bad_cells(self, reason: str) -> BadRow:
        # Of a row of several lines, the first is at fault: perhaps it opened a quote that others only seem to close.
        if self._line > self._first_line and self._cut is None:
            self._reader.rewind(self._first_offset)
            self._reader.readline()
            self._line = self._first_line
        self._table = self._reader_of_rows()
        return self._bad_row(reason)

    def _given(self) -> Iterator[Row | BadRow | None]:
        if self._table is None:
            self._begin()
        names, width = self._names, len(self._names)
        kept = [names.index(name) for name in self._keep if name in names]
        while (cells := self._cells()) is not None:
            if self._line > self._first_line and len(cells) == width:
                self._warn_of_rows_within(width)
            if len(cells) != width or self._fault:
                if cells or self._fault:  # no empty line
                    yield self._bad_cells(_other_width(cells, width))
                elif self._are_many_blank():
                    yield None
                continue
            if kept:
                self._kept = [cells[i] or None for i in kept]
            row = self._row_of(cells, self._is_plain)
            self._last = row.x
            self._row_given()
            yield row

    def _row_of(self, cells: list[str], is_plain: bool) -> Row:
        y: Any = cells.pop(self._at) if self._at >= 0 else ""
        reads = float if is_plain else number  # float takes more for numbers than is plain
        if self._reads:
            y = self._reading.label(y)
            x = self._reading.row(zip(self._features, cells, strict=True), reads)
            return Row(x, None if y is None else parse_label(y))
        try:
            x = dict(zip(self._features, map(reads, cells), strict=True))
        except ValueError:
            x = {name: _cell(cell) for name, cell in zip(self._features, cells, strict=True) if cell.strip()}
        return Row(x, parse_label(y))

    def _rows_at_hand(self, most: int) -> list[bytes]:
        if self._keep or self._reads or self._ended or self._encoding != "utf-8" or self._delimiter not in _DELIMITERS:
            return []
        if self._table is None:
            self._begin()
        lines = self._reader.whole_lines(most)
        text = b"".join(lines)
        # Without quotes, cells are what is between delimiters.
        if b'"' in text or b"\n" in lines:
            return []
        if b"\r" in text and (b"\r\n" in lines or text.count(b"\r") != text.count(b"\r\n")):
            return []
        return lines if max(map(len, lines), default=0) <= csv.field_size_limit() else []

    def _raw_rows(self, lines: list[bytes]) -> RawRows:
        rows = super()._raw_rows(lines)
        self._last = next((row.x for row in reversed(rows) if isinstance(row, Row)), self._last)
        return rows

    def _parse(self, line: str) -> Row | None:
        cells = [cell.lstrip(" ") for cell in line.rstrip("\r\n").split(self._delimiter)]
        if len(cells) != len(self._names):
            raise ValueError(_other_width(cells, len(self._names)))
        return self._row_of(cells, "_" not in line and line.isascii())

    def _numbers_of(self, lines: list[bytes], names: Sequence[Hashable]) -> tuple[np.ndarray, list[Any]] | None:
        if self._numbers is None or self._numbers[0] != names:
            known = {name: column for column, name in enumerate(names)}
            if len(names) != len(self._features) or known.keys() != set(self._features):
                return None
            columns = [known[name] for name in self._features]
            if self._at >= 0:
                columns.insert(self._at, -1)
            self._numbers = list(names), CellNumbers(self._delimiter, columns, parse_label)
        return self._numbers[1].decode(*laid_out(lines))


def _other_width(cells: list[str], width: int) -> str:
    return f"{len(cells)} cells for {width} columns: {shown(','.join(cells))}"


def _cell(text: str) -> float | str:
    try:
        return number(text)
    except ValueError:
        return text
