"""The base of learners that take whole rows: they may scale these themselves, and take many in one compiled call."""

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
    """The location and the spread of each feature, in the order of ``feature_names``.

    A spread of 0 means that the feature is constant.

    >>> scale = ScaleInUse(np.array([5.0, 0.0]), np.array([2.0, 0.0]))
    >>> scale.transform([[9.0, 1.0], [1000.0, 1.0]]).tolist()
    [[2.0, 0.0], [8.0, 0.0]]
    >>> scale.undo([[2.0, 0.0]]).tolist()
    [[9.0, 0.0]]
    """

    location: np.ndarray
    """float64 [features]."""
    spread: np.ndarray
    """float64 [features]; 0 for a feature that is constant."""

    def transform(self, X: np.ndarray) -> np.ndarray:
        """Scale rows float [n, features] as the kernel sees them, float64.

        Each value becomes the number of spreads from the location, bounded to 8.
        """
        some = self.spread > 0.0
        scaled = np.where(some, (np.asarray(X, np.float64) - self.location) / np.where(some, self.spread, 1.0), 0.0)
        return np.clip(scaled, -float(MAX_SCALED_VALUE), float(MAX_SCALED_VALUE))

    def undo(self, X: np.ndarray) -> np.ndarray:
        """Return rows that the kernel sees, such as ``support_vectors``, in the units of the features.

        The result is float64 [n, features].
        """
        return np.asarray(X, np.float64) * self.spread + self.location


class ScalingEstimator(OnlineEstimator):
    """The base of learners that take whole rows, and may scale these themselves."""

    scaling: Scaling

    _refuses_when_full = False  # whether nothing maintains the budget: a support vector that is one too many is refused

    @property
    def scale_in_use(self) -> ScaleInUse | None:
        """The location and spread of each feature by which rows are scaled now; None without scaling."""
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
        """Predict each row and then learn it, in one compiled call.

        The result is the same as that of `predict_one` and `learn_one` row by row. This is for loops over streams: it handles
        rows that bring nothing new, and leaves the others to the two methods.

        Parameters
        ----------
        X
            The rows, float [n, features].
        names
            The names of the columns.
        y
            The n labels or targets. A row with None is only predicted.
        probability
            Whether to return the probabilities of the predicted labels too; ``"all"`` returns those of all labels.
        weights
            The weights of the n rows, float64, at least 0. A row of weight 0 is only predicted. None: each is 1.

        Returns
        -------
        The prediction for each row, and the probabilities if you asked for them (None for a row that has none). Those of all
        labels are float64 [n] by label, as `predict_proba_one` has them. If a row may be refused, or brings a new feature or
        label, the result is None, and the model stays as it was.

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
        answers = np.empty((len(X), 1 + self._outputs if probability == "all" else 2 if probability else 1))
        if weights is None:
            weights = np.ones(len(X))
        addresses, model = (self._decide_address, self._rule.address), (self._block, self._used_row, self._scores, self._outputs)
        targets = np.where(weights > 0.0, targets, np.nan)
        if rule.predict_then_learn(*addresses, *model, X, columns, targets, weights, answers) < len(X):
            self._raise_full_error()
        return self._decode_predictions(answers, probability)

    @property
    def can_learn_many(self) -> bool:
        """Whether `predict_then_learn` may learn rows, or only predict rows without labels or targets.

        With ``class_weight`` it may not: rows are then learned one by one.
        """
        return not self._refuses_when_full and getattr(self, "_class_weights", None) is None

    def _encode_known_targets(self, y: Sequence[Any]) -> np.ndarray | None:  # noqa: ARG002
        """Labels or targets as compiled code takes them, float64 [n], NaN for None; None where one is new, or none at all."""
        return None  # a model without labels and targets

    def _decode_predictions(
        self, answers: np.ndarray, probability: bool | Literal["all"]
    ) -> tuple[list[Any], list[float | None] | dict[Any, np.ndarray] | None]:
        """Return what `predict_then_learn` does, by answers [n, 1 and probabilities]: numbers, which have no probabilities."""
        return answers[:, 0].tolist(), {} if probability == "all" else [None] * len(answers) if probability else None
