"""The kind that a column is taken for, by its values in a few rows, and the flags that it needs."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsvm.files.messages import shorten
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, NUMBER
from streamsvm.stream.tables.table_parser import TableParser
from streamsvm.stream.tables.values import (
    UNITS,
    find_date_formats,
    find_zone_names,
    guess_epoch_unit,
    is_date,
    parse_datetime,
    parse_number,
)

#: Minimum number of rows to call a column a constant or an id.
MIN_ROWS_TO_JUDGE = 20
_LONGEST_VALUE = 20  # characters
_MOSTLY = 10  # times as many of one kind
_MOST_MARKS = 3  # texts among numbers or dates that may mean "missing", beside those that usually do
_LONGEST_MARK = 40  # characters
_USUAL_MARKS = {"na", "n/a", "null", "none", "nan", "nat", "?", "-", "--", "missing", "unknown", "inf", "-inf"}
_SMALL, _THOUSANDS = re.compile(r"[-+]?\d{1,3}"), re.compile(r"[-+]?[1-9]\d{0,2}\.\d{3}")
_POINTED = re.compile(r"\d[.,]\d")
_BY_MARK = {mark: TableParser(decimal=mark) for mark in (".", ",")}  # of decimals
_TIMES = (10.0**9, 2.0 * 10.0**9)  # seconds since 1970, of 2001 to 2033


class InferredColumn(NamedTuple):
    """What the first rows show of a column."""

    name: str
    kind: str
    """The kind that the column is taken for."""
    values: str
    note: str = ""
    required_options: Mapping[str, Any] = MappingProxyType({})
    """Options to try, as of `TableSchema.options`, if the column cannot be learned without any."""
    suggested_options: Mapping[str, Any] = MappingProxyType({})
    """Options with which it is read better, if it can be."""
    alternative: Mapping[str, Any] | None = None
    """Options for the other reading that the note mentions."""
    is_ambiguous: bool = False
    """Whether nothing in the rows seen decides between two readings that give other values."""

    @property
    def proposed_kind(self) -> str:
        """The kind that the answers give the column; ``number`` if they give it none."""
        kind: str = self.required_options.get("columns", {}).get(self.name, NUMBER)
        return kind.partition("=")[0]


def infer_column(
    name: str,
    values: Sequence[Any],
    reads_text: bool = False,
    rows_may_fail: bool = False,
    forms: list[str | None] | None = None,
) -> InferredColumn:
    """Determine the kind of a column from its values without the missing ones.

    Text among ten times as many numbers is an error in a row: it needs no answer if rows may fail.
    ``forms`` are the formats of its dates, where more rows have told them.

    >>> age = infer_column("age", [31.0, "?", 40.0, 29.0])
    >>> age.kind, age.values, age.note, age.required_options
    ('number', '29 to 40', "'?' in 1 row is not a number", {'missing': ['?']})
    >>> infer_column("since", ["02.01.2024", "31.12.2023", "NA"]).required_options
    {'columns': {'since': 'date=%d.%m.%Y'}, 'missing': ['NA']}
    >>> infer_column("amount", [950.0, "1,200", "$2,000.50"]).required_options
    {'decimal': '.'}
    """
    n_given = len(values)
    values = [value for value in values if not isinstance(value, str) or value.strip()]
    as_text = {} if reads_text else make_kind_option(name, NUMBER)
    numbers: list[Any] = []
    others: list[Any] = []
    for value in values:
        (numbers if _is_finite(value) else others).append(value)
    if not values:
        return InferredColumn(name, "number", "", "no value in these rows", as_text if n_given else {})
    if not others:
        if len(values) < n_given:
            n_empty = n_given - len(values)
            answers = {} if rows_may_fail and len(numbers) >= _MOSTLY * n_empty else as_text
            return InferredColumn(name, "number", _range_text(numbers), f"empty text in {_rows_text(n_empty)}", answers)
        note, suggested, otherwise = _suspicion_of(name, numbers, len(set(numbers)))
        shown = (
            format_most_common(list(map(int, numbers))) if suggested == make_kind_option(name, CATEGORY) else _range_text(numbers)
        )
        return InferredColumn(name, "number", shown, note, suggested_options=suggested, alternative=otherwise)
    if any(isinstance(value, dict | list) for value in others):
        return InferredColumn(name, "nested", "", "no number", make_kind_option(name, DROP))
    if huge := [value for value in others if isinstance(value, int)]:
        answers = {} if rows_may_fail else make_kind_option(name, DROP)
        return InferredColumn(name, "number", _range_text(numbers + huge), "has numbers that are too large", answers)
    marks, rest = split_missing_markers(values)
    missing = {"missing": list(marks)} if marks else {}
    if not numbers and all(isinstance(value, float) for value in others):  # NaN, inf
        return InferredColumn(name, "number", "", "no value in these rows", missing)
    texts = list(dict.fromkeys(str(value).strip() for value in rest))
    if decimals := _decimal_marks(numbers, texts):
        what = "numbers with a decimal comma" if decimals == [","] else "numbers as people write them"
        is_ambiguous = len(decimals) > 1
        note = f"{what}, or with a decimal comma" if is_ambiguous else what
        answers, otherwise = {"decimal": decimals[0], **missing}, {"decimal": ","} if is_ambiguous else None
        note, shown = note + _beside_text(marks), format_most_common(values)
        return InferredColumn(name, "text", shown, note, answers, alternative=otherwise, is_ambiguous=is_ambiguous)
    is_mostly = rows_may_fail and len(numbers) >= _MOSTLY * len(others)
    if rest and all(is_number(value) for value in rest) and not is_mostly:
        return InferredColumn(
            name, "number", format_most_common(values), "numbers as text" + _beside_text(marks), missing or as_text
        )
    if numbers and len(texts) <= _MOST_MARKS and all(map(_can_be_written, texts)):
        marks = Counter(str(value).strip() for value in others)
        verb = "is not a number" if len(marks) == 1 else "are not numbers"
        return InferredColumn(name, "number", _range_text(numbers), f"{_counted_marks(marks)} {verb}", {"missing": list(marks)})
    if is_mostly or (len(texts) <= _MOST_MARKS and len(numbers) >= _MOSTLY * len(others)):
        return InferredColumn(name, "number", _range_text(numbers), f"not a number in {_rows_text(len(others))}")
    if not numbers and rest and (forms := forms or infer_date_formats(rest)):
        either = f", or in the format {' or '.join(map(str, forms[1:]))}: these rows fit both" if len(forms) > 1 else ""
        note = f"looks like a date{either}{_zones_of(texts, forms[0])}{_beside_text(marks)}"
        answers = make_kind_option(name, format_date_kind(forms[0])) | missing
        return InferredColumn(name, "date", format_most_common(values, 1), note, answers, is_ambiguous=len(forms) > 1)
    if not numbers and rest and (zones := find_zone_names(texts)):
        note = f"times with the zone names {' and '.join(zones)}, of which no format tells the offset: write it, such as +01:00"
        return InferredColumn(
            name,
            "text",
            format_most_common(values),
            note + _beside_text(marks),
            make_kind_option(name, DROP) | missing,
            is_ambiguous=True,
        )
    distinct = len({str(value) for value in values})
    note = _of_units(texts)
    if distinct == len(values) >= MIN_ROWS_TO_JUDGE:
        note = note or ("numbers written in a way that is not read" if _like_numbers(rest) else "looks like an id")
        return InferredColumn(name, "text", format_most_common(values), note, make_kind_option(name, DROP))
    note = "one value so far" if distinct == 1 and len(values) >= MIN_ROWS_TO_JUDGE else note
    return InferredColumn(name, "text", format_most_common(values), note, make_kind_option(name, CATEGORY))


def make_kind_option(name: str, kind: str) -> dict[str, Any]:
    """Return the options that give a column a kind."""
    return {"columns": {name: kind}}


def format_date_kind(form: str | None) -> str:
    """Return the kind of a column of dates in a format; None is ISO 8601."""
    return DATE if form is None else f"{DATE}={form}"


def _zones_of(texts: Sequence[str], form: str | None) -> str:
    if form is None:
        have_zones = {parse_datetime(text).tzinfo is not None for text in texts}
        return ", in some rows without a time zone, which is UTC then" if len(have_zones) > 1 else ""
    zones = find_zone_names(texts[:1])
    return f" with the zone name {zones[0]}, which is not read" if zones else ""


def split_missing_markers(values: Sequence[Any]) -> tuple[dict[str, int], list[Any]]:
    """Return the texts that seem to mean "missing", with their numbers of rows, and the other values that are no numbers.

    A mark is usual, or one of a few texts that are neither a number nor a date, in fewer rows than those.
    """
    others = [value for value in values if not _is_finite(value)]
    n_read = len(values) - len(others)
    texts = Counter(str(value).strip() for value in others)
    marks = {text for text in texts if text.lower() in _USUAL_MARKS or not text}
    rare: set[str] = set()
    unusual = [text for text in texts if text not in marks]
    for text in [] if find_date_formats(unusual) else unusual:  # if all are dates, which is soon told, there is no other mark
        if any(_written_in(mark, text) is not None for mark in _BY_MARK) or find_date_formats([text]):
            n_read += texts[text]
        else:
            rare.add(text)
        if len(rare) > _MOST_MARKS:
            break
    if len(rare) <= _MOST_MARKS and all(map(_can_be_written, rare)) and sum(texts[text] for text in rare) < n_read:
        marks |= rare
    counts = {text: count for text, count in texts.items() if text in marks and text}
    return counts, [value for value in others if str(value).strip() not in marks]


def _can_be_written(text: str) -> bool:
    """Whether a text can stand in a flag that is shown."""
    return text.isprintable() and len(text) <= _LONGEST_MARK


def _written_in(mark: str, text: str) -> float | None:
    """The number that a text is to people with a decimal mark."""
    value: float | None = _or_none(parse_number, _or_none(_BY_MARK[mark].normalize_number, text))
    return value


def _like_numbers(values: Sequence[Any]) -> bool:
    """Whether texts are mostly digits, with a point or a comma among them."""
    texts = [str(value) for value in values]
    return all(2 * sum(map(str.isdigit, text)) >= len(text) for text in texts) and any(map(_POINTED.search, texts))


def _of_units(texts: Sequence[str]) -> str:
    """Return the note on numbers in text that have units which are not read, or more than one."""
    if any(all(_written_in(mark, text) is not None for text in texts) for mark in _BY_MARK):
        money = find_currencies(texts)
        return f"numbers in several units: {shorten(', '.join(money), _LONGEST_VALUE)}" if len(money) > 1 else ""
    unit = find_common_unit(texts)
    return f"numbers with the unit {unit!r}, which is not read" if unit else ""


def _counted_marks(marks: Mapping[str, int]) -> str:
    return ", ".join(f"{shorten(text, _LONGEST_VALUE)!r} in {_rows_text(count)}" for text, count in marks.items())


def _rows_text(count: int) -> str:
    return f"{count} row{'s' * (count > 1)}"


def _beside_text(marks: Mapping[str, int]) -> str:
    return f", beside {_counted_marks(marks)}" if marks else ""


def _decimal_marks(numbers: Sequence[float], texts: Sequence[str]) -> list[str]:
    """Return the decimal marks with which texts beside plain numbers are numbers, too; one if both read the same."""
    if not texts or len(find_currencies(texts)) > 1 or all(is_number(text) for text in texts):
        return []
    values_by_mark: dict[str, list[float | None]] = {}
    for mark in _BY_MARK:
        plain = mark == "." or all(map(_may_be_thousands, numbers))
        read = [_written_in(mark, text) for text in texts]
        if plain and None not in read and read not in values_by_mark.values():
            values_by_mark[mark] = read
    return list(values_by_mark)


def may_group_thousands(texts: Iterable[str]) -> bool:
    """Whether points may stand between thousands: each has three digits after it, and numbers without a point are below 1000.

    >>> may_group_thousands(["12.345", "567"]), may_group_thousands(["12.345", "0.567", "8"])
    (True, False)
    >>> may_group_thousands(["12.345", "1.500"])
    False
    """
    numbers = [text.strip() for text in texts if is_number(text)]
    n_small = sum(_SMALL.fullmatch(text) is not None for text in numbers)
    return 0 < n_small < len(numbers) and all(_SMALL.fullmatch(text) or _THOUSANDS.fullmatch(text) for text in numbers)


def _may_be_thousands(value: float) -> bool:
    return float(value).is_integer() or (1.0 <= abs(value) < 1000.0 and round(value, 3) == value)


def _suspicion_of(name: str, numbers: Sequence[float], distinct: int) -> tuple[str, Mapping[str, Any], Mapping[str, Any] | None]:
    """Return a note on what a column of numbers may be, the options that read it so, and options for another reading."""
    are_whole = all(isinstance(number, int) or number.is_integer() for number in numbers)
    is_id = "looks like an id", make_kind_option(name, DROP), None
    if len(numbers) < MIN_ROWS_TO_JUDGE:
        return is_id if are_whole and ID_NAME.search(name) else ("", {}, None)
    if distinct == 1:
        return "one value so far", {}, None
    if are_whole and (unit := _time_unit(numbers)) is not None:
        return (
            f"a time since 1970, in {unit}" if unit else "looks like a date",
            make_kind_option(name, format_date_kind(unit or None)),
            None,
        )
    if are_whole and distinct == len(numbers) and ID_NAME.search(name):
        return is_id
    if not are_whole or not all(a < b for a, b in itertools.pairwise(numbers)):
        is_code = are_whole and are_codes(name, numbers)
        return ("looks like a code", make_kind_option(name, CATEGORY), None) if is_code else ("", {}, None)
    counts = numbers[0] in (0, 1) and numbers[1] == numbers[0] + 1
    if counts or not name:
        return is_id
    return "rises from row to row, as ids and times do", {}, make_kind_option(name, DROP)


def _time_unit(numbers: Sequence[float]) -> str | None:
    if all(19e6 < number < 21.1e6 and is_date(str(int(number)), "%Y%m%d") for number in numbers):
        return ""
    units = {guess_epoch_unit(number) for number in numbers}
    unit = units.pop()
    if units or unit == "s":  # which are whole numbers like others
        return None
    return unit if all(_TIMES[0] < number / UNITS[unit][0] < _TIMES[1] for number in numbers) else None


def find_invalid_dates(name: str, values: Sequence[Any], form: str | None) -> tuple[str, dict[str, Any]]:
    """Return a note on values that are not dates in a format, and the options that read them; empty if all are dates."""
    wrong = [value for value in values if isinstance(value, str) and value.strip() and not is_date(value.strip(), form)]
    if form is None or form in UNITS:
        wrong = [value for value in wrong if not is_number(value)]
    if not wrong:
        return "", {}
    note = f"{wrong[0]!r} is not written as {form or 'ISO 8601'}"
    marks = list(dict.fromkeys(value.strip() for value in wrong))
    unusual = [text for text in marks if text.lower() not in _USUAL_MARKS]
    forms = infer_date_formats(unusual) if unusual else []
    if not forms and len(unusual) <= _MOST_MARKS and all(map(_can_be_written, unusual)):
        return note, {"missing": marks}
    usual = [text for text in marks if text not in unusual]
    return note, make_kind_option(name, format_date_kind(forms[0] if forms else "FORMAT")) | ({"missing": usual} if usual else {})


def infer_date_formats(values: Sequence[Any]) -> list[str | None]:
    """Return the formats that fit all values, as `find_date_formats`."""
    if all(isinstance(value, date) for value in values):
        return [None]
    return find_date_formats(values) if all(isinstance(value, str) for value in values) else []


def is_number(value: Any) -> bool:
    """Whether a value is a number, or one in text."""
    return _or_none(parse_number if isinstance(value, str) else float, value) is not None


def _is_finite(value: Any) -> bool:
    """Whether a value is a number that a float can hold."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _or_none(reads: Callable[[Any], Any], value: Any) -> Any:
    try:
        return reads(value)
    except (TypeError, ValueError, OverflowError):
        return None


def _range_text(numbers: Sequence[float]) -> str:
    if not numbers:
        return "none"
    low, high = _short_number(min(numbers)), _short_number(max(numbers))
    return low if low == high else f"{low} to {high}"


def _short_number(number: float) -> str:
    try:
        return f"{number:g}"
    except OverflowError:
        return "a huge number"


def format_most_common(values: Sequence[Any], most: int = 3) -> str:
    """Return the values that come most often, as they are shown."""
    counts = Counter(str(value) for value in values)
    texts = [shorten(text, _LONGEST_VALUE) for text, _ in counts.most_common(most)]
    return ", ".join(texts) + (f", ... ({len(counts)})" if len(counts) > most else "")


_SIGNS = {"$": "USD", "€": "EUR", "£": "GBP", "¥": "JPY", "₹": "INR"}
_MONEY = re.compile(r"%|[$€£¥₹]|[^\W\d_]{2,}")
_AFTER = re.compile(r"[-+\u2212]?[\d.,'\u2019\u00a0\u2009\u202f ]*\d\s?((?:[^\W\d_]|[°%‰\u2032\u2033])[^\d\s,;:]{0,7})")


def find_currencies(texts: Iterable[str]) -> list[str]:
    """Return the currencies and the percent sign in texts that are numbers as people write them; a sign is its currency.

    >>> find_currencies(["$5", "5.50", "(7 USD)", "1e3"]), find_currencies(["EUR 5", "CHF5", "3%"])
    (['USD'], ['EUR', 'CHF', '%'])
    """
    return list(dict.fromkeys(_SIGNS.get(unit, unit) for text in texts for unit in _MONEY.findall(text)))


def find_common_unit(texts: Iterable[str]) -> str | None:
    """Return the one unit that stands after each of some numbers in text; None if they are something else.

    >>> find_common_unit(["71.2 kg", "80kg"]), find_common_unit(["5,3 km/h", "1.200 km/h"])
    ('kg', 'km/h')
    >>> find_common_unit(["5 g", "5 kg"]), find_common_unit(["5 kg", "heavy"])
    (None, None)
    """
    units: set[str | None] = set()
    for text in texts:
        units.add(match[1] if (match := _AFTER.fullmatch(text)) else None)
        if len(units) > 1:
            return None
    return units.pop() if units else None


#: The name of a column of ids, which few rows do not show by their values.
ID_NAME = re.compile(r"(^|[_\W])(id|ID|Id)$|[a-z]I[dD]$")
#: That of codes, which may lie close together, and that of what belongs to a group, and repeats with it as its code does.
_CODE = re.compile(r"code\d?$|(^|[_\W])(zip|plz|fips)$", re.IGNORECASE)
_QUANTITY = re.compile(
    r"(pop|population|inc|income|gdp|weight|wgh?t|sal|salary|wage|price|cost|amount|value|dist|distance)\d*$", re.IGNORECASE
)
_LEAST_NAMED, _LEAST = 100, 10_000  # of the largest number
_SECONDS = (5e8, 2e9)  # since 1970
# Halves of 15,117 columns of 3,428 tables led to these, or near them:
_NEAR = 10  # at most so far from each other
_EQUAL, _TIMES_NEAR = 10, 10  # pairs of rows that are equal, and how many times as many as those at a distance
_ROUND, _DIGIT = 0.35, 0.3  # the most of the numbers that end with 0 or 5, or with one digit
_ERRORS = 3.0  # standard ones, by which few numbers may have more of these
_FEWEST = 5  # other numbers than the least, the largest and the most common one
_VARIED = 0.25  # the least of the rows that have other numbers than the most common one, and not the one before
_CLUSTERED = 0.45  # the most that the median gap is of the mean one


def are_codes(name: str, numbers: Sequence[float]) -> bool:
    """Whether whole numbers are codes, by the name of their column or by their values.

    By their values, they are large; two rows have the same number far more often than two that are near each other; the last
    digits are not those of prices; and many numbers lie close together, as those do that are given one after another. What only
    repeats from one row to the next says nothing: rows are often sorted by what belongs to several of them.

    >>> roles = [118_000 + 7 * (i * i % 31) + 4_321 * (i % 3) for i in range(200)]
    >>> are_codes("role", roles), are_codes("role", range(118_000, 118_200)), are_codes("zip_code", range(60_600, 60_700))
    (True, False, True)
    """
    distinct = set(numbers)
    if min(distinct) < 0 or max(distinct) < _LEAST_NAMED or len(distinct) < 3:
        return False
    if _CODE.search(name):
        return True
    if ID_NAME.search(name):
        return len(distinct) < len(numbers)
    if max(distinct) < _LEAST or _QUANTITY.search(name) or all(_SECONDS[0] < number < _SECONDS[1] for number in distinct):
        return False
    counts = Counter(number for number, _ in itertools.groupby(numbers))
    if not _are_clustered(sorted(counts)):
        return False
    for end in {min(counts), max(counts), counts.most_common(1)[0][0]}:  # where what is too small or too large may stand
        del counts[end]
    is_varied = len(counts) >= _FEWEST and sum(counts.values()) >= _VARIED * len(numbers)
    return is_varied and _have_digits_of_codes(counts) and _are_repeated(counts)


def _are_clustered(numbers: Sequence[float]) -> bool:
    """Whether gaps between sorted numbers are mostly small beside the mean one."""
    gaps = sorted(b - a for a, b in itertools.pairwise(numbers))
    return gaps[len(gaps) // 2] * len(gaps) <= _CLUSTERED * sum(gaps)


def _have_digits_of_codes(numbers: Iterable[float]) -> bool:
    """Whether the last digits of numbers are spread, and the numbers are no squares."""
    wholes = [int(number) for number in numbers]
    last, n = Counter(whole % 10 for whole in wholes), len(wholes)
    are_spread = _is_usual(last[0] + last[5], n, 0.2, _ROUND) and _is_usual(max(last.values()), n, 0.1, _DIGIT)
    return are_spread and any(math.isqrt(whole) ** 2 != whole for whole in wholes)


def _is_usual(count: int, n: int, share: float, most: float) -> bool:
    """Whether a share of some numbers is usual where it is so much of all, or at most so much."""
    return count <= max(most * n, share * n + _ERRORS * math.sqrt(n * share * (1.0 - share)))


def _are_repeated(counts: Mapping[float, int]) -> bool:
    """Whether two rows have the same number more often than two at a small distance."""
    equal = sum(count * (count - 1) // 2 for count in counts.values())
    numbers = sorted(counts)
    near, first, window = 0, 0, 0  # pairs of rows; the first number that is near; the rows from there on
    for current in numbers:
        while current - numbers[first] > _NEAR:
            window -= counts[numbers[first]]
            first += 1
        near += window * counts[current]
        window += counts[current]
    return equal >= _EQUAL and equal * 2 * _NEAR >= _TIMES_NEAR * near
