"""The fixed-size memory of a linear model: one block of bytes with a weight for each feature that there is room for."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numba import njit

from streamsvm.memory.block import LARGEST, STATE_END, allocate, array_at, check_size, rounded_up

__all__ = ["WeightStore", "WeightViews", "weight_views"]

#: The first bytes of a block; ``columns`` is fixed at construction.
HEADER = np.dtype(
    [
        ("columns", "i8"),  # features that fit, rounded up to a cache line
        ("used", "i8"),  # columns that have a feature
    ]
)
_ITERATES = 2


class WeightViews(NamedTuple):
    """The arrays inside a block. Those from ``row`` on are scratch: no snapshot holds them."""

    header: np.ndarray
    """`HEADER` [1]."""
    biases: np.ndarray
    """float64 [2]: of the last iterate and of the average."""
    weights: np.ndarray
    """float64 [2, columns]: the two rows of coefficients that `streamsvm.learners.compiled.iterates` knows."""
    row: np.ndarray
    """float32 [columns]: the row at hand, valid where it is ``active``."""
    active: np.ndarray
    """int64 [columns]: columns of its features that are not zero, rising."""
    marks: np.ndarray
    """uint8 [columns]: 1 for a column that is being laid out, and 0 before and after."""


def _views(block: np.ndarray) -> WeightViews:
    header = array_at(block, 0, (1,), HEADER)
    columns = header[0]["columns"]
    at = STATE_END
    biases = array_at(block, at, (2,), np.float64)
    at += 64
    weights = array_at(block, at, (2, columns), np.float64)
    at += 16 * columns
    row = array_at(block, at, (columns,), np.float32)
    at += 4 * columns
    active = array_at(block, at, (columns,), np.int64)
    at += 8 * columns
    marks = array_at(block, at, (columns,), np.uint8)
    return WeightViews(header, biases, weights, row, active, marks)


#: The arrays inside a block (uint8 [nbytes]), without a copy.
weight_views = njit(cache=True, forceinline=True)(_views)


class WeightStore:
    """Room for the weights of ``max_features`` features, of the last iterate and of the average, allocated at construction.

    Raises
    ------
    ValueError
        ``max_features`` is not a positive integer, or would not fit into memory.

    Examples
    --------
    >>> store = WeightStore(max_features=1000)
    >>> store.nbytes
    29680
    >>> store.used, len(store.snapshot())
    (0, 400)
    """

    def __init__(self, max_features: int) -> None:
        check_size("max_features", max_features, 1)
        self.max_features = int(max_features)
        columns = rounded_up(self.max_features)
        #: The whole store as one array, uint8 [nbytes]: what compiled functions take.
        self.block = allocate(STATE_END + 64 + 29 * columns, f"max_features={max_features}")
        self.block[: HEADER.itemsize].view(HEADER)["columns"] = columns
        #: The arrays inside the block.
        self.views = _views(self.block)
        self._header = self.views.header

    @property
    def nbytes(self) -> int:
        """Bytes of the block: ``448 + 29 D``, with D = max_features rounded up to a multiple of 16."""
        return self.block.nbytes

    @property
    def used(self) -> int:
        """Columns that have a feature."""
        return int(self._header["used"][0])

    @used.setter
    def used(self, columns: int) -> None:
        self._header["used"] = columns

    def snapshot(self) -> bytes:
        """All that the store knows, as bytes: 400 and 16 for each column in use. Equal stores give equal bytes."""
        kept = self.block[:STATE_END].tobytes() + self.views.biases.tobytes()
        return kept + np.ascontiguousarray(self.views.weights[:, : self.used]).tobytes()

    def restore(self, snapshot: bytes) -> None:
        """Take back what `snapshot` gave, into a store for as many features. Nothing changes unless all of it is valid; what a
        learner may have among its own numbers is for the learner to check.

        Raises
        ------
        ValueError
            The snapshot is of another size or layout, or holds numbers that no store can have.
        """
        fixed = STATE_END + 8 * _ITERATES
        if len(snapshot) < fixed:
            raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off")
        header = np.frombuffer(snapshot, HEADER, 1)[0]
        used = int(header["used"])
        if header["columns"] != self._header[0]["columns"] or not 0 <= used <= self.max_features:
            raise ValueError(f"a snapshot with {used} of {header['columns']} columns does not fit a store of {self.max_features}")
        if len(snapshot) != fixed + 16 * used:
            raise ValueError(f"a snapshot of {used} columns has {fixed + 16 * used:,} bytes, not {len(snapshot):,}")
        numbers = np.frombuffer(snapshot, np.float64, offset=STATE_END)
        if not (np.abs(numbers) < LARGEST).all():
            raise ValueError("the snapshot holds numbers that are not finite, or that no learning leads to")
        self.block[:STATE_END] = np.frombuffer(snapshot, np.uint8, STATE_END)
        self.views.biases[:] = numbers[:_ITERATES]
        self.views.weights[:, :used] = numbers[_ITERATES:].reshape(_ITERATES, used)
        self.views.weights[:, used:] = 0.0
