"""Tests of the conversion of Arrow columns to arrays: all layouts of vectors, and invalid rows."""

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql.pandas.types import to_arrow_type

from refused import raises
from streamsvm_spark.columns import RowsError, convert_numbers, convert_rows, make_array_column

TYPE = to_arrow_type(VectorUDT())


def make_vector_column(vectors):
    """Return pyspark.ml vectors as the Arrow column that Spark makes of them."""
    names = "type", "size", "indices", "values"
    fields = [None if v is None else dict(zip(names, VectorUDT().serialize(v), strict=True)) for v in vectors]
    return pa.array(fields, TYPE)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.floats(-1e6, 1e6), min_size=4, max_size=4)), max_size=8), st.integers(0, 3))
def test_dense_and_sparse_vectors_and_slices_are_converted(rows, start):
    vectors = [
        Vectors.dense(values) if dense else Vectors.sparse(4, [(i, v) for i, v in enumerate(values) if v])
        for dense, values in rows
    ]
    X = convert_rows(make_vector_column(vectors)[start:]).X
    assert X.dtype == np.float32
    np.testing.assert_array_equal(X, np.array([v.toArray() for v in vectors[start:]], np.float32).reshape(X.shape))


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.float64()), pa.list_(pa.float32()), pa.large_list(pa.int32()), pa.list_(pa.float64(), 2)]
)
def test_arrays_of_numbers_are_converted(kind):
    assert convert_rows(pa.array([[1, 2], [3, 4], [5, 6]], kind)[1:]).X.tolist() == [[3.0, 4.0], [5.0, 6.0]]


@pytest.mark.parametrize("values", [[[1.0, -np.inf], [2.5, 0.0]], np.zeros((0, 2)), np.zeros((2, 0))], ids=str)
def test_array_columns_have_the_values_of_the_array(values):
    assert make_array_column(np.array(values)).to_pylist() == np.array(values).tolist()


LISTS = pa.list_(pa.float64())


@pytest.mark.parametrize(
    ("features", "label", "weight", "reason"),
    [
        (pa.array([[1.0], None], LISTS), None, None, "1 of 2 rows of a batch .* of them, its features are null"),
        (make_vector_column([Vectors.dense(1.0), None]), None, None, "its features are null"),
        (pa.array([[1.0], [None]], LISTS), None, None, "one of its features is not finite"),
        (pa.array([[1.0], [np.nan]], LISTS), None, None, "one of its features is not finite"),
        (pa.array([[1.0], [1e300]], LISTS), None, None, "one of its features is not finite"),
        (pa.array([[1.0], [2.0]], LISTS), pa.array([1.0, None]), None, "its label is null"),
        (pa.array([[1.0], [2.0]], LISTS), pa.array([1, 0]), pa.array([1.0, np.nan]), "its weight is null"),
        (pa.array([[1.0], [2.0, 3.0]], LISTS), None, None, "vectors have 1 and 2 features"),
        (make_vector_column([Vectors.dense(1.0, 2.0), Vectors.sparse(3, {0: 1.0})]), None, None, "vectors have 2 and 3 features"),
        (pa.array([["a"]], pa.list_(pa.string())), None, None, "arrays of string"),
        (pa.array(["a"]), None, None, "VectorAssembler"),
        (pa.array([[1.0]], LISTS), pa.array(["a"]), None, "the label column has the type string: .*StringIndexer"),
        (pa.array([[1.0]], LISTS), pa.array([1.5]), None, "the label 1.5 is not a class: .*StringIndexer"),
        (pa.array([[1.0]], LISTS), pa.array([-1]), None, "the label -1 is not a class"),
        (pa.array([[1.0]], LISTS), pa.array([1e9]), None, "is not a class"),
        (pa.array([[1.0]], LISTS), pa.array([1]), pa.array([-1.0]), "a weight is -1"),
    ],
    ids=str,
)
def test_invalid_rows_are_refused(features, label, weight, reason):
    raises(reason, convert_rows, features, label, weight, classes=True, error=RowsError)


def test_decimals_and_large_integers_are_converted():
    features = pa.array([[1, 2], [3, 4]], pa.list_(pa.decimal128(3, 1)))
    rows = convert_rows(features, pa.array([0, 1], pa.decimal128(3, 1)))
    assert (rows.X.tolist(), rows.y.tolist()) == ([[1.0, 2.0], [3.0, 4.0]], [0.0, 1.0])
    assert convert_numbers(pa.array([2**53 + 1]), "it").tolist() == [2.0**53]


def test_invalid_rows_are_skipped():
    features = pa.array([[1.0], None, [np.nan], [4.0], [5.0]], LISTS)
    rows = convert_rows(features, pa.array([0, 1, 0, None, 1]), skip=True, classes=True)
    assert (rows.X.tolist(), rows.y.tolist()) == ([[1.0], [5.0]], [0.0, 1.0])
    assert rows.valid.tolist() == [True, False, False, False, True]


def test_inconsistent_sparse_vectors_are_refused():
    for indices, values in (([5], [1.0]), ([-1], [1.0]), ([0, 1], [1.0])):
        vectors = pa.array([{"type": 0, "size": 2, "indices": indices, "values": values}], TYPE)
        raises("indices that do not match", convert_rows, vectors, error=RowsError)
