"""Removal of a support vector."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from streamsvm.core.budget.smallest import smallest_coefficient
from streamsvm.core.budget.strategy import Event, Strategy
from streamsvm.core.checks import check_one_of
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.slots import remove
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.options import Victim

__all__ = ["Removal"]


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
