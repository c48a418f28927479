"""The base class of the strategies of budget maintenance, the strategy of a budget that is not maintained, and their calls.

Each model compiles and calls the event of its strategy only, by address: to compile the events of all strategies would take half
of the time that a new user waits for, and hardly anyone needs more than one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from streamsvm.core.compiling.functions import BLOCK_TYPE, compiled, get_address, make_caller
from streamsvm.core.memory.support_vectors import SupportVectorStore, views

#: A compiled function ``event(block, random) -> int64``.
Event = Callable[..., Any]


class Strategy:
    """The base of strategies of budget maintenance.

    A strategy brings a store with one support vector too many back to its budget.

    To write a strategy of your own, subclass this and implement `event`; the attributes below say what the strategy needs. You
    can pass any instance to a learner as ``maintenance``. Make parameters the fields of a frozen dataclass, because learners
    are cloned and saved together with their strategy. Leave out numba's ``cache=True``: it does not see that a new version of
    this package has other functions or stores.

    Examples
    --------
    A strategy that removes the oldest support vector:

    >>> import numba
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.core.budget import Strategy
    >>> from streamsvm.core.memory.slots import remove_vector
    >>> from streamsvm.core.memory.support_vectors import views

    >>> @numba.njit
    ... def remove_oldest(block, random):
    ...     v = views(block)
    ...     remove_vector(block, v.stamps[: v.header[0]["n_support"]].argmin())
    ...     return 0

    >>> class Oldest(Strategy):
    ...     def event(self, shared):
    ...         return remove_oldest

    >>> model = BSGDClassifier(budget=10, maintenance=Oldest())
    """

    #: Whether the store needs room for a Gram matrix of the support vectors.
    needs_gram: ClassVar[bool] = False
    #: Names of the kernels that the strategy is for; None for all.
    kernels: ClassVar[tuple[str, ...] | None] = None
    #: Whether two support vectors become one, whose weight is the sum of theirs.
    merges: ClassVar[bool] = False

    def event(self, shared: bool) -> Event | None:
        """Return the compiled function that brings a store back to its budget; None if the strategy has none.

        Parameters
        ----------
        shared
            Whether several outputs share the support vectors.

        Returns
        -------
        A function compiled by numba. It takes the block of the store (uint8 [nbytes]) and a random number (uint64), and returns
        1 if it has merged two support vectors, and 0 if not.
        """
        raise NotImplementedError(f"{type(self).__name__} has no event")

    def options(self) -> tuple[int, int]:
        """Return two numbers from 0 to 2^64 - 1, which the event finds in ``views(block).cache[0]["options"]``."""
        return 0, 0


@dataclass(frozen=True)
class Refusal(Strategy):
    """Refuse the support vector that would be one too many, with a RuntimeError.

    This is for reference learners, which have no budget.

    Examples
    --------
    >>> Refusal()
    Refusal()
    """

    def event(self, shared: bool) -> None:  # noqa: ARG002
        """Return None: a store with one support vector too many stays as it is, and the learner restores it."""
        return


_ARGUMENTS = f"{BLOCK_TYPE} u8"
_call = make_caller(_ARGUMENTS, "i8")


def set_strategy(store: SupportVectorStore, strategy: Strategy, shared: bool) -> None:
    """Put the strategy of a store into its block: the address of its event, 0 if it has none, and its two options.

    The event, ``shared`` by several outputs or not, is compiled when it is first asked for. No snapshot holds it.
    """
    event = strategy.event(shared)
    cache = store.views.cache[0]
    cache["event"] = 0 if event is None else get_address(event, _ARGUMENTS, "i8")
    cache["options"] = strategy.options()


@compiled(inline=True)
def maintain_budget(block: np.ndarray, random: np.uint64) -> int:
    """Bring a store with one support vector too many back to its budget, if its strategy (see `set_strategy`) has an event.

    Returns 1 if two support vectors were merged, and 0 if not. ``random`` is for strategies that draw.
    """
    address = views(block).cache[0]["event"]
    return 1 if address != 0 and _call(address, block, random) != 0 else 0
