"""Newton's method on the logistic loss, online and with a fading memory, compiled.

A model of weights w has the curvature A, the sum over rows of memory^age h z z', and the ridge. With each row z it takes the step
w += A^-1 (t - p) z. The inverse of A follows by a rank-one update, in O(n^2), and is computed anew from A every
`ROWS_PER_INVERSE` rows: so it stays symmetric and positive definite, and rounding does not add up, however long and however quiet
the stream is.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, dot

#: Rows after which an inverse is computed anew.
ROWS_PER_INVERSE = 64
#: The least p (1 - p) of a row: a row that is predicted with certainty counts as this.
MIN_CURVATURE = 0.02


def reset_curvature(curvature: np.ndarray, inverse: np.ndarray, ridge: float) -> None:
    """Set the curvature float64 [..., n, n] and its inverse to those of the ridge alone."""
    curvature[...] = ridge * np.eye(curvature.shape[-1])
    inverse[...] = np.eye(curvature.shape[-1]) / ridge


@compiled(inline=True)
def clipped_sigmoid(f: float) -> float:
    """The probability of log odds f, bounded to 30 either way."""
    return 1.0 / (1.0 + math.exp(-min(max(f, -30.0), 30.0)))


@compiled(fastmath=FAST)
def add_to_curvature(
    curvature: np.ndarray,
    inverse: np.ndarray,
    row: np.ndarray,
    n: int,
    h: float,
    memory: float,
    ridge: float,
    direction: np.ndarray,
) -> None:
    """Add a row to the curvature, and fill ``direction`` with the inverse, as it is then, times the row. O(n^2).

    ``curvature`` and ``inverse`` are float64 [n or more, n or more], ``row`` and ``direction`` float64 [n or more]. ``h`` is the
    second derivative of the loss, p (1 - p) times the row's weight. By the factor ``memory`` all rows before it fade, but not the
    ``ridge``, the diagonal that A begins with.
    """
    square = 0.0
    for j in range(n):
        total = 0.0
        for k in range(n):
            total += inverse[j, k] * row[k]
        direction[j] = total
        square += row[j] * total
    grown = memory + h * square
    for j in range(n):
        a, b = h * row[j], h / grown * direction[j]
        for k in range(n):
            curvature[j, k] = memory * curvature[j, k] + a * row[k]
            inverse[j, k] = (inverse[j, k] - b * direction[k]) / memory
        curvature[j, j] += (1.0 - memory) * ridge
    for j in range(n):
        direction[j] /= grown


@compiled(fastmath=FAST, noinline=True)
def invert_curvature(curvature: np.ndarray, inverse: np.ndarray, n: int, rows: np.ndarray) -> None:
    """Compute the inverse of the curvature; ``rows`` float64 [2, n or more] is scratch. O(n^3).

    By Gauss-Jordan elimination of the upper triangle, two rows at once, as each number is loaded and stored once for both. It
    needs no pivots here, as the ridge bounds the curvature from below.
    """
    r, s = rows[0], rows[1]
    for j in range(n):
        for k in range(j, n):
            inverse[j, k] = curvature[j, k]
    for i in range(0, n, 2):
        for j in range(i):
            r[j] = inverse[j, i]
        for k in range(i, n):
            r[k] = inverse[i, k]
        p, f, q = 1.0 / r[i], 0.0, 0.0
        if i + 1 < n:  # the next row, as the elimination of this one leaves it
            f = p * r[i + 1]
            for j in range(i):
                s[j] = inverse[j, i + 1] - f * r[j]
            for k in range(i + 1, n):
                s[k] = inverse[i + 1, k] - f * r[k]
            s[i], q = f, 1.0 / s[i + 1]
        else:
            for k in range(n):
                s[k] = 0.0
        for j in range(n):
            a, b = p * r[j], q * s[j]
            for k in range(j, n):
                inverse[j, k] -= a * r[k] + b * s[k]
        r[i] = -1.0
        for j in range(i):
            inverse[j, i] = p * r[j] - q * f * s[j]
        for k in range(i, n):
            inverse[i, k] = p * r[k] - q * f * s[k]
        if i + 1 < n:
            s[i + 1] = -1.0
            for j in range(i + 1):
                inverse[j, i + 1] = q * s[j]
            for k in range(i + 1, n):
                inverse[i + 1, k] = q * s[k]
    for j in range(n):
        for k in range(j, n):
            inverse[j, k] = inverse[k, j] = -inverse[j, k]


@compiled
def apply_ridge(
    inverse: np.ndarray, weights: np.ndarray, centre: np.ndarray, n: int, force: float, direction: np.ndarray
) -> None:
    """Step against the ridge's own gradient, ``force`` times the weights less their centre. O(n^2)."""
    for j in range(n):
        direction[j] = force * (weights[j] - centre[j])
    for j in range(n):
        weights[j] -= dot(inverse[j, :n], direction)
