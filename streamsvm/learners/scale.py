"""The scale by which a learner sees its rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from streamsvm.core.steps.rescale import BOUND

__all__ = ["ScaleInUse"]


class ScaleInUse(NamedTuple):
    """The location and the spread of each feature, in the order of ``feature_names``.

    A spread of 0 means that the feature is constant.

    Examples
    --------
    >>> scale = ScaleInUse(np.array([5.0, 0.0]), np.array([2.0, 0.0]))
    >>> scale.of([[9.0, 1.0], [1000.0, 1.0]]).tolist()
    [[2.0, 0.0], [8.0, 0.0]]
    >>> scale.undo([[2.0, 0.0]]).tolist()
    [[9.0, 0.0]]
    """

    location: np.ndarray
    """float64 [features]."""
    spread: np.ndarray
    """float64 [features]; 0 for a feature that is constant."""

    def of(self, X: np.ndarray) -> np.ndarray:
        """Scale rows float [n, features] as the kernel sees them, float64.

        Each value becomes the number of spreads from the location, bounded to 8.
        """
        some = self.spread > 0.0
        scaled = np.where(some, (np.asarray(X, np.float64) - self.location) / np.where(some, self.spread, 1.0), 0.0)
        return np.clip(scaled, -float(BOUND), float(BOUND))

    def undo(self, X: np.ndarray) -> np.ndarray:
        """Return rows that the kernel sees, such as ``support_vectors``, in the units of the features.

        The result is float64 [n, features].
        """
        return np.asarray(X, np.float64) * self.spread + self.location
