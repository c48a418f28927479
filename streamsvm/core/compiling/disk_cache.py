"""Compiled functions on disk: one file for each function and types of arguments, named after what it was compiled from.

Numba's own cache does not see that a callee in another file has changed. Here a changed function has another key, and so have its
callers (see `keys`); what no run has used for two months is deleted. While a process compiles a function, others that need it
wait, so that several processes share the work of compiling. Files are executed: who else could have written them is not trusted.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import secrets
import stat
import threading
import time
from functools import cache
from pathlib import Path
from typing import IO, Any

import llvmlite
import numba
import numpy as np
from llvmlite import binding
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from streamsvm.core.compiling.cache_folders import TEMPORARY_PREFIX, find_cache_folder, is_trusted, iter_readable_folders
from streamsvm.core.compiling.cache_keys import PYTHON_ABI, compute_key
from streamsvm.core.warning import warn
from streamsvm.files.locks import try_lock, unlock

_MAGIC = b"streamsvm function 3\n"
_DIGEST = 32
_UNUSED = 60 * 24 * 3600.0
_DAY = 24 * 3600.0
#: Seconds after which a process compiles what another one has not compiled yet, which may have been stopped.
_PATIENCE = 120.0
#: The end of the names of files of compiled functions, and of their locks.
_OURS = re.compile(r"-[0-9a-f]{40}\.(code|lock)$")
#: Bytes of a file; those of the largest function have a fiftieth of it.
_LARGEST = 1 << 28

#: The names of the functions that this process has compiled, because no file had them.
compiled_names: list[str] = []
#: Set once this process has waited for a lock in vain: who was stopped may hold more, and it waits for none any more.
_gave_up = threading.Event()


class FunctionCache(_Cache):  # type: ignore[misc] # numba has no types
    """The files of a function, where numba looks for compiled code and leaves it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._locked: list[tuple[Path, IO[bytes]]] = []
        self._enabled = True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        name = self._name(sig, target_context, self._function.is_entry)
        found = _find_stored(name)
        if found is None and name is not None and (place := find_cache_folder()) is not None:
            self._lock(place / name)
            found = _find_stored(name)  # by who had the lock
        if found is not None:
            with contextlib.suppress(Exception):  # whatever a file may do that was written by another numba, say
                return _rebuilt_function(target_context, pickle.loads(found))  # noqa: S301 - only this user or root could write it
        compiled_names.append(self._function.py_func.__qualname__)
        return None

    def has(self, sig: Any, target_context: Any) -> bool:
        """Return whether there is a file of the function as an entry, for types of arguments."""
        return _find_stored(self._name(sig, target_context, True)) is not None

    def save_overload(self, sig: Any, data: Any) -> None:
        name, place = self._name(sig, data.target_context, self._function.is_entry), find_cache_folder()
        if name is not None and place is not None:
            _write_whole(place / name, _packed_function(data, self._function.is_entry))

    def release(self, held: int) -> None:
        """Let other processes go on that wait for what this one has compiled since it held so many locks."""
        while len(self._locked) > held:
            path, file = self._locked.pop()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            unlock(file)
            file.close()

    @property
    def held(self) -> int:
        """How many locks this process holds for the function: more than one while it is compiled for itself."""
        return len(self._locked)

    def _name(self, sig: Any, target_context: Any, entry: bool) -> str | None:
        if not self._enabled:
            return None
        try:
            key = compute_key(self._function)
        except TypeError:  # a user's function, which refers to something that may be another in the next process
            return None
        arguments = "|".join(map(str, getattr(sig, "args", sig)))
        parts = key, arguments, "entry" if entry else "callee", str(target_context.codegen().magic_tuple()), _surroundings_key()
        name = "".join(c if c.isalnum() or c in "._" else "-" for c in self._function.py_func.__qualname__)[:80]
        return f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:40]}.code"

    def _lock(self, path: Path) -> None:
        """Wait until no other process compiles the function; not longer than `_PATIENCE`, for it may have been stopped."""
        lock, deadline = path.with_suffix(".lock"), time.monotonic() + _PATIENCE
        with contextlib.suppress(OSError):
            while True:
                file = _open_safely(lock, os.O_RDWR | os.O_CREAT)
                try:
                    if try_lock(file) and _is_there(lock, file):
                        self._locked.append((lock, file))
                        return
                except BaseException:
                    file.close()
                    raise
                file.close()
                if _gave_up.is_set() or time.monotonic() > deadline:
                    _gave_up.set()
                    return
                time.sleep(0.02)

    @property
    def cache_path(self) -> str:
        return str(find_cache_folder())

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Forget nothing: another source has other files."""


def _is_there(path: Path, file: IO[bytes]) -> bool:
    """Return whether a path is still that of an open file, which who held its lock may have deleted."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@cache
def _surroundings_key() -> str:
    versions = numba.__version__, llvmlite.__version__, np.__version__, PYTHON_ABI
    options = "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "BOUNDSCHECK", "USING_SVML", "DEBUGINFO_DEFAULT"
    return "|".join(map(str, (*versions, *(getattr(numba.config, name, None) for name in options))))


def _find_stored(name: str | None) -> bytes | None:
    """Return the pickled function of a file of this name, in one of the folders; None if there is none that is whole."""
    for place in iter_readable_folders() if name is not None else ():
        if (found := _read_whole(place / str(name))) is not None:
            return found
    return None


def _read_whole(path: Path) -> bytes | None:
    try:
        with _open_safely(path, os.O_RDONLY) as file:
            age, content = time.time() - os.fstat(file.fileno()).st_mtime, file.read()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if content[:start] != _MAGIC + _digest_of_file(path.name, content[start:]):
        return None
    if age > _DAY:
        with contextlib.suppress(OSError):
            os.utime(path)  # it is in use
    return content[start:]


def _digest_of_file(name: str, content: bytes) -> bytes:
    # With the name, lest a file is taken for that of another function.
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


def _open_safely(path: Path, flags: int) -> IO[bytes]:
    """Open a file without following a link or waiting for a pipe; an OSError if others may have put it there."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags, 0o600), "r+b" if flags & os.O_RDWR else "rb")
    about = os.fstat(file.fileno())
    if stat.S_ISREG(about.st_mode) and is_trusted(about) and about.st_size <= _LARGEST:
        return file
    file.close()
    raise PermissionError(f"{path} is no file of this user alone")


def _write_whole(path: Path, content: bytes) -> None:
    part = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
    try:
        _delete_unused(path.parent)
        try:
            with part.open("xb") as file:
                part.chmod(stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o755)
                file.write(_MAGIC + _digest_of_file(path.name, content) + content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        _tell_of_disk(error.errno or 0)


@cache
def _tell_of_disk(number: int) -> None:
    why = os.strerror(number)
    warn(f"compiled code cannot be kept on disk, so every process compiles it again: {why}", RuntimeWarning)


@cache
def _delete_unused(place: Path) -> None:
    # Once in a process that compiles.
    for path in place.iterdir():
        if path.name.startswith(TEMPORARY_PREFIX) or _OURS.search(path.name):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _UNUSED:
                    path.unlink()


def _packed_function(result: Any, entry: bool) -> bytes:
    """Return a compiled function as bytes. Only an entry has machine code; both have LLVM code, for callers."""
    library, fndesc = result.library, result.fndesc
    shared = library._get_module_for_linking()
    symbols = {value.name for value in (*shared.functions, *shared.global_variables) if not value.is_declaration}
    noinline = [(*callee, _symbol_of(*callee)) for callee in vars(library).get("noinline_callees", ())]
    machine_code = library._get_compiled_object() if entry else None
    fndesc.typemap = fndesc.calltypes = None  # as numba's own cache
    return dumps(
        (
            (library.name, machine_code, symbols, shared.as_bitcode(), noinline),
            (fndesc, result.environment, result.signature, result.reload_init),
        )
    )


def _symbol_of(function: Any, arguments: tuple[Any, ...]) -> str:
    """Return the name by which callers find a function that is kept noinline."""
    return str(function.overloads[arguments].fndesc.llvm_func_name)


def _rebuilt_function(target_context: Any, found: Any) -> Any:
    """Return numba's result for a compiled function. Its LLVM code is read when a caller is compiled."""
    (name, machine_code, symbols, bitcode, noinline), (fndesc, environment, signature, reload_init) = found
    for function in reload_init:
        function()
    library = target_context.codegen().create_library(name)
    library.noinline_callees = {}
    for place, arguments, symbol in noinline:
        function = getattr(place, "dispatcher", place)
        function.compile(arguments)
        library.noinline_callees[function, arguments] = function.overloads[arguments].library
        if _symbol_of(function, arguments) != symbol:  # LLVM would end the process
            raise LookupError(f"{symbol} was compiled with other settings")

    def module_for_linking() -> Any:
        if library._shared_module is None:
            library._shared_module = binding.parse_bitcode(bitcode)
        return library._shared_module

    library._get_module_for_linking = module_for_linking
    if machine_code is None:
        library._finalized = library._waits = True
    else:
        library.enable_object_caching()
        library._set_compiled_object(machine_code)
        library._finalize_final_module()
        library._codegen._engine._defined_symbols |= symbols
    entry_point = target_context.get_executable(library, fndesc, environment)
    return CompileResult(
        typing_context=target_context.typing_context,
        target_context=target_context,
        entry_point=entry_point,
        typing_error=None,
        type_annotation="",
        signature=signature,
        objectmode=False,
        lifted=(),
        fndesc=fndesc,
        library=library,
        call_helper=None,
        environment=environment,
        metadata=None,
        reload_init=reload_init,
        referenced_envs=(),
    )
