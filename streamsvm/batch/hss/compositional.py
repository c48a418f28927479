"""Hierarchically compositional kernels: their matrices on n rows have HSS form, and they are defined for new rows, too.

The rows I of a node of the tree interact with all rows outside it through the node's skeleton J, a few of its rows:
k~(x, z) = k(x, J) k(J, J)^-1 k~(J, z). Within a leaf, the kernel is exact. The skeleton of a node is a random sample of its rows:
those with the smallest random keys, so that the skeleton of a parent is contained in those of its children. A small number is
added to the diagonal of k(J, J). The matrix stays positive semi-definite, because it is a sum of Schur complements, which grow.

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
_NEGLIGIBLE = 1.0 / LARGEST_KERNEL  # smaller kernel values count as 0, because float32 cannot hold all of them


class CompositionalMatrix(NamedTuple):
    """The matrix of a compositional kernel on the n rows of a tree, in the order of its leaves.

    The matrices of all nodes are stored one after the other in flat arrays; the ``..._starts`` are their positions. A node's
    matrix in ``blocks`` is the kernel matrix [m, m] of a leaf with m rows, or that between the skeletons of its two children. Its
    matrix in ``interpolations`` [m, r] interpolates the node's rows from its skeleton; the rows of an inner node are the
    skeletons of its children. The root has no interpolation.
    """

    ranks: np.ndarray  # int64 [nodes]: number of rows of the skeleton; 0 for the root
    skeleton_starts: np.ndarray  # int64 [nodes]
    skeletons: np.ndarray  # int64: positions of rows in the order of the leaves
    block_starts: np.ndarray  # int64 [nodes]
    blocks: np.ndarray  # float32
    interpolation_starts: np.ndarray  # int64 [nodes]
    interpolations: np.ndarray  # float32
    inverses: np.ndarray
    """float64: for each leaf, the inverse of the skeleton's kernel matrix [r, r]. For broad kernels, its values are so large that
    float32 would change decision values in the leaf by more than their size."""
    inverse_starts: np.ndarray  # int64 [nodes]

    @property
    def nbytes(self) -> int:
        """Bytes of all arrays of this compressed kernel matrix."""
        return int(sum(array.nbytes for array in self))


def _compute_node_sizes(starts: np.ndarray, stops: np.ndarray, right: np.ndarray, rank: int) -> tuple[np.ndarray, ...]:
    """Return four int64 arrays [nodes] with sizes for each node of a tree: its rank (number of skeleton rows, from which its
    other rows are interpolated), and the numbers of values of its kernel block, its interpolation matrix and its inverse.
    """
    sizes, is_leaf, number = stops - starts, right < 0, np.arange(len(starts))
    ranks = np.minimum(sizes, rank)
    ranks[0] = 0
    left, second = ranks[np.where(is_leaf, 0, np.minimum(number + 1, number[-1]))], ranks[np.where(is_leaf, 0, right)]
    blocks = np.where(is_leaf, sizes * sizes, left * second)
    interpolations = np.where(is_leaf, sizes, left + second) * ranks
    return ranks, blocks, interpolations, np.where(is_leaf, ranks * ranks, 0)


def compose_matrix(X: np.ndarray, tree: PartitionTree, kernel: Kernel, rank: int, seed: int) -> CompositionalMatrix:
    """Compute an approximate kernel matrix of the rows X float64 [n, d], which are in the order of the leaves of ``tree``, and
    return it. Kernel values between different nodes of the tree are interpolated from at most ``rank`` rows of each node, drawn
    at random with ``seed``.

    O(n (m + r) (r + d)) for leaves of m rows and rank r. The result is a compositional kernel.
    """
    nodes = tree.starts, tree.stops, tree.right
    sizes = _compute_node_sizes(*nodes, rank)
    keys = np.random.default_rng(seed).permutation(len(X)).astype(np.float64)
    dtypes = np.int64, np.float32, np.float32, np.float64
    starts = [np.cumsum(n) - n for n in sizes]
    flat = [np.empty(int(n.sum()), dtype) for n, dtype in zip(sizes, dtypes, strict=True)]
    matrix = CompositionalMatrix(
        sizes[0], starts[0], flat[0], starts[1], flat[1], starts[2], flat[2], flat[3], starts[3]
    )  # fmt: skip
    _fill_matrix(X, *nodes, keys, kernel, matrix)
    return matrix


@compiled(nogil=True)
def _fill_matrix(
    X: np.ndarray,
    starts: np.ndarray,
    stops: np.ndarray,
    right: np.ndarray,
    keys: np.ndarray,
    kernel: Kernel,
    M: CompositionalMatrix,
) -> None:
    """Compute the kernel values of all leaves of a tree, and the matrices that interpolate all other kernel values, and write
    them into the arrays of the approximate kernel matrix ``M``. ``starts``, ``stops`` and ``right`` describe the tree's nodes;
    random ``keys`` [n] decide which rows of X are interpolated from.
    """
    for node in range(len(starts) - 1, -1, -1):
        rank, skeleton_start, is_leaf = M.ranks[node], M.skeleton_starts[node], right[node] < 0
        if is_leaf:
            rows = np.arange(starts[node], stops[node])
        else:
            a, b = node + 1, right[node]
            first, second = M.ranks[a], M.ranks[b]
            rows = np.empty(first + second, np.int64)
            for i in range(first):
                rows[i] = M.skeletons[M.skeleton_starts[a] + i]
            for i in range(second):
                rows[first + i] = M.skeletons[M.skeleton_starts[b] + i]
        Z = _take_values(X, rows)
        if not is_leaf:
            _store_matrix(compute_block(Z[:first], Z[first:], kernel), M.blocks, M.block_starts[node])
        if not is_leaf and rank == 0:
            continue
        values = compute_block(Z, Z, kernel)
        if is_leaf:
            _store_matrix(values, M.blocks, M.block_starts[node])
            if rank == 0:
                continue
        row_keys, chosen = _take_values(keys, rows), np.arange(len(rows))
        if rank < len(rows):
            select_kth(row_keys, chosen, 0, len(rows), rank)
        chosen = chosen[:rank]
        for i in range(rank):
            M.skeletons[skeleton_start + i] = rows[chosen[i]]
        columns = _take_values(values, chosen).T.copy()  # these rows are columns, too, because the matrix is symmetric
        matrix = _take_values(columns, chosen)
        largest = 0.0
        for i in range(rank):
            largest = max(largest, matrix[i, i])
        for i in range(rank):
            matrix[i, i] += RIDGE * largest if largest > _NEGLIGIBLE else 1.0
        inverse = np.linalg.inv(matrix)
        _store_matrix(np.dot(columns, inverse), M.interpolations, M.interpolation_starts[node])
        if is_leaf:
            _store_matrix(inverse, M.inverses, M.inverse_starts[node])


@compiled(nogil=True)
def _take_values(values: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Return ``values[which]``, the elements at the positions ``which``, as a new array. Compiled code calls this, because Numba
    compiles the loop faster than the indexing.
    """
    out = np.empty((len(which), *values.shape[1:]), values.dtype)
    for i in range(len(which)):
        out[i] = values[which[i]]
    return out


@compiled(nogil=True)
def _store_matrix(values: np.ndarray, flat: np.ndarray, start: int) -> None:
    """Copy the matrix ``values``, row by row, into the one-dimensional array ``flat``, from position ``start`` on."""
    m, k = values.shape
    for i in range(m):
        for j in range(k):
            flat[start + i * k + j] = values[i, j]


@compiled(nogil=True, inline=True)
def view_matrix(flat: np.ndarray, start: int, rows: int, columns: int) -> np.ndarray:
    """Return the matrix [rows, columns] that is stored row by row in the one-dimensional array ``flat`` from position ``start``
    on, as a view.
    """
    return flat[start : start + rows * columns].reshape(rows, columns)
