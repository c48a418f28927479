"""Kernel Pegasos, without a budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamsvm.budget import Refusal
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.bsgd import Descent

__all__ = ["KernelPegasos"]


class KernelPegasos(Descent, Baseline):
    """Pegasos in the kernel space: `BSGDClassifier` without its budget and without averaging. A reference.

    Parameters
    ----------
    budget
        The most support vectors that there is room for. One more raises a RuntimeError, and leaves the model as it was.
    l2
        The papers' lambda, 1 / (n C) for n rows and the C of other SVMs.
    averaging
        Rows that the average of the iterates remembers; 0, as in the paper: no average. Predictions follow the average, or the
        last iterate where that has made fewer errors over the last 1,000 rows.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.

    References
    ----------
    Shalev-Shwartz, S., Singer, Y., Srebro, N., Cotter, A. (2011). Pegasos: primal estimated sub-gradient solver for SVM.
    Mathematical Programming 127, figure 3. O(n d) a row with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelPegasos

    >>> model = preprocessing.StandardScaler() | KernelPegasos(budget=5000)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 85.40%
    """

    def __init__(
        self,
        budget: int = 10_000,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        averaging: int = 0,
        l2: float = 1e-4,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
    ) -> None:
        self._check_descent(l2, "pegasos", 1.0, fit_intercept=False)
        self.averaging = averaging
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow, strategy=Refusal(), averaging=averaging)
        self._set_descent()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 4000}
