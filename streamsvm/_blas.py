"""Matrix products in one thread, whichever threads of the process ask for that at the same time."""

from __future__ import annotations

import functools
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import scipy.linalg  # noqa: F401 - loads the BLAS that compiled functions call, before it is looked for
from threadpoolctl import ThreadpoolController

__all__ = ["one_blas_thread"]

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
