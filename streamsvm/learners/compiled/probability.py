"""Probabilities from decision values, compiled: one factor turns decision values into log odds, and is fitted row by row.

This is temperature scaling (Guo, Pleiss, Sun and Weinberger 2017, On calibration of modern neural networks), online. The state
holds the logarithm of the factor, the slope.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = ["fit_slope", "fit_softmax", "probabilities", "probability"]

_ABOVE_HALF = 0.5 + 2.0**-52


@njit(cache=True, error_model="numpy", inline="always")
def probability(slope: float, f: float) -> float:
    """The probability of the positive label, from a decision value: above 1/2 for the smallest value above 0."""
    p = 1.0 / (1.0 + math.exp(-min(max(math.exp(slope) * f, -30.0), 30.0)))
    return max(p, _ABOVE_HALF) if f > 0.0 else p


@njit(cache=True, error_model="numpy")
def probabilities(slope: float, scores: np.ndarray, iterate: int, live: int) -> None:
    """Turn the decision values by an iterate (every other one of ``scores``) into probabilities, in place: softmax."""
    factor, best = math.exp(slope), scores[iterate]
    for k in range(iterate, live, 2):
        best = max(best, scores[k])
    total = 0.0
    for k in range(iterate, live, 2):
        scores[k] = math.exp(max(factor * (scores[k] - best), -30.0))
        total += scores[k]
    for k in range(iterate, live, 2):
        scores[k] /= total


@njit(cache=True, error_model="numpy", inline="always")
def fit_softmax(c: np.ndarray, scores: np.ndarray, label: int, iterate: int, live: int, rate: float) -> None:
    """`fit_slope` for several classes; ``label`` is the place of the row's class in ``scores``."""
    factor = math.exp(c["slope"][iterate])
    mean = square = total = 0.0
    for k in range(iterate, live, 2):
        z = min(max(factor * (scores[k] - scores[label]), -10.0), 10.0)
        p = math.exp(z)
        total, mean, square = total + p, mean + p * z, square + p * z * z
    mean, square = mean / total, square / total
    fit_slope(c, iterate, rate, -mean, square - mean * mean)


@njit(cache=True, error_model="numpy")
def fit_slope(c: np.ndarray, iterate: int, rate: float, gradient: float, curvature: float) -> None:
    """One step of Newton's method on the log-likelihood of a label, with an averaged curvature; ``c`` is the `COMMON` record."""
    rate = max(rate, 0.01)
    c["curvature"][iterate] += rate * (curvature - c["curvature"][iterate])
    step = rate * gradient / (c["curvature"][iterate] + 0.01)
    c["slope"][iterate] = min(max(c["slope"][iterate] + min(max(step, -0.2), 0.2), -50.0), 50.0)
