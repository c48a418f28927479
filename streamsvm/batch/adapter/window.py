"""The last rows of a stream in arrays of a fixed size, and rows of frames in the columns of their features."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_WEIGHT
from streamsvm.core.memory.features import FeatureSpace


class Rows(NamedTuple):
    """Copies of the n rows of a window, the oldest first."""

    X: np.ndarray
    """float32 [n, columns]."""
    targets: np.ndarray
    """float64 [n]."""
    weights: np.ndarray
    """float64 [n]."""


class Window:
    """A ring of the last rows with their targets and weights.

    Parameters
    ----------
    size
        Rows, at most; a new row replaces the oldest one.
    columns
        Columns of the rows, at most.

    Attributes
    ----------
    n_put : int
        Rows put in so far.

    Raises
    ------
    ValueError
        The rows do not fit into memory.

    Examples
    --------
    >>> window = Window(size=2, columns=1)
    >>> for value in (1.0, 2.0, 3.0):
    ...     gone = window.put(np.array([[value]], np.float32), np.array([0.0]), np.array([1.0]))
    >>> window.ordered(columns=1).X.ravel()
    array([2., 3.], dtype=float32)
    """

    def __init__(self, size: int, columns: int) -> None:
        try:
            self._X = np.zeros((size, columns), np.float32)
            self._targets = np.zeros(size)
            self._weights = np.zeros(size)
        except (MemoryError, ValueError) as error:
            raise ValueError(
                f"window={size:,} and max_features={columns:,} need {size * (4 * columns + 16):,} bytes, "
                "more than this machine has: lower one of them"
            ) from error
        self.n_put: int = 0

    def __len__(self) -> int:
        return min(self.n_put, len(self._X))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays: ``size * (4 * columns + 16)``."""
        return self._X.nbytes + self._targets.nbytes + self._weights.nbytes

    @property
    def targets(self) -> np.ndarray:
        """float64 [rows in the window], in no particular order; a view."""
        return self._targets[: len(self)]

    def put(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Put in rows float32 [n, columns in use or fewer]; return the targets of those they replace, float64. O(n d).

        The columns in use may only become more.
        """
        size, n = len(self._X), len(X)
        skipped = max(n - size, 0)  # rows that others of the batch would replace
        places = (self.n_put + np.arange(skipped, n)) % size
        gone = self._targets[places[places < len(self)]]
        self._X[places, : X.shape[1]] = X[skipped:]
        self._targets[places] = targets[skipped:]
        self._weights[places] = weights[skipped:]
        self.n_put += n
        return gone

    def ordered(self, columns: int) -> Rows:
        """Return all rows with their first ``columns`` columns. O(n d)."""
        n = len(self)
        oldest = self.n_put % n if n == len(self._X) else 0
        parts = slice(oldest, n), slice(0, oldest)
        return Rows(
            *(np.concatenate([of[part] for part in parts]) for of in (self._X[:, :columns], self._targets, self._weights))
        )

    def snapshot(self, columns: int) -> tuple[Any, ...]:
        """Return the rows and their number as plain values for `restore`."""
        n = len(self)
        return self.n_put, self._X[:n, :columns].copy(), self._targets[:n].copy(), self._weights[:n].copy()

    def restore(self, snapshot: Any, columns: int) -> None:
        """Take back a `snapshot` into a window without rows.

        Raises
        ------
        ValueError
            It is of a window of another size, or corrupt.
        """
        n_put, X, targets, weights = snapshot
        if not isinstance(n_put, int) or n_put < 0:
            raise ValueError(f"the saved window is corrupt: {n_put!r} is no number of rows")
        n = min(n_put, len(self._X))
        for values, dtype, shape in ((X, np.float32, (n, columns)), (targets, np.float64, (n,)), (weights, np.float64, (n,))):
            array = isinstance(values, np.ndarray) and values.dtype == dtype and values.shape == shape
            if not array or not np.isfinite(values).all():
                raise ValueError(f"the saved window is corrupt: an array is not finite {np.dtype(dtype)} {list(shape)}")
        if not ((weights > 0.0) & (weights <= LARGEST_WEIGHT)).all():
            raise ValueError(f"the saved window is corrupt: a weight is not above 0 and at most {LARGEST_WEIGHT:g}")
        self._X[:n, :columns], self._targets[:n], self._weights[:n] = X, targets, weights
        self.n_put = n_put


def placed(matrix: np.ndarray, names: list[Hashable], columns: np.ndarray, width: int, numbers: np.ndarray) -> np.ndarray:
    """Return rows float32 [n, features] with each feature in its column (-1: none), float32 [n, width].

    Features of one column add up.

    Raises
    ------
    ValueError
        A value is not finite; the message names the feature, and the row by its element of ``numbers``.
    """
    out = np.zeros((len(matrix), width), np.float32)
    with np.errstate(over="ignore"):  # a sum that is too large is refused below
        for values, column in zip(matrix.T, columns.tolist(), strict=True):
            if 0 <= column < width:
                out[:, column] += values
    refused = np.flatnonzero(~np.isfinite(out).all(axis=1))
    if len(refused):
        row = refused[0]
        try:
            FeatureSpace.complain_not_finite(dict(zip(names, matrix[row].tolist(), strict=True)))
        except ValueError as error:
            raise ValueError(f"row {numbers[row]}: {error}") from None
    return out
