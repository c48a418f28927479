"""The memory of a linear model: one block with the weights of all columns."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Annotated, NamedTuple

import numpy as np

from streamsvm.core.memory.block import LARGEST, STATE_END, Array, Layout, Store

#: Header fields in addition to the sizes.
HEADER = np.dtype(
    [
        ("used", "i8"),  # columns in use
    ]
)
_ITERATES = 2


class WeightViews(NamedTuple):
    """The arrays of a block; the header contains their sizes."""

    header: Annotated[np.ndarray, Array(HEADER)]
    biases: Annotated[np.ndarray, Array(np.float64, (_ITERATES,))]
    """Intercepts of the last and of the average iterate."""
    weights: Annotated[np.ndarray, Array(np.float64, (_ITERATES, "columns"))]
    """The two rows of coefficients that `streamsvm.core.steps.iterates` describes."""
    row: Annotated[np.ndarray, Array(np.float32, ("row_columns",), saved=False)]
    """The current row. Values of columns that are not ``active`` are undefined."""
    active: Annotated[np.ndarray, Array(np.int64, ("row_columns",), saved=False)]
    """Columns of its non-zero features, in ascending order."""
    marks: Annotated[np.ndarray, Array(np.uint8, ("row_columns",), saved=False)]
    """1 for columns of the row while it is written, else 0."""


_LAYOUT = Layout(WeightViews, in_lines=())

#: Opens a block (uint8 [nbytes]) as `WeightViews` in Python and in compiled code, without a copy.
weight_views: Callable[[np.ndarray], WeightViews] = _LAYOUT.views


def _array_sizes(columns: int, takes_rows: bool = True) -> dict[str, int]:
    """Return the dimensions of the arrays in a linear model's memory, as a dict of name to length, without the number of feature
    ``columns``. ``takes_rows`` adds space for a row to learn.
    """
    return {"row_columns": columns if takes_rows else 0}


class WeightStore(Store[WeightViews]):
    """The store of a linear model: its weights and intercepts, of the last and of the average iterate.

    ``max_features``, ``within`` and ``columns`` are as in `Store`. With ``takes_rows=False``, it has no room for the current row,
    because its ensemble has one. Raises ValueError if ``max_features`` is not a positive integer, or memory is exhausted.

    It has ``448 + 29 D`` bytes with D columns, or ``448 + 16 D`` without room for a row. With less than 64 columns, alignment to
    cache lines can add up to 200.

    >>> store = WeightStore(max_features=1000)
    >>> store.used, store.nbytes, len(store.snapshot())
    (0, 29680, 400)
    """

    _layout, _compute_sizes = _LAYOUT, staticmethod(_array_sizes)
    is_compact = True

    def __init__(
        self, max_features: int, within: np.ndarray | None = None, takes_rows: bool = True, columns: int | None = None
    ) -> None:
        super().__init__(max_features, f"max_features={max_features}", within, columns, takes_rows=takes_rows)

    def snapshot(self) -> bytes:
        """Return a copy of the saved part of this linear model's memory as bytes: 400, and 16 for each feature in use. Equal
        contents give equal bytes.
        """
        fixed_part = self.block[:STATE_END].tobytes() + self.views.biases.tobytes()
        return fixed_part + np.ascontiguousarray(self.views.weights[:, : self.used]).tobytes()

    def restore(self, snapshot: bytes, trusted: bool = False) -> None:  # noqa: ARG002 - trusted snapshots are checked, too
        """Replace the contents of this linear model's memory by ``snapshot``, bytes that `snapshot` returned. Raises ValueError,
        and changes nothing, if the bytes are corrupt; they are always checked, even if ``trusted`` is True.
        """
        fixed_bytes = STATE_END + 8 * _ITERATES
        if len(snapshot) < fixed_bytes:
            raise ValueError(f"a snapshot of {len(snapshot):,} bytes is cut off")
        used = self._check_used(np.frombuffer(snapshot, np.uint8))
        if len(snapshot) != fixed_bytes + 16 * used:
            raise ValueError(f"a snapshot of {used} columns has {fixed_bytes + 16 * used:,} bytes, not {len(snapshot):,}")
        numbers = np.frombuffer(snapshot, np.float64, offset=STATE_END)
        if not (np.abs(numbers) < LARGEST).all():
            raise ValueError("the snapshot is corrupt: its weights or biases are not finite, or too large")
        self.block[:STATE_END] = np.frombuffer(snapshot, np.uint8, STATE_END)
        self.views.biases[:] = numbers[:_ITERATES]
        self.views.weights[:, :used] = numbers[_ITERATES:].reshape(_ITERATES, used)
        self.views.weights[:, used:] = 0.0

    def _check_used(self, block: np.ndarray) -> int:
        """Return the number of features of ``block``, bytes that begin with the header of a saved linear model. Raises ValueError
        if they do not fit into this memory.
        """
        used = int(self._read_header(block, self._layout.sizes)["used"])
        if not 0 <= used <= self.max_features:
            raise ValueError(f"a snapshot with {used} columns does not fit a store of {self.max_features}")
        return used

    def _check_block(self, block: np.ndarray) -> None:
        _LAYOUT.check(_LAYOUT.views(block), {"columns": self._check_used(block)})


class WeightStores:
    """A sequence of the `WeightStore` of each output of a linear expert in an ensemble. A store is opened when it is indexed.

    ``within`` is a part of the ensemble's block, zeros uint8 [outputs, bytes of a store].
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
        """The number of feature columns in use, one for each feature seen, which is the same for all outputs of this linear
        model. Setting it sets that of all outputs.
        """
        return self[0].used

    @used.setter
    def used(self, columns: int) -> None:
        self.within[:, : _LAYOUT.header.itemsize].view(_LAYOUT.header)["used"] = columns

    def copy_from(self, source: WeightStores) -> None:
        """Copy the weights of ``source``, the memories of another linear model (one for each output), into these. ``source`` has
        at most as many outputs; the memories of further outputs do not change.
        """
        if self.columns == source.columns:
            self.within[: len(source)] = source.within
            return
        for ours, theirs in zip(self, source, strict=False):
            ours.copy_from(theirs)
