"""The layouts of the states of river's compiled objects: a function a layout, which raises a ValueError where a state cannot be.

Numbers are little-endian; a vector is its length (u64) and its values; a flag is a byte. Each function takes the bytes and the
arguments of the constructor, and checks every length, count and flag, all that follows from the arguments, all that must agree.
The layouts are those of river 0.26; another one is refused.
"""

from __future__ import annotations

import itertools
import math
import struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

#: The most rows that an object may have seen, so that no count comes to its end.
_MOST_ROWS = 2**40
#: The highest bit of an entry of a rolling AUC is its label, the others are its number.
_POSITIVE = np.uint64(2**63)
_ENTRY = np.dtype([("score", "<f8"), ("packed", "<u8")])


class StateBytes:
    """A state that is read from its start to its end."""

    def __init__(self, state: bytes) -> None:
        self.state = state
        self.at: int = 0

    def take(self, form: str) -> tuple[Any, ...]:
        """The next numbers, of a form as ``struct`` has it."""
        return struct.unpack("<" + form, self._next(struct.calcsize("<" + form)))

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
        return np.frombuffer(self._next(length * np.dtype(dtype).itemsize), dtype)

    def end(self) -> None:
        if self.at != len(self.state):
            raise ValueError(f"it has {len(self.state)} bytes, not {self.at}")

    def _next(self, size: int) -> bytes:
        if size > len(self.state) - self.at:
            raise ValueError(f"it ends after {len(self.state)} bytes, within a value")
        self.at += size
        return self.state[self.at - size : self.at]


def _same(found: tuple[Any, ...], due: tuple[Any, ...], what: str) -> None:
    """Raise a ValueError unless numbers are those that are due, bit by bit."""
    if repr(found) != repr(due):
        raise ValueError(f"{what}: {found}, not {due}")


def _ew_mean(read: StateBytes, alpha: float) -> None:
    (mean,) = read.take("d")
    _same(read.take("2d"), (alpha, 1 - alpha), "weights of a mean")
    if not read.flag():
        _same((mean,), (0.0,), "a mean of no values")


def read_ew_mean(read: StateBytes, alpha: float) -> None:
    """An exponentially weighted mean."""
    _ew_mean(read, alpha)
    _same(read.take("d"), (alpha,), "the fading factor")


def read_ew_var(read: StateBytes, alpha: float) -> None:
    """Weighted means of the values and of their squares."""
    _ew_mean(read, alpha)
    _ew_mean(read, alpha)
    _same(read.take("2d"), (alpha, alpha), "the fading factor")


def _moments(read: StateBytes) -> tuple[float, ...]:
    """Central moments: delta, the mean, the last addition to the second, the second to the fourth, the number of values."""
    moments = read.take("7d")
    count = moments[-1]
    if not 0 <= count <= _MOST_ROWS or count % 1 != 0:
        raise ValueError(f"the number of values is {count}")
    if moments[3] < 0:
        raise ValueError(f"the second moment is {moments[3]}, below zero")
    if count == 0:
        _same(moments, (0.0,) * 7, "moments of no values")
    return moments


def read_kurtosis(read: StateBytes, bias: bool) -> None:
    """Central moments between two notes of the bias."""
    _same((read.flag(),), (bias,), "bias")
    _moments(read)
    _same((read.flag(),), (bias,), "bias")


def read_skew(read: StateBytes, bias: bool) -> None:
    """Central moments and two notes of the bias."""
    _same((_moments(read)[5],), (0.0,), "the fourth moment, which a skew does not have")
    _same((read.flag(), read.flag()), (bias, bias), "bias")


def read_peak_to_peak(read: StateBytes) -> None:
    """The minimum and the maximum."""
    largest = float(np.finfo(np.float64).max)
    low, high = read.take("2d")
    if not (low <= high and low <= largest and high >= -largest):
        _same((low, high), (largest, -largest), "minimum and maximum")


def _quantile(read: StateBytes, q: float) -> tuple[int, float]:
    """A P2 estimator: wanted and real positions of five markers, and their heights. Returns the first values and the rows."""
    steps = (0.0, q / 2, q, (1 + q) / 2, 1.0)
    starts, firsts = (1.0, 1 + 2 * q, 1 + 4 * q, 3 + 2 * q, 5.0), (1.0, 2.0, 3.0, 4.0, 5.0)
    _same(read.take("6d"), (q, *steps), "the quantile and the steps of its markers")
    wanted, positions, heights, (known,) = read.take("5d"), read.take("5d"), read.take("5d"), read.take("B")
    if known > 5:
        raise ValueError(f"{known} first values, more than 5")
    if not read.flag():  # the first values, as they came
        _same((wanted, positions), (starts, firsts), "markers of the first five values")
        _same(heights[known:], (0.0,) * (5 - known), "values that did not come yet")
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


def read_quantile(read: StateBytes, q: float) -> None:
    """A P2 estimator."""
    _quantile(read, q)


def read_iqr(read: StateBytes, low: float, high: float) -> None:
    """Two P2 estimators of the same rows."""
    _same(_quantile(read, low), _quantile(read, high), "rows of the two quantiles")
    _same(read.take("2d"), (low, high), "the quantiles")
    _check_order(low, high)


def _check_order(low: float, high: float) -> None:
    if not low < high:
        raise ValueError(f"the lower quantile, {low}, is not below the upper, {high}")


def _window(read: StateBytes, size: int) -> None:
    """A window of values: sorted, and in the order of arrival."""
    ordered = read.vector("<f8", 0, size)
    values = read.vector("<f8", 0, size)
    if np.isnan(values).any() or not np.array_equal(ordered, np.sort(values)):
        raise ValueError("the sorted values are not those of the window")
    _same(read.take("Q"), (size,), "the length of the window")


def _between(q: float, size: int) -> tuple[int, int, float]:
    """The two places in a full window between which its quantile lies, and how far from the first."""
    place = q * (size - 1.0)
    low = math.floor(place)
    return low, low + 1 if low + 1 < size else max(low - 1, 0), place - low


def read_rolling_quantile(read: StateBytes, q: float, size: int) -> None:
    """A window and the places in it."""
    _window(read, size)
    _same(read.take("dQQQd"), (q, size, *_between(q, size)), "places of the quantile")
    _same(read.take("dQ"), (q, size), "the quantile and the length of the window")


def read_rolling_iqr(read: StateBytes, low: float, high: float, size: int) -> None:
    """A window and the places of two quantiles in it."""
    _window(read, size)
    due = (low, high, size, *_between(low, size), *_between(high, size))
    _same(read.take("ddQQQdQQd"), due, "places of the quantiles")
    _same(read.take("ddQ"), (low, high, size), "the quantiles and the length of the window")
    _check_order(low, high)


def read_rolling_auc(read: StateBytes, label: int, size: int) -> None:
    """Scores with labels, as they came and from the lowest to the highest (ties by label and number)."""
    _same(read.take("iQ"), (label, size), "the label and the length of the window")
    positives, following = read.take("QQ")
    window = read.vector(_ENTRY, 0, size)
    ordered = read.vector(_ENTRY, 0, size)
    packed = window["packed"]
    numbers = (packed & ~_POSITIVE).astype(np.int64)
    if following >= 2**62 or (np.diff(numbers) < 1).any() or (numbers[-1:] >= following).any():
        raise ValueError("the numbers of its scores do not grow")
    _same((positives,), (int(np.count_nonzero(packed & _POSITIVE)),), "rows of the positive label")
    bits = window["score"].copy().view(np.int64)
    ranks = np.lexsort((packed, bits ^ ((bits >> 63) & np.int64(2**63 - 1))))  # as Rust's total_cmp orders
    if ordered.tobytes() != window[ranks].tobytes():
        raise ValueError("the sorted scores are not those of the window")
    _same(read.take("iQ"), (label, size), "the label and the length of the window")


def read_adwin(read: StateBytes, delta: float, clock: int, buckets: int, shortest: int, grace: int) -> None:
    """A window as buckets: those of level i stand for 2^i rows each, with their total and their variance."""
    due = (delta, clock, buckets, float(shortest), float(grace))
    _same(read.take("diQdd"), due, "the parameters")
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
        _same((total, variance, widths), (0.0, 0.0, 0.0), "sums of no rows")
    _same(read.take("diQii"), (delta, clock, buckets, shortest, grace), "the parameters")
