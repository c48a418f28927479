"""What users hand over, as rows."""

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
    ("given", "names", "is_frame"),
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
def test_rows_their_names_and_what_answers_are_like(given, names, is_frame):
    for dtype in (np.float32, np.float64):
        matrix, found, like = to_matrix(given, dtype)
        np.testing.assert_array_equal(to_dense(matrix), X)
        assert to_dense(matrix).dtype == dtype
        assert found == names
        assert (like is not None) == is_frame


def test_rows_of_weight_0_are_left_out():
    for given in (X, sparse.csr_array(X)):
        batch = make_batch(given, [1, 2, 3], [1.0, 0.0, 2.0])
        np.testing.assert_array_equal(to_dense(batch.matrix), X[[0, 2]])
        assert batch.y == [1, 3]
        np.testing.assert_array_equal(to_dense(batch.scale_weights(np.array([0.0, 1.0])).matrix), X[[2]])
        refused("X has 3 rows, y 2", make_batch, given, [1, 2], 1.0)


def test_columns_that_are_no_numbers():
    text = pd.arrays.SparseArray(["x", ""], dtype=pd.SparseDtype(object, ""))
    for column in (["x", ""], text):
        refused("feature 'b' is of type", to_matrix, pd.DataFrame({"a": pd.arrays.SparseArray([0.0, 1.0]), "b": column}))
    refused("2-D array .numpy, scipy.sparse., not list", to_matrix, [[1.0]])
