"""Predictions by a forest: each tree sends a row to one of its leaves, and adds an expansion over the rows of that leaf."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np

from streamsvm.batch.hss.cuts import Cuts, find_leaf
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LINEAR, RBF, Kernel, exponentials

_LARGEST_SINGLE = 1e30  # gamma or feature for which distances are float32


class Forest(NamedTuple):
    """The trees of a fitted machine, one after the other; nodes are those of `streamsvm.batch.hss.cuts.Cuts`."""

    roots: np.ndarray
    """int64 [trees]."""
    right: np.ndarray
    """int64 [nodes]."""
    cut: np.ndarray
    """int64 [nodes]."""
    axes: np.ndarray
    """float64 [cuts, d]."""
    thresholds: np.ndarray
    """float64 [cuts]."""
    starts: np.ndarray
    """int64 [leaves + 1]: where each leaf's entries begin in the next two."""
    rows: np.ndarray
    """int32 [entries]: rows of the training set, or among the support vectors."""
    weights: np.ndarray
    """float64 [machines, entries]."""


class PackedForest(NamedTuple):
    """A forest as compiled predictions read it."""

    forest: Forest
    centres: np.ndarray
    """float64 [leaves, d]: of the Gaussian kernel, the middle of a leaf's rows; else 0."""
    rows: np.ndarray
    """Of the leaves one after the other, their rows less the centre, feature by feature: float32 for the Gaussian kernel, if the
    weights are not so large that kernel values must be exact."""
    largest: int
    """Rows of the largest leaf."""


def join(trees: Iterable[tuple[Cuts, np.ndarray]], which: np.ndarray) -> Forest:
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
    return Forest(roots, right, cut, axes, thresholds, starts, rows, np.ascontiguousarray(by_row.T))


def check_forest(forest: Any, machines: int, vectors: int, features: int) -> Forest:
    """Return a saved forest; raise a ValueError where a walk through it could lead out of its arrays."""
    try:
        found = Forest(*forest)
    except TypeError:
        raise ValueError(_CORRUPT) from None
    kinds = [np.int64] * 3 + [np.float64] * 2 + [np.int64, np.int32, np.float64]
    dimensions = [1, 1, 1, 2, 1, 1, 1, 2]
    if not all(
        isinstance(array, np.ndarray) and array.dtype == kind and array.ndim == dimension and array.flags.c_contiguous
        for array, kind, dimension in zip(found, kinds, dimensions, strict=True)
    ):
        raise ValueError(_CORRUPT)
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
        raise ValueError(_CORRUPT)
    return found


_CORRUPT = "the saved model is corrupt: its trees and weights do not fit together"


def pack(forest: Forest, X: np.ndarray, kernel: Kernel, *, single: bool = True) -> PackedForest:
    """Return a forest over rows of X float64 [n, d] for predictions; ``single``: Gaussian kernel values may be float32.

    They are where float32 has the distances: not for features or widths that are very large or small.
    """
    entries, d = len(forest.rows), X.shape[1]
    gaussian = kernel.kind == RBF
    single &= 1.0 / _LARGEST_SINGLE <= kernel.gamma <= _LARGEST_SINGLE and np.abs(X).max(initial=0.0) <= _LARGEST_SINGLE
    kind = np.float32 if gaussian and single else np.float64
    centres, rows = np.zeros((len(forest.starts) - 1, d)), np.empty(entries * d, kind)
    _pack(X, forest.starts, forest.rows, gaussian, centres, rows)
    return PackedForest(forest, centres, rows, int(np.diff(forest.starts).max()))


@compiled(nogil=True)
def _pack(
    X: np.ndarray,
    starts: np.ndarray,
    which: np.ndarray,
    centred: bool,
    centres: np.ndarray,
    rows: np.ndarray,
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
def add_values(packed: PackedForest, kernel: Kernel, X: np.ndarray, out: np.ndarray) -> None:
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
            _kernel_values(kernel, x, packed.rows[begin * d : end * d], end - begin, sums, values)
            for k in range(out.shape[1]):
                out[i, k] += _product(forest.weights[k, begin:end], values)


@compiled(nogil=True, fastmath=FAST)
def _product(weights: np.ndarray, values: np.ndarray) -> float:
    total = 0.0
    for i in range(len(weights)):
        total += weights[i] * values[i]
    return total


@compiled(nogil=True, fastmath={"contract"})
def _kernel_values(kernel: Kernel, x: np.ndarray, rows: np.ndarray, m: int, sums: np.ndarray, values: np.ndarray) -> None:
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
        exponentials(sums, -kernel.gamma, m, values)
    elif kernel.kind == LINEAR:
        values[:m] = sums[:m]
    else:
        for i in range(m):
            base, power = kernel.gamma * sums[i] + kernel.coef0, 1.0
            for _ in range(kernel.degree):
                power *= base
            values[i] = power
