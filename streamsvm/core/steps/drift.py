"""A detector of drift, compiled: an error over the last rows that is above the one over many, by more than chance."""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled

__all__ = ["drifts"]

_FAST, _SLOW = 0.02, 0.002  # rates of the two means
_DEVIATIONS = 3.0
_LEAST_ROWS = 200


@compiled(inline=True)
def drifts(state: np.ndarray, error: float) -> bool:
    """Update a detector by the error of a row, 0 or 1; whether the stream has drifted. It then begins anew.

    ``state`` is float64 [3]: rows since the last drift, and the fast and the slow mean of their errors.

    This is the control chart of Gama et al. (2004), Learning with drift detection, with fading means (Ross et al. 2012,
    Exponentially weighted moving average charts for detecting concept drift).
    """
    state[0] += 1.0
    first = 1.0 / state[0]
    state[1] += max(first, _FAST) * (error - state[1])
    state[2] += max(first, _SLOW) * (error - state[2])
    slow = state[2]
    deviation = math.sqrt(max(slow * (1.0 - slow), 0.01) * _FAST / 2.0)
    if state[0] <= _LEAST_ROWS or state[1] <= slow + _DEVIATIONS * deviation:
        return False
    state[0] = state[1] = state[2] = 0.0
    return True
