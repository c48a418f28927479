"""Writing block files (layout: `streamsvm.linear.block_file`), external shuffling, and the memory plan of a fit.

`open_shuffling_writer` shuffles rows that arrive sorted by label, because coordinate ascent over one class after the other needs
several times as many passes. It is an external shuffle: rows are distributed at random over buckets, which are block files too,
and each bucket again, until a bucket fits into memory, where its rows are permuted.
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
from streamsvm.linear.block_file import Block, BlockFile, select_rows


@contextmanager
def add_path_to_errors(action: str, path: Path) -> Iterator[None]:
    """Context manager that re-raises an OSError (such as a full disk) with ``action``, the action that failed, and the file
    ``path`` in its message.
    """
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, while {action}", str(path)) from error


DEFAULT_MEMORY_BYTES = 2**28
_BLOCKS_PER_LIMIT = 16  # a block has the memory limit divided by this
_MIN_BLOCK_BYTES, _MAX_BLOCK_BYTES = 2**12, 2**20
_BLOCK_COPIES = 5  # blocks, or copies of parts of one, that are in memory at once
_WORKING_SET_COPIES = 4  # copies of a block of the working set while it is written or swept
_MAX_WORKING_SET_BLOCK_BYTES = 2**28
_PYTHON_OBJECT_BYTES = 2**15
_INDEX_BYTES_PER_BLOCK = 96
_N_VECTORS = 3  # vectors of the length of w
_HESSIAN_COPIES = 4  # the Hessian, its factor, and copies
_MAX_HESSIAN_SHARE = 0.25  # of the memory limit, for all of these copies
_MAX_NEWTON_FEATURES = 2048  # with more, a pass of Newton's method takes too long


class MemoryPlan(NamedTuple):
    """Block sizes in bytes, such that a fit stays within its memory limit."""

    block_bytes: int
    """Size of a block of the file with all rows, when it is written."""
    working_set_block_bytes: int
    """Size of a block of the working set. As large as possible, because a single block needs no passes over the file."""


def plan_memory(limit: float, n_features: int = 0, largest_block: int = 0, n_blocks: int = 0) -> MemoryPlan:
    """Return how large blocks may be, in bytes, so that a fit stays within ``limit`` bytes of memory: those of the file of all
    rows and of the working set. The file has ``n_features`` features and ``n_blocks`` blocks, of at most ``largest_block`` bytes.
    Raise a ValueError if the limit is too small.
    """
    check_number("memory_limit", limit, 0.0)
    block_bytes = int(min(max(limit / _BLOCKS_PER_LIMIT, _MIN_BLOCK_BYTES), _MAX_BLOCK_BYTES))
    fixed_bytes = _PYTHON_OBJECT_BYTES + 8 * _N_VECTORS * (n_features + 1) + _INDEX_BYTES_PER_BLOCK * n_blocks
    remaining_bytes = limit - fixed_bytes - _BLOCK_COPIES * max(block_bytes, largest_block)
    working_set_block_bytes = int(min(remaining_bytes / _WORKING_SET_COPIES, _MAX_WORKING_SET_BLOCK_BYTES))
    if working_set_block_bytes < _MIN_BLOCK_BYTES:
        without_blocks = fixed_bytes + _WORKING_SET_COPIES * _MIN_BLOCK_BYTES
        with_blocks = without_blocks + _BLOCK_COPIES * max(largest_block, _MIN_BLOCK_BYTES)
        needed = max(without_blocks / (1.0 - _BLOCK_COPIES / _BLOCKS_PER_LIMIT), with_blocks) + 1.0
        purpose = f"{n_features:,} features and blocks of up to {largest_block:,} bytes" if n_features else "any fit"
        hint = ", or smaller blocks" if largest_block > 2 * block_bytes else ""
        raise ValueError(f"memory_limit={limit:,.0f} bytes is too little for {purpose}: {needed:,.0f} are needed{hint}")
    return MemoryPlan(block_bytes, working_set_block_bytes)


def hessian_fits_in(limit: float, n_features: int) -> bool:
    """Return whether Newton's method is suitable: its Hessian [n_features + 1, n_features + 1] takes at most a quarter of the
    memory ``limit`` in bytes, and there are fewer than 2048 features.
    """
    hessian_bytes = 8.0 * _HESSIAN_COPIES * (n_features + 1) ** 2
    return n_features < _MAX_NEWTON_FEATURES and hessian_bytes <= _MAX_HESSIAN_SHARE * limit


FILE_BUFFER_BYTES = 2**13  # Python's default is 16 times as large from 3.14 on, and counts against the memory limit
_DEFAULT_BLOCK_BYTES = 2**20
_SORTED_F_STATISTIC = 4.0  # rows with a larger F statistic count as sorted; it is about 1 for rows in random order


class BlockWriter:
    """Writes a block file from arrays. Use it in a ``with`` statement: if an error occurs, the file is removed.

    Parameters
    ----------
    path
        Path of the file. Until the file is complete, ``.partial`` is appended to its name.
    dense
        Whether to store rows with all their features.
    with_row_numbers
        Whether rows have row numbers, because they are copies of some rows of another file.
    weighted
        Whether rows have weights.
    block_bytes
        Approximate size of a block in bytes. One block, or one row if that is larger, is in memory at a time.
    durable
        Whether to sync the file to disk when it is closed, so that it survives a power failure.

    Attributes
    ----------
    shape : tuple of int
        Number of rows and of features so far.
    meta : dict
        Additional JSON data to store with the rows; it can change until the file is closed.

    Examples
    --------
    >>> import tempfile
    >>> from streamsvm.linear import BlockFile, BlockWriter
    >>> path = Path(tempfile.mkdtemp(), "rows.blocks")
    >>> with BlockWriter(path) as writer:
    ...     writer.add(sparse.csr_array([[0.5, 0.0, 2.0], [0.0, 0.0, 1.0]]), np.array([1.0, -1.0]))
    >>> with BlockFile(path) as file:
    ...     file.shape, file.label_counts, file.read_block(0).values.tolist()
    ((2, 3), {-1.0: 1, 1.0: 1}, [0.5, 2.0, 1.0])
    """

    def __init__(
        self,
        path: str | Path,
        *,
        dense: bool = False,
        with_row_numbers: bool = False,
        weighted: bool = False,
        block_bytes: int = _DEFAULT_BLOCK_BYTES,
        durable: bool = True,
    ) -> None:
        self._path, self._partial = Path(path), Path(f"{path}.partial")
        self._dense, self._with_row_numbers, self._weighted = dense, with_row_numbers, weighted
        self._block_bytes, self._durable = block_bytes, durable
        self.shape: tuple[int, int] = (0, 0)
        self.meta: dict[str, Any] = {}
        self._index = bytearray()  # records of `INDEX_DTYPE`
        self._n_blocks = self._n_written_rows = 0
        # Labels, row numbers, weights, row ends, indices and values of the next block.
        self._buffers = [bytearray() for _ in layout.PART_DTYPES]
        self._buffered_bytes = 0  # approximately
        self._counts: dict[float, tuple[int, float]] | None = {}  # number and sum of weights of each label's rows
        self._weight_statistics = np.array([np.inf, 0.0, 0.0])  # minimum, maximum and sum
        self._sum_of_squares = self._sum_of_label_magnitudes = 0.0
        # The sum of labels, the sum of their squares, and the sum over blocks of (sum of labels)^2 / rows.
        self._label_sums = np.zeros(3)
        self._file = self._partial.open("wb", buffering=FILE_BUFFER_BYTES)
        self._file.write(bytes(layout.ALIGNMENT_BYTES))

    def add(self, X: Any, labels: np.ndarray, row_numbers: np.ndarray | None = None, weights: np.ndarray | None = None) -> None:
        """Check the rows of X, an array or sparse matrix, with their labels, and append them to the block file. Row numbers and
        weights are passed if the file stores them. Rows with weight 0 are skipped.

        Parameters
        ----------
        X
            Array or sparse matrix of rows [n, features].
        labels
            Labels or targets [n].
        row_numbers
            Row numbers, uint64 [n], if the writer was created with ``with_row_numbers=True``.
        weights
            Weights of the rows, at least 0, [n], if the writer was created with ``weighted=True``.

        Raises
        ------
        ValueError
            A value is not finite in float32, a label or weight is not finite, a weight is negative, or there are more features
            than a file can have.
        OSError
            The disk is full, or cannot be written to.
        """
        empty = np.empty(0, np.uint32)
        if self._weighted:
            weights = _validate_weights(weights, len(labels))
            if not (weights > 0.0).all():
                positive = np.flatnonzero(weights)
                X = (X.tocsr() if sparse.issparse(X) else np.asarray(X))[positive]
                labels, weights = np.asarray(labels)[positive], weights[positive]
                row_numbers = None if row_numbers is None else row_numbers[positive]
        elif weights is not None:
            raise ValueError("weights need a writer with weighted=True")
        if np.iscomplexobj(X):
            raise ValueError("X must contain real numbers, not complex ones")
        if self._dense:
            with np.errstate(over="ignore"):  # infinity is refused below
                X = np.ascontiguousarray(X.toarray() if sparse.issparse(X) else X, np.float32)
            if X.ndim != 2 or (self.shape[1] and X.shape[1] != self.shape[1]):
                raise ValueError(f"X must have {self.shape[1]} features, as earlier rows have, not shape {X.shape}")
            starts, indices, values = empty, empty, X.reshape(-1)
        else:
            X = sparse.csr_array(X)
            if len(X.indices) and not 0 <= X.indices.min() <= X.indices.max() < X.shape[1]:
                raise ValueError(f"X has feature indices outside 0 to {X.shape[1] - 1:,}")
            if not X.has_canonical_format:
                X = X.copy()
                X.sum_duplicates()
            starts, indices, values = X.indptr, X.indices, X.data
        with np.errstate(over="ignore"):
            values = values.astype(np.float32, copy=False)
        labels = np.asarray(labels, np.float64)
        numbers_match = not self._with_row_numbers or (row_numbers is not None and row_numbers.shape == labels.shape)
        if labels.shape != (X.shape[0],) or not numbers_match:
            raise ValueError(f"labels and row_numbers must have one value per row ({X.shape[0]}), not shape {labels.shape}")
        if not (np.isfinite(values).all() and np.isfinite(labels).all()):
            raise ValueError("rows or labels have values that are not finite in float32: impute or scale them")
        block = Block(self.shape[0], labels, empty if row_numbers is None else row_numbers, starts, indices, values)
        self.append_block(block if weights is None else block._replace(weights=weights), X.shape[1])

    def append_block(self, rows: Block, n_features: int) -> None:
        """Append all rows of ``rows``, a block (arrays of consecutive rows), to this file, without checking their values, and
        count their labels. ``n_features`` is the number of features of the data. Raise a ValueError if a file cannot have that
        many.
        """
        if n_features > layout.MAX_FEATURES:
            raise ValueError(f"{n_features:,} features exceed the limit of a block file, {layout.MAX_FEATURES:,}")
        if not self._with_row_numbers:
            self._count_rows(rows)
        self._append_rows(rows, n_features, 0, len(rows.labels))

    def append_without_statistics(self, rows: Block, n_features: int, first: int, last: int) -> None:
        """Append rows of a block (arrays of consecutive rows) to this temporary file, from position ``first`` to ``last``
        (exclusive), without checking them. To save time, labels are not counted.
        """
        self._counts = None
        self._append_rows(rows, n_features, first, last)

    def _append_rows(self, rows: Block, n_features: int, first: int, last: int) -> None:
        """Append the rows ``first`` to ``last`` (exclusive) of ``rows``, a block (arrays of consecutive rows), to the buffer of
        this file's next block, and write that block to the file each time it is full.
        """
        if self._weighted and last > first:
            smallest, largest, total = self._weight_statistics
            weights = rows.weights[first:last]
            self._weight_statistics[:] = min(smallest, weights.min()), max(largest, weights.max()), total + weights.sum()
        self.shape = (self.shape[0] + last - first, max(self.shape[1], n_features))
        row_bytes = 8.0 * (1 + self._with_row_numbers + self._weighted) + (4.0 * n_features if self._dense else 4.0)
        cumulative_bytes = np.arange(last - first + 1) * row_bytes
        if not self._dense:
            cumulative_bytes += 8.0 * rows.starts[first : last + 1]
        start = first
        while start < last:
            # As many rows as the next block has room for, and at least one.
            previous_bytes = cumulative_bytes[start - first]
            room = self._block_bytes - self._buffered_bytes
            stop = first - 1 + int(np.searchsorted(cumulative_bytes, previous_bytes + room, "right"))
            stop = max(stop, start + (not self._buffers[0]))
            if stop > start:
                self._buffer_rows(rows, start, stop)
                self._buffered_bytes += int(cumulative_bytes[stop - first] - previous_bytes)
                start = stop
            if start < last:
                self._write_block()

    def _count_rows(self, rows: Block) -> None:
        """Update the statistics of this file with ``rows``, a block (arrays of consecutive rows): the number of rows of each
        label, and sums of squared values and absolute labels.
        """
        labels, weights = rows.labels, rows.weights
        self._sum_of_squares += float(np.square(rows.values, dtype=np.float64).sum())
        self._sum_of_label_magnitudes += float(np.abs(labels).sum())
        if self._counts is None:
            return
        classes, codes, counts = np.unique(labels, return_inverse=True, return_counts=True)
        sums = np.bincount(codes, weights, len(classes)) if self._weighted and len(codes) else counts
        for label, count, weight in zip(classes.tolist(), counts.tolist(), sums.tolist(), strict=True):
            old_count, old_weight = self._counts.get(label, (0, 0.0))
            self._counts[label] = old_count + count, old_weight + weight
            if len(self._counts) > layout.MAX_CLASSES:
                self._counts = None
                return

    def _buffer_rows(self, rows: Block, start: int, stop: int) -> None:
        """Copy the rows ``start`` to ``stop`` (exclusive) of ``rows``, a block (arrays of consecutive rows), to the byte buffers,
        one for each array, that will become the next block of the file.
        """
        if self._dense:
            first_value, last_value = (len(rows.values) // len(rows.labels) * row for row in (start, stop))
            row_ends = indices = rows.starts
        else:
            first_value, last_value = int(rows.starts[start]), int(rows.starts[stop])
            n_buffered_values = len(self._buffers[-1]) // 4
            row_ends = rows.starts[start + 1 : stop + 1].astype(np.int64) + (n_buffered_values - first_value)
            indices = rows.indices[first_value:last_value]
        columns = (part[start:stop] for part in (rows.labels, rows.row_numbers, rows.weights))
        parts = (*columns, row_ends, indices, rows.values[first_value:last_value])
        for buffer, part, dtype in zip(self._buffers, parts, layout.PART_DTYPES, strict=True):
            buffer += np.ascontiguousarray(part, dtype).data

    def _write_block(self) -> None:
        """Write the rows in the buffers as one block to the file, add its position and checksum to the index, and clear the
        buffers. Raise a ValueError if a single row exceeds the size limit of a block.
        """
        labels, row_numbers, weights, row_ends, indices, values = self._buffers
        first_start = bytes(0 if self._dense else 4)
        parts = (labels, row_numbers, weights, first_start, row_ends, indices, values)
        size = sum(map(len, parts))
        if size > layout.MAX_BLOCK_BYTES:
            raise ValueError(f"a row of {size:,} bytes exceeds the limit of a block, {layout.MAX_BLOCK_BYTES:,} bytes")
        offset, crc = self._file.tell(), 0
        with add_path_to_errors("rows were written", self._partial):
            for part in parts:
                crc = zlib.crc32(part, crc)
                self._file.write(part)
            self._file.write(bytes(-size % layout.ALIGNMENT_BYTES))
        y, n = np.frombuffer(labels, layout.PART_DTYPES[0]), len(labels) // 8
        with np.errstate(over="ignore"):  # labels that large are refused later
            self._label_sums += (y.sum(), y @ y, y.sum() ** 2 / n)
        del y  # a buffer cannot be cleared while a view of it exists
        self._index += np.array([(offset, self._n_written_rows, n, len(values) // 4, crc, 0)], layout.INDEX_DTYPE).tobytes()
        self._n_blocks, self._n_written_rows = self._n_blocks + 1, self._n_written_rows + n
        for buffer in self._buffers:
            buffer.clear()
        self._buffered_bytes = 0

    def close(self) -> None:
        """Complete the block file: write the remaining rows, the index of the blocks and the header, and rename the file from its
        temporary name.
        """
        if self._buffers[0]:
            self._write_block()
        counts = None if self._counts is None or self._with_row_numbers else self._counts
        labels = None if counts is None else [(label, count) for label, (count, _) in counts.items()]
        n = max(self.shape[0], 1)
        means = {"mean_square": self._sum_of_squares / n, "mean_label": self._sum_of_label_magnitudes / n}
        statistics: dict[str, Any] = {"labels": labels, **means, "meta": self.meta}
        weighted = self._weighted and self.shape[0] > 0
        if weighted:
            smallest, largest, total = self._weight_statistics.tolist()
            statistics["weights"] = [smallest, largest, total / n]
            statistics["label_weights"] = None if counts is None else [weight for _, weight in counts.values()]
        text = json.dumps(statistics).encode()
        if len(text) > layout.MAX_JSON_BYTES:
            raise ValueError(f"meta takes {len(text):,} bytes; make it smaller than {layout.MAX_JSON_BYTES:,}")
        data = self._index + text
        index_start = self._file.tell()
        self._file.write(data)
        shape = (*self.shape, self._n_blocks, index_start, index_start + len(data))
        # A reader of the older version can then read all files without weights.
        version = layout.VERSION if weighted else layout.VERSION_WITHOUT_WEIGHTS
        flags = layout.FLAG_ROW_NUMBERS * self._with_row_numbers + layout.FLAG_WEIGHTS * weighted
        header = layout.HEADER.pack(layout.MAGIC, version, self._dense, flags, *shape, zlib.crc32(data))
        self._file.seek(0)
        self._file.write(header + layout.CRC_STRUCT.pack(zlib.crc32(header)))
        self._file.flush()
        if self._durable:
            os.fsync(self._file.fileno())
        self._file.close()
        self._partial.replace(self._path)

    @property
    def is_sorted_by_label(self) -> bool:
        """Whether the rows of the closed file seem to be sorted by label, so that they should be shuffled before a fit.

        True if labels differ more between blocks (at least two) than in random order, by the F test of an analysis of variance.
        """
        n, n_blocks = self.shape[0], self._n_blocks
        total, square, block_square = self._label_sums.tolist()
        if n_blocks < 2 or n <= n_blocks:
            return False
        variance_between = (block_square - total * total / n) / (n_blocks - 1)
        variance_within = max(square - block_square, 0.0) / (n - n_blocks)
        threshold = _SORTED_F_STATISTIC * (1.0 + 4.0 / (n_blocks - 1))
        return bool(variance_between > threshold * variance_within + 1e-9 * square / n)

    def discard(self) -> None:
        """Close the unfinished file and remove it."""
        with suppress(OSError):  # the buffer may fail to be written, but the file is removed anyway
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


def _validate_weights(weights: Any, n: int) -> np.ndarray:
    """Return the weights of ``n`` rows as an array float64 [n]. Raise a ValueError if there are not ``n`` weights, or one is
    negative or not finite.
    """
    array = np.asarray(weights, np.float64)
    if array.shape != (n,):
        raise ValueError(f"weights must have one value per row ({n}), not shape {array.shape}")
    valid = np.isfinite(array) & (array >= 0.0)
    if not valid.all():
        row = int(np.argmin(valid))
        raise ValueError(f"weights must be finite and at least 0, but row {row:,} has the weight {array[row]:g}")
    return array


_SHUFFLE_MEMORY_SHARE = 0.5  # of the memory, for the blocks of all buckets, and later for one bucket
_MIN_BUCKET_BYTES, _MAX_BUCKET_BYTES = 2**14, 2**18  # memory of an open bucket: a block, and the buffer of its file
_MAX_BUCKETS = 64  # files that are open at once
_MAX_DEPTH = 12  # levels of buckets: a few large rows may land in the same bucket each time


def list_output_files(path: Path) -> list[Path]:
    """Return the paths of all files that writing a shuffled block file ``path`` may create: the file itself, and temporary files
    next to it.
    """
    return [path, *(path.with_name(path.name + suffix) for suffix in (".partial", ".first", ".first.partial"))]


@contextmanager
def open_shuffling_writer(
    path: Path, *, dense: bool, block_bytes: int, memory: float, weighted: bool = False, durable: bool = True
) -> Iterator[BlockWriter]:
    """Context manager that opens a `BlockWriter` for the block file ``path``, with blocks of ``block_bytes`` bytes, and passes it
    ``dense``, ``weighted`` and ``durable``. When it ends, the rows are shuffled if they were added sorted by label; this takes at
    most ``memory`` bytes.

    Shuffling temporarily takes as much disk space as the file.
    """
    unshuffled_path = path.with_name(f"{path.name}.first")
    options: dict[str, Any] = {"dense": dense, "weighted": weighted}
    with ExitStack() as stack:
        stack.callback(unshuffled_path.unlink, missing_ok=True)
        with BlockWriter(unshuffled_path, **options, block_bytes=block_bytes, durable=durable) as writer:
            yield writer
        if not writer.is_sorted_by_label:
            unshuffled_path.replace(path)
            return
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix=f"{path.name}.", dir=path.parent))
        with BlockWriter(path, **options, block_bytes=block_bytes, durable=durable) as shuffled:
            max_bytes, rng = int(max(_SHUFFLE_MEMORY_SHARE * memory, 2 * _MIN_BUCKET_BYTES)), np.random.default_rng(0)
            for rows in _read_shuffled_parts(unshuffled_path, Path(folder), options, max_bytes, rng):
                for part in np.array_split(rng.permutation(len(rows.labels)), -(-max_bytes // block_bytes)):
                    shuffled.append_block(select_rows(rows, part), writer.shape[1])
                del rows  # before the next bucket is read
            shuffled.meta = writer.meta


def _read_shuffled_parts(
    source: Path, folder: Path, options: dict[str, Any], max_bytes: int, rng: np.random.Generator, depth: int = 0
) -> Iterator[Block]:
    """Yield all rows of the block file ``source`` in random parts of at most ``max_bytes``, and remove the file. A larger file is
    first distributed at random over temporary files in ``folder``, which are read in the same way; ``depth`` counts these levels.
    ``options`` are parameters of `BlockWriter` for the temporary files.
    """
    buckets: list[Path] = []
    with BlockFile(source) as file:
        if file.nbytes <= max_bytes or file.shape[0] <= 1 or depth == _MAX_DEPTH:
            yield file.read_all()
        else:
            n_buckets = min(max(-(-6 * file.nbytes // (5 * max_bytes)), 2), max_bytes // _MIN_BUCKET_BYTES, _MAX_BUCKETS)
            buckets = [folder / f"{depth}-{bucket}" for bucket in range(n_buckets)]
            block_bytes = min(max_bytes // n_buckets, _MAX_BUCKET_BYTES) - FILE_BUFFER_BYTES
            _write_buckets(file, buckets, {**options, "block_bytes": block_bytes, "durable": False}, rng)
    source.unlink()
    for path in buckets:
        yield from _read_shuffled_parts(path, folder, options, max_bytes, rng, depth + 1)


def _write_buckets(file: BlockFile, buckets: list[Path], options: dict[str, Any], rng: np.random.Generator) -> None:
    """Copy the rows of a block file to several new block files with the paths ``buckets``, each row to a random one. ``options``
    are parameters of `BlockWriter`.
    """
    with ExitStack() as stack:
        writers = [stack.enter_context(BlockWriter(path, **options)) for path in buckets]
        for block in map(file.read_block, range(len(file))):
            row_buckets = rng.integers(len(buckets), size=len(block.labels))
            rows = select_rows(block, np.argsort(row_buckets, kind="stable"))
            stops = np.cumsum(np.bincount(row_buckets, minlength=len(buckets))).tolist()
            for writer, first, last in zip(writers, [0, *stops], stops, strict=False):
                writer.append_without_statistics(rows, file.shape[1], first, last)
