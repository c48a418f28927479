"""A source over lines of text."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

from streamsvm.core.checks import checked_count
from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import START_AFRESH, BadRow, Position, Row, StreamError
from streamsvm.stream.lines import LONGEST_LINE, LineReader, checked_encoding, digest
from streamsvm.stream.tables.reading import Dates, Names, Reading

_MOST_BLANK = 2**16  # bytes of blank lines and comments that are held
MOST_LINES = 1000  # of a row of CSV: where a quote is not closed, so many are read before it is given up


def _listed(options: Any) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in options.items()) or "no options"


class TextSource:
    """The base of all sources that read lines of text.

    A row is given as soon as its line has come, and `stop` ends a wait for the next one. A line that is malformed, too long or
    not in the encoding is given as a `BadRow`.

    The position is an offset in bytes of the uncompressed stream, with digests of the stream's first bytes and of those before
    the offset. You can append rows to a file between two runs, but the rows that were learned must not change. A plain file is
    resumed immediately. Gzip and standard input are read from the beginning again, so pipe in the same stream.

    Parameters
    ----------
    path
        Path of the file, which may end with ``.gz``; a FIFO; or ``"-"`` for standard input.
    label
        Name of the label. None if the rows have none.
    features, drop, categorical, dates, missing, decimal
        How columns are read, as in `streamsvm.stream.tables.Reading`: which of them are features, which hold names or dates, and
        which texts mean that there is no value. Without any of these, rows are as the format has them.
    encoding
        Encoding of the text, such as ``"latin-1"``. A line must end with the byte of a newline.

    Raises
    ------
    StreamError
        The file cannot be opened or, while you iterate, read; or the encoding does not exist.
    ValueError
        A column is requested in two ways that exclude each other.
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
        decimal: str = ".",
        encoding: str = "utf-8",
    ) -> None:
        columns: dict[str, Any] = {"features": features, "drop": drop, "categorical": categorical, "dates": dates}
        reading = Reading(**columns, missing=missing, decimal=decimal)
        self._encoding = checked_encoding(encoding)
        # How the text is read, where it is not as usual.
        self._options = reading.options | ({} if self._encoding == "utf-8" else {"encoding": self._encoding})
        self._reading = reading if reading.options else None
        self._reader = LineReader(path)
        self.name: str = self._reader.name
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
        """Where the next row is.

        It has the offset, line and rows after the last row, digests of the bytes before it, the label, and how columns are
        read.
        """
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
        """Continue at ``position``; only before the first row was read.

        Raises
        ------
        StreamError
            The position is of another kind of stream or has another label, or the stream has changed before the position.
        RuntimeError
            Rows were read already.
        """
        if self._begun:
            raise RuntimeError(f"{self.name}: rows were read already. To continue at a position, open a new source")
        try:
            offset, line, rows = (checked_count(key, position[key]) for key in ("offset", "line", "rows"))
            head, tail, label = (position[key] for key in ("head", "tail", "label"))
            if not rows <= line <= offset + 1:
                raise ValueError(f"{rows} rows in {line} lines")
        except (KeyError, ValueError):
            raise StreamError(
                f"{self.name}: the checkpoint is of another kind of stream ({shown(dict(position))}). "
                f"Give that stream, {START_AFRESH}"
            ) from None
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
        """End a wait for rows. The beginning of an incomplete row is left for the next run."""
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

    def _no_row(self) -> None:
        # After a line without a row. The position stays behind the last row, but is not held through any number of such lines.
        if self._reader.offset - self._reader.mark > _MOST_BLANK:
            self._row_line = self._line
            self._reader.set_mark()

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
                    f"not {encoding.upper()}: {error.reason} at byte {error.start} of the line. Fix it, or give the encoding, "
                    "such as latin-1 or cp1252"
                )
                text = line.decode(encoding, errors="replace")
            if self._line > self._most_lines:
                raise csv.Error(f"a quote is not closed within {MOST_LINES:,} lines")
            yield text

    def _bad_row(self, reason: str) -> BadRow:
        reason, self._fault = self._fault or reason, ""
        self._row_given()
        bad = BadRow(self.place, self.raw, reason)
        self._cut = None
        return bad

    def _error(self, message: str) -> StreamError:
        return StreamError(f"{self.place}: {message}")
