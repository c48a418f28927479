"""The base of online regressors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np
from river import base

from streamsvm.core.checks import validate_target, validate_weight
from streamsvm.core.frames import FrameBatch, make_batch, to_series
from streamsvm.core.steps.iterates import DECISION, EPSILON_INSENSITIVE
from streamsvm.core.warning import warn
from streamsvm.learners.estimator import OnlineEstimator, learner
from streamsvm.learners.river_base import SupervisedEstimator

_N_CHECKED_TARGETS = 100  # the first targets, whose mean and deviation are checked
_MAX_ABS_MEAN, _MIN_DEVIATION, _MAX_DEVIATION = 3.0, 1.0 / 3.0, 3.0  # values beyond these cause a warning


@learner
class OnlineRegressor(OnlineEstimator, SupervisedEstimator, base.MiniBatchRegressor):
    """The base of regressors with river's protocol.

    The defaults of epsilon, C and learning rates suit targets with a mean near 0 and a standard deviation near 1. A model warns
    if its first targets differ much from that.
    """

    #: The first targets, until their scale has been checked. None after that, and in models that were loaded or started.
    _first_targets: list[float] | None = field(init=False)

    _loss = EPSILON_INSENSITIVE

    def __post_init__(self) -> None:
        super().__post_init__()
        self._first_targets = []

    def learn_one(self, x: Mapping[Any, Any], y: float, w: float = 1.0) -> None:
        w = 1.0 if w == 1.0 and w is not True else validate_weight(w)
        if w != 0.0:
            target = validate_target(y)
            self._learn_row(x, target, w)
            if self._first_targets is not None:
                self._check_target_scale([target])

    def check_one(self, x: Mapping[Any, Any], y: float) -> None:
        """Check that `learn_one` would accept the row ``x`` with the target ``y``, without learning anything: raise a ValueError
        if its feature names are invalid or too many, or if the target is not a finite number.

        Use it in pipelines, as described in `OnlineClassifier.check_one`.

        Parameters
        ----------
        x, y
            As in `learn_one`.

        Raises
        ------
        ValueError
            There are more features than ``max_features``, with ``overflow="raise"``; a new feature name is too long; or the
            target is not a finite number.
        """
        validate_target(y)
        self._features.check_names(x)

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> float:
        return self._compute_output(x, DECISION)

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        batch = make_batch(X, y, w, self._dtype)
        self._learn_batch(batch)
        if self._first_targets is not None:
            self._check_target_scale(batch.y[:_N_CHECKED_TARGETS])

    def expect_scaled_targets(self) -> None:
        """Turn off this model's warning about targets that are not standardised, because a wrapper around the model standardises
        them.
        """
        self._first_targets = None

    def _check_target_scale(self, targets: Sequence[Any]) -> None:
        """Warn the user once, after the first 100 targets, if they do not have a mean near 0 and a standard deviation near 1.
        ``targets`` are those that have just been learned.
        """
        first = self._first_targets = (self._first_targets or []) + [float(y) for y in targets]
        if len(first) < _N_CHECKED_TARGETS:
            return
        self._first_targets = None
        mean, deviation = float(np.mean(first)), float(np.std(first))
        if deviation > 0.0 and not (abs(mean) <= _MAX_ABS_MEAN and _MIN_DEVIATION <= deviation <= _MAX_DEVIATION):
            name = type(self).__name__
            warn(
                f"the first {len(first)} targets have mean {mean:.4g} and standard deviation {deviation:.4g}, but {name} expects "
                f"about 0 and 1: wrap it in streamsvm.learners.preprocessing.BoundedTargetScaler({name}(...))"
            )

    def _set_start_labels(self, labels: Sequence[Any] | None, outputs: int) -> float:
        """Return 1, the factor for the coefficients of another model that this new regressor will start from. Raise a ValueError
        if ``labels`` are passed, or if ``outputs``, the other model's number of decision values, is not 1.
        """
        self._first_targets = None
        return super()._set_start_labels(labels, outputs)

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._first_targets = None

    def _encode_targets(self, batch: FrameBatch) -> tuple[np.ndarray, np.ndarray]:
        """Convert the targets of ``batch`` to numbers, float64 [n]. Returns them with the number of decision values that the
        model needs for each row, int64 [n], which is always 1. Raises a ValueError with the row number for the first target that
        is not a finite number.
        """
        targets = np.empty(len(batch.y))
        for i, y in enumerate(batch.y):
            try:
                targets[i] = validate_target(y)
            except ValueError as error:
                batch.raise_for_row(i, error)
        return targets, np.ones(len(targets), np.int64)

    def _encode_known_targets(self, y: Sequence[Any]) -> np.ndarray | None:
        """Convert the targets ``y`` to numbers, float64 [n], with NaN for None. Return None if a target is invalid, or if this
        model has not checked yet, by its first 100 targets, whether they are standardised.
        """
        try:
            targets = [np.nan if target is None else validate_target(target) for target in y]
        except ValueError:
            return None
        return None if self._first_targets is not None else np.array(targets)

    def _predict_rows(self, X: Any) -> Any:
        """Return the predicted target of each row of ``X``: float64 [n], or a series if ``X`` is a frame."""
        decisions, like = self._compute_outputs(X, DECISION)
        return to_series(decisions[:, 0], like)


class EpsilonInsensitiveRegressor(OnlineRegressor):
    """The base of regressors whose loss has the parameter epsilon."""

    epsilon: float
    """The half width of the epsilon-insensitive tube, at least 0: absolute errors up to epsilon have no loss, and these rows are
    not learned. Increase it for noisy targets, and for fewer support vectors.
    """
