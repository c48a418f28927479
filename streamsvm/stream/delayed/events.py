"""Rows that wait for their label and labels that look for their row: their keys, their times, and the text that is saved."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from streamsvm.core.checks import to_python_scalar
from streamsvm.files.messages import short_repr
from streamsvm.stream.rows import RowError
from streamsvm.stream.tables.values import parse_number, to_seconds

#: The most characters of a row that waits, as `pack_row` writes it.
MOST_ROW_BYTES = 2**20
_LONGEST_KEY = 256  # characters
_LARGEST, _LARGEST_WHOLE = 2**63, 2**53  # of ints, and of floats that tell whole numbers apart
_LONGEST_TIME = 64  # characters
_LATEST = 1e12  # seconds: a time beyond is no time, and sums of times stay exact to a millisecond


class PendingLabel(NamedTuple):
    """A label that is still to come, in the place of a row's label."""

    key: str
    time: float
    """Event time of the row, in the merged order."""
    packed: str
    """The features of the row, packed as text."""


class ArrivedLabel(NamedTuple):
    """The label of the row with this key, in the place of the label of a row without features."""

    key: str
    time: float
    y: Any


def validate_key(value: Any) -> str:
    """Return a key as text: 7, 7.0 and "7" are one key.

    Raise a RowError if it is missing, empty, longer than 256 characters, or neither a text nor a whole number.

    >>> validate_key("a7"), validate_key(7), validate_key(7.0)
    ('a7', '7', '7')
    """
    value = to_python_scalar(value)
    kind = type(value)
    if kind is str:
        text: str = value.strip()
    elif (kind is int and abs(value) < _LARGEST) or (kind is float and value.is_integer() and abs(value) < _LARGEST_WHOLE):
        text = str(int(value))
    elif value is None:
        raise RowError("key", "the key is missing: rows and labels are joined by it")
    else:
        raise RowError(
            "key", f"the key is {short_repr(value)}: it must be a text or a whole number of 64 bits, and no float beyond 2**53"
        )
    if not 0 < len(text) <= _LONGEST_KEY:
        raise RowError("key", f"the key is {short_repr(value)}: it must have from 1 to {_LONGEST_KEY} characters")
    if not text.isascii() and any("\ud800" <= letter <= "\udfff" for letter in text):
        raise RowError("key", f"the key {short_repr(value)} is no text: it has half of a surrogate pair")
    return text


def parse_event_time(value: Any, latest: float = math.inf) -> float:
    """Return an event time in seconds since 1970, from a number, its text, or a date in ISO 8601 (UTC if it names no zone).

    The size of a number tells whether it is in seconds, or in ms, us or ns.

    Raises
    ------
    RowError
        The time is missing, neither a number nor a date, or later than ``latest``.

    Examples
    --------
    >>> parse_event_time("2026-03-01T12:00:00Z"), parse_event_time("1.5")
    (1772366400.0, 1.5)
    """
    time, value = math.nan, to_python_scalar(value)
    if value is None:
        raise RowError("time", "the event time is missing: rows and labels are read in its order")
    try:
        if isinstance(value, str) and len(value) <= _LONGEST_TIME:
            time = _seconds_in_text(value)
        elif not isinstance(value, str | bool):  # a small whole number is no year here
            time = to_seconds(float(value) if isinstance(value, int) else value)
    except (ValueError, TypeError, OverflowError):
        time = math.nan
    if math.isnan(time):
        raise RowError("time", f"the event time is {short_repr(value)}: it must be seconds since 1970, or a date in ISO 8601")
    if not -_LATEST <= time <= min(latest, _LATEST):
        when = "too long ago" if time < 0.0 else "in the future"
        raise RowError("time", f"the event time is {short_repr(value)}, which is {when}")
    return time


def _seconds_in_text(text: str) -> float:
    try:
        return to_seconds(parse_number(text))
    except ValueError:
        return to_seconds(text.strip())


def validate_label(y: Any) -> Any:
    """Return a label that can wait; raise a RowError if it is missing, too long, or neither a bool, a number nor a text."""
    y = to_python_scalar(y)
    if y is None:
        raise RowError("label", "the message of a label has no label")
    small = abs(y) < _LARGEST if type(y) in (int, float) else type(y) is bool or (type(y) is str and len(y) <= _LONGEST_KEY)
    if not small:
        text = f"a label that comes by itself is a bool, a number below 2**63, or a text of at most {_LONGEST_KEY} characters"
        raise RowError("label", f"label {short_repr(y)} is invalid: {text}")
    return y


def pack_row(x: Any) -> str:
    """Return features as JSON, from which `unpack_row` makes equal ones.

    Raise a RowError if a name is neither a text nor a whole number, a value neither a number, a text nor a bool, or the row too
    long.

    >>> pack_row({"a": 1.5, "b": "word"})
    '[["a","b"],[1.5,"word"]]'
    """
    if not isinstance(x, Mapping):
        raise RowError("malformed", f"a row must be a mapping of names to values, not {short_repr(x)}")
    names, values = list(x), list(x.values())
    if not _VALUES.issuperset(map(type, values)):
        values = list(map(to_python_scalar, values))
    if not (_VALUES.issuperset(map(type, values)) and _NAMES.issuperset(map(type, names))):
        pairs = zip(names, values, strict=True)
        name, value = next(pair for pair in pairs if type(pair[0]) not in _NAMES or type(pair[1]) not in _VALUES)
        raise RowError(
            "malformed", f"feature {short_repr(name)} is {short_repr(value)}: a row that waits has numbers and texts only"
        )
    text = as_json([names, values])
    if len(text) > MOST_ROW_BYTES:
        raise RowError("too long", f"the row takes {len(text):,} characters; one that waits may take {MOST_ROW_BYTES:,}")
    return text


def unpack_row(text: str) -> dict[Hashable, Any]:
    """Return the features of a row that was packed."""
    names, values = json.loads(text)
    return dict(zip(names, values, strict=True))


def pack_prediction(label: Any, probabilities: Mapping[Any, float] | None) -> str:
    """Return the predicted label, or number, and the probabilities of all labels as JSON.

    >>> pack_prediction(True, None), pack_prediction(1, {0: 0.25, 1: 0.75})
    ('[true]', '[1,[0,1],[0.25,0.75]]')
    """
    columns = [] if probabilities is None else [list(map(_plain_value, probabilities)), list(map(float, probabilities.values()))]
    return as_json([_plain_value(label), *columns])


def unpack_prediction(text: str) -> tuple[Any, dict[Any, float] | None]:
    """Return a label and probabilities that were packed."""
    label, *columns = json.loads(text)
    return label, dict(zip(*columns, strict=True)) if columns else None


_NAMES = frozenset((str, int))
_VALUES = frozenset((float, int, bool, str))


def _plain_value(value: Any) -> Any:
    value = to_python_scalar(value)
    if value is not None and type(value) not in _VALUES:
        raise RowError("model", f"the model predicts {short_repr(value)}, which cannot wait for a label")
    return value


#: Returns a value as `pack_row` and `pack_prediction` write it.
as_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode
