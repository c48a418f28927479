"""The last iterate and its average, compiled: what every online rule keeps of the two, whatever its coefficients belong to.

A model has one output (two classes, a number, a score) or one for each of three and more classes. Each output has two rows of
coefficients, u and v: of the last iterate, scale * u, and of an average of the iterates, average_v * v + average_u * u. With
these factors, which `COMMON` holds, to shrink and to average cost O(1). Which of the two is followed, recent errors tell.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.learners.compiled.probability import fit_slope, probability
from streamsvm.memory.block import STATE_BEGIN, record

__all__ = [
    "AVERAGE",
    "CHOSEN",
    "COMMON",
    "EPSILON_INSENSITIVE",
    "HINGE",
    "LAST",
    "ONE_CLASS",
    "OWN_BEGIN",
    "PROBABILITY",
    "close_step",
    "common",
    "error_rate",
    "layer_of",
    "prefers_average",
    "raise_pair",
    "shortfall",
    "watch_output",
]

#: What a decision is asked for.
LAST, AVERAGE, CHOSEN, PROBABILITY = 0, 1, 2, 3
#: What a model loses by a row. HINGE: by a label; EPSILON_INSENSITIVE: by a number; ONE_CLASS: by a row below the threshold.
HINGE, EPSILON_INSENSITIVE, ONE_CLASS = 0, 1, 2

#: The state that every learner has; a rule's own follows it in the block.
COMMON = np.dtype(
    [
        ("t", "i8"),  # rows learned
        ("n_merges", "i8"),
        ("loss", "i8"),
        ("random", "u8"),
        ("gamma_rows", "i8"),  # rows that gamma was found from; -1 where it was given
        ("deviation", "f8"),  # sum over features and rows of squared deviations from the mean
        ("epsilon", "f8"),  # of the epsilon-insensitive loss
        ("scale", "f8"),
        ("average_v", "f8"),
        ("average_u", "f8"),
        ("horizon", "f8"),  # rows that the average remembers; 0 where there is none
        ("error", "f8", 2),  # recent prequential error of the last iterate and of the average
        ("slope", "f8", 2),  # log of the factor from margin to log odds, of the two
        ("curvature", "f8", 2),
    ]
)
#: Where in a block the rule's own state begins.
OWN_BEGIN = STATE_BEGIN + COMMON.itemsize

_POWER = 15.0  # of the polynomial decay (Shamir and Zhang 2013) with which the average starts
_WINDOW = 1000.0  # rows over which the errors of the last iterate and of the average are compared
_TINY = 1e-5  # below it a lazy scale factor is multiplied in, at O(B)


@njit(cache=True, forceinline=True)
def common(block: np.ndarray) -> np.ndarray:
    """The `COMMON` record of a block."""
    return record(block, STATE_BEGIN, COMMON)


@njit(cache=True, error_model="numpy")
def error_rate(c: np.ndarray) -> float:
    """By how much a row moves the recent errors; ``c``: the `COMMON` record."""
    rows = float(c["t"])
    return 1.0 / min(rows, _WINDOW)


@njit(cache=True, error_model="numpy")
def watch_output(c: np.ndarray, layer: int, f: float, target: float, rate: float) -> None:
    """Compare a number, or the label of one output, with the decision value of a layer (0: last iterate, 1: average)."""
    if c["loss"] == EPSILON_INSENSITIVE:
        error = abs(target - f)
    else:
        error = 1.0 if (f > 0.0) != (target > 0.0) else 0.0
        z = min(max(math.exp(c["slope"][layer]) * f, -10.0), 10.0)
        p = probability(c["slope"][layer], f)
        fit_slope(c, layer, rate, ((1.0 if target > 0.0 else 0.0) - p) * z, p * (1.0 - p) * z * z)
    c["error"][layer] += rate * (error - c["error"][layer])


@njit(cache=True, error_model="numpy")
def shortfall(c: np.ndarray, f: float, target: float) -> float:
    """By how much one output, whose decision value is f, misses what the loss asks of it: above 0 where it must rise."""
    if c["loss"] == EPSILON_INSENSITIVE:
        residual, epsilon = target - f, float(c["epsilon"])
        return max(residual - epsilon, 0.0) + min(residual + epsilon, 0.0)
    if c["loss"] == ONE_CLASS:
        return max(-f, 0.0)
    return target * max(1.0 - target * f, 0.0)


@njit(cache=True, error_model="numpy")
def prefers_average(c: np.ndarray) -> bool:
    """Whether predictions follow the average: unless the last iterate's recent error is less by more than chance."""
    if c["horizon"] == 0.0:
        return False
    last, average = float(c["error"][0]), float(c["error"][1])
    rows = min(float(c["t"]) + 1.0, _WINDOW)
    deviation = average / math.sqrt(rows) if c["loss"] == EPSILON_INSENSITIVE else math.sqrt(average / rows)
    return average <= last + 0.5 * deviation


@njit(cache=True, error_model="numpy")
def layer_of(c: np.ndarray, what: int) -> int:
    """The layer of what is asked for: that of `CHOSEN` and of `PROBABILITY` is the one that predictions follow."""
    return (AVERAGE if prefers_average(c) else LAST) if what >= CHOSEN else what


@njit(cache=True, error_model="numpy")
def raise_pair(c: np.ndarray, u: np.ndarray, v: np.ndarray, place: int, step: float) -> None:
    """Add ``step`` to a coefficient of the last iterate; the average learns of it later."""
    lazy = step / c["scale"]
    u[place] += lazy
    v[place] -= c["average_u"] / c["average_v"] * lazy


@njit(cache=True, error_model="numpy")
def close_step(c: np.ndarray, coefficients: np.ndarray, biases: np.ndarray, live: int, n: int) -> None:
    """Average, and keep the lazy factors in their range.

    Parameters
    ----------
    c
        The `COMMON` record.
    coefficients
        float64 [outputs of two rows each, n or more].
    biases
        float64 [outputs of two each].
    live, n
        Rows and columns of them that are in use.
    """
    if c["horizon"] > 0.0:
        _average(c, coefficients, biases, live, n)
    if c["average_v"] < _TINY or c["scale"] < _TINY:
        _renormalise(c, coefficients, live, n)


@njit(cache=True, error_model="numpy")
def _renormalise(c: np.ndarray, coefficients: np.ndarray, live: int, n: int) -> None:
    # Both at once: the average may remember for long what the last iterate has forgotten, and a factor that made up for it would
    # grow without bound.
    for k in range(0, live, 2):
        u, v = coefficients[k], coefficients[k + 1]
        for i in range(n):
            v[i] = c["average_v"] * v[i] + c["average_u"] * u[i]
            u[i] *= c["scale"]
    c["average_v"], c["average_u"], c["scale"] = 1.0, 0.0, 1.0


@njit(cache=True, error_model="numpy")
def _average(c: np.ndarray, coefficients: np.ndarray, biases: np.ndarray, live: int, n: int) -> None:
    # average += rho (last - average), in O(1): only the two factors and the biases move.
    rho = max((_POWER + 1.0) / (c["t"] + _POWER), 1.0 / c["horizon"])
    if rho < 1.0:
        c["average_v"] *= 1.0 - rho
        c["average_u"] = (1.0 - rho) * c["average_u"] + rho * c["scale"]
        for k in range(0, live, 2):
            biases[k + 1] += rho * (biases[k] - biases[k + 1])
    else:
        for k in range(0, live, 2):
            coefficients[k + 1, :n] = 0.0
            biases[k + 1] = biases[k]
        c["average_v"], c["average_u"] = 1.0, c["scale"]
