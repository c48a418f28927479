"""Finds the folder of the disk cache of compiled functions: the user's cache directory, or a fallback."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from streamsvm.core.warning import warn

#: Prefix of the names of files that are being written.
TEMPORARY_PREFIX = ".part-streamsvm-"


def is_trusted(file_status: os.stat_result) -> bool:
    """Return whether a file or folder with this stat result belongs to this user or root, and only its owner can write to it;
    True on systems without user ids.
    """
    return not hasattr(os, "geteuid") or (file_status.st_uid in {os.geteuid(), 0} and not file_status.st_mode & 0o022)


@cache
def find_cache_folder() -> Path | None:
    """Return the folder where this process stores compiled functions: the configured or default one, or with a warning a
    temporary one if that is not writable; None if no folder can be written to safely.
    """
    configured = os.environ.get("NUMBA_CACHE_DIR")
    try:
        return _check_folder(_get_preferred_folder())
    except (OSError, RuntimeError) as error:
        reason = error
    folder, effect = None, "is not kept: every process compiles it again"
    for make_folder in (_make_user_folder, _make_process_folder) if hasattr(os, "geteuid") else (_make_process_folder,):
        with contextlib.suppress(OSError):
            folder = _check_folder(make_folder())
            effect = f"is kept in {folder}"
            break
    setting = f"NUMBA_CACHE_DIR={configured}" if configured else "the user's cache directory"
    warn(
        f"{setting} cannot be written to ({reason}), so compiled code {effect}. "
        "Set NUMBA_CACHE_DIR to a folder that can be written to",
        RuntimeWarning,
    )
    return folder


def iter_readable_folders() -> Iterator[Path]:
    """Yield the folders that compiled functions are loaded from: the configured or default one (which may be read-only), and the
    one where this process stores functions, if it differs. Folders that other users can write to are left out.
    """
    first = None
    with contextlib.suppress(OSError, RuntimeError):
        if is_trusted(_get_preferred_folder().stat()):
            first = _get_preferred_folder()
            yield first
    second = find_cache_folder()
    if second is not None and second != first:
        with contextlib.suppress(OSError):
            if is_trusted(second.stat()):
                yield second


def _get_preferred_folder() -> Path:
    """Return the path of the configured or default cache folder: ``streamsvm`` in the folder NUMBA_CACHE_DIR (an environment
    variable), or in the user's cache directory.
    """
    # A subfolder, because NUMBA_CACHE_DIR may contain other files, such as numba's own.
    configured, user_cache = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", "")
    if configured:
        return Path(configured, "streamsvm")
    return (Path(user_cache) if Path(user_cache).is_absolute() else Path.home() / ".cache") / "streamsvm"


def _check_folder(folder: Path) -> Path:
    """Create ``folder`` if it does not exist, and return it. Raises OSError if this process cannot write to it, or if other users
    can.
    """
    folder.mkdir(0o755, parents=True, exist_ok=True)
    parent_mode = folder.parent.stat().st_mode  # who can write to the parent could replace the folder
    if not is_trusted(folder.stat()) or (
        hasattr(os, "geteuid") and parent_mode & stat.S_IWOTH and not parent_mode & stat.S_ISVTX
    ):
        raise PermissionError(f"other users can write to {folder}")
    with tempfile.NamedTemporaryFile(dir=folder, prefix=TEMPORARY_PREFIX):
        return folder


def _make_user_folder() -> Path:
    """Create a cache folder for this user in the system's temporary directory, if it does not exist, and return it. Raises
    OSError if other users have access to it.
    """
    folder = Path(tempfile.gettempdir(), f"streamsvm-{os.geteuid()}")
    with contextlib.suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{folder} is not a folder that only this user can enter")
    return folder


def _make_process_folder() -> Path:
    """Create a temporary cache folder for this process, and return it. It is deleted when the process exits."""
    folder, process_id = Path(tempfile.mkdtemp(prefix="streamsvm-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process_id:  # not in a fork
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(remove)
    return folder
