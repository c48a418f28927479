"""Converts dates and times to seconds since 1970, and to the phase in cycles such as the day."""

from __future__ import annotations

import contextlib
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import Any

import numpy as np

from streamsvm.stream.tables.values import parse_number

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)

#: Length of each cycle in seconds; a year has the mean length of the calendar's years.
CYCLES = {"day": 86_400.0, "week": 604_800.0, "year": 31_556_952.0}

#: Units of numeric times since 1970: the number of units in a second, and the smallest absolute value for which the unit is
#: assumed if none is given (the year 1973 in this unit; in the next larger unit, it would be the year 5138).
UNITS = {"s": (1.0, 0.0), "ms": (1e3, 1e11), "us": (1e6, 1e14), "ns": (1e9, 1e17)}

LEAST_EPOCH = UNITS["ms"][1]  # smaller floats are seconds

_MAX_DATE_SECONDS = 5e10  # seconds since 1970 that are formatted as dates
_N_DAY_DIGITS, _DAY_LENGTH = 8, 10  # as in 20240131, and in 2024-01-31
_YEAR_RANGE, _DAY_RANGE = (1900, 2100), (19_000_101, 21_001_231)  # whole numbers that are years, and days such as 20240131


def to_seconds(value: Any, form: str | None = None) -> float:
    """Convert a date or time, its text, or a number to seconds since 1970. ``form`` is the strptime format of the text, or the
    unit of the number, such as ``"ms"``; None: ISO 8601, or a guessed unit. Times are in UTC unless they have a time zone. Raises
    ValueError for other values.

    ``form`` is a format as in `datetime.datetime.strptime`, or ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``. Without one, the unit of
    a number is inferred from its size; a whole number may also be a year (2024) or a day (20240131). A float below 1e11 is in
    seconds regardless of the format, so that results are not converted again. A time of day is on the first of January, 1970, or
    1900 if it has a strptime format.

    >>> to_seconds("1970-01-02"), to_seconds("1970-01-01T01:00+01:00"), to_seconds("02.01.1970 00:30", "%d.%m.%Y %H:%M")
    (86400.0, 0.0, 88200.0)
    >>> to_seconds(1_700_000_000), to_seconds(1_700_000_000_000), to_seconds("1700000000000000000"), to_seconds(5, "ms")
    (1700000000.0, 1700000000.0, 1700000000.0, 0.005)
    >>> to_seconds(2024) == to_seconds(20240101) == to_seconds("2024-01-01")
    True
    >>> to_seconds("08:30"), to_seconds(time(8, 30))
    (30600.0, 30600.0)
    """
    if isinstance(value, str) and form not in UNITS:
        try:
            value = parse_datetime(value, form)
        except ValueError:
            if form is not None:
                raise
    if isinstance(value, str):
        number = parse_number(value)
        value = int(number) if number.is_integer() else number
    elif isinstance(value, time):
        value = datetime.combine(date(1970 if form is None or form in UNITS else _YEAR_OF_STRPTIME, 1, 1), value)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        return datetime_to_seconds(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and form is None and _YEAR_RANGE[0] <= value <= _YEAR_RANGE[1]:
        return to_seconds(date(value, 1, 1))
    if is_whole and form is None and _DAY_RANGE[0] <= value <= _DAY_RANGE[1]:
        return to_seconds(datetime.strptime(str(value), "%Y%m%d"))
    number = float(value)
    unit = form if is_whole and form in UNITS else guess_epoch_unit(number)
    return number / UNITS[unit][0]


def datetime_to_seconds(moment: datetime) -> float:
    """Convert a datetime to seconds since 1970. It is in UTC unless it has a time zone."""
    return (moment - (_EPOCH if moment.tzinfo is not None else _NAIVE_EPOCH)) / _SECOND


def parse_iso_time(text: str) -> float:
    """Convert the text of a date, or of a date and time, in ISO 8601 to seconds since 1970. It is in UTC unless it has a time
    zone. Raises ValueError for other texts.

    >>> parse_iso_time("1970-01-02"), parse_iso_time("1970-01-01T01:00+01:00")
    (86400.0, 0.0)
    """
    return datetime_to_seconds(datetime.fromisoformat(text))


def format_date(seconds: float) -> str:
    """Format seconds since 1970 as a date in ISO 8601, followed by the time unless that is midnight. Times that a date cannot
    represent are formatted as numbers, and times of day that were parsed without a date without one.

    >>> format_date(86400.0), format_date(5400.5), format_date(1e300), format_date(-2208983400.0)
    ('1970-01-02', '1970-01-01 01:30:00', '1e+300', '01:30:00')
    """
    if not abs(seconds) < _MAX_DATE_SECONDS:
        return f"{seconds:g}"
    text = (datetime(1970, 1, 1) + timedelta(seconds=int(seconds))).isoformat(" ").removesuffix(" 00:00:00")
    return text.removeprefix(f"{_YEAR_OF_STRPTIME}-01-01 ")


def parse_iso_seconds(texts: Sequence[str]) -> np.ndarray | None:
    """Convert many dates in text to seconds since 1970 at once, float64 [n]. All must have the same form: YYYY-MM-DD, optionally
    with HH:MM or HH:MM:SS. Returns None if one differs.

    Results are those of `to_seconds`.

    >>> parse_iso_seconds(["1970-01-02 00:00", "1970-01-01 01:00"])
    array([86400.,  3600.])
    """
    size = len(texts[0]) if texts else 0
    if size not in _ISO_SIZES or set(map(len, texts)) != {size} or not (text := "".join(texts)).isascii():
        return None
    data = text.encode()
    letters = np.frombuffer(data, np.uint8).reshape(len(texts), size)
    separators = [position for position in _ISO_SEPARATORS if position < size]
    digits = np.delete(letters, separators, axis=1)
    if not ((digits >= _ZERO) & (digits <= _NINE)).all():
        return None
    has_separators = all(np.isin(letters[:, position], _ISO_SEPARATORS[position]).all() for position in separators)
    if not has_separators or (digits[:, :4] == _ZERO).all(axis=1).any():
        return None
    try:
        return np.frombuffer(data, f"S{size}").astype("datetime64[s]").astype(np.int64).astype(np.float64)
    except ValueError:  # an invalid day
        return None


_ISO_SIZES = (10, 16, 19)  # characters
_ISO_SEPARATORS = {4: (ord("-"),), 7: (ord("-"),), 10: (ord(" "), ord("T")), 13: (ord(":"),), 16: (ord(":"),)}
_ZERO, _NINE = ord("0"), ord("9")


def guess_epoch_unit(value: float) -> str:
    """Guess from the size of a number, which is a time since 1970, whether it is in seconds, milliseconds, microseconds or
    nanoseconds. Returns ``"s"``, ``"ms"``, ``"us"`` or ``"ns"``.

    >>> guess_epoch_unit(1_700_000_000), guess_epoch_unit(1_700_000_000_000)
    ('s', 'ms')
    """
    return next(unit for unit, (_, minimum) in reversed(UNITS.items()) if not abs(value) < minimum)


def parse_datetime(text: str, form: str | None = None) -> datetime:
    """Parse the text of a date or time to a datetime. ``form`` is a strptime format, or None for ISO 8601. Raises ValueError if
    the text does not fit.

    The name of a time zone in brackets after an offset is ignored, 24:00 is the end of a day, and nanoseconds are cut to
    microseconds.

    >>> parse_datetime("31.12.2024", "%d.%m.%Y"), parse_datetime("2024-12-30T24:00")
    (datetime.datetime(2024, 12, 31, 0, 0), datetime.datetime(2024, 12, 31, 0, 0))
    """
    if text[-1:] in _CLOSING_BRACKETS and not (form or "").endswith(_CLOSING_BRACKETS):
        text = NAMED_OFFSET.sub(r"\1", text)
    try:
        return _parse_date(text, form)
    except ValueError:
        midnight, nanoseconds = _MIDNIGHT.search(text), _NANOSECONDS.search(text)
        if midnight is not None:
            return _parse_date(f"{text[: midnight.start()]}00{text[midnight.start() + 2 :]}", form) + timedelta(days=1)
        if nanoseconds is None or "%f" not in (form or ""):
            raise
        return _parse_date(text[: nanoseconds.start()] + text[nanoseconds.end() :], form)


_CLOSING_BRACKETS = ("]", ")")
NAMED_OFFSET = re.compile(r"([+-]\d\d:?\d\d|Z)\s?(?:\[[^\[\]]+\]|\([^()]+\))$")
_MIDNIGHT = re.compile(r"(?<![\d:.])24(?=(?::00){1,2}(?:[.,]0+)?(?![\d:.,]))")
_NANOSECONDS = re.compile(r"(?<=\.\d{6})\d{1,3}(?!\d)")


@lru_cache(4096)  # dates without a time are often repeated, and strptime is slow
def _parse_date(text: str, form: str | None) -> datetime:
    """Convert the text of a date or time to a datetime, in the strptime format ``form`` (None: ISO 8601). Numbers
    such as 202401 are not accepted as ISO 8601. Raises ValueError if the text does not fit.
    """
    if form is None:
        if _CLOCK.fullmatch(text):
            text = f"1970-01-01T{text}"
        if text[_DAY_LENGTH : _DAY_LENGTH + 1] in ("+", "-"):  # Python takes the time zone for the time
            text = f"{text[:_DAY_LENGTH]}T00:00{text[_DAY_LENGTH:]}"
        # Python would parse some numeric times as dates.
        if not text.isascii() or (text.replace(".", "").isdigit() and len(text) != _N_DAY_DIGITS):
            raise ValueError(f"{text!r} is not ISO 8601")
        return datetime.fromisoformat(text)
    try:
        return _parse_with_year(text, form)
    except ValueError:
        if (renamed := _rename_zone(text, form)) != text:
            return _parse_date(renamed, form)
        if not {"%b", "%B", "%p"}.intersection(re.findall("%.", form)) and not _WEEKDAY.match(
            unicodedata.normalize("NFKD", text)
        ):
            raise
    return _parse_with_year(translate_months(text), form.replace("%B", "%b"))


_ZONE_NAME = re.compile(r"(?<= )[A-Z]{2,5}\b")
_SEASONS = str.maketrans("", "", "SD")  # standard and summer time differ in these letters: CET and CEST, EST and EDT


def _rename_zone(text: str, form: str) -> str:
    """Return the text of a date with the name of a time zone as in the format, if that is the same zone in another season: CET
    for CEST. Names of zones have no meaning here: the local time counts.
    """
    zones = {zone.translate(_SEASONS): zone for zone in _ZONE_NAME.findall(form)}
    return _ZONE_NAME.sub(lambda match: zones.get(match[0].translate(_SEASONS), match[0]), text)


def _parse_with_year(text: str, form: str) -> datetime:
    """Parse the text of a date in the strptime format ``form``. If that has no year, the year is 1900, and the 29th of February
    becomes the 28th. Raises ValueError if the text does not fit, or if the format has a part of the date twice.
    """
    try:
        if YEAR_DIRECTIVE.search(form):
            return datetime.strptime(text, form)
        with contextlib.suppress(ValueError):
            return datetime.strptime(f"{_YEAR_OF_STRPTIME} {text}", f"%Y {form}")
        return datetime.strptime(f"2000 {text}", f"%Y {form}") - _CENTURY
    except re.error:
        raise ValueError(f"{form!r} is an invalid format: it has a part of the date twice") from None


_YEAR_OF_STRPTIME, _CENTURY = 1900, timedelta(days=36_525)
#: The directives of strptime for years.
YEAR_DIRECTIVE = re.compile("%[YyGcx]")
_CLOCK = re.compile(r"\d\d:\d\d(?::\d\d(?:[.,]\d{1,9})?)?(?:Z|[+-]\d\d:\d\d)?", re.ASCII)
#: The names of the months in English, German, French, Spanish, Italian, Portuguese and Dutch, without accents.
_MONTH_NAMES = (
    "january januar janner janvier enero gennaio janeiro januari/february februar feber fevrier febrero febbraio fevereiro/"
    "march marz maerz mrz mars marzo marco maart mrt/april avril abril aprile/may mai mayo maggio maio mei/"
    "june juni juin junio giugno junho/july juli juillet julio luglio julho/august aout agosto augustus/"
    "september septembre septiembre setiembre settembre setembro/october oktober octobre octubre ottobre outubro/"
    "november novembre noviembre novembro/december dezember decembre diciembre dicembre dezembro"
)
_MONTHS = {
    name[:length]: month.split()[0][:3].title()
    for month in _MONTH_NAMES.split("/")
    for name in month.split()
    for length in range(3, len(name) + 1)
    if name[:length] != "jui"  # juin and juillet
}
#: The day of the week at the beginning of a date in German, French, Spanish, Italian, Portuguese or Dutch.
_WEEKDAY = re.compile(
    r"(?i)^(?:mo|di|mi|do|fr|sa|so|(?:mon|diens|donners|frei|sams|sonn)tag|mittwoch|sonnabend|(?:lun|mar|mercre|jeu|vendre|same)di"
    r"|dimanche|lunes|martes|mie\W?rcoles|jueves|viernes|sa\W?bado|domingo|(?:lune|marte|mercole|giove|vener)di\W?|sabato|domenica"
    r"|(?:segunda|terc\W?a|quarta|quinta|sexta)(?:-feira)?|(?:maan|dins|woens|donder|vrij|zater|zon)dag)\.?,? (?=\d)"
)
_WORD = re.compile(r"(?<=\d)(?:er|st|nd|rd|th)\b|([^\W\d_]+)\.?")


def translate_months(text: str) -> str:
    """Replace the names of months in seven languages, and their abbreviations with or without a point, by ``Jan``, ``Feb`` and so
    on, as strptime reads them. Accents are removed, and the ending of an ordinal number, as in ``1er``, and points in ``p.m.``,
    too.

    >>> translate_months("3. M\u00e4rz 2024"), translate_months("1er f\u00e9vr. 2024"), translate_months("5-ene-2024")
    ('3. Mar 2024', '1 Feb 2024', '5-Jan-2024')
    """
    text = re.sub(r"\b([AaPp])\. ?([Mm])\.", r"\1\2", _WEEKDAY.sub("", unicodedata.normalize("NFKD", text)))
    letters = (letter for letter in text if not unicodedata.combining(letter))
    return _WORD.sub(lambda match: _MONTHS.get((match[1] or "").lower(), match[0] if match[1] else ""), "".join(letters))


def is_time_of_day(value: Any) -> bool:
    """Return whether a value is a time of day without a date, or its text in ISO 8601."""
    return isinstance(value, time) or (isinstance(value, str) and _CLOCK.fullmatch(value.strip()) is not None)


def is_date(value: Any, form: str | None) -> bool:
    """Return whether a text is a date or time. ``form`` is its strptime format, or the unit of a time that is given as a number,
    such as ``"ms"``; None: ISO 8601.
    """
    try:
        to_seconds(value, form) if form in UNITS else parse_datetime(value, form)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


def parse_times(values: Iterable[Any], form: str | None) -> list[float]:
    """Convert dates, times, or texts and numbers in the format ``form`` to seconds since 1970, as `to_seconds` does. Other values
    are left out. A whole float is a day or year, too, such as 20240131.0.
    """
    times = []
    for value in values:
        plain = int(value) if isinstance(value, float) and value.is_integer() else value
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            times.append(to_seconds(plain.strip() if isinstance(plain, str) else plain, form))
    return [time for time in times if time == time]  # without NaN


def encode_cycle(time: float, cycle: str) -> tuple[float, float]:
    """Return sine and cosine of the phase of a time (seconds since 1970) in a cycle: ``"day"``, ``"week"`` or ``"year"``. So the
    end of a cycle is near its beginning.

    >>> [round(part, 2) for part in encode_cycle(3 * 3600.0, "day")]
    [0.71, 0.71]
    """
    angle = 2.0 * math.pi * math.fmod(time, CYCLES[cycle]) / CYCLES[cycle]
    return math.sin(angle), math.cos(angle)
