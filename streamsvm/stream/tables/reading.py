"""How to read a table: which columns to use, what they hold, what marks a missing value, and dates as seconds."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import Any, TypedDict

import numpy as np

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


Names = str | Iterable[str]
Dates = str | Iterable[str] | Mapping[str, str | None]

_WITH_COMMA = re.compile(r"[-+]?(\d{1,3}([.'\s]\d{3})+|\d+)(,\d*)?([eE][-+]?\d+)?")
_WITH_POINT = {ord("."): None, ord("'"): None, ord(" "): None, 0xA0: None, 0x202F: None, ord(","): "."}
_DROPPED, _NUMBER, _CATEGORY, _DATE = range(4)


class ReadingOptions(TypedDict, total=False):
    """The arguments of `Reading`."""

    features: Names | None
    drop: Names
    categorical: Names
    dates: Dates
    missing: Names
    decimal: str


class TextOptions(ReadingOptions, total=False):
    """The arguments of `Reading`, and the encoding of a table that is text."""

    encoding: str


class Reading:
    """Say what the columns of a table hold, and how to read their values.

    Nothing is learned here.

    - A number is a number, even if it comes as text.
    - The name of a category is text, without blanks around it. A whole number is the same name however it is written (``75001``
      and ``75001.0``), but text stays as it is (``007``).
    - A date becomes seconds since 1970.
    - Empty text, None, NaN, and the NaT and NA of frames are missing, and left out.

    A value that is not of the kind of its column stays as it is: the learner of the row refuses it.

    Parameters
    ----------
    features
        The columns that become features. None: all.
    drop
        The columns to leave out.
    categorical
        The columns whose values are names, whatever they look like.
    dates
        The columns of dates and times. A mapping also gives the format of each, as in `datetime.datetime.strptime`; None is ISO
        8601.
    missing
        The texts and numbers that mean that there is no value, such as ``"NA"`` or ``-999``.
    decimal
        The decimal mark of numbers that come as text: ``"."`` or ``","``. With a comma, points, blanks and apostrophes between
        groups of three digits are ignored.

    Raises
    ------
    ValueError
        You ask for a column in two ways that exclude each other.

    Examples
    --------
    >>> reading = Reading(drop="id", categorical="zip", dates={"since": "%d.%m.%Y"}, missing="NA")
    >>> reading.row({"id": "a1", "zip": "01234", "since": "02.01.1970", "age": "NA", "height": "1.80"}.items())
    {'zip': '01234', 'since': 86400.0, 'height': 1.8}
    """

    def __init__(
        self,
        *,
        features: Names | None = None,
        drop: Names = (),
        categorical: Names = (),
        dates: Dates = (),
        missing: Names = (),
        decimal: str = ".",
    ) -> None:
        if decimal not in (".", ","):
            raise ValueError(f"decimal must be '.' or ',', not {decimal!r}")
        self.decimal = decimal
        self.features: list[str] | None = None if features is None else as_names("features", features)
        self.drop: list[str] = as_names("drop", drop)
        self.categorical: list[str] = as_names("categorical", categorical)
        self.dates: dict[str, str | None] = as_dates(dates)
        self.missing: list[str] = as_names("missing", missing)
        self._kinds: dict[Hashable, int] = dict.fromkeys(self.drop, _DROPPED)
        for kind, names in ((_CATEGORY, self.categorical), (_DATE, self.dates)):
            for name in names:
                if name in self._kinds:
                    raise ValueError(f"column {name!r} is requested in two ways: as {_WAYS[self._kinds[name]]} and {_WAYS[kind]}")
                self._kinds[name] = kind
        for name in self.features or ():
            if self._kinds.setdefault(name, _NUMBER) == _DROPPED:
                raise ValueError(f"column {name!r} is requested in two ways: in features and in drop")
        if self.features is not None:
            for name in (*self.categorical, *self.dates):
                if name not in self.features:
                    raise ValueError(f"column {name!r} is {_WAYS[self._kinds[name]]}, but not in features: name it there too")
        self._other = _NUMBER if self.features is None else _DROPPED
        self._missing = set(self.missing)
        self._missing_numbers: set[float] = set()
        for text in self.missing:
            with contextlib.suppress(ValueError):
                self._missing_numbers.add(float(text))

    @property
    def options(self) -> dict[str, Any]:
        """The parameters that differ from the defaults, as plain values."""
        given = {name: getattr(self, name) for name in ("features", "drop", "categorical", "dates", "missing")}
        found = {name: value for name, value in given.items() if value or (name == "features" and value is not None)}
        return found if self.decimal == "." else found | {"decimal": self.decimal}

    def problem(self, columns: Sequence[str], label: str | None) -> str:
        """Say why a table with these columns cannot be read; the result is empty if it can be.

        It cannot if a column that you name is not there, or if two columns have the same name.
        """
        if len(set(columns)) < len(columns):
            return "two columns have one name"
        unknown = [name for name in [*([] if label is None else [label]), *map(str, self._kinds)] if name not in columns]
        if not unknown:
            return ""
        what = f"{unknown[0]!r} for the label" if unknown[0] == label else repr(unknown[0])
        return f"there is no column {what}. It has: {', '.join(columns)}"

    def row(self, cells: Iterable[tuple[Hashable, Any]]) -> dict[Hashable, Any]:
        """Return the values of a row by column, without dropped columns and missing values."""
        kinds, other, numbers = self._kinds, self._other, self._missing_numbers
        x = {}
        for name, value in cells:
            kind = kinds.get(name, other)
            if kind == _DROPPED or value is None:
                continue
            given = type(value)
            if given is str:
                value = value.strip()
                if not value or value in self._missing:
                    continue
                if kind == _NUMBER:
                    with contextlib.suppress(ValueError):
                        value = float(value if self.decimal == "." else self.plain(value))
            elif given is not float and given is not int and given is not bool:
                if isinstance(value, np.number | np.bool_):
                    value = value.item()
                if _is_absent(value):
                    continue
            if type(value) is float and value != value:
                continue
            if numbers and type(value) in (float, int) and value in numbers:
                continue
            if kind == _CATEGORY:
                value = _name(value)
            elif kind == _DATE:
                with contextlib.suppress(ValueError, TypeError, OverflowError):
                    value = seconds(value, self.dates[str(name)])
            x[name] = value
        return x

    def plain(self, text: str) -> str:
        """Return a number in text with a point as its decimal mark; return any other text as it is."""
        if self.decimal == "," and _WITH_COMMA.fullmatch(text.strip()):
            return text.translate(_WITH_POINT)
        return text

    def category_of(self, name: Hashable) -> bool:
        """Whether the values of a column are names of categories."""
        return self._kinds.get(name) == _CATEGORY

    def date_of(self, name: Hashable) -> bool:
        """Whether the values of a column are dates."""
        return self._kinds.get(name) == _DATE


_WAYS = {_DROPPED: "dropped", _NUMBER: "a feature", _CATEGORY: "categorical", _DATE: "a date"}


def _is_absent(value: Any) -> bool:
    """Whether a value is a NaN, or what else frames have in empty cells: NaT, or the NA of pandas."""
    try:
        return bool(value != value)
    except (TypeError, ValueError, ArithmeticError):  # of pandas' NA, which is neither equal nor unequal; of an array; of sNaN
        return type(value).__name__ == "NAType"


def _name(value: Any) -> str:
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)


def as_names(parameter: str, names: Names) -> list[str]:
    """Return one name or several as a list.

    Raises
    ------
    ValueError
        A name is not text, or comes twice.
    """
    names = [names] if isinstance(names, str) else list(names)
    if wrong := [name for name in names if not isinstance(name, str)]:
        raise ValueError(f"{parameter} must be names of columns, not {wrong[0]!r}" if parameter != "missing" else _NOT_TEXT)
    if len(set(names)) < len(names):
        raise ValueError(f"{parameter} has {next(name for name in names if names.count(name) > 1)!r} more than once")
    return names


_NOT_TEXT = "missing must be texts, such as 'NA' or '-999'"


def as_dates(dates: Dates) -> dict[str, str | None]:
    """Return date columns with the format of each, from names or a mapping."""
    if isinstance(dates, Mapping):
        return dict(zip(as_names("dates", dates), dates.values(), strict=True))
    return dict.fromkeys(as_names("dates", dates))
