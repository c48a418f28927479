"""The decorator `compiled`, registration of functions with numba, and calls of compiled functions by their address.

A function under `compiled` becomes one of three things. If precompiled machine code was shipped and fits, it is a
`PrecompiledFunction`, and numba is not imported. Otherwise it is a numba dispatcher (see `numba_functions`). Under
``NUMBA_DISABLE_JIT=1`` it stays a Python function.

Numba compiles a function together with all functions that it calls by name, and optimises these again in each caller. A function
that is called by address is compiled once, when its address is requested; a ``noinline`` function is compiled once, with its
first caller.
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

_pending_registrations: deque[Callable[[], object]] = deque()
_numba: Any = None
_registration_lock = threading.RLock()  # reentrant, because a registration may load the backend itself


def load_backend() -> Any:
    """Import numba when it is first needed, and return the module of this package that compiles functions: `numba_functions`, or
    `plain_numba` if this version of numba has other internals. Also calls the functions that `register_with_numba` has postponed
    until this import.
    """
    global _numba  # noqa: PLW0603 - set once
    if _numba is None:
        with _registration_lock:
            module = _import_backend()
            _run_registrations()
            _numba = module
            _run_registrations()  # registrations that another thread has added in the meantime
    return _numba


@cache
def _import_backend() -> Any:
    """Import numba, which takes half a second, and return the module that compiles functions with it: `numba_functions`, or with
    a logged warning `plain_numba`, which relies on numba's public parts only.
    """
    import numba  # noqa: PLC0415

    if numba.config.DISABLE_JIT:
        message = "disable_jit in numba's configuration file is not seen in time: set NUMBA_DISABLE_JIT=1 in the environment"
        raise ImportError(message)
    try:
        from streamsvm.core.compiling import numba_functions  # noqa: PLC0415
    except (ImportError, AttributeError) as error:
        import logging  # noqa: PLC0415

        from streamsvm.core.compiling import plain_numba  # noqa: PLC0415

        message = f"numba {numba.__version__} compiles without the library's changes, in about twice the time: {error}"
        logging.getLogger("streamsvm").warning(message)
        return plain_numba
    return numba_functions


def register_with_numba(register: Callable[[], object]) -> None:
    """Call ``register()``, which registers types or functions with numba: at once if numba is imported already, otherwise later
    when it is. If compilation is disabled, it is never called.
    """
    if INTERPRETED:
        return
    _pending_registrations.append(register)
    if _numba is not None:
        _run_registrations()


def _run_registrations() -> None:
    """Call the registrations that `register_with_numba` has postponed. Each is called once, even if several threads run this
    function.
    """
    while True:
        try:
            register = _pending_registrations.popleft()
        except IndexError:  # another thread may have taken the last one
            return
        register()


def compiled(
    function: Any = None,
    *,
    fastmath: Any = False,
    inline: bool = False,
    nogil: bool = False,
    forceinline: bool = False,
    noinline: bool = False,
) -> Any:
    """Decorator: let numba compile a function when it is first called, or use precompiled machine code if available. The keyword
    arguments are compile options. Returns the function itself if compilation is disabled (NUMBA_DISABLE_JIT).

    ``fastmath`` is a set of permitted floating point optimisations; see `streamsvm.core.kernels.FAST`. ``inline`` copies the body
    into its callers before types are inferred, so that the function itself is never compiled. ``nogil`` releases the interpreter
    lock while the function runs, and ``forceinline`` copies its machine code into the callers. A ``noinline`` function is
    compiled once, and its callers have no copy of it: that pays if it is long and has many callers.
    """
    options: dict[str, Any] = {"error_model": "numpy"}
    options |= {"fastmath": fastmath} if fastmath else {}
    options |= {"inline": "always"} if inline else {}
    options |= {"nogil": True} if nogil else {}
    options |= {"forceinline": True} if forceinline else {}
    options |= {"noinline": True} if noinline else {}

    def decorate(function: Any) -> Any:
        if INTERPRETED:
            return function
        if machine_code.is_available():
            return machine_code.PrecompiledFunction(function, options, load_backend)
        return load_backend().CompiledFunction(function, options)

    return decorate if function is None else decorate(function)


def overload(function: Any) -> Callable[[Any], Any]:
    """Return a decorator that registers a function as the implementation of ``function`` in compiled code. It works as
    ``numba.extending.overload``, but imports numba only when it is needed.
    """

    def register(implementation: Any) -> Any:
        OVERLOADS[function] = implementation
        register_with_numba(lambda: load_backend().overload(function)(implementation))
        return implementation

    return register


_FUNCTIONS_BY_ADDRESS: dict[int, Any] = {}  # keeps functions alive, and with them their compiled code


@cache
def get_address(function: Any, arguments: str, result: str) -> int:
    """Return the memory address of a compiled function for argument and result types given as text (such as ``"u1:1 f8"`` and
    ``"f8"``), so that compiled code can call it; the function is compiled or loaded from the disk cache if necessary.

    Raises TypeError if the function is not compiled by numba, or returns another type.
    """
    if INTERPRETED:
        address = id(function)
    elif hasattr(function, "shipped_address"):
        address = function.shipped_address(arguments, result)
        address = address or load_backend().get_address(function.dispatcher, arguments, result)
    else:
        address = load_backend().get_address(function, arguments, result)
    _FUNCTIONS_BY_ADDRESS[address] = function
    return address


class Intrinsic:
    """A function for compiled code that is implemented in LLVM terms (a numba intrinsic).

    ``find_implementation`` returns it from the module `streamsvm.core.compiling.codegen`, and is called when numba is needed.
    ``interpreted`` is the function that Python code calls. ``compiled_from`` distinguishes intrinsics with the same code in cache
    keys.
    """

    def __init__(
        self, find_implementation: Callable[[Any], Any], interpreted: Callable[..., Any], compiled_from: object = ()
    ) -> None:
        self._find_implementation, self._interpreted = find_implementation, interpreted
        code = find_implementation.__code__
        self.compiled_from: tuple[Any, ...] = code.co_code, code.co_names, code.co_consts, compiled_from

    def __call__(self, *values: Any) -> Any:
        return self._interpreted(*values)

    @cached_property
    def _numba_type_(self) -> Any:
        backend = load_backend()
        return backend.resolve_type(self._find_implementation(backend.codegen))


def make_caller(arguments: str, result: str) -> Any:
    """Return a function ``call(address, *arguments)`` that calls the compiled function at a memory address. Both Python and
    compiled code can use it; ``arguments`` and ``result`` are the types as text, such as ``"u1:1 f8"``.
    """
    return Intrinsic(
        lambda codegen: codegen.make_caller(arguments, result),
        lambda address, *values: _FUNCTIONS_BY_ADDRESS[int(address)](*values),
        (arguments, result),
    )
