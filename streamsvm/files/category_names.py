"""Names of categories in one spelling, and their keys in tables of names."""

from __future__ import annotations

import re
import zlib
from collections.abc import Hashable

_WHOLE = re.compile(r"(0|-?[1-9][0-9]{0,15})\.0+")


def normalize_name(name: str) -> str:
    """Normalise the name of a category: whole numbers without a point, true and false in lower case.

    >>> [normalize_name(name) for name in ("1.0", "-20.00", "TRUE", "1.10", "007", "Paris")]
    ['1', '-20', 'true', '1.10', '007', 'Paris']
    """
    if name.lower() in ("true", "false"):
        return name.lower()
    match = _WHOLE.fullmatch(name)
    return name if match is None else match[1]


def compute_column_seed(column: Hashable) -> int:
    """Return the number with which the CRC-32 of the names of a column begins: that of its own name."""
    return zlib.crc32(_text_bytes(str(column)))


def compute_name_key(seed: int, name: str) -> int:
    """Return the key of a name in a column with this seed: the CRC-32 of both, and never 0.

    >>> compute_name_key(compute_column_seed("city"), "Paris") == zlib.crc32(b"Paris", zlib.crc32(b"city"))
    True
    """
    return zlib.crc32(_text_bytes(name), seed) or 1


def _text_bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")
