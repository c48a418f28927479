"""Block coordinate descent on the dual problem of a compressed kernel matrix, leaf by leaf in walks through its tree.

A walk carries two vectors through each node, as long as its skeleton: ``up`` is what the coefficients of the node's rows bring to
its skeleton, and ``down`` what those of all other rows bring back. At a leaf they give the exact values of its rows, whatever was
changed elsewhere, and coordinate steps change the coefficients of these rows alone.

That the coefficients sum to 0 is left to the intercept, its multiplier: after each walk it moves by the sum times tau, and tau
follows by how much the last move changed the sum (the secant method on the dual function of the intercept).
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss.compositional import CompositionalMatrix
from streamsvm.batch.hss.cuts import Cuts
from streamsvm.batch.problem import Bounds
from streamsvm.batch.tree_descent.walk import leaf_weights, lift, walk
from streamsvm.core.sklearn_base import is_interrupt
from streamsvm.core.threads import stop_if_asked

__all__ = ["Loss", "Solution", "descend"]

_PASSES = 4  # over the rows of a leaf, in each visit
_FIRST_TAU = 16.0  # times the mean self-kernel, over n
_FOLLOWED = 0.003  # of the gap: a sum that costs less says nothing about tau, unless it swings
_FALL, _RISE = 0.25, 4.0  # the factors of tau, at most
_LATER_RISE = 1.1  # the latter, once the sum has changed its sign: coefficients lag behind the intercept
_LEAST_CURVATURE = 1e-9  # of a coordinate, relative to the mean


class Loss(NamedTuple):
    """The part that the problems of a fit have in common, see `streamsvm.batch.problem`."""

    targets: np.ndarray
    """float64 [n]; 0 for classification."""
    epsilon: float
    margin: float
    """By how much the intercept may be off, for the gap: in the units of decision values."""
    classification: bool
    scale: float
    """The mean self-kernel of the rows, above 0."""

    @staticmethod
    def of(targets: np.ndarray, epsilon: float | None, scale: float) -> Loss:
        """Return the loss of targets, of which a tenth of the deviation is a margin at least; without epsilon, of two classes."""
        if epsilon is None:
            return Loss(targets, 1.0, 1.0, True, scale)
        return Loss(targets, epsilon, max(epsilon, 0.1 * float(targets.std())), False, scale)


class Solution(NamedTuple):
    """The end of a descent."""

    b: np.ndarray
    """float64 [n]: the coefficients."""
    bias: float
    weights: np.ndarray
    """float64 [n]: of each row in the expansion by which the rows of its leaf are predicted, if the matrix has what it takes,
    ``inverses``; else b.
    """
    objective: float
    """The primal objective."""
    gap: float
    """The duality gap, relative to the objective; a sum of coefficients that is not 0 adds what a margin of intercept costs."""
    n_iter: int
    stopped: bool
    """Whether it was asked to stop before the gap was small enough."""


def descend(
    cuts: Cuts,
    matrix: CompositionalMatrix,
    loss: Loss,
    bounds: Bounds,
    start: Solution | None,
    tol: float,
    max_iter: int,
    stop: threading.Event,
) -> Solution:
    """Solve a problem of n rows in the order of a tree's leaves: walk until the gap is at most ``tol``.

    Parameters
    ----------
    cuts, matrix
        The tree and its matrix.
    loss, bounds
        The problem.
    start
        Where to start from; its coefficients are clipped to the bounds. None: 0.
    tol
        At least 0.
    max_iter
        Walks, at most; at least 1.
    stop
        Ends the descent after its next walk, where it is set. An interrupt of the user, after the first walk, sets it.

    Notes
    -----
    A walk costs O(n r + changed m) for ranks r and leaves of m rows of which some change. The gap of a walk is that of each leaf
    as it was found: where it may have fallen to ``tol``, a walk without steps computes the true one.
    """
    n = len(loss.targets)
    tree = cuts.begin, cuts.end, cuts.right
    near, up, down = np.zeros(n), np.zeros(len(matrix.skeletons)), np.zeros(len(matrix.skeletons))
    b = np.zeros(n) if start is None else np.clip(start.b, bounds.lower, bounds.upper)
    bias = float(np.median(loss.targets)) if start is None else start.bias
    lift(*tree, matrix, b, near, up)
    constant = float((bounds.upper - bounds.lower).sum()) if loss.classification else 0.0
    tau, last, n_iter = _FIRST_TAU * loss.scale / n, 0.0, 0
    rise = _RISE
    excess = 1.0  # of the true gap over that of the walk before it

    def go(passes: int) -> tuple[float, float]:
        gap, quadratic, cost = walk(
            *tree, matrix, loss.targets, loss.epsilon, *bounds, b, near, up, down, bias, _LEAST_CURVATURE * loss.scale, passes
        )
        return gap + loss.margin * abs(float(b.sum())), 0.5 * quadratic + cost + constant

    def end() -> Solution:
        gap, objective = go(0)
        relative = float(gap / objective) if objective > 0.0 else 0.0
        weights = leaf_weights(cuts.right, matrix, b, down) if len(matrix.inverses) else b
        return Solution(b, bias, weights, objective, relative, n_iter, stop.is_set() and relative > tol)

    try:
        while n_iter < max_iter:
            stop_if_asked()
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
