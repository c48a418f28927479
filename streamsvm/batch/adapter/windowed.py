"""The window of an adapter: a ring buffer of the last rows of a stream."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import has_fit_parameter

from streamsvm.core.checks import Overflow, check_number, check_parameters, parameter, validate_weight
from streamsvm.core.frames import FrameBatch
from streamsvm.core.memory.features import OVERFLOW_POLICIES, FeatureSpace
from streamsvm.core.sparse import Matrix, scatter_columns, to_dense
from streamsvm.learners.river_base import SupervisedEstimator


class OrderedRows(NamedTuple):
    """Copies of the n rows of a window in order of arrival, the oldest first."""

    X: np.ndarray  # float32 [n, columns]
    targets: np.ndarray  # float64 [n]
    weights: np.ndarray  # float64 [n]


class RowRingBuffer:
    """A ring buffer of the last ``size`` rows, with targets and weights. ``n_added`` counts all rows ever added.

    Raises a ValueError if the arrays, with this number of ``columns``, do not fit into memory.

    >>> window = RowRingBuffer(size=2, columns=1)
    >>> for value in (1.0, 2.0, 3.0):
    ...     replaced = window.add_rows(np.array([[value]], np.float32), np.array([0.0]), np.array([1.0]))
    >>> window.copy_rows(columns=1).X.ravel()
    array([2., 3.], dtype=float32)
    """

    def __init__(self, size: int, columns: int) -> None:
        try:
            self._X = np.zeros((size, columns), np.float32)
            self._targets = np.zeros(size)
            self._weights = np.zeros(size)
        except (MemoryError, ValueError) as error:
            raise ValueError(
                f"window={size:,} and max_features={columns:,} need {size * (4 * columns + 16):,} bytes, "
                "more than this machine has: lower one of them"
            ) from error
        self.n_added: int = 0

    def __len__(self) -> int:
        return min(self.n_added, len(self._X))

    @property
    def nbytes(self) -> int:
        """Bytes of this ring buffer's arrays: ``size * (4 * columns + 16)`` for ``size`` rows."""
        return self._X.nbytes + self._targets.nbytes + self._weights.nbytes

    @property
    def targets(self) -> np.ndarray:
        """The targets of the n rows in the buffer, float64 [n], in no particular order. It is a view, which changes when rows are
        added.
        """
        return self._targets[: len(self)]

    def add_rows(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Add rows ``X`` float32 [n, columns], with targets and weights [n], to the ring buffer; if it is full, they replace the
        oldest rows. Return the targets of the replaced rows, float64. O(n d).

        The number of columns may grow from call to call, but must not decrease.
        """
        size, n = len(self._X), len(X)
        n_skipped = max(n - size, 0)  # later rows of the same call would replace them
        slots = (self.n_added + np.arange(n_skipped, n)) % size
        replaced = self._targets[slots[slots < len(self)]]
        self._X[slots, : X.shape[1]] = X[n_skipped:]
        self._targets[slots] = targets[n_skipped:]
        self._weights[slots] = weights[n_skipped:]
        self.n_added += n
        return replaced

    def copy_rows(self, columns: int) -> OrderedRows:
        """Return copies of all rows in the buffer, with their targets and weights, from the oldest to the newest. Only the first
        ``columns`` columns are copied. O(n d).
        """
        n = len(self)
        oldest = self.n_added % n if n == len(self._X) else 0
        parts = slice(oldest, n), slice(0, oldest)
        arrays = self._X[:, :columns], self._targets, self._weights
        return OrderedRows(*(np.concatenate([array[part] for part in parts]) for array in arrays))

    def snapshot(self, columns: int) -> tuple[Any, ...]:
        """Return the buffer's contents to be saved, as a tuple: the number of rows ever added, and copies of the rows (their
        first ``columns`` columns), targets and weights.
        """
        n = len(self)
        return self.n_added, self._X[:n, :columns].copy(), self._targets[:n].copy(), self._weights[:n].copy()

    def restore(self, snapshot: Any, columns: int) -> None:
        """Fill this empty ring buffer with the rows, targets and weights of ``snapshot``, a tuple that the method `snapshot` of a
        buffer of the same size returned. ``columns`` is the number of columns that were saved.
        """
        self.n_added, X, targets, weights = snapshot
        n = len(self)
        self._X[:n, :columns], self._targets[:n], self._weights[:n] = X, targets, weights


def scatter_rows(matrix: Matrix, names: list[Hashable], columns: np.ndarray, width: int, numbers: np.ndarray) -> np.ndarray:
    """Rearrange the features of all rows in ``matrix`` [n, features]: feature j moves to column ``columns[j]``, or is dropped if
    that is -1. Return the rows as float32 [n, width]. Raise a ValueError if a value is not finite; ``names`` (of features) and
    ``numbers`` (of rows) are for its message.

    Values in the same column are added. Raises a ValueError if a value is not finite; it names the feature, and the row by its
    element of ``numbers``.
    """
    out = scatter_columns(matrix, columns, width, np.float32)
    refused = np.flatnonzero(~np.isfinite(out).all(axis=1))
    if len(refused):
        row = refused[0]
        FeatureSpace.raise_for_numbers(to_dense(matrix[row : row + 1])[0], names, int(numbers[row]))
    return out


@dataclass(eq=False, repr=False)
class WindowedEstimator(SupervisedEstimator):
    """A river estimator that stores the last rows of a stream in a window; `BatchAdapter` describes the parameters.

    Subclasses define the targets, and use the rows.
    """

    model: Any
    window: int = parameter(default=10_000, least=2, high=2**31, integer=True)
    refit_every: int | None = 1_000
    standardize: bool = True
    max_features: int = parameter(default=256, least=1, high=2**20, integer=True)
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW_POLICIES)
    background: bool = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.refit_every is not None:
            check_number("refit_every", self.refit_every, 1, inclusive=True, integer=True)
        for name in ("standardize", "background"):
            if not isinstance(value := getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name} must be True or False, not {value!r}")
        self._accepts_weights = has_fit_parameter(self.model, "sample_weight")
        self._window = RowRingBuffer(self.window, self.max_features)
        self._features = FeatureSpace(self.max_features, self.overflow)
        self._row = np.zeros(self.max_features, np.float32)

    # Rows to learn -----------------------------------------------------------------------------------------------------------

    def _encode_target(self, y: Any) -> float:
        """Return the label or target ``y`` as the float that the window (the last rows of the stream) stores. Raise a ValueError
        if it is invalid. Subclasses define it.
        """
        raise NotImplementedError

    def _count_names(self) -> tuple[int, ...]:
        """Return the numbers of feature names, and in classifiers of labels, that this adapter has seen so far, to undo additions
        with `_forget_names`.
        """
        return (len(self._features),)

    def _forget_names(self, counts: tuple[int, ...]) -> None:
        """Remove the feature names that this adapter added after `_count_names` returned ``counts``, because the row that they
        came from was invalid.
        """
        self._features.forget_names(counts[0])

    def _check_weight(self, w: Any) -> float:
        """Return the weight ``w`` of a row as float. Raise a ValueError if it is negative or not finite, or if it is neither 0
        nor 1 and the model's ``fit`` does not accept weights.
        """
        if w == 1.0:
            return 1.0
        w = validate_weight(w)
        if w not in (0.0, 1.0) and not self._accepts_weights:
            raise ValueError(f"w must be 1 or 0, because {type(self.model).__name__} takes no sample_weight; it is {w!r}")
        return w

    def _add_row(self, x: Mapping[Any, Any], y: Any, w: float) -> None:
        """Add the row ``x``, a dictionary of feature values, with label or target ``y`` and weight ``w`` to the window (the last
        rows of the stream). If it is invalid, remove the feature names and labels that it added, and raise the error.
        """
        counts = self._count_names()
        try:
            target = self._encode_target(y)
            row = self._fill_row(x, True)
        except BaseException:  # including an interrupt
            self._forget_names(counts)
            raise
        self._add_rows(row[np.newaxis], np.array([target]), np.array([w]))

    def _check_batch(self, batch: FrameBatch) -> tuple[np.ndarray, np.ndarray]:
        """Check all rows of ``batch`` (rows, labels and weights of one call), and return the rows as float32 [n, features] with
        their targets float64 [n]. If one is invalid, remove the names that the batch added, and raise an error that names the
        row.
        """
        counts = self._count_names()
        targets = np.empty(len(batch.y))
        try:
            for i, (y, w) in enumerate(zip(batch.y, batch.weights.tolist(), strict=True)):
                try:
                    targets[i] = self._encode_target(y)
                    self._check_weight(w)
                except ValueError as error:
                    batch.raise_for_row(i, error)
            columns = self._features.find_columns(batch.names, len(targets) > 0)
            return scatter_rows(batch.matrix, batch.names, columns, len(self._features), batch.numbers), targets
        except BaseException:
            self._forget_names(counts)
            raise

    def _add_rows(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Add valid rows ``X`` float32 [n, features], with their targets and weights [n], to the window (the last rows of the
        stream). Return the targets of the rows that leave it, float64.
        """
        return self._window.add_rows(X, targets, weights)

    def _fill_row(self, x: Mapping[Any, Any], learn: bool) -> np.ndarray:
        """Convert the row ``x``, a dictionary of feature values, to float32 [features], in the order of the model's columns. New
        names get a column if ``learn`` is True. The array is a view, which the next call overwrites.

        New feature names get a column if ``learn`` is True. Raises a ValueError if a value is not finite.
        """
        self._features.fill_row(self._row, x, learn)
        row = self._row[: len(self._features)]
        if not np.isfinite(row).all():
            self._features.raise_for_row(x)
        return row

    # Attributes --------------------------------------------------------------------------------------------------------------

    @property
    def feature_names(self) -> list[Hashable]:
        """The names of the features seen so far, as a list in the order of the model's columns."""
        return self._features.names

    @property
    def n_window(self) -> int:
        """The number of rows in the window (the last rows of the stream), at most the parameter ``window``."""
        return len(self._window)

    @property
    def n_learned(self) -> int:
        """The number of rows that were learned so far, including rows that have left the window. Rows of weight 0 are not
        counted.
        """
        return self._window.n_added

    @property
    def nbytes(self) -> int:
        """The bytes of the window (the last rows of the stream), ``window * (4 * max_features + 16)``, which are constant."""
        return self._window.nbytes
