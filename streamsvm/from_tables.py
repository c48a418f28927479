"""`table_model`, which infers the schema of a table and makes an encoder and a learner for it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np
from river import base

from streamsvm.core.frames import to_columns
from streamsvm.core.warning import warn
from streamsvm.files.messages import format_names, guess_label_column, short_repr, suggest_name
from streamsvm.learners.keyed import KeyedClassifier, KeyedRegressor
from streamsvm.learners.svm import SVMClassifier, SVMRegressor
from streamsvm.stream import BadRow, Row, Source, StreamError, Table, WeightedLabel
from streamsvm.stream.file_names import detect_format, format_source_name
from streamsvm.stream.schema.schema_inference import infer_schema, read_column_names
from streamsvm.stream.schema.source_sample import SAMPLE_ROWS, SourceSample, sample_files, sample_rows, sample_topic
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.column_kinds import DROP, OTHER_COLUMNS, find_label_problem, parse_columns
from streamsvm.stream.tables.table_parser import validate_names
from streamsvm.stream.tables.table_schema import TableSchema, format_arguments
from streamsvm.stream.tables.values import flatten_row


def table_model(
    data: Any,
    label: str | None = None,
    *,
    learner: base.Classifier | base.Regressor | base.AnomalyDetector | None = None,
    regression: bool | None = None,
    columns: str = "",
    key: str | Iterable[str] = (),
    models_per_key: bool = False,
    missing: str | Iterable[str] = (),
    decimal: str | None = None,
    when_missing: str | None = None,
    cycles: str | Iterable[str] | None = None,
    delimiter: str | None = None,
    encoding: str | None = None,
) -> TableModel:
    """Return an untrained model for the table ``data`` (such as a frame, a file path, a Kafka topic or dicts): a pipeline of an
    encoder and a ``learner``. ``label`` names the column to predict. The types of the columns, and options without a value, are
    inferred from the first rows.

    The model is a pipeline of a `TableEncoder` and a learner, the same as ``streamsvm learn`` makes for this table.
    ``print(model.schema)`` shows the inferred kind of each column. ``learn_many``, ``predict_many`` and ``score`` take frames
    with or without the label column, and ``learn_one`` and ``predict_one`` take dicts.

    Recent rows have the most influence: shuffle a frame that is sorted by its label before ``learn_many``.

    Parameters
    ----------
    data
        The table: a frame (pandas, polars, pyarrow); a path, a folder, a pattern, or several paths of one format; the URL of a
        topic; an iterable of dicts, or of pairs of a dict and a label; a `Source` whose rows have labels; or the `TableSchema` of
        another model. From an iterator or a source, the first 200 rows are consumed.
    label
        Name of the column with the labels or targets. None for pairs and sources, which have them beside the rows, and for an
        anomaly detector.
    learner
        An untrained classifier, regressor or anomaly detector, such as ``OneClassBSGD()``. None: `SVMClassifier`, or
        `SVMRegressor` for a regression.
    regression
        Whether the label is a number to predict. None: according to the learner, or else inferred from the labels.
    columns
        Kinds of columns whose inferred kind is wrong: ``"id:drop,zip:category,since:date=%d.%m.%Y,age:number"``.
    key
        Name of the column, or of several, that tells which device, customer or shop a row is of, as ``keys`` of `TableEncoder`:
        the same as ``"device:key"`` in ``columns``.
    models_per_key
        Whether to wrap the learner in a `streamsvm.learners.keyed.KeyedClassifier` or ``KeyedRegressor``, which adds small models
        of each device. ``key`` is then the name of one column.
    missing
        Missing-value markers, such as ``["NA", "-"]``.
    decimal
        The decimal mark, ``","`` or ``"."``, of numbers that are formatted for people.
    when_missing
        As in `TableEncoder`. None: ``"drop"`` if rows leave out the numbers that are 0; otherwise the mean.
    cycles
        As in `TableEncoder`. None: day and week for dates whose times of day vary.
    delimiter, encoding
        Format of a CSV file.

    Raises
    ------
    ValueError
        The rows fit two interpretations, such as day or month first; no column is left to learn from; the label is not among
        the columns; or an option is invalid. The message proposes options.
    StreamError
        A file or a topic cannot be read.

    Examples
    --------
    >>> import pandas as pd
    >>> import streamsvm
    >>> table = pd.DataFrame({"id": range(60), "city": ["Oslo", "Paris", "Rome"] * 20, "warm": ["no", "yes", "yes"] * 20})
    >>> model = streamsvm.table_model(table, label="warm")
    >>> model.learn_many(table)
    >>> model.score(table)
    1.0
    >>> model.schema
    TableSchema(label='warm', columns='id:drop,city:category')
    """
    options: dict[str, Any] = {"missing": validate_names("missing", missing), "decimal": decimal, "delimiter": delimiter}
    options |= {"encoding": encoding, "when_missing": when_missing}
    options = {name: value for name, value in options.items() if value}
    options |= {} if cycles is None else {"cycles": validate_names("cycles", cycles)}
    if not isinstance(columns, str):
        raise ValueError(f"columns must be a text such as 'id:drop,city:category', not {short_repr(columns)}")
    kinds = parse_columns(columns, validate_names("key", key))
    if learner is not None and not isinstance(learner, base.Classifier | base.Regressor | base.AnomalyDetector):
        raise ValueError(f"the learner must be a classifier, regressor or anomaly detector of river, not {short_repr(learner)}")
    needs_label = not isinstance(learner, base.AnomalyDetector)
    if not needs_label and label is not None:
        raise ValueError(f"a {type(learner).__name__} learns without labels: leave label={label!r} out (columns='{label}:drop')")
    if getattr(learner, "n_learned", 0):
        raise ValueError("the learner has learned already: clone() makes one that has not")
    if isinstance(data, TableSchema):
        if label not in (None, data.label) or regression not in (None, data.regression):
            raise ValueError(f"the schema is for the label {data.label!r}: give the data again for another one")
        return _make_model(data.with_options(columns=kinds, **options), learner, models_per_key)
    options |= {"columns": kinds} if kinds else {}
    if problem := find_label_problem(kinds, label):
        raise ValueError(problem)
    if regression is None and learner is not None:
        regression = isinstance(learner, base.Regressor)
    sample, names = _sample_data(data, label)
    if needs_label and names and label not in names:
        problem = "which column is the label?" if label is None else f"there is no column {label!r} for the label."
        advice = (label and suggest_name(label, names)) or f". Perhaps label={guess_label_column(names)!r}"
        raise ValueError(f"{sample.name}: {problem} It has {format_names(names, 20)}{advice}")
    fields = {field: name for name, kind in kinds.items() for field in names if kind == DROP and field.startswith(f"{name}.")}
    kinds.update(dict.fromkeys(fields, DROP))  # dropping an object drops all values within it
    if unknown := [name for name in kinds if names and name not in (*names, *fields.values(), OTHER_COLUMNS)]:
        columns_text = f"{format_names(names, 20)}{suggest_name(unknown[0], names)}"
        raise ValueError(f"{sample.name}: there is no column {unknown[0]!r}. It has {columns_text}")
    if sample.format == "libsvm":
        raise ValueError(f"{sample.name} is LIBSVM text, which has numbers only: use SVMClassifier() or another learner itself")
    label_name = _UNNAMED_LABEL if label is None and needs_label else label
    inferred = infer_schema(sample, label_name, options, regression=bool(regression), always_encodes=True)
    if not inferred.columns:
        raise ValueError(f"{sample.name} has no row to look at")
    if inferred.problem is not None:
        raise ValueError(inferred.problem.format_error(sample.name, format_arguments, "regression=True"))
    is_regression = inferred.is_target if regression is None else regression
    schema = inferred.make_schema(sample.name, label, is_regression)
    if is_regression:
        schema.columns = [column._replace(kind="target") if column.kind == "label" else column for column in schema.columns]
    return _make_model(schema, learner, models_per_key)


#: Name of the label in an inferred schema if it does not have one.
_UNNAMED_LABEL = "the label"


def _make_model(schema: TableSchema, learner: Any, models_per_key: bool) -> TableModel:
    """Return an untrained model for a table schema: an encoder and the ``learner`` (None: an SVM classifier, or an SVM regressor
    if the schema's label is a number to predict), with small models of each key if ``models_per_key`` is True.
    """
    options = schema.encoder_options
    if schema.label is not None:
        options["columns"] = {**options.get("columns", {}), schema.label: DROP}  # rows with a label must not learn from it
    encoder = TableEncoder(**options)
    if learner is None:
        kind = SVMRegressor if schema.regression else SVMClassifier
        learner = kind(seed=0, max_features=encoder.compute_max_features(kind().max_features, len(schema.columns)))
    if models_per_key:
        if len(encoder.keys) != 1 or models_per_key is not True:
            message = "it is True or False, and True needs one column that is a key, such as key='device'"
            raise ValueError(f"models_per_key={short_repr(models_per_key)}: {message}")
        learner = (KeyedRegressor if schema.regression else KeyedClassifier)(learner, encoder.keys[0])
    return TableModel(encoder, learner, schema=schema)


def _sample_data(data: Any, label: str | None) -> tuple[SourceSample, list[str]]:
    """Return a sample of the first rows of ``data`` (a frame, a path, a topic, a source, or a list of dicts or pairs), and the
    list of its column names, which include ``label``. This list is empty for topics, and for rows that come with separate labels.
    Raises a ValueError if the data is not a table.
    """
    if isinstance(data, str | PathLike) or (isinstance(data, list | tuple) and data and isinstance(data[0], str | PathLike)):
        return _sample_place(list(map(fspath, data)) if isinstance(data, list | tuple) else fspath(data), label)
    if hasattr(data, "columns") and not isinstance(data, Source):
        column_names, columns, frame = to_columns(data)
        if invalid := [name for name in column_names if not isinstance(name, str)]:
            raise ValueError(f"a column is called {invalid[0]!r}: names of columns must be str (frame.rename(columns=str))")
        if str(getattr(getattr(data, "index", None), "dtype", "")).startswith(("datetime64", "period")):
            warn("the index of the frame has dates, which are not learned: data.reset_index() makes a column of them")
        table = Table(tuple(column_names), columns)
        sample = sample_rows("the frame", len(frame), lambda i: _split_label(table.row(i).x, label))
        return sample, list(map(str, column_names))
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ValueError(f"data is not a table: a frame, a path, a source, or an iterable of dicts, not {short_repr(data)}")
    name = data.name if isinstance(data, Source) else "the data"
    items = data if isinstance(data, list) else list(itertools.islice(data, SAMPLE_ROWS))
    first_items = items[:SAMPLE_ROWS]
    are_pairs = isinstance(data, Source) or all(isinstance(item, tuple) and len(item) == 2 for item in first_items)
    if not items or all(isinstance(item, Mapping) for item in first_items):
        names = list(dict.fromkeys(str(key) for item in first_items for key in _split_label(item, None).x))
        return sample_rows(name, len(items), lambda i: _split_label(items[i], label)), names
    if not are_pairs or isinstance(data, np.ndarray):
        raise ValueError(f"data is not a table: a frame, a path, a source or an iterable of dicts, not of {short_repr(items[0])}")
    rows = [Row(*item) for item in items if not isinstance(item, BadRow)]
    if label is not None:
        raise ValueError(f"{name} has its labels beside its rows: leave out label={label!r}")
    return sample_rows(name, len(rows), lambda i: _without_weight(rows[i])), []


def _split_label(x: Mapping[Any, Any], label: str | None) -> Row:
    """Return a row with the features and the label of a dict that has both: the value of ``label`` becomes the label, or None if
    it is missing.
    """
    if any(isinstance(value, Mapping) for value in x.values()):
        x = flatten_row(x, label)
    return Row({name: value for name, value in x.items() if name != label}, x.get(label))


def _without_weight(row: Row) -> Row:
    """Return ``row`` without a weight: if its label is a pair of label and weight, only the label is kept."""
    return Row(row.x, row.y.y if isinstance(row.y, WeightedLabel) else row.y)


def _sample_place(place: str | list[str], label: str | None) -> tuple[SourceSample, list[str]]:
    """Return a sample of a topic (a URL), a file or several files, and the names of the columns. The names are an empty list for
    topics and for LIBSVM files, which have no header. Raises StreamError if the files do not exist.
    """
    if isinstance(place, str) and "://" in place:
        sample = sample_topic(place, lambda _: False, label=label, start="earliest", stop_at_end=True)
        if sample is None:
            raise ValueError(f"{place} has numbers without names: use SVMClassifier() or another learner itself")
        return sample, []
    text_format = detect_format(place)
    sample = sample_files(place, text_format)
    if sample is None:
        raise StreamError(f"{format_source_name(place)} is no file")
    return sample, [] if text_format == "libsvm" else read_column_names(sample)
