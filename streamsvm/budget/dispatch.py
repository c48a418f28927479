"""Budget maintenance by address: each model compiles and calls the one event of its strategy."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable

from streamsvm.budget.strategy import Strategy
from streamsvm.memory.by_address import BLOCK, by_address

__all__ = ["maintain", "upkeep_for"]

_address, _call = by_address((BLOCK, types.Array(types.uint64, 1, "C"), types.uint64), types.int64)


def upkeep_for(strategy: Strategy, shared: bool) -> np.ndarray:
    """Return what `maintain` takes for a strategy: the address of its event and its two options, uint64 [3].

    The event is compiled when it is asked for the first time. The address is 0 where the strategy has no event.

    Parameters
    ----------
    strategy
        The strategy.
    shared
        Whether there are several outputs.
    """
    event = strategy.event(shared)
    return np.array([0 if event is None else _address(event), *strategy.options()], np.uint64)


@register_jitable
def maintain(block: np.ndarray, upkeep: np.ndarray, random: np.uint64) -> int:
    """Bring a store with one support vector too many back to its budget; nothing happens where the strategy has no event.

    Parameters
    ----------
    block
        The store, uint8 [nbytes].
    upkeep
        The strategy as `upkeep_for` gives it, uint64 [3].
    random
        A random number, for strategies that draw.

    Returns
    -------
    1 where two support vectors were merged, else 0.
    """
    return int(_call(upkeep[0], (block, upkeep, random))) if upkeep[0] != 0 else 0
