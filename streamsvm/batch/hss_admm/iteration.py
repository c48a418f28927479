"""The alternating direction method of multipliers (ADMM) on a compressed kernel matrix.

The problem of a classifier (see `streamsvm.batch.problem`) is split: x has the quadratic part and the constraint on the sum, z
the rest. This is algorithm 2 of Cipolla and Gondzio (2021), with their beta and u = mu / beta; their algorithm 3 writes x_k
instead of q_k. Problems that differ only in their bounds are solved together: each is a column, and they share one factorisation.
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

GAP_FACTOR = 10.0
"""The relative duality gap may be this many times the tolerance of the residuals."""

_ITERATIONS_BETWEEN_CHECKS = 5  # because a check costs a product with K~
_FIRST_BALANCE = 5  # iterations before the first change of beta; the number doubles after each
_RESIDUAL_RATIO = 4.0  # adapt beta when primal and dual residuals differ by more than this factor
_MAX_BETA_CHANGE = 30.0
_MIN_BETA = 1e-9  # times the largest self-kernel; smaller values do not balance the residuals


class ADMMOptions(NamedTuple):
    """Parameters of the iterations; ``balance`` tells whether beta is adapted to the residuals."""

    beta: float
    balance: bool
    relaxation: float
    tol: float
    max_iter: int
    verbose: bool


class ADMMSolution(NamedTuple):
    """The solutions of all problems: a column, or one number, for each."""

    b: np.ndarray
    bias: np.ndarray
    primal: np.ndarray
    """The relative difference of K~ x and K~ z. (With a smooth kernel, x and z may differ much although these differ little.)"""
    dual: np.ndarray  # change of z in the optimality conditions, relative to their largest part
    gap: np.ndarray  # duality gap with K~ in place of K, as if the sum were zero, relative to the primal objective
    n_iter: np.ndarray
    beta: float  # the last beta
    n_factorizations: int
    interrupted: bool


def find_max_residual(primal: Any, dual: Any, gap: Any) -> Any:
    """Return the largest of an ADMM iteration's primal residual, dual residual and duality gap (divided by `GAP_FACTOR`), to be
    compared with the tolerance. The arguments are numbers or arrays of the same shape.
    """
    return np.maximum(np.maximum(primal, dual), gap / GAP_FACTOR)


def run_admm(K: HSSMatrix, bounds: Bounds, options: ADMMOptions) -> ADMMSolution:
    """Solve the dual problems of several classifiers together by ADMM (alternating direction method of multipliers), on the
    compressed kernel matrix K, and return the solutions. Each column of ``bounds`` float64 [n, problems] is one problem.

    After the first iteration, an interrupt ends the iterations with the current solution; before, it is raised. Since K~ has no
    negative eigenvalues, ADMM converges for any beta above 0 and any relaxation between 0 and 2. O(n (m + r)) for each iteration
    of an unfinished problem.
    """
    n, problems = bounds.lower.shape
    beta, next_balance, n_factorizations, interrupted = options.beta, _FIRST_BALANCE, 0, False
    b, bias, n_iter = np.empty((n, problems)), np.zeros(problems), np.zeros(problems, np.int64)
    primal, dual, gap = np.full((3, problems), np.inf)
    solution = ADMMSolution(b, bias, primal, dual, gap, n_iter, beta, 0, False)
    # From here on, rows are in the order of the compressed matrix.
    bounds = Bounds(*(side[K.order] for side in bounds))
    z, u, right_side, Kx = np.zeros((4, n, problems))
    min_beta = _MIN_BETA * (K.largest_diagonal or 1.0)
    running = np.arange(problems)  # the unfinished problems, which have columns of z, u, right_side and Kx
    factor: HSSFactorization | None = None
    try:
        for iteration in iterate_with_progress(range(1, options.max_iter + 1), "iterations", options.verbose):
            raise_if_stopped()
            if factor is None:
                factor = K.factorize(beta)
                ones = factor.solve(np.ones(n), ordered=True)
                n_factorizations += 1
            x = factor.solve(right_side, ordered=True)
            bias = x.sum(axis=0) / ones.sum()  # the multiplier of the constraint on the sum
            moved, size = np.zeros((2, len(running)))
            _advance_iterate(x, ones, bias, z, u, right_side, Kx, beta, options.relaxation, bounds, moved, size)
            solution.bias[running], solution.n_iter[running] = bias, iteration
            if iteration % _ITERATIONS_BETWEEN_CHECKS and iteration < options.max_iter:
                continue
            difference, values = K.product(x, ordered=True), np.linalg.norm(Kx, axis=0)
            primal = _compute_relative_size(np.linalg.norm(difference, axis=0), values)
            dual = _compute_relative_size(beta * moved, np.maximum(beta * size, values))
            gap = np.zeros(len(running))
            _write_duality_gap(Kx - difference, z, bias, bounds, gap)
            solution.primal[running], solution.dual[running], solution.gap[running] = primal, dual, gap
            continues = find_max_residual(primal, dual, gap) > options.tol
            if not continues.all():
                solution.b[np.ix_(K.order, running[~continues])] = z[:, ~continues]
                arrays = z, u, right_side, Kx, *bounds
                z, u, right_side, Kx, *sides = (np.ascontiguousarray(array[:, continues]) for array in arrays)
                bounds, running, primal, dual = Bounds(*sides), running[continues], primal[continues], dual[continues]
                if not len(running):
                    break
            if options.balance and iteration == next_balance:
                next_balance *= 2
                change = max(_choose_beta_factor(primal, dual), min(min_beta / beta, 1.0))
                if change != 1.0:
                    beta, u, factor = beta * change, u / change, None
                    right_side = beta * (z - u)
    except (KeyboardInterrupt, SystemError) as error:
        if not is_interrupt(error):
            raise
        if not solution.n_iter.all():  # the first iteration was not completed
            raise KeyboardInterrupt from None
        interrupted = True
    solution.b[np.ix_(K.order, running)] = z
    return solution._replace(beta=beta, n_factorizations=n_factorizations, interrupted=interrupted)


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
    """Complete one ADMM iteration for several problems: from the solution ``x`` [n, problems] of the linear equations, compute
    the dual variables ``z`` within their ``bounds``, the scaled multipliers ``u`` and the ``right_side`` of the next equations.
    The arrays are updated in place.

    Updates z, u and right_side; writes x - z into x, K~ x into Kx, and the norms of the change of z and of u into ``moved`` and
    ``size``, which are zeros [problems].
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
    """Write the duality gap of each problem at the dual variables ``z`` [n, problems], relative to its primal objective, into
    ``gap`` [problems], which contains zeros. ``Kz`` is the kernel matrix times z.

    The gap is the sum over the rows of the slack in Fenchel's inequality, which is never negative. The loss of a row is the
    maximum of -b f - |b - kink| over b, plus the maximum of |b - kink|, so that a row beyond the margin has no loss.
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


def _compute_relative_size(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """Return ``part / total`` for two arrays of the same shape; 0 where the part is 0, even if the total is 0."""
    with np.errstate(over="ignore"):  # if the total is almost 0
        return np.where(part > 0.0, part / np.maximum(total, np.finfo(np.float64).tiny), 0.0)


def _choose_beta_factor(primal: np.ndarray, dual: np.ndarray) -> float:
    """Return the factor for the next change of ADMM's penalty beta, from the ``primal`` and ``dual`` residuals of all problems:
    above 1 if primal residuals dominate, below 1 if dual ones do, and 1 if they are similar.

    The slowest problems determine it, because further iterations of the other problems cost little.
    """
    ratio = max(primal.max(), 1e-12) / max(dual.max(), 1e-12)
    if 1.0 / _RESIDUAL_RATIO <= ratio <= _RESIDUAL_RATIO:
        return 1.0
    return min(max(math.sqrt(ratio), 1.0 / _MAX_BETA_CHANGE), _MAX_BETA_CHANGE)


_SAMPLE_ROWS = 256  # random rows, and random support vectors, on which errors are measured
_MAX_DECISION_VALUE = 2.0  # in margins; larger values are clipped, because errors there do not change labels


def measure_errors(K: HSSMatrix, b: np.ndarray, bias: np.ndarray) -> np.ndarray:
    """Measure the difference of decision values between the exact and the compressed kernel matrix K, and return its root mean
    square over random rows for each problem, float64 [problems]. ``b`` [n, problems] are the dual coefficients.

    The error is in units of the margin. It is measured over random rows and over random support vectors, and the larger one
    counts; values are clipped at twice the margin. ``b`` are float64 [n, problems]. O(d + problems) for each of the n rows and
    each of the 512 sampled ones.
    """
    order = np.random.default_rng(0).permutation(len(b))
    support = order[b[order].any(axis=1)]
    rows, limit = np.concatenate([order[:_SAMPLE_ROWS], support[:_SAMPLE_ROWS]]), _MAX_DECISION_VALUE
    compressed, exact = (np.clip(values + bias, -limit, limit) for values in ((K @ b)[rows], K.exact_product(rows, b)))
    squares = np.square(compressed - exact)
    means = [sample.mean(axis=0) for sample in (squares[:_SAMPLE_ROWS], squares[_SAMPLE_ROWS:]) if len(sample)]
    return np.sqrt(np.max(means, axis=0))
