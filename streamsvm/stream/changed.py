"""Columns that are gone, new or of another kind since a checkpoint."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Mapping
from typing import Any

from streamsvm.files.messages import shown
from streamsvm.stream.rows import is_number, listed
from streamsvm.stream.tables.chunk import is_absent
from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.model import takes_value, usual_columns

#: Rows that are looked at, and the fewest of which anything is said.
ROWS, LEAST = 100, 50
_MOST_COLUMNS = 100


class ChangedColumns:
    """Compares the first rows after a checkpoint with the columns that were learned before it.

    A column is new if half of them have it, and has other values if half of those there are none of its kind. Of an ``encoder``,
    one that fewer than half of the rows had is never called gone. Rows that have fewer than half of the columns are sparse, and
    nothing is said of theirs.

    >>> encoder = TableEncoder(categorical="city")
    >>> for _ in range(9):
    ...     encoder.learn_one({"city": "Paris", "age": 31, "size": 2})
    >>> changed = ChangedColumns(encoder.columns, encoder)
    >>> for _ in range(50):
    ...     changed.add({"age": "thirty", "size": 2, "height": 1.5})
    >>> changed.text
    "'city' is gone (it counts as missing), 'height' is new, 'age' has other values, such as 'thirty'"
    """

    def __init__(self, known: Collection[Hashable], encoder: TableEncoder | None) -> None:
        self._encoder = encoder
        self._known, self._usual = set(known), set(known if encoder is None else usual_columns(encoder))
        self.rows: int = 0
        self._cells = 0  # of columns that are known
        self._came: Counter[Hashable] = Counter()
        self._new: Counter[Hashable] = Counter()
        self._odd: Counter[Hashable] = Counter()
        self._examples: dict[Hashable, Any] = {}  # of odd values

    def add(self, x: Any) -> None:
        """Look at a row."""
        if not isinstance(x, Mapping):
            return
        self.rows += 1
        for name, value in x.items():
            if value is None or is_absent(value):
                continue
            is_right = is_number(value) if self._encoder is None else takes_value(self._encoder, name, value)
            if is_right is None:
                continue
            if name not in self._known:
                if len(self._new) < _MOST_COLUMNS or name in self._new:
                    self._new[name] += 1
                continue
            self._came[name] += 1
            self._cells += 1
            if not is_right:
                self._odd[name] += 1
                self._examples.setdefault(name, value)

    @property
    def text(self) -> str:
        """What has changed; nothing if all is as it was."""
        if 2 * self._cells < self.rows * len(self._known):
            return ""
        found = []
        if gone := sorted(self._usual - self._came.keys(), key=str):
            found.append(f"{listed(gone, 5)} {'is' if len(gone) == 1 else 'are'} gone (it counts as missing)")
        if new := [name for name, n in self._new.items() if 2 * n >= self.rows]:
            found.append(f"{listed(new, 5)} {'is' if len(new) == 1 else 'are'} new")
        odd = [name for name, n in self._odd.items() if 2 * n >= self._came[name]]
        found += [f"{name!r} has other values, such as {shown(self._examples[name])}" for name in odd[:5]]
        return ", ".join(found)
