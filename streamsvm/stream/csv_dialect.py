"""Detects how a CSV text is written: its encoding and its delimiter."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Mapping
from typing import Any

_MIN_WRONG_LINES = 3  # fewer lines that are not UTF-8 are damaged lines of a UTF-8 file
_MAX_DIALECT_ROWS, _MIN_FITTING_SHARE = 20, 0.8  # rows for delimiter detection; share of them with as many cells as the header
_DELIMITERS = ",;\t|"
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
            text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(head.removeprefix(codecs.BOM_UTF8))
        except LookupError:  # an unknown encoding is reported when the file is opened
            return detected
        if (delimiter := _detect_delimiter(text, label)) != ",":
            detected["delimiter"] = delimiter
    return detected


def _detect_encoding(head: bytes) -> str:
    """Detect the encoding of a text from its first bytes: ``utf-8``, or ``cp1252`` if its first line is not valid UTF-8, or if it
    has at least three lines with special characters and all of them are invalid.
    """
    lines = [line for line in head.split(b"\n")[:-1] or [head] if not line.isascii()]
    wrong = [line for line in lines if not _can_decode(line, "utf-8")]
    is_first_line = bool(wrong) and head.startswith(wrong[0])
    if not wrong or (not is_first_line and (len(wrong) < _MIN_WRONG_LINES or len(wrong) < len(lines))):
        return "utf-8"
    return _FALLBACK_ENCODING if all(_can_decode(line, _FALLBACK_ENCODING) for line in wrong) else "utf-8"


def _can_decode(line: bytes, encoding: str) -> bool:
    """Return whether a line of bytes is valid text in an encoding."""
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _detect_delimiter(text: str, label: str | None) -> str:
    """Return the delimiter (comma, semicolon, tab or pipe) that splits the header of a CSV text into the most columns, if most
    rows then have as many cells as the header. One column must be called ``label``; None: any names.
    """
    best, max_columns = ",", 1
    for delimiter in _DELIMITERS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=delimiter, skipinitialspace=True, strict=True)
        try:
            rows = [row for row in itertools.islice(reader, _MAX_DIALECT_ROWS) if row]
        except csv.Error:
            continue
        header = [cell.strip() for cell in rows[0]] if rows else []
        n_fitting = sum(len(row) == len(header) for row in rows)
        if len(header) > max_columns and n_fitting >= _MIN_FITTING_SHARE * len(rows) and (label is None or label in header):
            best, max_columns = delimiter, len(header)
    return best
