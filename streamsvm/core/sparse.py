"""Converts scipy sparse matrices and pandas frames with sparse columns to CSR arrays, and slices of these to dense arrays."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

#: Maximum number of columns of a sparse matrix, because each one needs a name during a call.
MAX_COLUMNS = 2**21
#: Rows [n, features] from `streamsvm.core.frames.to_matrix`: a numpy array, or a ``csr_array`` without duplicates.
Matrix = Any

_MAX_DENSE_VALUES = 200_000  # in a dense slice of a sparse matrix


def iter_slices(matrix: Matrix, used: int, rows: slice | None = None, max_rows: int | None = None) -> Iterator[slice]:
    """Yield slices that together cover the rows of ``matrix``, or only its range ``rows``, to process them in chunks. A chunk has
    at most ``max_rows`` rows; if the matrix is sparse, it is also short enough that a dense copy with ``used`` columns needs
    little memory.

    ``used`` is the number of model columns that `gather_columns` reduces the features to.
    """
    n, d = matrix.shape
    start, stop = (0, n) if rows is None else (rows.start, rows.stop)
    max_rows = size = max(n if max_rows is None else max_rows, 1)
    offsets, used = None if isinstance(matrix, np.ndarray) else matrix.indptr, min(used, d)
    while start < stop:
        size = min(size, stop - start)
        while offsets is not None and size > 1 and size * min(offsets[start + size] - offsets[start], used) > _MAX_DENSE_VALUES:
            size = (size + 1) // 2
        yield slice(start, start + size)
        start, size = start + size, min(2 * size, max_rows)


def gather_columns(matrix: Matrix, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Convert a sparse ``matrix`` [n, features] to a dense array with only those columns of a model that have entries in it.
    ``columns`` int64 [features] is the model's column for each feature, -1 to ignore it. Returns (array [n, m], indices int64 [m]
    of the model's columns). If the matrix is dense, returns both arguments unchanged.
    """
    if isinstance(matrix, np.ndarray):
        return matrix, columns
    present = np.unique(columns[matrix.indices])
    present = present[present >= 0]
    positions = np.full(columns.max(initial=-1) + 2, -1)  # column -1 reads the last entry, which is -1
    positions[present] = np.arange(len(present))
    return scatter_columns(matrix, positions[columns], len(present), matrix.dtype), present


def scatter_columns(matrix: Matrix, columns: np.ndarray, used: int, dtype: Any) -> np.ndarray:
    """Copy the features of ``matrix`` to the columns of a model: return a dense array [n, used] of this ``dtype``, whose column
    ``columns[j]`` contains feature j. A feature with -1 is ignored, and features with the same column are added up.

    Values in the same column are added, in the order of the features.
    """
    out = np.zeros((matrix.shape[0], used), dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # numbers that are not finite are refused later, with the feature's name
        if isinstance(matrix, np.ndarray):
            for j in np.flatnonzero(columns >= 0).tolist():
                out[:, columns[j]] += matrix[:, j]
        else:
            targets, rows = columns[matrix.indices], np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
            has_column = targets >= 0
            np.add.at(out, (rows[has_column], targets[has_column]), matrix.data[has_column])
    return out


def to_dense(matrix: Matrix) -> np.ndarray:
    """Return the rows of a sparse or dense ``matrix`` as a dense array [n, features]; a dense one is not copied."""
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())


# Conversion from scipy and pandas, which are imported only if the user has them ----------------------------------------------


def is_scipy_sparse(X: Any) -> bool:
    """Return whether X is a scipy sparse matrix or sparse array, without importing scipy.sparse."""
    scipy: Any = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(X))


def convert_scipy(X: Any, dtype: Any) -> Any:
    """Convert a scipy sparse matrix to a CSR array of this ``dtype`` without duplicate entries. Raises ValueError if it is not
    2-D, not of numbers, corrupt, or has too many columns.
    """
    from scipy import sparse  # noqa: PLC0415 - it is imported already

    if X.ndim != 2 or X.dtype.kind not in "fiub":
        raise ValueError(f"X must be a 2-D array of numbers, not a sparse {X.ndim}-D of {X.dtype}")
    if X.shape[1] > MAX_COLUMNS:
        raise ValueError(
            f"X has {X.shape[1]:,} columns, and a sparse matrix may have {MAX_COLUMNS:,}: hash its features into fewer columns"
        )
    rows = sparse.csr_array(X)
    rows.check_format(full_check=True)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()  # this sorts the columns of each row, too
    with np.errstate(over="ignore"):
        return rows.astype(dtype)


def find_sparse_columns(X: Any) -> set[Any]:
    """Return the names of those columns of a pandas frame that are sparse and numeric; an empty set for any other object."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return set()
    return {name for name, dtype in X.dtypes.items() if isinstance(dtype, pandas.SparseDtype) and dtype.subtype.kind in "fiub"}


def convert_pandas(X: Any, dtype: Any) -> Any:
    """Convert a pandas frame of numbers, some of whose columns are sparse, to a scipy CSR array of this ``dtype``."""
    from scipy import sparse  # noqa: PLC0415

    row_indices, values = [np.empty(0, np.int64)], [np.empty(0)]
    for j in range(X.shape[1]):
        array = X.iloc[:, j].array
        if getattr(array, "fill_value", None) == 0:
            row_indices.append(array.sp_index.to_int_index().indices)
            values.append(array.sp_values.astype(np.float64))
        else:  # a dense column, or a sparse one with another fill value
            column = X.iloc[:, j].to_numpy(dtype=np.float64, na_value=np.nan)
            row_indices.append(np.flatnonzero(column))
            values.append(column[row_indices[-1]])
    starts = np.cumsum([len(indices) for indices in row_indices])
    return convert_scipy(sparse.csc_array((np.concatenate(values), np.concatenate(row_indices), starts), shape=X.shape), dtype)
