"""Stochastic gradient descent on the regularised loss, compiled: the step of BSGD."""

from __future__ import annotations

import numpy as np

from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import ONE_CLASS, common
from streamsvm.core.steps.rule import FITTED, rule, state_of
from streamsvm.core.steps.step import CurrentRow, add_support_vector, violation

PEGASOS, CONSTANT, FLOOR, CAPPED = 0, 1, 2, 3

STATE = np.dtype([("schedule", "i8"), ("fit_intercept", "i8"), ("l2", "f8"), ("eta0", "f8"), ("fitted", "i8")])


@rule(STATE, learned=FITTED)
def step(block: np.ndarray, row: CurrentRow) -> None:
    """One step down the regularised loss (Wang, Crammer and Vucetic 2012, algorithm 1)."""
    v, c, s = views(block), common(block), state_of(block, STATE)
    live = v.header[0]["live"]
    rising, falling, missing = violation(block, row.target)
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
    if c["loss"] == ONE_CLASS:  # the intercept is minus the threshold: driven up, not regularised
        v.biases[0] -= eta * s["l2"]
    elif shrink > 0.0 and s["fit_intercept"]:  # an intercept that is not fitted, as after distillation, stays
        for k in range(0, live, 2):
            v.biases[k] *= shrink
    if missing != 0.0:
        size = eta * row.weight if missing > 0.0 else -eta * row.weight
        if falling >= 0:  # two outputs move, so that for two classes each moves by half
            size *= 0.5
        if row.self_kernel > 0.0:
            add_support_vector(block, row, size, rising, falling)
        if s["fit_intercept"]:
            v.biases[2 * rising] += size
            if falling >= 0:
                v.biases[2 * falling] -= size
