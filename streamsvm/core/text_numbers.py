"""Rows of text, each read by one compiled call for many: JSON objects with known names, cells between marks, pairs of LIBSVM.

What a row is else, or may be, is not read: no byte is believed, and what is read has exactly the values that a parser of JSON and
Python's `float` give.

A number is a whole number w of at most 19 digits and a power of ten. Where both are exact as float64, so is the rounding of their
product (Clinger 1990). Otherwise w is multiplied by 128 bits of the power, which tells all but a few numbers (Lemire, "Number
parsing at a gigabyte per second", 2021); these are not read.
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
#: Powers of ten that are read; numbers with others are seldom.
_MOST_POWER = 64
#: The least power of ten of a number of 64 bits that can be exact.
_TIES = 27
#: Names that are compared for each one, at most.
_TRIES = 8
#: Beyond these, no digit of a power matters.
_FAR = 10_000
_HALF, _ONE, _LOW = np.uint64(32), np.uint64(1), np.uint64((1 << 32) - 1)
_SPACE, _NEWLINE, _RETURN, _TAB = b" \n\r\t"
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BACKSLASH, _MINUS, _PLUS, _POINT, _ZERO, _NINE, _HASH = b'",:{}\\-+.09#'
_EXPONENT, _TRUE, _FALSE, _NULL, _U, _L = b"etfnul"
_LOWER = 32  # the bit that makes a letter a small one


def _power_of_five(q: int) -> tuple[int, int]:
    """Return the first 128 bits of 5**q, as two halves; rounded up where a tie is possible, and q is negative."""
    if q >= 0:
        bits = 5**q
        bits = bits << 128 - bits.bit_length() if bits.bit_length() <= 128 else bits >> bits.bit_length() - 128
    else:
        bits = (1 << (5**-q - 1).bit_length() + 127) // 5**-q + (q >= -_TIES)
    return bits >> 64, bits & (1 << 64) - 1


_FIVES: np.ndarray = np.array([_power_of_five(q) for q in range(-_MOST_POWER, _MOST_POWER + 1)], dtype=np.uint64)


@compiled(forceinline=True)
def _product(a: Any, b: Any) -> Any:
    """Return the upper and the lower 64 bits of a product."""
    a_high, a_low, b_high, b_low = a >> _HALF, a & _LOW, b >> _HALF, b & _LOW
    low, middle = a_low * b_low, a_high * b_low
    middle += low >> _HALF
    other = a_low * b_high + (middle & _LOW)
    return a_high * b_high + (middle >> _HALF) + (other >> _HALF), (other << _HALF) | (low & _LOW)


@compiled
def _float_bits(w: Any, q: Any, fives: Any) -> Any:
    """Return the bits of w * 10**q as float64, rounded to even, for w above 0; 0 where it is not told."""
    shift = 0
    while w < np.uint64(1 << 63):
        w = w << _ONE
        shift += 1
    high, low = _product(w, fives[q + _MOST_POWER, 0])
    rest = np.uint64(0x1FF)  # the bits of the upper half beyond the 55 that are needed
    if high & rest == rest:  # the lower half of the power may carry into them
        carry, _ = _product(w, fives[q + _MOST_POWER, 1])
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
def _after_blanks(data: Any, at: Any, end: Any) -> Any:
    while at < end and (
        data[np.uint64(at)] == _SPACE
        or data[np.uint64(at)] == _NEWLINE
        or data[np.uint64(at)] == _RETURN
        or data[np.uint64(at)] == _TAB
    ):
        at += 1
    return at


@compiled
def _after_text(data: Any, at: Any, end: Any) -> Any:
    """Return the position behind a text without escapes, whose quote is at ``at``; -1 if it is none."""
    at += 1
    while at < end and data[np.uint64(at)] != _QUOTE:
        if data[np.uint64(at)] == _BACKSLASH or data[np.uint64(at)] < _SPACE:
            return -1
        at += 1
    return at + 1 if at < end else -1


@compiled(forceinline=True)
def _number(data: Any, at: Any, end: Any) -> Any:
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


@compiled
def _after_label(data: Any, at: Any, end: Any) -> Any:
    """Return the position behind a text, number, bool or null; -1 if it is none."""
    if at >= end:
        return -1
    if data[np.uint64(at)] == _QUOTE:
        return _after_text(data, at, end)
    if data[np.uint64(at)] == _TRUE or data[np.uint64(at)] == _NULL:
        return at + 4 if at + 4 <= end else -1
    if data[np.uint64(at)] == _FALSE:
        return at + 5 if at + 5 <= end else -1
    return _number(data, at, end)[4]


@compiled(forceinline=True)
def _put(X: Any, bits: Any, i: Any, column: Any, negative: Any, w: Any, q: Any) -> Any:
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
        found = _float_bits(w, q, _FIVES)
        if found == np.uint64(0):
            return False
        bits[i, column] = found | (np.uint64(negative) << np.uint64(63))
    return True


@compiled
def read_objects(
    data: Any, begins: Any, ends: Any, first: Any, names: Any, stops: Any, order: Any, X: Any, bits: Any, labels: Any
) -> Any:
    """Read JSON objects from number ``first`` on, up to one that is not read; return its number.

    An object has a number or null for some of the names, in any order, and perhaps a label. ``data`` is uint8, and each object
    lies there from where it ``begins`` to where it ``ends``, int64 [rows]. ``names`` (uint8) are the names with their quotes,
    behind each other, each up to where it ``stops``, int64 [names]; one more than ``X`` has columns if the last is that of the
    label. ``order``, int64 [names], is a guess of their order in a row, and is made better. Many names whose order differs from
    row to row are not read. Written are ``X``, float64 [rows, columns], NaN where a row has no number, whose ``bits`` are the
    same memory as uint64; and where the label of each row begins and ends: ``labels``, int64 [rows, 2], -1 where there is none. A
    label is a text, a number or a word, which the caller checks.
    """
    columns, known = X.shape[1], stops.shape[0]
    seen = np.full(known, -1, dtype=np.int64)
    most_tries = _TRIES * known  # of names that come in any order there would be as many as their square
    for i in range(first, begins.shape[0]):
        at, end, found, tries = begins[i], ends[i], 0, 0
        labels[i, 0] = labels[i, 1] = -1
        X[i, :] = np.nan
        at = _after_blanks(data, at, end)
        if at >= end or data[np.uint64(at)] != _OPEN:
            return i
        at = _after_blanks(data, at + 1, end)
        closed = at < end and data[np.uint64(at)] == _CLOSE
        while not closed:
            if found >= known:
                return i
            # The name: the one that stood here in the row before, or any other.
            name = -1
            for k in range(-1, known):
                guess = order[found] if k < 0 else k
                begin = stops[guess - 1] if guess else 0
                size = stops[guess] - begin
                if size > end - at:
                    continue
                tries += 1
                if tries > most_tries:
                    return i
                same = True
                for j in range(size):
                    if data[np.uint64(at + j)] != names[np.uint64(begin + j)]:
                        same = False
                        break
                if same:
                    name = guess
                    at += size
                    break
            if name < 0 or seen[name] == i:
                return i
            seen[name], order[found] = i, name
            found += 1
            at = _after_blanks(data, at, end)
            if at >= end or data[np.uint64(at)] != _COLON:
                return i
            at = _after_blanks(data, at + 1, end)
            if name == columns:
                labels[i, 0] = at
                at = _after_label(data, at, end)
                if at < 0:
                    return i
                labels[i, 1] = at
            elif at < end and data[np.uint64(at)] == _NULL:
                if (
                    end - at < 4
                    or data[np.uint64(at + 1)] != _U
                    or data[np.uint64(at + 2)] != _L
                    or data[np.uint64(at + 3)] != _L
                ):
                    return i
                at += 4
            else:
                negative, whole, w, q, at = _number(data, at, end)
                # A whole number has no sign of 0.
                if at < 0 or not _put(X, bits, i, name, negative and not (whole and w == np.uint64(0)), w, q):
                    return i
            at = _after_blanks(data, at, end)
            if at >= end or (data[np.uint64(at)] != _COMMA and data[np.uint64(at)] != _CLOSE):
                return i
            closed = data[np.uint64(at)] == _CLOSE
            if not closed:
                at = _after_blanks(data, at + 1, end)
        if _after_blanks(data, at + 1, end) != end:
            return i
    return begins.shape[0]


@compiled(forceinline=True)
def _text_in_cell(data: Any, at: Any, end: Any, mark: Any) -> Any:
    """Return where the text of a cell begins and ends, and the position behind the cell; -1 if its quotes need a closer look."""
    if at < end and data[np.uint64(at)] == _QUOTE:
        begin = at + 1
        at = begin
        while at < end and data[np.uint64(at)] != _QUOTE:
            at += 1
        closes = at < end and (at + 1 == end or data[np.uint64(at + 1)] == mark)
        return begin, at, at + 1 if closes else -1
    begin = at
    while at < end and data[np.uint64(at)] != mark:
        if data[np.uint64(at)] == _QUOTE:
            return begin, at, -1
        at += 1
    return begin, at, at


@compiled
def read_cells(
    data: Any, begins: Any, ends: Any, first: Any, mark: Any, columns: Any, texts: Any, X: Any, bits: Any, places: Any
) -> Any:
    """Read rows of cells from number ``first`` on, up to one that is not read; return its number and that of its cell.

    A ``mark``, which is no blank, stands between two cells; a cell may be in quotes, and blanks before it are left out. Its
    number goes to the column ``columns[cell]`` of ``X``, NaN if it is empty, and where its text begins and ends to
    ``places[row, texts[cell]]``, int64 [rows, texts, 2]; -1 is nowhere. The other arguments are those of `read_objects`; a
    newline at the end of a row is left out. The number of a cell is -1 if the row has more or fewer.
    """
    for i in range(first, begins.shape[0]):
        at, end = begins[i], ends[i]
        while end > at and (data[np.uint64(end - 1)] == _NEWLINE or data[np.uint64(end - 1)] == _RETURN):
            end -= 1
        for cell in range(columns.shape[0]):
            while at < end and data[np.uint64(at)] == _SPACE:
                at += 1
            if columns[cell] < 0 or texts[cell] >= 0 or (at < end and data[np.uint64(at)] == _QUOTE):
                begin, stop, after = _text_in_cell(data, at, end, mark)
                if after < 0:
                    return i, cell
                if texts[cell] >= 0:
                    places[i, texts[cell], 0], places[i, texts[cell], 1] = begin, stop
            else:
                begin, stop, after = at, end, -1
            if columns[cell] >= 0:
                at = begin
                while after >= 0 and at < stop and data[np.uint64(at)] == _SPACE:  # in quotes
                    at += 1
                if at == stop or (after < 0 and data[np.uint64(at)] == mark):
                    X[i, columns[cell]] = np.nan
                else:
                    negative, _, w, q, at = _number(data, at, stop)
                    if at < 0 or not _put(X, bits, i, columns[cell], negative, w, q):
                        return i, cell
                    while (
                        at < stop
                        and (after >= 0 or data[np.uint64(at)] != mark)  # which may be a tab
                        and (data[np.uint64(at)] == _SPACE or data[np.uint64(at)] == _TAB or data[np.uint64(at)] == _RETURN)
                    ):
                        at += 1
                    if at < stop and (after >= 0 or data[np.uint64(at)] != mark):
                        return i, cell
                if after < 0:
                    after = at
            at = after
            is_last = cell == columns.shape[0] - 1
            if is_last != (at >= end):
                return i, -1
            at += 1
    return begins.shape[0], -1


@compiled
def read_pairs(data: Any, begins: Any, ends: Any, first: Any, columns: Any, X: Any, bits: Any, labels: Any) -> Any:
    """Read rows of a label and pairs index:value, from number ``first`` on, up to one that is not read; return its number.

    The value of an index goes to the column ``columns[index]`` of ``X``, which is -1 for an index that is not known; a row with
    such a one is not read, nor one with a comment. A column that a row does not have is NaN. The other arguments are those of
    `read_objects`, and a label may be any text.
    """
    for i in range(first, begins.shape[0]):
        at, end = _after_blanks(data, begins[i], ends[i]), ends[i]
        X[i, :] = np.nan
        labels[i, 0] = at
        while at < end and data[np.uint64(at)] > _SPACE:
            if data[np.uint64(at)] == _COLON or data[np.uint64(at)] == _HASH:
                return i
            at += 1
        labels[i, 1] = at
        if at == labels[i, 0]:
            return i
        at = _after_blanks(data, at, end)
        while at < end:
            begin, index = at, np.int64(0)
            while at < end and _ZERO <= data[np.uint64(at)] <= _NINE and index < columns.shape[0]:
                index = 10 * index + np.int64(data[np.uint64(at)] - _ZERO)
                at += 1
            if at == begin or at >= end or data[np.uint64(at)] != _COLON or index >= columns.shape[0] or columns[index] < 0:
                return i
            if not np.isnan(X[i, columns[index]]):
                return i
            negative, _, w, q, at = _number(data, at + 1, end)
            if at < 0 or not _put(X, bits, i, columns[index], negative, w, q):
                return i
            if at < end and data[np.uint64(at)] > _SPACE:
                return i
            at = _after_blanks(data, at, end)
    return begins.shape[0]
