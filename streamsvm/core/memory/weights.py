"""The fixed-size memory of a linear model: one block of bytes with a weight for each feature that there is room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np

from streamsvm.core.memory.block import LARGEST, STATE_END, Array, Layout, Store

#: Fields of the header, beside the sizes.
HEADER = np.dtype(
    [
        ("used", "i8"),  # columns that have a feature
    ]
)
_ITERATES = 2


class WeightViews(NamedTuple):
    """The arrays inside a block, by the sizes of its `HEADER`."""

    header: Annotated[np.ndarray, Array(HEADER)]
    biases: Annotated[np.ndarray, Array(np.float64, (_ITERATES,))]
    """Of the last iterate and of the average."""
    weights: Annotated[np.ndarray, Array(np.float64, (_ITERATES, "columns"))]
    """The two rows of coefficients that `streamsvm.core.steps.iterates` describes."""
    row: Annotated[np.ndarray, Array(np.float32, ("taken",), saved=False)]
    """The current row, valid where it is ``active``."""
    active: Annotated[np.ndarray, Array(np.int64, ("taken",), saved=False)]
    """Columns of its features that are not zero, rising."""
    marks: Annotated[np.ndarray, Array(np.uint8, ("taken",), saved=False)]
    """1 for a column that is being filled, and 0 before and after."""


_LAYOUT = Layout(WeightViews, in_lines=())

#: Opens a block (uint8 [nbytes]) as `WeightViews` in Python and in compiled code, without a copy.
weight_views: Callable[[np.ndarray], WeightViews] = _LAYOUT.views


def _array_sizes(columns: int, takes_rows: bool = True) -> dict[str, int]:
    return {"taken": columns if takes_rows else 0}


class WeightStore(Store[WeightViews]):
    """Room for the weights of features, of the last iterate and of the average, allocated at construction.

    ``max_features``, ``within`` and ``columns`` are as in `Store`. Without ``takes_rows``, it has no room for a row: an ensemble
    has the current row. It is a ValueError if ``max_features`` is not a positive integer, or would not fit into memory.

    It has ``448 + 29 D`` bytes, with D columns, or ``448 + 16 D`` without room for a row; up to 200 more with less than 64
    columns, since arrays begin on cache lines.

    >>> store = WeightStore(max_features=1000)
    >>> store.used, store.nbytes, len(store.snapshot())
    (0, 29680, 400)
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(_array_sizes)

    def __init__(
        self, max_features: int, within: np.ndarray | None = None, takes_rows: bool = True, columns: int | None = None
    ) -> None:
        super().__init__(max_features, f"max_features={max_features}", within, columns, takes_rows=takes_rows)

    def snapshot(self) -> bytes:
        """Return all that the store holds as bytes: 400 and 16 for each column in use. Equal stores give equal bytes."""
        fixed = self.block[:STATE_END].tobytes() + self.views.biases.tobytes()
        return fixed + np.ascontiguousarray(self.views.weights[:, : self.used]).tobytes()

    def restore(self, snapshot: bytes, trusted: bool = False) -> None:  # noqa: ARG002 - it is checked anyway
        """Restore a `snapshot`; see `Store.restore`."""
        fixed = STATE_END + 8 * _ITERATES
        if len(snapshot) < fixed:
            raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off")
        header = np.frombuffer(snapshot, _LAYOUT.header, 1)[0]
        used = int(header["used"])
        self._check_sizes(header, ("columns", "taken"))
        if not 0 <= used <= self.max_features:
            raise ValueError(f"a snapshot with {used} columns does not fit a store of {self.max_features}")
        if len(snapshot) != fixed + 16 * used:
            raise ValueError(f"a snapshot of {used} columns has {fixed + 16 * used:,} bytes, not {len(snapshot):,}")
        numbers = np.frombuffer(snapshot, np.float64, offset=STATE_END)
        if not (np.abs(numbers) < LARGEST).all():
            raise ValueError("the snapshot is corrupt: its weights or biases are not finite, or too large")
        self.block[:STATE_END] = np.frombuffer(snapshot, np.uint8, STATE_END)
        self.views.biases[:] = numbers[:_ITERATES]
        self.views.weights[:, :used] = numbers[_ITERATES:].reshape(_ITERATES, used)
        self.views.weights[:, used:] = 0.0


class WeightStores:
    """The stores of a linear expert of an ensemble, one for each output, without room for rows; opened when they are asked for.

    ``within`` are zeros, uint8 [outputs, bytes of a store], a part of the ensemble's block.
    """

    def __init__(self, max_features: int, columns: int, within: np.ndarray) -> None:
        self.max_features: int = max_features
        self.columns: int = columns
        self.within: np.ndarray = within
        within[1:] = self[0].block

    def __len__(self) -> int:
        return len(self.within)

    def __iter__(self) -> Iterator[WeightStore]:
        return map(self.__getitem__, range(len(self)))

    def __getitem__(self, output: int) -> WeightStore:
        return WeightStore(self.max_features, self.within[output], False, self.columns)

    @property
    def used(self) -> int:
        """The number of columns that have a feature."""
        return self[0].used

    @used.setter
    def used(self, columns: int) -> None:
        self.within[:, : _LAYOUT.header.itemsize].view(_LAYOUT.header)["used"] = columns

    def copy_from(self, other: WeightStores) -> None:
        """Become a copy of the stores of as many outputs or fewer; those that it lacks stay as they are."""
        if self.columns == other.columns:
            self.within[: len(other)] = other.within
            return
        for ours, theirs in zip(self, other, strict=False):
            ours.copy_from(theirs)
