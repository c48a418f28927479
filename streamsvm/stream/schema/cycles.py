"""Infers which columns of dates get the phase in a day or a week as features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date, time
from typing import Any

from streamsvm.stream.tables.dates import CYCLES, is_date, to_seconds

_MIN_TIMES_OF_DAY = 3  # midnight, written in UTC, has two: with and without daylight saving time
_FIRST_DAYS = (0, (date(1900, 1, 1) - date(1970, 1, 1)).days)  # times of day without a date are on these days


def infer_cycles(values: Sequence[Any], date_format: str | None) -> tuple[str, ...]:
    """Return the cycles that suit a column of dates: day and week if the times of day vary, only day if there are no dates, and
    none otherwise. ``values`` are dates, times, or texts and numbers in ``date_format``, as in `to_seconds`; others are ignored.

    >>> infer_cycles([f"2024-03-01 {hour:02}:30" for hour in range(24)], None), infer_cycles(["2024-03-01", "2024-03-02"], None)
    (('day', 'week'), ())
    """
    plain_values = (
        int(value) if isinstance(value, float) and value.is_integer() else value for value in values
    )  # such as 20240131.0
    dates = (value for value in plain_values if not isinstance(value, str) or is_date(value.strip(), date_format))
    moments = [to_seconds(value, date_format) for value in dates if isinstance(value, int | float | str | date | time)]
    if len({moment % CYCLES["day"] for moment in moments}) < _MIN_TIMES_OF_DAY:
        return ()
    return ("day",) if all(moment // CYCLES["day"] in _FIRST_DAYS for moment in moments) else ("day", "week")


def format_cycles(cycles: Mapping[str, tuple[str, ...]]) -> list[str]:
    """Return the value of the option ``cycles`` from the cycles of each column of dates: their names, or, if they differ, the
    names after that of the column. Empty without cycles.

    >>> format_cycles({"at": ("day", "week")}), format_cycles({"at": ("day", "week"), "born": ()})
    (['day', 'week'], ['at:day', 'at:week'])
    """
    if len(set(cycles.values())) == 1:
        return list(next(iter(cycles.values())))
    return [f"{column}:{cycle}" for column, names in cycles.items() for cycle in names]
