"""The update rule of kernel recursive least squares, compiled: choosing and swapping landmarks, and updating the equations.

The first rows are stored in a window, and become landmarks if no landmark is near. At growing intervals everything is recomputed
from the window (a refit), because new landmarks need sums over earlier rows, and gamma="scale" has changed. Later rows are
buffered. Now and then, rows with a large error and no landmark nearby replace landmarks that few rows come near.
"""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import LEAST_SELF_KERNEL, RBF, compute_self_kernel
from streamsvm.core.memory.landmarks import CHUNK_ROWS, N_NEIGHBOURS, landmark_views
from streamsvm.core.memory.slots import scan_row
from streamsvm.core.steps.decisions import select_output
from streamsvm.core.steps.iterates import get_common_state
from streamsvm.core.steps.least_squares import (
    STATE,
    add_buffered_rows,
    buffer_row,
    compute_factor,
    compute_output_target,
    compute_regressor_scores,
    compute_regressors,
    step_weights,
    update_corrections,
)
from streamsvm.core.steps.rule import LEARNED, REFUSED, get_rule_state
from streamsvm.core.steps.step import GAMMA_ROWS, compute_scale_gamma, observe_variances, rows_differ, track_errors
from streamsvm.core.steps.triangle import row_start

_REFIT_GROWTH = 0.25  # rows until the next refit, or factor, over the rows so far
_MAX_FACTOR_AGE = 1024  # largest number of rows between two factors
# Smallest novelty of a row that becomes a landmark in the window: 1 - its largest squared cosine with a landmark.
_MIN_INITIAL_NOVELTY = 0.1
_MIN_NOVELTY = 0.3  # the same for later rows
_SWAP_PERIOD = 256  # rows between two swaps of landmarks
_MAX_RELATIVE_USAGE = 0.5  # largest usage of a replaced landmark, over the mean usage
_CENTRE_PRIOR = np.float32(1.0)  # prior of the intercept
_DIAGONAL_SLACK = 1.0 + 1e-5  # factor of the diagonal of the prior
_PROJECTION_RIDGE = 1e-4
_ZERO = np.float32(0.0)


@compiled
def _add_row(block: np.ndarray, norm: float, target: float, weight: float) -> None:
    """Learn the current row by least squares whose regressors are kernel values with landmarks (stored rows). The row is stored
    in the buffer of first rows; once that is full, it is added to the normal equations, with a chunk of rows at a time. ``norm``
    is its squared norm, ``block`` the model's memory.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    if not s["is_full"]:
        _store_first_row(block, norm, target, weight)
        if s["n_stored"] >= s["next_refit"]:
            _refit(block)
        return
    _update_candidates(block, norm, target, weight)
    buffer_row(block, s["n_buffered"], v.kernel_rows[0], target, weight)
    s["n_buffered"] = (s["n_buffered"] + 1) % CHUNK_ROWS
    s["age"] = min(s["age"] + 1, _MAX_FACTOR_AGE)
    if s["n_buffered"] == 0:
        swapped = s["period"] >= _SWAP_PERIOD and _swap_landmarks(block)
        add_buffered_rows(block, CHUNK_ROWS)
        if swapped or s["age"] >= min(_REFIT_GROWTH * get_common_state(block)["t"], _MAX_FACTOR_AGE):
            compute_factor(block)
        step_weights(block)


# The first rows ---------------------------------------------------------------------------------------------------------------


@compiled
def _store_first_row(block: np.ndarray, norm: float, target: float, weight: float) -> None:
    """Store the current row, with its target and weight, in the buffer of first rows. It also becomes a landmark (a row whose
    kernel values are regressors) if it is far from all landmarks, and the budget has room. ``norm`` is its squared norm,
    ``block`` the model's memory.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h, position = v.header[0], s["n_stored"]
    for j in range(h["used"]):
        v.window[position, j] = v.rows[0, j]
    v.window_targets[position], v.window_weights[position] = target, weight
    s["n_stored"] = position + 1
    own_kernel = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    if h["n_support"] == h["budget"] or own_kernel < LEAST_SELF_KERNEL:
        return
    if _compute_novelty(block, v.kernel_rows[0], own_kernel) > _MIN_INITIAL_NOVELTY:
        _write_landmark(block, v.rows[0], h["n_support"], norm)
        h["n_support"] += 1


@compiled
def _write_landmark(block: np.ndarray, row: np.ndarray, slot: int, norm: float) -> None:
    """Store ``row``, whose squared norm is ``norm``, as the landmark (a row whose kernel values are regressors) with the index
    ``slot``. ``block`` is the model's memory, where cached kernel values become invalid.
    """
    v = landmark_views(block)
    h = v.header[0]
    for j in range(h["used"]):
        v.vectors[j, slot] = row[j]
    v.norms[slot] = np.float32(norm)
    h["largest_norm"] = max(h["largest_norm"], norm)
    v.cache[0]["valid"] = 0


@compiled
def _compute_novelty(block: np.ndarray, regressors: np.ndarray, own_kernel: float) -> float:
    """Return how different a row is from all landmarks (stored rows), from 0 (equal to one) to 1: 1 minus the largest squared
    cosine in feature space. ``regressors`` are the constant 1 and the row's kernel values with the landmarks; ``own_kernel`` is
    that with itself.
    """
    v = landmark_views(block)
    h = v.header[0]
    if h["kernel"] == RBF:
        # Integer comparison of positive floats, which compiles to SIMD code.
        bits, max_bits = regressors.view(np.int32), np.int32(0)
        for i in range(1, h["n_support"] + 1):
            max_bits = max(max_bits, bits[i])
        nearest = np.float64(np.int32(max_bits).view(np.float32))
        return 1.0 - nearest * nearest
    largest = 0.0
    for i in range(h["n_support"]):
        k = np.float64(regressors[i + 1])
        landmark_kernel = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        if landmark_kernel >= LEAST_SELF_KERNEL:
            largest = max(largest, k / own_kernel * (k / landmark_kernel))
    return 1.0 - largest


@compiled
def _refit(block: np.ndarray) -> None:
    """Fit the least squares model in ``block`` anew to its buffer of first rows: compute gamma, the normal equations and the
    weights. This is called at growing intervals, for the last time when the buffer is full.
    """
    v, s, c = landmark_views(block), get_rule_state(block, STATE), get_common_state(block)
    h = v.header[0]
    if c["gamma_rows"] >= 0:
        h["gamma"] = compute_scale_gamma(c)
    v.cache[0]["valid"] = 0
    for j in range(h["n_support"] + 1):
        _compute_prior(block, j)
    n_rows = s["n_stored"]
    for start in range(0, n_rows, CHUNK_ROWS):
        count = min(CHUNK_ROWS, n_rows - start)
        for t in range(count):
            position = start + t
            for j in range(h["used"]):
                v.rows[1, j] = v.window[position, j]
            n_active, norm = scan_row(v.rows[1], h["used"], v.active[1])
            compute_regressors(block, 1, n_active, norm)
            buffer_row(block, t, v.kernel_rows[1], v.window_targets[position], v.window_weights[position])
        add_buffered_rows(block, count)
    compute_factor(block)
    step_weights(block)
    s["next_refit"] = min(n_rows + max(int(_REFIT_GROWTH * n_rows), 1), h["window"])
    s["is_full"] = 1 if n_rows == h["window"] else 0


@compiled
def _compute_prior(block: np.ndarray, j: int) -> None:
    """Reset row ``j`` of the normal equations to the regularisation term alone: the ridge times the kernel values of landmark j
    - 1 (a stored row) with all landmarks. Row 0 belongs to the intercept. ``block`` is the model's memory.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h = v.header[0]
    n, stride = h["n_support"] + 1, h["stride"]
    start = row_start(j, stride)
    if j == 0:
        v.prior[start : start + n] = _ZERO
        v.prior[start] = _CENTRE_PRIOR
    else:
        for i in range(h["used"]):
            v.rows[1, i] = v.vectors[i, j - 1]
        n_active, norm = scan_row(v.rows[1], h["used"], v.active[1])
        compute_regressors(block, 1, n_active, norm)
        for i in range(j + 1, n):
            v.prior[start + i] = np.float32(s["ridge"]) * v.kernel_rows[1, i]
        own_kernel = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
        v.prior[start + j] = np.float32(s["ridge"] * own_kernel * _DIAGONAL_SLACK)
    for i in range(j, n):
        v.moments[start + i] = np.float64(v.prior[start + i])
    for k in range(h["n_outputs"]):
        v.products[k, j] = 0.0
    v.usage[j] = 0.0


# Later rows -------------------------------------------------------------------------------------------------------------------


@compiled
def _update_candidates(block: np.ndarray, norm: float, target: float, weight: float) -> None:
    """Store the current row as a candidate for a new landmark (a stored row whose kernel values are regressors), if its
    prediction error times its distance from the landmarks exceeds that of the worst candidate. ``norm`` is its squared norm,
    ``block`` the model's memory.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h = v.header[0]
    s["period"] = min(s["period"] + 1, _SWAP_PERIOD)
    own_kernel = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    if s["max_swaps"] == 0 or own_kernel < LEAST_SELF_KERNEL:
        return
    novelty = _compute_novelty(block, v.kernel_rows[0], own_kernel)
    if novelty <= _MIN_NOVELTY:
        return
    squared_error = 0.0
    for k in range(h["n_outputs"]):
        squared_error += (compute_output_target(target, k, h["n_outputs"]) - v.scores[2 * k + 1]) ** 2
    promise, worst = min(squared_error * novelty * weight, 1e90), 0
    for c in range(1, s["max_swaps"]):
        if v.candidates[c] < v.candidates[worst]:
            worst = c
    if promise > v.candidates[worst]:
        v.candidates[worst] = promise
        for j in range(h["used"]):
            v.window[worst, j] = v.rows[0, j]


@compiled
def _swap_landmarks(block: np.ndarray) -> bool:
    """Try to make each candidate row in the model's memory ``block`` a landmark (a stored row whose kernel values are
    regressors), in a free slot or in place of a little used one, and clear the list of candidates. Returns True if a landmark was
    added or replaced.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    old_n_swaps = s["n_swaps"]
    for candidate in range(s["max_swaps"]):
        if v.candidates[candidate] > 0.0:
            _swap_landmark(block, candidate)
            v.candidates[candidate] = 0.0
    s["period"] = 0
    return s["n_swaps"] != old_n_swaps


@compiled
def _swap_landmark(block: np.ndarray, candidate: int) -> None:
    """Turn the candidate row with the index ``candidate`` into a landmark, in a free slot or instead of the least used landmark.
    Does nothing if the row is similar to a landmark, or if all landmarks are well used. ``block`` is the model's memory.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h = v.header[0]
    row = v.rows[1]
    for j in range(h["used"]):
        row[j] = v.window[candidate, j]
    n_active, norm = scan_row(row, h["used"], v.active[1])
    compute_regressors(block, 1, n_active, norm)
    own_kernel = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    if _compute_novelty(block, v.kernel_rows[1], own_kernel) <= _MIN_NOVELTY:
        return  # a similar candidate has become a landmark
    if h["n_support"] < h["budget"]:
        regressor = h["n_support"] + 1
        h["n_support"] = regressor
        v.kernel_rows[1, regressor] = _ZERO
    else:
        regressor = _find_least_used(block)
        if regressor < 0:
            return
    _replace_regressor(block, regressor, own_kernel)
    _write_landmark(block, row, regressor - 1, norm)
    s["n_swaps"] = min(s["n_swaps"] + 1, 2**31 - 1)


@compiled
def _find_least_used(block: np.ndarray) -> int:
    """Return the index, from 1, of the landmark (stored row) to replace: the one to which recent rows were least similar.
    Returns -1 if its usage is above half of the mean usage, so that none is to be replaced. ``block`` is the model's memory.
    """
    v = landmark_views(block)
    h = v.header[0]
    min_usage, regressor, total = np.inf, 1, 0.0
    for i in range(1, h["n_support"] + 1):
        own_kernel = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i - 1]))
        usage = v.usage[i] / max(own_kernel, LEAST_SELF_KERNEL)
        total += usage
        if usage < min_usage:
            min_usage, regressor = usage, i
    return regressor if min_usage <= _MAX_RELATIVE_USAGE * total / h["n_support"] else -1


@compiled
def _find_neighbours(block: np.ndarray, regressor: int) -> int:
    """Find the landmarks (stored rows) that are most similar to a candidate row, except the one with the index ``regressor``,
    and return their number. Their indices are stored in ``block``, the model's memory, which also has the candidate's kernel
    values.
    """
    v = landmark_views(block)
    h = v.header[0]
    values, count = v.direction[0], 0
    for i in range(1, h["n_support"] + 1):
        if i == regressor:
            continue
        landmark_kernel = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i - 1]))
        k = np.float64(v.kernel_rows[1, i])
        value = k * k / max(landmark_kernel, LEAST_SELF_KERNEL)
        if count < N_NEIGHBOURS:
            rank = count
            count += 1
        elif value > values[N_NEIGHBOURS - 1]:
            rank = N_NEIGHBOURS - 1
        else:
            continue
        while rank > 0 and values[rank - 1] < value:
            values[rank], v.starts[rank] = values[rank - 1], v.starts[rank - 1]
            rank -= 1
        values[rank], v.starts[rank] = value, i
    return count


@compiled(inline=True)
def _get_element_position(i: int, j: int, stride: int) -> int:
    """Return the index of element (i, j) of a symmetric matrix whose upper triangle is stored row by row, with room for
    ``stride`` rows.
    """
    return row_start(min(i, j), stride) + max(i, j)


@compiled
def _solve_projection(block: np.ndarray, count: int) -> None:
    """Compute the coefficients of a candidate row's projection on its ``count`` most similar landmarks (stored rows), in feature
    space. They are stored in ``block``, the model's memory, which has the indices of these landmarks and the row's kernel
    values.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    stride, A, x = v.header[0]["stride"], v.small, v.small[N_NEIGHBOURS]
    for a in range(count):
        i = v.starts[a]
        for b in range(a + 1):
            A[a, b] = np.float64(v.prior[_get_element_position(i, v.starts[b], stride)])
        A[a, a] *= 1.0 + _PROJECTION_RIDGE
        x[a] = s["ridge"] * np.float64(v.kernel_rows[1, i])
    for a in range(count):
        for b in range(a + 1):
            total = A[a, b]
            for k in range(b):
                total -= A[a, k] * A[b, k]
            A[a, b] = np.sqrt(max(total, LEAST_SELF_KERNEL)) if a == b else total / A[b, b]
    for a in range(count):
        for k in range(a):
            x[a] -= A[a, k] * x[k]
        x[a] /= A[a, a]
    for a in range(count - 1, -1, -1):
        for k in range(a + 1, count):
            x[a] -= A[k, a] * x[k]
        x[a] /= A[a, a]


@compiled(noinline=True)
def _replace_regressor(block: np.ndarray, regressor: int, own_kernel: float) -> None:
    """Put a candidate row in place of a landmark (stored row) in the normal equations of the least squares model in ``block``,
    which also has the row's kernel values. ``regressor`` is the landmark's index, from 1; ``own_kernel`` is the row's kernel
    value with itself.

    Sums over earlier rows are estimated: their kernel values with the new landmark are those with its projection on neighbours.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h = v.header[0]
    n, stride = h["n_support"] + 1, h["stride"]
    count = _find_neighbours(block, regressor)
    _solve_projection(block, count)
    row, x = v.direction[0], v.small[N_NEIGHBOURS]
    row[:n] = 0.0
    explained = projected_square = 0.0
    for a in range(count):
        q = v.starts[a]
        for i in range(n):
            row[i] += x[a] * v.moments[_get_element_position(i, q, stride)]
        explained += x[a] * np.float64(v.kernel_rows[1, q])
    for a in range(count):
        projected_square += x[a] * row[v.starts[a]]
    row[regressor] = projected_square + s["ridge"] * max(own_kernel * _DIAGONAL_SLACK - explained, own_kernel * _PROJECTION_RIDGE)
    usage = 0.0
    for i in range(n):
        position = _get_element_position(i, regressor, stride)
        v.moments[position] = row[i]
        v.prior[position] = np.float32(s["ridge"]) * v.kernel_rows[1, i]
        usage += v.usage[i]
    v.prior[_get_element_position(0, regressor, stride)] = _ZERO
    v.prior[_get_element_position(regressor, regressor, stride)] = np.float32(s["ridge"] * own_kernel * _DIAGONAL_SLACK)
    v.usage[regressor] = (usage - v.usage[0] - v.usage[regressor]) / (n - 1)
    for k in range(h["n_outputs"]):
        total = 0.0
        for a in range(count):
            total += x[a] * v.products[k, v.starts[a]]
        v.products[k, regressor], v.weights[k, regressor], v.corrections[k, regressor] = total, 0.0, 0.0
    for t in range(CHUNK_ROWS):  # buffered rows, which are not in S yet
        total = 0.0
        for a in range(count):
            total += x[a] * np.float64(v.regressors[t, v.starts[a]])
        v.regressors[t, regressor] = np.float32(total)


# The rule ---------------------------------------------------------------------------------------------------------------------


@compiled
def _compute_scores(block: np.ndarray, n_active: int, norm: float) -> None:
    """Compute the decision values of the current row, two per output: with and without fast corrections (weights that follow
    recent errors). They are stored in ``block``, the model's memory, with the row's kernel values. ``n_active`` is its number of
    non-zero features, ``norm`` its squared norm.
    """
    v = landmark_views(block)
    used = v.header[0]["used"]
    if v.cache[0]["valid"] == 0 or rows_differ(v.rows[0], v.rows[2], used):
        compute_regressors(block, 0, n_active, norm)
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0]["valid"] = 1
    compute_regressor_scores(block, v.kernel_rows[0])


@compiled
def learn_one(block: np.ndarray, target: float, weight: float) -> int:
    """Train a least squares model on its current row; regressors are kernel values with landmarks (stored rows). ``block`` is
    the model's memory with the row in it. Returns the constant `LEARNED`, or `REFUSED` for a row that is not finite or too
    large, which changes nothing.
    """
    v, c = landmark_views(block), get_common_state(block)
    h = v.header[0]
    n_active, norm = scan_row(v.rows[0], h["used"], v.active[0])
    if n_active < 0:
        return REFUSED
    if 0 <= c["gamma_rows"] < GAMMA_ROWS:
        observe_variances(c, v.rows[0], v.means, h["used"])
    c["t"] += 1
    _compute_scores(block, n_active, norm)
    track_errors(c, v.scores, 2 * h["n_outputs"], target)
    update_corrections(block, v.kernel_rows[0], target, weight)
    _add_row(block, norm, target, weight)
    return LEARNED


@compiled
def compute_scores(block: np.ndarray) -> bool:
    """Compute the decision values of the current row of the model in ``block``, and store them there, two per output: with and
    without fast corrections (weights that follow recent errors). Returns False, and computes nothing, if the row is not finite
    or too large.
    """
    v = landmark_views(block)
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active < 0:
        return False
    _compute_scores(block, n_active, norm)
    return True


@compiled
def compute_output(block: np.ndarray, output_kind: int) -> float:
    """Return the least squares model's prediction for the current row: a decision value or a probability, as the constant
    ``output_kind`` requests; with three or more classes, the predicted class index. NaN if the row is not finite or too large.

    The decision values with corrections take the place of the last iterate, those without of the average iterate.
    """
    v = landmark_views(block)
    if not compute_scores(block):
        return np.nan
    return select_output(get_common_state(block), v.scores, 2 * v.header[0]["n_outputs"], output_kind)
