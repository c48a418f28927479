"""How the text of a CSV file is written: its encoding, and the character between the cells."""

from __future__ import annotations

import codecs
import csv
import io
import itertools
from collections.abc import Mapping
from typing import Any

_FEW = 3  # lines
_ROWS, _MOST = 20, 0.8  # and the part of them that must have as many cells as the first
_DELIMITERS = ",;\t|"
#: What text that is not UTF-8 may be: Windows writes it in Western Europe, and it holds all letters of Latin-1.
_OTHER = "cp1252"


def text_options(data: bytes, label: str | None, given: Mapping[str, Any]) -> dict[str, str]:
    r"""Return the ``encoding`` and the ``delimiter`` of a CSV file that begins so, as far as they are not usual, and not given.

    >>> text_options("Größe;Preis\n1,5;2\n".encode("latin-1"), "Preis", {})
    {'encoding': 'cp1252', 'delimiter': ';'}
    """
    found: dict[str, str] = {}
    encoding: Any = given.get("encoding") or _encoding_of(data)
    if "encoding" not in given and encoding != "utf-8":
        found["encoding"] = encoding
    if "delimiter" not in given:
        try:
            text = codecs.getincrementaldecoder(encoding)(errors="replace").decode(data.removeprefix(codecs.BOM_UTF8))
        except LookupError:  # is said where the file is opened
            return found
        if (delimiter := _delimiter_of(text, label)) != ",":
            found["delimiter"] = delimiter
    return found


def _encoding_of(data: bytes) -> str:
    """Return the encoding of the beginning of a text.

    A few lines that are not UTF-8 are damaged, unless the first one is such a line.
    """
    lines = [line for line in data.split(b"\n")[:-1] or [data] if not line.isascii()]
    wrong = [line for line in lines if not _is_in("utf-8", line)]
    is_first = bool(wrong) and data.startswith(wrong[0])
    if not wrong or (not is_first and (len(wrong) < _FEW or len(wrong) < len(lines))):
        return "utf-8"
    return _OTHER if all(_is_in(_OTHER, line) for line in wrong) else "utf-8"


def _is_in(encoding: str, line: bytes) -> bool:
    """Whether a line can be of an encoding."""
    try:
        line.decode(encoding)
    except UnicodeDecodeError:
        return False
    return True


def _delimiter_of(text: str, label: str | None) -> str:
    """Return what stands between the cells: what makes the most columns, one of which is that of the label."""
    best, most = ",", 1
    for mark in _DELIMITERS:
        reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, skipinitialspace=True, strict=True)
        try:
            rows = [row for row in itertools.islice(reader, _ROWS) if row]
        except csv.Error:
            continue
        header = [cell.strip() for cell in rows[0]] if rows else []
        n_fit = sum(len(row) == len(header) for row in rows)
        if len(header) > most and n_fit >= _MOST * len(rows) and (label is None or label in header):
            best, most = mark, len(header)
    return best
