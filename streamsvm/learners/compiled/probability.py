"""Probabilities from decision values, compiled: one factor from margin to log odds, fitted to the stream as it goes by.

Temperature scaling (Guo, Pleiss, Sun and Weinberger 2017, On calibration of modern neural networks), online. What is kept is the
logarithm of the factor, the slope.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = ["fit_slope", "fit_softmax", "probabilities", "probability"]

_ABOVE_HALF = 0.5 + 2.0**-52


@njit(cache=True, error_model="numpy")
def probability(slope: float, f: float) -> float:
    """Of the positive label, from a decision value; never at odds with the label, however small the value is."""
    p = 1.0 / (1.0 + math.exp(-min(max(math.exp(slope) * f, -30.0), 30.0)))
    return max(p, _ABOVE_HALF) if f > 0.0 else p


@njit(cache=True, error_model="numpy")
def probabilities(slope: float, scores: np.ndarray, layer: int, live: int) -> None:
    """Softmax of a layer's scores (every other one from ``layer`` on) times the factor, in place."""
    factor, best = math.exp(slope), scores[layer]
    for k in range(layer, live, 2):
        best = max(best, scores[k])
    total = 0.0
    for k in range(layer, live, 2):
        scores[k] = math.exp(max(factor * (scores[k] - best), -30.0))
        total += scores[k]
    for k in range(layer, live, 2):
        scores[k] /= total


@njit(cache=True, error_model="numpy")
def fit_softmax(c: np.ndarray, scores: np.ndarray, own: int, layer: int, live: int, rate: float) -> None:
    """`fit_slope` for several classes, where ``own`` is the place of the row's own score."""
    factor = math.exp(c["slope"][layer])
    mean = square = total = 0.0
    for k in range(layer, live, 2):
        z = min(max(factor * (scores[k] - scores[own]), -10.0), 10.0)
        p = math.exp(z)
        total, mean, square = total + p, mean + p * z, square + p * z * z
    mean, square = mean / total, square / total
    fit_slope(c, layer, rate, -mean, square - mean * mean)


@njit(cache=True, error_model="numpy")
def fit_slope(c: np.ndarray, layer: int, rate: float, gradient: float, curvature: float) -> None:
    """One step of Newton's method on the log-likelihood of a target, with the curvature averaged; ``c`` is the common record."""
    rate = max(rate, 0.01)
    c["curvature"][layer] += rate * (curvature - c["curvature"][layer])
    step = rate * gradient / (c["curvature"][layer] + 0.01)
    c["slope"][layer] = min(max(c["slope"][layer] + min(max(step, -0.2), 0.2), -50.0), 50.0)
