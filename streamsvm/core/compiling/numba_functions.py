"""Numba dispatchers for the library's functions, which compile no more than is called, and are cached on disk.

All uses of numba's private parts are here, in `streamsvm.core.compiling.disk_cache` and in `streamsvm.core.compiling.codegen`. If
numba has renamed one that is replaced here, the import raises an error, and `streamsvm.core.compiling.plain_numba` takes over.
The functions differ from numba's own:

- **Callees have no machine code.** Numba gives each function machine code, and wrappers for Python and for C. A function that
  only compiled functions call needs none of these, because its callers use its LLVM code. They are added when Python first calls
  it.
- **A noinline callee has machine code, and no copies.** Its callers link to it by a name that is made from its key, so that a
  cached caller works with any callee that was compiled from the same sources, by whichever process.
- **Copies are local.** Numba compiles a function together with copies of all its callees, and optimises these once more. The
  copies are weak symbols: of two with the same name, the process executes the one that it loaded first, and names contain a
  counter of the functions of the process. So which copies share a name, and which one is executed, would depend on the
  content of the cache, and on the order of loading; and copies that were optimised in different callers sum in different orders,
  where `streamsvm.core.kernels.FAST` allows it. Local copies make results equal to the last bit in every process. The counter
  starts at a random number in each process, so that two functions from two files never share a name.
- **Literals are numbers.** Numba compiles a function again for each number literal that a caller passes.
- **No garbage collection.** Python's garbage collector takes a fifth of the compile time, and finds next to nothing.
- **Inlined functions are read once.** Numba analyses an inlined function again for each call of it, and copies it twice, each
  time with all variables once more for each of its blocks. And its error message about slices of different shapes takes a second
  to compile.
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
#: The private parts of numba that are replaced or called here. If numba has renamed one, `plain_numba` takes over.
_PRIVATE_PARTS = {
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
for _part, _names in _PRIVATE_PARTS.items():
    for _name in _names.split():
        getattr(_part, _name)  # raises AttributeError before anything is replaced


class _State(threading.local):
    """The compilation that a thread is in."""

    entry: Any = None
    """The function that is compiled as an entry, for calls from Python or by address."""
    depth = 0
    """The number of nested compilations of functions of the library, each as a callee of the previous one."""
    compiles_ours = False
    """Whether the innermost compilation is of a function of the library."""


_state = _State()
_noinline_functions: dict[Any, CompiledFunction] = {}  # noinline functions, by their Python functions


@contextmanager
def _as_entry(function: Any) -> Iterator[None]:
    """Context manager: in its body, ``function`` is compiled so that Python can call it, not only other compiled functions."""
    previous, _state.entry = _state.entry, function
    try:
        yield
    finally:
        _state.entry = previous


@contextmanager
def _measure_compilation() -> Iterator[None]:
    """Context manager for a compilation: disable garbage collection in its body, and add the elapsed time to
    ``compilation.seconds``, the total of this process.
    """
    gc_was_enabled, start = gc.isenabled(), time.perf_counter()
    gc.disable()
    _state.depth += 1
    try:
        yield
    finally:
        _state.depth -= 1
        if _state.depth == 0:
            compilation.seconds += time.perf_counter() - start
        if gc_was_enabled:
            gc.enable()


class CompiledFunction(PickledByName, CPUDispatcher):  # type: ignore[misc] # numba has no types
    """A compiled function of the library. ``py_func`` is the Python function, ``options`` are those of ``numba.njit``."""

    def __init__(self, py_func: Any, options: dict[str, Any]) -> None:
        # Numba takes options that are not set here from the first caller, which may be a user's function.
        options = {"nopython": True, "boundscheck": None, "fastmath": False, "forceinline": False, **options}
        self.noinline: bool = options.pop("noinline", False)
        super().__init__(py_func, targetoptions=options)
        if self.noinline:
            _noinline_functions[py_func] = self
        self._by_python = self._as_entry = False
        self._entries: set[tuple[Any, ...]] = set()  # argument types that Python can call
        self._compiler._customize_flags = self._flags
        self._cache = FunctionCache(self)

    @property
    def is_entry(self) -> bool:
        """Whether this function is being compiled so that Python can call it, and not only other compiled functions."""
        return self._as_entry

    def _flags(self, flags: Any) -> Any:
        """Set numba's compile ``flags`` so that no wrappers for Python and C are compiled, unless Python will call the function;
        return the flags.
        """
        if not self._as_entry:
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return flags

    def get_call_template(self, args: Any, kws: Any) -> Any:
        """Return numba's template for a call of this function from compiled code. Literal numbers among the argument types
        ``args`` and ``kws`` are replaced by ordinary types, so that the function is not compiled again for each constant.
        """
        return super().get_call_template(
            [_number_type(kind) for kind in args], {name: _number_type(kind) for name, kind in kws.items()}
        )

    def _compile_for_args(self, *args: Any, **kws: Any) -> Any:
        """Compile this function when Python calls it with arguments of new types. Meanwhile, helper processes compile the other
        functions of an estimator that was created before.
        """
        if expected_components:
            start_helpers(self, tuple(map(self.typeof_pyval, args)))
        with _as_entry(self):
            return super()._compile_for_args(*args, **kws)

    def compile_entry(self, argument_types: tuple[Any, ...]) -> Any:
        """Compile this function for these argument types so that Python can call it, or load it from the disk cache; return
        numba's compile result.
        """
        with _as_entry(self):
            self.compile(argument_types)
        return self.overloads[argument_types]

    def is_stored(self, argument_types: tuple[Any, ...]) -> bool:
        """Return whether this function was compiled for these argument types before, callable by Python, and is in memory or in
        the disk cache.
        """
        return argument_types in self._entries or self._cache.has(argument_types, self.targetctx)

    def get_compile_result(self, sig: Any) -> Any:
        """Return numba's compile result of this function for the signature ``sig``, compiling it if necessary. Numba calls this
        for functions that are passed as arguments.
        """
        return self.compile_entry(tuple(sigutils.normalize_signature(sig)[0]))

    def compile(self, sig: Any) -> Any:
        """Compile this function for the signature ``sig``, or load it from the disk cache; return its entry point. It is callable
        by Python only if `compile_entry` runs, and otherwise by compiled code.
        """
        by_python, _state.entry = _state.entry is self, None
        arguments = tuple(sigutils.normalize_signature(sig)[0])
        with global_compiler_lock:
            result = self.overloads.get(arguments)
            if result is not None:
                if not by_python or arguments in self._entries:
                    return result.entry_point
                if self.noinline:  # noinline functions always have what Python needs
                    self._add_entry(arguments, result)
                    return result.entry_point
                self.targetctx.remove_user_function(result.entry_point)
                del self.overloads[arguments]
            previous, n_locks = (self._by_python, self._as_entry), self._cache.held
            self._by_python, self._as_entry = by_python, by_python or self.noinline
            try:
                with _measure_compilation():
                    return super().compile(sig)
            finally:
                self._by_python, self._as_entry = previous
                self._cache.release(n_locks)

    @cached_property
    def number(self) -> int:
        """The number in the symbol name of this function, made from its cache key, so that it is equal in all processes."""
        return int(compute_key(self)[:12], 16)

    def add_overload(self, cres: Any) -> None:
        """Register ``cres``, numba's compile result of this function for some argument types, so that later calls find it."""
        arguments = tuple(cres.signature.args)
        if self.noinline:
            cres.library.noinline = self, arguments
        if self._by_python:
            self._add_entry(arguments, cres)
        else:  # numba's dispatcher table only accepts functions with a wrapper for Python
            self.overloads[arguments] = cres

    def _add_entry(self, arguments: tuple[Any, ...], result: Any) -> None:
        """Register ``result``, numba's compile result for these argument types, as one that Python can call."""
        self._entries.add(arguments)
        super().add_overload(result)


def _number_type(kind: Any) -> Any:
    """Return the ordinary numba type of a literal number or bool (such as int64 for the constant 3); other types are returned
    unchanged.
    """
    return types.unliteral(kind) if isinstance(kind, types.IntegerLiteral | types.BooleanLiteral) else kind


def get_address(function: Any, arguments: str, result: str) -> int:
    """Return the memory address of a compiled function for argument and result types given as text (such as ``"u1:1 f8"``),
    compiling it or loading it from the disk cache if necessary. Raises TypeError if it is not a numba function or returns another
    type.
    """
    argument_types = to_numba_types(arguments)
    if isinstance(function, CompiledFunction):
        if expected_components:
            start_helpers(function, argument_types)
        compile_result = function.compile_entry(argument_types)
    elif not hasattr(function, "compile"):
        raise TypeError(f"{function!r} must be compiled by numba: put @numba.njit above it")
    else:
        if argument_types not in function.overloads:
            function.compile(argument_types)
        compile_result = function.overloads[argument_types]
    return_type = types.unliteral(compile_result.signature.return_type)
    expected_type = to_numba_types(result)[0] if result != NO_RESULT else types.none
    if return_type != expected_type:
        raise TypeError(f"{function.__name__} must return {expected_type}, not {return_type}")
    return int(compile_result.library.get_pointer_to_function(compile_result.fndesc.llvm_cfunc_wrapper_name))


def resolve_type(value: Any) -> Any:
    """Return the numba type of a Python object that compiled code uses as a global variable."""
    cpu_target.typing_context.refresh()  # for types that were registered since the last use
    cpu_target.target_context.refresh()
    return cpu_target.typing_context.resolve_value_type(value)


# Changes of how numba generates machine code.

_RAISING_FUNCTION = ctypes.cast(ctypes.pythonapi.PyErr_NoMemory, ctypes.c_void_p).value
_MANGLED_PREFIX = "_ZN9streamsvm"  # prefix of the mangled names of this package's functions


def _find_callee_copies(library: Any) -> list[Any]:
    """Return the LLVM functions in ``library`` (numba's object for one function's code) that are copies of called functions; an
    empty list if it contains no code of this package.
    """
    functions = [function for function in library._final_module.functions if not function.is_declaration]
    if not any(function.name.startswith(_MANGLED_PREFIX) for function in functions):
        return []
    return [function for function in functions if function.linkage.name == "linkonce_odr"]


def _is_ours(function: Any, *packages: str) -> bool:
    """Return whether a Python function was defined in this package, or in one of the other top-level ``packages``."""
    return (function.__module__ or "").partition(".")[0] in {"streamsvm", *packages}


def _is_called_by_python(function: Any) -> bool:
    """Return whether the name of a Python function in its module is a numba dispatcher, which Python can call. Others are
    implementations for compiled callers only.
    """
    return isinstance(getattr(sys.modules.get(function.__module__), function.__name__, None), Dispatcher)


def _defines_name(library: Any, name: str) -> bool:
    """Return whether ``library`` (numba's object for one function's code) contains the code of the LLVM function ``name``."""
    return any(function.name == name and not function.is_declaration for function in library._final_module.functions)


def _raise_shape_error(source: Any, slices: Any) -> None:
    """Raise ValueError in compiled code that assigns an array to a slice of another shape. It replaces numba's own function,
    whose long message takes long to compile.
    """
    raise NotImplementedError  # only its compiled implementation is called


@overload(_raise_shape_error)
def _compiled_raise_shape_error(source, slices):  # type: ignore[no-untyped-def] # numba compares signatures
    def refuse(source, slices):  # type: ignore[no-untyped-def]
        raise ValueError("an array is assigned to a slice of another shape")

    return refuse


def _cache_inlined_functions() -> None:
    """Patch numba's inliner: it translates each function of this package only once, and copies it once for each call, which saves
    compile time.

    Users' functions are still read for each call, as numba does: the globals that they use may have changed.
    """
    worker = inline_closurecall.InlineWorker
    read_function, numba_inline, cached = worker.run_untyped_passes, worker.inline_function, {}

    def inline_function(self: Any, caller: Any, block: Any, i: int, function: Any, arg_typs: Any = None) -> Any:
        """Inline a call of ``function`` in the intermediate code of ``caller``, as numba's method does, but translate a function
        of this package only once.
        """
        if not _is_ours(function) or function.__closure__:
            return numba_inline(self, caller, block, i, function, arg_typs)
        if function not in cached:
            cached[function] = read_function(self, function)
        self.flags.enable_ssa = False  # as reading a function does
        inlined = cached[function].copy()
        inlined.blocks = copy.deepcopy(inlined.blocks)
        for block_of_function in inlined.blocks.values():
            block_of_function.copies = 2  # numba copies the blocks twice; both copies return the original
        return self.inline_ir(caller, block, i, inlined, function.__code__.co_freevars, arg_typs=arg_typs)

    def deepcopy(value: Any) -> Any:
        """Return a deep copy of ``value``; an intermediate code block that was copied already (attribute ``copies`` above 0) is
        returned itself, since numba copies it twice more.
        """
        n_left = getattr(value, "copies", 0)
        if n_left == 0:
            return copy.deepcopy(value)
        value.copies = n_left - 1
        return value

    worker.inline_function = inline_function
    inline_closurecall.copy = SimpleNamespace(**{**vars(copy), "deepcopy": deepcopy})


def find_noinline_callees(library: Any) -> dict[tuple[Any, tuple[Any, ...]], Any]:
    """Return the noinline functions that ``library`` (numba's object for one function's code) calls, as a dict from (function,
    argument types) to their libraries. The dict is stored in the library, and can be extended.
    """
    callees: dict[tuple[Any, tuple[Any, ...]], Any] = vars(library).setdefault("noinline_callees", {})
    return callees


def _patch_numba() -> None:
    """Replace private functions of numba by the ones below, which compile functions of this package in less time. It is called
    once, at import.
    """
    library = _Library
    add_callee, identify = library.add_linking_library, FunctionIdentity.from_function
    finalize, get_pointer = library._finalize_final_module, library.get_pointer_to_function
    get_executable = cpu.CPUContext.get_executable
    customize, compile_function = _FunctionCompiler._customize_flags, _FunctionCompiler._compile_core

    def finalize_with_local_copies(self: Any) -> None:
        """Let numba generate the machine code of this library (one function's code), with copies of called functions as local
        symbols, so that unused ones are dropped.
        """
        copies = _find_callee_copies(self)
        for function in copies:
            function.linkage = "internal"
        finalize(self)  # machine code is generated here
        for function in copies:
            function.linkage = "linkonce_odr"  # callers need one weak copy of each

    def add_linking_library(self: Any, callee: Any) -> None:
        """Link the library ``callee`` of a called function to this one by copying its code; a noinline function is only noted if
        the caller is of this package.
        """
        noinline = find_noinline_callees(callee) | ({callee.noinline: callee} if hasattr(callee, "noinline") else {})
        if _state.compiles_ours:
            find_noinline_callees(self).update(noinline)
            copied_libraries = [] if hasattr(callee, "noinline") else [callee]
        else:  # a user's function may be cached by numba, which knows nothing of noinline callees
            copied_libraries = [callee, *noinline.values()]
        for copied_library in copied_libraries:
            add_callee(self, copied_library)

    def compile_core(self: Any, *types: Any) -> Any:
        """Compile the function of this compiler as numba does, and record meanwhile whether it belongs to this package."""
        previous, _state.compiles_ours = _state.compiles_ours, _is_ours(self.py_func)
        try:
            return compile_function(self, *types)
        finally:
            _state.compiles_ours = previous

    def from_function(function: Any) -> Any:
        """Return the identity that numba gives to a Python function. That of a noinline function has a number made from its cache
        key, so that its symbol name is equal in all processes.
        """
        identity, noinline = identify(function), _noinline_functions.get(function)
        if noinline is not None:
            identity.unique_id, identity.unique_name = noinline.number, f"{identity.func_qualname}${noinline.number}"
        return identity

    def finalize_when_needed(self: Any) -> None:
        """Finish this library (numba's object for one function's code), but postpone the generation of machine code while
        functions of this package are compiled: most are only needed by their callers.
        """
        if _state.depth == 0 or getattr(self, "_compiled_object", None) is not None:  # it has machine code from a file
            finalize_with_local_copies(self)
        else:
            self._finalize_dynamic_globals()
            self._verify_declare_only_symbols()
            self._finalized = self._waits = True

    def get_pointer_to_function(self: Any, name: str) -> int:
        """Return the memory address of the function with the symbol ``name`` in this library; 0 if it is missing. Postponed
        machine code is generated first.
        """
        self._ensure_finalized()
        if getattr(self, "_waits", False):
            if not _defines_name(self, name):
                return 0
            self._waits = False
            finalize_with_local_copies(self)
        return int(get_pointer(self, name))

    def executable(self: Any, library: Any, fndesc: Any, env: Any) -> Any:
        """Return a Python function that calls the compiled function in ``library``. If it can only be called by compiled code,
        the Python function raises MemoryError.
        """
        library._ensure_finalized()
        if getattr(library, "_waits", False) and not _defines_name(library, fndesc.llvm_cpython_wrapper_name):
            # Numba requires a wrapper, although nobody calls it; it would raise MemoryError.
            return _dynfunc.make_function(fndesc.lookup_module(), fndesc.qualname, "", _RAISING_FUNCTION, env, (library,))
        return get_executable(self, library, fndesc, env)

    def without_wrappers(self: Any, flags: Any) -> Any:
        """Set numba's compile ``flags`` so that no wrappers for Python and C are compiled for functions that Python never calls;
        return the flags.
        """
        ours = _is_ours(self.py_func, "numba")
        if _state.depth and ours and not _is_called_by_python(self.py_func):
            flags.no_cpython_wrapper = flags.no_cfunc_wrapper = True
        return customize(self, flags)

    original_eq = TargetConfig.__eq__

    def compare(self: Any, options: Any) -> Any:
        """Return whether two sets of compile options are equal, by comparing only those that are set, which is faster than
        numba's comparison.
        """
        return (isinstance(options, TargetConfig) and self._values == options._values) or original_eq(self, options)

    TargetConfig.__eq__ = compare
    TargetConfig.__hash__ = lambda self: hash(type(self))  # numba's hash includes the names of all options
    FunctionIdentity._unique_ids = itertools.count(secrets.randbits(48))
    FunctionIdentity.from_function = from_function
    library.add_linking_library = add_linking_library
    library._finalize_final_module = finalize_when_needed
    library.get_pointer_to_function = get_pointer_to_function
    cpu.CPUContext.get_executable = executable
    _FunctionCompiler._customize_flags, _FunctionCompiler._compile_core = without_wrappers, compile_core
    arrayobj.raise_with_shape_context = _raise_shape_error
    _cache_inlined_functions()


_patch_numba()
