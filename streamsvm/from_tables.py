"""A model for a table as it is: names, dates, ids and gaps are found, and read so from then on."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from os import PathLike, fspath
from typing import Any

import numpy as np
from river import base

from streamsvm.core.frames import to_columns
from streamsvm.files.messages import short_repr
from streamsvm.learners.svm import SVMClassifier, SVMRegressor
from streamsvm.stream import BadRow, Row, Source, StreamError, Table, WeightedLabel
from streamsvm.stream.open import detect_format, format_source_name
from streamsvm.stream.rows import format_names
from streamsvm.stream.schema.schema_inference import guess_label_column, infer_schema, read_column_names
from streamsvm.stream.schema.source_sample import SAMPLE_ROWS, SourceSample, sample_files, sample_rows, sample_topic
from streamsvm.stream.tables import TableEncoder, TableModel
from streamsvm.stream.tables.column_kinds import DROP, OTHER_COLUMNS, parse_columns
from streamsvm.stream.tables.table_parser import validate_names
from streamsvm.stream.tables.table_schema import TableSchema, format_arguments


def table_model(
    data: Any,
    label: str | None = None,
    *,
    learner: base.Classifier | base.Regressor | None = None,
    regression: bool | None = None,
    columns: str = "",
    missing: str | Iterable[str] = (),
    decimal: str | None = None,
    when_missing: str = "mean",
    cycles: str | Iterable[str] = (),
    delimiter: str | None = None,
    encoding: str | None = None,
) -> TableModel:
    """Return a model for a table: it reads the columns as a first look at them says, and has learned nothing yet.

    A model of a stream follows what comes last: shuffle a frame that is sorted by its label before ``learn_many``.

    It is what ``streamsvm learn`` makes of the same table: a `TableEncoder` and a learner. ``print(model.schema)`` shows what
    each column is taken for. ``learn_many``, ``predict_many`` and ``score`` take frames as they are, with the column of the label
    or without it, and ``learn_one`` and ``predict_one`` dicts.

    Parameters
    ----------
    data
        The table: a frame (pandas, polars, pyarrow); a path, a folder, a pattern, or several paths of one format; the URL of a
        topic; an iterable of dicts, or of pairs of a dict and a label; a `Source` whose rows have labels. Or a `TableSchema`, as
        another model has it. Of an iterable that comes once, and of a source, the first 200 rows are taken.
    label
        Name of the column with the labels or targets. None for pairs and sources, which have them.
    learner
        The classifier or regressor, which has learned nothing. None: `SVMClassifier`, or `SVMRegressor` for numbers to predict.
    regression
        Whether the label is a number to predict. None: what the learner does, or else what the labels look like.
    columns
        What columns are, where the first look is wrong: ``"id:drop,zip:category,since:date=%d.%m.%Y,age:number"``.
    missing
        Texts that mean a missing value, such as ``["NA", "-"]``.
    decimal
        The mark of decimals, ``","`` or ``"."``, where numbers are written as people write them.
    when_missing, cycles
        As of `TableEncoder`.
    delimiter, encoding
        How a CSV file is written.

    Raises
    ------
    ValueError
        Two readings are right, such as a day and a month, and nothing decides; no column is left to learn from; there is no label
        of that name; or an option cannot be read. The message says what to try.
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
    said: dict[str, Any] = {"missing": validate_names("missing", missing), "cycles": validate_names("cycles", cycles)}
    said |= {"decimal": decimal, "delimiter": delimiter}
    said |= {"encoding": encoding, "when_missing": None if when_missing == "mean" else when_missing}
    given = {name: value for name, value in said.items() if value}
    if not isinstance(columns, str):
        raise ValueError(f"columns must be a text such as 'id:drop,city:category', not {short_repr(columns)}")
    if learner is not None and not isinstance(learner, base.Classifier | base.Regressor):
        raise ValueError(f"the learner must be a classifier or regressor of river, not {short_repr(learner)}")
    if getattr(learner, "n_learned", 0):
        raise ValueError("the learner has learned already: clone() makes one that has not")
    if isinstance(data, TableSchema):
        if label not in (None, data.label) or regression not in (None, data.regression):
            raise ValueError(f"the reading is of the label {data.label!r}: look at the data again for another one")
        return _make_model(data.with_options(columns=columns, **given), learner)
    kinds = parse_columns(columns)
    given |= {"columns": kinds} if kinds else {}
    if label in kinds:
        raise ValueError(f"columns {columns}: {label} is the label, which has no kind")
    if regression is None and learner is not None:
        regression = isinstance(learner, base.Regressor)
    beginning, names = _beginning_of(data, label)
    if names and label not in names:
        what = "which column is the label?" if label is None else f"there is no column {label!r} for the label."
        raise ValueError(
            f"{beginning.name}: {what} It has {format_names(names, 20)}. Perhaps label={guess_label_column(names)!r}"
        )
    if unknown := [name for name in kinds if names and name not in (*names, OTHER_COLUMNS)]:
        raise ValueError(f"{beginning.name}: there is no column {unknown[0]!r}. It has {format_names(names, 20)}")
    if beginning.format == "libsvm":
        raise ValueError(
            f"{beginning.name} is LIBSVM text, which has numbers only: use SVMClassifier() or another learner itself"
        )
    in_rows = _LABEL if label is None else label
    look = infer_schema(beginning, in_rows, given, regression=bool(regression))
    if not look.columns:
        raise ValueError(f"{beginning.name} has no row to look at")
    if look.problem is not None:
        raise ValueError(look.format_error(beginning.name, format_arguments, "regression=True"))
    is_regression = look.is_target if regression is None else regression
    schema = look.make_schema(beginning.name, label, is_regression)
    if is_regression:
        schema.columns = [each._replace(kind="target") if each.kind == "label" else each for each in schema.columns]
    return _make_model(schema, learner)


#: What labels are called in a first look where they have no name.
_LABEL = "the label"


def _make_model(schema: TableSchema, learner: Any) -> TableModel:
    how = schema.encoder_options
    if schema.label is not None:
        how["columns"] = {**how.get("columns", {}), schema.label: DROP}  # wherever a row has it, it is no feature
    encoder = TableEncoder(**how)
    if learner is None:
        kind = SVMRegressor if schema.regression else SVMClassifier
        learner = kind(seed=0, max_features=encoder.compute_max_features(kind().max_features, len(schema.columns)))
    return TableModel(encoder, learner, schema=schema)


def _beginning_of(data: Any, label: str | None) -> tuple[SourceSample, list[str]]:
    """Return the first rows of a table, and the names of its columns where the label must be one of them."""
    if isinstance(data, str | PathLike) or (isinstance(data, list | tuple) and data and isinstance(data[0], str | PathLike)):
        return _of_place(list(map(fspath, data)) if isinstance(data, list | tuple) else fspath(data), label)
    if hasattr(data, "columns") and not isinstance(data, Source):
        found, columns, frame = to_columns(data)
        if others := [name for name in found if not isinstance(name, str)]:
            raise ValueError(f"a column is called {others[0]!r}: columns of a table have texts for names")
        table = Table(tuple(found), columns)
        return sample_rows("the frame", len(frame), lambda i: _row_and_label(table.row(i).x, label)), list(map(str, found))
    if isinstance(data, Mapping) or not isinstance(data, Iterable):
        raise ValueError(f"data is no table: a frame, a path, a source, or an iterable of dicts, not {short_repr(data)}")
    name = data.name if isinstance(data, Source) else "the data"
    given = data if isinstance(data, list) else list(itertools.islice(data, SAMPLE_ROWS))
    is_pair = isinstance(data, Source) or all(isinstance(each, tuple) and len(each) == 2 for each in given[:SAMPLE_ROWS])
    if not given or all(isinstance(each, Mapping) for each in given[:SAMPLE_ROWS]):
        names = list(dict.fromkeys(str(key) for x in given[:SAMPLE_ROWS] for key in x))
        return sample_rows(name, len(given), lambda i: _row_and_label(given[i], label)), names
    if not is_pair or isinstance(data, np.ndarray):
        raise ValueError(f"data is no table: a frame, a path, a source, or an iterable of dicts, not of {short_repr(given[0])}")
    rows = [Row(*each) for each in given if not isinstance(each, BadRow)]
    if label is not None:
        raise ValueError(f"{name} has its labels beside its rows: leave out label={label!r}")
    return sample_rows(name, len(rows), lambda i: Row(rows[i].x, y.y if isinstance(y := rows[i].y, WeightedLabel) else y)), []


def _row_and_label(x: Mapping[Any, Any], label: str | None) -> Row:
    return Row({name: value for name, value in x.items() if name != label}, x.get(label))


def _of_place(place: str | list[str], label: str | None) -> tuple[SourceSample, list[str]]:
    if isinstance(place, str) and "://" in place:
        found = sample_topic(place, lambda _: False, label=label, start="earliest", stop_at_end=True)
        if found is None:
            raise ValueError(f"{place} has numbers without names: use SVMClassifier() or another learner itself")
        return found, []
    text_format = detect_format(place)
    found = sample_files(place, text_format)
    if found is None:
        raise StreamError(f"{format_source_name(place)} is no file")
    return found, [] if text_format == "libsvm" else read_column_names(found)
