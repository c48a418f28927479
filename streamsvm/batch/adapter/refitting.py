"""An adapter's window, its schedule of fits, and the columns of its features."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.utils.validation import has_fit_parameter

from streamsvm._options import Overflow
from streamsvm._warnings import warn
from streamsvm.batch.adapter.collect import collect, without_label
from streamsvm.batch.adapter.fit import Fit
from streamsvm.batch.adapter.window import Rows, Window, placed
from streamsvm.checks import check_number, check_parameters, checked_weight, parameter
from streamsvm.frames import Batch, as_batch, as_matrix
from streamsvm.memory.features import OVERFLOW, FeatureSpace
from streamsvm.river_base import SupervisedEstimator

__all__ = ["Refitting"]


@dataclass(eq=False, repr=False)
class Refitting(SupervisedEstimator):
    """A river estimator that refits a batch model to a window; `BatchAdapter` describes the parameters.

    A class below this one says what targets are, and how the model is fitted.
    """

    model: Any
    window: int = parameter(default=10_000, least=2, high=2**31, integer=True)
    refit_every: int | None = 1_000
    standardize: bool = True
    max_features: int = parameter(default=256, least=1, high=2**20, integer=True)
    overflow: Overflow = parameter(default="raise", choices=OVERFLOW)

    def __post_init__(self) -> None:
        check_parameters(self)
        if self.refit_every is not None:
            check_number("refit_every", self.refit_every, 1, inclusive=True, integer=True)
        if not isinstance(self.standardize, bool | np.bool_):
            raise ValueError(f"standardize must be True or False, not {self.standardize!r}")
        self._weighted = has_fit_parameter(self.model, "sample_weight")
        self._window = Window(self.window, self.max_features)
        self._features = FeatureSpace(self.max_features, self.overflow)
        self._row = np.zeros(self.max_features, np.float32)
        self._fit: Fit | None = None
        self._attempted = 0  # rows learned when a fit was last tried
        self._fitted_at = 0  # rows learned when a fit last succeeded
        self._warned = False  # whether a warning has said that the fit that is due must wait
        self._n_fits = 0

    # Rows -------------------------------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Hashable, Any], y: Any, w: float = 1.0) -> None:
        w = self._checked_weight(w)
        if w != 0.0:
            self._put_one(x, y, w)
            self._fit_if_due()

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        batch = as_batch(X, y, w)
        rows, targets = self._admitted(batch)
        begin, n = 0, len(rows)
        while begin < n:
            end = n if self.refit_every is None else min(n, begin + max(self.refit_every - self.n_since_fit, 1))
            self._put(rows[begin:end], targets[begin:end], batch.weights[begin:end])
            begin = end
            try:
                self._fit_if_due()
            except BaseException:  # an interrupt as well: no row is lost
                self._put(rows[end:], targets[end:], batch.weights[end:])
                raise

    def collect(
        self,
        source: Any,
        y: Any = None,
        *,
        label: str | None = None,
        format: str | None = None,  # noqa: A002
        limit: int | None = None,
    ) -> int:
        """Put the rows of a source into the window, without fitting. All of it is read, and the last ``window`` rows stay.

        Parameters
        ----------
        source
            With ``y``: a frame or array as `learn_many` takes it. With ``label``: a frame too. Else a path (CSV, JSON lines,
            LIBSVM text; ``.gz`` too) or URL as the command line takes it, read up to its present end; pairs (x, y), as of a river
            dataset; or a source of `streamsvm.runtime`, which stays open.
        y
            The labels or targets of a frame or array.
        label
            Name of the label, for a path, a URL, or a frame without ``y``.
        format
            ``"csv"``, ``"jsonl"`` or ``"libsvm"``, if the name of a file does not say it.
        limit
            Rows with a label, at most. Rows without one are passed over.

        Returns
        -------
        int
            The number of rows that were put in.

        Raises
        ------
        StreamError
            The source cannot be read or a row is refused: the message says where. The rows before it are in the window.
        ValueError
            A row of a frame or array is refused (none is in the window then), or ``source`` is of no type that can be read.
        """
        if limit is not None:
            check_number("limit", limit, 0, inclusive=True, integer=True)
        before = self.n_learned
        w: Any = 1.0
        if y is None and label is not None and hasattr(source, "columns"):
            source, y, w = without_label(source, label)
        if y is not None:
            batch = as_batch(source, y, w)
            batch = batch._replace(matrix=batch.matrix[:limit], y=batch.y[:limit], weights=batch.weights[:limit])
            self._put(*self._admitted(batch), batch.weights)
        else:
            collect(source, label, format, limit, lambda x, y: self._put_one(x, y, 1.0))
        return self.n_learned - before

    def _target(self, y: Any) -> float:
        """Return the number that the window holds for a label or target; raise a ValueError where it is neither."""
        raise NotImplementedError

    def _known(self) -> tuple[int, ...]:
        """Return the numbers of names known, for `_forget`."""
        return (len(self._features),)

    def _forget(self, known: tuple[int, ...]) -> None:
        """Forget the names that a refused row has brought."""
        self._features.forget(known[0])

    def _checked_weight(self, w: Any) -> float:
        if w == 1.0:
            return 1.0
        w = checked_weight(w)
        if w not in (0.0, 1.0) and not self._weighted:
            raise ValueError(f"w must be 1 or 0, for {type(self.model).__name__} takes no sample_weight; it is {w!r}")
        return w

    def _put_one(self, x: Mapping[Hashable, Any], y: Any, w: float) -> None:
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
            return placed(batch.matrix, batch.names, columns, len(self._features), batch.numbers), targets
        except BaseException:
            self._forget(known)
            raise

    def _put(self, X: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Put rows into the window; see `Window.put`."""
        return self._window.put(X, targets, weights)

    def _filled(self, x: Mapping[Hashable, Any], learn: bool) -> np.ndarray:
        """Return a row by its columns, float32 [columns in use]: a view, which the next row overwrites."""
        self._features.fill(self._row, x, learn)
        row = self._row[: len(self._features)]
        if not np.isfinite(row).all():
            self._features.complain_not_finite(x)
        return row

    # Fits -------------------------------------------------------------------------------------------------------------------

    def fit(
        self,
        source: Any = None,
        y: Any = None,
        *,
        label: str | None = None,
        format: str | None = None,  # noqa: A002
        limit: int | None = None,
    ) -> Self:
        """Fit now, on all rows of the window.

        Parameters
        ----------
        source, y, label, format, limit
            Rows that are put into the window first, as in `collect`.

        Returns
        -------
        The adapter.

        Raises
        ------
        ValueError
            The window cannot be fitted: it is empty, has one class, or the model says why. The model is as it was, and rows that
            were collected stay.
        StreamError
            As `collect`.
        """
        if source is not None:
            self.collect(source, y, label=label, format=format, limit=limit)
        self._refit()
        return self

    def _obstacle(self) -> str | None:
        """Return why the window cannot be fitted, if that is known without trying."""
        return None if self.n_window else "the window has no rows"

    def _fit_if_due(self) -> None:
        if self.refit_every is None or self.n_since_fit < self.refit_every:
            return
        last = "" if self._fit is None else f"the model of {self.n_learned - self._fitted_at:,} rows ago stays"
        if obstacle := self._obstacle():
            if last and not self._warned:
                self._warned = True
                warn(f"{obstacle}: {last} until that changes", RuntimeWarning)
            return
        try:
            self._refit()
        except Exception as error:  # a model may raise anything
            if not last:
                raise
            warn(f"the fit of {self.n_window:,} rows failed, {last}: {error}", RuntimeWarning)

    def _refit(self) -> None:
        if obstacle := self._obstacle():
            raise ValueError(f"{obstacle}: there is nothing to fit")
        self._attempted, self._warned = self._window.n_put, False
        rows = self._window.ordered(len(self._features))
        mean, scale = np.zeros(rows.X.shape[1]), np.ones(rows.X.shape[1])
        if self.standardize:
            mean = np.average(rows.X, axis=0, weights=rows.weights)
            varies = rows.X.min(axis=0) < rows.X.max(axis=0)  # the deviation of equal values may not be computed as 0
            deviation = np.sqrt(np.average((rows.X - mean) ** 2, axis=0, weights=rows.weights))
            scale[varies] = deviation[varies]
            rows = rows._replace(X=(rows.X - mean) / scale)
        self._fit = self._fitted(rows, mean, scale)  # one assignment: an interrupt before it leaves the last fit
        self._n_fits, self._fitted_at = self._n_fits + 1, self._attempted

    def _fitted(self, rows: Rows, mean: np.ndarray, scale: np.ndarray) -> Fit:
        raise NotImplementedError

    def _trained(self, X: np.ndarray, y: np.ndarray, weights: np.ndarray) -> Any:
        """Return a clone of the model, fitted."""
        model = clone(self.model, safe=False)
        weighted = {} if (weights == 1.0).all() else {"sample_weight": weights}
        return model.fit(X, y, **weighted)

    # Predictions ------------------------------------------------------------------------------------------------------------

    def _row_of(self, x: Mapping[Hashable, Any], fit: Fit | None) -> np.ndarray:
        """Return a row as the model takes it, float64 [1, features when it was fitted]; checked even before the first fit."""
        row = self._filled(x, False)[np.newaxis]
        return row if fit is None else fit.scaled(row)

    def _rows_of(self, X: Any, fit: Fit | None) -> tuple[np.ndarray, Any]:
        """Return rows as the model takes them, and the frame that answers are made like (None for an array)."""
        matrix, names, like = as_matrix(X)
        columns = self._features.columns_of(names, False)
        rows = placed(matrix, names, columns, len(self._features), np.arange(len(matrix)))
        return rows if fit is None else fit.scaled(rows), like

    # Attributes -------------------------------------------------------------------------------------------------------------

    @property
    def fitted_(self) -> Any:
        """The last good model; None before the first fit."""
        return None if self._fit is None else self._fit.model

    @property
    def mean(self) -> np.ndarray | None:
        """float64 [features when the model was fitted]: subtracted from the features; None before the first fit."""
        return None if self._fit is None else self._fit.mean.copy()

    @property
    def scale(self) -> np.ndarray | None:
        """float64 [features when the model was fitted]: divides the features; None before the first fit."""
        return None if self._fit is None else self._fit.scale.copy()

    @property
    def feature_names(self) -> list[Hashable]:
        """The features seen, in the order of the model's columns."""
        return self._features.names

    @property
    def n_fits(self) -> int:
        """Number of fits that succeeded."""
        return self._n_fits

    @property
    def n_window(self) -> int:
        """Rows in the window."""
        return len(self._window)

    @property
    def n_learned(self) -> int:
        """Rows put into the window so far (those of weight 0 do not count)."""
        return self._window.n_put

    @property
    def n_since_fit(self) -> int:
        """Rows since a fit was last tried."""
        return self._window.n_put - self._attempted

    @property
    def nbytes(self) -> int:
        """Bytes of the window, constant from construction: ``window * (4 * max_features + 16)``."""
        return self._window.nbytes

    # Saved adapters ---------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        return {
            "parameters": self._get_params(),
            "features": self.feature_names,
            "window": self._window.snapshot(len(self._features)),
            "fit": None if self._fit is None else tuple(self._fit),
            "counts": (self._attempted, self._fitted_at, self._n_fits),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["parameters"])  # type: ignore[misc]
        self._features.restore(state["features"])
        self._window.restore(state["window"], len(self._features))
        self._attempted, self._fitted_at, self._n_fits = counts = state["counts"]
        if not all(isinstance(count, int) for count in counts) or not (
            0 <= self._fitted_at <= self._attempted <= self.n_learned and self._n_fits >= 0
        ):
            raise ValueError(f"the saved adapter is corrupt: {self._n_fits} fits, the last tried after {self._attempted} rows")
        if state["fit"] is not None:
            self._fit = Fit.restored(state["fit"], type(self.model), len(self._features))
