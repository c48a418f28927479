"""Wrappers that stand round a learner and change its answers: scalers of targets, and thresholds of the probability."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from river import preprocessing

from streamsvm.edge.program import Answer, Program, ProgramError
from streamsvm.edge.steps import probabilities
from streamsvm.learners.preprocessing import BoundedTargetScaler
from streamsvm.learners.thresholds import TunedThresholdClassifier

__all__ = ["unwrapped"]

Finish = Callable[[Program, Answer], Answer]


class Within(NamedTuple):
    """The model within a wrapper."""

    model: Any
    """A learner, another wrapper, or a pipeline with one at its end."""
    finish: Finish
    """Completes the answer of its program."""


def unwrapped(model: Any) -> Within | None:
    """Return what stands within a wrapper; None of a model that is none."""
    if isinstance(model, BoundedTargetScaler):
        n, mean, squares = model._scaler._moments[0]
        return Within(model.regressor, _scaled(mean, math.sqrt(squares / max(n, 1.0))))
    if type(model) is preprocessing.TargetStandardScaler:
        variance = model.var.get()
        return Within(model.regressor, _scaled(model.var.mean.get(), variance**0.5))
    if isinstance(model, TunedThresholdClassifier):
        return Within(model.classifier, _with_threshold(model))
    return None


def _scaled(mean: float, deviation: float) -> Finish:
    def finish(program: Program, answer: Answer) -> Answer:
        value = program.add("linear", answer.decision, weights=np.array([[deviation]]), biases=np.array([mean]))
        return answer._replace(decision=value, choice=value)

    return finish


def _with_threshold(model: TunedThresholdClassifier) -> Finish:
    def finish(program: Program, answer: Answer) -> Answer:
        if len(model._labels) < 2 or answer.odds is None:
            return answer
        if len(answer.labels) > 2:
            raise ProgramError("a threshold of three and more labels is not exported")
        positive = model._positive()
        above = answer.labels[1] == positive
        bound = _decision_of(answer, model.threshold if above else 1.0 - model.threshold)
        value = program.add("linear", answer.decision, weights=np.ones((1, 1)), biases=np.array([-bound]))
        return answer._replace(choice=value, at_zero=int(above))

    return finish


def _decision_of(answer: Answer, threshold: float) -> float:
    """Return the least decision value whose label, the second, has a probability of at least so much."""
    odds = answer.odds or {}
    low, high = -1e9, 1e9
    for _ in range(200):  # the probability never falls
        middle = 0.5 * (low + high)
        if probabilities(odds, np.array([[middle]]))[0, 1] >= threshold:
            high = middle
        else:
            low = middle
    return high
