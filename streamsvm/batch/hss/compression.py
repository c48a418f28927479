"""Compression of a kernel matrix to a tolerance: attempts of growing precision until the estimated error is small enough."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss.skeletons import CHUNK_VALUES, KernelBlocks, Node, NodePrecision, compress_nodes
from streamsvm.batch.hss.trees import ClusterTree, grow_tree
from streamsvm.core.progress import iterate_with_progress
from streamsvm.core.warning import warn


def multiply_compressed(tree: ClusterTree, nodes: list[Node], V: np.ndarray) -> np.ndarray:
    """K~ V, float64 [n, k], rows in the tree's order. O(n (m + r) k)."""
    out, upward = np.empty_like(V), list[np.ndarray]()  # P' V of each node: V gathered in the skeleton
    for number, node in enumerate(nodes):
        upward.append(node.interpolation.T @ tree.gather_rows(number, V, upward))
    downward = upward.copy()  # the products of each node's skeleton with all columns outside the node, [r, k]
    downward[-1] = np.zeros_like(upward[-1])  # no column is outside the root
    for number in range(len(nodes) - 1, -1, -1):
        node, (left, right) = nodes[number], tree.children[number]
        from_outside = node.interpolation @ downward[number]
        if left >= 0:
            size = len(upward[left])
            downward[left] = node.block @ upward[right] + from_outside[:size]
            downward[right] = node.block.T @ upward[left] + from_outside[size:]
        else:
            rows = slice(tree.begin[number], tree.end[number])
            out[rows] = node.block @ V[rows] + from_outside
    return out


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
        self._compute_products = np.concatenate(products)
        if not (np.isfinite(all_squares) and np.isfinite(self._compute_products).all()):
            raise ValueError("kernel values are too large: scale the features")
        self._min_difference = _ROUNDING * np.sqrt(all_squares * _VECTORS)
        self.row_norm: float = float(
            np.sqrt(max(squares, _ROUNDING**2 * all_squares, np.finfo(np.float64).tiny) / len(self._rows))
        )

    def estimate_error(self, tree: ClusterTree, nodes: list[Node]) -> float:
        """|(K - K~) V| / |K V| in the Frobenius norm over these rows and vectors, about |K - K~| / |K|. O(n (m + r)).

        0 if the difference is of the size of rounding errors.
        """
        difference = float(np.linalg.norm(multiply_compressed(tree, nodes, self._vectors)[self._rows] - self._compute_products))
        return difference / float(np.linalg.norm(self._compute_products)) if difference > self._min_difference else 0.0


_MIN_LEAF = 96  # rows of a leaf, at least
_DIRECTIONS = 16  # to which rows are projected before they are cut


def find_approximate_neighbors(X: np.ndarray, k: int, trees: int = 4, seed: int = 0) -> np.ndarray:
    """Find about ``k`` of the nearest rows of each row of X float32 [n, d]: int32 [n, k], fewer if n is small, with repetitions.

    Each tree adds the k / trees nearest rows of the row's leaf, so that rows that one tree cuts apart may be together in
    another. The row itself is among them. O(trees n (d + log n) log n).

    March, W. B., Xiao, B., Biros, G. (2015). ASKIT: approximate skeletonization kernel-independent treecode. SISC 37.
    """
    rng = np.random.default_rng(seed)
    n, each = len(X), max(k // trees, 1)
    leaves = 2 ** max(int(np.log2(n / max(_MIN_LEAF, 3 * each))), 0)
    size = -(-n // leaves)
    each = min(each, size)
    squares = np.square(X).sum(axis=1)
    found = np.empty((n, trees, each), np.int32)
    for t in range(trees):
        directions = rng.normal(size=(X.shape[1], min(X.shape[1], _DIRECTIONS))).astype(np.float32)
        cuts = grow_tree((X @ directions).astype(np.float64), size, int(rng.integers(2**63)))
        begin, longest = cuts.begin[cuts.leaves], int((cuts.end - cuts.begin)[cuts.leaves].max())
        members = cuts.order[np.minimum(begin[:, None] + np.arange(longest), n - 1)]  # smaller leaves borrow rows of the next
        chunk = max(CHUNK_VALUES // longest**2, 1)
        for leaf in range(0, len(members), chunk):
            rows = members[leaf : leaf + chunk]
            points = X[rows]
            distances = squares[rows][:, None, :] - 2.0 * (points @ points.transpose(0, 2, 1))  # up to a constant of each row
            nearest = np.argpartition(distances, each - 1, axis=2)[:, :, :each]
            found[rows, t] = np.take_along_axis(rows[:, None, :], nearest, axis=2)
    return found.reshape(n, -1)


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
    """A compressed matrix, its estimated error, and whether that is close to the tolerance."""

    nodes: list[Node]
    error: float
    reached: bool


def compress_matrix(
    tree: ClusterTree,
    blocks: KernelBlocks,
    rel_tol: float | None,
    abs_tol: float,
    *,
    max_rank: int,
    n_neighbors: int,
    zero_sum: bool,
    seed: int,
    verbose: bool,
) -> Compression:
    """Compress a kernel matrix until the error is within the tolerance; return the best attempt if none is.

    The rows of ``blocks`` are in the order of the ``tree``. Without a tolerance, there is one attempt, with skeletons of
    ``max_rank`` rows wherever rows differ. Warns if the estimated error is more than half above the tolerance.
    """
    single, estimate = blocks.to_float32(), ErrorEstimate(blocks, zero_sum, np.random.default_rng(seed))
    neighbors, rng = find_approximate_neighbors(single.X, n_neighbors, seed=seed), np.random.default_rng(seed)
    norm, previous_error, rounds, best = estimate.row_norm, np.inf, 1, Compression([], np.inf, False)
    tolerance, threshold, columns = 0.0, _RANK_THRESHOLD * norm, _COLUMNS
    if rel_tol is not None:
        tolerance = max(rel_tol, abs_tol / norm)
        threshold = _FIRST_THRESHOLD * tolerance * norm
        columns = int(min(_COLUMNS * max(_COLUMNS_TOLERANCE / tolerance, 1.0) ** 0.7, _MAX_COLUMNS))
    for _ in range(_MAX_ATTEMPTS):
        in_single = tolerance > _SINGLE_TOLERANCE and rounds == 1 and norm < _SINGLE_MAX_NORM
        order = iterate_with_progress(range(len(tree.begin)), "compression", verbose)
        precision = NodePrecision(threshold, max_rank, columns, rounds)
        nodes = compress_nodes(tree, order, blocks, single if in_single else blocks, neighbors, precision, rng)
        error, limited = estimate.estimate_error(tree, nodes), max(len(node.skeleton) for node in nodes) >= max_rank
        if error < best.error or not best.nodes:
            best = Compression(nodes, error, rel_tol is None or error <= _ACCEPTED * tolerance)
        if best.reached or limited:
            break
        if error <= _STALLED * previous_error:  # it falls more slowly than the threshold
            threshold *= max(min(tolerance / error, 0.7) ** 1.5, 0.02)
        else:  # neighbours were missed, or the interpolation falls short of the best one: a lower threshold does not help
            rounds += 1
            n_neighbors *= 2
            neighbors = find_approximate_neighbors(single.X, n_neighbors, seed=seed)
        columns, previous_error = int(1.6 * columns), error
    if not best.reached:
        remedy = f"raise max_rank={max_rank}" if limited else "neighbours of rows were missed: raise n_neighbors"
        message = f"the compressed matrix has an error of about {best.error:.2g}, above {tolerance:g}: {remedy}"
        warn(message, RuntimeWarning)
    return best
