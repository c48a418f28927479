"""Tables of the best position to merge two support vectors, and of the weight degradation, computed on a grid.

Two support vectors x_i, x_j with coefficients of the same sign, |a_i| <= |a_j|, become z = h x_j + (1 - h) x_i. With
``m = a_j / (a_i + a_j)`` in [1/2, 1] and ``q = gamma |x_i - x_j|^2`` (so that the kernel value is kappa = exp(-q)):

    s(h) = m exp(-(1-h)^2 q) + (1-m) exp(-h^2 q),    h* = argmax s,    a_z = (a_i + a_j) s(h*)

References
----------
Glasmachers and Qaadan (2018), Speeding up budgeted stochastic gradient descent SVM training with precomputed golden section
search, section 3 and lemma 1. Differences to the paper, which make results more exact at the same cost:

- The grid covers m in [1/2, 1] only. The first partner has the smaller coefficient, so other m do not occur, and no cell contains
  m = 1/2 in its interior, where h jumps for kappa < e^-2, and which equal coefficients hit exactly.
- The second axis is ``u = q / (1 + q)`` instead of kappa. It needs no exponential, and has a higher resolution near kappa = 1,
  where most merges happen.
- The table contains the ratio of the weight degradation to ``a_i^2 u^2``, which is between 1/2 and 2.41 everywhere, so that the
  relative error is small even where the degradation vanishes.

Errata of the paper, corrected here: algorithm 1 takes m from the other partner than the one that h multiplies; the text's
squared degradation lacks the factor ``a_i a_j`` in its last term, and lemma 1 the square of ``(a_i + a_j)``.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: Number of points along each axis of the grid, as in the paper.
GRID = 400


def compute_degradation(a: Any, b: Any, ab: Any, q: Any, h: Any) -> Any:
    """Return how much a merge of two support vectors changes the model (squared distance of the decision functions). ``h`` is
    the merged vector's position on the line between them; ``a``, ``b`` and ``ab`` are |a|^2, |b|^2 and a.b of their coefficients
    or coefficient vectors; ``q`` is gamma times their squared distance. Arguments can be numbers or arrays.

    ``expm1`` avoids the cancellation of the textbook formula ``a + b - |a_z|^2 + 2 ab kappa`` for small q.
    """
    k_i, k_j = np.exp(-(h**2) * q), np.exp(-((1.0 - h) ** 2) * q)
    return (
        -a * np.expm1(-2.0 * h**2 * q)
        - b * np.expm1(-2.0 * (1.0 - h) ** 2 * q)
        + 2.0 * ab * k_i * k_j * np.expm1(-2.0 * h * (1.0 - h) * q)
    )


#: `compute_degradation` for numbers, compiled.
compute_degradation_compiled: Callable[..., float] = compiled(compute_degradation)


@compiled
def interpolate_table(table: np.ndarray, m: float, q: float) -> float:
    """Return a value of a precomputed ``table`` [GRID, GRID] for merges of two support vectors, by bilinear interpolation.
    ``m``, in [1/2, 1], is the share of the larger coefficient in |a| + |b|; ``q``, at least 0, is gamma times their squared
    distance.
    """
    x, y = (2.0 * m - 1.0) * (GRID - 1), q / (1.0 + q) * (GRID - 1)
    # Clip the indices, so that invalid numbers cannot read outside of the table.
    i, j = max(0, min(int(x), GRID - 2)), max(0, min(int(y), GRID - 2))
    a, b = x - i, y - j
    return (table[i, j] * (1.0 - a) + table[i + 1, j] * a) * (1.0 - b) + (
        table[i, j + 1] * (1.0 - a) + table[i + 1, j + 1] * a
    ) * b


_cache: dict[str, np.ndarray] = {}


def load_tables() -> np.ndarray:
    """Load the precomputed tables for merges of two support vectors from a file in this package, as one array float32 [2, GRID,
    GRID]. Table 0 has the best position, table 1 a measure of how much the merge changes the model. Rows and columns are grids
    of relative coefficient and of distance.

    It is always the same array, which is never freed, because blocks contain its address.
    """
    if not _cache:  # if several threads read the file, setdefault stores one of their arrays
        _cache.setdefault("", unpack_tables(Path(__file__).with_name("merge_table.z").read_bytes()))
    return _cache[""]


def unpack_tables(content: bytes) -> np.ndarray:
    """Decompress bytes that ``release/merge_tables.py`` has written to a read-only array of tables, float32 [2, GRID, GRID]."""
    differences = np.ascontiguousarray(np.frombuffer(zlib.decompress(content), np.uint8).reshape(4, -1).T).view("<i4")
    bits = np.cumsum(np.cumsum(differences.reshape(2, GRID, GRID), axis=2, dtype=np.int32), axis=2, dtype=np.int32)
    tables = bits.view(np.float32)
    tables.setflags(write=False)
    return tables
