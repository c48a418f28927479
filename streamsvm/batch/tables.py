"""Estimators of scikit-learn for frames as they are: names, dates, ids and gaps are found when they are fitted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Self

import narwhals as nw
import numpy as np
from river import base
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from streamsvm.core.frames import to_columns, to_list
from streamsvm.files.messages import short_repr
from streamsvm.from_tables import table_model
from streamsvm.learners.labels import is_missing
from streamsvm.stream.tables import TableModel
from streamsvm.stream.tables.chunk import Table

_LABEL = "label"


class _TableEstimator(BaseEstimator):  # type: ignore[misc]
    """The base of the two: `table_model` of the frame that they are fitted to, which learns its rows once."""

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
        when_missing: str = "mean",
        cycles: str | Iterable[str] = (),
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
        """Look at a frame, and learn its rows.

        Parameters
        ----------
        X
            The frame [n, columns], without the labels: pandas, polars or pyarrow.
        y
            The n labels, or targets.
        sample_weight
            The n weights, at least 0. None: each is 1.

        Raises
        ------
        ValueError
            X is no frame, two readings of a column are right, or a row is refused; the message says what to try.
        """
        names, _, frame = to_columns(X)
        labels, weights = self._check_labels(y, len(frame)), self._check_weights(sample_weight, len(frame))
        order = np.arange(len(frame))
        if self.shuffle:
            check_random_state(self.random_state).shuffle(order)
        labels, frame = [labels[i] for i in order], frame[order.tolist()]
        name = _LABEL
        while name in names:
            name += "_"
        labelled = frame.with_columns(nw.new_series(name, labels, backend=frame.implementation))
        learner = self.learner.clone() if isinstance(self.learner, base.Base) else self.learner
        how = {each: getattr(self, each) for each in ("columns", "missing", "decimal", "when_missing", "cycles")}
        model = table_model(labelled.to_native(), name, learner=learner, regression=self._regression, **how)
        model.learn_many(frame.to_native(), labels, None if weights is None else weights[order])
        self.model_, self.n_features_in_ = model, len(names)
        self.feature_names_in_ = np.array(names, dtype=object)
        return self

    def _continue_learning(self, X: Any, y: Any, sample_weight: Any) -> Self:
        """Learn the rows of a frame in their order, after those that were learned before."""
        if not hasattr(self, "model_"):
            return self.fit(X, y, sample_weight)  # which shuffles, if it is to
        frame = self._check_frame(X)
        self.model_.learn_many(
            frame.to_native(), self._check_labels(y, len(frame)), self._check_weights(sample_weight, len(frame))
        )
        return self

    def predict(self, X: Any) -> np.ndarray:
        """Predict the rows of a frame: the n labels, or targets.

        Raises
        ------
        ValueError
            X has not the columns of the frame that was fitted, or a row is refused.
        sklearn.exceptions.NotFittedError
            The model is not fitted.
        """
        frame = self._check_frame(X)
        return self._to_predictions(to_list(self.model_.predict_many(frame.to_native())))

    def _check_frame(self, X: Any) -> Any:
        """Return a frame, which has the columns that were fitted."""
        check_is_fitted(self)
        names, _, frame = to_columns(X)
        if missing := [name for name in self.feature_names_in_ if name not in names]:
            raise ValueError(f"X has no column {short_repr(missing[0])}, which the fitted frame had")
        return frame

    def _check_labels(self, y: Any, n: int) -> list[Any]:
        """Return the n labels, or targets."""
        labels = to_list(y) if np.ndim(y) == 1 or hasattr(y, "dtype") else list(y)
        if len(labels) != n:
            raise ValueError(f"X has {n:,} rows, and y {len(labels):,} labels")
        if missing := [i for i, label in enumerate(labels) if is_missing(label)]:
            raise ValueError(f"y is missing in row {missing[0]:,}, and in {len(missing):,} of {n:,} rows: leave them out")
        return labels

    def _check_weights(self, given: Any, n: int) -> np.ndarray | None:
        weights = None if given is None else np.asarray(given, np.float64)
        if weights is not None and weights.shape != (n,):
            raise ValueError(f"X has {n:,} rows, and sample_weight the shape {weights.shape}")
        return weights

    def _to_predictions(self, found: list[Any]) -> np.ndarray:
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = tags.input_tags.string = tags.input_tags.categorical = True
        tags.non_deterministic = self.shuffle and self.random_state is None
        return tags


class TableClassifier(ClassifierMixin, _TableEstimator):  # type: ignore[misc]
    """A classifier of frames as they are, for scikit-learn's tools.

    ``fit`` makes the model that `streamsvm.table_model` makes of the frame, and learns its rows once, shuffled. That model is
    ``model_``: it goes on learning, is saved, explained and exported as any other.

    Parameters
    ----------
    learner
        A classifier of river, of which each fit takes a copy. None: `SVMClassifier`.
    columns, missing, decimal, when_missing, cycles
        As of `streamsvm.table_model`.
    shuffle
        Whether rows are learned in a random order. A model of a stream follows what comes last, so frames that are sorted by
        label need it; if the order of the rows is time, it should be False.
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
        labels = super()._check_labels(y, n)
        check_classification_targets(y)
        return labels

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        super().fit(X, y, sample_weight)
        self.classes_ = np.unique(y)
        return self

    def partial_fit(self, X: Any, y: Any, classes: Any = None, sample_weight: Any = None) -> Self:
        """Learn the rows of a frame in their order, after those that were learned before.

        The parameters are as in `fit`. All ``classes`` may be named, but need not.
        """
        known = [np.unique(each) for each in (y, classes, getattr(self, "classes_", None)) if each is not None]
        self._continue_learning(X, y, sample_weight)
        self.classes_ = np.unique(np.concatenate(known))
        return self

    def predict_proba(self, X: Any) -> np.ndarray:
        """Predict the probability of each class of ``classes_``, float64 [n, classes]; errors are as in `predict`."""
        names, columns, frame = to_columns(self._check_frame(X).to_native())
        table, places = Table(tuple(names), columns), self._index_labels()
        found = np.zeros((len(frame), len(self.classes_)))
        for i in range(len(frame)):
            for label, probability in self.model_.predict_proba_one(table.row(i).x).items():
                if label in places:
                    found[i, places[label]] = probability
        return found

    def _to_predictions(self, found: list[Any]) -> np.ndarray:
        places = self._index_labels()
        return self.classes_[[places[label] for label in found]]

    def _index_labels(self) -> dict[Any, int]:
        """Return the number of each class by the label that the model has for it, as a table may have numbers as texts."""
        return {label: i for i, label in enumerate(self.model_.parse_labels(to_list(self.classes_)))}


class TableRegressor(RegressorMixin, _TableEstimator):  # type: ignore[misc]
    """A regressor of frames as they are, for scikit-learn's tools.

    It is as `TableClassifier`, with `SVMRegressor`, or a regressor of river.

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
        """Learn the rows of a frame in their order, after those that were learned before; the parameters are as in `fit`."""
        return self._continue_learning(X, y, sample_weight)

    def _to_predictions(self, found: list[Any]) -> np.ndarray:
        return np.asarray(found, np.float64)
