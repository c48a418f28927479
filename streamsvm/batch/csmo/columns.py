"""Columns of a kernel matrix, from rows that are stored dense or sparse; a cache of those that were used last.

Distances of dense rows are sums of squared differences, which do not cancel for data far from the origin.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LOG2E, RBF, Kernel, dot, exp2d, value_of_product
from streamsvm.core.threads import Each, each_alone

DENSE, SPARSE = 0, 1

_SPARSE_COST = 12  # a feature that two sparse rows share takes as long as so many dense features
_HASHED = 100_000  # values whose hash is taken at a time
_TILE = 2048  # so many running sums stay in the first-level cache


class Rows(NamedTuple):
    """n rows of d features, float64, in one of two forms; the arrays of the other form are empty.

    Dense: ``dense`` [d, n], feature by feature. Sparse: row i has the ``values`` and ``indices`` from ``starts[i]`` to
    ``starts[i + 1]``, and the squared norm ``squares[i]``; feature j is not zero in the rows ``members`` from ``lists[j]`` to
    ``lists[j + 1]``, where its values are ``entries``.
    """

    kind: int
    dense: np.ndarray
    starts: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    squares: np.ndarray
    lists: np.ndarray
    members: np.ndarray
    entries: np.ndarray
    features: int


def store_dense(X: np.ndarray) -> Rows:
    """Return the rows of X [n, d], copied feature by feature."""
    numbers, places, values = np.empty(0, np.int64), np.empty(0, np.uint32), np.empty(0)
    dense = np.require(X.T, np.float64, ["C", "W"])
    return Rows(DENSE, dense, numbers, places, values, values, numbers, places, values, X.shape[1])


def store_sparse(X: Any) -> Rows:
    """Return the rows of X, CSR without duplicates [n, d]; they share its memory where they can."""
    squares = sparse.csr_array((np.square(X.data, dtype=np.float64), X.indices, X.indptr), X.shape) @ np.ones(X.shape[1])
    by_feature = X.tocsc()
    own, of_features = (
        (
            of.indptr.astype(np.int64),
            of.indices.astype(np.int32, copy=False).view(np.uint32),
            of.data.astype(np.float64, copy=False),
        )
        for of in (X, by_feature)
    )
    return Rows(SPARSE, np.empty((0, 0)), *own, squares, *of_features, X.shape[1])


def csr_without_zeros(X: Any) -> Any:
    """Return a copy of X as a CSR array without duplicates and stored zeros; ValueError where 32-bit indices do not suffice."""
    if X.shape[1] >= 2**31:
        raise ValueError(f"X has {X.shape[1]:,} features, and 2^31 or more are too many: hash them into fewer")
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def store(X: Any, *, dense: bool) -> Rows:
    """Return X, an array or sparse matrix [n, d], as dense or as sparse rows of float64."""
    if dense:
        return store_dense(X.toarray() if sparse.issparse(X) else X)
    return store_sparse(csr_without_zeros(X))


def rows_subset(rows: Rows, which: np.ndarray) -> Rows:
    """Return a copy of the rows numbered ``which``, int64 [m]."""
    if rows.kind == DENSE:
        return rows._replace(dense=np.take(rows.dense, which, axis=1))
    return store_sparse(as_csr(rows)[which])


def as_csr(rows: Rows) -> Any:
    """Return sparse rows as a CSR array that shares their memory."""
    return sparse.csr_array((rows.values, rows.indices.view(np.int32), rows.starts), (len(rows.squares), rows.features))


def value_cost(rows: Rows) -> float:
    """Return about how many operations a kernel value takes, counted in dense features."""
    if rows.kind == SPARSE:
        shared = np.square(np.diff(rows.lists) / len(rows.squares)).sum()  # the mean number of features that two rows share
        return 8.0 + _SPARSE_COST * float(shared)
    return 4.0 + rows.features


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


@compiled(nogil=True, fastmath=FAST, forceinline=True)
def _add_terms(x: np.ndarray, vectors: np.ndarray, begin: int, n: int, out: np.ndarray, differ: bool) -> None:
    """Add the products of x [d] with n of the ``vectors`` [d, ...], from number ``begin`` on, to ``out`` [n].

    With ``differ``, which is a constant where this is inlined, add their squared distances. It is given as ``np.bool_``, since
    literals of Python would be compiled one by one.
    """
    first, d, j = np.uint64(begin), len(vectors), 0  # unsigned: a signed index may be negative, which prevents SIMD
    while j + 4 <= d:  # four features at once: the running sum is loaded and stored once for them
        x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
        v0, v1, v2, v3 = vectors[j], vectors[j + 1], vectors[j + 2], vectors[j + 3]
        for i in range(np.uint64(n)):
            k = first + i
            if differ:
                d0, d1, d2, d3 = x0 - v0[k], x1 - v1[k], x2 - v2[k], x3 - v3[k]
                out[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
            else:
                out[i] += (x0 * v0[k] + x1 * v1[k]) + (x2 * v2[k] + x3 * v3[k])
        j += 4
    while j < d:
        x0, v0 = x[j], vectors[j]
        for i in range(np.uint64(n)):
            d0 = x0 - v0[first + i]
            out[i] += d0 * d0 if differ else x0 * v0[first + i]
        j += 1


@compiled(nogil=True)
def _from_sums(kernel: Kernel, sums: np.ndarray, out: np.ndarray) -> None:
    """Turn squared distances (rbf) or products into kernel values."""
    n = len(out)
    if kernel.kind == RBF:
        exp2d(sums, -kernel.gamma * LOG2E, n, out)
    else:
        for i in range(n):
            out[i] = value_of_product(kernel, sums[i])


@compiled(nogil=True)
def sparse_column(rows: Rows, source: Rows, i: int, kernel: Kernel, out: np.ndarray) -> None:
    """Write a column of sparse rows, through the rows that share a feature with row i of ``source``."""
    n, lists, members, entries = len(out), rows.lists, rows.members, rows.entries
    products = np.zeros(n)
    for k in range(source.starts[i], source.starts[i + 1]):
        value, feature = np.float64(source.values[k]), source.indices[k]
        for place in range(lists[feature], lists[feature + 1]):
            products[members[place]] += value * np.float64(entries[place])
    if kernel.kind == RBF:
        for t in range(n):
            products[t] = max(rows.squares[t] + source.squares[i] - 2.0 * products[t], 0.0)
    sums = np.empty(n, out.dtype)
    for t in range(n):
        sums[t] = products[t]
    _from_sums(kernel, sums, out)


@compiled(nogil=True)
def column(rows: Rows, source: Rows, i: int, kernel: Kernel, out: np.ndarray) -> None:
    """Write the kernel values between row i of ``source`` and all n of ``rows``, of the same form, into ``out`` [n].

    O(n d), or for sparse rows O(n + values that are not zero in both rows).
    """
    if rows.kind == SPARSE:
        sparse_column(rows, source, i, kernel, out)
        return
    x, sums = np.empty(rows.features, out.dtype), np.empty(min(len(out), _TILE), out.dtype)
    for j in range(rows.features):
        x[j] = source.dense[j, i]
    for first in range(0, len(out), _TILE):
        part = sums[: min(len(out) - first, _TILE)]
        part[:] = 0.0
        if kernel.kind == RBF:
            _add_terms(x, rows.dense, first, len(part), part, np.bool_(True))
        else:
            _add_terms(x, rows.dense, first, len(part), part, np.bool_(False))
        _from_sums(kernel, part, out[first : first + len(part)])


@compiled(nogil=True)
def diagonal(rows: Rows, kernel: Kernel, out: np.ndarray) -> None:
    """Write the self-kernel of every row into ``out`` [n]."""
    if kernel.kind == RBF:
        out[:] = 1.0
        return
    for i in range(len(out)):
        square = 0.0
        if rows.kind == SPARSE:
            square = rows.squares[i]
        else:
            for j in range(rows.features):
                square += np.float64(rows.dense[j, i]) ** 2
        out[i] = value_of_product(kernel, square)


@compiled(nogil=True)
def expand(
    rows: Rows, coefficients: np.ndarray, source: Rows, which: np.ndarray, kernel: Kernel, values: np.ndarray, out: np.ndarray
) -> None:
    """Add ``sum_s coefficients[k, s] k(rows_s, source_i)`` to ``out[t, k]`` for i = ``which[t]``, int64 [m]. O(m n d).

    ``coefficients`` float64 [outputs, n], ``out`` float64 [m, outputs], ``values`` [n]: scratch of the rows' dtype.
    """
    for t in range(len(which)):
        column(rows, source, which[t], kernel, values)
        for k in range(len(coefficients)):
            out[t, k] += dot(coefficients[k], values)


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
