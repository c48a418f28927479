"""Regressors that learn online: numbers to learn and to predict."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from river import base
from river.utils import dataframe

from streamsvm.checks import checked_target, checked_weight, parameter
from streamsvm.frames import Batch, as_batch
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.compiled.iterates import CHOSEN, EPSILON_INSENSITIVE
from streamsvm.learners.estimator import OnlineEstimator, learner

__all__ = ["BudgetedRegressor", "OnlineRegressor"]


@learner
class OnlineRegressor(OnlineEstimator, base.MiniBatchRegressor):
    """A regressor with river's protocol and the epsilon-insensitive loss."""

    epsilon: float = parameter(0.1, least=0.0, high=1e15)

    _loss = EPSILON_INSENSITIVE

    def learn_one(self, x: Mapping[Hashable, Any], y: float, w: float = 1.0) -> None:
        """Learn one row.

        Parameters
        ----------
        x
            Feature name to number. A name that is missing counts as 0.
        y
            The target.
        w
            The row's weight, at least 0. A row of weight 0 is ignored.

        Raises
        ------
        ValueError
            A feature, the target or the weight is not a finite number, or there are more features than ``max_features`` with
            ``overflow="raise"``. The model stays as it was.
        """
        w = 1.0 if w == 1.0 else checked_weight(w)
        if w != 0.0:
            self._learn_row(x, checked_target(y), w)

    def predict_one(self, x: Mapping[Hashable, Any], **_: Any) -> float:
        """Predict the target of one row.

        Parameters
        ----------
        x
            Feature name to number. Features that were never learned are ignored.

        Returns
        -------
        The target; 0 before any row was learned.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        return self._decide_row(x, CHOSEN)

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn the rows of a frame, one after the other: exactly what `learn_one` does with each.

        Parameters
        ----------
        X
            An eager frame that narwhals knows (pandas, polars, pyarrow, ...), [n rows, features]; or a 2-D numpy array, whose
            columns are the features 0, 1, ...
        y
            n targets: a series, an array or a sequence.
        w
            One weight for all rows, or n of them.

        Raises
        ------
        ValueError
            As `learn_one`, naming the row; or the lengths differ. The model stays as it was.
        """
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
        """Predict the targets of the rows of X.

        Parameters
        ----------
        X
            As in `learn_many`.

        Returns
        -------
        float64 [n], a series where X is a frame.

        Raises
        ------
        ValueError
            X is no frame or array of finite numbers.
        """
        decisions, like = self._decide_rows(X, CHOSEN)
        targets = decisions[:, 0]
        return targets if like is None else dataframe.to_native_series(targets, name=None, like=like)


class BudgetedRegressor(OnlineRegressor, BudgetedEstimator):
    """A regressor whose model is a store of support vectors."""
