"""The rule of kernel recursive least squares, compiled: how landmarks are chosen and swapped, and when the equations take rows.

The first rows are held in a window, and become landmarks where no landmark is near. At growing intervals all is computed anew
from the window (a refit), as new landmarks need sums over earlier rows and gamma="scale" has moved. Later rows are gathered, and
now and then rows that were predicted badly and that no landmark is near take the places of landmarks that no rows come near.
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

_GROWTH = 0.25  # rows until the next refit, over those so far; and until the next factor
_LARGEST_AGE = 1024  # rows until the next factor, at most
_START_NOVELTY = 0.1  # 1 - the largest squared cosine with a landmark, of a row that becomes one at the start
_NOVELTY = 0.3  # the same later
_PERIOD = 256  # rows between swaps
_UNUSED = 0.5  # a landmark is swapped where its usage is at most this, over the mean usage
_CENTRE_PRIOR = np.float32(1.0)  # of the intercept
_SLACK = 1.0 + 1e-5  # on the diagonal of the prior
_RIDGE = 1e-4  # of a projection
_ZERO = np.float32(0.0)


@compiled
def _take_row(block: np.ndarray, norm: float, target: float, weight: float) -> None:
    """Let the normal equations take the current row, whose regressors are in ``kernel_rows[0]``.

    ``scores`` are its decision values, ``norm`` is its squared norm.
    """
    v, s = landmark_views(block), get_rule_state(block, STATE)
    if not s["started"]:
        _hold_row(block, norm, target, weight)
        if s["held"] >= s["next_refit"]:
            _refit(block)
        return
    _watch_candidate(block, norm, target, weight)
    buffer_row(block, s["gathered"], v.kernel_rows[0], target, weight)
    s["gathered"] = (s["gathered"] + 1) % CHUNK_ROWS
    s["age"] = min(s["age"] + 1, _LARGEST_AGE)
    if s["gathered"] == 0:
        swapped = s["period"] >= _PERIOD and _swap_landmarks(block)
        add_buffered_rows(block, CHUNK_ROWS)
        if swapped or s["age"] >= min(_GROWTH * get_common_state(block)["t"], _LARGEST_AGE):
            compute_factor(block)
        step_weights(block)


# The first rows ---------------------------------------------------------------------------------------------------------------


@compiled
def _hold_row(block: np.ndarray, norm: float, target: float, weight: float) -> None:
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h, place = v.header[0], s["held"]
    for j in range(h["used"]):
        v.window[place, j] = v.rows[0, j]
    v.window_targets[place], v.window_weights[place] = target, weight
    s["held"] = place + 1
    own = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    if h["n_support"] == h["budget"] or own < LEAST_SELF_KERNEL:
        return
    if _novelty_of_row(block, v.kernel_rows[0], own) > _START_NOVELTY:
        _put_landmark(block, v.rows[0], h["n_support"], norm)
        h["n_support"] += 1


@compiled
def _put_landmark(block: np.ndarray, row: np.ndarray, slot: int, norm: float) -> None:
    v = landmark_views(block)
    h = v.header[0]
    for j in range(h["used"]):
        v.vectors[j, slot] = row[j]
    v.norms[slot] = np.float32(norm)
    h["largest_norm"] = max(h["largest_norm"], norm)
    v.cache[0]["valid"] = 0


@compiled
def _novelty_of_row(block: np.ndarray, regressors: np.ndarray, own: float) -> float:
    # 1 - the largest squared cosine of a row, whose self-kernel is `own`, with a landmark.
    v = landmark_views(block)
    h = v.header[0]
    if h["kernel"] == RBF:
        bits, most = regressors.view(np.int32), np.int32(0)  # of numbers above 0 they are in order, and compared by SIMD code
        for i in range(1, h["n_support"] + 1):
            most = max(most, bits[i])
        nearest = np.float64(np.int32(most).view(np.float32))
        return 1.0 - nearest * nearest
    largest = 0.0
    for i in range(h["n_support"]):
        k = np.float64(regressors[i + 1])
        other = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i]))
        if other >= LEAST_SELF_KERNEL:
            largest = max(largest, k / own * (k / other))
    return 1.0 - largest


@compiled
def _refit(block: np.ndarray) -> None:
    # Compute all anew from the rows that are held; once the window is full, for the last time.
    v, s, c = landmark_views(block), get_rule_state(block, STATE), get_common_state(block)
    h = v.header[0]
    if c["gamma_rows"] >= 0:
        h["gamma"] = compute_scale_gamma(c)
    v.cache[0]["valid"] = 0
    for j in range(h["n_support"] + 1):
        _compute_prior(block, j)
    held = s["held"]
    for begin in range(0, held, CHUNK_ROWS):
        count = min(CHUNK_ROWS, held - begin)
        for t in range(count):
            place = begin + t
            for j in range(h["used"]):
                v.rows[1, j] = v.window[place, j]
            n_active, norm = scan_row(v.rows[1], h["used"], v.active[1])
            compute_regressors(block, 1, n_active, norm)
            buffer_row(block, t, v.kernel_rows[1], v.window_targets[place], v.window_weights[place])
        add_buffered_rows(block, count)
    compute_factor(block)
    step_weights(block)
    s["next_refit"], s["started"] = min(held + max(int(_GROWTH * held), 1), h["window"]), 1 if held == h["window"] else 0


@compiled
def _compute_prior(block: np.ndarray, j: int) -> None:
    # Let regressor j have the prior alone.
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
        own = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
        v.prior[start + j] = np.float32(s["ridge"] * own * _SLACK)
    for i in range(j, n):
        v.moments[start + i] = np.float64(v.prior[start + i])
    for k in range(h["n_outputs"]):
        v.products[k, j] = 0.0
    v.usage[j] = 0.0


# Later rows -------------------------------------------------------------------------------------------------------------------


@compiled
def _watch_candidate(block: np.ndarray, norm: float, target: float, weight: float) -> None:
    # Whether the current row is a candidate for a landmark: the best of a period are.
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h = v.header[0]
    s["period"] = min(s["period"] + 1, _PERIOD)
    own = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    if s["max_swaps"] == 0 or own < LEAST_SELF_KERNEL:
        return
    novelty = _novelty_of_row(block, v.kernel_rows[0], own)
    if novelty <= _NOVELTY:
        return
    square = 0.0
    for k in range(h["n_outputs"]):
        square += (compute_output_target(target, k, h["n_outputs"]) - v.scores[2 * k + 1]) ** 2
    promise, worst = min(square * novelty * weight, 1e90), 0
    for c in range(1, s["max_swaps"]):
        if v.candidates[c] < v.candidates[worst]:
            worst = c
    if promise > v.candidates[worst]:
        v.candidates[worst] = promise
        for j in range(h["used"]):
            v.window[worst, j] = v.rows[0, j]


@compiled
def _swap_landmarks(block: np.ndarray) -> bool:
    # Whether a candidate of the period has become a landmark.
    v, s = landmark_views(block), get_rule_state(block, STATE)
    before = s["n_swaps"]
    for candidate in range(s["max_swaps"]):
        if v.candidates[candidate] > 0.0:
            _swap_landmark(block, candidate)
            v.candidates[candidate] = 0.0
    s["period"] = 0
    return s["n_swaps"] != before


@compiled
def _swap_landmark(block: np.ndarray, candidate: int) -> None:
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h = v.header[0]
    row = v.rows[1]
    for j in range(h["used"]):
        row[j] = v.window[candidate, j]
    n_active, norm = scan_row(row, h["used"], v.active[1])
    compute_regressors(block, 1, n_active, norm)
    own = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)
    if _novelty_of_row(block, v.kernel_rows[1], own) <= _NOVELTY:
        return  # another candidate that was near has become a landmark
    if h["n_support"] < h["budget"]:
        place = h["n_support"] + 1
        h["n_support"] = place
        v.kernel_rows[1, place] = _ZERO
    else:
        place = _least_used(block)
        if place < 0:
            return
    _project_row(block, place, own)
    _put_landmark(block, row, place - 1, norm)
    s["n_swaps"] = min(s["n_swaps"] + 1, 2**31 - 1)


@compiled
def _least_used(block: np.ndarray) -> int:
    # The landmark that rows come near to least, or -1 where they do come near.
    v = landmark_views(block)
    h = v.header[0]
    least, place, total = np.inf, 1, 0.0
    for i in range(1, h["n_support"] + 1):
        own = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i - 1]))
        usage = v.usage[i] / max(own, LEAST_SELF_KERNEL)
        total += usage
        if usage < least:
            least, place = usage, i
    return place if least <= _UNUSED * total / h["n_support"] else -1


@compiled
def _find_neighbours(block: np.ndarray, place: int) -> int:
    # The regressors but `place` whose kernel values with ``kernel_rows[1]`` are largest, into ``starts``; how many.
    v = landmark_views(block)
    h = v.header[0]
    values, count = v.direction[0], 0
    for i in range(1, h["n_support"] + 1):
        if i == place:
            continue
        other = compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], np.float64(v.norms[i - 1]))
        k = np.float64(v.kernel_rows[1, i])
        value = k * k / max(other, LEAST_SELF_KERNEL)
        if count < N_NEIGHBOURS:
            at = count
            count += 1
        elif value > values[N_NEIGHBOURS - 1]:
            at = N_NEIGHBOURS - 1
        else:
            continue
        while at > 0 and values[at - 1] < value:
            values[at], v.starts[at] = values[at - 1], v.starts[at - 1]
            at -= 1
        values[at], v.starts[at] = value, i
    return count


@compiled(inline=True)
def _element_place(i: int, j: int, stride: int) -> int:
    # The place of element (i, j) of a symmetric matrix.
    return row_start(min(i, j), stride) + max(i, j)


@compiled
def _solve_projection(block: np.ndarray, count: int) -> None:
    # The coefficients of the neighbours in ``starts`` whose sum is nearest to ``kernel_rows[1]``, into the last row of ``small``.
    v, s = landmark_views(block), get_rule_state(block, STATE)
    stride, A, x = v.header[0]["stride"], v.small, v.small[N_NEIGHBOURS]
    for a in range(count):
        i = v.starts[a]
        for b in range(a + 1):
            A[a, b] = np.float64(v.prior[_element_place(i, v.starts[b], stride)])
        A[a, a] *= 1.0 + _RIDGE
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
def _project_row(block: np.ndarray, place: int, own: float) -> None:
    # Regressor `place` becomes that of ``kernel_rows[1]``: for rows so far, its values are those of its projection on neighbours.
    v, s = landmark_views(block), get_rule_state(block, STATE)
    h = v.header[0]
    n, stride = h["n_support"] + 1, h["stride"]
    count = _find_neighbours(block, place)
    _solve_projection(block, count)
    row, x = v.direction[0], v.small[N_NEIGHBOURS]
    row[:n] = 0.0
    explained = square = 0.0
    for a in range(count):
        q = v.starts[a]
        for i in range(n):
            row[i] += x[a] * v.moments[_element_place(i, q, stride)]
        explained += x[a] * np.float64(v.kernel_rows[1, q])
    for a in range(count):
        square += x[a] * row[v.starts[a]]
    row[place] = square + s["ridge"] * max(own * _SLACK - explained, own * _RIDGE)
    usage = 0.0
    for i in range(n):
        at = _element_place(i, place, stride)
        v.moments[at] = row[i]
        v.prior[at] = np.float32(s["ridge"]) * v.kernel_rows[1, i]
        usage += v.usage[i]
    v.prior[_element_place(0, place, stride)] = _ZERO
    v.prior[_element_place(place, place, stride)] = np.float32(s["ridge"] * own * _SLACK)
    v.usage[place] = (usage - v.usage[0] - v.usage[place]) / (n - 1)
    for k in range(h["n_outputs"]):
        total = 0.0
        for a in range(count):
            total += x[a] * v.products[k, v.starts[a]]
        v.products[k, place], v.weights[k, place], v.corrections[k, place] = total, 0.0, 0.0
    for t in range(CHUNK_ROWS):  # the rows that S has not taken
        total = 0.0
        for a in range(count):
            total += x[a] * np.float64(v.regressors[t, v.starts[a]])
        v.regressors[t, place] = np.float32(total)


# The rule ---------------------------------------------------------------------------------------------------------------------


@compiled
def _compute_scores(block: np.ndarray, n_active: int, norm: float) -> None:
    # The regressors of a row that was predicted are those that it is learned with.
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
    """Learn the current row, which is in ``rows[0]``; `LEARNED`, or `REFUSED` where it is not finite or too large."""
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
    _take_row(block, norm, target, weight)
    return LEARNED


@compiled
def compute_scores(block: np.ndarray) -> bool:
    """Compute the decision values of the current row, two for each output; False for a row that is not finite or too large."""
    v = landmark_views(block)
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active < 0:
        return False
    _compute_scores(block, n_active, norm)
    return True


@compiled
def compute_output(block: np.ndarray, what: int) -> float:
    """Return the output ``what`` for the current row, as `streamsvm.core.steps.decisions.compute_output` does.

    The last iterate is that with corrections, the average that without.
    """
    v = landmark_views(block)
    return (
        select_output(get_common_state(block), v.scores, 2 * v.header[0]["n_outputs"], what) if compute_scores(block) else np.nan
    )
