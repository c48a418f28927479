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
from streamsvm.batch.hss_admm.iteration import GAP, ADMMOptions, ADMMSolution, admm
from streamsvm.batch.problem import Bounds
from streamsvm.batch.tree_descent import Loss, Solution, descend
from streamsvm.core.progress import shown

_ROWS = 256  # random rows, and rows at the margin of all problems together
_LEAST_ROWS = 64  # rows at the margin of each problem, if it has so many
_FAR = 2.0  # margins; rows whose values are farther from 0 are classified alike
_CLEARLY = 0.9  # an intercept is changed if the cost of the rows sinks at least to this part


def compare_values(
    K: HSSMatrix, targets: np.ndarray, b: np.ndarray, bias: np.ndarray, bounds: Bounds, epsilon: float, *, regression: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Return for each problem what to add to its bias, which fits the compressed matrix, and how far values are off then.

    The error, float64 [problems], is the root mean square over rows at the margin, or over random rows if that is more; values
    beyond twice the margin count as there. For regression, rows at the margin determine the bias. For classification these may be
    few, and where many rows of a class are close to the margin, a small shift takes many across: the bias is the one at which
    random rows of both classes cost least, if they cost clearly less. O(rows (d + problems)) for each of the n rows of ``b``
    float64 [n, problems].
    """
    n, problems = b.shape
    order = np.random.default_rng(0).permutation(n)
    strata, weights = _strata(order, bounds)
    # Problems take rows in one order, since rows at the margin of one are often at that of another: the time of exact products
    # depends on rows more than on columns.
    at_margin = (b > bounds.lower) & (b < bounds.upper) & (b != bounds.kink)
    margins = [order[of[order]][: max(_ROWS // problems, _LEAST_ROWS)] for of in at_margin.T]
    rows = np.unique(np.concatenate([strata, *margins]))
    compressed, exact = (K @ b)[rows], K.exact_product(rows, b)
    random_rows = np.searchsorted(rows, strata)
    shift, error = np.zeros(problems), np.empty(problems)
    for k, margin in enumerate(margins):
        at = np.searchsorted(rows, margin) if len(margin) else random_rows
        difference, far = compressed[:, k] - exact[:, k], np.inf
        if regression:
            shift[k] = difference[at].mean()
        else:
            far = _FAR
            sides = Bounds(*(side[strata, k] for side in bounds))
            shift[k] = _cheapest(exact[random_rows, k] + bias[k], targets[strata], sides, weights, epsilon)
        apart = np.clip(compressed[:, k] + bias[k], -far, far) - np.clip(exact[:, k] + bias[k] + shift[k], -far, far)
        margin_error = np.sqrt(np.mean((difference[at] - shift[k]) ** 2)) if len(margin) else 0.0
        error[k] = max(margin_error, np.sqrt(np.mean(apart[random_rows] ** 2)))
    return shift, error


def _strata(order: np.ndarray, bounds: Bounds) -> tuple[np.ndarray, np.ndarray]:
    """Return random rows, equally many of each class, and how many rows each of them stands for."""
    sides = np.sign(bounds.lower[:, 0] + bounds.upper[:, 0])[order]
    kinds = np.unique(sides)
    taken = [order[sides == kind][: _ROWS // len(kinds)] for kind in kinds]
    weights = [np.full(len(of), (sides == kind).sum() / len(of)) for of, kind in zip(taken, kinds, strict=True)]
    return np.concatenate(taken), np.concatenate(weights)


def _cheapest(f: np.ndarray, targets: np.ndarray, bounds: Bounds, weights: np.ndarray, epsilon: float) -> float:
    """Return what to add to values f [m] so that the rows cost least, or 0 if they do not cost clearly less then."""
    # The cost is piecewise linear: its minimum is where one of the pieces ends.
    places = (targets - f + np.array([[-epsilon], [0.0], [epsilon]])).ravel()
    slopes = targets - f - np.concatenate([[0.0], places])[:, np.newaxis]
    losses = [end * slopes - epsilon * np.abs(end - bounds.kink) + epsilon * np.abs(bounds.kink) for end in bounds]
    costs = np.max(losses, axis=0) @ weights
    best = int(costs.argmin())
    return float(places[best - 1]) if costs[best] < _CLEARLY * costs[0] else 0.0


class Results:
    """The results of some problems: a column of ``b`` and ``multipliers``, and an element of the other arrays, for each."""

    def __init__(self, n: int, problems: int, margin: float) -> None:
        self.b: np.ndarray = np.zeros((n, problems))
        self.multipliers: np.ndarray = np.zeros((n, problems))
        self.bias: np.ndarray = np.zeros(problems)
        self.beta: np.ndarray = np.zeros(problems)
        self.primal: np.ndarray = np.zeros(problems)
        self.dual: np.ndarray = np.zeros(problems)
        self.gap: np.ndarray = np.zeros(problems)
        self.n_iter: np.ndarray = np.zeros(problems, np.int64)
        self.residual: np.ndarray = np.full(problems, np.inf)
        self.exact: np.ndarray = np.zeros(problems, bool)  # whether the exact kernel's problem was solved
        self.shift: np.ndarray = np.zeros(problems)  # as `compare_values` returns it, and the next
        self.value_error: np.ndarray = np.zeros(problems)
        self.compressions: dict[int, tuple[float, np.ndarray, int]] = {}  # error, ranks and bytes of each problem's matrix
        self.margin = margin
        self.interrupted: bool = False

    def put(self, which: np.ndarray, K: HSSMatrix, solution: ADMMSolution, comparison: tuple[np.ndarray, np.ndarray]) -> None:
        """Take the solution of the problems ``which`` with matrix K."""
        for name in ("b", "multipliers", "bias", "beta", "primal", "dual", "gap", "residual"):
            getattr(self, name)[..., which] = getattr(solution, name)
        self.shift[which], self.value_error[which] = comparison
        self.compressions.update(dict.fromkeys(which.tolist(), (K.error, K.ranks, K.nbytes)))
        self.n_iter[which] += solution.n_iter
        self.interrupted = solution.interrupted

    def put_walks(self, number: int, K: HSSMatrix, solution: Solution) -> None:
        """Take what a descent found for a problem with matrix K. Its gap is held against the tolerance itself."""
        self.b[K.order, number], self.bias[number], self.gap[number] = solution.b, solution.bias, solution.gap
        self.residual[number] = solution.gap
        self.n_iter[number] += solution.n_iter
        self.compressions[number] = K.error, K.ranks, K.nbytes

    def put_exact(self, number: int, b: np.ndarray, bias: float, gap: float) -> None:
        self.b[:, number], self.bias[number], self.gap[number] = b, bias, gap
        self.residual[number], self.exact[number] = gap / GAP, True


CLOSE = 0.2
"""A gap above so many times the tolerance of the residuals is worth more time, though it need not be smaller."""

_WALKS = 30  # of the first descent
_MORE_WALKS = 270  # of the second


class Problems(NamedTuple):
    """The problems of a fit, on one compressed matrix."""

    K: HSSMatrix
    loss: Loss
    bounds: list[Bounds]  # of each problem, for rows as they were given
    paths: list[list[int]]  # numbers of the problems of each machine, with increasing C
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
    names = ("b", "multipliers", "bias", "primal", "dual", "gap", "n_iter")
    chosen = solution._replace(**{name: getattr(solution, name)[..., better] for name in names})
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
