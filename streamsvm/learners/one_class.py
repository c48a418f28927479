"""The one-class support vector machine, an anomaly detector."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, overload

import numpy as np
from river import base

from streamsvm.core.budget import Removal, Strategy
from streamsvm.core.checks import parameter
from streamsvm.core.frames import Batch, to_matrix, to_series
from streamsvm.core.steps.iterates import DECISION, ONE_CLASS
from streamsvm.learners.bsgd import CAPPED, Descent
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

_FARTHEST = 1e100  # deviation that a score tells from a smaller one, before floating point does


@learner
class OneClassBSGD(Descent, MergeableExpansion, base.AnomalyDetector):
    """A one-class SVM that detects anomalies, learning row by row within a budget of support vectors.

    It needs no labels. It learns where most rows are, as a threshold on the kernel expansion that about a fraction ``nu`` of
    the rows falls below. `score_one` returns how anomalous a row is, from 0 to 1 like river's ``HalfSpaceTrees``, so that
    river's metrics and filters work with it.

    Notes
    -----
    A score compares the decision value of a row with those of recent rows. It is the distribution function of Student's t with
    two degrees of freedom, at the deviation from their mean in mean absolute deviations. A usual row has about 0.5. At any
    moment, the larger the decision value, the smaller the score. But scores of different times compare with different rows, as
    decision values drift.

    To call a fixed fraction of rows anomalous, use ``river.anomaly.QuantileFilter``. The threshold that was learned is where
    `decision_function_one` is 0, and minus ``intercept``.

    References
    ----------
    Schoelkopf, B., Platt, J., Shawe-Taylor, J., Smola, A., Williamson, R. (2001). Estimating the support of a high-dimensional
    distribution. The objective is nu/2 |f|^2 - nu rho + mean of max(0, rho - f(x)), which is theirs times nu, by the steps of
    `BSGDClassifier` with l2 = nu. A row costs O(B d).

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
    """The fraction of rows that should lie outside the learned region: above 0, and at most 1."""
    maintenance: Strategy | None = None
    averaging: int = 2000
    """The number of rows that the average of the iterates remembers; 0 turns averaging off. Scores follow the average or the
    last iterate, as the attribute ``follows_average`` says.
    """
    seed: int | None = None

    _loss = ONE_CLASS

    def _make_rule_state(self) -> dict[str, Any]:
        # Uncapped, the first step of the threshold would be 1 / nu, and many rows would be needed to come back.
        return {"schedule": CAPPED, "eta0": 1.0, "l2": self.nu, "fit_intercept": True}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "nu": 0.5, "maintenance": Removal("random")}

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        """Learn one row: a mapping of feature names to numbers. Features that it does not have count as 0.

        A ValueError says that a feature is not a finite number, or that there are more than ``max_features`` with
        ``overflow="raise"``. The model stays as it was.
        """
        self._learn_row(x, 0.0, 1.0)

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Return how anomalous a row is, from 0 to 1.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers. Features that were never learned are ignored.

        Returns
        -------
        A number from 0 to 1, larger for more anomalous rows, and about 0.5 for a row like the others. Until two different rows
        have been learned it is 0, because river's filters only learn rows of small scores.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        decision, (center, size) = self._compute_output(x, DECISION), self._recent_center_and_size()
        if size == 0.0:
            return 0.0
        z = min(max((decision - center) / size, -_FARTHEST), _FARTHEST)
        return 0.5 - 0.5 * z / math.sqrt(2.0 + z * z)

    def decision_function_one(self, x: Mapping[Any, Any]) -> float:
        """Return the decision value of a row, as in `score_one`: the kernel expansion minus the threshold.

        It is below 0 outside of the region that was learned, and 0 before any row was learned.
        """
        return self._compute_output(x, DECISION)

    def _recent_center_and_size(self) -> tuple[float, float]:
        # The mean of recent decision values, and their mean deviation from it: 0 where all were the same.
        common, iterate = self._common[0], int(self.follows_average)
        return float(common["center"][iterate]), float(common["size"][iterate])

    def learn_many(self, X: Any) -> None:
        """Learn the rows of a frame or a 2-D array, sparse or not, in order, exactly as `learn_one` learns each."""
        matrix, names, _ = to_matrix(X, self._dtype)
        n = matrix.shape[0]
        self._learn_batch(Batch(matrix, names, [], np.ones(n), np.arange(n), n))

    def _encode_targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(batch.n_in_call), np.ones(batch.n_in_call, np.int64)

    @overload
    def score_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def score_many(self, X: Any) -> Any: ...
    def score_many(self, X: Any) -> Any:
        """Return `score_one` of each row: float64 [n], or a series if X is a frame."""
        decisions, like = self._compute_outputs(X, DECISION)
        center, size = self._recent_center_and_size()
        if size == 0.0:
            return to_series(np.zeros(len(decisions)), like)
        z = np.clip((decisions[:, 0] - center) / size, -_FARTHEST, _FARTHEST)
        return to_series(0.5 - 0.5 * z / np.sqrt(2.0 + z * z), like)

    @overload
    def decision_function_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def decision_function_many(self, X: Any) -> Any: ...
    def decision_function_many(self, X: Any) -> Any:
        """Return `decision_function_one` of each row: float64 [n], or a series if X is a frame."""
        decisions, like = self._compute_outputs(X, DECISION)
        return to_series(decisions[:, 0], like)
