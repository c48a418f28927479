"""Kernel values in float64: from products of rows, or from differences if squared norms are so large that they would cancel."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np
from scipy import sparse

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import (
    FAST,
    LOG2E,
    RBF,
    Kernel,
    add_squared_differences,
    compute_kernel_value,
    convert_to_kernel_values,
    exp2,
    exp2d,
)
from streamsvm.core.threads import ForEach, call_for_each, raise_if_stopped

# gamma |x|^2 of a row: up to this value, the exponent of a kernel value from products is exact to 1e-10.
_MAX_SQUARED_NORM = 1e5
_DENSE_TILE_SIZE = 256  # rows and columns of a tile of values, which stays in the second-level cache
_SPARSE_TILE_SHAPE = 64, 4096  # of a tile of sparse rows: the products of one row stay in the first-level cache
_MAX_VALUES_AT_ONCE = 2**17  # up to this many values, one tile has all columns: calls for each tile would take longer


class NormedRows:
    """n rows float64 [n, d], an array or a CSR matrix without duplicate entries, with their squared norms, float64 [n]."""

    def __init__(self, X: Any, squares: np.ndarray | None = None) -> None:
        self.X: Any = X
        self.squares: np.ndarray = compute_squared_norms(X) if squares is None else squares

    def __len__(self) -> int:
        return len(self.squares)

    def __getitem__(self, which: Any) -> NormedRows:
        """Return the rows at the positions ``which``, int64 [m], or in a slice."""
        return NormedRows(self.X[which], self.squares[which])

    @cached_property
    def by_feature(self) -> Any:
        """The same rows stored feature by feature, for fast products: a contiguous array [d, n], or a CSC array [n, d] if they
        are sparse.
        """
        return self.X.tocsc() if sparse.issparse(self.X) else np.ascontiguousarray(self.X.T)

    @cached_property
    def tiles(self) -> list[tuple[int, NormedRows]]:
        """The rows split into parts that fit into the processor's cache, as pairs of the position of the first row and the
        rows.
        """
        size = _SPARSE_TILE_SHAPE[1] if sparse.issparse(self.X) else _DENSE_TILE_SIZE
        return [(first, self[first : first + size]) for first in range(0, len(self), size)]


def to_clean_csr(X: Any) -> Any:
    """Return a copy of X as a CSR array without duplicate entries and stored zeros. Raise a ValueError if it has 2^31 features or
    more.
    """
    if X.shape[1] >= 2**31:
        raise ValueError(f"X has {X.shape[1]:,} features, but must have fewer than 2^31: hash them into fewer")
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def compute_squared_norms(X: Any) -> np.ndarray:
    """Return the squared Euclidean norm of each row of X, an array or CSR matrix [n, d], as float64 [n]."""
    if sparse.issparse(X):
        return sparse.csr_array((np.square(X.data, dtype=np.float64), X.indices, X.indptr), X.shape) @ np.ones(X.shape[1])
    return np.einsum("ij,ij->i", X, X)


def to_dense(X: Any) -> np.ndarray:
    """Return the rows X as a dense array; an array is returned unchanged, and a sparse matrix converted."""
    return X.toarray() if sparse.issparse(X) else X


def compute_self_kernels(rows: NormedRows, kernel: Kernel) -> np.ndarray:
    """Return the kernel value of each row with itself, k(x, x), as float64 [n]."""
    if kernel.kind == RBF:
        return np.ones(len(rows))
    values, unused = rows.squares[np.newaxis].copy(), np.empty(0)
    convert_to_kernel_values(values, unused, unused, kernel)
    return values[0]


@np.errstate(over="ignore", invalid="ignore")  # huge rows have infinite distances
def compute_kernel_values(A: NormedRows, B: NormedRows, kernel: Kernel, memory: np.ndarray | None = None) -> np.ndarray:
    """Return the kernel values of the rows A [m, d] with the rows B [k, d], float64 [m, k], computed in float64. O(m k d).

    If A is B, the values are symmetric. The result may use the ``memory``, float64 with m k numbers or more.
    """
    far = _find_far_rows(A, B, kernel)
    if len(far) == len(A) > 0:
        return _compute_from_differences(A, B, kernel.gamma)
    values = _compute_products(A, B, memory)
    convert_to_kernel_values(values, A.squares, B.squares, kernel)
    if len(far):
        values[far] = _compute_from_differences(A[far], B, kernel.gamma)
    return values


def _find_far_rows(A: NormedRows, B: NormedRows, kernel: Kernel) -> np.ndarray:
    """Return the positions, int64, of the rows of A that are so far from 0 that inner products are too inaccurate for their
    Gaussian kernel values with the rows of B. These are all rows if a row of B is that far, and none for other kernels.
    """
    if kernel.kind != RBF:
        return np.arange(0)
    if not kernel.gamma * B.squares.max(initial=0.0) <= _MAX_SQUARED_NORM:
        return np.arange(len(A))
    return np.flatnonzero(~(kernel.gamma * A.squares <= _MAX_SQUARED_NORM))


def _compute_products(A: NormedRows, B: NormedRows, memory: np.ndarray | None) -> np.ndarray:
    """Return the inner products of the rows A with the rows B, float64 [m, k], stored in ``memory`` if it was passed."""
    out = np.empty((len(A), len(B))) if memory is None else memory[: len(A) * len(B)].reshape(len(A), len(B))
    if not (sparse.issparse(A.X) and sparse.issparse(B.X)):
        if sparse.issparse(A.X) or sparse.issparse(B.X):
            out[:] = A.X @ B.X.T
            return out
        # Given a matrix and its own transpose, numpy computes one triangle only: symmetric, but slow for small tiles.
        return np.matmul(A.X, B.X.T if memory is None else B.by_feature, out=out)
    X, transposed = A.X, B.by_feature
    out[:] = 0.0
    members = transposed.indices.astype(np.int32, copy=False).view(np.uint32)  # unsigned, so that no index is tested for its sign
    _add_sparse_products(X.indptr, X.indices, X.data, transposed.indptr, members, transposed.data, out)
    return out


@compiled(nogil=True)
def _add_sparse_products(
    starts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    feature_starts: np.ndarray,
    members: np.ndarray,
    entries: np.ndarray,
    out: np.ndarray,
) -> None:
    """Add the inner products of two sets of sparse rows to ``out`` [m, k]: m rows in CSR form (``starts``, ``indices``,
    ``values``), and k rows in CSC form (``feature_starts``, ``members``, ``entries``).
    """
    for i in range(len(out)):
        row = out[i]
        for t in range(starts[i], starts[i + 1]):
            value, feature = values[t], indices[t]
            for k in range(np.uint64(feature_starts[feature]), np.uint64(feature_starts[feature + 1])):
                row[members[k]] += value * entries[k]


def _compute_from_differences(A: NormedRows, B: NormedRows, gamma: float) -> np.ndarray:
    """Return the Gaussian kernel values of the rows A with the rows B, float64 [m, k], computed from differences of features.
    Unlike inner products, these lose no digits for large values.
    """
    columns = np.ascontiguousarray(to_dense(B.X).T) if sparse.issparse(B.X) else B.by_feature
    values = np.empty((len(A), len(B)))
    _write_from_differences(np.require(to_dense(A.X), np.float64, ["C", "W"]), columns, gamma, values)
    return values


@compiled(nogil=True, fastmath=FAST)
def _write_from_differences(rows: np.ndarray, columns: np.ndarray, gamma: float, out: np.ndarray) -> None:
    """Write the Gaussian kernel values of ``rows`` [m, d] with k rows into ``out`` [m, k], computed from differences of features.
    The k rows are stored feature by feature in ``columns`` [d, k].
    """
    n, d = out.shape[1], rows.shape[1]
    distances = np.empty(n)
    for i in range(len(rows)):
        distances[:] = 0.0
        add_squared_differences(columns, rows[i], d, n, distances)
        exp2d(distances, -gamma * LOG2E, n, out[i])


def write_kernel_values(A: NormedRows, B: NormedRows, kernel: Kernel, out: np.ndarray, for_each: ForEach = call_for_each) -> None:
    """Write the kernel values of the rows A [m, d] with the rows B [k, d] into ``out``, float32 [m, k]. Inner products are
    computed in float64, exponentials in float32. ``for_each`` may run parts of the work in several threads.
    """
    size, tiles = _choose_tile_rows(A), _choose_tiles(A, B)

    def write_rows(start: int) -> None:
        """Write the kernel values of the range of rows that begins at row ``start`` into the output matrix."""
        rows = A[start : start + size]
        memory = _allocate_tile(len(rows), tiles)
        for first, columns in tiles:
            if len(_find_far_rows(rows, columns, kernel)):
                out[start : start + size, first : first + len(columns)] = compute_kernel_values(rows, columns, kernel)
            else:
                _write_tile(_compute_products(rows, columns, memory), rows.squares, columns.squares, kernel, start, first, out)

    for_each(write_rows, range(0, len(A), size))


@compiled(nogil=True, fastmath=FAST)
def _write_tile(
    products: np.ndarray, squares: np.ndarray, other_squares: np.ndarray, kernel: Kernel, start: int, first: int, out: np.ndarray
) -> None:
    """Convert a tile of inner ``products`` [m, k] to kernel values, and write them into the matrix ``out``, at row ``start`` and
    column ``first``. ``squares`` [m] and ``other_squares`` [k] are squared norms.
    """
    n, scale = products.shape[1], -kernel.gamma * LOG2E
    for i in range(len(products)):
        row, to, square = products[i], out[start + i, first : first + n], squares[i]
        if kernel.kind == RBF:
            for j in range(np.uint64(n)):
                to[j] = exp2(np.float32(scale * ((square + other_squares[j]) - 2.0 * row[j])))
        else:
            for j in range(n):
                to[j] = compute_kernel_value(kernel, row[j])


def add_kernel_sums(
    A: NormedRows, B: NormedRows, coefficients: np.ndarray, kernel: Kernel, out: np.ndarray, for_each: ForEach = call_for_each
) -> None:
    """Add kernel sums to ``out`` float64 [m, ...]: for each row of A [m, d], the sum over the rows of B [k, d] of their kernel
    value times the row of ``coefficients`` float64 [k, ...]. O(m k d).
    """
    size, tiles = _choose_tile_rows(A), _choose_tiles(A, B)

    def add_rows(start: int) -> None:
        """Add the kernel sums of the range of rows that begins at row ``start`` to the output array."""
        raise_if_stopped()
        rows, sums = A[start : start + size], out[start : start + size]
        memory = _allocate_tile(len(rows), tiles)
        for first, columns in tiles:
            sums += compute_kernel_values(rows, columns, kernel, memory) @ coefficients[first : first + len(columns)]

    for_each(add_rows, range(0, len(A), size))


def _choose_tile_rows(rows: NormedRows) -> int:
    """Return the number of rows in a tile of kernel values (a part that fits into the processor's cache), which is smaller for
    sparse ``rows``.
    """
    return _SPARSE_TILE_SHAPE[0] if sparse.issparse(rows.X) else _DENSE_TILE_SIZE


def _choose_tiles(rows: NormedRows, columns: NormedRows) -> list[tuple[int, NormedRows]]:
    """Split the rows ``columns``, whose kernel values with ``rows`` are to be computed, into parts that fit into the processor's
    cache (tiles). Return pairs of the position of the first row and the rows; only one pair if there are few kernel values.
    """
    return [(0, columns)] if len(rows) * len(columns) <= _MAX_VALUES_AT_ONCE else columns.tiles


def _allocate_tile(rows: int, tiles: list[tuple[int, NormedRows]]) -> np.ndarray:
    """Return an array for the kernel values of this number of ``rows`` with the rows of one tile. It is large enough for each of
    the ``tiles``, which use it one after the other: new memory for each would take time.
    """
    return np.empty(rows * max((len(tile) for _, tile in tiles), default=0))
