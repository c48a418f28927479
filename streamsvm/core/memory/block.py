"""Blocks of memory: all arrays of a model in one contiguous array of bytes, for Python and for compiled code.

A compiled function takes a block as one argument, and opens the arrays that it uses. A table lists the arrays of a kind of model,
and `Layout` derives their offsets, shapes and allowed values from it.

The table is a NamedTuple whose fields are annotated with an `Array` each. Its first field is the header, a record at the start of
the block with the sizes of dimensions and the scalars that the table lists. The learner's state follows, up to `STATE_END`, and
then the other arrays in their order, each aligned to a cache line.
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

#: The bytes of a block with the learner's state: its step counter, schedule, random state and statistics.
STATE_BEGIN, STATE_END = 128, 384

#: Bytes of a cache line. Every array of a block starts at a multiple of it.
LINE = 64

#: Upper limit of most numbers in a model.
LARGEST = 1e100
#: Upper limit of coefficients after a projection. Without it, projections between short and long vectors could grow them forever.
LARGEST_COEFFICIENT = 1e40


def allocate_block(size: int, parameters: str) -> np.ndarray:
    """Return a new array of zeros, uint8 [``size``], aligned to a cache line, as the memory of a model. Raises ValueError if
    there is not enough memory. ``parameters`` is text that begins the error message: it names the parameters that the user
    should lower.
    """
    try:
        memory = np.zeros(size + LINE, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"{parameters} need {size:,} bytes, more than this machine has: lower one of them") from error
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def check_size(name: str, size: object, minimum: int) -> None:
    """Raise ValueError unless ``size`` is an integer from ``minimum`` to 2^31 - 1. The message contains ``name``, the parameter
    that has this value.
    """
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not minimum <= size < 2**31:
        raise ValueError(f"{name} must be an integer between {minimum} and 2^31 - 1, not {size!r}")


def round_up_to_lines(n: int) -> int:
    """Return ``n``, a number of 4-byte values, rounded up to a multiple of 16, so that they fill whole cache lines of 64
    bytes.
    """
    return (4 * n + LINE - 1) // LINE * LINE // 4


def choose_columns(features: int, max_features: int) -> int:
    """Return the number of feature columns to allocate in a model's memory for a number of ``features``: the next power of two,
    at least 2. It is at most ``max_features``, rounded up to a multiple of 16.

    So a growing block is copied a few times only, and equal models have equal blocks.

    >>> [choose_columns(features, 20) for features in (0, 2, 3, 8, 9, 17, 20)]
    [2, 2, 4, 8, 16, 32, 32]
    """
    return min(max(1 << max(features - 1, 0).bit_length(), 2), round_up_to_lines(max_features))


def resolve_columns(max_features: int, columns: int | None) -> int:
    """Return ``columns``, the number of feature columns to allocate, or if it is None the maximum: ``max_features``, rounded up
    to a multiple of 16.
    """
    return round_up_to_lines(int(max_features)) if columns is None else columns


def view_array(block: np.ndarray, start: int, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return a part of a model's memory ``block`` (uint8 [bytes]) as an array with this ``shape`` and ``dtype``, without a copy.
    The part begins at byte ``start``.
    """
    dtype = np.dtype(dtype)
    return block[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _view_record(block: np.ndarray, start: int, dtype: np.typing.DTypeLike) -> Any:
    """Return a part of a model's memory ``block`` (uint8 [bytes]) as a record of the structured ``dtype``, without a copy. The
    part begins at byte ``start``. It works in Python and in compiled code.
    """
    return view_array(block, start, (1,), dtype)[0]


view_record: Callable[..., Any] = Intrinsic(lambda codegen: codegen.implement_record(_view_record), _view_record)


V = TypeVar("V", bound=NamedTuple)


@dataclass(frozen=True)
class Array:
    """The declaration of an array in a table: its dtype, shape, and the range of its values, ``low`` to ``high``.

    ``shape`` contains the length of each dimension, an integer or the name of a header field. An array that is not ``saved`` is
    scratch memory, which comes after all saved arrays and is not part of snapshots. Items have at least 4 bytes, except in the
    last array of a table.
    """

    dtype: Any
    shape: tuple[str | int, ...] = (1,)
    low: float = -LARGEST
    high: float = LARGEST
    saved: bool = True


class Layout(Generic[V]):
    """The memory layout of the blocks of a ``table``, a NamedTuple; it opens and checks such blocks.

    Attributes: ``sizes`` are the names of the header fields that determine the layout. ``in_lines`` are those whose values are
    multiples of 16, so that arrays along them fill whole cache lines. ``start`` is the offset of the first array after the
    header; arrays are aligned to ``line`` bytes. ``views`` opens a block (uint8 [nbytes]) as an instance of the table, without a
    copy, in Python and in compiled code, where unused arrays cost nothing.
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
        #: The header fields that are fixed when a store is created.
        self.fixed_fields: tuple[str, ...] = (*self.sizes, *({"budget", "columns", "extra_columns"} & {*(fields.names or ())}))

        @lru_cache(maxsize=256)  # an ensemble has hundreds of stores with the same sizes
        def compute_offsets(*sizes: int) -> tuple[list[tuple[tuple[int, ...], np.dtype[Any], int]], int, int]:
            """Compute the layout of a memory block (one byte array that contains several arrays) whose dimensions have these
            ``sizes``. Returns a tuple: a list of (shape, dtype, byte offset) of the arrays; the byte offset where the saved
            arrays end; the size of the block in bytes.
            """
            size_of, offset, saved_end, entries = dict(zip(self.sizes, sizes, strict=True)), STATE_END, STATE_END, []
            for array in self.arrays.values():
                shape = tuple(size_of[n] if isinstance(n, str) else n for n in array.shape)
                offset = (offset + LINE - 1) // LINE * LINE
                entries.append((shape, np.dtype(array.dtype), offset))
                offset += math.prod(shape) * np.dtype(array.dtype).itemsize
                saved_end = offset if array.saved else saved_end
            return entries, saved_end, offset

        def views(block: np.ndarray) -> V:
            """Return the arrays inside a model's memory ``block`` (uint8 [bytes]) as a NamedTuple of views, without copies.
            Their shapes are read from the header at the start of the block.
            """
            header = view_array(block, 0, (1,), self.header)
            entries = compute_offsets(*(int(header[0][name]) for name in self.sizes))[0]
            return table(header, *(np.ndarray(shape, dtype, block, at) for shape, dtype, at in entries))  # type: ignore[call-overload]

        self._compute_offsets = compute_offsets
        name, declared = table.__qualname__, [(name, array.dtype, array.shape) for name, array in arrays.items()]
        compiled_from = name, self.start, self.line, str(self.header), list(map(str, declared)), sorted(in_lines)
        self.views: Callable[[np.ndarray], V] = Intrinsic(
            lambda codegen: codegen.implement_views(views, self, name), views, compiled_from
        )

    def compute_nbytes(self, sizes: Mapping[str, int], saved: bool = False) -> int:
        """Return the size in bytes of a memory block with this layout, or with ``saved`` of its part that snapshots contain.
        ``sizes`` maps the names of dimensions to their lengths.
        """
        _, saved_end, stop = self._compute_offsets(*(int(sizes[name]) for name in self.sizes))
        return saved_end if saved else stop

    def check(self, views: V, used: Mapping[str, int]) -> None:
        """Raise ValueError if an array of a memory block that was read from a file has a value out of its valid range, or has a
        value other than 0 in a part that is not in use. ``views`` are the arrays of the block; ``used`` maps the name of a
        dimension to the length in use. Scratch arrays are not checked.

        ``used`` maps the names of dimensions to the length that is in use. Other dimensions are used completely.
        """
        for name, array in self.arrays.items():
            if not array.saved:
                continue
            numbers = getattr(views, name)
            # Both comparisons are False for NaN. The mask is made only if a number is invalid.
            if numbers.size and not (numbers.min() >= array.low and numbers.max() <= array.high):
                valid = (numbers >= array.low) & (numbers <= array.high)
                raise ValueError(
                    f"the snapshot is corrupt: {name} hold {numbers[~valid][0]}, out of {array.low:g} .. {array.high:g}"
                )
            for axis, size in enumerate(array.shape):
                if size in used and numbers[(slice(None),) * axis + (slice(used[str(size)], None),)].any():
                    raise ValueError(f"the snapshot is corrupt: {name} hold numbers beyond the part in use")


class Store(Generic[V]):
    """The base class of stores: a model's memory block with room for ``columns`` features, and its arrays.

    ``max_features``, at least 1, limits the number of features. ``columns=None`` is room for all of them, rounded up to a
    multiple of 16. The sizes of the layout, fixed header fields, follow from ``columns`` and ``parameters``. The store uses the
    start of ``within``, aligned zeros in a larger block, or allocates its own block if None. Raises ValueError if memory is
    exhausted; its message begins with ``shown_parameters``.
    """

    _layout: ClassVar[Layout[Any]]
    #: Returns the sizes, except ``columns``, from the number of columns and the parameters.
    _compute_sizes: ClassVar[Callable[..., dict[str, int]]]
    #: Whether snapshots contain only the columns in use, without gaps between arrays.
    is_compact: ClassVar[bool] = False
    #: Describes the store in the error about a snapshot of another size in bytes.
    _size_description: ClassVar[str] = "that saves {:,}"

    def __init__(
        self,
        max_features: int,
        shown_parameters: str,
        within: np.ndarray | None = None,
        columns: int | None = None,
        **parameters: int,
    ) -> None:
        check_size("max_features", max_features, 1)
        layout = self._layout
        self.columns: int = resolve_columns(max_features, columns)
        self.max_features: int = min(int(max_features), self.columns)
        sizes = {**self._compute_sizes(self.columns, **parameters), "columns": self.columns}
        nbytes = layout.compute_nbytes(sizes)
        #: The whole store as one array, uint8 [nbytes], the argument of compiled functions.
        self.block: np.ndarray = allocate_block(nbytes, shown_parameters) if within is None else within[:nbytes]
        self._saved = self.block[: layout.compute_nbytes(sizes, saved=True)]
        self._header = self.block[: layout.header.itemsize].view(layout.header)
        for name, size in sizes.items():
            self._header[name] = size
        #: The arrays inside the block.
        self.views: V = layout.views(self.block)

    @classmethod
    def compute_nbytes(cls, columns: int, **parameters: int) -> int:
        """Return the size in bytes of a memory of this class with ``columns`` features and these ``parameters`` (such as budget
        and outputs), without creating it.
        """
        return cls._layout.compute_nbytes({**cls._compute_sizes(columns, **parameters), "columns": columns})

    @property
    def nbytes(self) -> int:
        """The size of this memory block in bytes. The docstring of the class has the formula."""
        return self.block.nbytes

    def copy_from(self, source: Any) -> None:
        """Copy the contents of ``source`` into this model's memory. ``source`` is a memory of the same class; at most as many of
        its columns and outputs may be in use as this one has. Columns and outputs that it lacks stay unchanged here.
        """
        sizes = self._header.copy()
        self.block[:STATE_END] = source.block[:STATE_END]
        for name in self._layout.fixed_fields:
            self._header[name] = sizes[name]
        for name, array in self._layout.arrays.items():
            if array.saved:
                theirs, ours = getattr(source.views, name), getattr(self.views, name)
                shared = tuple(map(slice, map(min, theirs.shape, ours.shape)))
                ours[shared] = theirs[shared]

    def snapshot(self) -> bytes:
        """Return a copy of the saved part of this model's memory as bytes. Equal contents give equal bytes."""
        return self._saved.tobytes()

    def restore(self, snapshot: bytes, trusted: bool = False) -> None:
        """Replace the contents of this model's memory by ``snapshot``, bytes that `snapshot` of a memory with the same sizes
        returned. Raises ValueError, and changes nothing, if the bytes are corrupt. ``trusted`` (for bytes that were made in this
        process) limits the check to their length.

        The learner checks its own state.
        """
        size = len(self._saved)
        if len(snapshot) != size:
            raise ValueError(f"a snapshot of {len(snapshot):,} bytes does not fit a store {self._size_description.format(size)}")
        block = np.zeros_like(self.block)  # the operating system does not allocate pages that are never written
        block[:size] = np.frombuffer(snapshot, np.uint8)
        if not trusted:
            self._check_block(block)
        self._saved[:] = block[:size]
        if "cache" in self._layout.arrays:
            self.views.cache["valid"] = 0  # type: ignore[attr-defined]

    def _check_block(self, block: np.ndarray) -> None:
        """Raise ValueError if ``block``, the bytes of a model's memory that were read from a file, are corrupt. This protects
        compiled code, which uses the counts and indices in it without checks.
        """
        raise NotImplementedError

    def _read_header(self, block: np.ndarray, names: Iterable[str]) -> Any:
        """Return the header of ``block``, the bytes of a model's memory that were read from a file, as a numpy record. Raises
        ValueError if a header field listed in ``names`` (a size, such as ``"budget"``) differs from that of this model's memory.
        """
        header = block[: self._header.nbytes].view(self._header.dtype)[0]
        for name in names:
            if header[name] != self._header[name][0]:
                raise ValueError(f"the snapshot's {name} is {header[name]}, the store's {self._header[name][0]}")
        return header

    @property
    def used(self) -> int:
        """The number of feature columns in use in this model's memory: one for each feature seen."""
        return int(self._header["used"][0])

    @used.setter
    def used(self, columns: int) -> None:
        self._header["used"] = columns


W = TypeVar("W", bound=Any)  # a table with ``vectors`` and ``cache``


class VectorStore(Store[W]):
    """The base class of stores of vectors. Its header has the fields ``budget``, ``n_support`` and ``n_outputs``, too."""

    _size_description = "whose snapshots have {:,} bytes: it is of a model with other sizes or labels, or cut off"

    @property
    def budget(self) -> int:
        """The maximum number of support vectors (or landmarks) that this model keeps."""
        return int(self._header["budget"][0])

    @property
    def n_support(self) -> int:
        """The current number of support vectors (or landmarks) of this model."""
        return int(self._header["n_support"][0])

    @property
    def n_outputs(self) -> int:
        """The number of rows of coefficients in use in this model's memory. In most classes it is the number of decision values;
        in `SupportVectorStore` it is twice that, because the last and the average iterate both have a row.
        """
        return int(self._header["n_outputs"][0])

    @n_outputs.setter
    def n_outputs(self, count: int) -> None:
        self._header["n_outputs"] = count

    @property
    def vectors(self) -> np.ndarray:
        """A copy of the support vectors (or landmarks) of this model, float32 [n_support, features in use]."""
        return np.ascontiguousarray(self.views.vectors[: self.used, : self.n_support].T)

    def _check_header(self, block: np.ndarray, vectors: str, min_outputs: int, ranges: Mapping[str, tuple[float, float]]) -> Any:
        """Return the header of ``block``, the bytes of a model's memory that were read from a file, as a numpy record. Raises
        ValueError if its sizes differ from those of this memory, if it has fewer outputs than ``min_outputs``, or if a field is
        out of its range: ``ranges`` maps names to (minimum, maximum). ``vectors`` is what messages call the vectors.
        """
        h = self._read_header(block, ("budget", *self._layout.sizes))
        n, used, n_outputs = int(h["n_support"]), int(h["used"]), int(h["n_outputs"])
        if not (0 <= n <= self.budget and 0 <= used <= self.max_features and min_outputs <= n_outputs <= int(h["outputs"])):
            raise ValueError(f"a snapshot with {n} {vectors}, {used} features and {n_outputs} outputs does not fit the store")
        for name, (low, high) in ranges.items():
            if not low <= h[name] <= high:
                raise ValueError(f"the snapshot is corrupt: its {name} is {h[name]}")
        return h
