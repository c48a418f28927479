"""Runs one learner on one stream, prequentially (each row is predicted, scored, and then learned), and computes its metrics.

Every row counts, also the first one: a classifier that has no prediction yet is wrong on it. The metrics of a run:

- ``accuracy``, percent; ``kappa`` (Cohen's) and ``kappa_temporal`` (against predicting the last label: Zliobaite et al. 2015,
  Evaluation methods and decision theory for classification of streaming data with temporal dependence), times 100.
- ``log_loss``: of the label's probability, clipped at 1e-15. The first row of each label is left out: no learner can predict
  a label that it has never learned. While a learner has no probabilities, all labels of the stream count as equally likely.
- ``ece``: expected calibration error of the predicted label, over 15 equal bins (Guo et al. 2017, On calibration of
  modern neural networks).
- ``class_ece``: the same for the probability of each class, predicted or not; the mean over the classes (Kull et al.
  2019, Beyond temperature scaling). ``reliability`` has its bins: for each class, their rows, mean probabilities and frequencies.
- ``recovery``: after an abrupt change, the accuracy of the concept's last 1,000 rows minus that of its rows 500 to 1,000, in
  points; the mean over the changes.
- ``mae``, ``r2`` for regression.
- ``microseconds``: CPU time of the process, all its threads included, for ``predict_one`` and ``learn_one``, without the cost of
  the clock: the mean over the rows; ``p99`` and ``slowest`` are of single rows. Scaling and probabilities are not included.
"""

from __future__ import annotations

import gc
import statistics
import time
import warnings
from typing import Any

import numpy as np
from _stream_learners import Learner, measure_memory
from _streams import Rows
from river import metrics

BLOCK = 250  # rows for each point of the plots over time
BINS = 15
WARM_UP = 2_000  # rows learned before time is measured, so that compiled code is loaded

_now = time.process_time_ns


def measure_clock_cost(calls: int = 2_000) -> float:
    """Return the nanoseconds that a call of the clock adds to a measurement (the median of ``calls``)."""
    costs = []
    for _ in range(calls):
        start = _now()
        costs.append(_now() - start)
    return statistics.median(costs)


def run_learner(learner: Learner, rows: Rows, seed: int, regression: bool, changes: tuple[int, ...]) -> dict[str, Any]:
    """Return the metrics of one learner on one stream; if it fails on a row, a dict with only the ``error``."""
    n_classes = 1 if regression else rows.n_classes
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # overflows of numpy in river's models, for instance: the metrics show their effect
        row = 0
        try:
            if learner.needs_warm_up:
                model = learner.make(seed, n_classes)
                for row in range(min(WARM_UP, len(rows.y))):
                    model.predict_one(rows.predicted[row])
                    model.learn_one(rows.learned[row], rows.y[row])
            model = learner.make(seed, n_classes)
            outcome = _RunRecord(len(rows.y), regression, n_classes)
            for row in range(len(rows.y)):
                outcome.run_row(model, rows.predicted[row], rows.learned[row], rows.y[row], row)
        except Exception as error:  # noqa: BLE001 - the table reports learners that fail
            return {"error": f"row {row + 1}: {type(error).__name__}: {error}"[:300]}
    scores = outcome.score_regression(rows.y) if regression else outcome.score_classification(rows.y, changes)
    return {**scores, **outcome.summarise_times(), "bytes": measure_memory(model), "rows": len(rows.y)}


class _RunRecord:
    """Collects the prediction, probabilities and time of each row of a run."""

    def __init__(self, n: int, regression: bool, n_classes: int) -> None:
        self.predicted: list[Any] = []
        self.of_label = np.full(n, np.nan)
        self.confidence = np.full(n, np.nan)
        self.nanoseconds = np.empty(n)
        self.cost = measure_clock_cost()
        self.uniform = 1.0 / n_classes
        self.probabilities = not regression
        self.bins: dict[Any, np.ndarray] = {}  # for each class: rows, sum of probabilities, rows of the class
        gc.collect()

    def run_row(self, model: Any, x: dict[Any, float], learned: dict[Any, float], y: Any, row: int) -> None:
        """Predict, score and learn a row, and measure the time. ``x`` is scaled for prediction, ``learned`` for learning."""
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
                has_probabilities = bool(probabilities)
                for label, p in probabilities.items():
                    counts = self.bins.setdefault(label, np.zeros((3, BINS)))
                    counts[:, min(int(p * BINS), BINS - 1)] += (1.0, p, label == y)
                self.of_label[row] = probabilities.get(y, 0.0) if has_probabilities else self.uniform
                self.confidence[row] = probabilities.get(prediction, 0.0) if has_probabilities else self.uniform
        start = _now()
        model.learn_one(learned, y)
        self.nanoseconds[row] = spent + _now() - start - 2.0 * self.cost

    def summarise_times(self) -> dict[str, float]:
        us = np.maximum(self.nanoseconds, 0.0) / 1_000.0
        return {"microseconds": float(us.mean()), "p99": float(np.quantile(us, 0.99)), "slowest": float(us.max())}

    def score_regression(self, y: list[float]) -> dict[str, Any]:
        mae, r2 = metrics.MAE(), metrics.R2()
        for target, value in zip(y, self.predicted, strict=True):
            mae.update(target, value)
            r2.update(target, value)
        errors = np.abs(np.array(self.predicted, float) - np.array(y, float))
        return {"mae": mae.get(), "r2": r2.get(), "over_time": average_blocks(errors)}

    def score_classification(self, y: list[Any], changes: tuple[int, ...]) -> dict[str, Any]:
        right = np.array([value is not None and value == label for value, label in zip(self.predicted, y, strict=True)])
        repeated = np.array([False] + [a == b for a, b in zip(y[1:], y[:-1], strict=True)])
        kappa = metrics.CohenKappa()
        for label, value in zip(y, self.predicted, strict=True):
            if value is not None:
                kappa.update(label, value)
        accuracy, no_change = float(right.mean()), float(repeated.mean())
        scores = {
            "accuracy": 100.0 * accuracy,
            "kappa": 100.0 * kappa.get(),
            "kappa_temporal": 100.0 * (accuracy - no_change) / max(1.0 - no_change, 1e-12),
            "over_time": average_blocks(100.0 * right),
        }
        if self.probabilities and np.isfinite(self.of_label).all():
            first = np.unique([y.index(label) for label in set(y)])
            losses = np.delete(-np.log(np.clip(self.of_label, 1e-15, 1.0)), first)
            scores |= {"log_loss": float(losses.mean()), "ece": compute_calibration_error(self.confidence, right)}
            scores |= measure_reliability({label: counts for label, counts in self.bins.items() if label in y})
        ends = [*changes[1:], len(y)]
        deficits = (
            [
                100.0 * (right[stop - 1_000 : stop].mean() - right[start + 500 : start + 1_000].mean())
                for start, stop in zip(changes, ends, strict=True)
                if stop <= len(y) and stop - start >= 2_000
            ]
            if changes
            else []
        )
        return scores | ({"recovery": float(np.mean(deficits))} if deficits else {})


def average_blocks(values: np.ndarray) -> list[float]:
    """Return the means of consecutive blocks of `BLOCK` values; the last block may be shorter."""
    return [round(float(values[i : i + BLOCK].mean()), 4) for i in range(0, len(values), BLOCK)]


def measure_reliability(bins: dict[Any, np.ndarray]) -> dict[str, Any]:
    """Return the mean calibration error of the classes (``class_ece``), and the points of their reliability plots.

    Parameters
    ----------
    bins
        For each class, float64 [3, bins]: rows, sum of their probabilities of the class, rows of the class.
    """
    errors, points = [], {}
    for label, (rows, confidence, hits) in sorted(bins.items(), key=lambda item: str(item[0])):
        errors.append(np.abs(confidence - hits).sum() / rows.sum())
        is_filled = rows > 0.0
        means = (sums[is_filled] / rows[is_filled] for sums in (confidence, hits))
        names = ("rows", "probability", "frequency")
        points[str(label)] = {
            name: np.round(sums, 4).tolist() for name, sums in zip(names, (rows[is_filled], *means), strict=True)
        }
    return {"class_ece": float(np.mean(errors)), "reliability": points}


def compute_calibration_error(confidence: np.ndarray, right: np.ndarray) -> float:
    """Return the expected calibration error: the mean difference of confidence and accuracy of a bin, weighted by its rows.

    Parameters
    ----------
    confidence
        float64 [n], probability of the predicted label.
    right
        bool [n], whether the prediction was right.
    """
    bins = np.minimum((confidence * BINS).astype(np.int64), BINS - 1)
    differences = np.bincount(bins, right, BINS) - np.bincount(bins, confidence, BINS)
    return float(np.abs(differences).sum() / len(right))
