"""Converts users' frames and arrays to arrays of rows, and results back to frames."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple, NoReturn, cast

import narwhals.stable.v2 as nw
import numpy as np
from river.utils import dataframe

from streamsvm.core.checks import LARGEST_WEIGHT
from streamsvm.core.sparse import Matrix, convert_pandas, convert_scipy, find_sparse_columns, is_scipy_sparse


def to_matrix(X: Any, dtype: Any = np.float32) -> tuple[Matrix, list[Hashable], Any]:
    """Convert ``X`` (a data frame, a 2-D numpy array or a scipy sparse matrix of numbers) to a matrix. Returns (matrix [n,
    features] of this ``dtype``, feature names, the narwhals frame or None for arrays). Raises ValueError if X has another type or
    a column that is not numeric.

    The features of arrays are named 0, 1, ... The matrix is sparse for scipy matrices, and for pandas frames with sparse columns.
    The frame is the argument of `to_series` and `to_frame` for results. A masked array is invalid, too.
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
        not_numeric = {name: dtype for name, dtype in frame.schema.items() if not (dtype.is_numeric() or dtype == nw.Boolean)}
        if any(dtype in (nw.Struct, nw.Object) for dtype in not_numeric.values()):
            columns = {str(name): list(values) for name, values in zip(*to_columns(X)[:2], strict=True)}
            if list(columns) != frame.columns:
                series = [nw.new_series(name, values, backend=frame.implementation) for name, values in columns.items()]
                return to_matrix(frame.with_columns(*series).select(list(columns)), dtype)
        if not_numeric:
            sparse = find_sparse_columns(X)
            for name, column_dtype in not_numeric.items():
                if name not in sparse:
                    raise ValueError(
                        f"feature {name!r} is of type {column_dtype}: features must be numbers. For a table with names, dates or "
                        "gaps, make the model by streamsvm.table_model(table, label=...)"
                    )
            return convert_pandas(X, dtype), list(frame.columns), frame
        values, names = dataframe.to_numpy(frame), cast("list[Hashable]", list(frame.columns))
    with np.errstate(over="ignore"):  # numbers beyond float32 become infinite, and are refused later with the feature's name
        # Read-only arrays are copied, because compiled code accepts writable ones only.
        return np.require(values, dtype, ["C", "W"]), names, frame


def _split_fields(path: str, values: list[Any]) -> dict[Any, list[Any]]:
    """Return the values of each field within the dicts among ``values``, by path; values that are no dicts stay at ``path``."""
    names = dict.fromkeys(name for value in values if isinstance(value, dict) for name in value)
    rest = [None if isinstance(value, dict) else value for value in values]
    fields = {path: rest} if not names or any(value is not None and value == value for value in rest) else {}
    for name in names:
        fields |= _split_fields(f"{path}.{name}", [value.get(name) if isinstance(value, dict) else None for value in values])
    return fields


def to_columns(X: Any) -> tuple[list[Hashable], list[np.ndarray | list[Any]], Any]:
    """Split a data frame of any library into columns: return (column names, column values, the frame as a narwhals frame).
    Columns of numbers and booleans are numpy arrays with NaN for missing values, all others are lists. A column of structs or
    dicts becomes a column for each of their fields, named by its path, as objects within JSON do.

    Raises ValueError if X is not a frame.
    """
    try:
        frame = dataframe.into_frame(X)
    except TypeError:
        raise ValueError(f"X must be an eager frame, whose columns have names, not {type(X).__name__}") from None
    columns: dict[Hashable, np.ndarray | list[Any]] = {}
    fields: dict[Any, Any]
    for series in frame.iter_columns():
        dtype = series.dtype
        if dtype.is_float() or ((dtype.is_integer() or dtype == nw.Boolean) and not series.null_count()):
            fields = {series.name: series.to_numpy()}
        else:
            values = series.to_list()
            first = next((value for value in values if value is not None and type(value) is not float), None)
            fields = _split_fields(series.name, values) if isinstance(first, dict) else {series.name: values}
        if repeated := fields.keys() & columns.keys():
            raise ValueError(f"two columns have the path {min(repeated)!r}")
        columns |= fields
    return list(columns), list(columns.values()), frame


def to_list(values: Any) -> list[Any]:
    """Convert a series of any data frame library, a numpy array or another sequence to a list of Python objects."""
    for method in ("tolist", "to_list", "to_pylist"):
        if hasattr(values, method):
            return list(getattr(values, method)())
    return list(values)


def to_series(values: np.ndarray, like: Any) -> Any:
    """Convert an array ``values`` [n] to a series of the data frame library (pandas, polars, ...) that the narwhals frame
    ``like`` comes from. With ``None``, return the array unchanged.
    """
    return values if like is None else dataframe.to_native_series(values, name=None, like=like)


def to_frame(values: np.ndarray, names: Iterable[Any], like: Any) -> Any:
    """Convert an array ``values`` [n, columns] to a data frame with these column ``names``, of the library (pandas, polars, ...)
    that the narwhals frame ``like`` comes from. With ``None``, return the array unchanged.
    """
    return values if like is None else dataframe.to_native_frame(dict(zip(names, values.T, strict=True)), like=like)


class FrameBatch(NamedTuple):
    """The rows, labels and weights of a ``learn_many`` call. Rows of weight 0 are dropped without checks."""

    matrix: Matrix
    """float32 or float64 [n, features], or a sparse matrix."""
    names: list[Hashable]
    """Names of the features."""
    y: list[Any]
    """Labels or targets of the n rows."""
    weights: np.ndarray
    """float64 [n], above 0."""
    numbers: np.ndarray
    """Positions of the rows in the call, int64 [n]."""
    n_in_call: int
    """Number of rows in the call, dropped ones included."""

    def scale_weights(self, factors: np.ndarray) -> FrameBatch:
        """Return a copy of this batch of rows whose sample weights are multiplied by ``factors``, float64 [n]. Rows whose weight
        becomes 0 are left out.
        """
        weights = np.minimum(self.weights * factors, LARGEST_WEIGHT)
        indices, batch = np.flatnonzero(weights), self._replace(weights=weights)
        return batch if len(indices) == len(weights) else batch.select_rows(indices)

    def select_rows(self, indices: np.ndarray) -> FrameBatch:
        """Return a copy of this batch that contains only the rows at the positions ``indices``, int64 [m]."""
        y = [self.y[i] for i in indices.tolist()]
        return self._replace(matrix=self.matrix[indices], y=y, weights=self.weights[indices], numbers=self.numbers[indices])

    def raise_for_row(self, row: int, error: ValueError) -> NoReturn:
        """Raise a ValueError about one row of this batch: the message of ``error``, preceded by the number of the row in the
        user's data. ``row`` is its position in this batch, which lacks rows of weight 0.
        """
        raise ValueError(f"row {self.numbers[row]}: {error}") from None


def make_batch(X: Any, y: Any, w: Any, dtype: Any = np.float32) -> FrameBatch:
    """Create a `FrameBatch` of rows, labels and weights from the arguments of ``learn_many``: ``X`` (frame or array), ``y``
    (sequence) and ``w`` (a number or one for each row). Rows of weight 0 are left out. Raises ValueError if X, the length of y,
    or w is invalid.

    The labels or targets themselves are not checked.
    """
    matrix, names, _ = to_matrix(X, dtype)
    n_in_call = matrix.shape[0]
    y, weights = list_labels(y, n_in_call), check_weights(w, n_in_call)
    numbers = np.flatnonzero(weights)
    if len(numbers) < n_in_call:
        matrix, weights, y = matrix[numbers], weights[numbers], [y[i] for i in numbers.tolist()]
    return FrameBatch(matrix, names, y, weights, numbers, n_in_call)


def list_labels(y: Any, n: int) -> list[Any]:
    """Convert the labels or targets ``y`` to a list. Raises ValueError unless y is a one-dimensional sequence of ``n`` items."""
    if hasattr(y, "columns") or getattr(y, "ndim", 1) != 1 or isinstance(y, str | bytes):
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}")
    try:
        values = to_list(y)
    except TypeError:
        raise ValueError(f"y must be a sequence of labels, not a {type(y).__name__}") from None
    if len(values) != n:
        raise ValueError(f"X has {n} rows, y {len(values)}")
    return values


def check_weights(w: Any, n: int) -> np.ndarray:
    """Return the sample weights of ``n`` rows, float64 [n], from one number for all rows or a sequence of n numbers. Raises
    ValueError if a weight is negative, above 1e9 or not finite, or if their number is wrong.
    """
    weights = np.asarray(w)
    if weights.dtype.kind not in "fiub":
        raise ValueError(f"w must be numbers, not {w!r}")
    weights = weights.astype(np.float64)
    if weights.shape not in ((), (n,)):
        raise ValueError(f"w must be a number or {n} of them, as X has {n} rows; it is an array of shape {weights.shape}")
    if not ((weights >= 0.0) & (weights <= LARGEST_WEIGHT)).all():
        raise ValueError(f"w must be finite numbers of at least 0 and at most {LARGEST_WEIGHT:g}")
    return weights if weights.ndim else np.full(n, weights)  # not a read-only view, for which numba would compile again
