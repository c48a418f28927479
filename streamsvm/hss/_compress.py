"""Compression of a kernel matrix, node by node, so that what comes out is positive semi-definite.

A node's rows I are interpolated from some of them, its skeleton J: towards all rows outside the node, K(I, .) is about P K(J, .).
P is found as the kernel itself interpolates, K_IJ K_JJ^-1, whatever made J a good choice. What is left of the node's own block,
K_II - P K_JJ P', is then a Schur complement, and the approximation a sum of those, taken up through P: none has a negative
eigenvalue. Fitting P to the columns outside by least squares, as an interpolative decomposition does, is somewhat more exact for
the same skeleton, and indefinite.

Skeletons are chosen as in the HSS-ANN construction: by rows of K between the node and a sample of the columns outside, most of
them neighbours of its rows.

Chávez, G., Liu, Y., Ghysels, P., Li, X. S., Rebrova, E. (2020). Scalable and memory-efficient kernel ridge regression. IPDPS.
Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18:
the same sum of Schur complements, from landmarks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from streamsvm.hss._blocks import Blocks
from streamsvm.hss.tree import ClusterTree

__all__ = ["Node", "Precision", "compress"]

_APART = 1e-10  # of the largest diagonal value: what a row of a skeleton must have that the others do not
_RANDOM_SHARE = 0.25  # of the columns outside a node


class Node(NamedTuple):
    """Rows are by their places in the tree's order."""

    skeleton: np.ndarray
    """int64 [r]: rows that stand for all of the node's towards the others."""
    interpolation: np.ndarray
    """float64 [m, r]: from the skeleton to the node's m rows, of an inner node its children's skeletons."""
    block: np.ndarray
    """float64: of a leaf its kernel matrix [m, m], of an inner node that between its children's skeletons."""


class Precision(NamedTuple):
    """How exact a compression is."""

    threshold: float
    """What a row's kernel values towards all rows outside its node may be wrong by, in the Euclidean norm."""
    max_rank: int
    columns: int
    """Columns outside a node that are looked at, at most, and a quarter more at random."""
    rounds: int
    """How often the skeleton is grown by rows whose error is above the threshold."""


def compress(
    tree: ClusterTree,
    order: Iterable[int],
    blocks: Blocks,
    outside: Blocks,
    near: np.ndarray,
    precision: Precision,
    rng: np.random.Generator,
) -> list[Node]:
    """The nodes, in the tree's ``order``. ``outside``: the same blocks, perhaps less exact, by which skeletons are chosen;
    ``near`` int32 [n, k]: neighbours of each row. O(n (m + r) (m + columns + d)).
    """
    nodes: list[Node] = []
    for number in order:
        (left, right), begin, end = tree.children[number], int(tree.begin[number]), int(tree.end[number])
        if left < 0:
            rows, block = np.arange(begin, end), blocks(slice(begin, end), slice(begin, end))
        else:
            a, b = nodes[left].skeleton, nodes[right].skeleton
            rows, block = np.concatenate([a, b]), blocks(a, b)
        F = _outside(outside, near, rows, begin, end, precision.columns, rng)
        chosen, interpolation = _skeleton(blocks, rows, F, precision)
        nodes.append(Node(rows[chosen], interpolation, block))
    return nodes


def _outside(
    blocks: Blocks, near: np.ndarray, rows: np.ndarray, begin: int, end: int, limit: int, rng: np.random.Generator
) -> np.ndarray:
    # Kernel values between a node's rows and some of those outside: the ones that most of its rows have as neighbours, and others
    # at random, which stand for all that are no neighbours: their values are scaled up.
    outside = len(near) - (end - begin)
    others = near[rows].ravel()
    others, counts = np.unique(others[(others < begin) | (others >= end)], return_counts=True)
    if len(others) > limit:
        others = others[np.argpartition(-counts, limit)[:limit]]
    size = min(outside, int(_RANDOM_SHARE * limit))
    random = rng.integers(0, max(outside, 1), size)
    random[random >= begin] += end - begin
    F = blocks(rows, np.concatenate([others, random]))
    F[:, len(others) :] *= F.dtype.type(np.sqrt(max(outside - len(others), 1) / max(size, 1)))
    return F


def _skeleton(blocks: Blocks, rows: np.ndarray, F: np.ndarray, precision: Precision) -> tuple[np.ndarray, np.ndarray]:
    # Which of the rows the others are interpolated from, and how; F [m, columns] is to be interpolated.
    chosen, interpolation, left = np.arange(0), np.empty((len(rows), 0)), F
    for done in range(precision.rounds if F.size else 0):
        gram = left @ left.T
        if gram.diagonal().max() <= precision.threshold**2:  # which LAPACK does not ask before the first pivot
            break
        pivoted = lapack.spstrf if gram.dtype == np.float32 else lapack.dpstrf
        _, pivots, rank, _ = pivoted(gram.T, tol=precision.threshold**2, lower=1, overwrite_a=1)
        new = pivots[: min(rank, precision.max_rank - len(chosen))] - 1
        if not len(new):
            break
        chosen, interpolation = _interpolation(blocks, rows, np.unique(np.concatenate([chosen, new])))
        if done + 1 < precision.rounds:
            left = F - interpolation @ F[chosen]
            left[chosen] = 0.0
    return chosen, interpolation


def _interpolation(blocks: Blocks, rows: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # K_IJ K_JJ^-1, for those of the chosen rows that are not, but for rounding, interpolated from the others.
    K = blocks(rows[chosen], rows)
    own = K[:, chosen]
    factor, pivots, rank, _ = lapack.dpstrf(own, tol=_APART * own.diagonal().max(), lower=1)
    kept = pivots[:rank] - 1
    return chosen[kept], lapack.dpotrs(np.ascontiguousarray(factor[:rank, :rank]), K[kept], lower=1)[0].T
