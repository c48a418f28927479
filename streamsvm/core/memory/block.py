"""Blocks of memory, as arrays for Python and for compiled code.

A block is all that a model holds, as one run of bytes: a compiled function takes it as one argument, and opens the arrays that it
uses.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing

from streamsvm.core.compiling.calls import Intrinsic

__all__ = [
    "LARGEST",
    "LARGEST_COEFFICIENT",
    "LINE",
    "STATE_BEGIN",
    "STATE_END",
    "allocate",
    "array_at",
    "check_size",
    "record",
    "rounded_up",
]

#: The bytes of a block that hold the learner's state: its step counter, schedule, random state, statistics.
STATE_BEGIN, STATE_END = 128, 384

#: Bytes of a cache line: every array of a block starts on one.
LINE = 64

#: The largest number that a model can hold.
LARGEST = 1e100
#: The largest coefficient after a projection: from short vectors to long ones and back, it could grow for ever.
LARGEST_COEFFICIENT = 1e40


def allocate(size: int, what: str) -> np.ndarray:
    """Return zeros, uint8 [size], that begin on a cache line.

    Raises
    ------
    ValueError
        They do not fit into memory. The message begins with ``what``, the sizes to blame.
    """
    try:
        memory = np.zeros(size + LINE, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"{what} need {size:,} bytes, more than this machine has: lower one of them") from error
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def check_size(name: str, size: object, least: int) -> None:
    """Raise a ValueError that names a size which is not an integer from ``least`` to 2^31 - 1."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not least <= size < 2**31:
        raise ValueError(f"{name} must be an integer between {least} and 2^31 - 1, not {size!r}")


def rounded_up(n: int) -> int:
    """Return ``n`` rounded up so that so many numbers of 4 bytes fill whole cache lines."""
    return (4 * n + LINE - 1) // LINE * LINE // 4


def array_at(block: np.ndarray, start: int, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """Return the array of a block (uint8 [bytes]) that begins at byte ``start``, without a copy."""
    dtype = np.dtype(dtype)
    return block[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


def _record(block: np.ndarray, start: int, dtype: np.typing.DTypeLike) -> Any:
    """Return the record of a block that begins at byte ``start``, to read and write, in Python and in compiled code."""
    return array_at(block, start, (1,), dtype)[0]


record: Callable[..., Any] = Intrinsic(lambda codegen: codegen.record(_record), interpreted=_record)
