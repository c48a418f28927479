"""Calibrations: how the decision values of a classifier become probabilities."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from streamsvm.edge.ensembles import ABOVE_HALF, LEAD
from streamsvm.edge.step import is_number


class MarginCalibration(NamedTuple):
    """Probabilities from decision values in units of the margin: Platt scaling by a factor, mixed with equal shares."""

    factor: float
    """Factor from decision values to log odds."""
    prior: float
    """Weight of the equal shares, from 0 to 1."""

    def compute_probabilities(self, f: np.ndarray) -> np.ndarray:
        """Compute the probabilities of labels, float64 [n, labels], from decision values float64 [n, 1 or labels]."""
        if f.shape[1] == 1:
            p = _sigmoid(self.factor * f)
            p += self.prior * (0.5 - p)
            p = np.where(f > 0.0, np.maximum(p, ABOVE_HALF), p)
            return np.concatenate([1.0 - p, p], axis=1)
        p = np.minimum(_exponentials(self.factor * (f - f.max(axis=1, keepdims=True))), 1.0 - 2.0**-48)
        p[np.arange(len(f)), f.argmax(axis=1)] = 1.0
        return p / p.sum(axis=1, keepdims=True) * (1.0 - self.prior) + self.prior / f.shape[1]

    def is_valid(self, n_labels: int) -> bool:
        """Return whether the numbers are in their ranges."""
        return n_labels >= 2 and is_number(self.prior, 0.0, 1.0) and is_number(self.factor, 0.0)


class LogOddsCalibration(NamedTuple):
    """Probabilities from log odds, mixed with the shares that labels had so far if there are more than two."""

    prior: float
    """Weight of the shares, from 0 to 1."""
    shares: tuple[float, ...] = ()
    """Share of each label; empty for two labels."""

    def compute_probabilities(self, f: np.ndarray) -> np.ndarray:
        """Compute the probabilities of labels, float64 [n, labels], from log odds float64 [n, 1 or labels]."""
        if f.shape[1] == 1:
            p = _sigmoid(f)
            return np.concatenate([1.0 - p, p], axis=1)
        rows, best = np.arange(len(f)), f.argmax(axis=1)
        p = _exponentials(f - f.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        p += self.prior * (np.array(self.shares) - p)
        others = p.copy()
        others[rows, best] = -math.inf
        missing = np.maximum(others.max(axis=1) * (1.0 + LEAD) - p[rows, best], 0.0)
        p[rows, best] += missing
        return p / (1.0 + missing)[:, None]

    def is_valid(self, n_labels: int) -> bool:
        """Return whether the numbers are in their ranges, and there is a share for each of more than two labels."""
        are_shares = n_labels == 2 or (len(self.shares) == n_labels and all(is_number(share, 0.0, 1.0) for share in self.shares))
        return n_labels >= 2 and is_number(self.prior, 0.0, 1.0) and are_shares


#: The two kinds of probabilities, by their names in files.
CALIBRATIONS: Mapping[str, type[MarginCalibration | LogOddsCalibration]] = {
    "margin": MarginCalibration,
    "log odds": LogOddsCalibration,
}


def _sigmoid(f: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-np.clip(f, -30.0, 30.0)))


def _exponentials(f: np.ndarray) -> np.ndarray:
    return np.exp(np.maximum(f, -30.0))
