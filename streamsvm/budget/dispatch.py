"""Budget maintenance by address: each model calls the one event that it needs, and no other is compiled.

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

__all__ = ["maintain", "upkeep_for"]

_ARGUMENTS = (types.Array(types.uint8, 1, "C"), types.Array(types.uint64, 1, "C"), types.uint64)
_EVENTS: dict[int, Event] = {}  # by address; compiled code lives as long as its event


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


@cache
def _address(event: Event) -> int:
    if config.DISABLE_JIT:
        address = id(event)
    else:
        compiler: Any = event
        compiler.compile(_ARGUMENTS)  # or loads it from the disk cache
        compiled = compiler.overloads[_ARGUMENTS]
        returned = types.unliteral(compiled.signature.return_type)
        if returned != types.int64:
            raise TypeError(f"an event must return an int64; {compiler.__name__} returns {returned}")
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    _EVENTS[address] = event
    return address


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
    return int(_EVENTS[int(upkeep[0])](block, upkeep, random)) if upkeep[0] else 0


@intrinsic
def _call(typingctx: Any, address: Any, block: Any, upkeep: Any, random: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        function = ir.FunctionType(ir.IntType(64), [context.get_value_type(argument) for argument in _ARGUMENTS])
        return builder.call(builder.inttoptr(args[0], function.as_pointer()), args[1:])

    return types.int64(types.uint64, *_ARGUMENTS), codegen


@overload(maintain)
def _compiled_maintain(block: Any, upkeep: Any, random: Any) -> Any:
    def maintain(block: Any, upkeep: Any, random: Any) -> Any:
        return _call(upkeep[0], block, upkeep, random) if upkeep[0] != 0 else 0

    return maintain
