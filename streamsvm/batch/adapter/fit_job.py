"""One fit of an adapter's model: scaling, labels, calibration of probabilities, and the fitted model with its saved state.

A `FitJob` contains all data of a fit, so that the adapter can continue while a thread runs it.

Probabilities are calibrated on decision values of held-out rows with smoothed targets, by Platt's procedure (1999, Probabilistic
outputs for support vector machines), so that the factor stays finite if classes are separable. The calibration is temperature
scaling (Guo, Pleiss, Sun and Weinberger 2017, On calibration of modern neural networks), without Platt's offset, so that
probabilities agree with the predicted labels.
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

_MAX_INTEGER = 2.0**53  # float64 labels up to it may be exact integers


class ScaledModel(NamedTuple):
    """A fitted model, with the scaling of its rows, its labels and the calibration of its probabilities."""

    model: Any
    mean: np.ndarray  # float64 [features at the fit]
    scale: np.ndarray  # float64 [features at the fit]
    classes: list[Any]  # the adapter's labels in the order of the model's ``classes_``; empty for a regressor
    log_factor: float  # logarithm of the factor that turns decision values into log odds

    def scale_rows(self, rows: np.ndarray) -> np.ndarray:
        """Return rows [n, features] standardised as in the fit of this model: minus the means, divided by the standard
        deviations, float64 [n, features at the fit]. Columns of features that were added after the fit are left out.
        """
        return (rows[:, : len(self.mean)] - self.mean) / self.scale

    @classmethod
    def from_saved(cls, saved: Any, n_names: int) -> ScaledModel:
        """Return a fitted model from the tuple ``saved`` that a saved adapter contains. Raise a ValueError if its arrays do not
        match each other, or it has more features than the ``n_names`` feature names of the adapter.
        """
        model, mean, scale, classes, log_factor = saved
        n = mean.size  # compiled code takes rows of this length
        if not (mean.shape == scale.shape == (n,) and getattr(model, "n_features_in_", n) == n <= n_names):
            raise ValueError(f"the saved adapter is corrupt: its model of {n} features does not match {n_names} feature names")
        return cls(model, with_shared_dtype(mean), with_shared_dtype(scale), classes, log_factor)


def has_sklearn_conventions(kind: Callable[[Any], bool], model: Any) -> bool:
    """Return whether ``model`` is an estimator instance that follows scikit-learn's conventions (it has tags and ``get_params``),
    and ``kind(model)`` is True. ``kind`` is scikit-learn's ``is_classifier`` or ``is_regressor``.
    """
    return not isinstance(model, type) and hasattr(model, "__sklearn_tags__") and hasattr(model, "get_params") and kind(model)


def check_classifier(model: Any) -> None:
    """Raise a ValueError if a classifier has neither ``predict_proba`` nor ``decision_function``, or if it, or an estimator
    inside it, returns a decision value for each pair of classes instead of each class.
    """
    if not (hasattr(model, "predict_proba") or hasattr(model, "decision_function")):
        raise ValueError(f"model must have predict_proba or decision_function; {type(model).__name__} has neither")
    for name, value in model.get_params(deep=True).items():
        if name.rpartition("__")[2] == "decision_function_shape" and value != "ovr":
            raise ValueError(f"model must have {name}='ovr': a decision value for each class, not for each pair")


def check_decision_shape(model: Any, values: np.ndarray, classes: int) -> None:
    """Raise a ValueError unless the decision values that ``model`` returned have the shape [n, classes], or [n] if there are two
    classes.
    """
    if values.shape[1:] != (classes,) and not (values.ndim == 1 and classes == 2):
        raise ValueError(
            f"{type(model).__name__} returns decision values of shape {list(values.shape)} for {len(values)} rows of {classes} "
            "classes: it must return one value for each class"
        )


def encode_unsupported_labels(labels: list[Any]) -> np.ndarray | None:
    """Return integer codes 0, 1, ..., int64 [n], in place of ``labels`` that scikit-learn rejects: labels of several types, or
    numbers with fractions. Return None if scikit-learn accepts the labels.
    """
    values = as_array(labels)
    are_integers = values.dtype.kind != "f" or ((values == np.rint(values)) & (np.abs(values) <= _MAX_INTEGER)).all()
    return np.arange(len(labels)) if values.dtype == object or not are_integers else None


#: The largest absolute value of the logarithm of a factor.
MAX_LOG_FACTOR = 20.0
_ABOVE_HALF = 0.5 + 2.0**-52  # the smallest probability of a predicted label


def assign_folds(labels: np.ndarray, folds: int) -> np.ndarray:
    """Assign each row to the cross-validation fold that holds it out, and return the numbers of the folds, int64 [n], for
    ``labels`` int64 [n]. The folds are stratified: the rows of each class alternate between them.

    The only row of a class gets -1, because every fold must train on it.
    """
    out = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        out[rows] = np.arange(len(rows)) % folds if len(rows) > 1 else -1
    return out


def _to_two_columns(decisions: np.ndarray) -> np.ndarray:
    """Return decision values as one score for each class, [n, classes]. Values [n] of two classes become two columns, 0 and the
    value; values [n, classes] are returned unchanged.
    """
    return np.column_stack((np.zeros(len(decisions)), decisions)) if decisions.ndim == 1 else decisions


def _compute_log_softmax(scores: np.ndarray) -> np.ndarray:
    """Return the logarithm of the softmax of each row of ``scores`` [n, classes], computed without overflow."""
    scores = scores - scores.max(axis=1, keepdims=True)
    return scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))


def calibrate_probabilities(log_factor: float, decisions: np.ndarray) -> np.ndarray:
    """Convert decision values, [n] for two classes or [n, classes], to probabilities, float64 [n, classes]: the softmax of the
    values times exp(``log_factor``), the calibration factor.
    """
    p = np.exp(np.maximum(_compute_log_softmax(np.exp(log_factor) * _to_two_columns(decisions)), -30.0))
    p /= p.sum(axis=1, keepdims=True)
    if decisions.ndim == 1:  # probabilities must agree with the label even if the value is too small for them
        p[:, 1] = np.where(decisions > 0.0, np.maximum(p[:, 1], _ABOVE_HALF), p[:, 1])
        p[:, 0] = 1.0 - p[:, 1]
    return p


def fit_log_factor(
    labels: np.ndarray, weights: np.ndarray, folds: int, fit_and_decide: Callable[[np.ndarray, np.ndarray], np.ndarray]
) -> float:
    """Fit the multiplier of a classifier's decision values before the softmax (temperature scaling), and return its logarithm. It
    is fitted to decision values of held-out rows in ``folds`` folds, which ``fit_and_decide(train, test)`` returns for two masks
    of rows. Returns 0 if ``folds`` is 0 or no row can be held out.

    The window has labels int64 [n] and weights [n]. For each fold, ``fit_and_decide`` is called with two masks, bool [n]: it fits
    a model to the rows of the first, and returns the decision values of the rows of the second.
    """
    fold_of_row = assign_folds(labels, folds) if folds else np.full(len(labels), -1)
    if (fold_of_row < 0).all():
        return 0.0
    used_folds = [fold for fold in range(folds) if (fold_of_row == fold).any()]
    decisions = [fit_and_decide(fold_of_row != fold, fold_of_row == fold) for fold in used_folds]
    scores = np.concatenate([_to_two_columns(fold_decisions) for fold_decisions in decisions])
    rows = np.concatenate([np.flatnonzero(fold_of_row == fold) for fold in used_folds])
    classes, k = labels[rows], scores.shape[1]
    n = np.bincount(classes, minlength=k)[classes]
    targets = np.repeat(1.0 / (n + k)[:, np.newaxis], k, axis=1)
    targets[np.arange(len(rows)), classes] = (n + 1.0) / (n + k)
    targets *= weights[rows, np.newaxis]

    def compute_loss(log_factor: float) -> float:
        """Return the cross entropy between the smoothed labels and the probabilities that result if decision values are
        multiplied by exp(``log_factor``).
        """
        return float(-np.sum(targets * _compute_log_softmax(np.exp(log_factor) * scores)))

    return float(minimize_scalar(compute_loss, bounds=(-MAX_LOG_FACTOR, MAX_LOG_FACTOR), method="bounded").x)


class FitJob(NamedTuple):
    """The data of a fit: the model, the rows of the window, and options."""

    model: Any  # the fit uses clones of it
    rows: OrderedRows
    standardize: bool
    labels: list[Any]  # for a classifier, in the order of arrival: targets are positions in it
    calibration_folds: int

    def fit_model(self) -> ScaledModel:
        """Fit a clone of the model to the rows of this job, standardised if ``standardize`` is set, and return it with the means
        and standard deviations of the features, the labels and the calibration factor. O(n d), plus the cost of the model's
        ``fit``.
        """
        X = self.rows.X.astype(np.float64)
        mean, scale = np.zeros(X.shape[1]), np.ones(X.shape[1])
        if self.standardize:
            mean = np.average(X, axis=0, weights=self.rows.weights)
            varies = X.min(axis=0) < X.max(axis=0)  # rounding may make the deviation of equal values nonzero
            deviation = np.sqrt(np.average((X - mean) ** 2, axis=0, weights=self.rows.weights))
            scale[varies] = deviation[varies]
            X -= mean
            X /= scale
        if is_classifier(self.model):
            return self._fit_classifier(X, mean, scale)
        return ScaledModel(self._fit_clone(X, self.rows.targets, self.rows.weights), mean, scale, [], 0.0)

    def _fit_classifier(self, X: np.ndarray, mean: np.ndarray, scale: np.ndarray) -> ScaledModel:
        """Fit a classifier to standardised rows X [n, features], and calibrate its probabilities on held-out rows unless it has
        ``predict_proba``. Return the fitted model together with ``mean`` and ``scale`` (of the standardisation), its labels and
        the calibration factor.
        """
        labels, targets, weights = self.labels, self.rows.targets.astype(np.int64), self.rows.weights
        values = encode_unsupported_labels(labels)
        if values is None:
            values = as_array(labels)
        elif isinstance(getattr(self.model, "class_weight", None), dict):
            raise ValueError("class_weight can be a dictionary only if labels have one type: bool, int, str or whole float")
        model = self._fit_clone(X, values[targets], weights)
        numbers = dict(zip(values.tolist(), range(len(labels)), strict=True))
        order = [numbers[value] for value in model.classes_.tolist()]
        log_factor = 0.0
        if not hasattr(model, "predict_proba"):
            check_decision_shape(model, compute_decision_values(model, X[:1]), len(order))
            class_of_label = np.empty(len(labels), np.int64)
            class_of_label[order] = np.arange(len(order))

            def fit_and_decide(train: np.ndarray, test: np.ndarray) -> np.ndarray:
                """Fit a clone of the model to the rows that the mask ``train`` bool [n] selects, and return its decision values
                for the rows that the mask ``test`` selects.
                """
                fold_model = self._fit_clone(X[train], values[targets[train]], weights[train])
                return compute_decision_values(fold_model, X[test])

            log_factor = fit_log_factor(class_of_label[targets], weights, self.calibration_folds, fit_and_decide)
        return ScaledModel(model, mean, scale, [labels[code] for code in order], log_factor)

    def _fit_clone(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Any:
        """Return a clone of the job's model, fitted to rows X with labels or targets y. ``weights`` [n] are passed as
        ``sample_weight`` only if one of them is not 1, because not all models accept weights.
        """
        arguments = {} if (weights == 1.0).all() else {"sample_weight": weights}
        return clone(self.model, safe=False).fit(X, y, **arguments)
