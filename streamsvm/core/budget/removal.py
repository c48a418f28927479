"""Budget maintenance by removing a support vector, with or without projecting it onto the others."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streamsvm.core.budget.strategy import Event, Strategy
from streamsvm.core.checks import Victim, check_one_of
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LEAST_SELF_KERNEL, compute_self_kernel
from streamsvm.core.memory.block import LARGEST_COEFFICIENT
from streamsvm.core.memory.slots import compute_slot_kernels, remove_vector
from streamsvm.core.memory.support_vectors import views

_NEVER = np.int64(2**62)  # later than any stamp


@compiled
def find_oldest_minimum(values: np.ndarray, stamps: np.ndarray, n: int) -> int:
    """Return the index of the smallest of the first ``n`` ``values``, float32, all at least 0. Of several equal ones, it is the
    one with the smallest of ``stamps`` (insertion numbers), so the oldest.
    """
    bits = values.view(np.int32)  # non-negative floats have the order of their bits, and integers are compared in SIMD
    minimum = bits[0]
    for k in range(1, n):
        minimum = min(minimum, bits[k])
    oldest = _NEVER
    for k in range(n):
        oldest = min(oldest, stamps[k] if bits[k] == minimum else _NEVER)
    index = n - 1
    for k in range(n):
        index = min(index, k if stamps[k] == oldest else n - 1)
    return index


@compiled(fastmath=FAST)
def sum_squared_coefficients(coefficients: np.ndarray, n_outputs: int, n: int, out: np.ndarray) -> None:
    """Write the squared length of the coefficient vector of each of ``n`` support vectors (the sum of its squared coefficients
    over all outputs) into ``out``, float32 [n].

    Every other row of ``coefficients``, float64 [n_outputs or more, n or more], belongs to the last iterate; the others are
    ignored.
    """
    for i in range(n):
        out[i] = np.float32(0.0)
    for k in range(0, n_outputs, 2):
        for i in range(n):
            out[i] += np.float32(coefficients[k, i] * coefficients[k, i])


@compiled
def find_smallest_coefficient(block: np.ndarray) -> int:
    """Return the index (slot) of the support vector with the smallest absolute coefficient or, in a model with several decision
    values, with the shortest coefficient vector. ``block`` is the learner's memory (uint8).

    The absolute coefficients, or the squared lengths, remain in ``degradations``. They are float32, and the oldest one wins ties,
    because Pegasos gives equal coefficients, except for rounding, to all rows that were never merged. O(B outputs).
    """
    v = views(block)
    n, n_outputs = v.header[0]["n_support"], v.header[0]["n_outputs"]
    if n_outputs > 2:
        sum_squared_coefficients(v.coefficients, n_outputs, n, v.degradations)
    else:
        for k in range(n):
            v.degradations[k] = np.float32(abs(v.coefficients[0, k]))
    return find_oldest_minimum(v.degradations, v.stamps, n)


@compiled
def _remove_smallest(block: np.ndarray, random: np.uint64) -> int:  # noqa: ARG001
    """Remove the support vector with the smallest coefficient from the model in ``block``, the learner's memory (uint8).
    ``random`` is ignored. Returns 0, the number of merges.
    """
    remove_vector(block, find_smallest_coefficient(block))
    return 0


@compiled
def _remove_random(block: np.ndarray, random: np.uint64) -> int:
    """Remove a random support vector from the model in ``block``, the learner's memory (uint8). The random number ``random``
    selects it. Returns 0, the number of merges.
    """
    remove_vector(block, np.int64(random % np.uint64(views(block).header[0]["n_support"])))
    return 0


_EVENTS = {"smallest": _remove_smallest, "random": _remove_random}


@dataclass(frozen=True)
class Removal(Strategy):
    """Remove one support vector without compensation.

    Parameters
    ----------
    which
        The support vector to remove: ``"smallest"`` is the one with the smallest coefficient, ``"random"`` any one, drawn with
        the seed of the learner.

    Raises
    ------
    ValueError
        ``which`` is unknown.

    References
    ----------
    Wang, Crammer and Vucetic (2012), Breaking the curse of kernelization, section 5.1. A removal costs O(B + d).

    Examples
    --------
    >>> Removal("random")
    Removal(which='random')
    """

    which: Victim = "smallest"

    def __post_init__(self) -> None:
        check_one_of("which", self.which, _EVENTS)

    def event(self, shared: bool) -> Event:  # noqa: ARG002
        """Return the compiled function that reduces a model by one support vector: it removes that with the smallest
        coefficient, or a random one, as this strategy's parameter ``which`` requests. ``shared`` (several decision values share
        the vectors) has no influence.
        """
        return _EVENTS[self.which]


# Added to the diagonal of the Gram matrix, which is singular within rounding if two support vectors are nearly equal.
_RIDGE = 1e-6
# 1 / sqrt(_RIDGE), the largest possible coefficient in the projection of a unit vector.
_LARGEST_PROJECTION = 1e3


@compiled(fastmath=FAST)
def _project_smallest(block: np.ndarray, random: np.uint64) -> int:  # noqa: ARG001
    """Remove the support vector with the smallest coefficient, and change the coefficients of all others so that the model
    changes least (a projection onto their span). ``block`` is the learner's memory (uint8), changed in place; ``random`` is
    ignored. Returns 0, the number of merges.
    """
    slot = find_smallest_coefficient(block)
    v = views(block)
    h = v.header[0]
    last = h["n_support"] - 1
    for k in range(h["n_outputs"]):  # swap the vector to be removed with the last one
        v.coefficients[k, slot], v.coefficients[k, last] = v.coefficients[k, last], v.coefficients[k, slot]
    for j in range(h["used"]):
        v.vectors[j, slot], v.vectors[j, last] = v.vectors[j, last], v.vectors[j, slot]
    v.norms[slot], v.norms[last] = v.norms[last], v.norms[slot]
    v.stamps[slot], v.stamps[last] = v.stamps[last], v.stamps[slot]
    v.weights[slot], v.weights[last] = v.weights[last], v.weights[slot]
    gram, lengths = v.gram, v.degradations
    for i in range(last + 1):
        square = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        lengths[i] = np.float32(math.sqrt(square)) if square >= LEAST_SELF_KERNEL else np.float32(0.0)
    # Cholesky factorisation of the matrix of cosines, whose last row is the forward substitution for the removed vector. If
    # values of a polynomial kernel are clipped, the matrix may be indefinite. A negative pivot is set to 0, and
    # nothing is projected onto that vector.
    for i in range(last + 1):
        compute_slot_kernels(block, i)
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
        for k in range(h["n_outputs"]):
            a = v.coefficients[k, i] + factor * v.coefficients[k, last]
            v.coefficients[k, i] = min(max(a, -LARGEST_COEFFICIENT), LARGEST_COEFFICIENT)
    remove_vector(block, last)
    return 0


@dataclass(frozen=True)
class Projection(Strategy):
    """Remove the support vector with the smallest coefficient, and project it onto all others.

    References
    ----------
    Wang, Crammer and Vucetic (2012), section 5.2: K d = k, solved by Cholesky factorisation. A projection costs O(B^3), and the
    store needs memory for B^2 more numbers, so this is for small budgets.

    Examples
    --------
    >>> Projection()
    Projection()
    """

    needs_gram = True

    def event(self, shared: bool) -> Event:  # noqa: ARG002
        """Return the compiled function that reduces a model by one support vector: it removes that with the smallest
        coefficient, and projects it onto the others. ``shared`` (several decision values share the vectors) has no influence.
        """
        return _project_smallest
