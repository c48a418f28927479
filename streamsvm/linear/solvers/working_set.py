"""Rows on disk with their coefficients, and the working set: a copy of the rows whose coefficients are free."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamsvm.linear.files.block_file import Block, BlockFile, take_sparse
from streamsvm.linear.files.block_writer import BlockWriter
from streamsvm.linear.files.coefficients import Coefficients

__all__ = ["StoredRows", "coefficients_of", "take", "working_set_writer"]


class StoredRows(NamedTuple):
    """Rows on disk with their coefficients."""

    file: BlockFile
    b: Coefficients

    def close(self) -> None:
        """Close the files."""
        self.file.close()
        self.b.close()

    def remove(self) -> None:
        """Close and remove the files."""
        self.close()
        self.file.path.unlink(missing_ok=True)
        self.b.remove()


def coefficients_of(path: Path) -> Path:
    """Return the stem of the names of the files that hold the coefficients of a working set."""
    return path.with_name(f"{path.name}-b")


@contextmanager
def working_set_writer(
    path: Path, *, like: BlockFile, block_bytes: int, durable: bool
) -> Iterator[tuple[BlockWriter, Coefficients]]:
    """Give a writer of rows of a file and their coefficients. If something fails, no files are left."""
    kind = {"dense": like.dense, "weighted": like.weighted}
    with BlockWriter(path, **kind, numbered=True, block_bytes=block_bytes, durable=durable) as writer:
        b = Coefficients(coefficients_of(path), 0)
        try:
            yield writer, b
        except BaseException:
            b.remove()
            raise


def take(block: Block, rows: np.ndarray) -> Block:
    """Return some rows, int64, of a block, with the numbers that they have in the file of all rows."""
    numbers = block.numbers[rows] if len(block.numbers) else rows.astype(np.uint64) + np.uint64(block.first)
    values: tuple[np.ndarray, np.ndarray, np.ndarray]
    if len(block.starts):
        values = take_sparse(block, rows)
    else:
        values = block.starts, block.indices, block.values.reshape(len(block.labels), -1)[rows].reshape(-1)
    starts, indices, found = values
    weights = block.weights[rows] if len(block.weights) else block.weights
    return Block(0, block.labels[rows], numbers, starts, indices, found, weights)
