"""The fixed-size memory of an expert that remembers rows: one block with rows, their targets, and what each feature counts.

Rows lie feature by feature: feature j of all rows is one run of memory, ``stride`` numbers long. The room for numbers is fixed:
the more features there are, the fewer rows are held (`compute_stride`). When features come, the rows are laid out anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, NamedTuple

import numpy as np

from streamsvm.core.checks import LARGEST_WEIGHT
from streamsvm.core.memory.block import STATE_END, Array, Layout, Store, check_size, round_up_to_lines

#: Features that are remembered at most, and the numbers that a memory has room for: those of 2,000 rows with 64 features.
MAX_COLUMNS, MAX_CELLS = 512, 128_000
#: The rows that an answer is taken from.
N_NEAREST = 13

_LINE = 16  # numbers of 4 bytes
_LARGEST_VALUE = 1e30
_LARGEST_RELEVANCE = 1.01  # of a correlation with differences of at most 1, and rounding

#: Fields of the header, beside the sizes.
HEADER = np.dtype(
    [
        ("used", "i8"),  # columns that have a feature
        ("row_width", "i8"),  # columns that the rows are laid out for
        ("n_rows", "i8"),  # rows
        ("next_slot", "i8"),  # the place of the next row, once all places are taken
        ("n_correct", "i8"),  # rows that were not missed, since one of ten was kept
        ("n_informative", "f8"),  # rows that said something of the features
    ]
)


class NeighbourViews(NamedTuple):
    """The arrays inside a block, by the sizes of its `HEADER`."""

    header: Annotated[np.ndarray, Array(HEADER)]
    cells: Annotated[np.ndarray, Array(np.float32, ("cells",), -_LARGEST_VALUE, _LARGEST_VALUE)]
    """The rows: feature j of row i is at ``j * stride + i``."""
    targets: Annotated[np.ndarray, Array(np.float32, ("rows",), -_LARGEST_VALUE, _LARGEST_VALUE)]
    """Numbers of their classes (of two labels 0 and 1), or their targets."""
    weights: Annotated[np.ndarray, Array(np.float32, ("rows",), 0.0, LARGEST_WEIGHT)]
    relevance: Annotated[np.ndarray, Array(np.float64, ("columns",), -_LARGEST_RELEVANCE, _LARGEST_RELEVANCE)]
    """How much a feature tells rows of unlike targets apart: the mean over rows, which may be below 0."""
    row: Annotated[np.ndarray, Array(np.float32, ("columns",), saved=False)]
    """The current row."""
    units: Annotated[np.ndarray, Array(np.float32, ("columns",), saved=False)]
    """The standard deviation of each feature in rows; 0 of one that is constant."""
    factors: Annotated[np.ndarray, Array(np.float32, (2, "columns"), saved=False)]
    """The share that a difference of 1 in each feature adds to a distance, and the difference beyond which it adds no more."""
    distances: Annotated[np.ndarray, Array(np.float32, ("rows",), saved=False)]
    nearest: Annotated[np.ndarray, Array(np.int64, (N_NEAREST,), saved=False)]
    """Places of the rows nearest to the current row, of which there are ``n_nearest[0]``."""
    votes: Annotated[np.ndarray, Array(np.float64, (2, N_NEAREST), saved=False)]
    """Their distances, and the votes that they have."""
    n_nearest: Annotated[np.ndarray, Array(np.int64, (1,), saved=False)]


_LAYOUT = Layout(NeighbourViews, in_lines=("cells", "rows"))

#: Opens a block (uint8 [nbytes]) as `NeighbourViews` in Python and in compiled code, without a copy.
neighbour_views: Callable[[np.ndarray], NeighbourViews] = _LAYOUT.views


def compute_stride(cells: int, rows: int, laid: int) -> int:
    """Return how many rows there is room for where they have so many features: whole cache lines."""
    return min(rows, cells // laid // _LINE * _LINE) if laid > 0 else rows


def _array_sizes(columns: int, rows: int) -> dict[str, int]:
    rows = round_up_to_lines(int(rows))
    return {"rows": rows, "cells": min(rows * columns, MAX_CELLS)}  # room for rows if features are few, and for their numbers


class NeighbourStore(Store[NeighbourViews]):
    """Room for ``rows`` rows, or for fewer of many features: 128,000 numbers in all. It is allocated at construction.

    Of more than 512 features, it takes the first 512. ``within`` and ``columns`` are as in `Store`. It is a ValueError if a size
    is not a positive integer, or would not fit into memory.

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
        """The number of rows."""
        return int(self._header["n_rows"][0])

    @property
    def stride(self) -> int:
        """The number of rows that there is room for, with the features that there are."""
        h = self._header[0]
        return compute_stride(int(h["cells"]), int(h["rows"]), int(h["row_width"]))

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the rows, float32 [held, laid]."""
        laid, stride = int(self._header["row_width"][0]), self.stride
        return np.ascontiguousarray(self.views.cells[: laid * stride].reshape(laid, stride)[:, : self.n_rows].T)

    def copy_from(self, other: NeighbourStore) -> None:
        """Become a copy of a store with other columns, or one that has room for fewer rows."""
        h, theirs, v = self._header, other._header, other.views
        for name in ("used", "row_width", "n_rows", "n_correct", "n_informative"):
            h[name] = theirs[name]
        used, held, laid, stride = self.used, self.n_rows, int(h["row_width"][0]), self.stride
        self.views.relevance[:used] = v.relevance[:used]
        first = 0
        if self.columns != other.columns:  # rows have the same places
            h["next_slot"] = theirs["next_slot"]
        elif held == other.stride:  # the oldest one comes first
            first = int(theirs["next_slot"][0])
        age = (np.arange(held) + first) % max(held, 1)
        self.views.targets[:held], self.views.weights[:held] = v.targets[age], v.weights[age]
        self.views.cells[: laid * stride].reshape(laid, stride)[:, :held] = other.vectors[age].T

    def _check_block(self, block: np.ndarray) -> None:
        h = self._read_header(block, self._layout.sizes)
        used, laid, held = int(h["used"]), int(h["row_width"]), int(h["n_rows"])
        if not (0 <= used <= self.max_features and 0 <= laid <= min(used, MAX_COLUMNS)):
            raise ValueError(f"a snapshot of rows with {laid} of {used} features does not fit the store")
        stride = compute_stride(int(h["cells"]), int(h["rows"]), laid)
        counted = 0 <= h["n_correct"] < 2**62 and 0.0 <= h["n_informative"] < 2**62
        places = stride if held == stride else 1  # the oldest row is the first one until all places are taken
        if not (counted and 0 <= held <= stride and 0 <= h["next_slot"] < max(places, 1)):
            raise ValueError(f"the snapshot is corrupt: {held} rows, where there is room for {stride}")
        v = _LAYOUT.views(block)
        _LAYOUT.check(v, {"rows": held, "columns": laid})
        cells = v.cells[: laid * stride].reshape(laid, stride)
        if cells[:, held:].any() or v.cells[laid * stride :].any() or block[_LAYOUT.header.itemsize : STATE_END].any():
            raise ValueError("the snapshot is corrupt: cells hold numbers beyond the rows")
