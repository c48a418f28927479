"""Online gradient descent in the kernel space, without a budget."""

from __future__ import annotations

from streamsvm.core.checks import LearningRate, parameter
from streamsvm.learners.baseline import Reference
from streamsvm.learners.bsgd import Descent
from streamsvm.learners.estimator import learner


@learner
class KernelOGD(Reference, Descent):
    """Online gradient descent in the space of the kernel (NORMA).

    Each row inside the margin becomes a support vector, and all coefficients shrink with each row. There is no budget
    maintenance: use it as a reference for learners that have one.

    References
    ----------
    Kivinen, J., Smola, A., Williamson, R. (2004). Online learning with kernels. IEEE Transactions on Signal Processing 52. A
    row costs O(n d) with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelOGD

    >>> model = preprocessing.StandardScaler() | KernelOGD(budget=5000)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.85
    """

    eta0: float = parameter(default=0.1, above=0.0, high=1e15)
    l2: float = parameter(default=0.01, least=1e-15, high=1e9)

    @property
    def learning_rate(self) -> LearningRate:
        return "constant"
