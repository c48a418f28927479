"""How far a compressed kernel matrix is from the exact one, estimated."""

from __future__ import annotations

import numpy as np

from streamsvm.hss.blocks import Blocks
from streamsvm.hss.compress import Node
from streamsvm.hss.product import product
from streamsvm.hss.tree import ClusterTree

__all__ = ["Sample"]

_ROWS, _VECTORS = 256, 20
_AT_ONCE = 4_000_000  # kernel values
_ROUNDING = 1e-10  # relative to the matrix: what is below counts as nothing


class Sample:
    """Some rows of the exact matrix, in the tree's order: their norms, and their products with random vectors. O(n d).

    With ``zero_sum`` the vectors' sums are zero, and norms are those that count then, from the rows' means.

    Attributes
    ----------
    row_norm : float
        Root of the mean squared norm of a row.

    Raises
    ------
    ValueError
        Kernel values are so large that their squares overflow.
    """

    def __init__(self, blocks: Blocks, zero_sum: bool, rng: np.random.Generator) -> None:
        n = len(blocks.X)
        self._rows = np.sort(rng.permutation(n)[:_ROWS])
        self._vectors = rng.normal(size=(n, _VECTORS))
        if zero_sum:
            self._vectors -= self._vectors.mean(axis=0)
        parts, squares, whole = [], 0.0, 0.0
        with np.errstate(over="ignore", invalid="ignore"):  # which is looked at below
            for some in np.array_split(self._rows, -(-len(self._rows) * n // _AT_ONCE)):
                K = blocks(some, slice(None))
                parts.append(K @ self._vectors)
                whole += float(np.vdot(K, K))
                if zero_sum:
                    K -= K.mean(axis=1, keepdims=True)
                squares += float(np.vdot(K, K))
        self._products = np.concatenate(parts)
        if not (np.isfinite(whole) and np.isfinite(self._products).all()):
            raise ValueError("kernel values are too large: scale the features")
        self._least = _ROUNDING * np.sqrt(whole * _VECTORS)
        self.row_norm = float(np.sqrt(max(squares, _ROUNDING**2 * whole, np.finfo(np.float64).tiny) / len(self._rows)))

    def error(self, tree: ClusterTree, nodes: list[Node]) -> float:
        """|(K - K~) V| / |K V| over these rows and vectors, in the Frobenius norm: about |K - K~| / |K|; 0 where rounding makes
        that much of it. O(n (m + r)).
        """
        difference = float(np.linalg.norm(product(tree, nodes, self._vectors)[self._rows] - self._products))
        return difference / float(np.linalg.norm(self._products)) if difference > self._least else 0.0
