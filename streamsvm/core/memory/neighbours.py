"""The memory of a k-nearest-neighbours expert: one block with rows, their targets, and the relevance of each feature.

Rows are stored feature-major: the values of a feature are contiguous, ``stride`` numbers. The total number of values is fixed, so
the more features there are, the fewer rows fit (`compute_stride`). If a feature is added, the rows are laid out again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_WEIGHT
from streamsvm.core.memory.block import STATE_END, Array, Layout, Store, check_size, round_up_to_lines

#: Maximum number of features, and of values in total: those of 2,000 rows with 64 features.
MAX_COLUMNS, MAX_CELLS = 512, 128_000
#: Number of nearest neighbours that vote.
N_NEAREST = 13

_LINE = 16  # numbers of 4 bytes in a cache line
_LARGEST_VALUE = 1e30
_LARGEST_RELEVANCE = 1.01  # a correlation with differences of at most 1, plus rounding

#: Header fields in addition to the sizes.
HEADER = np.dtype(
    [
        ("used", "i8"),  # columns in use
        ("row_width", "i8"),  # columns of the stored rows
        ("n_rows", "i8"),  # number of stored rows
        ("next_slot", "i8"),  # slot of the next row, once all slots are occupied
        ("n_correct", "i8"),  # correctly predicted rows since one of them was stored; one of ten is
        ("n_informative", "f8"),  # number of rows from which relevances were learned
    ]
)


class NeighbourViews(NamedTuple):
    """The arrays of a block; the header contains their sizes."""

    header: Annotated[np.ndarray, Array(HEADER)]
    cells: Annotated[np.ndarray, Array(np.float32, ("cells",), -_LARGEST_VALUE, _LARGEST_VALUE)]
    """The values of the rows: feature j of row i is at ``j * stride + i``."""
    targets: Annotated[np.ndarray, Array(np.float32, ("rows",), -_LARGEST_VALUE, _LARGEST_VALUE)]
    """Their class indices, 0 or 1 for two labels; or their targets."""
    weights: Annotated[np.ndarray, Array(np.float32, ("rows",), 0.0, LARGEST_WEIGHT)]
    relevance: Annotated[np.ndarray, Array(np.float64, ("columns",), -_LARGEST_RELEVANCE, _LARGEST_RELEVANCE)]
    """How well each feature separates rows of different targets: a mean over rows, which can be negative."""
    row: Annotated[np.ndarray, Array(np.float32, ("columns",), saved=False)]
    """The current row."""
    units: Annotated[np.ndarray, Array(np.float32, ("columns",), saved=False)]
    """Standard deviation of each feature; 0 for a constant feature."""
    factors: Annotated[np.ndarray, Array(np.float32, (2, "columns"), saved=False)]
    """The contribution of a difference of 1 in each feature to a distance, and the limit to which differences are clipped."""
    distances: Annotated[np.ndarray, Array(np.float32, ("rows",), saved=False)]
    nearest: Annotated[np.ndarray, Array(np.int64, (N_NEAREST,), saved=False)]
    """Slots of the ``n_nearest[0]`` nearest neighbours of the current row."""
    votes: Annotated[np.ndarray, Array(np.float64, (2, N_NEAREST), saved=False)]
    """Their distances, and the weights of their votes."""
    n_nearest: Annotated[np.ndarray, Array(np.int64, (1,), saved=False)]


_LAYOUT = Layout(NeighbourViews, in_lines=("cells", "rows"))

#: Opens a block (uint8 [nbytes]) as `NeighbourViews` in Python and in compiled code, without a copy.
neighbour_views: Callable[[np.ndarray], NeighbourViews] = _LAYOUT.views


def compute_stride(cells: int, rows: int, row_width: int) -> int:
    """Return the number of rows with ``row_width`` features that fit into ``cells``, the number of values that the memory of a
    k-nearest-neighbours model has room for. It is at most ``rows``.

    It is a multiple of 16, so that each feature fills whole cache lines.
    """
    return min(rows, cells // row_width // _LINE * _LINE) if row_width > 0 else rows


def _array_sizes(columns: int, rows: int) -> dict[str, int]:
    """Return the dimensions of the arrays in a k-nearest-neighbours model's memory, as a dict of name to length, for ``columns``
    features and at most ``rows`` stored rows.
    """
    rows = round_up_to_lines(int(rows))
    return {"rows": rows, "cells": min(rows * columns, MAX_CELLS)}


class NeighbourStore(Store[NeighbourViews]):
    """The store of a k-nearest-neighbours expert, with room for ``rows`` rows, but at most 128,000 values in total.

    It stores the first 512 features only. ``within`` and ``columns`` are as in `Store`. Raises ValueError if a size is not a
    positive integer, or memory is exhausted.

    With N = rows, rounded up to a multiple of 16, and D columns, it has about ``4 min(N D, 128,000) + 12 N + 24 D + 1,000``
    bytes.

    >>> store = NeighbourStore(rows=2000, max_features=20)
    >>> store.n_rows, store.used, store.nbytes
    (0, 0, 281544)
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(_array_sizes)

    def __init__(self, rows: int, max_features: int, within: np.ndarray | None = None, columns: int | None = None) -> None:
        check_size("rows", rows, _LINE)
        super().__init__(max_features, f"max_features={max_features}", within, columns, rows=rows)

    @property
    def n_rows(self) -> int:
        """The number of rows that this k-nearest-neighbours model stores now."""
        return int(self._header["n_rows"][0])

    @property
    def stride(self) -> int:
        """The number of rows that this k-nearest-neighbours model has room for, with its current number of features."""
        h = self._header[0]
        return compute_stride(int(h["cells"]), int(h["rows"]), int(h["row_width"]))

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the rows that this k-nearest-neighbours model stores, float32 [n_rows, features]."""
        width, stride = int(self._header["row_width"][0]), self.stride
        return np.ascontiguousarray(self.views.cells[: width * stride].reshape(width, stride)[:, : self.n_rows].T)

    def copy_from(self, source: NeighbourStore) -> None:
        """Copy the stored rows and the statistics of ``source``, the memory of a k-nearest-neighbours model with another number
        of columns or room for fewer rows, into this one.
        """
        h, theirs, v = self._header, source._header, source.views
        for name in ("used", "row_width", "n_rows", "n_correct", "n_informative"):
            h[name] = theirs[name]
        used, n, width, stride = self.used, self.n_rows, int(h["row_width"][0]), self.stride
        self.views.relevance[:used] = v.relevance[:used]
        first = 0
        if self.columns != source.columns:  # rows stay in their slots
            h["next_slot"] = theirs["next_slot"]
        elif n == source.stride:  # begin with the oldest row
            first = int(theirs["next_slot"][0])
        slots = (np.arange(n) + first) % max(n, 1)
        self.views.targets[:n], self.views.weights[:n] = v.targets[slots], v.weights[slots]
        self.views.cells[: width * stride].reshape(width, stride)[:, :n] = source.vectors[slots].T

    def _check_block(self, block: np.ndarray) -> None:
        h = self._read_header(block, self._layout.sizes)
        used, width, n = int(h["used"]), int(h["row_width"]), int(h["n_rows"])
        if not (0 <= used <= self.max_features and 0 <= width <= min(used, MAX_COLUMNS)):
            raise ValueError(f"a snapshot of rows with {width} of {used} features does not fit the store")
        stride = compute_stride(int(h["cells"]), int(h["rows"]), width)
        are_counts_valid = 0 <= h["n_correct"] < 2**62 and 0.0 <= h["n_informative"] < 2**62
        slots = stride if n == stride else 1  # until all slots are occupied, the oldest row is in the first one
        if not (are_counts_valid and 0 <= n <= stride and 0 <= h["next_slot"] < max(slots, 1)):
            raise ValueError(f"the snapshot is corrupt: {n} rows, where there is room for {stride}")
        v = _LAYOUT.views(block)
        _LAYOUT.check(v, {"rows": n, "columns": width})
        cells = v.cells[: width * stride].reshape(width, stride)
        if cells[:, n:].any() or v.cells[width * stride :].any() or block[_LAYOUT.header.itemsize : STATE_END].any():
            raise ValueError("the snapshot is corrupt: cells hold numbers beyond the rows")
