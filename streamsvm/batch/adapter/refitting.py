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
        """Whether the thread has not ended yet."""
        return self._thread.is_alive()

    @property
    def outcome(self) -> FitOutcome:
        """The result of a fit that has ended. In a process that was forked during the fit, it counts as stopped."""
        return self._outcomes[0] if self._outcomes else _STOPPED

    def wait(self, timeout: float | None) -> None:
        """Wait until the fit ends, but at most ``timeout`` seconds."""
        self._thread.join(timeout)

    def stop(self) -> None:
        """Ask the fit to stop; returns immediately."""
        self._stop_event.set()


def _run_job(job: FitJob, stop_event: threading.Event, outcomes: list[FitOutcome]) -> None:
    """Run a fit in the current thread, and append its outcome."""
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
        """Fit now, to all rows in the window, and return the adapter.

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
        """Wait for the fit that runs in the background, and use its model from then on.

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
        """Return the reason why the window cannot be fitted, or None if a fit may succeed."""
        return None if self.n_window else "the window has no rows"

    @property
    def _current_model_text(self) -> str:
        """A phrase for warnings that the current model stays in use; empty without a model."""
        return "" if self._fit is None else f"the model of {self.n_learned - self._fitted_at:,} rows ago stays"

    def _count_rows_to_check(self) -> int:
        """Return the number of rows that may be added before the next check whether a fit is due."""
        n_left: int = self.refit_every - self.n_since_fit  # type: ignore[operator]
        if n_left > 0:
            return n_left
        return self.refit_every if self.fitting else 1  # type: ignore[return-value]

    def _fit_if_due(self) -> None:
        """Use the outcome of a background fit, and start the next fit if it is due and possible."""
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
        """Warn that a fit to this number of rows failed; raise the error if it was the first fit."""
        if not self._current_model_text:
            raise error
        warn(f"the fit of {n_rows:,} rows failed, {self._current_model_text}: {error}", RuntimeWarning)

    def _fit_now(self) -> None:
        """Fit to the window in this thread, and use the new model."""
        self._last_attempt, self._has_warned = self._window.n_added, False
        self._use_fit(self._make_job().fit_model(), self._last_attempt)

    def _use_fit(self, fit: ScaledModel, started_at: int) -> None:
        """Use a new model for predictions; ``started_at`` rows had been learned when its fit was started."""
        self._fit = fit  # a single assignment: an interrupt before it leaves the last model
        self._n_fits, self._fitted_at = self._n_fits + 1, started_at

    def _use_outcome(self) -> None:
        """Use the outcome of the background fit if it has ended. A fit that was stopped is due again."""
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
        """Return the last fitted model, or None. The next call that learns reports a failed background fit."""
        if self._background_fit is not None and self._background_fit.outcome.fit is not None:
            self._use_outcome()
        return self._fit

    def _make_job(self) -> FitJob:
        """Return the data for a fit to the current window."""
        rows = self._window.copy_rows(len(self._features))
        return FitJob(clone(self.model, safe=False), rows, bool(self.standardize), [], 0)

    # Predictions ------------------------------------------------------------------------------------------------------------

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> Any:
        fit = self._get_latest_fit()
        return self._predict_with(self._prepare_row(x, fit), fit).tolist()[0]

    def _predict_rows(self, X: Any) -> Any:
        """Return the predictions of many rows as a series or array, like X."""
        fit = self._get_latest_fit()
        rows, like = self._prepare_rows(X, fit)
        return to_series(self._predict_with(rows, fit), like)

    def _predict_with(self, rows: np.ndarray, fit: ScaledModel | None) -> np.ndarray:
        """Return the predictions [n] of a fitted model for prepared rows; without a model, those from the window's targets."""
        raise NotImplementedError

    def _prepare_row(self, x: Mapping[Any, Any], fit: ScaledModel | None) -> np.ndarray:
        """Return a row for the model, scaled, float64 [1, features at the fit]. It is checked even before the first fit."""
        row = self._fill_row(x, False)[np.newaxis]
        return row if fit is None else fit.scale_rows(row)

    def _prepare_rows(self, X: Any, fit: ScaledModel | None) -> tuple[np.ndarray, Any]:
        """Return scaled rows for the model, and the frame whose type predictions should have (None for an array)."""
        matrix, names, like = to_matrix(X)
        columns = self._features.find_columns(names, False)
        rows = scatter_rows(matrix, names, columns, len(self._features), np.arange(matrix.shape[0]))
        return rows if fit is None else fit.scale_rows(rows), like

    # Attributes -------------------------------------------------------------------------------------------------------------

    @property
    def fitted_(self) -> Any:
        """The last successfully fitted model; None before the first fit."""
        return None if self._fit is None else self._fit.model

    @property
    def mean(self) -> np.ndarray | None:
        """The means that are subtracted from the features, float64 [features at the fit]; None before the first fit."""
        return None if self._fit is None else self._fit.mean.copy()

    @property
    def scale(self) -> np.ndarray | None:
        """The divisors of the features, their deviations, float64 [features at the fit]; None before the first fit."""
        return None if self._fit is None else self._fit.scale.copy()

    @property
    def n_fits(self) -> int:
        """Number of successful fits."""
        return self._n_fits

    @property
    def fitting(self) -> bool:
        """Whether a fit is running in the background."""
        return self._background_fit is not None and self._background_fit.is_running

    @property
    def n_since_fit(self) -> int:
        """Number of rows since the last fit was started."""
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
