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
        """Load this function, compiled for the argument types ``sig``, from the disk cache, and return numba's compile result. If
        the cache lacks it, return None and take a lock, so that other processes wait until the caller has compiled it.
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
        """Return whether the disk cache contains this function, compiled for the argument types ``sig``, in a form that Python
        can call.
        """
        return _find_file(self._name(sig, target_context, True)) is not None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Write this function, compiled for the argument types ``sig``, to the disk cache. ``data`` is numba's compile result. A
        failure only causes a warning.
        """
        name, folder = self._name(sig, data.target_context, self._function.is_entry), find_cache_folder()
        if name is not None and folder is not None:
            _write_file(folder / name, _serialise_function(data, self._function.is_entry))

    def release(self, n_locks: int) -> None:
        """Release locks on cache files of this function, the latest first, until ``n_locks`` remain. Other processes that waited
        for the compiled function then continue.
        """
        while len(self._locked) > n_locks:
            path, file = self._locked.pop()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            unlock(file)
            file.close()

    @property
    def held(self) -> int:
        """Number of locks that this process holds on cache files of this function. It is above 1 if compiling the function
        requires compiling it for other types as well, as with recursion.
        """
        return len(self._locked)

    def _name(self, sig: Any, target_context: Any, is_entry: bool) -> str | None:
        """Return the name of the cache file for this function, compiled for the argument types ``sig``; None if it cannot be
        cached. Versions for calls from Python (``is_entry``) and for calls from compiled code only have different names.
        """
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
        """Lock the cache file at ``path``, so that other processes wait for this one to compile the function. If another process
        holds the lock, wait up to 120 seconds for it, then continue without the lock.
        """
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
        """The folder of the disk cache of compiled functions, as a string."""
        return str(find_cache_folder())

    def enable(self) -> None:
        """Let this cache read and write files again, after `disable`."""
        self._enabled = True

    def disable(self) -> None:
        """Let this cache of compiled functions neither read nor write files, until `enable` is called."""
        self._enabled = False

    def flush(self) -> None:
        """Do nothing: numba calls this to invalidate a cache, but here, changed sources lead to other file names."""


def _is_same_file(path: Path, file: IO[bytes]) -> bool:
    """Return whether the open ``file`` still is the one at ``path``: another process may have deleted or replaced it. False if
    the path does not exist.
    """
    try:
        return os.path.samestat(path.stat(), os.fstat(file.fileno()))
    except FileNotFoundError:
        return False


@cache
def _describe_environment() -> str:
    """Return the versions of numba, LLVM, numpy and Python, and numba's settings, as one string: compiled code from another
    environment must not be loaded.
    """
    versions = numba.__version__, llvmlite.__version__, np.__version__, PYTHON_ABI
    options = "OPT", "LOOP_VECTORIZE", "SLP_VECTORIZE", "ENABLE_AVX", "BOUNDSCHECK", "USING_SVML", "DEBUGINFO_DEFAULT"
    return "|".join(map(str, (*versions, *(getattr(numba.config, name, None) for name in options))))


def _find_file(name: str | None) -> bytes | None:
    """Return the content of the cached file called ``name`` from the first cache folder with a valid one. Returns None if all
    folders lack it, or for the name None.
    """
    for folder in iter_readable_folders() if name is not None else ():
        if (content := _read_file(folder / str(name))) is not None:
            return content
    return None


def _read_file(path: Path) -> bytes | None:
    """Return the content of the cached file at ``path``, without its header; None if the file is missing, its checksum is wrong,
    or users other than this one and root can write to it.
    """
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
    """Return the SHA-256 checksum of a cached file's name and content. It includes the name, so that a renamed file is never
    taken for another function.
    """
    return hashlib.sha256(name.encode() + b"\0" + content).digest()


def _open_safely(path: Path, flags: int) -> IO[bytes]:
    """Open a cache or lock file and return it. Raises OSError unless it is a regular file of limited size that only this user or
    root can write to; symbolic links are not followed. ``flags`` are those of `os.open`.
    """
    flags |= getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = os.fdopen(os.open(path, flags, 0o600), "r+b" if flags & os.O_RDWR else "rb")
    status = os.fstat(file.fileno())
    if stat.S_ISREG(status.st_mode) and is_trusted(status) and status.st_size <= _MAX_FILE_BYTES:
        return file
    file.close()
    raise PermissionError(f"{path} is not a regular file that only this user can write")


def _write_file(path: Path, content: bytes) -> None:
    """Write ``content``, with a header and a checksum, to the cached file at ``path`` atomically. An error of the disk causes a
    warning once, and is otherwise ignored.
    """
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
    """Issue a warning that compiled code cannot be stored on disk, with the text of the system's error number ``error_number``;
    only once for each number.
    """
    reason = os.strerror(error_number)
    warn(f"compiled code cannot be kept on disk, so every process compiles it again: {reason}", RuntimeWarning)


@cache
def _delete_unused(folder: Path) -> None:
    """Delete files of compiled functions in ``folder`` that were not used for 60 days; done only once per process and folder."""
    for path in folder.iterdir():
        if path.name.startswith(TEMPORARY_PREFIX) or _CACHE_FILE.search(path.name):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _MAX_UNUSED_SECONDS:
                    path.unlink()


def _serialise_function(result: Any, is_entry: bool) -> bytes:
    """Serialise numba's compile result of a function to bytes for the disk cache. They contain its LLVM bitcode, which is linked
    into compiled callers, and with ``is_entry`` also its machine code, which Python calls.
    """
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
    """Return the linker symbol of a compiled function for these argument types: the name that other compiled functions call it
    by.
    """
    return str(function.overloads[arguments].fndesc.llvm_func_name)


def _deserialise_function(target_context: Any, content: Any) -> Any:
    """Restore numba's compile result of a function from ``content``, the unpickled contents of its cache file. Raises LookupError
    if a function that it calls is now compiled under another linker symbol, because the call would fail.
    """
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
        """Return the LLVM module of this function, to be linked into a caller. It is parsed from bitcode at the first call."""
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
