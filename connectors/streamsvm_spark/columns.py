"""Columns of Arrow batches as arrays, and arrays as columns: features, labels, weights and predictions."""

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
_DENSE = 1  # of the field ``type`` of a vector of pyspark.ml; 0 is a sparse one
MOST_CLASSES = 1000


class RowsError(ValueError):
    """Rows that no model can learn or predict. The message says what to do."""


def check_widths(one: int, other: int, parts: tuple[int, int] | None = None) -> None:
    """Raise a RowsError where some vectors have another number of features than others, in these partitions if they are given."""
    if one != other:
        first, second = "", " features"
        if parts is not None:
            first, second = f" features in partition {parts[0]},", f" in partition {parts[1]}"
        raise RowsError(f"vectors are of {one}{first} and of {other}{second}: all must be of one length")


class FeatureRows(NamedTuple):
    """The rows of a batch that can be learned or predicted."""

    X: np.ndarray  # float32 [n, features]
    y: np.ndarray  # float64 [n]; empty where no label was asked for
    w: np.ndarray  # float64 [n], likewise
    kept: np.ndarray  # bool [rows of the batch]: those that are here


def arrow_schema(schema: str) -> pa.Schema:
    """Return a schema of Spark, as ``"part int, x binary"``, as one of Arrow."""
    return pa.schema([(name, _TYPES[kind]) for name, kind in map(str.split, schema.split(","))])


def column_of(frame: DataFrame, name: str) -> Column:
    """Return a column of a frame as it goes to Python: vectors as arrays, which Spark writes six times as fast."""
    column = F.col(name)
    vectors = isinstance(frame.select(column).schema[0].dataType, VectorUDT)
    # Of null `vector_to_array` makes an error. An expression also of what is an array: see `SVMModel`.
    return F.when(column.isNotNull(), vector_to_array(column, "float32") if vectors else column)


def rows_of(
    features: pa.Array,
    label: pa.Array | None = None,
    weight: pa.Array | None = None,
    *,
    skip: bool = False,
    classes: bool = False,
) -> FeatureRows:
    """Return the columns of a batch as arrays: features are vectors of pyspark.ml, dense or sparse, or arrays of numbers.

    A RowsError says that a row has a null or a number that is not finite (unless ``skip`` leaves such rows out), that vectors are
    of several lengths, or that labels are not 0, 1, and so on (if ``classes``).
    """
    y = np.empty(0) if label is None else floats_of(label, "the label column")
    w = np.empty(0) if weight is None else floats_of(weight, "the weight column")
    present = np.asarray(features.is_valid())
    whole = bool(present.all())
    X = _matrix_of(features if whole else features.filter(pa.array(present)))
    good = np.isfinite(X).all(axis=1)
    kept = present
    if not whole or not good.all():
        kept = present.copy()
        kept[present] = good
    for numbers in (y, w):
        if len(numbers):
            kept = kept & np.isfinite(numbers)
    if not kept.all():
        if not skip:
            _complain_of_row(int(np.argmin(kept)), present, kept, y, w)
        X = X[kept[present]]
        y, w = (numbers[kept] if len(numbers) else numbers for numbers in (y, w))
    if classes and len(y):
        _check_classes(y)
    if len(w) and not ((w >= 0.0) & (w <= LARGEST_WEIGHT)).all():
        raise RowsError(f"a weight is {w[(w < 0.0) | (w > LARGEST_WEIGHT)][0]:g}: weights are from 0 to {LARGEST_WEIGHT:g}")
    return FeatureRows(X, y, w, kept)


def rows_of_batch(batch: pa.RecordBatch, *, skip: bool, classes: bool) -> FeatureRows:
    """Return the rows of a batch with the columns ``features``, ``label`` and, if they are weighted, ``weight``: see `rows_of`.

    Without that column, each weighs 1.
    """
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    rows = rows_of(columns["features"], columns["label"], columns.get("weight"), skip=skip, classes=classes)
    return rows if "weight" in columns else rows._replace(w=np.ones(len(rows.X)))


def map_partitions(rows: DataFrame, task: Any, schema: str) -> DataFrame:
    """Apply a task to the Arrow batches of each partition. The frame has the columns of ``schema``, and ``problem``.

    A ValueError of the task becomes one row with the partition as ``part`` and the message as ``problem``: `check_problems`
    raises it on the driver, because Spark would run a task that fails again, which reads the same rows.
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
    """Raise a RowsError for the first partition that has a problem: see `map_partitions`."""
    problems = results.filter(results.column("problem").is_valid()).sort_by("part")
    if len(problems):
        part, problem = (problems.column(name)[0].as_py() for name in ("part", "problem"))
        raise RowsError(f"partition {part}: {problem}")


def collect_results(frame: DataFrame) -> pa.Table:
    """Collect what `map_partitions` returned, in the order of partitions; RowsError for the first problem."""
    results = frame.toArrow()
    check_problems(results)
    return results.sort_by("part").drop_columns("problem")


def _complain_of_row(row: int, present: np.ndarray, kept: np.ndarray, y: np.ndarray, w: np.ndarray) -> None:
    reasons = {
        "its features are null": not present[row],
        "its label is null or not finite": bool(len(y)) and not np.isfinite(y[row]),
        "its weight is null or not finite": bool(len(w)) and not np.isfinite(w[row]),
    }
    reason = next((reason for reason, holds in reasons.items() if holds), "one of its features is not finite")
    raise RowsError(
        f"{int((~kept).sum())} of {len(kept)} rows of a batch cannot be used; of the first of them {reason}: "
        "fill in what is missing (pyspark.ml.feature.Imputer), or leave such rows out with handleInvalid='skip'"
    )


def _check_classes(y: np.ndarray) -> None:
    bad = (y < 0.0) | (y >= MOST_CLASSES) | (y != np.floor(y))
    if bad.any():
        raise RowsError(
            f"the label {y[bad][0]:g} is no class: labels are 0, 1, 2, and so on, below {MOST_CLASSES}. "
            "pyspark.ml.feature.StringIndexer makes such labels of other ones"
        )


def floats_of(column: pa.Array, name: str) -> np.ndarray:
    """Return a column of numbers as float64 [n], where null is NaN; RowsError where it is of something else."""
    if not (is_number(column.type) or pa.types.is_boolean(column.type)):
        way = ". pyspark.ml.feature.StringIndexer makes numbers of texts" if is_text(column.type) else ""
        raise RowsError(f"{name} is of type {column.type}: it must be of numbers{way}")
    return to_float_array(column, np.float64)


def _matrix_of(column: pa.Array) -> np.ndarray:
    kind = column.type
    if pa.types.is_struct(kind) and [field.name for field in kind] == ["type", "size", "indices", "values"]:
        if (column.field("type").to_numpy() == _DENSE).all():
            return _of_lists(column.field("values"))
        return _of_mixed(column)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return _of_lists(column)
    raise RowsError(
        f"the features are of type {kind}: they must be a column of vectors, as pyspark.ml.feature.VectorAssembler makes it, or "
        "of arrays of numbers"
    )


def _of_lists(column: pa.Array) -> np.ndarray:
    values = column.flatten()
    if not is_number(values.type):
        raise RowsError(f"the features are arrays of {values.type}: they must be of numbers")
    width = _common_width(column.value_lengths().to_numpy(zero_copy_only=False))
    return _narrow_values(values).reshape(len(column), width)


def _common_width(lengths: np.ndarray) -> int:
    if not len(lengths):
        return 0
    first, others = int(lengths[0]), lengths[lengths != lengths[0]]
    check_widths(first, int(others[0]) if len(others) else first)
    return first


def _narrow_values(values: pa.Array) -> np.ndarray:
    with np.errstate(over="ignore"):  # what is beyond float32 becomes infinite, and is complained of
        return to_float_array(values, np.float32)


def _of_mixed(column: pa.Array) -> np.ndarray:
    # Sparse vectors, or some of each kind.
    dense = column.field("type").to_numpy() == _DENSE
    lists = column.field("values")
    lengths = lists.value_lengths().to_numpy()
    sizes = column.field("size").to_numpy(zero_copy_only=False)
    width = _common_width(np.where(dense, lengths, sizes))
    rows = np.repeat(np.arange(len(column)), lengths)
    places = np.arange(len(rows)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    sparse = ~np.repeat(dense, lengths)
    indices = column.field("indices").flatten().to_numpy(zero_copy_only=False)
    if len(indices) != int(sparse.sum()) or (len(indices) and not 0 <= indices.min() <= indices.max() < width):
        raise RowsError("a sparse vector has indices that do not fit its size or its values")
    places[sparse] = indices
    X = np.zeros((len(column), width), np.float32)
    X[rows, places] = _narrow_values(lists.flatten())
    return X


def arrays_of(values: np.ndarray) -> pa.Array:
    """Return numbers, float64 [n, k], as a column of arrays."""
    n, k = values.shape
    offsets = np.arange(0, (n + 1) * k, k, dtype=np.int32) if k else np.zeros(n + 1, np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(np.ascontiguousarray(values).ravel()))
