"""An external shuffle for rows that come sorted: coordinate ascent over one class after the other takes several times the passes.

Rows are dealt at random to buckets, which are block files too, and those of each bucket again, until a bucket fits into memory;
there its rows are permuted.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.linear.block_file import Block, BlockFile, take_rows
from streamsvm.linear.block_writer import FILE_BUFFER_BYTES, BlockWriter

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
