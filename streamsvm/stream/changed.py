"""Columns that are gone, new or of another kind since a checkpoint."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from functools import partial
from typing import Any

from streamsvm.files.messages import shown
from streamsvm.stream.rows import is_number, listed
from streamsvm.stream.tables.chunk import is_absent
from streamsvm.stream.tables.encoder import TableEncoder

#: Rows that are looked at, and the fewest of which anything is said.
ROWS, LEAST = 100, 50
_MOST_COLUMNS = 100


class ChangedColumns:
    """Compares the first rows after a checkpoint with the columns that were learned before it.

    Of an ``encoder``, a column that fewer than half of the rows had is never called gone. Rows that have fewer than half of the
    columns are sparse, and nothing is said of theirs.

    Examples
    --------
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
        self._known, self._usual = set(known), set(known if encoder is None else encoder.usual_columns)
        self.rows: int = 0
        self._cells = 0  # of columns that are known
        self._came: set[Hashable] = set()
        self._new: dict[Hashable, None] = {}
        self._odd: dict[Hashable, Any] = {}

    def add(self, x: Any) -> None:
        """Look at a row."""
        if not isinstance(x, Mapping):
            return
        self.rows += 1
        for name, value in x.items():
            if value is None or is_absent(value) or (self._encoder is not None and self._encoder.drops(name)):
                continue
            if name not in self._known:
                if len(self._new) < _MOST_COLUMNS:
                    self._new[name] = None
                continue
            self._came.add(name)
            self._cells += 1
            takes = is_number if self._encoder is None else partial(self._encoder.takes, name)
            if name not in self._odd and not takes(value):
                self._odd[name] = value

    @property
    def text(self) -> str:
        """What has changed; nothing if all is as it was."""
        if 2 * self._cells < self.rows * len(self._known):
            return ""
        found = []
        if gone := sorted(self._usual - self._came, key=str):
            found.append(f"{listed(gone, 5)} {'is' if len(gone) == 1 else 'are'} gone (it counts as missing)")
        if self._new:
            found.append(f"{listed(list(self._new), 5)} {'is' if len(self._new) == 1 else 'are'} new")
        found += [f"{name!r} has other values, such as {shown(value)}" for name, value in [*self._odd.items()][:5]]
        return ", ".join(found)
