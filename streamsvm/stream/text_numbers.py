"""Text with numbers, read into a matrix without an object for each row."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np

from streamsvm.core.text_numbers import read_cells, read_objects

_LONGEST = 1 << 20  # bytes of a row
_LARGEST_NUMBER = float(np.finfo(np.float32).max)
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1  # beyond these, some parsers read a whole number as a float
_MANY_NAMES = 64
_MOST_LABELS, _LONG = 4096, 256  # whose texts are remembered, and bytes of one that is not


class JSONNumbers:
    """Reads JSON objects that have a number or null for each of some names, or lack it, and perhaps a label.

    The values are those that a parser of JSON and `float` give. Where that is not certain, it reads nothing.

    Parameters
    ----------
    label
        Name of the label's field. None if there is none.

    Examples
    --------
    >>> rows = [b'{"a": 1, "b": -2.5, "y": "yes"}', b'{"y": null, "b": 3}']
    >>> JSONNumbers("y").decode(*laid_out(rows), ["a", "b"])
    (array([[ 1. , -2.5],
           [ nan,  3. ]]), ['yes', None])
    >>> JSONNumbers("y").decode(*laid_out(rows), ["a"]) is None
    True
    """

    def __init__(self, label: str | None) -> None:
        self._label = label
        self._names: list[Hashable] | None = None  # that were asked for last
        self._spellings: list[_Spelling] = []  # ways in which they are written; none if they cannot be read
        self._labels = _Labels(_json_label)

    def decode(
        self, data: bytes, begins: np.ndarray, ends: np.ndarray, names: Sequence[Hashable]
    ) -> tuple[np.ndarray, list[Any]] | None:
        """Return the features of rows, float64 [rows, names], and their labels; None where a row has another form.

        The rows lie in ``data``, each from where it begins to where it ends, int64 [rows]. A feature that a row does not have is
        NaN, and a label None.
        """
        if self._names != names:
            self._names = list(names)
            self._spellings = self._spelt(self._names)
        if not self._spellings or (ends - begins).max() > _LONGEST:
            return None
        # A few fields of very many names are soon found by others, and would be most of a matrix.
        if len(names) > _MANY_NAMES and len(names) > 4 * data.count(b":", begins[0], ends[0]):
            return None
        X, labels = np.empty((len(begins), len(names))), np.empty((len(begins), 2), dtype=np.int64)
        rows, bits = np.frombuffer(data, np.uint8), X.view(np.uint64)
        for each in tuple(self._spellings):
            n = read_objects(rows, begins, ends, each.texts, each.stops, each.order, X, bits, labels)
            if n == len(begins):
                break
            self._spellings.reverse()
        if n < len(begins) or not _within_float32(X):
            return None
        y = self._labels.of(data, labels)
        return None if y is None else (X, y)

    def _spelt(self, names: list[Hashable]) -> list[_Spelling]:
        known = [name for name in (*names, self._label) if isinstance(name, str)]
        if not names or len(set(known)) != len(names) + (self._label is not None):
            return []
        with contextlib.suppress(UnicodeEncodeError):  # of half a surrogate pair
            # With letters beyond ASCII as they are, or escaped: a stream has the one or the other.
            return [_Spelling(known, escaped) for escaped in (False, True)[: 1 + (not "".join(known).isascii())]]
        return []


class _Spelling:
    """Names as JSON has them: their texts behind each other, and where each stops."""

    def __init__(self, names: Sequence[str], escaped: bool) -> None:
        texts = [json.dumps(name, ensure_ascii=escaped).encode() for name in names]
        self.texts: np.ndarray = np.frombuffer(b"".join(texts), np.uint8)
        self.stops: np.ndarray = np.cumsum([len(text) for text in texts], dtype=np.int64)
        self.order: np.ndarray = np.arange(len(texts))


class _Labels:
    """Labels by their texts, which are parsed once. A text that is no label raises a ValueError there."""

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse
        self._known: dict[bytes, Any] = {}

    def of(self, data: bytes, places: np.ndarray) -> list[Any] | None:
        """Return the labels that lie at places, int64 [rows, 2]; None for one that begins at -1, and for all if one is none."""
        texts = [data[begin:end] for begin, end in places.tolist()]
        new = set(texts) - self._known.keys()
        if new and len(self._known) + len(new) > _MOST_LABELS:
            self._known, new = {}, set(texts)
        try:
            self._known |= {text: self._parse(text.decode()) for text in new}
        except ValueError:
            return None
        found = list(map(self._known.__getitem__, texts))
        for text in new:
            if len(text) > _LONG:
                del self._known[text]
        return found


def _json_label(text: str) -> Any:
    label = json.loads(text) if text else None
    if isinstance(label, int) and not _LEAST_INT <= label <= _MOST_INT:
        raise ValueError("parsers read it differently")
    if isinstance(label, float) and not math.isfinite(label):
        raise ValueError("parsers read it differently")
    return label


class CellNumbers:
    """Reads rows that have a number or nothing between marks, and perhaps a label.

    Parameters
    ----------
    mark
        Character between two cells.
    columns
        Of each cell the column of the matrix; -1 for the label.
    parse_label
        Function that makes a label of its text. It raises a ValueError for one that it does not take.

    Examples
    --------
    >>> cells = CellNumbers(",", [1, -1, 0], str)
    >>> cells.decode(*laid_out([b"1,yes,0.5", b"2,no,"]))
    (array([[0.5, 1. ],
           [nan, 2. ]]), ['yes', 'no'])
    >>> cells.decode(*laid_out([b"1,yes,spam"])) is None
    True
    """

    def __init__(self, mark: str, columns: Sequence[int], parse_label: Callable[[str], Any]) -> None:
        self._mark, self._columns = ord(mark), np.array(columns, dtype=np.int64)
        self._labels = _Labels(parse_label) if -1 in columns else None

    def decode(self, data: bytes, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, list[Any]] | None:
        """Return the features of rows, float64 [rows, columns], and their labels, as `JSONNumbers.decode`.

        Numbers are as in JSON; others that `float` reads are not read.
        """
        n = len(begins)
        X, labels = np.empty((n, int(self._columns.max()) + 1)), np.empty((n, 2), dtype=np.int64)
        rows = np.frombuffer(data, np.uint8)
        if read_cells(rows, begins, ends, self._mark, self._columns, X, X.view(np.uint64), labels) < n or not _within_float32(X):
            return None
        y = [None] * n if self._labels is None else self._labels.of(data, labels)
        return None if y is None else (X, y)


def _within_float32(X: np.ndarray) -> bool:
    return not (np.abs(X) > _LARGEST_NUMBER).any()  # as NaN is not


def laid_out(rows: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return rows behind each other: their bytes, and int64 [rows] where each begins and ends."""
    ends = np.fromiter(map(len, rows), np.int64, len(rows)).cumsum()
    return b"".join(rows), np.concatenate([[0], ends[:-1]]), ends
