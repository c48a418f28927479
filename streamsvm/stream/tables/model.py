"""A pipeline of an encoder of tables and a learner, which learns the rows of a frame in their order."""

from __future__ import annotations

import contextlib
import copy
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from river import base, compose

from streamsvm.core.checks import validate_weight
from streamsvm.core.frames import to_columns, to_list
from streamsvm.core.warning import warn
from streamsvm.stream.tables.chunk import MIN_BATCH_ROWS, Table, is_null, process_rows
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.table_schema import TableSchema
from streamsvm.stream.tables.values import format_date, parse_number

_MAX_ROWS_TOGETHER = 1024  # of a frame that are learned in one call
_SORTED, _RUN = 50, 5  # rows whose order is looked at, and how many of a label at least


class TableModel(compose.Pipeline):
    """A pipeline that begins with a `TableEncoder`, as ``encoder | learner`` makes it.

    It is river's Pipeline, but that `learn_many` is `learn_one` for one row after the other. River would first transform all rows
    of a frame, and then learn them: their names would have no statistics of the rows before.

    Examples
    --------
    >>> import pandas as pd
    >>> from streamsvm import BSGDClassifier
    >>> from streamsvm.stream.tables import TableEncoder
    >>> model = TableEncoder("city:category") | BSGDClassifier(budget=10)
    >>> X = pd.DataFrame({"city": ["Paris", "Oslo"] * 20})
    >>> model.learn_many(X, ["warm", "cold"] * 20)
    >>> list(model.predict_many(X[:2]))
    ['warm', 'cold']
    """

    def __init__(self, *steps: Any, schema: TableSchema | None = None) -> None:
        super().__init__(*steps)
        if schema is not None:
            self._reading = schema  # the name in saved files

    @property
    def schema(self) -> TableSchema | None:
        """How the table is read, of a model by `streamsvm.table_model` or ``streamsvm learn``; None of others."""
        schema = vars(self).get("_reading")
        return schema if isinstance(schema, TableSchema) else None

    @property
    def label(self) -> str | None:
        """Name of the column with the labels or targets; None if it is not known."""
        return None if self.schema is None else self.schema.label

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> TableModel:
        """Return a model with the same parameters and schema, which has learned nothing."""
        made = super().clone(new_params, include_attributes)
        if self.schema is not None:
            made._reading = copy.deepcopy(self.schema)
        return made

    def learn_many(self, X: Any, y: Any = None, w: Any = None, **params: Any) -> None:
        """Learn the rows of a frame, one after the other.

        Parameters
        ----------
        X
            The frame [n, columns]. A column that is the `label` is no feature.
        y
            The n labels, or targets. None: they are in the column of the `label`, and a row without one is not learned.
        w
            The n weights, at least 0. None: each is 1.
        params
            Other arguments of river's ``learn_many``.

        Raises
        ------
        ValueError
            A row is refused; the message begins with its number. The rows before it were learned. Or ``y`` is None, and ``X`` has
            no column with the labels.
        """
        encoder, *_, last = self.steps.values()
        if len(self.steps) != 2 or params or not hasattr(last, "learn_one"):
            super().learn_many(X, y, **params, **({} if w is None else {"w": w}))
            return
        names, columns, frame = to_columns(X)
        n, labels = len(frame), self._labels_of(X, y)
        weights, table = validate_weights(w, labels, n), Table(tuple(names), columns)
        if None in labels and self.schema is not None:  # of the unlabelled rows nothing is learned
            kept = [i for i, each in enumerate(labels) if each is not None]
            columns = [values[kept] if isinstance(values, np.ndarray) else [values[i] for i in kept] for values in columns]
            table, n, labels, weights = Table(tuple(names), columns), len(kept), [labels[i] for i in kept], weights[kept]
        _warn_of_order(labels)

        def learn_many(first: int, end: int) -> int:
            return self._learn_together(encoder, last, table, first, labels[first:end], weights[first:end], w is not None)

        def learn_one(i: int) -> None:
            with add_row_number(i):
                self.learn_one(table.row(i).x, labels[i], **({} if w is None else {"w": float(weights[i])}))

        process_rows(0, n, _MAX_ROWS_TOGETHER, learn_many, learn_one)
        if n and hasattr(last, "note_columns"):
            last.note_columns(names)

    def predict_many(self, X: Any) -> Any:
        """Predict the rows of a frame: the n labels, or targets."""
        if hasattr(self._last_step, "predict_many"):
            return super().predict_many(X)
        names, columns, frame = to_columns(X)
        table, predictions = Table(tuple(names), columns), []
        for i in range(len(frame)):
            with add_row_number(i):
                predictions.append(self.predict_one(table.row(i).x))
        return np.array(predictions)

    def score(self, X: Any, y: Any = None) -> float:
        """Return how well the rows of a frame are predicted: the accuracy, or of numbers R2, as scikit-learn's ``score``.

        Parameters
        ----------
        X
            The frame [n, columns].
        y
            The n labels, or targets. None: they are in the column of the `label`. Rows without one do not count.

        Raises
        ------
        ValueError
            A row is refused, or there is no label.
        """
        labels = self._labels_of(X, y)
        predicted = to_list(self.predict_many(X))
        pairs = [pair for pair in zip(labels, predicted, strict=True) if pair[0] is not None]
        if not pairs:
            raise ValueError("there is no row with a label to score")
        if isinstance(self._last_step, base.Regressor):
            due, predicted_values = (np.array(values, np.float64) for values in zip(*pairs, strict=True))
            spread = float(((due - due.mean()) ** 2).sum())
            return 1.0 - float(((due - predicted_values) ** 2).sum()) / spread if spread else 0.0
        return float(np.mean([predicted_values == due for due, predicted_values in pairs]))

    def explain_one(self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, label: Any = None) -> Any:
        """Return how much each column of a row moves its decision, as ``explain_one`` of the learner, with its arguments.

        All features that were made of a column count together. The typical row has the mean of each number, as far as the learner
        scales by it, and the mean of the statistics of names. A ValueError says that the row is refused, the model has learned
        nothing, or its learner explains nothing.
        """
        encoder, *_, last = self.steps.values()
        if not hasattr(last, "explain_one"):
            raise ValueError(f"a {type(last).__name__} explains no decision")
        base = None if typical is None else self._transform_one(dict(typical))[0]
        chosen = {} if label is None else {"label": label}  # of numbers there is none
        row = self._transform_one(x)[0]  # type: ignore[arg-type] # the encoder says what is no mapping
        explanation = last.explain_one(row, base, groups=encoder.column_state.map_features_to_columns(), **chosen)
        # Dates that were read already, as seconds, are dates again.
        dates = {name: format_date(x[name]) for name in encoder.dates if name in x and isinstance(x[name], float)}
        return replace(explanation, values={**x, **dates})

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Any:
        """Return the rows of each label that the learner knows and that are nearest to a row, at most n, as its ``examples_one``.

        Their features are put back into columns, as far as they tell: of a name without a feature of its own, it is known what
        labels say of it, and a number that was missing is the mean that stood for it. A ValueError says that the row is refused,
        or that the learner knows no rows.
        """
        encoder = next(iter(self.steps.values()))
        examples = self._last_says("examples_one", "no rows to show", x, n)
        if len(self.steps) > 2 or encoder.learned_scaler is not None:
            return examples
        return examples.changed(lambda example: example._replace(values=encoder.column_state.decode_features(example.values)))

    def predict_interval_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the interval of a row's target; a ValueError unless the model ends in a conformal regressor."""
        return self._last_says("predict_interval_one", "no intervals", x)

    def predict_set_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the labels to expect of a row; a ValueError unless the model ends in a conformal classifier."""
        return self._last_says("predict_set_one", "no sets of labels", x)

    def _last_says(self, method: str, nothing: str, x: Mapping[Any, Any], *more: Any) -> Any:
        """Call a method of the last step with a row; ValueError if it has no such method."""
        last = self._last_step
        if not hasattr(last, method):
            raise ValueError(f"a {type(last).__name__} has {nothing}")
        return getattr(last, method)(self._transform_one(x)[0], *more)  # type: ignore[arg-type] # the encoder says what is no mapping

    def _labels_of(self, X: Any, y: Any) -> list[Any]:
        if y is not None:
            return self.parse_labels(to_list(y))
        if self.label is None:
            return [None] * len(X)
        columns = dict(zip(*to_columns(X)[:2], strict=True))
        if self.label not in columns:
            raise ValueError(f"X has no column {self.label!r}, which is the label: give y, or a frame with it")
        return self.parse_labels(to_list(columns[self.label]))

    def parse_labels(self, labels: Sequence[Any]) -> list[Any]:
        """Return labels as the `schema` has them: None for a missing label, and targets as numbers.

        Raises
        ------
        ValueError
            A target is not a number.
        """
        schema = self.schema
        if schema is None:
            return list(labels)
        options = {name: value for name, value in schema.encoder_options.items() if name in ("missing", "decimal")}
        parser, read = TableParser(**options), []
        for i, label in enumerate(labels):
            y = None if is_null(label) else parser.parse_label(label)
            if schema.regression and isinstance(y, str):
                with add_row_number(i):
                    y = parse_number(y)
            read.append(y)
        return read

    def _learn_together(
        self, encoder: Any, last: Any, table: Table, first: int, y: list[Any], w: np.ndarray, is_weighted: bool
    ) -> int:
        """Learn rows in one call, as many as can be from the first on; return how many."""
        if not hasattr(last, "predict_then_learn") or encoder.learned_scaler is not None or None in y:
            return 0
        encoded = encoder.encode(table, first, first + len(y), w > 0.0, set(last.feature_names), y, w)
        n = len(encoded.X)
        if (
            n < MIN_BATCH_ROWS
            or last.predict_then_learn(encoded.X, encoded.names, y[:n], False, w[:n] if is_weighted else None) is None
        ):
            return 0
        encoded.learn()
        return n


def _warn_of_order(labels: Sequence[Any]) -> None:
    """Warn if the rows of a frame are sorted by their labels, because the last rows count most."""
    if len(labels) < _SORTED:
        return
    changes = sum(a != b for a, b in itertools.pairwise(labels))
    distinct = len(set(labels))
    is_sorted = 1 < distinct == changes + 1 <= len(labels) // _RUN
    if not is_sorted and distinct > _SORTED:  # numbers to predict
        try:
            is_sorted = list(labels) in (sorted(labels), sorted(labels, reverse=True))
        except TypeError:
            return
    if is_sorted:
        warn("the rows are sorted by their labels, and a model that learns a stream follows what comes last: shuffle them first")


def validate_weights(w: Any, labels: Sequence[Any], n: int) -> np.ndarray:
    """Return the weights of n rows, float64; ValueError if there are not n weights and labels, or a weight is invalid."""
    values = [1.0 if w is None else w] * n if w is None or np.ndim(w) == 0 else to_list(w)
    weights = np.array([validate_weight(value) for value in values], np.float64)
    if not len(labels) == len(weights) == n:
        raise ValueError(f"there are {n:,} rows, {len(labels):,} labels and {len(weights):,} weights")
    return weights


@contextlib.contextmanager
def add_row_number(i: int) -> Iterator[None]:
    """Let an error say which row of a frame it is about."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"row {i}: {error}") from None
