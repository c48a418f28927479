"""The control chart by which a learner notices that its stream has drifted, compiled.

It is that of Gama et al. (2004), Learning with drift detection, with fading means (Ross et al. 2012, Exponentially weighted
moving average charts for detecting concept drift).
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled

_FAST, _SLOW = 0.02, 0.002  # rates of the two means
_LEAST_ROWS = 200


@compiled(inline=True)
def drifts(state: np.ndarray, error: float, deviations: float, least_variance: float) -> bool:
    """Update a chart by the error of a row, from 0 to 1; whether the stream has drifted. The chart then begins anew.

    ``state`` is float64 [3]: rows since the last drift, and the fast and the slow mean of their errors. The stream has drifted
    where the fast mean is more than so many ``deviations`` above the slow one. Rare errors count as if the variance of one were
    ``least_variance``.
    """
    state[0] += 1.0
    first = 1.0 / state[0]
    state[1] += max(first, _FAST) * (error - state[1])
    state[2] += max(first, _SLOW) * (error - state[2])
    slow = state[2]
    deviation = math.sqrt(max(slow * (1.0 - slow), least_variance) * _FAST / 2.0)
    if state[0] <= _LEAST_ROWS or state[1] <= slow + deviations * deviation:
        return False
    state[0] = state[1] = state[2] = 0.0
    return True
