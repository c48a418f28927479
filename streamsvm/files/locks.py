"""A lock on a file or folder, for one process at a time."""

from __future__ import annotations

from typing import IO, Any


def locks(file: IO[Any]) -> bool:
    """Lock an open file until it is closed or the process ends; False if another process has locked it."""
    import portalocker  # noqa: PLC0415 - a twentieth of a second, which most uses of the package do without

    try:
        portalocker.lock(file, portalocker.LockFlags.EXCLUSIVE | portalocker.LockFlags.NON_BLOCKING)
    except portalocker.exceptions.LockException:
        return False
    return True


def unlock(file: IO[Any]) -> None:
    """Unlock a file, also where a fork of this process has it open."""
    import portalocker  # noqa: PLC0415

    portalocker.unlock(file)
