"""A place for numba's cache of compiled code where neither the package's folder nor the user's cache directory can be written.

numba refuses ``cache=True`` there, so without this module such an import fails. The module acts when it is imported, before the
package compiles anything.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import Any

from numba import config, njit
from numba.core.dispatcher import Dispatcher

from streamsvm import _numba_linking  # noqa: F401 - acts before anything is compiled, too
from streamsvm._warnings import warn

__all__: list[str] = []


def _can_cache() -> bool:
    """Return whether numba finds a folder to cache a function of this package in."""
    try:
        njit(cache=True)(_nothing)
    except RuntimeError:  # "no locator available"
        return False
    return True


def _nothing() -> None: ...


def _folder_of_user() -> str:
    """Return a folder of the temporary directory that outlives the process; OSError where it is not this user's alone.

    What numba finds in its cache it executes, so nobody else may be able to write there.
    """
    folder = Path(tempfile.gettempdir(), f"streamsvm-numba-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can enter")
    return str(folder)


def _folder_of_process() -> str:
    """Return a new folder that is removed at the end of the process."""
    folder = tempfile.mkdtemp(prefix="streamsvm-numba-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _set_cache_directory(folder: str | None) -> None:
    if folder is None:
        os.environ.pop("NUMBA_CACHE_DIR", None)
    else:
        os.environ["NUMBA_CACHE_DIR"] = folder  # not only numba's config, which is read anew when the environment changes
    config.reload_config()


def _compile_without_cache() -> None:
    """Let ``cache=True`` have no effect where numba finds no folder, instead of raising."""
    enable = Dispatcher.enable_caching

    def enable_where_possible(dispatcher: Any) -> None:
        with contextlib.suppress(RuntimeError):
            enable(dispatcher)

    setattr(Dispatcher, "enable_caching", enable_where_possible)  # noqa: B010 - mypy refuses the assignment


def _find_place() -> None:
    if _can_cache():
        return
    given = os.environ.get("NUMBA_CACHE_DIR")
    makers = [_folder_of_user, _folder_of_process] if hasattr(os, "geteuid") else [_folder_of_process]
    for make in makers:
        with contextlib.suppress(OSError):
            _set_cache_directory(make())
            if _can_cache():
                effect = f"is cached in {os.environ['NUMBA_CACHE_DIR']}"
                break
    else:
        _set_cache_directory(given)
        _compile_without_cache()
        effect = "is not cached: every process compiles it again"
    places = "the package's folder or the user's cache directory" + (f" or NUMBA_CACHE_DIR={given}" if given else "")
    warn(
        f"numba cannot write to {places}, so compiled code {effect}. Set NUMBA_CACHE_DIR to a folder that can be written",
        RuntimeWarning,
    )


_find_place()
