"""Finds the best merge partner of a support vector, and the best position of the merged vector, by the paper's four searches.

Two support vectors with coefficients a and b of the same sign, |a| <= |b|, are merged to z = h x_b + (1 - h) x_a. The problem
depends only on the relative length m = |b| / (|a| + |b|) and on q = gamma |x_a - x_b|^2; `merge_table` solves it on a grid.

If several outputs share the support vectors, they share the position, too, and the weight degradation is summed over them. With
coefficient vectors a and b (one number for each output), the merge at z degrades the model by

    |a|^2 (1 - k_a^2) + |b|^2 (1 - k_b^2) + 2 a.b (kappa - k_a k_b)

with k_a = exp(-h^2 q), k_b = exp(-(1 - h)^2 q) and kappa = exp(-q). It depends on |a|^2, |b|^2, a.b and q alone. For parallel
vectors, a.b = |a| |b|, it is the degradation of one output.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streamsvm.core.budget.merge_table import GRID, compute_degradation_compiled, interpolate_table
from streamsvm.core.budget.removal import find_oldest_minimum
from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST
from streamsvm.core.memory.support_vectors import views

GSS, GSS_PRECISE, LOOKUP_H, LOOKUP_WD = 0, 1, 2, 3
#: Searches by name.
SEARCHES = {"gss": GSS, "gss-precise": GSS_PRECISE, "lookup-h": LOOKUP_H, "lookup-wd": LOOKUP_WD}
#: Final interval width of the golden section searches `GSS` and `GSS_PRECISE`.
PRECISIONS = (1e-2, 1e-10)

#: Larger degradations are clipped to this, so that they are finite in float32 and their vectors remain candidates.
LARGEST_DEGRADATION = 1e38

_INVERSE_GOLDEN = (math.sqrt(5.0) - 1.0) / 2.0
_SLACK = 1.0 + 1e-4  # tolerance for the rounding of the table and of float32
_TABLE_ERROR = np.float32(2e-5)  # relative error of the difference of two interpolated degradations


def make_golden_section(objective: Any) -> Any:
    """Return a compiled function ``search(problem, q, centre, precision)`` that finds the position h in [0, 1] with the largest
    ``objective(problem, q, h)``, by golden section search. ``objective`` is a compiled function; ``problem`` and ``q`` are only
    passed on to it.

    It follows Glasmachers and Qaadan 2018, algorithm 1, line 8. Ties go right, where the larger mode is. The result is compared
    with the centre of mass, ``centre``, which is the maximum in the limit of q = 0. For close vectors with different coefficients
    it is better than the approximate maximum: without it, accuracy on ADULT is 1 % lower.
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
def _compute_merged_coefficient(problem: tuple[float], q: float, h: float) -> float:
    """Return the coefficient of the support vector that replaces two merged ones with coefficients a and b, divided by |a| + |b|.
    ``h`` is its position on the line between them (1 at that of b), ``problem`` has the share |b| / (|a| + |b|), and ``q`` is
    gamma times their squared distance.
    """
    m = problem[0]
    return m * math.exp(-((1.0 - h) ** 2) * q) + (1.0 - m) * math.exp(-(h**2) * q)


_search_position = make_golden_section(_compute_merged_coefficient)


@compiled
def find_position(search: int, tables: np.ndarray, m: float, q: float) -> float:
    """Return the best position h in [0, 1] for the merge of two support vectors: 0 is at the one with the smaller coefficient, 1
    at the other. ``m`` is the larger coefficient's share of |a| + |b|, and ``q`` is gamma times their squared distance.
    ``search`` is the number of the search method; ``tables`` are from `load_tables`.
    """
    if search <= GSS_PRECISE:
        return _search_position((m,), q, m, PRECISIONS[search])
    return interpolate_table(tables[0], m, q)


@compiled
def _compute_relative_lengths(a: float, b: float) -> tuple[float, float]:
    """Return (m, 1 - m), where m is the share of the larger of two coefficients: max(a, b) / (a + b) of their absolute values. 1
    - m is computed separately, so that it is exact, and at least 1e-100, where m is rounded to 1.
    """
    larger, smaller = max(abs(a), abs(b)), min(abs(a), abs(b))
    return larger / (larger + smaller), max(smaller / (larger + smaller), 1e-100)


@compiled
def _compute_degradation_at(m: float, one_minus_m: float, q: float, h: float) -> float:
    """Return how much a merge of two support vectors changes the model: the squared distance of the decision functions, divided
    by the smaller squared coefficient. ``h`` is the merged vector's position (1: at the larger coefficient); ``m`` and
    ``one_minus_m`` are the coefficients' shares of |a| + |b|; ``q`` is gamma times the squared distance.
    """
    ratio = m / one_minus_m
    return compute_degradation_compiled(1.0, ratio**2, ratio, q, h)


@compiled(fastmath=FAST)
def _compute_scaled_distances(
    coefficients: np.ndarray, first: int, sign: float, distances: np.ndarray, gamma: np.float32, n: int, out: np.ndarray
) -> int:
    """Write a scaled squared distance to each of ``n`` support vectors into ``out``, and return the index of the smallest. It is
    (q / (1 + q))^2 with q = ``gamma`` * ``distances`` (squared), but infinite for vectors without a coefficient of this
    ``sign``, and for the one at index ``first``, from which distances are measured.
    """
    one = np.float32(1.0)
    for k in range(n):
        q = gamma * distances[k]
        u = q / (one + q) if q < np.float32(1e9) else one
        out[k] = u * u if sign * coefficients[k] > 0.0 and k != first else np.float32(np.inf)
    bits = out.view(np.int32)  # integers are compared in SIMD, as in `find_oldest_minimum`
    minimum = bits[0]
    for k in range(1, n):
        minimum = min(minimum, bits[k])
    index = 0
    while index < n - 1 and bits[index] != minimum:
        index += 1
    return index


@compiled
def _find_distance_limit(ratios: np.ndarray, degradation: float) -> np.float32:
    """Return an upper bound of the scaled squared distance between two support vectors whose merge changes the model by at most
    ``degradation`` (in units of the smaller squared coefficient). Candidates beyond it can be skipped. ``ratios`` is the second
    table from `load_tables`.

    The smallest degradation for any u is that of m = 1/2, which grows with u.
    """
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
def _drop_above(values: np.ndarray, limit: np.float32, n: int) -> int:
    """Replace those of the first ``n`` ``values`` that exceed ``limit`` by infinity, in place, and return how many do not exceed
    it.
    """
    n_left = 0
    for k in range(n):
        n_left += values[k] <= limit
        values[k] = values[k] if values[k] <= limit else np.float32(np.inf)
    return n_left


@compiled
def _find_partner_by_table(block: np.ndarray, tables: np.ndarray, first: int) -> int:
    """Return the index of the best support vector to merge with the one at index ``first``, or -1 if no other coefficient has
    its sign. Instead of a search, it interpolates in the precomputed ``tables`` of `load_tables`. ``block`` is the learner's
    memory (uint8).

    Most candidates are too far away to be better than the nearest one, and are not looked up.
    """
    v, positions, ratios = views(block), tables[0], tables[1]
    n, gamma, distances = v.header[0]["n_support"], v.header[0]["gamma"], v.kernel_rows[3]
    coefficients, stamps, out = v.coefficients[0], v.stamps, v.degradations
    smallest = abs(coefficients[first])
    sign = 1.0 if coefficients[first] > 0.0 else -1.0
    nearest = _compute_scaled_distances(coefficients, first, sign, distances, np.float32(gamma), n, out)
    if out[nearest] == np.float32(np.inf):
        return -1
    larger = max(abs(coefficients[nearest]), smallest)
    limit = _find_distance_limit(
        ratios, out[nearest] * interpolate_table(ratios, larger / (larger + smallest), gamma * distances[nearest])
    )
    if _drop_above(out, limit, n) == 1:
        return nearest
    for k in range(n):
        if out[k] < np.float32(np.inf):
            larger = max(abs(coefficients[k]), smallest)  # the smallest in float32 may be slightly larger than another one
            out[k] *= np.float32(interpolate_table(ratios, larger / (larger + smallest), gamma * distances[k]))
    # Compute those degradations that are equal within the error of the interpolation, as with data of few distinct distances.
    best = find_oldest_minimum(out, stamps, n)
    if _drop_above(out, out[best] * (np.float32(1.0) + _TABLE_ERROR), n) == 1:
        return best
    for k in range(n):
        if out[k] < np.float32(np.inf):
            m, one_minus_m = _compute_relative_lengths(coefficients[k], smallest)
            q = gamma * distances[k]
            out[k] = np.float32(_compute_degradation_at(m, one_minus_m, q, interpolate_table(positions, m, q)))
    return find_oldest_minimum(out, stamps, n)


@compiled
def find_partner(block: np.ndarray, search: int, tables: np.ndarray, first: int) -> int:
    """Return the index of the support vector whose merge with the one at index ``first`` changes a model with one decision value
    least, or -1 if no other coefficient has the same sign. In a tie, the oldest is returned. ``search`` is the number of the
    search method; ``tables`` are from `load_tables`; ``block`` is the learner's memory (uint8).

    ``search`` is `GSS`, `GSS_PRECISE`, `LOOKUP_H` or `LOOKUP_WD`. The squared distances to the first vector must be in
    ``kernel_rows[3]``. Weight degradations, divided by its squared coefficient, are written into ``degradations``.
    """
    if search == LOOKUP_WD:
        return _find_partner_by_table(block, tables, first)
    v = views(block)
    n, gamma, distances = v.header[0]["n_support"], v.header[0]["gamma"], v.kernel_rows[3]
    coefficients, out = v.coefficients[0], v.degradations
    smallest = coefficients[first]
    for k in range(n):
        out[k] = np.float32(np.inf)
        if k != first and coefficients[k] * smallest > 0.0:
            m, one_minus_m = _compute_relative_lengths(coefficients[k], smallest)
            q = gamma * distances[k]
            degradation = _compute_degradation_at(m, one_minus_m, q, find_position(search, tables, m, q))
            out[k] = np.float32(min(degradation, LARGEST_DEGRADATION))
    partner = find_oldest_minimum(out, v.stamps, n)
    return partner if out[partner] < np.float32(np.inf) else -1


# Several outputs --------------------------------------------------------------------------------------------------------------

_MAX_ITERATIONS = 30
_PRECISION = 1e-6  # of the position
_MAX_STEP_RATIO = 10.0  # longest step of the secant method, divided by the step of the mean shift
_N_COMPUTED = 8  # the degradation of this many candidates, the best by the estimate, is computed


@compiled
def _compute_merged_norm(problem: tuple[float, float, float], q: float, h: float) -> float:
    """Return the squared length of the coefficient vector that a merge of two support vectors at position ``h`` on the line
    between them gives (0: at the first). It is to be maximised. ``problem`` has |a|^2, |b|^2 and a.b of their coefficient
    vectors a and b; ``q`` is gamma times their squared distance.
    """
    a, b, ab = problem
    k_a, k_b = math.exp(-(h**2) * q), math.exp(-((1.0 - h) ** 2) * q)
    return a * k_a**2 + b * k_b**2 + 2.0 * ab * k_a * k_b


_search_shared_position = make_golden_section(_compute_merged_norm)


@compiled
def _find_position_by_mean_shift(a: float, b: float, ab: float, q: float) -> float:
    """Return the position h in [0, 1] between two support vectors where their merge changes the model least, by a fixed-point
    iteration. ``a``, ``b`` and ``ab`` are |a|^2, |b|^2 and a.b of their coefficient vectors; ``q`` is gamma times their squared
    distance.

    Where the derivative vanishes, h is the partner's part of the merged squared length. The iteration starts at h = 1, because
    the partner's mode is the higher one. Secant steps are used if they are not too long.
    """
    h, last_h, last_move = 1.0, 1.0, 0.0
    for _ in range(_MAX_ITERATIONS):
        k_a, k_b = math.exp(-(h**2) * q), math.exp(-((1.0 - h) ** 2) * q)
        common = ab * k_a * k_b
        part_a, part_b = a * k_a * k_a + common, b * k_b * k_b + common
        if not part_a + part_b > 0.0:
            return 1.0
        move = part_b / (part_a + part_b) - h
        if abs(move) < _PRECISION:
            break
        change = move - last_move
        step = -move * (h - last_h) / change if change != 0.0 else move
        if not move * step > 0.0 or abs(step) > _MAX_STEP_RATIO * abs(move):
            step = move
        last_h, last_move, h = h, move, min(max(h + step, 0.0), 1.0)
    return h


@compiled
def find_shared_position(search: int, tables: np.ndarray, a: float, b: float, ab: float, q: float) -> float:
    """Return the position h in [0, 1] between two support vectors of a model with several decision values where their merge
    changes it least. ``a``, ``b`` (>= a) and ``ab`` (> 0) are |a|^2, |b|^2 and a.b of their coefficient vectors; ``q`` is gamma
    times their squared distance. ``search`` is the number of the search method; ``tables`` are from `load_tables`.
    """
    if search <= GSS_PRECISE:
        return _search_shared_position((a, b, ab), q, (b + ab) / (a + b + 2.0 * ab), PRECISIONS[search])
    if search == LOOKUP_H:
        larger, smaller = math.sqrt(max(a, b)), math.sqrt(min(a, b))
        return interpolate_table(tables[0], larger / (larger + smaller), q)
    return _find_position_by_mean_shift(a, b, ab, q)


@compiled(fastmath=FAST)
def _compute_products(coefficients: np.ndarray, n_outputs: int, first: int, n: int, out: np.ndarray) -> None:
    """Write the dot product of the coefficient vector of support vector ``first`` with that of each of ``n`` support vectors
    into ``out``, float32 [n]. Of the ``n_outputs`` rows of ``coefficients``, only every second one (that of the last iterate)
    counts; the others belong to the average iterate.
    """
    for i in range(n):
        out[i] = np.float32(0.0)
    for k in range(0, n_outputs, 2):
        c = coefficients[k, first]
        if c != 0.0:
            for i in range(n):
                out[i] += np.float32(c * coefficients[k, i])


@compiled(fastmath=FAST)
def _estimate_degradations(
    a: np.float32, lengths: np.ndarray, products: np.ndarray, distances: np.ndarray, gamma: np.float32, n: int, out: np.ndarray
) -> None:
    """Estimate how much a merge of one support vector with each of ``n`` others would change the model, into ``out`` float32
    [n]. ``a`` and ``lengths`` are squared lengths of their coefficient vectors, ``products`` the dot products of these,
    ``distances`` squared. Infinite if the product is at most 0.

    It is the limit for small q, 2 q |a|^2 |b|^2 (1 - cos^2) / |a + b|^2, plus u^2 |a|^2 as for a single output, but at most
    |a|^2, the degradation of a removal.
    """
    one, two = np.float32(1.0), np.float32(2.0)
    for i in range(n):
        q = gamma * distances[i]
        u = q / (one + q)
        b, ab = lengths[i], products[i]
        apart = two * u * max(a * b - ab * ab, np.float32(0.0)) / (a + b + two * ab)
        out[i] = min(apart + u * u * a, a) if ab > np.float32(0.0) else np.float32(np.inf)


@compiled(inline=True)
def _is_less(values: np.ndarray, stamps: np.ndarray, i: int, k: int) -> bool:
    """Return whether ``values[i]`` is less than ``values[k]`` or, if they are equal, ``stamps[i]`` (insertion number) is less
    than ``stamps[k]``.
    """
    return values[i] < values[k] or (values[i] == values[k] and stamps[i] < stamps[k])


@compiled
def _find_smallest(values: np.ndarray, stamps: np.ndarray, n: int, indices: np.ndarray) -> int:
    """Write the indices of the smallest of the first ``n`` finite ``values`` into ``indices``, int64, in ascending order of
    values, and return how many were written. Ties are in the order of ``stamps`` (insertion numbers).
    """
    count, room, limit = 0, len(indices), LARGEST_FLOAT32
    for i in range(n):
        if not values[i] <= limit:
            continue
        p = count
        if count < room:
            count += 1
        elif _is_less(values, stamps, i, indices[room - 1]):
            p = room - 1
        else:
            continue
        while p > 0 and _is_less(values, stamps, i, indices[p - 1]):
            indices[p] = indices[p - 1]
            p -= 1
        indices[p] = i
        if count == room:
            limit = np.float64(values[indices[room - 1]])
    return count


@compiled
def find_shared_partner(block: np.ndarray, search: int, tables: np.ndarray, first: int) -> int:
    """Return the index of the support vector whose merge with the one at index ``first`` changes a model with several decision
    values least, or -1 if none is suitable. In a tie, the oldest is returned. ``search`` is the number of the search method;
    ``tables`` are from `load_tables`; ``block`` is the learner's memory (uint8).

    Suitable are vectors whose coefficients have a positive product with those of the first one. `LOOKUP_WD` ranks them by an
    estimate and computes the degradation of the best few, O(n outputs); other searches compute all.

    The arguments are those of `find_partner`. ``degradations`` must contain the result of `sum_squared_coefficients`, which is
    moved to ``kernel_rows[0]``. The products with the first vector's coefficients are written into ``kernel_rows[1]``.
    """
    v = views(block)
    h, distances, stamps, out = v.header[0], v.kernel_rows[3], v.stamps, v.degradations
    n, gamma = h["n_support"], h["gamma"]
    lengths, products = v.kernel_rows[0], v.kernel_rows[1]  # not needed: the current row has become a support vector
    v.cache[0]["valid"] = 0
    lengths[:n] = out[:n]
    _compute_products(v.coefficients, h["n_outputs"], first, n, products)
    a = np.float64(lengths[first])
    best, partner = np.inf, -1
    if search != LOOKUP_WD:
        for k in range(n):
            out[k] = np.float32(np.inf)
            if k != first and products[k] > np.float32(0.0):
                degradation = _compute_shared_degradation(search, tables, a, lengths[k], products[k], gamma * distances[k])
                out[k] = np.float32(min(degradation, LARGEST_DEGRADATION))
        partner = find_oldest_minimum(out, stamps, n)
        return partner if out[partner] < np.float32(np.inf) else -1
    _estimate_degradations(lengths[first], lengths, products, distances, np.float32(gamma), n, out)
    out[first] = np.float32(np.inf)
    candidates = np.empty(_N_COMPUTED, np.int64)
    for k in candidates[: _find_smallest(out, stamps, n, candidates)]:
        degradation = _compute_shared_degradation(search, tables, a, lengths[k], products[k], gamma * np.float64(distances[k]))
        if degradation < best or partner < 0:
            best, partner = degradation, k
    return partner


@compiled
def _compute_shared_degradation(search: int, tables: np.ndarray, a: float, b: float, ab: float, q: float) -> float:
    """Return how much the best merge of two support vectors changes a model with several decision values (sum of squared
    distances of the decision functions). ``a``, ``b`` and ``ab`` are |a|^2, |b|^2 and a.b of their coefficient vectors, ``q`` is
    gamma times their squared distance; the method number ``search`` and the ``tables`` find the best position.
    """
    b, ab = np.float64(b), np.float64(ab)
    return compute_degradation_compiled(a, b, ab, q, find_shared_position(search, tables, a, b, ab, q))
