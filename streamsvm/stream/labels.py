"""Labels that come as text."""

from __future__ import annotations

import functools
import math
from typing import Any

__all__ = ["parse_label", "parse_libsvm_label"]

_MAX_NUMBER_LENGTH = 19  # a shorter number fits an int of 64 bits
_LARGEST_WHOLE = 2**53  # larger floats do not tell whole numbers apart


@functools.lru_cache(maxsize=1024)
def parse_label(text: str) -> Any:
    """Parse a label: True, False, None if the text is empty, a number if it prints as that text, else the text.

    Numbers that would print otherwise (``007``, ``1_000``, more digits than an int of 64 bits has) are names that look like
    numbers, and stay text.

    Examples
    --------
    >>> [parse_label(text) for text in ("true", "-1", "1.0", "007", "spam", "")]
    [True, -1, 1.0, '007', 'spam', None]
    """
    text = text.strip()
    lower = text.lower()
    if lower in ("true", "false"):
        return lower == "true"
    if not text:
        return None
    if lower == "nan":  # a missing value of a table and no name: learners refuse it
        return math.nan
    for kind in (int, float):
        try:
            if len(text) < _MAX_NUMBER_LENGTH and str(number := kind(text)) == text and math.isfinite(number):
                return number
        except ValueError:
            pass
    return text


def parse_libsvm_label(text: str) -> Any:
    """Parse the label of LIBSVM text: a number however it is written (+1, 1 and 1.0 are equal), else as `parse_label`."""
    try:
        number = float(text)
    except ValueError:
        return parse_label(text)
    return int(number) if number.is_integer() and abs(number) < _LARGEST_WHOLE else number
