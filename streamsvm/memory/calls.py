"""Calls of compiled functions by address.

Numba compiles a function together with all that it calls by name, and optimises that again in each of its callers. What is called
by address is compiled once, and when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import config, types
from numba.extending import intrinsic

__all__ = ["BLOCK", "address_of", "caller"]

#: The type of a block in compiled code.
BLOCK = types.Array(types.uint8, 1, "C")

_FUNCTIONS: dict[int, Any] = {}  # by address; compiled code lives as long as its function


@cache
def address_of(function: Any, arguments: tuple[Any, ...], result: Any) -> int:
    """Return the address of a compiled function for arguments of these types, which is compiled, or loaded from the disk cache.

    Raises
    ------
    TypeError
        It is not compiled by numba, or returns another type.
    """
    if config.DISABLE_JIT:
        address = id(function)
    elif not hasattr(function, "compile"):
        raise TypeError(f"{function!r} must be compiled by numba: put @numba.njit above it")
    else:
        if arguments not in function.overloads:
            function.compile(arguments)
        compiled = function.overloads[arguments]
        returned = types.unliteral(compiled.signature.return_type)
        if returned != result:
            raise TypeError(f"{function.__name__} must return {result}, not {returned}")
        address = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
    _FUNCTIONS[address] = function
    return address


def caller(arguments: tuple[Any, ...], result: Any) -> Callable[..., Any]:
    """Return a function, for Python and for compiled code, of an address and arguments: it calls what is at the address."""
    if config.DISABLE_JIT:
        return lambda address, *values: _FUNCTIONS[int(address)](*values)

    @intrinsic
    def call(typingctx: Any, address: Any, *values: Any) -> Any:  # noqa: ARG001 - numba asks for the names
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:  # noqa: ARG001
            function = ir.FunctionType(context.get_value_type(result), [context.get_value_type(of) for of in arguments])
            given = [builder.extract_value(args[1], i) for i in range(len(arguments))]
            return builder.call(builder.inttoptr(args[0], function.as_pointer()), given)

        return result(types.uint64, types.StarArgTuple(arguments)), codegen

    return call
