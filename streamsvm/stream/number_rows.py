"""Rows of JSON objects as a matrix, where each has the same names and a number for each of them."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np

from streamsvm.core.json_numbers import read_rows

_LARGEST = float(np.finfo(np.float32).max)
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1  # beyond these, some parsers read a whole number as a float
_MOST_LABELS = 4096  # whose texts are remembered


class NumberRows:
    """Reads rows that have exactly the features of some names, all of them numbers, and perhaps a label.

    The values are those that a parser of JSON and `float` give. What else a row may be is for others to read.

    Examples
    --------
    >>> rows = NumberRows(["a", "b"], "y")
    >>> data = b'{"a": 1, "b": -2.5, "y": "yes"}' + b'{"y": null, "b": 3, "a": 4}'
    >>> rows.read(data, np.array([0, 31]), np.array([31, len(data)]))
    (array([[ 1. , -2.5],
           [ 4. ,  3. ]]), ['yes', None])
    >>> rows.read(b'{"a": 1}', np.array([0]), np.array([8])) is None
    True
    """

    def __init__(self, names: Sequence[Hashable], label: str | None) -> None:
        self.names: list[Hashable] = list(names)
        known = self.names if label is None else [*self.names, label]
        usable = bool(names) and all(isinstance(name, str) for name in known) and len(set(known)) == len(known)
        # With letters beyond ASCII as they are, or escaped: a stream has the one or the other.
        self._spellings = [_Spelling(known, escaped) for escaped in (False, True)] if usable else []
        self._usable = usable and all(each.texts is not None for each in self._spellings)
        self._labels: dict[bytes, Any] = {b"": None}

    def read(self, data: bytes, begins: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, list[Any]] | None:
        """Return the features of rows, float64 [rows, names], and their labels; None where one is of another form.

        The rows lie in ``data``, each from where it begins to where it ends, int64 [rows].
        """
        if not self._usable:
            return None
        X = np.empty((len(begins), len(self.names)))
        places = np.empty((len(begins), 2), dtype=np.int64)
        rows, bits = np.frombuffer(data, np.uint8), X.view(np.uint64)
        for names in tuple(self._spellings):
            n = read_rows(rows, begins, ends, names.texts, names.stops, names.order, X, bits, places)
            if n == len(begins):
                break
            self._spellings.reverse()
        if n < len(begins) or not np.abs(X).max() <= _LARGEST:
            return None
        texts = [data[begin:end] for begin, end in places.tolist()]
        if not (new := set(texts) - self._labels.keys()):
            return X, list(map(self._labels.__getitem__, texts))
        if len(self._labels) + len(new) > _MOST_LABELS:
            self._labels = {b"": None}
            new = set(texts) - self._labels.keys()
        for text in new:
            try:
                label = json.loads(text.decode())
            except ValueError:  # a word that is none, or bytes that are no text
                return None
            if isinstance(label, int) and not _LEAST_INT <= label <= _MOST_INT:
                return None
            if isinstance(label, float) and not math.isfinite(label):
                return None
            self._labels[text] = label
        return X, list(map(self._labels.__getitem__, texts))


class _Spelling:
    """Names as JSON has them, behind each other: ``texts`` is None where JSON cannot have them."""

    def __init__(self, names: Sequence[Hashable], escaped: bool) -> None:
        texts = [json.dumps(name, ensure_ascii=escaped) for name in names]
        self.texts: np.ndarray | None = None
        self.stops: np.ndarray = np.cumsum([len(text.encode(errors="replace")) for text in texts], dtype=np.int64)
        self.order: np.ndarray = np.arange(len(texts))
        with contextlib.suppress(UnicodeEncodeError):  # of half a surrogate pair
            self.texts = np.frombuffer("".join(texts).encode(), np.uint8)
