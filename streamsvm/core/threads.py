"""Threads: a pool that shares a loop, the parameter n_jobs, limits of BLAS threads, and cooperative cancellation."""

from __future__ import annotations

import concurrent.futures.thread
import functools
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed, wait
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

import joblib
import scipy.linalg  # noqa: F401 - loads the BLAS library that compiled functions call, so that threadpoolctl finds it
from threadpoolctl import ThreadpoolController

from streamsvm.core.checks import check_number

_lock = threading.Lock()
_original_counts: list[int] = []  # thread counts of the BLAS libraries before the first context, restored after the last one
_users: set[object] = set()  # one for each active context of the process


@functools.cache
def _find_blas_libraries() -> list[Any]:
    """Return a threadpoolctl controller for each BLAS library that is loaded in this process."""
    return ThreadpoolController().select(user_api="blas").lib_controllers  # takes milliseconds


def _set_blas_threads(counts: list[int]) -> None:
    """Set the number of threads of all BLAS libraries in this process; ``counts`` has one number for each library. Libraries that
    had a single thread originally are skipped, because the call is slow.
    """
    for library, count, original in zip(_find_blas_libraries(), counts, _original_counts, strict=True):
        if original != 1:  # the call takes as long as a fit of few rows
            library.set_num_threads(count)


def _leave(user: object) -> None:
    """End one active `limit_blas_threads` context, identified by the object ``user``. The last one to end restores the original
    thread counts of the BLAS libraries. Has no effect if this context has ended before.
    """
    with _lock:
        if len(_users) == 1 and user in _users:
            _set_blas_threads(_original_counts)
        _users.discard(user)


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Context manager: limit BLAS libraries to one thread in the whole process while its body runs. If several contexts are
    active at once, the original thread counts are restored after the last one.
    """
    user = object()
    try:
        with _lock:
            is_first = not _users
            if is_first:
                _original_counts[:] = [library.num_threads for library in _find_blas_libraries()]
            _users.add(user)  # before the limit is set, so that it is removed even after an interrupt
            if is_first:
                _set_blas_threads([1] * len(_original_counts))
        yield
    finally:
        try:
            _leave(user)
        finally:  # again, because the first call may have been interrupted
            _leave(user)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """Return the number of threads for scikit-learn's parameter ``n_jobs``: 1 for None, the number of processors for -1, one less
    for -2, and so on, at least 1.

    Raises ValueError if it is 0 or not an integer.
    """
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None, or an integer other than 0, not {n_jobs!r}")
    check_number("n_jobs", n_jobs, -(10**6), high=10**6, integer=True)
    return n_jobs if n_jobs > 0 else max(joblib.cpu_count() + 1 + n_jobs, 1)


T = TypeVar("T")

#: A function such as `Workers.for_each`, which calls another function for each number.
ForEach = Callable[[Callable[[int], None], Iterable[int]], None]


def call_for_each(function: Callable[[T], Any], items: Iterable[T]) -> None:
    """Call ``function(item)`` for each of ``items``, one after the other in the current thread."""
    for item in items:
        function(item)


class Workers(AbstractContextManager["Workers"]):
    """A pool of threads that share the items of a loop. With one thread, the loop runs in the caller's thread."""

    def __init__(self, threads: int = 1) -> None:
        self.threads: int = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def for_each(self, function: Callable[[T], Any], items: Iterable[T], stop: threading.Event | None = None) -> None:
        """Call ``function(item)`` for each of ``items`` in the threads of this pool, and wait for all calls. If a call raises an
        exception, the others are cancelled: the event ``stop`` tells those that run already to end early. Then the exception is
        raised here.

        No further calls begin after the first exception. With a single thread, ``stop`` is not set, because no other call runs.
        """
        if self._pool is None:
            call_for_each(function, items)
            return
        futures: list[Future[Any]] = []
        try:
            futures.extend(self._pool.submit(copy_context().run, function, item) for item in items)
            for _ in map(Future.result, as_completed(futures)):  # a loop variable would keep the error's traceback alive
                pass
        except BaseException:
            if stop is not None:
                stop.set()
            raise
        finally:
            wait([future for future in futures if not future.cancel()])
            futures.clear()


_stop_events: ContextVar[tuple[threading.Event, ...]] = ContextVar("_stop_events", default=())


@contextmanager
def allow_stop(stop: threading.Event) -> Iterator[None]:
    """Context manager: let another thread cancel long computations in its body. When that thread has set the event ``stop``, the
    next call of `raise_if_stopped` in the body raises KeyboardInterrupt, as it does when the main thread has ended.

    Contexts can be nested; each event cancels. Threads to which work is delegated need a copy of the context. Without this, the
    interpreter would wait for the thread before it exits.
    """
    token = _stop_events.set((*_stop_events.get(), stop))
    try:
        yield
    finally:
        _stop_events.reset(token)


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt if the computation in the current thread is to be cancelled: if an event of an enclosing
    `allow_stop` is set, or the main thread has ended. Long computations call this now and then.
    """
    events = _stop_events.get()
    if events and any(event.is_set() for event in events):
        raise KeyboardInterrupt
    # The main thread waits for thread pools before it ends, and is alive meanwhile: so check for the shutdown of pools, too.
    if events and (concurrent.futures.thread._shutdown or not threading.main_thread().is_alive()):
        raise KeyboardInterrupt
