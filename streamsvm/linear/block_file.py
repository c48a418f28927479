"""Reading block files: rows on disk for out-of-core fits, written once and read many times, one block at a time.

Layout, little-endian: a header of 64 bytes; blocks, each aligned to 64 bytes; the index, 32 bytes per block; and JSON with
statistics of labels and weights. A block consists of these arrays: labels (float64); row numbers (uint64), if the rows are copies
of some rows of another file; weights above 0 (float64), if the file has weights; for sparse rows, the offset of each row's first
value (uint32, one more than rows) and the feature of each value (uint32, ascending within a row); values (float32). The header is
written last, and the file gets its name when it is complete on disk. Files without weights have version 1, others version 2. The
JSON also contains the names of columns and classes. Labels that are names are stored as indices into the list of classes.
"""

from __future__ import annotations

import itertools
import json
import math
import os
import struct
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.features import LONGEST_NAME
from streamsvm.core.warning import warn

# The layout, shared with `BlockWriter`.
MAGIC = b"svmrows\n"
VERSION, VERSION_WITHOUT_WEIGHTS = 2, 1
FLAG_ROW_NUMBERS, FLAG_WEIGHTS = 1, 2  # flags
# Magic, version, dense (0 or 1), flags, rows, features, blocks, start and end of index and JSON, and their CRC-32.
HEADER = struct.Struct("<8sIHHQQQQQI")
CRC_STRUCT = struct.Struct("<I")  # of the header, which it follows
ALIGNMENT_BYTES = 64
INDEX_DTYPE = np.dtype(
    [("offset", "<u8"), ("first_row", "<u8"), ("rows", "<u4"), ("values", "<u4"), ("crc", "<u4"), ("spare", "<u4")]
)
PART_DTYPES = ("<f8", "<u8", "<f8", "<u4", "<u4", "<f4")  # labels, row numbers, weights, starts, indices and values
MAX_FEATURES = 2**31 - 1
_MAX_ROWS = 2**53
MAX_JSON_BYTES = 2**26
MAX_BLOCK_BYTES = 2**30  # a block is larger than usual only if it has a single large row


class BlockFileError(ValueError):
    """Raised if a file is not a block file, or is corrupt, truncated or changed."""


class Block(NamedTuple):
    """The rows of one block of a block file."""

    first_row: int
    """Index of the first row in the file."""
    labels: np.ndarray
    """Labels or targets, float64 [rows]."""
    row_numbers: np.ndarray
    """Row numbers in the file that the rows were copied from, uint64 [rows]; empty if they are not copies."""
    starts: np.ndarray
    """Offset of each row's first value in ``values``, uint32 [rows + 1]; empty if rows are dense."""
    indices: np.ndarray
    """The feature of each value, uint32 [values]; empty if rows are dense."""
    values: np.ndarray
    """The values, float32 [values]; for dense rows [rows * features]."""
    weights: np.ndarray = np.empty(0)
    """Weights of the rows, float64 [rows], above 0; empty if all are 1."""


def is_block_file(path: Path) -> bool:
    """Return whether ``path`` is an existing file in the block file format of this package (training rows in binary blocks), by
    its first bytes.
    """
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except FileNotFoundError:
        return False


class BlockFile:
    """A block file, open for reading one block at a time.

    Only blocks that you keep are in memory. The file is read instead of mapped, because a signal would end the process if a
    mapped file were truncated meanwhile.

    Parameters
    ----------
    path
        Path of the file.

    Attributes
    ----------
    path : Path
        Path of the file.
    shape : tuple of int
        Number of rows and of features.
    dense : bool
        Whether rows are stored with all their features.
    has_row_numbers : bool
        Whether rows have row numbers, because they are copies of some rows of another file.
    weighted : bool
        Whether rows have weights.
    weights : tuple of float
        The smallest, the largest and the mean weight; all are 1 if rows have no weights.
    label_counts : dict of float to int, or None
        Number of rows of each label; None if there are more than 64 labels.
    label_weights : dict of float to float, or None
        Sum of the weights of each label's rows.
    mean_square : float
        Mean of the squared norms of the rows.
    mean_label : float
        Mean of the absolute values of the labels.
    meta : dict
        Additional JSON data that the writer stored, such as names of columns and classes.
    nbytes : int
        Size of the file in bytes.
    largest_block : int
        Size of the largest block in bytes.

    Raises
    ------
    BlockFileError
        The file is not a block file, or it is corrupt or truncated; the message names the problem.
    OSError
        The file cannot be read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path: Path = Path(path)
        self._file = self.path.open("rb", buffering=0)
        try:
            self._open_file()
        except BaseException:
            self._file.close()
            raise

    def _open_file(self) -> None:
        self._stat_at_opening = self._read_file_stat()
        self.nbytes: int = self._stat_at_opening[0]
        header = self._file.read(ALIGNMENT_BYTES)
        if len(header) < ALIGNMENT_BYTES or not header.startswith(MAGIC):
            raise BlockFileError(f"{self.path} is not a block file")
        _, version, dense, flags, rows, features, blocks, index_start, index_end, crc = HEADER.unpack_from(header)
        if CRC_STRUCT.unpack_from(header, HEADER.size)[0] != zlib.crc32(header[: HEADER.size]):
            raise BlockFileError(f"{self.path} is corrupt: its header does not match its checksum")
        if not VERSION_WITHOUT_WEIGHTS <= version <= VERSION:
            raise BlockFileError(
                f"{self.path} is a block file of version {version}; this version of streamsvm reads versions up to {VERSION}"
            )
        index_bytes = blocks * INDEX_DTYPE.itemsize
        if index_end != self.nbytes:
            raise BlockFileError(f"{self.path} is truncated or has grown: {self.nbytes:,} bytes instead of {index_end:,}")
        contradiction = BlockFileError(f"{self.path} is corrupt: its index contradicts itself")
        json_start = index_start + index_bytes
        if not (ALIGNMENT_BYTES <= index_start <= json_start <= index_end and index_end - json_start <= MAX_JSON_BYTES):
            raise contradiction
        self._file.seek(index_start)
        data = self._file.read(index_end - index_start)
        if zlib.crc32(data) != crc:
            raise BlockFileError(f"{self.path} is corrupt: its index does not match its checksum")
        self.shape: tuple[int, int] = (rows, features)
        self.dense: bool = bool(dense)
        self.has_row_numbers: bool = bool(flags & FLAG_ROW_NUMBERS)
        self.weighted: bool = version == VERSION and bool(flags & FLAG_WEIGHTS)
        self._index, self._crc = np.frombuffer(data[:index_bytes], INDEX_DTYPE), crc
        self._checked = np.zeros(blocks, bool)
        lengths = self._index["rows"].astype(np.int64)
        values = self._index["values"].astype(np.int64)
        sizes = (
            8 * (1 + self.has_row_numbers + self.weighted) * lengths
            + 4 * values
            + (0 if self.dense else 4 * (lengths + 1 + values))
        )
        offsets = self._index["offset"].astype(np.float64)  # sums of floats cannot overflow
        valid = (offsets[1:] >= offsets[:-1] + sizes[:-1]).all() and (not blocks or offsets[-1] + sizes[-1] <= index_start)
        valid = valid and (offsets >= ALIGNMENT_BYTES).all() and (self._index["offset"] % ALIGNMENT_BYTES == 0).all()
        valid = valid and lengths.sum() == rows <= _MAX_ROWS
        valid = valid and (self._index["first_row"] == np.cumsum(lengths) - lengths).all()
        valid = valid and features <= MAX_FEATURES and (not self.dense or (values == lengths * features).all())
        if not (valid and (lengths > 0).all()):
            raise contradiction
        self._sizes = sizes
        self.largest_block: int = int(sizes.max(initial=0))
        try:
            statistics = json.loads(data[index_bytes:])
            self.meta: dict[str, Any] = dict(statistics["meta"])
            self.mean_square: float = float(statistics["mean_square"])
            self.mean_label: float = float(statistics["mean_label"])
            counts: Any = statistics["labels"]
            self.label_counts: dict[float, int] | None = None if counts is None else {float(y): int(n) for y, n in counts}
            smallest, largest, mean = statistics["weights"] if self.weighted else (1.0, 1.0, 1.0)
            self.weights: tuple[float, float, float] = (float(smallest), float(largest), float(mean))
            sums = (
                statistics["label_weights"] if self.weighted and counts is not None else list((self.label_counts or {}).values())
            )
            pairs = zip(self.label_counts or (), sums, strict=True)
            self.label_weights: dict[float, float] | None = None if counts is None else {y: float(total) for y, total in pairs}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise contradiction from error
        valid = self.label_counts is None or (
            all(math.isfinite(label) and count > 0 for label, count in self.label_counts.items())
            and sum(self.label_counts.values()) == rows
        )
        smallest, largest, mean = self.weights
        valid = valid and 0.0 < smallest <= largest < math.inf and 0.0 < mean < math.inf
        valid = valid and all(0.0 < weight < math.inf for weight in (self.label_weights or {}).values())
        if not (valid and all(0.0 <= mean < math.inf for mean in (self.mean_square, self.mean_label))):
            raise contradiction

    @property
    def signature(self) -> list[int]:
        """The integers that let a fit recognise an unchanged block file: numbers of rows and features, size in bytes
        and checksum.
        """
        return [*self.shape, self.nbytes, self._crc]

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._index)

    def read_block(self, number: int) -> Block:
        """Read block ``number`` (from 0) of this file, a part of its rows that fits into memory, and return the rows with their
        labels and weights.

        The first time, the checksum and the values are checked. Every time, the indices are checked, so that compiled code
        never reads outside the arrays.

        Raises
        ------
        BlockFileError
            The block is corrupt, or the file was changed since it was opened.
        """
        offset, first_row, n, n_values, crc, _ = self._index[number].item()
        data = np.empty(self._sizes[number], np.uint8)
        self._file.seek(offset)
        if self._file.readinto(data.data) != len(data) or self._read_file_stat() != self._stat_at_opening:
            raise BlockFileError(f"{self.path} was changed while it was read")
        sparse_sizes = (0, 0) if self.dense else (4 * (n + 1), 4 * n_values)
        sizes = [8 * n, 8 * n * self.has_row_numbers, 8 * n * self.weighted, *sparse_sizes, 4 * n_values]
        stops = itertools.accumulate(sizes)
        labels, row_numbers, weights, starts, indices, values = (
            data[stop - size : stop].view(dtype) for stop, size, dtype in zip(stops, sizes, PART_DTYPES, strict=True)
        )
        valid = self.dense or _are_valid_rows(starts, indices, self.shape[1], not self._checked[number])
        if not self._checked[number]:
            valid = valid and zlib.crc32(data.data) == crc and np.isfinite(labels).all() and np.isfinite(values).all()
            valid = valid and bool(((weights >= self.weights[0]) & (weights <= self.weights[1])).all())
        if not valid:
            raise BlockFileError(f"{self.path} is corrupt: block {number:,} is not what was written")
        self._checked[number] = True
        return Block(first_row, labels, row_numbers, starts, indices, values, weights)

    def read_all(self) -> Block:
        """Read all rows of this file into memory, and return them as one block."""
        n, n_values = self.shape[0], int(self._index["values"].sum())
        n_sparse = 0 if self.dense else n_values
        labels, row_numbers, weights = np.empty(n), np.empty(n * self.has_row_numbers, np.uint64), np.empty(n * self.weighted)
        starts, indices = np.zeros(0 if self.dense else n + 1, np.uint32), np.empty(n_sparse, np.uint32)
        rows = Block(0, labels, row_numbers, starts, indices, np.empty(n_values, np.float32), weights)
        start = 0  # index of the block's first value
        for block in map(self.read_block, range(len(self))):
            first, last, stop = block.first_row, block.first_row + len(block.labels), start + len(block.values)
            labels[first:last] = block.labels
            if self.has_row_numbers:
                row_numbers[first:last] = block.row_numbers
            if self.weighted:
                weights[first:last] = block.weights
            if not self.dense:
                starts[first + 1 : last + 1] = block.starts[1:] + np.uint32(start)
                indices[start:stop] = block.indices
            rows.values[start:stop] = block.values
            start = stop
        return rows

    def prefetch_block(self, number: int) -> None:
        """Ask the operating system to read block ``number`` of this file into its cache in the background, if it supports
        that.
        """
        if hasattr(os, "posix_fadvise"):
            offset, size = int(self._index["offset"][number]), int(self._sizes[number])
            os.posix_fadvise(self._file.fileno(), offset, size, os.POSIX_FADV_WILLNEED)

    def _read_file_stat(self) -> tuple[int, int]:
        """Return the size in bytes and the modification time in nanoseconds of the open file, to detect that another process
        writes to it.
        """
        stat = os.fstat(self._file.fileno())
        return stat.st_size, stat.st_mtime_ns

    def close(self) -> None:
        """Close this block file. Blocks that were read remain usable."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@compiled
def _are_valid_rows(starts: np.ndarray, indices: np.ndarray, features: int, check_order: bool) -> bool:
    """Return whether the arrays of a CSR matrix from a file are valid, so that compiled code can use them without bounds checks.
    The row positions ``starts`` must ascend, and all column ``indices`` be below ``features``, the number of features. With
    ``check_order``, indices must also ascend within each row.
    """
    if starts[0] != 0 or starts[-1] != len(indices):
        return False
    for i in range(len(starts) - 1):
        if starts[i] > starts[i + 1]:
            return False
    largest = np.uint32(0)
    for k in range(len(indices)):
        largest = max(largest, indices[k])
    if len(indices) and largest >= features:
        return False
    if check_order:
        for i in range(len(starts) - 1):
            for k in range(np.int64(starts[i]) + 1, np.int64(starts[i + 1])):
                if indices[k] <= indices[k - 1]:
                    return False
    return True


def select_rows(block: Block, rows: np.ndarray) -> Block:
    """Return copies of the rows at the positions ``rows``, int64, of ``block`` (arrays of consecutive rows of a file), with their
    labels, weights and row numbers, as a new block.
    """
    labels, row_numbers, weights = (
        part[rows] if len(part) else part for part in (block.labels, block.row_numbers, block.weights)
    )
    if not len(block.starts):
        values = block.values.reshape(len(block.labels), -1)[rows].reshape(-1)
        return Block(0, labels, row_numbers, block.starts, block.indices, values, weights)
    starts = np.zeros(len(rows) + 1, np.uint32)
    np.cumsum(block.starts[rows + 1] - block.starts[rows], out=starts[1:])
    indices, values = np.empty(starts[-1], np.uint32), np.empty(starts[-1], np.float32)
    _copy_rows(block, rows, starts, indices, values)
    return Block(0, labels, row_numbers, starts, indices, values, weights)


@compiled
def _copy_rows(block: Block, rows: np.ndarray, starts: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    # Copies sparse rows into ``indices`` and ``values``.
    for i in range(len(rows)):
        start, stop = block.starts[rows[i]], block.starts[rows[i] + 1]
        indices[starts[i] : starts[i + 1]] = block.indices[start:stop]
        values[starts[i] : starts[i + 1]] = block.values[start:stop]


_JSON_RESERVE_BYTES = 2**20  # of the JSON of a block file, for everything except names


def read_feature_names(meta: Mapping[str, Any], n_features: int) -> list[str] | None:
    """Return the feature names in ``meta``, the JSON data of a block file, as a list. Return None unless they are ``n_features``
    different strings.
    """
    names = meta.get("names")
    if not isinstance(names, list) or len(names) != n_features or not _are_storable(names):
        return None
    return names if all(isinstance(name, str) for name in names) else None


def read_index_base(meta: Mapping[str, Any]) -> int | None:
    """Return the index of the first feature in the original data, 0 or 1, which ``meta``, the JSON data of a block file,
    contains. Return None if the features have names or the value is invalid.
    """
    base = meta.get("index_base", 0)
    return base if "names" not in meta and type(base) is int and base in (0, 1) else None


def get_storable_names(names: list[Any]) -> list[Any] | None:
    """Return the list of feature ``names`` unchanged if a block file can store it, otherwise None: names must be different
    strings or integers. Also return None, and warn, if they are too long in total.
    """
    if not _are_storable(names):
        return None
    if sum(len(str(name)) for name in names) < MAX_JSON_BYTES and len(json.dumps(names)) < MAX_JSON_BYTES - _JSON_RESERVE_BYTES:
        return names
    warn("the feature names are too long to be stored in the block file: to_online will need feature_names=")
    return None


def _are_storable(names: list[Any]) -> bool:
    return all(type(name) in (str, int) for name in names) and len(set(names)) == len(names)


#: Maximum number of classes: with more distinct labels, they are targets.
MAX_CLASSES = 64


class LabelEncoder:
    """Encodes labels as floats: numbers as themselves, and names as indices in order of their first occurrence."""

    def __init__(self) -> None:
        self._codes: dict[str, float] = {}
        self.has_numeric_labels: bool = False
        """Whether a numeric label has been encoded; names are refused from then on."""

    @property
    def meta(self) -> dict[str, Any]:
        """The data that a block file must store to decode these labels: a dictionary with the list of class names. Empty if
        labels are numbers.
        """
        return {"classes": list(self._codes)} if self._codes else {}

    def encode_label(self, label: Any) -> float:
        """Return the number that stands for ``label`` in a block file: a number as float, and a name as its index, in the order
        of first occurrence.

        Raises ValueError if it is missing, if names and numbers are mixed, or if there are more than 64 names.
        """
        if label is None or label == "":
            raise ValueError("the label is missing: leave the row out")
        if isinstance(label, str):
            if self.has_numeric_labels:
                raise ValueError(f"label {label!r} is a name, but earlier labels are numbers")
            if label not in self._codes:
                if len(label) > LONGEST_NAME:
                    raise ValueError(f"label {label[:60]!r}... has {len(label):,} characters; the limit is {LONGEST_NAME:,}")
                if len(self._codes) == MAX_CLASSES:
                    raise ValueError(f"label {label!r} exceeds the limit of {MAX_CLASSES} names")
                self._codes[label] = float(len(self._codes))
            return self._codes[label]
        number = float(label) if isinstance(label, bool | int | float | np.number | np.bool_) else math.nan
        if not math.isfinite(number) or self._codes:
            raise ValueError(f"label {label!r} is not a finite number" + (", and earlier ones are names" if self._codes else ""))
        self.has_numeric_labels = True
        return number
