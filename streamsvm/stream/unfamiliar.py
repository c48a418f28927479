"""Columns and names of rows to predict that their model has not met, counted."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.stream.rows import listed
from streamsvm.stream.tables.chunk import Table, Values, is_absent
from streamsvm.stream.tables.encoder import TableEncoder

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
                    self._add(name, [value], 1)

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
                    self._add(name, some, n)

    def _add(self, name: Hashable, values: Values, n: int) -> None:
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
