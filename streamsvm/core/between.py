"""Synthetic rows between the support vectors of a model."""

from __future__ import annotations

import numpy as np

_PARTNERS = 10  # random rows of which the nearest is the other end of a row between


def rows_between(X: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:
    """Return n rows between random rows of X and near ones: half on the line between the two, half with features of either.

    The latter keep values that features have: zeros and ones stay zeros and ones. O(10 n d).
    """
    first, others = rng.integers(len(X), size=n), rng.integers(len(X), size=(_PARTNERS, n))
    nearest, second = np.full(n, np.inf), others[0].copy()
    for other in others:
        squares = np.square(X[other] - X[first]).sum(axis=1)
        nearer = (squares > 0.0) & (squares < nearest)
        nearest[nearer], second[nearer] = squares[nearer], other[nearer]
    share = rng.random((n, 1)).astype(X.dtype)
    rows = X[first] + share * (X[second] - X[first])
    crossed = np.flatnonzero(rng.random(n) < 0.5)
    rows[crossed] = np.where(rng.random((len(crossed), X.shape[1])) < 0.5, X[first[crossed]], X[second[crossed]])
    return rows
