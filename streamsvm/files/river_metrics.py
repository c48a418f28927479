"""river's metrics, imported without scipy.stats: it takes .7 s, and of river's metrics the geometric mean alone calls it.

Import them from here: ``from streamsvm.files.river_metrics import metrics``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import scipy


class _Later(ModuleType):
    """A module that is imported when something of it is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


# `from scipy import stats` takes what scipy has of that name; an import of scipy.stats by others is as ever.
_LATER = {name: _Later(f"scipy.{name}") for name in ("integrate", "stats") if f"scipy.{name}" not in sys.modules}
vars(scipy).update(_LATER)
try:
    from river import metrics
finally:
    for _name, _module in _LATER.items():
        if vars(scipy).get(_name) is _module:
            delattr(scipy, _name)

__all__ = ["metrics"]
