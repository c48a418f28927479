"""Blocks of memory, as arrays for Python and for compiled code.

A block is all that a model holds, as one run of bytes: a compiled function takes it as one argument, and opens the arrays that it
uses. One table lists them, and `Layout` derives from it where they lie, how large they are and which numbers they can hold.

The table is a NamedTuple whose fields are annotated with an `Array` each. Its first field is the header, a record at the start of
the block: the lengths of dimensions that arrays name, and the fields that the table lists. Then comes room for the learner's
state, up to `STATE_END`, and then the other arrays in their order, each from a cache line on.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, get_type_hints

import numpy as np
import numpy.typing

from streamsvm.core.compiling.functions import Intrinsic

#: The bytes of a block that hold the learner's state: its step counter, schedule, random state, statistics.
STATE_BEGIN, STATE_END = 128, 384

#: Bytes of a cache line: every array of a block starts on one.
LINE = 64

#: The largest number that a model can hold.
LARGEST = 1e100
#: The largest coefficient after a projection: from short vectors to long ones and back, it could grow for ever.
LARGEST_COEFFICIENT = 1e40


def allocate_block(size: int, what: str) -> np.ndarray:
    """Return zeros, uint8 [size], that begin on a cache line.

    Where they do not fit into memory, the message of the ValueError begins with ``what``, the sizes to blame.
    """
    try:
        memory = np.zeros(size + LINE, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"{what} need {size:,} bytes, more than this machine has: lower one of them") from error
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def check_size(name: str, size: object, least: int) -> None:
    """Raise a ValueError that names a size which is not an integer from ``least`` to 2^31 - 1."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not least <= size < 2**31:
        raise ValueError(f"{name} must be an integer between {least} and 2^31 - 1, not {size!r}")


def round_up_to_lines(n: int) -> int:
    """Return ``n`` rounded up so that so many numbers of 4 bytes fill whole cache lines."""
    return (4 * n + LINE - 1) // LINE * LINE // 4


def choose_columns(features: int, max_features: int) -> int:
    """Return how many columns a block has in which so many of ``max_features`` features are known.

    It is the next power of two, so that a block is copied a few times in all, and equal models have equal blocks.

    >>> [choose_columns(features, 20) for features in (0, 2, 3, 8, 9, 17, 20)]
    [2, 2, 4, 8, 16, 32, 32]
    """
    return min(max(1 << max(features - 1, 0).bit_length(), 2), round_up_to_lines(max_features))


def resolve_columns(max_features: int, columns: int | None) -> int:
    """Return ``columns``, or where it is None those for all of ``max_features``, rounded up to whole cache lines."""
    return round_up_to_lines(int(max_features)) if columns is None else columns


def view_array(block: np.ndarray, start: int, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return the array of a block (uint8 [bytes]) that begins at byte ``start``, without a copy."""
    dtype = np.dtype(dtype)
    return block[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _record_at(block: np.ndarray, start: int, dtype: np.typing.DTypeLike) -> Any:
    """Return the record of a block that begins at byte ``start``, to read and write, in Python and in compiled code."""
    return view_array(block, start, (1,), dtype)[0]


view_record: Callable[..., Any] = Intrinsic(lambda codegen: codegen.implement_record(_record_at), _record_at)


V = TypeVar("V", bound=NamedTuple)


@dataclass(frozen=True)
class Array:
    """A line of the table: numbers from ``low`` to ``high``, of a type of 4 bytes at least but in the last array of a table.

    ``shape`` has the length of each dimension: a number, or the name of a field of the header. An array that is not ``saved`` is
    no part of snapshots: it is scratch, which follows what is saved.
    """

    dtype: Any
    shape: tuple[str | int, ...] = (1,)
    low: float = -LARGEST
    high: float = LARGEST
    saved: bool = True


class Layout(Generic[V]):
    """The way to open and to check the blocks of a ``table``, a NamedTuple.

    ``in_lines`` are the fields of the header that are multiples of 16: arrays along them fill whole cache lines. ``sizes`` are
    those that decide the layout. ``start`` is where the first array begins; the others begin at multiples of ``line`` bytes.
    ``views`` opens a block (uint8 [nbytes]) as the table, without a copy, in Python and in compiled code, where an array that a
    caller does not use costs nothing.
    """

    def __init__(self, table: type[V], in_lines: tuple[str, ...]) -> None:
        arrays = {name: hint.__metadata__[0] for name, hint in get_type_hints(table, include_extras=True).items()}
        fields = arrays.pop("header").dtype
        self.start: int = STATE_END
        self.line: int = LINE
        self.arrays: dict[str, Array] = arrays
        self.in_lines: frozenset[str] = frozenset(in_lines)
        self.sizes: tuple[str, ...] = tuple(
            dict.fromkeys(n for array in arrays.values() for n in array.shape if isinstance(n, str))
        )
        self.header: np.dtype[np.void] = np.dtype([*((name, "i8") for name in self.sizes), *fields.descr])

        @lru_cache(maxsize=256)  # an ensemble has hundreds of stores with the same sizes
        def places(*sizes: int) -> tuple[list[tuple[tuple[int, ...], np.dtype[Any], int]], int, int]:
            # Shape, type and place of each array; where what is saved ends, and where all ends.
            named, at, saved, found = dict(zip(self.sizes, sizes, strict=True)), STATE_END, STATE_END, []
            for array in self.arrays.values():
                shape = tuple(named[n] if isinstance(n, str) else n for n in array.shape)
                at = (at + LINE - 1) // LINE * LINE
                found.append((shape, np.dtype(array.dtype), at))
                at += math.prod(shape) * np.dtype(array.dtype).itemsize
                saved = at if array.saved else saved
            return found, saved, at

        def views(block: np.ndarray) -> V:
            header = view_array(block, 0, (1,), self.header)
            arrays = places(*(int(header[0][name]) for name in self.sizes))[0]
            return table(header, *(np.ndarray(shape, dtype, block, at) for shape, dtype, at in arrays))  # type: ignore[call-overload]

        self._places = places
        name, of = table.__qualname__, [(name, array.dtype, array.shape) for name, array in arrays.items()]
        compiled_from = name, self.start, self.line, str(self.header), list(map(str, of)), sorted(in_lines)
        self.views: Callable[[np.ndarray], V] = Intrinsic(
            lambda codegen: codegen.implement_views(views, self, name), views, compiled_from
        )

    def compute_nbytes(self, sizes: Mapping[str, int], saved: bool = False) -> int:
        """Return the bytes of a block with these sizes, or of the part that is saved."""
        _, saved_end, end = self._places(*(int(sizes[name]) for name in self.sizes))
        return saved_end if saved else end

    def check(self, views: V, used: Mapping[str, int]) -> None:
        """Raise a ValueError where a saved array is corrupt: it holds a number out of its range, or one other than 0 beyond the
        part in use. ``used`` has the length in use of each dimension that may have a rest.
        """
        for name, array in self.arrays.items():
            if not array.saved:
                continue
            numbers = getattr(views, name)
            # Of NaN neither holds. Nothing is made of the numbers before one is known to be wrong.
            if numbers.size and not (numbers.min() >= array.low and numbers.max() <= array.high):
                valid = (numbers >= array.low) & (numbers <= array.high)
                raise ValueError(
                    f"the snapshot is corrupt: {name} hold {numbers[~valid][0]}, out of {array.low:g} .. {array.high:g}"
                )
            for axis, size in enumerate(array.shape):
                if size in used and numbers[(slice(None),) * axis + (slice(used[str(size)], None),)].any():
                    raise ValueError(f"the snapshot is corrupt: {name} hold numbers beyond the part in use")


class Store(Generic[V]):
    """A block of memory, allocated at construction, with room for ``columns`` features.

    The header of the layout has the fields ``columns`` and ``used``. What else is ``given`` decides the sizes, its fields that
    are fixed. There may ever be ``max_features``, at least 1; ``columns`` None is room for all of them, rounded up to a multiple
    of 16. ``within``, zeros uint8 on a cache line, is the part of a larger block that the store takes, from its start; None: it
    allocates. If there is no room, it is a ValueError whose message begins with ``what``, the sizes to blame.
    """

    _layout: ClassVar[Layout[Any]]
    #: The sizes, but for ``columns``, by the number of columns and what is given.
    _compute_sizes: ClassVar[Callable[..., dict[str, int]]]
    #: What it saves, in words, where a snapshot has another number of bytes.
    _saves: ClassVar[str] = "that saves {:,}"

    def __init__(
        self, max_features: int, what: str, within: np.ndarray | None = None, columns: int | None = None, **given: int
    ) -> None:
        check_size("max_features", max_features, 1)
        layout = self._layout
        self.columns: int = resolve_columns(max_features, columns)
        self.max_features: int = min(int(max_features), self.columns)
        sizes = {**self._compute_sizes(self.columns, **given), "columns": self.columns}
        #: The whole store as one array, uint8 [nbytes], which compiled functions take.
        self.block: np.ndarray = (
            allocate_block(layout.compute_nbytes(sizes), what) if within is None else within[: layout.compute_nbytes(sizes)]
        )
        self._saved = self.block[: layout.compute_nbytes(sizes, saved=True)]
        self._header = self.block[: layout.header.itemsize].view(layout.header)
        for name, size in sizes.items():
            self._header[name] = size
        #: The arrays inside the block.
        self.views: V = layout.views(self.block)

    @classmethod
    def compute_nbytes(cls, columns: int, **given: int) -> int:
        """Return the ``nbytes`` of a store with so many columns, for which the same is given."""
        return cls._layout.compute_nbytes({**cls._compute_sizes(columns, **given), "columns": columns})

    @property
    def nbytes(self) -> int:
        """Bytes of the block, by the formula of the class."""
        return self.block.nbytes

    def copy_from(self, other: Any) -> None:
        """Become a copy of a store with other outputs or columns; the numbers of those that it lacks stay as they are.

        The store has at least those that are in use.
        """
        if all(other._header[name] == self._header[name] for name in self._layout.sizes):
            self.block[:] = other.block
            return
        sizes = self._header.copy()
        self.block[:STATE_END] = other.block[:STATE_END]
        for name in self._layout.sizes:
            self._header[name] = sizes[name]
        for name, array in self._layout.arrays.items():
            if array.saved:
                theirs, ours = getattr(other.views, name), getattr(self.views, name)
                both = tuple(map(slice, map(min, theirs.shape, ours.shape)))
                ours[both] = theirs[both]

    def snapshot(self) -> bytes:
        """Return all that the store holds as bytes: one copy. Equal stores give equal bytes."""
        return self._saved.tobytes()

    def restore(self, snapshot: bytes, trusted: bool = False) -> None:
        """Restore a `snapshot` of a store of the same sizes. Nothing changes unless all of it is valid.

        A ``trusted`` one has never left this process, and needs no check. Otherwise it is a ValueError if it is of another size
        or layout, or corrupt; the state of a learner is for the learner to check.
        """
        size = len(self._saved)
        if len(snapshot) != size:
            raise ValueError(f"a snapshot of {len(snapshot):,} bytes does not fit a store {self._saves.format(size)}")
        block = np.zeros_like(self.block)  # pages of it that nothing writes to cost nothing
        block[:size] = np.frombuffer(snapshot, np.uint8)
        if not trusted:
            self._check_block(block)
        self._saved[:] = block[:size]
        if "cache" in self._layout.arrays:
            self.views.cache["valid"] = 0  # type: ignore[attr-defined]

    def _check_block(self, block: np.ndarray) -> None:
        """Raise a ValueError where a block is corrupt: compiled code trusts the counts, indices and orders in it."""
        raise NotImplementedError

    def _read_header(self, block: np.ndarray, names: Iterable[str]) -> Any:
        """Return the header of a block; a ValueError where one of these sizes is another one."""
        header = block[: self._header.nbytes].view(self._header.dtype)[0]
        self._check_sizes(header, names)
        return header

    def _check_sizes(self, header: Any, names: Iterable[str]) -> None:
        for name in names:
            if header[name] != self._header[name][0]:
                raise ValueError(f"the snapshot's {name} is {header[name]}, the store's {self._header[name][0]}")

    @property
    def used(self) -> int:
        """The number of columns that have a feature."""
        return int(self._header["used"][0])

    @used.setter
    def used(self, columns: int) -> None:
        self._header["used"] = columns


W = TypeVar("W", bound=Any)  # a table with ``vectors`` and ``cache``


class VectorStore(Store[W]):
    """A `Store` whose header has the fields ``budget``, ``n_support`` and ``n_outputs`` too."""

    _saves = "whose snapshots have {:,} bytes: it is of a model with other sizes or labels, or cut off"

    @property
    def budget(self) -> int:
        """The most vectors between two rows."""
        return int(self._header["budget"][0])

    @property
    def n_support(self) -> int:
        """The number of vectors."""
        return int(self._header["n_support"][0])

    @property
    def n_outputs(self) -> int:
        """The number of outputs in use; of support vectors, of rows of coefficients, two for each output."""
        return int(self._header["n_outputs"][0])

    @n_outputs.setter
    def n_outputs(self, rows: int) -> None:
        self._header["n_outputs"] = rows

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the vectors, float32 [n_support, used]."""
        return np.ascontiguousarray(self.views.vectors[: self.used, : self.n_support].T)

    def _check_header(self, block: np.ndarray, what: str, least_live: int, ranges: Mapping[str, tuple[float, float]]) -> Any:
        """Return the header of a block; a ValueError where its sizes are others, or a number is out of its range."""
        h = self._read_header(block, ("budget", *self._layout.sizes))
        n, used, live = int(h["n_support"]), int(h["used"]), int(h["n_outputs"])
        if not (0 <= n <= self.budget and 0 <= used <= self.max_features and least_live <= live <= int(h["outputs"])):
            raise ValueError(f"a snapshot with {n} {what}, {used} features and {live} outputs does not fit the store")
        for name, (low, high) in ranges.items():
            if not low <= h[name] <= high:
                raise ValueError(f"the snapshot is corrupt: its {name} is {h[name]}")
        return h
