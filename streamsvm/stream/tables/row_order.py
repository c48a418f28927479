"""Recognises tables whose rows are in an order that misleads a model of a stream: sorted by label, or newest first."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Sequence
from typing import Any

#: The reason why the order matters, for messages.
FOLLOWS_LAST = "and a model of a stream follows what comes last"
_MIN_ROWS = 50  # a table with fewer rows is not checked
_MIN_ROWS_PER_LABEL = 5  # mean number of rows of a label in a sorted table
_MIN_FALLING_SHARE = 0.95  # of the changes of a time from row to row


def are_sorted(labels: Sequence[Any]) -> bool:
    """Return whether rows are sorted by their labels: all rows of a label follow each other, or targets rise or fall.

    >>> are_sorted(["ham"] * 30 + ["spam"] * 30), are_sorted(["ham", "spam"] * 30), are_sorted([i / 7 for i in range(60)])
    (True, False, True)
    """
    if len(labels) < _MIN_ROWS:
        return False
    n_changes = sum(map(operator.ne, labels[1:], labels))
    n_distinct = len(set(labels))
    if 1 < n_distinct == n_changes + 1 <= len(labels) // _MIN_ROWS_PER_LABEL:
        return True
    try:
        return n_distinct > _MIN_ROWS and list(labels) in (sorted(labels), sorted(labels, reverse=True))
    except TypeError:
        return False


def are_falling(times: Sequence[float]) -> bool:
    """Return whether rows have the newest first, judged by their times.

    >>> are_falling(range(60, 0, -1)), are_falling(range(60)), are_falling([5.0, 3.0, 4.0] * 20)
    (True, False, False)
    """
    changes = [b - a for a, b in itertools.pairwise(times) if a != b]
    return len(changes) >= _MIN_ROWS and sum(change < 0.0 for change in changes) >= _MIN_FALLING_SHARE * len(changes)
