"""Adaptive conformal prediction: intervals of targets and sets of labels with a chosen coverage, also after concept drift."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from numbers import Real
from typing import Any

import numpy as np
from river import base, compose

from streamsvm.core.checks import check_number, validate_target
from streamsvm.core.docstrings import complete_docstring
from streamsvm.files.messages import short_repr
from streamsvm.learners.svm import SVMRegressor
from streamsvm.learners.wrapping import ClassifierWrapper, ModelWrapper, Probabilities, RegressorWrapper, Weights

_MIN_SCORES = 20  # with fewer scores, the threshold is infinite
_MISS_RATE_STEP = 0.02  # the step size gamma of [2]
_MAX_LOG_RATIO = 6.0  # predicted error sizes are within a factor of exp(6) of the mean error
_MIN_ERROR_SIZE, _MAX_SCORE = 1e-300, 1e300  # so that no quotient overflows
_MIN_ERROR_RATIO = 0.05  # is added to an error over the mean error before its logarithm is learned
_MAX_ERROR, _MAX_FEATURE = 1e100, 1e38  # the error model does not learn larger errors and features


class _Calibration:
    """The nonconformity scores of recent rows, and a target miss rate that adapts so that the long-run miss rate is 1 - level.

    A row is missed if its score is above the `threshold` of the rows before it.
    """

    def __init__(self, level: float, window: int) -> None:
        self.level, self.window = level, window
        self.miss_rate = 1.0 - level  # the current target; the adaptive alpha of [2]
        self.scores: deque[float] = deque(maxlen=window)
        self._sorted_scores: list[float] = []

    @property
    def threshold(self) -> float:
        """The conformal threshold: the quantile of the recent nonconformity scores at level 1 - ``miss_rate``. It is infinite
        while there are fewer than 20 scores.
        """
        n = len(self._sorted_scores)
        if n < _MIN_SCORES:
            return math.inf
        position = math.ceil((1.0 - self.miss_rate) * (n + 1)) - 1
        if position >= n:
            return 2.0 * self._sorted_scores[-1]
        return self._sorted_scores[position] if position >= 0 else -math.inf

    def add_score(self, score: float) -> None:
        """Add the nonconformity ``score`` of a new row to the window of recent scores, evict the oldest score if the window is
        full, and adapt the target miss rate (up after a covered row, down after a miss).
        """
        is_miss = score > self.threshold
        self.miss_rate = min(max(self.miss_rate + _MISS_RATE_STEP * (1.0 - self.level - is_miss), -1.0), 2.0)
        if len(self.scores) == self.window:
            del self._sorted_scores[bisect_left(self._sorted_scores, self.scores[0])]
        self.scores.append(score)
        insort(self._sorted_scores, score)

    def get_state(self) -> tuple[float, np.ndarray]:
        """Return the state of this calibration that is saved: the target miss rate, and the recent nonconformity scores, float64
        [scores].
        """
        return self.miss_rate, np.array(self.scores)

    def restore_state(self, state: tuple[float, np.ndarray]) -> None:
        """Restore the target miss rate and the recent scores of this calibration from the tuple that `get_state` returned."""
        self.miss_rate, scores = state
        self.scores.extend(scores.tolist())
        self._sorted_scores = sorted(self.scores)


class _Conformal(ModelWrapper):
    """The base of the conformal wrappers: their parameters, and the calibration that is saved with them."""

    def _init_wrapper(self, model: Any, level: float, window: int) -> None:
        """Check the wrapped ``model``, the coverage ``level`` and the ``window`` (number of recent scores), and set them as
        attributes, with an empty calibration. Raises a ValueError if one is invalid.
        """
        self._set_wrapped(model, _last_step(model))
        check_number("level", level, 0.0, high=1.0)
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, not {short_repr(level)}")
        check_number("window", window, _MIN_SCORES, inclusive=True, high=100_000, integer=True)
        self.level: float = level
        self.window: int = window
        self._calibration = _Calibration(level, window)

    def _copy_with(self, parameters: dict[str, Any]) -> Any:
        """Return a copy of this model with other ``parameters``. Its target miss rate follows the level."""
        changed = super()._copy_with(parameters)
        changed._calibration.miss_rate += self.level - changed.level
        return changed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calibration": self._calibration.get_state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._init_from(state)
        self._calibration.restore_state(state["_calibration"])


@complete_docstring
class ConformalRegressor(_Conformal, RegressorWrapper):
    """A regressor with prediction intervals of a chosen coverage, also after concept drift (adaptive conformal inference).

    It wraps another regressor, which learns and predicts as it would without the wrapper. Each row is predicted before it is
    learned. The nonconformity score of a row is its absolute error, divided by the error that a second, small model predicts for
    it. The width of an interval is that predicted error times a quantile of recent scores [1]_. The level of the quantile adapts
    after each row, so that in the long run the chosen share of targets lies inside the intervals, for any stream [2]_. Memory is
    fixed.

    Parameters
    ----------
    regressor
        A river regressor, or a pipeline that ends in one.
    level
        The coverage: the share of rows whose target lies inside the interval, between 0 and 1.
    window
        The number of recent scores to take the quantile of, at least 20.

    Raises
    ------
    ValueError
        ``regressor`` is not a river regressor, or a number is out of its range. From `learn_one`: the regressor refuses the row.

    Notes
    -----
    Each row costs one more prediction of the regressor, and the prediction and learning of an ``SVMRegressor("low")``.

    References
    ----------
    .. [1] J. Lei, M. G'Sell, A. Rinaldo, R. Tibshirani, L. Wasserman, Distribution-free predictive inference for regression,
       JASA 113, 2018, section 5.2.
    .. [2] I. Gibbs and E. Candes, Adaptive conformal inference under distribution shift, NeurIPS 2021, equation 2.

    Examples
    --------
    >>> import random
    >>> from streamsvm import SVMRegressor
    >>> from streamsvm.learners.conformal import ConformalRegressor
    >>> rng, model, inside = random.Random(0), ConformalRegressor(SVMRegressor("low", seed=0), level=0.9), 0
    >>> for i in range(2000):
    ...     a = rng.random()
    ...     y = 3 * a + rng.gauss(0, 0.1 + a)
    ...     low, high = model.predict_interval_one({"a": a})
    ...     inside += low <= y <= high
    ...     model.learn_one({"a": a}, y)
    >>> round(inside / 2000, 2)
    0.9
    >>> widths = [high - low for low, high in map(model.predict_interval_one, [{"a": 0.1}, {"a": 0.9}])]
    >>> widths[1] > 2 * widths[0]
    True
    """

    def __init__(self, regressor: base.Regressor, level: float = 0.9, window: int = 1000) -> None:
        self._init_wrapper(regressor, level, window)
        # Predicts the logarithm of an absolute error over the mean absolute error.
        self._error_model = SVMRegressor("low", seed=0, max_features=2**16)
        self._n_errors, self._mean_error = 0, 0.0

    def predict_one(self, x: dict[Any, Any], with_interval: bool = False, **kwargs: Any) -> Any:
        """Predict the target of one row, as the wrapped regressor does; or, with ``with_interval=True``, its prediction interval.

        Parameters
        ----------
        x
            The row: a mapping of feature names to values.
        with_interval
            Whether to return the interval instead, as river's ``conf.RegressionJackknife`` does. It also works through a pipeline
            that ends in this model.
        **kwargs
            Further arguments for the regressor.

        Returns
        -------
        The target, or a ``river.conf.Interval`` with ``lower`` and ``upper``.
        """
        if with_interval:
            from river import conf  # noqa: PLC0415 - rarely needed

            return conf.Interval(*self.predict_interval_one(x))
        return self.regressor.predict_one(x, **kwargs)

    def predict_interval_one(self, x: dict[Any, Any]) -> tuple[float, float]:
        """Return the lower and the upper bound of the prediction interval of the row ``x``, an interval that contains the target
        with the chosen coverage. The bounds are infinite before 20 rows were learned.
        """
        center, threshold = float(self.regressor.predict_one(x) or 0.0), self._calibration.threshold
        if math.isinf(threshold):
            return (-math.inf, math.inf) if threshold > 0.0 else (center, center)
        half_width = threshold * self._predict_error(x)
        return center - half_width, center + half_width

    def learn_one(self, x: dict[Any, Any], y: Any, **kwargs: Any) -> None:
        """Learn the row ``x`` with target ``y`` in the wrapped regressor, which also gets the ``kwargs``. The error of its
        prediction before learning updates the width of the prediction intervals.

        Parameters
        ----------
        x, y
            The row, and its target.
        **kwargs
            Further arguments for the regressor. With a weight ``w`` of 0, no score is learned.
        """
        target = validate_target(y)
        error = abs(target - float(self.regressor.predict_one(x) or 0.0))
        error_size, features = self._predict_error(x), self._select_numbers(x)
        self.regressor.learn_one(x, y, **kwargs)
        if kwargs.get("w", 1.0) == 0.0:
            return
        self._calibration.add_score(error / error_size if error <= _MAX_SCORE * min(error_size, 1.0) else _MAX_SCORE)
        if not error <= _MAX_ERROR:  # the prediction of a model that has diverged; it may be NaN
            return
        self._n_errors += 1
        self._mean_error += (error - self._mean_error) / min(self._n_errors, self.window)
        if self._mean_error > 0.0:
            self._error_model.learn_one(features, math.log(max(error / self._mean_error, 0.0) + _MIN_ERROR_RATIO))

    def _predict_error(self, x: dict[Any, Any]) -> float:
        """Return the absolute error that is expected of the regressor's prediction for the row ``x``, a number above 0. A small
        second model predicts it; before 20 errors, it is their mean.
        """
        if self._n_errors < _MIN_SCORES or self._mean_error <= 0.0:
            return max(self._mean_error, _MIN_ERROR_SIZE)
        log_ratio = self._error_model.predict_one(self._select_numbers(x))
        return max(self._mean_error * math.exp(min(max(log_ratio, -_MAX_LOG_RATIO), _MAX_LOG_RATIO)), _MIN_ERROR_SIZE)

    def _select_numbers(self, x: dict[Any, Any]) -> dict[Any, Any]:
        """Return a dict of the features of the row ``x`` that are finite numbers, as input of the model that predicts errors. If
        the wrapped regressor is a pipeline, the features are taken from the output of its transformers.
        """
        model: Any = self.regressor
        while isinstance(model, compose.Pipeline):
            x, model = model._transform_one(x)
        return {
            name: float(value)
            for name, value in x.items()
            if isinstance(value, Real | np.bool_) and abs(float(value)) <= _MAX_FEATURE
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mean_error, self._error_model = state["_mean_error"], state["_error_model"]
        self._n_errors = state["_n_errors"]


@complete_docstring
class ConformalClassifier(_Conformal, ClassifierWrapper):
    """A classifier with prediction sets of a chosen coverage, also after concept drift (adaptive conformal inference).

    It wraps another classifier, which learns and predicts as it would without the wrapper. The nonconformity score of a row is 1
    minus the predicted probability of its label [1]_. The threshold of the scores adapts as in `ConformalRegressor`.

    Parameters
    ----------
    classifier
        A river classifier that has ``predict_proba_one``, or a pipeline that ends in one.
    level
        The coverage: the share of rows whose label is in the set, between 0 and 1.
    window
        The number of recent scores to take the quantile of, at least 20.

    Raises
    ------
    ValueError
        ``classifier`` is not a river classifier, or a number is out of its range. From `learn_one`: the classifier refuses the
        row.

    References
    ----------
    .. [1] M. Sadinle, J. Lei, L. Wasserman, Least ambiguous set-valued classifiers with bounded error levels, JASA 114, 2019.

    Examples
    --------
    >>> import random
    >>> from streamsvm import SVMClassifier
    >>> from streamsvm.learners.conformal import ConformalClassifier
    >>> rng, model, inside = random.Random(0), ConformalClassifier(SVMClassifier("low", seed=0), level=0.9), 0
    >>> for i in range(2000):
    ...     a = rng.gauss(0, 1)
    ...     y = "high" if a + rng.gauss(0, 1) > 0 else "low"
    ...     inside += y in model.predict_set_one({"a": a})
    ...     model.learn_one({"a": a}, y)
    >>> round(inside / 2000, 2)
    0.9
    >>> model.predict_set_one({"a": 3.0}), model.predict_set_one({"a": 0.1})
    (['high'], ['high', 'low'])
    """

    def __init__(self, classifier: base.Classifier, level: float = 0.9, window: int = 1000) -> None:
        self._init_wrapper(classifier, level, window)

    def predict_set_one(self, x: dict[Any, Any]) -> list[Any]:
        """Return the prediction set of the row ``x``: a list of labels, the most probable first, which contains the true label
        with the chosen coverage.

        The set can be empty for an unusual row, if the accuracy of the classifier is above ``level``. Before 20 rows were
        learned, it contains all labels.
        """
        min_probability = 1.0 - self._calibration.threshold
        probabilities = self.classifier.predict_proba_one(x)
        ordered = sorted(probabilities.items(), key=lambda item: -item[1])
        return [label for label, probability in ordered if probability >= min_probability]

    def learn_one(self, x: dict[Any, Any], y: Any, **kwargs: Any) -> None:
        """Learn the row ``x`` with label ``y`` in the wrapped classifier, which also gets the ``kwargs``. The probability that it
        predicted for this label before learning updates the threshold of the prediction sets.

        Parameters
        ----------
        x, y
            The row, and its label.
        **kwargs
            Further arguments for the classifier. With a weight ``w`` of 0, no score is learned.
        """
        probabilities = self.classifier.predict_proba_one(x)
        self.classifier.learn_one(x, y, **kwargs)
        if probabilities and kwargs.get("w", 1.0) != 0.0:
            self._calibration.add_score(1.0 - float(probabilities.get(y, 0.0)))

    def _finish_predictions(self, labels: list[Any], columns: Probabilities, y: Sequence[Any], weights: Weights) -> list[Any]:
        """Update the conformal threshold by the rows whose label ``y`` is not None and whose weight is above 0, and return the
        predicted ``labels`` unchanged. ``columns`` maps each label to its predicted probabilities [rows].
        """
        for i, label in enumerate(y):
            if columns and label is not None and (weights is None or weights[i] > 0.0):
                self._calibration.add_score(1.0 - (float(columns[label][i]) if label in columns else 0.0))
        return labels


def _last_step(model: Any) -> Any:
    """Return the last step of a (possibly nested) river pipeline, or ``model`` itself if it is not a pipeline."""
    while isinstance(model, compose.Pipeline) and model.steps:
        model = model._last_step
    return model
