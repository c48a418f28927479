"""The last and the average iterate of online learning, compiled, for coefficients of support vectors or weights of features.

A model has one output (two classes, regression, an anomaly score), or one output per class if there are three or more. Each
output has two rows of coefficients, u and v. The last iterate is ``scale * u``, the average iterate ``average_v * v + average_u *
u``. These three factors are fields of `COMMON_STATE`, so that shrinking or averaging all coefficients costs O(1). Predictions
follow the iterate with the smaller recent error.

Probabilities are computed from decision values by online temperature scaling (Guo, Pleiss, Sun and Weinberger 2017, On
calibration of modern neural networks): one factor, fitted row by row, turns decision values into log odds. Decision values are
measured in margins, or in their recent mean size if that is larger (the first decision values of Pegasos are as large as 1 / l2).
The state has this size, and the logarithm of the factor, the slope. Probabilities start at a uniform prior, which counts as two
rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.block import STATE_BEGIN, view_record

#: The slope (log of the calibration factor) before the first row.
INITIAL_SLOPE = 2.5

#: The smallest probability of a predicted label: just above 1/2.
ABOVE_HALF = 0.5 + 2.0**-52
#: The weight of the prior distribution of labels, in rows.
PRIOR_ROWS = 2.0

_MIN_SIZE_RATE = 0.03  # smallest weight of a new row in the mean size of decision values
_MAX_SLOPE_STEP = 0.4  # largest change of the slope by one row
_MAX_SIZE = 1e100


@compiled(inline=True)
def _compute_iterate_factor(common: Any, iterate: int) -> float:
    """Return the calibration factor that turns decision values of the last (``iterate`` = 0) or the average (1) iterate of a
    model into log odds. ``common`` is the record of the model's training state.
    """
    return math.exp(common["slope"][iterate]) / max(common["size"][iterate], 1.0)


@compiled(inline=True)
def _compute_prior_weight(common: Any) -> float:
    """Return the weight of the uniform distribution in a model's probabilities. It decreases with the number of rows learned,
    which is in ``common``, the record of the training state. It is always below 1, so that probabilities rank rows even at the
    start.
    """
    return PRIOR_ROWS / (float(common["t"]) + PRIOR_ROWS + 1.0)


@compiled(inline=True)
def compute_probability(common: Any, iterate: int, f: float) -> float:
    """Return the calibrated probability of the positive label for a decision value ``f`` of a model's last (``iterate`` = 0) or
    average (1) iterate; above 1/2 exactly if f is above 0. ``common`` is the record of the model's training state, with the
    calibration.
    """
    p = 1.0 / (1.0 + math.exp(-min(max(_compute_iterate_factor(common, iterate) * f, -30.0), 30.0)))
    p += _compute_prior_weight(common) * (0.5 - p)
    return max(p, ABOVE_HALF) if f > 0.0 else p


@compiled
def compute_probabilities(common: Any, scores: np.ndarray, iterate: int, n_scores: int, best: int) -> None:
    """Replace the decision values of all classes by calibrated probabilities (a softmax). ``scores`` alternates values of the
    last and the average iterate: ``iterate`` (0 or 1) selects which, ``n_scores`` is the length. ``best`` is the index of the
    predicted class, ``common`` the record of the model's training state.

    Output ``best`` has the largest decision value; it alone has the largest probability.
    """
    factor, largest, total, best_position = (
        _compute_iterate_factor(common, iterate),
        scores[2 * best + iterate],
        0.0,
        2 * best + iterate,
    )
    for k in range(iterate, n_scores, 2):
        scores[k] = math.exp(max(factor * (scores[k] - largest), -30.0))
        if k != best_position:
            scores[k] = min(scores[k], 1.0 - 2.0**-48)
        total += scores[k]
    weight = _compute_prior_weight(common)
    for k in range(iterate, n_scores, 2):
        scores[k] = scores[k] / total * (1.0 - weight) + weight * 2.0 / n_scores


@compiled
def update_size(common: Any, iterate: int, size: float, rate: float) -> float:
    """Update the running mean of a model's absolute decision values with that of a new row, ``size``, and return the factor that
    turns decision values into log odds. ``iterate`` is 0 for the last, 1 for the average iterate; ``rate`` is the row's weight;
    ``common`` is the record of the model's training state.
    """
    if size < _MAX_SIZE:
        weight = max(rate, _MIN_SIZE_RATE) if common["size"][iterate] > 0.0 else 1.0
        common["size"][iterate] += weight * (size - common["size"][iterate])
    return _compute_iterate_factor(common, iterate)


@compiled(inline=True)
def fit_softmax_slope(common: Any, scores: np.ndarray, label: int, iterate: int, n_scores: int, rate: float) -> None:
    """Update a model's probability calibration with a row of three or more classes, by one Newton step on the softmax
    log-likelihood. ``iterate`` is 0 to calibrate the last, 1 the average iterate; ``label`` is the index of the row's class in
    ``scores``, ``rate`` the row's weight, ``common`` the record of the model's training state.
    """
    size = 0.0
    for k in range(iterate, n_scores, 2):
        size = max(size, abs(scores[k] - scores[label]))
    factor = update_size(common, iterate, size, rate)
    mean = square = total = 0.0
    for k in range(iterate, n_scores, 2):
        z = min(max(factor * (scores[k] - scores[label]), -10.0), 10.0)
        p = math.exp(z)
        total, mean, square = total + p, mean + p * z, square + p * z * z
    mean, square = mean / total, square / total
    fit_slope(common, iterate, rate, -mean, square - mean * mean)


@compiled
def fit_slope(common: Any, iterate: int, rate: float, gradient: float, curvature: float) -> None:
    """Update a model's calibration slope (log of the factor from decision values to log odds) by one Newton step, given the
    ``gradient`` and the ``curvature`` of a row's log-likelihood. ``iterate`` is 0 for the last, 1 for the average iterate;
    ``rate`` is the row's weight, ``common`` the record of the model's training state.
    """
    rate = max(rate, 0.01)
    common["curvature"][iterate] += rate * (curvature - common["curvature"][iterate])
    step = rate * gradient / (common["curvature"][iterate] + 0.01)
    slope = common["slope"][iterate] + min(max(step, -_MAX_SLOPE_STEP), _MAX_SLOPE_STEP)
    common["slope"][iterate] = min(max(slope, -50.0), 50.0)


#: Kinds of output of a model: the decision value by the last iterate, by the average iterate, by the iterate that predictions
#: follow (`select_iterate`), or the probability.
LAST_ITERATE, AVERAGE_ITERATE, DECISION, PROBABILITY = range(4)
#: Losses: classification, regression, and anomaly detection.
HINGE, EPSILON_INSENSITIVE, ONE_CLASS = 0, 1, 2

#: The state that all learners have; the state of the rule follows it in the block.
COMMON_STATE = np.dtype(
    [
        ("t", "i8"),  # number of rows learned
        ("n_merges", "i8"),  # number of merges of support vectors
        ("loss", "i8"),
        ("random", "u8"),
        ("gamma_rows", "i8"),  # rows that gamma="scale" was computed from; below 0: see `rescale.GAMMA_GIVEN`
        ("deviation", "f8"),  # sum over features and rows of squared deviations from the mean
        ("epsilon", "f8"),  # half width of the insensitive zone of the regression loss
        ("scale", "f8"),
        ("average_v", "f8"),
        ("average_u", "f8"),
        ("horizon", "f8"),  # window of the average iterate, in rows; 0: no averaging
        ("error", "f8", 2),  # recent prequential error of the last and the average iterate
        ("center", "f8", 2),  # anomaly detectors: the mean decision value of both iterates
        ("size", "f8", 2),  # mean absolute decision value of both iterates; of anomaly detectors, less the center
        # Log of the factor from decision value, over its size, to log odds, of both iterates; of anomaly detectors, the number of
        # rows since the last anomaly, times nu.
        ("slope", "f8", 2),
        # Running mean of the curvature of the log-likelihood, of both iterates; of anomaly detectors, the distance of the median
        # below the center, in sizes.
        ("curvature", "f8", 2),
    ]
)
#: The fields of `COMMON_STATE` that learning changes, with their smallest and largest value.
COMMON_RANGES: dict[str, tuple[float, float]] = {
    "t": (0, 2**62),
    "n_merges": (0, 2**62),
    "random": (0, 2**64 - 1),
    "deviation": (0.0, 1e100),
    "scale": (1e-10, 1.0),
    "average_v": (1e-10, 1.0),
    "average_u": (0.0, 1.0),
    "error": (0.0, 1e100),
    "center": (-1e100, 1e100),
    "size": (0.0, 1e100),
    "slope": (-50.0, 50.0),
    "curvature": (-50.0, 1e3),
}
#: Offset of the state of the rule in a block, in bytes.
RULE_STATE_OFFSET = STATE_BEGIN + COMMON_STATE.itemsize

_AVERAGING_POWER = 15.0  # power of the polynomial decay of the first averages (Shamir and Zhang 2013)
_ERROR_WINDOW = 1000.0  # rows over which the errors of both iterates are compared
_MAX_CENTER_DEVIATION = 1e99  # larger deviations of a decision value from the center are ignored
#: Step size of the quantiles of anomaly detectors: at the first row, the smallest one of the median, and that of the threshold
#: for a small nu (a larger nu has smaller steps, because rows beyond it are not rare); and the largest distance of the median
#: from the center, in sizes.
_FIRST_QUANTILE_RATE, _MEDIAN_RATE, _THRESHOLD_RATE, _MAX_QUANTILE = 0.5, 0.03, 0.2, 50.0
#: Thresholds are a multiple of the mean for the first rows: one over this, or over nu if that is more. Later steps grow when rows
#: without an anomaly in succession, times nu, are more than `_MAX_QUIET`. The threshold of a positive kernel has a least value.
_START_RATE, _MAX_QUIET, _MIN_THRESHOLD = 0.01, 4.0, 1e-20
_MIN_LAZY_FACTOR = 1e-5  # coefficients are multiplied by a lazy scale factor below this, in O(B)


@compiled(inline=True)
def get_common_state(block: np.ndarray) -> Any:
    """Return the training state that all learners have (number of rows learned, recent errors, calibration, ...) from a model's
    memory ``block``, as a record of dtype `COMMON_STATE`: a view that can be written.
    """
    return view_record(block, STATE_BEGIN, COMMON_STATE)


@compiled
def reset_state(common: Any) -> None:
    """Reset the training state of a learner (the record ``common``: counters, recent errors, calibration, scale factors) to its
    values before the first row; its random number generator continues.
    """
    common["t"], common["n_merges"] = 0, 0
    common["scale"], common["average_v"], common["average_u"] = 1.0, 1.0, 0.0
    for iterate in range(2):
        common["error"][iterate] = common["center"][iterate] = common["size"][iterate] = common["curvature"][iterate] = 0.0
        common["slope"][iterate] = INITIAL_SLOPE


@compiled(inline=True)
def compute_smoothing_rate(common: Any) -> float:
    """Return the weight of a new row in exponentially smoothed errors: 1 over the number of rows learned, at least 1/1000.
    ``common`` is the record of a model's training state.
    """
    rows = float(common["t"])
    return 1.0 / min(rows, _ERROR_WINDOW)


@compiled(inline=True)
def track_iterate(common: Any, iterate: int, f: float, target: float, rate: float) -> None:
    """Update the recent error and the probability calibration of an iterate (0: last, 1: average) with its decision value ``f``
    of a row, the row's ``target``, and the weight ``rate`` of the row. ``common`` is the record of the model's training state.
    """
    if common["loss"] == EPSILON_INSENSITIVE:
        error = abs(target - f)
    else:
        error = 1.0 if (f > 0.0) != (target > 0.0) else 0.0
        if common["loss"] == ONE_CLASS:
            if abs(f) < _MAX_CENTER_DEVIATION:
                center_rate, deviation = max(rate, 0.01), f - common["center"][iterate]
                common["center"][iterate] += center_rate * deviation
                if common["t"] > 1:  # the deviation of the first row is always 0
                    common["size"][iterate] += center_rate * (abs(deviation) - common["size"][iterate])
        else:
            z = min(max(update_size(common, iterate, abs(f), rate) * f, -10.0), 10.0)
            p = 1.0 / (1.0 + math.exp(-z))
            fit_slope(common, iterate, rate, ((1.0 if target > 0.0 else 0.0) - p) * z, p * (1.0 - p) * z * z)
    common["error"][iterate] += rate * (error - common["error"][iterate])


@compiled(inline=True)
def _is_in_sparse_half(common: Any, iterate: int, f: float) -> bool:
    """Return whether a decision value ``f`` of an anomaly detector's ``iterate`` is not above the running median. ``common`` is
    the record of the model's training state.
    """
    return f <= common["center"][iterate] - common["curvature"][iterate] * common["size"][iterate]


@compiled(inline=True)
def track_threshold(common: Any, scores: np.ndarray, biases: np.ndarray, nu: float, is_positive: bool) -> None:
    """Move the threshold of an anomaly detector towards the ``nu`` quantile of recent decision values, for both iterates, and
    update the median. ``scores`` are the current row's decision values, ``biases`` minus the thresholds, and ``common`` is the
    record of the model's training state. ``is_positive`` tells whether the kernel is.

    A positive kernel has an expansion of 0 far from all rows. Its threshold stays above 0, since steps are relative to it; those
    of other kernels are relative to the size of decision values. Steps upwards grow after many rows without an anomaly. The
    median is stored as its distance below the center, in sizes, because decision values drift while a model learns.
    """
    rate = _FIRST_QUANTILE_RATE / math.sqrt(float(common["t"]))
    for iterate in range(2):
        f, size, threshold = scores[iterate], common["size"][iterate], -biases[iterate]
        median_step = max(rate, _MEDIAN_RATE) * (0.5 if _is_in_sparse_half(common, iterate, f) else -0.5)
        common["curvature"][iterate] = min(max(common["curvature"][iterate] + median_step, -_MAX_QUANTILE), _MAX_QUANTILE)
        mean = common["center"][iterate] + threshold
        if min(nu, _START_RATE) * common["t"] < 1.0 or (is_positive and threshold <= _MIN_THRESHOLD):
            threshold = max(2.0 * nu * mean, _MIN_THRESHOLD) if is_positive else mean - 2.0 * size
        common["slope"][iterate] = 0.0 if f < 0.0 else min(max(common["slope"][iterate], 0.0) + nu, _MAX_QUANTILE)
        step = nu - 1.0 if f < 0.0 else nu * max(common["slope"][iterate] - _MAX_QUIET, 1.0)
        step = min(max(rate, _THRESHOLD_RATE * (1.0 - nu) ** 2) * step, 0.5)
        threshold = threshold * math.exp(step * min(size / threshold, 1.0)) if is_positive else threshold + step * size
        common["center"][iterate] = mean - threshold
        biases[iterate] = -threshold


@compiled(inline=True)
def compute_shortfall(common: Any, f: float, target: float) -> float:
    """Return how much a decision value ``f`` must change until the model's loss for a row with this ``target`` is 0: positive if
    f must rise, negative if it must fall, 0 if the loss is 0 already. ``common`` is the record of the model's training state,
    which names the loss.
    """
    if common["loss"] == EPSILON_INSENSITIVE:
        residual, epsilon = target - f, float(common["epsilon"])
        return max(residual - epsilon, 0.0) + min(residual + epsilon, 0.0)
    if common["loss"] == ONE_CLASS:
        return 1.0 if _is_in_sparse_half(common, LAST_ITERATE, f) else 0.0
    return target * max(1.0 - target * f, 0.0)


def is_average_better(common: Any) -> bool:
    """Return whether predictions should use the average iterate (mean of recent models) rather than the last one. True unless
    averaging is disabled, or the last one has a smaller recent error by more than chance. ``common`` is the record of the
    model's training state.
    """
    if common["horizon"] == 0.0:
        return False
    last, average = float(common["error"][0]), float(common["error"][1])
    rows = min(float(common["t"]) + 1.0, _ERROR_WINDOW)
    deviation = average / math.sqrt(rows) if common["loss"] == EPSILON_INSENSITIVE else math.sqrt(average / rows)
    return average <= last + 0.5 * deviation


#: The same function for compiled code.
_is_average_better: Callable[[Any], bool] = compiled(is_average_better)


@compiled
def select_iterate(common: Any, output_kind: int) -> int:
    """Return 0 if the last iterate of a model computes the output of this kind, 1 if the average one does. ``output_kind`` is
    `LAST_ITERATE`, `AVERAGE_ITERATE`, or one of `DECISION` and `PROBABILITY`, for which the better one is used. ``common`` is
    the record of the training state.
    """
    return (AVERAGE_ITERATE if _is_average_better(common) else LAST_ITERATE) if output_kind >= DECISION else output_kind


@compiled(inline=True)
def add_to_iterates(common: Any, u: np.ndarray, v: np.ndarray, position: int, step: float) -> None:
    """Add ``step`` to the coefficient at index ``position`` of a model's last iterate, so that its average iterate stays the
    same. Both are stored as linear combinations of the arrays ``u`` and ``v``, with factors in ``common``, the record of the
    training state.
    """
    lazy_step = step / common["scale"]
    u[position] += lazy_step
    v[position] -= common["average_u"] / common["average_v"] * lazy_step


@compiled(inline=True)
def finish_step(common: Any, coefficients: np.ndarray, biases: np.ndarray, n_scores: int, n: int) -> None:
    """Finish a learning step of a model: update its average iterate, and if the lazily applied scale factors in ``common`` (the
    record of its training state) have become small, multiply them into the coefficients. ``n_scores`` and ``n`` are the numbers
    of rows and columns in use.

    ``coefficients`` is float64 [2 outputs, slots], and ``biases`` float64 [2 outputs]; ``n_scores`` rows and ``n`` slots are in
    use.
    """
    if common["horizon"] > 0.0:
        _average_iterates(common, coefficients, biases, n_scores, n)
    if common["average_v"] < _MIN_LAZY_FACTOR or common["scale"] < _MIN_LAZY_FACTOR:
        _renormalise_factors(common, coefficients, n_scores, n)


@compiled(inline=True)
def _renormalise_factors(common: Any, coefficients: np.ndarray, n_scores: int, n: int) -> None:
    """Multiply the lazily applied scale factors of both iterates into the coefficients float64 [``n_scores``, n or more], and set
    the factors in ``common`` (the record of the training state) to 1. The model stays the same.
    """
    # All at once: if only the last iterate has shrunk, the factor between the two iterates would grow without limit.
    for k in range(0, n_scores, 2):
        u, v = coefficients[k], coefficients[k + 1]
        for i in range(n):
            v[i] = common["average_v"] * v[i] + common["average_u"] * u[i]
            u[i] *= common["scale"]
    common["average_v"], common["average_u"], common["scale"] = 1.0, 0.0, 1.0


@compiled(inline=True)
def _average_iterates(common: Any, coefficients: np.ndarray, biases: np.ndarray, n_scores: int, n: int) -> None:
    """Move a model's average iterate towards its last one: average += rho (last - average), where rho decreases with the number
    of rows. It takes O(1), because only scale factors in ``common`` (the record of the training state) and the ``biases``
    change.
    """
    rho = max((_AVERAGING_POWER + 1.0) / (common["t"] + _AVERAGING_POWER), 1.0 / common["horizon"])
    if rho < 1.0:
        common["average_v"] *= 1.0 - rho
        common["average_u"] = (1.0 - rho) * common["average_u"] + rho * common["scale"]
        if common["loss"] != ONE_CLASS:  # each iterate of an anomaly detector has its own threshold
            for k in range(0, n_scores, 2):
                biases[k + 1] += rho * (biases[k] - biases[k + 1])
    else:
        for k in range(0, n_scores, 2):
            for i in range(n):
                coefficients[k + 1, i] = 0.0
            biases[k + 1] = biases[k]
        common["average_v"], common["average_u"] = 1.0, common["scale"]
