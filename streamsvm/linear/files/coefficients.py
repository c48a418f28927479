"""Coefficients of more rows than memory holds."""

from __future__ import annotations

import itertools
import os
import shutil
import zlib
from contextlib import ExitStack
from io import FileIO
from pathlib import Path
from typing import cast

import numpy as np

__all__ = ["Coefficients"]

_CHUNK = 2**16  # bytes


class Coefficients:
    """float64 [n] on disk, 0 at first. There are two copies, so that what was kept stays as it was while a pass writes.

    Parameters
    ----------
    stem
        Of the names of the two files.
    n
        Coefficients; 0 where they are written one after the other.
    kept
        What `keep` gave to a process before this one; None: there was none.

    Raises
    ------
    OSError
        What was kept is not there any more, or is something else.
    """

    def __init__(self, stem: Path, n: int, kept: list[int] | None = None) -> None:
        self._paths = [stem.with_name(f"{stem.name}-{copy}") for copy in (0, 1)]
        self._from = self._to = 0
        self._kept: int | None = None
        with ExitStack() as stack:
            mode = "w+b" if kept is None else "r+b"
            self._files = [cast(FileIO, stack.enter_context(path.open(mode, buffering=0))) for path in self._paths]
            if kept is not None:
                self._from = self._to = self._kept = 1 if kept[0] == 1 else 0
                if self._checksum() != kept:
                    raise OSError(f"{self._paths[self._from]} was changed")
            elif n:
                for file in self._files:
                    file.truncate(8 * n)  # zeros, which take no room on the disk
            stack.pop_all()

    def begin(self, *, some: bool = False) -> None:
        """A pass begins, which writes those of all rows, or only of some."""
        if self._from == self._kept:
            self._to = 1 - self._from
            if some:
                try:
                    shutil.copyfile(self._paths[self._from], self._paths[self._to])
                except OSError as error:
                    raise self._told(error) from error

    def end(self) -> None:
        """The pass is finished: what it wrote is read from now on."""
        self._from = self._to

    def keep(self) -> list[int]:
        """What is read now stays as it is until it is called again, also if the process is killed. What tells it: which of the
        two it is, its size and its CRC.
        """
        os.fsync(self._files[self._from].fileno())
        self._kept = self._from
        return self._checksum()

    def _checksum(self) -> list[int]:
        file, size, crc = self._files[self._from], 0, 0
        file.seek(0)
        while data := file.read(_CHUNK):
            size, crc = size + len(data), zlib.crc32(data, crc)
        return [self._from, size, crc]

    def read(self, first: int, count: int) -> np.ndarray:
        """float64 [count], from row ``first`` on."""
        return self._read(self._from, first, count)

    def write(self, first: int, b: np.ndarray) -> None:
        """Those of the rows from ``first`` on."""
        file = self._files[self._to]
        file.seek(8 * first)
        data = np.ascontiguousarray(b).view(np.uint8).data
        try:
            while data:  # a disk that is nearly full takes a part of it before it complains
                data = data[file.write(data) :]
        except OSError as error:
            raise self._told(error) from error

    def _told(self, error: OSError) -> OSError:
        return OSError(error.errno, f"{error.strerror}, while coefficients were written", str(self._paths[self._to]))

    def scatter(self, numbers: np.ndarray, b: np.ndarray, firsts: np.ndarray) -> None:
        """Those of the rows with these numbers, uint64 [m], in a pass of some. They rise within runs, and each run is read and
        written at once, up to the next of ``firsts``, uint64.
        """
        runs = np.searchsorted(firsts, numbers, "right")
        cuts = np.flatnonzero((numbers[1:] < numbers[:-1]) | (runs[1:] != runs[:-1])) + 1
        for begin, end in itertools.pairwise([0, *cuts.tolist(), len(b)]):
            first, last = int(numbers[begin]), int(numbers[end - 1])
            whole = self._read(self._to, first, last - first + 1)
            whole[(numbers[begin:end] - np.uint64(first)).astype(np.int64)] = b[begin:end]
            self.write(first, whole)

    def _read(self, copy: int, first: int, count: int) -> np.ndarray:
        b, file = np.empty(count), self._files[copy]
        file.seek(8 * first)
        if file.readinto(b.view(np.uint8).data) != b.nbytes:
            raise OSError(f"{self._paths[copy]} was changed while it was read")
        return b

    def close(self) -> None:
        for file in self._files:
            file.close()

    def remove(self) -> None:
        """Close the files and take them away."""
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
