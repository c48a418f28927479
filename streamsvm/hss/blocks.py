"""Blocks of a kernel matrix."""

from __future__ import annotations

from copy import copy

import numpy as np
from numba import njit

from streamsvm.kernels import LINEAR, RBF, Kernel, exponentials

__all__ = ["Blocks"]

_AT_ONCE = 4_000_000  # kernel values
_EPS = float(np.finfo(np.float64).eps)
_LOST = 1e-6  # of a kernel value, to rounding: with more, distances come from differences, not from products


class Blocks:
    """The kernel matrix of rows X [n, d], block by block, in float64 or, from `single`, in float32."""

    def __init__(self, X: np.ndarray, kernel: Kernel) -> None:
        self._centre = X.mean(axis=0) if kernel.kind == RBF else np.zeros(X.shape[1])  # distances stay
        self.X = X - self._centre
        self.kernel = kernel

    def single(self) -> Blocks:
        """The same in float32: half the time, for what need not be exact."""
        rough = copy(self)
        rough.X = self.X.astype(np.float32)
        return rough

    def __call__(self, rows: np.ndarray | slice, columns: np.ndarray | slice) -> np.ndarray:
        """Kernel values between rows and rows, [rows, columns]."""
        A, B = self.X[rows], self.X[columns]
        if self.kernel.kind == RBF and len(A):  # from the rows' own centre: those that are far from it have values of zero
            centre = A.mean(axis=0)
            A, B = A - centre, B - centre
        return _values(A, B, np.einsum("ij,ij->i", B, B), self.kernel)

    def rounding(self, rows: np.ndarray) -> float:
        """What values between these rows may be wrong by, about, relative to the largest."""
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
        size = max(_AT_ONCE // max(len(X), 1), 1)
        for begin in range(0, len(Z), size):
            out[begin : begin + size] = _values(Z[begin : begin + size], X, squares, self.kernel) @ coefficients
        return out


def _values(A: np.ndarray, B: np.ndarray, B_squares: np.ndarray, kernel: Kernel) -> np.ndarray:
    # Kernel values between rows. Where a row of A is far from 0, what is near it is as far, and products lose the difference.
    squares = np.einsum("ij,ij->i", A, A)
    if kernel.kind == RBF and A.dtype == np.float64 and 8.0 * _EPS * kernel.gamma * squares.max(initial=0.0) > _LOST:
        return _by_differences(A, B, kernel)
    out = A @ B.T
    _finish(out, squares, B_squares, kernel)
    return out


@njit(cache=True, error_model="numpy")
def _by_differences(A: np.ndarray, B: np.ndarray, kernel: Kernel) -> np.ndarray:
    out, distances = np.empty((len(A), len(B))), np.empty(len(B))
    for i in range(len(A)):
        for j in range(len(B)):
            total = 0.0
            for k in range(A.shape[1]):
                total += (A[i, k] - B[j, k]) ** 2
            distances[j] = total
        exponentials(distances, -kernel.gamma, len(B), out[i])
    return out


@njit(cache=True, error_model="numpy")
def _finish(products: np.ndarray, row_squares: np.ndarray, column_squares: np.ndarray, kernel: Kernel) -> None:
    """From products to kernel values, in place."""
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
