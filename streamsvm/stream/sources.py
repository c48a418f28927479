"""Sources of rows: LIBSVM text (plain, gzip, or standard input), what all text shares, and any iterable."""

from __future__ import annotations

import csv
import math
from collections.abc import Hashable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Self, Unpack

import numpy as np

from streamsvm.core.checks import checked_count
from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import START_AFRESH, BadRow, Position, RawRows, Row, StreamError
from streamsvm.stream.lines import LONGEST_LINE, LineReader, checked_encoding, digest
from streamsvm.stream.rows import parse_libsvm_label
from streamsvm.stream.tables.reading import Reading, ReadingOptions, TextOptions
from streamsvm.stream.tables.values import number

_MOST_BLANK = 2**16  # bytes of blank lines and comments that are held
MOST_LINES = 1000  # of a row of CSV: where a quote is not closed, so many are read before it is given up


class TableSource:
    """A source whose rows have columns, read with `Reading`; it remembers the label and how columns are read."""

    name: str
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

    def close(self) -> None:
        """Close the file."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


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
        Path of the file, which may end with ``.gz``; a FIFO; or ``"-"`` for standard input.
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

    def __init__(self, path: str | Path, label: str | None = None, **reading: Unpack[TextOptions]) -> None:
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
        self._keep: list[str] = []  # columns to copy, and their values in the row that was given last
        self._kept: Sequence[Any] = ()
        self._all: Iterator[Row | BadRow | None] | None = None  # rows, for `take`
        self._ended = False  # whether they have
        # Of those taken last: the line, the bytes, and the columns to copy.
        self._taken: tuple[Sequence[int], Sequence[bytes], Sequence[Sequence[Any]]] = (), (), ()

    def __iter__(self) -> Iterator[Row | BadRow]:
        return (row for row in self._given() if row is not None)

    def _given(self) -> Iterator[Row | BadRow | None]:
        """Give the rows, and None now and then between them where many lines have none."""
        for line in self._lines():
            try:
                row = None if self._fault else self._parse(line)
            except ValueError as error:
                yield self._bad_row(str(error))
                continue
            if row is not None:
                self._row_given()
                yield row
            elif self._fault:
                yield self._bad_row("")
            elif self._are_many_blank():
                yield None

    def take(self, most: int) -> Sequence[Row | BadRow] | None:
        """Return the next rows that are at hand, as `BatchSource.take` does."""
        if lines := self._rows_at_hand(most):
            return self._raw_rows(lines)
        if self._all is None:
            self._all = self._given()
        rows: list[Row | BadRow] = []
        numbers: list[int] = []
        raws: list[bytes] = []
        kept: list[Sequence[Any]] = []
        self._taken = numbers, raws, kept
        for row in self._all:
            if row is None:
                return rows
            rows.append(row)
            numbers.append(self._line)
            raws.append(self.raw)
            kept.append(self._kept)
            if len(rows) >= most or not self._reader.has_line:
                return rows
        self._ended = True
        return rows or None

    def _rows_at_hand(self, most: int) -> list[bytes]:  # noqa: ARG002
        """Return the next lines that are at hand, if each is known to be one row, or one that cannot be read; else none."""
        return []

    def _raw_rows(self, lines: list[bytes]) -> RawRows:
        """Give out lines that are a row each; they are read when they are asked for."""
        first, n = self._line + 1, len(lines)
        self._begun = True
        self._reader.give(lines)
        self._line = self._row_line = self._line + n
        self._rows += n
        self._taken = range(first, first + n), lines, [()] * n

        def read(i: int) -> Row | BadRow:
            try:
                if (row := self._parse(lines[i].decode())) is not None:
                    return row
                reason = "no row"
            except UnicodeDecodeError as error:
                reason = _not_text("utf-8", error)
            except ValueError as error:
                reason = str(error)
            return BadRow(f"{self.name}, line {first + i:,}", lines[i], reason)

        def pairs(begin: int, end: int) -> Iterator[tuple[Any, Any]]:
            for row in map(read, range(begin, end)):
                if isinstance(row, BadRow):
                    return
                yield row

        return RawRows(read, pairs, (0, n), lambda begin, end, names: self._numbers_of(lines[begin:end], names))

    def _numbers_of(self, lines: list[bytes], names: Sequence[Hashable]) -> tuple[np.ndarray, list[Any]] | None:  # noqa: ARG002
        """Return the numbers and labels of lines of `_rows_at_hand`, as `RawRows` asks for them."""
        return None

    @property
    def is_pipe(self) -> bool:
        """Whether the next row may have to be waited for."""
        return self._reader.is_pipe

    def place_of(self, i: int) -> str:
        """The stream and the line of row number ``i`` of those that were taken last."""
        return f"{self.name}, line {self._taken[0][i]:,}" if self._taken[0] else self.place

    def raw_of(self, i: int) -> bytes:
        """The bytes of row number ``i`` of those that were taken last."""
        return self._taken[1][i]

    def _parse(self, line: str) -> Row | None:
        """Return the row of a line, None if it has none; ValueError says why it cannot be read."""
        raise NotImplementedError

    @property
    def place(self) -> str:
        """The stream and the line that was read last."""
        return f"{self.name}, line {self._line:,}"

    @property
    def raw(self) -> bytes:
        """The bytes of the row that was given last."""
        return self._reader.row if self._cut is None else self._cut

    def keep(self, names: Iterable[str]) -> list[str]:
        """Have `kept_of` copy these columns, as `Source` describes; only before the first row was read."""
        self._keep = list(names)
        return self._keep

    def kept_of(self, i: int) -> Sequence[Any]:
        """The columns to copy of row number ``i`` of those that were taken last."""
        return self._taken[2][i] if self._taken[2] else self._kept

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
            "head": digest(reader.head(reader.mark)),
            "tail": digest(reader.before_mark()),
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
            raise StreamError(
                f"{self.name}: the checkpoint is of another kind of stream ({shown(dict(position))}). "
                f"Give that stream, {START_AFRESH}"
            ) from None
        self._check_columns(position)
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
        """End a wait for rows. The beginning of an incomplete row is left for the next run."""
        self._reader.stop()

    def close(self) -> None:
        """Close the file. Standard input stays open."""
        self._reader.close()

    def _begin(self) -> None:
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
        bad = BadRow(self.place, self.raw, reason)
        self._cut = None
        return bad

    def _error(self, message: str) -> StreamError:
        return StreamError(f"{self.place}: {message}")


def _not_text(encoding: str, error: UnicodeDecodeError) -> str:
    return (
        f"not {encoding.upper()}: {error.reason} at byte {error.start} of the line. Fix it, or give the encoding, "
        "such as latin-1 or cp1252"
    )


class LIBSVMSource(TextSource):
    """Rows of LIBSVM text, ``label index:value ...``, one on each line.

    Features are named by their index. The label comes first in the line and has no name, so ``label`` is ignored. `TextSource`
    describes the parameters.
    """

    def __init__(self, path: str | Path, label: str | None = None) -> None:  # noqa: ARG002
        super().__init__(path)

    #: Whether columns have names.
    has_names = False

    def keep(self, names: Iterable[str]) -> list[str]:
        """Raise a StreamError if columns are to be copied: LIBSVM text has none but numbers."""
        if names := list(names):
            raise StreamError(f"{self.name}: column {names[0]!r} cannot be kept: LIBSVM text has numbers without names only")
        return names

    def _parse(self, line: str) -> Row | None:
        label, *cells = line.partition("#")[0].split() or [""]
        if not label and not cells:
            return None
        x: dict[Hashable, Any] = {}
        strict = "_" in line or not line.isascii()  # Python reads some of that as numbers
        try:
            for cell in cells:
                index, _, value = cell.partition(":")
                if strict:
                    number(index), number(value)
                x[int(index)] = float(value)
        except ValueError:
            raise ValueError(f"{shown(cell)} is not index:value") from None
        if len(x) < len(cells):
            raise ValueError("an index comes twice")
        if ":" in label:
            raise ValueError(f"the line must begin with a label, not {shown(label)}")
        return Row(x, parse_libsvm_label(label))


class IterableSource:
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

    def __iter__(self) -> Iterator[Row | BadRow]:
        for row in self._iterator:
            self._rows += 1
            try:
                x, y = row
            except (TypeError, ValueError):
                yield BadRow(self.place, None, f"a row must be a pair (x, y), not {shown(row)}")
                continue
            yield Row(x, y)

    @property
    def place(self) -> str:
        """The stream and the number of the row that was given last."""
        return f"{self.name}, row {self._rows:,}"

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
            raise StreamError(
                f"{self.name}: the checkpoint is of another kind of stream ({shown(dict(position))}). "
                f"Give that stream, {START_AFRESH}"
            ) from None
        for rows in range(wanted):
            if next(self._iterator, None) is None:
                raise StreamError(f"{self.name} has only {rows:,} rows; the checkpoint has learned {wanted:,}")
        self._rows = wanted

    def stop(self) -> None:
        """Do nothing: there is no way to end a wait of an iterable."""

    def close(self) -> None:
        """Do nothing."""
