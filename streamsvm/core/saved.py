"""Objects whose state in a checkpoint is some of their attributes: each class names these, and nothing else."""

from __future__ import annotations

import copy
import math
from collections import Counter, deque
from typing import Any, ClassVar

import numpy as np

_MOST = 2**53  # of a count, so that sums of counts are exact


class Resumable:
    """An object that goes on from its saved state.

    The checksum of a file tells what was damaged. What somebody has written there himself must have the kinds of values that a
    new object has: counts from 0 on, finite numbers, arrays of the same form, no more in a queue than it holds.

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
    """The names of the attributes."""

    @property
    def state(self) -> dict[str, Any]:
        """The attributes that a checkpoint saves."""
        return {name.lstrip("_"): _plain(getattr(self, name)) for name in self._saved_attributes}

    def resume(self, state: Any) -> None:
        """Go on from a saved `state`; a ValueError says that it is none of such an object, which stays as it was."""
        kind = type(self).__name__
        if not isinstance(state, dict) or state.keys() != {name.lstrip("_") for name in self._saved_attributes}:
            raise ValueError(f"there is no saved {kind}")
        found = {}
        for name in self._saved_attributes:
            value = state[name.lstrip("_")]
            try:
                found[name] = _as_in(getattr(self, name), value)
            except (TypeError, ValueError, AttributeError):
                raise ValueError(f"{name.lstrip('_')} of a saved {kind} cannot be {value!r:.80}") from None
        vars(self).update(found)


def _plain(value: Any) -> Any:
    if isinstance(value, Resumable):
        return value.state
    if isinstance(value, deque):  # of floats or bools; long lists are slow to write
        return np.array(value)
    return value.copy() if isinstance(value, np.ndarray | list | dict) else value


def _as_in(now: Any, found: Any) -> Any:
    """Return a saved value as an object holds it that has another one ``now``; an error if it is of another kind."""
    if isinstance(now, Resumable):
        made = copy.deepcopy(now)
        made.resume(found)
        return made
    if isinstance(now, Counter):
        if not all(type(count) is int and 0 <= count < _MOST for count in found.values()):
            raise ValueError
        return Counter(found)
    if isinstance(now, deque):
        if not (found.ndim == 1 and len(found) <= (now.maxlen or 0) and found.dtype in (bool, np.float64)):
            raise ValueError
        return deque(found.tolist(), now.maxlen)
    fits = type(found) is type(now)
    if fits and type(now) is int:
        fits = 0 <= found < _MOST
    elif fits and type(now) is float:
        fits = math.isfinite(found)
    elif fits and type(now) is np.ndarray:
        fits = found.dtype == now.dtype and found.shape == now.shape and bool((found >= 0).all())
    if not fits:
        raise ValueError
    return found.copy() if type(found) is np.ndarray else found
