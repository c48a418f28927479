"""Rows of text, each read by one compiled call for many: JSON objects with known names, cells between marks, pairs of LIBSVM.

What a row is else, or may be, is not read: no byte is believed, and what is read has exactly the values that a parser of JSON and
Python's `float` give.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.text_numbers import parse_number, write_number

#: Names that are compared for each one, at most.
_TRIES = 8
_SPACE, _NEWLINE, _RETURN, _TAB = b" \n\r\t"
_WITHIN_LINES = _SPACE, _TAB, _RETURN
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BACKSLASH, _MINUS, _PLUS, _ZERO, _NINE, _HASH = b'",:{}\\-+09#'
_UNICODE = 117  # the letter u
_ESCAPED, _HEXADECIMAL = tuple(b'"\\/bfnrtu'), tuple(b"0123456789abcdefABCDEF")
_TRUE, _FALSE, _NULL = tuple(b"true"), tuple(b"false"), tuple(b"null")


@compiled(forceinline=True)
def _skip_blanks(data: Any, at: Any, end: Any) -> Any:
    while at < end and (
        data[np.uint64(at)] == _SPACE
        or data[np.uint64(at)] == _NEWLINE
        or data[np.uint64(at)] == _RETURN
        or data[np.uint64(at)] == _TAB
    ):
        at += 1
    return at


@compiled
def _skip_text(data: Any, at: Any, end: Any) -> Any:
    """Return the position behind a text whose quote is at ``at``; -1 if it is none."""
    at += 1
    while at < end and data[np.uint64(at)] != _QUOTE:
        if data[np.uint64(at)] == _BACKSLASH:
            at += 1
            if at >= end or not _is_one_of(data[np.uint64(at)], _ESCAPED):
                return -1
            digits = 4 if data[np.uint64(at)] == _UNICODE else 0
            for _ in range(digits):
                at += 1
                if at >= end or not _is_one_of(data[np.uint64(at)], _HEXADECIMAL):
                    return -1
        elif data[np.uint64(at)] < _SPACE:
            return -1
        at += 1
    return at + 1 if at < end else -1


@compiled
def _is_one_of(byte: Any, bytes_: Any) -> Any:
    for each in bytes_:  # noqa: SIM110 - which is not compiled
        if byte == each:
            return True
    return False


@compiled
def _skip_word(data: Any, at: Any, end: Any, word: Any) -> Any:
    """Return the position behind a word at ``at``; -1 if it is another one."""
    if end - at < len(word):
        return -1
    for k in range(len(word)):
        if data[np.uint64(at + k)] != word[k]:
            return -1
    return at + len(word)


@compiled
def _skip_value(data: Any, at: Any, end: Any) -> Any:
    """Return the position behind a text, number, bool or null; -1 if it is none."""
    if at >= end:
        return -1
    first = data[np.uint64(at)]
    if first == _QUOTE:
        return _skip_text(data, at, end)
    if first == _TRUE[0]:
        return _skip_word(data, at, end, _TRUE)
    if first == _FALSE[0]:
        return _skip_word(data, at, end, _FALSE)
    if first == _NULL[0]:
        return _skip_word(data, at, end, _NULL)
    return parse_number(data, at, end)[4]


@compiled
def read_objects(
    data: Any,
    begins: Any,
    ends: Any,
    first: Any,
    names: Any,
    stops: Any,
    order: Any,
    columns: Any,
    texts: Any,
    X: Any,
    bits: Any,
    whole: Any,
    places: Any,
) -> Any:
    """Read JSON objects from number ``first`` on, up to one that is not read; return its number and that of a name.

    An object has a text, number, bool or null for some of the names, in any order. ``data`` is uint8, and each object lies there
    from where it ``begins`` to where it ``ends``, int64 [rows]. ``names`` (uint8) are the names with their quotes, behind each
    other, each up to where it ``stops``, int64 [names]. ``order``, int64 [names], is a guess of their order in a row, and is made
    better. Many names whose order differs from row to row are not read.

    A number goes to the column ``columns[name]`` of ``X``, float64 [rows, columns], which is NaN for null or where a row lacks
    it; ``bits`` are the same memory as uint64, and ``whole``, bool, says whether it has no point or exponent. Where a value of
    any kind begins and ends goes to ``places[row, texts[name]]``, int64 [rows, texts, 2], -1 where there is none. -1 is nowhere.
    It is not seen whether texts are UTF-8. The number of a name is -1 unless the object has a text or a bool where a number
    should be.
    """
    known = stops.shape[0]
    seen = np.full(known, -1, dtype=np.int64)
    most_tries = _TRIES * known  # of names that come in any order there would be as many as their square
    for i in range(first, begins.shape[0]):
        at, end, found, tries = begins[i], ends[i], 0, 0
        X[i, :] = np.nan
        places[i, :, :] = -1
        at = _skip_blanks(data, at, end)
        if at >= end or data[np.uint64(at)] != _OPEN:
            return i, -1
        at = _skip_blanks(data, at + 1, end)
        closed = at < end and data[np.uint64(at)] == _CLOSE
        while not closed:
            if found >= known:
                return i, -1
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
                    return i, -1
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
                return i, -1
            seen[name], order[found] = i, name
            found += 1
            at = _skip_blanks(data, at, end)
            if at >= end or data[np.uint64(at)] != _COLON:
                return i, -1
            at = _skip_blanks(data, at + 1, end)
            begin = at
            if columns[name] < 0:
                at = _skip_value(data, at, end)
            elif at < end and data[np.uint64(at)] == _NULL[0]:
                at = _skip_word(data, at, end, _NULL)
            elif at < end and (
                data[np.uint64(at)] == _QUOTE or data[np.uint64(at)] == _TRUE[0] or data[np.uint64(at)] == _FALSE[0]
            ):
                return i, name
            else:
                negative, is_whole, w, q, at = parse_number(data, at, end)
                # A whole number has no sign of 0.
                if at < 0 or not write_number(X, bits, i, columns[name], negative and not (is_whole and w == np.uint64(0)), w, q):
                    return i, -1
                whole[i, columns[name]] = is_whole
            if at < 0:
                return i, -1
            if texts[name] >= 0:
                places[i, texts[name], 0], places[i, texts[name], 1] = begin, at
            at = _skip_blanks(data, at, end)
            if at >= end or (data[np.uint64(at)] != _COMMA and data[np.uint64(at)] != _CLOSE):
                return i, -1
            closed = data[np.uint64(at)] == _CLOSE
            if not closed:
                at = _skip_blanks(data, at + 1, end)
        if _skip_blanks(data, at + 1, end) != end:
            return i, -1
    return begins.shape[0], -1


@compiled(forceinline=True)
def _find_cell_text(data: Any, at: Any, end: Any, mark: Any) -> Any:
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
                begin, stop, after = _find_cell_text(data, at, end, mark)
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
                    negative, _, w, q, at = parse_number(data, at, stop)
                    if at < 0 or not write_number(X, bits, i, columns[cell], negative, w, q):
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
    such a one is not read, nor one with a comment. A column that a row does not have is NaN. A label may be any text, and where
    it begins and ends goes to ``labels``, int64 [rows, 2]. The other arguments are those of `read_objects`.
    """
    for i in range(first, begins.shape[0]):
        at, end = _skip_blanks(data, begins[i], ends[i]), ends[i]
        X[i, :] = np.nan
        labels[i, 0] = at
        while at < end and data[np.uint64(at)] > _SPACE:
            if data[np.uint64(at)] == _COLON or data[np.uint64(at)] == _HASH:
                return i
            at += 1
        labels[i, 1] = at
        if at == labels[i, 0]:
            return i
        at = _skip_blanks(data, at, end)
        while at < end:
            begin, index = at, np.int64(0)
            while at < end and _ZERO <= data[np.uint64(at)] <= _NINE and index < columns.shape[0]:
                index = 10 * index + np.int64(data[np.uint64(at)] - _ZERO)
                at += 1
            if at == begin or at >= end or data[np.uint64(at)] != _COLON or index >= columns.shape[0] or columns[index] < 0:
                return i
            if not np.isnan(X[i, columns[index]]):
                return i
            negative, _, w, q, at = parse_number(data, at + 1, end)
            if at < 0 or not write_number(X, bits, i, columns[index], negative, w, q):
                return i
            if at < end and data[np.uint64(at)] > _SPACE:
                return i
            at = _skip_blanks(data, at, end)
    return begins.shape[0]


LARGEST_INDEX = 2**31 - 2  # of `read_sparse`


@compiled
def read_sparse(data: Any, at: Any, rows: Any, first: Any, labels: Any, starts: Any, indices: Any, values: Any) -> Any:
    """Read lines of a number, the label, and pairs index:value with rising indices, up to one that is not read.

    Return how many rows there are, and where that line begins, or where ``data`` (uint8) ends. Reading begins ``at`` a line that
    ``rows`` are before; comments and lines without a row are left out. Written are ``labels``, float64; ``indices``, uint32, from
    ``first`` on, which becomes 0; ``values``, float32, all finite; and ``starts``, uint32 [rows + 1], of the pairs of each row.
    """
    end, cell = data.shape[0], np.empty((1, 1))
    bits = cell.view(np.uint64)
    while True:
        at = _skip_blanks(data, at, end)
        if at >= end:
            return rows, end
        line, k, last, is_label = at, np.int64(starts[rows]), np.int64(first) - 1, True
        while at < end and data[np.uint64(at)] != _NEWLINE and data[np.uint64(at)] != _HASH:
            begin, index = at, np.int64(0)
            if not is_label:
                while at < end and _ZERO <= data[np.uint64(at)] <= _NINE and index <= LARGEST_INDEX:
                    index = 10 * index + np.int64(data[np.uint64(at)] - _ZERO)
                    at += 1
                if at == begin or at >= end or data[np.uint64(at)] != _COLON or not last < index <= LARGEST_INDEX:
                    return rows, line
                at += 1
            elif data[np.uint64(at)] == _PLUS and at + 1 < end and data[np.uint64(at + 1)] != _MINUS:
                at += 1
            negative, _, w, q, at = parse_number(data, at, end)
            if at < 0 or not write_number(cell, bits, 0, 0, negative, w, q):
                return rows, line
            if at < end and data[np.uint64(at)] > _SPACE and data[np.uint64(at)] != _HASH:
                return rows, line
            if is_label:
                labels[rows], is_label = cell[0, 0], False
            else:
                indices[k], values[k] = index - first, cell[0, 0]
                if not np.isfinite(values[k]):
                    return rows, line
                last, k = index, k + 1
            while at < end and _is_one_of(data[np.uint64(at)], _WITHIN_LINES):
                at += 1
        if not is_label:
            rows += 1
            starts[rows] = k
        while at < end and data[np.uint64(at)] != _NEWLINE:
            at += 1
