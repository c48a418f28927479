"""Block coordinate descent on the dual problem of a compressed kernel matrix, leaf by leaf in walks through its tree.

A walk carries two vectors through each node, as long as its skeleton: ``up`` is what the coefficients of the node's rows bring to
its skeleton, and ``down`` what those of all other rows bring back. At a leaf they give the exact values of its rows, whatever was
changed elsewhere, and coordinate steps change the coefficients of these rows alone. Vectors of all nodes' skeletons are one after
the other in arrays as long as the matrix's ``skeletons``.

That the coefficients sum to 0 is left to the intercept, its multiplier: after each walk it moves by the sum times tau, and tau
follows by how much the last move changed the sum (the secant method on the dual function of the intercept).
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss.compositional import CompositionalMatrix, view_matrix
from streamsvm.batch.hss.trees import PartitionTree
from streamsvm.batch.problem import Bounds
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST
from streamsvm.core.sklearn_base import is_interrupt
from streamsvm.core.threads import raise_if_stopped


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
def _slice_node(M: CompositionalMatrix, vectors: np.ndarray, node: int) -> np.ndarray:
    """Return the part of a node."""
    return vectors[M.skeleton_starts[node] : M.skeleton_starts[node] + M.ranks[node]]


@compiled(nogil=True)
def _update_up(node: int, right: np.ndarray, M: CompositionalMatrix, up: np.ndarray) -> None:
    """Renew ``up`` of an inner node from those of its children."""
    rank, first, second = M.ranks[node], node + 1, right[node]
    if rank:
        middle = M.ranks[first]
        P = view_matrix(M.interpolations, M.interpolation_starts[node], middle + M.ranks[second], rank)
        to = _slice_node(M, up, node)
        to[:] = 0.0
        _add_transposed(P[:middle], _slice_node(M, up, first), to)
        _add_transposed(P[middle:], _slice_node(M, up, second), to)


@compiled(nogil=True)
def _update_down(node: int, second: bool, right: np.ndarray, M: CompositionalMatrix, up: np.ndarray, down: np.ndarray) -> None:
    """Renew ``down`` of a child of an inner node, the first or second one, from its sibling's ``up`` and the node's ``down``."""
    a, b = node + 1, right[node]
    block = view_matrix(M.blocks, M.block_starts[node], M.ranks[a], M.ranks[b])
    to = _slice_node(M, down, b if second else a)
    to[:] = 0.0
    if second:
        _add_transposed(block, _slice_node(M, up, a), to)
    else:
        _add_product(block, _slice_node(M, up, b), to)
    if M.ranks[node]:
        P = view_matrix(M.interpolations, M.interpolation_starts[node], M.ranks[a] + M.ranks[b], M.ranks[node])
        _add_product(P[M.ranks[a] :] if second else P[: M.ranks[a]], _slice_node(M, down, node), to)


@compiled(nogil=True)
def compute_upward_sums(
    begin: np.ndarray, end: np.ndarray, right: np.ndarray, M: CompositionalMatrix, b: np.ndarray, near: np.ndarray, up: np.ndarray
) -> None:
    """Compute the values ``near`` of all rows from the coefficients of their own leaf, and ``up`` of all nodes."""
    for node in range(len(begin) - 1, -1, -1):
        if right[node] >= 0:
            _update_up(node, right, M, up)
            continue
        m, x = end[node] - begin[node], b[begin[node] : end[node]]
        values, to = near[begin[node] : end[node]], _slice_node(M, up, node)
        values[:], to[:] = 0.0, 0.0
        _add_transposed(view_matrix(M.blocks, M.block_starts[node], m, m), x, values)
        _add_transposed(view_matrix(M.interpolations, M.interpolation_starts[node], m, M.ranks[node]), x, to)


@compiled(nogil=True)
def add_skeleton_weights(right: np.ndarray, M: CompositionalMatrix, down: np.ndarray, weights: np.ndarray) -> None:
    """Turn coefficients b, float64 [n], into weights: values anywhere in a leaf are kernel values with its rows times these.

    ``down`` must be that of the coefficients: as the last walk, without steps, left it.
    """
    for node in range(len(right)):
        rank = M.ranks[node]
        if right[node] < 0 and rank:
            shares = np.zeros(rank)
            _add_product(view_matrix(M.inverses, M.inverse_starts[node], rank, rank), _slice_node(M, down, node), shares)
            for i in range(rank):
                weights[M.skeletons[M.skeleton_starts[node] + i]] += shares[i]


@compiled(nogil=True)
def walk_tree(
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
    """Walk through the tree (see `PartitionTree`) from left to right, with ``passes`` of coordinate steps over each leaf, or 0.

    Updates the coefficients b float64 [n], and ``near`` and ``up``, see `compute_upward_sums`; writes ``down``. Curvatures below
    ``least`` count as this. Returns the sums over rows of the loss's Fenchel gap, of b f, and of the loss, each before the steps
    of the row's leaf.
    """
    gap, quadratic, loss = 0.0, 0.0, 0.0
    nodes, stages = [0], [0]
    while nodes:
        node, stage = nodes.pop(), stages.pop()
        if right[node] >= 0:
            if stage == 2:
                _update_up(node, right, M, up)
                continue
            _update_down(node, stage == 1, right, M, up, down)
            nodes.append(node)
            stages.append(stage + 1)
            nodes.append(right[node] if stage else node + 1)
            stages.append(0)
            continue
        some, m = slice(begin[node], end[node]), end[node] - begin[node]
        P = view_matrix(M.interpolations, M.interpolation_starts[node], m, M.ranks[node])
        K = view_matrix(M.blocks, M.block_starts[node], m, m)
        x, own, to = b[some], near[some], _slice_node(M, up, node)
        low, high, bend = lower[some], upper[some], kink[some]
        far = np.zeros(m)
        _add_product(P, _slice_node(M, down, node), far)
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


_PASSES = 4  # over the rows of a leaf, in each visit
_FIRST_TAU = 16.0  # times the mean self-kernel, over n
_FOLLOWED = 0.003  # of the gap: a sum that costs less says nothing about tau, unless it swings
_FALL, _RISE = 0.25, 4.0  # the factors of tau, at most
_LATER_RISE = 1.1  # the latter, once the sum has changed its sign: coefficients lag behind the intercept
_LEAST_CURVATURE = 1e-9  # of a coordinate, relative to the mean


class LossTerms(NamedTuple):
    """The part that the problems of a fit have in common, see `streamsvm.batch.problem`."""

    targets: np.ndarray  # float64 [n]; 0 for classification
    epsilon: float
    margin: float  # by how much the intercept may be off, for the gap: in the units of decision values
    classification: bool
    scale: float  # the mean self-kernel of the rows, above 0

    @staticmethod
    def from_targets(targets: np.ndarray, epsilon: float | None, scale: float) -> LossTerms:
        """Return the loss of targets, of which a tenth of the deviation is a margin at least; without epsilon, of two classes."""
        if epsilon is None:
            return LossTerms(targets, 1.0, 1.0, True, scale)
        return LossTerms(targets, epsilon, max(epsilon, 0.1 * float(targets.std())), False, scale)


class TreeSolution(NamedTuple):
    """The end of a descent."""

    b: np.ndarray  # float64 [n]: the coefficients
    bias: float
    weights: np.ndarray  # float64 [n]: of each row in the expansion by which the rows of its leaf are predicted
    objective: float  # the primal objective
    gap: float
    """The duality gap, relative to the objective; a sum of coefficients that is not 0 adds what a margin of intercept costs."""
    n_iter: int
    stopped: bool  # whether it was asked to stop before the gap was small enough


def descend_tree(
    cuts: PartitionTree,
    matrix: CompositionalMatrix,
    loss: LossTerms,
    bounds: Bounds,
    start: TreeSolution | None,
    tol: float,
    max_iter: int,
    stop: threading.Event,
) -> TreeSolution:
    """Solve a problem of n rows in the order of a tree's leaves: walk until the gap is at most ``tol``.

    The coefficients of ``start`` are clipped to the bounds; None: 0. The descent ends after its next walk where ``stop`` is set,
    as by an interrupt of the user after the first walk.

    A walk costs O(n r + changed m) for ranks r and leaves of m rows of which some change. The gap of a walk is that of each leaf
    as it was found: where it may have fallen to ``tol``, a walk without steps computes the true one.
    """
    n = len(loss.targets)
    tree = cuts.begin, cuts.end, cuts.right
    near, up, down = np.zeros(n), np.zeros(len(matrix.skeletons)), np.zeros(len(matrix.skeletons))
    b = np.zeros(n) if start is None else np.clip(start.b, bounds.lower, bounds.upper)
    bias = float(np.median(loss.targets)) if start is None else start.bias
    compute_upward_sums(*tree, matrix, b, near, up)
    constant = float((bounds.upper - bounds.lower).sum()) if loss.classification else 0.0
    tau, last, n_iter = _FIRST_TAU * loss.scale / n, 0.0, 0
    rise = _RISE
    excess = 1.0  # of the true gap over that of the walk before it

    def go(passes: int) -> tuple[float, float]:
        gap, quadratic, cost = walk_tree(
            *tree, matrix, loss.targets, loss.epsilon, *bounds, b, near, up, down, bias, _LEAST_CURVATURE * loss.scale, passes
        )
        return gap + loss.margin * abs(float(b.sum())), 0.5 * quadratic + cost + constant

    def end() -> TreeSolution:
        gap, objective = go(0)
        relative = float(gap / objective) if objective > 0.0 else 0.0
        weights = b.copy()
        add_skeleton_weights(cuts.right, matrix, down, weights)
        return TreeSolution(b, bias, weights, objective, relative, n_iter, stop.is_set() and relative > tol)

    try:
        while n_iter < max_iter:
            raise_if_stopped()
            gap, objective = go(_PASSES)
            n_iter += 1
            if stop.is_set():
                break
            if excess * gap <= tol * objective:
                true_gap, objective = go(0)
                if true_gap <= tol * objective:
                    break
                excess = max(excess, true_gap / gap)
            total = float(b.sum())
            if last and (loss.margin * abs(last) > _FOLLOWED * gap or total / last < -0.5):
                rise = _LATER_RISE if total * last < 0.0 else rise
                tau *= min(max(1.0 / max(1.0 - total / last, 1.0 / rise), _FALL), rise)
            bias, last = bias + tau * total, total
    except BaseException as error:
        if not (is_interrupt(error) and n_iter):
            raise
        stop.set()
    try:
        return end()
    except BaseException as error:
        if not is_interrupt(error):
            raise
        stop.set()
        return end()
