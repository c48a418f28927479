"""Infers the kind of one column from a sample of its values, and the options that are needed to read it."""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import date, time
from types import MappingProxyType
from typing import Any, NamedTuple

from streamsvm.files.messages import format_count, shorten
from streamsvm.stream.schema.codes import GROUP_NAME, ID_NAME, are_codes, are_row_numbers
from streamsvm.stream.schema.notation import find_currencies, infer_number_kinds, may_be_thousands, split_suffix
from streamsvm.stream.schema.texts import describe_texts
from streamsvm.stream.tables.column_kinds import CATEGORY, DATE, DROP, DURATION, KEY, NUMBER, TEXT
from streamsvm.stream.tables.date_formats import find_date_formats, find_zone_names
from streamsvm.stream.tables.dates import UNITS, YEAR_DIRECTIVE, guess_epoch_unit, is_date, is_time_of_day, parse_datetime
from streamsvm.stream.tables.quantities import is_limit, parse_duration, parse_formatted
from streamsvm.stream.tables.values import parse_number

#: Minimum number of rows to call a column a constant or an id.
MIN_ROWS_TO_JUDGE = 20
_MIN_KEYS = 8  # distinct values of a column that may be a key
_MAX_VALUE_LENGTH = 20  # characters of a value in a message
_MAJORITY_RATIO = 10  # a kind of values is the rule if it is this many times as frequent as the exceptions
_MAX_UNUSUAL_MARKERS = 3  # texts among numbers or dates that may mean "missing", beside the usual ones
_MAX_MARKER_LENGTH = 40  # characters
#: Of the rows, the share that may have a text such as ``2.5L V6`` as a marker. ``00.00.0000`` and ``99/99`` may be in more.
_MAX_NUMBERED_SHARE = 0.05
EXCEL_ERRORS = {"#n/a", "#div/0!", "#value!", "#ref!", "#name?", "#num!", "#null!", "#spill!", "#calc!", "#getting_data"}
_USUAL_MARKERS = {"na", "n/a", "null", "none", "nan", "nat", "?", "-", "--", "missing", "unknown", "inf", "-inf"} | EXCEL_ERRORS
_GROUPED = re.compile(r"-?(0|[1-9]\d{0,2}(\.\d{3})*)")  # 907 or 1.529, with points between thousands
_BOOLEAN_WORDS = {"true", "false", "yes", "no"}
_POINTED, _MARKED = re.compile(r"\d[.,]\d"), re.compile(r"\d[.,:/]\d|\d ?[AaPp][Mm]\b")
_NUMBERED = re.compile(r"[1-8]")
_VERSION = re.compile(r"v?\d{1,3}(\.\d{1,3}){2,3}")  # or the address of a computer
_MARKS = (".", ",")
_EPOCH_RANGE = (10.0**9, 2.0 * 10.0**9)  # seconds since 1970: the years 2001 to 2033


class InferredColumn(NamedTuple):
    """The inferred kind of a column, and the options that read it."""

    name: str
    kind: str
    """The inferred kind."""
    values: str
    """Some of its values, or their range, as shown to the user."""
    note: str = ""
    """Remark for the user on anything unusual."""
    required_options: Mapping[str, Any] = MappingProxyType({})
    """Options as in `TableSchema.options`, if the column cannot be learned without any."""
    suggested_options: Mapping[str, Any] = MappingProxyType({})
    """Options that read the column better, if there are any."""
    alternative: Mapping[str, Any] | None = None
    """Options for the other interpretation that the note mentions."""
    is_ambiguous: bool = False
    """Whether the sample fits two interpretations that give different values."""
    times: Sequence[float] = ()
    """Its dates in seconds since 1970."""

    @property
    def kinds(self) -> dict[str, str]:
        """The kind that the options give to this column, by its name, as in ``--columns``; empty if they do not set one."""
        return {**self.suggested_options.get("columns", {}), **self.required_options.get("columns", {})}

    @property
    def proposed_kind(self) -> str:
        """The kind that the required options give to this column: ``number``, ``category``, ``text``, ``date`` or ``drop``;
        ``number`` if they do not set a kind.
        """
        kind: str = self.required_options.get("columns", {}).get(self.name, NUMBER)
        return kind.partition("=")[0]


def add_note(column: InferredColumn, note: str) -> InferredColumn:
    """Return an inferred column with ``note`` put before its present note for the user."""
    return column._replace(note="; ".join(filter(None, (note, column.note))))


def note_key(column: InferredColumn, rows: Sequence[Mapping[Any, Any]]) -> InferredColumn:
    """Return the column with a note for the user that it may be a key, if its name means a device, a customer or the like, and
    its kind in these ``rows`` is category or drop.
    """
    is_group = column.kinds.get(column.name) in (CATEGORY, DROP) and GROUP_NAME.fullmatch(column.name)
    if not is_group or len({str(row.get(column.name)) for row in rows}) < _MIN_KEYS:
        return column
    key = column._replace(note="perhaps a key, which remembers its last labels", alternative=make_kind_option(column.name, KEY))
    return add_note(key, column.note)


def infer_column(
    name: str,
    values: Sequence[Any],
    reads_text: bool = False,
    rows_may_fail: bool = False,
    date_formats: list[str | None] | None = None,
) -> InferredColumn:
    """Infer from a sample of non-null values how to read a table column. Returns its kind (number, string, text, date or nested)
    and the options that it needs. ``reads_text``: numbers in text need no option. ``rows_may_fail``: rare texts among numbers are
    tolerated. ``date_formats`` are the possible date formats, if known.

    >>> age = infer_column("age", [31.0, "?", 40.0, 29.0])
    >>> age.kind, age.values, age.note, age.required_options
    ('number', '29 to 40', "'?' in 1 row is not a number", {'missing': ['?']})
    >>> infer_column("since", ["02.01.2024", "31.12.2023", "NA"]).required_options
    {'columns': {'since': 'date=%d.%m.%Y'}, 'missing': ['NA']}
    >>> infer_column("amount", [950.0, "1,200", "$2,000.50"]).required_options
    {'decimal': '.'}
    """
    n_values = len(values)
    values = [value for value in values if not isinstance(value, str) or value.strip()]
    as_number, as_category = {} if reads_text else make_kind_option(name, NUMBER), make_kind_option(name, CATEGORY)
    numbers: list[Any] = []
    non_numbers: list[Any] = []
    for value in values:
        (numbers if _is_finite(value) else non_numbers).append(value)
    if not values:
        return InferredColumn(name, "number", "", "no value in these rows", as_number if n_values else {})
    if not non_numbers:
        if len(values) < n_values:
            n_empty = n_values - len(values)
            options = {} if rows_may_fail and len(numbers) >= _MAJORITY_RATIO * n_empty else as_number
            return InferredColumn(
                name, "number", _format_range(numbers), f"empty text in {format_count(n_empty, 'row')}", options
            )
        note, suggested, alternative = _interpret_numbers(name, numbers)
        is_code = suggested == make_kind_option(name, CATEGORY)
        examples = format_most_common(list(map(int, numbers))) if is_code else _format_range(numbers)
        return InferredColumn(name, "number", examples, note, suggested_options=suggested, alternative=alternative)
    if any(isinstance(value, dict | list) for value in non_numbers):
        return InferredColumn(name, "nested", "", "no number", make_kind_option(name, DROP))
    if any(isinstance(value, int) for value in non_numbers):
        options = {} if rows_may_fail else make_kind_option(name, DROP)
        low = f"{min(numbers):g} to " if numbers else ""
        return InferredColumn(name, "number", f"{low}a huge number", "has numbers that are too large", options)
    if numbers and set(numbers) <= {0, 1} and not _BOOLEAN_WORDS.isdisjoint(str(value).strip().lower() for value in non_numbers):
        return InferredColumn(name, "string", format_most_common(values), "", make_kind_option(name, CATEGORY))
    markers, rest = split_missing_markers(values)
    missing = {"missing": list(markers)} if markers else {}
    if not numbers and all(isinstance(value, float) for value in non_numbers):  # NaN, inf
        return InferredColumn(name, "number", "", "no value in these rows", missing)
    texts = list(dict.fromkeys(str(value).strip() for value in rest))
    examples, beside = format_most_common(values), f", beside {_format_counts(markers)}" if markers else ""
    if decimal_marks := _find_decimal_marks(numbers, texts):
        note = "numbers with a decimal comma" if decimal_marks == [","] else "numbers as people write them"
        is_ambiguous = len(decimal_marks) > 1
        note += (", or with a decimal comma" if is_ambiguous else "") + beside
        options, alternative = {"decimal": decimal_marks[0], **missing}, {"decimal": ","} if is_ambiguous else None
        return InferredColumn(name, "string", examples, note, options, alternative=alternative, is_ambiguous=is_ambiguous)
    are_mostly_numbers = rows_may_fail and len(numbers) >= _MAJORITY_RATIO * len(non_numbers)
    if rest and all(is_number(value) for value in rest) and not are_mostly_numbers:
        numbers = [_to_number(value) for value in values if is_number(value) and str(value).strip() not in markers]
        column = InferredColumn(name, "number", examples, "numbers as text" + beside, missing or as_number)
        return _interpret_column(column, numbers)
    are_notations = set(map(type, rest)) == {str} and not all(map(is_number, texts))
    if are_notations and (kinds := infer_number_kinds(name, numbers, list(map(str.strip, rest)))):
        note = "durations, in seconds" if kinds == [DURATION] else "numbers with limits, units or flags"
        note += "".join(f", or of the kind {kind}: these rows fit both" for kind in kinds[1:]) + beside
        options = make_kind_option(name, kinds[0]) | missing
        return InferredColumn(name, "number", examples, note, options, is_ambiguous=len(kinds) > 1)
    if numbers and len(texts) <= _MAX_UNUSUAL_MARKERS and _may_be_markers(texts, values):
        markers = Counter(str(value).strip() for value in non_numbers)
        note = f"{_format_counts(markers)} {'is not a number' if len(markers) == 1 else 'are not numbers'}"
        column = InferredColumn(name, "number", _format_range(numbers), note, {"missing": list(markers)})
        return column if rest else _interpret_column(column, numbers)
    if are_mostly_numbers or (len(texts) <= _MAX_UNUSUAL_MARKERS and len(numbers) >= _MAJORITY_RATIO * len(non_numbers)):
        return InferredColumn(name, "number", _format_range(numbers), f"not a number in {format_count(len(non_numbers), 'row')}")
    if not numbers and rest and (formats := date_formats or infer_date_formats(rest)):
        either = f", or in the format {' or '.join(map(str, formats[1:]))}: these rows fit both" if len(formats) > 1 else ""
        note = f"looks like {_describe_dates(rest, formats[0])}{either}{_describe_time_zones(texts, formats[0])}{beside}"
        options = make_kind_option(name, format_date_kind(formats[0])) | missing
        return InferredColumn(name, "date", format_most_common(values, 1), note, options, is_ambiguous=len(formats) > 1)
    if not numbers and rest and (zones := find_zone_names(texts)):
        note = f"times with the zone names {' and '.join(zones)}, whose offsets are unknown: write them, such as +01:00{beside}"
        return InferredColumn(name, "string", examples, note, make_kind_option(name, DROP) | missing, is_ambiguous=True)
    errors = {"missing": names} if (names := [marker for marker in markers if marker.lower() in EXCEL_ERRORS]) else {}
    as_text = make_kind_option(name, TEXT)
    if note := describe_texts([text for value in values if (text := str(value).strip()) not in markers]):
        return InferredColumn(name, "text", examples, f"{note}; or a category", as_text | errors, alternative=as_category)
    n_distinct = len({str(value) for value in values})
    note = _describe_currencies(texts)
    is_unique = n_distinct == len(values)
    if n_distinct >= MIN_ROWS_TO_JUDGE and _resemble_numbers(rest) and (is_unique or not all(map(_VERSION.fullmatch, texts))):
        note = note or "numbers or dates written in a way that is not read"
    if is_unique and n_distinct >= MIN_ROWS_TO_JUDGE:
        are_phrases = not note and 2 * sum(" " in text for text in texts) > len(texts)
        note = note or "looks like an id" + ", or short texts" * are_phrases
        alternative = as_text if are_phrases else None
        return InferredColumn(name, "string", examples, note, make_kind_option(name, DROP), alternative=alternative)
    note = "one value so far" if n_distinct == 1 and len(values) >= MIN_ROWS_TO_JUDGE else note
    return InferredColumn(name, "string", examples, note, as_category | errors)


def _interpret_column(column: InferredColumn, numbers: Sequence[float]) -> InferredColumn:
    """Return a column whose values are text or beside missing-value markers, with the suggested options for its ``numbers``."""
    note, options, alternative = _interpret_numbers(column.name, numbers)
    suggested = {name: value for name, value in column.required_options.items() if name == "missing"} | dict(options)
    return add_note(column._replace(suggested_options=options and suggested, alternative=alternative), note)


def make_kind_option(name: str, kind: str) -> dict[str, Any]:
    """Return the option that sets the kind of the column ``name``: ``{"columns": {name: kind}}``."""
    return {"columns": {name: kind}}


def format_date_kind(date_format: str | None) -> str:
    """Return the text that declares a column as dates in a strptime format, such as ``date=%d.%m.%Y``; only ``date`` without a
    format, which means ISO 8601.
    """
    return DATE if date_format is None else f"{DATE}={date_format}"


def _describe_dates(values: Sequence[Any], date_format: str | None) -> str:
    """Return what dates in a format are, for the user: ``a date``, ``a date without a year``, or ``a time of day``."""
    if all(map(is_time_of_day, values)) if date_format is None else not re.search("%[ABabcdjmxYy]", date_format):
        return "a time of day"
    has_year = date_format is None or date_format in UNITS or YEAR_DIRECTIVE.search(date_format)
    return "a date" if has_year else "a date without a year"


def _describe_time_zones(texts: Sequence[str], date_format: str | None) -> str:
    """Return a remark for the user on the time zones of dates: that only some of the dates have one, or that the name of a time
    zone after the date is ignored. Empty in all other cases.
    """
    if date_format is None:
        have_zones = {parse_datetime(text).tzinfo is not None for text in texts}
        return ", in some rows without a time zone, which is UTC then" if len(have_zones) > 1 else ""
    zones = find_zone_names(texts)
    has_several = len(zones) > 1
    text = f" with the zone name{'s' * has_several} {' and '.join(zones)}, which {'are' if has_several else 'is'} not read"
    return text if zones else ""


def split_missing_markers(values: Sequence[Any]) -> tuple[dict[str, int], list[Any]]:
    """Find texts in a numeric or date column that mark missing values, such as ``NA``. Returns a dict from each marker to its
    number of rows, and a list of the remaining values that are not numbers.

    A marker is a usual one such as ``NA``, or one of at most three texts that are neither numbers nor dates, and are in fewer
    rows than the values that can be read; if it has digits, such as ``2.5L V6``, in few of the rows.
    """
    non_numbers = [value for value in values if not _is_finite(value)]
    n_readable = len(values) - len(non_numbers)
    texts = Counter(str(value).strip() for value in non_numbers)
    markers = {text for text in texts if text.lower() in _USUAL_MARKERS or not text}
    unreadable: set[str] = set()
    unusual = [text for text in texts if text not in markers]
    for text in [] if find_date_formats(unusual) else unusual:  # if all are dates, which is a quick check, none is a marker
        is_quantity = split_suffix(text) is not None or _call_or_none(parse_duration, text) is not None
        is_quantity = is_quantity or any(_call_or_none(parse_formatted, text, mark) is not None for mark in _MARKS)
        if is_quantity or find_date_formats([text]):
            n_readable += texts[text]
        else:
            unreadable.add(text)
        if len(unreadable) > _MAX_UNUSUAL_MARKERS:
            break
    n_unreadable = sum(texts[text] for text in unreadable)
    if len(unreadable) <= _MAX_UNUSUAL_MARKERS and _may_be_markers(unreadable, values) and n_unreadable < n_readable:
        markers |= unreadable
    counts = {text: count for text, count in texts.items() if text in markers and text}
    return counts, [value for value in non_numbers if str(value).strip() not in markers]


def _may_be_markers(texts: Collection[str], values: Sequence[Any]) -> bool:
    """Return whether all ``texts`` may be markers of missing values in a column with these ``values``, which include them."""
    n_numbered = sum(text in texts and _NUMBERED.search(text) is not None for text in map(str.strip, map(str, values)))
    return all(map(_fits_into_flag, texts)) and n_numbered <= _MAX_NUMBERED_SHARE * len(values)


def _fits_into_flag(text: str) -> bool:
    """Return whether a text is printable and has at most 40 characters, so that a proposed command-line flag can contain it."""
    return text.isprintable() and len(text) <= _MAX_MARKER_LENGTH


def _resemble_numbers(values: Sequence[Any]) -> bool:
    """Return whether these texts are probably numbers or dates in a notation that cannot be parsed: digits make up at least a
    third of each text, and one has a mark between digits.
    """
    texts = [str(value) for value in values]
    return all(3 * sum(map(str.isdigit, text)) >= len(text) for text in texts) and any(map(_MARKED.search, texts))


def _describe_currencies(texts: Sequence[str]) -> str:
    """Return a remark for the user if the texts are amounts in several currencies. Empty otherwise."""
    are_amounts = any(all(_call_or_none(parse_formatted, text, mark) is not None for text in texts) for mark in _MARKS)
    currencies = find_currencies(texts) if are_amounts else []
    return f"numbers in several units: {shorten(', '.join(currencies), _MAX_VALUE_LENGTH)}" if len(currencies) > 1 else ""


def _format_counts(markers: Mapping[str, int]) -> str:
    """Format missing-value markers (``markers``: number of rows by text) for the user, such as ``'NA' in 3 rows``."""
    return ", ".join(f"{shorten(text, _MAX_VALUE_LENGTH)!r} in {format_count(count, 'row')}" for text, count in markers.items())


def _find_decimal_marks(numbers: Sequence[float], texts: Sequence[str]) -> list[str]:
    """Return the decimal marks (point, comma) that are possible for the numbers in ``texts``, such as ``"1,200"``. Two are
    returned if the choice changes the values. Empty if all texts are plain numbers, or if one is not a number. ``numbers`` are
    further values of the column, already parsed.

    ``numbers`` are the plain numbers of the same column, which must be possible with that mark, too.
    """
    has_limits = any(map(is_limit, texts)) and not any(text.endswith("-") for text in texts)  # 65+, and no signs after numbers
    if not texts or has_limits or len(find_currencies(texts)) > 1 or all(is_number(text) for text in texts):
        return []
    values_by_mark: dict[str, list[float | None]] = {}
    for mark in _MARKS:
        fits_numbers = mark == "." or all(map(may_be_thousands, numbers))
        values = [_call_or_none(parse_formatted, text, mark) for text in texts]
        if fits_numbers and None not in values and values not in values_by_mark.values():
            values_by_mark[mark] = values
    group = "," if any("." in text for text in texts) else "."  # the mark, if the other one separates thousands
    if len(values_by_mark) > 1 and len(texts) >= MIN_ROWS_TO_JUDGE and (numbers or not all(map(_POINTED.search, texts))):
        return [group]  # 929 beside 1,482: a decimal mark would be followed by less than three digits in some rows
    return sorted(values_by_mark, key=lambda mark: mark != group)


def may_group_thousands(texts: Sequence[str]) -> bool:
    """Return whether points in the numbers of a column, with these ``texts``, may be thousands separators: three digits follow
    all of them, and all numbers without a point are below 1000.

    >>> may_group_thousands(["12.345", "567", "1.000"]), may_group_thousands(["2.795", "2.99", "8"])
    (True, False)
    """
    return 0 < sum("." in text for text in texts) < len(texts) and all(map(_GROUPED.fullmatch, texts))


def _interpret_numbers(name: str, numbers: Sequence[float]) -> tuple[str, Mapping[str, Any], Mapping[str, Any] | None]:
    """Guess from the name and the values of a numeric column whether it is an id, a code, a date or a constant. Returns a note
    for the user, the suggested options (such as to drop an id), and options for another possible interpretation, or None.
    """
    are_whole = all(isinstance(number, int) or number.is_integer() for number in numbers)
    n_distinct = len(set(numbers))
    as_id = "looks like an id", make_kind_option(name, DROP), None
    if are_whole and are_row_numbers(name, numbers):
        return "looks like an index", make_kind_option(name, DROP), None
    if len(numbers) < MIN_ROWS_TO_JUDGE:
        return as_id if are_whole and ID_NAME.search(name) else ("", {}, None)
    if n_distinct == 1:
        return "one value so far", {}, None
    if are_whole and (unit := _find_epoch_unit(numbers)) is not None:
        note = f"a time since 1970, in {unit}" if unit else "looks like a date"
        return note, make_kind_option(name, format_date_kind(unit or None)), None
    if are_whole and n_distinct == len(numbers) and ID_NAME.search(name):
        return as_id
    if not are_whole or not all(a < b for a, b in itertools.pairwise(numbers)):
        is_code = are_whole and are_codes(name, numbers)
        return ("looks like a code", make_kind_option(name, CATEGORY), None) if is_code else ("", {}, None)
    if numbers[0] in (0, 1) and numbers[1] == numbers[0] + 1:
        return as_id
    return "rises from row to row, as ids and times do", {}, make_kind_option(name, DROP)


def _find_epoch_unit(numbers: Sequence[float]) -> str | None:
    """Guess the time unit of integers that look like times since 1970: ``"ms"``, ``"us"`` or ``"ns"``. Returns ``""`` if they
    look like dates such as 20240131, and None if they look like neither.

    Times in seconds are not recognised: they are indistinguishable from other whole numbers.
    """
    if all(19e6 < number < 21.1e6 and is_date(str(int(number)), "%Y%m%d") for number in numbers):
        return ""
    units = {guess_epoch_unit(number) for number in numbers}
    unit = units.pop()
    if units or unit == "s":
        return None
    return unit if all(_EPOCH_RANGE[0] < number / UNITS[unit][0] < _EPOCH_RANGE[1] for number in numbers) else None


def are_epochs(values: Sequence[Any]) -> bool:
    """Return whether all values are whole numbers that may be seconds since 1970."""
    low, high = _EPOCH_RANGE
    return all(is_number(value) and low < float(value) < high and float(value) % 1 == 0 for value in values)


def find_invalid_dates(name: str, values: Sequence[Any], date_format: str | None) -> tuple[str, dict[str, Any]]:
    """Check that the values of a date column fit its ``date_format`` (strptime format; None: ISO 8601). If some do not, returns a
    note for the user and the options that would read all of them, if any. Returns an empty note and no options if all fit.
    """
    invalid = [value for value in values if isinstance(value, str) and value.strip() and not is_date(value.strip(), date_format)]
    if date_format is None or date_format in UNITS:
        invalid = [value for value in invalid if not is_number(value)]
    if not invalid:
        return "", {}
    note = f"{invalid[0]!r} is not written as {date_format or 'ISO 8601'}"
    texts = list(dict.fromkeys(value.strip() for value in invalid))
    unusual = [text for text in texts if text.lower() not in _USUAL_MARKERS]
    are_dates = bool(unusual) and bool(infer_date_formats(unusual))
    if len(unusual) <= _MAX_UNUSUAL_MARKERS and all(map(_fits_into_flag, unusual)) and not are_dates:
        return note, {"missing": texts}
    usual = {text for text in texts if text not in unusual}
    formats = infer_date_formats([value for value in values if str(value).strip() not in {"", *usual}])
    options = make_kind_option(name, format_date_kind(formats[0])) if formats else {}
    return note, options | ({"missing": sorted(usual)} if usual else {})


def infer_date_formats(values: Sequence[Any]) -> list[str | None]:
    """Return the strptime formats (None: ISO 8601) that fit all of these values, the most likely one first; an empty list if they
    are not dates.
    """
    if all(isinstance(value, date | time) for value in values):
        return [None]
    return find_date_formats(values) if all(isinstance(value, str) for value in values) else []


def is_number(value: Any) -> bool:
    """Return whether a value can be converted to float, or is a text that can be parsed as a number."""
    return _call_or_none(_to_number, value) is not None


def _to_number(value: Any) -> float:
    return parse_number(value) if isinstance(value, str) else float(value)


def _is_finite(value: Any) -> bool:
    """Return whether a value is a number that a float can represent, without NaN and infinity."""
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:
        return False


def _call_or_none(function: Callable[..., Any], *values: Any) -> Any:
    """Return ``function(*values)``, or None if it raises an error for these values."""
    try:
        return function(*values)
    except (TypeError, ValueError, OverflowError):
        return None


def _format_range(numbers: Sequence[float]) -> str:
    """Format the smallest and the largest number for the user, such as ``29 to 40``."""
    if not numbers:
        return "none"
    low, high = f"{min(numbers):g}", f"{max(numbers):g}"
    return low if low == high else f"{low} to {high}"


def format_most_common(values: Sequence[Any], limit: int = 3) -> str:
    """Format up to ``limit`` of the most frequent values for the user, most frequent first, shortened and separated by commas."""
    counts = Counter(str(value).removesuffix(".0") if isinstance(value, float) else str(value) for value in values)
    texts = [shorten(text, _MAX_VALUE_LENGTH) for text, _ in counts.most_common(limit)]
    return ", ".join(texts) + (f", ... ({len(counts)})" if len(counts) > limit else "")
