"""Compiled functions that append, remove and compare the support vectors in the slots of a `SupportVectorStore`."""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LARGEST_NORM, compare_with_vectors
from streamsvm.core.memory.support_vectors import views

#: Increment of the state of the SplitMix64 generator for each random number.
GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@compiled(inline=True)
def next_random(state: np.uint64) -> np.uint64:
    """Return the pseudo-random number (uint64) that the SplitMix64 generator (Steele et al. 2014) computes from ``state``, a
    counter that the caller increments for each number.
    """
    z = state
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def scan_row(row: np.ndarray, used: int, active: np.ndarray) -> tuple[int, float]:
    """Find the non-zero values among the first ``used`` features of ``row``, float32: write their column indices into ``active``,
    int64 [used or more], and return their number and the squared norm of the row. The number is -1 if the squared norm is not
    finite or too large.
    """
    n, norm = 0, 0.0
    for j in range(used):
        value = row[j]
        if value != np.float32(0.0):
            active[n] = j
            n += 1
            norm += np.float64(value) * np.float64(value)
    return (n if norm < LARGEST_NORM else -1), norm


@compiled(inline=True)
def append_vector(block: np.ndarray, row: np.ndarray, norm: float, weight: float) -> int:
    """Append ``row``, float32 [used or more], as a new support vector to ``block``, the learner's memory (uint8), and return its
    index (slot). ``norm`` is the squared norm of the row, and ``weight`` its weight. Its coefficients are 0 at first.

    The store has room for budget + 1 support vectors, and must not be full. O(used).
    """
    v = views(block)
    h = v.header[0]
    slot = h["n_support"]
    for j in range(h["used"]):
        v.vectors[j, slot] = row[j]
    stamp_vector(block, slot, norm)
    v.weights[slot] = np.float32(weight)
    for k in range(h["n_outputs"]):
        v.coefficients[k, slot] = 0.0
    h["n_support"] = slot + 1
    return slot


@compiled
def stamp_vector(block: np.ndarray, slot: int, norm: float) -> None:
    """Record a changed support vector as new: set the squared norm of the one with the index ``slot`` to ``norm``, and give it
    the next insertion number. ``block`` is the learner's memory (uint8), changed in place.
    """
    v = views(block)
    h = v.header[0]
    v.norms[slot] = np.float32(norm)
    v.stamps[slot] = h["next_stamp"]
    h["next_stamp"] += 1
    h["largest_norm"] = max(h["largest_norm"], norm)
    v.cache[0]["valid"] = 0


@compiled(noinline=True)
def remove_vector(block: np.ndarray, slot: int) -> None:
    """Remove the support vector with the index ``slot`` from ``block``, the learner's memory (uint8), and move the last support
    vector to this index. O(used).

    Unused slots are set to zeros, so that equal models have equal bytes.
    """
    v = views(block)
    h = v.header[0]
    last = h["n_support"] - 1
    for j in range(h["used"]):
        v.vectors[j, slot] = v.vectors[j, last]
        v.vectors[j, last] = np.float32(0.0)
    for k in range(h["n_outputs"]):
        v.coefficients[k, slot] = v.coefficients[k, last]
        v.coefficients[k, last] = 0.0
    v.norms[slot], v.stamps[slot], v.weights[slot] = v.norms[last], v.stamps[last], v.weights[last]
    v.norms[last], v.stamps[last], v.weights[last] = np.float32(0.0), 0, np.float32(0.0)
    h["n_support"] = last
    v.cache[0]["valid"] = 0


@compiled
def clear_vectors(block: np.ndarray) -> None:
    """Remove all support vectors from ``block``, the learner's memory (uint8), and set the intercepts to 0. O(budget * used)."""
    v = views(block)
    h = v.header[0]
    n, live = h["n_support"], h["n_outputs"]
    for j in range(h["used"]):
        v.vectors[j, :n] = np.float32(0.0)
    for k in range(live):
        v.coefficients[k, :n] = 0.0
        v.biases[k] = 0.0
    v.norms[:n], v.stamps[:n], v.weights[:n] = np.float32(0.0), 0, np.float32(0.0)
    h["n_support"], h["next_stamp"], h["largest_norm"] = 0, 0, 0.0
    v.cache[0]["valid"] = 0


@compiled(noinline=True)
def compute_slot_kernels(block: np.ndarray, slot: int) -> None:
    """Compute the kernel values and the squared distances of the support vector with the index ``slot`` to all support vectors,
    and store them as scratch values in ``block``, the learner's memory (uint8 [bytes]).
    """
    v = views(block)
    h = v.header[0]
    for j in range(h["used"]):
        v.rows[1, j] = v.vectors[j, slot]
    n_active, norm = scan_row(v.rows[1], h["used"], v.active[1])
    compare_with_vectors(v, 1, n_active, norm, v.kernel_rows[3], v.kernel_rows[2])
