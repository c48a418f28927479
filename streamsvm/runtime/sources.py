"""Sources of rows: CSV, JSON lines and LIBSVM text (plain, gzip, or standard input), and any iterable."""

from __future__ import annotations

import csv
import functools
import json
import math
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from streamsvm.runtime.endpoints import START_AFRESH, BadRow, Position, Row, StreamError
from streamsvm.runtime.lines import LONGEST_LINE, LineReader, checked_encoding, digest
from streamsvm.tables.reading import Dates, Names, Reading

__all__ = [
    "FORMATS",
    "CSVSource",
    "IterableSource",
    "JSONLinesSource",
    "LIBSVMSource",
    "TextSource",
    "parse_label",
    "parse_libsvm_label",
]

_MAX_NUMBER_LENGTH = 19  # a shorter number fits an int of 64 bits
_MOST_LINES = 1000  # of a row of CSV: where a quote is not closed, so many are read before it is given up
_LARGEST_WHOLE = 2**53  # larger floats do not tell whole numbers apart


@functools.lru_cache(maxsize=1024)
def parse_label(text: str) -> Any:
    """Parse a label: True, False, None if the text is empty, a number if it prints as that text, else the text.

    Numbers that would print otherwise (``007``, ``1_000``, more digits than an int of 64 bits has) are names that look like
    numbers, and stay text.

    Examples
    --------
    >>> [parse_label(text) for text in ("true", "-1", "1.0", "007", "spam", "")]
    [True, -1, 1.0, '007', 'spam', None]
    """
    text = text.strip()
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if not text:
        return None
    if lower == "nan":  # a missing value of a table and no name: learners refuse it
        return math.nan
    for kind in (int, float):
        try:
            if len(text) < _MAX_NUMBER_LENGTH and str(number := kind(text)) == text and math.isfinite(number):
                return number
        except ValueError:
            pass
    return text


def parse_libsvm_label(text: str) -> Any:
    """Parse the label of LIBSVM text: a number however it is written (+1, 1 and 1.0 are equal), else as `parse_label`."""
    try:
        number = float(text)
    except ValueError:
        return parse_label(text)
    return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number


def _listed(options: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items()) or "no options"


def _shown(line: object) -> str:
    text = repr(line)
    return text if len(text) <= 80 else f"{text[:77]}..."


class TextSource:
    """A source over lines of text.

    A row is given as soon as its line has come, and `stop` ends a wait for the next one. The position is an offset in bytes of
    the uncompressed stream, with digests of the stream's first bytes and of those before the offset: rows may be appended to a
    file between two runs, but the rows that were learned may not change. A plain file is resumed at once; gzip and standard
    input are read forward (so the same stream must be piped in again).

    A line that is malformed, too long or no text of the encoding is given as a `BadRow`.

    Parameters
    ----------
    path
        A file, ``.gz`` for gzip; a FIFO; ``"-"`` for standard input.
    label
        Name of the label; None if the rows have none.
    features, drop, categorical, dates, missing
        How columns are read, as in `streamsvm.tables.Reading`: which are features, which hold names or dates, and which texts
        mean that there is no value. Without any of them, rows are as the format has them.
    encoding
        Of the text, such as ``"latin-1"``; a line must end with the byte of a newline in it.

    Raises
    ------
    StreamError
        The file cannot be opened, or, while iterating, read; or there is no such encoding.
    ValueError
        A column is asked for in two ways that exclude each other.
    """

    def __init__(
        self,
        path: str | Path,
        label: str | None = None,
        *,
        features: Names | None = None,
        drop: Names = (),
        categorical: Names = (),
        dates: Dates = (),
        missing: Names = (),
        encoding: str = "utf-8",
    ) -> None:
        reading = Reading(features=features, drop=drop, categorical=categorical, dates=dates, missing=missing)
        self._encoding = checked_encoding(encoding)
        # How the text is read, where it is not as usual.
        self._options = reading.options | ({} if self._encoding == "utf-8" else {"encoding": self._encoding})
        self._reading = reading if reading.options else None
        self._reader = LineReader(path)
        self.name = self._reader.name
        self._label = label
        self._line = 0  # number of the line that was read last
        self._rows = self._row_line = 0  # rows given, and number of the line on which the last one ended
        self._begun = False
        self._most_lines = math.inf  # the last line of a row of several lines
        self._fault = ""  # of the line that was read last
        self._cut: bytes | None = None  # the beginning of a row that was too long to hold

    def __iter__(self) -> Iterator[Row | BadRow]:
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The stream and the line that was read last."""
        return f"{self.name}, line {self._line:,}"

    @property
    def raw(self) -> bytes:
        """The bytes of the row that was given last."""
        return self._reader.row if self._cut is None else self._cut

    @property
    def position(self) -> Position:
        """Offset, line and rows after the last row, digests of the bytes before it, the label, and how columns are read."""
        reader = self._reader
        options = {"table": self._options} if self._options else {}
        return options | {
            "offset": reader.mark,
            "line": self._row_line,
            "rows": self._rows,
            "head": digest(reader.head(reader.mark)),
            "tail": digest(reader.before_mark()),
            "label": self._label,
        }

    def seek(self, position: Position) -> None:
        """Continue at ``position``.

        Raises
        ------
        StreamError
            The position is of another kind of stream or another label, or the stream is not the one that was read up to there.
        RuntimeError
            Rows were read already.
        """
        if self._begun:
            raise RuntimeError(f"{self.name}: rows were read already. Open the source anew to continue at a position")
        try:
            offset, line, rows = (int(position[key]) for key in ("offset", "line", "rows"))
            head, tail, label = (position[key] for key in ("head", "tail", "label"))
        except (KeyError, TypeError, ValueError):
            raise StreamError(f"{self.name}: the checkpoint is of another kind of stream ({_shown(dict(position))})") from None
        if label != self._label:
            raise StreamError(
                f"{self.name}: the checkpoint was learned with the label {label!r}, not {self._label!r}. "
                f"Ask for the same, {START_AFRESH}"
            )
        if (table := position.get("table", {})) != self._options:
            raise StreamError(
                f"{self.name}: the checkpoint was learned from columns read with {_listed(table)}, not with "
                f"{_listed(self._options)}. Ask for the same, {START_AFRESH}"
            )
        if digest(self._reader.head(offset)) != head:
            raise StreamError(
                f"{self.name} is not the stream of the checkpoint: its first bytes differ. Give that stream, {START_AFRESH}"
            )
        if offset == 0:
            return
        self._begun = True
        self._begin()
        self._reader.skip_to(offset)
        last = self._reader.before_mark()
        if digest(last) != tail:
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
        """End a wait for rows; the beginning of an incomplete row is left for the next run."""
        self._reader.stop()

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self) -> None:
        # Read the lines before the first row, if the format has any.
        pass

    def _row_given(self) -> None:
        self._rows += 1
        self._row_line = self._line
        self._reader.set_mark()

    def _lines(self) -> Iterator[str]:
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
                self._fault = (
                    f"not {encoding.upper()}: {error.reason} at byte {error.start} of the line. Mend it, or name the encoding, "
                    "such as latin-1 or cp1252"
                )
                text = line.decode(encoding, errors="replace")
            if self._line > self._most_lines:
                raise csv.Error(f"a quote is not closed within {_MOST_LINES:,} lines")
            yield text

    def _bad_row(self, reason: str) -> BadRow:
        reason, self._fault = self._fault or reason, ""
        self._row_given()
        bad = BadRow(self.place, self.raw, reason)
        self._cut = None
        return bad

    def _error(self, message: str) -> StreamError:
        return StreamError(f"{self.place}: {message}")


class CSVSource(TextSource):
    r"""Rows of a CSV file whose first line names the columns.

    Cells become floats; an empty cell is a missing feature; other text stays text, for a learner to refuse or a pipeline to
    encode (`streamsvm.tables.TableEncoder`). See `TextSource`.

    Parameters
    ----------
    path, label, **reading
        As in `TextSource`.
    delimiter
        The character between two cells.

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

    def __init__(self, path: str | Path, label: str | None = None, *, delimiter: str = ",", **reading: Any) -> None:
        if len(delimiter) != 1 or delimiter in '"\r\n':
            raise StreamError(f"{path}: delimiter must be one character, such as ';', and not {delimiter!r}")
        super().__init__(path, label, **reading)
        self._delimiter = delimiter
        if delimiter != ",":
            self._options["delimiter"] = delimiter

    _table: Any = None
    _first_line = _first_offset = 0  # of the row at hand
    _last: dict[Any, Any]  # the row before it

    def _begin(self) -> None:
        self._last = {}
        self._table = self._reader_of_rows()
        names = self._cells()
        if self._fault:
            raise self._error(self._fault)
        if names is not None:
            names = [name.strip() for name in names]
        if names is None:
            if not self._reader.stopped:
                raise StreamError(f"{self.name} is empty: its first line must name the columns")
            names = []
        elif len(set(names)) < len(names):
            raise self._error("two columns have one name")
        wanted = ([] if self._label is None else [self._label]) + ([] if self._reading is None else self._reading.named)
        if names and (unknown := [name for name in wanted if name not in names]):
            what = f"{unknown[0]!r} for the label" if unknown[0] == self._label else repr(unknown[0])
            mark = next((mark for mark in ";\t|" if len(names) == 1 and mark in names[0]), None)
            hint = "" if mark is None else f". Is {mark!r} the delimiter?"
            raise StreamError(f"{self.name} has no column {what}. It has: {', '.join(names)}{hint}")
        self._names: list[str] = names

        self._reader.header = self._reader.offset

    @property
    def columns(self) -> list[str]:
        """The columns of the table, in their order; empty before the first row was read."""
        return [] if self._table is None else list(self._names)

    def _reader_of_rows(self) -> Any:
        return csv.reader(self._lines(), strict=True, delimiter=self._delimiter, skipinitialspace=True)

    def _cells(self) -> list[str] | None:
        self._first_line, self._first_offset = self._line + 1, self._reader.offset
        self._most_lines = self._line + _MOST_LINES
        try:
            return next(self._table, None)
        except csv.Error as error:
            if self._reader.stopped:  # in the middle of a row of several lines
                return None
            self._fault = self._fault or str(error)
            return []

    def _swallowed(self, width: int) -> bool:
        # Whether a row of several lines has a line that would be a row like the last one: then a quote was not closed.
        dates = [] if self._reading is None else self._reading.dates  # floats that were text
        numbers = [name for name, value in self._last.items() if isinstance(value, float) and name not in dates]
        end, line = self._reader.offset, self._line
        self._reader.rewind(self._first_offset)
        self._reader.readline()
        try:
            for _ in range(self._first_line, line - 1):
                text = self._reader.readline().decode(self._encoding, errors="replace")
                cells = next(csv.reader([text], delimiter=self._delimiter, skipinitialspace=True), [])
                if numbers and len(cells) == width:
                    x = dict(zip(self._names, cells, strict=True))
                    if all(isinstance(_cell(x[name]), float) for name in numbers):
                        return True
        except csv.Error:
            pass
        finally:
            self._reader.rewind(end)
        return False

    def _bad_cells(self, reason: str) -> BadRow:
        # Of a row of several lines, the first is at fault: perhaps it opened a quote that others only seem to close.
        if self._line > self._first_line and self._cut is None:
            self._reader.rewind(self._first_offset)
            self._reader.readline()
            self._line = self._first_line
        self._table = self._reader_of_rows()
        return self._bad_row(reason)

    def __iter__(self) -> Iterator[Row | BadRow]:
        if self._table is None:
            self._begin()
        names, width, reading = self._names, len(self._names), self._reading
        at = names.index(self._label) if self._label in names else -1
        features = [name for i, name in enumerate(names) if i != at]
        while (cells := self._cells()) is not None:
            if self._line > self._first_line and len(cells) == width and self._swallowed(width):
                self._fault = self._fault or "a quote is not closed: the lines after it are rows"
            if len(cells) != width or self._fault:
                if cells or self._fault:  # no empty line
                    yield self._bad_cells(f"{len(cells)} cells for {width} columns: {_shown(','.join(cells))}")
                continue
            y = parse_label(cells.pop(at)) if at >= 0 else None
            if reading is not None:
                self._last = reading.row(zip(features, cells, strict=True))
                self._row_given()
                yield Row(self._last, y)
                continue
            try:
                x: dict[Hashable, Any] = dict(zip(features, map(float, cells), strict=True))
            except ValueError:
                x = {name: _cell(cell) for name, cell in zip(features, cells, strict=True) if cell.strip()}
            self._row_given()
            self._last = x
            yield Row(x, y)


def _cell(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text


class JSONLinesSource(TextSource):
    """Rows that are one JSON object a line. A null is a missing feature. See `TextSource`."""

    def __iter__(self) -> Iterator[Row | BadRow]:
        for line in self._lines():
            if self._fault:
                yield self._bad_row("")
                continue
            if line.isspace():
                continue
            try:
                x = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield self._bad_row(f"not JSON ({error}): {_shown(line)}")
                continue
            if not isinstance(x, dict):
                yield self._bad_row(f"not a JSON object: {_shown(line)}")
                continue
            y = x.pop(self._label, None) if self._label is not None else None
            if self._reading is not None:
                x = self._reading.row(x.items())
            self._row_given()
            yield Row({name: value for name, value in x.items() if value is not None}, y)


class LIBSVMSource(TextSource):
    """Rows in the text format of LIBSVM, ``label index:value ...``. Features are named by their index. See `TextSource`.

    The label comes first in the line and has no name: ``label`` is ignored.
    """

    def __init__(self, path: str | Path, label: str | None = None) -> None:  # noqa: ARG002
        super().__init__(path)

    def __iter__(self) -> Iterator[Row | BadRow]:
        for line in self._lines():
            label, *cells = line.partition("#")[0].split() or [""]
            if not label and not cells and not self._fault:
                continue
            x: dict[Hashable, Any] = {}
            reason = self._fault
            try:
                for cell in cells:
                    index, _, value = cell.partition(":")
                    x[int(index)] = float(value)
            except ValueError:
                reason = f"{_shown(cell)} is not index:value"
            if len(x) < len(cells):
                reason = reason or "an index comes twice"
            if ":" in label:
                reason = reason or f"the line must begin with a label, not {_shown(label)}"
            if reason:
                yield self._bad_row(reason)
                continue
            self._row_given()
            yield Row(x, parse_libsvm_label(label))


class IterableSource:
    """Rows of any iterable of ``(x, y)``, such as river's datasets. To resume, give an iterable that starts from the beginning.

    Parameters
    ----------
    rows
        The rows; features by name, and labels or None.
    name
        The stream in messages.

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

    def __iter__(self) -> Iterator[Row | BadRow]:
        for row in self._iterator:
            self._rows += 1
            try:
                x, y = row
            except (TypeError, ValueError):
                yield BadRow(self.place, None, f"a row must be a pair (x, y), not {_shown(row)}")
                continue
            yield Row(x, y)

    @property
    def place(self) -> str:
        """The stream and the number of the row that was given last."""
        return f"{self.name}, row {self._rows:,}"

    @property
    def position(self) -> Position:
        """The number of rows that were read."""
        return {"rows": self._rows}

    def seek(self, position: Position) -> None:
        """Skip the rows before ``position``; StreamError if there are fewer, or it is of another kind of stream."""
        if self._rows:
            raise RuntimeError(f"{self.name}: rows were read already. Make the source anew to continue at a position")
        if set(position) != {"rows"}:
            raise StreamError(f"{self.name}: the checkpoint is of another kind of stream ({_shown(dict(position))})")
        for rows in range(int(position["rows"])):
            if next(self._iterator, None) is None:
                raise StreamError(f"{self.name} has only {rows:,} rows; the checkpoint has learned {position['rows']:,}")
        self._rows = int(position["rows"])

    def stop(self) -> None:
        """Do nothing: a wait of the iterable cannot be ended."""

    def close(self) -> None:
        """Do nothing."""


#: The source of each format.
FORMATS: dict[str, type[TextSource]] = {"csv": CSVSource, "jsonl": JSONLinesSource, "libsvm": LIBSVMSource}
