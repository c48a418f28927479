"""The memory of a rolling forest: one block with the latest rows, and the trees that vote.

The nodes of all trees are in one pool, `NODES` consecutive ones for each tree, whose first is its root. A node is two numbers, a
link (see `LEFT`) and the bits of a float32 threshold. A row goes to the left child if its value is at most the threshold (or
equals it, in nodes that test equality), and else to the right child, which is stored next to the left one. The threshold of a
leaf is infinite and its left child is the leaf itself, so that descents need no branches: they stay at a leaf. In place of the
feature, the link of a leaf contains its number among the leaves of the tree.

In regression, a row has three extra columns in front of its features: see `LAST_TARGET`. Trees with an even number predict the
targets from the first extra column and the features; the others predict the residuals of the experts' vote from all columns. A
leaf is the mean of its rows and a weight.

Rows are stored unscaled, minus an anchor for each feature: 0, or a value near its mean if that is so far from 0 that float32
would lose the deviations, as for times in seconds. So trees remain valid when the scale of the ensemble changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from streamsvm.core.memory.block import STATE_END, Array, Layout, Store, check_size

#: Number of trees, and the maximum number of nodes and maximum depth of a tree.
TREES, NODES, DEPTH = 16, 1200, 28
#: Maximum number of leaves of a tree.
LEAVES = NODES // 2
#: Maximum number of features, and of values in total: those of 2,400 rows with 64 features.
MAX_COLUMNS, MAX_CELLS = 512, 153_600
#: Number of candidate splits of each tried feature at a node. With many rows, twice as many features are tried.
TESTS = 4
#: Upper limit of a label count of a leaf, and of the number of rows for which the mean of a leaf counts.
MAX_LEAF_COUNT, MAX_MEAN_COUNT = 120, 20
#: Extra columns of a row in front of its features, in regression: the last target, the experts' vote for the current one, and
#: the residual of their vote for the last one. Trees of targets use the first one only.
LAST_TARGET, EXPERTS_VOTE, LAST_RESIDUAL, N_EXTRA_COLUMNS = range(4)
#: Numbers that trees predict in regression: the target, or the residual of the experts' vote.
TARGET, RESIDUAL = range(2)
#: Upper limit of these numbers.
LARGEST_TARGET = 20.0
#: Upper limit of a value, so that the sum of two is finite.
LARGEST_VALUE = 1e38

#: Parts of a link: the mask of the left child's index in the pool, and the first bits of the feature and of the equality flag.
LEFT, FEATURE, EQUALITY = 0xFFFF, 16, 30
#: Columns of a leaf: two labels, the slot of its latest row of the first label, and both counts, the second one times 256.
FIRST_LABEL, SECOND_LABEL, LATEST_ROW, COUNTS = range(4)
#: Columns of a pending node while a tree grows: the range of its rows, whether it can be split, and its depth.
NODE_BEGIN, NODE_END, IS_MIXED, NODE_DEPTH = range(4)

#: Length of the current row. A descent also reads the "feature" of a leaf, its number, and ignores the value.
_ROW_LENGTH = 640

#: Header fields in addition to the sizes. Like these, the first two are fixed at construction.
HEADER = np.dtype(
    [
        ("columns", "i8"),  # room for features
        ("extra_columns", "i8"),  # extra columns of a row in front of its features
        ("used", "i8"),  # columns in use
        ("n_learned", "i8"),  # rows learned; the next one is stored in slot n_learned modulo capacity
        ("random", "u8"),
        ("n_grown", "i8"),  # trees grown; the next one replaces tree n_grown modulo TREES
        ("next_growth", "i8"),  # the next tree is grown after this number of rows
        ("last_residual", "f8"),  # residual of the experts' vote for the last target
    ]
)


class ForestViews(NamedTuple):
    """The arrays of a block; the header contains their sizes."""

    header: Annotated[np.ndarray, Array(HEADER)]
    anchors: Annotated[np.ndarray, Array(np.float64, ("row_width",))]
    """The number that is subtracted from each feature."""
    fractions: Annotated[np.ndarray, Array(np.int32, ("row_width",), 0, 1)]
    """1 for features that had a value that is not an integer. Others may encode categories, so nodes may test equality."""
    rows: Annotated[np.ndarray, Array(np.float32, ("capacity", "row_width"), -LARGEST_VALUE, LARGEST_VALUE)]
    labels: Annotated[np.ndarray, Array(np.int16, ("capacity",), 0)]
    numbers: Annotated[np.ndarray, Array(np.float32, (2, "target_rows"), -LARGEST_TARGET, LARGEST_TARGET)]
    """The targets of rows, and the residuals of the experts' vote for them."""
    sizes: Annotated[np.ndarray, Array(np.int32, (TREES,), 1, NODES)]
    """Number of nodes of each tree."""
    errors: Annotated[np.ndarray, Array(np.float32, (TREES,), 0.0, 2.0 * LARGEST_TARGET)]
    """Recent error rate of each tree, or its mean absolute error."""
    votes: Annotated[np.ndarray, Array(np.float32, (TREES,), 1e-4, 1e4)]
    """Weight of the vote of each tree, computed from its error."""
    ages: Annotated[np.ndarray, Array(np.int32, (TREES,), 0, 48)]
    """Number of rows in the mean that is the tree's error, up to 48."""
    nodes: Annotated[np.ndarray, Array(np.int32, (TREES * NODES, 2), -(2.0**31), 2.0**31)]
    """The link of each node, and the bits of its threshold."""
    leaves: Annotated[np.ndarray, Array(np.int16, (TREES * LEAVES, 4), -(2.0**15), 2.0**15)]
    """The leaves of each tree: see `FIRST_LABEL`. In regression, the bits of two float32: a mean, and its weight."""
    row: Annotated[np.ndarray, Array(np.float32, (_ROW_LENGTH,), saved=False)]
    """The current row."""
    reached: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    """The node of each tree that the current row has reached."""
    landed: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    """The leaf of each tree that it has reached."""
    depths: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    """The depth of this leaf."""
    walking: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    """The trees where it has not reached a leaf yet."""
    shares: Annotated[np.ndarray, Array(np.float64, ("labels",), saved=False)]
    """The sum of votes for each label."""
    waiting: Annotated[np.ndarray, Array(np.int16, (NODES, 4), saved=False)]
    """Pending nodes of the growing tree: see `NODE_BEGIN`."""
    members: Annotated[np.ndarray, Array(np.int16, (2, "capacity"), saved=False)]
    """The slots of its rows, and their labels. The rows of a node are adjacent."""
    features: Annotated[np.ndarray, Array(np.int32, ("tests",), saved=False)]
    """The feature of each candidate split of a node."""
    equal: Annotated[np.ndarray, Array(np.int32, ("tests",), saved=False)]
    """1 if values pass that equal the threshold, 0 if those pass that are at most the threshold."""
    thresholds: Annotated[np.ndarray, Array(np.float32, ("tests",), saved=False)]
    beyond: Annotated[np.ndarray, Array(np.int32, ("tests",), saved=False)]
    """Number of counted rows that do not pass."""
    squares: Annotated[np.ndarray, Array(np.int32, ("tests", 2), saved=False)]
    """Sum of squared label counts of the rows that pass, and of those that do not."""
    sums: Annotated[np.ndarray, Array(np.float64, ("tests",), saved=False)]
    """Sum of the targets of the rows that do not pass."""
    counts: Annotated[np.ndarray, Array(np.int16, ("tests", 2, "labels"), saved=False)]
    """Label counts of the rows that pass, and of those that do not."""


_LAYOUT = Layout(ForestViews, in_lines=())
_SIZES = ("columns", "row_width", "capacity", "labels", "target_rows", "tests", "extra_columns")

#: Opens a block (uint8 [nbytes]) as `ForestViews` in Python and in compiled code, without a copy.
forest_views: Callable[[np.ndarray], ForestViews] = _LAYOUT.views


def count_growing_rows(capacity: int) -> int:
    """Return the number of latest rows that a new tree of a forest is trained on: 5/6 of ``capacity``, the number of rows that
    the forest has room for. The other places receive new rows while the tree grows.
    """
    return 5 * capacity // 6


def count_tried_features(features: int) -> int:
    """Return the number of random features that are tried for a split of a tree node, given the number of all ``features``: their
    square root, rounded up, plus 1.

    >>> [count_tried_features(n) for n in (0, 1, 2, 9, 10, 512)]
    [0, 1, 2, 4, 5, 24]
    """
    root = 0
    while root * root < features:
        root += 1
    return min(features, root + 1)


def count_used_columns(used: int, extra_columns: int, row_width: int) -> int:
    """Return how many values of each row in a forest's row storage are in use: the ``extra_columns`` in front plus the ``used``
    features, at most ``row_width`` (the allocated width).
    """
    return min(used + extra_columns, row_width)


def _array_sizes(columns: int, rows: int, labels: int) -> dict[str, int]:
    """Return the dimensions of the arrays in a forest's memory, as a dict of name to length, for ``columns`` features, at most
    ``rows`` stored rows, and ``labels`` class labels (0 for regression).
    """
    is_regression = labels == 0
    row_width = min(columns, MAX_COLUMNS) + (N_EXTRA_COLUMNS if is_regression else 0)
    capacity = min(int(rows), max(MAX_CELLS // row_width, 1))
    tests = 2 * TESTS * count_tried_features(row_width)
    sizes = {"row_width": row_width, "capacity": capacity, "labels": labels, "tests": tests}
    return sizes | {"target_rows": capacity * is_regression}


class ForestStore(Store[ForestViews]):
    """The store of a rolling forest, with room for ``rows`` rows, but at most 153,600 values in total.

    ``labels`` is the number of labels, or 0 for regression. The store takes the first 512 features only. ``within`` and
    ``columns`` are as in `Store`. Raises ValueError if a size is not a positive integer, or memory is exhausted.

    With N = rows, D columns and K labels, it has about ``4 min(N D, 153,600) + 6 N + 32 sqrt(D) (K + 8) + 245,000`` bytes. In
    regression, D is three more, K is 0, and 14 N replaces 6 N.

    >>> store = ForestStore(rows=2400, max_features=16, labels=2)
    >>> store.n_learned, store.n_grown, store.nbytes
    (0, 0, 413696)
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(_array_sizes)

    def __init__(
        self, rows: int, max_features: int, labels: int, within: np.ndarray | None = None, columns: int | None = None
    ) -> None:
        check_size("rows", rows, 12)
        super().__init__(max_features, f"max_features={max_features}", within, columns, rows=rows, labels=labels)
        v, extra_columns = self.views, 0 if labels else N_EXTRA_COLUMNS
        self._header["extra_columns"] = extra_columns
        v.fractions[:extra_columns] = 1
        v.sizes[:], v.votes[:], v.errors[:] = 1, 1.0, 0.5
        roots = np.arange(TREES) * NODES  # every tree begins as a leaf
        v.nodes[roots, 0], self._view_thresholds(v)[roots] = roots, np.inf

    @staticmethod
    def _view_thresholds(views: ForestViews) -> Any:
        """Return a view of the split thresholds of all tree nodes in a forest's memory ``views``, float32 [nodes]."""
        return views.nodes.view(np.float32)[:, 1]

    @property
    def n_learned(self) -> int:
        """The number of rows that this forest has learned so far."""
        return int(self._header["n_learned"][0])

    @property
    def n_grown(self) -> int:
        """The number of trees that this forest has trained so far, including those that newer ones have replaced."""
        return int(self._header["n_grown"][0])

    @property
    def n_rows(self) -> int:
        """The number of rows that are currently stored in this forest's memory."""
        return min(self.n_learned, int(self._header["capacity"][0]))

    def get_tree(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the nodes of tree ``number`` as three arrays with an item per node: links (an integer that packs the child
        index, the feature index and the kind of test), split thresholds, and contents of leaves (label counts or mean target).

        The entries of inner nodes in the third array are undefined.
        """
        v = self.views
        nodes = slice(number * NODES, number * NODES + int(v.sizes[number]))
        links, thresholds = v.nodes[nodes, 0] - number * NODES, self._view_thresholds(v)[nodes]
        return links, thresholds, v.leaves[number * LEAVES + np.where(thresholds == np.inf, links >> FEATURE, 0)]

    def swap_labels(self) -> None:
        """Exchange the label indices 0 and 1 in all stored rows and all tree leaves of this forest."""
        v, n = self.views, self.n_rows
        v.labels[:n] = 1 - v.labels[:n]
        v.leaves[:, [FIRST_LABEL, SECOND_LABEL]] = 1 - v.leaves[:, [FIRST_LABEL, SECOND_LABEL]]

    def copy_from(self, source: ForestStore) -> None:
        """Copy the rows and trees of ``source``, the memory of a forest with other numbers of columns or labels, into this
        forest's memory. If this one has room for fewer rows, only the latest ones are copied.
        """
        super().copy_from(source)
        v, theirs = self.views, source.views
        capacity, source_capacity = len(v.labels), len(theirs.labels)
        if capacity == source_capacity:
            return
        rows = np.arange(self.n_learned - min(capacity, source.n_rows), self.n_learned)
        columns = min(v.rows.shape[1], theirs.rows.shape[1])
        v.rows[:], v.labels[:], v.numbers[:] = 0.0, 0, 0.0
        v.rows[rows % capacity, :columns] = theirs.rows[rows % source_capacity, :columns]
        v.labels[rows % capacity] = theirs.labels[rows % source_capacity]
        if v.numbers.size:
            v.numbers[:, rows % capacity] = theirs.numbers[:, rows % source_capacity]
        else:
            v.leaves[:, LATEST_ROW] %= capacity

    def _check_block(self, block: np.ndarray) -> None:
        h = self._read_header(block, _SIZES)
        v, used = _LAYOUT.views(block), int(h["used"])
        used_columns = count_used_columns(used, int(h["extra_columns"]), int(h["row_width"]))
        if not (0 <= used <= self.max_features and all(0 <= h[name] < 2**62 for name in ("n_learned", "n_grown", "next_growth"))):
            raise ValueError(f"a snapshot of a forest with {used} features and {h['n_learned']} rows does not fit the store")
        n = min(int(h["n_learned"]), int(h["capacity"]))
        _LAYOUT.check(v, {"capacity": n, "target_rows": n, "row_width": used_columns})
        if block[_LAYOUT.header.itemsize : STATE_END].any():
            raise ValueError("the snapshot is corrupt: there are numbers beyond the header")
        if (n and v.labels.max() >= max(h["labels"], 1)) or not abs(h["last_residual"]) <= LARGEST_TARGET:
            raise ValueError("the snapshot is corrupt: a forest has invalid labels, or an invalid last residual")
        if h["labels"] > 0 and v.errors.max() > 1.0:  # its vote would have the weight 0
            raise ValueError("the snapshot is corrupt: a tree of a forest has an error rate above 1")
        for tree in range(TREES):
            _check_tree(v, tree, max(used_columns, 1))


def _check_tree(v: ForestViews, tree: int, features: int) -> None:
    """Raise ValueError if the tree with index ``tree`` in a forest's memory ``v``, read from a file, is corrupt: a node with an
    invalid child or threshold, or a feature index of ``features`` (their number) or more, or a leaf with invalid contents.
    """
    root, size = tree * NODES, int(v.sizes[tree])
    nodes = np.arange(root, root + size)
    links, thresholds = v.nodes[nodes, 0], ForestStore._view_thresholds(v)[nodes]
    left, feature, equal = links & LEFT, links >> FEATURE & 0x3FFF, links >> EQUALITY
    is_leaf = thresholds == np.inf
    is_inner = (np.abs(thresholds) <= LARGEST_VALUE) & (left > nodes) & (left + 1 < root + size) & (feature < features)
    if not (np.where(is_leaf, (left == nodes) & (feature < LEAVES), is_inner) & (equal >= 0) & (equal <= ~is_leaf)).all():
        raise ValueError("the snapshot is corrupt: a forest has a node with an invalid child, feature or threshold")
    leaves = v.leaves[tree * LEAVES + feature[is_leaf]]
    if v.numbers.size:
        mean, rows = leaves.view(np.float32).T
        if not ((np.abs(mean) <= LARGEST_TARGET) & (rows >= 0.0) & (rows <= MAX_MEAN_COUNT)).all():
            raise ValueError("the snapshot is corrupt: a leaf of a forest has an invalid mean or count")
        return
    label, slot, counts = leaves[:, : SECOND_LABEL + 1], leaves[:, LATEST_ROW], leaves[:, COUNTS]
    if not (
        ((label >= 0) & (label < v.header["labels"][0])).all()
        and ((slot >= 0) & (slot < v.header["capacity"][0])).all()
        and ((counts >= 0) & (counts & 255 <= MAX_LEAF_COUNT) & (counts >> 8 <= MAX_LEAF_COUNT)).all()
    ):
        raise ValueError("the snapshot is corrupt: a leaf of a forest has an invalid label, row or count")
