"""Sparse rows equal the rows of the same dense matrix."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from refused import refused
from streamsvm.core.sparse import (
    MAX_COLUMNS,
    convert_pandas,
    convert_scipy,
    find_sparse_columns,
    gather_columns,
    is_scipy_sparse,
    iter_slices,
    scatter_columns,
    to_dense,
)

VALUES = st.sampled_from([0.0, 0.0, 0.0, 1.5, -2.0, 0.1, 1e30, -1e39, np.nan, np.inf, -np.inf])
MATRICES = st.tuples(st.integers(0, 5), st.integers(0, 5)).flatmap(
    lambda shape: st.lists(VALUES, min_size=shape[0] * shape[1], max_size=shape[0] * shape[1]).map(
        lambda values: np.array(values, np.float64).reshape(shape)
    )
)


def single(X):
    with np.errstate(over="ignore"):
        return X.astype(np.float32)


@given(MATRICES, st.data())
def test_slices_equal_dense_matrix(X, data):
    n, d = X.shape
    rows = convert_scipy(sparse.csr_array(X), np.float32)
    assert rows.shape[0] == n
    np.testing.assert_array_equal(to_dense(rows), single(X))
    numbers = data.draw(st.lists(st.integers(0, n - 1), max_size=4) if n else st.just([]))
    np.testing.assert_array_equal(to_dense(rows[np.array(numbers, np.int64)]), single(X)[numbers])
    start, stop = sorted(data.draw(st.tuples(st.integers(0, n), st.integers(0, n))))
    np.testing.assert_array_equal(to_dense(rows[start:stop]), single(X)[start:stop])
    for number in numbers:
        np.testing.assert_array_equal(to_dense(rows[number : number + 1])[0], single(X)[number])
    columns = np.array(data.draw(st.lists(st.integers(-1, 2), min_size=d, max_size=d)), np.int64)
    expected = scatter_columns(single(X), columns, 3, np.float32)
    np.testing.assert_array_equal(scatter_columns(rows, columns, 3, np.float32), expected)
    result, places = gather_columns(rows, columns)
    assert places.tolist() == sorted(
        {column for column, values in zip(columns.tolist(), X.T, strict=True) if values.any()} - {-1}
    )
    np.testing.assert_array_equal(scatter_columns(result, places, 3, np.float32), expected)
    assert gather_columns(X, columns) == (X, columns)


@pytest.mark.parametrize("form", ["csr", "csc", "coo", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("dtype", [bool, np.int8, np.uint64, np.int64, np.float32, np.float64, np.longdouble])
def test_formats_and_types(form, dtype):
    X = (np.arange(12).reshape(3, 4) % 3).astype(dtype)
    for kind in (sparse.csr_array, sparse.csr_matrix):
        rows = convert_scipy(kind(X).asformat(form), np.float64)
        np.testing.assert_array_equal(to_dense(rows), X.astype(np.float64))
        assert to_dense(rows).dtype == np.float64


def test_duplicates_are_summed_and_columns_sorted():
    X = sparse.csr_array((np.array([1.0, 2.0, 4.0, 8.0]), np.array([2, 0, 2, 1]), np.array([0, 3, 4])), shape=(2, 3))
    assert to_dense(convert_scipy(X, np.float32)).tolist() == [[2.0, 0.0, 5.0], [0.0, 8.0, 0.0]]
    assert X.indices.tolist() == [2, 0, 2, 1]  # the argument does not change


def test_invalid_matrices_are_refused():
    refused("2-D array of numbers, not a sparse 2-D of complex128", convert_scipy, sparse.csr_array(np.eye(2) * 1j), np.float32)
    refused("not a sparse 1-D of float64", convert_scipy, sparse.coo_array(np.ones(3)), np.float32)
    refused("hash its features", convert_scipy, sparse.csr_array((1, MAX_COLUMNS + 1)), np.float32)
    corrupt = sparse.csr_array(np.eye(2))
    corrupt.indices[0] = 7
    refused("ind", convert_scipy, corrupt, np.float32)


def test_dense_arrays_are_not_sparse():
    assert is_scipy_sparse(sparse.csr_array((2, 2)))
    assert is_scipy_sparse(sparse.coo_matrix((2, 2)))
    assert not is_scipy_sparse(np.eye(2))
    assert find_sparse_columns(np.eye(2)) == set()
    text = pd.arrays.SparseArray(["x"], fill_value="", dtype=pd.SparseDtype(object, ""))
    assert find_sparse_columns(pd.DataFrame({"a": [1.0], "b": pd.arrays.SparseArray([0.0]), "c": text})) == {"b"}


@given(MATRICES, st.data())
def test_frames_with_sparse_columns(X, data):
    fills = data.draw(st.lists(st.sampled_from([None, 0.0, 1.5, np.nan]), min_size=X.shape[1], max_size=X.shape[1]))
    frame = pd.DataFrame(X)
    for j, fill in enumerate(fills):
        if fill is not None:
            frame[j] = pd.arrays.SparseArray(X[:, j], fill_value=fill, kind=data.draw(st.sampled_from(["integer", "block"])))
    np.testing.assert_array_equal(to_dense(convert_pandas(frame, np.float32)), single(X))


def test_slices_of_sparse_rows_are_small():
    n, d = 5000, 1000
    counts = np.random.default_rng(0).choice([0, 1, 10, d], size=n, p=[0.3, 0.3, 0.3, 0.1])
    features = np.concatenate([np.arange(count) for count in counts])
    starts = np.concatenate([[0], np.cumsum(counts)])
    rows = convert_scipy(sparse.csr_array((np.ones(len(features)), features, starts), shape=(n, d)), np.float32)
    for used, most in ((d, None), (10, None), (0, 300), (10**6, 700)):
        result = list(iter_slices(rows, used, slice(7, n), most))
        assert [row for part in result for row in range(part.start, part.stop)] == list(range(7, n))
        assert max(part.stop - part.start for part in result) <= (most or n)
        columns = np.arange(d) % used if used else np.full(d, -1)
        assert all(gather_columns(rows[part], columns)[0].size <= 200_000 for part in result)
        assert len(result) < 40
    assert list(iter_slices(np.empty((5000, 3)), 10**9)) == [slice(0, 5000)]
    assert list(iter_slices(np.empty((5, 3)), 1, slice(1, 5), 3)) == [slice(1, 4), slice(4, 5)]
    assert list(iter_slices(np.empty((0, 3)), 1)) == []
