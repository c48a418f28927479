"""Running mean and variance of a feature, compiled and robust to outliers.

`learn_value` weights all values equally. `learn_stream_value` adapts to a stream: it discounts old values, and resets the moments
if the level of a feature has changed permanently (a sensor was recalibrated), or if it varies after it was constant elsewhere.
Clipped outliers alone would need thousands of rows for that. Stored vectors stay as many deviations from the new level as they
were from the old one. Outliers on both sides of the mean are a burst, not a level.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.compiling.functions import compiled

#: Number of first values of a feature that are stored, to compute their median.
N_FIRST = 32

#: Number of moments of a feature in a stream. The first three are those of `learn_value`: count, mean, and sum of squared
#: deviations. The others, by the constants below: the number of stored outliers; whether most of the first values were equal, as
#: in sparse features; the number of resets within the horizon (2 also if the moments describe two levels); whether the last reset
#: has not taken effect on the scale yet; the mean and the outlier distance of the previous level; and whether there was a value
#: other than 0 and 1.
N_MOMENTS = 10
_N_OUTLIERS, MOSTLY_EQUAL, _N_RESETS, WAS_RESET, PREVIOUS_MEAN, _PREVIOUS_REACH, NOT_BINARY = 3, 4, 5, 6, 7, 8, 9

_ROUNDING = 1e-26  # relative rounding error of sums of squares per value, divided by the squared mean
_TINY = 1e-300
_VALUES_BETWEEN_LEVELS = 900.0  # after this many values, the level of a target may change again
_MIN_FOR_MEDIAN = 8
_DEVIATIONS_PER_MAD = 1.4826  # standard deviation divided by the median absolute deviation, in a normal distribution


def check_moments(moments: np.ndarray) -> None:
    """Raise ValueError if ``moments``, the running statistics of n features from a saved model, float64 [n, N_MOMENTS], are
    invalid: for example a negative count, because compiled code uses counts as indices.
    """
    n_outliers, flags = moments[:, _N_OUTLIERS], moments[:, [MOSTLY_EQUAL, WAS_RESET, NOT_BINARY]]
    if not ((moments[:, 0] >= 0.0) & (moments[:, 0] <= 2.0**53) & (moments[:, 2] >= 0.0)).all():
        raise ValueError(
            "the snapshot is corrupt: a feature, or the target, has a negative number of values or sum of squared deviations, "
            "or too many values"
        )
    if not (
        ((n_outliers >= 0.0) & (n_outliers < N_FIRST) & (n_outliers == np.floor(n_outliers))).all()
        and np.isin(flags, (0.0, 1.0)).all()
        and np.isin(moments[:, _N_RESETS], (0.0, 1.0, 2.0)).all()
    ):
        raise ValueError("the snapshot is corrupt: a feature, or the target, has an invalid number of outliers, or invalid flags")


def pool_moments(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], moments: np.ndarray, first: np.ndarray) -> None:
    """Combine the running statistics (count, mean, sum of squared deviations, ...) of features over several disjoint streams.
    ``parts`` has a tuple of three arrays for each stream. The result, as if one stream had had all values, is written into
    ``moments`` and ``first`` (the first values of each feature), which must be zeros.

    Each of the ``parts`` belongs to a stream: its moments, float64 [features or more, N_MOMENTS], its first values, and the
    indices of its features in the result, int64 [features]. Stored outliers are discarded, because only consecutive ones can be a
    new level.
    """
    for part, _, columns in parts:
        count = part[: len(columns), 0]
        moments[columns, 0] += count
        moments[columns, 1] += count * part[: len(columns), 1]
    moments[:, 1] /= np.maximum(moments[:, 0], 1.0)
    for part, _, columns in parts:
        count, mean, squares = part[: len(columns), :3].T
        moments[columns, 2] += squares + count * (mean - moments[columns, 1]) ** 2
        for flag in (MOSTLY_EQUAL, _N_RESETS, NOT_BINARY):
            moments[columns, flag] = np.maximum(moments[columns, flag], part[: len(columns), flag])
        unset = moments[columns, _PREVIOUS_REACH] == 0.0
        moments[columns[unset], PREVIOUS_MEAN:NOT_BINARY] = part[: len(columns)][unset, PREVIOUS_MEAN:NOT_BINARY]
    has_first_values = (moments[:, 0] > 0.0) & (moments[:, 0] < N_FIRST)
    n_first = np.zeros(len(moments), np.int64)
    for part, values, columns in parts:
        for feature in np.flatnonzero(has_first_values[columns]):
            column, n = columns[feature], int(part[feature, 0])
            first[column, n_first[column] : n_first[column] + n] = values[feature, :n]
            n_first[column] += n
    for column in np.flatnonzero(has_first_values):
        first[column, : n_first[column]].sort()


def convert_moments(
    moments: np.ndarray, first: np.ndarray, factors: np.ndarray, shifts: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the running statistics ``moments`` and the ``first`` values of n features, converted to other units: each value v
    becomes v * factor + shift, with ``factors`` (at least 0) and ``shifts``, float64 [n].
    """
    n = len(factors)
    converted, values = moments[:n].copy(), first[:n].astype(np.float64)
    has_values = converted[:, 0] > 0.0
    converted[has_values, 1] = converted[has_values, 1] * factors[has_values] + shifts[has_values]
    converted[:, 2] *= factors * factors
    had_level = converted[:, _PREVIOUS_REACH] > 0.0
    converted[had_level, PREVIOUS_MEAN] = converted[had_level, PREVIOUS_MEAN] * factors[had_level] + shifts[had_level]
    converted[had_level, _PREVIOUS_REACH] = np.maximum(converted[had_level, _PREVIOUS_REACH] * factors[had_level], _TINY)
    converted[(factors != 1.0) | (shifts != 0.0), NOT_BINARY] = 1.0
    is_stored = np.arange(values.shape[1]) < converted[:, :1]
    return converted, np.where(is_stored, values * factors[:, None] + shifts[:, None], 0.0)


@compiled
def learn_value(moments: np.ndarray, first: np.ndarray, value: float, bound: float) -> bool:
    """Update the running statistics ``moments`` of a feature (count, mean, sum of squared deviations) with a finite ``value``.
    ``first`` has its first 32 values, sorted. After these, a value that deviates from the mean by more than ``bound`` standard
    deviations is clipped to that distance. Returns whether it was clipped.

    ``moments`` are float64 [3 or more], ``first`` float64 or float32 [N_FIRST].
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
    """Update the running statistics ``moments`` (count, mean, ...) of a feature in a stream with a finite ``value``. They
    describe about the last ``horizon`` values. Outliers beyond ``bound`` standard deviations are clipped; after many in
    sequence, the statistics start again at the new level. ``first`` stores early values and outliers. ``levels`` is True for a
    regression target.

    Consecutive outliers are stored. If a value within the bound comes next, they are learned, but clipped. If `N_FIRST` of them
    come (8 for a target), all above the mean or all below it, they are a new level, and the moments are reset to these values.
    This happens after a distant constant level, and else once in the horizon, and once more if the previous level varied and
    returns, as after an outage. Further levels within the horizon are learned clipped, so that the moments describe all of them.

    ``moments`` are float64 [N_MOMENTS]; ``first``, ``value`` and ``bound`` are as in `learn_value`, and after the first values
    ``first`` stores outliers. ``levels`` tells whether equal values can be a new level, which is True for targets: after a
    constant level, the moments are reset by the next two values, and a level that has lasted for 900 values can always change. In
    a feature, equal outliers mark missing values, and are discarded; but eight of them are learned after a constant.
    """
    count, n_outliers = int(moments[0]), int(moments[_N_OUTLIERS])
    if value != 0.0 and value != 1.0:  # noqa: PLR1714 - compiled
        moments[NOT_BINARY] = 1.0
    if count < N_FIRST:
        _insert_sorted(first, count, value)
        _reset_moments(first, count + 1, bound, moments)
        return
    reach = bound * math.sqrt(moments[2] / moments[0])
    if abs(value - moments[1]) <= reach:
        _learn_outliers(moments, first, n_outliers, bound, horizon)
        _add_clipped(moments, value, bound, horizon)
        return
    _insert_sorted(first, n_outliers, value)
    moments[_N_OUTLIERS] = n_outliers = n_outliers + 1
    constant = _is_constant(moments)
    if constant and levels and n_outliers == 2:  # a single one may be a glitch
        moments[PREVIOUS_MEAN], moments[_PREVIOUS_REACH], moments[_N_OUTLIERS] = moments[1], _TINY, 0.0
        _reset_moments(first, 2, bound, moments)
        return
    if constant and not levels and n_outliers == _MIN_FOR_MEDIAN and first[0] == first[_MIN_FOR_MEDIAN - 1]:  # a flag that is set
        _learn_outliers(moments, first, n_outliers, bound, horizon)
        return
    run = _MIN_FOR_MEDIAN if levels else N_FIRST
    if n_outliers < run:
        return
    moments[_N_OUTLIERS] = 0.0
    if not levels and first[0] == first[run - 1]:
        return
    count, mean, squares = moments[0], moments[1], moments[2]
    returns = abs(np.float64(first[run // 2]) - moments[PREVIOUS_MEAN]) < moments[_PREVIOUS_REACH] > _TINY
    one_side = (first[0] > mean) == (first[run - 1] > mean)
    n_resets = moments[_N_RESETS]
    may_reset = n_resets == 0.0 or (n_resets == 1.0 and returns) or (levels and count >= _VALUES_BETWEEN_LEVELS)
    if constant or (one_side and may_reset):
        _learn_first_values(first, run, bound, moments)
        if not constant or abs(mean - moments[1]) > bound * math.sqrt(moments[2] / moments[0]):
            if moments[2] > 0.0:  # a few consecutive values may vary less than the level
                variance = (moments[_PREVIOUS_REACH] / bound) ** 2 if returns else squares / count
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
    """Add ``n`` recent outliers, the first items of the array ``first``, to the running statistics ``moments`` of a feature.
    Each is clipped to ``bound`` standard deviations from the mean. Old values are discounted, so that about the last ``horizon``
    count.
    """
    for i in range(n):
        _add_clipped(moments, np.float64(first[i]), bound, horizon)
    moments[_N_OUTLIERS] = 0.0


@compiled(inline=True)
def _is_constant(moments: np.ndarray) -> bool:
    """Return whether all values in the running statistics ``moments`` of a feature were equal: whether its variance is 0, except
    for rounding.
    """
    return bool(moments[2] <= _ROUNDING * moments[0] * moments[1] * moments[1])


@compiled
def _add_clipped(moments: np.ndarray, value: float, bound: float, horizon: float) -> None:
    """Add ``value``, clipped to ``bound`` standard deviations from the mean, to the running statistics ``moments`` of a feature.
    Old values are discounted, so that the statistics describe about the last ``horizon`` values.

    If all values were equal, a different one is added unclipped, with the weight of the last `N_FIRST` values.
    """
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
    """Add ``value`` to the running statistics ``moments`` of a feature by Welford's algorithm: count, mean and sum of squared
    deviations (its first three items).
    """
    moments[0] += 1.0
    difference = value - moments[1]
    moments[1] += difference / moments[0]
    moments[2] += difference * (value - moments[1])


@compiled
def _reset_moments(first: np.ndarray, n: int, bound: float, moments: np.ndarray) -> None:
    """Replace the running statistics ``moments`` of a feature by those of the ``n`` sorted values in ``first``, after clipping
    them to ``bound`` standard deviations. The flag `MOSTLY_EQUAL` becomes 1 if their first and third quartile are equal, else 0.
    """
    _learn_first_values(first, n, bound, moments)
    moments[MOSTLY_EQUAL] = 1.0 if first[n // 4] == first[3 * n // 4] else 0.0


@compiled
def _insert_sorted(values: np.ndarray, n: int, value: float) -> None:
    """Insert ``value`` into the array ``values``, whose first ``n`` items are sorted and remain so; there must be room for one
    more.
    """
    while n > 0 and values[n - 1] > value:
        values[n] = values[n - 1]
        n -= 1
    values[n] = value


@compiled
def _learn_first_values(values: np.ndarray, n: int, bound: float, moments: np.ndarray) -> None:
    """Replace the running statistics ``moments`` of a feature (count, mean, sum of squared deviations) by those of the ``n``
    sorted ``values``, after clipping these to ``bound`` robust standard deviations from their median.
    """
    low, high = np.float64(values[0]), np.float64(values[n - 1])
    if n >= _MIN_FOR_MEDIAN and bound < math.inf:
        middle = 0.5 * (np.float64(values[(n - 1) // 2]) + np.float64(values[n // 2]))
        deviations = np.empty(n)
        n_different = 0
        for i in range(n):
            deviation = abs(np.float64(values[i]) - middle)
            _insert_sorted(deviations, i, deviation)
            if deviation > 0.0:
                n_different += 1
        deviation = 0.5 * (deviations[(n - 1) // 2] + deviations[n // 2])
        if deviation == 0.0 and n_different > 0:  # most values are equal: use the median deviation of the others
            deviation = deviations[n - 1 - n_different // 2]
        reach = bound * _DEVIATIONS_PER_MAD * deviation
        low, high = max(low, middle - reach), min(high, middle + reach)
    total = 0.0
    for i in range(n):
        total += min(max(np.float64(values[i]), low), high)
    mean, squares = total / n, 0.0
    for i in range(n):
        squares += (min(max(np.float64(values[i]), low), high) - mean) ** 2
    moments[0], moments[1], moments[2] = n, mean, squares


@compiled
def learn_values(columns: np.ndarray, values: np.ndarray, n: int, bound: float, moments: np.ndarray, first: np.ndarray) -> int:
    """Update the running mean and variance of features with the first ``n`` values of one row. Values beyond ``bound`` standard
    deviations are clipped. ``columns`` are the features' indices in the statistics ``moments`` and ``first`` (each feature's
    first values). Returns the number of clipped values, or -1, without a change, if a value is not a finite float32 number.
    """
    for i in range(n):
        if not abs(values[i]) <= LARGEST_FLOAT32:
            return -1
    bounded = 0
    for i in range(n):
        bounded += learn_value(moments[columns[i]], first[columns[i]], values[i], bound)
    return bounded


@compiled(inline=True)
def standardise_value(value: float, moments: np.ndarray, bound: float) -> float:
    """Return ``value`` in standard deviations from the mean, clipped to +-``bound``; 0 if all values so far were equal.
    ``moments`` are the count, the mean and the sum of squared deviations.
    """
    if not moments[2] > 0.0:
        return 0.0
    return min(max((value - moments[1]) / math.sqrt(moments[2] / moments[0]), -bound), bound)


@compiled
def standardise_values(
    columns: np.ndarray, values: np.ndarray, n: int, bound: float, moments: np.ndarray, scaled: np.ndarray
) -> bool:
    """Standardise the first ``n`` values of one row, clip them to +-``bound``, and write them into ``scaled``. ``columns`` are
    the features' indices in ``moments`` (count, mean, sum of squared deviations), or -1 for unknown features, which become 0.
    Returns False if a value is not a finite float32 number.
    """
    for i in range(n):
        value = values[i]
        if not abs(value) <= LARGEST_FLOAT32:
            return False
        scaled[i] = standardise_value(value, moments[columns[i]], bound) if columns[i] >= 0 else 0.0
    return True


@compiled
def standardise_targets(
    targets: np.ndarray, learned: np.ndarray, bound: float, moments: np.ndarray, first: np.ndarray, scale: np.ndarray
) -> int:
    """Standardise each of the ``targets`` [n] by the mean and variance of those before it, and clip it to +-``bound``. The
    running statistics ``moments`` and ``first`` then learn it if ``learned`` is True for it. ``scale`` [n, 3] receives mean,
    standard deviation and scaled target. Returns how many learned targets were clipped.
    """
    bounded = 0
    for i in range(len(targets)):
        scale[i, 0], scale[i, 1] = moments[1], math.sqrt(moments[2] / max(moments[0], 1.0))
        scale[i, 2] = standardise_value(targets[i], moments, bound)
        if learned[i]:
            bounded += 1 if learn_value(moments, first, targets[i], bound) else 0
    return bounded


@compiled
def learn_value_rows(columns: np.ndarray, matrix: np.ndarray, bound: float, moments: np.ndarray, first: np.ndarray) -> int:
    """Update the running mean and variance of features with the rows of ``matrix`` [n, d], which are finite. Values beyond
    ``bound`` standard deviations are clipped. ``columns`` [d] are the features' indices in the statistics ``moments`` and
    ``first`` (each feature's first values). Returns the number of clipped values.
    """
    bounded = 0
    for i in range(len(matrix)):
        bounded += learn_values(columns, matrix[i], len(columns), bound, moments, first)
    return bounded


@compiled
def standardise_rows(columns: np.ndarray, matrix: np.ndarray, bound: float, moments: np.ndarray) -> None:
    """Standardise the rows of ``matrix`` [n, d], finite numbers, in place, and clip them to +-``bound``. ``columns`` [d] are the
    features' indices in ``moments`` (count, mean, sum of squared deviations), or -1 for unknown features, which become 0.
    """
    for i in range(len(matrix)):
        standardise_values(columns, matrix[i], len(columns), bound, moments, matrix[i])
