"""What the columns of a table hold: a mapping from column to kind, and the text that stands for it on a command line."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamsvm.files.messages import quote_name, short_repr

#: The kind of each column, such as ``{"id": "drop", "since": "date=%d.%m.%Y"}``, or the text ``"id:drop,since:date=%d.%m.%Y"``.
ColumnKinds = str | Mapping[str, str]

#: The key of all columns that are not named.
OTHER_COLUMNS = "*"
DROP, NUMBER, CATEGORY, DATE = "drop", "number", "category", "date"
_USAGE = (
    "it is NAME:KIND,..., where KIND is drop, category, date, date=FORMAT or number; or, with the marks of missing values of "
    "that column, category=MARK|MARK or number=MARK"
)
_NAME = r'\s*("(?:[^"]|"")*"|[^",:]*?)\s*'  # perhaps in quotes
_FORMAT = r'\s*("(?:[^"]|"")*"|[^",]*?)\s*'
_COLUMN = re.compile(f"{_NAME}:\\s*(drop|category|date|number)(?:={_FORMAT})?\\s*(?:,|$)")
_KIND = re.compile("(drop|category|date|number)(?:=(.*))?", re.DOTALL)


class ColumnKind(NamedTuple):
    """The kind of a column, and how its values are written.

    >>> ColumnKind.parse("date=%d.%m.%Y"), ColumnKind.parse("number=NA|-").markers
    (ColumnKind(kind='date', format='%d.%m.%Y', markers=None), ['NA', '-'])
    """

    kind: str
    """``drop``, ``number``, ``category`` or ``date``."""
    format: str | None = None
    """The format of dates; None for ISO 8601."""
    markers: list[str] | None = None
    """The marks of missing values of this column; None for those of the table."""

    @classmethod
    def parse(cls, text: str) -> ColumnKind:
        """Parse a kind, such as ``"category"`` or ``"date=%d.%m.%Y"``; ValueError if it is invalid."""
        match = _KIND.fullmatch(text) if isinstance(text, str) else None
        if match is None or (match[1] == DROP and match[2] is not None):
            raise ValueError(f"{short_repr(text)} is not a kind of column: {_USAGE}")
        kind, detail = match.groups()
        if kind == DATE:
            return cls(kind, detail or None)
        return cls(kind, None, None if detail is None else [mark for mark in detail.split("|") if mark])


def parse_columns(columns: ColumnKinds) -> dict[str, str]:
    """Return the kind of each column as a mapping, from such a mapping or its text.

    Raises
    ------
    ValueError
        The text is not NAME:KIND,..., it names a column twice, or a kind is invalid.

    Examples
    --------
    >>> parse_columns('id:drop, "last, first":category, since:date=%d.%m.%Y %H:%M')
    {'id': 'drop', 'last, first': 'category', 'since': 'date=%d.%m.%Y %H:%M'}
    >>> parse_columns("country:category=,age:number=NA|-,*:drop")
    {'country': 'category=', 'age': 'number=NA|-', '*': 'drop'}
    """
    if not isinstance(columns, str | Mapping):
        raise ValueError(f"columns must be a text or a mapping of columns to kinds, not {short_repr(columns)}: {_USAGE}")
    kinds = _parse_text(columns) if isinstance(columns, str) else dict(columns)
    for name, kind in kinds.items():
        if not isinstance(name, str):
            raise ValueError(f"columns must have texts for names, not {short_repr(name)}")
        ColumnKind.parse(kind)
        if name == OTHER_COLUMNS and kind != DROP:
            raise ValueError(f"columns {short_repr(columns)}: * stands for all other columns, which can be dropped: *:drop")
    return kinds


def _parse_text(text: str) -> dict[str, str]:
    kinds: dict[str, str] = {}
    position = 0
    while position < len(text):
        if OTHER_COLUMNS in kinds:
            raise ValueError(f"columns {text}: *:drop is about all other columns, and stands at the end")
        if (match := _COLUMN.match(text, position)) is None:
            raise ValueError(f"columns {text}: {text[position:]} cannot be read: {_USAGE}; other names stand in double quotes")
        position, (name, kind, detail) = match.end(), match.groups()
        if not name:
            raise ValueError(f"columns {text}: a name is empty: {_USAGE}")
        if detail is not None and kind == DROP:
            raise ValueError(f"columns {text}: {name} is dropped, and neither has a format nor marks of missing values")
        if (name := _without_quotes(name)) in kinds:
            raise ValueError(f"columns {text}: {name} stands there twice")
        kinds[name] = kind if detail is None else f"{kind}={_without_quotes(detail)}"
    return kinds


def _without_quotes(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def format_columns(kinds: Mapping[str, str]) -> str:
    """Return a mapping from column to kind as the text that `parse_columns` reads.

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


def merge_options(options: Mapping[str, Any], others: Mapping[str, Any]) -> dict[str, Any]:
    """Return options of a table with others added: kinds by column, texts of lists; else the last one counts.

    >>> merge_options({"columns": {"a": "drop"}, "missing": ["NA"]}, {"columns": {"b": "date"}, "missing": ["-"]})
    {'columns': {'a': 'drop', 'b': 'date'}, 'missing': ['NA', '-']}
    """
    merged = dict(options)
    for name, value in others.items():
        before = merged.get(name)
        if isinstance(value, Mapping):
            merged[name] = {**(before or {}), **value}
        else:
            merged[name] = list(dict.fromkeys([*(before or []), *value])) if isinstance(value, list) else value
    return merged
