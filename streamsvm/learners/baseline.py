"""What the baselines share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamsvm.budget import Maintenance, Removal
from streamsvm.learners.classifier import BudgetedClassifier

__all__ = ["LARGEST", "Baseline"]

#: Of a coefficient, either way: rules that move more than the newest one could make it grow for ever.
LARGEST = 1e30


class Baseline(BudgetedClassifier):
    """One of the methods that budgeted SVMs are compared with: binary, and without averaging but for those that never remove a
    support vector.

    Each has, besides its own, the parameters budget, kernel, gamma, degree, coef0, max_features and overflow of `BSGDClassifier`.
    """

    def __init__(
        self,
        budget: int,
        kernel: str,
        gamma: float | str,
        degree: int,
        coef0: float,
        max_features: int,
        overflow: str,
        *,
        strategy: Maintenance | None = None,
        averaging: int = 0,
        seed: int | None = 0,
        gram: bool = False,
    ) -> None:
        # Where a rule keeps its budget itself, no strategy is ever asked.
        super().__init__(
            budget,
            kernel,
            gamma,
            degree,
            coef0,
            max_features,
            overflow,
            strategy=strategy or Removal(),
            averaging=averaging,
            seed=seed,
            max_classes=2,
            gram=gram,
        )

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
