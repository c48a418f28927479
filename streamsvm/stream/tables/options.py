"""How a table is read: options as texts, on a command line and in Python, and as parameters of a source and an encoder."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from streamsvm.files.messages import quoted_name, written_names
from streamsvm.stream.tables.reading import Reading

#: The options that a text such as ``"id:drop,city:category"`` gives.
ROLES = ("drop", "categorical", "dates", "features", "numbers", "marks")
READING = ("features", "drop", "categorical", "dates", "missing", "decimal", "marks")
TEXT = ("delimiter", "encoding")
#: What each format can be read with; of a URL nothing, for messages name their fields and have their encoding.
KNOWN: dict[str, tuple[str, ...]] = {
    "csv": (*READING, *TEXT),
    "jsonl": (*READING, "encoding"),
    "parquet": READING,
    "arrow": READING,
}
_KINDS = {"drop": "drop", "category": "categorical", "number": "numbers"}
_NAME = r'\s*("(?:[^"]|"")*"|[^",:]*?)\s*'  # perhaps in quotes
_FORMAT = r'\s*("(?:[^"]|"")*"|[^",]*?)\s*'
_COLUMN = re.compile(f"{_NAME}:\\s*(drop|category|date|number)(?:={_FORMAT})?\\s*(?:,|$)")


class TableOptions(NamedTuple):
    """How a table is read, for those who read it."""

    source: dict[str, Any]
    """Options of `open_source`."""
    encoder: dict[str, Any]
    """Parameters of `TableEncoder`; empty where no encoder is needed."""
    numbers: Sequence[str] = ()
    """Columns that are said to hold numbers."""


def columns_of(*texts: str) -> dict[str, Any]:
    """Return the options that texts such as ``"id:drop,city:category"`` give, those of `ROLES`.

    Where several name a column, its last kind counts. A ValueError says that it is not NAME:KIND,..., or names a column twice.

    >>> columns_of('id:drop, "last, first":category, since:date=%d.%m.%Y %H:%M')
    {'drop': ['id'], 'categorical': ['last, first'], 'dates': {'since': '%d.%m.%Y %H:%M'}}
    >>> columns_of("country:category=,age:number=NA|-")
    {'categorical': ['country'], 'marks': {'country': [], 'age': ['NA', '-']}, 'numbers': ['age']}
    >>> columns_of("city:category,age:number,*:drop")
    {'categorical': ['city'], 'features': ['city', 'age']}
    """
    kinds: dict[str, tuple[str, str | None]] = {}
    others_dropped = False
    for text in texts:
        found, drops = _kinds_of(text)
        kinds, others_dropped = kinds | found, others_dropped or drops
    options: dict[str, Any] = {}
    for name, (kind, how) in kinds.items():
        if kind == "date":
            options.setdefault("dates", {})[name] = how or None
            continue
        if kind != "number" or not others_dropped:
            options.setdefault(_KINDS[kind], []).append(name)
        if how is not None:
            options.setdefault("marks", {})[name] = [mark for mark in how.split("|") if mark]
    if others_dropped:
        options["features"] = [name for name, (kind, _) in kinds.items() if kind != "drop"]
        if not options["features"]:
            raise ValueError(f"columns {','.join(texts)}: all columns are dropped, and nothing is left to learn from")
    return options


def _kinds_of(text: str) -> tuple[dict[str, tuple[str, str | None]], bool]:
    """Return the kind and the format of each column that is named, and whether all others are dropped."""
    form = (
        "it is NAME:KIND,..., where KIND is drop, category, date, date=FORMAT or number; or, with the marks of missing values of "
        "that column, category=MARK|MARK or number=MARK"
    )
    kinds: dict[str, tuple[str, str | None]] = {}
    place, others_dropped = 0, False
    while place < len(text):
        if others_dropped:
            raise ValueError(f"columns {text}: *:drop is about all other columns, and stands at the end")
        if (found := _COLUMN.match(text, place)) is None:
            raise ValueError(f"columns {text}: {text[place:]} cannot be read: {form}; other names stand in double quotes")
        place, (name, kind, how) = found.end(), found.groups()
        if how is not None and kind == "drop":
            raise ValueError(f"columns {text}: {name} is dropped, and neither has a format nor marks of missing values")
        others_dropped = name == "*"
        if others_dropped and kind != "drop":
            raise ValueError(f"columns {text}: * stands for all other columns, which can be dropped: *:drop")
        if not name:
            raise ValueError(f"columns {text}: a name is empty: {form}")
        if not others_dropped:
            if (name := _plain_text(name)) in kinds:
                raise ValueError(f"columns {text}: {name} stands there twice")
            kinds[name] = kind, None if how is None else _plain_text(how)
    return kinds, others_dropped


def _plain_text(text: str) -> str:
    return text[1:-1].replace('""', '"') if text.startswith('"') else text


def columns_text(options: Mapping[str, Any]) -> str:
    """Return options as a text that `columns_of` reads.

    >>> columns_text({"drop": ["id"], "categorical": ["last, first"], "dates": {"since": "%d.%m.%Y", "to": None}})
    'id:drop,"last, first":category,since:date=%d.%m.%Y,to:date'
    """
    dates: Mapping[str, str | None] = options.get("dates", {})
    own = {name: f"={_text_after('|'.join(marks))}" for name, marks in options.get("marks", {}).items()}
    parts = [f"{quoted_name(name)}:drop" for name in options.get("drop", ())]
    parts += [f"{quoted_name(name)}:category{own.get(name, '')}" for name in options.get("categorical", ())]
    for name, how in dates.items():
        form = "" if how is None else _text_after(how)
        parts.append(f"{quoted_name(name)}:date{form and f'={form}'}")
    named = {*options.get("drop", ()), *options.get("categorical", ()), *dates}
    numbers = dict.fromkeys([*options.get("features", ()), *options.get("numbers", ()), *own])
    parts += [f"{quoted_name(name)}:number{own.get(name, '')}" for name in numbers if name not in named]
    return ",".join([*parts, "*:drop"] if options.get("features") else parts)


def _text_after(text: str) -> str:
    """Return what stands after a kind, in quotes where that must be."""
    return quoted_name(text) if set(text) & set(',"') or text != text.strip() else text


def table_options(given: Mapping[str, Any], text_format: str | None) -> TableOptions:
    """Return how a table of a format, None for a stream with a URL and for rows in Python, is read with given options.

    A ValueError says that options exclude each other.
    """
    Reading(**{name: value for name, value in given.items() if name in READING})
    numbers = given.get("numbers", [])
    encoder = {name: value for name, value in given.items() if name not in (*TEXT, "numbers")}
    if numbers and not encoder and text_format != "csv":  # which reads text as numbers anyway
        encoder = {"drop": []}
    source = {name: given[name] for name in KNOWN.get(text_format or "", ()) if name in given}
    return TableOptions(source, encoder, numbers)


def flags_of(options: Mapping[str, Any]) -> str:
    """Return options as they stand on a command line.

    >>> flags_of({"drop": ["id"], "dates": {"since": "%d.%m.%Y", "to": None}, "missing": ["NA", "?"]})
    "--columns id:drop,since:date=%d.%m.%Y,to:date --missing 'NA,?'"
    """
    parts = []
    for name, value in as_arguments(options).items():
        text = written_names(value) if isinstance(value, list) else str(value)
        between = "=" if text.startswith("-") else " "
        parts.append(f"--{name.replace('_', '-')}{between}{shlex.quote(text)}")
    return " ".join(parts)


def arguments_of(options: Mapping[str, Any]) -> str:
    """Return options as they stand in a call in Python.

    >>> arguments_of({"drop": ["id"], "dates": {"since": "%d.%m.%Y", "to": None}, "missing": ["NA", "?"]})
    "columns='id:drop,since:date=%d.%m.%Y,to:date', missing=['NA', '?']"
    """
    return ", ".join(f"{name}={value!r}" for name, value in as_arguments(options).items())


def as_arguments(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with those of `ROLES` as one text, ``columns``."""
    columns = columns_text(options)
    others = {name: value for name, value in options.items() if name not in ROLES}
    return ({"columns": columns} if columns else {}) | others
