"""Rows that come sorted, dealt to blocks at random: coordinate ascent that meets one class after the other takes several times
the passes.

An external shuffle: rows are dealt to buckets at random, and those of each bucket again, until one fits into memory; there they
are permuted. Meanwhile they are 32-bit words: of each row its label (2), its number of values where rows are sparse (1), indices,
values.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numba import njit

from streamsvm.linear.files.block_file import Block, BlockFile
from streamsvm.linear.files.block_writer import BlockWriter

__all__ = ["mixing_writer", "names_of"]

_SHARE = 0.25  # of memory: what waits to be written to buckets, or then one of them
_LEAST_WAITING = 2**12  # bytes, to a bucket: with less there are too many writes
_WORD = 4  # bytes
_BYTES_A_ROW = 16  # beside its words, while a bucket is permuted
_DEEPEST = 12  # how often rows are dealt: few that are large may come together again
_HEAD = 2  # int64 before a piece of a bucket: where the one before it is, and its number of words


def names_of(path: Path) -> list[Path]:
    """All the files that `mixing_writer` writes to."""
    return [path, *(path.with_name(path.name + end) for end in (".partial", ".first", ".first.partial", ".buckets"))]


@contextmanager
def mixing_writer(path: Path, *, dense: bool, block_bytes: int, memory: float, durable: bool = True) -> Iterator[BlockWriter]:
    """A `BlockWriter` for all rows of a source, which are dealt to blocks anew at the end if labels say that they came sorted.

    Parameters
    ----------
    path, dense, block_bytes, durable
        As of `BlockWriter`; beside ``path`` there may be others for a while, that take as much space as it does.
    memory
        Bytes that dealing may take.
    """
    _, _, first, _, buckets = names_of(path)
    with ExitStack() as stack:
        stack.callback(first.unlink, missing_ok=True)
        with BlockWriter(first, dense=dense, block_bytes=block_bytes, durable=durable) as writer:
            yield writer
        if not writer.came_sorted:
            first.replace(path)
            return
        with BlockWriter(path, dense=dense, block_bytes=block_bytes, durable=durable) as mixed:
            _Mixing(buckets, _SHARE * memory, writer.shape[1] if dense else -1).mix(first, mixed, block_bytes)
            mixed.meta = writer.meta


class _Mixing:
    """``path``: of a file that is there for a while; ``features``: of dense rows, else -1."""

    def __init__(self, path: Path, room: float, features: int) -> None:
        self._path, self._room, self._features = path, max(room, 2.0 * _LEAST_WAITING), features
        self._rng = np.random.default_rng(0)

    def mix(self, source: Path, writer: BlockWriter, block_bytes: int) -> None:
        """Append the rows of a block file, which is removed as soon as they are elsewhere."""
        with BlockFile(source) as file:
            (n, features), size = file.shape, file.nbytes // _WORD
        for words in self._leaves(self._of_blocks(source), size, n, 0):
            starts = _starts_of(words, self._features)
            order, begin = self._rng.permutation(len(starts) - 1), 0
            while begin < len(order):
                end = _end_of(starts, order, begin, block_bytes // _WORD)
                labels, *parts = _gathered(words, starts, order[begin:end], self._features)
                writer.append(Block(0, labels, np.empty(0, np.uint64), *parts), features)
                begin = end

    def _of_blocks(self, source: Path) -> Iterator[np.ndarray]:
        with BlockFile(source) as file:
            for number in range(len(file)):
                block = file.block(number)
                parts = (block.starts, block.indices, block.values.view(np.uint32))
                yield _words_of(block.labels.view(np.uint32), *parts, self._features)
        source.unlink()

    def _leaves(self, chunks: Iterable[np.ndarray], size: int, n: int, depth: int) -> Iterator[np.ndarray]:
        # The words of buckets that fit into memory, of n rows that come in chunks of ``size`` words in all, or a few less.
        need = _WORD * size + _BYTES_A_ROW * n
        if need <= self._room or n <= 1 or depth == _DEEPEST:
            words, at = np.empty(size, np.uint32), 0
            for chunk in chunks:
                words[at : at + len(chunk)] = chunk
                at += len(chunk)
            yield words[:at]
            return
        count = int(min(max(np.ceil(1.2 * need / self._room), 2), self._room // _LEAST_WAITING))
        with self._path.open("w+b", buffering=0) as file:
            self._path.unlink()  # it goes when it is closed, whatever happens
            buckets = _Buckets(file, self._path, count, int(self._room))
            for words in chunks:
                starts = _starts_of(words, self._features)
                buckets.deal(words, starts, self._rng.integers(count, size=len(starts) - 1))
            buckets.close()
            for bucket in range(count):
                yield from self._leaves(buckets.chunks(bucket), int(buckets.sizes[bucket]), int(buckets.rows[bucket]), depth + 1)


class _Buckets:
    """Words of rows on disk: of each bucket a chain of pieces, from the last one to the first."""

    def __init__(self, file: io.FileIO, path: Path, count: int, room: int) -> None:
        self._file, self._path, self._end = file, path, 0
        self.sizes, self.rows = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self._last, self._fills = np.full(count, -1, np.int64), np.zeros(count, np.int64)
        self._waiting = np.empty((count, max(room // count // _WORD, 1)), np.uint32)

    def deal(self, words: np.ndarray, starts: np.ndarray, which: np.ndarray) -> None:
        """Rows, each to one of the buckets, int64 [rows]."""
        self.rows += np.bincount(which, minlength=len(self.rows))
        row = 0
        while (row := _dealt(words, starts, which, row, self._waiting, self._fills)) < len(which):
            bucket = int(which[row])
            if self._fills[bucket]:
                self._flush(bucket)
            else:  # a row that is larger than what can wait
                self._write(bucket, words[starts[row] : starts[row + 1]])
                row += 1

    def close(self) -> None:
        """All that waits is written, and takes no memory from now on."""
        for bucket in np.flatnonzero(self._fills).tolist():
            self._flush(bucket)
        self._waiting = np.empty((0, 0), np.uint32)

    def _flush(self, bucket: int) -> None:
        self._write(bucket, self._waiting[bucket, : self._fills[bucket]])
        self._fills[bucket] = 0

    def _write(self, bucket: int, words: np.ndarray) -> None:
        head = np.array([self._last[bucket], len(words)])
        try:
            for part in (head, words):
                data = memoryview(part.data).cast("B")
                while data:
                    data = data[self._file.write(data) :]
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror}, while rows were mixed", str(self._path)) from error
        self._last[bucket] = self._end
        self._end += head.nbytes + words.nbytes
        self.sizes[bucket] += len(words)

    def chunks(self, bucket: int) -> Iterator[np.ndarray]:
        """The words of a bucket, uint32, whole rows at a time."""
        at = int(self._last[bucket])
        while at >= 0:
            self._file.seek(at)
            at, size = self._read(_HEAD, np.int64).tolist()
            yield self._read(size, np.uint32)

    def _read(self, count: int, kind: Any) -> np.ndarray:
        found: np.ndarray = np.empty(count, kind)
        data = memoryview(found.data).cast("B")
        while data:
            read = self._file.readinto(data)
            if not read:
                raise OSError("a file of rows that are being mixed was cut off")
            data = data[read:]
        return found


@njit(cache=True, error_model="numpy")
def _words_of(labels: np.ndarray, starts: np.ndarray, indices: np.ndarray, values: np.ndarray, features: int) -> np.ndarray:
    # Of a block, whose labels and values are given as words.
    n = len(labels) // 2
    words, at = np.empty(2 * n + len(starts[1:]) + len(indices) + len(values), np.uint32), np.int64(0)
    for row in range(n):
        words[at], words[at + 1] = labels[2 * row], labels[2 * row + 1]
        at += np.int64(2)
        begin = np.int64(starts[row]) if features < 0 else np.int64(row * features)
        size = np.int64(starts[row + 1]) - begin if features < 0 else np.int64(features)
        if features < 0:
            words[at] = size
            words[at + 1 : at + 1 + size] = indices[begin : begin + size]
            at += 1 + size
        words[at : at + size] = values[begin : begin + size]
        at += size
    return words


@njit(cache=True, error_model="numpy")
def _starts_of(words: np.ndarray, features: int) -> np.ndarray:
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
def _dealt(words: np.ndarray, starts: np.ndarray, which: np.ndarray, row: int, waiting: np.ndarray, fills: np.ndarray) -> int:
    # Rows, from ``row`` on, to where those of their buckets wait; the first one that does not fit there, or their number.
    room = waiting.shape[1]
    while row < len(which):
        bucket = which[row]
        size, at = starts[row + 1] - starts[row], fills[bucket]
        if at + size > room:
            return row
        waiting[bucket, at : at + size] = words[starts[row] : starts[row + 1]]
        fills[bucket] = at + size
        row += 1
    return row


@njit(cache=True, error_model="numpy")
def _end_of(starts: np.ndarray, order: np.ndarray, begin: int, most: int) -> int:
    # How far rows in this order go into so many words; one at least.
    end, size = begin, 0
    while end < len(order):
        size += starts[order[end] + 1] - starts[order[end]]
        if size > most and end > begin:
            return end
        end += 1
    return end


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
