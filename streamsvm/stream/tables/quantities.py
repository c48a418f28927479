"""Parses numbers as people and devices write them: currencies, limits, units, magnitudes, durations, hexadecimal, Fortran."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Collection
from functools import partial

from streamsvm.stream.tables.column_kinds import DURATION, QUANTITY
from streamsvm.stream.tables.values import parse_number

_SIGN = "[-+\u2212]"
_CURRENCY_CODES = (
    "USD EUR GBP JPY CHF CNY INR AUD CAD NZD SEK NOK DKK PLN CZK HUF RON RUB UAH TRY ILS ZAR BRL MXN ARS KRW SGD HKD THB"
)
#: A pattern of currencies.
CURRENCY = f"(?:[$€£¥₹]|{_CURRENCY_CODES.replace(' ', '|')})"
_BLANKS = " \u00a0\u2007\u2009\u202f"
_THOUSANDS_SEPARATORS = {".": ",", ",": "."}  # by decimal mark
#: Begins the patterns that take quadratic time: a number has at most 64 characters, or nothing but digits, mark and exponent.
_SHORT = r"(?:(?=[-+]?[0-9]*(?:[.,][0-9]*)?(?:[eE][-+]?[0-9]+)?\Z)|(?!(?s:.{65})))"
#: Patterns of numbers that are formatted for people, by decimal mark: with thousands separators, a currency or percent sign, and
#: the sign before or after the digits. An exponent only follows digits without separators: ``7.064e+02`` is not 706,400.
_FORMATTED_NUMBERS = {
    mark: re.compile(
        rf"{_SHORT}({_SIGN})?{CURRENCY}?[{_BLANKS}]?({_SIGN})?"
        rf"((?={re.escape(mark)}?[0-9])(?:[1-9][0-9]{{0,2}}(?:[{group}'\u2019{_BLANKS}][0-9]{{3}})+(?!.*[eE][-+0-9])"
        rf"|[1-9][0-9]{{0,2}}(?:,[0-9]{{2}})+,[0-9]{{3}}|[0-9]+)?"  # 14,82,514: thousands, lakhs and crores
        rf"(?:{re.escape(mark)}[0-9]*)?(?:[eE][-+]?[0-9]+)?)[{_BLANKS}]?(?:%|{CURRENCY})?({_SIGN})?"
    )
    for mark, group in _THOUSANDS_SEPARATORS.items()
}
_IN_PARENTHESES = re.compile(rf"({CURRENCY}?)[{_BLANKS}]?\(([^()]*)\)")  # an accountant's notation of a negative number
_TRANSLATIONS = {  # from formatted digits to those that float() parses
    mark: str.maketrans({**dict.fromkeys(["'", "\u2019", *_BLANKS, group]), mark: "."})
    for mark, group in _THOUSANDS_SEPARATORS.items()
}
_LIMIT = re.compile(
    rf"(?i){_SHORT}(?:(<|≤|under |below |less than )|(>|≥|over |above |more than )|~|≈|ca\.|approx\.)?=?\s*(.+?)\s*"
    r"(\+|(?:or|and) (?:more|over|above))?"
)
_GAP = re.compile(r"<\d+\.?\d*(e[-+]?\d+)?")
_ASCII_SIGNS = str.maketrans("\u2212\u2013\uff0d\uff0b\uff0e\uff0c\uffe5", "---+.,\u00a5")
_HEXADECIMAL = re.compile(r"[-+]?0[xX][0-9a-fA-F]{1,16}")
_FORTRAN = re.compile(r"(?<=[\d.])[dD](?=[-+]?\d{1,3}$)")
_MAGNITUDES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9}
_DAYS = r"(-?\d+)(?: days?,? |\.)\+?"
#: Patterns of durations, with the seconds of their units.
_DURATIONS = {
    re.compile(rf"(?:{_DAYS})?(\d+):([0-5]?\d):([0-5]?\d(?:\.\d+)?)"): (86_400.0, 3600.0, 60.0, 1.0),
    re.compile(rf"{_DAYS}(\d+):([0-5]?\d)"): (86_400.0, 3600.0, 60.0),
    re.compile(r"(\d+):([0-5]?\d(?:\.\d+)?)"): (60.0, 1.0),
    re.compile(r"(\d+) ?h ?([0-5]\d)"): (3600.0, 60.0),
    re.compile(  # ISO 8601, without months and years, and numbers with units
        r"(?i)(?=.*\d)(?!p[^t]*m)p?(?:([\d.]+) ?w(?:eeks?|ks?)?,? ?)?(?:([\d.]+) ?(?:d(?:ays?)?|tage?|jours?),? ?)?t?"
        r"(?:([\d.]+) ?(?:h(?:(?:ou)?rs?|eures?|oras?)?|std\.|stunden?),? ?)?"
        r"(?:([\d.]+) ?m(?:in(?:ut[eo])?[ns]?\.?)?,? ?)?(?:([\d.]+) ?s(?:ec(?:ond)?s?|ek\.)?)?"
    ): (604_800.0, 86_400.0, 3600.0, 60.0, 1.0),
}


def make_number_parser(notation: str | None = None, decimal: str | None = None) -> Callable[[str], float]:
    """Make a function that converts the texts of numbers to float. ``notation`` is the kind of a column: ``duration``, or
    ``quantity`` with an optional decimal mark, distance of limits, units and flags. Without a mark there, numbers are written for
    people with the mark ``decimal`` (None: by programs).

    >>> parse_weight = make_number_parser("quantity=,|<5|kg")
    >>> [parse_weight(text) for text in ("71,5 kg", ">100", "80")]
    [71.5, 105.0, 80.0]
    """
    kind, _, details = (notation or "").partition("=")
    if kind == DURATION:
        return lambda text: float(text) if text.isdecimal() else parse_duration(text)  # whole numbers are seconds
    parts = [part for part in details.split("|") if part]
    decimal = parts.pop(0) if parts and parts[0] in _THOUSANDS_SEPARATORS else decimal
    gap = float(parts.pop(0)[1:]) if parts and _GAP.fullmatch(parts[0]) else 0.0
    to_number = parse_number if decimal is None else partial(parse_formatted, mark=decimal)
    return partial(parse_quantity, suffixes=parts, gap=gap, to_number=to_number) if kind == QUANTITY else to_number


def normalize_number(text: str, mark: str) -> str:
    """Convert the text of a number that is written for people, with the decimal ``mark``, such as ``"1,209.28 €"``, to Python's
    notation (``"1209.28"``). Raises ValueError for other texts.

    >>> [normalize_number(text, ".") for text in ("1,209.28 €", "$(1,200)", "12.50-")]
    ['1209.28', '-1200', '-12.50']
    >>> normalize_number("0.512", ",")
    Traceback (most recent call last):
        ...
    ValueError: '0.512' is not a number with the decimal mark ','
    """
    stripped = text.strip()
    if ")" in stripped and (negative := _IN_PARENTHESES.fullmatch(stripped)) is not None:
        stripped = f"-{negative[1]}{negative[2]}"
    match = _FORMATTED_NUMBERS[mark].fullmatch(stripped)
    sign_before, sign_inside, digits, sign_after = ("", "", "", "") if match is None else match.groups("")
    if match is None or len(signs := sign_before + sign_inside + sign_after) > 1:
        raise ValueError(f"{text!r} is not a number with the decimal mark {mark!r}")
    return "-" * (signs not in ("", "+")) + digits.translate(_TRANSLATIONS[mark])


def parse_formatted(text: str, mark: str) -> float:
    """Convert the text of a number that is written for people, with the decimal ``mark``, to float. Raises ValueError for other
    texts.
    """
    return parse_number(normalize_number(text, mark))


def parse_quantity(
    text: str, suffixes: Collection[str] = (), gap: float = 0.0, to_number: Callable[[str], float] = parse_number
) -> float:
    """Convert the text of a number to float: with a limit (``<0.01``), a magnitude (``1.2K``), a unit or flag that is one of
    ``suffixes``, hexadecimal, or with an exponent of Fortran. ``to_number`` converts the digits. Raises ValueError for other
    texts.

    A limit becomes a number that lies ``gap`` beyond it, so that it differs from the value itself. Beside units and flags of
    letters, a number with a magnitude and without a unit is refused: ``7B`` beside ``7A`` does not mean a billion.

    >>> [parse_quantity(text, ["kg", "e"], 1.5) for text in ("71.5 kg", "<8kg", "8+ kg", "3.1 e", "0x1F", "1.5D+03")]
    [71.5, 6.5, 9.5, 3.1, 31.0, 1500.0]
    >>> parse_quantity("1.5K")
    1500.0
    """
    text = text.strip()
    has_letter = text[-1:] in _MAGNITUDES and any(suffix[0].isalpha() for suffix in suffixes)
    for suffix in suffixes if has_letter else ("", *suffixes):
        limit = _LIMIT.fullmatch(text.removesuffix(suffix).strip()) if text.endswith(suffix) else None
        with contextlib.suppress(ValueError):
            if limit is not None:
                value = _parse_digits(limit[3] if limit[3].isascii() else _to_ascii(limit[3]), to_number)
                return value - gap if limit[1] else value + gap if limit[2] or limit[4] else value
    raise ValueError(f"{text!r} is not a number")


def _to_ascii(text: str) -> str:
    """Convert the decimal digits of any script, full-width signs and long dashes in the text of a number to those of ASCII.

    >>> _to_ascii("\N{FULLWIDTH HYPHEN-MINUS}\N{FULLWIDTH DIGIT ONE}\N{FULLWIDTH FULL STOP}\N{ARABIC-INDIC DIGIT FIVE}")
    '-1.5'
    """
    return "".join(str(int(letter)) if letter.isdecimal() else letter for letter in text).translate(_ASCII_SIGNS)


def _parse_digits(text: str, to_number: Callable[[str], float]) -> float:
    """Convert the text of a number without limit and suffix to float. Raises ValueError if it is not a number."""
    if _HEXADECIMAL.fullmatch(text):
        return float(int(text, 16))
    if text[-1:] in _MAGNITUDES:
        return to_number(text[:-1].strip()) * _MAGNITUDES[text[-1]]
    return to_number(_FORTRAN.sub("e", text))


def is_limit(text: str) -> bool:
    """Return whether the text of a quantity is a limit, such as ``<0.01`` or ``20+``."""
    limit = _LIMIT.fullmatch(text.strip())
    return limit is not None and any(limit.group(1, 2, 4))


def parse_duration(text: str) -> float:
    """Convert the text of a duration to seconds: a clock (``26:00:00``, ``1 day, 2:00:00``; ``2:30`` are minutes and seconds),
    ISO 8601 (``PT1H30M``, without months and years), or numbers with units (``1h 30m``). Raises ValueError for other texts.

    >>> [parse_duration(text) for text in ("-1 days +23:00:00", "P1DT2H", "45 min", "1h 30m", "2:30", "2 days 03:00")]
    [-3600.0, 93600.0, 2700.0, 5400.0, 150.0, 183600.0]
    """
    for pattern, units in _DURATIONS.items():
        if (match := pattern.fullmatch(text.strip())) is not None:
            return sum(float(part or 0.0) * unit for part, unit in zip(match.groups(), units, strict=True))
    raise ValueError(f"{text!r} is not a duration")


def parse_duration_or_unit(text: str) -> float:
    """Convert the text of a duration, the name of a unit, or ``inf``, to seconds. Raises ValueError for other texts.

    >>> [parse_duration_or_unit(text) for text in ("DAY", "12h", "1.5m", "inf")]
    [86400.0, 43200.0, 90.0, inf]
    """
    return float(text) if text == "inf" else parse_duration(text if re.search(r"\d", text) else f"1 {text}")
