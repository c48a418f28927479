"""Blocks of the exact kernel matrix, computed when they are needed."""

from __future__ import annotations

from copy import copy

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LINEAR, RBF, Kernel, exponentials

__all__ = ["CHUNK_VALUES", "KernelBlocks", "block_between"]

#: Kernel values or distances that are in memory at once.
CHUNK_VALUES = 4_000_000
_EPS = float(np.finfo(np.float64).eps)
_MAX_ROUNDING = 1e-6  # of a kernel value; above, distances are computed from differences and not from products


class KernelBlocks:
    """The kernel matrix of rows X [n, d], block by block, in float64 or, after `single`, in float32."""

    def __init__(self, X: np.ndarray, kernel: Kernel) -> None:
        self._centre = X.mean(axis=0) if kernel.kind == RBF else np.zeros(X.shape[1])  # distances do not depend on it
        self.X = X - self._centre
        self.kernel = kernel

    def single(self) -> KernelBlocks:
        """The same matrix in float32: half the time, for uses that need not be exact."""
        single = copy(self)
        single.X = self.X.astype(np.float32)
        return single

    def __call__(self, rows: np.ndarray | slice, columns: np.ndarray | slice) -> np.ndarray:
        """Kernel values between rows and rows, [rows, columns]."""
        A, B = self.X[rows], self.X[columns]
        if self.kernel.kind == RBF and len(A):  # relative to the centre of A: values at rows far from it are zero anyway
            centre = A.mean(axis=0)
            A, B = A - centre, B - centre
        return _values(A, B, np.einsum("ij,ij->i", B, B), self.kernel)

    def given(self, order: np.ndarray) -> np.ndarray:
        """The rows as they were given, float64 [n, d], where ``order`` has the numbers that these had."""
        rows = np.empty_like(self.X)
        rows[order] = self.X + self._centre
        return rows

    def rounding(self, rows: np.ndarray) -> float:
        """The approximate rounding error of kernel values between these rows, relative to the largest value."""
        if self.kernel.kind != RBF:
            return 8.0 * _EPS
        A = self.X[rows]
        A = A - A.mean(axis=0)
        return 8.0 * _EPS * self.kernel.gamma * float(np.einsum("ij,ij->i", A, A).max())

    def expand(self, Z: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Kernel values between rows Z float64 [m, d] and all rows, times coefficients float64 [n] or [n, k]."""
        return self._expansion(Z - self._centre, coefficients)

    def product(self, rows: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        """Kernel values between these rows and all, times coefficients float64 [n] or [n, k]."""
        return self._expansion(self.X[rows], coefficients)

    def _expansion(self, Z: np.ndarray, coefficients: np.ndarray) -> np.ndarray:
        support = np.flatnonzero(coefficients.reshape(len(coefficients), -1).any(axis=1))
        X, coefficients = self.X[support], coefficients[support]
        squares = np.einsum("ij,ij->i", X, X)
        out = np.empty((len(Z), *coefficients.shape[1:]))
        size = max(CHUNK_VALUES // max(len(X), 1), 1)
        for begin in range(0, len(Z), size):
            out[begin : begin + size] = _values(Z[begin : begin + size], X, squares, self.kernel) @ coefficients
        return out


def _values(A: np.ndarray, B: np.ndarray, B_squares: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Kernel values [a, b] between rows A [a, d] and B [b, d].

    If a row of A is far from 0, rows near it are as far, and |a|^2 - 2 a.b + |b|^2 cancels: then differences are squared.
    """
    squares = np.einsum("ij,ij->i", A, A)
    if kernel.kind == RBF and A.dtype == np.float64 and 8.0 * _EPS * kernel.gamma * squares.max(initial=0.0) > _MAX_ROUNDING:
        out = np.empty((len(A), len(B)))
        _from_differences(A, B, kernel, out)
        return out
    out = A @ B.T
    _from_products(out, squares, B_squares, kernel)
    return out


@compiled(nogil=True)
def _from_differences(A: np.ndarray, B: np.ndarray, kernel: Kernel, out: np.ndarray) -> None:
    """Fill out [a, b] with RBF kernel values, from the differences of rows A [a, d] and B [b, d]."""
    distances = np.empty(len(B))
    for i in range(len(A)):
        for j in range(len(B)):
            total = 0.0
            for k in range(A.shape[1]):
                total += (A[i, k] - B[j, k]) ** 2
            distances[j] = total
        exponentials(distances, -kernel.gamma, len(B), out[i])


@compiled(nogil=True)
def _from_products(products: np.ndarray, row_squares: np.ndarray, column_squares: np.ndarray, kernel: Kernel) -> None:
    """Turn the products [n, m] of rows into kernel values, in place."""
    n, m = products.shape
    if kernel.kind == RBF:
        distances = np.empty(m, products.dtype)
        for i in range(n):
            for j in range(m):
                distances[j] = max(row_squares[i] + column_squares[j] - 2.0 * products[i, j], 0.0)
            exponentials(distances, -kernel.gamma, m, products[i])
    elif kernel.kind != LINEAR:
        for i in range(n):
            for j in range(m):
                base, power = kernel.gamma * products[i, j] + kernel.coef0, 1.0
                for _ in range(kernel.degree):
                    power *= base
                products[i, j] = power


@compiled(nogil=True)
def block_between(A: np.ndarray, B: np.ndarray, kernel: Kernel) -> np.ndarray:
    """Return the kernel values, float64 [a, b], between rows A float64 [a, d], at least one, and B [b, d]: for compiled callers.

    Small blocks take no Python. The arrays are not changed.
    """
    if kernel.kind != RBF:
        none = np.empty(0)
        out = np.dot(A, B.T)
        _from_products(out, none, none, kernel)
        return out
    d = A.shape[1]
    centre, a_squares, b_squares, largest = np.zeros(d), np.zeros(len(A)), np.zeros(len(B)), 0.0
    A, B = A.copy(), B.copy()
    for i in range(len(A)):
        for j in range(d):
            centre[j] += A[i, j] / len(A)
    for i in range(len(A)):
        for j in range(d):
            A[i, j] -= centre[j]
            a_squares[i] += A[i, j] * A[i, j]
        largest = max(largest, a_squares[i])
    for i in range(len(B)):
        for j in range(d):
            B[i, j] -= centre[j]
            b_squares[i] += B[i, j] * B[i, j]
    if 8.0 * _EPS * kernel.gamma * largest > _MAX_ROUNDING:
        out = np.empty((len(A), len(B)))
        _from_differences(A, B, kernel, out)
        return out
    out = np.dot(A, B.T)
    _from_products(out, a_squares, b_squares, kernel)
    return out
