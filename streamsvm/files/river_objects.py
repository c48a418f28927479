"""Whether river's objects have the attributes that river gives them, of the same kinds: what is read works, or is refused.

What is expected is not written down here. It is read off an object that the class itself makes of its own parameters for tests.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Mapping
from functools import cache
from numbers import Number
from typing import Any

from river import base, compose

from streamsvm.files.container import CorruptError
from streamsvm.files.messages import shown

_MAY_END = ("_buffer",)  # which is None once it was used


def check(made: Any) -> None:
    """Raise a CorruptError where an object of river lacks an attribute, or has one of another kind.

    The plan of a pipeline is made anew of its steps.
    """
    if isinstance(made, compose.Pipeline):
        _check_steps(made, "steps")
        if not made.steps:
            return
        *first, last = made.steps.values()
        transform = all(_has(step, "transform_one") or isinstance(step, base.AnomalyFilter) for step in first)
        if not transform or not _has(last, "learn_one"):
            raise CorruptError("a pipeline has steps that are no models, or no transformers before its end")
        if vars(made).get("_plan", 0) is not None:
            made._build_plan()
        return
    if isinstance(made, compose.TransformerUnion):
        _check_steps(made, "transformers")
    kind: Any = type(made)
    for name, usual in _expected(kind).items():
        if name not in vars(made):
            raise CorruptError(f"a {type(made).__name__} has no {name}")
        found = vars(made)[name]
        if not _is_like(found, usual) and (found is not None or name not in _MAY_END):
            raise CorruptError(f"{name} of a {type(made).__name__} cannot be {shown(found)}")


def _check_steps(made: Any, name: str) -> None:
    steps = vars(made).get(name)
    if not isinstance(steps, dict) or not all(isinstance(key, str) for key in steps):
        raise CorruptError(f"{name} of a {type(made).__name__} are none: {shown(steps)}")
    if not all(isinstance(step, base.Estimator) for step in steps.values()):
        raise CorruptError(f"{name} of a {type(made).__name__} are no models")


def _has(step: Any, method: str) -> bool:
    return callable(getattr(type(step), method, None))


def _is_like(found: Any, usual: Any) -> bool:
    """Whether a value is of the kind of another one."""
    if isinstance(usual, bool):
        return isinstance(found, bool)
    if isinstance(usual, Number):
        return isinstance(found, Number)
    if isinstance(usual, dict):
        if not isinstance(found, dict):
            return False
        like = next(iter(usual.values()), None)
        return like is None or all(_is_like(value, like) for value in found.values())
    if isinstance(usual, str | list | set | tuple):
        return isinstance(found, type(usual).__mro__[-2])
    if isinstance(usual, base.Estimator):  # made of a parameter, or a part
        return isinstance(found, base.Estimator)
    if type(usual).__module__.startswith("river."):
        return isinstance(found, _bases(type(usual))) or _part_of(type(found)) == _part_of(type(usual))  # as nodes of a tree
    return True


def _bases(cls: type) -> tuple[type, ...]:
    """Return the classes of river that say what an object of a class can do, but those of which everything is."""
    general = (base.Base, base.Estimator)
    return tuple(each for each in cls.__mro__ if each.__module__.startswith("river.") and each not in general)


def _part_of(cls: type) -> list[str]:
    return cls.__module__.split(".")[:2]


@cache
def _expected(cls: Any) -> Mapping[str, Any]:
    """Return the attributes of an object that the class makes itself, without its parameters, which are of many kinds."""
    if not cls.__module__.startswith("river."):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            chosen = next(iter(cls._unit_test_params())) if hasattr(cls, "_unit_test_params") else {}
            made = cls(**chosen)
            attributes = vars(made)
            if isinstance(made, base.Transformer) and not made._supervised:
                made.learn_one({"a": 1.0, "b": 2.0})
        except Exception:  # noqa: BLE001 - of a class that others make, or that learns other rows
            return {}
    parameters = inspect.signature(cls).parameters
    return {name: value for name, value in attributes.items() if name not in parameters}
