"""Writes that say what failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path

import numpy as np

__all__ = ["explained", "write_all"]


@contextmanager
def explained(what: str, path: Path) -> Iterator[None]:
    """Say in an OSError what was done to which file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, while {what}", str(path)) from error


def write_all(file: FileIO, array: np.ndarray) -> None:
    """Write an array to a file without a buffer. A disk that is nearly full takes a part of it before it fails."""
    data = memoryview(np.ascontiguousarray(array).data).cast("B")
    while data:
        data = data[file.write(data) :]
