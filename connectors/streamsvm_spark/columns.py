"""Conversion between Arrow columns of Spark (features, labels, weights, predictions) and numpy arrays."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from pyspark import TaskContext
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from streamsvm.core.checks import LARGEST_WEIGHT
from streamsvm.stream.tables.arrow_columns import is_number, is_text, to_float_array

_TYPES = {"int": pa.int32(), "long": pa.int64(), "double": pa.float64()}
_TYPES |= {"boolean": pa.bool_(), "binary": pa.binary(), "string": pa.string()}
_DENSE_TYPE = 1  # value of the field ``type`` of a dense vector of pyspark.ml; 0 for a sparse one
MAX_CLASSES = 1000


class RowsError(ValueError):
    """Raised if rows cannot be learned or predicted. The message contains a remedy."""


def check_widths(width: int, second_width: int, parts: tuple[int, int] | None = None) -> None:
    """Raise a RowsError if two vectors have different numbers of features, ``width`` and ``second_width``. ``parts`` are the
    numbers of the Spark partitions that contain them, for the error message.
    """
    if width != second_width:
        first, second = "", " features"
        if parts is not None:
            first, second = f" features in partition {parts[0]}", f" in partition {parts[1]}"
        raise RowsError(f"vectors have {width}{first} and {second_width}{second}: all vectors must have the same length")


class RowArrays(NamedTuple):
    """The valid rows of a batch, as arrays."""

    X: np.ndarray  # float32 [n, features]
    y: np.ndarray  # labels float64 [n]; empty without a column of labels
    w: np.ndarray  # weights float64 [n]; empty without a column of weights
    valid: np.ndarray  # bool [rows of the batch]: whether the row is valid, and so in the other arrays


def arrow_schema(schema: str) -> pa.Schema:
    """Convert a schema in Spark's notation, such as ``"part int, x binary"``, to an Arrow schema."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, schema.split(","))])


def select_column(frame: DataFrame, name: str) -> Column:
    """Return the column ``name`` of a Spark frame as an expression. Vectors are converted to arrays, which Spark sends to Python
    six times as fast.
    """
    column = F.col(name)
    vectors = isinstance(frame.select(column).schema[0].dataType, VectorUDT)
    # `vector_to_array` fails for null. Arrays become an expression, too, for the reason given in `SVMModel._transform`.
    return F.when(column.isNotNull(), vector_to_array(column, "float32") if vectors else column)


def convert_rows(
    features: pa.Array,
    label: pa.Array | None = None,
    weight: pa.Array | None = None,
    *,
    skip: bool = False,
    classes: bool = False,
) -> RowArrays:
    """Check Arrow columns of features, labels and weights, and convert them to numpy arrays. ``features`` are vectors of
    pyspark.ml or arrays of numbers. A row with missing or infinite values raises a RowsError or, with ``skip``, is left out. With
    ``classes``, labels must be 0, 1, ...

    Raises RowsError also if the lengths of vectors differ.
    """
    y = np.empty(0) if label is None else convert_numbers(label, "the label column")
    w = np.empty(0) if weight is None else convert_numbers(weight, "the weight column")
    present = np.asarray(features.is_valid())
    all_present = bool(present.all())
    X = _convert_vectors(features if all_present else features.filter(pa.array(present)))
    finite = np.isfinite(X).all(axis=1)
    valid = present
    if not all_present or not finite.all():
        valid = present.copy()
        valid[present] = finite
    for numbers in (y, w):
        if len(numbers):
            valid = valid & np.isfinite(numbers)
    if not valid.all():
        if not skip:
            _raise_for_row(int(np.argmin(valid)), present, valid, y, w)
        X = X[valid[present]]
        y, w = (numbers[valid] if len(numbers) else numbers for numbers in (y, w))
    if classes and len(y):
        _check_classes(y)
    if len(w) and not ((w >= 0.0) & (w <= LARGEST_WEIGHT)).all():
        raise RowsError(f"a weight is {w[(w < 0.0) | (w > LARGEST_WEIGHT)][0]:g}: weights must be from 0 to {LARGEST_WEIGHT:g}")
    return RowArrays(X, y, w, valid)


def convert_batch(batch: pa.RecordBatch, *, skip: bool, classes: bool) -> RowArrays:
    """Check an Arrow record batch with the columns ``features``, ``label`` and optionally ``weight``, and convert it to numpy
    arrays. An invalid row raises a RowsError or, with ``skip``, is left out. With ``classes``, labels must be 0, 1, ...

    Without a column of weights, all weights are 1.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = convert_rows(columns["features"], columns["label"], columns.get("weight"), skip=skip, classes=classes)
    return rows if "weight" in columns else rows._replace(w=np.ones(len(rows.X)))


def map_partitions(rows: DataFrame, task: Any, schema: str) -> DataFrame:
    """Run ``task``, a function from Arrow record batches to record batches, on each partition of a Spark frame. Return a frame
    with the columns of ``schema`` and a column ``problem``, which contains the message if the task raised a ValueError.

    The row with the message has the partition's number as ``part``; `check_problems` raises it on the driver. Spark would only
    repeat a failed task on the same rows.
    """
    schema = f"{schema}, problem string"
    arrow = arrow_schema(schema)

    def run_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        try:
            for batch in task(batches):
                yield batch.append_column("problem", pa.nulls(len(batch), pa.string()))
        except ValueError as error:
            yield pa.RecordBatch.from_pylist([{"part": TaskContext.get().partitionId(), "problem": str(error)}], arrow)

    return rows.mapInArrow(run_task, schema)


def check_problems(results: pa.Table | pa.RecordBatch) -> None:
    """Raise a RowsError with the message of the first partition, by number, whose task failed. ``results`` are Arrow data with
    the columns ``part`` and ``problem`` (the message, or null), which `map_partitions` adds.
    """
    problems = results.filter(results.column("problem").is_valid()).sort_by("part")
    if len(problems):
        part, problem = (problems.column(name)[0].as_py() for name in ("part", "problem"))
        raise RowsError(f"partition {part}: {problem}")


def collect_results(frame: DataFrame) -> pa.Table:
    """Compute a frame that `map_partitions` returned, and return its rows as an Arrow table sorted by partition. Raise a
    RowsError if the task of a partition failed.
    """
    results = frame.toArrow()
    check_problems(results)
    return results.sort_by("part").drop_columns("problem")


def _raise_for_row(row: int, present: np.ndarray, valid: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
    """Raise a RowsError that explains why row number ``row`` of a batch is invalid (null, or not finite) and how many rows are.
    ``present`` and ``valid`` are masks of the rows, ``y`` and ``w`` their labels and weights.
    """
    reasons = {
        "its features are null": not present[row],
        "its label is null or not finite": bool(len(y)) and not np.isfinite(y[row]),
        "its weight is null or not finite": bool(len(w)) and not np.isfinite(w[row]),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), "one of its features is not finite")
    raise RowsError(
        f"{int((~valid).sum())} of {len(valid)} rows of a batch cannot be used; in the first of them, {reason}: "
        "impute missing values (pyspark.ml.feature.Imputer), or omit these rows with handleInvalid='skip'"
    )


def _check_classes(y: np.ndarray) -> None:
    bad = (y < 0.0) | (y >= MAX_CLASSES) | (y != np.floor(y))
    if bad.any():
        raise RowsError(
            f"the label {y[bad][0]:g} is not a class: labels must be 0, 1, 2, ... below {MAX_CLASSES}. "
            "pyspark.ml.feature.StringIndexer converts other labels"
        )


def convert_numbers(column: pa.Array, name: str) -> np.ndarray:
    """Convert an Arrow column of numbers to float64 [n], where null becomes NaN. Raise a RowsError, which calls the column
    ``name``, if it has another type.
    """
    if not (is_number(column.type) or pa.types.is_boolean(column.type)):
        advice = ". pyspark.ml.feature.StringIndexer converts strings to numbers" if is_text(column.type) else ""
        raise RowsError(f"{name} has the type {column.type}: it must contain numbers{advice}")
    return to_float_array(column, np.float64)


def _convert_vectors(column: pa.Array) -> np.ndarray:
    """Convert an Arrow column of pyspark.ml vectors, or of arrays of numbers, to float32 [n, features]. Raise a RowsError if it
    has another type or lengths differ.
    """
    kind = column.type
    if pa.types.is_struct(kind) and [field.name for field in kind] == ["type", "size", "indices", "values"]:
        if (column.field("type").to_numpy() == _DENSE_TYPE).all():
            return _convert_lists(column.field("values"))
        return _convert_sparse(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _convert_lists(column)
    raise RowsError(
        f"the features have the type {kind}: they must be vectors (pyspark.ml.feature.VectorAssembler) or arrays of numbers"
    )


def _convert_lists(column: pa.Array) -> np.ndarray:
    values = column.flatten()
    if not is_number(values.type):
        raise RowsError(f"the features are arrays of {values.type}: they must contain numbers")
    width = _find_common_width(column.value_lengths().to_numpy(zero_copy_only=False))
    return _to_float32(values).reshape(len(column), width)


def _find_common_width(lengths: np.ndarray) -> int:
    """Return the common length of vectors whose ``lengths`` are an integer array; 0 if there are no vectors. Raise a RowsError if
    lengths differ.
    """
    if not len(lengths):
        return 0
    first, different = int(lengths[0]), lengths[lengths != lengths[0]]
    check_widths(first, int(different[0]) if len(different) else first)
    return first


def _to_float32(values: pa.Array) -> np.ndarray:
    with np.errstate(over="ignore"):  # values beyond float32 become infinite, and are refused later
        return to_float_array(values, np.float32)


def _convert_sparse(column: pa.Array) -> np.ndarray:
    """Convert an Arrow column of pyspark.ml vectors, some or all of them sparse, to a dense array float32 [n, features]."""
    dense = column.field("type").to_numpy() == _DENSE_TYPE
    lists = column.field("values")
    lengths = lists.value_lengths().to_numpy()
    sizes = column.field("size").to_numpy(zero_copy_only=False)
    width = _find_common_width(np.where(dense, lengths, sizes))
    rows = np.repeat(np.arange(len(column)), lengths)
    columns = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    sparse = ~np.repeat(dense, lengths)
    indices = column.field("indices").flatten().to_numpy(zero_copy_only=False)
    if len(indices) != int(sparse.sum()) or (len(indices) and not 0 <= indices.min() <= indices.max() < width):
        raise RowsError("a sparse vector has indices that do not match its size or its values")
    columns[sparse] = indices
    X = np.zeros((len(column), width), np.float32)
    X[rows, columns] = _to_float32(lists.flatten())
    return X


def make_array_column(values: np.ndarray) -> pa.Array:
    """Convert an array float64 [n, k] to an Arrow column with n lists of k numbers."""
    n, k = values.shape
    offsets = np.arange(0, (n + 1) * k, k, dtype=np.int32) if k else np.zeros(n + 1, np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values).ravel()))
