"""Where compiled functions are kept on disk: the user's cache directory, or what can be used in its place."""

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

#: The beginning of the names of files that are being written.
TEMPORARY_PREFIX = ".part-streamsvm-"


def is_trusted(about: os.stat_result) -> bool:
    """Return whether nobody can write to a file or folder but this user and the superuser, where systems tell."""
    return not hasattr(os, "geteuid") or (about.st_uid in {os.geteuid(), 0} and not about.st_mode & 0o022)


@cache
def find_cache_folder() -> Path | None:
    """Return the folder that compiled functions are written to; None if there is none, of which a warning tells."""
    given = os.environ.get("NUMBA_CACHE_DIR")
    try:
        return _usable_folder(_preferred_folder())
    except (OSError, RuntimeError) as error:
        why = error
    place, effect = None, "is not kept: every process compiles it again"
    for make in (_folder_of_user, _folder_of_process) if hasattr(os, "geteuid") else (_folder_of_process,):
        with contextlib.suppress(OSError):
            place = _usable_folder(make())
            effect = f"is kept in {place}"
            break
    wanted = f"NUMBA_CACHE_DIR={given}" if given else "the user's cache directory"
    warn(
        f"{wanted} cannot be written to ({why}), so compiled code {effect}. "
        "Set NUMBA_CACHE_DIR to a folder that can be written to",
        RuntimeWarning,
    )
    return place


def iter_readable_folders() -> Iterator[Path]:
    """Yield the folders where compiled functions may be: first one that perhaps is there to be read only, as in an image."""
    first = None
    with contextlib.suppress(OSError, RuntimeError):
        if is_trusted(_preferred_folder().stat()):
            first = _preferred_folder()
            yield first
    second = find_cache_folder()
    if second is not None and second != first:
        with contextlib.suppress(OSError):
            if is_trusted(second.stat()):
                yield second


def _preferred_folder() -> Path:
    # Not NUMBA_CACHE_DIR itself: who set it may have other files there, and so has numba.
    given, cache = os.environ.get("NUMBA_CACHE_DIR"), os.environ.get("XDG_CACHE_HOME", "")
    if given:
        return Path(given, "streamsvm")
    return (Path(cache) if Path(cache).is_absolute() else Path.home() / ".cache") / "streamsvm"


def _usable_folder(place: Path) -> Path:
    """Return a folder, which is made if it is not there; OSError if it cannot be written to, or others could write to it."""
    place.mkdir(0o755, parents=True, exist_ok=True)
    above = place.parent.stat().st_mode  # who can write there, can put another folder in its place
    if not is_trusted(place.stat()) or (hasattr(os, "geteuid") and above & stat.S_IWOTH and not above & stat.S_ISVTX):
        raise PermissionError(f"other users can write to {place}")
    with tempfile.NamedTemporaryFile(dir=place, prefix=TEMPORARY_PREFIX):
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
    place, process = Path(tempfile.mkdtemp(prefix="streamsvm-")), os.getpid()

    def remove() -> None:
        if os.getpid() == process:  # not a fork of it
            shutil.rmtree(place, ignore_errors=True)

    atexit.register(remove)
    return place
