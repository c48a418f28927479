"""The part that the decorator, keys and numba's side of compiled functions share."""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any, Self

#: Whether nothing is compiled.
INTERPRETED = os.environ.get("NUMBA_DISABLE_JIT", "0") not in {"", "0"}

#: The compiled implementations of Python functions, as `overload` has collected them.
OVERLOADS: dict[Any, Callable[..., Any]] = {}

#: The seconds that this process has compiled functions of the library, or loaded them.
compilation: SimpleNamespace = SimpleNamespace(seconds=0.0)

#: The names of estimators that were created, for which no functions were compiled ahead yet.
expected_components: dict[str, None] = {}


def expect_component(kind: type) -> None:
    """Note that an estimator was created. If its first function has to be compiled, several processes compile the others."""
    name = next((base.__name__ for base in kind.__mro__ if base.__module__.startswith("streamsvm.")), "")
    expected_components[name] = None


def import_object(place: str) -> Any:
    """Return the function of a place, ``module:name``."""
    module, _, path = place.partition(":")
    found: Any = import_module(module)
    for name in path.split("."):
        found = getattr(found, name)
    return found


class PickledByName:
    """A compiled function, of which there is one: a copy is itself, and a pickle is its place."""

    py_func: Callable[..., Any]

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Any) -> Self:
        return self

    def __reduce__(self) -> Any:
        return import_object, (f"{self.py_func.__module__}:{self.py_func.__qualname__}",)
