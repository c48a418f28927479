"""Rows as JSON, one object a message."""

from __future__ import annotations

import operator
import re
import struct
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any

import msgspec
import numpy as np
import orjson

from streamsvm.files.messages import shown
from streamsvm.stream.endpoints import Row
from streamsvm.stream.tables.values import flat
from streamsvm_kafka.codecs.protocol import MAX_MESSAGE_BYTES, fields_of


class JSONCodec:
    """Codec of JSON objects, one row in each message.

    The object has a field for each feature and one for the label. A null is a missing feature. A message whose label field is
    absent or null is an unlabelled row. Other values are numbers, strings or booleans. Fields of an object within the object are
    named by their path (``payload.after.amount``). An array in a field is an error, as is a message longer than
    `MAX_MESSAGE_BYTES`.

    Parameters
    ----------
    label
        Name of the label's field. None if the messages have none.

    Examples
    --------
    >>> codec = JSONCodec(label="y")
    >>> codec.decode(b'{"temperature": 21.5, "humid": true, "y": 1}')
    Row(x={'temperature': 21.5, 'humid': True}, y=1)
    >>> codec.encode(Row({"temperature": 21.5}, 0))
    b'{"temperature":21.5,"y":0}'
    >>> codec.decode(b"[1, 2]")
    Traceback (most recent call last):
        ...
    ValueError: expected a JSON object whose fields are features, got list
    """

    name = "json"

    def __init__(self, label: str | None) -> None:
        self.label = label
        self._typed: _Typed | None = None  # for the names that were asked for last

    def fields(self, value: bytes) -> dict[Any, Any]:
        """Return the fields of a message as they came, objects within it too; raise a ValueError if it is no JSON object."""
        if len(value) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{len(value)} bytes; a row may have at most {MAX_MESSAGE_BYTES}")
        try:
            fields = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        if type(fields) is not dict:
            raise ValueError(f"expected a JSON object whose fields are features, got {type(fields).__name__}")
        return fields

    def decode(self, value: bytes) -> Row:
        """Decode a JSON object; raise a ValueError if the message does not have the class's form."""
        fields = self.fields(value)
        # Most messages have neither of these bytes inside, and their fields need no look.
        if value.find(b"{", 1) >= 0:
            fields = flat(fields, self.label)
        if b"[" in value and list in set(map(type, fields.values())):
            name = next(name for name, item in fields.items() if type(item) is list)
            raise ValueError(f"field {shown(name)} holds an array; a row has one value a field")
        y = fields.pop(self.label, None) if self.label is not None else None
        if b"null" in value:
            fields = {name: item for name, item in fields.items() if item is not None}
        return Row(fields, y)

    def decode_pairs(self, values: Iterable[bytes]) -> Iterator[tuple[Any, Any]]:
        """Decode messages to features and labels, up to one that is not an object.

        It does not check that features are no containers. It is for callers that check that they are numbers, and let `decode`
        say what is wrong.
        """
        label, loads = self.label, orjson.loads
        try:
            for value in values:
                x = loads(value) if len(value) <= MAX_MESSAGE_BYTES else None
                if type(x) is not dict:
                    return
                if value.find(b"{", 1) >= 0:
                    x = flat(x, label)
                y = x.pop(label, None) if label is not None else None
                if b"null" in value:
                    x = {name: item for name, item in x.items() if item is not None}
                yield x, y
        except ValueError:  # no JSON, or two fields of one path
            return

    def decode_numbers(self, values: Sequence[bytes], names: Sequence[Hashable]) -> tuple[np.ndarray, list[Any]] | None:
        """Decode messages that have exactly the features of these names, all of them numbers, as `decode` does but faster.

        Returns the features, float64 [values, names], and the labels; None where a message has another form, or one that this
        way of reading does not tell from it.
        """
        if self._typed is None or self._typed.names != names:
            self._typed = _Typed(list(names), self.label)
        return self._typed.decode(values)

    def encode(self, row: Row) -> bytes:
        """Encode a row as a JSON object.

        Raise a ValueError if the name of a feature is not a string, or is that of the label.
        """
        try:
            return orjson.dumps(fields_of(row, self.label, "JSONCodec"), option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError as error:
            raise ValueError(f"the row cannot be written as JSON: {error}") from None


_PLAIN = re.compile(r'[^"\\\x00-\x1f\ud800-\udfff]*').fullmatch
_CONTROL = re.compile(r"[\x00-\x1f]").search
_LABELS = frozenset((int, float, str, bool, type(None)))
_LARGEST_NUMBER = float(np.finfo(np.float32).max)
_LEAST_INT, _MOST_INT = -(2**63), 2**64 - 1  # beyond these, a whole number is read as a float


class _Typed:
    """Reads messages with a field for each of some names, and the label: their types are checked while they are parsed."""

    def __init__(self, names: list[Hashable], label: str | None) -> None:
        self.names = names
        texts = [name for name in (*names, label) if isinstance(name, str)]
        wanted = len(names) + (label is not None)
        # Not of a bare name, the label as a feature, or a name that JSON escapes.
        self._usable = len(names) > 1 and len(set(texts)) == wanted and all(map(_PLAIN, texts))
        if not self._usable:
            return
        fields = [f"f{i}" for i in range(len(names))]
        told: list[Any] = [(field, float) for field in fields]
        renamed = dict(zip(fields, texts, strict=False))
        if label is not None:
            told, renamed["y"] = [*told, ("y", Any, None)], label
        kind = msgspec.defstruct("Fields", told, rename=renamed, gc=False, forbid_unknown_fields=True)
        self._read, self._features = msgspec.json.Decoder(kind).decode, operator.attrgetter(*fields)
        self._label = None if label is None else operator.attrgetter("y")

    def decode(self, values: Sequence[bytes]) -> tuple[np.ndarray, list[Any]] | None:
        """Decode messages, as `JSONCodec.decode_numbers`."""
        if not self._usable or max(map(len, values)) > MAX_MESSAGE_BYTES:
            return None
        try:
            rows = list(map(self._read, values))
        except ValueError:  # also text that is not UTF-8
            return None
        X = np.empty((len(rows), len(self.names)))
        cells, at, pack = X.data.cast("B"), 0, struct.Struct(f"{len(self.names)}d").pack_into
        for features in map(self._features, rows):
            pack(cells, at, *features)
            at += X.strides[0]
        y = [None] * len(rows) if self._label is None else list(map(self._label, rows))
        return (X, y) if self._same(values, X, y) else None

    @staticmethod
    def _same(values: Sequence[bytes], X: np.ndarray, y: list[Any]) -> bool:
        # Whether no message is one that the two parsers read differently: by text with escapes or control characters, or by
        # numbers that are too large.
        kinds = set(map(type, y))
        if not kinds <= _LABELS or not np.abs(X).max() <= _LARGEST_NUMBER:
            return False
        if int in kinds and not all(_LEAST_INT <= label <= _MOST_INT for label in set(y) if type(label) is int):
            return False
        if str not in kinds:
            return True
        return not (any(b"\\" in value for value in values) or any(_CONTROL(label) for label in set(y) if type(label) is str))
