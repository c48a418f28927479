"""The source of a model, table by table and statement by statement."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from streamsvm.export.c.text import table

__all__ = ["LARGEST", "Source"]

#: The largest float that is written.
LARGEST = 3.0e38


@dataclass
class Source:
    """The parts of a source file that are written so far."""

    tables: list[str] = field(default_factory=list)
    functions: dict[str, str] = field(default_factory=dict)
    """Texts of functions for vectors and steps, by name, in their order."""
    used: set[str] = field(default_factory=set)
    """Functions of the library."""
    body: list[str] = field(default_factory=list)
    """Statements of the function that computes all values; value i is ``v[i]``, a name."""
    nbytes: int = 0
    """Bytes of the tables."""
    stack_bytes: int = 0
    """Bytes of the arrays of that step which has the most of its own."""

    def takes(self, numbers: int) -> None:
        """Count the numbers of four bytes that a step keeps on the stack while it is computed."""
        self.stack_bytes = max(self.stack_bytes, 4 * numbers)

    def keep(self, name: str, array: np.ndarray, what: str = "") -> str:
        """Write an array as a table, and return its name."""
        if array.dtype.kind == "f":
            array = np.clip(array, -LARGEST, LARGEST).astype(np.float32)
        elif array.dtype.itemsize > 4:
            array = array.astype(np.int32)
        self.tables += table(f"@_{name}", array, what)
        self.nbytes += max(array.nbytes, array.itemsize)
        return f"@_{name}"
