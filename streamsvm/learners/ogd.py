"""Online gradient descent in the kernel space, without a budget."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from streamsvm.budget import Refusal
from streamsvm.learners.baseline import Baseline
from streamsvm.learners.bsgd import Descent

__all__ = ["KernelOGD"]


class KernelOGD(Descent, Baseline):
    """Online gradient descent in the kernel space (NORMA): each row inside the margin becomes a support vector, and all
    coefficients shrink at each row. It knows no budget: a reference.

    Parameters
    ----------
    budget
        The most support vectors that there is room for. One more raises a RuntimeError, and leaves the model as it was.
    eta0
        The step.
    l2
        Regularisation.
    averaging
        Rows that the average of the iterates remembers; 0, as in the paper: no average. Predictions follow the average, or the
        last iterate where that has made fewer errors over the last 1,000 rows.
    kernel, gamma, degree, coef0, max_features, overflow
        As in `BSGDClassifier`.

    References
    ----------
    Kivinen, J., Smola, A., Williamson, R. (2004). Online learning with kernels. IEEE Transactions on Signal Processing 52. O(n d)
    a row with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelOGD

    >>> model = preprocessing.StandardScaler() | KernelOGD(budget=5000)
    >>> evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy())
    Accuracy: 84.98%
    """

    def __init__(
        self,
        budget: int = 10_000,
        kernel: str = "rbf",
        gamma: float | str = "scale",
        averaging: int = 0,
        eta0: float = 0.1,
        l2: float = 0.01,
        degree: int = 3,
        coef0: float = 0.0,
        max_features: int = 256,
        overflow: str = "raise",
    ) -> None:
        self._check_descent(l2, "constant", eta0, fit_intercept=False)
        self.averaging = averaging
        super().__init__(budget, kernel, gamma, degree, coef0, max_features, overflow, strategy=Refusal(), averaging=averaging)
        self._set_descent()

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 4000}
