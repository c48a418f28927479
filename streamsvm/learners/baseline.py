"""The base of the rules that budgeted SVMs are compared with."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.support_vectors import views
from streamsvm.core.steps.iterates import common
from streamsvm.core.steps.step import add_to_coefficient
from streamsvm.learners.classifier import BudgetedClassifier
from streamsvm.learners.estimator import learner

#: Of a coefficient, either way: rules that change more than the newest one could make it grow for ever.
LARGEST = 1e30


@compiled
def add_bounded(block: np.ndarray, slot: int, step: float) -> None:
    """Add ``step`` to a support vector's coefficient, which stays within `LARGEST`."""
    a = common(block)["scale"] * views(block).coefficients[0, slot]
    add_to_coefficient(block, slot, min(max(a + step, -LARGEST), LARGEST) - a)


class Baseline(BudgetedClassifier):
    """The base of rules that budgeted SVMs are compared with.

    They are for two classes, and only rules that never remove a support vector can average.
    """

    eta0: float
    """The step size."""
    seed: int | None
    """Seed of the random choices, for repeatable runs. None picks a random one."""

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}


@learner
class Reference(Baseline):
    """The base of rules without a budget: the support vector that would be one too many is refused."""

    budget: int = field(default=10_000, kw_only=False)
    """The maximum number of support vectors. One more raises a RuntimeError, and leaves the model as it was."""
    averaging: int = 0

    _capped = True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 4000}
