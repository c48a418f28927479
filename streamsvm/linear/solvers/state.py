"""What a fit goes on from when its process was killed."""

from __future__ import annotations

import json
import os
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["load", "save"]

_MAGIC = b"svmfit1\n"
_HEADER = struct.Struct("<8sIQ")  # magic, CRC of what follows, bytes of its JSON


def save(path: Path, facts: dict[str, Any], w: np.ndarray) -> None:
    """Put facts, which are JSON, and w float64 [n] in place of those that were kept before."""
    text = json.dumps(facts).encode()
    data = text + w.astype("<f8").tobytes()
    partial = path.with_name(f"{path.name}.partial")
    try:
        with partial.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, zlib.crc32(data), len(text)) + data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}, while what was found was kept", str(partial)) from error


def load(path: Path, problem: dict[str, Any], size: int) -> tuple[dict[str, Any], np.ndarray] | None:
    """Facts and w float64 [size]; None where none were kept, or those of another problem, or they are damaged."""
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
