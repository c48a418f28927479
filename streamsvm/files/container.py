"""The binary container of all model files: named arrays and strings with a checksum.

The layout is that of safetensors: 8 bytes with the length of the header (little-endian); the JSON header, with the dtype, shape
and offsets of each array, and strings under ``__metadata__``; then the arrays, little-endian and without gaps. The last array,
``sha256``, is the SHA-256 of all bytes before it. So every safetensors reader can read a file, also in C, Rust or JavaScript, and
every changed bit is detected.

The checks at the end of this module limit the work of readers: a crafted file of a kilobyte must not take hours or gigabytes.
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

#: Format version that is written. This version and all earlier ones can be read.
VERSION = 1

#: Dtypes by their names in the header.
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
_DTYPE_NAMES = {dtype: name for name, dtype in DTYPES.items()}
_CHECKSUM_NAME = "sha256"
_DIGEST_BYTES = hashlib.sha256().digest_size
_MAX_HEADER_BYTES = 2**26
_MAX_DIMENSIONS = 32
_ALIGNMENT_BYTES = 64
_FORMAT = "streamsvm"
_LARGE_FILE_BYTES = 2**27


class ModelFileError(Exception):
    """A model cannot be saved, or its file cannot be loaded.

    The message names the reason and the remedy: the file is missing or of a newer version, it contains an unknown class, or a
    value has a type that cannot be saved.
    """


class CorruptFileError(ModelFileError):
    """The file is damaged, or is not a model file of streamsvm."""


class Container(NamedTuple):
    """The contents of a model file."""

    arrays: dict[str, np.ndarray]
    """Read-only arrays that share the file's memory."""
    strings: dict[str, str]


def pack_container(arrays: Mapping[str, np.ndarray], strings: Mapping[str, str]) -> bytes:
    """Serialise named numpy arrays and named strings to the bytes of a file in the safetensors layout, which end with a SHA-256
    checksum. Equal contents give equal bytes.

    Arrays must be C-contiguous, with a dtype of `DTYPES` in either byte order. Raises ValueError if a dtype is unsupported, or
    there are too many arrays.

    >>> data = pack_container({"a": np.arange(3)}, {"kind": "numbers"})
    >>> unpack_container(data).arrays["a"], unpack_container(data).strings["kind"]
    (array([0, 1, 2]), 'numbers')
    """
    swapped = {name: array.astype(array.dtype.newbyteorder("<"), copy=False) for name, array in arrays.items()}
    for name, array in swapped.items():
        if array.dtype not in _DTYPE_NAMES:
            raise ValueError(f"an array of {arrays[name].dtype} cannot be saved: numbers and bools of up to 8 bytes can")
    # Sorted by falling item size, so that each array begins at a multiple of its item size.
    order = sorted(swapped, key=lambda name: (-swapped[name].dtype.itemsize, name))
    header: dict[str, Any] = {"__metadata__": {**strings, "format": _FORMAT, "version": str(VERSION)}}
    offset = 0
    for name in order:
        array = swapped[name]
        entry = {"dtype": _DTYPE_NAMES[array.dtype], "shape": array.shape, "data_offsets": [offset, offset + array.nbytes]}
        header[name], offset = entry, offset + array.nbytes
    header[_CHECKSUM_NAME] = {"dtype": "U8", "shape": [_DIGEST_BYTES], "data_offsets": [offset, offset + _DIGEST_BYTES]}
    text = json.dumps(header, separators=(",", ":"), sort_keys=True).encode()
    text += b" " * (-(8 + len(text)) % _ALIGNMENT_BYTES)
    if len(text) > _MAX_HEADER_BYTES:
        raise ValueError(f"{len(swapped):,} arrays are too many for one file: their header has {len(text):,} bytes")
    parts: list[Any] = [len(text).to_bytes(8, "little"), text, *(swapped[name].ravel() for name in order)]
    checksum = hashlib.sha256()
    for part in parts:
        checksum.update(part)
    return b"".join([*parts, checksum.digest()])  # the only copy


def read_file(path: Path) -> bytes:
    """Read all bytes of a model file. A file above 128 MB is read only if its size agrees with the array offsets in its header,
    so that another kind of file is not loaded into memory.

    Raises OSError if the path cannot be read, or is a device or a pipe, which may be endless, and CorruptFileError if a large
    file has the wrong size.
    """
    nonblocking = getattr(os, "O_NONBLOCK", 0)  # without it, opening a FIFO waits for a writer
    with open(path, "rb", opener=lambda path, flags: os.open(path, flags | nonblocking)) as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise OSError(errno.EINVAL, "it is a device or a pipe, not a file")
        if status.st_size > _LARGE_FILE_BYTES and _read_expected_size(file) != status.st_size:
            raise CorruptFileError("it is cut off, or not a file of streamsvm")
        file.seek(0)
        return file.read()


def _read_expected_size(file: BinaryIO) -> int | None:
    """Read the header of an open model file, and return the size in bytes that the whole file should have. Returns None if the
    header is invalid, or if the file is not from streamsvm.
    """
    header_bytes = int.from_bytes(file.read(8), "little")
    if header_bytes > _MAX_HEADER_BYTES:
        return None
    try:
        header = json.loads(file.read(header_bytes))
        is_ours = header.pop("__metadata__")["format"] == _FORMAT
        return 8 + header_bytes + max(int(entry["data_offsets"][1]) for entry in header.values()) if is_ours else None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return None


def unpack_container(data: bytes) -> Container:
    """Deserialise ``data``, the bytes of a file that `pack_container` returned, to named arrays, which are read-only views of the
    bytes, and named strings. Verifies the checksum.

    Raises CorruptFileError if the data are damaged or not a container, and ModelFileError if a newer version has written them.
    """
    header_bytes = int.from_bytes(data[:8], "little")
    if len(data) < 8 + _DIGEST_BYTES or header_bytes > min(_MAX_HEADER_BYTES, len(data) - 8 - _DIGEST_BYTES):
        raise CorruptFileError("it is cut off, or not a file of streamsvm")
    if hashlib.sha256(memoryview(data)[:-_DIGEST_BYTES]).digest() != data[-_DIGEST_BYTES:]:
        raise CorruptFileError("its checksum is wrong")
    try:
        header = json.loads(data[8 : 8 + header_bytes], object_pairs_hook=_make_unique_dict, parse_constant=_reject_constant)
        strings = header.pop("__metadata__")
        if strings["format"] != _FORMAT or not all(isinstance(value, str) for value in strings.values()):
            raise CorruptFileError("it is not a file of streamsvm")
        version = int(strings["version"])
        if version > VERSION:
            raise ModelFileError(f"it has version {version} of the format, and this streamsvm reads up to {VERSION}: upgrade it")
        arrays = _read_arrays(header, memoryview(data)[8 + header_bytes :])
    except ModelFileError:
        raise
    except (KeyError, TypeError, AttributeError, RecursionError, ValueError) as error:
        raise CorruptFileError(f"its header is invalid ({type(error).__name__}: {error})") from error
    if arrays.pop(_CHECKSUM_NAME, None) is None:
        raise CorruptFileError("its header has no checksum")
    return Container(arrays, strings)


def _read_arrays(header: dict[str, Any], buffer: memoryview) -> dict[str, np.ndarray]:
    """Return the arrays that a file's JSON ``header`` describes by name (dtype, shape, offsets), as views of ``buffer``, the
    bytes after the header. Raises CorruptFileError unless the arrays fill the buffer without gaps.
    """
    arrays, next_offset = {}, 0
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        dtype, shape, (start, stop) = DTYPES[entry["dtype"]], entry["shape"], entry["data_offsets"]
        sizes = [start, stop, *shape]  # Python integers, which cannot overflow
        if not all(type(n) is int and 0 <= n <= len(buffer) for n in sizes) or len(shape) > _MAX_DIMENSIONS:
            raise CorruptFileError(f"the header has invalid offsets or sizes for {name}: {sizes}")
        if start != next_offset or stop - start != math.prod(shape) * dtype.itemsize or stop > len(buffer):
            raise CorruptFileError(f"the offsets of {name} in the header do not fit its shape, or the array before it")
        array = np.frombuffer(buffer, dtype, math.prod(shape), start) if stop > start else np.empty(math.prod(shape), dtype)
        if entry["dtype"] == "BOOL" and (array.view(np.uint8) > 1).any():
            raise CorruptFileError(f"{name} has bools other than 0 and 1")
        arrays[name], next_offset = array.reshape(shape), stop
    if next_offset != len(buffer):
        raise CorruptFileError(f"{len(buffer) - next_offset:,} bytes belong to no array")
    return arrays


def _make_unique_dict(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Convert the (name, value) ``pairs`` of a JSON object to a dict. Raises CorruptFileError if a name occurs twice."""
    unique = dict(pairs)
    if len(unique) != len(pairs):
        raise CorruptFileError("its header repeats a name")
    return unique


def _reject_constant(constant: str) -> None:
    """Raise CorruptFileError for the non-standard JSON constant NaN, Infinity or -Infinity, as a hook of the JSON parser."""
    raise CorruptFileError(f"its header contains {constant}")


#: Kinds of records that count as one value where they are referenced, because comparison and repr do not descend into them.
_OPAQUE_KINDS = frozenset({"instance", "state", "pickle"})
#: Traversing all references may visit 64 times as many values as the file contains, or 2**20 if that is more.
_MAX_VISITS_PER_VALUE, _MIN_VISIT_LIMIT = 64, 2**20
_NESTED_TYPES = frozenset({dict, list})
_BYTES_PER_VALUE = 64  # this many bytes of an array count as one value
_MIN_KEYS_TO_CHECK, _MAX_HASH_COLLISIONS = 1000, 100


def check_sharing(records: Sequence[Any], root: Any, arrays: Sequence[np.ndarray]) -> None:
    """Raise ModelFileError if the objects in a model file reference each other so heavily that printing or comparing the object
    ``root`` would practically never end. ``records`` are the JSON descriptions of its objects, which reference each other by
    number, and ``arrays`` the arrays of the file.

    For example, forty lists that each contain the next one twice are a file of a kilobyte, but comparing or printing the first
    one visits 2**40 values. So the visits are counted before any object is created. The limit is a million visits, or 64 times
    the number of values in the file if that is more. A traversal does not descend into instances.
    """
    counts_and_references = [_count_values(record, arrays) for record in records]
    own_counts = [count for count, _ in counts_and_references]
    is_opaque = [_read_record_kind(record) in _OPAQUE_KINDS for record in records]
    references = [[number for number in numbers if number < len(records)] for _, numbers in counts_and_references]
    root_count, root_references = _count_values(root, arrays)
    max_visits = _MIN_VISIT_LIMIT + _MAX_VISITS_PER_VALUE * (sum(own_counts) + root_count)
    visits = [0] * len(records)  # of a traversal from each record; 0: not counted yet, -1: being counted
    for start in range(len(records)):
        stack = [start]
        while stack:
            record = stack[-1]
            if visits[record] == 0:
                visits[record] = -1
                stack += [number for number in references[record] if visits[number] == 0 and not is_opaque[number]]
                continue
            stack.pop()
            if visits[record] < 0:
                inner = sum(1 if is_opaque[number] else max(visits[number], 1) for number in references[record])
                visits[record] = own_counts[record] + inner
                if visits[record] > max_visits:
                    raise ModelFileError(_TOO_MUCH_SHARING)
    # Each instance may traverse its own values, and so may the root.
    total = sum(count for count, opaque in zip(visits, is_opaque, strict=True) if opaque)
    total += sum(visits[number] for number in root_references if number < len(records))
    if total > max_visits:
        raise ModelFileError(_TOO_MUCH_SHARING)


_TOO_MUCH_SHARING = "its records share so much that it would never be read to the end: no model does that"


def _read_record_kind(record: Any) -> str:
    """Return the kind of a record from a model file, the string that is the first item of the list. Raises ModelFileError if the
    record is not a list that starts with a string.
    """
    if type(record) is not list or not record or type(record[0]) is not str:
        raise ModelFileError("it contains a record without a kind")
    return record[0]


def _count_values(tree: Any, arrays: Sequence[np.ndarray]) -> tuple[int, list[int]]:
    """Count the values in ``tree``, a JSON value of a model file, without those of other records that it references. An array in
    ``arrays`` that it references counts as one value for each 64 bytes. Returns (count, list of the numbers of the referenced
    records).
    """
    if type(tree) is list and len(tree) > 1 and tree[0] in ("array", "bytearray", "string_array"):
        return 1 + len(tree) + _count_array_values(tree[1], arrays), []
    count, references, stack = 1, [], [tree]
    while stack:
        node = stack.pop()
        if node.__class__ is list:
            count += len(node)
            if not _NESTED_TYPES.isdisjoint(map(type, node)):
                stack += [inner for inner in node if inner.__class__ is dict or inner.__class__ is list]
        elif node.__class__ is dict:
            count += len(node)
            for tag, inner in node.items():
                if tag == "ref" and type(inner) is int and inner >= 0:
                    references.append(inner)
                elif tag == "bytes":
                    count += _count_array_values(inner, arrays)
                elif inner.__class__ is list or inner.__class__ is dict:
                    stack.append(inner)
    return count, references


def _count_array_values(number: Any, arrays: Sequence[np.ndarray]) -> int:
    """Return the size of an array in a model file, in units of 64 bytes. ``number`` is its index in ``arrays``; 0 if the index is
    invalid.
    """
    return arrays[number].nbytes // _BYTES_PER_VALUE if type(number) is int and 0 <= number < len(arrays) else 0


def check_hash_collisions(keys: Iterable[Hashable]) -> None:
    """Raise ModelFileError if there are more than 1000 ``keys`` for a dict or set, and more than 100 of them have the same hash,
    because a dict of n colliding keys takes O(n^2) time.

    >>> check_hash_collisions(range(10**4))
    >>> check_hash_collisions((2**61 - 1) * n for n in range(10**4))
    Traceback (most recent call last):
        ...
    streamsvm.files.container.ModelFileError: 10,000 of its keys have the same hash, which no model needs
    """
    hashes = [hash(key) for key in keys]
    if len(hashes) <= _MIN_KEYS_TO_CHECK:
        return
    n_equal = max(Counter(hashes).values())
    if n_equal > _MAX_HASH_COLLISIONS:
        raise ModelFileError(f"{n_equal:,} of its keys have the same hash, which no model needs")
