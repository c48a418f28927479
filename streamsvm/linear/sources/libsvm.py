"""A compiled parser of LIBSVM text: on each line a label, then pairs index:value with rising indices."""

from __future__ import annotations

import numpy as np

from streamsvm.core.compiling.functions import compiled

__all__ = ["END", "LARGEST_INDEX", "NOT_FINITE", "NOT_RISING", "NO_LABEL", "NO_PAIR", "TOO_LARGE", "TOO_SMALL", "parse"]

END, NO_LABEL, NO_PAIR, NOT_RISING, TOO_LARGE, TOO_SMALL, NOT_FINITE = range(7)  # the reasons why parsing ended
LARGEST_INDEX = 2**31 - 2
_LARGEST_POWER, _LARGE = 300, 1e300
_DIGITS = 18  # any number of so many digits fits into an unsigned integer of 64 bits


@compiled
def parse(
    text: np.ndarray, first: int, labels: np.ndarray, starts: np.ndarray, indices: np.ndarray, values: np.ndarray
) -> tuple[int, int, int, int, int]:
    """Parse whole lines, uint8 [bytes], with indices from ``first`` on, which becomes 0.

    Writes labels float64 and starts uint32, with room for one row more than lines, indices uint32 and values float32, with room
    for a third of the bytes. Returns how many rows and values there are, why it ended (`END`: there is no error) and where, and
    the largest index, -1 where there is none.
    """
    n, at, rows, k, largest = len(text), 0, 0, 0, -1
    while True:
        while at < n and _is_blank(text[at]):
            at += 1
        if at < n and text[at] == 35:  # a comment
            at = _end_of_line(text, at)
            continue
        starts[rows] = k
        if at >= n:
            return rows, k, END, at, largest
        begin = at
        labels[rows], at = _number(text, at)
        if at == begin or (at < n and not _is_blank(text[at]) and text[at] != 35):
            return rows, k, NO_LABEL, begin, largest
        if not np.isfinite(labels[rows]):
            return rows, k, NOT_FINITE, begin, largest
        last = -1
        while True:
            while at < n and _is_blank(text[at]) and text[at] != 10:
                at += 1
            if at >= n or text[at] == 10:
                break
            if text[at] == 35:
                at = _end_of_line(text, at)
                break
            begin, index = at, np.int64(0)
            while at < n and 48 <= text[at] <= 57 and index <= LARGEST_INDEX:
                index = 10 * index + (np.int64(text[at]) - 48)
                at += 1
            if index > LARGEST_INDEX:
                return rows, k, TOO_LARGE, begin, largest
            if at == begin or at >= n or text[at] != 58:
                return rows, k, NO_PAIR, begin, largest
            at += 1
            start = at
            value, at = _number(text, at)
            if at == start or (at < n and not _is_blank(text[at]) and text[at] != 35):
                return rows, k, NO_PAIR, begin, largest
            if index <= last:
                return rows, k, NOT_RISING, begin, largest
            if index < first:
                return rows, k, TOO_SMALL, begin, largest
            last = int(index)
            largest = max(largest, int(index) - first)
            indices[k], values[k] = index - first, value
            if not np.isfinite(values[k]):
                return rows, k, NOT_FINITE, begin, largest
            k += 1
        rows += 1


@compiled
def _is_blank(byte: int) -> bool:
    return byte == 32 or 9 <= byte <= 13


@compiled
def _end_of_line(text: np.ndarray, at: int) -> int:
    while at < len(text) and text[at] != 10:
        at += 1
    return at


@compiled
def _number(text: np.ndarray, at: int) -> tuple[float, int]:
    """Return a decimal number and the place after it; the same place where there is no number."""
    n, begin, sign = len(text), at, 1.0
    if at < n and (text[at] == 45 or text[at] == 43):
        sign = -1.0 if text[at] == 45 else 1.0
        at += 1
    mantissa, digits, scale, some, point = np.uint64(0), 0, 0, False, False
    while at < n and (48 <= text[at] <= 57 or (text[at] == 46 and not point)):
        if text[at] == 46:
            point = True
        else:
            some = True
            if digits < _DIGITS:
                mantissa = mantissa * np.uint64(10) + np.uint64(text[at] - 48)
                digits += mantissa != 0
                scale -= point
            else:
                scale += not point
        at += 1
    if not some:
        return 0.0, begin
    if at < n and (text[at] == 101 or text[at] == 69):
        mark, negative, exponent = at, False, np.int64(0)
        at += 1
        if at < n and (text[at] == 45 or text[at] == 43):
            negative = text[at] == 45
            at += 1
        if at >= n or not 48 <= text[at] <= 57:
            at = mark  # no exponent: the number ends here
        while at < n and 48 <= text[at] <= 57:
            if exponent < 100_000:
                exponent = 10 * exponent + (np.int64(text[at]) - 48)
            at += 1
        scale += int(-exponent if negative else exponent)
    number = float(mantissa)
    if number == 0.0 or scale < -400:
        return sign * 0.0, at
    if scale > 400:
        return sign * np.inf, at
    if abs(scale) > _LARGEST_POWER:  # this power is no float, though the product may be one
        number = number / _LARGE if scale < 0 else number * _LARGE
        scale += _LARGEST_POWER if scale < 0 else -_LARGEST_POWER
    return sign * (number / 10.0**-scale if scale < 0 else number * 10.0**scale), at
