"""Parses lines of CSV text into columns, with a compiled reader."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

import numpy as np

from streamsvm.core.text_rows import read_cells
from streamsvm.stream.lines import can_decode
from streamsvm.stream.sources import LinesChunk
from streamsvm.stream.tables.chunk import CachedTextParser, Table, UnparsedRows, Values, concatenate_rows
from streamsvm.stream.tables.column_kinds import DROP
from streamsvm.stream.tables.values import parse_number

_MIN_TEXTS = 8  # a column of numbers with this many texts becomes a column of texts


class CSVColumnReader:
    """Parses lines of CSV text into columns, with the compiled `read_cells`.

    A column holds numbers until it has had `_MIN_TEXTS` texts. Then it becomes a column of texts, which are parsed in Python and
    cached. ``source`` is the `CSVSource` of the lines.
    """

    def __init__(self, source: Any) -> None:
        self._source, parser = source, source._parser
        self._label = CachedTextParser(lambda text: source.parse_label_cell(self._decode_cell(text)))
        self._texts: dict[int, CachedTextParser] = {}  # by index of the column
        self._dropped = {i for i, name in enumerate(source._names) if i != source._label_index and parser.get_kind(name) == DROP}
        for i, name in enumerate(source._names):
            if i != source._label_index and i not in self._dropped and not parser.has_plain_numbers(name):
                self._add_text_column(i)
        self._assign_columns()

    def _add_text_column(self, index: int) -> None:
        """From now on, convert the cells of the column with this ``index`` in Python, with a cache, instead of as numbers in the
        compiled reader.
        """
        source = self._source
        read = source._parser.get_value_parser(source._names[index]) if source._uses_parser else _parse_optional_cell
        self._texts[index] = CachedTextParser(lambda text: read(self._decode_cell(text)))

    def _decode_cell(self, cell: str | bytes) -> str:
        """Return a CSV cell as str; bytes are decoded with the encoding of the source."""
        return cell if isinstance(cell, str) else cell.decode(self._source._encoding)

    def _assign_columns(self) -> None:
        """Decide for each column of the file how the compiled `read_cells` returns its cells: as numbers, as texts, or not at all
        if the column is dropped.
        """
        source, n = self._source, len(self._source._names)
        self._columns, self._places = np.full(n, -1), np.full(n, -1)
        passthrough = {source._names.index(name) for name in source.passthrough_names}
        numbers = [i for i in range(n) if i not in self._dropped and i not in self._texts and i != source._label_index]
        texts = sorted({*self._texts, *passthrough, *([source._label_index] if source._label_index >= 0 else [])})
        self._columns[numbers], self._places[texts] = np.arange(len(numbers)), np.arange(len(texts))
        self._n_numbers, self._n_texts = len(numbers), len(texts)
        self._features = [i for i in range(n) if i not in self._dropped and i != source._label_index]

    def read(self, lines: list[bytes], first_line: int) -> LinesChunk:
        """Parse CSV lines into a chunk (rows read together) with columns of values. It ends before a row that continues after the
        last line. ``first_line`` is the line number of ``lines[0]``.
        """
        source, n, (data, begins, ends) = self._source, len(lines), concatenate_rows(lines)
        may_have_special_lines = source._longest_name in data or b"\xef\xbb\xbf" in data
        special_lines = {i for i, line in enumerate(lines) if source.is_special_line(line)} if may_have_special_lines else set()
        rows, n_numbers = np.frombuffer(data, np.uint8), -1
        while True:
            if n_numbers != self._n_numbers:  # at first, and when columns have become texts
                n_numbers, X, places = self._n_numbers, np.empty((n, self._n_numbers)), np.zeros((n, self._n_texts, 2), np.int64)
                bits, unparsed, text_lines, i = X.view(np.uint64), UnparsedRows(n), defaultdict[int, list[bytes]](list), 0
            i, cell = read_cells(rows, begins, ends, i, ord(source._delimiter), self._columns, self._places, X, bits, places)
            if i == n:
                break
            if cell >= 0 and self._columns[cell] >= 0 and cell not in self._texts:
                text_lines[cell].append(lines[i])
                if len(text_lines[cell]) >= _MIN_TEXTS:
                    for index in {cell, *self._find_text_columns(text_lines[cell])}:
                        self._add_text_column(index)
                    self._assign_columns()
                    continue
            if not source.is_complete_row(lines[i]):  # it is only a part of a row
                n = i
                break
            X[i], places[i] = np.nan, 0
            unparsed.add(i)
            i += 1
        for i in special_lines:
            if i < n:
                unparsed.add(i)
        return self._make_chunk(lines[:n], first_line, data, X[:n], places[:n], unparsed)

    def _find_text_columns(self, lines: list[bytes]) -> set[int]:
        """Return the indices of the columns of numbers that have a text in each of these lines; empty if one is unreadable."""
        try:
            columns = [*zip(*(self._source.split_cells(line.decode(self._source._encoding)) for line in lines), strict=True)]
        except ValueError:
            return set()
        numeric = np.flatnonzero(self._columns[: len(columns)] >= 0).tolist()
        return {i for i in numeric if all(text.strip() and isinstance(parse_cell(text), str) for text in columns[i])}

    def _make_chunk(
        self, lines: list[bytes], first_line: int, data: bytes, X: np.ndarray, places: np.ndarray, unparsed: UnparsedRows
    ) -> LinesChunk:
        source = self._source
        try:
            text: Any = data.decode(source._encoding)
        except UnicodeDecodeError:
            text = data
            for i, line in enumerate(lines):
                if not can_decode(line, source._encoding):
                    unparsed.add(i)
                    places[i] = 0
        text = text if len(text) == len(data) else data  # slice the text if each letter is one byte

        def slice_cells(cell: int) -> list[Any]:
            return list(map(text.__getitem__, map(slice, *places[:, self._places[cell]].T.tolist())))

        columns: list[Values] = []
        for cell in self._features:
            name = source._names[cell]
            if cell in self._texts:
                texts = slice_cells(cell)
                dates = source._parser.parse_iso_dates(name, map(self._decode_cell, texts))
                columns.append(self._texts[cell].parse_texts(texts, unparsed) if dates is None else dates)
            else:
                numbers = X[:, self._columns[cell]]
                columns.append(source._parser.parse_column(source._names[cell], numbers) if source._uses_parser else numbers)
        y = self._label.parse_texts(slice_cells(source._label_index), unparsed) if source._label_index >= 0 else None
        names = tuple(source._names[cell] for cell in self._features)
        passthrough = [
            [self._decode_cell(text) or None for text in slice_cells(source._names.index(name))]
            for name in source.passthrough_names
        ]
        for i in unparsed.rows if passthrough else ():
            for values, value in zip(passthrough, source.read_passthrough(lines[i]), strict=True):
                values[i] = value
        return LinesChunk(source, lines, first_line, Table(names, columns, y, None, unparsed.rows), passthrough)


def parse_cell(text: str) -> float | str:
    """Convert the text of a CSV cell to a float, or return the text itself if it is not a number."""
    try:
        return parse_number(text)
    except ValueError:
        return text


def _parse_optional_cell(text: str) -> float | str | None:
    """Convert the text of a CSV cell to a float, or return the text if it is not a number; None if it is blank. Raise a
    ValueError for the text NaN.
    """
    if not text.strip():
        return None
    value = parse_cell(text)
    if value != value:
        raise ValueError("NaN is not a missing value here")
    return value
