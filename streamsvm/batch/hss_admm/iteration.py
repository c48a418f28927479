"""The alternating direction method of multipliers (ADMM) on a compressed kernel matrix.

The problem of a classifier (see `streamsvm.batch.problem`) is split into the quadratic part with the sum, in x, and the rest, in
z. This is algorithm 2 of Cipolla and Gondzio (2021), with their beta and u = mu / beta; their algorithm 3 writes x_k where q_k is
meant. Problems that differ only in their bounds are solved together: they share one factorisation, and each is a column.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from streamsvm.batch.hss import HSSFactorization, HSSMatrix
from streamsvm.batch.problem import Bounds
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.progress import iterate_with_progress
from streamsvm.core.sklearn_base import is_interrupt
from streamsvm.core.threads import raise_if_stopped

GAP = 10.0
"""The relative duality gap may be so many times the tolerance of the residuals."""

_CHECK_EVERY = 5  # iterations, since a check costs a product
_FIRST_BALANCE = 5  # iterations before beta may first change; then after twice as many each time
_BALANCED = 4.0  # beta changes if one residual is more than so many times the other
_LARGEST_CHANGE = 30.0
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
    bias: np.ndarray
    primal: np.ndarray
    """The relative difference of K~ x and K~ z. (That of x and z says little: a smooth kernel makes small differences of values
    from large ones of coefficients.)
    """
    dual: np.ndarray  # how much z still moves, in the optimality conditions, relative to their largest part
    gap: np.ndarray  # the duality gap with K~ in place of K, as if the sum were zero, relative to the primal objective
    n_iter: np.ndarray
    beta: float  # the last beta
    n_factorizations: int
    interrupted: bool


def compute_largest_residual(primal: Any, dual: Any, gap: Any) -> Any:
    """Return the largest of the residuals and of the gap divided by `GAP`: at most the tolerance at the end."""
    return np.maximum(np.maximum(primal, dual), gap / GAP)


def run_admm(K: HSSMatrix, bounds: Bounds, options: ADMMOptions) -> ADMMSolution:
    """Solve problems of classifiers whose bounds are float64 [n, problems].

    An interrupt ends the iterations; before the first of them has ended it is raised. K~ has no negative eigenvalue, hence this
    converges for every beta above 0 and relaxation between 0 and 2. O(n (m + r)) for each iteration and running problem.
    """
    n, problems = bounds.lower.shape
    beta, due, factorizations, interrupted = options.beta, _FIRST_BALANCE, 0, False
    b, bias, n_iter = np.empty((n, problems)), np.zeros(problems), np.zeros(problems, np.int64)
    primal, dual, gap = np.full((3, problems), np.inf)
    found = ADMMSolution(b, bias, primal, dual, gap, n_iter, beta, 0, False)
    # From here on rows are in the order of the compressed matrix.
    bounds = Bounds(*(side[K.order] for side in bounds))
    z, u, right_side, Kx = np.zeros((4, n, problems))
    least = _LEAST_BETA * (K.largest_diagonal or 1.0)
    running = np.arange(problems)  # each has a column of z, u, right_side and Kx
    factor: HSSFactorization | None = None
    try:
        for done in iterate_with_progress(range(1, options.max_iter + 1), "iterations", options.verbose):
            raise_if_stopped()
            if factor is None:
                factor = K.factorize(beta)
                ones = factor.solve(np.ones(n), ordered=True)
                factorizations += 1
            x = factor.solve(right_side, ordered=True)
            bias = x.sum(axis=0) / ones.sum()  # the multiplier of the sum
            moved, size = np.zeros((2, len(running)))
            _advance_iterate(x, ones, bias, z, u, right_side, Kx, beta, options.relaxation, bounds, moved, size)
            found.bias[running], found.n_iter[running] = bias, done
            if done % _CHECK_EVERY and done < options.max_iter:
                continue
            apart, values = K.product(x, ordered=True), np.linalg.norm(Kx, axis=0)
            primal = _compute_relative_size(np.linalg.norm(apart, axis=0), values)
            dual = _compute_relative_size(beta * moved, np.maximum(beta * size, values))
            gap = np.zeros(len(running))
            _write_duality_gap(Kx - apart, z, bias, bounds, gap)
            found.primal[running], found.dual[running], found.gap[running] = primal, dual, gap
            going = compute_largest_residual(primal, dual, gap) > options.tol
            if not going.all():
                found.b[np.ix_(K.order, running[~going])] = z[:, ~going]
                z, u, right_side, Kx, *sides = (np.ascontiguousarray(of[:, going]) for of in (z, u, right_side, Kx, *bounds))
                bounds, running, primal, dual = Bounds(*sides), running[going], primal[going], dual[going]
                if not len(running):
                    break
            if options.balance and done == due:
                due *= 2
                change = max(_choose_beta_factor(primal, dual), min(least / beta, 1.0))
                if change != 1.0:
                    beta, u, factor = beta * change, u / change, None
                    right_side = beta * (z - u)
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interrupt(error):
            raise
        if not found.n_iter.all():  # no iteration has ended
            raise KeyboardInterrupt from None
        interrupted = True
    found.b[np.ix_(K.order, running)] = z
    return found._replace(beta=beta, n_factorizations=factorizations, interrupted=interrupted)


@compiled(nogil=True)
def _advance_iterate(
    x: np.ndarray,
    ones: np.ndarray,
    bias: np.ndarray,
    z: np.ndarray,
    u: np.ndarray,
    right_side: np.ndarray,
    Kx: np.ndarray,
    beta: float,
    relaxation: float,
    bounds: Bounds,
    moved: np.ndarray,
    size: np.ndarray,
) -> None:
    """Do one iteration from x and ``ones``, the solutions of (K~ + beta I) for ``right_side`` and for ones.

    Changes z, u and right_side, and writes x - z into x, K~ x into Kx, and the norms of the change of z and of u into ``moved``
    and ``size``, zeros [problems].
    """
    n, problems = x.shape
    width = 1.0 / beta
    for i in range(n):
        for k in range(problems):
            x_ik = x[i, k] - ones[i] * bias[k]
            Kx[i, k] = right_side[i, k] - beta * x_ik - bias[k]
            v = relaxation * x_ik + (1.0 - relaxation) * z[i, k] + u[i, k]
            # argmin over z of width |z - kink| + 1/2 (z - v)^2 within the bounds
            kink = bounds.kink[i, k]
            new = v + width if v + width < kink else v - width if v - width > kink else kink
            new = min(max(new, bounds.lower[i, k]), bounds.upper[i, k])
            moved[k] += (new - z[i, k]) ** 2
            left = v - new
            size[k] += left**2
            z[i, k], u[i, k], x[i, k] = new, left, x_ik - new
            right_side[i, k] = beta * (new - left)
    for k in range(problems):
        moved[k], size[k] = math.sqrt(moved[k]), math.sqrt(size[k])


@compiled(nogil=True)
def _write_duality_gap(Kz: np.ndarray, z: np.ndarray, bias: np.ndarray, bounds: Bounds, gap: np.ndarray) -> None:
    """Write the duality gap of each problem at z, relative to the primal objective, into ``gap``, zeros [problems].

    It is the sum over rows of the slack in Fenchel's inequality, which is never below 0. The loss of a row is the largest of
    -b f - |b - kink| over b, plus the largest of |b - kink|, with which a row beyond the margin has loss 0.
    """
    n, problems = z.shape
    primal = np.zeros(problems)
    for i in range(n):
        for k in range(problems):
            b, kink, f = z[i, k], bounds.kink[i, k], Kz[i, k] + bias[k]
            lower, upper = bounds.lower[i, k], bounds.upper[i, k]
            loss = max(-kink * f, -lower * f - abs(lower - kink), -upper * f - abs(upper - kink))
            gap[k] += loss + b * f + abs(b - kink)
            primal[k] += 0.5 * b * Kz[i, k] + loss + abs(kink)
    for k in range(problems):
        gap[k] /= max(primal[k], 1e-300)


def _compute_relative_size(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    with np.errstate(over="ignore"):  # if the whole is almost 0
        return np.where(part > 0.0, part / np.maximum(whole, np.finfo(np.float64).tiny), 0.0)


def _choose_beta_factor(primal: np.ndarray, dual: np.ndarray) -> float:
    """Return the factor for beta: a larger beta makes x and z agree sooner, a smaller one lets them move.

    The slowest problems determine it: to go on with the others costs little.
    """
    ratio = max(primal.max(), 1e-12) / max(dual.max(), 1e-12)
    if 1.0 / _BALANCED <= ratio <= _BALANCED:
        return 1.0
    return min(max(math.sqrt(ratio), 1.0 / _LARGEST_CHANGE), _LARGEST_CHANGE)


_ROWS = 256  # of all, and of support vectors, at random
_FAR = 2.0  # margins; rows whose values are farther from 0 are classified alike


def measure_value_errors(K: HSSMatrix, b: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Return by how much decision values of the exact kernel differ from those of the compressed matrix, for each problem.

    They are root mean squares in units of the margin, float64 [problems], over random rows or random support vectors, whichever
    is larger; values beyond twice the margin count as there. O(d + problems) for each of 512 rows and the n of ``b`` float64
    [n, problems].
    """
    order = np.random.default_rng(0).permutation(len(b))
    support = order[b[order].any(axis=1)]
    rows = np.concatenate([order[:_ROWS], support[:_ROWS]])
    compressed, exact = (np.clip(values + bias, -_FAR, _FAR) for values in ((K @ b)[rows], K.exact_product(rows, b)))
    squares = np.square(compressed - exact)
    parts = [some.mean(axis=0) for some in (squares[:_ROWS], squares[_ROWS:]) if len(some)]
    return np.sqrt(np.max(parts, axis=0))
