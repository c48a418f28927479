"""Recognises tables whose rows name only what they have, so that an absent number is 0 and not missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from streamsvm.stream.schema.column_inference import MIN_ROWS_TO_JUDGE

_MIN_COLUMNS_OF_COUNTS = 5  # fewer columns of small whole numbers with gaps may be measurements
_MAX_FLAG_SHARE = 0.75  # of the rows that have a column whose only value is 1
_MIN_VALUES_TO_COMPARE = 10  # a column with this many counts has a 1 among them


def are_absent_numbers_zero(rows: Sequence[Mapping[Any, Any]], names: Sequence[str]) -> bool | None:
    """Return whether the rows list only what is present, such as the words of a text, so that an absent number is 0. ``names``
    are the columns of numbers. None if that is likely, but not certain.

    Most numbers are absent in such rows, and none is 0. Either the numbers of each incomplete column are equal, or most of them
    are 1, and all are counts.

    >>> words = [{"offer": 1}, {"hello": 1, "you": 1}, {"you": 1}, {}] * 10
    >>> are_absent_numbers_zero(words, ["offer", "hello", "you"])
    True
    >>> are_absent_numbers_zero([{"a": 0.5 * i} if i % 3 else {} for i in range(40)], ["a"])
    False
    """
    present = ([row[name] for row in rows if isinstance(row.get(name), int | float)] for name in names)
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
