"""Whom to merge a support vector with, and where: the four searches of the paper, compiled."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.budget.merge_table import GRID
from streamsvm.budget.smallest import oldest_argmin
from streamsvm.kernels import FAST

__all__ = [
    "GSS",
    "GSS_PRECISE",
    "LOOKUP_H",
    "LOOKUP_WD",
    "SEARCHES",
    "best_position",
    "degradation",
    "find_partner",
]

GSS, GSS_PRECISE, LOOKUP_H, LOOKUP_WD = 0, 1, 2, 3
#: The searches by their names.
SEARCHES = {"gss": GSS, "gss-precise": GSS_PRECISE, "lookup-h": LOOKUP_H, "lookup-wd": LOOKUP_WD}

_INVERSE_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_LAST_CELL = GRID - 2
_WORST = 1e38  # a partner that costs as much as float32 holds is still one
_SLACK = 1.0 + 1e-4  # for what the table and float32 round
_TABLE_ERROR = np.float32(2e-5)  # relative, of the difference of two interpolated degradations


@njit(cache=True, error_model="numpy")
def degradation(m: float, rest: float, q: float, h: float) -> float:
    """Squared weight degradation of a merge at ``h``, over the square of the smaller coefficient.

    ``rest`` is 1 - m, which m itself does not tell where the coefficients differ by more than 2^53. See
    `budget.merge_table.weight_degradation`.
    """
    k_j, k_i = math.exp(-((1.0 - h) ** 2) * q), math.exp(-(h**2) * q)
    odds = m / rest
    return (
        -(odds**2) * math.expm1(-2.0 * (1.0 - h) ** 2 * q)
        - math.expm1(-2.0 * h**2 * q)
        + 2.0 * odds * k_i * k_j * math.expm1(-2.0 * h * (1.0 - h) * q)
    )


@njit(cache=True, error_model="numpy")
def _shares(a: float, b: float) -> tuple[float, float]:
    # m and 1 - m of two coefficients.
    larger, smaller = max(abs(a), abs(b)), min(abs(a), abs(b))
    return larger / (larger + smaller), max(smaller / (larger + smaller), 1e-100)


@njit(cache=True, error_model="numpy")
def _golden_section(m: float, q: float, precision: float) -> float:
    # [Glasmachers and Qaadan 2018, algorithm 1, line 8]; ties go right, which is where the mode is for m >= 1/2.
    low, high = 0.0, 1.0
    left, right = 1.0 - _INVERSE_GOLDEN, _INVERSE_GOLDEN
    s_left = m * math.exp(-((1.0 - left) ** 2) * q) + (1.0 - m) * math.exp(-(left**2) * q)
    s_right = m * math.exp(-((1.0 - right) ** 2) * q) + (1.0 - m) * math.exp(-(right**2) * q)
    while high - low > precision:
        if s_left > s_right:
            high, right, s_right = right, left, s_left
            left = high - _INVERSE_GOLDEN * (high - low)
            s_left = m * math.exp(-((1.0 - left) ** 2) * q) + (1.0 - m) * math.exp(-(left**2) * q)
        else:
            low, left, s_left = left, right, s_right
            right = low + _INVERSE_GOLDEN * (high - low)
            s_right = m * math.exp(-((1.0 - right) ** 2) * q) + (1.0 - m) * math.exp(-(right**2) * q)
    # Against the centre of mass, where h* lies in the limit of q = 0: for near vectors with unlike coefficients it is so much
    # better than half a bracket beside h* that to leave it out costs a point of accuracy on ADULT.
    place = 0.5 * (low + high)
    s_place = m * math.exp(-((1.0 - place) ** 2) * q) + (1.0 - m) * math.exp(-(place**2) * q)
    s_centre = m * math.exp(-((1.0 - m) ** 2) * q) + (1.0 - m) * math.exp(-(m**2) * q)
    return m if s_centre > s_place else place


@njit(cache=True, error_model="numpy")
def _interpolate(table: np.ndarray, m: float, q: float) -> float:
    # Bilinear, over m in [1/2, 1] and u = q / (1 + q).
    x, y = (2.0 * m - 1.0) * (GRID - 1), q / (1.0 + q) * (GRID - 1)
    # Bounded on both sides: whatever numbers arrive, the table is not left.
    i, j = max(0, min(int(x), _LAST_CELL)), max(0, min(int(y), _LAST_CELL))
    a, b = x - i, y - j
    return (table[i, j] * (1.0 - a) + table[i + 1, j] * a) * (1.0 - b) + (
        table[i, j + 1] * (1.0 - a) + table[i + 1, j + 1] * a
    ) * b


@njit(cache=True, error_model="numpy")
def best_position(search: int, tables: np.ndarray, m: float, q: float) -> float:
    """h*, by the given search: 1 is the partner's place, 0 that of the vector with the smaller coefficient."""
    if search == GSS:
        return _golden_section(m, q, 1e-2)
    if search == GSS_PRECISE:
        return _golden_section(m, q, 1e-10)
    return _interpolate(tables[0], m, q)


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _squared_positions(
    coefficients: np.ndarray, first: int, sign: float, distances: np.ndarray, gamma: np.float32, n: int, out: np.ndarray
) -> int:
    # u^2 of each candidate, in SIMD; infinity for the first itself and those of the other sign. Returns the place of the least.
    one = np.float32(1.0)
    for k in range(n):
        q = gamma * distances[k]
        u = q / (one + q) if q < np.float32(1e9) else one
        out[k] = u * u if sign * coefficients[k] > 0.0 and k != first else np.float32(np.inf)
    bits = out.view(np.int32)  # as in oldest_argmin
    least = bits[0]
    for k in range(1, n):
        least = min(least, bits[k])
    place = 0
    while place < n - 1 and bits[place] != least:
        place += 1
    return place


@njit(cache=True, error_model="numpy")
def _farthest(ratios: np.ndarray, cost: float) -> np.float32:
    # Candidates at a larger u^2 cost more than ``cost``. The least degradation at any u is that for m = 1/2, which grows with u.
    low, high = 0, GRID - 1
    cost *= _SLACK
    while low < high:
        middle = (low + high) // 2
        u = middle / (GRID - 1)
        if u * u * ratios[0, middle] > cost:
            high = middle
        else:
            low = middle + 1
    return np.float32((high / (GRID - 1)) ** 2)


@njit(cache=True, error_model="numpy")
def _drop_beyond(values: np.ndarray, limit: np.float32, n: int) -> int:
    # What is over the limit becomes infinite, in SIMD; how many are not.
    within = 0
    for k in range(n):
        within += values[k] <= limit
        values[k] = values[k] if values[k] <= limit else np.float32(np.inf)
    return within


@njit(cache=True, error_model="numpy")
def _look_up(
    places: np.ndarray,
    ratios: np.ndarray,
    coefficients: np.ndarray,
    stamps: np.ndarray,
    first: int,
    distances: np.ndarray,
    gamma: float,
    n: int,
    out: np.ndarray,
) -> int:
    # The nearest candidate beats most others whatever their coefficients are: only the rest is looked up.
    smallest = abs(coefficients[first])
    sign = 1.0 if coefficients[first] > 0.0 else -1.0
    nearest = _squared_positions(coefficients, first, sign, distances, np.float32(gamma), n, out)
    if out[nearest] == np.float32(np.inf):
        return -1
    larger = max(abs(coefficients[nearest]), smallest)
    limit = _farthest(ratios, out[nearest] * _interpolate(ratios, larger / (larger + smallest), gamma * distances[nearest]))
    if _drop_beyond(out, limit, n) == 1:
        return nearest
    for k in range(n):
        if out[k] < np.float32(np.inf):
            larger = max(abs(coefficients[k]), smallest)  # float32 decides who is smallest: rounding may leave one below it
            out[k] *= np.float32(_interpolate(ratios, larger / (larger + smallest), gamma * distances[k]))
    # What the interpolation cannot tell apart is computed: on data with few distances, many candidates are that close.
    best = oldest_argmin(out, stamps, n)
    if _drop_beyond(out, out[best] * (np.float32(1.0) + _TABLE_ERROR), n) == 1:
        return best
    for k in range(n):
        if out[k] < np.float32(np.inf):
            m, rest = _shares(coefficients[k], smallest)
            q = gamma * distances[k]
            out[k] = np.float32(degradation(m, rest, q, _interpolate(places, m, q)))
    return oldest_argmin(out, stamps, n)


@njit(cache=True, error_model="numpy")
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
    """The best partner for the support vector in slot ``first``: least weight degradation, the older one of equals.

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
        The slot that is to be merged, and how many slots are taken.
    out
        float32 [n]: scratch, of the squared weight degradations over the square of the first's coefficient.

    Returns
    -------
    The partner's slot; -1 where no other support vector has a coefficient of the same sign.
    """
    if search == LOOKUP_WD:
        return _look_up(tables[0], tables[1], coefficients, stamps, first, distances, gamma, n, out)
    smallest = coefficients[first]
    for k in range(n):
        out[k] = np.float32(np.inf)
        if k != first and coefficients[k] * smallest > 0.0:
            m, rest = _shares(coefficients[k], smallest)
            q = gamma * distances[k]
            cost = degradation(m, rest, q, best_position(search, tables, m, q))
            out[k] = np.float32(min(cost, _WORST))
    partner = oldest_argmin(out, stamps, n)
    return partner if out[partner] < np.float32(np.inf) else -1
