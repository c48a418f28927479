"""Rows that come sorted, dealt to blocks at random: coordinate ascent that meets one class after the other takes several times
the passes.

An external shuffle: rows are dealt to buckets, each of which fits into memory, and then permuted within each. A bucket is pieces
of one file, of 32-bit words: for each row its label (2), its number of values where rows are sparse (1), indices, values.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from numba import njit

from streamsvm.linear.block_file import Block, BlockFile
from streamsvm.linear.block_writer import BlockWriter

__all__ = ["mixing_writer", "names_of"]

_SHARE = 0.3  # of memory: a bucket, and what waits to be written to all of them
_WORD = 4  # bytes


def names_of(path: Path) -> list[Path]:
    """All the files that `mixing_writer` writes to."""
    return [path, *(path.with_name(path.name + end) for end in (".partial", ".first", ".first.partial", ".buckets"))]


@contextmanager
def mixing_writer(path: Path, *, dense: bool, block_bytes: int, memory: float, durable: bool = True) -> Iterator[BlockWriter]:
    """A `BlockWriter` for all rows of a source, which are dealt to blocks anew at the end if labels say that they came sorted.

    Parameters
    ----------
    path, dense, block_bytes, durable
        As of `BlockWriter`; beside ``path`` there may be two more files for a while, as large as it.
    memory
        Bytes that dealing may take.
    """
    first = Path(f"{path}.first")
    with ExitStack() as stack:
        stack.callback(first.unlink, missing_ok=True)
        with BlockWriter(first, dense=dense, block_bytes=block_bytes, durable=durable) as writer:
            yield writer
        if not writer.came_sorted:
            first.replace(path)
            return
        with BlockWriter(path, dense=dense, block_bytes=block_bytes, durable=durable) as mixed:
            _mix(first, Path(f"{path}.buckets"), mixed, block_bytes, memory)
            mixed.meta = writer.meta


def _mix(source: Path, path: Path, writer: BlockWriter, block_bytes: int, memory: float) -> None:
    rng = np.random.default_rng(0)
    with path.open("w+b", buffering=0) as file:
        path.unlink()  # it goes when it is closed, whatever happens
        with BlockFile(source) as rows:
            features, dense = rows.shape[1], rows.dense
            buckets = _Buckets(file, max(source.stat().st_size, 1), memory, features if dense else -1)
            for number in range(len(rows)):
                block = rows.block(number)
                buckets.deal(block, rng.integers(len(buckets), size=len(block.labels)))
        source.unlink()
        for words in buckets:
            starts = _rows_of(words, buckets.features)
            order = rng.permutation(len(starts) - 1)
            sizes = np.cumsum(_WORD * np.diff(starts)[order])
            begin = 0
            while begin < len(order):
                end = max(int(np.searchsorted(sizes, (sizes[begin - 1] if begin else 0) + block_bytes, "right")), begin + 1)
                labels, *parts = _gathered(words, starts, order[begin:end], buckets.features)
                writer.append(Block(0, labels, np.empty(0, np.uint64), *parts), features)
                begin = end


class _Buckets:
    """As many as it takes for each to be small; iterated over, the words of each, uint32."""

    def __init__(self, file: io.FileIO, size: int, memory: float, features: int) -> None:
        room = max(_SHARE * memory, _WORD)
        n = int(np.ceil(size / room))
        self._file, self.features = file, features
        self._waiting = np.empty((n, max(int(room / n / _WORD), 1)), np.uint32)
        self._fills = np.zeros(n, np.int64)
        self._pieces: list[list[tuple[int, int]]] = [[] for _ in range(n)]
        self._end = 0

    def __len__(self) -> int:
        return len(self._fills)

    def deal(self, block: Block, which: np.ndarray) -> None:
        """The rows of a block, each to one of the buckets, int64 [rows]."""
        labels, values = block.labels.view(np.uint32), block.values.view(np.uint32)
        row = 0
        while True:
            row = _dealt(labels, block.starts, block.indices, values, self.features, which, row, self._waiting, self._fills)
            if row == len(which):
                return
            bucket = int(which[row])
            if self._fills[bucket]:
                self._write(bucket, self._waiting[bucket, : self._fills[bucket]])
                self._fills[bucket] = 0
            else:  # a row that is larger than what can wait
                self._write(bucket, self._words(block, row))
                row += 1

    def _words(self, block: Block, row: int) -> np.ndarray:
        begin, end, count = row * self.features, (row + 1) * self.features, []
        if self.features < 0:
            begin, end = int(block.starts[row]), int(block.starts[row + 1])
            count = [end - begin]
        label, values = block.labels[row : row + 1].view(np.uint32), block.values[begin:end].view(np.uint32)
        return np.concatenate([label, np.array(count, np.uint32), block.indices[begin:end], values])

    def _write(self, bucket: int, words: np.ndarray) -> None:
        data = memoryview(words.data).cast("B")
        while data:
            data = data[self._file.write(data) :]
        self._pieces[bucket].append((self._end, len(words)))
        self._end += _WORD * len(words)

    def __iter__(self) -> Iterator[np.ndarray]:
        for bucket, pieces in enumerate(self._pieces):
            waiting = self._waiting[bucket, : self._fills[bucket]]
            words = np.empty(sum(count for _, count in pieces) + len(waiting), np.uint32)
            at = 0
            for offset, count in pieces:
                self._file.seek(offset)
                data = memoryview(words[at : at + count].data).cast("B")
                while data:
                    read = self._file.readinto(data)
                    if not read:
                        raise OSError("a file of rows that are being mixed was cut off")
                    data = data[read:]
                at += count
            words[at:] = waiting
            yield words


@njit(cache=True, error_model="numpy")
def _dealt(
    labels: np.ndarray,
    starts: np.ndarray,
    indices: np.ndarray,
    values: np.ndarray,
    features: int,
    which: np.ndarray,
    row: int,
    waiting: np.ndarray,
    fills: np.ndarray,
) -> int:
    # Words of rows, from ``row`` on, to where those of their buckets wait; the first row that does not fit, or their number.
    room = waiting.shape[1]
    while row < len(which):
        bucket = which[row]
        at = fills[bucket]
        begin = np.int64(starts[row]) if features < 0 else row * features
        end = np.int64(starts[row + 1]) if features < 0 else begin + features
        if at + (3 + 2 * (end - begin) if features < 0 else 2 + features) > room:
            return row
        waiting[bucket, at], waiting[bucket, at + 1] = labels[2 * row], labels[2 * row + 1]
        at += 2
        if features < 0:
            waiting[bucket, at] = end - begin
            waiting[bucket, at + 1 : at + 1 + end - begin] = indices[begin:end]
            at += 1 + end - begin
        waiting[bucket, at : at + end - begin] = values[begin:end]
        fills[bucket] = at + end - begin
        row += 1
    return row


@njit(cache=True, error_model="numpy")
def _rows_of(words: np.ndarray, features: int) -> np.ndarray:
    # Where each row begins, and where the last one ends: int64 [rows + 1].
    n, at = 0, np.int64(0)
    while at < len(words):
        at += np.int64(2 + features if features >= 0 else 3 + 2 * np.int64(words[at + 2]))
        n += 1
    starts = np.zeros(n + 1, np.int64)
    for row in range(n):
        at = starts[row]
        starts[row + 1] = at + np.int64(2 + features if features >= 0 else 3 + 2 * np.int64(words[at + 2]))
    return starts


@njit(cache=True, error_model="numpy")
def _gathered(
    words: np.ndarray, begins: np.ndarray, rows: np.ndarray, features: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    # Labels, starts, indices and values of some rows, as blocks have them.
    n, total, head = len(rows), 0, 2 if features >= 0 else 3
    for row in rows:
        total += begins[row + 1] - begins[row] - head
    count = total if features >= 0 else total // 2
    labels, values = np.empty(2 * n, np.uint32), np.empty(count, np.uint32)
    starts, indices = np.zeros(0 if features >= 0 else n + 1, np.uint32), np.empty(0 if features >= 0 else count, np.uint32)
    to = 0
    for i in range(n):
        at = begins[rows[i]]
        size = begins[rows[i] + 1] - at - head
        labels[2 * i], labels[2 * i + 1] = words[at], words[at + 1]
        at += head
        if features < 0:
            size //= 2
            indices[to : to + size] = words[at : at + size]
            starts[i + 1] = to + size
            at += size
        values[to : to + size] = words[at : at + size]
        to += size
    return labels.view(np.float64), starts, indices, values.view(np.float32)
