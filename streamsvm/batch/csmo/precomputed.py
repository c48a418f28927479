"""Rows of which only the kernel values are known: a Gram matrix, precomputed or returned by a function."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LARGEST_KERNEL

_ASYMMETRY = 1e-5  # of the largest value, which rounding to float32 may make; of more, a fit might never end
_COPIED = 2_000_000  # bytes of a matrix that is copied where compiled functions would be compiled anew for its form
_TILE = 64  # rows and columns of a tile


class PrecomputedRows:
    """The n rows ``which`` by their kernel values: those of a symmetric ``matrix``, float64."""

    def __init__(self, matrix: np.ndarray, which: np.ndarray | None = None) -> None:
        self.matrix: np.ndarray = matrix
        self.which: np.ndarray = np.arange(len(matrix)) if which is None else which
        self.shape: tuple[int, int] = (len(self.which), 0)

    @classmethod
    def from_matrix(cls, K: np.ndarray) -> PrecomputedRows:
        """Return the rows of a Gram matrix, float64 [n, n]; raise a ValueError where it is not symmetric."""
        if K.nbytes <= _COPIED:
            K = np.require(K, requirements=["C", "W"])
        _check_square(K)
        return cls(K)

    def __len__(self) -> int:
        return len(self.which)

    def group_equal_rows(self) -> np.ndarray:
        """Return the number of each row's group of equal rows, int64 [n], from 0 in the order of the matrix."""
        there = np.zeros(len(self.matrix), bool)
        there[self.which] = True
        return (np.cumsum(there) - 1)[self.which]

    def __getitem__(self, which: np.ndarray) -> PrecomputedRows:
        return PrecomputedRows(self.matrix, self.which[which])

    def gather_values(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the kernel values of m with k of the n rows, float64 [m, k]."""
        out = np.empty((len(rows), len(others)))
        self.write_values(rows, others, out)
        return out

    def write_values(self, rows: np.ndarray, others: np.ndarray, out: np.ndarray) -> None:
        """Write the kernel values of m with k of the n rows into ``out``, float32 or float64 [m, k]."""
        gather_submatrix(self.matrix, self.which[rows], self.which[others], out)

    @property
    def contiguous_matrix(self) -> np.ndarray | None:
        """The matrix, float64 [n, n], if its rows, or else columns, lie in one piece: it is symmetric.

        None, too, if it is read-only: what reads it here would be compiled anew.
        """
        if not (self.matrix.flags.forc and self.matrix.flags.writeable):
            return None
        return self.matrix if self.matrix.flags.c_contiguous else self.matrix.T

    def get_matrix(self) -> np.ndarray:
        """Return the kernel values of all n rows, float64 [n, n]."""
        if len(self) == len(self.matrix):  # all of them, ascending
            return np.ascontiguousarray(self.matrix if self.matrix.flags.c_contiguous else self.matrix.T)
        return self.gather_values(np.arange(len(self)), np.arange(len(self)))

    def diagonal(self) -> np.ndarray:
        """Return the self-kernels, float64 [n]."""
        return self.matrix.diagonal()[self.which]

    def add_kernel_products(self, b: np.ndarray, columns: np.ndarray, which: np.ndarray, out: np.ndarray) -> None:
        """Add the rows ``which`` of K b, where b is that of the ``columns``, to ``out`` float64 [m]."""
        support = np.flatnonzero(b)
        _add_scaled_rows(self.matrix, self.which[columns[support]], b[support], self.which[which], out)


def call_kernel_function(kernel: Callable[[Any, Any], Any], X: Any, Z: Any, shape: tuple[int, int]) -> np.ndarray:
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


def _check_square(K: np.ndarray) -> None:
    """Raise a ValueError where kernel values of rows with each other, float64 [n, n], are too large or not symmetric."""
    largest, off, i, j = _find_asymmetry(K)
    if not largest < LARGEST_KERNEL:
        raise ValueError(f"a kernel value is beyond {LARGEST_KERNEL:g}: scale the kernel")
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
    for begin in range(0, n, _TILE):
        for first in range(0, begin + 1, _TILE):
            for i in range(begin, min(begin + _TILE, n)):
                for j in range(first, min(first + _TILE, i + 1)):
                    a, b = K[i, j], K[j, i]
                    largest = max(largest, abs(a), abs(b))
                    if abs(a - b) > most:
                        most, at_i, at_j = abs(a - b), j, i
    return largest, most, at_i, at_j


@compiled(nogil=True)
def gather_submatrix(K: np.ndarray, rows: np.ndarray, others: np.ndarray, out: np.ndarray) -> None:
    """Write ``K[rows][:, others]`` into ``out`` in one step."""
    for i in range(len(rows)):
        row = K[rows[i]]
        for j in range(len(others)):
            out[i, j] = row[others[j]]


@compiled(nogil=True)
def _add_scaled_rows(K: np.ndarray, rows: np.ndarray, b: np.ndarray, which: np.ndarray, out: np.ndarray) -> None:
    """Add b_s K[which, s] to ``out`` for each of some rows s; these lie in one piece, and are columns, too."""
    for k in range(len(rows)):
        row, factor = K[rows[k]], b[k]
        if len(which) == len(row):  # all of them, ascending
            for i in range(len(row)):
                out[i] += factor * row[i]
        else:
            for i in range(len(which)):
                out[i] += factor * row[which[i]]
