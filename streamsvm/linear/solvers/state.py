"""The file of a saved state: facts and a vector, in the container of all files."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.files.container import pack, unpack
from streamsvm.linear.files.disk import explained

__all__ = ["load", "save"]


def save(path: Path, facts: dict[str, Any], w: np.ndarray) -> None:
    """Replace a saved state by facts, which JSON can hold, and w float64 [n]. The earlier one stays whole until this one is."""
    data = pack({"w": w}, {"facts": json.dumps(facts)})
    partial = path.with_name(f"{path.name}.partial")
    with explained("the state of a fit was saved", partial):
        with partial.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)


def load(path: Path, problem: dict[str, Any], size: int) -> tuple[dict[str, Any], np.ndarray] | None:
    """Return the saved facts and w float64 [size]; None where there are none, or they are of another problem or corrupt."""
    try:
        found = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        container = unpack(found)
        w, facts = container.arrays["w"], json.loads(container.strings["facts"])
    except (ValueError, KeyError, RecursionError):
        return None
    if w.dtype != np.float64 or w.shape != (size,):
        return None
    if not isinstance(facts, dict) or facts.get("problem") != problem or not np.isfinite(w).all():
        return None
    return facts, w.copy()
