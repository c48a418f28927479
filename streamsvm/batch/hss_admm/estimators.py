"""Support vector machines of very many rows, by ADMM on a compressed kernel matrix."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.batch.hss_admm.machine import HSSADMM
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor


@dataclass(eq=False, repr=False, kw_only=True)
class HSSADMMClassifier(KernelClassifier, HSSADMM):
    """A support vector classifier for very many rows: ADMM on a compressed kernel matrix.

    Use it to fit several values of C with `fit_path`: the kernel matrix is compressed once, for all iterations and all values
    of C. For a single model, `CSMOClassifier` is quicker up to 50,000 rows, and `HierarchicalSVC` above.

    The problem is that of `CSMOClassifier`, except that with more than two classes there is one machine for each class against
    all others; they share the compression. Predictions use the kernel of the compressed matrix, so that a machine is trained
    and predicts in the same space. By default, a model for which that is not accurate enough is solved with the exact kernel,
    if there are few enough rows for that to be cheap. Time and memory are about linear in the number of rows, as long as the
    rows have few features, or lie as if they had few.

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
        Maximum memory in bytes of a compressed matrix and its factorisation; None sets no limit. It does not count 8 bytes a
        row for each of about ten columns of every machine and C, nor the previous matrix while a closer one is made.
    random_state
        Seed of the random choices in the compression, for repeatable fits. None uses a different seed each time.
    verbose
        Whether to show progress on standard error.
    predict_with
        Kernel of the predictions:

        - ``"compressed"``: the kernel of the compressed matrix, which new rows have too
          (`streamsvm.batch.hss.HSSMatrix.extend`). The fit begins with dual descent along the tree, as in `HierarchicalSVC`, and
          starts each C from the one before; where that is slow, ADMM continues. Decision values jump a little where leaves meet.
        - ``"auto"``: the same, but models of a C are solved with the exact kernel, as by ``polish``, if their values differ
          from exact ones by more than 0.15 of the margin, or if 30 walks of the descent do not solve them. This happens only if
          rows times support vectors are at most 10^9, and for at most 3 10^9 / rows steps. With ``beta="paper"``, ``"auto"``
          means ``"exact"``.
        - ``"exact"``: the exact kernel, with coefficients that ADMM alone finds on the compressed matrix. The fit compresses
          again and again until the values agree, which takes minutes if the kernel is broad or the rows have many features.
    rel_tol
        Relative error that the compression may have for coefficients whose sum is zero (see
        `streamsvm.batch.hss.HSSMatrix.compress`). A number asks for one compression to that error. ``"auto"`` is one compression
        of rank ``max_rank``, whatever its error. With ``predict_with="exact"``, ``"auto"`` begins at 0.3, and continues with 0.1,
        0.03 and so on down to 0.001 for models whose values differ from exact ones by more than 0.3 of the margin while ranks
        are below half a leaf, or by more than the margin whatever the ranks; a warning reports differences above the margin
        that remain. With ``beta="paper"``, it stays at 0.3.
    abs_tol
        Absolute error that the compression may have (see `streamsvm.batch.hss.HSSMatrix.compress`); the looser of the two counts.
    max_rank
        Maximum number of rows of a skeleton, at least 1. ``"auto"`` is 200, or 100 for more than 50,000 rows of up to 16
        features. It is 1000 with ``predict_with="exact"``, and with ``predict_with="auto"`` and a number as ``rel_tol``. A
        higher rank is more accurate, and costs more.
    n_neighbors
        Approximate number of nearest rows of each row by which skeletons are chosen, at least 4. ``"auto"`` is 16, or 64 where
        ``max_rank`` is 1000.
    leaf_size
        Maximum number of rows of a leaf, at least 2. ``"auto"`` is 512, or 256 where ``max_rank`` is 1000.
    beta
        Penalty of the augmented Lagrangian. A number above 0 stays as it is. ``"balanced"`` follows the residuals, for which
        the matrix is factorised a few more times. ``"paper"`` does what the source does: 100 for fewer than 10^5 rows, 1,000
        for fewer than 10^6, and 10,000 for more; eleven iterations from 0 without relaxation; residuals are ignored.
    relaxation
        Over-relaxation of ADMM, above 0 and below 2. The fit converges for any such value and any ``beta``, although slowly for
        unsuitable ones, because the compressed matrix has no negative eigenvalues apart from rounding.
    tol
        Relative primal and dual residuals at which the fit ends, provided that the duality gap is at most ten times as large,
        relative to the objective or to a tenth of the cost of a constant prediction, whichever is larger. All are those of the
        compressed problem. ``"auto"`` is 0.05 with compressed values, otherwise 0.01. A descent ends at a gap of a tenth of
        ``tol``, and one of a fifth or less counts as a solution.
    max_iter
        Maximum number of walks of the descent and iterations of ADMM, on all compressions together.
    polish
        Whether conjugate SMO continues with the exact kernel to the exact solution of every model, as `CSMOClassifier` does
        with ``tol=1e-3``. It cannot be combined with ``predict_with="compressed"``.
    class_weight
        Weights of the classes, by which C is multiplied. A dictionary maps labels to weights; labels that it lacks have weight
        1. ``"balanced"`` is n / (classes * rows of the class), in which rows count by their weights. None gives every class
        weight 1. Use ``"balanced"`` when one class is rare.

    Attributes
    ----------
    classes_ : [classes]
        The labels, sorted.
    support_ : int32 [n_support]
        Indices of the support vectors among the rows.
    support_vectors_ : float64 [n_support, features]
        The support vectors. With compressed values, rows of skeletons are among them, whose coefficients may be 0.
    dual_coef_ : float64 [machines, n_support]
        Coefficients y_i alpha_i; one machine for two classes, otherwise one for each class.
    intercept_ : float64 [machines]
        The intercept of each machine. With exact values, it is corrected for them if the rows then cost clearly less.
    predict_with_ : str
        The kernel of this model's predictions, ``"compressed"`` or ``"exact"``.
    n_iter_ : int
        Number of walks and iterations, without those of an exact solution.
    beta_ : float
        The last penalty; 0 if ADMM was not needed.
    primal_residual_, dual_residual_, gap_ : float
        Relative residuals of ADMM and relative gap at the end. After an exact solution, the gap is that of the exact problem.
    compression_error_ : float
        An estimate of |(K - K~) V| / |K V|; see `streamsvm.batch.hss.HSSMatrix`.
    value_error_ : float
        Root mean square difference between the values of the compressed expansion and the exact ones, over up to 256 rows at
        the margin or over 256 random rows, whichever is larger. For random rows, values beyond twice the margin count as twice
        the margin. For a model that was solved exactly, it is that of the solution it started from.
    ranks_ : int64 [levels, 2]
        The smallest and the largest rank of each level of the tree.
    compressed_nbytes_ : int
        Bytes of the compressed matrix.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small. The
        message says which one, and what to change.

    Warns
    -----
    ConvergenceWarning
        The residuals or the gap are above the tolerance after ``max_iter`` iterations, or the gap is above 1e-3 after the
        polish. With ``predict_with="exact"`` and ``rel_tol="auto"``: values differ from exact ones by more than the margin.
    RuntimeWarning
        The error of the compression is above its tolerance.

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


@dataclass(eq=False, repr=False, kw_only=True)
class HSSADMMRegressor(KernelRegressor, HSSADMM):
    """Support vector regression for very many rows: ADMM on a compressed kernel matrix.

    Use it to fit several values of C with `fit_path`: the kernel matrix is compressed once, for all iterations and all values
    of C. For a single model, `CSMORegressor` is quicker up to 50,000 rows, and `HierarchicalSVR` above. The problem is that of
    `CSMORegressor`, solved as `HSSADMMClassifier` describes.

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
        Maximum memory in bytes of a compressed matrix and its factorisation; None sets no limit. It does not count 8 bytes a
        row for each of about ten columns of every C, nor the previous matrix while a closer one is made.
    random_state
        Seed of the random choices in the compression, for repeatable fits. None uses a different seed each time.
    verbose
        Whether to show progress on standard error.
    predict_with
        Kernel of the predictions. ``"compressed"``: the kernel of the compressed matrix, found by dual descent along the tree,
        and by ADMM where that is slow; predictions jump a little where leaves meet. ``"auto"``: the same, but a model for which
        this is not accurate enough is solved with the exact kernel if that is cheap; ``"exact"`` if ``beta`` is ``"paper"``.
        ``"exact"``: the exact kernel, with coefficients that ADMM finds on the compressed matrix, which may be compressed
        several times. `HSSADMMClassifier` gives the limits.
    rel_tol
        Relative error that the compression may have for coefficients whose sum is zero (see
        `streamsvm.batch.hss.HSSMatrix.compress`). A number asks for one compression to that error. ``"auto"`` is one compression
        of rank ``max_rank``, whatever its error. With ``predict_with="exact"``, ``"auto"`` begins at 0.3, and continues with 0.1,
        0.03 and so on down to 0.001 for models whose values differ from exact ones by more than 0.3 of the margin while ranks
        are below half a leaf, or by more than the margin whatever the ranks. The margin is epsilon or a tenth of the targets'
        standard deviation, whichever is larger. With ``beta="paper"``, it stays at 0.3.
    abs_tol
        Absolute error that the compression may have (see `streamsvm.batch.hss.HSSMatrix.compress`); the looser of the two counts.
    max_rank
        Maximum number of rows of a skeleton, at least 1. ``"auto"`` is 200, or 100 for more than 50,000 rows of up to 16
        features. It is 1000 with ``predict_with="exact"``, and with ``predict_with="auto"`` and a number as ``rel_tol``. A
        higher rank is more accurate, and costs more.
    n_neighbors
        Approximate number of nearest rows of each row by which skeletons are chosen, at least 4. ``"auto"`` is 16, or 64 where
        ``max_rank`` is 1000.
    leaf_size
        Maximum number of rows of a leaf, at least 2. ``"auto"`` is 512, or 256 where ``max_rank`` is 1000.
    beta
        Penalty of the augmented Lagrangian. A number above 0 stays as it is. ``"balanced"`` follows the residuals, for which
        the matrix is factorised a few more times. ``"paper"`` does what the source of `HSSADMMClassifier` does.
    relaxation
        Over-relaxation of ADMM, above 0 and below 2. The fit converges for any such value and any ``beta``, although slowly for
        unsuitable ones.
    tol
        Relative primal and dual residuals at which the fit ends, provided that the duality gap is at most ten times as large.
        ``"auto"`` is 0.05 with compressed values, otherwise 0.01. A descent ends at a gap of a tenth of ``tol``.
    max_iter
        Maximum number of walks of the descent and iterations of ADMM, on all compressions together.
    polish
        Whether conjugate SMO continues with the exact kernel to the exact solution of every model, as `CSMORegressor` does with
        ``tol=1e-3``. It cannot be combined with ``predict_with="compressed"``.
    epsilon
        Largest error that costs nothing, in the units of y; at least 0. A larger epsilon gives fewer support vectors.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the support vectors among the rows.
    support_vectors_ : float64 [n_support, features]
        The support vectors. With compressed values, rows of skeletons are among them, whose coefficients may be 0.
    dual_coef_ : float64 [1, n_support]
        The coefficients of the support vectors.
    intercept_ : float64 [1]
        The intercept. With exact values, it is corrected by their mean difference from compressed ones, over rows at the
        margin.
    predict_with_, n_iter_, beta_, primal_residual_, dual_residual_, gap_
        As in `HSSADMMClassifier`.
    compression_error_, value_error_, ranks_, compressed_nbytes_
        As in `HSSADMMClassifier`.

    Raises
    ------
    ValueError
        From `fit`: a parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small. The
        message says which one, and what to change.

    Warns
    -----
    ConvergenceWarning, RuntimeWarning
        As in `HSSADMMClassifier`.

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
