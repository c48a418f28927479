"""Partition trees, which divide rows by random hyperplanes, forests of them for predictions, and the cluster tree of a matrix.

The axis of a node is a random direction of large variance: a random combination of some of its rows, followed by steps of the
power method. The rows are cut at their median along the axis or, if values are equal there, at the nearest position between
different values. A forest sends a new row to one leaf of each tree, and sums up kernel expansions over the rows of these leaves.
A cluster tree orders the rows of a kernel matrix so that similar rows are close to each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import RBF, Kernel, compute_exponentials, compute_kernel_value, dot

_SAMPLE_ROWS = 256  # rows of a node from which its axis is computed
_POWER_STEPS = 1  # steps of the power method after the random combination, which amounts to half a step
_MIN_SHARE_INVERSE = 8  # a cut leaves at least 1/8 of the rows on each side, unless too many have the same value


class PartitionTree(NamedTuple):
    """A binary tree over n rows. Node 0 is the root; a left child has the number after its parent's.

    A leaf has no axis: its ``right`` is -1, and its ``cut`` is its number among the leaves, from left to right.
    """

    order: np.ndarray  # int64 [n]: the rows in the order of the leaves
    starts: np.ndarray  # int64 [nodes]: the position in ``order`` of each node's first row
    stops: np.ndarray  # int64 [nodes]: the position after that of its last row
    right: np.ndarray  # int64 [nodes]: the number of the right child
    cut: np.ndarray  # int64 [nodes]: the number of the node's axis and threshold; for a leaf, its number
    axes: np.ndarray  # float64 [cuts, d]
    thresholds: np.ndarray  # float64 [cuts]: rows whose product with the axis is at most this go left

    @property
    def leaves(self) -> np.ndarray:
        """The numbers of the leaf nodes of this tree, from left to right, int64 [leaves]."""
        return np.flatnonzero(self.right < 0)


def grow_tree(X: np.ndarray, leaf_size: int, seed: int, steps: int = _POWER_STEPS) -> PartitionTree:
    """Grow a binary tree that divides the rows of X float64 [n, d] by random hyperplanes until each leaf has at most
    ``leaf_size`` rows, and return it. The more ``steps``, the nearer the hyperplanes' axes are to directions of largest variance.
    O(n d log n).

    Axes are less random, and closer to the direction of largest variance, with more ``steps`` of the power method.
    """
    n, d = X.shape
    max_nodes = 2 * _MIN_SHARE_INVERSE * -(-n // leaf_size) + 1
    starts, stops, right, cut = (np.empty(max_nodes, np.int64) for _ in range(4))
    axes, thresholds = np.empty((max_nodes // 2 + 1, d)), np.empty(max_nodes // 2 + 1)
    tree = PartitionTree(np.random.default_rng(seed).permutation(n), starts, stops, right, cut, axes, thresholds)
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)
    nodes, cuts = _grow_nodes(X, leaf_size, steps, state, tree)
    return PartitionTree(tree.order, *(array[:nodes].copy() for array in tree[1:5]), *(array[:cuts].copy() for array in tree[5:]))


@compiled(nogil=True)
def _grow_nodes(X: np.ndarray, leaf_size: int, steps: int, state: np.ndarray, tree: PartitionTree) -> tuple[int, int]:
    """Grow a tree: divide the rows of X recursively into leaves of at most ``leaf_size`` rows, and write nodes and hyperplanes
    into the arrays of ``tree``. ``state`` is the random generator. Return the numbers of nodes and of hyperplanes.
    """
    order, starts, stops, right, cut, axes, thresholds = tree
    values = np.empty(len(order))
    # A stack of nodes: the parent of a right child, or -1 for other nodes, and the node's first and last row.
    parents, firsts, lasts = [-1], [0], [len(order)]
    nodes, cuts, leaves = 0, 0, 0
    while parents:
        parent, first, last = parents.pop(), firsts.pop(), lasts.pop()
        if parent >= 0:
            right[parent] = nodes
        starts[nodes], stops[nodes], right[nodes] = first, last, -1
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
            firsts.append(middle)
            lasts.append(last)
            parents.append(-1)
            firsts.append(first)
            lasts.append(middle)
        nodes += 1
    return nodes, cuts


@compiled(nogil=True)
def _draw_random_bits(state: np.ndarray) -> np.uint64:
    """Return 64 random bits from the generator ``state`` uint64 [1] (Marsaglia's xorshift), which is updated."""
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
    """Choose a random direction with a large variance of the rows ``order[first:last]`` of X, and write it into ``axis`` [d],
    with length 1 (zeros if the sampled rows are equal). The more ``steps`` of the power method, the nearer it is to the direction
    of largest variance. ``state`` is the random generator.
    """
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
    """Scale the vector ``axis`` to length 1, in place. A zero vector stays unchanged."""
    largest, total = 0.0, 0.0
    for value in axis:
        largest = max(largest, abs(value))
    if largest > 0.0:
        for value in axis:
            total += (value / largest) ** 2  # scaled, so that squares neither overflow nor vanish
        for j in range(len(axis)):
            axis[j] = axis[j] / largest / np.sqrt(total)


@compiled(nogil=True)
def _split_rows(values: np.ndarray, order: np.ndarray, first: int, last: int) -> tuple[int, float]:
    """Split the rows ``first`` to ``last`` (exclusive) near their median: reorder ``values`` (their projections to an axis) and
    ``order`` (row numbers) so that smaller values come first. Return the position of the cut and the threshold value there.
    """
    middle = (first + last) // 2
    select_kth(values, order, first, last, middle)
    low, high = _find_largest_value(values, first, middle), values[middle]
    if low == high:  # equal values on both sides: cut before or after all of them
        below, above = first, last
        for i in range(first, last):
            below += values[i] < low
            above -= values[i] > low
        least = max((last - first) // _MIN_SHARE_INVERSE, 1)
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
    """Return the largest of the ``values`` from position ``first`` to ``last`` (exclusive)."""
    largest = values[first]
    for i in range(first, last):
        largest = max(largest, values[i])
    return float(largest)


@compiled(nogil=True)
def select_kth(values: np.ndarray, order: np.ndarray, first: int, last: int, middle: int) -> None:
    """Reorder ``values`` and ``order`` together, from ``first`` to ``last`` (exclusive), so that no value before the position
    ``middle`` is larger than the value there, and no value after it is smaller (quickselect).
    """
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
    """Return the number of the leaf that the row ``x`` [d] reaches when it descends from the node ``node`` of a tree. At each
    inner node, it goes left if its projection to the node's axis is at most a threshold. The arrays ``right``, ``cut``, ``axes``
    and ``thresholds`` describe the tree.
    """
    while right[node] >= 0:
        number = cut[node]
        node = node + 1 if dot(x, axes[number]) <= thresholds[number] else right[node]
    return int(cut[node])


_MAX_FLOAT32_VALUE = 1e30  # distances are float32 unless gamma, its inverse or a feature exceeds this


class PartitionForest(NamedTuple):
    """The trees of a fitted machine, one after the other. Nodes are numbered as in `PartitionTree`.

    Files and exported programs contain the field names, which therefore never change.
    """

    roots: np.ndarray  # int64 [trees]
    right: np.ndarray  # int64 [nodes]
    cut: np.ndarray  # int64 [nodes]
    axes: np.ndarray  # float64 [cuts, d]
    thresholds: np.ndarray  # float64 [cuts]
    starts: np.ndarray  # int64 [leaves + 1]: the position of each leaf's first entry in ``rows`` and ``weights``
    rows: np.ndarray  # int32 [entries]: positions among the support vectors (before that, among the training rows)
    weights: np.ndarray  # float64 [machines, entries]


class PackedForest(NamedTuple):
    """A forest with the rows of its leaves, in the layout for fast predictions."""

    forest: PartitionForest
    centres: np.ndarray  # float64 [leaves, d]: the mean of each leaf's rows for the Gaussian kernel, otherwise 0
    rows: np.ndarray
    """Leaf by leaf, its rows minus the centre, stored feature by feature; float32 for the Gaussian kernel, if that is safe."""
    max_rows: int  # of a leaf


def join_trees(trees: Iterable[tuple[PartitionTree, np.ndarray]], row_numbers: np.ndarray) -> PartitionForest:
    """Combine several fitted trees to one forest for predictions, and return it. Each tree comes with the weights of its rows,
    float64 [machines, n], in the order of its leaves; rows without weight are left out. ``row_numbers`` int64 [n] number the rows
    in the forest.
    """
    parts: list[tuple[np.ndarray, ...]] = []
    nodes = cuts = leaves = entries = 0
    for tree, weights in trees:
        is_inner, is_used = tree.right >= 0, weights.any(axis=0)
        n_used = np.concatenate([[0], np.cumsum(is_used)])
        right = np.where(is_inner, tree.right + nodes, -1)
        parts.append((
            np.array([nodes]),
            right,
            tree.cut + np.where(is_inner, cuts, leaves),
            tree.axes,
            tree.thresholds,
            entries + n_used[tree.starts[tree.leaves]],
            row_numbers[tree.order[is_used]].astype(np.int32),
            weights[:, is_used].T,
        ))  # fmt: skip
        nodes, cuts = nodes + len(right), cuts + len(tree.thresholds)
        leaves, entries = leaves + len(tree.leaves), entries + int(n_used[-1])
    roots, right, cut, axes, thresholds, starts, rows, by_row = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    starts = np.append(starts, entries)
    return PartitionForest(roots, right, cut, axes, thresholds, starts, rows, np.ascontiguousarray(by_row.T))


def check_forest(forest: Any, machines: int, vectors: int, features: int) -> PartitionForest:
    """Return a saved forest of trees (a tuple of arrays) as a `PartitionForest`. Raise a ValueError if its arrays do not match
    each other or the numbers of ``machines``, ``vectors`` and ``features``, because compiled predictions would then read outside
    them.
    """
    corrupt = ValueError("the saved model is corrupt: its trees and weights do not fit together")
    try:
        saved = PartitionForest(*forest)
    except TypeError:
        raise corrupt from None
    kinds = [np.int64] * 3 + [np.float64] * 2 + [np.int64, np.int32, np.float64]
    dimensions = [1, 1, 1, 2, 1, 1, 1, 2]
    if not all(
        isinstance(array, np.ndarray) and array.dtype == kind and array.ndim == dimension and array.flags.c_contiguous
        for array, kind, dimension in zip(saved, kinds, dimensions, strict=True)
    ):
        raise corrupt
    nodes, cuts, leaves, entries = len(saved.right), len(saved.thresholds), len(saved.starts) - 1, len(saved.rows)
    numbers = np.arange(nodes)
    is_inner = saved.right >= 0
    is_valid = (
        len(saved.cut) == nodes > 0
        and len(saved.roots) > 0
        and entries <= len(saved.roots) * vectors  # predictions take memory for each entry
        and saved.axes.shape == (cuts, features)
        and saved.weights.shape == (machines, entries)
        and leaves > 0
        and ((saved.roots >= 0) & (saved.roots < nodes)).all()
        and ((saved.right == -1) | ((saved.right > numbers + 1) & (saved.right < nodes))).all()  # so that all walks end
        and ((saved.cut >= 0) & (saved.cut < np.where(is_inner, cuts, leaves))).all()
        and saved.starts[0] == 0
        and saved.starts[-1] == entries
        and (saved.starts[1:] >= saved.starts[:-1]).all()
        and ((saved.rows >= 0) & (saved.rows < vectors)).all()
        and all(np.isfinite(array).all() for array in (saved.axes, saved.thresholds, saved.weights))
    )
    if not is_valid:
        raise corrupt
    return saved


def pack_forest(forest: PartitionForest, X: np.ndarray, kernel: Kernel) -> PackedForest:
    """Prepare a forest of trees for fast predictions, and return it: the rows of each leaf are copied from the support vectors X
    float64 [n, d] and stored next to each other.

    With the Gaussian kernel, distances are float32, unless features or gamma are so large or small that float32 would fail.
    """
    entries, d = len(forest.rows), X.shape[1]
    is_gaussian, limit = kernel.kind == RBF, _MAX_FLOAT32_VALUE
    is_safe = 1.0 / limit <= kernel.gamma <= limit and np.abs(X).max(initial=0.0) <= limit
    dtype = np.float32 if is_gaussian and is_safe else np.float64
    centres, rows = np.zeros((len(forest.starts) - 1, d)), np.empty(entries * d, dtype)
    _pack_rows(X, forest.starts, forest.rows, is_gaussian, centres, rows)
    return PackedForest(forest, centres, rows, int(np.diff(forest.starts).max()))


@compiled(nogil=True)
def _pack_rows(
    X: np.ndarray, starts: np.ndarray, which: np.ndarray, centred: bool, centres: np.ndarray, rows: np.ndarray
) -> None:
    """Copy the rows of each leaf from X into the flat array ``rows``, feature by feature. If ``centred``, the mean of the leaf's
    rows is written into ``centres`` [leaves, d] and subtracted.
    """
    d = X.shape[1]
    for leaf in range(len(starts) - 1):
        first, m = starts[leaf], starts[leaf + 1] - starts[leaf]
        if centred and m:
            for i in range(m):
                centres[leaf] += X[which[first + i]] / m
        for j in range(d):
            for i in range(m):
                rows[first * d + j * m + i] = X[which[first + i], j] - centres[leaf, j]


@compiled(nogil=True)
def add_forest_values(packed: PackedForest, kernel: Kernel, X: np.ndarray, out: np.ndarray) -> None:
    """Add decision values for the rows X float64 [n, d] to ``out`` [n, machines], without the intercepts. Each row descends each
    tree of the forest to a leaf; its kernel values with the rows of that leaf are summed with their weights.

    It goes tree by tree and leaf by leaf, so that each leaf is read from memory only once. O(d log n + m (d + machines)) for each
    row and each tree with leaves of m rows.
    """
    d, forest = X.shape[1], packed.forest
    kind, longest = packed.rows.dtype, packed.max_rows
    x, sums, values = np.empty(d, kind), np.empty(longest, kind), np.empty(longest, kind)
    leaves = np.empty(len(X), np.int64)
    for root in forest.roots:
        for i in range(len(X)):
            leaves[i] = find_leaf(X[i], root, forest.right, forest.cut, forest.axes, forest.thresholds)
        for i in np.argsort(leaves):
            leaf = leaves[i]
            first, last = forest.starts[leaf], forest.starts[leaf + 1]
            for j in range(d):
                x[j] = X[i, j] - packed.centres[leaf, j]
            _write_leaf_values(kernel, x, packed.rows[first * d : last * d], last - first, sums, values)
            for k in range(out.shape[1]):
                out[i, k] += dot(forest.weights[k, first:last], values)


@compiled(nogil=True, fastmath={"contract"})
def _write_leaf_values(kernel: Kernel, x: np.ndarray, rows: np.ndarray, m: int, sums: np.ndarray, values: np.ndarray) -> None:
    """Write the kernel values of the row ``x`` [d] with the ``m`` rows of a leaf into ``values``. ``rows`` contains the leaf's
    rows feature by feature; ``sums`` is work memory.
    """
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
            values[i] = compute_kernel_value(kernel, sums[i])


_AXIS_POWER_STEPS = 10  # after that many steps of the power method, the axis is close to the direction of largest variance


@dataclass(frozen=True)
class ClusterTree:
    """A binary tree over n rows. Nodes are numbered so that parents come after their children; the root is last.

    >>> tree = ClusterTree.grow(np.array([[0.0], [9.0], [1.0], [8.0]]), leaf_size=2)
    >>> tree.starts.tolist(), tree.stops.tolist(), tree.children.tolist()
    ([2, 0, 0], [4, 2, 4], [[-1, -1], [-1, -1], [1, 0]])
    """

    order: np.ndarray  # int64 [n]: the rows in the order of the leaves
    starts: np.ndarray  # int64 [nodes]: the position in ``order`` of each node's first row
    stops: np.ndarray  # int64 [nodes]: the position after that of its last row
    children: np.ndarray  # int64 [nodes, 2]: the numbers of the two children; -1 for a leaf
    level: np.ndarray  # int64 [nodes]: 0 for the root

    @staticmethod
    def grow(X: np.ndarray, leaf_size: int, seed: int = 0) -> ClusterTree:
        """Grow a tree that clusters the rows of X float64 [n, d], n at least 1, so that similar rows are neighbours in its order.
        Leaves have at most ``leaf_size`` rows. O(n d log n).

        Cuts are at the median along the direction of largest variance.
        """
        tree = grow_tree(X, leaf_size, seed, _AXIS_POWER_STEPS)
        # Renumber the nodes: in `PartitionTree`, the root is first, and a left child right after its parent.
        last = len(tree.right) - 1
        right = np.where(tree.right < 0, -1, last - tree.right)[::-1]
        children = np.column_stack([np.where(right < 0, -1, np.arange(-1, last)), right])
        level = np.zeros(last + 1, np.int64)
        for number in range(last, -1, -1):
            if right[number] >= 0:
                level[children[number]] = level[number] + 1
        return ClusterTree(tree.order, tree.starts[::-1].copy(), tree.stops[::-1].copy(), children, level)

    @property
    def leaves(self) -> np.ndarray:
        """The numbers of the leaf nodes of this tree, int64 [leaves]."""
        return np.flatnonzero(self.children[:, 0] < 0)

    def gather_rows(self, number: int, V: np.ndarray, skeleton_rows: list[np.ndarray]) -> np.ndarray:
        """Return the rows of V [n, k] that the tree's node ``number`` works on. For a leaf, these are its own rows; for an inner
        node, the results ``skeleton_rows`` of its two children, one below the other.
        """
        left, right = self.children[number]
        if left < 0:
            return V[self.starts[number] : self.stops[number]]
        return np.concatenate([skeleton_rows[left], skeleton_rows[right]])

    def check_columns(self, V: Any) -> np.ndarray:
        """Return V as float64 [n] or [n, k]. Raise a ValueError if it does not have as many rows as this tree, or has more than
        two dimensions.
        """
        V = np.asarray(V, np.float64)
        if V.ndim not in (1, 2) or len(V) != len(self.order):
            raise ValueError(f"an array of {len(self.order)} rows is needed, not one of shape {V.shape}")
        return V

    def apply_in_order(self, compute: Callable[[np.ndarray], np.ndarray], V: Any, ordered: bool) -> np.ndarray:
        """Apply ``compute``, a function of arrays [n, k] whose rows are in the tree's order, to V [n] or [n, k], and return the
        result in V's order. If ``ordered``, V is in the tree's order already.
        """
        V = self.check_columns(V)
        columns = V.reshape(len(V), -1)
        if ordered:
            return compute(columns).reshape(V.shape)
        out = np.empty_like(columns)
        out[self.order] = compute(columns[self.order])
        return out.reshape(V.shape)

    def list_outside_ranges(self) -> list[np.ndarray]:
        """Return for each node of this tree the ranges of positions that all rows outside the node have, int64 [level, 2]: one
        range for its sibling, one for its parent's sibling, and so on up to the root.
        """
        ranges = [np.empty((0, 2), np.int64)] * len(self.starts)
        for number in range(len(self.starts) - 1, -1, -1):
            left, right = self.children[number]
            if left >= 0:
                for child, sibling in ((left, right), (right, left)):
                    ranges[child] = np.vstack([[self.starts[sibling], self.stops[sibling]], ranges[number]])
        return ranges
