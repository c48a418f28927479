"""Sparse rows: matrices of scipy, and frames of pandas with sparse columns. They are made dense some rows at a time."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

#: The most columns of a sparse matrix: it costs nothing to declare more, but each has a name in a call.
MOST_COLUMNS = 2**21

_VALUES_AT_ONCE = 200_000  # that are dense at a time


@dataclass(frozen=True, eq=False)
class SparseRows:
    """Rows of which the values that are not 0 are stored. Those of row i lie from ``starts[i]`` to ``ends[i]``.

    As of an array [n, features], ``rows[i]`` is a row, as a dense array, and ``rows[a:b]`` or ``rows[numbers]`` are some rows.
    """

    values: np.ndarray
    """Numbers [stored], those of a row in the order of their features."""
    features: np.ndarray
    """Integers [stored]: the number of the feature of each value; none twice in a row."""
    starts: np.ndarray
    """Integers [n]."""
    ends: np.ndarray
    """Integers [n]."""
    n_features: int
    """The number of features of each row."""
    dtype: Any
    """That of dense rows."""

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, rows: Any) -> Any:
        if isinstance(rows, int | np.integer):
            return replace(self, starts=self.starts[rows, None], ends=self.ends[rows, None]).dense()[0]
        return replace(self, starts=self.starts[rows], ends=self.ends[rows])

    def dense(self) -> np.ndarray:
        """Return the rows as an array [n, features]."""
        return self.laid(np.arange(self.n_features), self.n_features)

    def laid(self, columns: np.ndarray, used: int) -> np.ndarray:
        """Return the rows as an array [n, used]. ``columns`` int64 [features] has the column of each feature, or -1.

        Values of a row that meet in a column add up, in the order of the features.
        """
        stored = self._stored_values()
        return self._added_up(stored, columns[self.features[stored]], used)

    def compact(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return what `laid` does, but only columns that occur; and these, int64, rising."""
        stored = self._stored_values()
        found, at = np.unique(columns[self.features[stored]], return_inverse=True)
        if len(found) and found[0] < 0:
            found, at = found[1:], at - 1
        return self._added_up(stored, at, len(found)), found

    def _stored_values(self) -> np.ndarray:
        # The places in `values` of those of these rows.
        counts = self.ends - self.starts
        return np.arange(counts.sum()) + np.repeat(self.starts - (np.cumsum(counts) - counts), counts)

    def _added_up(self, stored: np.ndarray, at: np.ndarray, width: int) -> np.ndarray:
        out, rows = np.zeros((len(self), width), self.dtype), np.repeat(np.arange(len(self)), self.ends - self.starts)
        if (at < 0).any():
            stored, rows, at = (each[at >= 0] for each in (stored, rows, at))
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is refused by name, where it is learned
            np.add.at(out, (rows, at), self.values[stored].astype(self.dtype))
        return out


#: Rows [n, features] as `streamsvm.core.frames.as_matrix` returns them.
Matrix = np.ndarray | SparseRows


def parts(matrix: Matrix, used: int, rows: slice | None = None, most: int | None = None) -> Iterator[slice]:
    """Return rows in parts of at most so many. Sparse rows come in parts that `laid_out` makes a small array of.

    ``used`` is the number of columns that features may have.
    """
    begin, end = (0, len(matrix)) if rows is None else (rows.start, rows.stop)
    most = size = max(len(matrix) if most is None else most, 1)
    stored = None
    if isinstance(matrix, SparseRows):
        stored, used = np.concatenate([[0], np.cumsum(matrix.ends - matrix.starts)]), min(used, matrix.n_features)
    while begin < end:
        size = min(size, end - begin)
        while stored is not None and size > 1 and size * min(stored[begin + size] - stored[begin], used) > _VALUES_AT_ONCE:
            size = (size + 1) // 2
        yield slice(begin, begin + size)
        begin, size = begin + size, min(2 * size, most)


def laid_out(matrix: Matrix, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows as a dense array, and the column of each of its features, int64; of sparse rows, those that occur.

    ``columns`` int64 [features] has the column of each feature, or -1.
    """
    return matrix.compact(columns) if isinstance(matrix, SparseRows) else (matrix, columns)


def in_columns(matrix: Matrix, columns: np.ndarray, used: int, dtype: Any) -> np.ndarray:
    """Return all rows laid out by columns, in a new array of a dtype [n, used]: see `SparseRows.laid`."""
    if isinstance(matrix, SparseRows):
        return matrix.laid(columns, used).astype(dtype, copy=False)
    out = np.zeros((len(matrix), used), dtype)
    with np.errstate(over="ignore", invalid="ignore"):
        for j, column in enumerate(columns.tolist()):
            if column >= 0:
                out[:, column] += matrix[:, j]
    return out


def dense(matrix: Matrix) -> np.ndarray:
    """Return rows as a dense array [n, features]."""
    return matrix.dense() if isinstance(matrix, SparseRows) else matrix


# From scipy and pandas, which are here where a user has them ----------------------------------------------------------------


def is_scipy(X: Any) -> bool:
    """Return whether X is a sparse matrix or array of scipy."""
    scipy: Any = sys.modules.get("scipy.sparse")
    return scipy is not None and bool(scipy.issparse(X))


def rows_of_scipy(X: Any, dtype: Any) -> SparseRows:
    """Return the rows of a sparse matrix or array of scipy; a ValueError if it is not 2-D, not of numbers, or corrupt."""
    if X.ndim != 2 or X.dtype.kind not in "fiub":
        raise ValueError(f"X must be a 2-D array of numbers, not a sparse {X.ndim}-D of {X.dtype}")
    if X.shape[1] > MOST_COLUMNS:
        raise ValueError(
            f"X has {X.shape[1]:,} columns, and a sparse matrix may have {MOST_COLUMNS:,}: hash its features into fewer columns"
        )
    X = X.tocsr()
    X.check_format(full_check=True)
    if not X.has_canonical_format:
        X = X.copy()
        X.sum_duplicates()  # in the order of the columns, too
    return SparseRows(X.data, X.indices, X.indptr[:-1], X.indptr[1:], X.shape[1], dtype)


def sparse_columns(X: Any) -> set[Any]:
    """Return the names of the columns of a frame that are sparse ones of pandas, and hold numbers."""
    pandas: Any = sys.modules.get("pandas")
    if pandas is None or not isinstance(X, pandas.DataFrame):
        return set()
    return {name for name, kind in X.dtypes.items() if isinstance(kind, pandas.SparseDtype) and kind.subtype.kind in "fiub"}


def rows_of_pandas(X: Any, dtype: Any) -> SparseRows:
    """Return the rows of a frame of pandas, some of whose columns are sparse. Columns of another fill value than 0 are dense."""
    n, places, values = len(X), [], []
    for j in range(X.shape[1]):
        array = X.iloc[:, j].array
        if getattr(array, "fill_value", None) == 0:
            places.append(array.sp_index.to_int_index().indices)
            values.append(array.sp_values.astype(np.float64))
        else:
            column = X.iloc[:, j].to_numpy(dtype=np.float64, na_value=np.nan)
            places.append(np.flatnonzero(column))
            values.append(column[places[-1]])
    features = np.repeat(np.arange(X.shape[1]), [len(each) for each in places])
    rows = np.concatenate([np.empty(0, np.int64), *places])
    order = np.argsort(rows, kind="stable")  # features of a row stay in order
    ends = np.cumsum(np.bincount(rows, minlength=n))
    stored = np.concatenate([np.empty(0), *values])[order]
    return SparseRows(stored, features[order], np.concatenate([[0], ends])[:n], ends, X.shape[1], dtype)
