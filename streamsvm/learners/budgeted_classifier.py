"""Base classes of classifiers with support vectors, and of the algorithms that they are compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.memory.support_vectors import SupportVectorStore, Views, views
from streamsvm.core.steps.iterates import get_common_state
from streamsvm.core.steps.step import add_to_coefficient
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.classifier import OnlineClassifier
from streamsvm.learners.estimator import learner


@learner
class BudgetedClassifier(OnlineClassifier, BudgetedEstimator):
    """The base of classifiers with support vectors. Two classes share one output; with more classes, each has its own."""

    def _set_start_labels(self, labels: Sequence[Any] | None, outputs: int) -> float:
        """Register the ``labels`` of another model, whose coefficients this new model will start from, and make room for
        ``outputs`` decision values. Returns the factor for these coefficients: -1 if this model treats the other one of two
        labels as positive, else 1. Raises a ValueError if labels and outputs do not fit together.
        """
        sign = super()._set_start_labels(labels, outputs)
        if outputs > 1:
            self._resize(outputs)
        return sign

    def _grow_outputs(self, store: SupportVectorStore, outputs: int) -> None:
        """Initialise the coefficients of new labels in ``store``, an enlarged copy of this model's memory with room for
        ``outputs`` decision values. If two labels shared one decision value so far, it is split into one for each.
        """
        if self._n_outputs == 1:
            positive, negative = (0, 1) if self._labels.is_positive_first else (1, 0)
            split_output(store.views, positive)
            targets = store.views.window_targets[: self.n_learned]
            targets[:] = np.where(targets > 0.0, positive, negative)
        store.n_outputs = 2 * outputs

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        targets = self._store.views.window_targets
        valid_targets = range(self._n_outputs) if self._n_outputs > 1 else (-1.0, 0.0, 1.0)
        if not np.isin(targets, list(valid_targets)).all():
            raise ValueError("the saved model is corrupt: its window has rows with unknown labels")


def split_output(v: Views, positive: int) -> None:
    """Replace the single decision value f of a two-class model by two: f / 2 for the positive label, and -f / 2 for the negative
    one. ``v`` has the arrays of the model's memory, whose coefficients are changed in place; ``positive`` is the index of the
    positive label, 0 or 1.
    """
    for rows in (v.coefficients, v.biases):
        half = 0.5 * rows[:2]
        rows[2 * positive : 2 * positive + 2], rows[2 - 2 * positive : 4 - 2 * positive] = half, -half


#: Maximum absolute value of a coefficient. Update rules that change old coefficients could let them grow without limit.
MAX_COEFFICIENT = 1e30


@compiled
def add_clipped(block: np.ndarray, slot: int, step: float) -> None:
    """Add ``step`` to the coefficient of the support vector at index ``slot``, and clip the result to +-1e30 (`MAX_COEFFICIENT`).
    ``block`` is the learner's memory (uint8), which is changed in place.
    """
    a = get_common_state(block)["scale"] * views(block).coefficients[0, slot]
    add_to_coefficient(block, slot, min(max(a + step, -MAX_COEFFICIENT), MAX_COEFFICIENT) - a)


class ReferenceClassifier(BudgetedClassifier):
    """The base of algorithms from the literature that budgeted SVMs are compared with, for two classes.

    Averaging is only available in algorithms that never remove a support vector.
    """

    eta0: float
    """The step size."""
    seed: int | None
    """Seed of the random choices, for repeatable runs. None picks a random one."""

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}


@learner
class UnbudgetedClassifier(ReferenceClassifier):
    """The base of algorithms without budget maintenance. They refuse a row that would exceed the budget."""

    budget: int = field(default=10_000, kw_only=False)
    """The maximum number of support vectors. A row that exceeds it raises a RuntimeError, and does not change the model."""
    averaging: int = 0

    _refuses_when_full = True

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 4000}
