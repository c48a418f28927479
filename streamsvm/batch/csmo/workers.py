"""Threads of a fit or of predictions. Results do not depend on how many there are."""

from __future__ import annotations

import concurrent.futures
import contextlib
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from threading import Event
from typing import Any, TypeVar

from streamsvm.batch.csmo.columns import Rows, Slots
from streamsvm.batch.csmo.steps import steps
from streamsvm.batch.csmo.sweeps import Team, WorkingSet, help_with_steps
from streamsvm.core.compiling.common import INTERPRETED
from streamsvm.core.kernels import GIVEN, Kernel

_ENOUGH = 4000  # rows in the working set that are worth a second thread: a loop over fewer ends before another thread sees it
_LONGEST_PAUSE = 32  # calls of steps without helpers, after one in which they were put aside

T = TypeVar("T")


class Workers(contextlib.AbstractContextManager["Workers"]):
    """Threads, with that which calls them."""

    def __init__(self, threads: int = 1) -> None:
        self.threads = threads
        self._team = Team.of(threads)
        self._alone = Team.of(1)  # steps write to its words: not to be shared with another fit that runs at the same time
        self._pause, self._calls_alone = 1, 0
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def each(self, do: Callable[[T], Any], items: Iterable[T], stop: Event | None = None) -> None:
        """Call ``do`` for each item. After an exception ``stop`` is set, no call begins, and all have ended."""
        if self._pool is None:
            for item in items:
                do(item)
            return
        futures = [self._pool.submit(copy_context().run, do, item) for item in items]
        try:
            for future in futures:
                future.result()
        except BaseException:
            if stop is not None:
                stop.set()
            raise
        finally:
            _end(futures)

    def steps(
        self, a: WorkingSet, slots: Slots, rows: Rows, kernel: Kernel, epsilon: float, tol: float, conjugate: bool, limit: int
    ) -> tuple[int, int]:
        """Do steps, as `steps` does, with all threads where there are enough rows and processors are idle."""
        # Given kernel values come from the interpreter; and words that are exchanged need compiled code.
        pool = self._pool
        few = len(a.b) < _ENOUGH or kernel.kind == GIVEN or INTERPRETED
        if pool is None or few or self._calls_alone > 0:
            self._calls_alone = max(self._calls_alone - (not few), 0)
            return steps(a, slots, rows, kernel, epsilon, tol, conjugate, limit, self._alone)
        futures: list[Future[None]] = []
        team = self._team
        try:
            team.left = False
            for part in range(1, self.threads):
                helper = pool.submit(help_with_steps, part, team, a, slots, rows, kernel)
                futures.append(helper)  # one by one, as an interrupt may come
            result = steps(a, slots, rows, kernel, epsilon, tol, conjugate, limit, team)
            # Where other programs take the processors, waiting for helpers costs more than they do.
            self._pause = min(2 * self._pause, _LONGEST_PAUSE) if team.left else 1
            self._calls_alone = self._pause if team.left else 0
            return result
        finally:
            team.left = True
            _end(futures)


def _end(futures: list[Future[Any]]) -> None:
    for future in futures:
        future.cancel()
    concurrent.futures.wait(futures)
