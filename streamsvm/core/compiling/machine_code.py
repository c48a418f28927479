"""Machine code that was compiled beforehand, and shipped in the wheel of a platform.

It is a module of Python in C, made by ``release/machine_code.py``, with a function for each entry of ``entries.json``. It is used
if it is whole, if the sources are those that it was made from, and if the processor has what it needs; otherwise numba compiles,
and `describe_status` says why.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.machinery
import importlib.util
import json
import os
from collections.abc import Callable
from functools import cache, cached_property, update_wrapper
from pathlib import Path
from types import MethodType
from typing import Any

from streamsvm.core.compiling.common import INTERPRETED, PickledByName

LIBRARY_PATH = Path(__file__).with_name("_machine_code.abi3.so")
METADATA_PATH = LIBRARY_PATH.with_name("_machine_code.json")

#: The parts of the package that machine code is made from.
_SOURCES = ("batch", "core", "learners", "linear")
#: What processors must have, as numpy names it, by the name that LLVM has for their level. The module itself asks for the rest.
_FEATURES = {"x86-64-v3": ("AVX2", "FMA3", "F16C"), "generic": ()}


def compute_sources_digest() -> str:
    """Return a digest of the sources that machine code is made from."""
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for name in _SOURCES:
        path = package / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if not file.stem.isidentifier():  # what editors leave beside a file
                continue
            digest.update(file.relative_to(package).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _processor_features() -> dict[str, bool]:
    from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found] # noqa: PLC0415

    return dict(__cpu_features__)


def _read_metadata() -> dict[str, str]:
    """Return what is known of the library; nothing if the file is damaged."""
    with contextlib.suppress(ValueError, RecursionError):
        about = json.loads(METADATA_PATH.read_bytes())
        if isinstance(about, dict) and all(isinstance(about.get(name), str) for name in ("library", "processor", "sources")):
            return about
    return {}


@cache
def _load_library() -> tuple[Any, str]:
    """Return the module and where it is, or None and why it is not used."""
    if os.environ.get("STREAMSVM_MACHINE_CODE") == "0":
        return None, "STREAMSVM_MACHINE_CODE=0"
    if not METADATA_PATH.is_file():
        return None, "this installation has none"
    try:
        if not (about := _read_metadata()):
            return None, f"{METADATA_PATH} is damaged"
        if hashlib.sha256(LIBRARY_PATH.read_bytes()).hexdigest() != about["library"]:
            return None, f"{LIBRARY_PATH} is damaged"
        needed, has = _FEATURES.get(about["processor"], (about["processor"],)), _processor_features()
        if lacking := [name for name in needed if not has.get(name)]:
            return None, f"the processor lacks {', '.join(lacking)}"
        if about["sources"] != compute_sources_digest():
            return None, "the sources have changed since it was made"
        loader = importlib.machinery.ExtensionFileLoader("streamsvm.core.compiling._machine_code", str(LIBRARY_PATH))
        spec = importlib.util.spec_from_file_location(loader.name, LIBRARY_PATH, loader=loader)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type] # a path that ends so has a spec
        loader.exec_module(module)
    except (OSError, ImportError, MemoryError) as error:
        return None, f"{LIBRARY_PATH} cannot be loaded: {error}"
    return module, f"{about['processor']}, {LIBRARY_PATH}"


def is_available() -> bool:
    """Return whether there is machine code that fits this machine and these sources."""
    return _load_library()[0] is not None


def describe_status() -> str:
    """Return which machine code is in use, or why there is none."""
    if INTERPRETED:
        return "machine code: none is in use, for NUMBA_DISABLE_JIT is set: nothing is compiled"
    module, why = _load_library()
    return f"machine code: {why}" if module is not None else f"machine code: none ({why}), so numba compiles"


class _Shipped(PickledByName, getattr(_load_library()[0], "Function", object)):  # type: ignore[misc]
    """A function with machine code for some types of arguments. Numba compiles it for others, and for functions of users."""

    def __new__(cls, py_func: Callable[..., Any], *_: object) -> Any:
        return super().__new__(cls, f"{py_func.__module__}:{py_func.__qualname__}")

    def __init__(self, py_func: Callable[..., Any], options: dict[str, Any], load_backend: Callable[[], Any]) -> None:
        update_wrapper(self, py_func)
        self.py_func: Callable[..., Any] = py_func
        self.options: dict[str, Any] = options
        self._load_backend = load_backend

    @cached_property
    def dispatcher(self) -> Any:
        """The function as numba compiles it."""
        return self._load_backend().CompiledFunction(self.py_func, self.options)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    @property
    def targetoptions(self) -> Any:
        """Numba's options, which it looks for in what it writes out in callers."""
        return self.dispatcher.targetoptions

    @property
    def noinline(self) -> bool:
        """Whether its callers have no copy of it."""
        return bool(self.dispatcher.noinline)

    @property
    def signatures(self) -> list[Any]:
        """The types of arguments for which numba has compiled the function."""
        return list(self.dispatcher.signatures) if "dispatcher" in self.__dict__ else []

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def shipped_address(self, arguments: str, result: str) -> int:
        """Return the address of the machine code for a signature; 0 if there is none."""
        return int(self.shipped_entry(f"{arguments} -> {result}"))


#: What `compiled` makes of a function where there is machine code.
PrecompiledFunction: Any = _Shipped
