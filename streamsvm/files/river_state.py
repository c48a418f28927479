"""The state of river's compiled objects as bytes, and back: each state is checked before compiled code reads it.

river's statistics and ADWIN are written in Rust. Such an object gives its state as bytes and takes back any bytes: wrong ones
end in a panic, at once or in a later update, which no ``except Exception`` catches. So the bytes are read here first, by the
layout of the class: a function, which raises a ValueError where a state cannot be.

Numbers are little-endian; a vector is its length (u64) and its values; a flag is a byte. Each function takes the bytes and the
arguments of the constructor, and checks every length, count and flag, all that follows from the arguments, all that must agree.
The layouts are those of river 0.26; another one is refused.
"""

from __future__ import annotations

import itertools
import math
import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from numbers import Real
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from river._river_rust import drift as compiled_drift
from river._river_rust import stats as compiled
from river.utils import VectorDict

from streamsvm.files.messages import shown

#: The longest window that is read: a copy of the object reserves memory for all of it.
_LONGEST_WINDOW = 2**22
#: With one bucket a size river's ADWIN panics when it drops the oldest; its search takes the square of their number.
_FEWEST_BUCKETS, _MOST_BUCKETS = 2, 200
_I32 = 2**31 - 1

#: The most rows that an object may have seen, so that no count comes to its end.
_MOST_ROWS = 2**40
#: The highest bit of an entry of a rolling AUC is its label, the others are its number.
_POSITIVE = np.uint64(2**63)
_ENTRY = np.dtype([("score", "<f8"), ("packed", "<u8")])

Arguments = tuple[Any, ...]


# Layouts ----------------------------------------------------------------------------------------------------------------------


class _StateBytes:
    """A state that is read from its start to its end."""

    def __init__(self, state: bytes) -> None:
        self.state = state
        self.at: int = 0

    def take(self, form: str) -> tuple[Any, ...]:
        """The next numbers, of a form as ``struct`` has it."""
        return struct.unpack("<" + form, self._next_bytes(struct.calcsize("<" + form)))

    def flag(self) -> bool:
        (value,) = self.take("B")
        if value > 1:
            raise ValueError(f"a flag is {value}, not 0 or 1")
        return bool(value)

    def vector(self, dtype: Any, least: int, most: int) -> NDArray[Any]:
        """The next vector, whose length lies in a range."""
        (length,) = self.take("Q")
        if not least <= length <= most:
            raise ValueError(f"a vector has {length} values, not {least} to {most}")
        return np.frombuffer(self._next_bytes(length * np.dtype(dtype).itemsize), dtype)

    def end(self) -> None:
        if self.at != len(self.state):
            raise ValueError(f"it has {len(self.state)} bytes, not {self.at}")

    def _next_bytes(self, size: int) -> bytes:
        if size > len(self.state) - self.at:
            raise ValueError(f"it ends after {len(self.state)} bytes, within a value")
        self.at += size
        return self.state[self.at - size : self.at]


def _check_same(found: tuple[Any, ...], due: tuple[Any, ...], what: str) -> None:
    """Raise a ValueError unless numbers are those that are due, bit by bit."""
    if repr(found) != repr(due):
        raise ValueError(f"{what}: {found}, not {due}")


def _ew_mean(read: _StateBytes, alpha: float) -> None:
    (mean,) = read.take("d")
    _check_same(read.take("2d"), (alpha, 1 - alpha), "weights of a mean")
    if not read.flag():
        _check_same((mean,), (0.0,), "a mean of no values")


def _read_ew_mean(read: _StateBytes, alpha: float) -> None:
    _ew_mean(read, alpha)
    _check_same(read.take("d"), (alpha,), "the fading factor")


def _read_ew_var(read: _StateBytes, alpha: float) -> None:
    """Weighted means of the values and of their squares."""
    _ew_mean(read, alpha)
    _ew_mean(read, alpha)
    _check_same(read.take("2d"), (alpha, alpha), "the fading factor")


def _read_moments(read: _StateBytes) -> tuple[float, ...]:
    """Central moments: delta, the mean, the last addition to the second, the second to the fourth, the number of values."""
    moments = read.take("7d")
    count = moments[-1]
    if not 0 <= count <= _MOST_ROWS or count % 1 != 0:
        raise ValueError(f"the number of values is {count}")
    if moments[3] < 0:
        raise ValueError(f"the second moment is {moments[3]}, below zero")
    if count == 0:
        _check_same(moments, (0.0,) * 7, "moments of no values")
    return moments


def _read_kurtosis(read: _StateBytes, bias: bool) -> None:
    """Central moments between two notes of the bias."""
    _check_same((read.flag(),), (bias,), "bias")
    _read_moments(read)
    _check_same((read.flag(),), (bias,), "bias")


def _read_skew(read: _StateBytes, bias: bool) -> None:
    _check_same((_read_moments(read)[5],), (0.0,), "the fourth moment, which a skew does not have")
    _check_same((read.flag(), read.flag()), (bias, bias), "bias")


def _read_peak_to_peak(read: _StateBytes) -> None:
    largest = float(np.finfo(np.float64).max)
    low, high = read.take("2d")
    if not (low <= high and low <= largest and high >= -largest):
        _check_same((low, high), (largest, -largest), "minimum and maximum")


def _read_markers(read: _StateBytes, q: float) -> tuple[int, float]:
    """A P2 estimator: wanted and real positions of five markers, and their heights. Returns the first values and the rows."""
    steps = (0.0, q / 2, q, (1 + q) / 2, 1.0)
    starts, firsts = (1.0, 1 + 2 * q, 1 + 4 * q, 3 + 2 * q, 5.0), (1.0, 2.0, 3.0, 4.0, 5.0)
    _check_same(read.take("6d"), (q, *steps), "the quantile and the steps of its markers")
    wanted, positions, heights, (known,) = read.take("5d"), read.take("5d"), read.take("5d"), read.take("B")
    if known > 5:
        raise ValueError(f"{known} first values, more than 5")
    if not read.flag():  # the first values, as they came
        _check_same((wanted, positions), (starts, firsts), "markers of the first five values")
        _check_same(heights[known:], (0.0,) * (5 - known), "values that did not come yet")
        if any(map(math.isnan, heights[:known])):
            raise ValueError("one of the first five values is NaN")
        return known, positions[4]
    rows = positions[4]
    if known != 5 or not 6 <= rows <= _MOST_ROWS:
        raise ValueError(f"{known} first values of {rows} rows")
    gaps = [b - a for a, b in itertools.pairwise(positions)]
    if positions[0] != 1 or any(not gap >= 1 or gap % 1 != 0 for gap in gaps):
        raise ValueError(f"markers at {positions}, not at whole numbers from 1 that grow")
    more = rows - 5
    for place, start, step in zip(wanted, starts, steps, strict=True):
        if not abs(place - (start + more * step)) <= rows * (more + 8) * 2.0**-52:
            raise ValueError(f"a marker is wanted at {place}, not at {start + more * step}")
    return known, rows


def _read_iqr(read: _StateBytes, low: float, high: float) -> None:
    """Two P2 estimators of the same rows."""
    _check_same(_read_markers(read, low), _read_markers(read, high), "rows of the two quantiles")
    _check_same(read.take("2d"), (low, high), "the quantiles")
    _check_order(low, high)


def _check_order(low: float, high: float) -> None:
    if not low < high:
        raise ValueError(f"the lower quantile, {low}, is not below the upper, {high}")


def _read_window(read: _StateBytes, size: int) -> None:
    ordered = read.vector("<f8", 0, size)
    values = read.vector("<f8", 0, size)
    if np.isnan(values).any() or not np.array_equal(ordered, np.sort(values)):
        raise ValueError("the sorted values are not those of the window")
    _check_same(read.take("Q"), (size,), "the length of the window")


def _places_between(q: float, size: int) -> tuple[int, int, float]:
    """The two places in a full window between which its quantile lies, and how far from the first."""
    place = q * (size - 1.0)
    low = math.floor(place)
    return low, low + 1 if low + 1 < size else max(low - 1, 0), place - low


def _read_rolling_quantile(read: _StateBytes, q: float, size: int) -> None:
    _read_window(read, size)
    _check_same(read.take("dQQQd"), (q, size, *_places_between(q, size)), "places of the quantile")
    _check_same(read.take("dQ"), (q, size), "the quantile and the length of the window")


def _read_rolling_iqr(read: _StateBytes, low: float, high: float, size: int) -> None:
    """A window and the places of two quantiles in it."""
    _read_window(read, size)
    due = (low, high, size, *_places_between(low, size), *_places_between(high, size))
    _check_same(read.take("ddQQQdQQd"), due, "places of the quantiles")
    _check_same(read.take("ddQ"), (low, high, size), "the quantiles and the length of the window")
    _check_order(low, high)


def _read_rolling_auc(read: _StateBytes, label: int, size: int) -> None:
    """Scores with labels, as they came and from the lowest to the highest (ties by label and number)."""
    _check_same(read.take("iQ"), (label, size), "the label and the length of the window")
    positives, following = read.take("QQ")
    window = read.vector(_ENTRY, 0, size)
    ordered = read.vector(_ENTRY, 0, size)
    packed = window["packed"]
    numbers = (packed & ~_POSITIVE).astype(np.int64)
    if following >= 2**62 or (np.diff(numbers) < 1).any() or (numbers[-1:] >= following).any():
        raise ValueError("the numbers of its scores do not grow")
    _check_same((positives,), (int(np.count_nonzero(packed & _POSITIVE)),), "rows of the positive label")
    bits = window["score"].copy().view(np.int64)
    ranks = np.lexsort((packed, bits ^ ((bits >> 63) & np.int64(2**63 - 1))))  # as Rust's total_cmp orders
    if ordered.tobytes() != window[ranks].tobytes():
        raise ValueError("the sorted scores are not those of the window")
    _check_same(read.take("iQ"), (label, size), "the label and the length of the window")


def _read_adwin(read: _StateBytes, delta: float, clock: int, buckets: int, shortest: int, grace: int) -> None:
    """A window as buckets: those of level i stand for 2^i rows each, with their total and their variance."""
    due = (delta, clock, buckets, float(shortest), float(grace))
    _check_same(read.take("diQdd"), due, "the parameters")
    total, variance, width, widths = read.take("4d")
    read.take("4i")  # buckets, most buckets, rows and detections so far: river lets them wrap
    (levels,) = read.take("Q")
    rows = 0
    for level in range(levels):
        most, known = read.take("QQ")
        both = [read.vector("<f8", buckets + 1, buckets + 1) for _ in range(2)]
        if most != buckets or known > buckets or (known == 0 and levels > 1):
            raise ValueError(f"level {level} has {known} buckets of {most}")
        if any(values[known:].tobytes().strip(b"\0") for values in both):
            raise ValueError(f"level {level} has values behind its last bucket")
        rows += known << level
        if rows > _MOST_ROWS:
            raise ValueError(f"its buckets are of more than {_MOST_ROWS} rows")
    if levels == 0 or width != rows or not width <= widths < math.inf:
        raise ValueError(f"a window of {width} rows in {levels} levels with {rows} rows")
    if rows == 0:
        _check_same((total, variance, widths), (0.0, 0.0, 0.0), "sums of no rows")
    _check_same(read.take("diQii"), (delta, clock, buckets, shortest, grace), "the parameters")


# Classes ----------------------------------------------------------------------------------------------------------------------


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
    read: Callable[..., Any]
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
        read = _StateBytes(state)
        self.read(read, *arguments)
        read.end()


def _share_argument(name: str) -> _Argument:
    return _Argument(name, float, 0, 1)


_BIAS = _Argument("bias", bool, 0, 1)
_FADING = _share_argument("fading_factor")
_LABEL = _Argument("pos_val", int, -_I32 - 1, _I32)
_QUANTILES = _share_argument("q_inf"), _share_argument("q_sup")
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
        compiled_drift.AdaptiveWindowing: Compiled(_ADWIN, _read_adwin, "drift.adwin.ADWIN", "_helper"),
        compiled.RsEWMean: Compiled((_FADING,), _read_ew_mean, "stats.ewmean.EWMean", "_ewmean"),
        compiled.RsEWVar: Compiled((_FADING,), _read_ew_var, "stats.ewvar.EWVar", "_ewvar"),
        compiled.RsIQR: Compiled(_QUANTILES, _read_iqr, "stats.iqr.IQR", "_iqr"),
        compiled.RsKurtosis: Compiled((_BIAS,), _read_kurtosis, "stats.kurtosis.Kurtosis", "_kurtosis"),
        compiled.RsPeakToPeak: Compiled((), _read_peak_to_peak, "stats.ptp.PeakToPeak", "_ptp"),
        compiled.RsQuantile: Compiled((_share_argument("q"),), _read_markers, "stats.quantile.Quantile", "_quantile"),
        compiled.RsRollingIQR: Compiled((*_QUANTILES, _VALUES), _read_rolling_iqr, "stats.iqr.RollingIQR", "_rolling_iqr"),
        compiled.RsRollingPRAUC: Compiled((_LABEL, _SCORES), _read_rolling_auc, "metrics.rolling_pr_auc.RollingPRAUC", "_metric"),
        compiled.RsRollingQuantile: Compiled(
            (_share_argument("q"), _VALUES), _read_rolling_quantile, "stats.quantile.RollingQuantile", "_rolling_quantile"
        ),
        compiled.RsRollingROCAUC: Compiled(
            (_LABEL, _SCORES), _read_rolling_auc, "metrics.rolling_roc_auc.RollingROCAUC", "_metric"
        ),
        compiled.RsSkew: Compiled((_BIAS,), _read_skew, "stats.skew.Skew", "_skew"),
    }
)
_BY_WRAPPER = {"river." + form.wrapper: cls for cls, form in COMPILED.items()}
#: These panic when they are asked for a value of no values; their wrappers do not ask before the first.
_NEVER_EMPTY = compiled.RsRollingIQR, compiled.RsRollingQuantile


def _check_state(cls: type, arguments: Arguments, state: bytes, problem: str) -> None:
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
    _check_state(type(instance), arguments, state, "a {} cannot be kept")
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
    _check_state(cls, arguments, state, "the state of a {} is corrupt")
    # The constructor reserves memory for a whole window; the state brings the length.
    windows = (_VALUES, _SCORES)
    small = (1 if form in windows else value for form, value in zip(COMPILED[cls].arguments, arguments, strict=True))
    instance = cls(*small)
    instance.__setstate__(state)
    return instance


def check_wrapper(instance: object) -> None:
    """Raise a ValueError where an object of river that was filled from a file says wrong things of the compiled object in it.

    A StandardScaler must hold numbers, which may be NaN, for river's scaler learns that too.
    ADWIN makes its compiled object anew after a drift, from its own parameters; a rolling quantile asks the compiled object for a
    value as soon as it has noted that there was one. So these have to be right too, or compiled code panics later.
    """
    names = [f"{kind.__module__}.{kind.__qualname__}" for kind in type(instance).__mro__]
    if "river.preprocessing.scale.StandardScaler" in names:
        _check_scaler(vars(instance))
    cls = next((_BY_WRAPPER[name] for name in names if name in _BY_WRAPPER), None)
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


_REAL = (int, float, np.floating, np.integer)


def _check_scaler(own: Mapping[str, Any]) -> None:
    if not own:
        return
    windowed = own.get("window_size") is not None  # its numbers are objects
    for name, kinds in (("counts", int), ("means", _REAL), ("vars", _REAL)):
        values = own.get(name)
        wanted = Counter if name == "counts" else defaultdict  # which know what a feature has that never came
        if not isinstance(values, wanted) or getattr(values, "default_factory", 0) is None:
            raise ValueError(f"{name} of a StandardScaler are {shown(values)}, and no {wanted.__name__}")
        for value in values.values():
            good = hasattr(value, "get") if windowed and kinds is not int else isinstance(value, kinds)
            if not good or isinstance(value, bool) or (kinds is int and value < 0):
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
