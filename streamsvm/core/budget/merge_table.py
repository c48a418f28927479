"""The merging problem, solved once on a grid: the best position to merge two support vectors, and its weight degradation.

Two support vectors x_i, x_j with coefficients of one sign, |a_i| <= |a_j|, become z = h x_j + (1 - h) x_i. With
``m = a_j / (a_i + a_j)`` in [1/2, 1] and ``q = gamma |x_i - x_j|^2`` (so that the kernel value is kappa = exp(-q)):

    s(h) = m exp(-(1-h)^2 q) + (1-m) exp(-h^2 q),    h* = argmax s,    a_z = (a_i + a_j) s(h*)

References
----------
Glasmachers and Qaadan (2018), Speeding up budgeted stochastic gradient descent SVM training with precomputed golden section
search, section 3 and lemma 1. Departures from the paper, each because it is more exact at the same price:

- The grid covers m in [1/2, 1] only. The first partner is the one with the smaller coefficient, so no other m occurs, and no cell
  lies across m = 1/2, where h jumps for kappa < e^-2 and which equal coefficients hit exactly.
- The second axis is ``u = q / (1 + q)`` instead of kappa: distances are at hand, no exponential is needed, and near kappa = 1,
  where most merges happen, the resolution is higher.
- Tabulated is not the weight degradation but its ratio to ``a_i^2 u^2``, which lies between 1/2 and 2.41 everywhere: the
  relative error is small also where the degradation itself vanishes.

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

#: Points along each axis of the grid, as in the paper.
GRID = 400

_INVERSE_GOLDEN = (np.sqrt(5.0) - 1.0) / 2.0


def search_positions(m: np.ndarray, q: np.ndarray) -> np.ndarray:
    """Return ``h* = argmax s`` by golden section search on [1/2, 1], all elements at once.

    ``m`` and ``q`` are float64 arrays that broadcast: relative length in [1/2, 1], and ``gamma |x_i - x_j|^2 >= 0``. The interval
    shrinks by 0.618 each time: 48 iterations leave 5e-11.

    >>> float(search_positions(np.array(0.5), np.array(0.1)).round(6))
    0.5
    """
    m, q = np.broadcast_arrays(m, q)

    def s(h: np.ndarray) -> np.ndarray:
        return m * np.exp(-((1.0 - h) ** 2) * q) + (1.0 - m) * np.exp(-(h**2) * q)

    low, high = np.full(m.shape, 0.5), np.ones(m.shape)
    left, right = high - _INVERSE_GOLDEN * (high - low), low + _INVERSE_GOLDEN * (high - low)
    s_left, s_right = s(left), s(right)
    for _ in range(48):
        keep_left = s_left > s_right
        high, low = np.where(keep_left, right, high), np.where(keep_left, low, left)
        probe = np.where(keep_left, high - _INVERSE_GOLDEN * (high - low), low + _INVERSE_GOLDEN * (high - low))
        s_probe = s(probe)
        left, right = np.where(keep_left, probe, right), np.where(keep_left, left, probe)
        s_left, s_right = np.where(keep_left, s_probe, s_right), np.where(keep_left, s_left, s_probe)
    return (low + high) / 2.0


def compute_degradation(a: Any, b: Any, ab: Any, q: Any, h: Any) -> Any:
    """Return the squared weight degradation of a merge at ``h``, of numbers or arrays.

    With coefficients a_i, a_j of one output or vectors of them, ``a``, ``b`` and ``ab`` are |a_i|^2, |a_j|^2 and a_i . a_j.
    Written with ``expm1``: the textbook form ``a + b - |a_z|^2 + 2 ab kappa`` cancels for small q.
    """
    k_i, k_j = np.exp(-(h**2) * q), np.exp(-((1.0 - h) ** 2) * q)
    return (
        -a * np.expm1(-2.0 * h**2 * q)
        - b * np.expm1(-2.0 * (1.0 - h) ** 2 * q)
        + 2.0 * ab * k_i * k_j * np.expm1(-2.0 * h * (1.0 - h) * q)
    )


#: `compute_degradation` of numbers, for compiled code.
compute_degradation_compiled: Callable[..., float] = compiled(compute_degradation)


@compiled
def interpolate_table(table: np.ndarray, m: float, q: float) -> float:
    """Interpolate a table [GRID, GRID] of `load_tables` bilinearly, over m in [1/2, 1] and u = q / (1 + q)."""
    x, y = (2.0 * m - 1.0) * (GRID - 1), q / (1.0 + q) * (GRID - 1)
    # Bounded on both sides: whatever numbers arrive, indices stay inside the table.
    i, j = max(0, min(int(x), GRID - 2)), max(0, min(int(y), GRID - 2))
    a, b = x - i, y - j
    return (table[i, j] * (1.0 - a) + table[i + 1, j] * a) * (1.0 - b) + (
        table[i, j + 1] * (1.0 - a) + table[i + 1, j + 1] * a
    ) * b


_read: dict[str, np.ndarray] = {}


def load_tables() -> np.ndarray:
    """Return the tables of h* and of the degradation's ratio, float32 [2, GRID, GRID] over (m, u), from the package's file.

    There is one array in a process, which lives as long: blocks hold its address.
    """
    if not _read:  # of threads that read it at once, one keeps what it has read
        _read.setdefault("", unpack_tables(Path(__file__).with_name("merge_table.z").read_bytes()))
    return _read[""]


def pack_tables(tables: np.ndarray) -> bytes:
    """Return tables as bytes: a quarter of their size, for neighbours differ by nearly the same."""
    differences = np.diff(tables.view("<i4"), n=2, axis=2, prepend=np.zeros((2, GRID, 2), "<i4"))
    return zlib.compress(differences.view(np.uint8).reshape(-1, 4).T.tobytes(), 9)


def unpack_tables(content: bytes) -> np.ndarray:
    """Return tables from what `pack_tables` has made of them, without their last bit lost."""
    differences = np.ascontiguousarray(np.frombuffer(zlib.decompress(content), np.uint8).reshape(4, -1).T).view("<i4")
    bits = np.cumsum(np.cumsum(differences.reshape(2, GRID, GRID), axis=2, dtype=np.int32), axis=2, dtype=np.int32)
    tables = bits.view(np.float32)
    tables.setflags(write=False)
    return tables


@np.errstate(under="ignore")  # what is that small is 0, whatever the caller has asked numpy to say of it
def compute_tables() -> np.ndarray:
    """Return the tables as the algorithm gives them; ``python release/merge_table.py`` writes them to the package's file."""
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
    # The edges, in the limit. q = 0: z is the centre of mass. q = infinity: the smaller vector is removed. m = 1: the smaller one
    # is projected onto the larger one and its tangent.
    tables[0, :, 0], tables[1, :, 0] = m[:, 0], 2.0 * m[:, 0] ** 2
    tables[0, :, -1], tables[1, :, -1] = 1.0, 1.0
    q = q[0]
    tables[0, -1, 1:-1] = 1.0
    tables[1, -1, 1:-1] = (-np.expm1(-2.0 * q) - 2.0 * q * np.exp(-2.0 * q)) / inner_u[0] ** 2
    return tables.astype(np.float32)
