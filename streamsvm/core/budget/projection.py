"""Removal of a support vector, and projection of its contribution onto all the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streamsvm.core.budget.removal import smallest_coefficient
from streamsvm.core.budget.strategy import Event, Strategy
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LEAST_SELF_KERNEL, self_kernel
from streamsvm.core.memory.block import LARGEST_COEFFICIENT
from streamsvm.core.memory.slots import kernel_row_of, remove
from streamsvm.core.memory.support_vectors import views

# The Gram matrix of support vectors that nearly coincide is singular to rounding: this is added to its diagonal.
_RIDGE = 1e-6
# 1 / sqrt(_RIDGE): the largest coefficient that the projection of a unit vector has for any other.
_LARGEST_PROJECTION = 1e3


@compiled(fastmath=FAST)
def _project_smallest(block: np.ndarray, random: np.uint64) -> int:  # noqa: ARG001
    slot = smallest_coefficient(block)
    v = views(block)
    h = v.header[0]
    last = h["n_support"] - 1
    for k in range(h["live"]):  # the one to be removed comes last, the others are 0 .. last - 1
        v.coefficients[k, slot], v.coefficients[k, last] = v.coefficients[k, last], v.coefficients[k, slot]
    for j in range(h["used"]):
        v.vectors[j, slot], v.vectors[j, last] = v.vectors[j, last], v.vectors[j, slot]
    v.norms[slot], v.norms[last] = v.norms[last], v.norms[slot]
    v.stamps[slot], v.stamps[last] = v.stamps[last], v.stamps[slot]
    v.weights[slot], v.weights[last] = v.weights[last], v.weights[slot]
    gram, lengths = v.gram, v.degradations
    for i in range(last + 1):
        square = self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        lengths[i] = np.float32(math.sqrt(square)) if square >= LEAST_SELF_KERNEL else np.float32(0.0)
    # Cholesky of the leading block of cosines, and forward substitution of the last row with it. Values of a polynomial kernel
    # are bounded, and no kernel values beyond the bound: the pivot of a vector may come out below 0. It is set to 0 then, and
    # nothing is projected onto that vector.
    for i in range(last + 1):
        kernel_row_of(block, i)
        pivot = 1.0 if lengths[i] > 0.0 else 0.0
        for k in range(i):
            entry = 0.0
            if pivot > 0.0 and gram[k, k] > 0.0:
                total = min(max(v.kernel_rows[2, k] / (np.float64(lengths[i]) * lengths[k]), -1.0), 1.0)
                for c in range(k):
                    total -= gram[i, c] * gram[k, c]
                entry = min(max(total / gram[k, k], -math.sqrt(pivot)), math.sqrt(pivot))
            gram[i, k] = entry
            pivot -= entry * entry
        gram[i, i] = math.sqrt(pivot + _RIDGE) if pivot > 0.0 else 0.0
    for i in range(last - 1, -1, -1):
        total = gram[last, i]
        for c in range(i + 1, last):
            total -= gram[c, i] * gram[c, last]
        solution = total / gram[i, i] if gram[i, i] > 0.0 else 0.0
        gram[i, last] = min(max(solution, -_LARGEST_PROJECTION), _LARGEST_PROJECTION)  # above the diagonal, which is unused
    for i in range(last):
        factor = gram[i, last] * lengths[last] / lengths[i] if gram[i, i] > 0.0 else 0.0
        for k in range(h["live"]):
            a = v.coefficients[k, i] + factor * v.coefficients[k, last]
            v.coefficients[k, i] = min(max(a, -LARGEST_COEFFICIENT), LARGEST_COEFFICIENT)
    remove(block, last)
    return 0


@dataclass(frozen=True)
class Projection(Strategy):
    """Remove the support vector with the smallest coefficient, and project it onto all the others.

    References
    ----------
    Wang, Crammer and Vucetic (2012), section 5.2: K d = k, solved by Cholesky. An event costs O(B^3), and the store needs B^2
    numbers more memory, so this is for small budgets.

    Examples
    --------
    >>> Projection()
    Projection()
    """

    needs_gram = True

    def event(self, shared: bool) -> Event:  # noqa: ARG002
        """Return the compiled projection."""
        return _project_smallest
