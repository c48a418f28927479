"""Online learning, compiled: what the rules share, the parts of a step and the decisions.

A rule is a module with three things: ``STATE``, the dtype of its own numbers; ``learn_one(block, upkeep, target, weight)``, a
step with the row at hand, which returns `LEARNED`, `REFUSED` (the row is not finite or too large; nothing has changed) or `FULL`
(there is no room for a support vector; what has changed is for the caller to undo); and ``learn_many(block, upkeep, X, columns,
targets, weights)``, the loop over it, which stops where the store is full and returns how many rows it has learned.

The two rows of coefficients that each output has in the store are those of `compiled.iterates`.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from streamsvm.budget.dispatch import maintain
from streamsvm.kernels import FAST, FOURIER, LARGEST_GAMMA, LARGEST_NORM, self_kernel
from streamsvm.learners.compiled.iterates import (
    PROBABILITY,
    close_step,
    common,
    error_rate,
    layer_of,
    raise_pair,
    shortfall,
    watch_output,
)
from streamsvm.learners.compiled.probability import fit_softmax, probabilities, probability
from streamsvm.memory.slots import append, fill_kernel_row, next_random, scan_row
from streamsvm.memory.support_vectors import views

__all__ = [
    "FULL",
    "GAMMA_ROWS",
    "LEARNED",
    "REFUSED",
    "add_support_vector",
    "begin",
    "decide",
    "decide_many",
    "dots",
    "draw",
    "end",
    "fill",
    "first_refused",
    "largest",
    "margins",
    "observe",
    "raise_coefficient",
    "violation",
    "watch",
]

#: What becomes of a row.
LEARNED, REFUSED, FULL = 0, 1, 2

#: Rows from which gamma="scale" is found; it is updated with each of them and stays what it is then.
GAMMA_ROWS = 500

_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


# Parts of a step ------------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def begin(block: np.ndarray) -> tuple[int, float]:
    """Look at the row at hand; its non-zero features and its squared norm, or -1 where it is not finite or too large."""
    v, c = views(block), common(block)
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active >= 0:
        if 0 <= c["gamma_rows"] < GAMMA_ROWS:
            _watch_gamma(block)
        c["t"] += 1
    return n_active, norm


@njit(cache=True, error_model="numpy")
def _watch_gamma(block: np.ndarray) -> None:
    # gamma = 1 / (sum of the features' variances), by Welford's recurrence over the first rows.
    v, c = views(block), common(block)
    h = v.header[0]
    c["gamma_rows"] += 1
    n = c["gamma_rows"]
    for j in range(h["used"]):
        x = np.float64(v.rows[0, j])
        before = x - v.means[j]
        v.means[j] += before / n
        c["deviation"] += before * (x - v.means[j])
    h["gamma"] = min(n / c["deviation"], LARGEST_GAMMA) if c["deviation"] > 0.0 else 1.0
    v.cache[0] = 0


@njit(cache=True, fastmath=FAST, error_model="numpy")
def dots(kernels: np.ndarray, u: np.ndarray, v: np.ndarray, n: int) -> tuple[float, float]:
    """Sums of kernels * u and of kernels * v, over the first n of each."""
    a = b = 0.0
    for i in range(n):
        k = np.float64(kernels[i])
        a += k * u[i]
        b += k * v[i]
    return a, b


@njit(cache=True, error_model="numpy")
def _differ(a: np.ndarray, b: np.ndarray, n: int) -> bool:
    different = 0  # counted to the end, in SIMD, rather than left early
    for j in range(n):
        different += a[j] != b[j]
    return different > 0


@njit(cache=True, error_model="numpy")
def margins(block: np.ndarray, n_active: int, norm: float) -> None:
    """Decision values of the row at hand, into ``scores``: of output k's last iterate at 2k, of its average at 2k + 1.

    The row's kernel values stay for the next call with the same row: who predicts and then learns a row pays for them once.
    """
    v, c = views(block), common(block)
    h = v.header[0]
    used, n = h["used"], h["n_support"]
    if v.cache[0] == 0 or _differ(v.rows[0], v.rows[2], used):
        fill_kernel_row(block, 0, n_active, norm)
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0] = 1
    if h["kernel"] == FOURIER:  # its two rows of coefficients are of the cosines and of the sines
        a = dots(v.kernel_rows[0], v.coefficients[0], v.coefficients[1], n)[0]
        v.scores[0] = v.scores[1] = a + dots(v.kernel_rows[1], v.coefficients[0], v.coefficients[1], n)[1]
        return
    for k in range(0, h["live"], 2):
        a, b = dots(v.kernel_rows[0], v.coefficients[k], v.coefficients[k + 1], n)
        v.scores[k] = c["scale"] * a + v.biases[k]
        v.scores[k + 1] = c["average_v"] * b + c["average_u"] * a + v.biases[k + 1]


@njit(cache=True, error_model="numpy")
def largest(scores: np.ndarray, start: int, live: int, but: int) -> int:
    """The output with the largest of every other score from ``start`` on; ``but`` is left out."""
    best = -1
    for k in range(start, live, 2):
        if k // 2 != but and (best < 0 or scores[k] > scores[2 * best + start]):
            best = k // 2
    return best


@njit(cache=True, error_model="numpy")
def observe(block: np.ndarray, target: float) -> tuple[float, float]:
    """Begin a step: decision values of the row at hand into ``scores``, and what they tell of recent errors.

    Returns
    -------
    The row's squared norm and its kernel value with itself; -1 and 0 where it is not finite or too large. A row whose kernel
    value with itself is 0 adds nothing to any decision, and should not become a support vector.
    """
    n_active, norm = begin(block)
    if n_active < 0:
        return -1.0, 0.0
    margins(block, n_active, norm)
    watch(block, target)
    h = views(block).header[0]
    return norm, self_kernel(h["kernel"], h["gamma"], h["coef0"], h["degree"], norm)


@njit(cache=True, error_model="numpy")
def violation(block: np.ndarray, target: float) -> tuple[int, int, float]:
    """What the loss asks of the last iterate at the row at hand: the output that must rise, the one that must fall (-1: none),
    and by how much they miss the margin. Negative where the first must fall; 0 where nothing is asked.

    With three and more classes the loss is that of Crammer and Singer (2001): the row's class against the best of the others.
    """
    v = views(block)
    live = v.header[0]["live"]
    if live == 2:
        return 0, -1, shortfall(common(block), v.scores[0], target)
    own = int(target)
    rival = largest(v.scores, 0, live, own)
    return own, rival, max(1.0 - (v.scores[2 * own] - v.scores[2 * rival]), 0.0)


@njit(cache=True, error_model="numpy")
def watch(block: np.ndarray, target: float) -> None:
    """Compare the target with the scores of both layers: what predictions and probabilities follow."""
    v, c = views(block), common(block)
    rate, live = error_rate(c), v.header[0]["live"]
    for layer in range(2):
        if live == 2:
            watch_output(c, layer, v.scores[layer], target, rate)
        else:
            error = 1.0 if largest(v.scores, layer, live, -1) != int(target) else 0.0
            if (c["t"] + layer) % 2 == 0:  # in turn, as exponentials of all classes are a third of a row's time
                fit_softmax(c, v.scores, 2 * int(target) + layer, layer, live, rate)
            c["error"][layer] += rate * (error - c["error"][layer])


@njit(cache=True, error_model="numpy")
def add_support_vector(
    block: np.ndarray, upkeep: np.ndarray, norm: float, weight: float, rising: int, falling: int, coefficient: float
) -> int:
    """Make the row at hand, of this weight, a support vector, with this coefficient for the output that rises and its negative
    for the one that falls (-1: none), and bring the store back to its budget. `LEARNED`, or `FULL` where that fails. O(B d).
    """
    v = views(block)
    h = v.header[0]
    raise_coefficient(block, append(block, v.rows[0], norm, weight), rising, falling, coefficient)
    if h["n_support"] > h["budget"]:
        common(block)["n_merges"] += maintain(block, upkeep, draw(block))
    return FULL if h["n_support"] > h["budget"] else LEARNED


@njit(cache=True, error_model="numpy")
def draw(block: np.ndarray) -> np.uint64:
    """The next of the learner's random numbers, of 64 bits."""
    c = common(block)
    c["random"] += _GOLDEN_GAMMA
    return next_random(c["random"])


@njit(cache=True, error_model="numpy")
def raise_coefficient(block: np.ndarray, slot: int, rising: int, falling: int, step: float) -> None:
    """Add ``step`` to a support vector's coefficient of the output that rises, and take it from the one that falls (-1: none)."""
    v, c = views(block), common(block)
    raise_pair(c, v.coefficients[2 * rising], v.coefficients[2 * rising + 1], slot, step)
    if falling >= 0:
        raise_pair(c, v.coefficients[2 * falling], v.coefficients[2 * falling + 1], slot, -step)


@njit(cache=True, error_model="numpy")
def end(block: np.ndarray) -> None:
    """Average, and keep the lazy scale factors in their range."""
    v = views(block)
    h = v.header[0]
    close_step(common(block), v.coefficients, v.biases, h["live"], h["n_support"])


# Rows and decisions ---------------------------------------------------------------------------------------------------------


@njit(cache=True, error_model="numpy")
def fill(block: np.ndarray, X: np.ndarray, columns: np.ndarray, i: int) -> None:
    """Make row i of X, whose features are in ``columns`` int64 [features] (-1: in none), the row at hand."""
    v = views(block)
    row = v.rows[0]
    row[: v.header[0]["used"]] = np.float32(0.0)
    for j in range(X.shape[1]):
        if columns[j] >= 0:
            row[columns[j]] += X[i, j]


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _squared_norm(X: np.ndarray, i: int) -> float:
    norm = 0.0
    for j in range(X.shape[1]):
        norm += np.float64(X[i, j]) * np.float64(X[i, j])
    return norm


@njit(cache=True, error_model="numpy")
def first_refused(block: np.ndarray, X: np.ndarray, columns: np.ndarray, apart: bool) -> int:
    """The number of the first row of X that `learn_one` would refuse, or -1. ``apart``: each feature has a column of its own."""
    v = views(block)
    limit = LARGEST_NORM * (1.0 - 1e-9)  # sums in another order round otherwise
    for i in range(X.shape[0]):
        if apart:
            norm = _squared_norm(X, i)
        else:
            fill(block, X, columns, i)
            norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])[1]
        if not norm < limit:
            return i
    return -1


@njit(cache=True, error_model="numpy")
def decide(block: np.ndarray, what: int) -> float:
    """The decision on the row in ``rows[0]``, NaN where that is not finite or too large.

    ``what``: of the `LAST` iterate, of the `AVERAGE`, of the one `CHOSEN` by recent error, or the `PROBABILITY` under that.
    With one output, its value (the probability is that of the positive label). With more, the number of the best, and all values
    in ``scores[: outputs]``.
    """
    v, c = views(block), common(block)
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active < 0:
        return np.nan
    margins(block, n_active, norm)
    layer = layer_of(c, what)
    live = v.header[0]["live"]
    if live == 2:
        f = v.scores[layer]
        return probability(c["slope"][layer], f) if what == PROBABILITY else f
    best = largest(v.scores, layer, live, -1)
    if what == PROBABILITY:
        probabilities(c["slope"][layer], v.scores, layer, live)
    for k in range(live // 2):
        v.scores[k] = v.scores[2 * k + layer]
    return float(best)


@njit(cache=True, error_model="numpy")
def decide_many(block: np.ndarray, X: np.ndarray, columns: np.ndarray, what: int, out: np.ndarray) -> None:
    """`decide` for each row of X float32 [n, features] into ``out``: float64 [n, 1], or with more outputs than one
    float64 [n, outputs + 1], the number of the best first and then all values.
    """
    v = views(block)
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        out[i, 0] = decide(block, what)
        for k in range(1, out.shape[1]):
            out[i, k] = v.scores[k - 1]
