"""Computes the table of the merging problem, and writes it to the package: streamsvm/core/budget/merge_table.z.

python release/merge_tables.py
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from streamsvm.core.budget import merge_table
from streamsvm.core.budget.merge_table import GRID, compute_degradation

_INVERSE_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


def search_positions(m: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return the positions h in [1/2, 1], on the line between pairs of support vectors, where each pair's merge gets the largest
    coefficient, by golden section searches. ``m`` and ``q`` are float64 arrays that broadcast: the share of the larger
    coefficient in |a| + |b|, and gamma times the squared distance.

    Each of the 48 iterations reduces the interval by a factor of 0.618, to 5e-11.
    """
    m, q = np.broadcast_arrays(m, q)

    def objective(h: np.ndarray) -> np.ndarray:
        return m * np.exp(-((1.0 - h) ** 2) * q) + (1.0 - m) * np.exp(-(h**2) * q)

    low, high = np.full(m.shape, 0.5), np.ones(m.shape)
    left, right = high - _INVERSE_GOLDEN * (high - low), low + _INVERSE_GOLDEN * (high - low)
    s_left, s_right = objective(left), objective(right)
    for _ in range(48):
        keep_left = s_left > s_right
        high, low = np.where(keep_left, right, high), np.where(keep_left, low, left)
        probe = np.where(keep_left, high - _INVERSE_GOLDEN * (high - low), low + _INVERSE_GOLDEN * (high - low))
        s_probe = objective(probe)
        left, right = np.where(keep_left, probe, right), np.where(keep_left, left, probe)
        s_left, s_right = np.where(keep_left, s_probe, s_right), np.where(keep_left, s_left, s_probe)
    return (low + high) / 2.0


def pack_tables(tables: np.ndarray) -> bytes:
    """Compress ``tables``, float32 [2, GRID, GRID], without loss to about a quarter of their size (second differences, then
    zlib), and return the bytes.
    """
    differences = np.diff(tables.view("<i4"), n=2, axis=2, prepend=np.zeros((2, GRID, 2), "<i4"))
    return zlib.compress(differences.view(np.uint8).reshape(-1, 4).T.tobytes(), 9)


@np.errstate(under="ignore")  # underflow to 0 is intended
def compute_tables() -> np.ndarray:
    """Compute the tables for merges of two support vectors that `load_tables` reads from a file, float32 [2, GRID, GRID]."""
    m = np.linspace(0.5, 1.0, GRID)[:, None]
    u = np.linspace(0.0, 1.0, GRID)[None, :]
    tables = np.empty((2, GRID, GRID))
    inner_m, inner_u = m[:-1], u[:, 1:-1]
    q = inner_u / (1.0 - inner_u)
    h = search_positions(inner_m, q)
    tables[0, :-1, 1:-1] = h
    tables[1, :-1, 1:-1] = (
        compute_degradation((1.0 - inner_m) ** 2, inner_m**2, inner_m * (1.0 - inner_m), q, h) / ((1.0 - inner_m) * inner_u) ** 2
    )
    # The limits at the edges. q = 0: z is the centre of mass. q = infinity: the smaller vector is removed. m = 1: the smaller one
    # is projected onto the larger one and its tangent.
    tables[0, :, 0], tables[1, :, 0] = m[:, 0], 2.0 * m[:, 0] ** 2
    tables[0, :, -1], tables[1, :, -1] = 1.0, 1.0
    q = q[0]
    tables[0, -1, 1:-1] = 1.0
    tables[1, -1, 1:-1] = (-np.expm1(-2.0 * q) - 2.0 * q * np.exp(-2.0 * q)) / inner_u[0] ** 2
    return tables.astype(np.float32)


if __name__ == "__main__":
    Path(merge_table.__file__).with_name("merge_table.z").write_bytes(pack_tables(compute_tables()))
