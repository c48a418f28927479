"""Kernel values by products of rows, tile by tile, which stays in the processor's cache: no column is stored.

A tile of products of dense rows is one matrix product of BLAS. Of sparse rows, some are laid out feature by feature, as dense
ones, and each other row adds up what lies at its features: one SIMD loop a feature. With the Gaussian kernel, the squared norms
are two features more, x.x 1 + 1 z.z - 2 x.z, which makes products squared distances. One pass over the tile turns these into
kernel values, and adds up K c or stores them. All of it is in float32, where the norms cancel: it is for rows that lie near their
mean, measured by gamma, or that have small integers only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from scipy import sparse

from streamsvm.batch.csmo.values import compute_squared_norms, to_dense
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LOG2E, RBF, Kernel, compute_from_product, exp2
from streamsvm.core.threads import ForEach, call_for_each

ROWS, COLUMNS = 512, 256  # of a tile: it stays in the second-level cache
_WIDE, _LANES = 2048, 64  # features from which on tiles of sparse rows have fewer columns, and how many
_PARTS, _LEAST, _VALUES = 16, (64, 256), 2**18  # items of a loop; rows of one at least, dense and sparse, and values
_NEAR = 16.0  # gamma times a row's squared norm, up to which float32 holds its exponents to 3e-6
_MOST_FAR = 0.05  # rows that are not
_SPARE = 8  # features fewer from which on sparse rows are quicker than dense ones
_SHARED = 4  # items that rows are enough for, or else columns are shared
_AT_ONCE = 2**17  # values that are compared
_STEEP = 1e30  # gamma, from which on rows that differ have the kernel value 0
_QUICK = 48  # features of dense rows whose values are not slower than mirrored ones
_WHOLE = 2.0**23  # integers below it are exact in float32, and so are their sums


class Float32Rows(NamedTuple):
    """n rows of d features whose products are taken, in float32: dense ones, or those of a CSR matrix."""

    kernel: Kernel
    squares: np.ndarray  # [n]: the squared norms
    dense: np.ndarray  # [n, d]; with the Gaussian kernel, the squared norm and 1 come last, [n, d + 2]; [n, 0]: they are sparse
    starts: np.ndarray  # int64 [n + 1]
    indices: np.ndarray  # int32
    values: np.ndarray
    features: int

    @property
    def n_rows(self) -> int:
        return len(self.squares)

    @property
    def tile_columns(self) -> int:
        """The columns of a tile."""
        return COLUMNS if self.dense.shape[1] or self.features <= _WIDE else _LANES

    def take_rows(self, which: np.ndarray) -> Float32Rows:
        """Return a copy of some rows, int64 [m]."""
        if self.dense.shape[1]:
            return self._replace(squares=self.squares[which], dense=self.dense[which])
        starts = self.starts.astype(np.int32) if self.starts[-1] < 2**31 else self.starts  # else all indices are converted
        X = sparse.csr_array((self.values, self.indices, starts), (len(self.squares), self.features))[which]
        return self._replace(
            squares=self.squares[which], dense=self.dense[which], starts=X.indptr.astype(np.int64),
            indices=X.indices.astype(np.int32, copy=False), values=X.data,
        )  # fmt: skip

    def slice_rows(self, begin: int, end: int) -> Float32Rows:
        """Return the rows from ``begin`` to ``end``, which share the memory."""
        return self._replace(
            squares=self.squares[begin:end], dense=self.dense[begin:end], starts=self.starts[begin : end + 1]
        )  # fmt: skip


class CheckedFloat32Rows(NamedTuple):
    """Rows in float32, as tiles take them."""

    rows: Float32Rows
    is_near: np.ndarray  # bool [n]: which of them are near enough to their mean
    is_exact: bool  # whether products are exact: they are those of small integers


def convert_to_indicators(X: np.ndarray, kernel: Kernel, each: ForEach = call_for_each) -> tuple[Any, Kernel]:
    """Return rows X [n, d] as indicators of the rarer value of each feature, and the kernel that has the same values for these.

    They are an array, or CSR where that is quicker. X and the kernel stay as they are if that is not Gaussian, or unless each
    feature has two values, with the same gap between them, or one.
    """
    n, d = X.shape
    size = max(_AT_ONCE // max(d, 1), 1)
    begins = range(0, n, size)
    extremes, strange = np.empty((2, len(begins), d)), []

    def find_extremes(begin: int) -> None:
        part = X[begin : begin + size]
        part.min(axis=0, out=extremes[0, begin // size])
        part.max(axis=0, out=extremes[1, begin // size])

    each(find_extremes, begins)
    low, high = extremes[0].min(axis=0), extremes[1].max(axis=0)
    gaps = np.unique((high - low)[high > low])
    first = X[:100]  # most data with other features are recognised by these
    if kernel.kind != RBF or len(gaps) != 1 or not ((first == low) | (first == high)).all():
        return X, kernel
    two, gap = np.flatnonzero(high > low), float(gaps[0])
    rarer, counts = np.empty((n, len(two)), bool), np.empty((len(begins), len(two)))

    def compare(begin: int) -> None:
        part = X[begin : begin + size]
        upper = high == part
        if not (upper | (low == part)).all():
            strange.append(begin)
        rarer[begin : begin + size] = upper[:, two]
        counts[begin // size] = np.count_nonzero(rarer[begin : begin + size], axis=0)

    each(compare, begins)
    if strange:
        return X, kernel
    rarer ^= counts.sum(axis=0) > 0.5 * n
    few = np.count_nonzero(rarer) < n * (rarer.shape[1] - _SPARE)
    return array_to_csr(rarer) if few else rarer.astype(np.float64), kernel._replace(gamma=min(kernel.gamma * gap * gap, _STEEP))


def check_float32_rows(X: Any, kernel: Kernel) -> CheckedFloat32Rows | None:
    """Return rows X, float64 [n, d] or CSR, in the form that is quicker; None where too many are far from the mean."""
    n, d = X.shape
    if sparse.issparse(X) and X.nnz >= n * (d - _SPARE):
        X = to_dense(X)
    values, longest = (X.data, np.diff(X.indptr).max(initial=0)) if sparse.issparse(X) else (X, d)
    whole = all((some == np.rint(some)).all() for some in (values[:100], values))
    whole = bool(whole and float(longest) * max(values.max(initial=0.0), -values.min(initial=0.0)) ** 2 < _WHOLE)
    if not sparse.issparse(X) and kernel.kind == RBF and not whole:
        X = X - X.mean(axis=0)
    rows, squares = make_float32_rows(X, kernel)
    near = np.full(n, whole or kernel.kind != RBF) | (kernel.gamma * squares <= _NEAR)
    return None if np.mean(~near) > _MOST_FAR else CheckedFloat32Rows(rows, near, whole)


@np.errstate(over="ignore", invalid="ignore")  # of rows that are too far
def make_float32_rows(X: Any, kernel: Kernel) -> tuple[Float32Rows, np.ndarray]:
    """Return rows X, an array or CSR, as tiles take them, and their squared norms, float64 [n]."""
    (n, d), squares, single = X.shape, compute_squared_norms(X), np.float32
    if sparse.issparse(X):
        parts = X.indptr.astype(np.int64), X.indices.astype(np.int32, copy=False), X.data.astype(single, copy=False)
        return Float32Rows(kernel, squares.astype(single), np.empty((n, 0), single), *parts, d), squares
    dense = np.empty((n, d + 2 * (kernel.kind == RBF)), single)
    dense[:, :d], dense[:, d : d + 1], dense[:, d + 1 :] = X, squares[:, np.newaxis], 1.0
    parts = np.empty(0, np.int64), np.empty(0, np.int32), np.empty(0, single)
    return Float32Rows(kernel, squares.astype(single), dense, *parts, d), squares


def array_to_csr(X: np.ndarray) -> Any:
    """Return an array [n, d] of any numbers, or bool, as a CSR array of float64."""
    places = np.flatnonzero(X)
    rows, columns = np.divmod(places, X.shape[1])
    starts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=X.shape[0]))])
    return sparse.csr_array((X.ravel()[places].astype(np.float64), columns.astype(np.int32), starts), X.shape)


def write_kernel_block(left: Float32Rows, right: Float32Rows, out: np.ndarray, each: ForEach = call_for_each) -> None:
    """Write the kernel values of all rows of one with all of the other, float32 [m, n]. O(m n d), in tiles.

    Values of rows with each other, where both are the same object, are computed once and mirrored if they take long.
    """
    others = make_right_side(right)
    square = left is right and out.flags.c_contiguous and not 0 < left.dense.shape[1] <= _QUICK
    by_rows = square or left.n_rows >= min(right.n_rows, _SHARED * _LEAST[not left.dense.shape[1]])
    size = _choose_item_rows(left, right) if by_rows else _choose_item_rows(right, left)

    def write(start: int) -> None:
        first, last = (0, start + size) if square else (0, right.n_rows) if by_rows else (start, start + size)
        some = others.slice_rows(first, last)
        for rows, begin, tile in iter_product_tiles(left, some, *((start, start + size) if by_rows else (0, left.n_rows))):
            width = min(tile.shape[1], some.n_rows - begin)
            _write_tile_values(left.kernel, tile, width, rows.start, first + begin, out)
            if square:
                _mirror_values(out, rows.start, rows.stop, begin, begin + width)

    each(write, range(0, left.n_rows if by_rows else right.n_rows, size)[::-1])


def add_kernel_products(
    left: Float32Rows, right: Float32Rows, coefficients: np.ndarray, out: np.ndarray, each: ForEach = call_for_each
) -> None:
    """Add K c to ``out`` float64 [m], of m rows with n others and c float64 [n]. O(m n d), in tiles."""
    others, c, size = make_right_side(right), coefficients.astype(np.float32), _choose_item_rows(left, right)

    def add(start: int) -> None:
        for rows, first, tile in iter_product_tiles(left, others, start, start + size):
            _add_tile_products(left.kernel, tile, c[first : first + tile.shape[1]], out[rows])

    each(add, range(0, left.n_rows, size))


def _choose_item_rows(left: Float32Rows, right: Float32Rows) -> int:
    """Return how many rows of one, with all of the other, are an item of a loop: however many threads there are."""
    least, size = _LEAST[not left.dense.shape[1]], max(left.n_rows // _PARTS, _VALUES // max(right.n_rows, 1))
    return max(size - size % _LEAST[0], least)


def make_right_side(rows: Float32Rows) -> Float32Rows:
    """Return rows whose products with others, as these are stored, are squared distances where the kernel is Gaussian."""
    if rows.kernel.kind != RBF:
        return rows
    if not rows.dense.shape[1]:
        return rows._replace(values=rows.values * np.float32(-2.0))
    dense = rows.dense * np.float32(-2.0)
    dense[:, -2], dense[:, -1] = 1.0, rows.squares
    return rows._replace(dense=dense)


def iter_product_tiles(left: Float32Rows, right: Float32Rows, start: int, stop: int) -> Iterator[tuple[slice, int, np.ndarray]]:
    """Yield some rows from ``start`` to ``stop``, the number of the first of some other rows, and the products of these."""
    stop, dtype = min(stop, left.n_rows), np.float32
    if left.dense.shape[1]:
        memory = np.empty(ROWS * COLUMNS, dtype)
        for begin in range(start, stop, ROWS):
            rows = slice(begin, min(begin + ROWS, stop))
            for first in range(0, right.n_rows, COLUMNS):
                some, others = left.dense[rows], right.dense[first : first + COLUMNS]
                tile = memory[: len(some) * len(others)].reshape(len(some), len(others))
                np.matmul(some, others.T, out=tile)
                yield rows, first, tile
        return
    lanes = left.tile_columns
    places, tile = np.zeros(left.features, np.int32), np.empty((min(stop - start, ROWS), lanes), dtype)
    longest = int(np.diff(left.starts[start : stop + 1]).max(initial=0))
    hits, weights, squares = np.empty(longest + 1, np.int32), np.empty(longest + 1, dtype), np.zeros(lanes, dtype)
    own = left.squares if left.kernel.kind == RBF else np.zeros(left.n_rows, dtype)
    for first in range(0, right.n_rows, lanes):
        last = min(first + lanes, right.n_rows)
        panel = np.zeros((min(int(right.starts[last] - right.starts[first]), left.features) + 1, lanes), dtype)
        if left.kernel.kind == RBF:
            squares[: last - first] = right.squares[first:last]
        _write_panel(right.starts, right.indices, right.values, first, last, places, panel)
        for begin in range(start, stop, ROWS):
            rows = slice(begin, min(begin + ROWS, stop))
            _write_sparse_products(
                left.starts, left.indices, left.values, own[rows], begin, rows.stop, squares, places, panel, hits, weights, tile
            )
            yield rows, first, tile[: rows.stop - begin]
        places[right.indices[right.starts[first] : right.starts[last]]] = 0


@compiled(nogil=True)
def _mirror_values(values: np.ndarray, begin: int, end: int, first: int, last: int) -> None:
    """Copy the values below the diagonal of a square matrix, in some rows and columns, to the other side."""
    flat, n = values.ravel(), np.uint64(len(values))
    for j in range(first, last):
        i = max(begin, j + 1)
        at, to = np.uint64(i) * n + np.uint64(j), np.uint64(j) * n + np.uint64(i)
        for k in range(np.uint64(max(end - i, 0))):
            flat[to + k] = flat[at + k * n]


@compiled(nogil=True)
def _write_panel(
    starts: np.ndarray, indices: np.ndarray, values: np.ndarray, first: int, last: int, places: np.ndarray, panel: np.ndarray
) -> None:
    """Write some rows into the columns of ``panel``; the row of feature j there is ``places[j]``, above 0."""
    size = 0
    for i in range(first, last):
        for k in range(starts[i], starts[i + 1]):
            j = indices[k]
            if places[j] == 0:
                size += 1
                places[j] = size
            panel[places[j], i - first] = values[k]


@compiled(nogil=True, fastmath=FAST)
def _write_sparse_products(
    starts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    squares: np.ndarray,
    begin: int,
    end: int,
    others: np.ndarray,
    places: np.ndarray,
    panel: np.ndarray,
    hits: np.ndarray,
    weights: np.ndarray,
    out: np.ndarray,
) -> None:
    """Write the products of some rows with those of ``panel`` [features there, lanes], plus the squares of both, into ``out``.

    ``out`` is [rows, lanes].
    """
    # A slice for each row would count a reference, atomically.
    flat, sums, lanes = panel.ravel(), out.ravel(), np.uint64(panel.shape[1])
    for i in range(begin, end):
        n, t, to, square = 0, 0, np.uint64(i - begin) * lanes, squares[i - begin]
        for k in range(starts[i], starts[i + 1]):
            hits[n], weights[n] = places[indices[k]], values[k]
            n += hits[n] > 0
        for c in range(lanes):
            sums[to + c] = square + others[c]
        while t + 4 <= n:  # four features at once: the running sum is loaded and stored once for them
            p0, p1 = np.uint64(hits[t]) * lanes, np.uint64(hits[t + 1]) * lanes
            p2, p3 = np.uint64(hits[t + 2]) * lanes, np.uint64(hits[t + 3]) * lanes
            w0, w1, w2, w3 = weights[t], weights[t + 1], weights[t + 2], weights[t + 3]
            for c in range(lanes):
                sums[to + c] += (w0 * flat[p0 + c] + w1 * flat[p1 + c]) + (w2 * flat[p2 + c] + w3 * flat[p3 + c])
            t += 4
        while t < n:
            p0, w0 = np.uint64(hits[t]) * lanes, weights[t]
            for c in range(lanes):
                sums[to + c] += w0 * flat[p0 + c]
            t += 1


@compiled(nogil=True, fastmath=FAST)
def _add_tile_products(kernel: Kernel, products: np.ndarray, coefficients: np.ndarray, out: np.ndarray) -> None:
    """Add K c of a tile [m, at least n] with c float32 [n]."""
    scale, n = np.float32(-kernel.gamma * LOG2E), len(coefficients)
    for i in range(len(products)):
        row, total = products[i], np.float32(0.0)
        if kernel.kind == RBF:
            for j in range(np.uint64(n)):
                total += exp2(scale * row[j]) * coefficients[j]
        else:
            for j in range(n):
                total += np.float32(compute_from_product(kernel, np.float64(row[j]))) * coefficients[j]
        out[i] += total


@compiled(nogil=True, fastmath=FAST)
def _write_tile_values(kernel: Kernel, products: np.ndarray, n: int, begin: int, first: int, out: np.ndarray) -> None:
    """Write the kernel values of a tile [m, at least n] into the rows from ``begin`` and the columns from ``first`` on."""
    scale = np.float32(-kernel.gamma * LOG2E)
    for i in range(len(products)):
        row, to = products[i], out[begin + i, first : first + n]
        if kernel.kind == RBF:
            for j in range(np.uint64(n)):
                to[j] = exp2(np.float32(scale * row[j]))
        else:
            for j in range(n):
                to[j] = compute_from_product(kernel, np.float64(row[j]))
