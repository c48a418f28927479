"""A pipeline of a `TableEncoder` and a learner, which also learns and scores frames."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from river import base, compose

from streamsvm.core.explaining import select_strongest
from streamsvm.core.frames import check_weights, list_labels, to_columns, to_list
from streamsvm.core.warning import warn
from streamsvm.files.messages import suggest_name
from streamsvm.stream.tables.chunk import MIN_BATCH_ROWS, Table, is_null, process_rows
from streamsvm.stream.tables.column_monitor import ColumnMonitor
from streamsvm.stream.tables.dates import format_date, parse_times
from streamsvm.stream.tables.row_order import FOLLOWS_LAST, are_rising, are_sorted
from streamsvm.stream.tables.table_parser import TableParser, to_plain_value
from streamsvm.stream.tables.table_schema import TableSchema, make_label_options
from streamsvm.stream.tables.values import parse_number

_MAX_BATCH_ROWS = 1024  # rows of a frame that are learned in one call
_MIN_UNKNOWN_SHARE = 0.5  # of the rows of a frame: rarer unknown values are usual, and cause no warning


class TableModel(compose.Pipeline):
    """A pipeline that begins with a `TableEncoder`, as made by ``encoder | learner``.

    It differs from river's Pipeline in `learn_many`, which is equivalent to `learn_one` for each row in order. River would
    transform all rows of a frame before learning any of them, without the target encoding from earlier rows.

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
        first, *_, last = self.steps.values()
        if (key := getattr(last, "key", None)) is not None:
            first.pass_key(key)

    @property
    def schema(self) -> TableSchema | None:
        """The schema of the table: the kinds of its columns and the options that read it. None unless the model was made by
        `streamsvm.table_model` or ``streamsvm learn``.
        """
        schema = vars(self).get("_reading")
        return schema if isinstance(schema, TableSchema) else None

    @property
    def label(self) -> str | None:
        """Name of the table's column with the labels or targets. None if labels come beside the rows, or if the model has no
        schema.
        """
        return None if self.schema is None else self.schema.label

    def clone(self, new_params: dict[str, Any] | None = None, include_attributes: bool = False) -> TableModel:
        """Return an untrained copy of this model with the same schema and parameters. ``new_params`` (changed parameters by step)
        and ``include_attributes`` are as in river's ``clone``.
        """
        model = super().clone(new_params, include_attributes)
        if self.schema is not None:
            model._reading = copy.deepcopy(self.schema)
        return model

    def mutate(self, new_params: dict[str, Any]) -> None:
        """Change parameters of trained steps in place: ``new_params`` maps the name of a step to new values of its parameters.
        Raise a ValueError if one cannot change, or a step does not exist; then nothing changes.
        """
        for name, parameters in new_params.items():
            if name not in self.steps:
                raise ValueError(f"{name!r} is not a step of the model: {', '.join(self.steps)}")
            copy.deepcopy(self.steps[name]).mutate(parameters)
        super().mutate(new_params)

    def learn_many(self, X: Any, y: Any = None, w: Any = None, **params: Any) -> None:
        """Learn the rows of a frame in order, as `learn_one` would. Labels are ``y``, or the label column of the frame; rows
        without a label are skipped.

        Parameters
        ----------
        X
            The frame [n, columns]. The column `label` is not a feature.
        y
            The n labels or targets. None: they are in the column `label`, and unlabelled rows are skipped.
        w
            The n weights, at least 0. None: all are 1.
        params
            Other arguments of river's ``learn_many``.

        Raises
        ------
        ValueError
            A row is refused (the message begins with its index, and the rows before it were learned), or labels are neither in
            ``y`` nor in ``X``.
        """
        last = self._last_step
        if len(self.steps) != 2 or params or not hasattr(last, "learn_one"):
            super().learn_many(X, y, **params, **({} if w is None else {"w": w}))
            return
        is_detector = isinstance(last, base.AnomalyDetector)
        if w is not None and is_detector:
            raise ValueError(f"a {type(last).__name__} does not weight rows: leave out w")
        names, columns, frame = to_columns(X)
        n, labels = len(frame), self._get_labels(X, y)
        weights, table = check_weights(1.0 if w is None else w, n), Table(tuple(names), columns)
        if None in labels and self.schema is not None and not is_detector:  # unlabelled rows are skipped
            rows = [i for i, label in enumerate(labels) if label is not None]
            columns = [values[rows] if isinstance(values, np.ndarray) else [values[i] for i in rows] for values in columns]
            table, n, labels, weights = Table(tuple(names), columns), len(rows), [labels[i] for i in rows], weights[rows]
        if are_sorted(labels) and not self._are_rows_in_order(table):
            warn(f"the rows are sorted by their labels, {FOLLOWS_LAST}: shuffle them first")

        def learn_batch(first: int, stop: int) -> int:
            return self._learn_batch(table, first, labels[first:stop], weights[first:stop], w is not None)

        def learn_one(i: int) -> None:
            with add_row_number(i):
                self.learn_one(table.row(i).x, labels[i], **({} if w is None else {"w": float(weights[i])}))

        process_rows(0, n, _MAX_BATCH_ROWS, learn_batch, learn_one)
        if n and hasattr(last, "note_columns"):
            last.note_columns(names)

    def predict_many(self, X: Any) -> Any:
        """Return the predicted label or target of each row of a frame [n, columns], as an array [n] or a series of the same
        library. Raises ValueError, with the index of the row, if a row is invalid. A warning names columns and categories that
        the model has never learned, if they are in more than half of the rows, or if they resemble learned ones.
        """
        return self._predict_frame(X)

    def predict_proba_many(self, X: Any) -> Any:
        """Return the probability of each label for the rows of a frame [n, columns], as a frame [n, labels]. Errors and warnings
        are those of `predict_many`.
        """
        return self._predict_frame(X, method="predict_proba_many")

    def score_many(self, X: Any) -> Any:
        """Return the anomaly score of each row of a frame [n, columns], if the learner is an anomaly detector, as its
        ``score_many`` does. Errors and warnings are those of `predict_many`.
        """
        return self._predict_frame(X, method="score_many")

    def is_anomaly_one(self, x: Mapping[Any, Any]) -> Any:
        """Return whether a row (value by column) is beyond the threshold of the anomaly detector at the end of the model. Raises
        ValueError if there is another learner.
        """
        return self._call_last_step("is_anomaly_one", "no threshold of anomalies", x)

    def _predict_frame(self, X: Any, labels: Collection[Any] = (), method: str = "predict_many") -> Any:
        """Return the result of a learner's ``method`` for the rows of a frame, and warn about unknown values and ``labels``."""
        names, columns, frame = to_columns(X)
        table, predictions = Table(tuple(names), columns), []
        warn_of_unknown_values(self, table, labels)
        method_of_one_row = "" if method == "predict_proba_many" else method.replace("_many", "_one")
        if not (hasattr(self._last_step, method) or hasattr(self._last_step, method_of_one_row)):
            raise ValueError(f"a {type(self._last_step).__name__} has no {method}")
        if hasattr(self._last_step, method):
            encoder, *others, last = self.steps.values()
            return getattr(super(), method)(X) if others else getattr(last, method)(encoder.transform_table(table, frame))
        for i in range(len(frame)):
            with add_row_number(i):
                predictions.append(getattr(self, method_of_one_row)(table.row(i).x))
        return np.array(predictions)

    def score(self, X: Any, y: Any = None) -> float:
        """Return the accuracy of the predictions for the rows of a frame, or R2 for a regression. True labels are ``y``, or the
        label column of the frame.

        Parameters
        ----------
        X
            The frame [n, columns].
        y
            The n labels or targets. None: they are in the column `label`. Unlabelled rows are ignored.

        Raises
        ------
        ValueError
            A row is refused, or no row has a label.
        """
        labels = self._get_labels(X, y)
        predicted = to_list(self._predict_frame(X, labels))
        pairs = [pair for pair in zip(labels, predicted, strict=True) if pair[0] is not None]
        if not pairs:
            raise ValueError("there is no row with a label to score")
        if isinstance(self._last_step, base.Regressor):
            targets, predictions = (np.array(values, np.float64) for values in zip(*pairs, strict=True))
            total_squares = float(((targets - targets.mean()) ** 2).sum())
            return 1.0 - float(((targets - predictions) ** 2).sum()) / total_squares if total_squares else 0.0
        return float(np.mean([prediction == target for target, prediction in pairs]))

    def explain_one(self, x: Mapping[Any, Any], typical: Mapping[Any, Any] | None = None, label: Any = None) -> Any:
        """Explain the model's decision on a row, a dict from column to value: return how much each column contributes to it,
        compared with the row ``typical``. If there are several labels, ``label`` chooses one. The result is that of the learner's
        ``explain_one``.

        The contributions of all features of a column are added. Those of the memory of a key are apart, called ``device
        (memory)``, and so are those of its small models, ``device (own models)``. By default, the typical row has the mean of
        each number, if the learner knows it, and the mean target encoding of categories. Raises ValueError if the row is refused,
        the model is untrained, or the learner has no ``explain_one``.
        """
        encoder, *_, last = self.steps.values()
        if not hasattr(last, "explain_one"):
            raise ValueError(f"{type(last).__name__} cannot explain its decisions")
        typical_features = None if typical is None else self._transform_one(dict(typical))[0]
        features = self._transform_one(x)[0]  # type: ignore[arg-type] # the encoder checks that it is a mapping
        groups = encoder.column_state.map_features_to_columns()
        explanation = last.explain_one(features, typical_features, groups=groups, label=label)
        # Dates that were parsed to seconds before are shown as dates.
        values: dict[Any, Any] = {name: format_date(x[name]) for name in encoder.dates if isinstance(x.get(name), float)}
        values |= {f"{key} ({part})": x.get(key) for key in encoder.keys for part in ("memory", "own models")}
        y = explanation.prediction if isinstance(last, base.Classifier) else None
        words = {name: select_strongest(by_label.get(y, {})) for name, by_label in self.score_words(x).items()}
        return replace(explanation, values={**x, **values}, words=words)

    def score_words(self, x: Mapping[Any, Any]) -> dict[Hashable, dict[Any, dict[str, float]]]:
        """Return how much each word in the texts of a row (value by column) speaks for each label, by column, label and word. A
        score is the logarithm of the word's share of all words with the label, minus the mean of this over all labels. A
        regression has a single score for each word, under the key None instead of a label. Unknown words are left out.
        """
        state = next(iter(self.steps.values())).column_state
        texts, labels = state.split_row(x, False).texts, state.target_encoding
        return {name: state.texts[name].score_words(text, labels) for name, text in texts.items() if name in state.texts}

    def examples_one(self, x: Mapping[Any, Any], n: int = 3) -> Any:
        """Return the support vectors that are nearest to a row (value by column), up to ``n`` for each label, as examples of
        similar rows. The result is that of the learner's ``examples_one``.

        Their features are decoded to columns as far as possible: a category without a one-hot feature is shown by its target
        encoding, and a missing number by the mean that replaced it. Raises ValueError if the row is refused, or the learner has
        no ``examples_one``.
        """
        encoder = next(iter(self.steps.values()))
        examples = self._call_last_step("examples_one", "no rows to show", x, n)
        if len(self.steps) > 2 or encoder.learned_scaler is not None:
            return examples
        return examples.map_examples(lambda e: e._replace(values=encoder.column_state.decode_features(e.values)))

    def predict_interval_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the prediction interval for the target of a row (value by column), as the conformal regressor at the end of the
        model computes it. Raises ValueError if there is another learner.
        """
        return self._call_last_step("predict_interval_one", "no intervals", x)

    def predict_set_one(self, x: Mapping[Any, Any]) -> Any:
        """Return the prediction set, which are all plausible labels, of a row (value by column), as the conformal classifier at
        the end of the model computes it. Raises ValueError if there is another learner.
        """
        return self._call_last_step("predict_set_one", "no sets of labels", x)

    def _call_last_step(self, method: str, missing: str, x: Mapping[Any, Any], *more: Any) -> Any:
        """Encode a row, a dict from column to value, and call a method of the learner with the features and the arguments
        ``more``. Returns the method's result. Raises ValueError if the learner does not have the method; ``missing`` is the name
        of the result in that message.
        """
        last = self._last_step
        if not hasattr(last, method):
            raise ValueError(f"a {type(last).__name__} has {missing}")
        return getattr(last, method)(self._transform_one(x)[0], *more)  # type: ignore[arg-type] # the encoder checks that it is a mapping

    def _are_rows_in_order(self, table: Table) -> bool:
        """Return whether a date rises from row to row of a table."""
        encoder = next(iter(self.steps.values()))
        columns = {name: table.get_column(name) for name in encoder.dates}
        get_format = encoder.column_state.parser.get_date_format
        return any(are_rising(parse_times(values, get_format(name))) for name, values in columns.items() if values is not None)

    def _get_labels(self, X: Any, y: Any) -> list[Any]:
        """Return the parsed labels of the n rows of a frame ``X``: those in ``y``, or without ``y`` those in the frame's label
        column. If the model does not know a label column, the result is n times None. Raises ValueError if the frame lacks the
        column.
        """
        if y is not None:
            if len(np.shape(y if hasattr(y, "shape") else y[:1])) > 1:
                raise ValueError(f"y must be a sequence of labels, not of shape {np.shape(y)}: give one column, as y.ravel()")
            return self.parse_labels(list_labels(y, len(X)))
        if self.label is None:
            return [None] * len(X)
        columns = dict(zip(*to_columns(X)[:2], strict=True))
        if self.label not in columns:
            hint = suggest_name(self.label, columns)
            raise ValueError(f"X has no column {self.label!r}, which is the label: give y, or a frame with it{hint}")
        return self.parse_labels(to_list(columns[self.label]))

    def parse_labels(self, labels: Sequence[Any]) -> list[Any]:
        """Convert labels to the form that the learner takes: missing-value markers and null become None, and the targets of a
        regression become numbers. If the model has no schema, labels are unchanged.

        Raises
        ------
        ValueError
            A target is not a number.
        """
        schema = self.schema
        if schema is None:
            return list(labels)
        parser, parsed_labels = TableParser(**make_label_options(schema.options, schema.label)), []
        for i, label in enumerate(labels):
            y = None if is_null(label) else parser.parse_label(label)
            if schema.regression and y is not None:  # an integer would be the label of a class for a target encoding
                with add_row_number(i):
                    y = parse_number(y) if isinstance(y, str) else float(to_plain_value(y))
            parsed_labels.append(y)
        return parsed_labels

    def _learn_batch(self, table: Table, first: int, y: list[Any], w: np.ndarray, is_weighted: bool) -> int:
        """Learn rows of a table together, from row ``first`` on, with their labels ``y`` and weights ``w``; ``is_weighted`` is
        False if all weights are 1. Returns how many rows were learned: it stops before a row that must be learned singly. Returns
        0 if the learner or the encoder does not support batches.
        """
        encoder, last = self.steps.values()
        if not hasattr(last, "predict_then_learn") or encoder.learned_scaler is not None or None in y:
            return 0
        batch = encoder.parse_table(table).encode_batch(first, first + len(y), w > 0.0, set(last.feature_names), y, w)
        n = len(batch.X)
        if n < MIN_BATCH_ROWS:
            return 0
        if last.predict_then_learn(batch.X, batch.names, y[:n], False, w[:n] if is_weighted else None) is None:
            return 0
        batch.update_encoder()
        return n


def warn_of_unknown_values(model: TableModel, table: Table, labels: Collection[Any] = ()) -> None:
    """Warn about columns and categories of a table, and ``labels`` of its rows, that the model has never learned, if they are in
    more than half of the rows, or resemble learned ones.
    """
    encoder, last = next(iter(model.steps.values())), model._last_step
    monitor = ColumnMonitor(encoder.learned_columns, encoder, [model.label], getattr(last, "labels", ()))
    monitor.add_table(table, 0, len(table))
    monitor.mark_present(table.names)
    monitor.add_labels(labels)
    for message in monitor.make_messages(_MIN_UNKNOWN_SHARE):
        warn(message)


@contextlib.contextmanager
def add_row_number(i: int) -> Iterator[None]:
    """Return a context manager that puts ``row i:`` before the message of a ValueError raised within it."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"row {i}: {error}") from None
