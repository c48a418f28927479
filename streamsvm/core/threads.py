"""How many threads work has, and matrix products in one thread, whichever threads of the process ask for that together."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import joblib
import scipy.linalg  # noqa: F401 - loads the BLAS that compiled functions call, before it is looked for
from threadpoolctl import ThreadpoolController

from streamsvm.core.checks import check_number

__all__ = ["one_blas_thread", "thread_count"]

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

    Raises
    ------
    ValueError
        It is 0, or no integer.
    """
    if n_jobs is None:
        return 1
    if isinstance(n_jobs, bool) or n_jobs == 0:
        raise ValueError(f"n_jobs must be None, or an integer other than 0, not {n_jobs!r}")
    check_number("n_jobs", n_jobs, -(10**6), high=10**6, integer=True)
    return n_jobs if n_jobs > 0 else max(joblib.cpu_count() + 1 + n_jobs, 1)
