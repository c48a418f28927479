"""Kernel values in float32 from products of rows, in tiles that stay in the processor's cache; the kernel matrix is not stored.

A tile of products of dense rows is one matrix product of BLAS. For sparse rows, a group of rows is laid out feature by feature,
as a dense panel, and each other row adds up the panel's values at its features: one SIMD loop for each feature. With the Gaussian
kernel, the squared norms are two more features, x.x 1 + 1 z.z - 2 x.z, so that the products are squared distances. One pass over
a tile turns these into kernel values, and either sums up K c or stores the values. In float32, norms of rows far from the mean
would cancel: tiles are for rows that lie near it, measured by gamma, or contain small integers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.batch.csmo.values import compute_squared_norms, to_dense
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LOG2E, RBF, Kernel, compute_kernel_value, exp2
from streamsvm.core.threads import ForEach, call_for_each

ROWS, COLUMNS = 512, 256  # of a tile, which stays in the second-level cache
# Tiles of sparse rows with more features than the first have the second number of columns.
_MAX_FEATURES_OF_WIDE_TILES, _NARROW_TILE_COLUMNS = 2048, 64
# A loop over rows has about _ITEMS items, but an item has at least the given number of rows (dense, sparse) and of values.
_ITEMS, _MIN_ITEM_ROWS, _MIN_ITEM_VALUES = 16, (64, 256), 2**18
_MAX_SQUARED_NORM = 16.0  # gamma |x|^2 of a row: up to it, float32 exponents are exact to 3e-6
_MAX_FAR_SHARE = 0.05  # of the rows may be farther from the mean
_MIN_ZEROS = 8  # rows with this many zeros on average are faster as sparse rows
_MIN_ITEMS_OF_ROWS = 4  # if rows are not enough for this many items, threads share the columns
_CHUNK_VALUES = 2**17  # values that are compared at a time
_MAX_INDICATOR_GAMMA = 1e30  # larger values have the same effect: different rows have the kernel value 0
_MAX_FEATURES_NOT_MIRRORED = 48  # computing values of dense rows with few features takes no longer than mirroring them
_MAX_EXACT_INTEGER = 2.0**23  # smaller integers and their sums are exact in float32


class Float32Rows(NamedTuple):
    """n rows of d features in float32, dense or sparse (CSR)."""

    kernel: Kernel
    squares: np.ndarray  # [n]: the squared norms
    dense: np.ndarray  # [n, d]; for the Gaussian kernel, two more columns are the squared norm and 1; [n, 0] if rows are sparse
    starts: np.ndarray  # int64 [n + 1], as ``indptr`` of CSR
    indices: np.ndarray  # int32
    values: np.ndarray
    features: int  # d

    @property
    def n_rows(self) -> int:
        """The number of rows in this collection."""
        return len(self.squares)

    @property
    def tile_columns(self) -> int:
        """The number of columns of a tile, when products with these rows are computed in tiles that fit into the processor's
        cache. It is smaller for sparse rows with many features.
        """
        return COLUMNS if self.dense.shape[1] or self.features <= _MAX_FEATURES_OF_WIDE_TILES else _NARROW_TILE_COLUMNS

    def take_rows(self, which: np.ndarray) -> Float32Rows:
        """Return a copy of the rows at the positions ``which``, int64 [m], as a collection of its own."""
        if self.dense.shape[1]:
            return self._replace(squares=self.squares[which], dense=self.dense[which])
        starts = self.starts.astype(np.int32) if self.starts[-1] < 2**31 else self.starts  # scipy would convert all indices
        X = sparse.csr_array((self.values, self.indices, starts), (len(self.squares), self.features))[which]
        return self._replace(
            squares=self.squares[which], dense=self.dense[which], starts=X.indptr.astype(np.int64),
            indices=X.indices.astype(np.int32, copy=False), values=X.data,
        )  # fmt: skip

    def slice_rows(self, first: int, last: int) -> Float32Rows:
        """Return the rows from position ``first`` to ``last`` (exclusive) as a collection that shares their memory."""
        return self._replace(
            squares=self.squares[first:last], dense=self.dense[first:last], starts=self.starts[first : last + 1]
        )  # fmt: skip


class CheckedFloat32Rows(NamedTuple):
    """Rows in float32, and which of them float32 is accurate enough for."""

    rows: Float32Rows
    is_near: np.ndarray  # bool [n]: whether a row is near enough to the mean; the others need float64
    is_exact: bool  # whether all products are exact in float32, because values are small integers


def convert_to_indicators(X: np.ndarray, kernel: Kernel, for_each: ForEach = call_for_each) -> tuple[Any, Kernel]:
    """Replace features that have only two values by 0/1 indicators of the rarer value, for faster products, and adapt the
    kernel's gamma, so that kernel values stay equal. Return the rows, an array or CSR matrix, and the kernel; both unchanged if
    that is impossible. ``for_each`` runs loops in threads.

    Rows and kernel are returned unchanged unless the kernel is Gaussian, each feature has at most two values, and the two values
    have the same difference in all features. The form of the rows is the faster one.
    """
    n, d = X.shape
    size = max(_CHUNK_VALUES // max(d, 1), 1)
    starts = range(0, n, size)
    extremes, failed_chunks = np.empty((2, len(starts), d)), []

    def find_extremes(start: int) -> None:
        """Update the smallest and the largest value of each feature with those of the chunk of rows that begins at row
        ``start``.
        """
        chunk = X[start : start + size]
        chunk.min(axis=0, out=extremes[0, start // size])
        chunk.max(axis=0, out=extremes[1, start // size])

    for_each(find_extremes, starts)
    low, high = extremes[0].min(axis=0), extremes[1].max(axis=0)
    gaps = np.unique((high - low)[high > low])
    first = X[:100]  # these suffice to recognise most data with other features
    if kernel.kind != RBF or len(gaps) != 1 or not ((first == low) | (first == high)).all():
        return X, kernel
    varying, gap = np.flatnonzero(high > low), float(gaps[0])
    is_rarer, counts = np.empty((n, len(varying)), bool), np.empty((len(starts), len(varying)))

    def compare_values(start: int) -> None:
        """Mark and count the larger value of each feature in the chunk of rows that begins at row ``start``; record the chunk as
        failed if a feature has a third value.
        """
        chunk = X[start : start + size]
        is_high = high == chunk
        if not (is_high | (low == chunk)).all():
            failed_chunks.append(start)
        is_rarer[start : start + size] = is_high[:, varying]
        counts[start // size] = np.count_nonzero(is_rarer[start : start + size], axis=0)

    for_each(compare_values, starts)
    if failed_chunks:
        return X, kernel
    is_rarer ^= counts.sum(axis=0) > 0.5 * n
    is_sparse = np.count_nonzero(is_rarer) < n * (is_rarer.shape[1] - _MIN_ZEROS)
    kernel = kernel._replace(gamma=min(kernel.gamma * gap * gap, _MAX_INDICATOR_GAMMA))
    return to_csr(is_rarer) if is_sparse else is_rarer.astype(np.float64), kernel


def check_float32_rows(X: Any, kernel: Kernel) -> CheckedFloat32Rows | None:
    """Convert the rows X, float64 [n, d] or CSR, to float32, and return them with a mask of the rows for which float32 kernel
    values are accurate enough (those near the mean). Return None if that excludes more than a twentieth of the rows.
    """
    n, d = X.shape
    if sparse.issparse(X) and X.nnz >= n * (d - _MIN_ZEROS):
        X = to_dense(X)
    values, longest = (X.data, np.diff(X.indptr).max(initial=0)) if sparse.issparse(X) else (X, d)
    are_integers = all((part == np.rint(part)).all() for part in (values[:100], values))
    largest = max(values.max(initial=0.0), -values.min(initial=0.0))
    is_exact = bool(are_integers and float(longest) * largest**2 < _MAX_EXACT_INTEGER)
    if not sparse.issparse(X) and kernel.kind == RBF and not is_exact:
        X = X - X.mean(axis=0)
    rows, squares = make_float32_rows(X, kernel)
    is_near = np.full(n, is_exact or kernel.kind != RBF) | (kernel.gamma * squares <= _MAX_SQUARED_NORM)
    return None if np.mean(~is_near) > _MAX_FAR_SHARE else CheckedFloat32Rows(rows, is_near, is_exact)


@np.errstate(over="ignore", invalid="ignore")  # rows that are too far may overflow
def make_float32_rows(X: Any, kernel: Kernel) -> tuple[Float32Rows, np.ndarray]:
    """Convert rows X, an array or CSR matrix [n, d], to float32, in the layout for products in tiles; return them with their
    squared norms, float64 [n].
    """
    (n, d), squares, single = X.shape, compute_squared_norms(X), np.float32
    if sparse.issparse(X):
        parts = X.indptr.astype(np.int64), X.indices.astype(np.int32, copy=False), X.data.astype(single, copy=False)
        return Float32Rows(kernel, squares.astype(single), np.empty((n, 0), single), *parts, d), squares
    dense = np.empty((n, d + 2 * (kernel.kind == RBF)), single)
    dense[:, :d], dense[:, d : d + 1], dense[:, d + 1 :] = X, squares[:, np.newaxis], 1.0
    parts = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, single)
    return Float32Rows(kernel, squares.astype(single), dense, *parts, d), squares


def to_csr(X: np.ndarray) -> Any:
    """Convert an array [n, d] of numbers or bool to a CSR array of float64 that stores only nonzero values."""
    positions = np.flatnonzero(X)
    rows, columns = np.divmod(positions, X.shape[1])
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=X.shape[0]))])
    return sparse.csr_array((X.ravel()[positions].astype(np.float64), columns.astype(np.int32), starts), X.shape)


def write_kernel_block(left: Float32Rows, right: Float32Rows, out: np.ndarray, for_each: ForEach = call_for_each) -> None:
    """Compute the kernel values of the rows ``left`` [m, d] with the rows ``right`` [n, d], which contain the kernel, and write
    them into ``out``, float32 [m, n]. The work is divided into tiles; ``for_each`` may run these in several threads. O(m n d).

    If both sides are the same object, values below the diagonal are mirrored where that is faster than computing them.
    """
    right_side = make_right_side(right)
    is_mirrored = left is right and out.flags.c_contiguous and not 0 < left.dense.shape[1] <= _MAX_FEATURES_NOT_MIRRORED
    min_rows = min(right.n_rows, _MIN_ITEMS_OF_ROWS * _MIN_ITEM_ROWS[not left.dense.shape[1]])
    by_rows = is_mirrored or left.n_rows >= min_rows
    size = _choose_item_rows(left, right) if by_rows else _choose_item_rows(right, left)

    def write_item(start: int) -> None:
        """Compute one part of the kernel matrix, the rows or columns from position ``start`` on, and write it into the output
        array.
        """
        first, last = (0, start + size) if is_mirrored else (0, right.n_rows) if by_rows else (start, start + size)
        columns = right_side.slice_rows(first, last)
        for rows, column, tile in iter_product_tiles(left, columns, *((start, start + size) if by_rows else (0, left.n_rows))):
            width = min(tile.shape[1], columns.n_rows - column)
            _write_tile_values(left.kernel, tile, width, rows.start, first + column, out)
            if is_mirrored:
                _mirror_values(out, rows.start, rows.stop, column, column + width)

    for_each(write_item, range(0, left.n_rows if by_rows else right.n_rows, size)[::-1])


def add_kernel_products(
    left: Float32Rows, right: Float32Rows, coefficients: np.ndarray, out: np.ndarray, for_each: ForEach = call_for_each
) -> None:
    """Add kernel sums to ``out`` float64 [m]: for each row of ``left``, the sum over the rows of ``right`` of their kernel value
    times its coefficient in ``coefficients`` float64 [n]. O(m n d), in tiles.
    """
    right_side, c, size = make_right_side(right), coefficients.astype(np.float32), _choose_item_rows(left, right)

    def add_item(start: int) -> None:
        """Add the kernel sums of the range of rows that begins at row ``start`` to the output array."""
        for rows, first, tile in iter_product_tiles(left, right_side, start, start + size):
            _add_tile_products(left.kernel, tile, c[first : first + tile.shape[1]], out[rows])

    for_each(add_item, range(0, left.n_rows, size))


def _choose_item_rows(left: Float32Rows, right: Float32Rows) -> int:
    """Return the number of rows of ``left`` that a thread processes at a time, when products with ``right`` are computed. It does
    not depend on the number of threads, so that the results do not depend on it either.
    """
    min_rows, size = _MIN_ITEM_ROWS[not left.dense.shape[1]], max(left.n_rows // _ITEMS, _MIN_ITEM_VALUES // max(right.n_rows, 1))
    return max(size - size % _MIN_ITEM_ROWS[0], min_rows)


def make_right_side(rows: Float32Rows) -> Float32Rows:
    """Return the rows in the layout that `iter_product_tiles` needs for the right factor. For the Gaussian kernel, the products
    with them are then squared distances instead of inner products.
    """
    if rows.kernel.kind != RBF:
        return rows
    if not rows.dense.shape[1]:
        return rows._replace(values=rows.values * np.float32(-2.0))
    dense = rows.dense * np.float32(-2.0)
    dense[:, -2], dense[:, -1] = 1.0, rows.squares
    return rows._replace(dense=dense)


def iter_product_tiles(left: Float32Rows, right: Float32Rows, start: int, stop: int) -> Iterator[tuple[slice, int, np.ndarray]]:
    """Compute the inner products (for the Gaussian kernel, squared distances) of the rows ``start`` to ``stop`` of ``left`` with
    all rows of ``right``, in tiles. Yield for each tile the slice of its left rows, the position of its first right row, and its
    values, an array [rows, columns].

    The tile is [rows, columns] of the right rows from that position on. The next tile reuses its memory.
    """
    stop, dtype = min(stop, left.n_rows), np.float32
    if left.dense.shape[1]:
        memory = np.empty(ROWS * COLUMNS, dtype)
        for row in range(start, stop, ROWS):
            rows = slice(row, min(row + ROWS, stop))
            for first in range(0, right.n_rows, COLUMNS):
                left_rows, right_rows = left.dense[rows], right.dense[first : first + COLUMNS]
                tile = memory[: len(left_rows) * len(right_rows)].reshape(len(left_rows), len(right_rows))
                np.matmul(left_rows, right_rows.T, out=tile)
                yield rows, first, tile
        return
    width = left.tile_columns
    panel_rows, tile = np.zeros(left.features, np.int32), np.empty((min(stop - start, ROWS), width), dtype)
    longest = int(np.diff(left.starts[start : stop + 1]).max(initial=0))
    hits, weights, squares = np.empty(longest + 1, np.int32), np.empty(longest + 1, dtype), np.zeros(width, dtype)
    left_squares = left.squares if left.kernel.kind == RBF else np.zeros(left.n_rows, dtype)
    for first in range(0, right.n_rows, width):
        last = min(first + width, right.n_rows)
        panel = np.zeros((min(int(right.starts[last] - right.starts[first]), left.features) + 1, width), dtype)
        if left.kernel.kind == RBF:
            squares[: last - first] = right.squares[first:last]
        _write_panel(right.starts, right.indices, right.values, first, last, panel_rows, panel)
        for row in range(start, stop, ROWS):
            rows = slice(row, min(row + ROWS, stop))
            _write_sparse_products(
                left.starts, left.indices, left.values, left_squares[rows], row, rows.stop, squares, panel_rows, panel, hits,
                weights, tile,
            )  # fmt: skip
            yield rows, first, tile[: rows.stop - row]
        panel_rows[right.indices[right.starts[first] : right.starts[last]]] = 0


@compiled(nogil=True)
def _mirror_values(values: np.ndarray, start: int, stop: int, first: int, last: int) -> None:
    """Mirror a part of the square matrix ``values`` in place: copy its elements below the diagonal in the rows ``start`` to
    ``stop`` and the columns ``first`` to ``last`` (exclusive) to above the diagonal.
    """
    flat, n = values.ravel(), np.uint64(len(values))
    for j in range(first, last):
        i = max(start, j + 1)
        at, to = np.uint64(i) * n + np.uint64(j), np.uint64(j) * n + np.uint64(i)
        for k in range(np.uint64(max(stop - i, 0))):
            flat[to + k] = flat[at + k * n]


@compiled(nogil=True)
def _write_panel(
    starts: np.ndarray, indices: np.ndarray, values: np.ndarray, first: int, last: int, panel_rows: np.ndarray, panel: np.ndarray
) -> None:
    """Copy the rows ``first`` to ``last`` (exclusive) of a CSR matrix (``starts``, ``indices``, ``values``) to columns of the
    dense array ``panel``. Feature j goes to row ``panel_rows[j]`` of the panel; if that is 0, the next free row is assigned.
    """
    size = 0
    for i in range(first, last):
        for k in range(starts[i], starts[i + 1]):
            j = indices[k]
            if panel_rows[j] == 0:
                size += 1
                panel_rows[j] = size
            panel[panel_rows[j], i - first] = values[k]


@compiled(nogil=True, fastmath=FAST)
def _write_sparse_products(
    starts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    squares: np.ndarray,
    start: int,
    stop: int,
    column_squares: np.ndarray,
    panel_rows: np.ndarray,
    panel: np.ndarray,
    hits: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the inner products of sparse rows with dense ones into ``out``. The sparse rows are those from ``start`` to ``stop``
    of a CSR matrix (``starts``, ``indices``, ``values``); the dense ones are the columns of ``panel``. For the Gaussian kernel,
    the squared norms of both are added.

    ``panel`` is [features, columns], ``panel_rows`` the panel's row of each feature, or 0 if the panel lacks it, and ``out`` is
    [rows, columns]. ``hits`` and ``weights`` are scratch memory.
    """
    # Flat arrays: a slice for each row would count a reference, atomically.
    flat, sums, columns = panel.ravel(), out.ravel(), np.uint64(panel.shape[1])
    for i in range(start, stop):
        n, t, to, square = 0, 0, np.uint64(i - start) * columns, squares[i - start]
        for k in range(starts[i], starts[i + 1]):
            hits[n], weights[n] = panel_rows[indices[k]], values[k]
            n += hits[n] > 0
        for c in range(columns):
            sums[to + c] = square + column_squares[c]
        while t + 4 <= n:  # four features at once, so that the running sum is loaded and stored once for all of them
            p0, p1 = np.uint64(hits[t]) * columns, np.uint64(hits[t + 1]) * columns
            p2, p3 = np.uint64(hits[t + 2]) * columns, np.uint64(hits[t + 3]) * columns
            w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
            for c in range(columns):
                sums[to + c] += (w0 * flat[p0 + c] + w1 * flat[p1 + c]) + (w2 * flat[p2 + c] + w3 * flat[p3 + c])
            t += 4
        while t < n:
            p0, w0 = np.uint64(hits[t]) * columns, weights[t]
            for c in range(columns):
                sums[to + c] += w0 * flat[p0 + c]
            t += 1


@compiled(nogil=True, fastmath=FAST)
def _add_tile_products(kernel: Kernel, products: np.ndarray, coefficients: np.ndarray, out: np.ndarray) -> None:
    """Convert a tile of inner ``products`` (for the Gaussian kernel, squared distances) [m, n or more] to kernel values K [m, n],
    and add K times ``coefficients`` float32 [n] to ``out`` [m].
    """
    scale, n = np.float32(-kernel.gamma * LOG2E), len(coefficients)
    for i in range(len(products)):
        row, total = products[i], np.float32(0.0)
        if kernel.kind == RBF:
            for j in range(np.uint64(n)):
                total += exp2(scale * row[j]) * coefficients[j]
        else:
            for j in range(n):
                total += np.float32(compute_kernel_value(kernel, np.float64(row[j]))) * coefficients[j]
        out[i] += total


@compiled(nogil=True, fastmath=FAST)
def _write_tile_values(kernel: Kernel, products: np.ndarray, n: int, start: int, first: int, out: np.ndarray) -> None:
    """Convert the first ``n`` columns of a tile of inner ``products`` (for the Gaussian kernel, squared distances) to kernel
    values, and write them into the matrix ``out``, with the tile's corner at row ``start`` and column ``first``.
    """
    scale = np.float32(-kernel.gamma * LOG2E)
    for i in range(len(products)):
        row, to = products[i], out[start + i, first : first + n]
        if kernel.kind == RBF:
            for j in range(np.uint64(n)):
                to[j] = exp2(np.float32(scale * row[j]))
        else:
            for j in range(n):
                to[j] = compute_kernel_value(kernel, np.float64(row[j]))
