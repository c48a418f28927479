"""Precompiled machine code, which is shipped in the wheel of a platform.

It is a C extension module, made by ``release/machine_code.py``, with one function per entry of ``entries.json``. It is used if
its file is intact, if it was made from the installed sources, and if the processor supports it; otherwise numba compiles, and
`describe_status` gives the reason.
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

#: The subpackages that contain compiled functions.
_SOURCES = ("batch", "core", "learners", "linear")
#: The required processor features, in numpy's names, by LLVM's name of the processor level. The module itself checks further
#: features.
_FEATURES = {"x86-64-v3": ("AVX2", "FMA3", "F16C"), "generic": ()}


def compute_sources_digest() -> str:
    """Return a SHA-256 hash of all source files whose functions are precompiled, to detect changes since then."""
    package, digest = Path(__file__).parents[2], hashlib.sha256()
    for name in _SOURCES:
        path = package / name
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            if not file.stem.isidentifier():  # skip temporary files of editors
                continue
            digest.update(file.relative_to(package).as_posix().encode())
            digest.update(file.read_bytes())
    return digest.hexdigest()


def _read_processor_features() -> dict[str, bool]:
    """Return a dict from the name of an instruction set (such as ``"AVX2"``, as numpy names it) to whether this processor
    supports it.
    """
    from numpy._core._multiarray_umath import __cpu_features__  # type: ignore[import-not-found] # noqa: PLC0415

    return dict(__cpu_features__)


def _read_metadata() -> dict[str, str]:
    """Return the metadata of the library of precompiled machine code (its hash, processor level, and hash of sources) from its
    JSON file; an empty dict if the file is damaged.
    """
    with contextlib.suppress(ValueError, RecursionError):
        metadata = json.loads(METADATA_PATH.read_bytes())
        if isinstance(metadata, dict) and all(
            isinstance(metadata.get(name), str) for name in ("library", "processor", "sources")
        ):
            return metadata
    return {}


@cache
def _load_library() -> tuple[Any, str]:
    """Load the extension module with precompiled machine code. Returns (module, description of it), or (None, reason why it
    cannot be used).
    """
    if os.environ.get("STREAMSVM_MACHINE_CODE") == "0":
        return None, "STREAMSVM_MACHINE_CODE=0"
    if not METADATA_PATH.is_file():
        return None, "this installation has none"
    try:
        if not (metadata := _read_metadata()):
            return None, f"{METADATA_PATH} is damaged"
        if hashlib.sha256(LIBRARY_PATH.read_bytes()).hexdigest() != metadata["library"]:
            return None, f"{LIBRARY_PATH} is damaged"
        required, available = _FEATURES.get(metadata["processor"], (metadata["processor"],)), _read_processor_features()
        if missing := [name for name in required if not available.get(name)]:
            return None, f"the processor lacks {', '.join(missing)}"
        if metadata["sources"] != compute_sources_digest():
            return None, "the sources have changed since it was made"
        loader = importlib.machinery.ExtensionFileLoader("streamsvm.core.compiling._machine_code", str(LIBRARY_PATH))
        spec = importlib.util.spec_from_file_location(loader.name, LIBRARY_PATH, loader=loader)
        module = importlib.util.module_from_spec(spec)  # type: ignore[arg-type] # a path that ends so has a spec
        loader.exec_module(module)
    except (OSError, ImportError, MemoryError) as error:
        return None, f"{LIBRARY_PATH} cannot be loaded: {error}"
    return module, f"{metadata['processor']}, {LIBRARY_PATH}"


def is_available() -> bool:
    """Return whether the precompiled machine code of this installation can be used: it exists, suits the processor, and was made
    from the installed sources.
    """
    return _load_library()[0] is not None


def describe_status() -> str:
    """Return a line of text for users: which precompiled machine code is in use, or why functions are compiled by numba."""
    if INTERPRETED:
        return "machine code: not in use, because NUMBA_DISABLE_JIT is set: nothing is compiled"
    module, description = _load_library()
    return f"machine code: {description}" if module is not None else f"machine code: none ({description}), so numba compiles"


class _PrecompiledFunction(PickledByName, getattr(_load_library()[0], "Function", object)):  # type: ignore[misc]
    """A function with precompiled machine code for some argument types.

    Numba compiles it for other types, and as a callee of users' functions.
    """

    def __new__(cls, py_func: Callable[..., Any], *_: object) -> Any:
        return super().__new__(cls, f"{py_func.__module__}:{py_func.__qualname__}")

    def __init__(self, py_func: Callable[..., Any], options: dict[str, Any], load_backend: Callable[[], Any]) -> None:
        update_wrapper(self, py_func)
        self.py_func: Callable[..., Any] = py_func
        self.options: dict[str, Any] = options
        self._load_backend = load_backend

    @cached_property
    def dispatcher(self) -> Any:
        """Numba's dispatcher for this function, which compiles it for argument types that were not precompiled. It is created at
        the first access.
        """
        return self._load_backend().CompiledFunction(self.py_func, self.options)

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    @property
    def targetoptions(self) -> Any:
        """Numba's compile options of this function, as a dict. The attribute has the name that numba expects."""
        return self.dispatcher.targetoptions

    @property
    def noinline(self) -> bool:
        """Whether compiled functions call this function, in place of containing a copy of its machine code."""
        return bool(self.dispatcher.noinline)

    @property
    def signatures(self) -> list[Any]:
        """List of the argument types, each a tuple, that numba has compiled this function for in this process. It is empty if
        only precompiled machine code was used.
        """
        return list(self.dispatcher.signatures) if "dispatcher" in self.__dict__ else []

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else MethodType(self, instance)

    def shipped_address(self, arguments: str, result: str) -> int:
        """Return the memory address of this function's precompiled code for argument and result types given as text, or 0 if it
        was not precompiled for these types.
        """
        return int(self.shipped_entry(f"{arguments} -> {result}"))


#: The class of functions under `compiled` if precompiled machine code is available.
PrecompiledFunction: Any = _PrecompiledFunction
