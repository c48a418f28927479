"""Columns of a kernel matrix, kept as long as there is room, the ones used last."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

__all__ = ["ColumnCache", "Slots", "find"]

_ROW_BYTES = 16  # of bookkeeping a row and slot


class Slots(NamedTuple):
    """A cache as compiled functions take it. ``newer`` and ``older`` chain the slots by last use, in a ring that slot number
    ``capacity`` closes: its ``newer`` is the one used longest ago.
    """

    buffer: np.ndarray  # float32 [at least capacity n]: slot s has the column from s n
    slot_of: np.ndarray  # int32 [n], -1: not here
    owner: np.ndarray  # int32 [capacity], -1: none
    newer: np.ndarray  # int32 [capacity + 1]
    older: np.ndarray


class ColumnCache:
    """Room for columns of n values each, within a number of bytes, two columns at least.

    Parameters
    ----------
    buffer
        Where the columns go, float32 [`values`]. The operating system gives memory only as columns are written.
    n
        Rows there are at first, and never more of them.
    """

    def __init__(self, buffer: np.ndarray, n: int) -> None:
        self.buffer = buffer
        self.reset(n)

    @staticmethod
    def values(limit: int, n: int) -> int:
        """How many values of columns of n take up, with the bookkeeping, ``limit`` bytes at most; two columns at least."""
        return max(min(max(limit - 2 * _ROW_BYTES * n, 0) // 4, n * n), 2 * n)

    @property
    def nbytes(self) -> int:
        """Bytes that the cache can take up."""
        return sum(array.nbytes for array in self.slots)

    def reset(self, n: int) -> None:
        """Forget all columns; those to come have n values."""
        capacity = min(len(self.buffer) // n, max(n, 2))
        ring = np.arange(capacity + 1, dtype=np.int32)
        self.slots = Slots(
            self.buffer, np.full(n, -1, np.int32), np.full(capacity, -1, np.int32), np.roll(ring, 1), np.roll(ring, -1)
        )  # the last slot is the first to be used

    def keep(self, rows: np.ndarray) -> None:
        """Forget all but some rows, int64 [m] ascending: their columns stay, and lose the values of the others."""
        old = self.slots
        n, slot_of = len(old.slot_of), old.slot_of[rows]
        self.reset(len(rows))
        new = self.slots
        here = np.flatnonzero(slot_of >= 0)
        here = here[np.argsort(slot_of[here])]  # columns move towards the begin of the buffer, one after the other
        _move(self.buffer, n, slot_of[here].astype(np.int64), rows)
        new.slot_of[here] = np.arange(len(here))
        new.owner[: len(here)] = here


@njit(cache=True, error_model="numpy")
def _move(buffer: np.ndarray, n: int, slots: np.ndarray, rows: np.ndarray) -> None:
    m = len(rows)
    for s in range(len(slots)):
        for k in range(m):
            buffer[s * m + k] = buffer[slots[s] * n + rows[k]]


@njit(cache=True, error_model="numpy", forceinline=True)
def find(slot_of: np.ndarray, owner: np.ndarray, newer: np.ndarray, older: np.ndarray, i: int) -> tuple[int, bool]:
    """The slot of column i, which is now the one used last, and whether the column is there or has still to be written: in the
    place of the one used longest ago. The slot found before this one stays as it is. O(1).
    """
    end = len(owner)
    s = slot_of[i]
    found = s >= 0
    if not found:
        s = newer[end]
        if owner[s] >= 0:
            slot_of[owner[s]] = -1
        owner[s], slot_of[i] = i, s
    after, before, last = newer[s], older[s], older[end]
    if s != last:
        older[after], newer[before] = before, after
        newer[last], older[s], newer[s], older[end] = s, last, end, s
    return s, found
