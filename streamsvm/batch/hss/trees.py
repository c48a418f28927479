"""Binary trees of cuts along random axes, fast to grow, and forests of them, in which new rows find their leaves.

The axis of a node is a random direction in which its rows vary much: a random combination of some of its rows, then steps of the
power method. The cut is at the median or, where rows are equal along the axis, at the nearest place between rows that differ.
Each tree of a forest sends a row to one of its leaves, and adds an expansion over the rows of that leaf. The cluster tree of a
matrix cuts rows in two again and again, so that near ones come together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import RBF, Kernel, compute_exponentials, compute_from_product, dot

_SAMPLE_ROWS = 256  # of a node, by which its axis is chosen
_POWER_STEPS = 1  # of the power method after the random combination, which is half of one
_MIN_PART = 8  # a cut leaves at least one of so many parts of the rows on either side, if rows differ there


class PartitionTree(NamedTuple):
    """A binary tree over n rows. Nodes are numbered from the root, 0, down: a left child comes right after its parent.

    A leaf has no axis; ``right`` is -1 for it, and ``cut`` is its number among the leaves, from left to right.
    """

    order: np.ndarray  # int64 [n]: the rows in the order of the leaves
    begin: np.ndarray  # int64 [nodes]: the place in ``order`` of each node's first row
    end: np.ndarray  # int64 [nodes]: one after that of its last
    right: np.ndarray  # int64 [nodes]: the number of the right child
    cut: np.ndarray  # int64 [nodes]: the number of a node's axis and threshold; of a leaf, its number
    axes: np.ndarray  # float64 [cuts, d]
    thresholds: np.ndarray  # float64 [cuts]: rows whose product with the axis is at most this go left

    @property
    def leaves(self) -> np.ndarray:
        """Numbers of the leaves, from left to right."""
        return np.flatnonzero(self.right < 0)


def grow_tree(X: np.ndarray, leaf_size: int, seed: int, steps: int = _POWER_STEPS) -> PartitionTree:
    """Grow a tree over the rows of X float64 [n, d], n at least 1, with leaves of at most ``leaf_size`` rows. O(n d log n).

    The more ``steps`` of the power method, the less random are the axes, and the more do rows vary along them.
    """
    n, d = X.shape
    largest = 2 * _MIN_PART * -(-n // leaf_size) + 1  # nodes
    begin, end, right, cut = (np.empty(largest, np.int64) for _ in range(4))
    axes, thresholds = np.empty((largest // 2 + 1, d)), np.empty(largest // 2 + 1)
    tree = PartitionTree(np.random.default_rng(seed).permutation(n), begin, end, right, cut, axes, thresholds)
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)
    nodes, cuts = _grow_nodes(X, leaf_size, steps, state, tree)
    return PartitionTree(tree.order, *(array[:nodes].copy() for array in tree[1:5]), *(array[:cuts].copy() for array in tree[5:]))


@compiled(nogil=True)
def _grow_nodes(X: np.ndarray, leaf_size: int, steps: int, state: np.ndarray, tree: PartitionTree) -> tuple[int, int]:
    """Fill the arrays of a tree; return the numbers of nodes and cuts."""
    order, begin, end, right, cut, axes, thresholds = tree
    values = np.empty(len(order))
    parents = [-1]  # of the nodes that wait, the next one last; of a right child its parent, of others -1
    begins, ends = [0], [len(order)]
    nodes, cuts, leaves = 0, 0, 0
    while parents:
        parent, first, last = parents.pop(), begins.pop(), ends.pop()
        if parent >= 0:
            right[parent] = nodes
        begin[nodes], end[nodes], right[nodes] = first, last, -1
        if last - first <= leaf_size:
            cut[nodes] = leaves
            leaves += 1
        else:
            _choose_axis(X, order, first, last, steps, state, axes[cuts])
            for i in range(first, last):
                values[i] = dot(X[order[i]], axes[cuts])
            middle, thresholds[cuts] = _split_rows(values, order, first, last)
            cut[nodes] = cuts
            cuts += 1
            parents.append(nodes)
            begins.append(middle)
            ends.append(last)
            parents.append(-1)
            begins.append(first)
            ends.append(middle)
        nodes += 1
    return nodes, cuts


@compiled(nogil=True)
def _draw_random_bits(state: np.ndarray) -> np.uint64:
    """Return 64 random bits, by Marsaglia's xorshift."""
    z = state[0]
    z ^= z << np.uint64(13)
    z ^= z >> np.uint64(7)
    z ^= z << np.uint64(17)
    state[0] = z
    return z


@compiled(nogil=True)
def _choose_axis(
    X: np.ndarray, order: np.ndarray, first: int, last: int, steps: int, state: np.ndarray, axis: np.ndarray
) -> None:
    """Set the axis of the rows ``order[first:last]``, a unit vector, or 0 where all that were looked at are equal."""
    n, d = last - first, X.shape[1]
    m = min(n, _SAMPLE_ROWS)
    sample, mean = np.empty((m, d)), np.zeros(d)
    for i in range(m):
        row = order[first + (i if n <= _SAMPLE_ROWS else np.int64(_draw_random_bits(state) % np.uint64(n)))]
        for j in range(d):
            sample[i, j] = X[row, j]
            mean[j] += X[row, j] / m
    for j in range(d):
        axis[j] = 0.0
    for i in range(m):
        sign = 1.0 if _draw_random_bits(state) >> np.uint64(63) else -1.0
        for j in range(d):
            sample[i, j] -= mean[j]
            axis[j] += sign * sample[i, j]
    _normalise_axis(axis)
    for _ in range(steps):
        for j in range(d):
            mean[j] = 0.0  # from here on, the next axis
        for i in range(m):
            length = dot(sample[i], axis)
            for j in range(d):
                mean[j] += length * sample[i, j]
        for j in range(d):
            axis[j] = mean[j]
        _normalise_axis(axis)


@compiled(nogil=True)
def _normalise_axis(axis: np.ndarray) -> None:
    """Divide an axis by its length, or leave it where that is 0."""
    largest, total = 0.0, 0.0
    for value in axis:
        largest = max(largest, abs(value))
    if largest > 0.0:
        for value in axis:
            total += (value / largest) ** 2  # which neither overflows nor vanishes
        for j in range(len(axis)):
            axis[j] = axis[j] / largest / np.sqrt(total)


@compiled(nogil=True)
def _split_rows(values: np.ndarray, order: np.ndarray, first: int, last: int) -> tuple[int, float]:
    """Order rows by their values so that small ones come before the cut; return its place and the threshold."""
    middle = (first + last) // 2
    select_kth(values, order, first, last, middle)
    low, high = _find_largest_value(values, first, middle), values[middle]
    if low == high:  # equal values on both sides: cut before or after them
        below, above = first, last
        for i in range(first, last):
            below += values[i] < low
            above -= values[i] > low
        least = max((last - first) // _MIN_PART, 1)
        before, after = below - first >= least, last - above >= least
        if before and (not after or middle - below <= above - middle):
            middle = below
        elif after:
            middle = above
        if before or after:
            select_kth(values, order, first, last, middle)
            low, high = _find_largest_value(values, first, middle), values[middle]
    threshold = 0.5 * (low + high)
    return middle, threshold if low <= threshold < high else low


@compiled(nogil=True)
def _find_largest_value(values: np.ndarray, first: int, last: int) -> float:
    largest = values[first]
    for i in range(first, last):
        largest = max(largest, values[i])
    return float(largest)


@compiled(nogil=True)
def select_kth(values: np.ndarray, order: np.ndarray, first: int, last: int, middle: int) -> None:
    """Move rows so that the values before ``middle`` are at most, and those after it at least, the one there: quickselect."""
    last -= 1
    while first < last:
        a, b, c = values[first], values[(first + last) // 2], values[last]
        pivot = max(min(a, b), min(max(a, b), c))
        i, j = first, last
        while i <= j:
            while values[i] < pivot:
                i += 1
            while values[j] > pivot:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            last = j
        elif middle >= i:
            first = i
        else:
            return


@compiled(nogil=True)
def find_leaf(x: np.ndarray, node: int, right: np.ndarray, cut: np.ndarray, axes: np.ndarray, thresholds: np.ndarray) -> int:
    """Return the number of the leaf to which the row x [d] goes from a node on; the arrays are those of `PartitionTree`."""
    while right[node] >= 0:
        number = cut[node]
        node = node + 1 if dot(x, axes[number]) <= thresholds[number] else right[node]
    return int(cut[node])


_LARGEST_SINGLE = 1e30  # gamma or feature for which distances are float32


class PartitionForest(NamedTuple):
    """The trees of a fitted machine, one after the other; nodes are those of `streamsvm.batch.hss.trees.PartitionTree`."""

    roots: np.ndarray  # int64 [trees]
    right: np.ndarray  # int64 [nodes]
    cut: np.ndarray  # int64 [nodes]
    axes: np.ndarray  # float64 [cuts, d]
    thresholds: np.ndarray  # float64 [cuts]
    starts: np.ndarray  # int64 [leaves + 1]: where each leaf's entries begin in the next two
    rows: np.ndarray  # int32 [entries]: rows of the training set, or among the support vectors
    weights: np.ndarray  # float64 [machines, entries]


class PackedForest(NamedTuple):
    """A forest as compiled predictions read it."""

    forest: PartitionForest
    centres: np.ndarray  # float64 [leaves, d]: of the Gaussian kernel, the middle of a leaf's rows; else 0
    rows: np.ndarray
    """Of the leaves one after the other, their rows less the centre, feature by feature: float32 for the Gaussian kernel."""
    largest: int  # rows of the largest leaf


def join_trees(trees: Iterable[tuple[PartitionTree, np.ndarray]], which: np.ndarray) -> PartitionForest:
    """Return the forest of trees, each with the weights float64 [machines, n] of the rows in the order of its leaves.

    Rows without weight are left out. ``which`` int64 [n] has the numbers by which rows are called.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    nodes = cuts_before = leaves = entries = 0
    for cuts, weights in trees:
        inner, used = cuts.right >= 0, weights.any(axis=0)
        before = np.concatenate([[0], np.cumsum(used)])
        right = np.where(inner, cuts.right + nodes, -1)
        parts.append((
            np.array([nodes]),
            right,
            cuts.cut + np.where(inner, cuts_before, leaves),
            cuts.axes,
            cuts.thresholds,
            entries + before[cuts.begin[cuts.leaves]],
            which[cuts.order[used]].astype(np.int32),
            weights[:, used].T,
        ))  # fmt: skip
        nodes, cuts_before = nodes + len(right), cuts_before + len(cuts.thresholds)
        leaves, entries = leaves + len(cuts.leaves), entries + int(before[-1])
    roots, right, cut, axes, thresholds, starts, rows, by_row = (np.concatenate(some) for some in zip(*parts, strict=True))
    starts = np.append(starts, entries)
    return PartitionForest(roots, right, cut, axes, thresholds, starts, rows, np.ascontiguousarray(by_row.T))


def check_forest(forest: Any, machines: int, vectors: int, features: int) -> PartitionForest:
    """Return a saved forest; raise a ValueError where a walk through it could lead out of its arrays."""
    corrupt = ValueError("the saved model is corrupt: its trees and weights do not fit together")
    try:
        found = PartitionForest(*forest)
    except TypeError:
        raise corrupt from None
    kinds = [np.int64] * 3 + [np.float64] * 2 + [np.int64, np.int32, np.float64]
    dimensions = [1, 1, 1, 2, 1, 1, 1, 2]
    if not all(
        isinstance(array, np.ndarray) and array.dtype == kind and array.ndim == dimension and array.flags.c_contiguous
        for array, kind, dimension in zip(found, kinds, dimensions, strict=True)
    ):
        raise corrupt
    nodes, cuts, leaves, entries = len(found.right), len(found.thresholds), len(found.starts) - 1, len(found.rows)
    numbers = np.arange(nodes)
    inner = found.right >= 0
    good = (
        len(found.cut) == nodes > 0
        and len(found.roots) > 0
        and entries <= len(found.roots) * vectors  # predictions take memory for each entry
        and found.axes.shape == (cuts, features)
        and found.weights.shape == (machines, entries)
        and leaves > 0
        and ((found.roots >= 0) & (found.roots < nodes)).all()
        and ((found.right == -1) | ((found.right > numbers + 1) & (found.right < nodes))).all()  # so that walks go on and end
        and ((found.cut >= 0) & (found.cut < np.where(inner, cuts, leaves))).all()
        and found.starts[0] == 0
        and found.starts[-1] == entries
        and (found.starts[1:] >= found.starts[:-1]).all()
        and ((found.rows >= 0) & (found.rows < vectors)).all()
        and all(np.isfinite(array).all() for array in (found.axes, found.thresholds, found.weights))
    )
    if not good:
        raise corrupt
    return found


def pack_forest(forest: PartitionForest, X: np.ndarray, kernel: Kernel) -> PackedForest:
    """Return a forest over rows of X float64 [n, d] for predictions.

    Gaussian kernel values are float32 where that has the distances: not for features or widths that are very large or small.
    """
    entries, d = len(forest.rows), X.shape[1]
    gaussian = kernel.kind == RBF
    single = 1.0 / _LARGEST_SINGLE <= kernel.gamma <= _LARGEST_SINGLE and np.abs(X).max(initial=0.0) <= _LARGEST_SINGLE
    kind = np.float32 if gaussian and single else np.float64
    centres, rows = np.zeros((len(forest.starts) - 1, d)), np.empty(entries * d, kind)
    _pack_rows(X, forest.starts, forest.rows, gaussian, centres, rows)
    return PackedForest(forest, centres, rows, int(np.diff(forest.starts).max()))


@compiled(nogil=True)
def _pack_rows(
    X: np.ndarray, starts: np.ndarray, which: np.ndarray, centred: bool, centres: np.ndarray, rows: np.ndarray
) -> None:
    d = X.shape[1]
    for leaf in range(len(starts) - 1):
        begin, m = starts[leaf], starts[leaf + 1] - starts[leaf]
        if centred and m:
            for i in range(m):
                centres[leaf] += X[which[begin + i]] / m
        for j in range(d):
            for i in range(m):
                rows[begin * d + j * m + i] = X[which[begin + i], j] - centres[leaf, j]


@compiled(nogil=True)
def add_forest_values(packed: PackedForest, kernel: Kernel, X: np.ndarray, out: np.ndarray) -> None:
    """Add to out [n, machines] the values of the rows X float64 [n, d]. O(trees (d log n + m (d + machines))) a row.

    Tree by tree, and leaf by leaf, so that a leaf that many rows go to is read from memory once.
    """
    d, forest = X.shape[1], packed.forest
    kind, longest = packed.rows.dtype, packed.largest
    x, sums, values = np.empty(d, kind), np.empty(longest, kind), np.empty(longest, kind)
    leaves = np.empty(len(X), np.int64)
    for root in forest.roots:
        for i in range(len(X)):
            leaves[i] = find_leaf(X[i], root, forest.right, forest.cut, forest.axes, forest.thresholds)
        for i in np.argsort(leaves):
            leaf = leaves[i]
            begin, end = forest.starts[leaf], forest.starts[leaf + 1]
            for j in range(d):
                x[j] = X[i, j] - packed.centres[leaf, j]
            _write_leaf_values(kernel, x, packed.rows[begin * d : end * d], end - begin, sums, values)
            for k in range(out.shape[1]):
                out[i, k] += dot(forest.weights[k, begin:end], values)


@compiled(nogil=True, fastmath={"contract"})
def _write_leaf_values(kernel: Kernel, x: np.ndarray, rows: np.ndarray, m: int, sums: np.ndarray, values: np.ndarray) -> None:
    """Compute the kernel values of x [d] and m rows, which are stored feature by feature."""
    sums[:m] = 0.0
    for j in range(len(x)):
        row, value = rows[j * m : (j + 1) * m], x[j]
        if kernel.kind == RBF:
            for i in range(m):
                sums[i] += (value - row[i]) ** 2
        else:
            for i in range(m):
                sums[i] += value * row[i]
    if kernel.kind == RBF:
        compute_exponentials(sums, kernel.gamma, m, values)
    else:
        for i in range(m):
            values[i] = compute_from_product(kernel, sums[i])


_AXIS_POWER_STEPS = 10  # by which the axis of a cut is nearly the one along which rows vary most


@dataclass(frozen=True)
class ClusterTree:
    """A binary tree over n rows. Nodes are numbered so that parents come after their children; the root is last.

    >>> tree = ClusterTree.grow(np.array([[0.0], [9.0], [1.0], [8.0]]), leaf_size=2)
    >>> tree.begin.tolist(), tree.end.tolist(), tree.children.tolist()
    ([2, 0, 0], [4, 2, 4], [[-1, -1], [-1, -1], [1, 0]])
    """

    order: np.ndarray  # int64 [n]: the rows in the order of the leaves
    begin: np.ndarray  # int64 [nodes]: the place in ``order`` of each node's first row
    end: np.ndarray  # int64 [nodes]: one after that of its last
    children: np.ndarray  # int64 [nodes, 2]: numbers of the two halves; -1 for a leaf
    level: np.ndarray  # int64 [nodes]: 0 for the root

    @staticmethod
    def grow(X: np.ndarray, leaf_size: int, seed: int = 0) -> ClusterTree:
        """Build the tree of X float64 [n, d], n at least 1, with leaves of at most ``leaf_size`` rows. O(n d log n).

        A cut is at the median along the direction in which rows vary most.
        """
        cuts = grow_tree(X, leaf_size, seed, _AXIS_POWER_STEPS)
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

    def gather_rows(self, number: int, V: np.ndarray, of_skeletons: list[np.ndarray]) -> np.ndarray:
        """The rows [m, k] of a node: of a leaf those of V [n, k], else those of its children's skeletons."""
        left, right = self.children[number]
        if left < 0:
            return V[self.begin[number] : self.end[number]]
        return np.concatenate([of_skeletons[left], of_skeletons[right]])

    def check_columns(self, V: Any) -> np.ndarray:
        """V as float64 [n] or [n, k]; ValueError if it has another shape."""
        V = np.asarray(V, np.float64)
        if V.ndim not in (1, 2) or len(V) != len(self.order):
            raise ValueError(f"an array of {len(self.order)} rows is needed, not one of shape {V.shape}")
        return V

    def apply_in_order(self, compute: Callable[[np.ndarray], np.ndarray], V: Any, ordered: bool) -> np.ndarray:
        """Apply ``compute``, from rows to rows in the tree's order, to V [n] or [n, k], whose rows are ``ordered`` so or not."""
        V = self.check_columns(V)
        columns = V.reshape(len(V), -1)
        if ordered:
            return compute(columns).reshape(V.shape)
        out = np.empty_like(columns)
        out[self.order] = compute(columns[self.order])
        return out.reshape(V.shape)

    def list_outside_ranges(self) -> list[np.ndarray]:
        """All rows outside each node, int64 [level, 2]: begin and end of its sibling, its parent's sibling, and so on."""
        found = [np.empty((0, 2), np.int64)] * len(self.begin)
        for number in range(len(self.begin) - 1, -1, -1):
            left, right = self.children[number]
            if left >= 0:
                for child, sibling in ((left, right), (right, left)):
                    found[child] = np.vstack([[self.begin[sibling], self.end[sibling]], found[number]])
        return found
