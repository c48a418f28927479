"""Compression of a kernel matrix to a given precision, node by node, such that it stays positive semi-definite.

The rows I of a node are interpolated from some of them, its skeleton J: for columns outside the node, K(I, .) is approximated by
P K(J, .). For any choice of J, P is the kernel's interpolation K_IJ K_JJ^-1. The remainder of the node's block, K_II - P K_JJ P',
is then a Schur complement, and the compressed matrix is a sum of such complements, mapped by P from level to level: no eigenvalue
is negative. An interpolative decomposition, which fits P to the columns outside by least squares, is somewhat more accurate for
the same skeleton, but indefinite.

Skeletons are chosen with the values of K between the node and a sample of columns outside it: neighbours of its rows, as in the
HSS-ANN construction, and equally many random columns from the sibling of each of its ancestors. So the sample contains rows at
medium distances, which contribute most to the norm.

Chávez, G., Liu, Y., Ghysels, P., Li, X. S., Rebrova, E. (2020). Scalable and memory-efficient kernel ridge regression. IPDPS.
Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18:
the same sum of Schur complements, from landmarks.
"""

from __future__ import annotations

from collections.abc import Iterable
from copy import copy
from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from streamsvm.batch.hss.trees import ClusterTree
from streamsvm.batch.kernel_sums import KernelSums
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import RBF, Kernel, compute_exponentials, convert_to_kernel_values
from streamsvm.core.threads import raise_if_stopped

#: Maximum number of kernel values or distances in memory at a time.
CHUNK_VALUES = 4_000_000
_EPS = float(np.finfo(np.float64).eps)
_MAX_ROUNDING_ERROR = 1e-6  # of a kernel value; otherwise, distances are computed from differences instead of products


class KernelBlocks:
    """Computes blocks of the kernel matrix of rows X [n, d], in float64 or, after `to_float32`, in float32."""

    def __init__(self, X: np.ndarray, kernel: Kernel) -> None:
        self._centre = X.mean(axis=0) if kernel.kind == RBF else np.zeros(X.shape[1])  # distances do not depend on it
        self.X = X - self._centre
        self.kernel = kernel

    def to_float32(self) -> KernelBlocks:
        """Return an object for the same kernel matrix that computes kernel values in float32, in half the time."""
        single = copy(self)
        single.X = self.X.astype(np.float32)
        return single

    def __call__(self, rows: np.ndarray | slice, columns: np.ndarray | slice) -> np.ndarray:
        """Return the block of the kernel matrix with these rows and columns, [rows, columns]."""
        A, B = self.X[rows], self.X[columns]
        out = np.empty((len(A), len(B)), A.dtype)
        if len(A):
            fill_block(A, B, self.kernel, out)
        return out

    def estimate_rounding(self, rows: np.ndarray) -> float:
        """Return an estimate of the rounding error of the kernel values between the given ``rows`` (indices), relative to the
        largest kernel value.
        """
        if self.kernel.kind != RBF:
            return 8.0 * _EPS
        A = self.X[rows]
        A = A - A.mean(axis=0)
        return 8.0 * _EPS * self.kernel.gamma * float(np.einsum("ij,ij->i", A, A).max())

    def multiply_new_rows(self, Z: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the product of the kernel values between new rows Z float64 [m, d] and the n rows of this matrix, and
        ``coefficients`` float64 [n] or [n, k]; the result is [m] or [m, k].
        """
        return self._compute_expansion(Z - self._centre, coefficients)

    def multiply_rows(self, rows: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the product of the given ``rows`` (indices) of the kernel matrix and ``coefficients`` float64 [n] or [n, k]."""
        return self._compute_expansion(self.X[rows], coefficients)

    def _compute_expansion(self, Z: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Return the product of the kernel values between rows Z [m, d], relative to the centre, and the n rows of this matrix,
        and ``coefficients`` [n] or [n, k]. Coefficients of 0 cost no time.
        """
        columns = coefficients.reshape(len(coefficients), -1)
        support = np.flatnonzero(columns.any(axis=1))
        if not len(support):
            return np.zeros((len(Z), *coefficients.shape[1:]))
        sums = KernelSums(self.X[support], np.ascontiguousarray(columns[support].T), self.kernel)
        size = sums.choose_chunk_rows(Z)
        parts = [sums.compute(Z[start : start + size]) for start in range(0, max(len(Z), 1), size)]
        return np.concatenate(parts).reshape(len(Z), *coefficients.shape[1:])


@compiled(nogil=True)
def _fill_from_differences(A: np.ndarray, B: np.ndarray, kernel: Kernel, out: np.ndarray) -> None:
    """Write the Gaussian kernel values between rows A [a, d] and B [b, d] into ``out`` [a, b]. They are computed from differences
    of features, which is slower than from inner products but loses no digits.
    """
    distances = np.empty(len(B), A.dtype)
    for i in range(len(A)):
        for j in range(len(B)):
            total = 0.0
            for k in range(A.shape[1]):
                total += (A[i, k] - B[j, k]) ** 2
            distances[j] = total
        compute_exponentials(distances, kernel.gamma, len(B), out[i])


@compiled(nogil=True)
def compute_block(A: np.ndarray, B: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Return the kernel values between rows A [a, d] and B [b, d], as a new array [a, b] of the type of A."""
    out = np.empty((len(A), len(B)), A.dtype)
    fill_block(A, B, kernel, out)
    return out


@compiled(nogil=True)
def fill_block(A: np.ndarray, B: np.ndarray, kernel: Kernel, out: np.ndarray) -> None:
    """Write the kernel values between rows A [a, d] and B [b, d] into ``out`` [a, b]. A has at least one row, and all three
    arrays have the same type.

    Gaussian kernel values are computed relative to the centre of A, because values at rows far from it are 0 anyway. If a row of
    A itself is far from it, |a|^2 - 2 a.b + |b|^2 would cancel for rows near that row: then differences are squared instead. A
    and B do not change.
    """
    if kernel.kind != RBF:
        unused = np.empty(0)
        np.dot(A, B.T, out)
        convert_to_kernel_values(out, unused, unused, kernel)
        return
    d = A.shape[1]
    centre, a_squares, b_squares, largest = np.zeros(d), np.zeros(len(A)), np.zeros(len(B)), 0.0
    A, B = A.copy(), B.copy()
    for i in range(len(A)):
        for j in range(d):
            centre[j] += A[i, j] / len(A)
    for i in range(len(A)):
        for j in range(d):
            A[i, j] -= centre[j]
            a_squares[i] += A[i, j] * A[i, j]
        largest = max(largest, a_squares[i])
    for i in range(len(B)):
        for j in range(d):
            B[i, j] -= centre[j]
            b_squares[i] += B[i, j] * B[i, j]
    if 8.0 * _EPS * kernel.gamma * largest > _MAX_ROUNDING_ERROR:
        _fill_from_differences(A, B, kernel, out)
        return
    np.dot(A, B.T, out)
    convert_to_kernel_values(out, a_squares, b_squares, kernel)


_MIN_PIVOT = 1e-10  # of the Cholesky factor of K_JJ, relative to the largest diagonal value
_MAX_WEIGHT = 8.0  # of an interpolation, because larger weights lose digits in the factorisation
_MAX_EXCHANGES = 30  # of rows of a skeleton, to make the weights smaller
_THRESHOLD_POWER, _COLUMNS_POWER = -0.2, 0.14  # how the two depend on the size of a node


class Node(NamedTuple):
    """A node of the compressed matrix, with m rows. Rows are numbered by their positions in the tree's order."""

    skeleton: np.ndarray  # int64 [r]: the rows from which the others are interpolated
    places: np.ndarray
    """int64 [r]: the positions of the skeleton among the node's rows, which for an inner node are its children's skeletons."""
    interpolation: np.ndarray
    """float64 [m, r]: interpolates the node's rows from the skeleton; the identity at the skeleton itself."""
    block: np.ndarray  # float64: the kernel matrix [m, m] of a leaf, or that between the skeletons of a node's children


class NodePrecision(NamedTuple):
    """The precision of a compression, for nodes of the size of a leaf."""

    threshold: float  # largest error of a row's kernel values with all rows outside the node, in the Euclidean norm
    max_rank: int
    columns: int  # maximum number of neighbours used to choose a skeleton, and number of random columns
    rounds: int  # how often a skeleton may grow by rows with large interpolation errors, at least 1

    def scale_to_node(self, size: float) -> NodePrecision:
        """Return the precision with which to compress a node of the tree that has ``size`` times as many rows as a leaf. The
        larger the node, the smaller is the error threshold, and the more columns of the kernel matrix are sampled.

        Larger nodes are more exact: they are few and cheap, and the errors of all levels add up.
        """
        return self._replace(threshold=self.threshold * size**_THRESHOLD_POWER, columns=int(self.columns * size**_COLUMNS_POWER))


def compress_nodes(
    tree: ClusterTree,
    order: Iterable[int],
    blocks: KernelBlocks,
    selection_blocks: KernelBlocks,
    neighbors: np.ndarray,
    precision: NodePrecision,
    rng: np.random.Generator,
) -> list[Node]:
    """Compress the kernel matrix of ``blocks``: for each node of ``tree``, choose a few rows (its skeleton), and compute a matrix
    that interpolates the kernel values of the node's other rows from theirs. ``neighbors`` int32 [n, k] are near neighbours of
    each row, and ``precision`` the tolerances. Return the compressed nodes in ``order``.

    O(n (m + r) (m + columns + d)). Skeletons are chosen with ``selection_blocks``, which are ``blocks`` or less exact, and
    ``neighbors`` int32 [n, k] of each row.
    """
    nodes: list[Node] = []
    sizes, outside = tree.stops - tree.starts, tree.list_outside_ranges()
    leaf_size = sizes[tree.leaves].mean()
    for number in order:
        raise_if_stopped()
        (left, right), start, stop = tree.children[number], int(tree.starts[number]), int(tree.stops[number])
        if left < 0:
            rows, block = np.arange(start, stop), blocks(slice(start, stop), slice(start, stop))
        else:
            a, b = nodes[left].skeleton, nodes[right].skeleton
            rows, block = np.concatenate([a, b]), blocks(a, b)
        node_precision = precision.scale_to_node(sizes[number] / leaf_size)
        columns, weights = _sample_outside_columns(neighbors[rows], start, stop, outside[number], node_precision.columns, rng)
        F = selection_blocks(rows, columns)
        F *= weights.astype(F.dtype)
        places, interpolation = _choose_skeleton(blocks, rows, F, node_precision)
        nodes.append(Node(rows[places], places, interpolation, block))
    return nodes


def _sample_outside_columns(
    neighbors: np.ndarray, start: int, stop: int, outside: np.ndarray, limit: int, rng: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Sample about ``limit`` columns of the kernel matrix that do not belong to a node's rows ``start`` to ``stop``: near
    neighbours of its rows (``neighbors``), and random ones from each range in ``outside`` [ranges, 2]. Return the column numbers
    and their weights.

    A random column represents all columns of its part of the range.
    """
    columns = neighbors.ravel()
    columns, counts = np.unique(columns[(columns < start) | (columns >= stop)], return_counts=True)
    if len(columns) > limit:
        columns = columns[np.argpartition(-counts, limit)[:limit]]
    sizes = outside[:, 1] - outside[:, 0]
    counts = np.minimum(-(-limit // max(len(outside), 1)), sizes)
    first, last, stride = (np.repeat(values, counts) for values in (outside[:, 0], outside[:, 1] - 1, sizes / counts))
    strata = np.arange(len(first)) - np.repeat(np.cumsum(counts) - counts, counts) + rng.random(len(first))
    random = np.minimum(first + (strata * stride).astype(np.int64), last)  # one column from each stratum
    return np.concatenate([columns, random]), np.concatenate([np.ones(len(columns)), np.sqrt(stride)])


def _choose_skeleton(
    blocks: KernelBlocks, rows: np.ndarray, F: np.ndarray, precision: NodePrecision
) -> tuple[np.ndarray, np.ndarray]:
    """Choose a few of the ``rows`` of a tree's node (its skeleton), from which the kernel values of the other rows are
    interpolated. ``F`` [m, columns] are kernel values of the m rows with a sample of rows outside the node. Return the positions
    of the skeleton in ``rows``, and the interpolation matrix [m, r].
    """
    places, interpolation, tolerance = np.arange(0), np.empty((len(rows), 0)), precision.threshold**2
    for number in range(precision.rounds if F.size else 0):
        if number:
            F = F - interpolation @ F[places]
            F[places] = 0.0
        gram = F @ F.T
        if gram.diagonal().max() <= tolerance:  # LAPACK does not check the first pivot
            break
        pivoted = lapack.spstrf if gram.dtype == np.float32 else lapack.dpstrf
        _, pivots, rank, _ = pivoted(gram.T, tol=tolerance, lower=1, overwrite_a=1)
        new = pivots[: min(rank, precision.max_rank - len(places))] - 1
        if not len(new):
            break
        places, interpolation = _interpolate_from(blocks, rows, np.unique(np.concatenate([places, new])))
    return places, interpolation


def _interpolate_from(blocks: KernelBlocks, rows: np.ndarray, places: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Compute the matrix that interpolates the kernel values of all ``rows`` from the rows at the positions ``places`` among
    them. Return it, and the positions that it uses: rows that depend linearly on others are left out. ``blocks`` computes kernel
    values.

    If a weight of the interpolation is too large, its row replaces the skeleton row that it weights, which increases the
    determinant of K_JJ.
    """
    min_pivot = max(_MIN_PIVOT, blocks.estimate_rounding(rows))
    for _ in range(_MAX_EXCHANGES):
        K = blocks(rows[places], rows)
        K_JJ = K[:, places]
        factor, pivots, rank, _ = lapack.dpstrf(K_JJ, tol=min_pivot * K_JJ.diagonal().max(), lower=1)
        independent = pivots[:rank] - 1
        places = places[independent]
        interpolation = lapack.dpotrs(np.ascontiguousarray(factor[:rank, :rank]), K[independent], lower=1)[0].T
        interpolation[places] = np.eye(rank)
        row, column = np.unravel_index(np.abs(interpolation).argmax(), interpolation.shape) if rank else (0, 0)
        if not rank or abs(interpolation[row, column]) <= _MAX_WEIGHT:
            break
        previous, places = places, places.copy()
        places[column] = row
    else:
        places = previous
    return places, interpolation
