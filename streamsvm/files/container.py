"""The container of every file that streamsvm writes of a model: named arrays and a few strings, behind one checksum.

Beside it, limits for reading: a file of a kilobyte must not take hours, nor gigabytes.

The layout is that of safetensors: 8 bytes with the header's length, little-endian; the header, JSON, with the type, the shape and
the place of each array, and strings under ``__metadata__``; then the arrays, little-endian, without gaps. The last array,
``sha256``, is the SHA-256 of every byte before it, header and length included. So any reader of safetensors reads it, in C, Rust
or JavaScript as well, and no bit of it can change unseen.
"""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import stat
from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

#: The version of the format that is written. A reader reads this one and those before it.
VERSION = 1

#: Types of arrays, by their names in a header.
DTYPES = {
    name: np.dtype(code)
    for name, code in {
        "F64": "<f8",
        "F32": "<f4",
        "F16": "<f2",
        "I64": "<i8",
        "I32": "<i4",
        "I16": "<i2",
        "I8": "i1",
        "U64": "<u8",
        "U32": "<u4",
        "U16": "<u2",
        "U8": "u1",
        "BOOL": "?",
        "C64": "<c8",
    }.items()
}
_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CHECKSUM = "sha256"
_DIGEST_BYTES = hashlib.sha256().digest_size
_LONGEST_HEADER = 2**26
_MOST_DIMENSIONS = 32
_ALIGNMENT = 64
_KIND = "streamsvm"
_LARGE = 2**27  # bytes


class ModelFileError(Exception):
    """A model cannot be saved, or its file cannot be loaded.

    The message says why, and what to do: the file is missing or of a newer version, a class in it is unknown, or a value is of a
    type that no file holds.
    """


class CorruptFileError(ModelFileError):
    """The bytes are not as they were written, or not those of a file of streamsvm."""


class Container(NamedTuple):
    """The contents of a file."""

    arrays: dict[str, np.ndarray]
    """Read-only, without a copy."""
    strings: dict[str, str]


def pack_container(arrays: Mapping[str, np.ndarray], strings: Mapping[str, str]) -> bytes:
    """Return the bytes of a container. Equal contents give equal bytes.

    Arrays are C-contiguous, of the types of `DTYPES`, in either byte order. It is a ValueError if one is of another type, or the
    header is too long.

    >>> data = pack_container({"a": np.arange(3)}, {"kind": "numbers"})
    >>> unpack_container(data).arrays["a"], unpack_container(data).strings["kind"]
    (array([0, 1, 2]), 'numbers')
    """
    little = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()}
    for name, array in little.items():
        if array.dtype not in _NAMES:
            raise ValueError(f"an array of {arrays[name].dtype} cannot be saved: numbers and bools of up to 8 bytes can")
    # The largest items first: then each array begins at a multiple of its item's size.
    order = sorted(little, key=lambda name: (-little[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {**strings, "format": _KIND, "version": str(VERSION)}}
    at = 0
    for name in order:
        array = little[name]
        entry = {"dtype": _NAMES[array.dtype], "shape": array.shape, "data_offsets": [at, at + array.nbytes]}
        header[name], at = entry, at + array.nbytes
    header[_CHECKSUM] = {"dtype": "U8", "shape": [_DIGEST_BYTES], "data_offsets": [at, at + _DIGEST_BYTES]}
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT)
    if len(text) > _LONGEST_HEADER:
        raise ValueError(f"{len(little):,} arrays are too many for one file: their header has {len(text):,} bytes")
    parts: list[Any] = [len(text).to_bytes(8, "little"), text, *(little[name].ravel() for name in order)]
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return b"".join([*parts, checksum.digest()])  # the only copy


def read_file(path: Path) -> bytes:
    """Read the bytes of a file. A large file is read only if it is as long as its header says.

    Raises OSError if it cannot be read, or is a device or a pipe, which may never end, and CorruptFileError if it has another
    length.
    """
    without_wait = getattr(os, "O_NONBLOCK", 0)  # else a FIFO waits for its writer
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | without_wait)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a device or a pipe, and no file")
        if status.st_size > _LARGE and _length_in(file) != status.st_size:
            raise CorruptFileError("it is cut off, or not a file of streamsvm")
        file.seek(0)
        return file.read()


def _length_in(file: BinaryIO) -> int | None:
    """Return how many bytes a container has according to its header; None where it has none."""
    n_header = int.from_bytes(file.read(8), "little")
    if n_header > _LONGEST_HEADER:
        return None
    try:
        header = json.loads(file.read(n_header))
        is_ours = header.pop("__metadata__")["format"] == _KIND
        return 8 + n_header + max(int(entry["data_offsets"][1]) for entry in header.values()) if is_ours else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def unpack_container(data: bytes) -> Container:
    """Read the bytes of a container.

    Raises CorruptFileError if they are not as they were written, or not those of a container, and ModelFileError if they were
    written by a newer version.
    """
    n_header = int.from_bytes(data[:8], "little")
    if len(data) < 8 + _DIGEST_BYTES or n_header > min(_LONGEST_HEADER, len(data) - 8 - _DIGEST_BYTES):
        raise CorruptFileError("it is cut off, or not a file of streamsvm")
    if hashlib.sha256(memoryview(data)[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise CorruptFileError("its checksum is wrong")
    try:
        header = json.loads(data[8 : 8 + n_header], object_pairs_hook=_unique_pairs, parse_constant=_refuse_constant)
        strings = header.pop("__metadata__")
        if strings["format"] != _KIND or not all(isinstance(value, str) for value in strings.values()):
            raise CorruptFileError("it is not a file of streamsvm")
        version = int(strings["version"])
        if version > VERSION:
            raise ModelFileError(f"it has version {version} of the format, and this streamsvm reads up to {VERSION}: upgrade it")
        arrays = _read_arrays(header, memoryview(data)[8 + n_header :])
    except ModelFileError:
        raise
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise CorruptFileError(f"its header is none of streamsvm ({type(error).__name__}: {error})") from error
    if arrays.pop(_CHECKSUM, None) is None:
        raise CorruptFileError("its header has no checksum")
    return Container(arrays, strings)


def _read_arrays(header: dict[str, Any], buffer: memoryview) -> dict[str, np.ndarray]:
    # Every count is Python's integer here, so that none overflows; the arrays follow one another and fill the buffer.
    arrays, at = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (begin, end) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        counts = [begin, end, *shape]
        if not all(type(n) is int and 0 <= n <= len(buffer) for n in counts) or len(shape) > _MOST_DIMENSIONS:
            raise CorruptFileError(f"the header's counts of {name} are none: {counts}")
        if begin != at or end - begin != math.prod(shape) * dtype.itemsize or end > len(buffer):
            raise CorruptFileError(f"the header's places of {name} do not fit its shape, or the array before it")
        array = np.frombuffer(buffer, dtype, math.prod(shape), begin) if end > begin else np.empty(math.prod(shape), dtype)
        if entry["dtype"] == "BOOL" and (array.view(np.uint8) > 1).any():
            raise CorruptFileError(f"{name} holds bools that are neither")
        arrays[name], at = array.reshape(shape), end
    if at != len(buffer):
        raise CorruptFileError(f"{len(buffer) - at:,} bytes belong to no array")
    return arrays


def _unique_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise CorruptFileError("a name stands twice in its header")
    return unique


def _refuse_constant(constant: str) -> None:
    raise CorruptFileError(f"its header holds {constant}")


#: Records that count as one value for their holders: they are compared by identity and shown by their class.
_OPAQUE = frozenset({"instance", "state", "pickle"})
#: A walk may meet 64 times as many values as a file holds, and at least 2**20.
_TIMES, _FREE = 64, 2**20
_NESTED = frozenset({dict, list})
_WORD = 64  # bytes of an array that count as one value
_FEW, _MOST_ALIKE = 1000, 100  # keys, and those of them with one hash


def check_sharing(records: Sequence[Any], root: Any, arrays: Sequence[np.ndarray]) -> None:
    """Raise a ModelFileError where lists within lists share so much that to walk through them would not end.

    Forty lists that each hold the next one twice are a file of a kilobyte, and 2**40 values for who compares or prints the first.
    So the values are counted that a walk would meet, before anything is made of them: more than a million, and more than 64 times
    those that the file holds, are too many. An instance ends a walk.
    """
    counted = [_held_values(record, arrays) for record in records]
    own = [count for count, _ in counted]
    opaque = [_record_kind(record) in _OPAQUE for record in records]
    held = [[number for number in inner if number < len(records)] for _, inner in counted]
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
                    raise ModelFileError(_TOO_MANY)
    # Each instance, and the root, may walk through its values.
    total = sum(size for size, ends in zip(sizes, opaque, strict=True) if ends)
    total += sum(sizes[inner] for inner in root_held if inner < len(records))
    if total > most:
        raise ModelFileError(_TOO_MANY)


_TOO_MANY = "its records share so much that it would never be read to the end: no model does that"


def _record_kind(record: Any) -> str:
    if type(record) is not list or not record or type(record[0]) is not str:
        raise ModelFileError("it holds a record of no kind")
    return record[0]


def _held_values(tree: Any, arrays: Sequence[np.ndarray]) -> tuple[int, list[int]]:
    """The number of values that are written in a part of a tree, and the records that it names."""
    if type(tree) is list and len(tree) > 1 and tree[0] in ("array", "bytearray", "string_array"):
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
                if tag == "ref" and type(inner) is int and inner >= 0:
                    held.append(inner)
                elif tag == "bytes":
                    count += _array_words(inner, arrays)
                elif inner.__class__ is list or inner.__class__ is dict:
                    stack.append(inner)
    return count, held


def _array_words(number: Any, arrays: Sequence[np.ndarray]) -> int:
    return arrays[number].nbytes // _WORD if type(number) is int and 0 <= number < len(arrays) else 0


def check_hash_collisions(keys: Iterable[Hashable]) -> None:
    """Raise a ModelFileError where many keys have the same hash: to put them into a dict takes the square of their number.

    >>> check_hash_collisions(range(10**4))
    >>> check_hash_collisions((2**61 - 1) * n for n in range(10**4))
    Traceback (most recent call last):
        ...
    streamsvm.files.container.ModelFileError: 10,000 of its keys have the same hash: no model has such
    """
    hashes = [hash(key) for key in keys]
    if len(hashes) <= _FEW:
        return
    alike = max(Counter(hashes).values())
    if alike > _MOST_ALIKE:
        raise ModelFileError(f"{alike:,} of its keys have the same hash: no model has such")
