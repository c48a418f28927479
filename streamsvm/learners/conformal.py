"""How sure a prediction is: intervals of numbers, and sets of labels, that hold the truth as often as they say."""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Sequence
from numbers import Real
from typing import Any, ClassVar

import numpy as np
from river import base, compose

from streamsvm.core.checks import check_number, validate_target
from streamsvm.core.docstrings import complete_docstring
from streamsvm.files.messages import short_repr
from streamsvm.learners.svm import SVMRegressor
from streamsvm.learners.wrapping import ClassifierWrapper, Probabilities, RegressorWrapper

_FEWEST = 20  # scores, before which everything may come
_STEP = 0.02  # by which the share of misses that is aimed at moves with each row
_FARTHEST = 6.0  # natural logarithms from the mean size of an error to one that is predicted
_SMALLEST, _LARGEST, _LEAST_SHARE = 1e-300, 1e300, 0.05
_LARGEST_ERROR, _LARGEST_FEATURE = 1e100, 1e38


class _Calibration:
    """The scores of the last rows, and the share of misses to aim at, so that in the long run so many rows miss as they should.

    The score of a row says how badly it was predicted. A row with a score above the `threshold` of the rows before it is a miss.
    """

    def __init__(self, level: float, window: int) -> None:
        self.level, self.window = level, window
        self.misses = 1.0 - level  # the share to aim at now
        self.scores: deque[float] = deque(maxlen=window)
        self._ordered: list[float] = []

    @property
    def threshold(self) -> float:
        """The largest score that is no miss; infinite while there are few."""
        n = len(self._ordered)
        if n < _FEWEST:
            return math.inf
        place = math.ceil((1.0 - self.misses) * (n + 1)) - 1
        if place >= n:
            return 2.0 * self._ordered[-1]
        return self._ordered[place] if place >= 0 else -math.inf

    def learn(self, score: float) -> None:
        """Count a row."""
        missed = score > self.threshold
        self.misses = min(max(self.misses + _STEP * (1.0 - self.level - missed), -1.0), 2.0)
        if len(self.scores) == self.window:
            del self._ordered[bisect_left(self._ordered, self.scores[0])]
        self.scores.append(score)
        insort(self._ordered, score)

    def state(self) -> tuple[float, np.ndarray]:
        """The state that is saved."""
        return self.misses, np.array(self.scores)

    def restore(self, state: tuple[float, np.ndarray]) -> None:
        """Take back what `state` gave."""
        self.misses, scores = state
        self.scores.extend(scores.tolist())
        self._ordered = sorted(self.scores)


class _Conformal:
    """The base of the two: what they calibrate, which is saved with them."""

    level: float
    window: int
    _calibration: _Calibration
    #: The name of the model within, and what it must be.
    _within: ClassVar[tuple[str, type]]

    def _init_wrapper(self, model: Any, level: float, window: int) -> None:
        name, kind = self._within
        if not isinstance(_last_step(model), kind):
            raise ValueError(f"the {name} must be one of river, not {short_repr(model)}")
        check_number("level", level, 0.0, high=1.0)
        if not 0.0 < level < 1.0:
            raise ValueError(f"level must lie between 0 and 1, not {short_repr(level)}")
        check_number("window", window, _FEWEST, inclusive=True, high=100_000, integer=True)
        setattr(self, name, model)
        self.level, self.window = level, window
        self._calibration = _Calibration(level, window)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_calibration": self._calibration.state()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state[self._within[0]], state["level"], state["window"])  # type: ignore[misc]
        self._calibration.restore(state["_calibration"])


@complete_docstring
class ConformalRegressor(_Conformal, RegressorWrapper):
    """A regressor with intervals that hold the target of as many rows as they say, also after a drift.

    It wraps another regressor, which learns and predicts as it would alone. Each row is predicted before it is learned. Its
    error, divided by the error that a second, small model expects of such rows, is its score; the interval reaches as far as
    the scores of the last rows say [1]_. The share of misses that is aimed at is moved after each row, so that in the long run
    the interval misses as often as it should, whatever the stream does [2]_. Memory is fixed.

    Parameters
    ----------
    regressor
        A river regressor, or a pipeline that ends in one.
    level
        The share of the rows whose target lies in the interval, between 0 and 1.
    window
        The number of rows whose scores are remembered, at least 20.

    Raises
    ------
    ValueError
        ``regressor`` is none, or a number is out of its range. From `learn_one`: the regressor refuses the row.

    Notes
    -----
    In addition to the time of the regressor, each row takes one more prediction, and that of an ``SVMRegressor("low")``.

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

    _within = "regressor", base.Regressor

    def __init__(self, regressor: base.Regressor, level: float = 0.9, window: int = 1000) -> None:
        self._init_wrapper(regressor, level, window)
        self._error_model = SVMRegressor("low", seed=0, max_features=2**16)  # the logarithm of an error, by the mean error
        self._n_errors, self._mean_error = 0, 0.0

    def predict_one(self, x: dict[Any, Any], with_interval: bool = False, **kwargs: Any) -> Any:
        """Predict the target of one row, as the regressor does.

        ``with_interval=True`` returns the interval instead, as river's ``conf.RegressionJackknife`` does, also from a pipeline
        that ends in this model: a ``river.conf.Interval``, with ``lower`` and ``upper``.
        """
        if with_interval:
            from river import conf  # noqa: PLC0415 - few need it

            return conf.Interval(*self.predict_interval_one(x))
        return self.regressor.predict_one(x, **kwargs)

    def predict_interval_one(self, x: dict[Any, Any]) -> tuple[float, float]:
        """Return the interval, from the lowest to the highest target to expect of a row.

        Before 20 rows were learned it is infinite.
        """
        middle, reach = float(self.regressor.predict_one(x) or 0.0), self._calibration.threshold
        if math.isinf(reach):
            return (-math.inf, math.inf) if reach > 0.0 else (middle, middle)
        reach *= self._error_size(x)
        return middle - reach, middle + reach

    def learn_one(self, x: dict[Any, Any], y: Any, **kwargs: Any) -> None:
        """Learn one row, and how well it was predicted; ``kwargs`` are further arguments for the regressor."""
        target = validate_target(y)
        error = abs(target - float(self.regressor.predict_one(x) or 0.0))
        size, features = self._error_size(x), self._features_of(x)
        self.regressor.learn_one(x, y, **kwargs)
        if kwargs.get("w", 1.0) == 0.0:
            return
        self._calibration.learn(error / size if error <= _LARGEST * min(size, 1.0) else _LARGEST)
        if not error <= _LARGEST_ERROR:  # nor a NaN: of a model that went astray
            return
        self._n_errors += 1
        self._mean_error += (error - self._mean_error) / min(self._n_errors, self.window)
        if self._mean_error > 0.0:
            self._error_model.learn_one(features, math.log(max(error / self._mean_error, 0.0) + _LEAST_SHARE))

    def _error_size(self, x: dict[Any, Any]) -> float:
        """The size of the error that such a row has."""
        if self._n_errors < _FEWEST or self._mean_error <= 0.0:
            return max(self._mean_error, _SMALLEST)
        power = self._error_model.predict_one(self._features_of(x))
        return max(self._mean_error * math.exp(min(max(power, -_FARTHEST), _FARTHEST)), _SMALLEST)

    def _features_of(self, x: dict[Any, Any]) -> dict[Any, Any]:
        """The numbers of the row as the last step of a pipeline is given it."""
        model: Any = self.regressor
        while isinstance(model, compose.Pipeline):
            x, model = model._transform_one(x)
        return {
            name: float(value)
            for name, value in x.items()
            if isinstance(value, Real | np.bool_) and abs(float(value)) <= _LARGEST_FEATURE
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._mean_error, self._error_model = state["_mean_error"], state["_error_model"]
        self._n_errors = state["_n_errors"]


@complete_docstring
class ConformalClassifier(_Conformal, ClassifierWrapper):
    """A classifier with sets of labels that hold the label of as many rows as they say, also after a drift.

    It wraps another classifier, which learns and predicts as it would alone. The score of a row is what its probabilities leave
    for other labels [1]_; the rest is as in `ConformalRegressor`.

    Parameters
    ----------
    classifier
        A river classifier that has ``predict_proba_one``, or a pipeline that ends in one.
    level
        The share of the rows whose label is in the set, between 0 and 1.
    window
        The number of rows whose scores are remembered, at least 20.

    Raises
    ------
    ValueError
        ``classifier`` is none, or a number is out of its range. From `learn_one`: the classifier refuses the row.

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

    _within = "classifier", base.Classifier

    def __init__(self, classifier: base.Classifier, level: float = 0.9, window: int = 1000) -> None:
        self._init_wrapper(classifier, level, window)

    def predict_set_one(self, x: dict[Any, Any]) -> list[Any]:
        """Return the labels to expect of a row, the most probable first.

        The classifier is sure of a row with one label. No label is said to be likely enough of a row that is like few others, if
        the classifier is right more often than in ``level`` of the rows. Before 20 rows were learned, all labels are returned.
        """
        least = 1.0 - self._calibration.threshold
        probabilities = self.classifier.predict_proba_one(x)
        ordered = sorted(probabilities.items(), key=lambda item: -item[1])
        return [label for label, probability in ordered if probability >= least]

    def learn_one(self, x: dict[Any, Any], y: Any, **kwargs: Any) -> None:
        """Learn one row, and how well it was predicted; ``kwargs`` are further arguments for the classifier."""
        probabilities = self.classifier.predict_proba_one(x)
        self.classifier.learn_one(x, y, **kwargs)
        if probabilities and kwargs.get("w", 1.0) != 0.0:
            self._calibration.learn(1.0 - float(probabilities.get(y, 0.0)))

    def _finish_predictions(
        self, decided: list[Any], columns: Probabilities, y: Sequence[Any], weights: np.ndarray | None
    ) -> list[Any]:
        for i, label in enumerate(y):
            if columns and label is not None and (weights is None or weights[i] > 0.0):
                self._calibration.learn(1.0 - (float(columns[label][i]) if label in columns else 0.0))
        return decided


def _last_step(model: Any) -> Any:
    """The last step of a pipeline; anything else is itself."""
    while isinstance(model, compose.Pipeline) and model.steps:
        model = model._last_step
    return model
