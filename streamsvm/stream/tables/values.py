"""Parses single values of tables: numbers in text, labels, and objects within rows of JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from streamsvm.core.checks import to_plain
from streamsvm.files.messages import short_repr


def parse_number(text: str) -> float:
    """Convert the text of a number to float, like Python's ``float``, but without underscores and digits outside ASCII. No-break
    spaces around it are ignored. Raises ValueError if it is not a number.

    >>> parse_number(" 1e3 "), parse_number("-.5"), parse_number("12\N{NO-BREAK SPACE}")
    (1000.0, -0.5, 12.0)
    >>> parse_number("2020_01")
    Traceback (most recent call last):
        ...
    ValueError: '2020_01' is not a number
    """
    if "_" in text or not (text.isascii() or (text := text.strip()).isascii()):
        raise ValueError(f"{text!r} is not a number")
    return float(text)


def normalize_label(y: Any) -> Any:
    """Convert a label from a typed format, such as Parquet, to the form that it would have in a text format: bytes are decoded,
    decimals and durations (in seconds) become numbers, and texts are stripped of blanks. Other labels are unchanged.

    >>> normalize_label("yes "), normalize_label(b"yes"), normalize_label(1)
    ('yes', 'yes', 1)
    """
    if isinstance(y, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            y = y.decode()
    if isinstance(y, Decimal | timedelta):
        return to_plain(y) if isinstance(y, Decimal) else y.total_seconds()
    return y.strip() if isinstance(y, str) else y


#: Maximum depth of nested objects in a row.
MAX_DEPTH = 16


def flatten_row(row: Mapping[str, Any], label: str | None = None, dropped: Iterable[str] = ()) -> dict[str, Any]:
    """Replace the nested objects of a row by columns: each value within an object becomes a column that is named by its path,
    such as ``after.a``. The value at the path ``label`` stays nested, and those at the paths ``dropped`` are left out.

    Lists are not flattened, either. Extended JSON of MongoDB, such as ``{"$numberInt": "5"}``, becomes plain values. Raises
    ValueError if two values have the same path, or if objects are nested more than 16 deep.

    >>> flatten_row({"op": "c", "after": {"a": 1, "at": {"x": 2}}, "before": {"a": 0}}, "y", ["before"])
    {'op': 'c', 'after.a': 1, 'after.at.x': 2}
    >>> flatten_row({"n": {"$numberLong": "5"}, "at": {"$date": {"$numberLong": "86400000"}}})
    {'n': 5, 'at': '1970-01-02T00:00:00+00:00'}
    """
    flat: dict[str, Any] = {}
    dropped_paths = set(dropped)

    def add_values(values: Mapping[str, Any], prefix: str, depth: int) -> None:
        for name, value in values.items():
            path = prefix + name
            if path in dropped_paths and path != label:
                continue
            if (is_object := isinstance(value, Mapping)) and (value := parse_extended_json(value)) is None:
                continue
            if is_object and path != label and isinstance(value, Mapping):
                if depth == MAX_DEPTH:
                    raise ValueError(f"objects within objects, more than {MAX_DEPTH} deep")
                add_values(value, f"{path}.", depth + 1)
            elif path in flat:
                raise ValueError(f"two values have the path {path!r}")
            else:
                flat[path] = value

    add_values(row, "", 1)
    return flat


def parse_extended_json(value: Mapping[str, Any]) -> Any:
    """Convert a value in extended JSON of MongoDB, canonical or relaxed, to a number, a text, a date in ISO 8601 or None. Other
    objects are unchanged. Raises ValueError if the content does not fit its type.
    """
    if len(value) != 1 or (convert := _EXTENDED_TYPES.get(next(iter(value)))) is None:
        return value
    try:
        return convert(*value.values())
    except (ValueError, TypeError, OverflowError):
        raise ValueError(f"invalid value in extended JSON: {short_repr(dict(value))}") from None


def _format_extended_date(moment: Any) -> str:
    """Return a date in ISO 8601: the text itself, or milliseconds since 1970 as a number or in extended JSON."""
    milliseconds = parse_extended_json(moment) if isinstance(moment, Mapping) else moment
    return moment if isinstance(moment, str) else (_EPOCH + timedelta(milliseconds=milliseconds)).isoformat()


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EXTENDED_TYPES: dict[str, Callable[[Any], Any]] = {
    **dict.fromkeys(("$numberInt", "$numberLong"), int),
    **dict.fromkeys(("$numberDouble", "$numberDecimal"), float),
    **dict.fromkeys(("$oid", "$uuid", "$symbol"), str),
    "$date": _format_extended_date,
    "$timestamp": lambda time: _format_extended_date(1000 * time["t"]),
    "$undefined": lambda _: None,
}


def get_nested_value(row: Mapping[str, Any], path: str) -> Any:
    """Return the value or object at a path in a row with nested objects, such as ``after.a`` (``a`` within ``after``); None if
    the row does not have it.

    >>> get_nested_value({"op": "c", "after": {"a": 1, "at": {"x": 2}}}, "after.at.x")
    2
    """
    if (value := row.get(path)) is not None:
        return value
    for dot in (i for i, letter in enumerate(path) if letter == "."):
        inner = row.get(path[:dot])
        if isinstance(inner, Mapping) and (value := get_nested_value(inner, path[dot + 1 :])) is not None:
            return value
    return None
