"""Approximate nearest neighbours, from trees that cut rows at the median along random directions."""

from __future__ import annotations

import numpy as np

from streamsvm.batch.hss.blocks import CHUNK_VALUES
from streamsvm.core.compiling.functions import compiled

__all__ = ["approximate_neighbors"]

_MIN_LEAF = 96  # rows of a leaf, at least
_DIRECTIONS = 16  # to which rows are projected before they are cut


def approximate_neighbors(X: np.ndarray, k: int, trees: int = 4, seed: int | None = 0) -> np.ndarray:
    """Find about ``k`` of the nearest rows of each row of X float32 [n, d]: int32 [n, k], fewer if n is small, with repetitions.

    Each tree adds the k / trees nearest rows of the row's leaf, so that rows that one tree cuts apart may be together in
    another. The row itself is among them. O(trees n (d + log n) log n).

    March, W. B., Xiao, B., Biros, G. (2015). ASKIT: approximate skeletonization kernel-independent treecode. SISC 37.
    """
    rng = np.random.default_rng(seed)
    n, each = len(X), max(k // trees, 1)
    leaves = 2 ** max(int(np.log2(n / max(_MIN_LEAF, 3 * each))), 0)
    begin = np.arange(leaves) * n // leaves
    size = -(-n // leaves)  # of the largest leaf; smaller ones borrow a row of the next
    each = min(each, size)
    squares = np.square(X).sum(axis=1)
    found = np.empty((n, trees, each), np.int32)
    chunk = max(CHUNK_VALUES // size**2, 1)
    for t in range(trees):
        members = _order(X, leaves, rng)[np.minimum(begin[:, None] + np.arange(size), n - 1)]
        for leaf in range(0, leaves, chunk):
            rows = members[leaf : leaf + chunk]
            points = X[rows]
            distances = squares[rows][:, None, :] - 2.0 * (points @ points.transpose(0, 2, 1))  # up to a constant of each row
            nearest = np.argpartition(distances, each - 1, axis=2)[:, :, :each]
            found[rows, t] = np.take_along_axis(rows[:, None, :], nearest, axis=2)
    return found.reshape(n, -1)


def _order(X: np.ndarray, leaves: int, rng: np.random.Generator) -> np.ndarray:
    """The rows in the order of a new tree's leaves: leaf i begins at i n / leaves."""
    Z = X @ rng.normal(size=(X.shape[1], min(X.shape[1], _DIRECTIONS))).astype(np.float32)
    order = np.arange(len(X))
    _cut(Z, order, leaves, rng.random((2, leaves)))
    return order


@compiled(nogil=True)
def _cut(Z: np.ndarray, order: np.ndarray, leaves: int, random: np.ndarray) -> None:
    """Sort rows of Z float32 [n, d], and ``order`` with them, into a number of leaves that is a power of 2.

    Each part is cut in the middle along the direction between two of its rows, chosen by ``random`` [2, leaves].
    """
    n = len(Z)
    sorted_Z, sorted_order = np.empty_like(Z), np.empty_like(order)
    uncut = [(1, 0)]  # number of parts of that size, and which one: depth first, so that small parts stay in the cache
    while len(uncut) > 0:
        parts, part = uncut.pop()
        if parts == leaves:
            continue
        begin, end, middle = part * n // parts, (part + 1) * n // parts, (2 * part + 1) * n // (2 * parts)
        first = begin + int(random[0, parts + part - 1] * (end - begin))
        second = begin + int(random[1, parts + part - 1] * (end - begin))
        values = Z[begin:end] @ (Z[first] - Z[second])
        limit = np.partition(values, middle - begin)[middle - begin] if middle < end else np.float32(np.inf)
        ties = middle - begin - np.sum(values < limit)  # rows at the limit that go to the left
        left, right = begin, middle
        for i in range(begin, end):
            low = values[i - begin] < limit
            if values[i - begin] == limit and ties > 0:
                low, ties = True, ties - 1
            low = left < middle and (low or right == end)  # each half has its size, even if values are NaN
            to = left if low else right
            sorted_Z[to], sorted_order[to] = Z[i], order[i]
            left, right = left + low, right + (not low)
        Z[begin:end], order[begin:end] = sorted_Z[begin:end], sorted_order[begin:end]
        uncut.append((2 * parts, 2 * part + 1))
        uncut.append((2 * parts, 2 * part))
