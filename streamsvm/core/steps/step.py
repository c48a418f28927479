"""The parts of a step, compiled: the current row, its decision values, its shortfall, and new support vectors.

Every function takes the block of a model. The current row is in ``rows[0]`` of its views, its decision values in ``scores``: that
of output k by the last iterate at 2k, by the average iterate at 2k + 1, as `iterates` has them.
"""

from __future__ import annotations

from typing import NamedTuple, cast

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

#: Rows from which gamma="scale" is found; it is updated with each of them and stays what it is then.
GAMMA_ROWS = 500
#: Numbers of outputs: none, and the first.
NO_OUTPUT, FIRST_OUTPUT = (cast("int", np.int64(n)) for n in (-1, 0))


class CurrentRow(NamedTuple):
    """The current row, as a step takes it."""

    target: float
    """Its label as -1 or 1, or as the number of its class; or its target."""
    weight: float
    norm: float
    """Its squared norm."""
    self_kernel: float
    """k(x, x). A row where this is 0 adds nothing to any decision, and should not become a support vector."""


@compiled(inline=True)
def begin_row(block: np.ndarray) -> tuple[int, float, bool]:
    """Count the current row as learned; how many of its features are not zero, its squared norm, and whether the scale in use is
    another one with it.

    The first is -1 for a row that is not finite or too large, which is not counted.
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
    n_active, norm = scale_current_row(block)
    if n_active < 0:
        return n_active, norm, False
    get_common_state(block)["t"] += 1
    moved = update_block_scale(block)
    if moved:
        n_active, norm = scale_current_row(block)
    return n_active, norm, moved


@compiled(inline=True)
def observe_variances(c: np.ndarray, row: np.ndarray, means: np.ndarray, used: int) -> None:
    """Let a row count in the variances that gamma="scale" is found from, by Welford's recurrence on ``means`` [used]."""
    c["gamma_rows"] += 1
    n = c["gamma_rows"]
    for j in range(used):
        x = np.float64(row[j])
        before = x - means[j]
        means[j] += before / n
        c["deviation"] += before * (x - means[j])


@compiled(inline=True)
def compute_scale_gamma(c: np.ndarray) -> float:
    """Return gamma="scale", one over the sum of the variances, of the rows that `observe_variances` has seen."""
    return min(c["gamma_rows"] / c["deviation"], LARGEST_GAMMA) if c["deviation"] > 0.0 else 1.0


@compiled(fastmath=FAST)
def compute_dot_products(kernels: np.ndarray, u: np.ndarray, v: np.ndarray, n: int) -> tuple[float, float]:
    """The dot products of the first n kernel values with u and with v."""
    a = b = 0.0
    for i in range(n):
        k = np.float64(kernels[i])
        a += k * u[i]
        b += k * v[i]
    return a, b


@compiled(inline=True)
def rows_differ(a: np.ndarray, b: np.ndarray, n: int) -> bool:
    """Return whether the first n numbers of two rows differ."""
    different = 0  # counted to the end, in SIMD, rather than left early
    for j in range(n):
        different += a[j] != b[j]
    return different > 0


@compiled(inline=True)
def _compare_row(block: np.ndarray, n_active: int, norm: float) -> None:
    v = views(block)
    used = v.header[0]["used"]
    if v.cache[0]["valid"] == 0 or rows_differ(v.rows[0], v.rows[2], used):
        compare_with_vectors(v, 0, n_active, norm, v.kernel_rows[1], v.kernel_rows[0])
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0]["valid"] = 1


@compiled
def compute_last_scores(block: np.ndarray, n_active: int, norm: float) -> None:
    """Compute the decision values of the current row by the last iterate, at half the cost of `compute_scores`."""
    v, scale = views(block), get_common_state(block)["scale"]
    h = v.header[0]
    _compare_row(block, n_active, norm)
    for k in range(0, h["n_outputs"], 2):
        v.scores[k] = (
            scale * compute_dot_products(v.kernel_rows[0], v.coefficients[k], v.coefficients[k], h["n_support"])[0] + v.biases[k]
        )


@compiled(noinline=True)
def compute_scores(block: np.ndarray, n_active: int, norm: float) -> None:
    """Compute the decision values of the current row, by both iterates.

    Its kernel values are reused in the next call with the same row: to predict and then learn a row costs them once.
    """
    v, c = views(block), get_common_state(block)
    h = v.header[0]
    n = h["n_support"]
    _compare_row(block, n_active, norm)
    if h["kernel"] == FOURIER:  # the two rows of coefficients are those of the cosines and of the sines
        a = compute_dot_products(v.kernel_rows[0], v.coefficients[0], v.coefficients[1], n)[0]
        v.scores[0] = v.scores[1] = a + compute_dot_products(v.kernel_rows[1], v.coefficients[0], v.coefficients[1], n)[1]
        return
    for k in range(0, h["n_outputs"], 2):
        a, b = compute_dot_products(v.kernel_rows[0], v.coefficients[k], v.coefficients[k + 1], n)
        v.scores[k] = c["scale"] * a + v.biases[k]
        v.scores[k + 1] = c["average_v"] * b + c["average_u"] * a + v.biases[k + 1]


@compiled
def find_best_output(scores: np.ndarray, iterate: int, live: int, excluded: int) -> int:
    """The output with the largest decision value by an iterate (0: last, 1: average), but for the excluded one."""
    best = -1
    for k in range(iterate, live, 2):
        if k // 2 != excluded and (best < 0 or scores[k] > scores[2 * best + iterate]):
            best = k // 2
    return best


@compiled(inline=True)
def score_row(block: np.ndarray, n_active: int, norm: float, target: float, weight: float) -> CurrentRow:
    """Compute the decision values of the current row, of which `begin_row` gave ``n_active`` and ``norm``, and track errors."""
    v = views(block)
    h = v.header[0]
    if v.cache[0]["valid"] == 0 or v.cache[0]["scored"] == 0:
        compute_scores(block, n_active, norm)
    if v.cache[0]["scored"] == 0:  # nobody asks an expert for errors or probabilities
        track_errors(get_common_state(block), v.scores, h["n_outputs"], target)
    v.cache[0]["scored"] = 0
    return CurrentRow(target, weight, norm, compute_self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm))


@compiled
def compute_violation(block: np.ndarray, target: float) -> tuple[int, int, float]:
    """By how much the last iterate misses the margin at the current row.

    With three and more classes the loss is that of Crammer and Singer (2001): the row's class against the best of the others.
    Returns the output that must rise, the one that must fall (-1: none), and the shortfall: 0 where the loss is 0, and negative
    where the only output must fall.
    """
    v = views(block)
    live = v.header[0]["n_outputs"]
    if live == 2:
        return 0, -1, compute_shortfall(get_common_state(block), v.scores[0], target)
    label = int(target)
    rival = find_best_output(v.scores, LAST_ITERATE, live, label)
    return label, rival, max(1.0 - (v.scores[2 * label] - v.scores[2 * rival]), 0.0)


@compiled(inline=True)
def track_errors(c: np.ndarray, scores: np.ndarray, live: int, target: float) -> None:
    """Update the recent error and the calibration of both iterates, which predictions and probabilities follow.

    ``scores`` are the decision values of a row, of which ``n_outputs`` are in use: two for each output.
    """
    rate = compute_smoothing_rate(c)
    for iterate in range(2):
        if live == 2:
            track_iterate(c, iterate, scores[iterate], target, rate)
        else:
            error = 1.0 if find_best_output(scores, iterate, live, NO_OUTPUT) != int(target) else 0.0
            if (c["t"] + iterate) % 2 == 0:  # in turn, as exponentials of all classes are a third of a row's time
                fit_softmax_slope(c, scores, 2 * int(target) + iterate, iterate, live, rate)
            c["error"][iterate] += rate * (error - c["error"][iterate])


@compiled(noinline=True)
def add_support_vector(block: np.ndarray, row: CurrentRow, coefficient: float, rising: int = 0, falling: int = -1) -> None:
    """Make the current row a support vector, and bring the store back to its budget. O(B d).

    ``coefficient`` is that of the output that rises; the output that falls (-1: none) has its negative.
    """
    v = views(block)
    h = v.header[0]
    if h["n_support"] > h["budget"]:  # a strategy has failed in this row: there is no slot left
        return
    add_to_coefficient(block, append_vector(block, v.rows[0], row.norm, row.weight), coefficient, rising, falling)
    if h["n_support"] > h["budget"]:
        get_common_state(block)["n_merges"] += maintain_budget(block, draw_bits(block))


@compiled
def draw_bits(block: np.ndarray) -> np.uint64:
    """The next of the learner's random numbers, of 64 bits."""
    c = get_common_state(block)
    c["random"] += GOLDEN_GAMMA
    return next_random(c["random"])


@compiled(inline=True)
def draw_slot(block: np.ndarray) -> int:
    """Draw a support vector; its slot."""
    return np.int64(draw_bits(block) % np.uint64(views(block).header[0]["n_support"]))  # type: ignore[return-value]


@compiled
def add_to_coefficient(block: np.ndarray, slot: int, step: float, rising: int = 0, falling: int = -1) -> None:
    """Add ``step`` to a support vector's coefficient of the output that rises, and take it from the one that falls (-1: none)."""
    v, c = views(block), get_common_state(block)
    add_to_iterates(c, v.coefficients[2 * rising], v.coefficients[2 * rising + 1], slot, step)
    if falling >= 0:
        add_to_iterates(c, v.coefficients[2 * falling], v.coefficients[2 * falling + 1], slot, -step)


@compiled(inline=True)
def end_row(block: np.ndarray) -> None:
    """Average the iterates, and keep their lazy scale factors in range."""
    v = views(block)
    h = v.header[0]
    finish_step(get_common_state(block), v.coefficients, v.biases, h["n_outputs"], h["n_support"])
