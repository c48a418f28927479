"""What the decorator, keys and numba's side of compiled functions share."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

__all__ = ["INTERPRETED", "OVERLOADS", "compilation"]

#: Whether nothing is compiled.
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}

#: The compiled implementations of Python functions, as `overload` has collected them.
OVERLOADS: dict[Any, Callable[..., Any]] = {}

#: The seconds that this process has compiled functions of the library, or loaded them.
compilation: SimpleNamespace = SimpleNamespace(seconds=0.0)
