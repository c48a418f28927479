"""Support vector machines of very many rows, by ADMM on a compressed kernel matrix."""

from __future__ import annotations

from dataclasses import dataclass

from streamsvm.batch.hss_admm.machine import HSSADMM
from streamsvm.batch.kernel_machine import KernelClassifier, KernelRegressor

__all__ = ["HSSADMMClassifier", "HSSADMMRegressor"]


@dataclass(eq=False, repr=False, kw_only=True)
class HSSADMMClassifier(KernelClassifier, HSSADMM):
    """A support vector classifier for very many rows: ADMM on a compressed kernel matrix.

    The problem is that of `CSMOClassifier`. The fit replaces the kernel matrix by a compressed one, for all iterations and all
    values of C. Predictions use the compressed matrix's own kernel, so that a machine is trained and predicts in one space; a
    model that this does not serve is solved with the exact kernel by default, where rows are so few that it is cheap. Time and
    memory are about linear in the number of rows, if the rows have few features (or lie as if they had). Up to 50,000 rows
    `CSMOClassifier` is quicker, and `HierarchicalSVC` from there on. More than two classes have one machine each, against all
    others; they share the compression.

    Parameters
    ----------
    C
        The bound of a dual coefficient, before it is multiplied by the weights of its row and class.
    kernel, gamma, degree, coef0, class_weight
        As in `CSMOClassifier`.
    predict_with
        ``"compressed"``: values are those of the compressed matrix's own kernel at new rows, see
        `streamsvm.hss.HSSMatrix.extend`. The fit begins by dual descent along the tree, as `HierarchicalSVC`, each C from the
        one before; ADMM goes on where that is slow. Values jump a little where leaves meet.

        ``"auto"``: the same; but the models of a C whose values differ from exact ones by more than 0.15 of the margin, or that
        30 walks of the descent do not solve, are solved with the exact kernel as by ``polish``, if rows times support vectors
        are at most 10^9, in steps whose number times the rows is at most 3 10^9. With ``beta="paper"`` it is ``"exact"``.

        ``"exact"``: values are those of the exact kernel for coefficients of the compressed one, by ADMM alone; the fit
        compresses again and again until values agree, which takes minutes where the kernel is broad or rows have many features.
    rel_tol
        Error that the compression may have, see `streamsvm.hss.HSSMatrix.compress`, for coefficients whose sum is zero.
        ``"auto"``: 0.3; then 0.1, 0.03 and so on to 0.001 for models whose values differ from exact ones by more than 0.3 of the
        margin while ranks are below half a leaf, or by more than the margin whatever the ranks. A warning tells of differences
        above the margin that remain. With ``beta="paper"`` it stays at 0.3. That is with ``predict_with="exact"``; otherwise
        ``"auto"`` is one compression to ``max_rank``, whatever its error, and a number one compression to that error.
    max_rank, n_neighbors, leaf_size
        Of the compression. ``"auto"``: 200, 16 and 512, and a rank of 100 for more than 50,000 rows of up to 16 features; 1000,
        64 and 256 with ``predict_with="exact"``, and with ``"auto"`` for a tolerance that is given.
    abs_tol, memory_limit
        Of the compression. The limit holds for a compressed matrix with its factorisation; 8 bytes a row for each of some ten
        columns of every machine and C are not in it, nor is the matrix before while a closer one is made.
    beta
        Of the augmented Lagrangian: a number above 0; ``"balanced"``: it follows the residuals, for which the matrix is
        factorised a few times more; ``"paper"``: as in the source, 100 (1,000; 10,000) for fewer than 10^5 (10^6; more) rows,
        eleven iterations from 0 without relaxation, and residuals are ignored.
    relaxation
        Over-relaxation, above 0 and below 2. The fit converges for any such value and any ``beta``, if slowly for unsuitable
        ones: the compressed matrix has no negative eigenvalue but those of rounding.
    tol
        Relative primal and dual residuals at which the fit ends, if the duality gap is at most ten times as much, relative to the
        objective or to a tenth of the cost of a constant, if that is more. All are those of the compressed problem. ``"auto"``:
        0.01; 0.05 with compressed values. A descent ends at a gap of a tenth of it, and one of a fifth or less is a solution.
    max_iter
        Walks of the descent and iterations of ADMM, at most, on all compressions together.
    polish
        Whether conjugate SMO goes on with the exact kernel to the exact solution of every model, as `CSMOClassifier` with
        ``tol`` 1e-3. Not with ``predict_with="compressed"``.
    random_state
        Seed of random choices in the compression; None: another one each time.
    verbose
        Whether progress is shown on standard error.

    Attributes
    ----------
    classes_ : [classes]
    support_ : int32 [n_support]
    support_vectors_ : float64 [n_support, features]
        With compressed values, rows of skeletons are among them, whose coefficients may be 0.
    dual_coef_ : float64 [machines, n_support]
        y_i alpha_i; one machine for two classes, else one for each class.
    intercept_ : float64 [machines]
        With exact values, corrected for these if rows cost clearly less so.
    predict_with_ : str
        ``"compressed"`` or ``"exact"``: the kernel of this model's predictions.
    n_iter_ : int
        Walks and iterations, without those of an exact solution.
    beta_ : float
        The last one; 0 where ADMM was not needed.
    primal_residual_, dual_residual_, gap_ : float
        Relative, at the end; residuals are those of ADMM. After an exact solution the gap is that of the exact problem.
    compression_error_ : float
        An estimate of |(K - K~) V| / |K V|, see `streamsvm.hss.HSSMatrix`.
    value_error_ : float
        Root mean square difference of the compressed expansion's values from the exact ones, over up to 256 rows at the margin or
        over 256 random rows, whichever is more; of random rows, values beyond twice the margin count as there. For a model that
        was solved exactly, of the start of that.
    ranks_ : int64 [levels, 2]
    compressed_nbytes_ : int

    Raises
    ------
    ValueError
        When fitted: a parameter is out of its range, X, y or a weight cannot be learned, or ``memory_limit`` is too small; the
        message says which, and what would do.

    Warns
    -----
    ConvergenceWarning
        Residuals or the gap are above the tolerance after ``max_iter`` iterations, or the gap is above 1e-3 after the polish;
        with ``predict_with="exact"`` and ``rel_tol="auto"``, values differ from exact ones by more than the margin.
    RuntimeWarning
        The compression's error is above its tolerance.

    Notes
    -----
    O(n (m + r) (m + c + d)) for the compression, O(n r) a walk and O(n (m + r)) an iteration, for leaves of m rows, ranks of r
    and c sampled columns; a prediction O(m (d + machines)), or as many kernel values as there are support vectors where it is
    exact. A fit that is interrupted (Ctrl-C) once it walks or iterates sets the attributes to the last iterate, then raises
    KeyboardInterrupt; before, it leaves the model as it was.

    References
    ----------
    Cipolla, S., Gondzio, J. (2021). Training very large scale nonlinear SVMs using alternating direction method of multipliers
    coupled with the hierarchically semi-separable kernel approximations. Algorithms 2 and 3; the latter writes x_k where q_k is
    meant, and its bias has the opposite sign of the one that its decision function adds.
    Chen, J., Avron, H., Sindhwani, V. (2017). Hierarchically compositional kernels for scalable nonparametric learning. JMLR 18:
    compressed values. The descent is that of `HierarchicalSVC`.

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

    The problem is that of `CSMORegressor`; the rest is as in `HSSADMMClassifier`.

    Parameters
    ----------
    C
        The bound of a dual coefficient, before it is multiplied by the weight of its row.
    epsilon
        Errors up to this cost nothing.
    rel_tol
        As in `HSSADMMClassifier`; the margin of ``"auto"`` is epsilon or a tenth of the targets' deviation, whichever is more.
    kernel, gamma, degree, coef0, predict_with, abs_tol, max_rank, n_neighbors, leaf_size, beta, relaxation, tol, max_iter, polish
        As in `HSSADMMClassifier`.
    memory_limit, random_state, verbose
        As in `HSSADMMClassifier`.

    Attributes
    ----------
    support_, support_vectors_, n_iter_, beta_, primal_residual_, dual_residual_, gap_
        As in `HSSADMMClassifier`.
    predict_with_, compression_error_, value_error_, ranks_, compressed_nbytes_
        As in `HSSADMMClassifier`.
    dual_coef_ : float64 [1, n_support]
    intercept_ : float64 [1]
        With exact values, corrected by their mean difference from compressed ones, over rows at the margin.

    Raises
    ------
    ValueError
        As `HSSADMMClassifier`; warnings, cost, interruption and references are the same as well.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import HSSADMMRegressor

    >>> X = np.linspace(-3.0, 3.0, 2000)[:, np.newaxis]
    >>> model = HSSADMMRegressor(C=10.0, epsilon=0.05).fit(X, np.sin(X[:, 0]))
    >>> print(f"{model.predict([[1.0]])[0]:.1f}")
    0.8
    """
