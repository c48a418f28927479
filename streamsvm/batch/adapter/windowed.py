"""An adapter's window: the last rows of a stream in arrays of a fixed size, and the sources, pairs and frames they come from."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from river.utils import dataframe
from sklearn.utils.validation import has_fit_parameter

from streamsvm.core.checks import LARGEST_WEIGHT, Overflow, check_number, check_parameters, checked_weight, parameter
from streamsvm.core.frames import Batch, as_batch
from streamsvm.core.memory.features import OVERFLOW, FeatureSpace
from streamsvm.core.sparse import Matrix, dense, in_columns
from streamsvm.learners.river_base import SupervisedEstimator


class Rows(NamedTuple):
    """Copies of the n rows of a window, the oldest first."""

    X: np.ndarray  # float32 [n, columns]
    targets: np.ndarray  # float64 [n]
    weights: np.ndarray  # float64 [n]


class Window:
    """A ring of the last ``size`` rows of up to so many columns, with their targets and weights; ``n_put`` were put in so far.

    A ValueError says where they do not fit into memory.

    >>> window = Window(size=2, columns=1)
    >>> for value in (1.0, 2.0, 3.0):
    ...     gone = window.put(np.array([[value]], np.float32), np.array([0.0]), np.array([1.0]))
    >>> window.ordered(columns=1).X.ravel()
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
        self.n_put: int = 0

    def __len__(self) -> int:
        return min(self.n_put, len(self._X))

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays: ``size * (4 * columns + 16)``."""
        return self._X.nbytes + self._targets.nbytes + self._weights.nbytes

    @property
    def targets(self) -> np.ndarray:
        """float64 [rows in the window], in no particular order; a view."""
        return self._targets[: len(self)]

    def put(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Put in rows float32 [n, columns in use or fewer]; return the targets of those they replace, float64. O(n d).

        The columns in use may only become more.
        """
        size, n = len(self._X), len(X)
        skipped = max(n - size, 0)  # rows that others of the batch would replace
        places = (self.n_put + np.arange(skipped, n)) % size
        gone = self._targets[places[places < len(self)]]
        self._X[places, : X.shape[1]] = X[skipped:]
        self._targets[places] = targets[skipped:]
        self._weights[places] = weights[skipped:]
        self.n_put += n
        return gone

    def ordered(self, columns: int) -> Rows:
        """Return all rows with their first ``columns`` columns. O(n d)."""
        n = len(self)
        oldest = self.n_put % n if n == len(self._X) else 0
        parts = slice(oldest, n), slice(0, oldest)
        return Rows(
            *(np.concatenate([of[part] for part in parts]) for of in (self._X[:, :columns], self._targets, self._weights))
        )

    def snapshot(self, columns: int) -> tuple[Any, ...]:
        n = len(self)
        return self.n_put, self._X[:n, :columns].copy(), self._targets[:n].copy(), self._weights[:n].copy()

    def restore(self, snapshot: Any, columns: int) -> None:
        """Take back a `snapshot` into a window without rows; ValueError where it is of another size, or corrupt."""
        n_put, X, targets, weights = snapshot
        if not isinstance(n_put, int) or n_put < 0:
            raise ValueError(f"the saved window is corrupt: {n_put!r} is no number of rows")
        n = min(n_put, len(self._X))
        for values, dtype, shape in ((X, np.float32, (n, columns)), (targets, np.float64, (n,)), (weights, np.float64, (n,))):
            array = isinstance(values, np.ndarray) and values.dtype == dtype and values.shape == shape
            if not array or not np.isfinite(values).all():
                raise ValueError(f"the saved window is corrupt: an array is not finite {np.dtype(dtype)} {list(shape)}")
        if not ((weights > 0.0) & (weights <= LARGEST_WEIGHT)).all():
            raise ValueError(f"the saved window is corrupt: a weight is not above 0 and at most {LARGEST_WEIGHT:g}")
        self._X[:n, :columns], self._targets[:n], self._weights[:n] = X, targets, weights
        self.n_put = n_put


def placed_rows(matrix: Matrix, names: list[Hashable], columns: np.ndarray, width: int, numbers: np.ndarray) -> np.ndarray:
    """Return rows float32 [n, features] with each feature in its column (-1: none), float32 [n, width]. Those of one add up.

    Where a value is not finite, a ValueError names the feature, and the row by its element of ``numbers``.
    """
    out = in_columns(matrix, columns, width, np.float32)
    refused = np.flatnonzero(~np.isfinite(out).all(axis=1))
    if len(refused):
        row = refused[0]
        try:
            FeatureSpace(1, "ignore").complain_of_row(dict(zip(names, dense(matrix[row : row + 1])[0].tolist(), strict=True)))
        except ValueError as error:
            raise ValueError(f"row {numbers[row]}: {error}") from None
    return out


def collect(
    source: Any,
    label: str | None,
    format: str | None,  # noqa: A002
    limit: int | None,
    learn: Callable[[Any, Any], None],
) -> None:
    """Give the first ``limit`` rows of a source that have a label to ``learn``; StreamError if it has none, or cannot be read."""
    from streamsvm.stream import BadRow, IterableSource, Source, StreamError, open_source  # noqa: PLC0415 - imports river's metrics

    if isinstance(source, np.ndarray) or is_frame(source) or not isinstance(source, str | Path | Source | Iterable):
        raise ValueError(
            "rows come from a frame or array with y, a frame with label=, a path, a URL, or pairs (x, y), not from a "
            f"{type(source).__name__} alone"
        )
    opened = None
    if isinstance(source, str | Path):
        source = opened = open_source(str(source), label=label, format=format, stop_at_end=True)
    elif not isinstance(source, Source):
        source = IterableSource(_labelled_pairs(source), type(source).__name__)
    read = learned = 0
    try:
        while learned != limit and (chunk := source.read(1)) is not None:
            for row in map(chunk.row, range(len(chunk))):
                if isinstance(row, BadRow):
                    raise StreamError(f"{row.place}: {row.reason}")
                read += 1
                if row.y is not None:
                    try:
                        learn(*row)
                    except ValueError as error:
                        raise StreamError(f"{chunk.place(0)}: {error}") from error
                    learned += 1
        if read and not learned:
            advice = "" if opened is None else ": give label=, its name" if label is None else f". Is label={label!r} its name?"
            raise StreamError(f"{source.name} has no label in any of its {read:,} rows{advice}")
    finally:
        if opened is not None:
            opened.close()


def is_frame(source: Any) -> bool:
    """Whether rows come from a frame, which has columns, and no stream, which has them too."""
    return hasattr(source, "columns") and not hasattr(source, "seek")


def without_label(frame: Any, label: str) -> tuple[Any, list[Any], np.ndarray]:
    """Return a frame without the column ``label``, that column, and a weight for each row: 0 where the label is missing, or 1."""
    try:
        whole = dataframe.into_frame(frame)
    except TypeError:
        raise ValueError(f"rows come from an eager frame, not from a {type(frame).__name__}") from None
    if label not in whole.columns:
        raise ValueError(f"the frame has no column {label!r} for the label. It has: {', '.join(map(str, whole.columns))}")
    labels = whole[label]
    return whole.drop(label).to_native(), labels.to_list(), 1.0 - labels.is_null().to_numpy()


def _labelled_pairs(rows: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    for number, row in enumerate(rows):
        if not isinstance(row, tuple | list) or len(row) != 2:
            raise ValueError(f"row {number} is not a pair (x, y)")
        yield row[0], row[1]


@dataclass(eq=False, repr=False)
class Windowed(SupervisedEstimator):
    """A river estimator that keeps the last rows of a stream; `BatchAdapter` describes the parameters.

    A class below this one says what targets are, and what is done with the rows.
    """

    model: Any
    window: int = parameter(default=10_000, least=2, high=2**31, integer=True)
    refit_every: int | None = 1_000
    standardize: bool = True
    max_features: int = parameter(default=256, least=1, high=2**20, integer=True)
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW)
    background: bool = False

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.refit_every is not None:
            check_number("refit_every", self.refit_every, 1, inclusive=True, integer=True)
        for name in ("standardize", "background"):
            if not isinstance(value := getattr(self, name), bool | np.bool_):
                raise ValueError(f"{name} must be True or False, not {value!r}")
        self._weighted = has_fit_parameter(self.model, "sample_weight")
        self._window = Window(self.window, self.max_features)
        self._features = FeatureSpace(self.max_features, self.overflow)
        self._row = np.zeros(self.max_features, np.float32)

    # Rows to learn -----------------------------------------------------------------------------------------------------------

    def collect(
        self,
        source: Any,
        y: Any = None,
        *,
        label: str | None = None,
        format: str | None = None,  # noqa: A002
        limit: int | None = None,
    ) -> int:
        """Put the rows of a source into the window, without fitting.

        The whole source is read, and the last ``window`` rows stay.

        Parameters
        ----------
        source
            One of these:

            - A frame or an array, with ``y``, as in `learn_many`.
            - A frame that has the labels in the column ``label``.
            - A path (CSV, JSON lines or LIBSVM text, also with ``.gz``) or a URL, as on the command line. It is read up to its
              present end.
            - Pairs (x, y), such as a river dataset.
            - A source of `streamsvm.stream`, which stays open.
        y
            Labels or targets of a frame or an array.
        label
            Name of the label, for a path, a URL, or a frame without ``y``.
        format
            ``"csv"``, ``"jsonl"`` or ``"libsvm"``, if the name of the file does not say it.
        limit
            Maximum number of rows with a label. Rows without a label are skipped. None sets no limit.

        Returns
        -------
        int
            The number of rows put into the window.

        Raises
        ------
        StreamError
            The source cannot be read or a row is refused; the message says where. The rows before it are in the window.
        ValueError
            A row of a frame or array is refused, and no row of it is in the window; or ``source`` is of a type that cannot be
            read.
        """
        if limit is not None:
            check_number("limit", limit, 0, inclusive=True, integer=True)
        before = self.n_learned
        w: Any = 1.0
        if y is None and label is not None and is_frame(source):
            source, y, w = without_label(source, label)
        if y is not None:
            batch = as_batch(source, y, w)
            batch = batch._replace(matrix=batch.matrix[:limit], y=batch.y[:limit], weights=batch.weights[:limit])
            self._put(*self._admitted(batch), batch.weights)
        else:
            collect(source, label, format, limit, lambda x, y: self._put_one(x, y, 1.0))
        return self.n_learned - before

    def _target(self, y: Any) -> float:
        """Return the number that the window holds for a label or target; ValueError where it is neither."""
        raise NotImplementedError

    def _known(self) -> tuple[int, ...]:
        """Return the numbers of names known, for `_forget`."""
        return (len(self._features),)

    def _forget(self, known: tuple[int, ...]) -> None:
        self._features.forget(known[0])

    def _checked_weight(self, w: Any) -> float:
        if w == 1.0:
            return 1.0
        w = checked_weight(w)
        if w not in (0.0, 1.0) and not self._weighted:
            raise ValueError(f"w must be 1 or 0, for {type(self.model).__name__} takes no sample_weight; it is {w!r}")
        return w

    def _put_one(self, x: Mapping[Any, Any], y: Any, w: float) -> None:
        known = self._known()
        try:
            target = self._target(y)
            row = self._filled(x, True)
        except BaseException:  # an interrupt as well
            self._forget(known)
            raise
        self._put(row[np.newaxis], np.array([target]), np.array([w]))

    def _admitted(self, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
        """Return the rows of a batch, float32 [n, columns in use], and their targets, if all of them can be learned."""
        known = self._known()
        targets = np.empty(len(batch.y))
        try:
            for i, (y, w) in enumerate(zip(batch.y, batch.weights.tolist(), strict=True)):
                try:
                    targets[i] = self._target(y)
                    self._checked_weight(w)
                except ValueError as error:
                    batch.complain(i, error)
            columns = self._features.columns_of(batch.names, len(targets) > 0)
            return placed_rows(batch.matrix, batch.names, columns, len(self._features), batch.numbers), targets
        except BaseException:
            self._forget(known)
            raise

    def _put(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        return self._window.put(X, targets, weights)

    def _filled(self, x: Mapping[Any, Any], learn: bool) -> np.ndarray:
        """Return a row by its columns, float32 [columns in use]: a view, which the next row overwrites."""
        self._features.fill(self._row, x, learn)
        row = self._row[: len(self._features)]
        if not np.isfinite(row).all():
            self._features.complain_of_row(x)
        return row

    # Attributes --------------------------------------------------------------------------------------------------------------

    @property
    def feature_names(self) -> list[Hashable]:
        """The features seen so far, in the order of the model's columns."""
        return self._features.names

    @property
    def n_window(self) -> int:
        """Number of rows in the window."""
        return len(self._window)

    @property
    def n_learned(self) -> int:
        """Number of rows put into the window so far. Rows of weight 0 do not count."""
        return self._window.n_put

    @property
    def nbytes(self) -> int:
        """Bytes of the window, ``window * (4 * max_features + 16)``; they never change."""
        return self._window.nbytes
