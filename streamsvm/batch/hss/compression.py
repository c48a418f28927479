"""Compression of a kernel matrix to a tolerance: attempts of growing precision until the estimated error is small enough.

Rows are interpolated by the kernel itself, so that the compressed matrix is that of a kernel: the hierarchically compositional
one, which goes from a row to all rows outside its leaf through the leaf's skeleton J. At any x in a leaf, a product is k(x, leaf)
times weights: the leaf's coefficients, and at J k(J, J)^-1 times the product with all columns outside, there.

Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.linalg import lapack

from streamsvm.batch.hss.skeletons import CHUNK_VALUES, KernelBlocks, Node, Precision, compress
from streamsvm.batch.hss.tree import ClusterTree
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import Kernel
from streamsvm.core.progress import shown
from streamsvm.core.warning import warn


def product(tree: ClusterTree, nodes: list[Node], V: np.ndarray) -> np.ndarray:
    """K~ V, float64 [n, k], rows in the tree's order. O(n (m + r) k)."""
    out, downward = np.empty_like(V), _from_outside(tree, nodes, V)
    for leaf in tree.leaves:
        node, rows = nodes[leaf], slice(tree.begin[leaf], tree.end[leaf])
        out[rows] = node.block @ V[rows] + node.interpolation @ downward[leaf]
    return out


def leaf_weights(tree: ClusterTree, nodes: list[Node], V: np.ndarray) -> np.ndarray:
    """The weights of rows, float64 [n, k], with which kernel values between any x and its leaf's rows make the product with V.

    Rows are in the tree's order. O(n (m + r) k + n r^2).
    """
    weights, downward = V.copy(), _from_outside(tree, nodes, V)
    for leaf in tree.leaves:
        places, of_leaf = nodes[leaf].places, weights[tree.begin[leaf] : tree.end[leaf]]
        if len(places):
            K_JJ = nodes[leaf].block[np.ix_(places, places)]
            factor, pivots, rank, _ = lapack.dpstrf(K_JJ, tol=0.0, lower=1)  # of full rank, but for rounding
            independent = pivots[:rank] - 1
            shares = lapack.dpotrs(np.ascontiguousarray(factor[:rank, :rank]), downward[leaf][independent], lower=1)[0]
            of_leaf[places[independent]] += shares
    return weights


def _from_outside(tree: ClusterTree, nodes: list[Node], V: np.ndarray) -> list[np.ndarray]:
    """The product of each node's skeleton with all columns outside the node, float64 [r, k]."""
    upward: list[np.ndarray] = []  # P' V of each node: V gathered in the skeleton
    for number, node in enumerate(nodes):
        upward.append(node.interpolation.T @ tree.rows_of(number, V, upward))
    downward = upward.copy()
    downward[-1] = np.zeros_like(upward[-1])  # no column is outside the root
    for number in range(len(nodes) - 1, -1, -1):
        node, (left, right) = nodes[number], tree.children[number]
        if left >= 0:
            from_outside, size = node.interpolation @ downward[number], len(upward[left])
            downward[left] = node.block @ upward[right] + from_outside[:size]
            downward[right] = node.block.T @ upward[left] + from_outside[size:]
    return downward


_ROWS, _VECTORS = 256, 20
_ROUNDING = 1e-10  # relative to the matrix: smaller differences count as zero


class ErrorEstimate:
    """Random rows of the exact matrix, in the tree's order: their norms, and their products with random vectors. O(n d).

    With ``zero_sum`` the vectors' sums are zero, and norms are taken after subtracting each row's mean. ``row_norm`` is the root
    of the mean squared norm of a row. A ValueError says that squares of kernel values overflow.
    """

    def __init__(self, blocks: KernelBlocks, zero_sum: bool, rng: np.random.Generator) -> None:
        n = len(blocks.X)
        self._rows = np.sort(rng.permutation(n)[:_ROWS])
        self._vectors = rng.normal(size=(n, _VECTORS))
        if zero_sum:
            self._vectors -= self._vectors.mean(axis=0)
        products, squares, all_squares = [], 0.0, 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # checked below
            for rows in np.array_split(self._rows, -(-len(self._rows) * n // CHUNK_VALUES)):
                K = blocks(rows, slice(None))
                products.append(K @ self._vectors)
                all_squares += float(np.vdot(K, K))
                if zero_sum:
                    K -= K.mean(axis=1, keepdims=True)
                squares += float(np.vdot(K, K))
        self._products = np.concatenate(products)
        if not (np.isfinite(all_squares) and np.isfinite(self._products).all()):
            raise ValueError("kernel values are too large: scale the features")
        self._min_difference = _ROUNDING * np.sqrt(all_squares * _VECTORS)
        self.row_norm: float = float(
            np.sqrt(max(squares, _ROUNDING**2 * all_squares, np.finfo(np.float64).tiny) / len(self._rows))
        )

    def error(self, tree: ClusterTree, nodes: list[Node]) -> float:
        """|(K - K~) V| / |K V| in the Frobenius norm over these rows and vectors, about |K - K~| / |K|. O(n (m + r)).

        0 if the difference is of the size of rounding errors.
        """
        difference = float(np.linalg.norm(product(tree, nodes, self._vectors)[self._rows] - self._products))
        return difference / float(np.linalg.norm(self._products)) if difference > self._min_difference else 0.0


_MIN_LEAF = 96  # rows of a leaf, at least
_DIRECTIONS = 16  # to which rows are projected before they are cut


def approximate_neighbors(X: np.ndarray, k: int, trees: int = 4, seed: int | None = 0) -> np.ndarray:
    """Find about ``k`` of the nearest rows of each row of X float32 [n, d]: int32 [n, k], fewer if n is small, with repetitions.

    Each tree adds the k / trees nearest rows of the row's leaf, so that rows that one tree cuts apart may be together in
    another. The row itself is among them. O(trees n (d + log n) log n).

    March, W. B., Xiao, B., Biros, G. (2015). ASKIT: approximate skeletonization kernel-independent treecode. SISC 37.
    """
    rng = np.random.default_rng(seed)
    n, each = len(X), max(k // trees, 1)
    leaves = 2 ** max(int(np.log2(n / max(_MIN_LEAF, 3 * each))), 0)
    begin = np.arange(leaves) * n // leaves
    size = -(-n // leaves)  # of the largest leaf; smaller ones borrow a row of the next
    each = min(each, size)
    squares = np.square(X).sum(axis=1)
    found = np.empty((n, trees, each), np.int32)
    chunk = max(CHUNK_VALUES // size**2, 1)
    for t in range(trees):
        members = _order(X, leaves, rng)[np.minimum(begin[:, None] + np.arange(size), n - 1)]
        for leaf in range(0, leaves, chunk):
            rows = members[leaf : leaf + chunk]
            points = X[rows]
            distances = squares[rows][:, None, :] - 2.0 * (points @ points.transpose(0, 2, 1))  # up to a constant of each row
            nearest = np.argpartition(distances, each - 1, axis=2)[:, :, :each]
            found[rows, t] = np.take_along_axis(rows[:, None, :], nearest, axis=2)
    return found.reshape(n, -1)


def _order(X: np.ndarray, leaves: int, rng: np.random.Generator) -> np.ndarray:
    """The rows in the order of a new tree's leaves: leaf i begins at i n / leaves."""
    Z = X @ rng.normal(size=(X.shape[1], min(X.shape[1], _DIRECTIONS))).astype(np.float32)
    order = np.arange(len(X))
    _cut(Z, order, leaves, rng.random((2, leaves)))
    return order


@compiled(nogil=True)
def _cut(Z: np.ndarray, order: np.ndarray, leaves: int, random: np.ndarray) -> None:
    """Sort rows of Z float32 [n, d], and ``order`` with them, into a number of leaves that is a power of 2.

    Each part is cut in the middle along the direction between two of its rows, chosen by ``random`` [2, leaves].
    """
    n = len(Z)
    sorted_Z, sorted_order = np.empty_like(Z), np.empty_like(order)
    uncut = [(1, 0)]  # number of parts of that size, and which one: depth first, so that small parts stay in the cache
    while len(uncut) > 0:
        parts, part = uncut.pop()
        if parts == leaves:
            continue
        begin, end, middle = part * n // parts, (part + 1) * n // parts, (2 * part + 1) * n // (2 * parts)
        first = begin + int(random[0, parts + part - 1] * (end - begin))
        second = begin + int(random[1, parts + part - 1] * (end - begin))
        values = Z[begin:end] @ (Z[first] - Z[second])
        limit = np.partition(values, middle - begin)[middle - begin] if middle < end else np.float32(np.inf)
        ties = middle - begin - np.sum(values < limit)  # rows at the limit that go to the left
        left, right = begin, middle
        for i in range(begin, end):
            low = values[i - begin] < limit
            if values[i - begin] == limit and ties > 0:
                low, ties = True, ties - 1
            low = left < middle and (low or right == end)  # each half has its size, even if values are NaN
            to = left if low else right
            sorted_Z[to], sorted_order[to] = Z[i], order[i]
            left, right = left + low, right + (not low)
        Z[begin:end], order[begin:end] = sorted_Z[begin:end], sorted_order[begin:end]
        uncut.append((2 * parts, 2 * part + 1))
        uncut.append((2 * parts, 2 * part))


_MAX_ATTEMPTS = 7
_ACCEPTED = 1.5  # times the tolerance: a larger error calls for another attempt
_FIRST_THRESHOLD = 0.5  # of the error that a row may have: the error outside its leaf in the first attempt
_COLUMNS, _COLUMNS_TOLERANCE = 200, 0.2  # columns of either kind in the first attempt, at that tolerance; more at a smaller one
_MAX_COLUMNS = 2000
_RANK_THRESHOLD = 1e-5  # of the norm of a row, where not the error but the rank is given
_STALLED = 0.7  # times the error before: a larger one has another cause than the threshold
_SINGLE_TOLERANCE = 0.02  # above it skeletons may be chosen in float32
_SINGLE_MAX_NORM = 1e12  # of a row, whose square is then well within float32


class Compression(NamedTuple):
    """A compressed matrix, its estimated error, the threshold that led to it, and whether the error is close to the tolerance."""

    nodes: list[Node]
    error: float
    threshold: float
    reached: bool


class Compressor:
    """Compresses the kernel matrix of rows X [n, d] to any tolerance, with one tree and one estimate of the error.

    The rows of its ``blocks`` are in the order of the ``tree``.
    """

    def __init__(
        self,
        X: np.ndarray,
        kernel: Kernel,
        tree: ClusterTree,
        *,
        max_rank: int,
        n_neighbors: int,
        zero_sum: bool,
        seed: int | None,
        verbose: bool,
    ) -> None:
        self.tree = tree
        self.blocks: KernelBlocks = KernelBlocks(X[tree.order], kernel)
        self._single = self.blocks.single()
        self._max_rank, self._n_neighbors, self._verbose = max_rank, n_neighbors, verbose
        self._seed = int(np.random.default_rng().integers(2**63)) if seed is None else seed
        self._neighbors = approximate_neighbors(self._single.X, n_neighbors, seed=self._seed)
        self._estimate = ErrorEstimate(self.blocks, zero_sum, np.random.default_rng(self._seed))

    def compress(self, rel_tol: float, abs_tol: float, start: Compression | None = None) -> Compression:
        """Compress until the error is within the tolerance, going on from ``start``; the best attempt if none is.

        Warns if the estimated error is more than half above the tolerance. Calls with the same arguments return the same.
        """
        norm = self._estimate.row_norm
        tolerance = max(rel_tol, abs_tol / norm)
        if start is not None and start.error <= tolerance:
            return start
        columns, rounds = int(min(_COLUMNS * max(_COLUMNS_TOLERANCE / tolerance, 1.0) ** 0.7, _MAX_COLUMNS)), 1
        largest = np.inf if start is None else start.threshold * _reduction(tolerance, start.error)
        threshold = min(_FIRST_THRESHOLD * tolerance * norm, largest)
        # The generator depends on the tolerance and not on calls before this one.
        rng = np.random.default_rng([self._seed, int(np.float64(tolerance).view(np.uint64))])
        n_neighbors, neighbors, previous_error = self._n_neighbors, self._neighbors, np.inf
        best = Compression([], np.inf, 0.0, False) if start is None else start
        for _ in range(_MAX_ATTEMPTS):
            in_single = tolerance > _SINGLE_TOLERANCE and rounds == 1 and norm < _SINGLE_MAX_NORM
            precision = Precision(threshold, self._max_rank, columns, rounds)
            nodes, error = self._attempt(self._single if in_single else self.blocks, neighbors, precision, rng)
            limited = max(len(node.skeleton) for node in nodes) >= self._max_rank
            if error < best.error or not best.nodes:
                best = Compression(nodes, error, threshold, False)
            if error <= _ACCEPTED * tolerance or limited:
                break
            if error <= _STALLED * previous_error:
                threshold *= _reduction(tolerance, error)
            else:  # neighbours were missed, or the interpolation falls short of the best one: a lower threshold does not help
                rounds += 1
                n_neighbors *= 2
                neighbors = approximate_neighbors(self._single.X, n_neighbors, seed=self._seed)
            columns, previous_error = int(1.6 * columns), error
        reached = best.error <= _ACCEPTED * tolerance
        if not reached:
            remedy = f"raise max_rank={self._max_rank}" if limited else "neighbours of rows were missed: raise n_neighbors"
            message = f"the compressed matrix has an error of about {best.error:.2g}, above {tolerance:g}: {remedy}"
            warn(message, RuntimeWarning)
        return best._replace(reached=reached)

    def at_rank(self) -> Compression:
        """Compress once, with skeletons of ``max_rank`` rows wherever rows differ, whatever the error is then."""
        precision = Precision(_RANK_THRESHOLD * self._estimate.row_norm, self._max_rank, _COLUMNS, 1)
        found = self._attempt(self.blocks, self._neighbors, precision, np.random.default_rng(self._seed))
        return Compression(*found, precision.threshold, True)

    def _attempt(
        self, selection_blocks: KernelBlocks, neighbors: np.ndarray, precision: Precision, rng: np.random.Generator
    ) -> tuple[list[Node], float]:
        """Compress once; return the nodes and the estimated error."""
        order = shown(range(len(self.tree.begin)), "compression", self._verbose)
        nodes = compress(self.tree, order, self.blocks, selection_blocks, neighbors, precision, rng)
        return nodes, self._estimate.error(self.tree, nodes)


def _reduction(tolerance: float, error: float) -> float:
    """The factor for a threshold that led to an error. The error falls more slowly than the threshold."""
    return max(min(tolerance / max(error, 1e-300), 0.7) ** 1.5, 0.02)
