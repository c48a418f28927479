"""One-class support vector machines by conjugate SMO, with scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import OutlierMixin

from streamsvm.batch.csmo.machine import CSMO, Part
from streamsvm.batch.kernel_machine import Training
from streamsvm.core.checks import parameter


@dataclass(eq=False, repr=False, kw_only=True)
class CSMOOneClass(OutlierMixin, CSMO):  # type: ignore[misc]
    """A one-class support vector machine for anomalies, solved exactly by conjugate SMO.

    Use it in place of scikit-learn's OneClassSVM. It learns the set in which usual rows lie, and predicts 1 for rows inside and
    -1 for rows outside.

    The fit minimises 1/2 sum_ij alpha_i alpha_j k(x_i, x_j) over alpha, subject to 0 <= alpha_i <= w_i and
    sum_i alpha_i = nu sum_i w_i, where w_i is the weight of row i. At most a fraction nu of the total weight lies outside the
    set.

    Parameters
    ----------
    kernel
        Kernel of a row x and a support vector s:

        - ``"rbf"``: exp(-gamma |x - s|^2)
        - ``"linear"``: x.s
        - ``"poly"``: (gamma x.s + coef0)^degree
        - ``"sigmoid"``: tanh(gamma x.s + coef0)
        - ``"precomputed"``: X is the Gram matrix [n, n]. To predict, pass the kernel values with the rows of the fit, [m, n].
        - A function that takes m rows and k rows, and returns their kernel values [m, k]. The rows may be of any type that can
          be indexed. Predictions call it with the support vectors as the k rows.
    gamma
        Factor gamma of the kernel: a number of at least 0, ``"scale"`` or ``"auto"``. ``"scale"`` is one over the sum of the
        features' variances about their common mean, in which rows count by their weights. ``"auto"`` is one over the number of
        features. With the Gaussian kernel, a larger gamma makes the set follow the rows in more detail.
    degree
        Degree of the kernel ``"poly"``, from 0 to 100. Other kernels ignore it.
    coef0
        Constant term of the kernels ``"poly"`` and ``"sigmoid"``. With a value below 0, and always with ``"sigmoid"``, the
        problem may have several local minima. The fit then ends in one of them, as LIBSVM's does.
    tol
        Gap at which the fit ends: the amount by which the worst pair of dual coefficients may still violate the optimality
        conditions.
    cache_size
        Maximum memory for columns of the Gram matrix, in megabytes (2^20 bytes). There is always room for two columns. With few
        features, the fit uses at most 16 megabytes and 4 more for each feature, because columns that are cheap to compute again
        are not worth more memory. If the kernel is a function whose whole Gram matrix in float64 fits into the cache, the
        function is called once, for all of it; otherwise, it is called for columns.
    conjugate
        Whether the steps follow conjugate directions. False gives plain SMO.
    shrinking
        Whether rows that seem to have reached their bound leave the working set until the end.
    max_iter
        Maximum number of steps; -1 sets no limit.
    verbose
        Whether to show progress on standard error.
    n_jobs
        Number of threads: None is 1, -1 is one for each processor, -2 is one less, and so on. The results do not depend on it.
    nu
        Largest fraction of the rows that may lie outside, and smallest fraction that become support vectors; above 0 and at
        most 1. Set it to the fraction of anomalies that you expect.

    Attributes
    ----------
    support_ : int32 [n_support]
        Indices of the support vectors among the rows.
    support_vectors_ : float64 [n_support, features]
        The support vectors; a CSR matrix if X was sparse. If the kernel is a function, they are rows of X; with
        ``kernel="precomputed"``, the array is empty, [0, 0].
    n_support_ : int32 [1]
        Number of support vectors.
    dual_coef_ : float64 [1, n_support]
        Coefficients alpha_i of the support vectors; a CSR array if X was sparse.
    coef_ : float64 [1, features]
        Weights of the features, with ``kernel="linear"`` only; a CSR array if X was sparse.
    intercept_ : float64 [1]
        The intercept of the decision values.
    offset_ : float64 [1]
        Minus the intercept: the smallest score of a row that lies inside.
    n_iter_ : int
        Number of steps.
    fit_status_ : int
        0 if the fit converged, 1 if the gap is above ``tol``.
    shape_fit_ : tuple
        Shape of the X that was fitted.
    gap_ : float
        The gap, computed in float64.
    duality_gap_ : float
        The primal minus the dual objective. This value and ``objective_`` are exact to about six digits, because bounded
        variables enter with float32 kernel values.
    objective_ : float
        The dual objective, which the fit minimises.

    Raises
    ------
    ValueError
        A parameter is out of its range, or X or a weight cannot be learned. The message says which one.
    TypeError
        The Gram matrix is sparse.

    Warns
    -----
    ConvergenceWarning
        The gap is above ``tol`` at the end. The attributes are those of the last iterate, which is the best one, because each
        step lowers the objective.

    Notes
    -----
    The first nu n rows start at their bound. Each of them needs a column, which costs O(nu n^2 d) before the first step.
    Memory, threads and interrupts (Ctrl-C) are described in `CSMOClassifier`, together with the references on the solver.

    References
    ----------
    Schoelkopf, B., Platt, J. C., Shawe-Taylor, J., Smola, A. J., Williamson, R. C. (2001). Estimating the support of a
    high-dimensional distribution. Neural Computation 13.

    Examples
    --------
    >>> import numpy as np
    >>> from streamsvm.batch import CSMOOneClass

    >>> X = np.random.default_rng(0).normal(size=(300, 2))
    >>> model = CSMOOneClass(nu=0.05, gamma=0.2).fit(X)
    >>> model.predict([[0.0, 0.0], [6.0, 6.0]])
    array([ 1, -1])
    """

    nu: float = parameter(default=0.5, above=0.0, high=1.0)
    C: float = field(default=1.0, init=False)  # bounds are the weights: nu says how much may be outside

    @property
    def offset_(self) -> np.ndarray:
        """Minus the intercept, float64 [1]: the smallest score of a row that lies inside."""
        return -self.intercept_

    @property
    def _share(self) -> float:  # type: ignore[override]
        return float(self.nu)

    @property
    def _epsilon(self) -> float:
        return 0.0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # type: ignore[override] # noqa: ARG002
        """Learn the set in which usual rows lie. A fit that raises a ValueError leaves the model as it was.

        Parameters
        ----------
        X
            Rows to learn: an array or sparse matrix [n, features]; with ``kernel="precomputed"``, the Gram matrix [n, n]; if
            the kernel is a function, anything that it accepts, such as a list.
        y
            Ignored.
        sample_weight
            Weight of each row, at least 0, [n]. None gives every row weight 1.

        Returns
        -------
        The fitted estimator.

        Raises
        ------
        ValueError
            A parameter is out of its range, or X or a weight cannot be learned.
        TypeError
            The Gram matrix is sparse.
        """
        return self._fit(X, None, sample_weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return how far the score of each row is above the offset, float64 [n]; it is negative outside.

        Raises
        ------
        ValueError
            X does not fit the model, or holds a value that is not finite.
        sklearn.exceptions.NotFittedError
            The model is not fitted.
        """
        return self._decide(self._checked(X))[:, 0]

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the score of each row, float64 [n]; usual rows score high.

        The score is the kernel expansion without the intercept. Errors are those of `decision_function`.
        """
        return self.decision_function(X) + self.offset_

    def _parts(self, training: Training) -> list[Part]:
        return [Part(training.counted, np.ones(len(training.counted), bool))]

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        return np.where(f[:, 0] >= 0.0, 1, -1).astype(np.intp)
