"""Recognises tables whose rows are in an order that misleads a model of a stream: sorted by label, or newest first."""

from __future__ import annotations

import contextlib
import itertools
import operator
from collections import Counter
from collections.abc import Sequence
from typing import Any

#: The reason why the order matters, for messages.
FOLLOWS_LAST = "and a model of a stream follows what comes last"
_MIN_ROWS = 50  # a table with fewer rows is not checked
_MIN_ROWS_PER_LABEL = 5  # mean number of rows of a label in a sorted table
_MAX_MISPLACED = 0.05  # of the rows whose label is not the most frequent one, the share that may be elsewhere in a sorted table
_MIN_CHANGES = 5  # of a time: six days that follow each other by chance fall in one of 720 tables
_MIN_FALLING_SHARE = 0.95  # of the changes of a time from row to row


def are_sorted(labels: Sequence[Any]) -> bool:
    """Return whether rows are sorted by their labels: all rows of a label follow each other, with few exceptions, or targets rise
    or fall.

    >>> are_sorted(["ham"] * 30 + ["spam"] * 30), are_sorted(["ham", "spam"] * 30), are_sorted([i / 7 for i in range(60)])
    (True, False, True)
    >>> are_sorted(["ham"] * 60 + ["spam"] * 60 + ["ham"])
    True
    """
    if len(labels) < _MIN_ROWS:
        return False
    n_changes = sum(map(operator.ne, labels[1:], labels))
    n_distinct = len(set(labels))
    if 1 < n_distinct <= len(labels) // _MIN_ROWS_PER_LABEL and n_changes < n_distinct + 2 * _MAX_MISPLACED * len(labels):
        counts, totals = Counter(labels), Counter[Any]()
        for i, label in enumerate(labels):
            totals[label] += i
        in_order = [label for label in sorted(counts, key=lambda y: totals[y] / counts[y]) for _ in range(counts[label])]
        return sum(map(operator.ne, labels, in_order)) <= _MAX_MISPLACED * (len(labels) - max(counts.values()))
    if n_distinct <= _MIN_ROWS:
        return False
    with contextlib.suppress(TypeError, ValueError):  # targets may be texts of numbers
        labels = list(map(float, labels))
    with contextlib.suppress(TypeError):
        return not all(any(map(is_beyond, labels, labels[1:])) for is_beyond in (operator.gt, operator.lt))
    return False


def are_falling(times: Sequence[float]) -> bool:
    """Return whether rows have the newest first, judged by their times.

    >>> are_falling(range(60, 0, -1)), are_falling(range(60)), are_falling([5.0, 3.0, 4.0] * 20)
    (True, False, False)
    """
    changes = [b - a for a, b in itertools.pairwise(times) if a != b]
    n_falling = sum(change < 0.0 for change in changes)
    return len(times) >= _MIN_ROWS and len(changes) >= _MIN_CHANGES and n_falling >= _MIN_FALLING_SHARE * len(changes)


def are_rising(times: Sequence[float]) -> bool:
    """Return whether rows are in their order in time, without exception: sorting by label keeps it within each label."""
    return len(times) >= _MIN_ROWS and times[0] < times[-1] and all(map(operator.le, times, times[1:]))
