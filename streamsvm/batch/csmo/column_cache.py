"""A cache of the columns of a kernel matrix that were used last."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled

_ROW_BYTES = 16  # of bookkeeping for a row and its slot


class Slots(NamedTuple):
    """A cache as compiled functions take it.

    ``newer`` and ``older`` link the slots in the order of their last use, in a ring that slot number ``capacity`` closes: its
    ``newer`` is the slot used longest ago.
    """

    buffer: np.ndarray  # float32 [at least capacity n]: the column in slot s begins at s n
    slot_of: np.ndarray  # int32 [n], -1: the column is not cached
    owner: np.ndarray  # int32 [capacity], -1: the slot is empty
    newer: np.ndarray  # int32 [capacity + 1]
    older: np.ndarray


class ColumnCache:
    """Columns of n values each, in a buffer that is given; at least two columns.

    Parameters
    ----------
    buffer
        Memory for the columns, float32 [`values`]. The operating system provides it only as columns are written.
    n
        Values of a column at first; later columns may only be shorter.
    """

    def __init__(self, buffer: np.ndarray, n: int) -> None:
        self.buffer = buffer
        self.reset(n)

    @staticmethod
    def values(limit: int, n: int) -> int:
        """Return how many float32 values a buffer needs, so that with its bookkeeping the cache takes at most ``limit`` bytes.

        It always has room for two columns, and never for more than n.
        """
        return max(min(max(limit - 2 * _ROW_BYTES * n, 0) // 4, n * n), 2 * n)

    @property
    def nbytes(self) -> int:
        """Bytes that the cache can take."""
        return sum(array.nbytes for array in self.slots)

    @property
    def newest(self) -> tuple[int, np.ndarray]:
        """The number of the column that was used last, and its values, float32 [n], to be written."""
        slots, n = self.slots, len(self.slots.slot_of)
        s = int(slots.older[-1])
        return int(slots.owner[s]), slots.buffer[s * n : (s + 1) * n]

    def fill(self, chunks: Iterable[np.ndarray]) -> None:
        """Take all n columns, in order, chunk by chunk [m, n], into an empty cache if there is room for them."""
        n = len(self.slots.slot_of)
        if len(self.slots.owner) < n:
            return
        begin = 0
        for chunk in chunks:
            self.buffer[begin : begin + chunk.size].reshape(chunk.shape)[:] = chunk
            begin += chunk.size
        self.slots.slot_of[:] = self.slots.owner[:n] = np.arange(n)

    def reset(self, n: int) -> None:
        """Empty the cache; columns will have n values."""
        capacity = min(len(self.buffer) // n, max(n, 2))
        ring = np.arange(capacity + 1, dtype=np.int32)
        self.slots: Slots = Slots(
            self.buffer, np.full(n, -1, np.int32), np.full(capacity, -1, np.int32), np.roll(ring, 1), np.roll(ring, -1)
        )  # the last slot is used first

    def keep(self, rows: np.ndarray) -> None:
        """Keep only some rows, int64 [m] ascending: the columns of the others go, and their values in the columns that stay."""
        old = self.slots
        n, slot_of = len(old.slot_of), old.slot_of[rows]
        self.reset(len(rows))
        new = self.slots
        cached = np.flatnonzero(slot_of >= 0)
        cached = cached[np.argsort(slot_of[cached])]  # columns move towards the beginning of the buffer, one after the other
        _move(self.buffer, n, slot_of[cached].astype(np.int64), rows)
        new.slot_of[cached] = np.arange(len(cached))
        new.owner[: len(cached)] = cached


@compiled(nogil=True)
def _move(buffer: np.ndarray, n: int, slots: np.ndarray, rows: np.ndarray) -> None:
    """Move the columns in ``slots``, int64 ascending, to the first slots, with the values of ``rows`` only."""
    m = len(rows)
    for s in range(len(slots)):
        for k in range(m):
            buffer[s * m + k] = buffer[slots[s] * n + rows[k]]


@compiled(nogil=True, forceinline=True)
def find(slot_of: np.ndarray, owner: np.ndarray, newer: np.ndarray, older: np.ndarray, i: int) -> tuple[int, bool]:
    """Return the slot of column i, and whether the column is there; if not, the slot used longest ago becomes its slot.

    The slot becomes the one used last; the caller writes a column that is not there. The slot that the call before returned is
    never given away. O(1).
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
