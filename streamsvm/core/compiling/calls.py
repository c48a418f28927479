"""Calls of compiled functions by address.

Numba compiles a function together with all that it calls by name, and optimises that again in each of its callers. What is called
by address is compiled once, and when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.compiling.functions import with_numba
from streamsvm.core.compiling.signatures import BLOCK

__all__ = ["BLOCK", "Intrinsic", "address_of", "caller"]

_FUNCTIONS: dict[int, Any] = {}  # by address; compiled code lives as long as its function


@cache
def address_of(function: Any, arguments: str, result: str) -> int:
    """Return the address of a compiled function for a signature, which is compiled, or loaded from the disk cache.

    Raises
    ------
    TypeError
        It is not compiled by numba, or returns another type.
    """
    if INTERPRETED:
        address = id(function)
    elif hasattr(function, "shipped_address"):
        address = function.shipped_address(arguments, result) or with_numba().address_of(function.dispatcher, arguments, result)
    else:
        address = with_numba().address_of(function, arguments, result)
    _FUNCTIONS[address] = function
    return address


class Intrinsic:
    """A function for compiled code that is written in the compiler's terms.

    Parameters
    ----------
    find
        Returns what numba knows the function as, from `streamsvm.core.compiling.codegen`; called once numba is needed.
    compiled_from
        What else tells it from others, beside the code of ``find`` and its constants.
    interpreted
        What Python code calls, where there is such a thing.
    """

    def __init__(
        self, find: Callable[[Any], Any], compiled_from: object = (), interpreted: Callable[..., Any] | None = None
    ) -> None:
        self._find, self._interpreted = find, interpreted
        code = find.__code__
        self.compiled_from: tuple[Any, ...] = code.co_code, code.co_names, code.co_consts, compiled_from

    def __call__(self, *values: Any) -> Any:
        if self._interpreted is None:
            raise TypeError("only compiled code can call this")
        return self._interpreted(*values)

    @cached_property
    def _numba_type_(self) -> Any:
        numba = with_numba()
        return numba.type_of(self._find(numba.codegen))


def caller(arguments: str, result: str) -> Any:
    """Return a function, for Python and for compiled code, of an address and arguments: it calls what is at the address."""
    return Intrinsic(
        lambda codegen: codegen.caller(arguments, result),
        (arguments, result),
        lambda address, *values: _FUNCTIONS[int(address)](*values),
    )
