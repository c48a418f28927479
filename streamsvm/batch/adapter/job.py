"""A fit of a window to be done: it has all that it needs, so that the adapter can go on while a thread does it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from sklearn.base import clone, is_classifier

from streamsvm.batch.adapter.fit import Fit, check_shape, codes, decisions
from streamsvm.batch.adapter.probability import fit_log_factor
from streamsvm.batch.adapter.window import Rows
from streamsvm.learners.labels import as_array

__all__ = ["Job"]


class Job(NamedTuple):
    """A fit to be done."""

    model: Any
    """Not fitted; clones of it are."""
    rows: Rows
    standardize: bool
    labels: list[Any]
    """Of a classifier, in the order of arrival: targets are their numbers."""
    calibration_folds: int

    def run(self) -> Fit:
        """Fit the model. O(n d), and what the model takes."""
        X = self.rows.X.astype(np.float64)
        mean, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.standardize:
            mean = np.average(X, axis=0, weights=self.rows.weights)
            varies = X.min(axis=0) < X.max(axis=0)  # the deviation of equal values may not be computed as 0
            deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=self.rows.weights))
            scale[varies] = deviation[varies]
            X -= mean
            X /= scale
        if is_classifier(self.model):
            return self._classifier(X, mean, scale)
        return Fit(self._trained(X, self.rows.targets, self.rows.weights), mean, scale, [], 0.0)

    def _classifier(self, X: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> Fit:
        labels, targets, weights = self.labels, self.rows.targets.astype(np.int64), self.rows.weights
        values = codes(labels)
        if values is None:
            values = as_array(labels)
        elif isinstance(getattr(self.model, "class_weight", None), dict):
            raise ValueError("class_weight as a dictionary is for labels of one type: bool, int, str, or float without fractions")
        model = self._trained(X, values[targets], weights)
        numbers = dict(zip(values.tolist(), range(len(labels)), strict=True))
        order = [numbers[value] for value in model.classes_.tolist()]
        log_factor = 0.0
        if not hasattr(model, "predict_proba"):
            check_shape(model, decisions(model, X[:1]), len(order))
            places = np.empty(len(labels), np.int64)
            places[order] = np.arange(len(order))

            def decide(train: np.ndarray, held: np.ndarray) -> np.ndarray:
                return decisions(self._trained(X[train], values[targets[train]], weights[train]), X[held])

            log_factor = fit_log_factor(places[targets], weights, self.calibration_folds, decide)
        return Fit(model, mean, scale, [labels[code] for code in order], log_factor)

    def _trained(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Any:
        """Return a clone of the model, fitted."""
        model = clone(self.model, safe=False)
        weighted = {} if (weights == 1.0).all() else {"sample_weight": weights}
        return model.fit(X, y, **weighted)
