"""The dual of a kernel machine by the alternating direction method of multipliers, on a compressed kernel matrix.

The problem is that of `streamsvm.batch._csmo`, in one signed variable a row:

    min 1/2 b'Kb - t'b + sum_i epsilon |b_i - kink_i|,    lower_i <= b_i <= upper_i,    sum_i b_i = 0,

split into the quadratic part with the sum, in x, and the rest, in z. Cipolla and Gondzio (2021), algorithm 2, with beta as there
and u = mu / beta; their algorithm 3 writes x where q is meant. Problems that differ in their bounds alone are solved together:
they have one factorisation, and each a column.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streamsvm.batch._prepare import Bounds
from streamsvm.hss import HSSFactorization, HSSMatrix
from streamsvm.hss._progress import shown

__all__ = ["ADMMOptions", "ADMMSolution", "admm"]

_CHECK_EVERY = 5  # iterations: it costs a product
_FIRST_BALANCE = 5  # iterations before beta may change for the first time; then whenever there are twice as many
_BALANCED = 4.0  # times that one residual may be the other
_LARGEST_CHANGE = 30.0


class ADMMOptions(NamedTuple):
    """``balance``: whether beta follows the residuals; ``tol``: what both must be at, relative, to stop."""

    beta: float
    balance: bool
    relaxation: float
    tol: float
    max_iter: int
    verbose: bool


class ADMMSolution(NamedTuple):
    """Of each problem a column or a number."""

    b: np.ndarray
    bias: np.ndarray
    primal: np.ndarray
    """The relative residual: how far K~ x and K~ z are apart. The distance of x and z says little: where the kernel is smooth,
    what is small of the coefficients is not small of the values.
    """
    dual: np.ndarray
    """How much z still moves, relative to u."""
    n_iter: np.ndarray
    beta: float
    """The last one."""
    n_factorizations: int
    interrupted: bool
    """Whether the user asked to stop."""


def admm(K: HSSMatrix, targets: np.ndarray, epsilon: float, bounds: Bounds, options: ADMMOptions) -> ADMMSolution:
    """``targets`` float64 [n], bounds float64 [n, problems]. O(n (m + r)) an iteration and problem that has not ended.

    K~ has no negative eigenvalue, hence this converges for every beta above 0 and relaxation between 0 and 2.
    """
    n, problems = bounds.lower.shape
    middle = float(np.median(targets))  # the coefficients' sum is zero: an offset of the targets is one of the bias
    found = ADMMSolution(
        b=np.zeros((n, problems)),
        bias=np.full(problems, middle),
        primal=np.full(problems, np.inf),
        dual=np.full(problems, np.inf),
        n_iter=np.zeros(problems, np.int64),
        beta=options.beta,
        n_factorizations=0,
        interrupted=False,
    )
    going = np.arange(problems)  # those that have not ended, and have a column each of what follows
    z, u = np.zeros((n, problems)), np.zeros((n, problems))
    beta, due, factorizations, interrupted = options.beta, _FIRST_BALANCE, 0, False
    factor: HSSFactorization | None = None
    try:
        for done in shown(range(1, options.max_iter + 1), "iterations", options.verbose):
            if factor is None:
                factor = K.factorize(beta)
                ones = factor.solve(np.ones(n))[:, np.newaxis]
                factorizations += 1
            # The sum of x is zero: its multiplier is the bias.
            wanted = (targets - middle)[:, np.newaxis] + beta * (z - u)
            x = factor.solve(wanted)
            bias = x.sum(axis=0) / ones.sum()
            x -= ones * bias
            relaxed = options.relaxation * x + (1.0 - options.relaxation) * z
            new = _proximal(relaxed + u, epsilon / beta, bounds)
            moved = np.linalg.norm(new - z, axis=0)
            z, u = new, u + relaxed - new
            found.bias[going], found.n_iter[going] = bias + middle, done
            if done % _CHECK_EVERY and done < options.max_iter:
                continue
            values = wanted - beta * x - bias  # K~ x
            primal = _share(np.linalg.norm(K @ (x - z), axis=0), np.linalg.norm(values, axis=0))
            dual = _share(moved, np.linalg.norm(u, axis=0))
            found.primal[going], found.dual[going] = primal, dual
            ended = np.maximum(primal, dual) <= options.tol
            if ended.any():
                found.b[:, going[ended]] = z[:, ended]
                going, z, u, primal, dual = going[~ended], z[:, ~ended], u[:, ~ended], primal[~ended], dual[~ended]
                bounds = Bounds(*(side[:, ~ended] for side in bounds))
                if not len(going):
                    break
            if options.balance and done == due:
                due *= 2
                change = _change(primal, dual)
                if change != 1.0:
                    beta, u, factor = beta * change, u / change, None
    except KeyboardInterrupt:
        interrupted = True
    found.b[:, going] = z
    return found._replace(beta=beta, n_factorizations=factorizations, interrupted=interrupted)


def _proximal(v: np.ndarray, width: float, bounds: Bounds) -> np.ndarray:
    # argmin over z of width |z - kink| + 1/2 (z - v)^2 within the bounds.
    away = v - bounds.kink
    z = bounds.kink + np.sign(away) * np.maximum(np.abs(away) - width, 0.0)
    return np.clip(z, bounds.lower, bounds.upper)


def _share(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    return np.where(part > 0.0, part / np.maximum(whole, np.finfo(np.float64).tiny), 0.0)


def _change(primal: np.ndarray, dual: np.ndarray) -> float:
    # What to multiply beta with. A larger one makes x and z agree sooner, a smaller one lets them move.
    ratios = np.log(np.maximum(primal, 1e-12)) - np.log(np.maximum(dual, 1e-12))
    ratio = math.exp(float(np.mean(ratios)))
    if 1.0 / _BALANCED <= ratio <= _BALANCED:
        return 1.0
    return min(max(math.sqrt(ratio), 1.0 / _LARGEST_CHANGE), _LARGEST_CHANGE)
