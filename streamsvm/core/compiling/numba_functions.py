"""Functions that numba compiles, for the library's own callers: once, no more than is called, and kept on disk.

All dealings with numba's private parts are here, in `streamsvm.core.compiling.disk_cache` and in
`streamsvm.core.compiling.codegen`. If numba has renamed one that is replaced here, the import raises an error, and
`streamsvm.core.compiling.plain_numba` takes over. The functions differ from numba's own in these:

- **Callees have no machine code.** Numba gives each function two wrappers, for Python and for C, and machine code. A function
  that only compiled functions call needs neither: its callers take its LLVM code. It gets them when Python first calls it.
- **A callee that is kept apart has machine code, and no copies.** Its callers find it by a name that is made from its key, so a
  caller in a file needs no other than the callee of its sources, whichever process compiled that.
- **Copies are local.** Numba compiles a function together with copies of all that it calls, and optimises these once more. The
  copies are weak symbols: of two with one name, the process executes the one that it loaded first, and a name has a number in it
  that counts the functions of the process that compiled it. So which copies share a name, and which of them is executed,
  depended on what was cached, and on the order in which functions were loaded; and copies that were optimised in different
  callers add up a sum in different orders, where `streamsvm.core.kernels.FAST` lets them. Local copies make results the same to
  the last bit in every process. Names begin with a number of the process, lest two functions from two files share one.
- **Literals are numbers.** Numba compiles a function anew for each number that a caller writes out.
- **Nothing is collected.** Python's collector of garbage takes a fifth of the time that numba takes, and finds next to nothing.
- **What is written out in callers is read once.** Numba reads such a function anew for each call of it, and copies it twice: each
  time with all variables once more for each of its blocks. And its message on slices of two shapes takes a second to compile.
"""

from __future__ import annotations

import copy
import ctypes
import gc
import itertools
import secrets
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from types import SimpleNamespace
from typing import Any

from numba import _dynfunc, types
from numba.core import codegen as numba_codegen
from numba.core import cpu, inline_closurecall, sigutils
from numba.core.bytecode import FunctionIdentity
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import Dispatcher, _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.registry import CPUDispatcher, cpu_target
from numba.core.targetconfig import TargetConfig
from numba.extending import overload
from numba.np import arrayobj

from streamsvm.core.compiling import codegen
from streamsvm.core.compiling.ahead_of_time import start_helpers
from streamsvm.core.compiling.cache_keys import compute_key
from streamsvm.core.compiling.common import PickledByName, compilation, expected_components
from streamsvm.core.compiling.disk_cache import FunctionCache
from streamsvm.core.compiling.signatures import NO_RESULT, to_numba_types

__all__ = ["CompiledFunction", "codegen", "get_address", "overload", "resolve_type"]

_Library = numba_codegen.JITCodeLibrary
#: The private parts of numba that are replaced or called here. Where numba has renamed one, `plain_numba` takes over.
_PARTS = {
    _Library: "add_linking_library _finalize_final_module get_pointer_to_function _finalize_dynamic_globals "
    "_verify_declare_only_symbols _ensure_finalized _get_module_for_linking _get_compiled_object _set_compiled_object "
    "enable_object_caching",
    FunctionIdentity: "from_function _unique_ids",
    cpu.CPUContext: "get_executable remove_user_function",
    _FunctionCompiler: "_customize_flags _compile_core",
    inline_closurecall: "copy",
    inline_closurecall.InlineWorker: "run_untyped_passes inline_function inline_ir",
    arrayobj: "raise_with_shape_context",
    CPUDispatcher: "_compile_for_args get_call_template get_compile_result add_overload compile",
    _dynfunc: "make_function",
}
for _part, _names in _PARTS.items():
    for _name in _names.split():
        getattr(_part, _name)  # before anything is replaced


class _State(threading.local):
    """The function that a thread compiles."""

    entry: Any = None
    """The function that shall be one that Python can call, or that is called by address."""
    depth = 0
    """How many functions of the library are being compiled, each for the one before."""
    compiles_ours = False
    """Whether what is compiled at the moment is a function of the library."""


_state = _State()
_noinline_functions: dict[Any, CompiledFunction] = {}  # the functions that are kept apart, by what they are in Python


@contextmanager
def _as_entry(function: Any) -> Iterator[None]:
    before, _state.entry = _state.entry, function
    try:
        yield
    finally:
        _state.entry = before


@contextmanager
def _counting_seconds() -> Iterator[None]:
    collects, began = gc.isenabled(), time.perf_counter()
    gc.disable()
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
        if _state.depth == 0:
            compilation.seconds += time.perf_counter() - began
        if collects:
            gc.enable()


class CompiledFunction(PickledByName, CPUDispatcher):  # type: ignore[misc] # numba has no types
    """A compiled function of the library: ``py_func``, in Python, with the ``options`` of ``numba.njit``."""

    def __init__(self, py_func: Any, options: dict[str, Any]) -> None:
        # What is not said here, numba takes from the first caller, whoever that is: a user's, too.
        options = {"nopython": True, "boundscheck": None, "fastmath": False, "forceinline": False, **options}
        self.noinline: bool = options.pop("noinline", False)
        super().__init__(py_func, targetoptions=options)
        if self.noinline:
            _noinline_functions[py_func] = self
        self._by_python = self._as_entry = False
        self._entries: set[tuple[Any, ...]] = set()  # argument types for which Python can call it
        self._compiler._customize_flags = self._flags
        self._cache = FunctionCache(self)

    @property
    def is_entry(self) -> bool:
        """Whether what is compiled now has what Python needs to call it."""
        return self._as_entry

    def _flags(self, flags: Any) -> Any:
        if not self._as_entry:
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return flags

    def get_call_template(self, args: Any, kws: Any) -> Any:
        # A number that a caller writes out is a type of its own for numba, which would compile the function once more for it.
        return super().get_call_template(
            [_number_type(kind) for kind in args], {name: _number_type(kind) for name, kind in kws.items()}
        )

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        if expected_components:
            start_helpers(self, tuple(map(self.typeof_pyval, args)))
        with _as_entry(self):
            return super()._compile_for_args(*args, **kws)

    def compile_entry(self, arguments: tuple[Any, ...]) -> Any:
        """Compile the function for types of arguments, so that Python can call it; return numba's result."""
        with _as_entry(self):
            self.compile(arguments)
        return self.overloads[arguments]

    def is_stored(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether a file has the function, for types of arguments, so that Python can call it."""
        return arguments in self._entries or self._cache.has(arguments, self.targetctx)

    def get_compile_result(self, sig: Any) -> Any:
        """Return numba's result for a signature: for functions that are given to compiled ones."""
        return self.compile_entry(tuple(sigutils.normalize_signature(sig)[0]))

    def compile(self, sig: Any) -> Any:
        """Compile the function, or load it: for compiled callers, where nobody has asked for more."""
        by_python, _state.entry = _state.entry is self, None
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        with global_compiler_lock:
            found = self.overloads.get(arguments)
            if found is not None:
                if not by_python or arguments in self._entries:
                    return found.entry_point
                if self.noinline:  # it has all that Python needs
                    self._add_entry(arguments, found)
                    return found.entry_point
                self.targetctx.remove_user_function(found.entry_point)
                del self.overloads[arguments]
            before, held = (self._by_python, self._as_entry), self._cache.held
            self._by_python, self._as_entry = by_python, by_python or self.noinline
            try:
                with _counting_seconds():
                    return super().compile(sig)
            finally:
                self._by_python, self._as_entry = before
                self._cache.release(held)

    @cached_property
    def number(self) -> int:
        """The number that tells its name from others, where it is kept apart."""
        return int(compute_key(self)[:12], 16)

    def add_overload(self, cres: Any) -> None:
        arguments = tuple(cres.signature.args)
        if self.noinline:
            cres.library.noinline = self, arguments
        if self._by_python:
            self._add_entry(arguments, cres)
        else:  # numba's table of what Python can call has no room for it
            self.overloads[arguments] = cres

    def _add_entry(self, arguments: tuple[Any, ...], result: Any) -> None:
        self._entries.add(arguments)
        super().add_overload(result)


def _number_type(kind: Any) -> Any:
    return types.unliteral(kind) if isinstance(kind, types.IntegerLiteral | types.BooleanLiteral) else kind


def get_address(function: Any, arguments: str, result: str) -> int:
    """Return the address of a function for a signature; see `streamsvm.core.compiling.functions.get_address`."""
    kinds = to_numba_types(arguments)
    if isinstance(function, CompiledFunction):
        if expected_components:
            start_helpers(function, kinds)
        found = function.compile_entry(kinds)
    elif not hasattr(function, "compile"):
        raise TypeError(f"{function!r} must be compiled by numba: put @numba.njit above it")
    else:
        if kinds not in function.overloads:
            function.compile(kinds)
        found = function.overloads[kinds]
    returned = types.unliteral(found.signature.return_type)
    expected = to_numba_types(result)[0] if result != NO_RESULT else types.none
    if returned != expected:
        raise TypeError(f"{function.__name__} must return {expected}, not {returned}")
    return int(found.library.get_pointer_to_function(found.fndesc.llvm_cfunc_wrapper_name))


def resolve_type(value: Any) -> Any:
    """Return numba's type of a value that compiled code refers to."""
    cpu_target.typing_context.refresh()  # so that it knows what has been registered since
    cpu_target.target_context.refresh()
    return cpu_target.typing_context.resolve_value_type(value)


# How numba makes machine code.

_RAISES = ctypes.cast(ctypes.pythonapi.PyErr_NoMemory, ctypes.c_void_p).value
_OURS = "_ZN9streamsvm"  # as the names of compiled functions of the package begin


def _copies_of_callees(library: Any) -> list[Any]:
    """Return the copies of callees in a library (numba's word for the code of one function), where one is of this package."""
    functions = [function for function in library._final_module.functions if not function.is_declaration]
    if not any(function.name.startswith(_OURS) for function in functions):
        return []
    return [function for function in functions if function.linkage.name == "linkonce_odr"]


def _is_ours(function: Any, *others: str) -> bool:
    """Return whether a function is one of the library, or of other packages that are named."""
    return (function.__module__ or "").partition(".")[0] in {"streamsvm", *others}


def _is_called_by_python(function: Any) -> bool:
    """Return whether a module has a function under its name as one that is compiled. Others are implementations for callers."""
    return isinstance(getattr(sys.modules.get(function.__module__), function.__name__, None), Dispatcher)


def _defines_name(library: Any, name: str) -> bool:
    return any(function.name == name and not function.is_declaration for function in library._final_module.functions)


def _refuse_shapes(source: Any, slices: Any) -> None:
    raise NotImplementedError  # only compiled code calls it


@overload(_refuse_shapes)
def _compiled_refusal(source, slices):  # type: ignore[no-untyped-def] # numba compares signatures
    def refuse(source, slices):  # type: ignore[no-untyped-def]
        raise ValueError("an array is assigned to a slice of another shape")

    return refuse


def _read_once() -> None:
    """Keep what numba reads of the library's functions that are written out in callers, and copy it once for each call.

    Functions of users are read anew for each call, as numba does: a number that they take from their module may have changed.
    """
    worker = inline_closurecall.InlineWorker
    read, inline, kept = worker.run_untyped_passes, worker.inline_function, {}

    def inline_function(self: Any, caller: Any, block: Any, i: int, function: Any, arg_typs: Any = None) -> Any:
        if not _is_ours(function) or function.__closure__:
            return inline(self, caller, block, i, function, arg_typs)
        if function not in kept:
            kept[function] = read(self, function)
        self.flags.enable_ssa = False  # as reading does
        made = kept[function].copy()
        made.blocks = copy.deepcopy(made.blocks)
        for of_function in made.blocks.values():
            of_function.copies = 2  # which numba would make of it
        return self.inline_ir(caller, block, i, made, function.__code__.co_freevars, arg_typs=arg_typs)

    def deepcopy(value: Any) -> Any:
        left = getattr(value, "copies", 0)
        if left == 0:
            return copy.deepcopy(value)
        value.copies = left - 1
        return value

    worker.inline_function = inline_function
    inline_closurecall.copy = SimpleNamespace(**{**vars(copy), "deepcopy": deepcopy})


def find_noinline_callees(library: Any) -> dict[tuple[Any, tuple[Any, ...]], Any]:
    """Return the libraries of the callees of a library that are kept apart, by their functions and types of arguments."""
    found: dict[tuple[Any, tuple[Any, ...]], Any] = vars(library).setdefault("noinline_callees", {})
    return found


def _change_numba() -> None:
    library = _Library
    add_callee, identify = library.add_linking_library, FunctionIdentity.from_function
    finalize, get_pointer = library._finalize_final_module, library.get_pointer_to_function
    get_executable = cpu.CPUContext.get_executable
    customize, compile_function = _FunctionCompiler._customize_flags, _FunctionCompiler._compile_core

    def finalize_with_local_copies(self: Any) -> None:
        copies = _copies_of_callees(self)
        for function in copies:
            function.linkage = "internal"
        finalize(self)  # generates the machine code
        for function in copies:
            function.linkage = "linkonce_odr"  # for the callers, which need one copy of each

    def add_linking_library(self: Any, callee: Any) -> None:
        apart = find_noinline_callees(callee) | ({callee.noinline: callee} if hasattr(callee, "noinline") else {})
        if _state.compiles_ours:
            find_noinline_callees(self).update(apart)
            for_copies = [] if hasattr(callee, "noinline") else [callee]
        else:  # a user may keep it in a cache of numba, which knows nothing of what is apart
            for_copies = [callee, *apart.values()]
        for of_callee in for_copies:
            add_callee(self, of_callee)

    def compile_core(self: Any, *types: Any) -> Any:
        before, _state.compiles_ours = _state.compiles_ours, _is_ours(self.py_func)
        try:
            return compile_function(self, *types)
        finally:
            _state.compiles_ours = before

    def from_function(function: Any) -> Any:
        made, apart = identify(function), _noinline_functions.get(function)
        if apart is not None:
            made.unique_id, made.unique_name = apart.number, f"{made.func_qualname}${apart.number}"
        return made

    def finalize_when_needed(self: Any) -> None:
        if _state.depth == 0 or getattr(self, "_compiled_object", None) is not None:  # it has machine code, from a file
            finalize_with_local_copies(self)
        else:
            self._finalize_dynamic_globals()
            self._verify_declare_only_symbols()
            self._finalized = self._waits = True

    def get_pointer_to_function(self: Any, name: str) -> int:
        self._ensure_finalized()
        if getattr(self, "_waits", False):
            if not _defines_name(self, name):
                return 0
            self._waits = False
            finalize_with_local_copies(self)
        return int(get_pointer(self, name))

    def executable(self: Any, library: Any, fndesc: Any, env: Any) -> Any:
        library._ensure_finalized()
        if getattr(library, "_waits", False) and not _defines_name(library, fndesc.llvm_cpython_wrapper_name):
            # Numba wants one all the same. Nobody calls it; it would raise a MemoryError.
            return _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", _RAISES, env, (library,))
        return get_executable(self, library, fndesc, env)

    def without_wrappers(self: Any, flags: Any) -> Any:
        # Numba's own functions, and implementations of `overload`: nobody calls them from Python.
        ours = _is_ours(self.py_func, "numba")
        if _state.depth and ours and not _is_called_by_python(self.py_func):
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return customize(self, flags)

    same = TargetConfig.__eq__

    def equal(self: Any, other: Any) -> Any:
        # Numba compares options ten thousands of times, and would look up all fifty of them, most of which nobody has set.
        return (isinstance(other, TargetConfig) and self._values == other._values) or same(self, other)

    TargetConfig.__eq__ = equal
    TargetConfig.__hash__ = lambda self: hash(type(self))  # numba's is that of their names, too
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(48))
    FunctionIdentity.from_function = from_function
    library.add_linking_library = add_linking_library
    library._finalize_final_module = finalize_when_needed
    library.get_pointer_to_function = get_pointer_to_function
    cpu.CPUContext.get_executable = executable
    _FunctionCompiler._customize_flags, _FunctionCompiler._compile_core = without_wrappers, compile_core
    arrayobj.raise_with_shape_context = _refuse_shapes
    _read_once()


_change_numba()
