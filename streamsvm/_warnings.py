"""Warnings that point at the line that called the package, however deep inside it they are issued."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn"]

_PACKAGE = __name__.partition(".")[0]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Warn with the location of the innermost frame outside the package."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and (part := frame.f_globals.get("__name__", "").partition(".")[0]) in {_PACKAGE, "importlib"}:
        level, frame = level + (part == _PACKAGE), frame.f_back  # frames of an import do not count, for `warnings` neither
    warnings.warn(message, category, level)
