"""Values far from all others of a column, which may be marks of missing values."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import date
from typing import Any

from streamsvm.stream.tables.values import as_seconds, is_date

_MOST = 3  # marks on each side
_FEWEST_ROWS, _FEWEST = 20, 5  # rows, and other values than the marks
_FAR, _NEAR = 5.0, 0.25  # widths of the others, at which a mark lies from them; nearer where it looks like one
_REPEATED = 3  # rows; fewer where it looks like one
_NINES = re.compile(r"-?(9{3,}|9{2,}8|32768|32767|2147483648|2147483647)")
_HUGE, _THOUSANDS = 1e30, 1000.0
_MOST_ZEROS = 0.5  # of the rows
_NO_DATES = tuple(map(as_seconds, ("0001-01-01", "1900-01-01", "1970-01-01", "9999-12-31")))  # dates that often stand for none


def far_values(numbers: Sequence[float], marks: Sequence[float] = ()) -> list[float]:
    """Return the values that are repeated far outside the others, at most three on each side; none where that says nothing.

    A value such as -999, 32767 or 1e38, or one of ``marks``, is nearer far than others are. Zero is, where all others are at
    least a thousand. Where most rows have it, as sums do, it never is.

    >>> ages = [20 + i * i % 61 for i in range(40)]
    >>> far_values([*ages, -999, -999]), far_values([*ages, 300, 300]), far_values([*ages, 1e38, 1e38, -999, -998, -998, -999])
    ([-999], [], [-999, -998, 1e+38])
    >>> far_values([0] * 95 + [1848, 1848, 1887, 1902, 1977, 2001])
    []
    """
    if len(numbers) < _FEWEST_ROWS:
        return []
    counts = Counter(numbers)
    values = sorted(counts)
    usual_zero = counts[0] >= _MOST_ZEROS * len(numbers)
    found: list[float] = []
    for low, high in itertools.product(range(_MOST + 1), repeat=2):
        rest, ends = values[low : len(values) - high], (*values[:low], *values[len(values) - high :])
        if len(rest) < _FEWEST or len(ends) <= len(found):
            continue
        width = float(rest[-1]) - float(rest[0])
        are_far = all(_is_far(value, rest, width, counts[value], value in marks) for value in ends)
        are_far = are_far and not (usual_zero and 0 in ends)
        if are_far and sum(counts[value] for value in ends) < len(numbers):
            found = list(ends)
    if not found and values[0] == 0 and len(values) > _FEWEST and values[1] >= _THOUSANDS:
        return [values[0]] if counts[0] >= _REPEATED and not usual_zero else []
    return found


def _is_far(value: float, rest: Sequence[float], width: float, count: int, is_mark: bool) -> bool:
    is_mark = is_mark or abs(value) >= _HUGE or _NINES.fullmatch(as_mark(value)) is not None
    gap = max(float(rest[0]) - float(value), float(value) - float(rest[-1]))
    return gap > (_NEAR if is_mark else _FAR) * width and count >= _REPEATED - is_mark


def as_mark(value: float) -> str:
    """Return a number as a mark of missing values is written.

    >>> as_mark(-999.0), as_mark(1e38), as_mark(99.9)
    ('-999', '1e+38', '99.9')
    """
    return str(int(value)) if float(value).is_integer() and abs(value) < 1e15 else repr(float(value))


def far_dates(values: Iterable[Any], form: str | None) -> list[str]:
    """Return the dates, and texts that are some in a format, that are far from the others, as `far_values` of numbers.

    >>> far_dates([f"2024-01-{i + 1:02d}" for i in range(30)] + ["9999-12-31"] * 2, None)
    ['9999-12-31']
    """
    texts = [text for value in values if isinstance(value, str | date) and is_date(text := str(value).strip(), form)]
    times = {text: as_seconds(text, form) for text in dict.fromkeys(texts)}
    far = far_values([times[text] for text in texts], _NO_DATES)
    return [text for text, time in times.items() if time in far]
