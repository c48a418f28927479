"""Rows of which only kernel values are known: those of a matrix, or what a function returns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse
from sklearn.utils import _safe_indexing

from streamsvm.core.kernels import LARGEST_KERNEL

_VALUES = 4_000_000  # float64 that are held at a time
_COLUMNS = 100_000  # values of columns, so that they are in the processor's cache when they are taken
_ASYMMETRY = 1e-5  # of the largest value, which rounding to float32 may make; of more, a fit might never end
_DIAGONAL = 64  # rows whose kernel values with each other are asked for at once, for their diagonal


class GivenRows:
    """The n rows ``which`` by their kernel values: those of a symmetric ``matrix``, float64, or what a function returns.

    ``find`` returns the kernel values, float64 [m, k], of m with k rows, which are given by their numbers; the latter ascend.
    """

    def __init__(
        self,
        matrix: np.ndarray | None,
        find: Callable[[np.ndarray, np.ndarray], np.ndarray] | None = None,
        which: np.ndarray | None = None,
    ) -> None:
        self.matrix = matrix
        self._find = find or self._found
        self._which = np.arange(len(matrix)) if which is None else which  # type: ignore[arg-type]
        self.shape: tuple[int, int] = (len(self._which), 0)

    def _found(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        K: Any = self.matrix
        return K[rows] if len(others) == len(K) else K[np.ix_(rows, others)]

    @classmethod
    def of_matrix(cls, K: np.ndarray) -> GivenRows:
        """Return the rows of a Gram matrix, float64 [n, n]; raise a ValueError where it is not symmetric."""
        _check_size(K)
        _check_symmetry(K)
        return cls(K)

    @classmethod
    def of_function(cls, kernel: Callable[[Any, Any], Any], X: Any, n: int, megabytes: float) -> GivenRows:
        """Return n rows X, of any form, with the values of a function; it is called once if the Gram matrix is so small."""
        if 8.0 * n * n <= megabytes * 2**20:
            return cls.of_matrix(kernel_values(kernel, X, X, (n, n)))

        def find(rows: np.ndarray, others: np.ndarray) -> np.ndarray:
            of = _safe_indexing(X, others)
            values = kernel_values(kernel, _safe_indexing(X, rows), of, (len(rows), len(others)))
            _check_size(values)
            return values

        return cls(None, find, np.arange(n))

    def __len__(self) -> int:
        return len(self._which)

    def __getitem__(self, which: np.ndarray) -> GivenRows:
        return GivenRows(self.matrix, None if self.matrix is not None else self._find, self._which[which])

    def values(self, rows: np.ndarray, others: np.ndarray) -> np.ndarray:
        """Return the kernel values of m with k of the n rows, float64 [m, k]."""
        return self._find(self._which[rows], self._which[others])

    def columns(self) -> Iterator[np.ndarray]:
        """Yield the columns of the Gram matrix, float64 [m, n], in chunks."""
        size = max(_COLUMNS // len(self), 1)
        for begin in range(0, len(self), size):
            if self.matrix is not None and len(self) == len(self.matrix):
                yield self.matrix[begin : begin + size]  # a view
                continue
            yield self.values(np.arange(begin, min(begin + size, len(self))), np.arange(len(self)))

    def diagonal(self) -> np.ndarray:
        """Return the self-kernels, float64 [n]; raise a ValueError where the values that are asked for are not symmetric."""
        if self.matrix is not None:
            return self.matrix.diagonal()[self._which]
        found = []
        for begin in range(0, len(self), _DIAGONAL):
            chunk = np.arange(begin, min(begin + _DIAGONAL, len(self)))
            values = self.values(chunk, chunk)
            _check_symmetry(values)
            found.append(values.diagonal())
        return np.concatenate(found)

    def add_products(self, b: np.ndarray, columns: np.ndarray, which: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Add the rows ``which`` of K b, where b is that of the ``columns``, to ``out`` float64 [m], in chunks; return it."""
        support = np.flatnonzero(b)
        if self.matrix is not None and 4 * len(which) > len(self.matrix):
            others, size = self._which[columns], max(_VALUES // len(self.matrix), 1)
            for begin in range(0, len(support), size):  # rows lie in one piece, and are columns, too
                some = support[begin : begin + size]
                out += (b[some] @ self.matrix[others[some]])[self._which[which]]
            return out
        size = max(_VALUES // max(len(support), 1), 1)
        for begin in range(0, len(which) if len(support) else 0, size):
            out[begin : begin + size] += self.values(which[begin : begin + size], columns[support]) @ b[support]
        return out


def kernel_values(kernel: Callable[[Any, Any], Any], X: Any, Z: Any, shape: tuple[int, int]) -> np.ndarray:
    """Return what a kernel function gives for rows X and Z, float64; ValueError where it is of another shape, or not finite."""
    values = kernel(X, Z)
    values = np.asarray(values.toarray() if sparse.issparse(values) else values, np.float64)
    if values.shape != shape:
        raise ValueError(
            f"the kernel function must return an array of shape {list(shape)} for so many rows, not of shape {list(values.shape)}"
        )
    if not np.isfinite(values).all():
        raise ValueError("the kernel function returned a value that is not finite")
    return values


def _check_size(K: np.ndarray) -> None:
    size = max(_COLUMNS // max(K.shape[1], 1), 1)
    parts = (K[begin : begin + size] for begin in range(0, len(K), size))  # the second pass finds a part in the cache
    if not max((max(part.max(), -part.min()) for part in parts), default=0.0) < LARGEST_KERNEL:
        raise ValueError(f"a kernel value is beyond {LARGEST_KERNEL:g}: scale the kernel")


def _check_symmetry(K: np.ndarray) -> None:
    allowed = _ASYMMETRY * max(K.max(initial=0.0), -K.min(initial=0.0))
    for begin in range(0, len(K), _DIAGONAL):
        off = np.abs(K[begin : begin + _DIAGONAL] - K[:, begin : begin + _DIAGONAL].T)
        if off.max() > allowed:
            i, j = np.unravel_index(off.argmax(), off.shape)
            raise ValueError(
                f"the kernel is not symmetric: of rows {begin + i} and {j} its values are {K[begin + i, j]:g} and "
                f"{K[j, begin + i]:g}, by the order in which they are given; take the mean of both"
            )
