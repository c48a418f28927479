"""The cluster tree: rows in an order in which near ones are together, cut in two again and again."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

__all__ = ["SPLITS", "ClusterTree"]

_SAMPLE = 4096  # rows that choose where to cut; the others follow
_AXIS_STEPS = 10  # of the power method
_CENTRE_STEPS = 10  # of two-means
_LEAST_SHARE = 0.125  # of a node's rows in either half: deep trees cost


@dataclass(frozen=True)
class ClusterTree:
    """A binary tree over n rows; parents come after their children, the root is last.

    Attributes
    ----------
    order
        int64 [n]: the rows as they follow each other in the leaves.
    begin, end
        int64 [nodes]: the places in ``order`` of each node's rows.
    children
        int64 [nodes, 2]: numbers of the halves; -1 of a leaf.
    level
        int64 [nodes]: 0 of the root.

    Examples
    --------
    >>> tree = ClusterTree.build(np.array([[0.0], [9.0], [1.0], [8.0]]), leaf_size=2)
    >>> tree.order.tolist(), tree.end.tolist(), tree.children.tolist()
    ([1, 3, 2, 0], [2, 4, 4], [[-1, -1], [-1, -1], [0, 1]])
    """

    order: np.ndarray
    begin: np.ndarray
    end: np.ndarray
    children: np.ndarray
    level: np.ndarray

    @staticmethod
    def build(X: np.ndarray, leaf_size: int, split: str = "principal-axis", seed: int | None = 0) -> ClusterTree:
        """The tree of X float64 [n, d], n at least 1, with leaves of at most ``leaf_size`` rows. O(n d log n).

        ``split``: ``"principal-axis"`` cuts at the median along the direction in which rows vary most, ``"two-means"`` between
        the centres of two clusters.
        """
        rng = np.random.default_rng(seed)
        order, nodes = np.arange(len(X)), []

        def grow(begin: int, end: int, level: int) -> int:
            children = (-1, -1)
            if end - begin > leaf_size:
                part = order[begin:end]
                values, cut = SPLITS[split](X[part], rng)
                order[begin:end] = part[np.argpartition(values, cut)]
                children = (grow(begin, begin + cut, level + 1), grow(begin + cut, end, level + 1))
            nodes.append((begin, end, *children, level))
            return len(nodes) - 1

        grow(0, len(X), 0)
        table = np.array(nodes)
        return ClusterTree(order, table[:, 0], table[:, 1], table[:, 2:4], table[:, 4])

    @property
    def leaves(self) -> np.ndarray:
        """Numbers of the leaves, from left to right."""
        return np.flatnonzero(self.children[:, 0] < 0)

    def others(self) -> list[np.ndarray]:
        """Of each node int64 [level, 2]: begin and end of its sibling, its parent's sibling, and so on: all that is outside."""
        found = [np.empty((0, 2), np.int64)] * len(self.begin)
        for number in range(len(self.begin) - 1, -1, -1):
            left, right = self.children[number]
            if left >= 0:
                for child, sibling in ((left, right), (right, left)):
                    found[child] = np.vstack([[self.begin[sibling], self.end[sibling]], found[number]])
        return found


def _sample(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return X if len(X) <= _SAMPLE else X[rng.integers(0, len(X), _SAMPLE)]


def _principal_axis(X: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    # Values to sort the rows by, and how many come before the cut.
    some = _sample(X, rng)
    some = some - some.mean(axis=0)
    axis = some[np.square(some).sum(axis=1).argmax()]  # the power method from the row that is farthest out
    for _ in range(_AXIS_STEPS):
        step = some.T @ (some @ axis)
        length = np.linalg.norm(step)
        if not length > 0.0:  # all rows are equal
            break
        axis = step / length
    return X @ axis, len(X) // 2


def _two_means(X: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, int]:
    some = _sample(X, rng)
    first = some[rng.integers(len(some))]
    far = np.square(some - first).sum(axis=1)
    second = some[far.argmax()]
    for _ in range(_CENTRE_STEPS):
        nearer = some @ (second - first) > 0.5 * (second @ second - first @ first)
        if nearer.all() or not nearer.any():
            break
        centres = some[~nearer].mean(axis=0), some[nearer].mean(axis=0)
        if np.array_equal(centres, (first, second)):
            break
        first, second = centres
    values = X @ (second - first)
    cut = int((values <= 0.5 * (second @ second - first @ first)).sum())
    least = max(int(_LEAST_SHARE * len(X)), 1)
    return values, min(max(cut, least), len(X) - least)


SPLITS = {"principal-axis": _principal_axis, "two-means": _two_means}
