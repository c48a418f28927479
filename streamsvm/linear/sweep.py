"""Dual coordinate ascent over the rows of a block, with w kept explicitly.

One problem for all losses, in one signed variable b_i a row, its dual coefficient:

    min 1/2 |w|^2 + sum_i (1/2 d_i b_i^2 - t_i b_i + epsilon |b_i|),    w = sum_i b_i x_i,    lower_i <= b_i <= upper_i.

Classification: t is +1 or -1, epsilon is 0, and b lies between 0 and t C (hinge, d = 0) or has no bound but 0 (squared hinge, d
= 1 / (2 C)). Regression: t is the target, and b lies between -C and C, or has no bounds and d = 1 / (2 C). C is that of the row,
times its weight. Rows have one
feature more than is written, with the same value in all: its weight, the last of w, times that value is the intercept.

Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
large-scale linear SVM. ICML, algorithm 1; Ho, C.-H., Lin, C.-J. (2012). Large-scale linear support vector regression. JMLR 13,
algorithm 4, of which this is the step in one variable.
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST
from streamsvm.linear.block_file import Block
from streamsvm.linear.solution import Loss, bounds, cost, is_free, target_of, weight_of

__all__ = ["free_rows", "measure", "product", "sweep", "sweep_free"]


@compiled(fastmath=FAST)
def product(w: np.ndarray, block: Block, i: int) -> float:
    """Return the product of w and a row, without the constant feature."""
    total = 0.0
    if len(block.starts):
        for k in range(block.starts[i], block.starts[i + 1]):
            total += w[block.indices[k]] * block.values[k]
    else:
        d = len(w) - 1
        x = block.values[i * d : (i + 1) * d]
        for k in range(d):
            total += w[k] * x[k]
    return total


@compiled(fastmath=FAST)
def _product_and_square(w: np.ndarray, block: Block, i: int) -> tuple[float, float]:
    """Return w'x and x'x of a row, without the constant feature, in one loop."""
    total, square = 0.0, 0.0
    if len(block.starts):
        for k in range(block.starts[i], block.starts[i + 1]):
            value = np.float64(block.values[k])
            total += w[block.indices[k]] * value
            square += value * value
    else:
        d = len(w) - 1
        x = block.values[i * d : (i + 1) * d]
        for k in range(d):
            value = np.float64(x[k])
            total += w[k] * value
            square += value * value
    return total, square


@compiled(fastmath=FAST)
def _add(w: np.ndarray, step: float, block: Block, i: int) -> None:
    """Add a row times ``step`` to w, without the constant feature."""
    if len(block.starts):
        for k in range(block.starts[i], block.starts[i + 1]):
            w[block.indices[k]] += step * block.values[k]
    else:
        d = len(w) - 1
        x = block.values[i * d : (i + 1) * d]
        for k in range(d):
            w[k] += step * x[k]


@compiled
def _shuffle(rows: np.ndarray, seed: int) -> None:
    """Shuffle in place: Fisher and Yates, with the random numbers of SplitMix64."""
    state = np.uint64(seed)
    for i in range(len(rows) - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        j = np.int64(((z >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        rows[i], rows[j] = rows[j], rows[i]


def free_rows(b: np.ndarray, block: Block, loss: Loss) -> np.ndarray:
    """Return the numbers, int64, of the rows of a block whose coefficients are free."""
    rows = np.empty(len(b), np.int64)
    return rows[: _find_free(b, block, loss, rows)]


@compiled
def _find_free(b: np.ndarray, block: Block, loss: Loss, rows: np.ndarray) -> int:
    # The numbers of the free rows go into ``rows``; how many they are.
    count = 0
    for i in range(len(b)):
        lower, upper, _ = bounds(target_of(block.labels[i], loss), weight_of(block, i), loss)
        rows[count] = i
        count += is_free(b[i], lower, upper, loss)
    return count


@compiled
def sweep(w: np.ndarray, b: np.ndarray, block: Block, rows: np.ndarray, seed: int, loss: Loss) -> tuple[float, float, float, int]:
    """Step each of some rows, int64, of a block, in an order that the seed gives.

    Changes w float64 [features + 1], b float64 [rows of the block] and the order of ``rows``.

    Returns the largest step, in units of the gradient; the rise of the dual objective, without -1/2 |w|^2; the cost of the rows,
    each before its step; and how many of them are free after it.
    """
    _shuffle(rows, seed)
    largest, gain, total, count, constant = 0.0, 0.0, 0.0, 0, loss.constant
    for i in rows:
        t, weight = target_of(block.labels[i], loss), weight_of(block, i)
        lower, upper, d = bounds(t, weight, loss)
        f, square = _product_and_square(w, block, i)
        f += constant * w[-1]
        total += cost(t, weight, f, loss)
        old, slope = b[i], f - t + d * b[i]
        if loss.epsilon == 0.0 and ((slope >= 0.0 and old == lower) or (slope <= 0.0 and old == upper)):
            continue  # it stays at its bound
        curvature = square + constant * constant + d
        if curvature > 0.0:
            v, width = old - slope / curvature, loss.epsilon / curvature
            new = v - width if v > width else v + width if v < -width else 0.0
        else:  # an empty row costs the same whatever w is
            new = np.inf if slope < -loss.epsilon else -np.inf if slope > loss.epsilon else old
        new = min(max(new, lower), upper)
        if new != old:
            b[i] = new
            _add(w, new - old, block, i)
            w[-1] += (new - old) * constant
            largest = max(largest, abs(new - old) * curvature)
            gain += (new - old) * (t - 0.5 * d * (new + old)) - loss.epsilon * (abs(new) - abs(old))
        count += is_free(new, lower, upper, loss)
    return largest, gain, total, count


@compiled
def sweep_free(
    w: np.ndarray, b: np.ndarray, block: Block, seed: int, loss: Loss, tolerance: float, most: int
) -> tuple[float, float, int, int]:
    """Sweep the free rows of a block until the largest step is at most ``tolerance`` or there would be more than ``most`` steps;
    once at least.

    Returns the largest step of the last sweep, the rise of the dual objective, how many rows are free, and how many steps it
    took.
    """
    gain, steps = 0.0, 0
    room = np.empty(len(b), np.int64)
    while True:
        rows = room[: _find_free(b, block, loss, room)]
        largest, rise, _, count = sweep(w, b, block, rows, seed + steps, loss)
        gain += rise
        steps += len(rows)
        if largest <= tolerance or count == 0 or steps + count > most:
            return largest, gain, count, steps


@compiled
def measure(w: np.ndarray, b: np.ndarray, block: Block, loss: Loss, expansion: np.ndarray) -> tuple[float, float]:
    """Return the parts of a block in the primal objective of w, without 1/2 |w|^2, and in the dual objective of b, without
    -1/2 |expansion|^2. Adds its part of sum_i b_i x_i to ``expansion``, float64 [features + 1].
    """
    primal, dual = 0.0, 0.0
    for i in range(len(b)):
        t, weight = target_of(block.labels[i], loss), weight_of(block, i)
        primal += cost(t, weight, product(w, block, i) + loss.constant * w[-1], loss)
        dual += t * b[i] - loss.epsilon * abs(b[i]) - 0.5 * bounds(t, weight, loss)[2] * b[i] * b[i]
        if b[i] != 0.0:
            _add(expansion, b[i], block, i)
            expansion[-1] += b[i] * loss.constant
    return primal, dual
