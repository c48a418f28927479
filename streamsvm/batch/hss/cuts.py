"""Binary trees of cuts along random axes: fast to grow, and new rows find their leaves.

The axis of a node is a random direction in which its rows vary much: a random combination of some of its rows, then steps of the
power method. The cut is at the median or, where rows are equal along the axis, at the nearest place between rows that differ.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

_SAMPLE_ROWS = 256  # of a node, by which its axis is chosen
_POWER_STEPS = 1  # after the random combination, which is half of one
_MIN_PART = 8  # a cut leaves at least one of so many parts of the rows on either side, if rows differ there


class Cuts(NamedTuple):
    """A binary tree over n rows. Nodes are numbered from the root, 0, down: a left child comes right after its parent.

    A leaf has no axis; ``right`` is -1 for it, and ``cut`` is its number among the leaves, from left to right.
    """

    order: np.ndarray
    """int64 [n]: the rows in the order of the leaves."""
    begin: np.ndarray
    """int64 [nodes]: the place in ``order`` of each node's first row."""
    end: np.ndarray
    """int64 [nodes]: one after that of its last."""
    right: np.ndarray
    """int64 [nodes]: the number of the right child."""
    cut: np.ndarray
    """int64 [nodes]: the number of a node's axis and threshold; of a leaf, its number."""
    axes: np.ndarray
    """float64 [cuts, d]."""
    thresholds: np.ndarray
    """float64 [cuts]: rows whose product with the axis is at most this go left."""

    @property
    def leaves(self) -> np.ndarray:
        """Numbers of the leaves, from left to right."""
        return np.flatnonzero(self.right < 0)


def grow(X: np.ndarray, leaf_size: int, seed: int) -> Cuts:
    """Grow a tree over the rows of X float64 [n, d], n at least 1, with leaves of at most ``leaf_size`` rows. O(n d log n)."""
    n, d = X.shape
    largest = 2 * _MIN_PART * -(-n // leaf_size) + 1  # nodes
    order = np.random.default_rng(seed).permutation(n)
    begin, end, right, cut = (np.empty(largest, np.int64) for _ in range(4))
    axes, thresholds = np.empty((largest // 2 + 1, d)), np.empty(largest // 2 + 1)
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64) | np.uint64(1)
    nodes, cuts = _grow(X, leaf_size, state, order, begin, end, right, cut, axes, thresholds)
    begin, end, right, cut = (array[:nodes].copy() for array in (begin, end, right, cut))
    return Cuts(order, begin, end, right, cut, axes[:cuts].copy(), thresholds[:cuts].copy())


@compiled(nogil=True)
def _grow(
    X: np.ndarray,
    leaf_size: int,
    state: np.ndarray,
    order: np.ndarray,
    begin: np.ndarray,
    end: np.ndarray,
    right: np.ndarray,
    cut: np.ndarray,
    axes: np.ndarray,
    thresholds: np.ndarray,
) -> tuple[int, int]:
    """Fill the arrays of a tree; return the numbers of nodes and cuts."""
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
            _choose_axis(X, order, first, last, state, axes[cuts])
            for i in range(first, last):
                values[i] = product(X[order[i]], axes[cuts])
            middle, thresholds[cuts] = _part(values, order, first, last)
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
def _random(state: np.ndarray) -> np.uint64:
    """Return 64 random bits, by Marsaglia's xorshift."""
    z = state[0]
    z ^= z << np.uint64(13)
    z ^= z >> np.uint64(7)
    z ^= z << np.uint64(17)
    state[0] = z
    return z


@compiled(nogil=True)
def _choose_axis(X: np.ndarray, order: np.ndarray, first: int, last: int, state: np.ndarray, axis: np.ndarray) -> None:
    """Set the axis of the rows ``order[first:last]``, a unit vector, or 0 where all that were looked at are equal."""
    n, d = last - first, X.shape[1]
    m = min(n, _SAMPLE_ROWS)
    sample, mean = np.empty((m, d)), np.zeros(d)
    for i in range(m):
        row = order[first + (i if n <= _SAMPLE_ROWS else np.int64(_random(state) % np.uint64(n)))]
        for j in range(d):
            sample[i, j] = X[row, j]
            mean[j] += X[row, j] / m
    for j in range(d):
        axis[j] = 0.0
    for i in range(m):
        sign = 1.0 if _random(state) >> np.uint64(63) else -1.0
        for j in range(d):
            sample[i, j] -= mean[j]
            axis[j] += sign * sample[i, j]
    _normalise(axis)
    for _ in range(_POWER_STEPS):
        for j in range(d):
            mean[j] = 0.0  # from here on, the next axis
        for i in range(m):
            length = product(sample[i], axis)
            for j in range(d):
                mean[j] += length * sample[i, j]
        for j in range(d):
            axis[j] = mean[j]
        _normalise(axis)


@compiled(nogil=True)
def _normalise(axis: np.ndarray) -> None:
    """Divide an axis by its length, or leave it where that is 0."""
    largest, total = 0.0, 0.0
    for value in axis:
        largest = max(largest, abs(value))
    if largest > 0.0:
        for value in axis:
            total += (value / largest) ** 2  # which neither overflows nor vanishes
        for j in range(len(axis)):
            axis[j] = axis[j] / largest / np.sqrt(total)


@compiled(nogil=True, fastmath=FAST)
def product(x: np.ndarray, axis: np.ndarray) -> float:
    """Return the product of a row with an axis: rows of the fit find their leaves because this is one function."""
    total = 0.0
    for j in range(len(x)):
        total += x[j] * axis[j]
    return total


@compiled(nogil=True)
def _part(values: np.ndarray, order: np.ndarray, first: int, last: int) -> tuple[int, float]:
    """Order rows by their values so that small ones come before the cut; return its place and the threshold."""
    middle = (first + last) // 2
    select(values, order, first, last, middle)
    low, high = _largest(values, first, middle), values[middle]
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
            select(values, order, first, last, middle)
            low, high = _largest(values, first, middle), values[middle]
    threshold = 0.5 * (low + high)
    return middle, threshold if low <= threshold < high else low


@compiled(nogil=True)
def _largest(values: np.ndarray, first: int, last: int) -> float:
    largest = values[first]
    for i in range(first, last):
        largest = max(largest, values[i])
    return float(largest)


@compiled(nogil=True)
def select(values: np.ndarray, order: np.ndarray, first: int, last: int, middle: int) -> None:
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
    """Return the number of the leaf to which the row x [d] goes from a node on; the arrays are those of `Cuts`."""
    while right[node] >= 0:
        number = cut[node]
        node = node + 1 if product(x, axes[number]) <= thresholds[number] else right[node]
    return int(cut[node])
