"""Rows of which only kernel values are known: those of a matrix, or what a function returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LARGEST_KERNEL

_VALUES = 4_000_000  # float64 that are held at a time
_COLUMNS = 100_000  # values of columns, so that they are in the processor's cache when they are taken
_ASYMMETRY = 1e-5  # of the largest value, which rounding to float32 may make; of more, a fit might never end
_COPIED = 2_000_000  # bytes of a matrix that is copied where compiled functions would be compiled anew for its form
_DIAGONAL = 64  # rows whose kernel values with each other are asked for at once, for their diagonal


class GivenRows:
    """The n rows ``which`` by their kernel values: those of a symmetric ``matrix``, float64, or what a function returns.

    ``find`` returns the kernel values, float64 [m, k], of m with k rows, which are given by their numbers; the latter ascend.
    """

    def __init__(
        self,
        matrix: np.ndarray | None,
        find: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
        which: np.ndarray | None = None,
    ) -> None:
        self.matrix = matrix
        self._find = find
        self.which: np.ndarray = np.arange(len(matrix)) if which is None else which  # type: ignore[arg-type]
        self.shape: tuple[int, int] = (len(self.which), 0)

    @classmethod
    def of_matrix(cls, K: np.ndarray) -> GivenRows:
        """Return the rows of a Gram matrix, float64 [n, n]; raise a ValueError where it is not symmetric."""
        if K.nbytes <= _COPIED:
            K = np.require(K, requirements=["C", "W"])
        _check_square(K)
        return cls(K)

    @classmethod
    def of_function(cls, kernel: Callable[[Any, Any], Any], X: Any, n: int, megabytes: float) -> GivenRows:
        """Return n rows X, of any form, with the values of a function; it is called once if the Gram matrix is so small."""
        if 8.0 * n * n <= megabytes * 2**20:
            return cls.of_matrix(kernel_values(kernel, X, X, (n, n)))

        def find(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
            of = _safe_indexing(X, others)
            values = kernel_values(kernel, _safe_indexing(X, rows), of, (len(rows), len(others)))
            _check_size(max(values.max(initial=0.0), -values.min(initial=0.0)))
            return values

        return cls(None, find, np.arange(n))

    def __len__(self) -> int:
        return len(self.which)

    def same_rows(self) -> np.ndarray:
        """Return the number of each row's group of equal rows, int64 [n], from 0 in the order of the matrix."""
        if self.matrix is None:
            return np.arange(len(self))
        there = np.zeros(len(self.matrix), bool)
        there[self.which] = True
        return (np.cumsum(there) - 1)[self.which]

    def __getitem__(self, which: np.ndarray) -> GivenRows:
        return GivenRows(self.matrix, self._find, self.which[which])

    def values(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the kernel values of m with k of the n rows, float64 [m, k]."""
        out = np.empty((len(rows), len(others)))
        self.write(rows, others, out)
        return out

    def write(self, rows: np.ndarray, others: np.ndarray, out: np.ndarray) -> None:
        """Write the kernel values of m with k of the n rows into ``out``, float32 or float64 [m, k]."""
        if self._find is None:
            gather(self.matrix, self.which[rows], self.which[others], out)
            return
        size = max(_COLUMNS // max(len(others), 1), 1)
        for begin in range(0, len(rows), size):
            out[begin : begin + size] = self._find(self.which[rows[begin : begin + size]], self.which[others])

    @property
    def by_rows(self) -> np.ndarray | None:
        """The matrix, float64 [n, n], if there is one whose rows, or else columns, lie in one piece: it is symmetric.

        None, too, if it is read-only: what reads it here would be compiled anew.
        """
        if self.matrix is None or not (self.matrix.flags.forc and self.matrix.flags.writeable):
            return None
        return self.matrix if self.matrix.flags.c_contiguous else self.matrix.T

    def whole(self) -> np.ndarray:
        """Return the kernel values of all n rows, which are in a matrix, float64 [n, n]."""
        matrix: np.ndarray = self.matrix  # type: ignore[assignment]
        if len(self) == len(matrix):  # all of them, ascending
            return np.ascontiguousarray(matrix if matrix.flags.c_contiguous else matrix.T)
        return self.values(np.arange(len(self)), np.arange(len(self)))

    def diagonal(self) -> np.ndarray:
        """Return the self-kernels, float64 [n]; raise a ValueError where the values that are asked for are not symmetric."""
        if self.matrix is not None:
            return self.matrix.diagonal()[self.which]
        found = []
        for begin in range(0, len(self), _DIAGONAL):
            chunk = np.arange(begin, min(begin + _DIAGONAL, len(self)))
            values = self.values(chunk, chunk)
            _check_square(values)
            found.append(values.diagonal())
        return np.concatenate(found)

    def add_products(self, b: np.ndarray, columns: np.ndarray, which: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Add the rows ``which`` of K b, where b is that of the ``columns``, to ``out`` float64 [m], in chunks; return it."""
        support = np.flatnonzero(b)
        if self.matrix is not None:
            _add_rows(self.matrix, self.which[columns[support]], b[support], self.which[which], out)
            return out
        size = max(_VALUES // max(len(support), 1), 1)
        for begin in range(0, len(which) if len(support) else 0, size):
            out[begin : begin + size] += self.values(which[begin : begin + size], columns[support]) @ b[support]
        return out


def kernel_values(kernel: Callable[[Any, Any], Any], X: Any, Z: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return what a kernel function gives for rows X and Z, float64; ValueError where it is of another shape, or not finite."""
    values = kernel(X, Z)
    values = np.asarray(values.toarray() if sparse.issparse(values) else values, np.float64)
    if values.shape != shape:
        raise ValueError(
            f"the kernel function must return an array of shape {list(shape)} for so many rows, not of shape {list(values.shape)}"
        )
    if not np.isfinite(values).all():
        raise ValueError("the kernel function returned a value that is not finite")
    return values


def _check_size(largest: float) -> None:
    if not largest < LARGEST_KERNEL:
        raise ValueError(f"a kernel value is beyond {LARGEST_KERNEL:g}: scale the kernel")


def _check_square(K: np.ndarray) -> None:
    """Raise a ValueError where kernel values of rows with each other, float64 [n, n], are too large or not symmetric."""
    largest, off, i, j = _find_asymmetry(K)
    _check_size(largest)
    if off > _ASYMMETRY * largest:
        raise ValueError(
            f"the kernel is not symmetric: of rows {i} and {j} its values are {K[i, j]:g} and {K[j, i]:g}, by the order in which "
            "they are given; take the mean of both"
        )


@compiled(nogil=True)
def _find_asymmetry(K: np.ndarray) -> tuple[float, float, int, int]:
    """Return the largest size of a value, by how much two values that should be equal differ, and where they are.

    Tiles of both lie in the processor's cache.
    """
    n, largest, most, at_i, at_j = len(K), 0.0, 0.0, 0, 0
    for begin in range(0, n, _DIAGONAL):
        for first in range(0, begin + 1, _DIAGONAL):
            for i in range(begin, min(begin + _DIAGONAL, n)):
                for j in range(first, min(first + _DIAGONAL, i + 1)):
                    a, b = K[i, j], K[j, i]
                    largest = max(largest, abs(a), abs(b))
                    if abs(a - b) > most:
                        most, at_i, at_j = abs(a - b), j, i
    return largest, most, at_i, at_j


@compiled(nogil=True)
def gather(K: np.ndarray, rows: np.ndarray, others: np.ndarray, out: np.ndarray) -> None:
    """Write ``K[rows][:, others]`` into ``out`` in one step."""
    for i in range(len(rows)):
        row = K[rows[i]]
        for j in range(len(others)):
            out[i, j] = row[others[j]]


@compiled(nogil=True)
def _add_rows(K: np.ndarray, rows: np.ndarray, b: np.ndarray, which: np.ndarray, out: np.ndarray) -> None:
    """Add b_s K[which, s] to ``out`` for each of some rows s; these lie in one piece, and are columns, too."""
    for k in range(len(rows)):
        row, factor = K[rows[k]], b[k]
        if len(which) == len(row):  # all of them, ascending
            for i in range(len(row)):
                out[i] += factor * row[i]
        else:
            for i in range(len(which)):
                out[i] += factor * row[which[i]]
