"""Budget maintenance by address: each model compiles and calls the one event of its strategy.

Numba compiles a function together with all that it calls by name, and optimises that again in each of its callers. The events of
all strategies would be half of the time that a new user waits for, who hardly ever needs more than one of them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic, overload

from streamsvm.budget.strategy import Event, Strategy
from streamsvm.memory.support_vectors import SupportVectorStore, views

__all__ = ["maintain", "set_strategy"]

_ARGUMENTS = (types.Array(types.uint8, 1, "C"), types.uint64)
_EVENTS: dict[int, Event] = {}  # by address; compiled code lives as long as its event


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


@cache
def _address(event: Any) -> int:
    if config.DISABLE_JIT:
        address = id(event)
    elif not hasattr(event, "compile"):
        raise TypeError(f"{event!r} must be compiled by numba: put @numba.njit above it")
    else:
        if _ARGUMENTS not in event.overloads:
            event.compile(_ARGUMENTS)  # or loads it from the disk cache
        compiled = event.overloads[_ARGUMENTS]
        returned = types.unliteral(compiled.signature.return_type)
        if returned != types.int64:
            raise TypeError(f"{event.__name__} must return int64, not {returned}")
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    _EVENTS[address] = event
    return address


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
    address = int(views(block).cache[1])
    return 1 if address and _EVENTS[address](block, random) else 0


@intrinsic
def _call(typingctx: Any, address: Any, block: Any, random: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = ir.FunctionType(ir.IntType(64), [context.get_value_type(argument) for argument in _ARGUMENTS])
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])

    return types.int64(types.uint64, *_ARGUMENTS), codegen


@overload(maintain)
def _compiled_maintain(block: Any, random: Any) -> Any:
    def maintain(block: Any, random: Any) -> Any:
        address = views(block).cache[1]
        return 1 if address != 0 and _call(address, block, random) != 0 else 0

    return maintain
