"""One process at a time in a folder."""

from __future__ import annotations

from typing import IO, Any

try:
    import fcntl
except ImportError:  # not on every system
    fcntl = None  # type: ignore[assignment]

__all__ = ["locks"]


def locks(file: IO[Any]) -> bool:
    """Whether an open file is locked from now on, until it is closed or the process ends; False: somebody else has locked it."""
    try:
        if fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
