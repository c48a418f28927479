"""Rows of JSON lines."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any, Unpack

from streamsvm.files.messages import shown
from streamsvm.stream.byte_streams import ByteStream
from streamsvm.stream.json_objects import STRICT, JSONObjects
from streamsvm.stream.sources import LinesChunk, TextSource
from streamsvm.stream.tables.chunk import BadRow, Row, Table, laid_out
from streamsvm.stream.tables.reading import TextOptions
from streamsvm.stream.tables.values import at_path, flat_row, label_of

_OF_LISTS = "; in a list of rows, write each on a line of its own (in pandas: to_json(orient='records', lines=True))"


class JSONLinesSource(TextSource):
    """Rows of a file with one JSON object on each line.

    A null is a missing feature. The values of an object within the object are columns of their own, named by their path:
    ``payload.after.amount``. `TextSource` describes the parameters.
    """

    def __init__(self, path: str | Path | ByteStream, label: str | None = None, **reading: Unpack[TextOptions]) -> None:
        super().__init__(path, label, **reading)
        self._objects = JSONObjects(label, STRICT.decode, self._reading if self._reads else None)

    def _lines_at_hand(self, most: int) -> LinesChunk | None:
        lines = self._reader.whole_lines(most)
        # Other lines have no row, or are none.
        other = next((i for i, line in enumerate(lines) if line[0] != _OPEN), len(lines))
        return ObjectsChunk(self, lines[:other], self._line + 1) if other else None

    def table_of(self, lines: list[bytes], known: Sequence[Hashable]) -> Table | None:
        """Return lines as a table; None where many of them have to be read one by one."""
        return self._objects.table(*laid_out(lines), known) if self._encoding == "utf-8" else None

    def _fields(self, line: str) -> dict[str, Any]:
        hint = _OF_LISTS if line.lstrip()[:1] == "[" else ""
        try:
            x = STRICT.decode(line)
        except (ValueError, RecursionError) as error:
            raise ValueError(f"not JSON ({error}){hint}: {shown(line)}") from None
        if not isinstance(x, dict):
            raise ValueError(f"not a JSON object{hint}: {shown(line)}")
        return x

    def _copied(self, line: str) -> Sequence[Any]:
        x = self._fields(line)
        return [at_path(x, name) for name in self.kept_names]

    def _parse(self, line: str) -> Row | None:
        if line.isspace():
            return None
        x: dict[Any, Any] = self._fields(line)
        if "{" in line[1:]:
            x = flat_row(x, self._label, self._reading.drop)
        y = label_of(x.pop(self._label, None)) if self._label is not None else None
        if self._reads:
            x, y = self._reading.row(x.items()), self._reading.label(y)
        if self._reads or "null" in line:
            x = {name: value for name, value in x.items() if value is not None}
        return Row(x, y)


class ObjectsChunk(LinesChunk):
    """Lines that are a JSON object each."""

    _source: JSONLinesSource
    _was_asked = False  # for the table: whatever becomes known then, it has all rows
    _table: Table | None = None
    _rows: list[Row | BadRow] | None = None

    def row(self, i: int) -> Row | BadRow:
        return super().row(i) if self._rows is None else self._rows[i]

    def table(self, known: Sequence[Hashable]) -> Table | None:
        if not self._was_asked:
            self._was_asked, self._table = True, self._source.table_of(self.lines, known)
            if self._table is None:
                self._rows = [super(ObjectsChunk, self).row(i) for i in range(len(self))]
                self._table = Table.of_rows(self._rows)
        return self._table


_OPEN = ord("{")
