"""Sources of rows: JSON lines and LIBSVM text (plain, gzip, or standard input), and any iterable; which format has which."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Iterator
from pathlib import Path
from typing import Any

from streamsvm.core.checks import checked_count
from streamsvm.files.messages import shown
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.endpoints import START_AFRESH, BadRow, Position, Row, StreamError
from streamsvm.stream.labels import parse_libsvm_label
from streamsvm.stream.text_source import TextSource


class JSONLinesSource(TextSource):
    """Rows of a file with one JSON object on each line.

    A null is a missing feature. `TextSource` describes the parameters.
    """

    def __iter__(self) -> Iterator[Row | BadRow]:
        for line in self._lines():
            if self._fault:
                yield self._bad_row("")
                continue
            if line.isspace():
                self._no_row()
                continue
            try:
                x = json.loads(line)
            except (ValueError, RecursionError) as error:
                yield self._bad_row(f"not JSON ({error}): {shown(line)}")
                continue
            if not isinstance(x, dict):
                yield self._bad_row(f"not a JSON object: {shown(line)}")
                continue
            y = x.pop(self._label, None) if self._label is not None else None
            if self._reading is not None:
                x = self._reading.row(x.items())
            self._row_given()
            yield Row({name: value for name, value in x.items() if value is not None}, y)


class LIBSVMSource(TextSource):
    """Rows of LIBSVM text, ``label index:value ...``, one on each line.

    Features are named by their index. The label comes first in the line and has no name, so ``label`` is ignored. `TextSource`
    describes the parameters.
    """

    def __init__(self, path: str | Path, label: str | None = None) -> None:  # noqa: ARG002
        super().__init__(path)

    def __iter__(self) -> Iterator[Row | BadRow]:
        for line in self._lines():
            label, *cells = line.partition("#")[0].split() or [""]
            if not label and not cells and not self._fault:
                self._no_row()
                continue
            x: dict[Hashable, Any] = {}
            reason = self._fault
            try:
                for cell in cells:
                    index, _, value = cell.partition(":")
                    x[int(index)] = float(value)
            except ValueError:
                reason = f"{shown(cell)} is not index:value"
            if len(x) < len(cells):
                reason = reason or "an index comes twice"
            if ":" in label:
                reason = reason or f"the line must begin with a label, not {shown(label)}"
            if reason:
                yield self._bad_row(reason)
                continue
            self._row_given()
            yield Row(x, parse_libsvm_label(label))


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
        """Skip the rows before ``position``.

        Raise a StreamError if there are fewer, or the position is of another kind of stream.
        """
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


#: The source of each format.
FORMATS: dict[str, type[TextSource]] = {"csv": CSVSource, "jsonl": JSONLinesSource, "libsvm": LIBSVMSource}
