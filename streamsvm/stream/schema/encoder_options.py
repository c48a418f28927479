"""Infers options of an encoder: the cycles of dates, and whether absent numbers are 0, because rows name only what they have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

from streamsvm.stream.schema.column_inference import MIN_ROWS_TO_JUDGE, is_number
from streamsvm.stream.tables.dates import CYCLES

_MIN_TIMES_OF_DAY = 3  # midnight, written in UTC, has two: with and without daylight saving time
_FIRST_DAYS = (0, (date(1900, 1, 1) - date(1970, 1, 1)).days)  # times of day without a date are on these days
_MIN_COLUMNS_OF_COUNTS = 5  # fewer columns of small whole numbers with gaps may be measurements
_MAX_FLAG_SHARE = 0.75  # of the rows that have a column whose only value is 1
_MIN_VALUES_TO_COMPARE = 10  # a column with this many counts has a 1 among them


def infer_cycles(times: Sequence[float]) -> tuple[str, ...]:
    """Return the cycles that suit a column of dates: day and week if the times of day vary, only day if there are no dates, and
    none otherwise. ``times`` are the dates in seconds since 1970.

    >>> infer_cycles([3600.0 * hour for hour in range(30)]), infer_cycles([86400.0 * day for day in range(30)])
    (('day', 'week'), ())
    """
    if len({time % CYCLES["day"] for time in times}) < _MIN_TIMES_OF_DAY:
        return ()
    return ("day",) if all(time // CYCLES["day"] in _FIRST_DAYS for time in times) else ("day", "week")


def format_cycles(cycles: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the value of the option ``cycles`` from the cycles of each column of dates: their names, or, if they differ, the
    names after that of the column. Empty without cycles.

    >>> format_cycles({"at": ("day", "week")}), format_cycles({"at": ("day", "week"), "born": ()})
    (['day', 'week'], ['at:day', 'at:week'])
    """
    if len(set(cycles.values())) == 1:
        return list(next(iter(cycles.values())))
    return [f"{column}:{cycle}" for column, names in cycles.items() for cycle in names]


def are_absent_numbers_zero(rows: Sequence[Mapping[Any, Any]], names: Sequence[str]) -> bool | None:
    """Return whether the rows list only present items, such as the words of a text, so that an absent number is 0. ``names``
    are the columns of numbers. None if that is likely, but not certain.

    Most numbers are absent in these rows, and no number is 0. Either the numbers of each incomplete column are equal, or most
    of them are 1, and all are counts.

    >>> words = [{"offer": 1}, {"hello": 1, "you": 1}, {"you": 1}, {}] * 10
    >>> are_absent_numbers_zero(words, ["offer", "hello", "you"])
    True
    >>> are_absent_numbers_zero([{"a": 0.5 * i} if i % 3 else {} for i in range(40)], ["a"])
    False
    """
    present = ([float(row[name]) for row in rows if row.get(name) is not None and is_number(row[name])] for name in names)
    columns = [numbers for numbers in present if 0 < len(numbers) < len(rows)]
    numbers = [number for column in columns for number in column]
    if not numbers or len(rows) < MIN_ROWS_TO_JUDGE:
        return False
    has_flag = any(set(column) == {1} and len(column) <= _MAX_FLAG_SHARE * len(rows) for column in columns)
    has_many, is_mostly_absent = len(columns) >= _MIN_COLUMNS_OF_COUNTS, 2 * len(numbers) <= len(columns) * len(rows)
    are_counts = has_many and 2 * numbers.count(1) >= len(numbers) and all(number % 1 == 0 for number in numbers)
    are_counts &= all(1 in column for column in columns if len(column) >= _MIN_VALUES_TO_COMPARE)
    if is_mostly_absent and min(numbers) > 0 and (are_counts or all(len(set(column)) == 1 for column in columns)):
        return True
    return None if has_flag or (is_mostly_absent and has_many) else False
