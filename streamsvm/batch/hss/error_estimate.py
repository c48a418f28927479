"""An estimate of how far a compressed kernel matrix is from the exact one."""

from __future__ import annotations

import numpy as np

from streamsvm.batch.hss.blocks import CHUNK_VALUES, KernelBlocks
from streamsvm.batch.hss.product import product
from streamsvm.batch.hss.skeletons import Node
from streamsvm.batch.hss.tree import ClusterTree

__all__ = ["ErrorEstimate"]

_ROWS, _VECTORS = 256, 20
_ROUNDING = 1e-10  # relative to the matrix: smaller differences count as zero


class ErrorEstimate:
    """Random rows of the exact matrix, in the tree's order: their norms, and their products with random vectors. O(n d).

    With ``zero_sum`` the vectors' sums are zero, and norms are taken after subtracting each row's mean.

    Attributes
    ----------
    row_norm : float
        Root of the mean squared norm of a row.

    Raises
    ------
    ValueError
        Kernel values are so large that their squares overflow.
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
