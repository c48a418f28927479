"""Saves and restores river's objects that are written in Rust, its statistics and ADWIN, and checks restored pipelines.

Objects in Rust return their state as bytes, and accept any bytes as a state. Invalid ones end in a Rust panic, which is not an
Exception, so `restore_object` tests a state before it returns an object.
"""

from __future__ import annotations

import struct
from numbers import Real
from typing import Any

from river import base, compose
from river._river_rust import drift as compiled_drift
from river._river_rust import stats as compiled
from river.utils import VectorDict

ConstructorArguments = tuple[Any, ...]

#: River's classes that are written in Rust, except `VectorDict`, whose parts are Python objects.
COMPILED_CLASSES: tuple[type, ...] = (
    compiled_drift.AdaptiveWindowing,
    *(cls for cls in vars(compiled).values() if isinstance(cls, type) and hasattr(cls, "__setstate__")),
)
#: Classes whose last argument is a window length, for which the constructor reserves memory. The state contains it as well.
_WINDOWED: tuple[type, ...] = tuple(getattr(compiled, f"RsRolling{name}") for name in ("IQR", "Quantile", "PRAUC", "ROCAUC"))


def get_state(instance: Any) -> tuple[ConstructorArguments, bytes]:
    """Return (constructor arguments, state bytes) of ``instance``, an object of one of river's classes that are written in Rust.
    `restore_object` creates an equal object from them.

    Equal objects have equal states.

    >>> from river.stats import EWMean
    >>> mean = EWMean(0.25)
    >>> mean.update(3)
    >>> arguments, state = get_state(mean._ewmean)
    >>> arguments, len(state)
    ((0.25,), 33)
    >>> restore_object(type(mean._ewmean), arguments, state).get()
    3.0
    """
    state = instance.__getstate__()
    if type(instance) is compiled.RsQuantile:  # it is pickled without its argument, which has a default
        return struct.unpack_from("<d", state), state
    return getattr(instance, "__getnewargs__", tuple)(), state


def restore_object(cls: type[Any], arguments: ConstructorArguments, state: bytes) -> Any:
    """Create an object of ``cls``, one of river's classes that are written in Rust, from the constructor ``arguments`` and
    ``state`` bytes that `get_state` returned. Raises ValueError if they are invalid.
    """
    if cls not in COMPILED_CLASSES or type(state) is not bytes:
        raise ValueError(f"{cls.__name__} is not one of river's classes with a compiled state")
    try:
        instance = cls(*arguments[:-1], 1) if cls in _WINDOWED else cls(*arguments)
        instance.__setstate__(state)
        if get_state(instance) == (arguments, state):
            return instance
    except BaseException as error:  # a panic of Rust is not an Exception
        if isinstance(error, KeyboardInterrupt | SystemExit):
            raise
    raise ValueError(f"the state of a {cls.__name__} is corrupt, or of another version of river")


def get_vector_dict_parts(instance: VectorDict[Any, Any]) -> tuple[dict[Any, Any], Any, set[Any] | None]:
    """Return the parts of a river `VectorDict`: a dict of its visible values, its default factory or None, and its mask, which is
    the set of visible keys, or None if all are visible.

    >>> get_vector_dict_parts(make_vector_dict({"a": 1.5, "b": 2.0}, None, {"a"}))
    ({'a': 1.5}, None, {'a'})
    """
    _, (values, default_factory, mask, _) = instance.__reduce__()
    return values, default_factory, None if mask is None else set(mask)


def make_vector_dict(values: dict[Any, Any], default_factory: Any, mask: set[Any] | None) -> VectorDict[Any, Any]:
    """Create a river `VectorDict` from ``values``, a dict of numbers, a function for default values (or None), and ``mask``, the
    set of visible keys (None: all). Raises ValueError if a value is not a number, or ``default_factory`` is not callable.
    """
    are_numbers = all(isinstance(value, Real) for value in values.values())
    if not (are_numbers and (default_factory is None or callable(default_factory))):
        raise ValueError("a VectorDict must have numbers as values, and a callable or None as default factory")
    return VectorDict(values, default_factory, mask, True)


def check_nesting(model: Any) -> None:
    """Raise a RecursionError if a pipeline, or a wrapper of a model, ends in itself."""
    if isinstance(model, compose.Pipeline) and model.steps:
        check_nesting(next(reversed(model.steps.values())))
    elif isinstance(model, base.Wrapper):
        check_nesting(model._wrapped_model)
