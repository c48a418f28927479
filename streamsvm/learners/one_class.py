"""The one-class support vector machine, as an anomaly detector."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import numpy as np
from river import base

from streamsvm.budget import Removal, Strategy
from streamsvm.checks import parameter
from streamsvm.frames import Batch, as_matrix, as_series
from streamsvm.learners.bsgd import CAPPED, Descent
from streamsvm.learners.compiled.iterates import CHOSEN, ONE_CLASS
from streamsvm.learners.estimator import learner

__all__ = ["OneClassBSGD"]


@learner
class OneClassBSGD(Descent, base.AnomalyDetector):
    """A one-class support vector machine that learns row by row within a budget of support vectors.

    It learns where most rows are: a threshold on the kernel expansion below which a share of about ``nu`` of the rows falls.

    Parameters
    ----------
    budget, kernel, gamma, maintenance, degree, coef0, max_features, overflow, seed
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

    Examples
    --------
    >>> import random
    >>> from streamsvm import OneClassBSGD

    >>> rng = random.Random(0)
    >>> model = OneClassBSGD(budget=50, nu=0.1)
    >>> for _ in range(2000):
    ...     model.learn_one({"a": rng.gauss(0.0, 1.0), "b": rng.gauss(0.0, 1.0)})
    >>> model.score_one({"a": 0.0, "b": 0.0}) < 0.0 < model.score_one({"a": 4.0, "b": -4.0})
    True
    """

    nu: float = parameter(0.1, least=1e-9, high=1.0)
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

    def learn_one(self, x: Mapping[Hashable, Any]) -> None:
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

    def score_one(self, x: Mapping[Hashable, Any]) -> float:
        """How anomalous a row is: the threshold minus the kernel expansion, above 0 outside; 0 before any learning."""
        return -self._decide_row(x, CHOSEN)

    def learn_many(self, X: Any) -> None:
        """Learn the rows of a frame or a 2-D numpy array, one after the other: exactly what `learn_one` does with each."""
        matrix, names, _ = as_matrix(X)
        n = len(matrix)
        self._learn_batch(Batch(matrix, names, [], np.ones(n), np.arange(n), n))

    def _targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        return np.zeros(len(batch.matrix)), np.ones(len(batch.matrix), np.int64)

    def score_many(self, X: Any) -> Any:
        """`score_one` for each row: float64 [n], a series where X is a frame."""
        decisions, like = self._decide_rows(X, CHOSEN)
        return as_series(-decisions[:, 0], like)
