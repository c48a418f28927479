"""One-class support vector machines by conjugate SMO, with scikit-learn's conventions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import OutlierMixin

from streamsvm.batch.csmo.machine import CSMO, Part
from streamsvm.batch.kernel_machine import Training
from streamsvm.checks import parameter

__all__ = ["CSMOOneClass"]


@dataclass(eq=False, repr=False, kw_only=True)
class CSMOOneClass(OutlierMixin, CSMO):  # type: ignore[misc]
    """A one-class support vector machine, solved exactly by conjugate SMO.

    min over alpha of 1/2 sum_ij alpha_i alpha_j k(x_i, x_j), where 0 <= alpha_i <= w_i and sum_i alpha_i = nu sum_i w_i. At most
    a part nu of the rows' weight is outside of the set that is found. It stands in for scikit-learn's OneClassSVM.

    Parameters
    ----------
    nu
        Above 0 and at most 1: the most that may be outside, and the least that are support vectors, as parts of all rows.
    kernel, gamma, degree, coef0, tol, cache_size, conjugate, shrinking, max_iter, verbose, n_jobs
        As in `CSMOClassifier`.

    Attributes
    ----------
    support_, support_vectors_, coef_, n_support_, fit_status_, shape_fit_, gap_, duality_gap_, objective_
        As in `CSMORegressor`.
    dual_coef_ : float64 [1, n_support]
        alpha_i; a CSR array where X was sparse.
    intercept_ : float64 [1]
    offset_ : float64 [1]
        Minus the intercept: the score from which on a row is inside.
    n_iter_ : int

    Raises
    ------
    ValueError
        As `CSMOClassifier`.

    Warns
    -----
    ConvergenceWarning
        As `CSMOClassifier`; memory, interruption and references are the same as well.

    Notes
    -----
    The first nu n rows start at their bound, which takes as many columns: O(nu n^2 d) before the first step.

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
        """Minus the intercept, float64 [1]: the score from which on a row is inside."""
        return -self.intercept_

    @property
    def _share(self) -> float:  # type: ignore[override]
        return float(self.nu)

    @property
    def _epsilon(self) -> float:
        return 0.0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # type: ignore[override] # noqa: ARG002
        """Learn the set of rows that are usual. A fit that raises a ValueError leaves the model as it was.

        Parameters
        ----------
        X
            As of `CSMOClassifier.fit`.
        y
            Ignored.
        sample_weight
            Numbers of at least 0, [n]; None: all 1.

        Returns
        -------
        The estimator.

        Raises
        ------
        ValueError, TypeError
            As `CSMOClassifier.fit`.
        """
        return self._fit(X, None, sample_weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return by how much the scores of rows are above the offset, float64 [n]; negative outside.

        Raises
        ------
        ValueError, sklearn.exceptions.NotFittedError
            As `predict`.
        """
        return self._decide(self._checked(X))[:, 0]

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the sums of the expansion at rows, float64 [n]: how usual they are.

        Raises
        ------
        ValueError, sklearn.exceptions.NotFittedError
            As `predict`.
        """
        return self.decision_function(X) + self.offset_

    def _parts(self, training: Training) -> list[Part]:
        return [Part(training.counted, np.ones(len(training.counted), bool))]

    def _predictions(self, f: np.ndarray) -> np.ndarray:
        return np.where(f[:, 0] >= 0.0, 1, -1).astype(np.intp)
