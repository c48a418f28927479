"""The decorator of compiled functions, what numba must know to compile them, and calls of them by address.

A function under `compiled` is one of three things. Where machine code was shipped that fits, it is a `Shipped` function, and
numba is not even imported. Otherwise it is a dispatcher of numba's, which compiles it for its callers (see `numba_functions`).
Under ``NUMBA_DISABLE_JIT=1`` it stays what it is, a Python function.

Numba compiles a function together with all that it calls by name, and optimises that again in each of its callers. What is called
by address is compiled once, and when it is asked for; what is kept apart is compiled once, with the first of its callers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import cache, cached_property
from typing import Any

from streamsvm.core.compiling import machine_code
from streamsvm.core.compiling.common import INTERPRETED, OVERLOADS
from streamsvm.core.compiling.signatures import BLOCK_TYPE

__all__ = ["BLOCK_TYPE", "Intrinsic", "compiled", "get_address", "load_backend", "make_caller", "overload", "register_with_numba"]

_untold: deque[Callable[[], object]] = deque()
_numba: Any = None
_telling = threading.RLock()  # what is told may need numba itself


def load_backend() -> Any:
    """Import numba, tell it what it must know, and return `numba_functions`, or `plain_numba` in its place."""
    global _numba  # noqa: PLW0603 - set once
    if _numba is None:
        with _telling:
            module = _import_with_numba()
            _tell_once()
            _numba = module
            _tell_once()  # what another thread has added meanwhile
    return _numba


@cache
def _import_with_numba() -> Any:
    # Half a second, which machine code saves.
    import numba  # noqa: PLC0415

    if numba.config.DISABLE_JIT:
        why = "disable_jit in numba's configuration file is not seen in time: set NUMBA_DISABLE_JIT=1 in the environment"
        raise ImportError(why)
    try:
        from streamsvm.core.compiling import numba_functions  # noqa: PLC0415
    except (ImportError, AttributeError) as error:
        import logging  # noqa: PLC0415

        from streamsvm.core.compiling import plain_numba  # noqa: PLC0415

        why = f"numba {numba.__version__} compiles without the library's changes, in about twice the time: {error}"
        logging.getLogger("streamsvm").warning(why)
        return plain_numba
    return numba_functions


def register_with_numba(tell: Callable[[], object]) -> None:
    """Call ``tell``, which registers something with numba, once numba is needed."""
    if INTERPRETED:
        return
    _untold.append(tell)
    if _numba is not None:
        _tell_once()


def _tell_once() -> None:
    while True:
        try:
            tell = _untold.popleft()
        except IndexError:  # or another thread has taken the last one
            return
        tell()


def compiled(
    function: Any = None,
    *,
    fastmath: Any = False,
    inline: bool = False,
    nogil: bool = False,
    forceinline: bool = False,
    noinline: bool = False,
) -> Any:
    """Compile a function when it is called for the first time. Division by 0 gives what numpy gives.

    ``fastmath`` is what the compiler may assume of arithmetic; see `streamsvm.core.kernels.FAST`. ``inline`` writes the function
    out in its callers before types are known: it has none of its own. ``nogil`` releases the interpreter's lock while it runs,
    and ``forceinline`` writes the machine code out in the callers. A ``noinline`` function is compiled once, and its callers
    have no copy of it: that pays if it is long and has many callers.
    """
    options: dict[str, Any] = {"error_model": "numpy"}
    options |= {"fastmath": fastmath} if fastmath else {}
    options |= {"inline": "always"} if inline else {}
    options |= {"nogil": True} if nogil else {}
    options |= {"forceinline": True} if forceinline else {}
    options |= {"noinline": True} if noinline else {}

    def make(function: Any) -> Any:
        if INTERPRETED:
            return function
        if machine_code.is_available():
            return machine_code.PrecompiledFunction(function, options, load_backend)
        return load_backend().CompiledFunction(function, options)

    return make if function is None else make(function)


def overload(function: Any) -> Callable[[Any], Any]:
    """Give compiled code its own implementation of a Python function, as ``numba.extending.overload`` does."""

    def keep(implementation: Any) -> Any:
        OVERLOADS[function] = implementation
        register_with_numba(lambda: load_backend().overload(function)(implementation))
        return implementation

    return keep


_FUNCTIONS: dict[int, Any] = {}  # by address; compiled code lives as long as its function


@cache
def get_address(function: Any, arguments: str, result: str) -> int:
    """Return the address of a compiled function for a signature, which is compiled, or loaded from the disk cache.

    It is a TypeError if it is not compiled by numba, or returns another type.
    """
    if INTERPRETED:
        address = id(function)
    elif hasattr(function, "shipped_address"):
        address = function.shipped_address(arguments, result) or load_backend().get_address(
            function.dispatcher, arguments, result
        )
    else:
        address = load_backend().get_address(function, arguments, result)
    _FUNCTIONS[address] = function
    return address


class Intrinsic:
    """A function for compiled code that is written in the compiler's terms.

    ``find`` returns what numba knows it as, from `streamsvm.core.compiling.codegen`, and is called once numba is needed. Beside
    its code and constants, ``compiled_from`` tells it from others. ``interpreted`` is what Python code calls.
    """

    def __init__(self, find: Callable[[Any], Any], interpreted: Callable[..., Any], compiled_from: object = ()) -> None:
        self._find, self._interpreted = find, interpreted
        code = find.__code__
        self.compiled_from: tuple[Any, ...] = code.co_code, code.co_names, code.co_consts, compiled_from

    def __call__(self, *values: Any) -> Any:
        return self._interpreted(*values)

    @cached_property
    def _numba_type_(self) -> Any:
        numba = load_backend()
        return numba.resolve_type(self._find(numba.codegen))


def make_caller(arguments: str, result: str) -> Any:
    """Return a function, for Python and for compiled code, of an address and arguments: it calls what is at the address."""
    return Intrinsic(
        lambda codegen: codegen.make_caller(arguments, result),
        lambda address, *values: _FUNCTIONS[int(address)](*values),
        (arguments, result),
    )
