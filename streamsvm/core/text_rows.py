"""Compiled parsers of text rows, many per call: JSON objects with known names, delimited cells, and LIBSVM index:value pairs.

They parse the common cases, and return at the first row that is invalid or unusual, which the caller parses in Python. Parsed
values are exactly those of a JSON parser and of Python's `float`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from streamsvm.core.compiling.functions import compiled
from streamsvm.core.text_numbers import parse_number, write_number

#: Maximum number of comparisons of names in an object, divided by the number of names.
_MAX_COMPARISONS_PER_NAME = 8
_SPACE, _NEWLINE, _RETURN, _TAB = b" \n\r\t"
_WITHIN_LINES = _SPACE, _TAB, _RETURN
_QUOTE, _COMMA, _COLON, _OPEN, _CLOSE, _BACKSLASH, _MINUS, _PLUS, _ZERO, _NINE, _HASH = b'",:{}\\-+09#'
_UNICODE = 117  # the letter u
_ESCAPED, _HEXADECIMAL = tuple(b'"\\/bfnrtu'), tuple(b"0123456789abcdefABCDEF")
_TRUE, _FALSE, _NULL = tuple(b"true"), tuple(b"false"), tuple(b"null")


@compiled(forceinline=True)
def _skip_blanks(data: Any, at: Any, limit: Any) -> Any:
    """Return the first position from ``at`` on in the text ``data`` uint8 whose character is not a blank, tab or line break;
    ``limit`` if all characters before ``limit`` are.
    """
    while at < limit and (
        data[np.uint64(at)] == _SPACE
        or data[np.uint64(at)] == _NEWLINE
        or data[np.uint64(at)] == _RETURN
        or data[np.uint64(at)] == _TAB
    ):
        at += 1
    return at


@compiled
def _skip_text(data: Any, at: Any, limit: Any) -> Any:
    """Return the position after the JSON string whose opening quote is at position ``at`` of ``data`` uint8; -1 if the string is
    invalid or does not end before ``limit``.
    """
    at += 1
    while at < limit and data[np.uint64(at)] != _QUOTE:
        if data[np.uint64(at)] == _BACKSLASH:
            at += 1
            if at >= limit or not _is_one_of(data[np.uint64(at)], _ESCAPED):
                return -1
            digits = 4 if data[np.uint64(at)] == _UNICODE else 0
            for _ in range(digits):
                at += 1
                if at >= limit or not _is_one_of(data[np.uint64(at)], _HEXADECIMAL):
                    return -1
        elif data[np.uint64(at)] < _SPACE:
            return -1
        at += 1
    return at + 1 if at < limit else -1


@compiled
def _is_one_of(byte: Any, choices: Any) -> Any:
    """Return whether ``byte`` equals one of the bytes in the tuple ``choices``."""
    for choice in choices:  # noqa: SIM110 - numba does not compile any() with a generator
        if byte == choice:
            return True
    return False


@compiled
def _skip_word(data: Any, at: Any, limit: Any, word: Any) -> Any:
    """Return the position after ``word`` (a tuple of bytes) if it is at position ``at`` of ``data`` uint8; -1 if another text is
    there, or ``limit`` is reached.
    """
    if limit - at < len(word):
        return -1
    for k in range(len(word)):
        if data[np.uint64(at + k)] != word[k]:
            return -1
    return at + len(word)


@compiled
def _skip_value(data: Any, at: Any, limit: Any) -> Any:
    """Return the position after the JSON string, number, bool or null at position ``at`` of ``data`` uint8; -1 if it is invalid,
    an object or an array.
    """
    if at >= limit:
        return -1
    first = data[np.uint64(at)]
    if first == _QUOTE:
        return _skip_text(data, at, limit)
    if first == _TRUE[0]:
        return _skip_word(data, at, limit, _TRUE)
    if first == _FALSE[0]:
        return _skip_word(data, at, limit, _FALSE)
    if first == _NULL[0]:
        return _skip_word(data, at, limit, _NULL)
    return parse_number(data, at, limit)[4]


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
    integer_mask: Any,
    places: Any,
) -> Any:
    """Parse rows of flat JSON objects; object i is ``data[begins[i]:ends[i]]``. Numbers are written into ``X`` float64 [rows,
    columns], and the positions of other values into ``places``. Parsing starts with row ``first``, and stops at an object that is
    invalid or too complex. Returns (its row, or the number of rows; index of a name with a text or bool in place of a number, or
    -1).

    An object has a string, number, bool or null for some of the names, in any order. ``data`` is uint8, and object i is
    ``data[begins[i]:ends[i]]``. ``names``, uint8, are the names with their quotes, concatenated; each ends at ``stops``, int64
    [names]. ``order``, int64 [names], is the expected order of names, and is updated. Objects with many names in varying order
    are not parsed, because the comparisons would take too long.

    Numbers are written into column ``columns[name]`` of ``X``, float64 [rows, columns], NaN for null or missing values; ``bits``
    is a uint64 view of ``X``, and ``integer_mask``, bool, tells whether the number is an integer without decimal point and
    exponent. The range of a value of any kind in ``data`` is written into ``places[row, texts[name]]``, int64 [rows, texts, 2],
    -1 if missing. A column of -1 discards the value. UTF-8 is not validated. The returned number of a name is -1 unless the
    object has a string or bool in place of this number.
    """
    n_names = stops.shape[0]
    last_row = np.full(n_names, -1, dtype=np.int64)  # the last row that contained each name
    max_comparisons = _MAX_COMPARISONS_PER_NAME * n_names  # names in arbitrary order would need the square of their number
    for i in range(first, begins.shape[0]):
        at, limit, n_read, comparisons = begins[i], ends[i], 0, 0
        X[i, :] = np.nan
        places[i, :, :] = -1
        at = _skip_blanks(data, at, limit)
        if at >= limit or data[np.uint64(at)] != _OPEN:
            return i, -1
        at = _skip_blanks(data, at + 1, limit)
        closed = at < limit and data[np.uint64(at)] == _CLOSE
        while not closed:
            if n_read >= n_names:
                return i, -1
            # Find the name: compare the one at this position in the previous row first, and then all.
            name = -1
            for k in range(-1, n_names):
                candidate = order[n_read] if k < 0 else k
                start = stops[candidate - 1] if candidate else 0
                size = stops[candidate] - start
                if size > limit - at:
                    continue
                comparisons += 1
                if comparisons > max_comparisons:
                    return i, -1
                is_equal = True
                for j in range(size):
                    if data[np.uint64(at + j)] != names[np.uint64(start + j)]:
                        is_equal = False
                        break
                if is_equal:
                    name = candidate
                    at += size
                    break
            if name < 0 or last_row[name] == i:
                return i, -1
            last_row[name], order[n_read] = i, name
            n_read += 1
            at = _skip_blanks(data, at, limit)
            if at >= limit or data[np.uint64(at)] != _COLON:
                return i, -1
            at = _skip_blanks(data, at + 1, limit)
            start = at
            if columns[name] < 0:
                at = _skip_value(data, at, limit)
            elif at < limit and data[np.uint64(at)] == _NULL[0]:
                at = _skip_word(data, at, limit, _NULL)
            elif at < limit and (
                data[np.uint64(at)] == _QUOTE or data[np.uint64(at)] == _TRUE[0] or data[np.uint64(at)] == _FALSE[0]
            ):
                return i, name
            else:
                negative, is_integer, w, q, at = parse_number(data, at, limit)
                # The integer -0 is 0, as in Python.
                if at < 0 or not write_number(
                    X, bits, i, columns[name], negative and not (is_integer and w == np.uint64(0)), w, q
                ):
                    return i, -1
                integer_mask[i, columns[name]] = is_integer
            if at < 0:
                return i, -1
            if texts[name] >= 0:
                places[i, texts[name], 0], places[i, texts[name], 1] = start, at
            at = _skip_blanks(data, at, limit)
            if at >= limit or (data[np.uint64(at)] != _COMMA and data[np.uint64(at)] != _CLOSE):
                return i, -1
            closed = data[np.uint64(at)] == _CLOSE
            if not closed:
                at = _skip_blanks(data, at + 1, limit)
        if _skip_blanks(data, at + 1, limit) != limit:
            return i, -1
    return begins.shape[0], -1


@compiled(forceinline=True)
def _find_cell_text(data: Any, at: Any, limit: Any, delimiter: Any) -> Any:
    """Find the text of the CSV cell that starts at position ``at`` of the bytes ``data``, in a row that ends at ``limit``.
    Returns (start of the text, its stop, position after the cell), where the text excludes enclosing quotes. The position is -1
    if there are quotes within the text.
    """
    if at < limit and data[np.uint64(at)] == _QUOTE:
        start = at + 1
        at = start
        while at < limit and data[np.uint64(at)] != _QUOTE:
            at += 1
        closes = at < limit and (at + 1 == limit or data[np.uint64(at + 1)] == delimiter)
        return start, at, at + 1 if closes else -1
    start = at
    while at < limit and data[np.uint64(at)] != delimiter:
        if data[np.uint64(at)] == _QUOTE:
            return start, at, -1
        at += 1
    return start, at, at


@compiled
def read_cells(
    data: Any, begins: Any, ends: Any, first: Any, delimiter: Any, columns: Any, texts: Any, X: Any, bits: Any, places: Any
) -> Any:
    """Parse rows of delimited text (CSV); row i is ``data[begins[i]:ends[i]]``. Numbers are written into ``X`` float64 [rows,
    columns], and the positions of texts into ``places``. Parsing starts with row ``first``, and stops at a row that is invalid or
    too complex. Returns (its index, or the number of rows; index of the cell that stopped it, or -1).

    The ``delimiter`` must not be a blank. Cells can be quoted, and blanks before them are skipped. The number of a cell is
    written into column ``columns[cell]`` of ``X``, NaN if it is empty, and the range of its text in ``data`` into ``places[row,
    texts[cell]]``, int64 [rows, texts, 2]; -1 discards it. The other arguments are those of `read_objects`; newlines at the end
    of rows are ignored. The returned number of a cell is -1 if the row has too many or too few cells.
    """
    for i in range(first, begins.shape[0]):
        at, limit = begins[i], ends[i]
        while limit > at and (data[np.uint64(limit - 1)] == _NEWLINE or data[np.uint64(limit - 1)] == _RETURN):
            limit -= 1
        for cell in range(columns.shape[0]):
            while at < limit and data[np.uint64(at)] == _SPACE:
                at += 1
            if columns[cell] < 0 or texts[cell] >= 0 or (at < limit and data[np.uint64(at)] == _QUOTE):
                start, stop, after = _find_cell_text(data, at, limit, delimiter)
                if after < 0:
                    return i, cell
                if texts[cell] >= 0:
                    places[i, texts[cell], 0], places[i, texts[cell], 1] = start, stop
            else:
                start, stop, after = at, limit, -1
            if columns[cell] >= 0:
                at = start
                while after >= 0 and at < stop and data[np.uint64(at)] == _SPACE:  # blanks inside of quotes
                    at += 1
                if at == stop or (after < 0 and data[np.uint64(at)] == delimiter):
                    X[i, columns[cell]] = np.nan
                else:
                    negative, _, w, q, at = parse_number(data, at, stop)
                    if at < 0 or not write_number(X, bits, i, columns[cell], negative, w, q):
                        return i, cell
                    while (
                        at < stop
                        and (after >= 0 or data[np.uint64(at)] != delimiter)  # the delimiter can be a tab
                        and (data[np.uint64(at)] == _SPACE or data[np.uint64(at)] == _TAB or data[np.uint64(at)] == _RETURN)
                    ):
                        at += 1
                    if at < stop and (after >= 0 or data[np.uint64(at)] != delimiter):
                        return i, cell
                if after < 0:
                    after = at
            at = after
            is_last = cell == columns.shape[0] - 1
            if is_last != (at >= limit):
                return i, -1
            at += 1
    return begins.shape[0], -1


@compiled
def read_pairs(data: Any, begins: Any, ends: Any, first: Any, columns: Any, X: Any, bits: Any, labels: Any) -> Any:
    """Parse rows in LIBSVM format (a label and index:value pairs); row i is ``data[begins[i]:ends[i]]``. Values are written into
    ``X`` float64 [rows, columns], and the positions of label texts into ``labels``. Parsing starts with row ``first``, and stops
    at a row that is invalid or too complex. Returns its index, or the number of rows.

    The value of an index is written into column ``columns[index]`` of ``X``; missing ones are NaN. Rows with a comment, or with
    an index whose column is -1, are not parsed. A label can be any text, whose range in ``data`` is written into ``labels``,
    int64 [rows, 2]. The other arguments are those of `read_objects`.
    """
    for i in range(first, begins.shape[0]):
        at, limit = _skip_blanks(data, begins[i], ends[i]), ends[i]
        X[i, :] = np.nan
        labels[i, 0] = at
        while at < limit and data[np.uint64(at)] > _SPACE:
            if data[np.uint64(at)] == _COLON or data[np.uint64(at)] == _HASH:
                return i
            at += 1
        labels[i, 1] = at
        if at == labels[i, 0]:
            return i
        at = _skip_blanks(data, at, limit)
        while at < limit:
            start, index = at, np.int64(0)
            while at < limit and _ZERO <= data[np.uint64(at)] <= _NINE and index < columns.shape[0]:
                index = 10 * index + np.int64(data[np.uint64(at)] - _ZERO)
                at += 1
            if at == start or at >= limit or data[np.uint64(at)] != _COLON or index >= columns.shape[0] or columns[index] < 0:
                return i
            if not np.isnan(X[i, columns[index]]):
                return i
            negative, _, w, q, at = parse_number(data, at + 1, limit)
            if at < 0 or not write_number(X, bits, i, columns[index], negative, w, q):
                return i
            if at < limit and data[np.uint64(at)] > _SPACE:
                return i
            at = _skip_blanks(data, at, limit)
    return begins.shape[0]


LARGEST_INDEX = 2**31 - 2  # in `read_sparse`


@compiled
def read_sparse(data: Any, at: Any, rows: Any, first: Any, labels: Any, starts: Any, indices: Any, values: Any) -> Any:
    """Parse lines in LIBSVM format (a numeric label and index:value pairs) from position ``at`` of the bytes ``data``, and append
    them to a sparse matrix of ``rows`` rows. Stops at a line that is invalid or too complex. Returns (new number of rows,
    position of this line, or of the end of the data).

    There are ``rows`` rows before the first line. Comments and empty lines are skipped. Writes ``labels``, float64; ``indices``
    minus ``first``, uint32; ``values``, float32, which must be finite; and the ``starts`` of each row in these, uint32 [rows +
    1].
    """
    limit, cell = data.shape[0], np.empty((1, 1))
    bits = cell.view(np.uint64)
    while True:
        at = _skip_blanks(data, at, limit)
        if at >= limit:
            return rows, limit
        line, k, last, is_label = at, np.int64(starts[rows]), np.int64(first) - 1, True
        while at < limit and data[np.uint64(at)] != _NEWLINE and data[np.uint64(at)] != _HASH:
            start, index = at, np.int64(0)
            if not is_label:
                while at < limit and _ZERO <= data[np.uint64(at)] <= _NINE and index <= LARGEST_INDEX:
                    index = 10 * index + np.int64(data[np.uint64(at)] - _ZERO)
                    at += 1
                if at == start or at >= limit or data[np.uint64(at)] != _COLON or not last < index <= LARGEST_INDEX:
                    return rows, line
                at += 1
            elif data[np.uint64(at)] == _PLUS and at + 1 < limit and data[np.uint64(at + 1)] != _MINUS:
                at += 1
            negative, _, w, q, at = parse_number(data, at, limit)
            if at < 0 or not write_number(cell, bits, 0, 0, negative, w, q):
                return rows, line
            if at < limit and data[np.uint64(at)] > _SPACE and data[np.uint64(at)] != _HASH:
                return rows, line
            if is_label:
                labels[rows], is_label = cell[0, 0], False
            else:
                indices[k], values[k] = index - first, cell[0, 0]
                if not np.isfinite(values[k]):
                    return rows, line
                last, k = index, k + 1
            while at < limit and _is_one_of(data[np.uint64(at)], _WITHIN_LINES):
                at += 1
        if not is_label:
            rows += 1
            starts[rows] = k
        while at < limit and data[np.uint64(at)] != _NEWLINE:
            at += 1
