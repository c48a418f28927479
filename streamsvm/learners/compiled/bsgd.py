"""The rule of budgeted stochastic gradient descent, compiled."""

from __future__ import annotations

import numpy as np
from numba import njit

from streamsvm.learners.compiled.iterates import ONE_CLASS, OWN_BEGIN, common
from streamsvm.learners.compiled.step import FULL, LEARNED, REFUSED, add_support_vector, end, fill, observe, violation
from streamsvm.memory.block import record
from streamsvm.memory.support_vectors import views

__all__ = ["CAPPED", "CONSTANT", "FLOOR", "PEGASOS", "STATE", "learn_many", "learn_one"]

PEGASOS, CONSTANT, FLOOR, CAPPED = 0, 1, 2, 3

STATE = np.dtype([("schedule", "i8"), ("intercept", "i8"), ("l2", "f8"), ("eta0", "f8")])


@njit(cache=True, error_model="numpy")
def learn_one(block: np.ndarray, upkeep: np.ndarray, target: float, weight: float) -> int:
    """One step down the regularised loss (Wang, Crammer and Vucetic 2012, algorithm 1)."""
    norm, own = observe(block, target)
    if norm < 0.0:
        return REFUSED
    v, c, s = views(block), common(block), record(block, OWN_BEGIN, STATE)
    live = v.header[0]["live"]
    rising, falling, missing = violation(block, target)
    eta = 1.0 / (s["l2"] * c["t"])
    if s["schedule"] == CONSTANT:
        eta = s["eta0"]
    elif s["schedule"] == FLOOR:
        eta = max(eta, s["eta0"])
    elif s["schedule"] == CAPPED:
        eta = min(eta, s["eta0"])
    shrink = 1.0 - s["l2"] * eta
    if shrink > 0.0:  # it is 0 in Pegasos' first step, when there is nothing to shrink
        c["scale"] *= shrink
    if c["loss"] == ONE_CLASS:  # the bias is minus the threshold: driven up, not regularised
        v.biases[0] -= eta * s["l2"]
    elif shrink > 0.0 and s["intercept"]:  # a bias that is not fitted, as after distillation, stays
        for k in range(0, live, 2):
            v.biases[k] *= shrink
    if missing != 0.0:
        step = eta * weight if missing > 0.0 else -eta * weight
        if falling >= 0:  # two outputs move, so that for two classes each moves by half
            step *= 0.5
        if own > 0.0 and add_support_vector(block, upkeep, norm, weight, rising, falling, step) == FULL:
            return FULL
        if s["intercept"]:
            v.biases[2 * rising] += step
            if falling >= 0:
                v.biases[2 * falling] -= step
    end(block)
    return LEARNED


@njit(cache=True, error_model="numpy")
def learn_many(
    block: np.ndarray, upkeep: np.ndarray, X: np.ndarray, columns: np.ndarray, targets: np.ndarray, weights: np.ndarray
) -> int:
    """Learn the rows of X float32 [n, features], one after the other."""
    for i in range(X.shape[0]):
        fill(block, X, columns, i)
        if learn_one(block, upkeep, targets[i], weights[i]) == FULL:
            return i
    return X.shape[0]
