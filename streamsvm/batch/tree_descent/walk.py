"""Compiled walks through the tree of a compressed kernel matrix: products, and coordinate steps leaf by leaf.

Vectors of all nodes' skeletons, ``up`` and ``down``, are one after the other in arrays as long as the matrix's ``skeletons``.
"""

from __future__ import annotations

import numpy as np

from streamsvm.batch.hss.compositional import CompositionalMatrix, matrix_at
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

__all__ = ["leaf_weights", "lift", "walk"]


@compiled(nogil=True, fastmath=FAST)
def _add_product(A: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Add A x to y, for A float32 [m, k]."""
    for i in range(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total += A[i, j] * x[j]
        y[i] += total


@compiled(nogil=True, fastmath=FAST)
def _add_row(row: np.ndarray, factor: float, y: np.ndarray) -> None:
    for j in range(len(row)):
        y[j] += factor * row[j]


@compiled(nogil=True)
def _add_transposed(A: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Add A' x to y, for A float32 [m, k]."""
    for i in range(A.shape[0]):
        if x[i] != 0.0:
            _add_row(A[i], x[i], y)


@compiled(nogil=True, inline=True)
def _of(M: CompositionalMatrix, vectors: np.ndarray, node: int) -> np.ndarray:
    """Return the part of a node."""
    return vectors[M.places[node] : M.places[node] + M.ranks[node]]


@compiled(nogil=True)
def _lift_node(node: int, right: np.ndarray, M: CompositionalMatrix, up: np.ndarray) -> None:
    """Renew ``up`` of an inner node from those of its children."""
    rank, first, second = M.ranks[node], node + 1, right[node]
    if rank:
        middle = M.ranks[first]
        P = matrix_at(M.interpolations, M.interpolation_places[node], middle + M.ranks[second], rank)
        to = _of(M, up, node)
        to[:] = 0.0
        _add_transposed(P[:middle], _of(M, up, first), to)
        _add_transposed(P[middle:], _of(M, up, second), to)


@compiled(nogil=True)
def _lower(node: int, second: bool, right: np.ndarray, M: CompositionalMatrix, up: np.ndarray, down: np.ndarray) -> None:
    """Renew ``down`` of a child of an inner node, the first or second one, from its sibling's ``up`` and the node's ``down``."""
    a, b = node + 1, right[node]
    block = matrix_at(M.blocks, M.block_places[node], M.ranks[a], M.ranks[b])
    to = _of(M, down, b if second else a)
    to[:] = 0.0
    if second:
        _add_transposed(block, _of(M, up, a), to)
    else:
        _add_product(block, _of(M, up, b), to)
    if M.ranks[node]:
        P = matrix_at(M.interpolations, M.interpolation_places[node], M.ranks[a] + M.ranks[b], M.ranks[node])
        _add_product(P[M.ranks[a] :] if second else P[: M.ranks[a]], _of(M, down, node), to)


@compiled(nogil=True)
def lift(
    begin: np.ndarray, end: np.ndarray, right: np.ndarray, M: CompositionalMatrix, b: np.ndarray, near: np.ndarray, up: np.ndarray
) -> None:
    """Compute the values ``near`` of all rows from the coefficients of their own leaf, and ``up`` of all nodes."""
    for node in range(len(begin) - 1, -1, -1):
        if right[node] >= 0:
            _lift_node(node, right, M, up)
            continue
        m, x = end[node] - begin[node], b[begin[node] : end[node]]
        values, to = near[begin[node] : end[node]], _of(M, up, node)
        values[:], to[:] = 0.0, 0.0
        _add_transposed(matrix_at(M.blocks, M.block_places[node], m, m), x, values)
        _add_transposed(matrix_at(M.interpolations, M.interpolation_places[node], m, M.ranks[node]), x, to)


@compiled(nogil=True)
def leaf_weights(right: np.ndarray, M: CompositionalMatrix, b: np.ndarray, down: np.ndarray) -> np.ndarray:
    """Return weights of the rows, float64 [n], so that values anywhere in a leaf are kernel values with its rows times these.

    ``down`` must be that of the coefficients b: as the last walk, without steps, left it.
    """
    weights = b.copy()
    for node in range(len(right)):
        rank = M.ranks[node]
        if right[node] < 0 and rank:
            shares = np.zeros(rank)
            _add_product(matrix_at(M.inverses, M.inverse_places[node], rank, rank), _of(M, down, node), shares)
            for i in range(rank):
                weights[M.skeletons[M.places[node] + i]] += shares[i]
    return weights


@compiled(nogil=True)
def walk(
    begin: np.ndarray,
    end: np.ndarray,
    right: np.ndarray,
    M: CompositionalMatrix,
    targets: np.ndarray,
    epsilon: float,
    lower: np.ndarray,
    upper: np.ndarray,
    kink: np.ndarray,
    b: np.ndarray,
    near: np.ndarray,
    up: np.ndarray,
    down: np.ndarray,
    bias: float,
    least: float,
    passes: int,
) -> tuple[float, float, float]:
    """Walk through the tree from left to right, with some passes of coordinate steps over each leaf.

    Parameters
    ----------
    begin, end, right
        The tree, see `streamsvm.batch.hss.cuts.Cuts`.
    M
        The matrix of the kernel.
    targets, epsilon, lower, upper, kink
        The problem, see `streamsvm.batch.problem`.
    b, near, up
        The coefficients float64 [n], and what `lift` makes of them; renewed.
    down
        Receives what coefficients elsewhere bring to each node.
    bias
        The intercept.
    least
        Of the curvatures: smaller ones count as this.
    passes
        0: no coefficient changes.

    Returns
    -------
    gap, quadratic, loss
        The sums over rows of the loss's Fenchel gap, of b f, and of the loss, each before the steps of the row's leaf.
    """
    gap, quadratic, loss = 0.0, 0.0, 0.0
    nodes, stages = [0], [0]
    while nodes:
        node, stage = nodes.pop(), stages.pop()
        if right[node] >= 0:
            if stage == 2:
                _lift_node(node, right, M, up)
                continue
            _lower(node, stage == 1, right, M, up, down)
            nodes.append(node)
            stages.append(stage + 1)
            nodes.append(right[node] if stage else node + 1)
            stages.append(0)
            continue
        some, m = slice(begin[node], end[node]), end[node] - begin[node]
        P = matrix_at(M.interpolations, M.interpolation_places[node], m, M.ranks[node])
        K = matrix_at(M.blocks, M.block_places[node], m, m)
        x, own, to = b[some], near[some], _of(M, up, node)
        low, high, bend = lower[some], upper[some], kink[some]
        far = np.zeros(m)
        _add_product(P, _of(M, down, node), far)
        for i in range(m):
            f = far[i] + own[i]
            far[i] += bias - targets[begin[node] + i]  # from here on, values minus targets
            v = -(far[i] + own[i])
            cost = max(v * low[i] - epsilon * abs(low[i] - bend[i]), v * high[i] - epsilon * abs(high[i] - bend[i]), v * bend[i])
            gap += cost - v * x[i] + epsilon * abs(x[i] - bend[i])
            quadratic += x[i] * f
            loss += cost
        for _ in range(passes):
            changed = False
            for i in range(m):
                curvature = max(np.float64(K[i, i]), least)
                z, width = x[i] - (far[i] + own[i]) / curvature, epsilon / curvature
                if z - width > bend[i]:
                    z -= width
                elif z + width < bend[i]:
                    z += width
                else:
                    z = bend[i]
                z = min(max(z, low[i]), high[i])
                step = z - x[i]
                if step != 0.0:
                    x[i] = z
                    _add_row(K[i], step, own)
                    _add_row(P[i], step, to)
                    changed = True
            if not changed:
                break
    return gap, quadratic, loss
