"""Checks of the numbers in a table, and advice for users on values that are not of their column's kind."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Hashable, Mapping
from typing import Any

from streamsvm.core.checks import LARGEST_FLOAT32
from streamsvm.files.messages import short_repr
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, NUMBER, TEXT
from streamsvm.stream.tables.quantities import parse_formatted
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.table_schema import format_arguments, format_flags

_MIN_WORDS = 5  # of a value that may be a sentence
_MIN_ROWS_OF_NUMBERS = 20  # after this many numbers, an error does not propose another kind for the column


def to_finite_number(name: Hashable, value: Any, parser: TableParser, n_learned: int) -> float:
    """Convert a value of the numeric column ``name`` to float. Raises ValueError, with advice for the user, if it is not a number
    within the range of float32. ``n_learned`` is the number of values of the column that were learned before.
    """
    try:
        if isinstance(value, str | bytes):
            raise TypeError
        number = float(value)
    except OverflowError:
        number = math.inf
    except (TypeError, ValueError):
        kind = "a text" if isinstance(value, str) else f"a {type(value).__name__}"
        raise ValueError(
            f"feature {short_repr(name)} is {short_repr(value)}, {kind}. {_advise(name, value, parser, n_learned)}"
        ) from None
    if not -LARGEST_FLOAT32 <= number <= LARGEST_FLOAT32:
        advice = _advise(name, number, parser, n_learned)
        raise ValueError(f"feature {short_repr(name)} is {number}, which is not a finite float32 number. {advice}")
    return number


def _advise(name: Hashable, value: Any, parser: TableParser, n_learned: int) -> str:
    """Return advice for the user on an invalid ``value`` in the numeric or date column ``name``: the options to set, or how to
    fix the row.
    """
    is_known, is_text = n_learned >= _MIN_ROWS_OF_NUMBERS, isinstance(value, str)
    if is_text and parser.get_kind(name) == NUMBER and not parser.has_plain_numbers(name):
        for mark in ".,":
            with contextlib.suppress(ValueError):
                parse_formatted(value, mark)
                return f"Its decimal mark is {mark!r}, and that of the column is another one: fix it, or leave its row out"
    missing = _format_option({"missing": [str(value)]})
    if is_known or parser.get_kind(name) == DATE:  # too late for another kind of column
        advice = f"The {n_learned:,} values learned before are numbers: fix this one"
        if parser.get_kind(name) == DATE:
            advice = f"It is not a date in the format of that column ({parser.get_date_format(name) or 'ISO 8601'}): fix it"
        advice += ", or leave its row out" if is_known else ", or give its format"
        if isinstance(value, str | float):
            advice += f". If it marks a missing value, make it empty: only a new model can be learned with {missing}"
        return advice
    kind, contents = (TEXT, "sentences") if len(str(value).split()) >= _MIN_WORDS else (CATEGORY, "names")
    kinds = {kind: _format_option({"columns": {str(name): kind}}) for kind in (kind, DATE, DROP)}
    of_text = f"If the column holds {contents}: {kinds[kind]}. If it holds dates: {kinds[DATE]}. "
    advice = f"{of_text * is_text}If it marks a missing value: {missing}. To leave out the column: {kinds[DROP]}"
    return f"{advice}. A run that resumes from a checkpoint reads columns as before: fix the value, or leave its row out"


def _format_option(options: Mapping[str, Any]) -> str:
    """Format options for messages, as Python arguments followed by command-line flags in brackets."""
    return f"{format_arguments(options)} ({format_flags(options)})"
