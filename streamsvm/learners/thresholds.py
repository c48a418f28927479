"""A probability threshold that is tuned to a metric, row by row."""

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
from streamsvm.learners.wrapping import ClassifierWrapper, Probabilities

_STEPS = 50  # either side of 1/2
_REACH = 7.0  # the log odds of the last threshold: a probability of .999
#: Thresholds to choose from, at equal distances in log odds: a rare class wants a small one.
THRESHOLDS = [1.0 / (1.0 + math.exp(-_REACH * step / _STEPS)) for step in range(-_STEPS, _STEPS + 1)]
_EVERY = 100  # rows from one choice to the next


@complete_docstring
class TunedThresholdClassifier(ClassifierWrapper):
    """A classifier of two classes whose probability threshold is tuned to a metric, row by row.

    It wraps another classifier. Each row is predicted before it is learned. Its probability and its label are counted, which
    gives a confusion matrix for each of 101 thresholds from .001 to .999. Every 100 rows, once there are rows of both classes,
    the threshold with the best metric becomes that of `predict_one`. Before that, the threshold is 1/2. The wrapped classifier
    learns as it would alone, and its probabilities stay the same. Counts fade, so that the threshold follows a drift. Memory is
    fixed.

    Parameters
    ----------
    classifier
        A river classifier of two classes that has ``predict_proba_one``.
    metric
        A river metric of labels that can be computed from the confusion matrix: ``F1``, ``FBeta``, ``BalancedAccuracy``,
        ``MCC``, ... For a metric of costs, write a subclass of ``metrics.base.BinaryMetric``. None is ``BalancedAccuracy()``.
        The positive class is the ``pos_val`` of the metric. If it has none, the positive class is True (or 1), or else the
        label that comes second.
    horizon
        The number of rows that the counts remember.

    Raises
    ------
    ValueError
        ``classifier`` or ``metric`` is something else, or ``horizon`` is out of its range. From `learn_one`: the labels are not
        those of the metric, or there is a third one. One threshold has no meaning for three classes: use the ``class_weight``
        of the classifier instead.

    Notes
    -----
    In addition to the time of the classifier, each row takes that of one more probability, and every 100 rows take 101
    evaluations of the metric, about 1 ms. scikit-learn's TunedThresholdClassifierCV does the same for a batch.

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

    def __init__(
        self,
        classifier: base.Classifier,
        metric: metrics.base.ClassificationMetric | None = None,
        horizon: int = 10_000,
    ) -> None:
        if not isinstance(classifier, base.Classifier):
            raise ValueError(f"the classifier must be one of river, not {short_repr(classifier)}")
        if not (metric is None or (isinstance(metric, metrics.base.ClassificationMetric) and metric.requires_labels)):
            raise ValueError(f"metric must be a river metric of labels, such as metrics.F1(), not {short_repr(metric)}")
        if metric is not None:
            try:
                float(metric.get())
            except NotImplementedError:
                raise ValueError(f"metric must be one number, such as metrics.F1(), and {short_repr(metric)} is not") from None
        check_number("horizon", horizon, 1, inclusive=True, high=2**53, integer=True)
        self.classifier = classifier
        self.metric = metric
        self.horizon = horizon
        self._labels: list[base.typing.ClfTarget] = []
        self._n_learned = 0
        self._threshold_index = _STEPS
        # Fading counts of rows by the number of thresholds up to their probability: of the negative class, of the positive one.
        self._counts = np.zeros((2, len(THRESHOLDS) + 1))

    @property
    def _multiclass(self) -> bool:
        return False

    @property
    def threshold(self) -> float:
        """The lowest probability of the positive class that is predicted as positive."""
        return THRESHOLDS[self._threshold_index]

    @property
    def n_learned(self) -> int:
        """How many rows the model has learned."""
        return self._n_learned

    def _positive_label(self) -> Any:
        # The positive label, or None where only one was seen and it cannot be told.
        positive = getattr(self.metric, "pos_val", True)
        if positive in self._labels:
            return self._labels[self._labels.index(positive)]  # 1 where labels are 0 and 1, and not True
        if isinstance(self.metric, metrics.base.BinaryMetric):
            return positive
        return self._labels[1] if len(self._labels) == 2 else None

    def learn_one(self, x: dict[Any, Any], y: Any, w: float = 1.0, **kwargs: Any) -> None:
        """Learn one row, and count its probability and its label for the threshold.

        Parameters
        ----------
        x, y
            The row and its label, as the classifier takes them.
        w
            The weight of the row, at least 0. It counts in the metric too. The classifier is given it only if it is not 1.
        kwargs
            Further arguments for the classifier.

        Raises
        ------
        ValueError
            The label is a third one, or the classifier refuses the row. Then nothing is learned.
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
        if y not in self._labels:
            self._labels.append(y)
        self._n_learned += 1
        self._counts *= 1.0 - 1.0 / self.horizon
        positive = self._positive_label()
        if positive is not None and probabilities:
            place = bisect_right(THRESHOLDS, probabilities.get(positive, 0.0))
            self._counts[int(y == positive), place] += weight
        if self._n_learned % _EVERY == 0:
            self._choose_threshold()

    def _check_label(self, y: Any) -> None:
        if y in self._labels or not self._labels:
            return
        if len(self._labels) == 1 and isinstance(self.metric, metrics.base.BinaryMetric):
            positive = self.metric.pos_val
            if positive not in (y, self._labels[0]):
                name = type(self.metric).__name__
                raise ValueError(
                    f"label {short_repr(y)} comes after {short_repr(self._labels[0])}, and the metric's positive one "
                    f"is {short_repr(positive)}, "
                    f"which is neither: give it as metrics.{name}(pos_val={short_repr(y)}) (--positive)"
                )
        if len(self._labels) == 2:
            raise ValueError(
                f"label {short_repr(y)} is a third one, after {short_repr(self._labels[0])} and "
                f"{short_repr(self._labels[1])}: one threshold is "
                "for two classes. For more, give class_weight to the classifier instead"
            )

    def check_one(self, x: dict[Any, Any], y: Any) -> None:
        """Check a label, and the row if the classifier has its own `check_one`, without learning it."""
        self._check_label(y)
        super().check_one(x, y)

    def _choose_threshold(self) -> None:
        # The threshold with the best metric; of equal ones that nearest to 1/2.
        if len(self._labels) < 2 or not self._counts.any(axis=1).all():
            return
        metric: Any = self.metric.clone() if self.metric is not None else metrics.BalancedAccuracy()  # type: ignore[no-untyped-call]
        if getattr(metric, "pos_val", True) is not True:
            metric = metric.clone({"pos_val": True})  # river's own count True, whatever pos_val says
        sign = 1.0 if metric.bigger_is_better else -1.0
        at_least = np.cumsum(self._counts[:, ::-1], axis=1)[:, ::-1]  # rows from each place on
        values = np.empty(len(THRESHOLDS))
        for j in range(len(THRESHOLDS)):
            metric.cm.__init__()  # in place: metrics that this one is made of have the same matrix
            for label in (False, True):
                above, of_all = at_least[int(label), j + 1], at_least[int(label), 0]
                for answer, count in ((True, above), (False, of_all - above)):
                    if count > 0.0:
                        metric.update(label, answer, w=float(count))
            values[j] = sign * metric.get()
        best = np.flatnonzero(values >= values.max() - 1e-9)
        self._threshold_index = int(best[np.abs(best - _STEPS).argmin()])

    def predict_one(self, x: dict[Any, Any], **kwargs: Any) -> base.typing.ClfTarget | None:
        """Predict the label of one row: the positive one if its probability is at least `threshold`."""
        if len(self._labels) < 2:
            return self.classifier.predict_one(x, **kwargs)
        return self._decided_label(self.predict_proba_one(x, **kwargs))

    def _decided_label(self, probabilities: Mapping[Any, float]) -> Any:
        positive = self._positive_label()
        negative = self._labels[0] if positive == self._labels[1] else self._labels[1]
        return positive if probabilities.get(positive, 0.0) >= self.threshold else negative

    def merge_with(self, *others: TunedThresholdClassifier, units: Any = None) -> None:
        """Merge other models with the same metric into this one, as `BSGDClassifier.merge_with` does.

        The threshold is then the best one by the rows that all of them have counted.
        """
        labels = list(dict.fromkeys(label for model in (self, *others) for label in getattr(model, "_labels", ())))
        if len(labels) > 2:
            raise ValueError(f"models with the labels {short_repr(labels)} cannot be merged: one threshold is for two classes")
        self._merge_within(others, units)
        self._labels = labels
        positive = self._positive_label()
        for other in others:
            # Thresholds lie alike on both sides of 1/2: what was counted of the other label is read from behind.
            self._counts += other._counts if other._positive_label() in (positive, None) else other._counts[::-1, ::-1]
            self._n_learned += other._n_learned
        self._choose_threshold()

    def _can_learn_batch(self, y: Sequence[Any]) -> bool:
        return len(self._labels) == 2 and {*y} - {None} <= {*self._labels}

    def _finish_predictions(
        self, decided: list[Any], columns: Probabilities, y: Sequence[Any], weights: np.ndarray | None
    ) -> list[Any]:
        # One after the other: what is counted moves the threshold.
        for i, values in enumerate(zip(*(column.tolist() for column in columns.values()), strict=True)):
            probabilities = dict(zip(columns, values, strict=True))
            decided[i] = self._decided_label(probabilities)
            weight = 1.0 if weights is None else float(weights[i])
            if y[i] is not None and weight:
                self._count_row(y[i], weight, probabilities)
        return decided

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_counts": self._counts.copy()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["classifier"], state["metric"], state["horizon"])  # type: ignore[misc]
        self._counts[:], self._labels = state["_counts"], list(state["_labels"])
        self._threshold_index, self._n_learned = state["_threshold_index"], state["_n_learned"]

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        metric: Any = metrics.F1  # has no types
        for given in super()._unit_test_params():
            yield given
            yield {**given, "metric": metric(), "horizon": 500}
