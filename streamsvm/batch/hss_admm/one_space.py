"""A fit that predicts with the kernel that it was trained with: descent along the tree, then ADMM where that is slow.

Descent changes the coefficients of one leaf at a time. That is quick for all that a kernel tells apart within a leaf, and slow
for what is common to many leaves, as of broad kernels; the factorisation of ADMM takes that at once, and costs as much as many
walks.
"""

from __future__ import annotations

import threading
from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss import HSSMatrix
from streamsvm.batch.hss_admm.accuracy import compare_values
from streamsvm.batch.hss_admm.iteration import ADMMOptions, admm
from streamsvm.batch.hss_admm.results import Results
from streamsvm.batch.problem import Bounds
from streamsvm.batch.tree_descent.descent import Loss, Solution, descend
from streamsvm.core.progress import shown

__all__ = ["CLOSE", "Problems", "compare", "go_on", "start"]

CLOSE = 0.2
"""A gap above so many times the tolerance of the residuals is worth more time, though it need not be smaller."""

_WALKS = 30  # of the first descent
_MORE_WALKS = 270  # of the second


class Problems(NamedTuple):
    """The problems of a fit, on one compressed matrix."""

    K: HSSMatrix
    loss: Loss
    bounds: list[Bounds]
    """Of each problem, for rows as they were given."""
    paths: list[list[int]]
    """Numbers of the problems of each machine, with increasing C."""
    tol: float
    max_iter: int
    verbose: bool = False


def start(problems: Problems) -> Results:
    """Descend to a solution of each problem, from that of the next smaller C, with few walks.

    An interrupt ends the descent, and each problem after it gets one walk; before the first walk has ended it is raised.
    """
    results = Results(len(problems.loss.targets), len(problems.bounds), problems.loss.margin)
    _descend(problems, results, problems.paths, min(_WALKS, problems.max_iter), going_on=False)
    return results


def go_on(problems: Problems, results: Results, which: np.ndarray, options: ADMMOptions) -> None:
    """Solve the problems ``which`` from where they are: with more walks, and then by ADMM."""
    left = int(problems.max_iter - results.n_iter[which].max(initial=0))
    if left and len(which):
        _descend(problems, results, [[number] for number in which.tolist()], min(_MORE_WALKS, left), going_on=True)
        slow = which[results.residual[which] > problems.tol]
        left = int(problems.max_iter - results.n_iter[which].max())
        if len(slow) and left and not results.interrupted:
            _iterate(problems, results, slow, options._replace(max_iter=left))


def _descend(problems: Problems, results: Results, paths: list[list[int]], walks: int, *, going_on: bool) -> None:
    order, stop = problems.K.order, threading.Event()
    cuts, matrix = problems.K.compositional()
    loss = problems.loss._replace(targets=problems.loss.targets[order])
    solution: Solution | None = None
    numbers, firsts = [number for path in paths for number in path], {path[0] for path in paths}
    for place in shown(range(len(numbers)), "descents", problems.verbose):
        number = numbers[place]
        if going_on:
            b, bias = results.b[order, number], float(results.bias[number])
            solution = Solution(b, bias, b, 0.0, float(results.gap[number]), 0, False)
        elif number in firsts:
            solution = None
        bounds = Bounds(*(side[order] for side in problems.bounds[number]))
        solution = descend(cuts, matrix, loss, bounds, solution, 0.5 * CLOSE * problems.tol, walks, stop)
        results.put_walks(number, problems.K, solution)
    results.interrupted = stop.is_set()


def _iterate(problems: Problems, results: Results, which: np.ndarray, options: ADMMOptions) -> None:
    K, (targets, epsilon) = problems.K, problems.loss[:2]
    b, bias = results.b[:, which], results.bias[which]
    multipliers = targets[:, np.newaxis] - K @ b - bias  # those of a solution whose values these are
    bounds = _side_by_side([problems.bounds[number] for number in which])
    try:
        solution = admm(K, targets, epsilon, bounds, options, (b, multipliers))
    except KeyboardInterrupt:  # before the first iteration has ended: the walks are there
        results.interrupted = True
        return
    better = solution.gap < results.gap[which]
    chosen = solution._replace(
        **{name: getattr(solution, name)[..., better] for name in ("b", "multipliers", "bias", "primal", "dual", "gap", "n_iter")}
    )
    kept = which[better]
    results.n_iter[which[~better]] += solution.n_iter[~better]
    results.put(kept, K, chosen, (results.shift[kept], results.value_error[kept]))


def compare(problems: Problems, results: Results) -> None:
    """Find how far values of the solutions are from the exact kernel's."""
    loss, bounds = problems.loss, _side_by_side(problems.bounds)
    results.value_error = compare_values(
        problems.K, loss.targets, results.b, results.bias, bounds, loss.epsilon, regression=not loss.classification
    )[1]


def _side_by_side(bounds: list[Bounds]) -> Bounds:
    return Bounds(*(np.column_stack(sides) for sides in zip(*bounds, strict=True)))
