"""Locks on files, which one process at a time can hold."""

from __future__ import annotations

import errno
from typing import IO, Any


def try_lock(file: IO[Any]) -> bool:
    """Try to lock an open file exclusively, without waiting. Returns True if this process holds the lock now, until the file is
    closed or the process ends, and False if another process holds it.

    Raises OSError if the file system does not support locks, and closes the file then.
    """
    import portalocker  # noqa: PLC0415 - takes 50 ms, and most programs need no lock

    try:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.exceptions.AlreadyLocked:
        return False
    except portalocker.exceptions.LockException as error:  # as on some network file systems
        file.close()
        raise OSError(errno.ENOLCK, "its file system has no locks: name a place on one that has") from error
    return True


def unlock(file: IO[Any]) -> None:
    """Release the lock of `try_lock` on an open file, even if a forked child process still has the file open."""
    import portalocker  # noqa: PLC0415

    portalocker.unlock(file)
