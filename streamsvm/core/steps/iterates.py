"""The last iterate and the average iterate, compiled, for coefficients of support vectors and for weights of features.

A model has one output (two classes, a number, an anomaly score), or one for each of three and more classes. An output has two
rows of coefficients, u and v. The last iterate is ``scale * u``, the average iterate ``average_v * v + average_u * u``. With
these factors, fields of `COMMON_STATE`, to shrink or to average all coefficients costs O(1). Predictions follow the iterate that
has made fewer errors recently.

Probabilities come from decision values: one factor turns them into log odds, and is fitted row by row. This is temperature
scaling (Guo, Pleiss, Sun and Weinberger 2017, On calibration of modern neural networks), online. Decision values are measured in
margins, or in their recent mean size where that is larger: the first ones of Pegasos are as large as 1 / l2. The state holds this
size, and the logarithm of the factor, the slope. Probabilities begin at the prior, equal ones, which counts as much as two rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.block import STATE_BEGIN, view_record

#: The slope before the first row.
INITIAL_SLOPE = 2.5

#: The least probability of a label that is predicted.
ABOVE_HALF = 0.5 + 2.0**-52
#: The rows that a prior distribution of labels counts as.
PRIOR_ROWS = 2.0

_MEASURING = 0.03  # the least weight of a row in the mean size
_LARGEST_STEP = 0.4  # of the slope
_LARGEST_SIZE = 1e100


@compiled(inline=True)
def _iterate_factor(c: np.ndarray, iterate: int) -> float:
    return math.exp(c["slope"][iterate]) / max(c["size"][iterate], 1.0)


@compiled(inline=True)
def _prior_weight(c: np.ndarray) -> float:
    # Below 1 before the first row, too: a model that is given ranks rows.
    return PRIOR_ROWS / (float(c["t"]) + PRIOR_ROWS + 1.0)


@compiled(inline=True)
def compute_probability(c: np.ndarray, iterate: int, f: float) -> float:
    """The probability of the positive label, from an iterate's decision value: above 1/2 for the smallest value above 0."""
    p = 1.0 / (1.0 + math.exp(-min(max(_iterate_factor(c, iterate) * f, -30.0), 30.0)))
    p += _prior_weight(c) * (0.5 - p)
    return max(p, ABOVE_HALF) if f > 0.0 else p


@compiled
def compute_probabilities(c: np.ndarray, scores: np.ndarray, iterate: int, live: int, best: int) -> None:
    """Turn the decision values by an iterate (every other one of ``scores``) into probabilities, in place: softmax.

    Output ``best`` has the largest decision value, and alone the largest probability.
    """
    factor, largest, total, place = _iterate_factor(c, iterate), scores[2 * best + iterate], 0.0, 2 * best + iterate
    for k in range(iterate, live, 2):
        scores[k] = math.exp(max(factor * (scores[k] - largest), -30.0))
        if k != place:
            scores[k] = min(scores[k], 1.0 - 2.0**-48)
        total += scores[k]
    weight = _prior_weight(c)
    for k in range(iterate, live, 2):
        scores[k] = scores[k] / total * (1.0 - weight) + weight * 2.0 / live


@compiled
def update_size(c: np.ndarray, iterate: int, size: float, rate: float) -> float:
    """Update the mean size of an iterate's decision values; the factor from them to log odds."""
    if size < _LARGEST_SIZE:
        weight = max(rate, _MEASURING) if c["size"][iterate] > 0.0 else 1.0
        c["size"][iterate] += weight * (size - c["size"][iterate])
    return _iterate_factor(c, iterate)


@compiled(inline=True)
def fit_softmax_slope(c: np.ndarray, scores: np.ndarray, label: int, iterate: int, live: int, rate: float) -> None:
    """`fit_slope` for several classes; ``label`` is the place of the row's class in ``scores``."""
    size = 0.0
    for k in range(iterate, live, 2):
        size = max(size, abs(scores[k] - scores[label]))
    factor = update_size(c, iterate, size, rate)
    mean = square = total = 0.0
    for k in range(iterate, live, 2):
        z = min(max(factor * (scores[k] - scores[label]), -10.0), 10.0)
        p = math.exp(z)
        total, mean, square = total + p, mean + p * z, square + p * z * z
    mean, square = mean / total, square / total
    fit_slope(c, iterate, rate, -mean, square - mean * mean)


@compiled
def fit_slope(c: np.ndarray, iterate: int, rate: float, gradient: float, curvature: float) -> None:
    """One step of Newton's method on the log-likelihood of a label, with an averaged curvature."""
    rate = max(rate, 0.01)
    c["curvature"][iterate] += rate * (curvature - c["curvature"][iterate])
    step = rate * gradient / (c["curvature"][iterate] + 0.01)
    slope = c["slope"][iterate] + min(max(step, -_LARGEST_STEP), _LARGEST_STEP)
    c["slope"][iterate] = min(max(slope, -50.0), 50.0)


#: What is asked of a model: the decision value by the last iterate, by the average, by the better one, or the probability.
LAST_ITERATE, AVERAGE_ITERATE, DECISION, PROBABILITY = range(4)
#: Losses: of labels, of numbers, and of rows below the threshold.
HINGE, EPSILON_INSENSITIVE, ONE_CLASS = 0, 1, 2

#: The state that all learners have; that of the rule follows it in the block.
COMMON_STATE = np.dtype(
    [
        ("t", "i8"),  # rows learned
        ("n_merges", "i8"),  # of support vectors
        ("loss", "i8"),
        ("random", "u8"),
        ("gamma_rows", "i8"),  # rows that gamma="scale" was computed from; below 0: see `scaled_rows`
        ("deviation", "f8"),  # sum over features and rows of squared deviations from the mean
        ("epsilon", "f8"),  # of the epsilon-insensitive loss
        ("scale", "f8"),
        ("average_v", "f8"),
        ("average_u", "f8"),
        ("horizon", "f8"),  # rows that the average remembers; 0: there is no average
        ("error", "f8", 2),  # recent prequential error of the last and of the average iterate
        ("center", "f8", 2),  # of an anomaly detector: the mean of the decision values of the two
        ("size", "f8", 2),  # the mean size of the decision values of the two, of an anomaly detector less their mean
        ("slope", "f8", 2),  # of the two: log of the factor from decision value, over its size, to log odds
        ("curvature", "f8", 2),  # of the log-likelihood of the two, averaged
    ]
)
#: Fields of it that learning changes, with the least and the largest value that they can have.
COMMON_RANGES: dict[str, tuple[float, float]] = {
    "t": (0, 2**62),
    "n_merges": (0, 2**62),
    "random": (0, 2**64 - 1),
    "deviation": (0.0, 1e100),
    "scale": (1e-10, 1.0),
    "average_v": (1e-10, 1.0),
    "average_u": (0.0, 1.0),
    "error": (0.0, 1e100),
    "center": (-1e100, 1e100),
    "size": (0.0, 1e100),
    "slope": (-50.0, 50.0),
    "curvature": (-1e-9, 1e3),
}
#: Where in a block the state of the rule begins.
RULE_STATE_OFFSET = STATE_BEGIN + COMMON_STATE.itemsize

_POWER = 15.0  # the average starts with a polynomial decay of this power (Shamir and Zhang 2013)
_WINDOW = 1000.0  # rows over which the errors of the two iterates are compared
_LARGEST_DEVIATION = 1e99  # of a decision value from the mean
_TINY = 1e-5  # a lazy scale factor below this is multiplied in, at O(B)


@compiled(inline=True)
def get_common_state(block: np.ndarray) -> np.ndarray:
    """The `COMMON_STATE` record of a block."""
    return view_record(block, STATE_BEGIN, COMMON_STATE)


@compiled
def reset_state(c: np.ndarray) -> None:
    """Set the state of a learner to that before the first row, but for its random numbers."""
    c["t"], c["n_merges"] = 0, 0
    c["scale"], c["average_v"], c["average_u"] = 1.0, 1.0, 0.0
    for iterate in range(2):
        c["error"][iterate] = c["center"][iterate] = c["size"][iterate] = c["curvature"][iterate] = 0.0
        c["slope"][iterate] = INITIAL_SLOPE


@compiled(inline=True)
def compute_smoothing_rate(c: np.ndarray) -> float:
    """The weight of a new row in the recent errors; ``c`` is the `COMMON_STATE` record."""
    rows = float(c["t"])
    return 1.0 / min(rows, _WINDOW)


@compiled(inline=True)
def track_iterate(c: np.ndarray, iterate: int, f: float, target: float, rate: float) -> None:
    """Update the recent error of an iterate whose decision value of a row is f, and the calibration of labels or scores."""
    if c["loss"] == EPSILON_INSENSITIVE:
        error = abs(target - f)
    else:
        error = 1.0 if (f > 0.0) != (target > 0.0) else 0.0
        if c["loss"] == ONE_CLASS:
            if abs(f) < _LARGEST_DEVIATION:
                faded, before = max(rate, 0.01), f - c["center"][iterate]
                c["center"][iterate] += faded * before
                if c["t"] > 1:  # the first row has no rows to be compared with
                    c["size"][iterate] += faded * (abs(before) - c["size"][iterate])
        else:
            z = min(max(update_size(c, iterate, abs(f), rate) * f, -10.0), 10.0)
            p = 1.0 / (1.0 + math.exp(-z))
            fit_slope(c, iterate, rate, ((1.0 if target > 0.0 else 0.0) - p) * z, p * (1.0 - p) * z * z)
    c["error"][iterate] += rate * (error - c["error"][iterate])


@compiled(inline=True)
def compute_shortfall(c: np.ndarray, f: float, target: float) -> float:
    """By how much an output, whose decision value is f, misses what the loss asks: above 0 where it must rise."""
    if c["loss"] == EPSILON_INSENSITIVE:
        residual, epsilon = target - f, float(c["epsilon"])
        return max(residual - epsilon, 0.0) + min(residual + epsilon, 0.0)
    if c["loss"] == ONE_CLASS:
        return max(-f, 0.0)
    return target * max(1.0 - target * f, 0.0)


def is_average_better(c: Any) -> bool:
    """Whether predictions follow the average iterate: unless the last one's recent error is less by more than chance."""
    if c["horizon"] == 0.0:
        return False
    last, average = float(c["error"][0]), float(c["error"][1])
    rows = min(float(c["t"]) + 1.0, _WINDOW)
    deviation = average / math.sqrt(rows) if c["loss"] == EPSILON_INSENSITIVE else math.sqrt(average / rows)
    return average <= last + 0.5 * deviation


#: `is_average_better`, for compiled code.
_is_average_better: Callable[[Any], bool] = compiled(is_average_better)


@compiled
def select_iterate(c: np.ndarray, what: int) -> int:
    """The iterate (0: last, 1: average) that answers what is asked."""
    return (AVERAGE_ITERATE if _is_average_better(c) else LAST_ITERATE) if what >= DECISION else what


@compiled(inline=True)
def add_to_iterates(c: np.ndarray, u: np.ndarray, v: np.ndarray, place: int, step: float) -> None:
    """Add ``step`` to a coefficient of the last iterate; `finish_step` averages it later."""
    lazy = step / c["scale"]
    u[place] += lazy
    v[place] -= c["average_u"] / c["average_v"] * lazy


@compiled(inline=True)
def finish_step(c: np.ndarray, coefficients: np.ndarray, biases: np.ndarray, live: int, n: int) -> None:
    """Average the iterates, and keep their lazy factors in range.

    Of ``coefficients``, float64 [2 outputs, slots], the first ``n_outputs`` rows and ``n`` columns are in use, of ``biases``,
    float64 [2 outputs], the first ``n_outputs``.
    """
    if c["horizon"] > 0.0:
        _average_iterates(c, coefficients, biases, live, n)
    if c["average_v"] < _TINY or c["scale"] < _TINY:
        _renormalise_factors(c, coefficients, live, n)


@compiled(inline=True)
def _renormalise_factors(c: np.ndarray, coefficients: np.ndarray, live: int, n: int) -> None:
    # Both at once: where the last iterate has shrunk away and the average has not, a factor between them would grow unboundedly.
    for k in range(0, live, 2):
        u, v = coefficients[k], coefficients[k + 1]
        for i in range(n):
            v[i] = c["average_v"] * v[i] + c["average_u"] * u[i]
            u[i] *= c["scale"]
    c["average_v"], c["average_u"], c["scale"] = 1.0, 0.0, 1.0


@compiled(inline=True)
def _average_iterates(c: np.ndarray, coefficients: np.ndarray, biases: np.ndarray, live: int, n: int) -> None:
    # average += rho (last - average), in O(1): only the two factors and the biases move.
    rho = max((_POWER + 1.0) / (c["t"] + _POWER), 1.0 / c["horizon"])
    if rho < 1.0:
        c["average_v"] *= 1.0 - rho
        c["average_u"] = (1.0 - rho) * c["average_u"] + rho * c["scale"]
        for k in range(0, live, 2):
            biases[k + 1] += rho * (biases[k] - biases[k + 1])
    else:
        for k in range(0, live, 2):
            for i in range(n):
                coefficients[k + 1, i] = 0.0
            biases[k + 1] = biases[k]
        c["average_v"], c["average_u"] = 1.0, c["scale"]
