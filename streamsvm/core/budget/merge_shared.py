"""The best partner, and the best position to merge the two, where several outputs share the support vectors.

One position serves all outputs, and the weight degradation is summed over them. With coefficient vectors a and b (one number an
output) of the two support vectors, and q = gamma |x_a - x_b|^2, the merge at z = h x_b + (1 - h) x_a degrades the model by

    |a|^2 (1 - k_a^2) + |b|^2 (1 - k_b^2) + 2 a.b (kappa - k_a k_b)

with k_a = exp(-h^2 q), k_b = exp(-(1 - h)^2 q) and kappa = exp(-q). It depends on |a|^2, |b|^2, a.b and q alone. For parallel
vectors, a.b = |a| |b|, it is the degradation of one output.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.budget.merge_search import GSS_PRECISE, LARGEST_DEGRADATION, LOOKUP_H, LOOKUP_WD, PRECISIONS, golden_section
from streamsvm.core.budget.merge_table import compiled_degradation, interpolate
from streamsvm.core.budget.removal import oldest_argmin
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

_ITERATIONS = 30
_PRECISION = 1e-6  # of the position
_LONGEST_STEP = 10.0  # of the secant method, over the step of the mean shift
_CANDIDATES = 8  # the first by the estimate, which are computed


@compiled
def _merged_norm(problem: tuple[float, float, float], q: float, h: float) -> float:
    # The squared length of the merged coefficient vector: the degradation is least where it is largest.
    a, b, ab = problem
    k_a, k_b = math.exp(-(h**2) * q), math.exp(-((1.0 - h) ** 2) * q)
    return a * k_a**2 + b * k_b**2 + 2.0 * ab * k_a * k_b


_golden_section = golden_section(_merged_norm)


@compiled
def _mean_shift(a: float, b: float, ab: float, q: float) -> float:
    # Where the derivative vanishes, h is the partner's part of the merged squared length. That fixed point is iterated, as in
    # mean shift, with the secant method's longer steps where they are not wild. From h = 1: of two modes the partner's is higher.
    h, last_h, last_move = 1.0, 1.0, 0.0
    for _ in range(_ITERATIONS):
        k_a, k_b = math.exp(-(h**2) * q), math.exp(-((1.0 - h) ** 2) * q)
        both = ab * k_a * k_b
        part_a, part_b = a * k_a * k_a + both, b * k_b * k_b + both
        if not part_a + part_b > 0.0:
            return 1.0
        move = part_b / (part_a + part_b) - h
        if abs(move) < _PRECISION:
            break
        change = move - last_move
        step = -move * (h - last_h) / change if change != 0.0 else move
        if not move * step > 0.0 or abs(step) > _LONGEST_STEP * abs(move):
            step = move
        last_h, last_move, h = h, move, min(max(h + step, 0.0), 1.0)
    return h


@compiled
def shared_position(search: int, tables: np.ndarray, a: float, b: float, ab: float, q: float) -> float:
    """Return the position h* of a merge by the given search, from |a|^2, |b|^2 >= |a|^2, a.b > 0 and q."""
    if search <= GSS_PRECISE:
        return _golden_section((a, b, ab), q, (b + ab) / (a + b + 2.0 * ab), PRECISIONS[search])
    if search == LOOKUP_H:
        larger, smaller = math.sqrt(max(a, b)), math.sqrt(min(a, b))
        return interpolate(tables[0], larger / (larger + smaller), q)
    return _mean_shift(a, b, ab, q)


@compiled(fastmath=FAST)
def _products(coefficients: np.ndarray, live: int, first: int, n: int, out: np.ndarray) -> None:
    # The products a.b of the first's coefficients with all, into ``out`` float32 [n].
    for i in range(n):
        out[i] = np.float32(0.0)
    for k in range(0, live, 2):
        c = coefficients[k, first]
        if c != 0.0:
            for i in range(n):
                out[i] += np.float32(c * coefficients[k, i])


@compiled(fastmath=FAST)
def _estimate(
    a: np.float32, lengths: np.ndarray, products: np.ndarray, distances: np.ndarray, gamma: np.float32, n: int, out: np.ndarray
) -> None:
    # The limit for small q, 2 q |a|^2 |b|^2 (1 - cos^2) / |a + b|^2, and the u^2 |a|^2 of one output beyond it; at most |a|^2,
    # the degradation of a removal. Infinity where a.b is not positive.
    one, two = np.float32(1.0), np.float32(2.0)
    for i in range(n):
        q = gamma * distances[i]
        u = q / (one + q)
        b, ab = lengths[i], products[i]
        apart = two * u * max(a * b - ab * ab, np.float32(0.0)) / (a + b + two * ab)
        out[i] = min(apart + u * u * a, a) if ab > np.float32(0.0) else np.float32(np.inf)


@compiled
def find_shared_partner(
    search: int,
    tables: np.ndarray,
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
    """Return the best partner for the support vector in slot ``first``: least summed weight degradation, the older one of equals.

    `LOOKUP_WD` ranks the candidates by an estimate and computes the first few, O(n live); the others compute all of them.

    Parameters
    ----------
    search, tables
        As in `budget.merge_search.find_partner`.
    coefficients
        float64 [live or more, n].
    live
        Rows of coefficients in use; every other one is of the last iterate.
    stamps, distances
        int64, float32 [n]: of all support vectors; the squared distances to the first.
    gamma
        Of the Gaussian kernel.
    first, n
        The slot that is to be merged, and the number of support vectors.
    lengths, products
        float32 [n]: `budget.smallest.squared_coefficients`; receives the products of the coefficients with the first's.
    out
        float32 [n]: scratch.

    Returns
    -------
    The partner's slot; -1 where no other support vector's coefficients have a positive product with the first's.
    """
    _products(coefficients, live, first, n, products)
    a = np.float64(lengths[first])
    best, partner = np.inf, -1
    if search != LOOKUP_WD:
        for k in range(n):
            out[k] = np.float32(np.inf)
            if k != first and products[k] > np.float32(0.0):
                degradation = _shared_degradation(search, tables, a, lengths[k], products[k], gamma * distances[k])
                out[k] = np.float32(min(degradation, LARGEST_DEGRADATION))
        partner = oldest_argmin(out, stamps, n)
        return partner if out[partner] < np.float32(np.inf) else -1
    _estimate(lengths[first], lengths, products, distances, np.float32(gamma), n, out)
    out[first] = np.float32(np.inf)
    for _ in range(min(_CANDIDATES, n)):
        k = oldest_argmin(out, stamps, n)
        if out[k] == np.float32(np.inf):
            break
        out[k] = np.float32(np.inf)
        degradation = _shared_degradation(search, tables, a, lengths[k], products[k], gamma * np.float64(distances[k]))
        if degradation < best or partner < 0:
            best, partner = degradation, k
    return partner


@compiled
def _shared_degradation(search: int, tables: np.ndarray, a: float, b: float, ab: float, q: float) -> float:
    # At the position that the search finds.
    b, ab = np.float64(b), np.float64(ab)
    return compiled_degradation(a, b, ab, q, shared_position(search, tables, a, b, ab, q))
