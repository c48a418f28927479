"""The disk cache of compiled functions: one file per function and argument types, named by a hash of its sources.

Numba's own cache does not notice that a callee in another file has changed. Here, a changed function has another key, and so have
its callers (see `cache_keys`). Files that were not used for 60 days are deleted. While a process compiles a function, other
processes that need it wait, so that several processes share the work. The files contain machine code that is executed; files that
other users could have written are ignored.
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
_DIGEST_BYTES = 32
_MAX_UNUSED_SECONDS = 60 * 24 * 3600.0
_DAY_SECONDS = 24 * 3600.0
#: A process stops waiting for another one after this time, and compiles the function itself: the other process may be suspended.
_LOCK_WAIT_SECONDS = 120.0
#: The end of the names of cached functions and their lock files.
_CACHE_FILE = re.compile(r"-[0-9a-f]{40}\.(code|lock)$")
#: The largest accepted file, about 50 times the size of the largest function.
_MAX_FILE_BYTES = 1 << 28

#: The names of the functions that this process has compiled, and not loaded from a file.
compiled_names: list[str] = []
#: Set when this process has waited for a lock in vain: a suspended process may hold more locks, so that it does not wait again.
_stopped_waiting = threading.Event()


class FunctionCache(_Cache):  # type: ignore[misc] # numba has no types
    """The disk cache of one function, with the interface of numba's caches."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._locked: list[tuple[Path, IO[bytes]]] = []
        self._enabled = True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return numba's compile result from a file, or None. Without a file, the function is locked, because the caller compiles
        it next.
        """
        target_context.refresh()
        name = self._name(sig, target_context, self._function.is_entry)
        content = _find_file(name)
        if content is None and name is not None and (folder := find_cache_folder()) is not None:
            self._lock(folder / name)
            content = _find_file(name)  # another process may have written it before it released the lock
        if content is not None:
            with contextlib.suppress(Exception):  # such as a file written by another version of numba
                return _deserialise_function(target_context, pickle.loads(content))  # noqa: S301 - only this user or root could write it
        compiled_names.append(self._function.py_func.__qualname__)
        return None

    def has(self, sig: Any, target_context: Any) -> bool:
        """Return whether a file has the function for argument types, in a form that Python can call."""
        return _find_file(self._name(sig, target_context, True)) is not None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write numba's compile result to a file."""
        name, folder = self._name(sig, data.target_context, self._function.is_entry), find_cache_folder()
        if name is not None and folder is not None:
            _write_file(folder / name, _serialise_function(data, self._function.is_entry))

    def release(self, n_locks: int) -> None:
        """Release the locks that were taken since this cache held ``n_locks`` locks, so that waiting processes continue."""
        while len(self._locked) > n_locks:
            path, file = self._locked.pop()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            unlock(file)
            file.close()

    @property
    def held(self) -> int:
        """The number of locks that this process holds for the function; more than one if it is compiled for itself
        recursively.
        """
        return len(self._locked)

    def _name(self, sig: Any, target_context: Any, is_entry: bool) -> str | None:
        """Return the name of the file of the function for argument types; None if it cannot be cached."""
        if not self._enabled:
            return None
        try:
            key = compute_key(self._function)
        except TypeError:  # a user's function that refers to an object without a stable key
            return None
        arguments = "|".join(map(str, getattr(sig, "args", sig)))
        processor, role = str(target_context.codegen().magic_tuple()), "entry" if is_entry else "callee"
        parts = key, arguments, role, processor, _describe_environment()
        name = "".join(c if c.isalnum() or c in "._" else "-" for c in self._function.py_func.__qualname__)[:80]
        return f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:40]}.code"

    def _lock(self, path: Path) -> None:
        """Lock the file of the function, waiting while another process compiles it, for at most `_LOCK_WAIT_SECONDS`."""
        lock, deadline = path.with_suffix(".lock"), time.monotonic() + _LOCK_WAIT_SECONDS
        with contextlib.suppress(OSError):
            while True:
                file = _open_safely(lock, os.O_RDWR | os.O_CREAT)
                try:
                    if try_lock(file) and _is_same_file(lock, file):
                        self._locked.append((lock, file))
                        return
                except BaseException:
                    file.close()
                    raise
                file.close()
                if _stopped_waiting.is_set() or time.monotonic() > deadline:
                    _stopped_waiting.set()
                    return
                time.sleep(0.02)

    @property
    def cache_path(self) -> str:
        """The folder of the cache, as text."""
        return str(find_cache_folder())

    def enable(self) -> None:
        """Use files again after `disable`."""
        self._enabled = True

    def disable(self) -> None:
        """Neither read nor write files."""
        self._enabled = False

    def flush(self) -> None:
        """Do nothing: changed sources have other files."""


def _is_same_file(path: Path, file: IO[bytes]) -> bool:
    """Return whether a path is still that of an open file, which the previous owner of its lock may have deleted."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@cache
def _describe_environment() -> str:
    """Return the versions and settings that compiled code depends on."""
    versions = numba.__version__, llvmlite.__version__, np.__version__, PYTHON_ABI
    options = "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "BOUNDSCHECK", "USING_SVML", "DEBUGINFO_DEFAULT"
    return "|".join(map(str, (*versions, *(getattr(numba.config, name, None) for name in options))))


def _find_file(name: str | None) -> bytes | None:
    """Return the serialised function in the file of a name, from one of the folders; None without a valid file."""
    for folder in iter_readable_folders() if name is not None else ():
        if (content := _read_file(folder / str(name))) is not None:
            return content
    return None


def _read_file(path: Path) -> bytes | None:
    """Return the content of a cached file after its digest; None if the file is missing, damaged or untrusted."""
    try:
        with _open_safely(path, os.O_RDONLY) as file:
            age, content = time.time() - os.fstat(file.fileno()).st_mtime, file.read()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST_BYTES
    if content[:start] != _MAGIC + _digest_file(path.name, content[start:]):
        return None
    if age > _DAY_SECONDS:
        with contextlib.suppress(OSError):
            os.utime(path)  # its age counts from its last use
    return content[start:]


def _digest_file(name: str, content: bytes) -> bytes:
    """Return the digest of a file's name and content, so that a file is never mistaken for another function."""
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


def _open_safely(path: Path, flags: int) -> IO[bytes]:
    """Open a file without following links or blocking on a pipe. Raises OSError if other users may have written it."""
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags, 0o600), "r+b" if flags & os.O_RDWR else "rb")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and is_trusted(status) and status.st_size <= _MAX_FILE_BYTES:
        return file
    file.close()
    raise PermissionError(f"{path} is not a regular file that only this user can write")


def _write_file(path: Path, content: bytes) -> None:
    """Write a cached file atomically. A failure is warned of once, and otherwise ignored."""
    part = path.with_name(f"{TEMPORARY_PREFIX}{secrets.token_hex(8)}")
    try:
        _delete_unused(path.parent)
        try:
            with part.open("xb") as file:
                part.chmod(stat.S_IMODE(os.fstat(file.fileno()).st_mode) & 0o755)
                file.write(_MAGIC + _digest_file(path.name, content) + content)
            part.replace(path)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        _warn_of_disk(error.errno or 0)


@cache
def _warn_of_disk(error_number: int) -> None:
    """Warn, once per error number, that compiled code cannot be cached."""
    reason = os.strerror(error_number)
    warn(f"compiled code cannot be kept on disk, so every process compiles it again: {reason}", RuntimeWarning)


@cache
def _delete_unused(folder: Path) -> None:
    """Delete cached files and temporary files that were not used for 60 days; once per process."""
    for path in folder.iterdir():
        if path.name.startswith(TEMPORARY_PREFIX) or _CACHE_FILE.search(path.name):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _MAX_UNUSED_SECONDS:
                    path.unlink()


def _serialise_function(result: Any, is_entry: bool) -> bytes:
    """Serialise a compiled function. All have LLVM code for callers; only functions that Python calls have machine code."""
    library, fndesc = result.library, result.fndesc
    module = library._get_module_for_linking()
    symbols = {value.name for value in (*module.functions, *module.global_variables) if not value.is_declaration}
    noinline = [(*callee, _get_symbol(*callee)) for callee in vars(library).get("noinline_callees", ())]
    machine_code = library._get_compiled_object() if is_entry else None
    fndesc.typemap = fndesc.calltypes = None  # as numba's own cache does
    return dumps(
        (
            (library.name, machine_code, symbols, module.as_bitcode(), noinline),
            (fndesc, result.environment, result.signature, result.reload_init),
        )
    )


def _get_symbol(function: Any, arguments: tuple[Any, ...]) -> str:
    """Return the symbol name of a noinline function, which callers link to."""
    return str(function.overloads[arguments].fndesc.llvm_func_name)


def _deserialise_function(target_context: Any, content: Any) -> Any:
    """Deserialise a compiled function to numba's compile result. Its LLVM code is parsed when a caller is compiled."""
    (name, machine_code, symbols, bitcode, noinline), (fndesc, environment, signature, reload_init) = content
    for function in reload_init:
        function()
    library = target_context.codegen().create_library(name)
    library.noinline_callees = {}
    for callee, arguments, symbol in noinline:
        function = getattr(callee, "dispatcher", callee)
        function.compile(arguments)
        library.noinline_callees[function, arguments] = function.overloads[arguments].library
        if _get_symbol(function, arguments) != symbol:  # LLVM would abort the process
            raise LookupError(f"{symbol} was compiled with other settings")

    def module_for_linking() -> Any:
        """Return the parsed LLVM module; parse it at the first call."""
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
