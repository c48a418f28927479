"""The cluster tree: rows are cut in two again and again, so that near ones come together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamsvm.batch.hss.cuts import grow

_POWER_STEPS = 10  # by which the axis of a cut is nearly the one along which rows vary most


@dataclass(frozen=True)
class ClusterTree:
    """A binary tree over n rows. Nodes are numbered so that parents come after their children; the root is last.

    >>> tree = ClusterTree.build(np.array([[0.0], [9.0], [1.0], [8.0]]), leaf_size=2)
    >>> tree.begin.tolist(), tree.end.tolist(), tree.children.tolist()
    ([2, 0, 0], [4, 2, 4], [[-1, -1], [-1, -1], [1, 0]])
    """

    order: np.ndarray  # int64 [n]: the rows in the order of the leaves
    begin: np.ndarray  # int64 [nodes]: the place in ``order`` of each node's first row
    end: np.ndarray  # int64 [nodes]: one after that of its last
    children: np.ndarray  # int64 [nodes, 2]: numbers of the two halves; -1 for a leaf
    level: np.ndarray  # int64 [nodes]: 0 for the root

    @staticmethod
    def build(X: np.ndarray, leaf_size: int, seed: int = 0) -> ClusterTree:
        """Build the tree of X float64 [n, d], n at least 1, with leaves of at most ``leaf_size`` rows. O(n d log n).

        A cut is at the median along the direction in which rows vary most.
        """
        cuts = grow(X, leaf_size, seed, _POWER_STEPS)
        last = len(cuts.right) - 1  # there, the root is first, and a left child right after its parent
        right = np.where(cuts.right < 0, -1, last - cuts.right)[::-1]
        children = np.column_stack([np.where(right < 0, -1, np.arange(-1, last)), right])
        level = np.zeros(last + 1, np.int64)
        for number in range(last, -1, -1):
            if right[number] >= 0:
                level[children[number]] = level[number] + 1
        return ClusterTree(cuts.order, cuts.begin[::-1].copy(), cuts.end[::-1].copy(), children, level)

    @property
    def leaves(self) -> np.ndarray:
        return np.flatnonzero(self.children[:, 0] < 0)

    def rows_of(self, number: int, V: np.ndarray, of_skeletons: list[np.ndarray]) -> np.ndarray:
        """The rows [m, k] of a node: of a leaf those of V [n, k], else those of its children's skeletons."""
        left, right = self.children[number]
        if left < 0:
            return V[self.begin[number] : self.end[number]]
        return np.concatenate([of_skeletons[left], of_skeletons[right]])

    def columns(self, V: Any) -> np.ndarray:
        """V as float64 [n] or [n, k]; ValueError if it has another shape."""
        V = np.asarray(V, np.float64)
        if V.ndim not in (1, 2) or len(V) != len(self.order):
            raise ValueError(f"an array of {len(self.order)} rows is needed, not one of shape {V.shape}")
        return V

    def in_order(self, compute: Callable[[np.ndarray], np.ndarray], V: Any, ordered: bool) -> np.ndarray:
        """Apply ``compute``, from rows to rows in the tree's order, to V [n] or [n, k], whose rows are ``ordered`` so or not."""
        V = self.columns(V)
        columns = V.reshape(len(V), -1)
        if ordered:
            return compute(columns).reshape(V.shape)
        out = np.empty_like(columns)
        out[self.order] = compute(columns[self.order])
        return out.reshape(V.shape)

    def outside(self) -> list[np.ndarray]:
        """All rows outside each node, int64 [level, 2]: begin and end of its sibling, its parent's sibling, and so on."""
        found = [np.empty((0, 2), np.int64)] * len(self.begin)
        for number in range(len(self.begin) - 1, -1, -1):
            left, right = self.children[number]
            if left >= 0:
                for child, sibling in ((left, right), (right, left)):
                    found[child] = np.vstack([[self.begin[sibling], self.end[sibling]], found[number]])
        return found
