"""Reads rows of LIBSVM text."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.core.text_rows import read_pairs
from streamsvm.files.messages import short_repr
from streamsvm.stream.lines import ByteStream
from streamsvm.stream.rows import parse_libsvm_label
from streamsvm.stream.sources import TextSource
from streamsvm.stream.tables.chunk import CachedTextParser, Row, Table, UnparsedRows, concatenate_rows
from streamsvm.stream.tables.values import parse_number


class LIBSVMSource(TextSource):
    """Rows of LIBSVM text, ``label index:value ...``, one on each line.

    Features are named by their index. The label is the first item of a line and has no name, so ``label`` is ignored.
    `TextSource` describes the parameters.
    """

    def __init__(self, path: str | Path | ByteStream, label: str | None = None) -> None:  # noqa: ARG002
        super().__init__(path)

    has_names = False

    def _has_row(self, line: bytes) -> bool:
        if b"!" <= line[:1] <= b"~" and line[:1] != b"#":
            return True
        with contextlib.suppress(UnicodeDecodeError):
            return bool(line.decode().partition("#")[0].strip())
        return True

    def parse_table(self, lines: list[bytes], known_features: Sequence[Hashable]) -> Table | None:
        """Parse LIBSVM lines into a table with one column per feature of ``known_features``. Rows with other features are left
        unparsed, for the caller to parse one by one. Return None if there are many of them, or if no features are known.
        """
        names: list[Any] = [name for name in known_features if type(name) is int and 0 <= name < _LARGEST_INDEX]
        if not names:
            return None
        n, (data, begins, ends) = len(lines), concatenate_rows(lines)
        columns = np.full(max(names) + 1, -1)
        columns[names] = np.arange(len(names))
        X, labels, unparsed = np.empty((n, len(names))), np.zeros((n, 2), np.int64), UnparsedRows(n)
        i, rows = 0, np.frombuffer(data, np.uint8)
        while (i := read_pairs(rows, begins, ends, i, columns, X, X.view(np.uint64), labels)) < n:
            X[i], labels[i] = np.nan, 0
            if unparsed.add(i):
                return None
            i += 1
        texts = [data[start:stop] for start, stop in labels.tolist()]
        return Table(tuple(names), list(X.T), _LIBSVM_LABELS.parse_texts(texts, unparsed), None, unparsed.rows)

    def _parse_line(self, line: str) -> Row:
        if (row := parse_libsvm_line(line)) is None:
            raise ValueError("no row")
        return row


def parse_libsvm_line(line: str) -> Row | None:
    """Parse a line ``label index:value ...`` of LIBSVM text into a row with the features by index; None if it is blank. Raise a
    ValueError with the reason if it is unreadable.
    """
    label, *cells = line.partition("#")[0].split() or [""]
    if not label and not cells:
        return None
    x: dict[Hashable, Any] = {}
    strict = "_" in line or not line.isascii()  # float() accepts some numbers with these
    for cell in cells:
        index, _, value = cell.partition(":")
        try:
            if strict:
                parse_number(index)
            x[int(index)] = parse_number(value) if strict else float(value)
        except ValueError:
            raise ValueError(f"{short_repr(cell)} is not index:value") from None
    if len(x) < len(cells):
        raise ValueError("an index comes twice")
    if ":" in label:
        raise ValueError(f"the line must begin with a label, not {short_repr(label)}")
    return Row(x, parse_libsvm_label(label))


def _parse_label(text: bytes) -> Any:
    (label,) = text.decode().removeprefix("\ufeff").split()
    return parse_libsvm_label(label)


_LARGEST_INDEX = 1 << 24
_LIBSVM_LABELS = CachedTextParser(_parse_label)
