"""Dual block coordinate descent on a compositional kernel matrix, leaf by leaf in walks through its tree.

A walk updates two vectors for each node, both as long as its skeleton: ``up`` collects the coefficients of the node's rows at its
skeleton, and ``down`` contains the contributions of all other rows. At a leaf, they determine the exact decision values of its
rows, even if coefficients elsewhere have changed; coordinate steps then change the coefficients of the leaf's rows only. The
vectors of all nodes are stored one after the other, in arrays with the layout of the matrix's ``skeletons``.

The intercept is the multiplier of the constraint that the coefficients sum to 0: after each walk, it moves by the sum times tau,
and tau is adapted to how much the previous move changed the sum (the secant method for the dual function of the intercept).
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
    """Add the product of the matrix A float32 [m, k] and the vector x [k] to the vector y [m]."""
    for i in range(A.shape[0]):
        total = 0.0
        for j in range(A.shape[1]):
            total += A[i, j] * x[j]
        y[i] += total


@compiled(nogil=True, fastmath=FAST)
def _add_row(row: np.ndarray, factor: float, y: np.ndarray) -> None:
    """Add ``factor`` times the vector ``row`` to the vector y of the same length."""
    for j in range(len(row)):
        y[j] += factor * row[j]


@compiled(nogil=True)
def _add_transposed(A: np.ndarray, x: np.ndarray, y: np.ndarray) -> None:
    """Add the product of the transposed matrix A float32 [m, k] and the vector x [m] to the vector y [k]."""
    for i in range(A.shape[0]):
        if x[i] != 0.0:
            _add_row(A[i], x[i], y)


@compiled(nogil=True, inline=True)
def _slice_node(M: CompositionalMatrix, vectors: np.ndarray, node: int) -> np.ndarray:
    """Return the part of the flat array ``vectors`` that belongs to the tree's ``node``, as a view. The array contains a short
    vector for each node, at positions that the approximate kernel matrix M stores.
    """
    return vectors[M.skeleton_starts[node] : M.skeleton_starts[node] + M.ranks[node]]


@compiled(nogil=True)
def _update_up(node: int, right: np.ndarray, M: CompositionalMatrix, up: np.ndarray) -> None:
    """Recompute the vector of an inner ``node`` in ``up`` from those of its two children. It contains the dual coefficients of
    the node's rows, collected at the few rows from which M (the approximate kernel matrix) interpolates the others. ``right`` are
    the numbers of the right children.
    """
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
    """Recompute the vector of one child of an inner ``node`` in ``down``: the right child if ``second`` is True, otherwise the
    left one. It contains kernel sums with all rows outside the child, for the few rows from which M (the approximate kernel
    matrix) interpolates the child's others.
    """
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
    starts: np.ndarray,
    stops: np.ndarray,
    right: np.ndarray,
    M: CompositionalMatrix,
    b: np.ndarray,
    near: np.ndarray,
    up: np.ndarray,
) -> None:
    """Compute two sums from the dual coefficients ``b`` [n]. ``near`` [n] becomes the kernel sum of each row with the rows of its
    own leaf. ``up`` becomes, for each node of the tree, the coefficients of its rows, collected at the few rows from which M (the
    approximate kernel matrix) interpolates the others.
    """
    for node in range(len(starts) - 1, -1, -1):
        if right[node] >= 0:
            _update_up(node, right, M, up)
            continue
        m, x = stops[node] - starts[node], b[starts[node] : stops[node]]
        values, to = near[starts[node] : stops[node]], _slice_node(M, up, node)
        values[:], to[:] = 0.0, 0.0
        _add_transposed(view_matrix(M.blocks, M.block_starts[node], m, m), x, values)
        _add_transposed(view_matrix(M.interpolations, M.interpolation_starts[node], m, M.ranks[node]), x, to)


@compiled(nogil=True)
def add_skeleton_weights(right: np.ndarray, M: CompositionalMatrix, down: np.ndarray, weights: np.ndarray) -> None:
    """Convert the dual coefficients in ``weights`` float64 [n] in place, so that predictions need only the rows of one leaf: the
    contribution ``down`` of all rows outside a leaf is added to the few rows from which the approximate kernel matrix M
    interpolates it.

    The value at any point in a leaf is the sum of its kernel values with the leaf's rows times these weights. ``down`` must
    belong to the coefficients: a walk without steps computes it.
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
    starts: np.ndarray,
    stops: np.ndarray,
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
    min_curvature: float,
    passes: int,
) -> tuple[float, float, float]:
    """Visit the leaves of the tree from left to right, and improve the dual coefficients ``b`` float64 [n] of their rows in
    place, by ``passes`` passes of coordinate descent in each leaf. Returns three sums over all rows, computed before the steps:
    the duality gap, the quadratic term and the loss.

    Updates ``near`` and ``up`` (see `compute_upward_sums`), too, and writes ``down``. The three sums are over all rows, computed
    before the steps of their leaf: the gap in Fenchel's inequality, b f for decision values f without the intercept, and the
    loss. Each node is visited in three stages: before its left child, between its children, and after its right child.
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
        rows, m = slice(starts[node], stops[node]), stops[node] - starts[node]
        P = view_matrix(M.interpolations, M.interpolation_starts[node], m, M.ranks[node])
        K = view_matrix(M.blocks, M.block_starts[node], m, m)
        x, leaf_sums, to = b[rows], near[rows], _slice_node(M, up, node)
        low, high, bend = lower[rows], upper[rows], kink[rows]
        far = np.zeros(m)
        _add_product(P, _slice_node(M, down, node), far)
        for i in range(m):
            f = far[i] + leaf_sums[i]
            far[i] += bias - targets[starts[node] + i]  # so that far + leaf_sums is the decision value minus the target
            v = -(far[i] + leaf_sums[i])
            cost = max(v * low[i] - epsilon * abs(low[i] - bend[i]), v * high[i] - epsilon * abs(high[i] - bend[i]), v * bend[i])
            gap += cost - v * x[i] + epsilon * abs(x[i] - bend[i])
            quadratic += x[i] * f
            loss += cost
        for _ in range(passes):
            changed = False
            for i in range(m):
                curvature = max(np.float64(K[i, i]), min_curvature)
                z, width = x[i] - (far[i] + leaf_sums[i]) / curvature, epsilon / curvature
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
                    _add_row(K[i], step, leaf_sums)
                    _add_row(P[i], step, to)
                    changed = True
            if not changed:
                break
    return gap, quadratic, loss


_PASSES_PER_LEAF = 4
_FIRST_TAU = 16.0  # times the mean self-kernel, divided by n
_MIN_SUM_COST = 0.003  # relative to the gap: if the sum of the coefficients costs less, tau changes only if the sum oscillates
_MIN_TAU_FACTOR, _MAX_TAU_FACTOR = 0.25, 4.0  # for a change of tau
_LATE_MAX_TAU_FACTOR = 1.1  # after the sum has changed its sign, because coefficients lag behind the intercept
_MIN_CURVATURE = 1e-9  # of a coordinate, relative to the mean


class LossTerms(NamedTuple):
    """The data that the dual problems of a fit have in common; see `streamsvm.batch.problem`."""

    targets: np.ndarray  # float64 [n]; 0 for classification
    epsilon: float
    margin: float  # the error of the intercept that the gap allows for, in units of decision values
    classification: bool
    scale: float  # the mean self-kernel of the rows, above 0

    @staticmethod
    def from_targets(targets: np.ndarray, epsilon: float | None, scale: float) -> LossTerms:
        """Return the data about targets and loss that the dual problems of a fit share: of a regression with this ``epsilon``, or
        without one, of a classification. ``scale`` is the mean kernel value of a row with itself.

        The margin of regression is epsilon, or a tenth of the targets' standard deviation if that is larger.
        """
        if epsilon is None:
            return LossTerms(targets, 1.0, 1.0, True, scale)
        return LossTerms(targets, epsilon, max(epsilon, 0.1 * float(targets.std())), False, scale)


class TreeSolution(NamedTuple):
    """The solution of one problem with the kernel of one tree."""

    b: np.ndarray  # float64 [n]: the coefficients
    bias: float
    weights: np.ndarray  # float64 [n]: leaf weights, with which rows in the same leaf are predicted
    objective: float  # the primal objective
    gap: float
    """The duality gap relative to the objective, plus the cost of a sum of coefficients that is not 0: the margin times the sum.
    """
    n_iter: int
    stopped: bool  # whether the descent was stopped before the gap was small enough


def descend_tree(
    tree: PartitionTree,
    matrix: CompositionalMatrix,
    loss: LossTerms,
    bounds: Bounds,
    start: TreeSolution | None,
    tol: float,
    max_iter: int,
    stop: threading.Event,
) -> TreeSolution:
    """Solve a dual problem by coordinate descent with the approximate kernel ``matrix`` of a ``tree``, and return the solution.
    It walks over all leaves until the relative duality gap is at most ``tol``, or ``max_iter`` times. ``start`` is an earlier
    solution to start from (None: zeros), and ``stop`` can end it early.

    The descent starts from the coefficients of ``start``, clipped to the bounds, or from 0. Once ``stop`` is set, it ends after
    its next walk. An interrupt of the user after the first walk sets ``stop``.

    O(n r + changed m) for each walk, with ranks r and leaves of m rows, where the coefficients of some rows change. A walk
    measures the gap of each leaf before its steps: when that sum may be below ``tol``, a walk without steps computes the true
    gap.
    """
    n = len(loss.targets)
    nodes = tree.starts, tree.stops, tree.right
    near, up, down = np.zeros(n), np.zeros(len(matrix.skeletons)), np.zeros(len(matrix.skeletons))
    b = np.zeros(n) if start is None else np.clip(start.b, bounds.lower, bounds.upper)
    bias = float(np.median(loss.targets)) if start is None else start.bias
    compute_upward_sums(*nodes, matrix, b, near, up)
    constant = float((bounds.upper - bounds.lower).sum()) if loss.classification else 0.0
    tau, previous_sum, n_iter = _FIRST_TAU * loss.scale / n, 0.0, 0
    max_factor = _MAX_TAU_FACTOR
    gap_ratio = 1.0  # of the true gap to that of the walk before it

    def run_walk(passes: int) -> tuple[float, float]:
        """Walk over all leaves with ``passes`` passes of coordinate descent in each. Return the absolute duality gap before the
        steps and the primal objective.
        """
        gap, quadratic, cost = walk_tree(
            *nodes, matrix, loss.targets, loss.epsilon, *bounds, b, near, up, down, bias, _MIN_CURVATURE * loss.scale, passes
        )
        return gap + loss.margin * abs(float(b.sum())), 0.5 * quadratic + cost + constant

    def make_solution() -> TreeSolution:
        """Return the current solution, with its relative duality gap and the weights for predictions."""
        gap, objective = run_walk(0)
        relative_gap = float(gap / objective) if objective > 0.0 else 0.0
        weights = b.copy()
        add_skeleton_weights(tree.right, matrix, down, weights)
        return TreeSolution(b, bias, weights, objective, relative_gap, n_iter, stop.is_set() and relative_gap > tol)

    try:
        while n_iter < max_iter:
            raise_if_stopped()
            gap, objective = run_walk(_PASSES_PER_LEAF)
            n_iter += 1
            if stop.is_set():
                break
            if gap_ratio * gap <= tol * objective:
                true_gap, objective = run_walk(0)
                if true_gap <= tol * objective:
                    break
                gap_ratio = max(gap_ratio, true_gap / gap)
            b_sum = float(b.sum())
            if previous_sum and (loss.margin * abs(previous_sum) > _MIN_SUM_COST * gap or b_sum / previous_sum < -0.5):
                max_factor = _LATE_MAX_TAU_FACTOR if b_sum * previous_sum < 0.0 else max_factor
                tau *= min(max(1.0 / max(1.0 - b_sum / previous_sum, 1.0 / max_factor), _MIN_TAU_FACTOR), max_factor)
            bias, previous_sum = bias + tau * b_sum, b_sum
    except BaseException as error:
        if not (is_interrupt(error) and n_iter):
            raise
        stop.set()
    try:
        return make_solution()
    except BaseException as error:
        if not is_interrupt(error):
            raise
        stop.set()
        return make_solution()
