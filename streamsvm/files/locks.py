"""A lock on a file or folder, for one process at a time."""

from __future__ import annotations

import errno
from typing import IO, Any


def try_lock(file: IO[Any]) -> bool:
    """Lock an open file until it is closed or the process ends; False if another process has locked it.

    Raises OSError if the file system has no locks, and closes the file.
    """
    import portalocker  # noqa: PLC0415 - a twentieth of a second, which most uses of the package do without

    try:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.exceptions.AlreadyLocked:
        return False
    except portalocker.exceptions.LockException as error:  # as of some network file systems
        file.close()
        raise OSError(errno.ENOLCK, "its file system has no locks: name a place on one that has") from error
    return True


def unlock(file: IO[Any]) -> None:
    """Unlock a file, also where a fork of this process has it open."""
    import portalocker  # noqa: PLC0415

    portalocker.unlock(file)
