"""Recognises columns of numbers that people and devices write with limits, units and flags, or as durations."""

from __future__ import annotations

import contextlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from streamsvm.stream.tables.column_kinds import DURATION, QUANTITY
from streamsvm.stream.tables.quantities import CURRENCY, is_limit, make_number_parser, parse_duration, parse_quantity

#: Limits lie this many standard deviations beyond their number. Chosen on half of 18 tables with limits, and confirmed on the
#: others: the log loss is 2 and 3 % lower than with the number itself, and 14 to 21 % lower than with missing values.
_GAP_DEVIATIONS = 0.5
_MAX_LENGTH = 40  # characters of a number
_MIN_DISTINCT = 3  # numbers: fewer can be names as well
_MAX_FLAGS = 12
# A number and its unit or flag, except ordinals and times of day.
_SUFFIX = re.compile(
    r"(?is)(.*\d\.?\+?)\s*(?!(?:st|nd|rd|th|[ap]\.?m\.?)$)"
    r"((?:[^\W\d_]|[°‰\u2032\u2033*†‡#^!?(\[])[^\d\s,;:]{0,11}(?: [^\W\d_]{1,9}){0,2}[23]?)"
)
_MAGNITUDE = re.compile(r"(?i)[kmbgt]|[mb]n|thousand|million|billion|lakh|crore")
_SCALED = re.compile(r"(?!.*0[xX]).*\d\s*[kKMB](?![^\W\d_])")
_MAX_SCALE_GAP = 1000.0  # ratio of the smallest number with a magnitude and the largest one without
_SCALED_UNIT = re.compile(r"[mck]?m|[mk]?g|m?l|m?s|[thd]|min|lbs?|oz|in|ft|yd|mi")
_TIME_OF_DAY = re.compile(r"([01]?\d|2[0-3]):[0-5]\d(:[0-5]\d([.,]\d+)?)?")
_DURATION_NAME = re.compile(r"(?i)duration|elapsed|runtime|lap|length|took")


def infer_number_kinds(name: str, numbers: Sequence[float], texts: Sequence[str]) -> list[str]:
    """Return the kinds with which all ``texts`` are numbers, such as ``quantity=kg`` or ``duration``: two if the decimal mark is
    ambiguous, none if some are no numbers, or if their units differ. ``numbers`` are the other values of the column ``name``.

    >>> infer_number_kinds("level", [0.5, 1.25], ["<0.01", "<0.01"]), infer_number_kinds("w", [], ["71 kg", "80,5 kg", "90 kg"])
    (['quantity=<0.25'], ['quantity=,|kg'])
    >>> infer_number_kinds("w", [], ["5 g", "7 g", "5 kg"]), infer_number_kinds("at", [], ["10:30", "11:45", "12:00"])
    ([], [])
    """
    kinds: dict[tuple[float, ...], str] = {}  # by the values that they give
    for mark in ("", ".", ",") if all(map(may_be_thousands, numbers)) else ("", "."):
        if (result := _infer_quantity(mark, numbers, texts)) is not None:
            kinds.setdefault(*result)
            if not mark:
                break
    if kinds or numbers or (all(map(_TIME_OF_DAY.fullmatch, texts)) and not _DURATION_NAME.search(name)):
        return list(kinds.values())
    with contextlib.suppress(ValueError):
        if len(set(map(parse_duration, texts))) >= _MIN_DISTINCT:
            return [DURATION]
    return []


def _infer_quantity(mark: str, numbers: Sequence[float], texts: Sequence[str]) -> tuple[tuple[float, ...], str] | None:
    """Return the values of a column and its kind, if its texts are quantities with this decimal ``mark`` (empty: plain numbers);
    None if they are not. ``numbers`` are its other values.
    """
    parse_text, plain, scaled = make_number_parser(f"{QUANTITY}={mark}"), list(numbers), list[float]()
    counts, units = Counter[str](), Counter[str]()  # an amount has a currency as its unit
    for text in texts:
        if (parts := split_suffix(text, parse_text)) is None:
            return None
        (scaled if _SCALED.match(text) and not parts[1] else plain).append(parts[0])
        counts[parts[1]] += 1
        units["".join(find_currencies([text])) or parts[1]] += 1
    n_plain, values = len(numbers) + units.pop("", 0), plain + scaled
    if len(set(values)) < _MIN_DISTINCT or not _is_one_unit(units, n_plain):
        return None
    is_far = 0.0 < _MAX_SCALE_GAP * max(map(abs, plain), default=0.0) < min(map(abs, scaled), default=0.0)
    if is_far or (scaled and any(suffix[:1].isalpha() for suffix in counts)):
        return None  # 3B beside 3, or 7B beside 7A, does not mean a billion
    gap = f"<{_GAP_DEVIATIONS * float(np.std(values)):.2g}" if any(map(is_limit, texts)) else ""
    details = "|".join(filter(None, (mark, gap, *counts)))
    return tuple(values), f"{QUANTITY}={details}" if details else QUANTITY


def split_suffix(text: str, parse_text: Callable[[str], float] = parse_quantity) -> tuple[float, str] | None:
    """Return the number in a text, as ``parse_text`` converts it, and the unit or flag that follows it (empty without one); None
    if the text is not a number.

    >>> split_suffix("71.2 kg"), split_suffix("10+ years"), split_suffix("0x1F"), split_suffix("3rd"), split_suffix("heavy")
    ((71.2, 'kg'), (10.0, 'years'), (31.0, ''), None, None)
    """
    match = _SUFFIX.fullmatch(text) if len(text) <= _MAX_LENGTH else None
    for number, suffix in ((text, ""), ("", "") if match is None else match.groups()):
        with contextlib.suppress(ValueError):
            return parse_text(number), suffix.rstrip()
    return None


def _is_one_unit(counts: Mapping[str, int], n_plain: int) -> bool:
    """Return whether suffixes of numbers can be ignored: all numbers have the same unit (``year`` and ``years`` are one), or at
    most half have flags. ``counts`` has the number of rows with each suffix, and ``n_plain`` rows have none.
    """
    have_magnitudes = any(_MAGNITUDE.fullmatch(suffix.partition(" ")[0]) for suffix in counts)
    if len({suffix.removesuffix("s") for suffix in counts}) <= 1:
        return not n_plain or not have_magnitudes
    may_be_flags = len(counts) <= _MAX_FLAGS and sum(counts.values()) <= n_plain and not have_magnitudes
    return may_be_flags and not any(_SCALED_UNIT.fullmatch(suffix) or find_currencies([suffix]) for suffix in counts)


def may_be_thousands(value: float) -> bool:
    """Return whether the decimal point of a parsed number may have been a thousands separator: 1.234 may have meant 1234."""
    return float(value).is_integer() or (1.0 <= abs(value) < 1000.0 and round(value, 3) == value)


_CURRENCY_CODES = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
_CURRENCY_OR_PERCENT = re.compile(f"%|{CURRENCY}")


def find_currencies(texts: Iterable[str]) -> list[str]:
    """Return the currency codes (``$`` as ``USD``) and percent signs in texts with amounts such as ``"$5"`` or ``"CHF 5"``, each
    once, in order of appearance.

    >>> find_currencies(["$5", "5.50", "(7 USD)", "1e3"]), find_currencies(["EUR 5", "CHF5", "3%"])
    (['USD'], ['EUR', 'CHF', '%'])
    """
    units = (unit for text in texts for unit in _CURRENCY_OR_PERCENT.findall(text))
    return list(dict.fromkeys(_CURRENCY_CODES.get(unit, unit) for unit in units))
