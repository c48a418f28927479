"""The buffer that joins rows and delayed labels by key: pending rows, early labels and settled keys, in bounded memory."""

from __future__ import annotations

import itertools
import json
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from streamsvm.core.checks import ExpiryPolicy, check_number, check_one_of, finite_or_none
from streamsvm.core.saved import Resumable
from streamsvm.files.messages import short_repr
from streamsvm.stream.delayed.events import MAX_ROW_BYTES, validate_label

#: Assumed memory of the Python objects of an entry, in addition to its texts.
_ENTRY_BYTES = 400
_POLICIES = get_args(ExpiryPolicy)
_REASONS = ("age", "count", "bytes")
_COUNTS = ("features", "labels", "joined", "refused", "duplicate_rows", "duplicate_labels", "late_labels", "expired_labels")


class PendingRow(NamedTuple):
    """A row that waits for its label."""

    time: float
    """Event time of the row."""
    number: int
    """Number of messages of the source before it."""
    row: str
    """The features, as packed by ``pack_row``."""
    prediction: str
    """The prediction that was made, as packed by ``pack_prediction``."""
    memory: str = ""
    """The features with the memory of the row's keys when it was predicted, as packed by ``pack_row``; empty without any."""


class ExpiredRow(NamedTuple):
    """A row whose label did not come in time."""

    key: str
    pending: PendingRow
    reason: str
    """The limit that it exceeded: ``"age"``, ``"count"`` or ``"bytes"``."""


class DelayedLabels(Resumable):
    """Joins rows and labels from two streams by key, in bounded memory.

    Rows wait for their label, and labels that come early wait for their row, for as long as a row would. A key is settled when
    its row was joined to its label, or has expired; settled keys are remembered for as long as a row may wait, and count as new
    afterwards. If two rows or two labels have the same key, only the first one is used; duplicates are counted. A label whose row
    has expired is late: it is only counted.

    At most ``max_rows`` rows and ``max_rows`` early labels wait, in at most ``max_bytes`` together; beyond that, the oldest
    expire. In addition, the last ``max_rows`` settled keys are remembered.

    Parameters
    ----------
    max_age
        Maximum waiting time of a row or an early label, in seconds of event time. None: unlimited.
    max_rows
        Maximum number of pending rows; also of early labels, and of settled keys.
    max_bytes
        Maximum bytes of pending rows and early labels, including 400 for each of them; at least 4 MiB, which is enough for the
        longest row.
    expired
        What to do with expired rows. ``"drop"``: only count them. ``"dead-letter"``: write them to the dead letters.
        ``"negative"``: score and learn them with the label ``negative``.
    negative
        Label of expired rows, for ``expired="negative"``.

    Attributes
    ----------
    nbytes : int
        Bytes of pending rows and early labels, as limited by ``max_bytes``.
    clock : float
        Latest event time of a message.

    Raises
    ------
    ValueError
        A parameter is out of its range, or only one of ``expired="negative"`` and ``negative`` is given.

    Examples
    --------
    >>> delayed = DelayedLabels(max_age=60.0)
    >>> delayed.add_row("k", PendingRow(0.0, 0, '[["a"],[1.5]]', "[true]"))
    >>> delayed.add_label("k", 30.0, False).row
    '[["a"],[1.5]]'
    >>> delayed.add_label("k", 31.0, False) is None, delayed.counts["duplicate_labels"]
    (True, 1)
    """

    _saved_attributes = ("_counts", "_expired_rows")

    def __init__(
        self,
        *,
        max_age: float | None = 86_400.0,
        max_rows: int = 100_000,
        max_bytes: int = 2**27,
        expired: ExpiryPolicy = "drop",
        negative: Any = None,
    ) -> None:
        if max_age is not None:
            check_number("max_age", max_age, 0.0, inclusive=True)
        check_number("max_rows", max_rows, 1, inclusive=True, integer=True)
        check_number("max_bytes", max_bytes, 4 * MAX_ROW_BYTES, inclusive=True, integer=True)
        check_one_of("expired", expired, _POLICIES)
        if expired == "negative" and negative is None:
            raise ValueError("expired='negative' needs the label that expired rows are learned with: negative=0")
        if expired != "negative" and negative is not None:
            raise ValueError(f"negative={short_repr(negative)} is for expired='negative', not {expired!r}: leave it out")
        self.max_age: float = math.inf if max_age is None else float(max_age)
        self.max_rows: int = max_rows
        self.max_bytes: int = max_bytes
        self.expired: ExpiryPolicy = expired
        self.negative: Any = None if negative is None else validate_label(negative)
        self._rows: OrderedDict[str, PendingRow] = OrderedDict()
        self._early: OrderedDict[str, tuple[float, Any]] = OrderedDict()
        # For each settled key, the time when it was settled, and whether its row expired.
        self._settled: OrderedDict[str, tuple[float, bool]] = OrderedDict()
        self.nbytes: int = 0
        self.clock: float = -math.inf
        self._counts = Counter(dict.fromkeys(_COUNTS, 0))
        self._expired_rows = Counter(dict.fromkeys(_REASONS, 0))

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of rows and labels that were joined, expired, duplicate, late or refused so far, and of those that are still
        waiting, by name.

        Of all ``features`` rows, ``joined`` got their label, ``expired_rows`` expired (also by reason: ``expired_age``,
        ``expired_count``, ``expired_bytes``), ``duplicate_rows`` had the key of an earlier row, and ``pending`` are waiting. Of
        all ``labels``, ``joined`` were joined to their row, ``early`` are waiting for it, ``expired_labels`` expired before it
        came, ``duplicate_labels`` had the key of an earlier label, and ``late_labels`` came after their row had expired. Of the
        rows with a label, the model refused to learn ``refused``.
        """
        by_reason = {f"expired_{reason}": count for reason, count in self._expired_rows.items()}
        waiting = {"pending": len(self._rows), "early": len(self._early), "settled": len(self._settled), "bytes": self.nbytes}
        return self._counts | waiting | by_reason | {"expired_rows": sum(self._expired_rows.values())}

    @property
    def n_waiting(self) -> int:
        """Number of entries in this buffer: rows that wait for their label, and labels that wait for their row."""
        return len(self._rows) + len(self._early)

    @property
    def example_keys(self) -> tuple[str | None, str | None]:
        """The keys of the oldest row and of the oldest label that wait for each other; None without any."""
        return next(iter(self._rows), None), next(iter(self._early), None)

    def has_key(self, key: str) -> bool:
        """Return whether this key is already used: by a row that is waiting for its label, or by one that was joined or expired
        before. A new row with the key is a duplicate.
        """
        return key in self._rows or key in self._settled

    def count_duplicate_row(self) -> None:
        """Count a row that was ignored because an earlier row has the same key."""
        self._counts["features"] += 1
        self._counts["duplicate_rows"] += 1

    def count_refused(self) -> None:
        """Count a row whose label has come, but that could not be learned because the model raised an error."""
        self._counts["refused"] += 1

    def get_early_label(self, key: str) -> tuple[Any] | None:
        """Return the label that came before the row with this key, in a 1-tuple (the label itself may be None or False); None if
        no label is waiting for the row. The label stays in the buffer.
        """
        entry = self._early.get(key)
        return None if entry is None else entry[1:]

    def join_early_label(self, key: str, time: float) -> None:
        """Record that the row with this key has come at the event time ``time``, after its label. The waiting label is removed
        from the buffer. The key is remembered, so that later rows and labels with it are counted as duplicates.
        """
        self._counts["features"] += 1
        self._counts["joined"] += 1
        self.nbytes -= _label_bytes(key, self._early.pop(key)[1])
        self._settled[key] = time, False

    def add_row(self, key: str, pending: PendingRow) -> None:
        """Add a row to the buffer, where it waits for its label. ``pending`` has its features and prediction; ``key`` is the text
        that the row and its label have in common. No waiting row may have the same key.
        """
        self._counts["features"] += 1
        self._rows[key] = pending
        self.nbytes += _row_bytes(key, pending)

    def add_label(self, key: str, time: float, y: Any) -> PendingRow | None:
        """Process a label ``y`` that came at event time ``time``. If the row with its key is waiting, the row is removed from the
        buffer and returned. Otherwise returns None: the label waits for its row, or is only counted, because it is a duplicate or
        its row has expired.
        """
        counts = self._counts
        counts["labels"] += 1
        if key in self._settled:
            counts["late_labels" if self._settled[key][1] else "duplicate_labels"] += 1
        elif key in self._rows:
            counts["joined"] += 1
            pending = self._rows.pop(key)
            self.nbytes -= _row_bytes(key, pending)
            self._settled[key] = time, False
            return pending
        elif key in self._early:
            counts["duplicate_labels"] += 1
        else:
            self._early[key] = time, y
            self.nbytes += _label_bytes(key, y)
        return None

    def expire(self, time: float) -> Iterator[ExpiredRow]:
        """Advance the clock to an event time (in seconds), and remove rows and labels that have waited longer than ``max_age``.
        Yields the removed rows; removed labels are only counted.
        """
        self.clock = max(self.clock, time)
        oldest = self.clock - self.max_age
        while self._settled and next(iter(self._settled.values()))[0] < oldest:
            self._settled.popitem(last=False)
        while self._early and next(iter(self._early.values()))[0] < oldest:
            self._drop_label()
        while self._rows and next(iter(self._rows.values())).time < oldest:
            yield self._expire_row("age")

    def enforce_limits(self) -> Iterator[ExpiredRow]:
        """Remove the oldest rows and labels until the limits ``max_rows`` and ``max_bytes`` are met. Yields the removed rows;
        removed labels are only counted.
        """
        while len(self._early) > self.max_rows:
            self._drop_label()
        while len(self._rows) > self.max_rows:
            yield self._expire_row("count")
        while self.nbytes > self.max_bytes:
            if not self._rows or (self._early and next(iter(self._early.values()))[0] < next(iter(self._rows.values())).time):
                self._drop_label()
            else:
                yield self._expire_row("bytes")
        while len(self._settled) > self.max_rows:
            self._settled.popitem(last=False)

    def _expire_row(self, reason: str) -> ExpiredRow:
        """Remove the row that has waited longest for its label, and return it. ``reason`` is the limit that was exceeded:
        ``"age"``, ``"count"`` or ``"bytes"``. The key of the row is remembered, so that its label is counted as late.
        """
        key, pending = self._rows.popitem(last=False)
        self.nbytes -= _row_bytes(key, pending)
        self._expired_rows[reason] += 1
        self._settled[key] = self.clock, True
        return ExpiredRow(key, pending, reason)

    def _drop_label(self) -> None:
        """Remove the oldest label that waits for its row, and count it as expired."""
        key, (_, y) = self._early.popitem(last=False)
        self.nbytes -= _label_bytes(key, y)
        self._counts["expired_labels"] += 1

    @property
    def state(self) -> dict[str, Any]:
        """The counts and the clock (latest event time) of this buffer as a dict for the header of a checkpoint. The waiting rows
        and labels are saved separately, by `serialise_entries`.
        """
        return super().state | {"clock": finite_or_none(self.clock)}

    def serialise_entries(self) -> bytes:
        """Return the waiting rows, the waiting labels and the remembered keys of this buffer as JSON, for a checkpoint."""
        return json.dumps([list(entries.items()) for entries in (self._rows, self._early, self._settled)]).encode()

    def restore(self, state: Any, entries: bytes) -> None:
        """Restore this buffer from a checkpoint: ``state`` is the saved `state`, ``entries`` the bytes from `serialise_entries`.
        The limits may differ from those of the saved buffer. Invalid values raise an error.
        """
        counts = dict(state)
        clock = -math.inf if (seconds := counts.pop("clock")) is None else float(seconds)
        rows, early, settled = json.loads(entries)
        pending = {key: PendingRow(*entry) for key, entry in rows}
        self.resume(counts)
        self._rows, self.clock = OrderedDict(pending), clock
        self._early, self._settled = (OrderedDict((key, tuple(entry)) for key, entry in pairs) for pairs in (early, settled))
        self.nbytes = sum(itertools.starmap(_row_bytes, self._rows.items()))
        self.nbytes += sum(_label_bytes(key, y) for key, (_, y) in self._early.items())


def _row_bytes(key: str, pending: PendingRow) -> int:
    """Return the number of bytes that a waiting row is assumed to take in memory."""
    return _ENTRY_BYTES + len(key) + len(pending.row) + len(pending.prediction) + len(pending.memory)


def _label_bytes(key: str, y: Any) -> int:
    """Return the number of bytes that a waiting label ``y`` is assumed to take in memory."""
    return _ENTRY_BYTES + len(key) + (len(y) if type(y) is str else 0)
