"""A file of rows in blocks, written once and read many times, a block at a time.

Layout, little-endian: a header of 64 bytes; blocks, each at a multiple of 64 bytes; the index, 32 bytes a block; and JSON about
the labels and weights. A block has the labels of its rows (float64); in a file with copies of rows of another file their numbers
there (uint64); in a file with weights those of its rows (float64), above 0; of sparse rows where each begins (uint32, one more
than rows) and the features of the values (uint32, rising within a row); and the values (float32). The header is written last, and
the file gets its name when all of it is on the disk. Files without weights are of version 1, others of version 2.
The JSON also saves the names of columns and classes for streams, and labels that are names are saved by their numbers.
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

# The layout, which `BlockWriter` writes.
MAGIC = b"svmrows\n"
VERSION, VERSION_WITHOUT_WEIGHTS = 2, 1
NUMBERED, WEIGHTED = 1, 2  # flags
# Magic, version, whether rows are dense, flags, rows, features, blocks, begin and end of index and JSON, and their CRC.
HEADER = struct.Struct("<8sIHHQQQQQI")
# Of the header.
CRC = struct.Struct("<I")
ALIGNED = 64
INDEX = np.dtype([("begin", "<u8"), ("first", "<u8"), ("rows", "<u4"), ("values", "<u4"), ("crc", "<u4"), ("spare", "<u4")])
KINDS = ("<f8", "<u8", "<f8", "<u4", "<u4", "<f4")  # of labels, numbers, weights, starts, indices and values
MOST_FEATURES = 2**31 - 1
_MOST_ROWS = 2**53
LARGEST_JSON = 2**26  # bytes
LARGEST_BLOCK = 2**30  # bytes: of a single row, which is read at once


class BlockFileError(ValueError):
    """A file is not a block file, or it is corrupt, cut off or changed."""


class Block(NamedTuple):
    """The rows of one block of a block file."""

    first: int
    """Index of its first row in the file."""
    labels: np.ndarray
    """Labels or targets, float64 [rows]."""
    numbers: np.ndarray
    """Numbers of the rows in the file that they were copied from, uint64 [rows]; empty if they are no copies."""
    starts: np.ndarray
    """Where each row begins in ``values``, uint32 [rows + 1]; empty if rows are dense."""
    indices: np.ndarray
    """The feature of each value, uint32 [values]; empty if rows are dense."""
    values: np.ndarray
    """The values, float32 [values]; for dense rows [rows * features]."""
    weights: np.ndarray = np.empty(0)
    """Weights of the rows, float64 [rows], above 0; empty if all are 1."""


def is_block_file(path: Path) -> bool:
    """Tell whether there is a file at a path that begins as a block file does."""
    try:
        with path.open("rb") as file:
            return file.read(len(MAGIC)) == MAGIC
    except FileNotFoundError:
        return False


class BlockFile:
    """A block file, open for reading one block at a time.

    Only the blocks that you hold are in memory. The file is read, not mapped, because if a mapped file is cut off while it is
    read, a signal ends the process.

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
    numbered : bool
        Whether rows have numbers, because they are copies of some rows of another file.
    weighted : bool
        Whether rows have weights.
    weights : tuple of float
        The smallest weight, the largest weight and their mean; all are 1 if rows have no weights.
    label_counts : dict of float to int, or None
        Number of rows of each label; None if there are too many labels to be classes.
    label_weights : dict of float to float, or None
        Sum of the weights of each label's rows.
    mean_square : float
        Mean of the squared norms of the rows.
    mean_label : float
        Mean of the absolute values of the labels.
    meta : dict
        Anything else that the writer saved.
    nbytes : int
        Size of the file in bytes.
    largest_block : int
        Size of the largest block in bytes.

    Raises
    ------
    BlockFileError
        The file is not a block file, or it is corrupt or cut off; the message says what is wrong.
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
        self._opened = self._file_stat()
        self.nbytes: int = self._opened[0]
        header = self._file.read(ALIGNED)
        if len(header) < ALIGNED or not header.startswith(MAGIC):
            raise BlockFileError(f"{self.path} is not a block file")
        _, version, dense, flags, rows, features, blocks, begin, end, crc = HEADER.unpack_from(header)
        if CRC.unpack_from(header, HEADER.size)[0] != zlib.crc32(header[: HEADER.size]):
            raise BlockFileError(f"{self.path} is corrupt: its header does not match its checksum")
        if not VERSION_WITHOUT_WEIGHTS <= version <= VERSION:
            raise BlockFileError(f"{self.path} is a block file of version {version}; this reads version {VERSION} and before")
        size = blocks * INDEX.itemsize
        if end != self.nbytes:
            raise BlockFileError(f"{self.path} is cut off or has grown: {self.nbytes:,} bytes, {end:,} were written")
        contradiction = BlockFileError(f"{self.path} is corrupt: its index contradicts itself")
        if not (ALIGNED <= begin <= begin + size <= end and end - begin - size <= LARGEST_JSON):
            raise contradiction
        self._file.seek(begin)
        data = self._file.read(end - begin)
        if zlib.crc32(data) != crc:
            raise BlockFileError(f"{self.path} is corrupt: its index does not match its checksum")
        self.shape: tuple[int, int] = (rows, features)
        self.dense: bool = bool(dense)
        self.numbered: bool = bool(flags & NUMBERED)
        self.weighted: bool = version == VERSION and bool(flags & WEIGHTED)
        self._index, self._crc = np.frombuffer(data[:size], INDEX), crc
        self._checked = np.zeros(blocks, bool)
        lengths = self._index["rows"].astype(np.int64)
        values = self._index["values"].astype(np.int64)
        sizes = 8 * (1 + self.numbered + self.weighted) * lengths + 4 * values + (0 if self.dense else 4 * (lengths + 1 + values))
        begins = self._index["begin"].astype(np.float64)  # whose sums do not overflow, whatever the file says
        in_place = (begins[1:] >= begins[:-1] + sizes[:-1]).all() and (not blocks or begins[-1] + sizes[-1] <= begin)
        in_place = in_place and (begins >= ALIGNED).all() and (self._index["begin"] % ALIGNED == 0).all()
        counted = lengths.sum() == rows <= _MOST_ROWS and (self._index["first"] == np.cumsum(lengths) - lengths).all()
        known = features <= MOST_FEATURES and (not self.dense or (values == lengths * features).all())
        if not (in_place and counted and known and (lengths > 0).all()):
            raise contradiction
        self._sizes = sizes
        self.largest_block: int = int(sizes.max(initial=0))
        try:
            about = json.loads(data[size:])
            self.meta: dict[str, Any] = dict(about["meta"])
            self.mean_square: float = float(about["mean_square"])
            self.mean_label: float = float(about["mean_label"])
            counts: Any = about["labels"]
            self.label_counts: dict[float, int] | None = None if counts is None else {float(y): int(n) for y, n in counts}
            least, largest, mean = about["weights"] if self.weighted else (1.0, 1.0, 1.0)
            self.weights: tuple[float, float, float] = (float(least), float(largest), float(mean))
            sums = about["label_weights"] if self.weighted and counts is not None else list((self.label_counts or {}).values())
            named = zip(self.label_counts or (), sums, strict=True)
            self.label_weights: dict[float, float] | None = None if counts is None else {y: float(total) for y, total in named}
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise contradiction from error
        counted = self.label_counts is None or (
            all(math.isfinite(label) and count > 0 for label, count in self.label_counts.items())
            and sum(self.label_counts.values()) == rows
        )
        least, largest, mean = self.weights
        counted = counted and 0.0 < least <= largest < math.inf and 0.0 < mean < math.inf
        counted = counted and all(0.0 < weight < math.inf for weight in (self.label_weights or {}).values())
        if not (counted and all(0.0 <= mean < math.inf for mean in (self.mean_square, self.mean_label))):
            raise contradiction

    @property
    def signature(self) -> list[int]:
        """Numbers that distinguish the file from others: its shape, its size and a checksum."""
        return [*self.shape, self.nbytes, self._crc]

    def __len__(self) -> int:
        """Return the number of blocks."""
        return len(self._index)

    def block(self, number: int) -> Block:
        """Return one block, by its number from 0.

        The checksum and the values are checked when the block is read for the first time. Every time, the indices are checked
        to be safe for compiled code.

        Raises
        ------
        BlockFileError
            The block is corrupt, or the file was changed since it was opened.
        """
        begin, first, n, values, crc, _ = self._index[number].item()
        data = np.empty(self._sizes[number], np.uint8)
        self._file.seek(begin)
        if self._file.readinto(data.data) != len(data) or self._file_stat() != self._opened:
            raise BlockFileError(f"{self.path} was changed while it was read")
        of_sparse = (0, 0) if self.dense else (4 * (n + 1), 4 * values)
        sizes = [8 * n, 8 * n * self.numbered, 8 * n * self.weighted, *of_sparse, 4 * values]
        ends = itertools.accumulate(sizes)
        labels, numbers, weights, starts, indices, found = (
            data[end - size : end].view(kind) for end, size, kind in zip(ends, sizes, KINDS, strict=True)
        )
        whole = self.dense or _rows_fit(starts, indices, self.shape[1], not self._checked[number])
        if not self._checked[number]:
            whole = whole and zlib.crc32(data.data) == crc and np.isfinite(labels).all() and np.isfinite(found).all()
            whole = whole and bool(((weights >= self.weights[0]) & (weights <= self.weights[1])).all())
        if not whole:
            raise BlockFileError(f"{self.path} is corrupt: block {number:,} is not what was written")
        self._checked[number] = True
        return Block(first, labels, numbers, starts, indices, found, weights)

    def read_all(self) -> Block:
        """Read the rows of all blocks as one block."""
        n, n_values = self.shape[0], int(self._index["values"].sum())
        n_sparse = 0 if self.dense else n_values
        labels, numbers, weights = np.empty(n), np.empty(n * self.numbered, np.uint64), np.empty(n * self.weighted)
        starts, indices = np.zeros(0 if self.dense else n + 1, np.uint32), np.empty(n_sparse, np.uint32)
        rows = Block(0, labels, numbers, starts, indices, np.empty(n_values, np.float32), weights)
        begin = 0
        for block in map(self.block, range(len(self))):
            first, last, end = block.first, block.first + len(block.labels), begin + len(block.values)
            labels[first:last] = block.labels
            if self.numbered:
                numbers[first:last] = block.numbers
            if self.weighted:
                weights[first:last] = block.weights
            if not self.dense:
                starts[first + 1 : last + 1] = block.starts[1:] + np.uint32(begin)
                indices[begin:end] = block.indices
            rows.values[begin:end] = block.values
            begin = end
        return rows

    def expect(self, number: int) -> None:
        """Announce that a block is read next, so that the operating system can read it meanwhile."""
        if hasattr(os, "posix_fadvise"):  # which not every system has
            begin, size = int(self._index["begin"][number]), int(self._sizes[number])
            os.posix_fadvise(self._file.fileno(), begin, size, os.POSIX_FADV_WILLNEED)

    def _file_stat(self) -> tuple[int, int]:
        stat = os.fstat(self._file.fileno())
        return stat.st_size, stat.st_mtime_ns

    def close(self) -> None:
        """Close the file. Blocks that you hold stay valid."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@compiled
def _rows_fit(starts: np.ndarray, indices: np.ndarray, features: int, rising: bool) -> bool:
    """Tell whether rows follow each other, features are below ``features``, and if asked for rise within a row."""
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
    if rising:
        for i in range(len(starts) - 1):
            for k in range(np.int64(starts[i]) + 1, np.int64(starts[i + 1])):
                if indices[k] <= indices[k - 1]:
                    return False
    return True


def take_rows(block: Block, rows: np.ndarray) -> Block:
    """Return some rows, int64, of a block."""
    labels, numbers, weights = (part[rows] if len(part) else part for part in (block.labels, block.numbers, block.weights))
    if not len(block.starts):
        values = block.values.reshape(len(block.labels), -1)[rows].reshape(-1)
        return Block(0, labels, numbers, block.starts, block.indices, values, weights)
    starts = np.zeros(len(rows) + 1, np.uint32)
    np.cumsum(block.starts[rows + 1] - block.starts[rows], out=starts[1:])
    indices, values = np.empty(starts[-1], np.uint32), np.empty(starts[-1], np.float32)
    _copy_rows(block, rows, starts, indices, values)
    return Block(0, labels, numbers, starts, indices, values, weights)


@compiled
def _copy_rows(block: Block, rows: np.ndarray, starts: np.ndarray, indices: np.ndarray, values: np.ndarray) -> None:
    for i in range(len(rows)):
        begin, end = block.starts[rows[i]], block.starts[rows[i] + 1]
        indices[starts[i] : starts[i + 1]] = block.indices[begin:end]
        values[starts[i] : starts[i + 1]] = block.values[begin:end]


_OTHER_JSON = 2**20  # bytes of the JSON of a block file for all but the names


def saved_texts(meta: Mapping[str, Any], n_features: int) -> list[str] | None:
    """Return the names of columns that a block file saves, if they are ``n_features`` different texts; else None."""
    names = meta.get("names")
    if not isinstance(names, list) or len(names) != n_features or not _can_be_saved(names):
        return None
    return names if all(isinstance(name, str) for name in names) else None


def saved_index_base(meta: Mapping[str, Any]) -> int | None:
    """Return the integer that names the first column of a block file, 0 or 1; None where it saves other names, or none."""
    base = meta.get("index_base", 0)
    return base if "names" not in meta and type(base) is int and base in (0, 1) else None


def names_to_save(names: list[Any]) -> list[Any] | None:
    """Return the names of columns if a block file can save them; None where they are not texts and integers, or too long."""
    if not _can_be_saved(names):
        return None
    if sum(len(str(name)) for name in names) < LARGEST_JSON and len(json.dumps(names)) < LARGEST_JSON - _OTHER_JSON:
        return names
    warn("the names of features are too long to be saved with the rows: no learner can continue from a fit without them")
    return None


def _can_be_saved(names: list[Any]) -> bool:
    return all(type(name) in (str, int) for name in names) and len(set(names)) == len(names)


_MOST_CLASSES = 64


class LabelCodes:
    """Numbers for labels: the labels themselves, or if the first one is a name, the order in which names came."""

    def __init__(self) -> None:
        self._codes: dict[str, float] = {}
        self.numbers: bool = False
        """Whether labels are numbers, of which some came."""

    @property
    def meta(self) -> dict[str, Any]:
        """The facts that a block file saves: the names of 0, 1 and so on, if labels are names."""
        return {"classes": list(self._codes)} if self._codes else {}

    def code(self, label: Any) -> float:
        """Return the number of a label; ValueError where it is missing, is not of the kind of those before, or one too many."""
        if label is None or label == "":
            raise ValueError("there is no label: leave the row out")
        if isinstance(label, str):
            if self.numbers:
                raise ValueError(f"label {label!r} is a name, and there were numbers before")
            if label not in self._codes:
                if len(label) > LONGEST_NAME:
                    raise ValueError(
                        f"label {label[:60]!r}... has {len(label):,} characters; at most {LONGEST_NAME:,} are allowed"
                    )
                if len(self._codes) == _MOST_CLASSES:
                    raise ValueError(f"label {label!r} is one too many: at most {_MOST_CLASSES} names are saved")
                self._codes[label] = float(len(self._codes))
            return self._codes[label]
        number = float(label) if isinstance(label, bool | int | float | np.number | np.bool_) else math.nan
        if not math.isfinite(number) or self._codes:
            raise ValueError(f"label {label!r} is no finite number" + (", and there were names before" if self._codes else ""))
        self.numbers = True
        return number
