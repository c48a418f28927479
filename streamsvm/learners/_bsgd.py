"""The rule of budgeted stochastic gradient descent, compiled: one step, the loops over it, and its decision values."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from streamsvm.budget.maintenance import append, fill_kernel_row, maintain, next_random, scan_row
from streamsvm.kernels import FAST, LARGEST_NORM
from streamsvm.store import Views, views

LAST, AVERAGE, CHOSEN, PROBABILITY = 0, 1, 2, 3

__all__ = [
    "CONSTANT",
    "FLOOR",
    "GAMMA_ROWS",
    "PEGASOS",
    "STATE",
    "decide",
    "decide_many",
    "first_refused",
    "learn_many",
    "learn_one",
]

PEGASOS, CONSTANT, FLOOR = 0, 1, 2
#: Rows from which gamma="scale" is found; it is updated with each of them and stays what it is then.
GAMMA_ROWS = 500

#: The learner's part of a block.
STATE = np.dtype(
    [
        ("t", "i8"),  # steps taken
        ("n_merges", "i8"),
        ("maintenance", "i8"),
        ("schedule", "i8"),
        ("intercept", "i8"),
        ("gamma_rows", "i8"),  # rows that gamma was found from; -1 where it was given
        ("random", "u8"),
        ("l2", "f8"),
        ("eta0", "f8"),
        ("deviation", "f8"),  # sum over features and rows of squared deviations from the mean
        # coefficients of the last iterate: scale * u;  of the average: average_v * v + average_u * u
        ("scale", "f8"),
        ("average_v", "f8"),
        ("average_u", "f8"),
        ("bias", "f8", 2),  # of the last iterate and of the average
        ("error", "f8", 2),  # recent prequential error rates of the two
        ("slope", "f8", 2),  # log of the factor from margin to log odds, of the two
        ("curvature", "f8", 2),
        ("horizon", "f8"),  # rows that the average remembers; 0 where there is none
    ]
)
STATE_BEGIN = 128
STATE_END = STATE_BEGIN + STATE.itemsize
_LARGEST_GAMMA = 1e15
_POWER = 15.0  # of the polynomial decay (Shamir and Zhang 2013) with which the average starts
_ABOVE_HALF = 0.5 + 2.0**-52
_WINDOW = 1000.0  # rows over which the errors of the last iterate and of the average are compared
_TINY = 1e-5  # below it a lazy scale factor is multiplied in, at O(B)
_GOLDEN_GAMMA = np.uint64(0x9E3779B97F4A7C15)


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
def _margins(v: Views, s: np.ndarray, n_active: int, norm: float) -> tuple[float, float]:
    # Decision values of the row at hand under the last iterate and under the average. Its kernel row stays for the next call with
    # the same row: who predicts and then learns a row pays for one.
    h = v.header[0]
    used, n = h["used"], h["n_support"]
    if v.cache[0] == 0 or _differ(v.rows[0], v.rows[2], used):
        fill_kernel_row(v, 0, n_active, norm)
        for j in range(used):
            v.rows[2, j] = v.rows[0, j]
        v.cache[0] = 1
    a, b = _dots(v.kernel_rows[0], v.coefficients[0], v.coefficients[1], n)
    return s["scale"] * a + s["bias"][0], s["average_v"] * b + s["average_u"] * a + s["bias"][1]


@njit(cache=True, error_model="numpy")
def _watch_gamma(v: Views, s: np.ndarray) -> None:
    # gamma = 1 / (sum of the features' variances), by Welford's recurrence over the first rows.
    h = v.header[0]
    s["gamma_rows"] += 1
    n = s["gamma_rows"]
    for j in range(h["used"]):
        x = np.float64(v.rows[0, j])
        before = x - v.means[j]
        v.means[j] += before / n
        s["deviation"] += before * (x - v.means[j])
    h["gamma"] = min(n / s["deviation"], _LARGEST_GAMMA) if s["deviation"] > 0.0 else 1.0
    v.cache[0] = 0


@njit(cache=True, error_model="numpy")
def _probability(slope: float, f: float) -> float:
    p = 1.0 / (1.0 + math.exp(-min(max(math.exp(slope) * f, -30.0), 30.0)))
    return max(p, _ABOVE_HALF) if f > 0.0 else p  # never at odds with the label, however small f is


@njit(cache=True, error_model="numpy")
def _watch_margins(s: np.ndarray, y: float, last: float, average: float) -> None:
    rate = max(1.0 / s["t"], 1.0 / _WINDOW)
    for k in range(2):
        f = last if k == 0 else average
        s["error"][k] += rate * ((1.0 if (f > 0.0) != (y > 0.0) else 0.0) - s["error"][k])
        p = _probability(s["slope"][k], f)
        target = 1.0 if y > 0.0 else 0.0
        z = min(max(math.exp(s["slope"][k]) * f, -10.0), 10.0)
        s["curvature"][k] += max(rate, 0.01) * (p * (1.0 - p) * z * z - s["curvature"][k])
        step = (target - p) * z / (s["curvature"][k] + 0.01)
        s["slope"][k] += min(max(max(rate, 0.01) * step, -0.2), 0.2)
        s["slope"][k] = min(max(s["slope"][k], -50.0), 50.0)


@njit(cache=True, error_model="numpy")
def _renormalise(v: Views, s: np.ndarray) -> None:
    n = v.header[0]["n_support"]
    u, w = v.coefficients[0], v.coefficients[1]
    # Both at once: the average may remember for long what the last iterate has forgotten, and a factor that made up for it would
    # grow without bound.
    for i in range(n):
        w[i] = s["average_v"] * w[i] + s["average_u"] * u[i]
        u[i] *= s["scale"]
    s["average_v"], s["average_u"], s["scale"] = 1.0, 0.0, 1.0


@njit(cache=True, error_model="numpy")
def _average(v: Views, s: np.ndarray) -> None:
    # average += rho (last - average), in O(1): only the two scale factors and the bias move.
    t = s["t"]
    rho = max((_POWER + 1.0) / (t + _POWER), 1.0 / s["horizon"])
    if rho < 1.0:
        s["average_v"] *= 1.0 - rho
        s["average_u"] = (1.0 - rho) * s["average_u"] + rho * s["scale"]
        s["bias"][1] += rho * (s["bias"][0] - s["bias"][1])
    else:
        for i in range(v.header[0]["n_support"]):
            v.coefficients[1, i] = 0.0
        s["average_v"], s["average_u"], s["bias"][1] = 1.0, s["scale"], s["bias"][0]


@njit(cache=True, error_model="numpy")
def _step(v: Views, s: np.ndarray, tables: np.ndarray, y: float, weight: float) -> bool:
    h = v.header[0]
    n_active, norm = scan_row(v.rows[0], h["used"], v.active[0])
    if n_active < 0:
        return False
    if 0 <= s["gamma_rows"] < GAMMA_ROWS:
        _watch_gamma(v, s)
    last, average = _margins(v, s, n_active, norm)
    s["t"] += 1
    t = s["t"]
    _watch_margins(s, y, last, average)
    eta = 1.0 / (s["l2"] * t)
    if s["schedule"] == CONSTANT:
        eta = s["eta0"]
    elif s["schedule"] == FLOOR:
        eta = max(eta, s["eta0"])
    shrink = 1.0 - s["l2"] * eta
    if shrink > 0.0:  # it is 0 in Pegasos' first step, when there is nothing to shrink
        s["scale"] *= shrink
        s["bias"][0] *= shrink
    if y * last < 1.0:
        slot = append(v, v.rows[0], norm)
        u = eta * weight * y / s["scale"]
        v.coefficients[0, slot] = u
        v.coefficients[1, slot] = -s["average_u"] / s["average_v"] * u
        if s["intercept"]:
            s["bias"][0] += eta * weight * y
        if h["n_support"] > h["budget"]:
            s["random"] += _GOLDEN_GAMMA
            s["n_merges"] += maintain(v, s["maintenance"], tables, next_random(s["random"]))
    if s["horizon"] > 0.0:
        _average(v, s)
    if s["average_v"] < _TINY or s["scale"] < _TINY:
        _renormalise(v, s)
    return True


@njit(cache=True)
def _state(block: np.ndarray) -> np.ndarray:
    return block[STATE_BEGIN:STATE_END].view(STATE)


@njit(cache=True, error_model="numpy")
def _fill(v: Views, X: np.ndarray, columns: np.ndarray, i: int) -> None:
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
            _fill(v, X, columns, i)
            norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])[1]
        if not norm < limit:
            return i
    return -1


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, tables: np.ndarray, y: float, weight: float) -> bool:
    """Learn the row in ``rows[0]`` of the block. False, and nothing changed, where the row is not finite or too large."""
    return _step(views(block), _state(block)[0], tables, y, weight)


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, tables: np.ndarray, X: np.ndarray, columns: np.ndarray, y: np.ndarray, weights: np.ndarray
) -> None:
    """Learn the rows of X float32 [n, features], whose features are in ``columns`` int64 [features] (-1: in none).

    Those that `first_refused` would name are left out, and so are those of weight 0.
    """
    v, s = views(block), _state(block)[0]
    for i in range(X.shape[0]):
        if weights[i] > 0.0:
            _fill(v, X, columns, i)
            _step(v, s, tables, y[i], weights[i])


@njit(cache=True, error_model="numpy")
def _decide(v: Views, s: np.ndarray, what: int) -> float:
    n_active, norm = scan_row(v.rows[0], v.header[0]["used"], v.active[0])
    if n_active < 0:
        return np.nan
    last, average = _margins(v, s, n_active, norm)
    output = what
    if what >= CHOSEN:
        output = AVERAGE if s["error"][1] <= s["error"][0] and s["horizon"] > 0.0 else LAST
    f = average if output == AVERAGE else last
    return _probability(s["slope"][output], f) if what == PROBABILITY else f


@njit(cache=True, error_model="numpy")
def decide(block: np.ndarray, what: int) -> float:
    """Decision value of the row in ``rows[0]``: of the `LAST` iterate, of the `AVERAGE`, of the one `CHOSEN` by recent error, or
    the `PROBABILITY` of the positive class under that. NaN where the row is not finite or too large.
    """
    return _decide(views(block), _state(block)[0], what)


@njit(cache=True, error_model="numpy")
def decide_many(block: np.ndarray, X: np.ndarray, columns: np.ndarray, what: int, out: np.ndarray) -> None:
    """`decide` for each row of X float32 [n, features] into ``out`` float64 [n]."""
    v, s = views(block), _state(block)[0]
    for i in range(X.shape[0]):
        _fill(v, X, columns, i)
        out[i] = _decide(v, s, what)
