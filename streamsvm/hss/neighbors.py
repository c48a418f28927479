"""Approximate nearest neighbours, from trees that cut rows at the median along random directions."""

from __future__ import annotations

import numpy as np
from numba import njit

__all__ = ["approximate_neighbors"]

_LEAF = 96  # rows, at least, among which neighbours are looked for
_DIRECTIONS = 16  # to which rows are projected before they are cut
_AT_ONCE = 4_000_000  # distances


def approximate_neighbors(X: np.ndarray, k: int, trees: int = 4, seed: int | None = 0) -> np.ndarray:
    """About ``k`` of the nearest rows of each row of X float32 [n, d]: int32 [n, k], fewer where n is small, with repetitions.

    The k / trees nearest ones within each tree's leaf, so that what one tree cuts apart another may have together. The row itself
    is among them. O(trees n (d + log n) log n).

    March, W. B., Xiao, B., Biros, G. (2015). ASKIT: approximate skeletonization kernel-independent treecode. SISC 37.
    """
    rng = np.random.default_rng(seed)
    n, each = len(X), max(k // trees, 1)
    leaves = 2 ** max(int(np.log2(n / max(_LEAF, 3 * each))), 0)
    begin = np.arange(leaves) * n // leaves
    size = -(-n // leaves)  # of the largest leaf; the smaller ones borrow a row of the next
    each = min(each, size)
    squares = np.square(X).sum(axis=1)
    found = np.empty((n, trees, each), np.int32)
    at_once = max(_AT_ONCE // size**2, 1)
    for t in range(trees):
        members = _order(X, leaves, rng)[np.minimum(begin[:, None] + np.arange(size), n - 1)]
        for some in range(0, leaves, at_once):
            rows = members[some : some + at_once]
            points = X[rows]
            near = squares[rows][:, None, :] - 2.0 * (points @ points.transpose(0, 2, 1))
            best = np.argpartition(near, each - 1, axis=2)[:, :, :each]
            found[rows, t] = np.take_along_axis(rows[:, None, :], best, axis=2)
    return found.reshape(n, -1)


def _order(X: np.ndarray, leaves: int, rng: np.random.Generator) -> np.ndarray:
    # Rows in the order of a tree's leaves: leaf i has those from i n / leaves on.
    Z = X @ rng.normal(size=(X.shape[1], min(X.shape[1], _DIRECTIONS))).astype(np.float32)
    order = np.arange(len(X))
    _cut(Z, order, leaves, rng.random((2, leaves)))
    return order


@njit(cache=True, error_model="numpy")
def _cut(Z: np.ndarray, order: np.ndarray, leaves: int, random: np.ndarray) -> None:
    """Sort rows of Z float32 [n, d], and ``order`` with them, into leaves, a power of 2: each part is cut in the middle along the
    direction between two of its rows, chosen by ``random`` [2, leaves].
    """
    n = len(Z)
    room, numbers = np.empty_like(Z), np.empty_like(order)
    waiting = [(1, 0)]  # how many parts there are of that size, and which one: depth first, so that small ones are in the cache
    while len(waiting) > 0:
        parts, part = waiting.pop()
        if parts == leaves:
            continue
        begin, end, middle = part * n // parts, (part + 1) * n // parts, (2 * part + 1) * n // (2 * parts)
        first = begin + int(random[0, parts + part - 1] * (end - begin))
        second = begin + int(random[1, parts + part - 1] * (end - begin))
        values = Z[begin:end] @ (Z[first] - Z[second])
        limit = np.partition(values, middle - begin)[middle - begin] if middle < end else np.float32(np.inf)
        ties = middle - begin - np.sum(values < limit)  # how many go to the left
        left, right = begin, middle
        for i in range(begin, end):
            low = values[i - begin] < limit
            if values[i - begin] == limit and ties > 0:
                low, ties = True, ties - 1
            low = left < middle and (low or right == end)  # each half has its size, whatever the values are
            to = left if low else right
            room[to], numbers[to] = Z[i], order[i]
            left, right = left + low, right + (not low)
        Z[begin:end], order[begin:end] = room[begin:end], numbers[begin:end]
        waiting.append((2 * parts, 2 * part + 1))
        waiting.append((2 * parts, 2 * part))
