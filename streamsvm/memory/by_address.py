"""Compiled functions that are called by their address, so that a model compiles only the ones that it needs.

Numba compiles a function together with all that it calls by name, and optimises that again in each of its callers. A function
that only some models need, or that many others call, is compiled once and called by an address that is in an array.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from llvmlite import ir
from numba import config, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

__all__ = ["BLOCK", "by_address"]

#: The type of a block in compiled code.
BLOCK = types.Array(types.uint8, 1, "C")

_FUNCTIONS: dict[int, Callable[..., Any]] = {}  # compiled code lives as long as its function


def by_address(arguments: tuple[Any, ...], result: Any) -> tuple[Callable[[Any], int], Callable[..., Any]]:
    """Make two functions for compiled functions of one signature, given as types of numba.

    Returns
    -------
    ``address(function)``, which compiles the function or loads it from numba's disk cache, and ``call(address, arguments)`` for
    compiled code, where ``arguments`` is a tuple.
    """

    @cache
    def address(function: Any) -> int:
        if config.DISABLE_JIT:
            place = id(function)
        elif not hasattr(function, "compile"):
            raise TypeError(f"{function!r} must be compiled by numba: put @numba.njit above it")
        else:
            function.compile(arguments)
            compiled = function.overloads[arguments]
            returned = types.unliteral(compiled.signature.return_type)
            if returned != result:
                raise TypeError(f"{function.__name__} must return {result}, not {returned}")
            place = compiled.library.get_pointer_to_function(compiled.fndesc.llvm_cfunc_wrapper_name)
        _FUNCTIONS[place] = function
        return place

    def call(place: int, values: tuple[Any, ...]) -> Any:
        return _FUNCTIONS[int(place)](*values)

    @intrinsic
    def _call(typingctx: Any, place: Any, values: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, given: Any) -> Any:
            function = ir.FunctionType(
                context.get_value_type(result) if result is not types.none else ir.VoidType(),
                [context.get_value_type(argument) for argument in arguments],
            )
            unpacked = cgutils.unpack_tuple(builder, given[1])
            cast = [context.cast(builder, value, *kinds) for value, *kinds in zip(unpacked, values, arguments, strict=True)]
            returned = builder.call(builder.inttoptr(given[0], function.as_pointer()), cast)
            return returned if result is not types.none else context.get_dummy_value()

        return result(types.uint64, values), codegen

    @overload(call)
    def _compiled_call(place: Any, values: Any) -> Any:
        def compiled_call(place: Any, values: Any) -> Any:
            return _call(place, values)

        return compiled_call

    return address, call
