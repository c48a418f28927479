"""Keys of compiled functions: what a function is compiled from, as a hash.

The key of a function depends on its bytecode, its constants and options, and on all that it refers to: the values of globals, and
the keys of the functions that it calls, in whatever file they are. So a change to a callee gives its callers new keys, and a
change to a comment or a docstring gives none.
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

#: The modules that tell numba how to generate code: keys depend on them.
_GENERATORS = "streamsvm.core.compiling.codegen", "streamsvm.core.compiling.numba_functions"
#: What numba implements itself, or nothing that is compiled calls.
_LIBRARIES = sys.stdlib_module_names | {"numpy", "scipy", "numba"}
_WITHIN = "what describes it"
_NUMBERS = int | float | complex | str | bytes | None | EllipsisType | np.generic | np.dtype


def compute_key(function: Any) -> str:
    """Return the key of a compiled function, in hexadecimal digits; a TypeError where something that it refers to has none."""
    # A global that is set anew once numba has compiled the function is not seen, as numba itself does not see it.
    return _digest_versions(_digest_generators(), *_described_thing(function, ()))


def measure_callees(function: Any) -> dict[Any, int]:
    """Return the Python functions that a function is compiled from, with the bytes of bytecode of each: so long do they take."""
    found: dict[Any, int] = {}
    waiting = [function]
    while waiting:
        python = getattr(waiting.pop(), "py_func", None)
        if python is None or python in found:
            continue
        found[python] = len(python.__code__.co_code)
        for value in (python.__globals__.get(name) for name in _names_in_code(python.__code__)):
            waiting += (
                [getattr(value, name, None) for name in _names_in_code(python.__code__)]
                if isinstance(value, ModuleType)
                else [value]
            )
    return found


@cache
def _digest_generators() -> str:
    loaders: list[Any] = [importlib.util.find_spec(name).loader for name in _GENERATORS]  # type: ignore[union-attr]
    codes = [loader.get_code(name) for loader, name in zip(loaders, _GENERATORS, strict=True)]
    return _digest_versions(*(part for code in codes for part in _described_code(code, None)))


def _digest_versions(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def _described_thing(thing: Any, within: tuple[Any, ...]) -> tuple[str, ...]:
    # ``within``: the functions that are being described, of which one may refer to another or to itself.
    if isinstance(thing, _NUMBERS):
        return type(thing).__name__, repr(thing)
    if isinstance(thing, tuple | list):
        fields = getattr(thing, "_fields", ())
        parts = [part for item in thing for part in (*_described_thing(item, within), "then")]
        return type(thing).__name__, *fields, *parts, "end"
    if isinstance(thing, CodeType):
        return "code", *_described_code(thing, None), "end"
    if isinstance(thing, dict):
        return "dict", *_described_thing(list(thing.items()), within)
    if isinstance(thing, set | frozenset):
        return "set", *sorted(map(repr, thing)), "end"
    if isinstance(thing, np.ndarray):
        return "array", str(thing.dtype), str(thing.shape), hashlib.sha256(thing.tobytes()).hexdigest()
    if isinstance(thing, EnumType):
        members: dict[str, Any] = dict(thing.__members__)
        members = {name: member.value for name, member in members.items()}
        return "enum", thing.__module__, thing.__qualname__, *_described_thing(members, within)
    if isinstance(thing, type) and type(thing).__module__.startswith("numba."):  # whose methods are compiled, too
        raise TypeError(f"{thing.__qualname__} has no key")
    if isinstance(thing, ModuleType | type | BuiltinFunctionType | MethodDescriptorType | np.ufunc):
        fields = *getattr(thing, "_fields", ()), *map(str, getattr(thing, "_field_defaults", {}).items())
        return "name", getattr(thing, "__module__", None) or "", getattr(thing, "__qualname__", thing.__name__), *fields
    if hasattr(thing, "compiled_from"):  # a function that numba knows by other means
        return "made from", *_described_thing(thing.compiled_from, within)
    if any(thing is other for other in within):
        return _WITHIN, thing.__qualname__
    if isinstance(thing, FunctionType) and thing in OVERLOADS:
        return "overload", *_described_thing(OVERLOADS[thing], (*within, thing))
    if hasattr(thing, "py_func"):
        return _described_compiled(thing, (*within, thing))
    if isinstance(thing, FunctionType) and thing.__module__.partition(".")[0] not in _LIBRARIES:
        return _described_function(thing, (*within, thing))
    if isinstance(thing, FunctionType):
        return "name", thing.__module__, thing.__qualname__
    raise TypeError(f"an object of {type(thing).__module__}.{type(thing).__qualname__} has no key")


def _described_compiled(function: Any, within: tuple[Any, ...]) -> tuple[str, ...]:
    known = function.__dict__.get("_described")
    if known is None:
        given = function.targetoptions.items()
        options = sorted(f"{name}={sorted(value) if isinstance(value, set) else value}" for name, value in given)
        options += ["noinline"] if getattr(function, "noinline", False) else []
        known = "compiled", *options, *_described_thing(function.py_func, within)
        if _WITHIN not in known:  # what refers back is described differently from elsewhere
            known = function.__dict__["_described"] = ("key", _digest_versions(*known))
    return known


def _described_function(function: FunctionType, within: tuple[Any, ...]) -> tuple[str, ...]:
    code = function.__code__
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    parts = ["function", function.__module__, function.__qualname__, *_described_code(code, function.__doc__)]
    for thing in (function.__defaults__ or (), function.__kwdefaults__ or {}, *cells):
        parts += _described_thing(thing, within)
    names = set(_names_in_code(code))
    for name in sorted(names & function.__globals__.keys()):
        parts += name, *_refers_to(function.__globals__[name], names, within)
    return tuple(parts)


def _refers_to(thing: Any, names: set[str], within: tuple[Any, ...]) -> tuple[str, ...]:
    if isinstance(thing, ModuleType) and thing.__name__.partition(".")[0] not in _LIBRARIES:
        if any(thing is other for other in within):
            return "module", thing.__name__
        found = sorted(names & vars(thing).keys())
        inner = [part for name in found for part in (name, *_refers_to(vars(thing)[name], names, (*within, thing)))]
        return "module", thing.__name__, *inner, "end"
    return _described_thing(thing, within)


def _described_code(code: CodeType, doc: str | None) -> tuple[str, ...]:
    constants = code.co_consts[1:] if doc is not None and code.co_consts[:1] == (doc,) else code.co_consts
    arguments = code.co_argcount, code.co_posonlyargcount, code.co_kwonlyargcount, code.co_flags
    parts = [code.co_code.hex(), code.co_exceptiontable.hex(), str(arguments)]
    parts += map(str, (code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for constant in constants:
        parts += _described_thing(constant, ())
    return tuple(parts)


def _names_in_code(code: CodeType) -> tuple[str, ...]:
    inner = (name for constant in code.co_consts if isinstance(constant, CodeType) for name in _names_in_code(constant))
    return *code.co_names, *inner


#: What compiled code depends on beside its sources.
PYTHON_ABI = f"{sys.implementation.cache_tag}{getattr(sys, 'abiflags', '')}"
