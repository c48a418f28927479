"""The base class of budget maintenance strategies, the strategy `Refusal`, and the compiled call of a strategy.

A model compiles only the maintenance function, or event, of its own strategy, and calls it by address. To compile those of all
strategies would take half of the compile time of a new user, and most models need a single one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from streamsvm.core.compiling.functions import BLOCK_TYPE, compiled, get_address, make_caller
from streamsvm.core.memory.support_vectors import SupportVectorStore, views

#: A compiled maintenance function, ``event(block, random) -> int64``.
Event = Callable[..., Any]


class Strategy:
    """The base class of budget maintenance strategies, which reduce a store with budget + 1 support vectors to its budget.

    To write your own strategy, subclass this and implement `event`. The attributes below declare the needs of the strategy. You
    can pass any instance to a learner as ``maintenance``. Make parameters the fields of a frozen dataclass, because learners
    are cloned and saved together with their strategy. Do not use numba's ``cache=True``, which would keep using functions and
    memory layouts of earlier versions of this package.

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

    #: Whether the strategy needs memory for a Gram matrix of the support vectors.
    needs_gram: ClassVar[bool] = False
    #: Names of the supported kernels; None for all.
    kernels: ClassVar[tuple[str, ...] | None] = None
    #: Whether the strategy merges two support vectors into one, and adds their weights.
    merges: ClassVar[bool] = False

    def event(self, shared: bool) -> Event | None:
        """Return the compiled function that reduces a model with one support vector too many to its budget, such as by a merge
        or a removal. None if this strategy has no such function: then models refuse rows that would exceed the budget.

        Parameters
        ----------
        shared
            Whether several outputs share the support vectors.

        Returns
        -------
        A function compiled by numba. Its arguments are the block of the store (uint8 [nbytes]) and a random number (uint64). It
        returns 1 if it has merged two support vectors, and 0 if not.
        """
        raise NotImplementedError(f"{type(self).__name__} has no event")

    def options(self) -> tuple[int, int]:
        """Two integers from 0 to 2^64 - 1 that the compiled function of this strategy reads from the model's memory, such as a
        hyperparameter. This default is (0, 0).
        """
        return 0, 0


@dataclass(frozen=True)
class Refusal(Strategy):
    """Raise RuntimeError for a support vector beyond the budget.

    This is for reference learners, which keep all support vectors.

    Examples
    --------
    >>> Refusal()
    Refusal()
    """

    def event(self, shared: bool) -> None:  # noqa: ARG002
        """Return None: this strategy has no function that reduces a model to its budget, so that the learner raises an error for
        a row that would exceed it. ``shared`` has no influence.
        """
        return


_ARGUMENTS = f"{BLOCK_TYPE} u8"
_call = make_caller(_ARGUMENTS, "i8")


def set_strategy(store: SupportVectorStore, strategy: Strategy, shared: bool) -> None:
    """Store the budget maintenance ``strategy`` in a model's memory ``store``: the address of its compiled function (0 if it has
    none), and its two option integers. Compiled code calls this function when the model has too many support vectors. ``shared``
    is True if several decision values share the support vectors.

    The event is compiled at the first call. Snapshots do not contain the strategy.
    """
    event = strategy.event(shared)
    cache = store.views.cache[0]
    cache["event"] = 0 if event is None else get_address(event, _ARGUMENTS, "i8")
    cache["options"] = strategy.options()


@compiled(inline=True)
def maintain_budget(block: np.ndarray, random: np.uint64) -> int:
    """Reduce a model that has one support vector too many to its budget, with the strategy that `set_strategy` has stored in it.
    Returns 1 if two support vectors were merged, else 0; without a strategy, does nothing. ``block`` is the learner's memory
    (uint8), changed in place; ``random`` is a random number for the strategy.
    """
    address = views(block).cache[0]["event"]
    return 1 if address != 0 and _call(address, block, random) != 0 else 0
