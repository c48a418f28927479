"""Texts that become a table without an object for each row: what formats share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

_MOST_TEXTS, _LONG = 4096, 256  # that are remembered, and bytes of one that is not
_FEW = 32  # that may all be new, and come again
_ODD_SHARE, _FEW_ODD = 8, 16  # one row of so many may be odd, and so many more


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

    ``read`` returns the value of a text. A ValueError says that it has none; the row is odd then.
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
        if len(new) > max(len(texts) // 2, _FEW):  # they will hardly come again
            with contextlib.suppress(ValueError):
                return list(map(self._read, texts))
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


def laid_out(rows: Sequence[bytes]) -> tuple[bytes, np.ndarray, np.ndarray]:
    """Return rows behind each other: their bytes, and int64 [rows] where each begins and ends."""
    ends = np.fromiter(map(len, rows), np.int64, len(rows)).cumsum()
    return b"".join(rows), np.concatenate([[0], ends[:-1]]), ends
