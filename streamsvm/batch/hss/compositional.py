"""Hierarchically compositional kernels: kernels whose matrix on n rows has HSS form, at new rows as well.

Rows I of a node of the tree reach all rows outside it through the node's skeleton J: k~(x, z) = k(x, J) k(J, J)^-1 k~(J, z). In a
leaf the kernel is exact. The skeleton of a node is a random sample of its rows: those with the smallest of random numbers, so
that the skeleton of a parent is found among those of its children. A small number is added to the diagonal of k(J, J), which
leaves the matrix positive semi-definite: the Schur complements that it is a sum of become larger.

Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss.skeletons import compute_block
from streamsvm.batch.hss.trees import PartitionTree, select_kth
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LARGEST_KERNEL, Kernel

#: Added to the diagonal of a skeleton's matrix, relative to the largest value there.
RIDGE = 1e-5
_SMALLEST = 1.0 / LARGEST_KERNEL  # kernel values up to this count as 0: float32 does not hold them all


class CompositionalMatrix(NamedTuple):
    """The matrix of a compositional kernel on the n rows of a tree, in the order of its leaves.

    Matrices of all nodes are one after the other in flat arrays. A node's matrix in ``blocks`` is the kernel matrix [m, m] of a
    leaf of m rows, or that between the skeletons of its children. The matrix in ``interpolations`` [m, r] leads from the skeleton
    to the node's rows: those of a leaf, or the skeletons of its children. The root has none.
    """

    ranks: np.ndarray  # int64 [nodes]: rows of the skeleton; 0 for the root
    skeleton_starts: np.ndarray  # int64 [nodes]: where the skeleton begins in ``skeletons``
    skeletons: np.ndarray  # int64: rows in the order of the leaves
    block_starts: np.ndarray  # int64 [nodes]
    blocks: np.ndarray  # float32
    interpolation_starts: np.ndarray  # int64 [nodes]
    interpolations: np.ndarray  # float32
    inverses: np.ndarray
    """float64: of the leaves one after the other, the inverse of the skeleton's matrix [r, r]. Of a broad kernel it is so large
    that float32 would change the values of rows in the leaf by more than they are."""
    inverse_starts: np.ndarray  # int64 [nodes]

    @property
    def nbytes(self) -> int:
        return int(sum(array.nbytes for array in self))


def _compute_node_sizes(begin: np.ndarray, end: np.ndarray, right: np.ndarray, rank: int) -> tuple[np.ndarray, ...]:
    """Return for each node its rank, and how many numbers its block, interpolation and inverse have."""
    sizes, leaf, number = end - begin, right < 0, np.arange(len(begin))
    ranks = np.minimum(sizes, rank)
    ranks[0] = 0
    left, second = ranks[np.where(leaf, 0, np.minimum(number + 1, number[-1]))], ranks[np.where(leaf, 0, right)]
    blocks = np.where(leaf, sizes * sizes, left * second)
    interpolations = np.where(leaf, sizes, left + second) * ranks
    return ranks, blocks, interpolations, np.where(leaf, ranks * ranks, 0)


def compose_matrix(X: np.ndarray, cuts: PartitionTree, kernel: Kernel, rank: int, seed: int) -> CompositionalMatrix:
    """Return the matrix of the rows X float64 [n, d], in the order of the leaves. O(n (m + r) (r + d)) for leaves of m rows."""
    ranks, blocks, interpolations, inverses = _compute_node_sizes(cuts.begin, cuts.end, cuts.right, rank)
    keys = np.random.default_rng(seed).permutation(len(X)).astype(np.float64)
    sizes = ranks, blocks, interpolations, inverses
    kinds = np.int64, np.float32, np.float32, np.float64
    at, flat = [np.cumsum(n) - n for n in sizes], [np.empty(int(n.sum()), kind) for n, kind in zip(sizes, kinds, strict=True)]
    matrix = CompositionalMatrix(ranks, at[0], flat[0], at[1], flat[1], at[2], flat[2], flat[3], at[3])
    _fill_matrix(X, cuts.begin, cuts.end, cuts.right, keys, kernel, matrix)
    return matrix


@compiled(nogil=True)
def _fill_matrix(
    X: np.ndarray, begin: np.ndarray, end: np.ndarray, right: np.ndarray, keys: np.ndarray, kernel: Kernel, M: CompositionalMatrix
) -> None:
    """Fill a matrix, children before their parents. ``keys`` are different numbers, one for each row."""
    for node in range(len(begin) - 1, -1, -1):
        rank, place, leaf = M.ranks[node], M.skeleton_starts[node], right[node] < 0
        if leaf:
            rows = np.arange(begin[node], end[node])
        else:
            a, b = node + 1, right[node]
            first, second = M.ranks[a], M.ranks[b]
            rows = np.empty(first + second, np.int64)
            for i in range(first):
                rows[i] = M.skeletons[M.skeleton_starts[a] + i]
            for i in range(second):
                rows[first + i] = M.skeletons[M.skeleton_starts[b] + i]
        Z = _take_values(X, rows)
        if not leaf:
            _store_matrix(compute_block(Z[:first], Z[first:], kernel), M.blocks, M.block_starts[node])
        if not leaf and rank == 0:
            continue
        values = compute_block(Z, Z, kernel)
        if leaf:
            _store_matrix(values, M.blocks, M.block_starts[node])
            if rank == 0:
                continue
        some_keys, chosen = _take_values(keys, rows), np.arange(len(rows))
        if rank < len(rows):
            select_kth(some_keys, chosen, 0, len(rows), rank)
        chosen = chosen[:rank]
        for i in range(rank):
            M.skeletons[place + i] = rows[chosen[i]]
        columns = _take_values(values, chosen).T.copy()  # as values are symmetric
        matrix = _take_values(columns, chosen)
        largest = 0.0
        for i in range(rank):
            largest = max(largest, matrix[i, i])
        for i in range(rank):
            matrix[i, i] += RIDGE * largest if largest > _SMALLEST else 1.0
        inverse = np.linalg.inv(matrix)
        _store_matrix(np.dot(columns, inverse), M.interpolations, M.interpolation_starts[node])
        if leaf:
            _store_matrix(inverse, M.inverses, M.inverse_starts[node])


@compiled(nogil=True)
def _take_values(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return ``values[which]``, which takes long to compile in that form."""
    out = np.empty((len(which), *values.shape[1:]), values.dtype)
    for i in range(len(which)):
        out[i] = values[which[i]]
    return out


@compiled(nogil=True)
def _store_matrix(values: np.ndarray, into: np.ndarray, place: int) -> None:
    """Store a matrix in a flat array, from ``place`` on."""
    m, k = values.shape
    for i in range(m):
        for j in range(k):
            into[place + i * k + j] = values[i, j]


@compiled(nogil=True, inline=True)
def view_matrix(flat: np.ndarray, place: int, rows: int, columns: int) -> np.ndarray:
    """Return the matrix [rows, columns] that is stored in a flat array from ``place`` on."""
    return flat[place : place + rows * columns].reshape(rows, columns)
