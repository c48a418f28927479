"""The base class of objects whose state in a checkpoint consists of some of their attributes, and the store of the others."""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from contextvars import ContextVar
from typing import Any, ClassVar

import numpy as np

#: The `streamsvm.stream.key_store.KeyStore` of the checkpoint that is being written or read: a model with blocks for keys writes
#: them there. None if these belong to its state.
BLOCK_STORE: ContextVar[Any] = ContextVar("BLOCK_STORE", default=None)
_MAX_COUNT = 2**53  # so that sums of counts are exact


class Resumable:
    """An object that can resume from its saved state. Subclasses list the saved attributes in ``_saved_attributes``.

    Checksums detect damaged files, but a crafted one can contain anything. So a saved value must be of the same kind as the value
    in a new object: counts must not be negative, numbers finite, arrays of the same shape and dtype, and queues not too long.

    >>> class Mean(Resumable):
    ...     _saved_attributes = ("_rows", "_total")
    ...     def __init__(self):
    ...         self._rows, self._total = 0, 0.0
    >>> mean = Mean()
    >>> mean.resume({"rows": 2, "total": 3.5})
    >>> mean.state
    {'rows': 2, 'total': 3.5}
    >>> mean.resume({"rows": -1, "total": 3.5})
    Traceback (most recent call last):
        ...
    ValueError: rows of a saved Mean cannot be -1
    """

    _saved_attributes: ClassVar[tuple[str, ...]]
    """The names of the saved attributes."""
    _newer_attributes: ClassVar[frozenset[str]] = frozenset()
    """Saved attributes that keep their value if a checkpoint of an earlier version does not contain them."""

    @property
    def state(self) -> dict[str, Any]:
        """The saved attributes of this object as a dict, to be stored in a checkpoint. Keys are attribute names without a leading
        underscore.
        """
        return {name.lstrip("_"): _copy_to_saved(getattr(self, name)) for name in self._saved_attributes}

    def resume(self, state: Any) -> None:
        """Set the attributes of this object to the values in ``state``, a dict that the property `state` returned earlier. Raises
        ValueError, and changes nothing, if a value is missing or invalid.
        """
        cls = type(self).__name__
        names = [name for name in self._saved_attributes if name not in self._newer_attributes or name.lstrip("_") in state]
        if not isinstance(state, dict) or state.keys() != {name.lstrip("_") for name in names}:
            raise ValueError(f"there is no saved {cls}")
        restored = {}
        for name in names:
            value = state[name.lstrip("_")]
            try:
                restored[name] = _check_saved(getattr(self, name), value)
            except (TypeError, ValueError, AttributeError):
                raise ValueError(f"{name.lstrip('_')} of a saved {cls} cannot be {value!r:.80}") from None
        vars(self).update(restored)


def _copy_to_saved(value: Any) -> Any:
    """Convert the value of an attribute to the form that a checkpoint stores: a nested `Resumable` object becomes a dict of its
    attributes, and a deque an array. Other values are copied.
    """
    if isinstance(value, Resumable):
        return value.state
    if isinstance(value, deque):  # of floats or bools; as an array, because long lists are slow to write
        return np.array(value)
    return value.copy() if isinstance(value, np.ndarray | list | dict) else value


def _check_saved(current: Any, saved: Any) -> Any:
    """Validate ``saved``, a value from a checkpoint, as a replacement for ``current``, the present value of an attribute, and
    return a copy of it. Both must have the same type (arrays also the same shape and dtype), counts and arrays must not be
    negative, and floats be finite. Otherwise, raises ValueError, TypeError or AttributeError.
    """
    if isinstance(current, Resumable):
        resumed = copy.deepcopy(current)
        resumed.resume(saved)
        return resumed
    if isinstance(current, Counter):
        if not all(type(count) is int and 0 <= count < _MAX_COUNT for count in saved.values()):
            raise ValueError
        return Counter(saved)
    if isinstance(current, deque):
        if not (saved.ndim == 1 and len(saved) <= (current.maxlen or 0) and saved.dtype in (bool, np.float64)):
            raise ValueError
        return deque(saved.tolist(), current.maxlen)
    is_valid = type(saved) is type(current)
    if is_valid and type(current) is int:
        is_valid = 0 <= saved < _MAX_COUNT
    elif is_valid and type(current) is float:
        is_valid = math.isfinite(saved)
    elif is_valid and type(current) is np.ndarray:
        is_valid = saved.dtype == current.dtype and saved.shape == current.shape and bool((saved >= 0).all())
    if not is_valid:
        raise ValueError
    return saved.copy() if type(saved) is np.ndarray else saved
