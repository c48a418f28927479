"""Compressions of one kernel matrix, tried until the error is what it may be."""

from __future__ import annotations

import warnings

import numpy as np

from streamsvm.hss._blocks import Blocks
from streamsvm.hss._compress import Node, Precision, compress
from streamsvm.hss._progress import shown
from streamsvm.hss._sample import Sample
from streamsvm.hss.neighbors import approximate_neighbors
from streamsvm.hss.tree import ClusterTree
from streamsvm.kernels import Kernel

__all__ = ["Trials"]

_FIRST = 0.5  # of the error that all rows may have: what each may have outside its leaf
_COLUMNS = 200  # of either kind that are looked at outside a leaf, at an error of
_USUAL = 0.2
_MOST_COLUMNS = 2000
_ACCEPTED = 1.5  # tolerances: where the estimate is above, it is tried again
_TRIALS = 7
_STUCK = 0.7  # of the error before: rows are not known to be near
_ROUGH = 0.02  # tolerances above may choose skeletons in float32


class Trials:
    """What all compressions of the kernel matrix of rows X [n, d] share, and where the last one ended.

    Attributes
    ----------
    tree : ClusterTree
    blocks : Blocks
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
        self.blocks = Blocks(X[tree.order], kernel)
        self._rough = self.blocks.single()
        self._max_rank, self._n_neighbors, self._seed, self._verbose = max_rank, n_neighbors, seed, verbose
        self._rng = np.random.default_rng(seed)
        self._near = approximate_neighbors(self._rough.X, n_neighbors, seed=seed)
        self._sample = Sample(self.blocks, zero_sum, self._rng)
        self._threshold, self._error = np.inf, np.inf  # of the last trial

    def compressed(self, rel_tol: float, abs_tol: float) -> tuple[list[Node], float]:
        """The nodes, and the estimated error. Warns where that is more than half above the tolerance."""
        norm = self._sample.row_norm
        goal = max(rel_tol, abs_tol / norm if norm > 0.0 else 0.0)
        columns = int(min(_COLUMNS * max(_USUAL / goal, 1.0) ** 0.7, _MOST_COLUMNS))
        # The error falls more slowly than the threshold. A closer trial goes on from the one before.
        self._threshold = min(_FIRST * goal * norm, self._threshold * self._smaller(goal))
        rounds = 1
        for _ in range(_TRIALS):
            order = shown(range(len(self.tree.begin)), "compression", self._verbose)
            outside = self._rough if goal > _ROUGH and rounds == 1 else self.blocks
            precision = Precision(self._threshold, self._max_rank, columns, rounds)
            nodes = compress(self.tree, order, self.blocks, outside, self._near, precision, self._rng)
            before, self._error = self._error, self._sample.error(self.tree, nodes)
            limited = max(len(node.skeleton) for node in nodes) >= self._max_rank
            if self._error <= _ACCEPTED * goal or limited:
                break
            if self._error <= _STUCK * before:
                self._threshold *= self._smaller(goal)
            else:  # thresholds do not help where rows are not known to be near, or fall short of the best interpolation
                rounds += 1
                self._n_neighbors *= 2
                self._near = approximate_neighbors(self._rough.X, self._n_neighbors, seed=self._seed)
            columns = int(1.6 * columns)
        if self._error > _ACCEPTED * goal:
            what = f"raise max_rank={self._max_rank}" if limited else "the rows' neighbours are not found: raise n_neighbors"
            message = f"the compressed matrix has an error of about {self._error:.2g}, above {goal:g}: {what}"
            warnings.warn(message, RuntimeWarning, 3)
        return nodes, self._error

    def _smaller(self, goal: float) -> float:
        # What to multiply the last threshold with.
        return max(min(goal / self._error, 0.7) ** 1.5, 0.02) if np.isfinite(self._error) else 1.0
