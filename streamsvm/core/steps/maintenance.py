"""Reduction of a model to a smaller budget, by the strategy that also maintains its budget while it learns."""

from __future__ import annotations

import numpy as np

from streamsvm.core.budget.strategy import Strategy, set_strategy
from streamsvm.core.memory.block import STATE_BEGIN, view_record
from streamsvm.core.memory.support_vectors import SupportVectorStore
from streamsvm.core.steps.iterates import COMMON_STATE
from streamsvm.core.steps.step import draw_bits


def shrink_store(store: SupportVectorStore, strategy: Strategy, shared: bool, budget: int) -> None:
    """Merge or remove support vectors of a model one by one, by its budget maintenance ``strategy``, until at most ``budget`` are
    in its memory ``store``. ``shared`` is True if several decision values share them. Raise a ValueError if that is impossible.
    """
    if store.n_support <= budget:
        return
    set_strategy(store, strategy, shared)
    event = strategy.event(shared)
    while (n := store.n_support) > budget:
        store.views.header["budget"] = n - 1
        if event is not None:
            view_record(store.block, STATE_BEGIN, COMMON_STATE)["n_merges"] += event(
                store.block, np.uint64(draw_bits(store.block))
            )
        if store.n_support == n:
            raise ValueError(f"it has {n} support vectors, and its budget maintenance does not reduce them")
