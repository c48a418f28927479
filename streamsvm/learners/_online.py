"""Online learning, compiled: what the rules share, the parts of a step and the decisions.

A rule is a module with three things: ``STATE``, the dtype of its own numbers; ``learn_one(block, tables, target, weight)``, a
step with the row at hand, which returns whether that was learned (if not, nothing has changed); and
``learn_many(block, tables, X, columns, targets, weights)``, the loop over it.

Coefficients are kept for two outputs: of the last iterate, and of an average of the iterates, with lazy scale factors
(last = scale * u; average = average_v * v + average_u * u for the rows u and v of the store), so that to shrink and to average
cost O(1).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.budget.maintenance import append, fill_kernel_row, maintain, next_random, scan_row
from streamsvm.kernels import FAST, LARGEST_NORM
from streamsvm.store import STATE_BEGIN, record, views

__all__ = [
    "AVERAGE",
    "CHOSEN",
    "COMMON",
    "GAMMA_ROWS",
    "LAST",
    "OWN_BEGIN",
    "PROBABILITY",
    "add_support_vector",
    "begin",
    "common",
    "decide",
    "decide_many",
    "end",
    "fill",
    "first_refused",
    "margins",
    "watch_labels",
]

#: What `decide` gives.
LAST, AVERAGE, CHOSEN, PROBABILITY = 0, 1, 2, 3

#: Rows from which gamma="scale" is found; it is updated with each of them and stays what it is then.
GAMMA_ROWS = 500

#: The state that every learner has; a rule's own follows it in the block.
COMMON = np.dtype(
    [
        ("t", "i8"),  # rows learned
        ("n_merges", "i8"),
        ("maintenance", "i8"),
        ("random", "u8"),
        ("gamma_rows", "i8"),  # rows that gamma was found from; -1 where it was given
        ("deviation", "f8"),  # sum over features and rows of squared deviations from the mean
        ("scale", "f8"),
        ("average_v", "f8"),
        ("average_u", "f8"),
        ("horizon", "f8"),  # rows that the average remembers; 0 where there is none
        ("bias", "f8", 2),  # of the last iterate and of the average
        ("error", "f8", 2),  # recent prequential error rates of the two
        ("slope", "f8", 2),  # log of the factor from margin to log odds, of the two
        ("curvature", "f8", 2),
    ]
)
#: Where in a block the rule's own state begins.
OWN_BEGIN = STATE_BEGIN + COMMON.itemsize

_LARGEST_GAMMA = 1e15
_POWER = 15.0  # of the polynomial decay (Shamir and Zhang 2013) with which the average starts
_ABOVE_HALF = 0.5 + 2.0**-52
_WINDOW = 1000.0  # rows over which the errors of the last iterate and of the average are compared
_TINY = 1e-5  # below it a lazy scale factor is multiplied in, at O(B)
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


@njit(cache=True, forceinline=True)
def common(block: np.ndarray) -> np.ndarray:
    """The `COMMON` record of a block."""
    return record(block, STATE_BEGIN, COMMON)


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
    h["gamma"] = min(n / c["deviation"], _LARGEST_GAMMA) if c["deviation"] > 0.0 else 1.0
    v.cache[0] = 0


@njit(cache=True, fastmath=FAST, error_model="numpy")
def _dots(kernels: np.ndarray, u: np.ndarray, v: np.ndarray, n: int) -> tuple[float, float]:
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
def margins(block: np.ndarray, n_active: int, norm: float) -> tuple[float, float]:
    """Decision values of the row at hand, under the last iterate and under the average.

    Its kernel row stays for the next call with the same row: who predicts and then learns a row pays for one.
    """
    v, c = views(block), common(block)
    h = v.header[0]
    used, n = h["used"], h["n_support"]
    if v.cache[0] == 0 or _differ(v.rows[0], v.rows[2], used):
        fill_kernel_row(block, 0, n_active, norm)
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0] = 1
    a, b = _dots(v.kernel_rows[0], v.coefficients[0], v.coefficients[1], n)
    return c["scale"] * a + c["bias"][0], c["average_v"] * b + c["average_u"] * a + c["bias"][1]


@njit(cache=True, error_model="numpy")
def _probability(slope: float, f: float) -> float:
    p = 1.0 / (1.0 + math.exp(-min(max(math.exp(slope) * f, -30.0), 30.0)))
    return max(p, _ABOVE_HALF) if f > 0.0 else p  # never at odds with the label, however small f is


@njit(cache=True, error_model="numpy")
def watch_labels(block: np.ndarray, y: float, last: float, average: float) -> None:
    """Compare a label, -1 or 1, with both decision values: what predictions and probabilities follow."""
    c = common(block)
    rate = max(1.0 / c["t"], 1.0 / _WINDOW)
    for k in range(2):
        f = last if k == 0 else average
        c["error"][k] += rate * ((1.0 if (f > 0.0) != (y > 0.0) else 0.0) - c["error"][k])
        p = _probability(c["slope"][k], f)
        target = 1.0 if y > 0.0 else 0.0
        z = min(max(math.exp(c["slope"][k]) * f, -10.0), 10.0)
        c["curvature"][k] += max(rate, 0.01) * (p * (1.0 - p) * z * z - c["curvature"][k])
        step = (target - p) * z / (c["curvature"][k] + 0.01)
        c["slope"][k] += min(max(max(rate, 0.01) * step, -0.2), 0.2)
        c["slope"][k] = min(max(c["slope"][k], -50.0), 50.0)


@njit(cache=True, error_model="numpy")
def add_support_vector(block: np.ndarray, tables: np.ndarray, norm: float, coefficient: float) -> None:
    """Make the row at hand a support vector, and bring the store back to its budget. O(B d)."""
    v, c = views(block), common(block)
    h = v.header[0]
    slot = append(block, v.rows[0], norm)
    u = coefficient / c["scale"]
    v.coefficients[0, slot] = u
    v.coefficients[1, slot] = -c["average_u"] / c["average_v"] * u
    if h["n_support"] > h["budget"]:
        c["random"] += _GOLDEN_GAMMA
        c["n_merges"] += maintain(block, c["maintenance"], tables, next_random(c["random"]))


@njit(cache=True, error_model="numpy")
def end(block: np.ndarray) -> None:
    """Average, and keep the lazy scale factors in their range."""
    c = common(block)
    if c["horizon"] > 0.0:
        _average(block)
    if c["average_v"] < _TINY or c["scale"] < _TINY:
        _renormalise(block)


@njit(cache=True, error_model="numpy")
def _renormalise(block: np.ndarray) -> None:
    v, c = views(block), common(block)
    n = v.header[0]["n_support"]
    u, w = v.coefficients[0], v.coefficients[1]
    # Both at once: the average may remember for long what the last iterate has forgotten, and a factor that made up for it would
    # grow without bound.
    for i in range(n):
        w[i] = c["average_v"] * w[i] + c["average_u"] * u[i]
        u[i] *= c["scale"]
    c["average_v"], c["average_u"], c["scale"] = 1.0, 0.0, 1.0


@njit(cache=True, error_model="numpy")
def _average(block: np.ndarray) -> None:
    # average += rho (last - average), in O(1): only the two scale factors and the bias move.
    v, c = views(block), common(block)
    t = c["t"]
    rho = max((_POWER + 1.0) / (t + _POWER), 1.0 / c["horizon"])
    if rho < 1.0:
        c["average_v"] *= 1.0 - rho
        c["average_u"] = (1.0 - rho) * c["average_u"] + rho * c["scale"]
        c["bias"][1] += rho * (c["bias"][0] - c["bias"][1])
    else:
        for i in range(v.header[0]["n_support"]):
            v.coefficients[1, i] = 0.0
        c["average_v"], c["average_u"], c["bias"][1] = 1.0, c["scale"], c["bias"][0]


# Loops ----------------------------------------------------------------------------------------------------------------------


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
    """Decision value of the row in ``rows[0]``: of the `LAST` iterate, of the `AVERAGE`, of the one `CHOSEN` by recent error, or
    the `PROBABILITY` of the positive class under that. NaN where the row is not finite or too large.
    """
    v, c = views(block), common(block)
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active < 0:
        return np.nan
    last, average = margins(block, n_active, norm)
    output = what
    if what >= CHOSEN:
        output = AVERAGE if c["error"][1] <= c["error"][0] and c["horizon"] > 0.0 else LAST
    f = average if output == AVERAGE else last
    return _probability(c["slope"][output], f) if what == PROBABILITY else f


@njit(cache=True, error_model="numpy")
def decide_many(block: np.ndarray, X: np.ndarray, columns: np.ndarray, what: int, out: np.ndarray) -> None:
    """`decide` for each row of X float32 [n, features] into ``out`` float64 [n]."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        out[i] = decide(block, what)
