"""A wrapper that tunes the probability threshold of a two-class classifier to a metric, row by row."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from river import base

from streamsvm.core.checks import check_number, validate_weight
from streamsvm.core.docstrings import complete_docstring
from streamsvm.files.messages import short_repr
from streamsvm.files.river_metrics import metrics
from streamsvm.learners.wrapping import ClassifierWrapper, Probabilities, Weights

_STEPS_PER_SIDE = 50  # thresholds below 1/2, and above it
_MAX_LOG_ODDS = 7.0  # of the largest threshold: a probability of .999
#: The candidate thresholds. They are equally spaced in log odds, because rare classes need small ones.
THRESHOLDS = [
    1.0 / (1.0 + math.exp(-_MAX_LOG_ODDS * step / _STEPS_PER_SIDE)) for step in range(-_STEPS_PER_SIDE, _STEPS_PER_SIDE + 1)
]
_ROWS_BETWEEN_CHOICES = 100


@complete_docstring
class TunedThresholdClassifier(ClassifierWrapper):
    """A classifier of two classes whose probability threshold is tuned to a metric, row by row.

    It wraps another classifier, which learns as it would without the wrapper; its probabilities do not change. Each row is
    predicted before it is learned, and its probability and label update the confusion matrices of 101 thresholds from .001 to
    .999. Every 100 rows, once there are rows of both classes, `predict_one` switches to the threshold with the best metric.
    Before that, the threshold is 1/2. The counts decay, so that the threshold follows concept drift. Memory is fixed.

    Parameters
    ----------
    classifier
        A river classifier of two classes that has ``predict_proba_one``.
    metric
        A river metric that can be computed from a confusion matrix: ``F1``, ``FBeta``, ``BalancedAccuracy``, ``MCC``, ... For
        misclassification costs, write a subclass of ``metrics.base.BinaryMetric``. None is ``BalancedAccuracy()``. The positive
        class is the ``pos_val`` of the metric. If the metric has no ``pos_val``, the positive class is True (or 1) if that is a
        label, and otherwise the label that arrives second.
    horizon
        The number of recent rows that the counts represent: each row multiplies them by 1 - 1/horizon.

    Raises
    ------
    ValueError
        ``classifier`` or ``metric`` has the wrong type, or ``horizon`` is out of its range. From `learn_one`: the labels do not
        match the metric, or there is a third label. For three or more classes, use the ``class_weight`` of the classifier
        instead.

    Notes
    -----
    Each row costs one more probability of the classifier, and every 100 rows cost 101 evaluations of the metric, about 1 ms.
    scikit-learn's TunedThresholdClassifierCV does the same for a batch.

    References
    ----------
    Lipton, Z., Elkan, C., Naryanaswamy, B. (2014). Optimal thresholding of classifiers to maximize F1 measure. ECML PKDD.

    Examples
    --------
    >>> import random
    >>> from river import evaluate, metrics
    >>> from streamsvm import BSCAClassifier
    >>> from streamsvm.learners.thresholds import TunedThresholdClassifier

    >>> rng = random.Random(0)
    >>> labels = [rng.random() < 0.05 for _ in range(4000)]
    >>> rows = [({"a": rng.gauss(1.5 if y else 0, 1), "b": rng.gauss(0, 1)}, y) for y in labels]
    >>> round(evaluate.progressive_val_score(rows, BSCAClassifier(seed=0), metrics.F1()).get(), 2)
    0.25

    >>> model = TunedThresholdClassifier(BSCAClassifier(seed=0), metrics.F1())
    >>> round(evaluate.progressive_val_score(rows, model, metrics.F1()).get(), 2)
    0.31
    >>> round(model.threshold, 2)
    0.16
    """

    _multiclass = False  # it has a single threshold, for two labels; river reads this attribute

    def __init__(
        self,
        classifier: base.Classifier,
        metric: metrics.base.ClassificationMetric | None = None,
        horizon: int = 10_000,
    ) -> None:
        self._set_wrapped(classifier, classifier)
        if not (metric is None or (isinstance(metric, metrics.base.ClassificationMetric) and metric.requires_labels)):
            raise ValueError(
                f"metric must be a river metric that compares labels, such as metrics.F1(), not {short_repr(metric)}"
            )
        if metric is not None:
            try:
                float(metric.get())
            except NotImplementedError:
                raise ValueError(
                    f"metric must have a single number as value, such as metrics.F1(), unlike {short_repr(metric)}"
                ) from None
        check_number("horizon", horizon, 1, inclusive=True, high=2**53, integer=True)
        self.metric = metric
        self.horizon = horizon
        self._labels: list[base.typing.ClfTarget] = []
        self._n_learned = 0
        self._threshold_index = _STEPS_PER_SIDE
        # Decayed counts [negative or positive class, number of thresholds that are at most the row's probability].
        self._counts = np.zeros((2, len(THRESHOLDS) + 1))

    @property
    def threshold(self) -> float:
        """The current probability threshold: a row is predicted as positive if its probability of the positive class is at least
        this.
        """
        return THRESHOLDS[self._threshold_index]

    @property
    def n_learned(self) -> int:
        """The number of rows that this wrapper has learned so far."""
        return self._n_learned

    def _find_positive_label(self) -> Any:
        """Return the label whose probability is compared with the threshold: the metric's ``pos_val``, or else True, 1 or the
        second label. Return None if it is not known yet, because fewer than two labels have arrived.
        """
        positive = getattr(self.metric, "pos_val", True)
        if positive in self._labels:
            return self._labels[self._labels.index(positive)]  # the label itself: it is 1, and not True, if labels are 0 and 1
        if isinstance(self.metric, metrics.base.BinaryMetric):
            return positive
        return self._labels[1] if len(self._labels) == 2 else None

    def learn_one(self, x: dict[Any, Any], y: Any, w: float = 1.0, **kwargs: Any) -> None:
        """Learn the row ``x`` with label ``y`` in the wrapped classifier. Its probability before learning, and its label, also
        count for the choice of the threshold.

        Parameters
        ----------
        x, y
            The row and its label, as the classifier accepts them.
        w
            The weight of the row in the metric, at least 0. The classifier also gets it, unless it is 1.
        **kwargs
            Further arguments for the classifier.

        Raises
        ------
        ValueError
            It is a third label, or the classifier refuses the row. Nothing is learned then.
        """
        weight = validate_weight(w)
        if w != 1.0:
            kwargs["w"] = w
        self._check_label(y)
        if weight == 0.0:
            return
        probabilities = self.classifier.predict_proba_one(x)
        self.classifier.learn_one(x, y, **kwargs)
        self._count_row(y, weight, probabilities)

    def _count_row(self, y: Any, weight: float, probabilities: Mapping[Any, float]) -> None:
        """Add a row with label ``y``, ``weight`` and predicted ``probabilities`` (a dict of label to number) to the decayed
        counts that the threshold is chosen from. After every 100 rows, choose the threshold again.
        """
        if y not in self._labels:
            self._labels.append(y)
        self._n_learned += 1
        self._counts *= 1.0 - 1.0 / self.horizon
        positive = self._find_positive_label()
        if positive is not None and probabilities:
            n_reached = bisect_right(THRESHOLDS, probabilities.get(positive, 0.0))
            self._counts[int(y == positive), n_reached] += weight
        if self._n_learned % _ROWS_BETWEEN_CHOICES == 0:
            self._choose_threshold()

    def _check_label(self, y: Any) -> None:
        """Raise a ValueError if the label ``y`` would be the third one, or if two labels are known then and neither is the
        positive label of the metric.
        """
        if y in self._labels or not self._labels:
            return
        if len(self._labels) == 1 and isinstance(self.metric, metrics.base.BinaryMetric):
            positive, first = self.metric.pos_val, short_repr(self._labels[0])
            if positive not in (y, self._labels[0]):
                name = type(self.metric).__name__
                raise ValueError(
                    f"the metric's positive label is {short_repr(positive)}, but the labels are {first} and {short_repr(y)}: "
                    f"set it, as in metrics.{name}(pos_val={short_repr(y)}) (--positive)"
                )
        if len(self._labels) == 2:
            raise ValueError(
                f"label {short_repr(y)} is a third one, after {short_repr(self._labels[0])} and {short_repr(self._labels[1])}. "
                "A tuned threshold needs two classes; for more, set costs with CostSensitiveClassifier (--costs LABEL=N)"
            )

    def check_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Check that `learn_one` would accept the row ``x`` with the label ``y``, without learning anything, and raise a
        ValueError if not. The row itself is only checked if the classifier has a `check_one`.
        """
        self._check_label(y)
        super().check_one(x, y)

    def _choose_threshold(self) -> None:
        """Set the threshold to the candidate with the best value of the metric over the counted rows; among equally good ones, to
        the one nearest to 1/2. Nothing changes before rows of both classes have been counted.
        """
        if len(self._labels) < 2 or not self._counts.any(axis=1).all():
            return
        metric: Any = self.metric.clone() if self.metric is not None else metrics.BalancedAccuracy()  # type: ignore[no-untyped-call]
        if getattr(metric, "pos_val", True) is not True:
            metric = metric.clone({"pos_val": True})  # river's metrics count True as positive, and ignore pos_val
        sign = 1.0 if metric.bigger_is_better else -1.0
        at_least = np.cumsum(self._counts[:, ::-1], axis=1)[:, ::-1]  # rows whose probability reaches each threshold
        values = np.empty(len(THRESHOLDS))
        for j in range(len(THRESHOLDS)):
            metric.cm.__init__()  # in place, because a composite metric shares the matrix with its parts
            for label in (False, True):
                n_predicted_true, n_rows = at_least[int(label), j + 1], at_least[int(label), 0]
                for prediction, count in ((True, n_predicted_true), (False, n_rows - n_predicted_true)):
                    if count > 0.0:
                        metric.update(label, prediction, w=float(count))
            values[j] = sign * metric.get()
        best = np.flatnonzero(values >= values.max() - 1e-9)
        self._threshold_index = int(best[np.abs(best - _STEPS_PER_SIDE).argmin()])

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> base.typing.ClfTarget | None:
        """Predict the label of the row ``x``: the positive label if its probability is at least `threshold`, else the negative
        one.
        """
        if len(self._labels) < 2:
            return self.classifier.predict_one(x, **kwargs)
        return self._apply_threshold(self.predict_proba_one(x, **kwargs))

    def _apply_threshold(self, probabilities: Mapping[Any, float]) -> Any:
        """Return the label that is predicted for a row with these ``probabilities`` (a dict of label to number): the positive one
        if its probability reaches the threshold. Both labels must be known.
        """
        positive = self._find_positive_label()
        negative = self._labels[0] if positive == self._labels[1] else self._labels[1]
        return positive if probabilities.get(positive, 0.0) >= self.threshold else negative

    def merge_with(self, *others: TunedThresholdClassifier, units: Any = None) -> None:
        """Merge ``others``, trained models with the same parameters, into this model, so that it approximates one model that has
        learned the rows of all of them. ``units`` converts features of models with different scalers, as in
        `BSGDClassifier.merge_with`.

        The counts are added up, and the threshold is chosen from the sums.

        Raises
        ------
        ValueError
            The models differ in parameters, have more than two labels together, or cannot be merged. This model does not change.
        """
        labels = list(dict.fromkeys(label for model in (self, *others) for label in getattr(model, "_labels", ())))
        if len(labels) > 2:
            raise ValueError(f"models with the labels {short_repr(labels)} cannot be merged: one threshold is for two classes")
        self._merge_within(others, units)
        self._labels = labels
        positive = self._find_positive_label()
        for other in others:
            # Thresholds are symmetric about 1/2, so counts for the other positive label are reversed in both directions.
            self._counts += other._counts if other._find_positive_label() in (positive, None) else other._counts[::-1, ::-1]
            self._n_learned += other._n_learned
        self._choose_threshold()

    def _can_learn_batch(self, y: Sequence[Any]) -> bool:
        """Return whether rows with the labels ``y`` can be predicted and learned in one call: True if both labels of this model
        are known, and there are no others. None stands for a row that is only predicted.
        """
        return len(self._labels) == 2 and {*y} - {None} <= {*self._labels}

    def _finish_predictions(self, labels: list[Any], columns: Probabilities, y: Sequence[Any], weights: Weights) -> list[Any]:
        """Return the label of each row by the current threshold, and count each row that has a label in ``y``, by its weight in
        ``weights``; this may change the threshold for later rows. ``columns`` maps each label to its predicted probabilities
        [rows]; ``labels`` are the classifier's own predictions.
        """
        # Row by row, because counting a row may change the threshold for the next one.
        for i, values in enumerate(zip(*(column.tolist() for column in columns.values()), strict=True)):
            probabilities = dict(zip(columns, values, strict=True))
            labels[i] = self._apply_threshold(probabilities)
            weight = 1.0 if weights is None else float(weights[i])
            if y[i] is not None and weight:
                self._count_row(y[i], weight, probabilities)
        return labels

    def _copy_with(self, parameters: dict[str, Any]) -> Any:
        """Return a copy of this model with other ``parameters``, and the threshold that is best for them. Raise a ValueError if
        the metric has another positive label, because rows are counted by it.
        """
        changed = super()._copy_with(parameters)
        if changed._find_positive_label() != self._find_positive_label():
            raise ValueError(f"its positive label is {short_repr(self._find_positive_label())}, by which rows are counted")
        changed._choose_threshold()
        return changed

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_counts": self._counts.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._init_from(state)
        self._counts[:], self._labels = state["_counts"], list(state["_labels"])
        self._threshold_index, self._n_learned = state["_threshold_index"], state["_n_learned"]

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        metric: Any = metrics.F1  # has no types
        for parameters in super()._unit_test_params():
            yield parameters
            yield {**parameters, "metric": metric(), "horizon": 500}
