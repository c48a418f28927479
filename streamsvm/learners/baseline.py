"""What the baselines share."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numba import njit

from streamsvm.budget import Maintenance
from streamsvm.learners.classifier import BudgetedClassifier
from streamsvm.learners.compiled.iterates import common
from streamsvm.learners.compiled.step import raise_coefficient
from streamsvm.memory.support_vectors import views

__all__ = ["LARGEST", "Baseline", "raise_within"]

#: Of a coefficient, either way: rules that move more than the newest one could make it grow for ever.
LARGEST = 1e30


@njit(cache=True, error_model="numpy")
def raise_within(block: np.ndarray, slot: int, step: float) -> None:
    """Add ``step`` to a support vector's coefficient, or what of it does not lead out of the range of `LARGEST`."""
    v, c = views(block), common(block)
    a = c["scale"] * v.coefficients[0, slot]
    raise_coefficient(block, slot, 0, -1, min(max(a + step, -LARGEST), LARGEST) - a)


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
        super().__init__(
            budget,
            kernel,
            gamma,
            degree,
            coef0,
            max_features,
            overflow,
            strategy=strategy,
            averaging=averaging,
            seed=seed,
            max_classes=2,
            gram=gram,
        )

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
