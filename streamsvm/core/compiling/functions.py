"""The decorator of compiled functions, and what numba must know to compile them.

A function under `compiled` is one of three things. Where machine code was shipped that fits, it is a `Shipped` function, and
numba is not even imported. Otherwise it is a dispatcher of numba's, which compiles it for its callers (see `numba_functions`).
Under ``NUMBA_DISABLE_JIT=1`` it stays what it is, a Python function.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from streamsvm.core.compiling import machine_code
from streamsvm.core.compiling.common import INTERPRETED, OVERLOADS

__all__ = ["compiled", "overload", "tell_numba", "with_numba"]

_untold: deque[Callable[[], object]] = deque()
_numba: Any = None
_telling = threading.RLock()  # what is told may need numba itself


def with_numba() -> Any:
    """Import numba, tell it what it must know, and return `numba_functions`."""
    global _numba  # noqa: PLW0603 - set once
    if _numba is None:
        with _telling:
            from streamsvm.core.compiling import numba_functions  # noqa: PLC0415 - half a second, which machine code saves

            _tell()
            _numba = numba_functions
            _tell()  # what another thread has added meanwhile
    return _numba


def tell_numba(tell: Callable[[], object]) -> None:
    """Call ``tell``, which registers something with numba, once numba is needed."""
    if INTERPRETED:
        return
    _untold.append(tell)
    if _numba is not None:
        _tell()


def _tell() -> None:
    while True:
        try:
            tell = _untold.popleft()
        except IndexError:  # or another thread has taken the last one
            return
        tell()


def compiled(
    function: Any = None, *, fastmath: Any = False, inline: bool = False, nogil: bool = False, forceinline: bool = False
) -> Any:
    """Compile a function when it is called for the first time.

    Division by 0 gives what numpy gives.

    Parameters
    ----------
    function
        A Python function that numba can compile.
    fastmath
        What the compiler may assume of arithmetic; see `streamsvm.core.kernels.FAST`.
    inline
        Write the function out in its callers before types are known: it has none of its own.
    nogil
        Release the interpreter's lock while it runs.
    forceinline
        Write the machine code out in the callers.
    """
    options: dict[str, Any] = {"error_model": "numpy"}
    options |= {"fastmath": fastmath} if fastmath else {}
    options |= {"inline": "always"} if inline else {}
    options |= {"nogil": True} if nogil else {}
    options |= {"forceinline": True} if forceinline else {}

    def make(function: Any) -> Any:
        if INTERPRETED:
            return function
        if machine_code.in_use():
            return machine_code.Shipped(function, options, with_numba)
        return with_numba().Function(function, options)

    return make if function is None else make(function)


def overload(function: Any) -> Callable[[Any], Any]:
    """Give compiled code its own implementation of a Python function, as ``numba.extending.overload`` does."""

    def keep(implementation: Any) -> Any:
        OVERLOADS[function] = implementation
        tell_numba(lambda: with_numba().overload(function)(implementation))
        return implementation

    return keep
