"""Equal rows, and a cache of the columns of a kernel matrix that were used last."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.threads import Each, each_alone

_HASHED = 100_000  # values whose hash is taken at a time


def csr_without_zeros(X: Any) -> Any:
    """Return a copy of X as a CSR array without duplicates and stored zeros; ValueError where 32-bit indices do not suffice."""
    if X.shape[1] >= 2**31:
        raise ValueError(f"X has {X.shape[1]:,} features, and 2^31 or more are too many: hash them into fewer")
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def same_rows(X: Any, values: np.ndarray | None = None, each: Each = each_alone) -> np.ndarray:
    """Number the groups of equal rows of X, float64 [n, d] or CSR; return the number of each row's group, int64 [n], from 0.

    Rows are equal if all their bits are, and those of their ``values`` float64 [n] where these are given. The numbers do not
    depend on the order of the rows. Each row that is no array is a group. Equal rows may get different numbers if a different row
    has the same hash. O(n (d + log n)).
    """
    if not isinstance(X, np.ndarray):
        return np.arange(X.shape[0])
    factors = _hash_factors(X.shape[1] + 1)
    bits, hashes = X.view(np.uint64), np.zeros(len(X), np.uint64)
    if values is not None:
        _add_hashes(values.view(np.uint64)[:, np.newaxis], factors[-1:], hashes)
    size = max(_HASHED // max(X.shape[1], 1), 1)

    def add_hashes(begin: int) -> None:
        some = np.require(bits[begin : begin + size], requirements=["C", "W"])  # other forms would be compiled anew
        _add_hashes(some, factors[:-1], hashes[begin : begin + size])

    each(add_hashes, range(0, len(X), size))
    order = np.argsort(hashes, kind="stable")
    new, hashes = np.ones(len(order), bool), hashes[order]
    new[1:] = hashes[1:] != hashes[:-1]
    alike = np.flatnonzero(~new)

    def compare(begin: int) -> None:
        some = alike[begin : begin + size]
        rows, others = order[some], order[some - 1]
        new[some] |= (bits[rows] != bits[others]).any(axis=1)
        if values is not None:
            new[some] |= values[rows] != values[others]

    each(compare, range(0, len(alike), size))
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(new) - 1
    return groups


@functools.lru_cache(maxsize=8)
def _hash_factors(n: int) -> np.ndarray:
    """Return odd numbers at random, uint64 [n]."""
    return np.random.default_rng(0).integers(0, 2**63, n, dtype=np.uint64) | np.uint64(1)


@compiled(nogil=True)
def _add_hashes(bits: np.ndarray, factors: np.ndarray, hashes: np.ndarray) -> None:
    """Add the sums of 64-bit words [n, d] times ``factors`` [d], whose low bits depend on the high ones of a word, too."""
    for i in range(len(bits)):
        total = hashes[i]
        for j in range(len(factors)):
            word = bits[i, j]
            total += (word ^ (word >> np.uint64(32))) * factors[j]  # of short numbers, all bits are high ones
        hashes[i] = total


_ROW_BYTES = 16  # of bookkeeping for a row and its slot
_AT_ONCE = 64  # columns that are computed before they are moved to their slots


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
    """Columns of n values each, later of fewer, in a buffer that is given, float32 [`values`]; at least two columns."""

    buffer: np.ndarray
    slots: Slots

    def __init__(self, buffer: np.ndarray, n: int) -> None:
        self._own: np.ndarray = buffer
        self.reset(n)

    @staticmethod
    def values(limit: int, n: int) -> int:
        """Return how many float32 values a buffer needs, so that with its bookkeeping the cache takes at most ``limit`` bytes.

        It always has room for two columns, and never for more than n.
        """
        return max(min(max(limit - 2 * _ROW_BYTES * n, 0) // 4, n * n), 2 * n)

    def put(self, which: np.ndarray, write: Callable[[np.ndarray, np.ndarray], None]) -> None:
        """Let ``write(columns, out)`` write some columns, float32 [m, n], over those that were used longest ago."""
        m, n, places = len(which), len(self.slots.slot_of), np.empty(len(which), np.int64)
        _claim_slots(self.slots, which, places)
        order, first = np.argsort(places), int(places.min())
        if places.max() - first == m - 1:  # side by side, as they are in a cache that was empty
            write(which[order], self.buffer[n * first : n * (first + m)].reshape(m, n))
            return
        for begin in range(0, m, _AT_ONCE):
            some = slice(begin, begin + _AT_ONCE)
            values = np.empty((len(which[some]), n), np.float32)
            write(which[some], values)
            for place, column_values in zip(places[some], values, strict=True):
                self.buffer[n * place : n * (place + 1)] = column_values

    @property
    def has_room_for_all(self) -> bool:
        return len(self.slots.owner) >= len(self.slots.slot_of)

    def whole(self) -> np.ndarray:
        """Take all columns as there, in order, where there is room for them; return the matrix [n, n] to be written."""
        n = len(self.slots.slot_of)
        self.slots.slot_of[:] = self.slots.owner[:n] = np.arange(n)
        return self.buffer[: n * n].reshape(n, n)

    def take(self, K: np.ndarray) -> None:
        """Have all columns, those of K, float32 [n, n], which stays as it is."""
        self.reset(len(K))
        self.buffer = K.ravel()
        self.slots = self.slots._replace(buffer=self.buffer)
        self.whole()

    def reset(self, n: int) -> None:
        """Empty the cache; columns will have n values."""
        self.buffer = self._own
        capacity = min(len(self.buffer) // n, max(n, 2))
        newer, older = np.arange(-1, capacity, dtype=np.int32), np.arange(1, capacity + 2, dtype=np.int32)
        newer[0], older[-1] = capacity, 0
        empty = np.full(n + capacity, -1, np.int32)
        self.slots = Slots(self.buffer, empty[:n], empty[n:], newer, older)  # the last slot is used first

    def keep(self, rows: np.ndarray) -> None:
        """Keep only some rows, int64 [m] ascending: the columns of the others go, and their values in the columns that stay."""
        old, source = self.slots, self.buffer
        n, slot_of = len(old.slot_of), old.slot_of[rows]
        self.reset(len(rows))
        new = self.slots
        cached = np.flatnonzero(slot_of >= 0)
        cached = cached[np.argsort(slot_of[cached])]  # columns move towards the beginning of the buffer, one after the other
        _move_columns(source, self.buffer, n, slot_of[cached].astype(np.int64), rows)
        new.slot_of[cached] = np.arange(len(cached))
        new.owner[: len(cached)] = cached


@compiled(nogil=True)
def _move_columns(source: np.ndarray, buffer: np.ndarray, n: int, slots: np.ndarray, rows: np.ndarray) -> None:
    """Move the columns of n values in ``slots``, int64 ascending, to the first slots of ``buffer``, with the ``rows`` only."""
    m = len(rows)
    for s in range(len(slots)):
        for k in range(m):
            buffer[s * m + k] = source[slots[s] * n + rows[k]]


@compiled(nogil=True)
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


@compiled(nogil=True)
def _claim_slots(slots: Slots, which: np.ndarray, places: np.ndarray) -> None:
    """Write into ``places``, int64 [m], the slots that columns of some numbers, int64 [m], are to be written into."""
    for t in range(len(which)):
        places[t], _ = find(slots.slot_of, slots.owner, slots.newer, slots.older, which[t])
