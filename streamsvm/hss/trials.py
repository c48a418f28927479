"""Compressions of one kernel matrix, tried until the error is what it may be."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm._progress import shown
from streamsvm._warnings import warn
from streamsvm.hss.blocks import Blocks
from streamsvm.hss.compress import Node, Precision, compress
from streamsvm.hss.neighbors import approximate_neighbors
from streamsvm.hss.sample import Sample
from streamsvm.hss.tree import ClusterTree
from streamsvm.kernels import Kernel

__all__ = ["Trial", "Trials"]

_FIRST = 0.5  # of the error that all rows may have: what each may have outside its leaf
_COLUMNS = 200  # of either kind that are looked at outside a leaf, at an error of
_USUAL = 0.2
_MOST_COLUMNS = 2000
_ACCEPTED = 1.5  # tolerances: where the estimate is above, it is tried again
_TRIALS = 7
_STUCK = 0.7  # of the error before: rows are not known to be near
_LARGEST_ROUGH = 1e12  # a row's norm whose square is well within float32
_ROUGH = 0.02  # tolerances above may choose skeletons in float32


class Trial(NamedTuple):
    """A compression, its estimated error, the threshold that led to it, and whether the error is about what it was to be."""

    nodes: list[Node]
    error: float
    threshold: float
    reached: bool


class Trials:
    """What all compressions of the kernel matrix of rows X [n, d] share.

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
        self._max_rank, self._n_neighbors, self._verbose = max_rank, n_neighbors, verbose
        self._seed = int(np.random.default_rng().integers(2**63)) if seed is None else seed
        self._near = approximate_neighbors(self._rough.X, n_neighbors, seed=self._seed)
        self._sample = Sample(self.blocks, zero_sum, np.random.default_rng(self._seed))

    def compressed(self, rel_tol: float, abs_tol: float, last: Trial | None = None) -> Trial:
        """A trial that is exact enough, or the best one; from one before on. Warns where the estimated error is more than half
        above the tolerance.
        """
        norm = self._sample.row_norm
        goal = max(rel_tol, abs_tol / norm)
        if last is not None and last.error <= goal:
            return last
        columns, rounds = int(min(_COLUMNS * max(_USUAL / goal, 1.0) ** 0.7, _MOST_COLUMNS)), 1
        threshold = min(_FIRST * goal * norm, np.inf if last is None else last.threshold * _smaller(goal, last.error))
        # What is tried does not depend on what was tried before: the same is asked for, the same comes.
        rng = np.random.default_rng([self._seed, int(np.float64(goal).view(np.uint64))])
        n_neighbors, near, before = self._n_neighbors, self._near, np.inf
        best = Trial([], np.inf, 0.0, False) if last is None else last
        for _ in range(_TRIALS):
            order = shown(range(len(self.tree.begin)), "compression", self._verbose)
            outside = self._rough if goal > _ROUGH and rounds == 1 and norm < _LARGEST_ROUGH else self.blocks
            precision = Precision(threshold, self._max_rank, columns, rounds)
            nodes = compress(self.tree, order, self.blocks, outside, near, precision, rng)
            error = self._sample.error(self.tree, nodes)
            limited = max(len(node.skeleton) for node in nodes) >= self._max_rank
            if error < best.error or not best.nodes:
                best = Trial(nodes, error, threshold, False)
            if error <= _ACCEPTED * goal or limited:
                break
            # The error falls more slowly than the threshold.
            if error <= _STUCK * before:
                threshold *= _smaller(goal, error)
            else:  # thresholds do not help where rows are not known to be near, or fall short of the best interpolation
                rounds += 1
                n_neighbors *= 2
                near = approximate_neighbors(self._rough.X, n_neighbors, seed=self._seed)
            columns, before = int(1.6 * columns), error
        reached = best.error <= _ACCEPTED * goal
        if not reached:
            what = f"raise max_rank={self._max_rank}" if limited else "the rows' neighbours are not found: raise n_neighbors"
            message = f"the compressed matrix has an error of about {best.error:.2g}, above {goal:g}: {what}"
            warn(message, RuntimeWarning)
        return best._replace(reached=reached)


def _smaller(goal: float, error: float) -> float:
    # What to multiply a threshold with that led to an error.
    return max(min(goal / max(error, 1e-300), 0.7) ** 1.5, 0.02)
