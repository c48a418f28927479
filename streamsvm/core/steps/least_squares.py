"""Recursive least squares on kernel values with landmarks, compiled: the normal equations S w = c, in chunks of rows.

Rows are gathered. `CHUNK_ROWS` of them change S and c together, so that S is read and written once a chunk and the sums are
matrix products in float32, which S takes in float64. Then w takes one step of steepest descent on the quadratic, preconditioned
by a Cholesky factor of an earlier S and of exact length along its direction: a factor that is out of date makes it slower, never
wrong. The functions do small parts of this work, so that no row needs to wait for all of it.
"""

from __future__ import annotations

from typing import cast

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, LEAST_SELF_KERNEL, RBF, compare
from streamsvm.core.memory.landmarks import CHUNK_ROWS, landmark_views
from streamsvm.core.steps.rule import state_of
from streamsvm.core.steps.step import dot_products
from streamsvm.core.steps.triangle import (
    add_two_rows,
    factor_two_rows,
    multiply_row,
    row_start,
    solve_factored,
    symmetric_product,
)

#: The jitter that makes a factor in float32 exist is doubled where it does not; its range.
LEAST_JITTER, _LARGEST_JITTER = 2e-6, 1.0

#: The parameters, and where the work stands.
STATE = np.dtype(
    [
        ("ridge", "f8"),
        ("forgetting_factor", "f8"),
        ("jitter", "f8"),  # on the diagonal of what is factored, over its largest element, which is 1
        ("max_swaps", "i4"),  # of landmarks, in a period
        ("n_swaps", "i4"),
        ("size", "i4"),  # regressors that the normal equations are of: 1 + landmarks, but for those since the last refit
        ("held", "i4"),  # of the first rows, those in the window
        ("replayed", "i4"),  # of these, those that the refit has taken
        ("next_refit", "i4"),  # begins when so many are held; 0: the last one has begun
        ("gathered", "i4"),  # rows
        ("pending", "i4"),  # gathered rows that the normal equations are taking
        ("place", "i4"),  # within the stage
        ("making", "i4"),  # rows of the factor in the making that are done; -1: none is made
        ("age", "i4"),  # rows since the newest factor was begun
        ("period", "i4"),  # rows since landmarks were swapped
        ("stage", "i1"),
        ("started", "i1"),  # whether rows are gathered, and not held in the window
        ("refitting", "i1"),  # whether the weights wait for a factor of S as it is, the landmarks being others
        ("half", "i1"),  # of the arrays of gathered rows: the one that is being filled
        ("in_use", "i1"),  # the number of the factor in use
        ("ready", "i1"),  # whether there is one
    ]
)
#: Fields of it that learning changes, with the least and the largest value that they can have.
LEARNED: dict[str, tuple[float, float]] = {
    "jitter": (LEAST_JITTER, _LARGEST_JITTER),
    "n_swaps": (0, 2**31 - 1),
    **dict.fromkeys(("size", "held", "replayed", "next_refit", "age", "period", "place"), (0, 2**31 - 1)),
    "gathered": (0, CHUNK_ROWS - 1),
    "pending": (0, CHUNK_ROWS),
    "making": (-1, 2**31 - 1),
    "stage": (0, 4),
    **dict.fromkeys(("started", "refitting", "half", "in_use", "ready"), (0, 1)),
}

#: Stages: nothing to do, the prior is computed, landmarks are swapped, rows are added to S, the weights take a step.
IDLE, PRIOR, SWAPPING, ADDING, STEPPING = (cast("int", np.int64(n)) for n in range(5))

_EASING = 0.95  # of the jitter, with each factor that exists
_ROUNDING = 1e-9  # of sums in float32, times the regressors: so much more on the diagonal leaves S positive definite
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
    compare(v, place, n_active, norm, v.kernel_rows[2], out[1:])


@compiled
def decide_regressors(block: np.ndarray, regressors: np.ndarray) -> None:
    """Compute the decision values of a row with these regressors, float32 [1 + landmarks], into ``scores``."""
    v = landmark_views(block)
    h = v.header[0]
    for k in range(h["live"]):
        f, correction = dot_products(regressors, v.weights[k], v.corrections[k], h["n_support"] + 1)
        v.scores[2 * k], v.scores[2 * k + 1] = f + correction, f


@compiled(inline=True)
def target_of(target: float, output: int, live: int) -> float:
    """The value that an output should have: the target of the only one, else 1 or -1."""
    if live == 1:
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
def correct(block: np.ndarray, regressors: np.ndarray, target: float, weight: float) -> None:
    """Step the corrections towards a row's target (normalised least mean squares), where ``scores`` are its decision values."""
    v = landmark_views(block)
    h = v.header[0]
    for k in range(h["live"]):
        error = (target_of(target, k, h["live"]) - v.scores[2 * k]) * min(weight, 1.0)
        _step_corrections(regressors, v.corrections[k], error, h["n_support"] + 1)


@compiled
def gather(block: np.ndarray, half: int, place: int, regressors: np.ndarray, target: float, weight: float) -> None:
    """Gather a row: it becomes row ``place`` of one of the two arrays of rows that the normal equations take."""
    v, s = landmark_views(block), state_of(block, STATE)
    row, largest = v.regressors[half, place], np.float32(1.0)
    for i in range(s["size"]):
        row[i] = regressors[i]
    if v.header[0]["kernel"] != RBF:
        for i in range(s["size"]):
            largest = max(largest, abs(regressors[i]))
    if largest > _LARGEST_REGRESSOR:  # products of such numbers would leave float32; row[0] says by what the row was divided
        factor = np.float32(_LARGEST_REGRESSOR / np.float64(largest))
        for i in range(s["size"]):
            row[i] *= factor
    v.targets[half, place], v.row_weights[half, place] = target, weight


@compiled(inline=True)
def turn(block: np.ndarray, rows: int) -> None:
    """Let ``rows`` gathered rows be those that the normal equations take next; the other array is filled from now on."""
    s = state_of(block, STATE)
    s["pending"], s["half"], s["gathered"] = rows, 1 - s["half"], 0


@compiled(apart=True)
def begin_adding(block: np.ndarray) -> None:
    """Let c take the pending rows; S is next."""
    v, s = landmark_views(block), state_of(block, STATE)
    h = v.header[0]
    n, rows, half = s["size"], s["pending"], 1 - s["half"]
    decay = s["forgetting_factor"] ** rows
    for k in range(h["live"]):
        products = v.products[k]
        if decay < 1.0:
            for i in range(n):
                products[i] *= decay
        for t in range(rows):
            row = v.regressors[half, t]
            target = target_of(v.targets[half, t], k, h["live"]) * np.float64(row[0])
            _add_multiple(row, v.row_weights[half, t] * target, products, n)
        v.residuals[k, :n] = 0.0
    s["stage"], s["place"] = ADDING, 0


@compiled(fastmath=FAST)
def _add_multiple(row: np.ndarray, factor: float, out: np.ndarray, n: int) -> None:
    for i in range(n):
        out[i] += factor * np.float64(row[i])


@compiled(apart=True)
def add_rows(block: np.ndarray) -> float:
    """Let two rows of S take the pending rows; return the cost in multiplications, as `step_weights` and `make_factor` do."""
    v, s = landmark_views(block), state_of(block, STATE)
    h = v.header[0]
    n, j, stride, count, half = s["size"], s["place"], h["stride"], s["pending"], 1 - s["half"]
    decay = s["forgetting_factor"] ** count
    for t in range(count):
        row, weight = v.regressors[half, t], np.float32(v.row_weights[half, t])
        v.starts[t] = t * stride
        v.multipliers[0, t] = weight * row[j]
        v.multipliers[1, t] = weight * row[j + 1] if j + 1 < n else _ZERO
    # From a cache line on and to the end of one, where regressors are zeros: SIMD code without a rest.
    first, end = j // _LINE * _LINE, (n + _LINE - 1) // _LINE * _LINE
    v.sums[0, first:end] = _ZERO
    v.sums[1, first:end] = _ZERO
    values = v.regressors[half].reshape(CHUNK_ROWS * stride)
    add_two_rows(values, v.starts, v.multipliers[0], v.multipliers[1], count, first, end, v.sums)
    for row_number in range(j, min(j + 2, n)):
        start = row_start(row_number, stride)
        row_of_s = v.moments[start + row_number : start + n]
        sums = v.sums[row_number - j, row_number:n]
        v.usage[row_number] += min(count / _USAGE_ROWS, 1.0) * (np.float64(sums[0]) / count - v.usage[row_number])
        _take_sums(row_of_s, v.prior[start + row_number : start + n], sums, decay)
        row_of_s[0] += _ROUNDING * n * np.float64(sums[0])
        if not s["refitting"]:
            for k in range(h["live"]):
                multiply_row(row_of_s, v.weights[k], row_number, n, v.residuals[k])
    s["place"] = j + 2
    if j + 2 >= n:
        _end_chunk(block)
    return (n - j) * 2.0 * (count + 8.0 + 4.0 * h["live"])


@compiled(fastmath=FAST, inline=True)
def _take_sums(row: np.ndarray, prior: np.ndarray, sums: np.ndarray, decay: float) -> None:
    if decay < 1.0:
        for i in range(len(row)):
            row[i] = decay * row[i] + (1.0 - decay) * np.float64(prior[i]) + np.float64(sums[i])
    else:
        for i in range(len(row)):
            row[i] += np.float64(sums[i])


@compiled
def _end_chunk(block: np.ndarray) -> None:
    v, s = landmark_views(block), state_of(block, STATE)
    count = s["pending"]
    s["pending"] = 0
    if s["refitting"]:  # the weights wait for the factor of all rows
        s["replayed"] += 0 if s["started"] else count
        s["stage"], s["place"] = IDLE, 0
        return
    for k in range(v.header[0]["live"]):
        for i in range(s["size"]):
            v.residuals[k, i] = v.products[k, i] - v.residuals[k, i]
    s["stage"], s["place"] = (STEPPING if s["ready"] else IDLE), 0


@compiled(apart=True)
def step_weights(block: np.ndarray) -> float:
    """Let the weights of one output take a step."""
    v, s = landmark_views(block), state_of(block, STATE)
    h = v.header[0]
    n, k, stride = s["size"], s["place"], h["stride"]
    residual, direction, product, solution = v.residuals[k], v.direction[0], v.direction[1], v.sums[0]
    largest = 0.0
    for i in range(n):
        largest = max(largest, abs(residual[i]))
    if 0.0 < largest < np.inf:
        for i in range(n):
            solution[i] = np.float32(residual[i] / largest)
        solve_factored(v.factors[s["in_use"]], stride, solution, n)
        for i in range(n):
            direction[i] = np.float64(solution[i])
        symmetric_product(v.moments, stride, direction, n, product)
        slope = curvature = 0.0
        for i in range(n):
            slope += direction[i] * residual[i]
            curvature += direction[i] * product[i]
        if curvature > 0.0 and slope > 0.0:
            length = slope / curvature
            for i in range(n):
                v.weights[k, i] += length * direction[i]
    s["place"] = k + 1
    if k + 1 == h["live"]:
        s["stage"], s["place"] = IDLE, 0
    return 4.0 * n * n


@compiled
def make_factor(block: np.ndarray) -> float:
    """Make two rows of the factor in the making; before the first of them, copy S."""
    v, s = landmark_views(block), state_of(block, STATE)
    n, j, stride, number = s["size"], s["making"], v.header[0]["stride"], 1 - s["in_use"]
    factor, cost = v.factors[number], 2.0 * (n - j) * (j + 8.0)
    if j == 0:
        _copy_moments(block, factor)
        s["age"] = 0
        cost += n * n
    least = np.float32(_LEAST_PIVOT * s["jitter"])
    s["making"] = j + 2
    if not factor_two_rows(factor, stride, j, n, least, v.starts, v.multipliers[0], v.multipliers[1], v.sums):
        if s["jitter"] < _LARGEST_JITTER:
            s["jitter"], s["making"] = min(s["jitter"] * 2.0, _LARGEST_JITTER), 0
            return cost
        for k in range(n):  # nothing that learning leads to; a step along the gradient is right for any S: the identity
            start = row_start(k, stride)
            factor[start + k : start + n] = _ZERO
            factor[start + k] = np.float32(1.0)
        s["making"] = n
    if s["making"] >= n:
        s["making"], s["in_use"], s["ready"], s["jitter"] = -1, number, 1, max(s["jitter"] * _EASING, LEAST_JITTER)
        if s["refitting"]:
            for k in range(v.header[0]["live"]):
                symmetric_product(v.moments, stride, v.weights[k], n, v.residuals[k])
                for i in range(n):
                    v.residuals[k, i] = v.products[k, i] - v.residuals[k, i]
            s["refitting"], s["stage"], s["place"] = 0, STEPPING, 0
    return cost


@compiled
def _copy_moments(block: np.ndarray, factor: np.ndarray) -> None:
    # S over its largest diagonal element, with the jitter on the diagonal.
    v, s = landmark_views(block), state_of(block, STATE)
    n, stride, largest = s["size"], v.header[0]["stride"], LEAST_SELF_KERNEL
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
