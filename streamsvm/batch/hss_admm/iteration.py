"""Solutions of problems on a compressed kernel matrix: the alternating direction method of multipliers (ADMM), or walks first.

The problem of `streamsvm.batch.problem` is split into the quadratic part with the sum, in x, and the rest, in z. This is
algorithm 2 of Cipolla and Gondzio (2021), with their beta and u = mu / beta; their algorithm 3 writes x_k where q_k is meant.
Problems that differ only in their bounds are solved together: they share one factorisation, and each is a column.

A fit that predicts with the kernel that it was trained with descends along the tree, then takes ADMM where that is slow. Descent
changes the coefficients of one leaf at a time. That is quick for all that a kernel tells apart within a leaf, and slow for what
is common to many leaves, as of broad kernels; the factorisation of ADMM takes that at once, and costs as much as many walks.
"""

from __future__ import annotations

import math
import threading
from typing import NamedTuple

import numpy as np

from streamsvm.batch.hss import HSSFactorization, HSSMatrix
from streamsvm.batch.problem import Bounds
from streamsvm.batch.tree_descent import Loss, Solution, descend
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.progress import shown
from streamsvm.core.sklearn_base import is_interrupt
from streamsvm.core.threads import stop_if_asked

GAP = 10.0
"""The relative duality gap may be so many times the tolerance of the residuals."""

_CHECK_EVERY = 5  # iterations, since a check costs a product
_FIRST_BALANCE = 5  # iterations before beta may first change; then after twice as many each time
_BALANCED = 4.0  # beta changes if one residual is more than so many times the other
_LARGEST_CHANGE = 30.0
_CONSTANT_PART = 0.1  # the gap is relative at least to this part of the cost of a constant
_LEAST_BETA = 1e-9  # times the largest self-kernel; residuals that ask for less cannot be balanced


class ADMMOptions(NamedTuple):
    """Parameters of the iterations; ``balance``: whether beta follows the residuals."""

    beta: float
    balance: bool
    relaxation: float
    tol: float
    max_iter: int
    verbose: bool


class ADMMSolution(NamedTuple):
    """A column, or a number, for each problem."""

    b: np.ndarray
    multipliers: np.ndarray  # mu, with which and b another run can go on
    bias: np.ndarray
    primal: np.ndarray
    """The relative difference of K~ x and K~ z. (That of x and z says little: a smooth kernel makes small differences of values
    from large ones of coefficients.)
    """
    dual: np.ndarray  # how much z still moves, in the optimality conditions, relative to their largest part
    gap: np.ndarray
    """The duality gap with K~ in place of K, as if the sum were zero, relative to the primal objective, or to a tenth of the cost
    of a constant if that is more.
    """
    n_iter: np.ndarray
    beta: float  # the last beta
    n_factorizations: int
    interrupted: bool

    @property
    def residual(self) -> np.ndarray:
        """The largest of the residuals and of the gap divided by `GAP`: at most the tolerance at the end."""
        return _residual(self.primal, self.dual, self.gap)


def admm(
    K: HSSMatrix,
    targets: np.ndarray,
    epsilon: float,
    bounds: Bounds,
    options: ADMMOptions,
    start: tuple[np.ndarray, np.ndarray] | None = None,
) -> ADMMSolution:
    """Solve problems with ``targets`` float64 [n] and bounds float64 [n, problems], from ``start``: ``b`` and ``multipliers``.

    An interrupt ends the iterations; before the first of them has ended it is raised. K~ has no negative eigenvalue, hence this
    converges for every beta above 0 and relaxation between 0 and 2. O(n (m + r)) for each iteration and running problem.
    """
    n, problems = bounds.lower.shape
    middle = float(np.median(targets))  # the coefficients' sum is zero: an offset of the targets is one of the bias
    beta, due, factorizations, interrupted = options.beta, _FIRST_BALANCE, 0, False
    b, multipliers = np.empty((n, problems)), np.empty((n, problems))
    primal, dual, gap = np.full((3, problems), np.inf)
    bias, n_iter = np.full(problems, middle), np.zeros(problems, np.int64)
    found = ADMMSolution(b, multipliers, bias, primal, dual, gap, n_iter, beta, 0, False)
    # From here on rows are in the order of the compressed matrix.
    rows = K.order
    t, bounds = (targets - middle)[rows], Bounds(*(side[rows] for side in bounds))
    z, u = (np.zeros((n, problems)), np.zeros((n, problems))) if start is None else (start[0][rows], start[1][rows] / beta)
    right_side = t[:, np.newaxis] + beta * (z - u)
    Kx, constant_cost = np.empty_like(z), _constant_cost(t, epsilon, bounds)
    least = _LEAST_BETA * (K.largest_diagonal or 1.0)
    running = np.arange(problems)  # each has a column of z, u, right_side and Kx

    def end(ended: np.ndarray) -> None:
        for into, columns in ((found.b, z), (found.multipliers, beta * u)):
            into[np.ix_(rows, running[ended])] = columns[:, ended]

    factor: HSSFactorization | None = None
    try:
        for done in shown(range(1, options.max_iter + 1), "iterations", options.verbose):
            stop_if_asked()
            if factor is None:
                factor = K.factorize(beta)
                ones = factor.solve(np.ones(n), ordered=True)
                factorizations += 1
            x = factor.solve(right_side, ordered=True)
            bias = x.sum(axis=0) / ones.sum()  # the multiplier of the sum
            moved, size = _advance(x, ones, bias, z, u, right_side, Kx, t, beta, options.relaxation, epsilon, bounds)
            found.bias[running], found.n_iter[running] = bias + middle, done
            if done % _CHECK_EVERY and done < options.max_iter:
                continue
            apart, values = K.product(x, ordered=True), np.linalg.norm(Kx, axis=0)
            primal = _relative(np.linalg.norm(apart, axis=0), values)
            dual = _relative(beta * moved, np.maximum(beta * size, values + np.linalg.norm(t)))
            gap = _gap(Kx - apart, z, bias, t, epsilon, bounds, _CONSTANT_PART * constant_cost)
            found.primal[running], found.dual[running], found.gap[running] = primal, dual, gap
            ended = _residual(primal, dual, gap) <= options.tol
            if ended.any():
                end(ended)
                z, u, right_side, Kx, *sides = (np.ascontiguousarray(of[:, ~ended]) for of in (z, u, right_side, Kx, *bounds))
                bounds = Bounds(*sides)
                running, primal, dual, constant_cost = running[~ended], primal[~ended], dual[~ended], constant_cost[~ended]
                if not len(running):
                    break
            if options.balance and done == due:
                due *= 2
                change = max(_change(primal, dual), min(least / beta, 1.0))
                if change != 1.0:
                    beta, u, factor = beta * change, u / change, None
                    right_side = t[:, np.newaxis] + beta * (z - u)
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interrupt(error):
            raise
        if not found.n_iter.all():  # no iteration has ended
            raise KeyboardInterrupt from None
        interrupted = True
    end(np.ones(len(running), bool))
    return found._replace(beta=beta, n_factorizations=factorizations, interrupted=interrupted)


@compiled(nogil=True)
def _advance(
    x: np.ndarray,
    ones: np.ndarray,
    bias: np.ndarray,
    z: np.ndarray,
    u: np.ndarray,
    right_side: np.ndarray,
    Kx: np.ndarray,
    targets: np.ndarray,
    beta: float,
    relaxation: float,
    epsilon: float,
    bounds: Bounds,
) -> tuple[np.ndarray, np.ndarray]:
    """Do one iteration from x and ``ones``, the solutions of (K~ + beta I) for ``right_side`` and for ones.

    Changes z, u and right_side, and writes x - z into x and K~ x into Kx. Returns the norms of the change of z and of u, float64
    [problems] each.
    """
    n, problems = x.shape
    moved, size = np.zeros(problems), np.zeros(problems)
    width = epsilon / beta
    for i in range(n):
        for k in range(problems):
            x_ik = x[i, k] - ones[i] * bias[k]
            Kx[i, k] = right_side[i, k] - beta * x_ik - bias[k]
            relaxed = relaxation * x_ik + (1.0 - relaxation) * z[i, k]
            v = relaxed + u[i, k]
            # argmin over z of width |z - kink| + 1/2 (z - v)^2 within the bounds
            kink = bounds.kink[i, k]
            new = v + width if v + width < kink else v - width if v - width > kink else kink
            new = min(max(new, bounds.lower[i, k]), bounds.upper[i, k])
            moved[k] += (new - z[i, k]) ** 2
            left = v - new
            size[k] += left**2
            z[i, k], u[i, k], x[i, k] = new, left, x_ik - new
            right_side[i, k] = targets[i] + beta * (new - left)
    return np.sqrt(moved), np.sqrt(size)


@compiled(nogil=True)
def _gap(
    Kz: np.ndarray, z: np.ndarray, bias: np.ndarray, targets: np.ndarray, epsilon: float, bounds: Bounds, least: np.ndarray
) -> np.ndarray:
    """Return the duality gap of each problem at z, relative to the primal objective, or to ``least`` if that is more.

    It is the sum over rows of the slack in Fenchel's inequality, which is never below 0.
    """
    n, problems = z.shape
    gap, primal = np.zeros(problems), np.zeros(problems)
    for i in range(n):
        for k in range(problems):
            b, kink, slope = z[i, k], bounds.kink[i, k], targets[i] - Kz[i, k] - bias[k]
            loss = _loss(slope, bounds.lower[i, k], bounds.upper[i, k], kink, epsilon)
            gap[k] += loss - epsilon * abs(kink) - b * slope + epsilon * abs(b - kink)
            primal[k] += 0.5 * b * Kz[i, k] + loss
    return gap / np.maximum(np.maximum(primal, least), 1e-300)


@compiled(nogil=True)
def _loss(slope: float, lower: float, upper: float, kink: float, epsilon: float) -> float:
    """Return the loss of a row whose target minus value is ``slope``: the largest of b slope - epsilon |b - kink| over b.

    epsilon |kink| is added, with which a row beyond the margin has loss 0.
    """
    largest = kink * slope
    for end in (lower, upper):
        largest = max(largest, end * slope - epsilon * abs(end - kink))
    return largest + epsilon * abs(kink)


@compiled(nogil=True)
def _constant_cost(targets: np.ndarray, epsilon: float, bounds: Bounds) -> np.ndarray:
    """Return the cost of all rows with the best of three constant values, for each problem: those of both classes, and 0."""
    n, problems = bounds.lower.shape
    best = np.full(problems, np.inf)
    for constant in (-epsilon, 0.0, epsilon):
        costs = np.zeros(problems)
        for i in range(n):
            for k in range(problems):
                costs[k] += _loss(targets[i] - constant, bounds.lower[i, k], bounds.upper[i, k], bounds.kink[i, k], epsilon)
        best = np.minimum(best, costs)
    return best


def _residual(primal: np.ndarray, dual: np.ndarray, gap: np.ndarray) -> np.ndarray:
    return np.maximum(np.maximum(primal, dual), gap / GAP)


def _relative(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # if the whole is almost 0
        return np.where(part > 0.0, part / np.maximum(whole, np.finfo(np.float64).tiny), 0.0)


def _change(primal: np.ndarray, dual: np.ndarray) -> float:
    """Return the factor for beta: a larger beta makes x and z agree sooner, a smaller one lets them move.

    The slowest problems determine it: to go on with the others costs little.
    """
    ratio = max(primal.max(), 1e-12) / max(dual.max(), 1e-12)
    if 1.0 / _BALANCED <= ratio <= _BALANCED:
        return 1.0
    return min(max(math.sqrt(ratio), 1.0 / _LARGEST_CHANGE), _LARGEST_CHANGE)


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
