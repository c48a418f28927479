"""The state of river's compiled objects as bytes, and back.

river's statistics and ADWIN are written in Rust. Such an object gives its state as bytes, and takes back any bytes: wrong ones
end in a panic, which is not an Exception. So a state is tried before an object with it is handed out.
"""

from __future__ import annotations

import struct
from numbers import Real
from typing import Any

from river._river_rust import drift as compiled_drift
from river._river_rust import stats as compiled
from river.utils import VectorDict

ConstructorArguments = tuple[Any, ...]

#: River's classes whose state is compiled. `VectorDict` is not among them: its parts are objects of Python.
COMPILED_CLASSES: tuple[type, ...] = (
    compiled_drift.AdaptiveWindowing,
    *(kind for kind in vars(compiled).values() if isinstance(kind, type) and hasattr(kind, "__setstate__")),
)
#: Their last argument is the length of a window, for which the constructor reserves memory; the state brings it, too.
_WINDOWED: tuple[type, ...] = tuple(getattr(compiled, f"RsRolling{name}") for name in ("IQR", "Quantile", "PRAUC", "ROCAUC"))


def get_state(instance: Any) -> tuple[ConstructorArguments, bytes]:
    """Return the constructor arguments and the state of one of river's compiled objects; `restore_object` is the inverse.

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
    if type(instance) is compiled.RsQuantile:  # whose constructor has a default: it is pickled without arguments
        return struct.unpack_from("<d", state), state
    return getattr(instance, "__getnewargs__", tuple)(), state


def restore_object(cls: type[Any], arguments: ConstructorArguments, state: bytes) -> Any:
    """Make one of river's compiled objects from its `get_state`. Raises ValueError if the state is invalid."""
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


def vector_dict_parts(instance: VectorDict[Any, Any]) -> tuple[dict[Any, Any], Any, set[Any] | None]:
    """Return the values that a `VectorDict` lets through, what makes the value of an absent key, and its mask, as a set or None.

    >>> vector_dict_parts(make_vector_dict({"a": 1.5, "b": 2.0}, None, {"a"}))
    ({'a': 1.5}, None, {'a'})
    """
    _, (values, default_factory, mask, _) = instance.__reduce__()
    return values, default_factory, None if mask is None else set(mask)


def make_vector_dict(values: dict[Any, Any], default_factory: Any, mask: set[Any] | None) -> VectorDict[Any, Any]:
    """Make a `VectorDict` from its parts; a ValueError where its values are no numbers, or what makes others cannot be called."""
    are_numbers = all(isinstance(value, Real) for value in values.values())
    if not (are_numbers and (default_factory is None or callable(default_factory))):
        raise ValueError("the values of a VectorDict are not numbers")
    return VectorDict(values, default_factory, mask, True)
