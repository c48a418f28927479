"""Products with a compressed kernel matrix."""

from __future__ import annotations

import numpy as np

from streamsvm.hss.skeletons import Node
from streamsvm.hss.tree import ClusterTree

__all__ = ["product"]


def product(tree: ClusterTree, nodes: list[Node], V: np.ndarray) -> np.ndarray:
    """K~ V, float64 [n, k], rows in the tree's order. O(n (m + r) k)."""
    upward: list[np.ndarray] = []  # P' V of each node: V gathered in the skeleton
    for number, node in enumerate(nodes):
        upward.append(node.interpolation.T @ tree.rows_of(number, V, upward))
    out = np.empty_like(V)
    downward = upward.copy()  # the product with all columns outside, at the skeleton
    downward[-1] = np.zeros_like(upward[-1])  # no column is outside the root
    for number in range(len(nodes) - 1, -1, -1):
        node, (left, right) = nodes[number], tree.children[number]
        from_outside = node.interpolation @ downward[number]
        if left < 0:
            begin, end = tree.begin[number], tree.end[number]
            out[begin:end] = node.block @ V[begin:end] + from_outside
        else:
            size = len(upward[left])
            downward[left] = node.block @ upward[right] + from_outside[:size]
            downward[right] = node.block.T @ upward[left] + from_outside[size:]
    return out
