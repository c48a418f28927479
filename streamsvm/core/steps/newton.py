"""Newton's method on the logistic or squared loss, online and with a fading memory, compiled.

A model with weights w has the curvature matrix A: the sum over rows z of h z z', each multiplied by the forgetting factor once
per later row, plus the ridge. Each row z changes the weights by A^-1 (t - p) z. The inverse of A is updated by rank-one updates
in O(n^2), and computed again from A every `ROWS_PER_INVERSE` rows, so that it stays symmetric and positive definite, and rounding
errors do not accumulate, however long or constant the stream is.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.kernels import FAST, dot

#: Rows between two computations of the inverse from the curvature.
ROWS_PER_INVERSE = 64
#: The smallest p (1 - p) of a row: a row that is predicted with certainty has this curvature.
MIN_CURVATURE = 0.02


def reset_curvature(curvature: np.ndarray, inverse: np.ndarray, ridge: float) -> None:
    """Set a ``curvature`` matrix of Newton's method, float64 [..., n, n], to ``ridge`` times the identity, and ``inverse`` to
    the inverse of that, both in place.
    """
    curvature[...] = ridge * np.eye(curvature.shape[-1])
    inverse[...] = np.eye(curvature.shape[-1]) / ridge


@compiled(inline=True)
def compute_sigmoid(f: float) -> float:
    """Return the probability 1 / (1 + exp(-f)) for log odds ``f``, which are clipped to [-30, 30]."""
    return 1.0 / (1.0 + math.exp(-min(max(f, -30.0), 30.0)))


@compiled(fastmath=FAST)
def add_to_curvature(
    curvature: np.ndarray,
    inverse: np.ndarray,
    row: np.ndarray,
    n: int,
    h: float,
    forgetting_factor: float,
    ridge: float,
    direction: np.ndarray,
) -> None:
    """Add a ``row`` with the second derivative ``h`` to the n x n curvature matrix of online Newton's method, after multiplying
    earlier rows by ``forgetting_factor``, and update its ``inverse`` in O(n^2). Both change in place. The direction of the
    Newton step, inverse times row, is written into ``direction``.

    ``curvature`` and ``inverse`` are float64 [n or more, n or more], ``row`` and ``direction`` float64 [n or more]. ``h`` is the
    second derivative of the loss, p (1 - p) times the row's weight. The ``ridge``, the diagonal of the initial matrix, does not
    fade.
    """
    square = 0.0
    for j in range(n):
        total = 0.0
        for k in range(n):
            total += inverse[j, k] * row[k]
        direction[j] = total
        square += row[j] * total
    denominator = forgetting_factor + h * square
    for j in range(n):
        a, b = h * row[j], h / denominator * direction[j]
        for k in range(n):
            curvature[j, k] = forgetting_factor * curvature[j, k] + a * row[k]
            inverse[j, k] = (inverse[j, k] - b * direction[k]) / forgetting_factor
        curvature[j, j] += (1.0 - forgetting_factor) * ridge
    for j in range(n):
        direction[j] /= denominator


@compiled(fastmath=FAST, noinline=True)
def invert_curvature(curvature: np.ndarray, inverse: np.ndarray, n: int, rows: np.ndarray) -> None:
    """Compute the ``inverse`` of the n x n ``curvature`` matrix of Newton's method anew, which removes accumulated rounding
    errors. The matrix is symmetric and positive definite; ``rows`` float64 [2, n or more] is scratch. O(n^3).

    It is Gauss-Jordan elimination of the upper triangle, two rows at a time, so that each value is loaded and stored once for
    both. It needs no pivoting, because the ridge bounds the curvature from below.
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
        if i + 1 < n:  # the next row, after the elimination of this one
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
    """Draw the n ``weights`` towards ``centre`` in place, by a Newton step on the ridge penalty: subtract ``inverse`` times
    ``force`` * (weights - centre). ``direction`` is scratch. O(n^2).
    """
    for j in range(n):
        direction[j] = force * (weights[j] - centre[j])
    for j in range(n):
        weights[j] -= dot(inverse[j, :n], direction)
