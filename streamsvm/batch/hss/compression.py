"""Compression of a kernel matrix to a tolerance: precision increases until the estimated error is small enough."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss.skeletons import CHUNK_VALUES, KernelBlocks, Node, NodePrecision, compress_nodes
from streamsvm.batch.hss.trees import ClusterTree, grow_tree
from streamsvm.core.progress import iterate_with_progress
from streamsvm.core.warning import warn


def multiply_compressed(tree: ClusterTree, nodes: list[Node], V: np.ndarray) -> np.ndarray:
    """Multiply a compressed kernel matrix [n, n] by V float64 [n, k], and return the product, float64 [n, k]. ``nodes`` are the
    parts of the compressed matrix, one for each node of ``tree``, and rows are in the order of that tree. O(n (m + r) k) for
    leaves of m rows and rank r.
    """
    out, upward = np.empty_like(V), list[np.ndarray]()  # P' V of each node: V summed up at its skeleton
    for number, node in enumerate(nodes):
        upward.append(node.interpolation.T @ tree.gather_rows(number, V, upward))
    downward = upward.copy()  # for each node, the products of its skeleton with all columns outside the node, [r, k]
    downward[-1] = np.zeros_like(upward[-1])  # no column is outside the root
    for number in range(len(nodes) - 1, -1, -1):
        node, (left, right) = nodes[number], tree.children[number]
        from_outside = node.interpolation @ downward[number]
        if left >= 0:
            size = len(upward[left])
            downward[left] = node.block @ upward[right] + from_outside[:size]
            downward[right] = node.block.T @ upward[left] + from_outside[size:]
        else:
            rows = slice(tree.starts[number], tree.stops[number])
            out[rows] = node.block @ V[rows] + from_outside
    return out


_SAMPLE_ROWS, _SAMPLE_VECTORS = 256, 20
_ROUNDING_ERROR = 1e-10  # relative to the matrix: smaller differences count as zero


class ErrorEstimate:
    """Estimates the error of a compressed matrix on random rows of the exact one, and their products with random vectors.

    With ``zero_sum``, the vectors have the sum zero, and each row's mean is subtracted before its norm is taken. ``row_norm`` is
    the root mean square of the row norms. Raises a ValueError if squares of kernel values overflow. O(n d).
    """

    def __init__(self, blocks: KernelBlocks, zero_sum: bool, rng: np.random.Generator) -> None:
        n = len(blocks.X)
        self._rows = np.sort(rng.permutation(n)[:_SAMPLE_ROWS])
        self._vectors = rng.normal(size=(n, _SAMPLE_VECTORS))
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
        self._min_difference = _ROUNDING_ERROR * np.sqrt(all_squares * _SAMPLE_VECTORS)
        squares = max(squares, _ROUNDING_ERROR**2 * all_squares, np.finfo(np.float64).tiny)
        self.row_norm: float = float(np.sqrt(squares / len(self._rows)))

    def estimate_error(self, tree: ClusterTree, nodes: list[Node]) -> float:
        """Estimate the relative error (Frobenius norm) of a compressed kernel matrix, whose parts are the ``nodes`` of the
        ``tree``, and return it. Its products with random vectors are compared to those of the exact matrix, for a sample of rows.

        It is 0 if the difference is as small as rounding errors. O(n (m + r)).
        """
        difference = float(np.linalg.norm(multiply_compressed(tree, nodes, self._vectors)[self._rows] - self._products))
        return difference / float(np.linalg.norm(self._products)) if difference > self._min_difference else 0.0


_MIN_LEAF_ROWS = 96
_MAX_DIRECTIONS = 16  # rows are projected to this number of random directions before a tree divides them


def find_approximate_neighbors(X: np.ndarray, k: int, trees: int = 4, seed: int = 0) -> np.ndarray:
    """Find about ``k`` nearest neighbours of each row of X float32 [n, d], with random projection trees. Return their row
    numbers, int32 [n, k]; a row may occur several times.

    Each tree contributes the k / trees nearest rows in the row's leaf; different trees separate different neighbours. A row is
    one of its own neighbours. Fewer columns are returned if n is small. O(trees n (d + log n) log n).

    March, W. B., Xiao, B., Biros, G. (2015). ASKIT: approximate skeletonization kernel-independent treecode. SISC 37.
    """
    rng = np.random.default_rng(seed)
    n, per_tree = len(X), max(k // trees, 1)
    leaves = 2 ** max(int(np.log2(n / max(_MIN_LEAF_ROWS, 3 * per_tree))), 0)
    size = -(-n // leaves)
    per_tree = min(per_tree, size)
    squares = np.square(X).sum(axis=1)
    neighbors = np.empty((n, trees, per_tree), np.int32)
    for t in range(trees):
        directions = rng.normal(size=(X.shape[1], min(X.shape[1], _MAX_DIRECTIONS))).astype(np.float32)
        tree = grow_tree((X @ directions).astype(np.float64), size, int(rng.integers(2**63)))
        starts, longest = tree.starts[tree.leaves], int((tree.stops - tree.starts)[tree.leaves].max())
        members = tree.order[np.minimum(starts[:, None] + np.arange(longest), n - 1)]  # smaller leaves borrow the next one's rows
        chunk = max(CHUNK_VALUES // longest**2, 1)
        for leaf in range(0, len(members), chunk):
            rows = members[leaf : leaf + chunk]
            points = X[rows]
            distances = squares[rows][:, None, :] - 2.0 * (points @ points.transpose(0, 2, 1))  # up to a constant for each row
            nearest = np.argpartition(distances, per_tree - 1, axis=2)[:, :, :per_tree]
            neighbors[rows, t] = np.take_along_axis(rows[:, None, :], nearest, axis=2)
    return neighbors.reshape(n, -1)


_MAX_ATTEMPTS = 7
_ACCEPTED_FACTOR = 1.5  # an error up to this times the tolerance is accepted
_FIRST_THRESHOLD_SHARE = 0.5  # of the tolerated error of a row: the threshold outside its leaf in the first attempt
# Columns of each kind in the first attempt for this tolerance; smaller tolerances use more.
_COLUMNS, _TOLERANCE_OF_COLUMNS = 200, 0.2
_MAX_COLUMNS = 2000
_RANK_THRESHOLD = 1e-5  # relative to the norm of a row, if the rank is given and not the tolerance
_STALLED_FACTOR = 0.7  # if more than this share of the previous error remains, a smaller threshold does not help
_MIN_FLOAT32_TOLERANCE = 0.02  # for larger tolerances, skeletons may be chosen in float32
_MAX_FLOAT32_NORM = 1e12  # of a row: its square is then far from the largest float32 number


class Compression(NamedTuple):
    """A compressed matrix, its estimated error, and whether the error is accepted for the tolerance."""

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
    """Compress a kernel matrix: interpolate the rows of each node of ``tree`` from a few of them, with increasing precision,
    until the estimated error is within the tolerance (relative ``rel_tol`` or absolute ``abs_tol``). Return the attempt with the
    smallest error. ``blocks`` computes exact kernel values.

    The rows of ``blocks`` are in the order of the ``tree``. Without a tolerance (``rel_tol=None``), there is one attempt, where
    skeletons have ``max_rank`` rows unless rows are equal. Warns if the estimated error is more than half above the tolerance.
    """
    single, estimate = blocks.to_float32(), ErrorEstimate(blocks, zero_sum, np.random.default_rng(seed))
    neighbors, rng = find_approximate_neighbors(single.X, n_neighbors, seed=seed), np.random.default_rng(seed)
    norm, previous_error, rounds, best = estimate.row_norm, np.inf, 1, Compression([], np.inf, False)
    tolerance, threshold, columns = 0.0, _RANK_THRESHOLD * norm, _COLUMNS
    if rel_tol is not None:
        tolerance = max(rel_tol, abs_tol / norm)
        threshold = _FIRST_THRESHOLD_SHARE * tolerance * norm
        columns = int(min(_COLUMNS * max(_TOLERANCE_OF_COLUMNS / tolerance, 1.0) ** 0.7, _MAX_COLUMNS))
    for _ in range(_MAX_ATTEMPTS):
        is_float32 = tolerance > _MIN_FLOAT32_TOLERANCE and rounds == 1 and norm < _MAX_FLOAT32_NORM
        order = iterate_with_progress(range(len(tree.starts)), "compression", verbose)
        precision = NodePrecision(threshold, max_rank, columns, rounds)
        nodes = compress_nodes(tree, order, blocks, single if is_float32 else blocks, neighbors, precision, rng)
        error, is_limited = estimate.estimate_error(tree, nodes), max(len(node.skeleton) for node in nodes) >= max_rank
        if error < best.error or not best.nodes:
            best = Compression(nodes, error, rel_tol is None or error <= _ACCEPTED_FACTOR * tolerance)
        if best.reached or is_limited:
            break
        if error <= _STALLED_FACTOR * previous_error:  # the error decreases more slowly than the threshold
            threshold *= max(min(tolerance / error, 0.7) ** 1.5, 0.02)
        else:  # neighbours are missing, or the skeletons are not the best ones
            rounds += 1
            n_neighbors *= 2
            neighbors = find_approximate_neighbors(single.X, n_neighbors, seed=seed)
        columns, previous_error = int(1.6 * columns), error
    if not best.reached:
        remedy = f"raise max_rank={max_rank}" if is_limited else "neighbours of rows were missed: raise n_neighbors"
        message = f"the compressed matrix has an error of about {best.error:.2g}, above {tolerance:g}: {remedy}"
        warn(message, RuntimeWarning)
    return best
