"""Kernel values of dense rows by matrix products, tile by tile: no column is stored.

A Gaussian kernel value is 2^(a . b), where a and b are the two rows with four features more, which hold their squared norms. So a
tile of values is one matrix product of BLAS and one pass of exponentials, which adds up K c in the same loop. That takes a
quarter of the time of columns by subtraction, but the norms cancel: it is for rows that lie near their mean, measured by gamma.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, RBF, Kernel, exp2, exp64

_ROWS, _COLUMNS = 512, 256  # of a tile: it stays in the second-level cache
_SHARE = 4 * _ROWS  # of a thread
_EXACT = 100_000  # float64 values at a time
_NEAR = 16.0  # gamma times a row's squared norm, up to which float32 holds its exponents to 2e-6
_MOST_FAR = 0.05  # rows that are not


class Factors(NamedTuple):
    """n rows of d features, from which the binary logarithm of a kernel value is a product."""

    rows: np.ndarray
    """float32 [n, d + 4]: the features, minus the squared norm in two parts, of which the second has what the first rounds away,
    and twice 1."""
    scale: float  # of the product of the features

    def other(self, which: np.ndarray) -> np.ndarray:
        """Return the rows ``which`` for the other side of the product, float32 [m, d + 4]."""
        some = self.rows[which]
        some[:, :-4] *= np.float32(self.scale)
        some[:, -4:-2], some[:, -2:] = some[:, -2:].copy(), some[:, -4:-2].copy()
        return some


def factors(X: np.ndarray, kernel: Kernel) -> tuple[Factors, np.ndarray] | None:
    """Return the factors of rows X, float [d, n], feature by feature, and which rows are so near that these hold, bool [n].

    None for another kernel than the Gaussian one, and where too many rows are far from the mean.
    """
    if kernel.kind != RBF:
        return None
    X = X - X.mean(axis=1, keepdims=True)
    squares = np.einsum("ji,ji->i", X, X)
    near = kernel.gamma * squares <= _NEAR
    if np.mean(~near) > _MOST_FAR:
        return None
    squares *= -kernel.gamma * math.log2(math.e)
    rows = np.empty((X.shape[1], len(X) + 4), np.float32)
    rows[:, :-4], rows[:, -4], rows[:, -2:] = X.T, squares, 1.0
    rows[:, -3] = squares - rows[:, -4]
    return Factors(rows, 2.0 * kernel.gamma * math.log2(math.e)), near


def gram(of: Factors, which: np.ndarray, out: np.ndarray) -> None:
    """Write the kernel matrix of the rows ``which`` into ``out``, float32 [m, m]. O(m^2 d)."""
    rows, others = of.rows[which], of.other(which).T
    for begin in range(0, len(which), _ROWS // 4):
        part = out[begin : begin + _ROWS // 4]
        np.matmul(rows[begin : begin + _ROWS // 4], others, out=part)
        _exponentials(part)


def add_products(
    of: Factors,
    which: np.ndarray,
    coefficients: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
    each: Callable[[Callable[[int], None], Iterable[int]], None],
) -> None:
    """Add K c to ``out`` float64 [n], of rows ``which`` int64 [n] with the rows ``columns`` int64 [m], and c float64 [m].

    O(n m d), in tiles. ``each(add, begins)`` calls the function ``add`` for each number.
    """
    others, c = of.other(columns), coefficients.astype(np.float32)

    def add(start: int) -> None:
        tiles = np.empty(_ROWS * _COLUMNS, np.float32)
        for begin in range(start, min(start + _SHARE, len(which)), _ROWS):
            rows = of.rows[which[begin : begin + _ROWS]]
            for first in range(0, len(columns), _COLUMNS):
                some = others[first : first + _COLUMNS]
                tile = tiles[: len(rows) * len(some)].reshape(len(rows), len(some))
                np.matmul(rows, some.T, out=tile)
                _add_tile(tile, c[first : first + _COLUMNS], out[begin : begin + _ROWS])

    each(add, range(0, len(which), _SHARE))


def add_exact_products(
    X: np.ndarray,
    kernel: Kernel,
    which: np.ndarray,
    coefficients: np.ndarray,
    columns: np.ndarray,
    out: np.ndarray,
    each: Callable[[Callable[[int], None], Iterable[int]], None],
) -> None:
    """Add K c as `add_products`, of the rows of X, float64 [d, n], in float64, for the Gaussian kernel. O(n m d)."""
    A, B = X[:, which], X[:, columns]
    squares, others = np.einsum("ji,ji->i", A, A), np.einsum("ji,ji->i", B, B)
    size = max(_EXACT // max(len(columns), 1), 8)

    def add(begin: int) -> None:
        end = begin + size
        distances = A[:, begin:end].T @ B
        distances *= -2.0
        distances += others
        distances += squares[begin:end, np.newaxis]
        np.maximum(distances, 0.0, out=distances)
        values = np.empty(distances.size)
        exp64(distances.ravel(), -kernel.gamma, distances.size, values)
        out[begin:end] += values.reshape(distances.shape) @ coefficients

    each(add, range(0, len(which), size))


@compiled(nogil=True, fastmath=FAST)
def _add_tile(exponents: np.ndarray, coefficients: np.ndarray, out: np.ndarray) -> None:
    for i in range(exponents.shape[0]):
        row, total = exponents[i], np.float32(0.0)
        for j in range(np.uint64(len(row))):
            total += exp2(row[j]) * coefficients[j]
        out[i] += total


@compiled(nogil=True, fastmath=FAST)
def _exponentials(K: np.ndarray) -> None:
    for i in range(len(K)):
        row = K[i]
        for j in range(np.uint64(len(row))):
            row[j] = exp2(row[j])
