"""Weights of the rows of LIBSVM text: a file beside it with a number a line."""

from __future__ import annotations

import itertools
import math
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np

__all__ = ["WeightLines"]


class WeightLines:
    r"""Reads the weights of rows, some at a time; None for a path: there are none.

    Raises
    ------
    ValueError
        A line is no number of at least 0, or there are not as many as rows; the message says where.
    OSError
        The file cannot be read.

    Examples
    --------
    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "weights.txt")
    >>> _ = path.write_text("1\n0.5\n")
    >>> with WeightLines(path) as weights:
    ...     weights.take(2, Path("rows.txt"))
    array([1. , 0.5])
    """

    def __init__(self, path: Path | None) -> None:
        self._path, self._line, self._stack = path, 0, ExitStack()

    def take(self, n: int, source: Path) -> np.ndarray | None:
        """Return the weights of the next n rows of the text ``source``, float64 [n]; None where there are none."""
        if self._path is None:
            return None
        found = np.empty(n)
        lines = list(itertools.islice(self._file, n))
        if len(lines) < n:
            raise ValueError(f"{self._path} ends after {self._line + len(lines):,} weights, and {source} has more rows")
        for i, text in enumerate(lines):
            self._line += 1
            try:
                found[i] = float(text)
            except ValueError:
                found[i] = math.nan
            if not 0.0 <= found[i] < math.inf:
                raise ValueError(f"{self._path}, line {self._line:,}: {text.strip()[:30]!r} is no weight, a number of at least 0")
        return found

    def end(self, source: Path) -> None:
        """Raise a ValueError where weights are left, other than blank lines."""
        if self._path is not None and any(line.strip() for line in self._file):
            raise ValueError(f"{self._path} has more weights than {source} has rows, {self._line:,}")

    def __enter__(self) -> Self:
        if self._path is not None:
            self._file = self._stack.enter_context(self._path.open(encoding="utf-8"))
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stack.close()
