"""Symmetric and triangular matrices in packed storage, compiled: the upper triangle is stored row by row.

In a matrix with room for ``stride`` rows, the element (j, i), i >= j, is at ``row_start(j, stride) + i``. The lower half takes no
memory and no cache, and each row is contiguous, so that loops along it become SIMD code.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST

_ZERO, _ONE = np.float32(0.0), np.float32(1.0)


@compiled(inline=True)
def row_start(j: int, stride: int) -> int:
    """Return the offset that makes ``offset + i`` the index of element (j, i), i >= j, of a symmetric or triangular matrix. Its
    upper triangle is stored row by row in a flat array, with room for ``stride`` rows.
    """
    return j * stride - j * (j + 1) // 2


@compiled(fastmath=FAST)
def add_two_rows(
    values: np.ndarray, starts: np.ndarray, a: np.ndarray, b: np.ndarray, count: int, first: int, n: int, out: np.ndarray
) -> None:
    """Add two weighted sums of the same ``count`` rows r_k to ``out``: ``out[0, i] += sum(a[k] * r_k[i])`` and ``out[1, i] +=
    sum(b[k] * r_k[i])`` for i from ``first`` to n - 1. Row r_k begins at ``values[starts[k]]``.

    Sums have the precision of ``a``, ``b`` and ``out``. Two sums and four rows at a time: each value loaded is used twice, and
    each sum is loaded and stored once per four rows.
    """
    size = n - first
    u, v = out[0, first:n], out[1, first:n]
    k = 0
    while k + 4 <= count:
        s0, s1, s2, s3 = starts[k] + first, starts[k + 1] + first, starts[k + 2] + first, starts[k + 3] + first
        r0, r1, r2, r3 = values[s0 : s0 + size], values[s1 : s1 + size], values[s2 : s2 + size], values[s3 : s3 + size]
        a0, a1, a2, a3 = a[k], a[k + 1], a[k + 2], a[k + 3]
        b0, b1, b2, b3 = b[k], b[k + 1], b[k + 2], b[k + 3]
        for i in range(size):
            x0, x1, x2, x3 = r0[i], r1[i], r2[i], r3[i]
            u[i] += (a0 * x0 + a1 * x1) + (a2 * x2 + a3 * x3)
            v[i] += (b0 * x0 + b1 * x1) + (b2 * x2 + b3 * x3)
        k += 4
    while k < count:
        s0 = starts[k] + first
        r0 = values[s0 : s0 + size]
        a0, b0 = a[k], b[k]
        for i in range(size):
            u[i] += a0 * r0[i]
            v[i] += b0 * r0[i]
        k += 1


@compiled(fastmath=FAST)
def multiply_row(row: np.ndarray, x: np.ndarray, j: int, n: int, out: np.ndarray) -> None:
    """Add row j's part of a matrix-vector product to ``out``: the matrix is symmetric, n x n, so that ``row`` float64 [n - j],
    which begins at the diagonal, also stands for column j. ``x`` is the vector.
    """
    size, total, factor = n - j, row[0] * x[j], x[j]
    y, z = x[j:n], out[j:n]
    for i in range(1, size):
        total += row[i] * y[i]
    for i in range(1, size):
        z[i] += factor * row[i]
    z[0] += total


@compiled
def multiply_symmetric(matrix: np.ndarray, stride: int, x: np.ndarray, n: int, out: np.ndarray) -> None:
    """Compute the product ``out[:n] = matrix x[:n]`` in float64. ``matrix`` is symmetric; its upper triangle is stored row by
    row, with room for ``stride`` rows. O(n^2).
    """
    out[:n] = 0.0
    for j in range(n):
        start = row_start(j, stride)
        multiply_row(matrix[start + j : start + n], x, j, n, out)


@compiled(fastmath=FAST, inline=True)
def _finish_row(row: np.ndarray, sums: np.ndarray, min_pivot: np.float32, size: int) -> bool:
    """Turn a row of a matrix into a row of its Cholesky factor, in place: (row - sums) / sqrt(pivot). ``sums`` float32 are the
    contributions of earlier rows, and the pivot is the first item of row - sums. Returns False, and changes nothing, if it is at
    most ``min_pivot``.
    """
    pivot = row[0] - sums[0]
    if not pivot > min_pivot:
        return False
    factor = _ONE / np.float32(math.sqrt(pivot))
    row[0] = pivot * factor
    for i in range(1, size):
        row[i] = (row[i] - sums[i]) * factor
    return True


@compiled(noinline=True)
def factor_two_rows(
    matrix: np.ndarray,
    stride: int,
    j: int,
    n: int,
    min_pivot: np.float32,
    starts: np.ndarray,
    a: np.ndarray,
    b: np.ndarray,
    sums: np.ndarray,
) -> bool:
    """Replace rows j and j + 1 of ``matrix`` by those of its Cholesky factor U (U'U = matrix); the rows before them have been
    replaced already. Returns False if a pivot is at most ``min_pivot``: then the matrix is not positive definite in float32.

    ``matrix`` float32 contains rows of U before row j, and rows of the matrix from there on; row j + 1 is skipped if j is the
    last row. ``starts`` int64 [n], ``a`` and ``b`` float32 [n] and ``sums`` float32 [2, n] are scratch.
    """
    for k in range(j):
        start = row_start(k, stride)
        starts[k] = start
        a[k] = matrix[start + j]
        b[k] = matrix[start + j + 1] if j + 1 < n else _ZERO
    sums[:, j:n] = _ZERO
    add_two_rows(matrix, starts, a, b, j, j, n, sums)
    start = row_start(j, stride)
    if not _finish_row(matrix[start + j : start + n], sums[0, j:n], min_pivot, n - j):
        return False
    if j + 1 < n:
        upper = matrix[start + j : start + n]
        factor = upper[1]
        for i in range(1, n - j):
            sums[1, j + i] += factor * upper[i]
        start = row_start(j + 1, stride)
        return _finish_row(matrix[start + j + 1 : start + n], sums[1, j + 1 : n], min_pivot, n - j - 1)
    return True


@compiled(fastmath=FAST)
def solve_factored(factor: np.ndarray, stride: int, x: np.ndarray, n: int) -> None:
    """Solve U'U z = x for z, and write z into ``x`` float32 [n or more]. ``factor`` is the upper triangle of U, the Cholesky
    factor, in float32, stored row by row with room for ``stride`` rows. O(n^2).
    """
    for j in range(n):
        start = row_start(j, stride)
        row = factor[start + j : start + n]
        y = x[j:n]
        value = y[0] / row[0]
        y[0] = value
        for i in range(1, n - j):
            y[i] -= value * row[i]
    for j in range(n - 1, -1, -1):
        start = row_start(j, stride)
        row = factor[start + j : start + n]
        y = x[j:n]
        total = _ZERO
        for i in range(1, n - j):
            total += row[i] * y[i]
        y[0] = (y[0] - total) / row[0]
