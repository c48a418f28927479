"""Finds the strptime formats of dates that are written as texts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from streamsvm.stream.tables.dates import NAMED_OFFSET, is_date, translate_months

_MONTHS = "January|February|March|April|June|July|August|September|October|November|December"
_WEEKDAYS = "Monday|Tuesday|Wednesday|Thursday|Friday|Saturday|Sunday"
_TOKEN = re.compile(
    rf"(?P<A>(?i:{_WEEKDAYS}))|(?P<a>(?i:Mon|Tue|Wed|Thu|Fri|Sat|Sun))|(?P<B>(?i:{_MONTHS}))"
    r"|(?P<b>(?i:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec))"
    r"|(?P<clock>(?<!\d)\d{1,2}:\d\d(?P<S>:\d\d)?(?P<f>(?<=:\d\d:\d\d)[.,]\d{1,9})?)(?!\d)"
    r"|(?P<points>(?:(?<=\d[ T])|(?<=\d, ))\d{1,2}[.h]\d\d(?:\.\d\d)?(?=$| Uhr))|(?P<p>(?<![A-Za-z])[AaPp][Mm]\b)"
    # "-2017" is a time zone only after a clock, with its seconds or their fractions
    r"|(?P<z>(?<=\d)(?:[+-]\d\d:|\+\d\d)\d\d\b|(?:(?<=[TC ])|(?<=:\d\d)|(?<=[.,]\d{3})|(?<=[.,]\d{6}))[+-]\d\d:?\d\d\b)"
    r"|(?P<Y>(?<!\d)\d{4}(?!\d))|(?P<n>(?<!\d)\d{1,2}(?!\d))"
)
_SEPARATOR = re.compile(r"(?:[^A-Za-z\d%]|\bUTC\b|\bGMT\b|Z$|(?<=\d)T(?=\d)|\bat\b|\bdel?\b|\ba\b|\bUhr\b)*")
_ZONE = re.compile(r"(?<=[\dMm] )(?!UTC\b|GMT\b)[A-Z]{3,5}\b")
_SYSTEM_FORMATS = (
    *("%Y:%m:%d %H:%M:%S", "%Y-%m-%d-%H.%M.%S.%f", "%Y-%m-%d-%H.%M.%S"),  # cameras, DB2
    *("%d-%b-%y %I.%M.%S.%f %p", "%d-%b-%y %I.%M.%S %p", "%d-%b-%y %I.%M.%S.%f %p %z", "%d-%b-%y %H.%M.%S.%f"),  # Oracle
)
_MAX_DATE_LENGTH = 64  # characters
_FIELD_ORDERS = {  # by the sequence of fields (n: one or two digits, M: name of a month), the possible formats
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
_FIELD_ORDERS_BESIDE_CLOCK = {(): ("",), ("M", "n"): ("Md",), ("n", "M"): ("dM",)}  # times of day, and syslog


def find_date_formats(texts: Sequence[str]) -> list[str | None]:
    """Return the strptime formats that fit all of these texts, most likely first: several if day and month cannot be told apart,
    and ``[None]`` for ISO 8601. Empty if the texts are not dates.

    >>> find_date_formats(["2024-03-01T12:00"])
    [None]
    >>> find_date_formats(["20/May/2015:21:34:02 +0000"]), find_date_formats(["05/20/2015 9:34 PM"])
    (['%d/%b/%Y:%H:%M:%S %z'], ['%m/%d/%Y %I:%M %p'])
    >>> find_date_formats(["01/02/2024"]), find_date_formats(["1.2"])
    (['%d/%m/%Y', '%m/%d/%Y'], [])
    """
    if not (texts and re.search(r"\d", texts[0])):  # strptime is slow
        return []
    if all(is_date(text, None) for text in texts):
        return [None]
    for first in (texts[0].strip(), translate_months(texts[0].strip())):
        candidates = dict.fromkeys(_guess_date_formats(first))
        if formats := [form for form in candidates if all(is_date(text.strip(), form) for text in texts)]:
            # May is both a short and a long name: of two formats that differ only in this, the short one is kept.
            return [form for form in formats if "%B" not in form or form.replace("%B", "%b") not in formats]
    return []


def _guess_date_formats(text: str) -> Iterable[str]:
    """Yield the strptime formats that may fit the text of a date, most likely first. Nothing is yielded if the text is not a
    date.
    """
    text = re.sub(" +", " ", NAMED_OFFSET.sub(r"\1", text))
    if len(text) > _MAX_DATE_LENGTH:
        return
    yield from (form for form in _SYSTEM_FORMATS if is_date(text, form))
    parts: list[str] = []  # alternately the text between tokens, and the kind of a token
    position, kinds_of_tokens = 0, set()
    for token in _TOKEN.finditer(text):
        kind = token.lastgroup or ""
        kind = "clock" if kind in ("S", "f", "points") else kind
        kinds_of_tokens.add(kind)
        parts += [text[position : token.start()], kind if kind != "clock" else _make_clock_format(token)]
        position = token.end()
    parts.append(text[position:])
    zone = _ZONE.search(text)
    zone_name = "" if zone is None else zone[0]
    separators = (text.replace(f" {zone_name}", "", 1) if zone_name else text for text in parts[::2])
    if not all(map(_SEPARATOR.fullmatch, separators)):
        return
    tokens = parts[1::2]
    positions = [i for i, kind in enumerate(tokens) if kind in ("Y", "n", "b", "B")]
    order = tuple("M" if tokens[i] in "bB" else tokens[i] for i in positions)
    orders = _FIELD_ORDERS.get(order, ())
    if "clock" in kinds_of_tokens and not kinds_of_tokens & {"a", "A"}:
        orders = orders or _FIELD_ORDERS_BESIDE_CLOCK.get(order, ())
    for letters in orders:
        kinds = list(tokens)
        for i, letter in zip(positions, letters, strict=True):
            kinds[i] = tokens[i] if letter == "M" else letter
        forms = [f"%{kind}" if len(kind) == 1 else kind.replace("%H", "%I") if "p" in kinds_of_tokens else kind for kind in kinds]
        form = "".join(separator + form for separator, form in zip(parts[::2], [*forms, ""], strict=True))
        yield form
        if "may" in text.lower():  # both a short and a long name
            yield form.replace("%b", "%B")


def find_zone_names(texts: Sequence[str]) -> list[str]:
    """Return the sorted names of time zones, such as CET, that are written after the dates in these texts, without UTC and GMT.
    Empty if the texts are not dates.

    >>> find_zone_names(["2024-03-30 12:00 CET", "2024-03-31 12:00 CEST"]), find_zone_names(["5 ABC"])
    (['CEST', 'CET'], [])
    """
    names = {zone[0] for text in texts if (zone := _ZONE.search(text)) is not None}
    are_dates = bool(names) and find_date_formats([_ZONE.sub("", text, count=1).strip() for text in texts])
    return sorted(names) if are_dates else []


def _make_clock_format(token: re.Match[str]) -> str:
    """Return the strptime format of a time of day, such as ``%H:%M:%S``. ``token`` is a match of a regular expression in the text
    of the date.
    """
    hour, *separators = re.split(r"\d+", token[0])[1:-1]
    return f"%H{hour}%M" + "".join(
        f"{separator}{directive}" for separator, directive in zip(separators, ("%S", "%f"), strict=False)
    )
