"""Canonical spelling of category names, and their hash keys in tables of categories."""

from __future__ import annotations

import contextlib
import functools
import re
import unicodedata
import zlib
from collections.abc import Hashable
from typing import Any

_INTEGER_WITH_POINT = re.compile(r"(0|-?[1-9][0-9]{0,15})\.0+")


def format_category(value: Any) -> str:
    """Return the text that stands for a category: ``"true"`` or ``"false"`` for bools, ``"1"`` for 1.0, else ``str(value)``. So
    equal values have the same text in all file formats.
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def normalize_name(name: str) -> str:
    """Return the canonical spelling of a category (a text value of a column): whole numbers such as ``"1.0"`` lose their decimal
    point, ``"TRUE"`` and ``"False"`` become lower case, and other texts stay unchanged.

    >>> [normalize_name(name) for name in ("1.0", "-20.00", "TRUE", "1.10", "007", "Paris")]
    ['1', '-20', 'true', '1.10', '007', 'Paris']
    """
    if name.lower() in ("true", "false"):
        return name.lower()
    match = _INTEGER_WITH_POINT.fullmatch(name) if name.endswith("0") else None
    return name if match is None else match[1]


def normalize_spelling(name: str) -> str:
    """Return a name in the form in which it is compared with other spellings: in lower case, with single blanks, in Unicode form
    NFKC, and numbers without leading and trailing zeros.

    >>> [normalize_spelling(name) for name in (" New  York", "01", "1.0", "\uff21")]
    ['new york', '1', '1', 'a']
    """
    text = " ".join(unicodedata.normalize("NFKC", name).casefold().split())
    with contextlib.suppress(ValueError):
        return f"{float(text):.17g}"
    return text


@functools.lru_cache(maxsize=1024, typed=True)
def compute_column_seed(column: Hashable) -> int:
    """Return the seed for hashing the categories of a column with `compute_name_key`: the CRC-32 of the column's name, a uint32.
    It gives equal texts in different columns different hashes.
    """
    return zlib.crc32(_encode_text(str(column)))


def compute_name_key(seed: int, name: str) -> int:
    """Return the hash of a category (a text value of a column), a uint32 from 1 on, which tables of categories use as key. It is
    the CRC-32 of the category's ``name``, continued from ``seed``, the column's result of `compute_column_seed`; 0 becomes 1.

    >>> compute_name_key(compute_column_seed("city"), "Paris") == zlib.crc32(b"Paris", zlib.crc32(b"city"))
    True
    """
    return zlib.crc32(_encode_text(name), seed) or 1


def _encode_text(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
