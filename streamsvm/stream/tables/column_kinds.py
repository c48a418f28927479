"""The kinds of the columns of a table (number, category, text, date, drop), and their form on the command line."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.files.messages import quote_name, short_repr

#: The kind of each column, such as ``{"id": "drop", "since": "date=%d.%m.%Y"}``, or the text ``"id:drop,since:date=%d.%m.%Y"``.
ColumnKinds = str | Mapping[str, str]

#: The name that stands for all columns that are not named.
OTHER_COLUMNS = "*"
#: Matches the names of columns that are a part of a Kafka message beside its value: the key, the timestamp or a header.
MESSAGE_COLUMN: re.Pattern[str] = re.compile(r"(?:message\.)?(key|timestamp|header\.(.+))", re.DOTALL)
DROP, NUMBER, CATEGORY, TEXT, DATE = "drop", "number", "category", "text", "date"
#: A category with a memory: the last and the recent labels of its rows are features, too.
KEY = "key"
#: Kinds of numbers in other notations.
QUANTITY, DURATION = "quantity", "duration"
_USAGE = (
    "it is NAME:KIND,..., where KIND is drop, category, key, text, date, date=FORMAT, number, quantity, quantity=UNIT|UNIT or "
    "duration; or, with missing-value markers for that column, category=MARKER|MARKER or number=MARKER"
)
_KINDS = "drop|category|key|text|date|number|quantity|duration"
_NAME = r'\s*("(?:[^"]|"")*"|[^",:]*?)\s*'  # optionally in double quotes
_FORMAT = r'\s*("(?:[^"]|"")*"|[^",]*?)\s*'
_COLUMN = re.compile(f"{_NAME}:\\s*({_KINDS})(?:={_FORMAT})?\\s*(?:,|$)")
_KIND = re.compile(f"({_KINDS})(?:=(.*))?", re.DOTALL)


class ColumnKind(NamedTuple):
    """The kind of a column, and the format of its values.

    >>> ColumnKind.parse("date=%d.%m.%Y"), ColumnKind.parse("number=NA|-").markers
    (ColumnKind(kind='date', format='%d.%m.%Y', markers=None), ['NA', '-'])
    """

    kind: str
    """``drop``, ``number``, ``category`` (also of a key), ``text`` or ``date``."""
    format: str | None = None
    """Format of dates (None: ISO 8601), notation of numbers, such as ``quantity=kg`` or ``duration`` (None: plain numbers), or
    ``key`` for a category that is a key.
    """
    markers: list[str] | None = None
    """Missing-value markers of this column; None to use those of the table."""

    @classmethod
    def parse(cls, text: str) -> ColumnKind:
        """Parse a column kind: ``drop``, ``number``, ``category``, ``key``, ``text``, ``date``, ``quantity`` or ``duration``,
        optionally with a date format, missing-value markers or units, such as ``"date=%d.%m.%Y"``. Raises ValueError if it is
        invalid.
        """
        match = _KIND.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match[1] in (DROP, TEXT, DURATION) and match[2] is not None):
            raise ValueError(f"{short_repr(text)} is not a kind of column: {_USAGE}")
        kind, detail = match.groups()
        if kind == DATE and (twice := re.search(r"(?s)(%.).*\1", (detail or "").replace("%%", ""))) is not None:
            raise ValueError(f"columns: {text} is an invalid format of dates: it has {twice[1]} twice")
        if kind == DATE:
            return cls(kind, detail or None)
        if kind in (QUANTITY, DURATION):
            return cls(NUMBER, text)
        markers = None if detail is None else [marker for marker in detail.split("|") if marker]
        return cls(CATEGORY, KEY, markers) if kind == KEY else cls(kind, None, markers)


def parse_columns(columns: ColumnKinds, keys: Sequence[str] = ()) -> dict[str, str]:
    """Return the kind of each column as a dict, such as ``{"id": "drop"}``. ``columns`` is a mapping like this or its text form,
    such as ``"id:drop,zip:category"``, and ``keys`` are names of further columns that are keys.

    Raises
    ------
    ValueError
        The text is not of the form NAME:KIND,..., it names a column twice, a kind is invalid, or one of ``keys`` has another
        kind.

    Examples
    --------
    >>> parse_columns('id:drop, "last, first":category, since:date=%d.%m.%Y %H:%M')
    {'id': 'drop', 'last, first': 'category', 'since': 'date=%d.%m.%Y %H:%M'}
    >>> parse_columns("country:category=,age:number=NA|-,*:drop")
    {'country': 'category=', 'age': 'number=NA|-', '*': 'drop'}
    >>> parse_columns("city:category", keys=["device"])
    {'city': 'category', 'device': 'key'}
    """
    if not isinstance(columns, str | Mapping):
        raise ValueError(f"columns must be a text or a mapping of columns to kinds, not {short_repr(columns)}: {_USAGE}")
    kinds = _parse_kinds_text(columns) if isinstance(columns, str) else dict(columns)
    kinds |= {name: KEY for name in keys if name not in kinds}
    for name, kind in kinds.items():
        if not isinstance(name, str):
            raise ValueError(f"names of columns must be str, not {short_repr(name)}")
        if ColumnKind.parse(kind).format != KEY and name in keys:
            raise ValueError(f"column {name!r} is a key, and cannot be of the kind {kind}")
        if name == OTHER_COLUMNS and kind != DROP:
            raise ValueError(f"columns {short_repr(columns)}: * stands for all other columns, which can only be dropped: *:drop")
    return kinds


def select_different_kinds(kinds: Mapping[str, str], others: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the columns whose kinds differ between two tables, with their kinds in the first and in the second table.

    >>> select_different_kinds({"id": "drop", "city": "category"}, {"id": "drop"})
    ({'city': 'category'}, {'city': 'number'})
    """
    first, second = (
        {name: table.get(name, table.get(OTHER_COLUMNS, NUMBER)) for name in {**kinds, **others}} for table in (kinds, others)
    )
    different = [name for name in first if first[name] != second[name]]
    return {name: first[name] for name in different}, {name: second[name] for name in different}


def find_label_problem(kinds: Mapping[str, str], label: str | None) -> str:
    """Return a text for an error if the column ``label`` has a kind that targets cannot have; otherwise ""."""
    is_target = kinds.get(label or "", QUANTITY).startswith((QUANTITY, DURATION, DATE, f"{NUMBER}="))
    advice = "leave it out, or give a number to predict the kind quantity, duration or date"
    return "" if is_target else f"columns {format_columns(kinds)}: {label} is the label: {advice}"


def _parse_kinds_text(text: str) -> dict[str, str]:
    """Parse column kinds in text form, such as ``"id:drop,zip:category"``, to a dict from column to kind. Raises ValueError if
    the text is invalid.
    """
    kinds: dict[str, str] = {}
    position = 0
    while position < len(text):
        if OTHER_COLUMNS in kinds:
            raise ValueError(f"columns {text}: *:drop must come last: it drops all other columns")
        if (match := _COLUMN.match(text, position)) is None:
            raise ValueError(f"columns {text}: {text[position:]} cannot be read: {_USAGE}; put other names in double quotes")
        position, (name, kind, detail) = match.end(), match.groups()
        if not name:
            raise ValueError(f"columns {text}: a name is empty: {_USAGE}")
        if detail is not None and kind == DROP:
            raise ValueError(f"columns {text}: {name} is dropped, and can have neither a format nor missing-value markers")
        if (name := _unquote(name)) in kinds:
            raise ValueError(f"columns {text}: {name} is named twice")
        kinds[name] = kind if detail is None else f"{kind}={_unquote(detail)}"
    return kinds


def _unquote(text: str) -> str:
    """Remove the double quotes around a quoted name, and replace two double quotes within it by one. Other
    names are unchanged.
    """
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def format_columns(kinds: Mapping[str, str]) -> str:
    """Format the kinds of columns (``{"id": "drop"}``) as one text (``"id:drop"``), which `parse_columns` parses. Names with
    special characters are quoted.

    >>> format_columns({"id": "drop", "*": "drop", "last, first": "category", "since": "date=%d, %m"})
    'id:drop,"last, first":category,since:date="%d, %m",*:drop'
    """
    parts = []
    for name, text in kinds.items():
        kind, equals, detail = text.partition("=")
        if name != OTHER_COLUMNS:
            needs_quotes = set(detail) & set(',"') or detail != detail.strip()
            parts.append(f"{quote_name(name)}:{kind}{equals}{quote_name(detail) if needs_quotes else detail}")
    return ",".join([*parts, "*:drop"] if OTHER_COLUMNS in kinds else parts)


def merge_options(options: Mapping[str, Any], updates: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of ``options`` with ``updates`` applied: mappings are merged, lists get the new items
    appended, and other values are replaced.

    >>> merge_options({"columns": {"a": "drop"}, "missing": ["NA"]}, {"columns": {"b": "date"}, "missing": ["-"]})
    {'columns': {'a': 'drop', 'b': 'date'}, 'missing': ['NA', '-']}
    """
    merged = dict(options)
    for name, value in updates.items():
        old_value = merged.get(name)
        if isinstance(value, Mapping):
            merged[name] = {**(old_value or {}), **value}
        else:
            merged[name] = list(dict.fromkeys([*(old_value or []), *value])) if isinstance(value, list) else value
    return merged
