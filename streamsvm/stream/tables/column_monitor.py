"""Compares the columns, categories and labels of a stream with those that its model has learned."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Collection, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from streamsvm.core.saved import Resumable
from streamsvm.core.warning import warn
from streamsvm.files.category_names import normalize_spelling
from streamsvm.files.messages import format_names, short_repr
from streamsvm.stream.tables.chunk import Table, Values, is_null

_MAX_NEW_COLUMNS = 100  # unknown columns that are counted
_MAX_SHOWN_COLUMNS, _MAX_SHOWN_VALUES = 10, 3  # in one message
_MAX_EXAMPLES, _MAX_EXAMPLE_CHARS = 10, 100  # unknown values that are counted separately, of each column; and their length
_LABEL, _NAME, _DATE = "label", "name", "date"  # kinds of unknown values
_ROWS, _HOURS, _MIN_HOURS = "rows", "hours", 48  # what is counted of dates; larger distances are shown in days


class ColumnMonitor(Resumable):
    r"""Counts the rows that have a value in each column, and compares columns, categories and labels with the learned ones.

    Without an encoder, a row with exactly the learned columns costs one comparison. Memory is bounded.

    Parameters
    ----------
    learned
        The columns of the model. If they are empty, nothing is counted.
    encoder
        The `TableEncoder` that has learned the names in columns of categories; None for a model without one.
    ignored
        Columns that need not be learned, such as passthrough columns.
    labels
        The labels of the model. If they are empty, labels are not compared.

    Attributes
    ----------
    rows : int
        Number of rows that were counted.

    Examples
    --------
    >>> from streamsvm.stream.tables import TableEncoder
    >>> encoder = TableEncoder("city:category")
    >>> encoder.learn_one({"city": "Paris", "age": 31})
    >>> monitor = ColumnMonitor(encoder.learned_columns, encoder, labels=[0, 1])
    >>> for x in ({"city": "paris", "size": 2}, {"city": "Paris"}):
    ...     monitor.add_row(x)
    >>> monitor.add_labels(["no", "1"])
    >>> print(*monitor.messages, sep="\n")
    column 'age' was learned, and no row has it: it counts as missing
    column 'size' was never learned: it is left out (1 of 2 rows)
    column 'city' has names that were never learned (1 of 2 rows): 'paris' (like 'Paris')
    labels that were never learned (2 of 2 rows): '1' (like 1), 'no'. Learned were 0, 1
    >>> monitor.describe_changes()
    "'age' is gone (it counts as missing), 'size' is new"
    >>> monitor = ColumnMonitor(["Age"])
    >>> monitor.add_row({"age": 31})
    >>> monitor.messages[1]
    "column 'age' was never learned: it is left out (1 of 1 rows). Is it 'Age'? It is written 'age'"
    """

    _saved_attributes = ("rows", "_complete", "_values", "_unknown_values")

    def __init__(
        self, learned: Sequence[Hashable] = (), encoder: Any = None, ignored: Sequence[Hashable] = (), labels: Sequence[Any] = ()
    ) -> None:
        self.compare_with(learned, encoder, labels)
        self._ignored = frozenset(ignored)
        self.rows: int = 0
        self._has_described_changes = False  # then the messages leave out the learned columns that are missing
        self._complete = 0  # rows with exactly the learned columns, which are not counted in `_values`
        self._values: Counter[Hashable] = Counter()  # rows with a value, by column
        # Rows with a value that was not learned, by kind, column and value. None stands for values beyond `_MAX_EXAMPLES`.
        self._unknown_values: Counter[tuple[str, Hashable, Any]] = Counter()

    def resume(self, state: Any) -> None:
        if isinstance(state, dict) and (names := state.pop("unknown_names", None)) is not None:  # an older version: no examples
            state["unknown_values"] = Counter({(_NAME, column, None): n for column, n in names.items()})
        super().resume(state)

    def compare_with(self, learned: Sequence[Hashable], encoder: Any, labels: Sequence[Any] = ()) -> None:
        """Set the columns with which rows are compared from now on: ``learned`` has the names of the columns that a model has
        learned. ``encoder`` is the `TableEncoder` of this model, which knows the learned category names; None if the model has no
        encoder. ``labels`` are its labels; empty: labels are not compared.
        """
        self._learned, self._encoder, self._labels = dict.fromkeys(learned), encoder, list(labels)
        self._valid_labels = {None, *labels}
        self._usual = self._learned.keys() if encoder is None else set(encoder.column_state.frequent_columns)

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

    def mark_present(self, names: Collection[Hashable]) -> None:
        """Treat the learned columns among ``names`` as present, even if all of their values are missing."""
        self._values.update({name: 0 for name in names if name in self._learned})

    def add_labels(self, ys: Collection[Any]) -> None:
        """Count the labels among ``ys`` that the model has not learned; None and NaN are ignored."""
        if self._labels and not self._valid_labels.issuperset(ys):
            self._count_unknown(_LABEL, None, Counter(y for y in ys if y not in self._valid_labels and not is_null(y)))

    def _count_unknown(self, kind: str, column: Hashable, counts: Mapping[Any, int]) -> None:
        """Add the number of rows with each unknown value of a column. Only the first ten values are counted separately."""
        for value, n in counts.items():
            key = kind, column, value[:_MAX_EXAMPLE_CHARS] if isinstance(value, str) else value
            if key not in self._unknown_values and len(self._unknown[kind, column]) >= _MAX_EXAMPLES:
                key = kind, column, None
            self._unknown_values[key] += n

    @property
    def _unknown(self) -> dict[tuple[str, Hashable], Counter[Any]]:
        """The number of rows with each unknown value, by kind and column."""
        groups: dict[tuple[str, Hashable], Counter[Any]] = defaultdict(Counter)
        for (kind, column, value), n in dict(self._unknown_values).items():  # a copy, because another thread may count rows
            groups[kind, column][value] += n
        return groups

    def _add_values(self, name: Hashable, values: Values, n: int) -> None:
        """Add ``n`` to the number of rows with a value in the column ``name``. If the model has learned this column, also count
        those of ``values`` that are category names unknown to its encoder.
        """
        if name in self._learned:
            self._values[name] += n
            if self._encoder is not None:
                self._count_unknown(_NAME, name, self._encoder.column_state.find_unknown_names(name, values))
                n_beyond, distance = self._encoder.column_state.measure_dates_beyond(name, values)
                if n_beyond:
                    self._unknown_values[_DATE, name, _ROWS] += n_beyond
                    hours = math.ceil(distance / 3600.0)
                    self._unknown_values[_DATE, name, _HOURS] = max(self._unknown_values[_DATE, name, _HOURS], hours)
        elif name in self._ignored or (self._encoder is not None and self._encoder.drops(name)):
            return
        elif name in self._values or len(self._values) < len(self._learned) + _MAX_NEW_COLUMNS:
            self._values[name] += n

    @property
    def counts(self) -> dict[str, dict[str, int] | list[str]]:
        """The differences between the rows and the learned columns, as a dict: the learned columns that no row has, the number of
        rows with each unlearned column, the number of rows with unlearned category names, by column, with unlearned labels, and
        with dates beyond those learned, by column.
        """
        values, unknown = dict(self._values), self._unknown  # copies, because another thread may count rows meanwhile
        missing = [name for name in self._learned if name not in values] if self.rows and not self._complete else []
        return {
            "missing_columns": list(map(str, missing)),
            "unknown_columns": {str(name): n for name, n in values.items() if name not in self._learned},
            "unknown_names": {str(column): values.total() for (kind, column), values in unknown.items() if kind == _NAME},
            "unknown_labels": {str(label): n for label, n in unknown[_LABEL, None].items()},
            "dates_beyond": {str(column): int(values[_ROWS]) for (kind, column), values in unknown.items() if kind == _DATE},
        }

    @property
    def messages(self) -> list[str]:
        """One message for the user about each difference between the rows and the learned columns, categories and labels; empty
        without differences.
        """
        return self.make_messages()

    def make_messages(self, min_share: float = 0.0) -> list[str]:
        """Return the `messages`, without values that are in at most a share ``min_share`` of the rows and do not resemble a
        learned value.
        """
        counts: Any = self.counts
        messages = []
        if (missing := counts["missing_columns"]) and not self._has_described_changes:
            were, object_, they_count = ("were", "them", "they count") if len(missing) > 1 else ("was", "it", "it counts")
            start = f"column{'s' * (len(missing) > 1)} {format_names(missing, 10)} {were} learned"
            messages.append(f"{start}, and no row has {object_}: {they_count} as missing")
        unknown = {name: n for name, n in counts["unknown_columns"].items() if n > min_share * self.rows}
        if len(unknown) > _MAX_SHOWN_COLUMNS:
            names = format_names(unknown, _MAX_SHOWN_COLUMNS)
            messages.append(f"{len(unknown)} columns were never learned: they are left out ({names})")
        for name, n in unknown.items() if len(unknown) <= _MAX_SHOWN_COLUMNS else ():
            similar = [column for column in missing if normalize_spelling(column) == normalize_spelling(name)]
            hint = f". Is it {similar[0]!a}? It is written {name!a}" if similar else ""
            messages.append(f"column {name!r} was never learned: it is left out ({n:,} of {self.rows:,} rows){hint}")
        dates = {name: values for (kind, name), values in self._unknown.items() if kind == _DATE}
        # A frame may continue that of before, and be learned next: then its first dates are not beyond.
        dates = {str(name): n for name, n in dates.items() if n[_ROWS] >= (self._values[name] if min_share else 1)}
        if dates:
            n, hours = (max(counter[key] for counter in dates.values()) for key in (_ROWS, _HOURS))
            distance = f"{hours / 24:,.0f} days" if hours >= _MIN_HOURS else f"{hours} hour{'s' * (hours > 1)}"
            start = f"column {format_names(dates, 5)} is" if len(dates) == 1 else f"columns {format_names(dates, 5)} are"
            message = f"{start} up to {distance} beyond the dates that were learned"
            messages.append(f"{message} ({n:,} of {self.rows:,} rows): the model has to extrapolate")
        for (kind, column), values in self._unknown.items():
            if kind == _DATE:
                continue
            similar_names = {value: self._find_similar(kind, column, value) for value in values if value is not None}
            hints = {value: "" if name is None else f" (like {short_repr(name)})" for value, name in similar_names.items()}
            if values.total() <= min_share * self.rows and not any(hints.values()):
                continue
            shown = sorted(hints, key=lambda value: not hints[value])[:_MAX_SHOWN_VALUES]
            examples = ", ".join([f"{short_repr(value)}{hints[value]}" for value in shown] + ["..."] * (len(values) > len(shown)))
            start = "labels" if kind == _LABEL else f"column {str(column)!r} has names"
            learned = f". Learned were {format_names(self._labels, 5)}" if kind == _LABEL else ""
            messages.append(f"{start} that were never learned ({values.total():,} of {self.rows:,} rows): {examples}{learned}")
        return messages

    def _find_similar(self, kind: str, column: Hashable, value: Any) -> Any:
        """Return a learned category of a column, or a learned label, that differs from ``value`` only in its spelling or type;
        otherwise None.
        """
        if kind == _NAME:
            return None if self._encoder is None else self._encoder.column_state.find_similar_name(column, value)
        return next((label for label in self._labels if normalize_spelling(str(label)) == normalize_spelling(str(value))), None)

    def describe_changes(self) -> str:
        """Return a text that names the columns that are gone (most rows had them while the model learned, and no counted row has
        them), and the columns that the model has not learned although at least half of the rows have them. The `messages` then
        leave out columns that are gone.

        The text is empty if no column is gone, or rows are sparse: if they have fewer than half of the columns.
        """
        gone = [] if self._complete else sorted(self._usual - self._values.keys(), key=str)
        new = [name for name, n in self._values.items() if name not in self._learned and 2 * n >= self.rows]
        cells = sum(n for name, n in self._values.items() if name in self._learned) + self._complete * len(self._learned)
        if 2 * cells < self.rows * len(self._learned) or not gone:
            return ""
        self._has_described_changes = True
        changes = [(names, text) for names, text in ((gone, "gone (it counts as missing)"), (new, "new")) if names]
        return ", ".join(f"{format_names(names, 5)} {'is' if len(names) == 1 else 'are'} {text}" for names, text in changes)

    @property
    def mismatch(self) -> str:
        """A message if the counted rows and the model have no column in common, so that the model is probably the wrong one; else
        ``""``.
        """
        if self._complete or not self._values or not self._learned.keys().isdisjoint(self._values):
            return ""
        names = f"they have {format_names(self._values, 5)}; learned were {format_names(self._learned, 5)}"
        return f"the rows have none of the columns that the model has learned ({names})"


class GapWatch:
    """Warns, once, of a row that lacks a number which the longest row before it has: it counts as 0 for a ``learner`` without an
    encoder. ``source`` is the name of the source in the message.

    A flag, whose value is 1, may be absent, and so may most columns of a sparse row: there, absent numbers are 0.
    """

    def __init__(self, source: str) -> None:
        self._source, self._has_warned = source, False
        self._longest: Mapping[Any, Any] = {}
        #: Number of columns of rows that need not be added.
        self.n_columns: int = 0

    def add_row(self, x: Mapping[Any, Any], row: int, learner: Any) -> None:
        """Compare a row with the features ``x``, number ``row`` of the stream, with those before it. Only features of the
        ``learner`` count.
        """
        if len(x) > self.n_columns:
            self._longest, self.n_columns = x, len(x)
        if self._has_warned or 2 * len(x) < self.n_columns or not x.keys() < self._longest.keys():
            return
        if gaps := [name for name in learner.feature_names if name not in x and self._longest.get(name, 0) not in (0, 1)]:
            self._has_warned = True
            text = f"{self._source}: row {row + 1:,} lacks {gaps[0]!r}, which counts as 0 for this model: write a number there"
            warn(f"{text}. Only a new model can take its mean (--when-missing mean, or a TableEncoder). This is said once")
