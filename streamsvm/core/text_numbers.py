"""Compiled parser of decimal numbers in text, which rounds to float64 exactly as Python's `float` does.

A number is split into an integer w of at most 19 digits and a power of ten. If both are exact in float64, their product or
quotient is rounded correctly (Clinger 1990). Otherwise w is multiplied by 128 bits of the power, which determines the result
except for a few numbers (Lemire, "Number parsing at a gigabyte per second", 2021); these are left to Python.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled

#: Integers with this many digits always fit into 64 bits.
_MAX_DIGITS = 19
#: Largest power of ten that is exact in float64.
_MAX_EXACT_POWER = 22
_EXACT_TENS: np.ndarray = np.array([float(10**k) for k in range(_MAX_EXACT_POWER + 1)])
_MAX_EXACT_INTEGER = np.uint64(1 << 53)
#: Largest absolute power of ten that is parsed here. Larger ones are rare, and left to Python.
_MAX_POWER = 64
#: Negative powers of ten down to this one can be halfway between two floats for a 64-bit integer.
_MAX_TIE_POWER = 27
#: Digits of exponents above this are ignored, because the result does not change.
_MAX_EXPONENT = 10_000
_HALF, _ONE, _LOW = np.uint64(32), np.uint64(1), np.uint64((1 << 32) - 1)
_MINUS, _PLUS, _POINT, _ZERO, _NINE = b"-+.09"
_EXPONENT = 101  # the letter e
_LOWER = 32  # the bit that makes a letter a small one


def _compute_power_of_five(q: int) -> tuple[int, int]:
    """Return the first 128 bits of 5**q as (upper 64 bits, lower 64 bits): an entry of the table that decimal numbers are parsed
    with. For negative q, these are the bits of the fraction 1 / 5**-q.

    The bits of a fraction are rounded up where a tie between two floats is possible.
    """
    if q >= 0:
        bits = 5**q
        bits = bits << 128 - bits.bit_length() if bits.bit_length() <= 128 else bits >> bits.bit_length() - 128
    else:
        bits = (1 << (5**-q - 1).bit_length() + 127) // 5**-q + (q >= -_MAX_TIE_POWER)
    return bits >> 64, bits & (1 << 64) - 1


_FIVES: np.ndarray = np.array([_compute_power_of_five(q) for q in range(-_MAX_POWER, _MAX_POWER + 1)], dtype=np.uint64)


@compiled(forceinline=True)
def _multiply_words(a: Any, b: Any) -> Any:
    """Return (upper 64 bits, lower 64 bits) of the product of the unsigned 64-bit integers ``a`` and ``b``."""
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    low, first_middle = a_low * b_low, a_high * b_low
    first_middle += low >> _HALF
    middle = a_low * b_high + (first_middle & _LOW)
    return a_high * b_high + (first_middle >> _HALF) + (middle >> _HALF), (middle << _HALF) | (low & _LOW)


@compiled
def _round_to_float_bits(w: Any, q: Any, fives: Any) -> Any:
    """Return the float64 nearest to w * 10**q, for an integer w > 0, as its 64 bits in a uint64. Returns 0 if this fast method
    cannot determine the nearest one. ``fives`` is a table of powers of five, uint64 [powers, 2].

    Ties are rounded to the even float.
    """
    shift = 0
    while w < np.uint64(1 << 63):
        w = w << _ONE
        shift += 1
    high, low = _multiply_words(w, fives[q + _MAX_POWER, 0])
    rest = np.uint64(0x1FF)  # the bits of the upper half after the 55 that are needed
    if high & rest == rest:  # the lower half of the power may carry into the upper half
        carry, _ = _multiply_words(w, fives[q + _MAX_POWER, 1])
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
    # A tie between two floats: round to the even one.
    if low <= _ONE and -4 <= q <= 23 and mantissa & np.uint64(3) == _ONE and mantissa << discarded == high:
        mantissa &= ~_ONE
    mantissa = (mantissa + (mantissa & _ONE)) >> _ONE
    if mantissa >= np.uint64(1 << 53):
        mantissa = np.uint64(1 << 52)
        exponent += 1
    return (np.uint64(exponent) << np.uint64(52)) | (mantissa & np.uint64((1 << 52) - 1))


@compiled(forceinline=True)
def parse_number(data: Any, at: Any, limit: Any) -> Any:
    """Parse the decimal number at position ``at`` of the text ``data``, uint8. Returns (is it negative, is it an integer, w, q,
    position after it); the absolute value of the number is w * 10**q. The position is -1 if the number is invalid or is not
    complete at ``limit``.

    An integer has neither a decimal point nor an exponent.
    """
    zero, w = np.uint64(0), np.uint64(0)
    negative = at < limit and data[np.uint64(at)] == _MINUS
    at += negative
    first, left = at, _MAX_DIGITS  # parsing stops after this many digits, so that callers find a digit where none is allowed
    if at < limit and data[np.uint64(at)] == _ZERO:
        at += 1
    else:
        stop = min(limit, at + left)
        while at < stop and _ZERO <= data[np.uint64(at)] <= _NINE:
            w = w * np.uint64(10) + np.uint64(data[np.uint64(at)] - _ZERO)
            at += 1
        left -= at - first
    if at == first:
        return False, False, zero, 0, -1
    is_integer, q = True, 0
    if at < limit and data[np.uint64(at)] == _POINT:
        is_integer = False
        at += 1
        first = at
        while w == zero and at < limit and data[np.uint64(at)] == _ZERO:
            at += 1
        stop = min(limit, at + left)
        while at < stop - 1:  # two digits at once, because each step depends on the previous one
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
            return False, False, zero, 0, -1
    if at < limit and data[np.uint64(at)] | _LOWER == _EXPONENT:
        is_integer = False
        at += 1
        negative_power = at < limit and data[np.uint64(at)] == _MINUS
        at += at < limit and (data[np.uint64(at)] == _MINUS or data[np.uint64(at)] == _PLUS)
        first, power = at, 0
        while at < limit and _ZERO <= data[np.uint64(at)] <= _NINE:
            if power < _MAX_EXPONENT:
                power = 10 * power + int(data[np.uint64(at)] - _ZERO)
            at += 1
        if at == first:
            return False, False, zero, 0, -1
        q += -power if negative_power else power
    return negative, is_integer, w, q, at


@compiled(forceinline=True)
def write_number(X: Any, bits: Any, i: Any, column: Any, negative: Any, w: Any, q: Any) -> Any:
    """Write the decimal number w * 10**q, with a minus sign if ``negative``, into ``X[i, column]`` as the nearest float64.
    Returns True, or False if this fast method cannot determine the nearest float; then nothing is written. ``bits`` is ``X``
    viewed as uint64.
    """
    if w == np.uint64(0):
        X[i, column] = -0.0 if negative else 0.0
    elif w <= _MAX_EXACT_INTEGER and -_MAX_EXACT_POWER <= q <= _MAX_EXACT_POWER:
        number = np.float64(w)
        number = number / _EXACT_TENS[-q] if q < 0 else number * _EXACT_TENS[q]
        X[i, column] = -number if negative else number
    elif q == 0:
        X[i, column] = -np.float64(w) if negative else np.float64(w)
    else:
        if not -_MAX_POWER <= q <= _MAX_POWER:
            return False
        rounded = _round_to_float_bits(w, q, _FIVES)
        if rounded == np.uint64(0):
            return False
        bits[i, column] = rounded | (np.uint64(negative) << np.uint64(63))
    return True
