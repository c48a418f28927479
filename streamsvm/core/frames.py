"""The rows and frames of users, as arrays."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, NoReturn, cast

import narwhals.stable.v2 as nw
import numpy as np
from river.utils import dataframe

from streamsvm.core.checks import LARGEST_WEIGHT
from streamsvm.core.sparse import Matrix, convert_pandas, convert_scipy, find_sparse_columns, is_scipy_sparse


def to_matrix(X: Any, dtype: Any = np.float32) -> tuple[Matrix, list[Hashable], Any]:
    """Return a frame or an array of features as an array of a dtype [n, features], with the names of the features.

    X is an eager frame that narwhals knows, a 2-D numpy array of numbers, or a sparse matrix or array of scipy; features of the
    last two are named 0, 1, ... Of what is sparse in scipy, and of a frame of pandas with sparse columns, sparse rows are
    returned. The third that is returned is the narwhals frame that results are to be like, None for an array. It is a ValueError
    if X is none of these, is masked, or has a column that is not numeric.
    """
    frame = None
    if is_scipy_sparse(X):
        return convert_scipy(X, dtype), list(range(X.shape[1])), None
    if isinstance(X, np.ma.MaskedArray):
        raise ValueError("X is a masked array: fill in what is masked (X.filled) or leave those rows out")
    if isinstance(X, np.ndarray):
        if X.ndim != 2 or X.dtype.kind not in "fiub":
            raise ValueError(f"X must be a 2-D array of numbers, not {X.ndim}-D of {X.dtype}")
        values, names = X, cast("list[Hashable]", list(range(X.shape[1])))
    else:
        try:
            frame = dataframe.into_frame(X)
        except TypeError:
            raise ValueError(f"X must be an eager frame or a 2-D array (numpy, scipy.sparse), not {type(X).__name__}") from None
        others = {name: kind for name, kind in frame.schema.items() if not (kind.is_numeric() or kind == nw.Boolean)}
        if others:
            sparse = find_sparse_columns(X)
            for name, kind in others.items():
                if name not in sparse:
                    raise ValueError(
                        f"feature {name!r} is of type {kind}: features must be numbers. For a table with names, dates or gaps, "
                        "make the model by streamsvm.table_model(table, label=...)"
                    )
            return convert_pandas(X, dtype), list(frame.columns), frame
        values, names = dataframe.to_numpy(frame), cast("list[Hashable]", list(frame.columns))
    with np.errstate(over="ignore"):  # a number that does not fit float32 becomes infinite, and its feature is refused by name
        # Writable, as compiled code takes no other: a read-only array is copied.
        return np.require(values, dtype, ["C", "W"]), names, frame


def to_columns(X: Any) -> tuple[list[Hashable], list[np.ndarray | list[Any]], Any]:
    """Return the names and the values of the columns of a frame, and the narwhals frame for results.

    Numbers and booleans are arrays, NaN if they are missing; other values are objects. It is a ValueError if X is no frame.
    """
    try:
        frame = dataframe.into_frame(X)
    except TypeError:
        raise ValueError(f"X must be an eager frame, whose columns have names, not {type(X).__name__}") from None
    columns: list[np.ndarray | list[Any]] = []
    for series in frame.iter_columns():
        kind = series.dtype
        if kind.is_float() or ((kind.is_integer() or kind == nw.Boolean) and not series.null_count()):
            columns.append(series.to_numpy())
        else:
            columns.append(series.to_list())
    return list(frame.columns), columns, frame


def to_list(values: Any) -> list[Any]:
    """Return the values of a series, an array or another sequence as objects of Python."""
    for way in ("tolist", "to_list", "to_pylist"):
        if hasattr(values, way):
            return list(getattr(values, way)())
    return list(values)


def to_series(values: np.ndarray, like: Any) -> Any:
    """Return values [n] as a series like the frame that `to_matrix` returned, or as they are for None."""
    return values if like is None else dataframe.to_native_series(values, name=None, like=like)


def to_frame(values: np.ndarray, names: Iterable[Any], like: Any) -> Any:
    """Return values [n, names] as a frame like the one that `to_matrix` returned, or as they are for None."""
    return values if like is None else dataframe.to_native_frame(dict(zip(names, values.T, strict=True)), like=like)


class Batch(NamedTuple):
    """Rows to learn together. Rows of weight 0 are left out, and not checked."""

    matrix: Matrix
    """float32 or float64 [n, features], or sparse rows."""
    names: list[Hashable]
    """Of the features."""
    y: list[Any]
    """Labels or targets of the n rows."""
    weights: np.ndarray
    """float64 [n], above 0."""
    numbers: np.ndarray
    """int64 [n]: the numbers of the rows in the call."""
    n_in_call: int
    """The number of rows in the call."""

    def scale_weights(self, factors: np.ndarray) -> Batch:
        """Return the rows with their weights multiplied by ``factors``, float64 [n].

        Rows whose weight is 0 then are left out.
        """
        weights = np.minimum(self.weights * factors, LARGEST_WEIGHT)
        held, batch = np.flatnonzero(weights), self._replace(weights=weights)
        return batch if len(held) == len(weights) else batch.select_rows(held)

    def select_rows(self, held: np.ndarray) -> Batch:
        """Return some of the rows, by their places int64 [m]."""
        y = [self.y[i] for i in held.tolist()]
        return self._replace(matrix=self.matrix[held], y=y, weights=self.weights[held], numbers=self.numbers[held])

    def raise_for_row(self, row: int, error: ValueError) -> NoReturn:
        """Raise an error again, with the number of the row in the call."""
        raise ValueError(f"row {self.numbers[row]}: {error}") from None


def make_batch(X: Any, y: Any, w: Any, dtype: Any = np.float32) -> Batch:
    """Check the arguments of ``learn_many``, except for the labels or targets themselves; a ValueError where they do not fit."""
    matrix, names, _ = to_matrix(X, dtype)
    given = matrix.shape[0]
    y, weights = _as_list(y, given), _checked_weights(w, given)
    numbers = np.flatnonzero(weights)
    if len(numbers) < given:
        matrix, weights, y = matrix[numbers], weights[numbers], [y[i] for i in numbers.tolist()]
    return Batch(matrix, names, y, weights, numbers, given)


def _as_list(y: Any, n: int) -> list[Any]:
    if hasattr(y, "columns") or getattr(y, "ndim", 1) != 1 or isinstance(y, str | bytes):
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}")
    try:
        values = to_list(y)
    except TypeError:
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}") from None
    if len(values) != n:
        raise ValueError(f"X has {n} rows, y {len(values)}")
    return values


def _checked_weights(w: Any, n: int) -> np.ndarray:
    given = np.asarray(w)
    if given.dtype.kind not in "fiub":
        raise ValueError(f"w must be numbers, not {w!r}")
    given = given.astype(np.float64)
    if given.shape not in ((), (n,)):
        raise ValueError(f"w must be a number or {n} of them, as X has {n} rows; it is an array of shape {given.shape}")
    if not ((given >= 0.0) & (given <= LARGEST_WEIGHT)).all():
        raise ValueError(f"w must be finite numbers of at least 0 and at most {LARGEST_WEIGHT:g}")
    return given if given.ndim else np.full(n, given)  # not a view to read only: numba compiles anew for those
