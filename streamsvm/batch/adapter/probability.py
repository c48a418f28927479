"""Probabilities from the decision values of a batch model: one factor, fitted on rows that were held out.

The procedure is Platt's (1999, Probabilistic outputs for support vector machines): decision values of rows that were held out,
and smoothed targets, so that the factor stays finite where classes can be separated. The map is temperature scaling (Guo,
Pleiss, Sun and Weinberger 2017, On calibration of modern neural networks): without Platt's offset, so that probabilities agree
with labels.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from scipy.optimize import minimize_scalar

__all__ = ["LARGEST_LOG_FACTOR", "fit_log_factor", "folds_of", "probabilities"]

#: The largest and, negated, the least logarithm of a factor.
LARGEST_LOG_FACTOR = 20.0
_ABOVE_HALF = 0.5 + 2.0**-52


def folds_of(labels: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold in which each row is held out, int64 [n], for labels int64 [n].

    The rows of a class take turns. The only row of its class gets -1: no fold can do without it.
    """
    out = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        out[rows] = np.arange(len(rows)) % folds if len(rows) > 1 else -1
    return out


def _two_columns(decisions: np.ndarray) -> np.ndarray:
    """Return scores of each class; the decision value of two classes is their difference."""
    return np.column_stack((np.zeros(len(decisions)), decisions)) if decisions.ndim == 1 else decisions


def _log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def probabilities(log_factor: float, decisions: np.ndarray) -> np.ndarray:
    """Return the probability of each class, float64 [n, classes], from decision values [n] of two classes or [n, classes]."""
    p = np.exp(np.maximum(_log_softmax(np.exp(log_factor) * _two_columns(decisions)), -30.0))
    p /= p.sum(axis=1, keepdims=True)
    if decisions.ndim == 1:  # a positive value that is too small to show in the probability still decides the label
        p[:, 1] = np.where(decisions > 0.0, np.maximum(p[:, 1], _ABOVE_HALF), p[:, 1])
        p[:, 0] = 1.0 - p[:, 1]
    return p


def fit_log_factor(
    labels: np.ndarray, weights: np.ndarray, folds: int, decide: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> float:
    """Return the logarithm of the factor under which the rows of a window are most likely.

    Parameters
    ----------
    labels
        Class of each row, int64 [n].
    weights
        float64 [n].
    folds
        Folds; there is a fit for each. With 0 the factor is 1.
    decide
        Takes two masks, bool [n]: fits to the rows of the first, and returns decision values of those of the second.
    """
    held = folds_of(labels, folds) if folds else np.full(len(labels), -1)
    if (held < 0).all():
        return 0.0
    parts = [np.flatnonzero(held == fold) for fold in range(folds) if (held == fold).any()]
    scores = np.concatenate([_two_columns(decide(held != held[rows[0]], held == held[rows[0]])) for rows in parts])
    rows = np.concatenate(parts)
    classes, k = labels[rows], scores.shape[1]
    n = np.bincount(classes, minlength=k)[classes]
    targets = np.repeat(1.0 / (n + k)[:, np.newaxis], k, axis=1)
    targets[np.arange(len(rows)), classes] = (n + 1.0) / (n + k)
    targets *= weights[rows, np.newaxis]

    def loss(log_factor: float) -> float:
        return float(-np.sum(targets * _log_softmax(np.exp(log_factor) * scores)))

    return float(minimize_scalar(loss, bounds=(-LARGEST_LOG_FACTOR, LARGEST_LOG_FACTOR), method="bounded").x)
