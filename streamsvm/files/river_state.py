"""The state of river's compiled objects as bytes, and back: each state is checked before compiled code reads it.

river's statistics and ADWIN are written in Rust. Such an object gives its state as bytes and takes back any bytes: wrong ones
end in a panic, at once or in a later update, which no ``except Exception`` catches. So the bytes are read here first, by the
layout of the class.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from river._river_rust import drift as compiled_drift
from river._river_rust import stats as compiled
from river.utils import VectorDict

from streamsvm.files import river_layouts as layouts
from streamsvm.files.messages import shown

#: The longest window that is read: a copy of the object reserves memory for all of it.
_LONGEST_WINDOW = 2**22
#: With one bucket a size river's ADWIN panics when it drops the oldest; its search takes the square of their number.
_FEWEST_BUCKETS, _MOST_BUCKETS = 2, 200
_I32 = 2**31 - 1

Arguments = tuple[Any, ...]


class _Argument(NamedTuple):
    """An argument of a constructor: its name, also at river's wrapper of the compiled object, its type and its range."""

    name: str
    kind: type
    low: float
    high: float

    def check(self, value: object) -> None:
        if type(value) is not self.kind:
            raise ValueError(f"{self.name} is {shown(value)}, not of type {self.kind.__name__}")
        if not self.low <= value <= self.high:  # type: ignore[operator]
            raise ValueError(f"{self.name} is {shown(value)}, not in [{self.low:g}, {self.high:g}]")


@dataclass(frozen=True)
class Compiled:
    """A class of river: the arguments of its constructor, how its state is read, whose attribute it is."""

    arguments: tuple[_Argument, ...]
    read: Callable[..., None]
    wrapper: str
    attribute: str

    def check(self, arguments: Arguments, state: bytes) -> None:
        """Raise a ValueError that says why an object with this state may not be made."""
        if type(arguments) is not tuple or len(arguments) != len(self.arguments):
            raise ValueError(f"the arguments are {shown(arguments)}, not {len(self.arguments)} values")
        if type(state) is not bytes:
            raise ValueError(f"it is {type(state).__name__}, not bytes")
        for argument, value in zip(self.arguments, arguments, strict=True):
            argument.check(value)
        read = layouts.StateBytes(state)
        self.read(read, *arguments)
        read.end()


def _share(name: str) -> _Argument:
    return _Argument(name, float, 0, 1)


_BIAS = _Argument("bias", bool, 0, 1)
_FADING = _share("fading_factor")
_LABEL = _Argument("pos_val", int, -_I32 - 1, _I32)
_QUANTILES = _share("q_inf"), _share("q_sup")
_VALUES = _Argument("window_size_value", int, 1, _LONGEST_WINDOW)
_SCORES = _Argument("window_size", int, 1, _LONGEST_WINDOW)
_ADWIN = (
    _Argument("delta", float, -math.inf, math.inf),
    _Argument("clock", int, 1, _I32),
    _Argument("max_buckets", int, _FEWEST_BUCKETS, _MOST_BUCKETS),
    _Argument("min_window_length", int, -_I32 - 1, _I32),
    _Argument("grace_period", int, -_I32 - 1, _I32),
)

#: river's classes whose state is compiled. `VectorDict` is none of them: its parts are objects of Python.
COMPILED: Mapping[type, Compiled] = MappingProxyType(
    {
        compiled_drift.AdaptiveWindowing: Compiled(_ADWIN, layouts.read_adwin, "drift.adwin.ADWIN", "_helper"),
        compiled.RsEWMean: Compiled((_FADING,), layouts.read_ew_mean, "stats.ewmean.EWMean", "_ewmean"),
        compiled.RsEWVar: Compiled((_FADING,), layouts.read_ew_var, "stats.ewvar.EWVar", "_ewvar"),
        compiled.RsIQR: Compiled(_QUANTILES, layouts.read_iqr, "stats.iqr.IQR", "_iqr"),
        compiled.RsKurtosis: Compiled((_BIAS,), layouts.read_kurtosis, "stats.kurtosis.Kurtosis", "_kurtosis"),
        compiled.RsPeakToPeak: Compiled((), layouts.read_peak_to_peak, "stats.ptp.PeakToPeak", "_ptp"),
        compiled.RsQuantile: Compiled((_share("q"),), layouts.read_quantile, "stats.quantile.Quantile", "_quantile"),
        compiled.RsRollingIQR: Compiled((*_QUANTILES, _VALUES), layouts.read_rolling_iqr, "stats.iqr.RollingIQR", "_rolling_iqr"),
        compiled.RsRollingPRAUC: Compiled(
            (_LABEL, _SCORES), layouts.read_rolling_auc, "metrics.rolling_pr_auc.RollingPRAUC", "_metric"
        ),
        compiled.RsRollingQuantile: Compiled(
            (_share("q"), _VALUES), layouts.read_rolling_quantile, "stats.quantile.RollingQuantile", "_rolling_quantile"
        ),
        compiled.RsRollingROCAUC: Compiled(
            (_LABEL, _SCORES), layouts.read_rolling_auc, "metrics.rolling_roc_auc.RollingROCAUC", "_metric"
        ),
        compiled.RsSkew: Compiled((_BIAS,), layouts.read_skew, "stats.skew.Skew", "_skew"),
    }
)
_BY_WRAPPER = {"river." + form.wrapper: cls for cls, form in COMPILED.items()}
#: These panic when they are asked for a value of no values; their wrappers do not ask before the first.
_NEVER_EMPTY = compiled.RsRollingIQR, compiled.RsRollingQuantile


def _checked(cls: type, arguments: Arguments, state: bytes, problem: str) -> None:
    if cls not in COMPILED:
        raise ValueError(f"{cls.__name__} is not one of river's classes with a compiled state that are known here")
    try:
        COMPILED[cls].check(arguments, state)
    except ValueError as error:
        raise ValueError(f"{problem.format(cls.__name__)}: {error}") from None


def state_of(instance: Any) -> tuple[Arguments, bytes]:
    """Return the constructor's arguments and the state of one of river's compiled objects, from which `restore` makes it again.

    Equal objects have equal states. It is a ValueError if `restore` would refuse them: an ADWIN of one bucket a size (river's
    panics), a window of more than 4,194,304 rows, NaN among the first five values of a quantile, another version of river.

    >>> from river.stats import EWMean
    >>> mean = EWMean(0.25)
    >>> mean.update(3)
    >>> arguments, state = state_of(mean._ewmean)
    >>> arguments, len(state)
    ((0.25,), 33)
    >>> restore(type(mean._ewmean), arguments, state).get()
    3.0
    """
    state = instance.__getstate__()
    if type(instance) is compiled.RsQuantile:  # whose constructor has a default: it is pickled without arguments
        arguments = struct.unpack_from("<d", state)
    else:
        arguments = getattr(instance, "__getnewargs__", tuple)()
    _checked(type(instance), arguments, state, "a {} cannot be kept")
    return arguments, state


def restore(cls: type, arguments: Arguments, state: bytes) -> Any:
    """Make one of river's compiled objects from what `state_of` gave, or from bytes of a stranger: no later use of it panics.

    It is a ValueError if the class is not known here, or an argument (whose very type counts) or the state is not what an object
    of the class can have.

    >>> from river._river_rust.stats import RsEWMean
    >>> restore(RsEWMean, (0.25,), bytes(33))
    Traceback (most recent call last):
    ...
    ValueError: the state of a RsEWMean is corrupt: weights of a mean: (0.0, 0.0), not (0.25, 0.75)
    """
    _checked(cls, arguments, state, "the state of a {} is corrupt")
    # The constructor reserves memory for a whole window; the state brings the length.
    windows = (_VALUES, _SCORES)
    small = (1 if form in windows else value for form, value in zip(COMPILED[cls].arguments, arguments, strict=True))
    instance = cls(*small)
    instance.__setstate__(state)
    return instance


def _names(instance: object) -> list[str]:
    return [f"{kind.__module__}.{kind.__qualname__}" for kind in type(instance).__mro__]


def check_wrapper(instance: object) -> None:
    """Raise a ValueError where an object of river that was filled from a file says wrong things of the compiled object in it.

    ADWIN makes its compiled object anew after a drift, from its own parameters; a rolling quantile asks the compiled object for a
    value as soon as it has noted that there was one. So these have to be right too, or compiled code panics later.
    """
    cls = next((_BY_WRAPPER[name] for name in _names(instance) if name in _BY_WRAPPER), None)
    if cls is None:
        return
    form, own, name = COMPILED[cls], vars(instance), type(instance).__name__
    held = own.get(form.attribute)
    if type(held) is not cls:
        raise ValueError(f"{form.attribute} of a {name} is {type(held).__name__}, not {cls.__name__}")
    for argument in form.arguments:
        value = own.get(argument.name)
        if argument is _LABEL:  # may be anything that int takes, and is read in the constructor only
            continue
        if not isinstance(value, (Real, np.bool_)):
            raise ValueError(f"{argument.name} of a {name} is {shown(value)}, not a number")
        try:
            argument.check(argument.kind(value))
        except (ValueError, OverflowError) as error:
            raise ValueError(f"a {name} is corrupt: {error}") from None
    if cls in _NEVER_EMPTY and own.get("_is_updated") and state_of(held)[1].startswith(bytes(8)):
        raise ValueError(f"a {name} is corrupt: it says that it has values, and its window is empty")


def check_scaler(instance: object) -> None:
    """Raise a ValueError where a StandardScaler of river that was filled from a file holds what is no number.

    A number may be NaN, for river's scaler learns that too.
    """
    own = vars(instance) if "river.preprocessing.scale.StandardScaler" in _names(instance) else {}
    if not own or own.get("window_size") is not None:  # whose numbers are objects
        return
    for name, kinds in (("counts", int), ("means", (int, float, np.number)), ("vars", (int, float, np.number))):
        values = own.get(name)
        if not isinstance(values, dict):
            raise ValueError(f"{name} of a StandardScaler are {shown(values)}, and no dict")
        for value in values.values():
            if not isinstance(value, kinds) or isinstance(value, bool) or (kinds is int and value < 0):
                raise ValueError(f"a StandardScaler has {shown(value)} among its {name}")


def vector_dict_parts(instance: VectorDict[Any, Any]) -> tuple[dict[Any, Any], Any, set[Any] | None]:
    """Return the values that a `VectorDict` lets through, what makes the value of an absent key, and its mask, as a set or None.

    `make_vector_dict` makes it again of them; it is a ValueError if that would refuse them.

    >>> vector_dict_parts(make_vector_dict({"a": 1.5, "b": 2.0}, None, {"a"}))
    ({'a': 1.5}, None, {'a'})
    """
    _, (values, default_factory, mask, _) = instance.__reduce__()
    mask = None if mask is None else set(mask)
    _check_vector_dict(values, default_factory, mask)
    return values, default_factory, mask


def make_vector_dict(values: dict[Any, Any], default_factory: Any, mask: set[Any] | None) -> VectorDict[Any, Any]:
    """Make a `VectorDict` from its parts, which were read already, with a copy of the values that the mask lets through.

    It is a ValueError if a part is of another type: values are numbers, and ``default_factory``, which is called for a key that
    is not there, is None, the type float or int, or an initializer of river.
    """
    _check_vector_dict(values, default_factory, mask)
    return VectorDict(values, default_factory, mask, True)


def _check_vector_dict(values: object, default_factory: object, mask: object) -> None:
    from river.optim.base import Initializer  # noqa: PLC0415 - river.optim takes long to import, and few models have it

    if type(values) is not dict or not all(isinstance(value, Real) for value in values.values()):
        raise ValueError("the values of a VectorDict are not a dict of numbers")
    if not (default_factory is None or default_factory in (float, int) or isinstance(default_factory, Initializer)):
        raise ValueError(f"the default_factory of a VectorDict is {shown(default_factory)}, not an initializer of river")
    if not (mask is None or type(mask) is set):
        raise ValueError(f"the mask of a VectorDict is {type(mask).__name__}, not a set")
