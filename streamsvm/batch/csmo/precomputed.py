"""Rows that are known by their kernel values only: a precomputed Gram matrix, or one that a kernel function returned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LARGEST_KERNEL

# Largest difference of K[i, j] and K[j, i], relative to the largest value: float32 may round by as much. A fit might not converge
# if the matrix is less symmetric.
_MAX_ASYMMETRY = 1e-5
_MAX_COPIED_BYTES = 2_000_000  # a matrix up to this size is copied if compiled functions would need a compilation for its layout
_TILE_SIZE = 64  # rows and columns of a tile


class PrecomputedRows:
    """The n rows at the positions ``which`` int64 [n] of a symmetric Gram matrix, float64 [N, N]; all rows by default."""

    def __init__(self, matrix: np.ndarray, which: np.ndarray | None = None) -> None:
        self.matrix: np.ndarray = matrix
        self.which: np.ndarray = np.arange(len(matrix)) if which is None else which
        self.shape: tuple[int, int] = (len(self.which), 0)

    @classmethod
    def from_matrix(cls, K: np.ndarray) -> PrecomputedRows:
        """Return an object for all rows of the Gram matrix ``K`` (kernel values of all pairs of rows), float64 [n, n]. Raise a
        ValueError if the matrix is not symmetric, or has values that are too large.
        """
        if K.nbytes <= _MAX_COPIED_BYTES:
            K = np.require(K, requirements=["C", "W"])
        _check_square(K)
        return cls(K)

    def __len__(self) -> int:
        return len(self.which)

    def group_equal_rows(self) -> np.ndarray:
        """Return the number of the group of equal rows to which each row belongs, int64 [n], counted from 0. Rows are equal if
        they have the same position in the Gram matrix.
        """
        is_present = np.zeros(len(self.matrix), bool)
        is_present[self.which] = True
        return (np.cumsum(is_present) - 1)[self.which]

    def __getitem__(self, which: np.ndarray) -> PrecomputedRows:
        return PrecomputedRows(self.matrix, self.which[which])

    def gather_values(self, rows: np.ndarray, columns: np.ndarray) -> np.ndarray:
        """Return the kernel values between two lists of rows, float64 [len(rows), len(columns)]. ``rows`` and ``columns`` int64
        are positions among the n rows of this object.
        """
        out = np.empty((len(rows), len(columns)))
        self.write_values(rows, columns, out)
        return out

    def write_values(self, rows: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
        """Write the kernel values between two lists of rows into ``out``, float32 or float64 [len(rows), len(columns)]. ``rows``
        and ``columns`` int64 are positions among the n rows of this object.
        """
        gather_submatrix(self.matrix, self.which[rows], self.which[columns], out)

    @property
    def contiguous_matrix(self) -> np.ndarray | None:
        """The whole symmetric Gram matrix, float64 [N, N], C-contiguous, without a copy. None if it is stored in another layout
        or is read-only.

        Compiled functions would need another compilation for another layout. If the columns are contiguous, this is the
        transpose, which is equal.
        """
        if not (self.matrix.flags.forc and self.matrix.flags.writeable):
            return None
        return self.matrix if self.matrix.flags.c_contiguous else self.matrix.T

    def get_matrix(self) -> np.ndarray:
        """Return the kernel values of all n rows with each other, float64 [n, n], C-contiguous. It may be the stored Gram matrix
        itself, so it must not be changed.
        """
        if len(self) == len(self.matrix):  # all rows, in ascending order
            return np.ascontiguousarray(self.matrix if self.matrix.flags.c_contiguous else self.matrix.T)
        return self.gather_values(np.arange(len(self)), np.arange(len(self)))

    def diagonal(self) -> np.ndarray:
        """Return the kernel value of each of the n rows with itself, float64 [n]."""
        return self.matrix.diagonal()[self.which]

    def add_kernel_products(self, b: np.ndarray, columns: np.ndarray, rows: np.ndarray, out: np.ndarray) -> None:
        """Add kernel sums to ``out`` float64 [len(rows)]: for each row, the sum over ``columns`` of its kernel value with that
        row times the coefficient in ``b`` [len(columns)]. ``rows`` and ``columns`` are positions among the n rows.
        """
        support = np.flatnonzero(b)
        _add_scaled_rows(self.matrix, self.which[columns[support]], b[support], self.which[rows], out)


def call_kernel_function(kernel: Callable[[Any, Any], Any], X: Any, Z: Any, shape: tuple[int, int]) -> np.ndarray:
    """Call the user's function ``kernel`` with rows X and Z, and return its kernel values as float64. Raise a ValueError if they
    do not have the given ``shape`` (rows of X, rows of Z), or one is not finite.
    """
    values = kernel(X, Z)
    values = np.asarray(values.toarray() if sparse.issparse(values) else values, np.float64)
    if values.shape != shape:
        shapes = f"of shape {list(shape)} for these rows, not of shape {list(values.shape)}"
        raise ValueError(f"the kernel function must return an array {shapes}")
    if not np.isfinite(values).all():
        raise ValueError("the kernel function returned a value that is not finite")
    return values


def _check_square(K: np.ndarray) -> None:
    """Raise a ValueError if the square Gram matrix ``K``, float64 [n, n], is not symmetric up to rounding, or has values that are
    too large.
    """
    largest, difference, i, j = _find_asymmetry(K)
    if not largest < LARGEST_KERNEL:
        raise ValueError(f"a kernel value is beyond {LARGEST_KERNEL:g}: scale the kernel")
    if difference > _MAX_ASYMMETRY * largest:
        raise ValueError(
            f"the kernel is not symmetric: of rows {i} and {j}, its values are {K[i, j]:g} and {K[j, i]:g}, in either order; "
            "average the matrix with its transpose"
        )


@compiled(nogil=True)
def _find_asymmetry(K: np.ndarray) -> tuple[float, float, int, int]:
    """Return the largest absolute value of the square matrix ``K``, the largest difference |K[i, j] - K[j, i]|, and the indices i
    and j of that difference.

    The matrix is read in pairs of tiles, so that both stay in the processor's cache.
    """
    n, largest, most, at_i, at_j = len(K), 0.0, 0.0, 0, 0
    for start in range(0, n, _TILE_SIZE):
        for first in range(0, start + 1, _TILE_SIZE):
            for i in range(start, min(start + _TILE_SIZE, n)):
                for j in range(first, min(first + _TILE_SIZE, i + 1)):
                    a, b = K[i, j], K[j, i]
                    largest = max(largest, abs(a), abs(b))
                    if abs(a - b) > most:
                        most, at_i, at_j = abs(a - b), j, i
    return largest, most, at_i, at_j


@compiled(nogil=True)
def gather_submatrix(K: np.ndarray, rows: np.ndarray, columns: np.ndarray, out: np.ndarray) -> None:
    """Write the submatrix ``K[rows][:, columns]`` into ``out`` [len(rows), len(columns)]. Unlike numpy, it does not copy the rows
    first.
    """
    for i in range(len(rows)):
        row = K[rows[i]]
        for j in range(len(columns)):
            out[i, j] = row[columns[j]]


@compiled(nogil=True)
def _add_scaled_rows(K: np.ndarray, rows: np.ndarray, b: np.ndarray, which: np.ndarray, out: np.ndarray) -> None:
    """Add several rows of the symmetric matrix ``K``, restricted to the columns ``which``, to the vector ``out`` [len(which)]:
    for each s, row ``rows[s]`` times ``b[s]``.
    """
    for k in range(len(rows)):
        row, factor = K[rows[k]], b[k]
        if len(which) == len(row):  # all rows, in ascending order
            for i in range(len(row)):
                out[i] += factor * row[i]
        else:
            for i in range(len(which)):
                out[i] += factor * row[which[i]]
