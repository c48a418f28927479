"""Regressors that learn online: numbers to learn and to predict."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from river import base

from streamsvm.checks import checked_target, checked_weight, parameter
from streamsvm.frames import Batch, as_batch, as_series
from streamsvm.learners.compiled.iterates import CHOSEN, EPSILON_INSENSITIVE
from streamsvm.learners.estimator import OnlineEstimator, learner
from streamsvm.river_base import SupervisedEstimator

__all__ = ["OnlineRegressor"]


@learner
class OnlineRegressor(OnlineEstimator, SupervisedEstimator, base.MiniBatchRegressor):
    """A regressor with river's protocol and the epsilon-insensitive loss."""

    epsilon: float = parameter(0.1, least=0.0, high=1e15)

    _loss = EPSILON_INSENSITIVE

    def learn_one(self, x: Mapping[Hashable, Any], y: float, w: float = 1.0) -> None:
        w = 1.0 if w == 1.0 else checked_weight(w)
        if w != 0.0:
            self._learn_row(x, checked_target(y), w)

    def check_one(self, x: Mapping[Hashable, Any], y: float) -> None:
        """Check the names of a row's features, and its target, as `learn_one` does; nothing is learned.

        See `OnlineClassifier.check_one`.

        Parameters
        ----------
        x, y
            As in `learn_one`.

        Raises
        ------
        ValueError
            There are more features than ``max_features`` with ``overflow="raise"``, a new name is too long, or the target is not
            a finite number.
        """
        checked_target(y)
        self._features.check_names(x)

    def predict_one(self, x: Mapping[Hashable, Any], **_: Any) -> float:
        return self._decide_row(x, CHOSEN)

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        self._learn_batch(as_batch(X, y, w))

    def _targets(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        targets = np.empty(len(batch.y))
        for i, y in enumerate(batch.y):
            try:
                targets[i] = checked_target(y)
            except ValueError as error:
                batch.complain(i, error)
        return targets, np.ones(len(targets), np.int64)

    def predict_many(self, X: Any) -> Any:
        decisions, like = self._decide_rows(X, CHOSEN)
        return as_series(decisions[:, 0], like)
