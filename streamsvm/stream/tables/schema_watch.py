"""Reports changes of the columns of a stream: it compares samples of the rows with earlier ones."""

from __future__ import annotations

import itertools
import logging
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from streamsvm.core.saved import Resumable
from streamsvm.stream.logs import event
from streamsvm.stream.tables.chunk import Chunk, Table, is_null
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, NUMBER
from streamsvm.stream.tables.table_parser import TableParser

logger: logging.Logger = logging.getLogger(__name__)
_WINDOW_ROWS = 500  # rows between two comparisons
# The sampled rows of a window: one of each 16, at irregular distances, so that all producers that take turns are sampled.
_SAMPLED_ROWS = np.array([16 * i + (i * 0x9E3779B1 >> 28) % 16 for i in range(_WINDOW_ROWS // 16)])
_MIN_VALUES = 8  # sampled rows of a window, and values of a column in it, that a comparison needs
_MAX_SHARES = 500  # that are compared
# In thousandths: the distance of a changed share from those before, the largest share of values in a column that is gone, and
# the least share of new categories.
_MARGIN, _MAX_GONE, _MIN_UNKNOWN = 300, 100, 800
# Numbers of windows: before missing values and categories are compared; that a changed share of missing values must last; and
# that a column without a header must be gone if no other is new.
_MIN_AGE, _MISSING_WINDOWS, _GONE_WINDOWS = 20, 10, 3
# Numbers of windows: before there are limits of the shares, by kind of values; and until limits have moved to the current share.
_WARM_UP_WINDOWS, _DECAY_WINDOWS = {"values": 2, "unknown": 8}, 64
_REPORTED = 1000  # marks a change that was reported, in place of a number of windows
_WORDS, _BITS = 10, 52  # of the hashes of a column's categories
_NUMBERS = TableParser()  # for models without an encoder
_CHANGES = {"gone": "is gone", "new": "is new", "missing": "has values", "unknown": "has unknown values"}


class SchemaWatch(Resumable):
    """Compares samples of a stream's rows with those before, every 500 rows, and logs each change of the schema once.

    A change is: a column is gone or new; or the share of its missing values, or of its unknown ones, is far beyond that of all
    earlier samples. In a source without a header, a column is also gone if it has only nulls. Unknown are texts among numbers or
    dates, and categories that did not occur before. When a column has returned to normal, its next change is logged again. The
    result depends only on the rows, and not on how they are divided into chunks. Memory is bounded.

    Parameters
    ----------
    on_schema
        ``"warn"``, or ``"stop"`` if the run returns to the state before a change, so that the next run finds it, too.

    Attributes
    ----------
    stops_run : bool
        Whether ``on_schema`` is ``"stop"``.
    changes : Counter of (str, str)
        Number of changes by kind (``gone``, ``new``, ``missing`` or ``unknown``) and column.
    stop_row : int
        Number of rows up to which changed rows have stopped a run before it processed them; 0 if none was stopped.
    ignored_label : type
        Messages with a label of this type are not rows; None if all are.
    """

    _saved_attributes: ClassVar[tuple[str, ...]] = ("changes", "_rows", "_windows", "_counts", "_first", "_low", "_high", "_last")
    _saved_attributes += ("_lasting", "_known", "_recent", "_latest", "stop_row")
    _newer_attributes = frozenset({"stop_row"})

    def __init__(self, on_schema: str = "warn") -> None:
        if on_schema not in ("warn", "stop"):
            raise ValueError(f"on_schema must be 'warn' or 'stop', not {on_schema!r}")
        self.stops_run: bool = on_schema == "stop"
        self.ignored_label: type | None = None
        self.changes: Counter[tuple[str, str]] = Counter()
        self.stop_row: int = 0
        self._rows = self._windows = 0  # sampled rows of the current window, and number of windows before
        # By kind of values, and column: the number in the current window, the first window with it, the share in the last
        # window, in thousandths, the limits of the shares before it, and the number of windows since the share is beyond these.
        self._counts, self._first, self._last = Counter[Any](), Counter[Any](), Counter[Any]()
        self._low, self._high, self._lasting = Counter[Any](), Counter[Any](), Counter[Any]()
        # Bits of the hashes of each column's categories: until two windows ago, in the last window, and in the current one.
        self._known, self._recent, self._latest = Counter[Any](), Counter[Any](), Counter[Any]()

    def resume(self, state: Any) -> None:
        super().resume(state)
        kinds, keys = {*_WARM_UP_WINDOWS, *_CHANGES}, (*self._first, *self._counts, *self.changes)
        if not all(type(key) is tuple and len(key) == 2 and key[0] in kinds for key in keys):
            raise ValueError("a saved SchemaWatch has invalid columns")

    def add_chunk(self, source: Any, chunk: Chunk, table: Table | None, first: int, encoder: Any) -> str:
        """Sample the rows of a chunk of a source, which begins with row ``first``. Return a message if the schema has
        changed, otherwise "". ``table`` has the rows as columns, or is None if they must be read singly. ``encoder`` is the
        model's `TableEncoder` or None.
        """
        message = ""
        for i in range(len(chunk) * source.has_names) if table is None else table.unparsed_rows:
            chunk.peek_row(i)  # in order, because a source warns of the first row in another encoding
        ends = range(_WINDOW_ROWS - first % _WINDOW_ROWS, len(chunk), _WINDOW_ROWS)
        for start, stop in itertools.pairwise([0, *ends, len(chunk)] if source.has_names else ()):
            rows, row = _SAMPLED_ROWS + (start - (first + start) % _WINDOW_ROWS), first + stop
            self._add_rows(chunk, table, rows[(rows >= start) & (rows < stop)], encoder)
            if row % _WINDOW_ROWS == 0 and (changes := self._compare_window(source.columns)):
                self.changes.update(changes.keys())
                message = f"{source.name}: rows {row - _WINDOW_ROWS + 1:,} to {row:,}: {', '.join(changes.values())}"
                logger.warning("%s", message, extra=event("schema", source=source.name, row=row, changes=[*changes]))
        return message

    def _add_rows(self, chunk: Chunk, table: Table | None, rows: np.ndarray, encoder: Any) -> None:
        """Count the values in some rows of a chunk, by their indices. An encoder parses them."""
        sample: list[Any] = rows.tolist()
        if table is not None and not table.unparsed_rows:
            pairs = zip(table.names, table.columns, strict=True)
            columns = {name: v[rows] if isinstance(v, np.ndarray) else [v[i] for i in sample] for name, v in pairs}
        else:
            read = [row[0] for row in map(chunk.peek_row, sample) if type(row[1]) is not self.ignored_label]
            sample = [x for x in read if isinstance(x, Mapping)]
            columns = {name: [x.get(name) for x in sample] for name in dict.fromkeys(itertools.chain(*sample))}
        self._rows += len(sample)
        parser = _NUMBERS if encoder is None else encoder.column_state.parser
        for name, values in columns.items():
            kind, key, is_array = parser.get_kind(name), ("values", name), isinstance(values, np.ndarray)
            if is_array and kind in (NUMBER, DATE):
                n, values = int(np.count_nonzero(values == values)), []
            else:
                values = [value for value in values if value is not None and not is_null(value)]
                n = len(values)
            if n:  # whether a column without values is in a table may depend on the chunk
                self._counts[key] += n
            if kind == CATEGORY:
                for text, count in Counter(map(str, values)).items():
                    word, bit = divmod(zlib.crc32(text.encode("utf-8", "replace")) % (_WORDS * _BITS), _BITS)
                    if not self._known[name, word] >> bit & 1:
                        self._latest[name, word] |= 1 << bit
                        self._counts["unknown", name] += count
            elif kind in (NUMBER, DATE) and values:
                parsed = values if encoder is None else map(parser.get_value_parser(name), values)
                if n_texts := sum(isinstance(value, str) for value in parsed):
                    self._counts["unknown", name] += n_texts

    def _compare_window(self, header: Sequence[str]) -> dict[tuple[str, str], str]:
        """Compare the current window with those before, and begin a new one. Return a text for each change, by its kind and the
        column. ``header`` are the names of the columns that the source has now; empty for a source without a header.
        """
        counts, n_windows, changes = self._counts, self._windows, dict[tuple[str, str], str]()
        if self._rows < _MIN_VALUES:
            return changes
        new = sorted((counts.keys() | {("values", name) for name in header}) - self._first.keys(), key=str)
        self._first.update(dict.fromkeys(new[: max(_MAX_SHARES - len(self._first), 0)], n_windows))
        is_renamed = n_windows - max(self._first.values(), default=0) < 2
        for what, column in self._first:
            key, n = (what, column), self._rows if what == "values" else counts.get(("values", column), 0)
            share, low, high = 1000 * counts.get(key, 0) // max(n, 1), self._low.get(key, 0), self._high.get(key, 0)
            previous, age, change, patience = self._last.get(key, share), n_windows - self._first["values", column], "", 1
            if n < _MIN_VALUES or (share == low == high == previous and age and key not in self._lasting):
                continue
            is_beyond = share > high + _MARGIN or share < low - _MARGIN
            if what == "unknown":
                n_new = sum(self._latest.get((column, word), 0).bit_count() for word in range(_WORDS))
                is_changed = n_new > 1 and share >= _MIN_UNKNOWN and high < _MARGIN and age >= _MIN_AGE
                change = "unknown" if is_changed or (not n_new and share > high + _MARGIN and age) else ""
            elif age <= 1 < n_windows and share >= (500 if age else 900) and (previous < 900 or not age):
                change = "new"
            elif is_beyond and share <= _MAX_GONE and column not in header:
                change, patience = "gone", 1 if header or is_renamed else _GONE_WINDOWS
            elif is_beyond and age >= _MIN_AGE and high:
                change, patience = "missing", _MISSING_WINDOWS
            self._lasting[key] += 1
            if change and patience <= self._lasting[key] < _REPORTED:
                self._lasting[key] = _REPORTED
                shares = f"{share / 1000:.0%}, before {low * (change != 'new') / 1000:.0%}"
                changes[change, str(column)] = f"column {column!r:.80} {_CHANGES[change]} ({shares})"
            if change in ("", "new"):
                del self._lasting[key]
                low, high = (previous, previous) if age < _WARM_UP_WINDOWS[what] else (low, high)
                self._low[key] = min(previous, low + (previous - low) // _DECAY_WINDOWS)
                self._high[key] = max(previous, high - (high - previous) // _DECAY_WINDOWS)
                self._last[key] = share
        for key, mask in self._recent.items():
            self._known[key] |= mask
        self._recent, self._latest, self._counts = self._latest, Counter(), Counter()
        self._rows, self._windows = 0, n_windows + 1
        return changes
