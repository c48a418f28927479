"""Budget maintenance by merging two support vectors into one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from streamsvm.core.budget.merge_search import SEARCHES, find_partner, find_position, find_shared_partner, find_shared_position
from streamsvm.core.budget.merge_table import GRID, load_tables
from streamsvm.core.budget.removal import find_smallest_coefficient
from streamsvm.core.budget.strategy import Event, Strategy
from streamsvm.core.checks import Search, check_one_of
from streamsvm.core.compiling.functions import Intrinsic, compiled
from streamsvm.core.memory.slots import compute_slot_kernels, remove_vector, stamp_vector
from streamsvm.core.memory.support_vectors import views

# Returns the tables at an address, which a block contains. Plain Python ignores the address.
_tables = Intrinsic(
    lambda codegen: codegen.implement_array_at(lambda address: None, (2, GRID, GRID), np.float32),  # noqa: ARG005
    lambda address: load_tables(),  # noqa: ARG005
    (GRID,),
)


@compiled
def _select_vector_to_merge(block: np.ndarray) -> int:
    """Return the index of the support vector with the smallest coefficient in the learner's memory ``block`` (uint8 [bytes]).
    Its kernel values and squared distances to all support vectors are computed and stored there for the merge that follows.
    """
    slot = find_smallest_coefficient(block)
    compute_slot_kernels(block, slot)
    return slot


@compiled
def merge_smallest(block: np.ndarray, random: np.uint64) -> int:  # noqa: ARG001
    """Replace two support vectors of a model with one decision value by one: that with the smallest coefficient, and the partner
    for which this changes the model least. Returns 1; or 0 if no other coefficient has its sign, so that it was removed and its
    coefficient added to the nearest one. ``block`` is the learner's memory, changed in place; ``random`` is ignored.
    """
    v, first = views(block), _select_vector_to_merge(block)
    tables, search = _tables(v.cache[0]["options"][0]), np.int64(v.cache[0]["options"][1])
    partner = find_partner(block, search, tables, first)
    if partner < 0:
        return _project_onto_nearest(block, first)
    a_first, a_partner = abs(v.coefficients[0, first]), abs(v.coefficients[0, partner])
    larger, q = max(a_first, a_partner), v.header[0]["gamma"] * v.kernel_rows[3, partner]
    return _merge_at(block, first, partner, find_position(search, tables, larger / (larger + a_first), q))


@compiled
def _merge_smallest_shared(block: np.ndarray, random: np.uint64) -> int:  # noqa: ARG001
    """Replace two support vectors of a model with several decision values by one: that with the shortest coefficient vector, and
    the partner for which this changes the model least. Returns 1; or 0 if no partner is suitable, so that it was removed and its
    coefficients added to the nearest one. ``block`` is the learner's memory, changed in place; ``random`` is ignored.
    """
    v, first = views(block), _select_vector_to_merge(block)
    tables, search = _tables(v.cache[0]["options"][0]), np.int64(v.cache[0]["options"][1])
    partner = find_shared_partner(block, search, tables, first)
    if partner < 0:
        return _project_onto_nearest(block, first)
    lengths, ab = v.kernel_rows[0], np.float64(v.kernel_rows[1, partner])
    q = v.header[0]["gamma"] * np.float64(v.kernel_rows[3, partner])
    position = find_shared_position(search, tables, np.float64(lengths[first]), np.float64(lengths[partner]), ab, q)
    return _merge_at(block, first, partner, position)


@compiled
def _merge_at(block: np.ndarray, first: int, partner: int, position: float) -> int:
    """Replace the support vectors with the indices ``first`` and ``partner`` by one on the line between them: ``position`` 0 is
    at the first, 1 at the partner. ``block`` is the learner's memory, changed in place; squared distances of the first one must
    have been stored in it. Returns 1.

    The merged vector takes the slot of the partner.
    """
    v = views(block)
    h = v.header[0]
    q = h["gamma"] * v.kernel_rows[3, partner]
    k_first, k_partner = math.exp(-(position**2) * q), math.exp(-((1.0 - position) ** 2) * q)
    norm = 0.0
    for j in range(h["used"]):
        z = np.float32(position * v.vectors[j, partner] + (1.0 - position) * v.vectors[j, first])
        v.vectors[j, partner] = z
        norm += np.float64(z) * np.float64(z)
    for k in range(h["n_outputs"]):
        v.coefficients[k, partner] = k_partner * v.coefficients[k, partner] + k_first * v.coefficients[k, first]
    v.weights[partner] += v.weights[first]
    stamp_vector(block, partner, norm)
    remove_vector(block, first)
    return 1


@compiled
def _project_onto_nearest(block: np.ndarray, slot: int) -> int:
    """Remove the support vector with index ``slot``, and add its coefficient, times their kernel value, to that of the nearest
    one. It is for a vector that has no partner to merge with. ``block`` is the learner's memory, changed in place. Returns 0:
    nothing was merged.

    Of all changes that do not move another support vector, this one degrades the model least: by |a|^2 (1 - kappa^2).
    """
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
        for k in range(h["n_outputs"]):
            v.coefficients[k, nearest] += kernels[nearest] * v.coefficients[k, slot]
    remove_vector(block, slot)
    return 0


@dataclass(frozen=True)
class Merge(Strategy):
    """Merge the support vector with the smallest coefficient with its best partner: budget maintenance for the Gaussian kernel.

    The best partner is the one for which the merge degrades the model least.

    Parameters
    ----------
    search
        Method that finds the position of the merged vector and the weight degradation for each of the B candidates:

        - ``"lookup-wd"`` interpolates the degradation from a table. With three or more classes, which the table does not cover,
          an estimate ranks the candidates, and the degradation of the first 8 is computed, with positions by a fixed-point
          iteration to 1e-6.
        - ``"lookup-h"`` interpolates the position from a table, and computes the degradation. With three or more classes, the
          table is indexed by the lengths of the two coefficient vectors.
        - ``"gss"`` finds the position by golden section search to 0.01, and computes the degradation. With three or more
          classes, both are summed over the outputs.
        - ``"gss-precise"`` is the same search to 1e-10.

    Raises
    ------
    ValueError
        ``search`` is unknown.

    Notes
    -----
    For the Gaussian kernel only. A merge costs O(B d) for the distances and O(B) steps of the search; with K >= 3 classes O(B
    K) more.

    References
    ----------
    Glasmachers, T., Qaadan, S. (2018). Speeding up budgeted stochastic gradient descent SVM training with precomputed golden
    section search. Algorithm 1 and section 3; errata in ``streamsvm.core.budget.merge_table``. The method for three and more
    classes is our own.

    Examples
    --------
    >>> Merge()
    Merge(search='lookup-wd')
    """

    search: Search = "lookup-wd"
    kernels: ClassVar[tuple[str, ...] | None] = ("rbf",)
    merges = True

    def __post_init__(self) -> None:
        check_one_of("search", self.search, SEARCHES)

    def event(self, shared: bool) -> Event:
        """Return the compiled function that reduces a model by one support vector, by merging two. ``shared`` is True for a
        model whose several decision values share the support vectors, False for a single decision value.
        """
        return _merge_smallest_shared if shared else merge_smallest

    def options(self) -> tuple[int, int]:
        """Two integers that the compiled merge function of this strategy reads: the memory address of its precomputed tables,
        and the number of the search method for the best position (a value of the dict ``SEARCHES``).
        """
        return load_tables().ctypes.data, SEARCHES[self.search]
