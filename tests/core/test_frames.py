"""Conversion of users' frames and arrays to rows."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy import sparse

from refused import refused
from streamsvm.core.frames import make_batch, to_matrix
from streamsvm.core.sparse import to_dense

X = np.array([[0.0, 2.0, 0.0], [0.0, 0.0, 0.0], [1.0, 0.0, -3.0]])


@pytest.mark.parametrize(
    ("frame", "names", "is_frame"),
    [
        (X, [0, 1, 2], False),
        (sparse.csr_array(X), [0, 1, 2], False),
        (sparse.coo_matrix(X), [0, 1, 2], False),
        (pd.DataFrame(X, columns=["a", "b", "c"]), ["a", "b", "c"], True),
        (pd.DataFrame(X, columns=["a", "b", "c"]).astype({"b": pd.SparseDtype(float, 0.0)}), ["a", "b", "c"], True),
        (pd.DataFrame.sparse.from_spmatrix(sparse.csr_array(X)), [0, 1, 2], True),
        (pl.DataFrame(X, schema=["a", "b", "c"]), ["a", "b", "c"], True),
    ],
)
def test_frames_are_converted_and_results_have_their_type(frame, names, is_frame):
    for dtype in (np.float32, np.float64):
        matrix, feature_names, like = to_matrix(frame, dtype)
        np.testing.assert_array_equal(to_dense(matrix), X)
        assert to_dense(matrix).dtype == dtype
        assert feature_names == names
        assert (like is not None) == is_frame


def test_rows_of_weight_0_are_dropped():
    for frame in (X, sparse.csr_array(X)):
        batch = make_batch(frame, [1, 2, 3], [1.0, 0.0, 2.0])
        np.testing.assert_array_equal(to_dense(batch.matrix), X[[0, 2]])
        assert batch.y == [1, 3]
        np.testing.assert_array_equal(to_dense(batch.scale_weights(np.array([0.0, 1.0])).matrix), X[[2]])
        refused("X has 3 rows, y 2", make_batch, frame, [1, 2], 1.0)


def test_non_numeric_columns_are_refused():
    text = pd.arrays.SparseArray(["x", ""], dtype=pd.SparseDtype(object, ""))
    for column in (["x", ""], text):
        refused("feature 'b' is of type", to_matrix, pd.DataFrame({"a": pd.arrays.SparseArray([0.0, 1.0]), "b": column}))
    refused("2-D array .numpy, scipy.sparse., not list", to_matrix, [[1.0]])
