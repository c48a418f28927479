"""Budget maintenance by address: each model compiles and calls the one event of its strategy."""

from __future__ import annotations

import numpy as np
from numba import types
from numba.extending import register_jitable

from streamsvm.budget.strategy import Strategy
from streamsvm.memory.by_address import BLOCK, by_address
from streamsvm.memory.support_vectors import SupportVectorStore, views

__all__ = ["maintain", "set_strategy"]

_address, _call = by_address((BLOCK, types.uint64), types.int64)


def set_strategy(store: SupportVectorStore, strategy: Strategy, shared: bool) -> None:
    """Put the strategy of a store into its block: the address of its event, 0 where it has none, and its two options.

    The event is compiled when it is asked for the first time. No snapshot holds it.

    Parameters
    ----------
    store
        The store.
    strategy
        The strategy.
    shared
        Whether there are several outputs.
    """
    event = strategy.event(shared)
    store.views.cache[1:4] = 0 if event is None else _address(event), *strategy.options()


@register_jitable
def maintain(block: np.ndarray, random: np.uint64) -> int:
    """Bring a store with one support vector too many back to its budget; nothing happens where the strategy has no event.

    Parameters
    ----------
    block
        The store, uint8 [nbytes], after `set_strategy`.
    random
        A random number, for strategies that draw.

    Returns
    -------
    1 where two support vectors were merged, else 0.
    """
    event = views(block).cache[1]
    return int(_call(event, (block, random))) if event != 0 else 0
