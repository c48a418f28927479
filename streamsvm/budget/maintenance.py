"""How a store stays within its budget: the compiled events of which one follows the support vector that is one too many.

All take the block of the store, `budget.table.merge_tables` (which only the look-ups read), the code of the strategy and a random
number (which only `REMOVAL_RANDOM` reads), and return 1 where two support vectors were merged, else 0. A model calls one of them,
by `budget.upkeep.maintain`.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.budget.merge_search import best_position, find_partner, oldest_least
from streamsvm.budget.merge_shared import find_shared_partner, shared_position, squared_lengths
from streamsvm.kernels import FAST, self_kernel
from streamsvm.memory.slots import kernel_row_of, remove, stamp
from streamsvm.memory.support_vectors import views

__all__ = [
    "LARGEST_COEFFICIENT",
    "LEAST_OWN",
    "MERGE_LAST",
    "PROJECTION",
    "REFUSAL",
    "REMOVAL_RANDOM",
    "REMOVAL_SMALLEST",
    "drop",
    "merge",
    "merge_shared",
    "project",
]

# 0 .. 3 are the searches of `budget.merging`.
MERGE_LAST, REMOVAL_SMALLEST, REMOVAL_RANDOM, PROJECTION, REFUSAL = 3, 4, 5, 6, 7

# The Gram matrix of support vectors that nearly coincide is singular to rounding; its diagonal is raised by this share.
_RIDGE = 1e-6
_LARGEST_SHARE = 1e3  # 1 / sqrt(_RIDGE): no more of a unit vector's projection falls to one of those it is projected onto

#: Kernel rows are float32: a vector whose kernel value with itself is below this has none that can be divided by.
LEAST_OWN = 2.0**-126
#: Of a coefficient as it is stored, either way: projected from short vectors to long ones and back, it could grow for ever.
LARGEST_COEFFICIENT = 1e40


@njit(cache=True, error_model="numpy")
def _smallest(block: np.ndarray) -> int:
    # Slot with the smallest coefficient. Pegasos gives all rows that were never merged equal coefficients but for rounding, so
    # float32 decides, and of equals the oldest goes.
    v = views(block)
    n = v.header[0]["n_support"]
    if v.header[0]["live"] > 2:
        squared_lengths(v.coefficients, v.header[0]["live"], n, v.degradations)
    else:
        for k in range(n):
            v.degradations[k] = np.float32(abs(v.coefficients[0, k]))
    return oldest_least(v.degradations, v.stamps, n)


@njit(cache=True, error_model="numpy")
def merge(block: np.ndarray, tables: np.ndarray, search: int, random: np.uint64) -> int:  # noqa: ARG001
    """Merge the support vector with the smallest coefficient and the one with which that costs least; of one output. O(B d)."""
    v = views(block)
    h = v.header[0]
    n, distances = h["n_support"], v.kernel_rows[3]
    first = _smallest(block)
    kernel_row_of(block, first)
    partner = find_partner(search, tables, v.coefficients[0], v.stamps, distances, h["gamma"], first, n, v.degradations)
    if partner < 0:
        return _merge_into_nearest(block, first)
    a_first, a_partner = abs(v.coefficients[0, first]), abs(v.coefficients[0, partner])
    larger = max(a_first, a_partner)
    return _merge_into(
        block, first, partner, best_position(search, tables, larger / (larger + a_first), h["gamma"] * distances[partner])
    )


@njit(cache=True, error_model="numpy")
def merge_shared(block: np.ndarray, tables: np.ndarray, search: int, random: np.uint64) -> int:  # noqa: ARG001
    """`merge`, of several outputs. O(B (d + outputs))."""
    v = views(block)
    h = v.header[0]
    n, distances = h["n_support"], v.kernel_rows[3]
    first = _smallest(block)
    kernel_row_of(block, first)
    lengths, products = v.kernel_rows[0], v.kernel_rows[1]  # free: the row at hand has become a support vector
    v.cache[0] = 0
    lengths[:n] = v.degradations[:n]
    partner = find_shared_partner(
        v.coefficients, h["live"], v.stamps, distances, h["gamma"], first, n, lengths, products, v.degradations
    )
    if partner < 0:
        return _merge_into_nearest(block, first)
    q = h["gamma"] * np.float64(distances[partner])
    return _merge_into(block, first, partner, shared_position(lengths[first], lengths[partner], products[partner], q))


@njit(cache=True, error_model="numpy")
def _merge_into(block: np.ndarray, first: int, partner: int, position: float) -> int:
    # At a place from 0 at the first to 1 at the partner; kernel_rows[3] holds the distances.
    v = views(block)
    h = v.header[0]
    q = h["gamma"] * v.kernel_rows[3, partner]
    k_first, k_partner = math.exp(-(position**2) * q), math.exp(-((1.0 - position) ** 2) * q)
    norm = 0.0
    for j in range(h["used"]):
        z = np.float32(position * v.vectors[j, partner] + (1.0 - position) * v.vectors[j, first])
        v.vectors[j, partner] = z
        norm += np.float64(z) * np.float64(z)
    for k in range(h["live"]):
        v.coefficients[k, partner] = k_partner * v.coefficients[k, partner] + k_first * v.coefficients[k, first]
    v.weights[partner] += v.weights[first]
    stamp(block, partner, norm)
    remove(block, first)
    return 1


@njit(cache=True, error_model="numpy")
def _merge_into_nearest(block: np.ndarray, slot: int) -> int:
    # No partner of the same sign: the least loss that keeps every place is a projection onto the nearest, |a|^2 (1 - kappa^2).
    v = views(block)
    h = v.header[0]
    kernels = v.kernel_rows[2]
    nearest = -1
    for k in range(h["n_support"]):
        if k != slot and (
            nearest < 0 or kernels[k] > kernels[nearest] or (kernels[k] == kernels[nearest] and v.stamps[k] < v.stamps[nearest])
        ):
            nearest = k
    if nearest >= 0:
        v.weights[nearest] += v.weights[slot]
        for k in range(h["live"]):
            v.coefficients[k, nearest] += kernels[nearest] * v.coefficients[k, slot]
    remove(block, slot)
    return 0


@njit(cache=True, fastmath=FAST, error_model="numpy")
def project(block: np.ndarray, tables: np.ndarray, strategy: int, random: np.uint64) -> int:  # noqa: ARG001
    """Remove the support vector with the smallest coefficient; its part of the model is projected onto the span of the others:
    K d = k, by Cholesky. O(B^3).
    """
    slot = _smallest(block)
    v = views(block)
    h = v.header[0]
    last = h["n_support"] - 1
    for k in range(h["live"]):  # the one that goes comes last, the others are 0 .. last - 1
        v.coefficients[k, slot], v.coefficients[k, last] = v.coefficients[k, last], v.coefficients[k, slot]
    for j in range(h["used"]):
        v.vectors[j, slot], v.vectors[j, last] = v.vectors[j, last], v.vectors[j, slot]
    v.norms[slot], v.norms[last] = v.norms[last], v.norms[slot]
    v.stamps[slot], v.stamps[last] = v.stamps[last], v.stamps[slot]
    v.weights[slot], v.weights[last] = v.weights[last], v.weights[slot]
    gram, lengths = v.gram, v.degradations
    for i in range(last + 1):
        own = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        lengths[i] = np.float32(math.sqrt(own)) if own >= LEAST_OWN else np.float32(0.0)
    # Cholesky of the leading block of cosines, and forward substitution of the last row with it. A polynomial kernel is bounded,
    # and then none: what is left of a vector of length 1 outside the span of those before it may come out below 0. Such a vector
    # has a pivot of 0 and takes no share.
    for i in range(last + 1):
        kernel_row_of(block, i)
        left = 1.0 if lengths[i] > 0.0 else 0.0
        for k in range(i):
            along = 0.0
            if left > 0.0 and gram[k, k] > 0.0:
                total = min(max(v.kernel_rows[2, k] / (np.float64(lengths[i]) * lengths[k]), -1.0), 1.0)
                for c in range(k):
                    total -= gram[i, c] * gram[k, c]
                along = min(max(total / gram[k, k], -math.sqrt(left)), math.sqrt(left))
            gram[i, k] = along
            left -= along * along
        gram[i, i] = math.sqrt(left + _RIDGE) if left > 0.0 else 0.0
    for i in range(last - 1, -1, -1):
        total = gram[last, i]
        for c in range(i + 1, last):
            total -= gram[c, i] * gram[c, last]
        share = total / gram[i, i] if gram[i, i] > 0.0 else 0.0
        gram[i, last] = min(max(share, -_LARGEST_SHARE), _LARGEST_SHARE)  # above the diagonal, which nothing else uses
    for i in range(last):
        factor = gram[i, last] * lengths[last] / lengths[i] if gram[i, i] > 0.0 else 0.0
        for k in range(h["live"]):
            a = v.coefficients[k, i] + factor * v.coefficients[k, last]
            v.coefficients[k, i] = min(max(a, -LARGEST_COEFFICIENT), LARGEST_COEFFICIENT)
    remove(block, last)
    return 0


@njit(cache=True, error_model="numpy")
def drop(block: np.ndarray, tables: np.ndarray, strategy: int, random: np.uint64) -> int:  # noqa: ARG001
    """Remove the support vector with the smallest coefficient, or any. O(B + d)."""
    n = views(block).header[0]["n_support"]
    remove(block, np.int64(random % np.uint64(n)) if strategy == REMOVAL_RANDOM else _smallest(block))
    return 0
