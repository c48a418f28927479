"""Columns and names that a model has not met: of rows to predict, and of the first ones after a checkpoint."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.files.messages import shown
from streamsvm.stream.rows import is_number, listed
from streamsvm.stream.tables.chunk import Table, Values, is_absent
from streamsvm.stream.tables.encoder import TableEncoder
from streamsvm.stream.tables.model import takes_value, usual_columns

_MOST_COLUMNS = 100  # of which rows are counted


class Unfamiliar:
    r"""Counts what rows to predict have that their model has not met.

    ``learned`` are the columns of the model; if there are none, nothing is counted. ``encoder`` has learned the names in columns
    of names. Columns that it drops need not be learned, nor those that are ``ignored``, because predictions keep them.

    >>> encoder = TableEncoder(categorical="city")
    >>> encoder.learn_one({"city": "Paris", "age": 31})
    >>> found = Unfamiliar(encoder.columns, encoder)
    >>> for x in ({"city": "Oslo", "size": 2}, {"city": "Paris"}):
    ...     found.add_row(x)
    >>> print(*found.sentences, sep="\n")
    column 'age' was learned, and no row has it: it counts as missing
    column 'size' was never learned: it is left out (1 of 2 rows)
    column 'city' has names that were never learned (1 of 2 rows)
    >>> found = Unfamiliar(["Age"], None)
    >>> found.add_row({"age": 31})
    >>> found.sentences[1]
    "column 'age' was never learned: it is left out (1 of 1 rows). Is it 'Age'? It is written 'age'"
    """

    def __init__(self, learned: Sequence[Hashable], encoder: TableEncoder | None, ignored: Sequence[Hashable] = ()) -> None:
        self._learned, self._encoder = dict.fromkeys(learned), encoder
        self._ignored = frozenset([*ignored, *(() if encoder is None else encoder.drop)])
        self._rows = 0
        self._came: set[Hashable] = set()
        self._columns: Counter[Hashable] = Counter()
        self._names: Counter[Hashable] = Counter()

    def add_row(self, x: Any) -> None:
        """Count a row."""
        if isinstance(x, Mapping) and self._learned:
            self._rows += 1
            for name, value in x.items():
                if value is not None and not is_absent(value):
                    self._add_column(name, [value], 1)

    def add_table(self, table: Table, first: int, end: int) -> None:
        """Count the rows of a table from one number to before another."""
        if self._learned:
            self._rows += end - first
            for name, values in zip(table.names, table.columns, strict=True):
                some = values[first:end]
                n = (
                    int(np.count_nonzero(some == some))
                    if isinstance(some, np.ndarray)
                    else sum(value is not None for value in some)
                )
                if n:
                    self._add_column(name, some, n)

    def _add_column(self, name: Hashable, values: Values, n: int) -> None:
        if name in self._learned:
            self._came.add(name)
            if self._encoder is not None and (unknown := self._encoder.n_unknown(name, values)):
                self._names[name] += unknown
        elif name not in self._ignored and (len(self._columns) < _MOST_COLUMNS or name in self._columns):
            self._columns[name] += n

    @property
    def facts(self) -> dict[str, Any]:
        """The counts: columns that never came, rows with each column that was never learned, and rows with unknown names."""
        never = [name for name in self._learned if name not in self._came] if self._rows else []
        return {
            "missing_columns": list(map(str, never)),
            "unknown_columns": {str(name): n for name, n in self._columns.items()},
            "unknown_names": {str(name): n for name, n in self._names.items()},
        }

    @property
    def sentences(self) -> list[str]:
        """The counts in words; none if all is familiar."""
        facts, found = self.facts, []
        if never := facts["missing_columns"]:
            they = "they count" if len(never) > 1 else "it counts"
            found.append(
                f"{_columns_text(never)} learned, and no row has {'them' if len(never) > 1 else 'it'}: {they} as missing"
            )
        for name, n in facts["unknown_columns"].items():
            alike = next((f". Is it {each!a}? It is written {name!a}" for each in never if _folded(each) == _folded(name)), "")
            found.append(f"column {name!r} was never learned: it is left out ({n:,} of {self._rows:,} rows){alike}")
        for name, n in facts["unknown_names"].items():
            found.append(f"column {name!r} has names that were never learned ({n:,} of {self._rows:,} rows)")
        return found


def _folded(name: str) -> str:
    """Return a name as those have it that differ in case, blanks and forms of the same letters."""
    return unicodedata.normalize("NFKC", name).casefold().strip()


def _columns_text(names: Sequence[str]) -> str:
    return f"column{'s' * (len(names) > 1)} {listed(names, 10)} {'were' if len(names) > 1 else 'was'}"


#: Rows that are looked at, and the fewest of which anything is said.
ROWS, LEAST = 100, 50


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
        """The changes in words; nothing if all is as it was."""
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
