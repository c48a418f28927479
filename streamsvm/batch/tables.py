"""Estimators with scikit-learn's conventions for raw data frames; a fit infers the schema (categories, dates, ids, gaps)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import narwhals as nw
import numpy as np
from river import base
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, column_or_1d

from streamsvm.core.frames import list_labels, to_columns, to_list
from streamsvm.files.messages import short_repr
from streamsvm.from_tables import table_model
from streamsvm.learners.labels import is_missing
from streamsvm.stream.tables import TableModel
from streamsvm.stream.tables.chunk import Table
from streamsvm.stream.tables.model import warn_of_unknown_values

_LABEL = "label"


class _TableEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of `TableClassifier` and `TableRegressor`: a fit calls `table_model` and learns the rows of the frame once."""

    model_: TableModel
    n_features_in_: int
    feature_names_in_: np.ndarray
    _regression = False

    def __init__(
        self,
        learner: base.Classifier | base.Regressor | None = None,
        *,
        columns: str = "",
        missing: str | Iterable[str] = (),
        decimal: str | None = None,
        when_missing: str | None = None,
        cycles: str | Iterable[str] | None = None,
        shuffle: bool = True,
        random_state: Any = None,
    ) -> None:
        self.learner = learner
        self.columns = columns
        self.missing = missing
        self.decimal = decimal
        self.when_missing = when_missing
        self.cycles = cycles
        self.shuffle = shuffle
        self.random_state = random_state

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Infer the schema of the data frame X (types of its columns), create a model for it, and learn its rows with the labels
        or targets y.

        Parameters
        ----------
        X
            The frame [n, columns], without the labels: pandas, polars or pyarrow.
        y
            The labels or targets [n].
        sample_weight
            The weights [n], at least 0. By default, each is 1.

        Raises
        ------
        ValueError
            X is not a data frame, a column is ambiguous, or a row is refused; the message names the remedy.
        """
        names, _, frame = to_columns(X)
        labels, weights = self._check_labels(y, len(frame)), self._check_weights(sample_weight, len(frame))
        order = np.arange(len(frame))
        if self.shuffle:
            check_random_state(self.random_state).shuffle(order)
        labels, frame = [labels[i] for i in order], frame[order.tolist()]
        label_name = _LABEL
        while label_name in names:
            label_name += "_"
        labelled = frame.with_columns(nw.new_series(label_name, labels, backend=frame.implementation))
        learner = self.learner.clone() if isinstance(self.learner, base.Base) else self.learner
        options = {name: getattr(self, name) for name in ("columns", "missing", "decimal", "when_missing", "cycles")}
        model = table_model(labelled.to_native(), label_name, learner=learner, regression=self._regression, **options)
        model.learn_many(frame.to_native(), labels, None if weights is None else weights[order])
        self.model_, self.n_features_in_ = model, len(names)
        self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _continue_learning(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Learn the rows of the data frame X in their order, in addition to those learned before, and return this estimator. The
        first call fits it.
        """
        if not hasattr(self, "model_"):
            return self.fit(X, y, sample_weight)  # the first call shuffles the rows if ``shuffle`` is True
        frame = self._check_frame(X)
        labels, weights = self._check_labels(y, len(frame)), self._check_weights(sample_weight, len(frame))
        self.model_.learn_many(frame.to_native(), labels, weights)
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the label or target of each row of the data frame X, as an array [n].

        Raises
        ------
        ValueError
            X lacks a column of the fitted frame, or a row is refused.
        sklearn.exceptions.NotFittedError
            The model is not fitted.
        """
        frame = self._check_frame(X)
        return self._to_predictions(to_list(self.model_.predict_many(frame.to_native())))

    def _check_frame(self, X: Any) -> Any:
        """Return the data frame X as a narwhals frame. Raise a ValueError if it lacks a column that the fitted frame had, or a
        NotFittedError before the fit.
        """
        check_is_fitted(self)
        names, _, frame = to_columns(X)
        if missing := [name for name in self.feature_names_in_ if name not in names]:
            raise ValueError(f"X has no column {short_repr(missing[0])}, which the fitted frame has")
        return frame

    def _check_labels(self, y: Any, n: int) -> list[Any]:
        """Return the labels or targets y as a list. Raise a ValueError if there are not exactly ``n``, or one is missing (None or
        NaN). A column [n, 1] is flattened with a DataConversionWarning, as in scikit-learn.
        """
        if len(np.shape(y)) > 1:
            y = column_or_1d(np.asarray(y), warn=True)
        labels = list_labels(y, n)
        if missing := [i for i, label in enumerate(labels) if is_missing(label)]:
            raise ValueError(f"y is missing in row {missing[0]:,}, and in {len(missing):,} of {n:,} rows: leave them out")
        return labels

    def _check_weights(self, sample_weight: Any, n: int) -> np.ndarray | None:
        """Return the row weights as float64 [n], or None if no weights were passed. Raise a ValueError if their number is not
        ``n``.
        """
        weights = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        if weights is not None and weights.shape != (n,):
            raise ValueError(f"X has {n:,} rows, and sample_weight the shape {weights.shape}")
        return weights

    def _to_predictions(self, values: list[Any]) -> np.ndarray:
        """Convert the predictions of the stream model, a list, to an array [n]. Subclasses define it."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.non_deterministic = self.shuffle and self.random_state is None
        return tags


class TableClassifier(ClassifierMixin, _TableEstimator):  # type: ignore[misc]
    """A classifier of raw data frames, for scikit-learn's tools.

    ``fit`` creates a model by `streamsvm.table_model` from the frame, and learns the rows once, shuffled. The model is
    ``model_``: it can continue learning, and be saved, explained and exported like any other model.

    Parameters
    ----------
    learner
        A classifier of river; each fit uses a copy. None uses an `SVMClassifier`.
    columns, missing, decimal, when_missing, cycles
        As in `streamsvm.table_model`.
    shuffle
        Whether rows are learned in random order. Stream models give recent rows more influence, so frames that are sorted by
        label need it. Set it to False if the rows are in order of time.
    random_state
        The seed of that order.

    Examples
    --------
    >>> import pandas as pd
    >>> from sklearn.model_selection import cross_val_score
    >>> from streamsvm.batch.tables import TableClassifier
    >>> frame = pd.DataFrame({"city": ["Oslo", "Paris", "Rome"] * 40, "age": [31.0, None, 40.0, 25.0] * 30})
    >>> cold = ["yes", "no", "no"] * 40
    >>> cross_val_score(TableClassifier(random_state=0), frame, cold, cv=3).tolist()
    [1.0, 1.0, 1.0]
    """

    classes_: np.ndarray

    def _check_labels(self, y: Any, n: int) -> list[Any]:
        """Return the labels y as a list. Raise a ValueError if there are not exactly ``n``, one is missing, or they are
        continuous numbers.
        """
        labels = super()._check_labels(y, n)
        check_classification_targets(np.asarray(labels))  # an array of objects may have whole numbers or booleans
        return labels

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        super().fit(X, y, sample_weight)
        classes = np.unique(y)
        self.classes_ = np.array(classes.tolist()) if classes.dtype == object and not isinstance(classes[0], str) else classes
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn the rows of the data frame X with labels y in their order, in addition to those learned before, and return this
        classifier. The first call fits it.

        The parameters are as in `fit`. ``classes`` may list all classes, but is optional.
        """
        label_arrays = y, classes, getattr(self, "classes_", None)
        label_sets = [np.unique(labels) for labels in label_arrays if labels is not None]
        self._continue_learning(X, y, sample_weight)
        self.classes_ = np.unique(np.concatenate(label_sets))
        return self

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the mean accuracy of the predictions for the data frame X with labels y, as scikit-learn's classifiers do. A
        warning names labels that the model has never learned, if most rows have them.
        """
        frame = self._check_frame(X)
        labels = self._check_labels(y, len(frame))
        predicted = self.model_._predict_frame(frame.to_native(), self.model_.parse_labels(labels))
        return float(accuracy_score(np.asarray(labels), self._to_predictions(to_list(predicted)), sample_weight=sample_weight))

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class for the rows of the data frame X, float64 [n, classes], in the order of
        ``classes_``. Errors are those of `predict`.
        """
        names, columns, frame = to_columns(self._check_frame(X).to_native())
        table, class_indices = Table(tuple(names), columns), self._index_labels()
        warn_of_unknown_values(self.model_, table)
        probabilities = np.zeros((len(frame), len(self.classes_)))
        for i in range(len(frame)):
            for label, probability in self.model_.predict_proba_one(table.row(i).x).items():
                if label in class_indices:
                    probabilities[i, class_indices[label]] = probability
        return probabilities

    def _to_predictions(self, values: list[Any]) -> np.ndarray:
        """Convert the labels that the stream model predicted, a list, to an array [n] of labels in ``classes_``, which may have
        another type.
        """
        class_indices = self._index_labels()
        return self.classes_[[class_indices[label] for label in values]]

    def _index_labels(self) -> dict[Any, int]:
        """Return a dictionary from the stream model's form of each label (text, if the model reads numbers as text) to the index
        of the class in ``classes_``.
        """
        return {label: i for i, label in enumerate(self.model_.parse_labels(to_list(self.classes_)))}


class TableRegressor(RegressorMixin, _TableEstimator):  # type: ignore[misc]
    """A regressor of raw data frames, for scikit-learn's tools.

    It has the parameters of `TableClassifier`; the learner is an `SVMRegressor` by default, or a regressor of river.

    Examples
    --------
    >>> import pandas as pd
    >>> from streamsvm.batch.tables import TableRegressor
    >>> frame = pd.DataFrame({"city": ["Oslo", "Paris"] * 100, "size": [float(i % 7) for i in range(200)]})
    >>> price = [100.0 * size + (50.0 if city == "Oslo" else 0.0) for city, size in zip(frame["city"], frame["size"])]
    >>> TableRegressor(random_state=0).fit(frame, price).score(frame, price) > 0.98
    True
    """

    _regression = True

    def partial_fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Learn the rows of the data frame X with targets y in their order, in addition to those learned before, and return this
        regressor. Parameters are those of `fit`.
        """
        return self._continue_learning(X, y, sample_weight)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return R2 of the predictions for the data frame X with targets y, which may be in the notation that was fitted."""
        targets = self.model_.parse_labels(self._check_labels(y, len(X)))
        return float(r2_score(targets, self.predict(X), sample_weight=sample_weight))

    def _to_predictions(self, values: list[Any]) -> np.ndarray:
        """Convert the predictions of the stream model, a list of numbers, to float64 [n]."""
        return np.asarray(values, np.float64)
