"""Batch solvers as river estimators: fitted anew on the last rows of a stream, on a schedule."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping
from typing import Any, Self

import numpy as np
from river import base
from river.utils import dataframe
from sklearn.base import is_classifier, is_regressor

from streamsvm.batch.adapter.budgeted import adapter_to_budget
from streamsvm.batch.adapter.fit import Fit
from streamsvm.batch.adapter.probability import LARGEST_LOG_FACTOR, fit_log_factor, probabilities
from streamsvm.batch.adapter.refitting import Refitting
from streamsvm.batch.adapter.solvers import (
    as_array,
    check_classifier,
    check_width,
    codes,
    decisions,
    follows_conventions,
    predictions,
)
from streamsvm.batch.adapter.window import Rows
from streamsvm.batch.csmo.estimators import CSMOClassifier, CSMORegressor
from streamsvm.checks import check_number, checked_target
from streamsvm.learners.labels import Labels

__all__ = ["BatchAdapter", "BatchClassifier", "BatchRegressor"]


class BatchAdapter(Refitting):
    """A batch solver as a river estimator, fitted anew on a window of the last rows.

    Rows go into a window that is allocated once. Every ``refit_every`` rows a clone of ``model`` is fitted on all rows of the
    window, and answers from then on. Called by this name, it makes a `BatchClassifier` or a `BatchRegressor`, as ``model`` is;
    their signatures have the defaults.

    Parameters
    ----------
    model
        An estimator with scikit-learn's conventions: `CSMOClassifier`, `CSMORegressor`, or one of scikit-learn's own. It is
        never fitted itself.
    window
        Rows that are kept; the oldest goes.
    refit_every
        Rows from one fit to the next, and before the first one. None: only `fit` fits.
    standardize
        Whether features are brought to mean 0 and standard deviation 1 over the window, anew with each fit.
    max_features
        Feature names that there is room for.
    overflow
        What happens to further names: ``"raise"``, ``"hash"`` them into the columns there are, or ``"ignore"`` them.
    calibration_folds
        Of a classifier: folds of the window on which probabilities are fitted, with a fit for each; 0: none. See
        `BatchClassifier.predict_proba_one`. Nothing is spent where ``model`` gives probabilities itself.
    max_classes
        Of a classifier: labels that there is room for.

    Raises
    ------
    ValueError
        A parameter is out of its range; the message names it.

    Warns
    -----
    RuntimeWarning
        A fit that was due failed, or waits since the window has one class only: the model before it stays.

    Notes
    -----
    Memory: ``window * (4 * max_features + 16)`` bytes, the fitted model, and while it is fitted what the solver takes for the
    rows in float64. Rows are kept as float32. Learning a row is O(features) between fits. A fit costs what the solver takes, and
    for a classifier without probabilities of its own one more for each of the ``calibration_folds``, without the rows of the
    fold. A prediction is one call of the model, which takes much longer for one row than for one of many.

    Where a fit that is due fails, the rows stay in the window, the last good model goes on answering with a warning, and the next
    attempt comes ``refit_every`` rows later; where there is no model yet, the solver's error is raised. The fit of a window with
    one class waits for the next row that brings a second one. Ctrl-C during a fit leaves the last good model and all rows.

    Columns are given to features in the order in which learning meets their names, and a name counts in predictions from the fit
    that has seen it on. Weights are handed on as ``sample_weight`` where one of the window is not 1; a model that takes none
    refuses such rows. A row of weight 0 is not looked at.

    Checkpoints hold the rows and the fitted model. With a model of `streamsvm` they need no trust; one of scikit-learn or of your
    own needs ``CheckpointFolder(path, trusted=True)``.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm.batch import BatchAdapter, CSMOClassifier

    >>> model = BatchAdapter(CSMOClassifier(), window=1000, refit_every=500)
    >>> evaluate.progressive_val_score(datasets.Bananas().take(2000), model, metrics.Accuracy())
    Accuracy: 81.35%
    >>> model.n_fits, model.n_window, type(model).__name__
    (4, 1000, 'BatchClassifier')
    """

    def to_budget(self, budget: int, **parameters: Any) -> Any:
        """The last good model as a budgeted learner that goes on learning, behind a ``StandardScaler`` that goes on from the
        window's means and deviations (just the learner with ``standardize=False``). A feature that a row has not is at its mean
        then, not 0.

        Parameters
        ----------
        budget, parameters
            As in `streamsvm.batch.to_budget`; it is to decide alike on the rows of the window. What the adapter has room for the
            learner has room for by default: its ``max_features``, ``overflow`` and ``max_classes`` are the adapter's.

        Raises
        ------
        ValueError
            There is no fitted model yet, it is none of `streamsvm`, its labels are of several types or numbers with fractions,
            or features that are standardised may have been hashed together.

        Notes
        -----
        Time as in `streamsvm.batch.to_budget`, for the rows of the window; meanwhile there is a copy of them in float64. The
        learner's ``nbytes`` grow with ``budget * (4 * max_features + 16 * max_classes)``: where no more are to come, smaller
        ones save memory. The scaler keeps three numbers for each name that it ever meets, also those that are then ignored.
        """
        return adapter_to_budget(self, budget, parameters)

    def __new__(cls, model: Any = None, *_: Any, **__: Any) -> Self:
        kind: Any = cls
        if cls is BatchAdapter:
            kind = BatchClassifier if follows_conventions(is_classifier, model) else BatchRegressor
        return super().__new__(kind)


class BatchClassifier(BatchAdapter, base.MiniBatchClassifier):
    """A batch classifier as a river classifier; see `BatchAdapter` for the parameters.

    Labels of one type (bool, int, str, or float without fractions) are given to the model as they are; others as 0, 1, ..., in
    the order in which they came.

    Examples
    --------
    >>> from river import datasets
    >>> from streamsvm.batch import BatchClassifier, CSMOClassifier

    >>> model = BatchClassifier(CSMOClassifier(C=10.0), refit_every=None)
    >>> model.fit(datasets.Phishing(), limit=1000).n_window
    1000
    >>> x, y = next(iter(datasets.Phishing()))
    >>> y, model.predict_one(x)
    (True, True)
    """

    def __init__(
        self,
        model: Any,
        window: int = 10_000,
        refit_every: int | None = 1_000,
        standardize: bool = True,
        max_features: int = 256,
        overflow: str = "raise",
        calibration_folds: int = 3,
        max_classes: int = 10,
    ) -> None:
        if not follows_conventions(is_classifier, model):
            raise ValueError(f"model must be a classifier with scikit-learn's conventions, not {model!r}")
        check_classifier(model)
        self.calibration_folds = calibration_folds
        self.max_classes = max_classes
        if calibration_folds != 0:
            check_number("calibration_folds", calibration_folds, 2, inclusive=True, high=100, integer=True)
        check_number("max_classes", max_classes, 2, inclusive=True, high=2**20, integer=True)
        self._labels = Labels(max_classes)
        self._counts: Counter[float] = Counter()  # rows of the window, by target
        super().__init__(model, window, refit_every, standardize, max_features, overflow)

    @property
    def _multiclass(self) -> bool:
        return self._labels.max_classes > 2

    # What is learned --------------------------------------------------------------------------------------------------------

    def _target(self, y: Any) -> float:
        target = self._labels.target(y)
        if self._labels.many:
            return target
        return 0.0 if target == next(iter(self._labels.targets.values())) else 1.0

    def _known(self) -> tuple[int, ...]:
        return *super()._known(), self._labels.n_seen

    def _forget(self, known: tuple[int, ...]) -> None:
        super()._forget(known)
        self._labels.forget(known[1])

    def _put(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        gone = super()._put(X, targets, weights)
        for target in targets[-self.window :].tolist():
            self._counts[target] += 1
        for target in gone.tolist():
            self._counts[target] -= 1
        return gone

    def _why_not(self) -> str | None:
        targets = self._window.targets
        if len(targets) and self._counts[targets[0]] == len(targets):
            return f"the window has one class only, {self.labels[int(targets[0])]!r}"
        return super()._why_not()

    def _fitted(self, rows: Rows, mean: np.ndarray, scale: np.ndarray) -> Fit:
        labels, targets = self.labels, rows.targets.astype(np.int64)
        values = codes(labels)
        if values is None:
            values = as_array(labels)
        elif isinstance(getattr(self.model, "class_weight", None), dict):
            raise ValueError("class_weight as a dictionary is for labels of one type: bool, int, str, or float without fractions")
        model = self._solved(rows.X, values[targets], rows.weights)
        numbers = dict(zip(values.tolist(), range(len(labels)), strict=True))
        order = [numbers[value] for value in model.classes_.tolist()]
        log_factor = 0.0
        if not hasattr(model, "predict_proba"):
            check_width(model, decisions(model, rows.X[:1]), len(order))
            places = np.empty(len(labels), np.int64)
            places[order] = np.arange(len(order))

            def decide(train: np.ndarray, held: np.ndarray) -> np.ndarray:
                return decisions(self._solved(rows.X[train], values[targets[train]], rows.weights[train]), rows.X[held])

            log_factor = fit_log_factor(places[targets], rows.weights, self.calibration_folds, decide)
        return Fit(model, mean, scale, [labels[code] for code in order], log_factor)

    # What is predicted ------------------------------------------------------------------------------------------------------

    @property
    def labels(self) -> list[Any]:
        """The labels seen, in the order in which they came."""
        return self._labels.seen

    @property
    def classes(self) -> list[Any]:
        """The labels in the order of the columns of `predict_proba_many`: those that the model was fitted with first."""
        if self._fit is None:
            return self._labels.many or list(self._labels.probabilities(0.5))
        fitted = set(self._fit.classes)
        return [*self._fit.classes, *(label for label in self.labels if label not in fitted)]

    def _places(self, rows: np.ndarray, fit: Fit | None) -> np.ndarray:
        # Of the labels predicted, among `classes`. Models of others refuse to predict no rows.
        if fit is None or not len(rows):
            return np.full(len(rows), np.argmax(self._prior()))
        places = {value: place for place, value in enumerate(fit.model.classes_.tolist())}
        return np.array([places[value] for value in predictions(fit.model, rows).tolist()], np.int64)

    def _probabilities(self, rows: np.ndarray, fit: Fit | None) -> np.ndarray:
        # float64 [n, classes].
        if fit is None or not len(rows):
            return np.tile(self._prior(), (len(rows), 1))
        model = fit.model
        if hasattr(model, "predict_proba"):
            p = model.predict_proba(rows)
        else:
            p = probabilities(fit.log_factor, decisions(model, rows))
        return np.pad(p, ((0, 0), (0, len(self.classes) - p.shape[1])))

    def _prior(self) -> np.ndarray:
        # Before there is a model: what share of the rows each label has, with one more row for each.
        counts = {label: self._counts[number] for number, label in enumerate(self.labels)}
        prior = np.array([counts.get(label, 0) + 1.0 for label in self.classes])
        return prior / prior.sum()

    def predict_one(self, x: Mapping[Hashable, Any], **_: Any) -> Any:
        """The label of one row; before the first fit the most frequent one of the window, False where there are no rows."""
        fit = self._fit
        return self.classes[self._places(self._row_of(x, fit), fit)[0]]

    def predict_proba_one(self, x: Mapping[Hashable, Any], **_: Any) -> dict[Any, float]:
        """The probability of each label seen.

        What the model's ``predict_proba`` says, where it has that. Else decision values are turned into log odds by one factor,
        fitted with each fit on rows that were held out (see `.probability`): never at odds with the sign of the
        decision value. With ``calibration_folds=0`` the factor is 1. Before the first fit: the shares of the labels in the
        window, with one more row for each. A label that came since the last fit has probability 0.
        """
        fit = self._fit
        return dict(zip(self.classes, self._probabilities(self._row_of(x, fit), fit)[0].tolist(), strict=True))

    def decision_function_one(self, x: Mapping[Hashable, Any]) -> Any:
        """The decision value of one row: a float, positive for the second of `classes` where the model was fitted with two; else
        a dict of label to value. 0 before the first fit. AttributeError where the model has none.
        """
        fit = self._fit
        row = self._row_of(x, fit)
        if fit is None:
            return 0.0
        f = decisions(fit.model, row)[0]
        return float(f) if np.ndim(f) == 0 else dict(zip(fit.classes, f.tolist(), strict=True))

    def predict_many(self, X: Any) -> Any:
        """`predict_one` for each row: an array [n] of labels, a series where X is a frame."""
        fit = self._fit
        rows, like = self._rows_of(X, fit)
        labels = as_array(self.classes)[self._places(rows, fit)]
        return labels if like is None else dataframe.to_native_series(labels, name=None, like=like)

    def predict_proba_many(self, X: Any) -> Any:
        """`predict_proba_one` for each row: a frame with a column for each label, or where X is an array, float64 [n, labels] in
        the order of `classes`.
        """
        fit = self._fit
        rows, like = self._rows_of(X, fit)
        p = self._probabilities(rows, fit)
        return p if like is None else dataframe.to_native_frame(dict(zip(self.classes, p.T, strict=True)), like=like)

    # What is kept -----------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "labels": self.labels}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._labels.restore(state["labels"])
        self._counts = Counter(self._window.targets.tolist())
        if not self._counts.keys() <= set(range(self._labels.n_seen)):
            raise ValueError("the adapter was kept with rows of labels that it does not know")
        fit = self._fit
        if fit is not None and not (
            len(fit.classes) == len(fit.model.classes_)
            and len(fit.classes) == len(set(fit.classes) & set(self.labels))
            and isinstance(fit.log_factor, float)
            and abs(fit.log_factor) <= LARGEST_LOG_FACTOR
        ):
            raise ValueError("the adapter was kept with a model of other labels")

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"model": CSMOClassifier(), "window": 60, "refit_every": 50}


class BatchRegressor(BatchAdapter, base.MiniBatchRegressor):
    """A batch regressor as a river regressor; see `BatchAdapter` for the parameters. The target is not scaled.

    Examples
    --------
    >>> from river import datasets, evaluate, metrics
    >>> from streamsvm.batch import BatchRegressor, CSMORegressor

    >>> model = BatchRegressor(CSMORegressor(C=10.0), window=500, refit_every=20)
    >>> evaluate.progressive_val_score(datasets.TrumpApproval(), model, metrics.MAE())
    MAE: 1.58...
    """

    def __init__(
        self,
        model: Any,
        window: int = 10_000,
        refit_every: int | None = 1_000,
        standardize: bool = True,
        max_features: int = 256,
        overflow: str = "raise",
    ) -> None:
        if not follows_conventions(is_regressor, model):
            raise ValueError(f"model must be a classifier or regressor with scikit-learn's conventions, not {model!r}")
        super().__init__(model, window, refit_every, standardize, max_features, overflow)

    def _target(self, y: Any) -> float:
        return checked_target(y)

    def _fitted(self, rows: Rows, mean: np.ndarray, scale: np.ndarray) -> Fit:
        return Fit(self._solved(rows.X, rows.targets, rows.weights), mean, scale, [], 0.0)

    def predict_one(self, x: Mapping[Hashable, Any], **_: Any) -> float:
        """The target of one row; 0 before the first fit."""
        fit = self._fit
        row = self._row_of(x, fit)
        return 0.0 if fit is None else float(predictions(fit.model, row)[0])

    def predict_many(self, X: Any) -> Any:
        """`predict_one` for each row: float64 [n], a series where X is a frame."""
        fit = self._fit
        rows, like = self._rows_of(X, fit)
        targets = predictions(fit.model, rows) if fit is not None and len(rows) else np.zeros(len(rows))
        return targets if like is None else dataframe.to_native_series(targets, name=None, like=like)

    @classmethod
    def _unit_test_params(cls) -> Iterator[dict[str, Any]]:
        yield {"model": CSMORegressor(), "window": 60, "refit_every": 50}


# What help() shows: subclasses have their own parameters, which `__new__` must let pass.
BatchAdapter.__new__.__signature__ = inspect.signature(BatchClassifier.__init__)  # type: ignore[attr-defined]
