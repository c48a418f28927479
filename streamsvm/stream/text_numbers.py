"""Text that becomes a table without an object for each row."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from streamsvm.core.text_numbers import read_objects
from streamsvm.stream.tables.chunk import Table
from streamsvm.stream.tables.values import label_of

_LONGEST = 1 << 20  # bytes of a row
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1  # beyond these, some parsers read a whole number as a float
_MANY_NAMES = 64
_MOST_TEXTS, _LONG = 4096, 256  # that are remembered, and bytes of one that is not
_ODD_SHARE, _FEW_ODD = 8, 16  # one row of so many may be odd, and so many more


class JSONNumbers:
    """Reads JSON objects that have a number or null for each of some names, or lack it, and perhaps a label.

    The values are those that a parser of JSON and `float` give. Where that is not certain, a row is odd: it is not read.

    Parameters
    ----------
    label
        Name of the label's field. None if there is none.

    Examples
    --------
    >>> rows = [b'{"a": 1, "b": -2.5, "y": "yes"}', b'{"y": null, "b": 3}', b'{"c": 1}']
    >>> JSONNumbers("y").table(*laid_out(rows), ["a", "b"])
    Table(names=('a', 'b'), columns=[array([ 1., nan, nan]), array([-2.5,  3. ,  nan])], y=['yes', None, None], ..., odd=[2], ...)
    """

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._names: list[Hashable] | None = None  # that were asked for last
        self._spellings: list[_Spelling] = []  # ways in which they are written; none if they cannot be read
        self._labels = TextValues(_json_label)

    def table(self, data: bytes, begins: np.ndarray, ends: np.ndarray, names: Sequence[Hashable]) -> Table | None:
        """Return rows with features of these names as a table; None where many are odd.

        The rows lie in ``data``, each from where it begins to where it ends, int64 [rows].
        """
        if self._names != names:
            self._names = list(names)
            self._spellings = self._spelt(self._names)
        n = len(begins)
        if not self._spellings or (ends - begins).max() > _LONGEST:
            return None
        # A few fields of very many names are soon found by others, and would be most of a matrix.
        if len(names) > _MANY_NAMES and len(names) > 4 * data.count(b":", begins[0], ends[0]):
            return None
        X, labels, odd = np.empty((n, len(names))), np.full((n, 2), -1, dtype=np.int64), Odd(n)
        rows, bits = np.frombuffer(data, np.uint8), X.view(np.uint64)
        i = 0
        while i < n:
            for each in tuple(self._spellings):
                found = read_objects(rows, begins, ends, i, each.texts, each.stops, each.order, X, bits, labels)
                if found > i:
                    break
                self._spellings.reverse()
            i = found
            if i < n:
                X[i], labels[i] = np.nan, -1
                if odd.are_many(i):
                    return None
                i += 1
        texts = [data[begin:end] for begin, end in labels.tolist()]
        return Table(tuple(names), list(X.T), self._labels.of(texts, odd), None, odd.rows)

    def _spelt(self, names: list[Hashable]) -> list[_Spelling]:
        known = [name for name in (*names, self._label) if isinstance(name, str)]
        if not names or len(set(known)) != len(names) + (self._label is not None):
            return []
        with contextlib.suppress(UnicodeEncodeError):  # of half a surrogate pair
            # With letters beyond ASCII as they are, or escaped: a stream has the one or the other.
            return [_Spelling(known, escaped) for escaped in (False, True)[: 1 + (not "".join(known).isascii())]]
        return []


class Odd:
    """The numbers of rows that were not read, in their order."""

    def __init__(self, n: int) -> None:
        self._most = n // _ODD_SHARE + _FEW_ODD
        self._rows: set[int] = set()

    def add(self, row: int) -> None:
        """Add a row."""
        self._rows.add(row)

    def are_many(self, row: int) -> bool:
        """Add a row, and say whether rows are so many now that it is better to read all one by one."""
        self._rows.add(row)
        return len(self._rows) > self._most

    @property
    def rows(self) -> list[int]:
        """The rows."""
        return sorted(self._rows)


class TextValues:
    """Values of texts, each of which is read once as long as it is remembered.

    Parameters
    ----------
    read
        Function that returns the value of a text. A ValueError says that it has none; the row is odd then.
    """

    def __init__(self, read: Callable[[Any], Any]) -> None:
        self._read = read
        self._known: dict[Any, Any] = {}

    def of(self, texts: list[Any], odd: Odd) -> list[Any]:
        """Return the value of each text, None of an odd row."""
        known = self._known
        new = set(texts) - known.keys()
        if not new:
            return list(map(known.__getitem__, texts))
        if len(known) + len(new) > _MOST_TEXTS:
            self._known = known = {}
            new = set(texts)
        for text in new:
            try:
                known[text] = self._read(text)
            except ValueError:
                for row in (row for row, each in enumerate(texts) if each == text):
                    odd.add(row)
        found = list(map(known.get, texts))
        for text in new:
            if len(text) > _LONG:
                known.pop(text, None)
        return found


class _Spelling:
    """Names as JSON has them: their texts behind each other, and where each stops."""

    def __init__(self, names: Sequence[str], escaped: bool) -> None:
        texts = [json.dumps(name, ensure_ascii=escaped).encode() for name in names]
        self.texts: np.ndarray = np.frombuffer(b"".join(texts), np.uint8)
        self.stops: np.ndarray = np.cumsum([len(text) for text in texts], dtype=np.int64)
        self.order: np.ndarray = np.arange(len(texts))


def _json_label(text: bytes) -> Any:
    label = label_of(json.loads(text)) if text else None
    if isinstance(label, int) and not _LEAST_INT <= label <= _MOST_INT:
        raise ValueError("parsers read it differently")
    if isinstance(label, float) and not math.isfinite(label):
        raise ValueError("parsers read it differently")
    return label


def laid_out(rows: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return rows behind each other: their bytes, and int64 [rows] where each begins and ends."""
    ends = np.fromiter(map(len, rows), np.int64, len(rows)).cumsum()
    return b"".join(rows), np.concatenate([[0], ends[:-1]]), ends
