"""Warnings that point at the line that called the package, however deep inside it they are issued."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_PACKAGE = __name__.partition(".")[0]
_kept: ContextVar[list[tuple[str, type[Warning]]] | None] = ContextVar("_kept", default=None)


@contextmanager
def collect_warnings() -> Iterator[list[tuple[str, type[Warning]]]]:
    """Keep the arguments of `warn` in a list, for a thread whose caller waits elsewhere: the list is the context."""
    kept: list[tuple[str, type[Warning]]] = []
    token = _kept.set(kept)
    try:
        yield kept
    finally:
        _kept.reset(token)


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the location of the innermost frame outside the package."""
    if (kept := _kept.get()) is not None:
        kept.append((message, category))
        return
    level, frame = 2, sys._getframe(1)
    within = {_PACKAGE, "numba", "importlib", "contextlib"}  # which call the package: numba where compiled code is kept
    while frame.f_back is not None and (part := frame.f_globals.get("__name__", "").partition(".")[0]) in within:
        level, frame = level + (part != "importlib"), frame.f_back  # frames of an import do not count, for `warnings` neither
    warnings.warn(message, category, level)
