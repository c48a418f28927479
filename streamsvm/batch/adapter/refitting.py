"""The schedule of an adapter's fits: when a fit is due, fits in a background thread, and which fitted model predicts."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import clone

from streamsvm.batch.adapter.fit_job import FitJob, ScaledModel
from streamsvm.batch.adapter.windowed import WindowedEstimator, scatter_rows
from streamsvm.core.checks import check_number
from streamsvm.core.frames import make_batch, to_matrix, to_series
from streamsvm.core.threads import allow_stop
from streamsvm.core.warning import collect_warnings, warn


class FitOutcome(NamedTuple):
    """The result of a background fit: a fitted model, an exception, or neither if it was stopped."""

    fit: ScaledModel | None
    error: Exception | None
    warnings: list[tuple[str, type[Warning]]]  # warnings of `streamsvm` that were not issued yet


_STOPPED = FitOutcome(None, None, [])


class BackgroundFit:
    """A fit in a thread of its own. It is stopped when this object is garbage-collected, and when the main thread ends.

    The thread is not a daemon, because the interpreter must not kill it inside compiled code. A model of `streamsvm` stops within
    about a second; the interpreter waits for any other model. ``previous_attempt`` and ``started_at`` are the numbers of rows
    that the adapter had learned when the previous fit was attempted, and when this one was started.
    """

    def __init__(self, job: FitJob, previous_attempt: int, started_at: int) -> None:
        self.n_window: int = len(job.rows.targets)
        self.previous_attempt: int = previous_attempt
        self.started_at: int = started_at
        self._stop_event, self._outcomes = threading.Event(), list[FitOutcome]()
        # The thread has no reference to this object, so that it can be garbage-collected while the thread runs.
        self._thread = threading.Thread(
            target=_run_job, args=(job, self._stop_event, self._outcomes), name="streamsvm-fit", daemon=False
        )
        self._thread.start()

    def __del__(self) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        """Whether the background thread that fits the model is still running."""
        return self._thread.is_alive()

    @property
    def outcome(self) -> FitOutcome:
        """The result of the background fit after its thread has ended: a fitted model or an error. It is an empty result if the
        fit was stopped, or in a process that was forked during the fit.
        """
        return self._outcomes[0] if self._outcomes else _STOPPED

    def wait(self, timeout: float | None) -> None:
        """Wait until this background fit ends, but at most ``timeout`` seconds; None waits without a limit."""
        self._thread.join(timeout)

    def stop(self) -> None:
        """Ask this background fit to stop at the next opportunity, and return immediately."""
        self._stop_event.set()


def _run_job(job: FitJob, stop_event: threading.Event, outcomes: list[FitOutcome]) -> None:
    """Fit the model of ``job`` in the current thread until it ends or ``stop_event`` is set. Append the fitted model, or the
    error, with the warnings of the fit as a `FitOutcome` to the list ``outcomes``.
    """
    with allow_stop(stop_event), collect_warnings() as warnings:
        try:
            outcome = FitOutcome(job.fit_model(), None, warnings)
        except KeyboardInterrupt:
            outcome = _STOPPED
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            outcome = FitOutcome(None, error, warnings)
    outcomes.append(outcome)


@dataclass(eq=False, repr=False)
class RefittingEstimator(WindowedEstimator):
    """A river estimator that refits a batch model to a window; `BatchAdapter` describes the parameters.

    Subclasses define the targets and the predictions.
    """

    _changeable = frozenset({"model", "refit_every", "standardize", "overflow", "background", "calibration_folds"})

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fit: ScaledModel | None = None
        self._background_fit: BackgroundFit | None = None  # None again after its outcome has been used
        self._last_attempt = 0  # rows learned when the last fit was started
        self._fitted_at = 0  # rows learned when the last successful fit was started
        self._has_warned = False  # whether a warning was issued that a due fit cannot be made
        self._n_fits = 0

    # Rows -------------------------------------------------------------------------------------------------------------------

    def learn_one(self, x: Mapping[Any, Any], y: Any, w: float = 1.0) -> None:
        w = self._check_weight(w)
        if w != 0.0:
            self._add_row(x, y, w)
            self._fit_if_due()

    def learn_many(self, X: Any, y: Any, w: Any = 1.0) -> None:
        batch = make_batch(X, y, w)
        rows, targets = self._check_batch(batch)
        start, n = 0, len(rows)
        while start < n:
            stop = n if self.refit_every is None else min(n, start + self._count_rows_to_check())
            self._add_rows(rows[start:stop], targets[start:stop], batch.weights[start:stop])
            start = stop
            try:
                self._fit_if_due()
            except BaseException:  # including an interrupt: no row is lost
                self._add_rows(rows[stop:], targets[stop:], batch.weights[stop:])
                raise

    # Fits -------------------------------------------------------------------------------------------------------------------

    def fit(self) -> Self:
        """Fit the model now, in this thread, to all rows in the window (the last rows of the stream), and return the adapter. A
        fit that runs in the background is stopped.

        Raises
        ------
        ValueError
            The window cannot be fitted, because it is empty, has only one class, or the model raises an error. The adapter then
            keeps its last model.
        """
        if obstacle := self._find_obstacle():
            raise ValueError(f"{obstacle}: there is nothing to fit")
        if self._background_fit is not None:  # it is fitted to older rows
            self._background_fit.stop()
            self._background_fit = None
        self._fit_now()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until the fit that runs in the background ends, but at most ``timeout`` seconds, and use its model for predictions
        from then on. Returns True if no fit is running afterwards.

        You need not call it: the first call that predicts or learns after the end of the fit uses the new model, and if a fit
        fails, the next call that learns warns of it. Only one fit runs at a time. If the next one becomes due meanwhile, it
        starts when the first one ends, with the rows that are then in the window.

        `fit` stops a background fit, and fits immediately. A copy of the adapter, or a saved one, contains the rows and the last
        model but not the running fit, which is due again there. A background fit also stops when the adapter is
        garbage-collected and when the program ends: a model of `streamsvm` within about a second, and the interpreter waits for
        any other. Ctrl-C does not reach the fit. Use the adapter itself from one thread at a time.

        Parameters
        ----------
        timeout
            Maximum number of seconds to wait. None waits until the fit has ended.

        Returns
        -------
        bool
            True if no fit is running.

        Raises
        ------
        Exception
            The first fit failed; the exception is the model's. Failures of later fits cause a RuntimeWarning.
        """
        if timeout is not None:
            check_number("timeout", timeout, 0.0, inclusive=True)
        if self._background_fit is not None:
            self._background_fit.wait(timeout)
        self._use_outcome()
        return self._background_fit is None

    def _find_obstacle(self) -> str | None:
        """Return the reason why the model cannot be fitted to the window (the last rows of the stream), as text for a message,
        such as that it has no rows. Return None if a fit may succeed.
        """
        return None if self.n_window else "the window has no rows"

    @property
    def _current_model_text(self) -> str:
        """A phrase for warnings about a failed fit, such as "the model of 500 rows ago stays", which says how many rows ago the
        model in use was fitted. Empty before the first fit.
        """
        return "" if self._fit is None else f"the model of {self.n_learned - self._fitted_at:,} rows ago stays"

    def _count_rows_to_check(self) -> int:
        """Return the number of rows, at least 1, that can be learned before `_fit_if_due` must be called again. A fit is due
        every ``refit_every`` rows.
        """
        n_left: int = self.refit_every - self.n_since_fit  # type: ignore[operator]
        if n_left > 0:
            return n_left
        return self.refit_every if self.fitting else 1  # type: ignore[return-value]

    def _fit_if_due(self) -> None:
        """Start the next fit of the model if ``refit_every`` rows were learned since the last one, unless a fit is still running
        or the rows cannot be fitted, such as rows of one class. Before that, use the model of a background fit that has ended.
        """
        self._use_outcome()
        if self.refit_every is None or self.n_since_fit < self.refit_every or self._background_fit is not None:
            return
        if obstacle := self._find_obstacle():
            if self._current_model_text and not self._has_warned:
                self._has_warned = True
                warn(f"{obstacle}: {self._current_model_text} until that changes", RuntimeWarning)
            return
        try:
            if self.background:
                n_added = self._window.n_added
                self._background_fit = BackgroundFit(self._make_job(), self._last_attempt, n_added)
                self._last_attempt, self._has_warned = n_added, False
            else:
                self._fit_now()
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            self._report_failure(error, self.n_window)

    def _report_failure(self, error: Exception, n_rows: int) -> None:
        """Warn that a fit to ``n_rows`` rows failed with ``error`` and that the previous model stays in use. Before the first
        successful fit, raise the error instead.
        """
        if not self._current_model_text:
            raise error
        warn(f"the fit of {n_rows:,} rows failed, {self._current_model_text}: {error}", RuntimeWarning)

    def _fit_now(self) -> None:
        """Fit the model to the window (the last rows of the stream) in this thread, wait for the end, and use it for
        predictions.
        """
        self._last_attempt, self._has_warned = self._window.n_added, False
        self._use_fit(self._make_job().fit_model(), self._last_attempt)

    def _use_fit(self, fit: ScaledModel, started_at: int) -> None:
        """Use the newly fitted model ``fit`` for predictions. ``started_at`` is the number of rows that the adapter had learned
        when the fit was started.
        """
        self._fit = fit  # a single assignment: an interrupt before it leaves the last model
        self._n_fits, self._fitted_at = self._n_fits + 1, started_at

    def _use_outcome(self) -> None:
        """If the background fit has ended, use its model for predictions from now on, and issue the warnings of the fit; if the
        fit failed, warn or raise its error. After a fit that was stopped, the next one starts as soon as possible. Does nothing
        while the fit is running.
        """
        background_fit = self._background_fit
        if background_fit is None or background_fit.is_running:
            return
        self._background_fit, (fit, error, warnings) = None, background_fit.outcome
        if fit is not None:
            self._use_fit(fit, background_fit.started_at)
        elif error is None:
            self._last_attempt = background_fit.previous_attempt
        for message, category in warnings:
            warn(message, category)
        if error is not None:
            self._report_failure(error, background_fit.n_window)

    def _get_latest_fit(self) -> ScaledModel | None:
        """Return the last fitted model, or None before the first fit. A background fit that succeeded is used from now on; one
        that failed is reported by the next call that learns.
        """
        if self._background_fit is not None and self._background_fit.outcome.fit is not None:
            self._use_outcome()
        return self._fit

    def _make_job(self) -> FitJob:
        """Return a `FitJob`, which contains all data of one fit: a clone of the model, copies of the rows of the window (the last
        rows of the stream) in order of arrival, and whether to standardise them.
        """
        rows = self._window.copy_rows(len(self._features))
        return FitJob(clone(self.model, safe=False), rows, bool(self.standardize), [], 0)

    # Predictions ------------------------------------------------------------------------------------------------------------

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> Any:
        fit = self._get_latest_fit()
        return self._predict_with(self._prepare_row(x, fit), fit).tolist()[0]

    def _predict_rows(self, X: Any) -> Any:
        """Return the predictions for many rows ``X``, a data frame or an array: a series of the frame's library, or an array."""
        fit = self._get_latest_fit()
        rows, like = self._prepare_rows(X, fit)
        return to_series(self._predict_with(rows, fit), like)

    def _predict_with(self, rows: np.ndarray, fit: ScaledModel | None) -> np.ndarray:
        """Return the predictions [n] of the fitted model ``fit`` for the scaled ``rows`` [n, features]. With None instead of a
        model (before the first fit), they are computed from the targets of the last rows of the stream. Subclasses define it.
        """
        raise NotImplementedError

    def _prepare_row(self, x: Mapping[Any, Any], fit: ScaledModel | None) -> np.ndarray:
        """Convert the row ``x``, a dictionary of feature values, to an array [1, features] for the fitted model ``fit``,
        standardised as in its fit. With None instead of a model (before the first fit), the row is not scaled. Raise a ValueError
        if a value is not finite.
        """
        row = self._fill_row(x, False)[np.newaxis]
        return row if fit is None else fit.scale_rows(row)

    def _prepare_rows(self, X: Any, fit: ScaledModel | None) -> tuple[np.ndarray, Any]:
        """Convert many rows ``X``, a data frame or an array, to an array [n, features] for the fitted model ``fit``, standardised
        as in its fit. Return it with ``X`` if that is a data frame, so that predictions can have the same type, otherwise with
        None.
        """
        matrix, names, like = to_matrix(X)
        columns = self._features.find_columns(names, False)
        rows = scatter_rows(matrix, names, columns, len(self._features), np.arange(matrix.shape[0]))
        return rows if fit is None else fit.scale_rows(rows), like

    # Attributes -------------------------------------------------------------------------------------------------------------

    @property
    def fitted_(self) -> Any:
        """The model of the last successful fit, with scikit-learn's methods; None before the first fit."""
        return None if self._fit is None else self._fit.model

    @property
    def mean(self) -> np.ndarray | None:
        """The mean of each feature in the last fit, which is subtracted from rows, float64 [features at the fit]. None before the
        first fit.
        """
        return None if self._fit is None else self._fit.mean.copy()

    @property
    def scale(self) -> np.ndarray | None:
        """The standard deviation of each feature in the last fit, the divisor of rows in standardisation, float64 [features at
        the fit]. None before the first fit.
        """
        return None if self._fit is None else self._fit.scale.copy()

    @property
    def n_fits(self) -> int:
        """The number of successful fits of this adapter so far."""
        return self._n_fits

    @property
    def fitting(self) -> bool:
        """Whether a fit of this adapter is running in a background thread."""
        return self._background_fit is not None and self._background_fit.is_running

    @property
    def n_since_fit(self) -> int:
        """The number of rows that were learned since the last fit was started."""
        return self._window.n_added - self._last_attempt

    # Saved adapters ---------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        fit = self._get_latest_fit()
        running = self._background_fit  # it is not saved, but due again
        last_attempt = self._last_attempt if running is None else running.previous_attempt
        return {
            "parameters": self._get_params(),
            "features": self.feature_names,
            "window": self._window.snapshot(len(self._features)),
            "fit": None if fit is None else tuple(fit),
            "counts": (last_attempt, self._fitted_at, self._n_fits),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["parameters"])  # type: ignore[misc]
        self._features.restore(state["features"])
        self._window.restore(state["window"], len(self._features))
        self._last_attempt, self._fitted_at, self._n_fits = state["counts"]
        if state["fit"] is not None:
            self._fit = ScaledModel.from_saved(state["fit"], len(self._features))
