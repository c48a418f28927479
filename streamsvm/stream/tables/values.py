"""Values of cells: numbers in text, dates and times as seconds, and the format that a date has."""

from __future__ import annotations

import contextlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np

from streamsvm.core.checks import to_plain

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_NAIVE_EPOCH = datetime(1970, 1, 1)
_SECOND = timedelta(seconds=1)

#: The length in seconds of each cycle that a date can be placed in; a year is the mean one of the calendar.
CYCLES = {"day": 86_400.0, "week": 604_800.0, "year": 31_556_952.0}

#: Formats of numbers: the units since 1970, with how many make a second, and the least size that means each of them if none is
#: named (1973 in that unit; in the unit before it, the year 5138).
UNITS = {"s": (1.0, 0.0), "ms": (1e3, 1e11), "us": (1e6, 1e14), "ns": (1e9, 1e17)}

LEAST_EPOCH = UNITS["ms"][1]  # a float that is smaller is in seconds

_LAST_YEARS = 5e10  # seconds since 1970 for which there are dates
_DIGITS = 8  # of a day such as 20240131
_YEARS, _DAYS = (1900, 2100), (19_000_101, 21_001_231)  # of a number that is a year, or a day such as 20240131


def parse_number(text: str) -> float:
    """Return the number that a text is.

    This is stricter than Python's float: digits are ASCII, without underscores between them. Raises ValueError for
    other texts.

    >>> parse_number(" 1e3 "), parse_number("-.5")
    (1000.0, -0.5)
    >>> parse_number("2020_01")
    Traceback (most recent call last):
        ...
    ValueError: '2020_01' is no number
    """
    if "_" in text or not text.isascii():
        raise ValueError(f"{text!r} is no number")
    return float(text)


def normalize_label(y: Any) -> Any:
    """Return a typed label as all formats have it: a text without blanks around it, whether it comes as text or as bytes.

    >>> normalize_label("yes "), normalize_label(b"yes"), normalize_label(1)
    ('yes', 'yes', 1)
    """
    if isinstance(y, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            y = y.decode()
    if isinstance(y, Decimal):
        return to_plain(y)
    return y.strip() if isinstance(y, str) else y


#: Objects within objects.
DEEPEST = 16


def flatten_row(row: Mapping[str, Any], label: str | None = None, dropped: Iterable[str] = ()) -> dict[str, Any]:
    """Return a row with the values of objects within it as columns of their own, named by their path.

    What is in a list stays there. The column ``label`` stays as it is, though it were an object: a label may not become features.
    ``dropped`` are columns, or paths, that are left out with all that is in them. A ValueError says that two values have one
    path, or objects lie more than 16 deep.

    >>> flatten_row({"op": "c", "after": {"a": 1, "at": {"x": 2}}, "before": {"a": 0}}, "y", ["before"])
    {'op': 'c', 'after.a': 1, 'after.at.x': 2}
    """
    flat: dict[str, Any] = {}
    left_out = set(dropped)

    def add(values: Mapping[str, Any], path: str, depth: int) -> None:
        for name, value in values.items():
            here = path + name
            if here in left_out and here != label:
                continue
            if isinstance(value, Mapping) and here != label:
                if depth == DEEPEST:
                    raise ValueError(f"objects within objects, more than {DEEPEST} deep")
                add(value, f"{here}.", depth + 1)
            elif here in flat:
                raise ValueError(f"two values have the path {here!r}")
            else:
                flat[here] = value

    add(row, "", 1)
    return flat


def get_nested_value(row: Mapping[str, Any], path: str) -> Any:
    """Return the value or object at a path, as `flatten_row` names it; None if the row has none.

    >>> get_nested_value({"op": "c", "after": {"a": 1, "at": {"x": 2}}}, "after.at.x")
    2
    """
    if (value := row.get(path)) is not None:
        return value
    for end in (i for i, letter in enumerate(path) if letter == "."):
        if isinstance(inner := row.get(path[:end]), Mapping) and (value := get_nested_value(inner, path[end + 1 :])) is not None:
            return value
    return None


def to_seconds(value: Any, form: str | None = None) -> float:
    """Return a date or time as seconds since 1970, in UTC if it names no time zone. Raises ValueError for other values.

    ``form`` is the format of text, as in `datetime.datetime.strptime`; or of numbers, the unit ``"s"``, ``"ms"``, ``"us"`` or
    ``"ns"``. None: text is ISO 8601, and the size of a number tells its unit; a whole number may also be a year (2024) or a day
    (20240131). A float of fewer than 1e11 is in seconds already, whatever the format: what this function returns stays as it is.

    >>> to_seconds("1970-01-02"), to_seconds("1970-01-01T01:00+01:00"), to_seconds("02.01.1970 00:30", "%d.%m.%Y %H:%M")
    (86400.0, 0.0, 88200.0)
    >>> to_seconds(1_700_000_000), to_seconds(1_700_000_000_000), to_seconds("1700000000000000000"), to_seconds(5, "ms")
    (1700000000.0, 1700000000.0, 1700000000.0, 0.005)
    >>> to_seconds(2024) == to_seconds(20240101) == to_seconds("2024-01-01")
    True
    """
    if isinstance(value, str):
        value = _in_text(value, form)
    elif isinstance(value, date) and not isinstance(value, datetime):
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if isinstance(value, datetime):
        return datetime_to_seconds(value)
    is_whole = isinstance(value, int) and not isinstance(value, bool)
    if is_whole and form is None and _YEARS[0] <= value <= _YEARS[1]:
        return to_seconds(date(value, 1, 1))
    if is_whole and form is None and _DAYS[0] <= value <= _DAYS[1]:
        return to_seconds(datetime.strptime(str(value), "%Y%m%d"))
    since = float(value)
    unit = form if is_whole and form in UNITS else guess_epoch_unit(since)
    return since / UNITS[unit][0]


def datetime_to_seconds(moment: datetime) -> float:
    """Return a moment as seconds since 1970, in UTC if it names no time zone."""
    return (moment - (_EPOCH if moment.tzinfo is not None else _NAIVE_EPOCH)) / _SECOND


def format_date(since: float) -> str:
    """Return seconds since 1970 as the date that they are, as people read it.

    >>> format_date(86400.0), format_date(5400.5), format_date(1e300)
    ('1970-01-02', '1970-01-01 01:30:00', '1e+300')
    """
    if not abs(since) < _LAST_YEARS:
        return f"{since:g}"
    return (datetime(1970, 1, 1) + timedelta(seconds=int(since))).isoformat(" ").removesuffix(" 00:00:00")


def parse_iso_seconds(texts: Sequence[str]) -> np.ndarray | None:
    """Return dates that are all written alike, YYYY-MM-DD with HH:MM or HH:MM:SS or without, as `to_seconds` does each, float64.

    None where one is written otherwise.

    >>> parse_iso_seconds(["1970-01-02 00:00", "1970-01-01 01:00"])
    array([86400.,  3600.])
    """
    size = len(texts[0]) if texts else 0
    if size not in _ISO_SIZES or set(map(len, texts)) != {size} or not (text := "".join(texts)).isascii():
        return None
    data = text.encode()
    letters = np.frombuffer(data, np.uint8).reshape(len(texts), size)
    marks = [place for place in _ISO_MARKS if place < size]
    digits = np.delete(letters, marks, axis=1)
    if not ((digits >= _ZERO) & (digits <= _NINE)).all():
        return None
    if (
        not all(np.isin(letters[:, place], _ISO_MARKS[place]).all() for place in marks)
        or (digits[:, :4] == _ZERO).all(axis=1).any()
    ):
        return None
    try:
        return np.frombuffer(data, f"S{size}").astype("datetime64[s]").astype(np.int64).astype(np.float64)
    except ValueError:  # an invalid day
        return None


_ISO_SIZES = (10, 16, 19)
_ISO_MARKS = {4: (ord("-"),), 7: (ord("-"),), 10: (ord(" "), ord("T")), 13: (ord(":"),), 16: (ord(":"),)}
_ZERO, _NINE = ord("0"), ord("9")


def _in_text(text: str, form: str | None) -> datetime | int | float:
    if form not in UNITS:
        try:
            return parse_datetime(text, form)
        except ValueError:
            if form is not None:
                raise
    since = parse_number(text)
    return int(since) if since.is_integer() else since


def guess_epoch_unit(value: float) -> str:
    """Return the unit that the size of a number since 1970 tells.

    >>> guess_epoch_unit(1_700_000_000), guess_epoch_unit(1_700_000_000_000)
    ('s', 'ms')
    """
    return next(unit for unit, (_, least) in reversed(UNITS.items()) if not abs(value) < least)


def parse_datetime(text: str, form: str | None = None) -> datetime:
    """Return the date in a text, in the formats that `to_seconds` reads; ValueError for other texts.

    The name of a zone in brackets after its offset says nothing more, 24:00 is the end of a day, and of nanoseconds the last
    three digits are left out.

    >>> parse_datetime("31.12.2024", "%d.%m.%Y"), parse_datetime("2024-12-30T24:00")
    (datetime.datetime(2024, 12, 31, 0, 0), datetime.datetime(2024, 12, 31, 0, 0))
    """
    if text[-1:] in _CLOSING and not (form or "").endswith(_CLOSING):
        text = _NAMED_OFFSET.sub(r"\1", text)
    try:
        return _parse_date(text, form)
    except ValueError:
        midnight, fine = _MIDNIGHT.search(text), _NANOSECONDS.search(text)
        if midnight is not None:
            return _parse_date(f"{text[: midnight.start()]}00{text[midnight.start() + 2 :]}", form) + timedelta(days=1)
        if fine is None or "%f" not in (form or ""):
            raise
        return _parse_date(text[: fine.start()] + text[fine.end() :], form)


_CLOSING = ("]", ")")
_NAMED_OFFSET = re.compile(r"([+-]\d\d:?\d\d|Z)\s?(?:\[[^\[\]]+\]|\([^()]+\))$")
_MIDNIGHT = re.compile(r"(?<![\d:.])24(?=(?::00){1,2}(?:[.,]0+)?(?![\d:.,]))")
_NANOSECONDS = re.compile(r"(?<=\.\d{6})\d{1,3}(?!\d)")


def _parse_date(text: str, form: str | None) -> datetime:
    if form is None:
        if not text.isascii() or (text.replace(".", "").isdigit() and len(text) != _DIGITS):  # Python takes some epochs for dates
            raise ValueError(f"{text!r} is not ISO 8601")
        return datetime.fromisoformat(text)
    return datetime.strptime(text, form)


def is_date(value: Any, form: str | None) -> bool:
    """Whether a text is a date in a format."""
    try:
        to_seconds(value, form) if form in UNITS else parse_datetime(value, form)
    except (ValueError, TypeError, OverflowError):
        return False
    return True


_MONTHS = "January|February|March|April|June|July|August|September|October|November|December"
_WEEKDAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_TOKEN = re.compile(
    rf"(?P<A>(?i:{_WEEKDAYS}))|(?P<a>(?i:Mon|Tue|Wed|Thu|Fri|Sat|Sun))|(?P<B>(?i:{_MONTHS}))"
    r"|(?P<b>(?i:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec))"
    r"|(?P<clock>(?<!\d)\d{1,2}:\d\d(?P<S>:\d\d)?(?P<f>(?<=:\d\d:\d\d)[.,]\d{1,9})?)(?!\d)|(?P<p>(?<![A-Za-z])[AaPp][Mm]\b)"
    r"|(?P<z>(?<=[\dTC ])[+-]\d\d:?\d\d\b)|(?P<Y>(?<!\d)\d{4}(?!\d))|(?P<n>(?<!\d)\d{1,2}(?!\d))"
)
_BETWEEN = re.compile(r"(?:[^A-Za-z\d%]|\bUTC\b|\bGMT\b|Z$|(?<=\d)T(?=\d)|\bat\b|\bde\b)*")
_ZONE = re.compile(r"(?<=[\dMm] )(?!UTC\b|GMT\b)[A-Z]{3,5}\b")
_MACHINES = (
    *("%Y:%m:%d %H:%M:%S", "%Y-%m-%d-%H.%M.%S.%f", "%Y-%m-%d-%H.%M.%S"),  # of cameras and of DB2
    *("%d-%b-%y %I.%M.%S.%f %p", "%d-%b-%y %I.%M.%S %p", "%d-%b-%y %I.%M.%S.%f %p %z", "%d-%b-%y %H.%M.%S.%f"),  # of Oracle
)
_LONGEST = 64  # characters of a date
_ORDERS = {
    ("Y", "n", "n"): ("Ymd",),
    ("n", "n", "Y"): ("dmY", "mdY"),
    ("n", "n", "n"): ("dmy", "mdy", "ymd"),
    ("n", "M", "Y"): ("dMY",),
    ("M", "n", "Y"): ("MdY",),
    ("Y", "M", "n"): ("YMd",),
    ("n", "M", "n"): ("dMy",),
    ("Y", "n"): ("Ym",),
    ("n", "Y"): ("mY",),
    ("M", "Y"): ("MY",),
}


def find_date_formats(texts: Sequence[str]) -> list[str | None]:
    """Return the formats in which all texts are dates: None for ISO 8601 alone, several where day and month cannot be told.

    >>> find_date_formats(["2024-03-01T12:00"])
    [None]
    >>> find_date_formats(["20/May/2015:21:34:02 +0000"]), find_date_formats(["05/20/2015 9:34 PM"])
    (['%d/%b/%Y:%H:%M:%S %z'], ['%m/%d/%Y %I:%M %p'])
    >>> find_date_formats(["01/02/2024"]), find_date_formats(["1.2"])
    (['%d/%m/%Y', '%m/%d/%Y'], [])
    """
    if not texts:
        return []
    if all(is_date(text, None) for text in texts):
        return [None]
    formats = [form for form in _guessed_formats(texts[0].strip()) if all(is_date(text.strip(), form) for text in texts)]
    return [form for form in formats if "%B" not in form or form.replace("%B", "%b") not in formats]  # of May alone


def _guessed_formats(text: str) -> Iterable[str]:
    """The formats that a text may have, in the order of their likelihood."""
    text = _NAMED_OFFSET.sub(r"\1", text)
    if len(text) > _LONGEST:
        return
    yield from (form for form in _MACHINES if is_date(text, form))
    parts: list[str] = []  # text between tokens, and tokens, in turns
    end, half_days = 0, False
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        kind = "clock" if kind in ("S", "f") else kind
        parts += [text[end : token.start()], kind if kind != "clock" else _clock_format(token)]
        half_days = half_days or kind == "p"
        end = token.end()
    parts.append(text[end:])
    zone = _ZONE.search(text)
    named = "" if zone is None else zone[0]
    if not all(_BETWEEN.fullmatch(between.replace(f" {named}", "", 1) if named else between) for between in parts[::2]):
        return
    tokens = parts[1::2]
    places = [i for i, kind in enumerate(tokens) if kind in ("Y", "n", "b", "B")]
    order = tuple("M" if tokens[i] in "bB" else tokens[i] for i in places)
    for letters in _ORDERS.get(order, ()):
        kinds = list(tokens)
        for i, letter in zip(places, letters, strict=True):
            kinds[i] = tokens[i] if letter == "M" else letter
        forms = [f"%{kind}" if len(kind) == 1 else kind.replace("%H", "%I") if half_days else kind for kind in kinds]
        form = "".join(between + form for between, form in zip(parts[::2], [*forms, ""], strict=True))
        yield form
        if "may" in text.lower():  # which is short and long
            yield form.replace("%b", "%B")


def find_zone_names(texts: Iterable[str]) -> list[str]:
    """Return the names of time zones, but UTC, that stand in texts which are dates but for them.

    >>> find_zone_names(["2024-03-30 12:00 CET", "2024-03-31 12:00 CEST"]), find_zone_names(["5 ABC"])
    (['CEST', 'CET'], [])
    """
    texts_without_zone, names = [], set()
    for text in texts:
        zone = _ZONE.search(text)
        names.update([] if zone is None else [zone[0]])
        texts_without_zone.append(_ZONE.sub("", text, count=1).strip())
    return sorted(names) if names and find_date_formats(texts_without_zone) else []


def _clock_format(token: re.Match[str]) -> str:
    fraction = token["f"]
    return "%H:%M" + ":%S" * (token["S"] is not None) + (fraction[0] + "%f" if fraction else "")


def encode_cycle(time: float, cycle: str) -> tuple[float, float]:
    """Return sine and cosine of a time's place in a cycle.

    With both, the end of a cycle is near its beginning.

    >>> [round(part, 2) for part in encode_cycle(3 * 3600.0, "day")]
    [0.71, 0.71]
    """
    angle = 2.0 * math.pi * math.fmod(time, CYCLES[cycle]) / CYCLES[cycle]
    return math.sin(angle), math.cos(angle)
