"""The one-class support vector machine, as an anomaly detector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, overload

import numpy as np
from river import base

from streamsvm.budget import Removal, Strategy
from streamsvm.checks import parameter
from streamsvm.frames import Batch, as_matrix, as_series
from streamsvm.learners.bsgd import CAPPED, Descent
from streamsvm.learners.compiled.iterates import CHOSEN, ONE_CLASS
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

__all__ = ["OneClassBSGD"]

_FARTHEST = 1e100  # deviation that a score tells from a smaller one, before floating point does


@learner
class OneClassBSGD(Descent, MergeableExpansion, base.AnomalyDetector):
    """A one-class support vector machine that learns row by row within a budget of support vectors.

    It learns where most rows are: a threshold on the kernel expansion below which a share of about ``nu`` of the rows falls.
    Scores lie between 0 and 1, as those of river's ``HalfSpaceTrees``, for river's metrics and filters.

    Parameters
    ----------
    budget, kernel, gamma, maintenance, degree, coef0, scaling, max_features, overflow, seed
        As in `BSGDClassifier`.
    nu
        The share of rows that are to lie outside; above 0, at most 1.
    averaging
        Rows that the average of the iterates remembers, which scores are of; 0: they are of the last iterate.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    References
    ----------
    Schoelkopf, B., Platt, J., Shawe-Taylor, J., Smola, A., Williamson, R. (2001). Estimating the support of a high-dimensional
    distribution: nu/2 |f|^2 - nu rho + mean of max(0, rho - f(x)), which is theirs times nu, by the steps of `BSGDClassifier`
    with l2 = nu. O(B d) a row.

    Notes
    -----
    The score compares a row's decision value with those of recent rows: it is Student's distribution function of two degrees of
    freedom, at the deviation from their mean in mean absolute deviations. A usual row has about 0.5. The larger the decision
    value, the smaller the score; but decision values of different times are compared with different rows, as they drift. To
    call a share of rows anomalous, use ``river.anomaly.QuantileFilter``; the threshold that was learned is where
    `decision_function_one` is 0.

    Examples
    --------
    >>> import random
    >>> from streamsvm import OneClassBSGD

    >>> rng = random.Random(0)
    >>> model = OneClassBSGD(budget=50, nu=0.1)
    >>> for _ in range(2000):
    ...     model.learn_one({"a": rng.gauss(0.0, 1.0), "b": rng.gauss(0.0, 1.0)})
    >>> model.score_one({"a": 0.0, "b": 0.0}) < 0.9 < model.score_one({"a": 4.0, "b": -4.0})
    True
    >>> model.decision_function_one({"a": 4.0, "b": -4.0}) < 0.0 < model.decision_function_one({"a": 0.0, "b": 0.0})
    True
    """

    nu: float = parameter(default=0.1, least=1e-9, high=1.0)
    maintenance: Strategy | None = None
    averaging: int = 2000
    seed: int | None = None

    _loss = ONE_CLASS

    def _rule_state(self) -> dict[str, Any]:
        # Uncapped, the first step of the threshold would be 1 / nu, and many rows would be needed to come back.
        return {"schedule": CAPPED, "eta0": 1.0, "l2": self.nu, "fit_intercept": True}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "nu": 0.5, "maintenance": Removal("random")}

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        """Learn one row.

        Parameters
        ----------
        x
            Feature name to number. A name that is missing counts as 0.

        Raises
        ------
        ValueError
            A feature is not a finite number, or there are more than ``max_features`` with ``overflow="raise"``. The model is as
            it was then.
        """
        self._learn_row(x, 0.0, 1.0)

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Return how anomalous a row is.

        Parameters
        ----------
        x
            Feature name to number. Features that were never learned are ignored.

        Returns
        -------
        A number from 0 to 1, the larger the more anomalous; 0.5 for a row like the others. It is 0 before two
        different rows were learned: filters of river let only rows of small scores be learned.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        decision, (center, size) = self._decide_row(x, CHOSEN), self._usual()
        if size == 0.0:
            return 0.0
        z = min(max((decision - center) / size, -_FARTHEST), _FARTHEST)
        return 0.5 - 0.5 * z / math.sqrt(2.0 + z * z)

    def decision_function_one(self, x: Mapping[Any, Any]) -> float:
        """The decision value of a row: the kernel expansion minus the threshold, below 0 outside; 0 before any learning.

        Parameters
        ----------
        x
            As in `score_one`.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        return self._decide_row(x, CHOSEN)

    def _usual(self) -> tuple[float, float]:
        # The mean of recent decision values, and their mean deviation from it: 0 where all were the same.
        common, iterate = self._common[0], int(self.averaged)
        return float(common["center"][iterate]), float(common["size"][iterate])

    def learn_many(self, X: Any) -> None:
        """Learn the rows of a frame or a 2-D numpy array, one after the other: exactly what `learn_one` does with each."""
        matrix, names, _ = as_matrix(X)
        n = len(matrix)
        self._learn_batch(Batch(matrix, names, [], np.ones(n), np.arange(n), n))

    def _targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(batch.matrix)), np.ones(len(batch.matrix), np.int64)

    @overload
    def score_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def score_many(self, X: Any) -> Any: ...
    def score_many(self, X: Any) -> Any:
        """`score_one` for each row: float64 [n], a series where X is a frame."""
        decisions, like = self._decide_rows(X, CHOSEN)
        center, size = self._usual()
        if size == 0.0:
            return as_series(np.zeros(len(decisions)), like)
        z = np.clip((decisions[:, 0] - center) / size, -_FARTHEST, _FARTHEST)
        return as_series(0.5 - 0.5 * z / np.sqrt(2.0 + z * z), like)

    @overload
    def decision_function_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def decision_function_many(self, X: Any) -> Any: ...
    def decision_function_many(self, X: Any) -> Any:
        """`decision_function_one` for each row: float64 [n], a series where X is a frame."""
        decisions, like = self._decide_rows(X, CHOSEN)
        return as_series(decisions[:, 0], like)
