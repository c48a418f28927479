"""Dates and times as seconds."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta
from typing import Any

__all__ = ["CYCLES", "cyclic", "parsed", "seconds"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_SECOND = timedelta(seconds=1)

#: The length in seconds of each cycle that a date can be placed in; a year is the mean one of the calendar.
CYCLES = {"day": 86_400.0, "week": 604_800.0, "year": 31_556_952.0}


def seconds(value: Any, form: str | None = None) -> float:
    """Return a date or time as seconds since 1970, in UTC if it names no time zone.

    Parameters
    ----------
    value
        A date, a datetime, text, or a number, which is in seconds already.
    form
        The format of text, as in `datetime.datetime.strptime`. None: ISO 8601.

    Raises
    ------
    ValueError
        The value is not a date, or text in another format.

    Examples
    --------
    >>> seconds("1970-01-02"), seconds("1970-01-01T01:00+01:00"), seconds("02.01.1970 00:30", "%d.%m.%Y %H:%M")
    (86400.0, 0.0, 88200.0)
    """
    if isinstance(value, str):
        try:
            value = parsed(value, form)
        except ValueError:
            return float(value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        return (value.replace(tzinfo=UTC) - _EPOCH if value.tzinfo is None else value - _EPOCH) / _SECOND
    return float(value)


def parsed(text: str, form: str | None = None) -> datetime:
    """Return the date in a text, in the formats that `seconds` reads; ValueError if there is none.

    Examples
    --------
    >>> parsed("31.12.2024", "%d.%m.%Y")
    datetime.datetime(2024, 12, 31, 0, 0)
    """
    return datetime.fromisoformat(text) if form is None else datetime.strptime(text, form)


def cyclic(time: float, cycle: str) -> tuple[float, float]:
    """Return sine and cosine of a time's place in a cycle.

    With both, the end of a cycle is near its beginning.

    Examples
    --------
    >>> [round(part, 2) for part in cyclic(3 * 3600.0, "day")]
    [0.71, 0.71]
    """
    angle = 2.0 * math.pi * math.fmod(time, CYCLES[cycle]) / CYCLES[cycle]
    return math.sin(angle), math.cos(angle)
