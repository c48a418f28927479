"""Numbers in text: a whole number w of at most 19 digits and a power of ten, and its float64, exact as Python's `float`.

Where both are exact as float64, so is the rounding of their product (Clinger 1990). Otherwise w is multiplied by 128 bits of the
power, which tells all but a few numbers (Lemire, "Number parsing at a gigabyte per second", 2021); these are not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: The most digits of a whole number that always fits into 64 bits.
_DIGITS = 19
#: Powers of ten whose float64 is exact.
_EXACT_POWER = 22
_EXACT_TENS: np.ndarray = np.array([float(10**k) for k in range(_EXACT_POWER + 1)])
_MOST_EXACT = np.uint64(1 << 53)
#: The largest power of ten that is read here. Larger ones are rare: Python reads them.
_MOST_POWER = 64
#: The least power of ten of a number of 64 bits that can be exact.
_TIES = 27
#: Beyond these, no digit of a power matters.
_FAR = 10_000
_HALF, _ONE, _LOW = np.uint64(32), np.uint64(1), np.uint64((1 << 32) - 1)
_MINUS, _PLUS, _POINT, _ZERO, _NINE = b"-+.09"
_EXPONENT = 101  # the letter e
_LOWER = 32  # the bit that makes a letter a small one


def _compute_power_of_five(q: int) -> tuple[int, int]:
    """Return the first 128 bits of 5**q, as two halves; rounded up where a tie is possible, and q is negative."""
    if q >= 0:
        bits = 5**q
        bits = bits << 128 - bits.bit_length() if bits.bit_length() <= 128 else bits >> bits.bit_length() - 128
    else:
        bits = (1 << (5**-q - 1).bit_length() + 127) // 5**-q + (q >= -_TIES)
    return bits >> 64, bits & (1 << 64) - 1


_FIVES: np.ndarray = np.array([_compute_power_of_five(q) for q in range(-_MOST_POWER, _MOST_POWER + 1)], dtype=np.uint64)


@compiled(forceinline=True)
def _multiply_words(a: Any, b: Any) -> Any:
    """Return the upper and the lower 64 bits of a product."""
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    low, middle = a_low * b_low, a_high * b_low
    middle += low >> _HALF
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF), (other << _HALF) | (low & _LOW)


@compiled
def _round_to_float_bits(w: Any, q: Any, fives: Any) -> Any:
    """Return the bits of w * 10**q as float64, rounded to even, for w above 0; 0 where it is not told."""
    shift = 0
    while w < np.uint64(1 << 63):
        w = w << _ONE
        shift += 1
    high, low = _multiply_words(w, fives[q + _MOST_POWER, 0])
    rest = np.uint64(0x1FF)  # the bits of the upper half beyond the 55 that are needed
    if high & rest == rest:  # the lower half of the power may carry into them
        carry, _ = _multiply_words(w, fives[q + _MOST_POWER, 1])
        sum_low = low + carry if low <= ~carry else low - (~carry + _ONE)
        if sum_low < low:
            high += _ONE
        low = sum_low
        if low == ~np.uint64(0):
            return np.uint64(0)
    upper = np.int64(high >> np.uint64(63))
    discarded = np.uint64(upper + 9)
    mantissa = high >> discarded
    exponent = ((217706 * q) >> 16) + 63 + upper - shift + 1023
    if exponent <= 0 or exponent >= 2046:
        return np.uint64(0)
    # Exactly between two floats: to the even one.
    if low <= _ONE and -4 <= q <= 23 and mantissa & np.uint64(3) == _ONE and mantissa << discarded == high:
        mantissa &= ~_ONE
    mantissa = (mantissa + (mantissa & _ONE)) >> _ONE
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        exponent += 1
    return (np.uint64(exponent) << np.uint64(52)) | (mantissa & np.uint64((1 << 52) - 1))


@compiled(forceinline=True)
def parse_number(data: Any, at: Any, end: Any) -> Any:
    """Return what a number is: whether it is negative, whether it is whole, w, q, and where it ends, -1 if it is none."""
    nothing, w = np.uint64(0), np.uint64(0)
    negative = at < end and data[np.uint64(at)] == _MINUS
    at += negative
    first, left = at, _DIGITS  # and so many more digits may come: the one after them is none that may stand there
    if at < end and data[np.uint64(at)] == _ZERO:
        at += 1
    else:
        stop = min(end, at + left)
        while at < stop and _ZERO <= data[np.uint64(at)] <= _NINE:
            w = w * np.uint64(10) + np.uint64(data[np.uint64(at)] - _ZERO)
            at += 1
        left -= at - first
    if at == first:
        return False, False, nothing, 0, -1
    whole, q = True, 0
    if at < end and data[np.uint64(at)] == _POINT:
        whole = False
        at += 1
        first = at
        while w == nothing and at < end and data[np.uint64(at)] == _ZERO:
            at += 1
        stop = min(end, at + left)
        while at < stop - 1:  # two digits at once, for each step waits for the one before
            tens, ones = np.int64(data[np.uint64(at)]) - _ZERO, np.int64(data[np.uint64(at + 1)]) - _ZERO
            if not (0 <= tens <= 9 and 0 <= ones <= 9):
                break
            w = w * np.uint64(100) + np.uint64(10 * tens + ones)
            at += 2
        while at < stop and _ZERO <= data[np.uint64(at)] <= _NINE:
            w = w * np.uint64(10) + np.uint64(data[np.uint64(at)] - _ZERO)
            at += 1
        q = first - at
        if q == 0:
            return False, False, nothing, 0, -1
    if at < end and data[np.uint64(at)] | _LOWER == _EXPONENT:
        whole = False
        at += 1
        smaller = at < end and data[np.uint64(at)] == _MINUS
        at += at < end and (data[np.uint64(at)] == _MINUS or data[np.uint64(at)] == _PLUS)
        first, power = at, 0
        while at < end and _ZERO <= data[np.uint64(at)] <= _NINE:
            if power < _FAR:
                power = 10 * power + int(data[np.uint64(at)] - _ZERO)
            at += 1
        if at == first:
            return False, False, nothing, 0, -1
        q += -power if smaller else power
    return negative, whole, w, q, at


@compiled(forceinline=True)
def write_number(X: Any, bits: Any, i: Any, column: Any, negative: Any, w: Any, q: Any) -> Any:
    """Write a number, w * 10**q with a sign, into a cell of a matrix whose bits are the same memory; whether it could be told."""
    if w == np.uint64(0):
        X[i, column] = -0.0 if negative else 0.0
    elif w <= _MOST_EXACT and -_EXACT_POWER <= q <= _EXACT_POWER:
        number = np.float64(w)
        number = number / _EXACT_TENS[-q] if q < 0 else number * _EXACT_TENS[q]
        X[i, column] = -number if negative else number
    elif q == 0:
        X[i, column] = -np.float64(w) if negative else np.float64(w)
    else:
        if not -_MOST_POWER <= q <= _MOST_POWER:
            return False
        found = _round_to_float_bits(w, q, _FIVES)
        if found == np.uint64(0):
            return False
        bits[i, column] = found | (np.uint64(negative) << np.uint64(63))
    return True
