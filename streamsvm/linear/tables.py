"""Tables in files, read as streams read them: CSV, Parquet and Arrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.linear.block_writer import planned_sizes
from streamsvm.linear.names import LabelCodes
from streamsvm.stream.arrow import KINDS, ArrowSource
from streamsvm.stream.csv_source import CSVSource
from streamsvm.stream.endpoints import Source, StreamError
from streamsvm.stream.open import format_of
from streamsvm.stream.rows import parse_label
from streamsvm.stream.tables.chunk import BadRow, Chunk, as_numbers

_ROWS_IN_LIMIT = 16  # a row takes at most this part of the limit


def kind_of(source: Path) -> str | None:
    """Return the format of a table, by the name of the file; None where it is no table."""
    try:
        kind = format_of(source.name)
    except StreamError:
        return None
    return kind if kind in ("csv", *KINDS) else None


def table_chunks(
    source: Path, target: str | None, weight: str | None, memory_limit: float, codes: LabelCodes
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray | None, list[str]]]:
    """Yield rows float64 [n, features], labels float64 [n], weights float64 [n] and the names of the features.

    Chunks have at most the bytes of a block, or one row. ``weight`` is the column of weights; None: there are none.
    """
    is_csv = kind_of(source) == "csv"
    try:
        with _TextLabels(source, target) if is_csv else ArrowSource(source, target, label_needed=False) as opened:
            known = opened.columns
            if target not in known:
                columns = ", ".join(known[:8])
                raise ValueError(f"{source} has no column {target!r}: name the column of labels with target=, one of {columns}")
            if weight is not None and (weight == target or weight not in known):
                raise ValueError(f"{source} has no column {weight!r} of weights beside that of labels: name it with weight=")
            features = [name for name in known if name not in (target, weight)]
            if not features:
                raise ValueError(f"{source} has no column but {target!r}" + (f" and {weight!r}" if weight else ""))
            names = features if weight is None else [*features, weight]
            size = 8 * len(names)  # of a row
            if size > memory_limit / _ROWS_IN_LIMIT:
                raise ValueError(f"{source}: a row must be shorter than a sixteenth of memory_limit, and takes {size:,} bytes")
            for held in _gathered_chunks(opened, max(planned_sizes(memory_limit).block // size, 1)):
                parts = [_chunk_arrays(chunk, names) for chunk in held]
                X, labels = np.concatenate([X for X, _ in parts]), [label for _, labels in parts for label in labels]
                weights = None if weight is None else X[:, -1]
                if weights is not None and (weights < 0.0).any():
                    row = int(np.argmax(weights < 0.0))
                    what = f"column {weight!r} is {weights[row]:g}, and a weight is at least 0"
                    raise ValueError(f"{_place_text(held, row)}: {what}")
                yield X[:, : len(features)], _label_codes(labels, codes, held), weights, features
    except StreamError as error:
        raise ValueError(str(error)) from error


class _TextLabels(CSVSource):
    """CSV text whose columns are known before a row is read, and whose labels are texts."""

    def __init__(self, path: Path, label: str | None) -> None:
        super().__init__(path, label, label_needed=False)
        try:
            self._begin_rows()
        except StreamError:
            self.close()
            raise

    def label_of(self, text: str) -> str | None:
        return text.strip() or None


def _gathered_chunks(source: Source, most: int) -> Iterator[list[Chunk]]:
    """Yield chunks that have ``most`` rows together; the last ones may have fewer."""
    held: list[Chunk] = []
    rows = 0
    while (chunk := source.read(most - rows)) is not None:
        held.append(chunk)
        rows += len(chunk)
        if rows == most:
            yield held
            held, rows = [], 0
    if rows:
        yield held


def _place_text(held: list[Chunk], row: int) -> str:
    chunk, i = [(chunk, i) for chunk in held for i in range(len(chunk))][row]
    return chunk.place(i)


def _chunk_arrays(chunk: Chunk, names: list[str]) -> tuple[np.ndarray, list[Any]]:
    """Return the columns of these names, float64 [n, names], and the labels."""
    n, table = len(chunk), chunk.table(names) if len(chunk) else None
    X, labels = np.full((n, len(names)), np.nan), [None] * n if table is None or table.y is None else list(table.y)
    for column, name in enumerate(names):
        if table is not None and (values := table.column(name)) is not None:
            numbers, count = as_numbers(values)
            if count < n:
                raise _refusal_of_row(chunk, count, name, _no_number(values[count]))
            X[:, column] = numbers
    for i in range(n) if table is None else table.odd:
        row = chunk.row(i)
        if isinstance(row, BadRow):
            raise ValueError(f"{row.place}: {row.reason}")
        cells = [row.x.get(name) for name in names]
        numbers, count = as_numbers(cells)
        if count < len(cells):
            raise _refusal_of_row(chunk, i, names[count], _no_number(cells[count]))
        X[i], labels[i] = numbers, row.y
    with np.errstate(over="ignore"):
        finite = np.isfinite(X.astype(np.float32))
    if not finite.all():
        i, column = map(int, np.argwhere(~finite)[0])
        what = f"is {X[i, column]:g}, which is not finite in float32: impute or scale it"
        missing = "has no value: impute it or leave the row out"
        raise _refusal_of_row(chunk, i, names[column], missing if np.isnan(X[i, column]) else what)
    return X, labels


def _refusal_of_row(chunk: Chunk, row: int, column: str, what: str) -> ValueError:
    return ValueError(f"{chunk.place(row)}: column {column!r} {what}")


def _no_number(value: Any) -> str:
    return f"is {shown(value)}, not a number: encode it or leave it out"


def _number_or_text(text: str) -> float | str:
    # A number as the sources of streams see it: text such as 007 is a name there.
    found = parse_label(text)
    return found if isinstance(found, int | float) and not isinstance(found, bool) else text


def _label_codes(found: list[Any], codes: LabelCodes, held: list[Chunk]) -> np.ndarray:
    if not codes.meta:  # where names came before, everything is a name
        if str in set(map(type, found)):
            read = {text: _number_or_text(text) for text in set(found) if isinstance(text, str)}
            if codes.numbers or all(isinstance(number, int | float) for number in read.values()):
                found = [read.get(label, label) for label in found]
        numbers, count = as_numbers(found)
        if count == len(found) and np.isfinite(numbers).all():
            codes.numbers = True
            return numbers
    labels = np.empty(len(found))
    for i, label in enumerate(found):
        try:
            labels[i] = codes.code(label)
        except ValueError as error:
            raise ValueError(f"{_place_text(held, i)}: {error}") from None
    return labels
