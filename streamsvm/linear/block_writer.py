"""Writes block files, whose layout `streamsvm.linear.block_file` describes, and divides the memory that a fit may take.

`mixing_writer` is an external shuffle for rows that come sorted: coordinate ascent over one class after the other takes several
times the passes. Rows are dealt at random to buckets, which are block files too, and those of each bucket again, until a bucket
fits into memory; there its rows are permuted.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from scipy import sparse

from streamsvm.core.checks import check_number
from streamsvm.linear import block_file as layout
from streamsvm.linear.block_file import Block, BlockFile, take_rows


@contextmanager
def explained_errors(what: str, path: Path) -> Iterator[None]:
    """Say in an OSError what was done to which file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, while {what}", str(path)) from error


DEFAULT_LIMIT = 2**28  # bytes
_BLOCKS_IN_LIMIT = 16  # a block takes this part of the limit
_SMALLEST_BLOCK, _LARGEST_BLOCK = 2**12, 2**20
_BLOCKS_HELD = 5  # blocks, or copies of parts of one, that are in memory at once
_WORKING_SET_COPIES = 4  # copies of a block of the working set while it is written or swept
_LARGEST_WORKING_SET_BLOCK = 2**28
_OBJECTS = 2**15  # bytes of Python objects
_INDEX = 96  # bytes for each block
_VECTORS = 3  # vectors of the length of w
_HESSIAN_COPIES = 4  # the Hessian, its factor, and copies
_HESSIAN_IN_LIMIT = 0.25  # they may take this part of the limit
_MOST_FEATURES = 2048  # of Newton's method: with more, a pass takes long


class Plan(NamedTuple):
    """Sizes in bytes."""

    block: int  # of a block of all rows that is written
    working_set_block: int  # of a block of the working set: as large as possible, since one block is swept without passes


def planned_sizes(limit: float, features: int = 0, largest_block: int = 0, blocks: int = 0) -> Plan:
    """Return the sizes that fit into a limit for so many features and blocks; ValueError where the limit is too small."""
    check_number("memory_limit", limit, 0.0)
    block = int(min(max(limit / _BLOCKS_IN_LIMIT, _SMALLEST_BLOCK), _LARGEST_BLOCK))
    fixed = _OBJECTS + 8 * _VECTORS * (features + 1) + _INDEX * blocks
    rest = limit - fixed - _BLOCKS_HELD * max(block, largest_block)
    working_set_block = int(min(rest / _WORKING_SET_COPIES, _LARGEST_WORKING_SET_BLOCK))
    if working_set_block < _SMALLEST_BLOCK:
        least = fixed + _WORKING_SET_COPIES * _SMALLEST_BLOCK
        held = least + _BLOCKS_HELD * max(largest_block, _SMALLEST_BLOCK)
        needed = max(least / (1.0 - _BLOCKS_HELD / _BLOCKS_IN_LIMIT), held) + 1.0
        what = f"{features:,} features and blocks of up to {largest_block:,} bytes" if features else "anything"
        hint = ", or smaller blocks" if largest_block > 2 * block else ""
        raise ValueError(f"memory_limit={limit:,.0f} bytes is too little for {what}: {needed:,.0f} are needed{hint}")
    return Plan(block, working_set_block)


def hessian_fits(limit: float, features: int) -> bool:
    """Tell whether Newton's method has enough memory for its Hessian."""
    return features < _MOST_FEATURES and 8.0 * _HESSIAN_COPIES * (features + 1) ** 2 <= _HESSIAN_IN_LIMIT * limit


_MOST_LABELS = 64  # with more, labels are not counted: they are no classes
FILE_BUFFER_BYTES = 2**13  # Python's own choice is 16 times as much from 3.14 on, and counts against the limit of memory
_BLOCK_BYTES = 2**20
_SORTED = 4.0  # the statistic of the F test from which rows count as sorted; it is about 1 for rows in random order


class BlockWriter:
    """Writes a block file from arrays. Use it in a ``with`` statement: if anything fails, no file is left.

    Parameters
    ----------
    path
        Path of the file. Until the file is complete, its name ends with ``.partial``.
    dense
        Whether to store rows with all their features.
    numbered
        Whether rows have numbers, because they are copies of some rows of another file.
    weighted
        Whether rows have weights.
    block_bytes
        Approximate size of a block in bytes. One block, or one row if that is larger, is in memory at a time.
    durable
        Whether the file has to survive a loss of power once it is closed.

    Attributes
    ----------
    shape : tuple of int
        Number of rows and of features so far.
    meta : dict
        Anything else to save with the rows, as JSON; it can change until the file is closed.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm.linear import BlockFile, BlockWriter
    >>> path = Path(tempfile.mkdtemp(), "rows.blocks")
    >>> with BlockWriter(path) as writer:
    ...     writer.add(sparse.csr_array([[0.5, 0.0, 2.0], [0.0, 0.0, 1.0]]), np.array([1.0, -1.0]))
    >>> with BlockFile(path) as file:
    ...     file.shape, file.label_counts, file.block(0).values.tolist()
    ((2, 3), {-1.0: 1, 1.0: 1}, [0.5, 2.0, 1.0])
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dense: bool = False,
        numbered: bool = False,
        weighted: bool = False,
        block_bytes: int = _BLOCK_BYTES,
        durable: bool = True,
    ) -> None:
        self._path, self._partial = Path(path), Path(f"{path}.partial")
        self._dense, self._numbered, self._weighted = dense, numbered, weighted
        self._block_bytes, self._durable = block_bytes, durable
        self.shape: tuple[int, int] = (0, 0)
        self.meta: dict[str, Any] = {}
        self._index = bytearray()  # records of `INDEX`
        self._blocks = self._written = 0  # blocks, and rows in them
        # Labels, numbers, weights, ends, indices and values of the rows of the next block.
        self._waiting = [bytearray() for _ in layout.KINDS]
        self._bytes = 0  # about
        self._counts: dict[float, tuple[int, float]] | None = {}  # rows of each label, and the sum of their weights
        self._weights = np.array([np.inf, 0.0, 0.0])  # the smallest, the largest, and the sum
        self._squares = self._magnitudes = 0.0
        # The sum of labels, the sum of their squares, and the sum over blocks of (sum of labels)^2 / rows.
        self._label_sums = np.zeros(3)
        self._file = self._partial.open("wb", buffering=FILE_BUFFER_BYTES)
        self._file.write(bytes(layout.ALIGNED))

    def add(self, X: Any, labels: np.ndarray, numbers: np.ndarray | None = None, weights: np.ndarray | None = None) -> None:
        """Append rows. Rows of weight 0 are left out.

        Parameters
        ----------
        X
            Array or sparse matrix of rows [n, features].
        labels
            Labels or targets [n].
        numbers
            Numbers of the rows, uint64 [n], for a numbered file.
        weights
            Weights of the rows, at least 0, [n], for a weighted file.

        Raises
        ------
        ValueError
            A value, a label or a weight is not finite in float32 or float64, a weight is below 0, or there are more features
            than a file can have.
        OSError
            The disk is full, or cannot be written to.
        """
        none = np.empty(0, np.uint32)
        if self._weighted:
            weights = _checked_weights(weights, len(labels))
            if not (weights > 0.0).all():
                kept = np.flatnonzero(weights)
                X = (X.tocsr() if sparse.issparse(X) else np.asarray(X))[kept]
                labels, weights = np.asarray(labels)[kept], weights[kept]
                numbers = None if numbers is None else numbers[kept]
        elif weights is not None:
            raise ValueError("weights are for a writer that was made with weighted=True")
        if np.iscomplexobj(X):
            raise ValueError("X must be real numbers, not complex ones")
        if self._dense:
            with np.errstate(over="ignore"):  # infinity is refused below
                X = np.ascontiguousarray(X.toarray() if sparse.issparse(X) else X, np.float32)
            if X.ndim != 2 or (self.shape[1] and X.shape[1] != self.shape[1]):
                raise ValueError(f"X must have {self.shape[1]} features, as the rows before, not shape {X.shape}")
            starts, indices, values = none, none, X.reshape(-1)
        else:
            X = sparse.csr_array(X)
            if len(X.indices) and not 0 <= X.indices.min() <= X.indices.max() < X.shape[1]:
                raise ValueError(f"X has indices out of its {X.shape[1]:,} features")
            if not X.has_canonical_format:
                X = X.copy()
                X.sum_duplicates()
            starts, indices, values = X.indptr, X.indices, X.data
        with np.errstate(over="ignore"):
            values = values.astype(np.float32, copy=False)
        labels = np.asarray(labels, np.float64)
        if labels.shape != (X.shape[0],) or (self._numbered and (numbers is None or numbers.shape != labels.shape)):
            raise ValueError(f"labels and numbers must have one value for each of {X.shape[0]} rows, not shape {labels.shape}")
        if not (np.isfinite(values).all() and np.isfinite(labels).all()):
            raise ValueError("rows or labels have values that are not finite in float32: impute or scale them")
        block = Block(self.shape[0], labels, none if numbers is None else numbers, starts, indices, values)
        self.append(block if weights is None else block._replace(weights=weights), X.shape[1])

    def append(self, rows: Block, features: int) -> None:
        """Append the rows of a block, which are not checked."""
        if features > layout.MOST_FEATURES:
            raise ValueError(f"{features:,} features are more than a block file can have, {layout.MOST_FEATURES:,}")
        if not self._numbered:
            self._count_rows(rows)
        self._append_rows(rows, features, 0, len(rows.labels))

    def append_uncounted(self, rows: Block, features: int, first: int, last: int) -> None:
        """Append rows ``first`` to ``last`` of a block without statistics of their labels and values, for a temporary file."""
        self._counts = None
        self._append_rows(rows, features, first, last)

    def _append_rows(self, rows: Block, features: int, first: int, last: int) -> None:
        if self._weighted and last > first:
            least, largest, total = self._weights
            weights = rows.weights[first:last]
            self._weights[:] = min(least, weights.min()), max(largest, weights.max()), total + weights.sum()
        self.shape = (self.shape[0] + last - first, max(self.shape[1], features))
        row_bytes = 8.0 * (1 + self._numbered + self._weighted) + (4.0 * features if self._dense else 4.0)
        ends = np.arange(last - first + 1) * row_bytes
        if not self._dense:
            ends += 8.0 * rows.starts[first : last + 1]
        begin = first
        while begin < last:
            # As many rows as the next block has room for, and at least one.
            before = ends[begin - first]
            end = first - 1 + int(np.searchsorted(ends, before + self._block_bytes - self._bytes, "right"))
            end = max(end, begin + (not self._waiting[0]))
            if end > begin:
                self._hold_back(rows, begin, end)
                self._bytes += int(ends[end - first] - before)
                begin = end
            if begin < last:
                self._write_waiting()

    def _count_rows(self, rows: Block) -> None:
        labels, weights = rows.labels, rows.weights
        self._squares += float(np.square(rows.values, dtype=np.float64).sum())
        self._magnitudes += float(np.abs(labels).sum())
        if self._counts is None:
            return
        found, which, counts = np.unique(labels, return_inverse=True, return_counts=True)
        sums = np.bincount(which, weights, len(found)) if self._weighted and len(which) else counts
        for label, count, weight in zip(found.tolist(), counts.tolist(), sums.tolist(), strict=True):
            before, weight_before = self._counts.get(label, (0, 0.0))
            self._counts[label] = before + count, weight_before + weight
            if len(self._counts) > _MOST_LABELS:
                self._counts = None
                return

    def _hold_back(self, rows: Block, begin: int, end: int) -> None:
        if self._dense:
            at, to = (len(rows.values) // len(rows.labels) * row for row in (begin, end))
            ends = indices = rows.starts
        else:
            at, to = int(rows.starts[begin]), int(rows.starts[end])
            before = len(self._waiting[-1]) // 4
            ends, indices = rows.starts[begin + 1 : end + 1].astype(np.int64) + (before - at), rows.indices[at:to]
        parts = (rows.labels[begin:end], rows.numbers[begin:end], rows.weights[begin:end], ends, indices, rows.values[at:to])
        for waiting, part, kind in zip(self._waiting, parts, layout.KINDS, strict=True):
            waiting += np.ascontiguousarray(part, kind).data

    def _write_waiting(self) -> None:
        """Write what waits as a block."""
        labels, numbers, weights, ends, indices, values = self._waiting
        first_start = bytes(0 if self._dense else 4)
        parts = (labels, numbers, weights, first_start, ends, indices, values)
        size = sum(map(len, parts))
        if size > layout.LARGEST_BLOCK:
            raise ValueError(f"a row of {size:,} bytes is larger than a block can be, {layout.LARGEST_BLOCK:,} bytes")
        begin, crc = self._file.tell(), 0
        with explained_errors("rows were written", self._partial):
            for part in parts:
                crc = zlib.crc32(part, crc)
                self._file.write(part)
            self._file.write(bytes(-size % layout.ALIGNED))
        y, n = np.frombuffer(labels, layout.KINDS[0]), len(labels) // 8
        with np.errstate(over="ignore"):  # labels that large are refused later
            self._label_sums += (y.sum(), y @ y, y.sum() ** 2 / n)
        del y  # a view, with which what waits could not be cleared
        self._index += np.array([(begin, self._written, n, len(values) // 4, crc, 0)], layout.INDEX).tobytes()
        self._blocks, self._written = self._blocks + 1, self._written + n
        for part in self._waiting:
            part.clear()
        self._bytes = 0

    def close(self) -> None:
        """Write the remaining rows, the index and the header, and give the file its name."""
        if self._waiting[0]:
            self._write_waiting()
        counts = None if self._counts is None or self._numbered else self._counts
        labels = None if counts is None else [(label, count) for label, (count, _) in counts.items()]
        n = max(self.shape[0], 1)
        means = {"mean_square": self._squares / n, "mean_label": self._magnitudes / n}
        about: dict[str, Any] = {"labels": labels, **means, "meta": self.meta}
        weighted = self._weighted and self.shape[0] > 0
        if weighted:
            least, largest, total = self._weights.tolist()
            about["weights"] = [least, largest, total / n]
            about["label_weights"] = None if counts is None else [weight for _, weight in counts.values()]
        text = json.dumps(about).encode()
        if len(text) > layout.LARGEST_JSON:
            raise ValueError(f"meta takes {len(text):,} bytes; make it less than {layout.LARGEST_JSON:,}")
        data = self._index + text
        begin = self._file.tell()
        self._file.write(data)
        shape = (*self.shape, self._blocks, begin, begin + len(data))
        version = layout.VERSION if weighted else layout.VERSION_WITHOUT_WEIGHTS  # who reads the latter only can read most files
        flags = layout.NUMBERED * self._numbered + layout.WEIGHTED * weighted
        header = layout.HEADER.pack(layout.MAGIC, version, self._dense, flags, *shape, zlib.crc32(data))
        self._file.seek(0)
        self._file.write(header + layout.CRC.pack(zlib.crc32(header)))
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)

    @property
    def came_sorted(self) -> bool:
        """Whether the rows seem to have come sorted by label. Known when the file is closed.

        True if labels differ more between blocks (at least two) than in random order, by the F test of an analysis of variance.
        """
        n, blocks = self.shape[0], self._blocks
        total, square, of_blocks = self._label_sums.tolist()
        if blocks < 2 or n <= blocks:
            return False
        between, within = (of_blocks - total * total / n) / (blocks - 1), max(square - of_blocks, 0.0) / (n - blocks)
        return bool(between > (_SORTED + 4.0 * _SORTED / (blocks - 1)) * within + 1e-9 * square / n)

    def discard(self) -> None:
        """Close the file and remove it."""
        with suppress(OSError):  # of a buffer that cannot be written, and need not be
            self._file.close()
        self._partial.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is not None:
            self.discard()
            return
        try:
            self.close()
        except BaseException:
            self.discard()
            raise


def _checked_weights(weights: Any, n: int) -> np.ndarray:
    """Return weights float64 [n]; raise a ValueError where there are not so many, finite and at least 0."""
    found = np.asarray(weights, np.float64)
    if found.shape != (n,):
        raise ValueError(f"weights must have one value for each of {n} rows, not shape {found.shape}")
    if not (np.isfinite(found) & (found >= 0.0)).all():
        row = int(np.argmin(np.isfinite(found) & (found >= 0.0)))
        raise ValueError(f"weights must be finite and at least 0, and that of row {row:,} is {found[row]:g}")
    return found


_MEMORY_SHARE = 0.5  # of the memory: for the rows that wait for a block of their bucket, and later for a bucket
_MIN_BUCKET_BYTES, _MAX_BUCKET_BYTES = 2**14, 2**18  # in memory for a bucket that is written: a block, and the buffer of its file
_MAX_BUCKETS = 64  # files that are open at once
_MAX_DEPTH = 12  # times that rows are dealt: a few large rows may meet in a bucket each time


def files_of(path: Path) -> list[Path]:
    """Return the paths that `mixing_writer` writes to: the file's, and those beside it whose names are known before."""
    return [path, *(path.with_name(path.name + end) for end in (".partial", ".first", ".first.partial"))]


@contextmanager
def mixing_writer(
    path: Path, *, dense: bool, block_bytes: int, memory: float, weighted: bool = False, durable: bool = True
) -> Iterator[BlockWriter]:
    """Give a `BlockWriter` for all rows of a source. If their labels show that they came sorted, they are mixed at the end.

    Mixing may take ``memory`` bytes, and for a while as much space on the disk as the file.
    """
    first = path.with_name(f"{path.name}.first")
    kind: dict[str, Any] = {"dense": dense, "weighted": weighted}
    with ExitStack() as stack:
        stack.callback(first.unlink, missing_ok=True)
        with BlockWriter(first, **kind, block_bytes=block_bytes, durable=durable) as writer:
            yield writer
        if not writer.came_sorted:
            first.replace(path)
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent))
        with BlockWriter(path, **kind, block_bytes=block_bytes, durable=durable) as mixed:
            room, rng = int(max(_MEMORY_SHARE * memory, 2 * _MIN_BUCKET_BYTES)), np.random.default_rng(0)
            for rows in _deal_rows(first, Path(folder), kind, room, rng):
                for part in np.array_split(rng.permutation(len(rows.labels)), -(-room // block_bytes)):
                    mixed.append(take_rows(rows, part), writer.shape[1])
                del rows  # before the next bucket is read
            mixed.meta = writer.meta


def _deal_rows(
    source: Path, folder: Path, kind: dict[str, Any], room: int, rng: np.random.Generator, depth: int = 0
) -> Iterator[Block]:
    """Yield the rows of a block file in random parts that fit into ``room`` bytes, and remove the file."""
    buckets: list[Path] = []
    with BlockFile(source) as file:
        if file.nbytes <= room or file.shape[0] <= 1 or depth == _MAX_DEPTH:
            yield file.read_all()
        else:
            count = min(max(-(-6 * file.nbytes // (5 * room)), 2), room // _MIN_BUCKET_BYTES, _MAX_BUCKETS)
            buckets = [folder / f"{depth}-{bucket}" for bucket in range(count)]
            block_bytes = min(room // count, _MAX_BUCKET_BYTES) - FILE_BUFFER_BYTES
            _write_buckets(file, buckets, {**kind, "block_bytes": block_bytes, "durable": False}, rng)
    source.unlink()
    for path in buckets:
        yield from _deal_rows(path, folder, kind, room, rng, depth + 1)


def _write_buckets(file: BlockFile, buckets: list[Path], kind: dict[str, Any], rng: np.random.Generator) -> None:
    """Deal the rows of a file at random to new block files."""
    with ExitStack() as stack:
        writers = [stack.enter_context(BlockWriter(path, **kind)) for path in buckets]
        for block in map(file.block, range(len(file))):
            bucket_of = rng.integers(len(buckets), size=len(block.labels))
            rows = take_rows(block, np.argsort(bucket_of, kind="stable"))
            ends = np.cumsum(np.bincount(bucket_of, minlength=len(buckets))).tolist()
            for writer, first, last in zip(writers, [0, *ends], ends, strict=False):
                writer.append_uncounted(rows, file.shape[1], first, last)
