"""How a limit of memory is shared out."""

from __future__ import annotations

from typing import NamedTuple

from streamsvm.checks import check_number

__all__ = ["DEFAULT_LIMIT", "Plan", "hessian_fits", "plan"]

DEFAULT_LIMIT = 2**28
_LARGEST_BLOCK = 2**20
_SMALLEST_BLOCK = 2**12
_SHARE = 16  # of the limit: a block
_BLOCKS = 5  # that are in memory, or copies of parts of one
_COPIES = 4  # of a block of undecided rows, while it is written or learned
_OBJECTS = 2**15  # bytes, of whatever size rows are
_INDEX = 96  # bytes a block
_VECTORS = 3  # of the length of w
_LARGEST_UNDECIDED = 2**28
_HESSIANS = 4  # with its factors, and copies
_LARGEST_HESSIAN = 2048  # features: with more, a pass takes long


class Plan(NamedTuple):
    """Bytes."""

    block: int
    """Of a block of all rows that is written."""
    undecided: int
    """Of a block of undecided ones, which is learned as long as it pays."""


def plan(limit: float, features: int = 0, largest_block: int = 0, blocks: int = 0) -> Plan:
    """What fits into a limit, for rows of so many features in so many blocks.

    Raises
    ------
    ValueError
        It is no number, or too small.
    """
    check_number("memory_limit", limit, 0.0)
    block = int(min(max(limit / _SHARE, _SMALLEST_BLOCK), _LARGEST_BLOCK))
    fixed = _OBJECTS + 8 * _VECTORS * (features + 1) + _INDEX * blocks
    undecided = int(min((limit - fixed - _BLOCKS * max(block, largest_block)) / _COPIES, _LARGEST_UNDECIDED))
    if undecided < _SMALLEST_BLOCK:
        least = fixed + _COPIES * _SMALLEST_BLOCK
        needed = max(least / (1.0 - _BLOCKS / _SHARE), least + _BLOCKS * max(largest_block, _SMALLEST_BLOCK)) + 1.0
        what = f"{features:,} features and blocks of up to {largest_block:,} bytes" if features else "anything"
        hint = ", or smaller blocks" if largest_block > 2 * block else ""
        raise ValueError(f"memory_limit={limit:,.0f} bytes is too little for {what}: {needed:,.0f} are needed{hint}")
    return Plan(block, undecided)


def hessian_fits(limit: float, features: int) -> bool:
    """Whether there is room for Newton's method: a quarter of the memory is for what it takes beside blocks."""
    return features < _LARGEST_HESSIAN and 8.0 * _HESSIANS * (features + 1) ** 2 <= 0.25 * limit
