"""The scale of rows, compiled: it follows the stream, and stored vectors follow it.

A row is given as it is, and learned as so many deviations from the location of each feature, bounded. The scale in use lags
behind the running one until it is off by some percent: then all stored vectors are brought to the new one, as if they had come
today.

The functions take arrays of any block that has them: ``moments`` float64 [columns, FOLLOWED] and ``first`` [columns, N_FIRST] of
the features, as `streamsvm.core.memory.moments` has them; ``location`` and ``spread`` float64 [columns], the scale in use, with a
spread of 0 for a feature that is constant; ``ratio`` and ``shift`` float64 [columns], which lead from the scale before to that in
use. The first ``used`` columns have a feature.

In a store of support vectors with a scale, a row comes as it is given, in float64, into ``unscaled``. `scale_current_row` makes
it the current row, float32: a value that is large beside its deviations loses nothing.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FOURIER, LARGEST_GAMMA, LINEAR, POLY
from streamsvm.core.memory.moments import MOSTLY_EQUAL, NOT_BINARY, PREVIOUS_MEAN, WAS_RESET, learn_stream_value
from streamsvm.core.memory.slots import scan_row
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import get_common_state

#: Deviations from the location to which a value is bounded.
MAX_SCALED_VALUE = np.float32(8.0)

#: Deviations to which a value is bounded in mean and variance: where others are absurd, and of a feature that is rarely not 0,
#: whose variance must not vanish.
MOMENT_CLIP, RARE_MOMENT_CLIP = 8.0, 30.0

_HORIZON = 10_000.0  # rows that mean and variance remember
_OFF = 0.05  # by which a scale in use may be off
_EVERY_ROW, _EVERY = 64, 16  # first rows after each of which that is looked at, and rows between later looks
_LEAST_VARIANCE = 1e-24  # over the squared mean: what float64 makes of a constant
_TINY = 1e-60
_FAR = 1e30
_NEAR = 2.0  # deviations of the mean from 0 up to which 0 is the location, where rows need not be centred


@compiled
def update_moments(moments: np.ndarray, first: np.ndarray, row: np.ndarray, used: int, reach: float) -> None:
    """Learn the mean and the variance of each feature from ``row``, as it is given.

    Values are bounded to ``reach`` deviations from the mean. Where most of the first ones are equal, as of a feature that is
    rarely not 0, to `RARE_MOMENT_CLIP`.
    """
    for j in range(used):
        learn_stream_value(moments[j], first[j], row[j], RARE_MOMENT_CLIP if moments[j, MOSTLY_EQUAL] else reach, _HORIZON, False)


@compiled(inline=True)
def _is_binary(moments: np.ndarray) -> bool:
    """Whether a feature says yes or no: it was only 0 or 1 yet."""
    return bool(moments[NOT_BINARY] == 0.0)


@compiled
def are_all_binary(moments: np.ndarray, used: int) -> bool:
    """Whether all features are binary, as those of words are."""
    for j in range(used):  # noqa: SIM110 - compiled
        if not _is_binary(moments[j]):
            return False
    return True


@compiled(inline=True)
def _spread_of(moments: np.ndarray, scaling: bool, alone: bool) -> float:
    # The standard deviation of a feature, 0 where it is constant. Binary ones stay 0 and 1 in rows that are scaled: beside
    # numbers, one that is rarely 1 would outweigh all. Where they are alone, that says more, but not in proportion.
    if not (moments[0] > 0.0 and moments[2] / moments[0] > _LEAST_VARIANCE * moments[1] * moments[1] + _TINY):
        return 0.0
    deviation = math.sqrt(moments[2] / moments[0])
    if not scaling or not _is_binary(moments):
        return deviation
    return math.sqrt(deviation) if alone else 1.0


@compiled(inline=True)
def _location_of(moments: np.ndarray, spread: float, centred: bool) -> float:
    if _is_binary(moments):
        return 0.0
    return moments[1] if centred or abs(moments[1]) > _NEAR * spread else 0.0


@compiled
def update_scale(
    moments: np.ndarray,
    location: np.ndarray,
    spread: np.ndarray,
    ratio: np.ndarray,
    shift: np.ndarray,
    used: int,
    scaling: bool,
    centred: bool,
    t: int,
) -> bool:
    """Whether the running scale has left the one in use, after row number t.

    Then it comes into use, and ``ratio`` and ``shift`` lead from the old one to it. Without scaling only the spread follows, and
    they lead nowhere. Where rows need not be ``centred``, zeros stay zeros in a feature whose mean is not far from 0.
    """
    if t > _EVERY_ROW and t % _EVERY != 0:
        return False
    moved, alone = False, are_all_binary(moments, used)
    for j in range(used):
        running, before = _spread_of(moments[j], scaling, alone), spread[j]
        if (
            abs(running - before) > _OFF * before
            or moments[j, WAS_RESET]
            or (scaling and abs(_location_of(moments[j], running, centred) - location[j]) > 2.0 * _OFF * running)
            or (scaling and _is_binary(moments[j]) and t & (t - 1) == 0)  # whose variance counts in gamma
        ):
            moved = True
    if not moved:
        return False
    for j in range(used):
        running, before = _spread_of(moments[j], scaling, alone), spread[j]
        ratio[j], shift[j] = 1.0, 0.0
        if scaling:
            place = _location_of(moments[j], running, centred)
            ratio[j] = shift[j] = 0.0
            if (
                running > 0.0 and moments[j, WAS_RESET] and not _is_binary(moments[j])
            ):  # as far from the new level as from the old one
                ratio[j] = 1.0 if before > 0.0 else 0.0
                shift[j] = (moments[j, 1] - place) / running
                if before > 0.0:
                    shift[j] -= (moments[j, PREVIOUS_MEAN] - location[j]) / before
            elif running > 0.0:
                ratio[j] = before / running
                shift[j] = (location[j] - place) / running
            location[j] = place
        spread[j], moments[j, WAS_RESET] = running, 0.0
    return True


@compiled
def compute_current_units(
    moments: np.ndarray, location: np.ndarray, spread: np.ndarray, used: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return location and spread, float64 [used], that bring stored vectors to the units of the features.

    They are those in use; of a feature that has another level since, vectors are as far from that as they were from the old one.
    """
    place, size = location[:used].copy(), spread[:used].copy()
    for j in range(used):
        if moments[j, WAS_RESET] and size[j] > 0.0 and not _is_binary(moments[j]):
            running = _spread_of(moments[j], True, False)
            place[j] = moments[j, 1] - running * (moments[j, PREVIOUS_MEAN] - place[j]) / size[j]
            size[j] = running
    return place, size


@compiled
def scale_row(row: np.ndarray, scaled: np.ndarray, location: np.ndarray, spread: np.ndarray, used: int) -> None:
    """Write ``row`` float64 [used or more] by the scale in use into ``scaled``, float32 [used or more]."""
    for j in range(used):
        value = (row[j] - location[j]) / spread[j] if spread[j] > 0.0 else 0.0
        scaled[j] = np.float32(min(max(value, -np.float64(MAX_SCALED_VALUE)), np.float64(MAX_SCALED_VALUE)))


@compiled(inline=True)
def _scaled_variance(moments: np.ndarray, spread: float) -> float:
    return moments[2] / moments[0] / (spread * spread)


@compiled
def compute_gamma(moments: np.ndarray, spread: np.ndarray, used: int, scaling: bool, damping: np.ndarray) -> float:
    """One over the sum of the variances of scaled rows, or of rows as they are; ``damping`` is float64 [0 or 1, columns]."""
    total = 0.0
    for j in range(used):
        counts = 1.0 - damping[0, j] if len(damping) > 0 else 1.0
        if not scaling:
            total += spread[j] * spread[j]
        elif spread[j] > 0.0:
            total += counts * counts * (_scaled_variance(moments[j], spread[j]) if _is_binary(moments[j]) else 1.0)
    return min(1.0 / total, 1e-3 * LARGEST_GAMMA) if total > 0.0 else 1.0


@compiled(inline=True)
def _moved_value(value: np.float32, ratio: float, shift: float) -> np.float32:
    # Bounded, as 0 times a ratio beyond float32 must be 0.
    factor, summand = np.float32(min(ratio, _FAR)), np.float32(min(max(shift, -_FAR), _FAR))
    return min(max(value * factor + summand, -MAX_SCALED_VALUE), MAX_SCALED_VALUE)


@compiled(noinline=True)
def rescale_vectors(vectors: np.ndarray, norms: np.ndarray, n: int, used: int, ratio: np.ndarray, shift: np.ndarray) -> float:
    """Bring n vectors, float32 [columns, n or more], and their squared norms to the scale in use; the largest norm. O(n d)."""
    largest = 0.0
    for i in range(n):
        norms[i] = np.float32(0.0)
    for j in range(used):
        for i in range(n):
            value = _moved_value(vectors[j, i], ratio[j], shift[j])
            vectors[j, i] = value
            norms[i] += value * value
    for i in range(n):
        largest = max(largest, np.float64(norms[i]))
    return largest


@compiled
def rescale_rows(rows: np.ndarray, n: int, used: int, ratio: np.ndarray, shift: np.ndarray) -> None:
    """Bring n rows, float32 [n or more, columns], to the scale in use."""
    for i in range(n):
        for j in range(used):
            rows[i, j] = _moved_value(rows[i, j], ratio[j], shift[j])


#: In the state, in the place of the rows that gamma="scale" is found from: gamma was given, or follows the scale in use.
GAMMA_GIVEN, GAMMA_FOLLOWS_SCALE = -1, -2


@compiled(inline=True)
def scale_current_row(block: np.ndarray) -> tuple[int, float]:
    """Make the row that is given the current row, ``rows[0]``; the number of its non-zero features and its squared norm.

    The first is -1 for a row that is not finite or too large as it is given.
    """
    v = views(block)
    if v.header[0]["scaled"] > 0:
        return _scan_scaled(block)
    return scan_row(v.rows[0], v.header[0]["used"], v.active[0])


@compiled
def _scan_scaled(block: np.ndarray) -> tuple[int, float]:
    v = views(block)
    used = v.header[0]["used"]
    if is_too_large(v.unscaled, used):
        return -1, 0.0
    scale_row(v.unscaled, v.rows[0], v.location, v.spread, used)
    return scan_row(v.rows[0], used, v.active[0])


@compiled(inline=True)
def is_too_large(row: np.ndarray, used: int) -> bool:
    """Whether a row as it is given, float64 [used or more], has a value that is not finite in float32."""
    for j in range(used):  # noqa: SIM110 - compiled
        if not abs(row[j]) <= LARGEST_FLOAT32:
            return True
    return False


@compiled
def update_gamma(block: np.ndarray, t: int) -> None:
    """Set gamma="scale" for row number t: one over the sum of the variances of scaled rows.

    A feature that is not binary has a variance of 1, or will have: gamma is not to change where it begins to vary. That of others
    is looked at after 1, 2, 4, 8, ... rows.
    """
    v = views(block)
    h = v.header[0]
    total, some = 0.0, False
    for j in range(h["used"]):
        binary = v.moments[j, 0] > 0.0 and _is_binary(v.moments[j])
        some = some or binary
        if not binary:
            total += 1.0
        elif v.spread[j] > 0.0:
            total += _scaled_variance(v.moments[j], v.spread[j])
    gamma = min(1.0 / total, 1e-3 * LARGEST_GAMMA) if total > 0.0 else 1.0
    if h["gamma"] != gamma and (not some or t & (t - 1) == 0):
        h["gamma"] = gamma
        v.cache[0]["valid"] = 0


@compiled
def update_block_scale(block: np.ndarray) -> bool:
    """Let the scale learn the row that is given, which is finite; whether another scale has come into use with it.

    Support vectors are brought to it. Frequencies are not: they are for rows of any scale.
    """
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    used = h["used"]
    update_moments(v.moments, v.first, v.unscaled, used, MOMENT_CLIP)
    centred = h["kernel"] == LINEAR or h["kernel"] == POLY  # for the others only differences of rows count
    moved = update_scale(v.moments, v.location, v.spread, v.ratio, v.shift, used, True, centred, c["t"])
    if c["gamma_rows"] == GAMMA_FOLLOWS_SCALE:
        update_gamma(block, c["t"])
    if not moved:
        return False
    if h["kernel"] != FOURIER:
        h["largest_norm"] = rescale_vectors(v.vectors, v.norms, h["n_support"], used, v.ratio, v.shift)
    v.cache[0]["valid"] = 0
    return True
