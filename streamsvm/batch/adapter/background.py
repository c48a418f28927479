"""A fit in a thread of its own, beside which the adapter goes on with the last model."""

from __future__ import annotations

import threading
from typing import NamedTuple

from streamsvm.batch.adapter.fit import Fit
from streamsvm.batch.adapter.job import Job
from streamsvm.core.stopping import stoppable
from streamsvm.core.warning import kept_warnings

__all__ = ["BackgroundFit", "Outcome"]


class Outcome(NamedTuple):
    """How a fit ended: with a fitted model, an exception, or neither where it was stopped."""

    fit: Fit | None
    error: Exception | None
    warnings: list[tuple[str, type[Warning]]]
    """Those of `streamsvm`, not given yet."""


_STOPPED = Outcome(None, None, [])


class BackgroundFit:
    """A running fit. It is asked to stop when nothing refers to it, and when the main thread ends.

    The thread is none that the interpreter kills at its end: compiled code may be in the middle of it. A model of `streamsvm`
    stops within about a second; for another one the interpreter waits.

    Parameters
    ----------
    job
        What is done.
    attempted
        The adapter's rows when a fit was tried before this one.
    begun_at
        Its rows when this one was begun.

    Raises
    ------
    RuntimeError
        The system has no thread left.
    """

    def __init__(self, job: Job, attempted: int, begun_at: int) -> None:
        self.n_window: int = len(job.rows.targets)
        self.attempted: int = attempted
        self.begun_at: int = begun_at
        self._asked, self._outcomes = threading.Event(), list[Outcome]()
        # The thread refers to what it needs, not to this object, which can go while it runs.
        self._thread = threading.Thread(target=_run, args=(job, self._asked, self._outcomes), name="streamsvm-fit", daemon=False)
        self._thread.start()

    def __del__(self) -> None:
        self.stop()

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self._thread.is_alive()

    @property
    def outcome(self) -> Outcome:
        """How it ended. In a process that was forked while it ran, it was stopped."""
        return self._outcomes[0] if self._outcomes else _STOPPED

    def wait(self, timeout: float | None) -> None:
        """Wait until it has ended, or so many seconds."""
        self._thread.join(timeout)

    def stop(self) -> None:
        """Ask it to stop, without waiting until it has."""
        self._asked.set()


def _run(job: Job, asked: threading.Event, outcomes: list[Outcome]) -> None:
    with stoppable(asked), kept_warnings() as warnings:
        try:
            outcome = Outcome(job.run(), None, warnings)
        except KeyboardInterrupt:
            outcome = _STOPPED
        except Exception as error:  # noqa: BLE001 - a model may raise anything
            outcome = Outcome(None, error, warnings)
    outcomes.append(outcome)
