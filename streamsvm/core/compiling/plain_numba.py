"""Functions as numba compiles and caches them, for a numba without the private parts that `numba_functions` replaces.

Everything works, but a function takes about twice as long to compile, and any change to a source compiles all functions again.
"""

from __future__ import annotations

import contextlib
from functools import cache
from typing import Any

from numba import cfunc, config, njit, types
from numba.core.registry import cpu_target
from numba.extending import overload

from streamsvm.core.compiling import codegen
from streamsvm.core.compiling.cache_folders import find_cache_folder
from streamsvm.core.compiling.common import PickledByName
from streamsvm.core.compiling.machine_code import compute_sources_digest
from streamsvm.core.compiling.signatures import NO_RESULT, to_numba_types

__all__ = ["CompiledFunction", "codegen", "get_address", "overload", "resolve_type"]

_callbacks: list[Any] = []  # their machine code lives as long as they do


@cache
def _cache_folder() -> str:
    # Numba does not see a change to a callee in another file.
    parent = find_cache_folder()
    return "" if parent is None else str(parent / f"numba-{compute_sources_digest()[:16]}")


class PlainFunction(PickledByName, type(njit(lambda: None))):  # type: ignore[misc] # numba has no types
    """A compiled function of the library: ``py_func``, in Python, with the ``options`` of ``numba.njit``."""

    def __init__(self, py_func: Any, options: dict[str, Any]) -> None:
        options = {"nopython": True, "boundscheck": None, **options}
        self.noinline: bool = options.pop("noinline", False)
        super().__init__(py_func, targetoptions=options)
        before = config.CACHE_DIR
        if place := _cache_folder():
            with contextlib.suppress(RuntimeError):  # its source is not a file
                config.CACHE_DIR = place
                self.enable_caching()
            config.CACHE_DIR = before

    def compile_entry(self, arguments: tuple[Any, ...]) -> Any:
        """Compile the function for types of arguments, or load it from numba's cache; return numba's result."""
        self.compile(arguments)
        return self.overloads[arguments]

    def is_stored(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether numba's cache has the function, for types of arguments."""
        return arguments in self.overloads or self._cache.load_overload(arguments, self.targetctx) is not None


CompiledFunction = PlainFunction  # as `numba_functions` calls its own


def get_address(function: Any, arguments: str, result: str) -> int:
    """Return the address of a function for a signature; see `streamsvm.core.compiling.functions.get_address`."""
    kinds = to_numba_types(arguments)
    if not hasattr(function, "compile"):
        raise TypeError(f"{function!r} must be compiled by numba: put @numba.njit above it")
    function.compile(kinds)
    returned = types.unliteral(function.overloads[kinds].signature.return_type)
    expected = to_numba_types(result)[0] if result != NO_RESULT else types.none
    if returned != expected:
        raise TypeError(f"{function.__name__} must return {expected}, not {returned}")
    options = {name: value for name, value in function.targetoptions.items() if name in {"error_model", "fastmath"}}
    callback = cfunc(expected(*kinds), **options)(function.py_func)
    _callbacks.append(callback)
    return int(callback.address)


def resolve_type(value: Any) -> Any:
    """Return numba's type of a value that compiled code refers to."""
    cpu_target.typing_context.refresh()  # for implementations that were registered since the last use
    cpu_target.target_context.refresh()
    return cpu_target.typing_context.resolve_value_type(value)
