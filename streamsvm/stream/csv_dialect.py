"""Detects how a CSV text is written: its encoding, delimiter, quotes, and what in it is not data."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from streamsvm.stream.csv_columns import parse_cell
from streamsvm.stream.endpoints import StreamError
from streamsvm.stream.lines import can_decode, normalize_encoding

_MIN_WRONG_LINES = 3  # fewer lines that are not UTF-8 are damaged lines of a UTF-8 file
_MAX_DIALECT_ROWS, _MIN_FITTING_SHARE = 20, 0.8  # rows for delimiter detection; share of them with as many cells as the header
_DELIMITERS = ",;\t| "
_SEPARATOR_LINE = re.compile(rb'(?i:(?:\xef\xbb\xbf)?"?sep=)(\\t|[^\r\n])\1*"?\r?\n')  # as Excel reads it
#: Assumed encoding of text that is not UTF-8: that of Windows in Western Europe, which contains all letters of Latin-1.
_FALLBACK_ENCODING = "cp1252"


def detect_csv_options(head: bytes, label: str | None, options: Mapping[str, Any]) -> dict[str, str]:
    r"""Detect the options ``encoding`` and ``delimiter`` of a CSV file from its first bytes, ``head``. Options that the user has
    set, or that have their default, are left out. The header must contain the column ``label``; None: any columns.

    >>> detect_csv_options("Größe;Preis\n1,5;2\n".encode("latin-1"), "Preis", {})
    {'encoding': 'cp1252', 'delimiter': ';'}
    """
    detected: dict[str, str] = {}
    encoding: Any = options.get("encoding") or _detect_encoding(head)
    if "encoding" not in options and encoding != "utf-8":
        detected["encoding"] = encoding
    if "delimiter" not in options:
        try:
            decoder = codecs.getincrementaldecoder(normalize_encoding(encoding))(errors="replace")
        except StreamError:  # an unknown encoding is reported when the file is opened
            return detected
        text = decoder.decode(head.removeprefix(codecs.BOM_UTF8))
        if (delimiter := read_separator(head) or _detect_delimiter(text, label)) != ",":
            detected["delimiter"] = delimiter
    return detected


def _detect_encoding(head: bytes) -> str:
    """Detect the encoding of a text from its first bytes: ``utf-8``, or ``cp1252`` if its first line is not valid UTF-8, or if it
    has at least three lines with special characters and all of them are invalid.
    """
    lines = [line for line in head.split(b"\n")[:-1] or [head] if not line.isascii()]
    wrong = [line for line in lines if not can_decode(line, "utf-8")]
    is_other = bool(wrong) and (head.startswith(wrong[0]) or len(wrong) == len(lines) >= _MIN_WRONG_LINES)
    return _FALLBACK_ENCODING if is_other and all(can_decode(line, _FALLBACK_ENCODING) for line in wrong) else "utf-8"


def _detect_delimiter(text: str, label: str | None) -> str:
    """Return the delimiter (comma, semicolon, tab or pipe) that splits the header of a CSV text into the most columns, if most
    rows then have as many cells as the header. One column must be called ``label``; None: any names.
    """
    best, max_columns = ",", 1
    for delimiter in _DELIMITERS:
        if delimiter == " " and max_columns > 1:
            break
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
        try:
            rows = [row for row in itertools.islice(reader, _MAX_DIALECT_ROWS) if row]
        except csv.Error:  # perhaps its quotes are part of the text
            rows = [line.split(delimiter) for line in text.split("\n", _MAX_DIALECT_ROWS)[:-1]]
        header = [cell.strip() for cell in rows[0]] if rows else []
        sizes = [len(row) - len(header) for row in rows]
        n_fitting = max(sizes.count(0), sizes.count(1) + 1)  # rows may have names, or end with a delimiter
        if len(header) > max_columns and n_fitting >= _MIN_FITTING_SHARE * len(rows) and (label is None or label in header):
            best, max_columns = delimiter, len(header)
    return best


def read_separator(text: bytes) -> str:
    r"""Return the delimiter that a first line such as ``sep=;`` names; empty without one.

    >>> read_separator(b"sep=;\r\na;b\r\n"), read_separator(b"sep=\\t\n"), read_separator(b"a;b\n")
    (';', '\t', '')
    """
    return match[1].decode("latin-1").replace("\\t", "\t") if (match := _SEPARATOR_LINE.match(text)) else ""


def complete_names(names: Sequence[str], header: str, cells: Sequence[str], line: str, delimiter: str) -> list[str]:
    """Return the names of all columns of a CSV text, from those in its header. ``cells`` and ``line`` are its first row. Rows may
    have one more cell: their names at the beginning, as R writes tables, or an empty one at the end. Columns without a name are
    called as pandas calls them, if there are several.

    >>> complete_names(["a", "y"], '"a","y"', ["1", "2.5", "no"], '"1",2.5,"no"', ",")
    ['', 'a', 'y']
    >>> complete_names(["a", "y", "", ""], "a,y,,", ["1", "no", "", ""], "1,no,,", ",")
    ['a', 'y', 'Unnamed: 2', 'Unnamed: 3']
    """
    names = list(names)
    if len(cells) == len(names) + 1:
        if not cells[-1].strip():
            names.append("")
        elif delimiter in "\t " or (header.startswith('"') and line.startswith('"')):
            names.insert(0, "")
    elif len(cells) == len(names) - 1 and not names[-1]:  # only the header ends with a delimiter
        names.pop()
    return [name or f"Unnamed: {i}" for i, name in enumerate(names)] if names.count("") > 1 else names


def are_rows(lines: Sequence[Sequence[str]], n_columns: int, compares_kinds: bool) -> bool:
    r"""Return whether lines that a quote joins to one row are rows themselves, so that the quote is part of the text, as in ``6"
    pipe``. ``lines`` are their cells, split at each delimiter. There must be ``n_columns`` cells in each line, none in quotes. If
    ``compares_kinds``, the cells of a column must be alike: all numbers or all texts, and with a blank before them or without.

    >>> are_rows([["1", '"6 inch', "no"], ["2", "plain", "yes"], ["3", '6"', "no"]], 3, True)
    True
    >>> are_rows([["1", "no", '"well'], [" this", " is", ' text"']], 3, True)
    False
    """
    if any(len(row) != n_columns or any(len(cell) > 1 and cell[0] == cell[-1] == '"' for cell in row) for row in lines):
        return False
    columns = [[cell for cell in column if cell and '"' not in cell] for column in zip(*lines, strict=True)]
    kinds = ({(cell[0] == " ", type(parse_cell(cell))) for cell in cells} for cells in columns)
    return not compares_kinds or all(len(types) < 2 for types in kinds)


def have_column_of_numbers(lines: Sequence[Sequence[str]]) -> bool:
    """Return whether a column of these ``lines``, split into cells, has only numbers, or has a value twice, unlike prose."""
    columns = zip(*lines, strict=True)
    return any(len({*column}) < len(column) or all(isinstance(parse_cell(cell), float) for cell in column) for column in columns)
