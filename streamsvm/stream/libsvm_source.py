"""Rows of LIBSVM text."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.core.text_rows import read_pairs
from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.lines import ByteStream
from streamsvm.stream.rows import parse_libsvm_label
from streamsvm.stream.sources import TextSource
from streamsvm.stream.tables.chunk import Odd, Row, Table, TextValues, laid_out
from streamsvm.stream.tables.values import number


class LIBSVMSource(TextSource):
    """Rows of LIBSVM text, ``label index:value ...``, one on each line.

    Features are named by their index. The label comes first in the line and has no name, so ``label`` is ignored. `TextSource`
    describes the parameters.
    """

    def __init__(self, path: str | Path | ByteStream, label: str | None = None) -> None:  # noqa: ARG002
        super().__init__(path)

    has_names = False

    def keep(self, names: Sequence[str]) -> list[str]:
        """Raise a StreamError if columns are to be copied: LIBSVM text has none but numbers."""
        if names := list(names):
            raise StreamError(f"{self.name}: column {names[0]!r} cannot be kept: LIBSVM text has numbers without names only")
        return super().keep(names)

    def _has_row(self, line: bytes) -> bool:
        if b"!" <= line[:1] <= b"~" and line[:1] != b"#":
            return True
        with contextlib.suppress(UnicodeDecodeError):
            return bool(line.decode().partition("#")[0].strip())
        return True

    def table_of(self, lines: list[bytes], known: Sequence[Hashable]) -> Table | None:
        """Return lines as a table of the features that are ``known``; a row with others is odd."""
        names: list[Any] = [name for name in known if type(name) is int and 0 <= name < _LARGEST_INDEX]
        if not names:
            return None
        n, (data, begins, ends) = len(lines), laid_out(lines)
        columns = np.full(max(names) + 1, -1)
        columns[names] = np.arange(len(names))
        X, labels, odd = np.empty((n, len(names))), np.zeros((n, 2), np.int64), Odd(n)
        i, rows = 0, np.frombuffer(data, np.uint8)
        while (i := read_pairs(rows, begins, ends, i, columns, X, X.view(np.uint64), labels)) < n:
            X[i], labels[i] = np.nan, 0
            if odd.are_many(i):
                return None
            i += 1
        texts = [data[begin:end] for begin, end in labels.tolist()]
        return Table(tuple(names), list(X.T), _LIBSVM_LABELS.of(texts, odd), None, odd.rows)

    def _parse_line(self, line: str) -> Row:
        if (row := parse_pairs(line)) is None:
            raise ValueError("no row")
        return row


def parse_pairs(line: str) -> Row | None:
    """Return the row of a line of LIBSVM text, None if it has none; ValueError says why it cannot be read."""
    label, *cells = line.partition("#")[0].split() or [""]
    if not label and not cells:
        return None
    x: dict[Hashable, Any] = {}
    strict = "_" in line or not line.isascii()  # Python reads some of that as numbers
    for cell in cells:
        index, _, value = cell.partition(":")
        try:
            if strict:
                number(index)
            x[int(index)] = number(value) if strict else float(value)
        except ValueError:
            raise ValueError(f"{shown(cell)} is not index:value") from None
    if len(x) < len(cells):
        raise ValueError("an index comes twice")
    if ":" in label:
        raise ValueError(f"the line must begin with a label, not {shown(label)}")
    return Row(x, parse_libsvm_label(label))


def _label_of(text: bytes) -> Any:
    (label,) = text.decode().split()
    return parse_libsvm_label(label)


_LARGEST_INDEX = 1 << 24
_LIBSVM_LABELS = TextValues(_label_of)
