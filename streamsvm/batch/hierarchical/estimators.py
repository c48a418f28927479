"""Support vector machines of very many rows, by dual descent on a forest of compositional kernels."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.batch.hierarchical.machine import HierarchicalMachine
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor

__all__ = ["HierarchicalSVC", "HierarchicalSVR"]


@dataclass(eq=False, repr=False, kw_only=True)
class HierarchicalSVC(KernelClassifier, HierarchicalMachine):
    """A support vector classifier for very many rows, averaged over trees that approximate the kernel.

    Use it for more than 50,000 dense rows of up to about 30 features. For fewer rows, `CSMOClassifier` is quicker, and exact.

    Each tree cuts the rows in two along random axes, again and again. Within a leaf, its kernel is exact. Between leaves, the
    kernel goes through the skeleton of each node, which is a few of the node's rows. The result is a kernel too (a
    compositional kernel), and it is defined for new rows, so that each tree is trained and predicts in the same space. The
    trees differ, and their average comes close to the machine of the exact kernel. Each tree solves the problem of
    `CSMOClassifier`, except that with more than two classes there is one machine for each class against all others. Time and
    memory are linear in the number of rows, and a prediction reads one leaf of each tree.

    Parameters
    ----------
    C
        Upper bound of the dual coefficients, above 0; it is multiplied by the weights of the row and its class. A larger C fits
        the rows more closely.
    kernel
        Kernel of a row x and a support vector s: ``"rbf"``, exp(-gamma |x - s|^2); ``"linear"``, x.s; or ``"poly"``,
        (gamma x.s + coef0)^degree.
    gamma
        Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
        features' variances about their common mean, in which rows count by their weights. ``"auto"`` is one over the number of
        features. With the Gaussian kernel, a larger gamma makes the boundary follow the rows in more detail.
    degree
        Degree of the kernel ``"poly"``, from 0 to 100. Other kernels ignore it.
    coef0
        Constant term of the kernel ``"poly"``, at least 0. Other kernels ignore it.
    memory_limit
        Maximum memory of the fit in bytes, on top of X. A fit that would need more raises an error before it begins. None sets
        no limit.
    random_state
        Seed of the random axes and skeletons, for repeatable fits. None uses a different seed each time.
    verbose
        Whether to show progress on standard error.
    n_trees
        Number of trees, at least 1. More trees are more accurate, and cost time and memory in proportion.
    leaf_size
        Maximum number of rows of a leaf, at least 2. Rows that fit into one leaf have the exact kernel. ``"auto"`` is 256 for
        up to 12 features and 512 for more. For fewer than 50,000 rows it is larger: twice as large for 25,000, and at most four
        times as large. It is at least twice the rank. Larger leaves are more accurate, and cost more.
    rank
        Number of rows of a skeleton, at least 1. ``"auto"`` is 50 for up to 12 features and 100 for more; for fewer than 50,000
        rows it grows as ``leaf_size`` does. A higher rank is more accurate, and costs more.
    tol
        Duality gap at which the descent of a tree ends, relative to the primal objective; at least 0.
    max_iter
        Maximum number of walks through a tree for each problem. A walk visits every leaf once.
    n_jobs
        Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. In a fit, each thread works on
        one tree. Predictions use the threads too. The results do not depend on it.
    class_weight
        Weights of the classes, by which C is multiplied. A dictionary maps labels to weights; labels that it lacks have weight
        1. ``"balanced"`` is n / (classes * rows of the class), in which rows count by their weights. None gives every class
        weight 1. Use ``"balanced"`` when one class is rare.

    Attributes
    ----------
    classes_ : [classes]
        The labels, sorted.
    support_ : int32 [n_support]
        Indices of the rows that predictions read, or that have a coefficient.
    support_vectors_ : float64 [n_support, features]
        Those rows.
    dual_coef_ : float64 [machines, n_support]
        Coefficients y_i alpha_i, averaged over the trees; one machine for two classes, otherwise one for each class.
        Predictions use the weights of the leaves' rows instead. `to_budget` chooses vectors by these coefficients.
    intercept_ : float64 [machines]
        The intercept of each machine, averaged over the trees.
    n_iter_ : int
        Number of walks of the longest descent.
    gap_ : float
        The largest relative duality gap of all trees and machines. It includes the cost that coefficients with a sum other than
        0 could have if the intercept were off by a margin.
    objective_ : float
        The primal objective, summed over the machines and averaged over the trees.
    n_trees_ : int
        Number of trees; fewer than ``n_trees`` after an interrupt.
    compressed_nbytes_ : int
        Bytes of the largest tree's matrix, which exists only during the fit.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small. The
        message says which one, and what to change.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` after ``max_iter`` walks.

    Notes
    -----
    With n rows, d features, leaves of m rows and rank r, each tree costs O(n d log n) to grow, O(n (m + r) (d + r)) for its
    matrix, and O(n r) for each walk, plus O(m + r) for each coefficient that changes. A prediction costs
    O(d log n + m (d + machines)) for each tree. A fit needs about 4 n (m + 3 r) bytes for each thread, and 8 n (d + 3) bytes
    for each tree. Equal rows share one variable.

    If you interrupt a fit (Ctrl-C), it keeps the trees that are finished, or if there are none, the last walk of those that had
    begun, then raises KeyboardInterrupt. An interrupt before the first walk, or after the last tree is finished, leaves the
    model as it was.

    References
    ----------
    Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR
    18.

    Hsieh, C.-J., Chang, K.-W., Lin, C.-J., Keerthi, S. S., Sundararajan, S. (2008). A dual coordinate descent method for
    large-scale linear SVM. ICML. The steps in a leaf are theirs; here, the intercept is a multiplier.

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
    """Support vector regression for very many rows, averaged over trees that approximate the kernel.

    Use it for more than 50,000 dense rows of up to about 30 features. For fewer rows, `CSMORegressor` is quicker, and exact.
    Each tree solves the problem of `CSMORegressor` with the compositional kernel that `HierarchicalSVC` describes.

    Parameters
    ----------
    C
        Upper bound of the dual coefficients' sizes, above 0; it is multiplied by the weight of the row. A larger C fits the
        rows more closely.
    kernel
        Kernel of a row x and a support vector s: ``"rbf"``, exp(-gamma |x - s|^2); ``"linear"``, x.s; or ``"poly"``,
        (gamma x.s + coef0)^degree.
    gamma
        Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
        features' variances about their common mean, in which rows count by their weights. ``"auto"`` is one over the number of
        features. With the Gaussian kernel, a larger gamma makes the curve follow the rows in more detail.
    degree
        Degree of the kernel ``"poly"``, from 0 to 100. Other kernels ignore it.
    coef0
        Constant term of the kernel ``"poly"``, at least 0. Other kernels ignore it.
    memory_limit
        Maximum memory of the fit in bytes, on top of X. A fit that would need more raises an error before it begins. None sets
        no limit.
    random_state
        Seed of the random axes and skeletons, for repeatable fits. None uses a different seed each time.
    verbose
        Whether to show progress on standard error.
    n_trees
        Number of trees, at least 1. More trees are more accurate, and cost time and memory in proportion.
    leaf_size
        Maximum number of rows of a leaf, at least 2. Rows that fit into one leaf have the exact kernel. ``"auto"`` is 256 for
        up to 12 features and 512 for more. For fewer than 50,000 rows it is larger: twice as large for 25,000, and at most four
        times as large. It is at least twice the rank. Larger leaves are more accurate, and cost more.
    rank
        Number of rows of a skeleton, at least 1. ``"auto"`` is 50 for up to 12 features and 100 for more; for fewer than 50,000
        rows it grows as ``leaf_size`` does. A higher rank is more accurate, and costs more.
    tol
        Duality gap at which the descent of a tree ends, relative to the primal objective; at least 0.
    max_iter
        Maximum number of walks through a tree. A walk visits every leaf once.
    n_jobs
        Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. In a fit, each thread works on
        one tree. Predictions use the threads too. The results do not depend on it.
    epsilon
        Largest error that costs nothing, in the units of y; at least 0. A larger epsilon gives fewer support vectors.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the rows that predictions read, or that have a coefficient.
    support_vectors_ : float64 [n_support, features]
        Those rows.
    dual_coef_ : float64 [1, n_support]
        Coefficients, averaged over the trees. Predictions use the weights of the leaves' rows instead. `to_budget` chooses
        vectors by these coefficients.
    intercept_ : float64 [1]
        The intercept, averaged over the trees.
    n_iter_ : int
        Number of walks of the longest descent.
    gap_ : float
        The largest relative duality gap of all trees. It includes the cost that coefficients with a sum other than 0 could have
        if the intercept were off by a margin, which is epsilon or a tenth of the targets' standard deviation, whichever is
        larger.
    objective_ : float
        The primal objective, averaged over the trees.
    n_trees_ : int
        Number of trees; fewer than ``n_trees`` after an interrupt.
    compressed_nbytes_ : int
        Bytes of the largest tree's matrix, which exists only during the fit.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small. The
        message says which one, and what to change.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` after ``max_iter`` walks.

    Notes
    -----
    Cost, memory and interrupts (Ctrl-C) are described in `HierarchicalSVC`, together with the references.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import HierarchicalSVR

    >>> X = np.linspace(-3.0, 3.0, 2000)[:, np.newaxis]
    >>> model = HierarchicalSVR(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """
