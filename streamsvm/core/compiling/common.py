"""Settings, registries and helpers that the modules of this package share."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Self

#: Whether compilation is disabled, by the environment variable NUMBA_DISABLE_JIT.
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}

#: Implementations for compiled code, by the Python functions that they replace; `overload` adds them.
OVERLOADS: dict[Any, Callable[..., Any]] = {}

#: The time that this process has spent compiling or loading functions of the library, in seconds.
compilation: SimpleNamespace = SimpleNamespace(seconds=0.0)

#: The names of estimators that were created in this process, but not compiled ahead of time.
expected_components: dict[str, None] = {}


def expect_component(estimator_class: type) -> None:
    """Record that an instance of ``estimator_class`` was created. When the first of its functions must be compiled, helper
    processes will compile the others at the same time.
    """
    name = next((base.__name__ for base in estimator_class.__mro__ if base.__module__.startswith("streamsvm.")), "")
    expected_components[name] = None


def import_object(path: str) -> Any:
    """Import the object at ``path``, written as ``module:name`` or ``module:Class.name``, and return it."""
    module, _, names = path.partition(":")
    value: Any = import_module(module)
    for name in names.split("."):
        value = getattr(value, name)
    return value


class PickledByName:
    """Base class of compiled functions: copies are the object itself, and pickles contain its import path."""

    py_func: Callable[..., Any]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        return import_object, (f"{self.py_func.__module__}:{self.py_func.__qualname__}",)
