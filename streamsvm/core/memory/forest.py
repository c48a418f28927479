"""The fixed-size memory of an expert that is a rolling forest: the latest rows, and the trees that vote.

Nodes of all trees lie in one pool. Each tree has a run of `NODES` of them, whose first is its root. A node is two numbers: a
link (see `LEFT`) and a threshold, whose bits are those of a float32. A row goes to the left child if its value is at most the
threshold, or equals it where the node asks for that, and else to the next one. The threshold of a leaf is infinite and its left
child is the leaf itself: so a walk needs no branches, and whoever has come to a leaf stays there. In place of a feature, a leaf
has its number among the leaves of its tree.

Where numbers are predicted, a row has three columns more in front of its features: see `N_EXTRA_COLUMNS`. Trees with an even
number are then of the targets, of the first of these columns and the features; the others are of what the vote of the experts
misses of them, and of all columns. A leaf is the mean of its rows, and how many that counts as.

Rows are kept as they are given, less an anchor for each feature: 0, or a value near its mean where that is so far from 0 that
float32 would lose the deviations (a time in seconds). So the scale of the ensemble may move, and trees stay right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, NamedTuple

import numpy as np

from streamsvm.core.memory.block import STATE_END, Array, Layout, Store, check_size

#: Trees that vote, the nodes of a tree at most, and how deep they lie at most.
TREES, NODES, DEPTH = 16, 1200, 28
#: Leaves of a tree at most.
LEAVES = NODES // 2
#: Features that are taken at most, and the numbers that there is room for: those of 2,400 rows with 64 features.
MAX_COLUMNS, MAX_CELLS = 512, 153_600
#: Tests of each feature at a node, of which the best one cuts; of twice as many features where many rows are.
TESTS = 4
#: A count of a leaf stays below that; where it is a mean, it counts as so many rows at most.
MAX_LEAF_COUNT, MAX_MEAN_COUNT = 120, 20
#: Columns of a row in front of its features, where numbers are predicted: the last target, what the experts' vote predicts, and
#: what it missed of the last one. Trees of targets have the first one alone.
LAST_TARGET, EXPERTS_VOTE, LAST_RESIDUAL, N_EXTRA_COLUMNS = range(4)
#: Of the numbers that trees predict: targets, and what is missed of them.
TARGET, RESIDUAL = range(2)
#: The largest of them.
LARGEST_TARGET = 20.0
#: The largest value, so that the sum of two is finite.
LARGEST_VALUE = 1e38

#: In a link: the bits of the left child's place in the pool, and where the feature and the flag of an equality begin.
LEFT, FEATURE, EQUALITY = 0xFFFF, 16, 30
#: Columns of a leaf: two labels, the place of its latest row of the first label, and both counts, the second one times 256.
FIRST_LABEL, SECOND_LABEL, LATEST_ROW, COUNTS = range(4)
#: Columns of a node that waits while a tree grows: its rows, whether it may be cut, and its depth.
NODE_BEGIN, NODE_END, IS_MIXED, NODE_DEPTH = range(4)

#: The room of the current row: a walk reads the feature with the number of a leaf, too, and makes nothing of it.
_ROW = 640

#: Fields of the header, beside the sizes. The first two are fixed at construction, too.
HEADER = np.dtype(
    [
        ("columns", "i8"),  # room for features
        ("extra_columns", "i8"),  # columns of a row in front of its features
        ("used", "i8"),  # columns that have a feature
        ("n_learned", "i8"),  # rows; the next one takes the place of that number, modulo the places
        ("random", "u8"),
        ("n_grown", "i8"),  # trees; the next one takes the place of that number, modulo the trees
        ("next_growth", "i8"),  # the number of rows with which the next one is grown
        ("last_residual", "f8"),  # by the experts' vote of the last number
    ]
)


class ForestViews(NamedTuple):
    """The arrays inside a block, by the sizes of its `HEADER`."""

    header: Annotated[np.ndarray, Array(HEADER)]
    anchors: Annotated[np.ndarray, Array(np.float64, ("row_width",))]
    """The number that is taken off each feature."""
    fractions: Annotated[np.ndarray, Array(np.int32, ("row_width",), 0, 1)]
    """Whether a feature had a value that is no whole number. One that had none may be a name, and equality says something."""
    rows: Annotated[np.ndarray, Array(np.float32, ("capacity", "row_width"), -LARGEST_VALUE, LARGEST_VALUE)]
    labels: Annotated[np.ndarray, Array(np.int16, ("capacity",), 0)]
    numbers: Annotated[np.ndarray, Array(np.float32, (2, "target_rows"), -LARGEST_TARGET, LARGEST_TARGET)]
    """The targets of rows, and what the experts' vote missed of them."""
    sizes: Annotated[np.ndarray, Array(np.int32, (TREES,), 1, NODES)]
    """The nodes of each tree."""
    errors: Annotated[np.ndarray, Array(np.float32, (TREES,), 0.0, 2.0 * LARGEST_TARGET)]
    """The recent error of each tree: the share of rows, or the mean of absolute errors."""
    votes: Annotated[np.ndarray, Array(np.float32, (TREES,), 1e-4, 1e4)]
    """The vote that each has by its error."""
    ages: Annotated[np.ndarray, Array(np.int32, (TREES,), 0, 48)]
    """Rows that the error is the mean of, up to 48."""
    nodes: Annotated[np.ndarray, Array(np.int32, (TREES * NODES, 2), -(2.0**31), 2.0**31)]
    """Of each a link, and the bits of a threshold."""
    leaves: Annotated[np.ndarray, Array(np.int16, (TREES * LEAVES, 4), -(2.0**15), 2.0**15)]
    """Those of each tree: see `FIRST_LABEL`. For regression, the bits of two float32: a mean, and its weight."""
    row: Annotated[np.ndarray, Array(np.float32, (_ROW,), saved=False)]
    """The current row."""
    reached: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    """The node of each tree that it has come to, which leaf that is, and how deep it lies."""
    landed: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    depths: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    walking: Annotated[np.ndarray, Array(np.int64, (TREES,), saved=False)]
    """The trees in which it has not come to a leaf."""
    shares: Annotated[np.ndarray, Array(np.float64, ("labels",), saved=False)]
    waiting: Annotated[np.ndarray, Array(np.int16, (NODES, 4), saved=False)]
    """Of a tree that grows, by node: see `NODE_BEGIN`."""
    members: Annotated[np.ndarray, Array(np.int16, (2, "capacity"), saved=False)]
    """The places of its rows, and their labels: those of a node lie side by side."""
    features: Annotated[np.ndarray, Array(np.int32, ("tests",), saved=False)]
    """Of each test of a node."""
    equal: Annotated[np.ndarray, Array(np.int32, ("tests",), saved=False)]
    """Whether values pass that equal the threshold, rather than those up to it."""
    thresholds: Annotated[np.ndarray, Array(np.float32, ("tests",), saved=False)]
    beyond: Annotated[np.ndarray, Array(np.int32, ("tests",), saved=False)]
    """The rows that do not pass, of those counted."""
    squares: Annotated[np.ndarray, Array(np.int32, ("tests", 2), saved=False)]
    """The sum of the squared counts of the labels that pass, and of those that do not."""
    sums: Annotated[np.ndarray, Array(np.float64, ("tests",), saved=False)]
    """The sum of their numbers."""
    counts: Annotated[np.ndarray, Array(np.int16, ("tests", 2, "labels"), saved=False)]
    """By label."""


_LAYOUT = Layout(ForestViews, in_lines=())
_SIZES = ("columns", "row_width", "capacity", "labels", "target_rows", "tests", "extra_columns")

#: Opens a block (uint8 [nbytes]) as `ForestViews` in Python and in compiled code, without a copy.
forest_views: Callable[[np.ndarray], ForestViews] = _LAYOUT.views


def count_growing_rows(places: int) -> int:
    """Return of how many of the latest rows a tree grows: the others take new rows meanwhile."""
    return 5 * places // 6


def count_tried_features(features: int) -> int:
    """Return the number of features that are tried at a node.

    >>> [count_tried_features(n) for n in (0, 1, 2, 9, 10, 512)]
    [0, 1, 2, 4, 5, 24]
    """
    root = 0
    while root * root < features:
        root += 1
    return min(features, root + 1)


def count_used_columns(used: int, added: int, kept: int) -> int:
    """Return how many columns of a row hold something."""
    return min(used + added, kept)


def _array_sizes(columns: int, rows: int, labels: int) -> dict[str, int]:
    numbers = labels == 0
    kept = min(columns, MAX_COLUMNS) + (N_EXTRA_COLUMNS if numbers else 0)
    places = min(int(rows), max(MAX_CELLS // kept, 1))
    tests = 2 * TESTS * count_tried_features(kept)
    sizes = {"row_width": kept, "capacity": places, "labels": labels, "tests": tests}
    return sizes | {"target_rows": places * numbers}


class ForestStore(Store[ForestViews]):
    """Room for ``rows`` rows, or for fewer of many features: 153,600 numbers in all; and for trees that tell ``labels`` apart,
    or where that is 0 predict numbers.

    It is allocated at construction. Of more than 512 features, it takes the first 512. ``within`` and ``columns`` are as in
    `Store`. It is a ValueError if a size is not a positive integer, or would not fit into memory.

    With N = rows, D columns and K labels, it has about ``4 min(N D, 153,600) + 6 N + 32 sqrt(D) (K + 8) + 245,000`` bytes;
    where numbers are predicted, D is three more, K is 0, and it is 14 N in place of 6 N.

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
        v, added = self.views, 0 if labels else N_EXTRA_COLUMNS
        self._header["extra_columns"] = added
        v.fractions[:added] = 1
        v.sizes[:], v.votes[:], v.errors[:] = 1, 1.0, 0.5
        roots = np.arange(TREES) * NODES  # each is a leaf
        v.nodes[roots, 0], self._thresholds(v)[roots] = roots, np.inf

    @staticmethod
    def _thresholds(views: ForestViews) -> Any:
        return views.nodes.view(np.float32)[:, 1]

    @property
    def n_learned(self) -> int:
        """The number of rows that were learned."""
        return int(self._header["n_learned"][0])

    @property
    def n_grown(self) -> int:
        """The number of trees that were grown."""
        return int(self._header["n_grown"][0])

    @property
    def n_rows(self) -> int:
        """The number of rows that are held."""
        return min(self.n_learned, int(self._header["capacity"][0]))

    def get_tree(self, number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return a tree: links of its nodes, which are counted from its root; their thresholds; and what leaves are, by node."""
        v = self.views
        some = slice(number * NODES, number * NODES + int(v.sizes[number]))
        links, thresholds = v.nodes[some, 0] - number * NODES, self._thresholds(v)[some]
        return links, thresholds, v.leaves[number * LEAVES + np.where(thresholds == np.inf, links >> FEATURE, 0)]

    def swap_labels(self) -> None:
        """Give the first label the number of the second one, and the other way round."""
        v, held = self.views, self.n_rows
        v.labels[:held] = 1 - v.labels[:held]
        v.leaves[:, [FIRST_LABEL, SECOND_LABEL]] = 1 - v.leaves[:, [FIRST_LABEL, SECOND_LABEL]]

    def copy_from(self, other: ForestStore) -> None:
        """Become a copy of a store with other columns or labels. Where there is room for fewer rows, the latest stay."""
        super().copy_from(other)
        self._header["columns"] = self.columns  # which no array has: rows have up to 512
        v, theirs = self.views, other.views
        places, before = len(v.labels), len(theirs.labels)
        if places == before:
            return
        rows = np.arange(self.n_learned - min(places, other.n_rows), self.n_learned)
        columns = min(v.rows.shape[1], theirs.rows.shape[1])
        v.rows[:], v.labels[:], v.numbers[:] = 0.0, 0, 0.0
        v.rows[rows % places, :columns] = theirs.rows[rows % before, :columns]
        v.labels[rows % places] = theirs.labels[rows % before]
        if v.numbers.size:
            v.numbers[:, rows % places] = theirs.numbers[:, rows % before]
        else:
            v.leaves[:, LATEST_ROW] %= places

    def _check_block(self, block: np.ndarray) -> None:
        h = self._read_header(block, _SIZES)
        v, used = _LAYOUT.views(block), int(h["used"])
        filled = count_used_columns(used, int(h["extra_columns"]), int(h["row_width"]))
        if not (0 <= used <= self.max_features and all(0 <= h[name] < 2**62 for name in ("n_learned", "n_grown", "next_growth"))):
            raise ValueError(f"a snapshot of a forest with {used} features and {h['n_learned']} rows does not fit the store")
        held = min(int(h["n_learned"]), int(h["capacity"]))
        _LAYOUT.check(v, {"capacity": held, "target_rows": held, "row_width": filled})
        if block[_LAYOUT.header.itemsize : STATE_END].any():
            raise ValueError("the snapshot is corrupt: there are numbers beyond the header")
        if (held and v.labels.max() >= max(h["labels"], 1)) or not abs(h["last_residual"]) <= LARGEST_TARGET:
            raise ValueError("the snapshot is corrupt: a forest holds labels or numbers that there are not")
        if h["labels"] > 0 and v.errors.max() > 1.0:  # of which votes would be 0
            raise ValueError("the snapshot is corrupt: a tree of a forest misses more rows than there are")
        for tree in range(TREES):
            _check_tree(v, tree, max(filled, 1))


def _check_tree(v: ForestViews, tree: int, features: int) -> None:
    """Raise a ValueError where the nodes of a tree are none whose walks end, or its leaves no leaves."""
    first, size = tree * NODES, int(v.sizes[tree])
    places = np.arange(first, first + size)
    links, thresholds = v.nodes[places, 0], ForestStore._thresholds(v)[places]
    left, feature, equal = links & LEFT, links >> FEATURE & 0x3FFF, links >> EQUALITY
    leaf = thresholds == np.inf
    inner = (np.abs(thresholds) <= LARGEST_VALUE) & (left > places) & (left + 1 < first + size) & (feature < features)
    if not (np.where(leaf, (left == places) & (feature < LEAVES), inner) & (equal >= 0) & (equal <= ~leaf)).all():
        raise ValueError("the snapshot is corrupt: a forest has a node that leads nowhere")
    leaves = v.leaves[tree * LEAVES + feature[leaf]]
    if v.numbers.size:
        mean, rows = leaves.view(np.float32).T
        if not ((np.abs(mean) <= LARGEST_TARGET) & (rows >= 0.0) & (rows <= MAX_MEAN_COUNT)).all():
            raise ValueError("the snapshot is corrupt: a leaf of a forest has a mean or a count that is impossible")
        return
    label, place, counts = leaves[:, : SECOND_LABEL + 1], leaves[:, LATEST_ROW], leaves[:, COUNTS]
    if not (
        ((label >= 0) & (label < v.header["labels"][0])).all()
        and ((place >= 0) & (place < v.header["capacity"][0])).all()
        and ((counts >= 0) & (counts & 255 <= MAX_LEAF_COUNT) & (counts >> 8 <= MAX_LEAF_COUNT)).all()
    ):
        raise ValueError("the snapshot is corrupt: a leaf of a forest has no label, row or count that is possible")
