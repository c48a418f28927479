"""Products with a compressed kernel matrix."""

from __future__ import annotations

import numpy as np

from streamsvm.hss.compress import Node
from streamsvm.hss.tree import ClusterTree

__all__ = ["product"]


def product(tree: ClusterTree, nodes: list[Node], V: np.ndarray) -> np.ndarray:
    """K~ V, float64 [n, k], rows in the tree's order. O(n (m + r) k)."""
    upward: list[np.ndarray] = []  # what the skeletons stand for
    for number, node in enumerate(nodes):
        left, right = tree.children[number]
        rows = V[tree.begin[number] : tree.end[number]] if left < 0 else np.concatenate([upward[left], upward[right]])
        upward.append(node.interpolation.T @ rows)
    out = np.empty_like(V)
    downward = upward.copy()
    downward[-1] = np.zeros_like(upward[-1])  # nothing is above the root
    for number in range(len(nodes) - 1, -1, -1):
        node, (left, right) = nodes[number], tree.children[number]
        above = node.interpolation @ downward[number]
        if left < 0:
            begin, end = tree.begin[number], tree.end[number]
            out[begin:end] = node.block @ V[begin:end] + above
        else:
            size = len(upward[left])
            downward[left] = node.block @ upward[right] + above[:size]
            downward[right] = node.block.T @ upward[left] + above[size:]
    return out
