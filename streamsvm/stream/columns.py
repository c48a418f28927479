"""A comparison of the columns of a stream with those that its model has learned."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.saved import Resumable
from streamsvm.stream.rows import format_names
from streamsvm.stream.tables.chunk import Table, Values, is_null
from streamsvm.stream.tables.encoder import TableEncoder

_MAX_NEW_COLUMNS = 100  # whose rows are counted


class ColumnMonitor(Resumable):
    r"""Counts the rows that have a value in each column, and compares the columns with those that a model has learned.

    A row with just the columns that were learned costs one comparison, unless an encoder reads it. Memory is bounded.

    Parameters
    ----------
    learned
        The columns of the model; without any, nothing is counted.
    encoder
        The encoder that has learned the names in columns of names; None if there is none.
    ignored
        Columns that need not be learned, such as those that predictions keep.

    Attributes
    ----------
    rows : int
        Number of rows that were counted.

    Examples
    --------
    >>> encoder = TableEncoder("city:category")
    >>> encoder.learn_one({"city": "Paris", "age": 31})
    >>> monitor = ColumnMonitor(encoder.learned_columns, encoder)
    >>> for x in ({"city": "Oslo", "size": 2}, {"city": "Paris"}):
    ...     monitor.add_row(x)
    >>> print(*monitor.sentences, sep="\n")
    column 'age' was learned, and no row has it: it counts as missing
    column 'size' was never learned: it is left out (1 of 2 rows)
    column 'city' has names that were never learned (1 of 2 rows)
    >>> monitor.changes
    "'age' is gone (it counts as missing), 'size' is new"
    >>> monitor = ColumnMonitor(["Age"])
    >>> monitor.add_row({"age": 31})
    >>> monitor.sentences[1]
    "column 'age' was never learned: it is left out (1 of 1 rows). Is it 'Age'? It is written 'age'"
    """

    _saved_attributes = ("rows", "_complete", "_values", "_unknown_names")

    def __init__(
        self, learned: Sequence[Hashable] = (), encoder: TableEncoder | None = None, ignored: Sequence[Hashable] = ()
    ) -> None:
        self.compare_with(learned, encoder)
        self._ignored = frozenset(ignored)
        self.rows: int = 0
        self._complete = 0  # rows with just the columns that were learned, which are not in `_values`
        self._values: Counter[Hashable] = Counter()  # rows that have a value, by column
        self._unknown_names: Counter[Hashable] = Counter()  # rows with a name that was never learned, by column

    def compare_with(self, learned: Sequence[Hashable], encoder: TableEncoder | None) -> None:
        """Compare with the columns of another model from now on."""
        self._learned, self._encoder = dict.fromkeys(learned), encoder
        self._usual = self._learned.keys() if encoder is None else set(encoder.column_state.frequent_columns)

    @property
    def compares(self) -> bool:
        """Whether there are columns to compare with."""
        return bool(self._learned)

    def add_row(self, x: Any) -> None:
        """Count a row."""
        if not self._learned or not isinstance(x, Mapping):
            return
        self.rows += 1
        if self._encoder is None and x.keys() == self._learned.keys() and None not in x.values():
            self._complete += 1
            return
        for name, value in x.items():
            if value is not None and not is_null(value):
                self._add_values(name, [value], 1)

    def add_table(self, table: Table, first: int, end: int) -> None:
        """Count the rows of a table from one number to before another."""
        if not self._learned:
            return
        self.rows += end - first
        for name, values in zip(table.names, table.columns, strict=True):
            part = values[first:end]
            if isinstance(part, np.ndarray):
                n = int(np.count_nonzero(part == part))
            else:
                n = len(part) - part.count(None)
            if n:
                self._add_values(name, part, n)

    def _add_values(self, name: Hashable, values: Values, n: int) -> None:
        if name in self._learned:
            self._values[name] += n
            if self._encoder is not None and (unknown := self._encoder.column_state.count_unknown_names(name, values)):
                self._unknown_names[name] += unknown
        elif name in self._ignored or (self._encoder is not None and self._encoder.drops(name)):
            return
        elif name in self._values or len(self._values) < len(self._learned) + _MAX_NEW_COLUMNS:
            self._values[name] += n

    @property
    def facts(self) -> dict[str, dict[str, int] | list[str]]:
        """The counts: columns that never came, rows with each column that was never learned, and rows with unknown names."""
        values = dict(self._values)  # a copy, because another thread may count rows meanwhile
        never = [name for name in self._learned if name not in values] if self.rows and not self._complete else []
        return {
            "missing_columns": list(map(str, never)),
            "unknown_columns": {str(name): n for name, n in values.items() if name not in self._learned},
            "unknown_names": {str(name): n for name, n in dict(self._unknown_names).items()},
        }

    @property
    def sentences(self) -> list[str]:
        """The counts in words; empty if the model has learned all that came."""
        facts: Any = self.facts
        sentences = []
        if never := facts["missing_columns"]:
            were, them, they = ("were", "them", "they count") if len(never) > 1 else ("was", "it", "it counts")
            sentences.append(
                f"column{'s' * (len(never) > 1)} {format_names(never, 10)} {were} learned, and no row has {them}: "
                f"{they} as missing"
            )
        for name, n in facts["unknown_columns"].items():
            alike = next((f". Is it {other!a}? It is written {name!a}" for other in never if _folded(other) == _folded(name)), "")
            sentences.append(f"column {name!r} was never learned: it is left out ({n:,} of {self.rows:,} rows){alike}")
        for name, n in facts["unknown_names"].items():
            sentences.append(f"column {name!r} has names that were never learned ({n:,} of {self.rows:,} rows)")
        return sentences

    @property
    def gone(self) -> list[Hashable]:
        """The columns that most rows had while the model learned, and no row has now."""
        return [] if self._complete else sorted(self._usual - self._values.keys(), key=str)

    @property
    def changes(self) -> str:
        """The columns that are gone, and those that half of the rows have and were never learned, in words.

        The text is empty if rows are sparse: if they have fewer than half of the columns.
        """
        cells = sum(n for name, n in self._values.items() if name in self._learned) + self._complete * len(self._learned)
        if 2 * cells < self.rows * len(self._learned):
            return ""
        changes = []
        if gone := self.gone:
            changes.append(f"{format_names(gone, 5)} {'is' if len(gone) == 1 else 'are'} gone (it counts as missing)")
        if new := [name for name, n in self._values.items() if name not in self._learned and 2 * n >= self.rows]:
            changes.append(f"{format_names(new, 5)} {'is' if len(new) == 1 else 'are'} new")
        return ", ".join(changes)

    @property
    def foreign(self) -> str:
        """A sentence, if rows have columns, and none of them was learned; else an empty text."""
        if self._complete or not self._values or not self._learned.keys().isdisjoint(self._values):
            return ""
        names = f"they have {format_names(self._values, 5)}; learned were {format_names(self._learned, 5)}"
        return f"the rows have none of the columns that the model has learned ({names})"


def _folded(name: str) -> str:
    """Return a name in a form that is equal for names which differ in case, blanks and forms of the same letters."""
    return unicodedata.normalize("NFKC", name).casefold().strip()
