"""The one-class support vector machine, solved exactly by conjugate SMO."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from sklearn.base import OutlierMixin

from streamsvm.batch.csmo.machine import CSMO
from streamsvm.batch.kernel_machine import TrainingData
from streamsvm.core.checks import parameter
from streamsvm.core.docstrings import complete_docstring


@complete_docstring
@dataclass(eq=False, repr=False, kw_only=True)
class CSMOOneClass(OutlierMixin, CSMO):  # type: ignore[misc]
    """A one-class support vector machine for anomalies, solved exactly by conjugate SMO.

    Use it in place of scikit-learn's OneClassSVM. It learns a set that contains most rows, and predicts 1 for rows inside and -1
    for rows outside.

    The fit minimises 1/2 sum_ij alpha_i alpha_j k(x_i, x_j) over alpha, subject to 0 <= alpha_i <= w_i and
    sum_i alpha_i = nu sum_i w_i, where w_i is the weight of row i. At most a fraction nu of the total weight lies outside the
    set.

    Notes
    -----
    The first nu n rows start at their bound. The gradient there costs O(nu n^2 d) before the first step.
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
    """Largest fraction of the rows that may lie outside, and smallest fraction that become support vectors; above 0 and at most
    1. Set it to the fraction of anomalies that you expect.
    """
    C: float = field(default=1.0, init=False)  # bounds are the weights; nu has the role of C

    @property
    def offset_(self) -> np.ndarray:
        """The smallest kernel score of a row that lies inside the learned set, float64 [1]: minus the intercept."""
        return -self.intercept_

    @property
    def _sum_share(self) -> float:  # type: ignore[override]
        """The sum of the dual coefficients as a share (0 to 1) of the sum of their upper bounds, which is the parameter
        ``nu``.
        """
        return float(self.nu)

    @property
    def _epsilon(self) -> float:
        """The half-width of the insensitive zone of the regression problem as which this estimator is solved: always 0."""
        return 0.0

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:  # type: ignore[override] # noqa: ARG002
        """Learn the set that contains most of the rows X; at most a share ``nu`` of them lies outside. A ValueError leaves the
        model unchanged.

        Parameters
        ----------
        X, sample_weight
            Rows to learn and their weights, as in `CSMOClassifier.fit`.
        y
            Ignored.

        Returns
        -------
        The fitted estimator.
        """
        return self._fit_machines(X, None, sample_weight)

    def decision_function(self, X: Any) -> np.ndarray:
        """Return the score of each row of X minus the threshold ``offset_``, float64 [n]: negative for rows outside the learned
        set.

        Raises
        ------
        ValueError
            X does not match the model, or has a value that is not finite.
        sklearn.exceptions.NotFittedError
            The model is not fitted.
        """
        return self._compute_decisions(self._check_rows(X))[:, 0]

    def score_samples(self, X: Any) -> np.ndarray:
        """Return the score of each row of X, float64 [n]: the higher, the more usual is the row. It is `decision_function` plus
        ``offset_``.

        The score is the kernel expansion without the intercept. Errors are those of `decision_function`.
        """
        return self.decision_function(X) + self.offset_

    def _assign_machines(self, training: TrainingData) -> tuple[np.ndarray, np.ndarray]:
        """Return the class index of each training row, int64 [n], which is always 1, and the pair of class indices of the only
        SVM, [[0, 1]]. An SVM with rows of its second class only has no negative coefficients.
        """
        return np.ones(len(training.weights), np.int64), np.array([[0, 1]])

    def _predict_from_decisions(self, f: np.ndarray) -> np.ndarray:
        """Return 1 for decision values ``f`` [n, 1] of at least 0, and otherwise -1, int [n]."""
        return np.where(f[:, 0] >= 0.0, 1, -1).astype(np.intp)
