"""Budget maintenance by address: each model calls the one event that it needs, and no other is compiled.

What a compiled function calls by name is compiled with it, and optimised again with each of its callers. Merging for one output,
for several, removal and projection would be half of what a new user waits for, who hardly ever needs more than the first.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import carray, cfunc, config, njit, types
from numba.extending import intrinsic, overload

from streamsvm.budget import maintenance
from streamsvm.budget.merge_table import GRID, merge_tables
from streamsvm.memory.block import STATE_END, pointer

__all__ = ["maintain", "upkeep_for"]

_SIGNATURE = "int64(uint64, uint64, int64, uint64)"


@cache
def upkeep_for(strategy: int, shared: bool) -> np.ndarray:
    """What `maintain` takes for a strategy, uint64 [3]: the event's address, that of the tables, and the strategy's code.

    Compiles the event when it is asked for the first time.

    Parameters
    ----------
    strategy
        A search of `budget.merging`, or one of the codes of `budget.maintenance`. `REFUSAL` has no event.
    shared
        Whether there are several outputs.
    """
    if strategy == maintenance.REFUSAL:
        return np.zeros(3, np.uint64)
    if strategy <= maintenance.MERGE_LAST:
        event = 1 if shared else 0
    else:
        event = 2 if strategy == maintenance.PROJECTION else 3
    address = event if config.DISABLE_JIT else _compiled(event).address
    return np.array([address, merge_tables().ctypes.data, strategy], np.uint64)


@cache  # kept, as its code is gone with it
def _compiled(event: int) -> Any:
    return cfunc(_SIGNATURE, cache=True)(_CALLED[event])


def maintain(block: np.ndarray, upkeep: np.ndarray, random: np.uint64) -> int:
    """Bring a store with one support vector too many back to its budget: 1 where two support vectors were merged, else 0."""
    return int(_EVENTS[int(upkeep[0])](block, merge_tables(), int(upkeep[2]), random))


@intrinsic
def _call(typingctx: Any, address: Any, block: Any, tables: Any, strategy: Any, random: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        number = ir.IntType(64)
        function = ir.FunctionType(number, [number] * 4)
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])

    return types.int64(types.uint64, types.uint64, types.uint64, types.int64, types.uint64), codegen


@overload(maintain)
def _compiled_maintain(block: Any, upkeep: Any, random: Any) -> Any:
    def maintain(block: Any, upkeep: Any, random: Any) -> Any:
        return _call(upkeep[0], np.uint64(block.ctypes.data), upkeep[1], np.int64(upkeep[2]), random)

    return maintain


@njit(cache=True, forceinline=True)
def _block(address: int) -> np.ndarray:
    return carray(pointer(np.uintp(address)), (STATE_END,), np.uint8)  # `views` finds the rest


@njit(cache=True, forceinline=True)
def _tables(address: int) -> np.ndarray:
    return carray(pointer(np.uintp(address)), (2, GRID, GRID), np.float32)


def _merge(block: int, tables: int, strategy: int, random: np.uint64) -> int:
    return maintenance.merge(_block(block), _tables(tables), strategy, random)


def _merge_shared(block: int, tables: int, strategy: int, random: np.uint64) -> int:
    return maintenance.merge_shared(_block(block), _tables(tables), strategy, random)


def _project(block: int, tables: int, strategy: int, random: np.uint64) -> int:
    return maintenance.project(_block(block), _tables(tables), strategy, random)


def _drop(block: int, tables: int, strategy: int, random: np.uint64) -> int:
    return maintenance.drop(_block(block), _tables(tables), strategy, random)


_CALLED = (_merge, _merge_shared, _project, _drop)
_EVENTS = (maintenance.merge, maintenance.merge_shared, maintenance.project, maintenance.drop)
