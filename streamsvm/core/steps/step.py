"""Compiled parts of one learning step of a kernel model: decision values, errors, margin violation, new support vectors.

Every function takes the block of a model (`streamsvm.core.memory.support_vectors`). The current row is ``views(block).rows[0]``,
and ``scores`` has its decision values: of output k by the last iterate at 2k, by the average iterate at 2k + 1 (see `iterates`).
"""

from __future__ import annotations

from typing import Any, NamedTuple, cast

import numpy as np

from streamsvm.core.budget.strategy import maintain_budget
from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, FOURIER, LARGEST_GAMMA, compare_with_vectors, compute_self_kernel
from streamsvm.core.memory.slots import GOLDEN_GAMMA, append_vector, next_random, scan_row
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import (
    LAST_ITERATE,
    add_to_iterates,
    compute_shortfall,
    compute_smoothing_rate,
    finish_step,
    fit_softmax_slope,
    get_common_state,
    track_iterate,
)
from streamsvm.core.steps.rescale import scale_current_row, update_block_scale

#: Number of first rows from which gamma="scale" is estimated. Each of them updates gamma; later rows do not.
GAMMA_ROWS = 500
#: Output indices: no output, and the first one.
NO_OUTPUT, FIRST_OUTPUT = (cast("int", np.int64(n)) for n in (-1, 0))


class CurrentRow(NamedTuple):
    """The target, weight, squared norm and self-kernel of the current row."""

    target: float
    """The label as -1 or 1, the class index (three or more classes), or the regression target."""
    weight: float
    norm: float
    """Squared norm."""
    self_kernel: float
    """k(x, x). If it is 0, the row contributes to no decision value, and should not become a support vector."""


@compiled(inline=True)
def begin_row(block: np.ndarray) -> tuple[int, float, bool]:
    """Prepare to learn the current row of the model in ``block``: count it, update gamma, and standardise it if the model does
    so. Returns a tuple: number of non-zero features (-1 if the row is not finite or too large; then nothing changes), squared
    norm, and True if rows are standardised differently from now on.
    """
    v, c = views(block), get_common_state(block)
    if v.header[0]["scaled"] > 0:
        return _begin_scaled_row(block)
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active >= 0:
        if 0 <= c["gamma_rows"] < GAMMA_ROWS:
            observe_variances(c, v.rows[0], v.means, v.header[0]["used"])
            v.header[0]["gamma"] = compute_scale_gamma(c)
            v.cache[0]["valid"] = 0
        c["t"] += 1
    return n_active, norm, False


@compiled(noinline=True)
def _begin_scaled_row(block: np.ndarray) -> tuple[int, float, bool]:
    """Prepare to learn the current row of a model that standardises rows: count it, and update the means and deviations of
    features. Returns a tuple: number of non-zero features (-1 if the row is not finite or too large), squared norm, and True if
    rows are standardised differently from now on.
    """
    n_active, norm = scale_current_row(block)
    if n_active < 0:
        return n_active, norm, False
    get_common_state(block)["t"] += 1
    has_new_scale = update_block_scale(block)
    if has_new_scale:
        n_active, norm = scale_current_row(block)
    return n_active, norm, has_new_scale


@compiled(inline=True)
def observe_variances(common: Any, row: np.ndarray, means: np.ndarray, used: int) -> None:
    """Update the sum of the features' variances, for gamma="scale", with the first ``used`` values of ``row``. ``common``, the
    record of the model's training state, contains the sum; ``means`` [used] are the features' running means.
    """
    common["gamma_rows"] += 1
    n = common["gamma_rows"]
    for j in range(used):
        x = np.float64(row[j])
        deviation = x - means[j]
        means[j] += deviation / n
        common["deviation"] += deviation * (x - means[j])


@compiled(inline=True)
def compute_scale_gamma(common: Any) -> float:
    """Return the kernel width for gamma="scale": one over the sum of the features' variances, or 1 if all are constant.
    ``common``, the record of the model's training state, contains the sum, which `observe_variances` updates.
    """
    return min(common["gamma_rows"] / common["deviation"], LARGEST_GAMMA) if common["deviation"] > 0.0 else 1.0


@compiled(fastmath=FAST)
def compute_dot_products(kernels: np.ndarray, u: np.ndarray, v: np.ndarray, n: int) -> tuple[float, float]:
    """Return two dot products, summed in float64: of the first n values of ``kernels`` with ``u``, and with ``v``."""
    a = b = 0.0
    for i in range(n):
        k = np.float64(kernels[i])
        a += k * u[i]
        b += k * v[i]
    return a, b


@compiled(inline=True)
def rows_differ(a: np.ndarray, b: np.ndarray, n: int) -> bool:
    """Return whether arrays ``a`` and ``b`` differ in any of their first n values."""
    n_different = 0  # a SIMD loop over all values is faster than an early exit
    for j in range(n):
        n_different += a[j] != b[j]
    return n_different > 0


@compiled(inline=True)
def _compare_row(block: np.ndarray, n_active: int, norm: float) -> None:
    """Compute the kernel values of the current row with all support vectors, and store them in the model's memory ``block``,
    unless they are already there. ``n_active`` is the row's number of non-zero features, ``norm`` its squared norm.
    """
    v = views(block)
    used = v.header[0]["used"]
    if v.cache[0]["valid"] == 0 or rows_differ(v.rows[0], v.rows[2], used):
        compare_with_vectors(v, 0, n_active, norm, v.kernel_rows[1], v.kernel_rows[0])
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0]["valid"] = 1


@compiled
def compute_last_scores(block: np.ndarray, n_active: int, norm: float) -> None:
    """Compute the decision values of the current row by the model's last iterate, but not by its average iterate, which halves
    the time. They are stored in the model's memory ``block``. ``n_active`` is the row's number of non-zero features, ``norm``
    its squared norm.
    """
    v, scale = views(block), get_common_state(block)["scale"]
    h = v.header[0]
    _compare_row(block, n_active, norm)
    for k in range(0, h["n_outputs"], 2):
        v.scores[k] = (
            scale * compute_dot_products(v.kernel_rows[0], v.coefficients[k], v.coefficients[k], h["n_support"])[0] + v.biases[k]
        )


@compiled(noinline=True)
def compute_scores(block: np.ndarray, n_active: int, norm: float) -> None:
    """Compute the decision values of the current row, for each output by the model's last and by its average iterate. They are
    stored in the model's memory ``block``. ``n_active`` is the row's number of non-zero features, ``norm`` its squared norm.

    Kernel values are cached: to predict a row and then learn it computes them once.
    """
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    n = h["n_support"]
    _compare_row(block, n_active, norm)
    if h["kernel"] == FOURIER:  # coefficient rows 0 and 1 belong to the cosines and the sines
        a = compute_dot_products(v.kernel_rows[0], v.coefficients[0], v.coefficients[1], n)[0]
        v.scores[0] = v.scores[1] = a + compute_dot_products(v.kernel_rows[1], v.coefficients[0], v.coefficients[1], n)[1]
        return
    for k in range(0, h["n_outputs"], 2):
        a, b = compute_dot_products(v.kernel_rows[0], v.coefficients[k], v.coefficients[k + 1], n)
        v.scores[k] = c["scale"] * a + v.biases[k]
        v.scores[k + 1] = c["average_v"] * b + c["average_u"] * a + v.biases[k + 1]


@compiled
def find_best_output(scores: np.ndarray, iterate: int, n_scores: int, excluded: int) -> int:
    """Return the index of the output with the largest decision value, except output ``excluded`` (-1: no exception). ``scores``
    alternates values of the last and the average iterate: ``iterate`` (0 or 1) selects which, ``n_scores`` is the number of
    both.
    """
    best = -1
    for k in range(iterate, n_scores, 2):
        if k // 2 != excluded and (best < 0 or scores[k] > scores[2 * best + iterate]):
            best = k // 2
    return best


@compiled(inline=True)
def score_row(block: np.ndarray, n_active: int, norm: float, target: float, weight: float) -> CurrentRow:
    """Compute the decision values of the current row of the model in ``block``, update the model's recent errors with them, and
    return the row's target, weight, squared norm and self-kernel as a `CurrentRow`.

    ``n_active`` and ``norm`` are the number of non-zero features and the squared norm, from `begin_row`.
    """
    v = views(block)
    h = v.header[0]
    if v.cache[0]["valid"] == 0 or v.cache[0]["scored"] == 0:
        compute_scores(block, n_active, norm)
    if v.cache[0]["scored"] == 0:  # experts of an ensemble need no errors or probabilities of their own
        track_errors(get_common_state(block), v.scores, h["n_outputs"], target)
    v.cache[0]["scored"] = 0
    return CurrentRow(target, weight, norm, compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm))


@compiled
def compute_violation(block: np.ndarray, target: float) -> tuple[int, int, float]:
    """Return how a learning step must change the outputs for the current row, as a tuple: output to raise, output to lower (-1
    if only one changes), and margin violation by the last iterate (0 if the loss is 0, negative if a single output must fall).
    ``target`` is -1 or 1, a regression target, or a class index. ``block`` is the model's memory.
    """
    v = views(block)
    n_scores = v.header[0]["n_outputs"]
    if n_scores == 2:
        return 0, -1, compute_shortfall(get_common_state(block), v.scores[0], target)
    label = int(target)
    rival = find_best_output(v.scores, LAST_ITERATE, n_scores, label)
    return label, rival, max(1.0 - (v.scores[2 * label] - v.scores[2 * rival]), 0.0)


@compiled(inline=True)
def track_errors(common: Any, scores: np.ndarray, n_scores: int, target: float) -> None:
    """Update the recent errors and the probability calibration of a model with a row's decision values ``scores`` (``n_scores``
    in total, alternately of the last and the average iterate) and its ``target``. ``common`` is the record of the model's
    training state.
    """
    rate = compute_smoothing_rate(common)
    for iterate in range(2):
        if n_scores == 2:
            track_iterate(common, iterate, scores[iterate], target, rate)
        else:
            error = 1.0 if find_best_output(scores, iterate, n_scores, NO_OUTPUT) != int(target) else 0.0
            # The iterates alternate, because the exponentials of all classes are a third of the time of a row.
            if (common["t"] + iterate) % 2 == 0:
                fit_softmax_slope(common, scores, 2 * int(target) + iterate, iterate, n_scores, rate)
            common["error"][iterate] += rate * (error - common["error"][iterate])


@compiled(noinline=True)
def add_support_vector(block: np.ndarray, row: CurrentRow, coefficient: float, rising: int = 0, falling: int = -1) -> None:
    """Make the current row a support vector of the model in ``block``; if the model then exceeds its budget of B vectors, merge
    or remove one. ``coefficient`` is added for output ``rising``, and subtracted for output ``falling`` (-1: none). O(B d).
    """
    v = views(block)
    h = v.header[0]
    if h["n_support"] > h["budget"]:  # budget maintenance has failed for this row, so that no slot is free
        return
    add_to_coefficient(block, append_vector(block, v.rows[0], row.norm, row.weight), coefficient, rising, falling)
    if h["n_support"] > h["budget"]:
        get_common_state(block)["n_merges"] += maintain_budget(block, draw_bits(block))


@compiled
def draw_bits(block: np.ndarray) -> np.uint64:
    """Return 64 pseudo-random bits from the generator of the model in ``block``, whose state advances."""
    c = get_common_state(block)
    c["random"] += GOLDEN_GAMMA
    return next_random(c["random"])


@compiled(inline=True)
def draw_slot(block: np.ndarray) -> int:
    """Return the index of a random support vector of the model in ``block``."""
    return np.int64(draw_bits(block) % np.uint64(views(block).header[0]["n_support"]))  # type: ignore[return-value]


@compiled
def add_to_coefficient(block: np.ndarray, slot: int, step: float, rising: int = 0, falling: int = -1) -> None:
    """Add ``step`` to the coefficient of the support vector at index ``slot`` for output ``rising``, and subtract it for output
    ``falling`` (-1: none). ``block`` is the model's memory.
    """
    v, c = views(block), get_common_state(block)
    add_to_iterates(c, v.coefficients[2 * rising], v.coefficients[2 * rising + 1], slot, step)
    if falling >= 0:
        add_to_iterates(c, v.coefficients[2 * falling], v.coefficients[2 * falling + 1], slot, -step)


@compiled(inline=True)
def end_row(block: np.ndarray) -> None:
    """Finish learning a row: update the average iterate of the model in ``block``. If its lazily applied scale factors have
    become small, they are multiplied into the coefficients.
    """
    v = views(block)
    h = v.header[0]
    finish_step(get_common_state(block), v.coefficients, v.biases, h["n_outputs"], h["n_support"])
