"""Dual coordinate ascent over the rows of a block, with w kept explicitly.

One problem for all losses, in one signed variable a row:

    min 1/2 |w|^2 + sum_i (1/2 d_i b_i^2 - t_i b_i + epsilon |b_i|),    w = sum_i b_i x_i,    lower_i <= b_i <= upper_i.

Classification: t is +1 or -1, epsilon 0, and b between 0 and t C (hinge, d = 0) or without an end (squared hinge, d = 1 / (2 C)).
Regression: t is the target, b between -C and C, or without ends and d = 1 / (2 C). Rows have one feature more than is written, of
the same value in all: the last of w is the bias, divided by it.

Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for large-scale
linear SVM. ICML, algorithm 1; Ho, C.-H., Lin, C.-J. (2012). Large-scale linear support vector regression. JMLR, algorithm 4, of
which this is the step in one variable.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit

from streamsvm.kernels import FAST
from streamsvm.linear.files.block_file import Block

__all__ = ["Loss", "loss_of", "measure", "product", "sweep", "sweeps", "taken", "target", "undecided"]


class Loss(NamedTuple):
    """What rows cost, and the feature that all have."""

    regression: bool
    squared: bool
    epsilon: float
    bias: float
    """The feature; 0: none."""
    positive: float
    """Of classification: the label that stands for +1."""
    C_positive: float
    """C, of the rows of the positive class. Of regression both are the same."""
    C_negative: float


def loss_of(values: list[Any]) -> Loss:
    """The loss that a list, which may be anything, is of; ValueError or TypeError where it is of none."""
    regression, squared, *numbers = values
    epsilon, bias, positive, C_positive, C_negative = map(float, numbers)
    return Loss(bool(regression), bool(squared), epsilon, bias, positive, C_positive, C_negative)


@njit(inline="always")
def target(label: float, loss: Loss) -> float:
    """What a label stands for."""
    return label if loss.regression else 1.0 if label == loss.positive else -1.0


@njit(inline="always")
def _limits(target: float, loss: Loss) -> tuple[float, float, float]:
    # lower, upper and d of a row
    C = loss.C_positive if target > 0.0 else loss.C_negative
    end, d = (np.inf, 0.5 / C) if loss.squared else (C, 0.0)
    if loss.regression:
        return -end, end, d
    return (0.0, end, d) if target > 0.0 else (-end, 0.0, d)


@njit(inline="always")
def _cost(target: float, f: float, loss: Loss) -> float:
    C = loss.C_positive if target > 0.0 else loss.C_negative
    error = max(abs(target - f) - loss.epsilon, 0.0) if loss.regression else max(1.0 - target * f, 0.0)
    return C * error * error if loss.squared else C * error


@njit(inline="always")
def _is_undecided(b: float, lower: float, upper: float, loss: Loss) -> bool:
    return lower < b < upper and (b != 0.0 or not loss.regression)


@njit(cache=True, fastmath=FAST, error_model="numpy")
def product(w: np.ndarray, block: Block, i: int) -> float:
    """The product of w and a row, without the bias."""
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


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _product_and_square(w: np.ndarray, block: Block, i: int) -> tuple[float, float]:
    # w'x and x'x of a row, without the bias, in one walk
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


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _add(w: np.ndarray, step: float, block: Block, i: int) -> None:
    if len(block.starts):
        for k in range(block.starts[i], block.starts[i + 1]):
            w[block.indices[k]] += step * block.values[k]
    else:
        d = len(w) - 1
        x = block.values[i * d : (i + 1) * d]
        for k in range(d):
            w[k] += step * x[k]


@njit(cache=True, error_model="numpy")
def _shuffle(rows: np.ndarray, seed: int) -> None:
    # Fisher-Yates, with SplitMix64.
    state = np.uint64(seed)
    for i in range(len(rows) - 1, 0, -1):
        state += np.uint64(0x9E3779B97F4A7C15)
        z = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        j = np.int64(((z >> np.uint64(32)) * np.uint64(i + 1)) >> np.uint64(32))
        rows[i], rows[j] = rows[j], rows[i]


@njit(cache=True, error_model="numpy")
def undecided(b: np.ndarray, labels: np.ndarray, loss: Loss) -> np.ndarray:
    """Numbers, int64, of the rows with coefficients that are at no bound and, of regression, not at 0."""
    rows, count = np.empty(len(b), np.int64), 0
    for i in range(len(b)):
        lower, upper, _ = _limits(target(labels[i], loss), loss)
        rows[count] = i
        count += _is_undecided(b[i], lower, upper, loss)
    return rows[:count]


def taken(block: Block, rows: np.ndarray) -> Block:
    """Some rows of a block, int64, as a block of their own; with their numbers, which are those of the file if it has none."""
    numbers = block.numbers[rows] if len(block.numbers) else rows.astype(np.uint64) + np.uint64(block.first)
    starts, indices, values = _taken(block, rows, len(block.values) // len(block.labels))
    return Block(0, block.labels[rows], numbers, starts, indices, values)


@njit(cache=True, error_model="numpy")
def _taken(block: Block, rows: np.ndarray, features: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    n = len(rows)
    if not len(block.starts):
        values = np.empty(n * features, np.float32)
        for i in range(n):
            values[i * features : (i + 1) * features] = block.values[rows[i] * features : (rows[i] + 1) * features]
        return block.starts, block.indices, values
    starts = np.empty(n + 1, np.uint32)
    starts[0] = 0
    for i in range(n):
        starts[i + 1] = starts[i] + (block.starts[rows[i] + 1] - block.starts[rows[i]])
    indices, values = np.empty(starts[n], np.uint32), np.empty(starts[n], np.float32)
    for i in range(n):
        begin, end = block.starts[rows[i]], block.starts[rows[i] + 1]
        indices[starts[i] : starts[i + 1]] = block.indices[begin:end]
        values[starts[i] : starts[i + 1]] = block.values[begin:end]
    return starts, indices, values


@njit(cache=True, error_model="numpy")
def sweep(w: np.ndarray, b: np.ndarray, block: Block, rows: np.ndarray, seed: int, loss: Loss) -> tuple[float, float, float, int]:
    """A step for each of some rows of a block, int64, in an order that the seed gives: changes w float64 [features + 1], b
    float64 [rows of the block] and the order of ``rows``.

    The largest step, in units of the gradient; by how much the dual objective has risen, without -1/2 |w|^2; what the rows cost,
    each before its step; how many of them are undecided.
    """
    _shuffle(rows, seed)
    largest, gain, cost, count, bias = 0.0, 0.0, 0.0, 0, loss.bias
    for i in rows:
        t = target(block.labels[i], loss)
        lower, upper, d = _limits(t, loss)
        f, square = _product_and_square(w, block, i)
        f += bias * w[-1]
        cost += _cost(t, f, loss)
        old, slope = b[i], f - t + d * b[i]
        if loss.epsilon == 0.0 and ((slope >= 0.0 and old == lower) or (slope <= 0.0 and old == upper)):
            continue  # stays there
        curvature = square + bias * bias + d
        if curvature > 0.0:
            v, width = old - slope / curvature, loss.epsilon / curvature
            new = v - width if v > width else v + width if v < -width else 0.0
        else:  # an empty row: whatever w is, it costs the same
            new = np.inf if slope < -loss.epsilon else -np.inf if slope > loss.epsilon else old
        new = min(max(new, lower), upper)
        if new != old:
            b[i] = new
            _add(w, new - old, block, i)
            w[-1] += (new - old) * bias
            largest = max(largest, abs(new - old) * curvature)
            gain += (new - old) * (t - 0.5 * d * (new + old)) - loss.epsilon * (abs(new) - abs(old))
        count += _is_undecided(new, lower, upper, loss)
    return largest, gain, cost, count


@njit(cache=True, error_model="numpy")
def sweeps(
    w: np.ndarray, b: np.ndarray, block: Block, seed: int, loss: Loss, settled: float, most: int
) -> tuple[float, float, int, int]:
    """`sweep` of the undecided rows of a block, again and again, until the largest step is at most ``settled``, or it were more
    than ``most`` steps; once at least.

    The largest step of the last sweep; by how much the dual objective has risen; how many rows are undecided; how many steps.
    """
    gain, steps = 0.0, 0
    while True:
        rows = undecided(b, block.labels, loss)
        largest, own, _, count = sweep(w, b, block, rows, seed + steps, loss)
        gain += own
        steps += len(rows)
        if largest <= settled or count == 0 or steps + count > most:
            return largest, gain, count, steps


@njit(cache=True, error_model="numpy")
def measure(w: np.ndarray, b: np.ndarray, block: Block, loss: Loss, expansion: np.ndarray) -> tuple[float, float]:
    """What the rows of a block add to the primal objective of w and to the dual one of b, without 1/2 |w|^2 and
    -1/2 |expansion|^2, where float64 [features + 1] ``expansion`` is what they add to as well: sum of b_i x_i.
    """
    primal, dual = 0.0, 0.0
    for i in range(len(b)):
        t = target(block.labels[i], loss)
        primal += _cost(t, product(w, block, i) + loss.bias * w[-1], loss)
        dual += t * b[i] - loss.epsilon * abs(b[i]) - 0.5 * _limits(t, loss)[2] * b[i] * b[i]
        if b[i] != 0.0:
            _add(expansion, b[i], block, i)
            expansion[-1] += b[i] * loss.bias
    return primal, dual
