"""Support vector machines of very many rows, by ADMM on a compressed kernel matrix."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.batch.hss_admm.machine import HSSADMM
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor
from streamsvm.core.docstrings import documented


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class HSSADMMClassifier(KernelClassifier, HSSADMM):
    """A support vector classifier for very many rows: ADMM on a compressed kernel matrix.

    Use it to fit several values of C with `fit_path` if the kernel is so narrow that most rows become support vectors: the
    kernel matrix is compressed once, for all iterations and all values of C. Otherwise, `CSMOClassifier` is exact, and quicker
    up to 50,000 rows even for several values of C; above, `HierarchicalSVC` is quicker.

    The problem is that of `CSMOClassifier`, except that with more than two classes there is one machine for each class against
    all others; they share the compression. Predictions use the kernel of the compressed matrix, so that a machine is trained
    and predicts in the same space. By default, a model for which that is not accurate enough is solved with the exact kernel,
    if there are few enough rows for that to be cheap (``solved_exactly_``). Time and memory are about linear in the number of
    rows, as long as the rows have few features, or lie as if they had few.

    Notes
    -----
    With leaves of m rows, ranks of r and c sampled columns, the compression costs O(n (m + r) (m + c + d)), a walk O(n r), and
    an iteration O(n (m + r)). A prediction costs O(m (d + machines)), or as many kernel values as there are support vectors if
    it is exact.

    If you interrupt a fit (Ctrl-C) once it walks or iterates, it sets the attributes to the last iterate, then raises
    KeyboardInterrupt. Before that, an interrupt leaves the model as it was.

    References
    ----------
    Cipolla, S., Gondzio, J. (2021). Training very large scale nonlinear SVMs using alternating direction method of multipliers
    coupled with the hierarchically semi-separable kernel approximations. Algorithms 2 and 3. Errata: algorithm 3 writes x_k
    where it means q_k, and its bias has the opposite sign of the one that its decision function adds.

    Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR
    18: the compressed values. The descent is that of `HierarchicalSVC`.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.batch import HSSADMMClassifier

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> models = HSSADMMClassifier(gamma=0.03).fit_path(X, y, [0.1, 1.0, 10.0])
    >>> [model.C for model in models], all(model.score(X, y) > 0.94 for model in models)
    ([0.1, 1.0, 10.0], True)
    """


@documented
@dataclass(eq=False, repr=False, kw_only=True)
class HSSADMMRegressor(KernelRegressor, HSSADMM):
    """Support vector regression for very many rows: ADMM on a compressed kernel matrix.

    Use it to fit several values of C with `fit_path` if the kernel is so narrow that most rows become support vectors: the
    kernel matrix is compressed once, for all iterations and all values of C. Otherwise, `CSMORegressor` is exact, and quicker up
    to 50,000 rows even for several values of C; above, `HierarchicalSVR` is quicker. The problem is that of
    `CSMORegressor`, solved as `HSSADMMClassifier` describes.

    Notes
    -----
    Cost and interrupts (Ctrl-C) are described in `HSSADMMClassifier`, together with the references.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import HSSADMMRegressor

    >>> X = np.linspace(-3.0, 3.0, 2000)[:, np.newaxis]
    >>> model = HSSADMMRegressor(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """
