"""Long work in a thread that can be asked to stop: it looks now and then whether it was."""

from __future__ import annotations

import concurrent.futures.thread
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

__all__ = ["stop_if_asked", "stoppable"]

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
