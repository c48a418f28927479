"""Calibrations: how the decision values of a classifier become probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streamsvm.edge.ensembles import ABOVE_HALF, WINNER_LEAD
from streamsvm.edge.step import is_number


class MarginCalibration(NamedTuple):
    """Platt scaling of decision values in units of the margin, mixed with the uniform distribution."""

    factor: float
    """Factor from decision values to log odds."""
    prior: float
    """Weight of the uniform distribution, from 0 to 1."""

    def compute_probabilities(self, f: np.ndarray) -> np.ndarray:
        """Convert the decision values of a classifier to probabilities of its labels by Platt scaling. ``f`` is float64 [n, 1]
        for two labels, or [n, labels] for more; the result is float64 [n, labels], with rows that sum to 1.
        """
        if f.shape[1] == 1:
            p = _sigmoid(self.factor * f)
            p += self.prior * (0.5 - p)
            p = np.where(f > 0.0, np.maximum(p, ABOVE_HALF), p)
            return np.concatenate([1.0 - p, p], axis=1)
        p = np.minimum(_clipped_exp(self.factor * (f - f.max(axis=1, keepdims=True))), 1.0 - 2.0**-48)
        p[np.arange(len(f)), f.argmax(axis=1)] = 1.0
        return p / p.sum(axis=1, keepdims=True) * (1.0 - self.prior) + self.prior / f.shape[1]

    def is_valid(self, n_labels: int) -> bool:
        """Return whether this calibration, which was read from a file, fits a classifier with ``n_labels`` labels: the factor is
        at least 0, the prior is between 0 and 1, and there are at least two labels.
        """
        return n_labels >= 2 and is_number(self.prior, 0.0, 1.0) and is_number(self.factor, 0.0)


class LogOddsCalibration(NamedTuple):
    """Probabilities from log odds; those of more than two labels are mixed with the label frequencies seen in training."""

    prior: float
    """Weight of the label frequencies, from 0 to 1."""
    shares: tuple[float, ...] = ()
    """Relative frequency of each label; empty for two labels."""

    def compute_probabilities(self, f: np.ndarray) -> np.ndarray:
        """Convert the log odds that a classifier predicts to probabilities of its labels. ``f`` is float64 [n, 1] for two labels,
        or [n, labels] for more; the result is float64 [n, labels], with rows that sum to 1.

        The label with the largest log odds keeps the largest probability, also after mixing.
        """
        if f.shape[1] == 1:
            p = _sigmoid(f)
            return np.concatenate([1.0 - p, p], axis=1)
        rows, best = np.arange(len(f)), f.argmax(axis=1)
        p = _clipped_exp(f - f.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p += self.prior * (np.array(self.shares) - p)
        rivals = p.copy()
        rivals[rows, best] = -math.inf
        missing = np.maximum(rivals.max(axis=1) * (1.0 + WINNER_LEAD) - p[rows, best], 0.0)
        p[rows, best] += missing
        return p / (1.0 + missing)[:, None]

    def is_valid(self, n_labels: int) -> bool:
        """Return whether this calibration, which was read from a file, fits a classifier with ``n_labels`` labels: the prior is
        between 0 and 1, and each of three or more labels has a relative frequency between 0 and 1.
        """
        has_shares = n_labels == 2 or (len(self.shares) == n_labels and all(is_number(share, 0.0, 1.0) for share in self.shares))
        return n_labels >= 2 and is_number(self.prior, 0.0, 1.0) and has_shares


#: The calibration classes by their names in files.
CALIBRATIONS: Mapping[str, type] = {"margin": MarginCalibration, "log odds": LogOddsCalibration}


def _sigmoid(f: np.ndarray) -> np.ndarray:
    """Return the logistic function 1 / (1 + exp(-f)) of each number; ``f`` is clipped to +- 30, so that exp does not overflow."""
    return 1.0 / (1.0 + np.exp(-np.clip(f, -30.0, 30.0)))


def _clipped_exp(f: np.ndarray) -> np.ndarray:
    """Return exp(f) of each number, where ``f`` below -30 counts as -30, so that the result is never 0."""
    return np.exp(np.maximum(f, -30.0))
