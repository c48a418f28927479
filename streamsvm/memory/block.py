"""A model's memory: one block of bytes, as arrays for Python and for compiled code.

A compiled function takes the whole model as one argument, and opens what it uses of it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing
from numba import carray, njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

__all__ = [
    "LARGEST",
    "LARGEST_COEFFICIENT",
    "LINE",
    "STATE_BEGIN",
    "STATE_END",
    "allocate",
    "array_at",
    "check_size",
    "pointer",
    "record",
    "rounded_up",
]

#: Where in a block the learner's own numbers are: its step counter, schedule, random state, statistics.
STATE_BEGIN, STATE_END = 128, 384

LINE = 64  # bytes of a cache line; every array of a block starts on one

#: Of any number that learning leads to.
LARGEST = 1e100
#: Of a coefficient that a projection leaves: from short vectors to long ones and back, it could grow for ever.
LARGEST_COEFFICIENT = 1e40


def allocate(size: int, what: str) -> np.ndarray:
    """Zeros, uint8 [size], that begin on a cache line.

    Raises
    ------
    ValueError
        There is no room for ``what``.
    """
    try:
        memory = np.zeros(size + LINE, np.uint8)
    except (MemoryError, ValueError) as error:
        raise ValueError(f"{what} need {size:,} bytes, more than this machine has: lower one of them") from error
    start = -memory.ctypes.data % LINE
    return memory[start : start + size]


def check_size(name: str, size: object, least: int) -> None:
    """Raise a ValueError that names a size which is no integer from ``least`` to 2^31 - 1."""
    if isinstance(size, bool) or not isinstance(size, int | np.integer) or not least <= size < 2**31:
        raise ValueError(f"{name} must be an integer between {least} and 2^31 - 1, not {size!r}")


def rounded_up(n: int) -> int:
    """``n`` numbers of 4 bytes, rounded up to whole cache lines."""
    return (4 * n + LINE - 1) // LINE * LINE // 4


def array_at(block: np.ndarray, start: int, shape: tuple[int, ...], dtype: np.typing.DTypeLike) -> np.ndarray:
    """The array of a block (uint8 [bytes]) that begins at byte ``start``, without a copy."""
    dtype = np.dtype(dtype)
    return block[start : start + math.prod(shape) * dtype.itemsize].view(dtype).reshape(shape)


@intrinsic
def pointer(typingctx: Any, address: Any) -> Any:
    """A pointer to an address, in compiled code."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.uintp), codegen


@overload(array_at)
def _compiled_array(block: Any, start: Any, shape: Any, dtype: Any) -> Any:
    # Without a reference count, which would cost more than the work on a small model: the block outlives every call.
    def array(block: Any, start: Any, shape: Any, dtype: Any) -> Any:
        return carray(pointer(np.uintp(block.ctypes.data) + np.uintp(start)), shape, dtype)

    return array


@njit(cache=True, forceinline=True)
def record(block: np.ndarray, start: int, dtype: np.typing.DTypeLike) -> np.ndarray:
    """The record of a block that begins at byte ``start``, for compiled code to read and write."""
    return array_at(block, start, (1,), dtype)[0]
