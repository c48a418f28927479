"""Recursive least squares on kernel values with landmarks, compiled: the normal equations S w = c, in chunks of rows.

Rows are gathered. `CHUNK_ROWS` of them change S and c together, so that S is read and written once a chunk. Sums are in float64:
in float32 the rounding errors of a row that repeats (a sensor that stands still) add up, until S is no longer positive definite.
Then w takes one step of steepest descent on the quadratic, preconditioned by a Cholesky factor of an earlier S and of exact
length along its direction: a factor that is out of date makes it slower, never wrong.
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

#: The jitter that makes a factor in float32 exist is doubled where it does not; its range.
MIN_JITTER, _LARGEST_JITTER = 2e-6, 1.0

#: The parameters, and what has come.
STATE = np.dtype(
    [
        ("ridge", "f8"),
        ("forgetting_factor", "f8"),
        ("jitter", "f8"),  # on the diagonal of what is factored, over its largest element, which is 1
        ("max_swaps", "i4"),  # of landmarks, in a period
        ("n_swaps", "i4"),
        ("held", "i4"),  # of the first rows, those in the window
        ("next_refit", "i4"),  # comes when so many are held
        ("started", "i4"),  # whether the window was full, and rows are gathered
        ("gathered", "i4"),  # rows
        ("age", "i4"),  # rows since the factor was made
        ("period", "i4"),  # rows since landmarks were swapped
    ]
)
#: Fields of it that learning changes, with the least and the largest value that they can have.
STATE_RANGES: dict[str, tuple[float, float]] = {
    "jitter": (MIN_JITTER, _LARGEST_JITTER),
    **dict.fromkeys(("n_swaps", "held", "next_refit", "age", "period"), (0, 2**31 - 1)),
    "started": (0, 1),
    "gathered": (0, CHUNK_ROWS - 1),
}

_EASING = 0.95  # of the jitter, with each factor that exists
_ROUNDING = 1e-9  # added to the diagonal for each regressor, relative to the sum: rounding errors of many equal rows add up
_LEAST_PIVOT = 0.25  # of a factor, over that
_FADING, _RATE = 0.9, 0.3  # of corrections
_LARGEST_REGRESSOR = 1e8  # rows with larger kernel values count less
_USAGE_ROWS = 2000.0  # rows that the usage of landmarks is a mean of
_LINE = 16  # numbers of a cache line; the stride is a multiple of it
_ZERO = np.float32(0.0)


@compiled
def compute_regressors(block: np.ndarray, place: int, n_active: int, norm: float) -> None:
    """Compute the regressors of ``rows[place]`` (0 or 1), of which `scan_row` gave the rest, into ``kernel_rows[place]``."""
    v = landmark_views(block)
    out = v.kernel_rows[place]
    out[0] = np.float32(1.0)
    compare_with_vectors(v, place, n_active, norm, v.kernel_rows[2], out[1:])


@compiled
def compute_regressor_scores(block: np.ndarray, regressors: np.ndarray) -> None:
    """Compute the decision values of a row with these regressors, float32 [1 + landmarks], into ``scores``."""
    v = landmark_views(block)
    h = v.header[0]
    for k in range(h["n_outputs"]):
        f, correction = compute_dot_products(regressors, v.weights[k], v.corrections[k], h["n_support"] + 1)
        v.scores[2 * k], v.scores[2 * k + 1] = f + correction, f


@compiled(inline=True)
def compute_output_target(target: float, output: int, n_outputs: int) -> float:
    """The value that an output should have: the target of the only one, else 1 or -1."""
    if n_outputs == 1:
        return target
    return 1.0 if int(target) == output else -1.0


@compiled(fastmath=FAST)
def _step_corrections(regressors: np.ndarray, corrections: np.ndarray, error: float, n: int) -> None:
    square = 0.0
    for i in range(n):
        square += np.float64(regressors[i]) * np.float64(regressors[i])
    step = _RATE * error / square
    for i in range(n):
        corrections[i] = _FADING * corrections[i] + step * np.float64(regressors[i])


@compiled
def update_corrections(block: np.ndarray, regressors: np.ndarray, target: float, weight: float) -> None:
    """Step the corrections towards a row's target (normalised least mean squares), where ``scores`` are its decision values."""
    v = landmark_views(block)
    h = v.header[0]
    for k in range(h["n_outputs"]):
        error = (compute_output_target(target, k, h["n_outputs"]) - v.scores[2 * k]) * min(weight, 1.0)
        _step_corrections(regressors, v.corrections[k], error, h["n_support"] + 1)


@compiled
def buffer_row(block: np.ndarray, place: int, regressors: np.ndarray, target: float, weight: float) -> None:
    """Gather a row: it becomes row ``place`` of those that the normal equations take next."""
    v = landmark_views(block)
    n, row, largest = v.header[0]["n_support"] + 1, v.regressors[place], np.float32(1.0)
    for i in range(n):
        row[i] = regressors[i]
    if v.header[0]["kernel"] != RBF:
        for i in range(n):
            largest = max(largest, abs(regressors[i]))
    if largest > _LARGEST_REGRESSOR:  # products of such numbers would leave float32; row[0] says by what the row was divided
        factor = np.float32(_LARGEST_REGRESSOR / np.float64(largest))
        for i in range(n):
            row[i] *= factor
    v.targets[place], v.row_weights[place] = target, weight


@compiled(fastmath=FAST)
def _add_multiple(row: np.ndarray, factor: float, out: np.ndarray, n: int) -> None:
    for i in range(n):
        out[i] += factor * np.float64(row[i])


@compiled(noinline=True)
def add_buffered_rows(block: np.ndarray, count: int) -> None:
    """Let S and c take so many gathered rows, and compute the residuals c - S w."""
    v = landmark_views(block)
    h = v.header[0]
    n, stride, n_outputs, decay = (
        h["n_support"] + 1,
        h["stride"],
        h["n_outputs"],
        get_rule_state(block, STATE)["forgetting_factor"] ** count,
    )
    for k in range(n_outputs):
        if decay < 1.0:
            for i in range(n):
                v.products[k, i] *= decay
        for t in range(count):
            row = v.regressors[t]
            _add_multiple(
                row, v.row_weights[t] * compute_output_target(v.targets[t], k, n_outputs) * np.float64(row[0]), v.products[k], n
            )
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
    # Let rows j and j + 1 of S take the rows, and the residuals the product of these rows with the weights.
    v = landmark_views(block)
    h = v.header[0]
    n, stride = h["n_support"] + 1, h["stride"]
    sums, factors = v.direction[:2], v.direction[2:]
    for t in range(count):
        row, weight = v.regressors[t], v.row_weights[t]
        factors[0, t] = weight * np.float64(row[j])
        factors[1, t] = weight * np.float64(row[j + 1]) if j + 1 < n else 0.0
    # From a cache line on and to the end of one, where regressors are zeros: SIMD code without a rest.
    first, end = j // _LINE * _LINE, (n + _LINE - 1) // _LINE * _LINE
    sums[:, first:end] = 0.0
    values = v.regressors.reshape(CHUNK_ROWS * stride)
    add_two_rows(values, v.starts, factors[0], factors[1], count, first, end, sums)
    for row_number in range(j, min(j + 2, n)):
        start = row_start(row_number, stride)
        row_of_s = v.moments[start + row_number : start + n]
        products = sums[row_number - j, row_number:n]
        v.usage[row_number] += min(count / _USAGE_ROWS, 1.0) * (products[0] / count - v.usage[row_number])
        _take_sums(row_of_s, v.prior[start + row_number : start + n], products, decay)
        row_of_s[0] += _ROUNDING * n * products[0]
        for k in range(h["n_outputs"]):
            multiply_row(row_of_s, v.weights[k], row_number, n, v.residuals[k])


@compiled(fastmath=FAST, inline=True)
def _take_sums(row: np.ndarray, prior: np.ndarray, sums: np.ndarray, decay: float) -> None:
    if decay < 1.0:
        for i in range(len(row)):
            row[i] = decay * row[i] + (1.0 - decay) * np.float64(prior[i]) + sums[i]
    else:
        for i in range(len(row)):
            row[i] += sums[i]


@compiled(noinline=True)
def step_weights(block: np.ndarray) -> None:
    """Let the weights take a step."""
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
    """Compute the factor of S, with as much jitter as it takes."""
    v, s = landmark_views(block), get_rule_state(block, STATE)
    n, stride = v.header[0]["n_support"] + 1, v.header[0]["stride"]
    j = s["age"] = 0
    while j < n:
        if j == 0:
            _copy_moments(block)
        least = np.float32(_LEAST_PIVOT * s["jitter"])
        if factor_two_rows(v.factor, stride, j, n, least, v.starts, v.multipliers[0], v.multipliers[1], v.sums):
            j += 2
        elif s["jitter"] < _LARGEST_JITTER:
            s["jitter"], j = min(s["jitter"] * 2.0, _LARGEST_JITTER), 0
        else:  # nothing that learning leads to; a step along the gradient is right for any S: the identity
            for k in range(n):
                start = row_start(k, stride)
                v.factor[start + k : start + n] = _ZERO
                v.factor[start + k] = np.float32(1.0)
            j = n
    s["jitter"] = max(s["jitter"] * _EASING, MIN_JITTER)


@compiled
def _copy_moments(block: np.ndarray) -> None:
    # S over its largest diagonal element, with the jitter on the diagonal.
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
    for i in range(len(values)):
        out[i] = np.float32(values[i] * factor)
