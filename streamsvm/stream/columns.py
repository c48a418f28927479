"""Compares the columns of a stream with those that its model has learned."""

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

_MAX_NEW_COLUMNS = 100  # unknown columns that are counted


class ColumnMonitor(Resumable):
    r"""Counts the rows that have a value in each column, and compares the columns with those that a model has learned.

    Without an encoder, a row with exactly the learned columns costs one comparison. Memory is bounded.

    Parameters
    ----------
    learned
        The columns of the model. If they are empty, nothing is counted.
    encoder
        The encoder that has learned the names in columns of categories; None for a model without one.
    ignored
        Columns that need not be learned, such as passthrough columns.

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
    >>> print(*monitor.messages, sep="\n")
    column 'age' was learned, and no row has it: it counts as missing
    column 'size' was never learned: it is left out (1 of 2 rows)
    column 'city' has names that were never learned (1 of 2 rows)
    >>> monitor.change_summary
    "'age' is gone (it counts as missing), 'size' is new"
    >>> monitor = ColumnMonitor(["Age"])
    >>> monitor.add_row({"age": 31})
    >>> monitor.messages[1]
    "column 'age' was never learned: it is left out (1 of 1 rows). Is it 'Age'? It is written 'age'"
    """

    _saved_attributes = ("rows", "_complete", "_values", "_unknown_names")

    def __init__(
        self, learned: Sequence[Hashable] = (), encoder: TableEncoder | None = None, ignored: Sequence[Hashable] = ()
    ) -> None:
        self.compare_with(learned, encoder)
        self._ignored = frozenset(ignored)
        self.rows: int = 0
        self._complete = 0  # rows with exactly the learned columns, which are not counted in `_values`
        self._values: Counter[Hashable] = Counter()  # rows with a value, by column
        self._unknown_names: Counter[Hashable] = Counter()  # rows with a name that was not learned, by column

    def compare_with(self, learned: Sequence[Hashable], encoder: TableEncoder | None) -> None:
        """Set the columns with which rows are compared from now on: ``learned`` has the names of the columns that a model has
        learned. ``encoder`` is the encoder of this model, which knows the learned category names; None if the model has no
        encoder.
        """
        self._learned, self._encoder = dict.fromkeys(learned), encoder
        self._usual = self._learned.keys() if encoder is None else set(encoder.column_state.frequent_columns)

    @property
    def is_active(self) -> bool:
        """Whether the model has learned any columns. If not, this monitor counts nothing."""
        return bool(self._learned)

    def add_row(self, x: Any) -> None:
        """Count which columns have a value in the row ``x``, a dict of values by column name."""
        if not self._learned or not isinstance(x, Mapping):
            return
        self.rows += 1
        if self._encoder is None and x.keys() == self._learned.keys() and None not in x.values():
            self._complete += 1
            return
        for name, value in x.items():
            if value is not None and not is_null(value):
                self._add_values(name, [value], 1)

    def add_table(self, table: Table, start: int, stop: int) -> None:
        """Count which columns have values in rows ``start`` to ``stop`` (exclusive) of a table."""
        if not self._learned:
            return
        self.rows += stop - start
        for name, values in zip(table.names, table.columns, strict=True):
            part = values[start:stop]
            if isinstance(part, np.ndarray):
                n = int(np.count_nonzero(part == part))
            else:
                n = len(part) - part.count(None)
            if n:
                self._add_values(name, part, n)

    def _add_values(self, name: Hashable, values: Values, n: int) -> None:
        """Add ``n`` to the number of rows with a value in the column ``name``. If the model has learned this column, also count
        those of ``values`` that are category names unknown to its encoder.
        """
        if name in self._learned:
            self._values[name] += n
            if self._encoder is not None and (unknown := self._encoder.column_state.count_unknown_names(name, values)):
                self._unknown_names[name] += unknown
        elif name in self._ignored or (self._encoder is not None and self._encoder.drops(name)):
            return
        elif name in self._values or len(self._values) < len(self._learned) + _MAX_NEW_COLUMNS:
            self._values[name] += n

    @property
    def counts(self) -> dict[str, dict[str, int] | list[str]]:
        """The differences between the rows and the learned columns, as a dict: the learned columns that no row has, the number of
        rows with each unlearned column, and the number of rows with unlearned category names, by column.
        """
        values = dict(self._values)  # a copy, because another thread may count rows meanwhile
        missing = [name for name in self._learned if name not in values] if self.rows and not self._complete else []
        return {
            "missing_columns": list(map(str, missing)),
            "unknown_columns": {str(name): n for name, n in values.items() if name not in self._learned},
            "unknown_names": {str(name): n for name, n in dict(self._unknown_names).items()},
        }

    @property
    def messages(self) -> list[str]:
        """One message for the user about each difference between the rows and the learned columns; empty if the model has learned
        all columns and category names of the rows.
        """
        counts: Any = self.counts
        messages = []
        if missing := counts["missing_columns"]:
            were, object_, they_count = ("were", "them", "they count") if len(missing) > 1 else ("was", "it", "it counts")
            messages.append(
                f"column{'s' * (len(missing) > 1)} {format_names(missing, 10)} {were} learned, and no row has {object_}: "
                f"{they_count} as missing"
            )
        for name, n in counts["unknown_columns"].items():
            similar = [column for column in missing if _normalize_name(column) == _normalize_name(name)]
            hint = f". Is it {similar[0]!a}? It is written {name!a}" if similar else ""
            messages.append(f"column {name!r} was never learned: it is left out ({n:,} of {self.rows:,} rows){hint}")
        for name, n in counts["unknown_names"].items():
            messages.append(f"column {name!r} has names that were never learned ({n:,} of {self.rows:,} rows)")
        return messages

    @property
    def gone_columns(self) -> list[Hashable]:
        """Names of the columns that most rows had while the model learned, and that no counted row has."""
        return [] if self._complete else sorted(self._usual - self._values.keys(), key=str)

    @property
    def change_summary(self) -> str:
        """A text that names the columns that are gone (no counted row has them), and the columns that the model has not learned
        although at least half of the rows have them.

        It is empty without such columns, and if rows are sparse: if they have fewer than half of the columns.
        """
        cells = sum(n for name, n in self._values.items() if name in self._learned) + self._complete * len(self._learned)
        if 2 * cells < self.rows * len(self._learned):
            return ""
        changes = []
        if gone := self.gone_columns:
            changes.append(f"{format_names(gone, 5)} {'is' if len(gone) == 1 else 'are'} gone (it counts as missing)")
        if new := [name for name, n in self._values.items() if name not in self._learned and 2 * n >= self.rows]:
            changes.append(f"{format_names(new, 5)} {'is' if len(new) == 1 else 'are'} new")
        return ", ".join(changes)

    @property
    def mismatch(self) -> str:
        """A message if the counted rows and the model have no column in common, so that the model is probably the wrong one; else
        ``""``.
        """
        if self._complete or not self._values or not self._learned.keys().isdisjoint(self._values):
            return ""
        names = f"they have {format_names(self._values, 5)}; learned were {format_names(self._learned, 5)}"
        return f"the rows have none of the columns that the model has learned ({names})"


def _normalize_name(name: str) -> str:
    """Return a column name in lower case, without outer blanks, in Unicode form NFKC, to find names that differ only in these."""
    return unicodedata.normalize("NFKC", name).casefold().strip()
