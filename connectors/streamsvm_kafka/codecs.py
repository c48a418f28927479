"""Codecs between rows and Kafka messages: a JSON object, or packed float32 numbers."""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import Any, Protocol

import orjson

from streamsvm.runtime.endpoints import Row

__all__ = ["MAX_MESSAGE_BYTES", "Codec", "Float32Codec", "JSONCodec"]

#: A longer message is refused before it is decoded. A broker's default limit.
MAX_MESSAGE_BYTES = 1 << 20

_CONTAINERS = frozenset((dict, list))


class Codec(Protocol):
    """Decodes a row from the value of a message, and encodes it."""

    def decode(self, value: bytes) -> Row:
        """Decode a message; ValueError if it holds no such row, with the reason (the caller adds the place)."""

    def encode(self, row: Row) -> bytes:
        """Encode a row as `decode` reads it; ValueError if the codec cannot."""


class JSONCodec:
    """One flat JSON object a message: a field a feature, and one field for the label.

    A message whose label field is absent or null is an unlabelled row, and a null is a missing feature. Other values are numbers,
    strings or booleans; an object or an array is an error, as is a message over `MAX_MESSAGE_BYTES`.

    Parameters
    ----------
    label
        Name of the label's field; None if the messages have none.

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
    ValueError: expected a JSON object with a field a feature, got list
    """

    def __init__(self, label: str | None) -> None:
        self.label = label

    def decode(self, value: bytes) -> Row:
        """Decode a JSON object; ValueError if the message is none, or none of the class's form."""
        if len(value) > MAX_MESSAGE_BYTES:
            raise ValueError(f"{len(value)} bytes; a row may take {MAX_MESSAGE_BYTES}")
        try:
            fields = orjson.loads(value)
        except orjson.JSONDecodeError as error:
            raise ValueError(f"not JSON: {error}") from None
        if type(fields) is not dict:
            raise ValueError(f"expected a JSON object with a field a feature, got {type(fields).__name__}")
        # Most messages have neither of these bytes inside, and their fields need no look.
        nested = b"[" in value or value.find(b"{", 1) >= 0
        if nested and not _CONTAINERS.isdisjoint(map(type, fields.values())):
            name = next(name for name, item in fields.items() if type(item) in _CONTAINERS)
            raise ValueError(f"field {name!r} holds an object or an array; a row is flat, one value a field")
        y = fields.pop(self.label, None) if self.label is not None else None
        if b"null" in value:
            fields = {name: item for name, item in fields.items() if item is not None}
        return Row(fields, y)

    def decode_columns(self, values: Sequence[bytes]) -> tuple[list[Any], list[Any]] | None:
        """Decode messages to features and labels, and do not check that features are no containers; None if one is no object.

        For who checks that they are numbers, and has `decode` tell what is wrong.
        """
        if max(map(len, values)) > MAX_MESSAGE_BYTES:
            return None
        try:
            xs: list[Any] = list(map(orjson.loads, values))
        except orjson.JSONDecodeError:
            return None
        if set(map(type, xs)) != {dict}:
            return None
        label = self.label
        ys = [None] * len(xs) if label is None else [x.pop(label, None) for x in xs]
        if b"null" in b"".join(values):
            xs = [{name: item for name, item in x.items() if item is not None} if None in x.values() else x for x in xs]
        return xs, ys

    def encode(self, row: Row) -> bytes:
        """Encode a JSON object; ValueError if a feature's name is not a string, or is that of the label."""
        fields = dict(row.x)
        if row.y is not None:
            if self.label is None:
                raise ValueError("the row has a label, but the codec has no name for it: give JSONCodec(label=...)")
            if self.label in fields:
                raise ValueError(f"{self.label!r} is the name of the label and of a feature")
            fields[self.label] = row.y
        try:
            return orjson.dumps(fields, option=orjson.OPT_SERIALIZE_NUMPY)
        except orjson.JSONEncodeError as error:
            raise ValueError(f"the row cannot be written as JSON: {error}") from None


class Float32Codec:
    """One packed row a message: ``n_features`` little-endian float32 numbers, then the label as one more.

    Features are named 0 to ``n_features - 1``. A label of NaN means that the row has none, so every message is exactly
    ``4 * (n_features + 1)`` bytes long and any other length is an error. A label that is a whole number is read as an int.

    Parameters
    ----------
    n_features
        Number of features of a row, at least 1.

    Raises
    ------
    ValueError
        ``n_features`` is not a positive number, or a row of it would be longer than `MAX_MESSAGE_BYTES`.

    Examples
    --------
    >>> import numpy as np
    >>> codec = Float32Codec(n_features=2)
    >>> codec.decode(np.array([0.5, -3, 1], dtype="<f4").tobytes())
    Row(x={0: 0.5, 1: -3.0}, y=1)
    >>> codec.decode(codec.encode(Row({0: 0.5, 1: -3.0})))
    Row(x={0: 0.5, 1: -3.0}, y=None)
    """

    def __init__(self, n_features: int) -> None:
        if not 1 <= n_features < MAX_MESSAGE_BYTES // 4:
            raise ValueError(f"n_features must be from 1 to {MAX_MESSAGE_BYTES // 4 - 1}, got {n_features}")
        self.n_features = n_features
        self._layout = struct.Struct(f"<{n_features + 1}f")
        self._names = range(n_features)

    def decode(self, value: bytes) -> Row:
        """Decode a packed row; ValueError if its length is another."""
        if len(value) != self._layout.size:
            raise ValueError(f"{len(value)} bytes; {self.n_features} features and a label as float32 take {self._layout.size}")
        *features, y = self._layout.unpack(value)
        label = int(y) if y.is_integer() else None if math.isnan(y) else y
        return Row(dict(zip(self._names, features, strict=True)), label)

    def encode(self, row: Row) -> bytes:
        """Encode a packed row, missing features as 0; ValueError if a name or a value does not fit."""
        if unknown := row.x.keys() - set(self._names):
            raise ValueError(f"feature {min(unknown, key=repr)!r} is not one of 0 to {self.n_features - 1}")
        features = (row.x.get(name, 0.0) for name in self._names)
        try:
            return self._layout.pack(*features, math.nan if row.y is None else row.y)
        except (struct.error, OverflowError) as error:
            raise ValueError(f"the row cannot be written as float32: {error}") from None
