"""Bounds of what a file makes of its bytes: a file of a kilobyte must not ask for hours, nor for gigabytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Sequence
from typing import Any

import numpy as np

from streamsvm.files.container import CorruptError

#: Records that others see as one value, whatever they hold: they are compared by identity and shown by their class.
_OPAQUE = frozenset({"instance", "model", "pickle"})
#: What is shared may be met so many times as often as it is written, and a small file may do so this often at least.
_TIMES, _FREE = 64, 2**20
_NESTED = frozenset({dict, list})
_WORD = 64  # bytes of an array that count as one value
_FEW, _MOST_ALIKE = 1000, 100  # keys, and those of them with one hash


def check_shared(records: Sequence[Any], root: Any, arrays: Sequence[np.ndarray]) -> None:
    """Raise a CorruptError where lists within lists share so much that to walk through them would not end.

    Forty lists that each hold the next one twice are a file of a kilobyte, and 2**40 values for who compares or prints the first.
    So the values are counted that a walk would meet, before anything is made of them: more than a million, and more than 64 times
    those that the file holds, are too many. An instance ends a walk.
    """
    found = [_held_values(record, arrays) for record in records]
    own = [count for count, _ in found]
    opaque = [_record_kind(record) in _OPAQUE for record in records]
    held = [[number for number in inner if number < len(records)] for _, inner in found]
    root_own, root_held = _held_values(root, arrays)
    most = _FREE + _TIMES * (sum(own) + root_own)
    sizes = [0] * len(records)  # 0: not met yet, -1: being counted
    for start in range(len(records)):
        stack = [start]
        while stack:
            at = stack[-1]
            if sizes[at] == 0:
                sizes[at] = -1
                stack += [inner for inner in held[at] if sizes[inner] == 0 and not opaque[inner]]
                continue
            stack.pop()
            if sizes[at] < 0:
                sizes[at] = own[at] + sum(1 if opaque[inner] else max(sizes[inner], 1) for inner in held[at])
                if sizes[at] > most:
                    raise CorruptError(_TOO_MANY)
    # Each instance and the root may walk through what they hold.
    total = sum(size for size, ends in zip(sizes, opaque, strict=True) if ends)
    total += sum(sizes[inner] for inner in root_held if inner < len(records))
    if total > most:
        raise CorruptError(_TOO_MANY)


_TOO_MANY = "its records share so much that it would never be read to the end: no model does that"


def _record_kind(record: Any) -> str:
    if type(record) is not list or not record or type(record[0]) is not str:
        raise CorruptError("it holds a record of no kind")
    return record[0]


def _held_values(tree: Any, arrays: Sequence[np.ndarray]) -> tuple[int, list[int]]:
    """The number of values that are written in a part of a tree, and the records that it names."""
    if type(tree) is list and len(tree) > 1 and tree[0] in ("array", "bytearray", "texts"):
        return 1 + len(tree) + _array_words(tree[1], arrays), []
    count, held, stack = 1, [], [tree]
    while stack:
        node = stack.pop()
        if node.__class__ is list:
            count += len(node)
            if not _NESTED.isdisjoint(map(type, node)):
                stack += [inner for inner in node if inner.__class__ is dict or inner.__class__ is list]
        elif node.__class__ is dict:
            count += len(node)
            for tag, inner in node.items():
                if tag == "at" and type(inner) is int and inner >= 0:
                    held.append(inner)
                elif tag == "bytes":
                    count += _array_words(inner, arrays)
                elif inner.__class__ is list or inner.__class__ is dict:
                    stack.append(inner)
    return count, held


def _array_words(number: Any, arrays: Sequence[np.ndarray]) -> int:
    return arrays[number].nbytes // _WORD if type(number) is int and 0 <= number < len(arrays) else 0


def check_hashes(keys: Iterable[Hashable]) -> None:
    """Raise a CorruptError where many keys have the same hash: to put them into a dict takes the square of their number.

    >>> check_hashes(range(10**4))
    >>> check_hashes((2**61 - 1) * n for n in range(10**4))
    Traceback (most recent call last):
        ...
    streamsvm.files.container.CorruptError: 10,000 of its keys have the same hash: no model has such
    """
    hashes = [hash(key) for key in keys]
    if len(hashes) <= _FEW:
        return
    alike = max(Counter(hashes).values())
    if alike > _MOST_ALIKE:
        raise CorruptError(f"{alike:,} of its keys have the same hash: no model has such")
