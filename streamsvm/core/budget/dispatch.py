"""Budget maintenance by address: each model compiles and calls the event of its strategy only.

To compile the events of all strategies would take half of the time that a new user waits for, and hardly anyone needs more than
one.
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.budget.strategy import Strategy
from streamsvm.core.compiling.functions import BLOCK, address_of, caller, compiled
from streamsvm.core.memory.support_vectors import SupportVectorStore, views

__all__ = ["maintain", "set_strategy"]

_ARGUMENTS = f"{BLOCK} u8"
_call = caller(_ARGUMENTS, "i8")


def set_strategy(store: SupportVectorStore, strategy: Strategy, shared: bool) -> None:
    """Put the strategy of a store into its block.

    That is the address of its event, 0 if it has none, and its two options. The event is compiled when it is first asked for.
    No snapshot holds it.

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
    store.views.cache[1:4] = 0 if event is None else address_of(event, _ARGUMENTS, "i8"), *strategy.options()


@compiled(inline=True)
def maintain(block: np.ndarray, random: np.uint64) -> int:
    """Bring a store with one support vector too many back to its budget, if its strategy has an event.

    Parameters
    ----------
    block
        The block of the store, uint8 [nbytes], after `set_strategy`.
    random
        A random number, for strategies that draw.

    Returns
    -------
    1 if two support vectors were merged, and 0 if not.
    """
    address = views(block).cache[1]
    return 1 if address != 0 and _call(address, block, random) != 0 else 0
