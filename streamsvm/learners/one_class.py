"""An online one-class support vector machine for anomaly detection."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any, overload

import numpy as np
from river import base

from streamsvm.core.budget import Removal, Strategy
from streamsvm.core.checks import parameter
from streamsvm.core.frames import FrameBatch, to_matrix, to_series
from streamsvm.core.steps.iterates import DECISION, ONE_CLASS
from streamsvm.learners.bsgd import CAPPED, Descent
from streamsvm.learners.estimator import learner
from streamsvm.learners.merging import MergeableExpansion

_MAX_DEVIATION = 1e100  # larger deviations are clipped, so that their squares do not overflow


@learner
class OneClassBSGD(Descent, MergeableExpansion, base.AnomalyDetector):
    """A one-class SVM for anomaly detection that learns row by row, with a budget of support vectors.

    It needs no labels. `score_one` returns an anomaly score from 0 to 1, as river's ``HalfSpaceTrees`` does, so that river's
    metrics and filters can be used. `decision_function_one` compares a row with a threshold that about a fraction ``nu`` of
    recent rows is below. The scores do not depend on ``nu``.

    Notes
    -----
    The kernel expansion is made of rows whose decision value is below the running median, with the weight that nu = 0.5 has in
    the reference: an expansion of many rows ranks rows better than one of the few rows outside of a large region. The threshold
    is a running quantile of decision values, and minus ``intercept``. With the RBF kernel it is above 0, the value of the
    expansion far from all rows. A row is forgotten after about 1,000 others.

    A score compares the decision value of a row with those of recent rows: it is the distribution function of Student's t with
    two degrees of freedom, at the difference from their mean, divided by their mean absolute deviation. A row with the mean
    decision value has 0.5, and most rows have less. At any one time, a larger decision value means a smaller score. Scores of
    different times compare with different rows, because decision values drift.

    With ``gamma="scale"`` and ``scaling="auto"``, the kernel is narrower than those of other learners: gamma is 4 times as large
    without binary features.

    References
    ----------
    Schoelkopf, B., Platt, J., Shawe-Taylor, J., Smola, A., Williamson, R. (2001). Estimating the support of a high-dimensional
    distribution. The objective, for nu = 0.5, is nu/2 |f|^2 - nu rho + mean of max(0, rho - f(x)), which is theirs times nu. A
    row takes O(B d).

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
    """The fraction of rows to leave outside the learned region, where `decision_function_one` is negative: above 0, and at most
    1. Scores do not depend on it.
    """
    maintenance: Strategy | None = None
    averaging: int = 2000
    """The number of recent rows that the average of the iterates represents; 0 turns averaging off. The attribute
    ``follows_average`` tells whether scores follow the average or the last iterate.
    """
    seed: int | None = None

    _loss = ONE_CLASS

    def _make_rule_state(self) -> dict[str, Any]:
        """Return a dict with the initial values of the fields that gradient descent has in the model's memory: learning rate
        schedule, step size, and l2, which is ``nu`` here.
        """
        return {"schedule": CAPPED, "eta0": 1.0, "l2": self.nu, "fit_intercept": True}

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"budget": 20}
        yield {"budget": 20, "nu": 0.5, "maintenance": Removal("random")}

    def check_one(self, x: Mapping[Any, Any], y: Any = None) -> None:  # noqa: ARG002
        """Check that `learn_one` would accept the row ``x``, without learning it. ``y``, the label of other learners, is ignored.

        Raises
        ------
        ValueError
            There are more features than ``max_features``, with ``overflow="raise"``, or a new feature name is too long.
        """
        self._features.check_names(x)

    def learn_one(self, x: Mapping[Any, Any]) -> None:
        """Learn the row ``x``, a mapping of feature names to numbers, without a label.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers. Missing features count as 0.

        Raises
        ------
        ValueError
            A feature is not a finite number, or there are more than ``max_features`` with ``overflow="raise"``. The model does
            not change.
        """
        self._learn_row(x, 0.0, 1.0)

    def score_one(self, x: Mapping[Any, Any]) -> float:
        """Return the anomaly score of the row ``x``, a float from 0 to 1: larger for more anomalous rows, and below 0.5 for
        most rows.

        Parameters
        ----------
        x
            The row: a mapping of feature names to numbers. Features that the model has not learned are ignored.

        Returns
        -------
        The score: larger for more anomalous rows, and below 0.5 for most rows. Until two different rows have been learned it is
        0, because river's filters only learn rows with small scores.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        decision, (center, size) = self._compute_output(x, DECISION), self._recent_center_and_size()
        if size == 0.0:
            return 0.0
        z = min(max((decision - center) / size, -_MAX_DEVIATION), _MAX_DEVIATION)
        return 0.5 - 0.5 * z / math.sqrt(2.0 + z * z)

    def decision_function_one(self, x: Mapping[Any, Any]) -> float:
        """Return the decision value of the row ``x``: the kernel expansion minus the learned threshold, below 0 for anomalous
        rows.

        Parameters
        ----------
        x
            The row, as in `score_one`.

        Returns
        -------
        A float, below 0 outside the learned region, and 0 before the first row was learned.
        """
        return self._compute_output(x, DECISION)

    def is_anomaly_one(self, x: Mapping[Any, Any]) -> bool:
        """Return whether the row ``x`` is outside the learned region: whether its `decision_function_one` is below 0."""
        return self.decision_function_one(x) < 0.0

    def _recent_center_and_size(self) -> tuple[float, float]:
        """Return the mean of the decision values of recent rows, and their mean absolute deviation from it (0 if all were
        equal).
        """
        common, iterate = self._common[0], int(self.follows_average)
        return float(common["center"][iterate]), float(common["size"][iterate])

    def learn_many(self, X: Any) -> None:
        """Learn the rows of ``X``, a frame or 2-D array (dense or sparse), in order, without labels. The result is the same as
        that of `learn_one` for each row.
        """
        matrix, names, _ = to_matrix(X, self._dtype)
        n = matrix.shape[0]
        self._learn_batch(FrameBatch(matrix, names, [], np.ones(n), np.arange(n), n))

    def _encode_targets(self, batch: FrameBatch) -> tuple[np.ndarray, np.ndarray]:
        """Return zeros as targets of the rows of ``batch``, float64 [n], because there are no labels, and 1 as the number of
        outputs that each row needs, int64 [n].
        """
        return np.zeros(batch.n_in_call), np.ones(batch.n_in_call, np.int64)

    @overload
    def score_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def score_many(self, X: Any) -> Any: ...
    def score_many(self, X: Any) -> Any:
        """Return the anomaly score of each row of ``X``, from 0 to 1: float64 [n], or a series if X is a frame. A larger score is
        more anomalous, as in `score_one`.
        """
        decisions, like = self._compute_outputs(X, DECISION)
        center, size = self._recent_center_and_size()
        if size == 0.0:
            return to_series(np.zeros(len(decisions)), like)
        z = np.clip((decisions[:, 0] - center) / size, -_MAX_DEVIATION, _MAX_DEVIATION)
        return to_series(0.5 - 0.5 * z / np.sqrt(2.0 + z * z), like)

    @overload
    def decision_function_many(self, X: np.ndarray) -> np.ndarray: ...
    @overload
    def decision_function_many(self, X: Any) -> Any: ...
    def decision_function_many(self, X: Any) -> Any:
        """Return the decision value of each row of ``X``, below 0 for anomalous rows: float64 [n], or a series if X is a
        frame.
        """
        decisions, like = self._compute_outputs(X, DECISION)
        return to_series(decisions[:, 0], like)
