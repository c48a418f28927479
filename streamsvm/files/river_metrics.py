"""river's metrics, imported without scipy.stats, which takes 0.7 s and is needed by the geometric mean only.

Import them from here: ``from streamsvm.files.river_metrics import metrics``.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import scipy


class _LazyModule(ModuleType):
    """A module that is imported when one of its attributes is first read."""

    def __getattr__(self, name: str) -> Any:
        return getattr(importlib.import_module(self.__name__), name)


# While river is imported, `from scipy import stats` finds these attributes of scipy. Imports after that work as usual.
_LAZY_MODULES = {name: _LazyModule(f"scipy.{name}") for name in ("integrate", "stats") if f"scipy.{name}" not in sys.modules}
vars(scipy).update(_LAZY_MODULES)
try:
    from river import metrics
finally:
    for _name, _module in _LAZY_MODULES.items():
        if vars(scipy).get(_name) is _module:
            delattr(scipy, _name)

__all__ = ["metrics"]
