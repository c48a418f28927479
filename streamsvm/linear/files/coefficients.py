"""The coefficients of more rows than memory holds."""

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

from streamsvm.linear.resources import explained, write_all

__all__ = ["Coefficients"]

_CHUNK = 2**16  # bytes that a checksum reads at once


class Coefficients:
    """float64 [n] on disk, at first 0, in two copies: a pass that follows `save` writes to the other one.

    The names of the files begin with ``stem``. With n = 0, coefficients are appended. With what `save` returned in an earlier
    process, its files are opened; OSError where they are missing or something else.
    """

    def __init__(self, stem: Path, n: int, saved: list[int] | None = None) -> None:
        self._paths = [stem.with_name(f"{stem.name}-{copy}") for copy in (0, 1)]
        self._from = self._to = 0  # the copies that are read and written
        self._saved: int | None = None
        with ExitStack() as stack:
            mode = "w+b" if saved is None else "r+b"
            self._files = [cast(FileIO, stack.enter_context(path.open(mode, buffering=0))) for path in self._paths]
            if saved is not None:
                self._from = self._to = self._saved = 1 if saved[0] == 1 else 0
                if self._checksum() != saved:
                    raise OSError(f"{self._paths[self._from]} was changed")
            elif n:
                for file in self._files:
                    file.truncate(8 * n)  # to zeros, which take no room on the disk
            stack.pop_all()

    def begin(self, *, some: bool = False) -> None:
        """Begin a pass, which writes all coefficients, or only some."""
        if self._from == self._saved:
            self._to = 1 - self._from
            if some:
                with explained("coefficients were copied", self._paths[self._to]):
                    shutil.copyfile(self._paths[self._from], self._paths[self._to])

    def end(self) -> None:
        """End a pass: from now on what it wrote is read."""
        self._from = self._to

    def save(self) -> list[int]:
        """Make sure that what is read now stays until the next call, even if the process is killed.

        Returns which copy it is, its size and its CRC.
        """
        os.fsync(self._files[self._from].fileno())
        self._saved = self._from
        return self._checksum()

    def _checksum(self) -> list[int]:
        file, size, crc = self._files[self._from], 0, 0
        file.seek(0)
        while data := file.read(_CHUNK):
            size, crc = size + len(data), zlib.crc32(data, crc)
        return [self._from, size, crc]

    def read(self, first: int, count: int) -> np.ndarray:
        """Return float64 [count], from row ``first`` on."""
        return self._read(self._from, first, count)

    def write(self, first: int, b: np.ndarray) -> None:
        """Write the coefficients of the rows from ``first`` on."""
        file = self._files[self._to]
        file.seek(8 * first)
        with explained("coefficients were written", self._paths[self._to]):
            write_all(file, b)

    def scatter(self, numbers: np.ndarray, b: np.ndarray, firsts: np.ndarray) -> None:
        """Write the coefficients of the rows with these numbers, uint64 [m], in a pass of some.

        The numbers rise within runs. Each run is read and written at once, up to the next of ``firsts``, uint64.
        """
        runs = np.searchsorted(firsts, numbers, "right")
        cuts = np.flatnonzero((numbers[1:] < numbers[:-1]) | (runs[1:] != runs[:-1])) + 1
        for begin, end in itertools.pairwise([0, *cuts.tolist(), len(b)]):
            first, last = int(numbers[begin]), int(numbers[end - 1])
            run = self._read(self._to, first, last - first + 1)
            run[(numbers[begin:end] - np.uint64(first)).astype(np.int64)] = b[begin:end]
            self.write(first, run)

    def _read(self, copy: int, first: int, count: int) -> np.ndarray:
        b, file = np.empty(count), self._files[copy]
        file.seek(8 * first)
        if file.readinto(b.view(np.uint8).data) != b.nbytes:
            raise OSError(f"{self._paths[copy]} was changed while it was read")
        return b

    def close(self) -> None:
        """Close the files."""
        for file in self._files:
            file.close()

    def remove(self) -> None:
        """Close and remove the files."""
        self.close()
        for path in self._paths:
            path.unlink(missing_ok=True)
