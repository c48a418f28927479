"""Removal of a support vector, and the search for the one with the smallest coefficient, with which most strategies begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamsvm.core.budget.strategy import Event, Strategy
from streamsvm.core.checks import Victim, check_one_of
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST
from streamsvm.core.memory.slots import remove
from streamsvm.core.memory.support_vectors import views

_NEVER = np.int64(2**62)  # later than any stamp


@compiled
def oldest_argmin(values: np.ndarray, stamps: np.ndarray, n: int) -> int:
    """Return the index of the minimum of ``values`` float32 [n], all at least 0; among equals the least stamp decides."""
    bits = values.view(np.int32)  # numbers of at least 0 are ordered as their bits are, and integers compare in SIMD
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
def squared_coefficients(coefficients: np.ndarray, live: int, n: int, out: np.ndarray) -> None:
    """Sum the squares of each support vector's coefficients over the outputs, into ``out`` float32 [n].

    Of ``coefficients`` float64 [live or more, n or more] every other row is of the last iterate; the others are left out.
    """
    for i in range(n):
        out[i] = np.float32(0.0)
    for k in range(0, live, 2):
        for i in range(n):
            out[i] += np.float32(coefficients[k, i] * coefficients[k, i])


@compiled
def smallest_coefficient(block: np.ndarray) -> int:
    """Return the slot with the smallest coefficient, of several outputs with the shortest vector of coefficients.

    The absolute coefficients, or the squared lengths, stay in ``degradations``. Pegasos gives all rows that were never merged
    equal coefficients but for rounding: so float32 decides, and the oldest of equals is taken. O(B outputs).
    """
    v = views(block)
    n, live = v.header[0]["n_support"], v.header[0]["live"]
    if live > 2:
        squared_coefficients(v.coefficients, live, n, v.degradations)
    else:
        for k in range(n):
            v.degradations[k] = np.float32(abs(v.coefficients[0, k]))
    return oldest_argmin(v.degradations, v.stamps, n)


@compiled
def _remove_smallest(block: np.ndarray, random: np.uint64) -> int:  # noqa: ARG001
    remove(block, smallest_coefficient(block))
    return 0


@compiled
def _remove_random(block: np.ndarray, random: np.uint64) -> int:
    remove(block, np.int64(random % np.uint64(views(block).header[0]["n_support"])))
    return 0


_EVENTS = {"smallest": _remove_smallest, "random": _remove_random}


@dataclass(frozen=True)
class Removal(Strategy):
    """Remove one support vector, and what it contributed.

    Parameters
    ----------
    which
        The support vector to remove: ``"smallest"`` is the one with the smallest coefficient, ``"random"`` any one, drawn with
        the seed of the learner.

    Raises
    ------
    ValueError
        ``which`` is neither.

    References
    ----------
    Wang, Crammer and Vucetic (2012), Breaking the curse of kernelization, section 5.1. An event costs O(B + d).

    Examples
    --------
    >>> Removal("random")
    Removal(which='random')
    """

    which: Victim = "smallest"

    def __post_init__(self) -> None:
        check_one_of("which", self.which, _EVENTS)

    def event(self, shared: bool) -> Event:  # noqa: ARG002
        """Return the compiled removal."""
        return _EVENTS[self.which]
