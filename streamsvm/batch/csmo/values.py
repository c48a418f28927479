"""Kernel values in float64: by products of rows, or by differences of rows so far from 0 that squared norms would cancel."""

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
    compute_from_product,
    convert_products,
    exp2,
    exp2d,
)
from streamsvm.core.threads import ForEach, call_for_each, raise_if_stopped

_FAR = 1e5  # gamma times a row's squared norm, up to which products hold exponents to 1e-10
_DENSE_TILE = 256  # rows and columns of a tile of values, which stays in the second-level cache
_SPARSE_TILE = 64, 4096  # rows and columns of a tile of sparse rows: the products of one row stay in the first-level cache
_MAX_VALUES_AT_ONCE = 2**17  # values up to which one tile has all columns: calls for each tile would take longer


class NormedRows:
    """n rows, an array or CSR without duplicates, float64 [n, d], with their squared norms, float64 [n]."""

    def __init__(self, X: Any, squares: np.ndarray | None = None) -> None:
        self.X: Any = X
        self.squares: np.ndarray = compute_squared_norms(X) if squares is None else squares

    def __len__(self) -> int:
        return len(self.squares)

    def __getitem__(self, which: Any) -> NormedRows:
        """Return the rows with the numbers ``which``, int64 [m], or those of a slice."""
        return NormedRows(self.X[which], self.squares[which])

    @cached_property
    def by_feature(self) -> Any:
        """The rows feature by feature: a contiguous array [d, n], or a CSC array [n, d]."""
        return self.X.tocsc() if sparse.issparse(self.X) else np.ascontiguousarray(self.X.T)

    @cached_property
    def tiles(self) -> list[tuple[int, NormedRows]]:
        """The rows that belong to each tile of columns, and the number of the first."""
        size = _SPARSE_TILE[1] if sparse.issparse(self.X) else _DENSE_TILE
        return [(first, self[first : first + size]) for first in range(0, len(self), size)]


def to_clean_csr(X: Any) -> Any:
    """Return a copy of X as a CSR array without duplicates and stored zeros; ValueError where 32-bit indices do not suffice."""
    if X.shape[1] >= 2**31:
        raise ValueError(f"X has {X.shape[1]:,} features, and 2^31 or more are too many: hash them into fewer")
    X = sparse.csr_array(X, copy=True)
    X.sum_duplicates()
    X.eliminate_zeros()
    return X


def compute_squared_norms(X: Any) -> np.ndarray:
    """Return the squared norms of rows, an array or CSR, float64 [n]."""
    if sparse.issparse(X):
        return sparse.csr_array((np.square(X.data, dtype=np.float64), X.indices, X.indptr), X.shape) @ np.ones(X.shape[1])
    return np.einsum("ij,ij->i", X, X)


def to_dense(X: Any) -> np.ndarray:
    """Return rows, an array or sparse matrix, as an array."""
    return X.toarray() if sparse.issparse(X) else X


def compute_self_kernels(rows: NormedRows, kernel: Kernel) -> np.ndarray:
    """Return the kernel value of each row with itself, float64 [n]."""
    if kernel.kind == RBF:
        return np.ones(len(rows))
    values, unused = rows.squares[np.newaxis].copy(), np.empty(0)
    convert_products(values, unused, unused, kernel)
    return values[0]


@np.errstate(over="ignore", invalid="ignore")  # of huge rows
def kernel_values(A: NormedRows, B: NormedRows, kernel: Kernel, memory: np.ndarray | None = None) -> np.ndarray:
    """Return the kernel values of rows A [m, d] with rows B [k, d], float64 [m, k]. O(m k d).

    Those of rows with each other, where both are the same object, are symmetric. They lie in the ``memory``, float64 [at least
    m k], if there is some.
    """
    far = _find_far_rows(A, B, kernel)
    if len(far) == len(A) > 0:
        return _compute_from_differences(A, B, kernel.gamma)
    values = _compute_products(A, B, memory)
    convert_products(values, A.squares, B.squares, kernel)
    if len(far):
        values[far] = _compute_from_differences(A[far], B, kernel.gamma)
    return values


def _find_far_rows(A: NormedRows, B: NormedRows, kernel: Kernel) -> np.ndarray:
    """Return the numbers of the rows A whose squared distances from some of B would cancel, int64."""
    if kernel.kind != RBF:
        return np.arange(0)
    if not kernel.gamma * B.squares.max(initial=0.0) <= _FAR:
        return np.arange(len(A))
    return np.flatnonzero(~(kernel.gamma * A.squares <= _FAR))


def _compute_products(A: NormedRows, B: NormedRows, memory: np.ndarray | None) -> np.ndarray:
    """Return the products of rows A with rows B, float64 [m, k]; see `kernel_values`."""
    out = np.empty((len(A), len(B))) if memory is None else memory[: len(A) * len(B)].reshape(len(A), len(B))
    if not (sparse.issparse(A.X) and sparse.issparse(B.X)):
        if sparse.issparse(A.X) or sparse.issparse(B.X):
            out[:] = A.X @ B.X.T
            return out
        # Of rows with their own transpose, numpy computes one triangle, which makes the result symmetric and a small tile slow.
        return np.matmul(A.X, B.X.T if memory is None else B.by_feature, out=out)
    X, of = A.X, B.by_feature
    out[:] = 0.0
    members = of.indices.astype(np.int32, copy=False).view(np.uint32)  # signed indices may be negative, which takes a test each
    _add_sparse_products(X.indptr, X.indices, X.data, of.indptr, members, of.data, out)
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
    """Add the products of the rows of a CSR matrix with those of a CSC matrix to ``out``, through the features they share."""
    for i in range(len(out)):
        row = out[i]
        for t in range(starts[i], starts[i + 1]):
            value, feature = values[t], indices[t]
            for k in range(np.uint64(feature_starts[feature]), np.uint64(feature_starts[feature + 1])):
                row[members[k]] += value * entries[k]


def _compute_from_differences(A: NormedRows, B: NormedRows, gamma: float) -> np.ndarray:
    """Return the values of the Gaussian kernel, float64 [m, k], from squared differences, which do not cancel."""
    others = np.ascontiguousarray(to_dense(B.X).T) if sparse.issparse(B.X) else B.by_feature
    values = np.empty((len(A), len(B)))
    _write_from_differences(np.require(to_dense(A.X), np.float64, ["C", "W"]), others, gamma, values)
    return values


@compiled(nogil=True, fastmath=FAST)
def _write_from_differences(rows: np.ndarray, others: np.ndarray, gamma: float, out: np.ndarray) -> None:
    """Write the values of the Gaussian kernel of rows [m, d] with others, feature by feature [d, k], into ``out``."""
    n, d = out.shape[1], rows.shape[1]
    distances = np.empty(n)
    for i in range(len(rows)):
        distances[:] = 0.0
        add_squared_differences(others, rows[i], d, n, distances)
        exp2d(distances, -gamma * LOG2E, n, out[i])


def write_kernel_values(A: NormedRows, B: NormedRows, kernel: Kernel, out: np.ndarray, each: ForEach = call_for_each) -> None:
    """Write what `kernel_values` returns into ``out``, float32 [m, k], tile by tile; exponentials are in float32, too."""
    size, tiles = _choose_tile_rows(A), _choose_tiles(A, B)

    def write(begin: int) -> None:
        rows = A[begin : begin + size]
        memory = _allocate_tile(len(rows), tiles)
        for first, others in tiles:
            if len(_find_far_rows(rows, others, kernel)):
                out[begin : begin + size, first : first + len(others)] = kernel_values(rows, others, kernel)
            else:
                _write_tile(_compute_products(rows, others, memory), rows.squares, others.squares, kernel, begin, first, out)

    each(write, range(0, len(A), size))


@compiled(nogil=True, fastmath=FAST)
def _write_tile(
    products: np.ndarray, squares: np.ndarray, others: np.ndarray, kernel: Kernel, begin: int, first: int, out: np.ndarray
) -> None:
    """Write the kernel values of products [m, k] into the rows from ``begin`` and the columns from ``first`` on."""
    n, scale = products.shape[1], -kernel.gamma * LOG2E
    for i in range(len(products)):
        row, to, square = products[i], out[begin + i, first : first + n], squares[i]
        if kernel.kind == RBF:
            for j in range(np.uint64(n)):
                to[j] = exp2(np.float32(scale * ((square + others[j]) - 2.0 * row[j])))
        else:
            for j in range(n):
                to[j] = compute_from_product(kernel, row[j])


def add_kernel_sums(
    A: NormedRows, B: NormedRows, coefficients: np.ndarray, kernel: Kernel, out: np.ndarray, each: ForEach = call_for_each
) -> None:
    """Add K c to ``out`` float64 [m, ...], of rows A [m, d] with rows B [k, d] and c float64 [k, ...]. O(m k d), tile by tile."""
    size, tiles = _choose_tile_rows(A), _choose_tiles(A, B)

    def add(begin: int) -> None:
        raise_if_stopped()
        rows, sums = A[begin : begin + size], out[begin : begin + size]
        memory = _allocate_tile(len(rows), tiles)
        for first, others in tiles:
            sums += kernel_values(rows, others, kernel, memory) @ coefficients[first : first + len(others)]

    each(add, range(0, len(A), size))


def _choose_tile_rows(rows: NormedRows) -> int:
    return _SPARSE_TILE[0] if sparse.issparse(rows.X) else _DENSE_TILE


def _choose_tiles(rows: NormedRows, others: NormedRows) -> list[tuple[int, NormedRows]]:
    """Return the tiles of others: all at once beside few rows."""
    return [(0, others)] if len(rows) * len(others) <= _MAX_VALUES_AT_ONCE else others.tiles


def _allocate_tile(rows: int, tiles: list[tuple[int, NormedRows]]) -> np.ndarray:
    """Return memory for the values of so many rows in each tile: new memory for each would be zeroed by the operating system."""
    return np.empty(rows * max((len(others) for _, others in tiles), default=0))
