"""Budgeted classifiers: labels to targets, and decision values to labels and probabilities."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
from river import base
from river.utils import dataframe

from streamsvm.learners import _online
from streamsvm.learners._inputs import as_list, as_matrix, check_one_of, checked_weight, checked_weights
from streamsvm.learners.base import BudgetedEstimator
from streamsvm.learners.labels import BinaryLabels

__all__ = ["BudgetedClassifier"]

_OUTPUTS = {"auto": _online.CHOSEN, "last": _online.LAST, "average": _online.AVERAGE}


class BudgetedClassifier(BudgetedEstimator, base.MiniBatchClassifier):
    """A binary classifier whose model is a store of support vectors."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._labels = BinaryLabels()
        super().__init__(*args, **kwargs)

    def learn_one(self, x: Mapping[Hashable, Any], y: Any, w: float = 1.0) -> None:
        """Learn one row.

        Parameters
        ----------
        x
            Feature name to number. A name that is missing counts as 0.
        y
            The label: a bool, 0 or 1, -1 or 1, or one of two others of any kind.
        w
            The row's weight, at least 0. A row of weight 0 is not looked at.

        Raises
        ------
        ValueError
            A feature or the weight is not a finite number, there are more features than ``max_features`` with
            ``overflow="raise"``, or the label is missing or a third one. The model is as it was then.
        """
        w = 1.0 if w == 1.0 else checked_weight(w)
        if w == 0.0:
            return
        labels = self._labels
        n_labels = labels.n_seen
        try:
            self._learn_row(x, labels.sign(y), w)
        except Exception:
            labels.forget(n_labels)
            raise

    def decision_function_one(self, x: Mapping[Hashable, Any], output: str = "auto") -> float:
        """The decision value of one row: positive for the positive label; 0 before any learning.

        Parameters
        ----------
        x
            Feature name to number.
        output
            ``"last"``: of the last iterate; ``"average"``: of the average of the iterates; ``"auto"``: of the one that has made
            fewer errors recently, which is what predictions follow.

        Raises
        ------
        ValueError
            A feature is not a finite number.
        """
        check_one_of("output", output, _OUTPUTS)
        return self._decide_row(x, _OUTPUTS[output])

    def predict_one(self, x: Mapping[Hashable, Any], **_: Any) -> Any:
        """The label of one row; False before any learning."""
        return self._labels.of(self._decide_row(x, _online.CHOSEN))

    def predict_proba_one(self, x: Mapping[Hashable, Any], **_: Any) -> dict[Any, float]:
        """The probability of both labels of one row; never at odds with `predict_one`.

        The decision value is turned into log odds by one factor, which is fitted to the stream as it goes by
        (temperature scaling: Guo et al. 2017, On calibration of modern neural networks).
        """
        return self._labels.probabilities(self._decide_row(x, _online.PROBABILITY))

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        """Learn the rows of a frame, one after the other: exactly what `learn_one` does with each.

        Parameters
        ----------
        X
            An eager frame that narwhals knows (pandas, polars, pyarrow, ...), [n rows, features]; or a 2-D numpy array, whose
            columns are the features 0, 1, ...
        y
            n labels: a series, an array or a sequence.
        w
            One weight for all rows, or n of them.

        Raises
        ------
        ValueError
            As `learn_one`, naming the row; or the lengths differ. The model is as it was then.
        """
        matrix, names, _ = as_matrix(X)
        y = as_list(y, len(matrix))
        weights = checked_weights(w, len(matrix))
        if not weights.all():
            kept = weights > 0.0
            matrix, weights = matrix[kept], weights[kept]
            y = [label for label, keep in zip(y, kept, strict=True) if keep]
        n_labels = self._labels.n_seen
        try:
            signs = np.array([self._labels.sign(label) for label in y], np.float64)
            self._learn_rows(matrix, names, signs, weights)
        except Exception:
            self._labels.forget(n_labels)
            raise

    def decision_function_many(self, X: Any, output: str = "auto") -> Any:
        """`decision_function_one` for each row: float64 [n], a series where X is a frame."""
        check_one_of("output", output, _OUTPUTS)
        decisions, like = self._decide_rows(X, _OUTPUTS[output])
        return decisions if like is None else dataframe.to_native_series(decisions, name=None, like=like)

    def predict_many(self, X: Any) -> Any:
        """`predict_one` for each row: an array [n] of labels, a series where X is a frame."""
        decisions, like = self._decide_rows(X, _online.CHOSEN)
        labels = self._labels.array(decisions)
        return labels if like is None else dataframe.to_native_series(labels, name=None, like=like)

    def predict_proba_many(self, X: Any) -> Any:
        """`predict_proba_one` for each row: a frame with a column for each label, or where X is an array, float64 [n, 2]
        with the negative label's probability first ([n, 1] while there is but one label, and that is not a number).
        """
        positive, like = self._decide_rows(X, _online.PROBABILITY)
        probabilities = self._labels.probabilities(positive)
        return (
            np.column_stack(list(probabilities.values())) if like is None else dataframe.to_native_frame(probabilities, like=like)
        )

    @property
    def labels(self) -> list[Any]:
        """The labels seen, in the order in which they came."""
        return self._labels.seen

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "labels": self.labels}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._labels.restore(state["labels"])
