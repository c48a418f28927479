"""Probabilities from decision values, compiled: one factor turns decision values into log odds, and is fitted row by row.

This is temperature scaling (Guo, Pleiss, Sun and Weinberger 2017, On calibration of modern neural networks), online. Decision
values are measured in margins, or in their recent mean size where that is larger: the first ones of Pegasos are as large as
1 / l2. The state holds this size, and the logarithm of the factor, the slope. Probabilities begin at the prior, equal ones, which
counts as much as two rows.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled

__all__ = ["FIRST_SLOPE", "fit_slope", "fit_softmax", "measure", "probabilities", "probability"]

#: The slope before the first row.
FIRST_SLOPE = 2.5

_ABOVE_HALF = 0.5 + 2.0**-52
_PRIOR_ROWS = 2.0
_MEASURING = 0.03  # the least weight of a row in the mean size
_LARGEST_STEP = 0.4  # of the slope
_LARGEST_SIZE = 1e100


@compiled(inline=True)
def _factor(c: np.ndarray, iterate: int) -> float:
    return math.exp(c["slope"][iterate]) / max(c["size"][iterate], 1.0)


@compiled(inline=True)
def _prior_weight(c: np.ndarray) -> float:
    # Below 1 before the first row, too: a model that is given ranks rows.
    return _PRIOR_ROWS / (float(c["t"]) + _PRIOR_ROWS + 1.0)


@compiled(inline=True)
def probability(c: np.ndarray, iterate: int, f: float) -> float:
    """The probability of the positive label, from an iterate's decision value: above 1/2 for the smallest value above 0."""
    p = 1.0 / (1.0 + math.exp(-min(max(_factor(c, iterate) * f, -30.0), 30.0)))
    p += _prior_weight(c) * (0.5 - p)
    return max(p, _ABOVE_HALF) if f > 0.0 else p


@compiled
def probabilities(c: np.ndarray, scores: np.ndarray, iterate: int, live: int, best: int) -> None:
    """Turn the decision values by an iterate (every other one of ``scores``) into probabilities, in place: softmax.

    Output ``best`` has the largest decision value, and alone the largest probability.
    """
    factor, largest, total, place = _factor(c, iterate), scores[2 * best + iterate], 0.0, 2 * best + iterate
    for k in range(iterate, live, 2):
        scores[k] = math.exp(max(factor * (scores[k] - largest), -30.0))
        if k != place:
            scores[k] = min(scores[k], 1.0 - 2.0**-48)
        total += scores[k]
    weight = _prior_weight(c)
    for k in range(iterate, live, 2):
        scores[k] = scores[k] / total * (1.0 - weight) + weight * 2.0 / live


@compiled
def measure(c: np.ndarray, iterate: int, size: float, rate: float) -> float:
    """Update the mean size of an iterate's decision values; the factor from them to log odds."""
    if size < _LARGEST_SIZE:
        weight = max(rate, _MEASURING) if c["size"][iterate] > 0.0 else 1.0
        c["size"][iterate] += weight * (size - c["size"][iterate])
    return _factor(c, iterate)


@compiled(inline=True)
def fit_softmax(c: np.ndarray, scores: np.ndarray, label: int, iterate: int, live: int, rate: float) -> None:
    """`fit_slope` for several classes; ``label`` is the place of the row's class in ``scores``."""
    size = 0.0
    for k in range(iterate, live, 2):
        size = max(size, abs(scores[k] - scores[label]))
    factor = measure(c, iterate, size, rate)
    mean = square = total = 0.0
    for k in range(iterate, live, 2):
        z = min(max(factor * (scores[k] - scores[label]), -10.0), 10.0)
        p = math.exp(z)
        total, mean, square = total + p, mean + p * z, square + p * z * z
    mean, square = mean / total, square / total
    fit_slope(c, iterate, rate, -mean, square - mean * mean)


@compiled
def fit_slope(c: np.ndarray, iterate: int, rate: float, gradient: float, curvature: float) -> None:
    """One step of Newton's method on the log-likelihood of a label, with an averaged curvature; ``c`` is the `COMMON` record."""
    rate = max(rate, 0.01)
    c["curvature"][iterate] += rate * (curvature - c["curvature"][iterate])
    step = rate * gradient / (c["curvature"][iterate] + 0.01)
    slope = c["slope"][iterate] + min(max(step, -_LARGEST_STEP), _LARGEST_STEP)
    c["slope"][iterate] = min(max(slope, -50.0), 50.0)
