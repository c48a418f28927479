"""Products with a compressed kernel matrix, and what they are at new rows.

Rows are interpolated by the kernel itself, so that the compressed matrix is that of a kernel: the hierarchically compositional
one, which goes from a row to all rows outside its leaf through the leaf's skeleton J. At any x in a leaf, a product is k(x, leaf)
times weights: the leaf's coefficients, and at J k(J, J)^-1 times the product with all columns outside, there.

Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18.
"""

from __future__ import annotations

import numpy as np
from scipy.linalg import lapack

from streamsvm.batch.hss.skeletons import Node
from streamsvm.batch.hss.tree import ClusterTree

__all__ = ["leaf_weights", "product"]


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
