"""Mean and variance of a feature, value by value, compiled, with a bound on what one absurd value may do.

`learn_value` remembers all values. `learn_stream_value` follows a stream: it forgets, and a feature whose level has changed for
good (a sensor that is recalibrated), or that varies after it was constant somewhere else, begins anew. Bounded values alone would
need thousands of rows for that. Vectors that are stored stay as many deviations from the new level as they were from the old one.
Values on both sides of the mean are a burst and no level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: Values of a feature that are held, for a median of them.
N_FIRST = 32

#: Columns of moments that follow a stream. The first three are those of `learn_value`. Then: the values held of a run of values
#: beyond the bound; whether most of the first values were equal, as of a feature that is rarely not 0; how often the moments have
#: begun anew within the horizon, 2 also where they describe both levels; whether that has not come into use; the mean and the
#: reach of the level before; and whether there was a value other than 0 and 1.
N_MOMENTS = 10
_N_OUTLIERS, MOSTLY_EQUAL, _N_RESETS, WAS_RESET, PREVIOUS_MEAN, _PREVIOUS_REACH, NOT_BINARY = 3, 4, 5, 6, 7, 8, 9

_ROUNDING = 1e-26  # of sums of squares, over the square of the mean
_TINY = 1e-300
_LASTING = 900.0  # values after which a target may have another level again
_LEAST = 8  # values of which a median says something
_SCALE_OF_MAD = 1.4826  # of a normal distribution: the standard deviation over the median absolute deviation


def check_moments(moments: np.ndarray) -> None:
    """Raise a ValueError where moments, float64 [n, FOLLOWED], are none: compiled code takes counts for places."""
    held, flags = moments[:, _N_OUTLIERS], moments[:, [MOSTLY_EQUAL, WAS_RESET, NOT_BINARY]]
    if not ((moments[:, 0] >= 0.0) & (moments[:, 0] <= 2.0**53) & (moments[:, 2] >= 0.0)).all():
        raise ValueError(
            "the snapshot is corrupt: a feature, or the target, has a negative number of values or sum of squared deviations, "
            "or too many values"
        )
    if not (
        ((held >= 0.0) & (held < N_FIRST) & (held == np.floor(held))).all()
        and np.isin(flags, (0.0, 1.0)).all()
        and np.isin(moments[:, _N_RESETS], (0.0, 1.0, 2.0)).all()
    ):
        raise ValueError("the snapshot is corrupt: a feature, or the target, holds no number of values that is possible")


def pool_moments(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], moments: np.ndarray, first: np.ndarray) -> None:
    """Write the moments of all values of several streams, each of which has seen other ones, into zeros ``moments`` and
    ``first``.

    Each of the ``parts`` is of a stream: its moments, float64 [features or more, FOLLOWED], its first values, and the places of
    its features, int64 [features]. Values beyond the bound that a stream holds are forgotten: they may be those of another level,
    which only comes in a row.
    """
    for of, _, places in parts:
        count = of[: len(places), 0]
        moments[places, 0] += count
        moments[places, 1] += count * of[: len(places), 1]
    moments[:, 1] /= np.maximum(moments[:, 0], 1.0)
    for of, _, places in parts:
        count, mean, squares = of[: len(places), :3].T
        moments[places, 2] += squares + count * (mean - moments[places, 1]) ** 2
        for flag in (MOSTLY_EQUAL, _N_RESETS, NOT_BINARY):
            moments[places, flag] = np.maximum(moments[places, flag], of[: len(places), flag])
        unset = moments[places, _PREVIOUS_REACH] == 0.0
        moments[places[unset], PREVIOUS_MEAN:NOT_BINARY] = of[: len(places)][unset, PREVIOUS_MEAN:NOT_BINARY]
    few = (moments[:, 0] > 0.0) & (moments[:, 0] < N_FIRST)
    held = np.zeros(len(moments), np.int64)
    for of, values, places in parts:
        for feature in np.flatnonzero(few[places]):
            place, n = places[feature], int(of[feature, 0])
            first[place, held[place] : held[place] + n] = values[feature, :n]
            held[place] += n
    for place in np.flatnonzero(few):
        first[place, : held[place]].sort()


def convert_moments(
    moments: np.ndarray, first: np.ndarray, factors: np.ndarray, shifts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the moments and the first values of a stream in other units: ``value * factor + shift``, no factor being below 0."""
    n = len(factors)
    moved, values = moments[:n].copy(), first[:n].astype(np.float64)
    seen = moved[:, 0] > 0.0
    moved[seen, 1] = moved[seen, 1] * factors[seen] + shifts[seen]
    moved[:, 2] *= factors * factors
    again = moved[:, _PREVIOUS_REACH] > 0.0
    moved[again, PREVIOUS_MEAN] = moved[again, PREVIOUS_MEAN] * factors[again] + shifts[again]
    moved[again, _PREVIOUS_REACH] = np.maximum(moved[again, _PREVIOUS_REACH] * factors[again], _TINY)
    moved[(factors != 1.0) | (shifts != 0.0), NOT_BINARY] = 1.0
    held = np.arange(values.shape[1]) < moved[:, :1]
    return moved, np.where(held, values * factors[:, None] + shifts[:, None], 0.0)


@compiled
def learn_value(moments: np.ndarray, first: np.ndarray, value: float, bound: float) -> bool:
    """Learn a value of a feature, which is finite; whether it was bounded to ``bound`` standard deviations, after `N_FIRST`
    values.

    ``moments`` float64 [3 or more] are the number of values, their mean, and the sum of squared differences from it; ``first``,
    float64 or float32 [N_FIRST], are the first values, sorted.
    """
    count = int(moments[0])
    if count < N_FIRST:
        _insert_sorted(first, count, value)
        _learn_first_values(first, count + 1, bound, moments)
        return False
    reach = bound * math.sqrt(moments[2] / moments[0])
    if abs(value - moments[1]) > reach > 0.0 and not _is_constant(moments):
        _add_value(moments, moments[1] + math.copysign(reach, value - moments[1]))
        return True
    _add_value(moments, value)
    return False


@compiled
def learn_stream_value(moments: np.ndarray, first: np.ndarray, value: float, bound: float, horizon: float, levels: bool) -> None:
    """Learn a value of a feature of which about the last ``horizon`` values count.

    Values beyond the bound are held while they come one after the other. Where a value within it comes, they are learned bounded.
    Where `N_FIRST` of them came, of a target 8, all above the mean or all below it, there is another level, and the moments begin
    anew with these: from a constant that is far from it, else once in the horizon, and once more where a level that varied comes
    back, as after an outage. Later levels within the horizon are learned bounded: the moments describe all of them.

    ``moments`` are float64 [FOLLOWED]; ``first``, ``value`` and ``bound`` are as of `learn_value`, and after the first values
    ``first`` is where values beyond the bound are held. ``levels`` says whether equal values may be another level: for a target.
    After such a level the moments begin anew with the next two values; and a level that has lasted for 900 values may always be
    followed by another one. Of a feature equal values say that it is missing, and are forgotten; but a constant feature varies
    with eight of them.
    """
    count, held = int(moments[0]), int(moments[_N_OUTLIERS])
    if value != 0.0 and value != 1.0:  # noqa: PLR1714 - compiled
        moments[NOT_BINARY] = 1.0
    if count < N_FIRST:
        _insert_sorted(first, count, value)
        _reset_moments(first, count + 1, bound, moments)
        return
    reach = bound * math.sqrt(moments[2] / moments[0])
    if abs(value - moments[1]) <= reach:
        _learn_outliers(moments, first, held, bound, horizon)
        _add_bounded(moments, value, bound, horizon)
        return
    _insert_sorted(first, held, value)
    moments[_N_OUTLIERS] = held = held + 1
    constant = _is_constant(moments)
    if constant and levels and held == 2:  # one may be a glitch
        moments[PREVIOUS_MEAN], moments[_PREVIOUS_REACH], moments[_N_OUTLIERS] = moments[1], _TINY, 0.0
        _reset_moments(first, 2, bound, moments)
        return
    if constant and not levels and held == _LEAST and first[0] == first[_LEAST - 1]:  # a flag that is up
        _learn_outliers(moments, first, held, bound, horizon)
        return
    run = _LEAST if levels else N_FIRST
    if held < run:
        return
    moments[_N_OUTLIERS] = 0.0
    if not levels and first[0] == first[run - 1]:
        return
    count, mean, squares = moments[0], moments[1], moments[2]
    back = abs(np.float64(first[run // 2]) - moments[PREVIOUS_MEAN]) < moments[_PREVIOUS_REACH] > _TINY
    one_side = (first[0] > mean) == (first[run - 1] > mean)
    again = moments[_N_RESETS] == 0.0 or (moments[_N_RESETS] == 1.0 and back) or (levels and count >= _LASTING)
    if constant or (one_side and again):
        _learn_first_values(first, run, bound, moments)
        if not constant or abs(mean - moments[1]) > bound * math.sqrt(moments[2] / moments[0]):
            if moments[2] > 0.0:  # a few values in a row may not show how much they vary
                variance = (moments[_PREVIOUS_REACH] / bound) ** 2 if back else squares / count
                moments[2] = max(moments[2], run * variance)
            moments[PREVIOUS_MEAN], moments[_PREVIOUS_REACH] = mean, max(reach, _TINY)
            moments[_N_RESETS], moments[WAS_RESET] = 0.0 if constant else min(moments[_N_RESETS] + 1.0, 2.0), 1.0
            return
        moments[0], moments[1], moments[2] = count, mean, squares
    _learn_outliers(moments, first, run, bound, horizon)
    if one_side:
        moments[_N_RESETS] = 2.0


@compiled
def _learn_outliers(moments: np.ndarray, first: np.ndarray, n: int, bound: float, horizon: float) -> None:
    for i in range(n):
        _add_bounded(moments, np.float64(first[i]), bound, horizon)
    moments[_N_OUTLIERS] = 0.0


@compiled(inline=True)
def _is_constant(moments: np.ndarray) -> bool:
    # But for what rounding adds.
    return bool(moments[2] <= _ROUNDING * moments[0] * moments[1] * moments[1])


@compiled
def _add_bounded(moments: np.ndarray, value: float, bound: float, horizon: float) -> None:
    # A feature that was constant varies from the first value that differs.
    reach = bound * math.sqrt(moments[2] / moments[0])
    if _is_constant(moments):
        if abs(value - moments[1]) > reach:
            moments[0], moments[2] = N_FIRST, 0.0
    elif abs(value - moments[1]) > reach:
        value = moments[1] + math.copysign(reach, value - moments[1])
    if moments[0] >= horizon:
        moments[2] *= (horizon - 1.0) / moments[0]
        moments[0], moments[_N_RESETS] = horizon - 1.0, 0.0
    _add_value(moments, value)


@compiled(inline=True)
def _add_value(moments: np.ndarray, value: float) -> None:
    moments[0] += 1.0
    difference = value - moments[1]
    moments[1] += difference / moments[0]
    moments[2] += difference * (value - moments[1])


@compiled
def _reset_moments(first: np.ndarray, n: int, bound: float, moments: np.ndarray) -> None:
    _learn_first_values(first, n, bound, moments)
    moments[MOSTLY_EQUAL] = 1.0 if first[n // 4] == first[3 * n // 4] else 0.0


@compiled
def _insert_sorted(values: np.ndarray, n: int, value: float) -> None:
    """Insert a value into n sorted ones."""
    while n > 0 and values[n - 1] > value:
        values[n] = values[n - 1]
        n -= 1
    values[n] = value


@compiled
def _learn_first_values(values: np.ndarray, n: int, bound: float, of: np.ndarray) -> None:
    """Set the moments to those of n sorted values, bounded by the median of their deviations from their median."""
    low, high = np.float64(values[0]), np.float64(values[n - 1])
    if n >= _LEAST and bound < math.inf:
        middle = 0.5 * (np.float64(values[(n - 1) // 2]) + np.float64(values[n // 2]))
        deviations = np.empty(n)
        n_different = 0
        for i in range(n):
            deviation = abs(np.float64(values[i]) - middle)
            _insert_sorted(deviations, i, deviation)
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
