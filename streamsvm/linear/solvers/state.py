"""The file of a saved state: a JSON object and a vector, under a checksum."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.linear.files.disk import explained

__all__ = ["load", "save"]

_MAGIC = b"svmfit1\n"
_HEADER = struct.Struct("<8sIQ")  # magic, CRC of what follows, bytes of the JSON


def save(path: Path, facts: dict[str, Any], w: np.ndarray) -> None:
    """Replace a saved state by facts, which JSON can hold, and w float64 [n]. The earlier one stays whole until this one is."""
    text = json.dumps(facts).encode()
    data = text + w.astype("<f8").tobytes()
    partial = path.with_name(f"{path.name}.partial")
    with explained("the state of a fit was saved", partial):
        with partial.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, zlib.crc32(data), len(text)) + data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def load(path: Path, problem: dict[str, Any], size: int) -> tuple[dict[str, Any], np.ndarray] | None:
    """Return the saved facts and w float64 [size]; None where there are none, or they are of another problem or corrupt."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    data = found[_HEADER.size :]
    if len(found) < _HEADER.size:
        return None
    magic, crc, length = _HEADER.unpack_from(found)
    if magic != _MAGIC or crc != zlib.crc32(data) or len(data) - length != 8 * size:
        return None
    w = np.frombuffer(data[length:], "<f8").astype(np.float64)
    try:
        facts = json.loads(data[:length])
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict) or facts.get("problem") != problem or not np.isfinite(w).all():
        return None
    return facts, w
