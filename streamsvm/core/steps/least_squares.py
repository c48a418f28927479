"""Recursive least squares on kernel values with landmarks, compiled: the normal equations S w = c, in chunks of rows.

Rows are buffered; after `CHUNK_ROWS` rows, S and c are updated with all of them, so that S is read and written once per chunk.
Sums are in float64: in float32, the rounding errors of a repeated row (a sensor that stands still) accumulate until S is not
positive definite. Then w takes one step of preconditioned steepest descent with exact line search. The preconditioner is a
Cholesky factor of an earlier S: an outdated factor makes the step slower, never wrong.
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LEAST_SELF_KERNEL, RBF, compare_with_vectors
from streamsvm.core.memory.landmarks import CHUNK_ROWS, landmark_views
from streamsvm.core.steps.rule import get_rule_state
from streamsvm.core.steps.step import compute_dot_products
from streamsvm.core.steps.triangle import (
    add_two_rows,
    factor_two_rows,
    multiply_row,
    multiply_symmetric,
    row_start,
    solve_factored,
)

#: The range of the jitter, which is doubled until the Cholesky factor exists in float32.
MIN_JITTER, _MAX_JITTER = 2e-6, 1.0

#: The state of the rule: parameters, and counters.
STATE = np.dtype(
    [
        ("ridge", "f8"),
        ("forgetting_factor", "f8"),
        ("jitter", "f8"),  # added to the diagonal of the factored matrix, whose largest element is 1
        ("max_swaps", "i4"),  # largest number of landmarks that are swapped in a period
        ("n_swaps", "i4"),
        ("n_stored", "i4"),  # first rows that are in the window
        ("next_refit", "i4"),  # number of rows in the window at the next refit
        ("is_full", "i4"),  # 1 once the window was full: later rows are buffered
        ("n_buffered", "i4"),  # rows in the buffer
        ("age", "i4"),  # rows since the factor was computed
        ("period", "i4"),  # rows since the last swap of landmarks
    ]
)
#: The fields of `STATE` that learning changes, with their smallest and largest value.
STATE_RANGES: dict[str, tuple[float, float]] = {
    "jitter": (MIN_JITTER, _MAX_JITTER),
    **dict.fromkeys(("n_swaps", "n_stored", "next_refit", "age", "period"), (0, 2**31 - 1)),
    "is_full": (0, 1),
    "n_buffered": (0, CHUNK_ROWS - 1),
}

_JITTER_DECAY = 0.95  # the jitter is multiplied by this after each factor
_RELATIVE_JITTER = 1e-9  # added to the diagonal per regressor, relative to the sum: rounding errors of many equal rows accumulate
_RELATIVE_PIVOT = 0.25  # smallest pivot of a factor, over the jitter
_CORRECTION_DECAY, _CORRECTION_RATE = 0.9, 0.3  # decay and learning rate of corrections
_MAX_REGRESSOR = 1e8  # rows with larger regressors are scaled down
_USAGE_ROWS = 2000.0  # window of the mean usage of landmarks, in rows
_LINE_VALUES = 16  # float32 values in a cache line; the stride is a multiple of it
_ZERO = np.float32(0.0)


@compiled
def compute_regressors(block: np.ndarray, i: int, n_active: int, norm: float) -> None:
    """Compute the regressors of a row (the constant 1, then the kernel values with all landmarks, which are stored rows) and
    store them in ``block``, the model's memory. ``i`` selects the row: 0 is the current row, 1 a scratch row. ``n_active`` is
    its number of non-zero features, ``norm`` its squared norm.

    ``n_active`` and ``norm`` are those of `scan_row`.
    """
    v = landmark_views(block)
    out = v.kernel_rows[i]
    out[0] = np.float32(1.0)
    compare_with_vectors(v, i, n_active, norm, v.kernel_rows[2], out[1:])


@compiled
def compute_regressor_scores(block: np.ndarray, regressors: np.ndarray) -> None:
    """Compute the decision values of a row from its ``regressors`` float32 [1 + landmarks] (the constant 1 and kernel values
    with stored rows). Two per output are stored in ``block``, the model's memory: with and without fast corrections (weights
    that follow recent errors).
    """
    v = landmark_views(block)
    h = v.header[0]
    for k in range(h["n_outputs"]):
        f, correction = compute_dot_products(regressors, v.weights[k], v.corrections[k], h["n_support"] + 1)
        v.scores[2 * k], v.scores[2 * k + 1] = f + correction, f


@compiled(inline=True)
def compute_output_target(target: float, output: int, n_outputs: int) -> float:
    """Return the target of one output of a model: the row's ``target`` itself for a single output, otherwise 1 if the class index
    ``target`` is this output, and -1 if not (one against the rest).
    """
    if n_outputs == 1:
        return target
    return 1.0 if int(target) == output else -1.0


@compiled(fastmath=FAST)
def _step_corrections(regressors: np.ndarray, corrections: np.ndarray, error: float, n: int) -> None:
    """Update an output's fast corrections, a second set of n weights that decay and follow recent errors, in place, by one step
    of normalised least mean squares against ``error`` (target minus prediction).
    """
    square = 0.0
    for i in range(n):
        square += np.float64(regressors[i]) * np.float64(regressors[i])
    step = _CORRECTION_RATE * error / square
    for i in range(n):
        corrections[i] = _CORRECTION_DECAY * corrections[i] + step * np.float64(regressors[i])


@compiled
def update_corrections(block: np.ndarray, regressors: np.ndarray, target: float, weight: float) -> None:
    """Update the fast corrections (a second set of weights, which follow recent errors and decay) of all outputs by one step of
    normalised least mean squares on the current row, given by its ``regressors``, ``target`` and ``weight``. ``block`` is the
    model's memory.
    """
    v = landmark_views(block)
    h = v.header[0]
    for k in range(h["n_outputs"]):
        error = (compute_output_target(target, k, h["n_outputs"]) - v.scores[2 * k]) * min(weight, 1.0)
        _step_corrections(regressors, v.corrections[k], error, h["n_support"] + 1)


@compiled
def buffer_row(block: np.ndarray, position: int, regressors: np.ndarray, target: float, weight: float) -> None:
    """Store a row at index ``position`` of the buffer from which the normal equations are updated, a chunk of rows at a time.
    The row is given by its ``regressors`` (the constant 1 and kernel values with landmarks), target and weight; very large
    regressors are scaled down. ``block`` is the model's memory.
    """
    v = landmark_views(block)
    n, row, largest = v.header[0]["n_support"] + 1, v.regressors[position], np.float32(1.0)
    for i in range(n):
        row[i] = regressors[i]
    if v.header[0]["kernel"] != RBF:
        for i in range(n):
            largest = max(largest, abs(regressors[i]))
    if largest > _MAX_REGRESSOR:  # products of larger values would overflow float32; row[0] keeps the divisor
        factor = np.float32(_MAX_REGRESSOR / np.float64(largest))
        for i in range(n):
            row[i] *= factor
    v.targets[position], v.row_weights[position] = target, weight


@compiled(fastmath=FAST)
def _add_scaled_row(row: np.ndarray, factor: float, out: np.ndarray, n: int) -> None:
    """Add ``factor`` times the first n values of ``row`` to ``out``, in place."""
    for i in range(n):
        out[i] += factor * np.float64(row[i])


@compiled(noinline=True)
def add_buffered_rows(block: np.ndarray, count: int) -> None:
    """Add the first ``count`` rows of the buffer to the normal equations S w = c of the least squares model in ``block``, after
    multiplying earlier rows by the forgetting factor. Also computes the residuals c - S w of the present weights w.
    """
    v = landmark_views(block)
    h = v.header[0]
    n, stride, n_outputs = h["n_support"] + 1, h["stride"], h["n_outputs"]
    decay = get_rule_state(block, STATE)["forgetting_factor"] ** count
    for k in range(n_outputs):
        if decay < 1.0:
            for i in range(n):
                v.products[k, i] *= decay
        for t in range(count):
            row = v.regressors[t]
            factor = v.row_weights[t] * compute_output_target(v.targets[t], k, n_outputs) * np.float64(row[0])
            _add_scaled_row(row, factor, v.products[k], n)
        v.residuals[k, :n] = 0.0
    for t in range(count):
        v.starts[t] = t * stride
    for j in range(0, n, 2):
        _add_to_two_rows(block, j, count, decay)
    for k in range(n_outputs):
        for i in range(n):
            v.residuals[k, i] = v.products[k, i] - v.residuals[k, i]


@compiled
def _add_to_two_rows(block: np.ndarray, j: int, count: int, decay: float) -> None:
    """Add ``count`` buffered rows to rows j and j + 1 of the matrix S of the normal equations S w = c, after multiplying the old
    values by ``decay``, and add their products with the weights w to the sums for the residuals. ``block`` is the model's
    memory.
    """
    v = landmark_views(block)
    h = v.header[0]
    n, stride = h["n_support"] + 1, h["stride"]
    sums, factors = v.direction[:2], v.direction[2:]
    for t in range(count):
        row, weight = v.regressors[t], v.row_weights[t]
        factors[0, t] = weight * np.float64(row[j])
        factors[1, t] = weight * np.float64(row[j + 1]) if j + 1 < n else 0.0
    # From the start of a cache line to the end of one, where regressors are 0: SIMD code without a scalar remainder.
    first, stop = j // _LINE_VALUES * _LINE_VALUES, (n + _LINE_VALUES - 1) // _LINE_VALUES * _LINE_VALUES
    sums[:, first:stop] = 0.0
    values = v.regressors.reshape(CHUNK_ROWS * stride)
    add_two_rows(values, v.starts, factors[0], factors[1], count, first, stop, sums)
    for row_number in range(j, min(j + 2, n)):
        start = row_start(row_number, stride)
        row_of_s = v.moments[start + row_number : start + n]
        products = sums[row_number - j, row_number:n]
        v.usage[row_number] += min(count / _USAGE_ROWS, 1.0) * (products[0] / count - v.usage[row_number])
        _update_moments(row_of_s, v.prior[start + row_number : start + n], products, decay)
        row_of_s[0] += _RELATIVE_JITTER * n * products[0]
        for k in range(h["n_outputs"]):
            multiply_row(row_of_s, v.weights[k], row_number, n, v.residuals[k])


@compiled(fastmath=FAST, inline=True)
def _update_moments(row: np.ndarray, prior: np.ndarray, sums: np.ndarray, decay: float) -> None:
    """Add ``sums`` to ``row``, a row of the matrix of the normal equations, in place. If ``decay`` is below 1, old values are
    first multiplied by ``decay``, and drawn towards ``prior``, the regularisation term, in proportion.
    """
    if decay < 1.0:
        for i in range(len(row)):
            row[i] = decay * row[i] + (1.0 - decay) * np.float64(prior[i]) + sums[i]
    else:
        for i in range(len(row)):
            row[i] += sums[i]


@compiled(noinline=True)
def step_weights(block: np.ndarray) -> None:
    """Improve the weights w of the least squares model in ``block`` by one step of preconditioned steepest descent on the normal
    equations S w = c, with exact line search, for each output. The residuals c - S w must have been stored in ``block``.
    """
    v = landmark_views(block)
    h = v.header[0]
    n, stride, direction, product, solution = h["n_support"] + 1, h["stride"], v.direction[0], v.direction[1], v.sums[0]
    for k in range(h["n_outputs"]):
        residual, largest = v.residuals[k], 0.0
        for i in range(n):
            largest = max(largest, abs(residual[i]))
        if not 0.0 < largest < np.inf:
            continue
        for i in range(n):
            solution[i] = np.float32(residual[i] / largest)
        solve_factored(v.factor, stride, solution, n)
        for i in range(n):
            direction[i] = np.float64(solution[i])
        multiply_symmetric(v.moments, stride, direction, n, product)
        slope = curvature = 0.0
        for i in range(n):
            slope += direction[i] * residual[i]
            curvature += direction[i] * product[i]
        if curvature > 0.0 and slope > 0.0:
            for i in range(n):
                v.weights[k, i] += slope / curvature * direction[i]


@compiled(noinline=True)
def compute_factor(block: np.ndarray) -> None:
    """Compute the Cholesky factor of the normal equations' matrix in float32, as the preconditioner of later descent steps. It
    is stored in ``block``, the model's memory. If the factorisation fails, it is repeated with twice the jitter on the diagonal.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    n, stride = v.header[0]["n_support"] + 1, v.header[0]["stride"]
    j = s["age"] = 0
    while j < n:
        if j == 0:
            _copy_moments(block)
        min_pivot = np.float32(_RELATIVE_PIVOT * s["jitter"])
        if factor_two_rows(v.factor, stride, j, n, min_pivot, v.starts, v.multipliers[0], v.multipliers[1], v.sums):
            j += 2
        elif s["jitter"] < _MAX_JITTER:
            s["jitter"], j = min(s["jitter"] * 2.0, _MAX_JITTER), 0
        else:  # Learning does not lead here. The identity is right for any S: the step then follows the gradient.
            for k in range(n):
                start = row_start(k, stride)
                v.factor[start + k : start + n] = _ZERO
                v.factor[start + k] = np.float32(1.0)
            j = n
    s["jitter"] = max(s["jitter"] * _JITTER_DECAY, MIN_JITTER)


@compiled
def _copy_moments(block: np.ndarray) -> None:
    """Prepare the Cholesky factorisation of the normal equations' matrix: copy it in float32 to where it is then factorised,
    divided by its largest diagonal element and with jitter added to the diagonal. Both are in ``block``, the model's memory.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    n, stride, factor, largest = v.header[0]["n_support"] + 1, v.header[0]["stride"], v.factor, LEAST_SELF_KERNEL
    for j in range(n):
        largest = max(largest, v.moments[row_start(j, stride) + j])
    for j in range(n):
        start = row_start(j, stride)
        _scale_values(v.moments[start + j : start + n], 1.0 / largest, factor[start + j : start + n])
        factor[start + j] += np.float32(s["jitter"])


@compiled
def _scale_values(values: np.ndarray, factor: float, out: np.ndarray) -> None:
    """Write ``values`` times ``factor`` into ``out``, rounded to float32."""
    for i in range(len(values)):
        out[i] = np.float32(values[i] * factor)
