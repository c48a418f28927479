"""How many threads work has, matrix products in one of them, and long work in a thread that can be asked to stop."""

from __future__ import annotations

import concurrent.futures.thread
import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import joblib
import scipy.linalg  # noqa: F401 - loads the BLAS that compiled functions call, before it is looked for
from threadpoolctl import ThreadpoolController

from streamsvm.core.checks import check_number

_lock = threading.Lock()
_limits: list[Any] = []  # one for all, as the last to leave must find the number of threads that the first one found
_inside = 0


@functools.cache
def _libraries() -> Any:
    return ThreadpoolController()  # looks through what is loaded, which takes milliseconds


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limit BLAS to one thread in the context. The limit is that of the process, and ends with the last such context."""
    global _inside  # noqa: PLW0603 - it counts contexts of the process
    with _lock:
        if not _inside:
            _limits.append(_libraries().limit(limits=1, user_api="blas"))
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside:
                _limits.pop().restore_original_limits()


def thread_count(n_jobs: int | None) -> int:
    """Return how many threads ``n_jobs`` stands for: None one, -1 one for each processor, -2 one less, and so on.

    It is a ValueError if it is 0, or no integer.
    """
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None, or an integer other than 0, not {n_jobs!r}")
    check_number("n_jobs", n_jobs, -(10**6), high=10**6, integer=True)
    return n_jobs if n_jobs > 0 else max(joblib.cpu_count() + 1 + n_jobs, 1)


_asked: ContextVar[tuple[threading.Event, ...]] = ContextVar("_asked", default=())


@contextmanager
def stoppable(asked: threading.Event) -> Iterator[None]:
    """Let `stop_if_asked` end the work of this thread once ``asked`` is set, or once the main thread has ended.

    What the work within was asked by before counts, too.
    The interpreter waits for threads before it ends. Threads to which work is passed on need a copy of the context.
    """
    token = _asked.set((*_asked.get(), asked))
    try:
        yield
    finally:
        _asked.reset(token)


def stop_if_asked() -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does in the main thread, where the work of this thread was asked to stop."""
    asked = _asked.get()
    if asked and (any(event.is_set() for event in asked) or _ending()):
        raise KeyboardInterrupt


def _ending() -> bool:
    """Whether the main thread has ended. It waits for threads of pools first, and counts as alive meanwhile."""
    return concurrent.futures.thread._shutdown or not threading.main_thread().is_alive()
