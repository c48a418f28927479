"""Kernel Pegasos, without a budget."""

from __future__ import annotations

from streamsvm.core.checks import parameter
from streamsvm.learners.baseline import Reference
from streamsvm.learners.bsgd import Descent
from streamsvm.learners.estimator import learner


@learner
class KernelPegasos(Reference, Descent):
    """Pegasos in the space of the kernel: `BSGDClassifier` without its budget and without averaging.

    Use it as a reference for learners with budget maintenance.

    References
    ----------
    Shalev-Shwartz, S., Singer, Y., Srebro, N., Cotter, A. (2011). Pegasos: primal estimated sub-gradient solver for SVM.
    Mathematical Programming 127, figure 3. A row costs O(n d) with n support vectors.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics, preprocessing
    >>> from streamsvm.learners import KernelPegasos

    >>> model = preprocessing.StandardScaler() | KernelPegasos(budget=5000)
    >>> round(evaluate.progressive_val_score(datasets.Bananas(), model, metrics.Accuracy()).get(), 2)
    0.86
    """

    l2: float = parameter(default=1e-4, least=1e-15, high=1e9)
