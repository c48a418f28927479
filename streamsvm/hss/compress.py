"""Compression of a kernel matrix, node by node, so that what comes out is positive semi-definite.

A node's rows I are interpolated from some of them, its skeleton J: towards all rows outside the node, K(I, .) is about P K(J, .).
P is found as the kernel itself interpolates, K_IJ K_JJ^-1, whatever made J a good choice. What is left of the node's own block,
K_II - P K_JJ P', is then a Schur complement, and the approximation a sum of those, taken up through P: none has a negative
eigenvalue. Fitting P to the columns outside by least squares, as an interpolative decomposition does, is somewhat more exact for
the same skeleton, and indefinite.

Skeletons are chosen by rows of K between the node and a sample of the columns outside: neighbours of its rows, as in the HSS-ANN
construction, and as many at random from each half of the tree that the node is not in, so that those at a middling distance, of
which most of the norm is made, are among them.

Chávez, G., Liu, Y., Ghysels, P., Li, X. S., Rebrova, E. (2020). Scalable and memory-efficient kernel ridge regression. IPDPS.
Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18:
the same sum of Schur complements, from landmarks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from streamsvm.hss.blocks import Blocks
from streamsvm.hss.tree import ClusterTree

__all__ = ["Node", "Precision", "compress"]

_APART = 1e-10  # of the largest diagonal value: what a row of a skeleton must have that the others do not
_LARGEST_WEIGHT, _EXCHANGES = 8.0, 30  # of an interpolation: larger ones cost digits where it is factorised
_EXACTER, _MORE_COLUMNS = 0.2, 0.14  # powers of a node's size


class Node(NamedTuple):
    """Rows are by their places in the tree's order."""

    skeleton: np.ndarray
    """int64 [r]: rows that stand for all of the node's towards the others."""
    places: np.ndarray
    """int64 [r]: where they are among the node's rows."""
    interpolation: np.ndarray
    """float64 [m, r]: from the skeleton to the node's m rows, of an inner node its children's skeletons. 1 at its places."""
    block: np.ndarray
    """float64: of a leaf its kernel matrix [m, m], of an inner node that between its children's skeletons."""


class Precision(NamedTuple):
    """How exact a compression is."""

    threshold: float
    """What a row's kernel values towards all rows outside its leaf may be wrong by, in the Euclidean norm."""
    max_rank: int
    columns: int
    """Columns outside a leaf that are looked at: that many neighbours, at most, and as many at random."""
    rounds: int
    """How often a skeleton may grow by rows that are not interpolated as well as they could be."""

    def at(self, size: float) -> Precision:
        """That of a node with ``size`` times the rows of a leaf. Large nodes are few: what they cost is little, and errors of all
        levels add up.
        """
        return self._replace(threshold=self.threshold * size**-_EXACTER, columns=int(self.columns * size**_MORE_COLUMNS))


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
    sizes, others = tree.end - tree.begin, tree.others()
    leaf = sizes[tree.leaves].mean()
    for number in order:
        (left, right), begin, end = tree.children[number], int(tree.begin[number]), int(tree.end[number])
        if left < 0:
            rows, block = np.arange(begin, end), blocks(slice(begin, end), slice(begin, end))
        else:
            a, b = nodes[left].skeleton, nodes[right].skeleton
            rows, block = np.concatenate([a, b]), blocks(a, b)
        own = precision.at(sizes[number] / leaf)
        columns, weights = _outside(near[rows], begin, end, others[number], own.columns, rng)
        F = outside(rows, columns)
        F *= weights.astype(F.dtype)
        chosen, interpolation = _skeleton(blocks, rows, F, own)
        nodes.append(Node(rows[chosen], chosen, interpolation, block))
    return nodes


def _outside(
    near: np.ndarray, begin: int, end: int, others: np.ndarray, limit: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    # Columns outside a node, and what their values are scaled by: those that most of its rows have as neighbours, and at random
    # ones of each of the other halves, which stand for all that are there.
    columns = near.ravel()
    columns, counts = np.unique(columns[(columns < begin) | (columns >= end)], return_counts=True)
    if len(columns) > limit:
        columns = columns[np.argpartition(-counts, limit)[:limit]]
    sizes = others[:, 1] - others[:, 0]
    shares = np.minimum(-(-limit // max(len(others), 1)), sizes)
    first, last, each = (np.repeat(of, shares) for of in (others[:, 0], others[:, 1] - 1, sizes / shares))
    places = np.arange(len(first)) - np.repeat(np.cumsum(shares) - shares, shares) + rng.random(len(first))
    random = np.minimum(first + (places * each).astype(np.int64), last)  # one of each part
    weights = np.sqrt(each)
    return np.concatenate([columns, random]), np.concatenate([np.ones(len(columns)), weights])


def _skeleton(blocks: Blocks, rows: np.ndarray, F: np.ndarray, precision: Precision) -> tuple[np.ndarray, np.ndarray]:
    # Which of the rows the others are interpolated from, and how; F [m, columns] is to be interpolated.
    chosen, interpolation, tolerance = np.arange(0), np.empty((len(rows), 0)), precision.threshold**2
    for done in range(precision.rounds if F.size else 0):
        if done:
            F = F - interpolation @ F[chosen]
            F[chosen] = 0.0
        gram = F @ F.T
        if gram.diagonal().max() <= tolerance:  # which LAPACK does not ask before the first pivot
            break
        pivoted = lapack.spstrf if gram.dtype == np.float32 else lapack.dpstrf
        _, pivots, rank, _ = pivoted(gram.T, tol=tolerance, lower=1, overwrite_a=1)
        new = pivots[: min(rank, precision.max_rank - len(chosen))] - 1
        if not len(new):
            break
        chosen, interpolation = _interpolation(blocks, rows, np.unique(np.concatenate([chosen, new])))
    return chosen, interpolation


def _interpolation(blocks: Blocks, rows: np.ndarray, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    # K_IJ K_JJ^-1, for those of the chosen rows that are not, but for rounding, interpolated from the others. A row that would be
    # extrapolated takes the place of the one with the largest weight, which the determinant of K_JJ grows by.
    apart = max(_APART, blocks.rounding(rows))
    for _ in range(_EXCHANGES):
        K = blocks(rows[chosen], rows)
        own = K[:, chosen]
        factor, pivots, rank, _ = lapack.dpstrf(own, tol=apart * own.diagonal().max(), lower=1)
        kept = pivots[:rank] - 1
        chosen = chosen[kept]
        interpolation = lapack.dpotrs(np.ascontiguousarray(factor[:rank, :rank]), K[kept], lower=1)[0].T
        interpolation[chosen] = np.eye(rank)
        row, column = np.unravel_index(np.abs(interpolation).argmax(), interpolation.shape) if rank else (0, 0)
        if not rank or abs(interpolation[row, column]) <= _LARGEST_WEIGHT:
            break
        found, chosen = chosen, chosen.copy()
        chosen[column] = row
    else:
        chosen = found
    return chosen, interpolation
