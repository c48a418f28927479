"""Mean and variance of a feature, value by value, compiled, with a bound on what one absurd value may do."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

__all__ = ["N_FIRST", "check_moments", "learn_value"]

#: Values of a feature that are held, for a median of them.
N_FIRST = 32
_ROUNDING = 1e-26  # of sums of squares, over the square of the mean
_LEAST = 8  # values of which a median says something
_SCALE_OF_MAD = 1.4826  # of a normal distribution: the standard deviation over the median absolute deviation


def check_moments(moments: np.ndarray) -> None:
    """Raise a ValueError where moments of features, float64 [n, 3], are none: compiled code takes counts for places."""
    if not ((moments[:, 0] >= 0.0) & (moments[:, 0] <= 2.0**53) & (moments[:, 2] >= 0.0)).all():
        raise ValueError(
            "the snapshot is corrupt: a feature, or the target, has a negative number of values or sum of squared deviations, "
            "or too many values"
        )


@njit(cache=True, error_model="numpy")
def learn_value(moments: np.ndarray, first: np.ndarray, value: float, bound: float, horizon: float) -> bool:
    """Learn a value of a feature; whether it was bounded, after the first `N_FIRST`.

    Parameters
    ----------
    moments
        float64 [3]: the number of values, their mean, and the sum of squared differences from it.
    first
        float64 or float32 [N_FIRST]: the first values, sorted.
    value
        A finite number.
    bound
        Standard deviations from the mean to which it is bounded.
    horizon
        Values that the moments remember; infinite: all. A feature that was constant begins anew where they fade.
    """
    count = int(moments[0])
    if count < N_FIRST:
        _insert(first, count, value)
        _learn_first(first, count + 1, bound, moments)
        return False
    bounded = False
    constant = moments[2] <= _ROUNDING * moments[0] * moments[1] * moments[1]  # but for what rounding adds
    reach = bound * math.sqrt(moments[2] / moments[0])
    if abs(value - moments[1]) > reach > 0.0 and not constant:
        value = moments[1] + math.copysign(reach, value - moments[1])
        bounded = True
    if horizon < math.inf:
        if constant and abs(value - moments[1]) > reach:
            moments[0], moments[2] = N_FIRST, 0.0
        elif moments[0] >= horizon:
            moments[2] *= (horizon - 1.0) / moments[0]
            moments[0] = horizon - 1.0
    moments[0] += 1.0
    difference = value - moments[1]
    moments[1] += difference / moments[0]
    moments[2] += difference * (value - moments[1])
    return bounded


@njit(cache=True, error_model="numpy")
def _insert(values: np.ndarray, n: int, value: float) -> None:
    """Insert a value into n sorted ones."""
    while n > 0 and values[n - 1] > value:
        values[n] = values[n - 1]
        n -= 1
    values[n] = value


@njit(cache=True, error_model="numpy")
def _learn_first(values: np.ndarray, n: int, bound: float, of: np.ndarray) -> None:
    """Set the moments to those of n sorted values, bounded by the median of their deviations from their median."""
    low, high = np.float64(values[0]), np.float64(values[n - 1])
    if n >= _LEAST and bound < math.inf:
        middle = 0.5 * (np.float64(values[(n - 1) // 2]) + np.float64(values[n // 2]))
        deviations = np.empty(n)
        n_different = 0
        for i in range(n):
            deviation = abs(np.float64(values[i]) - middle)
            _insert(deviations, i, deviation)
            if deviation > 0.0:
                n_different += 1
        deviation = 0.5 * (deviations[(n - 1) // 2] + deviations[n // 2])
        if deviation == 0.0 and n_different > 0:  # most are equal: the median of those that are not
            deviation = deviations[n - 1 - n_different // 2]
        low, high = max(low, middle - bound * _SCALE_OF_MAD * deviation), min(high, middle + bound * _SCALE_OF_MAD * deviation)
    total = 0.0
    for i in range(n):
        total += min(max(np.float64(values[i]), low), high)
    mean, squares = total / n, 0.0
    for i in range(n):
        squares += (min(max(np.float64(values[i]), low), high) - mean) ** 2
    of[0], of[1], of[2] = n, mean, squares
