"""The base of learners that can scale rows themselves, and that predict and learn many rows in one compiled call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from streamsvm.core.checks import Scaling
from streamsvm.core.steps import rule
from streamsvm.core.steps.decisions import find_refused_row
from streamsvm.core.steps.rescale import MAX_SCALED_VALUE
from streamsvm.learners.estimator import OnlineEstimator


class ScaleInUse(NamedTuple):
    """The location and spread that each feature is standardised with, in the order of ``feature_names``.

    >>> scale = ScaleInUse(np.array([5.0, 0.0]), np.array([2.0, 0.0]))
    >>> scale.transform([[9.0, 1.0], [1000.0, 1.0]]).tolist()
    [[2.0, 0.0], [8.0, 0.0]]
    >>> scale.inverse_transform([[2.0, 0.0]]).tolist()
    [[9.0, 0.0]]
    """

    location: np.ndarray
    """float64 [features]: the mean of each feature, or 0 for a feature that is not centred."""
    spread: np.ndarray
    """float64 [features]: the standard deviation of each feature, or 0 for a constant feature."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Standardise the rows ``X`` [n, features] with this location and spread, as the model does before it computes kernel
        values, and return them as float64 [n, features].

        Each value becomes its difference from the location, divided by the spread, and is clipped to [-8, 8].
        """
        varies = self.spread > 0.0
        scaled = np.where(varies, (np.asarray(X, np.float64) - self.location) / np.where(varies, self.spread, 1.0), 0.0)
        return np.clip(scaled, -float(MAX_SCALED_VALUE), float(MAX_SCALED_VALUE))

    def inverse_transform(self, X: np.ndarray) -> np.ndarray:
        """Convert standardised rows ``X`` [n, features], such as the model's ``support_vectors``, back to the units of the
        features: float64 [n, features].
        """
        return np.asarray(X, np.float64) * self.spread + self.location


class ScalingEstimator(OnlineEstimator):
    """The base of learners that can scale rows themselves."""

    scaling: Scaling

    _refuses_when_full = False  # whether a row that exceeds the budget is refused, for lack of budget maintenance

    @property
    def scale_in_use(self) -> ScaleInUse | None:
        """The location (mean, or 0) and the spread (standard deviation) with which the model currently standardises each feature;
        None if it does not scale rows.
        """
        if self.scaling is None:
            return None
        v, used = self._store.views, self._store.used
        return ScaleInUse(v.location[:used].copy(), v.spread[:used].copy())

    def predict_then_learn(
        self,
        X: np.ndarray,
        names: Sequence[Hashable],
        y: Sequence[Any],
        probability: bool | Literal["all"],
        weights: np.ndarray | None = None,
    ) -> tuple[list[Any], list[float | None] | dict[Any, np.ndarray] | None] | None:
        """Predict each of the rows ``X`` before it is learned with its label or target in ``y``, in one compiled call. ``names``
        are the column names, and ``probability`` asks for probabilities, too. Returns a pair of predictions and probabilities, or
        None if the rows must be processed one by one, for example because a label is new.

        The result is the same as with `predict_one` and `learn_one` row by row. It is meant for loops over streams: it only
        accepts rows without new features or labels, and returns None for others, which need the two methods.

        Parameters
        ----------
        X
            The rows, float [n, features].
        names
            The names of the columns.
        y
            The n labels or targets. A row with None is only predicted.
        probability
            Whether to return the probabilities of the predicted labels, too; ``"all"`` returns those of all labels.
        weights
            The weights of the n rows, float64, at least 0. A row of weight 0 is only predicted. None: all weights are 1.

        Returns
        -------
        The list of predictions, and the probabilities: None if not requested; a list, with None for rows without a probability;
        or for ``"all"`` a dict of label to float64 [n]. If a row may be refused, or has a new feature or label, the method
        returns None instead of both, and the model does not change.

        Examples
        --------
        >>> from streamsvm import BSGDClassifier
        >>> model = BSGDClassifier(budget=10)
        >>> X = np.array([[2.0, 0.5], [1.0, 0.0]], np.float32)
        >>> model.predict_then_learn(X, ["a", "b"], [True, None], False) is None
        True
        >>> model.learn_one({"a": 1.0, "b": 0.5}, True)
        >>> model.predict_then_learn(X, ["a", "b"], [True, None], False)
        ([True, True], None)
        >>> model.predict_then_learn(X, ["a", "b"], [True, None], "all")[1].keys()
        dict_keys([False, True])
        """
        if not self.can_learn_many and any(target is not None for target in y):
            return None
        if (targets := self._encode_known_targets(y)) is None:
            return None
        columns = self._features.find_columns(names, False)
        if (columns < 0).any() or len(set(names) & set(self._features.names)) < len(names):
            return None
        X = np.require(X, self._dtype, ["C", "W"])
        if find_refused_row(self._row, X, columns, True, self.scaling is not None) >= 0:
            return None
        self._prepare_to_learn(len(X))
        outputs = np.empty((len(X), 1 + self._n_outputs if probability == "all" else 2 if probability else 1))
        if weights is None:
            weights = np.ones(len(X))
        addresses = self._output_address, self._rule.address
        model = self._block, self._used_row, self._scores, self._n_outputs
        targets = np.where(weights > 0.0, targets, np.nan)
        if rule.predict_then_learn(*addresses, *model, X, columns, targets, weights, outputs) < len(X):
            self._raise_full_error()
        return self._decode_predictions(outputs, probability)

    @property
    def can_learn_many(self) -> bool:
        """Whether the method `predict_then_learn` of this model can learn rows. If not, because of class weights or a budget
        without maintenance, it only predicts them.
        """
        return not self._refuses_when_full and getattr(self, "_class_weights", None) is None

    def _encode_known_targets(self, y: Sequence[Any]) -> np.ndarray | None:  # noqa: ARG002
        """Convert the labels or targets ``y`` to numbers, float64 [n], with NaN for None. Return None if a label is new or a
        target is invalid. The base class, which has neither labels nor targets, always returns None.
        """
        return None

    def _decode_predictions(
        self, outputs: np.ndarray, probability: bool | Literal["all"]
    ) -> tuple[list[Any], list[float | None] | dict[Any, np.ndarray] | None]:
        """Convert the model's numeric ``outputs`` [n, columns] to a pair: the list of n predictions (column 0), and their
        probabilities. By default, as for regressors, there are no probabilities: the second item is a list of None, or an empty
        dict with ``probability="all"``, or just None with False.
        """
        return outputs[:, 0].tolist(), {} if probability == "all" else [None] * len(outputs) if probability else None
