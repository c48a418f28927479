"""Threads that share work, how many there are, matrix products in one, and long work in one that can be asked to stop."""

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
import scipy.linalg  # noqa: F401 - loads the BLAS that compiled functions call, before it is looked for
from threadpoolctl import ThreadpoolController

from streamsvm.core.checks import check_number

_lock = threading.Lock()
_before: list[int] = []  # numbers of threads that the first to enter found, which the last to leave restores
_users: set[object] = set()  # one for each context of the process


@functools.cache
def _blas_libraries() -> list[Any]:
    return ThreadpoolController().select(user_api="blas").lib_controllers  # looks through what is loaded: milliseconds


def _set_threads(numbers: list[int]) -> None:
    for library, number, found in zip(_blas_libraries(), numbers, _before, strict=True):
        if found != 1:  # to ask and to set takes as long as a fit of few rows
            library.set_num_threads(number)


def _leave(user: object) -> None:
    with _lock:
        if len(_users) == 1 and user in _users:
            _set_threads(_before)
        _users.discard(user)


@contextmanager
def limit_blas_threads() -> Iterator[None]:
    """Limit BLAS to one thread in the context. The limit is that of the process, and ends with the last such context."""
    user = object()
    try:
        with _lock:
            first = not _users
            if first:
                _before[:] = [library.num_threads for library in _blas_libraries()]
            _users.add(user)  # before the limit, which is then lifted wherever an interrupt comes
            if first:
                _set_threads([1] * len(_before))
        yield
    finally:
        try:
            _leave(user)
        finally:  # an interrupt may have cut it short
            _leave(user)


def resolve_n_jobs(n_jobs: int | None) -> int:
    """Return how many threads ``n_jobs`` stands for: None one, -1 one for each processor, -2 one less, and so on.

    It is a ValueError if it is 0, or no integer.
    """
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None, or an integer other than 0, not {n_jobs!r}")
    check_number("n_jobs", n_jobs, -(10**6), high=10**6, integer=True)
    return n_jobs if n_jobs > 0 else max(joblib.cpu_count() + 1 + n_jobs, 1)


T = TypeVar("T")

#: A loop: ``each(do, begins)`` calls a function for each number, as `Workers.for_each` does.
ForEach = Callable[[Callable[[int], None], Iterable[int]], None]


def call_for_each(do: Callable[[T], Any], items: Iterable[T]) -> None:
    """Call a function for each item, without threads."""
    for item in items:
        do(item)


class Workers(AbstractContextManager["Workers"]):
    """Threads that share the items of a loop; with one, the caller's own does it."""

    def __init__(self, threads: int = 1) -> None:
        self.threads: int = threads
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None

    def __exit__(self, *error: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)

    def for_each(self, do: Callable[[T], Any], items: Iterable[T], stop: threading.Event | None = None) -> None:
        """Call ``do`` for each item. After an exception ``stop`` is set, no call begins, and all end; the first one is raised."""
        if self._pool is None:
            call_for_each(do, items)
            return
        futures: list[Future[Any]] = []
        try:
            futures.extend(self._pool.submit(copy_context().run, do, item) for item in items)
            for _ in map(Future.result, as_completed(futures)):  # a variable would hold the error in its own traceback
                pass
        except BaseException:
            if stop is not None:
                stop.set()
            raise
        finally:
            wait([future for future in futures if not future.cancel()])
            futures.clear()


_asked: ContextVar[tuple[threading.Event, ...]] = ContextVar("_asked", default=())


@contextmanager
def allow_stop(asked: threading.Event) -> Iterator[None]:
    """Let `raise_if_stopped` end the work of this thread once ``asked`` is set, or once the main thread has ended.

    What the work within was asked by before counts, too.
    The interpreter waits for threads before it ends. Threads to which work is passed on need a copy of the context.
    """
    token = _asked.set((*_asked.get(), asked))
    try:
        yield
    finally:
        _asked.reset(token)


def raise_if_stopped() -> None:
    """Raise KeyboardInterrupt, as Ctrl-C does in the main thread, where the work of this thread was asked to stop."""
    asked = _asked.get()
    if asked and any(event.is_set() for event in asked):
        raise KeyboardInterrupt
    # The main thread waits for threads of pools before it ends, and counts as alive meanwhile.
    if asked and (concurrent.futures.thread._shutdown or not threading.main_thread().is_alive()):
        raise KeyboardInterrupt
