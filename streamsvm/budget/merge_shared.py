"""Merging where several outputs share the support vectors: one place for all of them, least summed weight degradation.

With coefficient vectors a and b (one number an output) of the two support vectors at squared distance q / gamma, the merge at
z = h x_b + (1 - h) x_a loses, summed over the outputs,

    |a|^2 (1 - k_a^2) + |b|^2 (1 - k_b^2) + 2 a.b (kappa - k_a k_b)

with k_a = exp(-h^2 q), k_b = exp(-(1 - h)^2 q) and kappa = exp(-q). It depends on |a|, |b|, a.b and q alone. For one output
(a.b = |a| |b|) it is the degradation of `budget.merge_search`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.budget.smallest import oldest_argmin
from streamsvm.kernels import FAST

__all__ = ["find_shared_partner", "shared_degradation", "shared_position"]

_ITERATIONS = 30
_PRECISION = 1e-6  # of the place
_LONGEST = 10.0  # step of the secant method, over that of the mean shift
_CANDIDATES = 8  # looked at closely, of those that an estimate puts first


@njit(cache=True, error_model="numpy")
def shared_degradation(a: float, b: float, ab: float, q: float, h: float) -> float:
    """The summed squared weight degradation of a merge at ``h``, from |a|^2, |b|^2 and a.b."""
    k_a, k_b = math.exp(-(h**2) * q), math.exp(-((1.0 - h) ** 2) * q)
    return (
        -a * math.expm1(-2.0 * h**2 * q)
        - b * math.expm1(-2.0 * (1.0 - h) ** 2 * q)
        + 2.0 * ab * k_a * k_b * math.expm1(-2.0 * h * (1.0 - h) * q)
    )


@njit(cache=True, error_model="numpy")
def shared_position(a: float, b: float, ab: float, q: float) -> float:
    """h*, for a.b > 0 and |b| >= |a|: where the derivative vanishes, h is b's share of the merged model's squared norm.

    That fixed point is iterated, as in mean shift, with the secant method's longer steps where they are not wild. From h = 1,
    since of two modes b's is the better one.
    """
    h, last_h, last_move = 1.0, 1.0, 0.0
    for _ in range(_ITERATIONS):
        k_a, k_b = math.exp(-(h**2) * q), math.exp(-((1.0 - h) ** 2) * q)
        both = ab * k_a * k_b
        own_a, own_b = a * k_a * k_a + both, b * k_b * k_b + both
        if not own_a + own_b > 0.0:
            return 1.0
        move = own_b / (own_a + own_b) - h
        if abs(move) < _PRECISION:
            break
        change = move - last_move
        step = -move * (h - last_h) / change if change != 0.0 else move
        if not move * step > 0.0 or abs(step) > _LONGEST * abs(move):
            step = move
        last_h, last_move, h = h, move, min(max(h + step, 0.0), 1.0)
    return h


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _products(coefficients: np.ndarray, live: int, first: int, n: int, out: np.ndarray) -> None:
    for i in range(n):
        out[i] = np.float32(0.0)
    for k in range(0, live, 2):
        c = coefficients[k, first]
        if c != 0.0:
            for i in range(n):
                out[i] += np.float32(c * coefficients[k, i])


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _estimate(
    a: np.float32, lengths: np.ndarray, products: np.ndarray, distances: np.ndarray, gamma: np.float32, n: int, out: np.ndarray
) -> None:
    # What is right for small q, 2 q |a|^2 |b|^2 (1 - cos^2) / |a + b|^2, and the u^2 |a|^2 of one output beyond it; at most
    # |a|^2, what it costs to drop the first. Infinity where a.b is not positive.
    one, two = np.float32(1.0), np.float32(2.0)
    for i in range(n):
        q = gamma * distances[i]
        u = q / (one + q)
        b, ab = lengths[i], products[i]
        apart = two * u * max(a * b - ab * ab, np.float32(0.0)) / (a + b + two * ab)
        out[i] = min(apart + u * u * a, a) if ab > np.float32(0.0) else np.float32(np.inf)


@njit(cache=True, error_model="numpy")
def find_shared_partner(
    coefficients: np.ndarray,
    live: int,
    stamps: np.ndarray,
    distances: np.ndarray,
    gamma: float,
    first: int,
    n: int,
    lengths: np.ndarray,
    products: np.ndarray,
    out: np.ndarray,
) -> int:
    """The best partner for the support vector in slot ``first``: least summed weight degradation, the older one of equals.

    An estimate ranks the candidates, the first few are computed. O(n live).

    Parameters
    ----------
    coefficients
        float64 [live or more, n].
    live
        Rows of coefficients in use; every other one is of the last iterate.
    stamps, distances
        int64, float32 [n]: of all support vectors; the squared distances to the first.
    gamma
        Of the Gaussian kernel.
    first, n
        The slot that is to be merged, and how many slots are taken.
    lengths, products
        float32 [n]: `squared_coefficients`; receives the products of the coefficients with the first's.
    out
        float32 [n]: scratch.

    Returns
    -------
    The partner's slot; -1 where no other support vector's coefficients point to the same side.
    """
    _products(coefficients, live, first, n, products)
    _estimate(lengths[first], lengths, products, distances, np.float32(gamma), n, out)
    out[first] = np.float32(np.inf)
    best, partner = np.inf, -1
    a = np.float64(lengths[first])
    for _ in range(min(_CANDIDATES, n)):
        at = oldest_argmin(out, stamps, n)
        if out[at] == np.float32(np.inf):
            break
        out[at] = np.float32(np.inf)
        b, ab, q = np.float64(lengths[at]), np.float64(products[at]), gamma * np.float64(distances[at])
        cost = shared_degradation(a, b, ab, q, shared_position(a, b, ab, q))
        if cost < best or partner < 0:
            best, partner = cost, at
    return partner
