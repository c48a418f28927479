"""Messages of the two joined streams: validation of keys, event times and labels, and serialisation of pending rows."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Callable, Hashable, Mapping
from typing import Any, NamedTuple

from streamsvm.core.checks import to_python_scalar
from streamsvm.files.messages import is_encodable, short_repr
from streamsvm.stream.rows import RowError
from streamsvm.stream.tables.dates import is_time_of_day, to_seconds
from streamsvm.stream.tables.values import parse_number

#: Maximum size of a pending row, as packed by ``pack_row``.
MAX_ROW_BYTES = 2**20
_MAX_KEY_LENGTH = 256  # characters
_MAX_INT, _MAX_EXACT_FLOAT = 2**63, 2**53  # limits of int keys, and of float keys, which represent all integers below
_MAX_TIME_LENGTH = 64  # characters
_MAX_SECONDS = 1e12  # later event times are invalid; sums of times within are exact to a millisecond


class PendingLabel(NamedTuple):
    """The key of a row whose label is still to come; it takes the place of the label in a `Row`."""

    key: str
    time: float
    """Event time of the row, in the merged order."""
    packed: str
    """The features of the row, as packed by ``pack_row``."""


class ArrivedLabel(NamedTuple):
    """A label that has come, with the key of its row; it takes the place of the label in a `Row` without features."""

    key: str
    time: float
    y: Any


def validate_key(value: Any) -> str:
    """Convert the key that joins a row to its label to text, so that 7, 7.0 and "7" are the same key. Raises RowError if it is
    missing, empty, longer than 256 characters, or neither text nor an integer.

    >>> validate_key("a7"), validate_key(7), validate_key(7.0)
    ('a7', '7', '7')
    """
    value = to_python_scalar(value)
    kind = type(value)
    if kind is str:
        text: str = value.strip()
    elif (kind is int and abs(value) < _MAX_INT) or (kind is float and value.is_integer() and abs(value) < _MAX_EXACT_FLOAT):
        text = str(int(value))
    elif value is None:
        raise RowError("key", "the key is missing: rows and labels are joined by it")
    else:
        rule = "it must be a text or a whole number of 64 bits, and a float must be below 2**53"
        raise RowError("key", f"the key is {short_repr(value)}: {rule}")
    if not 0 < len(text) <= _MAX_KEY_LENGTH:
        raise RowError("key", f"the key is {short_repr(value)}: it must have from 1 to {_MAX_KEY_LENGTH} characters")
    if not is_encodable(text):
        raise RowError("key", f"the key {short_repr(value)} is no text: it has half of a surrogate pair")
    return text


def parse_event_time(value: Any, latest: float = math.inf) -> float:
    """Convert the event time of a message to seconds since 1970. ``value`` is a number in s, ms, us or ns, its text, or an ISO
    8601 date (in UTC unless it has a time zone). Raises RowError if it is invalid, or later than ``latest``, in seconds since
    1970.

    The unit of a number (s, ms, us or ns) is inferred from its size.

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
        moment = value
        if isinstance(value, str):
            moment = value.strip() if len(value) <= _MAX_TIME_LENGTH else ""
            with contextlib.suppress(ValueError):
                moment = parse_number(moment)
        if not isinstance(moment, bool) and not is_time_of_day(moment):  # small integers are seconds, not years
            time = to_seconds(float(moment) if isinstance(moment, int) else moment)
    except (ValueError, TypeError, OverflowError):
        time = math.nan
    if math.isnan(time):
        raise RowError("time", f"the event time is {short_repr(value)}: it must be seconds since 1970, or a date in ISO 8601")
    if not -_MAX_SECONDS <= time <= min(latest, _MAX_SECONDS):
        when = "too long ago" if time < 0.0 else "in the future"
        raise RowError("time", f"the event time is {short_repr(value)}, which is {when}")
    return time


def validate_label(y: Any) -> Any:
    """Return a delayed label as a plain Python value that can be serialised. Raises RowError if it is missing, too long, or
    neither a bool, a number nor text.
    """
    y = to_python_scalar(y)
    if y is None:
        raise RowError("label", "the message of a label has no label")
    is_valid = abs(y) < _MAX_INT if type(y) in (int, float) else type(y) is bool or (type(y) is str and len(y) <= _MAX_KEY_LENGTH)
    if not is_valid:
        requirement = f"a delayed label is a bool, a number below 2**63, or a text of at most {_MAX_KEY_LENGTH} characters"
        raise RowError("label", f"label {short_repr(y)} is invalid: {requirement}")
    return y


def pack_row(x: Any) -> str:
    """Serialise the features of a row (``x``: values by name) as JSON, so that it can wait for its label. Raises RowError if a
    name or value has another type than numbers, texts and bools, or if the row has more than 1 MiB.

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
            "malformed", f"feature {short_repr(name)} is {short_repr(value)}: delayed rows have only numbers and texts"
        )
    text = as_json([names, values])
    if len(text) > MAX_ROW_BYTES:
        raise RowError("too long", f"the row takes {len(text):,} characters; one that waits may take {MAX_ROW_BYTES:,}")
    return text


def unpack_row(text: str) -> dict[Hashable, Any]:
    """Return the features of a row (values by name) from the JSON that `pack_row` wrote."""
    names, values = json.loads(text)
    return dict(zip(names, values, strict=True))


def pack_prediction(label: Any, probabilities: Mapping[Any, float] | None) -> str:
    """Serialise a prediction as JSON, so that it can be scored when the label comes. ``label`` is the predicted label or number,
    ``probabilities`` are those of all labels, or None.

    >>> pack_prediction(True, None), pack_prediction(1, {0: 0.25, 1: 0.75})
    ('[true]', '[1,[0,1],[0.25,0.75]]')
    """
    columns = [] if probabilities is None else [list(map(_to_plain, probabilities)), list(map(float, probabilities.values()))]
    return as_json([_to_plain(label), *columns])


def unpack_prediction(text: str) -> tuple[Any, dict[Any, float] | None]:
    """Return a prediction from the JSON that `pack_prediction` wrote: the predicted label or number, and the probabilities by
    label, or None.
    """
    label, *columns = json.loads(text)
    return label, dict(zip(*columns, strict=True)) if columns else None


_NAMES = frozenset((str, int))
_VALUES = frozenset((float, int, bool, str))


def _to_plain(value: Any) -> Any:
    """Return a predicted label as a plain Python bool, number, text or None. Raises RowError for other types, which cannot be
    serialised.
    """
    value = to_python_scalar(value)
    if value is not None and type(value) not in _VALUES:
        raise RowError("model", f"the model predicts {short_repr(value)}, which cannot wait for a label")
    return value


#: Serialises a value as compact JSON.
as_json: Callable[[Any], str] = json.JSONEncoder(separators=(",", ":")).encode
