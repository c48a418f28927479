"""The rule of budgeted stochastic gradient descent, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamsvm.learners._online import OWN_BEGIN, add_support_vector, begin, common, end, fill, margins, watch_labels
from streamsvm.store import record

__all__ = ["CONSTANT", "FLOOR", "PEGASOS", "STATE", "learn_many", "learn_one"]

PEGASOS, CONSTANT, FLOOR = 0, 1, 2

STATE = np.dtype([("schedule", "i8"), ("intercept", "i8"), ("l2", "f8"), ("eta0", "f8")])


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, tables: np.ndarray, y: float, weight: float) -> bool:
    """One step on the hinge loss (Wang, Crammer and Vucetic 2012, algorithm 1)."""
    n_active, norm = begin(block)
    if n_active < 0:
        return False
    c, s = common(block), record(block, OWN_BEGIN, STATE)
    last, average = margins(block, n_active, norm)
    watch_labels(block, y, last, average)
    eta = 1.0 / (s["l2"] * c["t"])
    if s["schedule"] == CONSTANT:
        eta = s["eta0"]
    elif s["schedule"] == FLOOR:
        eta = max(eta, s["eta0"])
    shrink = 1.0 - s["l2"] * eta
    if shrink > 0.0:  # it is 0 in Pegasos' first step, when there is nothing to shrink
        c["scale"] *= shrink
        c["bias"][0] *= shrink
    if y * last < 1.0:
        add_support_vector(block, tables, norm, eta * weight * y)
        if s["intercept"]:
            c["bias"][0] += eta * weight * y
    end(block)
    return True


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, tables: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> None:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        learn_one(block, tables, targets[i], weights[i])
