"""The answers of a committee that predicts targets, compiled: those of the stacks, the votes and the best expert.

Experts learn targets in standard deviations from the mean, both of them running ones and with that target, bounded by `BOUND` of
them; answers are brought back to the target's own scale.
"""

from __future__ import annotations

import math

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.committee import STACKS, STATE, committee_views
from streamsvm.core.memory.moments import follow_value
from streamsvm.core.steps.committee import LARGEST_WEIGHT, ask, learn_experts
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.regression_stack import answer, choose, learn_errors, learn_stack
from streamsvm.core.steps.rule import state_of
from streamsvm.core.steps.stack import STACK

#: Deviations from the mean to which a target is bounded.
BOUND = 8.0

_HORIZON = 10_000.0  # rows that mean and variance remember


@compiled
def spread_of(moments: np.ndarray) -> float:
    """The standard deviation of targets, from their moments; 0 where they are constant."""
    return math.sqrt(moments[2] / moments[0]) if moments[0] > 0.0 else 0.0


@compiled
def _scaled(moments: np.ndarray, target: float) -> float:
    spread = spread_of(moments)
    return min(max((target - moments[1]) / spread, -BOUND), BOUND) if spread > 0.0 else 0.0


@compiled
def consult(block: np.ndarray) -> int:
    """Compute the three answers to the row at hand; 0."""
    v = committee_views(block)
    ask(block)
    answer(v.at_hand[0], v.weights, v.losses, v.errors, v.mistakes, v.odds, v.numbers)
    return 0


@compiled
def learn(block: np.ndarray, target: float, weight: float) -> int:
    """Learn the target of the row at hand, to which there are answers; 0."""
    v, s, t = committee_views(block), state_of(block, STATE), common(block)["t"]
    follow_value(v.target_moments[0], v.target_first[0], target, BOUND, _HORIZON, True)
    scaled = _scaled(v.target_moments[0], target)
    learn_errors(v.at_hand[0], scaled, weight, t, v.errors, v.mistakes)
    s["choice"] = choose(v.numbers, scaled, weight, t, v.choice_errors)
    bounded, mean_error = min(weight, LARGEST_WEIGHT), v.choice_errors[STACK]
    inputs, values = v.at_hand[0], v.odds
    for i in range(STACKS):
        learn_stack(
            inputs, scaled, bounded, t, i, mean_error, values, v.losses, v.weights, v.curvatures, v.inverses, v.row_inputs
        )
    learn_experts(block, scaled, 0, weight)
    s["last_target"] = scaled
    return 0


@compiled
def decide(block: np.ndarray, what: int) -> float:  # noqa: ARG001 - there is one question
    """Return the target that is predicted of the row at hand, to which there are answers."""
    v = committee_views(block)
    moments = v.target_moments[0]
    return moments[1] + spread_of(moments) * v.numbers[state_of(block, STATE)["choice"]]
