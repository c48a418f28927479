"""An external shuffle for rows that come sorted: coordinate ascent over one class after the other takes several times the passes.

Rows are dealt to buckets at random, and those of each bucket again, until a bucket fits into memory; there its rows are permuted.
Meanwhile a row is a run of 32-bit words: its label (2), its weight if it has one (2), for sparse rows the number of its values
(1), its indices and its values.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.linear.block_file import Block, BlockFile
from streamsvm.linear.block_writer import BlockWriter, explained_errors, write_all

_IN_MEMORY = 0.25  # the buffers of all buckets, and later a bucket, take this part of the memory
_LEAST_BUFFER = 2**12  # bytes of a bucket's buffer: with less there are too many writes
_WORD = 4  # bytes
_BYTES_A_ROW = 16  # beside its words, while a bucket is permuted
_DEEPEST = 12  # times that rows are dealt: a few large rows may meet in a bucket each time
_HEAD = 2  # int64 before a piece of a bucket: the position of the piece before it, and its number of words


def files_of(path: Path) -> list[Path]:
    """Return the paths that `mixing_writer` writes to: the file's and those of temporary ones."""
    return [path, *(path.with_name(path.name + end) for end in (".partial", ".first", ".first.partial", ".buckets"))]


@contextmanager
def mixing_writer(
    path: Path, *, dense: bool, block_bytes: int, memory: float, weighted: bool = False, durable: bool = True
) -> Iterator[BlockWriter]:
    """Give a `BlockWriter` for all rows of a source. If their labels show that they came sorted, they are mixed at the end.

    Mixing may take ``memory`` bytes, and for a while as much space on the disk as the file.
    """
    _, _, first, _, buckets = files_of(path)
    kind: dict[str, Any] = {"dense": dense, "weighted": weighted, "block_bytes": block_bytes, "durable": durable}
    with ExitStack() as stack:
        stack.callback(first.unlink, missing_ok=True)
        with BlockWriter(first, **kind) as writer:
            yield writer
        if not writer.came_sorted:
            first.replace(path)
            return
        with BlockWriter(path, **kind) as mixed:
            _Mixer(buckets, _IN_MEMORY * memory, writer.shape[1] if dense else -1, 4 if weighted else 2).mix(
                first, mixed, block_bytes
            )
            mixed.meta = writer.meta


class _Mixer:
    """Deals the rows of a block file to buckets; ``features`` of dense rows, -1 of sparse ones; ``head`` words before them."""

    def __init__(self, path: Path, room: float, features: int, head: int) -> None:
        self._path, self._room, self._features, self._head = path, max(room, 2.0 * _LEAST_BUFFER), features, head
        self._rng = np.random.default_rng(0)

    def mix(self, source: Path, writer: BlockWriter, block_bytes: int) -> None:
        """Append the rows of a block file in random order. It is removed as soon as its rows are in buckets."""
        with BlockFile(source) as file:
            (n, features), size = file.shape, file.nbytes // _WORD
        for words in self._deal_rows(self._words_of_blocks(source), size, n, 0):
            starts = _starts_of(words, self._features, self._head)
            order, begin = self._rng.permutation(len(starts) - 1), 0
            while begin < len(order):
                end = _end_of(starts, order, begin, block_bytes // _WORD)
                heads, *parts = _gather_rows(words, starts, order[begin:end], self._features, self._head)
                labels, *weights = np.ascontiguousarray(heads.reshape(-1, self._head // 2).T)
                writer.append(Block(0, labels, np.empty(0, np.uint64), *parts, *weights), features)
                begin = end

    def _words_of_blocks(self, source: Path) -> Iterator[np.ndarray]:
        with BlockFile(source) as file:
            for number in range(len(file)):
                block = file.block(number)
                parts = (block.starts, block.indices, block.values.view(np.uint32))
                heads = np.column_stack((block.labels, block.weights)) if self._head == 4 else block.labels
                yield _words_of(heads.reshape(-1).view(np.uint32), *parts, self._features, self._head)
        source.unlink()

    def _deal_rows(self, chunks: Iterable[np.ndarray], size: int, n: int, depth: int) -> Iterator[np.ndarray]:
        """Deal n rows, in chunks of at most ``size`` words in all, until they fit into memory; yield the words of each bucket."""
        need = _WORD * size + _BYTES_A_ROW * n
        if need <= self._room or n <= 1 or depth == _DEEPEST:
            words, at = np.empty(size, np.uint32), 0
            for chunk in chunks:
                words[at : at + len(chunk)] = chunk
                at += len(chunk)
            yield words[:at]
            return
        count = int(min(max(np.ceil(1.2 * need / self._room), 2), self._room // _LEAST_BUFFER))
        with self._path.open("w+b", buffering=0) as file:
            self._path.unlink()  # the system removes it when it is closed, whatever happens
            buckets = _Buckets(file, self._path, count, int(self._room))
            for words in chunks:
                starts = _starts_of(words, self._features, self._head)
                buckets.deal(words, starts, self._rng.integers(count, size=len(starts) - 1))
            buckets.close()
            for bucket in range(count):
                yield from self._deal_rows(
                    buckets.chunks(bucket), int(buckets.sizes[bucket]), int(buckets.rows[bucket]), depth + 1
                )


class _Buckets:
    """Buckets on disk: each is a chain of pieces, from the last one to the first, and a buffer in memory."""

    def __init__(self, file: io.FileIO, path: Path, count: int, room: int) -> None:
        self._file, self._path, self._end = file, path, 0
        self.sizes, self.rows = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._last, self._fills = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        self._buffers = np.empty((count, max(room // count // _WORD, 1)), np.uint32)

    def deal(self, words: np.ndarray, starts: np.ndarray, which: np.ndarray) -> None:
        """Add each row to its bucket, ``which`` int64 [rows]."""
        self.rows += np.bincount(which, minlength=len(self.rows))
        row = 0
        while (row := _fill_buckets(words, starts, which, row, self._buffers, self._fills)) < len(which):
            bucket = int(which[row])
            if self._fills[bucket]:
                self._flush_bucket(bucket)
            else:  # a row that is larger than the buffer
                self._write_words(bucket, words[starts[row] : starts[row + 1]])
                row += 1

    def close(self) -> None:
        """Write what is in the buffers, and free their memory."""
        for bucket in np.flatnonzero(self._fills).tolist():
            self._flush_bucket(bucket)
        self._buffers = np.empty((0, 0), np.uint32)

    def _flush_bucket(self, bucket: int) -> None:
        self._write_words(bucket, self._buffers[bucket, : self._fills[bucket]])
        self._fills[bucket] = 0

    def _write_words(self, bucket: int, words: np.ndarray) -> None:
        head = np.array([self._last[bucket], len(words)])
        with explained_errors("rows were mixed", self._path):
            write_all(self._file, head)
            write_all(self._file, words)
        self._last[bucket] = self._end
        self._end += head.nbytes + words.nbytes
        self.sizes[bucket] += len(words)

    def chunks(self, bucket: int) -> Iterator[np.ndarray]:
        """Yield the words of a bucket, uint32, whole rows at a time."""
        at = int(self._last[bucket])
        while at >= 0:
            self._file.seek(at)
            at, size = self._read_bucket(_HEAD, np.int64).tolist()
            yield self._read_bucket(size, np.uint32)

    def _read_bucket(self, count: int, kind: Any) -> np.ndarray:
        found: np.ndarray = np.empty(count, kind)
        data = memoryview(found.data).cast("B")
        while data:
            read = self._file.readinto(data)
            if not read:
                raise OSError("the temporary file of rows that are being mixed was cut off")
            data = data[read:]
        return found


@compiled
def _words_of(
    heads: np.ndarray, starts: np.ndarray, indices: np.ndarray, values: np.ndarray, features: int, head: int
) -> np.ndarray:
    """Return the words of a block, whose labels and weights, row by row, and values are given as uint32."""
    n = len(heads) // head
    words, at = np.empty(head * n + len(starts[1:]) + len(indices) + len(values), np.uint32), np.int64(0)
    for row in range(n):
        words[at : at + head] = heads[head * row : head * row + head]
        at += np.int64(head)
        begin = np.int64(starts[row]) if features < 0 else np.int64(row * features)
        size = np.int64(starts[row + 1]) - begin if features < 0 else np.int64(features)
        if features < 0:
            words[at] = size
            words[at + 1 : at + 1 + size] = indices[begin : begin + size]
            at += 1 + size
        words[at : at + size] = values[begin : begin + size]
        at += size
    return words


@compiled
def _starts_of(words: np.ndarray, features: int, head: int) -> np.ndarray:
    """Return where each row begins and the last one ends, int64 [rows + 1]."""
    n, at = 0, np.int64(0)
    while at < len(words):
        at += np.int64(head + features if features >= 0 else head + 1 + 2 * np.int64(words[at + head]))
        n += 1
    starts = np.zeros(n + 1, np.int64)
    for row in range(n):
        at = starts[row]
        starts[row + 1] = at + np.int64(head + features if features >= 0 else head + 1 + 2 * np.int64(words[at + head]))
    return starts


@compiled
def _fill_buckets(
    words: np.ndarray, starts: np.ndarray, which: np.ndarray, row: int, buffers: np.ndarray, fills: np.ndarray
) -> int:
    """Copy rows, from ``row`` on, to the buffers of their buckets; return the first one that does not fit, or their number."""
    room = buffers.shape[1]
    while row < len(which):
        bucket = which[row]
        size, at = starts[row + 1] - starts[row], fills[bucket]
        if at + size > room:
            return row
        buffers[bucket, at : at + size] = words[starts[row] : starts[row + 1]]
        fills[bucket] = at + size
        row += 1
    return row


@compiled
def _end_of(starts: np.ndarray, order: np.ndarray, begin: int, most: int) -> int:
    """Return the end of the rows, from ``begin`` in this order on, that fit into ``most`` words; at least one does."""
    end, size = begin, 0
    while end < len(order):
        size += starts[order[end] + 1] - starts[order[end]]
        if size > most and end > begin:
            return end
        end += 1
    return end


@compiled
def _gather_rows(
    words: np.ndarray, begins: np.ndarray, rows: np.ndarray, features: int, head: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the labels and weights, row by row, the starts, indices and values of some rows."""
    n, total, before = len(rows), 0, head if features >= 0 else head + 1
    for row in rows:
        total += begins[row + 1] - begins[row] - before
    count = total if features >= 0 else total // 2
    heads, values = np.empty(head * n, np.uint32), np.empty(count, np.uint32)
    starts, indices = np.zeros(0 if features >= 0 else n + 1, np.uint32), np.empty(0 if features >= 0 else count, np.uint32)
    to = 0
    for i in range(n):
        at = begins[rows[i]]
        size = begins[rows[i] + 1] - at - before
        heads[head * i : head * i + head] = words[at : at + head]
        at += before
        if features < 0:
            size //= 2
            indices[to : to + size] = words[at : at + size]
            starts[i + 1] = to + size
            at += size
        values[to : to + size] = words[at : at + size]
        to += size
    return heads.view(np.float64), starts, indices, values.view(np.float32)
