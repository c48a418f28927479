"""Compression of a kernel matrix to a tolerance: attempts of growing precision until the estimated error is small enough."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss.blocks import KernelBlocks
from streamsvm.batch.hss.error_estimate import ErrorEstimate
from streamsvm.batch.hss.neighbors import approximate_neighbors
from streamsvm.batch.hss.skeletons import Node, Precision, compress
from streamsvm.batch.hss.tree import ClusterTree
from streamsvm.core.kernels import Kernel
from streamsvm.core.progress import shown
from streamsvm.core.warning import warn

__all__ = ["Compression", "Compressor"]

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

    Attributes
    ----------
    tree : ClusterTree
    blocks : KernelBlocks
        Rows in the tree's order.
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
            order = shown(range(len(self.tree.begin)), "compression", self._verbose)
            in_single = tolerance > _SINGLE_TOLERANCE and rounds == 1 and norm < _SINGLE_MAX_NORM
            selection_blocks = self._single if in_single else self.blocks
            precision = Precision(threshold, self._max_rank, columns, rounds)
            nodes = compress(self.tree, order, self.blocks, selection_blocks, neighbors, precision, rng)
            error = self._estimate.error(self.tree, nodes)
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
        order, norm = shown(range(len(self.tree.begin)), "compression", self._verbose), self._estimate.row_norm
        precision = Precision(_RANK_THRESHOLD * norm, self._max_rank, _COLUMNS, 1)
        rng = np.random.default_rng(self._seed)
        nodes = compress(self.tree, order, self.blocks, self.blocks, self._neighbors, precision, rng)
        return Compression(nodes, self._estimate.error(self.tree, nodes), precision.threshold, True)


def _reduction(tolerance: float, error: float) -> float:
    """The factor for a threshold that led to an error. The error falls more slowly than the threshold."""
    return max(min(tolerance / max(error, 1e-300), 0.7) ** 1.5, 0.02)
