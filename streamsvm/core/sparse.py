"""Sparse rows: scipy CSR arrays of sparse matrices and of pandas frames with sparse columns; made dense a slice at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import numpy as np

#: The most columns of a sparse matrix: it costs nothing to declare more, but each has a name in a call.
MOST_COLUMNS = 2**21
#: Rows [n, features] as `streamsvm.core.frames.as_matrix` returns them: numpy's, or a ``csr_array`` without duplicates.
Matrix = Any

_VALUES_AT_ONCE = 200_000  # that are dense at a time


def iter_slices(matrix: Matrix, used: int, rows: slice | None = None, most: int | None = None) -> Iterator[slice]:
    """Return rows in parts of at most so many. Sparse rows come in parts that `gather_columns` makes a small array of.

    ``used`` is the number of columns that features may have.
    """
    n, d = matrix.shape
    begin, end = (0, n) if rows is None else (rows.start, rows.stop)
    most = size = max(n if most is None else most, 1)
    stored, used = None if isinstance(matrix, np.ndarray) else matrix.indptr, min(used, d)
    while begin < end:
        size = min(size, end - begin)
        while stored is not None and size > 1 and size * min(stored[begin + size] - stored[begin], used) > _VALUES_AT_ONCE:
            size = (size + 1) // 2
        yield slice(begin, begin + size)
        begin, size = begin + size, min(2 * size, most)


def gather_columns(matrix: Matrix, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as a dense array, and the column of each of its features, int64; of sparse rows, those that occur.

    ``columns`` int64 [features] has the column of each feature, or -1.
    """
    if isinstance(matrix, np.ndarray):
        return matrix, columns
    found = np.unique(columns[matrix.indices])
    found = found[found >= 0]
    places = np.full(columns.max(initial=-1) + 2, -1)  # the last one is that of -1
    places[found] = np.arange(len(found))
    return scatter_columns(matrix, places[columns], len(found), matrix.dtype), found


def scatter_columns(matrix: Matrix, columns: np.ndarray, used: int, dtype: Any) -> np.ndarray:
    """Return all rows laid out by columns, in a new array of a dtype [n, used].

    ``columns`` are as in `gather_columns`. Values of a row that meet in a column add up, in the order of the features.
    """
    out = np.zeros((matrix.shape[0], used), dtype)
    with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name, where it is learned
        if isinstance(matrix, np.ndarray):
            for j in np.flatnonzero(columns >= 0).tolist():
                out[:, columns[j]] += matrix[:, j]
        else:
            at, rows = columns[matrix.indices], np.repeat(np.arange(matrix.shape[0]), np.diff(matrix.indptr))
            np.add.at(out, (rows[at >= 0], at[at >= 0]), matrix.data[at >= 0])
    return out


def to_dense(matrix: Matrix) -> np.ndarray:
    """Return rows as a dense array [n, features]."""
    return matrix if isinstance(matrix, np.ndarray) else np.asarray(matrix.toarray())


# From scipy and pandas, which are here where a user has them ----------------------------------------------------------------


def is_scipy_sparse(X: Any) -> bool:
    """Return whether X is a sparse matrix or array of scipy."""
    scipy: Any = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(X))


def convert_scipy(X: Any, dtype: Any) -> Any:
    """Return the rows of a sparse matrix or array of scipy; a ValueError if it is not 2-D, not of numbers, or corrupt."""
    from scipy import sparse  # noqa: PLC0415 - who gives a sparse matrix has it

    if X.ndim != 2 or X.dtype.kind not in "fiub":
        raise ValueError(f"X must be a 2-D array of numbers, not a sparse {X.ndim}-D of {X.dtype}")
    if X.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"X has {X.shape[1]:,} columns, and a sparse matrix may have {MOST_COLUMNS:,}: hash its features into fewer columns"
        )
    rows = sparse.csr_array(X)
    rows.check_format(full_check=True)
    if not rows.has_canonical_format:
        rows = rows.copy()
        rows.sum_duplicates()  # in the order of the columns, too
    with np.errstate(over="ignore"):
        return rows.astype(dtype)


def find_sparse_columns(X: Any) -> set[Any]:
    """Return the names of the columns of a frame that are sparse ones of pandas, and hold numbers."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return set()
    return {name for name, kind in X.dtypes.items() if isinstance(kind, pandas.SparseDtype) and kind.subtype.kind in "fiub"}


def convert_pandas(X: Any, dtype: Any) -> Any:
    """Return the rows of a frame of pandas, some of whose columns are sparse. Columns of another fill value than 0 are dense."""
    from scipy import sparse  # noqa: PLC0415

    places, values = [np.empty(0, np.int64)], [np.empty(0)]
    for j in range(X.shape[1]):
        array = X.iloc[:, j].array
        if getattr(array, "fill_value", None) == 0:
            places.append(array.sp_index.to_int_index().indices)
            values.append(array.sp_values.astype(np.float64))
        else:
            column = X.iloc[:, j].to_numpy(dtype=np.float64, na_value=np.nan)
            places.append(np.flatnonzero(column))
            values.append(column[places[-1]])
    starts = np.cumsum([len(each) for each in places])
    return convert_scipy(sparse.csc_array((np.concatenate(values), np.concatenate(places), starts), shape=X.shape), dtype)
