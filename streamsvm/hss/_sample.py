"""How far a compressed kernel matrix is from the exact one, estimated."""

from __future__ import annotations

import numpy as np

from streamsvm.hss._blocks import Blocks
from streamsvm.hss._compress import Node
from streamsvm.hss._product import product
from streamsvm.hss.tree import ClusterTree

__all__ = ["Sample"]

_ROWS, _VECTORS = 256, 20
_AT_ONCE = 4_000_000  # kernel values


class Sample:
    """Some rows of the exact matrix, in the tree's order: their norms, and their products with random vectors. O(n d).

    With ``zero_sum`` the vectors' sums are zero, and norms are those that count then, from the rows' means.

    Attributes
    ----------
    row_norm : float
        Root of the mean squared norm of a row.
    """

    def __init__(self, blocks: Blocks, zero_sum: bool, rng: np.random.Generator) -> None:
        n = len(blocks.X)
        self._rows = np.sort(rng.permutation(n)[:_ROWS])
        self._vectors = rng.normal(size=(n, _VECTORS))
        if zero_sum:
            self._vectors -= self._vectors.mean(axis=0)
        parts, squares = [], 0.0
        for some in np.array_split(self._rows, -(-len(self._rows) * n // _AT_ONCE)):
            K = blocks(some, slice(None))
            parts.append(K @ self._vectors)
            if zero_sum:
                K -= K.mean(axis=1, keepdims=True)
            squares += float(np.vdot(K, K))
        self._products = np.concatenate(parts)
        self.row_norm = float(np.sqrt(squares / len(self._rows)))

    def error(self, tree: ClusterTree, nodes: list[Node]) -> float:
        """|(K - K~) V| / |K V| over these rows and vectors, in the Frobenius norm: about |K - K~| / |K|. O(n (m + r))."""
        difference = product(tree, nodes, self._vectors)[self._rows] - self._products
        norm = float(np.linalg.norm(self._products))
        return float(np.linalg.norm(difference)) / norm if norm > 0.0 else 0.0
