"""An adapter's schedule of fits: which are due, which one runs, perhaps beside the stream in a thread, and who answers."""

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
    """How a fit ended: with a fitted model, an exception, or neither where it was stopped."""

    fit: ScaledModel | None
    error: Exception | None
    warnings: list[tuple[str, type[Warning]]]  # those of `streamsvm`, not given yet


_STOPPED = FitOutcome(None, None, [])


class BackgroundFit:
    """A running fit. It is asked to stop when nothing refers to it, and when the main thread ends.

    The thread is none that the interpreter kills at its end: compiled code may be in the middle of it. A model of `streamsvm`
    stops within about a second; for another one the interpreter waits. The adapter had ``attempted`` rows when a fit was tried
    before this one, and ``begun_at`` when this one was begun.
    """

    def __init__(self, job: FitJob, attempted: int, begun_at: int) -> None:
        self.n_window: int = len(job.rows.targets)
        self.attempted: int = attempted
        self.begun_at: int = begun_at
        self._asked, self._outcomes = threading.Event(), list[FitOutcome]()
        # The thread refers to what it needs, not to this object, which can go while it runs.
        self._thread = threading.Thread(
            target=_run_job, args=(job, self._asked, self._outcomes), name="streamsvm-fit", daemon=False
        )
        self._thread.start()

    def __del__(self) -> None:
        self.stop()

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    @property
    def outcome(self) -> FitOutcome:
        """How it ended. In a process that was forked while it ran, it was stopped."""
        return self._outcomes[0] if self._outcomes else _STOPPED

    def wait(self, timeout: float | None) -> None:
        self._thread.join(timeout)

    def stop(self) -> None:
        self._asked.set()


def _run_job(job: FitJob, asked: threading.Event, outcomes: list[FitOutcome]) -> None:
    with allow_stop(asked), collect_warnings() as warnings:
        try:
            outcome = FitOutcome(job.fit_model(), None, warnings)
        except KeyboardInterrupt:
            outcome = _STOPPED
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            outcome = FitOutcome(None, error, warnings)
    outcomes.append(outcome)


@dataclass(eq=False, repr=False)
class RefittingEstimator(WindowedEstimator):
    """A river estimator that refits a batch model to a window; `batch_adapter` describes the parameters.

    A class below this one says what targets are.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._fit: ScaledModel | None = None
        self._background_fit: BackgroundFit | None = None  # until its outcome was taken
        self._attempted = 0  # rows learned when a fit was last begun
        self._fitted_at = 0  # rows learned when the last fit that succeeded was begun
        self._has_warned = False  # whether a warning has said that the fit that is due must wait
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
        begin, n = 0, len(rows)
        while begin < n:
            end = n if self.refit_every is None else min(n, begin + self._rows_to_put())
            self._add_rows(rows[begin:end], targets[begin:end], batch.weights[begin:end])
            begin = end
            try:
                self._fit_if_due()
            except BaseException:  # an interrupt as well: no row is lost
                self._add_rows(rows[end:], targets[end:], batch.weights[end:])
                raise

    # Fits -------------------------------------------------------------------------------------------------------------------

    def fit(self) -> Self:
        """Fit now, to all rows in the window, and return the adapter.

        Raises
        ------
        ValueError
            The window cannot be fitted, because it is empty, has only one class, or the model refuses it. The model stays as it
            was.
        """
        if obstacle := self._find_obstacle():
            raise ValueError(f"{obstacle}: there is nothing to fit")
        if self._background_fit is not None:  # of rows before these
            self._background_fit.stop()
            self._background_fit = None
        self._fit_now()
        return self

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for the fit that runs in the background, and use its model from then on.

        You need not call it: the new model comes into use with the first call that predicts or learns after the end of the fit,
        and if a fit fails, the next call that learns says so. Only one fit runs at a time. If the next one becomes due
        meanwhile, it begins when the first one ends, with the rows that are then in the window.

        `fit` stops a fit that runs in the background, and fits immediately. A copy of the adapter, or a saved one, holds the
        rows and the last model but not the fit that runs, which is due again there. The fit also stops when the adapter is
        garbage-collected and when the program ends: a model of `streamsvm` within about a second, and the interpreter waits for
        any other. Ctrl-C does not reach the fit. Use the adapter itself from one thread at a time.

        Parameters
        ----------
        timeout
            Maximum number of seconds to wait. None waits until the fit has ended.

        Returns
        -------
        bool
            True if no fit is running any more.

        Raises
        ------
        Exception
            The fit failed, and there is no model yet. The exception is the model's; if there is one, there is a RuntimeWarning.
        """
        if timeout is not None:
            check_number("timeout", timeout, 0.0, inclusive=True)
        if self._background_fit is not None:
            self._background_fit.wait(timeout)
        self._use_outcome()
        return self._background_fit is None

    def _find_obstacle(self) -> str | None:
        """Return why the window cannot be fitted, if that is known without trying."""
        return None if self.n_window else "the window has no rows"

    @property
    def _describe_current_model(self) -> str:
        """Say which model answers if there is no new one; empty if there is none at all."""
        return "" if self._fit is None else f"the model of {self.n_learned - self._fitted_at:,} rows ago stays"

    def _rows_to_put(self) -> int:
        """Return how many rows may be put before it is looked whether a fit is due."""
        left: int = self.refit_every - self.n_since_fit  # type: ignore[operator]
        if left > 0:
            return left
        return self.refit_every if self.fitting else 1  # type: ignore[return-value]

    def _fit_if_due(self) -> None:
        self._use_outcome()
        if self.refit_every is None or self.n_since_fit < self.refit_every or self._background_fit is not None:
            return
        if obstacle := self._find_obstacle():
            if self._describe_current_model and not self._has_warned:
                self._has_warned = True
                warn(f"{obstacle}: {self._describe_current_model} until that changes", RuntimeWarning)
            return
        try:
            if self.background:
                before, now = self._attempted, self._window.n_added
                self._background_fit = BackgroundFit(self._make_job(), before, now)
                self._attempted, self._has_warned = now, False
            else:
                self._fit_now()
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            self._report_failure(error, self.n_window)

    def _report_failure(self, error: Exception, rows: int) -> None:
        """Warn that a fit of so many rows failed; raise the error if there is no model yet."""
        if not self._describe_current_model:
            raise error
        warn(f"the fit of {rows:,} rows failed, {self._describe_current_model}: {error}", RuntimeWarning)

    def _fit_now(self) -> None:
        self._attempted, self._has_warned = self._window.n_added, False
        self._use_fit(self._make_job().fit_model(), self._attempted)

    def _use_fit(self, fit: ScaledModel, begun_at: int) -> None:
        self._fit = fit  # one assignment: an interrupt before it leaves the last fit
        self._n_fits, self._fitted_at = self._n_fits + 1, begun_at

    def _use_outcome(self) -> None:
        """Take the outcome of the background fit if it has ended. One that was stopped is due again."""
        running = self._background_fit
        if running is None or running.is_running:
            return
        self._background_fit, (fit, error, warnings) = None, running.outcome
        if fit is not None:
            self._use_fit(fit, running.begun_at)
        elif error is None:
            self._attempted = running.attempted
        for message, category in warnings:
            warn(message, category)
        if error is not None:
            self._report_failure(error, running.n_window)

    def _get_latest_fit(self) -> ScaledModel | None:
        """Return the last good fit. A background fit that failed says so where rows are learned."""
        if self._background_fit is not None and self._background_fit.outcome.fit is not None:
            self._use_outcome()
        return self._fit

    def _make_job(self) -> FitJob:
        """Return a fit of the window as it is now."""
        rows = self._window.copy_rows(len(self._features))
        return FitJob(clone(self.model, safe=False), rows, bool(self.standardize), [], 0)

    # Predictions ------------------------------------------------------------------------------------------------------------

    def predict_one(self, x: Mapping[Any, Any], **_: Any) -> Any:
        fit = self._get_latest_fit()
        return self._predict_with(self._prepare_row(x, fit), fit).tolist()[0]

    def _predict_rows(self, X: Any) -> Any:
        fit = self._get_latest_fit()
        rows, like = self._prepare_rows(X, fit)
        return to_series(self._predict_with(rows, fit), like)

    def _predict_with(self, rows: np.ndarray, fit: ScaledModel | None) -> np.ndarray:
        """Return the answers for rows as a fit takes them, [n]; without one, those of the window alone."""
        raise NotImplementedError

    def _prepare_row(self, x: Mapping[Any, Any], fit: ScaledModel | None) -> np.ndarray:
        """Return a row as the model takes it, float64 [1, features when it was fitted]; checked even before the first fit."""
        row = self._fill_row(x, False)[np.newaxis]
        return row if fit is None else fit.scale_rows(row)

    def _prepare_rows(self, X: Any, fit: ScaledModel | None) -> tuple[np.ndarray, Any]:
        """Return rows as the model takes them, and the frame that answers are made like (None for an array)."""
        matrix, names, like = to_matrix(X)
        columns = self._features.find_columns(names, False)
        rows = scatter_rows(matrix, names, columns, len(self._features), np.arange(matrix.shape[0]))
        return rows if fit is None else fit.scale_rows(rows), like

    # Attributes -------------------------------------------------------------------------------------------------------------

    @property
    def fitted_(self) -> Any:
        """The last good model; None before the first fit."""
        return None if self._fit is None else self._fit.model

    @property
    def mean(self) -> np.ndarray | None:
        """The numbers subtracted from the features, float64 [features at the fit]; None before the first fit."""
        return None if self._fit is None else self._fit.mean.copy()

    @property
    def scale(self) -> np.ndarray | None:
        """The numbers that divide the features, float64 [features at the fit]; None before the first fit."""
        return None if self._fit is None else self._fit.scale.copy()

    @property
    def n_fits(self) -> int:
        """Number of fits that succeeded."""
        return self._n_fits

    @property
    def fitting(self) -> bool:
        """Whether a fit is running in the background."""
        return self._background_fit is not None and self._background_fit.is_running

    @property
    def n_since_fit(self) -> int:
        """Number of rows since the last fit began."""
        return self._window.n_added - self._attempted

    # Saved adapters ---------------------------------------------------------------------------------------------------------

    def __getstate__(self) -> dict[str, Any]:
        fit = self._get_latest_fit()
        attempted = (
            self._attempted if self._background_fit is None else self._background_fit.attempted
        )  # it is not saved, but due again
        return {
            "parameters": self._get_params(),
            "features": self.feature_names,
            "window": self._window.snapshot(len(self._features)),
            "fit": None if fit is None else tuple(fit),
            "counts": (attempted, self._fitted_at, self._n_fits),
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state["parameters"])  # type: ignore[misc]
        self._features.restore(state["features"])
        self._window.restore(state["window"], len(self._features))
        self._attempted, self._fitted_at, self._n_fits = state["counts"]
        if state["fit"] is not None:
            self._fit = ScaledModel.from_saved(state["fit"], len(self._features))
