"""The best partner of a support vector with one output, and the best position to merge the two: the paper's four searches.

Two support vectors with coefficients a and b of one sign, |a| <= |b|, merge at z = h x_b + (1 - h) x_a. The problem depends on
the relative length m = |b| / (|a| + |b|) and on q = gamma |x_a - x_b|^2 alone; `merge_table` has it solved on a grid.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.budget.merge_table import GRID, compiled_degradation, interpolate
from streamsvm.core.budget.removal import oldest_argmin
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

GSS, GSS_PRECISE, LOOKUP_H, LOOKUP_WD = 0, 1, 2, 3
#: The searches by their names.
SEARCHES = {"gss": GSS, "gss-precise": GSS_PRECISE, "lookup-h": LOOKUP_H, "lookup-wd": LOOKUP_WD}
#: The width of the interval at which the golden section search ends, by the code of the search.
PRECISIONS = (1e-2, 1e-10)

#: Degradations are compared in float32: a candidate with a larger one is still a candidate.
LARGEST_DEGRADATION = 1e38

_INVERSE_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_SLACK = 1.0 + 1e-4  # covers the rounding of the table and of float32
_TABLE_ERROR = np.float32(2e-5)  # relative, of the difference of two interpolated degradations


def golden_section(objective: Any) -> Any:
    """Return a compiled golden section search: ``search(problem, q, centre, precision)`` returns the position h in [0, 1] where
    ``objective(problem, q, h)`` is largest.

    Glasmachers and Qaadan (2018), algorithm 1, line 8. Ties go right, where the larger mode is. The result is compared with
    ``centre``, the centre of mass, which is the maximum in the limit of q = 0: for near vectors with unlike coefficients it is so
    much better than half an interval beside the maximum that to leave it out costs a point of accuracy on ADULT.
    """

    @compiled
    def search(problem: tuple[float, ...], q: float, centre: float, precision: float) -> float:
        low, high = 0.0, 1.0
        left, right = 1.0 - _INVERSE_GOLDEN, _INVERSE_GOLDEN
        at_left, at_right = objective(problem, q, left), objective(problem, q, right)
        while high - low > precision:
            if at_left > at_right:
                high, right, at_right = right, left, at_left
                left = high - _INVERSE_GOLDEN * (high - low)
                at_left = objective(problem, q, left)
            else:
                low, left, at_left = left, right, at_right
                right = low + _INVERSE_GOLDEN * (high - low)
                at_right = objective(problem, q, right)
        position = 0.5 * (low + high)
        return centre if objective(problem, q, centre) > objective(problem, q, position) else position

    return search


@compiled
def _merged_coefficient(problem: tuple[float], q: float, h: float) -> float:
    # Over |a| + |b|.
    m = problem[0]
    return m * math.exp(-((1.0 - h) ** 2) * q) + (1.0 - m) * math.exp(-(h**2) * q)


_golden_section = golden_section(_merged_coefficient)


@compiled
def best_position(search: int, tables: np.ndarray, m: float, q: float) -> float:
    """Return h* by the given search: 1 is the partner's position, 0 that of the vector with the smaller coefficient."""
    if search <= GSS_PRECISE:
        return _golden_section((m,), q, m, PRECISIONS[search])
    return interpolate(tables[0], m, q)


@compiled
def _relative_lengths(a: float, b: float) -> tuple[float, float]:
    # m and 1 - m of two coefficients. The second is at least 1e-100: m alone does not tell coefficients of 1 and 1e-17 apart.
    larger, smaller = max(abs(a), abs(b)), min(abs(a), abs(b))
    return larger / (larger + smaller), max(smaller / (larger + smaller), 1e-100)


@compiled
def _degradation(m: float, rest: float, q: float, h: float) -> float:
    # The squared weight degradation over the square of the smaller coefficient; ``rest`` is 1 - m.
    ratio = m / rest
    return compiled_degradation(1.0, ratio**2, ratio, q, h)


@compiled(fastmath=FAST)
def _squared_positions(
    coefficients: np.ndarray, first: int, sign: float, distances: np.ndarray, gamma: np.float32, n: int, out: np.ndarray
) -> int:
    # u^2 of each candidate, in SIMD; infinity for the first itself and those of the other sign. Returns the index of the minimum.
    one = np.float32(1.0)
    for k in range(n):
        q = gamma * distances[k]
        u = q / (one + q) if q < np.float32(1e9) else one
        out[k] = u * u if sign * coefficients[k] > 0.0 and k != first else np.float32(np.inf)
    bits = out.view(np.int32)  # as in oldest_argmin
    minimum = bits[0]
    for k in range(1, n):
        minimum = min(minimum, bits[k])
    index = 0
    while index < n - 1 and bits[index] != minimum:
        index += 1
    return index


@compiled
def _farthest(ratios: np.ndarray, degradation: float) -> np.float32:
    # Candidates at a larger u^2 degrade more than this: the least degradation at any u is that for m = 1/2, which grows with u.
    low, high = 0, GRID - 1
    degradation *= _SLACK
    while low < high:
        middle = (low + high) // 2
        u = middle / (GRID - 1)
        if u * u * ratios[0, middle] > degradation:
            high = middle
        else:
            low = middle + 1
    return np.float32((high / (GRID - 1)) ** 2)


@compiled
def _drop_beyond(values: np.ndarray, limit: np.float32, n: int) -> int:
    # Set values above the limit to infinity, in SIMD; returns the number of the others.
    within = 0
    for k in range(n):
        within += values[k] <= limit
        values[k] = values[k] if values[k] <= limit else np.float32(np.inf)
    return within


@compiled
def _look_up(
    tables: np.ndarray,
    coefficients: np.ndarray,
    stamps: np.ndarray,
    first: int,
    distances: np.ndarray,
    gamma: float,
    n: int,
    out: np.ndarray,
) -> int:
    # The nearest candidate beats most others whatever their coefficients are: only the rest is looked up.
    positions, ratios = tables[0], tables[1]
    smallest = abs(coefficients[first])
    sign = 1.0 if coefficients[first] > 0.0 else -1.0
    nearest = _squared_positions(coefficients, first, sign, distances, np.float32(gamma), n, out)
    if out[nearest] == np.float32(np.inf):
        return -1
    larger = max(abs(coefficients[nearest]), smallest)
    limit = _farthest(ratios, out[nearest] * interpolate(ratios, larger / (larger + smallest), gamma * distances[nearest]))
    if _drop_beyond(out, limit, n) == 1:
        return nearest
    for k in range(n):
        if out[k] < np.float32(np.inf):
            larger = max(abs(coefficients[k]), smallest)  # float32 decides which is smallest: rounding may leave one below it
            out[k] *= np.float32(interpolate(ratios, larger / (larger + smallest), gamma * distances[k]))
    # Degradations that the interpolation cannot tell apart are computed: on data with few distances, many are that close.
    best = oldest_argmin(out, stamps, n)
    if _drop_beyond(out, out[best] * (np.float32(1.0) + _TABLE_ERROR), n) == 1:
        return best
    for k in range(n):
        if out[k] < np.float32(np.inf):
            m, rest = _relative_lengths(coefficients[k], smallest)
            q = gamma * distances[k]
            out[k] = np.float32(_degradation(m, rest, q, interpolate(positions, m, q)))
    return oldest_argmin(out, stamps, n)


@compiled
def find_partner(
    search: int,
    tables: np.ndarray,
    coefficients: np.ndarray,
    stamps: np.ndarray,
    distances: np.ndarray,
    gamma: float,
    first: int,
    n: int,
    out: np.ndarray,
) -> int:
    """Return the best partner for the support vector in slot ``first``: least weight degradation, the older one of equals.

    Parameters
    ----------
    search
        `GSS`, `GSS_PRECISE`, `LOOKUP_H` or `LOOKUP_WD`.
    tables
        `budget.merge_table.merge_tables`, float32 [2, GRID, GRID].
    coefficients, stamps, distances
        float64, int64, float32 [n]: of all support vectors; the squared distances to the first.
    gamma
        Of the Gaussian kernel.
    first, n
        The slot that is to be merged, and the number of support vectors.
    out
        float32 [n]: scratch, for the squared weight degradations over the square of the first's coefficient.

    Returns
    -------
    The partner's slot; -1 where no other support vector has a coefficient of the same sign.
    """
    if search == LOOKUP_WD:
        return _look_up(tables, coefficients, stamps, first, distances, gamma, n, out)
    smallest = coefficients[first]
    for k in range(n):
        out[k] = np.float32(np.inf)
        if k != first and coefficients[k] * smallest > 0.0:
            m, rest = _relative_lengths(coefficients[k], smallest)
            q = gamma * distances[k]
            degradation = _degradation(m, rest, q, best_position(search, tables, m, q))
            out[k] = np.float32(min(degradation, LARGEST_DEGRADATION))
    partner = oldest_argmin(out, stamps, n)
    return partner if out[partner] < np.float32(np.inf) else -1
