"""The dual of a kernel machine by the alternating direction method of multipliers, on a compressed kernel matrix.

The problem is that of `streamsvm.batch.csmo.steps`, in one signed variable a row:

    min 1/2 b'Kb - t'b + sum_i epsilon |b_i - kink_i|,    lower_i <= b_i <= upper_i,    sum_i b_i = 0,

split into the quadratic part with the sum, in x, and the rest, in z. Cipolla and Gondzio (2021), algorithm 2, with beta as there
and u = mu / beta; their algorithm 3 writes x where q is meant. Problems that differ in their bounds alone are solved together:
they have one factorisation, and each a column.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit

from streamsvm._progress import shown
from streamsvm.batch.problem import Bounds
from streamsvm.hss import HSSFactorization, HSSMatrix
from streamsvm.sklearn_base import is_interrupt

__all__ = ["GAP", "ADMMOptions", "ADMMSolution", "admm"]

GAP = 10.0
"""Times the tolerance of the residuals: what the relative duality gap may be."""

_CHECK_EVERY = 5  # iterations: it costs a product
_FIRST_BALANCE = 5  # iterations before beta may change for the first time; then whenever there are twice as many
_BALANCED = 4.0  # times that one residual may be the other
_LARGEST_CHANGE = 30.0
_WORTH = 0.1  # of what a constant costs: where the objective is less, the gap is relative to that
_LEAST_BETA = 1e-9  # of the largest k(x, x): where residuals ask for less, there is nothing to be balanced


class ADMMOptions(NamedTuple):
    """``balance``: whether beta follows the residuals; ``tol``: what both must be at, relative, to stop, and `GAP`."""

    beta: float
    balance: bool
    relaxation: float
    tol: float
    max_iter: int
    verbose: bool


class ADMMSolution(NamedTuple):
    """Of each problem a column or a number."""

    b: np.ndarray
    multipliers: np.ndarray
    """mu: with b, what another run goes on from."""
    bias: np.ndarray
    primal: np.ndarray
    """The relative residual: how far K~ x and K~ z are apart. The distance of x and z says little: where the kernel is smooth,
    what is small of the coefficients is not small of the values.
    """
    dual: np.ndarray
    """How much z still moves, in the conditions of optimality, relative to their largest part."""
    gap: np.ndarray
    """Between the objectives, relative to the primal one, or to a tenth of what a constant costs where that is more: with K~ in
    place of K, and as if the sum were zero.
    """
    n_iter: np.ndarray
    beta: float
    """The last one."""
    n_factorizations: int
    interrupted: bool
    """Whether the user asked to stop."""

    @property
    def residual(self) -> np.ndarray:
        """What is to be at most the tolerance."""
        return _residual(self.primal, self.dual, self.gap)


def admm(
    K: HSSMatrix,
    targets: np.ndarray,
    epsilon: float,
    bounds: Bounds,
    options: ADMMOptions,
    start: tuple[np.ndarray, np.ndarray] | None = None,
) -> ADMMSolution:
    """``targets`` float64 [n], bounds float64 [n, problems]; ``start``: ``b`` and ``multipliers`` to go on from. O(n (m + r)) an
    iteration and problem that has not ended. An interrupt is kept for the caller once there is an iterate.

    K~ has no negative eigenvalue, hence this converges for every beta above 0 and relaxation between 0 and 2.
    """
    n, problems = bounds.lower.shape
    middle = float(np.median(targets))  # the coefficients' sum is zero: an offset of the targets is one of the bias
    beta, due, factorizations, interrupted = options.beta, _FIRST_BALANCE, 0, False
    found = ADMMSolution(
        b=np.empty((n, problems)),
        multipliers=np.empty((n, problems)),
        bias=np.full(problems, middle),
        primal=np.full(problems, np.inf),
        dual=np.full(problems, np.inf),
        gap=np.full(problems, np.inf),
        n_iter=np.zeros(problems, np.int64),
        beta=beta,
        n_factorizations=0,
        interrupted=False,
    )
    # From here on rows are in the order of the compressed matrix.
    rows = K.order
    t, bounds = (targets - middle)[rows], Bounds(*(side[rows] for side in bounds))
    z, u = (np.zeros((n, problems)), np.zeros((n, problems))) if start is None else (start[0][rows], start[1][rows] / beta)
    wanted = t[:, np.newaxis] + beta * (z - u)
    Kx, constant = np.empty_like(z), _constant(t, epsilon, bounds)
    least = _LEAST_BETA * (K.largest_diagonal or 1.0)
    going = np.arange(problems)  # those that have not ended, and have a column each

    def end(ended: np.ndarray) -> None:
        for into, columns in ((found.b, z), (found.multipliers, beta * u)):
            into[np.ix_(rows, going[ended])] = columns[:, ended]

    factor: HSSFactorization | None = None
    try:
        for done in shown(range(1, options.max_iter + 1), "iterations", options.verbose):
            if factor is None:
                factor = K.factorize(beta)
                ones = factor.solve(np.ones(n), ordered=True)
                factorizations += 1
            x = factor.solve(wanted, ordered=True)
            bias = x.sum(axis=0) / ones.sum()  # the multiplier of the sum
            moved, size = _advance(x, ones, bias, z, u, wanted, Kx, t, beta, options.relaxation, epsilon, bounds)
            found.bias[going], found.n_iter[going] = bias + middle, done
            if done % _CHECK_EVERY and done < options.max_iter:
                continue
            apart, values = K.product(x, ordered=True), np.linalg.norm(Kx, axis=0)
            primal = _share(np.linalg.norm(apart, axis=0), values)
            dual = _share(beta * moved, np.maximum(beta * size, values + np.linalg.norm(t)))
            gap = _gap(Kx - apart, z, bias, t, epsilon, bounds, _WORTH * constant)
            found.primal[going], found.dual[going], found.gap[going] = primal, dual, gap
            ended = _residual(primal, dual, gap) <= options.tol
            if ended.any():
                end(ended)
                z, u, wanted, Kx, *sides = (np.ascontiguousarray(of[:, ~ended]) for of in (z, u, wanted, Kx, *bounds))
                bounds = Bounds(*sides)
                going, primal, dual, constant = going[~ended], primal[~ended], dual[~ended], constant[~ended]
                if not len(going):
                    break
            if options.balance and done == due:
                due *= 2
                change = max(_change(primal, dual), min(least / beta, 1.0))
                if change != 1.0:
                    beta, u, factor = beta * change, u / change, None
                    wanted = t[:, np.newaxis] + beta * (z - u)
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interrupt(error):
            raise
        if not found.n_iter.all():  # there is nothing to be kept
            raise KeyboardInterrupt from None
        interrupted = True
    end(np.ones(len(going), bool))
    return found._replace(beta=beta, n_factorizations=factorizations, interrupted=interrupted)


@njit(cache=True, error_model="numpy")
def _advance(
    x: np.ndarray,
    ones: np.ndarray,
    bias: np.ndarray,
    z: np.ndarray,
    u: np.ndarray,
    wanted: np.ndarray,
    Kx: np.ndarray,
    targets: np.ndarray,
    beta: float,
    relaxation: float,
    epsilon: float,
    bounds: Bounds,
) -> tuple[np.ndarray, np.ndarray]:
    """One iteration, from x and ``ones``, which (K~ + beta I) has made of ``wanted`` and of ones. Changes z, u and wanted, and
    leaves x - z in x and K~ x in Kx. Norms of what z moved and of u.
    """
    n, problems = x.shape
    moved, size = np.zeros(problems), np.zeros(problems)
    width = epsilon / beta
    for i in range(n):
        for k in range(problems):
            own = x[i, k] - ones[i] * bias[k]
            Kx[i, k] = wanted[i, k] - beta * own - bias[k]
            relaxed = relaxation * own + (1.0 - relaxation) * z[i, k]
            v = relaxed + u[i, k]
            # argmin over z of width |z - kink| + 1/2 (z - v)^2 within the bounds
            kink = bounds.kink[i, k]
            new = v + width if v + width < kink else v - width if v - width > kink else kink
            new = min(max(new, bounds.lower[i, k]), bounds.upper[i, k])
            moved[k] += (new - z[i, k]) ** 2
            left = v - new
            size[k] += left**2
            z[i, k], u[i, k], x[i, k] = new, left, own - new
            wanted[i, k] = targets[i] + beta * (new - left)
    return np.sqrt(moved), np.sqrt(size)


@njit(cache=True, error_model="numpy")
def _gap(
    Kz: np.ndarray,
    z: np.ndarray,
    bias: np.ndarray,
    targets: np.ndarray,
    epsilon: float,
    bounds: Bounds,
    least: np.ndarray,
) -> np.ndarray:
    """The duality gap of each problem at z, the sum over rows of what Fenchel's inequality leaves, none below 0: relative to the
    primal objective, or to ``least`` where that is more.
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


@njit(cache=True, error_model="numpy")
def _loss(slope: float, lower: float, upper: float, kink: float, epsilon: float) -> float:
    # Of a row, from its target without its value: the largest (b slope - epsilon |b - kink|) that a coefficient b could give it,
    # and epsilon |kink|, with which it is 0 for a row that is told apart well.
    largest = kink * slope
    for end in (lower, upper):
        largest = max(largest, end * slope - epsilon * abs(end - kink))
    return largest + epsilon * abs(kink)


@njit(cache=True, error_model="numpy")
def _constant(targets: np.ndarray, epsilon: float, bounds: Bounds) -> np.ndarray:
    """What rows cost with the best of three constants for values, of each problem: of both classes, or none of them."""
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


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # of next to nothing
        return np.where(part > 0.0, part / np.maximum(whole, np.finfo(np.float64).tiny), 0.0)


def _change(primal: np.ndarray, dual: np.ndarray) -> float:
    # What to multiply beta with. A larger one makes x and z agree sooner, a smaller one lets them move. The slowest problems
    # count: to go on with the others costs little.
    ratio = max(primal.max(), 1e-12) / max(dual.max(), 1e-12)
    if 1.0 / _BALANCED <= ratio <= _BALANCED:
        return 1.0
    return min(max(math.sqrt(ratio), 1.0 / _LARGEST_CHANGE), _LARGEST_CHANGE)
