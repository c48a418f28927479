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

from streamsvm.linear.block_file import Block, BlockFile, join_blocks, take_rows
from streamsvm.linear.block_writer import BlockWriter

_IN_MEMORY = 0.25  # the rows that wait in all buckets, and later a bucket, take this part of the memory
_COPIES = 3  # of a bucket in memory: its blocks, all of them as one, and the bucket before
_LEAST_BLOCK, _MOST_BUCKETS = 2**13, 16  # bytes of a block of a bucket, and files that are open at once
_DEEPEST = 12  # times that rows are dealt: a few large rows may meet in a bucket each time


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
            room, rng = int(max(_IN_MEMORY * memory, 2 * _LEAST_BLOCK)), np.random.default_rng(0)
            for rows in _dealt_rows(first, Path(folder), kind, room, rng):
                for some in np.array_split(rng.permutation(len(rows.labels)), -(-room // block_bytes)):
                    mixed.append(take_rows(rows, some), writer.shape[1])
            mixed.meta = writer.meta


def _dealt_rows(
    source: Path, folder: Path, kind: dict[str, Any], room: int, rng: np.random.Generator, depth: int = 0
) -> Iterator[Block]:
    """Give the rows of a block file, which is removed, in as many parts as memory needs: dealt to them at random."""
    with BlockFile(source) as file:
        need = _COPIES * file.nbytes
        fits = need <= room or file.shape[0] <= 1 or depth == _DEEPEST
        count = min(max(-(-6 * need // (5 * room)), 2), room // _LEAST_BLOCK, _MOST_BUCKETS)
        buckets = [] if fits else [folder / f"{depth}-{bucket}" for bucket in range(count)]
        if fits and len(file):
            yield join_blocks([file.block(number) for number in range(len(file))])
        elif not fits:
            _deal(file, buckets, {**kind, "block_bytes": room // count, "durable": False}, rng)
    source.unlink()
    for path in buckets:
        yield from _dealt_rows(path, folder, kind, room, rng, depth + 1)


def _deal(file: BlockFile, buckets: list[Path], kind: dict[str, Any], rng: np.random.Generator) -> None:
    """Deal the rows of a file at random to others, which are written."""
    with ExitStack() as stack:
        writers = [stack.enter_context(BlockWriter(path, **kind)) for path in buckets]
        for block in map(file.block, range(len(file))):
            which = rng.integers(len(buckets), size=len(block.labels))
            for bucket in np.unique(which).tolist():
                writers[bucket].append(take_rows(block, np.flatnonzero(which == bucket)), file.shape[1])
