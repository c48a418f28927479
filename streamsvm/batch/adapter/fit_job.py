"""One fit of an adapter's model: how the model is asked, what it must be able to do, its probabilities, and its saved state.

A `FitJob` has all that a fit needs, so that the adapter can go on while a thread does it.

Probabilities come from decision values of rows that were held out and from smoothed targets, by Platt's procedure (1999,
Probabilistic outputs for support vector machines), so that the factor stays finite where classes can be separated. The map is
temperature scaling (Guo, Pleiss, Sun and Weinberger 2017, On calibration of modern neural networks): without Platt's offset, so
that probabilities agree with labels.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.base import clone, is_classifier

from streamsvm.batch.adapter.windowed import OrderedRows
from streamsvm.batch.kernel_machine import compute_decision_values
from streamsvm.core.sklearn_base import with_shared_dtype
from streamsvm.learners.labels import as_array

_LARGEST_WHOLE = 2.0**53


class ScaledModel(NamedTuple):
    """A fitted model and how its rows are scaled."""

    model: Any
    mean: np.ndarray  # float64 [features when it was fitted]
    scale: np.ndarray  # likewise
    classes: list[Any]  # the adapter's labels in the order of the model's ``classes_``; none for a regressor
    log_factor: float  # logarithm of the factor that turns decision values into log odds

    def scale_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return rows [n, features now] as the model takes them, float64 [n, features when it was fitted]."""
        return (rows[:, : len(self.mean)] - self.mean) / self.scale

    @classmethod
    def from_saved(cls, saved: Any, n_names: int) -> ScaledModel:
        """Return a fit from its values, for an adapter that knows ``n_names`` features; ValueError if its sizes are corrupt."""
        model, mean, scale, classes, log_factor = saved
        n = mean.size  # compiled code takes rows of this length
        if not (mean.shape == scale.shape == (n,) and getattr(model, "n_features_in_", n) == n <= n_names):
            raise ValueError(f"the saved adapter is corrupt: its model of {n} features does not fit {n_names} feature names")
        return cls(model, with_shared_dtype(mean), with_shared_dtype(scale), classes, log_factor)


def has_sklearn_conventions(kind: Callable[[Any], bool], model: Any) -> bool:
    """Whether a model has scikit-learn's conventions and is of a kind, ``is_classifier`` or ``is_regressor``."""
    return not isinstance(model, type) and hasattr(model, "__sklearn_tags__") and hasattr(model, "get_params") and kind(model)


def check_classifier(model: Any) -> None:
    """Raise a ValueError where a classifier, or one inside it, does not give a value for each class."""
    if not (hasattr(model, "predict_proba") or hasattr(model, "decision_function")):
        raise ValueError(f"model must have predict_proba or decision_function; {type(model).__name__} has neither")
    for name, value in model.get_params(deep=True).items():
        if name.rpartition("__")[2] == "decision_function_shape" and value != "ovr":
            raise ValueError(f"model must have {name}='ovr': a decision value for each class, not for each pair")


def check_decision_shape(model: Any, values: np.ndarray, classes: int) -> None:
    """Raise a ValueError where decision values are neither [n, classes] nor, of two classes, [n]."""
    if values.shape[1:] != (classes,) and not (values.ndim == 1 and classes == 2):
        raise ValueError(
            f"{type(model).__name__} gives decision values of shape {list(values.shape)} for {len(values)} rows of {classes} "
            "classes: a value for each class is needed"
        )


def encode_unsupported_labels(labels: list[Any]) -> np.ndarray | None:
    """Return 0, 1, ... where scikit-learn refuses the labels: of several or strange types, or not whole numbers; else None."""
    values = as_array(labels)
    whole = values.dtype.kind != "f" or ((values == np.rint(values)) & (np.abs(values) <= _LARGEST_WHOLE)).all()
    return np.arange(len(labels)) if values.dtype == object or not whole else None


#: The largest and, negated, the least logarithm of a factor.
LARGEST_LOG_FACTOR = 20.0
_ABOVE_HALF = 0.5 + 2.0**-52


def assign_folds(labels: np.ndarray, folds: int) -> np.ndarray:
    """Return the fold in which each row is held out, int64 [n], for labels int64 [n].

    The rows of a class take turns. The only row of its class gets -1: no fold can do without it.
    """
    out = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        out[rows] = np.arange(len(rows)) % folds if len(rows) > 1 else -1
    return out


def _to_two_columns(decisions: np.ndarray) -> np.ndarray:
    """Return scores of each class; the decision value of two classes is their difference."""
    return np.column_stack((np.zeros(len(decisions)), decisions)) if decisions.ndim == 1 else decisions


def _compute_log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def calibrate_probabilities(log_factor: float, decisions: np.ndarray) -> np.ndarray:
    """Return the probability of each class, float64 [n, classes], from decision values [n] of two classes or [n, classes]."""
    p = np.exp(np.maximum(_compute_log_softmax(np.exp(log_factor) * _to_two_columns(decisions)), -30.0))
    p /= p.sum(axis=1, keepdims=True)
    if decisions.ndim == 1:  # a positive value that is too small to show in the probability still decides the label
        p[:, 1] = np.where(decisions > 0.0, np.maximum(p[:, 1], _ABOVE_HALF), p[:, 1])
        p[:, 0] = 1.0 - p[:, 1]
    return p


def fit_log_factor(
    labels: np.ndarray, weights: np.ndarray, folds: int, decide: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> float:
    """Return the logarithm of the factor under which the rows of a window are most likely: of labels int64 [n], weights [n].

    There is a fit for each of the ``folds``; with 0 the factor is 1. ``decide`` takes two masks, bool [n]: it fits to the rows of
    the first, and returns decision values of those of the second.
    """
    held = assign_folds(labels, folds) if folds else np.full(len(labels), -1)
    if (held < 0).all():
        return 0.0
    parts = [np.flatnonzero(held == fold) for fold in range(folds) if (held == fold).any()]
    scores = np.concatenate([_to_two_columns(decide(held != held[rows[0]], held == held[rows[0]])) for rows in parts])
    rows = np.concatenate(parts)
    classes, k = labels[rows], scores.shape[1]
    n = np.bincount(classes, minlength=k)[classes]
    targets = np.repeat(1.0 / (n + k)[:, np.newaxis], k, axis=1)
    targets[np.arange(len(rows)), classes] = (n + 1.0) / (n + k)
    targets *= weights[rows, np.newaxis]

    def loss(log_factor: float) -> float:
        return float(-np.sum(targets * _compute_log_softmax(np.exp(log_factor) * scores)))

    return float(minimize_scalar(loss, bounds=(-LARGEST_LOG_FACTOR, LARGEST_LOG_FACTOR), method="bounded").x)


class FitJob(NamedTuple):
    """A fit to be done."""

    model: Any  # not fitted; clones of it are
    rows: OrderedRows
    standardize: bool
    labels: list[Any]  # of a classifier, in the order of arrival: targets are their numbers
    calibration_folds: int

    def fit_model(self) -> ScaledModel:
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
            return self._fit_classifier(X, mean, scale)
        return ScaledModel(self._fit_clone(X, self.rows.targets, self.rows.weights), mean, scale, [], 0.0)

    def _fit_classifier(self, X: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> ScaledModel:
        labels, targets, weights = self.labels, self.rows.targets.astype(np.int64), self.rows.weights
        values = encode_unsupported_labels(labels)
        if values is None:
            values = as_array(labels)
        elif isinstance(getattr(self.model, "class_weight", None), dict):
            raise ValueError("class_weight as a dictionary is for labels of one type: bool, int, str, or float without fractions")
        model = self._fit_clone(X, values[targets], weights)
        numbers = dict(zip(values.tolist(), range(len(labels)), strict=True))
        order = [numbers[value] for value in model.classes_.tolist()]
        log_factor = 0.0
        if not hasattr(model, "predict_proba"):
            check_decision_shape(model, compute_decision_values(model, X[:1]), len(order))
            places = np.empty(len(labels), np.int64)
            places[order] = np.arange(len(order))

            def decide(train: np.ndarray, held: np.ndarray) -> np.ndarray:
                return compute_decision_values(self._fit_clone(X[train], values[targets[train]], weights[train]), X[held])

            log_factor = fit_log_factor(places[targets], weights, self.calibration_folds, decide)
        return ScaledModel(model, mean, scale, [labels[code] for code in order], log_factor)

    def _fit_clone(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Any:
        weighted = {} if (weights == 1.0).all() else {"sample_weight": weights}
        return clone(self.model, safe=False).fit(X, y, **weighted)
