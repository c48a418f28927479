"""One learner on one stream: each row is predicted, scored, and then learned; what is measured, and how.

Every row counts, the first one too: a classifier that does not predict yet is wrong there. The metrics of a run:

- ``accuracy``, percent; ``kappa`` (Cohen's) and ``kappa_temporal`` (against predicting the last label: Zliobaite et al. 2015,
  Evaluation methods and decision theory for classification of streaming data with temporal dependence), times 100.
- ``log_loss``: of the label's probability, at least 1e-15. A row whose label was never learned before is left out of it: no
  learner can name it. A learner that has no probabilities yet says that all labels of the stream are as likely.
- ``ece``: expected calibration error of the label that is predicted, over 15 equal bins (Guo et al. 2017, On calibration of
  modern neural networks).
- ``class_ece``: the same of the probability of each class, whether it is predicted or not; the mean over the classes (Kull et al.
  2019, Beyond temperature scaling). ``reliability`` has its bins: class to rows, mean probability and frequency of each.
- ``recovery``: after an abrupt change, the points that rows 500 to 1,000 of the concept lack to its last 1,000; the mean over the
  changes.
- ``mae``, ``r2`` for regression.
- ``microseconds``: CPU time of the process, all its threads included, for ``predict_one`` and ``learn_one``, less what the clock
  takes, the mean over the rows; ``p99`` and ``slowest`` of single rows. Scaling is not in it; probabilities neither.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from typing import Any

import numpy as np
from _stream_learners import Learner, memory_of
from _streams import Rows
from river import metrics

BLOCK = 250  # rows of a point of the plots over time
BINS = 15
WARM_UP = 2_000  # rows that compile what a learner needs, or load it

_now = time.process_time_ns


def clock_cost(calls: int = 2_000) -> float:
    """Nanoseconds that the clock adds to what it measures."""
    costs = []
    for _ in range(calls):
        start = _now()
        costs.append(_now() - start)
    return statistics.median(costs)


def run(learner: Learner, rows: Rows, seed: int, regression: bool, changes: tuple[int, ...]) -> dict[str, Any]:
    """Metrics of one learner on one stream, or the error with which it refused a row."""
    n_classes = 1 if regression else rows.n_classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of targets, and of numpy in river's models: the figures say it
        row = 0
        try:
            if learner.compiles:
                model = learner.make(seed, n_classes)
                for row in range(min(WARM_UP, len(rows.y))):
                    model.predict_one(rows.predicted[row])
                    model.learn_one(rows.learned[row], rows.y[row])
            model = learner.make(seed, n_classes)
            outcome = _Outcome(len(rows.y), regression, n_classes)
            for row in range(len(rows.y)):
                outcome.step(model, rows.predicted[row], rows.learned[row], rows.y[row], row)
        except Exception as error:  # noqa: BLE001 - a learner that fails is a line of the table
            return {"error": f"row {row + 1}: {type(error).__name__}: {error}"[:300]}
    scores = outcome.numbers(rows.y) if regression else outcome.classes(rows.y, changes)
    return {**scores, **outcome.times(), "bytes": memory_of(model), "rows": len(rows.y)}


class _Outcome:
    """Predictions, probabilities and times of a run, row by row."""

    def __init__(self, n: int, regression: bool, n_classes: int) -> None:
        self.predicted: list[Any] = []
        self.of_label = np.full(n, np.nan)
        self.confidence = np.full(n, np.nan)
        self.nanoseconds = np.empty(n)
        self.cost = clock_cost()
        self.uniform = 1.0 / n_classes
        self.probabilities = not regression
        self.bins: dict[Any, np.ndarray] = {}  # of each class: rows, sum of probabilities, rows of the class
        gc.collect()

    def step(self, model: Any, x: dict[Any, float], learned: dict[Any, float], y: Any, row: int) -> None:
        start = _now()
        prediction = model.predict_one(x)
        spent = _now() - start
        self.predicted.append(prediction)
        if self.probabilities:
            try:
                probabilities = model.predict_proba_one(x)
            except NotImplementedError:
                self.probabilities = False
            else:
                some = bool(probabilities)
                for label, p in probabilities.items():
                    counts = self.bins.setdefault(label, np.zeros((3, BINS)))
                    counts[:, min(int(p * BINS), BINS - 1)] += (1.0, p, label == y)
                self.of_label[row] = probabilities.get(y, 0.0) if some else self.uniform
                self.confidence[row] = probabilities.get(prediction, 0.0) if some else self.uniform
        start = _now()
        model.learn_one(learned, y)
        self.nanoseconds[row] = spent + _now() - start - 2.0 * self.cost

    def times(self) -> dict[str, float]:
        us = np.maximum(self.nanoseconds, 0.0) / 1_000.0
        return {"microseconds": float(us.mean()), "p99": float(np.quantile(us, 0.99)), "slowest": float(us.max())}

    def numbers(self, y: list[float]) -> dict[str, Any]:
        mae, r2 = metrics.MAE(), metrics.R2()
        for target, value in zip(y, self.predicted, strict=True):
            mae.update(target, value)
            r2.update(target, value)
        errors = np.abs(np.array(self.predicted, float) - np.array(y, float))
        return {"mae": mae.get(), "r2": r2.get(), "over_time": blocks(errors)}

    def classes(self, y: list[Any], changes: tuple[int, ...]) -> dict[str, Any]:
        right = np.array([value is not None and value == label for value, label in zip(self.predicted, y, strict=True)])
        repeated = np.array([False] + [a == b for a, b in zip(y[1:], y[:-1], strict=True)])
        kappa = metrics.CohenKappa()
        for label, value in zip(y, self.predicted, strict=True):
            if value is not None:
                kappa.update(label, value)
        accuracy, no_change = float(right.mean()), float(repeated.mean())
        found = {
            "accuracy": 100.0 * accuracy,
            "kappa": 100.0 * kappa.get(),
            "kappa_temporal": 100.0 * (accuracy - no_change) / max(1.0 - no_change, 1e-12),
            "over_time": blocks(100.0 * right),
        }
        if self.probabilities and np.isfinite(self.of_label).all():
            first = np.unique([y.index(label) for label in set(y)])
            losses = np.delete(-np.log(np.clip(self.of_label, 1e-15, 1.0)), first)
            found |= {"log_loss": float(losses.mean()), "ece": calibration_error(self.confidence, right)}
            found |= reliability({label: counts for label, counts in self.bins.items() if label in y})
        ends = [*changes[1:], len(y)]
        lacking = (
            [
                100.0 * (right[end - 1_000 : end].mean() - right[start + 500 : start + 1_000].mean())
                for start, end in zip(changes, ends, strict=True)
                if end <= len(y) and end - start >= 2_000
            ]
            if changes
            else []
        )
        return found | ({"recovery": float(np.mean(lacking))} if lacking else {})


def blocks(values: np.ndarray) -> list[float]:
    """Means of blocks of rows in turn; the last may have fewer rows."""
    return [round(float(values[i : i + BLOCK].mean()), 4) for i in range(0, len(values), BLOCK)]


def reliability(bins: dict[Any, np.ndarray]) -> dict[str, Any]:
    """The mean calibration error of the classes, and the points of a reliability plot of each.

    Parameters
    ----------
    bins
        Class to float64 [3, bins]: rows, sum of their probabilities of the class, rows of the class.
    """
    errors, points = [], {}
    for label, (rows, confidence, hits) in sorted(bins.items(), key=lambda item: str(item[0])):
        errors.append(np.abs(confidence - hits).sum() / rows.sum())
        held = rows > 0.0
        means = (of[held] / rows[held] for of in (confidence, hits))
        names = ("rows", "probability", "frequency")
        points[str(label)] = {name: np.round(of, 4).tolist() for name, of in zip(names, (rows[held], *means), strict=True)}
    return {"class_ece": float(np.mean(errors)), "reliability": points}


def calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Expected calibration error: by how much confidence and accuracy of a bin differ, weighted by its rows.

    Parameters
    ----------
    confidence
        float64 [n], probability of the label that was predicted.
    right
        bool [n], whether it was the label of the row.
    """
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    differences = np.bincount(bins, right, BINS) - np.bincount(bins, confidence, BINS)
    return float(np.abs(differences).sum() / len(right))
