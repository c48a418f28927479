"""Compiled functions on disk: one file for each function and types of arguments, named after what it was compiled from.

Numba's own cache does not see that a callee in another file has changed. Here a changed function has another key, and so have its
callers (see `keys`); what no run has used for two months is deleted. While a process compiles a function, others that need it
wait, so that several processes share the work of compiling. Files are executed: the folder must be the user's alone.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import os
import pickle
import shutil
import stat
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import IO, Any

import llvmlite
import numba
from llvmlite import binding
from numba.core.caching import _Cache
from numba.core.compiler import CompileResult
from numba.core.serialize import dumps

from streamsvm._warnings import warn
from streamsvm.compiling.keys import PYTHON, key_of

__all__ = ["Stored", "compiled_here", "folder"]

_MAGIC = b"streamsvm function 1\n"
_DIGEST = 32
_UNUSED = 60 * 24 * 3600.0
_DAY = 24 * 3600.0

#: The names of the functions that this process has compiled, because no file had them.
compiled_here: list[str] = []


class Stored(_Cache):  # type: ignore[misc] # numba has no types
    """The files of a function, where numba looks for compiled code and leaves it."""

    def __init__(self, function: Any) -> None:
        self._function = function
        self._locked: list[tuple[Path, IO[bytes]]] = []
        self._enabled = True

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        target_context.refresh()
        path = self._path(sig, target_context)
        found = None if path is None else _read(path)
        if found is None and path is not None:
            self._lock(path)
            found = _read(path)  # by who had the lock
        if found is not None:
            with contextlib.suppress(Exception):  # whatever a file may do that was written by another numba, say
                return _rebuilt(target_context, found)
        compiled_here.append(self._function.py_func.__qualname__)
        return None

    def has(self, sig: Any, target_context: Any) -> bool:
        """Return whether there is a file for types of arguments."""
        path = self._path(sig, target_context)
        return path is not None and path.is_file()

    def save_overload(self, sig: Any, data: Any) -> None:
        path = self._path(sig, data.target_context)
        if path is not None:
            _write(path, _packed(data, self._function.is_entry))

    def release(self, held: int) -> None:
        """Let other processes go on that wait for what this one has compiled since it held so many locks."""
        while len(self._locked) > held:
            path, file = self._locked.pop()
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            file.close()

    @property
    def held(self) -> int:
        """How many locks this process holds for the function: more than one while it is compiled for itself."""
        return len(self._locked)

    def _path(self, sig: Any, target_context: Any) -> Path | None:
        place = folder() if self._enabled else None
        if place is None:
            return None
        kind = "entry" if self._function.is_entry else "callee"
        arguments = "|".join(map(str, getattr(sig, "args", sig)))
        parts = key_of(self._function), arguments, kind, str(target_context.codegen().magic_tuple()), _surroundings()
        name = "".join(c if c.isalnum() or c in "._" else "-" for c in self._function.py_func.__qualname__)[:80]
        return place / f"{name}-{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:40]}.code"

    def _lock(self, path: Path) -> None:
        lock = path.with_suffix(".lock")
        with contextlib.suppress(OSError):
            file = lock.open("wb")
            try:
                fcntl.flock(file, fcntl.LOCK_EX)
            except BaseException:
                file.close()
                raise
            self._locked.append((lock, file))

    @property
    def cache_path(self) -> str:
        return str(folder())

    def enable(self) -> None:
        self._enabled = True

    def disable(self) -> None:
        self._enabled = False

    def flush(self) -> None:
        """Forget nothing: another source has other files."""


@cache
def _surroundings() -> str:
    versions = numba.__version__, llvmlite.__version__, PYTHON
    options = (numba.config.OPT, numba.config.LOOP_VECTORIZE, numba.config.SLP_VECTORIZE, numba.config.ENABLE_AVX)
    return "|".join(map(str, (*versions, *options, numba.config.BOUNDSCHECK)))


def _read(path: Path) -> Any:
    try:
        content = path.read_bytes()
    except OSError:
        return None
    start = len(_MAGIC) + _DIGEST
    if content[: len(_MAGIC)] != _MAGIC or hashlib.sha256(content[start:]).digest() != content[len(_MAGIC) : start]:
        return None
    with contextlib.suppress(OSError):
        if time.time() - path.stat().st_mtime > _DAY:
            path.touch()  # it is in use
    with contextlib.suppress(Exception):
        return pickle.loads(content[start:])  # noqa: S301 - from a folder that only this user can write to
    return None


def _write(path: Path, content: bytes) -> None:
    try:
        _delete_unused(path.parent)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
            try:
                file.write(_MAGIC + hashlib.sha256(content).digest() + content)
                file.close()
                Path(file.name).replace(path)
            except BaseException:
                Path(file.name).unlink(missing_ok=True)
                raise
    except OSError as error:
        _tell_of_disk(str(error))


@cache
def _tell_of_disk(error: str) -> None:
    warn(f"compiled code cannot be kept on disk, so every process compiles it again: {error}", RuntimeWarning)


@cache
def _delete_unused(place: Path) -> None:
    # Once in a process that compiles.
    for path in place.iterdir():
        with contextlib.suppress(OSError):
            if path.suffix in {".code", ".part", ".lock"} and time.time() - path.stat().st_mtime > _UNUSED:
                path.unlink()


def _packed(result: Any, entry: bool) -> bytes:
    """Return a compiled function as bytes. Only an entry has machine code; both have LLVM code, for callers."""
    library, fndesc = result.library, result.fndesc
    shared = library._get_module_for_linking()
    symbols = {value.name for value in (*shared.functions, *shared.global_variables) if not value.is_declaration}
    machine_code = library._get_compiled_object() if entry else None
    fndesc.typemap = fndesc.calltypes = None  # as numba's own cache
    return dumps(
        (
            (library.name, machine_code, symbols, shared.as_bitcode()),
            (fndesc, result.environment, result.signature, result.reload_init),
        )
    )


def _rebuilt(target_context: Any, found: Any) -> Any:
    """Return numba's result for a compiled function. Its LLVM code is read when a caller is compiled."""
    (name, machine_code, symbols, bitcode), (fndesc, environment, signature, reload_init) = found
    for function in reload_init:
        function()
    library = target_context.codegen().create_library(name)

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


# The folder.


@cache
def folder() -> Path | None:
    """Return the folder of compiled functions; None if no folder can be written to, of which a warning tells."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    try:
        return _usable(Path(given) if given else _cache_of_user() / "streamsvm")
    except (OSError, RuntimeError) as error:
        why = error
    makers = [_folder_of_user, _folder_of_process] if hasattr(os, "geteuid") else [_folder_of_process]
    for make in makers:
        with contextlib.suppress(OSError):
            place = _usable(make())
            _tell_of_place(given, why, f"is kept in {place}")
            return place
    _tell_of_place(given, why, "is not kept: every process compiles it again")
    return None


def _cache_of_user() -> Path:
    given = os.environ.get("XDG_CACHE_HOME", "")
    return Path(given) if Path(given).is_absolute() else Path.home() / ".cache"


def _tell_of_place(given: str | None, why: Exception, effect: str) -> None:
    place = f"NUMBA_CACHE_DIR={given}" if given else "the user's cache directory"
    warn(
        f"{place} cannot be written to ({why}), so compiled code {effect}. "
        "Set NUMBA_CACHE_DIR to a folder that can be written to",
        RuntimeWarning,
    )


def _usable(place: Path) -> Path:
    place.mkdir(0o700, parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=place, suffix=".part"):
        return place


def _folder_of_user() -> Path:
    """Return a folder of the temporary directory that outlives the process; OSError where it is not this user's alone."""
    place = Path(tempfile.gettempdir(), f"streamsvm-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        place.mkdir(0o700)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{place} is not a folder that only this user can enter")
    return place


def _folder_of_process() -> Path:
    """Return a new folder that is removed at the end of the process."""
    place = Path(tempfile.mkdtemp(prefix="streamsvm-"))
    atexit.register(shutil.rmtree, place, ignore_errors=True)
    return place
