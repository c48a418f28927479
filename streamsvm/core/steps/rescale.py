"""The running scale of rows, compiled: it follows the stream, and stored vectors are converted when it changes.

A row arrives unscaled, and is learned in standard deviations from the location of each feature, clipped to `MAX_SCALED_VALUE`.
The scale in use lags behind the running scale until they differ by some percent. Then the running scale comes into use, and all
stored vectors are converted, as if they had just arrived.

The functions take arrays of any block that has them: ``moments`` float64 [columns, N_MOMENTS] and ``first`` [columns, N_FIRST] of
the features (see `streamsvm.core.memory.moments`); ``location`` and ``spread`` float64 [columns], the scale in use, with a spread
of 0 for a constant feature; ``ratio`` and ``shift`` float64 [columns], which convert values of the previous scale: value * ratio
+ shift. The first ``used`` columns have a feature.

In a store of support vectors with a scale, a row arrives in ``unscaled``, in float64. `scale_current_row` turns it into the
float32 current row, so that a value that is large compared with its deviations loses no precision.
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
from streamsvm.core.steps.iterates import ONE_CLASS, get_common_state

#: Scaled values are clipped to this number of standard deviations from the location.
MAX_SCALED_VALUE = np.float32(8.0)

#: Values are clipped to this number of standard deviations before they update mean and variance, so that outliers have little
#: effect. For features that are mostly 0, the limit is larger, because their variance must not vanish.
MOMENT_CLIP, RARE_MOMENT_CLIP = 8.0, 30.0

_ONE_CLASS_VARIANCE = 0.25  # with which a numeric feature counts for the gamma of anomaly detectors, whose regions are narrow
_MOMENT_WINDOW = 10_000.0  # of the running mean and variance, in rows
_TOLERANCE = 0.05  # largest relative difference of the scale in use from the running scale
_FIRST_ROWS, _CHECK_INTERVAL = 64, 16  # the scale is checked after each of the first rows, later at this interval of rows
_MIN_RELATIVE_VARIANCE = 1e-24  # over the squared mean: a smaller variance is the rounding error of a constant
_MIN_VARIANCE = 1e-60  # of a feature that is not constant
_MAX_FACTOR = 1e30  # of conversions between scales, so that products with 0 stay 0 in float32
_MAX_UNCENTRED = 2.0  # if rows need not be centred, the location is 0 unless the mean is further away, in standard deviations


@compiled
def update_moments(moments: np.ndarray, first: np.ndarray, row: np.ndarray, used: int, clip: float) -> None:
    """Update the running mean and variance of each feature with the first ``used`` values of ``row``, in original units.
    ``moments`` and ``first`` are these statistics, changed in place. Outliers are clipped to ``clip`` standard deviations from
    the mean (30 for features that are mostly 0).
    """
    for j in range(used):
        feature_clip = RARE_MOMENT_CLIP if moments[j, MOSTLY_EQUAL] else clip
        learn_stream_value(moments[j], first[j], row[j], feature_clip, _MOMENT_WINDOW, False)


@compiled(inline=True)
def _is_binary(moments: np.ndarray) -> bool:
    """Return whether a feature, given by its running ``moments``, has had only the values 0 and 1 so far."""
    return bool(moments[NOT_BINARY] == 0.0)


@compiled
def are_all_binary(moments: np.ndarray, used: int) -> bool:
    """Return whether all of the first ``used`` features have had only the values 0 and 1 so far, as in bag-of-words texts.
    ``moments`` has one row of running statistics per feature.
    """
    for j in range(used):  # noqa: SIM110 - compiled
        if not _is_binary(moments[j]):
            return False
    return True


@compiled(inline=True)
def _compute_spread(moments: np.ndarray, scaling: bool, all_binary: bool) -> float:
    """Return the number that a feature is divided by when rows are standardised: its running standard deviation, or 0 if it is
    constant. With ``scaling``, it is 1 for a feature with only the values 0 and 1, or the square root of its deviation if all
    features are of that kind (``all_binary``).

    A rarely set binary feature that was standardised would outweigh numeric ones. If all features are binary, rare ones are only
    scaled up a little.
    """
    if not (moments[0] > 0.0 and moments[2] / moments[0] > _MIN_RELATIVE_VARIANCE * moments[1] * moments[1] + _MIN_VARIANCE):
        return 0.0
    deviation = math.sqrt(moments[2] / moments[0])
    if not scaling or not _is_binary(moments):
        return deviation
    return math.sqrt(deviation) if all_binary else 1.0


@compiled(inline=True)
def _compute_location(moments: np.ndarray, spread: float, centred: bool) -> float:
    """Return the value that is subtracted from a feature when it is standardised: its running mean, or 0 for a binary feature.
    Unless ``centred`` is True, it is also 0 for a mean within two deviations (``spread``) of 0, so that zeros stay zeros.
    """
    if _is_binary(moments):
        return 0.0
    return moments[1] if centred or abs(moments[1]) > _MAX_UNCENTRED * spread else 0.0


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
    """Update the means and deviations that rows are standardised with (``location`` and ``spread`` float64 [columns]) from the
    running statistics ``moments``, if they differ by more than some percent; return whether they were changed. Stored values
    then become value * ``ratio`` + ``shift``. ``t`` is the number of rows learned.

    Without ``scaling``, only the spread changes, and ``ratio`` and ``shift`` are 1 and 0. If rows need not be ``centred``, zeros
    stay zeros in features whose mean is near 0.
    """
    if t > _FIRST_ROWS and t % _CHECK_INTERVAL != 0:
        return False
    has_changed, all_binary = False, are_all_binary(moments, used)
    for j in range(used):
        running, old_spread = _compute_spread(moments[j], scaling, all_binary), spread[j]
        if (
            abs(running - old_spread) > _TOLERANCE * old_spread
            or moments[j, WAS_RESET]
            or (scaling and abs(_compute_location(moments[j], running, centred) - location[j]) > 2.0 * _TOLERANCE * running)
            or (scaling and _is_binary(moments[j]) and t & (t - 1) == 0)  # gamma depends on the variance of binary features
        ):
            has_changed = True
    if not has_changed:
        return False
    for j in range(used):
        running, old_spread = _compute_spread(moments[j], scaling, all_binary), spread[j]
        ratio[j], shift[j] = 1.0, 0.0
        if scaling:
            new_location = _compute_location(moments[j], running, centred)
            ratio[j] = shift[j] = 0.0
            if running > 0.0 and moments[j, WAS_RESET] and not _is_binary(moments[j]):
                # Vectors keep their distance in deviations: from the new level of the feature as from the old one.
                ratio[j] = 1.0 if old_spread > 0.0 else 0.0
                shift[j] = (moments[j, 1] - new_location) / running
                if old_spread > 0.0:
                    shift[j] -= (moments[j, PREVIOUS_MEAN] - location[j]) / old_spread
            elif running > 0.0:
                ratio[j] = old_spread / running
                shift[j] = (location[j] - new_location) / running
            location[j] = new_location
        spread[j], moments[j, WAS_RESET] = running, 0.0
    return True


@compiled
def compute_current_units(
    moments: np.ndarray, location: np.ndarray, spread: np.ndarray, used: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return a tuple (location, spread), each float64 [used], that converts stored standardised vectors to the original units of
    the features: value * spread + location. It allows for features whose level has jumped since rows were last standardised
    differently.

    Vectors keep their distance, in deviations, from the new level of these features.
    """
    new_location, new_spread = location[:used].copy(), spread[:used].copy()
    for j in range(used):
        if moments[j, WAS_RESET] and new_spread[j] > 0.0 and not _is_binary(moments[j]):
            running = _compute_spread(moments[j], True, False)
            new_location[j] = moments[j, 1] - running * (moments[j, PREVIOUS_MEAN] - new_location[j]) / new_spread[j]
            new_spread[j] = running
    return new_location, new_spread


@compiled
def scale_row(row: np.ndarray, scaled: np.ndarray, location: np.ndarray, spread: np.ndarray, used: int) -> None:
    """Standardise the first ``used`` values of ``row`` into ``scaled`` float32: (value - location) / spread, clipped to [-8, 8];
    0 for a constant feature (spread 0).
    """
    for j in range(used):
        value = (row[j] - location[j]) / spread[j] if spread[j] > 0.0 else 0.0
        scaled[j] = np.float32(min(max(value, -np.float64(MAX_SCALED_VALUE)), np.float64(MAX_SCALED_VALUE)))


@compiled(inline=True)
def _compute_scaled_variance(moments: np.ndarray, spread: float) -> float:
    """Return the variance of a feature after division by ``spread``. ``moments`` are its running statistics."""
    return moments[2] / moments[0] / (spread * spread)


@compiled
def compute_gamma(moments: np.ndarray, spread: np.ndarray, used: int, scaling: bool, damping: np.ndarray) -> float:
    """Return the kernel width gamma: one over the sum of the variances of the first ``used`` features, after standardisation if
    ``scaling`` is True. ``moments`` are their running statistics, ``spread`` their divisors; ``damping`` float64 [0 or 1,
    columns] makes features count less.
    """
    total = 0.0
    for j in range(used):
        weight = 1.0 - damping[0, j] if len(damping) > 0 else 1.0
        if not scaling:
            total += spread[j] * spread[j]
        elif spread[j] > 0.0:
            total += weight * weight * (_compute_scaled_variance(moments[j], spread[j]) if _is_binary(moments[j]) else 1.0)
    return min(1.0 / total, 1e-3 * LARGEST_GAMMA) if total > 0.0 else 1.0


@compiled(inline=True)
def _convert_value(value: np.float32, ratio: float, shift: float) -> np.float32:
    """Convert a stored standardised value to a new mean and deviation of its feature: value * ``ratio`` + ``shift``, clipped to
    [-8, 8].
    """
    factor, offset = np.float32(min(ratio, _MAX_FACTOR)), np.float32(min(max(shift, -_MAX_FACTOR), _MAX_FACTOR))
    return min(max(value * factor + offset, -MAX_SCALED_VALUE), MAX_SCALED_VALUE)


@compiled(noinline=True)
def rescale_vectors(vectors: np.ndarray, norms: np.ndarray, n: int, used: int, ratio: np.ndarray, shift: np.ndarray) -> float:
    """Convert n stored ``vectors``, float32 [columns, n or more], to a new mean and deviation of each feature, in place: value *
    ``ratio`` + ``shift``. Also recomputes their squared ``norms``, and returns the largest one.
    """
    largest_norm = 0.0
    for i in range(n):
        norms[i] = np.float32(0.0)
    for j in range(used):
        for i in range(n):
            value = _convert_value(vectors[j, i], ratio[j], shift[j])
            vectors[j, i] = value
            norms[i] += value * value
    for i in range(n):
        largest_norm = max(largest_norm, np.float64(norms[i]))
    return largest_norm


@compiled
def rescale_rows(rows: np.ndarray, n: int, used: int, ratio: np.ndarray, shift: np.ndarray) -> None:
    """Convert n stored ``rows``, float32 [n or more, columns], to a new mean and deviation of each of the first ``used``
    features, in place: value * ``ratio`` + ``shift``, clipped to [-8, 8].
    """
    for i in range(n):
        for j in range(used):
            rows[i, j] = _convert_value(rows[i, j], ratio[j], shift[j])


#: Values of the state field ``gamma_rows`` if gamma="scale" is not estimated from the first rows: gamma is a parameter, or it
#: follows the scale in use.
GAMMA_GIVEN, GAMMA_FOLLOWS_SCALE = -1, -2


@compiled(inline=True)
def scale_current_row(block: np.ndarray) -> tuple[int, float]:
    """Prepare the current row of the model in ``block`` (one byte array): standardise it, if the model does so. Returns a tuple:
    number of non-zero features (-1 if the row is not finite or too large), squared norm.
    """
    v = views(block)
    if v.header[0]["scaled"] > 0:
        return _scale_unscaled_row(block)
    return scan_row(v.rows[0], v.header[0]["used"], v.active[0])


@compiled
def _scale_unscaled_row(block: np.ndarray) -> tuple[int, float]:
    """Standardise the current row of a model, which is in its memory ``block`` in original units; the result is stored there,
    too. Returns a tuple: number of non-zero features (-1 if a value is not finite in float32), squared norm.
    """
    v = views(block)
    used = v.header[0]["used"]
    if is_too_large(v.unscaled, used):
        return -1, 0.0
    scale_row(v.unscaled, v.rows[0], v.location, v.spread, used)
    return scan_row(v.rows[0], used, v.active[0])


@compiled(inline=True)
def is_too_large(row: np.ndarray, used: int) -> bool:
    """Return whether one of the first ``used`` values of a float64 row is NaN, infinite, or too large for float32."""
    for j in range(used):  # noqa: SIM110 - compiled
        if not abs(row[j]) <= LARGEST_FLOAT32:
            return True
    return False


@compiled
def update_gamma(block: np.ndarray, t: int) -> None:
    """Update the kernel width of a model with ``gamma="scale"`` that standardises rows: one over the sum of the features'
    variances after standardisation. ``block`` is the model's memory, ``t`` the number of rows learned.

    Features that are not binary count with a variance of 1, even while they are constant, so that gamma does not change when they
    begin to vary. Those of anomaly detectors count with a variance of 1/4, for a narrower kernel. With binary features, gamma is
    updated after 1, 2, 4, 8, ... rows.
    """
    v = views(block)
    h = v.header[0]
    total, has_binary = 0.0, False
    share = _ONE_CLASS_VARIANCE if get_common_state(block)["loss"] == ONE_CLASS else 1.0
    for j in range(h["used"]):
        is_binary = v.moments[j, 0] > 0.0 and _is_binary(v.moments[j])
        has_binary = has_binary or is_binary
        if not is_binary:
            total += share
        elif v.spread[j] > 0.0:
            total += _compute_scaled_variance(v.moments[j], v.spread[j])
    gamma = min(1.0 / total, 1e-3 * LARGEST_GAMMA) if total > 0.0 else 1.0
    if h["gamma"] != gamma and (not has_binary or t & (t - 1) == 0):
        h["gamma"] = gamma
        v.cache[0]["valid"] = 0


@compiled
def update_block_scale(block: np.ndarray) -> bool:
    """Update the running mean and deviation of each feature with the current row of the model in ``block``. If they differ too
    much from those that rows are standardised with, replace these, convert the support vectors, and return True; else return
    False.

    Frequencies of random Fourier features are not converted, because they fit rows of any scale.
    """
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    used = h["used"]
    update_moments(v.moments, v.first, v.unscaled, used, MOMENT_CLIP)
    centred = h["kernel"] == LINEAR or h["kernel"] == POLY  # other kernels depend on differences of rows only
    has_changed = update_scale(v.moments, v.location, v.spread, v.ratio, v.shift, used, True, centred, c["t"])
    if c["gamma_rows"] == GAMMA_FOLLOWS_SCALE:
        update_gamma(block, c["t"])
    if not has_changed:
        return False
    if h["kernel"] != FOURIER:
        h["largest_norm"] = rescale_vectors(v.vectors, v.norms, h["n_support"], used, v.ratio, v.shift)
    v.cache[0]["valid"] = 0
    return True
