"""Kernel values between one row and many, from rows that lie dense, packed into bits, or sparse.

Distances of dense rows are sums of squared differences, which data far from the origin cannot cancel. Every function works in the
precision of the rows that it is given: float32 where columns are cached, float64 where a result is checked.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit, types
from numba.extending import overload

from streamsvm.kernels import FAST, LINEAR, RBF, exp64, expf

__all__ = [
    "SPARSE_COST",
    "Kernel",
    "Rows",
    "column",
    "cost",
    "diagonal",
    "expand",
    "pack",
    "same_rows",
    "store_dense",
    "store_sparse",
    "subset",
]

DENSE, BITS, SPARSE = 0, 1, 2

#: A value of a sparse row that is not zero takes about as long as this many of a dense one, zeros among them.
SPARSE_COST = 32

_TILE = 2048  # rows whose running sums stay in the first-level cache
_UNIT = np.uint64(1)
_PAIRS, _FOURS = np.uint64(0x3333333333333333), np.uint64(0x0F0F0F0F0F0F0F0F)
_ODD, _BYTES = np.uint64(0x5555555555555555), np.uint64(0x0101010101010101)


class Kernel(NamedTuple):
    """A kernel and its parameters, as compiled functions take them; ``kind`` is one of `streamsvm.kernels.KERNELS`."""

    kind: int
    gamma: float
    coef0: float
    degree: int


class Rows(NamedTuple):
    """n rows of d features in one of three forms; what the others would need is empty.

    Dense: ``dense`` [d, n], feature by feature. Bits, for the Gaussian kernel of features with two values each: ``words`` uint64
    [w, n], and ``table`` [64 w + 1] with the kernel values of 0, 1, ... differing features. Sparse: row i has the ``values`` and
    ``indices`` from ``starts[i]`` to ``ends[i]``, and the squared norm ``squares[i]``.
    """

    kind: int
    dense: np.ndarray
    words: np.ndarray
    table: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    indices: np.ndarray
    values: np.ndarray
    squares: np.ndarray
    features: int


def _rows(kind: int, dtype: Any, features: int, **given: np.ndarray) -> Rows:
    empty = {
        "dense": np.empty((0, 0), dtype),
        "words": np.empty((0, 0), np.uint64),
        "table": np.empty(0, dtype),
        "starts": np.empty(0, np.int64),
        "ends": np.empty(0, np.int64),
        "indices": np.empty(0, np.uint32),
        "values": np.empty(0, dtype),
        "squares": np.empty(0, np.float64),
    }
    return Rows(kind, **{**empty, **given}, features=features)


def store_dense(X: np.ndarray, dtype: Any) -> Rows:
    """The rows of X [n, d], copied feature by feature."""
    return _rows(DENSE, dtype, X.shape[1], dense=np.ascontiguousarray(X.T, dtype))


def store_sparse(X: Any, dtype: Any) -> Rows:
    """The rows of X, a scipy CSR array or matrix without duplicates [n, d]."""
    values = X.data.astype(np.float64)
    squares = np.add.reduceat(np.append(values * values, 0.0), X.indptr[:-1]) * (np.diff(X.indptr) > 0)
    return _rows(
        SPARSE,
        dtype,
        X.shape[1],
        starts=X.indptr[:-1].astype(np.int64),
        ends=X.indptr[1:].astype(np.int64),
        indices=X.indices.astype(np.uint32),
        values=X.data.astype(dtype),
        squares=squares,
    )


def pack(X: np.ndarray, gamma: float) -> tuple[Rows, Rows] | None:
    """X [n, d] as bits with the Gaussian kernel's values in float32 and in float64, or None where it has other than two-valued
    features, or features whose two values differ by unequal amounts. Features of one value count for nothing.
    """
    low, high = X.min(axis=0), X.max(axis=0)
    gaps = np.unique((high - low)[high > low])
    first = X[:100]  # tells most others without a look at all of them
    if len(gaps) != 1 or not ((first == low) | (first == high)).all():
        return None
    upper = high == X
    if not (upper | (low == X)).all():
        return None
    octets = np.packbits(upper[:, high > low], axis=1)
    octets = np.ascontiguousarray(np.pad(octets, ((0, 0), (0, -octets.shape[1] % 8))))
    words = np.ascontiguousarray(octets.view(np.uint64).T)
    table = np.exp(-gamma * float(gaps[0]) ** 2 * np.arange(64 * len(words) + 1))
    return tuple(_rows(BITS, kind, X.shape[1], words=words, table=table.astype(kind)) for kind in (np.float32, np.float64))  # type: ignore[return-value]


def subset(rows: Rows, which: np.ndarray) -> Rows:
    """A copy of the rows numbered ``which``; sparse ones share their values."""
    if rows.kind == DENSE:
        return rows._replace(dense=np.take(rows.dense, which, axis=1))
    if rows.kind == BITS:
        return rows._replace(words=np.take(rows.words, which, axis=1))
    return rows._replace(starts=rows.starts[which], ends=rows.ends[which], squares=rows.squares[which])


def cost(rows: Rows) -> float:
    """About how many operations a kernel value takes: dense features, or what takes as long."""
    if rows.kind == SPARSE:
        return 4.0 + SPARSE_COST * float((rows.ends - rows.starts).mean())
    return 4.0 + (rows.features if rows.kind == DENSE else len(rows.words))


def same_rows(rows: Rows, values: np.ndarray | None = None) -> np.ndarray:
    """A number for each row, int64 [n], from 0 without gaps: equal only for rows that are equal bit by bit, and in
    their ``values`` float64 [n] where those are given. O(n (d + log n)).

    The numbers do not depend on the order of the rows, but for sparse ones, which each have their own. Equal rows whose hashes
    others share may be given different numbers.
    """
    if rows.kind == SPARSE:
        return np.arange(len(rows.starts))
    bits = [*(rows.words if rows.kind == BITS else rows.dense.view(np.uint32 if rows.dense.itemsize == 4 else np.uint64))]
    if values is not None:
        bits.append(values.view(np.uint64))
    factors = np.random.default_rng(0).integers(0, 2**63, len(bits), dtype=np.uint64) | np.uint64(1)
    hashes = np.zeros(len(bits[0]), np.uint64)
    for part, factor in zip(bits, factors, strict=True):
        hashes = (hashes + part) * factor
        hashes ^= hashes >> np.uint64(29)  # the low bits of a product know nothing of the high ones
    order = np.argsort(hashes, kind="stable")
    new = np.ones(len(order), bool)
    new[1:] = hashes[order[1:]] != hashes[order[:-1]]
    alike = np.flatnonzero(~new)
    for part in bits:
        new[alike] |= part[order[alike]] != part[order[alike - 1]]
    groups = np.empty(len(order), np.int64)
    groups[order] = np.cumsum(new) - 1
    return groups


# Compiled -------------------------------------------------------------------------------------------------------------------


def exponentials(values: np.ndarray, factor: float, n: int, out: np.ndarray) -> None:
    """`expf` or `exp64`, by the type of the values."""
    if values.dtype == np.float32:
        expf(values, np.float32(factor), n, out)
    else:
        exp64(values, factor, n, out)


@overload(exponentials)
def _exponentials(values, factor, n, out):  # type: ignore[no-untyped-def] # numba compares signatures
    if values.dtype == types.float32:
        return lambda values, factor, n, out: expf(values, np.float32(factor), n, out)
    return lambda values, factor, n, out: exp64(values, factor, n, out)  # noqa: PLW0108 - of the same form


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _add_differences(x: np.ndarray, vectors: np.ndarray, begin: int, n: int, out: np.ndarray) -> None:
    first, d, j = np.uint64(begin), len(vectors), 0  # unsigned indices, as signed ones may be negative: no SIMD
    while j + 4 <= d:  # four a sweep: the running sum is loaded and stored once for four of them
        x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
        v0, v1, v2, v3 = vectors[j], vectors[j + 1], vectors[j + 2], vectors[j + 3]
        for i in range(np.uint64(n)):
            k = first + i
            d0, d1, d2, d3 = x0 - v0[k], x1 - v1[k], x2 - v2[k], x3 - v3[k]
            out[i] += (d0 * d0 + d1 * d1) + (d2 * d2 + d3 * d3)
        j += 4
    while j < d:
        x0, v0 = x[j], vectors[j]
        for i in range(np.uint64(n)):
            d0 = x0 - v0[first + i]
            out[i] += d0 * d0
        j += 1


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _add_products(x: np.ndarray, vectors: np.ndarray, begin: int, n: int, out: np.ndarray) -> None:
    first, d, j = np.uint64(begin), len(vectors), 0  # unsigned indices, as signed ones may be negative: no SIMD
    while j + 4 <= d:  # four a sweep: the running sum is loaded and stored once for four of them
        x0, x1, x2, x3 = x[j], x[j + 1], x[j + 2], x[j + 3]
        v0, v1, v2, v3 = vectors[j], vectors[j + 1], vectors[j + 2], vectors[j + 3]
        for i in range(np.uint64(n)):
            k = first + i
            out[i] += (x0 * v0[k] + x1 * v1[k]) + (x2 * v2[k] + x3 * v3[k])
        j += 4
    while j < d:
        x0, v0 = x[j], vectors[j]
        for i in range(np.uint64(n)):
            out[i] += x0 * v0[first + i]
        j += 1


@njit(cache=True, error_model="numpy")
def _population(word: np.uint64) -> np.uint64:
    # The number of bits that are set; the compiler knows the pattern as one instruction.
    word = word - ((word >> _UNIT) & _ODD)
    word = (word & _PAIRS) + ((word >> np.uint64(2)) & _PAIRS)
    word = (word + (word >> np.uint64(4))) & _FOURS
    return (word * _BYTES) >> np.uint64(56)


@njit(cache=True, error_model="numpy")
def _differing(x: np.ndarray, words: np.ndarray, table: np.ndarray, n: int, out: np.ndarray) -> None:
    if len(words) == 2:
        x0, x1, w0, w1 = x[0], x[1], words[0], words[1]
        for i in range(n):
            out[i] = table[_population(w0[i] ^ x0) + _population(w1[i] ^ x1)]
        return
    for i in range(n):
        count = np.uint64(0)
        for w in range(len(words)):
            count += _population(words[w, i] ^ x[w])
        out[i] = table[count]


@njit(cache=True, error_model="numpy")
def _from_sums(kernel: Kernel, sums: np.ndarray, out: np.ndarray) -> None:
    # Squared distances (rbf) or products become kernel values.
    n = len(out)
    if kernel.kind == RBF:
        exponentials(sums, -kernel.gamma, n, out)
    elif kernel.kind == LINEAR:
        out[:] = sums
    else:
        for i in range(n):
            sums[i] = kernel.gamma * sums[i] + kernel.coef0
        out[:] = sums
        for _ in range(kernel.degree - 1):
            for i in range(n):
                out[i] *= sums[i]


@njit(cache=True, error_model="numpy")
def column(rows: Rows, source: Rows, i: int, kernel: Kernel, n: int, out: np.ndarray) -> None:
    """Kernel values between row i of ``source`` and the first n of ``rows``, stored alike, into ``out`` [n]. O(n d), or for
    sparse rows O(d + their values).
    """
    if rows.kind == BITS:
        _differing(source.words[:, i].copy(), rows.words, rows.table, n, out)
        return
    x = np.zeros(rows.features, out.dtype)
    sums = np.empty(min(n, _TILE), out.dtype)
    if rows.kind == DENSE:
        for j in range(rows.features):
            x[j] = source.dense[j, i]
    else:
        for k in range(source.starts[i], source.ends[i]):
            x[source.indices[k]] = source.values[k]
    for begin in range(0, n, _TILE):
        part = sums[: min(n - begin, _TILE)]
        if rows.kind == SPARSE:
            for t in range(len(part)):
                product = 0.0
                for k in range(rows.starts[begin + t], rows.ends[begin + t]):
                    product += np.float64(rows.values[k]) * np.float64(x[rows.indices[k]])
                if kernel.kind == RBF:
                    product = max(rows.squares[begin + t] + source.squares[i] - 2.0 * product, 0.0)
                part[t] = product
        else:
            part[:] = 0.0
            if kernel.kind == RBF:
                _add_differences(x, rows.dense, begin, len(part), part)
            else:
                _add_products(x, rows.dense, begin, len(part), part)
        _from_sums(kernel, part, out[begin : begin + len(part)])


@njit(cache=True, error_model="numpy")
def diagonal(rows: Rows, kernel: Kernel, out: np.ndarray) -> None:
    """k(x, x) of every row, into ``out`` [n]."""
    if kernel.kind == RBF:
        out[:] = 1.0
        return
    for i in range(len(out)):
        square = 0.0
        if rows.kind == SPARSE:
            square = rows.squares[i]
        else:
            for j in range(rows.features):
                square += np.float64(rows.dense[j, i]) ** 2
        out[i] = square if kernel.kind == LINEAR else (kernel.gamma * square + kernel.coef0) ** kernel.degree


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _product(a: np.ndarray, b: np.ndarray) -> float:
    total = 0.0
    for i in range(len(a)):
        total += a[i] * np.float64(b[i])
    return total


@njit(cache=True, error_model="numpy")
def expand(
    rows: Rows, coefficients: np.ndarray, source: Rows, which: np.ndarray, kernel: Kernel, values: np.ndarray, out: np.ndarray
) -> None:
    """``out[t, k] += sum_s coefficients[k, s] k(rows_s, source_i)`` where i is ``which[t]``, int64 [m].

    ``coefficients`` float64 [outputs, n], ``out`` float64 [m, outputs], ``values`` [n]: scratch of the rows' own type.
    O(m n d).
    """
    for t in range(len(which)):
        column(rows, source, which[t], kernel, len(values), values)
        for k in range(len(coefficients)):
            out[t, k] += _product(coefficients[k], values)
