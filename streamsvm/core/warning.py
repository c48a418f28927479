"""Warnings that point at the line of user code that called the package, from any depth inside it."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PACKAGE = __name__.partition(".")[0]
_collected: ContextVar[list[tuple[str, type[Warning]]] | None] = ContextVar("_collected", default=None)


@contextmanager
def collect_warnings() -> Iterator[list[tuple[str, type[Warning]]]]:
    """Context manager: collect the warnings that `warn` is called with, and do not issue them. Its value is the list of (message,
    category), which another thread can issue later.
    """
    collected: list[tuple[str, type[Warning]]] = []
    token = _collected.set(collected)
    try:
        yield collected
    finally:
        _collected.reset(token)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning that points at the line of user code that called this package, not at a line inside it; within
    `collect_warnings`, add it to the list instead.
    """
    if (collected := _collected.get()) is not None:
        collected.append((message, category))
        return
    level, frame = 2, sys._getframe(1)
    skipped = {_PACKAGE, "numba", "importlib", "contextlib"}  # packages whose frames can be between those of this package
    while frame.f_back is not None and (package := frame.f_globals.get("__name__", "").partition(".")[0]) in skipped:
        level, frame = level + (package != "importlib"), frame.f_back  # `warnings` does not count frames of imports, either
    warnings.warn(message, category, level)
