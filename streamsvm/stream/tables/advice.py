"""Values that are none of their column, and what to do about them."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import Any

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.files.messages import shown
from streamsvm.stream.tables.kinds import CATEGORY, DATE, DROP
from streamsvm.stream.tables.options import arguments_of, flags_of
from streamsvm.stream.tables.reading import Reading

_KNOWN = 20  # values of a column of numbers, from which on it is one


def number_in(value: Any, name: Hashable, reading: Reading, learned: int) -> float:
    """Return the number that a value of a column is, of which so many were ``learned``; a ValueError says what would help."""
    if type(value) is not float:
        try:
            if isinstance(value, str | bytes):
                raise TypeError
            value = float(value)
        except OverflowError:
            value = math.inf
        except (TypeError, ValueError):
            kind = "a text" if isinstance(value, str) else f"a {type(value).__name__}"
            text = f"feature {shown(name)} is {shown(value)}, {kind}. {_advice_for(name, value, reading, learned)}"
            raise ValueError(text) from None
    if not -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32:
        raise ValueError(
            f"feature {shown(name)} is {value}, which is no finite float32 number. {_advice_for(name, value, reading, learned)}"
        )
    return value


def _advice_for(name: Hashable, value: Any, reading: Reading, learned: int) -> str:
    is_known, is_text = learned >= _KNOWN, isinstance(value, str)
    missing = _option_words({"missing": [str(value)]})
    if is_known or reading.kind_of(name) == DATE:  # too late for another kind of column
        said = f"The {learned:,} values learned before are numbers: fix this one"
        if reading.kind_of(name) == DATE:
            said = f"It is not a date in the format of that column ({reading.format_of(name) or 'ISO 8601'}): fix it"
        or_missing = f". If it marks a missing value, make it empty; a run from scratch can be told {missing}"
        return f"{said}, or {'leave its row out' if is_known else 'give its format'}{or_missing * isinstance(value, str | float)}"
    kinds = {kind: _option_words({"columns": {str(name): kind}}) for kind in (CATEGORY, DATE, DROP)}
    of_text = f"If the column holds names: {kinds[CATEGORY]}. If it holds dates: {kinds[DATE]}. "
    said = f"{of_text * is_text}If it marks a missing value: {missing}. To leave out the column: {kinds[DROP]}"
    return f"{said}. A run that goes on from a checkpoint reads columns as before: fix the value, or leave its row out"


def _option_words(options: Mapping[str, Any]) -> str:
    """Return options as arguments and, in brackets, as flags."""
    return f"{arguments_of(options)} ({flags_of(options)})"
