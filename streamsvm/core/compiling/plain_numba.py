"""Fallback that compiles and caches functions as numba does, for numba versions without the private parts that `numba_functions`
needs.

Everything works, but compiling takes about twice as long, and any change of a source file compiles all functions again.
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

_callbacks: list[Any] = []  # keeps the callbacks alive, and with them their machine code


@cache
def _find_cache_folder() -> str:
    """Return the path of the folder for numba's own cache; empty if none is writable. Its name contains a hash of all sources,
    because numba does not notice changes of called functions in other files.
    """
    folder = find_cache_folder()
    return "" if folder is None else str(folder / f"numba-{compute_sources_digest()[:16]}")


class PlainFunction(PickledByName, type(njit(lambda: None))):  # type: ignore[misc] # numba has no types
    """A compiled function of the library. ``py_func`` is the Python function, ``options`` are those of ``numba.njit``."""

    def __init__(self, py_func: Any, options: dict[str, Any]) -> None:
        options = {"nopython": True, "boundscheck": None, **options}
        self.noinline: bool = options.pop("noinline", False)
        super().__init__(py_func, targetoptions=options)
        old_cache_folder = config.CACHE_DIR
        if cache_folder := _find_cache_folder():
            with contextlib.suppress(RuntimeError):  # raised if its source is not a file
                config.CACHE_DIR = cache_folder
                self.enable_caching()
            config.CACHE_DIR = old_cache_folder

    def compile_entry(self, argument_types: tuple[Any, ...]) -> Any:
        """Compile this function for these argument types, or load it from numba's cache; return numba's compile result."""
        self.compile(argument_types)
        return self.overloads[argument_types]

    def is_stored(self, argument_types: tuple[Any, ...]) -> bool:
        """Return whether this function was compiled for these argument types before, and is in memory or in numba's cache."""
        return argument_types in self.overloads or self._cache.load_overload(argument_types, self.targetctx) is not None


CompiledFunction = PlainFunction  # the name that `numba_functions` has, too


def get_address(function: Any, arguments: str, result: str) -> int:
    """Return the memory address of a compiled function for argument and result types given as text, compiling it if necessary.
    Raises TypeError if it is not a numba function or returns another type.
    """
    argument_types = to_numba_types(arguments)
    if not hasattr(function, "compile"):
        raise TypeError(f"{function!r} must be compiled by numba: put @numba.njit above it")
    function.compile(argument_types)
    return_type = types.unliteral(function.overloads[argument_types].signature.return_type)
    expected_type = to_numba_types(result)[0] if result != NO_RESULT else types.none
    if return_type != expected_type:
        raise TypeError(f"{function.__name__} must return {expected_type}, not {return_type}")
    # A callback that calls the function, since compiling the function itself as a callback would infer all its types again.
    names = ", ".join(f"a{i}" for i in range(len(argument_types)))
    call = eval(f"lambda {names}: function({names})", {"function": function})  # noqa: S307 - the text is only of these names
    callback = cfunc(expected_type(*argument_types))(call)
    _callbacks.append(callback)
    return int(callback.address)


def resolve_type(value: Any) -> Any:
    """Return the numba type of a Python object that compiled code uses as a global variable."""
    cpu_target.typing_context.refresh()  # for implementations registered since the last use
    cpu_target.target_context.refresh()
    return cpu_target.typing_context.resolve_value_type(value)
