"""Memory and disk: how a memory limit is divided, and writes that say what failed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import NamedTuple

import numpy as np

from streamsvm.core.checks import check_number


@contextmanager
def explained(what: str, path: Path) -> Iterator[None]:
    """Say in an OSError what was done to which file."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, while {what}", str(path)) from error


def write_all(file: FileIO, array: np.ndarray) -> None:
    """Write an array to a file without a buffer. A disk that is nearly full takes a part of it before it fails."""
    data = memoryview(np.ascontiguousarray(array).data).cast("B")
    while data:
        data = data[file.write(data) :]


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


def plan(limit: float, features: int = 0, largest_block: int = 0, blocks: int = 0) -> Plan:
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
