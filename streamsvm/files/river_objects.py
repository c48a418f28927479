"""Whether river's objects have the attributes that river gives them, of the same kinds: what is read works, or is refused.

What is expected is not written down here. It is read off an object that the class itself makes of its own parameters for tests.
"""

from __future__ import annotations

import inspect
import random
import warnings
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from contextlib import nullcontext, suppress
from functools import cache
from numbers import Number
from types import MethodType
from typing import Any

import numpy as np
from river import base, compose, stats

from streamsvm.files.container import CorruptError
from streamsvm.files.messages import shown

_PLAIN = (bool, int, float, complex, str, bytes, type(None), np.generic)
_KINDS = (base.Estimator, base.DriftDetector, stats.base.Statistic)
_MAY_END = ("_buffer", "_init_buffer")  # which are None, or gone, once they were used


def check_object(made: Any) -> None:
    """Raise a CorruptError where an object of river lacks an attribute, or has one of another kind; plan a pipeline anew."""
    if isinstance(made, compose.Pipeline):
        _check_steps(made, "steps")
        if not made.steps:
            return
        *first, last = made.steps.values()
        transform = all(_has_method(step, "transform_one") or isinstance(step, base.AnomalyFilter) for step in first)
        if not transform or not _has_method(last, "learn_one"):
            raise CorruptError("a pipeline has steps that are no models, or no transformers before its end")
        if vars(made).get("_plan", 0) is not None:
            made._build_plan()
        return
    if isinstance(made, compose.TransformerUnion):
        _check_steps(made, "transformers")
    kind: Any = type(made)
    if wrong := _unlike_expected(
        made, _expected_attributes(kind)
    ):  # switches, or rows of text, may make it another object: some work once more
        given = ((name, vars(made).get(name, ...)) for name in inspect.signature(kind).parameters)
        switches = tuple(pair for pair in given if pair[1] is None or isinstance(pair[1], bool | str))
        as_text = _expected_attributes(kind, switches, "a")
        if _unlike_expected(made, _expected_attributes(kind, switches)) and (not as_text or _unlike_expected(made, as_text)):
            raise CorruptError(wrong)
    if isinstance(made, base.Ensemble):
        _check_sizes(made, _expected_attributes(kind))


def check_nesting(objects: Iterable[Any]) -> None:
    """Raise a CorruptError where a model of river lies within itself, and would ask itself without end."""
    done: set[int] = set()
    for start in objects:
        if not isinstance(start, base.Estimator) or id(start) in done:
            continue
        above: list[int] = []  # the models that lie around what is looked at
        seen: set[int] = set()  # what is not a model, and was looked at below them
        left: list[Any] = [start]
        while left:
            found = left.pop()
            if found is None:  # the end of a model
                done.add(above.pop())
                continue
            if isinstance(found, base.Estimator):
                if id(found) in above:
                    raise CorruptError(f"a {type(found).__name__} lies within itself")
                if id(found) in done:
                    continue
                above.append(id(found))
                left.append(None)
            elif id(found) in seen:
                continue
            seen.add(id(found))
            left += [part for part in _parts_of(found) if not isinstance(part, _PLAIN)]


def _parts_of(found: Any) -> Iterable[Any]:
    if isinstance(found, dict):
        return found.values()
    if isinstance(found, list | tuple | deque | set):
        return found
    return vars(found).values() if type(found).__module__.startswith("river.") and hasattr(found, "__dict__") else ()


def _check_sizes(made: Any, expected: Mapping[str, Any]) -> None:
    """Raise a CorruptError where a list of an ensemble is not as long as that of its models, as it was when it was made."""
    n_usual, n_models = len(expected.get("data", ())), len(made.data)
    for name, usual in expected.items():
        if isinstance(usual, list) and len(usual) == n_usual > 0 and len(vars(made)[name]) != n_models:
            raise CorruptError(f"{name} of a {type(made).__name__} are {len(vars(made)[name])}, not one for each model")


def _unlike_expected(made: Any, expected: Mapping[str, Any]) -> str:
    """Return what an object lacks, or what of it cannot be; "" where it is as expected."""
    for name, usual in expected.items():
        if name not in vars(made):
            if name in _MAY_END:
                continue
            return f"a {type(made).__name__} has no {name}"
        found = vars(made)[name]
        if not (usual is None or _is_like(found, usual) or (found is None and name in _MAY_END)):
            return f"{name} of a {type(made).__name__} cannot be {shown(found)}"
    return ""


def _check_steps(made: Any, name: str) -> None:
    steps = vars(made).get(name)
    if not isinstance(steps, dict) or not all(isinstance(key, str) for key in steps):
        raise CorruptError(f"{name} of a {type(made).__name__} are none: {shown(steps)}")
    if not all(isinstance(step, base.Estimator) for step in steps.values()):
        raise CorruptError(f"{name} of a {type(made).__name__} are no models")


def _has_method(step: Any, method: str) -> bool:
    return callable(getattr(type(step), method, None))


def _is_like(found: Any, usual: Any, within: bool = False) -> bool:
    """Whether a value may stand where another one stands usually. With other parameters, an object may have the number."""
    if isinstance(usual, str):
        return isinstance(found, str)
    if isinstance(usual, Number):
        return found is not None and not isinstance(found, str | bytes | dict | list | set | tuple)
    for kind in _KINDS:
        if isinstance(usual, kind):
            return isinstance(found, kind)
    if isinstance(usual, defaultdict) and isinstance(next(iter(usual.values()), 0), Number | stats.base.Statistic):
        return isinstance(found, defaultdict) and callable(found.default_factory) and _is_like(found, dict(usual))
    if isinstance(usual, MethodType):
        return callable(found)
    if isinstance(usual, dict | list):
        if isinstance(found, dict | list):
            if isinstance(found, dict) != isinstance(usual, dict):
                return within  # some are given as lists
            some = usual.values() if isinstance(usual, dict) else usual
            like = next(iter(some), None)
            values = found.values() if isinstance(found, dict) else found
            plain = _PLAIN if isinstance(like, str) else ()  # beside texts, a dict may hold numbers
            return like is None or all(isinstance(value, plain) or _is_like(value, like, True) for value in values)
        return not isinstance(found, _PLAIN) and not callable(found)  # another container
    if isinstance(usual, random.Random):
        return isinstance(found, random.Random)
    if isinstance(usual, set | tuple) or type(usual).__module__.startswith("river."):
        return not isinstance(found, _PLAIN)
    return True


@cache
def _expected_attributes(cls: Any, switches: tuple[tuple[str, Any], ...] = (), value: float | str = 1.0) -> Mapping[str, Any]:
    """Return the attributes of an object that the class makes itself; None stands for parameters, which are of many kinds.

    ``switches`` are parameters that are None, True, False or text: others could ask for any amount of memory. A transformer has
    learned a row with the ``value``; there are none where it does not learn text.
    """
    if not cls.__module__.startswith("river."):
        return {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            chosen = next(iter(cls._unit_test_params())) if hasattr(cls, "_unit_test_params") else {}
            made = cls(**{**chosen, **dict(switches)})
            attributes = vars(made)
            if isinstance(made, base.Transformer) and not made._supervised:
                with suppress(Exception) if value == 1.0 else nullcontext():  # of one that learns other rows
                    made.learn_one({"a": value, "b": value})
                    made.transform_one({"a": value, "b": value})
        except Exception:  # noqa: BLE001 - of a class that others make
            return {}
    parameters = inspect.signature(cls).parameters
    return {name: None if name in parameters else value for name, value in attributes.items()}
