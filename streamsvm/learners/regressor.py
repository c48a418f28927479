"""Regressors that learn online: numbers to learn and to predict."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from river import base
from river.utils import dataframe

from streamsvm.checks import check_number, checked_target, checked_weight
from streamsvm.frames import Batch, as_batch
from streamsvm.learners.budgeted import BudgetedEstimator
from streamsvm.learners.compiled import iterates
from streamsvm.learners.estimator import OnlineEstimator

__all__ = ["BudgetedRegressor", "OnlineRegressor"]


class OnlineRegressor(OnlineEstimator, base.MiniBatchRegressor):
    """A regressor with river's protocol and the epsilon-insensitive loss."""

    def learn_one(self, x: Mapping[Hashable, Any], y: float, w: float = 1.0) -> None:
        """Learn one row.

        Parameters
        ----------
        x
            Feature name to number. A name that is missing counts as 0.
        y
            The target.
        w
            The row's weight, at least 0. A row of weight 0 is not looked at.

        Raises
        ------
        ValueError
            A feature, the target or the weight is not a finite number, or there are more features than ``max_features`` with
            ``overflow="raise"``. The model is as it was then.
        """
        w = 1.0 if w == 1.0 else checked_weight(w)
        if w != 0.0:
            self._learn_row(x, checked_target(y), w)

    def predict_one(self, x: Mapping[Hashable, Any], **_: Any) -> float:
        """The target of one row; 0 before any learning."""
        return self._decide_row(x, iterates.CHOSEN)

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
            As `learn_one`, naming the row; or the lengths differ. The model is as it was then.
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
        """`predict_one` for each row: float64 [n], a series where X is a frame."""
        decisions, like = self._decide_rows(X, iterates.CHOSEN)
        targets = decisions[:, 0]
        return targets if like is None else dataframe.to_native_series(targets, name=None, like=like)


class BudgetedRegressor(OnlineRegressor, BudgetedEstimator):
    """A regressor whose model is a store of support vectors."""

    def __init__(self, *args: Any, epsilon: float, **kwargs: Any) -> None:
        self.epsilon = epsilon
        check_number("epsilon", epsilon, 0.0, inclusive=True, high=1e15)
        super().__init__(*args, **kwargs)
        self._common["loss"], self._common["epsilon"] = iterates.EPSILON_INSENSITIVE, epsilon
