"""Approximate nearest neighbours, from trees that cut rows at the median along random directions."""

from __future__ import annotations

import numpy as np

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
    n = len(X)
    Z = X @ rng.normal(size=(X.shape[1], min(X.shape[1], _DIRECTIONS))).astype(np.float32)
    order, parts = np.arange(n), 1
    while parts < leaves:
        begin = np.arange(parts) * n // parts
        sizes = np.diff(begin, append=n)
        part = np.repeat(np.arange(parts), sizes)
        ends = order[begin + rng.integers(0, sizes, (2, parts))]  # two rows of each part, and the direction between them
        direction = Z[ends[0]] - Z[ends[1]]
        values = np.einsum("ij,ij->i", Z[order], direction[part]).astype(np.float64)
        low, high = np.minimum.reduceat(values, begin), np.maximum.reduceat(values, begin)
        scale = 0.5 / np.maximum(high - low, np.finfo(np.float64).tiny)
        order = order[np.argsort((values - low[part]) * scale[part] + part)]  # part by part
        parts *= 2
    return order
