"""The cluster tree: rows are cut in two again and again, so that near ones come together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from streamsvm.batch.hss.cuts import Cuts
from streamsvm.core.checks import Split

_SAMPLE_ROWS = 4096  # by which a cut is chosen
_POWER_STEPS = 10
_TWO_MEANS_STEPS = 10
_MIN_HALF = 0.125  # of a node's rows: deep trees cost


@dataclass(frozen=True)
class ClusterTree:
    """A binary tree over n rows. Nodes are numbered so that parents come after their children; the root is last.

    Rows that are equal along the axis of a cut may have been told apart; new rows, which go down the ``cuts``, are not.

    Examples
    --------
    >>> tree = ClusterTree.build(np.array([[0.0], [9.0], [1.0], [8.0]]), leaf_size=2)
    >>> tree.order.tolist(), tree.end.tolist(), tree.children.tolist()
    ([1, 3, 2, 0], [2, 4, 4], [[-1, -1], [-1, -1], [0, 1]])
    """

    order: np.ndarray  # int64 [n]: the rows in the order of the leaves
    begin: np.ndarray  # int64 [nodes]: the place in ``order`` of each node's first row
    end: np.ndarray  # int64 [nodes]: one after that of its last
    children: np.ndarray  # int64 [nodes, 2]: numbers of the two halves; -1 for a leaf
    level: np.ndarray  # int64 [nodes]: 0 for the root
    cuts: Cuts  # the same tree as new rows go down it; its nodes have other numbers, its leaves the same order

    @staticmethod
    def build(X: np.ndarray, leaf_size: int, split: Split = "principal-axis", seed: int | None = 0) -> ClusterTree:
        """Build the tree of X float64 [n, d], n at least 1, with leaves of at most ``leaf_size`` rows. O(n d log n).

        The split ``"principal-axis"`` cuts at the median along the direction in which rows vary most, ``"two-means"`` between
        the centres of two clusters.
        """
        rng = np.random.default_rng(seed)
        order, nodes = np.arange(len(X)), []
        downward: list[list[int]] = []  # of each node: begin, end, right child, and number of the cut or leaf; see Cuts
        axes: list[np.ndarray] = []
        thresholds: list[float] = []
        leaves = 0

        def grow(begin: int, end: int, level: int) -> int:
            nonlocal leaves
            children, number = (-1, -1), len(downward)
            if end - begin > leaf_size:
                downward.append([begin, end, -1, len(axes)])
                rows = order[begin:end]
                axis, values, cut = SPLITS[split](X[rows], rng)
                places = np.argpartition(values, cut)
                order[begin:end] = rows[places]
                axes.append(axis)
                thresholds.append(_threshold(values[places[:cut]].max(), values[places[cut]]))
                left = grow(begin, begin + cut, level + 1)
                downward[number][2] = len(downward)
                children = (left, grow(begin + cut, end, level + 1))
            else:
                downward.append([begin, end, -1, leaves])
                leaves += 1
            nodes.append((begin, end, *children, level))
            return len(nodes) - 1

        grow(0, len(X), 0)
        table = np.array(nodes)
        first, last, right, number = np.array(downward).T.copy()
        cuts = Cuts(order, first, last, right, number, np.array(axes).reshape(-1, X.shape[1]), np.array(thresholds))
        return ClusterTree(order, table[:, 0], table[:, 1], table[:, 2:4], table[:, 4], cuts)

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


def _sample(X: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    return X if len(X) <= _SAMPLE_ROWS else X[rng.integers(0, len(X), _SAMPLE_ROWS)]


def _threshold(low: float, high: float) -> float:
    """A number from the largest value before a cut to the smallest one after it, and below the latter if they differ."""
    threshold = 0.5 * (low + high)
    return threshold if low <= threshold < high else low


def _principal_axis(X: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """An axis, the rows' values [n] along it, and how many come before the cut, by the power method."""
    sample = _sample(X, rng)
    sample = sample - sample.mean(axis=0)
    axis = sample[np.square(sample).sum(axis=1).argmax()]  # the row that is farthest out
    for _ in range(_POWER_STEPS):
        step = sample.T @ (sample @ axis)
        length = np.linalg.norm(step)
        if not length > 0.0:  # all rows are equal
            break
        axis = step / length
    return axis, X @ axis, len(X) // 2


def _two_means(X: np.ndarray, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, int]:
    """An axis, the rows' values [n] along it, and how many come before the cut, by Lloyd's algorithm."""
    sample = _sample(X, rng)
    first = sample[rng.integers(len(sample))]
    second = sample[np.square(sample - first).sum(axis=1).argmax()]
    for _ in range(_TWO_MEANS_STEPS):
        nearer = sample @ (second - first) > 0.5 * (second @ second - first @ first)
        if nearer.all() or not nearer.any():
            break
        centres = sample[~nearer].mean(axis=0), sample[nearer].mean(axis=0)
        if np.array_equal(centres, (first, second)):
            break
        first, second = centres
    values = X @ (second - first)
    cut = int((values <= 0.5 * (second @ second - first @ first)).sum())
    min_half = max(int(_MIN_HALF * len(X)), 1)
    return second - first, values, min(max(cut, min_half), len(X) - min_half)


SPLITS = {"principal-axis": _principal_axis, "two-means": _two_means}
