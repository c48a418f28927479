"""Support vector machines of very many rows, by dual descent on a forest of compositional kernels."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.batch.hierarchical.machine import HierarchicalMachine
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor

__all__ = ["HierarchicalSVC", "HierarchicalSVR"]


@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalSVC(KernelClassifier, HierarchicalMachine):
    """A support vector classifier for very many rows: the average over trees, each with a compositional kernel.

    A tree cuts the rows in two along random axes again and again. In its leaves the kernel is exact; towards all other rows it
    goes through some rows of each node, its skeleton. That is a kernel as well, of rows that were not learned, too: each tree is
    a machine that is solved and that predicts in one space. Trees differ, and their mean comes close to the machine of the exact
    kernel. The problem of each is that of `CSMOClassifier`, but of more than two classes each has a machine against all others.
    Time and memory are linear in the number of rows, and a prediction reads one leaf of each tree.

    Parameters
    ----------
    C
        The bound of a dual coefficient, before it is multiplied by the weights of its row and class.
    kernel, gamma, degree, coef0, class_weight
        As in `CSMOClassifier`.
    n_trees
        More are more accurate, in proportion to time and memory.
    leaf_size
        Rows of a leaf, at most, at least 2. Rows that fit into one leaf have the exact kernel. ``"auto"``: 256 for up to 12
        features, 512 for more; twice as many for 25,000 rows, up to four times as many for fewer; and at least twice the rank.
    rank
        Rows of a skeleton, at least 1. ``"auto"``: 50 for up to 12 features, 100 for more; for fewer than 50,000 rows more, as
        of leaves.
    tol
        The duality gap at which a descent ends, relative to the primal objective.
    max_iter
        Walks through a tree for each problem, at most.
    n_jobs
        Threads, with a tree each, and of predictions: None: 1; -1: one for each processor. Results do not depend on it.
    memory_limit
        Bytes that the fit may take beside X; None: no limit.
    random_state
        Seed of the axes and skeletons; None: another one each time.
    verbose
        Whether progress is shown on standard error.

    Attributes
    ----------
    classes_ : [classes]
    support_ : int32 [n_support]
        Numbers of the rows that predictions read, or that have a coefficient.
    support_vectors_ : float64 [n_support, features]
    dual_coef_ : float64 [machines, n_support]
        y_i alpha_i, the mean of the trees; one machine for two classes, else one for each class. Predictions do not use it, but
        weights of the leaves' rows. `to_budget` chooses vectors by it.
    intercept_ : float64 [machines]
        The mean of the trees.
    n_iter_ : int
        Walks of the longest descent.
    gap_ : float
        The largest of the trees' and machines' relative duality gaps; it includes what the sum of the coefficients could cost
        if the intercept were off by a margin.
    objective_ : float
        The primal objective, summed over machines, the mean of the trees.
    n_trees_ : int
        Fewer than ``n_trees`` after an interrupt.
    compressed_nbytes_ : int
        Of the largest tree's matrix, which is gone after the fit.

    Raises
    ------
    ValueError
        When fitted: a parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small; the
        message says which, and what would do.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` after ``max_iter`` walks.

    Notes
    -----
    Of each tree: O(n d log n) to grow it, O(n (m + r) (d + r)) for its matrix, with leaves of m rows and rank r, and O(n r) a
    walk, plus O(m + r) for each coefficient that changes. A prediction costs O(d log n + m (d + machines)) a tree. Memory of a
    fit: about 4 n (m + 3 r) bytes for each thread, and 8 n (d + 3) for each tree. Equal rows are one variable.

    A fit that is interrupted (Ctrl-C) keeps the trees that are done, or else the last walk of those that were begun, then raises
    KeyboardInterrupt. Before the first walk, and once all trees are done, an interrupt leaves the model as it was.

    References
    ----------
    Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18.
    Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
    large-scale linear SVM. ICML. The steps in a leaf are theirs; the intercept is a multiplier here.

    Examples
    --------
    >>> from sklearn.datasets import load_breast_cancer
    >>> from streamsvm.batch import HierarchicalSVC

    >>> X, y = load_breast_cancer(return_X_y=True)
    >>> X = (X - X.mean(axis=0)) / X.std(axis=0)
    >>> models = HierarchicalSVC(gamma=0.03, leaf_size=128, rank=50).fit_path(X, y, [0.1, 1.0, 10.0])
    >>> [model.C for model in models], all(model.score(X, y) > 0.94 for model in models)
    ([0.1, 1.0, 10.0], True)
    """


@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalSVR(KernelRegressor, HierarchicalMachine):
    """Support vector regression for very many rows: the average over trees, each with a compositional kernel.

    The problem of each tree is that of `CSMORegressor`; the rest is as in `HierarchicalSVC`.

    Parameters
    ----------
    C
        The bound of a dual coefficient, before it is multiplied by the weight of its row.
    epsilon
        Errors up to this cost nothing.
    kernel, gamma, degree, coef0, n_trees, leaf_size, rank, tol, max_iter, n_jobs, memory_limit, random_state, verbose
        As in `HierarchicalSVC`. The margin of the gap is epsilon or a tenth of the targets' deviation, whichever is more.

    Attributes
    ----------
    support_, support_vectors_, n_iter_, gap_, objective_, n_trees_, compressed_nbytes_
        As in `HierarchicalSVC`.
    dual_coef_ : float64 [1, n_support]
    intercept_ : float64 [1]

    Raises
    ------
    ValueError
        As `HierarchicalSVC`; warnings, cost, interruption and references are the same as well.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import HierarchicalSVR

    >>> X = np.linspace(-3.0, 3.0, 2000)[:, np.newaxis]
    >>> model = HierarchicalSVR(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """
