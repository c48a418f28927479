"""Keys of the disk cache: a hash of everything that a compiled function is compiled from.

The key of a function depends on its bytecode, constants and options, and on everything it refers to: the values of globals, and
the keys of the functions that it calls, in any module. So a change of a callee changes the keys of its callers, and a change of a
comment or docstring changes none. The exception is the two modules that extend numba's code generation: any change of their code
or docstrings changes all keys.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from enum import EnumType
from functools import cache
from types import BuiltinFunctionType, CodeType, EllipsisType, FunctionType, MethodDescriptorType, ModuleType
from typing import Any

import numpy as np

from streamsvm.core.compiling.common import OVERLOADS

#: The modules that extend numba's code generation: all keys depend on them.
_GENERATORS = "streamsvm.core.compiling.codegen", "streamsvm.core.compiling.numba_functions"
#: Top-level modules that numba implements itself, or that compiled code does not call.
_LIBRARIES = sys.stdlib_module_names | {"numpy", "scipy", "numba"}
_RECURSIVE = "recursive"
_SIMPLE_TYPES = int | float | complex | str | bytes | None | EllipsisType | np.generic | np.dtype


def compute_key(function: Any) -> str:
    """Return the key of a compiled function in the disk cache: a hash, in hexadecimal digits, of its code and of everything it
    refers to. Raises TypeError if it refers to an object that cannot be hashed in a stable way.
    """
    # Like numba, it ignores globals that change after the function was compiled.
    return _digest_texts(_digest_generators(), *_describe_object(function, ()))


def measure_callees(function: Any) -> dict[Any, int]:
    """Return the size, in bytes of bytecode, of a function and of all functions that it calls directly or indirectly, by Python
    function. The sizes predict compile times.
    """
    sizes: dict[Any, int] = {}
    queue = [function]
    while queue:
        py_func = getattr(queue.pop(), "py_func", None)
        if py_func is None or py_func in sizes:
            continue
        sizes[py_func] = len(py_func.__code__.co_code)
        for value in (py_func.__globals__.get(name) for name in _list_names(py_func.__code__)):
            queue += (
                [getattr(value, name, None) for name in _list_names(py_func.__code__)]
                if isinstance(value, ModuleType)
                else [value]
            )
    return sizes


@cache
def _digest_generators() -> str:
    """Return a hash of the modules of this package that extend numba's code generation. It is part of every cache key, so that
    all cached functions become invalid when these modules change.
    """
    loaders: list[Any] = [importlib.util.find_spec(name).loader for name in _GENERATORS]  # type: ignore[union-attr]
    codes = [loader.get_code(name) for loader, name in zip(loaders, _GENERATORS, strict=True)]
    return _digest_texts(*(part for code in codes for part in _describe_code(code, None)))


def _digest_texts(*parts: str) -> str:
    """Return the SHA-256 hash of a sequence of strings, in hexadecimal digits."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _describe_object(value: Any, enclosing: tuple[Any, ...]) -> tuple[str, ...]:
    """Return strings that identify the value of an object that compiled code uses, as input for the hash of a cache key. They are
    equal in all processes. Raises TypeError for types without a stable representation. ``enclosing`` are the functions and
    modules that contain the object, so that recursion ends.
    """
    if isinstance(value, _SIMPLE_TYPES):
        return type(value).__name__, repr(value)
    if isinstance(value, tuple | list):
        fields = getattr(value, "_fields", ())
        parts = [part for item in value for part in (*_describe_object(item, enclosing), "then")]
        return type(value).__name__, *fields, *parts, "end"
    if isinstance(value, CodeType):
        return "code", *_describe_code(value, None), "end"
    if isinstance(value, dict):
        return "dict", *_describe_object(list(value.items()), enclosing)
    if isinstance(value, set | frozenset):
        return "set", *sorted(map(repr, value)), "end"
    if isinstance(value, np.ndarray):
        return "array", str(value.dtype), str(value.shape), hashlib.sha256(value.tobytes()).hexdigest()
    if isinstance(value, EnumType):
        members: dict[str, Any] = dict(value.__members__)
        members = {name: member.value for name, member in members.items()}
        return "enum", value.__module__, value.__qualname__, *_describe_object(members, enclosing)
    if isinstance(value, type) and type(value).__module__.startswith("numba."):  # numba compiles their methods, too
        raise TypeError(f"{value.__qualname__} has no key")
    if isinstance(value, ModuleType | type | BuiltinFunctionType | MethodDescriptorType | np.ufunc):
        fields = *getattr(value, "_fields", ()), *map(str, getattr(value, "_field_defaults", {}).items())
        return "name", getattr(value, "__module__", None) or "", getattr(value, "__qualname__", value.__name__), *fields
    if hasattr(value, "compiled_from"):  # an `Intrinsic`
        return "made from", *_describe_object(value.compiled_from, enclosing)
    if any(value is outer for outer in enclosing):
        return _RECURSIVE, value.__qualname__
    if isinstance(value, FunctionType) and value in OVERLOADS:
        return "overload", *_describe_object(OVERLOADS[value], (*enclosing, value))
    if hasattr(value, "py_func"):
        return _describe_compiled(value, (*enclosing, value))
    if isinstance(value, FunctionType) and value.__module__.partition(".")[0] not in _LIBRARIES:
        return _describe_function(value, (*enclosing, value))
    if isinstance(value, FunctionType):
        return "name", value.__module__, value.__qualname__
    raise TypeError(f"an object of {type(value).__module__}.{type(value).__qualname__} has no key")


def _describe_compiled(function: Any, enclosing: tuple[Any, ...]) -> tuple[str, ...]:
    """Return strings that identify a compiled function, as input for the hash of a cache key: its compile options, and its Python
    code with all objects that it uses. ``enclosing`` are the functions and modules that contain it, so that recursion ends. The
    result is cached unless the function is recursive.
    """
    description = function.__dict__.get("_described")
    if description is None:
        target_options = function.targetoptions.items()
        options = sorted(f"{name}={sorted(value) if isinstance(value, set) else value}" for name, value in target_options)
        options += ["noinline"] if getattr(function, "noinline", False) else []
        description = "compiled", *options, *_describe_object(function.py_func, enclosing)
        if _RECURSIVE not in description:  # a recursive function has another description in each place
            description = function.__dict__["_described"] = ("key", _digest_texts(*description))
    return description


def _describe_function(function: FunctionType, enclosing: tuple[Any, ...]) -> tuple[str, ...]:
    """Return strings that identify a Python function, as input for the hash of a cache key: its bytecode, default values,
    closure, and the globals that it uses. ``enclosing`` are the functions and modules that contain it, so that recursion ends.
    """
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = ["function", function.__module__, function.__qualname__, *_describe_code(code, function.__doc__)]
    for value in (function.__defaults__ or (), function.__kwdefaults__ or {}, *cells):
        parts += _describe_object(value, enclosing)
    names = set(_list_names(code))
    for name in sorted(names & function.__globals__.keys()):
        parts += name, *_describe_reference(function.__globals__[name], names, enclosing)
    return tuple(parts)


def _describe_reference(value: Any, names: set[str], enclosing: tuple[Any, ...]) -> tuple[str, ...]:
    """Return strings that identify ``value``, a global variable that a function uses, as input for the hash of a cache key. Of a
    module, only the attributes called ``names`` count, which the function uses. ``enclosing`` are the functions and modules that
    contain the function, so that recursion ends.
    """
    if isinstance(value, ModuleType) and value.__name__.partition(".")[0] not in _LIBRARIES:
        if any(value is outer for outer in enclosing):
            return "module", value.__name__
        used = sorted(names & vars(value).keys())
        inner = [part for name in used for part in (name, *_describe_reference(vars(value)[name], names, (*enclosing, value)))]
        return "module", value.__name__, *inner, "end"
    return _describe_object(value, enclosing)


def _describe_code(code: CodeType, doc: str | None) -> tuple[str, ...]:
    """Return strings that identify a code object, as input for the hash of a cache key: bytecode, constants, names and flags.
    Line numbers and the docstring ``doc`` are left out.
    """
    constants = code.co_consts[1:] if doc is not None and code.co_consts[:1] == (doc,) else code.co_consts
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    parts = [code.co_code.hex(), code.co_exceptiontable.hex(), str(arguments)]
    parts += map(str, (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for constant in constants:
        parts += _describe_object(constant, ())
    return tuple(parts)


def _list_names(code: CodeType) -> tuple[str, ...]:
    """Return the names of all globals and attributes that a code object and its nested functions use."""
    inner = (name for constant in code.co_consts if isinstance(constant, CodeType) for name in _list_names(constant))
    return *code.co_names, *inner


#: The version of Python, on which compiled code depends.
PYTHON_ABI = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
